"""How time is measured: the one protocol behind every number in seconds.

A host that serves others too has moments in which the core is one's own, and others. What counts is measured in the
former, and known to be (`costmodel.roofline.clock`):

- Turns are interleaved over all items, so that samples see different moments and drift hits all alike.
- At each turn it is waited for a moment in which the core's sentinel rests. A sample is undisturbed if it rests before
  and after; while it does an item has up to `BURST` samples, otherwise one.
- An item is settled by `Protocol.enough` undisturbed samples, of which the fastest three, and those that the quartile
  may be by chance, are within `Protocol.agree`; by `FAR` times as many where its working set is beyond the caches of a
  core, since others disturb memory by degrees. Then time goes to the others, until a budget ends. Each item has its
  share of the time, not of the turns: a short one has hundreds of samples while a long one has ten. What is not
  settled then is unresolved: shown, never judged.
- What is longer than moments of rest are on this host has hardly a sample without any disturbance. One counts if the
  sentinel rests at its beginning or at its end and nobody else had the core, which both clocks say; of what is longer
  than they are on any, `Protocol.longer_enough` samples settle the item.
- What multiplies matrices has its turns after all else, each begun with so much of its like that the core's clock falls
  no further; samples of the rest are taken once the clock is back (`costmodel.roofline.clock`).
- Two clocks, wall and CPU time of this thread: where they agree the wall clock counts. A sample on which they disagree
  is never undisturbed, since either the core was taken away or the CPU clock lies, as it does now and then.
- Inner loops: an item is repeated within a sample until the sample is long against the clock.
- Warm-up: at each of its turns an item first runs untimed until no pass has been faster than those before for 0.1 ms,
  eight times at most: caches settle only after several passes, and what the item before left must be gone. Beyond the
  caches of a core three passes in a row say so: the cache that cores share keeps what comes again only by and by, and
  one pass that is no faster than the last does not mean that the next is not.
- Memory is 64-byte aligned (an arena), and garbage collection is off.
- Statistic: the lower quartile of the undisturbed samples for kernels, at the clock that is usual for the core; for
  whole programs as they come the median of CPU time. The fastest sample is no property of what is measured: where a
  host disturbs by degrees, the fastest of a thousand is a tenth below that of five.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from costmodel.roofline.clock import HEAVY, MOMENT, Clock, Gears, Pulse, Sentinel
from costmodel.roofline.host import require
from costmodel.roofline.memory import RESIDENT_BYTES, check_fits
from costmodel.roofline.program import Program, Thunk

if TYPE_CHECKING:
    import numpy

Statistic = Literal["quartile", "median"]

QUARTER = 0.25
"""Share of the undisturbed samples that are no slower than what counts."""
PROBABLE = 0.67
"""Standard deviations of its rank by which half of all quartiles are off by chance, at most."""
APART = 0.1
"""How far two measurements of the same are from each other, of which the mean counts."""
RESAMPLES, RATIO_RESAMPLES = 400, 4000
TAILS = {50: 1, 95: 20, 99: 100}
"""Percentiles, and from how many samples on they say anything: that one sample lies beyond them."""
SPREAD_LIMIT = 0.10
WAIT_LIMIT = 1.25
SETTLING = 1e5
"""Warm-up ends when no pass has been faster for so long [ns]: a cache takes several passes to hold a working set."""
AGREE = 0.03
"""How far one clock is from the other."""
FAR = 3
"""How many times as many undisturbed samples it takes beyond the caches of a core."""
STEADY = 400_000
"""How long a sample of that lasts at least [ns]: between single calls caches write back what they took in. On an AMD
EPYC 17 MB that are streamed through took 143 µs with pauses where they took 178 without, if not always."""
MOST_SHARE = 1.2
"""How many times its share of the time a long item may take while others are open."""
BURST = 3
"""Samples of a turn at most, as long as the moment is undisturbed."""
PATIENCE = 3
"""Passes in a row that are no faster, after which what works on more than a core's caches hold is warm."""
LONG, LONGER = 1_000_000, 10_000_000
"""Items that take longer warm up in one pass if a core's caches hold them: what was before them is gone after it; and
the longer ones as the protocol says [ns]."""
SHORT = 300_000
"""Items no longer than this run once more after the wait, for what it evicted [ns]."""
AFRESH = 4
"""One call of so many in a sample is made before it, untimed: the first calls of a short one after other work, a
sentinel's too, take up to twice as long."""
FEWEST = 3
"""Samples on which the clocks agree that do without the others."""
LIE = 0.6
"""A CPU time below this share of the median is a lie."""
GRAIN = 3000
"""What reading two clocks may take [ns]."""


