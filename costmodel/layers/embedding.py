"""Tables by index, bags of their rows, positions, and what is put before tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Literal

from costmodel.graph.call import Call, Gradient, LayerFlops, Share, Weights, Workspace
from costmodel.graph.kernel import Kernel
from costmodel.graph.tensor import Shape, Storage, Tensor
from costmodel.layers.base import NO_WORKSPACE, KeepsInputs, KeepsNothing, OneKernel, Unbuffered, layer
from costmodel.layers.kernels import backward_each, extra_bytes, new_gradients, stream
from costmodel.symbolic.sizes import minimum


class TrainedTable(Unbuffered):
    """Abstract: rows of a trained table; backward adds each row's gradient into a gradient of the table's size."""

    in_lists = False

    features: int

    @abstractmethod
    def entries_of(self, call: Call) -> int:
        """Rows in the table."""

    def weights(self, call: Call) -> Weights:
        return {"weight": (self.entries_of(call), self.features)}

    def reads(self, call: Call, weight: Tensor) -> Share:
        """The rows that are looked up."""
        return Share(call.y.size, weight.size)

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.weights["weight"], LayerFlops(0, call.y.size))

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        rows = call.y.bytes
        yield stream(call, "", "gather", 0, rows + sum(x.bytes for x in call.inputs), rows + extra_bytes(call))

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """Zeros of the table's size, indices put in order, then rows added to their places."""
        for table, work, _ in new_gradients(call):
            yield stream(call, "backward zeros", "pointwise", 0, 0, table.bytes)
            yield stream(call, "backward", "gather", work.pointwise, 2 * call.y.bytes, call.y.bytes, 4)

    def workspace(self, call: Call) -> Workspace:
        return NO_WORKSPACE

    def gradient_copy(self, call: Call) -> int:
        return call.y.size


@layer
class Embedding(KeepsInputs, TrainedTable):
    """y = W[x]; x: integer indices of any shape, y: (*x, features), W: (entries, features)."""

    source = "y = W[x] (torch.nn.Embedding); dW[x] += g (Bengio et al. 2003, §2)"

    entries: int
    features: int

    def entries_of(self, call: Call) -> int:
        return self.entries

    def check(self, call: Call) -> None:
        super().check(call)
        if call.x.storage.role != "index":
            raise call.fail("embedding takes integer indices, not activations")

    def output(self, call: Call) -> Shape:
        return (*call.x.shape, self.features)


@layer
class SplitEmbedding(KeepsInputs, TrainedTable):
    """y = W[x] of those indices whose rows are this rank's, else 0; x: integer indices, y: (*x, features).

    W: (entries, features), a rank's share of the table's `every` rows. Backward makes the gradient of the whole table
    on every rank, as DTensor has it.
    """

    source = "torch.distributed.tensor: embedding of a table with Shard(0), whose output is a _MaskPartial"
    whole_gradients = True

    entries: int
    features: int
    every: int

    def entries_of(self, call: Call) -> int:
        return self.entries

    def output(self, call: Call) -> Shape:
        return (*call.x.shape, self.features)

    def gradient_elements(self, call: Call, x: Tensor) -> int:
        """Of the whole table, unless weights are sharded besides: then a share is all that stays."""
        return x.size if self._cuts(call) else self.every * self.features

    @staticmethod
    def _cuts(call: Call) -> bool:
        """Whether nothing but the gradient of the table's own share outlives this call: in a stage it is added to."""
        layout = call.tape.layout
        return layout.shards != 1 and layout.stage is None and not call.weights["weight"].storage.tied

    def workspace(self, call: Call) -> Workspace:
        """Of weights that are sharded besides, a rank's share is cut out of the whole gradient as soon as it is there.

        What comes in is gone by then.
        """
        weight = call.weights["weight"]
        if not self._cuts(call):
            return NO_WORKSPACE
        return Workspace(0, self.every * self.features - minimum(call.y.size, weight.size))


@layer
class VocabParallelEmbedding(TrainedTable):
    """y = W[x] of those indices whose rows are this rank's, else 0; W: (entries, features), a rank's rows.

    Backward makes the gradient of these rows alone. Kept are the indices as the rank counts them, and whether they
    are another's.
    """

    source = "megatron.core.tensor_parallel.layers.VocabParallelEmbedding (Shoeybi et al. 2019, §3)"

    entries: int
    features: int

    def entries_of(self, call: Call) -> int:
        return self.entries

    def output(self, call: Call) -> Shape:
        return (*call.x.shape, self.features)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.fresh("index", *call.x.shape)
        yield call.fresh("mask", *call.x.shape)


