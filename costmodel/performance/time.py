"""How long one step takes on a machine, why, and how far that may be off."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from math import exp, hypot, log
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from costmodel.cost.prediction import Prediction
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import page, written_for
from costmodel.documents.document import parse
from costmodel.documents.files import is_path, shown_path, text_of
from costmodel.errors import CostModelError, SettingError, shown, unknown
from costmodel.hardware.catalogue import load_machine
from costmodel.hardware.machine import Machine
from costmodel.performance.calibration import Calibration, measured_step
from costmodel.performance.constants import Constants, Effect, Interval, interval, typical
from costmodel.performance.fusion import Fusion
from costmodel.performance.laws import Clock, Tier
from costmodel.performance.runs import Carbon, Energy, Money, Power, Run, Step, run_of
from costmodel.performance.stacks import Stack, StackName, stack_named
from costmodel.performance.work import PHASES, Phase, Task, Work, work_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RERUN = 0.05
"""By how much a step that is measured again differs: the same recipe on the same system by 6 % (median) between
quarterly containers (MLPerf Training, results of successive rounds), as half of a range that holds four of five."""
MOST_ANCHORS = 6
"""Measured steps that a range is relative to, at most."""
COLUMNS = 80
"""A time is laid out for so many, or fewer if the page has no more."""
Bound = Literal["compute", "memory", "overhead"]
"""What a kernel waits for: arithmetic, bytes, or its start."""
Limit = Literal["compute", "memory", "overhead", "host"]
"""What a step waits for; host: for kernels to be started, while the device is idle."""


class KernelTime(NamedTuple):
    """One kernel of one layer, all that a step has of it together.

    seconds: of the device. share: of the device's time in a step. intensity: FLOPs a byte.
    """

    layer: str
    phase: Phase
    kernel: str
    sort: str
    launches: int
    flops: int
    bytes: int
    seconds: float
    share: float
    intensity: float
    bound: Bound


class LayerTime(NamedTuple):
    """One layer, its repeats and all its kernels together [s]; rows add up to the device's time in a step."""

    name: str
    kind: str
    forward_seconds: float
    backward_seconds: float
    update_seconds: float
    seconds: float
    share: float
    bound: Bound


class PhaseTime(NamedTuple):
    """One phase: the device's time, the host's time to start its kernels, and the longer of the two [s]."""

    phase: Phase
    seconds: float
    device_seconds: float
    host_seconds: float
    launches: int


