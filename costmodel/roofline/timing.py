"""How time is measured: the one protocol behind every number in seconds.

- Clock: CPU time of this thread for kernels of one thread, which does not run while others have the core; wall time for
  several threads, and then only a machine at rest gives a verdict of "quiet".
- Inner loops: an item is repeated within a sample until the sample is long against the clock.
- Rounds are interleaved: each takes a few samples of every item in turn, so that drift hits all alike.
- Warm-up: at each of its turns an item first runs untimed until no pass has been faster than those before for 0.1 ms,
  eight times at most: caches settle only after several passes, and what the item before left must be gone.
- Memory is 64-byte aligned (an arena), and garbage collection is off.
- Statistic: the minimum for kernels, the median for whole programs; both are always kept, with the samples.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from costmodel.roofline.host import require
from costmodel.roofline.memory import aligned, check_fits
from costmodel.roofline.program import Program, Thunk

if TYPE_CHECKING:
    import numpy

Statistic = Literal["minimum", "median"]

RESAMPLES = 400
SPREAD_LIMIT = 0.10
WAIT_LIMIT = 1.25
SETTLING = 1e5
"""Warm-up ends when no pass has been faster for so long [ns]: a cache takes several passes to hold a working set."""


@dataclass(frozen=True)
class Protocol:
    """How long and how often to measure.

    sample_seconds: the least that a sample lasts. rounds: turns of every item, of `burst` samples each; fewer (no less
    than `least_rounds`) for an item that would take more than `item_seconds` in all. threads: how many BLAS may use.
    """

    rounds: int = 8
    burst: int = 3
    least_rounds: int = 3
    sample_seconds: float = 2e-4
    item_seconds: float = 0.5
    warm_passes: int = 8
    threads: int = 1

    @property
    def clock(self) -> Callable[[], int]:
        """Nanoseconds of this thread's CPU time; of wall time if there are several threads."""
        return time.thread_time_ns if self.threads == 1 else time.perf_counter_ns


