"""The memory timeline: what is alive at each step of forward, loss, backward and optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from costmodel.backward import Backward, update
from costmodel.forward import Forward
from costmodel.graph import Run
from costmodel.lifetimes import GRADIENTS, Level, Lifetimes, Moment, Phase
from costmodel.sizes import maximum
from costmodel.training import OPTIMIZERS, Settings

STATE_BYTES = 4
"""Optimizer states are fp32."""


class Alive(NamedTuple):
    """Bytes alive at one step, by category.

    activations are kept for backward; temporaries are all else that comes and goes.
    """

    weights: int
    gradients: int
    optimizer: int
    buffers: int
    inputs: int
    activations: int
    temporaries: int

    @property
    def total(self) -> int:
        """All categories together."""
        return sum(self[1:], self[0])


class Step(NamedTuple):
    """One step: its phase, its layer, the rounds of the repeated blocks around it ("" if none), what is alive."""

    phase: Phase
    layer: str
    rounds: str
    alive: Alive


@dataclass(frozen=True)
class Timeline:
    """Bytes alive at each step. Rounds that are alike are one step, at the one that has the most alive."""

    standing: Alive
    moments: tuple[Moment, ...]
    levels: tuple[Level, ...]

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """All steps, in order."""
        return tuple(self._step(now) for now in range(len(self.moments)))

    @cached_property
    def peak(self) -> int:
        """The most alive at any step [bytes]."""
        highest: dict[Phase, int] = {}
        for now, moment in enumerate(self.moments):
            if moment.phase not in highest or self._total(now) > self._total(highest[moment.phase]):
                highest[moment.phase] = now
        peak = 0
        for now in highest.values():
            peak = maximum(peak, self._step(now).alive.total) if peak else self._step(now).alive.total
        return peak

    @cached_property
    def peak_step(self) -> Step:
        """The first step at which the most is alive."""
        return self._step(max(range(len(self.moments)), key=self._total))

    @cached_property
    def temporaries(self) -> int:
        """The most that temporaries take at any step [bytes]."""
        return max((level[2] for level in self.levels), key=int)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the peak, where it is, and every step."""
        steps = [{**step._asdict(), "alive": step.alive._asdict()} for step in self.steps]
        return {"peak": self.peak, "peak_step": self.steps.index(self.peak_step), "steps": steps}

    def _total(self, now: int) -> int:
        return sum(int(size) for size in self.levels[now])

    def _step(self, now: int) -> Step:
        gradients, activations, temporaries = self.levels[now]
        alive = self.standing._replace(gradients=gradients, activations=activations, temporaries=temporaries)
        return Step(*self.moments[now], alive)


def timeline_of(run: Run, settings: Settings) -> Timeline:
    """One step of `run`: forward and loss, and in training backward and the optimizer, whose states exist already.

    Gradients start out as None (``zero_grad(set_to_none=True)``); the result, a loss or in inference the prediction, is
    held to the end, and what the loss alone reads is not.
    """
    lifetimes = Lifetimes()
    forward = Forward(run, settings.bytes_of, lifetimes)
    if run.training:
        Backward(forward.visits, lifetimes)
        update(forward.weights, STATE_BYTES, lifetimes)
    last = len(lifetimes.moments) - 1
    forward.output.died = last
    for stretch in lifetimes.stretches:
        if stretch.line == GRADIENTS:
            stretch.died = last
    return Timeline(_standing(run, settings), tuple(lifetimes.moments), tuple(lifetimes.levels()))


def _standing(run: Run, settings: Settings) -> Alive:
    """What is there from the start of the step to its end."""
    bytes_of = settings.bytes_of
    elements = sum(s.elements * s.times for s in run.weights)
    return Alive(
        weights=elements * bytes_of("weight"),
        gradients=0,
        optimizer=OPTIMIZERS[settings.optimizer] * elements * STATE_BYTES if run.training else 0,
        buffers=sum(s.elements * s.times * bytes_of(s.role) for s in run.buffers),
        inputs=sum(s.elements * s.times * bytes_of(s.role) for s in run.inputs),
        activations=0,
        temporaries=0,
    )
