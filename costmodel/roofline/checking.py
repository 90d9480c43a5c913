"""A check: each layer's predicted time held against its measured time, and what bounds it.

By default layers are measured in place: the whole model runs, and each layer's calls are timed where they stand in it,
so that one run serves all layers. Otherwise each layer runs alone, over and over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Unpack

from costmodel.architectures.base import Architecture
from costmodel.cost.prediction import Prediction
from costmodel.cost.report import headline
from costmodel.cost.rows import traffic
from costmodel.display.answer import Answer, Sheet
from costmodel.display.rooflines import Ceiling
from costmodel.display.table import Cells, Table, printable
from costmodel.display.units import read_budget, show_bytes, show_change, show_count, show_rate, show_seconds
from costmodel.errors import SettingError, shown
from costmodel.graph.tensor import Call
from costmodel.roofline.calibration import LONGEST, Calibration, Progress, Say, bar, calibrated, ceilings_of
from costmodel.roofline.classification import Verdict, classify, naive, predicted
from costmodel.roofline.hosttime import LEVELS, HostTime, compulsory_bytes_of, part_of, predict_seconds
from costmodel.roofline.memory import check_fits
from costmodel.roofline.passage import Part, Passage, expected_seconds, measure_in_place
from costmodel.roofline.program import Op, Phase, Program, program_of
from costmodel.roofline.recorder import asked, layer_programs, network_that_fits
from costmodel.roofline.reference import Buffer, Ref
from costmodel.roofline.sentinel import Sentinel
from costmodel.roofline.timing import Protocol, Timing, copies_of, measure, room
from costmodel.roofline.validation import Agreement, Errors
from costmodel.training.settings import GivenSettings, takes_settings

DTYPE = "float32"
"""What layers are run in."""
PROTOCOL = Protocol(item_seconds=1.0, budget=15.0)
"""Of the measurement of layers alone."""
BUDGET = 8.0
"""How long a model is run, if that is enough for as many passes as are needed [s]."""
IN_PLACE, WARM = "in place", "warm"
MOST_ROUNDS = 1000
MOST_ROWS = 60
"""Lines of the table, for the layers that take longest; `Check.layers` always has all."""
TOP = 8
NAMED = 4
"""Names in a line of the verdict."""


@dataclass(frozen=True)
class Finding:
    """One pass of one layer, all its repeats together, so that findings add up.

    flops: of contractions; pointwise_flops: all other arithmetic. compulsory_bytes: every input, weight and output
    moved once; numpy_bytes: all that NumPy's calls read and write. calls: of NumPy functions, in one repeat.
    program: equal for layers that are measured together, as they run the same program alone. timing: of one repeat, as
    is `host`. work: what one repeat runs. part: of the model, such as its attention.
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
    work: Program = field(repr=False)
    host: HostTime = field(repr=False)
    timing: Timing = field(repr=False)
    predicted_class: Verdict
    textbook_class: Verdict
    part: str = ""
    measured_class: Verdict | None = None

    @property
    def full_name(self) -> str:
        """With its pass, if that is not the forward one."""
        return f"{self.name} ({self.phase})" if self.phase == "backward" else self.name

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


def _gain(gain: Gain) -> dict[str, Any]:
    return {**asdict(gain), "twice": gain.twice, "limit": gain.limit if gain.share < 1 else None}


