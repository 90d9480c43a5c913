"""Seconds of pipelines, played."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.cost.pipeline import RankStep
from costmodel.graph.kernel import Kernel
from costmodel.performance import laws, pipelines
from costmodel.performance.laws import KernelTable
from costmodel.performance.pipelines import StagePass, _order, ends_of, play_passes
from costmodel.performance.time import Time
from costmodel.training.schedule import Schedule
from costmodel.training.schedules import SCHEDULES, MegatronInterleaved1F1B
from tests.profiles import examples

KINDS = ("F", "B", "I", "W")
UNITS = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}


def schedule_of(name: str, ranks: int, rounds: int) -> Schedule:
    kind = SCHEDULES[name]
    return kind(ranks, kind.only_stages or 2, ranks * rounds)


def units(schedule: Schedule) -> dict[tuple[int, str], float]:
    return {(stage, kind): UNITS[kind] for stage in range(schedule.stages) for kind in KINDS}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("ranks", "rounds"), [(2, 2), (4, 3), (3, 7)])
def test_equal_passes_wait_as_long_as_the_schedule_says(name: str, ranks: int, rounds: int) -> None:
    schedule = schedule_of(name, ranks, rounds)
    ends = play_passes(schedule, units(schedule), 0.0)
    busy = 3.0 * schedule.microbatches * schedule.stages_per_rank
    assert max(ends) - busy == schedule.idle
    assert ends == [own[-1].end for own in schedule.timetable(lambda action: UNITS[action.kind])]


@pytest.mark.parametrize("name", SCHEDULES)
@examples(8)
@given(data=st.data())
def test_periods_stand_for_all_micro_batches(name: str, data: st.DataObject) -> None:
    """Few micro-batches and what a period of them takes give what all of them do, whatever stages take."""
    ranks = data.draw(st.integers(2, 4))
    schedule = schedule_of(name, ranks, data.draw(st.integers(30, 40)))
    seconds = st.integers(1, 9).map(float)
    passes = {key: data.draw(seconds) for key in units(schedule)}
    handing = data.draw(st.sampled_from([0.0, 0.5, 3.0]))
    assert ends_of(schedule, passes, handing) == pytest.approx(play_passes(schedule, passes, handing))


def test_a_period_that_leaves_a_rank_work_is_not_taken_for_all() -> None:
    """A rank that has 56 s to do in a period, of which the first few take 52 s each."""
    schedule = schedule_of("zbv-zero-bubble", 2, 30)
    seconds = (6.0, 1.0, 1.0, 4.0, *[1.0] * 7, 8.0, *[1.0] * 4)
    passes = dict(zip(units(schedule), seconds, strict=True))
    assert ends_of(schedule, passes, 0.0) == pytest.approx(play_passes(schedule, passes, 0.0))


@pytest.mark.parametrize("name", SCHEDULES)
def test_very_many_micro_batches_are_as_much_work_as_few(name: str) -> None:
    played = 0

    class Seconds(float):
        """Those of a pass, which count how often it is played."""

        def __radd__(self, start: float) -> float:
            nonlocal played
            played += 1
            return start + float(self)

    counts: list[int] = []
    for microbatches in (32, 32_768):
        schedule, played = schedule_of(name, 4, microbatches // 4), 0
        ends_of(schedule, {kind: Seconds(seconds) for kind, seconds in units(schedule).items()}, 0.1)
        counts.append(played)
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize(("ranks", "vpp"), [(4, 2), (8, 3)])
def test_very_many_micro_batches_whose_last_round_is_smaller_are_as_few_passes(ranks: int, vpp: int) -> None:
    """Rounds stay as large as those of the step, though fewer micro-batches would have others."""
    played: list[int] = []
    for count in (16 * ranks, 32_768):  # and as many more as are no whole number of ranks
        schedule = MegatronInterleaved1F1B(ranks, vpp, count + ranks // 2 + 1)
        assert schedule.round > ranks
        orders: list[Schedule] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pipelines, "_order", lambda each, orders=orders: orders.append(each) or _order(each))
            ends_of(schedule, units(schedule), 0.1)
        assert {each.period for each in orders} == {schedule.period}
        played.append(max(each.microbatches for each in orders))
    assert played[1] <= 4 * schedule.period


@examples(8)
@given(data=st.data())
def test_periods_of_larger_rounds_stand_for_all_micro_batches(data: st.DataObject) -> None:
    ranks = data.draw(st.integers(2, 5))
    schedule = MegatronInterleaved1F1B(ranks, data.draw(st.integers(2, 3)), data.draw(st.integers(90, 200)))
    seconds = st.integers(1, 9).map(float)
    passes = {key: data.draw(seconds) for key in units(schedule)}
    assert ends_of(schedule, passes, 0.5) == pytest.approx(play_passes(schedule, passes, 0.5), rel=1e-9)


def test_stages_that_take_nearly_as_long_are_played_until_the_slowest_shows() -> None:
    """The first stage is 1 % slower than others, of which only hundreds of micro-batches wait for it."""
    schedule = SCHEDULES["interleaved-1f1b"](4, 2, 496)
    passes = {(stage, kind): each * (1.01 if stage == 0 else 1.0) for (stage, kind), each in units(schedule).items()}
    assert ends_of(schedule, passes, 0.1) == pytest.approx(play_passes(schedule, passes, 0.1), rel=1e-12)


@pytest.mark.parametrize("name", ["gpipe", "looped-bfs"])
@examples(20)
@given(data=st.data())
def test_stages_that_run_all_micro_batches_at_once_are_as_all_are_played(name: str, data: st.DataObject) -> None:
    """With seconds so near each other that the slowest stage shows after many micro-batches alone; of a range too."""
    ranks, vpp = data.draw(st.integers(1, 4)), SCHEDULES[name].only_stages or data.draw(st.integers(1, 3))
    schedule = SCHEDULES[name](ranks, vpp, data.draw(st.sampled_from([1, 2, 3, 50, 700])))
    seconds = st.sampled_from([1.0, 1.001, 1.01, 2.0])
    passes = {key: data.draw(seconds) for key in units(schedule)}
    handing = data.draw(st.sampled_from([0.0, 0.5, 3.0]))
    expected = play_passes(schedule, passes, handing)
    assert ends_of(schedule, passes, handing) == pytest.approx(expected, rel=1e-12)
    several = {key: np.array([one, 1.5 - one / 4, data.draw(seconds)]) for key, one in passes.items()}
    for own, of_all in zip(ends_of(schedule, several, handing), play_passes(schedule, several, handing), strict=True):
        assert own == pytest.approx(of_all, rel=1e-12)


def test_a_rank_that_is_the_slowest_of_hundreds_of_micro_batches_alone_counts() -> None:
    """What is handed on takes longer than one rank has more to do in the first two hundred of them."""
    schedule = SCHEDULES["looped-bfs"](2, 2, 700)
    passes = {(stage, kind): 1.0 if stage % 2 else 1.01 for stage in range(4) for kind in KINDS}
    assert ends_of(schedule, passes, 3.0) == pytest.approx(play_passes(schedule, passes, 3.0), rel=1e-12)


def test_no_rank_runs_two_passes_at_a_time_or_one_before_its_input() -> None:
    schedule = schedule_of("interleaved-1f1b", 4, 3)
    told: list[StagePass] = []
    play_passes(schedule, units(schedule), 0.25, told.append)
    ends = {each.action: each for each in told}
    for each in told:
        before = schedule.needs(each.action)
        if before is not None:
            source = ends[before]
            assert each.start >= source.end + 0.25 * (source.rank != each.rank)
    for rank in range(4):
        own = sorted((each.start, each.end) for each in told if each.rank == rank)
        assert all(end <= start for (_, end), (start, _) in pairwise(own))


MODEL = cm.GPT(vocab=512, context=256, width=256, layers=8, heads=8)
HOW: dict[str, Any] = {"seq": 256, "precision": "bf16", "attention": "flash"}


@pytest.mark.parametrize(
    "layout",
    [
        {"pp": 4, "accumulate": 8},
        {"pp": 2, "accumulate": 6, "tp": 2, "dp": 2},
        {"pp": 4, "vpp": 2, "accumulate": 8, "schedule": "zbv-zero-bubble"},
        {"pp": 2, "accumulate": 4, "fsdp": 4},
        {"pp": 2, "accumulate": 4, "fsdp": 2, "tp": 2, "sp": True},
        {"pp": 2, "accumulate": 4, "dp": 8, "runtime": "megatron", "zero": 1, "precision": "bf16-master"},
        {"pp": 2, "accumulate": 2, "runtime": "megatron", "precision": "bf16-master"},
    ],
    ids=str,
)
def test_time_of_a_pipeline_is_its_passes_its_bubble_and_what_it_hands_on(layout: dict[str, Any]) -> None:
    p = cm.predict(MODEL, **HOW | layout)
    time = p.on("dgx-h100")
    handed = [part for part in time.collectives if part.operation == "send"]
    assert [part.axis for part in handed] == ["pp"]
    phases = sum(phase.seconds for phase in time.phases)
    assert time.seconds == pytest.approx(phases + time.bubble + handed[0].exposed)
    assert 0 <= handed[0].exposed <= handed[0].seconds
    assert time.low <= time.seconds <= time.high
    assert max(map(len, str(time).splitlines())) <= 80


LAYOUT = {"tp": 2, "sp": True, "pp": 4, "dp": 2, "runtime": "megatron", "precision": "bf16-master-fp32-gradients"}


def test_kernels_that_stages_have_in_common_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the rank that is busiest, and for the step; and again only where a model has forgotten them."""

    def kernels_worked_out(kept: int) -> tuple[float, list[Kernel]]:
        tables: list[Kernel] = []
        seconds = KernelTable.seconds
        with monkeypatch.context() as patch:
            patch.setattr(laws, "MOST_KNOWN", kept)
            patch.setattr(
                KernelTable, "seconds", lambda table, model: tables.extend(table.kernels) or seconds(table, model)
            )
            time = cm.predict("llama-3.1-8b", batch=1, seq=4096, accumulate=16, **LAYOUT).on("h100-sxm")
            return time.seconds, tables

    seconds, once = kernels_worked_out(10_000)
    again, often = kernels_worked_out(0)
    assert seconds == again
    assert len(once) == len(set(once))
    assert set(often) == set(once)
    assert len(often) > 2 * len(once)


