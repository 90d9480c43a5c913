"""Validation: errors of the predictions on this host, for layers and whole programs that no calibration measured.

Calibration stands before and after the measurement (the faster of each probe counts), and each layer is measured twice
(the faster counts): how far the two differ is the floor that no prediction gets below. Whole programs are measured in
place, call by call, twice too, so that every NumPy function has a row: what is off there is what to mend next. What had
too few undisturbed moments is unresolved, and not judged.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from math import log
from typing import Any

from costmodel.architectures.base import Architecture
from costmodel.architectures.transformer import Transformer
from costmodel.cost.prediction import predict
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table
from costmodel.display.units import show_change
from costmodel.errors import SettingError, shown
from costmodel.roofline.calibration import LONGEST, Calibration, measure_probes
from costmodel.roofline.classification import BOUNDS, Bound, Verdict, classify, naive, predicted
from costmodel.roofline.host import Sentinel
from costmodel.roofline.hosttime import LEVELS, HostTime, compulsory_bytes_of, predict_seconds
from costmodel.roofline.passage import Passage, measure_in_place
from costmodel.roofline.probes import placed, probes
from costmodel.roofline.program import Program
from costmodel.roofline.recorder import forward_program, network_of
from costmodel.roofline.signature import Signature, signature_of
from costmodel.roofline.timing import Protocol, measure


@dataclass(frozen=True)
class Errors:
    """Relative errors of predicted times, as shares of the measured ones."""

    predicted: tuple[float, ...]
    measured: tuple[float, ...]

    @property
    def shares(self) -> list[float]:
        """Predicted over measured, less one."""
        return [p / m - 1 for p, m in zip(self.predicted, self.measured, strict=True)]

    def quantile(self, share: float) -> float:
        """Of the absolute errors; not a number if there are none."""
        import numpy as np

        if not self.predicted:
            return float("nan")
        return float(np.quantile(np.abs(self.shares), share))

    @property
    def median(self) -> float:
        """Of the absolute errors."""
        return self.quantile(0.5)

    @property
    def worst(self) -> float:
        """The largest absolute error."""
        return self.quantile(1.0)

    @property
    def r_squared(self) -> float:
        """Coefficient of determination of log time; 0 if all measured times are equal."""
        if not self.measured:
            return float("nan")
        logs = [log(m) for m in self.measured]
        mean = sum(logs) / len(logs)
        left = sum(log(p / m) ** 2 for p, m in zip(self.predicted, self.measured, strict=True))
        whole = sum((x - mean) ** 2 for x in logs)
        return 1 - left / whole if whole else 0.0

    def to_dict(self) -> dict[str, float | None]:
        """Plain data; None where nothing was measured."""
        found = {"median": self.median, "p90": self.quantile(0.9), "worst": self.worst, "r_squared": self.r_squared}
        return {name: value if self.predicted else None for name, value in found.items()}

    def cells(self) -> tuple[str, ...]:
        """For a table: median, 90 % quantile, worst, R² of log time."""
        if not self.predicted:
            return ("-",) * 4
        return (f"{self.median:.1%}", f"{self.quantile(0.9):.1%}", f"{self.worst:.1%}", f"{self.r_squared:.4f}")


@dataclass(frozen=True)
class Agreement:
    """Predicted classes against measured ones, pair by pair."""

    pairs: tuple[tuple[Bound, Bound], ...]

    @property
    def share(self) -> float:
        """Of pairs that agree."""
        return sum(a == b for a, b in self.pairs) / len(self.pairs) if self.pairs else 1.0

    @property
    def kappa(self) -> float:
        """Cohen's kappa (1960): agreement beyond what the two would have by chance; 1 if there is but one class."""
        if not self.pairs:
            return 1.0
        count = len(self.pairs)
        rows, columns = Counter(a for a, _ in self.pairs), Counter(b for _, b in self.pairs)
        chance = sum(number * columns[bound] for bound, number in rows.items()) / count**2
        return 1.0 if chance == 1 else (self.share - chance) / (1 - chance)

    @property
    def recalls(self) -> dict[Bound, float]:
        """Of each measured class: the share that is predicted."""
        measured: Counter[Bound] = Counter(b for _, b in self.pairs)
        met: Counter[Bound] = Counter(b for a, b in self.pairs if a == b)
        return {bound: met[bound] / number for bound, number in measured.items()}

    @property
    def confusion(self) -> dict[tuple[Bound, Bound], int]:
        """How many of each (predicted, measured)."""
        counted = Counter(self.pairs)
        return {(a, b): counted[a, b] for a in BOUNDS for b in BOUNDS}

    def to_dict(self) -> dict[str, Any]:
        """Plain data; confusion as ``"predicted measured"``."""
        confusion = {f"{a} {b}": count for (a, b), count in self.confusion.items()}
        found = {"layers": len(self.pairs), "share": self.share, "kappa": self.kappa, "recalls": self.recalls}
        return {**found, "confusion": confusion}

    def cells(self) -> tuple[str, ...]:
        """For a table: layers, share that agrees, kappa, and the class with the lowest recall."""
        if not self.pairs:
            return ("0", "-", "-", "-")
        lowest = min(self.recalls.items(), key=lambda item: item[1], default=("-", 1.0))
        return str(len(self.pairs)), f"{self.share:.0%}", f"{self.kappa:.2f}", f"{lowest[0]} {lowest[1]:.0%}"


