"""A sentinel: a fixed piece of work whose time tells whether a moment is undisturbed.

A virtual core is often one half of a physical one: while a neighbour computes on the other half, the same work takes
1.3 to 1.8 times as long, for 10 to 60 ms, and the CPU time of a thread says nothing of it. A sentinel computes within
the first cache and takes as long as at its best, or clearly longer: a sample is undisturbed if the sentinel just before
and just after is at its best. There is none for memory, which has no two states: what streams from it takes anything
from 1 to 3.4 times its best (a ring of 96 MiB: 10 % of readings below 1.5, half below 2.5), and hardly a sample of a
millisecond would be left if it were asked too.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable
from typing import Any

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

EXPONENTIALS, PASSES = 2048, 4

Work = Callable[[], Any]


class Sentinel:
    """The piece of work, or another. One serves a whole run, since a part of it may hold no undisturbed moment."""

    def __init__(self, work: Work | None = None) -> None:
        self.work = work or _exponentials()
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
        start = time.perf_counter_ns()
        self.work()
        took = time.perf_counter_ns() - start
        self.count += 1
        insort(self.fastest, took)
        del self.fastest[2 * max(SEEN, self.count // RARE) :]
        return took

    def rests(self, reading: int) -> bool:
        """Whether a reading is of an undisturbed moment, by the best that is known now."""
        return reading <= LIMIT * self.best

    def wait(self) -> bool:
        """Wait until the core is undisturbed, but no longer than patience lasts: whether it is."""
        end = time.perf_counter_ns() + self.patience
        while not self.rests(self.read()):
            if time.perf_counter_ns() >= end:
                self.patience = max(self.patience // 2, LEAST_PATIENCE)
                return False
        self.patience = PATIENCE
        return True


def _exponentials() -> Work:
    """Passes of exp over 8 KiB, to as many: half of the first cache stays as it was."""
    import numpy as np

    x, out = np.full(EXPONENTIALS, 0.5, np.float32), np.empty(EXPONENTIALS, np.float32)

    def work() -> None:
        for _ in range(PASSES):
            np.exp(x, out=out)

    return work
