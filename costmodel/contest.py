"""Which of several polynomials can be the largest (or smallest) anywhere within given ranges of their letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from costmodel.polynomial import Monomial, Polynomial, Range

SLACK = 1e-9
"""Differences that are smaller than this share of what they are made of may be of float64's rounding."""


class Contest:
    """The candidates of an extreme, as a matrix of coefficients by monomials."""

    def __init__(self, op: str, candidates: Sequence[Polynomial]) -> None:
        monomials = {monomial: number for number, monomial in enumerate({m for c in candidates for m in c.terms})}
        self._monomials = list(monomials)
        self._coefficients = np.zeros((len(candidates), len(monomials)))
        for row, candidate in zip(self._coefficients, candidates, strict=True):
            for monomial, coefficient in candidate.terms.items():
                row[monomials[monomial]] = coefficient if op == "max" else -coefficient

    def winners(self, box: Mapping[str, Range]) -> list[int]:
        """Numbers of the candidates that none other exceeds at all points of a box, as far as bounds tell."""
        low, high = np.array([_range(monomial, box) for monomial in self._monomials], float).T
        standing = np.arange(len(self._coefficients))
        kept: list[int] = []
        for point in (high, np.sqrt(np.maximum(low, 0) * np.maximum(high, 0)), low):
            if not len(standing):
                break
            best = int(standing[np.argmax(self._coefficients[standing] @ point)])
            lead = self._coefficients[best] - self._coefficients[standing]
            least = np.where(lead > 0, lead * low, lead * high)
            beaten = least.sum(axis=1) > SLACK * np.abs(least).sum(axis=1)
            standing = standing[~beaten & (standing != best)]
            kept.append(best)
        return [*kept, *map(int, standing)]


def _range(monomial: Monomial, box: Mapping[str, Range]) -> Range:
    return Polynomial({monomial: 1}).range(box) if monomial else (1, 1)
