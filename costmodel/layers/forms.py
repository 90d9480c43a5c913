"""Products that PyTorch counts no FLOPs of: bilinear forms, distances, grids of affine maps, products by groups."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.graph.tensor import Call, Shape, Storage, Tensor
from costmodel.layers.base import Gradient, LayerFlops, layer, takes
from costmodel.layers.shape import Moving
from costmodel.symbolic.sizes import product


@layer
class GroupedMatmul(Moving):
    """Each row of x times the matrix of its group: x: (rows, k), w: (groups, k, n), ends of groups, y: (rows, n).

    FlopCounterMode has no rule for it; it is counted as what it is, however rows are spread over groups.
    """

    source = "torch.nn.functional.grouped_mm; dx = g wᵀ, dw = xᵀ g, by groups"

    def check(self, call: Call) -> None:
        """Takes rows, matrices, and where groups end."""
        takes(call, 3)
        x, w, _ = call.inputs
        if len(x.shape) != 2 or len(w.shape) != 3 or x.shape[1] != w.shape[1]:
            raise call.fail("grouped_matmul takes rows and a matrix for each group")

    def output(self, call: Call) -> Shape:
        """(rows, n)."""
        return (call.x.shape[0], call.inputs[1].shape[2])

    def _work(self, call: Call) -> LayerFlops:
        return LayerFlops(2 * call.x.size * call.inputs[1].shape[2], 0)

    def forward(self, call: Call) -> LayerFlops:
        """A multiply-add for each number of a row and column of its matrix."""
        return self._work(call)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Two products of the forward one's size."""
        for x in call.inputs[:2]:
            yield Gradient(x, self._work(call))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Each operand for the other's gradient, and the ends."""
        x, w, ends = call.inputs
        if w.requires_grad:
            yield x
        if x.requires_grad:
            yield w
        yield ends


@layer
class Bilinear(Moving):
    """y_o = Σ a_i w_oij b_j. a: (..., I), b: (..., J), w: (O, I, J), y: (..., O)."""

    source = "torch.nn.functional.bilinear; dw = g a b, da = g w b, db = g w a"

    def check(self, call: Call) -> None:
        """Takes both sides and the form."""
        takes(call, 3)

    def output(self, call: Call) -> Shape:
        """(..., O)."""
        return (*call.x.shape[:-1], call.inputs[2].shape[0])

    def _pairs(self, call: Call) -> int:
        """Products a_i b_j."""
        return call.x.size * call.inputs[1].shape[-1]

    def _work(self, call: Call) -> int:
        return 2 * self._pairs(call) * call.inputs[2].shape[0]

    def forward(self, call: Call) -> LayerFlops:
        """All products of two features, then a product with the form."""
        return LayerFlops(self._work(call), self._pairs(call), counted=0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """g w for both sides, then a product with the other; g times the products of two features for the form."""
        a, b, w = call.inputs
        both = self._work(call)
        for x in (a, b):
            if x.requires_grad:
                yield Gradient(x, LayerFlops(both + 2 * self._pairs(call), 0, counted=0))
                both = 0
        yield Gradient(w, LayerFlops(self._work(call), 0, counted=0))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """What the gradients of the others need."""
        for x in call.inputs:
            if any(other.requires_grad for other in call.inputs if other is not x):
                yield x


@layer
class Distances(Moving):
    """Distances of all rows of a to all of b: a: (..., P, M), b: (..., R, M), y: (..., P, R).

    squares: Euclidean, else sums of absolute differences. by_product: from norms and one product, a² − 2·a·b + b².
    """

    source = "torch.cdist; da = Σ g·(a − b)/y, or Σ g·sign(a − b)"

    squares: bool = True
    by_product: bool = False

    def check(self, call: Call) -> None:
        """Takes both sets."""
        takes(call, 2)

    def output(self, call: Call) -> Shape:
        """(..., P, R)."""
        a, b = call.inputs
        return (*a.shape[:-1], b.shape[-2])

    def _terms(self, call: Call) -> int:
        """Differences."""
        return call.y.size * call.x.shape[-1]

    def forward(self, call: Call) -> LayerFlops:
        """A difference, its square or its size, and the sum, then the root; or norms, a product, and the root."""
        if self.by_product:
            squares = sum(2 * x.size for x in call.inputs)
            return LayerFlops(2 * self._terms(call), squares - sum(x.rows for x in call.inputs) + 5 * call.y.size, 0)
        return LayerFlops(0, 3 * self._terms(call) - (0 if self.squares else call.y.size))

    def backward(self, call: Call) -> Iterable[Gradient]:
        """g/y, or signs, for both; each side adds up its differences by them, or takes a product with the other."""
        both = call.y.size if self.squares else 0
        if not self.by_product:
            both += (2 if self.squares else 3) * self._terms(call)
        for x, negated in zip(call.inputs, (0, 1), strict=True):
            if not x.requires_grad:
                continue
            if self.by_product:
                alone = not all(other.requires_grad for other in call.inputs)  # PyTorch works out the other one too
                work = 2 * self._terms(call)
                yield Gradient(x, LayerFlops(work, both + call.y.size + 2 * x.size, 2 * work if alone else None))
            else:
                yield Gradient(x, LayerFlops(0, both + (1 + negated) * self._terms(call)))
            both = 0

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Both sets and the distances."""
        yield from call.inputs
        yield call.y


@layer
class AffineGrid(Moving):
    """Places of pixels under an affine map each: θ: (batch, n, n + 1), y: (batch, ..., n), one for each pixel."""

    source = "Jaderberg et al. 2015, eq. 1 (torch.nn.functional.affine_grid); a product with places of a plain grid"

    shape: tuple[int, ...]

    def output(self, call: Call) -> Shape:
        """New memory."""
        return self.shape

    def _work(self, call: Call) -> int:
        return 2 * product(self.shape) * call.x.shape[-1]

    def forward(self, call: Call) -> LayerFlops:
        """One product; FlopCounterMode sees that of backward alone."""
        return LayerFlops(self._work(call), 0, counted=0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """One product."""
        yield Gradient(call.x, LayerFlops(self._work(call), 0))
