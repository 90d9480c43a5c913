"""Where regimes are looked for."""

from __future__ import annotations

import pytest

from costmodel.explorer.regimes import crossing
from costmodel.symbolic.polynomial import Polynomial, ceil_quotient

A, B = map(Polynomial.letter, "AB")


@pytest.mark.parametrize(
    ("difference", "sizes"),
    [
        (A - B, (6, 7, 8)),
        (B - A, (6, 7, 8)),
        (A * A + (-50), (7, 8, 9)),  # between two whole sizes
        (A - B * 15, (99, 100)),  # beyond the range
        (ceil_quotient(Polynomial.of(12), A) - 3, (3, 4, 5)),
        (ceil_quotient(Polynomial.of(12), A - 1) - 3, ()),  # of its least size it divides by 0
    ],
)
def test_sizes_around_which_a_comparison_comes_out_otherwise(difference: Polynomial, sizes: tuple[int, ...]) -> None:
    assert crossing(difference, (("B", 7),), "A", (1, 100)) == sizes
