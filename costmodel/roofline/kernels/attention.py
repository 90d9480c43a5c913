"""The parts of attention: softmax, masks, rotary positions, a few queries at a time; caches, and latents by head."""

from __future__ import annotations

import math
from collections.abc import Iterator

from costmodel.layers.attention import visible_pairs
from costmodel.roofline.kernels.kernel import Gradients, KernelCall, Tape, kernel
from costmodel.roofline.reference import Ref

TILE = 64
"""Queries that fused attention takes at a time where every query sees all keys."""


def softmax(t: Tape, s: KernelCall) -> Ref:
    """exp(x − max x)/Σ exp(x − max x)."""
    y = t.empty(*s.x.shape)
    t.subtract(s.x, t.reduce("maximum", s.x, -1), out=y)
    t.exp(y, out=y)
    s.y = t.divide(y, t.sum(y, -1), out=y)
    return y


def softmax_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """y·(g − Σ g·y)."""
    terms = t.multiply(g, s.y)
    total = t.sum(terms, -1)
    dx = t.subtract(g, total, out=terms)
    yield s.x, t.multiply(s.y, dx, out=dx)


def mask(t: Tape, s: KernelCall) -> Ref:
    """x where allowed, −∞ elsewhere."""
    return t.copyto(t.full(s.x.shape, -math.inf), s.x, where=_seen(s))


def mask_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g where allowed, 0 elsewhere."""
    yield s.x, t.copyto(t.full(s.x.shape, 0.0), g, where=_seen(s))


def sink(t: Tape, s: KernelCall) -> Ref:
    """The scores of a row, and its head's weight."""
    y, last = t.empty(*s.x.shape[:-1], s.x.shape[-1] + 1), s.x.shape[-1]
    t.copyto(y[..., :last], s.x)
    t.copyto(y[..., last:], s.weights["weight"].reshape(1, s.x.shape[1], 1, 1))
    return y


def sink_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """A part of g, and the sum of the rest over the rows of each head."""
    last, weight = s.x.shape[-1], s.weights["weight"]
    if s.wants(s.x):
        yield s.x, g[..., :last]
    if s.wants(weight):
        yield weight, t.accumulate(g[..., last:], (1, s.x.shape[1], 1, 1)).reshape(s.x.shape[1])


def _seen(s: KernelCall) -> Ref:
    return s.inputs[1].broadcast_to(*s.x.shape)


def _turn(t: Tape, s: KernelCall, x: Ref, *, back: bool) -> Ref:
    """Features i and i + size/2 are a pair; the tables repeat each angle for both."""
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
    if back:
        t.add(left, t.multiply(x[..., middle:end], second), out=left)
        t.subtract(right, t.multiply(x[..., start:middle], first), out=right)
    else:
        t.subtract(left, t.multiply(x[..., middle:end], first), out=left)
        t.add(right, t.multiply(x[..., start:middle], second), out=right)
    return y


def rotary(t: Tape, s: KernelCall) -> Ref:
    """x·cos + rotate(x)·sin."""
    return _turn(t, s, s.x, back=False)


def rotary_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """The inverse rotation."""
    yield s.x, _turn(t, s, g, back=True)


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


def _by_key_head(t: Tape, s: KernelCall, x: Ref) -> Ref:
    """(batch, h, T, d_h) → (batch, h_kv, h/h_kv, T, d_h)."""
    b, _, count, features = x.shape
    return t.reshape(x, b, s.inputs[1].shape[1], -1, count, features)


def _scale(s: KernelCall) -> float:
    return 1 / math.sqrt(s.x.shape[-1]) if s.kind.scale is None else s.kind.scale


def _scores(t: Tape, s: KernelCall, q: Ref, k: Ref) -> Ref:
    scores = t.matmul(q, k.swapaxes(-1, -2))
    return t.multiply(scores, _scale(s), out=scores)


def _share(t: Tape, s: KernelCall, scores: Ref, name: str) -> Ref | None:
    """Dropout's mask over 1 − p; backward draws none anew but keeps it, as NumPy cannot seed one call."""
    if not (s.training and s.kind.dropout):
        return None
    drawn = t.random(*scores.shape)
    mask = t.greater_equal(drawn, s.kind.dropout)
    s.saved[f"share{name}"] = t.multiply(mask, 1 / (1 - s.kind.dropout), out=drawn)
    return drawn


def fused(t: Tape, s: KernelCall) -> Ref:
    """softmax(scale·q kᵀ) v, a tile of queries at a time; keeps a row's max + log Σ."""
    q, (k, v) = _by_key_head(t, s, s.x), (x[:, :, None] for x in s.inputs[1:])
    y = t.empty(*q.shape[:-1], v.shape[-1])
    for queries, keys in _tiles(s):
        scores = _scores(t, s, q[..., queries, :], k[..., keys, :])
        largest = t.reduce("maximum", scores, -1)
        t.subtract(scores, largest, out=scores)
        t.exp(scores, out=scores)
        total = t.sum(scores, -1)
        t.divide(scores, total, out=scores)
        if s.training:
            s.saved[f"log{queries.start}"] = t.add(largest, t.log(total, out=total), out=total)
        share = _share(t, s, scores, str(queries.start))
        if share is not None:
            t.multiply(scores, share, out=scores)
        t.matmul(scores, v[..., keys, :], out=y[..., queries, :])
    s.y = y.reshape(*s.x.shape[:-1], v.shape[-1])
    return s.y


