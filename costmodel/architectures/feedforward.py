"""What a block does to each token by itself: an MLP, or experts among which a router chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodel.architectures.activations import activation
from costmodel.layers.activation import Sigmoid
from costmodel.layers.arithmetic import Add, Clamp, Multiply, Scale, Shift
from costmodel.layers.attention import Softmax
from costmodel.layers.base import Kind
from costmodel.layers.experts import ExpertLinear, Pick, TopK, Total
from costmodel.layers.linear import Linear
from costmodel.tensor import Tensor

if TYPE_CHECKING:
    from costmodel.architectures.transformer import Transformer

CLAMP = 7.0
"""The bound of gpt-oss; any costs the same."""


def feed_forward(model: Transformer, x: Tensor) -> Tensor:
    """(batch, T, width) → (batch, T, width): the MLP."""
    return _mlp(model, x, model.hidden, "mlp")


def routed(model: Transformer, x: Tensor) -> Tensor:
    """(batch, T, width) → (batch, T, width): the experts that each token chooses, and the one that all share."""
    with x.run.scope("mlp"):
        y = _experts(model, x)
        if model.shared_width is None:
            return y
        shared = _mlp(model, x, model.shared_width, "shared")
        if model.shared_gate:
            gate = Sigmoid()(Linear(1, bias=False)(x, name="shared_gate"), name="shared_sigmoid")
            shared = Multiply()(gate, shared, name="gate_shared")
        return Add()(y, shared, name="add_shared")


def _mlp(model: Transformer, x: Tensor, hidden: int, name: str) -> Tensor:
    inner, outer = (Linear(n, bias=model.mlp_bias) for n in (hidden, model.width))
    with x.run.scope(name):
        return _activated(model, x, inner, outer)


def _activated(model: Transformer, x: Tensor, inner: Kind, outer: Kind) -> Tensor:
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


def _experts(model: Transformer, x: Tensor) -> Tensor:
    assert model.experts is not None
    (b, t, d), k = x.shape, model.chosen
    hidden = model.hidden if model.expert_width is None else model.expert_width
    inner, outer = (ExpertLinear(model.experts, k, n, model.mlp_bias) for n in (hidden, d))
    scores = Linear(model.experts, bias=model.router_bias)(x, name="router")
    weights = (
        Softmax()(TopK(k)(scores), name="router_softmax")
        if model.expert_weights == "chosen"
        else TopK(k)(Softmax()(scores, name="router_softmax"))
    )
    with x.run.scope("experts"):
        rows = Pick(k)(x.view((b * t, d), None), name="dispatch")
        out = Pick()(_activated(model, rows, inner, outer), name="collect")
        shares = weights.view((b * t, k, 1), None)
        weighed = Multiply()(out.view((b * t, k, d), None), shares, name="weigh")
        return Total()(weighed, name="total").view((b, t, d), None)
