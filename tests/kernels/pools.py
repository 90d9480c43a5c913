"""Kernels of pooling, window by window."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from costmodel.training.fields import pair
from tests.kernels.counting import Array, zeros
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes

Window = tuple[int, int, slice, slice]
"""Row and column of the output; rows and columns of the padded input."""


class Pool(Kernel, abstract=True):
    def rims(self, p: Pass) -> list[tuple[int, int]]:
        """What is padded before and after (height, width)."""
        return [(0, 0), (0, 0)]

    def windows(self, p: Pass) -> Iterator[Window]:
        raise NotImplementedError

    def size(self, p: Pass) -> tuple[int, ...]:
        """Windows (down, across)."""
        raise NotImplementedError

    def padded(self, p: Pass, value: float) -> Array:
        return np.pad(p.x, [(0, 0), (0, 0), *self.rims(p)], constant_values=value)


class Max(Pool, abstract=True):
    """Where a maximum lies is known from the comparisons of the forward pass, and kept."""

    def forward(self, p: Pass) -> Array:
        wide = self.padded(p, -math.inf)
        y = zeros((*p.x.shape[:2], *self.size(p)), p.tally)
        for r, c, *within in self.windows(p):
            y[:, :, r, c] = wide[:, :, *within].max((2, 3), keepdims=False)
        return y

    def backward(self, p: Pass, g: Array) -> Gradients:
        wide = self.padded(p, -math.inf)
        total = zeros(wide.shape, p.tally)
        every = np.ogrid[: g.shape[0], : g.shape[1]]
        for r, c, *within in self.windows(p):
            window = wide.values[:, :, *within]
            place = window.reshape(*window.shape[:2], -1).argmax(-1)
            np.add.at(total[:, :, *within], (*every, *np.unravel_index(place, window.shape[2:])), g[:, :, r, c])
        (top, _), (left, _) = self.rims(p)
        yield p.x, total[:, :, top : top + p.x.shape[2], left : left + p.x.shape[3]]


class Sliding(Pool, abstract=True):
    def case(self, draw: Draw) -> Case:
        kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
        stride = draw(st.none() | st.tuples(st.integers(1, 3), st.integers(1, 3)))
        padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
        size = (max(1, k - 2 * side) + draw(sizes) - 1 for k, side in zip(kernel, padding, strict=True))
        layer = self.layer(kernel=kernel, stride=stride, padding=padding, ceil_mode=draw(st.booleans()))
        return Case(layer, [Operand((draw(st.integers(1, 2)), draw(st.integers(1, 2)), *size))])

    def starts(self, p: Pass) -> list[range]:
        """First row of each window and first column, in the padded input: the last may reach beyond its end."""
        found: list[range] = []
        axes = zip(p.x.shape[2:], p.kind.kernel, p.kind.stride or p.kind.kernel, p.kind.padding, strict=True)
        for n, k, step, side in axes:
            begun = range(0, n + side, step)
            inside = [start for start in begun if start + k <= n + 2 * side]
            beyond = p.kind.ceil_mode and len(inside) < len(begun) and inside[-1] + k < n + 2 * side
            found.append(begun[: len(inside) + beyond])
        return found

    def size(self, p: Pass) -> tuple[int, ...]:
        return tuple(map(len, self.starts(p)))

    def rims(self, p: Pass) -> list[tuple[int, int]]:
        return [(side, side + k) for side, k in zip(p.kind.padding, p.kind.kernel, strict=True)]

    def windows(self, p: Pass) -> Iterator[Window]:
        rows, columns = self.starts(p)
        kh, kw = p.kind.kernel
        for (r, top), (c, left) in ((r, c) for r in enumerate(rows) for c in enumerate(columns)):
            yield r, c, slice(top, top + kh), slice(left, left + kw)

    def viewed(self, p: Pass, wide: np.ndarray) -> np.ndarray:
        """(batch, C, H', W', k_h·k_w), by strides."""
        (sh, sw), (h, w) = p.kind.stride or p.kind.kernel, p.y.shape[2:]
        every = np.lib.stride_tricks.sliding_window_view(wide, p.kind.kernel, (2, 3))[:, :, ::sh, ::sw]
        return every[:, :, :h, :w].reshape(*p.y.shape, -1)


class MaxPool(Max, Sliding):
    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return np.nanmax(self.viewed(p, self.padded(p, math.nan).values), -1)


class AvgPool(Sliding):
    """Zeros of the padding count as members; what lies beyond it does not."""

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        beyond = [(0, 0), (0, 0), *((0, k) for k in p.kind.kernel)]
        inside = np.pad(x, [(0, 0), (0, 0), *((side, side) for side in p.kind.padding)])
        return np.nanmean(self.viewed(p, np.pad(inside, beyond, constant_values=math.nan)), -1)


class Adaptive(Pool, abstract=True):
    def case(self, draw: Draw) -> Case:
        shape = draw(st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 6), st.integers(1, 6)))
        size = draw(st.just((1, 1)) | st.tuples(st.integers(1, 6), st.integers(1, 6)))
        return Case(self.layer(size=size), [Operand(shape)])

    def size(self, p: Pass) -> tuple[int, ...]:
        return pair(p.kind.size)

    def windows(self, p: Pass) -> Iterator[Window]:
        axes = [
            [slice(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]
            for n, m in zip(p.x.shape[2:], self.size(p), strict=True)
        ]
        for (r, rows), (c, columns) in ((r, c) for r in enumerate(axes[0]) for c in enumerate(axes[1])):
            yield r, c, rows, columns

    def members(self, p: Pass, x: np.ndarray) -> np.ma.MaskedArray:
        """(batch, C, windows down, across, H, W); an element is masked unless it overlaps the window's share."""
        down, across = (
            np.array([[e * m < (i + 1) * n and (e + 1) * m > i * n for e in range(n)] for i in range(m)])
            for n, m in zip(x.shape[2:], self.size(p), strict=True)
        )
        inside = down[:, None, :, None] & across[None, :, None, :]
        x, inside = np.broadcast_arrays(x[:, :, None, None], inside)
        return np.ma.array(x, mask=~inside)


