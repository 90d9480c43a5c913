"""Kernels of losses. What is differentiated is the loss itself: the incoming gradient is the constant 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from tests.kernels.counting import Array, accumulated, add_product, zeros
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes


class CrossEntropy(Kernel):
    def case(self, draw: Draw) -> Case:
        batch, classes, *rest = draw(st.lists(sizes, min_size=2, max_size=4))
        target = Operand((batch, *rest), "index", below=classes)
        layer = self.layer(smoothing=draw(st.sampled_from([0.0, 0.1, 0.5])))
        return Case(layer, [Operand((batch, classes, *rest)), target])

    def forward(self, p: Pass) -> Array:
        shifted = p.x - p.x.max(1)
        p.saved["log_softmax"] = shifted - np.log(np.exp(shifted).sum(1))
        chosen = np.take_along_axis(p.saved["log_softmax"], p.inputs[1].values[:, None], 1)
        total, share = chosen.sum(None, keepdims=False) / -chosen.size, p.kind.smoothing
        if not share:
            return total
        every = p.saved["log_softmax"].sum(None, keepdims=False) / -p.x.size
        return total * (1 - share) + every * share

    def backward(self, p: Pass, g: Array) -> Gradients:
        classes = np.arange(p.x.shape[1]).reshape(1, -1, *(1 for _ in p.x.shape[2:]))
        targets = (classes == p.inputs[1].values[:, None]).astype(float)
        targets = targets * (1 - p.kind.smoothing) + p.kind.smoothing / p.x.shape[1]
        yield p.x, (np.exp(p.saved["log_softmax"]) - targets) * (1 / p.inputs[1].size)

    def reference(self, p: Pass, x: np.ndarray, target: np.ndarray) -> np.ndarray:
        likelihood = np.exp(x) / np.exp(x).sum(1, keepdims=True)
        wanted, share = -np.log(np.take_along_axis(likelihood, target[:, None], 1)).mean(), p.kind.smoothing
        return (1 - share) * wanted - share * np.log(likelihood).mean()


class MeanSquaredError(Kernel):
    def case(self, draw: Draw) -> Case:
        shape = tuple(draw(st.lists(sizes, min_size=1, max_size=3)))
        return Case(self.layer(), [Operand(shape), Operand(shape, constant=True)])

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
        gradients = p.saved["gradients"] = {name: zeros(w.shape, p.tally) for name, w in p.weights.items()}
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
        gradients = p.saved["gradients"]
        if p.input_needs_gradient:
            add_product(dx, g, p.weights["weight"])
        add_product(gradients["weight"], np.swapaxes(g, 0, 1), x)
        if p.kind.bias:
            gradients["bias"].values += accumulated(g, gradients["bias"].shape).values

    def backward(self, p: Pass, g: Array) -> Gradients:
        gradients = p.saved["gradients"]
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


EDGE = 0.7


class Definition(NamedTuple):
    """The loss of each element from x and target, gradients of both from g, the loss by another way; where they lie."""

    loss: Callable[[Any, Any], Any]
    dx: Callable[[Any, Any, Any], Any]
    dt: Callable[[Any, Any, Any], Any]
    expected: Callable[[Any, Any], Any]
    within: tuple[float, float] = (-3, 3)


def _soft_slope(g: Array, x: Array, t: Array, other: Array) -> Array:
    z = np.exp(-x * t)
    return g * (-other * z / (1 + z))


def _huber(x: Array, t: Array) -> Array:
    d = x - t
    far = np.absolute(d)
    return np.where(far <= EDGE, d * d * (1 / 2), EDGE * (far - EDGE / 2))


def _smooth(x: Array, t: Array) -> Array:
    d = x - t
    far = np.absolute(d)
    return np.where(far < EDGE, d * d * (1 / (2 * EDGE)), far - EDGE / 2)


def _bounded(d: Array, bound: float) -> Array:
    return np.minimum(np.maximum(d, -bound), bound)


def _huber_by_parts(x: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The area under min(|d|, δ)."""
    near = np.minimum(abs(x - t), EDGE)
    return near**2 / 2 + EDGE * (abs(x - t) - near)


DEFINITIONS = {
    "binary_cross_entropy": Definition(
        lambda x, t: (t - 1) * np.log(1 - x) - t * np.log(x),
        lambda g, x, t: g * (x - t) / ((1 - x) * x),
        lambda g, x, t: g * (np.log(1 - x) - np.log(x)),
        lambda x, t: -np.log(x**t * (1 - x) ** (1 - t)),
        (0.05, 0.95),
    ),
    "binary_cross_entropy_with_logits": Definition(
        lambda x, t: (1 - t) * x + np.log(1 + np.exp(-x)),
        lambda g, x, t: g * (1 / (1 + np.exp(-x)) - t),
        lambda g, x, t: -x * g,
        lambda x, t: np.logaddexp(0, x) - t * x,
    ),
    "huber_loss": Definition(
        _huber,
        lambda g, x, t: g * _bounded(x - t, EDGE),
        lambda g, x, t: g * _bounded(t - x, EDGE),
        _huber_by_parts,
    ),
    "soft_margin_loss": Definition(
        lambda x, t: np.log(1 + np.exp(-x * t)),
        lambda g, x, t: _soft_slope(g, x, t, t),
        lambda g, x, t: _soft_slope(g, x, t, x),
        lambda x, t: np.logaddexp(0, -x * t),
    ),
    "kl_div": Definition(
        lambda x, t: t * (np.log(t) - x),
        lambda g, x, t: -t * g,
        lambda g, x, t: g * (np.log(t) - x + 1),
        lambda x, t: np.log(t**t) - t * x,
        (0.05, 0.95),
    ),
    "mse_loss": Definition(
        lambda x, t: np.square(x - t),
        lambda g, x, t: g * (2 * (x - t)),
        lambda g, x, t: g * (2 * (t - x)),
        lambda x, t: x**2 - 2 * x * t + t**2,
    ),
    "smooth_l1_loss": Definition(
        _smooth,
        lambda g, x, t: g * _bounded((x - t) / EDGE, 1),
        lambda g, x, t: g * _bounded((t - x) / EDGE, 1),
        lambda x, t: _huber_by_parts(x, t) / EDGE,
    ),
}


