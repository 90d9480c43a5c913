"""A check: each layer's predicted time held against its measured time, and what bounds it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from costmodel.architectures.base import Architecture
from costmodel.cost.prediction import Prediction
from costmodel.cost.report import headline
from costmodel.cost.rows import traffic
from costmodel.display.answer import Answer
from costmodel.display.rooflines import Ceiling
from costmodel.display.sheet import Sheet
from costmodel.display.table import Cells, Table, printable
from costmodel.display.units import read_budget, show_bytes, show_count, show_rate, show_seconds, show_share
from costmodel.errors import SettingError, shown
from costmodel.graph.tensor import Call
from costmodel.roofline.accuracy import Agreement, Errors
from costmodel.roofline.calibration import Calibration, Progress, Say, bar, calibrated, ceilings_of
from costmodel.roofline.classification import Verdict, classify, naive, predicted
from costmodel.roofline.hosttime import LEVELS, HostTime, compulsory_bytes_of, predict_seconds
from costmodel.roofline.memory import check_fits
from costmodel.roofline.program import Op, Phase, Program
from costmodel.roofline.recorder import asked, layer_programs
from costmodel.roofline.reference import Buffer, Ref
from costmodel.roofline.timing import Protocol, Timing, copies_of, measure, room
from costmodel.training.settings import GivenSettings, takes_settings

if TYPE_CHECKING:
    pass

DTYPE = "float32"
"""What layers are run in."""
PROTOCOL = Protocol(rounds=200, item_seconds=1.0, budget=15.0)
"""Of the measurement of each layer."""
MOST_ROUNDS = 1000
MOST_ROWS = 60
"""Lines of the table, for the layers that take longest; `Check.layers` always has all."""
TOP = 5


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
    def full_name(self) -> str:
        """With its pass, if that is not the forward one."""
        return self.name if self.phase == "forward" else f"{self.name} ({self.phase})"

    @property
    def arithmetic(self) -> int:
        """All floating-point operations [FLOP]."""
        return self.flops + self.pointwise_flops

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
    """Speed-up of the whole from speeding up all layers of one kind (Amdahl 1967)."""

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


@dataclass(frozen=True, repr=False)
class Check(Answer):
    """Predicted and measured time of every layer, each run alone.

    layers: those that compute or move something; idle: names of those that are views. warnings: why to doubt it.
    reuse_bytes: bytes touched between two runs of a layer; 0 if warm.
    """

    prediction: Prediction = field(repr=False)
    calibration: Calibration = field(repr=False)
    level: int
    layers: tuple[Finding, ...] = field(repr=False)
    idle: tuple[str, ...] = field(repr=False)
    warnings: tuple[str, ...] = ()
    reuse_bytes: int = 0

    @property
    def question(self) -> str:
        """What was asked, in one line."""
        state = f"cold ({show_bytes(self.reuse_bytes)} between two runs)" if self.reuse_bytes else "warm"
        return f"{headline(self.prediction)}, {state}, held against the clock"

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
        """Measured ceilings of this machine: arithmetic by type, bandwidth by level."""
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
        return [self._row(layer) for layer in self.layers]

    def _row(self, layer: Finding) -> dict[str, Any]:
        numbers = ("repeat", "calls", "flops", "pointwise_flops", "compulsory_bytes", "numpy_bytes", "intensity")
        times = ("predicted_seconds", "measured_seconds", "error", "flops_per_second", "bytes_per_second")
        return {
            **{name: getattr(layer, name) for name in ("name", "kind", "phase", *numbers, *times)},
            **dict(zip(("predicted_low", "predicted_high"), layer.predicted_interval, strict=True)),
            **dict(zip(("measured_low", "measured_high"), layer.measured_interval, strict=True)),
            "samples": layer.timing.count,
            "noise": layer.timing.noise,
            "share_of_peak": layer.flops_per_second / self.peak,
            "share_of_memory": layer.bytes_per_second / self.calibration.rates.memory_bandwidth,
            "share_of_time": self.share(layer),
            "dominant": layer.host.dominant,
            "predicted_class": str(layer.predicted_class),
            "measured_class": None if layer.measured_class is None else str(layer.measured_class),
            "textbook_class": str(layer.textbook_class),
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
            "error": self.error,
            "errors": self.errors.to_dict(),
            "agreement": self.agreement.to_dict() if self._classified() else None,
            "textbook_agreement": self.textbook_agreement.to_dict() if self._classified() else None,
            "gains": [{**asdict(g), "twice": g.twice, "limit": g.limit if g.share < 1 else None} for g in self.gains],
            "ceilings": [asdict(ceiling) for ceiling in self.ceilings],
        }

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """A page of its own, with tables and, if plotly is there, pictures; written to `path` if that is given."""
        from costmodel.display.figures import write
        from costmodel.roofline.pictures import page

        text = page(self)
        if path is not None:
            write(text, path)
        return text

    def plot(self, path: str | os.PathLike[str] | None = None, *, kind: str = "roofline", dark: bool = False) -> Any:
        """Draw it: a "roofline", a "scatter" of predicted against measured, or "bars" of time (extra `plot`).

        Returns matplotlib's figure, or writes what the path's ending names; .html is interactive and self-contained.
        """
        from costmodel.roofline.pictures import plot

        return plot(self, path, kind=kind, dark=dark)

    def sheet(self) -> Sheet:
        """Layers, and whole programs, with what the paper and the clock say of each."""
        return _sheet(self)


@takes_settings(mode="inference")
def check(
    model: Architecture | Prediction | str,
    *,
    level: int = 6,
    rounds: int | None = None,
    classes: bool = True,
    reuse: int | str = 0,
    calibration: Calibration | None = None,
    progress: bool | Progress = False,
    say: Say | None = None,
    **settings: Unpack[GivenSettings],
) -> Check:
    """Hold the predicted time of each layer against its measured time, alone, on one thread.

    Args:
        model: as `predict` takes it, or a prediction.
        level: which model of host time, 1 to 6; see `costmodel.roofline.hosttime`.
        rounds: turns of measurement, of three samples each; more make intervals narrower.
        classes: whether to measure also what bounds each layer, which takes as long again; of warm layers only.
        reuse: 0 for warm layers; else cold ones, so many bytes (or a size such as "64 MiB") being touched between two
            runs of a layer, as copies of its memory take turns.
        calibration: of this machine; the stored one unless given, and a quick one is made if there is none.
        progress: a bar on stderr, or a function that is told the share done.
        say: is told what there is to know of the calibration, as that it had to be made; a warning unless given.
        **settings: as `predict` takes them; mode is "inference" unless given. In mode "train" a layer's backward pass
            has a line of its own.

    Raises:
        CostModelError: a wrong setting, or more memory than there is, before anything is allocated.

    """
    if level not in LEVELS or isinstance(level, bool):
        raise SettingError(f"level {shown(level)} is none of {', '.join(map(str, LEVELS))}")
    prediction, protocol = asked(model, settings), with_rounds(PROTOCOL, rounds)
    passes = [each for call in prediction.run.root.calls() for each in _passes(call)]
    busy = [each for each in passes if each.program.ops]
    if not busy:
        raise SettingError(f"{prediction.model.title} has no layer that computes anything: nothing can be measured")
    numbers = _numbered([each.program for each in busy])
    distinct = {number: each.program for number, each in zip(numbers, busy, strict=True)}
    programs = list(distinct.values())
    reuse_bytes = read_budget(reuse, "reuse").bytes if reuse != 0 else 0
    check_fits(room(programs, reuse_bytes), prediction.model.title)
    calibration = calibration or calibrated(progress=progress, say=say)
    with bar(progress, "measuring") as told:
        timings = measure(programs, reuse_bytes=reuse_bytes, protocol=protocol, progress=told)
    known = classes and not reuse_bytes
    bounds = classify(programs, [t.seconds for t in timings], calibration.machine) if known else [None] * len(programs)
    found = dict(zip(distinct, zip(programs, timings, bounds, strict=True), strict=True))
    layers = []
    for each, number in zip(busy, numbers, strict=True):
        program, timing, bound = found[number]
        between = (copies_of(program, reuse_bytes) - 1) * program.touched_bytes
        host = predict_seconds(
            program, calibration, level=level, compulsory_bytes=each.compulsory_bytes, between=between
        )
        layers.append(_finding(each, number, host, timing, bound, calibration))
    idle = tuple(each.call.name for each in passes if each.phase == "forward" and not each.program.ops)
    return Check(prediction, calibration, level, tuple(layers), idle, _warnings(calibration, layers), reuse_bytes)


def with_rounds(protocol: Protocol, rounds: int | None) -> Protocol:
    """The protocol with `rounds` turns of each item, unless None. Raises SettingError."""
    if rounds is None:
        return protocol
    if isinstance(rounds, bool) or not isinstance(rounds, int) or not 1 <= rounds <= MOST_ROUNDS:
        raise SettingError(f"rounds {shown(rounds)} is not a whole number from 1 to {MOST_ROUNDS:,}")
    return replace(protocol, rounds=rounds, least_rounds=rounds)


class _Pass(NamedTuple):
    """One pass of one layer, not yet timed; FLOPs and bytes are of one repeat."""

    call: Call
    phase: Phase
    program: Program
    flops: int
    pointwise_flops: int
    compulsory_bytes: int


def _passes(call: Call) -> Iterator[_Pass]:
    forward, backward = layer_programs(call)
    work = call.kind.forward(call)
    yield _Pass(call, "forward", forward, int(work.contractions), int(work.pointwise), int(traffic(call)))
    if backward is not None:
        works = [work for _, work, _ in call.gradients()]
        flops, pointwise = (sum(int(getattr(work, name)) for work in works) for name in ("contractions", "pointwise"))
        yield _Pass(call, "backward", backward, flops, pointwise, compulsory_bytes_of(backward))


def _finding(
    each: _Pass, number: int, host: HostTime, timing: Timing, bound: Verdict | None, by: Calibration
) -> Finding:
    repeat, rates = int(each.call.times), by.rates
    arithmetic = each.flops + each.pointwise_flops
    return Finding(
        name=each.call.name,
        kind=each.call.kind.kind,
        phase=each.phase,
        repeat=repeat,
        calls=len(each.program),
        flops=repeat * each.flops,
        pointwise_flops=repeat * each.pointwise_flops,
        compulsory_bytes=repeat * each.compulsory_bytes,
        numpy_bytes=repeat * each.program.traffic_bytes,
        program=number,
        host=host,
        timing=timing,
        predicted_class=predicted(host.terms, by.machine),
        textbook_class=naive(arithmetic, each.compulsory_bytes, rates.peak(DTYPE), rates.memory_bandwidth),
        measured_class=bound,
    )


def _numbered(programs: list[Program]) -> list[int]:
    """A number for each program, equal for those that make the same calls on arrays laid out alike."""
    known: dict[Any, int] = {}
    return [known.setdefault(_likeness(program), len(known)) for program in programs]


def _likeness(program: Program) -> tuple[Any, ...]:
    """What decides a program's run: calls, layouts, and which arrays share memory."""
    places: dict[Buffer, int] = {}

    def seen(x: Ref | float) -> Any:
        if not isinstance(x, Ref):
            return x
        return places.setdefault(x.buffer, len(places)), x.buffer.elements, x.dtype, x.shape, x.steps, x.offset

    def likeness(op: Op) -> Any:
        return op.name, tuple(map(seen, op.inputs)), seen(op.output), repr(sorted(op.params.items()))

    return tuple(map(likeness, program))