class AdaptiveMaxPool(Max, Adaptive):
    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return self.members(p, x).max((4, 5)).data


class AdaptiveAvgPool(Adaptive):
    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return self.members(p, x).mean((4, 5)).data


class GlobalAvgPool(Kernel):
    def case(self, draw: Draw) -> Case:
        return Case(self.layer(keepdims=draw(st.booleans())), [Operand(draw(st.tuples(*[sizes] * 4)))])

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return np.einsum("bchw->bc", x).reshape(p.y.shape) / x[0, 0].size


class Unpool(Kernel):
    def case(self, draw: Draw) -> Case:
        b, c, h, w = (draw(sizes) for _ in range(4))
        return Case(self.layer(shape=(b, c, h + 1, 2 * w)), [Operand((b, c, h, w)), Operand((b, c, h, w), "index")])

    def _places(self, p: Pass) -> tuple[np.ndarray, ...]:
        """Of every number one of its own, as after pooling."""
        b, c, _, _ = p.kind.shape
        places = np.argsort(p.inputs[1].values.reshape(b, c, -1), axis=-1, kind="stable")
        return (*np.ogrid[:b, :c, :1][:2], places)

    def forward(self, p: Pass) -> Array:
        b, c, h, w = p.kind.shape
        y = zeros((b, c, h * w), p.tally)
        y[self._places(p)] = p.x.reshape(b, c, -1)
        return y.reshape(b, c, h, w)

    def backward(self, p: Pass, g: Array) -> Gradients:
        b, c, _, _ = p.kind.shape
        yield p.x, g.reshape(b, c, -1)[self._places(p)].reshape(*p.x.shape)

    def reference(self, p: Pass, x: np.ndarray, places: np.ndarray) -> np.ndarray:
        b, c, h, w = p.kind.shape
        y = np.zeros((b, c, h * w))
        for at in np.ndindex(b, c):
            for place, number in zip(np.argsort(places[at].ravel(), kind="stable"), x[at].ravel(), strict=True):
                y[(*at, place)] = number
        return y.reshape(b, c, h, w)
