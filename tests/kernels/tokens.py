"""Kernels of trained vectors that join a sequence of tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.kernels.counting import Array, accumulated
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes


class Prepend(Kernel):
    def case(self, draw: Draw) -> Case:
        return Case(self.layer(tokens=draw(sizes)), [Operand(draw(st.tuples(sizes, sizes, sizes)))])

    def forward(self, p: Pass) -> Array:
        first = [np.repeat(weight, p.x.shape[0], axis=0) for weight in p.weights.values()]
        return np.concatenate([*first, p.x], axis=1)

    def backward(self, p: Pass, g: Array) -> Gradients:
        if p.input_needs_gradient:
            yield p.x, g[:, len(p.weights) :]
        for n, weight in enumerate(p.weights.values()):
            yield weight, accumulated(g[:, n : n + 1], weight.shape)

    def reference(self, p: Pass, x: np.ndarray, **weights: np.ndarray) -> np.ndarray:
        return np.array([[*(w[0, 0] for w in weights.values()), *sample] for sample in x])


class Positions(Kernel, abstract=True):
    def case(self, draw: Draw) -> Case:
        return Case(self.layer(), [Operand(draw(st.tuples(sizes, sizes, sizes)))])

    def forward(self, p: Pass) -> Array:
        return p.x + p.weights["weight"]

    def backward(self, p: Pass, g: Array) -> Gradients:
        if p.input_needs_gradient:
            yield p.x, g
        if not p.kind.fixed:
            yield p.weights["weight"], accumulated(g, p.weights["weight"].shape)

    def reference(self, p: Pass, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return np.stack([sample - (-weight[0]) for sample in x])


class TrainedPositions(Positions):
    pass


class FixedPositions(Positions):
    pass
