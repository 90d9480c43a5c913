"""Where memory is: buffers laid out in one arena, and how far back each call's operands were last touched.

The arena reuses what is freed, most recent first, as an allocator does; the reuse distance of memory, the bytes touched
since it was touched last, decides which cache it comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from costmodel.roofline.arena import STAGGER, padded
from costmodel.roofline.reference import Buffer


class Span(NamedTuple):
    """A stretch of an arena from `start` to `end`, of which `bytes` are touched."""

    start: int
    end: int
    bytes: int


class Layout(NamedTuple):
    """Where each buffer begins in an arena, in the order in which memory is taken, and how large the arena is."""

    starts: dict[Buffer, int]
    arena_bytes: int


def lay_out(standing: Iterable[Buffer], made: Iterable[Buffer | None], frees: Iterable[Iterable[Buffer]]) -> Layout:
    """Lay out memory that is there before first, then what each call makes where the memory freed before it was.

    made, frees: the buffer that each call makes, and those that are dropped after it.
    """
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

    for buffer in standing:
        put(buffer)
    for buffer, dropped in zip(made, frees, strict=True):
        if buffer is not None:
            put(buffer)
        holes.extend((starts[freed], padded(freed.bytes)) for freed in dropped)
    return Layout(starts, padded(end))


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
            own = distinct_bytes(spans)
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
            return max(between + (distinct_bytes(touched[mark % len(touched)]) + own) / 2, span.bytes)
        at_once += entry.bytes
    return float("inf")


def distinct_bytes(spans: Iterable[Span]) -> int:
    """Bytes that spans touch, each stretch once."""
    return sum({(span.start, span.end): span.bytes for span in spans}.values())


def _overlaps(a: Span, b: Span) -> bool:
    return a.start < b.end and b.start < a.end


def _covers(a: Span, b: Span) -> bool:
    return a.start <= b.start and b.end <= a.end
