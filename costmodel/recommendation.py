"""Which settings to run a model with in so much memory: all ways that it has, each at the largest batch that fits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from costmodel.applicability import check_applies
from costmodel.budget import read_budget
from costmodel.errors import CostModelError, SettingError, shown
from costmodel.inverse import solve_for
from costmodel.prediction import Prediction, predict, trace
from costmodel.ranking import Counts, Recommendation, Recommendations
from costmodel.search import last_true, line_guess
from costmodel.steps import Steps, steps_of
from costmodel.units import show_bytes

if TYPE_CHECKING:
    from costmodel.architectures.base import Architecture

FLOPS_PER_BYTE = 100
"""Below what data sheets of accelerators give for 16-bit arithmetic (V100: 139, A100 of 80 GB: 153, H100: 295)."""

OPTIMIZERS = ("adamw", "adam-8bit")
"""Chosen between unless one is given: they train alike."""
PRECISIONS = {"train": ("bf16-autocast", "fp32"), "inference": ("bf16", "fp32")}
CHECKPOINTS = ("none", "selective", ("attention",), ("mlp",), "block", "sqrt")
FUSED = "fused"
"""Of attention: the kernel that PyTorch has for the precision."""
CHOOSABLE = ("checkpoint", "attention", "precision", "optimizer")
"""In the order in which they are tried: what changes least last."""


def recommend(
    model: Architecture | str,
    *,
    memory: str | float,
    samples: int | None = None,
    reserve: str | int = 0,
    flops_per_byte: float = FLOPS_PER_BYTE,
    **settings: Any,
) -> Recommendations:
    """The settings with which a model fits `memory`, ranked by how much of a step is work on its samples.

    Precision, optimizer, attention and checkpoint are chosen between unless they are given, each with the largest batch
    that fits. What is not work on samples is what checkpoints recompute, and going over weights, gradients and states,
    which weighs less the more samples a step has.

    Args:
        model: as `predict` takes it.
        memory: such as "24 GiB", as `Prediction.fits` takes it.
        samples: of an optimizer step, reached by accumulating (default: one batch, as large as fits).
        reserve: memory to leave for what is not modelled.
        flops_per_byte: FLOPs that the device could do while it moves a byte.
        **settings: all that `predict` takes; of a list of precisions, optimizers, kinds of attention, checkpoints or
            batches one is chosen.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    """
    budget, spared = read_budget(memory), read_budget(reserve, "reserve").bytes if reserve else 0
    if isinstance(flops_per_byte, bool) or not isinstance(flops_per_byte, int | float) or not 0 <= flops_per_byte < 1e9:
        raise SettingError(f"flops_per_byte={shown(flops_per_byte)} is not a number of FLOPs: use one such as 100")
    settings = {name: list(value) if isinstance(value, range) else value for name, value in settings.items()}
    fixed = {name: value for name, value in settings.items() if not isinstance(value, list)}
    first = predict(model, **fixed)
    steps, knobs = steps_of(first.settings, samples, settings), _knobs(first, settings)
    chosen = (*knobs, *(name for name in ("batch", "accumulate") if name not in fixed))
    entries = [
        Recommendation({**fixed, **{name: getattr(p.settings, name) for name in chosen}}, p, flops_per_byte)
        for p in _tried(first, knobs, steps, budget.bytes - spared)
    ]
    fit = [entry for entry in entries if entry.peak + spared <= budget.bytes]
    worth = fit if "checkpoint" in settings else [entry for entry in fit if not any(map(entry.beaten_by, fit))]
    worth.sort(key=lambda entry: (-entry.useful, -entry.samples, entry.peak))
    least = min(entries, key=lambda entry: entry.peak)
    tips = () if fit else tuple(_tips(least, budget.bytes, spared))
    counts = Counts(len(entries), len(fit))
    return Recommendations(first.model.title, budget, spared, chosen, counts, tuple(worth), least, tips)


def _knobs(first: Prediction, given: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """What is chosen between, by setting: all that is not given and matters to this model, and what is a list.

    Attention is a fused kernel unless it is given, which does the same as the eager one in less memory.
    """
    training = first.settings.training
    own: dict[str, Sequence[Any]] = {"precision": PRECISIONS[first.settings.mode]}
    if training:
        own |= {"optimizer": OPTIMIZERS, "checkpoint": CHECKPOINTS}
    if first.model.HAS_ATTENTION:
        own["attention"] = (FUSED,)
    for name, value in given.items():
        if name == "batch" or not isinstance(value, list):
            own.pop(name, None)
        elif name in CHOOSABLE and value:
            own[name] = value
        else:
            wrong = "is empty: give at least one value" if name in CHOOSABLE else "is a list: give one value"
            raise SettingError(f"{name}={shown(value)} {wrong}")
    return {name: own[name] for name in CHOOSABLE if name in own}


def _tried(first: Prediction, knobs: Mapping[str, Sequence[Any]], steps: Steps, room: int) -> Iterator[Prediction]:
    """Of every combination that the model takes, the largest step that fits, or its smallest if none does.

    Raises CostModelError for a value that it takes in no combination, unless others are tried of themselves.
    """
    refused: dict[tuple[str, int], CostModelError] = {}
    taken: set[tuple[str, int]] = set()
    start = 1
    for places in product(*(range(len(values)) for values in knobs.values())):
        each = list(zip(knobs, places, strict=True))
        try:
            found = _largest(first, {name: knobs[name][place] for name, place in each}, steps, room, start)
        except CostModelError as error:
            refused |= dict.fromkeys(each, error)
            continue
        taken.update(each)
        start = bisect_left(steps.batches, found.settings.batch)  # the next one's may be near
        yield found
    for (name, place), error in refused.items():
        if (name, place) not in taken and (not taken or isinstance(knobs[name], list)):
            raise error


def _largest(first: Prediction, values: dict[str, Any], steps: Steps, room: int, start: int) -> Prediction:
    """The question with these values and the largest step that fits, looked for from `start`, or with the smallest."""
    if values.get("attention") == FUSED:
        settings = replace(first.settings, **{**values, "attention": "eager"})
        kernel = "flash" if (settings.policy.autocast or settings.policy.weight) in ("bf16", "fp16") else "efficient"
        try:
            return _largest(first, {**values, "attention": kernel}, steps, room, start)
        except CostModelError:
            values = {**values, "attention": "eager"}
    asked = replace(first.settings, **values)
    check_applies(first.model, asked)
    made: dict[int, Prediction] = {}

    def peak(place: int) -> int:
        if place not in made:
            made[place] = trace(first.model, steps.at(asked, place))
        return int(made[place].timeline.peak)

    if len(steps.batches) == 1 or peak(0) > room:
        _ = peak(0)
        return made[0]
    count = len(steps.batches)
    place = last_true(lambda n: peak(n) <= room, count, line_guess(peak, steps.batches, room, start))
    return made[place]


def _tips(least: Recommendation, room: int, spared: int) -> Iterator[str]:
    """What would make the smallest of all that was tried fit."""
    p = least.prediction
    yield f"it needs {show_bytes(least.peak + spared)}"
    for name, value in (("optimizer", "sgd"), ("precision", "bf16")):
        if name in least.settings and p.settings.training:
            other = int(trace(p.model, replace(p.settings, **{name: value})).timeline.peak)
            if other < least.peak:
                yield f"with {name} {value} instead it would need {show_bytes(other + spared)}"
    if p.model.HAS_ATTENTION and p.extent.seq:
        found = solve_for(p, "memory.peak", room, "seq", spared)
        if found:
            yield f"with seq {int(found):,} or less it fits"
