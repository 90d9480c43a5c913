"""A pipeline's schedule: in which order each rank runs its stages on the micro-batches of a step, and what follows.

A model is cut into stages. A rank has one of them or several, in a loop (stage s on rank s mod P) or, with two, in the
shape of a V (rank 0 has the first and the last). A schedule is for each rank a list of actions, which is told by runs
of equal periods: a step of 32,768 micro-batches is a handful of them.

The orders are those of ``torch.distributed.pipelining.schedules``, which differ from the papers' here and there. Times
in units have one for a forward pass of one stage, for its input gradients and for its weight gradients, so two for a
whole backward pass; sending takes none.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, Literal, NamedTuple

from costmodel.errors import SettingError
from costmodel.training.frozen import Frozen, frozen

ScheduleName = Literal[
    "gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "interleaved-zero-bubble", "zbv-zero-bubble", "dualpipev"
]
"""Names of the schedules of a pipeline."""

ActionKind = Literal["F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD"]
"""What a rank does: a forward pass, a whole backward pass, that for inputs or that for weights alone; what it hands to
the stages beside it; sharded weights gathered and dropped; gradients summed over ranks, once a step."""


class Action(NamedTuple):
    """What a rank does at a time, to one of its stages: with one micro-batch, or with the weights of all (-1).

    overlapped: whether the next action runs beside it.
    """

    stage: int
    kind: ActionKind
    microbatch: int = -1
    overlapped: bool = False

    @property
    def result(self) -> Action:
        """What others wait for of this pass: they take no notice of whether gradients of weights are made apart."""
        return Action(self.stage, "B" if self.kind == "I" else self.kind, self.microbatch)

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}" + ("" if self.microbatch < 0 else str(self.microbatch))


class Run(NamedTuple):
    """Actions that a rank repeats, each time with the micro-batches `step` after those of the time before."""

    actions: tuple[Action, ...]
    times: int = 1
    step: int = 1

    def repetition(self, n: int) -> Iterator[Action]:
        """The actions of the time after n others."""
        for stage, kind, microbatch, overlapped in self.actions:
            yield Action(stage, kind, microbatch + n * self.step, overlapped)


MOST_GATHERED = 3
"""Stages whose weights a rank has gathered at a time: one forward, one backward, and the next.

