"""Seconds of a step over many devices: what a rank's kernels take, put together with what its collectives do.

The work of a rank follows from its tape alone, and is worked out once for all layouts that have the tape; what it sends
has seconds by the cluster. Both are played in the order of the rank's timeline, see `performance.queues`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from costmodel.cost.runtimes import rank_of
from costmodel.graph.kernel import Kernel, Message
from costmodel.performance.fusion import Fusion
from costmodel.performance.laws import KernelModel, KernelTable, Numbers
from costmodel.performance.queues import Played, Player, Price, Programmer, RankProgram
from costmodel.performance.work import Task, work_of
from costmodel.training.layout import Layout

if TYPE_CHECKING:
    from costmodel.cost.costs import Costs
    from costmodel.cost.liveness import Moment
    from costmodel.performance.communication import CollectiveModel

MOST_TAKEN = 0.9
"""Share of a device's processors that collectives take at most."""


class RankWork:
    """What one rank asks of its device in a step, and in which order with what it sends.

    rank: of a layout without stages. micro: the passes of one micro-batch; ending: the update. tasks: of the step.
    """

    def __init__(self, rank: Costs, *, fuse: bool) -> None:
        tape, settings = rank.tape, rank.settings
        work = work_of(tape, settings, fuse=fuse)
        runtime, timeline = rank_of(tape, settings), rank.timeline
        self.fusions: list[Fusion] = work.fusions
        self.micro_batches = int(settings.micro_batches)

        def once(moment: Moment, message: Message) -> bool:
            return message.axis == "dp" if runtime is None else moment[1] in runtime.once

        buckets = [message for now, message in timeline.messages if timeline.ready and message.axis == "dp"]
        copies = 1 if tape.layout.bucket_view else 2
        tasks = [*work.tasks, *(task for message in buckets for task in _bucket_copies(message)[:copies])]
        programmer = Programmer(tape.layout, tasks, self.micro_batches, once)
        moments, loops, messages = timeline.moments, timeline.loops, timeline.messages
        cut = next((now for now, (phase, _, _) in enumerate(moments) if phase == "optimizer"), len(moments))
        passes = ("forward", "backward", "recompute")
        self.micro = programmer.program(
            moments[:cut],
            [loop for loop in loops if loop.end <= cut],
            [(now, message) for now, message in messages if now < cut],
            phases=passes,
        )
        self.micro.ready = timeline.ready
        self.ending = programmer.program(
            moments[cut:],
            [loop._replace(start=loop.start - cut, end=loop.end - cut) for loop in loops if loop.start >= cut],
            [(now - cut, message) for now, message in messages if now >= cut],
            phases=("optimizer",),
        )
        self.tasks = programmer.tasks

    @cached_property
    def table(self) -> KernelTable:
        """Its kernels."""
        return KernelTable([task.kernel for task in self.tasks])

    @cached_property
    def _launches(self) -> Numbers:
        return np.array([float(task.kernel.launches) for task in self.tasks])

    def play(
        self, model: KernelModel, kernel_seconds: Sequence[Numbers], prices: Prices, trace: list[Played] | None = None
    ) -> Player:
        """A step, as it was played. kernel_seconds: of the device for each task's kernel, once [s]."""
        player = Player(prices, model.launch_seconds, trace)
        seconds, launches = np.array(kernel_seconds), np.array(model.launch_seconds)

        def run(program: RankProgram, *, last: bool) -> None:
            host = np.multiply.outer(program.weights @ self._launches, launches)
            player.play(program, program.weights @ seconds, host, last=last)

        if self.micro_batches > 1:
            player.repeat(lambda: run(self.micro, last=False), self.micro_batches - 1)
        run(self.micro, last=True)
        run(self.ending, last=True)
        player.end()
        return player


def _bucket_copies(message: Message) -> tuple[Task, Task]:
    """Of a bucket: gradients are copied into it as they come, and back when it is summed (``reducer.cpp``)."""
    kernel = Kernel("copy", "pointwise", 0, message.bytes, message.bytes, message.dtype)
    return (
        Task("buckets", "bucket", "backward", 1, kernel._replace(name="copy in")),
        Task("buckets", "bucket", "update", 1, kernel._replace(name="copy out")),
    )


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
        how = " ".join(filter(None, (time.algorithm, time.protocol)))
        return Price(time.seconds, "network" if group.nodes > 1 else "links", share, how)
