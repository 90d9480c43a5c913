"""Seconds of very many layouts of one model on one cluster: what they have in common is timed once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import repeat
from operator import itemgetter
from typing import NamedTuple, get_args

import numpy as np

from costmodel.architectures.base import Architecture
from costmodel.architectures.blocks import block_kinds
from costmodel.architectures.trace import trace
from costmodel.architectures.transformer import Transformer
from costmodel.cost.peaks import RankPeaks
from costmodel.cost.rows import kept_of
from costmodel.errors import CostModelError, SettingError
from costmodel.graph.kernel import Kernel, Message, Product
from costmodel.graph.tape import Tape
from costmodel.performance.communication import CollectiveModel
from costmodel.performance.laws import KernelModel, KernelTable, Numbers
from costmodel.performance.parallel import PlayedStep, Prices, RankWork
from costmodel.performance.pipelines import PipelineWork, StageWork
from costmodel.performance.queues import Player
from costmodel.performance.time import Time
from costmodel.performance.work import Task, is_once_a_step, work_of
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


class PipelineShapes(NamedTuple):
    """Of each of several layouts what bounds on its seconds depend on, as arrays.

    ranks: of its pipeline. stages: of each rank. blocks: of each stage, at least. splits, v_shaped: whether its
    schedule makes gradients of weights apart, and is of the shape of a V.
    """

    ranks: Numbers
    stages: Numbers
    blocks: Numbers
    splits: Numbers
    v_shaped: Numbers

    @classmethod
    def of(cls, layouts: Iterable[Layout], blocks: int) -> PipelineShapes:
        """Those of layouts of a model of so many blocks."""
        rows = [
            (each.pp, each.vpp, _blocks_of_a_stage(blocks, each), schedule.splits, schedule.v_shaped)
            for each in layouts
            for schedule in [SCHEDULES[each.schedule]]
        ]
        return cls(*np.array(rows, dtype=np.int64).reshape(len(rows), 5).T)

    def chosen(self, which: Numbers) -> PipelineShapes:
        """Those of some of the layouts, by a mask or by number."""
        return PipelineShapes(*(column[which] for column in self))


class BlockCosts(NamedTuple):
    """What each block costs at least, by its kind, the cheapest kind first: how many of it there are, and the cost."""

    kinds: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, parts: Iterable[tuple[str, int, float]], kinds: Mapping[str, int]) -> BlockCosts:
        """Those of parts: the layer of each, how often it happens, and its cost in all. kinds: see `block_kinds`."""
        sums = dict.fromkeys(kinds, 0.0)
        for layer, times, cost in parts:
            if (kind := kind_of(layer, times, kinds)) is not None:
                sums[kind] += cost
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
        ranks, stages, blocks, splits, v_shaped = layouts
        ramp = np.where(splits, 0.0, self.blocks.least((ranks - 1) * blocks))
        mean = micro_batches * self.whole / ranks + ramp / 2
        last = micro_batches * (self.blocks.least(stages * blocks) + self.tail) + np.where(v_shaped, 0.0, ramp)
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
        every = work_of(tape, settings, fuse=fuse).tasks
        tasks = [task for task in every if task.phase != "update" and task.layer not in left_out]
        repeated = [n for n, call in enumerate(calls) if kind_of(call.name, int(call.times), kinds) is not None]
        start = repeated[-1] + 1 if repeated else len(calls)
        return cls(
            tuple(task._replace(times=int(task.times) // settings.micro_batches) for task in tasks),
            tuple(_waited(tape, {task.layer for task in tasks if task.phase == "backward" and not task.again})),
            tuple(kept_of(tape)),
            frozenset(call.name for call in calls[start:]).difference(call.name for call in calls[:start]),
        )

    @property
    def numbers(self) -> list[int]:
        """All that may depend on how many samples a micro-batch has."""
        kernels = (task.kernel for task in self.tasks)
        own = [n for each in kernels for n in (each.flops, each.read, each.written, *(each.sizes or ()))]
        return [*own, *(message.elements for *_, message in self.messages), *(size for *_, size in self.kept)]

    def with_numbers(self, numbers: Iterable[int]) -> PassTasks:
        """The same with others in their place."""
        each = iter(numbers)

        def kernel(own: Kernel) -> Kernel:
            flops, read, written = next(each), next(each), next(each)
            sizes = own.sizes and Product(next(each), next(each), next(each), next(each))
            return own._replace(flops=flops, read=read, written=written, sizes=sizes)

        return PassTasks(
            tuple(task._replace(kernel=kernel(task.kernel)) for task in self.tasks),
            tuple((name, times, own._replace(elements=next(each))) for name, times, own in self.messages),
            tuple((name, times, next(each)) for name, times, _ in self.kept),
            self.after,
        )

    @property
    def form(self) -> PassTasks:
        """What does not depend on it."""
        return self.with_numbers(repeat(0))


def interpolated(batches: Sequence[int], trace_of: Callable[[int], PassTasks]) -> dict[int, PassTasks]:
    """What micro-batches of each of ascending sizes ask for, of which as few as may be are traced.

    Where what is traced in the middle lies on the line between both ends, all others are taken to lie on it too; else
    each half is asked by itself, and the smallest where it has other kernels: of one sample some copies are views.
    """
    trace_once = cache(trace_of)
    low, high, half = batches[0], batches[-1], len(batches) // 2
    traced = {batch: trace_once(batch) for batch in (low, batches[half], high)}
    if len(batches) <= 3:
        return traced
    forms = [tasks.form for tasks in traced.values()]
    if forms[0] == forms[1] == forms[2]:
        start, middle, end = (tasks.numbers for tasks in traced.values())
        slopes, rests = zip(
            *(divmod(last - own, high - low) for own, last in zip(start, end, strict=True)), strict=True
        )

        def line(batch: int) -> Iterator[int]:
            return (own + slope * (batch - low) for own, slope in zip(start, slopes, strict=True))

        if not any(rests) and [*line(batches[half])] == middle:
            others = (batch for batch in batches if batch not in traced)
            return traced | {batch: traced[low].with_numbers(line(batch)) for batch in others}
    first = half + 1 if forms[0] == forms[1] else 1
    return interpolated(batches[:first], trace_once) | interpolated(batches[first - (first > 1) :], trace_once)


@dataclass(frozen=True, eq=False)
class PassWork:
    """What one micro-batch asks for in all stages, each by its layer and how often it happens.

    kernels: their seconds, and the host's. messages: whose result the next kernel needs. kinds: of the model's blocks,
    see `block_kinds`. after: layers that come after the blocks. kept: for backward of all; own: of that each block
    [bytes].
    """

    kernels: tuple[tuple[str, int, float, float], ...]
    messages: tuple[tuple[str, int, Message], ...]
    kinds: Mapping[str, int]
    after: frozenset[str]
    kept: int
    own: BlockCosts

    @classmethod
    def of_several(cls, several: Sequence[PassTasks], kinds: Mapping[str, int], model: KernelModel) -> list[PassWork]:
        """Those of micro-batches of several sizes, whose kernels are timed together."""
        slowest = 1.0 if model.tier == "ceiling" else model.constants.slowest_device
        seconds = iter(KernelTable([task.kernel for each in several for task in each.tasks]).times(model))
        return [
            cls(
                tuple(
                    (task.layer, task.times, slowest * float(next(seconds)), float(model.host_time(task)))
                    for task in each.tasks
                ),
                each.messages,
                kinds,
                each.after,
                sum(size for *_, size in each.kept),
                BlockCosts.of(each.kept, kinds),
            )
            for each in several
        ]

    def kept_bytes(self, layout: Layout, micro_batches: int) -> int:
        """What the first rank of a layout keeps for backward when it has most micro-batches in flight, at least."""
        if layout.pp == 1:
            return self.kept
        schedule = layout.pipeline(micro_batches)
        passes = min(schedule.in_flight(0), micro_batches * layout.vpp)
        return passes * int(self.own.least(_blocks_of_a_stage(sum(self.kinds.values()), layout)))

    def floors(self, prices: Prices) -> tuple[PassFloor, PassFloor]:
        """What it takes of the device, and of the host, at least."""
        sent = [(name, times, float(prices(message).seconds)) for name, times, message in self.messages]
        device = [(name, times, seconds) for name, times, seconds, _ in self.kernels]
        host = [(name, times, seconds) for name, times, _, seconds in self.kernels]
        return self._floor([*device, *sent]), self._floor(host)

    def _floor(self, parts: Iterable[tuple[str, int, float]]) -> PassFloor:
        """The sum of parts, each of a layer, so many times."""
        every = [(name, times, times * seconds) for name, times, seconds in parts]
        tail = sum(seconds for name, _, seconds in every if name in self.after)
        return PassFloor(sum(seconds for *_, seconds in every), BlockCosts.of(every, self.kinds), tail)


class LayoutSteps:
    """Steps of layouts of the model of `ranks` on the cluster of a time, which says how seconds are worked out."""

    def __init__(self, ranks: RankPeaks, like: Time) -> None:
        if like.cluster is None:
            raise SettingError("devices=1 has one layout: ask predict for it, or give two devices or more")
        self.ranks = ranks
        self.fuses = like.stack.fuses
        self.models = {runtime: like.kernel_model_of(runtime) for runtime in get_args(Runtime)}
        self.links = CollectiveModel(like.cluster, like.constants, like.tier, like.factors)
        self._stages: dict[Runtime, dict[tuple[int, int], tuple[StageWork, Numbers]]] = {}
        self._players: dict[StageWork, dict[str, Player]] = {}
        self._endings: dict[Hashable, Player] = {}
        self._works: dict[Hashable, PassWork] = {}
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
            kinds = kinds_of(self.ranks.model)

            def tasks(batch: int) -> PassTasks:
                own = replace(settings, batch=batch)
                tape = trace(self.ranks.model, own, layout=whole)
                return PassTasks.of(tape, own, kinds, fuse=self.fuses)

            try:
                several = interpolated(batches or [settings.batch], tasks)
            except CostModelError:  # of another batch, or of this one too
                several = {settings.batch: tasks(settings.batch)}
            works = PassWork.of_several([*several.values()], kinds, self.models[layout.runtime])
            self._works |= {(batch, key): work for batch, work in zip(several, works, strict=True)}
        return self._works[settings.batch, key]

    def least_seconds(self, work: PassWork, layout: Layout, shapes: PipelineShapes, micro_batches: Numbers) -> Numbers:
        """Of a step of each of the layouts that ask for such work at least. layout: any of them."""
        if work not in self._floors:
            self._floors[work] = work.floors(Prices(self.links, layout))
        return np.maximum(*(floor.step_seconds(shapes, micro_batches) for floor in self._floors[work]))

    def on(self, like: Time) -> LayoutSteps:
        """The same on a cluster of another network; what its devices do by themselves is worked out already."""
        other = LayoutSteps(self.ranks, like)
        other._works, other._stages = self._works, self._stages
        return other

    def _alone(self, settings: Settings, prices: Prices) -> PlayedStep:
        return RankWork(self.ranks.alone(settings), fuse=self.fuses).step(self.models[settings.runtime], prices)[1]

    def _staged(self, settings: Settings, prices: Prices) -> PlayedStep:
        model = self.models[settings.runtime]
        if settings.layout.shards > 1:
            places = [rank.place for rank in self.ranks.sharded(settings).ranks if rank.place is not None]
            return PipelineWork(places, model, fuse=self.fuses).step(model, prices)[1]
        ranks = self.ranks.staged(settings)
        work = PipelineWork(ranks, model, fuse=self.fuses, known=self._stages.setdefault(settings.runtime, {}))
        for stage in work.kinds:
            if stage not in self._players:
                self._players[stage] = stage.passes(model, stage.kernel_seconds(model), prices)
        endings: list[Player] = []
        for rank in ranks:
            key = settings.runtime, rank.key, settings.micro_batches
            if key not in self._endings:
                self._endings[key] = work.ending(rank, model, prices)
            endings.append(self._endings[key])
        return work.played(self._players, endings, prices)

    def __repr__(self) -> str:
        return f"<LayoutSteps of {self.ranks.model.title} on {self.links.cluster.name}>"


def blocks_of(model: Architecture) -> int:
    """Blocks of one kind that a pipeline's stages share out evenly; 0 of a model that may be cut otherwise."""
    return int(peek(model.layers or 0)) if isinstance(model, Transformer) else 0


