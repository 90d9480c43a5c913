"""Arrays on paper: the shape, strides and memory of a NumPy array, without its numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from costmodel.errors import ShapeError
from costmodel.graph.tensor import contiguous_strides, is_contiguous, show_shape, viewed_strides

ITEM_BYTES = {"float16": 2, "float32": 4, "float64": 8, "bool": 1, "uint8": 1, "int64": 8}
"""Size of an element [bytes], by NumPy's name of its type."""

BufferRole = Literal["input", "weight", "state", "constant", "temporary"]
Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Buffer:
    """A block of memory that views share; two of one size are equal only if they are the same object.

    role: who owns it. A temporary is made by the program itself; `value` makes a constant's numbers, flat or in any
    shape of so many elements.
    """

    elements: int
    dtype: str
    role: BufferRole = "temporary"
    name: str = ""
    value: Callable[[], Any] | None = None

    @property
    def bytes(self) -> int:
        """Size [bytes]."""
        return self.elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, eq=False)
class Ref:
    """An array: `shape`, and `strides` and `offset` [elements] within a buffer; strides None is row-major.

    Compared by identity. Views are made as NumPy makes them (``x[:, 1:]``, ``x.reshape(...)``) and cost nothing.
    """

    shape: Shape
    buffer: Buffer
    strides: Shape | None = None
    offset: int = 0

    @property
    def dtype(self) -> str:
        """NumPy's name of the element type."""
        return self.buffer.dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def steps(self) -> Shape:
        """Strides of every axis [elements], those of a row-major array too."""
        return contiguous_strides(self.shape) if self.strides is None else self.strides

    @property
    def contiguous(self) -> bool:
        """Whether row-major."""
        return is_contiguous(self.shape, self.strides)

    @property
    def bytes(self) -> int:
        """Distinct memory behind it [bytes]: a broadcast axis, or windows that overlap, count once."""
        distinct = prod(n for n, step in zip(self.shape, self.steps, strict=True) if step)
        return min(distinct, self.buffer.elements) * ITEM_BYTES[self.dtype]

    def __getitem__(self, where: Any) -> Ref:
        """A view by ints, slices of positive step, None and Ellipsis."""
        items = list(where) if isinstance(where, tuple) else [where]
        if Ellipsis in items:
            at = items.index(Ellipsis)
            missing = len(self.shape) - sum(item is not None and item is not Ellipsis for item in items)
            items[at : at + 1] = [slice(None)] * missing
        shape: list[int] = []
        strides: list[int] = []
        offset, axis, steps = self.offset, 0, self.steps
        for item in items:
            if item is None:
                shape.append(1)
                strides.append(0)
                continue
            if isinstance(item, slice):
                start, stop, step = item.indices(self.shape[axis])
                shape.append(len(range(start, stop, step)))
                strides.append(steps[axis] * step)
            else:
                start = range(self.shape[axis])[item]
            offset += start * steps[axis]
            axis += 1
        return Ref((*shape, *self.shape[axis:]), self.buffer, (*strides, *steps[axis:]), offset)

    def reshape(self, *shape: int) -> Ref:
        """A view of another shape, one axis of which may be -1. Raises ShapeError where only a copy has it."""
        view = self.seen_as(*shape)
        if view is None:
            raise ShapeError(f"{show_shape(self.shape)} of strides {self.strides} has no view of {show_shape(shape)}")
        return view

    def seen_as(self, *shape: int) -> Ref | None:
        """A view of another shape, or None where only a copy has it."""
        if -1 in shape:
            rest = -prod(shape)
            shape = tuple(self.size // rest if n == -1 else n for n in shape)
        if prod(shape) != self.size:
            raise ShapeError(f"{show_shape(self.shape)} cannot be reshaped to {show_shape(shape)}")
        strides = viewed_strides(self.shape, self.strides, shape)
        return None if strides is False else Ref(shape, self.buffer, strides, self.offset)

    def transpose(self, *axes: int) -> Ref:
        """A view with axes in another order."""
        steps = self.steps
        return Ref(tuple(self.shape[a] for a in axes), self.buffer, tuple(steps[a] for a in axes), self.offset)

    def swapaxes(self, first: int, second: int) -> Ref:
        """A view with two axes exchanged."""
        axes = list(range(len(self.shape)))
        axes[first], axes[second] = axes[second], axes[first]
        return self.transpose(*axes)

    def broadcast_to(self, *shape: int) -> Ref:
        """A view that repeats axes of one element, and new leading axes."""
        new = len(shape) - len(self.shape)
        pairs = zip(shape[new:], self.shape, self.steps, strict=True)
        strides = tuple(step if n == own else 0 for n, own, step in pairs)
        return Ref(shape, self.buffer, (*(0 for _ in range(new)), *strides), self.offset)

    def steps_over(self, shape: Shape) -> Shape:
        """Strides along the axes of a larger shape that it broadcasts to [elements]: 0 where it repeats."""
        own = (0 if n == 1 else step for n, step in zip(self.shape, self.steps, strict=True))
        return (*(0 for _ in range(len(shape) - len(self.shape))), *own)

    def windows(self, size: Shape, step: Shape, dilation: Shape, count: Shape) -> Ref:
        """(..., H, W) seen as (..., *size, *count): every window, `step` apart, with gaps of `dilation`."""
        *lead, down, across = self.steps
        strides = (down * dilation[0], across * dilation[1], down * step[0], across * step[1])
        return Ref((*self.shape[:-2], *size, *count), self.buffer, (*lead, *strides), self.offset)

    def __repr__(self) -> str:
        return f"Ref({show_shape(self.shape)}, {self.dtype}, {self.buffer.name or self.buffer.role})"
