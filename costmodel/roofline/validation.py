"""Validation: errors of the predictions on this host, for layers and whole programs that no calibration measured.

Calibration stands before and after the measurement, and each layer is measured twice (the mean of both counts, or the
faster where they are far apart): how far the two differ is the floor that no prediction gets below. Whole programs are
measured in place, call by call, several times too, so that every NumPy function has a row: what is off there is what to
mend next. What had too few undisturbed moments is unresolved, and not judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from itertools import accumulate
from typing import Any, NamedTuple

from costmodel.analysis.predict import predict
from costmodel.architectures.base import Architecture
from costmodel.architectures.transformer import Transformer
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table
from costmodel.display.units import show_change
from costmodel.documents.arguments import called
from costmodel.graph.tensor import show_shape
from costmodel.layers.activation import Relu, Relu6
from costmodel.layers.arithmetic import Clamp, Scale, Shift
from costmodel.layers.base import Layer
from costmodel.layers.linear import Linear
from costmodel.roofline.accuracy import Agreement, Errors
from costmodel.roofline.calibration import Calibration, check_asked, check_budget, measure_others, measure_probes
from costmodel.roofline.classification import BOUNDS, Verdict, classify, predicted, textbook
from costmodel.roofline.clock import Sentinel
from costmodel.roofline.hosttime import LEVELS, HostTime, compulsory_bytes_of, predict_seconds
from costmodel.roofline.inplace import RunInPlace, measure_in_place
from costmodel.roofline.placed import in_place
from costmodel.roofline.probes import WorkingSets, probes
from costmodel.roofline.program import Program
from costmodel.roofline.recorder import forward_program, network_of
from costmodel.roofline.signature import Signature, signature_of
from costmodel.roofline.timing import FEWEST, Protocol, Timing, measure, together
from costmodel.training.dtypes import Shape

Case = tuple[str, dict[str, Any]]

CASES: tuple[Case, ...] = (
    ("gpt2-small", {"batch": 1, "seq": 64}),
    ("gpt2-small", {"batch": 1, "seq": 128}),
    ("gpt2-small", {"batch": 2, "seq": 256}),
    ("gpt2-small", {"batch": 4, "seq": 128}),
    ("gpt2-small", {"batch": 1, "seq": 512}),
    ("gpt2-small", {"batch": 8, "seq": 512}),
    ("gpt2-xl", {"batch": 1, "seq": 1}),
    ("resnet18", {"batch": 1}),
    ("resnet50", {"batch": 1}),
    ("resnet18", {"batch": 32}),
    ("vgg16", {"batch": 1}),
    ("alexnet", {"batch": 1}),
    ("mlp-mnist", {"batch": 1}),
    ("mlp-mnist", {"batch": 64}),
    ("mlp-mnist", {"batch": 512}),
)
"""Whose layers are predicted."""

STREAMING: tuple[tuple[Layer, tuple[int, ...]], ...] = (
    (Linear(4000), (1, 6500)),
    (Linear(8800), (1, 5000)),
    (Linear(6500, bias=False), (1, 8100)),
    (Linear(4200), (2, 7400)),
    (Linear(5300, bias=False), (3, 5900)),
    (Linear(3600, bias=False), (5, 7700)),
    (Relu(), (3, 4_400_000)),
    (Relu(), (8, 64, 230, 230)),
    (Relu6(), (5, 3_100_000)),
    (Scale(0.5), (2, 9_100_000)),
    (Scale(0.25), (48, 257, 2100)),
    (Shift(0.5), (7, 2_300_000)),
    (Shift(0.25), (16, 130, 130, 130)),
    (Clamp(), (6, 2_700_000)),
)
"""Layers that memory binds, with their inputs: 100 to 300 MB are touched, of which a call moves each byte once."""

LARGEST_FLOPS = 4e9
"""Larger layers are left out: they would take most of the time."""


def layers_of(cases: Iterable[Case] = CASES, alone: Iterable[tuple[Layer, Shape]] = ()) -> dict[str, Program]:
    """Forward passes of the distinct layers of models, by where each stands first, and of layers alone; so they are
    named."""
    names: dict[tuple[Signature, ...], str] = {}
    programs: dict[str, Program] = {}
    models = [(model, predict(model, mode="inference", **settings), settings) for model, settings in cases]
    layers = [("alone", predict(layer, input=x, mode="inference"), {"input": show_shape(x)}) for layer, x in alone]
    for model, prediction, settings in (*models, *layers):
        sizes = ", ".join(f"{name} {value}" for name, value in settings.items())
        for call in prediction.tape.root.calls():
            program = forward_program(call)
            signatures, name = tuple(signature_of(op) for op in program), f"{model} ({sizes}) {call.name}"
            if signatures and program.contractions <= LARGEST_FLOPS and names.setdefault(signatures, name) == name:
                programs[name] = replace(program, name=name)
    return programs


def _fitting(programs: Iterable[Program], free: int | None) -> list[Program]:
    """Those that are in memory at once, in half of what is free; the smallest first where it does not hold all."""
    ordered = sorted(programs, key=lambda program: program.layout.arena_bytes)
    so_far = accumulate(program.layout.arena_bytes for program in ordered)
    return [each for each, size in zip(ordered, so_far, strict=True) if free is None or size <= free / 2]


def keep_apart(programs: Iterable[Program], sets: WorkingSets) -> None:
    """Assert that no matrix product or row loop to be predicted is one that a calibration measures."""
    probed = {signature_of(op): name for thorough in (False, True) for name, op in probes(sets, thorough)}
    probed |= {signature_of(op): op.layer for program in in_place(sets.beyond) for op in program}
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

PROTOCOL = Protocol(least_rounds=2, item_seconds=4.0, longer_enough=FEWEST)
"""Of each of the two measurements of the layers."""
BUDGET, LEAST_BUDGET = 230.0, 100.0
"""Of all measurements, unless given, and at least [s]."""
CALIBRATION_SHARE, LAYERS_SHARE, CLASSES_SHARE, WHOLE_SHARE = 0.11, 0.19, 0.1, 0.3
"""Of the budget: of each of the two calibrations, of each of the two measurements of the layers, of what binds them,
and of all whole programs together."""
RUNS = 3
"""How often whole programs are run, some time after each other."""
JUDGED_LEVELS = (1, 6)
"""Models of `LEVELS` whose errors are shown: the textbook's and all that is known."""
SHARE = 0.03
"""Share of some program's time from which a function is worth a row."""