Case = tuple[str, dict[str, Any]]

CASES: tuple[Case, ...] = (
    ("gpt2-small", {"batch": 1, "seq": 64}),
    ("gpt2-small", {"batch": 1, "seq": 128}),
    ("gpt2-small", {"batch": 2, "seq": 256}),
    ("gpt2-small", {"batch": 4, "seq": 128}),
    ("gpt2-small", {"batch": 1, "seq": 512}),
    ("resnet18", {"batch": 1}),
    ("resnet50", {"batch": 1}),
    ("vgg16", {"batch": 1}),
    ("mlp-mnist", {"batch": 1}),
    ("mlp-mnist", {"batch": 64}),
    ("mlp-mnist", {"batch": 512}),
)
"""Whose layers are predicted."""

LARGEST_FLOPS = 4e9
"""Larger layers are left out: they would take most of the time."""


@dataclass(frozen=True)
class Layer:
    """One distinct layer: where it was found first, its kind, and its forward pass."""

    name: str
    kind: str
    program: Program


def layers_of(cases: Iterable[Case] = CASES) -> list[Layer]:
    """The distinct layers of models, none that a calibration has measured."""
    found: dict[tuple[Signature, ...], Layer] = {}
    for model, settings in cases:
        said = ", ".join(f"{name} {value}" for name, value in settings.items())
        for call in predict(model, mode="inference", **settings).tape.root.calls():
            program = forward_program(call)
            key = tuple(signature_of(op) for op in program)
            if key and program.contractions <= LARGEST_FLOPS:
                found.setdefault(key, Layer(f"{model} ({said}) {call.name}", call.layer.kind, program))
    keep_apart(layer.program for layer in found.values())
    return list(found.values())


def keep_apart(programs: Iterable[Program]) -> None:
    """Assert that no matrix product or row loop to be predicted is one that a calibration measures."""
    probed = {signature_of(p.op): p.name for thorough in (False, True) for p in probes(thorough)}
    probed |= {signature_of(op): op.layer for op in placed()}
    for program in programs:
        for op in program:
            same = probed.get(signature_of(op))
            assert same is None, f"{op} of {program.name} is the probe {same!r}"


WHOLE: tuple[tuple[Architecture | str, dict[str, Any]], ...] = (
    ("gpt2-small", {"batch": 1, "seq": 32, "mode": "inference"}),
    ("gpt2-small", {"batch": 1, "seq": 64, "mode": "inference"}),
    ("gpt2-small", {"batch": 1, "seq": 128, "mode": "inference"}),
    ("gpt2-small", {"batch": 1, "seq": 256, "mode": "inference"}),
    ("resnet18", {"batch": 1, "mode": "inference"}),
    ("resnet50", {"batch": 1, "mode": "inference"}),
    ("vgg16", {"batch": 1, "image": (112, 112), "mode": "inference"}),
    ("resnet18", {"batch": 2, "image": (64, 64), "mode": "train", "optimizer": "sgd"}),
    ("mlp-mnist", {"batch": 1, "mode": "inference"}),
    ("mlp-mnist", {"batch": 512, "mode": "inference"}),
    ("mlp-mnist", {"batch": 64, "mode": "train"}),
    ("mlp-mnist", {"batch": 512, "mode": "train"}),
    ("mlp-lenet-300-100", {"batch": 128, "mode": "train"}),
    (
        Transformer(name="small transformer", vocab=5000, context=128, layers=4, width=256, heads=4),
        {"batch": 2, "seq": 128, "mode": "train"},
    ),
)
"""Forward passes and training steps that are predicted whole."""

