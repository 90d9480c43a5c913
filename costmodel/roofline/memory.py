"""Arrays on paper, the shape, strides and buffer of a NumPy array without its numbers; and the memory behind them.

What is filled in stays normal however often it is computed with: denormal numbers would slow arithmetic down.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from costmodel.display.units import show_bytes
from costmodel.errors import CostModelError, ShapeError
from costmodel.graph.tensor import contiguous_strides, is_contiguous, show_shape, viewed_strides
from costmodel.training.dtypes import Shape

if TYPE_CHECKING:
    import numpy

ITEM_BYTES = {"float16": 2, "float32": 4, "float64": 8, "bool": 1, "uint8": 1, "int64": 8}
"""Size of an element [bytes], by NumPy's name of its type."""

BufferRole = Literal["input", "weight", "state", "constant", "temporary"]


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


LINE = 64
"""Bytes in a cache line."""
RESIDENT_BYTES = 400 * 1024
"""A working set that the caches of one core hold, into which no other core brings anything [bytes]."""
PAGE = 4096
HUGE_PAGE = 2 * 1024**2
STAGGER = 7 * LINE
"""Gap between arrays [bytes], so that those of a power of two do not all begin at the same place in a page."""
CGROUP = Path("/sys/fs/cgroup")
"""Control group (cgroup v2) of this process, with a container's memory limit."""


def free_bytes() -> int | None:
    """ArrayMemory that this process can still allocate [bytes]: the less of what the system has and a container's limit
    leaves; None where neither is known."""
    limits = [*_available(), *_left_of_limit()]
    return min(limits) if limits else None


def _available() -> Iterator[int]:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        yield from (1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except OSError:
        if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
            yield os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _left_of_limit() -> Iterator[int]:
    """What a control group's limit leaves [bytes]; inactive file pages count as free, since they are reclaimed."""
    try:
        limit, used, stat = (
            (CGROUP / f"memory.{name}").read_text(encoding="ascii").strip() for name in ("max", "current", "stat")
        )
    except OSError:
        return
    if limit.isdigit() and used.isdigit():
        idle = sum(int(line.split()[1]) for line in stat.splitlines() if line.startswith("inactive_file "))
        yield max(0, int(limit) - int(used) + idle)


class NoMemory(CostModelError):
    """More memory is needed than is free."""


def check_fits(needed: int, what: str) -> None:
    """Raise NoMemory if `needed` bytes are more than is free, before anything is allocated."""
    free = free_bytes()
    if free is not None and needed > free:
        raise NoMemory(
            f"{what} needs {show_bytes(needed)} to run and {show_bytes(free)} is free: use a smaller batch or model"
        )


def padded(size: int) -> int:
    """`size` rounded up to whole cache lines [bytes]."""
    return -(-max(size, 1) // LINE) * LINE


def aligned(size: int) -> numpy.ndarray:
    """Uninitialised bytes that begin at a huge page; NumPy asks for huge pages from 4 MiB on."""
    import numpy as np

    raw = np.empty(max(size, 2 * HUGE_PAGE) + HUGE_PAGE, np.uint8)
    start = -raw.ctypes.data % HUGE_PAGE
    return raw[start : start + size]


def fill(array: numpy.ndarray, below: int = 2, centre: float = 0.5) -> None:
    """Fill floats uniformly within a quarter of `centre`, bools as a causal mask, codes with those of large numbers,
    indices spread over 0 to `below`."""
    import numpy as np

    flat = array.reshape(-1)
    if array.dtype.kind == "f":
        pattern = np.random.default_rng(0).random(PAGE).astype(array.dtype) / 2 + (centre - 0.25)
        whole = flat.size // PAGE * PAGE
        flat[:whole].reshape(-1, PAGE)[...] = pattern
        flat[whole:] = pattern[: flat.size - whole]
    elif array.dtype.kind == "b":
        side = max(int(flat.size**0.5), 1)
        square = np.tri(side, dtype=bool).reshape(-1)
        flat[: square.size] = square
        flat[square.size :] = True
    elif array.dtype.kind == "u":
        flat[...] = 192 + np.arange(flat.size) % 64
    else:
        flat[...] = np.arange(flat.size) * 2_654_435_761 % max(below, 1)


class ArrayMemory:
    """Flat arrays by buffer. `allocate(elements, dtype)` makes one, ``np.empty`` unless given.

    seed: of the random numbers that the program draws.
    """

    def __init__(self, allocate: Callable[[int, str], Any] | None = None, seed: int = 0) -> None:
        import numpy

        self.arrays: dict[Buffer, Any] = {}
        self.seed = seed
        self._allocate = allocate or numpy.empty
        self._view = numpy.ndarray

    @cached_property
    def random(self) -> numpy.random.Generator:
        """Generator of the numbers that the program draws."""
        import numpy

        return numpy.random.default_rng(self.seed)

    def hold(self, ref: Ref, values: Any) -> None:
        """Allocate the memory of `ref` and write `values` there."""
        self.make(ref.buffer)
        self.array(ref)[...] = values

    def make(self, buffer: Buffer) -> None:
        """Allocate a buffer unless it has an array already; a constant gets its values."""
        if buffer in self.arrays:
            return
        array = self.arrays[buffer] = self._allocate(buffer.elements, buffer.dtype)
        if buffer.value is not None:
            import numpy

            array[...] = numpy.asarray(buffer.value(), buffer.dtype).reshape(-1)

    def free(self, buffers: Iterable[Buffer]) -> None:
        """Drop arrays."""
        for buffer in buffers:
            self.arrays.pop(buffer, None)

    def array(self, ref: Ref) -> numpy.ndarray:
        """The array, as a view of its buffer."""
        item = ITEM_BYTES[ref.dtype]
        strides = None if ref.strides is None else tuple(item * step for step in ref.strides)
        return self._view(ref.shape, ref.dtype, self.arrays[ref.buffer], item * ref.offset, strides)
