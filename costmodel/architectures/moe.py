"""Experts among which a router chooses for each token, and what is taken for granted about how even that is."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace

from costmodel.architectures.feedforward import activated, dropped, mlp, normed, of_joint, scaled
from costmodel.architectures.parts import Experts
from costmodel.architectures.ranks import arrived, arrived_with_weights, copied, of_own_tokens, returned, summed
from costmodel.architectures.spec import TransformerSpec
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Tensor
from costmodel.layers.activation import GatedActivation, Sigmoid
from costmodel.layers.arithmetic import Add, LayerScale, Multiply, Scale
from costmodel.layers.attention import Softmax
from costmodel.layers.base import Layer
from costmodel.layers.collective import ExchangeRows, GatherCounts
from costmodel.layers.experts import ExpertLinear, GroupedTopK, Pick, Shares, TopK, Total
from costmodel.layers.linear import Linear
from costmodel.layers.norm import Rmsnorm
from costmodel.symbolic.sizes import ceil_div, exact_div, minimum, peek
from costmodel.training.layout import Layout


def routed(model: TransformerSpec, x: Tensor) -> Tensor:
    """(batch, T, width) → (batch, T, width): the experts that each token chooses, and the one that all share."""
    assert model.experts is not None
    with x.tape.scope("mlp"):
        y = _experts(model, model.experts, x)
        if model.experts.shared_width is None:
            return y
        shared = mlp(model, x, model.experts.shared_width, "shared")
        if model.experts.shared_gate:
            score = of_own_tokens(Linear(1, bias=False)(x, name="shared_gate"))
            gate = Sigmoid()(score, name="shared_sigmoid")
            shared = Multiply()(gate, shared, name="gate_shared")
        return Add()(y, shared, name="add_shared")


def with_experts(model: TransformerSpec, x: Tensor, y: Tensor) -> Tensor:
    """What an MLP made, (batch, T, width), and experts of x beside it, each normed (Gemma Team 2026, Gemma 4)."""
    from costmodel.layers.indexing import Parameter  # few models need it

    assert model.experts is not None
    experts, (b, t, d) = model.experts, x.shape
    with x.tape.scope("mlp"):
        y = normed(model, y, "own_norm")
        rows = Rmsnorm(affine=False)(x, name="router_norm").view((b * t, d))
        judged = Scale(1 / math.sqrt(peek(d)))(LayerScale()(rows, name="router_scale"), name="scale_router")
        scales = x.tape.record(Parameter((experts.count,)), (), "expert_scales", None)
        weights = _weights(experts, Linear(experts.count, bias=experts.router_bias)(judged, name="router"), scales)
        z = _experts(model, experts, normed(model, x, "experts_norm"), weights)
        return Add()(y, normed(model, z, "experts_output_norm"), name="add_experts")


def _experts(model: TransformerSpec, experts: Experts, x: Tensor, weights: Tensor | None = None) -> Tensor:
    """weights: of the chosen experts, (tokens, chosen); by default as the router makes them of x."""
    (b, t, d), k, capped = x.shape, experts.per_token, experts.capacity_factor is not None
    ranks = x.tape.layout.ep
    own = experts.count if ranks == 1 else exact_div(experts.count, ranks)
    met, most = _of_the_heaviest(experts, ranks, b * t * k)
    hidden = model.hidden if experts.width is None else experts.width
    bias = model.mlp_bias if experts.bias is None else experts.bias
    inner, outer = (ExpertLinear(own, k, n, bias, met, ranks) for n in (hidden, d))
    if weights is None:
        scores = of_own_tokens(Linear(experts.count, bias=experts.router_bias)(x, name="router"))
        weights = _weights(experts, scores)
    if x.tape.layout.megatron:
        return _weighed_within(model, x, weights, inner, outer, most)
    with x.tape.scope("experts"):
        sent = Pick(rows=experts.count * capacity(experts, b * t)) if capped else Pick(k)
        x, weights = copied(x, "input"), copied(weights, "weights")
        picked = sent(x.view((b * t, d)), name="dispatch")
        back = Pick(rows=b * t * k) if capped else Pick()
        with x.tape.unit("sent") if ranks > 1 else nullcontext():
            picked = arrived(picked, 0 if capped else experts.count, most)
            made = dropped(activated(model, picked, inner), experts.dropout, "dropout")
            out = returned(outer(made, name="down"), None if most is None else b * t * k)
        out = back(out, name="collect")
        shares = weights.view((b * t, k, 1))
        weighed = Multiply()(out.view((b * t, k, d)), shares, name="weigh")
        return summed(Total()(weighed, name="total"), "total").view((b, t, d))


def _weighed_within(
    model: TransformerSpec, x: Tensor, weights: Tensor, inner: ExpertLinear, outer: ExpertLinear, most: int | None
) -> Tensor:
    """Experts as Megatron has them: weights go with the rows, and are multiplied in with the activation.

    Source: ``megatron/core/transformer/moe/token_dispatcher.py`` (``MoEAlltoAllTokenDispatcher``), ``experts.py``
    (``TEGroupedMLP``).
    """
    assert model.experts is not None
    experts, (b, t, d) = model.experts, x.shape
    k, capped = experts.per_token, experts.capacity_factor is not None
    with x.tape.scope("experts"):
        rows = experts.count * capacity(experts, b * t) if capped else b * t * k
        picked = (Pick(rows=rows) if capped else Pick(k))(x.view((b * t, d)), name="dispatch")
        shares = Pick(rows=rows)(weights.view((b * t * k, 1)), name="dispatch_weights")
        picked, shares = arrived_with_weights(picked, shares, 0 if capped else experts.count, most)
        hidden = dropped(_weighed(model, picked, shares, inner), experts.dropout, "dropout")
        out = returned(outer(hidden, name="down"), None if most is None else rows)
        out = (Pick(rows=b * t * k) if capped else Pick())(out, name="collect")
        return Total()(out.view((b * t, k, d)), name="total").view((b, t, d))


def _weighed(model: TransformerSpec, rows: Tensor, shares: Tensor, inner: ExpertLinear) -> Tensor:
    """Experts' hidden features times each row's share, (rows, hidden): in one kernel where Megatron has one."""
    if model.mlp != "gated":
        return Multiply()(activated(model, rows, inner), shares, name="weigh")
    joint = ExpertLinear(inner.experts, inner.chosen, 2 * inner.features, inner.bias, inner.busy, inner.ranks)
    both = joint(rows, name="gate_up")
    if model.mlp_activation in ("silu", "gelu_tanh"):
        return GatedActivation(model.mlp_activation)(both, shares, name="gated")
    return Multiply()(of_joint(model, both), shares, name="weigh")


def capacity(experts: Experts, tokens: int) -> int:
    """Rows that each expert computes: its even share of the tokens' choices, times the capacity factor, rounded up."""
    from fractions import Fraction

    factor = Fraction(str(experts.capacity_factor))
    return ceil_div(factor.numerator * experts.per_token * tokens, factor.denominator * experts.count)


