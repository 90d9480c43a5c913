"""Checking a model's layers against the clock: predict each from the calibration, measure it, classify it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from costmodel.architectures.base import Architecture
from costmodel.cost.prediction import Prediction, predict
from costmodel.cost.rows import traffic
from costmodel.display.units import read_budget
from costmodel.errors import SettingError, shown
from costmodel.graph.tensor import Call
from costmodel.roofline.calibration import Calibration
from costmodel.roofline.classification import Verdict, classify, naive, predicted
from costmodel.roofline.findings import DTYPE, Check, Finding
from costmodel.roofline.footprint import check_fits
from costmodel.roofline.forecast import predict_seconds
from costmodel.roofline.hosttime import LEVELS, HostTime, compulsory_bytes_of
from costmodel.roofline.layer import layer_programs
from costmodel.roofline.measurement import copies_of, measure
from costmodel.roofline.network import check_runs
from costmodel.roofline.operation import Op, Phase
from costmodel.roofline.placement import place
from costmodel.roofline.program import Program
from costmodel.roofline.reference import Buffer, Ref
from costmodel.roofline.storage import Progress, Say, bar, calibrated
from costmodel.roofline.timing import Protocol, Timing

PROTOCOL = Protocol(rounds=6, least_rounds=2, item_seconds=0.2)
"""Of the measurement of each layer."""
MOST_ROUNDS = 1000


@dataclass(frozen=True)
class Pass:
    """One pass of one layer, not yet timed; FLOPs and bytes are of one repeat."""

    call: Call
    phase: Phase
    program: Program
    flops: int
    pointwise_flops: int
    compulsory_bytes: int


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
    **settings: Any,
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
    reuse_bytes = read_budget(reuse, "reuse").bytes if reuse != 0 else 0
    between = {number: _others(program, reuse_bytes) for number, program in distinct.items()}
    placements = [place(program) for program in distinct.values()]
    room = sum(copies_of(placement, reuse_bytes) * placement.arena_bytes for placement in placements)
    check_fits(room, prediction.model.title)
    calibration = calibration or calibration_for(progress, say)
    with bar(progress, "measuring") as told:
        measured = measure([*distinct.values()], reuse_bytes=reuse_bytes, protocol=protocol, progress=told)
        timings = dict(zip(distinct, measured, strict=True))
    seconds = [timings[number].seconds for number in distinct]
    known = classes and not reuse_bytes
    bounds = classify([*distinct.values()], seconds, calibration.machine) if known else [None] * len(distinct)
    bound = dict(zip(distinct, bounds, strict=True))
    layers = tuple(
        _finding(each, number, timings[number], bound[number], calibration, level, between[number])
        for each, number in zip(busy, numbers, strict=True)
    )
    idle = tuple(each.call.name for each in passes if each.phase == "forward" and not each.program.ops)
    return Check(prediction, calibration, level, layers, idle, _warnings(calibration, layers), reuse_bytes)


def _others(program: Program, reuse_bytes: int) -> int:
    """Bytes of the copies of a program's memory that are touched between two uses of one."""
    placement = place(program)
    return (copies_of(placement, reuse_bytes) - 1) * placement.touched_bytes


def asked(model: Architecture | Prediction | str, settings: dict[str, Any]) -> Prediction:
    """The prediction that is to be held against the clock; inference unless asked otherwise. Raises SettingError."""
    if isinstance(model, Prediction):
        if settings:
            raise SettingError(f"a prediction has its settings: leave out {', '.join(settings)}")
        prediction = model
    else:
        prediction = predict(model, **{"mode": "inference", **settings})
    check_runs(prediction)
    return prediction


def calibration_for(progress: bool | Progress, say: Say | None) -> Calibration:
    """The stored calibration of this machine, or a quick one made now."""
    return calibrated(progress=progress) if say is None else calibrated(progress=progress, say=say)


def with_rounds(protocol: Protocol, rounds: int | None) -> Protocol:
    """The protocol with so many turns of each item, if they are given. Raises SettingError."""
    if rounds is None:
        return protocol
    if isinstance(rounds, bool) or not isinstance(rounds, int) or not 1 <= rounds <= MOST_ROUNDS:
        raise SettingError(f"rounds {shown(rounds)} is not a whole number from 1 to {MOST_ROUNDS:,}")
    return replace(protocol, rounds=rounds, least_rounds=rounds)


def _passes(call: Call) -> Iterator[Pass]:
    forward, backward = layer_programs(call)
    work = call.kind.forward(call)
    yield Pass(call, "forward", forward, int(work.contractions), int(work.pointwise), int(traffic(call)))
    if backward is not None:
        works = [work for _, work, _ in call.gradients()]
        flops, pointwise = (sum(int(getattr(work, name)) for work in works) for name in ("contractions", "pointwise"))
        yield Pass(call, "backward", backward, flops, pointwise, compulsory_bytes_of(backward))


def _finding(
    each: Pass,
    number: int,
    timing: Timing,
    bound: Verdict | None,
    calibration: Calibration,
    level: int,
    between: int,
) -> Finding:
    rates, repeat, program = calibration.rates, int(each.call.times), each.program
    host: HostTime = predict_seconds(
        program, calibration, level=level, compulsory_bytes=each.compulsory_bytes, between=between
    )
    arithmetic = each.flops + each.pointwise_flops
    return Finding(
        each.call.name,
        each.call.kind.kind,
        each.phase,
        repeat,
        len(program),
        repeat * each.flops,
        repeat * each.pointwise_flops,
        repeat * each.compulsory_bytes,
        repeat * program.traffic_bytes,
        number,
        host,
        timing,
        predicted(host.terms, calibration.machine),
        naive(arithmetic, each.compulsory_bytes, rates.peak(DTYPE), rates.memory_bandwidth),
        bound,
    )


def _numbered(programs: list[Program]) -> list[int]:
    """A number for each program, equal for those that make the same calls on arrays laid out alike."""
    known: dict[Any, int] = {}
    return [known.setdefault(_likeness(program), len(known)) for program in programs]


def _likeness(program: Program) -> tuple[Any, ...]:
    """All that tells a program's run from another's: calls, layouts, and which arrays share memory."""
    places: dict[Buffer, int] = {}

    def seen(x: Ref | float) -> Any:
        if not isinstance(x, Ref):
            return x
        return places.setdefault(x.buffer, len(places)), x.buffer.elements, x.dtype, x.shape, x.steps, x.offset

    def likeness(op: Op) -> Any:
        return op.name, tuple(map(seen, op.inputs)), seen(op.output), repr(sorted(op.params.items()))

    return tuple(map(likeness, program))


def _warnings(calibration: Calibration, layers: tuple[Finding, ...]) -> tuple[str, ...]:
    noisy = [layer for layer in layers if layer.timing.noise]
    found = list(calibration.warnings)
    if noisy:
        worst = max(noisy, key=lambda layer: layer.measured_interval[1] / layer.measured_interval[0])
        found.append(
            f"{len(noisy)} of {len(layers)} measurements are noisy, such as {worst.name}: {worst.timing.noise}"
        )
    return tuple(found)
