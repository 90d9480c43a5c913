"""Kernels of losses. What is differentiated is the loss itself: the incoming gradient is the constant 1."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.kernels.counting import Array
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes


class CrossEntropy(Kernel):
    def case(self, draw: Draw) -> Case:
        batch, classes, *rest = draw(st.lists(sizes, min_size=2, max_size=4))
        target = Operand((batch, *rest), "index", below=classes)
        return Case(self.layer(), [Operand((batch, classes, *rest)), target])

    def forward(self, p: Pass) -> Array:
        shifted = p.x - p.x.max(1)
        p.kept["log_softmax"] = shifted - np.log(np.exp(shifted).sum(1))
        chosen = np.take_along_axis(p.kept["log_softmax"], p.inputs[1].values[:, None], 1)
        return chosen.sum(None, keepdims=False) / -chosen.size

    def backward(self, p: Pass, g: Array) -> Gradients:
        classes = np.arange(p.x.shape[1]).reshape(1, -1, *(1 for _ in p.x.shape[2:]))
        targets = (classes == p.inputs[1].values[:, None]).astype(float)
        yield p.x, (np.exp(p.kept["log_softmax"]) - targets) * (1 / p.inputs[1].size)

    def reference(self, p: Pass, x: np.ndarray, target: np.ndarray) -> np.ndarray:
        likelihood = np.exp(x) / np.exp(x).sum(1, keepdims=True)
        return -np.log(np.take_along_axis(likelihood, target[:, None], 1)).mean()


class MeanSquaredError(Kernel):
    def case(self, draw: Draw) -> Case:
        shape = tuple(draw(st.lists(sizes, min_size=1, max_size=3)))
        return Case(self.layer(), [Operand(shape), Operand(shape, constant=True)])

    def forward(self, p: Pass) -> Array:
        difference = p.x - p.inputs[1]
        return (difference * difference).mean(None, keepdims=False)

    def backward(self, p: Pass, g: Array) -> Gradients:
        yield p.x, (p.x - p.inputs[1]) * (2 / p.x.size)

    def reference(self, p: Pass, x: np.ndarray, target: np.ndarray) -> np.ndarray:
        return np.linalg.norm(x - target) ** 2 / x.size
