"""Views where memory order allows them, else copies; tables looked up by index, and vectors that join a sequence."""

from __future__ import annotations

from costmodel.errors import SettingError
from costmodel.roofline.kernels import ArrayTape, Gradients, KernelCall, kernel, unary
from costmodel.roofline.memory import Ref

NAMES = {"fp32": "float32", "fp16": "float16"}
"""NumPy's names of the types that it has."""


def permute_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """The inverse view."""
    return g.transpose(*sorted(range(len(s.kind.axes)), key=s.kind.axes.__getitem__))


def along(x: Ref, axis: int, start: int, count: int) -> Ref:
    """So many places of an axis, a view."""
    return x[(*(slice(None) for _ in range(axis % len(x.shape))), slice(start, start + count))]


def _part(s: KernelCall, x: Ref) -> Ref:
    return along(x, -1 if s.kind.axis is None else s.kind.axis, s.kind.start, s.kind.length)


def part_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """The gradient within zeros."""
    whole = t.full(s.x.shape, 0.0)
    t.copyto(_part(s, whole), g)
    return whole


def _split(t: ArrayTape, x: Ref, heads: int) -> Ref:
    """(batch, T, heads·d_h) → (batch, heads, T, d_h), a view."""
    b, count, width = x.shape
    return t.reshape(x, b, count, heads, width // heads).swapaxes(1, 2)


def _merged(t: ArrayTape, x: Ref) -> Ref:
    """(batch, heads, T, d_h) → (batch, T, heads·d_h), a copy."""
    b, heads, count, features = x.shape
    return t.reshape(x.swapaxes(1, 2), b, count, heads * features)


def repeat_heads(t: ArrayTape, s: KernelCall) -> Ref:
    """Each head `times` times, a copy unless there is one."""
    b, heads, count, features = s.x.shape
    seen = s.x[:, :, None].broadcast_to(b, heads, s.kind.times, count, features)
    return t.reshape(seen, b, heads * s.kind.times, count, features)


def repeat_heads_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """The sum over the repeats."""
    b, heads, count, features = s.x.shape
    repeats = t.reshape(g, b, heads, s.kind.times, count, features)
    return t.reduce("add", repeats, 2, keepdims=False, initial=0.0)


def cast(t: ArrayTape, s: KernelCall) -> Ref:
    """A copy in another type; in float64, "fp32" is that. Raises SettingError for a type that NumPy has not."""
    if s.kind.dtype not in NAMES:
        raise SettingError(f"NumPy has no {s.kind.dtype}: predict with precision='fp32'")
    dtype = t.dtype if s.kind.dtype == "fp32" else NAMES[s.kind.dtype]
    return t.copyto(t.empty(*s.x.shape, dtype=dtype, like=s.x), s.x)


def cast_gradient(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """A copy in the type of x."""
    return t.copyto(t.empty(*g.shape, dtype=s.x.dtype, like=g), g)


def as_input(t: ArrayTape, s: KernelCall, g: Ref) -> Ref:
    """The shape of the input."""
    return t.reshape(g, *s.x.shape)


unary("reshape", lambda t, s: t.reshape(s.x, s.x.shape[0], *map(int, s.kind.shape)), as_input)
unary("flatten", lambda t, s: t.reshape(s.x, s.x.shape[0], -1), as_input)
unary("permute", lambda t, s: s.x.transpose(*s.kind.axes), permute_gradient)
unary("slice", lambda t, s: _part(s, s.x), part_gradient)
unary("split_heads", lambda t, s: _split(t, s.x, s.kind.heads), lambda t, s, g: _merged(t, g))
unary("merge_heads", lambda t, s: _merged(t, s.x), lambda t, s, g: _split(t, g, s.x.shape[1]))
unary("transpose_last", lambda t, s: s.x.swapaxes(-1, -2), lambda t, s, g: g.swapaxes(-1, -2))
unary("repeat_heads", repeat_heads, repeat_heads_gradient)
unary("cast", cast, cast_gradient)


def _joining(kind: str, axis: int) -> None:
    """The kernel of a kind that puts its inputs one after another along an axis; gradients are slices."""

    def forward(t: ArrayTape, s: KernelCall) -> Ref:
        shape = list(s.x.shape)
        shape[axis] = sum(x.shape[axis] for x in s.inputs)
        y, start = t.empty(*shape), 0
        for x in s.inputs:
            t.copyto(along(y, axis, start, x.shape[axis]), x)
            start += x.shape[axis]
        return y

    def backward(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
        start = 0
        for x in s.inputs:
            if s.wants(x):
                yield x, along(g, axis, start, x.shape[axis])
            start += x.shape[axis]

    kernel(kind, forward, backward)


_joining("concat", axis=1)
_joining("join", axis=-1)
_joining("append", axis=-2)


def embedding_gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    """dW[x] += g."""
    weight = s.weights["weight"]
    yield weight, t.at("add", t.full(weight.shape, 0.0), s.x, g)


def learned_positions(t: ArrayTape, s: KernelCall) -> Ref:
    """W[0 … T − 1], copied."""
    return t.copy(s.weights["weight"][: s.x.shape[1]])


def learned_positions_gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    """The gradient of the first rows; zeros beyond."""
    total = t.full(s.weights["weight"].shape, 0.0)
    t.chain(total[: s.x.shape[1]], ("add", g))
    yield s.weights["weight"], total


def prepend(t: ArrayTape, s: KernelCall) -> Ref:
    """The vectors, then x."""
    b, count, d = s.x.shape
    n = len(s.weights)
    y = t.empty(b, n + count, d)
    for place, weight in enumerate(s.weights.values()):
        t.copyto(y[:, place : place + 1], weight)
    t.copyto(y[:, n:], s.x)
    return y


def prepend_gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    """A slice, and sums over the batch."""
    if s.wants(s.x):
        yield s.x, g[:, len(s.weights) :]
    for place, (name, weight) in enumerate(s.weights.items()):
        if name in s.names:
            yield weight, t.accumulate(g[:, place : place + 1], (1, *weight.shape[1:]))


def positions(t: ArrayTape, s: KernelCall) -> Ref:
    """x + W."""
    return t.add(s.x, s.weights["weight"])


def positions_gradients(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
    """g, and its sum over the batch."""
    if s.wants(s.x):
        yield s.x, g
    if s.names:
        yield s.weights["weight"], t.accumulate(g, (1, *g.shape[1:]))


kernel("embedding", lambda t, s: t.take(s.weights["weight"], s.x), embedding_gradients)
kernel("learned_positions", learned_positions, learned_positions_gradients)
kernel("stored_positions", learned_positions, lambda t, s, g: iter(()))
kernel("prepend", prepend, prepend_gradients)
kernel("trained_positions", positions, positions_gradients)
kernel("fixed_positions", positions, positions_gradients)
