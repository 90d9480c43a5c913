"""What decoding keeps, and products with the matrix of a latent by head."""

from __future__ import annotations

from costmodel.roofline.kernels.kernel import Gradients, KernelCall, kernel
from costmodel.roofline.reference import Ref
from costmodel.roofline.tape import Tape


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
