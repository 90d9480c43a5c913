"""How tokens choose experts within groups, and what the chosen ones count for."""

from __future__ import annotations

import math

from costmodel.roofline.kernels.kernel import Gradients, KernelCall, kernel
from costmodel.roofline.reference import Ref
from costmodel.roofline.tape import Tape

EPSILON = 1e-20


def _largest(t: Tape, x: Ref, count: int) -> tuple[list[Ref], list[Ref]]:
    """The largest of each row, one after another, and their places as bools; `x` is used up."""
    found, places = [], []
    for _ in range(count):
        best = t.reduce("maximum", x, -1)
        place = t.equal(x, best)
        t.copyto(x, -math.inf, where=place)
        found.append(best)
        places.append(place)
    return found, places


def grouped_top_k(t: Tape, s: KernelCall) -> Ref:
    """The scores of the chosen of the best groups, whose places are kept as bools."""
    kind, (*rows, n) = s.kind, s.x.shape
    judged = t.add(s.x, s.buffers["bias"]) if kind.biased else t.copy(s.x)
    best, _ = _largest(t, t.reshape(t.copy(judged), *rows, kind.groups, n // kind.groups), kind.best)
    merit = best[0]
    for more in best[1:]:
        t.add(merit, more, out=merit)
    _, groups = _largest(t, merit.reshape(*rows, kind.groups), kind.kept_groups)
    closed = t.full((*rows, kind.groups, 1), -math.inf)
    for place in groups:
        t.copyto(closed, 0.0, where=place.reshape(*rows, kind.groups, 1))
    apart = judged.reshape(*rows, kind.groups, n // kind.groups)
    t.add(apart, closed, out=apart)
    _, places = _largest(t, judged, kind.chosen)
    y = t.empty(*rows, kind.chosen)
    for number, place in enumerate(places):
        s.saved[f"place{number}"] = place
        t.copyto(y[..., number : number + 1], t.sum(t.multiply(s.x, place), -1))
    return y


def grouped_top_k_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g where it came from."""
    dx = t.full(s.x.shape, 0.0)
    for number in range(s.kind.chosen):
        t.copyto(dx, g[..., number : number + 1], where=s.saved[f"place{number}"])
    yield s.x, dx


def shares(t: Tape, s: KernelCall) -> Ref:
    """x/(Σ x + ε)."""
    total = t.sum(s.x, -1)
    s.saved["sum"] = t.add(total, EPSILON, out=total)
    return t.divide(s.x, total)


def shares_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g/s − Σ(g·x)/s²."""
    total = s.saved["sum"]
    drawn = t.sum(t.multiply(g, s.x), -1)
    t.divide(drawn, t.multiply(total, total), out=drawn)
    dx = t.divide(g, total)
    yield s.x, t.subtract(dx, drawn, out=dx)


MASKED = "NumPy finds the place of each maximum by comparing again, and takes and puts numbers there by masks"

kernel("grouped_top_k", grouped_top_k, grouped_top_k_gradients, beside={"forward": MASKED, "backward": MASKED})
kernel("shares", shares, shares_gradients)
