"""Tables looked up by index, and trained vectors that join a sequence of tokens."""

from __future__ import annotations

from costmodel.roofline.kernels.kernel import Gradients, KernelCall, Tape, kernel
from costmodel.roofline.reference import Ref


def embedding(t: Tape, s: KernelCall) -> Ref:
    """W[x]."""
    return t.take(s.weights["weight"], s.x)


def embedding_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """dW[x] += g."""
    weight = s.weights["weight"]
    yield weight, t.at("add", t.full(weight.shape, 0.0), s.x, g)


def learned_positions(t: Tape, s: KernelCall) -> Ref:
    """W[0 … T − 1], copied."""
    return t.copy(s.weights["weight"][: s.x.shape[1]])


def learned_positions_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """The gradient of the first rows; zeros beyond."""
    total = t.full(s.weights["weight"].shape, 0.0)
    t.add(total[: s.x.shape[1]], g, out=total[: s.x.shape[1]])
    yield s.weights["weight"], total


def nothing_trained(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """No gradient."""
    yield from ()


kernel("embedding", embedding, embedding_gradients)
kernel("learned_positions", learned_positions, learned_positions_gradients)
kernel("stored_positions", learned_positions, nothing_trained)


def prepend(t: Tape, s: KernelCall) -> Ref:
    """The vectors, then x."""
    b, count, d = s.x.shape
    n = len(s.weights)
    y = t.empty(b, n + count, d)
    for place, weight in enumerate(s.weights.values()):
        t.copyto(y[:, place : place + 1], weight)
    t.copyto(y[:, n:], s.x)
    return y


def prepend_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """A slice, and sums over the batch."""
    if s.wants(s.x):
        yield s.x, g[:, len(s.weights) :]
    for place, (name, weight) in enumerate(s.weights.items()):
        if name in s.names:
            yield weight, t.accumulate(g[:, place : place + 1], (1, *weight.shape[1:]))


def positions(t: Tape, s: KernelCall) -> Ref:
    """x + W."""
    return t.add(s.x, s.weights["weight"])


def positions_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """g, and its sum over the batch."""
    if s.wants(s.x):
        yield s.x, g
    if s.names:
        yield s.weights["weight"], t.accumulate(g, (1, *g.shape[1:]))


kernel("prepend", prepend, prepend_gradients)
kernel("trained_positions", positions, positions_gradients)
kernel("fixed_positions", positions, positions_gradients)
