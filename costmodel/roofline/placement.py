"""Where a program's memory is: buffers laid out in one arena, and how far back each call's operands were last touched.

The arena reuses what is freed, most recent first, as an allocator does; the reuse distance of memory, the bytes touched
since it was touched last, decides which cache it comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from costmodel.roofline.arena import STAGGER, aligned, bounds, fill, padded
from costmodel.roofline.memory import Memory
from costmodel.roofline.operation import Op, Thunk
from costmodel.roofline.program import Program
from costmodel.roofline.reference import ITEM_BYTES, Buffer, Ref

if TYPE_CHECKING:
    import numpy


class Span(NamedTuple):
    """A stretch of an arena from `start` to `end`, of which `bytes` are touched."""

    start: int
    end: int
    bytes: int


@dataclass(frozen=True, eq=False)
class Placement:
    """Where each buffer of a program begins, in the order in which memory is taken, and how large the arena is."""

    program: Program
    starts: dict[Buffer, int]
    arena_bytes: int

    def bind(self, arena: numpy.ndarray | None = None) -> list[Thunk]:
        """The real calls, on arrays in `arena` or one of their own; what the program reads is filled in.

        Each is run as ``function(*arguments, **options)``.
        """
        arena = aligned(self.arena_bytes) if arena is None else arena
        places = iter(self.starts.items())

        def allocate(elements: int, dtype: str) -> Any:
            buffer, start = next(places)
            return arena[start : start + buffer.bytes].view(dtype)

        memory = Memory(allocate)
        below = bounds(self.program)
        for buffer in self.program.standing:
            memory.make(buffer)
            if buffer.value is None:
                fill(memory.arrays[buffer], below.get(buffer, 2), 0.0 if buffer.role == "weight" else 0.5)
        thunks = []
        for op, made, dropped in zip(self.program.ops, self.program.made, self.program.frees, strict=True):
            if made is not None:
                memory.make(made)
            thunks.append(op.bind(memory))
            memory.free(dropped)
        return thunks

    @cached_property
    def touched(self) -> tuple[tuple[Span, ...], ...]:
        """For each call what it touches: each array that it reads, then the one that it writes."""
        return tuple(tuple(self._span(ref, op) for ref in operands_of(op)) for op in self.program.ops)

    @property
    def touched_bytes(self) -> int:
        """What one run touches; of a table only what is looked up."""
        return _footprint(span for spans in self.touched for span in spans)

    def _span(self, ref: Ref, op: Op) -> Span:
        item = ITEM_BYTES[ref.dtype]
        start = self.starts[ref.buffer] + ref.offset * item
        extent = item * (1 + sum((n - 1) * abs(step) for n, step in zip(ref.shape, ref.steps, strict=True)))
        touched = ref.bytes
        if op.name == "take" and ref is op.inputs[0]:
            touched = op.output.bytes
        elif op.name.endswith(".at") and ref is op.output:
            touched = item * op.terms
        return Span(start, start + extent, min(touched, extent))


def place(program: Program) -> Placement:
    """Lay out what a program needs: what is there before first, then temporaries where the freed ones were."""
    starts: dict[Buffer, int] = {}
    holes: list[tuple[int, int]] = []
    end = 0

    def put(buffer: Buffer) -> None:
        nonlocal end
        need = padded(buffer.bytes)
        for hole in reversed(holes):
            if need <= hole[1] <= 2 * need:
                holes.remove(hole)
                starts[buffer] = hole[0]
                return
        starts[buffer] = end
        end += need + STAGGER

    for buffer in program.standing:
        put(buffer)
    for made, dropped in zip(program.made, program.frees, strict=True):
        if made is not None:
            put(made)
        holes.extend((starts[buffer], padded(buffer.bytes)) for buffer in dropped)
    return Placement(program, starts, padded(end))


def operands_of(op: Op) -> list[Ref]:
    """Each array that a call reads, as often as it is named, then the one that it writes."""
    return [*(x for x in op.inputs if isinstance(x, Ref)), op.output]


def reuse_distances(touched: Sequence[Sequence[Span]], between: int = 0) -> list[list[float]]:
    """Bytes touched since each operand of each call was last touched, when the calls are repeated over and over.

    Half of the call that touched it last and half of this one count, since both stream through what they touch.
    between: bytes that others touch from one repetition to the next.
    """
    recent: dict[tuple[int, int], tuple[Span, int]] = {}
    found: list[list[float]] = []
    for turn in range(2):
        found = []
        for number, spans in enumerate(touched):
            own = _footprint(spans)
            found.append([_distance(span, recent, own, touched, between if turn else 0) for span in spans])
            for span in spans:
                _touch(span, turn * len(touched) + number, recent)
    return found


def _touch(span: Span, mark: int, recent: dict[tuple[int, int], tuple[Span, int]]) -> None:
    """Make a span the last one in `recent`, in which those touched last come last; what it covers goes."""
    place = span.start, span.end
    if recent.pop(place, None) is None:
        for covered in [at for at, (entry, _) in recent.items() if _covers(span, entry)]:
            del recent[covered]
    recent[place] = span, mark


def _distance(
    span: Span,
    recent: dict[tuple[int, int], tuple[Span, int]],
    own: int,
    touched: Sequence[Sequence[Span]],
    others: int,
) -> float:
    between = at_once = 0
    last = -1
    for entry, mark in reversed(recent.values()):
        if mark != last:
            between, at_once, last = between + at_once, 0, mark
        if _overlaps(entry, span):
            between += others if mark < len(touched) else 0
            return max(between + (_footprint(touched[mark % len(touched)]) + own) / 2, span.bytes)
        at_once += entry.bytes
    return float("inf")


def _footprint(spans: Iterable[Span]) -> int:
    return sum({(span.start, span.end): span.bytes for span in spans}.values())


def _overlaps(a: Span, b: Span) -> bool:
    return a.start < b.end and b.start < a.end


def _covers(a: Span, b: Span) -> bool:
    return a.start <= b.start and b.end <= a.end
