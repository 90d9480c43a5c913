"""Kernels of recurrences over a sequence."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.kernels.counting import Array
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes

SMALL = (-1.0, 1.0)


class SelectiveScan(Kernel):
    """Forward keeps the state after each token; backward runs them in reverse."""

    def case(self, draw: Draw) -> Case:
        b, channels, t, n = (draw(sizes) for _ in range(4))
        whole = Operand((b, channels, t, n), within=SMALL)
        return Case(self.layer(), [whole, whole, Operand((b, t, n), within=SMALL)])

    def forward(self, p: Pass) -> Array:
        a, u, c = p.inputs
        b, channels, t, n = a.shape
        state: Any = Array(np.zeros((b, channels, n)), p.tally)
        p.saved["states"] = states = [state]
        made = []
        for i in range(t):
            state = a[:, :, i] * state + u[:, :, i]
            made.append((state @ c[:, i].reshape(b, n, 1)).reshape(b, channels))
            states.append(state)
        return np.moveaxis(np.stack(made), 0, -1)

    def backward(self, p: Pass, g: Array) -> Gradients:
        a, u, c = p.inputs
        b, channels, t, n = a.shape
        states = p.saved["states"]
        carried: list[Array] = []
        through = None
        if p.needs(a) or p.needs(u):
            for i in reversed(range(t)):
                own = g[:, :, i].reshape(b, channels, 1) @ c[:, i].reshape(b, 1, n)
                through = own if through is None else own + a[:, :, i + 1] * through
                carried.insert(0, through)
        if p.needs(a):
            yield a, np.moveaxis(np.stack([d * h for d, h in zip(carried, states, strict=False)]), 0, 2)
        if p.needs(u):
            yield u, np.moveaxis(np.stack(carried), 0, 2)
        if p.needs(c):
            sums = [np.swapaxes(states[i + 1], 1, 2) @ g[:, :, i].reshape(b, channels, 1) for i in range(t)]
            yield c, np.moveaxis(np.stack(sums).reshape(t, b, n), 0, 1)

    def reference(self, p: Pass, a: np.ndarray, u: np.ndarray, c: np.ndarray) -> np.ndarray:
        y = np.zeros(a.shape[:3])
        for i in range(a.shape[2]):
            for j in range(i + 1):
                y[:, :, i] += np.einsum("bdn,bdn,bn->bd", a[:, :, j + 1 : i + 1].prod(2), u[:, :, j], c[:, i])
        return y
