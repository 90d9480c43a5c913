"""One rank of a layout costs what PyTorch says: parameters, FLOPs, bytes kept, every collective in order, the peak."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import costmodel as cm
from tests.profiles import examples

from .ranks import Listed, RankCost, answer_to, run
from .settings import DRAWN
from .test_timeline import stated

HEADS = 8

SHAPES = st.fixed_dictionaries(
    {
        "vocab": st.sampled_from([32, 64, 512]),
        "layers": st.integers(1, 4),
        "width": st.sampled_from([16, 24, 64]),
        "kv_heads": st.sampled_from([4, 8]),
        "head_size": st.sampled_from([4, 8]),
        "positions": st.sampled_from(["rotary", "none"]),
        "mlp": st.sampled_from(["gated", "plain"]),
        "norm": st.sampled_from(["rmsnorm", "layernorm"]),
        "activation": st.sampled_from(["silu", "gelu", "relu"]),
        "mlp_width": st.sampled_from([16, 40, 160]),
        "qkv_bias": st.booleans(),
        "attention_bias": st.booleans(),
        "mlp_bias": st.booleans(),
    }
)
MORE = st.fixed_dictionaries(
    {
        "vocab": st.sampled_from([32, 33, 512]),
        "positions": st.sampled_from(["rotary", "none", "learned", "alibi", "relative"]),
        "tied": st.booleans(),
        "fused_qkv": st.booleans(),
        "query_key_norm": st.sampled_from([None, None, "head"]),
        "value_norm": st.booleans(),
        "sinks": st.booleans(),
        "embedding_norm": st.booleans(),
        "layer_scale": st.booleans(),
        "score_cap": st.sampled_from([None, 20.0]),
        "residual_scale": st.sampled_from([None, 0.5]),
        "head": st.fixed_dictionaries({"bias": st.booleans(), "logit_cap": st.sampled_from([None, 30.0])}),
    }
)
"""What no rank of a sequence has yet."""
PLACEMENTS = st.sampled_from(
    [
        {},
        {"norm_placement": "post"},
        {"norm_placement": "both"},
        {"norm_placement": "output"},
        {"parallel": True},
        {"parallel": True, "shared_norm": True},
    ]
)
ALWAYS = {"context": 64, "heads": HEADS, "tied": False, "fused_qkv": False}
LAYOUTS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "tensor": st.fixed_dictionaries(
        {"tp": st.sampled_from([2, 4]), "sp": st.booleans(), "loss_parallel": st.booleans()}
    ),
    "sharded": st.fixed_dictionaries({"fsdp": st.sampled_from([2, 3, 4])}),
    "contexts": st.fixed_dictionaries(
        {
            "fsdp": st.just(2),
            "dp": st.sampled_from([1, 2]),
            "cp": st.sampled_from([2, 4]),
            "cp_kind": st.sampled_from(["all-gather", "ring", "ulysses"]),
            "cp_balanced": st.booleans(),
        }
    ),
    "sharded and tensor": st.fixed_dictionaries({"fsdp": st.just(2), "tp": st.sampled_from([2, 4])}),
}
RUNS = st.fixed_dictionaries({"batch": st.integers(1, 3), "seq": st.sampled_from([8, 16])})


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(examples(min(6, DRAWN)), phases=[Phase.explicit, Phase.generate])  # each takes a second
@given(SHAPES, RUNS, st.data())
def test_a_rank_costs_what_it_does(
    layout: str, shape: dict[str, Any], runs: dict[str, Any], data: st.DataObject
) -> None:
    chosen = data.draw(LAYOUTS[layout])
    model, cp = ALWAYS | shape, chosen.get("cp", 1)
    if cp == 1:
        model |= data.draw(MORE) | data.draw(PLACEMENTS)
    by_heads = chosen.get("cp_kind") == "ulysses"
    fused = model["positions"] == "rotary" and not (model.get("sinks") or model.get("score_cap"))
    kernel = data.draw(st.sampled_from(["eager", "flash"])) if fused else "eager"
    if cp > 1:  # the last rank has most to do, unless all have as much
        kernel = kernel if by_heads else "flash"
        chosen["cp_balanced"] |= by_heads
        chosen["rank"] = 0 if chosen["cp_balanced"] else cp - 1
    optimizer = "sgd" if "fsdp" in chosen else data.draw(st.sampled_from(["sgd", "adamw"]))
    assert_a_rank_agrees(model, kernel, {"optimizer": optimizer, **runs, **chosen})


def assert_a_rank_agrees(model: dict[str, Any], kernel: str, chosen: dict[str, Any]) -> None:
    """All but what is said beside it, to the byte."""
    cp, by_heads = chosen.get("cp", 1), chosen.get("cp_kind") == "ulysses"
    found = run({"model": model, "kernel": kernel, **chosen})
    chosen = {name: value for name, value in chosen.items() if name != "rank"}
    rank = cm.predict(cm.Transformer.of(model), attention=kernel, **chosen).rank
    assert (rank.flops.forward, rank.flops.total) == (found.forward_flops, found.total_flops)
    if "fsdp" not in chosen:  # weights are gathered and dropped meanwhile
        assert (rank.params, rank.memory.activations) == (found.params, found.saved)
    # The fused kernel's backward has a sum for each row to itself, inside one operation.
    of_rank = 4 * chosen["batch"] * chosen["seq"] * HEADS // chosen.get("tp", 1) // cp
    unseen = of_rank if kernel == "flash" and (cp == 1 or by_heads) else 0
    assert_events_agree(rank, found, chosen, unseen=unseen)


def assert_events_agree(rank: Any, found: RankCost, chosen: dict[str, Any], *, unseen: int = 0) -> None:
    """Every collective in order, and the peak of each phase.

    Python has names for more than what is used again in forward, and where that is run again.
    """
    sent = [
        (x.phase.replace("loss", "forward"), x.operation, x.bytes, x.devices) for x in rank.timeline.every_collective()
    ]
    assert sent == [tuple(each) for each in found.collectives]
    # The model of PyTorch has the mask and the tables of angles once in every block.
    extra = found.buffers - rank.memory.buffers + found.counters
    ours = stated(rank)
    over = {phase: ours[phase].alive - (most.alive - extra) for phase, most in found.most.items()}
    assert 0 <= over["backward"] <= 4 + unseen
    assert over["forward"] <= 4
    assert over.get("recompute", 0) <= 4
    assert over.get("optimizer", 0) == 0


SHARDED = st.fixed_dictionaries(
    {"fsdp": st.sampled_from([2, 3, 4, 7]), "optimizer": st.sampled_from(["sgd", "adamw"])},
    optional={
        "dp": st.sampled_from([2, 3]),
        "reshard": st.just(False),
        "precision": st.sampled_from(["bf16", "bf16-master", "bf16-master-fp32-gradients"]),
        "accumulate": st.just(2),
        "checkpoint": st.just("block"),
        "update": st.just("foreach"),
    },
)
UNLIKE = st.sampled_from(
    [
        {},
        {"tied": True},
        {"mlp_widths": (16, 40, 80)},
        {"experts": {"count": 4, "per_token": 2}, "mlp": "gated"},
        {"experts": {"count": 4, "per_token": 2, "dense_layers": 1}, "mlp": "gated", "layers": 3},
    ]
)
"""What makes blocks differ, so that units of weights do."""


@settings(examples(min(9, DRAWN)), phases=[Phase.explicit, Phase.generate])  # each takes a second
@given(SHAPES, UNLIKE, RUNS, SHARDED)
def test_a_rank_of_sharded_weights_costs_what_it_does(
    shape: dict[str, Any], unlike: dict[str, Any], runs: dict[str, Any], chosen: dict[str, Any]
) -> None:
    model = ALWAYS | shape | {"kv_heads": 8} | unlike
    if "mlp_widths" in unlike:
        del model["mlp_width"]
    if "precision" in chosen:  # of which the CPU's kernel has other statistics
        model["norm"] = "rmsnorm"
    found = run({"model": model, "kernel": "eager", **runs, **chosen})
    whole = cm.predict(cm.Transformer.of(model), **runs, **chosen)
    assert_a_sharded_rank_agrees(whole.rank, found, chosen)


def assert_a_sharded_rank_agrees(rank: Any, found: RankCost, chosen: dict[str, Any]) -> None:
    """Weights, states, every collective, and peaks."""
    earlier = rank.memory.gradients if "accumulate" in chosen else 0
    assert (rank.memory.weights, earlier, rank.memory.optimizer) == found.stays
    assert_events_agree(rank, found, chosen)


SENT_EXPERTS = st.fixed_dictionaries(
    {
        "count": st.sampled_from([4, 8]),
        "per_token": st.sampled_from([1, 2]),
        "weights": st.sampled_from(["all", "chosen", "sigmoid"]),
        "bias": st.booleans(),
    },
    optional={
        "width": st.just(32),
        "shared_width": st.just(16),
        "dense_layers": st.just(1),
        "capacity_factor": st.sampled_from([1.0, 1.25, 2.0]),
        "imbalance": st.just(2.0),
        "groups": st.just(2),
        "choice_bias": st.booleans(),
    },
)
OVER = {
    "fsdp": st.sampled_from([2, 4, 8, 16]),
    "ep": st.sampled_from([2, 4]),
    "optimizer": st.sampled_from(["sgd", "adamw"]),
}
BESIDE = {"dp": st.sampled_from([2, 3]), "reshard": st.just(False), "accumulate": st.just(2)}
FEW_BITS = {"precision": st.sampled_from(["bf16", "bf16-master", "bf16-master-fp32-gradients"])}
SENT = st.one_of(
    st.fixed_dictionaries(
        OVER, optional=BESIDE | FEW_BITS | {"checkpoint": st.just("block"), "update": st.just("foreach")}
    ),
    st.fixed_dictionaries(
        OVER | {"tp": st.sampled_from([2, 4]), "loss_parallel": st.booleans()},
        optional=BESIDE | FEW_BITS | {"checkpoint": st.just("block")},
    ),
    st.fixed_dictionaries(
        OVER | {"cp": st.just(2), "cp_kind": st.sampled_from(["all-gather", "ring", "ulysses"])},
        optional=BESIDE | FEW_BITS | {"checkpoint": st.just("block")},
    ),
)


@settings(examples(min(9, DRAWN)), phases=[Phase.explicit, Phase.generate])  # each takes a second
@given(SHAPES, SENT_EXPERTS, RUNS, SENT)
def test_a_rank_that_sends_tokens_to_experts_costs_what_it_does(
    shape: dict[str, Any], experts: dict[str, Any], runs: dict[str, Any], chosen: dict[str, Any]
) -> None:
    """Of experts fewer than ranks each rank has a part of some; where some are busier it is the rank of those."""
    experts |= {"chosen_groups": 1} if "groups" in experts else {}
    experts |= {"bias": False} if "tp" in chosen or "imbalance" in experts else {}
    sizes = {"kv_heads": 8, "layers": max(2, shape["layers"]), "width": 64, "mlp_width": 160, "positions": "rotary"}
    model = ALWAYS | shape | sizes | {"experts": experts}
    if "precision" in chosen:  # of which the CPU's kernel has other statistics
        model["norm"] = "rmsnorm"
    if "cp" in chosen:
        runs |= {"seq": 16}
        chosen |= {"cp_balanced": True}
    chosen |= {"fsdp": max(chosen["fsdp"], chosen["ep"])}
    kernel: Any = "flash" if chosen.get("cp_kind", "ulysses") != "ulysses" else "eager"
    found = run({"model": model, "kernel": kernel, **runs, **chosen})
    rank = cm.predict(cm.Transformer.of(model), attention=kernel, **runs, **chosen).rank
    assert_a_sharded_rank_agrees(rank, found, chosen)
    assert rank.flops.forward == found.forward_flops * chosen.get("accumulate", 1)


OF_EXPERTS: list[dict[str, Any]] = [
    {"loss_chunks": 3, "freeze": ["attention"], "precision": "bf16"},
    {"checkpoint": "selective", "lora": {"rank": 5, "targets": ["attention.output"]}},
    {"checkpoint": ["mlp"], "freeze": ["embedding", "mlp"], "optimizer": "adamw"},
]


@pytest.mark.parametrize("chosen", OF_EXPERTS, ids=lambda chosen: " ".join(f"{k}={v}" for k, v in chosen.items()))
def test_a_rank_of_experts_with_other_settings_costs_what_it_does(chosen: dict[str, Any]) -> None:
    sizes = {"vocab": 33, "layers": 3, "width": 64, "kv_heads": 8, "head_size": 4, "mlp_width": 160, "mlp": "gated"}
    experts = {"experts": {"count": 4, "per_token": 2, "bias": False}}
    model = ALWAYS | sizes | experts | {"positions": "rotary", "norm": "rmsnorm"}
    asked: dict[str, Any] = {"fsdp": 4, "ep": 2, "batch": 2, "seq": 8, "optimizer": "sgd"} | chosen
    named = [NAMED[part] for part in chosen.get("freeze", ())]
    found = run({"model": model, "kernel": "eager", **asked, "freeze": named})
    assert_a_sharded_rank_agrees(cm.predict(cm.Transformer.of(model), **asked).rank, found, asked)


NAMED = {"embedding": "tokens", "mlp": ".mlp.", "attention": ".attention.", "block": "blocks."}
"""Parts, and what names of their weights have in them."""
ADAPTED = {"lora": {"rank": 5, "targets": ["up", "attention.output"]}}
ALTERED: list[dict[str, Any]] = [
    {"precision": "bf16-autocast"},
    {"precision": "fp16-autocast", "checkpoint": "block", "optimizer": "adamw"},
    {"precision": "bf16-autocast", "accumulate": 2, "dp": 2},
    {"precision": "bf16-autocast", "reshard": False, "freeze": ["block", "embedding"]},
    {"precision": "bf16-autocast", "tp": 2},
    {"checkpoint": "operators", "optimizer": "adamw"},
    {"checkpoint": "operators", "precision": "bf16-master-fp32-gradients", "accumulate": 2, "fsdp": 4},
    {"checkpoint": "operators", "precision": "bf16-master", "reshard": False, "dp": 2},
    {"freeze": ["embedding", "mlp"], "optimizer": "adamw", "dp": 2},
    {**ADAPTED, "optimizer": "adamw"},
    {**ADAPTED, "precision": "bf16", "fsdp": 4, "update": "foreach"},
    {**ADAPTED, "precision": "bf16-autocast", "accumulate": 2},
    {"loss_chunks": 3, "dp": 2},
    {"loss_precision": "fp32", "precision": "bf16"},
    {"label_smoothing": 0.1, "optimizer": "momentum"},
    {"checkpoint": "selective", "optimizer": "nesterov"},
    {"checkpoint": ["mlp"], "optimizer": "rmsprop", "update": "foreach"},
    {"checkpoint": ["attention"], "tp": 2, "sp": True, "dp": 2},
    {"checkpoint": "selective", "tp": 2, "optimizer": "adadelta"},
    {"freeze": ["embedding", "mlp"], "optimizer": "adamw", "tp": 2, "sp": True},
    {"freeze": ["attention"], "precision": "bf16", "tp": 2},
]


@pytest.mark.parametrize("chosen", ALTERED, ids=lambda chosen: " ".join(f"{k}={v}" for k, v in chosen.items()))
def test_a_rank_of_sharded_weights_with_other_settings_costs_what_it_does(chosen: dict[str, Any]) -> None:
    sizes = {"vocab": 33, "layers": 3, "width": 24, "kv_heads": 8, "head_size": 4, "mlp_width": 40, "mlp": "gated"}
    model = ALWAYS | sizes | {"positions": "rotary", "norm": "rmsnorm"}
    plain = {"attention_bias": False, "mlp_bias": False, "qkv_bias": False} if "operators" in chosen.values() else {}
    model |= plain  # products with a bias are another operator
    asked: dict[str, Any] = {"fsdp": 3, "batch": 2, "seq": 8, "optimizer": "sgd"} | chosen
    named = [NAMED[part] for part in chosen.get("freeze", ())]
    found = run({"model": model, "kernel": "eager", **asked, "freeze": named})
    rank = cm.predict(cm.Transformer.of(model), **asked).rank
    assert_a_sharded_rank_agrees(rank, found, asked)


WRAPPED: list[dict[str, Any]] = [
    {"wrap": ["root"]},
    {"wrap": ["attention", "mlp"], "optimizer": "adamw", "dp": 2},
    {"wrap": ["block", "mlp"], "precision": "bf16-master", "accumulate": 2},
    {"wrap": ["block", "embedding", "head"], "reshard": False},
]


@pytest.mark.parametrize("chosen", WRAPPED, ids=lambda chosen: " ".join(f"{k}={v}" for k, v in chosen.items()))
def test_parts_that_are_gathered_together_by_name_cost_what_they_do(chosen: dict[str, Any]) -> None:
    sizes = {"vocab": 33, "layers": 5, "width": 24, "kv_heads": 8, "head_size": 4, "mlp_width": 40, "mlp": "gated"}
    model = ALWAYS | sizes | {"positions": "rotary", "norm": "rmsnorm"}
    asked: dict[str, Any] = {"fsdp": 3, "batch": 2, "seq": 8, "optimizer": "sgd"} | chosen
    modules = ["tokens" if part == "embedding" else part for part in chosen["wrap"]]
    found = run({"model": model, "kernel": "eager", **asked, "wrap": modules})
    assert_a_sharded_rank_agrees(cm.predict(cm.Transformer.of(model), **asked).rank, found, asked)


NETWORKS: list[tuple[str, list[str], dict[str, Any]]] = [
    ("mlp-mnist", [], {"fsdp": 7, "optimizer": "adamw"}),
    ("resnet18", [], {"fsdp": 2}),
    ("listed", [], {"fsdp": 2}),
    ("listed", ["Block"], {"fsdp": 3, "wrap": "layers", "optimizer": "adamw"}),
]


@pytest.mark.parametrize(("name", "units", "chosen"), NETWORKS, ids=str)
def test_a_rank_of_another_network_costs_what_it_does(name: str, units: list[str], chosen: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"batch": 3, "optimizer": "sgd"} | chosen
    found = run({"network": name, "units": units, **asked})
    model: Any = cm.from_torch(Listed(), torch.zeros(3, 4)) if name == "listed" else name
    device: Any = "gpu" if name == "mlp-mnist" else "cpu"  # as the module is written
    assert_a_sharded_rank_agrees(cm.predict(model, device=device, loss="cross_entropy", **asked).rank, found, asked)


WITHOUT_BACKWARD: list[dict[str, Any]] = [
    {"fsdp": 2},
    {"fsdp": 3, "dp": 2, "reshard": False},
    {"fsdp": 2, "tp": 2},
    {"fsdp": 2, "precision": "bf16-autocast"},
    {"fsdp": 2, "precision": "bf16-master"},
]


@pytest.mark.parametrize("chosen", WITHOUT_BACKWARD, ids=str)
def test_weights_that_nothing_drops_are_gathered_once(chosen: dict[str, Any]) -> None:
    """In all passes after the first, which hold as much beside weights as one on a single device does at most."""
    sizes = {"vocab": 64, "layers": 3, "width": 16, "kv_heads": 8, "head_size": 4, "mlp_width": 40, "mlp": "gated"}
    model = ALWAYS | sizes | {"positions": "rotary", "norm": "rmsnorm"}
    asked: dict[str, Any] = {"batch": 2, "seq": 8, "mode": "inference"} | chosen
    found = run({"model": model, "kernel": "eager", **asked})
    p = cm.predict(cm.Transformer.of(model), **asked)
    sent = [(x.phase, x.operation, x.bytes, x.devices) for x in p.timeline.every_collective()]
    assert sent == [tuple(each) for each in found.collectives]
    assert p.rank.flops.forward == found.forward_flops
    missing = found.most["forward"].alive - (found.buffers - p.memory.buffers) - stated(p.rank)["forward"].alive
    assert 0 <= missing <= 2 * 16 * 64 * 4  # Python has names for more than what is used again, such as logits


LATENT: dict[str, Any] = {"positions": "rotary", "head_size": 8, "kv_heads": None, "fused_qkv": False}
EXPERTS = {"mlp_bias": False, "mlp": "gated"}
FAMILIES: dict[str, dict[str, Any]] = {
    "latent": LATENT | {"latent": {"width": 16, "query_width": 12, "value_head_size": 4}, "rotary": {"size": 4}},
    "latent of keys alone": LATENT | {"latent": {"width": 8}, "rotary": {"size": 2}, "norm": "rmsnorm"},
    "experts": EXPERTS | {"experts": {"count": 4, "per_token": 2, "width": 24, "weights": "chosen"}},
    "experts and a shared one": EXPERTS
    | {"experts": {"count": 4, "width": 24, "weights": "all", "shared_width": 16, "shared_gate": True, "shares": True}},
    "an encoder": {"causal": False, "segments": 2, "head": {"transform": "gelu", "bias": True}, "tied": True},
    "an encoder of classes": {"causal": False, "segments": 2, "classes": {"count": 3}, "head": None},
    "narrow embeddings": {"embedding_width": 12, "embedding_factored": True, "causal": False, "boxes": 30},
    "an attention gate": {"attention_gate": True, "positions": "rotary", "query_key_norm": "head"},
    "windows": {"window": {"size": 4, "pattern": [True, False]}, "mlp_widths": [16, 24], "positions": "rotary"},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rank_of_a_family_costs_what_it_does(family: str) -> None:
    sizes = {"vocab": 33, "layers": 2, "width": 24, "kv_heads": 4, "head_size": 4, "norm": "layernorm"}
    model = ALWAYS | sizes | FAMILIES[family]
    assert_a_rank_agrees(model, "eager", {"optimizer": "adamw", "batch": 2, "seq": 8, "tp": 2})


TRANSLATORS = st.fixed_dictionaries(
    {
        "vocab": st.sampled_from([32, 33, 512]),
        "layers": st.integers(1, 2),
        "decoder_layers": st.sampled_from([None, 1, 2]),
        "width": st.sampled_from([16, 24]),
        "kv_heads": st.sampled_from([None, 4]),
        "head_size": st.sampled_from([4, 8]),
        "positions": st.sampled_from(["relative", "learned", "rotary"]),
        "mlp": st.sampled_from(["gated", "plain"]),
        "norm": st.sampled_from(["rmsnorm", "layernorm"]),
        "mlp_width": st.sampled_from([16, 40]),
        "qkv_bias": st.booleans(),
        "mlp_bias": st.booleans(),
        "norm_placement": st.sampled_from(["pre", "post", "both"]),
        "tied": st.booleans(),
        "shared_embedding": st.booleans(),
        "residual_dropout": st.sampled_from([0.0, 0.1]),
    }
)


@settings(examples(min(6, DRAWN)), phases=[Phase.explicit, Phase.generate])  # each takes a second
@given(TRANSLATORS, RUNS, st.sampled_from([2, 4]), st.booleans(), st.sampled_from(["sgd", "adamw"]))
def test_a_rank_of_an_encoder_decoder_costs_what_it_does(
    shape: dict[str, Any], runs: dict[str, Any], tp: int, split_loss: bool, optimizer: Any
) -> None:
    model = shape | {"context": 64, "heads": HEADS}
    chosen: dict[str, Any] = {"tp": tp, "loss_parallel": split_loss, "optimizer": optimizer, "target_seq": 6, **runs}
    rank, found = cm.predict(cm.EncoderDecoder(**model), **chosen).rank, run({"translator": model, **chosen})
    assert (rank.params, rank.memory.activations) == (found.params, found.saved)
    assert (rank.flops.forward, rank.flops.total) == (found.forward_flops, found.total_flops)
    assert_events_agree(rank, found, chosen)


SIDES: list[dict[str, Any]] = [
    {"tp": 2, "accumulate": 2},
    {"tp": 2, "checkpoint": "block", "loss_parallel": True},
    {"tp": 2, "precision": "bf16", "optimizer": "adamw"},
    {"tp": 2, "precision": "bf16-autocast"},
    {"tp": 2, "fsdp": 2, "dp": 2, "optimizer": "adamw", "checkpoint": "block"},
    {"fsdp": 3, "precision": "bf16-master", "accumulate": 2},
]


@pytest.mark.parametrize("chosen", SIDES, ids=str)
def test_a_rank_of_an_encoder_decoder_with_other_settings_costs_what_it_does(chosen: dict[str, Any]) -> None:
    sizes = {"vocab": 33, "layers": 2, "width": 24, "heads": HEADS, "head_size": 4, "mlp_width": 40, "context": 64}
    model: dict[str, Any] = sizes | {"positions": "relative", "mlp": "gated", "norm": "rmsnorm", "tied": True}
    asked: dict[str, Any] = {"batch": 2, "seq": 8, "target_seq": 6, "optimizer": "sgd"} | chosen
    found = run({"translator": model, **asked})
    assert_a_sharded_rank_agrees(cm.predict(cm.EncoderDecoder(**model), **asked).rank, found, asked)


IMAGES = {"input": [3, 8, 8], "patch": 4, "layers": 3, "width": 16, "heads": 4}
SPLIT_NETWORKS: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (cm.MLP, {"sizes": [8, 16, 16, 16, 4]}, {"tp": 2}),
    (cm.MLP, {"sizes": [8, 16, 12, 4], "bias": False}, {"tp": 4, "optimizer": "adamw"}),
    (cm.MLP, {"sizes": [8, *[16] * 9, 4], "dropout": 0.1}, {"tp": 2, "fsdp": 3}),
    (cm.VisionTransformer, IMAGES | {"mlp": "gated", "layer_scale": True, "embedding_dropout": 0.1}, {"tp": 2}),
    (
        cm.VisionTransformer,
        IMAGES | {"fused_qkv": False, "pooler": {"activation": "tanh"}, "last_norm": "first"},
        {"tp": 2, "optimizer": "momentum"},
    ),
    (cm.VisionTransformer, IMAGES, {"tp": 4, "fsdp": 2, "dp": 2, "optimizer": "adamw", "accumulate": 2}),
]


@pytest.mark.parametrize(("kind", "fields", "chosen"), SPLIT_NETWORKS, ids=str)
def test_a_rank_of_a_network_whose_layers_are_split_costs_what_it_does(
    kind: Any, fields: dict[str, Any], chosen: dict[str, Any]
) -> None:
    asked: dict[str, Any] = {"batch": 3, "optimizer": "sgd"} | chosen
    found = run({"network": [kind.__name__, fields], **asked})
    rank: Any = cm.predict(kind(**fields), loss="cross_entropy", **asked).rank
    if "fsdp" not in chosen:
        assert (rank.params, rank.memory.activations) == (found.params, found.saved)
    assert rank.flops.forward == found.forward_flops * chosen.get("accumulate", 1)
    assert_a_sharded_rank_agrees(rank, found, asked)


BUCKETED: list[dict[str, Any]] = [
    {"layers": 2, "width": 128, "mlp": "gated", "mlp_width": 400, "norm": "rmsnorm"},
    {"layers": 5, "width": 128, "mlp": "plain", "mlp_width": 512, "norm": "layernorm", "qkv_bias": True},
    {"layers": 3, "width": 256, "mlp": "plain", "mlp_width": 1024, "vocab": 3000, "tied": True},
    {"layers": 7, "width": 512, "mlp": "gated", "mlp_width": 1600, "vocab": 9000, "positions": "learned"},
]


@pytest.mark.parametrize(
    "chosen",
    [{}, {"precision": "bf16-autocast"}, {"lora": {"rank": 600, "targets": ["up"]}}, {"freeze": ["mlp"]}],
    ids=str,
)
@pytest.mark.parametrize("shape", BUCKETED, ids=lambda shape: f"{shape['layers']} blocks")
def test_gradients_of_copies_are_summed_in_the_buckets_of_a_real_step(
    shape: dict[str, Any], chosen: dict[str, Any]
) -> None:
    model = ALWAYS | {"vocab": 512, "kv_heads": 4, "head_size": 16, "positions": "none"} | shape
    named = [NAMED[part] for part in chosen.get("freeze", ())]
    found = answer_to({"buckets": True, "model": model, "batch": 1, "seq": 8, **chosen, "freeze": named})["buckets"]
    p = cm.predict(cm.Transformer.of(model), batch=1, seq=8, dp=2, **chosen)
    sums = [x.elements for x in p.rank.timeline.every_collective() if x.operation == "all_reduce"]
    assert sums == found
    assert len(sums) > 1 or chosen
    assert sum(x.bytes for x in p.rank.timeline.collectives if x.operation == "all_reduce") == p.memory.gradients


@pytest.mark.parametrize("chosen", [{"dp": 3}, {"dp": 2, "update": "foreach"}, {"dp": 40, "tied": True}], ids=str)
def test_the_rank_that_updates_most_of_whole_weights_costs_what_it_does(chosen: dict[str, Any]) -> None:
    """Sums of gradients are those of buckets, above; the largest tensor is the first rank's."""
    sizes = {"vocab": 64, "layers": 3, "width": 16, "kv_heads": 8, "head_size": 4, "mlp_width": 40, "mlp": "gated"}
    model = ALWAYS | sizes | {"positions": "rotary", "norm": "rmsnorm", "tied": "tied" in chosen}
    asked: dict[str, Any] = {"batch": 2, "seq": 8, "optimizer": "adamw", "zero": 1} | chosen
    asked.pop("tied", None)
    p = cm.predict(cm.Transformer.of(model), **asked)
    seen = [run({"model": model, "kernel": "eager", **asked, "rank": rank}) for rank in range(min(asked["dp"], 3))]
    most = max(seen, key=lambda found: found.stays[2])
    assert p.memory.optimizer == most.stays[2]
    sent = [x for x in p.rank.timeline.every_collective() if x.phase == "optimizer"]
    for found in seen:
        assert [(x.phase, x.operation, x.bytes, x.devices) for x in sent] == [tuple(each) for each in found.collectives]
    ours, extra = stated(p.rank), most.buffers - p.memory.buffers
    assert 0 <= ours["backward"].alive - (most.most["backward"].alive - extra) <= 4
    assert ours["optimizer"].alive == most.most["optimizer"].alive - extra


