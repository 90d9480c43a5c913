"""Activation functions: the plain formulas of their kinds, written with as few new arrays as reads well."""

from __future__ import annotations

import math
from functools import cache

from numpy.polynomial import chebyshev

from costmodel.errors import CostModelError
from costmodel.roofline.kernels import ArrayTape, Gradients, KernelCall, kernel, spread, unary
from costmodel.roofline.memory import Ref

ROOT = math.sqrt(2 / math.pi)
CUBE = 0.044715
ERF = "NumPy has no erf: it is 1 − P(t)·exp(−z²), t = 1/(1 + z/2), with a P for the type's precision (A&S 7.1.26)"


@cache
def _complement(dtype: str) -> tuple[float, float, list[float]]:
    """Middle and half width of t's range, and P's coefficients there, the highest power first.

    P(t) = erfc(z)·exp(z²) by interpolation in Chebyshev points; z up to 6, beyond which erf is 1 in float64.
    """
    middle, half = (1 + 1 / 4) / 2, (1 - 1 / 4) / 2
    degree = 6 if dtype == "float32" else 20
    points = chebyshev.chebpts1(degree + 1)
    zs = 2 / (middle + half * points) - 2
    scaled = [math.erfc(z) * math.exp(z * z) for z in zs]
    fitted = chebyshev.chebfit(points, scaled, degree)
    return middle, half, [float(c) for c in chebyshev.cheb2poly(fitted)[::-1]]


def erf(t: ArrayTape, x: Ref) -> Ref:
    """The error function of x, in new memory."""
    middle, half, (first, *rest, last) = _complement(t.dtype)
    z = t.chain(t.absolute(x), ("minimum", 6.0))
    u = t.chain(t.multiply(z, half / 2), ("add", half), "reciprocal", ("subtract", middle / half))
    p = t.multiply(u, first)
    for coefficient in rest:
        t.chain(p, ("add", coefficient), ("multiply", u))
    t.add(p, last, out=p)
    t.chain(z, "square", "negative", "exp")
    return t.chain(p, ("multiply", z), (1.0, "subtract"), ("copysign", x))


def gelu(t: ArrayTape, s: KernelCall) -> Ref:
    """x/2·(1 + erf(x/√2))."""
    y = erf(t, t.multiply(s.x, 1 / math.sqrt(2)))
    return t.chain(y, ("add", 1.0), ("multiply", s.x), ("multiply", 1 / 2))


def gelu_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """g·(Φ(x) + x·φ(x))."""
    cumulative = t.chain(erf(t, t.multiply(s.x, 1 / math.sqrt(2))), ("add", 1.0), ("multiply", 1 / 2))
    density = t.chain(t.multiply(s.x, s.x), ("multiply", -1 / 2), "exp", ("multiply", 1 / math.sqrt(2 * math.pi)))
    t.multiply(density, s.x, out=density)
    return t.chain(cumulative, ("add", density), (g, "multiply"))


def _inner(t: ArrayTape, s: KernelCall, squares: Ref) -> Ref:
    """tanh(c·(x + a·x³)), in new memory."""
    return t.chain(t.multiply(squares, s.x), ("multiply", CUBE), ("add", s.x), ("multiply", ROOT), "tanh")


def gelu_tanh(t: ArrayTape, s: KernelCall) -> Ref:
    """x/2·(1 + tanh u)."""
    y = _inner(t, s, t.multiply(s.x, s.x))
    return t.chain(y, ("add", 1.0), ("multiply", s.x), ("multiply", 1 / 2))


def gelu_tanh_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """g·((1 + t)/2 + x/2·(1 − t²)·c·(1 + 3a·x²))."""
    slope = t.multiply(s.x, s.x)
    tanh = _inner(t, s, slope)
    t.chain(slope, ("multiply", 3 * CUBE), ("add", 1.0), ("multiply", ROOT), ("multiply", s.x), ("multiply", 1 / 2))
    rest = t.chain(t.multiply(tanh, tanh), (1.0, "subtract"))
    t.multiply(slope, rest, out=slope)
    t.chain(tanh, ("add", 1.0), ("multiply", 1 / 2))
    return t.chain(slope, ("add", tanh), (g, "multiply"))