PROTOCOL = Protocol(least_rounds=2, item_seconds=4.0)
"""Of each of the two measurements of the layers."""
BUDGET, LEAST_BUDGET = 230.0, 100.0
"""Of all measurements, unless given, and at least [s]."""
CALIBRATION_SHARE, LAYERS_SHARE, CLASSES_SHARE, WHOLE_SHARE = 0.11, 0.19, 0.1, 0.3
"""Of the budget: of each of the two calibrations, of each of the two measurements of the layers, of what binds them,
and of all whole programs together."""
SHARE = 0.03
"""Share of some program's time from which a function is worth a row."""


@dataclass(frozen=True)
class Whole:
    """One whole program, in place [s]. resolved: the share of its time that is of settled calls."""

    name: str
    predicted: float
    measured: float
    as_it_came: float = 0.0
    resolved: float = 1.0


@dataclass(frozen=True)
class Function:
    """All calls of one NumPy function in the whole programs [s]. share: most that it takes of one of them."""

    name: str
    calls: int
    predicted: float
    measured: float
    share: float

    @property
    def bias(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True, repr=False)
class Validation(Answer):
    """Predictions and measurements side by side, with the calibration between them.

    times: of each layer, measured twice [s]; resolved: whether both are. whole, functions: of whole programs.
    bounds: (predicted, measured, by the textbook) of each layer; None where the budget did not last.
    """

    calibration: Calibration
    layers: tuple[Layer, ...]
    times: tuple[tuple[float, float], ...]
    whole: tuple[Whole, ...]
    functions: tuple[Function, ...]
    bounds: tuple[tuple[Verdict, Verdict | None, Verdict], ...]
    resolved: tuple[bool, ...]
    seconds: float

    @property
    def measured(self) -> tuple[float, ...]:
        """The faster of each layer's two measurements [s]."""
        return tuple(map(min, self.times))

    @property
    def resolved_share(self) -> float:
        """Of the layers."""
        return sum(self.resolved) / len(self.resolved)

    def _judged(self, predicted: Iterable[float], measured: Iterable[float], unresolved: bool) -> Errors:
        """Of the resolved layers, or of all."""
        pairs = [(p, m) for p, m, known in zip(predicted, measured, self.resolved, strict=True) if known or unresolved]
        return Errors(tuple(p for p, _ in pairs), tuple(m for _, m in pairs))

    def floor(self, *, unresolved: bool = False) -> Errors:
        """Repeatability: the second measurement of each layer predicted by the first."""
        first, second = zip(*self.times, strict=True)
        return self._judged(first, second, unresolved)

    def errors(self, level: int, *, unresolved: bool = False) -> Errors:
        """Of the layers, by one of the models; of those that are resolved unless told otherwise."""
        found = (predict_seconds(layer.program, self.calibration, level=level).seconds for layer in self.layers)
        return self._judged(found, self.measured, unresolved)

    @property
    def whole_errors(self) -> Errors:
        """Of the whole programs."""
        return Errors(tuple(each.predicted for each in self.whole), tuple(each.measured for each in self.whole))

    def agreement(self, *, clear: bool = False, textbook: bool = False) -> Agreement:
        """Of predicted classes, or the textbook's, with measured ones; clear: without those too close to call."""
        pairs: list[tuple[Bound, Bound]] = []
        for (modelled, found, by_ridge), known in zip(self.bounds, self.resolved, strict=True):
            if known and found is not None and not (clear and (modelled.close or found.close)):
                pairs.append((by_ridge.bound, found.coarse) if textbook else (modelled.bound, found.bound))
        return Agreement(tuple(pairs))

    def sheet(self) -> Sheet:
        """See the class."""
        made = f"calibration {self.calibration.took_seconds:.1f} s (before and after), all {self.seconds:.0f} s"
        made += f"; {self.resolved_share:.0%} of the layers are resolved, the others not judged"
        tables = [self._models(), self._programs(), self._functions(), *self._classes()]
        return Sheet([str(self.calibration.machine), made], tables, self.calibration.warnings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "machine": str(self.calibration.machine),
            "took_seconds": self.seconds,
            "calibration_seconds": self.calibration.took_seconds,
            "resolved": self.resolved_share,
            "floor": self.floor().to_dict(),
            "floor_of_all": self.floor(unresolved=True).to_dict(),
            "of_all": self.errors(6, unresolved=True).to_dict(),
            "models": {str(level): self.errors(level).to_dict() for level in LEVELS},
            "programs": [asdict(each) for each in self.whole],
            "functions": [{**asdict(each), "bias": each.bias} for each in self.functions],
            "whole": self.whole_errors.to_dict(),
            "agreement": self.agreement().to_dict(),
            "agreement_where_clear": self.agreement(clear=True).to_dict(),
            "agreement_of_intensity": self.agreement(textbook=True).to_dict(),
        }

    def _models(self) -> Table:
        rows = [(f"{level} {LEVELS[level]}", *self.errors(level).cells()) for level in LEVELS]
        rows.append(("two measurements of the same layer", *self.floor().cells()))
        if not all(self.resolved):
            rows.append(("model 6, unresolved layers too", *self.errors(6, unresolved=True).cells()))
            rows.append(("two measurements, unresolved layers too", *self.floor(unresolved=True).cells()))
        count = f"{sum(self.resolved)} of {len(self.layers)} layers, error"
        return Table((count, "median", "p90", "worst", "R² log"), rows)

    def _programs(self) -> Table:
        rows = [
            (each.name, *_times(each, 1), f"{each.as_it_came / each.measured:.2f}", f"{each.resolved:.0%}")
            for each in self.whole
        ]
        errors = self.whole_errors
        rows.append(("size of error: median, worst", "", f"{errors.median:.1%}", f"{errors.worst:.1%}", "", ""))
        header = ("whole programs, in place", "predicted ms", "measured ms", "error", "× as it came", "resolved")
        return Table(header, rows, total=True)

    def _functions(self) -> Table:
        rows = [(each.name, f"{each.calls:,}", *_times(each), f"{each.share:.1%}") for each in self.functions]
        header = ("NumPy's functions in them", "calls", "predicted ms", "measured ms", "bias", "most of one")
        return Table(header, rows)

    def _classes(self) -> tuple[Table, Table]:
        asked = {
            "the model": self.agreement(),
            "the model, where not too close to call": self.agreement(clear=True),
            "intensity against the ridge": self.agreement(textbook=True),
        }
        rows = [(name, *found.cells()) for name, found in asked.items()]
        counts = self.agreement().confusion
        confusion = [(a, *(str(counts[a, b]) for b in BOUNDS)) for a in BOUNDS]
        return (
            Table(("what binds a layer, by", "layers", "agree", "kappa", "lowest recall"), rows),
            Table(("predicted \\ measured", *BOUNDS), confusion),
        )


