"""Mixtures of experts: how tokens choose, and rows sent to the busy experts in turn, as evenly as they go."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from costmodel.roofline.kernels import ArrayTape, Gradients, KernelCall, kernel, unary
from costmodel.roofline.memory import Ref

EPSILON = 1e-20
"""Added to a sum of scores before it divides them."""


def top_k(t: ArrayTape, s: KernelCall) -> Ref:
    """The largest, then the largest of the rest, whose places are kept as bools."""
    rest = t.copy(s.x)
    y = t.empty(*s.x.shape[:-1], s.kind.chosen)
    for number in range(s.kind.chosen):
        best = t.reduce("maximum", rest, -1, out=y[..., number : number + 1])
        place = s.saved[f"place{number}"] = t.equal(rest, best)
        t.copyto(rest, -math.inf, where=place)
    return y


def top_k_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """g where it came from."""
    dx = t.full(s.x.shape, 0.0)
    for number in range(s.kind.chosen):
        t.copyto(dx, g[..., number : number + 1], where=s.saved[f"place{number}"])
    return dx


def pick(t: ArrayTape, s: KernelCall) -> Ref:
    """x[i]."""
    rows, times, taken = s.x.shape[0], s.kind.times, s.kind.rows
    if taken is None:
        index = t.constant((rows * times,), lambda: np.arange(rows * times) // times, dtype="int64")
    else:
        index = t.constant((taken,), lambda: np.arange(taken) % rows, dtype="int64")
    s.saved["index"] = index
    return t.take(s.x, index)


def pick_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """dx[i] += g."""
    return t.at("add", t.full(s.x.shape, 0.0), s.saved["index"], g)


def _shares(s: KernelCall) -> Iterator[tuple[int, slice]]:
    """Each expert that has rows, and which."""
    rows, experts = s.x.shape[0], s.kind.experts if s.kind.busy is None else int(s.kind.busy)
    start = 0
    for expert in range(experts):
        size = rows // experts + (expert < rows % experts)
        if size:
            yield expert, slice(start, start + size)
        start += size


def _of(stacked: Ref, expert: int) -> Ref:
    return stacked[expert : expert + 1].reshape(*stacked.shape[1:])


def expert_linear(t: ArrayTape, s: KernelCall) -> Ref:
    """y = x Wₑᵀ + bₑ, a product for each expert."""
    y = t.empty(s.x.shape[0], s.kind.features)
    for expert, rows in _shares(s):
        t.matmul(s.x[rows], _of(s.weights["weight"], expert).swapaxes(0, 1), out=y[rows])
        if s.kind.bias:
            t.add(y[rows], _of(s.weights["bias"], expert), out=y[rows])
    return y


def expert_linear_gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    """dx = g Wₑ, dWₑ = gᵀ x, dbₑ = Σ g over the rows of each expert."""
    if s.wants(s.x):
        dx = t.empty(*s.x.shape)
        for expert, rows in _shares(s):
            t.matmul(g[rows], _of(s.weights["weight"], expert), out=dx[rows])
        yield s.x, dx
    if "weight" in s.names:
        total = t.full(s.weights["weight"].shape, 0.0)
        for expert, rows in _shares(s):
            t.matmul(g[rows].swapaxes(0, 1), s.x[rows], out=_of(total, expert))
        yield s.weights["weight"], total
    if "bias" in s.names:
        total = t.full(s.weights["bias"].shape, 0.0)
        for expert, rows in _shares(s):
            t.copyto(_of(total, expert), t.accumulate(g[rows], (g.shape[1],)))
        yield s.weights["bias"], total


def total_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """g, once for each term."""
    return t.copyto(t.empty(*s.x.shape), g.reshape(g.shape[0], 1, g.shape[1]))


def _largest(t: ArrayTape, x: Ref, count: int) -> tuple[list[Ref], list[Ref]]:
    """The largest of each row, one after another, and their places as bools; `x` is used up."""
    values, places = [], []
    for _ in range(count):
        best = t.reduce("maximum", x, -1)
        place = t.equal(x, best)
        t.copyto(x, -math.inf, where=place)
        values.append(best)
        places.append(place)
    return values, places


def grouped_top_k(t: ArrayTape, s: KernelCall) -> Ref:
    """The scores of the chosen of the best groups, whose places are kept as bools."""
    kind, (*rows, n) = s.kind, s.x.shape
    constants = s.weights if kind.stored else s.buffers
    judged = t.add(s.x, constants["bias"]) if kind.biased else t.copy(s.x)
    (merit, *more), _ = _largest(t, t.reshape(t.copy(judged), *rows, kind.groups, n // kind.groups), kind.best)
    t.chain(merit, *(("add", next_best) for next_best in more))
    _, groups = _largest(t, merit.reshape(*rows, kind.groups), kind.kept_groups)
    closed = t.full((*rows, kind.groups, 1), -math.inf)
    for place in groups:
        t.copyto(closed, 0.0, where=place.reshape(*rows, kind.groups, 1))
    by_group = judged.reshape(*rows, kind.groups, n // kind.groups)
    t.add(by_group, closed, out=by_group)
    _, places = _largest(t, judged, kind.chosen)
    y = t.empty(*rows, kind.chosen)
    for number, place in enumerate(places):
        s.saved[f"place{number}"] = place
        t.copyto(y[..., number : number + 1], t.sum(t.multiply(s.x, place), -1))
    return y


def shares(t: ArrayTape, s: KernelCall) -> Ref:
    """x/(Σ x + ε)."""
    s.saved["sum"] = t.chain(t.sum(s.x, -1), ("add", EPSILON))
    return t.divide(s.x, s.saved["sum"])


def shares_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """g/s − Σ(g·x)/s²."""
    total = s.saved["sum"]
    drawn = t.sum(t.multiply(g, s.x), -1)
    t.divide(drawn, t.multiply(total, total), out=drawn)
    return t.chain(t.divide(g, total), ("subtract", drawn))


MASKED = "NumPy finds the place of each maximum by comparing again, and takes and puts numbers there by masks"

unary("top_k", top_k, top_k_gradient, {"forward": MASKED, "backward": MASKED})
unary("grouped_top_k", grouped_top_k, top_k_gradient, {"forward": MASKED, "backward": MASKED})
unary("pick", pick, pick_gradient)
kernel("expert_linear", expert_linear, expert_linear_gradients)
unary("total", lambda t, s: t.sum(s.x, 1, keepdims=False), total_gradient)
unary("shares", shares, shares_gradient)