@dataclass(frozen=True)
class Protocol:
    """How long and how often to measure.

    rounds: turns of an item at most, one sample each; least_rounds: at least, if the budget lasts. enough: undisturbed
    samples that settle an item, after which it has no more turns; 0 for as many turns as there are, without waiting for
    a moment's rest, as it comes. item_seconds: after so long it has no more either, and `budget` is for all items
    together. sample_seconds: the least that a sample lasts. agree: how far those undisturbed samples of a settled item
    are apart that may be its quartile, and the fastest three. longer_enough: how many settle an item that is longer
    than `MOMENT`, one a turn; 0 for as many as others. longer_warm: passes before a sample of what is longer than
    `LONGER`, which finds in the cache that cores share what its last pass left there; 0 if that is more than it holds.
    threads: how many BLAS may use.
    """

    rounds: int = 10_000
    least_rounds: int = 3
    enough: int = 5
    sample_seconds: float = 1e-4
    item_seconds: float = 1.0
    budget: float = float("inf")
    warm_passes: int = 8
    agree: float = 0.03
    longer_enough: int = 0
    longer_warm: int = 1
    threads: int = 1


@dataclass(frozen=True)
class Timing:
    """Samples of one item [s per call], and their statistics.

    inner: calls in each sample. wall_ratio: wall time over CPU time while sampling (1 at rest; 0 if not known).
    undisturbed: those of the samples that are known to be; empty if none is, or nobody asked. resolved: whether they
    settle the matter.
    """

    samples: tuple[float, ...]
    inner: int = 1
    wall_ratio: float = 0.0
    statistic: Statistic = "quartile"
    undisturbed: tuple[float, ...] = ()
    resolved: bool = True

    @property
    def seconds(self) -> float:
        """The lower quartile of the undisturbed samples, or the fastest of all where none is undisturbed; or the median
        of all, whichever `statistic` says."""
        if self.statistic == "median":
            return self.median
        return quartile(sorted(self.undisturbed)) if self.undisturbed else self.minimum

    @property
    def counted(self) -> tuple[float, ...]:
        """The samples that `seconds` is of [s]."""
        return (self.statistic == "quartile" and self.undisturbed) or self.samples

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
        """Of all samples, whoever disturbed them [s]."""
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
    def percentiles(self) -> list[int]:
        """Those of `TAILS` that there are samples for."""
        return [percent for percent, least in TAILS.items() if self.count >= least]

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of `seconds` [s]; up to the median of all samples if they are unresolved."""
        import numpy as np

        low, high = np.percentile(self.resampled(np.random.default_rng(0), RESAMPLES), (2.5, 97.5))
        return float(low), float(high if self.resolved else max(high, self.median))

    def resampled(self, random: numpy.random.Generator, count: int) -> numpy.ndarray:
        """`seconds` of so many samples drawn anew with replacement (the bootstrap) [s]."""
        import numpy as np

        draws = random.choice(self.counted, (count, len(self.counted)))
        if self.statistic == "median":
            return np.median(draws, axis=1)
        return np.quantile(draws, QUARTER, axis=1, method="weibull") if self.undisturbed else np.min(draws, axis=1)

    @property
    def noise(self) -> str:
        """Why the samples are doubtful; empty if they are not."""
        low, high = self.interval
        width = (high - low) / self.seconds if self.seconds else 0.0
        if not self.resolved:
            return f"unresolved: {len(self.undisturbed)} of {self.count} samples are known to be undisturbed"
        reasons = []
        if self.wall_ratio > WAIT_LIMIT and not self.undisturbed:
            reasons.append(f"the core was shared (wall time is {self.wall_ratio:.1f} × CPU time)")
        if width > SPREAD_LIMIT:
            reasons.append(f"the 95 % interval is {width:.0%} wide")
        return "; ".join(reasons)

    def shared_by(self, number: int) -> Timing:
        """The time of one of `number` equal calls that each sample made."""
        samples, undisturbed = (tuple(s / number for s in some) for some in (self.samples, self.undisturbed))
        return replace(self, samples=samples, undisturbed=undisturbed, inner=self.inner * number)

    def to_dict(self) -> dict[str, Any]:
        """Plain data [s]."""
        return {
            "seconds": self.seconds,
            "statistic": self.statistic,
            "interval": list(self.interval),
            "minimum": self.minimum,
            "mean": self.mean,
            **{f"p{percent}": self.percentile(percent) if percent in self.percentiles else None for percent in TAILS},
            "count": self.count,
            "undisturbed": len(self.undisturbed),
            "resolved": self.resolved,
            "as_it_came": self.median,
            "inner": self.inner,
            "wall_ratio": self.wall_ratio,
            "noise": self.noise,
        }


def quartile(ordered: Sequence[float], beyond: float = 0.0) -> float:
    """The sample that a quarter of all that there could be is faster than, of a few of them in order; or one so many
    ranks beyond it."""
    rank = min(max(max(QUARTER * (len(ordered) + 1) - 1, 0.0) + beyond, 0.0), len(ordered) - 1.0)
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (rank - below) * (ordered[above] - ordered[below])


def by_chance(ordered: Sequence[float], least: int) -> tuple[float, float]:
    """Between which samples the quartile may be; of few samples at least up to that of a rank."""
    off = PROBABLE * (QUARTER * (1 - QUARTER) * len(ordered)) ** 0.5
    return quartile(ordered, -off), max(quartile(ordered, off), ordered[min(least, len(ordered) - 1)])


def together(times: Sequence[float]) -> float:
    """What counts of measurements of the same, one some time after the other [s]: the mean of those that agree with the
    fastest, since each is a quartile; not of the others, since what disturbs only adds."""
    return fmean(times[number] for number in alike(times))


def alike(times: Sequence[float]) -> list[int]:
    """The numbers of the measurements that are no further than `APART` from the fastest of them."""
    limit = (1 + APART) * min(times)
    return [number for number, each in enumerate(times) if each <= limit]


def ratio_interval(a: Timing, b: Timing) -> tuple[float, float]:
    """95 % bootstrap interval of the ratio of two timings."""
    import numpy as np

    random = np.random.default_rng(0)
    ratio = a.resampled(random, RATIO_RESAMPLES) / b.resampled(random, RATIO_RESAMPLES)
    low, high = np.percentile(ratio, (2.5, 97.5))
    return float(low), float(high)


class _Sample(NamedTuple):
    """Time of one call [s], what the sentinel read before and after (none where nobody asked), and whether the clocks
    agree; where they do not it is the CPU clock's."""

    seconds: float
    readings: tuple[Pulse, ...]
    agree: bool = True


