"""Findings of a check: each layer's predicted and measured time, what bounds it, and tables and pictures of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from costmodel.analysis.predict import Prediction
from costmodel.cost.report import headline
from costmodel.display.answer import Answer, Sheet
from costmodel.display.rooflines import Ceiling, Chart, Dot
from costmodel.display.table import Table, TextRow, printable
from costmodel.display.units import show_bytes, show_change, show_count, show_rate, show_seconds
from costmodel.roofline.accuracy import Agreement, Errors
from costmodel.roofline.calibration import Calibration, ceilings_of
from costmodel.roofline.classification import Verdict, functions_in
from costmodel.roofline.hosttime import LEVELS, HostTime
from costmodel.roofline.inplace import RunInPlace
from costmodel.roofline.pictures import drawn, page
from costmodel.roofline.program import PassName, Program
from costmodel.roofline.timing import Timing

DTYPE = "float32"
"""What layers are run in."""
IN_PLACE, WARM = "in place", "warm"
MOST_ROWS = 60
"""Lines of the table, for the layers that take longest; `Check.layers` always has all."""
TOP = 8
NAMED = 4
"""Names in a line of the verdict."""
NAMED_LEFT_OUT = 3
"""Names of layers that have no place in a picture."""


@dataclass(frozen=True)
class LayerWork:
    """One pass of one layer, all its repeats together, before it is timed.

    flops: of contractions; pointwise_flops: all other arithmetic; both as on paper. compulsory_bytes: every input,
    weight and output moved once. work: what one repeat runs.
    """

    name: str
    kind: str
    phase: PassName
    repeat: int
    flops: int
    pointwise_flops: int
    compulsory_bytes: int
    work: Program = field(repr=False)

    @property
    def arithmetic(self) -> int:
        """All floating-point operations [FLOP]."""
        return self.flops + self.pointwise_flops


@dataclass(frozen=True)
class Finding(LayerWork):
    """The same with its times, which add up with those of other findings.

    program: equal for layers that are measured together, as they run the same program alone. timing: of one repeat, as
    is `host`. part: of the model, such as its attention.
    """

    program: int
    host: HostTime = field(repr=False)
    timing: Timing = field(repr=False)
    predicted_class: Verdict
    textbook_class: Verdict
    part: str = ""
    measured_class: Verdict | None = None

    @property
    def calls(self) -> int:
        """Of NumPy functions, in one repeat."""
        return len(self.work)

    @property
    def numpy_bytes(self) -> int:
        """All that NumPy's calls read and write [bytes]."""
        return self.repeat * self.work.traffic_bytes

    @property
    def verdict(self) -> Verdict:
        """What binds it: as measured, or as predicted where that was not asked for."""
        return self.measured_class or self.predicted_class

    @property
    def full_name(self) -> str:
        """With its pass, if that is the backward one."""
        return f"{self.name} ({self.phase})" if self.phase == "backward" else self.name

    @property
    def intensity(self) -> float:
        """All operations per byte of compulsory traffic [FLOP/B]; 0 where nothing moves."""
        return self.arithmetic / self.compulsory_bytes if self.compulsory_bytes else 0.0

    @property
    def predicted_seconds(self) -> float:
        """All repeats, by the model [s]."""
        return self.repeat * self.host.seconds

    @property
    def predicted_interval(self) -> tuple[float, float]:
        """90 % prediction interval [s]."""
        low, high = self.host.interval
        return self.repeat * low, self.repeat * high

    @cached_property
    def measured_seconds(self) -> float:
        """All repeats: the measured time of one, times their number [s]."""
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
        """Operations achieved [FLOP/s]."""
        return self.arithmetic / self.measured_seconds

    @property
    def bytes_per_second(self) -> float:
        """NumPy's traffic achieved [bytes/s]; more than memory gives where caches serve it."""
        return self.numpy_bytes / self.measured_seconds


