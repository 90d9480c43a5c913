"""Bags of table rows: sums, means or maxima of the rows that a bag names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from costmodel.graph.kernel import Kernel
from costmodel.graph.tensor import Call, Storage, Tensor
from costmodel.layers.base import NO_WORKSPACE, Buffers, Gradient, Layer, LayerFlops, Weights, Workspace, layer
from costmodel.layers.kernels import backward_pass, forward_pass


@layer
class EmbeddingBag(Layer):
    """y = the sum, mean or maximum of a table's rows, indices: (N) in bags that start at offsets: (B), y: (B, D).

    A third input weighs each row of a sum.
    """

    source = "torch.nn.EmbeddingBag; each row's gradient is added to the table's"
    in_lists = False

    entries: int
    features: int
    bags: int
    mode: Literal["sum", "mean", "max"] = "mean"

    def check(self, call: Call) -> None:
        if len(call.inputs) not in (2, 3):
            raise call.fail("embedding_bag takes indices, offsets and perhaps weights")

    def weights(self, call: Call) -> Weights:
        return {"weight": (self.entries, self.features)}

    def buffers(self, call: Call) -> Buffers:
        return {}

    def output(self, call: Call) -> Tensor:
        return call.run.tensor((self.bags, self.features))

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
        yield Gradient(
            call.weights["weight"], LayerFlops(0, added + weighed + (call.y.size if self.mode == "mean" else 0))
        )
        if len(call.inputs) == 3:
            yield Gradient(call.inputs[2], LayerFlops(0, 2 * self._read(call)))

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        return forward_pass(call, "gather")

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """Each row's gradient to its place in the table, after the indices are put in order."""
        return backward_pass(call, "gather", launches=2)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Indices, offsets and weights; the bag of each index, the size of each bag, and the place of each maximum."""
        yield from call.inputs
        yield call.fresh("index", *call.x.shape)
        yield call.fresh("index", self.bags)
        if self.mode == "max":
            yield call.fresh("index", self.bags, self.features)
        yield call.weights["weight"]

    def workspace(self, call: Call) -> Workspace:
        return NO_WORKSPACE
