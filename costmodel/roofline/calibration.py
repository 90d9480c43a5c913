"""Calibration of this host: the time of every probe, kept in one JSON file for each machine.

Probes are single calls; no layer or network is among them. One is unresolved if the host gave it too few undisturbed
moments before the budget ended. A calibration with too many of those is used, and not kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import count, takewhile
from operator import attrgetter
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from costmodel.analysis.predict import predict
from costmodel.display.rooflines import Ceiling
from costmodel.display.units import show_bytes
from costmodel.documents.arguments import fits
from costmodel.documents.stored import first_of
from costmodel.errors import CostModelError, SettingError, shown
from costmodel.roofline.clock import Clock, Gears, Sentinel
from costmodel.roofline.host import Host, this_machine
from costmodel.roofline.inplace import measure_in_place
from costmodel.roofline.memory import ITEM_BYTES, RESIDENT_BYTES, NoMemory
from costmodel.roofline.placed import BETWEEN, in_place, left_alone
from costmodel.roofline.probes import EMPTY, FIRST_BYTES, GATHERED_ROWS, WorkingSets, probes, streaming, working_sets
from costmodel.roofline.program import NumpyCall, Program
from costmodel.roofline.rates import Rates
from costmodel.roofline.timing import Protocol, Timing, conditions, runner, time_calls, together

FORMAT = 22
"""Version of the stored file."""
STALE = timedelta(days=14)
"""Calibrations older than this are used with a warning."""
MANY_UNRESOLVED = 0.05
"""From this share on it is used with a warning."""
AT_REST, BUDGET = {False: 20.0, True: 60.0}, {False: 45.0, True: 180.0}
"""About how long a calibration takes on a host at rest, and at most where there is none, quick and thorough [s]."""
PLACED_SHARES = 0.02, 0.07, 0.05
"""Of the budget, what calls in place may take, in each program."""
LEAST_SHARE = 0.25
"""Of the budget, what single calls may take at least, however long it took to find working sets and to touch memory."""
LEAST_BUDGET = 10.0
"""Less does not do for one sample of each probe [s]."""
LONGEST = 3600.0
"""No budget is longer [s]."""
SHOWN = ("add", "multiply", "divide", "maximum", "greater", "sqrt", "exp", "tanh", "copyto")
"""Functions whose throughput is printed."""
AT_HAND = ("gpt2-small", "vgg16")
"""Ready models with the largest footprints that are run here as they are."""
FREE_SHARE, USUAL_BYTES = 0.2, 1 << 30
"""Of the memory that is free, the largest working set, of which there are two in memory; that where the system does not
say [bytes]."""
GLANCE, GLANCES, FEWEST = 2_000_000, 2, 3
"""How long a call is made over and over to find working sets [ns], and how often at least; the fewest samples that
resolve a probe."""
NEEDED, MOST_TURNS = 0.05, 16
"""How far the fastest samples of a probe may be from each other, since no prediction hangs on a single probe: products
are fitted by hundreds, and curves never fall; and turns of a probe, after which more would not change that."""
PASSES_NOW = 8
"""Of the arrays that tell what others bring at a moment."""
SETTLED = 0.75
"""Share of the calls in place that ends measuring them: of the others, tiny ones, medians over many count."""
LONG_SECONDS, NARROW = 0.002, 0.1
"""Time from which a probe is resolved if its fastest samples are so near to each other, whatever the sentinel reads."""

Progress = Callable[[float], None]


class Calibration(BaseModel):
    """What was measured of one machine: how long each probe took [s], by its name, at working sets found by measuring.

    unresolved: the share of probes that had too few undisturbed moments. doubt: how far their intervals reach,
    as a share of their time and no more than that, on average over all probes. load, steal: how busy the machine was.
    clock: what the sentinel's work takes where the core is clocked as times count.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", ignored_types=(cached_property,))

    format: int = FORMAT
    machine: Host
    sets: WorkingSets
    created: str
    thorough: bool
    took_seconds: float
    unresolved: float
    doubt: float
    load: float
    steal: float
    clock: Gears
    seconds: dict[str, float]

    @field_validator("clock")
    @classmethod
    def _are_long(cls, clock: Gears) -> Gears:
        for each in (clock.light, clock.dense):
            if not (math.isfinite(each) and 0 < each < 1e9):
                raise ValueError(f"{each} ns is no time of a sentinel")
        return clock

    @field_validator("seconds")
    @classmethod
    def _are_times(cls, seconds: dict[str, float]) -> dict[str, float]:
        wrong = [name for name, value in seconds.items() if not (math.isfinite(value) and 0 < value < 1e4)]
        if wrong:
            raise ValueError(f"{wrong[0]!r} took {seconds[wrong[0]]} s, which is no time")
        return seconds

    @field_validator("created")
    @classmethod
    def _is_a_date(cls, created: str) -> str:
        if datetime.fromisoformat(created).tzinfo is None:
            raise ValueError(f"{created!r} has no time zone")
        return created

    @cached_property
    def rates(self) -> Rates:
        """Ceilings, curves and fits through the probes."""
        return Rates(self.seconds, self.sets, self.clock.slower, self.machine.threads)

    @cached_property
    def host(self) -> Host:
        """The machine with the caches that are ours: of one that cores share what was found by measuring."""
        *private, last = self.machine.caches or (("", 0),)
        shared = self.rates.shared_bytes(private[-1][1]) if len(private) > 1 else 0  # a second cache is a core's own
        if not shared:
            return self.machine
        ours = min(last[1], max(shared, private[-1][1]))
        return replace(self.machine, caches=(*private, (last[0], ours)))

    @property
    def age(self) -> timedelta:
        """Time since it was measured."""
        return datetime.now(UTC) - datetime.fromisoformat(self.created)

    @property
    def stale(self) -> bool:
        """Whether it is old enough for a warning."""
        return self.age > STALE

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt it."""
        reasons = []
        if self.stale:
            reasons.append(f"this calibration is {self.age.days} days old: costmodel roofline calibrate renews it")
        if self.unresolved > MANY_UNRESOLVED:
            reasons.append(
                f"{self.unresolved:.0%} of the probes are unresolved, for lack of undisturbed moments, so that"
                f" predictions may be off by {self.doubt:.0%} more: calibrate again when the machine is at rest"
            )
        if self.machine.unknown:
            reasons.append(f"the system does not say: {', '.join(self.machine.unknown)}")
        return reasons

    def __str__(self) -> str:
        rates, resolved = self.rates, f"{1 - self.unresolved:.1%} of them resolved"
        stream = (f"{show_bytes(size)} {rates.bandwidth(size) / 1e9:.1f}" for size in (FIRST_BYTES, *self.sets.far))
        functions = (f"{name} {1e-9 / rates.rate(name, 'float32', False):.2f}" for name in SHOWN)
        calls = (f"{name} {1e6 * rates.call(name, 'float32'):.2f}" for name in ("add", "add.reduce", "matmul"))
        return "\n".join(
            [
                str(self.machine),
                *(f"warning: {warning}" for warning in self.warnings),
                *(f"products {dt}: {rates.peak(dt) / 1e9:.1f} GFLOP/s at most" for dt in ("float32", "float64")),
                f"bandwidth by working set [GB/s]: {', '.join(stream)}",
                f"functions [billion elements/s]: {', '.join(functions)}",
                f"calls [µs]: {', '.join(calls)}",
                f"{len(self.seconds):,} probes in {self.took_seconds:.1f} s, {resolved}",
            ]
        )

    def joined(self, other: Calibration) -> Calibration:
        """Both measurements of each probe together, at the same working sets: made before and after what is measured
        between."""
        both = {name: together((value, other.seconds.get(name, value))) for name, value in self.seconds.items()}
        fields = {name: getattr(self, name) for name in type(self).model_fields}  # a copy would keep the cached rates
        return Calibration(**{**fields, "seconds": both})


def measure_probes(
    thorough: bool = False,
    threads: int = 1,
    progress: Progress | None = None,
    budget: float | None = None,
    sentinel: Sentinel | None = None,
    sets: WorkingSets | None = None,
    footprint: int | None = None,
) -> Calibration:
    """Measure every probe on this machine, or on the one whose clock the sentinel has; nothing is stored.

    sets: working sets that are known; found by measuring unless given. footprint: of the largest program that is to be
    predicted [bytes]; of `AT_HAND` unless given. Raises CalibrationError if that gives no times.
    """
    sentinel, tell = sentinel or Sentinel(), progress or (lambda share: None)
    clock = sentinel.clock
    began = clock.now()
    reach = _reach(clock, footprint)
    sets = sets or working_sets(_streaming(clock, *reach), *reach)
    ops = dict(probes(sets, thorough))
    calls = [runner([thunk]) for thunk in clock.bind_each([*ops.values()], GATHERED_ROWS)] + [runner([])]
    far = [
        name.startswith(("curve", "windows", "loading")) and op.traffic_bytes > RESIDENT_BYTES
        for name, op in ops.items()
    ]
    seconds = BUDGET[thorough] if budget is None else budget
    protocol = Protocol(
        rounds=100 if thorough else MOST_TURNS,
        least_rounds=1,
        enough=8 if thorough else 4,
        sample_seconds=4e-5,
        item_seconds=2.0 if thorough else 0.25,
        agree=NEEDED,
        longer_enough=0 if thorough else FEWEST,
        longer_warm=0,
        budget=max((1 - sum(PLACED_SHARES)) * seconds - (clock.now() - began) * 1e-9, LEAST_SHARE * seconds),
        threads=threads,
    )
    timings = time_calls(
        calls,
        protocol,
        far=[*far, False],
        dense=[*(op.dense for op in ops.values()), False],
        sentinel=sentinel,
        progress=lambda share: tell(0.8 * share),  # calls in place are the rest
    )
    names = [*ops, EMPTY]
    del calls
    sentinel.fix()
    for number, (program, share) in enumerate(zip(in_place(sets.beyond), PLACED_SHARES, strict=True)):
        before = sum(PLACED_SHARES[:number])
        run = measure_in_place(
            program,
            settled=SETTLED,
            stretches=1,
            threads=threads,
            budget=share * seconds,
            sentinel=sentinel,
            progress=lambda done, before=before, share=share: tell(
                0.8 + 0.2 * (before + share * done) / sum(PLACED_SHARES)
            ),
        )
        calls_in_place = run.of_calls()
        timings += calls_in_place.values()
        names += calls_in_place
    judged = [timing for name, timing in zip(names, timings, strict=True) if not name.startswith(BETWEEN)]
    busy = conditions()
    try:
        return Calibration(
            machine=clock.machine(threads),
            sets=sets,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            thorough=thorough,
            took_seconds=(clock.now() - began) * 1e-9,
            unresolved=sum(not (timing.resolved or _narrow(timing)) for timing in judged) / len(judged),
            doubt=sum(min(timing.interval[1] / timing.seconds - 1, 1) for timing in judged if timing.seconds)
            / len(judged),
            load=busy["load"],
            steal=busy["steal"],
            clock=sentinel.usual,
            seconds={name: timing.seconds for name, timing in zip(names, timings, strict=True)},
        )
    except ValidationError as error:  # a machine so busy that a clock said nothing
        raise CalibrationError(
            f"measuring came to nothing ({first_of(error)}): calibrate again when the machine is at rest"
        ) from None


def measure_others(program: Program, sentinel: Sentinel, threads: int) -> Iterator[dict[str, float]]:
    """What arrays cost now that others may have evicted meanwhile, for `Others.traffic_at` [s]; nothing for a program
    that a core's own caches hold, or where memory is too scarce for more."""
    if program.touched_bytes > RESIDENT_BYTES:
        with suppress(NoMemory):
            run = measure_in_place(left_alone(), passes=PASSES_NOW, threads=threads, sentinel=sentinel)
            yield {layer: timing.seconds for layer, timing in run.of_calls().items()}


