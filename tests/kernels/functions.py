"""Kernels of functions of one tensor: each row of the table, with some constant where a function has one."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from scipy import special

from costmodel.layers.function import FUNCTIONS
from tests.kernels.counting import Array, erf, zeros
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes

LOW, HIGH, SLOPE = -0.7, 1.3, 1.5
FLOOR, CEILING = -1e30, 1e30
SELU, SELU_SLOPE = 1.0507009873554805, 1.0507009873554805 * 1.6732632423543772


class Definition(NamedTuple):
    """y from x; dx from g and what is kept of x and y; y by another way, for one number; and where x lies."""

    y: Callable[[Any], Any]
    dx: Callable[[Any, Any, Any], Any]
    expected: Callable[[float], float]
    within: tuple[float, float] = (-8, 8)


def _nothing(g: Array, x: Any, y: Any) -> Array:
    """The gradient of what is constant almost everywhere."""
    return zeros(g.shape, g.tally)


def _outside(x: Array, bound: float) -> Any:
    return np.logical_or(x < -bound, x > bound)


def _lower(x: Array) -> np.ndarray:
    return np.tri(*x.shape[-2:], dtype=bool)


def _log_sigmoid_slope(g: Array, x: Array, y: Array) -> Array:
    z = np.exp(-x)
    return g * (z / (1 + z))


def _mish_slope(g: Array, x: Array, y: Array) -> Array:
    z = np.exp(x)
    more = 1 + z
    t = np.tanh(np.log(more))
    return g * (t + x * (z / more) * (1 - t * t))


def _softplus_slope(g: Array, x: Array, y: Array) -> Array:
    z = np.exp(SLOPE * x)
    return g * (z / (1 + z))


def _shrunk(x: float) -> float:
    return math.copysign(max(abs(x) - HIGH, 0), x)


def _polygamma(n: int, x: Array) -> Array:
    """The n-th derivative of digamma, an elementary function."""
    x.tally.pointwise += x.size
    return Array(special.polygamma(n, x.values), x.tally)


def _sinc(x: Array) -> Array:
    turned = x * math.pi
    return np.where(x == 0, 1, np.sin(turned) / turned)


def _sinc_slope(g: Array, x: Array, y: Array) -> Array:
    turned = x * math.pi
    square = turned * x
    slope = g * ((turned * np.cos(turned) - np.sin(turned)) / square)
    return np.where(square == 0, 0, slope)


POSITIVE, SMALL = (0.1, 8), (-3, 3)

DEFINITIONS = {
    "abs": Definition(np.absolute, lambda g, x, y: g * np.sign(x), lambda x: max(x, -x)),
    "acos": Definition(np.arccos, lambda g, x, y: g * -(1 / np.sqrt(1 - x * x)), math.acos, (-0.9, 0.9)),
    "acosh": Definition(np.arccosh, lambda g, x, y: g / np.sqrt(x * x - 1), math.acosh, (1.1, 8)),
    "asin": Definition(np.arcsin, lambda g, x, y: g * (1 / np.sqrt(1 - x * x)), math.asin, (-0.9, 0.9)),
    "asinh": Definition(np.arcsinh, lambda g, x, y: g / np.sqrt(x * x + 1), math.asinh),
    "atan": Definition(np.arctan, lambda g, x, y: g / (x * x + 1), lambda x: math.atan2(x, 1)),
    "atanh": Definition(np.arctanh, lambda g, x, y: g * 1 / (1 - x * x), math.atanh, (-0.9, 0.9)),
    "ceil": Definition(np.ceil, _nothing, math.ceil),
    "celu": Definition(
        lambda x: np.where(x > 0, x, SLOPE * (np.exp(x * (1 / SLOPE)) - 1)),
        lambda g, x, y: g * np.where(x > 0, 1, np.exp(x * (1 / SLOPE))),
        lambda x: max(x, 0) + min(0, SLOPE * math.expm1(x / SLOPE)),
    ),
    "cos": Definition(np.cos, lambda g, x, y: g * -np.sin(x), lambda x: math.sin(x + math.pi / 2)),
    "cosh": Definition(np.cosh, lambda g, x, y: g * np.sinh(x), lambda x: (math.exp(x) + math.exp(-x)) / 2, SMALL),
    "elu": Definition(
        lambda x: np.where(x > 0, x, SLOPE * (np.exp(x) - 1)),
        lambda g, x, y: g * np.where(x > 0, 1, SLOPE * np.exp(x)),
        lambda x: max(x, 0) + min(0, SLOPE * math.expm1(x)),
    ),
    "erf": Definition(
        erf,
        lambda g, x, y: g * (2 / math.sqrt(math.pi) * np.exp(-(x * x))),
        lambda x: 1 - math.erfc(x),
        SMALL,
    ),
    "erfc": Definition(
        lambda x: 1 - erf(x), lambda g, x, y: g * (-2 / math.sqrt(math.pi) * np.exp(-(x * x))), math.erfc, SMALL
    ),
    "exp2": Definition(np.exp2, lambda g, x, y: g * (y * math.log(2)), lambda x: 2**x),
    "exp": Definition(np.exp, lambda g, x, y: g * y, lambda x: math.e**x),
    "expm1": Definition(lambda x: np.exp(x) - 1, lambda g, x, y: g * (y + 1), math.expm1),
    "exponential": Definition(
        lambda x: np.power(SLOPE, x), lambda g, x, y: g * (y * math.log(SLOPE)), lambda x: math.exp(x * math.log(SLOPE))
    ),
    "floor": Definition(np.floor, _nothing, math.floor),
    "frac": Definition(lambda x: x - np.trunc(x), lambda g, x, y: g, lambda x: math.fmod(x, 1)),
    "logit": Definition(
        lambda x: np.log(x / (1 - x)),
        lambda g, x, y: g / (x * (1 - x)),
        lambda x: math.log(x) - math.log1p(-x),
        (0.1, 0.9),
    ),
    "hardshrink": Definition(
        lambda x: x * _outside(x, HIGH),
        lambda g, x, y: g * _outside(x, HIGH),
        lambda x: x if abs(x) > HIGH else 0,
    ),
    "hardtanh": Definition(
        lambda x: np.minimum(np.maximum(x, LOW), HIGH),
        lambda g, x, y: g * np.logical_and(x > LOW, x < HIGH),
        lambda x: sorted((LOW, x, HIGH))[1],
    ),
    "leaky_relu": Definition(
        lambda x: np.where(x > 0, x, SLOPE * x),
        lambda g, x, y: np.where(x > 0, g, SLOPE * g),
        lambda x: max(x, 0) + SLOPE * min(0, x),
    ),
    "log": Definition(np.log, lambda g, x, y: g / x, lambda x: math.log10(x) / math.log10(math.e), POSITIVE),
    "log1p": Definition(lambda x: np.log(1 + x), lambda g, x, y: g / (x + 1), math.log1p, (-0.9, 8)),
    "log10": Definition(
        np.log10, lambda g, x, y: g / (x * math.log(10)), lambda x: math.log(x) / math.log(10), POSITIVE
    ),
    "log2": Definition(np.log2, lambda g, x, y: g / (x * math.log(2)), lambda x: math.log(x) / math.log(2), POSITIVE),
    "log_sigmoid": Definition(
        lambda x: -np.log(1 + np.exp(-x)), _log_sigmoid_slope, lambda x: min(x, 0) - math.log1p(math.exp(-abs(x)))
    ),
    "mish": Definition(
        lambda x: x * np.tanh(np.log(1 + np.exp(x))),
        _mish_slope,
        lambda x: x * (1 - 2 / ((1 + math.exp(x)) ** 2 + 1)),
    ),
    "nan_to_num": Definition(
        lambda x: np.minimum(np.maximum(np.where(x != x, 0, x), FLOOR), CEILING),
        lambda g, x, y: g * np.isfinite(x),
        lambda x: x,
    ),
    "neg": Definition(np.negative, lambda g, x, y: -g, lambda x: 0 - x),
    "pow": Definition(lambda x: x**3, lambda g, x, y: g * (3 * x**2), lambda x: x * x * x),
    "reciprocal": Definition(np.reciprocal, lambda g, x, y: -g * y * y, lambda x: x**-1, POSITIVE),
    "round": Definition(np.rint, _nothing, round),
    "rsqrt": Definition(
        lambda x: np.reciprocal(np.sqrt(x)), lambda g, x, y: g * (-1 / 2) * y * y * y, lambda x: x**-0.5, POSITIVE
    ),
    "selu": Definition(
        lambda x: SELU * np.where(x > 0, x, SELU_SLOPE / SELU * (np.exp(x) - 1)),
        lambda g, x, y: g * np.where(x > 0, SELU, SELU_SLOPE * np.exp(x)),
        lambda x: SELU * max(x, 0) + SELU_SLOPE * math.expm1(min(x, 0)),
    ),
    "sign": Definition(np.sign, _nothing, lambda x: (x > 0) - (x < 0)),
    "sin": Definition(np.sin, lambda g, x, y: g * np.cos(x), lambda x: math.cos(x - math.pi / 2)),
    "sinh": Definition(np.sinh, lambda g, x, y: g * np.cosh(x), lambda x: (math.exp(x) - math.exp(-x)) / 2, SMALL),
    "softplus": Definition(
        lambda x: np.log(1 + np.exp(SLOPE * x)) / SLOPE,
        _softplus_slope,
        lambda x: max(x, 0) + math.log1p(math.exp(-SLOPE * abs(x))) / SLOPE,
    ),
    "softshrink": Definition(
        lambda x: x - np.minimum(np.maximum(x, -HIGH), HIGH),
        lambda g, x, y: g * _outside(x, HIGH),
        _shrunk,
    ),
    "sqrt": Definition(np.sqrt, lambda g, x, y: g / (2 * y), lambda x: x**0.5, POSITIVE),
    "square": Definition(np.square, lambda g, x, y: g * (2 * x), lambda x: x**2),
    "tan": Definition(np.tan, lambda g, x, y: g * (1 + y * y), lambda x: math.sin(x) / math.cos(x), (-1.2, 1.2)),
    "threshold": Definition(
        lambda x: np.where(x > HIGH, x, SLOPE), lambda g, x, y: g * (x > HIGH), lambda x: x if x > HIGH else SLOPE
    ),
    "zero": Definition(lambda x: zeros(x.shape, x.tally), _nothing, lambda x: 0),
    "tril": Definition(
        lambda x: np.where(_lower(x), x, 0), lambda g, x, y: np.where(_lower(g), g, 0), lambda x: x
    ),
    "triu": Definition(
        lambda x: np.where(~_lower(x), x, 0), lambda g, x, y: np.where(~_lower(g), g, 0), lambda x: x
    ),
    "deg2rad": Definition(lambda x: x * (math.pi / 180), lambda g, x, y: g * (math.pi / 180), math.radians),
    "digamma": Definition(
        special.digamma, lambda g, x, y: g * _polygamma(1, x), lambda x: special.polygamma(0, x), POSITIVE
    ),
    "erfinv": Definition(
        special.erfinv,
        lambda g, x, y: g * (np.exp(special.erfinv(x) ** 2) * (math.sqrt(math.pi) / 2)),
        lambda x: NormalDist().inv_cdf((x + 1) / 2) / math.sqrt(2),
        (-0.9, 0.9),
    ),
    "i0": Definition(special.i0, lambda g, x, y: g * special.i1(x), lambda x: special.iv(0, x), SMALL),
    "lgamma": Definition(special.gammaln, lambda g, x, y: g * special.digamma(x), math.lgamma, POSITIVE),
    "polygamma": Definition(
        lambda x: _polygamma(1, x), lambda g, x, y: g * _polygamma(2, x), lambda x: special.zeta(2, x), POSITIVE
    ),
    "rad2deg": Definition(lambda x: x * (180 / math.pi), lambda g, x, y: g * (180 / math.pi), math.degrees),
    "sgn": Definition(np.sign, _nothing, lambda x: (x > 0) - (x < 0)),
    "sinc": Definition(_sinc, _sinc_slope, np.sinc),
    "special_entr": Definition(
        lambda x: np.where(x > 0, -(x * np.log(x)), np.where(x == 0, 0, -math.inf)),
        lambda g, x, y: g * -(np.log(x) + 1),
        lambda x: special.entr(x),
        POSITIVE,
    ),
    "special_erfcx": Definition(
        special.erfcx,
        lambda g, x, y: g * (x * 2 * y - 2 / math.sqrt(math.pi)),
        lambda x: math.exp(x * x) * math.erfc(x),
        SMALL,
    ),
    "special_i0e": Definition(
        special.i0e,
        lambda g, x, y: g * (special.i1e(x) - np.sign(x) * y),
        lambda x: special.iv(0, x) * math.exp(-abs(x)),
        SMALL,
    ),
    "special_log_ndtr": Definition(
        special.log_ndtr,
        lambda g, x, y: g / special.erfcx(-x / math.sqrt(2)) * math.sqrt(2 / math.pi),
        lambda x: math.log(math.erfc(-x / math.sqrt(2)) / 2),
        SMALL,
    ),
    "special_ndtri": Definition(
        special.ndtri,
        lambda g, x, y: g * (np.exp(np.square(y) / 2) * math.sqrt(2 * math.pi)),
        NormalDist().inv_cdf,
        (0.1, 0.9),
    ),
    "trunc": Definition(np.trunc, _nothing, math.trunc),
}  # fmt: skip

FROM_RESULT = {
    "celu": lambda g, y: np.where(y > 0, g, g * (y * (1 / SLOPE) + 1)),
    "elu": lambda g, y: np.where(y > 0, g, g * (y + SLOPE)),
    "leaky_relu": lambda g, y: np.where(y > 0, g, SLOPE * g),
    "selu": lambda g, y: np.where(y > 0, g * SELU, g * (y + SELU_SLOPE)),
}
"""The gradient from the result, where it has taken the memory of the input."""


class Pointwise(Kernel):
    """Those of PyTorch's functions that an activation of several layers has ship a kernel; a cube's is beside."""

    table = tuple(DEFINITIONS)

    def case(self, draw: Draw) -> Case:
        shape = tuple(draw(st.lists(sizes, min_size=2, max_size=3)))
        in_place = self.row in FROM_RESULT and (self.row not in FUNCTIONS or draw(st.booleans()))
        return Case(
            self.layer(function=self.row, in_place=in_place, exponent=3 if self.row == "pow" else None),
            [Operand(shape, within=DEFINITIONS[self.row].within)],
        )

    def forward(self, p: Pass) -> Array:
        return super().forward(p) if self.row == "square" else DEFINITIONS[self.row].y(p.x)

    def backward(self, p: Pass, g: Array) -> Gradients:
        if self.row == "square":
            yield from super().backward(p, g)
            return
        if p.kind.in_place:
            yield p.x, FROM_RESULT[self.row](g, p.y)
            return
        keeps = FUNCTIONS[self.row].keeps
        x, y = p.x if keeps in ("input", "both") else None, p.y if keeps in ("output", "both") else None
        yield p.x, DEFINITIONS[self.row].dx(g, x, y)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        y = np.vectorize(DEFINITIONS[self.row].expected, otypes=[float])(x)
        kept = {"tril": np.tril, "triu": lambda y: np.triu(y, 1)}
        return kept[self.row](y) if self.row in kept else y
