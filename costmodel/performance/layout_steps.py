"""Seconds of very many layouts of one model on one cluster: what they have in common is timed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from heapq import heapify, heapreplace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from costmodel.architectures.base import Architecture
from costmodel.architectures.blocks import block_kinds
from costmodel.architectures.moe import deal_out, recorded_alike
from costmodel.architectures.stages import equal_starts, own_parts
from costmodel.architectures.trace import trace
from costmodel.architectures.transformer import Transformer
from costmodel.cost.lru_cache import LruCache
from costmodel.cost.peaks import RankPeaks, Recording, StagedRank
from costmodel.cost.rows import kept_of
from costmodel.errors import CostModelError, SettingError
from costmodel.graph.call import Call
from costmodel.graph.kernel import Kernel, Message, Product
from costmodel.graph.tape import Tape
from costmodel.performance.communication import CollectiveModel
from costmodel.performance.laws import KernelModel, KernelTable, Numbers
from costmodel.performance.megatron import WARPS
from costmodel.performance.parallel import PlayedStep, Prices, RankWork
from costmodel.performance.pipelines import PipelineWork, StageWork
from costmodel.performance.queues import Player
from costmodel.performance.time import Time
from costmodel.performance.work import Task, is_once_a_step, passes_of
from costmodel.symbolic.sizes import peek
from costmodel.training.layout import Layout, Runtime
from costmodel.training.schedules import SCHEDULES
from costmodel.training.settings import Settings


class LayoutStep(NamedTuple):
    """Of a step its seconds, and those in which the slowest rank waits for collectives, or for other ranks [s]."""

    seconds: float
    exposed: float
    bubble: float

    @property
    def computed(self) -> float:
        """The rest: kernels, and the host where they wait for it [s]."""
        return self.seconds - self.exposed - self.bubble


SLACK = 1e-3
"""Share by which a bound on seconds is lower than what it is worked out from: casts between stages may differ."""


MOST_DEALT_OUT = 200
"""Passes that are kept for other numbers of ranks that experts are dealt out over."""
MOST_STAGES = 256
"""Stages of pipelines of which kernels and played passes are kept, and ranks whose endings are."""


class PipelineShapes(NamedTuple):
    """Of each of several layouts what bounds on its seconds depend on, as arrays.

    ranks: of its pipeline. stages: of each rank. blocks: of each stage, at least. splits, v_shaped: whether its
    schedule makes gradients of weights apart, and is of the shape of a V. ahead: blocks before the first stage of the
    last rank; mean_ahead: before that of a rank, on average; 0 where a split is given.
    """

    ranks: Numbers
    stages: Numbers
    blocks: Numbers
    splits: Numbers
    v_shaped: Numbers
    ahead: Numbers
    mean_ahead: Numbers

    @classmethod
    def of(cls, layouts: Iterable[Layout], blocks: int) -> PipelineShapes:
        """Those of layouts of a model of so many blocks."""
        rows = [
            (each.pp, each.vpp, _blocks_of_a_stage(blocks, each), schedule.splits, schedule.v_shaped, ahead[-1], mean)
            for each in layouts
            for schedule in [SCHEDULES[each.schedule]]
            for ahead in [[0] if each.split else equal_starts(each, blocks)[: each.pp]]
            for mean in [sum(ahead) / len(ahead)]
        ]
        columns = np.array(rows, dtype=float).reshape(len(rows), 7).T
        return cls(*columns[:5].astype(np.int64), *columns[5:])

    def chosen(self, which: Numbers) -> PipelineShapes:
        """Those of some of the layouts, by a mask or by number."""
        return PipelineShapes(*(column[which] for column in self))


class BlockCosts(NamedTuple):
    """What each block costs at least, by its kind, the cheapest kind first: how many of it there are, and the cost."""

    kinds: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, sums: Mapping[str, float], kinds: Mapping[str, int]) -> BlockCosts:
        """Those of what all blocks of each kind cost. kinds: see `block_kinds`."""
        return cls(tuple(sorted(((kinds[kind], cost / kinds[kind]) for kind, cost in sums.items()), key=itemgetter(1))))

    def least(self, blocks: Numbers) -> Numbers:
        """That of so many blocks, whichever they are."""
        cost, before = 0.0 * blocks, 0
        for count, each in self.kinds:
            cost = cost + np.clip(blocks - before, 0, count) * each
            before += count
        return cost


def kind_of(layer: str, times: int, kinds: Mapping[str, int]) -> str | None:
    """The kind of blocks that have a layer which happens so often, as often each; None: it is around them."""
    return next((kind for kind, count in kinds.items() if layer.startswith(kind) and times % count == 0), None)


class PassFloor(NamedTuple):
    """What one micro-batch takes at least, forward and back [s]: of the device, if it waits for nothing but collectives
    whose result the next kernel needs; or of the host, to start all of these.

    whole: of all blocks and what is around them. blocks: of each block. tail: of what comes after them.
    """

    whole: float
    blocks: BlockCosts
    tail: float

    def step_seconds(self, layouts: PipelineShapes, micro_batches: Numbers) -> Numbers:
        """Of a step of each layout at least.

        A rank of a pipeline has all micro-batches to do in its stages, and waits before for the first one to come
        through the stages of the ranks before it, and after for its gradients to go back there. The slowest rank takes
        at least the mean of all, and at least what the one with the last stage does.
        """
        ranks, stages, blocks, splits, v_shaped, ahead, mean_ahead = layouts
        mean = micro_batches * self.whole / ranks + np.where(splits, 0.0, self.blocks.least(mean_ahead))
        ramp = np.where(np.logical_or(splits, v_shaped), 0.0, self.blocks.least(ahead))
        last = micro_batches * (self.blocks.least(stages * blocks) + self.tail) + ramp
        return (1 - SLACK) * np.where(ranks == 1, micro_batches * self.whole, np.maximum(mean, last))


class PassTasks(NamedTuple):
    """What one micro-batch asks for in all stages, before any of it is timed.

    tasks: kernels, with how often each happens. messages: whose result the next kernel needs. kept: for backward, by
    layer and how often [bytes]. after: layers that come after the blocks.
    """

    tasks: tuple[Task, ...]
    messages: tuple[tuple[str, int, Message], ...]
    kept: tuple[tuple[str, int, int], ...]
    after: frozenset[str]

    @classmethod
    def of(cls, tape: Tape, settings: Settings, kinds: Mapping[str, int], *, fuse: bool) -> PassTasks:
        """Those of a rank that has all of a model's blocks. Left out is what micro-batches share, and their sums.

        kinds: see `block_kinds`.
        """
        calls = [*tape.root.calls()]
        left_out = {storage.name for storage in tape.trained} | {call.name for call in calls if is_once_a_step(call)}
        every = passes_of(tape, settings, fuse=fuse).tasks
        tasks = [task for task in every if task.layer not in left_out]
        repeated = [n for n, call in enumerate(calls) if kind_of(call.name, int(call.times), kinds) is not None]
        start = repeated[-1] + 1 if repeated else len(calls)
        return cls(
            _of_one(tasks, settings),
            tuple(_waited(tape, {task.layer for task in tasks if task.phase == "backward"})),
            tuple(kept_of(tape)),
            frozenset(call.name for call in calls[start:]).difference(call.name for call in calls[:start]),
        )

    def dealt_out(self, tape: Tape, settings: Settings) -> PassTasks:
        """Those of the same rank whose experts are others, see `moe.deal_out`."""
        own = _of_one(passes_of(tape, settings, chosen=_of_experts).tasks, settings)
        names, others = {task.layer for task in own}, iter(own)
        tasks = tuple(next(others) if task.layer in names else task for task in self.tasks)
        busy = {task.layer for task in tasks if task.phase == "backward"}
        return self._replace(tasks=tasks, messages=tuple(_waited(tape, busy)))

    @property
    def numbers(self) -> list[int]:
        """All that may depend on how many samples a micro-batch has: of each kernel, each message, and what is kept."""
        kernels = (task.kernel for task in self.tasks)
        own = [n for each in kernels for n in (each.flops, each.read, each.written, *(each.sizes or NO_SIZES))]
        return [*own, *(message.elements for *_, message in self.messages), *(size for *_, size in self.kept)]

    @property
    def form(self) -> tuple[object, ...]:
        """What does not depend on it."""
        return (
            [(*task[:4], *task[5:], *_form(task.kernel)) for task in self.tasks],
            [(name, times, message[:3], message.dtype) for name, times, message in self.messages],
            [(name, times) for name, times, _ in self.kept],
            self.after,
        )


NO_SIZES = Product(0, 0, 0, 0)


def _form(kernel: Kernel) -> tuple[object, ...]:
    return kernel.name, kernel.sort, kernel.dtype, kernel.launches, kernel.sizes is None, kernel.stored


class PassSeries(NamedTuple):
    """What micro-batches of several sizes ask for, alike but for numbers: those of each [numbers, batches]."""

    tasks: PassTasks
    batches: Sequence[int]
    numbers: Numbers

    @classmethod
    def of(cls, several: Mapping[int, PassTasks]) -> PassSeries:
        """That of one or more, by their sizes."""
        numbers = [tasks.numbers for tasks in several.values()]
        try:
            columns = np.array(numbers, dtype=np.int64)
        except OverflowError:
            columns = np.array(numbers, dtype=object)
        return cls(next(iter(several.values())), [*several], columns.T)

    def of_kernels(self) -> Numbers:
        """Numbers of each kernel: flops, read, written, and sizes [kernels, 7, batches]."""
        count = len(self.tasks.tasks)
        return self.numbers[: 7 * count].reshape(count, 7, len(self.batches))

    def of_messages(self) -> Numbers:
        """Elements of each message [messages, batches]."""
        start = 7 * len(self.tasks.tasks)
        return self.numbers[start : start + len(self.tasks.messages)]

    def of_kept(self) -> Numbers:
        """What is kept for backward, by layer [layers, batches]."""
        return self.numbers[7 * len(self.tasks.tasks) + len(self.tasks.messages) :]


def interpolated(batches: Sequence[int], trace_of: Callable[[int], PassTasks]) -> Iterator[PassSeries]:
    """What micro-batches of each of ascending sizes ask for, of which as few as may be are traced.

    Where what is traced in the middle lies on the line between both ends, all others are taken to lie on it too; else
    each half is asked by itself, and the smallest where it has other kernels: of one sample some copies are views.
    """
    trace_once = cache(trace_of)
    low, high, half = batches[0], batches[-1], len(batches) // 2
    traced = {batch: trace_once(batch) for batch in (low, batches[half], high)}
    forms = [tasks.form for tasks in traced.values()]
    if all(form == forms[0] for form in forms):
        series = PassSeries.of(traced)
        if len(batches) <= 3:
            yield series
            return
        start, middle, end = series.numbers.T
        slopes = (end - start) // (high - low)
        columns = start[:, None] + slopes[:, None] * (np.array(batches) - low)
        if (columns[:, half] == middle).all() and (columns[:, -1] == end).all():
            yield PassSeries(traced[low], batches, columns)
            return
    elif len(batches) <= 3:
        for batch, tasks in traced.items():
            yield PassSeries.of({batch: tasks})
        return
    first = half + 1 if forms[0] == forms[1] else 1
    yield from interpolated(batches[:first], trace_once)
    yield from interpolated(batches[first - (first > 1) :], trace_once)


class PassSums(NamedTuple):
    """What parts of a pass take in all [s, or bytes]: the whole, its blocks by kind, and what comes after these."""

    whole: float
    kinds: Mapping[str, float]
    tail: float

    def with_parts(self, parts: Iterable[tuple[PassPart, float]]) -> PassSums:
        """The same with more parts, each with what it takes in all."""
        whole, kinds, tail = self.whole, dict(self.kinds), self.tail
        for part, cost in parts:
            whole += cost
            if part.kind is not None:
                kinds[part.kind] += cost
            tail += cost if part.after else 0.0
        return PassSums(whole, kinds, tail)

    def floor(self, counts: Mapping[str, int]) -> PassFloor:
        """As a bound. counts: of blocks of each kind."""
        return PassFloor(self.whole, BlockCosts.of(self.kinds, counts), self.tail)


class PassPart(NamedTuple):
    """A layer of a pass: the kind of blocks that it is of, if any, and whether it comes after the blocks."""

    layer: str
    kind: str | None
    after: bool


class PassTimes(NamedTuple):
    """How what a pass asks for is added up. parts: of each; times: how often each happens. kinds: of blocks."""

    parts: list[PassPart]
    times: list[int]
    kinds: Collection[str]

    @classmethod
    def of(cls, rows: Iterable[tuple[str, int]], tasks: PassTasks, kinds: Mapping[str, int]) -> PassTimes:
        """Those of rows of a layer and how often it happens."""
        every = [*rows]
        parts = [PassPart(layer, kind_of(layer, times, kinds), layer in tasks.after) for layer, times in every]
        return cls(parts, [times for _, times in every], kinds)

    def sums(self, costs: Numbers) -> list[PassSums]:
        """Those of several passes, whose rows cost so much each [rows, passes]."""
        whole, tail = _added(costs), _added(costs[[part.after for part in self.parts]])
        kinds = {kind: _added(costs[[part.kind == kind for part in self.parts]]) for kind in self.kinds}
        return [PassSums(whole[n], {kind: sums[n] for kind, sums in kinds.items()}, tail[n]) for n in range(len(whole))]


def _added(costs: Numbers) -> list[Any]:
    """Sums of columns, from the first row to the last."""
    return np.add.accumulate(costs, axis=0)[-1].tolist() if len(costs) else [0] * costs.shape[1]


@dataclass(frozen=True, eq=False)
class PassWork:
    """What one micro-batch asks for in all stages.

    device, host: seconds of its kernels, and of the host to start them. messages: whose result the next kernel needs,
    with how often each happens. kinds: of the model's blocks, see `block_kinds`. kept: for backward of all; own: of
    that each block [bytes].
    """

    device: PassSums
    host: PassSums
    messages: Sequence[tuple[PassPart, int, Message]]
    kinds: Mapping[str, int]
    kept: int
    own: BlockCosts

    @classmethod
    def of_series(cls, series: PassSeries, kinds: Mapping[str, int], model: KernelModel) -> dict[int, PassWork]:
        """Those of micro-batches of several sizes, whose kernels are timed together."""
        slowest = 1.0 if model.tier == "ceiling" else model.constants.slowest_device
        tasks = series.tasks
        every = PassTimes.of(((task.layer, task.times) for task in tasks.tasks), tasks, kinds)
        times = np.array(every.times)[:, None]
        table = KernelTable([task.kernel for task in tasks.tasks], series.of_kernels())
        device = every.sums(times * (slowest * table.seconds(model)))
        (host,) = every.sums(times * np.array([[float(model.host_time(task))] for task in tasks.tasks]))
        kept = PassTimes.of(((layer, times) for layer, times, _ in tasks.kept), tasks, kinds).sums(series.of_kept())
        sent = PassTimes.of(((layer, times) for layer, times, _ in tasks.messages), tasks, kinds)
        return {
            batch: cls(
                device[n],
                host,
                [
                    (part, times, message._replace(elements=size))
                    for part, times, (*_, message), size in zip(
                        sent.parts, sent.times, tasks.messages, series.of_messages()[:, n].tolist(), strict=True
                    )
                    if message.axis != "ep" or not model.stack.experts_beside
                ],
                kinds,
                int(kept[n].whole),
                BlockCosts.of(kept[n].kinds, kinds),
            )
            for n, batch in enumerate(series.batches)
        }

    def kept_bytes(self, layout: Layout, micro_batches: int) -> int:
        """What the first rank of a layout keeps for backward when it has most micro-batches in flight, at least."""
        if layout.pp == 1:
            return self.kept
        schedule = layout.pipeline(micro_batches)
        passes = min(schedule.in_flight(0), micro_batches * layout.vpp)
        return passes * int(self.own.least(_blocks_of_a_stage(sum(self.kinds.values()), layout)))

    def floors(self, prices: Prices) -> tuple[PassFloor, PassFloor]:
        """What it takes of the device, and of the host, at least."""
        sent = ((part, times * float(prices(message).seconds)) for part, times, message in self.messages)
        return self.device.with_parts(sent).floor(self.kinds), self.host.floor(self.kinds)


class LayoutSteps:
    """Steps of layouts of the model of `ranks` on the cluster of a time, which says how seconds are worked out."""

    def __init__(self, ranks: RankPeaks, like: Time) -> None:
        if like.cluster is None:
            raise SettingError("devices=1 has one layout: ask predict for it, or give two devices or more")
        self.ranks = ranks
        self.kinds = kinds_of(ranks.model)
        self.fuses = like.stack.fuses
        self._model_of = like.kernel_model_of
        self._models: dict[tuple[Runtime, bool], KernelModel] = {}
        self.links = CollectiveModel(like.cluster, like.constants, like.tier, like.factors)
        self._stages: dict[Runtime, LruCache[StageWork]] = {}
        self._kernel_seconds: LruCache[list[Numbers]] = LruCache(MOST_STAGES)
        self._players: LruCache[dict[str, Player]] = LruCache(MOST_STAGES)
        self._endings: LruCache[Player] = LruCache(MOST_STAGES)
        self._works: dict[Hashable, PassWork] = {}
        self._dealt_out: LruCache[tuple[Recording, PassTasks]] = LruCache(MOST_DEALT_OUT)
        self._floors: dict[PassWork, tuple[PassFloor, PassFloor]] = {}

    def step(self, settings: Settings) -> LayoutStep:
        """That of one layout, as `Time` says it. Raises CostModelError."""
        self.links.cluster.place(settings.layout)
        prices = Prices(self.links, settings.layout)
        played = self._alone(settings, prices) if settings.layout.pp == 1 else self._staged(settings, prices)
        return LayoutStep(float(played.seconds), sum(float(each.exposed) for each in played.sums), float(played.bubble))

    def work(self, settings: Settings, batches: Sequence[int] = ()) -> PassWork:
        """What a micro-batch asks for, which all layouts that compute alike share. Raises CostModelError.

        batches: others, ascending, whose work is asked for too.
        """
        layout = settings.layout
        whole = layout._replace(pp=1, vpp=1, schedule="1f1b", split=())
        alike = whole._replace(dp=1, fsdp=1, zero=0, reshard=True)  # copies and shares compute the same
        key = settings.checkpoint, alike
        if (settings.batch, key) not in self._works:

            def tasks(batch: int) -> PassTasks:
                return self._tasks(replace(settings, batch=batch), whole, (batch, settings.checkpoint, alike))

            heads, groups = getattr(self.ranks.model, "heads", WARPS) // layout.tp, dict[bool, list[int]]()
            stored = layout.megatron and settings.attention == "eager"  # whose softmax some batches have in one kernel
            for batch in batches or [settings.batch]:
                groups.setdefault(stored and batch * heads % WARPS > 0, []).append(batch)
            try:
                every = [series for group in groups.values() for series in interpolated(group, tasks)]
            except CostModelError:  # of another batch, or of this one too
                every = [PassSeries.of({settings.batch: tasks(settings.batch)})]
            for series in every:
                works = PassWork.of_series(series, self.kinds, self._model(layout))
                self._works |= {(batch, key): work for batch, work in works.items()}
        return self._works[settings.batch, key]

    def _tasks(self, settings: Settings, layout: Layout, key: tuple[int, Any, Layout]) -> PassTasks:
        """What a micro-batch asks for; of experts that are dealt out otherwise than others what differs alone.

        key: what decides about it. Raises CostModelError.
        """
        model, experts = self.ranks.model, getattr(self.ranks.model, "experts", None)
        shares = experts is not None and not self.fuses and recorded_alike(experts, layout)
        family = (*key[:2], key[2]._replace(ep=2))
        if shares and family in self._dealt_out:
            own, tasks = self._dealt_out[family]
            _ = model.local(layout)
            if deal_out(own.tape, layout):
                return tasks.dealt_out(own.tape, settings)
        tape = trace(model, settings, layout=layout)
        tasks = PassTasks.of(tape, settings, self.kinds, fuse=self.fuses)
        if shares:
            return self._dealt_out.of(family, lambda: (Recording(tape), tasks))[1]
        tape.forget()
        return tasks

    def least_seconds(self, work: PassWork, layout: Layout, shapes: PipelineShapes, micro_batches: Numbers) -> Numbers:
        """Of a step of each of the layouts that ask for such work at least. layout: any of them."""
        if work not in self._floors:
            self._floors[work] = work.floors(Prices(self.links, layout))
        return np.maximum(*(floor.step_seconds(shapes, micro_batches) for floor in self._floors[work]))

    def balanced_splits(self, settings: Settings) -> list[tuple[int, ...]]:
        """Blocks of each stage so that the slowest rank is fastest, and of a rank's stages the slowest, see `dealt`.

        These are two at most: of a rank's stages that are as fast the first or the last ones have what is left over.
        Left out is the usual split, and all where stages are not of blocks alone. Stages are taken to need what
        `PassFloor` says, blocks their mean. Raises CostModelError.
        """
        layout, model = settings.layout, self.ranks.model
        work = self.work(settings)
        blocks = sum(work.kinds.values())
        if layout.pp == 1 or blocks != len(model.stage_parts) or blocks < layout.stages:
            return []
        floor = max(work.floors(Prices(self.links, layout)), key=lambda floor: floor.whole)
        of_blocks = sum(count * each for count, each in floor.blocks.kinds)
        beside = [0.0] * layout.stages
        beside[0] += floor.whole - of_blocks - floor.tail
        beside[-1] += floor.tail
        schedule = layout.pipeline(settings.micro_batches)
        ranks = [[*schedule.stages_of(rank)] for rank in range(layout.pp)]
        counts = dealt(blocks, of_blocks / blocks, [sum(beside[n] for n in own) for own in ranks], layout.vpp)
        usual = tuple(len(own_parts(layout._replace(stage=stage), model)) for stage in range(layout.stages))
        splits = dict.fromkeys([usual])
        for order in (1, -1):
            split = [0] * layout.stages
            for own, count in zip(ranks, counts, strict=True):
                shares = dealt(count, of_blocks / blocks, [beside[n] for n in own[::order]], 1)
                for stage, share in zip(own[::order], shares, strict=True):
                    split[stage] = share
            splits[tuple(split)] = None
        return [*splits][1:]

    def on(self, like: Time) -> LayoutSteps:
        """The same on a cluster of another network; what its devices do by themselves is worked out already."""
        other = LayoutSteps(self.ranks, like)
        other._works, other._stages, other._kernel_seconds = self._works, self._stages, self._kernel_seconds
        return other

    def _model(self, layout: Layout) -> KernelModel:
        """What kernels take under a runtime, with Megatron's layers or others."""
        key = layout.runtime, layout.megatron
        if key not in self._models:
            self._models[key] = self._model_of(layout)
        return self._models[key]

    def _alone(self, settings: Settings, prices: Prices) -> PlayedStep:
        return RankWork(self.ranks.alone(settings), fuse=self.fuses).step(self._model(settings.layout), prices)[1]

    def _staged(self, settings: Settings, prices: Prices) -> PlayedStep:
        model = self._model(settings.layout)
        ranks = self.ranks.staged(settings)

        def kernel_seconds(stage: StageWork) -> list[Numbers]:
            return self._kernel_seconds.of(stage, lambda: stage.kernel_seconds(model))

        def passes(stage: StageWork) -> dict[str, Player]:
            return self._players.of(stage, lambda: stage.passes(model, kernel_seconds(stage), prices))

        def ending(rank: StagedRank) -> Player:
            key = settings.runtime, rank.key, settings.micro_batches
            return self._endings.of(key, lambda: work.ending(rank, model, prices))

        known = self._stages.setdefault(settings.runtime, LruCache(MOST_STAGES))
        work = PipelineWork(ranks, lambda stage: stage.busy(kernel_seconds(stage)), fuse=self.fuses, known=known)
        players = {stage: passes(stage) for stage in work.kinds}
        return work.played(players, [*map(ending, ranks)], prices, model.stack)

    def __repr__(self) -> str:
        return f"<LayoutSteps of {self.ranks.model.title} on {self.links.cluster.name}>"


