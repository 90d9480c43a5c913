"""Grids of sizes, and plans of how polynomials are worked out on them.

Of many polynomials whose largest (or smallest) is wanted, those that cannot be it are left out. Candidates are rows of
one matrix of coefficients. Within a window some atoms do not vary: terms that differ only in those are one term there,
and few candidates are left that could be the extreme anywhere.
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


class Terms(NamedTuple):
    """What is left of all terms where some atoms vary: which of these each goes to, and the powers of those atoms."""

    joined: Any
    powers: Any
    monomials: list[Monomial]


class Contest:
    """The candidates of an extreme. dtype: of their coefficients, and of all that comes of them."""

    def __init__(self, op: str, candidates: Sequence[Polynomial], dtype: Any) -> None:
        monomials = list(dict.fromkeys(monomial for candidate in candidates for monomial in candidate.terms))
        self.atoms = list(dict.fromkeys(atom for monomial in monomials for atom, _ in monomial))
        self._powers = np.array([[dict(m).get(atom, 0) for atom in self.atoms] for m in monomials], np.int64)
        self._powers = self._powers.reshape(len(monomials), len(self.atoms))
        self._coefficients = np.array([[c.terms.get(m, 0) for m in monomials] for c in candidates], dtype)
        self._sign = 1 if op == "max" else -1
        self._terms: dict[tuple[bool, ...], Terms] = {}

    def terms(self, varying: tuple[bool, ...]) -> Terms:
        """The terms where these atoms vary."""
        found = self._terms.get(varying)
        if found is None:
            distinct, joined = np.unique(self._powers[:, varying], axis=0, return_inverse=True)
            atoms = [atom for atom, varies in zip(self.atoms, varying, strict=True) if varies]
            monomials = [tuple((a, int(n)) for a, n in zip(atoms, row, strict=True) if n) for row in distinct]
            matrix = np.zeros((len(self._powers), len(distinct)), self._coefficients.dtype)
            matrix[np.arange(len(matrix)), joined.reshape(-1)] = 1
            found = self._terms[varying] = Terms(matrix, distinct.astype(float), monomials)
        return found

    def coefficients(self, terms: Terms, varying: tuple[bool, ...], values: Sequence[int]) -> Any:
        """Of all candidates for these terms, where the other atoms have these values."""
        still = [not varies for varies in varying]
        factors = np.prod(np.array(values, self._coefficients.dtype) ** self._powers[:, still], axis=1)
        return (self._coefficients * factors.astype(self._coefficients.dtype)) @ terms.joined

    def winners(self, coefficients: Any, terms: Terms, low: Any, high: Any) -> Any:
        """Numbers of the candidates that none other exceeds wherever atoms are within bounds, as far as these tell."""
        if not len(low) or min(low) < 1:  # bounds are of positive sizes
            return np.arange(len(coefficients))
        ends = np.log([low, high])
        points = np.exp(np.array([ends[1], ends.mean(axis=0), ends[0]]) @ terms.powers.T)
        rivals = self._sign * coefficients.astype(float)
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
    sizes = np.abs(slopes) * last + np.abs(levels)  # what differences at the envelope may be rounded by
    touching = np.zeros(len(lines), bool)
    while True:
        values = slopes * at + levels
        highest = values >= values.max(axis=0) - SLACK * sizes
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
Window = tuple[slice, ...]
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
    def whole(self) -> Window:
        """All of it."""
        return tuple(slice(0, size) for size in self.shape)

    def point(self, index: Sequence[int]) -> dict[str, int]:
        """The letters of one cell."""
        return {name: int(values[index[axis]]) for name, (axis, values) in self.letters.items()}

    def part(self, window: Window) -> SizeGrid:
        """A grid of the cells within a window."""
        shape = tuple(part.stop - part.start for part in window)
        return SizeGrid(shape, {name: (axis, values[window[axis]]) for name, (axis, values) in self.letters.items()})


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
        self._plans: dict[Polynomial, tuple[Plan, Any]] = {}
        self._lines: dict[tuple[Any, Any], Array] = {}
        self._axes: dict[Atom, frozenset[int]] = {}

    def integral(self, of: Polynomial) -> bool:
        """Whether values of a polynomial are worked out in int64, which holds them all."""
        return self._planned(of)[1] is np.int64

    def values(self, of: Polynomial, window: Window, out: Array | None = None, *, exact: bool = False) -> Array:
        """Values within a window, of one cell along axes that do not matter; or all of them, put into `out`.

        exact: as Python's ints where int64 is too small.
        """
        plan, dtype = self._planned(of)
        work = _Work(self, window, object if exact and dtype is np.float64 else dtype)
        if out is None:
            return work.run(plan)
        if out.dtype != dtype:
            np.copyto(out, work.run(plan), casting="unsafe")
        else:
            work.into(plan, out)
        return out

    def plan(self, of: Polynomial) -> Plan:
        """How it is worked out."""
        return self._planned(of)[0]

    def _planned(self, of: Polynomial) -> tuple[Plan, Any]:
        found = self._plans.get(of)
        if found is None:
            dtype = np.int64 if of.magnitude(self._box) < INT64 else np.float64
            found = self._plans[of] = self._plan(of, dtype), dtype
        return found

    def axes_of(self, atom: Atom) -> frozenset[int]:
        """Axes along which an atom may vary."""
        found = self._axes.get(atom)
        if found is None:
            found = self._axes[atom] = frozenset(self.grid.letters[letter][0] for letter in atom.letters())
        return found

    def axes(self, of: Polynomial) -> frozenset[int]:
        """Axes along which it may vary."""
        return frozenset(self.grid.letters[letter][0] for letter in of.letters)

    def _plan(self, of: Polynomial, dtype: Any) -> Plan:
        axes = self.axes(of)
        for op in ("min", "max"):
            if (candidates := arguments(op, of)) != (of,):
                return Extreme(
                    op, tuple(self._plan(c, dtype) for c in candidates), axes, Contest(op, candidates, dtype)
                )
        if len(of.terms) < 2:
            monomial, coefficient = next(iter(of.terms.items()), ((), 0))
            return Product(coefficient, monomial, axes)
        # Outer axes seldom vary within a window. Rounded sums keep the order that they have had.
        along = sorted(axes, reverse=True)[: 2 if dtype is np.int64 else 1] or [-1]
        groups = min((groups for axis in along for groups in self._split(of, axis)), key=len)
        if len(groups) == len(of.terms) or (len(groups) == 1 and () in groups):
            pairs = [(None, self._plan(Polynomial({m: c}), dtype)) for m, c in of.terms.items()]
        else:
            pairs = [(self._factor(factor), self._plan(Polynomial(rest), dtype)) for factor, rest in groups.items()]
        return Sum(tuple(pairs), axes)

    def _factor(self, monomial: Monomial) -> Product | None:
        return Product(1, monomial, self.axes(Polynomial({monomial: 1}))) if monomial else None

    def _split(self, of: Polynomial, axis: int) -> tuple[dict[Monomial, Any], dict[Monomial, Any]]:
        """Terms by what in them varies along an axis, and by what does not."""
        inner: dict[Monomial, dict[Monomial, int]] = {}
        outer: dict[Monomial, dict[Monomial, int]] = {}
        for monomial, coefficient in of.terms.items():
            along = tuple((a, n) for a, n in monomial if any(self.grid.letters[x][0] == axis for x in a.letters()))
            across = tuple(power for power in monomial if power not in along)
            inner.setdefault(along, {})[across] = coefficient
            outer.setdefault(across, {})[along] = coefficient
        return inner, outer


class _Work:
    """One window's evaluation."""

    def __init__(self, evaluator: Evaluator, window: Window, dtype: Any) -> None:
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

    def run(self, plan: Plan) -> Array:
        """Values of a plan, of one cell along axes that do not matter; not to be written to."""
        if len(plan.axes) > 1:
            out = np.empty(self._shape(plan.axes), self.dtype)
            self.into(plan, out)
            return out
        lines, key = self.evaluator._lines, (plan, self.dtype)
        line = lines.get(key)
        if line is None:
            whole = _Work(self.evaluator, self.grid.whole, self.dtype)
            line = np.empty(whole._shape(plan.axes), self.dtype)
            whole.into(plan, line)
            lines[key] = line
        return line[tuple(self.window[axis] if axis in plan.axes else slice(None) for axis in range(line.ndim))]

    def into(self, plan: Plan, out: Array) -> None:
        """Fill `out` with the values of a plan."""
        if self._shape(plan.axes) != out.shape:
            out[...] = self.run(plan)
        elif isinstance(plan, Product):
            self._product(plan, out)
        elif isinstance(plan, Extreme):
            self._extreme(plan, out)
        else:
            self._sum(plan, out)

    def _extreme(self, plan: Extreme, out: Array) -> None:
        contest = plan.contest
        spread = [sum(self.spans[axis] > 1 for axis in self._axes(atom)) for atom in contest.atoms]
        if self.dtype is object or max(spread, default=0) != 1:  # a quotient of two sizes is no product of lines
            values = [self.run(each) for each in plan.plans]
            out[...] = reduce(np.maximum if plan.op == "max" else np.minimum, values)
            return
        varying = tuple(map(bool, spread))
        still = [self._power(a, 1).item() for a, varies in zip(contest.atoms, varying, strict=True) if not varies]
        terms = contest.terms(varying)
        coefficients = contest.coefficients(terms, varying, still)
        moving = [atom for atom, varies in zip(contest.atoms, varying, strict=True) if varies]
        low, high = zip(*(atom.range(self.box) for atom in moving), strict=True)
        winners = contest.winners(coefficients, terms, low, high)
        if len(winners) > MANY and out.size > SPLIT:
            self._split(plan, out)
        else:
            self._race(plan, coefficients[winners], terms.monomials, out)

    def _race(self, plan: Extreme, coefficients: Array, monomials: Sequence[Monomial], out: Array) -> None:
        """The extreme of rows of coefficients: for each its lines along one axis, and these times what is across."""
        axis = max(axis for axis in plan.axes if self.spans[axis] > 1)
        parts = [halves(m, frozenset(a for a, _ in m if axis in self._axes(a))) for m in monomials]
        along = {inner: number for number, inner in enumerate(dict.fromkeys(inner for inner, _ in parts))}
        across = {outer: number for number, outer in enumerate(dict.fromkeys(outer for _, outer in parts))}
        table = np.zeros((len(coefficients), len(across), len(along)), self.dtype)
        for number, (inner, outer) in enumerate(parts):
            table[:, across[outer], along[inner]] = coefficients[:, number]
        shape = self._shape(frozenset((axis,)))
        lines = table @ np.array([np.broadcast_to(self._monomial(inner), shape).reshape(-1) for inner in along])
        factors = [self._monomial(outer) if outer else None for outer in across]
        pick = np.maximum if plan.op == "max" else np.minimum
        if len(lines) > FEW:
            rows = ahead(lines, factors, 1 if plan.op == "max" else -1)
            lines, table = lines[rows], table[rows]
        best, spare = np.empty_like(out), np.empty_like(out)
        for number, rows in enumerate(lines):
            used = table[number].any(axis=1)
            pairs = [(f, row.reshape(shape)) for f, row, is_used in zip(factors, rows, used, strict=True) if is_used]
            self._add_up(pairs, best if number else out, spare)
            if number:
                pick(out, best, out=out)

    def _add_up(self, pairs: Sequence[tuple[Array | None, Array]], out: Array, spare: Array) -> None:
        """Σ factor · line; a factor of None is 1."""
        if not pairs:
            out[...] = 0
        for number, (factor, line) in enumerate(pairs):
            if factor is None:
                np.add(out if number else 0, line, out=out)
            elif not number:
                np.multiply(factor, line, out=out)
            else:
                np.multiply(factor, line, out=spare)
                np.add(out, spare, out=out)

    def _monomial(self, monomial: Monomial) -> Array:
        return reduce(
            np.multiply, [self._power(atom, n) for atom, n in monomial], np.ones((1,) * len(self.spans), self.dtype)
        )

    def _axes(self, atom: Atom) -> frozenset[int]:
        return self.evaluator.axes_of(atom)

    def _split(self, plan: Extreme, out: Array) -> None:
        """Work out each half of the window, cut along the axis over which sizes range farthest, by itself."""
        ranges = [
            (self.box[name][1] / self.box[name][0], axis)
            for name, (axis, _) in self.grid.letters.items()
            if axis in plan.axes and self.spans[axis] > 1
        ]
        _, widest = max(ranges)
        part = self.window[widest]
        middle = self.spans[widest] // 2
        for half in (slice(0, middle), slice(middle, self.spans[widest])):
            window = list(self.window)
            window[widest] = slice(part.start + half.start, part.start + half.stop)
            place = tuple(half if axis == widest else slice(None) for axis in range(len(window)))
            _Work(self.evaluator, tuple(window), self.dtype).into(plan, out[place])

    def _sum(self, plan: Sum, out: Array) -> None:
        spare: Array | None = None
        pairs = sorted(plan.pairs, key=lambda pair: pair[0] is None)
        for number, (factor, rest) in enumerate(pairs):
            if factor is None:
                value = self.run(rest)
                if number:
                    np.add(out, value, out=out)
                else:
                    out[...] = value
            elif not number:
                np.multiply(self.run(factor), self.run(rest), out=out)
            else:
                spare = np.empty_like(out) if spare is None else spare
                np.multiply(self.run(factor), self.run(rest), out=spare)
                np.add(out, spare, out=out)

    def _product(self, plan: Product, out: Array) -> None:
        factors = [self._power(atom, n) for atom, n in plan.monomial]
        if not factors:
            out[...] = plan.coefficient
            return
        head, *rest = sorted(factors, key=lambda factor: factor.size)
        small = head * self.dtype(plan.coefficient) if self.dtype is not object else head * plan.coefficient
        if not rest:
            out[...] = small
            return
        *middle, last = rest
        np.multiply(reduce(np.multiply, middle, small), last, out=out)

    def _power(self, atom: Atom, n: int) -> Array:
        found = self._powers.get((atom, n))
        if found is None:
            found = self._atom(atom) if n == 1 else self._power(atom, n - 1) * self._power(atom, 1)
            self._powers[atom, n] = found
        return found

    def _atom(self, atom: Atom) -> Array:
        if atom.op == "letter":
            axis, values = self.grid.letters[atom.args[0]]
            shape = [1] * len(self.grid.shape)
            part = values[self.window[axis]]
            shape[axis] = part.size
            return part.astype(self.dtype).reshape(shape)
        n, *others = (self.run(self.evaluator.plan(argument)) for argument in atom.args)
        if atom.op in ("min", "max"):
            return reduce(np.maximum if atom.op == "max" else np.minimum, others, n)
        (d,) = others
        with np.errstate(divide="ignore", invalid="ignore"):
            if atom.op == "ceil":
                return -(-n // d)
            return n // d if atom.op == "quotient" else n % d

    def _shape(self, axes: frozenset[int]) -> tuple[int, ...]:
        return tuple([span if axis in axes else 1 for axis, span in enumerate(self.spans)])
