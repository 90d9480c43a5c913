"""What a calibration measures: single NumPy calls at sizes chosen for what they show.

No shape here is one that is predicted: see `costmodel.roofline.validation`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt, prod
from typing import Any

from costmodel.roofline.curves import lowest
from costmodel.roofline.memory import LINE, RESIDENT_BYTES, Buffer, Ref
from costmodel.roofline.program import NumpyCall
from costmodel.roofline.sizes import DEPTHWISE, WITHOUT_BLAS, batched_shapes, product_shapes

EMPTY = "empty"
"""The probe that calls nothing."""
KIB = 1024

UNARY = ("exp", "tanh", "sqrt", "negative", "log", "square", "absolute", "sign", "reciprocal")
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "copysign")
COMPARING = ("greater", "greater_equal", "less", "less_equal", "equal", "not_equal")
LOGICAL = ("logical_and", "logical_or", "logical_not")
MIXED = "multiply by truths"
WIDENED = "copyto of bytes"
"""A copy of codes of a byte each as indices."""
ENDS = 255
"""Between so many numbers are those searched for that a byte stands for."""
SCALED = ("maximum", "minimum", "multiply", "add", "subtract", "divide")
"""Functions of an array and a number, which take other code than those of two arrays."""
STEADY = ("add", "subtract", "maximum", "minimum", "negative", "absolute", "tanh", "sqrt", "reciprocal")
"""Functions that can be done in place over and over: numbers stay finite and normal."""

CALL_AXES = {2: (2, 12), 4: (1, 2, 3, 4)}
"""Shapes of calls by the number of their axes."""

FIRST_BYTES = 4 * 4250
"""The smallest working set, in the first cache; others are powers of two of it, and no network's sizes are [bytes]."""
LARGEST_BYTES = 1 << 42
"""No working set is larger [bytes]."""
FINEST = 2**0.2
"""Working sets are no nearer to each other than this ratio."""
THINNED = 3.9
"""Ratio of working sets at which what takes long, or changes less from one to the next, is measured."""


@dataclass(frozen=True)
class WorkingSets:
    """Sizes that a host's memory is measured at, found by measuring [bytes].

    curve: from the first cache to memory, rising; nearer to each other where more changes. beyond: one that no cache
    holds that is ours.
    """

    curve: tuple[int, ...]
    beyond: int

    def __post_init__(self) -> None:
        rising = all(larger >= FINEST * size for size, larger in pairwise(self.curve))
        known = self.beyond in self.curve and FIRST_BYTES <= min(self.curve) <= max(self.curve) <= LARGEST_BYTES
        if not (rising and known and max(self.curve) > RESIDENT_BYTES):
            raise ValueError("working sets are no rising sizes from the first cache to memory")

    @property
    def far(self) -> tuple[int, ...]:
        """Those beyond the caches of a core up to the first that no cache holds, thinned."""
        return _thinned([size for size in self.curve if RESIDENT_BYTES < size <= self.beyond])

    @property
    def thinned(self) -> tuple[int, ...]:
        """Those that are measured at where others tell how they lie between: beyond where the caches of a core end,
        thinned, up to twice the first that no cache holds, from where on each byte takes as long."""
        near = [size for size in self.curve if size <= self.far[:2][-1]]
        beyond = [size for size in self.curve[len(near) :] if size <= 2 * self.beyond]
        return (*near, *_thinned(beyond))

    @property
    def windows(self) -> tuple[int, ...]:
        """Those at which windows are measured: in a core's own caches, and those of `far` that are not next to it."""
        return (WINDOW_BYTES, *self.far[1:])


