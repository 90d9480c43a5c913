"""Validation: errors of the predictions on this host, for layers and whole programs that no calibration measured.

Calibration stands before and after the measurement (the faster of each probe counts), and each layer and each whole
program is measured twice (the faster counts): how far the two differ is the floor that no prediction gets below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from costmodel.cost.prediction import predict
from costmodel.display.answer import Answer
from costmodel.display.sheet import Sheet
from costmodel.display.table import Table
from costmodel.roofline.accuracy import Agreement, Errors
from costmodel.roofline.calibration import Calibration, measure_probes
from costmodel.roofline.classification import BOUNDS, Bound, Verdict, classify, naive, predicted
from costmodel.roofline.hosttime import LEVELS, compulsory_bytes_of, predict_seconds
from costmodel.roofline.probes import probes
from costmodel.roofline.program import Program
from costmodel.roofline.recorder import forward_program, network_of
from costmodel.roofline.signature import Signature, signature_of
from costmodel.roofline.timing import Protocol, measure

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
        for call in predict(model, mode="inference", **settings).run.root.calls():
            program = forward_program(call)
            key = tuple(signature_of(op) for op in program)
            if key and program.contractions <= LARGEST_FLOPS:
                found.setdefault(key, Layer(f"{model} ({said}) {call.name}", call.kind.kind, program))
    keep_apart(layer.program for layer in found.values())
    return list(found.values())


def keep_apart(programs: Iterable[Program]) -> None:
    """Assert that no matrix product or row loop to be predicted is one that a calibration measures."""
    probed = {signature_of(p.op): p.name for thorough in (False, True) for p in probes(thorough)}
    for program in programs:
        for op in program:
            same = probed.get(signature_of(op))
            assert same is None, f"{op} of {program.name} is the probe {same!r}"


WHOLE: tuple[Case, ...] = (
    ("gpt2-small", {"batch": 1, "seq": 64, "mode": "inference"}),
    ("gpt2-small", {"batch": 1, "seq": 128, "mode": "inference"}),
    ("gpt2-small", {"batch": 2, "seq": 128, "mode": "inference"}),
    ("resnet18", {"batch": 1, "mode": "inference"}),
    ("resnet50", {"batch": 1, "mode": "inference"}),
    ("mlp-mnist", {"batch": 64, "mode": "train"}),
    ("mlp-mnist", {"batch": 512, "mode": "train"}),
    ("mlp-lenet-300-100", {"batch": 128, "mode": "train"}),
)
"""Forward passes and training steps that are predicted whole."""

PROTOCOL = Protocol(rounds=400, item_seconds=4.0, budget=40.0)
"""Of each of the two measurements of the layers."""
WHOLE_PROTOCOL = Protocol(rounds=9, least_rounds=3, enough=0, item_seconds=2.0)


@dataclass(frozen=True, repr=False)
class Validation(Answer):
    """Predictions and measurements side by side, with the calibration between them.

    times: of each layer, measured twice. whole: (name, predicted, measured) of whole programs [s].
    bounds: (predicted, measured, by the textbook) of each layer.
    """

    calibration: Calibration
    layers: tuple[Layer, ...]
    times: tuple[tuple[float, float], ...]
    whole: tuple[tuple[str, float, float], ...]
    bounds: tuple[tuple[Verdict, Verdict, Verdict], ...]
    seconds: float

    @property
    def measured(self) -> tuple[float, ...]:
        """The faster of each layer's two measurements [s]."""
        return tuple(map(min, self.times))

    @property
    def floor(self) -> Errors:
        """Repeatability: the second measurement of each layer predicted by the first."""
        first, second = zip(*self.times, strict=True)
        return Errors(first, second)

    def errors(self, level: int) -> Errors:
        """Of the layers, by one of the models."""
        found = (predict_seconds(layer.program, self.calibration, level=level) for layer in self.layers)
        return Errors(tuple(host.seconds for host in found), self.measured)

    @property
    def whole_errors(self) -> Errors:
        """Of the whole programs, in context."""
        _, predicted, measured = zip(*self.whole, strict=True)
        return Errors(predicted, measured)

    def agreement(self, *, clear: bool = False, textbook: bool = False) -> Agreement:
        """Of predicted classes, or the textbook's, with measured ones; clear: without those too close to call."""
        pairs: list[tuple[Bound, Bound]] = []
        for modelled, found, by_ridge in self.bounds:
            if not (clear and (modelled.close or found.close)):
                pairs.append(((by_ridge if textbook else modelled).bound, found.bound))
        return Agreement(tuple(pairs))

    def sheet(self) -> Sheet:
        """See the class."""
        made = f"calibration {self.calibration.took_seconds:.1f} s (before and after), all {self.seconds:.0f} s"
        tables = [self._models(), self._programs(), *self._classes()]
        return Sheet([str(self.calibration.machine), made], tables, self.calibration.warnings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        whole = [{"name": name, "predicted": p, "measured": m} for name, p, m in self.whole]
        return {
            "machine": str(self.calibration.machine),
            "took_seconds": self.seconds,
            "calibration_seconds": self.calibration.took_seconds,
            "floor": self.floor.to_dict(),
            "models": {str(level): self.errors(level).to_dict() for level in LEVELS},
            "programs": whole,
            "whole": self.whole_errors.to_dict(),
            "agreement": self.agreement().to_dict(),
            "agreement_where_clear": self.agreement(clear=True).to_dict(),
            "agreement_of_intensity": self.agreement(textbook=True).to_dict(),
        }

    def _models(self) -> Table:
        rows = [(f"{level} {LEVELS[level]}", *self.errors(level).cells()) for level in LEVELS]
        rows.append(("two measurements of the same layer", *self.floor.cells()))
        return Table((f"{len(self.layers)} layers, error", "median", "p90", "worst", "R² log"), rows)

    def _programs(self) -> Table:
        rows = [(name, f"{1e3 * p:.2f}", f"{1e3 * m:.2f}", f"{p / m - 1:+.1%}") for name, p, m in self.whole]
        errors = self.whole_errors
        rows.append(("size of error: median, worst", "", f"{errors.median:.1%}", f"{errors.worst:.1%}"))
        return Table(("whole programs", "predicted ms", "measured ms", "error"), rows, total=True)

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
            Table(("what bounds a layer, by", "layers", "agree", "kappa"), rows),
            Table(("predicted \\ measured", *BOUNDS), confusion),
        )


