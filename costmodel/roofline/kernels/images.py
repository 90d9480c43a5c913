"""Programs of layers on images: convolutions, pooling, resizing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product

import numpy

from costmodel.layers.spatial import slide, slide_beyond
from costmodel.roofline.kernels import ArrayTape, Gradients, KernelCall, kernel, spread, unary
from costmodel.roofline.memory import Ref, Shape
from costmodel.training.fields import pair


def _cut(wide: Ref, corner: Shape, shape: Shape) -> Ref:
    """A part of the last two axes, as large as those of `shape`: a view."""
    return wide[:, :, corner[0] : corner[0] + shape[2], corner[1] : corner[1] + shape[3]]


def _framed(t: ArrayTape, x: Ref, corner: Shape, size: Shape, outside: float = 0.0) -> Ref:
    """x from a corner on within an image of `size` whose other numbers are `outside`."""
    wide = t.full((*x.shape[:2], *size), outside)
    t.copyto(_cut(wide, corner, x.shape), x)
    return wide


def _padded(t: ArrayTape, x: Ref, sides: Shape) -> Ref:
    """x with a rim of zeros (height, width)."""
    return _framed(t, x, sides, (x.shape[2] + 2 * sides[0], x.shape[3] + 2 * sides[1])) if any(sides) else x


def _columns(t: ArrayTape, s: KernelCall, wide: Ref, count: Shape) -> Ref:
    """(batch, groups, channels·k_h·k_w, windows), copied unless the image is that already."""
    size = pair(s.kind.kernel)
    windows = wide.windows(size, pair(s.kind.stride), pair(s.kind.dilation), count)
    b, groups = wide.shape[0], s.kind.groups
    if size == (1, 1) and count == wide.shape[2:]:
        return t.reshape(wide, b, groups, -1, count[0] * count[1])
    return t.copy(windows).reshape(b, groups, -1, count[0] * count[1])


def _matrix(t: ArrayTape, s: KernelCall) -> Ref:
    """The weight as (groups, narrow channels of a group, wide channels·k_h·k_w)."""
    weight = s.weights["weight"]
    return weight.reshape(s.kind.groups, weight.shape[0] // s.kind.groups, -1)


def _grouped(t: ArrayTape, s: KernelCall, narrow: Ref) -> Ref:
    """(batch, groups, channels of a group, positions)."""
    b, c, h, w = narrow.shape
    return t.reshape(narrow, b, s.kind.groups, c // s.kind.groups, h * w)


def _to_narrow(t: ArrayTape, s: KernelCall, wide: Ref, count: Shape) -> Ref:
    """Every window with the weight."""
    y = t.matmul(_matrix(t, s), _columns(t, s, wide, count))
    return y.reshape(wide.shape[0], -1, *count)


def _to_wide(t: ArrayTape, s: KernelCall, narrow: Ref, size: Shape) -> Ref:
    """A window of the weight for every number of `narrow`, added up where they overlap."""
    columns = t.matmul(_matrix(t, s).swapaxes(-1, -2), _grouped(t, s, narrow))
    kernel_size, step, gaps, count = pair(s.kind.kernel), pair(s.kind.stride), pair(s.kind.dilation), narrow.shape[2:]
    b, channels = narrow.shape[0], s.weights["weight"].shape[1] * s.kind.groups
    if kernel_size == (1, 1) and count == size:
        return columns.reshape(b, channels, *size)
    wide = t.full((b, channels, *size), 0.0)
    windows = wide.windows(kernel_size, step, gaps, count)
    columns = columns.reshape(b, channels, *kernel_size, *count)
    for i, j in product(*map(range, kernel_size)):
        t.chain(windows[:, :, i, j], ("add", columns[:, :, i, j]))
    return wide


def _weight_gradient(t: ArrayTape, s: KernelCall, narrow: Ref, wide: Ref) -> Ref:
    """Every number of `narrow` with its window, for each sample; then their sum."""
    columns = _columns(t, s, wide, narrow.shape[2:])
    each = t.matmul(_grouped(t, s, narrow), columns.swapaxes(-1, -2))
    total = t.sum(each, 0, keepdims=False) if each.shape[0] > 1 else each
    return total.reshape(*s.weights["weight"].shape)


def _biased(t: ArrayTape, s: KernelCall, y: Ref) -> Ref:
    return t.add(y, spread(s.weights["bias"], y.shape), out=y) if s.kind.bias else y


def _bias_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    if "bias" in s.names:
        yield s.weights["bias"], t.accumulate(g, (g.shape[1], 1, 1)).reshape(-1)


def conv(t: ArrayTape, s: KernelCall) -> Ref:
    """Windows of the padded image with the weight."""
    sides, gaps, step = pair(s.kind.padding), s.kind.span(), pair(s.kind.stride)
    wide = _padded(t, s.x, sides)
    axes = zip(wide.shape[2:], gaps, step, strict=True)
    return _biased(t, s, _to_narrow(t, s, wide, tuple((n - span) // stride + 1 for n, span, stride in axes)))


def conv_gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    """dx by col2im; dW from the windows, copied out again."""
    sides, (_, _, h, w) = pair(s.kind.padding), s.x.shape
    if s.wants(s.x):
        yield s.x, _cut(_to_wide(t, s, g, (h + 2 * sides[0], w + 2 * sides[1])), sides, s.x.shape)
    if "weight" in s.names:
        yield s.weights["weight"], _weight_gradient(t, s, g, _padded(t, s.x, sides))
    yield from _bias_gradient(t, s, g)


def conv_transpose(t: ArrayTape, s: KernelCall) -> Ref:
    """Windows of the weight added up, the padding cut off."""
    (top, left), more = pair(s.kind.padding), pair(s.kind.output_padding)
    axes = zip(s.x.shape[2:], s.kind.span(), pair(s.kind.stride), more, strict=True)
    size = tuple(stride * (n - 1) + span + extra for n, span, stride, extra in axes)
    wide = _to_wide(t, s, s.x, size)
    return _biased(t, s, wide[:, :, top : size[0] - top, left : size[1] - left])


def conv_transpose_gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    """dx is the convolution of g, padded again."""
    wide = _padded(t, g, pair(s.kind.padding))
    if s.wants(s.x):
        yield s.x, _to_narrow(t, s, wide, s.x.shape[2:])
    if "weight" in s.names:
        yield s.weights["weight"], _weight_gradient(t, s, s.x, wide)
    yield from _bias_gradient(t, s, g)


ADDED = "windows that overlap are added up apart from their products, and so are the weight gradients of each sample"

kernel("conv", conv, conv_gradients, {"backward": ADDED})
kernel("conv_transpose", conv_transpose, conv_transpose_gradients, {"forward": ADDED, "backward": ADDED})


def _size(s: KernelCall) -> Shape:
    """Windows (down, across)."""
    count = slide_beyond if s.kind.ceil_mode else slide
    axes = zip(s.x.shape[2:], pair(s.kind.kernel), s.kind.strides, pair(s.kind.padding), strict=True)
    return tuple(int(count(*axis)) for axis in axes)


def _extent(s: KernelCall) -> tuple[Shape, Shape]:
    """What all windows together need (down, across), and the frame of x that has it."""
    axes = zip(_size(s), pair(s.kind.kernel), s.kind.strides, strict=True)
    reach = tuple(step * (n - 1) + k for n, k, step in axes)
    inside = zip(pair(s.kind.padding), s.x.shape[2:], reach, strict=True)
    return reach, tuple(max(need, side + n) for side, n, need in inside)


def _reached(t: ArrayTape, s: KernelCall, outside: float) -> Ref:
    """x within as much of `outside` as windows reach."""
    sides, (_, frame) = pair(s.kind.padding), _extent(s)
    return s.x if sides == (0, 0) and frame == s.x.shape[2:] else _framed(t, s.x, sides, frame, outside)


def _places(s: KernelCall, wide: Ref) -> Iterator[Ref]:
    """Each place of the window in all windows: (batch, C, H', W'), views."""
    windows = wide.windows(pair(s.kind.kernel), s.kind.strides, (1, 1), _size(s))
    for i, j in product(*map(range, windows.shape[2:4])):
        yield windows[:, :, i, j]


def max_pool(t: ArrayTape, s: KernelCall) -> Ref:
    """The largest of each window."""
    first, *rest = _places(s, _reached(t, s, -math.inf))
    return t.chain(t.copy(first), *(("maximum", place) for place in rest))


def max_pool_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """Each gradient at the first place that has the maximum."""
    wide = _reached(t, s, -math.inf)
    total = t.full(wide.shape, 0.0)
    _claim(t, s.y, g, zip(_places(s, wide), _places(s, total), strict=True))
    return _inner(s, total)


def _claim(t: ArrayTape, largest: Ref, g: Ref, places: Iterable[tuple[Ref, Ref]]) -> None:
    """Add g to the target of the first place, of (place, target), that has the maximum."""
    free = t.full(g.shape, True, "bool")
    for place, target in places:
        here = t.equal(place, largest)
        t.logical_and(here, free, out=here)
        t.add(target, t.multiply(g, here), out=target)
        t.logical_not(here, out=here)
        t.logical_and(free, here, out=free)


def _inner(s: KernelCall, wide: Ref) -> Ref:
    """Where x lies within its frame."""
    return wide if wide.shape == s.x.shape else _cut(wide, pair(s.kind.padding), s.x.shape)


def _counts(size: Shape, kernel_size: Shape, step: Shape, ends: Shape) -> numpy.ndarray:
    """Members of each window; what lies beyond the padding is none."""
    starts = [numpy.arange(n) * stride for n, stride in zip(size, step, strict=True)]
    down, across = (numpy.minimum(at + k, end) - at for at, k, end in zip(starts, kernel_size, ends, strict=True))
    return down[:, None] * across


def _members(t: ArrayTape, s: KernelCall) -> Ref | float:
    """What a mean divides by: a number, or an array where the last windows stick out."""
    kernel_size, (reach, _) = pair(s.kind.kernel), _extent(s)
    ends = tuple(n + 2 * side for n, side in zip(s.x.shape[2:], pair(s.kind.padding), strict=True))
    if all(need <= end for need, end in zip(reach, ends, strict=True)):
        return float(kernel_size[0] * kernel_size[1])
    return t.constant(_size(s), partial(_counts, _size(s), kernel_size, s.kind.strides, ends))


def avg_pool(t: ArrayTape, s: KernelCall) -> Ref:
    """The mean of each window."""
    first, *rest = _places(s, _reached(t, s, 0.0))
    y = t.chain(t.copy(first), *(("add", place) for place in rest))
    return t.divide(y, _members(t, s), out=y)


def avg_pool_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """A share of each gradient at every place of its window."""
    share = t.divide(g, _members(t, s))
    total = t.full((*s.x.shape[:2], *_extent(s)[1]), 0.0)
    for target in _places(s, total):
        t.add(target, share, out=target)
    return _inner(s, total)


def global_avg_pool(t: ArrayTape, s: KernelCall) -> Ref:
    """The mean of each channel."""
    y = t.mean(s.x, (2, 3))
    return y if s.kind.keepdims else y.reshape(*s.x.shape[:2])


def whole_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """A share of the gradient, seen at every place."""
    share = t.divide(g, float(s.x.shape[2] * s.x.shape[3]))
    return share.reshape(*s.x.shape[:2], 1, 1).broadcast_to(*s.x.shape)


def _adaptive(s: KernelCall) -> Iterator[tuple[int, int, slice, slice]]:
    """Row and column of each window; the rows and columns of x that it covers."""
    rows, columns = (
        [slice(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]
        for n, m in zip(s.x.shape[2:], pair(s.kind.size), strict=True)
    )
    for r, down in enumerate(rows):
        for c, across in enumerate(columns):
            yield r, c, down, across


def adaptive_avg_pool(t: ArrayTape, s: KernelCall) -> Ref:
    """The mean of each of `size` windows."""
    y = t.empty(*s.x.shape[:2], *pair(s.kind.size))
    for r, c, down, across in _adaptive(s):
        target, window = y[:, :, r, c], s.x[:, :, down, across]
        t.sum(window, (2, 3), keepdims=False, out=target)
        t.divide(target, float(window.shape[2] * window.shape[3]), out=target)
    return y


def adaptive_avg_pool_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """A share of each gradient at every place of its window."""
    if pair(s.kind.size) == (1, 1):
        return whole_gradient(t, s, g)
    total = t.full(s.x.shape, 0.0)
    for r, c, down, across in _adaptive(s):
        target = total[:, :, down, across]
        share = t.divide(g[:, :, r, c], float(target.shape[2] * target.shape[3]))
        t.add(target, share[:, :, None, None], out=target)
    return total


def adaptive_max_pool(t: ArrayTape, s: KernelCall) -> Ref:
    """The largest of each of `size` windows."""
    y = t.empty(*s.x.shape[:2], *pair(s.kind.size))
    for r, c, down, across in _adaptive(s):
        t.reduce("maximum", s.x[:, :, down, across], (2, 3), keepdims=False, out=y[:, :, r, c])
    return y


def adaptive_max_pool_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """Each gradient at the first place that has the maximum."""
    total = t.full(s.x.shape, 0.0)
    for r, c, down, across in _adaptive(s):
        window, target = (x[:, :, down, across] for x in (s.x, total))
        places = product(*map(range, window.shape[2:]))
        _claim(t, s.y[:, :, r, c], g[:, :, r, c], ((window[:, :, i, j], target[:, :, i, j]) for i, j in places))
    return total


PLACES = (
    "NumPy keeps no places of maxima: each place of the window is compared with the maximum, and the first one gets g"
)

unary("max_pool", max_pool, max_pool_gradient, {"backward": PLACES})
unary("avg_pool", avg_pool, avg_pool_gradient)
unary("global_avg_pool", global_avg_pool, whole_gradient)
unary("adaptive_avg_pool", adaptive_avg_pool, adaptive_avg_pool_gradient)
unary("adaptive_max_pool", adaptive_max_pool, adaptive_max_pool_gradient, {"backward": PLACES})


def _by_pixel(s: KernelCall, large: Ref) -> Ref:
    """(batch, C, up·H, across·W) as (batch, C, H, up, W, across)."""
    (up, across), (b, c, h, w) = pair(s.kind.scale), s.x.shape
    return large.reshape(b, c, h, up, w, across)


def _neighbour(size: Shape, scale: Shape, side: Shape, want: str) -> numpy.ndarray:
    """Of each pixel's neighbour on a `side` (down, across): where it lies in a flat image, or its share."""
    centres = [numpy.maximum((numpy.arange(n * k) + 0.5) / k - 0.5, 0) for n, k in zip(size, scale, strict=True)]
    lows = [numpy.floor(x).astype(int) for x in centres]
    if want == "place":
        row, column = (numpy.minimum(low + at, n - 1) for low, at, n in zip(lows, side, size, strict=True))
        return (row[:, None] * size[1] + column).reshape(-1)
    shares = [x - low if at else 1 - (x - low) for x, low, at in zip(centres, lows, side, strict=True)]
    return (shares[0][:, None] * shares[1]).reshape(-1)


