"""Where a rule works: one step of a program, with the tensors that it reads on paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from costmodel.errors import SpecError, shown
from costmodel.graph.tensor import Role, Shape, Tensor, is_contiguous, strides_of
from costmodel.importers.torch.program import SIZE, TENSOR, Step, StepOutput, evaluate
from costmodel.layers.base import Layer
from costmodel.layers.indexing import Computed
from costmodel.layers.shape import AsStrided, reshape
from costmodel.symbolic.sizes import exact_div, peek
from costmodel.training.dtypes import COMPLEX, Dtype

if TYPE_CHECKING:
    from costmodel.importers.torch.interpreter import Interpreter


class NoRuleError(SpecError):
    """An operator that has no rule, or is called in a way that its rule does not know."""

    def __init__(self, message: str, op: str) -> None:
        super().__init__(message)
        self.op = op


class OpCall:
    """One step at work. Rules read its arguments and record layers; they return the tensors that the step makes."""

    def __init__(self, replay: Interpreter, step: Step) -> None:
        self.replay = replay
        self.step = step
        self.tape = replay.tape

    def has(self, name: str) -> bool:
        """Whether an argument was given, and is not None."""
        return self.step.args.get(name) is not None

    def is_tensor(self, name: str) -> bool:
        """Whether an argument is a tensor."""
        value = self.step.args.get(name)
        return isinstance(value, dict) and TENSOR in value

    def tensor(self, name: str) -> Tensor:
        """A tensor argument. A weight gets a layer of its own, which holds it."""
        return self.replay.tensor(self.step.args[name][TENSOR])

    def weight(self, name: str) -> Tensor:
        """A tensor argument that the layer at hand holds, if it is a weight."""
        return self.replay.weight(self.step.args[name][TENSOR])

    def tensors(self, name: str) -> list[Tensor]:
        """A list of tensors."""
        return [self.replay.tensor(item[TENSOR]) for item in self.step.args[name] if item is not None]

    def value(self, name: str, default: Any = None) -> Any:
        """A plain argument, sizes evaluated."""
        value = self.step.args.get(name)
        return default if value is None else self._plain(value)

    def constant(self, name: str, default: float = math.nan) -> float:
        """A number that no cost depends on; NaN where it is none that is known, such as a complex one."""
        value = self.value(name, default)
        if isinstance(value, bool | int):
            value = float(peek(value))
        return value if isinstance(value, float) else math.nan

    def _plain(self, value: Any) -> Any:
        if isinstance(value, dict) and SIZE in value:
            return evaluate(value[SIZE], self.replay.sizes)
        return [self._plain(item) for item in value] if isinstance(value, list | tuple) else value

    def axis(self, x: Tensor, name: str = "dim", default: int = 0) -> int:
        """An axis, counted from the front."""
        return self.value(name, default) % max(len(x.shape), 1)

    def axes(self, x: Tensor, name: str = "dim") -> list[int]:
        """Several axes, counted from the front; all if none is given."""
        value = self.value(name)
        if value is None or value == []:
            return list(range(len(x.shape)))
        return [axis % max(len(x.shape), 1) for axis in (value if isinstance(value, list) else [value])]

    @property
    def makes(self) -> StepOutput:
        """The first tensor that the step makes."""
        return self.step.makes[0]

    @property
    def shape(self) -> Shape:
        """Its shape."""
        return self.replay.shape(self.makes.shape)

    @property
    def shapes(self) -> list[Shape]:
        """Those of all that the step makes."""
        return [self.replay.shape(output.shape) for output in self.step.makes]

    @property
    def role(self) -> Role:
        """What it holds."""
        return role_of(self.makes.dtype)

    def layer(self, kind: Layer, *inputs: Tensor, name: str = "", tied: Mapping[str, Tensor] | None = None) -> Tensor:
        """Record a layer under the step's name, or under one of its own."""
        y = self.tape.record(kind, inputs, name or self.step.name, tied)
        if isinstance(kind, Computed):
            y.requires_grad = False
        return y

    def fail(self, why: str) -> NoRuleError:
        """Error that names the step."""
        return NoRuleError(f"{'.'.join((*self.step.path, self.step.name))}: {self.step.op} {why}", self.step.op)

    def part(self, x: Tensor, shape: Shape, strides: Shape, *, piece: bool = False) -> Tensor:
        """A part of `x`, or `x` seen several times; `x` itself if nothing is left out. `piece`: as for `AsStrided`."""
        if x.has(shape):
            return x
        return self.layer(AsStrided(shape, strides, piece), x)

    def reshaped(self, x: Tensor, shape: Shape) -> Tensor:
        """`x` in another shape: a view where memory order allows it, else a copy."""
        return reshape(x, shape, self.step.name)


