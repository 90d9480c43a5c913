"""A pipeline, played: when each rank runs what, from the seconds of its stages' passes and of what they hand on.

Ranks follow the schedule's order; a pass starts when its rank is free and what it reads has come. Micro-batches are
alike, so from some number of them on each further period of them takes as long: a step of very many is played with few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from operator import truediv
from typing import Any, NamedTuple

import numpy as np

from costmodel.cost.costs import Costs
from costmodel.cost.lru_cache import LruCache
from costmodel.cost.peaks import StagedRank
from costmodel.cost.pipeline import PipelineRank
from costmodel.cost.stage_passes import Passage, StagePasses
from costmodel.errors import SettingError
from costmodel.graph.kernel import Message
from costmodel.performance.fusion import Fusion
from costmodel.performance.laws import KernelModel, Numbers
from costmodel.performance.parallel import (
    PlayedStep,
    Prices,
    ProgramSet,
    RankWork,
    StagedPass,
    links_taken,
    overlapped,
    overlaps,
)
from costmodel.performance.programs import Programmer, RankProgram
from costmodel.performance.queues import (
    MOST_TRACED,
    CollectiveSum,
    Player,
    QueueEvent,
    _everywhere,
    _larger,
    _lesser,
    are_close,
    is_no_less,
    too_long,
)
from costmodel.performance.work import StepPhase, Task, work_of
from costmodel.symbolic.sizes import ceil_div
from costmodel.training.schedules import Action, ActionKind, Schedule
from costmodel.training.settings import Settings
from costmodel.training.stacks import Stack

PassSeconds = Mapping[tuple[int, str], Numbers]
"""Seconds of each pass of each stage."""
WHOLE = ("gpipe", "looped-bfs")
"""Schedules that run a stage on all micro-batches before another."""
MOST_TRIES = 5
"""How often more micro-batches are played where periods differ yet."""


class StagePass(NamedTuple):
    """A pass of a stage on a rank, from when to when [s]."""

    rank: int
    action: Action
    start: float
    end: float


def ends_of(schedule: Schedule, passes: PassSeconds, handing: Numbers) -> list[Numbers]:
    """When each rank is done with its last pass [s]. handing: seconds that a result takes to the next rank.

    Few micro-batches are played, and those after them by what the last period of them took, unless that is less than a
    rank has to do in it, which then has work left over from pass to pass. Schedules that run a stage on all
    micro-batches before another need none, see `_ends_of_whole`.
    """
    if schedule.name in WHOLE:
        return _ends_of_whole(schedule, passes, handing)
    period = schedule.period
    first = period + schedule.microbatches % period
    for attempt in range(MOST_TRIES):
        counts = [first + n * period for n in range(3)]
        if counts[-1] >= schedule.microbatches or (shorter := _shorter(schedule, counts)) is None:
            break
        ends = [*zip(*(play_passes(each, passes, handing) for each in shorter), strict=True)]
        grown = [c - b for _, b, c in ends]
        least = [c - b for b, c in zip(*(_work_of(each, passes) for each in shorter[1:]), strict=True)]
        steady = all(are_close(each, b - a) for each, (a, b, _) in zip(grown, ends, strict=True))
        if attempt == MOST_TRIES - 1 or (steady and all(map(is_no_less, grown, least))):
            more = (schedule.microbatches - counts[-1]) / period
            return [c + more * (c - b) for _, b, c in ends]
        first += 4 * 2**attempt * period
    return play_passes(schedule, passes, handing)


def _ends_of_whole(schedule: Schedule, passes: PassSeconds, handing: Numbers) -> list[Numbers]:
    """The same of a schedule that runs a stage on all micro-batches before another.

    What a stage ends with is the longest way to it. A way comes to some stage of the same direction with its first
    micro-batch, when that is there and its rank is free, and goes on from stage to stage; all other micro-batches wait
    at the slowest stage on it, since they are alike.
    """
    free: list[Numbers] = [0.0] * schedule.ranks
    for kind in ("F", "B"):
        there: Numbers = 0.0  # when what the next stage reads of its first micro-batch is there
        before = -1
        ways: list[_Way] = []
        for n in range(schedule.stages):
            stage = n if kind == "F" else schedule.stages - 1 - n
            rank, own = schedule.rank_of(stage), passes[stage, kind]
            sent = 0.0 if before < 0 or before == rank else handing
            there = _larger(free[rank], there + sent) + own
            ways = _longest([_Way(way.once + sent + own, _larger(way.slowest, own)) for way in ways], _Way(there, own))
            free[rank] = ways[0].once + (schedule.microbatches - 1) * ways[0].slowest
            for way in ways:
                free[rank] = _larger(free[rank], way.once + (schedule.microbatches - 1) * way.slowest)
            before = rank
    return free


class _Way(NamedTuple):
    """A way to the end of a stage: seconds of one micro-batch on it, and at the slowest of its stages [s]."""

    once: Numbers
    slowest: Numbers


def _longest(ways: Sequence[_Way], last: _Way) -> list[_Way]:
    """Those of which none is as long with as slow a stage, and the last."""
    kept = [last]
    for way in ways:
        if not any(_everywhere(other.once >= way.once) and _everywhere(other.slowest >= way.slowest) for other in kept):
            kept.append(way)
    return kept


def _work_of(schedule: Schedule, passes: PassSeconds) -> list[Numbers]:
    """What each rank has to do [s], of which no period has less in the long run."""
    order = _order(schedule)
    times = [[0] * len(order.kinds) for _ in range(schedule.ranks)]
    for rank, kind in zip(order.ranks, order.kind, strict=True):
        times[rank][kind] += 1
    return [sum(n * passes[kind] for n, kind in zip(own, order.kinds, strict=True)) for own in times]


def _shorter(schedule: Schedule, counts: list[int]) -> list[Schedule] | None:
    """The same with fewer micro-batches; None if it takes no such pipeline."""
    try:
        return [schedule.with_microbatches(count) for count in counts]
    except SettingError:
        return None


class _Order(NamedTuple):
    """Every pass of a step in an order in which all can be played, as columns of numbers.

    kinds: the different passes, of all micro-batches. ranks, kind, microbatch: of each pass. before: number of the pass
    that it reads from, -1 if there is none; apart: whether that is on another rank.
    """

    kinds: list[tuple[int, ActionKind]]
    ranks: list[int]
    kind: list[int]
    microbatch: list[int]
    before: list[int]
    apart: list[bool]


@lru_cache(maxsize=32)
def _order(schedule: Schedule) -> _Order:
    """Every pass of a step, each after what it reads."""
    order = _Order([], [], [], [], [], [])
    ahead = [_numbered(schedule, rank, order.kinds) for rank in range(schedule.ranks)]
    waiting = [next(own, None) for own in ahead]
    numbers = [-1] * (len(_RESULTS) * schedule.stages * schedule.microbatches)
    left = schedule.ranks
    while left:
        for rank, own in enumerate(ahead):
            turn = waiting[rank]
            while turn is not None:
                kind, microbatch, result, read, apart = turn
                if read >= 0 and numbers[read] < 0:
                    break
                numbers[result] = len(order.ranks)
                order.ranks.append(rank)
                order.kind.append(kind)
                order.microbatch.append(microbatch)
                order.before.append(-1 if read < 0 else numbers[read])
                order.apart.append(apart)
                turn = next(own, None)
                left -= turn is None
            waiting[rank] = turn
    return order


_RESULTS: dict[ActionKind, int] = {"F": 0, "B": 1, "W": 2}
"""What passes make, by number: all gradients of an input are alike, see `Action.result`."""


def _numbered(
    schedule: Schedule, rank: int, kinds: list[tuple[int, ActionKind]]
) -> Iterator[tuple[int, int, int, int, bool]]:
    """Passes of a rank: number of its kind, micro-batch, numbers of its result and of that which it reads, and whether
    that is on another rank."""

    def number(result: Action) -> int:
        return (len(_RESULTS) * result.stage + _RESULTS[result.kind]) * schedule.microbatches + result.microbatch

    for run in schedule.runs(rank):
        turns: list[tuple[int, int, int, int, bool]] = []
        for action in run.actions if run.times else ():
            if (key := (action.stage, action.kind)) not in kinds:
                kinds.append(key)
            read = schedule.needs(action)
            apart = read is not None and schedule.rank_of(read.stage) != rank
            before = -1 if read is None else number(read)
            turns.append((kinds.index(key), action.microbatch, number(action.result), before, apart))
        for later in range(0, run.times * run.step, run.step):
            for kind, microbatch, result, before, apart in turns:
                yield kind, microbatch + later, result + later, before if before < 0 else before + later, apart


def play_passes(
    schedule: Schedule, passes: PassSeconds, handing: Numbers, note: Callable[[StagePass], None] | None = None
) -> list[Numbers]:
    """The same with every micro-batch played. note: is told of each pass."""
    larger: Callable[[Numbers, Numbers], Numbers] = np.maximum
    if all(isinstance(seconds, float) for seconds in (*passes.values(), handing)):
        larger = max
    order = _order(schedule)
    seconds = [passes[kind] for kind in order.kinds]
    free: list[Numbers] = [0.0] * schedule.ranks
    ends: list[Numbers] = []
    for rank, kind, microbatch, before, apart in zip(*order[1:], strict=True):
        start = free[rank]
        if before >= 0:
            start = larger(start, ends[before] + handing if apart else ends[before])
        end = start + seconds[kind]
        free[rank] = end
        ends.append(end)
        if note is not None:
            action = Action(*order.kinds[kind], microbatch)
            note(StagePass(rank, action, float(start), float(end)))
    return free


class StageWork(ProgramSet):
    """The passes of one stage over one micro-batch, by what schedules call them.

    ways: the stage as most of its forward passes and as most of its backward passes find its sharded weights. share:
    see `Programmer`.
    """

    def __init__(
        self,
        stage: StagePasses,
        settings: Settings,
        *,
        fuse: bool,
        ways: tuple[StagePasses, StagePasses] | None = None,
        share: Callable[[int, int], Any] = truediv,
    ) -> None:
        forth, back = ways or (stage, stage)
        work = work_of(stage.tape, settings, fuse=fuse)
        self.fusions: list[Fusion] = work.fusions
        self.micro_batches = settings.micro_batches
        programmer = Programmer(stage.tape.layout, work.tasks, self.micro_batches, _never, share)

        def program(passage: Passage, *phases: str, tasks: Callable[[Task], bool] = lambda task: True) -> RankProgram:
            return programmer.program(passage.moments, passage.loops, passage.messages, phases=phases, tasks=tasks)

        backward = ("backward", "recompute")
        programs = {"F": program(forth.later_forward, "forward", "loss"), "B": program(back.later, *backward)}
        if stage.inputs.moments:
            programs["I"] = program(stage.inputs, *backward, tasks=lambda task: not _of_weights(task))
            programs["W"] = program(stage.later_weights, *backward, tasks=_of_weights)
        super().__init__(programmer.tasks, programs)
        self.overlaps = overlaps(stage.tape)

    def busy(self, kernel_seconds: Sequence[Numbers]) -> Numbers:
        """What it has to do for one micro-batch, from what each task's kernel takes [s]."""
        every = zip(self.tasks, kernel_seconds, strict=True)
        return sum(task.times * own for task, own in every) / self.micro_batches

    def passes(self, model: KernelModel, kernel_seconds: Sequence[Numbers], prices: Prices) -> dict[str, Player]:
        """Each pass by itself, as it was played; a stage that has no gradients of inputs makes all with weights'."""
        players: dict[str, Player] = {}
        for name in self.programs:
            players[name] = Player(prices, model.launch_seconds)
            self.play(players[name], name, model, np.array(kernel_seconds))
            players[name].end()
            if model.stack.experts_beside:
                players[name].send_beside("ep", self.micro_batches)
        return {"I": Player(prices), "W": players["B"], **players}


