"""Peaks of very many layouts of one model: what layouts have in common is worked out once, and no timeline is kept.

A pipeline's ranks run a few kinds of stages, whose passes are the same under every schedule, number of micro-batches
and number of copies. Of a pass only two numbers matter to a peak: what it leaves alive, and the most alive within it.

These and other numbers are kept, what is recorded of stages and the passes over it while they are asked for now and
then: one who asks for the peaks of layouts that compute alike one after the other has each recorded once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from costmodel.architectures.trace import trace
from costmodel.cost.allocator import exactly
from costmodel.cost.call_memory import CallMemory
from costmodel.cost.costs import Costs
from costmodel.cost.liveness import Course, Lifetimes, MomentLoop
from costmodel.cost.lru_cache import Kept, LruCache
from costmodel.cost.persistent import ON_HOST, gradient_bytes, persistent_bytes, runtime_buffers
from costmodel.cost.rank_course import LET_GO, RankCourse, StageTurn
from costmodel.cost.rows import kept_of
from costmodel.cost.runtimes import rank_of
from costmodel.cost.sharding import Gathered
from costmodel.cost.stage_passes import Passage, StagePasses, step_ending
from costmodel.errors import CostModelError
from costmodel.graph.call import Call
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import RoundLayout
from costmodel.training.dtypes import size_bytes
from costmodel.training.layout import ContextKind, Layout
from costmodel.training.schedules import ActionKind, Schedule
from costmodel.training.settings import Settings

if TYPE_CHECKING:
    from costmodel.architectures.base import Architecture

PassesKept = TypeVar("PassesKept", StagePasses, Passage)
TURNS_TAKEN = ("1f1b", "interleaved-1f1b")
"""Schedules in whose steady state a pass forward and one backward take turns."""
MOST_TAPES = 256
"""Stages of which what is recorded is kept."""
MOST_PASSES = 256
"""Passes over stages, and endings of ranks, that are kept."""


class Extent(NamedTuple):
    """Of a stretch of a step what it leaves alive, and the most that is alive within it, beside what was [bytes]."""

    net: int
    high: int

    @classmethod
    def of(cls, changes: Course, loops: list[MomentLoop]) -> Extent:
        """That of moments, from what is taken and given back around each."""
        lifetimes = Lifetimes()
        lifetimes.loops = loops
        (levels,) = lifetimes.levels(((*map(sum, zip(*changes, strict=True)), 0, 0),))
        return cls(levels[-1], max(levels[:-1], default=0))

    @classmethod
    def of_several(cls, extents: Iterable[Extent]) -> Extent:
        """That of stretches one after the other."""
        alive = high = 0
        for extent in extents:
            high = max(high, alive + extent.high)
            alive += extent.net
        return cls(alive, high)

    def repeated(self, times: int) -> Extent:
        """That of the same stretch so many times."""
        return Extent(times * self.net, self.high + max(0, (times - 1) * self.net))


class Held(NamedTuple):
    """What weights take: throughout, and with all that their gradients have in the end [bytes].

    shared: of that what stages of a rank have together, see `RankRuntime.buffers`.
    """

    throughout: int
    least: int
    shared: Mapping[Hashable, int]

    @classmethod
    def of_rank(cls, stages: Sequence[Held]) -> Held:
        """That of all stages of a rank."""
        shared = {name: size for stage in stages for name, size in stage.shared.items()}
        twice = sum(sum(stage.shared.values()) for stage in stages) - sum(shared.values())
        return cls(
            sum(stage.throughout for stage in stages) - twice, sum(stage.least for stage in stages) - twice, shared
        )


class StageExtents(dict[str, Extent]):
    """What each of `rank_course.PASSES` of a stage takes, worked out when it is first asked for.

    recall: the passes, which may have to be made again. Others: see `StagePasses`.
    """

    def __init__(self, recall: Callable[[], StagePasses]) -> None:
        super().__init__()
        self._recall = recall
        passes = recall()
        self.named, self.loss, self.buffers = passes.named, passes.loss, passes.buffers

    @property
    def passes(self) -> StagePasses:
        """All of what is there and sent meanwhile."""
        return self._recall()

    def __missing__(self, name: str) -> Extent:
        passage = getattr(self.passes, name)
        self[name] = extent = Extent.of(passage.changes, passage.loops)
        return extent


class StageKey(NamedTuple):
    """What stages have in common of which the same is recorded.

    common: a number for what of batch, checkpoint and layout matters to that.
    """

    common: int
    kind: object
    first: bool
    last: bool
    arrival: tuple[RoundLayout, ...]


@dataclass(frozen=True, eq=False)
class RecordedStage:
    """A stage, one for all that cost the same, and how it is recorded: under which settings, on which layout.

    record: a number for its `StageKey`. arrival: what comes from the stage before.
    """

    record: int
    settings: Settings
    layout: Layout
    arrival: tuple[RoundLayout, ...]


class Stages(Sequence[RecordedStage]):
    """Those of a pipeline, each told from others once it is asked for: what comes to it is what the one before records.

    tell: what tells a stage, by its number and the one before it.
    """

    def __init__(self, count: int, tell: Callable[[int, RecordedStage | None], RecordedStage]) -> None:
        self._count = count
        self._tell = tell
        self._known: list[RecordedStage] = []

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, stage: Any) -> Any:
        for number in range(len(self._known), range(self._count)[stage] + 1):
            self._known.append(self._tell(number, self._known[-1] if number else None))
        return self._known[stage]

    def __repr__(self) -> str:
        return f"<Stages: {len(self._known)} of {self._count} told>"


@dataclass(frozen=True)
class StagedRank:
    """One rank of a pipeline, without its timeline. stages: passes of each. key: alike for ranks that end alike.

    usual: the passes of a stage as most of its actions of a kind find its weights.
    """

    rank: int
    schedule: Schedule
    settings: Settings
    stages: dict[int, StagePasses]
    key: Hashable
    end: Callable[[], Passage]
    usual: Callable[[int, ActionKind], StagePasses]

    @property
    def tapes(self) -> tuple[Tape, ...]:
        """What is recorded of its stages."""
        return tuple(stage.tape for stage in self.stages.values())

    @property
    def ending(self) -> Passage:
        """What it does after all passes."""
        return self.end()


class Recording:
    """A tape, which is forgotten with the last of its copies that are in use. memory: of its calls, for all walks."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.memory: dict[Call, CallMemory] = {}

    @property
    def copied(self) -> Tape:
        """A copy, which owns this."""
        other = copy(self.tape)
        other.owner = self
        return other

    def __del__(self) -> None:
        self.tape.forget()

    def __repr__(self) -> str:
        return f"<Recording of {self.tape}>"