@dataclass(frozen=True, repr=False)
class Check(Answer):
    """Predicted and measured time of every layer, in place or alone.

    layers: those that compute or move something; idle: names of those that are views. warnings: why to doubt it.
    passage: the run that measured them in place; None if each was run alone, then with so many bytes touched between
    two runs (`reuse_bytes`; 0 is warm).
    """

    prediction: Prediction = field(repr=False)
    calibration: Calibration = field(repr=False)
    level: int
    layers: tuple[Finding, ...] = field(repr=False)
    idle: tuple[str, ...] = field(repr=False)
    warnings: tuple[str, ...] = ()
    reuse_bytes: int = 0
    passage: Passage | None = field(default=None, repr=False)

    @property
    def question(self) -> str:
        """What was asked, in one line."""
        cold = f"cold ({show_bytes(self.reuse_bytes)} between two runs)"
        state = IN_PLACE if self.passage is not None else f"each layer alone, {cold if self.reuse_bytes else WARM}"
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
        if self.passage is not None:
            return self.passage.as_it_came
        return sum(layer.repeat * layer.timing.as_it_came for layer in self.layers)

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
        """Measured ceilings of this machine: of products, of the functions that bind a layer, bandwidth by level."""
        verdicts = [layer.measured_class or layer.predicted_class for layer in self.layers]
        names = dict.fromkeys(v.level for v in verdicts if v.bound == "function" and not v.level.endswith(".at"))
        return ceilings_of(self.calibration, DTYPE, [name for name in names if "." not in name and name != "random"])

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
        return self._gains("kind")

    @cached_property
    def part_gains(self) -> tuple[Gain, ...]:
        """By part: attention, MLP, norms, embedding, head; the stages of a CNN; from the one that takes longest."""
        return self._gains("part")

    def _gains(self, by: str) -> tuple[Gain, ...]:
        spent: dict[str, float] = {}
        for layer in self.layers:
            spent[getattr(layer, by)] = spent.get(getattr(layer, by), 0.0) + layer.measured_seconds
        ordered = sorted(spent.items(), key=lambda item: -item[1])
        return tuple(Gain(name, seconds, seconds / self.measured_seconds) for name, seconds in ordered)

    @property
    def verdict(self) -> tuple[str, str, str]:
        """In three lines: what takes the time, what binds it, and how far the prediction is off."""
        taken = f"takes {show_seconds(self.measured_seconds)} undisturbed, {self.resolved:.0%} of it resolved"
        taken += f" ({show_seconds(self.as_it_came)} as it came, {self.disturbance:.2f} ×)"
        bound: dict[str, float] = {}
        for layer in self.layers:
            name = (layer.measured_class or layer.predicted_class).name
            bound[name] = bound.get(name, 0.0) + self.share(layer)
        by = "" if any(layer.measured_class for layer in self.layers) else ", by the model"
        off = f"{abs(self.error):.1%} too {'long' if self.error > 0 else 'short'}"
        off = f"predicted {show_seconds(self.predicted_seconds)}, {off}"
        errors = self.errors
        within = f"median error {errors.median:.1%}, nine of ten within {errors.quantile(0.9):.1%}"
        return (
            f"{taken}: {_largest({gain.name: gain.share for gain in self.part_gains})}",
            f"bound by{by}: {_largest(bound)}",
            f"{off}; layers: {within if errors.predicted else 'none is resolved, so none is judged'}",
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
            "as_it_came": layer.repeat * layer.timing.as_it_came,
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
            "passes": None if self.passage is None else len(self.passage.whole),
            "error": self.error,
            "errors": self.errors.to_dict(),
            "agreement": self.agreement.to_dict() if self._classified() else None,
            "textbook_agreement": self.textbook_agreement.to_dict() if self._classified() else None,
            "verdict": list(self.verdict),
            "gains": list(map(_gain, self.gains)),
            "part_gains": list(map(_gain, self.part_gains)),
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
    reuse: int | str = IN_PLACE,
    budget: float = BUDGET,
    calibration: Calibration | None = None,
    progress: bool | Progress = False,
    say: Say | None = None,
    **settings: Unpack[GivenSettings],
) -> Check:
    """Hold the predicted time of each layer against its measured time, on one thread.

    Args:
        model: as `predict` takes it, or a prediction.
        level: which model of host time, 1 to 6; see `costmodel.roofline.hosttime`.
        rounds: passes of the model, or turns of each layer alone; as many as are needed within the budget if not given.
        classes: whether to measure also what bounds each layer, which takes as long again.
        reuse: "in place" for layers as the model runs; "warm" for each alone, again and again; or cold, so many bytes
            (or a size such as "64 MiB") being touched between two runs, as copies of its memory take turns.
        budget: how long to go on for layers that are unresolved [s].
        calibration: of this machine; the stored one unless given, and a quick one is made if there is none.
        progress: a bar on stderr, or a function that is told the share done.
        say: is told how long it will take, and what there is to know of the calibration, as that it had to be made;
            the latter is a warning unless given.
        **settings: as `predict` takes them; mode is "inference" unless given. In mode "train" a layer's backward pass
            has a line of its own, and in place the optimizer's step has one.

    Raises:
        CostModelError: a wrong setting, or more memory than there is, before anything is allocated.

    """
    if level not in LEVELS or isinstance(level, bool):
        raise SettingError(f"level {shown(level)} is none of {', '.join(map(str, LEVELS))}")
    prediction, protocol = asked(model, settings), with_rounds(PROTOCOL, rounds)
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget <= LONGEST:
        raise SettingError(
            f"budget {shown(budget)} is no time up to {LONGEST:,.0f} seconds: use one such as {BUDGET:g}"
        )
    passes = [each for call in prediction.run.root.calls() for each in _passes(call)]
    busy = [each for each in passes if each.program.ops]
    if not busy:
        raise SettingError(f"{prediction.model.title} has no layer that computes anything: nothing can be measured")
    in_place = reuse == IN_PLACE
    reuse_bytes = 0 if in_place or reuse in (0, WARM) else read_budget(reuse, "reuse").bytes
    whole = network_that_fits(prediction, optimize=prediction.settings.training).program if in_place else None
    if whole is None:
        distinct = {number: each.program for number, each in zip(_numbered(busy), busy, strict=True)}
        check_fits(room(distinct.values(), reuse_bytes), prediction.model.title)
    calibration = calibration or calibrated(progress=progress, say=say)
    if whole is not None:
        host = predict_seconds(whole, calibration, level=level)
        if say is not None:
            say(f"a pass is predicted to take {show_seconds(host.seconds)}: {_expected(host.seconds, budget, classes)}")
        sentinel = Sentinel()
        with bar(progress, "measuring") as told:
            passage = measure_in_place(whole, budget=budget, passes=rounds, sentinel=sentinel, progress=told)
        found = _placed(passage, busy, prediction, calibration, host)
    else:
        sentinel, passage = Sentinel(), None
        protocol = replace(protocol, budget=budget)
        with bar(progress, "measuring") as told:
            found = _alone(busy, calibration, level, reuse_bytes, protocol, sentinel, told)
    parts = parts_of({each.name: each.kind for each in passes})
    found = [replace(each, part=parts.get(each.name, each.phase)) for each in found]
    layers = _classified(found, calibration, sentinel) if classes and not reuse_bytes else found
    idle = tuple(each.name for each in passes if each.phase == "forward" and not each.program.ops)
    warnings = _warnings(calibration, layers)
    return Check(prediction, calibration, level, tuple(layers), idle, warnings, reuse_bytes, passage)


