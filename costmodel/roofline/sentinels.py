"""Sentinels: fixed pieces of work whose time tells whether a moment is undisturbed.

A virtual core is often one half of a physical one: while a neighbour computes on the other half, the same work takes
1.3 to 1.8 times as long, for 10 to 60 ms, and the CPU time of a thread says nothing of it. A sentinel takes as long as
at its best, or clearly longer: a sample is undisturbed if the sentinels just before and just after are at their best.
The core's computes within the first cache; memory's streams a piece of a ring that no cache holds.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable
from functools import cache
from itertools import cycle
from typing import Any

SEEN = 4
"""A sentinel's best is its fastest reading but three: it has been seen so many times."""
CORE_LIMIT = 1.1
"""At rest the core's sentinel takes 1.00 to 1.03 times its best, disturbed 1.6 to 2."""
MEMORY_LIMIT = 1.3
"""What disturbs memory has no two states: how much slower than at its best it may be."""
FIRST = 400
"""Readings before the first sample, so that a best is known."""
PATIENCE, LEAST_PATIENCE = 20_000_000, 500_000
"""How long to wait for an undisturbed moment before a sample is taken all the same; half as long after each time that
there was none, but no less than the second [ns]."""

EXPONENTIALS, PASSES = 2048, 4
RING, PIECE = 96 * 2**20, 256 * 2**10

Work = Callable[[], Any]


class Sentinel:
    """One piece of work; `best` is what it has taken at its fastest [ns], kept as long as this lives."""

    def __init__(self, work: Work, limit: float, before: Work | None = None) -> None:
        self.work = work
        self.limit = limit
        self.before = before
        self.fastest: list[int] = []

    @property
    def best(self) -> int:
        """The fastest reading that has been seen `SEEN` times [ns]."""
        return self.fastest[-1]

    def read(self) -> int:
        """Do the work, after what brings it into the cache: how long it took [ns]."""
        if self.before is not None:
            self.before()
        start = time.perf_counter_ns()
        self.work()
        took = time.perf_counter_ns() - start
        insort(self.fastest, took)
        del self.fastest[SEEN:]
        return took

    def rests(self, reading: int) -> bool:
        """Whether a reading is of an undisturbed moment, by the best that is known now."""
        return reading <= self.limit * self.best


class Sentinels:
    """That of the core and that of memory. A reading is (core, memory) [ns]; memory is -1 where it was not asked.

    One object serves a whole run, since a short one may hold no undisturbed moment at all.
    """

    def __init__(self, core: Work | None = None, memory: Work | None = None) -> None:
        self.core = (
            Sentinel(core, CORE_LIMIT) if core else Sentinel(_exponentials(PASSES), CORE_LIMIT, _exponentials(1))
        )
        self.memory = Sentinel(memory or _stream(), MEMORY_LIMIT)
        self.patience = PATIENCE
        for _ in range(FIRST):
            self.core.read()
        for _ in range(FIRST // 4):
            self.memory.read()

    def rest(self, reading: tuple[int, int]) -> bool:
        """Whether all that was read is of an undisturbed moment."""
        core, memory = reading
        return self.core.rests(core) and (memory < 0 or self.memory.rests(memory))

    def wait(self) -> bool:
        """Wait until the core is undisturbed, but no longer than patience lasts: whether it is."""
        end = time.perf_counter_ns() + self.patience
        while not self.core.rests(self.core.read()):
            if time.perf_counter_ns() >= end:
                self.patience = max(self.patience // 2, LEAST_PATIENCE)
                return False
        self.patience = PATIENCE
        return True


@cache
def _arrays() -> tuple[Any, Any]:
    """8 KiB each to read and to write, which leave half of the first cache as it was."""
    import numpy as np

    return np.full(EXPONENTIALS, 0.5, np.float32), np.empty(EXPONENTIALS, np.float32)


def _exponentials(passes: int) -> Work:
    """Passes of exp."""
    import numpy as np

    x, out = _arrays()

    def work() -> None:
        for _ in range(passes):
            np.exp(x, out=out)

    return work


def _stream() -> Work:
    """Read the next piece of a ring."""
    import numpy as np

    ring = np.ones(RING // 4, np.float32)
    pieces = cycle(ring.reshape(-1, PIECE // 4))
    out = np.empty((), np.float32)

    def work() -> None:
        np.add.reduce(next(pieces), out=out)

    return work
