"""What Megatron-Core and DeepSpeed have on a rank, against papers and their own documents, without PyTorch."""

from __future__ import annotations

from collections import Counter
from math import lcm
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.errors import SettingError
from tests.profiles import examples

MIXED = "bf16-master-fp32-gradients"


def gpt(**changes: Any) -> cm.Transformer:
    dropouts = {f"{place}_dropout": 0.1 for place in ("embedding", "attention", "residual")}
    sizes = {"vocab": 1000, "context": 32, "layers": 3, "width": 48, "heads": 8}
    return cm.Transformer.of({**sizes, **dropouts, **changes})


def megatron(model: Any, **settings: Any) -> Any:
    chosen: dict[str, Any] = {"precision": MIXED, **settings}
    return cm.predict(model, runtime="megatron", **chosen)


def korthikanti(s: int, b: int, h: int, a: int, t: int, *, sp: bool, checkpoint: str) -> float:
    """Korthikanti et al. 2022, table 2: bytes a layer keeps in 16 bits, over t ranks."""
    if checkpoint == "block":
        return 2 * s * b * h / (t if sp else 1)
    square = 5 * a * s / (h * t) if checkpoint == "none" else 0
    return s * b * h * ((34 / t if sp else 10 + 24 / t) + square)


@pytest.mark.parametrize("checkpoint", ["none", "selective", "block"])
@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("name", ["megatron-22b", "megatron-175b", "megatron-530b", "megatron-1t"])
def test_activations_of_a_layer_are_those_of_the_paper(name: str, sp: bool, checkpoint: str) -> None:
    """And the mean and deviation of two norms in fp32, which it leaves out."""
    s, b, t = 2048, 4, 8
    model: Any = cm.load(name)
    kept = [
        megatron(model.with_values({"layers": n}), batch=b, seq=s, tp=t, sp=sp, checkpoint=checkpoint) for n in (3, 4)
    ]
    statistics = 16 * s * b / (t if sp else 1) if checkpoint != "block" else 0
    expected = korthikanti(s, b, model.width, model.heads, t, sp=sp, checkpoint=checkpoint) + statistics
    assert kept[1].memory.activations - kept[0].memory.activations == pytest.approx(expected, rel=1e-12)


def test_what_is_kept_before_and_after_the_layers() -> None:
    """Korthikanti et al. 2022, §4.3: sbh/t of a dropout, 4sbh/t of the final norm and the head, 4sbv/t of the loss.

    And what it leaves out: indices and masks of 18 bytes a token, position numbers, and the norm's statistics.
    """
    s, b, t = 2048, 1, 8
    model: Any = cm.load("megatron-22b")
    few, more = (megatron(model.with_values({"layers": n}), batch=b, seq=s, tp=t, sp=True) for n in (1, 2))
    ends = 2 * few.memory.activations - more.memory.activations
    sbh, rows = s * b * model.width, s * b
    assert ends == 5 * sbh // t + 4 * rows * model.vocab // t + 18 * rows + 8 * s + 8 * rows // t


@examples(10)
@given(
    tp=st.sampled_from([2, 4, 8]),
    layers=st.integers(1, 4),
    gated=st.booleans(),
    rotary=st.booleans(),
    checkpoint=st.sampled_from(["none", "selective"]),
)
def test_collectives_of_a_step(tp: int, layers: int, gated: bool, rotary: bool, checkpoint: str) -> None:
    """Shoeybi et al. 2019, §3; with `sp` Korthikanti et al. 2022, §4.2.2, whose inputs are gathered again."""
    model = gpt(layers=layers, mlp="gated" if gated else "plain", positions="rotary" if rotary else "learned")
    for sp in (False, True):
        p = megatron(model, batch=2, seq=16, tp=tp, sp=sp, checkpoint=checkpoint)
        sent = Counter((c.phase, c.operation) for c in p.rank.timeline.every_collective())
        n = 2 * layers + 1
        assert sent.pop(("loss", "all_reduce")) == 3
        if not sp:
            assert sent == {("forward", "all_reduce"): n, ("backward", "all_reduce"): n}
            continue
        whole = not rotary  # positions are added to embeddings of all tokens
        expected = {
            ("forward", "all_gather"): n,
            ("forward", "reduce_scatter"): n - whole,
            ("backward", "all_gather"): 4 * layers + 2,
            ("backward", "reduce_scatter"): n,
            ("backward", "all_reduce"): 1,  # of the norms' gradients
        }
        assert sent == expected | ({("forward", "all_reduce"): 1} if whole else {})


