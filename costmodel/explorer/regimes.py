"""Closed forms of all that the page shows of one choice of settings, wherever its sizes can be set to."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

from costmodel.analysis.closed_forms import ClosedForms, Leaf, Refusal
from costmodel.analysis.predict import Prediction
from costmodel.analysis.sweep.axes import label_of
from costmodel.architectures.base import Architecture
from costmodel.cost.quantities import QUANTITIES
from costmodel.cost.rows import Row
from costmodel.explorer.laws import key_of, numbers_of
from costmodel.graph.kernel import Kernel
from costmodel.performance.laws import with_numbers
from costmodel.performance.work import work_of
from costmodel.symbolic.guards import Branch, Condition
from costmodel.symbolic.polynomial import Polynomial, Range
from costmodel.training.stacks import Stack

COLUMNS = tuple(column for column in Row._fields if column not in ("name", "kind"))
"""What a layer's row says in numbers."""
LINES = ("gradients", "activations", "casts", "cache", "temporaries")
"""What comes and goes during a step."""
OF_LEVELS = "memory.peak"
"""The quantity that has no formula of its own in the page, but is the highest of levels."""
DRAWN = 2_000
"""Settings drawn at random, each of which is in a known regime in the end."""
TIES = 200
"""Of so many more, one size is set so that two that are compared are equal."""
QUIET = 600
"""So many of them in known regimes, one after another, end the search sooner."""
MOST_REFUSALS = 5
"""Where so many settings and no other have been refused, no more are tried."""
MOST_REGIMES = 200
"""More are not looked for."""


class SliderSize(NamedTuple):
    """A size that the page can set: where it starts, and where its slider can stand, in order."""

    name: str
    symbol: str
    meaning: str
    value: int
    stops: tuple[int, ...]