def test_seconds_need_no_tasks_of_the_whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those are what its FLOPs are added up of, for MFU."""
    monkeypatch.setattr(Time, "model_tasks", property(lambda time: pytest.fail("the whole model is gone through")))
    time = cm.predict("llama-3.1-8b", batch=1, seq=4096, accumulate=16, **LAYOUT).on("h100-sxm")
    assert time.seconds > time.exposed > 0


@pytest.mark.parametrize(
    ("how", "parts"),
    [
        ({"runtime": "megatron"}, (1, 4)),
        ({"runtime": "megatron", "sp": True}, (1, 1)),
        ({"runtime": "deepspeed", "zero": 1}, (4, 4)),
        ({"runtime": "torch"}, (1, 1)),
    ],
    ids=str,
)
def test_ranks_of_tp_hand_on_a_part_each_and_gather_it(how: dict[str, Any], parts: tuple[int, int]) -> None:
    """By themselves, and of a stack that says so; what is handed over the network then takes less in all."""
    p = cm.predict(MODEL, batch=16, seq=256, precision="bf16-master", pp=2, tp=4, dp=2, accumulate=4, **how)
    share = 4 if how.get("sp") else 1  # of the tokens
    whole = 16 * 256 * 256 * 2 // share
    for scatter_gather, part in zip((False, True), parts, strict=True):
        time = p.on("dgx-h100", stack=cm.Stack("own", "graph_seconds", scatter_gather=scatter_gather))
        handed = [(of.operation, of.axis, of.bytes) for of in time.collectives if of.layer == "stages"]
        gathered = [("all_gather", "tp", whole)] if part > 1 else []
        assert handed == [("send", "pp", whole // part), *gathered]
        exposed = sum(of.exposed for of in time.collectives if of.layer == "stages")
        assert time.seconds == pytest.approx(sum(each.seconds for each in time.phases) + time.bubble + exposed)
    faster, plain = (p.on("dgx-h100", stack=cm.Stack("own", "graph_seconds", scatter_gather=s)) for s in (True, False))
    assert (faster.seconds < plain.seconds) == (parts == (1, 4))


@pytest.mark.parametrize("layout", [{"pp": 4, "accumulate": 8}, {"pp": 2, "accumulate": 4, "fsdp": 4}], ids=str)
def test_seconds_need_no_course_of_memory(layout: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """All passes of a rank one after the other are for its timeline alone."""
    walked: list[int] = []
    walk = RankStep.__init__
    monkeypatch.setattr(
        RankStep, "__init__", lambda own, rank, pipeline: walked.append(rank.rank) or walk(own, rank, pipeline)
    )
    p = cm.predict(MODEL, **HOW | layout)
    assert p.on("dgx-h100").seconds > 0
    assert walked == []
    assert p.memory.peak > 0
    assert sorted(walked) == [*range(layout["pp"])]


def test_the_rank_with_head_and_loss_is_the_slowest() -> None:
    wide = cm.GPT(vocab=64_000, context=256, width=256, layers=8, heads=8)
    time = cm.predict(wide, pp=4, accumulate=8, **HOW).on("dgx-h100")
    assert "head" in {row.name for row in time.layers}


@pytest.mark.parametrize("tier", ["ceiling", "typical"])
def test_a_stage_without_kernels_takes_no_time_but_to_hand_on(tier: Any) -> None:
    """AlexNet's flattening, and its dropout in inference, are stages of their own where each layer is one."""
    p = cm.predict("alexnet", pp=16, accumulate=16, batch=8)
    step = p.on("h100-sxm", tier=tier)
    assert 0 < step.bubble < step.seconds
    assert any(not row.flops.total for row in p.ranks)