def busy(experts: Experts) -> int | None:
    """Experts that have rows, where it is not all: those that have `imbalance` times their even share have every row.

    With a capacity all experts compute.
    """
    if experts.capacity_factor is not None or experts.imbalance == 1:
        return None
    from fractions import Fraction

    factor = Fraction(str(experts.imbalance))
    return ceil_div(factor.denominator * experts.count, factor.numerator)


def _of_the_heaviest(experts: Experts, ranks: int, rows: int) -> tuple[int | None, int | None]:
    """Busy experts of the rank that has most of them, and the rows that it gets where each rank sends so many.

    None: all of its experts, and as many rows.
    """
    met = busy(experts)
    if met is None or ranks == 1:
        return met, None
    own = minimum(exact_div(experts.count, ranks), met)
    return own, ceil_div(rows * ranks * own, met)


def recorded_alike(experts: Experts, layout: Layout) -> bool:
    """Whether a pass over experts that are dealt out (ep) is the same on other numbers of ranks, see `deal_out`.

    Megatron sorts no rows where each rank has one expert. Of uneven experts the heaviest rank has more rows.
    """
    alone = layout.megatron and experts.capacity_factor is None and layout.ep == experts.count
    return layout.ep > 1 and busy(experts) is None and not alone


def deal_out(tape: Tape, layout: Layout) -> bool:
    """Make a tape that of a layout of another number of ranks (ep), which have as many rows, of fewer or more experts.

    Returns whether that is done, as it is where no layer reads the weights of experts but their own.
    """
    before, calls = tape.layout.ep, [*tape.root.calls()]
    own = [call for call in calls if isinstance(call.layer, ExpertLinear)]
    weights = {weight.storage for call in own for weight in call.stored.values()}
    if any(x.storage in weights for call in calls if call not in own for x in call.operands()):
        return False
    for call in calls:
        layer = call.layer
        if isinstance(layer, ExpertLinear):
            call.layer = replace(layer, experts=exact_div(before * layer.experts, layout.ep), ranks=layout.ep)
            for name, shape in call.layer.weights(call).items():
                tape.reshape_weight(call.stored[name], shape, layout.ep)
        elif isinstance(layer, ExchangeRows | GatherCounts):
            call.layer = replace(layer, devices=exact_div(layer.devices, before) * layout.ep)
    tape.layout = layout
    return True


