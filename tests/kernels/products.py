"""Kernels of linear maps and matrix products."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.kernels.counting import Array, add_product, zeros
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes
from tests.kernels.visibility import Visible, draw_keys


class Linear(Kernel):
    def case(self, draw: Draw) -> Case:
        shape = tuple(draw(st.lists(sizes, min_size=1, max_size=3)))
        return Case(self.layer(features=draw(sizes), bias=draw(st.booleans())), [Operand(shape)])

    def reference(self, p: Pass, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        return np.einsum("...i,oi->...o", x, weight) + (0 if bias is None else bias)


class Matmul(Kernel):
    """Whole products, of rows by one matrix too, or those of attention with a mask.

    Rows of scores and of mixing then run over visible keys only.
    """

    def case(self, draw: Draw) -> Case:
        if draw(st.booleans()):
            return self.of_rows(draw)
        batch = tuple(draw(st.lists(sizes, min_size=1, max_size=2)))
        m, k, n = (draw(sizes) for _ in range(3))
        form = draw(st.sampled_from(["whole", "columns", "terms"]))
        if form == "whole":
            return Case(self.layer(), [Operand((*batch, m, k)), Operand((*batch, k, n))])
        keys, pairs = draw_keys(draw, m)
        a, b = ((m, k), (k, m)) if form == "columns" else ((m, m), (m, n))
        operands = [Operand((*batch, *a)), Operand((*batch, *b))]
        return Case(self.layer(visible=(pairs, m * m)), operands, Visible(keys, form))

    def of_rows(self, draw: Draw) -> Case:
        """Rows by one matrix, with what is added."""
        rows = tuple(draw(st.lists(sizes, max_size=2)))
        k, n = draw(sizes), draw(sizes)
        vector = n == 1 and draw(st.booleans())
        added = [Operand(draw(st.sampled_from([(*rows, n), (n,), (1,)])))] if draw(st.booleans()) else []
        return Case(self.layer(vector=vector), [Operand((*rows, k)), Operand((k, n)), *added])

    def forward(self, p: Pass) -> Array:
        if p.visible is None:
            return super().forward(p)
        a, b = p.inputs
        y = zeros((*a.shape[:-1], b.shape[-1]), p.tally)
        for row, columns, terms in p.visible.rows():
            add_product(y[..., row, columns], a[..., row, terms], b[..., terms, columns])
        return y

    def backward(self, p: Pass, g: Array) -> Gradients:
        if p.visible is None:
            yield from super().backward(p, g)
            return
        a, b = p.inputs
        turned_a, turned_b = np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2)
        da, db = zeros(a.shape, p.tally), zeros(b.shape, p.tally)
        for row, columns, terms in p.visible.rows():
            add_product(da[..., row, terms], g[..., row, columns], turned_b[..., columns, terms])
        yield a, da
        for row, columns, terms in p.visible.rows():
            add_product(db[..., terms, columns], turned_a[..., terms, row], g[..., row, columns])
        yield b, db

    def reference(self, p: Pass, a: np.ndarray, b: np.ndarray, *added: np.ndarray) -> np.ndarray:
        if p.visible is None:
            return np.einsum("...k,kn->...n" if b.ndim == 2 else "...mk,...kn->...mn", a, b) + sum(added)
        mask = p.visible.mask()
        masked = p.visible.side == "terms"
        product = np.einsum("...mk,...kn->...mn", a * mask if masked else a, b)
        return product if masked else product * mask
