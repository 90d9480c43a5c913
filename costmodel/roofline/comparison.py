"""Two models side by side: how many times as fast one is as the other, and whether that is more than noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from costmodel.analysis.predict import Prediction
from costmodel.architectures.base import Architecture
from costmodel.cost.report import headline
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table
from costmodel.display.units import show_seconds
from costmodel.errors import SettingError, shown
from costmodel.roofline.calibration import Progress, bar
from costmodel.roofline.checking import with_rounds
from costmodel.roofline.profiling import PROTOCOL
from costmodel.roofline.recorder import network_that_fits, runnable
from costmodel.roofline.timing import Timing, measure, ratio_interval
from costmodel.training.keywords import GivenSettings
from costmodel.training.settings import takes_settings


@dataclass(frozen=True, repr=False)
class Comparison(Answer):
    """Two models, measured side by side, so that drift of the machine hit both alike."""

    names: tuple[str, str]
    timings: tuple[Timing, Timing]

    @property
    def speedup(self) -> float:
        """How many times as fast the second is."""
        first, second = self.timings
        return first.seconds / second.seconds

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of the speed-up."""
        return ratio_interval(*self.timings)

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 1."""
        low, high = self.interval
        return low > 1 or high < 1

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to doubt it."""
        pairs = zip(self.names, self.timings, strict=True)
        return tuple(f"{name} is noisy: {timing.noise}" for name, timing in pairs if timing.noise)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "names": list(self.names),
            "timings": [timing.to_dict() for timing in self.timings],
            "speedup": self.speedup,
            "interval": list(self.interval),
            "significant": self.significant,
            "together": True,
            "warnings": list(self.warnings),
        }

    def sheet(self) -> Sheet:
        """See the class."""
        rows = []
        for letter, name, timing in zip("AB", self.names, self.timings, strict=True):
            low, high = map(show_seconds, timing.interval)
            rows.append((f"{letter}  {name}", show_seconds(timing.seconds), f"{low} to {high}", str(timing.count)))
        table = Table(("Comparison", self.timings[0].statistic, "95 % interval", "samples"), rows)
        low, high = self.interval
        verdict = f"B is {self.speedup:.3f}× as fast as A (95 % interval {low:.3f} to {high:.3f}): "
        verdict += "significant" if self.significant else "no significant difference"
        return Sheet([], [table], self.warnings, [verdict])


@takes_settings(mode="inference")
def compare(
    a: Architecture | Prediction | str,
    b: Architecture | Prediction | str,
    *,
    rounds: int | None = None,
    progress: bool | Progress = False,
    **settings: Unpack[GivenSettings],
) -> Comparison:
    """How many times as fast `b` is as `a`: both are run, samples taken in turn.

    Args:
        a: a model as `predict` takes it, or a prediction.
        b: the same.
        rounds: samples of each.
        progress: a bar on stderr, or a function that is told the share done.
        **settings: of models, as `predict` takes them; mode is "inference" unless given.

    Raises:
        CostModelError: a wrong setting, or more memory than there is.

    """
    first, second = (_prediction(side, settings) for side in (a, b))
    protocol = with_rounds(PROTOCOL, rounds)
    programs = [network_that_fits(each, optimize=False).program for each in (first, second)]
    with bar(progress, "measuring") as tell:
        timings = measure(programs, protocol=protocol, statistic="median", progress=tell)
    return Comparison((headline(first), headline(second)), (timings[0], timings[1]))


def _prediction(side: Architecture | Prediction | str, settings: Mapping[str, Any]) -> Prediction:
    if isinstance(side, Prediction):
        return runnable(side, {})
    if not isinstance(side, Architecture | str):
        raise SettingError(f"{shown(side)} cannot be timed: give a model or a prediction")
    return runnable(side, settings)
