"""Where a runtime does less well than it could on many devices, and what to set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from costmodel.cost.costs import Costs
from costmodel.display.units import show_bytes
from costmodel.errors import CostModelError
from costmodel.training.dtypes import size_bytes
from costmodel.training.precision import FP32
from costmodel.training.settings import Settings


class Remedy(NamedTuple):
    """A setting that mends what a runtime does worse than it could, and what that is.

    when: whether the flaw is in a question that has another value.
    """

    setting: str
    value: Any
    flaw: str
    when: Callable[[Settings], bool] = lambda _: True


REMEDIES = (
    Remedy("loss_parallel", True, "logits of the whole vocabulary are gathered on every rank of tp"),
    Remedy("sp", True, "what lies between the layers that tp splits is whole on each of its ranks"),
    Remedy("bucket_view", True, "DDP holds gradients a second time, in the buckets that it sends"),
    Remedy("return_outputs", False, "the last stage keeps the logits of all micro-batches"),
    Remedy(
        "precision",
        "bf16-master-fp32-gradients",
        "autocast keeps 16-bit copies of the weights of all units of fsdp, as if they were not split",
        lambda settings: settings.policy.autocast is not None and settings.layout.shards > 1,
    ),
)


SCORES = ("matmul", "scale", "mask", "softmax", "dropout")
"""Kinds of layers of attention that keep what is as large as its scores."""


def scores_lead(p: Costs) -> bool:
    """Whether stored scores are most of what is kept for backward, and that most of the peak."""
    if not p.model.HAS_ATTENTION or p.settings.attention != "eager" or not p.settings.training:
        return False
    kept = [row for row in p.layers if "attention" in row.name.split(".") and row.kind in SCORES]
    return 2 * sum(row.activation_bytes for row in kept) > p.memory.activations > p.memory.peak / 2


def in_words(less: Sequence[tuple[str, int]]) -> str:
    """What `lighter` finds, in a line."""
    texts, before = [], ""
    for words, peak in less:
        more = words.removeprefix(f"{before} + ") if before else words
        texts.append(f"{'and ' if more != words else ''}{more} {show_bytes(peak)}")
        before = words
    return f"less plain settings need: {', '.join(texts)}"


WORTH_SAYING = 0.9
"""Of the peak: a change that leaves more is no help."""


def lighter(p: Costs) -> list[tuple[str, int]]:
    """What people run in place of plain settings, in words, and the peak then [bytes]: one change after another.

    Plain are stored scores, fp32, all activations kept, and a training step where a pass without backward is all that
    one can have. What is not much less than the change before it needs is left out.
    """
    s = p.settings
    split = s.training and s.layout.shards > 1  # where autocast keeps whole copies
    half = "bf16" if not s.training else "bf16-master-fp32-gradients" if split else "bf16-autocast"
    fused = p.model.HAS_ATTENTION and s.attention == "eager"
    changed: dict[str, Any] = {}
    steps: list[dict[str, Any]] = []
    if fused:
        steps.append(changed | {"attention": "efficient" if s.policy is FP32 else "flash"})
        changed |= {"attention": "flash"}
    if s.policy is FP32 or (split and s.policy.autocast is not None):
        changed = {"precision": half, **changed}
        steps.append(dict(changed))
    if s.training and s.checkpoint == "none":
        steps.append(changed | {"checkpoint": "block"})
    if s.training and s.layout.single:
        steps.append(
            {"mode": "inference", "precision": "bf16"} | ({"attention": "flash"} if p.model.HAS_ATTENTION else {})
        )
    peaks: list[tuple[str, int]] = []
    least = int(p.memory.peak)
    for changes in steps:
        kernels = (
            ("flash", "efficient", "eager") if changes.get("attention") == "flash" else (changes.get("attention"),)
        )
        for kernel in kernels:  # the model may have no such kernel
            with suppress(CostModelError):
                if kernel is not None:
                    changes["attention"] = kernel
                peak = int(Costs(p.model, _with(s, changes)).memory.peak)
                if peak < WORTH_SAYING * least:
                    least = peak
                    peaks.append((" + ".join(f"{name} {value}" for name, value in changes.items()), peak))
                break
    return peaks


def _with(s: Settings, changes: dict[str, Any]) -> Settings:
    """Settings with changes; a pass without backward has nothing else of training."""
    if "mode" not in changes:
        return replace(s, **changes)
    return Settings(batch=s.batch, seq=s.seq, target_seq=s.target_seq, image=s.image, device=s.device, **changes)


def remedies(p: Costs) -> list[str]:
    """Where a runtime does less well than it could, and what to set; what that saves is worked out."""
    if p.settings.layout.devices == 1 or not p.settings.training:
        return []
    sentences = []
    for setting, value, flaw, when in REMEDIES:
        if getattr(p.settings, setting, value) == value or not when(p.settings):
            continue
        try:
            peak = Costs(p.model, replace(p.settings, **{setting: value})).memory.peak
        except CostModelError:  # nothing that this layout or model has
            continue
        if peak < p.memory.peak:
            own = show_bytes(p.memory.peak)
            sentences.append(f"{flaw}: with {setting}={value} the peak is {show_bytes(peak)} instead of {own}")
    tape = p.rank.tape
    dtype = tape.precision.gradient_dtype
    if whole := sum(size_bytes(s.graded - s.elements, dtype) * s.times for s in tape.updated if s.graded > s.elements):
        sentences.append(
            f"DTensor makes the gradient of the whole embedding on every rank of tp, {show_bytes(whole)} more than the "
            "rank's share: freeze it, or use runtime='megatron'"
        )
    if again := sum(call.times for call in p.collectives if call.phase == "optimizer"):
        sentences.append(
            f"the optimizer's loop sums gradients of norms over tp each time that it reads them, {again:,} all-reduces "
            "a step: sum them once before it"
        )
    return sentences