@dataclass(frozen=True)
class Timing:
    """Samples of one item [s per call], and their statistics.

    inner: calls in each sample. wall_ratio: wall time over CPU time while sampling (1 at rest; 0 if not known).
    """

    samples: tuple[float, ...]
    inner: int = 1
    wall_ratio: float = 0.0
    statistic: Statistic = "minimum"

    @property
    def seconds(self) -> float:
        """The minimum or the median, whichever `statistic` says."""
        return self.minimum if self.statistic == "minimum" else self.median

    @property
    def count(self) -> int:
        """How many samples."""
        return len(self.samples)

    @property
    def minimum(self) -> float:
        """The fastest sample [s]."""
        return min(self.samples)

    @property
    def median(self) -> float:
        """Of all samples [s]."""
        return self.percentile(50)

    @property
    def mean(self) -> float:
        """Of all samples [s]."""
        return sum(self.samples) / len(self.samples)

    def percentile(self, percent: float) -> float:
        """Linearly interpolated percentile [s]."""
        import numpy as np

        return float(np.percentile(self.samples, percent))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of `seconds` [s]."""
        import numpy as np

        low, high = np.percentile(self.resampled(np.random.default_rng(0), RESAMPLES), (2.5, 97.5))
        return float(low), float(high)

    def resampled(self, random: numpy.random.Generator, count: int) -> numpy.ndarray:
        """`seconds` of so many samples drawn anew with replacement (the bootstrap) [s]."""
        import numpy as np

        draws = random.choice(self.samples, (count, len(self.samples)))
        return np.min(draws, axis=1) if self.statistic == "minimum" else np.median(draws, axis=1)

    @property
    def spread(self) -> float:
        """Median over minimum, less one."""
        return self.median / self.minimum - 1 if self.minimum else 0.0

    @property
    def noise(self) -> str:
        """Why the samples are doubtful; empty if they are not."""
        low, high = self.interval
        width = (high - low) / self.seconds if self.seconds else 0.0
        reasons = []
        if self.wall_ratio > WAIT_LIMIT:
            reasons.append(f"the core was shared (wall time is {self.wall_ratio:.1f} × CPU time)")
        if width > SPREAD_LIMIT:
            reasons.append(f"the 95 % interval is {width:.0%} wide")
        return "; ".join(reasons)

    def shared_by(self, number: int) -> Timing:
        """The time of one of `number` equal calls that each sample made."""
        return replace(self, samples=tuple(sample / number for sample in self.samples), inner=self.inner * number)

    def to_dict(self) -> dict[str, Any]:
        """Plain data [s]."""
        return {
            "seconds": self.seconds,
            "statistic": self.statistic,
            "interval": list(self.interval),
            "minimum": self.minimum,
            "mean": self.mean,
            **{f"p{percent}": self.percentile(percent) for percent in (50, 95, 99)},
            "count": self.count,
            "inner": self.inner,
            "wall_ratio": self.wall_ratio,
            "noise": self.noise,
        }


@dataclass
class _Item:
    """One callable while it is measured; wall and cpu are of all samples [ns]."""

    call: Callable[[], Any]
    inner: int
    rounds: int
    samples: list[float]
    wall: int = 0
    cpu: int = 0


def time_calls(
    calls: Sequence[Callable[[], Any]],
    protocol: Protocol | None = None,
    *,
    statistic: Statistic = "minimum",
    progress: Callable[[float], None] | None = None,
) -> list[Timing]:
    """Time each callable by the protocol, rounds interleaved. `progress` is told the share done, 0 to 1."""
    protocol = protocol or Protocol()
    with at_rest(protocol.threads):
        items = [_first(call, protocol) for call in calls]
        for number in range(protocol.rounds):
            for item in items:
                if number < item.rounds:
                    _turn(item, protocol)
            if progress is not None:
                progress((number + 1) / protocol.rounds)
    return [Timing(tuple(i.samples), i.inner, i.wall / i.cpu if i.cpu else 0.0, statistic) for i in items]


@contextmanager
def at_rest(threads: int = 1) -> Iterator[None]:
    """Garbage collection off, BLAS limited to `threads`, floating-point warnings off."""
    import numpy as np
    from threadpoolctl import threadpool_limits

    enabled = gc.isenabled()
    gc.disable()
    try:
        with threadpool_limits(threads, user_api="blas"), np.errstate(all="ignore"):
            yield
    finally:
        if enabled:
            gc.enable()


def _first(call: Callable[[], Any], protocol: Protocol) -> _Item:
    """Warm an item, and decide how often to repeat it."""
    best = _warm(call, protocol)
    inner = max(1, round(protocol.sample_seconds * 1e9 / best))
    rounds = int(protocol.item_seconds * 1e9 / (best * (inner * protocol.burst + 2)))
    return _Item(call, inner, min(max(rounds, protocol.least_rounds), protocol.rounds), [])


def _warm(call: Callable[[], Any], protocol: Protocol) -> int:
    """Run until passes have not become faster for `SETTLING`; returns the fastest pass [ns]."""
    clock = protocol.clock
    best = 1 << 62
    slower = 0
    for _ in range(protocol.warm_passes):
        start = clock()
        call()
        took = clock() - start
        slower = slower + 1 if took > 0.97 * best else 0
        best = min(best, took)
        if slower and slower * best > SETTLING:
            break
    return max(best, 1)


def _turn(item: _Item, protocol: Protocol) -> None:
    """Warm up, then take a burst of samples."""
    call, clock = item.call, protocol.clock
    _warm(call, protocol)
    for _ in range(protocol.burst):
        wall = time.perf_counter_ns()
        start = clock()
        for _ in repeat(None, item.inner):
            call()
        took = clock() - start
        item.wall += time.perf_counter_ns() - wall
        item.cpu += took
        item.samples.append(took / item.inner * 1e-9)


def conditions() -> dict[str, float]:
    """One-minute load, and steal (the share of CPU time that the hypervisor took); -1 where not known."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else -1.0
    try:
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        steal = fields[7] / sum(fields)
    except (OSError, IndexError, ValueError):
        steal = -1.0
    return {"load": load, "steal": steal}


Run = Callable[[], None]


def measure(
    programs: Sequence[Program],
    *,
    reuse_bytes: int = 0,
    protocol: Protocol | None = None,
    statistic: Statistic = "minimum",
    progress: Callable[[float], None] | None = None,
) -> list[Timing]:
    """Time programs, rounds interleaved over all of them.

    reuse_bytes: 0 for warm, each run right after the last one; otherwise cold: as many copies of the program's memory
    take turns as it takes for so many bytes to be touched between two uses of one. Raises CostModelError if the memory
    is not there.
    """
    require()
    check_fits(room(programs, reuse_bytes), "the measurement")
    calls, copies = [], [copies_of(program, reuse_bytes) for program in programs]
    for program, number in zip(programs, copies, strict=True):
        size = program.layout.arena_bytes
        arena = aligned(number * size)
        parts = [arena[i * size :][:size] for i in range(number)]
        calls.append(runner([thunk for part in parts for thunk in program.bind(part)]))
    timings = time_calls(calls, protocol, statistic=statistic, progress=progress)
    return [timing.shared_by(number) for timing, number in zip(timings, copies, strict=True)]


def copies_of(program: Program, reuse_bytes: int) -> int:
    """How many copies of a program's memory take turns, so that so many bytes are touched between two uses of one."""
    return 1 + -(-reuse_bytes // max(program.layout.arena_bytes, 1))


def room(programs: Iterable[Program], reuse_bytes: int = 0) -> int:
    """Memory that `measure` takes for programs [bytes]."""
    return sum(copies_of(program, reuse_bytes) * program.layout.arena_bytes for program in programs)


def runner(thunks: list[Thunk]) -> Run:
    """One callable that makes all calls in order."""

    def run() -> None:
        for function, arguments, options in thunks:
            function(*arguments, **options)

    return run
