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
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

import numpy as np

from costmodel.errors import SettingError
from costmodel.graph.kernel import MeshAxis, Message
from costmodel.performance.laws import TINY, Numbers
from costmodel.performance.programs import Drain, Event, Parts, RankProgram, Repeated, Sending, Stretch
from costmodel.performance.work import StepPhase


class QueueEvent(NamedTuple):
    """Something on a queue of a rank: what, from when to when [s]. Each axis of a layout has its own on a link."""

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
    """What a message takes: seconds, on the queue of which link, and how it is sent.

    processors: the share of work beside it that is lost, on processors that it takes and by what is shared.
    """

    seconds: Numbers
    queue: str
    processors: Numbers = 0.0
    algorithm: str = ""


@dataclass(slots=True)
class CollectiveSum:
    """What the collectives of one kind take [s]. exposed: that the device waits for them, once the host starts them."""

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


def traced_beside(
    events: Sequence[QueueEvent], own: Sequence[QueueEvent], rounds: int, cover: float, beside: float, slowed: float
) -> list[QueueEvent]:
    """Events of a rank with `own` of them, which it waits for one after another, beside kernels instead.

    own: in so many rounds that are alike, of each of which the first is still waited for. cover: seconds of kernels in
    each, before gradients that are summed or from where weights are gathered; what is sent in the update is beside
    those of the next step, which begins as this one does. beside: seconds of them that are then not waited for. slowed:
    by which kernels take longer for it.
    """
    many, next_step, free = len(own) // rounds, own[0].phase == "update", 0.0
    others = sum(event.end - event.start for n, event in enumerate(own) if n % many)
    before, after = (cover, 0.0) if own[0].phase == "backward" else (0.0, cover)
    begins = [0.0] if next_step else [max(0.0, own[n].start - before) for n in range(0, len(own), many)]
    ends = [cover] if next_step else [own[n - 1].end + after for n in range(many, len(own) + 1, many)]
    of_own = [time for event in own for time in (event.start, event.end)]
    times = sorted({0.0, *begins, *ends, *of_own, max(event.end for event in events)})
    waits = [bisect_right(own, time, key=lambda event: event.start) - 1 for time in times]
    waits = [n if n >= 0 and time < own[n].end else None for n, time in zip(waits, times, strict=True)]
    beside_some = [any(begin <= time < end for begin, end in zip(begins, ends, strict=True)) for time in times]
    kernels = [n is None and beside_one for n, beside_one in zip(waits, beside_some, strict=True)]
    lengths = np.diff(times)
    rates = np.array([1 - beside / others if n is not None and n % many else 1.0 for n in waits[:-1]])
    rates[kernels[:-1]] += slowed / lengths[kernels[:-1]].sum()
    moved = partial(np.interp, xp=times, fp=np.cumsum([0.0, *(rates * lengths)]))
    moving, sent = {*own}, list[QueueEvent]()
    kept = [event for event in events if event not in moving]
    if next_step:
        start, whole = float(moved(own[0].start)), float(moved(times[-1]))
        for event in own:
            end = start + event.end - event.start
            if start < whole:
                sent.append(event._replace(start=start, end=min(end, whole)))
            if end > whole:
                sent.append(event._replace(start=max(start - whole, 0.0), end=end - whole))
            start = end
    else:
        starts, start = [0.0] * len(own), inf
        for n, event in reversed([*enumerate(own)]):  # as late as the kernel that needs it and the one after it allow
            start = starts[n] = min(float(moved(event.end)), start) - (event.end - event.start)
        for n, event in enumerate(own):
            if n % many == 0:
                ends_before = (each.end for each in kept if each.queue == event.queue and each.end <= event.start)
                free = float(moved(max(begins[n // many], *ends_before, 0.0)))
            start = max(starts[n], free)
            free = start + event.end - event.start
            sent.append(event._replace(start=start, end=free))
    return [*(event._replace(start=float(moved(event.start)), end=float(moved(event.end))) for event in kept), *sent]


class Flight:
    """A collective on its way until `end`, that the host had started at `begun`; noted: its number in the trace."""

    __slots__ = ("begun", "end", "noted", "of")

    def __init__(self, of: CollectiveSum, begun: Numbers, end: Numbers, noted: int) -> None:
        self.of = of
        self.begun = begun
        self.end = end
        self.noted = noted


class Wait:
    """From when to when kernels waited for a collective, of whose link others that began before now take a share."""

    __slots__ = ("begin", "end")

    def __init__(self, begin: Numbers, end: Numbers) -> None:
        self.begin = begin
        self.end = end


SAME = 1e-9
"""Share of a round's seconds by which rounds that are alike may differ."""


@dataclass
class Player:
    """Plays programs on the queues of one rank.

    price: what a message takes. launch_seconds: of the host, for one collective. trace: what is on each queue, every
    round by itself; None: rounds that are alike are played until they are, and stand for all others.
    device, host: when they are free [s]; links: when each is. input_sums_beside: whether sums of inputs' gradients run
    beside products, and blocking: whether nothing runs beside anything, see `Stack`.
    """

    price: Callable[[Message], Price]
    launch_seconds: Numbers = 0.0
    trace: list[QueueEvent] | None = None
    device: Numbers = 0.0
    host: Numbers = 0.0
    links: dict[str, Numbers] = field(default_factory=dict)
    phase_seconds: dict[StepPhase, Numbers] = field(default_factory=dict)
    sums: dict[tuple[StepPhase, str, Message], CollectiveSum] = field(default_factory=dict)
    input_sums_beside: bool = True
    blocking: bool = False

    def __post_init__(self) -> None:
        """Nothing is on its way."""
        self._phase: StepPhase | None = None
        self._since: Numbers = self.device
        self._last = True
        self._half: Numbers = 0.0
        self._gathers: dict[str, list[Flight]] = {}
        self._scatters: list[Flight] = []
        self._copied: list[Numbers] = [self.device, self.device]
        self._waits: list[dict[str, list[Wait]]] = [{}, {}]
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
        self._program, self._last = program, last
        self._seconds, self._host_seconds = (
            each.tolist() if each.ndim == 1 else each for each in (seconds, host_seconds)
        )
        if last and program.ready:
            self._marks = [(0, self.device)]
        self._events(program.events)

    def end(self) -> None:
        """The last phase is over."""
        self._enter(None)

    def send_beside(self, axis: MeshAxis, micro_batches: Numbers) -> None:
        """Once all is played: what is sent along an axis runs beside kernels of another micro-batch, which it slows.

        It does so for as long as there are kernels; of so many micro-batches the first and the last have one pass with
        no other beside it.
        """
        own = [of for of in self.sums.values() if of.message.axis == axis]
        waited = sum(of.exposed for of in own)
        busy = np.maximum(self.device - sum(of.exposed for of in self.sums.values()), 0.0)
        share = (1 - 1 / micro_batches) * np.minimum(1.0, busy / np.maximum(waited, TINY))
        if self.trace is not None:
            self._note_beside(axis, sum(float(share * of.exposed * (1 - of.price.processors)) for of in own))
        for of in own:
            saved = share * of.exposed * (1 - of.price.processors)
            self.device = self.device - saved
            self.phase_seconds[of.phase] = self.phase_seconds[of.phase] - saved
            of.exposed = of.exposed - saved

    def _note_beside(self, axis: MeshAxis, saved: float) -> None:
        """What is sent along an axis beside kernels, which wait so much less for it, each time for the same share."""
        assert self.trace is not None
        own = sorted((event for event in self.trace if event.queue.endswith(f" {axis}")), key=lambda event: event.start)
        waited = sum(event.end - event.start for event in own)
        if not saved:
            return
        times = [0.0, *(time for event in own for time in (event.start, event.end)), float(self.device)]
        rates = [1.0, *((1 - saved / waited, 1.0) * len(own))]
        moved = partial(np.interp, xp=times, fp=np.cumsum([0.0, *(np.diff(times) * rates)]))
        sent, free = set(own), 0.0
        self.trace[:] = [
            event._replace(start=float(moved(event.start)), end=float(moved(event.end)))
            for event in self.trace
            if event not in sent
        ]
        for event in own:
            start = max(free, float(moved(event.start)))
            free = start + event.end - event.start
            self.trace.append(event._replace(start=start, end=free))

    def repeat(self, round_: Callable[[], None], times: int) -> None:
        """So many rounds, which are played until one is like that before it: all others then are too."""
        before, waited = self._clocks(), self._waited()
        for n in range(1, times + 1):
            sums = self._amounts()
            round_()
            after, waited_after = self._clocks(), self._waited()
            steps = [b - a for a, b in zip(before, after, strict=False)] if len(before) == len(after) else []
            alike = n < times and self.trace is None and not self._marks and self._steady(after, steps)
            if alike and len(waited) == len(waited_after) and all(map(are_close, waited, waited_after)):
                self._skip(times - n, after, steps, sums)
                return
            before, waited = after, waited_after

    def _flights(self) -> list[Flight]:
        flights = [*self._scatters]
        for own in self._gathers.values():
            flights += own
        return flights

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

    def _waited(self) -> list[Numbers]:
        """How long ago kernels began to wait for each link, and for how long they did."""
        waits = [wait for since in self._waits for every in since.values() for wait in every]
        return [seconds for wait in waits for seconds in (self.device - wait.begin, wait.end - wait.begin)]

    def _amounts(self) -> dict[Any, tuple[Numbers, Numbers]]:
        amounts = {key: (own.times, own.exposed) for key, own in self.sums.items()}
        return {**amounts, **{phase: (0, seconds) for phase, seconds in self.phase_seconds.items()}}

    def _steady(self, clocks: Sequence[Numbers], steps: Sequence[Numbers]) -> bool:
        """Whether all clocks have moved on as the device's, but for such as were behind all that was to come."""
        if not steps:
            return False
        device, step = clocks[0], steps[0]
        floor = _lesser(device, self._copied[0]) if self._gathers else device  # when the next may start
        close = SAME * _larger(abs(step), 1e-12)
        return all(
            _everywhere((abs(moved - step) <= close) | ((moved < step) & (clock - moved < floor - step)))
            for clock, moved in zip(clocks, steps, strict=True)
        )

    def _skip(self, times: int, clocks: Sequence[Numbers], steps: Sequence[Numbers], before: dict[Any, Any]) -> None:
        moved = iter([clock + times * step for clock, step in zip(clocks, steps, strict=True)])
        self.device, self.host, self._since = next(moved), next(moved), next(moved)
        self._copied = [next(moved), next(moved)]
        self.links = {link: next(moved) for link in self.links}
        for flight in self._flights():
            flight.end, flight.begun = next(moved), flight.begun + times * steps[0]
        for since in self._waits:
            for every in since.values():
                for wait in every:
                    wait.begin, wait.end = wait.begin + times * steps[0], wait.end + times * steps[0]
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
        self._waits = [self._waits[1], {}]

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
        start = _larger(self.device, self.host)
        for flight in self._flights():
            share = flight.of.price.processors
            beside = _larger(0.0, _lesser(seconds / (1 - share), flight.end - start))
            seconds = seconds + beside * share
        self.host = self.host + host
        self.device = _larger(start + seconds, self.host)
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

    def _note(self, queue: str, name: str, phase: StepPhase, start: Numbers, end: Numbers) -> int:
        """The number of the event, -1 of none."""
        if self.trace is None or float(end) <= float(start):
            return -1
        if len(self.trace) == MOST_TRACED:
            raise too_long()
        self.trace.append(QueueEvent(queue, name, phase, float(start), float(end)))
        return len(self.trace) - 1

    def _sent(self, own: CollectiveSum, start: Numbers, end: Numbers) -> int:
        queue, message = own.price.queue, own.message
        return self._note(f"{queue} {message.axis}", f"{message.axis} {message.operation}", own.phase, start, end)

    def _note_later(self, flight: Flight, now: float, seconds: float) -> None:
        """What is on its way, or is to be, takes so much longer from now on."""
        if self.trace is not None and flight.noted >= 0:
            event = self.trace[flight.noted]
            start = event.start + seconds * (event.start > now)
            self.trace[flight.noted] = event._replace(start=start, end=event.end + seconds)

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
        if self.blocking:
            self._block(event, 0.0)
        elif event.waiting == "sum" and self._marks:
            self._full.append((event, self._program.ready[len(self._full)]))
        elif event.waiting in ("gather", "scatter"):
            self._launch(event, self._ready(event))
        else:
            self._block(event, self._half if event.waiting == "under" and self.input_sums_beside else 0.0)

    def _ready(self, event: Sending) -> Numbers:
        """When what is sent is there: gradients are now, and for weights there is room when others are copied out."""
        if event.waiting == "gather":
            return self._copied[0 if event.phase == "forward" else 1]
        return self._scatters[-1].end if event.message.axis == "dp" and self._scatters else self.device

    def _launch(self, event: Sending, ready: Numbers) -> None:
        """A collective beside kernels."""
        own = self._summed(event.phase, event.layer, event.message)
        seconds, queue, *_ = own.price
        start = _larger(self.links.get(queue, 0.0), ready)
        start = start if event.waiting == "sum" else _larger(start, self.host)
        shared = self._shared(queue, start, seconds)
        own.exposed = own.exposed + shared
        end = start + seconds + shared
        flights = self._scatters
        if event.waiting == "gather":
            flights = self._gathers.setdefault(event.layer.rpartition(".")[0], [])
        self.links[queue] = end
        flights.append(Flight(own, self.host, end, self._sent(own, start, end)))

    def _shared(self, queue: str, start: Numbers, seconds: Numbers) -> Numbers:
        """How much longer both a collective that began so early and what kernels waited for since take on their link.

        While both are there each has half of it.
        """
        left, at, later = seconds, start, 0.0
        for since in self._waits:
            for wait in since.get(queue, []):
                wait.begin, wait.end = wait.begin + later, wait.end + later
                left = _larger(0.0, left - _larger(0.0, wait.begin - at))
                both = _lesser(left, _larger(0.0, wait.end - _larger(at, wait.begin)))
                left, later, wait.end = left - both, later + both, wait.end + both
                at = _larger(at, wait.end)
            if since is self._waits[0]:
                self._copied[1] = self._copied[1] + later
        self.device = self.device + later
        return later

    def _wait(self, flight: Flight) -> None:
        flight.of.exposed = flight.of.exposed + _larger(0.0, flight.end - _larger(self.device, flight.begun))
        self.device = _larger(self.device, flight.end)

    def _block(self, event: Sending, earlier: Numbers) -> None:
        """A collective that the next kernel waits for, started so much before the last is done; it shares its link."""
        own = self._summed(event.phase, event.layer, event.message)
        seconds, queue, share, _ = own.price
        start = _larger(self.device - earlier, self.host)
        busy = self.links.get(queue, 0.0)
        shared = _lesser(seconds, _larger(0.0, busy - start))
        for flight in self._flights():
            if flight.of.price.queue == queue:
                later = shared * (flight.end > start)
                flight.end = flight.end + later
                if self.trace is not None:
                    self._note_later(flight, float(start), float(later))
        end = start + seconds + shared
        self.links[queue] = busy + shared
        slowed = _lesser(earlier, seconds) * share
        self._sent(own, start, end)
        done = _larger(end, self.device + slowed)
        own.exposed = own.exposed + done - _larger(self.device, start)  # until the start the device waits for the host
        if self._gathers or self._marks:
            self._waits[1].setdefault(queue, []).append(Wait(start, end))
        self.device = done
        if event.waiting == "host":
            self.host = _larger(self.host, done)

    def _parts(self, event: Parts) -> None:
        """Kernels in parts, each beside what the next one waits for; or all of them, and then what is sent."""
        if self.blocking or (not self.input_sums_beside and event.messages[0][1].axis == "tp"):
            self._kernels(event.phase, event.row)
            for _, message in event.messages:
                self._block(Sending(event.phase, event.layer, message, "device", False), 0.0)
            return
        waiting: list[Flight] = []
        for n in range(event.parts + 1):
            for flight in waiting:
                self._wait(flight)
            waiting = []
            for message in (message for part, message in event.messages if part == n):
                own = self._summed(event.phase, event.layer, message)
                start = _larger(_larger(self.links.get(own.price.queue, 0.0), self.device), self.host)
                end = start + own.price.seconds
                waiting.append(Flight(own, self.host, end, self._sent(own, start, end)))
                self.links[own.price.queue] = end
            if n < event.parts:
                self._scatters += waiting
                self._kernels(event.phase, event.row, event.parts)
                del self._scatters[len(self._scatters) - len(waiting) :]
        for flight in waiting:
            self._wait(flight)


def _larger(a: Numbers, b: Numbers) -> Numbers:
    """``np.maximum``, which takes several times as long for two numbers as they do."""
    if isinstance(a, float) and isinstance(b, float):
        return a if a >= b else b
    return np.maximum(a, b)


def _lesser(a: Numbers, b: Numbers) -> Numbers:
    if isinstance(a, float) and isinstance(b, float):
        return a if a <= b else b
    return np.minimum(a, b)


def _everywhere(truth: Any) -> bool:
    """Whether it is so for all numbers that one play serves."""
    return bool(truth) if isinstance(truth, (bool, np.bool_)) else bool(truth.all())


def are_close(a: Numbers, b: Numbers) -> bool:
    """Whether what rounds that are alike take is the same."""
    return _everywhere(abs(a - b) <= SAME * abs(b))


def is_no_less(a: Numbers, b: Numbers) -> bool:
    """Whether one is no less than another, but for rounding."""
    return _everywhere(a >= (1 - SAME) * b)


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
