"""Closed forms on a grid: which regime each cell is in, and every quantity's values there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import reduce
from math import prod
from typing import Any, NamedTuple

import numpy as np

from costmodel.analysis.closed_forms import ClosedForms, Forms, Leaf, Refusal
from costmodel.cost.quantities import TIMED
from costmodel.errors import CostModelError
from costmodel.symbolic.evaluation import INT64, Array, Evaluator, GridWindow, SizeGrid
from costmodel.symbolic.guards import Branch, Condition
from costmodel.symbolic.polynomial import Polynomial

MOST_MASKED = 2**24
"""Regimes are sought on the whole grid at once if no more cells than this tell them apart, else for each window."""
PIECE = 15_000
"""Cells whose times are worked out together: of their many arrays none is so large (128 KiB) that the allocator asks
the system for memory anew each time, which takes longer than the arithmetic."""


class Regime(NamedTuple):
    """The cells of a leaf: a mask that broadcasts to the grid; None: all."""

    mask: Array | None
    leaf: Leaf


FEW = 16
"""Grids of no more cells are answered by predicting at each: a trace with letters takes as long as so many."""
MOST_REASONS = 2_000
"""Cells of a choice that are asked one by one why they have no answer; others say what one like them says."""


class GridAnswers(ABC):
    """Abstract: a grid of answers. `fill` puts values into arrays; `reasons` says why there is none, "" where is one.

    Both are of a window, and masks and reasons broadcast to it.
    """

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether every cell is known to have an answer."""

    @abstractmethod
    def integral(self, quantity: str) -> bool:
        """Whether all values of a quantity are known to be within int64."""

    @abstractmethod
    def fill(self, window: GridWindow, out: Mapping[str, Array]) -> None:
        """Values; where there is none not a number, or anything in arrays of whole numbers."""

    @abstractmethod
    def reasons(self, window: GridWindow) -> Array | None:
        """Texts; None if every cell has an answer."""


