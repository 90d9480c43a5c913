"""One rank of a layout costs what PyTorch says: parameters, FLOPs, bytes kept, every collective in order, the peak."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import costmodel as cm
from tests.profiles import examples

from .ranks import run
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
ALWAYS = {"context": 64, "heads": HEADS, "tied": False, "fused_qkv": False}
LAYOUTS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "tensor": st.fixed_dictionaries(
        {"tp": st.sampled_from([2, 4]), "sp": st.booleans(), "loss_parallel": st.booleans()}
    ),
    "sharded": st.fixed_dictionaries({"fsdp": st.sampled_from([2, 3, 4])}),
    "contexts": st.fixed_dictionaries(
        {
            "fsdp": st.just(2),
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
    by_heads = chosen.get("cp_kind") == "ulysses"
    kernel = data.draw(st.sampled_from(["eager", "flash"])) if shape["positions"] == "rotary" else "eager"
    if cp > 1:  # the last rank has most to do, unless all have as much
        kernel = kernel if by_heads else "flash"
        chosen["cp_balanced"] |= by_heads
        chosen["rank"] = 0 if chosen["cp_balanced"] else cp - 1
    if chosen.get("sp"):  # the oracle's own norm of squares hides from DTensor whose tokens its gradients are of
        model["norm"] = "layernorm"
    found = run({"model": model, "kernel": kernel, **runs, **chosen})
    chosen.pop("rank", None)
    whole = cm.predict(cm.Transformer.of(model), optimizer="sgd", attention=kernel, **runs, **chosen)
    rank, most = whole.rank, found.most
    sent = [
        (x.phase.replace("loss", "forward"), x.operation, x.bytes, x.devices) for x in rank.timeline.every_collective()
    ]
    assert sent == [tuple(each) for each in found.collectives]
    assert (rank.flops.forward, rank.flops.total) == (found.forward_flops, found.total_flops)
    if "fsdp" not in chosen:  # weights are gathered and dropped meanwhile
        assert (rank.params, rank.memory.activations) == (found.params, found.saved)
    # The model of PyTorch has the mask and the tables of angles once in every block.
    own, head = runs["seq"] // cp, shape["head_size"]
    seen = own * cp if by_heads else own
    extra = shape["layers"] * (seen * seen + 8 * own * 4 + 2 * own * head * 4) - rank.memory.buffers
    ours = stated(rank)
    # The fused kernel's backward has a sum for each row to itself, inside one operation.
    of_rank = 4 * runs["batch"] * seen * HEADS // chosen.get("tp", 1) // (cp if by_heads else 1)
    unseen = of_rank if kernel == "flash" and (cp == 1 or by_heads) else 0
    assert 0 <= ours["backward"].alive - (most["backward"].alive - extra) <= 4 + unseen
    assert ours["forward"].alive - (most["forward"].alive - extra) <= 4


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
