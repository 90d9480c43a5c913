"""How else the same step may be run on a machine: as people run it, and what may make it slower than was asked."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from costmodel.cost.costs import Costs
from costmodel.errors import CostModelError
from costmodel.training.precision import FP32
from costmodel.training.stacks import STACKS, Stack

if TYPE_CHECKING:
    from costmodel.performance.time import Time

WORTH_NAMING = 0.05
"""By how much longer a step takes, at least, for a setting to be named as what may make it slow."""


def usual_run(time: Time) -> tuple[str, float] | None:
    """See `Time.usual`."""
    p, machine, s = time.prediction, time.machine, time.prediction.settings
    plain = s.policy is FP32 and s.device == "gpu" and time.stack == STACKS["eager"] and time.devices == 1
    if not plain or time.tier != "typical":
        return None
    if not time.kernel_model.units_of("bf16").matrix or machine.runs_in("bf16") != "bf16":
        return None
    changes: dict[str, Any] = {"precision": "bf16-autocast" if s.training else "bf16"}
    if p.model.HAS_ATTENTION and s.attention == "eager":
        changes["attention"] = "flash"
    how: dict[str, Any] = {"known": (), "anchors": (), "allow_tf32": None, "channels_last": False}
    try:
        usual = Costs(p.model, replace(s, **changes))
        seconds = replace(time, prediction=usual, stack=STACKS["compiled"], **how).seconds
    except CostModelError:  # what the model has may lack a fused kernel
        return None
    *first, last = (f"{name}={value!r}" for name, value in {**changes, "stack": "compiled"}.items())
    return (f"{', '.join(first)} and {last}", seconds) if seconds < time.seconds else None


def slower_runs(time: Time) -> list[tuple[str, float]]:
    """See `Time.slower`."""
    s, stack = time.prediction.settings, time.stack
    ways: list[tuple[str, dict[str, Any], Stack]] = []
    if s.policy is not FP32:
        ways.append(("precision fp32", {"precision": "fp32"}, stack))
    if time.prediction.model.HAS_ATTENTION and s.attention != "eager":
        ways.append(("attention eager", {"attention": "eager"}, stack))
    if s.training and s.checkpoint == "none":
        ways.append(("checkpoint block", {"checkpoint": "block"}, stack))
    if stack.launch != "eager_seconds":
        ways.append(("stack eager", {}, STACKS["eager"]))
    ways.append(("CUDA_LAUNCH_BLOCKING=1", {}, replace(stack, name="blocking", blocking=True)))
    slower: list[tuple[str, float]] = []
    for words, changes, other in ways if time.devices == 1 else ():
        with suppress(CostModelError):  # what the model or the machine does not have
            p = Costs(time.prediction.model, replace(s, **changes))
            seconds = replace(time, prediction=p, stack=other, anchors=()).seconds
            if seconds > (1 + WORTH_NAMING) * time.seconds:
                slower.append((words, seconds))
    return sorted(slower, key=lambda way: -way[1])