def _never(*_: object) -> bool:
    """No collective of a pass is after the last micro-batch alone."""
    return False


def _of_weights(task: Task) -> bool:
    return "weight" in task.kernel.name or "bias" in task.kernel.name


class PipelineWork:
    """What the ranks of a pipeline ask of their devices in a step, stages that are alike once.

    ranks: all of them. shown: the one that has most to do; tasks: its own. kinds: stages that differ. blocking_sends:
    whether a rank waits until what it hands on is there. share: see `Programmer`.
    """

    def __init__(
        self,
        ranks: Sequence[PipelineRank | StagedRank],
        busy: Callable[[StageWork], Numbers],
        *,
        fuse: bool,
        known: LruCache[StageWork] | None = None,
        share: Callable[[int, int], Any] = truediv,
    ) -> None:
        """busy: what a stage has to do for one micro-batch [s], by which a rank is shown.

        known: stages of other pipelines, by their passes and how many micro-batches there are, of which the first adds
        no gradients up.
        """
        self.ranks = sorted(ranks, key=lambda rank: rank.rank)
        self.schedule, self.settings = self.ranks[0].schedule, self.ranks[0].settings
        self.blocking_sends = self.settings.layout.runtime != "torch" and self.settings.layout.vpp == 1
        alike = LruCache[StageWork](self.schedule.stages) if known is None else known
        self.stages: dict[int, StageWork] = {}
        for rank in self.ranks:
            for stage, passes in rank.stages.items():
                ways = None
                if passes.sharded:
                    ways = rank.usual(stage, "F"), rank.usual(stage, "B")
                make = partial(StageWork, passes, self.settings, fuse=fuse, ways=ways, share=share)
                self.stages[stage] = alike.of((passes, ways, self.schedule.microbatches), make)
        self.kinds = [*dict.fromkeys(self.stages.values())]
        self.shown = self.busiest({work: busy(work) for work in self.kinds})
        self._endings: dict[tuple[StageWork, ...], ProgramSet] = {}
        self._share = share

    def busiest(self, busy: Mapping[StageWork, Numbers]) -> PipelineRank | StagedRank:
        """The rank that has most to do, by what each stage has for one micro-batch [s]."""
        return max(self.ranks, key=lambda rank: sum(busy[self.stages[stage]] for stage in rank.stages))

    @property
    def tasks(self) -> list[Task]:
        """Of the rank that is shown."""
        return [task for stage in self.shown.stages for task in self.stages[stage].tasks]

    @property
    def fusions(self) -> list[Fusion]:
        """Of the rank that is shown."""
        return [fusion for stage in self.shown.stages for fusion in self.stages[stage].fusions]

    def step(self, model: KernelModel, prices: Prices) -> tuple[list[Numbers], PlayedStep]:
        """Seconds of each task's kernel of the rank that is shown, and the step as it was played."""
        seconds = {work: work.kernel_seconds(model) for work in self.kinds}
        players = {work: work.passes(model, own, prices) for work, own in seconds.items()}
        endings = [self.ending(rank, model, prices) for rank in self.ranks]
        kernel_seconds = [each for stage in self.shown.stages for each in seconds[self.stages[stage]]]
        return kernel_seconds, self.played(players, endings, prices, model.stack)

    def played(
        self,
        players: Mapping[StageWork, Mapping[str, Player]],
        endings: Sequence[Player],
        prices: Prices,
        stack: Stack,
    ) -> PlayedStep:
        """The step, from each pass of each stage and each rank's ending, as they were played by themselves."""
        handed = [(message, prices(message)) for message in self.handed(stack)]
        handing = sum((_plain(price.seconds) for _, price in handed), 0.0)
        ended = [self._ended(rank, players, ending, stack) for rank, ending in zip(self.ranks, endings, strict=True)]
        seconds = [each.seconds for each in ended]
        whole = self._whole(players, seconds, handing)
        ending = ended[self.ranks.index(self.shown)]
        phases, sums = dict(ending.phases), [*ending.sums]
        for (stage, kind), times in self._counts().items():
            player = players[self.stages[stage]][kind]
            for phase, each in player.phase_seconds.items():
                phases[phase] = phases.get(phase, 0.0) + times * each
            sums += [_times(own, times) for own in player.sums.values()]
        alone = whole if np.ndim(whole) or not handing else self._whole(players, seconds, 0.0)
        waiting = whole - sum(phases.values())
        sent, held_up = self._sent(), whole - alone
        for message, price in handed:  # what the sends of other ranks hold a rank up is a wait for these ranks
            exposed = _lesser(held_up, sent * price.seconds)
            sums.append(CollectiveSum("forward", "stages", message, price, sent, exposed))
            held_up = held_up - exposed
            waiting = waiting - exposed
        return PlayedStep(whole, phases, sums, waiting, ending.optional)

    def _ended(
        self,
        rank: PipelineRank | StagedRank,
        players: Mapping[StageWork, Mapping[str, Player]],
        ending: Player,
        stack: Stack,
    ) -> PlayedStep:
        """A rank's ending, with what its runtime sends beside its last backward and next forward passes."""
        phases, own = dict(ending.phase_seconds), [self.stages[stage] for stage in rank.stages]
        cover: dict[StepPhase, Numbers] = {}
        if own[0].overlaps and stack.sums_beside and not stack.blocking:
            kinds: dict[StepPhase, str] = {"forward": "F", "backward": "B"}
            links = [each.price.queue for each in ending.sums.values() if each.message.axis == "dp"]
            for phase, kind in kinds.items():
                passes = [players[work][kind] for work in own]
                free = [each.device - links_taken([*each.sums.values()], links) for each in passes]
                cover[phase] = np.maximum(sum(free), 0.0)
        saved, sums = overlapped(phases, [*ending.sums.values()], cover)
        return PlayedStep(ending.device - saved, phases, sums, optional=saved)

    def trace(self, model: KernelModel, prices: Prices, events: list[QueueEvent]) -> None:
        """Adds each pass of each rank to events, and its update. Raises SettingError where there are too many."""
        if 2 * self.schedule.stages * self.schedule.microbatches > MOST_TRACED:
            raise too_long()
        players = {work: work.passes(model, work.kernel_seconds(model), prices) for work in self.kinds}
        handing = sum((float(prices(message).seconds) for message in self.handed(model.stack)), 0.0)

        def note(each: StagePass) -> None:
            phase: StepPhase = "forward" if each.action.kind == "F" else "backward"
            events.append(QueueEvent("device", str(each.action), phase, each.start, each.end, each.rank))

        passes, beside = self._handing_on(self.passes(players), handing)
        ends = play_passes(self.schedule, passes, beside, note)
        for rank, end in zip(self.ranks, ends, strict=True):
            ending = self._ended(rank, players, self.ending(rank, model, prices), model.stack).seconds
            events.append(QueueEvent("device", "update", "update", float(end), float(end + ending), rank.rank))

    def passes(self, players: Mapping[StageWork, Mapping[str, Player]]) -> dict[tuple[int, str], Numbers]:
        """Seconds of each pass of each stage."""
        every = ((stage, kind, player) for stage, work in self.stages.items() for kind, player in players[work].items())
        return {(stage, kind): _plain(player.device) for stage, kind, player in every}

    def _whole(
        self, players: Mapping[StageWork, Mapping[str, Player]], endings: Sequence[Numbers], handing: Numbers
    ) -> Numbers:
        """Seconds of the step: of the rank that is done last. endings: of each rank after its passes."""
        whole: Numbers = 0.0
        passes, beside = self._handing_on(self.passes(players), handing)
        for end, ending in zip(ends_of(self.schedule, passes, beside), endings, strict=True):
            whole = np.maximum(whole, end + ending)
        return whole

    def _handing_on(self, passes: PassSeconds, handing: Numbers) -> tuple[PassSeconds, Numbers]:
        """Passes, and what handing on takes beside them: nothing if the rank waits for it, which is then of the pass.

        Source: Megatron-LM, ``megatron/p2p_communication.py``, and Megatron-Core without ``overlap_p2p_comm``, which
        interleaved stages alone have; DeepSpeed, runtime/pipe/p2p.py.
        """
        if not self.blocking_sends:
            return passes, handing
        last = self.schedule.stages - 1
        longer: dict[tuple[int, str], Numbers] = {}
        for key, seconds in passes.items():
            stage, kind = key
            hands = stage < last if kind == "F" else stage > 0
            longer[key] = seconds + handing if hands else seconds
        return longer, 0.0

    def _counts(self) -> dict[tuple[int, str], int]:
        """How often the rank that is shown runs each pass of its stages."""
        counts: dict[tuple[int, str], int] = {}
        for run in self.schedule.runs(self.shown.rank):
            for action in run.actions:
                kind = action.stage, action.kind
                counts[kind] = counts.get(kind, 0) + run.times
        return counts

    def handed(self, stack: Stack) -> list[Message]:
        """What a stage hands to the next, of the first one that is on another rank; none if none is.

        Where each rank of tp hands on its own part, it is that, and what gathers parts there: with DeepSpeed, and of
        Megatron's stacks with `scatter_gather` (Narayanan et al. 2021, §4.1; ``megatron/p2p_communication.py``).
        """
        layout = self.settings.layout
        scatters = stack.scatter_gather and layout.runtime == "megatron" and layout.tp > 1 and not layout.sp
        stages = {stage: passes for rank in self.ranks for stage, passes in rank.stages.items()}
        for stage, passes in sorted(stages.items()):
            if stage + 1 < self.schedule.stages and self._apart(stage, stage + 1):
                result = passes.tape.result[0].storage
                whole = Message("send", "pp", self.schedule.ranks, result.elements, result.dtype)
                if not (scatters or layout.hands_on_parts):
                    return [whole]
                part = whole._replace(elements=ceil_div(result.elements, layout.tp))
                return [part, Message("all_gather", "tp", layout.tp, result.elements, result.dtype)]
        return []

    def _apart(self, stage: int, other: int) -> bool:
        return self.schedule.rank_of(stage) != self.schedule.rank_of(other)

    def _sent(self) -> int:
        """How often the rank that is shown hands on a result or a gradient in a step."""
        last = self.schedule.stages - 1
        forth = sum(stage < last and self._apart(stage, stage + 1) for stage in self.shown.stages)
        back = sum(stage > 0 and self._apart(stage, stage - 1) for stage in self.shown.stages)
        return self.schedule.microbatches * (forth + back)

    def ending(self, rank: PipelineRank | StagedRank, model: KernelModel, prices: Prices) -> Player:
        """What a rank does after its passes: gradients are summed over ranks, and weights updated."""
        ending, player = self.ending_of(rank), Player(prices, model.launch_seconds)
        for name in ending.programs:
            ending.play(player, name, model, np.array(ending.kernel_seconds(model)))
        player.end()
        return player

    def ending_of(self, rank: PipelineRank | StagedRank) -> ProgramSet:
        """What that is, on any machine."""
        key = tuple(self.stages[stage] for stage in rank.stages)
        if key not in self._endings:
            tasks = [task for work in key for task in work.tasks if task.phase == "update"]
            programmer = Programmer(rank.tapes[0].layout, tasks, 1, _never, self._share)
            programs = {
                f"sums {stage}": programmer.program(sums.moments, sums.loops, sums.messages, phases=())
                for stage, passes in rank.stages.items()
                if passes.sharded
                for sums in [passes.reducing]
            }
            update = rank.ending
            programs["update"] = programmer.program(
                update.moments, update.loops, update.messages, phases=("optimizer",)
            )
            self._endings[key] = ProgramSet(programmer.tasks, programs)
        return self._endings[key]


def step_of(
    ranks: Sequence[Costs],
    busy: Callable[[StageWork], Numbers],
    *,
    fuse: bool,
    share: Callable[[int, int], Any] = truediv,
) -> RankWork | StagedPass | PipelineWork:
    """What a rank of a layout does in a step, or all of a pipeline's; ranks: in order. Others: see `PipelineWork`."""
    places = [rank.place for rank in ranks if rank.place is not None]
    if places:
        return PipelineWork(places, busy, fuse=fuse, share=share)
    if len(ranks) > 1:
        return StagedPass(ranks, fuse=fuse, share=share)
    return RankWork(ranks[0], fuse=fuse, share=share)


def _plain(seconds: Numbers) -> Numbers:
    """A number as Python has it, which is compared faster; an array as it is."""
    return seconds if np.ndim(seconds) else float(seconds)


def _times(own: CollectiveSum, times: int) -> CollectiveSum:
    return CollectiveSum(own.phase, own.layer, own.message, own.price, times * own.times, times * own.exposed)