def test_many_micro_batches_take_as_much_longer_as_there_are_more() -> None:
    # Of a rank that starts its kernels one by one the host may have less to do than another's, for which it then waits.
    runs = (cm.predict(MODEL, pp=4, accumulate=m, **HOW) for m in (64, 32_768))
    few, many = (run.on("dgx-h100", stack="cuda-graphs") for run in runs)
    assert many.bubble == pytest.approx(few.bubble, rel=0.01)
    assert many.tokens_per_second > few.tokens_per_second  # type: ignore[operator]


def test_passes_gather_sharded_weights_as_most_of_them_do() -> None:
    """Of very many micro-batches the first and the last differ: all that is gathered is what the rank's memory says."""
    p = cm.predict(MODEL, pp=4, fsdp=8, accumulate=4096, **HOW)
    time = p.on("dgx-h100")
    for operation in ("all_gather", "reduce_scatter"):
        played = sum(part.times for part in time.collectives if part.operation == operation)
        ranks = [sum(c.times for c in rank.collectives if c.operation == operation) for rank in p.ranks]
        assert min(ranks) * 0.999 <= played <= max(ranks) * 1.001
    assert time.seconds > cm.predict(MODEL, pp=4, accumulate=4096, **HOW).on("dgx-h100").seconds


@pytest.mark.slow
def test_published_steps_of_megatron_are_within_a_tenth() -> None:
    from tests.benchmarks.bench_steps import scores

    every = scores()
    experts = {source for source in every if "experts" in source or "moe" in source}  # dispatch is not said, or no law
    megatron = {source for source in every if "Megatron" in source or "Korthikanti" in source} - experts
    scaled = {source for source in megatron if "MXFP8" in source or "NVFP4" in source}  # a few layouts of two models
    assert all(every[source].error < 0.1 for source in megatron - scaled)
    assert all(every[source].error < 0.18 and every[source].after_scalar < 0.09 for source in scaled)
    assert all(every[source].error < 0.2 for source in experts)
    assert all(every[source].error < 0.1 for source in experts if "26.06 and later" in source)  # whose recipes are told
    assert all(of.after_scalar < of.trivial for source, of in every.items() if source not in scaled)
    assert every["vTrain (MICRO 2024), data/ground_truth_multi.csv: 64 to 512 A100"].error < 0.12
    covered = ("Megatron", "vTrain", "torchtitan")
    named = {source for source in every if any(name in source for name in covered)} - experts
    assert all(every[source].within >= 0.75 for source in named)


