"""Closed forms of all that the page shows of one choice of settings, wherever its sizes can be set to."""

from __future__ import annotations

import gc
import random
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from costmodel.analysis.closed_forms import ClosedForms, Forms, Leaf, Refusal
from costmodel.analysis.predict import Prediction
from costmodel.analysis.sweep.axes import label_of
from costmodel.architectures.base import Architecture
from costmodel.cost.costs import Costs, share_passes
from costmodel.cost.quantities import QUANTITIES
from costmodel.cost.ranks import held_params
from costmodel.cost.recipes import SIZES
from costmodel.cost.rows import Row
from costmodel.errors import CostModelError
from costmodel.explorer.laws import key_of, numbers_of
from costmodel.graph.kernel import Kernel
from costmodel.performance.laws import with_numbers
from costmodel.performance.work import Task, update_tasks, work_of
from costmodel.symbolic.guards import Branch, Condition
from costmodel.symbolic.polynomial import Polynomial, Range
from costmodel.training.stacks import Stack

COLUMNS = tuple(column for column in Row._fields if column not in ("name", "kind"))
"""What a layer's row says in numbers."""
LINES = ("gradients", "activations", "casts", "cache", "temporaries")
"""What comes and goes during a step."""
CHANGES = tuple(f"{line} {side}" for line in LINES for side in ("taken", "given back"))
"""What may change around a moment: bytes taken before it, and those given back after it, which are negative."""
OF_LEVELS = "memory.peak"
"""The quantity that has no formula of its own in the page, but is the highest of levels."""
OF_RANKS = tuple(name for name in QUANTITIES if name.startswith(("memory.", "collectives.")) and name != OF_LEVELS)
"""Quantities that each rank of a layout has for itself; a page gives those of its heaviest, as predictions do."""
RANK_QUANTITIES = (*OF_RANKS, "params", "flops", "in_flight")
"""What is told of each rank: with those what it holds, what it computes in a step, and micro-batches in flight."""
PIPELINE = ("pipeline.idle", "pipeline.busy")
"""What a rank of a pipeline waits and works in a step, in passes of equal stages."""
MODEL_QUANTITIES = (*(name for name in QUANTITIES if name not in (*OF_RANKS, OF_LEVELS)), *PIPELINE)
"""Quantities of the whole model."""
SUMS = ("devices", "times", "bytes", "wire_bytes")
"""What a rank's collectives along one axis come to."""
DRAWN = 400
"""Settings drawn at random, each of which is in a known regime in the end."""
MOST_REFUSALS = 5
"""Where so many settings and no other have been refused, no more are tried."""
MOST_BRANCHES = 4_000
"""With more decisions, no more regimes are looked for."""


OF_DECODING = {"seq": "past"}
"""What a size of the page is instead where a model decodes: of one new token those that are kept before."""


class SliderSize(NamedTuple):
    """A size that the page can set: where it starts, and where its slider can stand, in order.

    discrete: whether it has no other values, as degrees of a layout.
    """

    name: str
    symbol: str
    meaning: str
    value: int
    stops: tuple[int, ...]
    discrete: bool = False


class Key(NamedTuple):
    """What a formula is of.

    section: "row" or "kernel", or of an optimizer "quantity" or "kernel", or of one of its ranks too "rank",
    "persistent", "level", "moment", "loop" or "sum". number: of a level, moment, loop, sum, kernel or row. place: of a
    level or moment its phase, layer and rounds; of a loop the first moment and that after the last; of a sum its axis,
    operation and type; of a kernel its layer, its phase, its law's key and whether it is run again for backward; of a
    row its name and kind. rank: its place in a pipeline.
    """

    section: str
    name: str
    optimizer: str = ""
    number: int = 0
    place: tuple[str, ...] = ()
    rank: int = 0