@pytest.mark.parametrize(
    ("precision", "alone", "shared"),
    [(MIXED, 18, (6, 12)), ("fp16-master", 20, (4, 16)), ("bf16-master", 20, (4, 16)), ("fp32", 16, (8, 8))],
)
def test_bytes_of_states_a_weight(precision: str, alone: int, shared: tuple[int, int]) -> None:
    """The table of Megatron-Core's document on its distributed optimizer: alone, and over d ranks of dp."""
    model, d = gpt(vocab=1024), 4

    def states(**layout: Any) -> float:
        p = megatron(model, batch=1, precision=precision, **layout)
        alive = [step.alive for step in p.timeline.steps if step.phase == "optimizer"]
        return max(sum(each) - each.buffers - each.inputs for each in alive) / p.rank.params

    counters = 0.001
    assert states() == pytest.approx(alone, abs=counters)
    whole, part = shared
    assert states(dp=d, zero=1) == pytest.approx(whole + part / d, rel=0.02)  # buckets are filled up


@examples(10)
@given(
    dp=st.sampled_from([2, 3, 8]), tp=st.sampled_from([1, 2]), layers=st.integers(1, 5), zero=st.sampled_from([0, 1])
)
def test_gradients_are_sent_in_buckets_that_hold_them(dp: int, tp: int, layers: int, zero: int) -> None:
    """Narayanan et al. 2021; the buckets of ``_ParamAndGradBuffer``."""
    model = gpt(width=2048, heads=16, layers=layers, vocab=30000)
    p = megatron(model, batch=1, seq=8, tp=tp, dp=dp, zero=zero)
    sent = [c for c in p.rank.timeline.every_collective() if c.axis == "dp"]
    gradients = [c for c in sent if c.phase == "backward"]
    assert {c.operation for c in gradients} == {"reduce_scatter" if zero else "all_reduce"}
    spare = sum(c.elements for c in gradients) - p.rank.params
    assert all(c.elements >= 40_000_000 for c in gradients[:-1])
    if not zero:
        assert (spare, len(sent)) == (0, len(gradients))
        return
    assert 0 <= spare < len(gradients) * lcm(dp, 128) + 64 * 20 * layers
    assert all(c.elements % lcm(dp, 128) == 0 for c in gradients)
    assert [c.elements for c in sent if c.phase == "optimizer"] == [c.elements for c in gradients]


def test_vocabulary_is_filled_up() -> None:
    """``--make-vocab-size-divisible-by 128`` of each rank: 1,000 rows are 1,024, and of 8 ranks 128 each."""
    assert megatron(gpt(), batch=1).rank.params - cm.predict(gpt(), batch=1).params == 24 * 48
    sizes = [row for row in megatron(gpt(tied=False), batch=1, tp=8).rank.layers if row.name == "head"]
    assert sizes[0].params == 128 * 48


@pytest.mark.parametrize(("tp", "sp"), [(1, False), (2, True)])
def test_ranks_of_a_sequence_have_all_weights_and_split_their_states(tp: int, sp: bool) -> None:
    """Over cp a rank has as many tokens of a longer sequence, in attention all of them for some heads: the output of
    that is kept before it is sent back, and after (``AttnFuncWithCPAndQKVOA2A`` of Transformer Engine).
    """
    model = gpt(layers=3, positions="rotary", context=64)
    run = {"tp": tp, "sp": sp, "zero": 1, "attention": "flash"}
    shorter, longer = (
        megatron(model, batch=2, seq=8 * cp, dp=4 // cp, cp=cp, cp_kind=kind, **run)
        for cp, kind in ((1, "all-gather"), (2, "ulysses"))
    )
    for line in ("weights", "gradients", "optimizer", "masters"):
        assert getattr(longer.memory, line) == getattr(shorter.memory, line)
    sums = [
        [(c.operation, c.devices, c.bytes) for c in p.timeline.every_collective() if c.axis == "dp"]
        for p in (shorter, longer)
    ]
    assert sums[0] == sums[1]
    sent = [c for c in longer.timeline.every_collective() if c.axis == "cp"]
    assert Counter((c.phase, c.operation) for c in sent) == {
        ("forward", "all_to_all"): 4 * 3,
        ("backward", "all_to_all"): 4 * 3,
    }


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cp": 2, "cp_balanced": False}, "cp_balanced"),
        ({"tp": 2, "etp": 1}, "has none"),
        ({"tp": 2, "etp": 2}, "has none"),
        ({"precision": "bf16"}, "bf16-master-fp32-gradients"),
        ({"precision": "bf16-autocast"}, "masters"),
        ({"optimizer": "lion"}, "adamw"),
        ({"fsdp": 2}, "fsdp"),
        ({"zero": 2, "dp": 2}, "use 1"),
        ({"zero": 1, "tp": 2}, "give dp, such as 8, or leave it out"),
        ({"mode": "inference"}, "training"),
        ({"loss_chunks": 2}, "loss_chunks"),
    ],
)
def test_what_it_cannot_do_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words) as caught:
        megatron(gpt(), batch=2, seq=8, **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "settings", "words"),
    [
        ("gpt2-small", {"cp": 2, "attention": "eager"}, "it is 'flash' here"),
        ("gpt2-small", {"cp": 2, "attention": "efficient"}, "it is 'efficient' here"),
        ("mixtral-8x7b", {"tp": 2, "ep": 2, "dp": 2, "sp": False}, "so sp is True"),
    ],
)
def test_what_it_takes_in_one_way_alone_is_said(model: str, settings: dict[str, Any], words: str) -> None:
    asked = megatron(model, batch=1, seq=64, **settings)
    assert words in " ".join(str(asked).split())
    assert words in " ".join(str(asked.on("h100-sxm")).split())
    assert words not in " ".join(str(megatron(model, batch=1, seq=64, tp=2, sp=True)).split())


