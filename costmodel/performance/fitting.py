"""Constants of one machine from measured steps: one number if one step was measured, more if there are more."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import islice
from math import exp, log
from typing import Any, ClassVar

import numpy as np

from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table
from costmodel.display.units import show_change, show_seconds
from costmodel.documents.arguments import Positive, fits, typed
from costmodel.errors import SettingError, shown
from costmodel.hardware.cluster import Cluster, ClusterLike, cluster_name, load_cluster
from costmodel.hardware.machine import Machine
from costmodel.performance.calibration import Calibration, MeasuredStep, measured_step
from costmodel.performance.communication import (
    CollectiveModel,
    MeasuredCollective,
    collective_model,
    factor_name,
    measured_collective,
)
from costmodel.performance.constants import ATTENTION_SHARES, UNITS, Constants, constant, typical
from costmodel.performance.laws import Numbers
from costmodel.performance.time import Time, time_on

FITTED = (
    "conditions",
    "bandwidth_share",
    "product_share",
    "vector_share",
    "convolution_share",
    *ATTENTION_SHARES.values(),
    "eager_seconds",
    "megatron_seconds",
    "compiled_seconds",
)
"""Constants that measured steps can tell apart; those that do nothing to any of them are left alone."""
FITTED_LINKS = ("link_share", "host_share", "network_share")
"""The same of links, which steps of several devices tell where no collective was measured by itself."""
MOST_ROWS = 10_000
"""Measured steps that are read."""
FEW = 3
"""From fewer rows than this a single number is taken: how much longer all kernels take."""


FACTORS = "links: time of bytes in collectives over what is typical, by how many devices take part"
"""What the factors of a calibration are, as a note."""


class MachineFit(Answer):
    """Abstract: constants of a machine that measurements gave, and how well each is predicted before and after."""

    calibration: Calibration
    OF: ClassVar[str]
    """What was measured: "step" or "kernel"."""

    @property
    @abstractmethod
    def counts(self) -> dict[str, int]:
        """How many there are of each that was measured."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """A row for each measurement: what was measured as text, and seconds as measured, before and after."""

    @typed
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the calibration to a file that `Prediction.on` takes, unless it has `stops`. Raises CostModelError."""
        if self.stops:
            raise SettingError(f"this calibration is not written: {self.stops[0]}")
        self.calibration.save(path)

    def to_dict(self) -> dict[str, Any]:
        """Plain data [s]."""
        return {"calibration": self.calibration.model_dump(mode="json"), f"{self.OF}s": self.rows()}

    @property
    def question(self) -> str:
        """What constants are of, and from how many measurements."""
        counts = [f"{n:,} measured {what}{'s' * (n > 1)}" for what, n in self.counts.items() if n]
        return f"constants of {self.calibration.machine} from {' and '.join(counts)}"

    def tables(self, constants: tuple[str, str], measurements: str, off: Callable[[float, float], str]) -> list[Table]:
        """Constants and measurements, with these headings; off: shows a predicted time beside the measured one."""
        machine = load_cluster(self.calibration.machine).machine
        values = [
            (name, f"{value:.3g}", f"{constant(name, machine).typical:.3g}")
            for name, value in self.calibration.constants.items()
        ]
        values += [(name, f"{value:.3g}", "1") for name, value in self.calibration.collectives.items()]
        rows = [
            (text, show_seconds(measured), off(before, measured), off(after, measured))
            for text, measured, before, after in map(dict.values, self.rows())
        ]
        return [Table((*constants, "typical"), values), Table((measurements, "measured", "before", "after"), rows)]

    @property
    def notes(self) -> list[str]:
        """What each constant is."""
        notes = [f"{name}: {UNITS[name]}" for name in self.calibration.constants]
        return [*notes, *([FACTORS] if self.calibration.collectives else [])]

    @property
    def stops(self) -> list[str]:
        """Constants that the fit was stopped at, `FARTHEST` from typical."""
        middle = typical(load_cluster(self.calibration.machine).machine)
        factors = {
            (self.OF, name): value / getattr(middle, name) for name, value in self.calibration.constants.items()
        } | {("collective", name): factor for name, factor in self.calibration.collectives.items()}
        return [
            f"the fit was stopped at {name}, {factor:.2g} times its typical value: a {what} was measured in error, "
            "on another machine or with other settings"
            for (what, name), factor in factors.items()
            if abs(log(factor)) > FARTHEST - 1e-9
        ]


