"""What a rank of a pipeline has in memory over a step: its stages' passes, put together in the order of a schedule.

One micro-batch's forward and backward pass of a stage are worked out once, and backward again where gradients are there
already. All that a step does is these, one after the other; passes that repeat are a loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from costmodel.architectures.trace import trace
from costmodel.cost.liveness import LINES, TEMPORARIES, Course, Lifetimes
from costmodel.cost.rank_course import RankCourse, RankProgress, alike_times, pass_name
from costmodel.cost.sharding import Gathered
from costmodel.cost.stage_passes import Passage, StagePasses, step_ending
from costmodel.graph.kernel import Message, Operation
from costmodel.graph.tape import Tape
from costmodel.symbolic.sizes import ceil_div
from costmodel.training.schedule import Action, ActionKind, Run
from costmodel.training.settings import Settings

if TYPE_CHECKING:
    from costmodel.architectures.base import Architecture


class Posted(NamedTuple):
    """The messages that a rank posts before and after what it computes at a time, each with the stage that it is of."""

    before: tuple[tuple[ActionKind, int], ...]
    after: tuple[tuple[ActionKind, int], ...]


class Turn(NamedTuple):
    """An action of a rank, with what is posted around it, and what of its stage is there by then.

    gathered: see `cost.sharding.Gathered`. begun: whether the stage has gone backward before. ended: whether it does so
    for the last time, and sums its gradients over ranks after that.
    """

    kind: ActionKind
    stage: int
    posted: Posted
    gathered: Gathered
    begun: bool
    ended: bool


MOST_POSTED = 20_000
"""Of pipelines with more passes, messages are where what they carry is made and read, not where PyTorch posts them."""


def _posted(program: Sequence[Action]) -> Iterator[Posted]:
    """What is posted around each action that computes: what is received last before one is of that."""
    before: list[Action] = []
    between: list[Action] = []
    computed = False
    for action in program:
        if action.kind not in ("F", "B", "I", "W"):
            between += [action] if action.microbatch >= 0 else []
            continue
        sent = max((n for n, each in enumerate(between, start=1) if each.kind.startswith("SEND")), default=0)
        if computed:
            yield Posted(_labels(before), _labels(between[:sent]))
        before, between, computed = between[sent:] if computed else between, [], True
    yield Posted(_labels(before), _labels(between))


def _labels(messages: Sequence[Action]) -> tuple[tuple[ActionKind, int], ...]:
    return tuple((each.kind, each.stage) for each in messages)


class PipelineRank:
    """One rank of a pipeline. ending: what it does after all passes."""

    def __init__(self, pipeline: Pipeline, rank: int) -> None:
        self.schedule = pipeline.schedule
        self.settings = pipeline.settings
        self.rank = rank
        self.stages = {stage: pipeline.passes(stage) for stage in self.schedule.stages_of(rank)}
        self._pipeline = pipeline

    @cached_property
    def ending(self) -> Passage:
        """Outputs are joined, gradients summed over ranks, and weights updated."""
        return step_ending([(each, each.runtime) for each in self.stages.values()], self.settings)

    @cached_property
    def step(self) -> RankStep:
        """What it does in a step, pass by pass: seconds follow from less."""
        return RankStep(self, self._pipeline)

    @property
    def tapes(self) -> tuple[Tape, ...]:
        """What is recorded of its stages."""
        return tuple(stage.tape for stage in self.stages.values())

    @property
    def in_flight(self) -> int:
        """See `Schedule.in_flight`."""
        return self.schedule.in_flight(self.rank)

    @property
    def buffers(self) -> int:
        """What it has for all micro-batches: see `StagePasses.buffers` [bytes]."""
        return self.schedule.microbatches * sum(stage.buffers for stage in self.stages.values())

    @property
    def lifetimes(self) -> Lifetimes:
        """What it does in a step, whose changes are those of passes."""
        return self.step.lifetimes

    @property
    def changes(self) -> Course:
        """See `Lifetimes.changes`."""
        return tuple(map(tuple, self.step.changes))

    def usual(self, stage: int, kind: ActionKind) -> StagePasses:
        """The passes of a stage as most of its actions of a kind find its weights."""
        return self._pipeline.passes(stage, self._progress.usual(stage, kind))

    @cached_property
    def _progress(self) -> RankProgress:
        return RankCourse.of(self.schedule, self.rank, self.settings.layout).progress

    def __repr__(self) -> str:
        return f"<PipelineRank {self.rank}: stages {[*self.stages]}>"


class RankStep:
    """The passes of a rank over a step, one after the other. changes: of all of them, by line."""

    def __init__(self, own: PipelineRank, pipeline: Pipeline) -> None:
        self.schedule, self.rank, self.stages = own.schedule, own.rank, own.stages
        self.lifetimes = Lifetimes()
        self.changes: list[list[int]] = [[] for _ in LINES]
        self._pipeline = pipeline
        self._progress = RankProgress(self.schedule, own.rank, own.settings.layout)
        self._losses = sum(stage.loss for stage in self.stages.values()) * self.schedule.microbatches
        for stage in self._progress.ahead:
            self._add(self.stages[stage].gathering)
        posted = iter(pipeline.posted[own.rank]) if pipeline.posted else None
        for run in self.schedule.runs(own.rank):
            self._add_run(run, posted)
        self._end(own.ending)

    def _add_run(self, run: Run, posted: Iterator[Posted] | None) -> None:
        """Times that are alike as a loop: those that find the same there, and post the same messages.

        What they find is the same from the third on, but for the last.
        """
        groups: list[tuple[list[Turn], int]] = []
        for times in alike_times(run.times, run.times) if posted else alike_times(run.times):
            turns = [self._turn(action, next(posted) if posted else None, times) for action in run.actions]
            if groups and groups[-1][0] == turns:
                groups[-1] = turns, groups[-1][1] + times
            else:
                groups.append((turns, times))
        for turns, times in groups:
            start = len(self.lifetimes.moments)
            for turn in turns:
                self._add_turn(turn)
            if times > 1:
                self.lifetimes.loop(start, times - 1)

    def _turn(self, action: Action, posted: Posted | None, times: int) -> Turn:
        """An action as it finds its stage, which so many times then leave behind."""
        posted = self._nominal(action) if posted is None else posted
        return Turn(action.kind, action.stage, posted, *self._progress.advance(action, times))

    def _add_turn(self, turn: Turn) -> None:
        stage = self.stages[turn.stage]
        if turn.gathered == "flat":
            self._add(stage.copying)
        passes = self._pipeline.passes(turn.stage, "all" if turn.gathered == "flat" else turn.gathered)
        posted = turn.posted
        messages = [*self._messages(posted.before)], [*self._messages(posted.after)]
        begun = {turn.stage} if turn.begun else set[int]()
        self._add(getattr(passes, pass_name(Action(turn.stage, turn.kind), begun)), messages)
        if turn.ended:
            start = 2 * len(self.lifetimes.moments)
            self._add(stage.reducing)
            if self.schedule.only_stages == 1:  # its own loop clears losses before, but the last has a name (`loss`)
                self.changes[TEMPORARIES][start] -= self._losses - stage.loss
                self._losses = stage.loss

    def _nominal(self, action: Action) -> Posted:
        """What a pass receives right before it, and sends right after it."""
        before, after = self.schedule.needs(action), self.schedule.feeds(action)
        forward = action.kind == "F"
        return Posted(
            (("RECV_F" if forward else "RECV_B", action.stage),) if self._elsewhere(before) else (),
            (("SEND_F" if forward else "SEND_B", action.stage),) if self._elsewhere(after) else (),
        )

    def _messages(self, posted: tuple[tuple[ActionKind, int], ...]) -> Iterator[Message]:
        """What stages hand to neighbours or are handed: each tensor; a gradient is as large as what it is of."""
        layout = self._pipeline.settings.layout
        for kind, stage in posted:
            tape = self.stages[stage].tape
            operation: Operation = "send" if kind.startswith("SEND") else "receive"
            for x in tape.arrived if kind in ("RECV_F", "SEND_B") else tape.result:
                if x.requires_grad or kind.endswith("F"):
                    size = ceil_div(x.size, layout.tp) if layout.hands_on_parts else x.size
                    yield Message(operation, "pp", self.schedule.ranks, size, x.dtype)
                    if layout.hands_on_parts and operation == "receive":
                        yield Message("all_gather", "tp", layout.tp, x.size, x.dtype)

    def _elsewhere(self, other: Action | None) -> bool:
        return other is not None and self.schedule.rank_of(other.stage) != self.rank

    def _add(self, passage: Passage, messages: tuple[list[Message], list[Message]] = ([], [])) -> None:
        lifetimes, start = self.lifetimes, len(self.lifetimes.moments)
        lifetimes.moments += passage.moments
        for line, more in zip(self.changes, passage.changes, strict=True):
            line.extend(more)
        lifetimes.loops += [loop._replace(start=loop.start + start, end=loop.end + start) for loop in passage.loops]
        lifetimes.send(messages[0], start)
        lifetimes.messages += [(now + start, message) for now, message in passage.messages]
        lifetimes.send(messages[1], len(lifetimes.moments) - 1)

    def _end(self, ending: Passage) -> None:
        """Outputs are joined, then weights updated."""
        start = 2 * len(self.lifetimes.moments)
        self._add(ending)
        named = sum(stage.named for stage in self.stages.values())
        self.changes[TEMPORARIES][start] -= named + self._losses

    def __repr__(self) -> str:
        return f"<RankStep of rank {self.rank}: {len(self.lifetimes.moments)} moments>"


class Pipeline:
    """The stages of a model under some settings, each kind of which is traced and walked once."""

    def __init__(self, model: Architecture, settings: Settings) -> None:
        self.model = model
        self.settings = settings
        self.schedule = settings.layout.pipeline(settings.micro_batches)
        self._traced: list[tuple[object, Tape]] = []
        self._passes: dict[tuple[object, ...], StagePasses] = {}

    @cached_property
    def tapes(self) -> list[Tape]:
        """What is recorded of each stage; stages that are alike share it."""
        tapes: list[Tape] = []
        for stage in range(self.schedule.stages):
            layout = self.settings.layout._replace(stage=stage)
            arrival = tapes[-1].handed_on if tapes else ()
            kind = (self.model.stage_kind(layout), layout.first, layout.last, arrival)
            alike = next((tape for other, tape in self._traced if other == kind), None)  # a hash would fix letters
            if alike is None:
                alike = trace(self.model, self.settings, layout=layout, arrival=arrival)
                self._traced.append((kind, alike))
            tapes.append(alike)
        return tapes

    def passes(self, stage: int, gathered: Gathered = "none") -> StagePasses:
        """Those of a stage, of whose weights so much is gathered before."""
        manner = StagePasses.manner(self.settings, self.schedule, stage)
        key = self.tapes[stage], *manner.values(), gathered
        if key not in self._passes:
            self._passes[key] = StagePasses(self.tapes[stage], self.settings, **manner, gathered=gathered)
        return self._passes[key]

    @cached_property
    def posted(self) -> list[list[Posted]]:
        """What each rank posts around what it computes; nothing of very many passes."""
        schedule = self.schedule
        if 2 * schedule.stages * schedule.microbatches > MOST_POSTED:
            return []
        return [[*_posted(program)] for program in schedule.programs()]

    @cached_property
    def ranks(self) -> list[PipelineRank]:
        """All of them, in order."""
        return [PipelineRank(self, rank) for rank in range(self.schedule.ranks)]

    def __repr__(self) -> str:
        return f"<Pipeline of {self.model.title}: {self.schedule.stages} stages>"
