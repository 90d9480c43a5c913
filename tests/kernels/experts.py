"""Kernels of a mixture of experts; rows are sent to experts in turn, as evenly as they go."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.kernels.counting import Array
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes


class TopK(Kernel):
    def case(self, draw: Draw) -> Case:
        n = draw(sizes)
        return Case(self.layer(chosen=draw(st.integers(1, n))), [Operand((draw(sizes), draw(sizes), n))])

    def forward(self, p: Pass) -> Array:
        rest = p.x.reshape(-1, p.x.shape[-1])
        p.saved["places"] = np.argsort(-rest.values, axis=-1)[:, : p.kind.chosen]
        found = []
        for _ in range(p.kind.chosen):
            found.append(rest.max(-1))
            left = np.argsort(-rest.values, axis=-1)[:, 1:]
            rest = np.take_along_axis(rest, left, -1)
        return np.concatenate(found, -1).reshape(*p.x.shape[:-1], p.kind.chosen)

    def backward(self, p: Pass, g: Array) -> Gradients:
        total = np.zeros((p.x.size // p.x.shape[-1], p.x.shape[-1]))
        np.put_along_axis(total, p.saved["places"], g.values.reshape(-1, p.kind.chosen), -1)
        yield p.x, Array(total.reshape(p.x.shape), p.tally)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return np.sort(x, axis=-1)[..., ::-1][..., : p.kind.chosen]


class Pick(Kernel):
    def case(self, draw: Draw) -> Case:
        layer = self.layer(times=draw(sizes)) if draw(st.booleans()) else self.layer(rows=draw(st.integers(1, 9)))
        return Case(layer, [Operand((draw(sizes), draw(sizes)))])

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        if p.kind.rows is None:
            return np.repeat(x, p.kind.times, axis=0)
        return np.stack([x[row % len(x)] for row in range(p.kind.rows)])


class ExpertLinear(Kernel):
    def case(self, draw: Draw) -> Case:
        experts = draw(sizes)
        fields = {"experts": experts, "chosen": draw(st.integers(1, experts)), "features": draw(sizes)}
        fields["busy"] = draw(st.none() | st.integers(1, experts))
        return Case(self.layer(bias=draw(st.booleans()), **fields), [Operand((draw(sizes), draw(sizes)))])

    def parts(self, p: Pass) -> list[np.ndarray]:
        """The rows of each expert."""
        busy = p.kind.busy or p.kind.experts
        idle = [np.arange(0)] * (p.kind.experts - busy)
        return [*np.array_split(np.arange(p.x.shape[0]), busy), *idle]

    def reference(self, p: Pass, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        experts = np.concatenate([np.full(len(rows), e) for e, rows in enumerate(self.parts(p))]).astype(int)
        return np.einsum("ri,roi->ro", x, weight[experts]) + (0 if bias is None else bias[experts])


class Total(Kernel):
    def case(self, draw: Draw) -> Case:
        return Case(self.layer(), [Operand((draw(sizes), draw(sizes), draw(sizes)))])

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return np.einsum("rnd->rd", x)
