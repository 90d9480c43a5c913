"""Optimizer steps by name: how one weight follows its gradient, with PyTorch's default rates.

A step is given its number, so that corrections of bias are constants; 1 is the first.
"""

from __future__ import annotations

from collections.abc import Callable

from costmodel.errors import CostModelError
from costmodel.roofline.kernels.large_steps import adafactor, lamb, lion, muon, shampoo
from costmodel.roofline.kernels.steps import (
    Update,
    adagrad,
    adam,
    adamw,
    amsgrad,
    momentum,
    nadam,
    nesterov,
    rmsprop,
    sgd,
)
from costmodel.roofline.reference import Ref
from costmodel.roofline.tape import Tape
from costmodel.training.optimizers import Optimizer

Step = Callable[[Tape, Update], None]

STEPS: dict[str, Step] = {
    "sgd": sgd,
    "momentum": momentum,
    "nesterov": nesterov,
    "adagrad": adagrad,
    "rmsprop": rmsprop,
    "rmsprop-momentum": rmsprop,
    "rmsprop-centered": rmsprop,
    "adam": adam,
    "adamw": adamw,
    "amsgrad": amsgrad,
    "nadam": nadam,
    "adafactor": adafactor,
    "lion": lion,
    "lamb": lamb,
    "muon": muon,
    "shampoo": shampoo,
}
"""The step of each optimizer, by name."""


def states_of(t: Tape, optimizer: Optimizer, weight: Ref) -> dict[str, Ref]:
    """The states of one weight, there before the step; step counters are no arrays here."""
    found: dict[str, Ref] = {}
    for state in optimizer.states_of(weight.shape):
        if state.extent != "scalar":
            shape = weight.shape if state.extent == "weight" else (state.size_bytes(weight.shape, 4) // 4,)
            found[state.name] = t.array(shape, "state", f"{weight.buffer.name}.{state.name}")
    return found


def step_of(optimizer: Optimizer) -> Step:
    """The step of an optimizer. Raises CostModelError for one that has no NumPy kernel."""
    if optimizer.name not in STEPS:
        raise CostModelError(f"optimizer {optimizer.name!r} has no NumPy kernel: use one of {', '.join(STEPS)}")
    return STEPS[optimizer.name]
