"""Kinds that compute element by element, beyond those that have a class of their own in `costmodel.layers`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from costmodel.graph.tensor import Call, Storage, Tensor, broadcast, dense_strides
from costmodel.layers.arithmetic import Elementwise
from costmodel.layers.base import NO_SCRATCH, Gradient, Scratch, Unary, Weightless, Work, takes, unlisted


class Function(NamedTuple):
    """Operations per element of a function and of its gradient, and what its backward needs."""

    forward: int
    backward: int
    keeps: Literal["input", "output", "both", "nothing"]


FUNCTIONS = {
    "abs": Function(1, 2, "input"),
    "add": Function(1, 0, "nothing"),
    "asin": Function(1, 5, "input"),
    "atan": Function(1, 4, "input"),
    "ceil": Function(1, 0, "nothing"),
    "celu": Function(5, 5, "input"),
    "cos": Function(1, 3, "input"),
    "cosh": Function(1, 2, "input"),
    "elu": Function(5, 5, "input"),
    "erf": Function(1, 5, "input"),
    "exp2": Function(1, 2, "output"),
    "exp": Function(1, 1, "output"),
    "expm1": Function(2, 2, "output"),
    "floor": Function(1, 0, "nothing"),
    "hardshrink": Function(2, 2, "input"),
    "hardtanh": Function(2, 3, "input"),
    "leaky_relu": Function(3, 3, "input"),
    "log": Function(1, 1, "input"),
    "log1p": Function(2, 2, "input"),
    "log10": Function(1, 2, "input"),
    "log2": Function(1, 2, "input"),
    "log_sigmoid": Function(5, 5, "input"),
    "mish": Function(6, 12, "input"),
    "nan_to_num": Function(3, 1, "input"),
    "neg": Function(1, 1, "nothing"),
    "pow": Function(1, 3, "input"),
    "reciprocal": Function(1, 3, "output"),
    "exponential": Function(1, 3, "both"),
    "round": Function(1, 0, "nothing"),
    "rsqrt": Function(2, 4, "output"),
    "selu": Function(6, 5, "input"),
    "sign": Function(2, 0, "nothing"),
    "sin": Function(1, 2, "input"),
    "sinh": Function(1, 2, "input"),
    "softshrink": Function(3, 2, "input"),
    "softplus": Function(4, 5, "input"),
    "sqrt": Function(1, 2, "output"),
    "square": Function(1, 2, "input"),
    "tan": Function(1, 3, "output"),
    "tril": Function(1, 1, "nothing"),
    "triu": Function(1, 1, "nothing"),
    "threshold": Function(2, 2, "input"),
}
"""Functions of one tensor by name, a subexpression counted once."""


@unlisted
class Pointwise(Unary):
    """y = f(x) for each element; `in_place`: y has taken the memory of x, so that backward works from y instead."""

    source = "torch's functions of one tensor; what backward needs is from its table of derivatives"

    function: str
    in_place: bool = False

    def forward(self, call: Call) -> Work:
        """See `FUNCTIONS`."""
        return Work(0, FUNCTIONS[self.function].forward * call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """See `FUNCTIONS`; what only shifts hands the gradient on."""
        backward = FUNCTIONS[self.function].backward
        yield Gradient(call.x, Work(0, backward * call.x.size), shared=self.function == "add")

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """Input or output, whichever the derivative is a function of; the CPU's log σ keeps e to minus |x| too."""
        keeps = FUNCTIONS[self.function].keeps
        if keeps in ("input", "both") and not self.in_place:
            yield call.x
        if keeps in ("output", "both") or self.in_place:
            yield call.y
        if self.function == "log_sigmoid" and call.run.device == "cpu":
            yield call.fresh("activation", *call.x.shape)


