"""Kinds that reduce over axes, or normalise along one that need not be the last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from costmodel.graph.tensor import Call, Shape, Storage, Tensor
from costmodel.layers.base import (
    NO_SCRATCH,
    Buffers,
    Gradient,
    Scratch,
    Unary,
    Weightless,
    Weights,
    Work,
    takes,
    unlisted,
)
from costmodel.layers.norm import PerChannel
from costmodel.symbolic.sizes import exact_div

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


@unlisted
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


@unlisted
class SoftmaxAlong(Unary):
    """Softmax along any axis, or its logarithm; `length`: of that axis."""

    source = "torch.softmax, torch.log_softmax; keeps the result"

    length: int
    logarithm: bool = False

    def output(self, call: Call) -> Tensor:
        """New memory, contiguous."""
        return call.run.tensor(call.x.shape)

    def forward(self, call: Call) -> Work:
        """Of n numbers: maximum n − 1, subtraction n, exp n, sum n − 1, division or subtraction n."""
        rows = exact_div(call.x.size, self.length)
        return Work(0, 5 * call.x.size - 2 * rows + (rows if self.logarithm else 0))

    def backward(self, call: Call) -> Iterable[Gradient]:
        """y·(g − Σ g·y): 4n − 1; g − e^y·Σ g: 4n − 1."""
        yield Gradient(call.x, Work(0, 4 * call.x.size - exact_div(call.x.size, self.length)))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """The result."""
        yield call.y


@unlisted
class Cumulate(Unary):
    """Running sums along an axis."""

    source = "torch.cumsum; dx is the running sum from the other end"

    def output(self, call: Call) -> Tensor:
        """New memory, contiguous."""
        return call.run.tensor(call.x.shape)

    def forward(self, call: Call) -> Work:
        """An addition per element."""
        return Work(0, call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """An addition per element."""
        yield Gradient(call.x, Work(0, call.x.size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """Nothing."""
        return ()


@unlisted
class Cumprod(Unary):
    """Running products along an axis."""

    source = "torch.cumprod; dx is the running sum of g·y from the other end, divided by x, where no x is 0"

    def output(self, call: Call) -> Tensor:
        """New memory, contiguous."""
        return call.run.tensor(call.x.shape)

    def forward(self, call: Call) -> Work:
        """A product per element."""
        return Work(0, call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A product, an addition and a quotient per element."""
        yield Gradient(call.x, Work(0, 3 * call.x.size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """Input and result."""
        yield call.x
        yield call.y


@unlisted
class BatchnormUntracked(PerChannel):
    """Batch norm by the batch's statistics, which nothing keeps running ones of."""

    source = "(x − μ)/√(σ² + ε)·w + b per channel (torch.nn.BatchNorm, track_running_stats=False; Ioffe & Szegedy 2015)"

    affine: bool = True

    def groups_of(self, call: Call) -> int:
        """One a channel."""
        return call.x.shape[1]

    def output(self, call: Call) -> Tensor:
        """New memory in the input's order."""
        return call.like(call.x)


@unlisted
class BatchnormFixed(Unary):
    """Batch norm by running statistics that are no longer updated: y = (x − μ)/√(σ² + ε)·w + b per channel."""

    source = "torch.nn.BatchNorm2d in evaluation mode; dx = g·w/√(σ² + ε)"

    affine: bool = True

    def weights(self, call: Call) -> Weights:
        """Scale and shift per channel."""
        channels = (call.x.shape[1],)
        return {"weight": channels, "bias": channels} if self.affine else {}

    def buffers(self, call: Call) -> Buffers:
        """Running mean and variance per channel, and an int64 count of batches."""
        channels = (call.x.shape[1],)
        return {
            "running_mean": (channels, "statistic"),
            "running_var": (channels, "statistic"),
            "num_batches_tracked": ((), "index"),
        }

    def forward(self, call: Call) -> Work:
        """Centring and scaling."""
        return Work(0, (2 + len(call.weights)) * call.x.size + 3 * call.x.shape[1])

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A product per element; the weights' gradients sum."""
        yield Gradient(call.x, Work(0, 2 * call.x.size))
        for name, weight in call.weights.items():
            yield Gradient(weight, Work(0, (4 if name == "weight" else 1) * call.x.size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """The input; on a GPU also room for the batch's mean and inverse deviation, which stays empty."""
        yield call.x
        for _ in ("mean", "inverse deviation") if call.run.device == "gpu" else ():
            yield call.fresh("statistic", call.x.shape[1])
