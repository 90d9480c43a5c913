"""PyTorch's functions, element by element, that have no class of their own: of one tensor or two; tensors as bounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from costmodel.graph.call import Call, Gradient, LayerFlops, Workspace
from costmodel.graph.tensor import Storage, Tensor, broadcast
from costmodel.layers.arithmetic import Choosing, Elementwise, elementwise_gradients, steps_or_sums
from costmodel.layers.base import Function, PerElement, layer
from costmodel.symbolic.sizes import product
from costmodel.training.dtypes import size_bytes
from costmodel.training.fields import Constant, Count

FUNCTIONS = {
    "abs": Function(1, 2, "input", 1),
    "acos": Function(1, 6, "input", 5),
    "acosh": Function(1, 4, "input", 3),
    "asin": Function(1, 5, "input", 4),
    "asinh": Function(1, 4, "input", 3),
    "atan": Function(1, 3, "input", 2),
    "atanh": Function(1, 4, "input", 3),
    "ceil": Function(1, 0, "nothing"),
    "celu": Function(6, 5, "input"),
    "cos": Function(1, 3, "input", 2),
    "cosh": Function(1, 2, "input", 1),
    "deg2rad": Function(1, 1, "nothing"),
    "digamma": Function(1, 2, "input", 1),
    "erf": Function(1, 5, "input", 4),
    "erfc": Function(2, 5, "input", 4),
    "erfinv": Function(1, 5, "input", 4),
    "exp2": Function(1, 2, "output", 1),
    "exp": Function(1, 1, "output"),
    "expm1": Function(2, 2, "output", 1),
    "floor": Function(1, 0, "nothing"),
    "frac": Function(2, 0, "nothing", shared=True),
    "hardshrink": Function(3, 3, "input"),
    "hardtanh": Function(2, 3, "input"),
    "i0": Function(1, 2, "input", 1),
    "lgamma": Function(1, 2, "input", 1),
    "log": Function(1, 1, "input"),
    "log1p": Function(2, 2, "input", 1),
    "log10": Function(1, 2, "input", 1),
    "log2": Function(1, 2, "input", 1),
    "logit": Function(3, 3, "input"),
    "log_sigmoid": Function(5, 5, "input"),
    "mish": Function(5, 11, "input"),
    "nan_to_num": Function(4, 2, "input"),
    "neg": Function(1, 1, "nothing"),
    "polygamma": Function(1, 2, "input", 1),
    "pow": Function(1, 3, "input", 2),
    "rad2deg": Function(1, 1, "nothing"),
    "reciprocal": Function(1, 3, "output", 2),
    "exponential": Function(1, 2, "both", 1),
    "round": Function(1, 0, "nothing"),
    "rsqrt": Function(2, 4, "output", 2),
    "selu": Function(6, 5, "input"),
    "sgn": Function(1, 0, "both"),
    "sign": Function(1, 0, "nothing"),
    "sin": Function(1, 2, "input", 1),
    "sinc": Function(5, 10, "input", 7),
    "sinh": Function(1, 2, "input", 1),
    "softshrink": Function(3, 3, "input"),
    "softplus": Function(5, 5, "input"),
    "special_entr": Function(7, 4, "input", 3),
    "special_erfcx": Function(1, 4, "both", 3),
    "special_i0e": Function(1, 5, "both", 4),
    "special_log_ndtr": Function(1, 5, "both", 6),
    "special_ndtri": Function(1, 5, "output", 4),
    "sqrt": Function(1, 2, "output", 1),
    "square": Function(1, 2, "input", 2),
    "tan": Function(1, 3, "output", 2),
    "tril": Function(1, 1, "nothing"),
    "triu": Function(1, 1, "nothing"),
    "trunc": Function(1, 0, "nothing"),
    "threshold": Function(2, 2, "input"),
    "zero": Function(0, 0, "nothing"),
}
"""Functions of one tensor by name, a subexpression counted once.