@dataclass(frozen=True, repr=False)
class StepFit(MachineFit):
    """Constants that measured steps gave, and factors that measured collectives gave.

    before: seconds of each step; after: its time with these constants. collectives: as they were measured;
    collectives_before, collectives_after: their seconds.
    """

    calibration: Calibration
    steps: tuple[MeasuredStep, ...]
    before: tuple[float, ...]
    after: tuple[Time, ...]
    collectives: tuple[MeasuredCollective, ...] = ()
    collectives_before: tuple[float, ...] = ()
    collectives_after: tuple[float, ...] = ()

    OF = "step"

    @property
    def counts(self) -> dict[str, int]:
        """Steps, and collectives."""
        return {"step": len(self.steps), "collective": len(self.collectives)}

    def rows(self) -> list[dict[str, Any]]:
        """A row for each step, then for each collective."""
        seconds = [*self.before, *self.collectives_before], [*(t.seconds for t in self.after), *self.collectives_after]
        return [
            {"row": one.row, "measured": one.seconds, "before": before, "after": after}
            for one, before, after in zip((*self.steps, *self.collectives), *seconds, strict=True)
        ]

    @property
    def warnings(self) -> list[str]:
        """What no run on the machine can have been, steps of which others are fitted without; else where it stopped."""
        possible = any(s.seconds >= after.ceiling_seconds for s, after in zip(self.steps, self.after, strict=True))
        left_out = " and left out" if possible else ""
        impossible = [
            f"{step.row} is faster than the datasheet allows in {step.prediction.settings.policy.name} "
            f"({show_seconds(after.ceiling_seconds)}){left_out}: it ran in another type, or on another machine; if "
            "fp32 ran in tf32, say allow_tf32=true in the row"
            for step, after in zip(self.steps, self.after, strict=True)
            if step.seconds < after.ceiling_seconds
        ]
        return [*impossible, *self._impossible_collectives()] or self.stops

    def _impossible_collectives(self) -> Iterator[str]:
        """Collectives that no algorithm of the library makes so fast at the datasheet's bandwidth."""
        cluster = load_cluster(self.calibration.machine)
        sheet = CollectiveModel(cluster, typical(cluster.machine), "ceiling")
        for row in self.collectives:
            if row.seconds < (least := _seconds_of(row, sheet)):
                link = sheet.link(cluster.group("", row.devices))
                yield (
                    f"{row.row} is faster than all algorithms at the whole bandwidth of {link} "
                    f"({show_seconds(least)}): it ran on another machine, or by another library"
                )

    def sheet(self) -> Sheet:
        """The constants and factors, and what they do to each step and collective."""

        def off(seconds: float, measured: float) -> str:
            return f"{show_seconds(seconds)} ({show_change(seconds / measured - 1)})"

        what = "Measured step" if self.steps else "Measured collective"
        tables = self.tables((f"Constants of {self.calibration.machine}", "fitted"), what, off)
        return Sheet([self.question], tables, warnings=self.warnings, notes=self.notes)


@typed
def fit_machine(machine: ClusterLike, measured: str | Iterable[str | MeasuredStep], *, software: str = "") -> StepFit:
    """The constants of a machine that measured steps ask for, and factors of its links from collectives; see `fitting`.

    Fewer than three steps give one number: how much longer kernels take than typical (`conditions`), or if the device
    waits for it, how long the host takes to start one. More give several constants, each drawn to its typical value as
    strongly as its range is narrow, those of links among them where no collective was measured. Collectives give a
    factor for each link and number of devices, see `link_factors`.

    Args:
        machine: a ready machine or cluster, or the path of a file of one, which the calibration names.
        measured: steps as `measured_step` reads them, collectives as `measured_collective` does; one or more.
        software: what ran, for the file.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> fit = cm.fit_machine("h100-sxm", ["gpt2-small batch=32 seq=512: 0.4 s", "all-reduce 64 MiB on 8: 0.42 ms"])
        >>> list(fit.calibration.constants), list(fit.calibration.collectives)
        (['conditions'], ['NVLink 4 on 8'])

    """
    cluster, name = load_cluster(machine), cluster_name(machine)
    device = cluster.machine
    rows = [measured] if isinstance(measured, str) else list(islice(measured, MOST_ROWS + 1))
    if len(rows) > MOST_ROWS:
        raise SettingError(f"more than {MOST_ROWS:,} steps were measured: give fewer, such as each kind once")
    read = [row if isinstance(row, MeasuredStep) else measured_collective(row) or measured_step(row) for row in rows]
    steps = [row for row in read if isinstance(row, MeasuredStep)]
    collectives = [row for row in read if isinstance(row, MeasuredCollective)]
    if not read:
        raise SettingError("nothing was measured: give one step or more")
    times = [_time_of(step, cluster) for step in steps]
    pairs = list(zip(steps, times, strict=True))
    possible = [(step, time) for step, time in pairs if step.seconds >= time.ceiling_seconds] or pairs

    def predicted(constants: Constants) -> list[Numbers]:
        return [time.seconds_with(constants) for _, time in possible]

    fields: dict[str, Any] = {"machine": name, "constants": {}, "date": date.today().isoformat(), "software": software}
    if steps:
        few = len(possible) < FEW
        names = _one([time for _, time in possible]) if few else fitted_names(device, predicted, links=not collectives)
        lines = [(step.row, step.seconds) for step, _ in possible]
        fields |= calibrated(device, names, predicted, lines, software, name).stated()
    factors, latencies = link_factors(cluster, collectives)
    fields |= {
        "constants": dict(fields["constants"]) | latencies,
        "collectives": factors,
        "measured": [row.row for row in (*(step for step, _ in possible), *collectives)],
    }
    calibration = Calibration(**fields)
    before, after = CollectiveModel(cluster, typical(device)), collective_model(calibration)[0]
    return StepFit(
        calibration,
        tuple(steps),
        tuple(time.seconds for time in times),
        tuple(_time_of(step, calibration) for step in steps),
        tuple(collectives),
        tuple(_seconds_of(row, before) for row in collectives),
        tuple(_seconds_of(row, after) for row in collectives),
    )


