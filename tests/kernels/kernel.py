"""What a kernel is: one layer kind computed plainly, forward and backward, and the cases that it is tried on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from hypothesis import strategies as st

from costmodel.layers import load_all
from costmodel.layers.base import Layer
from costmodel.roofline.kernels import ArrayTape, kernel_of
from costmodel.roofline.memory import ArrayMemory
from costmodel.roofline.program import NumpyCall
from costmodel.roofline.recorder import LayerArrays, site_of
from tests.kernels.counting import Array, Tally

KERNELS: dict[str, Kernel] = {}
"""Every kernel, by the name of its kind, and of the row of a table if it has several."""

Draw = Callable[..., Any]

sizes = st.integers(1, 4)


class Operand(NamedTuple):
    """An input to draw: numbers `within` a range, or complex ones, bools, or indices `below` a bound.

    Constants need no gradient.
    """

    shape: tuple[int, ...]
    role: Literal["activation", "complex", "mask", "index"] = "activation"
    below: int = 2
    constant: bool = False
    within: tuple[float, float] = (-8, 8)


class Case(NamedTuple):
    """A layer kind with the inputs it is called on; `visible` says which query-key pairs attention computes."""

    kind: Layer
    inputs: list[Operand]
    visible: Any = None


@dataclass
class Pass:
    """One forward pass and what it leaves for backward, in `saved`."""

    kind: Any
    inputs: list[Array]
    weights: dict[str, Array]
    buffers: dict[str, Array]
    training: bool
    tally: Tally
    visible: Any = None
    input_needs_gradient: bool = True
    call: Any = None
    saved: dict[str, Any] = field(default_factory=dict)
    y: Any = None

    @property
    def x(self) -> Array:
        """The first input."""
        return self.inputs[0]

    def needs(self, operand: Array) -> bool:
        """Whether the gradient of an input is asked for."""
        return next(x.requires_grad for x, array in zip(self.call.inputs, self.inputs, strict=True) if array is operand)

    def random(self, shape: tuple[int, ...]) -> Array:
        """Uniform random numbers, the same at every call, as when backward seeds the generator again."""
        return Array(np.random.default_rng(0).random(shape), self.tally)


def run(ops: list[NumpyCall], memory: ArrayMemory, tally: Tally) -> None:
    """Make the calls of a program with arrays that count; each counts what it says of itself."""
    for op in ops:
        before = tally.contractions + op.contractions, tally.pointwise + op.pointwise
        for ref in (*op.operands, op.output):
            memory.make(ref.buffer)
        function, arguments, options = op.bind(memory)
        function(*(Array(x, tally) if isinstance(x, np.ndarray) else x for x in arguments), **options)
        assert (tally.contractions, tally.pointwise) == before, op


Gradients = Iterator[tuple[Array, Array]]


class Kernel:
    """Abstract: the kernel of the kind that has the same class name, or of each row of its table."""

    name: str
    table: tuple[str, ...] = ("",)
    row: str

    def __init_subclass__(cls, *, abstract: bool = False) -> None:
        if not abstract:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
            for row in cls.table:
                made = KERNELS[f"{cls.name} {row}".strip()] = cls()
                made.row = row

    def layer(self, **settings: Any) -> Layer:
        """The kind, made."""
        return load_all()[self.name](**settings)

    def case(self, draw: Draw) -> Case:
        """A layer and small inputs for it."""
        raise NotImplementedError

    def forward(self, p: Pass) -> Array:
        """The output, with counted arithmetic: by the kernel that ships, unless this is defined anew."""
        tape, memory = ArrayTape("float64"), ArrayMemory()
        site = site_of(p.call, LayerArrays(tape).ref)
        for refs, arrays in ((site.inputs, p.inputs), (site.weights, p.weights), (site.buffers, p.buffers)):
            named = arrays if isinstance(arrays, dict) else dict(enumerate(arrays))
            for key, array in named.items():
                memory.hold(refs[key], array.values)
        p.saved["program"] = site, tape, memory
        y = kernel_of(self.name).forward(tape, site)
        run(tape.ops, memory, p.tally)
        for name, array in p.buffers.items():
            array.values[...] = memory.array(site.buffers[name])
        return Array(memory.array(y), p.tally)

    def backward(self, p: Pass, g: Array) -> Gradients:
        """Operand and gradient, one after another; what one leaves to the next is counted with the first."""
        site, tape, memory = p.saved["program"]
        incoming, start = tape.array(g.shape, "input"), len(tape.ops)
        memory.hold(incoming, g.values)
        refs, arrays = [*site.inputs, *site.weights.values()], [*p.inputs, *p.weights.values()]
        for operand, gradient in kernel_of(self.name).backward(tape, site, incoming):
            run(tape.ops[start:], memory, p.tally)
            start = len(tape.ops)
            place = next(number for number, ref in enumerate(refs) if ref is operand)
            yield arrays[place], Array(memory.array(gradient), p.tally)

    def reference(self, p: Pass, *inputs: np.ndarray, **weights: np.ndarray) -> np.ndarray:
        """The output by another way, uncounted."""
        raise NotImplementedError