@pytest.mark.parametrize("axis", [{"tp": 8, "sp": True}, {"ep": 8, "dp": 8}])
def test_a_range_has_what_megatron_may_send_beside_products(axis: dict[str, Any]) -> None:
    """Recipes switch that on or off; it is never taken as done, nor is it another runtime's."""
    how: dict[str, Any] = {"batch": 2, "seq": 4096, "precision": "bf16-master-fp32-gradients", "attention": "flash"}
    p = cm.predict("qwen3-30b-a3b" if "ep" in axis else "llama-3.1-8b", **how, **axis, runtime="megatron")
    time = p.on("dgx-h100")
    name = next(iter(axis))
    waited = sum(of.exposed for of in time.collectives if of.axis == name)
    assert 0.9 * (time.seconds - waited) < time.low < time.seconds - 0.8 * waited
    other = cm.predict("llama-3.1-8b", **how, tp=8, sp=True).on("dgx-h100")
    assert other.low > 0.85 * other.seconds


@pytest.mark.parametrize("runtime", [{"runtime": "megatron"}, {"runtime": "deepspeed", "dp": 2, "zero": 1}])
def test_fewer_micro_batches_than_stages_leave_ranks_idle_by_the_formula(runtime: dict[str, Any]) -> None:
    """Narayanan et al. 2021, §2.2: of m micro-batches over p equal stages (p − 1)/(m + p − 1) of the step."""
    how: dict[str, Any] = HOW | {"precision": "bf16-master", "pp": 4} | runtime
    full = cm.predict(MODEL, accumulate=4, **how).memory.activations
    for m in (1, 2, 3):
        p = cm.predict(MODEL, accumulate=m, **how)
        time = p.on("dgx-h100", stack="cuda-graphs")
        assert time.bubble / time.seconds == pytest.approx(3 / (m + 3), rel=0.15)
        assert p.memory.activations < full


