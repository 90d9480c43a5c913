"""Activation functions: the plain formulas of their kinds, written with as few new arrays as reads well."""

from __future__ import annotations

import math
from functools import cache

from costmodel.errors import CostModelError
from costmodel.roofline.kernels.kernel import Gradients, KernelCall, Tape, kernel, spread
from costmodel.roofline.reference import Ref

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


def gelu(t: Tape, s: KernelCall) -> Ref:
    """x/2·(1 + erf(x/√2))."""
    y = erf(t, t.multiply(s.x, 1 / math.sqrt(2)))
    t.add(y, 1.0, out=y)
    t.multiply(y, s.x, out=y)
    return t.multiply(y, 1 / 2, out=y)


def gelu_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
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


def _inner(t: Tape, s: KernelCall, squares: Ref) -> Ref:
    """tanh(c·(x + a·x³)), in new memory."""
    u = t.multiply(squares, s.x)
    t.multiply(u, CUBE, out=u)
    t.add(u, s.x, out=u)
    t.multiply(u, ROOT, out=u)
    return t.tanh(u, out=u)


def gelu_tanh(t: Tape, s: KernelCall) -> Ref:
    """x/2·(1 + tanh u)."""
    y = _inner(t, s, t.multiply(s.x, s.x))
    t.add(y, 1.0, out=y)
    t.multiply(y, s.x, out=y)
    return t.multiply(y, 1 / 2, out=y)


def gelu_tanh_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
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


def relu(t: Tape, s: KernelCall) -> Ref:
    """max(x, 0)."""
    s.y = t.maximum(s.x, 0.0)
    return s.y


def relu_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g·[y > 0]."""
    yield s.x, t.multiply(g, t.greater(s.y, 0.0))


def _slopes(t: Tape, s: KernelCall) -> Ref:
    """1 or `slope`."""
    slopes = t.full(s.x.shape, s.kind.slope)
    return t.copyto(slopes, 1.0, where=t.greater(s.x, 0.0))


def leaky_relu(t: Tape, s: KernelCall) -> Ref:
    """x·(x > 0 ? 1 : slope)."""
    slopes = _slopes(t, s)
    return t.multiply(s.x, slopes, out=slopes)


def leaky_relu_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g·(x > 0 ? 1 : slope)."""
    slopes = _slopes(t, s)
    yield s.x, t.multiply(g, slopes, out=slopes)


def elu(t: Tape, s: KernelCall) -> Ref:
    """x > 0 ? x : α(eˣ − 1)."""
    y = t.exp(s.x)
    t.subtract(y, 1.0, out=y)
    t.multiply(y, s.kind.alpha, out=y)
    return t.copyto(y, s.x, where=t.greater(s.x, 0.0))


def elu_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g·(x > 0 ? 1 : αeˣ)."""
    dx = t.exp(s.x)
    t.multiply(dx, s.kind.alpha, out=dx)
    t.copyto(dx, 1.0, where=t.greater(s.x, 0.0))
    yield s.x, t.multiply(g, dx, out=dx)


def _sigmoid(t: Tape, x: Ref) -> Ref:
    """1/(1 + e⁻ˣ), in new memory."""
    y = t.negative(x)
    t.exp(y, out=y)
    t.add(y, 1.0, out=y)
    return t.reciprocal(y, out=y)


def silu(t: Tape, s: KernelCall) -> Ref:
    """x·σ(x)."""
    y = _sigmoid(t, s.x)
    return t.multiply(s.x, y, out=y)


def silu_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g·s·(1 + x·(1 − s))."""
    sigmoid = _sigmoid(t, s.x)
    dx = t.subtract(1.0, sigmoid)
    t.multiply(dx, s.x, out=dx)
    t.add(dx, 1.0, out=dx)
    t.multiply(dx, sigmoid, out=dx)
    yield s.x, t.multiply(g, dx, out=dx)


def sigmoid(t: Tape, s: KernelCall) -> Ref:
    """1/(1 + e⁻ˣ)."""
    s.y = _sigmoid(t, s.x)
    return s.y


