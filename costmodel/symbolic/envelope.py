"""Many polynomials at once, of which the largest (or smallest) is wanted: those that cannot be it are left out.

Candidates are rows of one matrix of coefficients. Within a window some atoms do not vary: terms that differ only in
those are one term there, and few candidates are left that could be the extreme anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from costmodel.symbolic.polynomial import Atom, Monomial, Polynomial

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


def ahead(lines: Any, factors: Sequence[Any], sign: int) -> list[int]:
    """Rows of (row, factor, place) that may be the most somewhere (sign -1: the least), where one factor varies.

    At each place a row is then straight in the factor, and the most of all between where it passes those that rise more
    slowly and where those pass it that rise faster.
    """
    varying = [number for number, factor in enumerate(factors) if factor is not None]
    factor = factors[varying[0]] if varying else None
    if len(factors) != 2 or len(varying) != 1 or factor is None or np.abs(lines).max() >= EXACT:
        return list(range(len(lines)))
    slopes, levels = (sign * lines[:, number].astype(float) for number in (varying[0], 1 - varying[0]))
    first, last = float(factor.min()), float(factor.max())
    found = []
    for row in range(len(lines)):
        rise, gap = slopes[row] - slopes, levels - levels[row]
        with np.errstate(divide="ignore", invalid="ignore"):
            meets = gap / rise
        since = np.maximum(np.where(rise > 0, meets, first).max(axis=0), first)
        until = np.minimum(np.where(rise < 0, meets, last).min(axis=0), last)
        below = ((rise == 0) & (gap > 0)).any(axis=0)
        if (~below & (since <= until + SLACK * np.abs(until))).any():
            found.append(row)
    return found