def _slopes(t: ArrayTape, s: KernelCall) -> Ref:
    """1 or `slope`."""
    slopes = t.full(s.x.shape, s.kind.slope)
    return t.copyto(slopes, 1.0, where=t.greater(s.x, 0.0))


def elu(t: ArrayTape, s: KernelCall) -> Ref:
    """x > 0 ? x : α(eˣ − 1)."""
    y = t.chain(t.exp(s.x), ("subtract", 1.0), ("multiply", s.kind.alpha))
    return t.copyto(y, s.x, where=t.greater(s.x, 0.0))


def elu_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """g·(x > 0 ? 1 : αeˣ)."""
    dx = t.chain(t.exp(s.x), ("multiply", s.kind.alpha))
    t.copyto(dx, 1.0, where=t.greater(s.x, 0.0))
    return t.multiply(g, dx, out=dx)


def _sigmoid(t: ArrayTape, x: Ref) -> Ref:
    """1/(1 + e⁻ˣ), in new memory."""
    return t.chain(t.negative(x), "exp", ("add", 1.0), "reciprocal")


def silu_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """g·s·(1 + x·(1 − s))."""
    y = _sigmoid(t, s.x)
    return t.chain(t.subtract(1.0, y), ("multiply", s.x), ("add", 1.0), ("multiply", y), (g, "multiply"))


def _clipped(t: ArrayTape, s: KernelCall) -> Ref:
    """min(max(x + 3, 0), 6)."""
    return t.chain(t.add(s.x, 3.0), ("maximum", 0.0), ("minimum", 6.0))


def hard_swish_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """g·(x > −3 ? (x < 3 ? x/3 + 1/2 : 1) : 0)."""
    dx = t.chain(t.divide(s.x, 3.0), ("add", 1 / 2))
    t.copyto(dx, 1.0, where=t.greater_equal(s.x, 3.0))
    t.copyto(dx, 0.0, where=t.less_equal(s.x, -3.0))
    return t.multiply(g, dx, out=dx)


def _within(t: ArrayTape, x: Ref, least: float, most: float) -> Ref:
    """Whether least < x < most."""
    above, below = t.greater(x, least), t.less(x, most)
    return t.logical_and(above, below, out=above)


def hard_sigmoid_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """g·1/6·[−3 < x < 3]."""
    dx = t.multiply(g, 1 / 6)
    return t.multiply(dx, _within(t, s.x, -3.0, 3.0), out=dx)


# relu: max(x, 0); leaky_relu: x·(x > 0 ? 1 : slope); silu: x·σ(x); hard_swish: x·min(max(x + 3, 0), 6)/6, of which
# hard_sigmoid has not the x; relu6: min(max(x, 0), 6).
unary("gelu", gelu, gelu_gradient, {"forward": ERF, "backward": ERF})
unary("gelu_tanh", gelu_tanh, gelu_tanh_gradient)
unary("relu", lambda t, s: t.maximum(s.x, 0.0), lambda t, s, g: t.multiply(g, t.greater(s.y, 0.0)))
unary(
    "leaky_relu",
    lambda t, s: t.chain(_slopes(t, s), (s.x, "multiply")),
    lambda t, s, g: t.chain(_slopes(t, s), (g, "multiply")),
)
unary("elu", elu, elu_gradient)
unary("silu", lambda t, s: t.chain(_sigmoid(t, s.x), (s.x, "multiply")), silu_gradient)
unary(
    "sigmoid",
    lambda t, s: _sigmoid(t, s.x),
    lambda t, s, g: t.chain(t.subtract(1.0, s.y), ("multiply", s.y), (g, "multiply")),
)
unary(
    "tanh", lambda t, s: t.tanh(s.x), lambda t, s, g: t.chain(t.multiply(s.y, s.y), (1.0, "subtract"), (g, "multiply"))
)
unary("hard_swish", lambda t, s: t.chain(_clipped(t, s), (s.x, "multiply"), ("divide", 6.0)), hard_swish_gradient)
unary("hard_sigmoid", lambda t, s: t.chain(_clipped(t, s), ("divide", 6.0)), hard_sigmoid_gradient)
unary(
    "relu6",
    lambda t, s: t.chain(t.maximum(s.x, 0.0), ("minimum", 6.0)),
    lambda t, s, g: t.multiply(g, _within(t, s.x, 0.0, 6.0)),
)


