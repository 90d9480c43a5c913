"""What calibration measures: single NumPy calls, described as a kernel's are, at sizes chosen for what they show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from costmodel.roofline.operation import Op
from costmodel.roofline.program import Program, program_of
from costmodel.roofline.reference import Buffer, Ref
from costmodel.roofline.shapes import batched_shapes, product_shapes

KIB = 1024
MIB = 1024 * KIB

UNARY = ("exp", "tanh", "sqrt", "negative", "log", "square", "absolute", "sign", "reciprocal")
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "copysign")
COMPARING = ("greater", "greater_equal", "less", "less_equal", "equal", "not_equal")
LOGICAL = ("logical_and", "logical_or", "logical_not")
MIXED = "multiply by truths"
STEADY = ("add", "subtract", "maximum", "minimum", "negative", "absolute", "tanh", "sqrt", "reciprocal")
"""Functions that can be done in place over and over: numbers stay finite and normal."""

CURVE_BYTES = tuple(
    int(size * KIB)
    for size in (6, 24, 64, 160, 400, 720, 1000, 1500, 2500, 5000, 10_000, 17_000, 28_000, 44_000, 70_000)
)
"""Working sets of the reference curve, from the first cache to memory [bytes]."""

RESIDENT_BYTES = 400 * KIB
"""A working set that the caches of one core hold [bytes]."""

RATE_BYTES = (RESIDENT_BYTES, 3_100 * KIB, 13_000 * KIB, 40_000 * KIB)
"""Working sets at which a function's own rate is measured; a quick calibration takes the first [bytes]."""

GATHERED_ROWS = 120
GATHERED_WIDTHS = (1, 9, 60, 700)

ROWS_ELEMENTS = 45_000
"""Elements in all the rows of one such probe."""

LARGEST_BYTES = 96 * MIB
"""More than any probe needs [bytes]."""

ROW_LENGTHS = (1, 2, 4, 7, 14, 28, 56, 112, 200, 440, 900, 1800, 3500, 4090, 4610, 9000)
"""Lengths of inner loops at which the cost of starting one is measured."""

REDUCED_LENGTHS = (2, 7, 20, 48, 50, 100, 112, 192, 200, 420, 720, 750, 1600, 3100, 12_000)


@dataclass(frozen=True)
class Probe:
    """One call to measure; `name` is what its time is stored under."""

    name: str
    op: Op

    @property
    def program(self) -> Program:
        """The call as a program of its own."""
        return program_of([self.op], outputs=[self.op.output], name=self.name)


def array(*shape: int, dtype: str = "float32", strides: tuple[int, ...] | None = None, elements: int = 0) -> Ref:
    """An array in memory of its own, that is there before the call."""
    return Ref(shape, Buffer(elements or prod(shape), dtype, "input"), strides)


def causal(side: int) -> Ref:
    """Which keys each query sees."""

    def value() -> Any:
        import numpy as np

        return np.tri(side, dtype=bool)

    return Ref((side, side), Buffer(side * side, "bool", "constant", value=value))


def probes(thorough: bool = False) -> Iterator[Probe]:
    """Every probe of a calibration; a thorough one has more products, and every function at every size."""
    for dtype in ("float32", "float64"):
        yield from _overheads(dtype)
        yield from _curves(dtype, thorough)
        yield from _rows(dtype)
        yield from _reductions(dtype, thorough)
        yield from _moves(dtype)
        yield from _products(dtype, thorough)