def fused_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """The scores again, then dv, dweights, dq, dk, tile by tile."""
    q, g, y = (_by_key_head(t, s, x) for x in (s.x, g, s.y))
    k, v = (x[:, :, None] for x in s.inputs[1:])
    dq, dk, dv = (t.full(x.shape, 0.0) for x in (q, k, v))
    terms = t.multiply(g, y)
    projections = t.sum(terms, -1)
    for queries, keys in _tiles(s):
        rows, seen = (..., queries, slice(None)), (..., keys, slice(None))
        weights = _scores(t, s, q[rows], k[seen])
        t.subtract(weights, s.saved[f"log{queries.start}"], out=weights)
        t.exp(weights, out=weights)
        share = s.saved.get(f"share{queries.start}")
        _add_heads(t, dv[seen], weights if share is None else t.multiply(weights, share), g[rows])
        slopes = t.matmul(g[rows], v[seen].swapaxes(-1, -2))
        if share is not None:
            t.multiply(slopes, share, out=slopes)
        t.subtract(slopes, projections[rows], out=slopes)
        t.multiply(slopes, weights, out=slopes)
        t.multiply(slopes, _scale(s), out=slopes)
        t.matmul(slopes, k[seen], out=dq[rows])
        _add_heads(t, dk[seen], slopes, q[rows])
    for operand, gradient in zip(s.inputs, (dq, dk, dv), strict=True):
        if s.wants(operand):
            yield operand, t.reshape(gradient, *operand.shape)


def _add_heads(t: Tape, target: Ref, rows: Ref, terms: Ref) -> None:
    """target += rowsᵀ terms, over all query heads of a key head."""
    made = t.matmul(rows.swapaxes(-1, -2), terms)
    for head in range(made.shape[2]):
        t.add(target[:, :, 0], made[:, :, head], out=target[:, :, 0])


SUMMED = (
    "key and value gradients of each tile and query head are added up, which no contraction of NumPy's does in place"
)

kernel("softmax", softmax, softmax_gradients)
kernel("mask", mask, mask_gradients)
kernel("sink", sink, sink_gradients)
kernel("rotary", rotary, rotary_gradients)
kernel("fused_attention", fused, fused_gradients, beside={"backward": SUMMED})


def append(t: Tape, s: KernelCall) -> Ref:
    """One after another along the tokens."""
    *rest, _, features = s.x.shape
    y = t.empty(*rest, sum(x.shape[-2] for x in s.inputs), features)
    start = 0
    for x in s.inputs:
        t.copyto(y[..., start : start + x.shape[-2], :], x)
        start += x.shape[-2]
    return y


def append_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """Slices."""
    start = 0
    for x in s.inputs:
        if s.wants(x):
            yield x, g[..., start : start + x.shape[-2], :]
        start += x.shape[-2]


def insert(t: Tape, s: KernelCall) -> Ref:
    """The new tokens take the last places of the cache, of which the last ones are seen."""
    cache, x = s.inputs
    last = cache.shape[-2]
    t.copyto(cache[..., last - x.shape[-2] : last, :], x)
    return cache[..., last - int(s.kind.tokens) : last, :]


def insert_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """The slice of the new tokens."""
    x = s.inputs[1]
    if s.wants(x):
        yield x, g[..., g.shape[-2] - x.shape[-2] : g.shape[-2], :]


def _by_head(t: Tape, s: KernelCall, whole: Ref) -> Ref:
    """The matrix, (heads, d_k + d_v, rank)."""
    heads = s.x.shape[1]
    return t.reshape(whole, heads, whole.shape[0] // heads, whole.shape[1])


def _rows(t: Tape, x: Ref) -> Ref:
    """(batch, heads, T, n) → (heads, batch·T, n)."""
    b, heads, count, features = x.shape
    return t.reshape(x.transpose(1, 0, 2, 3), heads, b * count, features)


def absorb_key(t: Tape, s: KernelCall) -> Ref:
    """x W_K for each head."""
    return t.matmul(s.x, _by_head(t, s, s.weights["weight"])[:, : s.x.shape[3]])


def absorb_key_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """dx = g W_Kᵀ, dW_K = xᵀ g, within zeros."""
    weight, size = s.weights["weight"], s.x.shape[3]
    if s.wants(s.x):
        yield s.x, t.matmul(g, _by_head(t, s, weight)[:, :size].swapaxes(1, 2))
    if "weight" in s.names:
        whole = t.full(weight.shape, 0.0)
        t.copyto(_by_head(t, s, whole)[:, :size], t.matmul(_rows(t, s.x).swapaxes(1, 2), _rows(t, g)))
        yield weight, whole


def expand_value(t: Tape, s: KernelCall) -> Ref:
    """x W_Vᵀ for each head."""
    return t.matmul(s.x, _by_head(t, s, s.weights["weight"])[:, s.kind.key :].swapaxes(1, 2))


def expand_value_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """dx = g W_V, dW_V = gᵀ x, within zeros."""
    weight = s.weights["weight"]
    if s.wants(s.x):
        yield s.x, t.matmul(g, _by_head(t, s, weight)[:, s.kind.key :])
    if "weight" in s.names:
        whole = t.full(weight.shape, 0.0)
        t.copyto(_by_head(t, s, whole)[:, s.kind.key :], t.matmul(_rows(t, g).swapaxes(1, 2), _rows(t, s.x)))
        yield weight, whole


kernel("append", append, append_gradients)
kernel("insert", insert, insert_gradients)
kernel("absorb_key", absorb_key, absorb_key_gradients)
kernel("expand_value", expand_value, expand_value_gradients)