@unlisted
class Divide(Elementwise):
    """y = a/b."""

    source = "torch.div; da = g/b, db = −g·a/b²"

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A quotient per element, and for the divisor two more operations; a broadcast operand sums."""
        for x, work in zip(call.inputs, (1, 3), strict=True):
            yield Gradient(x, Work(0, (work + (not x.has(call.y.shape))) * call.y.size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """The divisor, and for its own gradient the dividend."""
        yield call.inputs[1]
        if call.inputs[1].requires_grad:
            yield call.inputs[0]

    def scratch(self, call: Call) -> Scratch:
        """None."""
        return NO_SCRATCH


@unlisted
class AddQuotient(Weightless):
    """y = c + a/b."""

    source = "torch.addcdiv; dc = g, da = g/b, db = −g·a/b²"
    in_lists = False

    def check(self, call: Call) -> None:
        """Shapes meet."""
        takes(call, 3)

    def output(self, call: Call) -> Tensor:
        """New memory of the joint shape, in the order of the first input that has it."""
        c, a, b = (x.shape for x in call.inputs)
        shape = broadcast(c, broadcast(a, b, call.name), call.name)
        whole = next((x for x in call.inputs if x.has(shape)), None)
        return call.run.tensor(shape, strides=None if whole is None else dense_strides(shape, whole.strides))

    def forward(self, call: Call) -> Work:
        """A quotient and a sum per element."""
        return Work(0, 2 * call.y.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Nothing, a quotient, and three operations per element; a broadcast operand sums."""
        for x, work in zip(call.inputs, (0, 1, 3), strict=True):
            whole = x.has(call.y.shape)
            yield Gradient(x, Work(0, (work + (not whole)) * call.y.size), shared=whole and not work)

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """The divisor, and for its own gradient the dividend."""
        _, a, b = call.inputs
        yield b
        if b.requires_grad:
            yield a

    def scratch(self, call: Call) -> Scratch:
        """None."""
        return NO_SCRATCH


@unlisted
class Power(Elementwise):
    """y = a^b."""

    source = "torch.pow; da = g·b·a^(b − 1), db = g·y·log a"

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Four operations, or three."""
        for x, work in zip(call.inputs, (4, 3), strict=True):
            yield Gradient(x, Work(0, (work + (not x.has(call.y.shape))) * call.y.size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """Both, and the result for the exponent's gradient."""
        yield from call.inputs
        if call.inputs[1].requires_grad:
            yield call.y

    def scratch(self, call: Call) -> Scratch:
        """None."""
        return NO_SCRATCH


@unlisted
class Extreme(Elementwise):
    """y = max(a, b), or min."""

    source = "torch.maximum, torch.minimum; the gradient goes to the larger, or smaller"

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A comparison and a choice per element; a broadcast operand sums."""
        for x in call.inputs:
            yield Gradient(x, Work(0, (2 + (not x.has(call.y.shape))) * call.y.size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """Both."""
        yield from call.inputs

    def scratch(self, call: Call) -> Scratch:
        """None."""
        return NO_SCRATCH


@unlisted
class Subtract(Elementwise):
    """y = a − b."""

    source = "torch.sub; da = g, db = −g, summed over broadcast axes"

    def backward(self, call: Call) -> Iterable[Gradient]:
        """The incoming gradient, and a negation; a broadcast operand sums."""
        for x, work in zip(call.inputs, (0, 1), strict=True):
            whole = x.has(call.y.shape)
            yield Gradient(x, Work(0, (work + (not whole)) * call.y.size), shared=whole and not work)

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """Nothing."""
        return ()

    def scratch(self, call: Call) -> Scratch:
        """None."""
        return NO_SCRATCH


@unlisted
class Choose(Weightless):
    """y = a where the condition holds, b elsewhere; all three broadcast."""

    source = "torch.where; the gradient goes where the number came from"
    in_lists = False

    def check(self, call: Call) -> None:
        """Shapes meet."""
        takes(call, 3)

    def output(self, call: Call) -> Tensor:
        """New memory of the joint shape."""
        condition, a, b = (x.shape for x in call.inputs)
        role = "activation" if call.inputs[1].storage.role == "weight" else call.inputs[1].storage.role
        return call.run.tensor(broadcast(condition, broadcast(a, b, call.name), call.name), role)

    def forward(self, call: Call) -> Work:
        """A choice per element."""
        return Work(0, call.y.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A choice per element; a broadcast operand sums."""
        for x in call.inputs[1:]:
            yield Gradient(x, Work(0, (1 + (not x.has(call.y.shape))) * call.y.size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """The condition."""
        yield call.inputs[0]

    def scratch(self, call: Call) -> Scratch:
        """None."""
        return NO_SCRATCH


@unlisted
class Prelu(Unary):
    """y = x where positive, a·x elsewhere, with a trained slope for all or for each channel."""

    source = "max(0, x) + a·min(0, x) (torch.nn.PReLU; He et al. 2015, eq. 1)"

    slopes: tuple[int, ...]

    def weights(self, call: Call) -> dict[str, tuple[int, ...]]:
        """The slopes."""
        return {"weight": self.slopes}

    def forward(self, call: Call) -> Work:
        """A comparison, a choice and a product per element."""
        return Work(0, 3 * call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """The same, and for the slopes an addition more."""
        yield Gradient(call.x, Work(0, 3 * call.x.size))
        yield Gradient(call.weights["weight"], Work(0, 4 * call.x.size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """Input and slopes."""
        yield call.x
        yield call.weights["weight"]
