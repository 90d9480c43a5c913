"""How long matrix products take, by shape: a sum of physical parts, fitted to the calibration's products.

Parts [s each, none negative]: a constant; the multiply-adds, those of tiles only partly filled counted whole; moving
each operand and packing it; the result once for each block of k; and each operand's way from where it is in memory,
which the calibration's bandwidth curve prices. Which parts matter depends on the regime: a matrix with a vector, a
product small enough for a kernel without packing, a narrow one, a large one. Where a Gaussian process on what is left
improves on the products left out one at a time, it is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from costmodel.roofline.reference import ITEM_BYTES
from costmodel.roofline.signature import Product

if TYPE_CHECKING:
    from numpy import ndarray as Array

PAGE = 4096
SMALL = 1e6
"""Multiply-adds up to which BLAS uses a kernel without packing (OpenBLAS, interface/gemm.c)."""
NARROW = 16
SCALES = (0.5, 1.0, 2.0, 4.0)
"""Lengths over which what is left may be correlated [doublings of a size]."""
NOISE = 0.02
"""Relative error of one measured product, the least that is left unexplained."""

FAR = (11, 12, 13, 14)
"""The parts that are memory beyond the cache."""
USED = {"vector": (0, 1, 4, 5, 6, 8, 11, 12, 13), "small": (0, 1, 2, 4, 5, 6, 8, 11, 12, 13)}
USED["narrow"] = (0, 1, 2, 3, 4, 5, 6, 8, 11, 12, 13)
"""The parts that matter in a regime, if not all: what its products hardly have, they cannot teach."""


def parts(p: Product, far: Sequence[float]) -> list[float]:
    """The parts of one product of a batch; far: how long each operand takes to come from where it is [s]."""
    m, n, k = float(p.m), float(p.n), float(p.k)
    blocks = -(-k // 384)
    item = ITEM_BYTES[p.dtype]
    tiles = (-(-m // 16) * 16) * (-(-n // 4) * 4) * k
    return [
        1.0,
        m * n * k,
        tiles,
        (-(-m // 48) * 48) * n * k,
        m * k,
        n * k,
        m * n,
        m * n * blocks,
        k,
        m * k * _clash(p.a_pitch * item, p.k if p.a_transposed else p.m),
        n * k * _clash(p.b_pitch * item, p.n if p.b_transposed else p.k),
        far[0],
        far[1],
        far[2],
        far[2] * (blocks - 1),
    ]


def _clash(pitch_bytes: int, rows: int) -> float:
    """How many of the rows at this pitch begin in the same cache set, as a share: 1 if all do, next to 0 if few."""
    return gcd(pitch_bytes, PAGE) / PAGE if rows >= NARROW else 0.0


def regime_of(p: Product) -> str:
    """Which of BLAS's ways a product takes."""
    if p.m == 1 or p.n == 1:
        return "vector"
    if p.m * p.n * p.k <= SMALL:
        return "small"
    return "narrow" if min(p.m, p.n) < NARROW else "large"


@dataclass(frozen=True)
class Fit:
    """One regime: weights of the parts, the Gaussian process on the rest, and the errors of products left out."""

    weights: Array
    places: Array
    pull: Array
    scale: float
    height: float
    errors: Array

    @property
    def doubt(self) -> float:
        """Nine of ten products that were left out are predicted within this share of their time."""
        import numpy as np

        return float(np.expm1(np.quantile(np.abs(self.errors), 0.9)))

    def seconds(self, row: Array, place: Array) -> tuple[float, float]:
        """(in all, of which memory beyond the cache) [s]."""
        import numpy as np

        base = float(row @ self.weights)
        memory = float(row[list(FAR)] @ self.weights[list(FAR)])
        if self.height == 0:
            return base, memory
        shift = float(_kernel(place[None], self.places, self.scale, self.height)[0] @ self.pull)
        factor = float(np.exp(np.clip(shift, -0.3, 0.3)))
        return base * factor, memory * factor


def fit(
    products: Sequence[Product], far: Sequence[Sequence[float]], seconds: Sequence[float], call: Sequence[float]
) -> Fit:
    """Weights that are least wrong relative to each product's time, and a Gaussian process if it helps.

    seconds: of each product of a batch, beside `call`, its share of the call's overhead, with which errors are small.
    """
    import numpy as np

    rows = np.array([parts(p, f) for p, f in zip(products, far, strict=True)])
    times = np.array(seconds)
    places = np.array([place_of(p) for p in products])
    beside = np.array(call)
    rows[:, [i for i in range(rows.shape[1]) if i not in USED.get(regime_of(products[0]), range(rows.shape[1]))]] = 0.0
    weights = _weights(rows, times, beside)
    every = range(len(times))
    others = [[j for j in every if j != i] for i in every]
    held_out = np.array([rows[i] @ _weights(rows[o], times[o], beside[o]) for i, o in enumerate(others)])
    left = np.log((times + beside) / (held_out + beside))
    best = (float(np.median(np.abs(left)) + np.quantile(np.abs(left), 0.9)), 0.0, 0.0, left)
    for scale in SCALES:
        for height in (0.05**2, 0.1**2, 0.2**2):
            rest = _left_out(places, left, scale, height)
            score = float(np.median(np.abs(rest)) + np.quantile(np.abs(rest), 0.9))
            if score < 0.95 * best[0]:
                best = (score, scale, height, rest)
    _, scale, height, errors = best
    pull = np.zeros(len(times))
    if height:
        own = np.log((times + beside) / (rows @ weights + beside))
        pull = np.linalg.solve(_kernel(places, places, scale, height) + NOISE**2 * np.eye(len(times)), own)
    return Fit(weights, places, pull, scale, height, errors)


def place_of(p: Product) -> list[float]:
    """Where a product is among others [doublings]."""
    from math import log2

    return [log2(p.m), log2(p.n), log2(p.k)]


def _weights(rows: Array, times: Array, beside: Array) -> Array:
    import numpy as np
    from scipy.optimize import nnls

    relative = rows / (times + beside)[:, None]
    size = np.maximum(np.abs(relative).max(0), 1e-300)
    return nnls(relative / size, times / (times + beside), maxiter=1000)[0] / size


def _kernel(a: Array, b: Array, scale: float, height: float) -> Array:
    import numpy as np

    squares = ((a[:, None, :] - b[None, :, :]) ** 2).sum(-1)
    return height * np.exp(-squares / (2 * scale**2))


def _left_out(places: Array, left: Array, scale: float, height: float) -> Array:
    """What a Gaussian process leaves of each, fitted to the others (in closed form)."""
    import numpy as np

    inverse = np.linalg.inv(_kernel(places, places, scale, height) + NOISE**2 * np.eye(len(left)))
    return inverse @ left / np.diag(inverse)