REAL: list[dict[str, Any]] = [
    {"tp": 2},
    {"tp": 4},
    {"tp": 2, "sp": True},
    {"tp": 2, "loss_parallel": True},
    {"tp": 4, "sp": True, "loss_parallel": True},
    {"fsdp": 2},
    {"fsdp": 3},
    {"fsdp": 4},
    {"fsdp": 2, "tp": 2},
    {"fsdp": 2, "tp": 2, "loss_parallel": True},
]


@pytest.mark.parametrize("layout", REAL, ids=lambda layout: " ".join(f"{k}={v}" for k, v in layout.items()))
def test_processes_that_hand_each_other_data_do_what_one_rank_alone_says(layout: dict[str, Any]) -> None:
    """All but peaks: a tensor that comes from another process is there twice until it is waited for."""
    sizes = {"vocab": 64, "layers": 2, "width": 16, "kv_heads": 4, "head_size": 4, "mlp_width": 40}
    model = ALWAYS | sizes | {"positions": "rotary", "mlp": "gated", "norm": "layernorm"}
    question = {"model": model, "kernel": "eager", "batch": 2, "seq": 8, **layout}
    assert run({**question, "real": True})._replace(most={}) == run(question)._replace(most={})


def test_what_ranks_cannot_split_is_refused_with_what_they_can() -> None:
    model = cm.Transformer.of(ALWAYS | {"vocab": 33, "layers": 1, "width": 16, "kv_heads": 4})
    refused = ({"tp": 8}, "use tp=4"), ({"tp": 3}, "use tp="), ({"tp": 2, "sp": True, "seq": 9}, "seq=8")
    for chosen, wanted in refused:
        with pytest.raises(cm.CostModelError, match=wanted):
            _ = cm.predict(model, **chosen).rank


