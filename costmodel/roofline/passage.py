"""A whole program as it runs, call by call: each call finds in the caches what the program before it left there.

Every call is timed by itself, pass after pass, by two clocks. The core's sentinel runs between calls, about once every
`EVERY`: a call's time is undisturbed if the sentinel rests before and after, and the clocks agree. Calls that are
alike, as those of equal blocks, are taken together: the time of one is the median over them of the fastest undisturbed
time of each. Added up these make the program's time undisturbed; the median of whole passes is its time as it came.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, pairwise
from statistics import median
from typing import NamedTuple

from costmodel.roofline.host import Sentinel
from costmodel.roofline.memory import RESIDENT_BYTES, check_fits
from costmodel.roofline.program import Phase, Program, Thunk
from costmodel.roofline.timing import AGREE, GRAIN, LIE, Timing, at_rest

EVERY = 300_000
"""Time between two readings of the sentinel, if no call is longer [ns]."""
ENOUGH = 5
"""Undisturbed samples that settle a group of calls that are alike."""
KEPT = 5
"""Of the undisturbed samples, how many of the fastest are told apart."""
LEAST, MOST = 3, 2_000
"""Passes before a program is settled, and at most."""
LEAST_SECONDS = 0.5
"""A program that works on more than a core's caches hold is not settled sooner: what others do to memory outlasts a
pass of a short one, however many samples agree [s]."""
UNSETTLED = 0.1
"""A part of a program is resolved if no more of its time than this is of calls that are not."""
TRIES = 50

Part = tuple[str, Phase]
"""A layer's name without the numbers of its rounds, and which pass of it."""


class Likeness(NamedTuple):
    """What calls have in common that are taken together: the layer, its pass, and which of its calls."""

    layer: str
    phase: Phase
    place: int

    @property
    def part(self) -> Part:
        """The part of the program that it belongs to."""
        return self.layer, self.phase


def alike(program: Program) -> list[Likeness]:
    """The likeness of each call of a network."""
    seen: dict[Hashable, int] = {}
    found = []
    for op in program:
        own = op.layer, op.phase
        seen[own] = seen.get(own, -1) + 1
        found.append(Likeness(op.layer.partition("[")[0], op.phase, seen[own]))
    return found


@dataclass
class Group:
    """Calls that are alike: their numbers, and the fastest undisturbed times of each [ns]."""

    calls: list[int] = field(default_factory=list)
    fastest: dict[int, list[int]] = field(default_factory=dict)
    any: dict[int, list[int]] = field(default_factory=dict)

    def add(self, number: int, took: int, undisturbed: bool) -> None:
        """A sample of one of the calls."""
        for known in (self.any, self.fastest) if undisturbed else (self.any,):
            known[number] = sorted([*known.get(number, ()), took])[:KEPT]

    def joined(self, other: Group) -> Group:
        """With the samples of the same calls at another time."""
        both = [
            {number: sorted([*a.get(number, ()), *b.get(number, ())])[:KEPT] for number in {**a, **b}}
            for a, b in ((self.fastest, other.fastest), (self.any, other.any))
        ]
        return Group(self.calls, *both)

    def time(self, rank: int) -> float:
        """Of one call, from the fastest sample of each but so many; of disturbed ones if there are no others [ns]."""
        if self.fastest:
            return median(times[min(rank, len(times) - 1)] for times in self.fastest.values())
        believed = [[took for took in times if took > LIE * median(times)] for times in self.any.values()]
        return median(times[min(rank, len(times) - 1)] for times in believed)

    @property
    def settled(self) -> bool:
        """Whether there are enough undisturbed samples, and the fastest of a call agree with the next."""
        times = self.fastest.values()
        return sum(map(len, times)) >= ENOUGH and self.time(1) <= (1 + 2 * AGREE) * self.time(0)


@dataclass(frozen=True)
class Passage:
    """A program as it ran. groups: of calls that are alike. whole, by_part: time of each pass, of parts in it [s]."""

    program: Program
    groups: dict[Likeness, Group]
    whole: tuple[float, ...]
    by_part: dict[Part, tuple[float, ...]]

    def joined(self, other: Passage) -> Passage:
        """With the samples of the same program at another time, since what others do to memory may last for seconds."""
        groups = {likeness: group.joined(other.groups[likeness]) for likeness, group in self.groups.items()}
        by_part = {part: (*times, *other.by_part[part]) for part, times in self.by_part.items()}
        return Passage(self.program, groups, (*self.whole, *other.whole), by_part)

    @property
    def seconds(self) -> float:
        """Undisturbed, all calls added up [s]."""
        return sum(len(group.calls) * group.time(0) for group in self.groups.values()) * 1e-9

    @property
    def as_it_came(self) -> float:
        """The median of whole passes [s]."""
        return median(self.whole)

    @cached_property
    def resolved(self) -> float:
        """The share of its time that is of settled calls."""
        known = sum(len(g.calls) * g.time(0) for g in self.groups.values() if g.settled)
        return known * 1e-9 / self.seconds if self.seconds else 1.0

    def call_seconds(self) -> list[float]:
        """Undisturbed time of each call [s]."""
        found = {number: group.time(0) * 1e-9 for group in self.groups.values() for number in group.calls}
        return [found[number] for number in range(len(self.program))]

    @cached_property
    def parts(self) -> dict[Part, list[Group]]:
        """Groups by the part of the program that they belong to."""
        found: dict[Part, list[Group]] = {}
        for likeness, group in self.groups.items():
            found.setdefault(likeness.part, []).append(group)
        return found

    def timing(self, parts: Sequence[Part], repeat: int = 1) -> Timing:
        """Of one of `repeat` equal runs of some parts together."""
        groups = [group for part in parts for group in self.parts[part]]

        def spent(rank: int) -> float:
            return sum(len(group.calls) * group.time(rank) for group in groups)

        open_time = sum(len(group.calls) * group.time(0) for group in groups if not group.settled)
        came = zip(*(self.by_part[part] for part in parts), strict=True)
        return Timing(
            samples=tuple(sum(times) / repeat for times in came),
            undisturbed=tuple(spent(rank) * 1e-9 / repeat for rank in range(KEPT)),
            resolved=open_time <= UNSETTLED * spent(0),
        )