def blocks_of(model: Architecture) -> int:
    """Blocks of one kind that a pipeline's stages share out evenly; 0 of a model that may be cut otherwise."""
    return int(peek(model.layers or 0)) if isinstance(model, Transformer) else 0


def kinds_of(model: Architecture) -> dict[str, int]:
    """Of these how many there are of each kind, see `block_kinds`."""
    return block_kinds(model) if isinstance(model, Transformer) and model.layers > 1 else {}


def dealt(blocks: int, seconds: float, beside: Sequence[float], least: int) -> list[int]:
    """Blocks of each of several that do other work beside, with which the slowest takes least; each has some at least.

    seconds: of a block. beside: of what else each does [s]. Each block goes to whom it leaves the fastest, which is
    least in all since blocks are alike: no other deal has the slowest with fewer, and all others as fast.

    Example:
        >>> dealt(12, 1.0, [0.5, 0.0, 0.0, 3.0], least=1)
        [4, 4, 3, 1]

    """
    counts = [least] * len(beside)
    ends = [(each + least * seconds, n) for n, each in enumerate(beside)]
    heapify(ends)
    for _ in range(blocks - least * len(beside)):
        end, n = ends[0]
        counts[n] += 1
        heapreplace(ends, (end + seconds, n))
    return counts


def _blocks_of_a_stage(blocks: int, layout: Layout) -> int:
    """Blocks that each stage has at least, see `stages.own_parts`."""
    if layout.split:
        return 0
    if layout.runtime != "torch" and blocks % layout.stages and not (blocks + 2) % layout.stages:
        return (blocks + 2) // layout.stages - 1
    return blocks // layout.stages


