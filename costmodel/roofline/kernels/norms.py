"""Normalisations: statistics from the forward pass, x̂ again in backward."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.roofline.kernels.kernel import EPSILON, Gradients, KernelCall, Tape, kernel, spread
from costmodel.roofline.reference import Ref, Shape

MOMENTUM = 0.1
"""Share of a batch in the running statistics."""


@dataclass(frozen=True)
class Grouping:
    """How x is seen: its shape with groups apart, the axes of a group, and the axis of x that weights lie along."""

    shape: Shape
    axes: tuple[int, ...]
    along: int

    @classmethod
    def of(cls, s: KernelCall) -> Grouping:
        """That of a layer."""
        shape = s.x.shape
        if s.kind.kind in ("batchnorm", "batchnorm_untracked"):
            return cls(shape, (0, *range(2, len(shape))), 1)
        if s.kind.kind == "groupnorm":
            return cls(
                (shape[0], s.kind.groups, shape[1] // s.kind.groups, *shape[2:]), (*range(2, len(shape) + 1),), 1
            )
        return cls(shape, (len(shape) - 1,), len(shape) - 1)


def _affine(t: Tape, s: KernelCall, y: Ref, along: int) -> Ref:
    """y·w + b, in place."""
    for name, function in (("weight", t.multiply), ("bias", t.add)):
        if name in s.weights:
            function(y, _spread(s.weights[name], y.shape, along), out=y)
    return y


def _spread(weight: Ref, shape: Shape, along: int) -> Ref:
    """A weight, shaped to broadcast along `along`; those of heads are as they are."""
    return weight if len(weight.shape) > 1 else spread(weight, shape, along)


def _inverse(t: Tape, variance: Ref, out: Ref) -> Ref:
    """1/√(σ² + ε)."""
    t.add(variance, EPSILON, out=out)
    t.sqrt(out, out=out)
    return t.reciprocal(out, out=out)


def centred(t: Tape, s: KernelCall) -> Ref:
    """(x − μ)/√(σ² + ε)·w + b, with μ and σ over groups."""
    grouping = Grouping.of(s)
    x = t.reshape(s.x, *grouping.shape)
    mean = s.saved["mean"] = t.mean(x, grouping.axes)
    y = t.subtract(x, mean)
    variance = t.mean(t.multiply(y, y), grouping.axes)
    if s.kind.kind == "batchnorm":
        _follow(t, s, mean, variance)
    inverse = s.saved["inverse"] = _inverse(t, variance, out=variance)
    t.multiply(y, inverse, out=y)
    return _affine(t, s, t.reshape(y, *s.x.shape), grouping.along)


def _follow(t: Tape, s: KernelCall, mean: Ref, variance: Ref) -> None:
    """Running mean and unbiased variance take a share of this batch's."""
    count = s.x.size // s.x.shape[1]
    unbiased = t.multiply(variance, count / (count - 1)) if count > 1 else variance
    for name, new in (("running_mean", mean), ("running_var", unbiased)):
        running = s.buffers[name]
        t.multiply(running, 1 - MOMENTUM, out=running)
        t.add(running, t.multiply(new.reshape(-1), MOMENTUM), out=running)


def batchnorm(t: Tape, s: KernelCall) -> Ref:
    """As `centred` in training; by the running statistics in inference."""
    return centred(t, s) if s.training else fixed(t, s)


def _running(t: Tape, s: KernelCall) -> tuple[Ref, Ref]:
    """Running mean, and the inverse root of the running variance, shaped to broadcast over x."""
    mean, variance = (spread(s.buffers[name], s.x.shape) for name in ("running_mean", "running_var"))
    return mean, _inverse(t, variance, out=t.empty(*variance.shape))


def fixed(t: Tape, s: KernelCall) -> Ref:
    """(x − μ)/√(σ² + ε)·w + b by the running statistics."""
    mean, inverse = _running(t, s)
    y = t.subtract(s.x, mean)
    t.multiply(y, inverse, out=y)
    return _affine(t, s, y, 1)


def fixed_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g·w/√(σ² + ε), Σ g·x̂ and Σ g, the root and x̂ made again."""
    mean, inverse = _running(t, s)
    if s.wants(s.x):
        h = t.multiply(g, spread(s.weights["weight"], g.shape)) if s.kind.affine else g
        yield s.x, t.multiply(h, inverse, out=h if s.kind.affine else None)
    for name in s.names:
        terms = g
        if name == "weight":
            terms = t.subtract(s.x, mean)
            t.multiply(terms, inverse, out=terms)
            t.multiply(g, terms, out=terms)
        shape = spread(s.weights[name], g.shape).shape
        yield s.weights[name], t.accumulate(terms, shape).reshape(*s.weights[name].shape)


def _gradients(t: Tape, s: KernelCall, g: Ref, *, centre: bool) -> Gradients:
    """dx = (h − mean(h) − x̂·mean(h·x̂))/σ with h = g·w, without mean(h) where x is not centred; dw = Σ g·x̂, db = Σ g."""
    grouping = Grouping.of(s)
    x = t.reshape(s.x, *grouping.shape)
    normalised = t.subtract(x, s.saved["mean"]) if centre else x
    normalised = t.multiply(normalised, s.saved["inverse"], out=normalised if centre else None)
    if s.wants(s.x):
        h = t.multiply(g, _spread(s.weights["weight"], g.shape, grouping.along)) if "weight" in s.weights else g
        h = t.reshape(h, *grouping.shape)
        terms = t.multiply(h, normalised)
        projection = t.mean(terms, grouping.axes)
        dx = t.subtract(h, t.mean(h, grouping.axes), out=None) if centre else h
        t.multiply(normalised, projection, out=terms)
        dx = t.subtract(dx, terms, out=terms)
        t.multiply(dx, s.saved["inverse"], out=dx)
        yield s.x, t.reshape(dx, *s.x.shape)
    for name in s.names:
        terms = t.multiply(g, t.reshape(normalised, *s.x.shape)) if name == "weight" else g
        shape = _spread(s.weights[name], g.shape, grouping.along).shape
        yield s.weights[name], t.accumulate(terms, shape).reshape(*s.weights[name].shape)


def centred_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """See `_gradients`."""
    return _gradients(t, s, g, centre=True)


def rmsnorm(t: Tape, s: KernelCall) -> Ref:
    """x/√(mean(x²) + ε)·w over the last axis."""
    squares = t.mean(t.multiply(s.x, s.x), -1)
    inverse = s.saved["inverse"] = _inverse(t, squares, out=squares)
    return _affine(t, s, t.multiply(s.x, inverse), -1)


def rmsnorm_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """dx = (h − x̂·mean(h·x̂))/rms with h = g·w; dw = Σ g·x̂."""
    return _gradients(t, s, g, centre=False)


kernel("layernorm", centred, centred_gradients)
kernel("groupnorm", centred, centred_gradients)
kernel("batchnorm", batchnorm, centred_gradients)
kernel("batchnorm_untracked", centred, centred_gradients)
kernel("batchnorm_fixed", fixed, fixed_gradients)
kernel("rmsnorm", rmsnorm, rmsnorm_gradients)