@dataclass(frozen=True)
class ProgramTime:
    """A whole program, in place [s]. resolved: the share of its time that is of settled calls."""

    name: str
    predicted: float
    measured: float
    as_it_came: float = 0.0
    resolved: float = 1.0


@dataclass(frozen=True)
class FunctionTime:
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


class LayerTrial(NamedTuple):
    """A layer, measured twice, and what binds it; bound is None where the budget did not last."""

    program: Program
    first: Timing
    second: Timing
    predicted_class: Verdict
    measured_class: Verdict | None
    textbook_class: Verdict

    @property
    def measured(self) -> float:
        """Both measurements together [s]."""
        return together((self.first.seconds, self.second.seconds))

    @property
    def resolved(self) -> bool:
        """Whether both measurements are."""
        return self.first.resolved and self.second.resolved


@dataclass(frozen=True, repr=False)
class Validation(Answer):
    """Predictions and measurements side by side, with the calibration between them. seconds: that all of it took."""

    calibration: Calibration
    layers: tuple[LayerTrial, ...]
    whole: tuple[ProgramTime, ...]
    functions: tuple[FunctionTime, ...]
    seconds: float

    @property
    def judged(self) -> list[LayerTrial]:
        """Layers that are resolved."""
        return [layer for layer in self.layers if layer.resolved]

    @property
    def resolved_share(self) -> float:
        """Of the layers."""
        return len(self.judged) / len(self.layers)

    @property
    def floor(self) -> Errors:
        """Repeatability: the second measurement of each resolved layer predicted by the first."""
        judged = self.judged
        return Errors(tuple(each.first.seconds for each in judged), tuple(each.second.seconds for each in judged))

    def errors(self, level: int) -> Errors:
        """Of the resolved layers, by one of the models of `LEVELS`."""
        judged = self.judged
        hosts = (predict_seconds(each.program, self.calibration, level=level) for each in judged)
        return Errors(tuple(host.seconds for host in hosts), tuple(each.measured for each in judged))

    @property
    def whole_errors(self) -> Errors:
        """Of the whole programs."""
        return Errors(tuple(each.predicted for each in self.whole), tuple(each.measured for each in self.whole))

    def agreement(self, *, clear: bool = False) -> Agreement:
        """Of predicted classes with measured ones; clear: without those too close to call."""
        pairs = ((layer.predicted_class, layer.measured_class) for layer in self.judged)
        known = [(own, true) for own, true in pairs if true is not None]
        return Agreement(
            tuple((own.bound, true.bound) for own, true in known if not (clear and (own.close or true.close)))
        )

    @property
    def textbook_agreement(self) -> Agreement:
        """Of intensity against the ridge with what was measured."""
        pairs = ((layer.textbook_class, layer.measured_class) for layer in self.judged)
        return Agreement(tuple((own.bound, true.coarse) for own, true in pairs if true is not None))

    def sheet(self) -> Sheet:
        """See the class."""
        duration = f"calibration {self.calibration.took_seconds:.1f} s (before and after), all {self.seconds:.0f} s"
        duration += f"; {self.resolved_share:.0%} of the layers are resolved, the others not judged"
        tables = [self._models(), self._programs(), self._functions(), *self._classes()]
        return Sheet([str(self.calibration.machine), duration], tables, self.calibration.warnings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "machine": str(self.calibration.machine),
            "took_seconds": self.seconds,
            "calibration_seconds": self.calibration.took_seconds,
            "resolved": self.resolved_share,
            "floor": self.floor.to_dict(),
            "models": {str(level): self.errors(level).to_dict() for level in JUDGED_LEVELS},
            "layers": [self._plain(each) for each in self.layers],
            "programs": [asdict(each) for each in self.whole],
            "functions": [{**asdict(each), "bias": each.bias} for each in self.functions],
            "whole": self.whole_errors.to_dict(),
            "agreement": self.agreement().to_dict(),
            "agreement_where_clear": self.agreement(clear=True).to_dict(),
            "agreement_of_intensity": self.textbook_agreement.to_dict(),
        }

    def _plain(self, layer: LayerTrial) -> dict[str, Any]:
        """A layer as plain data [s]: predicted by all that is known, and measured twice."""
        host = predict_seconds(layer.program, self.calibration)
        return {
            "name": layer.program.name,
            "predicted": host.seconds,
            "measured": layer.measured,
            "first": layer.first.seconds,
            "second": layer.second.seconds,
            "resolved": layer.resolved,
            "predicted_class": layer.predicted_class.name,
            "measured_class": None if layer.measured_class is None else layer.measured_class.name,
        }

    def _models(self) -> Table:
        rows = [(f"{level} {LEVELS[level]}", *self.errors(level).cells()) for level in JUDGED_LEVELS]
        rows.append(("two measurements of the same layer", *self.floor.cells()))
        return Table((f"{len(self.judged)} of {len(self.layers)} layers, error", *Errors.HEADER), rows)

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
        agreements = {
            "the model": self.agreement(),
            "the model, where not too close to call": self.agreement(clear=True),
            "intensity against the ridge": self.textbook_agreement,
        }
        rows = [(name, *agreement.cells()) for name, agreement in agreements.items()]
        counts = self.agreement().confusion
        confusion = [(a, *(str(counts[a, b]) for b in BOUNDS)) for a in BOUNDS]
        return (
            Table(("what binds a layer, by", *Agreement.HEADER), rows),
            Table(("predicted \\ measured", *BOUNDS), confusion),
        )


