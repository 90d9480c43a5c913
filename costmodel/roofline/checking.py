"""A check: each layer's predicted time held against its measured time.

By default layers are measured in place: the whole model runs, and each layer's calls are timed where they stand in it,
so that one run serves all layers. Otherwise each layer runs alone, over and over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from costmodel.analysis.predict import Prediction
from costmodel.architectures.base import Architecture
from costmodel.cost.rows import traffic
from costmodel.display.units import read_budget, show_seconds
from costmodel.documents.arguments import fits
from costmodel.errors import SettingError, shown
from costmodel.graph.call import Call
from costmodel.roofline.calibration import (
    Calibration,
    Progress,
    bar,
    check_asked,
    check_budget,
    measure_others,
)
from costmodel.roofline.classification import classify, predicted, textbook
from costmodel.roofline.clock import Sentinel
from costmodel.roofline.findings import IN_PLACE, WARM, Check, Finding, LayerWork
from costmodel.roofline.footprint import peak_bytes
from costmodel.roofline.hosttime import HostTime, check_level, compulsory_bytes_of, part_of, predict_seconds
from costmodel.roofline.inplace import LayerPass, RunInPlace, measure_in_place
from costmodel.roofline.kept import Say, calibrated
from costmodel.roofline.memory import Buffer, NoMemory, Ref, check_fits
from costmodel.roofline.pictures import check_drawable
from costmodel.roofline.program import Program, program_of
from costmodel.roofline.recorder import layer_programs, network_of, network_that_fits, runnable
from costmodel.roofline.timing import Protocol, Timing, copies_of, measure, needed_bytes
from costmodel.training.keywords import GivenSettings
from costmodel.training.signatures import takes_settings

PROTOCOL = Protocol(item_seconds=1.0, budget=15.0)
"""Of the measurement of layers alone."""
BUDGET, PASSES = 8.0, 4
"""How long a model is run if nobody says [s], or so many passes of one that takes longer."""
ONE_ROUND = (
    "memory does not hold all weights: one round of each repeated block was run, its weights cold, and the others are"
    " taken to be like it"
)
LEAST_BUDGET = 0.001
"""[s]."""
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
    threads: int = 1,
    calibration: Calibration | None = None,
    progress: bool | Progress = False,
    say: Say | None = None,
    **settings: Unpack[GivenSettings],
) -> Check:
    """Hold the predicted time of each layer against its measured time.

    Of a model that memory does not hold one round of each repeated block is run, whose weights no cache holds either,
    and the others are taken to be like it; the check says so.

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
        threads: how many matrix products may use; all else runs on one.
        calibration: of this machine and as many threads; the stored one unless given, and a quick one is made if there
            is none.
        progress: a bar on stderr, or a function that is told the share done.
        say: is told how long it will take, and what there is to know of the calibration, as that it had to be made;
            the latter is a warning unless given.
        **settings: as `predict` takes them; mode is "inference" unless given. In mode "train" a layer's backward pass
            has a line of its own, and in place the optimizer's step has one.

    Raises:
        CostModelError: a wrong setting, or more memory than there is, before anything is allocated.

    """
    check_level(level)
    prediction, protocol = runnable(model, settings), with_rounds(PROTOCOL, rounds)
    if budget is not None:
        check_budget(budget, LEAST_BUDGET)
    layers = [each for call in prediction.tape.root.calls() for each in layer_work(call)]
    busy = [each for each in layers if each.work.ops]
    if not busy:
        raise SettingError(f"{prediction.model.title} has no layer that computes anything: nothing can be measured")
    in_place = reuse == IN_PLACE
    reuse_bytes = 0 if in_place or reuse in (0, WARM) else read_budget(reuse, "reuse").bytes
    check_asked(threads, None)
    whole, one_round = _in_memory(prediction) if in_place else (None, False)
    if whole is None:
        check_fits(needed_bytes(_distinct(busy).values(), reuse_bytes), prediction.model.title)
    calibration = calibration or calibrated(
        threads=threads, progress=progress, say=say, footprint=None if whole is None else whole.touched_bytes
    )
    threads = calibration.machine.threads
    if whole is not None:
        host = predict_seconds(whole, calibration, level=level)
        budget = budget or max(BUDGET, PASSES * host.seconds)
        if say is not None:
            most = show_seconds(max(host.seconds, budget))
            more = ", and what binds layers as long again" * classes
            say(f"a pass is predicted to take {show_seconds(host.seconds)}: measuring takes up to {most}{more}")
        sentinel = Sentinel(usual=calibration.clock)
        others = [*measure_others(whole, sentinel, threads)]
        with bar(progress, "measuring") as tell:
            run = measure_in_place(
                whole, budget=budget, passes=rounds, threads=threads, sentinel=sentinel, progress=tell
            )
        others += measure_others(whole, sentinel, threads)
        brought = min(map(calibration.rates.others.traffic_at, others), default=None)
        host = predict_seconds(whole, calibration, level=level, traffic=brought)
        rows = [*_placed(run, busy, prediction, calibration, host, one_round)]
    else:
        sentinel, run, budget = Sentinel(usual=calibration.clock), None, budget or BUDGET
        protocol = replace(protocol, budget=budget, threads=threads)
        with bar(progress, "measuring") as tell:
            rows = [*_alone(busy, calibration, level, reuse_bytes, protocol, sentinel, tell)]
    parts = parts_of({each.name: each.kind for each in layers})
    findings = [
        Finding(
            **vars(each),
            program=number,
            host=host,
            timing=timing,
            predicted_class=predicted(host, calibration),
            textbook_class=textbook(each.arithmetic, each.compulsory_bytes, calibration.rates),
            part=parts.get(each.name, each.phase),
        )
        for each, number, host, timing in rows
    ]
    if classes and not reuse_bytes:
        programs, seconds = [each.work for each in findings], [each.timing.seconds for each in findings]
        bounds = classify(programs, seconds, calibration.host, sentinel, budget=budget)
        findings = [replace(each, measured_class=bound) for each, bound in zip(findings, bounds, strict=True)]
    idle = tuple(each.name for each in layers if each.phase == "forward" and not each.work.ops)
    warnings = (*calibration.warnings, *([ONE_ROUND] if one_round else []), *_doubts(findings))
    return Check(prediction, calibration, level, tuple(findings), idle, warnings, reuse_bytes, run, one_round)


def _in_memory(prediction: Prediction) -> tuple[Program, bool]:
    """The whole program of a model, or of one that memory does not hold the program with one round of each repeated
    block, and which it is. Raises CostModelError if that is too much too, or a model is to be trained."""
    training = prediction.settings.training
    try:
        return network_that_fits(prediction, optimize=training).program, False
    except NoMemory:
        rounds = max(int(call.times) for call in prediction.tape.root.calls())
        if training or rounds == 1:
            raise
    program = network_of(prediction, most_rounds=1).program
    check_fits(peak_bytes(program), f"one block of {prediction.model.title}")
    return program, True


def plot(
    model: Check | Architecture | Prediction | str,
    path: str | os.PathLike[str] | None = None,
    *,
    kind: str = "roofline",
    dark: bool = False,
    **settings: Any,
) -> Any:
    """Draw a check, or check a model and draw that (extra `plot`).

    Args:
        model: a check, or what `check` takes.
        path: .png, .svg, .pdf, ...; .html is a page that needs nothing else. Without it matplotlib's figure is given.
        kind: "roofline", "scatter" (predicted against measured), "bars" (time of each layer) or "all".
        dark: on black instead of white; a page takes its colours from the reader's system.
        **settings: as `check` takes them.

    Raises:
        CostModelError: an unknown kind, a file that cannot be written, or what `check` raises.

    """
    check_drawable(path, kind)
    measured = model if isinstance(model, Check) else check(model, **settings)
    return measured.plot(path, kind=kind, dark=dark)


Timed = tuple[LayerWork, int, HostTime, Timing]
"""A layer's pass, the number of its program, and one repeat's time as predicted and as measured."""


def layer_work(call: Call) -> Iterator[LayerWork]:
    """Both passes of a layer, or the forward one where nothing is trained."""
    forward, backward = layer_programs(call)
    name, kind, repeat = call.name, call.layer.kind, int(call.times)
    work = call.layer.forward(call)
    flops, pointwise, moved = (repeat * int(each) for each in (work.contractions, work.pointwise, traffic(call)))
    yield LayerWork(name, kind, "forward", repeat, flops, pointwise, moved, forward)
    if backward is not None:
        works = [work for _, work, _ in call.gradients()]
        flops, pointwise = (
            repeat * sum(int(getattr(w, each)) for w in works) for each in ("contractions", "pointwise")
        )
        moved = repeat * compulsory_bytes_of(backward)
        yield LayerWork(name, kind, "backward", repeat, flops, pointwise, moved, backward)


def _alone(
    busy: Sequence[LayerWork],
    calibration: Calibration,
    level: int,
    reuse_bytes: int,
    protocol: Protocol,
    sentinel: Sentinel,
    tell: Progress | None,
) -> Iterator[Timed]:
    """Each layer by itself; those that run the same program are measured once."""
    distinct = _distinct(busy)
    timings = measure(
        [*distinct.values()], reuse_bytes=reuse_bytes, protocol=protocol, sentinel=sentinel, progress=tell
    )
    known = {key: (number, timing) for number, (key, timing) in enumerate(zip(distinct, timings, strict=True))}
    for each in busy:
        key = _arrangement(each.work)
        program, (number, timing) = distinct[key], known[key]
        between = (copies_of(program, reuse_bytes) - 1) * program.touched_bytes
        moved = each.compulsory_bytes // each.repeat
        host = predict_seconds(program, calibration, level=level, compulsory_bytes=moved, between=between)
        yield each, number, host, timing


def _placed(
    run: RunInPlace,
    busy: Sequence[LayerWork],
    prediction: Prediction,
    calibration: Calibration,
    host: HostTime,
    one_round: bool,
) -> Iterator[Timed]:
    """Each layer where it stands in the model, which `host` predicts; the optimizer's steps of all weights as one."""
    known: dict[LayerPass, LayerWork] = {(each.name, each.phase): each for each in busy}
    places: dict[LayerPass, list[LayerPass]] = {}
    for layer_pass in run.by_layer:
        name, phase = layer_pass
        places.setdefault(("", phase) if phase == "optimizer" else (name, phase), []).append(layer_pass)
    for number, (layer_pass, members) in enumerate(places.items()):
        groups = [group for member in members for group in run.by_layer[member]]
        calls = [call for group in groups for call in group.calls]
        each = known.get(layer_pass) or _extra(layer_pass, run.program, sorted(calls), prediction)
        rounds = len({run.program.ops[number].layer for number in calls}) if one_round else each.repeat
        if not host.calls:  # two ceilings know nothing of calls
            moved = each.compulsory_bytes // each.repeat
            own = predict_seconds(each.work, calibration, level=1, compulsory_bytes=moved)
        else:
            own = part_of(host, calls, calibration, rounds)
        yield each, number, own, run.timing(groups, rounds)


