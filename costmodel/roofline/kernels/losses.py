"""Losses. What is differentiated is the loss itself: the incoming gradient is the constant 1."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy

from costmodel.roofline.kernels import ArrayTape, Gradients, KernelCall, kernel, rows, unary
from costmodel.roofline.kernels.attention import log_softmax
from costmodel.roofline.memory import Ref, Shape


def _firsts(shape: Shape) -> numpy.ndarray:
    """Where in a flat (batch, classes, ...) the scores of class 0 lie, shaped (batch, ...)."""
    b, classes, *rest = shape
    inner = numpy.prod(rest, dtype=int)
    return numpy.arange(b).reshape(-1, *(1 for _ in rest)) * (classes * inner) + numpy.arange(inner).reshape(1, *rest)


def _places(t: ArrayTape, shape: Shape, targets: Ref) -> Ref:
    """Where in a flat array of scores those of the targets lie."""
    b, _, *rest = shape
    firsts = t.constant((b, *rest), partial(_firsts, shape), "int64")
    return t.chain(t.multiply(targets, prod(rest)), ("add", firsts)).reshape(-1)


def _mean_at(t: ArrayTape, likelihoods: Ref, places: Ref) -> Ref:
    """−mean of the numbers at `places`."""
    total = t.sum(t.take(likelihoods.reshape(-1), places), 0, keepdims=False)
    return t.chain(total, ("divide", float(-places.size)))


def cross_entropy(t: ArrayTape, s: KernelCall) -> Ref:
    """−mean(log softmax(x)[target]), and a share of the mean over all classes."""
    places = s.saved["places"] = _places(t, s.x.shape, s.inputs[1])
    likelihoods = s.saved["log_softmax"] = log_softmax(t, s.x, 1)
    total, smoothing = _mean_at(t, likelihoods, places), s.kind.smoothing
    if not smoothing:
        return total
    t.multiply(total, 1 - smoothing, out=total)
    every = t.sum(likelihoods, range(len(likelihoods.shape)), keepdims=False)
    t.chain(every, ("divide", float(-likelihoods.size)), ("multiply", smoothing))
    return t.add(total, every, out=total)


def _less_hits(t: ArrayTape, log_softmax: Ref, places: Ref, count: int, smoothing: float = 0.0) -> Ref:
    """(softmax(x) − (1 − ε)[target] − ε/classes)/count."""
    dx = t.exp(log_softmax)
    if smoothing:
        t.subtract(dx, smoothing * count / dx.size, out=dx)
    one = t.constant((), partial(float, 1 - smoothing))  # an array: a number would be cast for every index
    t.at("subtract", dx.reshape(-1), places, one)
    return t.multiply(dx, 1 / count, out=dx)


def cross_entropy_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """(softmax(x) − [target])/rows."""
    places = s.saved["places"]
    return _less_hits(t, s.saved["log_softmax"], places, places.size, s.kind.smoothing)


def mean_squared_error(t: ArrayTape, s: KernelCall) -> Ref:
    """mean((x − target)²)."""
    difference = t.subtract(*s.inputs)
    t.multiply(difference, difference, out=difference)
    total = t.sum(difference, range(len(difference.shape)), keepdims=False)
    return t.chain(total, ("divide", float(s.x.size)))


def mean_squared_error_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """2 (x − target)/n."""
    return t.chain(t.subtract(*s.inputs), ("multiply", 2 / s.x.size))


def fused(t: ArrayTape, s: KernelCall) -> Ref:
    """Logits, loss and gradients of one chunk of rows after another."""
    x, targets, weight = rows(t, s.x), t.reshape(s.inputs[1], -1), s.weights["weight"]
    count = targets.size
    gradients = {name: t.full(w.shape, 0.0) for name, w in s.weights.items() if s.wants(w)}
    dx = t.empty(*x.shape) if s.wants(s.x) else None
    chosen, size = t.empty(count), -(-count // s.kind.chunks)
    for start in range(0, count, size):
        chunk = slice(start, min(start + size, count))
        logits = t.matmul(x[chunk], weight.swapaxes(0, 1))
        if s.kind.bias:
            t.add(logits, s.weights["bias"], out=logits)
        likelihoods = log_softmax(t, logits, 1)
        places = _places(t, likelihoods.shape, targets[chunk])
        t.copyto(chosen[chunk], t.take(likelihoods.reshape(-1), places))
        if s.training and s.wanted:
            g = _less_hits(t, likelihoods, places, count)
            if "weight" in gradients:
                t.add(gradients["weight"], t.matmul(g.swapaxes(0, 1), x[chunk]), out=gradients["weight"])
            if "bias" in gradients:
                t.add(gradients["bias"], t.sum(g, 0, keepdims=False), out=gradients["bias"])
            if dx is not None:
                t.matmul(g, weight, out=dx[chunk])
    s.saved.update(gradients if dx is None else {**gradients, "x": dx})
    total = t.sum(chosen, 0, keepdims=False)
    return t.divide(total, float(-count), out=total)


def fused_gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    """Each gradient times that of the loss."""
    if s.wants(s.x):
        yield s.x, t.multiply(s.saved["x"].reshape(*s.x.shape), g)
    for name in s.names:
        yield s.weights[name], t.multiply(s.saved[name], g)


HITS = "1 is taken from the scores of the targets alone, not [target] from every score"
CHUNKS = f"{HITS}; products of each chunk are added to the weight's gradient"

unary("cross_entropy", cross_entropy, cross_entropy_gradient, {"backward": HITS})
unary("mean_squared_error", mean_squared_error, mean_squared_error_gradient)
kernel("fused_linear_cross_entropy", fused, fused_gradients, extra={"forward": CHUNKS})