def _expected(one: float, budget: float, classes: bool) -> str:
    """How long measuring takes, in words."""
    most = expected_seconds(one, budget)
    return f"measuring takes up to {show_seconds(most)}" + (", and what binds layers as long again" if classes else "")


def _alone(
    busy: Sequence[_Pass],
    calibration: Calibration,
    level: int,
    reuse_bytes: int,
    protocol: Protocol,
    sentinel: Sentinel,
    told: Progress | None,
) -> list[Finding]:
    """Each layer by itself; those that run the same program are measured once."""
    numbers = _numbered(busy)
    distinct = {number: each.program for number, each in zip(numbers, busy, strict=True)}
    timings = measure(
        [*distinct.values()], reuse_bytes=reuse_bytes, protocol=protocol, sentinel=sentinel, progress=told
    )
    known = dict(zip(distinct, timings, strict=True))
    found = []
    for each, number in zip(busy, numbers, strict=True):
        program = distinct[number]
        between = (copies_of(program, reuse_bytes) - 1) * program.touched_bytes
        host = predict_seconds(
            program, calibration, level=level, compulsory_bytes=each.compulsory_bytes, between=between
        )
        found.append(_finding(each, number, host, known[number], calibration))
    return found


def _placed(
    passage: Passage, busy: Sequence[_Pass], prediction: Prediction, calibration: Calibration, host: HostTime
) -> list[Finding]:
    """Each layer where it stands in the model, which `host` predicts."""
    known = {(each.name, each.phase): each for each in busy}
    rows: dict[str, tuple[_Pass, list[Part]]] = {}
    for part in passage.parts:
        if part not in known:
            stepped = next((each for each in known.values() if each.phase == part[1] == "optimizer"), None)
            known[part] = stepped or _beside(part, passage, prediction)
        each = known[part]
        rows.setdefault(f"{each.name} {each.phase}", (each, []))[1].append(part)
    found = []
    for number, (each, parts) in enumerate(rows.values()):
        calls = [call for part in parts for group in passage.parts[part] for call in group.calls]
        if not host.calls:  # two ceilings know nothing of calls
            own = predict_seconds(each.program, calibration, level=1, compulsory_bytes=each.compulsory_bytes)
        else:
            own = part_of(host, calls, calibration, each.repeat)
        found.append(_finding(each, number, own, passage.timing(parts, each.repeat), calibration))
    return found


def _beside(part: Part, passage: Passage, prediction: Prediction) -> _Pass:
    """What a model does beside its layers: the optimizer's step, and gradients that are set or added up."""
    name, phase = part
    parts = [each for each in passage.parts if each == part or each[1] == phase == "optimizer"]
    numbers = sorted(number for each in parts for group in passage.parts[each] for number in group.calls)
    ops = [passage.program.ops[number] for number in numbers]
    program = program_of(ops, [op.output for op in ops if op.output.buffer.role == "weight"], name=phase)
    if phase == "optimizer":
        name, kind = "optimizer's step", prediction.settings.states.name
    else:
        kind = "gradient"
    return _Pass(name, kind, 1, phase, program, program.contractions, program.pointwise, compulsory_bytes_of(program))


