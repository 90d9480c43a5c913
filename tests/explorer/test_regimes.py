"""Where regimes are looked for."""

from __future__ import annotations

import pytest

from costmodel.explorer.regimes import root_along
from costmodel.symbolic.polynomial import Polynomial, ceil_quotient

A, B = map(Polynomial.letter, "AB")


@pytest.mark.parametrize(
    ("difference", "found"),
    [
        (A - B, 7),
        (B - A, 7),
        (A * A + (-50), None),  # between two whole sizes
        (A + B, None),
        (ceil_quotient(Polynomial.of(12), A) - 3, 4),
        (ceil_quotient(Polynomial.of(12), A - 1) - 3, None),  # of its least size it divides by 0
    ],
)
def test_a_size_is_set_so_that_two_that_are_compared_are_equal(difference: Polynomial, found: int | None) -> None:
    assert root_along(difference, (("B", 7),), "A", (1, 100)) == found
