"""What is in memory at every step of training or inference, over what stays throughout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from operator import add
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from costmodel.cost.allocator import ALLOTTED
from costmodel.cost.liveness import (
    ACTIVATIONS,
    CACHE,
    CASTS,
    GRADIENTS,
    LINES,
    TEMPORARIES,
    Course,
    Lifetimes,
    LineBytes,
    Moment,
    MomentLoop,
    MomentPhase,
    unrolled,
)
from costmodel.cost.persistent import ON_HOST, earlier_gradients, persistent_tensors
from costmodel.cost.pipeline import PipelineRank
from costmodel.cost.question import question
from costmodel.cost.walk import end_of, lives_of, passes_of
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table, printable, shortened
from costmodel.display.units import show_bytes, show_exact
from costmodel.documents.arguments import Bounds, typed
from costmodel.graph.kernel import MeshAxis, Message, Operation, wire_bytes
from costmodel.graph.tape import Tape
from costmodel.symbolic.sizes import SymInt, largest, undominated
from costmodel.training.dtypes import Dtype, size_bytes
from costmodel.training.settings import Settings

if TYPE_CHECKING:
    from os import PathLike

    from matplotlib.figure import Figure

    from costmodel.architectures.base import Architecture
    from costmodel.display.areas import Steps


MOST_UNFOLDED = 200_000
"""Timelines of more steps are drawn with their rounds folded."""
MOST_DRAWN = 4_000
"""Of more steps than this, the highest of each few is drawn."""


class Alive(NamedTuple):
    """Bytes alive at one step, by category.

    gradients are those of weights, once they are whole; activations are kept for backward, and so are casts, copies of
    weights in a lower precision; cache is what decoding keeps; temporaries are all else that comes and goes.
    """

    weights: int
    masters: int
    gradients: int
    optimizer: int
    buffers: int
    inputs: int
    activations: int
    casts: int
    temporaries: int
    cache: int = 0

    @property
    def total(self) -> int:
        """All categories together."""
        return sum(self[1:], self[0])


class TimelineStep(NamedTuple):
    """One step: its phase, its layer, the rounds of the repeated blocks around it ("" if none), what is alive."""

    phase: MomentPhase
    layer: str
    rounds: str
    alive: Alive


class CollectiveCalls(NamedTuple):
    """Collectives of one layer: in which phase and rounds, how often, what it is, and the whole tensor [elements]."""

    phase: MomentPhase
    layer: str
    rounds: str
    times: int
    operation: Operation
    axis: MeshAxis
    devices: int
    elements: int
    dtype: Dtype

    @property
    def bytes(self) -> int:
        """Size of the whole tensor, once [bytes]."""
        return size_bytes(self.elements, self.dtype)

    @property
    def wire_bytes(self) -> int:
        """What the rank sends to others for one of them [bytes]."""
        return wire_bytes(self.operation, self.devices, self.bytes)


class TimelineQuestion(NamedTuple):
    """The question that a timeline answers: the model, how it is run, and what was recorded of it."""

    model: Architecture
    settings: Settings
    tape: Tape

    def __repr__(self) -> str:
        return f"<TimelineQuestion of {self.model.title}>"


class NamedAllocation(NamedTuple):
    """One allocation, or one tensor that stays: its category, its size [bytes], and in words what it is."""

    line: str
    bytes: int
    name: str


@dataclass(frozen=True, repr=False)
class Timeline(Answer):
    """Bytes alive at each step. Rounds that are alike are one step, at the one that has the most alive.

    messages: the collectives, by the number of their moment. ready: see `Lifetimes`.
    every: of letters whose formulas are to hold everywhere, at each moment all levels that may be highest somewhere.
    passes: another optimizer's timeline, whose forward and backward are this one's too; see `timelines_of`.
    question: what it is the timeline of. persistent: what is there throughout [bytes]. moments: what runs, step by
    step. levels: what comes and goes at each [bytes]. changes: what is taken before each and given back after it
    [bytes]. loops: steps that happen again.

    Example:
        >>> import costmodel as cm
        >>> timeline = cm.predict("gpt2-small", batch=8, seq=512).timeline
        >>> timeline.peak_step.phase, timeline.peak_step.layer, timeline.peak  # bytes
        ('backward', 'loss', 9202297868)

    """

    persistent: Alive
    moments: tuple[Moment, ...]
    levels: Course
    changes: Course
    loops: tuple[MomentLoop, ...]
    every: tuple[tuple[LineBytes, ...], ...] = ()
    messages: tuple[tuple[int, Message], ...] = ()
    question: TimelineQuestion | None = field(default=None, compare=False)
    ready: tuple[int, ...] = ()
    passes: Timeline | None = field(default=None, compare=False)

    @cached_property
    def steps(self) -> tuple[TimelineStep, ...]:
        """All steps, in order."""
        return tuple(self._step(now) for now in range(len(self.moments)))

    @cached_property
    def _totals(self) -> list[int]:
        """What comes and goes, at each moment; numbers even where sizes are letters, for comparing."""
        sizes = map(sum, zip(*self.levels, strict=True))
        return [size if type(size) is int else int(size) for size in sizes]

    @cached_property
    def phases(self) -> dict[MomentPhase, list[int]]:
        """The moments of each phase."""
        phases: dict[MomentPhase, list[int]] = {}
        for now, (phase, _, _) in enumerate(self.moments):
            phases.setdefault(phase, []).append(now)
        return phases

    def _highest(self, heights: Sequence[int]) -> list[int]:
        """For each phase the first moment that is highest."""
        return [max(moments, key=heights.__getitem__) for moments in self.phases.values()]

    @cached_property
    def peak(self) -> int:
        """The most alive at any step [bytes]; with letters, the largest of each phase's highest step."""
        throughout = self.persistent.total
        return largest([throughout + sum(level) for _, level in self._peaks])

    @cached_property
    def highest(self) -> tuple[TimelineStep, ...]:
        """Of each phase the first step with the most alive; where formulas hold everywhere all that may have it."""
        return tuple(TimelineStep(*moment, self._alive(level)) for moment, level in self._peaks)

    @cached_property
    def _peaks(self) -> list[tuple[Moment, Sequence[int]]]:
        """The moments of `highest`, and what comes and goes at each."""
        if not self.every:
            return [(self.moments[now], [line[now] for line in self.levels]) for now in self._highest(self._totals)]
        return [peak for peaks in self._peaks_of.values() for peak in peaks]

    @cached_property
    def _peaks_of(self) -> dict[MomentPhase, list[tuple[Moment, Sequence[int]]]]:
        """Of each phase the moments that may be highest, with letters, and what comes and goes at each."""
        peaks: dict[MomentPhase, list[tuple[Moment, Sequence[int]]]] = {}
        if self.passes is not None:
            peaks |= self.passes._peaks_of
            peaks.pop("optimizer")
        for phase, moments in self.phases.items():
            if phase not in peaks:
                levels = [(self.moments[now], level) for now in moments for level in self.every[now]]
                places = undominated([sum(level[1:], level[0]) for _, level in levels])
                peaks[phase] = [levels[place] for place in places]
        return peaks

    @cached_property
    def peak_step(self) -> TimelineStep:
        """The first step at which the most is alive."""
        return self._step(self._totals.index(max(self._totals)))

    @cached_property
    def temporaries(self) -> int:
        """The most that temporaries take at any step [bytes]; with letters as `peak`."""
        if not self.every or "optimizer" not in self.phases:
            return self.most(TEMPORARIES)
        own = self.every[self.phases["optimizer"][0] :]
        return largest([self._temporaries_before, *(level[TEMPORARIES] for variants in own for level in variants)])

    @cached_property
    def _temporaries_before(self) -> int:
        """As `temporaries`, of letters, before the optimizer's step."""
        if self.passes is not None:
            return self.passes._temporaries_before
        before = self.every[: self.phases["optimizer"][0]]
        return largest([level[TEMPORARIES] for variants in before for level in variants])

    @typed
    def most(self, line: Annotated[int, Bounds("the place of a line", 0, most=len(LINES) - 1)]) -> int:
        """The most that comes and goes on one of `LINES`, by its place, at any step [bytes]; with letters as `peak`."""
        sizes = self.levels[line]
        every = [level[line] for variants in self.every for level in variants]
        return largest(every or [sizes[now] for now in self._highest(sizes)])

    @cached_property
    def collectives(self) -> tuple[CollectiveCalls, ...]:
        """Every collective in order; of rounds that are alike those of one."""
        times = self._times
        return tuple(CollectiveCalls(*self.moments[now], times[now], *message) for now, message in self.messages)

    def every_collective(self) -> Iterator[CollectiveCalls]:
        """Every collective of every round, in order."""
        sent: dict[int, list[Message]] = {}
        for now, message in self.messages:
            sent.setdefault(now, []).append(message)
        for now in unrolled(len(self.moments), self.loops) if sent else ():
            yield from (CollectiveCalls(*self.moments[now], 1, *message) for message in sent.get(now, ()))

    @cached_property
    def happenings(self) -> int:
        """How many steps there are with every round by itself."""
        return sum(int(times) for times in self._times)

    @cached_property
    def _times(self) -> list[int]:
        """How often each moment happens."""
        times = [1] * len(self.moments)
        for start, end, more in self.loops:
            times[start:end] = [n * (1 + more) for n in times[start:end]]
        return times

    def unrolled(self) -> Iterator[TimelineStep]:
        """Every step of every round. There are `happenings` of them, which may be very many."""
        changes = list(zip(*self.changes, strict=True))
        level = [0 for _ in LINES]
        for now in unrolled(len(self.moments), self.loops):
            level = list(map(add, level, changes[2 * now]))
            yield TimelineStep(*self.moments[now], self._alive(level))
            level = list(map(add, level, changes[2 * now + 1]))

    @cached_property
    def largest(self) -> NamedAllocation | None:
        """What takes most by itself at the peak; of several as large the first. None without a question."""
        if self.question is None:
            return None
        _, settings, tape = self.question
        allotted = ALLOTTED[settings.allocator]
        lifetimes = lives_of(tape, settings, Lifetimes(allotted), loops=True)
        now = self._totals.index(max(self._totals))
        allocations = [
            NamedAllocation(_LINES[a.line], int(allotted(a.size)), _origin(*lifetimes.moments[a.born]))
            for a in lifetimes.allocations
            if a.born <= now <= a.died
        ]
        allocations += [
            NamedAllocation(line, int(allotted(size)), "there throughout")
            for line, size, _ in persistent_tensors([tape], settings)
            if line not in (*ON_HOST, "cache")
        ]
        return max(allocations, key=lambda allocation: allocation.bytes, default=None)

    @typed
    def plot(
        self,
        path: str | PathLike[str] | None = None,
        *,
        memory: str | int | Sequence[str | int] | None = None,
        dark: bool = False,
    ) -> Figure:
        """A picture of it: what is alive by category at every step, the peak, and budgets (extra `plot`).

        Args:
            path: where to write it too, such as "memory.png".
            memory: budgets to draw, such as "24 GiB", or several; None: of 16, 24, 40 and 80 GiB those near the peak.
            dark: on black instead of white.

        Raises:
            CostModelError: no matplotlib, an amount that is none, or `path` cannot be written.

        Example:
            >>> import costmodel as cm
            >>> figure = cm.predict("gpt2-small", batch=8, seq=512).timeline.plot(memory=["16 GiB", "24 GiB"])
            >>> figure.axes[0].get_ylabel()
            'memory alive [GiB]'

        """
        from costmodel.cost.question import heading
        from costmodel.display.areas import Peak, areas
        from costmodel.display.figures import DARK, LIGHT, Budgets, save

        peak = self.peak_step
        notes = [
            f"Peak: {show_bytes(self.peak)}",
            f"{peak.phase} of {shortened(peak.layer, NAME)}" + f", round {peak.rounds}" * bool(peak.rounds),
        ]
        if self.largest is not None:
            line, size, name = self.largest
            notes += [f"largest: {line}, {show_bytes(size)}", shortened(name, NAME)]
        title = "" if self.question is None else heading(self.question.model, self.question.settings)
        theme = DARK if dark else LIGHT
        return save(areas(self._drawn(), Peak(peak.alive._asdict(), notes), Budgets.of(memory), title, theme), path)

    def _drawn(self) -> Steps:
        """Every step of every round, or of so many as are drawn; of very many, rounds that are alike as one."""
        from costmodel.display.areas import Steps

        if self.happenings > MOST_UNFOLDED:
            steps, width = self.steps, 1
            meaning = "step (rounds that are alike drawn as one, at the one with most alive)"
        else:
            every = list(self.unrolled())
            width = -(-len(every) // MOST_DRAWN)
            groups = (every[start : start + width] for start in range(0, len(every), width))
            steps = [max(group, key=lambda step: step.alive.total) for group in groups]
            which = (
                f"of every {width}, the one with most alive" if width > 1 else "a layer's forward, backward or update"
            )
            meaning = f"step ({which})"
        return Steps([step.phase for step in steps], [step.alive._asdict() for step in steps], width, meaning)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the peak, where it is, and every step."""
        steps = [{**step._asdict(), "alive": step.alive._asdict()} for step in self.steps]
        return {"peak": self.peak, "peak_step": self.steps.index(self.peak_step), "steps": steps}

    def rows(self) -> list[dict[str, Any]]:
        """A row for each step: what it is, and bytes alive by category and in total."""
        return [
            {
                "phase": step.phase,
                "layer": step.layer,
                "rounds": step.rounds,
                **step.alive._asdict(),
                "total": step.alive.total,
            }
            for step in self.steps
        ]

    def sheet(self) -> Sheet:
        """The steps that matter, and what is alive at each."""
        return _sheet(self)

    def _step(self, now: int) -> TimelineStep:
        return TimelineStep(*self.moments[now], self._alive([line[now] for line in self.levels]))

    def _alive(self, level: Sequence[int]) -> Alive:
        gradients, activations, casts, cache, temporaries = level
        return self.persistent._replace(
            gradients=self.persistent.gradients + gradients,
            activations=activations,
            casts=casts,
            cache=self.persistent.cache + cache,
            temporaries=temporaries,
        )


def _origin(phase: MomentPhase, layer: str, _: str) -> str:
    """Where something was made, in words."""
    return f"from {phase}" + ("" if layer == phase else f" of {layer}")


_LINES = {
    GRADIENTS: "gradients",
    ACTIVATIONS: "activations",
    CASTS: "casts",
    CACHE: "cache",
    TEMPORARIES: "temporaries",
}
"""The categories of what comes and goes."""


def timeline_of(model: Architecture, tape: Tape, settings: Settings, persistent: Mapping[str, int]) -> Timeline:
    """One step of `tape`: forward and loss, and in training backward and the optimizer, whose states exist already.

    persistent: what is there throughout.
    """
    lifetimes = lives_of(tape, settings, Lifetimes(ALLOTTED[settings.allocator]), loops=True)
    return _timeline(TimelineQuestion(model, settings, tape), lifetimes, persistent)


def timelines_of(
    model: Architecture, tape: Tape, settings: Sequence[Settings], persistent: Sequence[Mapping[str, int]]
) -> list[Timeline]:
    """As `timeline_of`, of settings that differ in the optimizer alone: forward and backward are walked once."""
    lifetimes = Lifetimes(ALLOTTED[settings[0].allocator])
    passes = passes_of(tape, settings[0], lifetimes, loops=True)
    walked = (lifetimes.moments, lifetimes.allocations, lifetimes.loops, lifetimes.messages)
    lengths = list(map(len, walked))
    timelines: list[Timeline] = []
    for each, throughout in zip(settings, persistent, strict=True):
        for entries, length in zip(walked, lengths, strict=True):
            del entries[length:]
        end_of(tape, each, passes, lifetimes)
        timeline = _timeline(TimelineQuestion(model, each, tape), lifetimes, throughout)
        timelines.append(timeline)
    first, *others = timelines
    if any({phase for phase, *_ in each.moments[lengths[0] :]} != {"optimizer"} for each in timelines):
        return timelines
    return [first, *(replace(other, passes=first) for other in others)]


def _timeline(question: TimelineQuestion, lifetimes: Lifetimes, persistent: Mapping[str, int]) -> Timeline:
    _, settings, tape = question
    earlier = earlier_gradients(tape, settings, lifetimes.allotted)
    alive = {**dict.fromkeys(Alive._fields, 0), **persistent, "gradients": earlier}
    for line in ON_HOST:
        alive.pop(line)
    changes = lifetimes.changes()
    levels, every = _levels(lifetimes, changes)
    moments, loops = tuple(lifetimes.moments), tuple(lifetimes.loops)
    return Timeline(
        Alive(**alive),
        moments,
        levels,
        changes,
        loops,
        every,
        tuple(lifetimes.messages),
        question,
        tuple(lifetimes.ready),
    )


def _levels(lifetimes: Lifetimes, changes: Course) -> tuple[Course, tuple[tuple[LineBytes, ...], ...]]:
    """`Timeline.levels` and `Timeline.every`."""
    sizes = chain((size for line in changes for size in line), (loop.more for loop in lifetimes.loops))
    if any(type(size) is not int and isinstance(size, SymInt) and size.guarded for size in sizes):
        every = lifetimes.every_level(changes)
        return tuple(zip(*(level for level, *_ in every), strict=True)), every
    return lifetimes.levels(changes), ()


def timeline_of_rank(rank: PipelineRank, persistent: Mapping[str, int]) -> Timeline:
    """A step of one rank of a pipeline: its micro-batches' passes, one after the other, and the optimizer."""
    runtimes = [stage.runtime for stage in rank.stages.values() if stage.runtime is not None and stage.runtime.drops]
    earlier = sum(runtime.lasting_bytes for runtime in runtimes)
    alive = {**dict.fromkeys(Alive._fields, 0), **persistent, "gradients": earlier}
    for line in ON_HOST:
        alive.pop(line)
    lifetimes, changes = rank.lifetimes, rank.changes
    levels, every = _levels(lifetimes, changes)
    return Timeline(
        Alive(**alive),
        tuple(lifetimes.moments),
        levels,
        changes,
        tuple(lifetimes.loops),
        every,
        tuple(lifetimes.messages),
    )


FOLDED = "Rounds that are alike stand as one step, at the one of them that has most alive."


def milestones(timeline: Timeline) -> list[tuple[str, int]]:
    """The steps that matter, in order, each with a name."""
    steps, phases = timeline.steps, timeline.phases

    def highest(of: list[int]) -> int:
        return max(of, key=lambda now: int(steps[now].alive.total))

    named = {highest(of): f"most in {phase}" for phase, of in phases.items()}
    named |= {of[-1]: f"end of {phase}" for phase, of in phases.items() if phase in ("forward", "backward")}
    named[0] = "start"
    named[steps.index(timeline.peak_step)] = f"peak, in {timeline.peak_step.phase}"
    return [(name, now) for now, name in sorted(named.items())]


def _sheet(timeline: Timeline) -> Sheet:
    marks = [(name, timeline.steps[now]) for name, now in milestones(timeline)]
    lines = [line for line in type(timeline.persistent)._fields if any(getattr(s.alive, line) for _, s in marks)]
    rows = [_row(name, step, lines) for name, step in marks]
    worth = ("total", *LARGEST, *lines, "layer")
    table = Table(("Step", "layer", *lines, "total"), rows, words=frozenset({0, 1}), worth=worth)
    peak = timeline.peak_step
    headline = (
        f"Peak: {show_bytes(timeline.peak)} ({show_exact(timeline.peak)} bytes), in {peak.phase} of {place(peak)}"
    )
    head = [] if timeline.question is None else [question(timeline.question.model, timeline.question.settings)]
    return Sheet([*head, headline], [table], notes=[FOLDED] if timeline.loops else [])


NAME = 32
"""Characters of a name beside a picture."""
LARGEST = ("activations", "temporaries", "weights", "optimizer")
"""What most often leads a peak."""


def place(step: TimelineStep | CollectiveCalls) -> str:
    """Its layer, and the rounds of the repeated blocks around it."""
    return printable(f"{step.layer} (round {step.rounds})" if step.rounds else step.layer)


def _row(name: str, step: TimelineStep, lines: list[str]) -> list[str]:
    sizes = [getattr(step.alive, line) for line in lines]
    cells = [show_bytes(size) if size else "-" for size in sizes]
    return [name, place(step), *cells, show_bytes(step.alive.total)]