def _seconds_of(row: MeasuredCollective, model: CollectiveModel) -> float:
    """Of a collective over neighbouring devices. Raises SettingError if one device is all that takes part."""
    if row.devices == 1:
        raise SettingError(f"measured {shown(row.row)}: one device has nothing to send: say on how many it was")
    return float(model.time(row.operation, row.bytes, model.cluster.group("", row.devices)).seconds)


LATENCIES = ("collective_seconds", "hop_seconds", "host_hop_seconds", "network_hop_seconds")
"""Constants that are scaled together where small collectives were measured."""
SMALL = 0.3
"""Share of a collective's time that does not follow its bytes, from which it tells what the rest takes."""
APART = 0.5
"""Logarithms: of how far latencies and factors of links leave their middle, where both are fitted."""


def link_factors(cluster: Cluster, rows: Sequence[MeasuredCollective]) -> tuple[dict[str, float], dict[str, float]]:
    """How much longer bytes take than typical, by link and group size, and latencies where small ones were measured.

    Gauss-Newton steps on logarithms, as in `calibrated`: one factor for each link and group size, which a large
    collective alone determines, and one for all latencies.
    """
    model = CollectiveModel(cluster, typical(cluster.machine))
    groups = [cluster.group("", row.devices) for row in rows]
    names = list(dict.fromkeys(factor_name(model.link(group), group.devices) for group in groups))
    of = [names.index(factor_name(model.link(group), group.devices)) for group in groups]
    ways = [list(model.ways(row.operation, row.bytes, group)) for row, group in zip(rows, groups, strict=True)]
    logs = np.zeros(len(names) + 1)

    def parts(number: int) -> tuple[float, float]:
        """Start and hops, and bytes, of the fastest way with these factors [s]."""
        latency, factor = exp(logs[-1]), exp(logs[of[number]])
        return min(((latency * way.latency, factor * way.bytes) for way in ways[number]), key=sum)

    shares = [latency / (latency + rest) for latency, rest in map(parts, range(len(rows)))]
    small = any(share > SMALL for share in shares)
    prior = np.eye(len(logs)) / APART if small else np.zeros_like(np.eye(len(logs)))
    for _ in range(ROUNDS if rows else 0):
        slopes, off = np.zeros((len(rows), len(logs))), np.zeros(len(rows))
        for number, row in enumerate(rows):
            latency, rest = parts(number)
            slopes[number, of[number]] = rest / (latency + rest)
            slopes[number, -1] = latency / (latency + rest) if small else 0.0
            off[number] = log(row.seconds / (latency + rest))
        matrix, right = np.vstack([slopes / NOISE, prior]), np.concatenate([off / NOISE, -prior @ logs])
        step = np.linalg.lstsq(matrix, right, rcond=None)[0]
        logs = np.clip(logs + np.clip(step, -LONGEST, LONGEST), -FARTHEST, FARTHEST)
    middle, scale = typical(cluster.machine), exp(logs[-1])
    latencies = {name: getattr(middle, name) * scale for name in LATENCIES} if small else {}
    return {name: exp(value) for name, value in zip(names, logs, strict=False)}, latencies