@dataclass(frozen=True)
class Gain:
    """Speed-up of the whole from speeding up all layers of one kind, or of one part (Amdahl 1967)."""

    name: str
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data; a limit of None is infinite."""
        return {**asdict(self), "twice": self.twice, "limit": self.limit if self.share < 1 else None}


@dataclass(frozen=True, repr=False)
class Check(Answer):
    """Predicted and measured time of every layer, in place or alone.

    layers: those that compute or move something; idle: names of those that are views. warnings: why to doubt it.
    run: of the whole program, which measured them in place; None if each was run alone, then with so many bytes touched
    between two runs (`reuse_bytes`; 0 is warm). one_round: whether of each repeated block one round was run, and the
    others are taken to be like it.
    """

    prediction: Prediction = field(repr=False)
    calibration: Calibration = field(repr=False)
    level: int
    layers: tuple[Finding, ...] = field(repr=False)
    idle: tuple[str, ...] = field(repr=False)
    warnings: tuple[str, ...] = ()
    reuse_bytes: int = 0
    run: RunInPlace | None = field(default=None, repr=False)
    one_round: bool = False

    @property
    def question(self) -> str:
        """What was asked, in one line."""
        cold = f"cold ({show_bytes(self.reuse_bytes)} between two runs)"
        in_place = f"{IN_PLACE}, one round of each block" if self.one_round else IN_PLACE
        state = in_place if self.run is not None else f"each layer alone, {cold if self.reuse_bytes else WARM}"
        return f"{headline(self.prediction)}, {state}, held against the clock"

    @property
    def predicted_seconds(self) -> float:
        """Of all layers, repeats included [s]."""
        return sum(layer.predicted_seconds for layer in self.layers)

    @cached_property
    def measured_seconds(self) -> float:
        """Of all layers, repeats included [s]."""
        return sum(layer.measured_seconds for layer in self.layers)

    @cached_property
    def as_it_came(self) -> float:
        """The median of all samples: of whole passes if in place, else of each layer, added up [s]."""
        if self.run is not None:
            return self.run.as_it_came * (self.measured_seconds / self.run.seconds if self.one_round else 1)
        return sum(layer.repeat * layer.timing.median for layer in self.layers)

    @property
    def disturbance(self) -> float:
        """Time as it came over time undisturbed."""
        return self.as_it_came / self.measured_seconds

    @cached_property
    def resolved(self) -> float:
        """The share of the measured time that is of resolved layers."""
        return sum(layer.measured_seconds for layer in self.layers if layer.timing.resolved) / self.measured_seconds

    @property
    def error(self) -> float:
        """Of the sums: predicted over measured, less one."""
        return self.predicted_seconds / self.measured_seconds - 1

    @cached_property
    def errors(self) -> Errors:
        """Of the resolved layers, each once: `.median`, `.quantile(0.9)`, `.worst`, `.r_squared` (of log time)."""
        judged = [layer for layer in self.layers if layer.timing.resolved]
        return Errors(
            tuple(layer.predicted_seconds for layer in judged), tuple(layer.measured_seconds for layer in judged)
        )

    @cached_property
    def chart(self) -> Chart:
        """What the pictures show: a dot for each distinct program, from the one that takes longest."""
        groups: dict[int, list[Finding]] = {}
        for layer in self.layers:
            groups.setdefault(layer.program, []).append(layer)
        dots = sorted((_dot(self, layers) for layers in groups.values()), key=lambda dot: -dot.share)
        errors = str(self.errors) if self.errors.predicted else "no layer is resolved"
        return Chart(self.question, self.ceilings, tuple(dots), errors, _left_out(self))

    @property
    def agreement(self) -> Agreement:
        """Of predicted classes with measured ones, of resolved layers; empty if they were not measured."""
        return Agreement(tuple((f.predicted_class.bound, f.measured_class.bound) for f in self._classified()))

    @property
    def textbook_agreement(self) -> Agreement:
        """Of intensity against the ridge with what was measured."""
        return Agreement(tuple((f.textbook_class.bound, f.measured_class.coarse) for f in self._classified()))

    def _classified(self) -> list[Any]:
        """Layers whose class was measured, and that are resolved: others are not judged."""
        return [layer for layer in self.layers if layer.measured_class is not None and layer.timing.resolved]

    @cached_property
    def ceilings(self) -> tuple[Ceiling, ...]:
        """Measured ceilings of this machine: of products, of the functions that bind a layer or a good part of it,
        bandwidth by level."""
        binding = [each.verdict.level for each in self.layers if each.verdict.bound == "function"]
        part = [name for each in self.layers for name in functions_in(each.host, self.calibration)]
        functions = dict.fromkeys([*binding, *part])
        return ceilings_of(self.calibration, DTYPE, [name for name in functions if name != "random"])

    @property
    def peak(self) -> float:
        """The fastest product [FLOP/s]."""
        return self.calibration.rates.peak(DTYPE)

    @property
    def timings(self) -> dict[str, Timing]:
        """Of one repeat of each layer, by its full name."""
        return {layer.full_name: layer.timing for layer in self.layers}

    def share(self, layer: Finding) -> float:
        """Of the measured time."""
        return layer.measured_seconds / self.measured_seconds

    @cached_property
    def gains(self) -> tuple[Gain, ...]:
        """By kind, from the one that takes longest."""
        return self._gains("kind")

    @cached_property
    def part_gains(self) -> tuple[Gain, ...]:
        """By part: attention, MLP, norms, embedding, head; the stages of a CNN; from the one that takes longest."""
        return self._gains("part")

    def _gains(self, by: str) -> tuple[Gain, ...]:
        seconds = self.seconds_by(lambda layer: getattr(layer, by))
        return tuple(Gain(name, each, each / self.measured_seconds) for name, each in seconds.items())

    def seconds_by(self, key: Callable[[Finding], str]) -> dict[str, float]:
        """Measured time by a key of the layers, the largest first [s]."""
        seconds: dict[str, float] = {}
        for layer in self.layers:
            seconds[key(layer)] = seconds.get(key(layer), 0.0) + layer.measured_seconds
        return dict(sorted(seconds.items(), key=lambda item: -item[1]))

    @property
    def verdict(self) -> tuple[str, str, str]:
        """In three lines: what takes the time, what binds it, and how far the prediction is off."""
        spent = f"takes {show_seconds(self.measured_seconds)} undisturbed, {self.resolved:.0%} of it resolved"
        spent += f" ({show_seconds(self.as_it_came)} as it came, {self.disturbance:.2f} ×)"
        by = "" if any(layer.measured_class for layer in self.layers) else ", by the model"
        off = f"{abs(self.error):.1%} too {'long' if self.error > 0 else 'short'}"
        judged = str(self.errors) if self.errors.predicted else "none is resolved, so none is judged"
        return (
            f"{spent}: {_largest(self.seconds_by(lambda layer: layer.part))}",
            f"bound by{by}: {_largest(self.seconds_by(lambda layer: layer.verdict.name))}",
            f"predicted {show_seconds(self.predicted_seconds)}, {off}; layers: {judged}",
        )

    def fails(self, most: float) -> bool:
        """Whether the median error of the layers is more than `most`, a share."""
        return bool(self.errors.predicted) and self.errors.median > most

    def rows(self) -> list[dict[str, Any]]:
        """Plain data of each layer; times [s], traffic [bytes]."""
        return [self._row(layer) for layer in self.layers]

    def _row(self, layer: Finding) -> dict[str, Any]:
        numbers = ("repeat", "calls", "flops", "pointwise_flops", "compulsory_bytes", "numpy_bytes", "intensity")
        times = ("predicted_seconds", "measured_seconds", "error", "flops_per_second", "bytes_per_second")
        return {
            **{name: getattr(layer, name) for name in ("name", "kind", "phase", *numbers, *times)},
            **dict(zip(("predicted_low", "predicted_high"), layer.predicted_interval, strict=True)),
            **dict(zip(("measured_low", "measured_high"), layer.measured_interval, strict=True)),
            "as_it_came": layer.repeat * layer.timing.median,
            "samples": layer.timing.count,
            "resolved": layer.timing.resolved,
            "noise": layer.timing.noise,
            "share_of_peak": layer.flops_per_second / self.peak,
            "share_of_memory": layer.bytes_per_second / self.calibration.rates.memory_bandwidth,
            "share_of_time": self.share(layer),
            "dominant": layer.host.dominant,
            "predicted_class": str(layer.predicted_class),
            "measured_class": None if layer.measured_class is None else str(layer.measured_class),
            "textbook_class": str(layer.textbook_class),
            "part": layer.part,
            "program": layer.program,
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "question": self.question,
            "model": self.prediction.model.title,
            "machine": str(self.calibration.machine),
            "calibrated": self.calibration.created,
            "level": self.level,
            "warnings": list(self.warnings),
            "layers": self.rows(),
            "idle": list(self.idle),
            "predicted_seconds": self.predicted_seconds,
            "measured_seconds": self.measured_seconds,
            "as_it_came": self.as_it_came,
            "disturbance": self.disturbance,
            "resolved": self.resolved,
            "passes": None if self.run is None else len(self.run.passes),
            "error": self.error,
            "errors": self.errors.to_dict(),
            "agreement": self.agreement.to_dict() if self._classified() else None,
            "textbook_agreement": self.textbook_agreement.to_dict() if self._classified() else None,
            "verdict": list(self.verdict),
            "gains": [gain.to_dict() for gain in self.gains],
            "part_gains": [gain.to_dict() for gain in self.part_gains],
            "ceilings": [asdict(ceiling) for ceiling in self.ceilings],
        }

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """A page of its own, with tables and, if matplotlib is there, pictures; written to `path` if that is given."""
        return page(self.chart, self._repr_html_(), path)

    def plot(self, path: str | os.PathLike[str] | None = None, *, kind: str = "roofline", dark: bool = False) -> Any:
        """Draw it: a "roofline", a "scatter" of predicted against measured, or "bars" of time (extra `plot`).

        Returns matplotlib's figure, or writes what the path's ending names; .html is a page that needs nothing else.
        """
        return drawn(self.chart, str(self.calibration.machine), path, kind=kind, dark=dark)

    def sheet(self) -> Sheet:
        """The verdict, layers, how far predictions are off, what takes longest, and what binds layers if measured."""
        errors, kind = self.errors, "If one kind were faster"
        judged = f"{len(errors.predicted)} of {len(self.layers)} layers, the resolved ones"
        header = (f"Error by level {self.level}: {LEVELS[self.level]}", *Errors.HEADER)
        tables = [_layers(self), _gains("If one part were faster", self.part_gains), _gains(kind, self.gains)]
        tables.append(Table(header, [(judged, *errors.cells())]))
        if self.agreement.pairs:
            agreements = {"the model": self.agreement, "intensity against the ridge": self.textbook_agreement}
            rows = [(name, *agreement.cells()) for name, agreement in agreements.items()]
            tables.append(Table(("What binds a layer, by", *Agreement.HEADER), rows))
        idle = [f"without a call, and so without a line: {len(self.idle)} views and the like"] if self.idle else []
        head = [self.question, *self.verdict, str(self.calibration.machine)]
        return Sheet(head, tables, self.warnings, [*idle, *NOTES])


NOTES = (
    "layers: a row is all repeats; bytes are compulsory (inputs, weights and outputs moved once)"
    " and NumPy's own passes; FLOP/B is operations of both sorts a compulsory byte",
    "times: the lower quartile of samples that are known to be undisturbed (~: too few of them, unresolved);"
    " ± is half its 95 % interval; off is predicted over measured, less one",
    "rates: what was achieved, of the fastest product; GB/s of NumPy's passes, which caches serve faster than memory",
    "bound by: the model's terms; measured, by changing one thing at a time; textbook, intensity against the ridge;"
    " ? is too close to call",
)


def _largest(seconds: Mapping[str, float]) -> str:
    """Names with their shares of time, those that are worth naming; the largest come first [s]."""
    whole = sum(seconds.values())
    shares = [(name, each / whole) for name, each in seconds.items() if each / whole >= 0.01][:NAMED]
    rest = 1 - sum(share for _, share in shares)
    names = [f"{printable(name)} {share:.0%}" for name, share in shares]
    return ", ".join([*names, *([f"all else {rest:.0%}"] if rest >= 0.005 else [])])


HEADER = ("layer", "measured", "share", "off", "bound by", "model says", "predicted", "±", "× as it came", "kind")
HEADER += ("FLOPs", "FLOP/s", "of peak", "GB/s", "FLOP/B", "bytes", "NumPy's", "textbook")
WORDS = frozenset(map(HEADER.index, ("layer", "bound by", "model says", "kind", "textbook")))


def _layers(check: Check) -> Table:
    ordered = sorted(check.layers, key=lambda layer: -layer.measured_seconds)
    longest = {id(layer) for layer in ordered[:MOST_ROWS]}
    rows = [_line(check, layer) for layer in check.layers if id(layer) in longest]
    if others := [layer for layer in check.layers if id(layer) not in longest]:
        rows.append(_sum(check, others, f"{len(others)} others"))
    rows.append(_sum(check, check.layers, "total"))
    return Table(HEADER, rows, words=WORDS, total=True, worth=HEADER[1:9])


def _line(check: Check, layer: Finding) -> TextRow:
    low, high = layer.measured_interval
    kind = f"{layer.kind} ×{layer.repeat}" if layer.repeat > 1 else layer.kind
    half = f"{(high - low) / 2 / layer.measured_seconds:.1%}" if layer.timing.resolved else "unresolved"
    classes = (layer.measured_class or "-", layer.predicted_class, layer.textbook_class)
    return _cells(check, [layer], (printable(layer.full_name), kind), half, tuple(map(str, classes)))


def _sum(check: Check, layers: Sequence[Finding], name: str) -> TextRow:
    return _cells(check, layers, (name, f"{sum(layer.repeat for layer in layers):,} runs"), "", ("", "", ""))


def _cells(check: Check, layers: Sequence[Finding], names: TextRow, half: str, classes: TextRow) -> TextRow:
    """A line of the table: layers added up. half: of the interval of measured time."""
    fields = ("arithmetic", "compulsory_bytes", "numpy_bytes", "predicted_seconds", "measured_seconds")
    arithmetic, compulsory, numpy, predicted, measured = (
        sum(getattr(layer, field) for layer in layers) for field in fields
    )
    came = sum(layer.repeat * layer.timing.median for layer in layers)
    resolved = all(layer.timing.resolved for layer in layers)
    return (
        names[0],
        f"{'' if resolved else '~'}{show_seconds(measured)}",
        f"{measured / check.measured_seconds:.1%}" if len(layers) < len(check.layers) else "100%",
        show_change(predicted / measured - 1, 1),
        classes[0],
        classes[1],
        show_seconds(predicted),
        half,
        f"{came / measured:.2f}",
        names[1],
        show_count(arithmetic) if arithmetic else "-",
        show_rate(arithmetic / measured) if arithmetic else "-",
        f"{arithmetic / measured / check.peak:.1%}" if arithmetic else "-",
        f"{numpy / measured / 1e9:.1f}",
        f"{arithmetic / compulsory:.2f}" if arithmetic and compulsory else "-",
        show_bytes(compulsory),
        show_bytes(numpy),
        classes[2],
    )


def _gains(title: str, gains: Sequence[Gain]) -> Table:
    rows = [
        (
            gain.name,
            show_seconds(gain.seconds),
            f"{gain.share:.1%}",
            f"{gain.twice:.2f}×",
            "∞" if gain.share == 1 else f"{gain.limit:.2f}×",
        )
        for gain in gains[:TOP]
    ]
    return Table((title, "time", "share", "twice as fast: all", "at most"), rows)


def _dot(check: Check, layers: list[Finding]) -> Dot:
    """Layers that run one program."""
    layer = layers[0]
    label = printable(layer.full_name) + (f" +{len(layers) - 1}" if len(layers) > 1 else "")
    share = sum(map(check.share, layers))
    return Dot(
        label=label,
        bound=layer.verdict.bound,
        share=share,
        intensity=layer.intensity,
        predicted_rate=layer.arithmetic / layer.predicted_seconds,
        measured_rate=layer.flops_per_second,
        predicted_seconds=layer.predicted_seconds / layer.repeat,
        measured_seconds=layer.measured_seconds / layer.repeat,
        predicted_total=sum(each.predicted_seconds for each in layers),
        measured_total=sum(each.measured_seconds for each in layers),
        error=layer.error,
        details=(label, *_details(check, layer, sum(each.repeat for each in layers), share)),
        ranges=(layer.host.interval, layer.timing.interval),
    )


def _details(check: Check, layer: Finding, runs: int, share: float) -> list[str]:
    """Lines that are shown on hovering: measured, predicted, traffic, rates and classes of one run."""
    times, (low, high) = layer.repeat, layer.timing.interval
    lines = [
        f"{layer.kind}, {runs} runs, {share:.1%} of the time",
        f"measured {show_seconds(layer.measured_seconds / times)} ({show_seconds(low)} to {show_seconds(high)})",
        f"predicted {show_seconds(layer.predicted_seconds / times)} ({show_change(layer.error, 1)}), most of it"
        f" {layer.host.dominant}",
        f"{show_count(layer.arithmetic // times)}FLOP, {show_bytes(layer.compulsory_bytes // times)}"
        f" compulsory, {show_bytes(layer.numpy_bytes // times)} by NumPy",
    ]
    if layer.arithmetic:
        rate, of_peak = show_rate(layer.flops_per_second), layer.flops_per_second / check.peak
        lines.append(f"{layer.intensity:.2f} FLOP/B, {rate}FLOP/s, {of_peak:.1%} of peak")
    measured = layer.measured_class or "not asked"
    return [*lines, f"bound by: model {layer.predicted_class}, measured {measured}, textbook {layer.textbook_class}"]


def _left_out(check: Check) -> str:
    """Which layers have no place on a roofline, as they do no arithmetic, and how much of the time they take."""
    left = [layer for layer in check.layers if not layer.intensity]
    if not left:
        return ""
    names = ", ".join(printable(layer.full_name) for layer in left[:NAMED_LEFT_OUT])
    more = f" and {len(left) - NAMED_LEFT_OUT} more" if len(left) > NAMED_LEFT_OUT else ""
    return f"not shown, as they only move: {names}{more} ({sum(map(check.share, left)):.1%} of the time)"