def _narrow(timing: Timing) -> bool:
    """Whether the fastest samples agree, of what is longer than a moment of rest and so hardly ever undisturbed."""
    fastest = sorted(timing.samples)
    return timing.seconds > LONG_SECONDS and len(fastest) >= FEWEST and fastest[FEWEST - 1] <= (1 + NARROW) * fastest[0]


def _reach(clock: Clock, footprint: int | None) -> tuple[int, int]:
    """Up to where the curve of memory goes at least, and at most where memory is free [bytes]."""
    free = clock.free_bytes()
    if footprint is None:
        footprint = max(int(predict(name, mode="inference").params) * ITEM_BYTES["float32"] for name in AT_HAND)
    most = USUAL_BYTES if free is None else int(FREE_SHARE * free)
    return min(2 * footprint, most), most


def _streaming(clock: Clock, least: int, most: int) -> Callable[[NumpyCall], float]:
    """The fastest of a few samples of a call that is made over and over, none of its first touch of memory [s].

    Those of up to `least` bytes that are doublings of each other share memory, since touching it first takes longest.
    """
    sizes = takewhile(lambda size: size <= min(2 * least, most), (FIRST_BYTES << step for step in count()))
    ops = {(op.name, op.traffic_bytes): op for op in map(streaming, sizes)}
    thunks = dict(zip(ops, clock.bind_each([*ops.values()], GATHERED_ROWS), strict=True))

    def seconds(op: NumpyCall) -> float:
        thunk = thunks.get((op.name, op.traffic_bytes)) or clock.bind_each([op], GATHERED_ROWS)[0]
        call, ends = runner([thunk]), clock.now() + GLANCE
        fastest, samples = clock.run(call).wall, 1
        while samples < GLANCES or clock.now() < ends:
            fastest, samples = min(fastest, clock.run(call).wall), samples + 1
        return max(fastest, 1) * 1e-9

    return seconds