class _Item:
    """One callable while it is measured until a moment, `ends` [ns]; it is warmed up as the item is made.

    far: whether it works on more than the caches of a core hold. dense: whether it multiplies matrices.
    sentinel: None if no moment is waited for. inner: calls in each sample; lasts: about how long one is [ns];
    wall, cpu: of all samples [ns]; spent: of all turns [ns].
    """

    def __init__(
        self,
        call: Callable[[], Any],
        far: bool,
        dense: bool,
        protocol: Protocol,
        clock: Clock,
        sentinel: Sentinel | None,
        ends: float,
    ) -> None:
        self.call, self.protocol, self.clock, self.sentinel, self.ends = call, protocol, clock, sentinel, ends
        self.dense = dense
        self.patience = PATIENCE if far else 1
        self.samples: list[_Sample] = []
        self.turns = self.wall = self.cpu = self.spent = 0
        best = self._warm(protocol.warm_passes)
        few = protocol.longer_enough if best > MOMENT else 0
        self.enough, self.burst = (few, 1) if few else (protocol.enough * (FAR if far else 1), BURST)
        lasts = max(protocol.sample_seconds * 1e9, STEADY if far else 0)
        self.inner = max(1, round(lasts / best))
        if afresh := self.inner // AFRESH:  # the first calls of all are no measure of a short one
            best = max(clock.run(call, afresh).wall / afresh, 1.0)
            self.inner = max(1, round(lasts / best))
        self.lasts = self.inner * best
        if dense and best < HEAVY and sentinel is not None:
            self.warm_passes = 1  # it runs for so long in all
            return
        settling = best <= (LONGER if far else LONG)
        self.warm_passes = protocol.warm_passes if settling else protocol.longer_warm if best > LONGER else 1

    def _warm(self, passes: int) -> int:
        """Run until passes have not become faster for `SETTLING`, or the budget ends; returns the fastest pass [ns]."""
        best, slower = 1 << 62, 0
        for number in range(passes):
            spent = self.clock.run(self.call).wall
            self._ran(spent)
            slower = slower + 1 if spent > 0.97 * best else 0
            best = min(best, spent)
            warm = slower >= self.patience and slower * best > SETTLING
            long = spent > LONGER and number >= self.protocol.longer_warm
            if long or warm or self.clock.now() >= self.ends:
                break
        return max(best, 1)

    def turn(self) -> None:
        """Warm up, wait for a moment's rest, then take a sample; more of them while it lasts. Once the budget has ended
        just a sample."""
        began = self.clock.now()
        best = self._warm(self.warm_passes) if began < self.ends else LONG
        if self.turns and self.clock.now() >= self.ends:
            return
        before = None
        if self.sentinel is not None:
            start = self.clock.now()
            if start < self.ends:
                self.sentinel.wait(light=not self.dense)
            began += self.clock.now() - start
            if self.dense and best < HEAVY:
                self._ran(best + self.clock.run(self.call, HEAVY // best).wall)
            elif best < SHORT:
                self.call()
            before = self.sentinel.read()
        for _ in range(self.burst):
            before = self._sample(before)
            if self.sentinel is None or before is None or not self.sentinel.rests(before):
                break
            if self.clock.now() >= self.ends:
                break
        self.turns += 1
        self.spent += self.clock.now() - began

    def _ran(self, nanoseconds: int) -> None:
        """Tell the sentinel if it was dense arithmetic that was run for so long."""
        if self.dense and self.sentinel is not None:
            self.sentinel.after_dense(nanoseconds)

    def _sample(self, before: Pulse | None) -> Pulse | None:
        """Take a sample, before which the sentinel read so much; returns what it reads after it."""
        self.clock.run(self.call, self.inner // AFRESH)
        wall, cpu = self.clock.run(self.call, self.inner)
        self.wall += wall
        self.cpu += cpu
        self._ran(wall)
        parallel = self.protocol.threads > 1
        if self.sentinel is None or before is None:
            after, readings, agree = None, (), True
        else:
            after = self.sentinel.read()
            readings, agree = (before, after), parallel or clocks_agree(wall, cpu)
            self.sentinel.watch(before, after, wall)
        spent = wall if parallel or (agree and readings) else cpu
        if spent > 0:
            self.samples.append(_Sample(spent / self.inner * 1e-9, readings, agree))
        return after

    def undisturbed(self, usual: Gears) -> list[float]:
        """Samples of undisturbed moments, by what is known of the sentinel's best now, as long as they are where the
        sentinel's work takes so long, the fastest first [s]; of light work none in the gear of dense arithmetic."""
        if self.sentinel is None:
            return []
        rests, pace, enough = self.sentinel.rests, self.sentinel.pace, self.sentinel.enough(self.lasts)
        known = (s for s in self.samples if s.agree and s.readings and (self.dense or not s.readings[0].dense))
        return sorted(s.seconds / pace(s.readings, usual) for s in known if enough(map(rests, s.readings)))

    def believed(self) -> list[float]:
        """Samples on which the clocks agree; where there are hardly any, as of what is longer than the time that the
        system leaves it the core, also the CPU clock's, but for those that are lies [s]."""
        agreed = [s.seconds for s in self.samples if s.agree]
        if len(agreed) >= FEWEST or not self.samples:
            return agreed
        middle = median(s.seconds for s in self.samples)
        return [s.seconds for s in self.samples if s.agree or s.seconds > LIE * middle]

    @property
    def settled(self) -> bool:
        """Whether undisturbed samples are enough, and those agree that may be their quartile, and the fastest."""
        ordered = self.undisturbed(self.sentinel.usual) if self.sentinel else []
        if not 0 < self.enough <= len(ordered):
            return False
        least, most = by_chance(ordered, min(2, self.enough - 1))
        return most <= (1 + self.protocol.agree) * least

    @property
    def finished(self) -> bool:
        """Whether it has had its turns, or its time, or is settled."""
        if self.turns < self.protocol.least_rounds:
            return False
        over = self.turns >= self.protocol.rounds or self.spent > 1e9 * self.protocol.item_seconds
        return over or self.settled

    def timing(self, statistic: Statistic) -> Timing:
        """The samples, and whether they settle the matter."""
        ratio = self.wall / self.cpu if self.cpu else 0.0
        samples = tuple(self.believed()) or (max(self.wall, 1) / self.inner / self.turns * 1e-9,)
        if self.sentinel is None:
            return Timing(samples, self.inner, ratio, statistic)
        return Timing(samples, self.inner, ratio, statistic, tuple(self.undisturbed(self.sentinel.usual)), self.settled)


def time_calls(
    calls: Sequence[Callable[[], Any]],
    protocol: Protocol | None = None,
    *,
    statistic: Statistic = "quartile",
    far: Sequence[bool] = (),
    dense: Sequence[bool] = (),
    sentinel: Sentinel | None = None,
    progress: Callable[[float], None] | None = None,
) -> list[Timing]:
    """Time each callable by the protocol, turns interleaved. `progress` is told the share done, 0 to 1.

    far: which of them work on more than the caches of a core hold. dense: which multiply matrices; they have their
    turns after the others, which would wait for the core's clock. sentinel: of this run, if there are any yet.
    """
    protocol, tell = protocol or Protocol(), progress or (lambda share: None)
    with at_rest(protocol.threads):
        watch = (sentinel or Sentinel()) if protocol.enough else None
        clock = watch.clock if watch is not None else sentinel.clock if sentinel is not None else Clock()
        distant, slow = far or [False] * len(calls), dense or [False] * len(calls)
        began, rounds = clock.now(), 0
        ends = began + 1e9 * protocol.budget
        items = [_Item(*each, protocol, clock, watch, ends) for each in zip(calls, distant, slow, strict=True)]
        unfinished = sorted(items, key=lambda item: item.dense)
        while unfinished:
            fair = MOST_SHARE * sum(item.spent for item in unfinished) / len(unfinished)
            for item in unfinished:
                if watch is not None and item.turns >= protocol.least_rounds and item.spent > fair:
                    continue
                if item.turns == 0 or clock.now() < ends:
                    item.turn()
            ended = clock.now() >= ends and min(item.turns for item in items) >= 1
            unfinished = [] if ended else [item for item in unfinished if not item.finished]
            rounds += 1
            share = (clock.now() - began) * 1e-9 / protocol.budget
            share = max(1 - len(unfinished) / len(items), min(max(rounds / protocol.rounds, share), 1.0))
            tell(share if unfinished else 1.0)
    return [item.timing(statistic) for item in items]


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


def clocks_agree(wall: int, cpu: int) -> bool:
    """Whether wall time and CPU time [ns] are the same: nobody else had the core meanwhile, and neither clock lies."""
    return abs(wall - cpu) <= AGREE * wall + GRAIN


def conditions() -> dict[str, float]:
    """One-minute load, and steal (the share of CPU time that the hypervisor took); -1 where not known."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else -1.0
    try:
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        steal = fields[7] / sum(fields)
    except (OSError, IndexError, ValueError):
        steal = -1.0
    return {"load": load, "steal": steal}


def measure(
    programs: Sequence[Program],
    *,
    reuse_bytes: int = 0,
    protocol: Protocol | None = None,
    statistic: Statistic = "quartile",
    sentinel: Sentinel | None = None,
    progress: Callable[[float], None] | None = None,
) -> list[Timing]:
    """Time programs, turns interleaved over all of them.

    reuse_bytes: 0 for warm, each run right after the last one; otherwise cold: as many copies of the program's memory
    take turns as it takes for so many bytes to be touched between two uses of one. Raises CostModelError if the memory
    is not there.
    """
    require()
    check_fits(needed_bytes(programs, reuse_bytes), "the measurement")
    clock, copies = sentinel.clock if sentinel else Clock(), [copies_of(program, reuse_bytes) for program in programs]
    calls = [runner(clock.bind(program, number)) for program, number in zip(programs, copies, strict=True)]
    far = [number * each.touched_bytes > RESIDENT_BYTES for each, number in zip(programs, copies, strict=True)]
    dense = [any(op.dense for op in program) for program in programs]
    timings = time_calls(
        calls, protocol, statistic=statistic, far=far, dense=dense, sentinel=sentinel, progress=progress
    )
    return [timing.shared_by(number) for timing, number in zip(timings, copies, strict=True)]


def copies_of(program: Program, reuse_bytes: int) -> int:
    """How many copies of a program's memory take turns, so that so many bytes are touched between two uses of one."""
    return 1 + -(-reuse_bytes // max(program.layout.arena_bytes, 1))


def needed_bytes(programs: Iterable[Program], reuse_bytes: int = 0) -> int:
    """Memory that `measure` takes for programs [bytes]."""
    return sum(copies_of(program, reuse_bytes) * program.layout.arena_bytes for program in programs)


def runner(thunks: list[Thunk]) -> Callable[[], None]:
    """One callable that makes all calls in order."""

    def run() -> None:
        for function, arguments, options in thunks:
            function(*arguments, **options)

    return run
