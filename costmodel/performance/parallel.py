"""Seconds of a step over many devices: what a rank's kernels take, put together with what its collectives do.

The work of a rank follows from its tape alone, and is worked out once for all layouts that have the tape; what it sends
has seconds by the cluster. Both are played in the order of the rank's timeline, see `performance.queues`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from operator import truediv
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from costmodel.cost.runtimes import RankRuntime, rank_of
from costmodel.graph.kernel import Kernel, Message
from costmodel.graph.tape import Tape
from costmodel.performance.fusion import Fusion
from costmodel.performance.laws import KernelModel, Numbers, SharedKernels
from costmodel.performance.programs import Programmer, RankProgram
from costmodel.performance.queues import CollectiveSum, Player, Price, QueueEvent, hidden, traced_beside
from costmodel.performance.work import PHASES, StepPhase, Task, work_of
from costmodel.training.layout import Layout

if TYPE_CHECKING:
    from costmodel.cost.costs import Costs
    from costmodel.cost.liveness import Moment
    from costmodel.performance.communication import CollectiveModel

MOST_TAKEN = 0.9
"""Share of a device's processors that collectives take at most."""


class PlayedStep(NamedTuple):
    """What a step was found to take [s]. phases, sums: of the rank that does most; bubble: that it waits for others.

    optional: that it takes longer where what a runtime can do beside kernels is not switched on.
    """

    seconds: Numbers
    phases: Mapping[StepPhase, Numbers]
    sums: Sequence[CollectiveSum]
    bubble: Numbers = 0.0
    optional: Numbers = 0.0


class ProgramSet:
    """Programs over the same tasks, by name, and what they take. alone: whether no other device is waited for."""

    def __init__(self, tasks: Sequence[Task], programs: Mapping[str, RankProgram], *, alone: bool = False) -> None:
        self.tasks = tasks
        self.alone = alone
        self.programs = programs
        self._starts: dict[tuple[str, ...], dict[str, Numbers]] = {}

    @cached_property
    def table(self) -> SharedKernels:
        """Of each task's kernel."""
        return SharedKernels([task.kernel for task in self.tasks])

    def does_as(self, other: ProgramSet) -> bool:
        """Whether what is done is the same, layer for layer."""
        return self.tasks == other.tasks and self.programs == other.programs and self.alone == other.alone

    def kernel_seconds(self, model: KernelModel) -> list[Numbers]:
        """Of each task's kernel, once, on the slowest of many devices, for which the others wait."""
        slowest = 1.0 if self.alone or model.tier == "ceiling" else model.constants.slowest_device
        return [slowest * seconds for seconds in self.table.times(model)]

    def play(
        self, player: Player, name: str, model: KernelModel, kernel_seconds: Numbers, *, last: bool = True
    ) -> None:
        """One of them. kernel_seconds: of each task's kernel, once."""
        program, recorded = self.programs[name], model.stack.recorded
        if recorded not in self._starts:
            starts = np.array([task.starts(recorded) for task in self.tasks], dtype=float).reshape(-1, 3)
            self._starts[recorded] = {each: of.weights @ starts for each, of in self.programs.items()}
        parts = zip(self._starts[recorded][name].T, np.broadcast_arrays(*model.start_seconds), strict=True)
        host = sum(np.multiply.outer(launches, seconds) for launches, seconds in parts)
        player.input_sums_beside, player.blocking = model.stack.input_sums_beside, model.stack.blocking
        player.play(program, program.weights @ kernel_seconds, host, kernel_seconds, last=last)


def _once(runtime: RankRuntime | None, moment: Moment, message: Message) -> bool:
    """Whether a collective of backward is after the last micro-batch alone."""
    return message.axis == "dp" if runtime is None else moment[1] in runtime.once


