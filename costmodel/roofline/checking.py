"""A check: each layer's predicted time held against its measured time.

By default layers are measured in place: the whole model runs, and each layer's calls are timed where they stand in it,
so that one run serves all layers. Otherwise each layer runs alone, over and over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

from costmodel.architectures.base import Architecture
from costmodel.cost.prediction import Prediction
from costmodel.cost.rows import traffic
from costmodel.display.units import read_budget, show_seconds
from costmodel.errors import SettingError, shown
from costmodel.graph.tensor import Call
from costmodel.roofline.calibration import LONGEST, Calibration, Progress, Say, bar, calibrated
from costmodel.roofline.classification import classify, naive, predicted
from costmodel.roofline.findings import DTYPE, IN_PLACE, WARM, Check, Finding, parts_of
from costmodel.roofline.host import Sentinel
from costmodel.roofline.hosttime import LEVELS, HostTime, compulsory_bytes_of, part_of, predict_seconds
from costmodel.roofline.memory import Buffer, Ref, check_fits
from costmodel.roofline.passage import Part, Passage, expected_seconds, measure_in_place
from costmodel.roofline.program import Op, Phase, Program, program_of
from costmodel.roofline.recorder import asked, layer_programs, network_that_fits
from costmodel.roofline.timing import Protocol, Timing, copies_of, measure, room
from costmodel.training.keywords import GivenSettings
from costmodel.training.settings import takes_settings

PROTOCOL = Protocol(item_seconds=1.0, budget=15.0)
"""Of the measurement of layers alone."""
BUDGET, PASSES = 8.0, 4
"""How long a model is run if nobody says [s], or so many passes of one that takes longer."""
MOST_ROUNDS = 1000


@takes_settings(mode="inference")
def check(
    model: Architecture | Prediction | str,
    *,
    level: int = 6,
    rounds: int | None = None,
    classes: bool = True,
    reuse: int | str = IN_PLACE,
    budget: float | None = None,
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
        budget: how long to go on for layers that are unresolved [s], exceeded only by what it takes to run each call
            once; eight seconds, or four passes of a model that takes longer, if not given. What bounds each layer may
            take as long again.
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
    number = isinstance(budget, int | float) and not isinstance(budget, bool)
    if budget is not None and not (number and 0 < budget <= LONGEST):
        raise SettingError(
            f"budget {shown(budget)} is no time up to {LONGEST:,.0f} seconds: use one such as {BUDGET:g}"
        )
    passes = [each for call in prediction.tape.root.calls() for each in _passes(call)]
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
        budget = budget or max(BUDGET, PASSES * host.seconds)
        if say is not None:
            most = show_seconds(expected_seconds(host.seconds, budget))
            more = ", and what binds layers as long again" * classes
            say(f"a pass is predicted to take {show_seconds(host.seconds)}: measuring takes up to {most}{more}")
        sentinel = Sentinel()
        with bar(progress, "measuring") as told:
            passage = measure_in_place(whole, budget=budget, passes=rounds, sentinel=sentinel, progress=told)
        found = _placed(passage, busy, prediction, calibration, host)
    else:
        sentinel, passage, budget = Sentinel(), None, budget or BUDGET
        protocol = replace(protocol, budget=budget)
        with bar(progress, "measuring") as told:
            found = _alone(busy, calibration, level, reuse_bytes, protocol, sentinel, told)
    parts = parts_of({each.name: each.kind for each in passes})
    found = [replace(each, part=parts.get(each.name, each.phase)) for each in found]
    if classes and not reuse_bytes:
        programs, seconds = [each.work for each in found], [each.timing.seconds for each in found]
        bounds = classify(programs, seconds, calibration.machine, sentinel, budget=budget)
        found = [replace(each, measured_class=bound) for each, bound in zip(found, bounds, strict=True)]
    idle = tuple(each.name for each in passes if each.phase == "forward" and not each.program.ops)
    warnings = _warnings(calibration, found)
    return Check(prediction, calibration, level, tuple(found), idle, warnings, reuse_bytes, passage)


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
