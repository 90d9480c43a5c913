"""Tables, looked up by index."""

from __future__ import annotations

from costmodel.roofline.kernels.kernel import Gradients, KernelCall, kernel
from costmodel.roofline.reference import Ref
from costmodel.roofline.tape import Tape


def embedding(t: Tape, s: KernelCall) -> Ref:
    """W[x]."""
    return t.take(s.weights["weight"], s.x)


def embedding_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """dW[x] += g."""
    weight = s.weights["weight"]
    yield weight, t.at("add", t.full(weight.shape, 0.0), s.x, g)


def positions(t: Tape, s: KernelCall) -> Ref:
    """W[0 … T − 1], copied."""
    return t.copy(s.weights["weight"][: s.x.shape[1]])


def positions_gradients(t: Tape, s: KernelCall, g: Ref) -> Gradients:
    """The gradient of the first rows; zeros beyond."""
    total = t.full(s.weights["weight"].shape, 0.0)
    t.add(total[: s.x.shape[1]], g, out=total[: s.x.shape[1]])
    yield s.weights["weight"], total


kernel("embedding", embedding, embedding_gradients)
kernel("learned_positions", positions, positions_gradients)