class RankWork(ProgramSet):
    """What one rank asks of its device in a step, and in which order with what it sends.

    rank: of a layout without stages. tasks: of the step. share: see `Programmer`.
    """

    def __init__(self, rank: Costs, *, fuse: bool, share: Callable[[int, int], Any] = truediv) -> None:
        tape, settings = rank.tape, rank.settings
        work = work_of(tape, settings, fuse=fuse)
        timeline = rank.timeline
        self.fusions: list[Fusion] = work.fusions
        self.micro_batches = settings.micro_batches
        self.overlaps = overlaps(tape)
        buckets = [message for _, message in timeline.messages if timeline.ready and message.axis == "dp"]
        copies = 1 if tape.layout.bucket_view else 2
        tasks = [*work.tasks, *(task for message in buckets for task in _bucket_copies(message)[:copies])]
        once = partial(_once, rank_of(tape, settings))
        programmer = Programmer(tape.layout, tasks, self.micro_batches, once, share)
        moments, loops = timeline.moments, timeline.loops
        messages = [(now, message) for now, message in timeline.messages if message.operation != "receive"]
        cut = next((now for now, (phase, _, _) in enumerate(moments) if phase == "optimizer"), len(moments))
        passes = programmer.program(
            moments[:cut],
            [loop for loop in loops if loop.end <= cut],
            [(now, message) for now, message in messages if now < cut],
            phases=("forward", "backward", "recompute"),
        )
        passes.ready = timeline.ready
        ending = programmer.program(
            moments[cut:],
            [loop._replace(start=loop.start - cut, end=loop.end - cut) for loop in loops if loop.start >= cut],
            [(now - cut, message) for now, message in messages if now >= cut],
            phases=("optimizer",),
        )
        super().__init__(programmer.tasks, {"passes": passes, "ending": ending}, alone=settings.layout.devices == 1)

    def step(
        self, model: KernelModel, prices: Callable[[Message], Price], trace: list[QueueEvent] | None = None
    ) -> tuple[list[Numbers], PlayedStep]:
        """Seconds of each task's kernel, and the step as it was played. trace: is told what is on each queue."""
        kernel_seconds = self.kernel_seconds(model)
        player, seconds = Player(prices, model.launch_seconds, trace), np.array(kernel_seconds)
        if self.micro_batches > 1:
            player.repeat(lambda: self.play(player, "passes", model, seconds, last=False), self.micro_batches - 1)
        self.play(player, "passes", model, seconds)
        self.play(player, "ending", model, seconds)
        player.end()
        if model.stack.experts_beside:
            player.send_beside("ep", self.micro_batches)
        phases = dict(player.phase_seconds)
        cover: dict[StepPhase, Numbers] = {}
        if self.overlaps and model.stack.sums_beside and not model.stack.blocking:
            over_copies = [own for own in player.sums.values() if own.message.axis == "dp"]
            waited = {phase: sum(own.exposed for own in over_copies if own.phase == phase) for phase in PHASES}
            links = [own.price.queue for own in over_copies]
            for phase in PHASES:
                others = links_taken([own for own in player.sums.values() if own.phase == phase], links)
                cover[phase] = np.maximum(phases[phase] - waited[phase] - others, 0.0) / self.micro_batches
        saved, sums = overlapped(phases, [*player.sums.values()], cover, trace)
        return kernel_seconds, PlayedStep(player.device - saved, phases, sums, optional=saved)


class StagedPass:
    """A pass without backward through the stages of a pipeline, each after the one before it.

    ranks: of each stage, in order. Its tasks are those of all stages, as all are on the way of a micro-batch.
    """

    def __init__(self, ranks: Sequence[Costs], *, fuse: bool, share: Callable[[int, int], Any] = truediv) -> None:
        self.stages: list[RankWork] = []
        for rank in ranks:
            own = RankWork(rank, fuse=fuse, share=share)
            self.stages.append(next((other for other in self.stages if own.does_as(other)), own))
        self.tasks: list[Task] = [task for stage in self.stages for task in stage.tasks]
        self.fusions: list[Fusion] = [fusion for stage in self.stages for fusion in stage.fusions]

    def step(self, model: KernelModel, prices: Callable[[Message], Price]) -> tuple[list[Numbers], PlayedStep]:
        """See `RankWork.step`."""
        different = {id(stage): stage for stage in self.stages}
        of_each = {key: stage.step(model, prices) for key, stage in different.items()}
        played = [of_each[id(stage)] for stage in self.stages]
        phases: dict[StepPhase, Numbers] = {}
        for _, step in played:
            for phase, seconds in step.phases.items():
                phases[phase] = phases.get(phase, 0.0) + seconds
        sums = [each for _, step in played for each in step.sums]
        whole = sum(step.seconds for _, step in played)
        return [seconds for kernels, _ in played for seconds in kernels], PlayedStep(whole, phases, sums)

    def trace(self, model: KernelModel, prices: Callable[[Message], Price], events: list[QueueEvent]) -> None:
        """Adds what is on each stage's queues to events."""
        start = 0.0
        for number, stage in enumerate(self.stages):
            own: list[QueueEvent] = []
            _, step = stage.step(model, prices, own)
            events += [event._replace(start=start + event.start, end=start + event.end, rank=number) for event in own]
            start += float(step.seconds)