def _spread_slopes(s: KernelCall) -> Ref:
    """One slope for all, or one for each channel."""
    slopes = s.weights["weight"]
    return slopes if slopes.size == 1 else spread(slopes, s.x.shape)


def prelu(t: ArrayTape, s: KernelCall) -> Ref:
    """x where positive, a·x elsewhere."""
    y = t.multiply(s.x, _spread_slopes(s))
    return t.copyto(y, s.x, where=t.greater(s.x, 0.0))


def prelu_gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
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


def _trained(t: ArrayTape, s: KernelCall, name: str) -> Ref:
    """log(1 + eᵃ)."""
    return t.chain(t.exp(s.weights[name]), ("add", 1.0), "log")


def _bent(t: ArrayTape, s: KernelCall) -> Ref:
    """e^min(x, ε) − 1, in new memory."""
    return t.chain(t.minimum(s.x, EPSILON), "exp", ("subtract", 1.0))


def xielu(t: ArrayTape, s: KernelCall) -> Ref:
    """(x > 0 ? α₊·x² : α₋·(e^min(x, ε) − 1 − x)) + β·x."""
    positive, negative = _trained(t, s, "positive"), _trained(t, s, "negative")
    t.add(negative, BETA, out=negative)
    y = t.chain(_bent(t, s), ("subtract", s.x), ("multiply", negative))
    squared = t.chain(t.multiply(s.x, positive), ("multiply", s.x))
    t.copyto(y, squared, where=t.greater(s.x, 0.0))
    return t.add(y, t.multiply(s.x, BETA, out=squared), out=y)


def xielu_gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    """g·((x > 0 ? 2α₊·x : α₋·(e^min(x, ε) − 1)) + β), and the sums of what the trained numbers multiply."""
    if s.wants(s.x):
        positive, negative = _trained(t, s, "positive"), _trained(t, s, "negative")
        t.multiply(positive, 2.0, out=positive)
        t.add(negative, BETA, out=negative)
        dx = t.chain(_bent(t, s), ("multiply", negative))
        t.copyto(dx, t.multiply(s.x, positive), where=t.greater(s.x, 0.0))
        yield s.x, t.chain(dx, ("add", BETA), (g, "multiply"))
    for name in s.names:
        terms = t.multiply(s.x, s.x) if name == "positive" else t.chain(_bent(t, s), ("subtract", s.x))
        t.multiply(terms, g, out=terms)
        outside = t.less_equal(s.x, 0.0) if name == "positive" else t.greater(s.x, 0.0)
        t.copyto(terms, 0.0, where=outside)
        total = t.accumulate(terms, (1,))
        yield s.weights[name], t.chain(_sigmoid(t, s.weights[name]), (total, "multiply"))


kernel("parametric_relu", prelu, prelu_gradients)
kernel("xielu", xielu, xielu_gradients)

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


def pointwise(t: ArrayTape, s: KernelCall) -> Ref:
    """x² or x³."""
    cube, y = _is_cube(s), t.multiply(s.x, s.x)
    return t.multiply(y, s.x, out=y) if cube else y


def pointwise_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """g·2x or g·3x²."""
    dx = t.chain(t.multiply(s.x, s.x), ("multiply", 3.0)) if _is_cube(s) else t.multiply(s.x, 2.0)
    return t.multiply(g, dx, out=dx)


unary("pointwise", pointwise, pointwise_gradient, {"forward": PRODUCTS})