def kinds_of(model: Architecture) -> dict[str, int]:
    """Of these how many there are of each kind, see `block_kinds`."""
    return block_kinds(model) if isinstance(model, Transformer) and model.layers > 1 else {}


def _blocks_of_a_stage(blocks: int, layout: Layout) -> int:
    """Blocks that each stage has at least, see `stages.own_parts`."""
    if layout.split:
        return 0
    if layout.runtime != "torch" and blocks % layout.stages and not (blocks + 2) % layout.stages:
        return (blocks + 2) // layout.stages - 1
    return blocks // layout.stages


def _waited(tape: Tape, differentiated: Collection[str]) -> Iterator[tuple[str, int, Message]]:
    """Collectives whose result the next kernel needs, by layer and with how often each happens for a micro-batch.

    Left out are those beside which a runtime has other work, see `programs.Waiting`: of sharded weights and of copies,
    of a ring, and in Megatron's backward pass sums, and those of tp of layers with kernels there. Beside others of tp
    it has at most sums of gradients, which are no part of a micro-batch's kernels here; without sp an embedding's too.
    differentiated: names of layers with kernels in the backward pass.
    """
    for call in tape.root.calls():
        sent = call.layer.sent(call)
        returned = call.layer.returned(call) if call.differentiated else ()
        if any(message.axis == "cp" for message in (*sent, *returned)) and any(call.layer.forward_kernels(call)):
            continue
        if tape.layout.megatron:
            beside = "tp" if call.name in differentiated or not tape.layout.sp else None
            returned = [each for each in returned if each.axis != beside and each.operation != "all_reduce"]
        for message in (*sent, *returned):
            if message.axis not in ("fsdp", "dp"):
                yield call.name, int(call.times), message
