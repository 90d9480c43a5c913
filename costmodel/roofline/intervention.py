"""Changing one thing about calls to see what their time hangs on: smallest shapes, tiles that stay in cache.

A call on smallest shapes has only its overhead left. A tile is a part of the call's arrays, in the same layout, small
enough for the caches of one core; scaled up to the whole, it is the call without memory beyond them. Copies of a tile
that take turns bring memory back at a distance of one's choice.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from costmodel.roofline.operation import Op
from costmodel.roofline.program import Program, program_of
from costmodel.roofline.reference import ITEM_BYTES, Buffer, Ref, Shape

TILE_BYTES = 200 * 1024
"""What a tile may take up, all its arrays together [bytes]."""

Cut = Callable[[Ref], Shape]


def smallest(op: Op) -> Op:
    """The same call on arrays of the same layout, two elements along every axis that has more."""
    return _reshaped(op, lambda ref: tuple(min(n, 2) for n in ref.shape), compact=True)


def tile(op: Op, most: int = TILE_BYTES) -> tuple[Op, float]:
    """A part of a call that takes up at most so many bytes, where it can be cut, and how many such parts it has."""
    if op.name == "matmul":
        found = _product_tile(op, most)
    elif op.name == "take":
        found = _gather_tile(op, most)
    else:
        found = _loop_tile(op, most)
    return found, _work(op) / _work(found)


def alone(op: Op) -> Program:
    """A call as a program of its own, all its memory there before."""
    return program_of([op], outputs=[op.output], name=op.name)


def _loop_tile(op: Op, most: int) -> Op:
    if op.name.endswith(".at") or not op.operands:
        return op
    whole = op.operands[0] if op.name.endswith(".reduce") else op.output
    depth = len(whole.shape)
    kept = list(whole.shape)
    for axis in range(depth):
        size = sum(_extent(ref, tuple(kept)) for ref in (*op.operands, op.output))
        if size <= most:
            break
        kept[axis] = max(int(kept[axis] * most / size), 1)
    if op.name.endswith(".reduce"):
        return _reduction_tile(op, tuple(kept))
    return _reshaped(op, lambda ref: _aligned(ref.shape, tuple(kept)))


def _reduction_tile(op: Op, kept: Shape) -> Op:
    x, axis = op.operands[0], op.params.get("axis")
    every = range(len(x.shape))
    axes = {a % len(x.shape) for a in (every if axis is None else axis if isinstance(axis, tuple) else (axis,))}
    if op.params.get("keepdims"):
        left = tuple(1 if a in axes else kept[a] for a in every)
    else:
        left = tuple(kept[a] for a in every if a not in axes)
    return _reshaped(op, lambda ref: kept if ref is x else left)


def _aligned(shape: Shape, kept: Shape) -> Shape:
    """Lengths of the last axes, as far as they are not broadcast."""
    return tuple(min(n, most) for n, most in zip(shape, kept[len(kept) - len(shape) :], strict=True))


def _extent(ref: Ref, kept: Shape) -> int:
    shape = _aligned(ref.shape, kept) if len(ref.shape) <= len(kept) else ref.shape
    distinct = prod(n for n, step in zip(shape, ref.steps, strict=True) if step)
    return distinct * ITEM_BYTES[ref.dtype]


def _product_tile(op: Op, most: int) -> Op:
    a, b = op.operands if len(op.operands) == 2 else op.operands * 2
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    item = ITEM_BYTES[op.output.dtype]
    while item * (m * k + k * n + m * n) > most and max(m, k, n) > 1:
        if m == max(m, k, n):
            m = -(-m // 2)
        elif n >= k:
            n = -(-n // 2)
        else:
            k = -(-k // 2)

    def cut(ref: Ref) -> Shape:
        one = (1,) * (len(ref.shape) - 2)
        return (*one, *((m, n) if ref is op.output else (m, k) if ref is a else (k, n)))

    return _reshaped(op, cut)


def _gather_tile(op: Op, most: int) -> Op:
    table, index = op.operands
    axis = op.params.get("axis", 0)
    if axis != 0:
        return op
    share = min(1.0, most / (2 * op.output.bytes + index.bytes))
    rows = max(int(index.shape[0] * share), 1)
    shapes = {
        id(table): (min(table.shape[0], max(rows * prod(index.shape[1:]), 1)), *table.shape[1:]),
        id(index): (rows, *index.shape[1:]),
        id(op.output): (rows, *op.output.shape[1:]),
    }
    return _reshaped(op, lambda ref: shapes[id(ref)])


def _work(op: Op) -> float:
    return float(op.contractions or op.traffic_bytes)


def _reshaped(op: Op, cut: Cut, compact: bool = False) -> Op:
    """The call on parts of its arrays, in memory just large enough, shared where it was shared."""
    buffers: dict[Buffer, Buffer] = {}
    refs = [x for x in (*op.inputs, op.output) if isinstance(x, Ref)]
    shapes = {id(ref): cut(ref) for ref in refs}
    layouts = {id(ref): _compact(ref, shapes[id(ref)]) if compact else ref.steps for ref in refs}
    for ref in refs:
        reach = 1 + sum((n - 1) * abs(s) for n, s in zip(shapes[id(ref)], layouts[id(ref)], strict=True))
        old = buffers.get(ref.buffer)
        if old is None or old.elements < reach:
            buffers[ref.buffer] = Buffer(reach, ref.dtype, "input", ref.buffer.name)

    def moved(ref: Ref) -> Ref:
        return Ref(shapes[id(ref)], buffers[ref.buffer], layouts[id(ref)])

    inputs = tuple(moved(x) if isinstance(x, Ref) else x for x in op.inputs)
    return Op(op.name, inputs, moved(op.output), op.params, op.layer, op.phase)


def _compact(ref: Ref, shape: Shape) -> Shape:
    """Strides in the order of the array's own, without gaps; a broadcast axis stays one."""
    order = sorted(range(len(shape)), key=lambda a: (ref.steps[a], -a))
    steps, so_far = [0] * len(shape), 1
    for axis in order:
        if ref.steps[axis]:
            steps[axis] = so_far
            so_far *= shape[axis]
    return tuple(steps)
