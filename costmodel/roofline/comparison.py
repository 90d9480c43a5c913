"""Timings held against each other: two models side by side, or a measurement against a stored baseline."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Unpack

from pydantic import BaseModel, ConfigDict, Field, field_validator

from costmodel.architectures.base import Architecture
from costmodel.cost.prediction import Prediction
from costmodel.cost.report import headline
from costmodel.display.answer import Answer, Sheet
from costmodel.display.figures import write
from costmodel.display.rooflines import COLOURS, Chart
from costmodel.display.table import Table, printable
from costmodel.display.units import show_seconds
from costmodel.errors import CostModelError, SettingError, shown
from costmodel.roofline.calibration import NotStored, Progress, bar, read_stored
from costmodel.roofline.checking import MOST_ROUNDS, with_rounds
from costmodel.roofline.findings import Check
from costmodel.roofline.host import Host
from costmodel.roofline.pictures import Drawn, chart_of
from costmodel.roofline.profiling import PROTOCOL, Profile
from costmodel.roofline.program import Program
from costmodel.roofline.recorder import asked, network_that_fits
from costmodel.roofline.timing import Statistic, Timing, measure
from costmodel.training.keywords import GivenSettings
from costmodel.training.settings import takes_settings

RESAMPLES = 4000
Side = Architecture | Prediction | Program | Profile | Timing | str


@dataclass(frozen=True, repr=False)
class Comparison(Answer):
    """Two timings. speedup: how many times as fast the second is; interval: its 95 % bootstrap interval.

    together: whether they were measured side by side, so that drift of the machine hit both alike.
    """

    names: tuple[str, str]
    timings: tuple[Timing, Timing]
    speedup: float
    interval: tuple[float, float]
    together: bool

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 1."""
        low, high = self.interval
        return low > 1 or high < 1

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to doubt it."""
        pairs = zip(self.names, self.timings, strict=True)
        found = [f"{name} is noisy: {timing.noise}" for name, timing in pairs if timing.noise]
        if not self.together:
            found.append("measured apart: the machine may have changed its speed between")
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "names": list(self.names),
            "timings": [timing.to_dict() for timing in self.timings],
            "speedup": self.speedup,
            "interval": list(self.interval),
            "significant": self.significant,
            "together": self.together,
            "warnings": list(self.warnings),
        }

    def sheet(self) -> Sheet:
        """See the class."""
        rows = []
        for letter, name, timing in zip("AB", self.names, self.timings, strict=True):
            low, high = map(show_seconds, timing.interval)
            rows.append((f"{letter}  {name}", show_seconds(timing.seconds), f"{low} to {high}", str(timing.count)))
        statistic = self.timings[0].statistic
        table = Table(("Comparison", statistic, "95 % interval", "samples"), rows)
        low, high = self.interval
        said = f"B is {self.speedup:.3f}× as fast as A (95 % interval {low:.3f} to {high:.3f}): "
        said += "significant" if self.significant else "no significant difference"
        return Sheet([], [table], self.warnings, [said])


@takes_settings(mode="inference")
def compare(
    a: Side,
    b: Side,
    *,
    rounds: int | None = None,
    progress: bool | Progress = False,
    **settings: Unpack[GivenSettings],
) -> Comparison:
    """How many times as fast `b` is as `a`.

    Args:
        a: a model as `predict` takes it, a prediction or a program, which are run; or a profile or a timing.
        b: the same. Two that are run are measured side by side, samples taken in turn.
        rounds: samples of each that is run.
        progress: a bar on stderr, or a function that is told the share done.
        **settings: of models, as `predict` takes them; mode is "inference" unless given.

    Raises:
        CostModelError: a wrong setting, two profiles without a pass in common, or more memory than there is.

    """
    sides = [_side(side, settings) for side in (a, b)]
    kept = [side for side in sides if isinstance(side, Profile)]
    chosen = _common(kept)
    names = [_name(side, letter, chosen) for side, letter in zip(sides, "AB", strict=True)]
    found: list[Timing | Program] = []
    for side in sides:
        if isinstance(side, Prediction):
            found.append(network_that_fits(side, optimize=False).program)
        else:
            found.append(side.passes[chosen].timing if isinstance(side, Profile) else side)
    to_run = [program for program in found if isinstance(program, Program)]
    protocol = with_rounds(PROTOCOL, rounds)
    with bar(progress, "measuring") as told:
        run = measure(to_run, protocol=protocol, statistic="median", progress=told) if to_run else []
    measured = iter(run)
    timings = [next(measured) if isinstance(side, Program) else side for side in found]
    return compared((names[0], names[1]), (timings[0], timings[1]), together=len(to_run) == 2)


def compared(names: tuple[str, str], timings: tuple[Timing, Timing], *, together: bool = False) -> Comparison:
    """Two timings, by the statistic of the first."""
    first, second = timings
    second = replace(second, statistic=first.statistic)
    return Comparison(names, (first, second), first.seconds / second.seconds, speedup_interval(first, second), together)


def speedup_interval(before: Timing, after: Timing) -> tuple[float, float]:
    """95 % bootstrap interval of the ratio of two timings."""
    import numpy as np

    random = np.random.default_rng(0)
    ratio = before.resampled(random, RESAMPLES) / after.resampled(random, RESAMPLES)
    low, high = np.percentile(ratio, (2.5, 97.5))
    return float(low), float(high)


def _side(side: Side, settings: Mapping[str, Any]) -> Prediction | Program | Profile | Timing:
    if isinstance(side, Program | Profile | Timing):
        return side
    if isinstance(side, Prediction):
        return asked(side, {})
    if not isinstance(side, Architecture | str):
        raise SettingError(f"{shown(side)} cannot be timed: give a model, a prediction, a program, a profile, a timing")
    return asked(side, settings)


def _common(profiles: Sequence[Profile]) -> str:
    """The pass that profiles are compared by: the first that all have."""
    for name in profiles[0].passes if profiles else ():
        if all(name in profile.passes for profile in profiles):
            return name
    if profiles:
        raise CostModelError("the two profiles have no pass in common: profile both in the same mode")
    return ""


def _name(side: Prediction | Program | Profile | Timing, letter: str, chosen: str) -> str:
    if isinstance(side, Profile):
        return f"{side.question} ({chosen})"
    if isinstance(side, Prediction):
        return headline(side)
    return (side.name if isinstance(side, Program) else "") or letter


FORMAT = 1
LARGEST_FILE = 12_000_000
LARGEST_VALUE = 1e30
"""No time, rate or share that is drawn is larger."""
DRIFT = 0.10
"""Relative drift of a core's speed between two measurements: a change is an interval that lies wholly beyond it."""

