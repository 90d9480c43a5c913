"""Kernels of activation functions: the plain formulas of their docstrings, in that order of operations."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import ClassVar

import numpy as np
from hypothesis import strategies as st

from tests.kernels.counting import Array, erf
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes


class Activation(Kernel, abstract=True):
    settings: ClassVar[dict[str, st.SearchStrategy[float]]] = {}

    def case(self, draw: Draw) -> Case:
        shape = tuple(draw(st.lists(sizes, min_size=1, max_size=3)))
        return Case(self.layer(**{name: draw(values) for name, values in self.settings.items()}), [Operand(shape)])


class Relu(Activation):
    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return (x + abs(x)) / 2


class LeakyRelu(Activation):
    settings: ClassVar = {"slope": st.floats(0, 2)}

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return x.clip(0) + p.kind.slope * x.clip(max=0)


class Elu(Activation):
    settings: ClassVar = {"alpha": st.floats(0.1, 2)}

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return x.clip(0) + p.kind.alpha * np.expm1(x.clip(max=0))


class Gelu(Activation):
    def forward(self, p: Pass) -> Array:
        return p.x * (1 / 2) * (1 + erf(p.x * (1 / math.sqrt(2))))

    def backward(self, p: Pass, g: Array) -> Gradients:
        cumulative = (1 + erf(p.x * (1 / math.sqrt(2)))) * (1 / 2)
        density = 1 / math.sqrt(2 * math.pi) * np.exp(p.x * p.x * (-1 / 2))
        yield p.x, g * (cumulative + p.x * density)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return x * np.vectorize(NormalDist().cdf)(x)


class GeluTanh(Activation):
    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


class Silu(Activation):
    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return x / 2 * (1 + np.tanh(x / 2))


class Sigmoid(Activation):
    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return (1 + np.tanh(x / 2)) / 2


class Tanh(Activation):
    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return np.sinh(x) / np.cosh(x)


class HardSwish(Activation):
    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return np.select([x <= -3, x < 3], [0 * x, x**2 / 6 + x / 2], x)


class HardSigmoid(Activation):
    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return np.interp(x, [-3, 3], [0, 1])


class Relu6(Activation):
    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return x.clip(0, 6)


class ParametricRelu(Activation):
    def case(self, draw: Draw) -> Case:
        shape = tuple(draw(st.lists(sizes, min_size=2, max_size=4)))
        return Case(self.layer(slopes=shape[1:2] if draw(st.booleans()) else (1,)), [Operand(shape)])

    def reference(self, p: Pass, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        slopes = np.broadcast_to(weight, x.shape[1])
        return x.clip(0) + np.einsum("c,bc...->bc...", slopes, x.clip(max=0))


class Xielu(Activation):
    def reference(self, p: Pass, x: np.ndarray, positive: np.ndarray, negative: np.ndarray) -> np.ndarray:
        above, below = np.logaddexp(0, positive), 0.5 + np.logaddexp(0, negative)
        return np.where(x > 0, above * x**2, below * (np.expm1(np.minimum(x, -1e-6)) - x)) + x / 2


class Gated(Activation):
    """Halves of the last axis."""

    def case(self, draw: Draw) -> Case:
        *rest, half = draw(st.lists(sizes, min_size=1, max_size=3))
        return Case(self.layer(shape=(*rest, half)), [Operand((*rest, 2 * half))])

    def forward(self, p: Pass) -> Array:
        half = p.kind.shape[-1]
        return p.x[..., :half] * _sigmoid(p.x[..., half:])

    def backward(self, p: Pass, g: Array) -> Gradients:
        half = p.kind.shape[-1]
        a, gate = p.x[..., :half], _sigmoid(p.x[..., half:])
        yield p.x, np.concatenate([g * gate, g * a * gate * (1 - gate)], -1)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        a, b = np.split(x, 2, axis=-1)
        return a / 2 * (1 + np.tanh(b / 2))


class RandomizedRelu(Kernel):
    """As in training, with 1 among the numbers wherever x is positive; else with one slope for all."""

    def case(self, draw: Draw) -> Case:
        shape = (draw(sizes), draw(sizes))
        layer = self.layer(training=draw(st.booleans()))
        return Case(layer, [Operand(shape), Operand(shape, constant=True, within=(0.1, 0.4))])

    def forward(self, p: Pass) -> Array:
        slopes = p.inputs[1].values if p.kind.training else 0.25
        return np.where(p.x > 0, p.x, p.x * slopes)

    def backward(self, p: Pass, g: Array) -> Gradients:
        if p.kind.training:
            yield p.x, g * np.where(p.x.values > 0, 1.0, p.inputs[1].values)
        else:
            yield p.x, np.where(p.x > 0, g, g * 0.25)

    def reference(self, p: Pass, x: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        return x.clip(0) + (slopes if p.kind.training else 0.25) * x.clip(max=0)


class FakeQuantize(Kernel):
    """The gradient is that of x itself where it is in range, as the forward pass takes it where levels are fine."""

    def case(self, draw: Draw) -> Case:
        return Case(self.layer(observed=draw(st.booleans())), [Operand((draw(sizes), draw(sizes)))])

    def forward(self, p: Pass) -> Array:
        if p.kind.observed:
            p.saved["range"] = np.minimum(p.x, 0.0), np.maximum(p.x, 0.0)
        levels = np.minimum(np.maximum(_to_levels(p.x * 1e3) + 3.0, -3e3), 5e3)
        return (levels - 3.0) * 1e-3

    def backward(self, p: Pass, g: Array) -> Gradients:
        levels = p.x.values * 1e3 + 3
        yield p.x, np.where(np.logical_and(levels >= -3e3, levels <= 5e3), g, 0.0)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return x.clip(-3.003, 4.997)


def _to_levels(x: Array) -> Array:
    """A rounding, whose gradient is taken for one, and which leaves numbers as they are."""
    x.tally.pointwise += x.size
    return x