def _times(each: ProgramTime | FunctionTime, digits: int = 0) -> tuple[str, str, str]:
    """Predicted and measured [ms], and the error."""
    error = show_change(each.predicted / each.measured - 1, digits)
    return f"{1e3 * each.predicted:.2f}", f"{1e3 * each.measured:.2f}", error


@called
def validate(
    progress: Callable[[float], None] | None = None, *, budget: float = BUDGET, threads: int = 1
) -> Validation:
    """Calibrate, measure layers and whole programs, measure the layers again, calibrate again.

    budget: of all measurements together [s]. threads: how many matrix products may use; all else runs on one. Raises
    SettingError for a budget that is too short, or no number, and for more threads than there are cores.
    """
    check_asked(threads, None)
    check_budget(budget, LEAST_BUDGET)
    sentinel, protocol = Sentinel(), replace(PROTOCOL, budget=LAYERS_SHARE * budget, threads=threads)
    clock = sentinel.clock
    began = clock.now()
    tell = progress or (lambda share: None)
    programs = _fitting(layers_of(alone=STREAMING).values(), clock.free_bytes())
    networks = [network_of(predict(model, **settings)).program for model, settings in WHOLE]

    def part(start: float, end: float) -> Callable[[float], None]:
        return lambda share: tell(start + (end - start) * share)

    def calibrated(start: float, sets: WorkingSets | None = None) -> Calibration:
        share = CALIBRATION_SHARE * budget
        return measure_probes(
            threads=threads, progress=part(start, start + 0.1), budget=share, sentinel=sentinel, sets=sets
        )

    def timed(start: float) -> list[Timing]:
        return measure(programs, protocol=protocol, sentinel=sentinel, progress=part(start, start + 0.2))

    def run(start: float, end: float) -> list[RunInPlace]:
        """Each network, once of `RUNS` times; what the short ones leave of their time goes to the long ones."""
        runs: dict[int, RunInPlace] = {}
        ends = clock.now() + 1e9 * WHOLE_SHARE / RUNS * budget
        for number in sorted(range(len(networks)), key=lambda number: networks[number].contractions):
            tell(start + (end - start) * len(runs) / len(networks))
            share = max(ends - clock.now(), 0.0) * 1e-9 / (len(networks) - len(runs))
            others[number] += measure_others(networks[number], sentinel, threads)
            runs[number] = measure_in_place(
                networks[number], budget=share, stretches=1, threads=threads, sentinel=sentinel
            )
        return [runs[number] for number in range(len(networks))]

    before = calibrated(0.0)
    keep_apart(programs, before.sets)
    others: list[list[dict[str, float]]] = [[] for _ in networks]
    runs = [run(0.1, 0.2)]
    first = timed(0.2)
    runs.append(run(0.4, 0.5))
    second = timed(0.5)
    seconds = [together((a.seconds, b.seconds)) for a, b in zip(first, second, strict=True)]
    bounds = classify(programs, seconds, before.host, sentinel, budget=CLASSES_SHARE * budget)
    runs.append(run(0.75, 0.9))
    joined = [reduce(RunInPlace.joined, each) for each in zip(*runs, strict=True)]
    both = before.joined(calibrated(0.9, before.sets))
    layers = (
        LayerTrial(
            program,
            a,
            b,
            predicted(predict_seconds(program, both), both),
            bound,
            textbook(program.contractions + program.pointwise, compulsory_bytes_of(program), both.rates),
        )
        for program, a, b, bound in zip(programs, first, second, bounds, strict=True)
    )
    traffics = [min(map(both.rates.others.traffic_at, each), default=None) for each in others]
    hosts = [
        predict_seconds(network, both, traffic=traffic) for network, traffic in zip(networks, traffics, strict=True)
    ]
    whole = (
        ProgramTime(_titled(case), host.seconds, run.seconds, run.as_it_came, run.resolved)
        for case, host, run in zip(WHOLE, hosts, joined, strict=True)
    )
    return Validation(both, tuple(layers), tuple(whole), functions_of(joined, hosts), (clock.now() - began) * 1e-9)


