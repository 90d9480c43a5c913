"""Normalisations: statistics from the forward pass, x̂ again in backward."""

from __future__ import annotations

from costmodel.roofline.kernels import ArrayTape, Gradients, KernelCall, kernel, spread
from costmodel.roofline.memory import Ref, Shape

EPSILON = 1e-5
"""Added to a variance before its root is taken."""
MOMENTUM = 0.1
"""Share of a batch in the running statistics."""


def _grouping(s: KernelCall) -> tuple[Shape, tuple[int, ...], int]:
    """How x is seen: its shape with groups apart, the axes of a group, and the axis of x that weights lie along."""
    shape = s.x.shape
    if s.kind.kind in ("batchnorm", "batchnorm_untracked"):
        return shape, (0, *range(2, len(shape))), 1
    if s.kind.kind == "groupnorm":
        grouped = (shape[0], s.kind.groups, shape[1] // s.kind.groups, *shape[2:])
        return grouped, (*range(2, len(grouped)),), 1
    return shape, (len(shape) - 1,), len(shape) - 1


def _affine(t: ArrayTape, s: KernelCall, y: Ref, along: int) -> Ref:
    """y·w + b, in place."""
    steps = (("weight", "multiply"), ("bias", "add"))
    return t.chain(y, *((do, _spread(s.weights[name], y.shape, along)) for name, do in steps if name in s.weights))


def _spread(weight: Ref, shape: Shape, along: int) -> Ref:
    """A weight, shaped to broadcast along `along`; those of heads are as they are."""
    return weight if len(weight.shape) > 1 else spread(weight, shape, along)


def _inverse(t: ArrayTape, variance: Ref, out: Ref) -> Ref:
    """1/√(σ² + ε)."""
    return t.chain(t.add(variance, EPSILON, out=out), "sqrt", "reciprocal")


def centred(t: ArrayTape, s: KernelCall) -> Ref:
    """(x − μ)/√(σ² + ε)·w + b, with μ and σ over groups."""
    shape, axes, along = _grouping(s)
    x = t.reshape(s.x, *shape)
    mean = s.saved["mean"] = t.mean(x, axes)
    y = t.subtract(x, mean)
    variance = t.mean(t.multiply(y, y), axes)
    if s.kind.kind == "batchnorm":
        _follow(t, s, mean, variance)
    inverse = s.saved["inverse"] = _inverse(t, variance, out=variance)
    t.multiply(y, inverse, out=y)
    return _affine(t, s, t.reshape(y, *s.x.shape), along)


def _follow(t: ArrayTape, s: KernelCall, mean: Ref, variance: Ref) -> None:
    """Running mean and unbiased variance take a share of this batch's."""
    count = s.x.size // s.x.shape[1]
    unbiased = t.multiply(variance, count / (count - 1)) if count > 1 else variance
    for name, new in (("running_mean", mean), ("running_var", unbiased)):
        running = s.buffers[name]
        t.multiply(running, 1 - MOMENTUM, out=running)
        t.add(running, t.multiply(new.reshape(-1), MOMENTUM), out=running)


def _running(t: ArrayTape, s: KernelCall) -> tuple[Ref, Ref]:
    """Running mean, and the inverse root of the running variance, shaped to broadcast over x."""
    mean, variance = (spread(s.buffers[name], s.x.shape) for name in ("running_mean", "running_var"))
    return mean, _inverse(t, variance, out=t.empty(*variance.shape))


def fixed(t: ArrayTape, s: KernelCall) -> Ref:
    """(x − μ)/√(σ² + ε)·w + b by the running statistics."""
    mean, inverse = _running(t, s)
    return _affine(t, s, t.chain(t.subtract(s.x, mean), ("multiply", inverse)), 1)


def fixed_gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    """g·w/√(σ² + ε), Σ g·x̂ and Σ g, the root and x̂ made again."""
    mean, inverse = _running(t, s)
    if s.wants(s.x):
        h = t.multiply(g, spread(s.weights["weight"], g.shape)) if s.kind.affine else g
        yield s.x, t.multiply(h, inverse, out=h if s.kind.affine else None)
    for name in s.names:
        terms = g
        if name == "weight":
            terms = t.chain(t.subtract(s.x, mean), ("multiply", inverse), (g, "multiply"))
        shape = spread(s.weights[name], g.shape).shape
        yield s.weights[name], t.accumulate(terms, shape).reshape(*s.weights[name].shape)


def gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    """dx = (h − mean(h) − x̂·mean(h·x̂))/σ with h = g·w, without mean(h) where x is not centred; dw = Σ g·x̂, db = Σ g."""
    (shape, axes, along), centre = _grouping(s), "mean" in s.saved
    x = t.reshape(s.x, *shape)
    normalised = t.subtract(x, s.saved["mean"]) if centre else x
    normalised = t.multiply(normalised, s.saved["inverse"], out=normalised if centre else None)
    if s.wants(s.x):
        h = t.multiply(g, _spread(s.weights["weight"], g.shape, along)) if "weight" in s.weights else g
        h = t.reshape(h, *shape)
        terms = t.multiply(h, normalised)
        projection = t.mean(terms, axes)
        dx = t.subtract(h, t.mean(h, axes)) if centre else h
        t.multiply(normalised, projection, out=terms)
        t.chain(terms, (dx, "subtract"), ("multiply", s.saved["inverse"]))
        yield s.x, t.reshape(terms, *s.x.shape)
    for name in s.names:
        terms = t.multiply(g, t.reshape(normalised, *s.x.shape)) if name == "weight" else g
        wide = _spread(s.weights[name], g.shape, along).shape
        yield s.weights[name], t.accumulate(terms, wide).reshape(*s.weights[name].shape)


def rmsnorm(t: ArrayTape, s: KernelCall) -> Ref:
    """x/√(mean(x²) + ε)·w over the last axis."""
    squares = t.mean(t.multiply(s.x, s.x), -1)
    inverse = s.saved["inverse"] = _inverse(t, squares, out=squares)
    return _affine(t, s, t.multiply(s.x, inverse), -1)


kernel("layernorm", centred, gradients)
kernel("groupnorm", centred, gradients)
kernel("batchnorm", lambda t, s: centred(t, s) if s.training else fixed(t, s), gradients)
kernel("batchnorm_untracked", centred, gradients)
kernel("batchnorm_fixed", fixed, fixed_gradients)
kernel("rmsnorm", rmsnorm, gradients)
