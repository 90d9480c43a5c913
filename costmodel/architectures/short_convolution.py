"""A gated convolution over the last few tokens (Liquid AI 2025, LFM2)."""

from __future__ import annotations

from costmodel.architectures.kv_cache import States
from costmodel.architectures.mixers import ShortConvolution
from costmodel.architectures.state_space import causal
from costmodel.graph.tensor import Tensor
from costmodel.layers.arithmetic import Multiply
from costmodel.layers.linear import Linear
from costmodel.layers.shape import Copy, Slice, TransposeLast


def short_convolution(spec: ShortConvolution, states: States, x: Tensor) -> Tensor:
    """(batch, T, width) → (batch, T, width): gated before the convolution and after it."""
    _, _, d = x.shape
    with x.tape.scope("short_convolution"):
        joint = TransposeLast()(Linear(3 * d, bias=spec.bias)(x, name="in"))
        before, after, y = (Slice(d, n * d, axis=1)(joint, name=name) for n, name in enumerate(("gate", "open", "x")))
        y = causal(Multiply()(before, y, name="gated"), spec.size, states, bias=spec.bias)
        y = TransposeLast()(Multiply()(after, y, name="opened"), name="tokens")
        return Linear(d, bias=spec.bias)(Copy(y.shape)(y, name="in_order"), name="out")
