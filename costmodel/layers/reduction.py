"""Kinds that reduce over axes, or run along one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from costmodel.graph.tensor import Call, Shape, Storage, Tensor
from costmodel.layers.base import NO_SCRATCH, Gradient, Scratch, Unary, Weightless, Work, layer, takes

Keeps = Literal["input", "output"]


class Reduction(NamedTuple):
    """Operations per element of the input, forward and backward, and what backward needs."""

    forward: int
    backward: int
    keeps: tuple[Keeps, ...]


REDUCTIONS = {
    "amax": Reduction(1, 2, ("input", "output")),
    "amin": Reduction(1, 2, ("input", "output")),
    "linalg_vector_norm": Reduction(2, 2, ("input", "output")),
    "logsumexp": Reduction(4, 3, ("input", "output")),
    "mean": Reduction(1, 1, ()),
    "norm": Reduction(2, 2, ("input", "output")),
    "prod": Reduction(1, 2, ("input", "output")),
    "std": Reduction(4, 3, ("input", "output")),
    "sum": Reduction(1, 0, ()),
    "var": Reduction(4, 3, ("input",)),
}
"""Reductions by name."""


@layer
class Reduce(Weightless):
    """One number for all that lie along some axes; `shape`: of the result."""

    source = "torch's reductions; what backward needs is from its table of derivatives"
    in_lists = False

    function: str
    shape: tuple[int, ...]

    def check(self, call: Call) -> None:
        """Takes one input."""
        takes(call, 1)

    def output(self, call: Call) -> Shape:
        """See the class."""
        return self.shape

    def forward(self, call: Call) -> Work:
        """See `REDUCTIONS`; a sum of n terms is n − 1 additions."""
        work = REDUCTIONS[self.function].forward * call.x.size
        return Work(0, work - call.y.size if self.function == "sum" else work)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """See `REDUCTIONS`; of a mean an operation for each result, seen at every place."""
        found = REDUCTIONS[self.function]
        each = call.y.size if self.function == "mean" else call.x.size
        yield Gradient(call.x, Work(0, found.backward * each), shared=self.function == "sum")

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """See `REDUCTIONS`."""
        for keeps in REDUCTIONS[self.function].keeps:
            yield call.x if keeps == "input" else call.y

    def scratch(self, call: Call) -> Scratch:
        """None."""
        return NO_SCRATCH


@layer
class Cumulate(Unary):
    """Running sums along an axis."""

    source = "torch.cumsum; dx is the running sum from the other end"
    in_lists = False

    def forward(self, call: Call) -> Work:
        """An addition per element."""
        return Work(0, call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """An addition per element."""
        yield Gradient(call.x, Work(0, call.x.size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """Nothing."""
        return ()