def _warnings(calibration: Calibration, layers: Sequence[Finding]) -> tuple[str, ...]:
    noisy = [layer for layer in layers if layer.timing.noise]
    found = list(calibration.warnings)
    if noisy:
        worst = max(noisy, key=lambda layer: layer.measured_interval[1] / layer.measured_interval[0])
        found.append(
            f"{len(noisy)} of {len(layers)} measurements are noisy, such as {worst.name}: {worst.timing.noise}"
        )
    return tuple(found)


NOTES = (
    "layers: each alone, a row all its repeats; bytes are compulsory (inputs, weights and outputs moved once)"
    " and NumPy's own passes; FLOP/B is operations of both sorts a compulsory byte",
    "times: CPU time of one thread, the fastest of all samples; ± is half its 95 % interval;"
    " off is predicted over measured, less one",
    "rates: what was achieved, of the fastest product; GB/s of NumPy's passes, which caches serve faster than memory",
    "bound by: the model's terms; measured, by changing one thing at a time; textbook, intensity against the ridge;"
    " ? is too close to call",
)


NOTES = (
    "layers: each alone, a row all its repeats; bytes are compulsory (inputs, weights and outputs moved once)"
    " and NumPy's own passes; FLOP/B is operations of both sorts a compulsory byte",
    "times: CPU time of one thread, the fastest of all samples; ± is half its 95 % interval;"
    " off is predicted over measured, less one",
    "rates: what was achieved, of the fastest product; GB/s of NumPy's passes, which caches serve faster than memory",
    "bound by: the model's terms; measured, by changing one thing at a time; textbook, intensity against the ridge;"
    " ? is too close to call",
)


