"""Grids of sizes, and plans of how polynomials are worked out on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodel.contest import Contest
from costmodel.polynomial import Monomial, Range

INT64 = 2**63
"""From here on int64 wraps without a word."""

Array = np.ndarray[Any, Any]
Window = tuple[slice, ...]
"""A part of a grid: from where to where along each axis."""


@dataclass(frozen=True)
class Grid:
    """Axes of so many values each. letters: for each the number of its axis, and its values [int64]."""

    shape: tuple[int, ...]
    letters: Mapping[str, tuple[int, Array]]

    @property
    def box(self) -> dict[str, Range]:
        """The range of each letter."""
        return {name: (int(values.min()), int(values.max())) for name, (_, values) in self.letters.items()}

    @property
    def whole(self) -> Window:
        """All of it."""
        return tuple(slice(0, size) for size in self.shape)

    def point(self, index: Sequence[int]) -> dict[str, int]:
        """The letters of one cell."""
        return {name: int(values[index[axis]]) for name, (axis, values) in self.letters.items()}

    def part(self, window: Window) -> Grid:
        """A grid of the cells within a window."""
        shape = tuple(part.stop - part.start for part in window)
        return Grid(shape, {name: (axis, values[window[axis]]) for name, (axis, values) in self.letters.items()})


@dataclass(frozen=True, eq=False)
class Product:
    """coefficient · Π atoms."""

    coefficient: int
    monomial: Monomial
    axes: frozenset[int]


@dataclass(frozen=True, eq=False)
class Sum:
    """Σ factor · rest, over pairs; a factor of None is 1."""

    pairs: tuple[tuple[Product | None, Plan], ...]
    axes: frozenset[int]


@dataclass(frozen=True, eq=False)
class Extreme:
    """The smallest or largest of plans, which are of these candidates."""

    op: str
    plans: tuple[Plan, ...]
    axes: frozenset[int]
    contest: Contest


Plan = Product | Sum | Extreme
