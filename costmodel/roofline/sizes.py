"""Sizes of the matrix products that a calibration measures: spread evenly over the logarithms of what networks ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

Triple = tuple[int, int, int]
STEPS = (0.8191725133961645, 0.6710436067037893, 0.5497004779019703)
"""Of the R3 sequence, which fills a box evenly (Roberts 2018)."""
GRIDS = (1, 8, 16, 64)
"""Sizes are rounded up to multiples of these in turn, since those of networks are."""


@dataclass(frozen=True)
class SizeBox:
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
        """The first so many of its shapes."""
        count = step = 0
        while count < self.count * share:
            step += 1
            u = [(0.5 + step * r) % 1.0 for r in STEPS]
            m, n, k = (round(a * (b / a) ** x) for a, b, x in zip(self.low, self.high, u, strict=True))
            grid = GRIDS[step % 4]
            m, k = _rounded(m, grid), _rounded(k, grid)
            n = max(isqrt(n), 4) ** 2 if self.square else _rounded(n, grid)
            if self.least <= m * n * k <= self.most:
                count += 1
                yield m, n, k


BOXES = (
    SizeBox(30, (16, 36, 16), (600, 16_000, 1200), 1e6, 2e7, square=True),
    SizeBox(24, (40, 36, 100), (600, 16_000, 5000), 2e7, 1.6e8, square=True),
    SizeBox(8, (32, 6000, 20), (160, 40_000, 600), 4e7, 2e8, square=True),
    SizeBox(18, (24, 24, 24), (2000, 4000, 4000), 1e6, 3e7),
    SizeBox(24, (16, 24, 24), (1500, 4500, 4500), 1e6, 2e7, layout="b"),
    SizeBox(15, (32, 100, 100), (1000, 4500, 4500), 2e7, 2e8, layout="b"),
    SizeBox(2, (200, 500, 500), (1000, 4500, 4500), 2e8, 8e8, layout="b"),
    SizeBox(3, (20, 12_000, 300), (60, 60_000, 1000), 3e8, 6e8, layout="b"),
    SizeBox(14, (24, 24, 24), (3000, 3000, 1000), 1e6, 6e7, layout="a"),
    SizeBox(8, (2, 32, 32), (15, 4000, 4000), 1e6, 1e7),
    SizeBox(8, (32, 2, 32), (4000, 10, 4000), 1e6, 1e7),
    SizeBox(4, (2, 32, 32), (15, 4000, 4000), 1e6, 1e7, layout="b"),
    SizeBox(8, (32, 2, 32), (4000, 15, 4000), 1e6, 1e7, layout="b"),
    SizeBox(4, (2, 32, 32), (15, 4000, 4000), 1e6, 1e7, layout="a"),
    SizeBox(8, (32, 3, 32), (4000, 11, 4000), 1e6, 1e7, layout="a"),
    SizeBox(6, (100, 200, 2), (1000, 4500, 15), 2e5, 2e7, layout="b"),
    SizeBox(4, (100, 200, 2), (1000, 4500, 15), 2e5, 2e7, layout="a"),
    SizeBox(21, (3, 3, 3), (400, 400, 1200), 100, 1e6),
    SizeBox(21, (3, 3, 3), (400, 400, 1200), 100, 1e6, layout="b"),
    SizeBox(8, (3, 3, 3), (400, 400, 400), 100, 1e6, layout="a"),
    SizeBox(6, (1, 8, 8), (1, 6000, 6000), 500, 1e7),
    SizeBox(8, (8, 1, 8), (6000, 1, 6000), 500, 1e7),
    SizeBox(14, (1, 8, 8), (1, 6000, 8000), 500, 2e7, layout="b"),
)
"""Convolutions, small, large and wide; linear layers, those of a vocabulary too, and their gradients; narrow products,
small ones, vectors."""

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
    yield from map(attended, range(1, most + 1))


def attended(step: int) -> tuple[int, int, int, int, str]:
    """(batch, m, n, k, layout) of a product of attention, by its place in the sequence."""
    u = [(0.5 + step * r) % 1.0 for r in STEPS]
    ranges = (BATCHES, TOKENS[step // 2 % 2], HEAD)
    batch, tokens, head = (round(a * (b / a) ** x) for (a, b), x in zip(ranges, u, strict=True))
    tokens, head = _rounded(tokens, GRIDS[step % 4]), _rounded(head, GRIDS[step // 4 % 3])
    batch = max(min(batch, int(MOST_ATTENTION / (tokens * tokens * head))), 3)
    return (batch, tokens, tokens, head, "b") if step % 2 else (batch, tokens, head, tokens, "")


DEPTHWISE = ((26, 870, 9), (88, 210, 9), (50, 2900, 9), (210, 70, 25), (44, 420, 25), (310, 40, 9))
"""(batch, pixels, taps) of convolutions channel by channel, each a vector times a small matrix."""
WITHOUT_BLAS = ((30, 1, 1, 3), (30, 20, 24, 1), (30, 1, 1, 160), (30, 1, 200, 1))
WITHOUT_BLAS += ((30, 1, 1, 24), (30, 1, 40, 1), (30, 1, 1, 1100), (30, 30, 1, 1))
"""(batch, m, n, k) of dot products, and of those that add up a single product, which NumPy does itself; as many of
either among the first half."""


def _rounded(size: int, grid: int) -> int:
    return -(-size // grid) * grid if size > 4 * grid else size