class FormulaAnswers(GridAnswers):
    """Answers by closed forms, whose letters are those of the grid.

    Regimes of the whole grid are found once, if few cells tell them apart.
    """

    def __init__(self, forms: ClosedForms, grid: SizeGrid) -> None:
        self.forms = forms
        self.grid = grid
        self.evaluator = Evaluator(grid)
        self._box = grid.box
        self._settled: dict[Condition, int | None] = {}
        self._reasons: dict[tuple[tuple[str, int], ...], str] = {}
        self._regimes: list[Regime] | None = None
        with suppress(OverflowError):
            self._regimes = list(self._walk(lambda: self.forms.tree, None, self.grid.whole, MOST_MASKED))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "evaluator": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, evaluator=Evaluator(state["grid"]))

    @property
    def complete(self) -> bool:
        """As far as the regimes of the whole grid are known."""
        return self._regimes is not None and not any(isinstance(leaf, Refusal) for _, leaf in self._regimes)

    def integral(self, quantity: str) -> bool:
        """By bounds at the grid's corners."""
        if quantity in TIMED:
            return False
        leaves = [leaf for _, leaf in self._regimes or [] if isinstance(leaf, Forms)]
        known = self._regimes is not None
        return known and all(self.evaluator.integral(leaf.formulas[quantity]) for leaf in leaves)

    def fill(self, window: GridWindow, out: Mapping[str, Array]) -> None:
        """See `GridAnswers`."""
        regimes = self.regimes(window)
        for quantity, array in out.items():
            if quantity not in TIMED:
                self._fill(quantity, regimes, window, array)
        times = {quantity: array for quantity, array in out.items() if quantity in TIMED}
        if times:
            self._fill_times(regimes, window, times)
        missing = refused(regimes)
        for array in out.values():
            if missing is not None and array.dtype == np.float64:
                np.copyto(array, np.nan, where=missing)

    def reasons(self, window: GridWindow) -> Array | None:
        """See `GridAnswers`."""
        result: Array | None = None
        for mask, leaf in self.regimes(window):
            if not isinstance(leaf, Refusal):
                continue
            where = self._spread(window, np.ones((1,) * len(window), bool) if mask is None else mask)
            shape = where.shape if result is None else np.broadcast_shapes(result.shape, where.shape)
            texts = np.full(shape, "", object) if result is None else np.broadcast_to(result, shape).copy()
            cells = np.broadcast_to(where, shape)
            texts[cells] = _in_short(leaf)
            for index in np.argwhere(cells)[: max(0, MOST_REASONS - len(self._reasons))]:
                texts[tuple(index)] = self._reason(window, index)
            result = texts
        return result

    def _spread(self, window: GridWindow, where: Array) -> Array:
        """A mask over all axes along which the texts vary, as far as their ends tell, and not just where cells do."""
        first = np.array(np.unravel_index(int(where.argmax()), where.shape))
        shape = list(where.shape)
        for axis, part in enumerate(window):
            last = first.copy()
            last[axis] = part.stop - part.start - 1
            if shape[axis] == 1 and last[axis] and self._reason(window, last) != self._reason(window, first):
                shape[axis] = int(last[axis]) + 1
        return np.broadcast_to(where, shape)

    def _reason(self, window: GridWindow, index: Array) -> str:
        point = self.grid.point([part.start + int(i) for part, i in zip(window, index, strict=True)])
        key = tuple(point.items())
        if key not in self._reasons:
            self._reasons[key] = self.forms.reason(point)
        return self._reasons[key]

    def regimes(self, window: GridWindow) -> list[Regime]:
        """The regimes within a window, the largest first."""
        if self._regimes is None:
            return _by_size(list(self._walk(lambda: self.forms.tree, None, window)))
        parts = [Regime(_cut(mask, window), leaf) for mask, leaf in self._regimes]
        return _by_size([Regime(_whole(m), leaf) for m, leaf in parts if m is None or m.any()])

    def _fill_times(self, regimes: list[Regime], window: GridWindow, out: Mapping[str, Array]) -> None:
        """Put times into arrays: of each regime those of the smallest window that has all its cells, in pieces."""
        shape = next(iter(out.values())).shape
        for mask, leaf in regimes:
            if not isinstance(leaf, Forms) or leaf.time is None:
                continue
            for within in _pieces(tuple(slice(0, size) for size in shape) if mask is None else _bounds(mask, shape)):
                where = True if mask is None else _cut(mask, within)
                if where is not True and not np.any(where):
                    continue
                inner = _inner(window, within)
                step = leaf.time.at(lambda of, inner=inner: self.evaluator.values(of, inner).astype(np.float64))
                for quantity, array in out.items():
                    np.copyto(array[(*within, ...)], step.value(quantity), where=where)

    def _fill(self, quantity: str, regimes: list[Regime], window: GridWindow, out: Array) -> None:
        filled: Polynomial | None = None
        for mask, leaf in regimes:
            formula = leaf.formulas[quantity] if isinstance(leaf, Forms) else _NOTHING
            if filled is None:
                self.evaluator.values(formula, window, out)
                filled = formula
            elif formula != filled and mask is not None:
                within = _bounds(mask, out.shape)
                inner = _inner(window, within)
                np.copyto(
                    out[within], self.evaluator.values(formula, inner), where=_cut(mask, within), casting="unsafe"
                )

    def _walk(
        self, tree: Callable[[], Branch | Leaf | None], mask: Array | None, window: GridWindow, most: int | None = None
    ) -> Iterator[Regime]:
        node = tree()
        if node is None:
            self.forms.at(self._cell(mask, window))
            node = tree()
        while isinstance(node, Branch) and (outcome := self._outcome(node.condition)) is not None:
            if outcome not in node.after:
                self.forms.at(self._cell(mask, window))
            node = node.after[outcome]
        if isinstance(node, Forms | Refusal):
            yield Regime(mask, node)
            return
        assert isinstance(node, Branch)
        values = self.evaluator.values(node.condition.of, window, exact=True)
        outcomes = node.condition.outcome(values)
        if most is not None and max(outcomes.size, 0 if mask is None else np.broadcast(mask, outcomes).size) > most:
            raise OverflowError
        for outcome in map(int, np.unique(outcomes)):
            part = outcomes == outcome if mask is None else (outcomes == outcome) & mask
            if part.any():
                yield from self._walk(lambda key=outcome: node.after.get(key), _whole(part), window, most)

    def _outcome(self, condition: Condition) -> int | None:
        """How a condition comes out on all of the grid, if bounds tell."""
        if condition in self._settled:
            return self._settled[condition]
        outcome = condition.settled(self._box)
        self._settled[condition] = outcome
        return outcome

    def _cell(self, mask: Array | None, window: GridWindow) -> dict[str, int]:
        start = [part.start for part in window]
        index = [0] * len(start) if mask is None else np.unravel_index(int(mask.argmax()), mask.shape)
        return self.grid.point([int(a + b) for a, b in zip(start, index, strict=True)])


