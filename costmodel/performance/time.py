"""How long one step takes on a machine, why, and how far that may be off."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from costmodel.cost.costs import Costs
from costmodel.cost.quantities import TIMED
from costmodel.cost.question import timed_question
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import page, written_for
from costmodel.documents.arguments import typed
from costmodel.documents.files import write
from costmodel.errors import CostModelError, SettingError, shown, unknown
from costmodel.hardware.catalogue import MachineLike
from costmodel.hardware.cluster import Cluster, ClusterLike, LinkLike, load_cluster, machine_of
from costmodel.hardware.machine import Machine
from costmodel.performance.accounting import SharedStep, StepTime, SymbolicTime
from costmodel.performance.alternatives import slower_runs, usual_run
from costmodel.performance.breakdown import (
    CollectivePart,
    KernelTime,
    LayerTime,
    PhaseTime,
    StepBottleneck,
    collective_parts,
    kernel_times,
    layer_times,
    phase_times,
    step_bottleneck,
)
from costmodel.performance.calibration import Calibration, calibration_of, measured_step
from costmodel.performance.communication import CollectiveModel
from costmodel.performance.constants import BETWEEN_DEVICES, Constants, typical
from costmodel.performance.fusion import Fusion
from costmodel.performance.intervals import (
    Effect,
    Interval,
    anchored_interval,
    faster_end,
    interval,
    law_shares,
    slower_end,
)
from costmodel.performance.jobs import Carbon, Energy, Goodput, Job, Money, PowerRating, job_of
from costmodel.performance.laws import KernelModel, KernelTable, Numbers, Tier
from costmodel.performance.mfu import MeasuredMfu, measured_mfu
from costmodel.performance.parallel import Prices, RankWork, StagedPass, no_price
from costmodel.performance.pipelines import PipelineWork, step_of
from costmodel.performance.queues import QueueEvent, chrome_trace
from costmodel.performance.work import StepWork, Task, work_of
from costmodel.training.layout import Layout
from costmodel.training.stacks import Stack
from costmodel.training.values import OneStack

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ANCHORS = 6
"""Measured steps that a range is relative to, at most."""
COLUMNS = 80
"""A time is laid out for so many, or fewer if the page has no more."""


@typed
@dataclass(eq=False, repr=False)
class Time(Answer):
    """Seconds of one step of a prediction on a machine: all micro-batches, backward and update among them.

    prediction: what runs. machine: on what. stack: how its kernels are started. tier: "ceiling", "typical" or
    "calibrated". constants: of the laws of kernels. known: constants that were measured, and have no range. anchors:
    steps that were measured on the machine, with their seconds: where other constants are off, these are too, and only
    what differs from them makes the range. allow_tf32, channels_last: see `Prediction.on`. cluster: what
    joins the devices of a layout of several: kernels are then those of its slowest rank, and samples those of all.
    factors: how much longer collectives were measured to take, and direct: whether sums may be exchanged directly, see
    `CollectiveModel`.

    What a step is made of is worked out once; everything else follows when it is asked for.

    Example:
        >>> import costmodel as cm
        >>> time = cm.predict("gpt2-small", batch=32, seq=512).on("h100-sxm")
        >>> time.low < time.seconds < time.high
        True

    """

    prediction: Costs
    machine: Machine
    stack: Stack
    tier: Tier
    constants: Constants
    known: Sequence[str] = ()
    anchors: Sequence[tuple[Time, float]] = ()
    allow_tf32: bool | None = field(default=None, kw_only=True)
    channels_last: bool = field(default=False, kw_only=True)
    cluster: Cluster | None = field(default=None, kw_only=True)
    factors: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    direct: bool = field(default=False, kw_only=True)

    @property
    def title(self) -> str:
        """Of the model."""
        return self.prediction.model.title

    @cached_property
    def work(self) -> StepWork:
        """Every kernel of the step, of a layout those of one rank."""
        if self._rank is not None:
            return StepWork([*self._rank.tasks], self._rank.fusions)
        rank = self.prediction.rank  # of one device too, whose runtime may have kernels of its own
        return work_of(rank.tape, rank.settings, fuse=self.stack.fuses)

    @cached_property
    def _rank(self) -> RankWork | StagedPass | PipelineWork | None:
        """What a rank of a layout does, or all of a pipeline's."""
        if self.cluster is None:
            return None
        model = self.kernel_model
        ranks = self.prediction.ranks_in_order
        return step_of(ranks, lambda stage: stage.busy(stage.kernel_seconds(model)), fuse=self.stack.fuses)

    @typed
    def elsewhere(self, machine: ClusterLike | MachineLike) -> Time:
        """The same step on another machine: what its kernels are is not worked out anew. Raises CostModelError."""
        how: dict[str, Any] = {"allow_tf32": self.allow_tf32, "channels_last": self.channels_last}
        other = time_on(self.prediction, machine, stack=self.stack, **how)
        if not isinstance(self._rank, PipelineWork):  # which depends on the machine
            vars(other).update({name: getattr(self, name) for name in ("_rank", "work", "_table", "model_tasks")})
        return other

    def _contractions(self, again: bool) -> float:
        """A device's share of the model's FLOPs, with what is run again if so asked."""
        share = self.prediction.settings.layout.share
        return share * sum(task.contractions for task in self.model_tasks if again or not task.again)

    @cached_property
    def model_tasks(self) -> Sequence[Task]:
        """Of the whole model on one batch, however it is laid out."""
        return work_of(self.prediction.tape, self.prediction.settings).tasks

    @cached_property
    def _table(self) -> KernelTable:
        return KernelTable([task.kernel for task in self.work.tasks])

    @cached_property
    def kernel_model(self) -> KernelModel:
        """What its kernels take."""
        return self._model(self.constants, self.tier)

    @typed
    def kernel_model_of(self, layout: Layout) -> KernelModel:
        """What the same kernels take in a layout."""
        return self._model(self.constants, self.tier, layout)

    def _model(self, constants: Constants, tier: Tier, layout: Layout | None = None) -> KernelModel:
        how: dict[str, Any] = {"allow_tf32": self.allow_tf32, "channels_last": self.channels_last}
        how["layout"] = layout or self.prediction.settings.layout
        return KernelModel(self.machine, constants, stack=self.stack, tier=tier, **how)

    def _step(self, constants: Constants, tier: Tier) -> StepTime:
        """The step with these constants, of arrays where they are arrays."""
        own = constants is self.constants and tier == self.tier
        model = self.kernel_model if own else self._model(constants, tier)
        if self._rank is None or self.cluster is None:
            return StepTime(model, self.work.tasks, self._table.times(model), self.samples, self.tokens)
        layout = self.prediction.settings.layout
        kernel_seconds, played = self._rank.step(model, self._prices(self.cluster, constants, tier))
        shared = SharedStep(
            layout.devices,
            played.seconds,
            played.phases,
            self._contractions,
            played.sums,
            played.bubble,
            played.optional,
        )
        return StepTime(model, self._rank.tasks, kernel_seconds, self.samples, self.tokens, shared)

    def _prices(self, cluster: Cluster, constants: Constants, tier: Tier) -> Prices:
        model = CollectiveModel(cluster, constants, tier, self.factors, self.direct)
        return Prices(model, self.prediction.settings.layout)

    @cached_property
    def _own(self) -> StepTime:
        return self._step(self.constants, self.tier)

    def symbolic(self) -> SymbolicTime:
        """The same with a formula for each number, of a question with symbols for sizes.

        Raises SettingError for a layout of several devices.
        """
        p = self.prediction
        if self.cluster is not None:
            raise SettingError(f"seconds of {self.devices} devices have no formula: ask for them one by one")
        return SymbolicTime(self._model(self.constants, self.tier), self.work.tasks, p.samples, p.tokens)

    @cached_property
    def phases(self) -> list[PhaseTime]:
        """Forward with the loss, backward with what is run again for it, and the update; empty ones too."""
        return phase_times(self._own)

    @cached_property
    def interval(self) -> Interval:
        """The range of the step's seconds, and what makes it wide; the ceiling has none."""
        if self.tier == "ceiling":
            return Interval(self.seconds, self.seconds, self.seconds, ())
        if self.anchors:
            shares = law_shares(self.kernels)
            measured = [(step.seconds_with, seconds, law_shares(step.kernels)) for step, seconds in self.anchors]
            return anchored_interval(self.seconds_with, shares, measured, self.machine, self.known, self.constants)
        least = self.ceiling_seconds
        known = self.known if self.cluster is not None else (*self.known, *BETWEEN_DEVICES)
        own = interval(self.seconds_with, self.machine, least=least, known=known, at=self.constants)
        shared, settings = self._own.shared, self.prediction.settings
        if shared is None:
            return own
        return own._replace(low=max(least, faster_end(own, shared, settings)), high=slower_end(own, shared))

    @typed
    def seconds_with(self, constants: Constants) -> Numbers:
        """Of one step, with other constants; an array where they are arrays."""
        return (self._own if constants is self.constants else self._step(constants, self.tier)).seconds

    @cached_property
    def ceiling_seconds(self) -> float:
        """Of one step by the datasheet alone, which no run is faster than."""
        return float(self._step(self.constants, "ceiling").seconds)

    @cached_property
    def seconds(self) -> float:
        """Of one step."""
        return float(self._own.seconds)

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
        return self.interval.widest

    @property
    def forward_seconds(self) -> float:
        """Of the forward pass and the loss."""
        return float(self._own.phase_seconds["forward"])

    @property
    def backward_seconds(self) -> float:
        """Of backward, with what is run again for it."""
        return float(self._own.phase_seconds["backward"])

    @property
    def update_seconds(self) -> float:
        """Of the optimizer."""
        return float(self._own.phase_seconds["update"])

    @property
    def samples(self) -> int:
        """Samples of a step, of all devices."""
        return int(self.prediction.samples)

    @property
    def tokens(self) -> int | None:
        """Tokens of a step; None where a sample has none."""
        tokens = self.prediction.tokens
        return None if tokens is None else int(tokens)

    @property
    def devices(self) -> int:
        """That work on a step together."""
        return self.prediction.settings.layout.devices

    @cached_property
    def collectives(self) -> list[CollectivePart]:
        """What the slowest rank's collectives take, and what of it its device waits for; none on one device."""
        return collective_parts(self._own)

    @property
    def exposed(self) -> float:
        """That the device waits for collectives [s]."""
        return sum(part.exposed for part in self.collectives)

    @property
    def bubble(self) -> float:
        """That a rank of a pipeline waits for others [s]."""
        return 0.0 if self._own.shared is None else float(self._own.shared.bubble)

    @property
    def samples_per_second(self) -> float:
        """Samples of all micro-batches over the seconds of the step."""
        return float(self._own.samples_per_second)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of all samples over the seconds of the step; None where a sample has none."""
        rate = self._own.tokens_per_second
        return None if rate is None else float(rate)

    @property
    def peak(self) -> float:
        """The fastest units that a product of the step runs on, by the datasheet [FLOP/s]; what MFU is a share of."""
        return self._own.peak

    @property
    def mfu(self) -> float:
        """Contraction FLOPs of the model over what the peak would do (Chowdhery et al. 2022, app. B): at most 1."""
        return float(self._own.mfu)

    @typed
    def mfu_of(self, measured: float | str | Mapping[str, float | str]) -> MeasuredMfu:
        """MFU of a step that was measured, by phase, beside the prediction; as a number that of the step.

        measured: seconds of the step, or text such as "600 ms"; or of each phase by name ("forward", "backward",
        "update"), whose sum is the step's. Raises SettingError.

        Example:
            >>> import costmodel as cm
            >>> time = cm.predict("gpt2-small", batch=32, seq=512, on="a100-sxm").time
            >>> float(time.mfu_of(2 * time.seconds)) == time.mfu / 2
            True

        """
        return measured_mfu(self, measured)

    @property
    def question(self) -> str:
        """What runs, where and how, in one line."""
        p = self.prediction
        return timed_question(p.model, p.settings, on=self._place, stack=self.stack)

    @property
    def hfu(self) -> float:
        """The same with what is run again for backward."""
        return float(self._own.hfu)

    @cached_property
    def bound(self) -> StepBottleneck:
        """What most of the step's time is spent waiting for."""
        return step_bottleneck(self.phases, self.kernels, self.exposed, self.bubble)

    @cached_property
    def kernels(self) -> list[KernelTime]:
        """A row for each kernel of each layer; rows add up to the device's time."""
        return kernel_times(self._own)

    @cached_property
    def layers(self) -> list[LayerTime]:
        """A row for each layer, in the order of the forward pass; sums of gradients and the optimizer last."""
        return layer_times(self._own, self.kernels)

    @property
    def fusions(self) -> list[Fusion]:
        """The chains of layers that become one kernel, and what each saves; none but in a stack that fuses."""
        return self.work.fusions

    @cached_property
    def attention(self) -> str:
        """The kernels of its attention: "flash-2" and others, see `Stack`; "composed" where scores are stored."""
        model, p = self.kernel_model, self.prediction
        kernels = (task.kernel for task in self.work.tasks if task.kernel.sort == "attention")
        if named := dict.fromkeys(model.attention_of(kernel) for kernel in kernels):
            return ", ".join(named)
        return "composed" if p.model.HAS_ATTENTION and p.settings.attention == "eager" else ""

    @cached_property
    def usual(self) -> tuple[str, float] | None:
        """What people run in place of plain settings, and the seconds of the step then; None where these are not plain.

        Plain are fp32, stored scores and an operator at a time on a device with units for 16 bits.
        """
        return usual_run(self)

    @cached_property
    def slower(self) -> list[tuple[str, float]]:
        """What may run in place of what was asked for, in words, and the seconds of the step then, the most first.

        Of one device; what is not slower by more than a twentieth is left out.
        """
        return slower_runs(self)

    @property
    def runs_in(self) -> dict[str, str]:
        """Types of operands that have no units on the machine, with those that they run in."""
        used = {task.kernel.dtype for task in self.work.tasks if task.kernel.sizes is not None}
        units = {dtype: self.machine.runs_in(dtype) for dtype in sorted(used)}
        return {dtype: other for dtype, other in units.items() if other is not None and other != dtype}

    @typed
    def value(self, quantity: str) -> float:
        """A quantity of `cost.quantities.TIMED` by name. Raises SettingError for one that the step does not have."""
        if quantity == "energy":
            return self.energy(pue=1).joules
        if quantity == "money":
            return self.money().amount
        if quantity not in TIMED:
            raise unknown("quantity of a step", quantity, TIMED)
        value = self._own.value(quantity)
        if value is None:
            raise SettingError(f"{self.prediction.model.title} has no tokens: ask for samples_per_second")
        return float(value)

    @typed
    def run(
        self,
        *,
        steps: float | str | None = None,
        samples: float | str | None = None,
        tokens: float | str | None = None,
        epochs: float = 1,
        devices: int | None = None,
        loader: float | str | None = None,
    ) -> Job:
        """How long a run takes: one step unless so many `steps`, `samples` or `tokens` are given.

        Args:
            steps: of all devices; a number, as the others are, or text such as "300B".
            samples: of one epoch.
            tokens: of one epoch, of models that have tokens.
            epochs: how often all of them are taken.
            devices: that work side by side, each on samples of its own: one, or those of the layout.
            loader: samples a second that are loaded for all devices, or text with what a sample is or has, such as
                "2000 images/s" or "2e6 tokens/s".

        Raises:
            SettingError: what is wrong with the question, in one line.

        """
        if devices is not None and self.devices not in (1, devices):
            raise SettingError(f"devices={shown(devices)}: the layout is of {self.devices}: leave them out")
        return job_of(
            self.title,
            self.question,
            self._own,
            (self.low, self.high),
            steps=steps,
            samples=samples,
            tokens=tokens,
            epochs=epochs,
            devices=self.devices if devices is None else devices,
            loader=loader,
            needed_bytes=int(self.prediction.memory.peak),
            shape=self.prediction.batch_shape,
        )

    @typed
    def energy(self, *, power: PowerRating | float | str = "typical", pue: float, **run: Any) -> Energy:
        """Energy of one step, or of a run as `run` takes it.

        power: of a device: "typical" (by the work of its kernels: what follows none, arithmetic and bytes), "tdp" (the
        board's limit), or watts. pue: what the data centre draws over what its devices do. Raises SettingError.
        """
        return self.run(**run).energy(power=power, pue=pue)

    @typed
    def carbon(
        self, *, intensity: float | str, power: PowerRating | float | str = "typical", pue: float, **run: Any
    ) -> Carbon:
        """Carbon of one step, or of a run; intensity: grams a kWh, or text such as "400 g/kWh". Raises SettingError."""
        return self.run(**run).carbon(intensity=intensity, power=power, pue=pue)

    @typed
    def money(self, *, price: float | None = None, **run: Any) -> Money:
        """Money of one step, or of a run; price: of a device for an hour, if its machine has none."""
        return self.run(**run).money(price=price)

    @typed
    def goodput(
        self,
        *,
        mtbf: float | str,
        checkpoint: float | str,
        restart: float | str,
        interval: float | str | None = None,
        **run: Any,
    ) -> Goodput:
        """What of a run's time is kept where devices fail; see `Job.goodput`. Raises SettingError."""
        return self.run(**run).goodput(mtbf=mtbf, checkpoint=checkpoint, restart=restart, interval=interval)

    @typed
    def plot(self, path: str | os.PathLike[str] | None = None, *, dark: bool = False) -> Figure:
        """A roofline with every kernel on it, as large as its share of the time, also written to `path`.

        Raises CostModelError without matplotlib (extra `plot`), or if `path` cannot be written.
        """
        from costmodel.display.figures import save
        from costmodel.performance.report import roofline

        return save(roofline(self.question, self.machine, self._ceilings, self.kernels, dark=dark), path)

    @property
    def _ceilings(self) -> dict[float, list[str]]:
        """The peaks of all units that the step's kernels run on, and what these do [FLOP/s]."""
        model = self.kernel_model
        peaks: dict[float, list[str]] = {}
        for kernel in (task.kernel for task in self.work.tasks if task.kernel.flops):
            names = peaks.setdefault(model.peak(kernel), [])
            if (name := model.units_in_words(kernel)) not in names:
                names.append(name)
        return peaks

    @property
    def _place(self) -> str:
        return f"{self.devices:,} × {self.machine.name}" if self.devices > 1 else self.machine.name

    @property
    def joined(self) -> str:
        """What joins the devices, and which axes of their layout cross nodes, in words; "" for one device."""
        return "" if self.cluster is None else self.cluster.words(self.prediction.settings.layout)

    @property
    def shown_rank(self) -> int | None:
        """The rank of a pipeline whose phases, collectives and layers these are, since its kernels take longest; None
        without a pipeline."""
        return self._rank.shown.rank if isinstance(self._rank, PipelineWork) else None

    @cached_property
    def events(self) -> list[QueueEvent]:
        """What is on which queue from when to when, every round by itself; of a pipeline the passes of all its ranks.

        What Megatron-Core gathers over copies beside the next step is at the begin of this one, as steps are alike.

        Raises SettingError where there are too many.
        """
        events: list[QueueEvent] = []
        model = self._model(self.constants, self.tier)
        if self.cluster is None or self._rank is None:
            _, played = RankWork(self.prediction.rank, fuse=self.stack.fuses).step(model, no_price, events)
            share = self.seconds / float(played.seconds)  # less than 1 where a host binds parts of a phase, not all
            return [event._replace(start=share * event.start, end=share * event.end) for event in events]
        if isinstance(self._rank, RankWork):
            self._rank.step(model, self._prices(self.cluster, self.constants, self.tier), events)
        else:
            self._rank.trace(model, self._prices(self.cluster, self.constants, self.tier), events)
        return events

    @typed
    def to_trace(self, path: str | os.PathLike[str]) -> None:
        """Write `events` as a trace that Perfetto and chrome://tracing open, such as "step.json".

        Raises CostModelError if there are too many, or `path` cannot be written.
        """
        write(chrome_trace(self.title, self.events), path)

    @typed
    def plot_events(self, path: str | os.PathLike[str] | None = None, *, dark: bool = False) -> Figure:
        """A picture of `events`: a lane for each queue of each rank, along the seconds of the step (extra `plot`).

        Raises CostModelError without matplotlib, or if there are too many, or `path` cannot be written.
        """
        from costmodel.display.figures import save
        from costmodel.performance.report import lanes_of

        return save(lanes_of(self.question, self.events, dark=dark), path)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the question, then the answer [s]."""
        from costmodel.importers.files import describe

        p = self.prediction
        return {
            "model": describe(p.model),
            "settings": p.settings.to_dict(),
            "machine": self.machine.name,
            "cluster": None if self.cluster is None else self.cluster.to_dict(),
            "devices": self.devices,
            "stack": self.stack.name,
            "tier": self.tier,
            "attention": self.attention,
            "seconds": self.seconds,
            "low": self.low,
            "high": self.high,
            **{f"{phase.phase}_seconds": phase.seconds for phase in self.phases},
            "mfu": self.mfu,
            "hfu": self.hfu,
            "samples_per_second": self.samples_per_second,
            "tokens_per_second": self.tokens_per_second,
            "shown_rank": self.shown_rank,
            "exposed": self.exposed,
            "bubble": self.bubble,
            "bound": self.bound,
            "phases": [phase._asdict() for phase in self.phases],
            "widest": [effect_data(effect) for effect in self.widest],
            "collectives": [part._asdict() for part in self.collectives],
            "layers": [row._asdict() for row in self.layers],
            "kernels": [row._asdict() for row in self.kernels],
            "fusions": [{**fusion._asdict(), "layers": list(fusion.layers)} for fusion in self.fusions],
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row for each kernel."""
        return [row._asdict() for row in self.kernels]

    def sheet(self) -> Sheet:
        """See `performance.report`."""
        from costmodel.performance.report import TimeReport, sheet

        p = self.prediction
        report = TimeReport(
            question=self.question,
            settings=p.settings,
            machine=self.machine,
            stack=self.stack,
            tier=self.tier,
            seconds=self.seconds,
            interval=self.interval,
            samples_per_second=self.samples_per_second,
            tokens_per_second=self.tokens_per_second,
            bound=self.bound,
            mfu=self.mfu,
            hfu=self.hfu,
            peak=self.peak,
            phases=self.phases,
            collectives=self.collectives,
            bubble=self.bubble,
            layers=self.layers,
            fusions=self.fusions,
            needed_bytes=int(p.memory.peak),
            runs_in=self.runs_in,
            attention=self.attention,
            usual=self.usual,
            cluster=self.joined,
            shown_rank=self.shown_rank,
        )
        return sheet(report)

    def __str__(self) -> str:
        with written_for(page()._replace(columns=min(page().columns or COLUMNS, COLUMNS))):
            return self.sheet().text()