def as_complex(x: Tensor) -> Tensor:
    """Pairs of numbers along the last axis, next to each other in memory, as complex ones in the same memory."""
    shape, strides = x.shape[:-1], tuple(exact_div(step, 2) for step in strides_of(x)[:-1])
    return x.view(shape, None if is_contiguous(shape, strides) else strides, COMPLEX[x.dtype])


def last(x: Tensor, axis: int) -> Tensor:
    """`x` with an axis exchanged for the last."""
    return x if axis == len(x.shape) - 1 else x.transpose(axis, len(x.shape) - 1)


FLOATS = frozenset({"float32", "float16", "bfloat16", "float64"})
EXACT: dict[str, Dtype] = {
    "bool": "bool",
    "int8": "int8",
    "uint8": "int8",
    "int16": "int16",
    "uint16": "int16",
    "int32": "int32",
    "uint32": "int32",
    "int64": "int64",
    "uint64": "int64",
}
"""Data types of PyTorch that no precision changes."""
COMPLEX_NUMBERS = frozenset({"complex32", "complex64", "complex128"})
"""Those of two floating numbers of the precision's type."""
NUMBERS = FLOATS | EXACT.keys() | COMPLEX_NUMBERS
"""Those that rules know."""


def role_of(dtype: str) -> Role:
    """What a tensor of PyTorch's data type holds: activations in any floating type or a complex one, truth values, or
    whole numbers.

    Raises SpecError if it holds none of these.
    """
    if dtype in FLOATS or dtype in COMPLEX_NUMBERS:
        return "activation"
    if dtype not in NUMBERS:
        raise SpecError(f"there are no rules for numbers of the data type {shown(dtype)}")
    return "mask" if dtype == "bool" else "index"


def tied(op: OpCall) -> dict[str, Tensor]:
    """Weight and bias, as far as there are."""
    return {name: op.weight(name) for name in ("weight", "bias") if op.has(name)}


Rule = Callable[[OpCall], "Tensor | list[Tensor]"]
RULES: dict[str, Rule] = {}
"""Every rule defined so far, by the name of its operator."""
COMPLEX_RULES: dict[str, Rule] = {}
"""Those of operators that read or make complex numbers: no other rule is asked about these."""
RANK_RULES: dict[str, Rule] = {}
"""Those of what a plan puts between operators, which no module calls."""


def rule(*operators: str, rules: dict[str, Rule] = RULES) -> Callable[[Rule], Rule]:
    """Make a function the rule of operators."""

    def register(function: Rule) -> Rule:
        for operator in operators:
            if operator in rules:
                raise TypeError(f"two rules for {operator}")
            rules[operator] = function
        return function

    return register


def layer_rules(table: Mapping[str, tuple[Callable[[OpCall], Layer], str]]) -> None:
    """Make each operator of a table a layer, on the tensors that are its arguments by these names."""

    def as_layer(kind: Callable[[OpCall], Layer], names: str) -> Rule:
        return lambda op: op.layer(kind(op), *(op.tensor(name) for name in names.split()))

    for operator, (kind, names) in table.items():
        rule(operator)(as_layer(kind, names))
