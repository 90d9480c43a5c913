"""Kernels of activation functions: the plain formulas of their docstrings, in that order of operations."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import ClassVar

import numpy as np
from hypothesis import strategies as st

from tests.kernels.counting import Array, accumulated, erf
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes


class Activation(Kernel, abstract=True):
    settings: ClassVar[dict[str, st.SearchStrategy[float]]] = {}

    def case(self, draw: Draw) -> Case:
        shape = tuple(draw(st.lists(sizes, min_size=1, max_size=3)))
        return Case(self.layer(**{name: draw(values) for name, values in self.settings.items()}), [Operand(shape)])


class Relu(Activation):
    def forward(self, p: Pass) -> Array:
        return np.maximum(p.x, 0)

    def backward(self, p: Pass, g: Array) -> Gradients:
        yield p.x, g * (p.y > 0)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return (x + abs(x)) / 2


class LeakyRelu(Activation):
    settings: ClassVar = {"slope": st.floats(0, 2)}

    def forward(self, p: Pass) -> Array:
        return p.x * np.where(p.x > 0, 1, p.kind.slope)

    def backward(self, p: Pass, g: Array) -> Gradients:
        yield p.x, g * np.where(p.x > 0, 1, p.kind.slope)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return x.clip(0) + p.kind.slope * x.clip(max=0)


class Elu(Activation):
    settings: ClassVar = {"alpha": st.floats(0.1, 2)}

    def forward(self, p: Pass) -> Array:
        return np.where(p.x > 0, p.x, p.kind.alpha * (np.exp(p.x) - 1))

    def backward(self, p: Pass, g: Array) -> Gradients:
        yield p.x, g * np.where(p.x > 0, 1, p.kind.alpha * np.exp(p.x))

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
    def forward(self, p: Pass) -> Array:
        u = math.sqrt(2 / math.pi) * (p.x + 0.044715 * (p.x * p.x * p.x))
        return p.x * (1 / 2) * (1 + np.tanh(u))

    def backward(self, p: Pass, g: Array) -> Gradients:
        squares = p.x * p.x
        t = np.tanh(math.sqrt(2 / math.pi) * (p.x + 0.044715 * (squares * p.x)))
        slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * squares)
        yield p.x, g * ((1 + t) * (1 / 2) + p.x * (1 / 2) * (1 - t * t) * slope)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


class Silu(Activation):
    def forward(self, p: Pass) -> Array:
        return p.x * _sigmoid(p.x)

    def backward(self, p: Pass, g: Array) -> Gradients:
        s = _sigmoid(p.x)
        yield p.x, g * s * (1 + p.x * (1 - s))

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return x / 2 * (1 + np.tanh(x / 2))


class Sigmoid(Activation):
    def forward(self, p: Pass) -> Array:
        return _sigmoid(p.x)

    def backward(self, p: Pass, g: Array) -> Gradients:
        yield p.x, g * p.y * (1 - p.y)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return (1 + np.tanh(x / 2)) / 2


class Tanh(Activation):
    def forward(self, p: Pass) -> Array:
        return np.tanh(p.x)

    def backward(self, p: Pass, g: Array) -> Gradients:
        yield p.x, g * (1 - p.y * p.y)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return np.sinh(x) / np.cosh(x)


class HardSwish(Activation):
    def forward(self, p: Pass) -> Array:
        return p.x * np.minimum(np.maximum(p.x + 3, 0), 6) / 6

    def backward(self, p: Pass, g: Array) -> Gradients:
        inner = np.where(p.x < 3, p.x / 3 + 1 / 2, 1)
        yield p.x, g * np.where(p.x > -3, inner, 0)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return np.select([x <= -3, x < 3], [0 * x, x**2 / 6 + x / 2], x)


class HardSigmoid(Activation):
    def forward(self, p: Pass) -> Array:
        return np.minimum(np.maximum(p.x + 3, 0), 6) / 6

    def backward(self, p: Pass, g: Array) -> Gradients:
        yield p.x, g * (1 / 6) * np.logical_and(p.x > -3, p.x < 3)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return np.interp(x, [-3, 3], [0, 1])


class Relu6(Activation):
    def forward(self, p: Pass) -> Array:
        return np.minimum(np.maximum(p.x, 0), 6)

    def backward(self, p: Pass, g: Array) -> Gradients:
        yield p.x, g * np.logical_and(p.x > 0, p.x < 6)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return x.clip(0, 6)


class Prelu(Activation):
    def case(self, draw: Draw) -> Case:
        shape = draw(st.tuples(sizes, sizes))
        return Case(self.layer(slopes=shape[1:] if draw(st.booleans()) else (1,)), [Operand(shape)])

    def forward(self, p: Pass) -> Array:
        return np.where(p.x > 0, p.x, p.x * p.weights["weight"])

    def backward(self, p: Pass, g: Array) -> Gradients:
        positive, slopes = p.x > 0, p.weights["weight"]
        if p.input_needs_gradient:
            yield p.x, g * np.where(positive, 1, slopes)
        yield slopes, accumulated(np.where(positive, 0, g * p.x), slopes.shape)

    def reference(self, p: Pass, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x.clip(0) + weight * x.clip(max=0)


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
