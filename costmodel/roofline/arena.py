"""Memory to measure in: aligned, with numbers that stay normal however often they are computed with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from costmodel.roofline.memory import Memory
from costmodel.roofline.operation import Op, Thunk
from costmodel.roofline.reference import ITEM_BYTES, Ref

if TYPE_CHECKING:
    import numpy

LINE = 64
"""Bytes in a cache line."""
PAGE = 4096
HUGE_PAGE = 2 * 1024**2
STAGGER = 7 * LINE
"""Gap between arrays [bytes], so that those of a power of two do not all begin at the same place in a page."""


def padded(size: int) -> int:
    """The whole cache lines that hold so many bytes [bytes]."""
    return -(-max(size, 1) // LINE) * LINE


def aligned(size: int) -> numpy.ndarray:
    """Uninitialised bytes that begin at a huge page; NumPy asks for huge pages from 4 MiB on."""
    import numpy as np

    raw = np.empty(max(size, 2 * HUGE_PAGE) + HUGE_PAGE, np.uint8)
    start = -raw.ctypes.data % HUGE_PAGE
    return raw[start : start + size]


def fill(array: numpy.ndarray, below: int = 2, centre: float = 0.5) -> None:
    """Numbers within a quarter of `centre`; truths as a causal mask has them; indices spread over 0 to `below`."""
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
    else:
        flat[...] = np.arange(flat.size) * 2_654_435_761 % max(below, 1)


def bounds(ops: Any) -> dict[Any, int]:
    """How many rows the tables have that each memory of indices points into."""
    found: dict[Any, int] = {}
    for op in ops:
        refs = [x for x in op.inputs if isinstance(x, Ref)]
        for ref in refs:
            if ref.dtype == "int64":
                axis = op.params.get("axis", 0)
                table = refs[0] if op.name == "take" else op.output
                rows = table.shape[axis] if table.dtype != "int64" else 2
                found[ref.buffer] = min(found.get(ref.buffer, rows), rows)
    return found


class Workbench:
    """Memory that many single calls share: what they read is never written, so all see the same numbers.

    rows: what indices stay below.
    """

    def __init__(self, size: int, rows: int) -> None:
        self.arenas: dict[tuple[str, bool], Any] = {}
        for dtype, share in (("float32", 1), ("float64", 1), ("bool", 2), ("int64", 64)):
            for written in (False, True):
                arena = self.arenas[dtype, written] = aligned(size // share // PAGE * PAGE).view(dtype)
                fill(arena, rows)

    def bind(self, op: Op) -> Thunk:
        """The real call."""
        used = dict.fromkeys(self.arenas, 0)
        writes = False

        def allocate(elements: int, dtype: str) -> Any:
            place = (dtype, writes)
            item = ITEM_BYTES[dtype]
            start = used[place] // item
            used[place] += padded(elements * item) + STAGGER
            return self.arenas[place][start : start + elements]

        memory = Memory(allocate)
        for ref in (*op.operands, op.output):
            writes = ref.buffer is op.output.buffer
            memory.make(ref.buffer)
        return op.bind(memory)
