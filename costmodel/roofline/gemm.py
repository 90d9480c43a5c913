"""The time of a matrix product (GEMM) by its shape: a non-negative sum of physical features, fitted to a calibration's
products.

Parts [s each, none negative]: the multiply-adds; those of tiles only partly filled counted whole; passes over the other
operand that a few rows take; what is left of a side beside whole tiles or rows, which takes a pass of its own for each
power of two in it; moving each operand and packing it;
the result once for each block of k; what of an operand exceeds the caches of a core; rows that begin at one place in a
cache; and each operand's way from where it is in memory, which the calibration's bandwidth curve prices. Which parts
matter depends on the regime: a matrix with a vector, a product small enough for a kernel without packing, a narrow one,
a large one. Packing depends on the layout, the arithmetic does not: products of all layouts are fitted together.

These are products run over and over. In a program an operand is often further away than that; how much of the way is
not hidden under the arithmetic is fitted apart, to products that were measured in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

from costmodel.roofline.memory import ITEM_BYTES
from costmodel.roofline.signature import ProductSignature

if TYPE_CHECKING:
    from numpy import ndarray as Array


PAGE = 4096
FEW_SETS = 256
"""Rows that begin so many bytes apart, or a multiple, fall on a quarter of the first cache's sets or fewer, which do
not hold a column of a block until its neighbour is packed; half so many bytes apart on half of them, which do so in
part (as if BLAS packed a few columns at a time; measured on an Intel Xeon: 0.2 to 0.36 ns an element, 0.08, and
nothing at odd multiples of less)."""
TILE = 64
"""Bytes of a row of the result that BLAS computes at once, as wide as a vector register is at most."""
FEW_ROWS = 4
"""Rows of the result that kernels take at once where there are few; of two or one that are left each takes a pass that
is longer than theirs (OpenBLAS, param.h: the unrolling of the side that is not a vector's, of all recent x86)."""
BLOCK = 384
"""Steps of k between two visits to the result (OpenBLAS, param.h: about so for all recent x86)."""
CORE = 1 << 20
"""What a core's caches keep of one operand [bytes]."""
SMALL, SMALL_RESULT, SMALL_DEPTH = 1e6, 1200, 32
"""Multiply-adds up to which there are kernels without packing; with the second operand transposed, if the result is no
larger than so many elements and k no less than so many."""
NARROW = 16
COARSE = 12
"""Places among products by size at which it is tried whether threads begin there, before all that are next to one."""
FOLDS = 8
"""Folds of the cross-validation."""
FEWEST = 6
"""Fewest products of a layout that get weights of their own."""

FAR = ("a far", "b far", "c far", "a far in batch", "b far in batch", "c far in batch")
"""Parts that are memory beyond the cache: more in a batch, whose products are small and find nothing in the cache."""
MOST_FAR = 1.5
"""Largest weight of a far operand that no product shows, relative to streaming."""
SHORTEST = 256
"""Rows of fewer elements wait for memory no longer than these, since the next ones are asked for meanwhile."""
SEEN, MOSTLY, ROUNDS = 0.05, 0.5, 5
"""Share of a product's time from which an operand's way is seen in it; share of what its operands' ways have more,
from which a product says how much of one of them is exposed; how often each is found."""
SHARED: Mapping[str, tuple[str, ...]] = {
    "dot": ("multiply-adds",),
    "loop": ("multiply-adds", "m"),
    "vector": ("multiply-adds", "pieces"),
    "small": ("multiply-adds", "whole tiles", "a far", "b far"),
    "narrow": ("call", "whole tiles", "m fours of tiles", "m rest", "n ends", "n fours"),
    "packed": (
        "multiply-adds",
        "m fours",
        "m rest",
        "pieces by k",
        "c by block",
        "c beyond",
        "c clash",
        "a far",
        "c far",
    ),
}
"""The parts of each regime that do not depend on the layout."""
OWN: Mapping[str, tuple[str, ...]] = {
    "dot": ("call", "one", "a far", "b far"),
    "loop": ("call", "one"),
    "vector": ("call", "one", "n", "k", "a far", "b far"),
    "small": ("call", "one", "n", "c", "m ends", "n ends"),
    "narrow": ("a", "b", "a far", "b far", "b beyond", "a clash", "b clash"),
    "packed": ("call", "one", "m", "n", "a", "b", "n ends", "b far", "b beyond", "b clash", *FAR[3:]),
}
"""The parts of each regime that do."""


def parts(p: ProductSignature, far: Sequence[float]) -> dict[str, float]:
    """The parts of one product of a batch; far: how long each operand takes to come from where it is [s]."""
    m, n, k = float(p.m), float(p.n), float(p.k)
    item = ITEM_BYTES[p.dtype]
    wide = TILE // item
    blocks = -(-p.k // BLOCK)
    pieces = (p.m // wide + _ends(p.m, wide)) * (p.n // wide + _ends(p.n, wide))
    more = far if p.batch > 1 else (0.0, 0.0, 0.0)
    return {
        "call": 1.0 / p.batch,
        "one": 1.0,
        "m": m,
        "n": n,
        "k": k,
        "a": m * k,
        "b": n * k,
        "c": m * n,
        "multiply-adds": m * n * k,
        "whole tiles": _up(p.n, wide) * _up(p.m, 24) * k,
        "pieces": pieces,
        "pieces by k": pieces * k,
        "m fours": p.m // FEW_ROWS * n * k,
        "m rest": _ends(p.m, FEW_ROWS) * n * k,
        "m fours of tiles": p.m // FEW_ROWS * (p.n // wide * wide) * k,
        "n fours": (p.n % wide // FEW_ROWS).bit_count() * m * k,
        "m ends": _ends(p.m, wide) * n * k,
        "n ends": _ends(p.n, wide) * m * k,
        "c by block": m * n * blocks,
        "b beyond": max(item * n * k - CORE, 0.0),
        "c beyond": max(item * m * n - CORE, 0.0),
        "a clash": m * k * min(gcd((p.m if p.a_transposed else p.k) * item, PAGE) / FEW_SETS, 1.0) ** 2,
        "b clash": n * k * min(gcd(p.n * item, PAGE) / FEW_SETS, 1.0) ** 2,
        "c clash": m * n * blocks * gcd(p.n * item, PAGE) / PAGE,
        **dict(zip(FAR, (*far, *more), strict=True)),
    }


def _up(length: int, step: int) -> int:
    return -(-length // step) * step


def _ends(length: int, wide: int) -> int:
    """The powers of two that make up what is left beside whole tiles."""
    return (length % wide).bit_count()


def regime_of(p: ProductSignature) -> str:
    """Which code path a product takes: of NumPy (umath/matmul.c.src), which asks BLAS for a dot product or a vector's,
    and loops itself where each result is a single product; of OpenBLAS (interface/gemm.c, and the limits that its x86
    kernels give)."""
    if p.m == p.n == 1:
        return "dot"
    if p.k == 1:
        return "loop"
    if p.m == 1 or p.n == 1:
        return "vector"
    if p.m * p.n * p.k <= SMALL and not (p.b_transposed and (p.m * p.n > SMALL_RESULT or p.k < SMALL_DEPTH)):
        return "small"
    return "narrow" if min(p.m, p.n) < NARROW else "packed"


def layout_of(p: ProductSignature) -> str:
    """Which operand's columns are contiguous, "a" or "b"; "" for neither."""
    return "b" if p.b_transposed else "a" if p.a_transposed else ""


@dataclass(frozen=True)
class ProductFit:
    """One regime: the weight of each feature, by layout, and the cross-validated errors of log time.

    shares: how much of the way of each operand that is further than when run over and over adds to the time, and how
    much more the shorter its rows are; see `exposed`. threaded: from how many multiply-adds on another fit holds, since
    threads share them, and that fit; None where there is one thread.
    """

    weights: Mapping[str, Mapping[str, float]]
    errors: Array
    shares: tuple[tuple[float, float], ...] = ((1.0, 0.0),) * 3
    threaded: tuple[float, ProductFit] | None = None

    def of(self, p: ProductSignature) -> ProductFit:
        """The one that holds for a product."""
        return self.threaded[1] if self.threaded and multiply_adds(p) >= self.threaded[0] else self

    @property
    def doubt(self) -> float:
        """90 % quantile of the relative cross-validated errors."""
        import numpy as np

        return float(np.expm1(np.quantile(np.abs(self.errors), 0.9)))

    def placed(self, p: ProductSignature, home: Sequence[float], away: Sequence[float]) -> tuple[float, float]:
        """The same of a product whose operands take so long to come, `home` where it is run over and over [s]."""
        seconds, memory = self.seconds(p, home)
        more = sum(exposed(self.shares, p, operand) * far for operand, far in enumerate(further(home, away)))
        return seconds + more, memory + more

    def seconds(self, p: ProductSignature, far: Sequence[float]) -> tuple[float, float]:
        """Time of one product of a batch, and how much of it is memory beyond the cache [s]."""
        features = parts(p, far)
        weights = self.weights.get(layout_of(p), self.weights[""])
        terms = {name: weight * features[name] for name, weight in weights.items()}
        return sum(terms.values()), sum(terms[name] for name in FAR if name in terms)


def further(home: Sequence[float], away: Sequence[float]) -> list[float]:
    """How much longer each operand takes to come [s]."""
    return [max(far - near, 0.0) for near, far in zip(home, away, strict=True)]


def exposing(
    fitted: ProductFit,
    products: Sequence[ProductSignature],
    more: Sequence[Sequence[float]],
    extra: Sequence[float],
) -> ProductFit:
    """With what of each operand's way is not hidden, from products measured in place.

    more: how much longer their operands take to come; extra: how much longer each took than the same once more [s].
    Each share is told by products to which the operand is most of the way, or what others are off by would be its own:
    the least sum of errors, which no single product that found more evicted than its operands moves, found for one
    operand after another. Of an operand that is far for none all is exposed.
    """
    shares = [(1.0, 0.0)] * 3
    mostly = [[number for number, far in enumerate(more) if far[i] > MOSTLY * sum(far)] for i in range(3)]
    for operand in [i for i in range(3) if mostly[i]] * ROUNDS:
        points = []
        for number in mostly[operand]:
            p, far = products[number], more[number]
            rest = sum(exposed(shares, p, other) * far[other] for other in range(3) if other != operand)
            points.append((1 / row_length_of(p, operand), (extra[number] - rest) / far[operand], far[operand]))
        shares[operand] = _line(points)
    return replace(fitted, shares=tuple(shares))


def _line(points: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """The line with the least sum of errors through points (x, y, weight), neither falling nor below zero at x = 0: its
    value there, and its slope. One such runs through two of them, or is level, or begins at zero."""
    lines = [(0.0, 0.0), *((y, 0.0) for _, y, _ in points), *((0.0, y / x) for x, y, _ in points)]
    for (x, y, _), (further, higher, _) in combinations(points, 2):
        if further != x:
            slope = (higher - y) / (further - x)
            lines.append((y - slope * x, slope))
    valid = [line for line in lines if min(line) >= 0]
    return min(valid, key=lambda line: sum(w * abs(y - line[0] - line[1] * x) for x, y, w in points))


def row_length_of(p: ProductSignature, operand: int) -> int:
    """Elements in each contiguous row of an operand as it lies in memory, of short ones as many as wait together."""
    return max(((p.m if p.a_transposed else p.k), (p.k if p.b_transposed else p.n), p.n)[operand], SHORTEST)


def exposed(shares: Sequence[tuple[float, float]], p: ProductSignature, operand: int) -> float:
    """How much of an operand's way is not hidden: a share, and for what each row begins so many elements' worth."""
    way, row = shares[operand]
    return way + row / row_length_of(p, operand)


def multiply_adds(p: ProductSignature) -> int:
    """Of one product of a batch."""
    return p.m * p.n * p.k


class Measured(NamedTuple):
    """A product, how long each operand takes to come, its time without the call's overhead, of one of a batch, and its
    share of that [s]."""

    product: ProductSignature
    far: Sequence[float]
    seconds: float
    call: float


def begun_by_threads(measured: Sequence[Measured]) -> float | None:
    """From how many multiply-adds on threads share products of a regime, by what is measured: two fits, below and from
    there, have the least error. None of too few products to tell."""
    ordered = sorted(measured, key=lambda each: multiply_adds(each.product))

    def misfit(at: int) -> float:
        return sum(float(abs(fit(part).errors).sum()) for part in (ordered[:at], ordered[at:]))

    step = max(len(ordered) // COARSE, 1)
    if not (places := range(FEWEST, len(ordered) - FEWEST + 1, step)):
        return None
    best = min(places, key=misfit)
    near = range(max(best - step + 1, FEWEST), min(best + step, len(ordered) - FEWEST + 1))
    return float(multiply_adds(ordered[min(near, key=misfit)].product))


def fit(measured: Sequence[Measured]) -> ProductFit:
    """Non-negative least squares on errors relative to times with the call's overhead, for the regime that the products
    are of."""
    import numpy as np

    products, far, seconds, call = zip(*measured, strict=True)
    regime = regime_of(products[0])
    features = [parts(p, f) for p, f in zip(products, far, strict=True)]
    layouts = [layout_of(p) for p in products]
    known = ["", *(layout for layout in ("b", "a") if layouts.count(layout) >= FEWEST)]
    layouts = [layout if layout in known else "" for layout in layouts]
    shared, own = SHARED[regime], OWN[regime]
    rows = np.zeros((len(features), len(shared) + len(known) * len(own)))
    for row, values, layout in zip(rows, features, layouts, strict=True):
        start = len(shared) + known.index(layout) * len(own)
        row[: len(shared)] = [values[name] for name in shared]
        row[start : start + len(own)] = [values[name] for name in own]
    times, overhead = np.array(seconds), np.array(call)
    seen = (rows / (times + overhead)[:, None]).max(0) > SEEN
    names = [*shared, *own * len(known)]
    most = np.array([MOST_FAR if name in FAR and not each else np.inf for name, each in zip(names, seen, strict=True)])
    weights = _weights(rows, times, overhead, most).tolist()
    common = dict(zip(shared, weights, strict=False))
    by_layout = {
        layout: {**common, **dict(zip(own, weights[len(shared) + number * len(own) :], strict=False))}
        for number, layout in enumerate(known)
    }
    return ProductFit(by_layout, _left_out(rows, times, overhead, most))


def _left_out(rows: Array, times: Array, overhead: Array, most: Array) -> Array:
    """Cross-validated error of each product's log time."""
    import numpy as np

    turn = np.arange(len(times)) % FOLDS
    predicted = np.empty(len(times))
    for fold in range(min(FOLDS, len(times))):
        fitted, left = turn != fold, turn == fold
        predicted[left] = rows[left] @ _weights(rows[fitted], times[fitted], overhead[fitted], most)
    return np.log((times + overhead) / (predicted + overhead))


def _weights(rows: Array, times: Array, overhead: Array, most: Array) -> Array:
    """The weights, of which none is larger than its own of `most`."""
    import numpy as np
    from scipy.optimize import lsq_linear

    relative = rows / (times + overhead)[:, None]
    size = np.maximum(np.abs(relative).max(0), 1e-300)
    bounds = (0.0, np.maximum(most * size, 1e-300))
    return lsq_linear(relative / size, times / (times + overhead), bounds, method="bvls").x / size
