"""The clock of a host: the one place where NumPy calls are bound to memory, made, and timed; and its sentinel.

A sentinel is a fixed piece of work whose time tells whether a moment is undisturbed. A virtual core is often one half
of a physical one: while a neighbour computes on the other half, the same work takes 1.35 to 1.8 times as long, for 10
to 60 ms, and the CPU time of a thread says nothing of it. A sentinel computes within the first cache and takes as long
as at its best, or clearly longer: a sample is undisturbed if the sentinel just before and just after is at its best.

It tells how fast the core is clocked too. A core that others of its chip leave more or less power changes its clock by
steps of 2 to 4 % every few seconds, by 15 % in all, and what it computes, and what it loads from the caches, takes as
much longer as the sentinel does (on an Intel Xeon products, functions and sums up to the last cache 0.94 to 1.2 times
as much, what comes from memory 0.3 to 0.8 times). So an undisturbed sample counts as what it takes at the usual clock.
What a sentinel reads just after memory was streamed may be longer for a moment, and says nothing of the clock before: a
moment's clock is by the fastest reading of the last `LOCAL`.

What multiplies matrices slows the core's clock itself: dense arithmetic on the widest vectors draws more current than a
core has at its fastest (Intel's "licenses" of turbo frequencies; its manual was not at hand, what follows is measured),
and for some milliseconds after everything else computes as much slower as the sentinel does (on an Intel Xeon 1.13 to
1.2 times; from how many rows on, see `costmodel.roofline.program.DENSE`). That is no disturbance but what a program
does to itself. So a sentinel has two gears, told apart by what ran before, each with a best and a usual of its own.

There is no sentinel for memory, which has no two states: what streams from it takes anything from 1 to 3.4 times its
best (a ring of 96 MiB: 10 % of readings below 1.5, half below 2.5), and hardly a sample of a millisecond would be left
if it were asked too.
"""

from __future__ import annotations

import time
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import Any, NamedTuple

from costmodel.roofline.host import Host, this_machine
from costmodel.roofline.memory import ITEM_BYTES, PAGE, STAGGER, ArrayMemory, aligned, fill, free_bytes, padded
from costmodel.roofline.program import NumpyCall, Program, Thunk

TRIES = 50
"""Readings of the clock, of which the fastest counts."""
EXPONENTIALS, PASSES = 2048, 4
"""Of the sentinel's work."""
SEEN, RARE = 4, 1000
"""A sentinel's best has been reached so many times, and by one of so many readings: a core that is now and then clocked
faster for a moment gives readings that no rest repeats."""
LIMIT = 1.25
"""At rest a sentinel takes 1.00 to 1.03 times its best of the last moments, and up to 1.2 where memory was streamed;
disturbed 1.35 to 2."""
WARM = 2
"""How often its work is done before it is timed: after what evicted it one pass leaves it a tenth too slow."""
LOCAL = 30_000_000
"""How long the clock of a core is taken to last [ns]: less than steps of it do, and more than what streaming leaves."""
MOMENT = 2_000_000
"""What is longer is hardly ever undisturbed from its beginning to its end, on any host [ns]."""
RARELY, KNOWN = 0.25, 8
"""Nor is what so few moments of rest last for, of at least so many that were watched."""
LASTS, LEFT = 2_000_000, 8_000_000
"""After dense arithmetic the core's clock is slower for the first of these at least, and no more after the second; in
between nobody knows [ns]."""
DEEPEST = 1.2
"""How many times its best at other times a sentinel's best is after dense arithmetic, at most; where it reads 1.6 times
that and no less, as on a core that others use all the time, it has seen no rest after it."""
HEAVY = 400_000
"""How long dense arithmetic takes until the clock falls no further [ns]."""
FIRST, FEW = 400, 20
"""Readings before the first sample, so that a best is known; and from how many on a gear's usual clock is."""
TRUSTED = 1_000_000_000
"""For how long a sentinel looks for rest by what is usual, before it takes the core to be clocked otherwise today, as
one on a battery is [ns]."""
PATIENCE, LEAST_PATIENCE = 20_000_000, 500_000
"""How long to wait for an undisturbed moment before a sample is taken all the same; half as long after each time that
there was none, but no less than the second [ns]."""

