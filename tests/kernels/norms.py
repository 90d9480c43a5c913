"""Kernels of normalisations: statistics from the forward pass, x̂ again in backward."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.kernels.counting import Array, accumulated
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes

EPSILON = 1e-5


class Centred(Kernel, abstract=True):
    """x is seen as rows that are normalised over `axes`; weights are spread over it."""

    axes: tuple[int, ...]

    def seen(self, p: Pass, x: Any) -> Any:
        """x, shaped so that `axes` are those of a group."""
        return x

    def spread(self, p: Pass, weight: Array) -> Array:
        """A weight, shaped to broadcast over x."""
        return weight.reshape(-1, *(1 for _ in p.x.shape[2:]))

    def statistics(self, p: Pass, x: Array) -> tuple[Array, Array]:
        """x − μ and σ²."""
        p.kept["mean"] = x.mean(self.axes)
        centred = x - p.kept["mean"]
        return centred, (centred * centred).mean(self.axes)

    def forward(self, p: Pass) -> Array:
        x = self.seen(p, p.x)
        centred, variance = self.statistics(p, x)
        p.kept["inverse"] = np.reciprocal(np.sqrt(variance + EPSILON))
        y = (centred * p.kept["inverse"]).reshape(*p.x.shape)
        if "weight" in p.weights:
            y = y * self.spread(p, p.weights["weight"])
        return y + self.spread(p, p.weights["bias"]) if "bias" in p.weights else y

    def normalised(self, p: Pass) -> Array:
        """x̂."""
        return (self.seen(p, p.x) - p.kept["mean"]) * p.kept["inverse"]

    def backward(self, p: Pass, g: Array) -> Gradients:
        normalised = self.normalised(p)
        if p.input_needs_gradient:
            h = g * self.spread(p, p.weights["weight"]) if "weight" in p.weights else g
            yield p.x, self.input_gradient(p, self.seen(p, h), normalised).reshape(*p.x.shape)
        for name, weight in p.weights.items():
            terms = g * normalised.reshape(*p.x.shape) if name == "weight" else g
            spread = self.spread(p, weight)
            yield weight, accumulated(terms, spread.shape).reshape(*weight.shape)

    def input_gradient(self, p: Pass, h: Array, normalised: Array) -> Array:
        """dx from h = g·w."""
        projection = (h * normalised).mean(self.axes)
        return (h - h.mean(self.axes) - normalised * projection) * p.kept["inverse"]

    def reference(self, p: Pass, x: np.ndarray, **weights: np.ndarray) -> np.ndarray:
        seen = self.seen(p, x)
        variance = (seen**2).mean(self.axes, keepdims=True) - seen.mean(self.axes, keepdims=True) ** 2
        y = ((seen - seen.mean(self.axes, keepdims=True)) / np.sqrt(variance + EPSILON)).reshape(x.shape)
        return self.affine(p, y, **weights)

    def affine(self, p: Pass, y: Any, weight: Any = None, bias: Any = None) -> Any:
        """y·w + b, uncounted."""
        return y * (1 if weight is None else self.spread(p, weight)) + (0 if bias is None else self.spread(p, bias))


class Layernorm(Centred):
    axes = (-1,)

    def case(self, draw: Draw) -> Case:
        shape = tuple(draw(st.lists(sizes, min_size=1, max_size=3)))
        heads = shape[-2] if len(shape) > 1 and draw(st.booleans()) else None
        return Case(self.layer(affine=draw(st.booleans()), bias=draw(st.booleans()), heads=heads), [Operand(shape)])

    def spread(self, p: Pass, weight: Array) -> Array:
        return weight


class Rmsnorm(Layernorm):
    def case(self, draw: Draw) -> Case:
        shape = tuple(draw(st.lists(sizes, min_size=1, max_size=3)))
        return Case(self.layer(affine=draw(st.booleans())), [Operand(shape)])

    def statistics(self, p: Pass, x: Array) -> tuple[Array, Array]:
        return x, (x * x).mean(self.axes)

    def normalised(self, p: Pass) -> Array:
        return p.x * p.kept["inverse"]

    def input_gradient(self, p: Pass, h: Array, normalised: Array) -> Array:
        return (h - normalised * (h * normalised).mean(self.axes)) * p.kept["inverse"]

    def reference(self, p: Pass, x: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
        length = np.linalg.norm(x, axis=-1, keepdims=True) / np.sqrt(x.shape[-1])
        return x / np.hypot(length, np.sqrt(EPSILON)) * (1 if weight is None else weight)


class Groupnorm(Centred):
    axes = (2, 3)

    def case(self, draw: Draw) -> Case:
        groups, members = draw(sizes), draw(sizes)
        shape = (draw(sizes), groups * members, *draw(st.lists(sizes, max_size=2)))
        return Case(self.layer(groups=groups, affine=draw(st.booleans())), [Operand(shape)])

    def seen(self, p: Pass, x: Any) -> Any:
        groups = p.kind.groups
        return x.reshape(x.shape[0], groups, x.shape[1] // groups, -1)


class Batchnorm(Centred):
    axes = (0, 2)

    def case(self, draw: Draw) -> Case:
        shape = (draw(st.integers(2, 4)), draw(sizes), *draw(st.lists(sizes, max_size=2)))
        return Case(self.layer(affine=draw(st.booleans())), [Operand(shape)])

    def seen(self, p: Pass, x: Any) -> Any:
        return x.reshape(*x.shape[:2], -1)

    def statistics(self, p: Pass, x: Array) -> tuple[Array, Array]:
        running = [p.buffers[name].reshape(1, -1, 1) for name in ("running_mean", "running_var")]
        if not p.training:
            return x - running[0], running[1]
        centred, variance = super().statistics(p, x)
        count = x.size // x.shape[1]
        for old, new in zip(running, (p.kept["mean"], variance * (count / (count - 1))), strict=True):
            old.values[...] = ((1 - 0.1) * old + 0.1 * new).values
        return centred, variance

    def reference(self, p: Pass, x: np.ndarray, **weights: np.ndarray) -> np.ndarray:
        if p.training:
            return super().reference(p, x, **weights)
        mean, variance = (self.spread(p, p.buffers[name].values) for name in ("running_mean", "running_var"))
        return self.affine(p, (x - mean) / np.sqrt(variance + EPSILON), **weights)


class BatchnormUntracked(Batchnorm):
    def statistics(self, p: Pass, x: Array) -> tuple[Array, Array]:
        return Centred.statistics(self, p, x)

    def reference(self, p: Pass, x: np.ndarray, **weights: np.ndarray) -> np.ndarray:
        return Centred.reference(self, p, x, **weights)


class BatchnormFixed(Batchnorm):
    """The running statistics, in training too; their root is made again in backward."""

    def running(self, p: Pass) -> tuple[Array, Array]:
        """μ and 1/√(σ² + ε), shaped to broadcast over x."""
        mean, variance = (self.spread(p, p.buffers[name]) for name in ("running_mean", "running_var"))
        return mean, np.reciprocal(np.sqrt(variance + EPSILON))

    def forward(self, p: Pass) -> Array:
        mean, inverse = self.running(p)
        y = (p.x - mean) * inverse
        if "weight" in p.weights:
            y = y * self.spread(p, p.weights["weight"])
        return y + self.spread(p, p.weights["bias"]) if "bias" in p.weights else y

    def backward(self, p: Pass, g: Array) -> Gradients:
        mean, inverse = self.running(p)
        if p.input_needs_gradient:
            yield p.x, (g * self.spread(p, p.weights["weight"]) if p.kind.affine else g) * inverse
        for name, weight in p.weights.items():
            terms = g * ((p.x - mean) * inverse) if name == "weight" else g
            yield weight, accumulated(terms, self.spread(p, weight).shape).reshape(*weight.shape)

    def reference(self, p: Pass, x: np.ndarray, **weights: np.ndarray) -> np.ndarray:
        mean, variance = (self.spread(p, p.buffers[name].values) for name in ("running_mean", "running_var"))
        return self.affine(p, (x - mean) / np.sqrt(variance + EPSILON), **weights)