def deepspeed(model: Any, **settings: Any) -> Any:
    chosen: dict[str, Any] = {"precision": "fp16-master", "dp": 4, **settings}
    return cm.predict(model, runtime="deepspeed", **chosen)


@pytest.mark.parametrize("ranks", [2, 64, 1024])
@pytest.mark.parametrize(("stage", "whole", "part"), [(1, 4, 12), (2, 2, 14), (3, 0, 16)])
def test_states_are_those_of_the_table_of_zero(stage: int, whole: int, part: int, ranks: int) -> None:
    """Rajbhandari et al. 2020, figure 1 and table 1, of 7.5 billion weights: 4Ψ + 12Ψ/N, 2Ψ + 14Ψ/N and 16Ψ/N.

    Stage 3 has weights of at most 100,000 elements besides, which the paper has not.
    """
    model: Any = cm.Transformer.of(
        {"vocab": 50304, "context": 8, "layers": 38, "width": 4032, "heads": 32, "tied": True}
    )
    p = deepspeed(model, batch=1, seq=8, zero=stage, dp=ranks)
    m, psi = p.memory, p.params
    assert psi == pytest.approx(7.5e9, rel=0.03)
    states = m.weights + m.masters + m.gradients + m.optimizer
    expected = (whole + part / ranks) * psi
    if stage == 3:
        assert 0 <= states - expected < 0.002 * 16 * psi / ranks + 2 * 38 * 13 * 4032 + 10**6
    else:
        assert states == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize(("tp", "dp", "cp"), [(2, 4, 1), (1, 2, 4), (4, 2, 2)])
def test_states_of_tensor_ranks_and_of_sequences_are_split_alike(stage: int, tp: int, dp: int, cp: int) -> None:
    """Of a rank's own weights dp·cp ranks split the states (``seq_data_parallel_group``; Jacobs et al. 2023, §3.2).

    What is sent of a sequence is the heads' all-to-alls alone.
    """
    model = gpt(width=64, layers=3, vocab=1024, positions="rotary", attention_dropout=0.0)
    context = {"cp": cp, "cp_kind": "ulysses"} if cp > 1 else {}
    p = deepspeed(model, batch=1, seq=32, zero=stage, tp=tp, dp=dp, attention="flash", **context)
    ranks, own = dp * cp, p.rank.params
    part = p.memory.masters // 4
    assert own <= part * ranks < own + 2 * ranks * 40
    assert p.memory.optimizer == pytest.approx(8 * part, abs=8 * 40)
    sent = [c for c in p.rank.timeline.every_collective() if c.axis in ("dp", "cp")]
    assert {c.devices for c in sent if c.axis == "dp"} == {ranks}
    assert Counter(c.operation for c in sent if c.axis == "cp") == ({"all_to_all": 2 * 4 * 3} if cp > 1 else {})


