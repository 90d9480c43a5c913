"""Shape-only kinds: views where memory order allows them, else copies."""

from __future__ import annotations

from costmodel.errors import SettingError
from costmodel.roofline.kernels.kernel import Gradients, KernelCall, Tape, kernel
from costmodel.roofline.reference import Ref

NAMES = {"fp32": "float32", "fp16": "float16"}
"""NumPy's names of the types that it has."""


def reshape(t: Tape, s: KernelCall) -> Ref:
    """(batch, *shape)."""
    return t.reshape(s.x, s.x.shape[0], *map(int, s.kind.shape))


def flatten(t: Tape, s: KernelCall) -> Ref:
    """(batch, rest)."""
    return t.reshape(s.x, s.x.shape[0], -1)


def reshape_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """The shape of the input."""
    yield s.x, t.reshape(g, *s.x.shape)


def permute(t: Tape, s: KernelCall) -> Ref:
    """A view."""
    return s.x.transpose(*s.kind.axes)


def permute_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """The inverse view."""
    axes = s.kind.axes
    yield s.x, g.transpose(*sorted(range(len(axes)), key=axes.__getitem__))


def _part(s: KernelCall, x: Ref) -> Ref:
    within = slice(s.kind.start, s.kind.start + s.kind.length)
    return x[..., within] if s.kind.axis is None else x[(*(slice(None) for _ in range(s.kind.axis)), within)]


def part(t: Tape, s: KernelCall) -> Ref:
    """A view of some features."""
    return _part(s, s.x)


def part_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """The gradient within zeros."""
    whole = t.full(s.x.shape, 0.0)
    t.copyto(_part(s, whole), g)
    yield s.x, whole


def split_heads(t: Tape, s: KernelCall) -> Ref:
    """(batch, T, heads·d_h) → (batch, heads, T, d_h), a view."""
    b, count, width = s.x.shape
    return t.reshape(s.x, b, count, s.kind.heads, width // s.kind.heads).swapaxes(1, 2)


def split_heads_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """The heads of a token beside each other again."""
    yield s.x, t.reshape(g.swapaxes(1, 2), *s.x.shape)


def merge_heads(t: Tape, s: KernelCall) -> Ref:
    """(batch, heads, T, d_h) → (batch, T, heads·d_h), a copy."""
    b, heads, count, features = s.x.shape
    return t.reshape(s.x.swapaxes(1, 2), b, count, heads * features)


def merge_heads_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """A view."""
    b, heads, count, features = s.x.shape
    yield s.x, t.reshape(g, b, count, heads, features).swapaxes(1, 2)


def transpose_last(t: Tape, s: KernelCall) -> Ref:
    """A view."""
    return s.x.swapaxes(-1, -2)


def transpose_last_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """A view."""
    yield s.x, g.swapaxes(-1, -2)


def repeat_heads(t: Tape, s: KernelCall) -> Ref:
    """Each head `times` times, a copy unless there is one."""
    b, heads, count, features = s.x.shape
    seen = s.x[:, :, None].broadcast_to(b, heads, s.kind.times, count, features)
    return t.reshape(seen, b, heads * s.kind.times, count, features)


def repeat_heads_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """The sum over the repeats."""
    b, heads, count, features = s.x.shape
    apart = t.reshape(g, b, heads, s.kind.times, count, features)
    yield s.x, t.reduce("add", apart, 2, keepdims=False, initial=0.0)


def concat(t: Tape, s: KernelCall) -> Ref:
    """One after another along the channels."""
    batch, _, *rest = s.x.shape
    y = t.empty(batch, sum(x.shape[1] for x in s.inputs), *rest)
    start = 0
    for x in s.inputs:
        t.copyto(y[:, start : start + x.shape[1]], x)
        start += x.shape[1]
    return y


def concat_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """Slices."""
    start = 0
    for x in s.inputs:
        if s.wants(x):
            yield x, g[:, start : start + x.shape[1]]
        start += x.shape[1]


def join(t: Tape, s: KernelCall) -> Ref:
    """One after another along the last axis."""
    y = t.empty(*s.x.shape[:-1], sum(x.shape[-1] for x in s.inputs))
    start = 0
    for x in s.inputs:
        t.copyto(y[..., start : start + x.shape[-1]], x)
        start += x.shape[-1]
    return y


def join_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """Slices."""
    start = 0
    for x in s.inputs:
        if s.wants(x):
            yield x, g[..., start : start + x.shape[-1]]
        start += x.shape[-1]


def cast(t: Tape, s: KernelCall) -> Ref:
    """A copy in another type; in float64, "fp32" is that. Raises SettingError for a type that NumPy has not."""
    if s.kind.dtype not in NAMES:
        raise SettingError(f"NumPy has no {s.kind.dtype}: predict with precision='fp32'")
    dtype = t.dtype if s.kind.dtype == "fp32" else NAMES[s.kind.dtype]
    return t.copyto(t.empty(*s.x.shape, dtype=dtype, like=s.x), s.x)


def cast_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """A copy in the type of x."""
    yield s.x, t.copyto(t.empty(*g.shape, dtype=s.x.dtype, like=g), g)


kernel("reshape", reshape, reshape_gradients)
kernel("flatten", flatten, reshape_gradients)
kernel("permute", permute, permute_gradients)
kernel("slice", part, part_gradients)
kernel("split_heads", split_heads, split_heads_gradients)
kernel("merge_heads", merge_heads, merge_heads_gradients)
kernel("transpose_last", transpose_last, transpose_last_gradients)
kernel("repeat_heads", repeat_heads, repeat_heads_gradients)
kernel("concat", concat, concat_gradients)
kernel("join", join, join_gradients)
kernel("cast", cast, cast_gradients)
