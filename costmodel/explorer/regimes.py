"""Closed forms of all that the page shows of one choice of settings, wherever its sizes can be set to."""

from __future__ import annotations

import gc
import random
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from costmodel.explorer.playing import PlayOutline
from costmodel.graph.kernel import Kernel
from costmodel.performance.laws import with_numbers
from costmodel.performance.work import Task, update_tasks, work_of
from costmodel.symbolic.guards import Branch, Condition, expression
from costmodel.symbolic.polynomial import Polynomial, Range
from costmodel.symbolic.sizes import peek
from costmodel.training.stacks import Stack

COLUMNS = tuple(column for column in Row._fields if column not in ("name", "kind"))
"""What a layer's row says in numbers."""
LINES = ("gradients", "activations", "casts", "cache", "temporaries")
"""What comes and goes during a step."""
OF_LEVELS = "memory.peak"
"""The quantity that has no formula of its own in the page, but is the highest of levels."""
OF_RANKS = tuple(name for name in QUANTITIES if name.startswith(("memory.", "collectives.")) and name != OF_LEVELS)
"""Quantities that each rank of a layout has for itself; a page gives those of its heaviest, as predictions do."""
RANK_QUANTITIES = (*OF_RANKS, "params", "flops", "in_flight")
"""What is told of each rank: with those what it holds, what it computes in a step, and micro-batches in flight."""
PIPELINE = ("pipeline.idle", "pipeline.busy")
"""What a rank of a pipeline waits and works in a step, in passes of equal stages."""
SAMPLES = "samples"
"""Samples of a step, of all micro-batches and devices."""
MODEL_QUANTITIES = (*(name for name in QUANTITIES if name not in (*OF_RANKS, OF_LEVELS)), *PIPELINE, SAMPLES)
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


class Distinct(dict[Any, int]):
    """Items by number, each once."""

    def __missing__(self, item: Any) -> int:
        number = self[item] = len(self)
        return number


@dataclass(frozen=True)
class PageLeaf(Forms):
    """Formulas of one regime. outline: what each is of, as `bundle.Part.leaves` has it."""

    outline: Sequence[Any] = ()


class FormulaNumbers(dict[Polynomial, int]):
    """The number that a formula has among others, of those of sizes traced at one point, where each gives its value."""

    def __init__(self, formulas: Distinct, point: Mapping[str, int]) -> None:
        super().__init__()
        self.formulas, self.point = formulas, point

    def of(self, size: int) -> int:
        """That of a size's formula. Raises ArithmeticError if it gives another value."""
        formula = expression(size)
        number = self.get(formula)
        if number is None:
            if (value := formula.value(self.point)) != peek(size):
                raise ArithmeticError(f"a formula gives {value}, not {peek(size)}")
            number = self[formula] = self.formulas[formula]
        return number

    def all(self, sizes: Iterable[int]) -> list[int]:
        """Those of several."""
        return [self.of(size) for size in sizes]


