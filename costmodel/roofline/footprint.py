"""Memory of a program without running it: live bytes at every call, and the buffers of NumPy's iterator.

An elementwise function runs over axes as one loop as far as a single stride takes every operand from each element to
the next. Where it does not, as between rows that share one column of numbers, NumPy may copy an operand into a buffer,
to make fewer and longer loops; an operand of another type is always copied. The choice is that of NumPy 2.3 and later
(``numpy/_core/src/multiarray/nditer_constr.c``): as many inner axes as make (1 + operands buffered)/(length of a loop)
least.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from math import prod
from typing import NamedTuple

from costmodel.roofline.program import Op, Program
from costmodel.roofline.reference import ITEM_BYTES

BUFFER = 8192
"""Elements that a buffer holds at most (``np.getbufsize``)."""

DIRECT = frozenset({"copyto", "matmul", "take", "random"})
"""Functions that do not go through the buffering iterator."""

INDEXING_BYTES = 4608
"""About what ``ufunc.at`` takes for its iterator over an index, which has room for 64 axes of everything."""


class Operand(NamedTuple):
    """Steps along each axis of the loop [elements], the item that a buffer of it holds [bytes], and whether it is cast.

    reduced: an output that several elements are reduced into.
    """

    steps: tuple[int, ...]
    item_bytes: int
    cast: bool
    reduced: bool = False


def buffer_bytes(op: Op) -> int:
    """Bytes that a call allocates beside its output and gives back: its iterator's buffers, or what a search finds."""
    function, _, method = op.name.partition(".")
    if method == "at":
        return INDEXING_BYTES
    if function == "searchsorted":
        return ITEM_BYTES["int64"] * op.output.size
    if function in DIRECT:
        return 0
    shape, steps = op.loop
    axes, operands = _merged(*_sorted(shape, _operands(op, steps)))
    depth, loop = _depth(axes, operands)
    core = prod(axes[:depth])
    most = BUFFER // core * core if depth and core <= BUFFER else BUFFER
    held = min(most, loop)
    return sum(held * x.item_bytes for x in operands if x.cast or not _single(axes, x, depth))


def _operands(op: Op, steps: list[tuple[int, ...]]) -> list[Operand]:
    """Arrays read and the one written, with their steps over the loop; numbers cost nothing."""
    *refs, output = op.accesses
    floats = [x.dtype for x in refs if x.dtype.startswith("float")]
    logical = op.name.startswith("logical")
    computed = "bool" if logical else max(floats, default=refs[0].dtype if refs else "", key=ITEM_BYTES.__getitem__)
    if op.name == "divide" and not floats:
        computed = "float64"
    made, reduced = output.dtype if output.dtype == "bool" else computed, op.name.endswith(".reduce")
    read = [Operand(own, ITEM_BYTES[computed], x.dtype != computed) for x, own in zip(refs, steps, strict=False)]
    return [*read, Operand(steps[-1], ITEM_BYTES[made], not reduced and output.dtype != made, reduced)]


def _sorted(shape: tuple[int, ...], operands: list[Operand]) -> tuple[list[int], list[Operand]]:
    """Axes from the innermost out: those of smaller steps first, where no operand objects; single ones left out."""
    order: list[int] = []
    for axis in [axis for axis in reversed(range(len(shape))) if shape[axis] != 1]:
        place = len(order)
        for before in range(len(order) - 1, -1, -1):
            pairs = [(x.steps[axis], x.steps[order[before]]) for x in operands]
            pairs = [(own, other) for own, other in pairs if own and other]
            if not pairs:
                continue
            if any(own >= other for own, other in pairs):
                break
            place = before
        order.insert(place, axis)
    return [shape[a] for a in order], [x._replace(steps=tuple(x.steps[a] for a in order)) for x in operands]


def _merged(axes: list[int], operands: list[Operand]) -> tuple[list[int], list[Operand]]:
    """Neighbouring axes as one where a single stride walks both, for every operand."""
    sizes: list[int] = []
    kept: list[int] = []
    for axis, size in enumerate(axes):
        if kept and all(x.steps[kept[-1]] * sizes[-1] == x.steps[axis] for x in operands):
            sizes[-1] *= size
        else:
            sizes.append(size)
            kept.append(axis)
    return sizes, [x._replace(steps=tuple(x.steps[a] for a in kept)) for x in operands]


def _single(axes: list[int], x: Operand, depth: int) -> bool:
    """Whether one stride walks axes 0 … depth."""
    reached = all(x.steps[a] * axes[a] == x.steps[a + 1] for a in range(depth))
    return reached or (x.reduced and all(x.steps[a] * axes[a] == x.steps[a + 1] for a in range(depth - 1)))


def _depth(axes: list[int], operands: list[Operand]) -> tuple[int, int]:
    """The outermost axis of a loop, and the elements that all loops of it have."""
    cost = 1 + sum(x.cast for x in operands)
    single = [True] * len(operands)
    size = axes[0] if axes else 1
    depth, best, best_cost = 0, size, cost
    for axis in range(1, len(axes)):
        if size >= BUFFER and cost > 1:
            break
        turns = False
        for number, x in enumerate(operands):
            if single[number] and x.steps[axis - 1] * axes[axis - 1] != x.steps[axis]:
                single[number] = False
                cost += not x.cast
            if not single[number] and x.reduced and 0 in (x.steps[axis], x.steps[axis - 1]):
                turns = True
        size *= axes[axis]
        length = min(size, BUFFER) if cost > 1 else size
        if cost * best <= best_cost * length:
            depth, best, best_cost = axis, size, cost
        if turns:
            break
    return depth, best


def standing_bytes(program: Program) -> int:
    """Arrays that are there before it runs: inputs, weights, states and constants [bytes]."""
    return sum(buffer.bytes for buffer in program.persistent)


def live_bytes(program: Program) -> list[int]:
    """Arrays alive after each call, what it makes and drops included [bytes]."""
    return list(accumulate(_changes(program), initial=standing_bytes(program)))[1:]


def _changes(program: Program) -> Iterator[int]:
    for made, dropped in zip(program.made, program.frees, strict=True):
        yield (0 if made is None else made.bytes) - sum(buffer.bytes for buffer in dropped)


def peak_bytes(program: Program) -> int:
    """The most that is alive during a call, its iterator's buffers included [bytes]."""
    before = [standing_bytes(program), *live_bytes(program)]
    during = (
        live + (0 if made is None else made.bytes) + buffer_bytes(op)
        for live, made, op in zip(before, program.made, program.ops, strict=False)
    )
    return max(during, default=before[0])
