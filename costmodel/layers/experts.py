"""Mixtures of experts: choosing, sending tokens, and their linear layers."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.graph.call import Buffers, Call, Gradient, LayerFlops, Share, Weights, Workspace
from costmodel.graph.kernel import Product
from costmodel.graph.tensor import Shape, Storage, Tensor
from costmodel.layers.base import (
    Movement,
    OneKernel,
    Unary,
    Weightless,
    WeightProduct,
    layer,
)
from costmodel.layers.kernels import distinct_bytes, scale_bytes
from costmodel.symbolic.sizes import ceil_div, exact_div, minimum
from costmodel.training.dtypes import size_bytes


@layer
class GroupedTopK(OneKernel):
    """Scores of the `chosen` experts, x: (..., n), y: (..., chosen), all from the `kept_groups` best of `groups`.

    A group is as good as its `best` largest scores together. `biased`: choices, but not what is returned, are by the
    scores and a constant of each expert. `stored`: those constants are among the weights, and never trained.
    """

    source = (
        "x.gather(−1, i), i = top-k of the experts in the best groups (DeepSeek-AI 2024, V2, §2.2.2; V3, §2.1.2); "
        "choosing has no gradient; dx has g at the places chosen"
    )
    in_lists = False
    fixed = True
    sorts, launches = ("gather", "gather"), (10, 2)

    chosen: int
    groups: int = 1
    kept_groups: int = 1
    best: int = 1
    biased: bool = False
    stored: bool = False

    def check(self, call: Call) -> None:
        super().check(call)
        n = call.x.shape[-1] if call.x.shape else 0
        if not n or n % self.groups:
            raise call.fail(f"groups {self.groups} does not divide {n} experts")
        each = n // self.groups
        if self.kept_groups > self.groups or self.best > each or self.chosen > self.kept_groups * each:
            raise call.fail(f"cannot choose {self.chosen} of {self.kept_groups} of {self.groups} groups")

    def weights(self, call: Call) -> Weights:
        return {"bias": (call.x.shape[-1],)} if self.biased and self.stored else {}

    def buffers(self, call: Call) -> Buffers:
        return {"bias": ((call.x.shape[-1],), "statistic")} if self.biased and not self.stored else {}

    def output(self, call: Call) -> Tensor:
        """(..., chosen), of the scores' type, whatever that of the constants."""
        return call.tape.tensor((*call.x.shape[:-1], self.chosen), dtype=call.x.dtype)

    def forward(self, call: Call) -> LayerFlops:
        """Of each row: add constants, judge groups, choose groups, leave the others out, choose experts."""
        n, g, j, k, s = call.x.shape[-1], self.groups, self.best, self.kept_groups, self.chosen
        judging = g * (_largest(exact_div(n, g), j) + j - 1) + _largest(g, k) + n
        return LayerFlops(0, call.x.rows * (n * self.biased + judging + _largest(n, s)))

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(0, 0))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.x
        yield call.fresh("index", *call.y.shape)

    def workspace(self, call: Call) -> Workspace:
        """The scores that choices are by, and the places, where they are not kept."""
        return Workspace(call.x.size + (0 if call.y.requires_grad else call.y.size), 0)


def _largest(n: int, k: int) -> int:
    """Comparisons that find the k largest of n, one after another."""
    return k * n - exact_div(k * (k + 1), 2)


@layer
class Shares(Unary):
    """y = x/(Σ x + ε) over the last axis, for x > 0: a sum, ε, and a division of each element."""

    source = "x/(Σ x + ε) (DeepSeek-AI 2024, V3, eq. 13); dx = g/s − Σ(g·x)/s² with s = Σ x + ε"
    sorts, launches, passes = ("reduction", "reduction"), (3, 4), 2

    def forward(self, call: Call) -> LayerFlops:
        """2n a row."""
        return LayerFlops(0, 2 * call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """g·x and its sum, s² and a division by it, g/s, and the difference: 4n + 1 a row."""
        yield Gradient(call.x, LayerFlops(0, 4 * call.x.size + call.x.rows))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.x
        yield call.fresh("activation", call.x.rows)

    def workspace(self, call: Call) -> Workspace:
        """The sums, where they are not kept; in backward g·x."""
        return Workspace(0 if call.y.requires_grad else call.x.rows, call.x.size)


@layer
class TopK(OneKernel, Weightless):
    """The `chosen` largest of each row, x: (..., n), y: (..., chosen): a maximum of n, of the n − 1 left, and so on."""

    source = (
        "torch.topk along the last axis; dx has g at the places chosen, which are kept (Shazeer et al. 2017, eq. 5)"
    )
    in_lists = False
    sorts, launches = ("gather", "gather"), (2, 2)

    chosen: int

    def check(self, call: Call) -> None:
        super().check(call)
        if not call.x.shape or call.x.shape[-1] < self.chosen:
            raise call.fail(f"top_k chooses {self.chosen} of at least as many")

    def output(self, call: Call) -> Shape:
        return (*call.x.shape[:-1], self.chosen)

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, call.x.rows * _largest(call.x.shape[-1], self.chosen))

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(0, 0))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.fresh("index", *call.y.shape)

    def workspace(self, call: Call) -> Workspace:
        return Workspace(0 if call.y.requires_grad else call.y.size, 0)