def sigmoid_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g·y·(1 − y)."""
    dx = t.subtract(1.0, s.y)
    t.multiply(dx, s.y, out=dx)
    yield s.x, t.multiply(g, dx, out=dx)


def tanh(t: Tape, s: KernelCall) -> Ref:
    """Tanh x."""
    s.y = t.tanh(s.x)
    return s.y


def tanh_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g·(1 − y²)."""
    dx = t.multiply(s.y, s.y)
    t.subtract(1.0, dx, out=dx)
    yield s.x, t.multiply(g, dx, out=dx)


def _clipped(t: Tape, s: KernelCall) -> Ref:
    """min(max(x + 3, 0), 6)."""
    y = t.add(s.x, 3.0)
    t.maximum(y, 0.0, out=y)
    return t.minimum(y, 6.0, out=y)


def hard_swish(t: Tape, s: KernelCall) -> Ref:
    """x·min(max(x + 3, 0), 6)/6."""
    y = _clipped(t, s)
    t.multiply(s.x, y, out=y)
    return t.divide(y, 6.0, out=y)


def hard_swish_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g·(x > −3 ? (x < 3 ? x/3 + 1/2 : 1) : 0)."""
    dx = t.divide(s.x, 3.0)
    t.add(dx, 1 / 2, out=dx)
    t.copyto(dx, 1.0, where=t.greater_equal(s.x, 3.0))
    t.copyto(dx, 0.0, where=t.less_equal(s.x, -3.0))
    yield s.x, t.multiply(g, dx, out=dx)


def hard_sigmoid(t: Tape, s: KernelCall) -> Ref:
    """min(max(x + 3, 0), 6)/6."""
    y = _clipped(t, s)
    return t.divide(y, 6.0, out=y)


def _within(t: Tape, x: Ref, least: float, most: float) -> Ref:
    """Whether least < x < most."""
    above, below = t.greater(x, least), t.less(x, most)
    return t.logical_and(above, below, out=above)


def hard_sigmoid_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g·1/6·[−3 < x < 3]."""
    dx = t.multiply(g, 1 / 6)
    yield s.x, t.multiply(dx, _within(t, s.x, -3.0, 3.0), out=dx)


def relu6(t: Tape, s: KernelCall) -> Ref:
    """min(max(x, 0), 6)."""
    y = t.maximum(s.x, 0.0)
    return t.minimum(y, 6.0, out=y)


def relu6_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g·[0 < x < 6]."""
    yield s.x, t.multiply(g, _within(t, s.x, 0.0, 6.0))


def _spread_slopes(s: KernelCall) -> Ref:
    """One slope for all, or one for each channel."""
    slopes = s.weights["weight"]
    return slopes if slopes.size == 1 else spread(slopes, s.x.shape)


def prelu(t: Tape, s: KernelCall) -> Ref:
    """x where positive, a·x elsewhere."""
    y = t.multiply(s.x, _spread_slopes(s))
    return t.copyto(y, s.x, where=t.greater(s.x, 0.0))


def prelu_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g·(x > 0 ? 1 : a), and the sum of x > 0 ? 0 : g·x."""
    positive, slopes = t.greater(s.x, 0.0), _spread_slopes(s)
    if s.wants(s.x):
        dx = t.copyto(t.empty(*g.shape), slopes)
        t.copyto(dx, 1.0, where=positive)
        yield s.x, t.multiply(g, dx, out=dx)
    for name in s.names:
        terms = t.multiply(g, s.x)
        t.copyto(terms, 0.0, where=positive)
        yield s.weights[name], t.accumulate(terms, slopes.shape).reshape(*s.weights[name].shape)


BETA, EPSILON = 0.5, -1e-6
"""Of xIELU."""


def _trained(t: Tape, s: KernelCall, name: str) -> Ref:
    """log(1 + eᵃ)."""
    alpha = t.exp(s.weights[name])
    t.add(alpha, 1.0, out=alpha)
    return t.log(alpha, out=alpha)


def _bent(t: Tape, s: KernelCall) -> Ref:
    """e^min(x, ε) − 1, in new memory."""
    y = t.minimum(s.x, EPSILON)
    t.exp(y, out=y)
    return t.subtract(y, 1.0, out=y)