def elementwise(name: str, size: int, dtype: str, in_place: bool = False, scalar: bool = False) -> Op:
    """A function over contiguous arrays that take up `size` bytes together."""
    item = 8 if dtype == "float64" else 4
    out_item = 1 if name in COMPARING or name in LOGICAL else item
    in_dtype = "bool" if name in LOGICAL else dtype
    in_item = 1 if name in LOGICAL else item
    reads = 1 if scalar or name in UNARY or name in ("copyto", "logical_not") else 2
    n = max(size // (reads * in_item + (0 if in_place else out_item)), 1)
    inputs: list[Any] = [array(n, dtype=in_dtype) for _ in range(reads)]
    out = inputs[0] if in_place else array(n, dtype="bool" if out_item == 1 else dtype)
    return Op(name, (*inputs, 1.0) if scalar else tuple(inputs), out)


def masked(size: int, dtype: str) -> Op:
    """Numbers times truths, which NumPy first turns into numbers, piece by piece."""
    n = size // (17 if dtype == "float64" else 9)
    return Op("multiply", (array(n, dtype=dtype), array(n, dtype="bool")), array(n, dtype=dtype))


def _overheads(dtype: str) -> Iterator[Probe]:
    tiny = 96
    for name in (*UNARY, *BINARY, *COMPARING, *LOGICAL, "copyto"):
        yield Probe(f"call {name} {dtype}", elementwise(name, tiny, dtype))
    yield Probe(f"call {MIXED} {dtype}", masked(tiny, dtype))
    for name in ("multiply", "maximum", "greater"):
        yield Probe(f"call {name} scalar {dtype}", elementwise(name, tiny, dtype, scalar=True))
    pair = array(2, 4, dtype=dtype)
    yield Probe(f"call repeated {dtype}", Op("add", (pair, array(2, 1, dtype=dtype)), array(2, 4, dtype=dtype)))
    yield Probe(f"call fill {dtype}", Op("copyto", (0.5,), array(8, dtype=dtype)))
    for side in (2, 20, 110, 420):
        square = array(side, side, dtype=dtype)
        yield Probe(f"where {side} {dtype}", Op("copyto", (square, causal(side)), array(side, side, dtype=dtype)))
    yield Probe(f"call matmul {dtype}", product(2, 3, 2, dtype))
    yield Probe(f"call random {dtype}", Op("random", (), array(4, dtype=dtype)))
    for name in ("add.reduce", "maximum.reduce"):
        yield Probe(f"call {name} {dtype}", Op(name, (array(2, 4, dtype=dtype),), array(2, dtype=dtype), {"axis": -1}))


def _curves(dtype: str, thorough: bool) -> Iterator[Probe]:
    for size in CURVE_BYTES if dtype == "float32" else ():
        yield Probe(f"curve add {size} {dtype}", elementwise("add", size, dtype))
        yield Probe(f"curve copyto {size} {dtype}", elementwise("copyto", size, dtype))
        yield Probe(f"curve multiply in place {size} {dtype}", elementwise("multiply", size, dtype, True, True))
    for size in RATE_BYTES if thorough else RATE_BYTES[:1]:
        for name in (*UNARY, *BINARY, *COMPARING, *LOGICAL, "copyto"):
            yield Probe(f"rate {name} {size} {dtype}", elementwise(name, size, dtype))
        for name in ("maximum", "multiply", "add", "subtract", "greater", "greater_equal"):
            yield Probe(f"rate {name} scalar {size} {dtype}", elementwise(name, size, dtype, scalar=True))
        yield Probe(f"rate {MIXED} {size} {dtype}", masked(size, dtype))
        for name in STEADY:
            yield Probe(f"rate {name} in place {size} {dtype}", elementwise(name, size, dtype, in_place=True))
        for name in ("maximum", "multiply", "add", "subtract"):
            in_place = elementwise(name, size, dtype, in_place=True, scalar=True)
            yield Probe(f"rate {name} scalar in place {size} {dtype}", in_place)
        n = size // (8 if dtype == "float64" else 4)
        yield Probe(f"rate fill {size} {dtype}", Op("copyto", (0.5,), array(n, dtype=dtype)))
        yield Probe(f"rate random {size} {dtype}", Op("random", (), array(n, dtype=dtype)))


def _rows(dtype: str) -> Iterator[Probe]:
    """One operand that is not read straight through: a row or a column repeated, part of longer rows, every other."""
    for length in ROW_LENGTHS if dtype == "float32" else ROW_LENGTHS[1::4]:
        rows = max(ROWS_ELEMENTS // length, 2)
        pitch = -(-length // 16) * 16 + 16
        full = array(rows, length, dtype=dtype)
        out = array(rows, length, dtype=dtype)
        wide = array(rows, length, dtype=dtype, strides=(pitch, 1), elements=rows * pitch)
        second = array(rows, length, dtype=dtype, strides=(2 * pitch, 2), elements=2 * rows * pitch)
        across = array(rows, length, dtype=dtype, strides=(1, rows))
        row, column = array(length, dtype=dtype), array(rows, 1, dtype=dtype)
        patterns = {
            "row": Op("add", (full, row), out),
            "row in place": Op("add", (full, row), full),
            "column": Op("add", (full, column), out),
            "column in place": Op("add", (full, column), full),
            "part": Op("add", (wide, full), out),
            "part written": Op("add", (full, full), wide),
            "second": Op("add", (second, full), out),
            "copy part": Op("copyto", (wide,), out),
            "copy into part": Op("copyto", (full,), wide),
            "copy second": Op("copyto", (second,), out),
            "copy across": Op("copyto", (across,), out),
        }
        for pattern, op in patterns.items():
            if length > 1 or pattern.startswith("copy"):
                yield Probe(f"{pattern} {length} {dtype}", op)


def _reductions(dtype: str, thorough: bool) -> Iterator[Probe]:
    total = 40_000
    for name in ("add.reduce", "maximum.reduce"):
        for n in REDUCED_LENGTHS if dtype == "float32" else REDUCED_LENGTHS[::3]:
            rows = max(total // n, 1)
            x = array(rows, n, dtype=dtype)
            yield Probe(f"{name} inner {n} {dtype}", Op(name, (x,), array(rows, dtype=dtype), {"axis": -1}))
            if name == "add.reduce":
                yield Probe(f"{name} outer {n} {dtype}", Op(name, (x,), array(n, dtype=dtype), {"axis": 0}))


def _moves(dtype: str) -> Iterator[Probe]:
    for width in GATHERED_WIDTHS:
        for rows in (4, GATHERED_ROWS):
            index = array(rows, dtype="int64")
            table, out = array(GATHERED_ROWS, width, dtype=dtype), array(rows, width, dtype=dtype)
            at = Op("add.at", (index, array(rows, width, dtype=dtype)), table)
            yield Probe(f"add.at {rows} {width} {dtype}", at)
            yield Probe(f"take {rows} {width} {dtype}", Op("take", (table, index), out, {"axis": 0, "mode": "clip"}))


def product(m: int, n: int, k: int, dtype: str, transposed: str = "") -> Op:
    """(m, k) times (k, n); of the operands that `transposed` names ("a", "b"), the columns are contiguous."""
    a = array(k, m, dtype=dtype).swapaxes(-1, -2) if "a" in transposed else array(m, k, dtype=dtype)
    b = array(n, k, dtype=dtype).swapaxes(-1, -2) if "b" in transposed else array(k, n, dtype=dtype)
    return Op("matmul", (a, b), array(m, n, dtype=dtype))


def _products(dtype: str, thorough: bool) -> Iterator[Probe]:
    for m, n, k, layout in product_shapes(dtype, thorough):
        yield Probe(f"product {m} {n} {k} {layout or 'plain'} {dtype}", product(m, n, k, dtype, layout))
    for batch, m, n, k, layout in batched_shapes(dtype, thorough):
        op = heads(batch, m, n, k, dtype, layout)
        yield Probe(f"products {batch} {m} {n} {k} {layout or 'plain'} {dtype}", op)


def heads(batch: int, m: int, n: int, k: int, dtype: str, layout: str) -> Op:
    """Products as attention makes them: queries and keys, or values, are parts of rows that hold all three."""
    head = k if layout else n
    wide = 3 * batch * head
    strides = (head, 1, wide) if layout else (head, wide, 1)
    b = array(batch, k, n, dtype=dtype, strides=strides, elements=(n if layout else k) * wide)
    if layout:
        a = array(batch, m, k, dtype=dtype, strides=(head, wide, 1), elements=m * wide)
    else:
        a = array(batch, m, k, dtype=dtype)
    return Op("matmul", (a, b), array(batch, m, n, dtype=dtype))
