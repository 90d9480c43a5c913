"""Grids of sizes, and the values of polynomials on them.

Every polynomial is the extreme of candidates, of which most have one. Candidates are rows of one matrix of
coefficients. Within a window some atoms do not vary: terms that differ only in those are one term there, few candidates
are left that could be the extreme anywhere, and each is a sum of few lines, times what varies across them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np

from costmodel.symbolic.polynomial import Atom, Monomial, Polynomial, Range, arguments

SLACK = 1e-9
"""Differences that are smaller than this share of what they are made of may be of float64's rounding."""

EXACT = 2**53
"""From here on float64 does not hold every whole number."""


class TermGroups(NamedTuple):
    """What is left of all terms where some atoms vary: which of these each goes to, and the powers of those atoms."""

    joined: Any
    powers: Any
    monomials: list[Monomial]


class Lines(NamedTuple):
    """Candidates as sums: rows of (candidate, factor, place), a line's shape, and factors, of which None is 1."""

    rows: Any
    shape: tuple[int, ...]
    factors: list[Any]


class Dominance:
    """The candidates of an extreme, of which a polynomial that is none has one: itself.

    dtype: of their coefficients, and of all that comes of them.
    """

    def __init__(self, of: Polynomial, dtype: Any) -> None:
        op = "min" if len(candidates := arguments("min", of)) > 1 else "max"
        candidates = candidates if op == "min" else arguments("max", of)
        monomials = list(dict.fromkeys(monomial for candidate in candidates for monomial in candidate.terms)) or [()]
        self.atoms = list(dict.fromkeys(atom for monomial in monomials for atom, _ in monomial))
        self.pick = np.minimum if op == "min" else np.maximum
        self._powers = np.array([[dict(m).get(atom, 0) for atom in self.atoms] for m in monomials], np.int64)
        self._powers = self._powers.reshape(len(monomials), len(self.atoms))
        self._coefficients = np.array([[c.terms.get(m, 0) for m in monomials] for c in candidates], dtype)
        self.sign = 1 if op == "max" else -1
        self._terms: dict[tuple[bool, ...], TermGroups] = {}

    def terms(self, varying: tuple[bool, ...]) -> TermGroups:
        """The terms where these atoms vary."""
        known = self._terms.get(varying)
        if known is None:
            distinct, joined = np.unique(self._powers[:, varying], axis=0, return_inverse=True)
            atoms = [atom for atom, varies in zip(self.atoms, varying, strict=True) if varies]
            monomials = [tuple((a, int(n)) for a, n in zip(atoms, row, strict=True) if n) for row in distinct]
            matrix = np.zeros((len(self._powers), len(distinct)), self._coefficients.dtype)
            matrix[np.arange(len(matrix)), joined.reshape(-1)] = 1
            known = self._terms[varying] = TermGroups(matrix, distinct.astype(float), monomials)
        return known

    def coefficients(self, terms: TermGroups, varying: tuple[bool, ...], values: Sequence[int]) -> Any:
        """Of all candidates for these terms, where the other atoms have these values."""
        dtype = self._coefficients.dtype
        powers = self._powers[:, [not varies for varies in varying]].astype(dtype)
        return (self._coefficients * np.prod(np.array(values, dtype) ** powers, axis=1)) @ terms.joined

    def winners(self, coefficients: Any, terms: TermGroups, low: Any, high: Any) -> Any:
        """Numbers of the candidates that none other exceeds wherever atoms are within bounds, as far as these tell."""
        if not len(low) or min(low) < 1:  # bounds are of positive sizes
            return np.arange(len(coefficients))
        ends = np.log([low, high])
        points = np.exp(np.array([ends[1], ends.mean(axis=0), ends[0]]) @ terms.powers.T)
        rivals = self.sign * coefficients.astype(float)
        standing = np.arange(len(rivals))
        for point in points:  # the best at one point beats most of the others
            lead = rivals[standing[(rivals[standing] @ point).argmax()]] - rivals[standing]
            standing = standing[~_positive(np.where(lead > 0, lead * points[2], lead * points[0]))]
        if len(standing) < 8:
            return standing
        lead = rivals[standing][:, None] - rivals[standing]
        common = np.where(lead[..., None] != 0, terms.powers, np.inf).min(axis=2, keepdims=True)
        reduced = terms.powers - np.where(
            np.isinf(common), 0, common
        )  # what a difference's terms share does not matter
        least, most = (np.exp(reduced @ end) for end in ends)
        return standing[~_positive(np.where(lead > 0, lead * least, lead * most)).any(axis=0)]


