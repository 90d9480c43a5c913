"""A whole program as it runs, call by call: each call finds in the caches what the program before it left there.

Every call is timed by itself, pass after pass, by two clocks. The core's sentinel runs between calls, about once every
`EVERY`: a call's time is undisturbed if the sentinel rests before and after (or one of them, where moments of rest
hardly ever last for what was done between), and the clocks agree. Calls that are alike, as those of equal blocks, are
taken together: the time of one is the median over them of the lower quartile of the undisturbed times of each; where
none is undisturbed, the fastest of all. Added up these make the program's time undisturbed; the median of whole passes
is its time as it came.
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
from costmodel.roofline.timing import AGREE, LIE, Timing, at_rest, by_chance, clocks_agree, quartile

EVERY = 300_000
"""Time between two readings of the sentinel, if no call is longer [ns]."""
ENOUGH = 4
"""Undisturbed samples that settle a group of calls."""
TICK = 50
"""What reading the clock tells no better, of calls that take hardly longer [ns]."""
RANKS = 5
"""How many times of its calls a layer's timing has, from the one that counts on."""
LEAST, MOST = 3, 2_000
"""Passes before a program is settled, and at most."""
LEAST_SECONDS = 0.5
"""A program that works on more than a core's caches hold is not settled sooner: what others do to memory outlasts a
pass of a short one, however many samples agree [s]."""
UNSETTLED = 0.1
"""A layer's pass is resolved if no more of its time than this is of calls that are not settled."""
LayerPass = tuple[str, PassName]
"""A layer's name without the numbers of its rounds, and which pass of it."""


@dataclass
class CallGroup:
    """Calls of a program that are taken together: those of one place in one pass of a layer, round after round.

    calls: their numbers in the program. samples, undisturbed: the times of each, the fastest first [ns], in all moments
    and in undisturbed ones.
    """

    layer_pass: LayerPass
    calls: list[int] = field(default_factory=list)
    samples: dict[int, list[int]] = field(default_factory=dict)
    undisturbed: dict[int, list[int]] = field(default_factory=dict)

    def add(self, number: int, nanoseconds: Iterable[int], undisturbed: bool) -> None:
        """Samples of one of the calls."""
        for known in (self.samples, self.undisturbed) if undisturbed else (self.samples,):
            times = known.setdefault(number, [])
            for each in nanoseconds:
                insort(times, each)

    def joined(self, other: CallGroup) -> CallGroup:
        """With the samples of the same calls at another time."""
        both = CallGroup(self.layer_pass, self.calls)
        for group in (self, other):
            for number, times in group.samples.items():
                both.add(number, times, False)
            for number, times in group.undisturbed.items():
                both.undisturbed[number] = sorted([*both.undisturbed.get(number, ()), *times])
        return both

    def time(self, rank: int) -> float:
        """Of one call, from the sample of each so many ranks beyond the one that counts; where none is undisturbed from
        the fastest of all, since calls are alike, and what disturbs them only adds [ns]."""
        if self.undisturbed:
            return median(quartile(each, rank) for each in self.undisturbed.values())
        times = self.samples.values()
        fastest = sorted(each for samples in times for each in samples if each > LIE * median(samples))
        return fastest[min(rank, len(fastest) - 1)]

    def seconds(self, rank: int = 0) -> float:
        """Of all its calls [s]."""
        return len(self.calls) * self.time(rank) * 1e-9

    @property
    def settled(self) -> bool:
        """Whether there are enough undisturbed samples, and those agree that may be the quartile of a call."""
        if sum(map(len, self.undisturbed.values())) < ENOUGH:
            return False
        least, most = map(median, zip(*(by_chance(each, 1) for each in self.undisturbed.values()), strict=True))
        return most - least <= max(2 * AGREE * least, TICK)


def grouped(program: Program) -> list[CallGroup]:
    """The group of each call of a network."""
    places: Counter[LayerPass] = Counter()
    groups: dict[tuple[LayerPass, int], CallGroup] = {}
    of_calls = []
    for number, op in enumerate(program):
        layer_pass = op.layer.partition("[")[0], op.phase
        key = layer_pass, places[op.layer, op.phase]
        places[op.layer, op.phase] += 1
        of_calls.append(groups.setdefault(key, CallGroup(layer_pass)))
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


def expected_seconds(one_pass: float, budget: float) -> float:
    """How long `measure_in_place` takes at most, if one pass takes so long [s]."""
    return max(one_pass, min(budget, one_pass * (MOST + 1)))


def measure_in_place(
    program: Program,
    *,
    budget: float = 8.0,
    passes: int | None = None,
    settled: float = 1.0,
    threads: int = 1,
    sentinel: Sentinel | None = None,
    progress: Callable[[float], None] | None = None,
) -> RunInPlace:
    """Run a program over and over until its calls are settled, or the budget [s] ends; `passes` times if that is given.

    The budget ends between two calls, but not before each was made once: the first pass warms up, and counts only for
    calls that were not made again. settled: the share of groups of calls that ends it. threads: how many BLAS may use;
    the CPU clock is that of one, and is not asked if there are more.

    Raises CostModelError if the memory is not there.
    """
    check_fits(program.layout.arena_bytes, "the measurement")
    of_calls, tell = grouped(program), progress or (lambda share: None)
    groups = tuple({id(group): group for group in of_calls}.values())
    whole: list[tuple[int, ...]] = []
    spread = LEAST_SECONDS if program.touched_bytes > RESIDENT_BYTES else 0.0
    with at_rest(threads):
        sentinel = sentinel or Sentinel()
        began = sentinel.clock.now()
        ends = float("inf") if passes else began + 1e9 * budget
        dense = [op.dense for op in program]
        thunks = [*zip(sentinel.clock.bind(program), dense, strict=True)]
        first, own, _ = _timed_pass(thunks, sentinel, threads)
        reached, share = 0, 0.0
        while share < 1:
            walls, times, undisturbed = _timed_pass(thunks, sentinel, threads, ends)
            for number, (nanoseconds, rests) in enumerate(zip(times, undisturbed, strict=True)):
                of_calls[number].add(number, [nanoseconds], rests)
            reached = max(reached, len(walls))
            if len(walls) == len(of_calls):
                whole.append(tuple(walls))
            spent = (sentinel.clock.now() - began) * 1e-9
            share = len(whole) / passes if passes else max(spent / max(budget, spent, 1e-9), len(whole) / MOST)
            if (
                not passes
                and len(whole) >= LEAST
                and spent >= spread
                and sum(group.settled for group in groups) >= settled * len(groups)
            ):
                share = 1.0
            tell(min(share, 1.0))
        for number in range(reached, len(of_calls)):
            of_calls[number].add(number, [own[number]], False)
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