@pytest.mark.parametrize(
    ("layout", "accumulate"),
    [
        *product([{"pp": 1}, {"pp": 2}], [1, 2, 16]),
        *product([{"pp": 2, "vpp": 2, "schedule": "interleaved-1f1b"}], [2, 16]),
    ],
)
def test_tokens_that_are_sent_beside_another_micro_batch_are_waited_for_less(
    layout: dict[str, Any], accumulate: int
) -> None:
    """As much less as the share of passes beside which there is another, but for what they slow of its kernels."""
    how: dict[str, Any] = {"batch": 1, "seq": 4096, "precision": "bf16-master-fp32-gradients", "attention": "flash"}
    how |= {"runtime": "megatron", "ep": 8, "dp": 8, **layout}
    p = cm.predict("qwen3-30b-a3b", over={"layers": 8}, accumulate=accumulate, **how)
    waits, beside = (
        p.on("dgx-h100", network="400 Gb/s", stack=cm.Stack("own", "graph_seconds", experts_beside=told))
        for told in (False, True)
    )
    waited, left = (sum(of.exposed for of in time.collectives if of.axis == "ep") for time in (waits, beside))
    assert waited > 0.05 * waits.seconds
    assert left >= 0.999 * waited / accumulate
    if accumulate == 1:
        assert (beside.seconds, left) == (waits.seconds, waited)
    else:
        assert left < 0.9 * waited
        assert waits.seconds - waited < beside.seconds < waits.seconds - 0.5 * (waited - left)
        if layout["pp"] == 1:
            assert sum(phase.seconds for phase in beside.phases) == pytest.approx(beside.seconds)


def test_a_time_for_a_launch_that_is_given_has_a_range_on_several_devices() -> None:
    p = cm.predict("gpt2-small", batch=4, seq=128, dp=2)
    named, given = (p.on("dgx-h100", stack=cm.Stack("own", launch)) for launch in ("eager_seconds", 8e-6))
    assert given.seconds == named.seconds
    assert named.low < given.low < given.seconds < given.high < named.high


@pytest.mark.parametrize(("runtime", "vpp"), [("torch", 1), ("megatron", 1), ("megatron", 3)])
def test_ranks_of_megatron_wait_for_what_they_hand_on_but_for_interleaved_stages(runtime: Any, vpp: int) -> None:
    """Of very many micro-batches each pass takes so much longer, beside which PyTorch's sends run."""
    how: dict[str, Any] = {"batch": 1, "seq": 1024, "precision": "bf16-master", "attention": "flash", "pp": 4}
    split = {"vpp": vpp, "schedule": "interleaved-1f1b"} if vpp > 1 else {}
    time = cm.predict("gpt2-small", accumulate=64, runtime=runtime, **how, **split).on("dgx-a100")
    [handed] = [of for of in time.collectives if of.layer == "stages"]
    waited = handed.exposed / (handed.seconds / handed.times)
    assert (waited == pytest.approx(64)) == (runtime == "megatron" and vpp == 1)


@pytest.mark.parametrize(("split", "rank", "layer"), [([6, 6], 1, "head"), ([11, 1], 0, "embedding")])
def test_a_report_says_which_rank_of_a_pipeline_its_layers_are_of(split: list[int], rank: int, layer: str) -> None:
    time = cm.predict("gpt2-small", seq=128, precision="bf16", pp=2, accumulate=4, pp_split=split).on("h100-sxm")
    assert time.bound == "host"  # kernels tell the ranks apart all the same
    assert time.shown_rank == time.to_dict()["shown_rank"] == rank
    assert {"head", "embedding"} & {row.name for row in time.layers} == {layer}
    assert f"of pipeline rank {rank}, whose kernels take longest" in str(time).replace("\n  ", " ")


@pytest.mark.parametrize("layout", [{}, {"dp": 2}])
def test_a_report_without_a_pipeline_names_no_rank(layout: dict[str, Any]) -> None:
    time = cm.predict("gpt2-small", seq=128, **layout).on("h100-sxm")
    assert time.shown_rank is None
    assert "of pipeline rank" not in str(time)
