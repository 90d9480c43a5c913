"""Rates of this host, interpolated between a calibration's probes: calls, bandwidth, functions, rows and products.

The time of a matrix product (GEMM) is a non-negative sum of physical features, fitted to a calibration's products.
Parts [s each, none negative]: the multiply-adds; those of tiles only partly filled counted whole; what is left of a
side beside whole tiles, which takes a pass of its own for each power of two in it; moving each operand and packing it;
the result once for each block of k; what of an operand exceeds the caches of a core; rows that begin at one place in a
cache; and each operand's way from where it is in memory, which the calibration's bandwidth curve prices. Which parts
matter depends on the regime: a matrix with a vector, a product small enough for a kernel without packing, a narrow one,
a large one. Packing depends on the layout, the arithmetic does not: products of all layouts are fitted together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import exp, gcd, inf, log
from typing import TYPE_CHECKING

from costmodel.roofline.probes import (
    COLD_BYTES,
    CURVE_BYTES,
    GATHERED_WIDTHS,
    LEFT_BYTES,
    LEFT_ELEMENTS,
    RATE_BYTES,
    REDUCED_LENGTHS,
    RESIDENT_BYTES,
    ROW_LENGTHS,
    WINDOW_BYTES,
    placed,
    probes,
)
from costmodel.roofline.program import Op
from costmodel.roofline.reference import ITEM_BYTES
from costmodel.roofline.reuse import Gap, gaps, reuses, touched_by
from costmodel.roofline.signature import Product, signature_of

if TYPE_CHECKING:
    from numpy import ndarray as Array


PAGE = 4096
TILE = 64
"""Bytes of a row of the result that BLAS computes at once, as wide as a vector register is at most."""
BLOCK = 384
"""Steps of k between two visits to the result (OpenBLAS, param.h: about so for all recent x86)."""
CORE = 1 << 20
"""What a core's caches keep of one operand [bytes]."""
SMALL, SMALL_RESULT, SMALL_DEPTH = 1e6, 1200, 32
"""Multiply-adds up to which there are kernels without packing; with the second operand transposed, if the result is no
larger than so many elements and k no less than so many."""
NARROW = 16
FOLDS = 8
"""Folds of the cross-validation."""
FEWEST = 6
"""Fewest products of a layout that get weights of their own."""

FAR = ("a far", "b far", "c far", "a far in batch", "b far in batch", "c far in batch")
"""Parts that are memory beyond the cache: more in a batch, whose products are small and find nothing in the cache."""
MOST_FAR = 1.5
"""Largest weight of a far operand, relative to streaming."""
SHARED: Mapping[str, tuple[str, ...]] = {
    "vector": ("multiply-adds", "pieces"),
    "small": ("multiply-adds", "whole tiles", "a far", "b far"),
    "narrow": ("whole tiles",),
    "packed": ("multiply-adds", "pieces by k", "c by block", "c beyond", "c clash", *FAR[:3]),
}
"""The parts of each regime that do not depend on the layout."""
OWN: Mapping[str, tuple[str, ...]] = {
    "vector": ("call", "one", "n", "k", "a far", "b far"),
    "small": ("call", "one", "n", "c", "m ends", "n ends"),
    "narrow": ("call", "a", "b", "m ends", "n ends", "a far", "b far", "b beyond"),
    "packed": ("call", "one", "m", "n", "a", "b", "m ends", "n ends", "b beyond", *FAR[3:]),
}
"""The parts of each regime that do."""


def parts(p: Product, far: Sequence[float]) -> dict[str, float]:
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
        "m ends": _ends(p.m, wide) * n * k,
        "n ends": _ends(p.n, wide) * m * k,
        "c by block": m * n * blocks,
        "b beyond": max(item * n * k - CORE, 0.0),
        "c beyond": max(item * m * n - CORE, 0.0),
        "c clash": m * n * blocks * gcd(p.n * item, PAGE) / PAGE,
        **dict(zip(FAR, (*far, *more), strict=True)),
    }


