"""Closed forms on a grid: which regime each cell is in, and every quantity's values there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from costmodel.closedforms import Branch, ClosedForms, Forms, Leaf, Refusal
from costmodel.decisions import Condition
from costmodel.evaluation import Evaluator
from costmodel.plans import Array, Grid, Window
from costmodel.polynomial import Polynomial

MOST_MASKED = 2**24
"""Regimes are found for the whole grid at once if no more cells than this tell them apart, else for each window."""


class Regime(NamedTuple):
    """The cells of a leaf: a mask that broadcasts to the grid; None: all."""

    mask: Array | None
    leaf: Leaf


class GridForms:
    """Closed forms on one grid, whose letters are those of the forms."""

    def __init__(self, forms: ClosedForms, grid: Grid) -> None:
        self.forms = forms
        self.grid = grid
        self.evaluator = Evaluator(grid)
        self._box = grid.box
        self._settled: dict[Condition, int | None] = {}
        self._regimes: list[Regime] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"forms": self.forms, "grid": self.grid, "_regimes": self._regimes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["forms"], state["grid"])
        self._regimes = state["_regimes"]

    @property
    def leaves(self) -> list[Leaf]:
        """The regimes found by `survey`."""
        return [leaf for _, leaf in self._regimes or []]

    def regimes(self, window: Window) -> list[Regime]:
        """The regimes within a window, the largest first."""
        if self._regimes is None:
            return _by_size(list(self._walk(lambda: self.forms.tree, None, window)))
        parts = [Regime(_cut(mask, window), leaf) for mask, leaf in self._regimes]
        return _by_size([Regime(_whole(m), leaf) for m, leaf in parts if m is None or m.any()])

    def survey(self) -> bool:
        """Find the regimes of the whole grid if few cells tell them apart; whether that was so."""
        try:
            self._regimes = list(self._walk(lambda: self.forms.tree, None, self.grid.whole, MOST_MASKED))
        except OverflowError:
            return False
        return True

    def fill(self, window: Window, out: Mapping[str, Array]) -> Array | None:
        """Put values of quantities into arrays of a window's shape; the mask of cells that have none, if any."""
        regimes = self.regimes(window)
        for quantity, array in out.items():
            self._fill(quantity, regimes, window, array)
        return refused(regimes)

    def _fill(self, quantity: str, regimes: list[Regime], window: Window, out: Array) -> None:
        filled: Polynomial | None = None
        for mask, leaf in regimes:
            formula = leaf.formulas[quantity] if isinstance(leaf, Forms) else _NOTHING
            if filled is None:
                self.evaluator.values(formula, window, out)
                filled = formula
            elif formula != filled and mask is not None:
                within = _bounds(mask, out.shape)
                inner = tuple(slice(w.start + b.start, w.start + b.stop) for w, b in zip(window, within, strict=True))
                np.copyto(
                    out[within], self.evaluator.values(formula, inner), where=_cut(mask, within), casting="unsafe"
                )

    def _walk(
        self, tree: Callable[[], Branch | Leaf | None], mask: Array | None, window: Window, most: int | None = None
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
        try:
            least, most = condition.of.range(self._box)
        except ArithmeticError:  # it may divide by 0 somewhere, though not where it is asked
            least, most = -math.inf, math.inf
        found: int | None = None
        if condition.relation == "positive":
            found = 1 if least > 0 else 0 if most <= 0 else None
        elif condition.relation == "zero":
            found = 0 if least > 0 or most < 0 else 1 if least == most == 0 else None
        elif least == most:
            found = int(least)
        self._settled[condition] = found
        return found

    def _cell(self, mask: Array | None, window: Window) -> dict[str, int]:
        start = [part.start for part in window]
        index = [0] * len(start) if mask is None else np.unravel_index(int(mask.argmax()), mask.shape)
        return self.grid.point([int(a + b) for a, b in zip(start, index, strict=True)])


_NOTHING = Polynomial({})
_EVERYWHERE = np.ones((), bool)


def refused(regimes: list[Regime]) -> Array | None:
    """The cells of these regimes that have no answer, as a mask that broadcasts; None if there are none such."""
    masks = [_EVERYWHERE if mask is None else mask for mask, leaf in regimes if isinstance(leaf, Refusal)]
    return reduce(np.logical_or, masks) if masks else None


def _by_size(regimes: list[Regime]) -> list[Regime]:
    """The one of most cells first."""
    return sorted(regimes, key=lambda regime: -1.0 if regime.mask is None else -regime.mask.mean())


def _cut(mask: Array | None, window: Window) -> Array | None:
    """The part of a mask within a window."""
    if mask is None:
        return None
    return mask[tuple(part if size > 1 else slice(None) for part, size in zip(window, mask.shape, strict=True))]


def _whole(mask: Array | None) -> Array | None:
    """None for a mask of all."""
    return None if mask is None or mask.all() else mask


def _bounds(mask: Array, shape: tuple[int, ...]) -> Window:
    """The smallest window that has all cells of a mask."""
    window: list[slice] = []
    for axis, size in enumerate(shape):
        if mask.shape[axis] == 1:
            window.append(slice(0, size))
            continue
        (along,) = np.nonzero(mask.any(axis=tuple(other for other in range(mask.ndim) if other != axis)))
        window.append(slice(int(along[0]), int(along[-1]) + 1))
    return tuple(window)
