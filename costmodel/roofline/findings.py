"""What a check found: for each layer the paper against the clock, and what they say together."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from costmodel.errors import CostModelError
from costmodel.roofline.calibration import Calibration
from costmodel.roofline.ceilings import Ceiling, ceilings_of
from costmodel.roofline.classification import Agreement, Verdict
from costmodel.roofline.hosttime import HostTime
from costmodel.roofline.operation import Phase
from costmodel.roofline.timing import Timing
from costmodel.roofline.validation import Errors

if TYPE_CHECKING:
    import pandas

    from costmodel.cost.prediction import Prediction

DTYPE = "float32"
"""What layers are run in."""


@dataclass(frozen=True)
class Finding:
    """One pass of one layer, all its repeats together, so that findings add up.

    flops: of contractions; pointwise_flops: all other arithmetic. compulsory_bytes: every input, weight and output
    moved once; numpy_bytes: all that NumPy's calls read and write. calls: of NumPy functions, in one repeat.
    program: equal for layers that run the same program, which is measured once. timing: of one repeat, as is `host`.
    """

    name: str
    kind: str
    phase: Phase
    repeat: int
    calls: int
    flops: int
    pointwise_flops: int
    compulsory_bytes: int
    numpy_bytes: int
    program: int
    host: HostTime = field(repr=False)
    timing: Timing = field(repr=False)
    predicted_class: Verdict
    textbook_class: Verdict
    measured_class: Verdict | None = None

    @property
    def arithmetic(self) -> int:
        """All floating-point operations [FLOP]."""
        return self.flops + self.pointwise_flops

    @property
    def intensity(self) -> float:
        """Operations of both sorts a byte of compulsory traffic; 0 where nothing moves [FLOP/B]."""
        return self.arithmetic / self.compulsory_bytes if self.compulsory_bytes else 0.0

    @property
    def predicted_seconds(self) -> float:
        """By the model, from calibration and description alone [s]."""
        return self.repeat * self.host.seconds

    @property
    def predicted_interval(self) -> tuple[float, float]:
        """Where nine of ten measurements are to be expected [s]."""
        low, high = self.host.interval
        return self.repeat * low, self.repeat * high

    @cached_property
    def measured_seconds(self) -> float:
        """By the clock: one repeat's time, as many times as it is repeated [s]."""
        return self.repeat * self.timing.seconds

    @cached_property
    def measured_interval(self) -> tuple[float, float]:
        """95 % bootstrap interval [s]."""
        low, high = self.timing.interval
        return self.repeat * low, self.repeat * high

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_seconds / self.measured_seconds - 1

    @property
    def flops_per_second(self) -> float:
        """Operations of both sorts achieved [FLOP/s]."""
        return self.arithmetic / self.measured_seconds

    @property
    def bytes_per_second(self) -> float:
        """NumPy's traffic achieved [bytes/s]; more than memory gives where caches serve it."""
        return self.numpy_bytes / self.measured_seconds


@dataclass(frozen=True)
class Gain:
    """What speeding up all layers of a kind would buy (Amdahl 1967): the whole's speed-up if they took half the time,
    and the most there is, if they took none."""

    kind: str
    seconds: float
    share: float

    @property
    def twice(self) -> float:
        """Speed-up of the whole if these were twice as fast."""
        return 1 / (1 - self.share / 2)

    @property
    def limit(self) -> float:
        """Speed-up of the whole if these took no time; infinite if there is nothing else."""
        return 1 / (1 - self.share) if self.share < 1 else float("inf")


