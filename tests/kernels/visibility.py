"""The part of attention's square that a mask leaves: for each query, a run of keys."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from hypothesis import strategies as st

from costmodel.layers.attention import visible_pairs
from tests.kernels.kernel import Draw


class Visible(NamedTuple):
    """`keys` of each query, on the side of the product where they lie: its columns (scores) or its terms (mixing)."""

    keys: list[slice]
    side: Literal["columns", "terms"]

    def rows(self) -> list[tuple[slice, slice, slice]]:
        """(row, columns, terms) of each row's product."""
        every = slice(None)
        return [
            (slice(row, row + 1), *((keys, every) if self.side == "columns" else (every, keys)))
            for row, keys in enumerate(self.keys)
        ]

    def mask(self) -> np.ndarray:
        """Which pairs of the square are visible."""
        square = np.zeros((len(self.keys), len(self.keys)), bool)
        for row, keys in enumerate(self.keys):
            square[row, keys] = True
        return square


def draw_keys(draw: Draw, t: int) -> tuple[list[slice], int]:
    """The keys that each of `t` queries sees, causal, windowed or both, and how many pairs the library counts."""
    causal = draw(st.booleans())
    window = draw(st.integers(1, t + 1)) if not causal or draw(st.booleans()) else None
    behind = t if window is None else window
    keys = [slice(max(0, row - behind + 1), row + 1 if causal else min(t, row + behind)) for row in range(t)]
    return keys, visible_pairs(t, causal=causal, window=window)
