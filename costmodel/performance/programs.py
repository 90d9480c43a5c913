"""What one rank does in a step, in order: kernels, collectives and who waits for them, from its memory's timeline.

It depends on the tape alone; what it takes on a machine is played on `queues`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import truediv
from typing import Any, Literal, NamedTuple

import numpy as np

from costmodel.cost.liveness import Moment, MomentLoop
from costmodel.graph.kernel import Kernel, Message
from costmodel.performance.laws import Numbers
from costmodel.performance.work import StepPhase, Task
from costmodel.training.layout import Layout

Waiting = Literal["device", "host", "gather", "scatter", "sum", "beside", "under"]
"""Who waits for a collective. device: the next kernel. host: that, and the host for what it says. gather: the copies
out of its buffer. scatter: that of the next unit. sum: the end of backward, after its bucket is full. beside: the
kernel of the next part. under: the end of the product before it, whose second half it runs beside."""

_PHASES: dict[str, tuple[StepPhase, bool]] = {
    "forward": ("forward", False),
    "loss": ("forward", False),
    "backward": ("backward", False),
    "recompute": ("backward", True),
    "optimizer": ("update", False),
}
"""The phase of the tasks of a moment, and whether they are run again."""


class Stretch(NamedTuple):
    """Kernels between two collectives: the row of their tasks, and how many moments they are."""

    phase: StepPhase
    row: int
    moments: int


class Sending(NamedTuple):
    """A collective. once: whether it is after the last micro-batch alone."""

    phase: StepPhase
    layer: str
    message: Message
    waiting: Waiting
    once: bool


class Arrival(NamedTuple):
    """The device waits for a unit's gathered weights, and copies them out: the row of that."""

    phase: StepPhase
    unit: str
    row: int


class Drain(NamedTuple):
    """The device waits for the gradients that are being scattered."""

    phase: StepPhase


class Parts(NamedTuple):
    """Kernels in so many equal parts, and messages with the part that each runs beside: the next one waits for it."""

    phase: StepPhase
    layer: str
    row: int
    parts: int
    messages: tuple[tuple[int, Message], ...]


class Repeated(NamedTuple):
    """Events that happen so many times."""

    events: tuple[Event, ...]
    times: int


Event = Stretch | Sending | Arrival | Drain | Parts | Repeated


@dataclass
class RankProgram:
    """What a rank, or one pass of a stage, does: events, and for each row the tasks and how often each runs [times].

    It depends on the tape alone, so that layouts and machines share it. ready: of each sum of a bucket of gradients
    how many moments there are up to its last one.
    """

    events: tuple[Event, ...]
    tasks: Sequence[Task]
    rows: list[dict[int, float]]
    ready: Sequence[int] = ()

    @cached_property
    def weights(self) -> Numbers:
        """How often each task runs in each row [rows, tasks]."""
        matrix = np.zeros((max(1, len(self.rows)), len(self.tasks)))
        for row, tasks in zip(matrix, self.rows, strict=False):
            for task, times in tasks.items():
                row[task] += times
        return matrix

    def messages(self) -> Iterator[Message]:
        """Every message, of rounds that are alike those of one."""
        yield from _messages(self.events)


def _messages(events: Iterable[Event]) -> Iterator[Message]:
    for event in events:
        if isinstance(event, Repeated):
            yield from _messages(event.events)
        elif isinstance(event, Parts):
            yield from (message for _, message in event.messages)
        elif isinstance(event, Sending):
            yield event.message


def _copy(layer: str, phase: StepPhase, name: str, message: Message) -> Task:
    """Of a message, from its buffer or to it."""
    return Task(layer, name, phase, 1, Kernel(name, "pointwise", 0, message.bytes, message.bytes, message.dtype))


