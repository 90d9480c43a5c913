"""What a program takes of memory and touches there, without running it: live bytes at every call, and reuse distances.

An elementwise function runs over axes as one loop as far as a single stride takes every operand from each element to
the next. Where it does not, as between rows that share one column of numbers, NumPy may copy an operand into a buffer,
to make fewer and longer loops; an operand of another type is always copied. The choice is that of NumPy 2.3 and later
(``numpy/_core/src/multiarray/nditer_constr.c``): as many inner axes as make (1 + operands buffered)/(length of a loop)
least.

A reuse distance is how many bytes a program touches between two uses of an array.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

from costmodel.roofline.memory import ITEM_BYTES, RESIDENT_BYTES, Ref
from costmodel.roofline.program import Op, Program, Span, distinct_bytes

BUFFER = 8192
"""Elements that a buffer holds at most (``np.getbufsize``)."""

DIRECT = frozenset({"copyto", "matmul", "take", "random"})
"""Functions that do not go through the buffering iterator."""

INDEXING_BYTES = 4608
"""About what ``ufunc.at`` takes for its iterator over an index, which has room for 64 axes of everything."""


class Operand(NamedTuple):
    """Steps along each axis of the loop [elements], the item that a buffer of it holds [bytes], and whether it is cast.

    reduced: an output that several elements are reduced into.
    """

    steps: tuple[int, ...]
    item_bytes: int
    cast: bool
    reduced: bool = False


def buffer_bytes(op: Op) -> int:
    """Bytes that a call allocates beside its output and gives back: its iterator's buffers, or what a search finds."""
    function, _, method = op.name.partition(".")
    if method == "at":
        return INDEXING_BYTES
    if function == "searchsorted":
        return ITEM_BYTES["int64"] * op.output.size
    if function in DIRECT:
        return 0
    shape, steps = op.loop
    axes, operands = _merged(*_sorted(shape, _operands(op, steps)))
    depth, loop = _depth(axes, operands)
    core = prod(axes[:depth])
    most = BUFFER // core * core if depth and core <= BUFFER else BUFFER
    held = min(most, loop)
    return sum(held * x.item_bytes for x in operands if x.cast or not _single(axes, x, depth))


def _operands(op: Op, steps: list[tuple[int, ...]]) -> list[Operand]:
    """Arrays read and the one written, with their steps over the loop; numbers cost nothing."""
    *refs, output = op.accesses
    floats = [x.dtype for x in refs if x.dtype.startswith("float")]
    logical = op.name.startswith("logical")
    computed = "bool" if logical else max(floats, default=refs[0].dtype if refs else "", key=ITEM_BYTES.__getitem__)
    if op.name == "divide" and not floats:
        computed = "float64"
    made, reduced = output.dtype if output.dtype == "bool" else computed, op.name.endswith(".reduce")
    read = [Operand(own, ITEM_BYTES[computed], x.dtype != computed) for x, own in zip(refs, steps, strict=False)]
    return [*read, Operand(steps[-1], ITEM_BYTES[made], not reduced and output.dtype != made, reduced)]


def _sorted(shape: tuple[int, ...], operands: list[Operand]) -> tuple[list[int], list[Operand]]:
    """Axes from the innermost out: those of smaller steps first, where no operand objects; single ones left out."""
    order: list[int] = []
    for axis in [axis for axis in reversed(range(len(shape))) if shape[axis] != 1]:
        place = len(order)
        for before in range(len(order) - 1, -1, -1):
            pairs = [(x.steps[axis], x.steps[order[before]]) for x in operands]
            pairs = [(own, other) for own, other in pairs if own and other]
            if not pairs:
                continue
            if any(own >= other for own, other in pairs):
                break
            place = before
        order.insert(place, axis)
    return [shape[a] for a in order], [x._replace(steps=tuple(x.steps[a] for a in order)) for x in operands]


def _merged(axes: list[int], operands: list[Operand]) -> tuple[list[int], list[Operand]]:
    """Neighbouring axes as one where a single stride walks both, for every operand."""
    sizes: list[int] = []
    kept: list[int] = []
    for axis, size in enumerate(axes):
        if kept and all(x.steps[kept[-1]] * sizes[-1] == x.steps[axis] for x in operands):
            sizes[-1] *= size
        else:
            sizes.append(size)
            kept.append(axis)
    return sizes, [x._replace(steps=tuple(x.steps[a] for a in kept)) for x in operands]


def _single(axes: list[int], x: Operand, depth: int) -> bool:
    """Whether one stride walks axes 0 … depth."""
    reached = all(x.steps[a] * axes[a] == x.steps[a + 1] for a in range(depth))
    return reached or (x.reduced and all(x.steps[a] * axes[a] == x.steps[a + 1] for a in range(depth - 1)))


