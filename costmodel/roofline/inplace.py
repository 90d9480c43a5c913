"""A whole program as it runs, call by call: each call finds in the caches what the program before it left there.

Every call is timed by itself, pass after pass, by two clocks. The core's sentinel runs between calls, about once every
`EVERY`: a call's time is undisturbed if the sentinel rests before and after (or one of them, where moments of rest
hardly ever last for what was done between), and the clocks agree. Calls that are alike, as those of equal blocks, are
taken together: the time of one is the median over them of the lower quartile of the undisturbed times of each; where
none is undisturbed, the fastest of all. Added up these make the program's time undisturbed; the median of whole passes
is its time as it came.

No sentinel tells what others do to the cache that all cores share, and how much of it they leave lasts for seconds (an
MLP of 12 MB of weights took 260 µs a pass on an AMD EPYC, and five seconds later 600). So samples are taken in
stretches of half a second, each of which gives a time; those that agree with the fastest count, and of what does not
stay within a core's own caches two of them settle it.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from statistics import median

from costmodel.roofline.clock import Elapsed, Pulse, Sentinel
from costmodel.roofline.memory import RESIDENT_BYTES, check_fits
from costmodel.roofline.program import PassName, Program, Thunk
from costmodel.roofline.timing import (
    AGREE,
    LIE,
    Timing,
    alike,
    at_rest,
    by_chance,
    clocks_agree,
    quartile,
    together,
)

EVERY = 300_000
"""Time between two readings of the sentinel, if no call is longer [ns]."""
ENOUGH = 4
"""Undisturbed samples that settle a group of calls."""
TICK = 50
"""What reading the clock tells no better, of calls that take hardly longer [ns]."""
RANKS = 5
"""How many times of its calls a layer's timing has, from the one that counts on."""
LEAST, KEPT = 3, 2_000
"""Passes before a program is settled, and of how many at most the times of all calls are kept, spread over all."""
STRETCH = 500_000_000
"""How long samples are taken together, at least [ns]."""
BLIND = 0.9
"""A sentinel that reads so much less than its best had seen no rest before."""
AGREEING = 2
"""Stretches that have to agree, of a program that works on more than a core's caches hold."""
UNSETTLED = 0.1
"""A layer's pass is resolved if no more of its time than this is of calls that are not settled."""
LayerPass = tuple[str, PassName]
"""A layer's name without the numbers of its rounds, and which pass of it."""
CallTimes = dict[int, list[int]]
"""Times of each call of a group, by its number, the fastest first [ns]."""


@dataclass
class CallGroup:
    """Calls of a program that are taken together: those of one place in one pass of a layer, round after round.

    calls: their numbers in the program. samples, undisturbed: the times of each, the fastest first [ns], in all moments
    and in undisturbed ones; the latter of this stretch. stretches: the latter of those that have ended. agreeing: how
    many of them have to agree.
    """

    layer_pass: LayerPass
    agreeing: int = 1
    calls: list[int] = field(default_factory=list)
    samples: CallTimes = field(default_factory=dict)
    undisturbed: CallTimes = field(default_factory=dict)
    stretches: list[CallTimes] = field(default_factory=list)

    def add(self, number: int, nanoseconds: Iterable[int], undisturbed: bool) -> None:
        """CallTimes of one of the calls."""
        for known in (self.samples, self.undisturbed) if undisturbed else (self.samples,):
            times = known.setdefault(number, [])
            for each in nanoseconds:
                insort(times, each)

    def end_stretch(self, enough: int = ENOUGH) -> None:
        """Let what comes be of another stretch, if this one has enough samples."""
        if sum(map(len, self.undisturbed.values())) >= enough:
            self.stretches.append(self.undisturbed)
            self.undisturbed = {}

    def forget(self) -> None:
        """That any sample was undisturbed."""
        self.stretches, self.undisturbed = [], {}

    def joined(self, other: CallGroup) -> CallGroup:
        """With the samples of the same calls at another time."""
        stretches, least = [*self.stretches, *other.stretches], min(self.agreeing + other.agreeing, AGREEING)
        both = CallGroup(self.layer_pass, least, self.calls, stretches=stretches)
        both.samples = _merged((self.samples, other.samples))
        return both

    @property
    def counted(self) -> list[CallTimes]:
        """The stretches that have ended; this one where none has."""
        return self.stretches or ([self.undisturbed] if self.undisturbed else [])

    def time(self, rank: int) -> float:
        """Of one call, from the sample of each so many ranks beyond the one that counts; where none is undisturbed from
        the fastest of all, since calls are alike, and what disturbs them only adds [ns]."""
        if counted := self.counted:
            return together([_time(calls, rank) for calls in counted])
        times = self.samples.values()
        fastest = sorted(each for samples in times for each in samples if each > LIE * median(samples))
        return fastest[min(rank, len(fastest) - 1)]

    def seconds(self, rank: int = 0) -> float:
        """Of all its calls [s]."""
        return len(self.calls) * self.time(rank) * 1e-9

    @property
    def settled(self) -> bool:
        """Whether enough stretches agree with the fastest, and their samples that may be the quartile of a call."""
        counted = self.counted
        if not counted:
            return False
        numbers = alike([_time(calls) for calls in counted])
        pooled = _merged([counted[number] for number in numbers])
        if len(numbers) < self.agreeing or sum(map(len, pooled.values())) < ENOUGH:
            return False
        low, high = map(median, zip(*(by_chance(each, 1) for each in pooled.values()), strict=True))
        return high - low <= max(2 * AGREE * low, TICK)


