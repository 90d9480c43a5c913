"""What a block does to each token by itself: an MLP."""

from __future__ import annotations

from costmodel.architectures.base import activation
from costmodel.architectures.normalisation import dropped
from costmodel.architectures.spec import TransformerSpec
from costmodel.graph.tensor import Tensor
from costmodel.layers.arithmetic import Clamp, Multiply, Scale, Shift
from costmodel.layers.base import Kind
from costmodel.layers.linear import Linear

CLAMP, SHARPNESS, OFFSET = 7.0, 1.702, 1.0
"""Of a clamped MLP: the bound, the factor α of what the activation sees, what is added to x W_u (OpenAI 2025, gpt-oss:
``swiglu`` of its model code)."""


def feed_forward(model: TransformerSpec, x: Tensor) -> Tensor:
    """(batch, T, width) → (batch, T, width): the MLP."""
    return mlp(model, x, model.hidden, "mlp")


def mlp(model: TransformerSpec, x: Tensor, hidden: int, name: str) -> Tensor:
    """The MLP, of so many hidden features."""
    inner, outer = (Linear(n, bias=model.mlp_bias) for n in (hidden, model.width))
    with x.run.scope(name):
        return outer(dropped(activated(model, x, inner), model.mlp_dropout, "dropout"), name="down")


def activated(model: TransformerSpec, x: Tensor, inner: Kind) -> Tensor:
    """The hidden features that an MLP makes with the linear layers given."""
    act = activation(model.activation)
    if model.mlp == "clamped":
        gate = Clamp(CLAMP, below=False)(inner(x, name="gate"), name="clamp_gate")
        up = Clamp(CLAMP)(inner(x, name="up"), name="clamp_up")
        gated = Multiply()(gate, act(Scale(SHARPNESS)(gate, name="scale_gate")), name="gated")
        return Multiply()(Shift(OFFSET)(up), gated)
    if model.mlp == "gated":
        gate = act(inner(x, name="gate"))
        return Multiply()(gate, inner(x, name="up"))
    return act(inner(x, name="up"))