_NOTHING = Polynomial({})
_EVERYWHERE = np.ones((), bool)


def refused(regimes: list[Regime]) -> Array | None:
    """The cells of these regimes that have no answer, as a mask that broadcasts; None if there are none such."""
    masks = [_EVERYWHERE if mask is None else mask for mask, leaf in regimes if isinstance(leaf, Refusal)]
    return reduce(np.logical_or, masks) if masks else None


def _pieces(window: GridWindow) -> Iterator[GridWindow]:
    """A window in parts of at most `PIECE` cells, halved along its longest axis."""
    sizes = [part.stop - part.start for part in window]
    if prod(sizes) <= PIECE:
        yield window
        return
    axis = sizes.index(max(sizes))
    start, stop = window[axis].start, window[axis].stop
    for part in (slice(start, (start + stop) // 2), slice((start + stop) // 2, stop)):
        yield from _pieces((*window[:axis], part, *window[axis + 1 :]))


def _by_size(regimes: list[Regime]) -> list[Regime]:
    """The one of most cells first."""
    return sorted(regimes, key=lambda r: -1.0 if r.mask is None else -np.count_nonzero(r.mask) / r.mask.size)


def _inner(window: GridWindow, within: GridWindow) -> GridWindow:
    """In the grid, what has these places in a window."""
    return tuple(slice(w.start + b.start, w.start + b.stop) for w, b in zip(window, within, strict=True))


def _cut(mask: Array | None, window: GridWindow) -> Array | None:
    """The part of a mask within a window."""
    if mask is None:
        return None
    return mask[tuple(part if size > 1 else slice(None) for part, size in zip(window, mask.shape, strict=True))]


def _whole(mask: Array | None) -> Array | None:
    """None for a mask of all."""
    return None if mask is None or mask.all() else mask


def _bounds(mask: Array, shape: tuple[int, ...]) -> GridWindow:
    """The smallest window that has all cells of a mask."""
    window: list[slice] = []
    for axis, size in enumerate(shape):
        if mask.shape[axis] == 1:
            window.append(slice(0, size))
            continue
        (along,) = np.nonzero(mask.any(axis=tuple(other for other in range(mask.ndim) if other != axis)))
        window.append(slice(int(along[0]), int(along[-1]) + 1))
    return tuple(window)


def _in_short(leaf: Refusal) -> str:
    """Why a regime has no answer, as one of its cells says it."""
    where = ", ".join(f"{name}={size}" for name, size in leaf.point.items())
    return f"as at {where}: {leaf.message}"


class PredictedAnswers(GridAnswers):
    """Answers by prediction, cell by cell."""

    def __init__(self, forms: ClosedForms, grid: SizeGrid) -> None:
        self._reasons = np.full(grid.shape, "", object)
        self._values = {quantity: np.full(grid.shape, None, object) for quantity in forms.quantities}
        for index in np.ndindex(grid.shape):
            try:
                prediction = forms.predict(grid.point(index))
                for quantity, values in self._values.items():
                    values[index] = prediction.value(quantity)
            except CostModelError as error:
                self._reasons[index] = str(error)

    @property
    def complete(self) -> bool:
        """All are known."""
        return not self._reasons.any()

    def integral(self, quantity: str) -> bool:
        """By the values."""
        return quantity not in TIMED and all(v is None or v < INT64 for v in self._values[quantity].flat)

    def fill(self, window: GridWindow, out: Mapping[str, Array]) -> None:
        """See `GridAnswers`."""
        for quantity, array in out.items():
            missing: Any = np.nan if array.dtype == np.float64 else 0
            refused = self._reasons[(*window, ...)].astype(bool)
            array[...] = np.where(refused, missing, self._values[quantity][(*window, ...)]).astype(array.dtype)

    def reasons(self, window: GridWindow) -> Array | None:
        """See `GridAnswers`."""
        return None if self.complete else self._reasons[(*window, ...)]


def answers_of(forms: ClosedForms, grid: SizeGrid) -> GridAnswers:
    """The answers of a question's closed forms on a grid."""
    few = int(np.prod(grid.shape)) <= FEW
    staged = forms.settings.get("pp", 1) != 1  # which rank is the heaviest follows from no regime
    shared = forms.timed and forms.laid_out  # what a step over devices takes is played, cell by cell
    return PredictedAnswers(forms, grid) if few or staged or shared else FormulaAnswers(forms, grid)