@settings(examples(min(6, DRAWN)), phases=[Phase.explicit, Phase.generate])
@given(SHAPES, RUNS, st.sampled_from([2, 4]), st.sampled_from(["eager", "flash"]))
def test_a_rank_of_an_inference_costs_what_it_does(
    shape: dict[str, Any], runs: dict[str, Any], tp: int, kernel: Any
) -> None:
    model = ALWAYS | shape | {"positions": "rotary"}
    seen = run({"model": model, "kernel": kernel, "tp": tp, "mode": "inference", **runs})
    p = cm.predict(cm.Transformer.of(model), mode="inference", tp=tp, attention=kernel, **runs)
    sent = [(x.phase, x.operation, x.bytes, x.devices) for x in p.timeline.every_collective()]
    assert sent == [tuple(each) for each in seen.collectives]
    assert (p.rank.params, p.rank.flops.forward) == (seen.params, seen.forward_flops)
    # Python has names for more than what is used again, as on one device.
    assert stated(p.rank)["forward"].alive <= seen.most["forward"].alive - (seen.buffers - p.memory.buffers)


SERVING: list[dict[str, Any]] = [
    {"dp": 4, "ep": 2},
    {"dp": 4, "ep": 4, "tp": 2},
    {"fsdp": 4, "ep": 2},
    {"fsdp": 8, "ep": 4},
]