def _sheet(check: Check) -> Sheet:
    """Layers, how far predictions are off, what takes longest, and what bounds layers if that was measured."""
    errors = Table(
        (f"Error by level {check.level}: {LEVELS[check.level]}", "median", "p90", "worst", "R² log"),
        [(f"{len(check.layers)} layers, {len({x.program for x in check.layers})} measured", *check.errors.cells())],
    )
    tables = [_layers(check), errors, _gains(check)]
    if check.agreement.pairs:
        asked = {"the model": check.agreement, "intensity against the ridge": check.textbook_agreement}
        rows = [(name, *found.cells()) for name, found in asked.items()]
        tables.append(Table(("What bounds a layer, by", "layers", "agree", "kappa"), rows))
    idle = [f"without a call, and so without a line: {len(check.idle)} views and the like"] if check.idle else []
    return Sheet([check.question, str(check.calibration.machine)], tables, check.warnings, [*idle, *NOTES])


def _layers(check: Check) -> Table:
    header = ("layer", "kind", "FLOPs", "bytes", "NumPy's", "FLOP/B", "predicted", "measured", "±", "off")
    header += ("FLOP/s", "of peak", "GB/s", "bound by model", "measured", "textbook", "share")
    longest = {id(layer) for layer in check.top(MOST_ROWS)}
    rows = [_line(check, layer) for layer in check.layers if id(layer) in longest]
    if others := [layer for layer in check.layers if id(layer) not in longest]:
        rows.append(_sum(check, others, f"{len(others)} others"))
    rows.append(_sum(check, check.layers, "total"))
    return Table(header, rows, words=frozenset({0, 1, 13, 14, 15}), total=True)


