"""Times over grids of sizes: kernels whose numbers are formulas, worked out as arrays with the laws of all machines."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from costmodel.graph.kernel import Kernel, Product
from costmodel.performance.laws import Device, law_of
from costmodel.performance.work import PHASES, Phase, Task
from costmodel.symbolic.guards import expression
from costmodel.symbolic.polynomial import Polynomial

if TYPE_CHECKING:
    from costmodel.performance.time import Time

Numbers = Any
"""A number, or an array of floats."""


class LetteredTask(NamedTuple):
    """A task with a formula for each number: flops, read, written and launches, sizes of products, and times.

    kernel: what else decides its law. again: see `work.Task`.
    """

    phase: Phase
    kernel: Kernel
    numbers: tuple[Polynomial, ...]
    sizes: tuple[Polynomial, ...]
    times: Polynomial
    again: bool


class LetteredTime:
    """The time of one regime of a question with letters for sizes."""

    def __init__(self, time: Time) -> None:
        self.machine = time.machine
        self.tier = time.tier
        self.constants = time.constants
        self.stack = time.stack
        self.allow_tf32 = time.allow_tf32
        self.channels_last = time.channels_last
        self.samples = expression(time.prediction.batch_shape.batch * time.prediction.settings.accumulate)
        seq = time.prediction.batch_shape.seq
        self.seq = None if seq is None else expression(seq)
        alike: dict[Any, LetteredTask] = {}
        for task in time.work.tasks:
            made = _lettered(task)
            key = (made.phase, law_of(task.kernel), made.numbers, made.sizes, made.again)
            before = alike.get(key)
            alike[key] = made if before is None else before._replace(times=before.times + made.times)
        self.tasks = tuple(alike.values())

    def values(self, evaluate: Callable[[Polynomial], Numbers]) -> dict[str, Numbers]:
        """Every quantity of time but what the machine or model has not; evaluate: what gives a formula's values."""
        import numpy as np

        evaluate = cache(evaluate)  # kernels share many of their formulas
        device = Device(self.machine, self.constants)
        launch = 0.0 if self.tier == "ceiling" else self.stack.launch_seconds(self.constants)
        spent: dict[Phase, Numbers] = dict.fromkeys(PHASES, 0.0)
        waited: dict[Phase, Numbers] = dict.fromkeys(PHASES, 0.0)
        model = hardware = 0.0
        peak = 0.0
        for task in self.tasks:
            flops, read, written, launches = map(evaluate, task.numbers)
            sizes = Product(*map(evaluate, task.sizes)) if task.sizes else None
            kernel = task.kernel._replace(flops=flops, read=read, written=written, launches=launches, sizes=sizes)
            if self.tier == "ceiling":
                each = device.ceiling(kernel, allow_tf32=self.allow_tf32)
            else:
                each = device.seconds(kernel, allow_tf32=self.allow_tf32, channels_last=self.channels_last)
            times = evaluate(task.times)
            spent[task.phase] = spent[task.phase] + times * each
            waited[task.phase] = waited[task.phase] + times * launches * launch
            if sizes is not None:
                peak = max(peak, device.units(kernel, self.allow_tf32).peak)
                done = times * (flops if kernel.sort == "attention" else launches * sizes.flops)
                hardware = hardware + done
                model = model + (0.0 if task.again else done)
        phases = {phase: np.maximum(spent[phase], waited[phase]) for phase in PHASES}
        seconds = phases["forward"] + phases["backward"] + phases["update"]
        samples = evaluate(self.samples)
        peak = peak or self.machine.vector_peak()
        found = {
            "seconds": seconds,
            **{f"{phase}_seconds": value for phase, value in phases.items()},
            "samples_per_second": samples / seconds,
            "mfu": model / (peak * seconds),
            "hfu": hardware / (peak * seconds),
        }
        if self.seq is not None:
            found["tokens_per_second"] = samples * evaluate(self.seq) / seconds
        if self.machine.tdp is not None:
            found["energy"] = self.machine.tdp * seconds
        if self.machine.price is not None:
            found["money"] = self.machine.price / 3600 * seconds
        return found


def _lettered(task: Task) -> LetteredTask:
    kernel = task.kernel
    numbers = tuple(map(expression, (kernel.flops, kernel.read, kernel.written, kernel.launches)))
    sizes = () if kernel.sizes is None else tuple(map(expression, kernel.sizes))
    plain = kernel._replace(flops=0, read=0, written=0, launches=1, sizes=None)
    return LetteredTask(task.phase, plain, numbers, sizes, expression(task.times), task.again)
