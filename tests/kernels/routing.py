"""Kernels of how tokens choose experts."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.kernels.counting import Array
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes

EPSILON = 1e-20


def largest(x: Array, count: int) -> tuple[list[Array], np.ndarray]:
    """The largest of each row, one maximum after another, and where they were."""
    places = np.argsort(-x.values, axis=-1, kind="stable")
    found, rest = [], x
    for _ in range(count):
        found.append(rest.max(-1))
        left = np.argsort(-rest.values, axis=-1, kind="stable")[..., 1:]
        rest = np.take_along_axis(rest, left, -1)
    return found, places[..., :count]


class GroupedTopK(Kernel):
    def case(self, draw: Draw) -> Case:
        groups, biased = draw(sizes), draw(st.booleans())
        each = draw(st.integers(1 + biased, 4))
        kept = draw(st.integers(1, groups))
        fields = {"chosen": draw(st.integers(1, kept * each)), "groups": groups, "kept_groups": kept}
        layer = self.layer(best=1 + biased, biased=biased, stored=biased and draw(st.booleans()), **fields)
        return Case(layer, [Operand((draw(sizes), draw(sizes), groups * each))])

    def forward(self, p: Pass) -> Array:
        kind, (*rows, n) = p.kind, p.x.shape
        judged = p.x + (p.weights if kind.stored else p.buffers)["bias"] if kind.biased else p.x
        best, _ = largest(judged.reshape(*rows, kind.groups, n // kind.groups), kind.best)
        merit = sum(best[1:], best[0])
        _, groups = largest(merit[..., 0], kind.kept_groups)
        allowed = np.zeros((*rows, kind.groups), bool)
        np.put_along_axis(allowed, groups, True, -1)
        judged = np.where(np.repeat(allowed, n // kind.groups, axis=-1), judged, -np.inf)
        _, p.saved["places"] = largest(judged, kind.chosen)
        return np.take_along_axis(p.x, p.saved["places"], -1)

    def backward(self, p: Pass, g: Array) -> Gradients:
        total = np.zeros(p.x.shape)
        np.put_along_axis(total, p.saved["places"], g.values, -1)
        yield p.x, Array(total, p.tally)

    def reference(self, p: Pass, x: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        kind = p.kind
        judged = x if not kind.biased else x + (p.buffers["bias"].values if bias is None else bias)
        y = np.empty(p.y.shape)
        for row in np.ndindex(*x.shape[:-1]):
            members = np.split(np.arange(x.shape[-1]), kind.groups)
            by_merit = sorted(members, key=lambda m, row=row: -np.sort(judged[row][m])[-kind.best :].sum())
            open_to = np.concatenate(by_merit[: kind.kept_groups])
            y[row] = x[row][sorted(open_to, key=lambda e, row=row: -judged[row][e])[: kind.chosen]]
        return y


class Shares(Kernel):
    def case(self, draw: Draw) -> Case:
        return Case(self.layer(), [Operand(tuple(draw(st.lists(sizes, min_size=1, max_size=3))))])

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return x * np.power(x.sum(-1, keepdims=True), -1.0)
