"""What is in memory from the start of a step to its end: weights, states, buffers and inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from costmodel.dtypes import size_bytes
from costmodel.run import Run
from costmodel.training import Settings


class Standing(NamedTuple):
    """The lines of what stays [bytes].

    masters are the optimizer's own copies of the weights; counters its fp32 scalars, which PyTorch keeps on the host.
    """

    weights: int
    masters: int
    optimizer: int
    counters: int
    buffers: int
    inputs: int


class Lasting(NamedTuple):
    """Tensors of one size that stay, on a line of `Standing`: bytes of one, and how many there are."""

    line: str
    size: int
    times: int


def lasting(run: Run, settings: Settings) -> Iterator[Lasting]:
    """Every tensor that stays."""
    policy, optimizer = settings.policy, settings.states
    state_bytes = size_bytes(1, policy.state_dtype)
    for s, shape in run.weights.items():
        yield Lasting("weights", s.bytes, s.times)
        if s.dtype == policy.quantised:
            yield Lasting("weights", size_bytes(policy.scale_elements(shape), "fp16"), s.times)
    for s, shape in run.trained.items():
        if policy.master:
            yield Lasting("masters", size_bytes(s.elements, policy.master), s.times)
        for size in optimizer.state_sizes(shape, state_bytes):
            yield Lasting("optimizer", size, s.times)
        if scalars := optimizer.scalar_bytes(shape):
            yield Lasting("counters", scalars, s.times)
    for s in run.buffers:
        yield Lasting("buffers", s.bytes, s.times)
    for s in run.inputs:
        yield Lasting("inputs", s.bytes, s.times)


def standing_of(run: Run, settings: Settings, allotted: Callable[[int], int]) -> Standing:
    """Adds up what stays, with what the allocator takes for each tensor."""
    lines = dict.fromkeys(Standing._fields, 0)
    for line, size, times in lasting(run, settings):
        lines[line] += allotted(size) * times
    return Standing(**lines)


def gradient_bytes(run: Run, allotted: Callable[[int], int]) -> int:
    """Gradients of all trained weights [bytes]."""
    return sum(allotted(size_bytes(s.elements, run.precision.gradient_dtype)) * s.times for s in run.trained)