def _line(check: Check, layer: Finding) -> Cells:
    low, high = layer.measured_interval
    kind = f"{layer.kind} ×{layer.repeat}" if layer.repeat > 1 else layer.kind
    half = f"{(high - low) / 2 / layer.measured_seconds:.1%}"
    classes = (layer.predicted_class, layer.measured_class or "-", layer.textbook_class)
    return _cells(check, [layer], (printable(layer.full_name), kind), half, tuple(map(str, classes)))


def _sum(check: Check, layers: Sequence[Finding], name: str) -> Cells:
    return _cells(check, layers, (name, f"{sum(layer.repeat for layer in layers):,} runs"), "", ("", "", ""))


def _cells(check: Check, layers: Sequence[Finding], names: Cells, half: str, classes: Cells) -> Cells:
    """A line of the table: layers added up. half: of the interval of measured time."""
    fields = ("arithmetic", "compulsory_bytes", "numpy_bytes", "predicted_seconds", "measured_seconds")
    arithmetic, compulsory, numpy, predicted, measured = (
        sum(getattr(layer, field) for layer in layers) for field in fields
    )
    return (
        *names,
        show_count(arithmetic) if arithmetic else "-",
        show_bytes(compulsory),
        show_bytes(numpy),
        f"{arithmetic / compulsory:.2f}" if arithmetic and compulsory else "-",
        show_seconds(predicted),
        show_seconds(measured),
        half,
        f"{predicted / measured - 1:+.1%}",
        show_rate(arithmetic / measured) if arithmetic else "-",
        f"{arithmetic / measured / check.peak:.1%}" if arithmetic else "-",
        f"{numpy / measured / 1e9:.1f}",
        *classes,
        f"{measured / check.measured_seconds:.1%}" if len(layers) < len(check.layers) else "100%",
    )


def _gains(check: Check) -> Table:
    whole = int(1e12 * check.measured_seconds)
    rows = [
        (
            gain.kind,
            show_seconds(gain.seconds),
            show_share(int(1e12 * gain.seconds), whole),
            f"{gain.twice:.2f}×",
            "∞" if gain.share == 1 else f"{gain.limit:.2f}×",
        )
        for gain in check.gains[:TOP]
    ]
    return Table(("If one kind were faster", "time", "share", "twice as fast: all", "at most"), rows)