class Programmer:
    """Makes programs of moments: each kernel of a phase where the layer of its name runs.

    tasks: of `micro_batches` passes together; moments: of one. Kernels of no moment, such as sums of gradients, are
    spread evenly over their phase. To the tasks are added copies of what is gathered and scattered. share: of how often
    a task runs in all what is of each moment that it runs at, from how often these happen; both may be letters.
    """

    def __init__(
        self,
        layout: Layout,
        tasks: Sequence[Task],
        micro_batches: int,
        once: Callable[[Moment, Message], bool],
        share: Callable[[int, int], Any] = truediv,
    ):
        self.layout = layout
        self.share = share
        self.tasks = list(tasks)
        self.micro_batches = micro_batches
        self.once = once
        self.rows: list[dict[int, float]] = []

    def program(
        self,
        moments: Sequence[Moment],
        loops: Sequence[MomentLoop],
        messages: Sequence[tuple[int, Message]],
        *,
        phases: Sequence[str] = tuple(_PHASES),
        tasks: Callable[[Task], bool] = lambda task: True,
    ) -> RankProgram:
        """That of some moments. phases: of tasks that these moments have all of; tasks: which of them."""
        self.rows = []
        happenings = [1] * len(moments)
        for start, end, more in loops:
            happenings[start:end] = [n * (1 + more) for n in happenings[start:end]]
        own = self._shares(moments, happenings, {_PHASES[phase] for phase in phases}, tasks)
        sent: dict[int, list[Message]] = {}
        for now, message in messages:
            sent.setdefault(now, []).append(message)
        sizes = (m for _, m in messages if m.axis == "fsdp" and m.operation == "all_gather")  # as they are copied out
        flat = [
            list(self._at(moment, happenings[now], own[now], sent.get(now, ()), sizes))
            for now, moment in enumerate(moments)
        ]
        for start, end, more in loops:
            body = tuple(event for events in flat[start:end] for event in events)
            flat[start:end] = [[Repeated(self._merged(body), 1 + more)], *([] for _ in range(start + 1, end))]
        return RankProgram(self._merged(event for events in flat for event in events), self.tasks, self.rows)

    def _shares(
        self, moments: Sequence[Moment], happenings: Sequence[int], phases: set[Any], chosen: Callable[[Task], bool]
    ) -> list[dict[int, float]]:
        """Of each moment the tasks and how often they run there."""
        places: dict[tuple[StepPhase, bool, str], list[int]] = {}
        every: dict[StepPhase, list[int]] = {}
        for now, (phase, layer, _) in enumerate(moments):
            own, again = _PHASES[phase]
            places.setdefault((own, again, layer), []).append(now)
            every.setdefault(own, []).append(now)
        shares: list[dict[int, float]] = [{} for _ in moments]
        for number, task in enumerate(self.tasks):
            if (task.phase, task.again) not in phases or not chosen(task):
                continue
            here = places.get((task.phase, task.again, task.layer)) or every.get(task.phase, ())
            rounds = 1 if task.phase == "update" else self.micro_batches
            times = self.share(task.times, rounds * sum(happenings[now] for now in here)) if here else 0.0
            for now in here:
                shares[now][number] = shares[now].get(number, 0.0) + times
        return shares

    def _row(self, shares: dict[int, float]) -> int:
        self.rows.append(shares)
        return len(self.rows) - 1

    def _added(self, task: Task, times: int) -> int:
        self.tasks.append(task._replace(times=times * self.micro_batches))
        return self._row({len(self.tasks) - 1: 1.0})

    def _at(
        self,
        moment: Moment,
        times: int,
        shares: dict[int, float],
        messages: Sequence[Message],
        gathered: Iterator[Message],
    ) -> Iterator[Event]:
        """What happens at a moment: waits, kernels, and what is sent."""
        (phase, _), layer = _PHASES[moment[0]], moment[1]
        unit, _, edge = layer.rpartition(".")
        sharded = self.layout.runtime == "torch" and self.layout.shards > 1
        if sharded and edge == "copy_out" and (message := next(gathered, None)) is not None:
            yield Arrival(phase, unit, self._added(_copy(layer, phase, "copy out", message), times))
        elif sharded and edge == "reduce_scatter":
            yield Drain(phase)
        if shares and messages and (beside := self._beside(phase, messages)) is not None:
            yield Parts(phase, layer, self._row(shares), *beside)
            return
        yield Stretch(phase, self._row(shares), 1)
        for message in messages:
            yield from self._sent(moment, times, message, sharded)

    def _beside(
        self, phase: StepPhase, messages: Sequence[Message]
    ) -> tuple[int, tuple[tuple[int, Message], ...]] | None:
        """Parts of a layer's kernels that its messages run beside, and beside which each does; None: beside none.

        Keys and values of the next part come beside the kernel of one, and gradients of one go beside that of the next
        (``_templated_ring_attention``). Megatron gathers a linear layer's input beside the product that makes its
        gradient, and scatters this beside that of the weights (``LinearWithGradAccumulationAndAsyncCommunication``).
        """
        axes = {message.axis for message in messages}
        if axes == {"cp"}:
            parts = int(messages[0].devices)
            if len(messages) < parts:
                return parts, tuple(enumerate(messages))
            forth = len(messages) - parts
            order = [n for i in range(parts) for n in ([i] if i < forth else []) + [i + 1]]
            return parts, tuple(zip(order, messages, strict=True))
        if self.layout.megatron and axes == {"tp"} and phase == "backward":
            return 2, tuple((int(m.operation == "reduce_scatter"), m) for m in messages)
        return None

    def _sent(self, moment: Moment, times: int, message: Message, sharded: bool) -> Iterator[Event]:
        """A collective, after what is copied for it."""
        phase, layer = _PHASES[moment[0]][0], moment[1]
        waiting: Waiting = "device"
        if sharded and message.axis in ("fsdp", "dp") and phase != "update":
            waiting = "gather" if message.operation == "all_gather" else "scatter"
            if message.operation == "reduce_scatter":
                yield Stretch(phase, self._added(_copy(layer, phase, "copy in", message), times), 0)
        elif message.axis == "dp" and self.layout.runtime == "torch" and phase == "backward":
            waiting = "sum"
        elif self.layout.runtime == "megatron" and (message.axis, message.operation) == ("ep", "all_gather"):
            waiting = "host"  # how many rows go to each expert
        elif self.layout.megatron and message.axis == "tp" and phase == "backward" and not self.once(moment, message):
            waiting = "under" if message.operation == "all_reduce" else "device"
        yield Sending(phase, layer, message, waiting, self.once(moment, message))

    def _merged(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """The same with kernels that follow each other as one."""
        merged: list[Event] = []
        for event in events:
            last = merged[-1] if merged else None
            if isinstance(event, Stretch) and isinstance(last, Stretch) and event.phase == last.phase:
                shares = self.rows[last.row]
                for task, times in self.rows[event.row].items():
                    shares[task] = shares.get(task, 0.0) + times
                self.rows[event.row] = {}
                merged[-1] = last._replace(moments=last.moments + event.moments)
            else:
                merged.append(event)
        return tuple(merged)
