"""How far the predictions are off on this host: layers and whole programs that no calibration touched.

Calibration stands before and after the measurement (the faster of each probe counts), and each layer and each whole
program is measured twice (the faster counts): how far the two differ is the floor that no prediction gets below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import log
from time import perf_counter
from typing import Any

from costmodel.cost.prediction import predict
from costmodel.display.table import Table
from costmodel.roofline.calibration import Calibration, measure_probes
from costmodel.roofline.classification import BOUNDS, Agreement, Bound, Verdict, classify, naive, predicted
from costmodel.roofline.forecast import predict_seconds
from costmodel.roofline.hosttime import LEVELS, compulsory_bytes_of
from costmodel.roofline.layer import forward_program
from costmodel.roofline.measurement import measure
from costmodel.roofline.network import network_of
from costmodel.roofline.probes import probes
from costmodel.roofline.program import Program
from costmodel.roofline.signature import Signature, signature_of
from costmodel.roofline.timing import Protocol

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
"""Layers of more would take most of the time."""


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


@dataclass(frozen=True)
class Errors:
    """How far predictions are from measurements, as shares of what was measured."""

    predicted: tuple[float, ...]
    measured: tuple[float, ...]

    @property
    def shares(self) -> list[float]:
        """Predicted over measured, less one."""
        return [p / m - 1 for p, m in zip(self.predicted, self.measured, strict=True)]

    def quantile(self, share: float) -> float:
        """Of the errors' sizes."""
        import numpy as np

        return float(np.quantile(np.abs(self.shares), share))

    @property
    def median(self) -> float:
        """Half of the errors are smaller."""
        return self.quantile(0.5)

    @property
    def worst(self) -> float:
        """The largest error."""
        return self.quantile(1.0)

    @property
    def r_squared(self) -> float:
        """Share of the variance of log time that is explained."""
        logs = [log(m) for m in self.measured]
        mean = sum(logs) / len(logs)
        left = sum(log(p / m) ** 2 for p, m in zip(self.predicted, self.measured, strict=True))
        whole = sum((x - mean) ** 2 for x in logs)
        return 1 - left / whole if whole else 0.0

    def to_dict(self) -> dict[str, float]:
        """Plain data."""
        return {"median": self.median, "p90": self.quantile(0.9), "worst": self.worst, "r_squared": self.r_squared}

    def cells(self) -> tuple[str, ...]:
        """For a table: median, 90 % quantile, worst, R² of log time."""
        return (f"{self.median:.1%}", f"{self.quantile(0.9):.1%}", f"{self.worst:.1%}", f"{self.r_squared:.4f}")


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

PROTOCOL = Protocol(rounds=5, least_rounds=2, item_seconds=0.12)
"""Of each of the two measurements of the layers."""
WHOLE_PROTOCOL = Protocol(rounds=3, least_rounds=1, item_seconds=1.0)


@dataclass(frozen=True)
class Validation:
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
        """How far one measurement of a layer is from the other."""
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
        """Of bounds with what was measured: predicted or by the textbook; of all, or of those not too close to call."""
        pairs: list[tuple[Bound, Bound]] = []
        for modelled, found, by_ridge in self.bounds:
            if not (clear and (modelled.close or found.close)):
                pairs.append(((by_ridge if textbook else modelled).bound, found.bound))
        return Agreement(tuple(pairs))

    def __str__(self) -> str:
        return "\n\n".join((self._head(), self._models(), self._programs(), self._classes()))

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

    def _head(self) -> str:
        lines = [str(self.calibration.machine), *(f"warning: {warning}" for warning in self.calibration.warnings)]
        made = f"calibration {self.calibration.took_seconds:.1f} s (before and after), all {self.seconds:.0f} s"
        return "\n".join([*lines, made])

    def _models(self) -> str:
        rows = [(f"{level} {LEVELS[level]}", *self.errors(level).cells()) for level in LEVELS]
        rows.append(("two measurements of the same layer", *self.floor.cells()))
        return Table((f"{len(self.layers)} layers, error", "median", "p90", "worst", "R² log"), rows).text()

    def _programs(self) -> str:
        rows = [(name, f"{1e3 * p:.2f}", f"{1e3 * m:.2f}", f"{p / m - 1:+.1%}") for name, p, m in self.whole]
        errors = self.whole_errors
        rows.append(("size of error: median, worst", "", f"{errors.median:.1%}", f"{errors.worst:.1%}"))
        return Table(("whole programs", "predicted ms", "measured ms", "error"), rows, total=True).text()

    def _classes(self) -> str:
        asked = {
            "the model": self.agreement(),
            "the model, where not too close to call": self.agreement(clear=True),
            "intensity against the ridge": self.agreement(textbook=True),
        }
        rows = [(name, str(len(a.pairs)), f"{a.share:.0%}", f"{a.kappa:.2f}") for name, a in asked.items()]
        counts = self.agreement().confusion
        confusion = [(a, *(str(counts[a, b]) for b in BOUNDS)) for a in BOUNDS]
        return "\n\n".join(
            (
                Table(("what bounds a layer, by", "layers", "agree", "kappa"), rows).text(),
                Table(("predicted \\ measured", *BOUNDS), confusion).text(),
            )
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
        tuple((name, predict_seconds(program, both, in_context=True).seconds, took) for name, program, took in whole),
        tuple(
            (predicted(host.terms, both.machine), bound, _naive(program, both))
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