def overlaps(tape: Tape) -> bool:
    """Whether a runtime can send over copies beside kernels, bucket by bucket, as its recipes have it.

    Source: Megatron-Core's ``overlap_grad_reduce`` and ``overlap_param_gather``, which its recipes switch on;
    DeepSpeed's ``overlap_comm``, which stage 3 has by itself.
    """
    layout = tape.layout
    return tape.training and (layout.runtime == "megatron" or (layout.runtime == "deepspeed" and layout.zero == 3))


def links_taken(sums: Iterable[CollectiveSum], links: Sequence[str]) -> Numbers:
    """Seconds of some links that collectives take which are not over copies, and so leave those."""
    return sum(own.times * own.price.seconds for own in sums if own.message.axis != "dp" and own.price.queue in links)


def overlapped(
    phases: dict[StepPhase, Numbers],
    sums: Sequence[CollectiveSum],
    cover: Mapping[StepPhase, Numbers],
    trace: list[QueueEvent] | None = None,
) -> tuple[Numbers, list[CollectiveSum]]:
    """Hide what is sent over copies: gradients' under the last backward pass, weights' under the next forward one.

    phases: seconds of each, which are made less; cover: of one pass of each, less what others take of the same link,
    nothing where a runtime hides nothing.
    trace: what is on each queue, where that is then hidden too.
    Returns what is saved, and the sums as they then are.
    """
    saved: Numbers = 0.0
    after = {id(own): own for own in sums}
    under: dict[StepPhase, StepPhase] = {"forward": "forward", "backward": "backward", "update": "forward"}
    for phase, pass_ in under.items() if cover else ():
        own = [of for of in sums if of.phase == phase and of.message.axis == "dp"]
        less, left = hidden(own, cover[pass_])
        after |= {id(old): new for old, new in zip(own, left, strict=True)}
        if phase in phases:
            phases[phase] = phases[phase] - less
        if trace is not None:
            _trace_beside(trace, phase, own, left, cover[pass_], less)
        saved = saved + less
    return saved, list(after.values())


def _trace_beside(
    trace: list[QueueEvent],
    phase: StepPhase,
    before: Sequence[CollectiveSum],
    after: Sequence[CollectiveSum],
    cover: Numbers,
    less: Numbers,
) -> None:
    """Move what is sent over copies in a phase beside kernels, as sums before and after say; less: what that saves."""
    beside = sum(float(old.exposed) - float(new.exposed) for old, new in zip(before, after, strict=True))
    if beside > 0:
        own = [event for event in trace if event.phase == phase and event.queue.endswith(" dp")]
        rounds = min(int(of.times) for of in before)
        trace[:] = traced_beside(trace, own, rounds, float(cover), beside, beside - float(less))


def _bucket_copies(message: Message) -> tuple[Task, Task]:
    """Of a bucket: gradients are copied into it as they come, and back when it is summed (``reducer.cpp``)."""
    kernel = Kernel("copy", "pointwise", 0, message.bytes, message.bytes, message.dtype)
    return (
        Task("buckets", "bucket", "backward", 1, kernel._replace(name="copy in")),
        Task("buckets", "bucket", "update", 1, kernel._replace(name="copy out")),
    )


def no_price(message: Message) -> Price:
    """Of a message on one device: there is none."""
    raise ValueError(f"one device sends {message}")


class Prices:
    """What each message of a layout takes on a cluster, worked out once. model: of its links."""

    def __init__(self, model: CollectiveModel, layout: Layout) -> None:
        self.model = model
        self.layout = layout
        self._prices: dict[Message, Price] = {}

    def __call__(self, message: Message) -> Price:
        """Of one message. Raises SettingError if it needs a network that there is not."""
        if message not in self._prices:
            self._prices[message] = self._price(message)
        return self._prices[message]

    def _price(self, message: Message) -> Price:
        cluster = self.model.cluster
        group = cluster.group_of(self.layout, message.axis, int(message.devices))
        time = self.model.seconds(message, group)
        share = np.minimum(MOST_TAKEN, time.processors / (cluster.machine.processors or np.inf))
        if not self.model.ideal:
            c = self.model.constants  # the rest is slowed by what it shares, as much as the collective is a large one
            share = 1 - (1 - share) / (1 + (c.interference - 1) * time.processors / c.collective_processors)
        how = " ".join(filter(None, (time.algorithm, time.protocol)))
        return Price(time.seconds, "network" if group.nodes > 1 else "links", share, how)
