"""Kernels of reductions over axes, each row of the table, and of what runs along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from costmodel.layers.reduction import REDUCTIONS
from tests.kernels.counting import Array, zeros
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes

Axes = tuple[int, ...]


class Definition(NamedTuple):
    """y of x over axes; dx from g, what is kept of x and y, the axes and the number of terms; y by another way."""

    y: Callable[[Any, Axes], Any]
    dx: Callable[[Any, Any, Any, Axes, int], Any]
    expected: Callable[[Any, Axes], Any]
    within: tuple[float, float] = (-8, 8)
    least: int = 1


def _product(x: Array, axes: Axes) -> Array:
    return np.multiply.reduce(x, axis=axes, keepdims=True)


def _least(x: Array, axes: Axes) -> Array:
    return np.minimum.reduce(x, axis=axes, keepdims=True)


def _norm(x: Array, axes: Axes) -> Array:
    return np.sqrt((x * x).sum(axes))


def _logsumexp(x: Array, axes: Axes) -> Array:
    largest = x.max(axes)
    return np.log(np.exp(x - largest).sum(axes)) + largest


def _variance(x: Array, axes: Axes) -> Array:
    centred = x - x.mean(axes)
    total = (centred * centred).sum(axes)
    return total / (x.size // total.size - 1)


def _deviation(x: Array, axes: Axes) -> Array:
    return np.sqrt(_variance(x, axes))


def _variance_slope(g: Array, x: Array, y: Array, axes: Axes, terms: int) -> Array:
    return (2 / (terms - 1)) * g * (x - x.mean(axes))


def _deviation_slope(g: Array, x: Array, y: Array, axes: Axes, terms: int) -> Array:
    return g / ((terms - 1) * y) * (x - x.mean(axes))


def _extreme_slope(g: Array, x: Array, y: Array, axes: Axes, terms: int) -> Array:
    return g * (x == y)


def _norm_slope(g: Array, x: Array, y: Array, axes: Axes, terms: int) -> Array:
    return x * (g / y)


LARGEST = Definition(lambda x, axes: x.max(axes), _extreme_slope, lambda x, axes: -np.min(-x, axes))
SMALLEST = Definition(_least, _extreme_slope, lambda x, axes: -np.max(-x, axes))
NORM = Definition(_norm, _norm_slope, lambda x, axes: (x**2).sum(axes) ** 0.5)

DEFINITIONS = {
    "amax": LARGEST,
    "amin": SMALLEST,
    "linalg_vector_norm": NORM,
    "logsumexp": Definition(
        _logsumexp, lambda g, x, y, axes, terms: g * np.exp(x - y), lambda x, axes: np.log(np.exp(x).sum(axes))
    ),
    "max": LARGEST,
    "mean": Definition(
        lambda x, axes: x.mean(axes),
        lambda g, x, y, axes, terms: g / terms,
        lambda x, axes: np.average(x, axes),
    ),
    "min": SMALLEST,
    "nansum": Definition(
        lambda x, axes: np.where(x == x, x, 0).sum(axes),
        lambda g, x, y, axes, terms: g * (x == x),
        lambda x, axes: np.nansum(x, axes),
    ),
    "norm": NORM,
    "prod": Definition(
        _product, lambda g, x, y, axes, terms: g * y / x, lambda x, axes: np.exp(np.log(x).sum(axes)), within=(0.5, 2)
    ),
    "std": Definition(_deviation, _deviation_slope, lambda x, axes: np.std(x, axes, ddof=1), least=2),
    "sum": Definition(
        lambda x, axes: x.sum(axes),
        lambda g, x, y, axes, terms: g,
        lambda x, axes: np.apply_over_axes(np.sum, x, axes),
    ),
    "var": Definition(_variance, _variance_slope, lambda x, axes: np.var(x, axes, ddof=1), least=2),
}


class Reduce(Kernel):
    """Over the axes of which the result has one."""

    table = tuple(DEFINITIONS)

    def case(self, draw: Draw) -> Case:
        least = DEFINITIONS[self.row].least
        shape = draw(st.tuples(*[st.integers(least, 4)] * 3))
        axes = tuple(draw(st.sets(st.integers(0, 2), min_size=1)))
        made = tuple(1 if axis in axes else n for axis, n in enumerate(shape))
        return Case(self.layer(function=self.row, shape=made), [Operand(shape, within=DEFINITIONS[self.row].within)])

    def axes(self, p: Pass) -> Axes:
        return tuple(axis for axis, n in enumerate(p.kind.shape) if n == 1)

    def forward(self, p: Pass) -> Array:
        return DEFINITIONS[self.row].y(p.x, self.axes(p))

    def backward(self, p: Pass, g: Array) -> Gradients:
        keeps = REDUCTIONS[self.row].keeps
        x, y = p.x if "input" in keeps else None, p.y if "output" in keeps else None
        dx = DEFINITIONS[self.row].dx(g, x, y, self.axes(p), p.x.size // p.y.size)
        yield p.x, dx if dx.shape == p.x.shape else np.broadcast_to(dx, p.x.shape)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return np.reshape(DEFINITIONS[self.row].expected(x, self.axes(p)), p.y.shape)


class Trace(Kernel):
    def case(self, draw: Draw) -> Case:
        return Case(self.layer(), [Operand(draw(st.tuples(sizes, sizes)))])

    def forward(self, p: Pass) -> Array:
        places = np.arange(min(p.x.shape))
        return np.add.reduce(p.x[places, places])

    def backward(self, p: Pass, g: Array) -> Gradients:
        dx, places = zeros(p.x.shape, p.tally), np.arange(min(p.x.shape))
        dx[places, places] = g
        yield p.x, dx

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return np.trace(x)


class Cumulate(Kernel):
    """Along the middle one of three axes."""

    def case(self, draw: Draw) -> Case:
        return Case(self.layer(), [Operand(draw(st.tuples(sizes, sizes, sizes)))])

    def run(self, x: Array, order: range) -> Array:
        """Sums of ever more places, in an order."""
        total, found = Array(np.zeros((x.shape[0], x.shape[2])), x.tally), {}
        for place in order:
            total = found[place] = total + x[:, place]
        return np.stack([found[place] for place in range(x.shape[1])], axis=1)

    def forward(self, p: Pass) -> Array:
        return self.run(p.x, range(p.x.shape[1]))

    def backward(self, p: Pass, g: Array) -> Gradients:
        yield p.x, self.run(g, range(p.x.shape[1])[::-1])

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return np.cumsum(x, axis=1)


class Cumprod(Kernel):
    """Along the middle one of three axes, of numbers that are not 0."""

    def case(self, draw: Draw) -> Case:
        return Case(self.layer(), [Operand(draw(st.tuples(sizes, sizes, sizes)), within=(0.5, 2))])

    def forward(self, p: Pass) -> Array:
        total, found = Array(np.ones((p.x.shape[0], p.x.shape[2])), p.x.tally), []
        for place in range(p.x.shape[1]):
            total = total * p.x[:, place]
            found.append(total)
        return np.stack(found, axis=1)

    def backward(self, p: Pass, g: Array) -> Gradients:
        weighted = g * p.y
        total, found = Array(np.zeros((p.x.shape[0], p.x.shape[2])), p.x.tally), {}
        for place in reversed(range(p.x.shape[1])):
            total = found[place] = total + weighted[:, place]
        yield p.x, np.stack([found[place] for place in range(p.x.shape[1])], axis=1) / p.x

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return np.exp(np.cumsum(np.log(x), axis=1))