@examples(20)
@given(
    stage=st.integers(1, 3),
    dp=st.sampled_from([2, 3, 8]),
    layers=st.integers(1, 4),
    precision=st.sampled_from(["fp16-master", "bf16-master", MIXED, "fp32"]),
    accumulate=st.integers(1, 2),
)
def test_what_is_offloaded_is_on_the_host(stage: int, dp: int, layers: int, precision: str, accumulate: int) -> None:
    """Rajbhandari et al. 2020; ZeRO-Offload (Ren et al. 2021, §4): masters and states go, the model's work stays."""
    model = gpt(width=64, layers=layers)
    settings: dict[str, Any] = {"zero": stage, "dp": dp, "precision": precision, "accumulate": accumulate, "batch": 2}
    here, there = deepspeed(model, **settings), deepspeed(model, offload="optimizer", **settings)
    assert (here.memory.host, there.memory.masters, there.memory.optimizer) == (0, 0, 0)
    assert there.memory.host >= here.memory.masters + here.memory.optimizer
    assert there.memory.activations == here.memory.activations
    assert there.memory.peak < here.memory.peak
    if stage == 3:
        both = deepspeed(model, offload=("optimizer", "parameters"), **settings)
        moved = there.memory.weights - both.memory.weights
        assert moved == both.memory.host - there.memory.host > 0


@examples(10)
@given(stage=st.integers(1, 3), dp=st.sampled_from([2, 8]), width=st.sampled_from([2048, 4096]))
def test_every_gradient_is_in_a_bucket(stage: int, dp: int, width: int) -> None:
    """``reduce_bucket_size`` of 5e8 elements; stages 1 and 2 all-reduce, whatever the paper says."""
    model = gpt(width=width, heads=16, layers=6, vocab=30000)
    p = deepspeed(model, batch=1, seq=8, zero=stage, dp=dp)
    sent = [c for c in p.rank.timeline.every_collective() if c.phase == "backward" and c.operation != "all_gather"]
    assert sum(c.elements for c in sent) == p.params
    assert all(c.elements <= 500_000_000 for c in sent)
    assert {c.operation for c in sent} == {"reduce_scatter" if stage == 3 else "all_reduce"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"zero": 0}, "zero=1, 2 or 3"),
        ({"zero": 3, "tp": 2, "sp": True}, "sp=True"),
        ({"zero": 3, "cp": 2}, "cp_kind='ulysses'"),
        ({"zero": 2, "pp": 3, "accumulate": 4}, "zero=1"),
        ({"zero": 1, "offload": "parameters"}, "zero=3"),
        ({"zero": 1, "offload": "weights"}, "optimizer"),
        ({"zero": 1, "precision": "bf16"}, "masters"),
    ],
)
def test_what_deepspeed_cannot_do_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words) as caught:
        deepspeed(gpt(), batch=2, seq=8, **settings)
    assert "\n" not in str(caught.value)


