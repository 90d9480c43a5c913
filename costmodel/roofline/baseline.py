"""Baselines: a check or a profile that was kept, to hold a later one against, and to draw it again."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from costmodel.display.answer import Answer, Sheet
from costmodel.display.rooflines import COLOURS, Chart
from costmodel.display.table import Table, printable
from costmodel.display.units import show_seconds
from costmodel.documents.files import write
from costmodel.documents.stored import NotStored, read_stored
from costmodel.errors import CostModelError, shown
from costmodel.roofline.checking import MOST_ROUNDS
from costmodel.roofline.findings import Check
from costmodel.roofline.host import Host
from costmodel.roofline.profiling import Profile
from costmodel.roofline.timing import Statistic, Timing, ratio_interval

FORMAT = 3
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


def baseline_of(measured: Check | Profile) -> Baseline:
    """The timings of a check or profile."""
    timings = measured.timings
    return Baseline(
        question=measured.question,
        machine=measured.calibration.machine,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        statistic=next(iter(timings.values())).statistic,
        samples={name: list(timing.counted) for name, timing in timings.items()},
        unresolved=[name for name, timing in timings.items() if not timing.resolved],
        chart=measured.chart if isinstance(measured, Check) else None,
    )


def save(measured: Check | Profile, path: str | os.PathLike[str]) -> None:
    """Keep its timings in a JSON file, written whole or not at all. Raises CostModelError."""
    write(baseline_of(measured).model_dump_json(indent=1) + "\n", path)


def read(path: str | os.PathLike[str]) -> Baseline:
    """The timings in a file. Raises CostModelError unless it is whole, and of this version."""
    where = printable(str(path))
    try:
        baseline = read_stored(Baseline, Path(path), LARGEST_FILE)
    except NotStored as error:
        raise CostModelError(f"{where}{' is no baseline' * error.content}: {error}; --save makes one") from None
    if baseline.format != FORMAT:
        version = baseline.format
        raise CostModelError(f"{where} is of format {version}, this version reads {FORMAT}: --save makes one anew")
    return baseline


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


def read_chart(path: str | os.PathLike[str]) -> tuple[Chart, str]:
    """The chart of a check in a file, and in words the machine that it was measured on. Raises CostModelError."""
    baseline = read(path)
    if baseline.chart is None:
        raise CostModelError(f"{printable(str(path))} keeps no check: 'roofline check MODEL --save FILE' makes one")
    return baseline.chart, str(baseline.machine)


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
        note = f"{len(self.slower)} slower beyond noise and {DRIFT:.0%} of drift"
        return Sheet([self.question], [Table(header, rows, words=frozenset({0, 4}))], notes=[note])


def changes_between(then: Baseline, now: Baseline) -> Changes:
    """What has changed from one to the other. Raises CostModelError for two of other questions or machines."""
    check_question(then, now.question)
    if then.machine != now.machine:
        raise CostModelError(
            f"the baseline is of another machine: {printable('; '.join(now.machine.changes_from(then.machine)))}"
        )
    names = dict.fromkeys([*then.samples, *now.samples])
    return Changes(now.question, then.created, tuple(_change(name, then, now) for name in names))


def check_question(then: Baseline, question: str, *, start: bool = False) -> None:
    """Raise CostModelError for a baseline of another question; start: `question` is how it starts."""
    if then.question != question and not (start and then.question.startswith(question)):
        raise CostModelError(f"the baseline is of another question: {printable(then.question)!r}, now {question!r}")


def _change(name: str, then: Baseline, now: Baseline) -> Change:
    before, after = (
        Timing(tuple(each.samples[name]), statistic=now.statistic) if name in each.samples else None
        for each in (then, now)
    )
    if before is None:
        return Change(name, None, after.seconds if after else None, None, "new")
    if after is None:
        return Change(name, before.seconds, None, None, "gone")
    low, high = ratio_interval(after, before)
    outcome: Outcome = "slower" if low > 1 + DRIFT else "faster" if high < 1 / (1 + DRIFT) else "as before"
    if name in then.unresolved or name in now.unresolved:
        outcome = "unresolved"
    return Change(name, before.seconds, after.seconds, (low, high), outcome)
