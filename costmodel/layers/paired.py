"""Functions of two tensors, element by element, that a table tells apart, and bounds that are tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from costmodel.graph.kernel import Kernel
from costmodel.graph.tensor import Call, Storage, Tensor, broadcast, dense_strides
from costmodel.layers.arithmetic import Elementwise, steps_or_sums
from costmodel.layers.base import Gradient, LayerFlops, Weightless, Workspace, layer, takes
from costmodel.layers.kernels import backward_each, forward_pass
from costmodel.symbolic.sizes import product
from costmodel.training.dtypes import size_bytes


class PairedFunction(NamedTuple):
    """Operations per element: forward; backward for both, and for each alone.

    steps: tensors of y's size that backward makes for a gradient before that gradient itself, one at a time.
    own: a gradient is of its own operand and the result, else of both operands.
    """

    forward: int
    both: int
    first: int
    second: int
    steps: int
    own: bool = False


PAIRED = {
    "atan2": PairedFunction(1, 4, 1, 2, 3),
    "hypot": PairedFunction(4, 0, 2, 2, 1, own=True),
    "logaddexp": PairedFunction(4, 0, 4, 4, 3),
    "xlogy": PairedFunction(4, 0, 4, 2, 1),
}
"""Functions of a and b: the angle of (b, a), √(a² + b²), log(eᵃ + eᵇ), and a·log b, which is 0 where a is."""


@layer
class Paired(Elementwise):
    """y = f(a, b)."""

    source = "torch's functions of two tensors; what backward needs is from its table of derivatives"

    function: str

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, PAIRED[self.function].forward * call.y.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """See `PAIRED`; a broadcast operand sums."""
        _, both, *alone, _, _ = PAIRED[self.function]
        for x, work in zip(call.inputs, alone, strict=True):
            if x.requires_grad:
                yield Gradient(x, LayerFlops(0, (both + work + (not x.has(call.y.shape))) * call.y.size))
                both = 0

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Both; or of those that need a gradient each for its own, and the result."""
        own = PAIRED[self.function].own
        yield from (x for x in call.inputs if x.requires_grad or not own)
        if own:
            yield call.y

    def workspace(self, call: Call) -> Workspace:
        """Gradients are of y's size until both are there: then a broadcast operand's is summed.

        The last is made beside the first and its own steps. Of an angle backward makes 1/(a² + b²) and that with zeros
        where nothing is divided, then for each gradient a product beside it, and −a, all of which stay until the end.
        Of a·log b masks tell where a is 0, where b is not positive, and where both hold.
        """
        (a, b), n = call.inputs, call.y.size
        needed = sum(x.requires_grad for x in call.inputs)
        made, mask_bytes = (needed + PAIRED[self.function].steps) * n, 0
        if self.function == "atan2":
            made = (2 + 2 * needed) * n + (a.size if b.requires_grad else 0)
        if self.function == "xlogy" and a.requires_grad:
            mask_bytes = a.size + b.size + n
        return Workspace(0, made - sum(x.size for x in call.inputs if x.requires_grad), mask_bytes)


def _chosen(call: Call, masks: Iterable[tuple[Tensor, int]]) -> Workspace:
    """What backward of bounds has beside the gradients.

    An operand's gradient is chosen by its masks from g and a zero, beside those before it; then they are summed.
    masks: the operands in the order in which their gradients are made, each with the bytes of its masks.
    """
    y, needed = call.y, [mask for x, mask in masks if x.requires_grad]
    zero = size_bytes(1, y.dtype)
    return steps_or_sums(call, [n * y.bytes + zero + mask for n, mask in enumerate(needed, 1)])


def _joint(call: Call, a: Tensor, b: Tensor) -> int:
    """Elements of a comparison of two operands, which is a byte each."""
    return product(broadcast(a.shape, b.shape, call.name))


@layer
class Bounded(Elementwise):
    """y = max(x, a), or min(x, a), where the bound a is a tensor."""

    source = "torch.clamp_min, torch.clamp_max; dx = g where x is within, da where it is not"

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A comparison and a choice per element; a broadcast operand sums."""
        for x in call.inputs:
            yield Gradient(x, LayerFlops(0, (2 + (not x.has(call.y.shape))) * call.y.size))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield from call.inputs

    def workspace(self, call: Call) -> Workspace:
        """A mask of where x is within, or is not, and a zero, for the bound's gradient and then for x's."""
        return _chosen(call, [(x, call.y.size) for x in reversed(call.inputs)])


@layer
class Within(Weightless):
    """y = min(max(x, a), b) with tensors as bounds."""

    source = "torch.clamp; dx = g where x is within, da where it is below, db where it is above"
    in_lists = False

    def check(self, call: Call) -> None:
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
        return forward_pass(call)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """One for each operand, and a sum where it was broadcast."""
        return backward_each(call)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield from call.inputs

    def workspace(self, call: Call) -> Workspace:
        """Two masks and a zero for the gradient of each: a's counts where x < a and a < b, b's where x > b or b < a."""
        x, a, b = call.inputs
        beside_a, beside_b, bounds = _joint(call, x, a), _joint(call, x, b), _joint(call, a, b)
        return _chosen(call, [(a, beside_a + bounds), (b, beside_b + bounds), (x, beside_a + beside_b)])