def _extra(layer_pass: LayerPass, whole: Program, calls: Sequence[int], prediction: Prediction) -> LayerWork:
    """What a model does beside its layers: the optimizer's step, and gradients that are set or added up."""
    name, phase = layer_pass
    ops = [whole.ops[number] for number in calls]
    program = program_of(ops, [op.output for op in ops if op.output.buffer.role == "weight"], name=phase)
    name, kind = (name, "gradient") if phase != "optimizer" else ("optimizer's step", prediction.settings.states.name)
    moved = compulsory_bytes_of(program)
    return LayerWork(name, kind, phase, 1, program.contractions, program.pointwise, moved, program)


def with_rounds(protocol: Protocol, rounds: int | None) -> Protocol:
    """The protocol with `rounds` turns of each item, unless None. Raises SettingError."""
    if rounds is None:
        return protocol
    if not fits(rounds, int, 1, MOST_ROUNDS):
        raise SettingError(f"rounds {shown(rounds)} is not a whole number from 1 to {MOST_ROUNDS:,}")
    return replace(protocol, rounds=rounds, least_rounds=rounds)


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
    parts: dict[str, str] = {}
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
            parts.update(dict.fromkeys(alone, last or "stem"))
            alone, last = [], part
        parts[name] = part
    return {name: parts.get(name, "head" if last else "layers") for name in kinds}