def _neighbours(t: ArrayTape, s: KernelCall) -> list[tuple[Ref, Ref]]:
    """Places and shares of the four neighbours of each pixel."""
    size, scale = s.x.shape[2:], pair(s.kind.scale)
    count = size[0] * scale[0] * size[1] * scale[1]
    makers = [partial(_neighbour, size, scale, side) for side in product((0, 1), repeat=2)]
    return [
        (t.constant((count,), partial(of, "place"), "int64"), t.constant((count,), partial(of, "share")))
        for of in makers
    ]


def upsample(t: ArrayTape, s: KernelCall) -> Ref:
    """Nearest copies; bilinear mixes four neighbours."""
    b, c, h, w = s.x.shape
    up, across = pair(s.kind.scale)
    y = t.empty(b, c, up * h, across * w)
    if s.kind.mode == "nearest":
        t.copyto(_by_pixel(s, y), s.x[:, :, :, None, :, None].broadcast_to(b, c, h, up, w, across))
        return y
    flat, x = y.reshape(b, c, -1), t.reshape(s.x, b, c, -1)
    (place, share), *rest = _neighbours(t, s)
    t.multiply(t.take(x, place, axis=2), share, out=flat)
    for place, share in rest:
        term = t.take(x, place, axis=2)
        t.add(flat, t.multiply(term, share, out=term), out=flat)
    return y


