"""What a program takes of memory and touches there, without running it: live bytes at every call, and reuse distances.

A reuse distance is how many bytes a program touches between two uses of an array.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from costmodel.roofline.memory import Ref
from costmodel.roofline.program import NumpyCall, Program, Span, distinct_bytes


def persistent_bytes(program: Program) -> int:
    """Arrays that are there before it runs: inputs, weights, states and constants [bytes]."""
    return sum(buffer.bytes for buffer in program.persistent)


def live_bytes(program: Program) -> list[int]:
    """Arrays alive after each call, what it makes and drops included [bytes]."""
    changes = (
        (0 if new is None else new.bytes) - sum(buffer.bytes for buffer in dropped)
        for new, dropped in zip(program.allocations, program.frees, strict=True)
    )
    return list(accumulate(changes, initial=persistent_bytes(program)))[1:]


def peak_bytes(program: Program) -> int:
    """The most that arrays take during a call, without the buffers of NumPy's iterators [bytes]."""
    before = [persistent_bytes(program), *live_bytes(program)]
    during = (
        live + (0 if new is None else new.bytes) + op.returned_bytes
        for live, new, op in zip(before, program.allocations, program.ops, strict=False)
    )
    return max(during, default=before[0])


class Reuse(NamedTuple):
    """What a call touches again: bytes touched since, and which call it was, of all of them run twice; -1 for none.

    code: whether it is code, which a call runs as it begins, rather than an operand that it streams through. place:
    which of all that the last call touched.
    """

    distance: float
    last: int
    code: bool
    place: int = -1


class Sharing(NamedTuple):
    """What becomes of arrays in a cache that cores share, and that holds what others bring too.

    brought: how far one then is, by bytes touched since and how long ago that was [bytes, s]. thinned: how far one is
    instead that came from beyond that cache when it was last used. private: what a core's own caches hold, and is safe
    from others; shared: what a program finds in the shared one [bytes].
    """

    brought: Callable[[float, float], float]
    thinned: Callable[[float], float]
    private: float
    shared: float


class Code(NamedTuple):
    """Reuse distances of the code that a call runs [bytes]: that of any call, of its manner, and of its function."""

    any: float
    manner: float
    own: float


def manner_of(op: NumpyCall) -> str:
    """How a call goes about it, which takes code of its own: a product, a reduction, or one with a number that is
    converted."""
    if op.name == "matmul":
        return "product"
    if op.name.endswith(".reduce"):
        return "reduced"
    return "plain" if all(isinstance(x, Ref) for x in op.inputs) else "scaled"


def touched_by(program: Program) -> list[tuple[Span, ...]]:
    """What each call touches: its operands, and the code of any call, of its manner and of its function.

    What begins any other call is none of a product's: it was last run before the product, which evicts it.
    """
    pieces = [(" product" if op.name == "matmul" else "", f" {manner_of(op)}", op.name) for op in program]
    codes = {piece: -number for number, piece in enumerate(dict.fromkeys(p for each in pieces for p in each), 1)}
    pairs = zip(pieces, program.touched, strict=True)
    return [(*spans, *(Span(codes[piece] - 1, codes[piece], 0) for piece in own)) for own, spans in pairs]


def reuses(touched: Sequence[Sequence[Span]], between: int = 0) -> list[list[Reuse]]:
    """The last use of all that each call touches, when the calls are repeated over and over.

    Half of what the call that touched it last and half of what this one touches count, since both stream through it,
    unless calls between the two touch it anyway; but not for their code, which is in use meanwhile. between: bytes that
    other work touches between two repetitions.
    """
    recent = _Recent(2 * len(touched))
    for time, spans in enumerate(touched):
        for span in spans:
            recent.touch(span, time)

    own = [(distinct_bytes(spans), sum(span.bytes for span in spans)) for spans in touched]

    def streamed(number: int, last: int) -> float:
        """What a call touches of what nothing did after `last` [bytes]."""
        distinct, whole = own[number]
        alone = sum(span.bytes * recent.untouched(span, last) for span in touched[number])
        return distinct * alone / whole if whole else 0.0

    def reuse(span: Span, number: int) -> Reuse:
        last = recent.last(span)
        if last < 0:
            return Reuse(float("inf"), last, not span.bytes)
        before = touched[last % len(touched)]
        place = max(
            range(len(before)), key=lambda at: min(before[at].end, span.end) - max(before[at].start, span.start)
        )
        others = between if last < len(touched) else 0
        halves = (streamed(last % len(touched), last) + streamed(number, last)) / 2 if span.bytes else 0.0
        return Reuse(max(recent.bytes_since(last) + others + halves, span.bytes), last, not span.bytes, place)

    uses = []
    for number, spans in enumerate(touched):
        uses.append([reuse(span, number) for span in spans])
        for span in spans:
            recent.touch(span, len(touched) + number)
    return uses


def reuse_distances(
    uses: Sequence[Sequence[Reuse]],
    seconds: Sequence[float] = (),
    sharing: Sharing | None = None,
) -> list[list[float]]:
    """Bytes that came into the caches since each last use.

    Others go on while one call computes: what is left alone for long is evicted, however little was touched. seconds:
    that each call takes. sharing: of the last cache; None where nobody else uses it.
    """
    if sharing is None:
        return [[use.distance for use in call] for call in uses]
    starts = [0.0, *accumulate((*seconds, *seconds))]

    def distance(use: Reuse, number: int) -> float:
        if use.last < 0 or use.distance <= sharing.private:
            return use.distance
        now = len(seconds) + number
        passed = starts[now] - starts[use.last]
        if not use.code:
            passed += (seconds[number] - seconds[use.last % len(seconds)]) / 2
        return sharing.brought(use.distance, passed)

    found = [[distance(use, number) for use in call] for number, call in enumerate(uses)]

    def thins(use: Reuse) -> bool:
        """Whether it came from beyond and could stay; of what goes through more, curves of memory say it already."""
        if use.last < 0 or not sharing.private < use.distance <= sharing.shared:
            return False
        return found[use.last % len(uses)][use.place] > sharing.shared

    return [
        [sharing.thinned(far) if thins(use) else far for use, far in zip(*each, strict=True)]
        for each in zip(uses, found, strict=True)
    ]


class _Recent:
    """What was touched, and when, a time being the number of a call.

    A span counts once, at its last use; those within one that is touched later no longer count. Their bytes by time are
    a Fenwick tree (Fenwick 1994), so that those since a time are a sum of few terms. The time of the last use of every
    byte is held as pieces of memory, in order, that were last used at one time: a span replaces the pieces within it,
    so that each sees few of them.
    """

    def __init__(self, times: int) -> None:
        self.sums = [0] * (times + 1)
        self.total = 0
        self.uses: dict[tuple[int, int], tuple[int, int]] = {}  # the last use of each span that counts, and its bytes
        self.places: list[tuple[int, int]] = []  # the same spans in order
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

    def untouched(self, span: Span, time: int) -> float:
        """The share of a span that was not used after a time."""
        later = 0
        for at in range(self._first(span.start), len(self.starts)):
            if self.starts[at] >= span.end:
                break
            end, last = self.pieces[at]
            later += (min(end, span.end) - max(self.starts[at], span.start)) * (last > time)
        return 1 - later / (span.end - span.start)

    def bytes_since(self, time: int) -> int:
        """Of all spans that were last used after a time."""
        before, at = 0, time + 1
        while at:
            before += self.sums[at]
            at &= at - 1
        return self.total - before

    def _drop(self, place: tuple[int, int]) -> None:
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