def _of_one(tasks: Iterable[Task], settings: Settings) -> tuple[Task, ...]:
    """Tasks of one of all micro-batches, those that are alike as one: of a ring as many are as it has ranks."""
    m = settings.micro_batches
    return tuple(task._replace(times=n * int(task.times) // m) for task, n in Counter(tasks).items())


def _of_experts(call: Call) -> bool:
    return call.layer.of_experts


def _waited(tape: Tape, busy: Collection[str]) -> Iterator[tuple[str, int, Message]]:
    """Collectives whose result the next kernel needs, by layer and with how often each happens for a micro-batch.

    Left out are those beside which a runtime has other work, see `programs.Waiting`: of sharded weights and of copies,
    of a ring, and in Megatron's backward pass sums, and those of tp of layers with kernels there. Beside others of tp
    it has at most sums of gradients, which are no part of a micro-batch's kernels here; without sp an embedding's too.
    busy: names of layers with kernels in the backward pass, of which what is run again is a part.
    """
    for call in tape.root.calls():
        sent = call.layer.sent(call)
        back = [*(sent if call.computed_again else ()), *(call.layer.returned(call) if call.differentiated else ())]
        if any(message.axis == "cp" for message in (*sent, *back)) and any(call.layer.forward_kernels(call)):
            continue
        if tape.layout.megatron:
            beside = "tp" if call.name in busy or not tape.layout.sp else None
            back = [each for each in back if each.axis != beside and each.operation != "all_reduce"]
        for message in (*sent, *back):
            if message.axis not in ("fsdp", "dp"):
                yield call.name, int(call.times), message
