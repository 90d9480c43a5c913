"""Elementwise arithmetic, dropout and noise; affine maps and matrix products."""

from __future__ import annotations

from collections.abc import Callable

from costmodel.graph.tensor import broadcast
from costmodel.roofline.kernels import ArrayTape, Gradients, KernelCall, kernel, rows, unary
from costmodel.roofline.memory import Ref


def _back(t: ArrayTape, terms: Ref, operand: Ref) -> Ref:
    """The gradient itself, or its sum over the axes that `operand` was broadcast over."""
    return terms if terms.shape == operand.shape else t.accumulate(terms, operand.shape)


def _binary(kind: str, *terms: Callable[[ArrayTape, Ref, Ref, Ref], Ref]) -> None:
    """The kernel of the function of that name, by the terms of both gradients, which sum over broadcast axes."""

    def backward(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
        for operand, own in zip(s.inputs, terms, strict=True):
            if s.wants(operand):
                yield operand, _back(t, own(t, g, *s.inputs), operand)

    kernel(kind, lambda t, s: getattr(t, kind)(*s.inputs), backward)


def divide_gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    """g/b and −(g/b)·(a/b), summed over broadcast axes."""
    a, b = s.inputs
    share = t.divide(g, b)
    if s.wants(a):
        yield a, _back(t, share, a)
    if s.wants(b):
        terms = t.negative(share)
        yield b, _back(t, t.multiply(terms, t.divide(a, b), out=terms), b)


def choose(t: ArrayTape, s: KernelCall) -> Ref:
    """a where the condition holds, b elsewhere."""
    condition, a, b = s.inputs
    shape = broadcast(condition.shape, broadcast(a.shape, b.shape, "choose"), "choose")
    return t.copyto(t.copyto(t.empty(*shape), b), a, where=condition.broadcast_to(*shape))


def choose_gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    """g where the number came from, 0 elsewhere, summed over broadcast axes."""
    condition, a, b = s.inputs
    held = condition.broadcast_to(*g.shape)
    if s.wants(a):
        yield a, _back(t, t.copyto(t.full(g.shape, 0.0), g, where=held), a)
    if s.wants(b):
        yield b, _back(t, t.copyto(t.copy(g), 0.0, where=held), b)


def clamp(t: ArrayTape, s: KernelCall) -> Ref:
    """min(max(x, low), high), with one bound of them or both."""
    if s.kind.low is None:
        return t.minimum(s.x, s.kind.high)
    y = t.maximum(s.x, s.kind.low)
    return y if s.kind.high is None else t.minimum(y, s.kind.high, out=y)


def clamp_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """g where x is within."""
    within = None if s.kind.high is None else t.less_equal(s.x, s.kind.high)
    if s.kind.low is not None:
        above = t.greater_equal(s.x, s.kind.low)
        within = above if within is None else t.logical_and(above, within, out=within)
    return t.multiply(g, within)


def identity_gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    """The gradient itself."""
    if s.wants(s.x):
        yield s.x, g


def layer_scale_gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    """g·γ, and Σ g·x."""
    weight = s.weights["weight"]
    if s.wants(s.x):
        yield s.x, t.multiply(g, weight)
    if s.wants(weight):
        yield weight, t.accumulate(t.multiply(g, s.x), weight.shape)


_binary("add", lambda t, g, a, b: g, lambda t, g, a, b: g)
_binary("multiply", lambda t, g, a, b: t.multiply(g, b), lambda t, g, a, b: t.multiply(g, a))
_binary("subtract", lambda t, g, a, b: g, lambda t, g, a, b: t.negative(g))
kernel("divide", lambda t, s: t.divide(*s.inputs), divide_gradients)
kernel("choose", choose, choose_gradients)
unary("scale", lambda t, s: t.multiply(s.x, s.kind.factor), lambda t, s, g: t.multiply(g, s.kind.factor))
unary("shift", lambda t, s: t.add(s.x, s.kind.constant), lambda t, s, g: g)
unary("clamp", clamp, clamp_gradient)
kernel("identity", lambda t, s: s.x[...], identity_gradients)
kernel("unread", lambda t, s: s.x[...], identity_gradients)
kernel("layer_scale", lambda t, s: t.multiply(s.x, s.weights["weight"]), layer_scale_gradients)


def dropout(t: ArrayTape, s: KernelCall) -> Ref:
    """x·m/(1 − p), the mask kept as bools."""
    if not (s.training and s.kind.p):
        return s.x[...]
    mask = s.saved["mask"] = t.greater_equal(t.random(*s.x.shape), s.kind.p)
    return t.chain(t.multiply(s.x, mask), ("multiply", 1 / (1 - s.kind.p)))


def dropout_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """g·m/(1 − p)."""
    return t.chain(t.multiply(g, s.saved["mask"]), ("multiply", 1 / (1 - s.kind.p))) if "mask" in s.saved else g


def noise(t: ArrayTape, s: KernelCall) -> Ref:
    """x·(m/(1 − p)), the noise kept as numbers: one for each sample, or for each of its channels."""
    if not (s.training and s.kind.p):
        return s.x[...]
    own = 2 if s.kind.kind == "channel_dropout" else 1
    drawn = t.random(*s.x.shape[:own], *(1 for _ in s.x.shape[own:]))
    s.saved["noise"] = t.divide(t.greater_equal(drawn, s.kind.p), 1 - s.kind.p, out=drawn)
    return t.multiply(s.x, drawn)


def noise_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """g·(m/(1 − p))."""
    return t.multiply(g, s.saved["noise"]) if "noise" in s.saved else g


unary("dropout", dropout, dropout_gradient)
unary("channel_dropout", noise, noise_gradient)
unary("stochastic_depth", noise, noise_gradient)


def linear(t: ArrayTape, s: KernelCall) -> Ref:
    """y = x Wᵀ + b, one product over all rows."""
    y = t.matmul(rows(t, s.x), s.weights["weight"].swapaxes(0, 1))
    if s.kind.bias:
        t.add(y, s.weights["bias"], out=y)
    return y.reshape(*s.x.shape[:-1], y.shape[-1])


def linear_gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    """dx = g W, dW = gᵀ x, db = Σ g."""
    g = rows(t, g)
    if s.wants(s.x):
        yield s.x, t.matmul(g, s.weights["weight"]).reshape(*s.x.shape)
    if "weight" in s.names:
        yield s.weights["weight"], t.matmul(g.swapaxes(0, 1), rows(t, s.x))
    if "bias" in s.names:
        yield s.weights["bias"], t.accumulate(g, s.weights["bias"].shape)


def matmul(t: ArrayTape, s: KernelCall) -> Ref:
    """y = a b (+ c); by one matrix the rows of a as one."""
    a, b, *added = s.inputs
    if len(s.inputs[1].shape) > 2:
        return t.matmul(a, b)
    y = t.matmul(rows(t, a), b).reshape(*a.shape[:-1], b.shape[-1])
    return t.chain(y, *(("add", c) for c in added))


def matmul_gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    """da = g bᵀ, db = aᵀ g; what was added sums over what it was broadcast along."""
    a, b, *added = s.inputs
    left, right = (a, g) if len(b.shape) > 2 else (rows(t, a), rows(t, g))
    if s.wants(a):
        yield a, t.matmul(right, b.swapaxes(-1, -2)).reshape(*a.shape)
    if s.wants(b):
        yield b, t.matmul(left.swapaxes(-1, -2), right)
    for c in added:
        if s.wants(c):
            yield c, _back(t, g, c)


WHOLE = "the whole square is multiplied, however little of it is visible"

kernel("linear", linear, linear_gradients)
kernel("matmul", matmul, matmul_gradients, {"forward": WHOLE, "backward": WHOLE})