def working_sets(seconds: Callable[[NumpyCall], float], least: int, most: int) -> WorkingSets:
    """Sizes found by asking how long it takes to stream through them over and over [s].

    They double until a doubling changes nothing, at least up to `least` and never beyond `most`; between two of which
    the larger takes longer for each byte there are up to three more, and fewer beyond all caches
    [bytes].
    """

    def cost(size: int) -> float:
        return seconds(streaming(size)) / size

    def taken_in(size: int) -> float:
        return seconds(filling(size)) / size

    sizes = [FIRST_BYTES]
    costs = {FIRST_BYTES: cost(FIRST_BYTES)}
    while 2 * sizes[-1] <= most:
        sizes.append(2 * sizes[-1])
        costs[sizes[-1]] = cost(sizes[-1])
        flat = costs[sizes[-1]] <= (1 + FLAT) * costs[sizes[-2]]
        if flat and sizes[-1] >= least:
            break
    for _ in range(2):
        for size, larger in pairwise(sorted(costs)):
            if size > RESIDENT_BYTES and costs[larger] > (1 + STEEP) * costs[size]:
                between = isqrt(size * larger)
                costs[between] = cost(between)
    curve = sorted(costs)
    shared = [size for size in curve if size > RESIDENT_BYTES]
    slowest = min(costs[size] for size in curve[-2:])  # what disturbs a glance only adds to it
    costs = dict(zip(curve, lowest([costs[size] for size in curve]), strict=True))
    beyond = next(size for size in shared if costs[size] * (1 + NEARLY) >= slowest)
    further = [size for size in shared if size >= THINNED * beyond]
    while further and taken_in(further[0]) > (1 + NEARLY) * min(taken_in(beyond) for _ in range(QUIET)):
        # memory may hand out hardly more slowly than a cache that others use, but take in far more slowly
        beyond = further[0]
        further = [size for size in further if size >= THINNED * beyond]
    level = next(size for size in shared if costs[size] * (1 + FLAT) >= slowest)
    flat = _thinned([size for size in curve if size >= level])
    return WorkingSets(tuple(sorted({*(size for size in curve if size <= level), beyond, *flat})), beyond)


def _thinned(sizes: Sequence[int]) -> tuple[int, ...]:
    """The largest, and others that are so far apart as `THINNED` says."""
    chosen: list[int] = []
    for size in reversed(sizes):
        if not chosen or THINNED * size <= chosen[-1]:
            chosen.append(size)
    return tuple(reversed(chosen))


FLAT, STEEP = 0.05, 0.1
"""By how much each byte of twice the working set takes longer where nothing changes, and where sizes between are
measured."""
QUIET = 4
"""Glances at what is filled, of which others, who use the cache too, leave one alone."""
NEARLY = 0.25
"""By how much each byte takes longer at most than from where no cache helps any more: beyond that pages do, slowly."""

READ_LENGTHS = (1008, 8064)
"""Rows of the matrices that are read once, for a vector: short ones, and long ones beyond a core's caches, where each
row begins a stream of its own [elements]."""

RATE_BYTES = (RESIDENT_BYTES, 3_100 * KIB, 13_000 * KIB, 40_000 * KIB)
"""Working sets at which a function's own rate is measured; a quick calibration takes the first two [bytes]."""

MASKED_SIDES = {2: 1, 24: 48, 48: 48, 112: 48, 208: 24}
"""Of square masks, multiples of what a row is scanned by, as sequences of tokens mostly are; and how many squares have
the same mask, as heads do: where runs end is guessed better the more came before, by a quarter on an AMD EPYC."""

GATHERED_ROWS, FEW_GATHERED = 120, 4
GATHERED = {1: 120, 9: 120, 60: 120, 420: 120, 1100: 46}
"""Rows of a table; how many are gathered by their elements, so that caches hold them, and a few, beside which the
others tell what a row takes. Long rows are copied in another way than short ones (memcpy)."""
FAR_WIDTHS, SPARSE = (200, 1100), 4
"""Elements in the rows of a large table, of which one of so many is gathered, each far from the last."""

ROWS_ELEMENTS = 45_000
"""Elements in all the rows of one such probe."""