Work = Callable[[], Any]


class Elapsed(NamedTuple):
    """Wall time and CPU time of this thread [ns]."""

    wall: int
    cpu: int


class Pulse(NamedTuple):
    """Of a sentinel: what its work took, and the fastest that it took in the last moments in the same gear [ns].

    dense: whether the core may still be in the gear of dense arithmetic.
    """

    nanoseconds: int
    local: float
    dense: bool = False


@dataclass(frozen=True)
class Gears:
    """What a sentinel's work takes at the clocks that are usual for a core [ns].

    dense: for some milliseconds after dense arithmetic, see `NumpyCall.dense`. light: otherwise.
    """

    light: float
    dense: float

    @property
    def slower(self) -> float:
        """How many times as long anything takes to compute after dense arithmetic."""
        return max(self.dense / self.light, 1.0)


class Clock:
    """Of this host. A stand-in for another host has the same methods, and whatever is measured is measured by it."""

    def machine(self, threads: int) -> Host:
        """Whose clock it is, where BLAS may use so many threads."""
        return this_machine(threads)

    def free_bytes(self) -> int | None:
        """Memory that can be allocated here [bytes]; None where the system does not say."""
        return free_bytes()

    def now(self) -> int:
        """Wall time [ns]."""
        return time.perf_counter_ns()

    def run(self, work: Work, times: int = 1) -> Elapsed:
        """What a piece of work takes that is done so many times."""
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        for _ in repeat(None, times):
            work()
        cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
        return Elapsed(wall, cpu)

    def make(self, thunk: Thunk) -> Elapsed:
        """What one call takes where it stands in a program."""
        function, arguments, options = thunk
        cpu = time.thread_time_ns()
        wall = time.perf_counter_ns()
        function(*arguments, **options)
        wall = time.perf_counter_ns() - wall
        return Elapsed(wall, time.thread_time_ns() - cpu)

    def reading(self) -> int:
        """What reading the clock adds to each call [ns]."""
        return min(-time.perf_counter_ns() + time.perf_counter_ns() for _ in range(TRIES))

    def bind(self, program: Program, copies: int = 1) -> list[Thunk]:
        """The calls of a program, of which so many copies in memory of their own take turns."""
        size = program.layout.arena_bytes
        arena = aligned(copies * size)
        arena[::PAGE] = 0  # the first pass would pay for memory that it is first to touch, and look like a long one
        return [thunk for number in range(copies) for thunk in program.bind(arena[number * size :][:size])]

    def bind_each(self, calls: Sequence[NumpyCall], rows: int) -> list[Thunk]:
        """Single calls that share arenas, one to read and one to write, so that all read the same numbers; indices
        stay below `rows`. Constants have memory of their own, or each call would read those of the last."""
        sizes: Counter[tuple[str, bool]] = Counter()
        for op in calls:
            sizes |= _taken(op)
        arenas: dict[tuple[str, bool], Any] = {}
        for place, size in sizes.items():
            arenas[place] = aligned(size).view(place[0])
            fill(arenas[place], rows)
        return [_bound(op, arenas) for op in calls]

    def steady_work(self) -> Work:
        """Passes of exp over 8 KiB, to as many: half of the first cache stays as it was.

        Both begin at a page: where they begin within a line of a cache changes what the work takes, by a sixth to a
        third on an AMD EPYC, and every process would have another clock.
        """
        import numpy as np

        x, out = aligned(2 * EXPONENTIALS * ITEM_BYTES["float32"]).view(np.float32).reshape(2, EXPONENTIALS)
        x[...] = 0.5

        def work() -> None:
            for _ in range(PASSES):
                np.exp(x, out=out)

        return work


