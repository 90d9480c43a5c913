"""Affine maps and matrix products."""

from __future__ import annotations

from costmodel.roofline.kernels.kernel import Gradients, KernelCall, Tape, kernel, rows
from costmodel.roofline.reference import Ref


def linear(t: Tape, s: KernelCall) -> Ref:
    """y = x Wᵀ + b, one product over all rows."""
    y = t.matmul(rows(t, s.x), s.weights["weight"].swapaxes(0, 1))
    if s.kind.bias:
        t.add(y, s.weights["bias"], out=y)
    return y.reshape(*s.x.shape[:-1], y.shape[-1])


def linear_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """dx = g W, dW = gᵀ x, db = Σ g."""
    g = rows(t, g)
    if s.wants(s.x):
        yield s.x, t.matmul(g, s.weights["weight"]).reshape(*s.x.shape)
    if "weight" in s.names:
        yield s.weights["weight"], t.matmul(g.swapaxes(0, 1), rows(t, s.x))
    if "bias" in s.names:
        yield s.weights["bias"], t.accumulate(g, s.weights["bias"].shape)


def product(t: Tape, s: KernelCall) -> Ref:
    """y = a b (+ c), the rows of a as one matrix."""
    a, b = s.inputs[:2]
    y = t.matmul(rows(t, a), b).reshape(*a.shape[:-1], b.shape[1])
    for c in s.inputs[2:]:
        t.add(y, c, out=y)
    return y


def product_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """da = g bᵀ, db = aᵀ g; what was added sums over what it was broadcast along."""
    a, b = s.inputs[:2]
    if s.wants(a):
        yield a, t.matmul(rows(t, g), b.swapaxes(0, 1)).reshape(*a.shape)
    if s.wants(b):
        yield b, t.matmul(rows(t, a).swapaxes(0, 1), rows(t, g))
    for c in s.inputs[2:]:
        if s.wants(c):
            yield c, g if c.shape == g.shape else t.accumulate(g, c.shape)


def matmul(t: Tape, s: KernelCall) -> Ref:
    """Whole products, whatever part of them is wanted: NumPy has no other."""
    a, b = s.inputs
    return t.matmul(a, b)


def matmul_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """da = g bᵀ, db = aᵀ g."""
    a, b = s.inputs
    if s.wants(a):
        yield a, t.matmul(g, b.swapaxes(-1, -2))
    if s.wants(b):
        yield b, t.matmul(a.swapaxes(-1, -2), g)


kernel("linear", linear, linear_gradients)
kernel("product", product, product_gradients)
WHOLE = "the whole square is multiplied, however little of it is visible"

kernel("matmul", matmul, matmul_gradients, beside={"forward": WHOLE, "backward": WHOLE})