class Key(NamedTuple):
    """What a formula is of.

    section: "quantity", "persistent", "level" or "kernel", each of an optimizer, or "row". number: of a level, kernel
    or row. place: of a level its phase, layer and rounds; of a kernel its layer, its phase, its law's key and whether
    it is run again for backward; of a row its name and kind.
    """

    section: str
    name: str
    optimizer: str = ""
    number: int = 0
    place: tuple[str, ...] = ()


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
        super().__init__(model, settings, [size.name for size in sizes], (), changed)
        self.sizes = tuple(sizes)
        self.optimizers = tuple(optimizers)
        self.stack = stack
        self.kernels: dict[str, Kernel] = {}
        self.box = {size.name: (size.stops[0], size.stops[-1]) for size in sizes}
        self.settled: dict[Condition, int | None] = {}
        self._leaves: dict[int, tuple[int, int]] = {}
        self._outcomes: dict[tuple[Condition, tuple[int, ...]], int] = {}

    def explore(self, seed: int = 0) -> None:
        """Find the regimes that sizes within their ranges are in: at stops, at many points drawn at random, at ties.

        Raises CostModelError if there is no answer where all sizes start.
        """
        start = {size.name: size.value for size in self.sizes}
        self.predict(start)
        draw = random.Random(seed)
        self._look(self._points(start, draw))
        self._look(self._ties(start, draw))

    def _look(self, points: Iterable[Mapping[str, int]]) -> None:
        """Trace at those points that are in no known regime."""
        new = quiet = 0
        for point in points:
            quiet += 1
            if self._unknown(point):
                new, quiet = new + 1, 0
                self._count(point, self.at(point))
            if new > MOST_REGIMES or quiet > QUIET:
                break

    def _points(self, start: Mapping[str, int], draw: random.Random) -> Iterator[dict[str, int]]:
        """Where regimes are looked for: at the start, with one size anywhere, with two at an end, and at random."""
        yield dict(start)
        for size in self.sizes:
            yield from ({**start, size.name: stop} for stop in size.stops)
        for one, two in combinations(self.sizes, 2):
            yield from ({**start, one.name: a, two.name: b} for a in one.stops[:2] for b in two.stops[:2])
        yield from self._drawn(start, draw, DRAWN)

    def _ties(self, start: Mapping[str, int], draw: random.Random) -> Iterator[dict[str, int]]:
        """Where what is asked to be equal is: a size is solved for, as hardly any point at random is such a one."""
        differences = [
            condition.of
            for condition, outcome in self.settled.items()
            if condition.relation == "zero" and outcome is None and _changes_sign(condition.of, self.box)
        ]
        for drawn in self._drawn(start, draw, TIES):
            for difference in differences:
                tied = (
                    root_along(difference, drawn, letter, self.box[letter]) for letter in sorted(difference.letters)
                )
                yield from (point for point in tied if point is not None)

    def _drawn(self, start: Mapping[str, int], draw: random.Random, count: int) -> Iterator[dict[str, int]]:
        """Each size where it starts, at a stop or anywhere, at random."""
        others = {s.name: [draw.randint(s.stops[0], s.stops[-1]) for _ in range(8)] for s in self.sizes}
        for _ in range(count):
            point = dict(start)
            for size in self.sizes:
                kind = draw.random()
                if kind < 0.4:
                    point[size.name] = draw.choice(size.stops)
                elif kind < 0.6:
                    point[size.name] = draw.choice(size.stops[:3])
                elif kind < 0.7:
                    point[size.name] = draw.choice(others[size.name])
            yield point

    def outcome(self, condition: Condition) -> int | None:
        """How a condition comes out at all sizes within their ranges, if it is always alike."""
        if condition not in self.settled:
            self.settled[condition] = condition.settled(self.box)
        return self.settled[condition]

    def _unknown(self, point: Mapping[str, int]) -> bool:
        """Whether a point may be in a regime that is not known yet; not where all others alike have been refused."""
        node = self.tree
        while isinstance(node, Branch):
            forms, refusals = self._leaves.get(id(node), (1, 0))
            if not forms and refusals > MOST_REFUSALS:
                return False
            condition = node.condition
            known_outcome = self.outcome(condition)
            if known_outcome is None:
                key = condition, tuple(point[letter] for letter in sorted(condition.of.letters))
                if key not in self._outcomes:
                    self._outcomes[key] = condition.outcome(condition.of.value(point))
                known_outcome = self._outcomes[key]
            node = node.after.get(known_outcome)
        return node is None

    def _count(self, point: Mapping[str, int], leaf: Leaf) -> None:
        """Note under each branch on a point's way what kind of leaf it has come to."""
        node = self.tree
        while isinstance(node, Branch):
            forms, refusals = self._leaves.get(id(node), (0, 0))
            refused = isinstance(leaf, Refusal)
            self._leaves[id(node)] = (forms, refusals + 1) if refused else (forms + 1, refusals)
            node = node.after.get(node.condition.outcome(node.condition.of.value(point)))

    def _values(self, prediction: Prediction) -> dict[Hashable, int]:
        values: dict[Hashable, int] = {}
        for number, row in enumerate(prediction.layers):
            for column in COLUMNS:
                values[Key("row", column, number=number, place=(row.name, row.kind))] = getattr(row, column)
        settings = prediction.settings
        for optimizer in self.optimizers or (settings.optimizer,):
            other = prediction
            if optimizer != settings.optimizer:
                other = Prediction(prediction.model, replace(settings, optimizer=optimizer), prediction.tape)
            values |= _of_optimizer(other, label_of(optimizer)) | self._of_kernels(other, label_of(optimizer))
        return values

    def _of_kernels(self, prediction: Prediction, optimizer: str) -> dict[Hashable, int]:
        """What a step asks of a machine."""
        values: dict[Hashable, int] = {}
        if self.stack is None:
            return values
        for number, task in enumerate(work_of(prediction.tape, prediction.settings, fuse=self.stack.fuses).tasks):
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


def root_along(difference: Polynomial, point: Mapping[str, int], letter: str, within: Range) -> dict[str, int] | None:
    """The point with one size changed so that the difference is 0, if it rises or falls to that within a range.

    None where it does not, or divides by 0 on the way.
    """
    least, most = within

    def at(size: int) -> int:
        return difference.value({**point, letter: size})

    try:
        rising = 1 if at(most) > at(least) else -1
        root = least + bisect_left(range(least, most), 0, key=lambda size: rising * at(size))
        return {**point, letter: root} if at(root) == 0 else None
    except ZeroDivisionError:
        return None


def _of_optimizer(prediction: Prediction, optimizer: str) -> dict[Hashable, int]:
    """What depends on the optimizer, and all quantities."""
    timeline = prediction.timeline
    values: dict[Hashable, int] = {
        Key("persistent", line, optimizer): size for line, size in timeline.persistent._asdict().items()
    }
    for number, step in enumerate(timeline.highest):
        for line in LINES:
            key = Key("level", line, optimizer, number, (step.phase, step.layer, step.rounds))
            values[key] = getattr(step.alive, line)
    for quantity in QUANTITIES:
        if quantity != OF_LEVELS:
            values[Key("quantity", quantity, optimizer)] = prediction.value(quantity)
    return values
