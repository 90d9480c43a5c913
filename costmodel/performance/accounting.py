"""What a step takes, from its tasks: one accounting, whatever its numbers are.

Each is a number, or an array: over a grid of sizes (a sweep) or over the ends of all constants' ranges (an interval).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from costmodel.performance.laws import TINY, KernelModel, Numbers, law_of, with_numbers
from costmodel.performance.queues import CollectiveSum
from costmodel.performance.work import PHASES, StepPhase, Task
from costmodel.symbolic.guards import expression
from costmodel.symbolic.polynomial import Polynomial


class SharedStep(NamedTuple):
    """What the devices of a layout do together in a step [s].

    phase_seconds: of the slowest rank. contractions: a device's share of the model's FLOPs, with what is run again
    if so asked. collectives: what those of a kind take. bubble: that a rank of a pipeline waits for others. optional:
    that it takes longer where what a runtime can do beside kernels is not switched on.
    """

    devices: int
    seconds: Numbers
    phase_seconds: Mapping[StepPhase, Numbers]
    contractions: Callable[[bool], Numbers]
    collectives: Sequence[CollectiveSum]
    bubble: Numbers = 0.0
    optional: Numbers = 0.0


@dataclass(frozen=True, eq=False)
class StepTime:
    """Seconds of a step, and what follows from them.

    model: of the machine. tasks: of the step. kernel_seconds: of the device for the kernel of each task, once [s].
    samples, tokens: of the step; None: a sample has no tokens. shared: of a layout of several devices what they do
    together; tasks are then of one of them, samples and tokens of all.
    """

    model: KernelModel
    tasks: Sequence[Task]
    kernel_seconds: Sequence[Numbers]
    samples: Numbers
    tokens: Numbers | None
    shared: SharedStep | None = None

    @cached_property
    def task_seconds(self) -> list[Numbers]:
        """Of the device for each task, all its times together [s]."""
        return [task.times * seconds for task, seconds in zip(self.tasks, self.kernel_seconds, strict=True)]

    def _by_phase(self, values: Iterable[Numbers]) -> dict[StepPhase, Numbers]:
        sums: dict[StepPhase, Numbers] = dict.fromkeys(PHASES, 0)
        for task, value in zip(self.tasks, values, strict=True):
            sums[task.phase] = sums[task.phase] + value
        return sums

    @cached_property
    def device_seconds(self) -> dict[StepPhase, Numbers]:
        """Of each phase, that the device is busy."""
        return self._by_phase(self.task_seconds)

    @cached_property
    def launches(self) -> dict[StepPhase, Numbers]:
        """Of each phase."""
        return self._by_phase(task.times * task.kernel.launches for task in self.tasks)

    @cached_property
    def host_seconds(self) -> dict[StepPhase, Numbers]:
        """Of each phase, that the host takes to start its kernels."""
        return self._by_phase(task.times * self.model.host_time(task) for task in self.tasks)

    @cached_property
    def phase_seconds(self) -> dict[StepPhase, Numbers]:
        """Of each phase: the device's or the host's, whichever are more; of a layout as it was played."""
        if self.shared is not None:
            return {phase: self.shared.phase_seconds.get(phase, 0.0) for phase in PHASES}
        return {phase: np.maximum(self.device_seconds[phase], self.host_seconds[phase]) for phase in PHASES}

    @cached_property
    def seconds(self) -> Numbers:
        """Of the step."""
        return sum(self.phase_seconds.values()) if self.shared is None else self.shared.seconds

    @property
    def devices(self) -> int:
        """That the samples are of."""
        return 1 if self.shared is None else self.shared.devices

    def value(self, quantity: str) -> Numbers:
        """A quantity of `cost.quantities.TIMED` by name; None: the machine or the model does not have it."""
        phase = quantity.removesuffix("_seconds")
        return self.phase_seconds[phase] if phase in PHASES else getattr(self, quantity)

    @property
    def busy(self) -> Numbers:
        """Share of the step's time that the device runs."""
        return sum(self.device_seconds.values()) / self.seconds

    @property
    def samples_per_second(self) -> Numbers:
        """Samples of all micro-batches over the seconds of the step."""
        return self.samples / self.seconds

    @property
    def tokens_per_second(self) -> Numbers | None:
        """Tokens of all samples over the seconds of the step; None where a sample has none."""
        return None if self.tokens is None else self.tokens / self.seconds

    @cached_property
    def peak(self) -> float:
        """The fastest units that a product of the step runs on, by the datasheet [FLOP/s]; what MFU is a share of."""
        peaks = (self.model.peak(task.kernel) for task in self.tasks if task.kernel.sizes is not None)
        return max(peaks, default=0.0) or self.model.vector_peak

    def contractions(self, *, again: bool) -> Numbers:
        """FLOPs of products that are really done: grouped weight gradients once, fused attention's visible pairs.

        again: whether those that are run again for backward count too. Of a layout a device's share of the model's.
        """
        if self.shared is not None:
            return self.shared.contractions(again)
        return sum(task.contractions for task in self.tasks if again or not task.again)

    @property
    def mfu(self) -> Numbers:
        """Contraction FLOPs of the model over what the peak would do (Chowdhery et al. 2022, app. B): at most 1."""
        return self.contractions(again=False) / (self.peak * self.seconds)

    @property
    def hfu(self) -> Numbers:
        """The same with what is run again for backward."""
        return self.contractions(again=True) / (self.peak * self.seconds)

    @cached_property
    def watts(self) -> Numbers | None:
        """Power of a device by the work of its kernels, a mean over the step [W]; None: its limit is not known."""
        waiting = self.model.waiting_watts
        if waiting is None:
            return None
        kernels = zip(self.tasks, self.kernel_seconds, strict=True)
        energy = sum(
            task.times
            * self.model.kernel_joules(with_numbers(task.kernel, lambda n: np.asarray(n, float)[()]), seconds)
            for task, seconds in kernels
        )
        busy = sum(self.task_seconds)
        return waiting + (energy / np.maximum(busy, TINY) - waiting) * np.minimum(1.0, busy / self.seconds)

    @property
    def energy(self) -> Numbers | None:
        """Of the devices by the work of their kernels [J]; None: the limit of their boards is not known."""
        return None if self.watts is None else joules(self.watts, self.seconds, self.devices)

    @property
    def money(self) -> Numbers | None:
        """At the machine's price of an hour; None: it has none."""
        price = self.model.machine.price
        return None if price is None else charge(price, self.seconds, self.devices)


