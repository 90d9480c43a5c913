"""Kernels of tables, looked up by index."""

from __future__ import annotations

import numpy as np

from tests.kernels.kernel import Case, Draw, Kernel, Operand, Pass, sizes


class Table(Kernel, abstract=True):
    def rows(self, p: Pass) -> np.ndarray:
        """The row that each output vector is."""
        raise NotImplementedError

    def reference(self, p: Pass, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return np.eye(len(weight))[self.rows(p)] @ weight


class Embedding(Table):
    def case(self, draw: Draw) -> Case:
        entries = draw(sizes)
        layer = self.layer(entries=entries, features=draw(sizes))
        return Case(layer, [Operand((draw(sizes), draw(sizes)), "index", below=entries)])

    def rows(self, p: Pass) -> np.ndarray:
        return p.x.values


class LearnedPositions(Table):
    def case(self, draw: Draw) -> Case:
        seq = draw(sizes)
        layer = self.layer(context=seq + draw(sizes) - 1, features=draw(sizes))
        return Case(layer, [Operand((draw(sizes), seq), "index")])

    def rows(self, p: Pass) -> np.ndarray:
        return np.arange(p.x.shape[1])


class StoredPositions(LearnedPositions):
    pass