class RankPeaks:
    """Peaks of the heaviest ranks of one model, under settings that differ in some alone.

    They may differ in layout, batch, micro-batches and checkpoint: `LAYOUT_NAMES`, batch, accumulate and checkpoint.
    """

    def __init__(self, model: Architecture) -> None:
        self.model = model
        self._known: dict[Hashable, object] = {}
        self._tapes: LruCache[Tape] = LruCache(MOST_TAPES)
        self._passages: LruCache[StagePasses | Passage] = LruCache(MOST_PASSES)
        self._last: Costs | None = None

    def peak(self, settings: Settings, room: int | None = None) -> int:
        """The most alive at once on the heaviest rank, as `Costs.memory.peak` says [bytes]. Raises CostModelError.

        room: what there is; of a peak above that only so much is worked out as shows that it is.
        """
        layout = settings.layout
        if layout.pp == 1:
            return self._once(("peak", *_rank_key(settings)), lambda: int(self.alone(settings).timeline.peak))
        schedule = layout.pipeline(settings.micro_batches)
        stages = self._stages(settings, schedule)
        if layout.shards > 1 and room is not None and (least := self._least_sharded(settings)) > room:
            return least
        peak = 0
        for rank in range(schedule.ranks):
            if (
                room is not None
                and layout.shards == 1
                and (least := self._least_of_rank(settings, schedule, rank, stages)) > room
            ):
                return least
            peak = max(peak, self._peak_of_rank(settings, schedule, rank, stages))
            if room is not None and peak > room:
                break
        return peak

    def held(self, settings: Settings) -> Held:
        """What the heaviest rank's weights take, whatever it computes; of a pipeline throughout that of the first rank.

        Raises CostModelError.
        """
        like = _with_like_weights(settings)
        if settings.layout.pp == 1:
            return self._once(("held", *_rank_key(like)), lambda: _held(self.alone(like).tape, like))
        schedule = settings.layout.pipeline(settings.micro_batches)
        settings = self._once(("like", like), lambda: self._without_sequences(like, schedule))
        stages = self._stages(settings, schedule)
        ranks = [tuple(stages[stage] for stage in schedule.stages_of(rank)) for rank in range(schedule.ranks)]
        different = [self._held(settings, own) for own in dict.fromkeys(ranks)]
        return different[0]._replace(least=max(rank.least for rank in different))

    def _without_sequences(self, settings: Settings, schedule: Schedule) -> Settings:
        """Settings of which fewer differ yet, whose ranks have the same weights: those of a sequence have others."""
        layout = settings.layout
        torch, copies = layout.runtime == "torch", layout.cp
        fsdp, dp = (copies * layout.fsdp, layout.dp) if torch else (layout.fsdp, copies * layout.dp)
        zero = 0 if torch and layout.zero > 1 else layout.zero
        experts = 1 if torch else layout.ep * layout.expert_tp
        dp = dp if zero else min(dp, 2 * experts)  # whole copies are alike
        reshard = layout.reshard or settings.training  # which matters to what passes drop
        try:
            plain = replace(settings, cp=1, fsdp=fsdp, dp=dp, zero=zero, reshard=reshard)
            masked = any(self._tape(stage).buffers for stage in self._stages(plain, schedule))
        except CostModelError:
            return settings
        return settings if masked else plain

    def floor(self, settings: Settings) -> int:
        """What larger micro-batches of as many samples a step take too, at least [bytes]. Raises CostModelError.

        Of a pipeline the most alive within one pass of its first stage: how many are in flight falls with the number of
        micro-batches.
        """
        layout = settings.layout
        if layout.pp == 1:
            return self.peak(replace(settings, accumulate=1))
        if layout.shards > 1:
            return 0
        schedule = layout.pipeline(settings.micro_batches)
        first = self._stages(settings, schedule)[0]
        return self._held(settings, [first]).throughout + _once_through(self._passes(settings, schedule, 0, first))

    def _once(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]  # type: ignore[return-value]

    def alone(self, settings: Settings) -> Costs:
        """The one kind of rank of a layout without stages, kept until another is asked for. Raises CostModelError."""
        if self._last is None or self._last.settings is not settings:
            last, self._last = self._last, None
            if last is not None:
                last.tape.forget()
            self._last = Costs(self.model, settings, trace(self.model, settings))
        return self._last

    def _stages(self, settings: Settings, schedule: Schedule) -> Stages:
        """Those of a pipeline, which others have in common with it. Raises CostModelError, as each of them may."""
        layout = settings.layout
        alike = _alike(layout)._replace(pp=2, vpp=1, schedule="1f1b")
        if layout.fsdp > 2:  # how many ranks these are matters to whether it is legal, and to what is made of a tape
            self._once(("legal", alike), lambda: self.model.local(layout) is not None)
            alike = alike._replace(fsdp=2)
        split = alike._replace(dp=1, zero=0, reshard=True)  # which say nothing of what is recorded
        common, recorded = (
            self._once(("common", settings.batch, settings.checkpoint, each), lambda: len(self._known))
            for each in (alike, split)
        )

        def tell(stage: int, before: RecordedStage | None) -> RecordedStage:
            here, arrival = layout._replace(stage=stage), () if before is None else self._tape(before).handed_on
            key = StageKey(recorded, self.model.stage_kind(here), here.first, here.last, arrival)
            record = self._once(key, lambda: len(self._known))
            return self._once((common, record), lambda: RecordedStage(record, settings, here, arrival))

        return self._once(("stages", common, schedule.stages), lambda: Stages(schedule.stages, tell))

    def _tape(self, stage: RecordedStage) -> Tape:
        """What is recorded of a stage, on its own layout. Raises CostModelError."""

        def record() -> Tape:
            return Recording(trace(self.model, stage.settings, layout=stage.layout, arrival=stage.arrival)).copied

        return _laid_out(self._tapes.of(stage.record, record), stage.layout)

    def _least_sharded(self, settings: Settings) -> int:
        """What the ranks of a pipeline of sharded weights have at least, that has most [bytes].

        Gradients of whole weights are added up over the micro-batches, and sharded after the last. Where one pass
        forward and one backward take turns they are there with the most micro-batches in flight.
        """
        schedule = settings.layout.pipeline(settings.micro_batches)
        stages = self._stages(settings, schedule)
        turns_taken = schedule.name in TURNS_TAKEN and schedule.microbatches >= 2 * schedule.ranks
        most: dict[tuple[RecordedStage, ...], int] = {}
        for rank in range(schedule.ranks):
            own = tuple(stages[stage] for stage in schedule.stages_of(rank))
            if own in most:
                continue  # an earlier rank has as many micro-batches in flight, or more
            gradients = [self._once(("gradients", key), partial(self._gradients, key, settings)) for key in own]
            throughout = self._held(settings, own).throughout
            most[own] = throughout + max(gradients)
            if turns_taken:
                kept = min(self._once(("kept", key), partial(self._kept_bytes, key)) for key in own)
                most[own] = throughout + sum(gradients) + (schedule.in_flight(rank) - 1) * kept
        return max(most.values())

    def _gradients(self, key: RecordedStage, settings: Settings) -> int:
        """Those of all weights of a stage, whole [bytes]."""
        dtype = settings.policy.gradient_dtype
        return sum(size_bytes(storage.graded * storage.times, dtype) for storage in self._tape(key).updated)

    def _kept_bytes(self, key: RecordedStage) -> int:
        """What a stage keeps of a micro-batch for backward [bytes]."""
        return sum(size for *_, size in kept_of(self._tape(key)))

    def _least_of_rank(self, settings: Settings, schedule: Schedule, rank: int, stages: Stages) -> int:
        """What a rank has with most micro-batches in flight, at least [bytes]."""
        own = {stage: self._passes(settings, schedule, stage, stages[stage]) for stage in schedule.stages_of(rank)}
        throughout = self._held(settings, [stages[stage] for stage in own]).throughout
        kept = min(extents["forward"].net - extents.named for extents in own.values())
        ahead = (min(schedule.in_flight(rank), schedule.microbatches * len(own)) - 1) * max(0, kept)
        return throughout + ahead + min(map(_once_through, own.values()))

    def _peak_of_rank(self, settings: Settings, schedule: Schedule, rank: int, stages: Stages) -> int:
        course = self._course(settings, schedule, rank)
        own = {stage: self._passes(settings, schedule, stage, stages[stage]) for stage in schedule.stages_of(rank)}
        m = schedule.microbatches
        throughout = self._held(settings, [stages[stage] for stage in own]).throughout
        throughout += m * sum(extents.buffers for extents in own.values())

        def extent(turn: StageTurn) -> Extent:
            if turn.name == LET_GO:
                let_go = (m - 1) * own[turn.stage].loss
                return Extent(-let_go, -let_go)
            extents = own[turn.stage]
            if turn.gathered != "none":
                extents = self._passes(settings, schedule, turn.stage, stages[turn.stage], turn.gathered)
            return extents[turn.name]

        run = Extent.of_several(Extent.of_several(map(extent, turns)).repeated(times) for turns, times in course.turns)
        kept_losses = 1 if any(turn.name == LET_GO for turns, _ in course.turns for turn in turns) else m
        let_go = sum(extents.named + kept_losses * extents.loss for extents in own.values())
        ended = self._staged(settings, schedule, rank, stages)
        ending = self._once(("extent", ended.key), lambda: Extent.of(ended.ending.changes, ended.ending.loops))
        return throughout + max(run.high, run.net - let_go + ending.high)

    def _course(self, settings: Settings, schedule: Schedule, rank: int) -> RankCourse:
        """What a rank does in a step."""
        layout = settings.layout
        sharded = layout.shards > 1
        key = ("course", schedule, rank, sharded, sharded and layout.reshard)
        return self._once(key, lambda: RankCourse.of(schedule, rank, layout))

    def _passes(
        self, settings: Settings, schedule: Schedule, stage: int, key: RecordedStage, gathered: Gathered = "none"
    ) -> StageExtents:
        """A stage's passes, of whose weights so much is gathered before, and what each takes."""
        manner = StagePasses.manner(settings, schedule, stage)
        sharded = settings.layout.shards > 1
        copies = (settings.layout.dp, settings.layout.fsdp) if sharded else ()
        name = (key, *copies, *manner.values(), gathered if sharded else "none")

        def make() -> StagePasses:
            tape = self._on_copies(settings, key) if sharded else self._tape(key)
            own: Recording = tape.owner  # type: ignore[assignment]
            return StagePasses(tape, settings, **manner, gathered=gathered if sharded else "none", memory=own.memory)

        return self._once(name, lambda: StageExtents(lambda: self._kept(name, make)))

    def _passes_on_copies(
        self, settings: Settings, schedule: Schedule, stage: int, key: RecordedStage, gathered: Gathered = "none"
    ) -> StagePasses:
        """A stage's passes, whose tape knows how many copies of the model there are."""
        extents = self._passes(settings, schedule, stage, key, gathered)
        if settings.layout.shards > 1:
            return extents.passes
        manner = StagePasses.manner(settings, schedule, stage).values()
        name = ("copied", key, *manner, settings.layout.dp)
        return self._kept(name, lambda: extents.passes.on_copies(self._on_copies(settings, key)))

    def _kept(self, name: Hashable, make: Callable[[], PassesKept]) -> PassesKept:
        """Passes or an ending, made if they are not kept."""
        return self._passages.of(name, make)  # type: ignore[return-value]

    def _on_copies(self, settings: Settings, key: RecordedStage) -> Tape:
        """The tape of a stage on as many copies of the model, and shares of its weights, as there are."""
        tape, layout = self._tape(key), settings.layout
        return _laid_out(tape, tape.layout._replace(dp=layout.dp, fsdp=layout.fsdp))

    def _held(self, settings: Settings, stages: Sequence[RecordedStage]) -> Held:
        """What a rank's weights take, of these stages."""

        def held(stage: RecordedStage) -> Held:
            copies = settings.layout.dp, settings.layout.fsdp
            return self._once(("held", stage, copies), lambda: _held(self._on_copies(settings, stage), settings))

        return Held.of_rank([held(stage) for stage in stages])

    def staged(self, settings: Settings) -> list[StagedRank]:
        """The ranks of a pipeline. Raises CostModelError."""
        schedule = settings.layout.pipeline(settings.micro_batches)
        stages = self._stages(settings, schedule)
        return [self._staged(settings, schedule, rank, stages) for rank in range(schedule.ranks)]

    def _staged(self, settings: Settings, schedule: Schedule, rank: int, stages: Stages) -> StagedRank:
        own = schedule.stages_of(rank)
        keys = [stages[stage] for stage in own]
        passes = {stage: self._passes_on_copies(settings, schedule, stage, stages[stage]) for stage in own}

        def ending() -> Passage:
            runtimes = [rank_of(self._on_copies(settings, key), settings) for key in keys]
            return step_ending([*zip(passes.values(), runtimes, strict=True)], settings)

        manner = StagePasses.manner(settings, schedule, own[-1])
        copies = settings.layout.dp, settings.layout.fsdp
        key = ("ending", *keys, *copies, settings.micro_batches if manner["kept"] else 0)

        def usual(stage: int, kind: ActionKind) -> StagePasses:
            gathered = self._course(settings, schedule, rank).progress.usual(stage, kind)
            return self._passes_on_copies(settings, schedule, stage, stages[stage], gathered)

        return StagedRank(rank, schedule, settings, passes, key, lambda: self._kept(key, ending), usual)

    def __repr__(self) -> str:
        return f"<RankPeaks of {self.model.title}>"