def how_long(thorough: bool = False, budget: float | None = None) -> str:
    """What a calibration will take, in words, before it begins."""
    most = BUDGET[thorough] if budget is None else budget
    return f"about {min(AT_REST[thorough], most):.0f} s on a host at rest, and up to {most:.0f} s on one that is not"


class CalibrationError(CostModelError):
    """A stored calibration that cannot be used: damaged, of another version, or of another machine."""


class CalibrationWarning(UserWarning):
    """A calibration had to be made, is old, or is noisy."""


def check_asked(threads: int, budget: float | None) -> None:
    """Raise SettingError for a number of threads, or a budget, that no calibration can have."""
    if not fits(threads, int, 1, this_machine().cores):
        raise SettingError(f"threads {shown(threads)} is not from 1 to {this_machine().cores}, the cores there are")
    if budget is not None:
        check_budget(budget, LEAST_BUDGET)


def check_budget(budget: Any, least: float) -> None:
    """Raise SettingError for what is no time from `least` to `LONGEST` [s]."""
    if not fits(budget, float) or not least <= budget <= LONGEST:
        usual = max(60.0, 2 * least)
        raise SettingError(
            f"budget {shown(budget)} is not from {least:g} to {LONGEST:,.0f} seconds: use one such as {usual:g}"
        )


