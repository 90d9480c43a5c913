"""What a block does to each token by itself: an MLP, or experts among which a router chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodel.architectures.activations import activation
from costmodel.architectures.normalisation import scaled
from costmodel.layers.activation import Sigmoid
from costmodel.layers.arithmetic import Add, Clamp, Multiply, Scale, Shift
from costmodel.layers.attention import Softmax
from costmodel.layers.base import Kind
from costmodel.layers.experts import ExpertLinear, Pick, TopK, Total
from costmodel.layers.linear import Linear
from costmodel.layers.routing import GroupedTopK, Shares
from costmodel.tensor import Tensor

if TYPE_CHECKING:
    from costmodel.architectures.transformer import Transformer

CLAMP = 7.0
"""The bound of gpt-oss; any costs the same."""
NEED_EXPERTS = (
    *("experts_per_token", "expert_width", "expert_pattern", "expert_bias", "dense_layers", "expert_weights"),
    *("expert_shares", "expert_scale", "expert_groups", "chosen_groups", "choice_bias"),
    *("shared_width", "shared_gate", "router_bias"),
)
"""Fields that say something of experts alone."""


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
    bias = model.mlp_bias if model.expert_bias is None else model.expert_bias
    inner, outer = (ExpertLinear(model.experts, k, n, bias) for n in (hidden, d))
    weights = _weights(model, Linear(model.experts, bias=model.router_bias)(x, name="router"))
    with x.run.scope("experts"):
        rows = Pick(k)(x.view((b * t, d), None), name="dispatch")
        out = Pick()(_activated(model, rows, inner, outer), name="collect")
        shares = weights.view((b * t, k, 1), None)
        weighed = Multiply()(out.view((b * t, k, d), None), shares, name="weigh")
        return Total()(weighed, name="total").view((b, t, d), None)


def _weights(model: Transformer, scores: Tensor) -> Tensor:
    """(batch, T, experts) → (batch, T, chosen): what the outputs of the chosen experts are multiplied by."""
    if model.expert_weights == "all":
        scores = Softmax()(scores, name="router_softmax")
    if model.expert_weights == "sigmoid":
        scores = Sigmoid()(scores, name="router_sigmoid")
    weights = _choice(model)(scores)
    if model.expert_weights == "chosen":
        weights = Softmax()(weights, name="router_softmax")
    if model.expert_shares:
        weights = Shares()(weights, name="router_shares")
    return scaled(weights, model.expert_scale, "router_scale")


def _choice(model: Transformer) -> Kind:
    if model.expert_groups is None and not model.choice_bias:
        return TopK(model.chosen)
    groups, kept = model.expert_groups or 1, model.chosen_groups or 1
    return GroupedTopK(model.chosen, groups, kept, 2 if model.choice_bias else 1, model.choice_bias)


def check_experts(model: Transformer) -> None:
    """Raise ValueError if the fields of experts do not fit."""
    if model.experts is None:
        for field in NEED_EXPERTS:
            if getattr(model, field) != type(model).model_fields[field].default:
                raise ValueError(f"{field} needs experts")
        return
    if model.chosen > model.experts:
        raise ValueError(f"experts_per_token {model.chosen} is more than experts {model.experts}")
    if model.shared_gate and model.shared_width is None:
        raise ValueError("shared_gate needs shared_width")
    if (model.expert_groups is None) != (model.chosen_groups is None):
        raise ValueError("expert_groups and chosen_groups need each other")
    if model.dense_layers is not None and model.expert_pattern:
        raise ValueError("dense_layers and expert_pattern say the same: keep one")
    if model.expert_groups is not None or model.choice_bias:
        _check_groups(model, model.experts, model.expert_groups or 1, model.chosen_groups or 1)


def _check_groups(model: Transformer, experts: int, groups: int, kept: int) -> None:
    if experts % groups:
        raise ValueError(f"expert_groups {groups} does not divide experts {experts}")
    if kept > groups:
        raise ValueError(f"chosen_groups {kept} is more than expert_groups {groups}")
    each = experts // groups
    if model.chosen > kept * each:
        raise ValueError(f"experts_per_token {model.chosen} is more than the {kept * each} of the chosen groups")
    if model.choice_bias and each < 2:
        raise ValueError(f"choice_bias judges a group by its best two experts, and expert_groups {groups} leave {each}")