class Compared(Kernel):
    table = tuple(DEFINITIONS)

    def case(self, draw: Draw) -> Case:
        shape = tuple(draw(st.lists(sizes, min_size=1, max_size=3)))
        layer = self.layer(function=self.row, reduction=draw(st.sampled_from(["none", "mean", "sum"])))
        x = Operand(shape, within=DEFINITIONS[self.row].within)
        return Case(
            layer, draw(st.sampled_from([[x, x], [x, x._replace(constant=True)], [x._replace(constant=True), x]]))
        )

    def forward(self, p: Pass) -> Array:
        each = DEFINITIONS[self.row].loss(*p.inputs)
        if p.kind.reduction == "none":
            return each
        return each.mean(None, keepdims=False) if p.kind.reduction == "mean" else each.sum(None, keepdims=False)

    def backward(self, p: Pass, g: Array) -> Gradients:
        if p.kind.reduction == "mean":
            g = g / p.x.size
        for x, slope in zip(p.inputs, DEFINITIONS[self.row][1:3], strict=True):
            if p.needs(x):
                yield x, slope(g, *p.inputs)

    def reference(self, p: Pass, x: np.ndarray, target: np.ndarray) -> np.ndarray:
        each = DEFINITIONS[self.row].expected(x, target)
        return {"none": each, "mean": np.average(each), "sum": np.sum(each)}[p.kind.reduction]


class NllLoss(Kernel):
    """The mean, or each row's."""

    def case(self, draw: Draw) -> Case:
        rows, classes = draw(sizes), draw(sizes)
        layer = self.layer(shape=(rows,) if draw(st.booleans()) else ())
        return Case(layer, [Operand((rows, classes)), Operand((rows,), "index", below=classes)])

    def forward(self, p: Pass) -> Array:
        chosen = np.take_along_axis(p.x, p.inputs[1].values[:, None], 1).reshape(-1)
        return -chosen if p.kind.shape else chosen.sum(None, keepdims=False) / -chosen.size

    def backward(self, p: Pass, g: Array) -> Gradients:
        """A row's share is a constant that weights of classes may make another."""
        rows = p.x.shape[0]
        slopes = g * np.full(rows, -1.0 if p.kind.shape else -1 / rows)
        dx = zeros(p.x.shape, p.tally)
        dx[np.arange(rows), p.inputs[1].values] = slopes
        yield p.x, dx

    def reference(self, p: Pass, x: np.ndarray, target: np.ndarray) -> np.ndarray:
        rows = -np.einsum("rc,rc->r", x, np.eye(x.shape[1])[target])
        return rows if p.kind.shape else rows.mean()


class ClassMargin(Kernel):
    """The mean, or each row's, of sums or sums of squares, perhaps weighed by the class."""

    def case(self, draw: Draw) -> Case:
        rows, classes = draw(sizes), draw(sizes) + 1
        layer = self.layer(shape=(rows,) if draw(st.booleans()) else (), squared=draw(st.booleans()))
        weights = [Operand((classes,), constant=True)] if draw(st.booleans()) else []
        return Case(layer, [Operand((rows, classes)), Operand((rows,), "index", below=classes), *weights])

    def _weighed(self, p: Pass, rows: Array) -> Array:
        return rows * p.inputs[2][p.inputs[1].values] if len(p.inputs) > 2 else rows

    def _beyond(self, p: Pass) -> tuple[np.ndarray, Array]:
        """Which classes are others, and by how much each is beyond the target's less the margin."""
        rows, classes = p.x.shape
        others = np.arange(classes) != p.inputs[1].values[:, None]
        own = np.take_along_axis(p.x, p.inputs[1].values[:, None], 1)
        return others, p.x[others].reshape(rows, classes - 1) - own + 1.0

    def forward(self, p: Pass) -> Array:
        terms = np.maximum(self._beyond(p)[1], 0.0)
        terms = terms * terms if p.kind.squared else terms
        rows = self._weighed(p, terms.sum(1, keepdims=False) / p.x.shape[1])
        return rows if p.kind.shape else rows.mean(None, keepdims=False)

    def backward(self, p: Pass, g: Array) -> Gradients:
        others, beyond = self._beyond(p)
        rows, classes = p.x.shape
        share = self._weighed(p, np.broadcast_to(g if p.kind.shape else g / rows, (rows,)) / classes)
        slope = np.expand_dims(share * 2.0, 1) * beyond if p.kind.squared else np.expand_dims(share, 1)
        slopes = np.where(beyond > 0.0, slope, 0.0)
        dx = zeros(p.x.shape, p.tally)
        dx[others] = slopes.reshape(-1)
        dx[~others] = -slopes.sum(1, keepdims=False)
        yield p.x, dx

    def reference(self, p: Pass, x: np.ndarray, target: np.ndarray, *weights: np.ndarray) -> np.ndarray:
        own = np.einsum("rc,rc->r", x, np.eye(x.shape[1])[target])
        power = 2 if p.kind.squared else 1
        rows = ((np.clip(x - own[:, None] + 1, 0, None) ** power).sum(1) - 1) / x.shape[1]
        rows = rows * weights[0][target] if weights else rows
        return rows if p.kind.shape else rows.mean()