class Time(Answer):
    """Seconds of one step of a prediction on a machine: all micro-batches, backward and update among them.

    known: constants that were measured, and have no range. anchors: steps that were measured on the machine, with their
    seconds: where other constants are off, these are too, and only what differs from them makes the range.

    What a step is made of is worked out once; everything else follows when it is asked for.

    Example:
        >>> import costmodel as cm
        >>> time = cm.predict("gpt2-small", batch=32, seq=512).on("h100-sxm")
        >>> time.low < time.seconds < time.high
        True

    """

    def __init__(
        self,
        prediction: Prediction,
        machine: Machine,
        stack: Stack,
        tier: Tier,
        constants: Constants,
        known: Sequence[str] = (),
        anchors: Sequence[tuple[Time, float]] = (),
        *,
        allow_tf32: bool | None = None,
        channels_last: bool = False,
    ) -> None:
        self.prediction = prediction
        self.machine = machine
        self.stack = stack
        self.tier: Tier = tier
        self.constants = constants
        self.known = tuple(known)
        self.anchors = tuple(anchors)
        self.allow_tf32 = allow_tf32
        self.channels_last = channels_last or stack.channels_last

    @property
    def title(self) -> str:
        """Of the model."""
        return self.prediction.model.title

    @cached_property
    def work(self) -> Work:
        """Every kernel of the step."""
        return work_of(self.prediction.tape, self.prediction.settings, fuse=self.stack.fuses)

    @cached_property
    def _clock(self) -> Clock:
        tasks = self.work.tasks
        return Clock([task.kernel for task in tasks], self.machine, self.allow_tf32, self.channels_last)

    @cached_property
    def _device_seconds(self) -> list[float]:
        """Of each task, all its times together."""
        return self._of_tasks(self.constants)

    def _of_tasks(self, constants: Constants) -> list[float]:
        each = self._clock.seconds(self.tier, constants).tolist()
        return [float(task.times) * seconds for task, seconds in zip(self.work.tasks, each, strict=True)]

    def _phases(self, constants: Constants, tasks: Sequence[float]) -> list[PhaseTime]:
        launch = 0.0 if self.tier == "ceiling" else self.stack.launch_seconds(constants)
        sums: dict[Phase, list[float]] = {phase: [0.0, 0] for phase in PHASES}
        for task, seconds in zip(self.work.tasks, tasks, strict=True):
            sums[task.phase][0] += seconds
            sums[task.phase][1] += int(task.times * task.kernel.launches)
        return [
            PhaseTime(phase, max(device, launch * launches), device, launch * launches, int(launches))
            for phase, (device, launches) in sums.items()
        ]

    @cached_property
    def phases(self) -> list[PhaseTime]:
        """Forward with the loss, backward with what is run again for it, and the update; empty ones too."""
        return self._phases(self.constants, self._device_seconds)

    @cached_property
    def interval(self) -> Interval:
        """The range of the step's seconds, and what makes it wide; the ceiling has none."""
        if self.tier == "ceiling":
            seconds = self.seconds_with(self.constants)
            return Interval(seconds, seconds, seconds, ())
        if not self.anchors:
            least = self.ceiling_seconds
            return interval(self.seconds_with, self.machine, least=least, known=self.known, at=self.constants)
        found = interval(self._anchored, self.machine, known=("conditions", *self.known), at=self.constants)
        faster, slower = (hypot(log(end / found.typical), RERUN) for end in (found.low, found.high))
        return found._replace(low=found.typical * exp(-faster), high=found.typical * exp(slower))

    def _anchored(self, constants: Constants) -> float:
        """Of one step, with other constants, and as much longer as measured steps then take than they would."""
        off = [log(seconds / time.seconds_with(constants)) for time, seconds in self.anchors]
        return self.seconds_with(constants) * exp(sum(off) / len(off))

    def seconds_with(self, constants: Constants) -> float:
        """Of one step, with other constants."""
        return sum(phase.seconds for phase in self._phases(constants, self._of_tasks(constants)))

    @cached_property
    def ceiling_seconds(self) -> float:
        """Of one step by the datasheet alone, which no run is faster than."""
        device, stack, constants = self.machine, self.stack, self.constants
        tf32, last = self.allow_tf32, self.channels_last
        return Time(self.prediction, device, stack, "ceiling", constants, allow_tf32=tf32, channels_last=last).seconds

    @cached_property
    def seconds(self) -> float:
        """Of one step."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def low(self) -> float:
        """The faster end of the range that about four of five measured runs fall into [s]."""
        return self.interval.low

    @property
    def high(self) -> float:
        """The slower end of it [s]."""
        return self.interval.high

    @property
    def widest(self) -> tuple[Effect, ...]:
        """The three constants that make the range widest."""
        return self.interval.effects[:3]

    def _phase(self, name: Phase) -> float:
        return next(phase.seconds for phase in self.phases if phase.phase == name)

    @property
    def forward_seconds(self) -> float:
        """Of the forward pass and the loss."""
        return self._phase("forward")

    @property
    def backward_seconds(self) -> float:
        """Of backward, with what is run again for it."""
        return self._phase("backward")

    @property
    def update_seconds(self) -> float:
        """Of the optimizer."""
        return self._phase("update")

    @property
    def samples(self) -> int:
        """Samples of a step."""
        return int(self.prediction.batch_shape.batch * self.prediction.settings.accumulate)

    @property
    def tokens(self) -> int | None:
        """Tokens of a step; None where a sample has none."""
        seq = self.prediction.batch_shape.seq
        return None if seq is None else self.samples * int(seq)

    @property
    def samples_per_second(self) -> float:
        """Samples of all micro-batches over the seconds of the step."""
        return self.samples / self.seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of all samples over the seconds of the step; None where a sample has none."""
        return None if self.tokens is None else self.tokens / self.seconds

    @cached_property
    def peak(self) -> float:
        """The fastest units that a product of the step runs on, by the datasheet [FLOP/s]; what MFU is a share of."""
        return float(self._clock.peaks().max(initial=0.0)) or self.machine.vector_peak()

    def _contractions(self, *, again: bool) -> int:
        """FLOPs of products that are really done: grouped weight gradients once, fused attention's visible pairs."""
        return sum(
            task.times * (task.kernel.flops if task.kernel.sort == "attention" else _products(task))
            for task in self.work.tasks
            if again or not task.again
        )

    @property
    def mfu(self) -> float:
        """Contraction FLOPs of the model over what the peak would do (Chowdhery et al. 2022, app. B): at most 1."""
        return float(self._contractions(again=False)) / (self.peak * self.seconds)

    @property
    def hfu(self) -> float:
        """The same with what is run again for backward."""
        return float(self._contractions(again=True)) / (self.peak * self.seconds)

    @cached_property
    def bound(self) -> Limit:
        """What most of the step's time is spent waiting for."""
        found: dict[Limit, float] = {}
        waiting = {phase.phase for phase in self.phases if phase.host_seconds > phase.device_seconds}
        for task, seconds, bound in zip(self.work.tasks, self._device_seconds, self._bounds, strict=True):
            if task.phase not in waiting:
                found[bound] = found.get(bound, 0.0) + seconds
        if waiting:
            found["host"] = sum(phase.seconds for phase in self.phases if phase.phase in waiting)
        return max(found, key=lambda bound: found[bound]) if found else "host"

    @cached_property
    def _bounds(self) -> list[Bound]:
        start = 0.0 if self.tier == "ceiling" else self.constants.kernel_seconds
        peaks = self._clock.peaks().tolist()
        each = self._clock.seconds(self.tier, self.constants).tolist()
        found: list[Bound] = []
        for task, peak, seconds in zip(self.work.tasks, peaks, each, strict=True):
            kernel = task.kernel
            compute = float(kernel.flops) / (peak or self.machine.vector_peak())
            memory = float(kernel.read + kernel.written) / self.machine.bandwidth
            waits = 2 * float(kernel.launches) * start > seconds
            found.append("overhead" if waits else "compute" if compute > memory else "memory")
        return found

    @cached_property
    def kernels(self) -> list[KernelTime]:
        """A row for each kernel of each layer; rows add up to the device's time."""
        whole = sum(self._device_seconds) or 1.0
        rows = []
        for task, seconds, bound in zip(self.work.tasks, self._device_seconds, self._bounds, strict=True):
            kernel, times = task.kernel, int(task.times)
            flops, moved = times * int(kernel.flops), times * int(kernel.read + kernel.written)
            rows.append(
                KernelTime(
                    task.layer, task.phase, kernel.name, kernel.sort, times * int(kernel.launches), flops, moved,
                    seconds, seconds / whole, flops / moved if moved else 0.0, bound,
                )
            )  # fmt: skip
        return rows

    @cached_property
    def layers(self) -> list[LayerTime]:
        """A row for each layer, in the order of the forward pass; sums of gradients and the optimizer last."""
        found: dict[tuple[str, str], dict[Phase, float]] = {}
        bounds: dict[tuple[str, str], dict[Bound, float]] = {}
        for task, seconds, bound in zip(self.work.tasks, self._device_seconds, self._bounds, strict=True):
            key = (task.layer, task.kind)
            spent = found.setdefault(key, dict.fromkeys(PHASES, 0.0))
            spent[task.phase] += seconds
            of = bounds.setdefault(key, {})
            of[bound] = of.get(bound, 0.0) + seconds
        whole = sum(self._device_seconds) or 1.0
        rows = []
        for (name, kind), phases in found.items():
            seconds, bound = sum(phases.values()), _most(bounds[name, kind])
            each = phases["forward"], phases["backward"], phases["update"]
            rows.append(LayerTime(name, kind, *each, seconds, seconds / whole, bound))
        return rows

    @property
    def fusions(self) -> list[Fusion]:
        """The chains of layers that become one kernel, and what each saves; none but in a stack that fuses."""
        return self.work.fusions

    @property
    def runs_in(self) -> dict[str, str]:
        """Types of operands that have no units on the machine, with those that they run in."""
        used = {task.kernel.dtype for task in self.work.tasks if task.kernel.sizes is not None}
        found = {dtype: self.machine.runs_in(dtype) for dtype in sorted(used)}
        return {dtype: other for dtype, other in found.items() if other is not None and other != dtype}

    def value(self, quantity: str) -> float:
        """A quantity of `cost.quantities.TIMED` by name. Raises SettingError for one that the step does not have."""
        if quantity == "energy":
            return self.energy(pue=1).joules
        if quantity == "money":
            return self.money().amount
        found = getattr(self, quantity)
        if found is None:
            raise SettingError(f"{self.prediction.model.title} has no tokens: ask for samples_per_second")
        return found

    def run(
        self,
        *,
        steps: float | None = None,
        samples: float | None = None,
        tokens: float | None = None,
        epochs: float = 1,
        devices: int = 1,
        loader: float | str | None = None,
    ) -> Run:
        """How long a run takes: one step unless so many `steps`, `samples` or `tokens` are given.

        Args:
            steps: of all devices.
            samples: of one epoch.
            tokens: of one epoch, of models that have tokens.
            epochs: how often all of them are taken.
            devices: that work side by side, each on samples of its own.
            loader: samples a second that are loaded for all devices, or text with what a sample is or has, such as
                "2000 images/s" or "2e6 tokens/s".

        Raises:
            SettingError: what is wrong with the question, in one line.

        """
        busy = sum(phase.device_seconds for phase in self.phases) / self.seconds
        images = self.prediction.batch_shape.image is not None
        step = Step(
            self.title, self.machine, self.seconds, self.low, self.high, self.samples, self.tokens, busy, images
        )
        return run_of(step, steps=steps, samples=samples, tokens=tokens, epochs=epochs, devices=devices, loader=loader)

    def energy(self, *, power: Power | float | str = "tdp", pue: float, **run: Any) -> Energy:
        """Energy of one step, or of a run as `run` takes it.

        power: of a device: "tdp" (the board's limit), "typical" (between idle and that, by the share of the time that
        it is busy), or watts. pue: what the data centre draws over what its devices do. Raises SettingError.
        """
        return self.run(**run).energy(power=power, pue=pue)

    def carbon(self, *, intensity: float | str, power: Power | float | str = "tdp", pue: float, **run: Any) -> Carbon:
        """Carbon of one step, or of a run; intensity: grams a kWh, or text such as "400 g/kWh". Raises SettingError."""
        return self.run(**run).carbon(intensity=intensity, power=power, pue=pue)

    def money(self, *, price: float | None = None, **run: Any) -> Money:
        """Money of one step, or of a run; price: of a device for an hour, if its machine has none."""
        return self.run(**run).money(price=price)

    def plot(self, path: str | os.PathLike[str] | None = None, *, dark: bool = False) -> Figure:
        """A roofline with every kernel on it, as large as its share of the time, also written to `path`.

        Raises CostModelError without matplotlib (extra `plot`), or if `path` cannot be written.
        """
        from costmodel.display.figures import save
        from costmodel.performance.report import roofline

        figure = roofline(self, dark)
        if path is not None:
            save(figure, path)
        return figure

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the question, then the answer [s]."""
        from costmodel.importers.files import describe

        p = self.prediction
        return {
            "model": describe(p.model),
            "settings": asdict(p.settings),
            "machine": self.machine.name,
            "stack": self.stack.name,
            "tier": self.tier,
            "seconds": self.seconds,
            "low": self.low,
            "high": self.high,
            **{f"{phase.phase}_seconds": phase.seconds for phase in self.phases},
            "mfu": self.mfu,
            "hfu": self.hfu,
            "samples_per_second": self.samples_per_second,
            "tokens_per_second": self.tokens_per_second,
            "bound": self.bound,
            "phases": [phase._asdict() for phase in self.phases],
            "widest": [effect_data(effect) for effect in self.widest],
            "layers": [row._asdict() for row in self.layers],
            "kernels": [row._asdict() for row in self.kernels],
            "fusions": [{**fusion._asdict(), "layers": list(fusion.layers)} for fusion in self.fusions],
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row for each kernel."""
        return [row._asdict() for row in self.kernels]

    def sheet(self) -> Sheet:
        """See `performance.report`."""
        from costmodel.performance.report import sheet

        return sheet(self)

    def __str__(self) -> str:
        with written_for(page()._replace(columns=min(page().columns or COLUMNS, COLUMNS))):
            return self.sheet().text()

    def __repr__(self) -> str:
        return f"<Time {self.prediction.model.title} on {self.machine.name}: {self.seconds:.4g} s>"


