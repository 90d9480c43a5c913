"""Reuse distances: how much a program touches between two uses of an array, which decides where the second finds it."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.roofline.program import Span, distinct_bytes


def reuse_distances(touched: Sequence[Sequence[Span]], between: int = 0) -> list[list[float]]:
    """Bytes touched since each operand of each call was last touched, when the calls are repeated over and over.

    Half of the call that touched it last and half of this one count, since both stream through what they touch.
    between: bytes that other work touches between two repetitions.
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
    """Move a span to the end of `recent`, ordered by last use; entries that it covers are removed."""
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


def _overlaps(a: Span, b: Span) -> bool:
    return a.start < b.end and b.start < a.end


def _covers(a: Span, b: Span) -> bool:
    return a.start <= b.start and b.end <= a.end
