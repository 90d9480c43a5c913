"""Reuse distances: how many bytes a program touches between two uses of an array."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from costmodel.roofline.program import Program, Span, distinct_bytes

Place = tuple[int, int]
"""Where a span begins and ends [bytes]."""


def touched_by(program: Program) -> list[tuple[Span, ...]]:
    """What each call touches: its operands, and the code of its function."""
    codes = {name: -number for number, name in enumerate(dict.fromkeys(op.name for op in program), 1)}
    pairs = zip(program, program.touched, strict=True)
    return [(*spans, Span(codes[op.name] - 1, codes[op.name], 0)) for op, spans in pairs]


def reuse_distances(touched: Sequence[Sequence[Span]], between: int = 0) -> list[list[float]]:
    """Bytes touched since each operand of each call was last touched, when the calls are repeated over and over.

    Half of the call that touched it last and half of this one count, since both stream through what they touch.
    between: bytes that other work touches between two repetitions.
    """
    own = [distinct_bytes(spans) for spans in touched]
    recent = _Recent(2 * len(touched))
    for time, spans in enumerate(touched):
        for span in spans:
            recent.touch(span, time)

    def distance(span: Span, number: int) -> float:
        last = recent.last(span)
        if last < 0:
            return float("inf")
        others = between if last < len(touched) else 0
        halves = (own[last % len(touched)] + own[number]) / 2
        return max(recent.bytes_since(last) + others + halves, span.bytes)

    found = []
    for number, spans in enumerate(touched):
        found.append([distance(span, number) for span in spans])
        for span in spans:
            recent.touch(span, len(touched) + number)
    return found


class _Recent:
    """What was touched, and when, a time being the number of a call.

    A span counts once, at its last use; those within one that is touched later no longer count. Their bytes by time are
    a Fenwick tree (Fenwick 1994), so that those since a time are a sum of few terms. The time of the last use of every
    byte is kept as pieces of memory, in order, that were last used at one time: what a span is asked for it then
    replaces, so that few pieces are seen by each.
    """

    def __init__(self, times: int) -> None:
        self.sums = [0] * (times + 1)
        self.total = 0
        self.uses: dict[Place, tuple[int, int]] = {}  # the last use of each span that counts, and its bytes
        self.places: list[Place] = []  # the same spans in order
        self.starts: list[int] = []
        self.pieces: list[tuple[int, int]] = []  # of the piece that begins at each of `starts`: its end, its last use

    def touch(self, span: Span, time: int) -> None:
        """Use a span."""
        place = span.start, span.end
        if place in self.uses:
            self._drop(place)
        else:
            first = at = bisect_left(self.places, (span.start,))
            covered = []
            while at < len(self.places) and self.places[at][0] < span.end:
                if self.places[at][1] <= span.end:
                    covered.append(self.places[at])
                at += 1
            for each in covered:
                self._drop(each)
            self.places[first:at] = [each for each in self.places[first:at] if each in self.uses]
            insort(self.places, place)
        self.uses[place] = time, span.bytes
        self._add(time, span.bytes)
        self._use(span, time)

    def last(self, span: Span) -> int:
        """When any of a span was last used; -1 for never."""
        last = -1
        for at in range(self._first(span.start), len(self.starts)):
            if self.starts[at] >= span.end:
                break
            last = max(last, self.pieces[at][1])
        return last

    def bytes_since(self, time: int) -> int:
        """Of all spans that were last used after a time."""
        before, at = 0, time + 1
        while at:
            before += self.sums[at]
            at &= at - 1
        return self.total - before

    def _drop(self, place: Place) -> None:
        time, size = self.uses.pop(place)
        self._add(time, -size)

    def _add(self, time: int, size: int) -> None:
        self.total += size
        at = time + 1
        while at < len(self.sums):
            self.sums[at] += size
            at += at & -at

    def _first(self, start: int) -> int:
        """The first piece that ends after `start`."""
        at = bisect_left(self.starts, start)
        return at - 1 if at and self.pieces[at - 1][0] > start else at

    def _use(self, span: Span, time: int) -> None:
        """Make a span one piece, and cut those that reach into it."""
        first = self._first(span.start)
        at, starts, pieces = first, [span.start], [(span.end, time)]
        while at < len(self.starts) and self.starts[at] < span.end:
            start, (end, last) = self.starts[at], self.pieces[at]
            if start < span.start:
                starts, pieces = [start, *starts], [(span.start, last), *pieces]
            if end > span.end:
                starts.append(span.end)
                pieces.append((end, last))
            at += 1
        self.starts[first:at], self.pieces[first:at] = starts, pieces