ROW_LENGTHS = (1, 2, 7, 8, 14, 28, 56, 62, 112, 210, 440, 600, 776, 1800, 4088, 4090, 4616, 9000)
"""Lengths of inner loops at which the cost of starting one is measured: multiples of `VECTOR`, and others. Where a
loop of vectors ends is guessed only up to some length, on an AMD EPYC 512 and 680."""
VECTOR, BUFFERED = 8, 4096
"""Elements that loads and stores move at once: rows of multiples of it begin where these do, and others are slower by
up to a quarter. So long at most are rows that NumPy joins in a buffer; of longer ones each is a loop of its own."""

LINES_APART = (FIRST_BYTES, 4 * FIRST_BYTES, RESIDENT_BYTES)
"""What elements touch that lie on a line each, from the first cache on [bytes]."""

WINDOW_BYTES, WINDOW_LENGTH = RESIDENT_BYTES // 2, 112
"""What strided windows touch in a core's own caches, whole lines of it [bytes], and elements in a row of them."""
WINDOW_LENGTHS = {"part": (WINDOW_LENGTH,), "second": (28, 56), "second in place": (56,)}
"""Elements in their rows, for parts of longer rows and for every other element of every other row, copied or joined to
an array in place."""

REDUCED_LENGTHS = (2, 7, 20, 48, 50, 100, 112, 192, 200, 420, 720, 750, 1600, 3100, 12_000)


Named = tuple[str, NumpyCall]
"""A probe: what its time is stored under, and the one call that is measured."""


def array(*shape: int, dtype: str = "float32", strides: tuple[int, ...] | None = None, elements: int = 0) -> Ref:
    """An array in a buffer of its own."""
    return Ref(shape, Buffer(elements or prod(shape), dtype, "input"), strides)


def causal(side: int) -> Ref:
    """Which keys each query sees."""

    def value() -> Any:
        import numpy as np

        return np.tri(side, dtype=bool)

    return Ref((side, side), Buffer(side * side, "bool", "constant", value=value))


def probes(sets: WorkingSets, thorough: bool = False) -> Iterator[Named]:
    """Every probe of a calibration; a thorough one has more products, and every function at every size."""
    yield from _curves(sets)
    yield from _lines_apart()
    yield from _windows(sets)
    yield from _overlapping(sets)
    yield from _streaming(sets)
    for dtype in ("float32", "float64"):
        yield from _overheads(dtype)
        yield from _functions(dtype, thorough)
        yield from _rows(dtype)
        yield from _reductions(dtype, thorough)
        yield from _moves(dtype)
        yield from _products(dtype, thorough)


