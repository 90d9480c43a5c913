"""Functions of two tensors, element by element, that a table tells apart, and bounds that are tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from costmodel.graph.kernel import Kernel
from costmodel.graph.tensor import Call, Storage, Tensor, broadcast, dense_strides
from costmodel.layers.arithmetic import Elementwise
from costmodel.layers.base import NO_WORKSPACE, Gradient, LayerFlops, Weightless, Workspace, layer, takes
from costmodel.layers.kernels import backward_each, forward_pass


class PairedFunction(NamedTuple):
    """Operations per element: forward; backward for both, and for each alone. `result`: y is kept beside a and b."""

    forward: int
    both: int
    first: int
    second: int
    result: bool = False


PAIRED = {
    "atan2": PairedFunction(1, 4, 1, 2),
    "logaddexp": PairedFunction(4, 0, 4, 4),
    "xlogy": PairedFunction(4, 0, 4, 2),
}
"""Functions of a and b: the angle of (b, a), log(eᵃ + eᵇ), and a·log b, which is 0 where a is."""


@layer
class Paired(Elementwise):
    """y = f(a, b)."""

    source = "torch's functions of two tensors; what backward needs is from its table of derivatives"

    function: str

    def forward(self, call: Call) -> LayerFlops:
        """See `PAIRED`."""
        return LayerFlops(0, PAIRED[self.function].forward * call.y.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """See `PAIRED`; a broadcast operand sums."""
        _, both, *alone, _ = PAIRED[self.function]
        for x, work in zip(call.inputs, alone, strict=True):
            if x.requires_grad:
                yield Gradient(x, LayerFlops(0, (both + work + (not x.has(call.y.shape))) * call.y.size))
                both = 0

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Both, and the result if so."""
        yield from call.inputs
        if PAIRED[self.function].result:
            yield call.y

    def workspace(self, call: Call) -> Workspace:
        """None."""
        return NO_WORKSPACE


@layer
class Within(Weightless):
    """y = min(max(x, a), b) with tensors as bounds."""

    source = "torch.clamp; dx = g where x is within, da where it is below, db where it is above"
    in_lists = False

    def check(self, call: Call) -> None:
        """Takes x and both bounds."""
        takes(call, 3)

    def output(self, call: Call) -> Tensor:
        """New memory of the joint shape, in the order of the first input that has it."""
        x, a, b = (given.shape for given in call.inputs)
        shape = broadcast(x, broadcast(a, b, call.name), call.name)
        whole = next((given for given in call.inputs if given.has(shape)), None)
        return call.run.tensor(shape, strides=None if whole is None else dense_strides(shape, whole.strides))

    def forward(self, call: Call) -> LayerFlops:
        """A comparison with each bound per element."""
        return LayerFlops(0, 2 * call.y.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """The comparisons and a choice per element; a broadcast operand sums."""
        for x, work in zip(call.inputs, (3, 2, 2), strict=True):
            yield Gradient(x, LayerFlops(0, (work + (not x.has(call.y.shape))) * call.y.size))

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """One pointwise kernel."""
        return forward_pass(call)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """One for each operand, and a sum where it was broadcast."""
        return backward_each(call)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """All three."""
        yield from call.inputs

    def workspace(self, call: Call) -> Workspace:
        """None."""
        return NO_WORKSPACE