def effect_data(effect: Effect) -> dict[str, Any]:
    """Plain data of what a constant does."""
    of = effect.constant
    values = {"low": of.low, "typical": of.typical, "high": of.high, "source": of.source.title}
    return {"name": effect.name, **values, "seconds_low": effect.low, "seconds_high": effect.high}


def _products(task: Task) -> int:
    return 0 if task.kernel.sizes is None else task.kernel.launches * task.kernel.sizes.flops


def _most(of: dict[Bound, float]) -> Bound:
    return max(of, key=lambda bound: of[bound])


def calibration_of(machine: Any) -> Calibration | None:
    """The calibration that is given in the place of a machine, as it is or as the path of its file; None: none is."""
    if isinstance(machine, Calibration):
        return machine
    if not (isinstance(machine, os.PathLike) or (isinstance(machine, str) and is_path(machine))):
        return None
    where = shown_path(machine)
    data = parse(text_of(machine, where, "machine"), where, "a machine, starting with its name").data
    return Calibration.load(machine) if isinstance(data, dict) and "constants" in data else None


def _anchors(calibration: Calibration, machine: Machine) -> list[tuple[Time, float]]:
    """The steps that a calibration has measured, with their seconds; lines of kernels are none."""
    constants, found = calibration.on(machine), []
    for row in calibration.measured[:MOST_ANCHORS]:
        try:
            step = measured_step(row)
        except CostModelError:
            continue
        how: dict[str, Any] = {"allow_tf32": step.allow_tf32, "channels_last": step.channels_last}
        found.append((Time(step.prediction, machine, step.stack, "calibrated", constants, **how), step.seconds))
    return found


