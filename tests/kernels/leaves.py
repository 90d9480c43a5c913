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


class Computed(Kernel):
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


class Gather(Kernel):
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


class Scatter(Kernel):
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


class ScatterAdd(Kernel):
    """Rows are added to places of the first axis, several to one or none."""

    def case(self, draw: Draw) -> Case:
        n, width, rows = draw(sizes), draw(sizes), draw(sizes)
        inputs = [Operand((n, width)), Operand((rows, width)), Operand((rows,), "index", below=n)]
        return Case(self.layer(whole=draw(st.booleans())), inputs)

    def forward(self, p: Pass) -> Array:
        y = Array(p.x.values.copy(), p.tally)
        np.add.at(y, p.inputs[2].values, p.inputs[1])
        return y

    def backward(self, p: Pass, g: Array) -> Gradients:
        yield p.x, g
        yield p.inputs[1], g[p.inputs[2].values]

    def reference(self, p: Pass, x: np.ndarray, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
        return x + np.eye(len(x))[places].T @ rows


class ScatterReduce(Kernel):
    """By a product: rows, of numbers that are not 0, multiply places of the first axis, several one or none."""

    def case(self, draw: Draw) -> Case:
        n, width, rows = draw(sizes), draw(sizes), draw(sizes)
        x, numbers = (Operand((count, width), within=(0.5, 2)) for count in (n, rows))
        return Case(
            self.layer(), [x._replace(constant=draw(st.booleans())), numbers, Operand((rows,), "index", below=n)]
        )

    def forward(self, p: Pass) -> Array:
        rows = {place: p.x[place] for place in range(len(p.x.values))}
        for row, place in enumerate(p.inputs[2].values):
            rows[place] = rows[place] * p.inputs[1][row]
        return np.stack([*rows.values()], axis=0)

    def backward(self, p: Pass, g: Array) -> Gradients:
        weighted = g * p.y
        if p.needs(p.x):
            yield p.x, weighted / p.x
        yield p.inputs[1], weighted[p.inputs[2].values] / p.inputs[1]

    def reference(self, p: Pass, x: np.ndarray, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
        return np.exp(np.log(x) + np.eye(len(x))[places].T @ np.log(rows))