Source: ``torch.distributed.pipelining.schedules``, ``_add_unshard_reshard``.
"""


class TimedAction(NamedTuple):
    """An action of a rank, from when to when."""

    action: Action
    start: float
    end: float


@frozen()
class Schedule(Frozen):
    """Abstract: the order of a step over `microbatches`, in a pipeline of so many ranks with so many stages each.

    Making one raises SettingError where the schedule takes no such pipeline.
    """

    name: ClassVar[ScheduleName]
    source: ClassVar[str]
    usual_stages: ClassVar[int] = 2
    """Stages that a rank has unless a user says otherwise."""
    only_stages: ClassVar[int | None] = None
    """The one count of stages that a rank may have; None: any."""
    splits: ClassVar[bool] = False
    """Whether gradients of weights are made apart from those of inputs."""
    v_shaped: ClassVar[bool] = False
    """Whether a rank has its second stage as far from the end as its first from the start."""
    ranks: int
    stages_per_rank: int
    microbatches: int
    group: int = 0
    """Micro-batches of a round, of schedules that have rounds; 0: as few as go."""

    def __post_init__(self) -> None:
        """Raise SettingError for a pipeline that this schedule does not take."""
        for field, value in (("pp", self.ranks), ("accumulate", self.microbatches)):
            if value < 1:
                raise SettingError(f"{field}={value}: use 1 or more")
        own = self.only_stages
        if (self.stages_per_rank < 1) if own is None else (self.stages_per_rank != own):
            right = "1 or more" if own is None else str(own)
            right += ", or a schedule of several such as 'interleaved-1f1b'" if own == 1 < self.stages_per_rank else ""
            raise SettingError(f"vpp={self.stages_per_rank} with schedule={self.name!r}: use {right}")
        if self.microbatches not in (near := self.nearest):
            raise SettingError(
                f"accumulate={self.microbatches}, the micro-batches of schedule={self.name!r} with pp={self.ranks} and "
                f"vpp={self.stages_per_rank}: use {' or '.join(map(str, near))}"
            )

    @property
    def nearest(self) -> tuple[int, ...]:
        """`microbatches` if this pipeline takes so many, else the counts nearest to it that it does."""
        return (self.microbatches,)

    @property
    def stages(self) -> int:
        """Stages of the whole pipeline."""
        return self.ranks * self.stages_per_rank

    @property
    def period(self) -> int:
        """Micro-batches by which two steps differ whose orders are alike but for how often they repeat themselves."""
        return 2 * self.ranks

    def with_microbatches(self, count: int) -> Schedule:
        """The order of a step over so many more or fewer, whose rounds are as large."""
        return type(self)(self.ranks, self.stages_per_rank, count)

    def rank_of(self, stage: int) -> int:
        """Rank that has a stage."""
        turn, place = divmod(stage, self.ranks)
        return self.ranks - 1 - place if self.v_shaped and turn % 2 else place

    def stages_of(self, rank: int) -> list[int]:
        """The stages of a rank, in the order of the model."""
        return [stage for stage in range(self.stages) if self.rank_of(stage) == rank]

    @abstractmethod
    def runs(self, rank: int) -> Iterator[Run]:
        """What a rank computes, in order."""

    def actions(self, rank: int) -> Iterator[Action]:
        """What a rank computes, in order, one by one."""
        for run in self.runs(rank):
            for n in range(run.times):
                yield from run.repetition(n)

    @abstractmethod
    def in_flight(self, rank: int) -> int:
        """Most micro-batches whose forward pass a rank has run and whose backward pass it has not finished.

        A micro-batch counts in each stage of the rank, until its weight gradients where these are made apart.
        """

    @property
    @abstractmethod
    def idle(self) -> int:
        """What a rank waits in a step, from the first action of any rank to the last [units]."""

    def needs(self, action: Action) -> Action | None:
        """The pass of the stage beside it that an action waits for; those that pass nothing on wait for none."""
        return self._beside(action, -1 if action.kind == "F" else 1)

    def feeds(self, action: Action) -> Action | None:
        """The pass of the stage beside it that waits for an action."""
        return self._beside(action, 1 if action.kind == "F" else -1)

    def _beside(self, action: Action, distance: int) -> Action | None:
        passed_on = action.kind in ("F", "B", "I") and 0 <= action.stage + distance < self.stages
        return action.result._replace(stage=action.stage + distance) if passed_on else None

    def timetable(self, duration: Callable[[Action], float]) -> list[list[TimedAction]]:
        """When each rank runs what, with no time between the end of a pass and its result's arrival at the next rank.

        An action that runs beside the next takes its own time before it.
        """
        ends: dict[Action, float] = {}
        ahead = [deque(self.actions(rank)) for rank in range(self.ranks)]
        timed: list[list[TimedAction]] = [[] for _ in ahead]
        while any(ahead):
            for queue, own in zip(ahead, timed, strict=True):
                while queue and ((before := self.needs(queue[0])) is None or before in ends):
                    start = max(own[-1].end if own else 0, ends[before] if before else 0)
                    action = queue.popleft()
                    own.append(TimedAction(action, start, start + duration(action)))
                    ends[action.result] = own[-1].end
        return timed

    def programs(self) -> list[list[Action]]:
        """What each rank does in order, with what it hands to others and when it gathers and drops sharded weights.

        Ranks take turns, in each of which one does what it computes next if all that it reads is there or on its way.
        A message stands in the list of its receiver from the turn in which it is sent.
        """
        ahead = [deque(self._with_weights(rank)) for rank in range(self.ranks)]
        programs: list[list[Action]] = [[] for _ in ahead]
        there: set[Action] = set()
        while any(ahead):
            for queue, own in zip(ahead, programs, strict=True):
                if not queue or any((before := self.needs(action)) and before not in there for action in queue[0]):
                    continue
                own.extend(queue[0])
                for action in queue.popleft():
                    there.add(action.result)
                    self._send(action, own, programs)
        return programs

    def _send(self, action: Action, own: list[Action], programs: list[list[Action]]) -> None:
        """Hand on what a pass has made, unless the next stage is on the same rank."""
        after = self.feeds(action)
        if after and (receiver := programs[self.rank_of(after.stage)]) is not own:
            forward = action.kind == "F"
            own.append(Action(action.stage, "SEND_F" if forward else "SEND_B", action.microbatch))
            receiver.append(Action(after.stage, "RECV_F" if forward else "RECV_B", action.microbatch))

    def gathered_ahead(self, rank: int) -> list[int]:
        """The stages of a rank whose sharded weights are gathered before its first pass, as far as there is room."""
        runs = (run.actions for run in self.runs(rank) if run.times)
        return [*dict.fromkeys(action.stage for actions in runs for action in actions)][:MOST_GATHERED]

    def _with_weights(self, rank: int) -> Iterator[tuple[Action, ...]]:
        """What a rank does at a time, with gathering the weights of the next stages that it will work on.

        What it has no room for is dropped before; gradients are summed over ranks after the last backward pass.
        """
        turns = [*_together(self.actions(rank))]
        left = dict.fromkeys(self.stages_of(rank), self.microbatches)
        gathered: list[int] = []
        for turn, ahead in zip(turns, _stages_ahead(turns), strict=True):
            soon = ahead[:MOST_GATHERED]
            yield from ((Action(stage, "RESHARD"),) for stage in gathered if stage not in soon)
            yield from ((Action(stage, "UNSHARD"),) for stage in soon if stage not in gathered)
            gathered = [stage for stage in gathered if stage in soon] + [s for s in soon if s not in gathered]
            yield turn
            for action in turn:
                left[action.stage] -= action.kind in ("B", "W")
                if action.kind in ("B", "W") and not left[action.stage]:
                    yield (Action(action.stage, "REDUCE_GRAD"),)
        yield from ((Action(stage, "RESHARD"),) for stage in gathered)


def _together(actions: Iterable[Action]) -> Iterator[tuple[Action, ...]]:
    """Actions one by one, but for those that overlap."""
    waiting: tuple[Action, ...] = ()
    for action in actions:
        waiting = (*waiting, action)
        if not action.overlapped:
            yield waiting
            waiting = ()


def _stages_ahead(turns: list[tuple[Action, ...]]) -> list[list[int]]:
    """The stages that are worked on from each turn on, those first that are soonest."""
    every: list[list[int]] = []
    ahead: list[int] = []
    for turn in reversed(turns):
        own = [action.stage for action in turn]
        ahead = own + [stage for stage in ahead if stage not in own]
        every.append(ahead)
    return every[::-1]