Samples = Annotated[list[float], Field(min_length=1, max_length=3 * MOST_ROUNDS)]
Outcome = Literal["slower", "faster", "as before", "unresolved", "new", "gone"]


class Baseline(BaseModel):
    """Stored samples [s] of each layer or pass, by name, with the question and the machine.

    unresolved: names of what had too few undisturbed samples. chart: what is drawn of a check.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    format: int = FORMAT
    question: str
    machine: Host
    created: str
    statistic: Statistic
    samples: dict[str, Samples]
    unresolved: list[str] = Field(default_factory=list)
    chart: Chart | None = None

    @field_validator("samples")
    @classmethod
    def _are_times(cls, samples: dict[str, list[float]]) -> dict[str, list[float]]:
        for name, values in samples.items():
            wrong = [value for value in values if not (math.isfinite(value) and value > 0)]
            if wrong:
                raise ValueError(f"{name!r} took {wrong[0]} s, which is no time")
        return samples

    @field_validator("chart")
    @classmethod
    def _is_drawable(cls, chart: Chart | None) -> Chart | None:
        if chart is None:
            return None
        kinds = {ceiling.kind for ceiling in chart.ceilings}
        if not chart.dots or kinds != {"compute", "memory"}:
            raise ValueError("a chart has dots, and ceilings of both kinds")
        for ceiling in chart.ceilings:
            _check_positive(ceiling.name, ceiling.rate)
        for dot in chart.dots:
            if dot.bound not in COLOURS:
                raise ValueError(f"{shown(dot.label)} is bound by {shown(dot.bound)}, which is no class")
            times = (dot.predicted_seconds, dot.measured_seconds, dot.predicted_total, dot.measured_total, dot.share)
            rates = (dot.intensity, dot.predicted_rate, dot.measured_rate) if dot.intensity else ()
            _check_positive(dot.label, *times, *rates)
            if not math.isfinite(dot.error):
                raise ValueError(f"{shown(dot.label)} is off by {dot.error}, which is no share")
        return chart


def _check_positive(name: str, *values: float) -> None:
    """Raise ValueError unless all are finite and more than 0."""
    wrong = [value for value in values if not (math.isfinite(value) and 0 < value < LARGEST_VALUE)]
    if wrong:
        raise ValueError(f"{shown(name)} has {wrong[0]}, where a time, a rate or a share stands")


def baseline_of(found: Check | Profile) -> Baseline:
    """The timings of a check or profile."""
    if isinstance(found, Profile):
        timings = {name: each.timing for name, each in found.passes.items()}
    else:
        timings = {layer.full_name: layer.timing for layer in found.layers}
    return Baseline(
        question=found.question,
        machine=found.calibration.machine,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        statistic=next(iter(timings.values())).statistic,
        samples={name: list(timing.counted) for name, timing in timings.items()},
        unresolved=[name for name, timing in timings.items() if not timing.resolved],
        chart=chart_of(found) if isinstance(found, Check) else None,
    )


def save(found: Check | Profile, path: str | os.PathLike[str]) -> None:
    """Keep its timings in a JSON file, written whole or not at all. Raises CostModelError."""
    write(baseline_of(found).model_dump_json(indent=1) + "\n", path)


def read(path: str | os.PathLike[str]) -> Baseline:
    """The timings in a file. Raises CostModelError unless it is whole, and of this version."""
    where = printable(str(path))
    try:
        found = read_stored(Baseline, Path(path), LARGEST_FILE)
    except NotStored as error:
        raise CostModelError(f"{where}{' is no baseline' * error.content}: {error}; --save makes one") from None
    if found.format != FORMAT:
        raise CostModelError(f"{where} is of format {found.format}, this version reads {FORMAT}: --save makes one anew")
    return found


def is_saved(path: str) -> bool:
    """Whether a regular file looks like one that `save` wrote; reading another might never end."""
    try:
        if not Path(path).is_file():
            return False
        with open(path, encoding="utf-8") as file:
            start = file.read(100)
    except (OSError, ValueError):
        return False
    return start.lstrip("{ \n").startswith('"format"') and '"question"' in start


def drawn_of(path: str | os.PathLike[str]) -> Drawn:
    """What is drawn of a check that was kept. Raises CostModelError."""
    found = read(path)
    if found.chart is None:
        raise CostModelError(f"{printable(str(path))} keeps no check: 'roofline check MODEL --save FILE' makes one")
    return Drawn(found.chart, str(found.machine))


@dataclass(frozen=True)
class Change:
    """One layer or pass, then and now [s]. ratio: 95 % interval of now over then."""

    name: str
    before: float | None
    after: float | None
    ratio: tuple[float, float] | None
    outcome: Outcome


@dataclass(frozen=True, repr=False)
class Changes(Answer):
    """A measurement held against a baseline."""

    question: str
    created: str
    changes: tuple[Change, ...]

    @property
    def slower(self) -> list[Change]:
        """Regressions: slower by more than noise and drift explain."""
        return [change for change in self.changes if change.outcome == "slower"]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "question": self.question,
            "baseline": self.created,
            "regressions": len(self.slower),
            "changes": [
                {**vars(change), "ratio": None if change.ratio is None else list(change.ratio)}
                for change in self.changes
            ],
        }

    def sheet(self) -> Sheet:
        """See the class."""
        rows = []
        for c in self.changes:
            times = ("-" if seconds is None else show_seconds(seconds) for seconds in (c.before, c.after))
            ratio = "-" if c.ratio is None else f"{c.ratio[0]:.3f} to {c.ratio[1]:.3f}"
            rows.append((printable(c.name), *times, ratio, c.outcome))
        header = (f"Against {self.created}", "then", "now", "now / then (95 %)", "outcome")
        said = f"{len(self.slower)} slower beyond noise and {DRIFT:.0%} of drift"
        return Sheet([], [Table(header, rows, words=frozenset({0, 4}))], notes=[said])


def against(found: Check | Profile, baseline: Baseline) -> Changes:
    """What has changed since. Raises CostModelError for a baseline of another question or machine."""
    return changes_between(baseline, baseline_of(found))


def changes_between(then: Baseline, now: Baseline) -> Changes:
    """What has changed from one to the other. Raises CostModelError for two of other questions or machines."""
    if then.question != now.question:
        raise CostModelError(f"the baseline is of another question: {printable(then.question)!r}, now {now.question!r}")
    if then.machine != now.machine:
        raise CostModelError(
            f"the baseline is of another machine: {printable('; '.join(now.machine.changes_from(then.machine)))}"
        )
    names = dict.fromkeys([*then.samples, *now.samples])
    return Changes(now.question, then.created, tuple(_change(name, then, now) for name in names))


def _change(name: str, then: Baseline, now: Baseline) -> Change:
    before, after = (
        Timing(tuple(each.samples[name]), statistic=now.statistic) if name in each.samples else None
        for each in (then, now)
    )
    if before is None:
        return Change(name, None, after.seconds if after else None, None, "new")
    if after is None:
        return Change(name, before.seconds, None, None, "gone")
    low, high = speedup_interval(after, before)
    outcome: Outcome = "slower" if low > 1 + DRIFT else "faster" if high < 1 / (1 + DRIFT) else "as before"
    if name in then.unresolved or name in now.unresolved:
        outcome = "unresolved"
    return Change(name, before.seconds, after.seconds, (low, high), outcome)