def assumptions(experts: Experts, tokens: int) -> str:
    """What the numbers of experts take for granted."""
    rule = _dropless(experts) if experts.capacity_factor is None else _capped(experts, tokens)
    return f"a token meets {experts.per_token} of {experts.count} experts; {rule}"


def _dropless(experts: Experts) -> str:
    rule = "none of its choices is dropped and no row is padded (capacity_factor: none)"
    if experts.imbalance == 1:
        return f"{rule}; rows are spread evenly over all experts (imbalance: 1)"
    return (
        f"{rule}; {busy(experts)} experts share all rows, {experts.imbalance:g} times an even share each (imbalance), "
        "and the weights of the others are not read"
    )


def _capped(experts: Experts, tokens: int) -> str:
    rows, factor, uneven = capacity(experts, tokens), experts.capacity_factor, experts.imbalance
    dropped = max(0.0, 1 - rows * experts.count / (uneven * experts.per_token * tokens))
    sent = "evenly (imbalance: 1)" if uneven == 1 else f"to busy ones {uneven:g} times the share (imbalance)"
    return (
        f"each expert computes {rows:,} rows, {factor:g} times an even share (capacity_factor), padded where "
        f"fewer come; with rows sent {sent}, {dropped:.1%} of choices are dropped"
    )


def _weights(experts: Experts, scores: Tensor, scales: Tensor | None = None) -> Tensor:
    """(batch, T, experts) → (batch, T, chosen): what the outputs of the chosen experts are multiplied by.

    scales: a trained factor of each expert.
    """
    if experts.weights == "all":
        scores = Softmax()(scores, name="router_softmax")
    if experts.weights == "sigmoid":
        scores = Sigmoid()(scores, name="router_sigmoid")
    weights = chosen = _choice(experts)(scores)
    if experts.weights == "chosen":
        weights = Softmax()(weights, name="router_softmax")
    if experts.shares:
        weights = Shares()(weights, name="router_shares")
    if scales is not None:
        weights = Multiply()(weights, _of_chosen(scales, chosen), name="scale_shares")
    return scaled(weights, experts.scale, "router_scale")


def _of_chosen(scales: Tensor, chosen: Tensor) -> Tensor:
    """The trained factors of the experts whose scores were chosen, by the numbers that the choice keeps."""
    from costmodel.layers.indexing import Computed, Gather  # few models need it

    saved = () if chosen.maker is None else chosen.maker.saved
    numbers = next((storage for storage in saved if storage.role == "index"), None)
    if numbers is None:  # where nothing is kept
        index = Computed(chosen.shape, "index")(chosen, name="chosen")
    else:
        index = Tensor(chosen.tape, chosen.shape, numbers, requires_grad=False)
    return Gather(chosen.shape)(scales, index, name="scales_of_chosen")


def _choice(experts: Experts) -> Layer:
    if experts.groups is None and not experts.choice_bias:
        return TopK(experts.per_token)
    groups, saved = experts.groups or 1, experts.chosen_groups or 1
    best = 2 if experts.choice_bias else 1
    return GroupedTopK(experts.per_token, groups, saved, best, experts.choice_bias, experts.choice_stored)