def effect_data(effect: Effect) -> dict[str, Any]:
    """Plain data of what a constant does."""
    of = effect.constant
    values = {"low": of.low, "typical": of.typical, "high": of.high, "source": of.source.title}
    return {"name": effect.name, **values, "seconds_low": effect.low, "seconds_high": effect.high}


def measured_times(calibration: Calibration, machine: Machine) -> list[tuple[Time, float]]:
    """The steps that a calibration has measured, with their seconds; lines of kernels are none."""
    constants, anchors = calibration.on(machine), []
    for row in calibration.measured[:MOST_ANCHORS]:
        try:
            step = measured_step(row)
        except CostModelError:
            continue
        anchors.append((Time(step.prediction, machine, step.stack, "calibrated", constants, **step.how), step.seconds))
    return anchors


@typed
def time_on(
    prediction: Costs,
    machine: ClusterLike | MachineLike | Calibration,
    *,
    stack: OneStack = "eager",
    tier: Tier | None = None,
    allow_tf32: bool | None = None,
    channels_last: bool = False,
    network: LinkLike = None,
) -> Time:
    """How long one step of a prediction takes on a machine, as `Prediction.on` says it.

    Args:
        prediction: what runs.
        machine: a ready machine's name such as "h100-sxm", a file of one or of a calibration, or a `Machine`; or a
            cluster likewise, such as "dgx-h100".
        stack: "eager", "compiled", "cuda-graphs", or a `Stack`, its fields or a file of them.
        tier: "ceiling", "typical" or "calibrated" (default: calibrated where `machine` is a calibration, else typical).
        allow_tf32: whether products of fp32 may be rounded to tf32 (default: convolutions alone).
        channels_last: whether convolutions have channels last in memory.
        network: of one adapter between nodes, such as "400 Gb/s", of a layout of several devices.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> p = cm.predict("gpt2-small", batch=32, seq=512)
        >>> cm.time_on(p, "h100-sxm").seconds == p.on("h100-sxm").seconds
        True

    """
    layout = prediction.settings.layout
    calibration = calibration_of(machine)
    base: Any = machine if calibration is None else calibration.machine
    cluster = None
    if layout.devices > 1:
        cluster = load_cluster(base, network)
        cluster.place(layout)  # a network that it lacks is refused here
    elif network is not None:
        raise SettingError(f"network={shown(network)} is between devices, of which there is one: leave it out")
    device = machine_of(base) if cluster is None else cluster.machine
    if tier == "calibrated" and calibration is None:
        raise SettingError(
            f"no calibration of {device.name} is given: give the file that costmodel machines fit wrote in its place"
        )
    how: dict[str, Any] = {"allow_tf32": allow_tf32, "channels_last": channels_last, "cluster": cluster}
    known, anchors, constants = (), (), typical(device)
    if calibration is not None and tier in (None, "calibrated"):
        tier, known = "calibrated", calibration.known
        anchors, constants = measured_times(calibration, device), calibration.on(device)
        how["factors"] = calibration.collectives
    own = Stack.of(stack)
    _check_recorded(own.recorded, prediction)
    return Time(prediction, device, own, tier or "typical", constants, known, anchors, **how)


def _check_recorded(recorded: Sequence[str], prediction: Costs) -> None:
    """Raise UnknownNameError where a stack records layers of which the model has none."""
    if recorded:
        parts = {part for layer in prediction.layers for part in layer.name.split(".")}
        if not any(name in part for name in recorded for part in parts):
            raise unknown("layer that is recorded", recorded[0], parts)