@contextmanager
def uncollected() -> Iterator[None]:
    """No search for garbage in cycles meanwhile: the many objects of a trace have few, and a quarter of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class ExploredBranch:
    """A branch of the regimes: how many traces behind it have come to forms and to refusals."""

    def __init__(self, condition: Condition) -> None:
        self.condition = condition
        self.forms = self.refusals = 0
        self._letters = sorted(condition.of.letters)
        self._outcomes: dict[tuple[int, ...], int] = {}

    def outcome(self, point: Mapping[str, int]) -> int:
        """How its condition comes out at a point."""
        key = tuple([point[letter] for letter in self._letters])
        known = self._outcomes.get(key)
        if known is None:
            known = self._outcomes[key] = self.condition.outcome(self.condition.of.value(point))
        return known


class PageForms(ClosedForms):
    """Closed forms of every quantity, layer and step that may be the highest, with each of several optimizers."""

    def __init__(
        self,
        model: Architecture,
        settings: Mapping[str, Any],
        sizes: Sequence[SliderSize],
        optimizers: Sequence[Any] = (),
        changed: Mapping[str, Any] | None = None,
        stack: Stack | None = None,
    ) -> None:
        """optimizers: none where `settings` names the only one. stack: None for forms without kernels."""
        self.box = {size.name: (size.stops[0], size.stops[-1]) for size in sizes}
        super().__init__(model, settings, [size.name for size in sizes], (), changed, self.box)
        self.sizes = tuple(sizes)
        self.optimizers = tuple(optimizers)
        self.stack = stack
        self.kernels: dict[str, Kernel] = {}
        self._branches: dict[int, ExploredBranch] = {}

    def explore(self, seed: int = 0) -> None:
        """Find the regimes that sizes within their ranges are in: near every one that is known, and at random.

        Raises CostModelError if there is no answer where all sizes start, nor with one of them elsewhere.
        """
        found = [self._start()]
        for point in found:  # which grows
            found += self._look(self._near(point))
        more = self._look(self._drawn(found, random.Random(seed)))
        for point in more:
            more += self._look(self._near(point))

    def _start(self) -> dict[str, int]:
        """Where all sizes start, or if there is no answer, as of too few micro-batches for a pipeline, near there."""
        start = {size.name: size.value for size in self.sizes}
        if isinstance(leaf := self._leaf(start), Forms):
            return start
        for size in self.sizes:
            for stop in size.stops if size.name in SIZES else ():
                if isinstance(self._leaf(near := {**start, size.name: stop}), Forms):
                    return near
        raise CostModelError(leaf.message)

    def _leaf(self, point: Mapping[str, int]) -> Leaf:
        """The regime of a point, which is counted if there has been no trace in it."""
        leaf = self.known(point)
        if leaf is None:
            self._count(point, leaf := self.at(point))
        return leaf

    def _look(self, points: Iterable[Mapping[str, int]]) -> list[Mapping[str, int]]:
        """Trace at those points that are in no known regime; those of them that have an answer."""
        found: list[Mapping[str, int]] = []
        for point in points:
            if len(self._branches) > MOST_BRANCHES:
                break
            if self._unknown(point) and isinstance(self._leaf(point), Forms):
                found.append(point)
        return found

    def _near(self, point: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """A point with one size anywhere else, and where it decides another way on what is compared on its way."""
        for size in self.sizes:
            yield from ({**point, size.name: stop} for stop in size.stops)
        node, of = self.tree, list[Polynomial]()
        while isinstance(node, Branch):
            if node.condition.relation != "value" and _changes_sign(node.condition.of, self.box):
                of.append(node.condition.of)
            node = node.after.get(self._branches[id(node)].outcome(point))
        for difference in of:
            for letter in sorted(difference.letters):
                others = tuple((other, point[other]) for other in sorted(difference.letters) if other != letter)
                for size in crossing(difference, others, letter, self.box[letter]):
                    if self._allowed(other := {**point, letter: size}):
                        yield other

    def _drawn(self, points: Sequence[Mapping[str, int]], draw: random.Random) -> Iterator[dict[str, int]]:
        """Each size where it is at some point, at a stop or anywhere, at random."""
        others = {
            size.name: size.stops if size.discrete else [draw.randint(size.stops[0], size.stops[-1]) for _ in range(8)]
            for size in self.sizes
        }
        for _ in range(DRAWN):
            point = dict(draw.choice(points))
            for size in self.sizes:
                kind = draw.random()
                if kind < 0.3:
                    point[size.name] = draw.choice(size.stops)
                elif kind < 0.4:
                    point[size.name] = draw.choice(size.stops[:3])
                elif kind < 0.5:
                    point[size.name] = draw.choice(others[size.name])
            yield point

    def _allowed(self, point: Mapping[str, int]) -> bool:
        return all(not size.discrete or point[size.name] in size.stops for size in self.sizes)

    def _unknown(self, point: Mapping[str, int]) -> bool:
        """Whether a point may be in a regime that is not known yet; not where all others alike have been refused."""
        node = self.tree
        while isinstance(node, Branch):
            branch = self._branches[id(node)]
            if not branch.forms and branch.refusals > MOST_REFUSALS:
                return False
            node = node.after.get(branch.outcome(point))
        return node is None

    def _count(self, point: Mapping[str, int], leaf: Leaf) -> None:
        """Note under each branch on a point's way what kind of leaf it has come to."""
        node = self.tree
        while isinstance(node, Branch):
            branch = self._branches.setdefault(id(node), ExploredBranch(node.condition))
            if isinstance(leaf, Refusal):
                branch.refusals += 1
            else:
                branch.forms += 1
            node = node.after.get(branch.outcome(point))

    def _values(self, prediction: Prediction) -> dict[Hashable, int]:
        values: dict[Hashable, int] = {}
        for number, row in enumerate(prediction.layers):
            for column in COLUMNS:
                values[Key("row", column, number=number, place=(row.name, row.kind))] = getattr(row, column)
        settings, of_model = prediction.settings, _of_model(prediction)
        values |= self._of_kernels(prediction)
        several = {label_of(settings.optimizer): prediction}
        for optimizer in self.optimizers:
            if (label := label_of(optimizer)) not in several:
                other = Prediction(prediction.model, replace(settings, optimizer=optimizer), prediction.tape)
                other.layers = prediction.layers  # no optimizer changes them
                several[label] = other
        others = [*several.values()][1:]
        shared = False
        if others and prediction.ranks_in_order[0] is prediction:
            share_passes([prediction, *others])
            shared = all(other.timeline.passes is not None for other in others)
        for label, other in several.items():
            values |= {Key("quantity", name, label): value for name, value in of_model.items()}
            for place, rank in enumerate(other.ranks_in_order):
                values |= _of_rank(rank, label, place, shared)
            if self.stack is not None and settings.training:
                values |= self._of_tasks(update_tasks(other.tape, other.settings), label)
        return values

    def _of_kernels(self, prediction: Prediction) -> dict[Hashable, int]:
        """What a step asks of a machine whatever the optimizer."""
        if self.stack is None:
            return {}
        tasks = work_of(prediction.tape, prediction.settings, fuse=self.stack.fuses).tasks
        return self._of_tasks([task for task in tasks if task.phase != "update"])

    def _of_tasks(self, tasks: Iterable[Task], optimizer: str = "") -> dict[Hashable, int]:
        """The numbers of each kernel."""
        values: dict[Hashable, int] = {}
        for number, task in enumerate(tasks):
            key = key_of(task.kernel)
            self.kernels.setdefault(key, with_numbers(task.kernel, lambda _: 1))
            place = (task.layer, task.phase, key, "again" if task.again else "")
            for name, size in numbers_of(task.kernel).items():
                values[Key("kernel", name, optimizer, number, place)] = size
            values[Key("kernel", "times", optimizer, number, place)] = task.times
        return values


