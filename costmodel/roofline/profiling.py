"""Whole models run as they come: a profile of one, forward and with backward, and how many times as fast another is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Unpack

from costmodel.analysis.predict import Prediction
from costmodel.architectures.base import Architecture
from costmodel.architectures.trace import OF_TRAINING
from costmodel.cost.report import headline
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table, TextRow, printable
from costmodel.display.units import show_bytes, show_change, show_count, show_flops, show_rate, show_seconds
from costmodel.errors import SettingError, shown
from costmodel.roofline.calibration import Calibration, Progress, bar, check_asked, check_budget
from costmodel.roofline.checking import LEAST_BUDGET, with_rounds
from costmodel.roofline.classification import Verdict, predicted
from costmodel.roofline.findings import DTYPE
from costmodel.roofline.footprint import peak_bytes
from costmodel.roofline.hosttime import HostTime, predict_seconds
from costmodel.roofline.kept import Say, calibrated
from costmodel.roofline.program import Program
from costmodel.roofline.recorder import network_that_fits, runnable
from costmodel.roofline.timing import Protocol, Timing, measure, ratio_interval
from costmodel.training.keywords import GivenSettings
from costmodel.training.signatures import takes_settings

PROTOCOL = Protocol(rounds=15, least_rounds=5, enough=0, item_seconds=4.0)
"""Of whole programs, as they come."""
BUDGET = 30.0
"""How long programs are run if nobody says [s], exceeded only by what it takes to run each twice."""

PASSES = {"inference": "forward", "train": "forward+backward"}
FIGURES = ("flops", "pointwise_flops", "peak_bytes", "samples_per_second", "tokens_per_second")
FIGURES += ("flops_per_second", "bottleneck")
"""Of a pass, as plain data."""


@dataclass(frozen=True)
class WholePass:
    """One whole program, forward or forward and backward without the optimizer's step, and its time.

    peak_bytes: NumPy arrays alive at most, weights included. shares: of the predicted time, by layer kind, the largest
    first.
    """

    name: str
    prediction: Prediction = field(repr=False)
    flops: int
    pointwise_flops: int
    peak_bytes: int
    host: HostTime = field(repr=False)
    timing: Timing = field(repr=False)
    bound: Verdict
    shares: dict[str, float] = field(repr=False)

    @property
    def seconds(self) -> float:
        """Median time of one run [s]."""
        return self.timing.seconds

    @property
    def samples_per_second(self) -> float:
        """Throughput."""
        return int(self.prediction.batch_shape.batch) / self.seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Throughput of a model of sequences; None for others."""
        seq = self.prediction.batch_shape.seq
        return None if seq is None else int(seq) * self.samples_per_second

    @property
    def flops_per_second(self) -> float:
        """Contractions achieved [FLOP/s]."""
        return self.flops / self.seconds

    @property
    def bottleneck(self) -> str:
        """What bounds it, and the layer kind that takes most, by the model."""
        kind, share = next(iter(self.shares.items()))
        return f"{self.bound}; {kind} {share:.0%}"


