"""Pipelines: what holds of their ranks whatever the model, the schedule and the micro-batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.errors import SettingError
from costmodel.training.schedules import SCHEDULES
from tests.profiles import examples


def model(layers: int, **fields: Any) -> cm.Transformer:
    return cm.Transformer(vocab=64, context=16, layers=layers, width=16, heads=2, tied=False, **fields)


def place_of(rank: Any) -> int:
    return rank.place.rank


@st.composite
def pipelines(draw: st.DrawFn) -> dict[str, Any]:
    schedule = draw(st.sampled_from(sorted(SCHEDULES)))
    vpp = SCHEDULES[schedule].only_stages or draw(st.integers(1, 3))
    pp = draw(st.integers(2, 4))
    rounds = draw(st.integers(2, 4))
    return {"schedule": schedule, "pp": pp, "vpp": vpp, "accumulate": pp * rounds}


@examples(8)
@given(pipelines(), st.integers(0, 3), st.sampled_from(["rotary", "learned"]))
def test_stages_add_up_to_the_model(pipeline: dict[str, Any], over: int, positions: Any) -> None:
    whole = model(pipeline["pp"] * pipeline["vpp"] + over, positions=positions)
    p = cm.predict(whole, batch=2, **pipeline)
    alone = cm.predict(whole, batch=2, accumulate=pipeline["accumulate"])
    assert (p.params, p.flops) == (alone.params, alone.flops)
    assert sum(rank.params for rank in p.ranks) == alone.params
    assert sum(rank.flops.forward for rank in p.ranks) == alone.flops.forward
    assert sum(rank.flops.total for rank in p.ranks) == alone.flops.total
    for name in ("weights", "gradients", "optimizer"):
        assert sum(getattr(rank.memory, name) for rank in p.ranks) == getattr(alone.memory, name)


@examples(8)
@given(pipelines())
def test_rounds_that_are_alike_are_one(pipeline: dict[str, Any]) -> None:
    """What stands for many micro-batches is as high as the highest of them; messages are those of all."""
    p = cm.predict(model(pipeline["pp"] * pipeline["vpp"]), batch=2, **pipeline)
    for rank in p.ranks:
        timeline = rank.timeline
        assert timeline.peak == max(step.alive.total for step in timeline.unrolled())
        assert sum(calls.times for calls in timeline.collectives) == len([*timeline.every_collective()])


@examples(8)
@given(pipelines())
def test_neighbours_send_what_the_other_receives(pipeline: dict[str, Any]) -> None:
    p = cm.predict(model(pipeline["pp"] * pipeline["vpp"]), batch=2, **pipeline)
    calls = [call for rank in p.ranks for call in rank.timeline.collectives]
    sent, received = (sum(x.times * x.bytes for x in calls if x.operation == way) for way in ("send", "receive"))
    stages = pipeline["pp"] * pipeline["vpp"]
    turns = 1 if SCHEDULES[pipeline["schedule"]].v_shaped else 0  # where a rank hands on to itself
    hops = 2 * (stages - 1 - turns) * pipeline["accumulate"]
    assert sent == received == hops * 2 * 16 * 16 * 4


@examples(8)
@given(st.integers(2, 5), st.integers(5, 12))
def test_earlier_ranks_hold_as_many_more_micro_batches_as_are_ahead(pp: int, microbatches: int) -> None:
    ranks = cm.predict(model(2 * pp), batch=2, pp=pp, accumulate=microbatches).ranks
    places = {rank.place.rank: rank for rank in ranks if rank.place is not None}
    assert [places[n].in_flight for n in range(pp)] == [pp - n for n in range(pp)]
    inner = [places[n].memory.activations for n in range(1, pp - 1)]
    of_one = inner[-1] // 2 if inner else 0
    assert inner == [(pp - n) * of_one for n in range(1, pp - 1)]


@examples(8)
@given(pipelines(), st.sampled_from([2, 3]), st.booleans())
def test_gradients_of_sharded_weights_are_scattered_once(pipeline: dict[str, Any], fsdp: int, reshard: bool) -> None:
    """Whatever is gathered and dropped on the way; of weights at least as much is gathered."""
    if SCHEDULES[pipeline["schedule"]].splits:
        return
    whole = model(pipeline["pp"] * pipeline["vpp"])
    p = cm.predict(whole, batch=2, fsdp=fsdp, reshard=reshard, **pipeline)
    for rank in p.ranks:
        sent = {way: sum(x.times * x.bytes for x in rank.timeline.collectives if x.operation == way)
                for way in ("all_gather", "reduce_scatter")}  # fmt: skip
        assert sent["reduce_scatter"] <= sent["all_gather"]
        assert sent["reduce_scatter"] == rank.memory.gradients * fsdp
        assert rank.timeline.peak == max(step.alive.total for step in rank.timeline.unrolled())
        if not reshard and pipeline["vpp"] <= 3:
            assert sent["reduce_scatter"] == sent["all_gather"]


def test_the_heaviest_rank_is_first_and_is_the_model_s_memory() -> None:
    p = cm.predict("gpt2-small", batch=1, seq=128, pp=4, accumulate=8)
    peaks = [rank.timeline.peak for rank in p.ranks]
    assert peaks == sorted(peaks, reverse=True)
    assert (p.memory, p.timeline.peak) == (p.ranks[0].memory, peaks[0])
    assert p.rank is p.ranks[0]


def test_a_step_of_very_many_micro_batches_is_told_in_a_few_moments() -> None:
    p = cm.predict(model(8), batch=1, pp=4, vpp=2, schedule="interleaved-1f1b", accumulate=32_768)
    few = cm.predict(model(8), batch=1, pp=4, vpp=2, schedule="interleaved-1f1b", accumulate=64)
    assert all(len(rank.timeline.moments) < 20_000 for rank in p.ranks)
    kept = 64 * 16 * 4 + 4  # logits and loss of one micro-batch, on the last rank
    for many, same in zip(*(sorted(q.ranks, key=place_of) for q in (p, few)), strict=True):
        grown = many.timeline.peak - same.timeline.peak
        received = many.memory.inputs - same.memory.inputs
        assert received == (32_768 - 64) * same.memory.inputs // 64
        assert (grown - received) in (0, (32_768 - 64) * kept, (32_768 - 64) * (kept - 4) * 2)


def test_a_picture_of_a_step_has_every_pass_of_every_rank(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ranks = cm.predict(model(8), batch=1, pp=4, vpp=2, schedule="zbv-zero-bubble", accumulate=8).ranks
    axes = ranks.plot(tmp_path / "pipeline.png").axes[0]
    written = [text.get_text() for text in axes.texts]
    assert sorted(written) == sorted(str(n) for n in range(8) for _ in range(3 * 8))  # of 8 stages, in three parts
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [f"rank {n}" for n in range(4)]
    seconds = ranks.plot(duration=lambda action: 0.25).axes[0]
    assert seconds.get_xlabel() == "time [s]"
    assert (tmp_path / "pipeline.png").stat().st_size > 10_000
    for asked, error in (({"tp": 2}, "give pp"), ({"pp": 2, "accumulate": 2000}, "too many to draw")):
        with pytest.raises(SettingError, match=error):
            cm.predict(model(8), batch=1, **asked).ranks.plot()


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"pp": 9, "accumulate": 9}, "pp=9 and vpp=1 are 9 stages, more than the 8 layers of Transformer: use at most"),
        ({"pp": 4, "accumulate": 2}, "accumulate=2, the micro-batches of schedule='1f1b' with pp=4 and vpp=1: use 4"),
        ({"pp": 2, "vpp": 2, "accumulate": 2}, "vpp=2 with schedule='1f1b': use 1"),
        ({"vpp": 2}, "vpp=2 is of a pipeline: give pp, such as pp=2, or leave it out"),
        ({"schedule": "gpipe"}, "schedule='gpipe' is of a pipeline: give pp, such as pp=2, or leave it out"),
        ({"pp": 0}, "pp=0"),
        ({"pp": 2, "accumulate": 4, "schedule": "dualpipev", "checkpoint": "block"}, "checkpoint is not"),
        ({"pp": 2, "accumulate": 2, "mode": "inference"}, "accumulate=2 is for training"),
        ({"pp": 2, "vpp": 2, "accumulate": 4, "fsdp": 2, "schedule": "dualpipev"}, "fsdp=2 is not worked out with"),
    ],
)  # fmt: skip
def test_what_no_pipeline_is_worked_out_for_is_refused_in_one_line(asked: dict[str, Any], error: str) -> None:
    with pytest.raises(SettingError) as refusal:
        _ = cm.predict(model(8), batch=1, **asked).timeline
    assert error in str(refusal.value)


MODELS: dict[str, Any] = {
    "mlp": cm.MLP(sizes=[8, 16, 16, 16, 4, 4], norm="layernorm"),
    "resnet18": "resnet18",
    "vit_b_16": "vit_b_16",
    "bert-base": "bert-base",
    "a classifier": model(5, head=None, classes={"count": 3}, causal=False),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b"])
def test_stages_of_any_model_add_up(name: str, schedule: str) -> None:
    asked = {"batch": 2, "accumulate": 4}
    alone = cm.predict(MODELS[name], **asked)
    p = cm.predict(MODELS[name], pp=2, schedule=schedule, **asked)
    tied = 30522 * 768 if name == "bert-base" else 0  # the table of tokens is at both ends
    assert p.params == alone.params == sum(rank.params for rank in p.ranks) - tied
    assert sum(rank.flops.total for rank in p.ranks) == alone.flops.total == p.flops.total


def test_stages_are_cut_where_a_setting_says() -> None:
    """How many layers each has, the first of each by number, and by name, are the same stages."""
    ways = [(2, 1, 4), (2, 3), ("block.2", "block.3"), (2, "block.3"), "2,1,4", "block.2+block.3"]
    answers = [cm.predict(model(7), batch=2, pp=3, accumulate=3, pp_split=way) for way in ways]
    assert len({tuple(rank.params for rank in p.ranks) for p in answers}) == 1
    assert {rank.params for rank in answers[0].ranks} != {
        rank.params for rank in cm.predict(model(7), batch=2, pp=3, accumulate=3).ranks
    }
    alike = [cm.predict(model(7), batch=2, pp=3, accumulate=3, pp_split=way) for way in ("2x2,3", "2×2,3", (2, 2, 3))]
    assert len({each.settings for each in alike}) == 1


@pytest.mark.parametrize(
    ("split", "error"),
    [
        ((2, 2, 2), "pp_split=(2, 2, 2) is not how many of the 7 layers of model each stage has: use (3, 2, 2)"),
        ((5, 3), "are not first layers in order, from 1 to 6, of model: use such as (3, 5)"),
        ((3, 7), "are not first layers in order, from 1 to 6"),
        ((3,), "is not of 3 stages: give how many layers each has, or the first of each but the first, (3, 5)"),
        (("block.2", "blok.3"), "unknown layer in pp_split 'blok.3': did you mean 'block.3'"),
        ((0, 7), "pp_split=0 is not between 1 and"),
        ((2.5, 7), "pp_split=(2.5, 7) is not of numbers or names of layers: use such as pp_split=(3, 9)"),
        ("1,,5", "pp_split has an empty item: use numbers or names of layers, such as pp_split='3,9'"),
        ("1x10001", "pp_split is of 10,001 stages: use at most 10,000"),
        (("block" * 12,) * 9, "pp_split of 9 items is not of 3 stages: give how many layers each has"),
    ],
)
def test_stages_that_no_model_has_are_refused_in_one_line(split: Any, error: str) -> None:
    with pytest.raises(cm.CostModelError) as raised:
        cm.predict(model(7, name="model"), pp=3, accumulate=3, pp_split=split)
    assert error in str(raised.value)
    assert "\n" not in str(raised.value)


def test_rows_of_ranks_have_their_number_and_of_how_many_devices_they_are_as_numbers() -> None:
    rows = cm.predict("gpt2-small", pp=3, dp=4, accumulate=6).ranks.rows()
    assert {row["pipeline_rank"]: row["devices"] for row in rows} == {0: 4, 1: 4, 2: 4}
    (alone,) = cm.predict("gpt2-small", tp=2, dp=4).ranks.rows()
    assert (alone["pipeline_rank"], alone["devices"]) == (None, 8)


def test_models_that_are_not_cut_are_refused_by_name() -> None:
    for name, asked, error in (
        ("t5-small", {}, "pp=2 is not worked out for EncoderDecoder 't5-small'"),
        (
            "resnet18",
            {"schedule": "zbv-zero-bubble"},
            "schedule='zbv-zero-bubble', which makes gradients of weights apart",
        ),
        (
            "resnet18",
            {"pp": 64, "accumulate": 64},
            "64 stages, more than the 15 layers of ResNet-18: use at most 15 stages",
        ),
    ):
        with pytest.raises(SettingError, match=error):
            cm.predict(name, **{"pp": 2, "accumulate": 4, **asked})