def test_gpt_3_on_1024_gpus() -> None:
    """Narayanan et al. 2021, table 1: 175 billion weights, tp 8 and pp 8, of dp 16; 18 bytes a weight of a rank.

    Each stage has 12 blocks, a rank an eighth of each: 12 d² + 13 d, of which the bias of two products and norms whole.
    """
    model: Any = cm.load("megatron-175b")
    p = megatron(model, batch=1, tp=8, pp=8, dp=16, accumulate=96, checkpoint="block")
    d, rows = model.width, -(-model.vocab // 1024) * 1024
    block = (12 * d * d + 7 * d) // 8 + 6 * d
    table = rows * d // 8
    assert sorted(rank.params for rank in p.ranks) == sorted(
        [12 * block + table + model.context * d, *[12 * block] * 6, 12 * block + table + 2 * d]
    )
    for rank in p.ranks:
        m = rank.memory
        assert m.weights + m.masters + m.gradients + m.optimizer == 18 * rank.params
    assert p.memory.peak < 80 * 2**30


@examples(8)
@given(pp=st.sampled_from([2, 4]), sp=st.booleans(), tied=st.booleans(), more=st.integers(0, 6))
def test_stages_add_up_to_the_model(pp: int, sp: bool, tied: bool, more: int) -> None:
    """Weights of all stages are the model's, and the table again if the head is tied; 1F1B keeps min(m, p − i)."""
    model = gpt(layers=4, tied=tied, vocab=1024, positions="rotary")
    whole = megatron(model, batch=1, seq=16, tp=2, sp=sp)
    p = megatron(model, batch=1, seq=16, tp=2, sp=sp, pp=pp, accumulate=pp + more)
    assert sum(rank.params for rank in p.ranks) == whole.rank.params + tied * 512 * 48
    stages = sorted(p.ranks, key=lambda rank: rank.place.rank)
    assert [rank.in_flight for rank in stages] == [min(pp + more, pp - i) for i in range(pp)]
    summed = [
        c for rank in p.ranks for c in rank.timeline.every_collective() if (c.axis, c.phase) == ("pp", "backward")
    ]
    assert sum(c.operation == "all_reduce" for c in summed) == 2 * tied


@pytest.mark.parametrize("vpp", [1, 2, 4])
def test_stages_of_a_rank_share_what_stands_for_gradients(vpp: int) -> None:
    """Transformer Engine's ``_dummy_wgrads`` are a process's, one of each shape, as is a mask."""
    interleaved: dict[str, Any] = {"vpp": vpp, "schedule": "interleaved-1f1b"} if vpp > 1 else {}
    p = megatron(gpt(layers=8), batch=1, tp=2, pp=2, accumulate=8, **interleaved)
    width, share = 48, 24
    shapes = {(3 * share, width), (width, share), (4 * share, width), (width, 4 * share)}
    assert [rank.memory.buffers for rank in p.ranks] == [32 * 32 + sum(2 * n * m for n, m in shapes)] * 2
    assert [rank.timeline.persistent.buffers for rank in p.ranks] == [rank.memory.buffers for rank in p.ranks]


@pytest.mark.parametrize("vpp", [1, 2, 4])
def test_stages_of_a_rank_that_differ_have_all_their_shapes(vpp: int) -> None:
    """Dense blocks on the first stages, experts on the others: once of each, and tables of angles of each stage."""
    interleaved: dict[str, Any] = {"vpp": vpp, "schedule": "interleaved-1f1b"} if vpp > 1 else {}
    experts = {"count": 4, "per_token": 2, "width": 24, "dense_layers": 2}
    of_llama: dict[str, Any] = {"norm": "rmsnorm", "mlp": "gated", "mlp_width": 64, "positions": "rotary"}
    dropouts = {f"{place}_dropout": 0.0 for place in ("embedding", "attention", "residual")}
    p = megatron(gpt(layers=8, experts=experts, **of_llama, **dropouts), batch=1, pp=2, accumulate=8, **interleaved)
    first, last = sorted(p.ranks, key=lambda rank: rank.place.rank)
    attention, dense, of_experts = [(144, 48), (48, 48)], [(128, 48), (48, 64)], [(48, 48), (48, 24)]
    angles = 2 * 32 * 6 * 2 * vpp
    for rank, shapes in (
        (first, {*attention, *dense, *of_experts}),
        (last, {*attention, *of_experts, *(dense if vpp == 4 else [])}),
    ):
        assert rank.memory.buffers == 32 * 32 + angles + sum(2 * n * m for n, m in shapes)


def test_blocks_that_do_not_divide_leave_room_for_embedding_and_loss() -> None:
    """Dubey et al. 2024, §3.3.2: Llama 3 405B in 16 stages of 8 blocks, of which the first and the last have 7."""
    model: Any = cm.load("llama-3.1-405b")
    settings: dict[str, Any] = {"tp": 8, "sp": True, "accumulate": 16, "batch": 1, "seq": 8192, "attention": "flash"}
    p = megatron(model, pp=16, dp=64, zero=1, **settings)
    blocks = [sum(s.times for s in rank.tape.weights if s.name.endswith("qkv.weight")) for rank in p.ranks]
    assert sorted(blocks) == [7, 7, *[8] * 14]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_gradients_are_sent_once_unless_they_are_split(stage: int) -> None:
    """Stages 2 and 3 reduce after each micro-batch, stage 3 gathers in each; Megatron sums once a step."""
    one, four = (deepspeed(gpt(), batch=1, seq=8, zero=stage, accumulate=m).collectives.calls for m in (1, 4))
    once = [{call.operation: call.times for call in calls if call.phase != "optimizer"} for calls in (one, four)]
    assert once[1] == {operation: times * (1 if stage == 1 else 4) for operation, times in once[0].items()}
    calls = megatron(gpt(), batch=1, seq=8, tp=2, sp=True, dp=2, accumulate=4).collectives.calls
    times = {call.layer: call.times for call in calls if call.layer.startswith("gradients")}
    assert times == {"gradients": 1, "gradients of norms": 1}
    assert {call.times for call in calls if call.layer == "head"} == {4}


def test_stages_of_deepspeed_hand_on_a_part_each_and_gather_it() -> None:
    """Of ranks of tp; forth and back, each micro-batch."""
    p = deepspeed(gpt(), batch=1, seq=8, zero=1, tp=2, pp=2, accumulate=3)
    whole = 8 * gpt().width * 2
    for rank in p.ranks:
        times: Counter[tuple[str, str, int]] = Counter()
        for call in rank.collectives.calls:
            times[call.operation, call.axis, call.bytes] += call.times
        assert {of: n for of, n in times.items() if of[1] == "pp" or of[:2] == ("all_gather", "tp")} == {
            ("all_gather", "tp", whole): 3,
            ("receive", "pp", whole // 2): 3,
            ("send", "pp", whole // 2): 3,
        }


@pytest.mark.parametrize("name", ["mistral-7b-v0.1", "gemma-2-9b", "qwen3-32b", "bloom-176b", "opt-66b", "mpt-7b"])
def test_weights_are_the_model_s_and_rows_that_fill_up_the_vocabulary(name: str) -> None:
    model: Any = cm.load(name)
    p = megatron(model, batch=1, seq=16)
    spare = -model.vocab % 128 * model.width * (1 if model.tied else 2)
    assert p.rank.params == p.params + spare
    halves = megatron(model, batch=1, seq=16, tp=2)
    spare = -model.vocab % 256 * model.width * (1 if model.tied else 2)
    copied = 2 * halves.rank.params - p.params - spare
    assert 0 <= copied < 20 * model.layers * model.width + (model.context + 8) * model.width


def test_experts_make_gate_and_up_at_once() -> None:
    """Of 2f + f features a chosen row, where PyTorch's plain layers keep gate, its activation, up and their product.

    Weights go with the rows and are multiplied in there: what experts make, of d features, is not kept for that, but
    each row's weight and its place are.
    """
    model: Any = cm.load("mixtral-8x7b").with_values({"layers": 2})
    rows, f = 2 * 64 * model.experts.per_token, model.hidden
    plain = cm.predict(model, batch=2, seq=64, precision="bf16-master", loss=None).memory.activations
    joint = megatron(model, batch=2, seq=64, precision="bf16-master", loss=None).memory.activations
    assert plain - joint == 2 * rows * (2 * f + 2 * model.width - (2 + 8))
    stages = megatron(model, batch=2, seq=64, pp=2, dp=2, zero=1, accumulate=2)
    assert sum(rank.params for rank in stages.ranks) == stages.params


@pytest.mark.parametrize("name", ["resnet50", "vit-b-16", "flan-t5-small"])
def test_megatron_has_decoders_and_encoders_alone(name: str) -> None:
    with pytest.raises(SettingError, match="has no layers for"):
        megatron(name, batch=1)
    p = deepspeed(name, batch=1, zero=2)
    assert p.memory.masters == 2 * p.memory.gradients == 4 * 2 * -(-p.params // 8)


@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize(("key_heads", "tp"), [(2, 4), (1, 2), (2, 8), (1, 8)])
def test_fewer_key_heads_than_ranks(key_heads: int, tp: int, sp: bool) -> None:
    """Rows of the joint projection are split evenly, and what they make is gathered; nothing is computed twice."""
    model = gpt(width=64, kv_heads=key_heads, positions="rotary", mlp="gated", vocab=1024, tied=False, layers=2)
    whole, part = megatron(model, batch=1, seq=16).rank, megatron(model, batch=1, seq=16, tp=tp, sp=sp).rank
    projections = [sum(s.elements * s.times for s in p.tape.weights if "qkv" in s.name) for p in (whole, part)]
    assert projections[0] == tp * projections[1]
    flops = [sum(row.forward_flops for row in p.layers if row.name.endswith("qkv")) for p in (whole, part)]
    assert flops[0] == tp * flops[1]
    assert whole.flops.forward == tp * part.flops.forward
    gathers = [c for c in part.timeline.every_collective() if c.layer.endswith("qkv.gather")]
    assert [(c.phase, c.operation) for c in gathers] == [("forward", "all_gather")] * 2 + [
        ("backward", "reduce_scatter")
    ] * 2
    assert {c.elements for c in gathers} == {16 * (8 + 2 * key_heads) * 8}


def test_experts_are_summed_over_fewer_ranks() -> None:
    """Each rank has a part of the experts, whose masters and states dp/ep ranks split, all else dp of them."""
    model: Any = cm.load("mixtral-8x7b").with_values({"layers": 2})
    whole, part = (megatron(model, batch=1, seq=64, dp=8, zero=1, ep=ep) for ep in (1, 4))
    experts = sum(s.elements * s.times for s in whole.rank.tape.weights if ".experts." in s.name)
    assert whole.rank.params - part.rank.params == experts * 3 // 4
    rest = whole.rank.params - experts
    assert part.memory.optimizer == pytest.approx(8 * (rest / 8 + experts / 4 / 2), rel=1e-4)
    assert part.memory.gradients == pytest.approx(4 * (rest + experts / 4), rel=1e-4)
    assert {c.devices for c in part.rank.timeline.every_collective() if c.axis == "dp"} == {8, 2}
    stages = megatron(model, batch=1, seq=64, dp=8, zero=1, ep=4, pp=2, accumulate=2)
    assert sum(rank.params for rank in stages.ranks) == part.rank.params


def test_deepseek_v3_on_2048_gpus() -> None:
    """DeepSeek-AI 2024, §3.2: pp 16, ep 64 over 128 ranks of dp, ZeRO-1; 61 blocks, of which 58 have 256 experts.

    A rank has 4 experts of each of its blocks, the one that all share, attention and router whole.
    """
    model: Any = cm.load("deepseek-v3")
    p = megatron(model, batch=1, seq=4096, pp=16, dp=128, ep=64, zero=1, accumulate=120, checkpoint="block")
    expert = 3 * model.width * model.experts.width
    assert sum(rank.params for rank in p.ranks) == pytest.approx(p.params - 58 * 252 * expert, rel=1e-3)
    heaviest = max(rank.params for rank in p.ranks)
    states = p.memory.weights + p.memory.masters + p.memory.gradients + p.memory.optimizer
    assert 6 * heaviest < states < 6 * heaviest + 12 * heaviest / 2
    assert p.memory.peak < 80 * 2**30


def experts(**changes: Any) -> Any:
    """Two blocks of eight experts, the first of them dense, with latent attention."""
    sizes = {"width": 64, "layers": 2, "positions": "rotary", "rotary": {"size": 8}, "head_size": 16}
    of_experts = {"count": 8, "per_token": 2, "width": 32, "shared_width": 64, "dense_layers": 1, "shared_gate": True}
    latent = {"width": 16, "query_width": 24, "value_head_size": 8}
    plain = {"mlp": "gated", "activation": "silu", "norm": "rmsnorm", "mlp_bias": False, "qkv_bias": False}
    plain |= {"fused_qkv": False, "attention_bias": False, "tied": False, "vocab": 1024}
    dropouts = {f"{place}_dropout": 0.0 for place in ("embedding", "attention", "residual")}
    return gpt(**{**sizes, **plain, **dropouts, "experts": of_experts, "latent": latent, **changes})


@examples(12)
@given(
    tp=st.sampled_from([1, 2, 4]),
    etp=st.sampled_from([None, 1, 2]),
    ep=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 2]),
)
def test_experts_are_laid_out_apart_from_all_else(tp: int, etp: int | None, ep: int, cp: int, pp: int) -> None:
    """``parallel_state``: ranks of a stage are tp·cp·dp for all else, and etp·ep·edp for experts; nothing is lost.

    Of experts a rank has 1/(etp·ep), whose gradients edp ranks sum; each rank does as much as every other.
    """
    model, dp, seq = experts(), 16, 32
    layout = {"tp": tp, "sp": tp > 1, "cp": cp, "ep": ep, "etp": etp, "attention": "efficient"}
    layout |= {"cp_kind": "ring"} if cp > 1 else {}
    p = megatron(model, batch=1, seq=seq, dp=dp, zero=1, pp=pp, accumulate=pp, attention_pairs="visible", **layout)
    whole = megatron(model, batch=1, seq=seq, attention="efficient", attention_pairs="visible").rank
    flops = sum(rank.flops.forward for rank in p.ranks)
    assert flops * tp * cp == whole.flops.forward * pp
    share = (tp if etp is None else etp) * ep
    of_experts = sum(s.elements for rank in p.ranks for s in rank.tape.weights if ".experts." in s.name)
    assert of_experts * share == sum(s.elements for s in whole.tape.weights if ".experts." in s.name)
    heaviest = next(rank for rank in p.ranks if any(".experts." in s.name for s in rank.tape.weights))
    sums = {c.devices for c in heaviest.timeline.every_collective() if c.axis == "dp"}
    apart = ep > 1 or etp not in (None, tp)
    edp = tp * cp * dp // share
    assert sums == {dp * cp, edp if apart else dp * cp} - {1}


@pytest.mark.parametrize(("ep", "pp"), [(1, 1), (1, 2), (2, 1), (4, 1)])
def test_ranks_of_one_copy_sum_gradients_of_experts_that_they_all_have(ep: int, pp: int) -> None:
    """``DistributedDataParallel``: ``expert_parallel_buffers`` are of edp's group, whatever that of all else is."""
    p = megatron(experts(), batch=1, seq=32, tp=4, sp=True, etp=1, ep=ep, pp=pp, accumulate=pp)
    for rank in p.ranks:
        weights = sum(s.elements * s.times for s in rank.tape.weights if ".experts." in s.name)
        sums = [(c.operation, c.devices, c.elements) for c in rank.timeline.every_collective() if c.axis == "dp"]
        assert sums == ([("all_reduce", 4 // ep, weights)] if weights and ep < 4 else [])


def test_collectives_of_experts() -> None:
    """``MoEAlltoAllTokenDispatcher``: numbers of rows, rows and their weights over ep, then those of etp together."""
    sent = {
        (tp, etp): [
            (c.operation, c.axis, c.devices, c.elements, c.dtype)
            for c in megatron(experts(), batch=1, seq=32, tp=tp, sp=tp > 1, ep=4, etp=etp, dp=8).collectives.calls
            if c.phase == "forward" and ".experts." in c.layer
        ]
        for tp, etp in ((2, 2), (2, 1), (1, 2))
    }
    for (tp, etp), messages in sent.items():
        rows = 2 * 32 // tp
        exchanged = [("all_to_all", "ep", 4, rows * d, "bf16") for d in (64, 1)]
        gathered = [("all_gather", "tp", etp, etp * rows * d, "bf16") for d in (64, 1)] * (etp > 1)
        back = [("reduce_scatter", "tp", etp, etp * rows * 64, "bf16")] * (etp > 1)
        counts = ("all_gather", "ep", 4 * etp, 8 * 4 * etp, "int64")
        assert messages == [counts, *exchanged, *gathered, *back, exchanged[0]]


def test_latent_attention_of_own_tokens() -> None:
    """``MLASelfAttention``: what makes latents is whole on every rank, of its own tokens; the turned key is gathered.

    Its gradients are of own tokens, too, and summed over tp with those of norms.
    """
    whole, part = (megatron(experts(), batch=1, seq=32, tp=tp, sp=tp > 1).rank for tp in (1, 4))
    down = [
        sum(s.elements for s in rank.tape.weights if "down" in s.name and "attention" in s.name)
        for rank in (whole, part)
    ]
    assert down[0] == down[1] == 2 * (24 + 16 + 8) * 64
    assert all(s.partial for s in part.tape.weights if "attention" in s.name and "down" in s.name)
    keys = [c for c in part.timeline.every_collective() if c.layer.endswith("shared_key.gather")]
    assert [(c.phase, c.operation, c.elements) for c in keys] == [
        *[("forward", "all_gather", 32 * 8)] * 2,
        *[("backward", "reduce_scatter", 32 * 8)] * 2,
    ]


@pytest.mark.parametrize("cp", [2, 4])
@pytest.mark.parametrize("kind", ["ring", "all-gather", "ulysses"])
def test_attention_over_ranks_of_a_sequence(kind: str, cp: int) -> None:
    """Transformer Engine's ``AttnFuncWithCPAndKVP2P`` and ``...KVAllGather``: a rank sees 1/cp of all pairs, and has

    1/cp of what else there is; its keys and values go round, their gradients with them.
    """
    model = gpt(layers=2, positions="rotary", kv_heads=4, attention_dropout=0.0)
    run = {"attention": "flash", "attention_pairs": "visible", "batch": 2, "seq": 32, "cp_kind": kind}
    whole, part = megatron(model, **{**run, "cp_kind": "all-gather"}).rank, megatron(model, cp=cp, zero=1, **run).rank
    assert part.flops.forward * cp == whole.flops.forward
    assert part.params == whole.params
    keys = 2 * 2 * (32 // cp) * 4 * 6
    sent = [c for c in part.timeline.every_collective() if c.axis == "cp" and c.operation != "receive"]
    forward, backward = (
        [(c.operation, c.elements) for c in sent if c.phase == phase] for phase in ("forward", "backward")
    )
    if kind == "ring":
        assert forward == [("send", keys)] * (cp - 1) * 2
        assert backward == [("send", keys), *[("send", 2 * keys)] * (cp - 2), ("send", keys)] * 2
    elif kind == "all-gather":
        assert forward == [("all_gather", cp * keys // 2)] * 2 * 2
        assert Counter(backward) == {("all_gather", cp * keys // 2): 4, ("reduce_scatter", cp * keys // 2): 4}


def test_experts_with_tp_take_sp() -> None:
    """``ModelParallelConfig``: "sequence parallelism must be used" with ep and tp; ``MoELayer`` raises without ep."""
    p = megatron("mixtral-8x7b", batch=1, devices=64, tp=2, ep=8, cp=2, zero=1, global_batch=1024, seq=4096)
    assert p.settings.sp
    assert (p.settings.attention, p.settings.layout.dp) == ("flash", 16)
    with pytest.raises(SettingError, match="give sp=True"):
        megatron("mixtral-8x7b", batch=1, tp=2, seq=64)
    with pytest.raises(SettingError, match="use dp=16"):
        megatron("mixtral-8x7b", batch=1, tp=2, ep=8, etp=4, dp=15, seq=64)