@layer
class EmbeddingBag(OneKernel, Unbuffered):
    """y = the sum, mean or maximum of a table's rows, indices: (N) in bags that start at offsets: (B), y: (B, D).

    A third input weighs each row of a sum.
    """

    source = "torch.nn.EmbeddingBag; each row's gradient is added to the table's"
    arity = 2, 3
    sorts, launches = ("gather", "gather"), (1, 2)

    entries: int
    features: int
    bags: int
    mode: Literal["sum", "mean", "max"] = "mean"

    def weights(self, call: Call) -> Weights:
        return {"weight": (self.entries, self.features)}

    def output(self, call: Call) -> Tensor:
        return call.tape.tensor((self.bags, self.features))

    def _read(self, call: Call) -> int:
        """Numbers that are read of the table."""
        return call.x.size * self.features

    def forward(self, call: Call) -> LayerFlops:
        """An addition or comparison for each number read, and a product if weighed; a division each of a mean."""
        each = 2 if len(call.inputs) == 3 else 1
        return LayerFlops(0, each * self._read(call) + (call.y.size if self.mode == "mean" else 0))

    def backward(self, call: Call) -> Iterable[Gradient]:
        """An addition for each number read, or for each maximum; those of weights are products with the rows."""
        added = call.y.size if self.mode == "max" else self._read(call)
        weighed = self._read(call) if len(call.inputs) == 3 else 0
        divided = call.y.size if self.mode == "mean" else 0
        yield Gradient(call.weights["weight"], LayerFlops(0, added + weighed + divided))
        if len(call.inputs) == 3:
            yield Gradient(call.inputs[2], LayerFlops(0, 2 * self._read(call)))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Indices, offsets and weights; the bag of each index, the size of each bag, and the place of each maximum."""
        yield from call.inputs
        yield call.fresh("index", *call.x.shape)
        yield call.fresh("index", self.bags)
        if self.mode == "max":
            yield call.fresh("index", self.bags, self.features)
        yield call.weights["weight"]


class PositionTable(TrainedTable):
    """Abstract: a vector for each position: y = W[0 … T − 1].

    x: tokens (batch, T), y: (T, features), W: (context, features).
    """

    context: int
    features: int

    def entries_of(self, call: Call) -> int:
        return self.context

    def check(self, call: Call) -> None:
        super().check(call)
        if call.x.shape[1] > self.context:
            raise call.fail(f"seq {call.x.shape[1]} is beyond the learned position table; use at most {self.context}")

    def output(self, call: Call) -> Shape:
        return (call.x.shape[1], self.features)


@layer
class LearnedPositions(PositionTable):
    """y = W[0 … T − 1] with trained W; x: tokens (batch, T), y: (T, features), W: (context, features)."""

    source = "y = W[0 … T − 1] (torch.nn.Embedding of arange; Gehring et al. 2017, §3.1; Radford et al. 2019)"

    context: int
    features: int

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.fresh("index", call.x.shape[1])


@layer
class StoredPositions(KeepsNothing, PositionTable):
    """y = W[0 … T − 1] with W that is stored among the weights and never trained, such as sinusoids.

    x: tokens (batch, T), y: (T, features), W: (context, features).
    """

    source = "y = W[0 … T − 1] (a frozen torch.nn.Embedding of arange; Vaswani et al. 2017, §3.5): no gradient"
    fixed = True

    context: int
    features: int


MOST_TOKENS = 100


class OfTokens(KeepsNothing, OneKernel, Unbuffered):
    """Abstract: x: (batch, T, d) and trained vectors, of which nothing is kept for backward."""

    input_axes = "batch, tokens, features"


@layer
class Prepend(OfTokens):
    """y = [w₁; …; w_n; x] along the tokens, the same w for every sample; x: (batch, T, d), w: (1, 1, d)."""

    source = "torch.cat of expanded parameters (Dosovitskiy et al. 2021, eq. 1; Touvron et al. 2021, §4); dw = Σ g"

    tokens: int = 1

    def check(self, call: Call) -> None:
        super().check(call)
        if self.tokens > MOST_TOKENS:
            raise call.fail(f"tokens {self.tokens:,} are too many, each a weight of its own: use at most {MOST_TOKENS}")

    def weights(self, call: Call) -> Weights:
        return {f"token{n + 1}": (1, 1, call.x.shape[2]) for n in range(self.tokens)}

    def output(self, call: Call) -> Shape:
        b, t, d = call.x.shape
        return b, t + self.tokens, d

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """dx is a slice of the incoming gradient; each vector's sums over the batch."""
        yield Gradient(call.x, LayerFlops(0, 0), shared=True)
        for weight in call.weights.values():
            yield Gradient(weight, LayerFlops(0, call.x.shape[0] * call.x.shape[2]))

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        for w, work, _ in new_gradients(call):
            yield stream(call, "backward", "reduction", work.pointwise, call.x.shape[0] * w.bytes, w.bytes)


class Positions(OfTokens):
    """Abstract: y = x + W, a vector for each place; x: (batch, T, d), W: (1, T, d)."""

    def weights(self, call: Call) -> Weights:
        return {"weight": (1, *call.x.shape[1:])}

    def output(self, call: Call) -> Tensor:
        return call.like(call.x)

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(0, 0), shared=True)
        yield Gradient(call.weights["weight"], LayerFlops(0, call.x.size))

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        return backward_each(call)


@layer
class TrainedPositions(Positions):
    """y = x + W with trained W."""

    source = "y = x + W (torch.add of a parameter; Dosovitskiy et al. 2021, eq. 1); dx = g, dW = Σ g over the batch"


@layer
class FixedPositions(Positions):
    """y = x + W with W that is stored among the weights and never trained, such as sinusoids."""

    source = "y = x + W (torch.add of a parameter without gradient; Vaswani et al. 2017, §3.5); dx = g"
    fixed = True
