"""Timings kept in a file, to be held against later ones: which layers or passes have become slower."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from costmodel.display.figures import write
from costmodel.display.table import Table, printable
from costmodel.display.units import show_seconds
from costmodel.errors import CostModelError
from costmodel.roofline.comparison import speedup_interval
from costmodel.roofline.findings import Check
from costmodel.roofline.machine import Machine
from costmodel.roofline.profiling import Profile
from costmodel.roofline.sheet import headline
from costmodel.roofline.timing import Statistic, Timing

FORMAT = 1
LARGEST_FILE = 50_000_000
DRIFT = 0.10
"""How far a core's speed may drift between two measurements: only what lies wholly beyond is a change."""

Samples = Annotated[list[float], Field(min_length=1, max_length=1_000_000)]
Outcome = Literal["slower", "faster", "as before", "new", "gone"]


class Baseline(BaseModel):
    """Samples [s] of each layer or pass, by name, and what they are of."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    format: int = FORMAT
    question: str
    machine: Machine
    created: str
    statistic: Statistic
    samples: dict[str, Samples]

    @field_validator("samples")
    @classmethod
    def _are_times(cls, samples: dict[str, list[float]]) -> dict[str, list[float]]:
        for name, values in samples.items():
            wrong = [value for value in values if not (math.isfinite(value) and value > 0)]
            if wrong:
                raise ValueError(f"{name!r} took {wrong[0]} s, which is no time")
        return samples


def baseline_of(found: Check | Profile) -> Baseline:
    """What a later measurement can be held against."""
    timings = _timings(found)
    return Baseline(
        question=found.question if isinstance(found, Profile) else headline(found),
        machine=found.calibration.machine,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        statistic=next(iter(timings.values())).statistic,
        samples={name: list(timing.samples) for name, timing in timings.items()},
    )


def _timings(found: Check | Profile) -> dict[str, Timing]:
    if isinstance(found, Profile):
        return {name: each.timing for name, each in found.passes.items()}
    named = {}
    for layer in found.layers:
        named[layer.name if layer.phase == "forward" else f"{layer.name} ({layer.phase})"] = layer.timing
    return named


def save(found: Check | Profile, path: str | os.PathLike[str]) -> None:
    """Keep its timings in a JSON file, written whole or not at all. Raises CostModelError."""
    write(baseline_of(found).model_dump_json(indent=1) + "\n", path)


def read(path: str | os.PathLike[str]) -> Baseline:
    """The timings in a file. Raises CostModelError unless it is whole, and of this version."""
    where = printable(str(path))
    try:
        content = Path(path)
        if content.stat().st_size > LARGEST_FILE:
            raise CostModelError(f"{where} is no baseline: it is larger than {LARGEST_FILE:,} bytes")
        found = Baseline.model_validate_json(content.read_bytes())
    except OSError as error:
        raise CostModelError(f"{where}: cannot be read: {error.strerror or error}; --save makes one") from None
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise CostModelError(
            f"{where} is no baseline: {at + ': ' if at else ''}{first['msg']}; --save makes one"
        ) from None
    if found.format != FORMAT:
        raise CostModelError(f"{where} is of format {found.format}, this version reads {FORMAT}: --save makes one anew")
    return found


@dataclass(frozen=True)
class Change:
    """One layer or pass, then and now [s]. ratio: 95 % interval of now over then."""

    name: str
    before: float | None
    after: float | None
    ratio: tuple[float, float] | None
    outcome: Outcome


@dataclass(frozen=True)
class Changes:
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

    def __str__(self) -> str:
        rows = [
            (
                printable(c.name),
                "-" if c.before is None else show_seconds(c.before),
                "-" if c.after is None else show_seconds(c.after),
                "-" if c.ratio is None else f"{c.ratio[0]:.3f} to {c.ratio[1]:.3f}",
                c.outcome,
            )
            for c in self.changes
        ]
        header = (f"Against {self.created}", "then", "now", "now / then (95 %)", "outcome")
        return (
            Table(header, rows, words=frozenset({0, 4})).text()
            + f"\n\n{len(self.slower)} slower beyond noise and {DRIFT:.0%} of drift"
        )


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
    if before is None or after is None:
        return Change(
            name,
            before.seconds if before else None,
            after.seconds if after else None,
            None,
            "gone" if before else "new",
        )
    low, high = speedup_interval(after.samples, before.samples, now.statistic)
    outcome: Outcome = "slower" if low > 1 + DRIFT else "faster" if high < 1 / (1 + DRIFT) else "as before"
    return Change(name, before.seconds, after.seconds, (low, high), outcome)