def time_on(
    prediction: Prediction,
    machine: str | os.PathLike[str] | Machine | Calibration,
    *,
    stack: StackName | Stack = "eager",
    tier: Tier | None = None,
    allow_tf32: bool | None = None,
    channels_last: bool = False,
) -> Time:
    """How long one step of a prediction takes on a machine, as `Prediction.on` says it.

    Args:
        prediction: what runs.
        machine: a ready machine's name such as "h100-sxm", a file of one or of a calibration, or a `Machine`.
        stack: "eager", "compiled", "cuda-graphs", or a `Stack`.
        tier: "ceiling", "typical" or "calibrated" (default: calibrated where `machine` is a calibration, else typical).
        allow_tf32: whether products of fp32 may be rounded to tf32 (default: convolutions alone).
        channels_last: whether convolutions have channels last in memory.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> p = cm.predict("gpt2-small", batch=32, seq=512)
        >>> cm.time_on(p, "h100-sxm").seconds == p.on("h100-sxm").seconds
        True

    """
    if tier is not None and tier not in get_args(Tier):
        raise unknown("tier", tier, get_args(Tier))
    for name, value in (("allow_tf32", allow_tf32), ("channels_last", channels_last)):
        if not isinstance(value, bool | None):
            raise SettingError(f"{name}={shown(value)} is neither True nor False")
    calibration = calibration_of(machine)
    device = load_machine(machine if calibration is None else calibration.machine)  # type: ignore[arg-type]
    if tier == "calibrated" and calibration is None:
        raise SettingError(
            f"no calibration of {device.name} is given: give the file that costmodel machines fit wrote in its place"
        )
    if calibration is not None and tier in (None, "calibrated"):
        return Time(
            prediction,
            device,
            stack_named(stack),
            "calibrated",
            calibration.on(device),
            tuple(calibration.constants),
            _anchors(calibration, device),
            allow_tf32=allow_tf32,
            channels_last=bool(channels_last),
        )
    return Time(
        prediction,
        device,
        stack_named(stack),
        tier or "typical",
        typical(device),
        allow_tf32=allow_tf32,
        channels_last=bool(channels_last),
    )
