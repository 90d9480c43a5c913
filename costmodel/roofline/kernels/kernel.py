"""What a kernel is: the forward pass of one layer kind as calls on a tape, and the gradients of its operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from costmodel.roofline.reference import Ref, Shape
from costmodel.roofline.tape import Tape

EPSILON = 1e-5
"""Added to a variance before its root is taken."""


@dataclass(eq=False)
class KernelCall:
    """One layer at work: its kind, its operands, what it made, and what its forward pass leaves for backward.

    wanted: the operands whose gradients are asked for.
    """

    kind: Any
    inputs: list[Ref]
    weights: dict[str, Ref]
    buffers: dict[str, Ref]
    training: bool
    wanted: list[Ref]
    saved: dict[str, Ref] = field(default_factory=dict)
    y: Any = None

    @property
    def x(self) -> Ref:
        """The first input."""
        return self.inputs[0]

    def wants(self, operand: Ref) -> bool:
        """Whether the gradient of `operand` is asked for."""
        return any(operand is wanted for wanted in self.wanted)

    @property
    def names(self) -> list[str]:
        """Weights whose gradients are asked for."""
        return [name for name, weight in self.weights.items() if self.wants(weight)]


Gradients = Iterator[tuple[Ref, Ref]]
Forward = Callable[[Tape, KernelCall], Ref]
Backward = Callable[[Tape, KernelCall, Ref], Gradients]


@dataclass(frozen=True)
class Kernel:
    """forward(tape, site) → y; backward(tape, site, g) yields (operand, gradient), one after another.

    beside: why NumPy does other pointwise arithmetic than the plain definition that the kind's formulas count, by pass;
    where nothing is said the counts are equal.
    """

    forward: Forward
    backward: Backward
    beside: dict[str, str] = field(default_factory=dict)


KERNELS: dict[str, Kernel] = {}
"""Every kernel defined so far, by the name of its kind."""


def kernel(kind: str, forward: Forward, backward: Backward, beside: dict[str, str] | None = None) -> None:
    """Make two functions the kernel of a layer kind."""
    KERNELS[kind] = Kernel(forward, backward, beside or {})


def rows(t: Tape, x: Ref) -> Ref:
    """x as a matrix of rows."""
    return t.reshape(x, -1, x.shape[-1]) if len(x.shape) != 2 else x


def spread(weight: Ref, shape: Shape, axis: int = 1) -> Ref:
    """A vector, shaped to broadcast along `axis` of an array of `shape`."""
    after = len(shape) - 1 - axis % len(shape)
    return weight.reshape(-1, *(1 for _ in range(after)))
