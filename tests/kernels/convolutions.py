"""Kernels of convolutions, one matrix product for each place in the window.

A convolution and its transpose are one map between a wide image (padded) and a narrow one (a number per window), read
in either direction; the weight is (narrow channels, wide channels of a group, k_h, k_w).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from costmodel.layers import conv as kinds
from costmodel.training.fields import pair
from tests.kernels.counting import Array, accumulated, add_product, zeros
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


def window(p: Pass) -> tuple[tuple[int, ...], ...]:
    """Its size, its stride and its dilation."""
    if isinstance(p.kind, kinds.Convolve):
        size = p.kind.weight[2:]
        return size, p.visible, tuple(1 for _ in size)
    return pair(p.kind.kernel), pair(p.kind.stride), pair(p.kind.dilation)


def places(p: Pass, positions: tuple[int, ...]) -> Iterator[tuple[Any, Any]]:
    """Each place of the window, and where in the wide image it meets it; both are indices of all axes."""
    every = (slice(None), slice(None))
    for at in np.ndindex(*(axes := window(p))[0]):
        starts = [(i * d, s, n) for i, n, _, s, d in zip(at, positions, *axes, strict=True)]
        yield (*every, *at), (*every, *(slice(start, start + s * (n - 1) + 1, s) for start, s, n in starts))


def grouped(p: Pass, x: Array, axis: int) -> Array:
    """Channels as (groups, channels of a group); positions as one axis, if x is an image."""
    groups = p.kind.groups
    shape = (*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])
    return x.reshape(*shape[:3], -1) if axis else x.reshape(*shape)


def to_narrow(p: Pass, wide: Array, positions: tuple[int, ...]) -> Array:
    """Every window of `wide` with the weight."""
    weight = p.weights["weight"]
    narrow = zeros((wide.shape[0], weight.shape[0], *positions), p.tally)
    for at, within in places(p, positions):
        add_product(narrow, grouped(p, weight[at], 0), grouped(p, wide[within], 1))
    return narrow


def to_wide(p: Pass, narrow: Array, size: tuple[int, ...]) -> Array:
    """A window of the weight for every number of `narrow`, added up where they overlap."""
    weight = p.weights["weight"]
    wide = zeros((narrow.shape[0], weight.shape[1] * p.kind.groups, *size), p.tally)
    for at, within in places(p, narrow.shape[2:]):
        turned = np.swapaxes(grouped(p, weight[at], 0), 1, 2)
        add_product(wide[within], turned, grouped(p, narrow, 1))
    return wide


def weight_gradient(p: Pass, narrow: Array, wide: Array) -> Array:
    """Every number of `narrow` with its window, summed over batch and positions."""
    total = zeros(p.weights["weight"].shape, p.tally)
    by_channel = np.moveaxis(grouped(p, narrow, 1), 0, 2)
    for at, within in places(p, narrow.shape[2:]):
        met = np.moveaxis(grouped(p, wide[within], 1), 0, 2)
        left, right = (x.reshape(*x.shape[:2], -1) for x in (by_channel, met))
        add_product(total[at], left, np.swapaxes(right, 1, 2))
    return total


class Convolution(Kernel, abstract=True):
    def settings(self, draw: Draw) -> dict[str, object]:
        groups = draw(st.integers(1, 2))
        return {
            "channels": groups * draw(st.integers(1, 2)),
            "kernel": draw(pairs),
            "stride": draw(pairs),
            "dilation": draw(pairs),
            "groups": groups,
            "bias": draw(st.booleans()),
        }

    def biased(self, p: Pass, y: Array) -> Array:
        """y with the bias of each channel, if there is one."""
        return y + p.weights["bias"].reshape(-1, *(1 for _ in y.shape[2:])) if p.kind.bias else y

    def bias_gradient(self, p: Pass, g: Array) -> Gradients:
        """The sum over batch and positions."""
        if p.kind.bias:
            yield p.weights["bias"], accumulated(g, (g.shape[1], *(1 for _ in g.shape[2:]))).reshape(-1)


class Conv(Convolution):
    def case(self, draw: Draw) -> Case:
        settings, padding = self.settings(draw), draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
        spans = [d * (k - 1) + 1 for d, k in zip(settings["dilation"], settings["kernel"], strict=True)]
        size = (max(1, span - 2 * side) + draw(sizes) - 1 for span, side in zip(spans, padding, strict=True))
        shape = (draw(st.integers(1, 2)), settings["groups"] * draw(st.integers(1, 2)), *size)
        return Case(self.layer(**settings, padding=padding), [Operand(shape)])

    def padded(self, p: Pass) -> Array:
        return np.pad(p.x, [(0, 0), (0, 0), *((side, side) for side in pair(p.kind.padding))])

    def positions(self, p: Pass) -> tuple[int, ...]:
        """How often the window fits, by trying."""
        spans = [d * (k - 1) + 1 for d, k in zip(pair(p.kind.dilation), pair(p.kind.kernel), strict=True)]
        axes = zip(self.padded(p).shape[2:], spans, pair(p.kind.stride), strict=True)
        return tuple(len(range(0, size - span + 1, stride)) for size, span, stride in axes)

    def forward(self, p: Pass) -> Array:
        return self.biased(p, to_narrow(p, self.padded(p), self.positions(p)))

    def backward(self, p: Pass, g: Array) -> Gradients:
        if p.input_needs_gradient:
            (top, left), (_, _, h, w) = pair(p.kind.padding), p.x.shape
            yield p.x, to_wide(p, g, self.padded(p).shape[2:])[:, :, top : top + h, left : left + w]
        yield p.weights["weight"], weight_gradient(p, g, self.padded(p))
        yield from self.bias_gradient(p, g)

    def reference(self, p: Pass, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        wide, (sh, sw), (dh, dw) = self.padded(p).values, pair(p.kind.stride), pair(p.kind.dilation)
        of_group = weight.shape[0] // p.kind.groups
        y = np.zeros(p.y.shape) + (0 if bias is None else bias[:, None, None])
        for o, i, u, v in np.ndindex(*weight.shape):
            channel = wide[:, o // of_group * weight.shape[1] + i]
            for r, c in np.ndindex(*y.shape[2:]):
                y[:, o, r, c] += weight[o, i, u, v] * channel[:, r * sh + u * dh, c * sw + v * dw]
        return y


class ConvTranspose(Convolution):
    def case(self, draw: Draw) -> Case:
        settings = self.settings(draw)
        steps = [max(s, d) for s, d in zip(settings["stride"], settings["dilation"], strict=True)]
        extra = tuple(draw(st.integers(0, step - 1)) for step in steps)
        spans = [d * (k - 1) + 1 for d, k in zip(settings["dilation"], settings["kernel"], strict=True)]
        padding = tuple(draw(st.integers(0, (span - 1) // 2)) for span in spans)
        shape = (draw(st.integers(1, 2)), settings["groups"] * draw(st.integers(1, 2)), draw(sizes), draw(sizes))
        return Case(self.layer(**settings, padding=padding, output_padding=extra), [Operand(shape)])

    def wide_size(self, p: Pass) -> tuple[int, ...]:
        """Extent of the output before its padding is cut off, with the extra rim."""
        names = ("kernel", "stride", "dilation", "output_padding")
        axes = zip(p.x.shape[2:], *(pair(getattr(p.kind, name)) for name in names), strict=True)
        return tuple(s * (n - 1) + d * (k - 1) + 1 + extra for n, k, s, d, extra in axes)

    def inner(self, p: Pass) -> tuple[slice, ...]:
        """The output within the wide image."""
        cut = zip(pair(p.kind.padding), self.wide_size(p), strict=True)
        return (slice(None), slice(None), *(slice(side, size - side) for side, size in cut))

    def forward(self, p: Pass) -> Array:
        return self.biased(p, to_wide(p, p.x, self.wide_size(p))[self.inner(p)])

    def backward(self, p: Pass, g: Array) -> Gradients:
        wide = zeros((*g.shape[:2], *self.wide_size(p)), p.tally)
        wide[self.inner(p)] = g
        if p.input_needs_gradient:
            yield p.x, to_narrow(p, wide, p.x.shape[2:])
        yield p.weights["weight"], weight_gradient(p, p.x, wide)
        yield from self.bias_gradient(p, g)

    def reference(self, p: Pass, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        (sh, sw), (dh, dw), (top, left) = (pair(n) for n in (p.kind.stride, p.kind.dilation, p.kind.padding))
        of_group = weight.shape[0] // p.kind.groups
        y = np.zeros(p.y.shape) + (0 if bias is None else bias[:, None, None])
        for i, o, u, v in np.ndindex(*weight.shape):
            channel = y[:, i // of_group * weight.shape[1] + o]
            for r, c in np.ndindex(*x.shape[2:]):
                row, column = r * sh + u * dh - top, c * sw + v * dw - left
                if 0 <= row < y.shape[2] and 0 <= column < y.shape[3]:
                    channel[:, row, column] += weight[i, o, u, v] * x[:, i, r, c]
        return y


class Convolve(Convolution):
    """Along one axis or three, by any stride, without padding or dilation."""

    def case(self, draw: Draw) -> Case:
        groups, axes, transposed = draw(st.integers(1, 2)), draw(st.sampled_from([1, 3])), draw(st.booleans())
        counts = [tuple(draw(st.integers(1, 2)) for _ in range(axes)) for _ in range(3)]
        size, stride, positions = counts
        reach = tuple(s * (n - 1) + k for k, s, n in zip(*counts, strict=True))
        narrow, wide = (groups * draw(st.integers(1, 2)) for _ in range(2))
        batch, weight = draw(st.integers(1, 2)), (narrow, wide // groups, *size)
        shapes = ((batch, wide, *reach), (batch, narrow, *positions))
        x, y = reversed(shapes) if transposed else shapes
        layer = self.layer(shape=y, weight=weight, bias=draw(st.booleans()), groups=groups, transposed=transposed)
        return Case(layer, [Operand(x)], stride)

    def forward(self, p: Pass) -> Array:
        map_ = to_wide if p.kind.transposed else to_narrow
        return self.biased(p, map_(p, p.x, p.kind.shape[2:]))

    def backward(self, p: Pass, g: Array) -> Gradients:
        if p.input_needs_gradient:
            yield p.x, (to_narrow if p.kind.transposed else to_wide)(p, g, p.x.shape[2:])
        yield p.weights["weight"], weight_gradient(p, *((p.x, g) if p.kind.transposed else (g, p.x)))
        yield from self.bias_gradient(p, g)

    def reference(self, p: Pass, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        """Number by number."""
        y = np.zeros(p.y.shape) + (0 if bias is None else bias.reshape(-1, *(1 for _ in x.shape[2:])))
        narrow = x if p.kind.transposed else y
        of_group = weight.shape[0] // p.kind.groups
        for n, w, *at in np.ndindex(*weight.shape):
            for place in np.ndindex(*narrow.shape[2:]):
                met = tuple(r * s + i for r, s, i in zip(place, p.visible, at, strict=True))
                near, far = (slice(None), n, *place), (slice(None), n // of_group * weight.shape[1] + w, *met)
                if p.kind.transposed:
                    y[far] += weight[n, w, *at] * x[near]
                else:
                    y[near] += weight[n, w, *at] * x[far]
        return y
