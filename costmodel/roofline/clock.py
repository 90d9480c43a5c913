"""The clock of a host: the one place where NumPy calls are bound to memory, made, and timed; and its sentinel.

A sentinel is a fixed piece of work whose time tells whether a moment is undisturbed. A virtual core is often one half
of a physical one: while a neighbour computes on the other half, the same work takes 1.3 to 1.8 times as long, for 10 to
60 ms, and the CPU time of a thread says nothing of it. A sentinel computes within the first cache and takes as long as
at its best, or clearly longer: a sample is undisturbed if the sentinel just before and just after is at its best. There
is none for memory, which has no two states: what streams from it takes anything from 1 to 3.4 times its best (a ring of
96 MiB: 10 % of readings below 1.5, half below 2.5), and hardly a sample of a millisecond would be left if it were asked
too.
"""

from __future__ import annotations

import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import repeat
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
LIMIT = 1.1
"""At rest a sentinel takes 1.00 to 1.03 times its best, disturbed 1.6 to 2."""
FIRST = 400
"""Readings before the first sample, so that a best is known."""
PATIENCE, LEAST_PATIENCE = 20_000_000, 500_000
"""How long to wait for an undisturbed moment before a sample is taken all the same; half as long after each time that
there was none, but no less than the second [ns]."""

Work = Callable[[], Any]


class Elapsed(NamedTuple):
    """Wall time and CPU time of this thread [ns]."""

    wall: int
    cpu: int


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
        stay below `rows`."""
        sizes: Counter[tuple[str, bool]] = Counter()
        for op in calls:
            sizes |= _taken(op)
        arenas: dict[tuple[str, bool], Any] = {}
        for place, size in sizes.items():
            arenas[place] = aligned(size).view(place[0])
            fill(arenas[place], rows)
        return [_bound(op, arenas) for op in calls]

    def steady_work(self) -> Work:
        """Passes of exp over 8 KiB, to as many: half of the first cache stays as it was."""
        import numpy as np

        x, out = np.full(EXPONENTIALS, 0.5, np.float32), np.empty(EXPONENTIALS, np.float32)

        def work() -> None:
            for _ in range(PASSES):
                np.exp(x, out=out)

        return work


def _taken(op: NumpyCall) -> Counter[tuple[str, bool]]:
    """What a single call takes of each arena [bytes], by the type and whether it is written."""
    sizes: Counter[tuple[str, bool]] = Counter()
    for buffer in dict.fromkeys(ref.buffer for ref in (*op.operands, op.output)):
        sizes[buffer.dtype, buffer is op.output.buffer] += padded(buffer.bytes) + STAGGER
    return sizes


def _bound(op: NumpyCall, arenas: dict[tuple[str, bool], Any]) -> Thunk:
    """The real call on parts of the arenas."""
    used = dict.fromkeys(arenas, 0)
    writes = False

    def allocate(elements: int, dtype: str) -> Any:
        place = (dtype, writes)
        item = ITEM_BYTES[dtype]
        start = used[place] // item
        used[place] += padded(elements * item) + STAGGER
        return arenas[place][start : start + elements]

    memory = ArrayMemory(allocate)
    for ref in (*op.operands, op.output):
        writes = ref.buffer is op.output.buffer
        memory.make(ref.buffer)
    return op.bind(memory)


class Sentinel:
    """The clock's piece of work. One serves a whole run, since a part of it may hold no undisturbed moment; what is
    measured in that run is measured by its clock.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.work = self.clock.steady_work()
        self.count = 0
        self.fastest: list[int] = []
        self.patience = PATIENCE
        for _ in range(FIRST):
            self.read()

    @property
    def best(self) -> int:
        """What has been reached `SEEN` times, and by one reading of `RARE` [ns]."""
        return self.fastest[min(max(SEEN, self.count // RARE), len(self.fastest)) - 1]

    def read(self) -> int:
        """Do the work twice: how long the second time took [ns]; the first brings it back after what evicted it."""
        self.work()
        reading = self.clock.run(self.work).wall
        self.count += 1
        insort(self.fastest, reading)
        del self.fastest[2 * max(SEEN, self.count // RARE) :]
        return reading

    def rests(self, reading: int) -> bool:
        """Whether a reading is of an undisturbed moment, by the best that is known now."""
        return reading <= LIMIT * self.best

    def wait(self) -> bool:
        """Wait until the core is undisturbed, but no longer than patience lasts: whether it is."""
        end = self.clock.now() + self.patience
        while not self.rests(self.read()):
            if self.clock.now() >= end:
                self.patience = max(self.patience // 2, LEAST_PATIENCE)
                return False
        self.patience = PATIENCE
        return True