def functions_of(runs: Sequence[RunInPlace], hosts: Sequence[HostTime]) -> tuple[FunctionTime, ...]:
    """The functions that take at least `SHARE` of some program's time, those that take longest in all first."""
    calls: Counter[str] = Counter()
    predicted_seconds: Counter[str] = Counter()
    measured_seconds: Counter[str] = Counter()
    shares: dict[str, float] = {}
    for run, host in zip(runs, hosts, strict=True):
        own: Counter[str] = Counter()
        for (op, terms), seconds in zip(host.calls, run.call_seconds(), strict=True):
            calls[op.name] += 1
            predicted_seconds[op.name] += terms.seconds  # type: ignore[assignment]
            own[op.name] += seconds  # type: ignore[assignment]
        measured_seconds.update(own)
        for name, seconds in own.items():
            shares[name] = max(shares.get(name, 0.0), seconds / run.seconds)
    return tuple(
        FunctionTime(name, calls[name], predicted_seconds[name], seconds, shares[name])
        for name, seconds in measured_seconds.most_common()
        if shares[name] >= SHARE
    )


def _titled(case: tuple[Architecture | str, dict[str, Any]]) -> str:
    model, settings = case
    sizes = ", ".join(f"{name} {value}" for name, value in settings.items() if name in ("batch", "seq"))
    phase = "forward" if settings["mode"] == "inference" else "training step"
    return f"{model if isinstance(model, str) else model.title} {phase} ({sizes})"
