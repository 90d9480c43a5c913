"""Kernels of trained vectors that join a sequence of tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.kernels.kernel import Case, Draw, Kernel, Operand, Pass, sizes


class Prepend(Kernel):
    def case(self, draw: Draw) -> Case:
        return Case(self.layer(tokens=draw(sizes)), [Operand(draw(st.tuples(sizes, sizes, sizes)))])

    def reference(self, p: Pass, x: np.ndarray, **weights: np.ndarray) -> np.ndarray:
        return np.array([[*(w[0, 0] for w in weights.values()), *sample] for sample in x])


class Positions(Kernel, abstract=True):
    def case(self, draw: Draw) -> Case:
        return Case(self.layer(), [Operand(draw(st.tuples(sizes, sizes, sizes)))])

    def reference(self, p: Pass, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return np.stack([sample - (-weight[0]) for sample in x])


class TrainedPositions(Positions):
    pass


class FixedPositions(Positions):
    pass