def validate(progress: Callable[[float], None] | None = None) -> Validation:
    """Calibrate, measure layers and whole programs, measure the layers again, calibrate again; in under two minutes."""
    began = perf_counter()
    tell = progress or (lambda share: None)
    layers = layers_of()
    programs = [layer.program for layer in layers]
    before = measure_probes(progress=lambda share: tell(0.1 * share))
    first = measure(programs, protocol=PROTOCOL, progress=lambda share: tell(0.1 + 0.25 * share))
    bounds = classify(programs, [timing.minimum for timing in first], before.machine)
    tell(0.5)
    whole = [_whole(case) for case in WHOLE]
    tell(0.55)
    second = measure(programs, protocol=PROTOCOL, progress=lambda share: tell(0.55 + 0.3 * share))
    whole = [(name, program, min(took, _took(program))) for name, program, took in whole]
    both = before.joined(measure_probes(progress=lambda share: tell(0.9 + 0.1 * share)))
    times = tuple((a.minimum, b.minimum) for a, b in zip(first, second, strict=True))
    forecasts = [predict_seconds(program, both) for program in programs]
    return Validation(
        both,
        tuple(layers),
        times,
        tuple((name, predict_seconds(program, both).seconds, took) for name, program, took in whole),
        tuple(
            (predicted(host, both), bound, _naive(program, both))
            for program, host, bound in zip(programs, forecasts, bounds, strict=True)
        ),
        perf_counter() - began,
    )


def _whole(case: Case) -> tuple[str, Program, float]:
    model, settings = case
    program = network_of(predict(model, **settings)).program
    said = ", ".join(f"{name} {value}" for name, value in settings.items() if name != "mode")
    what = "forward" if settings["mode"] == "inference" else "training step"
    return f"{model} {what} ({said})", program, _took(program)


def _took(program: Program) -> float:
    return measure([program], protocol=WHOLE_PROTOCOL, statistic="median")[0].seconds


def _naive(program: Program, calibration: Calibration) -> Verdict:
    rates = calibration.rates
    flops = program.contractions + program.pointwise
    return naive(flops, compulsory_bytes_of(program), rates.peak("float32"), rates.memory_bandwidth)
