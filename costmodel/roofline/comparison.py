"""A against B on the clock: how much faster the second is, within what bounds, and whether that is more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.architectures.base import Architecture
from costmodel.cost.prediction import Prediction
from costmodel.cost.report import headline
from costmodel.display.table import Table
from costmodel.display.units import show_seconds
from costmodel.errors import CostModelError, SettingError, shown
from costmodel.roofline.inspection import asked, with_rounds
from costmodel.roofline.measurement import measure
from costmodel.roofline.profiling import PROTOCOL, Profile, whole_program
from costmodel.roofline.program import Program
from costmodel.roofline.storage import Progress, bar
from costmodel.roofline.timing import Statistic, Timing

RESAMPLES = 4000
Side = Architecture | Prediction | Program | Profile | Timing | str


@dataclass(frozen=True)
class Comparison:
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
        """Whether the interval leaves no doubt which is faster."""
        low, high = self.interval
        return low > 1 or high < 1

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why to doubt it."""
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

    def __str__(self) -> str:
        rows = []
        for letter, name, timing in zip("AB", self.names, self.timings, strict=True):
            low, high = map(show_seconds, timing.interval)
            rows.append((f"{letter}  {name}", show_seconds(timing.seconds), f"{low} to {high}", str(timing.count)))
        statistic = self.timings[0].statistic
        table = Table(("Comparison", statistic, "95 % interval", "samples"), rows).text()
        low, high = self.interval
        said = f"B is {self.speedup:.3f}× as fast as A (95 % interval {low:.3f} to {high:.3f}): "
        said += "significant" if self.significant else "no significant difference"
        return "\n\n".join([*(f"warning: {warning}" for warning in self.warnings), table, said])


def compare(
    a: Side,
    b: Side,
    *,
    rounds: int | None = None,
    progress: bool | Progress = False,
    **settings: Any,
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
            found.append(whole_program(side))
        else:
            found.append(side.passes[chosen].timing if isinstance(side, Profile) else side)
    to_run = [program for program in found if isinstance(program, Program)]
    with bar(progress, "measuring") as told:
        measured = iter(_measured(to_run, rounds, told))
    timings = [next(measured) if isinstance(side, Program) else side for side in found]
    return compared((names[0], names[1]), (timings[0], timings[1]), together=len(to_run) == 2)


def compared(names: tuple[str, str], timings: tuple[Timing, Timing], *, together: bool = False) -> Comparison:
    """Two timings, by the statistic of the first."""
    first, second = timings
    interval = speedup_interval(first.samples, second.samples, first.statistic)
    same = Timing(second.samples, second.inner, second.wall_ratio, first.statistic)
    return Comparison(names, (first, same), first.seconds / same.seconds, interval, together)


def speedup_interval(
    before: Sequence[float], after: Sequence[float], statistic: Statistic = "median"
) -> tuple[float, float]:
    """95 % bootstrap interval of the ratio of two samples' statistics."""
    import numpy as np

    random = np.random.default_rng(0)
    taken = np.median if statistic == "median" else np.min
    ratio = taken(random.choice(before, (RESAMPLES, len(before))), axis=1) / taken(
        random.choice(after, (RESAMPLES, len(after))), axis=1
    )
    low, high = np.percentile(ratio, (2.5, 97.5))
    return float(low), float(high)


def _side(side: Side, settings: dict[str, Any]) -> Prediction | Program | Profile | Timing:
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


def _measured(programs: list[Program], rounds: int | None, progress: Progress | None) -> list[Timing]:
    protocol = with_rounds(PROTOCOL, rounds)
    return measure(programs, protocol=protocol, statistic="median", progress=progress) if programs else []
