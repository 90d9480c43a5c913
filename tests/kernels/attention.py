"""Kernels of attention's parts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.kernels.counting import Array, Tally, add_product, zeros
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes
from tests.kernels.visibility import Visible, draw_keys


class Softmax(Kernel):
    def case(self, draw: Draw) -> Case:
        shape = tuple(draw(st.lists(sizes, min_size=1, max_size=3)))
        axis = draw(st.sampled_from([None, *range(len(shape))]))
        return Case(self.layer(axis=axis, logarithm=draw(st.booleans())), [Operand(shape)])

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        x = np.moveaxis(x, -1 if p.kind.axis is None else p.kind.axis, -1)
        y = 1 / np.exp(x[..., None, :] - x[..., None]).sum(-1)
        return np.moveaxis(np.log(y) if p.kind.logarithm else y, -1, -1 if p.kind.axis is None else p.kind.axis)


class Mask(Kernel):
    def case(self, draw: Draw) -> Case:
        shape = draw(st.tuples(*[sizes] * 4))
        mask = tuple(1 if draw(st.booleans()) else n for n in shape)
        return Case(self.layer(), [Operand(shape), Operand(mask[draw(st.integers(0, 2)) :], "mask")])

    def reference(self, p: Pass, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        y = x.copy()
        y[~np.broadcast_to(mask, x.shape)] = -math.inf
        return y


class Rotary(Kernel):
    """Features i and i + size/2 are a pair; the tables repeat each angle for both of a pair."""

    def case(self, draw: Draw) -> Case:
        pairs, before, rest = draw(sizes), draw(sizes) - 1, draw(sizes) - 1
        b, heads, t = (draw(sizes) for _ in range(3))
        table = Operand((t, 2 * pairs), constant=True)
        return Case(
            self.layer(size=2 * pairs, start=before), [Operand((b, heads, t, before + 2 * pairs + rest)), table, table]
        )

    def reference(self, p: Pass, x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        size, y = p.kind.size, x.copy()
        part = slice(p.kind.start, p.kind.start + size)
        swap = np.roll(np.eye(size), size // 2, axis=1) * np.where(np.arange(size) < size // 2, -1, 1)[:, None]
        y[..., part] = x[..., part] * cos + (x[..., part] @ swap.T) * sin
        return y


class Sink(Kernel):
    def case(self, draw: Draw) -> Case:
        return Case(self.layer(), [Operand((draw(sizes), draw(sizes), draw(sizes), draw(sizes)))])

    def reference(self, p: Pass, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        y = np.empty((*x.shape[:-1], x.shape[-1] + 1))
        for head, value in enumerate(weight):
            y[:, head] = np.pad(x[:, head], ((0, 0), (0, 0), (0, 1)), constant_values=value)
        return y


class FusedAttention(Kernel):
    """Row by row of queries, over all keys or the visible ones, which stand in for the tiles of a real kernel."""

    def case(self, draw: Draw) -> Case:
        b, heads, times, t, features = (draw(sizes) for _ in range(5))
        dropout = draw(st.sampled_from([0.0, 0.5]))
        masked = draw(st.booleans())
        keys, pairs = draw_keys(draw, t) if masked else ([slice(None)] * t, None)
        length = t if masked else draw(sizes)
        layer = self.layer(
            kernel=draw(st.sampled_from(["flash", "efficient"])),
            dropout=dropout,
            pairs=pairs,
            scale=draw(st.none() | st.floats(0.1, 2)),
        )
        key = Operand((b, heads, length, features))
        value = Operand((b, heads, length, draw(sizes))) if layer.kernel == "efficient" else key  # type: ignore[attr-defined]
        return Case(layer, [Operand((b, heads * times, t, features)), key, value], Visible(keys, "columns"))

    def by_key_head(self, p: Pass, x: Any) -> Any:
        """(batch, h, T, d_h) → (batch, h_kv, h/h_kv, T, d_h)."""
        b, _, t, features = x.shape
        return x.reshape(b, p.inputs[1].shape[1], -1, t, features)

    def scale(self, p: Pass) -> float:
        return 1 / math.sqrt(p.x.shape[-1]) if p.kind.scale is None else p.kind.scale

    def kept_share(self, p: Pass, scores: Array, row: int) -> Array | None:
        """Dropout's mask over 1 − p, made anew from the random state."""
        if not (p.training and p.kind.dropout):
            return None
        drawn = np.random.default_rng(row).random(scores.shape)
        return (Array(drawn, scores.tally) >= p.kind.dropout) * (1 / (1 - p.kind.dropout))

    def forward(self, p: Pass) -> Array:
        q, (_, k, v) = self.by_key_head(p, p.x), p.inputs
        y, p.saved["log_sum"] = zeros((*q.shape[:-1], v.shape[-1]), p.tally), []
        for row, keys, _ in p.visible.rows():
            scores = (q[..., row, :] @ np.swapaxes(k[:, :, None, keys], -1, -2)) * self.scale(p)
            largest = scores.max(-1)
            powers = np.exp(scores - largest)
            total = powers.sum(-1)
            weights = powers / total
            if p.training:
                p.saved["log_sum"].append(largest + np.log(total))
            share = self.kept_share(p, scores, row.start)
            add_product(y[..., row, :], weights if share is None else weights * share, v[:, :, None, keys])
        return y.reshape(*p.x.shape[:-1], v.shape[-1])

    def backward(self, p: Pass, g: Array) -> Gradients:
        (q, g), (_, k, v) = (self.by_key_head(p, x) for x in (p.x, g)), p.inputs
        y = self.by_key_head(p, p.y)
        dq, dk, dv = (zeros(x.shape, p.tally) for x in (q, k, v))
        projections = (g * y).sum(-1)
        factor = self.scale(p)
        for row, keys, _ in p.visible.rows():
            scores = (q[..., row, :] @ np.swapaxes(k[:, :, None, keys], -1, -2)) * factor
            weights = np.exp(scores - p.saved["log_sum"][row.start])
            share = self.kept_share(p, scores, row.start)
            dweights = g[..., row, :] @ np.swapaxes(v[:, :, None, keys], -1, -2)
            if share is not None:
                dweights = dweights * share
            dropped = weights if share is None else weights * share
            dscores = weights * (dweights - projections[..., row, :]) * factor
            add_product(dq[..., row, :], dscores, k[:, :, None, keys])
            self.add_transposed(dk[:, :, keys], dscores, q[..., row, :])
            self.add_transposed(dv[:, :, keys], dropped, g[..., row, :])
        yield p.x, dq.reshape(*p.x.shape)
        yield p.inputs[1], dk
        yield p.inputs[2], dv

    def add_transposed(self, target: Array, rows: Array, terms: Array) -> None:
        """target += rowsᵀ terms, over all query heads of a key head."""
        add_product(target, np.moveaxis(rows[..., 0, :], 2, 3), terms[..., 0, :])

    def reference(self, p: Pass, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        times = q.shape[1] // k.shape[1]
        k, v = (np.repeat(x, times, axis=1) for x in (k, v))
        scores = np.einsum("bhtd,bhsd->bhts", q, k) * self.scale(p)
        if p.kind.pairs is not None:
            scores = np.where(p.visible.mask(), scores, -math.inf)
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        for row, keys, _ in p.visible.rows():
            shape = self.by_key_head(p, q[:, :, row]).shape[:-1] + weights[0, 0, 0, keys].shape
            share = self.kept_share(p, Array(np.empty(shape), Tally()), row.start)
            if share is not None:
                weights[:, :, row, keys] *= share.values.reshape(*q.shape[:2], 1, -1)
        return np.einsum("bhts,bhsd->bhtd", weights, v)
