"""Laws of sequences and experts that are split over ranks: what all ranks do is what one device does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import costmodel as cm
from tests.command import error_of
from tests.profiles import examples

KINDS = st.sampled_from(["all-gather", "ring", "ulysses"])
SIZES = st.fixed_dictionaries(
    {
        "vocab": st.sampled_from([32, 96]),
        "layers": st.integers(1, 3),
        "width": st.sampled_from([16, 48]),
        "kv_heads": st.sampled_from([4, 8]),
        "positions": st.sampled_from(["rotary", "learned", "none"]),
        "mlp": st.sampled_from(["gated", "plain"]),
        "query_key_norm": st.sampled_from([None, "head"]),
        "tied": st.booleans(),
    }
)


def model(**fields: Any) -> Any:
    return cm.Transformer.of({"context": 64, "heads": 8, "fused_qkv": False, **fields})


@settings(examples(20))
@given(SIZES, st.sampled_from([2, 4]), KINDS, st.integers(1, 2), st.sampled_from([8, 32]))
def test_all_ranks_of_a_sequence_do_what_one_device_does(
    sizes: dict[str, Any], cp: int, kind: Any, batch: int, seq: int
) -> None:
    run: dict[str, Any] = {"batch": batch, "seq": seq, "attention": "flash", "attention_pairs": "visible", "fsdp": 2}
    p = cm.predict(model(**sizes), cp=cp, cp_kind=kind, **run)
    alone = cm.predict(model(**sizes), **{**run, "fsdp": 1})
    assert p.flops == alone.flops
    assert cp * p.rank.flops.forward == alone.flops.forward
    assert cp * p.rank.flops.backward == alone.flops.backward
    assert p.memory.inputs * cp == alone.memory.inputs
    assert p.memory.weights * 2 * cp >= alone.memory.weights > p.memory.weights


@pytest.mark.parametrize("kind", ["all-gather", "ring"])
@pytest.mark.parametrize("cp", [2, 3, 4])
def test_the_last_rank_has_more_to_do_unless_ends_are_balanced(kind: Any, cp: int) -> None:
    run: dict[str, Any] = {"batch": 2, "seq": 48, "attention": "flash", "fsdp": 2, "cp": cp, "cp_kind": kind}
    balanced, unbalanced = (
        cm.predict(model(vocab=32, layers=1, width=16), cp_balanced=b, **run) for b in (True, False)
    )
    part = 8 * 2 * (48 // cp) ** 2 * 2 * 2 * 2  # heads, samples, pairs, features of a head, products, multiply and add
    assert unbalanced.rank.flops.forward - balanced.rank.flops.forward == part * (cp - 1) // 2


def test_kept_tensors_fall_as_the_ranks_of_a_sequence_grow() -> None:
    kept = [
        cm.predict(model(vocab=32, layers=2, width=16), seq=64, attention="flash", fsdp=2, cp=cp).memory.activations
        for cp in (1, 2, 4, 8)
    ]
    assert kept == sorted(kept, reverse=True)
    assert 2 * kept[2] > kept[1] > kept[3] * 3


@pytest.mark.parametrize(
    ("changes", "asked", "right"),
    [
        ({}, {"cp": 3}, "use 30 or 36"),
        ({}, {"cp": 2, "cp_balanced": False, "seq": 33}, "use 32 or 34"),
        ({}, {"cp": 16, "cp_kind": "ulysses"}, "use cp=8"),
        ({}, {"cp": 4, "tp": 4, "cp_kind": "ulysses"}, "use cp=2"),
        ({}, {"cp": 2, "attention": "eager"}, "use 'flash', or cp_kind='ulysses'"),
        ({}, {"cp_kind": "ring"}, "give cp"),
        ({}, {"cp": 2, "cp_kind": "ulysses", "cp_balanced": False}, "leave it out"),
        ({"window": {"size": 4}}, {"cp": 2}, "use cp_kind='ulysses'"),
        ({"causal": False}, {"cp": 2}, "use cp_balanced=False"),
        ({"positions": "alibi"}, {"cp": 2}, "positions 'alibi'"),
        ({"sinks": True}, {"cp": 2}, "not worked out for sinks"),
    ],
)
def test_sequences_that_cannot_be_split_so_are_refused(
    changes: dict[str, Any], asked: dict[str, Any], right: str
) -> None:
    fields = {"vocab": 32, "layers": 1, "width": 16, "positions": "rotary"} | changes
    run = {"seq": 32, "fsdp": 2, "attention": "flash"} | asked
    message = error_of(lambda: cm.predict(model(**fields), **run))  # type: ignore[arg-type]
    assert right in message
    assert len(message) < 200


def test_ranks_of_a_sequence_split_weights_by_themselves() -> None:
    small = model(vocab=32, layers=2, width=16, positions="rotary")
    run: dict[str, Any] = {"seq": 32, "attention": "flash"}
    alone, split = (cm.predict(small, **run, **more).rank.memory for more in ({"cp": 4}, {"cp": 2, "fsdp": 2}))
    assert (alone.weights, alone.gradients, alone.optimizer) == (split.weights, split.gradients, split.optimizer)


def test_copies_micro_batches_and_recomputed_blocks_go_with_parts_of_sequences() -> None:
    small = model(vocab=32, layers=2, width=16, positions="rotary")
    run: dict[str, Any] = {"seq": 32, "attention": "flash", "fsdp": 2, "cp": 2}
    plain = cm.predict(small, **run)
    assert cm.predict(small, dp=2, **run).settings.layout.devices == 8
    assert cm.predict(small, accumulate=3, **run).rank.flops.total == 3 * plain.rank.flops.total
    again = cm.predict(small, checkpoint="block", **run).rank
    gathered = [x.phase for x in again.timeline.every_collective() if x.layer.endswith("fused")]
    assert gathered.count("recompute") == gathered.count("forward") == 2
    assert again.memory.activations < plain.memory.activations
    halved = cm.predict(small, precision="bf16", **run).rank
    whole, half = (
        sum(x.bytes for x in rank.timeline.collectives if x.operation == "all_gather") for rank in (plain.rank, halved)
    )
    assert whole == 2 * half


EXPERTS = {"experts": {"count": 8, "per_token": 2, "bias": False}, "mlp_bias": False}


@pytest.mark.parametrize(("fsdp", "ep"), [(2, 2), (4, 2), (8, 4), (8, 8)])
def test_ranks_have_all_experts_among_them(fsdp: int, ep: int) -> None:
    small = model(vocab=32, layers=2, width=16, mlp_width=24, positions="rotary", **EXPERTS)
    p, plain = (cm.predict(small, batch=2, seq=16, fsdp=fsdp, **more) for more in ({"ep": ep}, {}))
    assert p.memory.weights == plain.memory.weights  # sizes here divide evenly
    assert p.rank.flops == plain.rank.flops == plain.flops
    assert ep * (p.rank.params - p.rank.active_params) == p.params - p.active_params
    rows = 2 * 16 * 2 * 16 * 4  # samples, tokens, choices, features, bytes
    sent = [x for x in p.rank.timeline.every_collective() if x.operation == "all_to_all"]
    assert [x.bytes for x in sent if x.phase == "forward"] == [8 * 8, rows, rows] * 2
    assert [x.bytes for x in sent if x.phase == "backward"] == [rows, rows] * 2
    gathered = [x for x in p.rank.timeline.every_collective() if x.operation == "all_gather"]
    assert {x.devices for x in gathered} == {fsdp, *({fsdp // ep} - {1})}


@pytest.mark.parametrize(("fsdp", "ep"), [(16, 2), (32, 8), (64, 8)])
def test_of_experts_fewer_than_ranks_each_rank_has_a_part_of_some(fsdp: int, ep: int) -> None:
    small = model(vocab=64, layers=2, width=64, mlp_width=128, positions="rotary", **EXPERTS)
    p = cm.predict(small, batch=2, seq=16, fsdp=fsdp, ep=ep)
    experts, router = 2 * 8 * 2 * 64 * 128, 2 * 8 * 64
    rows = (p.params - experts - router) // fsdp + 2 * 64  # of the router at most one, with fewer than ranks
    assert p.memory.weights == p.memory.gradients == 4 * (rows + experts // fsdp)
    sent = next(x for x in p.rank.timeline.every_collective() if x.devices == fsdp // ep)
    assert sent.elements == 8 // ep * 2 * 64 * 128
    assert "use fsdp=" in error_of(lambda: cm.predict(small, seq=16, fsdp=3 * fsdp, ep=ep))


@pytest.mark.parametrize(("imbalance", "ep", "most"), [(2.0, 2, 2), (2.0, 4, 2), (4.0, 2, 2), (4.0, 8, 4)])
def test_the_heaviest_rank_gets_the_rows_of_the_busiest_experts(imbalance: float, ep: int, most: float) -> None:
    fields = {"vocab": 32, "layers": 2, "width": 16, "mlp_width": 24, "positions": "rotary"} | EXPERTS
    uneven = fields | {"experts": {**EXPERTS["experts"], "imbalance": imbalance}}
    run: dict[str, Any] = {"batch": 3, "seq": 16, "fsdp": 8, "ep": ep}
    even, p = (cm.predict(model(**each), **run) for each in (fields, uneven))  # type: ignore[arg-type]
    rows = 2 * 3 * 16
    one = 2 * 2 * 2 * rows * 16 * 24  # blocks, matrices, a multiply-add
    assert p.flops == even.flops
    assert p.rank.flops.forward - even.rank.flops.forward == round((most - 1) * one)
    sent = [x.bytes for x in p.rank.timeline.every_collective() if x.operation == "all_to_all" and x.dtype != "int64"]
    assert sent[:2] == [rows * 16 * 4, round(most * rows * 16 * 4)]


def test_copies_that_serve_have_a_part_of_the_experts_each_and_all_else() -> None:
    small = model(vocab=32, layers=2, width=16, mlp_width=24, positions="rotary", **EXPERTS)
    run: dict[str, Any] = {"mode": "decode", "batch": 4, "past": 16}
    p, plain = (cm.predict(small, **run, **more) for more in ({"dp": 8, "ep": 4}, {}))
    experts = 2 * 8 * 2 * 16 * 24
    assert plain.memory.weights - p.memory.weights == 4 * experts * 3 // 4
    assert (p.memory.cache, p.rank.flops) == (plain.memory.cache, plain.flops)
    assert [x.bytes for x in p.rank.timeline.every_collective()] == [8 * 8, *[4 * 2 * 16 * 4] * 2] * 2


@pytest.mark.parametrize(
    ("changes", "asked", "right"),
    [
        ({"experts": None}, {"ep": 2}, "has none"),
        ({}, {"ep": 3, "fsdp": 3}, "use ep=2"),
        ({}, {"ep": 4}, "use fsdp=4"),
        ({"mlp_width": 24}, {"ep": 2, "fsdp": 24}, "use fsdp=16"),
        ({}, {"ep": 2, "tp": 2, "fsdp": 1}, "use fsdp=2"),
        ({}, {"ep": 4, "fsdp": 1, "dp": 6, "mode": "prefill"}, "use dp=4 or 8"),
        ({}, {"ep": 2, "precision": "bf16-autocast"}, "bf16-master"),
        ({}, {"ep": 2, "wrap": "attention"}, "leave one of them out"),
    ],
)
def test_experts_that_cannot_be_split_so_are_refused(
    changes: dict[str, Any], asked: dict[str, Any], right: str
) -> None:
    fields = {"vocab": 32, "layers": 1, "width": 16, "positions": "rotary"} | EXPERTS | changes
    run = {"seq": 32, "fsdp": 2} | asked
    message = error_of(lambda: cm.predict(model(**fields), **run))  # type: ignore[arg-type]
    assert right in message
    assert len(message) < 200
