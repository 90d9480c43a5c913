"""Pooling: one call for each place in the window, over all windows at once; adaptive windows one by one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from costmodel.roofline.kernels.kernel import Gradients, Site, kernel
from costmodel.roofline.reference import Ref, Shape
from costmodel.roofline.tape import Tape
from costmodel.training.fields import pair

if TYPE_CHECKING:
    import numpy

NO_GAPS = (1, 1)


def _size(s: Site) -> Shape:
    """Windows (down, across)."""
    from costmodel.layers.spatial import slide, slide_beyond

    count = slide_beyond if s.kind.ceil_mode else slide
    axes = zip(s.x.shape[2:], pair(s.kind.kernel), s.kind.strides, pair(s.kind.padding), strict=True)
    return tuple(int(count(*axis)) for axis in axes)


def _reach(s: Site) -> Shape:
    """Extent that all windows together need."""
    axes = zip(_size(s), pair(s.kind.kernel), s.kind.strides, strict=True)
    return tuple(step * (n - 1) + k for n, k, step in axes)


def _framed(t: Tape, s: Site, outside: float) -> Ref:
    """x within as much of `outside` as windows reach."""
    (top, left), (b, c, h, w), reach = pair(s.kind.padding), s.x.shape, _reach(s)
    if (top, left) == (0, 0) and reach[0] <= h and reach[1] <= w:
        return s.x
    wide = t.full((b, c, max(reach[0], top + h), max(reach[1], left + w)), outside)
    t.copyto(wide[:, :, top : top + h, left : left + w], s.x)
    return wide


def _places(s: Site, wide: Ref) -> Iterator[Ref]:
    """Each place of the window in all windows: (batch, C, H', W'), views."""
    windows = wide.windows(pair(s.kind.kernel), s.kind.strides, NO_GAPS, _size(s))
    for i in range(windows.shape[2]):
        for j in range(windows.shape[3]):
            yield windows[:, :, i, j]


def max_pool(t: Tape, s: Site) -> Ref:
    """The largest of each window."""
    first, *rest = _places(s, _framed(t, s, -math.inf))
    y = s.y = t.copy(first)
    for place in rest:
        t.maximum(y, place, out=y)
    return y


def max_pool_gradients(t: Tape, s: Site, g: Ref) -> Gradients:
    """Each gradient at the first place that has the maximum."""
    wide = _framed(t, s, -math.inf)
    total = t.full(wide.shape, 0.0)
    free = t.full(g.shape, True, "bool")
    for place, target in zip(_places(s, wide), _places(s, total), strict=True):
        here = t.equal(place, s.y)
        t.logical_and(here, free, out=here)
        t.add(target, t.multiply(g, here), out=target)
        t.logical_not(here, out=here)
        t.logical_and(free, here, out=free)
    yield s.x, _inner(s, total)


def _inner(s: Site, wide: Ref) -> Ref:
    """Where x lies within its frame."""
    if wide.shape == s.x.shape:
        return wide
    (top, left), (_, _, h, w) = pair(s.kind.padding), s.x.shape
    return wide[:, :, top : top + h, left : left + w]


def _counts(size: Shape, kernel_size: Shape, step: Shape, ends: Shape) -> numpy.ndarray:
    """Members of each window; what lies beyond the padding is none."""
    import numpy

    down, across = (
        numpy.minimum(numpy.arange(n) * step[axis] + kernel_size[axis], ends[axis]) - numpy.arange(n) * step[axis]
        for axis, n in enumerate(size)
    )
    return down[:, None] * across


def _members(t: Tape, s: Site) -> Ref | float:
    """What a mean divides by: a number, or an array where the last windows stick out."""
    kernel_size, ends = (
        pair(s.kind.kernel),
        tuple(n + 2 * p for n, p in zip(s.x.shape[2:], pair(s.kind.padding), strict=True)),
    )
    if all(reach <= end for reach, end in zip(_reach(s), ends, strict=True)):
        return float(kernel_size[0] * kernel_size[1])
    return t.constant(_size(s), partial(_counts, _size(s), kernel_size, s.kind.strides, ends))


def avg_pool(t: Tape, s: Site) -> Ref:
    """The mean of each window."""
    first, *rest = _places(s, _framed(t, s, 0.0))
    y = t.copy(first)
    for place in rest:
        t.add(y, place, out=y)
    return t.divide(y, _members(t, s), out=y)


def avg_pool_gradients(t: Tape, s: Site, g: Ref) -> Gradients:
    """A share of each gradient at every place of its window."""
    (top, left), (b, c, h, w), reach = pair(s.kind.padding), s.x.shape, _reach(s)
    share = t.divide(g, _members(t, s))
    total = t.full((b, c, max(reach[0], top + h), max(reach[1], left + w)), 0.0)
    for target in _places(s, total):
        t.add(target, share, out=target)
    yield s.x, _inner(s, total)


def global_avg_pool(t: Tape, s: Site) -> Ref:
    """The mean of each channel."""
    y = t.mean(s.x, (2, 3))
    return y if s.kind.keepdims else y.reshape(*s.x.shape[:2])


def whole_gradients(t: Tape, s: Site, g: Ref) -> Gradients:
    """A share of the gradient, seen at every place."""
    share = t.divide(g, float(s.x.shape[2] * s.x.shape[3]))
    yield s.x, share.reshape(*s.x.shape[:2], 1, 1).broadcast_to(*s.x.shape)


def _adaptive(s: Site) -> Iterator[tuple[int, int, slice, slice]]:
    """Row and column of each window; the rows and columns of x that it covers."""
    rows, columns = (
        [slice(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]
        for n, m in zip(s.x.shape[2:], pair(s.kind.size), strict=True)
    )
    for r, down in enumerate(rows):
        for c, across in enumerate(columns):
            yield r, c, down, across


def adaptive_avg_pool(t: Tape, s: Site) -> Ref:
    """The mean of each of `size` windows."""
    y = t.empty(*s.x.shape[:2], *pair(s.kind.size))
    for r, c, down, across in _adaptive(s):
        target, window = y[:, :, r, c], s.x[:, :, down, across]
        t.sum(window, (2, 3), keepdims=False, out=target)
        t.divide(target, float(window.shape[2] * window.shape[3]), out=target)
    return y


def adaptive_avg_pool_gradients(t: Tape, s: Site, g: Ref) -> Gradients:
    """A share of each gradient at every place of its window."""
    if pair(s.kind.size) == (1, 1):
        yield from whole_gradients(t, s, g)
        return
    total = t.full(s.x.shape, 0.0)
    for r, c, down, across in _adaptive(s):
        target = total[:, :, down, across]
        share = t.divide(g[:, :, r, c], float(target.shape[2] * target.shape[3]))
        t.add(target, share[:, :, None, None], out=target)
    yield s.x, total


def adaptive_max_pool(t: Tape, s: Site) -> Ref:
    """The largest of each of `size` windows."""
    y = s.y = t.empty(*s.x.shape[:2], *pair(s.kind.size))
    for r, c, down, across in _adaptive(s):
        t.reduce("maximum", s.x[:, :, down, across], (2, 3), keepdims=False, out=y[:, :, r, c])
    return y


def adaptive_max_pool_gradients(t: Tape, s: Site, g: Ref) -> Gradients:
    """Each gradient at the first place that has the maximum."""
    total = t.full(s.x.shape, 0.0)
    for r, c, down, across in _adaptive(s):
        window, target = (x[:, :, down, across] for x in (s.x, total))
        free = t.full(window.shape[:2], True, "bool")
        for i in range(window.shape[2]):
            for j in range(window.shape[3]):
                here = t.equal(window[:, :, i, j], s.y[:, :, r, c])
                t.logical_and(here, free, out=here)
                t.add(target[:, :, i, j], t.multiply(g[:, :, r, c], here), out=target[:, :, i, j])
                t.logical_not(here, out=here)
                t.logical_and(free, here, out=free)
    yield s.x, total


PLACES = (
    "NumPy keeps no places of maxima: each place of the window is compared with the maximum, and the first one gets g"
)

kernel("max_pool", max_pool, max_pool_gradients, beside={"backward": PLACES})
kernel("avg_pool", avg_pool, avg_pool_gradients)
kernel("global_avg_pool", global_avg_pool, whole_gradients)
kernel("adaptive_avg_pool", adaptive_avg_pool, adaptive_avg_pool_gradients)
kernel("adaptive_max_pool", adaptive_max_pool, adaptive_max_pool_gradients, beside={"backward": PLACES})
