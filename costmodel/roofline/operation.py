"""Operations: one call of one NumPy function on given arrays, that can be counted without being run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from costmodel.roofline.memory import Memory
from costmodel.roofline.reference import ITEM_BYTES, Ref

Phase = Literal["forward", "backward", "optimizer"]

ARITHMETIC = frozenset(
    {"add", "subtract", "multiply", "divide", "negative", "reciprocal", "square", "absolute", "copysign", "sign"}
    | {"maximum", "minimum", "greater", "greater_equal", "less", "less_equal", "equal", "not_equal"}
    | {"exp", "log", "tanh", "sqrt"}
)
"""Elementwise functions, of which each element counts as one operation."""

FREE = frozenset(["logical_and", "logical_or", "logical_not", "copyto", "take", "random"])
"""Functions that move or draw numbers, or combine comparisons, which is no arithmetic."""

Thunk = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Op:
    """One call: `name` of the NumPy function, its `inputs` (arrays and numbers), and the array that it writes.

    Its output is in place if it shares an input's memory. Names are NumPy's own, ``add.reduce`` and ``add.at`` for the
    methods; "random" is ``Generator.random``. layer and phase: whose work it is in a program of many layers.
    """

    name: str
    inputs: tuple[Ref | float, ...]
    output: Ref
    params: dict[str, Any] = field(default_factory=dict)
    layer: str = ""
    phase: Phase = "forward"

    @property
    def operands(self) -> list[Ref]:
        """The arrays that it reads, each memory and layout once."""
        found: list[Ref] = []
        for x in self.inputs:
            if isinstance(x, Ref) and not any(_same(x, y) for y in found):
                found.append(x)
        return found

    @property
    def accesses(self) -> list[Ref]:
        """Each array that it reads, as often as it is named, then the one that it writes."""
        return [*(x for x in self.inputs if isinstance(x, Ref)), self.output]

    @property
    def reads_bytes(self) -> int:
        """What is read, each operand once [bytes]; of a table only the rows that are looked up or added to."""
        if self.name == "take":
            return self.operands[1].bytes + self.output.bytes
        if self.name.endswith(".at"):
            return sum(x.bytes for x in self.operands) + self.writes_bytes
        return sum(x.bytes for x in self.operands)

    @property
    def writes_bytes(self) -> int:
        """What is written [bytes]."""
        if self.name.endswith(".at"):
            return self.terms * ITEM_BYTES[self.output.dtype]
        return self.output.bytes

    @property
    def traffic_bytes(self) -> int:
        """What is read and written [bytes]."""
        return self.reads_bytes + self.writes_bytes

    @property
    def terms(self) -> int:
        """Elements that ``.at`` adds up: of the values, or of the index if the value is one number."""
        return max(x.size for x in self.operands)

    @property
    def contractions(self) -> int:
        """FLOPs of products summed over an axis, a multiply-add being two."""
        return 2 * self.output.size * self.operands[0].shape[-1] if self.name == "matmul" else 0

    @property
    def pointwise(self) -> int:
        """All other floating-point operations, by the conventions of ``costmodel.layers.base``.

        Raises KeyError for a function without a rule.
        """
        function, _, method = self.name.partition(".")
        if method == "reduce":
            added = 0 if "initial" in self.params else self.output.size
            return self.operands[0].size - added
        if method == "at":
            return self.terms
        if function in ARITHMETIC:
            whole = self.output.dtype == "int64"
            return 0 if whole else self.output.size
        if function == "copyto" and len(self.inputs) == 2:
            return self.output.size
        if function in FREE or function == "matmul":
            return 0
        raise KeyError(f"no rule for counting {self.name}")

    def bind(self, memory: Memory) -> Thunk:
        """(function, arguments, options) of the real call, on the arrays of `memory`."""
        if self.name == "random":
            return memory.random.random, (), {"out": memory.array(self.output), "dtype": self.output.dtype}
        arrays = tuple(memory.array(x) if isinstance(x, Ref) else x for x in self.inputs)
        out = memory.array(self.output)
        if self.name == "copyto":
            return _function("copyto"), (out, arrays[0]), {"where": arrays[1]} if len(arrays) > 1 else {}
        if self.name.endswith(".at"):
            return _function(self.name), (out, *_indexed(arrays, self.params)), {}
        return _function(self.name), arrays, {**self.params, "out": out}

    def run(self, memory: Memory) -> None:
        """Do it."""
        function, arguments, options = self.bind(memory)
        function(*arguments, **options)

    def __repr__(self) -> str:
        inputs = ", ".join(map(repr, self.inputs))
        return f"{self.output!r} = {self.name}({inputs})"


def _same(a: Ref, b: Ref) -> bool:
    return a.buffer is b.buffer and (a.shape, a.steps, a.offset) == (b.shape, b.steps, b.offset)


def _indexed(arrays: tuple[Any, ...], params: dict[str, Any]) -> tuple[Any, ...]:
    """Index and values of ``ufunc.at``: the index may be of the last axis."""
    index, values = arrays
    return ((..., index) if params.get("axis") == -1 else index), values


@cache
def _function(name: str) -> Callable[..., Any]:
    import numpy

    found: Any = numpy
    for part in name.split("."):
        found = getattr(found, part)
    return found
