"""Functions of one tensor, element by element, that a table tells apart: PyTorch's that have no class of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from costmodel.graph.tensor import Call, Storage, Tensor
from costmodel.layers.base import NO_WORKSPACE, Gradient, LayerFlops, Unary, Workspace, layer
from costmodel.training.fields import Count


class Function(NamedTuple):
    """Operations per element of a function and of its gradient, and what its backward needs.

    steps: numbers per element that backward makes on the way to the gradient, and still has when that is there.
    """

    forward: int
    backward: int
    keeps: Literal["input", "output", "both", "nothing"]
    steps: int = 0


FUNCTIONS = {
    "abs": Function(1, 2, "input", 1),
    "acos": Function(1, 6, "input", 5),
    "acosh": Function(1, 4, "input", 3),
    "add": Function(1, 0, "nothing"),
    "asin": Function(1, 5, "input", 4),
    "asinh": Function(1, 4, "input", 3),
    "atan": Function(1, 3, "input", 2),
    "atanh": Function(1, 4, "input", 3),
    "ceil": Function(1, 0, "nothing"),
    "celu": Function(6, 5, "input"),
    "cos": Function(1, 3, "input", 2),
    "cosh": Function(1, 2, "input", 1),
    "elu": Function(5, 5, "input"),
    "erf": Function(1, 5, "input", 4),
    "exp2": Function(1, 2, "output", 1),
    "exp": Function(1, 1, "output"),
    "expm1": Function(2, 2, "output", 1),
    "floor": Function(1, 0, "nothing"),
    "hardshrink": Function(3, 3, "input"),
    "hardtanh": Function(2, 3, "input"),
    "leaky_relu": Function(3, 3, "input"),
    "log": Function(1, 1, "input"),
    "log1p": Function(2, 2, "input", 1),
    "log10": Function(1, 2, "input", 1),
    "log2": Function(1, 2, "input", 1),
    "log_sigmoid": Function(5, 5, "input"),
    "mish": Function(5, 11, "input"),
    "nan_to_num": Function(4, 2, "input"),
    "neg": Function(1, 1, "nothing"),
    "pow": Function(1, 3, "input", 2),
    "reciprocal": Function(1, 3, "output", 2),
    "exponential": Function(1, 2, "both", 1),
    "round": Function(1, 0, "nothing"),
    "rsqrt": Function(2, 4, "output", 2),
    "selu": Function(6, 5, "input"),
    "sign": Function(1, 0, "nothing"),
    "sin": Function(1, 2, "input", 1),
    "sinh": Function(1, 2, "input", 1),
    "softshrink": Function(3, 3, "input"),
    "softplus": Function(5, 5, "input"),
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

`exponential` is cˣ, `pow` xᶜ, `add` x + c, `zero` stands for numbers that have nothing to do with x.
"""


FROM_RESULT = {"celu": 5, "elu": 4, "leaky_relu": 3, "selu": 5}
"""Operations per element of the gradient from the result instead, of functions whose backward then can work so."""


@layer
class Pointwise(Unary):
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

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, FUNCTIONS[self.function].forward * call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """See `FUNCTIONS`, in place `FROM_RESULT`; what only shifts hands the gradient on; of x⁰ it is zeros."""
        if self.exponent == 0:
            yield Gradient(call.x, LayerFlops(0, 0))
            return
        backward = FROM_RESULT[self.function] if self.in_place else FUNCTIONS[self.function].backward
        yield Gradient(call.x, LayerFlops(0, backward * call.x.size), shared=self.function == "add")

    def workspace(self, call: Call) -> Workspace:
        """The steps of a gradient that PyTorch composes, such as xᶜ⁻¹ and c·xᶜ⁻¹ of a power xᶜ.

        Numbers that are none are found by three masks: |x| is not infinite, x is itself, and both.
        """
        if self.exponent == 0:
            return NO_WORKSPACE
        mask_bytes = 3 * call.x.size if self.function == "nan_to_num" else 0
        return Workspace(0, FUNCTIONS[self.function].steps * call.x.size, mask_bytes)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Input or output, whichever the derivative is a function of; the CPU's log σ keeps e to minus |x| too."""
        keeps = FUNCTIONS[self.function].keeps
        if keeps in ("input", "both") and not self.in_place:
            yield call.x
        if keeps in ("output", "both") or self.in_place:
            yield call.y
        if self.function == "log_sigmoid" and call.run.device == "cpu":
            yield call.fresh("activation", *call.x.shape)
