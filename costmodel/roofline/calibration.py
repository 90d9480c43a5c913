"""Calibrating this host: measuring the probes, and what they say in short."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from time import perf_counter

from pydantic import BaseModel, ConfigDict, field_validator

from costmodel.display.units import show_bytes
from costmodel.roofline.arena import Workbench
from costmodel.roofline.machine import Machine, this_machine
from costmodel.roofline.measurement import measure, runner
from costmodel.roofline.probes import CURVE_BYTES, GATHERED_ROWS, LARGEST_BYTES, probes
from costmodel.roofline.rates import Rates
from costmodel.roofline.surrogates import surrogates
from costmodel.roofline.timing import Protocol, Timing, conditions, time_calls

FORMAT = 3
"""Of the file; another number is another version's."""
STALE = timedelta(days=14)
"""Older calibrations are used, but said to be old."""
SHOWN = ("add", "multiply", "divide", "maximum", "greater", "sqrt", "exp", "tanh", "copyto")
"""Functions whose throughput is printed."""
EMPTY = "empty"
"""The probe that calls nothing."""

Progress = Callable[[float], None]


class Calibration(BaseModel):
    """What was measured of one machine: how long each probe took [s], by its name.

    noisy: the share of probes whose samples are doubtful. load, steal: how busy the machine was.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", ignored_types=(cached_property,))

    format: int = FORMAT
    machine: Machine
    created: str
    thorough: bool
    took_seconds: float
    noisy: float
    load: float
    steal: float
    seconds: dict[str, float]

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
        return Rates(self.seconds)

    @property
    def age(self) -> timedelta:
        """Time since it was measured."""
        return datetime.now(UTC) - datetime.fromisoformat(self.created)

    @property
    def stale(self) -> bool:
        """Whether it is old enough to say so."""
        return self.age > STALE

    @property
    def warnings(self) -> list[str]:
        """What to know before trusting it."""
        found = []
        if self.stale:
            found.append(f"this calibration is {self.age.days} days old: costmodel roofline calibrate renews it")
        if self.noisy > 0.1:
            found.append(f"{self.noisy:.0%} of the probes are noisy: calibrate again when the machine is at rest")
        if self.machine.unknown:
            found.append(f"the system does not say: {', '.join(self.machine.unknown)}")
        return found

    def __str__(self) -> str:
        rates = self.rates
        lines = [f"{self.machine}", *(f"warning: {warning}" for warning in self.warnings)]
        for dtype in ("float32", "float64"):
            lines.append(f"products {dtype}: {rates.peak(dtype) / 1e9:.1f} GFLOP/s at most")
        stream = ", ".join(f"{show_bytes(size)} {rates.bandwidth(size) / 1e9:.1f}" for size in CURVE_BYTES[2::3])
        lines.append(f"bandwidth by working set [GB/s]: {stream}")
        functions = ", ".join(f"{name} {1e-9 / rates.rate(name, 'float32', False):.2f}" for name in SHOWN)
        lines.append(f"functions [billion elements/s]: {functions}")
        calls = ", ".join(f"{name} {1e6 * rates.call(name, 'float32'):.2f}" for name in ("add", "add.reduce", "matmul"))
        lines.append(f"calls [µs]: {calls}")
        lines.append(f"{len(self.seconds):,} probes in {self.took_seconds:.1f} s")
        return "\n".join(lines)

    def joined(self, other: Calibration) -> Calibration:
        """The faster of two measurements of each probe, as before and after what is measured between."""
        faster = {name: min(value, other.seconds.get(name, value)) for name, value in self.seconds.items()}
        return self.model_copy(update={"seconds": faster})


def measure_probes(thorough: bool = False, threads: int = 1, progress: Progress | None = None) -> Calibration:
    """Measure every probe on this machine; nothing is stored."""
    began = perf_counter()
    bench = Workbench(LARGEST_BYTES, GATHERED_ROWS)
    chosen = list(probes(thorough))
    calls = [runner([bench.bind(probe.op)]) for probe in chosen] + [runner([])]
    protocol = Protocol(
        rounds=10 if thorough else 5,
        least_rounds=3 if thorough else 2,
        sample_seconds=1e-4 if thorough else 5e-5,
        item_seconds=0.07 if thorough else 0.015,
        threads=threads,
    )
    tell = progress or (lambda share: None)
    timings = time_calls(calls, protocol, progress=lambda share: tell(0.8 * share))
    names = [*(probe.name for probe in chosen), EMPTY]
    del calls, bench
    whole = surrogates()
    timings += measure(
        list(whole.values()), protocol=replace(protocol, item_seconds=0.1, warm_passes=3), statistic="median"
    )
    names += whole
    tell(1.0)
    busy = conditions()
    return Calibration(
        machine=this_machine(threads),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        thorough=thorough,
        took_seconds=perf_counter() - began,
        noisy=sum(_doubtful(timing) for timing in timings) / len(timings),
        load=busy["load"],
        steal=busy["steal"],
        seconds={name: timing.seconds for name, timing in zip(names, timings, strict=True)},
    )


def _doubtful(timing: Timing) -> bool:
    """By its quartiles: an interval of the minimum says little of one probe."""
    return timing.spread > 0.25 or timing.wall_ratio > 1.5