def xielu(t: Tape, s: KernelCall) -> Ref:
    """(x > 0 ? α₊·x² : α₋·(e^min(x, ε) − 1 − x)) + β·x."""
    positive, negative = _trained(t, s, "positive"), _trained(t, s, "negative")
    t.add(negative, BETA, out=negative)
    y = _bent(t, s)
    t.subtract(y, s.x, out=y)
    t.multiply(y, negative, out=y)
    squared = t.multiply(s.x, positive)
    t.multiply(squared, s.x, out=squared)
    t.copyto(y, squared, where=t.greater(s.x, 0.0))
    return t.add(y, t.multiply(s.x, BETA, out=squared), out=y)


def xielu_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g·((x > 0 ? 2α₊·x : α₋·(e^min(x, ε) − 1)) + β), and the sums of what the trained numbers multiply."""
    if s.wants(s.x):
        positive, negative = _trained(t, s, "positive"), _trained(t, s, "negative")
        t.multiply(positive, 2.0, out=positive)
        t.add(negative, BETA, out=negative)
        dx = _bent(t, s)
        t.multiply(dx, negative, out=dx)
        t.copyto(dx, t.multiply(s.x, positive), where=t.greater(s.x, 0.0))
        t.add(dx, BETA, out=dx)
        yield s.x, t.multiply(g, dx, out=dx)
    for name in s.names:
        if name == "positive":
            terms = t.multiply(s.x, s.x)
        else:
            terms = _bent(t, s)
            t.subtract(terms, s.x, out=terms)
        t.multiply(terms, g, out=terms)
        outside = t.less_equal(s.x, 0.0) if name == "positive" else t.greater(s.x, 0.0)
        t.copyto(terms, 0.0, where=outside)
        total = t.accumulate(terms, (1,))
        slope = t.negative(s.weights[name])
        t.exp(slope, out=slope)
        t.add(slope, 1.0, out=slope)
        t.reciprocal(slope, out=slope)
        yield s.weights[name], t.multiply(total, slope, out=slope)


PRODUCTS = "NumPy's power is slow: a cube is two products"

POINTWISE = ("square", "pow")
"""Functions of the kind `pointwise` that have a kernel; a power only as a cube."""


def _is_cube(s: KernelCall) -> bool:
    """Whether it is x³, not x². Raises CostModelError for other functions, and for a power that is not known."""
    function, exponent = s.kind.function, s.kind.exponent
    if function in POINTWISE and (function != "pow" or exponent == 3):
        return function == "pow"
    power = f" with exponent {exponent}" if function == "pow" else ""
    raise CostModelError(
        f"kind pointwise has no NumPy kernel of {function}{power}: there is one of square and of pow with exponent 3"
    )


def pointwise(t: Tape, s: KernelCall) -> Ref:
    """x² or x³."""
    cube, y = _is_cube(s), t.multiply(s.x, s.x)
    return t.multiply(y, s.x, out=y) if cube else y


def pointwise_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g·2x or g·3x²."""
    cube = _is_cube(s)
    dx = t.multiply(s.x, s.x) if cube else t.multiply(s.x, 2.0)
    if cube:
        t.multiply(dx, 3.0, out=dx)
    yield s.x, t.multiply(g, dx, out=dx)


kernel("pointwise", pointwise, pointwise_gradients, beside={"forward": PRODUCTS})
kernel("xielu", xielu, xielu_gradients)
kernel("relu", relu, relu_gradients)
kernel("parametric_relu", prelu, prelu_gradients)
kernel("leaky_relu", leaky_relu, leaky_relu_gradients)
kernel("elu", elu, elu_gradients)
kernel("silu", silu, silu_gradients)
kernel("sigmoid", sigmoid, sigmoid_gradients)
kernel("tanh", tanh, tanh_gradients)
kernel("hard_swish", hard_swish, hard_swish_gradients)
kernel("hard_sigmoid", hard_sigmoid, hard_sigmoid_gradients)
kernel("relu6", relu6, relu6_gradients)