@dataclass(frozen=True)
class Check:
    """Predictions of every layer's time beside measurements. Times are of layers alone, one after another.

    layers: those that compute or move something; idle: names of those that are views. warnings: why to doubt it.
    reuse_bytes: 0 if warm; else cold, so much being touched between two runs of a layer.
    """

    prediction: Prediction = field(repr=False)
    calibration: Calibration = field(repr=False)
    level: int
    layers: tuple[Finding, ...] = field(repr=False)
    idle: tuple[str, ...] = field(repr=False)
    warnings: tuple[str, ...] = ()
    reuse_bytes: int = 0

    @property
    def predicted_seconds(self) -> float:
        """Of all layers, repeats included [s]."""
        return sum(layer.predicted_seconds for layer in self.layers)

    @cached_property
    def measured_seconds(self) -> float:
        """Of all layers, repeats included [s]."""
        return sum(layer.measured_seconds for layer in self.layers)

    @property
    def error(self) -> float:
        """Of the sums: predicted over measured, less one."""
        return self.predicted_seconds / self.measured_seconds - 1

    @cached_property
    def errors(self) -> Errors:
        """Of the layers, each counted once: `.median`, `.quantile(0.9)`, `.worst`, `.r_squared` (of log time)."""
        predicted = tuple(layer.predicted_seconds for layer in self.layers)
        return Errors(predicted, tuple(layer.measured_seconds for layer in self.layers))

    @property
    def agreement(self) -> Agreement:
        """Of predicted classes with measured ones; empty if they were not measured."""
        return Agreement(tuple((f.predicted_class.bound, f.measured_class.bound) for f in self._classified()))

    @property
    def textbook_agreement(self) -> Agreement:
        """Of intensity against the ridge with what was measured."""
        return Agreement(tuple((f.textbook_class.bound, f.measured_class.bound) for f in self._classified()))

    def _classified(self) -> list[Any]:
        return [layer for layer in self.layers if layer.measured_class is not None]

    @cached_property
    def ceilings(self) -> tuple[Ceiling, ...]:
        """What was measured of this machine that bounds a layer: arithmetic by type, bandwidth by level."""
        return ceilings_of(self.calibration)

    @property
    def peak(self) -> float:
        """The fastest product [FLOP/s]."""
        return self.calibration.rates.peak(DTYPE)

    def share(self, layer: Finding) -> float:
        """Of the measured time."""
        return layer.measured_seconds / self.measured_seconds

    def top(self, count: int = 5) -> list[Finding]:
        """The layers that take longest."""
        return sorted(self.layers, key=lambda layer: -layer.measured_seconds)[:count]

    @cached_property
    def gains(self) -> tuple[Gain, ...]:
        """By kind, from the one that takes longest."""
        spent: dict[str, float] = {}
        for layer in self.layers:
            spent[layer.kind] = spent.get(layer.kind, 0.0) + layer.measured_seconds
        ordered = sorted(spent.items(), key=lambda item: -item[1])
        return tuple(Gain(kind, seconds, seconds / self.measured_seconds) for kind, seconds in ordered)

    def fails(self, most: float) -> bool:
        """Whether the median error of the layers is more than `most`, a share."""
        return self.errors.median > most

    def rows(self) -> list[dict[str, Any]]:
        """Plain data of each layer; times [s], traffic [bytes]."""
        return [_row(self, layer) for layer in self.layers]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        from costmodel.roofline.sheet import headline

        return {
            "question": headline(self),
            "model": self.prediction.model.title,
            "machine": str(self.calibration.machine),
            "calibrated": self.calibration.created,
            "level": self.level,
            "warnings": list(self.warnings),
            "layers": self.rows(),
            "idle": list(self.idle),
            "predicted_seconds": self.predicted_seconds,
            "measured_seconds": self.measured_seconds,
            "error": self.error,
            "errors": self.errors.to_dict(),
            "agreement": self.agreement.to_dict() if self._classified() else None,
            "textbook_agreement": self.textbook_agreement.to_dict() if self._classified() else None,
            "gains": [{**asdict(g), "twice": g.twice, "limit": g.limit if g.share < 1 else None} for g in self.gains],
            "ceilings": [asdict(ceiling) for ceiling in self.ceilings],
        }

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=2)

    def to_dataframe(self) -> pandas.DataFrame:
        """A row for each layer. Needs pandas (extra `frame`)."""
        try:
            import pandas
        except ImportError:
            raise CostModelError("a data frame needs pandas: pip install 'costmodel[frame]'") from None
        return pandas.DataFrame(self.rows())

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """A page of its own, with tables and, if plotly is there, pictures; written to `path` if that is given."""
        from costmodel.display.figures import write
        from costmodel.roofline.page import page

        text = page(self)
        if path is not None:
            write(text, path)
        return text

    def plot(self, path: str | os.PathLike[str] | None = None, *, kind: str = "roofline", dark: bool = False) -> Any:
        """Draw it: a "roofline", a "scatter" of predicted against measured, or "bars" of time (extra `plot`).

        Returns matplotlib's figure, or writes what the path's ending names; .html is interactive and self-contained.
        """
        from costmodel.roofline.drawing import draw

        return draw(self, path, kind=kind, dark=dark)

    def __str__(self) -> str:
        from costmodel.roofline.sheet import text

        return text(self)

    def _repr_html_(self) -> str:
        from costmodel.roofline.sheet import html

        return html(self)


def _row(check: Check, layer: Finding) -> dict[str, Any]:
    numbers = ("repeat", "calls", "flops", "pointwise_flops", "compulsory_bytes", "numpy_bytes", "intensity")
    times = ("predicted_seconds", "measured_seconds", "error", "flops_per_second", "bytes_per_second")
    return {
        **{name: getattr(layer, name) for name in ("name", "kind", "phase", *numbers, *times)},
        **_ends("predicted", layer.predicted_interval),
        **_ends("measured", layer.measured_interval),
        "samples": layer.timing.count,
        "noise": layer.timing.noise,
        "share_of_peak": layer.flops_per_second / check.peak,
        "share_of_memory": layer.bytes_per_second / check.calibration.rates.memory_bandwidth,
        "share_of_time": check.share(layer),
        "dominant": layer.host.dominant,
        "predicted_class": str(layer.predicted_class),
        "measured_class": None if layer.measured_class is None else str(layer.measured_class),
        "textbook_class": str(layer.textbook_class),
        "program": layer.program,
    }


def _ends(name: str, interval: Sequence[float]) -> dict[str, float]:
    return {f"{name}_low": interval[0], f"{name}_high": interval[1]}