def elementwise(name: str, size: int, dtype: str, in_place: bool = False, scalar: bool = False) -> NumpyCall:
    """An elementwise function on contiguous arrays of `size` bytes in all."""
    item = 8 if dtype == "float64" else 4
    out_item = 1 if name in COMPARING or name in LOGICAL else item
    in_dtype = "bool" if name in LOGICAL else dtype
    in_item = 1 if name in LOGICAL else item
    reads = 1 if scalar or name in UNARY or name in ("copyto", "logical_not") else 2
    n = max(size // (reads * in_item + (0 if in_place else out_item)), 1)
    inputs: list[Any] = [array(n, dtype=in_dtype) for _ in range(reads)]
    out = inputs[0] if in_place else array(n, dtype="bool" if out_item == 1 else dtype)
    return NumpyCall(name, (*inputs, 1.0) if scalar else tuple(inputs), out)


def streaming(size: int) -> NumpyCall:
    """A function that reads one array and writes another, of `size` bytes in all, as all but copies do: a large copy
    stores past the caches (non-temporal stores), and would hide what memory costs everything else."""
    return elementwise("negative", size, "float32")


def filling(size: int) -> NumpyCall:
    """A function that only writes."""
    return NumpyCall("copyto", (0.5,), array(size // 4))


def masked(size: int, dtype: str) -> NumpyCall:
    """Floats times bools, which NumPy casts chunk by chunk."""
    n = size // (17 if dtype == "float64" else 9)
    return NumpyCall("multiply", (array(n, dtype=dtype), array(n, dtype="bool")), array(n, dtype=dtype))


def widened(size: int) -> NumpyCall:
    """Bytes, cast to indices."""
    n = size // 9
    return NumpyCall("copyto", (array(n, dtype="uint8"),), array(n, dtype="int64"))


def searched(size: int, dtype: str) -> NumpyCall:
    """The code of each number."""
    n = size // ((8 if dtype == "float64" else 4) + 1)
    between = [(number + 1) / (ENDS + 1) for number in range(ENDS)]  # numbers that arenas hold are in the middle
    ends = Ref((ENDS,), Buffer(ENDS, dtype, "constant", value=lambda: between))
    return NumpyCall("searchsorted", (ends, array(n, dtype=dtype)), array(n, dtype="uint8"))


def _overheads(dtype: str) -> Iterator[Named]:
    tiny = 96
    for name in (*UNARY, *BINARY, *COMPARING, *LOGICAL, "copyto"):
        yield f"call {name} {dtype}", elementwise(name, tiny, dtype)
    yield f"call {MIXED} {dtype}", masked(tiny, dtype)
    yield f"call {WIDENED} {dtype}", widened(tiny)
    yield f"call searchsorted {dtype}", searched(tiny, dtype)
    for name in ("multiply", "maximum", "minimum", "divide", "greater"):
        yield f"call {name} scalar {dtype}", elementwise(name, tiny, dtype, scalar=True)
    pair = array(2, 4, dtype=dtype)
    yield f"call repeated {dtype}", NumpyCall("add", (pair, array(2, 1, dtype=dtype)), array(2, 4, dtype=dtype))
    yield f"call fill {dtype}", NumpyCall("copyto", (0.5,), array(8, dtype=dtype))
    for side, times in MASKED_SIDES.items():
        yield f"where {side} {dtype}", _masking(side, times, dtype)
    yield f"call matmul {dtype}", product(2, 3, 2, dtype)
    yield f"call random {dtype}", NumpyCall("random", (), array(4, dtype=dtype))
    for name in ("add.reduce", "maximum.reduce"):
        yield f"call {name} {dtype}", NumpyCall(name, (array(2, 4, dtype=dtype),), array(2, dtype=dtype), {"axis": -1})
    if dtype == "float32":
        yield from _axes()


def _axes() -> Iterator[Named]:
    """Calls for which NumPy makes an iterator, which takes longer the more axes there are."""
    for axes, shape in CALL_AXES.items():
        yield f"call copyto axes {axes} float32", NumpyCall("copyto", (array(*shape),), array(*shape))
        yield f"call fill axes {axes} float32", NumpyCall("copyto", (0.5,), array(*shape))
    shape = CALL_AXES[max(CALL_AXES)]
    one = (*shape[:-1], 1)
    yield f"call repeated axes {len(shape)} float32", NumpyCall("add", (array(*shape), array(*one)), array(*shape))
    for name in ("add.reduce", "maximum.reduce"):
        kept = {"axis": -1, "keepdims": True}
        yield f"call {name} axes {len(shape)} float32", NumpyCall(name, (array(*shape),), array(*one), kept)


def _curves(sets: WorkingSets) -> Iterator[Named]:
    """Reads, writes, reads of one or two arrays for one that is written, copies, and read-modify-write."""
    short, long = READ_LENGTHS
    for size in sets.curve:
        yield f"curve matmul {size} float32", product(1, size // 4 // short, short, "float32", "b")
        if size > RESIDENT_BYTES and size in sets.thinned:
            yield f"curve matmul long {size} float32", product(1, max(size // 4 // long, 1), long, "float32", "b")
        yield f"curve negative {size} float32", streaming(size)
        if size in sets.thinned:
            yield f"curve fill {size} float32", filling(size)
            yield f"curve copyto {size} float32", elementwise("copyto", size, "float32")
            yield f"curve add {size} float32", elementwise("add", size, "float32")
            yield f"curve multiply in place {size} float32", elementwise("multiply", size, "float32", True, True)


def _functions(dtype: str, thorough: bool) -> Iterator[Named]:
    for size in RATE_BYTES if thorough else RATE_BYTES[: 2 if dtype == "float32" else 1]:
        for name in (*UNARY, *BINARY, *COMPARING, *LOGICAL, "copyto"):
            yield f"rate {name} {size} {dtype}", elementwise(name, size, dtype)
        for name in (*SCALED, "greater", "greater_equal", "less", "equal"):
            yield f"rate {name} scalar {size} {dtype}", elementwise(name, size, dtype, scalar=True)
        yield f"rate {MIXED} {size} {dtype}", masked(size, dtype)
        yield f"rate {WIDENED} {size} {dtype}", widened(size)
        yield f"rate searchsorted {size} {dtype}", searched(size, dtype)
        for name in STEADY:
            yield f"rate {name} in place {size} {dtype}", elementwise(name, size, dtype, in_place=True)
        for name in SCALED:
            in_place = elementwise(name, size, dtype, in_place=True, scalar=True)
            yield f"rate {name} scalar in place {size} {dtype}", in_place
        n = size // (8 if dtype == "float64" else 4)
        yield f"rate fill {size} {dtype}", NumpyCall("copyto", (0.5,), array(n, dtype=dtype))
        yield f"rate random {size} {dtype}", NumpyCall("random", (), array(n, dtype=dtype))


def _rows(dtype: str) -> Iterator[Named]:
    """One operand that is not contiguous: a row or a column repeated, part of longer rows, every other element."""
    for length in ROW_LENGTHS if dtype == "float32" else ROW_LENGTHS[1::4]:
        rows = max(ROWS_ELEMENTS // length, 2)
        pitch, double = length + 2, 2 * length + 1  # with a border; every other pixel of an image
        full = array(rows, length, dtype=dtype)
        out = array(rows, length, dtype=dtype)
        wide = array(rows, length, dtype=dtype, strides=(pitch, 1), elements=rows * pitch)
        second = array(rows, length, dtype=dtype, strides=(2 * double, 2), elements=2 * rows * double)
        across = array(rows, length, dtype=dtype, strides=(1, rows))
        row, column = array(length, dtype=dtype), array(rows, 1, dtype=dtype)
        patterns = {
            "row": NumpyCall("add", (full, row), out),
            "row in place": NumpyCall("add", (full, row), full),
            "column": NumpyCall("add", (full, column), out),
            "column in place": NumpyCall("add", (full, column), full),
            "part": NumpyCall("add", (wide, full), out),
            "part written": NumpyCall("add", (full, full), wide),
            "second": NumpyCall("add", (second, full), out),
            "second in place": NumpyCall("add", (full, second), full),
            "copy part": NumpyCall("copyto", (wide,), out),
            "copy into part": NumpyCall("copyto", (full,), wide),
            "copy second": NumpyCall("copyto", (second,), out),
            "copy across": NumpyCall("copyto", (across,), out),
        }
        for pattern, op in patterns.items():
            if length > 1 or pattern.startswith("copy"):
                yield f"{pattern} {length} {dtype}", op


def _lines_apart() -> Iterator[Named]:
    """A function of elements of which each is on a line of its own, read and written."""
    for size in LINES_APART:
        step, n = LINE // 4 + 1, size // (2 * LINE)
        x, out = (array(n, strides=(step,), elements=step * n) for _ in range(2))
        yield f"apart {size} float32", NumpyCall("negative", (x,), out)


def _windows(sets: WorkingSets) -> Iterator[Named]:
    """Parts of rows, and every other element of every other row, from caches and beyond, as pooling reads them."""
    for size in sets.windows:
        for manner, lengths in WINDOW_LENGTHS.items():
            for length in lengths:
                step = 1 + manner.startswith("second")
                pitch = step * length + 16 * (step == 1)
                rows = size // (4 * (step + 1) * length)
                x = array(rows, length, strides=(step * pitch, step), elements=step * rows * pitch)
                out = array(rows, length)
                op = NumpyCall("maximum", (out, x), out) if "in place" in manner else NumpyCall("copyto", (x,), out)
                yield f"windows {manner} {length} {size} float32", op


LOADING = ("exp", "divide")
"""Functions that compute for about as long as it takes to load what they compute with."""
MASKED = {"copy masked": 112, "copy masked long": 360}
"""Copies where a mask says so, by its side: short runs of what is left out are read all the same."""
LOADED_LENGTH = 440
"""Elements in a row of the former five."""


def _overlapping(sets: WorkingSets) -> Iterator[Named]:
    """What computes while it loads: functions, and loops of many rows, in a core's own caches and beyond: a row or a
    column repeated, sums and maxima of each row, sums of all of them, copies of parts of longer rows, of every other
    element, and where a mask says so."""
    for size in (WINDOW_BYTES, *sets.far):
        for name in LOADING:
            yield f"loading {name} {size} float32", elementwise(name, size, "float32")
        rows, long = size // (4 * WINDOW_LENGTH), size // (4 * LOADED_LENGTH)
        full, half = array(long, LOADED_LENGTH), array(long // 2, LOADED_LENGTH)
        ops = {
            "row": NumpyCall("add", (full, array(LOADED_LENGTH)), full),
            "column": NumpyCall("add", (half, array(long // 2, 1)), array(long // 2, LOADED_LENGTH)),
            "reduced inner": NumpyCall("add.reduce", (full,), array(long), {"axis": -1}),
            "maximum inner": NumpyCall("maximum.reduce", (full,), array(long), {"axis": -1}),
            "reduced outer": NumpyCall("add.reduce", (full,), array(LOADED_LENGTH), {"axis": 0}),
            "copy part": _unrolled(rows, 1),
            "copy second": _unrolled(rows, 2),
        }
        ops |= {manner: _masking(side, max(size // (8 * side**2), 1)) for manner, side in MASKED.items()}
        for manner, op in ops.items():
            yield f"loading {manner} {size} float32", op
        for width in FAR_WIDTHS:
            yield f"loading gather {width} {size} float32", _gathering(size // (8 * width), width)


def _gathering(rows: int, width: int) -> NumpyCall:
    """So many rows of a large table."""

    def value() -> Any:
        import numpy as np

        return np.random.default_rng(0).permutation(SPARSE * rows)[:rows]

    index = Ref((rows,), Buffer(rows, "int64", "constant", value=value))
    options = {"axis": 0, "mode": "clip"}
    return NumpyCall("take", (array(SPARSE * rows, width), index), array(rows, width), options)


def _masking(side: int, times: int, dtype: str = "float32") -> NumpyCall:
    """So many squares that are copied where a causal mask says so."""
    squares, mask = (times, side, side), causal(side)
    return NumpyCall(
        "copyto", (array(*squares, dtype=dtype), mask.broadcast_to(*squares)), array(*squares, dtype=dtype)
    )


def _unrolled(rows: int, step: int) -> NumpyCall:
    """An image in a core's own caches, copied over and over to so many rows: parts of its rows, or every other element
    of every other row, as a convolution unrolls it."""
    pitch = step * (WINDOW_LENGTH + 1)
    own = WINDOW_BYTES // (4 * pitch * step)
    times = max(rows // own, 1)
    own = min(own, rows)
    image = Buffer(step * own * pitch + 1, "float32", "input")
    x = Ref((times, own, WINDOW_LENGTH), image, (0, step * pitch, step), 1)
    return NumpyCall("copyto", (x,), array(times, own, WINDOW_LENGTH))


def _reductions(dtype: str, thorough: bool) -> Iterator[Named]:
    total = 40_000
    for name in ("add.reduce", "maximum.reduce"):
        for n in REDUCED_LENGTHS if dtype == "float32" else REDUCED_LENGTHS[::3]:
            rows = max(total // n, 1)
            x = array(rows, n, dtype=dtype)
            yield f"{name} inner {n} {dtype}", NumpyCall(name, (x,), array(rows, dtype=dtype), {"axis": -1})
            if name == "add.reduce":
                yield f"{name} outer {n} {dtype}", NumpyCall(name, (x,), array(n, dtype=dtype), {"axis": 0})


def _moves(dtype: str) -> Iterator[Named]:
    for width, many in GATHERED.items():
        for rows in (FEW_GATHERED, many):
            index = array(rows, dtype="int64")
            table, out = array(GATHERED_ROWS, width, dtype=dtype), array(rows, width, dtype=dtype)
            at = NumpyCall("add.at", (index, array(rows, width, dtype=dtype)), table)
            yield f"add.at {rows} {width} {dtype}", at
            yield f"take {rows} {width} {dtype}", NumpyCall("take", (table, index), out, {"axis": 0, "mode": "clip"})


def product(m: int, n: int, k: int, dtype: str, transposed: str = "") -> NumpyCall:
    """(m, k) times (k, n); of the operands that `transposed` names ("a", "b"), the columns are contiguous."""
    a = array(k, m, dtype=dtype).swapaxes(-1, -2) if "a" in transposed else array(m, k, dtype=dtype)
    b = array(n, k, dtype=dtype).swapaxes(-1, -2) if "b" in transposed else array(k, n, dtype=dtype)
    return NumpyCall("matmul", (a, b), array(m, n, dtype=dtype))


def _streaming(sets: WorkingSets) -> Iterator[Named]:
    """Products of few rows whose weights come from each level: their operands are a working set."""
    for number, size in enumerate(sets.far):
        for rows, layout in itertools.product(STREAMING_ROWS, ("b", "")):
            k = isqrt(size // 12) // 16 * 16
            m, n = rows + number, size // (4 * k) // 16 * 16
            yield f"product {m} {n} {k} {layout or 'plain'} float32", product(m, n, k, "float32", layout)


STREAMING_ROWS = (3, 37)
"""Of products that stream their weights, and one more at each level."""


def _products(dtype: str, thorough: bool) -> Iterator[Named]:
    for m, n, k, layout in product_shapes(dtype, thorough):
        yield f"product {m} {n} {k} {layout or 'plain'} {dtype}", product(m, n, k, dtype, layout)
    without = WITHOUT_BLAS if dtype == "float32" or thorough else WITHOUT_BLAS[: len(WITHOUT_BLAS) // 2]
    for batch, m, n, k in (*((batch, 1, n, k) for batch, n, k in DEPTHWISE), *without):
        operands = array(batch, m, k, dtype=dtype), array(batch, k, n, dtype=dtype)
        op = NumpyCall("matmul", operands, array(batch, m, n, dtype=dtype))
        yield f"products {batch} {m} {n} {k} plain {dtype}", op
    for batch, m, n, k, layout in batched_shapes(dtype, thorough):
        op = heads(batch, m, n, k, dtype, layout)
        yield f"products {batch} {m} {n} {k} {layout or 'plain'} {dtype}", op


def heads(batch: int, m: int, n: int, k: int, dtype: str, layout: str) -> NumpyCall:
    """Products as attention makes them: queries and keys, or values, are parts of rows that hold all three."""
    head = k if layout else n
    wide = 3 * batch * head
    strides = (head, 1, wide) if layout else (head, wide, 1)
    b = array(batch, k, n, dtype=dtype, strides=strides, elements=(n if layout else k) * wide)
    if layout:
        a = array(batch, m, k, dtype=dtype, strides=(head, wide, 1), elements=m * wide)
    else:
        a = array(batch, m, k, dtype=dtype)
    return NumpyCall("matmul", (a, b), array(batch, m, n, dtype=dtype))