def _up(length: int, step: int) -> int:
    return -(-length // step) * step


def _ends(length: int, wide: int) -> int:
    """The powers of two that make up what is left beside whole tiles."""
    return (length % wide).bit_count()


def regime_of(p: Product) -> str:
    """Which code path of OpenBLAS a product takes (interface/gemm.c, and the limits that its x86 kernels give)."""
    if p.m == 1 or p.n == 1:
        return "vector"
    if p.m * p.n * p.k <= SMALL and not (p.b_transposed and (p.m * p.n > SMALL_RESULT or p.k < SMALL_DEPTH)):
        return "small"
    return "narrow" if min(p.m, p.n) < NARROW else "packed"


def layout_of(p: Product) -> str:
    """Which operand's columns are contiguous, "a" or "b"; "" for neither."""
    return "b" if p.b_transposed else "a" if p.a_transposed else ""


@dataclass(frozen=True)
class Fit:
    """One regime: the weight of each feature, by layout, and the cross-validated errors of log time."""

    weights: Mapping[str, Mapping[str, float]]
    errors: Array

    @property
    def doubt(self) -> float:
        """90 % quantile of the relative cross-validated errors."""
        import numpy as np

        return float(np.expm1(np.quantile(np.abs(self.errors), 0.9)))

    def seconds(self, p: Product, far: Sequence[float]) -> tuple[float, float]:
        """Time of one product of a batch, and how much of it is memory beyond the cache [s]."""
        given = parts(p, far)
        weights = self.weights.get(layout_of(p), self.weights[""])
        terms = {name: weight * given[name] for name, weight in weights.items()}
        return sum(terms.values()), sum(terms[name] for name in FAR if name in terms)


def fit(
    products: Sequence[Product], far: Sequence[Sequence[float]], seconds: Sequence[float], call: Sequence[float]
) -> Fit:
    """Non-negative least squares on relative errors, for the regime that the products are of.

    seconds: of each product of a batch, beside `call`, its share of the call's overhead, with which errors are small.
    """
    import numpy as np

    regime = regime_of(products[0])
    given = [parts(p, f) for p, f in zip(products, far, strict=True)]
    layouts = [layout_of(p) for p in products]
    known = ["", *(layout for layout in ("b", "a") if layouts.count(layout) >= FEWEST)]
    layouts = [layout if layout in known else "" for layout in layouts]
    shared, own = SHARED[regime], OWN[regime]
    rows = np.zeros((len(given), len(shared) + len(known) * len(own)))
    for row, values, layout in zip(rows, given, layouts, strict=True):
        start = len(shared) + known.index(layout) * len(own)
        row[: len(shared)] = [values[name] for name in shared]
        row[start : start + len(own)] = [values[name] for name in own]
    times, beside = np.array(seconds), np.array(call)
    weights = iter(_weights(rows, times, beside).tolist())
    common = {name: _bounded(name, next(weights)) for name in shared}
    by_layout = {layout: {**common, **{name: _bounded(name, next(weights)) for name in own}} for layout in known}
    return Fit(by_layout, _left_out(rows, times, beside))


def _bounded(name: str, weight: float) -> float:
    """At most `MOST_FAR` for far operands, which products in cache do not determine."""
    return min(weight, MOST_FAR) if name in FAR else weight


def _left_out(rows: Array, times: Array, beside: Array) -> Array:
    """Cross-validated error of each product's log time."""
    import numpy as np

    turn = np.arange(len(times)) % FOLDS
    found = np.empty(len(times))
    for fold in range(min(FOLDS, len(times))):
        kept, left = turn != fold, turn == fold
        found[left] = rows[left] @ _weights(rows[kept], times[kept], beside[kept])
    return np.log((times + beside) / (found + beside))


def _weights(rows: Array, times: Array, beside: Array) -> Array:
    import numpy as np
    from scipy.optimize import nnls

    relative = rows / (times + beside)[:, None]
    size = np.maximum(np.abs(relative).max(0), 1e-300)
    return nnls(relative / size, times / (times + beside), maxiter=5000)[0] / size


POWER = 2.4
"""Exponent p of how compute and memory time overlap, (compute^p + memory^p)^(1/p); fitted to exp, tanh, sqrt and
division on operands from memory."""

NEAR_BYTES = 16 * 1024
"""What the first cache holds beside a call's own code and arrays [bytes]."""

ALWAYS = 1e-6
"""After so short a time nothing that was near is gone [s]."""

LIKE = {"multiply": ("add",)}
"""In-place functions that stand in for those whose repetition underflows."""


class Table:
    """Log-log interpolation between points; constant beyond the ends."""

    def __init__(self, points: Sequence[float], values: Sequence[float]) -> None:
        self.points = [log(max(p, 1e-30)) for p in points]
        self.values = [log(max(v, 1e-30)) for v in values]

    def __call__(self, point: float) -> float:
        """The value at a point."""
        if point == float("inf"):
            return exp(self.values[-1])
        x = log(max(point, 1e-30))
        at = bisect_left(self.points, x)
        if at == 0:
            return exp(self.values[0])
        if at == len(self.points):
            return exp(self.values[-1])
        low, high = self.points[at - 1], self.points[at]
        share = (x - low) / (high - low)
        return exp(self.values[at - 1] * (1 - share) + self.values[at] * share)

    def left_out(self) -> list[float]:
        """Leave-one-out: the relative error of each inner value when interpolated from its neighbours."""
        found = []
        for at in range(1, len(self.points) - 1):
            share = (self.points[at] - self.points[at - 1]) / (self.points[at + 1] - self.points[at - 1])
            between = self.values[at - 1] * (1 - share) + self.values[at + 1] * share
            found.append(abs(exp(between - self.values[at]) - 1))
        return found


class Rates:
    """Rates and costs from `seconds`, the time of each probe by its name [s]."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self.seconds = seconds
        self.ops = {p.name: p.op for thorough in (True, False) for p in probes(thorough) if p.name in seconds}
        self.call = cache(self._call)
        self.rate = cache(self._rate)
        self.row = cache(self._row)
        self.reduced = cache(self._reduced)
        self.gathered = cache(self._gathered)
        self.fit = cache(self._fit)
        self._cold = cache(self._code)

    # Calls

    @cached_property
    def step(self) -> float:
        """Overhead of a program without calls [s]."""
        return self.seconds["empty"]

    def _call(self, name: str, dtype: str, scalars: int = 0) -> float:
        """Overhead of one call [s]."""
        s = self.seconds
        own = s.get(f"call {name} {dtype}", s[f"call add {dtype}"])
        if not scalars:
            return own
        scalar = f"call {name} scalar {dtype}"
        if scalar in s:
            return s[scalar]
        return own + max(s[f"call multiply scalar {dtype}"] - s[f"call multiply {dtype}"], 0.0)

    # Memory

    @cached_property
    def _streams(self) -> dict[str, Table]:
        return {
            "in place": self._beyond("multiply in place", 4),
            "one": self._beyond("copyto", 8),
            "two": self._beyond("add", 12),
        }

    def _beyond(self, name: str, per_element: int) -> Table:
        """Time per byte beyond that in cache, by reuse distance [s/B]."""
        call = self._call(name.split()[0], "float32", int("place" in name))
        rates = []
        for size in CURVE_BYTES:
            n = self.ops[f"curve {name} {size} float32"].output.size
            rates.append(max(self.seconds[f"curve {name} {size} float32"] - call, 1e-12) / n)
        resident = [(size, rate) for size, rate in zip(CURVE_BYTES, rates, strict=True) if size <= RESIDENT_BYTES]
        floor = min(rate for _, rate in resident)
        extra, so_far = [], 0.0
        for size, rate in zip(CURVE_BYTES, rates, strict=True):
            so_far = 0.0 if size <= RESIDENT_BYTES else max(so_far, parted(rate, floor))
            extra.append(so_far / per_element)
        return Table(CURVE_BYTES, extra)

    def far(self, gap: Gap, way: str = "two", size: float = float("inf")) -> float:
        """Time per byte, beyond that in cache, of an operand of `size` bytes after a gap [s/B].

        way: among how many that are read and one that is written: "one", "two", or "in place", there and back.
        """
        stream, place = self._streams[way], self._streams["in place"]
        return max(stream(gap.bytes), self._left(gap.seconds, size) * stream(inf) / place(inf))

    def reach(self, gap: Gap) -> float:
        """The reuse distance at which an operand takes as long as after a gap [bytes]."""
        place, took = self._streams["in place"], self.far(gap, "in place")
        if took <= place(gap.bytes):
            return gap.bytes
        return next((size for size in CURVE_BYTES if size > gap.bytes and place(size) >= took), inf)

    def _left(self, seconds: float, size: float) -> float:
        """Time per byte, beyond that in cache, of an array that was left alone so long, and used in place [s/B]."""
        small, large = max((s for s in LEFT_BYTES if s <= size), default=LEFT_BYTES[0]), LEFT_BYTES[-1]
        large = min((s for s in LEFT_BYTES if s >= size), default=large)
        first, last = self._alone[small](seconds), self._alone[large](seconds)
        share = log(size / small) / log(large / small) if small < size < large else 0.0
        return first ** (1 - share) * last**share

    @cached_property
    def _alone(self) -> dict[int, Table]:
        """By size of the array, and then by time [s/B]."""
        call, rate = self.call("multiply", "float32", 1), self.rate("multiply", "float32", True, True)
        found = {}
        for size in LEFT_BYTES:
            ages, extra, so_far = [ALWAYS], [0.0], 0.0
            for count in LEFT_ELEMENTS:
                op, (gap, *_) = self.placed[f"left {size} {count}"]
                so_far = max(so_far, parted(max(self.seconds[op.layer] - call, 0.0), op.output.size * rate))
                ages.append(gap.seconds)
                extra.append(so_far / op.output.bytes)
            found[size] = Table(ages, extra)
        return found

    @cached_property
    def _windows(self) -> Table:
        """Time per byte of the lines that strided windows touch, beyond that in cache, by reuse distance [s/B]."""
        call, extra, so_far = self._call("copyto", "float32"), [], 0.0
        near = self.seconds[f"windows {WINDOW_BYTES[0]} float32"] - call
        near /= self.ops[f"windows {WINDOW_BYTES[0]} float32"].output.size
        for size in WINDOW_BYTES:
            op = self.ops[f"windows {size} float32"]
            beyond = parted(self.seconds[f"windows {size} float32"] - call, near * op.output.size)
            lines = 2 * op.operands[0].bytes
            so_far = max(so_far, (beyond - op.output.bytes * self._streams["one"](size)) / lines)
            extra.append(so_far)
        return Table(WINDOW_BYTES, extra)

    def windowed(self, gap: Gap, size: float) -> float:
        """Time per byte of lines, beyond that in cache, of which a stride leaves parts out [s/B]."""
        return max(self._windows(gap.bytes), self.far(gap, "one", size))

    @cached_property
    def placed(self) -> dict[str, tuple[Op, list[Gap]]]:
        """Calls that were measured in place, by name, and the gaps of their operands and code."""
        program = placed()
        found = gaps(reuses(touched_by(program)), [self.seconds.get(op.layer, 0.0) for op in program])
        return {op.layer: (op, gap) for op, gap in zip(program, found, strict=True) if op.layer in self.seconds}

    def cold(self, name: str, distance: float) -> float:
        """What a call takes longer if so much was touched since the function's last call [s]."""
        if f"cold {name} {COLD_BYTES[0]}" not in self.seconds:
            name = "add.reduce" if name.endswith(".reduce") else "add"
        return self._cold(name)(distance)

    def _code(self, name: str) -> Table:
        """The same, by what was touched."""
        probes = [f"cold {name} {size}" for size in COLD_BYTES]
        extra = [max(self.seconds[probe] - self.call(name, "float32"), 0.0) for probe in probes]
        return Table((NEAR_BYTES, *(self.placed[probe][1][-1].bytes for probe in probes)), (0.0, *extra))

    def bandwidth(self, distance: float) -> float:
        """Of streaming operands at a reuse distance [bytes/s]."""
        name = min(CURVE_BYTES, key=lambda size: abs(log(size) - log(min(max(distance, 1), CURVE_BYTES[-1]))))
        probe = f"curve add {name} float32"
        return 12 * self.ops[probe].output.size / self.seconds[probe]

    @cached_property
    def memory_bandwidth(self) -> float:
        """Of the largest working set [bytes/s]."""
        return self.bandwidth(CURVE_BYTES[-1])

    def peak(self, dtype: str) -> float:
        """Of the fastest matrix product [FLOP/s]."""
        names = [name for name in self.seconds if name.startswith("product ") and name.endswith(dtype)]
        return max(self._product(name).flops / self.seconds[name] for name in names)

    # Functions

    def _rate(self, name: str, dtype: str, scalar: bool, in_place: bool = False) -> float:
        """Time per element of operands in cache [s]."""
        ways = [" scalar", ""] if scalar else [""]
        known = [f"{name}{way}" for way in ways] + ["add"]
        if in_place:
            known = [f"{like} in place" for like in (*known[:-1], *LIKE.get(name, ()))] + known
        probe = next(p for p in (f"rate {way} {RATE_BYTES[0]} {dtype}" for way in known) if p in self.seconds)
        again = probe.replace("rate", "curve", 1)  # the curve of memory may have measured the very same call
        whole = min(self.seconds[probe], self.seconds.get(again, self.seconds[probe]))
        return max(whole - self._call(name, dtype, int(scalar)), 0.05 * whole) / self.ops[probe].output.size

    # Rows

    def _row(self, pattern: str, dtype: str) -> Table:
        """Seconds that each inner loop of a length costs: for a copy or a repeated row or column all of it, for others
        what it adds."""
        lengths, values = [], []
        for length in ROW_LENGTHS:
            name = f"{pattern} {length} {dtype}"
            if name not in self.seconds:
                continue
            op = self.ops[name]
            rows = op.output.size // length
            whole = pattern.startswith(("copy", "row", "column"))
            plain = 0.0 if whole else self._rate("add", dtype, False) * op.output.size
            call = self._call("copyto" if pattern.startswith("copy") else "repeated", dtype)
            lengths.append(length)
            values.append(max(self.seconds[name] - call - plain, 0.0) / rows)
        return Table(lengths, values)

    def _reduced(self, name: str, way: str, dtype: str, even: bool) -> Table:
        """Time per row of a reduction, by its length [s]; even: for lengths that are multiples of 16."""
        name = name if f"{name} {way} {REDUCED_LENGTHS[0]} {dtype}" in self.seconds else "add.reduce"
        known = [n for n in REDUCED_LENGTHS if f"{name} {way} {n} {dtype}" in self.seconds]
        lengths = [n for n in known if n < 8 or n > 2000 or (n % 16 == 0) == even]
        values = []
        for n in lengths:
            probe = f"{name} {way} {n} {dtype}"
            rows = max(self.ops[probe].operands[0].size // n, 1)
            values.append(max(self.seconds[probe] - self._call(name, dtype), 0.0) / rows)
        return Table(lengths, values)

    def _gathered(self, name: str, dtype: str) -> Table:
        """Time per row of a gather, by its width [s]."""
        name = name if f"{name} 4 1 {dtype}" in self.seconds else "add.at"
        took = [[self.seconds[f"{name} {rows} {w} {dtype}"] for rows in (4, 120)] for w in GATHERED_WIDTHS]
        return Table(GATHERED_WIDTHS, [max(many - few, 1e-10) / 116 for few, many in took])

    def gathered_call(self, name: str, dtype: str) -> float:
        """Overhead of a gather [s]."""
        return self.seconds.get(f"{name} 4 1 {dtype}", self.seconds[f"add.at 4 1 {dtype}"])

    def masking(self, dtype: str) -> tuple[float, float, float]:
        """Of a masked copy: overhead, time per row of a causal mask, time per element [s]."""
        took = {side: self.seconds[f"where {side} {dtype}"] for side in (2, 110, 420)}
        element = max((took[420] - took[2]) / 420 - (took[110] - took[2]) / 110, 0.0) / (420 - 110)
        row = max((took[110] - took[2]) / 110 - element * 110, 0.0)
        return took[2], row, element

    @cached_property
    def doubt(self) -> float:
        """90 % quantile of the relative leave-one-out errors of row costs."""
        patterns = ("row", "column", "row in place", "column in place", "copy part")
        errors = [e for pattern in patterns for e in self.row(pattern, "float32").left_out()]
        return sorted(errors)[int(0.9 * len(errors))]

    # Products

    def _product(self, name: str) -> Product:
        found = signature_of(self.ops[name])
        assert isinstance(found, Product)
        return found

    def _fit(self, regime: str, dtype: str) -> Fit:
        """The fitted time of products of a regime."""
        names = [
            name
            for name in self.seconds
            if name.startswith(("product ", "products "))
            and name.endswith(f" {dtype}")
            and regime_of(self._product(name)) == regime
        ]
        found = [self._product(name) for name in names]
        far = [self.operand_times(p, seconds=self.seconds[name]) for name, p in zip(names, found, strict=True)]
        call = self._call("matmul", dtype)
        for name, (op, operands) in self.placed.items() if dtype == "float32" else ():
            p = signature_of(op)
            if isinstance(p, Product) and regime_of(p) == regime:
                names.append(name)
                found.append(p)
                far.append(self.operand_times(p, operands[:-1]))
        times = [
            max(self.seconds[name] - call, 0.1 * self.seconds[name]) / p.batch
            for name, p in zip(names, found, strict=True)
        ]
        return fit(found, far, times, [call / p.batch for p in found])

    def operand_times(self, p: Product, operands: Sequence[Gap] = (), seconds: float = 0.0) -> list[float]:
        """Time to load each operand of one product of a batch, beyond that from cache [s].

        Without gaps they are those of the product run over and over, each taking so many seconds.
        """
        item = ITEM_BYTES[p.dtype]
        sizes = [item * p.m * p.k, item * p.k * p.n, item * p.m * p.n]
        operands = operands or [Gap(p.batch * sum(sizes), seconds)] * 3
        return [size * self.far(gap, "two", p.batch * size) for size, gap in zip(sizes, operands, strict=True)]


def joined(compute: float, memory: float) -> float:
    """Time of compute and memory that overlap in part [s]."""
    return (compute**POWER + memory**POWER) ** (1 / POWER)


def parted(whole: float, compute: float) -> float:
    """The memory time with which `joined` gives `whole` [s]."""
    return max(whole**POWER - compute**POWER, 0.0) ** (1 / POWER)