def _depth(axes: list[int], operands: list[Operand]) -> tuple[int, int]:
    """The outermost axis of a loop, and the elements that all loops of it have."""
    cost = 1 + sum(x.cast for x in operands)
    single = [True] * len(operands)
    size = axes[0] if axes else 1
    depth, best, best_cost = 0, size, cost
    for axis in range(1, len(axes)):
        if size >= BUFFER and cost > 1:
            break
        turns = False
        for number, x in enumerate(operands):
            if single[number] and x.steps[axis - 1] * axes[axis - 1] != x.steps[axis]:
                single[number] = False
                cost += not x.cast
            if not single[number] and x.reduced and 0 in (x.steps[axis], x.steps[axis - 1]):
                turns = True
        size *= axes[axis]
        length = min(size, BUFFER) if cost > 1 else size
        if cost * best <= best_cost * length:
            depth, best, best_cost = axis, size, cost
        if turns:
            break
    return depth, best


def standing_bytes(program: Program) -> int:
    """Arrays that are there before it runs: inputs, weights, states and constants [bytes]."""
    return sum(buffer.bytes for buffer in program.persistent)


def live_bytes(program: Program) -> list[int]:
    """Arrays alive after each call, what it makes and drops included [bytes]."""
    changes = (
        (0 if made is None else made.bytes) - sum(buffer.bytes for buffer in dropped)
        for made, dropped in zip(program.made, program.frees, strict=True)
    )
    return list(accumulate(changes, initial=standing_bytes(program)))[1:]


def peak_bytes(program: Program) -> int:
    """The most that is alive during a call, its iterator's buffers included [bytes]."""
    before = [standing_bytes(program), *live_bytes(program)]
    during = (
        live + (0 if made is None else made.bytes) + buffer_bytes(op)
        for live, made, op in zip(before, program.made, program.ops, strict=False)
    )
    return max(during, default=before[0])


Place = tuple[int, int]
"""Where a span begins and ends [bytes]."""


class Reuse(NamedTuple):
    """What a call touches again: bytes touched since, and which call it was, of all of them run twice; -1 for none.

    code: whether it is code, which a call runs as it begins, rather than an operand that it streams through.
    """

    distance: float
    last: int
    code: bool


class Code(NamedTuple):
    """Reuse distances of the code that a call runs [bytes]: that of any call, of its manner, and of its function."""

    any: float
    manner: float
    own: float


def manner_of(op: Op) -> str:
    """How a call goes about it, which takes code of its own: a reduction, or one with a number that is converted."""
    if op.name.endswith(".reduce"):
        return "reduced"
    return "plain" if all(isinstance(x, Ref) for x in op.inputs) else "scaled"


def touched_by(program: Program) -> list[tuple[Span, ...]]:
    """What each call touches: its operands, and the code of any call, of its manner and of its function."""
    pieces = [("", f" {manner_of(op)}", op.name) for op in program]
    codes = {piece: -number for number, piece in enumerate(dict.fromkeys(p for each in pieces for p in each), 1)}
    pairs = zip(pieces, program.touched, strict=True)
    return [(*spans, *(Span(codes[piece] - 1, codes[piece], 0) for piece in own)) for own, spans in pairs]


def reuses(touched: Sequence[Sequence[Span]], between: int = 0) -> list[list[Reuse]]:
    """The last use of all that each call touches, when the calls are repeated over and over.

    Half of the call that touched it last and half of this one count, since both stream through what they touch.
    between: bytes that other work touches between two repetitions.
    """
    own = [distinct_bytes(spans) for spans in touched]
    recent = _Recent(2 * len(touched))
    for time, spans in enumerate(touched):
        for span in spans:
            recent.touch(span, time)

    def reuse(span: Span, number: int) -> Reuse:
        last = recent.last(span)
        if last < 0:
            return Reuse(float("inf"), last, not span.bytes)
        others = between if last < len(touched) else 0
        halves = (own[last % len(touched)] + own[number]) / 2
        return Reuse(max(recent.bytes_since(last) + others + halves, span.bytes), last, not span.bytes)

    found = []
    for number, spans in enumerate(touched):
        found.append([reuse(span, number) for span in spans])
        for span in spans:
            recent.touch(span, len(touched) + number)
    return found


def reuse_distances(
    found: Sequence[Sequence[Reuse]], seconds: Sequence[float] = (), traffic: float = 0.0
) -> list[list[float]]:
    """Bytes that came into the caches since each last use.

    A cache that cores share holds what others bring too, and they go on while one call computes: what is left alone
    for long is evicted, however little was touched. What a core's own caches hold is safe from them.
    seconds: that each call takes. traffic: what others bring [bytes/s].
    """
    if not traffic:
        return [[use.distance for use in call] for call in found]
    starts = [0.0, *accumulate((*seconds, *seconds))]

    def distance(use: Reuse, number: int) -> float:
        if use.last < 0 or use.distance <= RESIDENT_BYTES:
            return use.distance
        now = len(seconds) + number
        passed = starts[now] - starts[use.last]
        if not use.code:
            passed += (seconds[number] - seconds[use.last % len(seconds)]) / 2
        return use.distance + traffic * passed

    return [[distance(use, number) for use in call] for number, call in enumerate(found)]


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