def _times(each: Whole | Function, digits: int = 0) -> tuple[str, str, str]:
    """Predicted and measured [ms], and the error."""
    error = show_change(each.predicted / each.measured - 1, digits)
    return f"{1e3 * each.predicted:.2f}", f"{1e3 * each.measured:.2f}", error


def validate(progress: Callable[[float], None] | None = None, *, budget: float = BUDGET) -> Validation:
    """Calibrate, measure layers and whole programs, measure the layers again, calibrate again.

    budget: of all measurements together [s]. Raises SettingError for one that is too short, or no number.
    """
    number = isinstance(budget, int | float) and not isinstance(budget, bool)
    if not (number and LEAST_BUDGET <= budget <= LONGEST):
        raise SettingError(f"budget {shown(budget)} is not from {LEAST_BUDGET:.0f} to {LONGEST:,.0f} seconds")
    began, protocol = time.perf_counter(), replace(PROTOCOL, budget=LAYERS_SHARE * budget)
    tell = progress or (lambda share: None)
    layers = layers_of()
    programs = [layer.program for layer in layers]
    sentinel = Sentinel()

    def part(start: float, end: float) -> Callable[[float], None]:
        return lambda share: tell(start + (end - start) * share)

    before = measure_probes(progress=part(0.0, 0.1), budget=CALIBRATION_SHARE * budget, sentinel=sentinel)
    first = measure(programs, protocol=protocol, sentinel=sentinel, progress=part(0.1, 0.3))
    networks = [network_of(predict(model, **settings)).program for model, settings in WHOLE]

    def visited(start: float) -> list[Passage]:
        """Each network; what the short ones leave of their time goes to the long ones."""
        found: dict[int, Passage] = {}
        ends = time.perf_counter() + WHOLE_SHARE / 2 * budget
        for number in sorted(range(len(networks)), key=lambda number: networks[number].contractions):
            tell(start + 0.15 * len(found) / len(networks))
            share = max(ends - time.perf_counter(), 0.0) / (len(networks) - len(found))
            found[number] = measure_in_place(networks[number], budget=share, sentinel=sentinel)
        return [found[number] for number in range(len(networks))]

    early = visited(0.3)
    second = measure(programs, protocol=protocol, sentinel=sentinel, progress=part(0.5, 0.7))
    times = [min(a.seconds, b.seconds) for a, b in zip(first, second, strict=True)]
    bounds = classify(programs, times, before.machine, sentinel, budget=CLASSES_SHARE * budget)
    whole = [a.joined(b) for a, b in zip(early, visited(0.75), strict=True)]
    after = measure_probes(progress=part(0.9, 1.0), budget=CALIBRATION_SHARE * budget, sentinel=sentinel)
    both = before.joined(after)
    rates = both.rates

    def by_ridge(program: Program) -> Verdict:
        flops, moved = program.contractions + program.pointwise, compulsory_bytes_of(program)
        return naive(flops, moved, rates.peak("float32"), rates.memory_bandwidth)

    forecasts = [predict_seconds(program, both) for program in programs]
    hosts = [predict_seconds(passage.program, both) for passage in whole]
    return Validation(
        both,
        tuple(layers),
        tuple((a.seconds, b.seconds) for a, b in zip(first, second, strict=True)),
        tuple(
            Whole(_named(case), host.seconds, passage.seconds, passage.as_it_came, passage.resolved)
            for case, host, passage in zip(WHOLE, hosts, whole, strict=True)
        ),
        functions_of(whole, hosts),
        tuple(
            (predicted(host, both), bound, by_ridge(program))
            for program, host, bound in zip(programs, forecasts, bounds, strict=True)
        ),
        tuple(a.resolved and b.resolved for a, b in zip(first, second, strict=True)),
        time.perf_counter() - began,
    )


