"""Candidates that are left out are the extreme nowhere."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from costmodel.symbolic.evaluation import ahead

numbers = st.integers(-9, 9) | st.integers(-(2**50), 2**50)


@given(st.data(), st.integers(1, 7), st.integers(1, 4), st.sampled_from([1, -1]), st.booleans())
def test_the_extreme_of_those_kept_is_the_extreme_of_all(
    data: st.DataObject, rows: int, places: int, sign: int, turned: bool
) -> None:
    drawn = data.draw(st.lists(numbers, min_size=2 * rows * places, max_size=2 * rows * places))
    lines = np.array(drawn, np.int64).reshape(rows, 2, places)
    factor = np.array(data.draw(st.lists(st.integers(0, 50), min_size=1, max_size=4)), np.int64)
    kept = ahead(lines, [factor, None] if turned else [None, factor], sign)
    level, slope = (lines[:, 1], lines[:, 0]) if turned else (lines[:, 0], lines[:, 1])
    values = sign * (level[:, None, :] + factor[None, :, None] * slope[:, None, :])
    assert (values[kept].max(axis=0) == values.max(axis=0)).all()
    assert ahead(lines, [None, factor, factor], sign).tolist() == list(range(rows))


def test_what_never_leads_is_left_out() -> None:
    level, slope = np.array([[0, 0], [5, 5], [2, 2]]), np.array([[3, 3], [1, 1], [1, 1]])
    assert ahead(np.stack([level, slope], axis=1), [None, np.array([1, 9])], 1).tolist() == [0, 1]
    assert ahead(np.stack([level, slope], axis=1), [None, np.array([4, 9])], 1).tolist() == [0]


def test_the_envelope_ends_where_rows_nearly_tie_at_the_start_of_a_wide_range() -> None:
    level, slope = (
        np.array([[998_000_000], [999_000_999], [999_900_500]]),
        np.array([[2_000_000], [1_000_000], [100_000]]),
    )
    assert {0, 2} <= set(ahead(np.stack([level, slope], axis=1), [None, np.array([1, 10**6])], -1).tolist())
