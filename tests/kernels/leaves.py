"""Kernels of what no gradient passes through, and of what is read or put by index."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.kernels.counting import Array, zeros
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes


class Parameter(Kernel):
    def case(self, draw: Draw) -> Case:
        return Case(self.layer(shape=tuple(draw(st.lists(sizes, min_size=1, max_size=3)))), [])

    def forward(self, p: Pass) -> Array:
        return p.weights["weight"]

    def backward(self, p: Pass, g: Array) -> Gradients:
        """Whatever reads the weight adds to its gradient."""
        yield from ()

    def reference(self, p: Pass, weight: np.ndarray) -> np.ndarray:
        return weight


class Made(Kernel):
    """A range, or the comparison of each element with a number."""

    def case(self, draw: Draw) -> Case:
        shape = tuple(draw(st.lists(sizes, min_size=1, max_size=3)))
        if draw(st.booleans()):
            return Case(self.layer(shape=shape, role="index"), [])
        return Case(self.layer(shape=shape, role="mask", work=1), [Operand(shape)])

    def forward(self, p: Pass) -> Array:
        return p.x > 1 if p.inputs else Array(np.arange(np.prod(p.kind.shape)).reshape(p.kind.shape), p.tally)

    def backward(self, p: Pass, g: Array) -> Gradients:
        yield from ()

    def reference(self, p: Pass, *inputs: np.ndarray) -> np.ndarray:
        return np.maximum(inputs[0] - 1, 0) != 0 if inputs else np.indices((p.y.size,)).reshape(p.y.shape)


class Chosen(Kernel):
    """Places of the first axis."""

    def case(self, draw: Draw) -> Case:
        n, width, places = draw(sizes), draw(sizes), (draw(sizes), draw(sizes))
        layer = self.layer(shape=(*places, width), whole=draw(st.booleans()))
        return Case(layer, [Operand((n, width)), Operand(places, "index", below=n)])

    def forward(self, p: Pass) -> Array:
        return p.x[p.inputs[1].values]

    def backward(self, p: Pass, g: Array) -> Gradients:
        total = zeros(p.x.shape, p.tally)
        np.add.at(total, p.inputs[1].values, g)
        yield p.x, total

    def reference(self, p: Pass, x: np.ndarray, places: np.ndarray) -> np.ndarray:
        return np.eye(len(x))[places] @ x


class Placed(Kernel):
    """One place of the first axis gets other numbers, or a constant."""

    def case(self, draw: Draw) -> Case:
        n, width, valued = draw(sizes), draw(sizes), draw(st.booleans())
        values = [Operand((1, width))] if valued else []
        return Case(self.layer(valued=valued), [Operand((n, width)), *values, Operand((1,), "index", below=n)])

    def forward(self, p: Pass) -> Array:
        y = Array(p.x.values.copy(), p.tally)
        y[p.inputs[-1].values] = p.inputs[1] if p.kind.valued else 5.0
        return y

    def backward(self, p: Pass, g: Array) -> Gradients:
        place = p.inputs[-1].values
        rest = Array(g.values.copy(), p.tally)
        rest[place] = 0
        yield p.x, rest
        if p.kind.valued:
            yield p.inputs[1], g[place]

    def reference(self, p: Pass, x: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        [place] = rest[-1]
        row = rest[0] if p.kind.valued else np.full((1, x.shape[1]), 5.0)
        return np.concatenate([x[:place], row, x[place + 1 :]])
