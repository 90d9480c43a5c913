"""Kernels of kinds that resize or rearrange images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from costmodel.training.fields import pair
from tests.kernels.counting import Array, zeros
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes
from tests.kernels.moves import Move


class Upsample(Kernel):
    """Bilinear: a pixel's centre falls between four neighbours, whose weights are constants."""

    def case(self, draw: Draw) -> Case:
        scale = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
        mode = draw(st.sampled_from(["nearest", "bilinear"]))
        return Case(self.layer(scale=scale, mode=mode), [Operand(draw(st.tuples(*[sizes] * 4)))])

    def centres(self, p: Pass) -> list[np.ndarray]:
        """Where each output row and column lies between the input's."""
        axes = zip(p.x.shape[2:], pair(p.kind.scale), strict=True)
        return [np.maximum((np.arange(n * times) + 0.5) / times - 0.5, 0) for n, times in axes]

    def sources(self, p: Pass) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Rows, columns and weights of each of the four neighbours."""
        (rows, columns), (h, w) = self.centres(p), p.x.shape[2:]
        for down, across in np.ndindex(2, 2):
            top, left = (np.floor(x).astype(int) for x in (rows, columns))
            share_down, share_across = (
                x - i if side else 1 - (x - i) for x, i, side in ((rows, top, down), (columns, left, across))
            )
            near = np.minimum(top + down, h - 1)[:, None], np.minimum(left + across, w - 1)[None, :]
            yield *near, share_down[:, None] * share_across

    def nearest(self, p: Pass) -> tuple[np.ndarray, np.ndarray]:
        """Row and column that each pixel copies."""
        up, across = pair(p.kind.scale)
        return np.arange(p.x.shape[2] * up)[:, None] // up, np.arange(p.x.shape[3] * across)[None, :] // across

    def forward(self, p: Pass) -> Array:
        if p.kind.mode == "nearest":
            return p.x[:, :, *self.nearest(p)]
        first, *rest = (p.x[:, :, rows, columns] * share for rows, columns, share in self.sources(p))
        for term in rest:
            first = first + term
        return first

    def backward(self, p: Pass, g: Array) -> Gradients:
        total = zeros(p.x.shape, p.tally)
        every = (slice(None), slice(None))
        if p.kind.mode == "nearest":
            np.add.at(total, (*every, *self.nearest(p)), g)
        else:
            for rows, columns, share in self.sources(p):
                np.add.at(total, (*every, rows, columns), g * share)
        yield p.x, total

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        up, across = pair(p.kind.scale)
        if p.kind.mode == "nearest":
            return np.kron(x, np.ones((up, across)))
        for axis, at in zip((2, 3), self.centres(p), strict=True):
            known = np.arange(x.shape[axis])
            x = np.apply_along_axis(lambda line, at=at, known=known: np.interp(at, known, line), axis, x)
        return x


class PixelShuffle(Move):
    def case(self, draw: Draw) -> Case:
        r = draw(st.integers(1, 3))
        shape = (draw(sizes), r * r * draw(st.integers(1, 2)), draw(sizes), draw(sizes))
        return Case(self.layer(factor=r), [Operand(shape)])

    def move(self, kind: Any, x: Array) -> Array:
        (b, c, h, w), r = x.shape, kind.factor
        apart = x.reshape(b, c // r**2, r, r, h, w)
        return np.transpose(apart, (0, 1, 4, 2, 5, 3)).reshape(b, c // r**2, r * h, r * w)

    def back(self, kind: Any, g: Array, x: Array) -> Array:
        (b, c, h, w), r = x.shape, kind.factor
        apart = g.reshape(b, c // r**2, h, r, w, r)
        return np.transpose(apart, (0, 1, 3, 5, 2, 4)).reshape(b, c, h, w)

    def place(self, kind: Any, shape: tuple[int, ...], at: tuple[int, ...]) -> tuple[int, ...]:
        (b, c, row, column), r = at, kind.factor
        return b, c * r * r + row % r * r + column % r, row // r, column // r


class ChannelShuffle(Move):
    def case(self, draw: Draw) -> Case:
        groups = draw(sizes)
        shape = (draw(sizes), groups * draw(sizes), draw(sizes), draw(sizes))
        return Case(self.layer(groups=groups), [Operand(shape)])

    def move(self, kind: Any, x: Array) -> Array:
        b, c, h, w = x.shape
        return np.swapaxes(x.reshape(b, kind.groups, c // kind.groups, h, w), 1, 2).reshape(b, c, h, w)

    def back(self, kind: Any, g: Array, x: Array) -> Array:
        b, c, h, w = x.shape
        return np.swapaxes(g.reshape(b, c // kind.groups, kind.groups, h, w), 1, 2).reshape(b, c, h, w)

    def place(self, kind: Any, shape: tuple[int, ...], at: tuple[int, ...]) -> tuple[int, ...]:
        member, group = divmod(at[1], kind.groups)
        return at[0], group * (shape[1] // kind.groups) + member, *at[2:]


class Pad(Kernel):
    def case(self, draw: Draw) -> Case:
        side = st.integers(0, 2)
        return Case(self.layer(sides=draw(side | st.tuples(*[side] * 4))), [Operand(draw(st.tuples(*[sizes] * 4)))])

    def sides(self, p: Pass) -> tuple[int, ...]:
        return p.kind.sides if isinstance(p.kind.sides, tuple) else (p.kind.sides,) * 4

    def forward(self, p: Pass) -> Array:
        left, right, top, bottom = self.sides(p)
        return np.pad(p.x, [(0, 0), (0, 0), (top, bottom), (left, right)])

    def backward(self, p: Pass, g: Array) -> Gradients:
        left, _, top, _ = self.sides(p)
        yield p.x, g[:, :, top : top + p.x.shape[2], left : left + p.x.shape[3]]

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        left, right, top, bottom = self.sides(p)
        high, wide = np.eye(x.shape[2] + top + bottom), np.eye(x.shape[3] + left + right)
        return high[:, top : top + x.shape[2]] @ x @ wide[left : left + x.shape[3]]
