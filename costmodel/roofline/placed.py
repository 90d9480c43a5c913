"""Calls that a calibration measures where they stand in a program: what finds its operands, or its code, left alone for
some time. A calibration has them beside the single calls of `costmodel.roofline.probes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from costmodel.roofline.memory import Buffer, Ref
from costmodel.roofline.probes import BINARY, KIB, array, elementwise, heads, product
from costmodel.roofline.program import NumpyCall, Program, program_of
from costmodel.roofline.sizes import SizeBox, Triple, attended

LARGE_PRODUCTS: tuple[Triple, ...] = (
    (120, 260, 130),
    (120, 520, 270),
    (136, 770, 760),
    (136, 3000, 790),
    (270, 3000, 790),
)
"""Products that take 0.1 to 14 ms, after which tiny calls find code and arrays that were left alone meanwhile."""
FEW_PRODUCTS = LARGE_PRODUCTS[:3]
"""Those of a program that caches hold: there the code comes from the cache that cores share, which keeps it only by and
by where much else streams through it, as it does in a program with all of them."""
STALE_CALLS = ("add", "subtract", "multiply", "divide", "maximum", "sqrt", "reciprocal", "exp", "tanh")
STALE_MANNERS = {"reduced": ("add.reduce", "maximum.reduce"), "scaled": ("multiply scalar", "divide scalar")}
"""Calls of manners that take code of their own, the first of which runs it anew after a large product."""
STALE = (*STALE_CALLS, *(name for names in STALE_MANNERS.values() for name in names))
FIRST = ("add", "exp", "maximum.reduce", "divide scalar")
"""Those that are measured as the first call after the product too, with the code of any call; and after others ran the
same code, so that only their own arguments were left alone."""
AGED = {"one": "negative", "two": "add", "in place": "multiply"}
AGED_BYTES, AGING, AGES = 1000 * KIB, (380, 390, 400), (1, 2, 4, 8, 20)
"""Arrays that are left alone [bytes], during which products, and how many of them in a row: their operands take up
little of the cache that cores share, or it would be they that evict. From one, since a small cache is filled by others
within some milliseconds, to many, since a large one takes long, and since moments of rest are short, and what evicts
nothing in them is no traffic."""
COLD_BOXES = (
    SizeBox(6, (24, 400, 400), (320, 1300, 1300), 1e7, 2e8, layout="b"),
    SizeBox(4, (24, 400, 400), (320, 1300, 1300), 1e7, 2e8),
    SizeBox(3, (2, 400, 400), (15, 1300, 1300), 1e6, 2e7, layout="b"),
    SizeBox(3, (1, 400, 400), (1, 1300, 1300), 2e5, 2e6, layout="b"),
)
"""Products whose weights come from DRAM, and are so small that caches keep them from the second use on: of 10 MB and
more an AMD EPYC keeps a part, so that those made again are not warm, and the difference says too little."""
COLD_RESULTS = (SizeBox(3, (300, 1000, 2), (1000, 4500, 15), 2e6, 2e7, layout="b"),)
"""The same whose result goes there: of gradients of weights from few rows."""
COLD_FIRST = (
    SizeBox(5, (60, 16, 60), (1500, 200, 4000), 1e6, 1e8, square=True),
    SizeBox(3, (100, 2, 200), (1200, 15, 4500), 1e6, 6e7),
)
"""The same whose first operand is the weights: convolutions of few pixels."""
COLD_HEADS = range(65, 71)
"""Products of attention, by their place in the sequence of which those run over and over are the first."""
LONGEST_AGE = 72
"""As many products after which the largest caches have been filled by others."""
KEPT_AGES, USES = (3, 12), 3
"""The same of arrays that are used so many times before they are left alone: caches keep them longer."""
AGES_NOW = AGES[:4]
"""After which it is seen what others bring at a moment, within 50 ms."""
AGED_NAME, KEPT_NAME = "aged ", "kept "
"""What the layers begin with of arrays that were used once and left alone, and of those that were used often, before
the way and after how many products."""
PASSING = 4 * KIB
"""Rows of what is read to touch more [bytes]."""
RECURRING = "recurring "
"""What the layers begin with of calls in a program that caches hold."""
BETWEEN = "between "
"""What the layers of calls begin with that come between those that are measured."""


def in_place(beyond: int) -> tuple[Program, ...]:
    """The programs whose calls a calibration measures in place. beyond: what they touch in a pass at least, but for the
    first, so that none finds in a cache what the pass before left there [bytes]."""
    return recurring(), placed(beyond), cold(beyond)


def placed(beyond: int = 0) -> Program:
    """Tiny calls and arrays after a large product, each measured once in a pass. beyond: see `in_place`."""
    ops = [*_stale(LARGE_PRODUCTS), *_aging({AGED_NAME: AGES, KEPT_NAME: KEPT_AGES}, LONGEST_AGE)]
    return _touching(beyond, ops, "placed")


def cold(beyond: int = 0) -> Program:
    """Products whose weights were last touched a pass ago, one after the other as in a network; then each three times
    more, after which all is found that caches keep. Their other operands are shared. beyond: see `in_place`.

    They are a program of their own, since memory that nobody asked for a tenth of a second answers faster for 10 to
    50 ms, if not at all hours: on an AMD EPYC transposed weights then took 25 ps a byte, and 45 otherwise.
    Each is of a layer that has the probe's name.
    """
    first, again = [], []

    def probe(call: NumpyCall, name: str) -> None:
        first.append(replace(call, layer=f"cold {name}"))
        again.extend(replace(call, layer=layer) for layer in (*[f"{BETWEEN}again {name}"] * 2, f"warm {name}"))

    shapes = [(*shape, box.layout) for box in COLD_BOXES for shape in box.shapes(1.0)]
    leading = [shape for box in COLD_FIRST for shape in box.shapes(1.0)]
    read = Buffer(max(max(m * k for m, _, k, _ in shapes), max(n * k for _, n, k in leading)), "float32", "input")
    written = Buffer(max(m * n for m, n, *_ in (*shapes, *leading)), "float32", "input")
    for m, n, k, layout in shapes:
        weight = array(n, k).swapaxes(0, 1) if layout == "b" else array(k, n)
        op = NumpyCall("matmul", (Ref((m, k), read), weight), Ref((m, n), written))
        probe(op, f"product {m} {n} {k} {layout or 'plain'}")
    for m, n, k in leading:
        op = NumpyCall("matmul", (array(m, k), Ref((k, n), read)), Ref((m, n), written))
        probe(op, f"product {m} {n} {k} first")
    for m, n, k in (shape for box in COLD_RESULTS for shape in box.shapes(1.0)):
        probe(product(m, n, k, "float32", "b"), f"product {m} {n} {k} result")
    for step in COLD_HEADS:
        batch, m, n, k, layout = attended(step)
        probe(heads(batch, m, n, k, "float32", layout), f"products {batch} {m} {n} {k} {layout or 'plain'}")
    return _touching(beyond, [*first, *again], "cold")


def _touching(beyond: int, ops: Sequence[NumpyCall], name: str) -> Program:
    """A program of calls that touches so many bytes beside any of them: what lacks is an array that is read at its
    end."""
    touched = program_of(ops, [op.output for op in ops]).touched_bytes
    lacking = beyond + max(op.traffic_bytes for op in ops) - touched
    if lacking > 0:
        rows = -(-lacking // PASSING)
        passing = NumpyCall("add.reduce", (array(rows, PASSING // 4),), array(rows), {"axis": -1})
        ops = [*ops, replace(passing, layer=f"{BETWEEN}passes of {name}")]
    return program_of(ops, [op.output for op in ops], name=name)


def recurring() -> Program:
    """Tiny calls after products in a program that caches hold."""
    ops = [*_stale(FEW_PRODUCTS, RECURRING)]
    return program_of(ops, [op.output for op in ops], name="recurring")


def _stale(products: Sequence[Triple], where: str = "") -> Iterator[NumpyCall]:
    """After each large product: tiny calls one after the other, and some of them first. where: what the layers of those
    that are measured begin with."""
    few = array(8)

    def tiny(name: str, layer: str) -> NumpyCall:
        function, _, scalar = name.partition(" ")
        if name in STALE_MANNERS["reduced"]:
            return NumpyCall(name, (few.reshape(2, 4),), array(2), {"axis": -1}, layer=layer)
        inputs = (few, 2.0) if scalar else (few, few) if function in BINARY else (few,)
        return NumpyCall(function, inputs, array(8), layer=layer)

    for number, shape in enumerate(products):
        large = replace(product(*shape, "float32"), layer=f"{BETWEEN}product {number}")
        yield from (tiny(name, f"{BETWEEN}warming {name}") for name in STALE)
        yield from (large, tiny("negative", f"{BETWEEN}warming"))
        yield from (tiny(name, f"{where}stale {name} {number}") for name in STALE)
        yield from (tiny(name, f"{where}fresh {name} {number}") for name in FIRST)
        for name in FIRST:
            yield from (tiny(name, f"{BETWEEN}warming {name}"), large, tiny(name, f"{where}first {name} {number}"))


def left_alone() -> Program:
    """Arrays after products that leave the cache that cores share to others: what tells how much those bring now."""
    ops = [*_aging({AGED_NAME: AGES_NOW})]
    return program_of(ops, [op.output for op in ops], name="left alone")


def _aging(ages: Mapping[str, Sequence[int]], longest: int = 0) -> Iterator[NumpyCall]:
    """Arrays of each kind and way before and after so many products, one age after the other; those of the longest
    before and after all of them, and of some more products."""
    aging = replace(product(*AGING, "float32"), layer=f"{BETWEEN}aging")
    arrays = {
        (kind, rounds, way): elementwise(name, AGED_BYTES, "float32", *[way == "in place"] * 2)
        for kind, own in ages.items()
        for rounds in (*own, *[longest] * bool(longest))
        for way, name in AGED.items()
    }

    def touched(kind: str, rounds: int) -> Iterator[NumpyCall]:
        for _ in range(USES if kind == KEPT_NAME else 1):
            for way in AGED:
                yield replace(arrays[kind, rounds, way], layer=f"{BETWEEN}touching {kind}{way} {rounds}")

    def aged(kind: str, rounds: int) -> Iterator[NumpyCall]:
        for way in AGED:
            small = elementwise(AGED[way], 96, "float32", *[way == "in place"] * 2)
            yield replace(small, layer=f"{BETWEEN}{kind}{way} {rounds}")
            yield replace(arrays[kind, rounds, way], layer=f"{kind}{way} {rounds}")

    if longest:
        yield from chain(*(touched(kind, longest) for kind in ages))
    for kind, own in ages.items():
        for rounds in own:
            yield from (*touched(kind, rounds), *[aging] * rounds, *aged(kind, rounds))
    if longest:
        yield from [aging] * (longest - sum(map(sum, ages.values())))
        yield from chain(*(aged(kind, longest) for kind in ages))