def expected_seconds(one_pass: float, budget: float) -> float:
    """How long `measure_in_place` takes at most, if one pass takes so long [s]."""
    return max(one_pass, min(budget, one_pass * (MOST + 1)))


def measure_in_place(
    program: Program,
    *,
    budget: float = 8.0,
    passes: int | None = None,
    threads: int = 1,
    sentinel: Sentinel | None = None,
    progress: Callable[[float], None] | None = None,
) -> Passage:
    """Run a program over and over until its calls are settled, or the budget [s] ends; `passes` times if that is given.

    The budget ends between two calls, but not before each was made once: the first pass warms up, and counts only for
    calls that were not made again. threads: how many BLAS may use; the CPU clock is that of one, and is not asked if
    there are more.

    Raises CostModelError if the memory is not there.
    """
    check_fits(program.layout.arena_bytes, "the measurement")
    likenesses = alike(program)
    groups: dict[Likeness, Group] = {}
    for number, likeness in enumerate(likenesses):
        groups.setdefault(likeness, Group()).calls.append(number)
    runs: list[list[int]] = []
    spread = LEAST_SECONDS if program.touched_bytes > RESIDENT_BYTES else 0.0
    with at_rest(threads):
        sentinel = sentinel or Sentinel()
        began = time.perf_counter_ns()
        ends = float("inf") if passes else began + 1e9 * budget
        thunks = program.bind()
        first, own, _ = _passed(thunks, sentinel, threads)
        seen = 0
        while True:
            walls, times, undisturbed = _passed(thunks, sentinel, threads, ends)
            for likeness, number, took, rests in zip(likenesses, count(), times, undisturbed, strict=False):
                groups[likeness].add(number, took, rests)
            seen = max(seen, len(walls))
            if len(walls) == len(likenesses):
                runs.append(walls)
            spent = (time.perf_counter_ns() - began) * 1e-9
            share = max(spent / budget, len(runs) / (passes or MOST))
            if progress is not None:
                progress(min(share, 1.0))
            if len(runs) >= passes if passes else share >= 1 or _settled(len(runs), spent >= spread, groups):
                break
        for number in range(seen, len(likenesses)):
            groups[likenesses[number]].add(number, own[number], False)
    if progress is not None:
        progress(1.0)
    whole, by_part = _by_part(runs or [first], likenesses)
    return Passage(program, groups, whole, by_part)


def _settled(done: int, spread: bool, groups: dict[Likeness, Group]) -> bool:
    return done >= LEAST and spread and all(group.settled for group in groups.values())


def _by_part(
    runs: Sequence[Sequence[int]], likenesses: Sequence[Likeness]
) -> tuple[tuple[float, ...], dict[Part, tuple[float, ...]]]:
    """Time of each whole pass, and of each part in it [s]."""
    by_part: dict[Part, list[float]] = {likeness.part: [0.0] * len(runs) for likeness in likenesses}
    for place, walls in enumerate(runs):
        for likeness, took in zip(likenesses, walls, strict=True):
            by_part[likeness.part][place] += took * 1e-9
    return tuple(sum(walls) * 1e-9 for walls in runs), {part: tuple(times) for part, times in by_part.items()}


def _passed(
    thunks: Sequence[Thunk], sentinel: Sentinel, threads: int, ends: float = float("inf")
) -> tuple[list[int], list[int], list[bool]]:
    """One pass, call by call, up to a moment [ns]: its time as it came, its time without what others had the core for
    [ns], and whether it is undisturbed."""
    clock, processor = time.perf_counter_ns, time.thread_time_ns
    times: list[tuple[int, int]] = []
    pieces: list[tuple[int, int]] = []  # what the sentinel read, and how many calls were made before
    since = clock()
    for function, arguments, options in thunks:
        now = clock()
        if now > ends:
            break
        if now - since > EVERY or not pieces:
            pieces.append((sentinel.read(), len(times)))
            since = clock()
        cpu = processor()
        wall = clock()
        function(*arguments, **options)
        wall = clock() - wall
        times.append((wall, processor() - cpu))
    pieces.append((sentinel.read(), len(times)))
    beside = min(-clock() + clock() for _ in range(TRIES))  # what reading the clock adds to a call
    walls = [max(wall - beside, 1) for wall, _ in times]
    agree = [threads > 1 or abs(wall - cpu) <= AGREE * wall + GRAIN for wall, cpu in times]
    own = [
        wall if same or cpu <= 0 else min(wall, cpu) for wall, (_, cpu), same in zip(walls, times, agree, strict=True)
    ]
    rests: list[bool] = []
    for (before, start), (after, end) in pairwise(pieces):
        rests += [sentinel.rests(before) and sentinel.rests(after)] * (end - start)
    return walls, own, [rest and same for rest, same in zip(rests, agree, strict=True)]
