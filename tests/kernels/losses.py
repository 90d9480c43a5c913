"""Kernels of losses. What is differentiated is the loss itself: the incoming gradient is the constant 1."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.kernels.counting import Array, accumulated, add_product, zeros
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


class FusedLinearCrossEntropy(Kernel):
    def case(self, draw: Draw) -> Case:
        shape = tuple(draw(st.lists(sizes, min_size=1, max_size=3)))
        features, bias = draw(sizes), draw(st.booleans())
        chunks = draw(st.integers(1, int(np.prod(shape[:-1]))))
        target = Operand(shape[:-1], "index", below=features)
        return Case(self.layer(features=features, bias=bias, chunks=chunks), [Operand(shape), target])

    def forward(self, p: Pass) -> Array:
        x, targets = p.x.reshape(-1, p.x.shape[-1]), p.inputs[1].values.reshape(-1)
        gradients = p.kept["gradients"] = {name: zeros(w.shape, p.tally) for name, w in p.weights.items()}
        dx = gradients["x"] = zeros(x.shape, p.tally)
        size = -(-len(targets) // p.kind.chunks)
        likelihoods = []
        for start in range(0, len(targets), size):
            chunk = slice(start, start + size)
            log_softmax = self.log_softmax(p, x[chunk])
            likelihoods.append(np.take_along_axis(log_softmax, targets[chunk, None], 1))
            if p.training:
                self.add_gradients(p, log_softmax, x[chunk], dx[chunk], targets[chunk])
        return np.concatenate(likelihoods).sum(None, keepdims=False) / -targets.size

    def log_softmax(self, p: Pass, x: Array) -> Array:
        logits = x @ np.swapaxes(p.weights["weight"], 0, 1)
        logits = logits + p.weights["bias"] if p.kind.bias else logits
        shifted = logits - logits.max(1)
        return shifted - np.log(np.exp(shifted).sum(1))

    def add_gradients(self, p: Pass, log_softmax: Array, x: Array, dx: Array, targets: np.ndarray) -> None:
        hits = (np.arange(p.kind.features) == targets[:, None]).astype(float)
        g = (np.exp(log_softmax) - hits) * (1 / p.inputs[1].size)
        gradients = p.kept["gradients"]
        if p.input_needs_gradient:
            add_product(dx, g, p.weights["weight"])
        add_product(gradients["weight"], np.swapaxes(g, 0, 1), x)
        if p.kind.bias:
            gradients["bias"].values += accumulated(g, gradients["bias"].shape).values

    def backward(self, p: Pass, g: Array) -> Gradients:
        gradients = p.kept["gradients"]
        if p.input_needs_gradient:
            yield p.x, gradients["x"].reshape(*p.x.shape) * g
        for name, weight in p.weights.items():
            yield weight, gradients[name] * g

    def reference(
        self, p: Pass, x: np.ndarray, target: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None
    ) -> np.ndarray:
        logits = np.einsum("...i,oi->...o", x, weight) + (0 if bias is None else bias)
        likelihood = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        return -np.log(np.take_along_axis(likelihood, target[..., None], -1)).mean()
