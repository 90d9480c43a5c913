"""Kinds that resize or rearrange images."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from costmodel.roofline.kernels.kernel import Gradients, Site, kernel
from costmodel.roofline.reference import Ref, Shape
from costmodel.roofline.tape import Tape
from costmodel.training.fields import pair

if TYPE_CHECKING:
    import numpy


def _apart(s: Site, large: Ref) -> Ref:
    """(batch, C, up·H, across·W) as (batch, C, H, up, W, across)."""
    (up, across), (b, c, h, w) = pair(s.kind.scale), s.x.shape
    return large.reshape(b, c, h, up, w, across)


def _neighbour(size: Shape, scale: Shape, side: Shape, want: str) -> numpy.ndarray:
    """Of each pixel's neighbour on a `side` (down, across): where it lies in a flat image, or its share."""
    import numpy

    centres = [numpy.maximum((numpy.arange(n * k) + 0.5) / k - 0.5, 0) for n, k in zip(size, scale, strict=True)]
    lows = [numpy.floor(x).astype(int) for x in centres]
    if want == "place":
        row, column = (numpy.minimum(low + at, n - 1) for low, at, n in zip(lows, side, size, strict=True))
        return (row[:, None] * size[1] + column).reshape(-1)
    shares = [x - low if at else 1 - (x - low) for x, low, at in zip(centres, lows, side, strict=True)]
    return (shares[0][:, None] * shares[1]).reshape(-1)


def _neighbours(t: Tape, s: Site) -> list[tuple[Ref, Ref]]:
    """Places and shares of the four neighbours of each pixel."""
    size, scale = s.x.shape[2:], pair(s.kind.scale)
    count = size[0] * scale[0] * size[1] * scale[1]
    sides = [(down, across) for down in (0, 1) for across in (0, 1)]
    made: list[Callable[[str], numpy.ndarray]] = [partial(_neighbour, size, scale, side) for side in sides]
    return [
        (t.constant((count,), partial(of, "place"), "int64"), t.constant((count,), partial(of, "share"))) for of in made
    ]


def upsample(t: Tape, s: Site) -> Ref:
    """Nearest copies; bilinear mixes four neighbours."""
    b, c, h, w = s.x.shape
    up, across = pair(s.kind.scale)
    y = t.empty(b, c, up * h, across * w)
    if s.kind.mode == "nearest":
        t.copyto(_apart(s, y), s.x[:, :, :, None, :, None].broadcast_to(b, c, h, up, w, across))
        return y
    flat, x = y.reshape(b, c, -1), t.reshape(s.x, b, c, -1)
    (place, share), *rest = _neighbours(t, s)
    t.multiply(t.take(x, place, axis=2), share, out=flat)
    for place, share in rest:
        term = t.take(x, place, axis=2)
        t.add(flat, t.multiply(term, share, out=term), out=flat)
    return y


def upsample_gradients(t: Tape, s: Site, g: Ref) -> Gradients:
    """Summed over the copies of a pixel, or weighed and added to each pixel's four sources."""
    if s.kind.mode == "nearest":
        g = t.reshape(g, *g.shape)
        apart = _apart(s, g if g.contiguous else t.copy(g))
        yield s.x, t.reduce("add", apart, (3, 5), keepdims=False, initial=0.0)
        return
    b, c, h, w = s.x.shape
    total, flat = t.full((b, c, h * w), 0.0), t.reshape(g, b, c, -1)
    for place, share in _neighbours(t, s):
        t.at("add", total, place, t.multiply(flat, share), axis=-1)
    yield s.x, total.reshape(b, c, h, w)


def pixel_shuffle(t: Tape, s: Site) -> Ref:
    """(batch, C·r², H, W) → (batch, C, r·H, r·W)."""
    (b, c, h, w), r = s.x.shape, s.kind.factor
    apart = t.reshape(s.x, b, c // r**2, r, r, h, w)
    return t.reshape(apart.transpose(0, 1, 4, 2, 5, 3), b, c // r**2, r * h, r * w)


def pixel_shuffle_gradients(t: Tape, s: Site, g: Ref) -> Gradients:
    """The way back."""
    (b, c, h, w), r = s.x.shape, s.kind.factor
    apart = t.reshape(g, b, c // r**2, h, r, w, r)
    yield s.x, t.reshape(apart.transpose(0, 1, 3, 5, 2, 4), b, c, h, w)


def _dealt(t: Tape, x: Ref, first: int) -> Ref:
    """Channels (first, rest), transposed."""
    b, c, h, w = x.shape
    return t.reshape(t.reshape(x, b, first, c // first, h, w).swapaxes(1, 2), b, c, h, w)


def channel_shuffle(t: Tape, s: Site) -> Ref:
    """Channels dealt out over `groups`."""
    return _dealt(t, s.x, s.kind.groups)


def channel_shuffle_gradients(t: Tape, s: Site, g: Ref) -> Gradients:
    """Gathered again."""
    yield s.x, _dealt(t, g, g.shape[1] // s.kind.groups)


def _sides(s: Site) -> tuple[int, ...]:
    """(left, right, top, bottom)."""
    return s.kind.sides if isinstance(s.kind.sides, tuple) else (s.kind.sides,) * 4


def pad(t: Tape, s: Site) -> Ref:
    """A rim of zeros."""
    left, right, top, bottom = _sides(s)
    b, c, h, w = s.x.shape
    y = t.full((b, c, top + h + bottom, left + w + right), 0.0)
    t.copyto(y[:, :, top : top + h, left : left + w], s.x)
    return y


def pad_gradients(t: Tape, s: Site, g: Ref) -> Gradients:
    """Without the rim."""
    left, _, top, _ = _sides(s)
    yield s.x, g[:, :, top : top + s.x.shape[2], left : left + s.x.shape[3]]


kernel("upsample", upsample, upsample_gradients)
kernel("pixel_shuffle", pixel_shuffle, pixel_shuffle_gradients)
kernel("channel_shuffle", channel_shuffle, channel_shuffle_gradients)
kernel("pad", pad, pad_gradients)