def _taken(op: NumpyCall) -> Counter[tuple[str, bool]]:
    """What a single call takes of each arena [bytes], by the type and whether it is written."""
    sizes: Counter[tuple[str, bool]] = Counter()
    for buffer in dict.fromkeys(ref.buffer for ref in (*op.operands, op.output)):
        if buffer.value is None:
            sizes[buffer.dtype, buffer is op.output.buffer] += padded(buffer.bytes) + STAGGER
    return sizes


def _bound(op: NumpyCall, arenas: dict[tuple[str, bool], Any]) -> Thunk:
    """The real call on parts of the arenas."""
    used = dict.fromkeys(arenas, 0)
    writes = shares = False

    def allocate(elements: int, dtype: str) -> Any:
        place, item = (dtype, writes), ITEM_BYTES[dtype]
        if not shares:
            return aligned(elements * item).view(dtype)
        start = used[place] // item
        used[place] += padded(elements * item) + STAGGER
        return arenas[place][start : start + elements]

    memory = ArrayMemory(allocate)
    for ref in (*op.operands, op.output):
        writes, shares = ref.buffer is op.output.buffer, ref.buffer.value is None
        memory.make(ref.buffer)
    return op.bind(memory)


class _Gear:
    """Readings of a sentinel in one gear [ns]. known: what is usual at rest, so that one which has read none knows that
    it has not."""

    def __init__(self, known: float = float("inf")) -> None:
        self.known = known
        self.count = 0
        self.fastest: list[int] = []
        self.recent: deque[tuple[int, int]] = deque()
        self.clocked: Counter[float] = Counter()

    @property
    def best(self) -> float:
        """What has been reached `SEEN` times, and by one reading of `RARE`; what is known where that is less."""
        return min(self.fastest[min(max(SEEN, self.count // RARE), len(self.fastest)) - 1], self.known)

    @property
    def rested(self) -> int:
        """How many readings were of moments of which the fastest rested."""
        limit = LIMIT * self.best if self.count else 0.0
        return sum(times for local, times in self.clocked.items() if local <= limit)

    @property
    def usual(self) -> float:
        """The median of what was the fastest of the last moments, where that rested."""
        limit = LIMIT * self.best
        rested = sorted((local, times) for local, times in self.clocked.items() if local <= limit)
        half, so_far = sum(times for _, times in rested) / 2, accumulate(times for _, times in rested)
        medians = (float(local) for (local, _), times in zip(rested, so_far, strict=True) if times >= half)
        return next(medians, float(self.best))

    def local(self, spent: int) -> float:
        """The fastest of the last moments, of which one reading was so much."""
        return max(self.recent[0][1], self.best) if self.recent else spent

    def add(self, spent: int, now: int) -> None:
        """A reading at a moment."""
        self.count += 1
        insort(self.fastest, spent)
        del self.fastest[2 * max(SEEN, self.count // RARE) :]
        while self.recent and (self.recent[0][0] < now - LOCAL or self.recent[0][1] >= spent):
            self.recent.popleft()
        while self.recent and self.recent[-1][1] >= spent:
            self.recent.pop()
        self.recent.append((now, spent))
        self.clocked[self.local(spent)] += 1


class Sentinel:
    """The clock's piece of work. One serves a whole run, since a part of it may hold no undisturbed moment; what is
    measured in that run is measured by its clock.

    usual: what its work takes at the clocks at which times count; the medians of its readings at rest unless given. It
    tells what rest is too, so that a sentinel which begins where all is disturbed knows that.
    """

    def __init__(self, clock: Clock | None = None, usual: Gears | None = None) -> None:
        self.clock = clock or Clock()
        self.work = self.clock.steady_work()
        self.light, self.dense = (_Gear(usual.light), _Gear(usual.dense)) if usual else (_Gear(), _Gear())
        self.multiplied, self.heavy = float("-inf"), False
        self.begun: Counter[int] = Counter()
        self.lasted: Counter[int] = Counter()
        self.patience = PATIENCE
        self.fixed = usual
        for _ in range(FIRST):
            self.read()
        ends = self.clock.now() + TRUSTED
        while usual and not self.rests(self.read()):
            if self.clock.now() >= ends:
                self.light.known = self.dense.known = float("inf")
                break

    @property
    def usual(self) -> Gears:
        """The medians of what its work took where it rested, unless they are fixed; in the gear of dense arithmetic as
        otherwise where that was hardly read."""
        if self.fixed is not None:
            return self.fixed
        light = self.light.usual
        return Gears(light, self.dense.usual if self.dense.rested >= FEW else light)

    def fix(self) -> None:
        """Let times count at the clocks that were usual up to now."""
        self.fixed = self.usual

    def after_dense(self, nanoseconds: float) -> None:
        """Take note that dense arithmetic has just ended, which took so long."""
        now = self.clock.now()
        self.heavy = nanoseconds >= HEAVY or (self.heavy and now - self.multiplied < LASTS)
        self.multiplied = now

    def read(self) -> Pulse:
        """Do the work a few times: how long the last took; the first bring it back after what evicted it."""
        for _ in range(WARM):
            self.clock.run(self.work)  # the code of the clock was evicted too
        spent, now = self.clock.run(self.work).wall, self.clock.now()
        since = now - self.multiplied
        gear = self.light
        if since < LEFT:
            gear = self.dense
            gear.known = min(gear.known, DEEPEST * self.light.best)
        if gear is self.light or (since < LASTS and self.heavy):
            gear.add(spent, now)
        return Pulse(spent, gear.local(spent), gear is self.dense)

    def rests(self, reading: Pulse) -> bool:
        """Whether a reading is of an undisturbed moment, by the best that is known now."""
        return reading.nanoseconds <= LIMIT * reading.local and self.clocked_by(reading)

    def clocked_by(self, reading: Pulse) -> bool:
        """Whether it tells the core's clock: some of the last moments was undisturbed."""
        if reading.dense:
            return not self.dense.count or reading.local <= LIMIT * self.dense.best
        return reading.local <= LIMIT * self.light.best

    def watch(self, before: Pulse, after: Pulse, nanoseconds: int) -> None:
        """Take note of whether a moment of rest lasted for what was done in it."""
        if self.rests(before):
            self.begun[nanoseconds.bit_length()] += 1
            self.lasted[nanoseconds.bit_length()] += self.rests(after)

    def enough(self, nanoseconds: float) -> Callable[[Iterable[bool]], bool]:
        """Which of the readings around what takes so long must be at rest: all, or any where moments of rest hardly
        ever last so long."""
        length = int(nanoseconds).bit_length()
        watched = [each for each, begun in self.begun.items() if begun >= KNOWN and each <= length]
        rare = any(self.lasted[each] < RARELY * self.begun[each] for each in watched)
        return any if rare or nanoseconds > MOMENT else all

    def pace(self, readings: Sequence[Pulse], usual: Gears) -> float:
        """How many times as long the core takes at the clock of such moments as at the usual one of the same gear; the
        faster counts, since after a call longer than `LOCAL` there is but one reading, and memory may slow that. 1 in
        the gear of dense arithmetic where that was hardly read."""
        known = self.dense.count >= FEW
        return min(
            (each.local / usual.dense if known else 1.0) if each.dense else each.local / usual.light
            for each in readings
        )

    def wait(self, light: bool = False) -> bool:
        """Wait until the core is undisturbed, and out of the gear of dense arithmetic if it is to be in the light one,
        but no longer than patience lasts: whether it is."""
        end = self.clock.now() + self.patience
        while not self.rests(reading := self.read()) or (light and reading.dense):
            if self.clock.now() >= end:
                self.patience = max(self.patience // 2, LEAST_PATIENCE)
                return False
        self.patience = PATIENCE
        return True
