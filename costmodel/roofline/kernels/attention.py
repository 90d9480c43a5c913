"""The parts of attention: softmax, masks, rotary positions, a few queries at a time; caches, and latents by head."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from costmodel.layers.attention import visible_pairs
from costmodel.roofline.kernels import ArrayTape, Gradients, KernelCall, kernel, unary
from costmodel.roofline.memory import Ref

TILE = 64
"""Queries that fused attention takes at a time where every query sees all keys."""


def log_softmax(t: ArrayTape, x: Ref, axis: int) -> Ref:
    """x − max x − log Σ exp(x − max x), in new memory."""
    y = t.subtract(x, t.reduce("maximum", x, axis), out=t.empty(*x.shape))
    return t.chain(y, ("subtract", t.chain(t.sum(t.exp(y), axis), "log")))


def softmax(t: ArrayTape, s: KernelCall) -> Ref:
    """exp(x − max x)/Σ exp(x − max x), or its logarithm."""
    axis = _axis(s)
    if s.kind.logarithm:
        return log_softmax(t, s.x, axis)
    y = t.subtract(s.x, t.reduce("maximum", s.x, axis), out=t.empty(*s.x.shape))
    t.exp(y, out=y)
    return t.divide(y, t.sum(y, axis), out=y)


def softmax_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """y·(g − Σ g·y), or g − e^y·Σ g."""
    if s.kind.logarithm:
        return t.chain(t.exp(s.y), ("multiply", t.sum(g, _axis(s))), (g, "subtract"))
    terms = t.multiply(g, s.y)
    total = t.sum(terms, _axis(s))
    return t.chain(t.subtract(g, total, out=terms), (s.y, "multiply"))


def _axis(s: KernelCall) -> int:
    return -1 if s.kind.axis is None else s.kind.axis


def _masked(t: ArrayTape, s: KernelCall, values: Ref, elsewhere: float) -> Ref:
    """The values where allowed."""
    return t.copyto(t.full(s.x.shape, elsewhere), values, where=s.inputs[1].broadcast_to(*s.x.shape))


def sink(t: ArrayTape, s: KernelCall) -> Ref:
    """The scores of a row, and its head's weight."""
    y, last = t.empty(*s.x.shape[:-1], s.x.shape[-1] + 1), s.x.shape[-1]
    t.copyto(y[..., :last], s.x)
    t.copyto(y[..., last:], s.weights["weight"].reshape(1, s.x.shape[1], 1, 1))
    return y


def sink_gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    """A part of g, and the sum of the rest over the rows of each head."""
    last, weight = s.x.shape[-1], s.weights["weight"]
    if s.wants(s.x):
        yield s.x, g[..., :last]
    if s.wants(weight):
        yield weight, t.accumulate(g[..., last:], (1, s.x.shape[1], 1, 1)).reshape(s.x.shape[1])


def _turn(t: ArrayTape, s: KernelCall, x: Ref, *, back: bool) -> Ref:
    """x·cos + rotate(x)·sin, or back; features i and i + size/2 are a pair, the tables repeat each angle for both."""
    start, half = int(s.kind.start), int(s.kind.size) // 2
    middle, end = start + half, start + 2 * half
    cos, sin = s.inputs[1:]
    y = t.empty(*x.shape, like=x)
    t.multiply(x[..., start:end], cos, out=y[..., start:end])
    for rest in (slice(0, start), slice(end, x.shape[-1])):
        if rest.start < rest.stop:
            t.copyto(y[..., rest], x[..., rest])
    left, right = y[..., start:middle], y[..., middle:end]
    first, second = sin[:, :half], sin[:, half:]
    one, other = (t.add, t.subtract) if back else (t.subtract, t.add)
    one(left, t.multiply(x[..., middle:end], second if back else first), out=left)
    other(right, t.multiply(x[..., start:middle], first if back else second), out=right)
    return y