def _time(calls: CallTimes, rank: int = 0) -> float:
    """Of one of alike calls [ns]."""
    return median(quartile(each, rank) for each in calls.values())


def _merged(some: Sequence[CallTimes]) -> CallTimes:
    """CallTimes of several times together."""
    if len(some) == 1:
        return some[0]
    merged: CallTimes = {}
    for calls in some:
        for number, times in calls.items():
            merged.setdefault(number, []).extend(times)
    return {number: sorted(times) for number, times in merged.items()}


def grouped(program: Program, agreeing: int) -> list[CallGroup]:
    """The group of each call of a network. agreeing: how many stretches have to, before one is settled."""
    places: Counter[LayerPass] = Counter()
    groups: dict[tuple[LayerPass, int], CallGroup] = {}
    of_calls = []
    for number, op in enumerate(program):
        layer_pass = op.layer.partition("[")[0], op.phase
        key = layer_pass, places[op.layer, op.phase]
        places[op.layer, op.phase] += 1
        of_calls.append(groups.setdefault(key, CallGroup(layer_pass, agreeing)))
        of_calls[-1].calls.append(number)
    return of_calls


@dataclass(frozen=True)
class RunInPlace:
    """A program as it ran. groups: of its calls. passes: the time of each call in each whole pass [ns]."""

    program: Program
    groups: tuple[CallGroup, ...]
    passes: tuple[tuple[int, ...], ...]

    def joined(self, other: RunInPlace) -> RunInPlace:
        """With the samples of the same program at another time, since what others do to memory may last for seconds."""
        groups = tuple(own.joined(others) for own, others in zip(self.groups, other.groups, strict=True))
        return RunInPlace(self.program, groups, (*self.passes, *other.passes))

    @property
    def seconds(self) -> float:
        """Undisturbed, all calls added up [s]."""
        return sum(group.seconds() for group in self.groups)

    @property
    def as_it_came(self) -> float:
        """The median of whole passes [s]."""
        return median(map(sum, self.passes)) * 1e-9

    @cached_property
    def resolved(self) -> float:
        """The share of its time that is of settled calls."""
        return sum(group.seconds() for group in self.groups if group.settled) / self.seconds if self.seconds else 1.0

    def call_seconds(self) -> list[float]:
        """Undisturbed time of each call [s]."""
        by_number = {number: group.time(0) * 1e-9 for group in self.groups for number in group.calls}
        return [by_number[number] for number in range(len(self.program))]

    def of_calls(self) -> dict[str, Timing]:
        """Of one call of each layer, where all calls of a layer are equal."""
        layers = self.by_layer.items()
        return {name: self.timing(groups, sum(len(group.calls) for group in groups)) for (name, _), groups in layers}

    @cached_property
    def by_layer(self) -> dict[LayerPass, list[CallGroup]]:
        """Groups by the layer's pass that they belong to, in order of the program."""
        groups: dict[LayerPass, list[CallGroup]] = {}
        for group in self.groups:
            groups.setdefault(group.layer_pass, []).append(group)
        return groups

    def timing(self, groups: Sequence[CallGroup], repeat: int = 1) -> Timing:
        """Of one of `repeat` equal runs of some groups together."""
        numbers = [number for group in groups for number in group.calls]
        unsettled = sum(group.seconds() for group in groups if not group.settled)
        ranks = [sum(group.seconds(rank) for group in groups) / repeat for rank in range(RANKS)]
        return Timing(
            samples=tuple(sum(times[number] for number in numbers) * 1e-9 / repeat for times in self.passes),
            undisturbed=tuple(ranks),
            resolved=unsettled <= UNSETTLED * ranks[0] * repeat,
        )