@pytest.mark.parametrize("layout", SERVING, ids=str)
def test_a_rank_that_sends_tokens_to_experts_in_a_forward_pass_costs_what_it_does(layout: dict[str, Any]) -> None:
    sizes = {"vocab": 33, "layers": 2, "width": 32, "kv_heads": 4, "head_size": 4, "mlp_width": 48, "mlp": "gated"}
    experts = {"count": 4, "per_token": 2, "bias": False, "shared_width": 16, "dense_layers": 1}
    model = ALWAYS | sizes | {"positions": "rotary", "norm": "rmsnorm", "experts": experts}
    chosen: dict[str, Any] = {"mode": "inference", "batch": 2, "seq": 8, **layout}
    seen = run({"model": model, "kernel": "eager", **chosen})
    p = cm.predict(cm.Transformer.of(model), **chosen)
    sent = [(x.phase, x.operation, x.bytes, x.devices) for x in p.timeline.every_collective()]
    assert sent == [tuple(each) for each in seen.collectives]
    assert p.rank.flops.forward == seen.forward_flops
    assert "fsdp" in layout or p.rank.params == seen.params
    assert stated(p.rank)["forward"].alive <= seen.most["forward"].alive - (seen.buffers - p.memory.buffers)


WITH: list[dict[str, Any]] = [
    {"checkpoint": "block", "loss_parallel": True},
    {"checkpoint": "block", "sp": True},
    {"checkpoint": "block", "fsdp": 2, "tp": 4},
    {"checkpoint": "block", "fsdp": 3, "sp": True, "precision": "bf16", "accumulate": 2, "optimizer": "adamw"},
    {"checkpoint": "block", "fsdp": 2, "dp": 2, "loss_parallel": True},
    {"checkpoint": "block", "fsdp": 2, "precision": "bf16-master-fp32-gradients", "reshard": False},
    {"loss_parallel": True, "fsdp": 2, "precision": "bf16", "vocab": 1001},
    {"loss_parallel": True, "fsdp": 3, "tp": 4, "precision": "bf16-master-fp32-gradients", "optimizer": "adamw"},
    {"loss_parallel": True, "precision": "fp16-autocast", "optimizer": "adamw"},
    {"loss_parallel": True, "precision": "bf16-autocast", "fsdp": 2, "sp": True},
    {"fsdp": 2, "sp": True, "optimizer": "adamw", "update": "foreach"},
    {"accumulate": 2, "sp": True, "optimizer": "adamw"},
    {"precision": "bf16", "optimizer": "adamw"},
    {"precision": "bf16", "loss_parallel": True},
    {"fsdp": 2, "precision": "bf16", "optimizer": "adamw", "accumulate": 2},
    {"fsdp": 3, "precision": "bf16-master", "dp": 2, "optimizer": "adamw"},
    {"fsdp": 2, "precision": "bf16-master-fp32-gradients", "sp": True, "accumulate": 2},
    {"optimizer": "momentum", "checkpoint": "selective"},
    {"optimizer": "momentum", "sp": True, "accumulate": 2},
    {"optimizer": "amsgrad", "sp": True, "vocab": 512},
    {"optimizer": "rmsprop", "vocab": 512},
    {"optimizer": "rmsprop-centered", "sp": True, "vocab": 512},
    {"optimizer": "radam", "sp": True, "checkpoint": ["mlp"]},
    {"optimizer": "adagrad", "fsdp": 2, "vocab": 512},
    {"loss_precision": "fp32", "precision": "bf16", "sp": True},
]