def keys_of(t: int, pairs: int) -> list[slice]:
    """The keys that each of `t` queries sees if they see so many pairs in all: causal, windowed, or both."""
    for causal in (True, False):
        for window in (None, *range(1, t + 1)):
            if visible_pairs(t, causal=causal, window=window) == pairs:
                behind = t if window is None else window
                return [slice(max(0, i - behind + 1), i + 1 if causal else min(t, i + behind)) for i in range(t)]
    raise ValueError(f"no mask leaves {pairs} of {t}² pairs")


def _tiles(s: KernelCall) -> Iterator[tuple[slice, slice]]:
    """Queries and the keys that they see."""
    count = s.x.shape[2]
    if s.kind.pairs is None:
        for start in range(0, count, TILE):
            yield slice(start, min(start + TILE, count)), slice(None)
    else:
        for row, keys in enumerate(keys_of(count, int(s.kind.pairs))):
            yield slice(row, row + 1), keys


def _by_key_head(t: ArrayTape, s: KernelCall, x: Ref) -> Ref:
    """(batch, h, T, d_h) → (batch, h_kv, h/h_kv, T, d_h)."""
    b, _, count, features = x.shape
    return t.reshape(x, b, s.inputs[1].shape[1], -1, count, features)


def _scale(s: KernelCall) -> float:
    return 1 / math.sqrt(s.x.shape[-1]) if s.kind.scale is None else s.kind.scale


def _scores(t: ArrayTape, s: KernelCall, q: Ref, k: Ref) -> Ref:
    return t.chain(t.matmul(q, k.swapaxes(-1, -2)), ("multiply", _scale(s)))


def _share(t: ArrayTape, s: KernelCall, scores: Ref, name: str) -> Ref | None:
    """Dropout's mask over 1 − p; backward draws none anew but keeps it, as NumPy cannot seed one call."""
    if not (s.training and s.kind.dropout):
        return None
    drawn = t.random(*scores.shape)
    mask = t.greater_equal(drawn, s.kind.dropout)
    s.saved[f"share{name}"] = t.multiply(mask, 1 / (1 - s.kind.dropout), out=drawn)
    return drawn


def fused(t: ArrayTape, s: KernelCall) -> Ref:
    """softmax(scale·q kᵀ) v, a tile of queries at a time; keeps a row's max + log Σ."""
    q, (k, v) = _by_key_head(t, s, s.x), (x[:, :, None] for x in s.inputs[1:])
    y = t.empty(*q.shape[:-1], v.shape[-1])
    for queries, keys in _tiles(s):
        scores = _scores(t, s, q[..., queries, :], k[..., keys, :])
        largest = t.reduce("maximum", scores, -1)
        total = t.sum(t.chain(scores, ("subtract", largest), "exp"), -1)
        t.divide(scores, total, out=scores)
        if s.training:
            s.saved[f"log{queries.start}"] = t.add(largest, t.log(total, out=total), out=total)
        share = _share(t, s, scores, str(queries.start))
        if share is not None:
            t.multiply(scores, share, out=scores)
        t.matmul(scores, v[..., keys, :], out=y[..., queries, :])
    return y.reshape(*s.x.shape[:-1], v.shape[-1])


def fused_gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    """The scores again, then dv, dweights, dq, dk, tile by tile."""
    q, g, y = (_by_key_head(t, s, x) for x in (s.x, g, s.y))
    k, v = (x[:, :, None] for x in s.inputs[1:])
    dq, dk, dv = (t.full(x.shape, 0.0) for x in (q, k, v))
    projections = t.sum(t.multiply(g, y), -1)
    for queries, keys in _tiles(s):
        rows, seen = (..., queries, slice(None)), (..., keys, slice(None))
        weights = _scores(t, s, q[rows], k[seen])
        t.chain(weights, ("subtract", s.saved[f"log{queries.start}"]), "exp")
        share = s.saved.get(f"share{queries.start}")
        _add_heads(t, dv[seen], weights if share is None else t.multiply(weights, share), g[rows])
        slopes = t.matmul(g[rows], v[seen].swapaxes(-1, -2))
        if share is not None:
            t.multiply(slopes, share, out=slopes)
        t.chain(slopes, ("subtract", projections[rows]), ("multiply", weights), ("multiply", _scale(s)))
        t.matmul(slopes, k[seen], out=dq[rows])
        _add_heads(t, dk[seen], slopes, q[rows])
    for operand, gradient in zip(s.inputs, (dq, dk, dv), strict=True):
        if s.wants(operand):
            yield operand, t.reshape(gradient, *operand.shape)