def measure_in_place(
    program: Program,
    *,
    budget: float = 8.0,
    passes: int | None = None,
    settled: float = 1.0,
    stretches: int = AGREEING,
    threads: int = 1,
    sentinel: Sentinel | None = None,
    progress: Callable[[float], None] | None = None,
) -> RunInPlace:
    """Run a program over and over until its calls are settled, or the budget [s] ends; `passes` times if that is given.

    The budget ends between two calls, but not before each was made once: the first pass warms up, and counts only for
    calls that were not made again. settled: the share of groups of calls that ends it. stretches: how many have to
    agree before it does, of a program that works on more than a core's caches hold. threads: how many BLAS may use; the
    CPU clock is that of one, and is not asked if there are more.

    Raises CostModelError if the memory is not there.
    """
    check_fits(program.layout.arena_bytes, "the measurement")
    far, tell = program.touched_bytes > RESIDENT_BYTES, progress or (lambda share: None)
    of_calls = grouped(program, stretches if far else 1)
    groups = tuple({id(group): group for group in of_calls}.values())
    whole: list[tuple[int, ...]] = []
    with at_rest(threads):
        sentinel = sentinel or Sentinel()
        began = sentinel.clock.now()
        ends = float("inf") if passes else began + 1e9 * budget
        dense = [op.dense for op in program]
        thunks = [*zip(sentinel.clock.bind(program), dense, strict=True)]
        first, own, _ = _timed_pass(thunks, sentinel, threads)
        reached, share, made, every = 0, 0.0, 0, 1
        since, best = began, sentinel.light.best
        while share < 1:
            walls, times, undisturbed = _timed_pass(thunks, sentinel, threads, ends)
            for number, (nanoseconds, rests) in enumerate(zip(times, undisturbed, strict=True)):
                of_calls[number].add(number, [nanoseconds], rests)
            reached = max(reached, len(walls))
            if sentinel.light.best < BLIND * best:
                for group in groups:
                    group.forget()
                best = sentinel.light.best
            if ended := sentinel.clock.now() - since >= STRETCH:
                for group in groups:
                    group.end_stretch()
                since = sentinel.clock.now()
            if len(walls) == len(of_calls):
                if made % every == 0:
                    whole.append(tuple(walls))
                if len(whole) > KEPT:
                    every *= 2
                    del whole[1::2]
                made += 1
            spent = (sentinel.clock.now() - began) * 1e-9
            share = made / passes if passes else spent / max(budget, spent, 1e-9)
            if not passes and made >= LEAST and (ended or (not far and since == began)):
                known = sum(group.settled for group in groups)
                share = 1.0 if known >= settled * len(groups) else share
            tell(min(share, 1.0))
        for number in range(reached, len(of_calls)):
            of_calls[number].add(number, [own[number]], False)
        for group in groups:
            if not group.stretches:
                group.end_stretch(1)
    return RunInPlace(program, groups, tuple(whole) or (tuple(first),))


def _timed_pass(
    thunks: Sequence[tuple[Thunk, bool]], sentinel: Sentinel, threads: int, ends: float = float("inf")
) -> tuple[list[int], list[int], list[bool]]:
    """One pass, call by call and whether each is dense arithmetic, up to a moment [ns]: its time as it came, its time
    without what others had the core for and at the core's usual clock, as far as that is known [ns], and whether it is
    undisturbed."""
    clock = sentinel.clock
    times: list[Elapsed] = []
    pieces: list[tuple[Pulse, int]] = []  # what the sentinel read, and how many calls were made before
    since = clock.now()
    for thunk, dense in thunks:
        now = clock.now()
        if now > ends:
            break
        if now - since > EVERY or not pieces:
            pieces.append((sentinel.read(), len(times)))
            since = clock.now()
        times.append(clock.make(thunk))
        if dense:
            sentinel.after_dense(times[-1].wall)
    pieces.append((sentinel.read(), len(times)))
    added = clock.reading()
    walls = [max(wall - added, 1) for wall, _ in times]
    agree = [threads > 1 or clocks_agree(wall, cpu) for wall, cpu in times]
    own = [
        wall if same or cpu <= 0 else min(wall, cpu) for wall, (_, cpu), same in zip(walls, times, agree, strict=True)
    ]
    undisturbed, usual = [False] * len(own), sentinel.usual
    for (before, start), (after, end) in pairwise(pieces):
        if sentinel.clocked_by(before) or sentinel.clocked_by(after):
            pace = sentinel.pace((before, after), usual)
            own[start:end] = [round(time / pace) for time in own[start:end]]
        spent = sum(walls[start:end])
        sentinel.watch(before, after, spent)
        if sentinel.enough(spent)(map(sentinel.rests, (before, after))):
            undisturbed[start:end] = agree[start:end]
    return walls, own, undisturbed
