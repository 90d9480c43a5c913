"""One rank's step, played: kernels on the device, collectives on the links, and the host that starts both.

What runs is what the timeline of a rank's memory has: its moments, in the order in which the host comes to them. Their
kernels are work on the device's queue. A collective is work on the queue of the link that its devices are joined by,
and who waits for it follows from what it is:

- Those of tensor, expert and context parallel layers hand their result to the next kernel, which waits (DTensor's
  ``wait_tensor``). A ring's exchange runs beside the kernel of the part that is there already.
- FSDP2 gathers a unit's weights on a stream of their own: in forward as soon as those of the unit before the last are
  copied out, in backward as soon as the last are, beside the unit that runs. Gradients are scattered beside the unit
  before; its own wait for that (``FSDPParamGroup.wait_for_unshard``, ``post_backward``).
- DistributedDataParallel sums a bucket as soon as its last gradient is there, one bucket after another.
- What Megatron-Core and DeepSpeed sum and gather over copies waits for the end of backward and of the update.

Collectives of one link run one after another; one that a kernel waits for shares the link with what is there. What
processors a collective takes slow the kernels beside it. Seconds are numbers or arrays: one play serves all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from costmodel.cost.liveness import Moment, MomentLoop
from costmodel.errors import SettingError
from costmodel.graph.kernel import Kernel, Message
from costmodel.performance.laws import TINY, Numbers
from costmodel.performance.work import StepPhase, Task
from costmodel.training.layout import Layout

Waiting = Literal["device", "gather", "scatter", "sum", "beside", "under"]
"""Who waits for a collective. device: the next kernel. gather: the copies out of its buffer. scatter: that of the next
unit. sum: the end of backward, after its bucket is full. beside: the kernel of the next part. under: the end of the
product before it, whose second half it runs beside."""

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
        matrix = np.zeros((max(1, len(self.rows)), max(1, len(self.tasks))))
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
    spread evenly over their phase. To the tasks are added copies of what is gathered and scattered.
    """

    def __init__(
        self, layout: Layout, tasks: Sequence[Task], micro_batches: int, once: Callable[[Moment, Message], bool]
    ):
        self.layout = layout
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
        happenings = [1] * len(moments)
        for start, end, more in loops:
            happenings[start:end] = [n * (1 + int(more)) for n in happenings[start:end]]
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
            flat[start:end] = [[Repeated(self._merged(body), 1 + int(more))], *([] for _ in range(start + 1, end))]
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
            times = int(task.times) / (rounds * sum(happenings[now] for now in here)) if here else 0.0
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
        elif self.layout.megatron and message.axis == "tp" and phase == "backward" and not self.once(moment, message):
            waiting = "under" if message.operation == "all_reduce" else "device"
        yield Sending(phase, layer, message, waiting, self.once(moment, message))

    def _merged(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """The same with kernels that follow each other as one."""
        merged: list[Event] = []
        for event in events:
            last = merged[-1] if merged else None
            if isinstance(event, Stretch) and isinstance(last, Stretch) and event.phase == last.phase:
                shares = dict(self.rows[last.row])
                for task, times in self.rows[event.row].items():
                    shares[task] = shares.get(task, 0.0) + times
                merged[-1] = Stretch(event.phase, self._row(shares), last.moments + event.moments)
            else:
                merged.append(event)
        return tuple(merged)


class QueueEvent(NamedTuple):
    """Something on a queue of a rank: what, from when to when [s]."""

    queue: str
    name: str
    phase: StepPhase
    start: float
    end: float
    rank: int = 0


MOST_TRACED = 200_000
"""Events of a trace."""


def too_long() -> SettingError:
    """Of a step that has more events."""
    return SettingError(
        f"a step of more than {MOST_TRACED:,} events is too long to trace: ask for fewer micro-batches (accumulate)"
    )


class Price(NamedTuple):
    """What a message takes: seconds, on the queue of which link, what share of processors, and how it is sent."""

    seconds: Numbers
    queue: str
    processors: Numbers = 0.0
    algorithm: str = ""


@dataclass(slots=True)
class CollectiveSum:
    """What the collectives of one kind take [s]. exposed: that the device waits for them."""

    phase: StepPhase
    layer: str
    message: Message
    price: Price
    times: Numbers = 0
    exposed: Numbers = 0.0


def hidden(sums: Sequence[CollectiveSum], cover: Numbers) -> tuple[Numbers, list[CollectiveSum]]:
    """What is saved where collectives that were waited for run beside kernels instead; and what is then waited for.

    cover: seconds of these kernels in each round. The first of a round is still waited for, and processors that
    collectives take lessen what is saved.
    """
    waited = sum(own.exposed for own in sums)
    if not sums or not np.any(waited):
        return 0.0, list(sums)
    rounds = min(float(own.times) for own in sums)
    beside = np.minimum(np.maximum(waited - rounds * sums[0].price.seconds, 0.0), rounds * cover)
    left = [replace(own, exposed=own.exposed * (1 - beside / waited)) for own in sums]
    return beside * (1 - sums[0].price.processors), left


class Flight:
    """A collective on its way, until `end`."""

    __slots__ = ("end", "of")

    def __init__(self, of: CollectiveSum, end: Numbers) -> None:
        self.of = of
        self.end = end


SAME = 1e-9
"""Share of a round's seconds by which clocks may differ between rounds that are alike."""


@dataclass
class Player:
    """Plays programs on the queues of one rank.

    price: what a message takes. launch_seconds: of the host, for one collective. trace: what is on each queue, every
    round by itself; None: rounds that are alike are played until they are, and stand for all others.
    device, host: when they are free [s]; links: when each is.
    """

    price: Callable[[Message], Price]
    launch_seconds: Numbers = 0.0
    trace: list[QueueEvent] | None = None
    device: Numbers = 0.0
    host: Numbers = 0.0
    links: dict[str, Numbers] = field(default_factory=dict)
    phase_seconds: dict[StepPhase, Numbers] = field(default_factory=dict)
    sums: dict[tuple[StepPhase, str, Message], CollectiveSum] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Nothing is on its way."""
        self._phase: StepPhase | None = None
        self._since: Numbers = self.device
        self._last = True
        self._half: Numbers = 0.0
        self._gathers: dict[str, list[Flight]] = {}
        self._scatters: list[Flight] = []
        self._blocked: dict[str, Numbers] = {}
        self._copied: list[Numbers] = [self.device, self.device]
        self._before: list[dict[str, Numbers]] = [{}, {}]
        self._full: list[tuple[Sending, int]] = []
        self._marks: list[tuple[int, Numbers]] = []
        self._program = RankProgram((), (), [])
        self._seconds: Numbers = ()
        self._host_seconds: Numbers = ()
        self._kernel_seconds: Sequence[float] = ()

    def play(
        self,
        program: RankProgram,
        seconds: Numbers,
        host_seconds: Numbers,
        kernel_seconds: Sequence[float] = (),
        *,
        last: bool = True,
    ) -> None:
        """A program, with the device's and the host's seconds of each row; last: of the last micro-batch.

        kernel_seconds: of each task's kernel, once, for a trace.
        """
        self._kernel_seconds = kernel_seconds
        self._program, self._seconds, self._host_seconds, self._last = program, seconds, host_seconds, last
        if last and program.ready:
            self._marks = [(0, self.device)]
        self._events(program.events)

    def end(self) -> None:
        """The last phase is over."""
        self._enter(None)

    def repeat(self, round_: Callable[[], None], times: int) -> None:
        """So many rounds, which are played until one is like that before it: all others then are too."""
        before, waited = self._clocks(), self._waited()
        for n in range(1, times + 1):
            sums = self._amounts()
            round_()
            after, waited_after = self._clocks(), self._waited()
            steps = [b - a for a, b in zip(before, after, strict=False)] if len(before) == len(after) else []
            alike = n < times and self.trace is None and not self._marks and self._steady(after, steps)
            if alike and len(waited) == len(waited_after) and np.allclose(waited, waited_after, rtol=SAME, atol=0.0):
                self._skip(times - n, after, steps, sums)
                return
            before, waited = after, waited_after

    def _flights(self) -> list[Flight]:
        return [*self._scatters, *(flight for flights in self._gathers.values() for flight in flights)]

    def _clocks(self) -> list[Numbers]:
        """The device's, and all that lie around it."""
        return [
            self.device,
            self.host,
            self._since,
            *self._copied,
            *self.links.values(),
            *(flight.end for flight in self._flights()),
        ]

    def _waited(self) -> Numbers:
        """What kernels waited for on each link since weights were last copied out, and since they were before."""
        return np.array(
            [all_ - marked.get(queue, 0.0) for queue, all_ in self._blocked.items() for marked in self._before]
        )

    def _amounts(self) -> dict[Any, tuple[Numbers, Numbers]]:
        amounts = {key: (own.times, own.exposed) for key, own in self.sums.items()}
        return {**amounts, **{phase: (0, seconds) for phase, seconds in self.phase_seconds.items()}}

    def _steady(self, clocks: Sequence[Numbers], steps: Sequence[Numbers]) -> bool:
        """Whether all clocks have moved on as the device's, but for such as are behind all that is to come."""
        if not steps:
            return False
        device, step = clocks[0], steps[0]
        floor = np.minimum(device, self._copied[0]) if self._gathers else device  # before which nothing starts
        close = SAME * np.maximum(np.abs(step), 1e-12)
        return all(
            bool(np.all((np.abs(moved - step) <= close) | ((moved < step) & (clock <= floor))))
            for clock, moved in zip(clocks, steps, strict=True)
        )

    def _skip(self, times: int, clocks: Sequence[Numbers], steps: Sequence[Numbers], before: dict[Any, Any]) -> None:
        moved = iter([clock + times * step for clock, step in zip(clocks, steps, strict=True)])
        self.device, self.host, self._since = next(moved), next(moved), next(moved)
        self._copied = [next(moved), next(moved)]
        self.links = {link: next(moved) for link in self.links}
        for flight in self._flights():
            flight.end = next(moved)
        for key, own in self.sums.items():
            happened, exposed = before.get(key, (0, 0.0))
            own.times, own.exposed = (
                own.times + times * (own.times - happened),
                own.exposed + times * (own.exposed - exposed),
            )
        for phase, seconds in self.phase_seconds.items():
            self.phase_seconds[phase] = seconds + times * (seconds - before.get(phase, (0, 0.0))[1])

    def _enter(self, phase: StepPhase | None) -> None:
        """Another phase begins, with all that the one before has begun done; the host has run ahead no further."""
        if phase == self._phase:
            return
        if self._phase is not None:
            if self._phase == "backward":
                self._settle()
            before = self.phase_seconds.get(self._phase, 0.0)
            self.phase_seconds[self._phase] = before + self.device - self._since
        self._phase, self._since, self.host = phase, self.device, self.device
        if phase == "forward":
            self._mark()
            self._mark()

    def _mark(self) -> None:
        """Weights are copied out of their buffer: there is room for others from now on."""
        self._copied = [self._copied[1], self.device]
        self._before = [self._before[1], dict(self._blocked)]

    def _settle(self) -> None:
        """The end of backward: what is on its way arrives, and buckets that were filled meanwhile are summed."""
        for event, moments in self._full:
            self._launch(event, self._at(moments))
        self._full.clear()
        self._marks = []
        for flight in sorted(self._flights(), key=lambda flight: float(np.max(flight.end))):
            self._wait(flight)
        self._scatters.clear()
        self._gathers.clear()

    def _at(self, moments: int) -> Numbers:
        """When the device was done with so many moments of this pass."""
        for (before, start), (after, end) in pairwise(self._marks):
            if moments <= after:
                return start + (end - start) * max(0, moments - before) / max(1, after - before)
        return self.device

    def _events(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Repeated):
                self.repeat(partial(self._events, event.events), event.times)
                continue
            self._enter(event.phase)
            if isinstance(event, Stretch):
                self._kernels(event.phase, event.row)
                if self._marks:
                    self._marks.append((self._marks[-1][0] + event.moments, self.device))
            elif isinstance(event, Sending):
                if self._last or not event.once:
                    self._send(event)
            elif isinstance(event, Parts):
                self._parts(event)
            elif isinstance(event, Drain):
                for flight in self._scatters:
                    self._wait(flight)
                self._scatters.clear()
            else:
                if flights := self._gathers.get(event.unit):
                    self._wait(flights.pop(0))
                self._kernels(event.phase, event.row)
                self._mark()

    def _kernels(self, phase: StepPhase, row: int, parts: int = 1) -> None:
        """Those of a row, or one of so many parts of them, more slowly while collectives take processors."""
        seconds, host = self._seconds[row] / parts, self._host_seconds[row] / parts
        start = np.maximum(self.device, self.host)
        for flight in self._flights():
            share = flight.of.price.processors
            beside = np.maximum(0.0, np.minimum(seconds / (1 - share), flight.end - start))
            seconds = seconds + beside * share
        self.host = self.host + host
        self.device = np.maximum(start + seconds, self.host)
        self._half = seconds / 2
        if self.trace is not None:
            self._note_kernels(phase, row, float(start), float(self.device))

    def _note_kernels(self, phase: StepPhase, row: int, start: float, end: float) -> None:
        """Each kernel of a row for its share of the time."""
        shares = {n: times * self._kernel_seconds[n] for n, times in self._program.rows[row].items()}
        scale = (end - start) / (sum(shares.values()) or 1.0)
        for number, share in shares.items():
            task = self._program.tasks[number]
            self._note("device", f"{task.layer} {task.kernel.name}", phase, start, start + scale * share)
            start += scale * share

    def _note(self, queue: str, name: str, phase: StepPhase, start: Numbers, end: Numbers) -> None:
        if self.trace is None or float(end) <= float(start):
            return
        if len(self.trace) == MOST_TRACED:
            raise too_long()
        self.trace.append(QueueEvent(queue, name, phase, float(start), float(end)))

    def _summed(self, phase: StepPhase, layer: str, message: Message) -> CollectiveSum:
        """The sum that one more collective is of, once the host has started it."""
        key = phase, layer, message
        if key not in self.sums:
            self.sums[key] = CollectiveSum(phase, layer, message, self.price(message))
        own = self.sums[key]
        own.times = own.times + 1
        self.host = self.host + self.launch_seconds
        return own

    def _send(self, event: Sending) -> None:
        if event.waiting == "sum" and self._marks:
            self._full.append((event, self._program.ready[len(self._full)]))
        elif event.waiting in ("gather", "scatter"):
            self._launch(event, self._ready(event))
        else:
            self._block(event, self._half if event.waiting == "under" else 0.0)

    def _ready(self, event: Sending) -> Numbers:
        """When what is sent is there: gradients are now, and for weights there is room when others are copied out."""
        if event.waiting == "gather":
            return self._copied[0 if event.phase == "forward" else 1]
        return self._scatters[-1].end if event.message.axis == "dp" and self._scatters else self.device

    def _launch(self, event: Sending, ready: Numbers) -> None:
        """A collective beside kernels."""
        own = self._summed(event.phase, event.layer, event.message)
        seconds, queue, *_ = own.price
        start = np.maximum(self.links.get(queue, 0.0), ready)
        start = start if event.waiting == "sum" else np.maximum(start, self.host)
        flights = self._scatters
        if event.waiting == "gather":
            flights = self._gathers.setdefault(event.layer.rpartition(".")[0], [])
            before = self._before[0 if event.phase == "forward" else 1].get(queue, 0.0)
            blocked, since = self._blocked.get(queue, 0.0) - before, np.maximum(self.device - start, TINY)
            shared = np.minimum(seconds, blocked * np.minimum(1.0, seconds / since))  # with what kernels waited for
            seconds, self.device = seconds + shared, self.device + shared
            own.exposed = own.exposed + shared
        flight = Flight(own, start + seconds)
        self.links[queue] = flight.end
        flights.append(flight)
        self._note(queue, _label(event.message), event.phase, start, flight.end)

    def _wait(self, flight: Flight) -> None:
        flight.of.exposed = flight.of.exposed + np.maximum(0.0, flight.end - self.device)
        self.device = np.maximum(self.device, flight.end)

    def _block(self, event: Sending, earlier: Numbers) -> None:
        """A collective that the next kernel waits for, started so much before the last is done; it shares its link."""
        own = self._summed(event.phase, event.layer, event.message)
        seconds, queue, share, _ = own.price
        start = np.maximum(self.device - earlier, self.host)
        busy = self.links.get(queue, 0.0)
        shared = np.minimum(seconds, np.maximum(0.0, busy - start))
        for flight in self._flights():
            if flight.of.price.queue == queue:
                flight.end = flight.end + shared * (flight.end > start)
        end = start + seconds + shared
        self.links[queue] = busy + shared
        self._blocked[queue] = self._blocked.get(queue, 0.0) + seconds
        slowed = np.minimum(earlier, seconds) * share
        self._note(queue, _label(event.message), event.phase, start, end)
        done = np.maximum(end, self.device + slowed)
        own.exposed = own.exposed + done - self.device
        self.device = done

    def _parts(self, event: Parts) -> None:
        """Kernels in parts, each beside what the next one waits for."""
        waiting: list[Flight] = []
        for n in range(event.parts + 1):
            for flight in waiting:
                self._wait(flight)
            waiting = []
            for message in (message for part, message in event.messages if part == n):
                own = self._summed(event.phase, event.layer, message)
                start = np.maximum(np.maximum(self.links.get(own.price.queue, 0.0), self.device), self.host)
                waiting.append(Flight(own, start + own.price.seconds))
                self.links[own.price.queue] = waiting[-1].end
                self._note(own.price.queue, _label(message), event.phase, start, waiting[-1].end)
            if n < event.parts:
                self._scatters += waiting
                self._kernels(event.phase, event.row, event.parts)
                del self._scatters[len(self._scatters) - len(waiting) :]
        for flight in waiting:
            self._wait(flight)


def _label(message: Message) -> str:
    return f"{message.axis} {message.operation}"


def chrome_trace(title: str, events: Sequence[QueueEvent]) -> str:
    """Events as JSON that Perfetto and chrome://tracing open: a process for each rank, a thread for each queue.

    Source: Trace Event Format, complete events (X) in microseconds, and metadata (M).
    """
    places = sorted({(event.rank, event.queue) for event in events})
    threads = {place: number for number, place in enumerate(places)}
    rows: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"{title}, rank {rank}"}}
        for rank in dict.fromkeys(rank for rank, _ in places)
    ]
    rows += [
        {"ph": "M", "name": "thread_name", "pid": rank, "tid": thread, "args": {"name": queue}}
        for (rank, queue), thread in threads.items()
    ]
    rows += [
        {
            "ph": "X",
            "name": event.name,
            "cat": event.phase,
            "pid": event.rank,
            "tid": threads[event.rank, event.queue],
            "ts": 1e6 * event.start,
            "dur": 1e6 * (event.end - event.start),
        }
        for event in events
    ]
    return json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"})
