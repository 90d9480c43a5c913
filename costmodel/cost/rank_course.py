"""The course of a rank of a pipeline over a step: which passes it runs, and what is there of weights at each.

A stage whose weights are sharded gathers them before a pass, unless they are there from the pass before; what that
leaves follows from the schedule alone, so that layouts share it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from costmodel.cost.sharding import Gathered
from costmodel.training.layout import Layout
from costmodel.training.schedule import Action, ActionKind, Schedule

PASSES = ("forward", "later_forward", "first", "later", "inputs", "first_weights", "later_weights")
"""What a rank does with a stage and a micro-batch: attributes of `StagePasses`."""


def pass_name(action: Action, begun: set[int]) -> str:
    """Which of `PASSES` an action is, after those of which `begun` has the stages that have gradients already."""
    known = action.stage in begun
    if action.kind == "F":
        return "later_forward" if known else "forward"
    if action.kind == "I":
        return "inputs"
    begun.add(action.stage)
    return ("later" if known else "first") + ("_weights" if action.kind == "W" else "")


class StageProgress:
    """How far a stage is in a step: what of its weights is gathered, and how many micro-batches are to go backward."""

    __slots__ = ("begun", "gathered", "left")

    def __init__(self, microbatches: int) -> None:
        self.gathered: Gathered = "none"
        self.begun = False
        self.left = microbatches


class StageState(NamedTuple):
    """Of a stage what is there of its weights, and whether it has gone backward before.

    ended: whether it does so for the last time now, and sums its gradients over ranks after that.
    """

    gathered: Gathered
    begun: bool
    ended: bool


class RankProgress:
    """How far a rank is in a step. ways: how often an action finds so much of its stage's weights gathered.

    ahead: stages whose weights are gathered before the first pass.
    """

    def __init__(self, schedule: Schedule, rank: int, layout: Layout) -> None:
        self.sharded, self.reshard = layout.shards > 1, layout.reshard
        self.ways: dict[tuple[int, ActionKind], Counter[Gathered]] = {}
        self.ahead = schedule.gathered_ahead(rank) if self.sharded else []
        self._stages = {stage: StageProgress(schedule.microbatches) for stage in schedule.stages_of(rank)}
        for stage in self.ahead:
            self._stages[stage].gathered = "flat"

    def advance(self, action: Action, times: int) -> StageState:
        """The state in which an action finds its stage, which so many times then leave behind."""
        kind, stage = action.kind, action.stage
        own = self._stages[stage]
        gathered, begun = own.gathered, own.begun
        self.ways.setdefault((stage, kind), Counter())["all" if gathered == "flat" else gathered] += times
        ended = False
        if kind in ("B", "W"):
            own.begun = True
            own.left -= times
            ended = self.sharded and not own.left
        if self.sharded:
            stays = kind != "F" or not self.reshard
            own.gathered = "none" if ended else "all" if stays else "root"
        return StageState(gathered, begun, ended)

    def usual(self, stage: int, kind: ActionKind) -> Gathered:
        """What of a stage's weights most of its actions of a kind find gathered."""
        ways = self.ways.get((stage, kind))
        return ways.most_common(1)[0][0] if ways else "none"


def alike_times(times: int, most: int = 4) -> tuple[int, ...]:
    """Times of a run of which the first, the second and the last are apart; up to so many are each by themselves."""
    return (1, 1, times - 3, 1) if times > most else (1,) * times


LET_GO = "let go"
"""Losses but the last, which a stage's own loop lets go of before it sums gradients over ranks."""


class StageTurn(NamedTuple):
    """What a rank does with a stage whose weights are gathered so far: an attribute of `StagePasses`, or `LET_GO`."""

    stage: int
    gathered: Gathered
    name: str


class Turns(NamedTuple):
    """What a rank does in order, so many times."""

    turns: tuple[StageTurn, ...]
    times: int


class RankCourse(NamedTuple):
    """What a rank does in a step, in order, and what of its stages' weights most passes find gathered."""

    turns: tuple[Turns, ...]
    progress: RankProgress

    @classmethod
    def of(cls, schedule: Schedule, rank: int, layout: Layout) -> RankCourse:
        """That of a rank of such a layout, up to its ending."""
        progress = RankProgress(schedule, rank, layout)
        groups = [Turns((StageTurn(stage, "none", "gathering"),), 1) for stage in progress.ahead]
        for run in schedule.runs(rank):
            for times in alike_times(run.times):
                turns: list[StageTurn] = []
                for action in run.actions:
                    turns += _turns_of(action, progress.advance(action, times), alone=schedule.only_stages == 1)
                if groups and groups[-1].turns == tuple(turns):
                    groups[-1] = groups[-1]._replace(times=groups[-1].times + times)
                else:
                    groups.append(Turns(tuple(turns), times))
        return cls(tuple(groups), progress)


def _turns_of(action: Action, state: StageState, *, alone: bool) -> Iterator[StageTurn]:
    """What a rank does at an action that finds its stage so. alone: whether a rank has no other stages."""
    stage, gathered = action.stage, state.gathered
    if gathered == "flat":
        yield StageTurn(stage, "none", "copying")
        gathered = "all"
    yield StageTurn(stage, gathered, pass_name(action, {stage} if state.begun else set()))
    if state.ended:
        if alone:
            yield StageTurn(stage, "none", LET_GO)
        yield StageTurn(stage, "none", "reducing")
