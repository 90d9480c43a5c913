"""Which matrix products a calibration measures: spread evenly over the logarithms of sizes, as networks make them.

No shape here is one that is predicted: see `costmodel.roofline.validation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

Triple = tuple[int, int, int]
STEPS = (0.8191725133961645, 0.6710436067037893, 0.5497004779019703)
"""Of the R3 sequence, which fills a box evenly (Roberts 2018)."""
GRIDS = (1, 8, 16, 48)
"""To multiples of which sizes are rounded up in turn, as networks' are."""


@dataclass(frozen=True)
class Box:
    """Products (m, k) times (k, n) between two corners; multiply-adds from `least` to `most`.

    layout: whose columns are contiguous, "a" or "b"; "" for none. square: n is a square, the pixels of an image.
    """

    count: int
    low: Triple
    high: Triple
    least: float
    most: float
    layout: str = ""
    square: bool = False

    def shapes(self, share: float) -> Iterator[Triple]:
        """A share of them."""
        found = 0
        step = 0
        while found < self.count * share:
            step += 1
            u = [(0.5 + step * r) % 1.0 for r in STEPS]
            m, n, k = (round(a * (b / a) ** x) for a, b, x in zip(self.low, self.high, u, strict=True))
            grid = GRIDS[step % 4]
            m, k = _rounded(m, grid), _rounded(k, grid)
            n = max(isqrt(n), 4) ** 2 if self.square else _rounded(n, grid)
            if self.least <= m * n * k <= self.most:
                found += 1
                yield m, n, k


BOXES = (
    Box(30, (16, 36, 16), (600, 16_000, 1200), 1e6, 2e7, square=True),
    Box(26, (40, 36, 100), (600, 16_000, 5000), 2e7, 1.6e8, square=True),
    Box(8, (32, 6000, 20), (160, 40_000, 600), 4e7, 2e8, square=True),
    Box(18, (24, 24, 24), (2000, 4000, 4000), 1e6, 3e7),
    Box(24, (16, 24, 24), (1500, 4500, 4500), 1e6, 2e7, layout="b"),
    Box(18, (32, 100, 100), (1000, 4500, 4500), 2e7, 2e8, layout="b"),
    Box(3, (200, 500, 500), (1000, 4500, 4500), 2e8, 8e8, layout="b"),
    Box(14, (24, 24, 24), (3000, 3000, 1000), 1e6, 6e7, layout="a"),
    Box(8, (2, 32, 32), (15, 4000, 4000), 1e6, 1e7),
    Box(6, (32, 2, 32), (4000, 15, 4000), 1e6, 1e7),
    Box(4, (2, 32, 32), (15, 4000, 4000), 1e6, 1e7, layout="b"),
    Box(8, (32, 2, 32), (4000, 15, 4000), 1e6, 1e7, layout="b"),
    Box(24, (3, 3, 3), (400, 400, 1200), 100, 1e6),
    Box(24, (3, 3, 3), (400, 400, 1200), 100, 1e6, layout="b"),
    Box(8, (3, 3, 3), (400, 400, 400), 100, 1e6, layout="a"),
    Box(6, (1, 8, 8), (1, 6000, 6000), 500, 1e7),
    Box(8, (8, 1, 8), (6000, 1, 6000), 500, 1e7),
    Box(16, (1, 8, 8), (1, 6000, 8000), 500, 2e7, layout="b"),
)
"""Convolutions, small, large and wide; linear layers and their gradients; narrow products, small ones, vectors."""

BATCHES, HEAD = (4, 40), (24, 136)
TOKENS = (8, 180), (180, 700)
"""Ranges of attention: heads of a whole batch, features of a head, and, in turn, tokens of a sequence."""
MOST_ATTENTION = 1e8
"""Multiply-adds of a batch."""


def product_shapes(dtype: str, thorough: bool) -> Iterator[tuple[int, int, int, str]]:
    """(m, n, k, layout), none twice; in float64 fewer and smaller ones."""
    share = (1.0 if dtype == "float32" else 0.3) * (2.5 if thorough else 1)
    boxes = BOXES if dtype == "float32" or thorough else [box for box in BOXES if box.least < 2e7]
    yield from dict.fromkeys((*shape, box.layout) for box in boxes for shape in box.shapes(share))


def batched_shapes(dtype: str, thorough: bool) -> Iterator[tuple[int, int, int, int, str]]:
    """(batch, m, n, k, layout) of attention's scores, whose second operand is transposed, and of what it mixes."""
    most = (32 if dtype == "float32" else 8) * (2 if thorough else 1)
    for step in range(1, most + 1):
        u = [(0.5 + step * r) % 1.0 for r in STEPS]
        ranges = (BATCHES, TOKENS[step // 2 % 2], HEAD)
        batch, tokens, head = (round(a * (b / a) ** x) for (a, b), x in zip(ranges, u, strict=True))
        tokens, head = _rounded(tokens, GRIDS[step % 4]), _rounded(head, GRIDS[step // 4 % 3])
        batch = max(min(batch, int(MOST_ATTENTION / (tokens * tokens * head))), 3)
        yield (batch, tokens, tokens, head, "b") if step % 2 else (batch, tokens, head, tokens, "")


def _rounded(size: int, grid: int) -> int:
    return -(-size // grid) * grid if size > 4 * grid else size
