"""Kernels of normalisations: statistics from the forward pass, x̂ again in backward."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes

EPSILON = 1e-5


class Centred(Kernel, abstract=True):
    """x is seen as rows that are normalised over `axes`; weights are spread over it."""

    axes: tuple[int, ...]

    def seen(self, p: Pass, x: Any) -> Any:
        """x, shaped so that `axes` are those of a group."""
        return x

    def spread(self, p: Pass, weight: Any) -> Any:
        """A weight, shaped to broadcast over x."""
        return weight.reshape(-1, *(1 for _ in p.x.shape[2:]))

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

    def spread(self, p: Pass, weight: Any) -> Any:
        return weight


class Rmsnorm(Layernorm):
    def case(self, draw: Draw) -> Case:
        shape = tuple(draw(st.lists(sizes, min_size=1, max_size=3)))
        return Case(self.layer(affine=draw(st.booleans())), [Operand(shape)])

    def reference(self, p: Pass, x: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
        length = np.linalg.norm(x, axis=-1, keepdims=True) / np.sqrt(x.shape[-1])
        return x / np.hypot(length, np.sqrt(EPSILON)) * (1 if weight is None else weight)


class Groupnorm(Centred):
    axes = (2, 3)

    def case(self, draw: Draw) -> Case:
        groups, members = draw(sizes), draw(sizes)
        shape = (draw(sizes), groups * members, *draw(st.lists(sizes, max_size=2)))
        return Case(self.layer(groups=groups, affine=draw(st.booleans()), bias=draw(st.booleans())), [Operand(shape)])

    def seen(self, p: Pass, x: Any) -> Any:
        groups = p.kind.groups
        return x.reshape(x.shape[0], groups, x.shape[1] // groups, -1)


class Batchnorm(Centred):
    axes = (0, 2)

    def case(self, draw: Draw) -> Case:
        shape = (draw(st.integers(2, 4)), draw(sizes), *draw(st.lists(sizes, max_size=2)))
        return Case(self.layer(affine=draw(st.booleans()), bias=draw(st.booleans())), [Operand(shape)])

    def seen(self, p: Pass, x: Any) -> Any:
        return x.reshape(*x.shape[:2], -1)

    def reference(self, p: Pass, x: np.ndarray, **weights: np.ndarray) -> np.ndarray:
        if p.training:
            return super().reference(p, x, **weights)
        mean, variance = (self.spread(p, p.buffers[name].values) for name in ("running_mean", "running_var"))
        return self.affine(p, (x - mean) / np.sqrt(variance + EPSILON), **weights)


class BatchnormUntracked(Batchnorm):
    def reference(self, p: Pass, x: np.ndarray, **weights: np.ndarray) -> np.ndarray:
        return Centred.reference(self, p, x, **weights)


class BatchnormFixed(Batchnorm):
    """The running statistics, in training too."""

    def reference(self, p: Pass, x: np.ndarray, **weights: np.ndarray) -> np.ndarray:
        mean, variance = (self.spread(p, p.buffers[name].values) for name in ("running_mean", "running_var"))
        return self.affine(p, (x - mean) / np.sqrt(variance + EPSILON), **weights)


class Renorm(Kernel):
    """To a norm of 4, which some slices are below."""

    def case(self, draw: Draw) -> Case:
        return Case(self.layer(), [Operand((draw(sizes), draw(sizes)), within=(-4, 4))])

    def _norms(self, x: Any) -> Any:
        return np.sqrt((x * x).sum(1))

    def forward(self, p: Pass) -> Any:
        norms = self._norms(p.x)
        return p.x * np.where(norms > 4, 4 / norms, 1)

    def backward(self, p: Pass, g: Any) -> Gradients:
        x, norms = p.x, self._norms(p.x)
        along = (g * x).sum(1) / (norms * norms)
        yield x, np.where(norms > 4, (g - x * along) * (4 / norms), g)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return x * np.minimum(1, 4 / np.linalg.norm(x, axis=1, keepdims=True))