def _positive(terms: Any) -> Any:
    """Whether sums are positive, whatever rounding did to them."""
    return terms.sum(axis=-1) > SLACK * np.abs(terms).sum(axis=-1)


def halves(monomial: Monomial, inner: frozenset[Atom]) -> tuple[Monomial, Monomial]:
    """The part of a monomial in these atoms, and the rest."""
    return tuple(p for p in monomial if p[0] in inner), tuple(p for p in monomial if p[0] not in inner)


def ahead(lines: Any, factors: Sequence[Any], sign: int) -> Any:
    """Numbers of the rows of (row, factor, place) that may be the most somewhere (sign −1: the least).

    At each place a row is straight in the one factor that varies, and the most of all rows is their upper envelope:
    a row is below it all along if it is below it wherever it turns, and at both ends.
    """
    varying = [number for number, factor in enumerate(factors) if factor is not None]
    factor = factors[varying[0]] if varying else None
    if len(factors) != 2 or len(varying) != 1 or factor is None or np.abs(lines).max() >= EXACT:
        return np.arange(len(lines))
    slopes, levels = (sign * lines[:, number].astype(float) for number in (varying[0], 1 - varying[0]))
    at, last = np.full(slopes.shape[1], float(factor.min())), float(factor.max())
    # What differences at the envelope may be rounded by: one slack for all rows, so that no row beyond it is above one
    # within it, and the next turn is always ahead.
    slack = SLACK * (np.abs(slopes) * last + np.abs(levels)).max(axis=0)
    touching = np.zeros(len(lines), bool)
    while True:
        values = slopes * at + levels
        highest = values >= values.max(axis=0) - slack
        touching |= highest.any(axis=1)
        if (at == last).all():
            return np.flatnonzero(touching)
        steepest = np.where(highest, slopes, -np.inf).argmax(axis=0)[None]
        rise = slopes - np.take_along_axis(slopes, steepest, axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            turns = at + (np.take_along_axis(values, steepest, axis=0) - values) / rise
        at = np.clip(np.where(rise > 0, turns, last).min(axis=0), np.nextafter(at, last), last)


INT64 = 2**63
"""From here on int64 wraps without a word."""

Array = np.ndarray[Any, Any]
GridWindow = tuple[slice, ...]
"""A part of a grid: from where to where along each axis."""


@dataclass(frozen=True)
class SizeGrid:
    """Axes of so many values each. letters: for each the number of its axis, and its values [int64]."""

    shape: tuple[int, ...]
    letters: Mapping[str, tuple[int, Array]]

    @property
    def box(self) -> dict[str, Range]:
        """The range of each letter."""
        return {name: (int(values.min()), int(values.max())) for name, (_, values) in self.letters.items()}

    @property
    def whole(self) -> GridWindow:
        """All of it."""
        return tuple(slice(0, size) for size in self.shape)

    def point(self, index: Sequence[int]) -> dict[str, int]:
        """The letters of one cell."""
        return {name: int(values[index[axis]]) for name, (axis, values) in self.letters.items()}

    def part(self, window: GridWindow) -> SizeGrid:
        """A grid of the cells within a window."""
        shape = tuple(part.stop - part.start for part in window)
        return SizeGrid(shape, {name: (axis, values[window[axis]]) for name, (axis, values) in self.letters.items()})


MANY = 24
FEW = 2
"""Of more candidates than this, those are sought first that are the extreme at some cell."""
SPLIT = 2**14
"""Where more candidates than this may be the extreme, windows of more cells are cut in two, and fewer are left."""


class Evaluator:
    """Works out polynomials on windows of one grid, as int64, or as float64 where a bound of them is beyond it."""

    def __init__(self, grid: SizeGrid) -> None:
        self.grid = grid
        self._box = grid.box
        self._dtypes: dict[Polynomial, Any] = {}
        self._dominances: dict[tuple[Polynomial, Any], Dominance] = {}
        self._axes: dict[Atom | Polynomial, tuple[int, ...]] = {}

    def integral(self, of: Polynomial) -> bool:
        """Whether values of a polynomial are worked out in int64, which holds them all."""
        return self._dtype(of) is np.int64

    def values(self, of: Polynomial, window: GridWindow, out: Array | None = None, *, exact: bool = False) -> Array:
        """Values within a window, of one cell along axes that do not matter; or all of them, put into `out`.

        exact: as Python's ints where int64 is too small.
        """
        dtype = self._dtype(of)
        work = _Work(self, window, object if exact and dtype is np.float64 else dtype)
        if out is None:
            return work.values(of)
        if out.dtype != dtype:
            np.copyto(out, work.values(of), casting="unsafe")
        else:
            work.fill(of, out)
        return out

    def _dtype(self, of: Polynomial) -> Any:
        if of not in self._dtypes:
            self._dtypes[of] = np.int64 if of.magnitude(self._box) < INT64 else np.float64
        return self._dtypes[of]

    def dominance(self, of: Polynomial, dtype: Any) -> Dominance:
        """The candidates of a polynomial."""
        if (of, dtype) not in self._dominances:
            self._dominances[of, dtype] = Dominance(of, dtype)
        return self._dominances[of, dtype]

    def axes(self, of: Atom | Polynomial) -> tuple[int, ...]:
        """Axes along which an atom or a polynomial may vary."""
        if of not in self._axes:
            letters = of.letters() if isinstance(of, Atom) else of.letters
            self._axes[of] = tuple({self.grid.letters[letter][0] for letter in letters})
        return self._axes[of]


class _Work:
    """One window's evaluation."""

    def __init__(self, evaluator: Evaluator, window: GridWindow, dtype: Any) -> None:
        self.evaluator = evaluator
        self.grid = evaluator.grid
        self.window = window
        self.dtype = dtype
        self.spans = tuple(part.stop - part.start for part in window)
        self._powers: dict[tuple[Atom, int], Array] = {}

    @cached_property
    def box(self) -> dict[str, Range]:
        """The range of each letter within the window."""
        return self.grid.part(self.window).box

    def values(self, of: Polynomial) -> Array:
        """Values of a polynomial, of one cell along axes that do not matter."""
        out = np.empty(self._shape(of), self.dtype)
        self.fill(of, out)
        return out

    def fill(self, of: Polynomial, out: Array) -> None:
        """Fill an array of the window's shape, or of that of the polynomial's axes, with its values."""
        if self._shape(of) != out.shape:
            out[...] = self.values(of)
            return
        dominance = self.evaluator.dominance(of, self.dtype)
        axes = {atom: [axis for axis in self.evaluator.axes(atom) if self.spans[axis] > 1] for atom in dominance.atoms}
        varying = tuple(map(bool, axes.values()))
        terms = dominance.terms(varying)
        still = [self._power(atom, 1).item() for atom, along in axes.items() if not along]
        coefficients = dominance.coefficients(terms, varying, still)
        # A quotient of two sizes is no product of lines. Python's ints are few.
        if len(coefficients) > 1 and self.dtype is not object and max(map(len, axes.values()), default=0) == 1:
            low, high = zip(*(atom.range(self.box) for atom, along in axes.items() if along), strict=True)
            coefficients = coefficients[dominance.winners(coefficients, terms, low, high)]
            if len(coefficients) > MANY and out.size > SPLIT:
                self._fill_halves(of, out)
                return
        self._race(dominance, self._lines(coefficients, terms.monomials, axes), out)

    def _lines(self, coefficients: Array, monomials: Sequence[Monomial], axes: Mapping[Atom, Sequence[int]]) -> Lines:
        """Coefficients times the atoms that vary along one axis alone, or along others alone: few factors are left."""
        axis_sets = [{axis} for axis in range(len(self.spans)) if self.spans[axis] > 1] or [set()]
        inner_sets = [
            inner
            for one in reversed(axis_sets)
            for inner in (
                frozenset(atom for atom, along in axes.items() if set(along) <= one),
                frozenset(atom for atom, along in axes.items() if not one & set(along)),
            )
        ]
        partitions = [[halves(monomial, inner) for monomial in monomials] for inner in inner_sets]
        parts = min(partitions, key=lambda parts: len({outer for _, outer in parts}))
        along = {inner: number for number, inner in enumerate(dict.fromkeys(inner for inner, _ in parts))}
        across = {outer: number for number, outer in enumerate(dict.fromkeys(outer for _, outer in parts))}
        table = np.zeros((len(coefficients), len(across), len(along)), self.dtype)
        for number, (inner, outer) in enumerate(parts):
            table[:, across[outer], along[inner]] = coefficients[:, number]
        arrays = np.broadcast_arrays(*map(self._monomial, along))
        lines = table @ np.array([array.reshape(-1) for array in arrays])
        return Lines(lines, arrays[0].shape, [self._monomial(outer) if outer else None for outer in across])

    def _race(self, dominance: Dominance, lines: Lines, out: Array) -> None:
        """The extreme of rows of lines, each times its factor and added up."""
        rows, factors = lines.rows, lines.factors
        if len(rows) > FEW:
            rows = rows[ahead(rows, factors, dominance.sign)]
        spare: Array | None = None
        best = np.empty_like(out) if len(rows) > 1 else out
        for number, row in enumerate(rows):
            target = best if number else out
            begun = False
            for factor, line in sorted(zip(factors, row, strict=True), key=lambda pair: pair[0] is None):
                if len(rows) > 1 and not line.any():
                    continue
                values = line.reshape(lines.shape)
                if factor is None:
                    np.add(target if begun else 0, values, out=target)
                elif not begun:
                    np.multiply(factor, values, out=target)
                else:
                    spare = np.empty_like(out) if spare is None else spare
                    np.add(target, np.multiply(factor, values, out=spare), out=target)
                begun = True
            if not begun:
                target[...] = 0
            if number:
                dominance.pick(out, best, out=out)

    def _fill_halves(self, of: Polynomial, out: Array) -> None:
        """Fill each half of the window, cut along the axis over which sizes range farthest, by itself."""
        ranges = [
            (self.box[name][1] / self.box[name][0], axis)
            for name, (axis, _) in self.grid.letters.items()
            if axis in self.evaluator.axes(of) and self.spans[axis] > 1
        ]
        _, widest = max(ranges)
        part, middle = self.window[widest], self.spans[widest] // 2
        for half in (slice(0, middle), slice(middle, self.spans[widest])):
            window = list(self.window)
            window[widest] = slice(part.start + half.start, part.start + half.stop)
            place = tuple(half if axis == widest else slice(None) for axis in range(len(window)))
            _Work(self.evaluator, tuple(window), self.dtype).fill(of, out[place])

    def _monomial(self, monomial: Monomial) -> Array:
        return reduce(
            np.multiply, [self._power(atom, n) for atom, n in monomial], np.ones((1,) * len(self.spans), self.dtype)
        )

    def _power(self, atom: Atom, n: int) -> Array:
        if (atom, n) not in self._powers:
            self._powers[atom, n] = self._atom(atom) if n == 1 else self._power(atom, n - 1) * self._power(atom, 1)
        return self._powers[atom, n]

    def _atom(self, atom: Atom) -> Array:
        if atom.op == "letter":
            axis, values = self.grid.letters[atom.args[0]]
            shape = [1] * len(self.spans)
            shape[axis] = self.spans[axis]
            return values[self.window[axis]].astype(self.dtype).reshape(shape)
        if atom.op in ("min", "max"):
            return self.values(Polynomial({((atom, 1),): 1}))
        n, d = map(self.values, atom.args)
        d = np.maximum(d, 1)  # where it would divide by none, cells are of another regime
        if atom.op == "ceil":
            return -(-n // d)
        return n // d if atom.op == "quotient" else n % d

    def _shape(self, of: Polynomial) -> tuple[int, ...]:
        axes = self.evaluator.axes(of)
        return tuple([span if axis in axes else 1 for axis, span in enumerate(self.spans)])