@pytest.mark.parametrize("chosen", WITH, ids=lambda chosen: " ".join(f"{k}={v}" for k, v in chosen.items()))
def test_a_tensor_rank_that_accumulates_or_recomputes_costs_what_it_does(chosen: dict[str, Any]) -> None:
    sizes = {"vocab": 33, "layers": 2, "width": 24, "kv_heads": 4, "head_size": 4, "mlp_width": 16}
    model = ALWAYS | sizes | {"positions": "rotary", "norm": "rmsnorm", "query_key_norm": "head", "tied": True}
    chosen = {"tp": 2, "batch": 2, "seq": 8, "optimizer": "sgd"} | chosen
    model["vocab"] = chosen.pop("vocab", model["vocab"])
    found = run({"model": model, "kernel": "eager", **chosen})
    assert_a_sharded_rank_agrees(cm.predict(cm.Transformer.of(model), **chosen).rank, found, chosen)


CONTEXTS: list[dict[str, Any]] = [
    {"cp": 2, "cp_kind": "ring", "precision": "bf16"},
    {"cp": 4, "cp_kind": "all-gather", "precision": "bf16-master-fp32-gradients", "checkpoint": "block", "dp": 2},
    {"cp": 2, "cp_kind": "ulysses", "fsdp": 2, "tp": 2, "accumulate": 2, "dp": 2, "optimizer": "adamw"},
    {"cp": 2, "cp_kind": "ring", "cp_balanced": False, "tp": 2, "sp": True, "fsdp": 3, "precision": "bf16-master"},
    {"cp": 2, "cp_kind": "ulysses", "tp": 4, "checkpoint": "block", "precision": "bf16", "reshard": False},
    {"cp": 2, "cp_kind": "ring", "precision": "bf16-autocast", "checkpoint": "block"},
    {"cp": 4, "cp_kind": "all-gather", "precision": "fp16-autocast", "optimizer": "adamw", "update": "foreach"},
    {"cp": 2, "cp_kind": "ring", "checkpoint": "selective", "loss_chunks": 3},
    {"cp": 2, "cp_kind": "all-gather", "checkpoint": ["attention"], "freeze": ["embedding", "mlp"]},
    {"cp": 2, "cp_kind": "ulysses", "checkpoint": ["mlp"], "fsdp": 2, **ADAPTED},
]


@pytest.mark.parametrize("chosen", CONTEXTS, ids=lambda chosen: " ".join(f"{k}={v}" for k, v in chosen.items()))
def test_a_rank_of_a_sequence_with_other_settings_costs_what_it_does(chosen: dict[str, Any]) -> None:
    sizes = {"vocab": 33, "layers": 3, "width": 24, "kv_heads": 8, "head_size": 4, "mlp_width": 16}
    model = ALWAYS | sizes | {"positions": "rotary", "norm": "rmsnorm", "tied": True}
    chosen = {"batch": 2, "seq": 16, "optimizer": "sgd", "cp_balanced": True} | chosen
    place = 0 if chosen["cp_balanced"] else (chosen["cp"] - 1) * chosen.get("tp", 1)
    kernel = "eager" if chosen["cp_kind"] == "ulysses" else "flash"
    named = [NAMED[part] for part in chosen.get("freeze", ())]
    found = run({"model": model, "kernel": kernel, "rank": place, **chosen, "freeze": named})
    rank = cm.predict(cm.Transformer.of(model), attention=kernel, **chosen).rank
    assert rank.flops.forward == found.forward_flops * chosen.get("accumulate", 1)
    assert_a_sharded_rank_agrees(rank, found, chosen)