@contextmanager
def bar(progress: bool | Progress, name: str) -> Iterator[Progress | None]:
    """A callback for the share done: the function itself, a bar on stderr, or None."""
    if callable(progress):
        yield progress
    elif not progress:
        yield None
    else:
        from rich.console import Console
        from rich.progress import Progress as Bar

        with Bar(console=Console(stderr=True), transient=True) as display:
            task = display.add_task(name, total=1.0)
            yield lambda share: display.update(task, completed=share)


def ceilings_of(calibration: Calibration, dtype: str = "float32", functions: Sequence[str] = ()) -> tuple[Ceiling, ...]:
    """What bounds calculations in one type: products, each of the functions by the elements it computes in cache, and
    bandwidth from the nearest level to DRAM, without levels no faster than the next."""
    rates = calibration.rates
    levels = [Ceiling("DRAM", "memory", rates.memory_bandwidth)]
    capacities = [0, *(capacity for _, capacity in calibration.machine.caches)]
    for (level, capacity), smaller in reversed([*zip(calibration.machine.caches, capacities, strict=False)]):
        within = [size for size in calibration.sets.thinned if smaller < size <= 0.8 * capacity]
        fastest = max((_streamed(calibration, size) for size in within), default=0.0)
        if fastest >= 0.999 * levels[0].rate:
            levels.insert(0, Ceiling(level, "memory", fastest))
    computed = (Ceiling(name, "compute", 1 / rates.rate(name, dtype, False)) for name in functions)
    own = sorted(computed, key=attrgetter("rate"))
    return (Ceiling(f"matmul {dtype}", "compute", rates.peak(dtype)), *reversed(own), *levels)


def _streamed(calibration: Calibration, size: int) -> float:
    """Bandwidth of an addition over a working set, without the overhead of its call [bytes/s]."""
    rates = calibration.rates
    whole = rates.seconds[f"curve add {size} float32"]
    streaming = max(whole - rates.call("add", "float32"), 0.05 * whole)
    return rates.bandwidth(size) * whole / streaming