def _classified(found: Sequence[Finding], calibration: Calibration, sentinel: Sentinel) -> list[Finding]:
    """With what bounds each, by measurement."""
    bounds = classify(
        [each.work for each in found], [each.timing.seconds for each in found], calibration.machine, sentinel
    )
    return [replace(each, measured_class=bound) for each, bound in zip(found, bounds, strict=True)]


def with_rounds(protocol: Protocol, rounds: int | None) -> Protocol:
    """The protocol with `rounds` turns of each item, unless None. Raises SettingError."""
    if rounds is None:
        return protocol
    if isinstance(rounds, bool) or not isinstance(rounds, int) or not 1 <= rounds <= MOST_ROUNDS:
        raise SettingError(f"rounds {shown(rounds)} is not a whole number from 1 to {MOST_ROUNDS:,}")
    return replace(protocol, rounds=rounds, least_rounds=rounds)


class _Pass(NamedTuple):
    """One pass of one layer, not yet timed; FLOPs and bytes are of one repeat."""

    name: str
    kind: str
    repeat: int
    phase: Phase
    program: Program
    flops: int
    pointwise_flops: int
    compulsory_bytes: int


def _passes(call: Call) -> Iterator[_Pass]:
    forward, backward = layer_programs(call)
    name, kind, repeat = call.name, call.layer.kind, int(call.times)
    work = call.layer.forward(call)
    moved = int(traffic(call))
    yield _Pass(name, kind, repeat, "forward", forward, int(work.contractions), int(work.pointwise), moved)
    if backward is not None:
        works = [work for _, work, _ in call.gradients()]
        flops, pointwise = (sum(int(getattr(work, name)) for work in works) for name in ("contractions", "pointwise"))
        yield _Pass(name, kind, repeat, "backward", backward, flops, pointwise, compulsory_bytes_of(backward))


def _finding(each: _Pass, number: int, host: HostTime, timing: Timing, by: Calibration) -> Finding:
    repeat, rates = each.repeat, by.rates
    arithmetic = each.flops + each.pointwise_flops
    return Finding(
        name=each.name,
        kind=each.kind,
        phase=each.phase,
        repeat=repeat,
        calls=len(each.program),
        flops=repeat * each.flops,
        pointwise_flops=repeat * each.pointwise_flops,
        compulsory_bytes=repeat * each.compulsory_bytes,
        numpy_bytes=repeat * each.program.traffic_bytes,
        program=number,
        work=each.program,
        host=host,
        timing=timing,
        predicted_class=predicted(host, by),
        textbook_class=naive(arithmetic, each.compulsory_bytes, rates.peak(DTYPE), rates.memory_bandwidth),
    )


PARTS = {
    "cross_attention": "cross-attention",
    "attention": "attention",
    "mlp": "MLP",
    "experts": "MLP",
    "router": "MLP",
    "loss": "loss",
    **dict.fromkeys(("embedding", "positions", "segments", "tokens", "patches", "relative_bias"), "embedding"),
    **dict.fromkeys(("head", "pooler", "classes", "first_token", "output_scale"), "head"),
}
"""The part of a model by what the first word of a layer's name holds; the first that fits counts."""
NORMS = ("layernorm", "rmsnorm")


def parts_of(kinds: Mapping[str, str]) -> dict[str, str]:
    """The part that each layer belongs to, by its name, in order of the forward pass: attention, MLP and so on; of
    other models the outermost block. What stands alone before all blocks is the stem, between two it belongs to the
    one before, and behind them it is the head."""
    found: dict[str, str] = {}
    alone: list[str] = []
    last = ""
    for name, kind in kinds.items():
        words = [word for word in name.split(".") if word not in ("encoder", "decoder", "block")]
        known = next((part for word, part in PARTS.items() if word in (words or [name])[0]), "")
        part = "norms" if kind in NORMS else known or (words[0] if len(words) > 1 else "")
        if not part:
            alone.append(name)
            continue
        if not known and part != "norms":
            found.update(dict.fromkeys(alone, last or "stem"))
            alone, last = [], part
        found[name] = part
    return {name: found.get(name, "head" if last else "layers") for name in kinds}