def _changes_sign(difference: Polynomial, box: Mapping[str, Range]) -> bool:
    """Whether it may; no remainder does."""
    try:
        least, most = difference.range(box)
    except ArithmeticError:  # it may divide by 0 somewhere
        return True
    return least < 0 < most


def crossing(difference: Polynomial, others: Iterable[tuple[str, int]], letter: str, within: Range) -> tuple[int, ...]:
    """Sizes, within a range, around where the difference becomes 0 with all others as they are, if it rises or falls.

    None where it divides by 0 on the way.
    """
    least, most = within
    point = dict(others)

    def at(size: int) -> int:
        return difference.value(point | {letter: size})

    try:
        rising = 1 if at(most) > at(least) else -1
        root = least + bisect_left(range(least, most), 0, key=lambda size: rising * at(size))
    except ZeroDivisionError:
        return ()
    return tuple(size for size in (root - 1, root, root + 1) if least <= size <= most)


def _of_model(prediction: Prediction) -> dict[str, int]:
    """Quantities of the whole model, which are the same whatever the optimizer."""
    values = {name: prediction.number(name) for name in MODEL_QUANTITIES if name not in PIPELINE}
    layout = prediction.settings.layout
    if layout.pp > 1 and prediction.settings.training:
        schedule = layout.pipeline(prediction.settings.micro_batches)
        passes = (schedule.idle, 3 * schedule.stages_per_rank * schedule.microbatches)
        values |= dict(zip(PIPELINE, passes, strict=True))
    return values


def _of_rank(rank: Costs, optimizer: str, place: int, shared: bool) -> Iterator[tuple[Key, int]]:
    """What a rank holds, computes, has alive at most and sends. shared: with others but for the optimizer's step."""

    def key(section: str, name: str, number: int = 0, at: tuple[str, ...] = (), of: str = optimizer) -> Key:
        return Key(section, name, of, number, at, place)

    for name in OF_RANKS:
        yield key("rank", name), rank.number(name)
    yield key("rank", "params"), held_params(rank)
    yield key("rank", "flops"), rank.flops.hardware
    yield key("rank", "in_flight"), rank.in_flight
    timeline = rank.timeline
    for line, size in timeline.persistent._asdict().items():
        yield key("persistent", line), size
    passes = timeline.phases["optimizer"][0] if shared else 0
    first = passes if timeline.passes is not None else 0
    around = [side for line in timeline.changes for side in (line[::2], line[1::2])]
    for number, moment in enumerate(timeline.moments[first:], first):
        of = optimizer if number >= passes else ""
        yield Key("moment", "", of, number, moment, place), 0
        for name, side in zip(CHANGES, around, strict=True):
            change = side[number]
            if type(change) is not int or change:
                yield Key("moment", name, of, number, moment, place), change
    for number, loop in enumerate(timeline.loops):
        if loop.end > first:
            of = optimizer if loop.end > passes else ""
            yield key("loop", "", number, (str(loop.start), str(loop.end)), of), loop.more
    for number, step in enumerate(timeline.highest):
        if step.phase == "optimizer" or not first:
            of = "" if shared and step.phase != "optimizer" else optimizer
            for line in LINES:
                yield key("level", line, number, (step.phase, step.layer, step.rounds), of), getattr(step.alive, line)
    for number, row in enumerate(rank.collectives.sums()):
        for column in SUMS:
            yield key("sum", column, number, (row["axis"], row["operation"], row["dtype"])), row[column]
