"""Experts among which a router chooses for each token, and what is taken for granted about how even that is."""

from __future__ import annotations

from fractions import Fraction

from costmodel.architectures.feedforward import activated, mlp
from costmodel.architectures.normalisation import scaled
from costmodel.architectures.spec import TransformerSpec
from costmodel.graph.tensor import Tensor
from costmodel.layers.activation import Sigmoid
from costmodel.layers.arithmetic import Add, Multiply
from costmodel.layers.attention import Softmax
from costmodel.layers.base import Kind
from costmodel.layers.experts import ExpertLinear, Pick, TopK, Total
from costmodel.layers.linear import Linear
from costmodel.layers.routing import GroupedTopK, Shares
from costmodel.symbolic.sizes import ceil_div


def routed(model: TransformerSpec, x: Tensor) -> Tensor:
    """(batch, T, width) → (batch, T, width): the experts that each token chooses, and the one that all share."""
    with x.run.scope("mlp"):
        y = _experts(model, x)
        if model.shared_width is None:
            return y
        shared = mlp(model, x, model.shared_width, "shared")
        if model.shared_gate:
            gate = Sigmoid()(Linear(1, bias=False)(x, name="shared_gate"), name="shared_sigmoid")
            shared = Multiply()(gate, shared, name="gate_shared")
        return Add()(y, shared, name="add_shared")


def _experts(model: TransformerSpec, x: Tensor) -> Tensor:
    assert model.experts is not None
    (b, t, d), k = x.shape, model.chosen
    hidden = model.hidden if model.expert_width is None else model.expert_width
    bias = model.mlp_bias if model.expert_bias is None else model.expert_bias
    inner, outer = (ExpertLinear(model.experts, k, n, bias, busy(model)) for n in (hidden, d))
    weights = _weights(model, Linear(model.experts, bias=model.router_bias)(x, name="router"))
    rows = b * t * k if model.capacity_factor is None else model.experts * capacity(model, b * t)
    with x.run.scope("experts"):
        sent = Pick(k) if model.capacity_factor is None else Pick(rows=rows)
        picked = sent(x.view((b * t, d), None), name="dispatch")
        back = Pick() if model.capacity_factor is None else Pick(rows=b * t * k)
        out = back(outer(activated(model, picked, inner), name="down"), name="collect")
        shares = weights.view((b * t, k, 1), None)
        weighed = Multiply()(out.view((b * t, k, d), None), shares, name="weigh")
        return Total()(weighed, name="total").view((b, t, d), None)


def capacity(model: TransformerSpec, tokens: int) -> int:
    """Rows that each expert computes: its even share of the tokens' choices, times the capacity factor, rounded up."""
    assert model.experts is not None
    factor = Fraction(str(model.capacity_factor))
    return ceil_div(factor.numerator * model.chosen * tokens, factor.denominator * model.experts)


def busy(model: TransformerSpec) -> int | None:
    """Experts that have rows, where it is not all: those that have `imbalance` times their even share have every row.

    With a capacity all experts compute.
    """
    if model.experts is None or model.capacity_factor is not None or model.imbalance == 1:
        return None
    factor = Fraction(str(model.imbalance))
    return ceil_div(factor.denominator * model.experts, factor.numerator)


def assumptions(model: TransformerSpec, tokens: int) -> list[tuple[str, str]]:
    """What a mixture's numbers take for granted, as (topic, sentence)."""
    if model.experts is None:
        return []
    each = f"a token meets {model.chosen} of {model.experts} experts"
    return [("experts", f"{each}; {_dropless(model) if model.capacity_factor is None else _capped(model, tokens)}")]


def _dropless(model: TransformerSpec) -> str:
    said = "none of its choices is dropped and no row is padded (capacity_factor: none)"
    if model.imbalance == 1:
        return f"{said}; rows are spread evenly over all experts (imbalance: 1)"
    return (
        f"{said}; {busy(model)} experts share all rows, {model.imbalance:g} times an even share each (imbalance), and "
        "the weights of the others are not read"
    )


def _capped(model: TransformerSpec, tokens: int) -> str:
    assert model.experts is not None
    rows, factor, uneven = capacity(model, tokens), model.capacity_factor, model.imbalance
    dropped = max(0.0, 1 - rows * model.experts / (uneven * model.chosen * tokens))
    sent = "evenly (imbalance: 1)" if uneven == 1 else f"to busy ones {uneven:g} times the share (imbalance)"
    return (
        f"each expert computes {rows:,} rows, {factor:g} times an even share (capacity_factor), padded where "
        f"fewer come; with rows sent {sent}, {dropped:.1%} of choices are dropped"
    )


def _weights(model: TransformerSpec, scores: Tensor) -> Tensor:
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


def _choice(model: TransformerSpec) -> Kind:
    if model.expert_groups is None and not model.choice_bias:
        return TopK(model.chosen)
    groups, kept = model.expert_groups or 1, model.chosen_groups or 1
    return GroupedTopK(model.chosen, groups, kept, 2 if model.choice_bias else 1, model.choice_bias)