`exponential` is cˣ, `pow` xᶜ, `zero` stands for numbers that have nothing to do with x. The special functions (gamma's
logarithm and its derivatives, inverses of the error function, Bessel's) are elementary, as erf is.
"""


IN_PLACE = {
    "celu": Function(6, 5, "output"),
    "elu": Function(5, 4, "output"),
    "leaky_relu": Function(3, 3, "output"),
    "selu": Function(6, 5, "output"),
}
"""Functions whose backward can work from the result, where that has taken the place of the input."""


@layer
class Pointwise(PerElement):
    """y = f(x) for each element; `in_place`: y has taken the memory of x, so that backward works from y instead.

    exponent: c of `pow`, where it is known; only that of 0 changes a cost, as the gradient then is zeros.
    """

    source = "torch's functions of one tensor; what backward needs is from its table of derivatives"
    in_lists = False

    function: str
    in_place: bool = False
    exponent: Count | None = None

    @property
    def cast_as(self) -> str:
        """By function: autocast casts for some."""
        return f"{self.kind}.{self.function}"

    @property
    def costs(self) -> Function:  # type: ignore[override]
        """See `FUNCTIONS` and `IN_PLACE`."""
        costs = (IN_PLACE if self.in_place else FUNCTIONS)[self.function]
        return costs._replace(backward=0, steps=0) if self.exponent == 0 else costs

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """The CPU's log σ keeps e to minus |x| too."""
        yield from super().saved(call)
        if self.function == "log_sigmoid" and call.tape.device == "cpu":
            yield call.fresh("activation", *call.x.shape)

    def workspace(self, call: Call) -> Workspace:
        """Numbers that are none are known by three masks: |x| is not infinite, x is itself, and both.

        |x| is there with them; a CPU casts the third to multiply it.
        """
        if self.function != "nan_to_num":
            return super().workspace(call)
        x, cpu = call.x, call.tape.device == "cpu"
        return steps_or_sums(call, [x.bytes + 3 * x.size, x.size + x.bytes * (1 + cpu)])


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
    "fmax": PairedFunction(1, 2, 1, 1, 0),
    "fmin": PairedFunction(1, 2, 1, 1, 0),
    "hypot": PairedFunction(4, 0, 2, 2, 1, own=True),
    "logaddexp": PairedFunction(4, 0, 4, 4, 3),
    "logaddexp2": PairedFunction(4, 0, 4, 4, 3),
    "xlogy": PairedFunction(4, 0, 4, 2, 1),
}
"""Functions of a and b: the angle of (b, a), √(a² + b²), log(eᵃ + eᵇ), by e and by 2, a·log b, which is 0 where a is.

And the larger and the smaller of two, or the one that is a number.
"""


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
        own = PAIRED[self.function].own
        yield from (x for x in call.inputs if x.requires_grad or not own)
        if own:
            yield call.y

    def workspace(self, call: Call) -> Workspace:
        """Gradients are of y's size until both are there: then a broadcast operand's is summed.

        The last is made beside the first and its own steps. Of an angle backward makes 1/(a² + b²) and that with zeros
        where nothing is divided, then for each gradient a product beside it, and −a, all of which stay until the end.
        Of a·log b masks tell where a is 0, where b is not positive, and where both hold; of the larger of two where a
        is, and where b is no number.
        """
        (a, b), n = call.inputs, call.y.size
        if self.function in ("fmax", "fmin"):
            return _masked_gradients(call, [(x, n + b.size) for x in call.inputs], zero=False)
        gradients = sum(x.requires_grad for x in call.inputs)
        elements, mask_bytes = (gradients + PAIRED[self.function].steps) * n, 0
        if self.function == "atan2":
            elements = (2 + 2 * gradients) * n + (a.size if b.requires_grad else 0)
        if self.function == "xlogy" and a.requires_grad:
            mask_bytes = a.size + b.size + n
        return Workspace(0, elements - sum(x.size for x in call.inputs if x.requires_grad), mask_bytes)


def _masked_gradients(call: Call, masks: Iterable[tuple[Tensor, int]], *, zero: bool = True) -> Workspace:
    """What backward of bounds has beside the gradients.

    An operand's gradient is chosen by its masks from g and a `zero`, beside those before it; then they are summed.
    masks: the operands in the order in which their gradients are made, each with the bytes of its masks.
    """
    y, mask_bytes = call.y, [mask for x, mask in masks if x.requires_grad]
    zero_bytes = size_bytes(1, y.dtype) if zero else 0
    return steps_or_sums(call, [n * y.bytes + zero_bytes + mask for n, mask in enumerate(mask_bytes, 1)])


def _joint(call: Call, a: Tensor, b: Tensor) -> int:
    """Elements of a comparison of two operands, which is a byte each."""
    return product(broadcast(a.shape, b.shape, call.name))


@layer
class Bounded(Choosing):
    """y = max(x, a), or min(x, a), where the bound a is a tensor."""

    source = "torch.clamp_min, torch.clamp_max; dx = g where x is within, da where it is not"

    def workspace(self, call: Call) -> Workspace:
        """A mask of where x is within, or is not, and a zero, for the bound's gradient and then for x's."""
        return _masked_gradients(call, [(x, call.y.size) for x in reversed(call.inputs)])


@layer
class Within(Choosing):
    """y = min(max(x, a), b) with tensors as bounds."""

    source = "torch.clamp; dx = g where x is within, da where it is below, db where it is above"
    arity = 3
    work = 3, 2, 2

    def forward(self, call: Call) -> LayerFlops:
        """A comparison with each bound per element."""
        return LayerFlops(0, 2 * call.y.size)

    def workspace(self, call: Call) -> Workspace:
        """Two masks and a zero for the gradient of each: a's counts where x < a and a < b, b's where x > b or b < a."""
        x, a, b = call.inputs
        beside_a, beside_b, bounds = _joint(call, x, a), _joint(call, x, b), _joint(call, a, b)
        return _masked_gradients(call, [(a, beside_a + bounds), (b, beside_b + bounds), (x, beside_a + beside_b)])


@layer
class Lerp(Elementwise):
    """y = a + w·(b − a), where w is a number, `share`, or a third input."""

    source = "torch.lerp; db = g·w, da = g·(1 − w), dw = g·(b − a)"

    arity = 2, 3

    share: Constant | None = None

    def check(self, call: Call) -> None:
        super().check(call)
        if (len(call.inputs) == 2) is (self.share is None):
            raise call.fail("its weight is a number, or a third input")

    def forward(self, call: Call) -> LayerFlops:
        """A difference, a product and a sum per element."""
        return LayerFlops(0, 3 * call.y.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A product per element, a difference before it but of b; a broadcast operand sums it."""
        return elementwise_gradients(call, (2, 1, 2) if self.share is None else (1, 1))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """The weight, even if it alone needs a gradient, for which then the ends."""
        for w in call.inputs[2:]:
            yield w
            if w.requires_grad:
                yield from call.inputs[:2]

    def workspace(self, call: Call) -> Workspace:
        """Gradients are made of b, a and w, each beside those before it: 1 − w for a's, b − a for w's."""
        a, b, *weights = call.inputs
        extra = [(b, 0), (a, sum(w.bytes for w in weights))]
        extra += [(w, size_bytes(_joint(call, a, b), call.y.dtype)) for w in weights]
        sizes = [size for x, size in extra if x.requires_grad]
        return steps_or_sums(call, [n * call.y.bytes + size for n, size in enumerate(sizes, 1)])