@layer
class Pick(Movement):
    """Rows by index, y = x[i]: (n, d) → (rows, d), or (n·times, d) with each row taken `times` times."""

    source = "y = x[i] (torch.Tensor.__getitem__ by int64 index); dx[i] += g"
    in_lists = False
    input_axes = "rows, features"
    sorts, launches = ("gather", "gather"), (1, 2)

    times: int = 1
    rows: int | None = None

    def output(self, call: Call) -> Shape:
        return (call.x.shape[0] * self.times if self.rows is None else self.rows, call.x.shape[1])

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(0, call.y.size))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.fresh("index", call.y.shape[0])


@layer
class ExpertLinear(WeightProduct):
    """y = x Wₑᵀ + bₑ with the expert e that each row was sent to, of which each token chose `chosen`.

    x: (rows, n_in), y: (rows, features), W: (experts, features, n_in), b: (experts, features). `busy`: how many experts
    rows are spread over, all unless given, which decides what is read. `ranks`: how many have so many experts each,
    among all of which tokens choose.
    """

    source = "y = x Wₑᵀ + bₑ for the rows of each expert (torch.nn.functional.linear; Shazeer et al. 2017, eq. 1)"
    in_lists = False
    of_experts = True
    input_axes = "rows, features"

    experts: int
    chosen: int
    features: int
    bias: bool = True
    busy: int | None = None
    ranks: int = 1

    def weights(self, call: Call) -> Weights:
        weights: Weights = {"weight": (self.experts, self.features, call.x.shape[1])}
        return weights | {"bias": (self.experts, self.features)} if self.bias else weights

    def output(self, call: Call) -> Shape:
        return (call.x.shape[0], self.features)

    def sizes(self, call: Call) -> Product:
        """One multiply-add for each row, input and output feature, whichever experts the rows went to."""
        return Product(1, call.x.shape[0], self.features, call.x.shape[1])

    def products(self, call: Call) -> tuple[Product, Product, Product]:
        """One for each busy expert, of an equal share of the rows."""
        (_, rows, n, k), busy = self.sizes(call), self._busy(call)
        share = ceil_div(rows, busy)
        return Product(busy, share, n, k), Product(busy, share, k, n), Product(busy, n, k, share)

    def _busy(self, call: Call) -> int:
        """Experts that rows are spread over: as many as there are rows, at most."""
        return minimum(self.experts if self.busy is None else self.busy, call.x.shape[0])

    @property
    def idle(self) -> Share:
        """Experts that a token does not choose, or a rank's share of them."""
        return Share(self.ranks * self.experts - self.chosen, self.experts, self.ranks)

    def reads(self, call: Call, weight: Tensor) -> Share:
        """Busy experts alone."""
        return Share(self._busy(call), self.experts)

    def read_bytes(self, call: Call) -> int:
        """The rows, and the weights of busy experts alone."""
        read = sum(size_bytes(self.reads(call, w).of(w.size), w.dtype) for w in call.weights.values())
        return distinct_bytes(call.x) + read + scale_bytes(call)


@layer
class Total(Movement):
    """Sum over the middle axis, (rows, n, d) → (rows, d): n − 1 additions each."""

    source = "torch.sum along axis 1 (Shazeer et al. 2017, eq. 1); dx = g, seen n times"
    in_lists = False
    input_axes = "rows, terms, features"
    sorts = "reduction", "pointwise"
    shared = True

    def output(self, call: Call) -> Shape:
        return (call.x.shape[0], call.x.shape[2])

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, call.x.size - call.y.size)
