"""Gaussian error linear units, exact and by tanh, and the error function that NumPy lacks."""

from __future__ import annotations

import math
from functools import cache

from costmodel.roofline.kernels.kernel import Gradients, Site, kernel
from costmodel.roofline.reference import Ref
from costmodel.roofline.tape import Tape

ROOT = math.sqrt(2 / math.pi)
CUBE = 0.044715
ERF = "NumPy has no erf: it is 1 − P(t)·exp(−z²), t = 1/(1 + z/2), with a P for the type's precision (A&S 7.1.26)"


@cache
def _complement(dtype: str) -> tuple[float, float, list[float]]:
    """Middle and half width of t's range, and P's coefficients there, the highest power first.

    P(t) = erfc(z)·exp(z²) by interpolation in Chebyshev points; z up to 6, beyond which erf is 1 in float64.
    """
    from numpy.polynomial import chebyshev

    middle, half = (1 + 1 / 4) / 2, (1 - 1 / 4) / 2

    degree = 6 if dtype == "float32" else 20
    points = chebyshev.chebpts1(degree + 1)
    zs = 2 / (middle + half * points) - 2
    scaled = [math.erfc(z) * math.exp(z * z) for z in zs]
    fitted = chebyshev.chebfit(points, scaled, degree)
    return middle, half, [float(c) for c in chebyshev.cheb2poly(fitted)[::-1]]


def erf(t: Tape, x: Ref) -> Ref:
    """The error function of x, in new memory."""
    middle, half, (first, *rest) = _complement(t.dtype)
    z = t.absolute(x)
    t.minimum(z, 6.0, out=z)
    u = t.multiply(z, half / 2)
    t.add(u, half, out=u)
    t.reciprocal(u, out=u)
    t.subtract(u, middle / half, out=u)
    p = t.multiply(u, first)
    for number, coefficient in enumerate(rest):
        t.add(p, coefficient, out=p)
        if number < len(rest) - 1:
            t.multiply(p, u, out=p)
    t.square(z, out=z)
    t.negative(z, out=z)
    t.exp(z, out=z)
    t.multiply(p, z, out=p)
    t.subtract(1.0, p, out=p)
    return t.copysign(p, x, out=p)


def gelu(t: Tape, s: Site) -> Ref:
    """x/2·(1 + erf(x/√2))."""
    y = erf(t, t.multiply(s.x, 1 / math.sqrt(2)))
    t.add(y, 1.0, out=y)
    t.multiply(y, s.x, out=y)
    return t.multiply(y, 1 / 2, out=y)


def gelu_gradients(t: Tape, s: Site, g: Ref) -> Gradients:
    """g·(Φ(x) + x·φ(x))."""
    cumulative = erf(t, t.multiply(s.x, 1 / math.sqrt(2)))
    t.add(cumulative, 1.0, out=cumulative)
    t.multiply(cumulative, 1 / 2, out=cumulative)
    density = t.multiply(s.x, s.x)
    t.multiply(density, -1 / 2, out=density)
    t.exp(density, out=density)
    t.multiply(density, 1 / math.sqrt(2 * math.pi), out=density)
    t.multiply(density, s.x, out=density)
    t.add(cumulative, density, out=cumulative)
    yield s.x, t.multiply(g, cumulative, out=cumulative)


def _inner(t: Tape, s: Site, squares: Ref) -> Ref:
    """tanh(c·(x + a·x³)), in new memory."""
    u = t.multiply(squares, s.x)
    t.multiply(u, CUBE, out=u)
    t.add(u, s.x, out=u)
    t.multiply(u, ROOT, out=u)
    return t.tanh(u, out=u)


def gelu_tanh(t: Tape, s: Site) -> Ref:
    """x/2·(1 + tanh u)."""
    y = _inner(t, s, t.multiply(s.x, s.x))
    t.add(y, 1.0, out=y)
    t.multiply(y, s.x, out=y)
    return t.multiply(y, 1 / 2, out=y)


def gelu_tanh_gradients(t: Tape, s: Site, g: Ref) -> Gradients:
    """g·((1 + t)/2 + x/2·(1 − t²)·c·(1 + 3a·x²))."""
    slope = t.multiply(s.x, s.x)
    tanh = _inner(t, s, slope)
    t.multiply(slope, 3 * CUBE, out=slope)
    t.add(slope, 1.0, out=slope)
    t.multiply(slope, ROOT, out=slope)
    t.multiply(slope, s.x, out=slope)
    t.multiply(slope, 1 / 2, out=slope)
    rest = t.multiply(tanh, tanh)
    t.subtract(1.0, rest, out=rest)
    t.multiply(slope, rest, out=slope)
    t.add(tanh, 1.0, out=tanh)
    t.multiply(tanh, 1 / 2, out=tanh)
    t.add(slope, tanh, out=slope)
    yield s.x, t.multiply(g, slope, out=slope)


kernel("gelu", gelu, gelu_gradients, beside={"forward": ERF, "backward": ERF})
kernel("gelu_tanh", gelu_tanh, gelu_tanh_gradients)