def _time_of(step: MeasuredStep, machine: Cluster | Calibration) -> Time:
    return time_on(step.prediction, machine, stack=step.stack, **step.how)


def _one(times: Sequence[Time]) -> tuple[str]:
    """The number that one step tells: how long kernels take, or how long the host takes to start them."""
    launches = {time.stack.launch for time in times if time.bound == "host"}
    waiting = [launch for launch in launches if isinstance(launch, str)]
    return (waiting[0],) if len(waiting) == 1 and all(t.bound == "host" for t in times) else ("conditions",)


def fitted_names(
    machine: Machine, predicted: Callable[[Constants], Sequence[Numbers]], *, links: bool = True
) -> tuple[str, ...]:
    """Constants that three steps and more tell. links: whether those of links may be among them."""
    return effective((*FITTED, *(FITTED_LINKS if links else ())), machine, predicted, 0.001)


def effective(
    names: Sequence[str], machine: Machine, predicted: Callable[[Constants], Sequence[Numbers]], least: float
) -> tuple[str, ...]:
    """Those of some constants that change a predicted time by a share of at least `least` within their range."""
    ends = typical(machine).with_ends({name: constant(name, machine) for name in names})
    times = np.array([np.broadcast_to(time, 2 * len(names) + 1) for time in predicted(ends)])
    changes = np.abs(np.log(times[:, 1:-1:2] / times[:, :-1:2])).max(axis=0)
    return tuple(name for name, change in zip(names, changes, strict=True) if change > log(1 + least))


NOISE = 0.03
"""Of a measurement, relative: what it is allowed to be off by before a constant leaves its range for it."""
ROUNDS = 8
SHORTER = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
"""Of a step, until constants predict better than before."""
LONGEST = 0.7
FARTHEST = 3.0
"""Logarithms: of one step at most, and of the distance from the typical value."""


def calibrated(
    machine: Machine,
    names: Sequence[str],
    predicted: Callable[[Constants], Sequence[float]],
    measured: Sequence[tuple[str, float]],
    software: str,
    name: str,
    **known: float,
) -> Calibration:
    """The constants of a machine, those of `names` changed so that what is predicted comes near what was measured.

    predicted: seconds. measured: what, and its seconds. Gauss-Newton steps on logarithms of constants lessen the
    squares of what measurements are off, over `NOISE`, and of how far constants leave their middle, over half their
    range. A single constant has only the measurements to follow. name: what the file calls the machine. known:
    constants that need no fit.
    """
    middle = typical(machine)
    center = np.log([getattr(middle, name) for name in names])
    widths = np.array([_half_width(name, machine) for name in names])
    prior = np.diag(1 / widths) if len(names) > 1 else np.zeros((1, 1))
    for what, seconds in measured:
        if not fits(seconds, Positive):
            raise SettingError(f"{what}: {shown(seconds)} s were measured, which is no time")
    goal = np.array([log(seconds) for _, seconds in measured])

    def constants_at(at: Any) -> Constants:
        return middle.changed(**{name: exp(value) for name, value in zip(names, at, strict=True)})

    def values(at: Any) -> Any:
        return np.array([log(seconds) for seconds in predicted(constants_at(at))])

    def residuals(at: Any, here: Any) -> Any:
        """What measurements are off over their noise, and constants over half their ranges."""
        return np.concatenate([(goal - here) / NOISE, prior @ (center - at)])

    logs, here = center.copy(), values(center)
    for _ in range(ROUNDS):
        slopes = np.empty((len(goal), len(names)))
        for number in range(len(names)):
            ahead = logs.copy()
            ahead[number] += 1e-3
            slopes[:, number] = (values(ahead) - here) / 1e-3
        before = residuals(logs, here)
        step = np.linalg.lstsq(np.vstack([slopes / NOISE, prior]), before, rcond=None)[0]
        for shorter in SHORTER:  # what hides behind kernels costs nothing until it no longer does
            to = np.clip(logs + shorter * np.clip(step, -LONGEST, LONGEST), center - FARTHEST, center + FARTHEST)
            there = values(to)
            if np.sum(residuals(to, there) ** 2) < np.sum(before**2):
                logs, here = to, there
                break
        else:
            break
    fitted = constants_at(logs)
    return Calibration(
        machine=name,
        constants={name: getattr(fitted, name) for name in names} | known,
        date=date.today().isoformat(),
        software=software,
        measured=[what for what, _ in measured],
    )


def _half_width(name: str, machine: Machine) -> float:
    """Half of a constant's range, as a logarithm."""
    of = constant(name, machine)
    return max(0.02, log(of.high / of.low) / 2)
