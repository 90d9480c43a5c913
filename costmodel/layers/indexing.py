"""Numbers read from places that an index names, or put there."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.graph.tensor import Call, Storage, Tensor
from costmodel.layers.base import Gradient, Work, layer
from costmodel.layers.shape import Moving, joint_role


@layer
class Chosen(Moving):
    """Elements by index: y = x[i], the index being all inputs but the first. `whole`: x is kept too."""

    source = "torch.Tensor.__getitem__ by index, index_select, gather; dx[i] += g"

    shape: tuple[int, ...]
    whole: bool = False

    def output(self, call: Call) -> Tensor:
        """New memory."""
        return call.run.tensor(self.shape, joint_role(call.inputs[:1]))

    def backward(self, call: Call) -> Iterable[Gradient]:
        """An addition for each element."""
        yield Gradient(call.x, Work(0, call.y.size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """The index, and x if so."""
        yield from call.inputs[0 if self.whole else 1 :]


@layer
class Placed(Moving):
    """A copy of x with other numbers at some places; `valued`: the second input has them."""

    source = "torch.Tensor.index_put, scatter; dx = g without those places, those of the numbers are g[i]"

    valued: bool

    def output(self, call: Call) -> Tensor:
        """New memory in the input's order."""
        return call.like(call.x, joint_role(call.inputs[:1]))

    def backward(self, call: Call) -> Iterable[Gradient]:
        """No arithmetic: numbers are moved."""
        for x in call.inputs[: 1 + self.valued]:
            yield Gradient(x, Work(0, 0))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """The places."""
        yield from call.inputs[1 + self.valued :]