def functions_of(passages: Sequence[Passage], hosts: Sequence[HostTime]) -> tuple[Function, ...]:
    """The functions that take at least `SHARE` of some program's time, those that take longest in all first."""
    rows: dict[str, list[float]] = {}
    shares: dict[str, float] = {}
    for passage, host in zip(passages, hosts, strict=True):
        own: dict[str, float] = {}
        for (op, terms), took in zip(host.calls, passage.call_seconds(), strict=True):
            row = rows.setdefault(op.name, [0, 0.0, 0.0])
            for column, value in enumerate((1, terms.seconds, took)):
                row[column] += value
            own[op.name] = own.get(op.name, 0.0) + took
        for name, took in own.items():
            shares[name] = max(shares.get(name, 0.0), took / passage.seconds)
    found = (Function(name, int(row[0]), row[1], row[2], shares[name]) for name, row in rows.items())
    return tuple(sorted((each for each in found if each.share >= SHARE), key=lambda each: -each.measured))


def _named(case: tuple[Architecture | str, dict[str, Any]]) -> str:
    model, settings = case
    said = ", ".join(f"{name} {value}" for name, value in settings.items() if name in ("batch", "seq"))
    what = "forward" if settings["mode"] == "inference" else "training step"
    return f"{model if isinstance(model, str) else model.title} {what} ({said})"
