"""Convolutions as matrix products with the windows of an image, copied out (im2col) or added back (col2im).

A convolution and its transpose are one map between a wide image (padded) and a narrow one (a number per window), read
in either direction; the weight is (narrow channels, wide channels of a group, k_h, k_w).
"""

from __future__ import annotations

from costmodel.roofline.kernels.kernel import Gradients, Site, kernel, spread
from costmodel.roofline.reference import Ref, Shape
from costmodel.roofline.tape import Tape
from costmodel.training.fields import pair


def _padded(t: Tape, x: Ref, sides: Shape) -> Ref:
    """x with a rim of zeros (height, width)."""
    if not any(sides):
        return x
    b, c, h, w = x.shape
    wide = t.full((b, c, h + 2 * sides[0], w + 2 * sides[1]), 0.0)
    t.copyto(wide[:, :, sides[0] : sides[0] + h, sides[1] : sides[1] + w], x)
    return wide


def _columns(t: Tape, s: Site, wide: Ref, count: Shape) -> Ref:
    """(batch, groups, channels·k_h·k_w, windows), copied unless the image is that already."""
    size = pair(s.kind.kernel)
    windows = wide.windows(size, pair(s.kind.stride), pair(s.kind.dilation), count)
    b, groups = wide.shape[0], s.kind.groups
    if size == (1, 1) and count == wide.shape[2:]:
        return t.reshape(wide, b, groups, -1, count[0] * count[1])
    return t.copy(windows).reshape(b, groups, -1, count[0] * count[1])


def _matrix(t: Tape, s: Site) -> Ref:
    """The weight as (groups, narrow channels of a group, wide channels·k_h·k_w)."""
    weight = s.weights["weight"]
    return weight.reshape(s.kind.groups, weight.shape[0] // s.kind.groups, -1)


def _grouped(t: Tape, s: Site, narrow: Ref) -> Ref:
    """(batch, groups, channels of a group, positions)."""
    b, c, h, w = narrow.shape
    return t.reshape(narrow, b, s.kind.groups, c // s.kind.groups, h * w)


def _to_narrow(t: Tape, s: Site, wide: Ref, count: Shape) -> Ref:
    """Every window with the weight."""
    y = t.matmul(_matrix(t, s), _columns(t, s, wide, count))
    return y.reshape(wide.shape[0], -1, *count)


def _to_wide(t: Tape, s: Site, narrow: Ref, size: Shape) -> Ref:
    """A window of the weight for every number of `narrow`, added up where they overlap."""
    columns = t.matmul(_matrix(t, s).swapaxes(-1, -2), _grouped(t, s, narrow))
    kernel_size, step, gaps, count = pair(s.kind.kernel), pair(s.kind.stride), pair(s.kind.dilation), narrow.shape[2:]
    b, channels = narrow.shape[0], s.weights["weight"].shape[1] * s.kind.groups
    if kernel_size == (1, 1) and count == size:
        return columns.reshape(b, channels, *size)
    wide = t.full((b, channels, *size), 0.0)
    windows = wide.windows(kernel_size, step, gaps, count)
    columns = columns.reshape(b, channels, *kernel_size, *count)
    for i in range(kernel_size[0]):
        for j in range(kernel_size[1]):
            t.add(windows[:, :, i, j], columns[:, :, i, j], out=windows[:, :, i, j])
    return wide


def _weight_gradient(t: Tape, s: Site, narrow: Ref, wide: Ref) -> Ref:
    """Every number of `narrow` with its window, for each sample; then their sum."""
    columns = _columns(t, s, wide, narrow.shape[2:])
    each = t.matmul(_grouped(t, s, narrow), columns.swapaxes(-1, -2))
    total = t.sum(each, 0, keepdims=False) if each.shape[0] > 1 else each
    return total.reshape(*s.weights["weight"].shape)


def _biased(t: Tape, s: Site, y: Ref) -> Ref:
    return t.add(y, spread(s.weights["bias"], y.shape), out=y) if s.kind.bias else y


def _bias_gradient(t: Tape, s: Site, g: Ref) -> Gradients:
    if "bias" in s.names:
        yield s.weights["bias"], t.accumulate(g, (g.shape[1], 1, 1)).reshape(-1)


def conv(t: Tape, s: Site) -> Ref:
    """Windows of the padded image with the weight."""
    sides, gaps, step = pair(s.kind.padding), s.kind.span(), pair(s.kind.stride)
    wide = _padded(t, s.x, sides)
    axes = zip(wide.shape[2:], gaps, step, strict=True)
    return _biased(t, s, _to_narrow(t, s, wide, tuple((n - span) // stride + 1 for n, span, stride in axes)))


def conv_gradients(t: Tape, s: Site, g: Ref) -> Gradients:
    """dx by col2im; dW from the windows, copied out again."""
    (top, left), (_, _, h, w) = pair(s.kind.padding), s.x.shape
    if s.wants(s.x):
        wide = _to_wide(t, s, g, (h + 2 * top, w + 2 * left))
        yield s.x, wide[:, :, top : top + h, left : left + w]
    if "weight" in s.names:
        yield s.weights["weight"], _weight_gradient(t, s, g, _padded(t, s.x, (top, left)))
    yield from _bias_gradient(t, s, g)


def conv_transpose(t: Tape, s: Site) -> Ref:
    """Windows of the weight added up, the padding cut off."""
    (top, left), more = pair(s.kind.padding), pair(s.kind.output_padding)
    axes = zip(s.x.shape[2:], s.kind.span(), pair(s.kind.stride), more, strict=True)
    size = tuple(stride * (n - 1) + span + extra for n, span, stride, extra in axes)
    wide = _to_wide(t, s, s.x, size)
    return _biased(t, s, wide[:, :, top : size[0] - top, left : size[1] - left])


def conv_transpose_gradients(t: Tape, s: Site, g: Ref) -> Gradients:
    """dx is the convolution of g, padded again."""
    wide = _padded(t, g, pair(s.kind.padding))
    if s.wants(s.x):
        yield s.x, _to_narrow(t, s, wide, s.x.shape[2:])
    if "weight" in s.names:
        yield s.weights["weight"], _weight_gradient(t, s, s.x, wide)
    yield from _bias_gradient(t, s, g)


ADDED = "windows that overlap are added up apart from their products, and so are the weight gradients of each sample"

kernel("conv", conv, conv_gradients, beside={"backward": ADDED})
kernel("conv_transpose", conv_transpose, conv_transpose_gradients, beside={"forward": ADDED, "backward": ADDED})