def _laid_out(tape: Tape, layout: Layout) -> Tape:
    """The same recorded on another layout."""
    other = copy(tape)
    other.layout = layout
    return other


def _once_through(extents: StageExtents) -> int:
    """The most alive while one micro-batch goes through a stage and back."""
    forward, backward = extents["forward"], extents["first"]
    return max(forward.high, forward.net + backward.high)


def _rank_key(settings: Settings) -> tuple[Hashable, ...]:
    """What matters to a rank that has all blocks."""
    return settings.batch, settings.checkpoint, min(settings.micro_batches, 2), _alike(settings.layout)


def _with_like_weights(settings: Settings) -> Settings:
    """Settings of which few differ for all whose ranks have the same weights: how tokens are split changes none.

    Megatron takes experts on ranks of tp with sp alone. Ulysses' attention may have a mask that others lack.
    """
    ring: ContextKind = "ring" if settings.cp_kind == "all-gather" and settings.cp > 1 else settings.cp_kind
    sp = settings.sp and settings.runtime == "megatron"
    checkpoint = "none" if settings.pp > 1 else settings.checkpoint  # else tapes are those of peaks too
    values = {"sp": sp, "loss_parallel": False, "cp_kind": ring, "checkpoint": checkpoint}
    differ = any(getattr(settings, name) != value for name, value in values.items())
    return replace(settings, **values) if differ else settings


def _alike(layout: Layout) -> Layout:
    """A layout that costs each rank the same memory, but for what other runtimes split over copies of the model."""
    copies_split = layout.pp == 1 and (layout.runtime != "torch" or layout.zero)
    return layout if copies_split else layout._replace(dp=min(layout.dp, 2))


def _held(tape: Tape, settings: Settings) -> Held:
    """What a tape's weights take."""
    lines = persistent_bytes([tape], settings, exactly)
    staged = tape.layout.pp > 1
    throughout = sum(size for line, size in lines.items() if line not in (*ON_HOST, *(("inputs",) if staged else ())))
    runtime = rank_of(tape, settings)
    earlier = runtime.lasting_bytes if runtime is not None and runtime.drops else 0
    least = throughout + max(earlier, gradient_bytes(tape, settings, exactly))
    return Held(throughout + earlier, least, runtime_buffers(tape, settings))