def _add_heads(t: ArrayTape, target: Ref, rows: Ref, terms: Ref) -> None:
    """target += rowsᵀ terms, over all query heads of a key head."""
    products = t.matmul(rows.swapaxes(-1, -2), terms)
    for head in range(products.shape[2]):
        t.chain(target[:, :, 0], ("add", products[:, :, head]))


SUMMED = (
    "key and value gradients of each tile and query head are added up, which no contraction of NumPy's does in place"
)

unary("softmax", softmax, softmax_gradient)
unary("mask", lambda t, s: _masked(t, s, s.x, -math.inf), lambda t, s, g: _masked(t, s, g, 0.0))
kernel("sink", sink, sink_gradients)
unary("rotary", lambda t, s: _turn(t, s, s.x, back=False), lambda t, s, g: _turn(t, s, g, back=True))
kernel("fused_attention", fused, fused_gradients, extra={"backward": SUMMED})


def insert(t: ArrayTape, s: KernelCall) -> Ref:
    """The new tokens take the last places of the cache, of which the last ones are seen."""
    cache, x = s.inputs
    last = cache.shape[-2]
    t.copyto(cache[..., last - x.shape[-2] : last, :], x)
    return cache[..., last - int(s.kind.tokens) : last, :]


def insert_gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    """The slice of the new tokens."""
    x = s.inputs[1]
    if s.wants(x):
        yield x, g[..., g.shape[-2] - x.shape[-2] : g.shape[-2], :]


def _rows(t: ArrayTape, x: Ref) -> Ref:
    """(batch, heads, T, n) → (heads, batch·T, n)."""
    b, heads, count, features = x.shape
    return t.reshape(x.transpose(1, 0, 2, 3), heads, b * count, features)


def _of_heads(kind: str, wanted: Callable[[KernelCall], slice], *, transposed: bool) -> None:
    """The kernel of a product of each head with a part of its matrix, (d_k + d_v, rank): y = x W, dx = g Wᵀ, and
    dW = xᵀ g within zeros; or with the transpose of that part."""

    def part(t: ArrayTape, s: KernelCall, whole: Ref, turned: bool) -> Ref:
        heads = s.x.shape[1]
        own = t.reshape(whole, heads, whole.shape[0] // heads, whole.shape[1])[:, wanted(s)]
        return own.swapaxes(1, 2) if turned else own

    def forward(t: ArrayTape, s: KernelCall) -> Ref:
        return t.matmul(s.x, part(t, s, s.weights["weight"], transposed))

    def backward(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
        weight = s.weights["weight"]
        if s.wants(s.x):
            yield s.x, t.matmul(g, part(t, s, weight, not transposed))
        if "weight" in s.names:
            whole = t.full(weight.shape, 0.0)
            left, right = (g, s.x) if transposed else (s.x, g)
            t.copyto(part(t, s, whole, False), t.matmul(_rows(t, left).swapaxes(1, 2), _rows(t, right)))
            yield weight, whole

    kernel(kind, forward, backward)


kernel("insert", insert, insert_gradients)
_of_heads("absorb_key", lambda s: slice(s.x.shape[3]), transposed=False)
_of_heads("expand_value", lambda s: slice(s.kind.key, None), transposed=True)
