"""Kernels of kinds that resize or rearrange images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from costmodel.layers.resize import NEIGHBOURS
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

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        up, across = pair(p.kind.scale)
        if p.kind.mode == "nearest":
            return np.kron(x, np.ones((up, across)))
        for axis, at in zip((2, 3), self.centres(p), strict=True):
            known = np.arange(x.shape[axis])
            x = np.apply_along_axis(lambda line, at=at, known=known: np.interp(at, known, line), axis, x)
        return x


class Resize(Kernel):
    """Each pixel of a line a mean of the nearest, or of as many as there are, with constant weights."""

    def case(self, draw: Draw) -> Case:
        channels, n, size = draw(sizes), draw(sizes), draw(sizes)
        layer = self.layer(shape=(channels, size), mode=draw(st.sampled_from(["nearest", "linear", "bilinear"])))
        return Case(layer, [Operand((channels, n))])

    def sources(self, p: Pass) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Place and weight of each neighbour."""
        size, n = p.kind.shape[1], p.x.shape[1]
        for number in range(NEIGHBOURS[p.kind.mode]):
            yield (np.arange(size) * n // size + number) % n, (1 + number + np.arange(size)) / 10

    def forward(self, p: Pass) -> Array:
        (place, share), *rest = self.sources(p)
        if not rest:
            return p.x[:, place]
        y = p.x[:, place] * share
        for place, share in rest:
            y = y + p.x[:, place] * share
        return y

    def backward(self, p: Pass, g: Array) -> Gradients:
        total = zeros(p.x.shape, p.tally)
        for place, share in self.sources(p):
            np.add.at(total, (slice(None), place), g if p.kind.mode == "nearest" else g * share)
        yield p.x, total

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        mixing = np.zeros((x.shape[1], p.kind.shape[1]))
        for place, share in self.sources(p):
            mixing[place, np.arange(p.kind.shape[1])] += 1 if p.kind.mode == "nearest" else share
        return x @ mixing


class PixelShuffle(Move):
    def case(self, draw: Draw) -> Case:
        r = draw(st.integers(1, 3))
        shape = (draw(sizes), r * r * draw(st.integers(1, 2)), draw(sizes), draw(sizes))
        return Case(self.layer(factor=r), [Operand(shape)])

    def place(self, kind: Any, shape: tuple[int, ...], at: tuple[int, ...]) -> tuple[int, ...]:
        (b, c, row, column), r = at, kind.factor
        return b, c * r * r + row % r * r + column % r, row // r, column // r


class ChannelShuffle(Move):
    def case(self, draw: Draw) -> Case:
        groups = draw(sizes)
        shape = (draw(sizes), groups * draw(sizes), draw(sizes), draw(sizes))
        return Case(self.layer(groups=groups), [Operand(shape)])

    def place(self, kind: Any, shape: tuple[int, ...], at: tuple[int, ...]) -> tuple[int, ...]:
        member, group = divmod(at[1], kind.groups)
        return at[0], group * (shape[1] // kind.groups) + member, *at[2:]


class Pad(Kernel):
    def case(self, draw: Draw) -> Case:
        side = st.integers(0, 2)
        return Case(self.layer(sides=draw(side | st.tuples(*[side] * 4))), [Operand(draw(st.tuples(*[sizes] * 4)))])

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        left, right, top, bottom = p.kind.sides if isinstance(p.kind.sides, tuple) else (p.kind.sides,) * 4
        high, wide = np.eye(x.shape[2] + top + bottom), np.eye(x.shape[3] + left + right)
        return high[:, top : top + x.shape[2]] @ x @ wide[left : left + x.shape[3]]


class PadTo(Kernel):
    """A line with a rim of one number, or of the numbers nearest to it."""

    def case(self, draw: Draw) -> Case:
        rows, n, before, after = draw(sizes), draw(sizes), draw(sizes) - 1, draw(sizes) - 1
        layer = self.layer(shape=(rows, before + n + after), mode=draw(st.sampled_from(["constant", "replicate"])))
        return Case(layer, [Operand((rows, n))], before)

    def places(self, p: Pass) -> np.ndarray:
        """Which column each is, or is nearest to."""
        return np.clip(np.arange(p.kind.shape[1]) - p.visible, 0, p.x.shape[1] - 1)

    def forward(self, p: Pass) -> Array:
        if p.kind.mode == "replicate":
            return p.x[:, self.places(p)]
        n, before = p.x.shape[1], p.visible
        return np.pad(p.x, [(0, 0), (before, p.kind.shape[1] - n - before)])

    def backward(self, p: Pass, g: Array) -> Gradients:
        if p.kind.mode == "constant":
            yield p.x, g[:, p.visible : p.visible + p.x.shape[1]]
            return
        total = zeros(p.x.shape, p.tally)
        np.add.at(total, (slice(None), self.places(p)), g)
        yield p.x, total

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        sides = [(0, 0), (p.visible, p.kind.shape[1] - x.shape[1] - p.visible)]
        return np.pad(x, sides, mode="edge" if p.kind.mode == "replicate" else "constant")


class Columns(Kernel):
    """Windows of a line, one place apart."""

    def case(self, draw: Draw) -> Case:
        channels, size, windows = draw(sizes), draw(sizes), draw(sizes)
        line, columns = (channels, size + windows - 1), (channels, size, windows)
        back = draw(st.booleans())
        return Case(self.layer(shape=line if back else columns, back=back), [Operand(columns if back else line)])

    def places(self, columns: tuple[int, ...]) -> np.ndarray:
        """Where each number of a window lies."""
        return np.arange(columns[1])[:, None] + np.arange(columns[2])

    def gathered(self, columns: Array, line: tuple[int, ...]) -> Array:
        """Each number of a window added to its place."""
        total = zeros(line, columns.tally)
        np.add.at(total, (slice(None), self.places(columns.shape)), columns)
        return total

    def forward(self, p: Pass) -> Array:
        return self.gathered(p.x, p.kind.shape) if p.kind.back else p.x[:, self.places(p.kind.shape)]

    def backward(self, p: Pass, g: Array) -> Gradients:
        yield p.x, g[:, self.places(p.x.shape)] if p.kind.back else self.gathered(g, p.x.shape)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        if not p.kind.back:
            return np.lib.stride_tricks.sliding_window_view(x, p.kind.shape[2], 1)
        return np.array([[x[c, ::-1].trace(n) for n in range(1 - x.shape[1], x.shape[2])] for c in range(len(x))])