def joules(watts: float, seconds: Numbers, devices: int = 1, pue: float = 1.0) -> Numbers:
    """Energy of devices that draw so much for so long [J]; pue: what the data centre draws over what they do."""
    return watts * seconds * devices * pue


def charge(price: float, seconds: Numbers, devices: int = 1) -> Numbers:
    """Money of devices for so long; price: of one for an hour."""
    return seconds / 3600 * devices * price


class SymbolicTime:
    """The time of one regime of a question with symbols for sizes: tasks that have a formula for each number."""

    def __init__(self, model: KernelModel, tasks: Iterable[Task], samples: int, tokens: int | None) -> None:
        self.model = model
        self.samples = expression(samples)
        self.tokens = None if tokens is None else expression(tokens)
        alike: dict[Any, Task] = {}
        times: dict[Any, Polynomial] = {}
        for task in tasks:
            kernel = with_numbers(task.kernel, expression)
            key = (task.phase, task.again, law_of(kernel), kernel._replace(name=""))
            alike.setdefault(key, task._replace(kernel=kernel))
            times[key] = times.get(key, Polynomial({})) + expression(task.times)
        self.tasks = [(task, times[key]) for key, task in alike.items()]

    def __repr__(self) -> str:
        return f"<SymbolicTime of {len(self.tasks)} tasks on {self.model.machine.name}>"

    def at(self, evaluate: Callable[[Polynomial], Numbers]) -> StepTime:
        """Its numbers on a grid; evaluate: gives a formula's values there, as floats."""
        evaluate = cache(evaluate)  # kernels share many of their formulas
        tasks = [
            task._replace(kernel=with_numbers(task.kernel, evaluate), times=evaluate(times))
            for task, times in self.tasks
        ]
        seconds = [self.model.kernel_time(task.kernel) for task in tasks]
        tokens = None if self.tokens is None else evaluate(self.tokens)
        return StepTime(self.model, tasks, seconds, evaluate(self.samples), tokens)