class RankOutline(NamedTuple):
    """What a page says of a rank, by numbers of formulas; all but the loops are as `bundle.Part.leaves` has it.

    loops: of moments the first, the one after the last, and how many more times they happen.
    """

    quantities: list[int]
    persistent: list[int]
    levels: list[list[Any]]
    sums: list[list[Any]]
    moments: list[list[Any]]
    loops: list[tuple[int, int, int]]


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
        self.formulas = Distinct()
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

    def _forms(self, prediction: Prediction, point: Mapping[str, int]) -> Forms:
        return PageLeaf({}, outline=self._outline(prediction, FormulaNumbers(self.formulas, point)))

    def _outline(self, prediction: Prediction, numbers: FormulaNumbers) -> list[Any]:
        rows = [
            [row.name, row.kind, *numbers.all(getattr(row, column) for column in COLUMNS)] for row in prediction.layers
        ]
        settings, of_model = prediction.settings, _of_model(prediction)
        quantities = [numbers.of(of_model[name]) if name in of_model else -1 for name in MODEL_QUANTITIES]
        kernels = self._of_kernels(prediction, numbers)
        several = {label_of(settings.optimizer): prediction}
        for optimizer in self.optimizers:
            if (label := label_of(optimizer)) not in several:
                other = Prediction(prediction.model, replace(settings, optimizer=optimizer), prediction.tape)
                other.layers = prediction.layers  # no optimizer changes them
                several[label] = other
        if len(several) > 1 and prediction.ranks_in_order[0] is prediction:
            share_passes([*several.values()])
        by_optimizer: dict[str, list[Any]] = {}
        alike: RankOutline | None = None
        for label, other in several.items():
            ranks = [_of_rank(rank, numbers, alike) for rank in other.ranks_in_order]
            alike = alike or ranks[0]
            update: list[Any] = []
            if self.stack is not None and settings.training and settings.layout.devices == 1:
                update = self._of_tasks(update_tasks(other.rank.tape, other.rank.settings), numbers)
            own = [[*rank[:4], _course(rank.moments, rank.loops)] for rank in ranks]
            by_optimizer[label] = [quantities, own, kernels + update, None]
            if self.stack is not None and settings.layout.devices > 1:
                by_optimizer[label][2:] = self._played(other, self.stack, numbers)
        return [rows, by_optimizer]

    def _played(self, prediction: Prediction, stack: Stack, numbers: FormulaNumbers) -> list[Any]:
        """The kernels of the ranks of a layout and what they do, see `PlayOutline`."""
        once = sum(task.contractions for task in work_of(prediction.tape, prediction.settings).tasks if not task.again)
        played = PlayOutline(prediction.ranks_in_order, stack, numbers.of, once)
        return [self._of_tasks(played.tasks, numbers), played.data]

    def _of_kernels(self, prediction: Prediction, numbers: FormulaNumbers) -> list[Any]:
        """What a step asks of a machine whatever the optimizer."""
        if self.stack is None or prediction.settings.layout.devices > 1:
            return []
        rank = prediction.rank
        tasks = work_of(rank.tape, rank.settings, fuse=self.stack.fuses).tasks
        return self._of_tasks([task for task in tasks if task.phase != "update"], numbers)

    def _of_tasks(self, tasks: Iterable[Task], numbers: FormulaNumbers) -> list[Any]:
        """The numbers of each kernel."""
        outlines: list[Any] = []
        for task in tasks:
            key = key_of(task.kernel)
            self.kernels.setdefault(key, with_numbers(task.kernel, lambda _: 1))
            sizes = (*numbers_of(task.kernel).values(), task.times)
            outlines.append([task.layer, task.phase, key, "again" if task.again else "", *numbers.all(sizes)])
        return outlines


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
    values = {name: prediction.number(name) for name in MODEL_QUANTITIES if name not in (*PIPELINE, SAMPLES)}
    layout = prediction.settings.layout
    values[SAMPLES] = prediction.samples
    if layout.pp > 1 and prediction.settings.training:
        schedule = layout.pipeline(prediction.settings.micro_batches)
        passes = (schedule.idle, 3 * schedule.stages_per_rank * schedule.microbatches)
        values |= dict(zip(PIPELINE, passes, strict=True))
    return values


def _of_rank(rank: Costs, numbers: FormulaNumbers, alike: RankOutline | None) -> RankOutline:
    """What a rank holds, computes, has alive at most and sends.

    alike: what is said of one that differs in the optimizer alone.
    """
    timeline = rank.timeline
    quantities = [*(rank.number(name) for name in OF_RANKS), held_params(rank), rank.flops.hardware, rank.in_flight]
    moments: list[list[Any]] = []
    levels: list[list[Any]] = []
    if timeline.passes is not None:
        assert alike is not None
        moments += alike.moments[: timeline.phases["optimizer"][0]]
        levels += [level for level in alike.levels if level[0] != "optimizer"]
    around = [side for line in timeline.changes for side in (line[::2], line[1::2])]
    for place in range(len(moments), len(timeline.moments)):
        moment: list[Any] = [*timeline.moments[place]]
        for change, side in enumerate(around):
            size = side[place]
            if type(size) is not int or size:
                moment.append((change, numbers.of(size)))
        moments.append(moment)
    for step in timeline.highest:
        if step.phase == "optimizer" or timeline.passes is None:
            sizes = (getattr(step.alive, line) for line in LINES)
            levels.append([step.phase, step.layer, step.rounds, *numbers.all(sizes)])
    return RankOutline(
        numbers.all(quantities),
        numbers.all(timeline.persistent),
        levels,
        [
            [row["axis"], row["operation"], row["dtype"], *numbers.all(row[column] for column in SUMS)]
            for row in rank.collectives.sums()
        ],
        moments,
        [(loop.start, loop.end, numbers.of(loop.more)) for loop in timeline.loops],
    )


def _course(moments: Sequence[list[Any]], loops: Iterable[tuple[int, int, int]]) -> list[Any]:
    """Moments with those that happen again in a list of their own; inner loops come before those around them."""
    course = [[moment] for moment in moments]
    for first, after, more in loops:
        again = [each for stretch in course[first:after] for each in stretch]
        course[first:after] = [[[more, again]], *([] for _ in range(first + 1, after))]
    return [each for stretch in course for each in stretch]