def upsample_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """Summed over the copies of a pixel, or weighed and added to each pixel's four sources."""
    if s.kind.mode == "nearest":
        copies = _by_pixel(s, g if g.contiguous else t.copy(g))
        return t.reduce("add", copies, (3, 5), keepdims=False, initial=0.0)
    b, c, h, w = s.x.shape
    total, flat = t.full((b, c, h * w), 0.0), t.reshape(g, b, c, -1)
    for place, share in _neighbours(t, s):
        t.at("add", total, place, t.multiply(flat, share), axis=-1)
    return total.reshape(b, c, h, w)


def pixel_shuffle(t: ArrayTape, s: KernelCall) -> Ref:
    """(batch, C·r², H, W) → (batch, C, r·H, r·W)."""
    (b, c, h, w), r = s.x.shape, s.kind.factor
    blocks = t.reshape(s.x, b, c // r**2, r, r, h, w)
    return t.reshape(blocks.transpose(0, 1, 4, 2, 5, 3), b, c // r**2, r * h, r * w)


def pixel_shuffle_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """The way back."""
    (b, c, h, w), r = s.x.shape, s.kind.factor
    blocks = t.reshape(g, b, c // r**2, h, r, w, r)
    return t.reshape(blocks.transpose(0, 1, 3, 5, 2, 4), b, c, h, w)


def _dealt(t: ArrayTape, x: Ref, first: int) -> Ref:
    """Channels (first, rest), transposed."""
    b, c, h, w = x.shape
    return t.reshape(t.reshape(x, b, first, c // first, h, w).swapaxes(1, 2), b, c, h, w)


def pad(t: ArrayTape, s: KernelCall) -> Ref:
    """A rim of zeros."""
    left, right, top, bottom = _sides(s)
    return _framed(t, s.x, (top, left), (top + s.x.shape[2] + bottom, left + s.x.shape[3] + right))


def pad_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """Without the rim."""
    left, _, top, _ = _sides(s)
    return _cut(g, (top, left), s.x.shape)


def _sides(s: KernelCall) -> tuple[int, ...]:
    """(left, right, top, bottom)."""
    return s.kind.sides if isinstance(s.kind.sides, tuple) else (s.kind.sides,) * 4


unary("upsample", upsample, upsample_gradient)
unary("pixel_shuffle", pixel_shuffle, pixel_shuffle_gradient)
unary(
    "channel_shuffle",
    lambda t, s: _dealt(t, s.x, s.kind.groups),
    lambda t, s, g: _dealt(t, g, g.shape[1] // s.kind.groups),
)
unary("pad", pad, pad_gradient)
