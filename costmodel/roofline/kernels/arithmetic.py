"""Elementwise arithmetic, dropout and noise."""

from __future__ import annotations

from costmodel.graph.tensor import broadcast
from costmodel.roofline.kernels.kernel import Gradients, KernelCall, Tape, kernel
from costmodel.roofline.reference import Ref, Shape


def _back(t: Tape, terms: Ref, operand: Ref) -> Ref:
    """The gradient itself, or its sum over the axes that `operand` was broadcast over."""
    return terms if terms.shape == operand.shape else t.accumulate(terms, operand.shape)


def add(t: Tape, s: KernelCall) -> Ref:
    """a + b."""
    return t.add(*s.inputs)


def add_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g, summed over broadcast axes."""
    for operand in s.inputs:
        if s.wants(operand):
            yield operand, _back(t, g, operand)


def multiply(t: Tape, s: KernelCall) -> Ref:
    """a·b."""
    return t.multiply(*s.inputs)


def multiply_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g·b and g·a, summed over broadcast axes."""
    a, b = s.inputs
    for operand, other in ((a, b), (b, a)):
        if s.wants(operand):
            yield operand, _back(t, t.multiply(g, other), operand)


def subtract(t: Tape, s: KernelCall) -> Ref:
    """a − b."""
    return t.subtract(*s.inputs)


def subtract_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g and −g, summed over broadcast axes."""
    a, b = s.inputs
    if s.wants(a):
        yield a, _back(t, g, a)
    if s.wants(b):
        yield b, _back(t, t.negative(g), b)


def divide(t: Tape, s: KernelCall) -> Ref:
    """a/b."""
    return t.divide(*s.inputs)


def divide_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g/b and −(g/b)·(a/b), summed over broadcast axes."""
    a, b = s.inputs
    share = t.divide(g, b)
    if s.wants(a):
        yield a, _back(t, share, a)
    if s.wants(b):
        terms = t.negative(share)
        yield b, _back(t, t.multiply(terms, t.divide(a, b), out=terms), b)


def choose(t: Tape, s: KernelCall) -> Ref:
    """a where the condition holds, b elsewhere."""
    condition, a, b = s.inputs
    shape = broadcast(condition.shape, broadcast(a.shape, b.shape, "choose"), "choose")
    return t.copyto(t.copyto(t.empty(*shape), b), a, where=condition.broadcast_to(*shape))


def choose_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g where the number came from, 0 elsewhere, summed over broadcast axes."""
    condition, a, b = s.inputs
    held = condition.broadcast_to(*g.shape)
    if s.wants(a):
        yield a, _back(t, t.copyto(t.full(g.shape, 0.0), g, where=held), a)
    if s.wants(b):
        yield b, _back(t, t.copyto(t.copy(g), 0.0, where=held), b)


def scale(t: Tape, s: KernelCall) -> Ref:
    """c·x."""
    return t.multiply(s.x, s.kind.factor)


def scale_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """c·g."""
    yield s.x, t.multiply(g, s.kind.factor)


def shift(t: Tape, s: KernelCall) -> Ref:
    """x + c."""
    return t.add(s.x, s.kind.constant)


def shift_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """The gradient itself."""
    yield s.x, g


def clamp(t: Tape, s: KernelCall) -> Ref:
    """min(max(x, low), high), with one bound of them or both."""
    if s.kind.low is None:
        return t.minimum(s.x, s.kind.high)
    y = t.maximum(s.x, s.kind.low)
    return y if s.kind.high is None else t.minimum(y, s.kind.high, out=y)


def clamp_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g where x is within."""
    within = None if s.kind.high is None else t.less_equal(s.x, s.kind.high)
    if s.kind.low is not None:
        above = t.greater_equal(s.x, s.kind.low)
        within = above if within is None else t.logical_and(above, within, out=within)
    yield s.x, t.multiply(g, within)


def identity(t: Tape, s: KernelCall) -> Ref:
    """The input itself."""
    return s.x[...]


def identity_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """The gradient itself."""
    if s.wants(s.x):
        yield s.x, g


def layer_scale(t: Tape, s: KernelCall) -> Ref:
    """x·γ."""
    return t.multiply(s.x, s.weights["weight"])


def layer_scale_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g·γ, and Σ g·x."""
    weight = s.weights["weight"]
    if s.wants(s.x):
        yield s.x, t.multiply(g, weight)
    if s.wants(weight):
        yield weight, t.accumulate(t.multiply(g, s.x), weight.shape)


def dropout(t: Tape, s: KernelCall) -> Ref:
    """x·m/(1 − p), the mask kept as bools."""
    if not (s.training and s.kind.p):
        return s.x[...]
    mask = s.saved["mask"] = t.greater_equal(t.random(*s.x.shape), s.kind.p)
    y = t.multiply(s.x, mask)
    return t.multiply(y, 1 / (1 - s.kind.p), out=y)


def dropout_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g·m/(1 − p)."""
    if "mask" not in s.saved:
        yield s.x, g
        return
    dx = t.multiply(g, s.saved["mask"])
    yield s.x, t.multiply(dx, 1 / (1 - s.kind.p), out=dx)


def _mask_shape(s: KernelCall) -> Shape:
    """That of the noise, spread over x."""
    own = 2 if s.kind.kind == "channel_dropout" else 1
    return (*s.x.shape[:own], *(1 for _ in s.x.shape[own:]))


def noise(t: Tape, s: KernelCall) -> Ref:
    """x·(m/(1 − p)), the noise kept as numbers."""
    if not (s.training and s.kind.p):
        return s.x[...]
    drawn = t.random(*_mask_shape(s))
    kept = s.saved["noise"] = t.divide(t.greater_equal(drawn, s.kind.p), 1 - s.kind.p, out=drawn)
    return t.multiply(s.x, kept)


def noise_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g·(m/(1 − p))."""
    yield s.x, t.multiply(g, s.saved["noise"]) if "noise" in s.saved else g


kernel("add", add, add_gradients)
kernel("multiply", multiply, multiply_gradients)
kernel("subtract", subtract, subtract_gradients)
kernel("divide", divide, divide_gradients)
kernel("choose", choose, choose_gradients)
kernel("scale", scale, scale_gradients)
kernel("shift", shift, shift_gradients)
kernel("clamp", clamp, clamp_gradients)
kernel("identity", identity, identity_gradients)
kernel("unread", identity, identity_gradients)
kernel("layer_scale", layer_scale, layer_scale_gradients)
kernel("dropout", dropout, dropout_gradients)
kernel("channel_dropout", noise, noise_gradients)
kernel("stochastic_depth", noise, noise_gradients)
