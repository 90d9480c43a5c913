"""What one rank of a layout has, beside the whole model: laws, and how ranks and collectives are shown."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.analysis.predict import Prediction, predict
from costmodel.cost.quantities import QUANTITIES
from costmodel.graph.kernel import Operation, wire_bytes
from costmodel.training.settings import LAYOUT_NAMES, SETTINGS
from tests.command import here
from tests.profiles import examples
from tests.strategies import questions

LLAMA = "llama-3.1-8b"
LONG: dict[str, Any] = {"seq": 4096, "attention": "flash", "precision": "bf16"}
SHAPES = st.fixed_dictionaries(
    {
        "vocab": st.sampled_from([32, 96]),
        "layers": st.integers(1, 4),
        "width": st.sampled_from([16, 64]),
        "kv_heads": st.sampled_from([4, 8]),
        "norm": st.sampled_from(["rmsnorm", "layernorm"]),
        "mlp": st.sampled_from(["gated", "plain"]),
        "qkv_bias": st.booleans(),
        "attention_bias": st.booleans(),
        "mlp_bias": st.booleans(),
    }
)
ALWAYS = {"context": 64, "heads": 8, "tied": False, "fused_qkv": False, "mlp_width": 32, "positions": "rotary"}
RUNS = st.fixed_dictionaries({"batch": st.integers(1, 3), "seq": st.sampled_from([8, 16])})


def model_of(shape: dict[str, Any]) -> Any:
    return cm.Transformer.of(ALWAYS | shape)


@given(questions())
@examples(30)
def test_degrees_of_one_change_nothing(question: tuple[Any, dict[str, Any]]) -> None:
    model, asked = question
    ones: dict[str, Any] = {name: 1 for name in ("devices", "dp", "tp", "fsdp", "cp", "ep", "pp") if name not in asked}
    plain, laid_out = (predict(model, **asked, **more).to_dict() for more in ({}, ones))
    assert plain.pop("settings") | ones == laid_out.pop("settings")
    assert plain == laid_out
    assert predict(model, **asked, **ones).timeline.steps == predict(model, **asked).timeline.steps


@given(SHAPES, RUNS, st.sampled_from([2, 4]), st.booleans(), st.booleans())
@examples(30)
def test_ranks_of_tp_add_up_to_the_model_but_for_what_is_copied(
    shape: dict[str, Any], runs: dict[str, Any], tp: int, sp: bool, split_loss: bool
) -> None:
    model = model_of(shape)
    p = predict(model, **runs, tp=tp, sp=sp, loss_parallel=split_loss)
    norms = sum(row.params for row in p.layers if row.kind in ("rmsnorm", "layernorm"))
    row_biases = shape["layers"] * shape["width"] * (shape["attention_bias"] + shape["mlp_bias"])
    assert tp * p.rank.params - (tp - 1) * (norms + row_biases) == p.params
    assert tp * p.rank.flops.total == p.flops.total
    alone = predict(model, **runs)
    assert (p.params, p.flops, p.layers) == (alone.params, alone.flops, alone.layers)


BESIDE = st.sampled_from(
    [
        {},
        {"dp": 2},
        {"tp": 2},
        {"tp": 2, "loss_parallel": True, "dp": 3},
        {"checkpoint": "block"},
        {"cp": 2, "cp_kind": "ulysses"},
        {"loss_chunks": 3},
    ]
)


@given(SHAPES, RUNS, st.sampled_from([2, 4, 8]), BESIDE)
@examples(20)
def test_sharded_weights_are_gathered_once_each_way(
    shape: dict[str, Any], runs: dict[str, Any], fsdp: int, beside: dict[str, Any]
) -> None:
    asked: dict[str, Any] = runs | beside | {"fsdp": fsdp // beside.get("cp", 1)}
    p = predict(model_of(shape), **asked)  # ranks that divide the rows of every weight
    sent: dict[tuple[str, str], int] = {}
    for call in p.collectives:
        if call.axis == "fsdp":
            key = (call.phase.replace("recompute", "backward"), call.operation)
            sent[key] = sent.get(key, 0) + call.times * call.elements
    rank = p.rank
    root = rank.params - sum(row.params for row in rank.layers if row.name.startswith("block"))
    assert sent == {
        ("forward", "all_gather"): rank.params,
        ("backward", "all_gather"): rank.params - root,  # which stays gathered
        ("backward", "reduce_scatter"): rank.params,
    }
    assert fsdp * p.memory.weights == rank.params * 4


@given(SHAPES, RUNS, st.sampled_from([{"dp": 2}, {"fsdp": 4}, {"fsdp": 2, "dp": 2}, {"zero": 1, "dp": 4}]))
@examples(20)
def test_ranks_with_samples_of_their_own_add_up_to_one_with_all(
    shape: dict[str, Any], runs: dict[str, Any], layout: dict[str, Any]
) -> None:
    model, asked = model_of(shape), runs | layout
    rank, ranks = predict(model, **asked).rank, asked.get("fsdp", 1) * asked.get("dp", 1)
    alone = predict(model, batch=ranks * runs["batch"], seq=runs["seq"])
    assert ranks * rank.flops.total == alone.flops.total
    number = 4  # how many targets the loss is a mean of, on every rank
    assert ranks * (rank.memory.activations - number) == alone.memory.activations - number
    assert rank.params == alone.params


@given(SHAPES, RUNS)
@examples(10)
def test_the_peak_never_rises_with_the_ranks_that_share(shape: dict[str, Any], runs: dict[str, Any]) -> None:
    peaks = [predict(model_of(shape), **runs, fsdp=ranks).memory.peak for ranks in (2, 4, 8)]
    assert peaks == sorted(peaks, reverse=True)


AXES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"cp": [1, 2], "fsdp": [1, 2]}, {"attention": "flash"}),
    ({"ep": [1, 2], "fsdp": [2, 4]}, {}),
    ({"zero": [0, 1, 2, 3], "dp": [2, 4]}, {}),
    ({"tp": [2, 4], "sp": [False, True], "precision": ["fp32", "bf16"]}, {"fsdp": 2, "checkpoint": "block"}),
    ({"batch": [1, 3], "tp": [1, 2, 4], "fsdp": [1, 3]}, {}),
    ({"batch": [1, 3], "pp": [1, 2]}, {"accumulate": 8}),
]


@pytest.mark.parametrize(("axes", "beside"), AXES, ids=str)
def test_every_cell_of_a_sweep_over_a_layout_is_a_prediction(axes: dict[str, Any], beside: dict[str, Any]) -> None:
    experts = {"experts": {"count": 4, "per_token": 2, "bias": False}} if "ep" in axes else {}
    shape = {"vocab": 96, "layers": 2, "width": 64, "kv_heads": 4, "mlp": "gated", "norm": "rmsnorm"} | experts
    model = model_of(shape)
    beside = {"batch": 2, "seq": 16, **beside}
    swept = cm.sweep(model, **{**beside, **axes})
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        cell, p = swept.sel(point), predict(model, **{**beside, **point})
        assert not cell["reason"].item()
        assert {name: cell[name].item() for name in QUANTITIES} == {name: p.value(name) for name in QUANTITIES}


@given(SHAPES, st.sampled_from([{"tp": 2}, {"tp": 4, "sp": True}, {"fsdp": 3}]))
@examples(3)
def test_questions_asked_again_and_again_are_answered_alike(shape: dict[str, Any], layout: dict[str, Any]) -> None:
    """At the third batch formulas of the question are made, which answer from there on."""
    model = model_of(shape)
    for batch in range(1, 8):
        p = predict(model, batch=batch, seq=16, **layout)
        _ = p.memory
        whole = predict(model, batch=batch, seq=16)
        rank = p.rank
        assert (p.params, p.flops.total) == (whole.params, whole.flops.total)
        assert (p.memory, p.collectives.bytes) == (rank.memory, rank.collectives.bytes)
        assert p.value("collectives.bytes") == p.collectives.bytes


def chunks_on_a_ring(operation: Operation, ranks: int) -> int:
    """Equal parts of the whole that rank 0 hands to its neighbour, played."""
    reducing = [[rank == chunk for chunk in range(ranks)] for rank in range(ranks)]
    sent = 0
    for turn in range(2 if operation == "all_reduce" else 1):
        for step in range(ranks - 1):
            moved = [(rank, (rank - step + turn) % ranks) for rank in range(ranks)]
            for rank, chunk in moved:
                reducing[(rank + 1) % ranks][chunk] = True
            sent += sum(rank == 0 for rank, _ in moved)
    assert all(map(all, reducing))
    return sent


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter"])
def test_what_is_sent_around_a_ring(operation: Operation, ranks: int) -> None:
    assert wire_bytes(operation, ranks, 4 * ranks) == 4 * chunks_on_a_ring(operation, ranks)


def test_a_report_of_many_devices_says_whose_memory_it_is_and_what_to_set() -> None:
    p = predict(LLAMA, **LONG, tp=8)
    first, second, *_ = str(p).splitlines()
    assert first.endswith("8 devices, tp 8")
    assert second.endswith("on each of 8 devices")
    saved = predict(LLAMA, **LONG, tp=8, loss_parallel=True).memory.peak / 2**30
    text = " ".join(str(p).split())
    assert f"with loss_parallel=True the peak is {saved:.1f} GiB instead of" in text
    assert "Memory, ×8" in text
    assert "freeze it, or use runtime='megatron'" in text
    alone = str(predict(LLAMA, **LONG))
    assert "Rank" not in alone
    assert "devices" not in alone


def test_collectives_are_an_answer_in_every_form() -> None:
    p = predict(LLAMA, **LONG, tp=8, sp=True)
    data = p.collectives.to_dict()
    assert data["bytes"] == sum(row["bytes"] for row in data["sums"]) == p.value("collectives.bytes")
    assert sum(row["times"] * row["wire_bytes"] for row in data["calls"]) == data["wire_bytes"]
    assert len(p.collectives.to_dataframe()) == len(p.collectives)
    assert sum(row["times"] for row in data["calls"]) == len(list(p.timeline.every_collective()))
    assert "tp reduce_scatter" in p.collectives._repr_html_()
    assert Prediction.from_json(p.to_json()).to_dict()["calls"] == data["calls"]
    none = predict(LLAMA, **LONG).collectives
    assert (len(none), none.bytes, str(none).splitlines()[-1]) == (0, 0, "no collectives")


def test_collectives_of_a_step_are_those_of_all_micro_batches() -> None:
    one, four = (predict(LLAMA, **LONG, tp=8, sp=True, accumulate=n).collectives for n in (1, 4))
    for single, many in zip(one, four, strict=True):
        assert many.times == single.times * (1 if many.phase == "optimizer" else 4)


def test_a_rank_is_a_prediction_of_its_own() -> None:
    p = predict(LLAMA, **LONG, tp=8)
    rank = p.rank
    assert isinstance(rank, Prediction)
    assert rank.explain("params").value == rank.params < p.params == p.explain("params").value
    assert [one.memory.peak for one in p.ranks] == [p.memory.peak]
    assert p.ranks.rows()[0]["params"] == rank.params
    alone = predict(LLAMA, **LONG)
    assert alone.rank is alone
    assert alone.ranks.rows()[0]["peak"] == alone.memory.peak


@pytest.mark.parametrize("verb", ["ranks", "collectives", "predict", "timeline"])
def test_verbs_take_layouts(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [verb, LLAMA, "--seq", "4096", "--tp", "8", "--sp", "true"]
    outcome = here(capsys, *words)
    assert outcome.code == 0
    assert "8 devices" in outcome.out or verb == "timeline"
    assert json.loads(here(capsys, *words, "--json").out)


@examples(20)
@given(SHAPES, RUNS, st.sampled_from([2, 8]))
def test_copies_hold_their_gradients_twice_unless_they_are_views(
    shape: dict[str, Any], runs: dict[str, Any], dp: int
) -> None:
    alone, copies = predict(model_of(shape), **runs), predict(model_of(shape), **runs, dp=dp)
    assert copies.memory.peak == alone.memory.peak + alone.memory.gradients
    viewed = predict(model_of(shape), **runs, dp=dp, bucket_view=True).memory
    assert alone.memory.peak <= viewed.peak <= copies.memory.peak
    assert viewed.gradients == alone.memory.gradients
    sums = [x for x in copies.rank.timeline.collectives if x.operation == "all_reduce"]
    assert sum(x.bytes for x in sums) == alone.memory.gradients


def test_stages_of_copies_hold_their_gradients_twice_and_sum_them_once() -> None:
    run: dict[str, Any] = {**LONG, "batch": 1, "tp": 8, "pp": 4, "accumulate": 8}
    alone, copies = predict(LLAMA, **run), predict(LLAMA, **run, devices=256)
    assert copies.settings.layout.dp == 8
    assert copies.memory.peak == alone.memory.peak + alone.memory.gradients
    sums = [x for x in copies.rank.timeline.every_collective() if x.axis == "dp"]
    assert sum(x.bytes for x in sums) == alone.memory.gradients


BAD: list[tuple[dict[str, Any], str]] = [
    ({"tp": 3}, "tp=3 does not divide"),
    ({"tp": 0}, "tp=0 is not between 1 and"),
    ({"tp": -2}, "tp=-2 is not between 1 and"),
    ({"tp": 2.0}, "tp=2.0 is not a whole number"),
    ({"tp": "two"}, "tp='two' is not a whole number"),
    ({"tp": True}, "tp=True is not a whole number"),
    ({"tp": 10**30}, "is not between 1 and"),
    ({"sp": True}, "give tp"),
    ({"sp": 1}, "sp=1 is neither True nor False"),
    ({"loss_parallel": True}, "give tp"),
    ({"devices": 12, "tp": 8}, "use 8 or 16"),
    ({"tp": 4, "sp": True, "seq": 411}, "use seq=408 or 412"),
    *[({"tp": 2, "optimizer": name}, "use one that goes by element") for name in ("muon", "lamb", "adafactor")],
    ({"fsdp": 2, "optimizer": "shampoo"}, "use one that goes by element"),
    ({"tp": 2, "lora": {"rank": 4, "targets": ["query"]}}, "lora is not worked out with tp=2"),
    ({"tp": 2, "sp": True, "update": "fused"}, "use update='loop'"),
    ({"tp": 2, "update": "foreach"}, "use update='loop', its default for these"),
    ({"tp": 2, "loss_parallel": True, "label_smoothing": 0.1}, "label_smoothing is not of the loss"),
    ({"tp": 2, "loss_parallel": True, "loss": "mean_squared_error"}, "is of cross_entropy"),
    ({"tp": 3, "cp": 4, "zero": 3, "cp_kind": "ulysses"}, "cp=4 on top of tp=3 does not divide"),
    ({"cp": 2**40, "zero": 3, "cp_kind": "ulysses", "seq": 4096}, "is no multiple of"),
    ({"zero": 4}, "use 0, 1, 2 or 3"),
    ({"fsdp": 4, "wrap": "mpl"}, "unknown part to wrap 'mpl': did you mean 'mlp'"),
    ({"wrap": "mlp"}, "give fsdp"),
    ({"dp": 4, "zero": 1, "tp": 2}, "use fsdp=4"),
    ({"dp": 4, "zero": 1, "optimizer": "lbfgs"}, "one by one"),
    ({"dp": 4, "tp": 2, "sp": True}, "use fsdp=4"),
    ({"fsdp": 4, "mode": "decode", "past": 8}, "of a layout use tp, dp"),
    ({"fsdp": 4, "cp": 2, "mode": "inference"}, "cp=2 is not worked out in mode 'inference'"),
    ({"pp": 2, "vpp": 2, "mode": "decode", "past": 8}, "vpp=2 is of training: leave it out"),
    ({"pp": 2, "fsdp": 2, "mode": "inference"}, "of a layout use tp, dp, ep, pp"),
    ({"pp": 64, "mode": "decode", "past": 8}, "more than the 32 layers"),
    ({"dp": 2, "precision": "bf16-master-fp32-gradients"}, "use fsdp=2"),
    ({"fsdp": 2, "checkpoint": 2}, "use 'block'"),
    ({"fsdp": 2, "optimizer": "sgd", "update": "fused"}, "use 'foreach'"),
    ({"fsdp": 2, "tp": 2, "loss_chunks": 2}, "loss_chunks is not worked out with tp=2"),
    ({"fsdp": 2, "dp": 2, "zero": 1}, "zero=1 is of weights that each rank has whole, which fsdp=2 splits"),
    ({"fsdp": 2, "bucket_view": True}, "which fsdp=2 splits"),
    ({"zero": 3, "dp": 2, "bucket_view": True}, "which zero=3 splits"),
    ({"cp": 2, "zero": 1}, "which cp=2 splits"),
    ({"tp": 2, "optimizer": "nesterov"}, "use 'adamw', 'sgd' or 'momentum', or fsdp beside tp"),
    ({"tp": 2, "label_smoothing": 0.1}, "label_smoothing is not worked out with tp=2"),
    ({"devices": 16, "tp": 2, "dp": 4}, "use devices=8, or dp=8"),
    ({"devices": 7, "tp": 2, "dp": 4}, "use devices=8"),
    ({"tp": 2, "precision": "fp8"}, "use 'bf16-autocast'"),
]


@pytest.mark.parametrize(("layout", "words"), BAD, ids=[str(layout) for layout, _ in BAD])
def test_a_layout_that_cannot_be_is_refused_in_one_line(layout: dict[str, Any], words: str) -> None:
    with pytest.raises(cm.CostModelError) as error:
        predict(LLAMA, **layout)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


OF_OTHERS: list[tuple[Any, dict[str, Any], str]] = [
    ("mlp-mnist", {"tp": 3}, "does not divide hidden size 1024 of mlp-mnist: use tp=2"),
    ("mlp-mnist", {"tp": 2, "sp": True}, "sp=True is of tokens"),
    ("mlp-mnist", {"tp": 2, "checkpoint": "block"}, "checkpoint is not worked out with tp"),
    ("vit-b-16", {"tp": 2, "pp": 2, "accumulate": 4}, "pp=2 is not worked out with tp"),
    ("mlp-mnist", {"tp": 2, "dp": 2, "zero": 1, "runtime": "deepspeed"}, "is of decoders"),
    (cm.MLP(sizes=(8, 16, 4), norm="layernorm"), {"tp": 2}, "use 'none'"),
    (cm.MLP(sizes=(8, 4)), {"tp": 2}, "has none"),
    ("vit-b-16", {"tp": 5}, "tp=5 does not divide heads 12 of vit-b-16: use tp=4"),
    ("vit-b-16", {"tp": 2, "loss_parallel": True}, "loss_parallel=True is of tokens"),
    ("vit-b-16", {"cp": 2, "attention": "flash"}, "cp=2 does not apply"),
    ("vit-b-16", {"cp": 2}, "cp=2 does not apply to VisionTransformer"),  # not that eager attention is in its way
    ("resnet18", {"cp": 2}, "cp=2 does not apply to CNN"),
    ("resnet18", {"ep": 2}, "ep=2 does not apply to CNN"),
    (cm.VisionTransformer(attention_pool=True), {"tp": 2}, "attention_pool"),
    ("resnet18", {"tp": 2}, "does not apply to CNN"),
]


@pytest.mark.parametrize(("model", "layout", "words"), OF_OTHERS, ids=str)
def test_what_ranks_cannot_split_of_other_networks_is_refused(model: Any, layout: dict[str, Any], words: str) -> None:
    with pytest.raises(cm.CostModelError) as error:
        _ = cm.predict(model, **layout).memory
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


def test_every_setting_of_a_layout_is_declared_among_them() -> None:
    assert {"devices", "dp", "tp", "sp", "fsdp", "runtime"} <= set(LAYOUT_NAMES) < set(SETTINGS)


@pytest.mark.parametrize("words", [["--sp"], ["--sp", "true"], ["--sp=true"]])
def test_a_truth_of_a_layout_is_an_option_by_itself(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for verb, more in (("ranks", []), ("sweep", ["--quantities", "memory.peak"])):
        outcome = here(capsys, verb, LLAMA, "--tp", "8", *words, "--seq", "4096", *more, "--json")
        assert outcome.code == 0
        peak = str(predict(LLAMA, seq=4096, tp=8, sp=True).memory.peak)
        assert peak in outcome.out


@given(SHAPES, st.sampled_from([2, 4]), st.sampled_from(["prefill", "decode"]))
@examples(10)
def test_ranks_share_the_cache_by_its_heads(shape: dict[str, Any], tp: int, mode: Any) -> None:
    run: dict[str, Any] = {"mode": mode, "batch": 3, "past": 9} | ({"seq": 7} if mode == "prefill" else {})
    model = model_of(shape)
    alone, p = predict(model, **run), predict(model, **run, tp=tp)
    assert tp * p.memory.cache == alone.memory.cache > 0
    assert tp * p.rank.flops.forward == p.flops.forward == alone.flops.forward
    assert p.kv_bytes_per_token == alone.kv_bytes_per_token
    assert p.memory.peak < alone.memory.peak


@given(SHAPES, st.sampled_from([1, 2]), st.sampled_from([2, 3]), st.sampled_from(["prefill", "decode", "inference"]))
@examples(15)
def test_stages_of_a_pass_by_itself_share_weights_work_and_cache(
    shape: dict[str, Any], tp: int, pp: int, mode: Any
) -> None:
    runs: dict[str, dict[str, Any]] = {"prefill": {"seq": 7, "past": 9}, "decode": {"past": 9}, "inference": {"seq": 7}}
    run: dict[str, Any] = {"mode": mode, "batch": 3, "tp": tp, **runs[mode]}
    model = model_of(shape | {"layers": 3, "tied": False})
    together, p = predict(model, **run), predict(model, **run, pp=pp)
    assert len(p.ranks) == pp
    for sum_of in (
        lambda rank: rank.memory.weights,
        lambda rank: rank.memory.cache,
        lambda rank: rank.flops.forward,
        lambda rank: sum(c.wire_bytes * c.times for c in rank.collectives if c.axis == "tp"),
    ):
        assert sum(map(sum_of, p.ranks)) == sum_of(together.rank)
    handed = [[c for c in rank.collectives if c.axis == "pp"] for rank in p.ranks]
    assert sum(c.operation == "send" for calls in handed for c in calls) == pp - 1
    assert sum(c.operation == "receive" for calls in handed for c in calls) == pp - 1
    assert p.memory.peak == max(rank.timeline.peak for rank in p.ranks) <= together.memory.peak


def test_a_pass_by_itself_takes_as_long_as_its_stages() -> None:
    p = predict("llama-3.1-8b", mode="decode", past=512, batch=8, precision="bf16", pp=4)
    time = p.on("dgx-h100")
    sent = [part for part in time.collectives if part.operation == "send"]
    assert sum(part.times for part in sent) == 3
    assert time.seconds == pytest.approx(max(event.end for event in time.events))
    alone = predict("llama-3.1-8b", mode="decode", past=512, batch=8, precision="bf16").on("dgx-h100")
    assert time.seconds - time.exposed == pytest.approx(alone.seconds * time.constants.slowest_device, rel=0.05)
