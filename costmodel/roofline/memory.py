"""Memory: how much is free, an aligned arena that programs share, and the array behind each buffer.

What is filled in stays normal however often it is computed with: denormal numbers would slow arithmetic down.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.display.units import show_bytes
from costmodel.errors import CostModelError
from costmodel.roofline.reference import ITEM_BYTES, Buffer, Ref

if TYPE_CHECKING:
    import numpy

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
    """Memory that this process can still allocate [bytes]: the less of what the system has and a container's limit
    leaves; None where neither is known."""
    told = [*_available(), *_left_of_limit()]
    return min(told) if told else None


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


def check_fits(needed: int, what: str) -> None:
    """Raise CostModelError if `needed` bytes are more than is free, before anything is allocated."""
    free = free_bytes()
    if free is not None and needed > free:
        raise CostModelError(
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


class Memory:
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
            array[...] = _flat(buffer.value(), buffer.dtype)

    def free(self, buffers: Iterable[Buffer]) -> None:
        """Drop arrays."""
        for buffer in buffers:
            self.arrays.pop(buffer, None)

    def array(self, ref: Ref) -> numpy.ndarray:
        """The array, as a view of its buffer."""
        item = ITEM_BYTES[ref.dtype]
        strides = None if ref.strides is None else tuple(item * step for step in ref.strides)
        return self._view(ref.shape, ref.dtype, self.arrays[ref.buffer], item * ref.offset, strides)


def _flat(values: Any, dtype: str) -> Any:
    import numpy

    return numpy.asarray(values, dtype).reshape(-1)