@dataclass(frozen=True, repr=False)
class Profile(Answer):
    """Predicted and measured passes of a model. passes: by name, "forward" and "forward+backward", as far as asked for.

    params: weights, each once. efficiency: see `efficiency_of`. warnings: why to doubt it.
    """

    model: str
    question: str
    params: int
    calibration: Calibration = field(repr=False)
    passes: dict[str, WholePass]
    warnings: tuple[str, ...] = ()

    @cached_property
    def peak(self) -> float:
        """The fastest matrix product measured on this machine [FLOP/s]."""
        return self.calibration.rates.peak(DTYPE)

    def efficiency_of(self, name: str) -> float:
        """Contractions achieved, as a share of the fastest product: model FLOPs utilisation on as many threads."""
        return self.passes[name].flops_per_second / self.peak

    @property
    def timings(self) -> dict[str, Timing]:
        """Of each pass, by its name."""
        return {name: each.timing for name, each in self.passes.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain data; times [s], memory [bytes]."""
        return {
            "model": self.model,
            "question": self.question,
            "machine": str(self.calibration.machine),
            "params": self.params,
            "peak_flops_per_second": self.peak,
            "warnings": list(self.warnings),
            "passes": {
                name: {
                    **{figure: getattr(each, figure) for figure in FIGURES},
                    "latency": each.timing.to_dict(),
                    "predicted_seconds": each.host.seconds,
                    "predicted_interval": list(each.host.interval),
                    "error": each.host.seconds / each.seconds - 1,
                    "efficiency": self.efficiency_of(name),
                    "bound": str(each.bound),
                    "kinds": each.shares,
                }
                for name, each in self.passes.items()
            },
        }

    def sheet(self) -> Sheet:
        """Passes side by side."""
        columns = [_column(each, self.efficiency_of(name)) for name, each in self.passes.items()]
        names = dict.fromkeys(name for column in columns for name in column)
        rows: list[TextRow] = [(name, *(column.get(name, "-") for column in columns)) for name in names]
        rows.insert(0, ("parameters", *(show_count(self.params) for _ in columns)))
        table = Table(("Profile", *self.passes), rows)
        return Sheet([self.question, str(self.calibration.machine)], [table], self.warnings)


def _column(each: WholePass, efficiency: float) -> dict[str, str]:
    timing, tokens = each.timing, each.tokens_per_second
    low, high = timing.interval
    samples = each.samples_per_second
    return {
        "FLOPs (contractions)": show_flops(each.flops),
        "FLOPs (all other)": show_flops(each.pointwise_flops),
        "latency: median": show_seconds(timing.median),
        "  95 % interval": f"{show_seconds(low)} to {show_seconds(high)}",
        "  min": show_seconds(timing.minimum),
        "  mean": show_seconds(timing.mean),
        **{f"  p{percent}": show_seconds(timing.percentile(percent)) for percent in timing.percentiles},
        "  samples": str(timing.count),
        "latency: predicted": show_seconds(each.host.seconds),
        "  off": show_change(each.host.seconds / each.seconds - 1, 1),
        "throughput: samples/s": show_rate(samples) if samples > 99 else f"{samples:.2f}",
        **({} if tokens is None else {"throughput: tokens/s": f"{tokens:,.0f}"}),
        "memory: peak of arrays": show_bytes(each.peak_bytes),
        "achieved FLOP/s": show_rate(each.flops_per_second),
        "efficiency": f"{efficiency:.1%}",
        "bottleneck": each.bottleneck,
    }


@takes_settings(mode=...)
def profile(
    model: Architecture | Prediction | str,
    *,
    rounds: int | None = None,
    budget: float | None = None,
    threads: int = 1,
    calibration: Calibration | None = None,
    progress: bool | Progress = False,
    say: Say | None = None,
    **settings: Unpack[GivenSettings],
) -> Profile:
    """Parameters, FLOPs, latency, throughput, memory, bottleneck and efficiency of a model run whole.

    Args:
        model: as `predict` takes it, or a prediction, of which the pass of its mode is run.
        rounds: samples of each pass; up to fifteen within the budget if not given.
        budget: how long to run them [s], exceeded only by what it takes to run each twice; 30 s if neither is given.
        threads: how many matrix products may use; all else runs on one.
        calibration: of this machine and as many threads; the stored one unless given, and a quick one is made if there
            is none.
        progress: a bar on stderr, or a function that is told the share done.
        say: is told how long it will take, and what there is to know of the calibration, as that it had to be made; the
            latter is a warning unless given.
        **settings: as `predict` takes them; forward and forward+backward unless `mode` says which.

    Raises:
        CostModelError: a wrong setting, or more memory than there is, before anything is allocated.

    """
    predictions, protocol = predictions_of(model, settings), with_rounds(PROTOCOL, rounds)
    check_asked(threads, None)
    if budget is not None:
        check_budget(budget, LEAST_BUDGET)
    programs = {name: network_that_fits(prediction, optimize=False).program for name, prediction in predictions.items()}
    footprint = max(program.touched_bytes for program in programs.values())
    calibration = calibration or calibrated(threads=threads, progress=progress, say=say, footprint=footprint)
    hosts = {name: predict_seconds(program, calibration) for name, program in programs.items()}
    most = budget or (BUDGET if rounds is None else float("inf"))
    protocol = replace(protocol, budget=most, threads=calibration.machine.threads)
    if say is not None:
        once = sum(host.seconds for host in hosts.values())
        longest = max(2 * once, min(most, (1 + protocol.rounds) * once))
        say(f"all passes are predicted to take {show_seconds(once)}: measuring takes up to {show_seconds(longest)}")
    with bar(progress, "measuring") as tell:
        timings = measure([*programs.values()], protocol=protocol, statistic="median", progress=tell)
    passes = {
        name: _pass(name, prediction, programs[name], hosts[name], timing, calibration)
        for (name, prediction), timing in zip(predictions.items(), timings, strict=True)
    }
    noisy = tuple(f"{name} is noisy: {each.timing.noise}" for name, each in passes.items() if each.timing.noise)
    first = next(iter(predictions.values()))
    return Profile(
        printable(first.model.title),
        question_of(predictions),
        first.params,
        calibration,
        passes,
        (*calibration.warnings, *noisy),
    )


def predictions_of(model: Architecture | Prediction | str, settings: Mapping[str, Any]) -> dict[str, Prediction]:
    """The passes to run, by name. Raises SettingError for what NumPy does not run."""
    if isinstance(model, Prediction) or "mode" in settings:
        prediction = runnable(model, settings)
        return {PASSES[prediction.settings.mode]: prediction}
    untrained = {name: value for name, value in settings.items() if name not in OF_TRAINING}
    return {
        "forward": runnable(model, untrained),
        "forward+backward": runnable(model, {**settings, "mode": "train"}),
    }


def question_of(predictions: Mapping[str, Prediction]) -> str:
    """The report's headline, with the names of the passes in place of its own."""
    prediction = next(iter(predictions.values()))
    title, _, rest = headline(prediction).partition(": ")
    _, _, sizes = rest.partition(", ")
    return f"{title}: {' and '.join(predictions)}, {sizes.removesuffix(f', {prediction.settings.states.name}')}"


def _pass(
    name: str, prediction: Prediction, program: Program, host: HostTime, timing: Timing, calibration: Calibration
) -> WholePass:
    flops, pointwise = (
        each.total if prediction.settings.training else each.forward
        for each in (prediction.flops, prediction.pointwise_flops)
    )
    kinds = {call.name: call.layer.kind for call in prediction.tape.root.calls()}
    by_kind: Counter[str] = Counter()
    for op, terms in host.calls:
        by_kind[kinds.get(op.layer.partition("[")[0], "other")] += terms.seconds  # type: ignore[assignment]
    shares = {kind: seconds / by_kind.total() for kind, seconds in by_kind.most_common()}
    bound = predicted(host, calibration)
    return WholePass(name, prediction, flops, pointwise, peak_bytes(program), host, timing, bound, shares)


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
        for letter, timing in zip("AB", self.timings, strict=True):
            low, high = map(show_seconds, timing.interval)
            rows.append((letter, show_seconds(timing.seconds), f"{low} to {high}", str(timing.count)))
        table = Table(("Comparison", self.timings[0].statistic, "95 % interval", "samples"), rows)
        low, high = self.interval
        verdict = f"B is {self.speedup:.3f}× as fast as A (95 % interval {low:.3f} to {high:.3f}): "
        verdict += "significant" if self.significant else "no significant difference"
        head = [f"{letter}: {name}" for letter, name in zip("AB", self.names, strict=True)]
        return Sheet(head, [table], self.warnings, [verdict])


@takes_settings(mode="inference")
def compare(
    a: Architecture | Prediction | str,
    b: Architecture | Prediction | str,
    *,
    rounds: int | None = None,
    threads: int = 1,
    progress: bool | Progress = False,
    **settings: Unpack[GivenSettings],
) -> Comparison:
    """How many times as fast `b` is as `a`: both are run, samples taken in turn.

    Args:
        a: a model as `predict` takes it, or a prediction.
        b: the same.
        rounds: samples of each.
        threads: how many matrix products may use; all else runs on one.
        progress: a bar on stderr, or a function that is told the share done.
        **settings: of models, as `predict` takes them; mode is "inference" unless given.

    Raises:
        CostModelError: a wrong setting, or more memory than there is.

    """
    check_asked(threads, None)
    protocol, predictions = replace(with_rounds(PROTOCOL, rounds), threads=threads), []
    for side in (a, b):
        if not isinstance(side, Architecture | Prediction | str):
            raise SettingError(f"{shown(side)} cannot be timed: give a model or a prediction")
        predictions.append(runnable(side, {} if isinstance(side, Prediction) else settings))
    programs = [network_that_fits(each, optimize=False).program for each in predictions]
    with bar(progress, "measuring") as tell:
        timings = measure(programs, protocol=protocol, statistic="median", progress=tell)
    return Comparison((headline(predictions[0]), headline(predictions[1])), (timings[0], timings[1]))
