"""What a block does to each token by itself: an MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodel.architectures.activations import activation
from costmodel.layers.arithmetic import Clamp, Multiply, Scale, Shift
from costmodel.layers.base import Kind
from costmodel.layers.linear import Linear
from costmodel.tensor import Tensor

if TYPE_CHECKING:
    from costmodel.architectures.transformer import Transformer

CLAMP = 7.0
"""The bound of gpt-oss; any costs the same."""


def feed_forward(model: Transformer, x: Tensor) -> Tensor:
    """(batch, T, width) → (batch, T, width): the MLP."""
    return mlp(model, x, model.hidden, "mlp")


def mlp(model: Transformer, x: Tensor, hidden: int, name: str) -> Tensor:
    """The MLP, of so many hidden features."""
    inner, outer = (Linear(n, bias=model.mlp_bias) for n in (hidden, model.width))
    with x.run.scope(name):
        return activated(model, x, inner, outer)


def activated(model: Transformer, x: Tensor, inner: Kind, outer: Kind) -> Tensor:
    """What an MLP does, with the linear layers given."""
    act = activation(model.activation)
    if model.mlp == "clamped":
        gate = Clamp(CLAMP, below=False)(inner(x, name="gate"), name="clamp_gate")
        up = Clamp(CLAMP)(inner(x, name="up"), name="clamp_up")
        gated = Multiply()(gate, act(Scale()(gate, name="scale_gate")), name="gated")
        return outer(Multiply()(Shift()(up), gated), name="down")
    if model.mlp == "gated":
        gate = act(inner(x, name="gate"))
        return outer(Multiply()(gate, inner(x, name="up")), name="down")
    return outer(act(inner(x, name="up")), name="down")