def _distinct(layers: Sequence[LayerWork]) -> dict[Any, Program]:
    """One program of those that make the same calls on arrays laid out alike."""
    programs: dict[Any, Program] = {}
    for each in layers:
        programs.setdefault(_arrangement(each.work), each.work)
    return programs


def _arrangement(program: Program) -> tuple[Any, ...]:
    """What decides a program's run: calls, layouts, and which arrays share memory."""
    places: dict[Buffer, int] = {}

    def placed(x: Ref | float) -> Any:
        if not isinstance(x, Ref):
            return x
        return places.setdefault(x.buffer, len(places)), x.buffer.elements, x.dtype, x.shape, x.steps, x.offset

    return tuple(
        (op.name, tuple(map(placed, op.inputs)), placed(op.output), repr(sorted(op.params.items()))) for op in program
    )


def _doubts(layers: Sequence[Finding]) -> Iterator[str]:
    """Why not all layers are judged."""
    unsettled = [layer for layer in layers if not layer.timing.resolved]
    if unsettled:
        share = sum(layer.measured_seconds for layer in unsettled) / sum(layer.measured_seconds for layer in layers)
        yield (
            f"{len(unsettled)} of {len(layers)} layers, {share:.0%} of the time, are unresolved: they had too few"
            " undisturbed moments, and are not judged"
        )
