"""Answers to one choice of settings over the sizes left open: by formula, or by prediction where there are few."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from costmodel.closedforms import ClosedForms, Forms, Refusal
from costmodel.errors import CostModelError
from costmodel.plans import INT64, Array, Grid, Window
from costmodel.regimes import GridForms

FEW = 16
"""Grids of no more cells are answered by predicting at each: a trace with letters takes as long as so many."""
MOST_REASONS = 2_000
"""Cells of one sheet that are asked one by one why they have no answer; others say what one like them says."""


class Sheet(ABC):
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
    def fill(self, window: Window, out: Mapping[str, Array]) -> None:
        """Values; where there is none not a number, or anything in arrays of whole numbers."""

    @abstractmethod
    def reasons(self, window: Window) -> Array | None:
        """Texts; None if every cell has an answer."""


class FormulaSheet(Sheet):
    """Answers by formula."""

    def __init__(self, forms: ClosedForms, grid: Grid) -> None:
        self.forms = GridForms(forms, grid)
        self._surveyed = self.forms.survey()
        self._reasons: dict[tuple[tuple[str, int], ...], str] = {}

    @property
    def complete(self) -> bool:
        """As far as the regimes of the whole grid are known."""
        return self._surveyed and not any(isinstance(leaf, Refusal) for leaf in self.forms.leaves)

    def integral(self, quantity: str) -> bool:
        """By bounds at the grid's corners."""
        leaves = [leaf for leaf in self.forms.leaves if isinstance(leaf, Forms)]
        return self._surveyed and all(self.forms.evaluator.integral(leaf.formulas[quantity]) for leaf in leaves)

    def fill(self, window: Window, out: Mapping[str, Array]) -> None:
        """See `Sheet`."""
        missing = self.forms.fill(window, out)
        if missing is None:
            return
        for array in out.values():
            if array.dtype == np.float64:
                np.copyto(array, np.nan, where=missing)

    def reasons(self, window: Window) -> Array | None:
        """See `Sheet`."""
        result: Array | None = None
        for mask, leaf in self.forms.regimes(window):
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

    def _spread(self, window: Window, where: Array) -> Array:
        """A mask over all axes along which the texts vary, as far as their ends tell, and not just where cells do."""
        first = np.array(np.unravel_index(int(where.argmax()), where.shape))
        shape = list(where.shape)
        for axis, part in enumerate(window):
            last = first.copy()
            last[axis] = part.stop - part.start - 1
            if shape[axis] == 1 and last[axis] and self._reason(window, last) != self._reason(window, first):
                shape[axis] = int(last[axis]) + 1
        return np.broadcast_to(where, shape)

    def _reason(self, window: Window, index: Array) -> str:
        point = self.forms.grid.point([part.start + int(i) for part, i in zip(window, index, strict=True)])
        key = tuple(point.items())
        if key not in self._reasons:
            self._reasons[key] = self.forms.forms.reason(point)
        return self._reasons[key]


def _in_short(leaf: Refusal) -> str:
    """Why a regime has no answer, as one of its cells says it."""
    where = ", ".join(f"{name}={size}" for name, size in leaf.point.items())
    return f"as at {where}: {leaf.message}"


class PredictedSheet(Sheet):
    """Answers by prediction, cell by cell."""

    def __init__(self, forms: ClosedForms, grid: Grid) -> None:
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
        return all(value is None or value < INT64 for value in self._values[quantity].flat)

    def fill(self, window: Window, out: Mapping[str, Array]) -> None:
        """See `Sheet`."""
        for quantity, array in out.items():
            missing: Any = np.nan if array.dtype == np.float64 else 0
            refused = self._reasons[(*window, ...)].astype(bool)
            array[...] = np.where(refused, missing, self._values[quantity][(*window, ...)]).astype(array.dtype)

    def reasons(self, window: Window) -> Array | None:
        """See `Sheet`."""
        return None if self.complete else self._reasons[(*window, ...)]


def sheet_of(forms: ClosedForms, grid: Grid) -> Sheet:
    """The sheet of a question's closed forms on a grid."""
    few = int(np.prod(grid.shape)) <= FEW
    return PredictedSheet(forms, grid) if few else FormulaSheet(forms, grid)