def _numbered(passes: Sequence[_Pass]) -> list[int]:
    """A number for each program, equal for those that make the same calls on arrays laid out alike."""
    known: dict[Any, int] = {}
    return [known.setdefault(_likeness(each.program), len(known)) for each in passes]


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
    found = list(calibration.warnings)
    unsettled = [layer for layer in layers if not layer.timing.resolved]
    if unsettled:
        share = sum(layer.measured_seconds for layer in unsettled) / sum(layer.measured_seconds for layer in layers)
        found.append(
            f"{len(unsettled)} of {len(layers)} layers, {share:.0%} of the time, are unresolved: they had too few"
            " undisturbed moments, and are not judged"
        )
    return tuple(found)


NOTES = (
    "layers: a row is all repeats; bytes are compulsory (inputs, weights and outputs moved once)"
    " and NumPy's own passes; FLOP/B is operations of both sorts a compulsory byte",
    "times: of one thread, the fastest of samples that are known to be undisturbed (~: too few of them, unresolved);"
    " ± is half its 95 % interval; off is predicted over measured, less one",
    "rates: what was achieved, of the fastest product; GB/s of NumPy's passes, which caches serve faster than memory",
    "bound by: the model's terms; measured, by changing one thing at a time; textbook, intensity against the ridge;"
    " ? is too close to call",
)


def _sheet(check: Check) -> Sheet:
    """The verdict, layers, how far predictions are off, what takes longest, and what binds layers if measured."""
    errors = Table(
        (f"Error by level {check.level}: {LEVELS[check.level]}", "median", "p90", "worst", "R² log"),
        [(f"{len(check.errors.predicted)} of {len(check.layers)} layers, the resolved ones", *check.errors.cells())],
    )
    tables = [_layers(check), _gains("If one part were faster", check.part_gains), _gains(KIND, check.gains), errors]
    if check.agreement.pairs:
        asked = {"the model": check.agreement, "intensity against the ridge": check.textbook_agreement}
        rows = [(name, *found.cells()) for name, found in asked.items()]
        tables.append(Table(("What binds a layer, by", "layers", "agree", "kappa", "lowest recall"), rows))
    idle = [f"without a call, and so without a line: {len(check.idle)} views and the like"] if check.idle else []
    head = [check.question, *check.verdict, str(check.calibration.machine)]
    return Sheet(head, tables, check.warnings, [*idle, *NOTES])


KIND = "If one kind were faster"


def _largest(shares: Mapping[str, float]) -> str:
    """Names with their shares, those that are worth naming, the largest first."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    told = [f"{printable(name)} {share:.0%}" for name, share in ordered[:NAMED] if share >= 0.01]
    rest = 1 - sum(share for _, share in ordered[: len(told)])
    return ", ".join([*told, *([f"all else {rest:.0%}"] if rest >= 0.005 else [])])


HEADER = ("layer", "measured", "share", "off", "bound by", "model says", "predicted", "±", "× as it came", "kind")
HEADER += ("FLOPs", "FLOP/s", "of peak", "GB/s", "FLOP/B", "bytes", "NumPy's", "textbook")
WORDS = frozenset(map(HEADER.index, ("layer", "bound by", "model says", "kind", "textbook")))


def _layers(check: Check) -> Table:
    longest = {id(layer) for layer in check.top(MOST_ROWS)}
    rows = [_line(check, layer) for layer in check.layers if id(layer) in longest]
    if others := [layer for layer in check.layers if id(layer) not in longest]:
        rows.append(_sum(check, others, f"{len(others)} others"))
    rows.append(_sum(check, check.layers, "total"))
    return Table(HEADER, rows, words=WORDS, total=True)


def _line(check: Check, layer: Finding) -> Cells:
    low, high = layer.measured_interval
    kind = f"{layer.kind} ×{layer.repeat}" if layer.repeat > 1 else layer.kind
    half = f"{(high - low) / 2 / layer.measured_seconds:.1%}" if layer.timing.resolved else "unresolved"
    classes = (layer.measured_class or "-", layer.predicted_class, layer.textbook_class)
    return _cells(check, [layer], (printable(layer.full_name), kind), half, tuple(map(str, classes)))


def _sum(check: Check, layers: Sequence[Finding], name: str) -> Cells:
    return _cells(check, layers, (name, f"{sum(layer.repeat for layer in layers):,} runs"), "", ("", "", ""))


def _cells(check: Check, layers: Sequence[Finding], names: Cells, half: str, classes: Cells) -> Cells:
    """A line of the table: layers added up. half: of the interval of measured time."""
    fields = ("arithmetic", "compulsory_bytes", "numpy_bytes", "predicted_seconds", "measured_seconds")
    arithmetic, compulsory, numpy, predicted, measured = (
        sum(getattr(layer, field) for layer in layers) for field in fields
    )
    came = sum(layer.repeat * layer.timing.as_it_came for layer in layers)
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
