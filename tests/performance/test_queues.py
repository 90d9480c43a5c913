"""What runs beside what: steps of layouts, played."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.performance import queues
from costmodel.performance.communication import CollectiveModel
from costmodel.performance.constants import BETWEEN_DEVICES, typical
from costmodel.performance.laws import KernelModel
from costmodel.performance.parallel import PlayedStep, Prices, RankWork
from costmodel.performance.programs import Drain, Event, Repeated, Sending
from costmodel.performance.queues import Price
from tests.profiles import examples

SMALL: dict[str, Any] = {"seq": 256, "precision": "bf16", "attention": "flash"}
MODEL = cm.GPT(vocab=512, context=256, width=256, layers=9, heads=8)
MIXED = "bf16-master-fp32-gradients"

LAYOUTS: list[dict[str, Any]] = [
    {"tp": 4},
    {"tp": 2, "sp": True, "loss_parallel": True},
    {"fsdp": 4},
    {"fsdp": 4, "reshard": False, "accumulate": 3},
    {"fsdp": 4, "dp": 4, "accumulate": 7},
    {"fsdp": 16, "tp": 2},
    {"fsdp": 8, "checkpoint": "block"},
    {"dp": 8, "accumulate": 5},
    {"cp": 4, "cp_kind": "ring", "fsdp": 2, "precision": "fp32"},
    {"cp": 2, "fsdp": 8, "precision": "fp32"},
    {"cp": 2, "cp_kind": "ulysses", "fsdp": 2, "precision": "fp32"},
    {"tp": 2, "dp": 8, "runtime": "megatron", "zero": 1, "sp": True, "precision": MIXED},
    {"tp": 2, "runtime": "megatron", "accumulate": 3, "precision": MIXED},
    {"dp": 16, "runtime": "deepspeed", "zero": 3, "precision": MIXED},
]
LARGE = cm.GPT(vocab=2048, context=256, width=2048, layers=9, heads=16)
COPIES: list[dict[str, Any]] = [
    {"dp": 16, "runtime": "megatron", "zero": 1, "precision": MIXED},
    {"dp": 16, "runtime": "megatron", "accumulate": 3, "precision": MIXED},
    {"dp": 16, "runtime": "deepspeed", "zero": 3, "accumulate": 2, "precision": MIXED},
]
"""Layouts whose runtime sends over copies beside kernels."""


def played(
    layout: dict[str, Any], prices: Any = None, *, trace: list[Any] | None = None, slow: float = 1.0
) -> tuple[PlayedStep, float]:
    """A step of the small model on H100s, and what its kernels take; prices: of messages; slow: times of kernels."""
    p = cm.predict(MODEL, **SMALL | layout)
    rank = RankWork(p.rank, fuse=False)
    machine = cm.load_machine("h100-sxm")
    model = KernelModel(machine, typical(machine).changed(conditions=slow))
    if prices is None:
        prices = Prices(CollectiveModel(cm.load_cluster("dgx-h100"), model.constants), p.settings.layout)
    seconds, step = rank.step(model, prices, trace)
    return step, sum(task.times * each for task, each in zip(rank.tasks, seconds, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_wait_for_the_host_is_none_for_collectives(layout: dict[str, Any]) -> None:
    """Where kernels take nothing the step is the host's, which is no wait for collectives that it has not started."""
    step, _ = played(layout, slow=1e-6)
    own = [(float(of.exposed), float(of.times) * float(of.price.seconds)) for of in step.sums]
    assert sum(exposed for exposed, _ in own) <= sum(seconds for _, seconds in own) * (1 + 1e-9)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("slow", [1.0, 100.0])
def test_rounds_that_are_alike_stand_for_all(layout: dict[str, Any], slow: float) -> None:
    """Playing every round by itself, as a trace does, takes as long as playing some and moving on."""
    trace: list[Any] = []
    every, _ = played(layout, trace=trace, slow=slow)
    some, _ = played(layout, slow=slow)
    assert float(some.seconds) == pytest.approx(float(every.seconds), rel=1e-9)
    assert [float(of.times) for of in some.sums] == [float(of.times) for of in every.sums]
    exposed = [sum(float(of.exposed) for of in step.sums) for step in (some, every)]
    assert exposed[0] == pytest.approx(exposed[1], rel=1e-6, abs=1e-12)
    for queue in {event.queue for event in trace}:
        events = sorted((event.start, event.end) for event in trace if event.queue == queue)
        assert all(end <= start + 1e-12 for (_, end), (start, _) in pairwise(events)), queue
    assert max(event.end for event in trace) == pytest.approx(float(every.seconds))


@pytest.mark.parametrize(
    ("model", "on", "how"),
    [
        ("gpt-j-6b", "tpu-v5e-pod", {"seq": 2048, "tp": 4, "sp": True, "fsdp": 4, "dp": 4, "checkpoint": "block"}),
        ("gpt2-small", "l40s", {"batch": 2, "tp": 2, "fsdp": 4, "checkpoint": "block", "precision": "bf16"}),
    ],
)
def test_rounds_are_not_alike_before_what_the_next_gather_waits_for_is(model: str, on: str, how: Any) -> None:
    """Of two blocks that take as long the room for weights has not moved on as far, or the link had been waited for."""
    time = cm.predict(model, **how).on(on, stack="compiled")
    assert time.seconds == pytest.approx(max(event.end for event in time.events), rel=1e-9)


@pytest.mark.parametrize("layout", COPIES, ids=str)
@pytest.mark.parametrize("network", ["25 Gb/s", "400 Gb/s", "6400 Gb/s"])
def test_what_is_sent_over_copies_is_on_one_link_beside_kernels(layout: dict[str, Any], network: str) -> None:
    """A step takes no less than that does one after another; and a trace has it all, where it is, in these seconds."""
    time = cm.predict(LARGE, **SMALL | layout).on("dgx-h100", network=network)
    total = sum(part.seconds for part in time.collectives if part.axis == "dp")
    assert total <= time.seconds
    assert max(event.end for event in time.events) == pytest.approx(time.seconds)
    for queue in {event.queue for event in time.events}:
        events = sorted((event.start, event.end) for event in time.events if event.queue == queue)
        assert events[0][0] >= 0
        assert all(end <= start + 1e-12 for (_, end), (start, _) in pairwise(events)), queue
    sent = sum(event.end - event.start for event in time.events if event.queue.endswith("dp"))
    assert sent == pytest.approx(total)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_messages_that_take_nothing_leave_the_kernels(layout: dict[str, Any]) -> None:
    step, busy = played(layout, lambda message: Price(0.0, "links"), slow=100.0)
    assert float(step.seconds) == pytest.approx(busy, rel=0.01)  # and the host's, which hides but at the start
    assert sum(float(of.exposed) for of in step.sums) == pytest.approx(0.0, abs=1e-3 * busy)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_collective_of_the_rank_is_played(layout: dict[str, Any]) -> None:
    step, _ = played(layout)
    expected: dict[Any, int] = {}
    for call in cm.predict(MODEL, **SMALL | layout).collectives:
        key = call.axis, call.operation, call.elements, call.dtype
        expected[key] = expected.get(key, 0) + int(call.times)
    actual: dict[Any, int] = {}
    for of in step.sums:
        key = of.message.axis, of.message.operation, of.message.elements, of.message.dtype
        actual[key] = actual.get(key, 0) + round(float(of.times))
    assert actual == expected


def rows_of(events: tuple[Event, ...]) -> list[int]:
    named: list[int] = []
    for event in events:
        if isinstance(event, Repeated):
            named += rows_of(event.events)
        elif not isinstance(event, Sending | Drain):
            named.append(event.row)
    return named


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_rows_of_a_program_are_those_of_its_own_events(layout: dict[str, Any]) -> None:
    """Kernels that run as one have one row, and no program has those of another."""
    rank = RankWork(cm.predict(MODEL, **SMALL | layout).rank, fuse=False)
    for program in rank.programs.values():
        named = rows_of(program.events)
        assert len(named) == len({*named})
        assert {row for row, tasks in enumerate(program.rows) if tasks} <= {*named}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_slow_links_are_all_that_counts(layout: dict[str, Any]) -> None:
    """A step takes no less than its collectives do one after the other, as they are on one link."""
    step, _ = played(layout, lambda message: Price(1.0, "links"))
    total = sum(float(of.times * of.price.seconds) for of in step.sums)
    assert float(step.seconds) >= total * (1 - 1e-9)
    assert float(step.seconds) <= total + 1.0


@st.composite
def shared_links(draw: Any) -> dict[str, Any]:
    """A layout of several axes, which are on one link of a slow cluster, and how its runtime sends."""
    layout: dict[str, Any] = {"tp": draw(st.sampled_from([2, 4, 8])), "accumulate": draw(st.sampled_from([1, 2, 5]))}
    runtime = draw(st.sampled_from(["fsdp", "hsdp", "ddp", "megatron", "deepspeed"]))
    layout |= {"sp": True} if runtime not in ("ddp", "deepspeed") and draw(st.booleans()) else {}
    layout |= {"checkpoint": draw(st.sampled_from(["none", "block"])), "seq": draw(st.sampled_from([32, 256]))}
    layout["pp"] = draw(st.sampled_from([1, 1, 2])) if layout["accumulate"] > 1 else 1
    if runtime in ("fsdp", "hsdp"):
        return layout | {"fsdp": draw(st.sampled_from([2, 8]))} | ({"dp": 2} if runtime == "hsdp" else {})
    copies = {"dp": draw(st.sampled_from([2, 8]))}
    if runtime == "ddp":
        return layout | copies
    return (
        layout
        | copies
        | {"precision": MIXED, "runtime": runtime, "zero": 1 if runtime == "megatron" or layout["pp"] > 1 else 3}
    )


@examples(60)
@given(shared_links(), st.sampled_from(["1 GB/s", "10 GB/s", "100 GB/s"]))
def test_a_link_does_what_is_sent_on_it_within_the_step_and_is_waited_for_no_longer(
    layout: dict[str, Any], link: str
) -> None:
    """Whatever shares it: a message that is there while another is takes longer, and no longer than both."""
    cluster = cm.Cluster(name="slow", machine="h100-sxm", node_size=256, link=link, topology="pcie")
    time = cm.predict(LARGE, **SMALL | layout).on(cluster)
    sent = sum(part.seconds for part in time.collectives)
    assert time.exposed <= sent * (1 + 1e-9)
    assert sent <= time.seconds * (1 + 1e-9)
    if layout["pp"] == 1:
        assert max(event.end for event in time.events) == pytest.approx(time.seconds, rel=1e-9)


@pytest.mark.parametrize("stages", [1, 2])
def test_sums_over_copies_hide_under_kernels_and_not_under_waits_for_their_own_link(stages: int) -> None:
    layout = {"precision": MIXED, "runtime": "megatron", "tp": 4, "dp": 4, "pp": stages, "accumulate": 2}
    cluster = cm.Cluster(name="slow", machine="h100-sxm", node_size=64, link="1 GB/s", topology="pcie")
    beside, apart = (
        cm.predict(LARGE, **SMALL | layout).on(cluster, stack=cm.Stack(name="own", launch=0.0, sums_beside=runs))
        for runs in (True, False)
    )
    kernels = sum(kernel.seconds for kernel in beside.kernels)
    assert 0 < apart.seconds - beside.seconds <= kernels


def test_gathers_of_fsdp_hide_under_blocks_and_not_under_less() -> None:
    """With blocks of kernels of a second nothing but the first gather is waited for, and the last scatters."""
    step, _ = played({"fsdp": 4}, lambda message: Price(0.1, "links"), slow=1e5)
    exposed = {(of.phase, of.layer): float(of.exposed) for of in step.sums}
    assert exposed["forward", "root.all_gather"] == pytest.approx(0.1, rel=0.01)
    assert exposed["forward", "block.all_gather"] == pytest.approx(0.0, abs=0.1)
    assert exposed["backward", "block.all_gather"] == 0
    assert exposed["backward", "root.gradients"] == pytest.approx(0.1, rel=0.01)


def test_a_ring_waits_for_what_its_kernels_are_shorter() -> None:
    """Of what goes round three of four parts' exchanges run beside kernels, and wait for nothing but their length."""
    ring = {"cp": 4, "cp_kind": "ring", "fsdp": 2, "precision": "fp32"}

    def seconds(each: float) -> float:
        own = {"cp": each}
        step, _ = played(ring, lambda message: Price(own.get(message.axis, 0.0), "links"), slow=1e3)
        return float(step.seconds)

    assert seconds(1e-4) == pytest.approx(seconds(0.0), rel=1e-3)
    assert seconds(10.0) == pytest.approx(10.0 * 9 * (3 + 8 - 1), rel=0.2)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_time_of_a_layout_has_all_that_one_of_a_device_has(layout: dict[str, Any]) -> None:
    p = cm.predict(MODEL, batch=2, **SMALL | layout)
    time = p.on("h100-sxm", network="400 Gb/s")
    assert time.low <= time.seconds <= time.high
    assert time.samples == p.batch_shape.batch * p.settings.micro_batches * p.settings.layout.samplers
    assert sum(part.exposed for part in time.collectives) == time.exposed <= time.seconds
    assert 0 < time.mfu <= time.hfu <= 1
    slower = p.on("h100-sxm", network="100 Gb/s")
    assert slower.seconds >= time.seconds
    assert {"collectives", "exposed", "bubble", "devices", "cluster"} <= time.to_dict().keys()
    assert max(map(len, str(time).splitlines())) <= 80
    run = time.run(tokens=1e9)
    assert run.devices == p.settings.layout.devices
    assert run.seconds == pytest.approx(1e9 / time.tokens_per_second)  # type: ignore[operator]


def test_two_samplers_of_a_layout_take_twice_the_samples_of_one() -> None:
    one, many = (cm.predict(MODEL, batch=4, dp=dp, **SMALL).on("h100-sxm") for dp in (1, 2))
    assert many.tokens_per_second == pytest.approx(2 * one.tokens_per_second, rel=0.3)  # type: ignore[operator]
    assert many.mfu == pytest.approx(one.mfu * 2 * one.seconds / (2 * many.seconds))


def test_sweeps_over_layouts_answer_each_cell_as_predict_does() -> None:
    grid = cm.sweep(MODEL, tp=[1, 2, 4], batch=[1, 2], on="h100-sxm", quantities=["seconds"], **SMALL)
    for tp in (1, 2, 4):
        cell = float(grid["seconds"].sel(tp=tp, batch=2))
        assert cell == pytest.approx(cm.predict(MODEL, batch=2, tp=tp, **SMALL).on("h100-sxm").seconds)


def test_what_is_not_there_is_refused() -> None:
    p = cm.predict(MODEL, **SMALL)
    with pytest.raises(cm.CostModelError, match="of which there is one"):
        p.on("h100-sxm", network="400 Gb/s")
    with pytest.raises(cm.CostModelError, match="has no network"):
        cm.predict(MODEL, fsdp=64, **SMALL).on(cm.load_machine("rtx-4090"))
    with pytest.raises(cm.CostModelError, match="have no formula"):
        cm.predict(MODEL, fsdp=8, **SMALL).on("h100-sxm").symbolic()
    with pytest.raises(cm.CostModelError, match="the layout is of 8"):
        cm.predict(MODEL, fsdp=8, **SMALL).on("h100-sxm").run(steps=10, devices=16)


@pytest.mark.parametrize("layout", [{}, {"fsdp": 4, "tp": 2}, {"pp": 2, "accumulate": 4}], ids=str)
def test_a_trace_has_every_event_of_the_step(layout: dict[str, Any], tmp_path: Path) -> None:
    time = cm.predict(MODEL, batch=8, **SMALL | layout).on("dgx-h100")
    time.to_trace(tmp_path / "step.json")
    rows = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    events = [row for row in rows if row["ph"] == "X"]
    assert max(row["ts"] + row["dur"] for row in events) == pytest.approx(1e6 * time.seconds, rel=1e-3)
    assert {row["args"]["name"] for row in rows if row["name"] == "thread_name"} >= {"device"}
    assert {row["pid"] for row in events} == set(range(layout.get("pp", 1)))
    if "pp" not in layout:
        device = sum(row["dur"] for row in events if row["cat"] == "forward" and row["tid"] == 0)
        assert device <= 1e6 * time.forward_seconds * (1 + 1e-9)


@pytest.mark.parametrize("how", [{"mode": "inference"}, {"mode": "train"}, {"accumulate": 2}], ids=str)
def test_a_trace_of_one_device_is_as_long_as_its_step_where_its_host_binds(how: dict[str, Any]) -> None:
    time = cm.predict("gpt2-small", batch=1, seq=32, **how).on("h100-sxm")
    assert max(event.end for event in time.events) == pytest.approx(time.seconds, rel=1e-9)


def test_tokens_of_experts_that_are_sent_beside_another_micro_batch_are_so_in_a_trace() -> None:
    layout = {"runtime": "megatron", "precision": MIXED, "ep": 4, "dp": 4, "accumulate": 3, "batch": 1, "seq": 256}
    beside, waited = (
        cm.predict("mixtral-8x7b", **layout).on("l40s", stack=cm.Stack(name="own", launch=0.0, experts_beside=told))
        for told in (True, False)
    )
    assert beside.seconds < 0.99 * waited.seconds
    assert max(event.end for event in beside.events) == pytest.approx(beside.seconds, rel=1e-9)
    lanes = [
        sorted((event.start, event.end) for event in time.events if event.queue.endswith(" ep"))
        for time in (beside, waited)
    ]
    assert all(end <= start + 1e-12 for (_, end), (start, _) in pairwise(lanes[0]))
    sent = [sum(end - start for start, end in lane) for lane in lanes]
    assert sent[0] == pytest.approx(sent[1])


def test_a_picture_of_the_events_has_a_lane_for_each_queue() -> None:
    figure = cm.predict(MODEL, fsdp=16, tp=2, **SMALL).on("dgx-h100").plot_events()
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["device", "links tp", "network fsdp"]
    assert figure.axes[0].get_xlabel() in ("time [ms]", "time [s]")


def test_a_step_of_too_many_events_is_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "MOST_TRACED", 2_000)
    layouts: list[dict[str, Any]] = [{"pp": 4}, {"fsdp": 2}]
    for layout in layouts:
        with pytest.raises(cm.CostModelError, match="too long to trace"):
            _ = cm.predict(MODEL, accumulate=32_768, **SMALL | layout).on("dgx-h100").events


def test_a_step_is_bound_by_collectives_where_these_are_most_of_it() -> None:
    time = cm.predict(MODEL, dp=256, **SMALL).on("h100-sxm", network="1 Gbit/s")
    assert time.bound == "collectives"
    assert "collectives that nothing runs beside" in " ".join(str(time).split())
    even = cm.GPT(vocab=512, context=256, width=4096, layers=16, heads=32)
    assert cm.predict(even, batch=32, pp=16, accumulate=16, **SMALL).on("dgx-h100").bound == "stages"


def test_a_range_says_that_overlap_of_a_runtime_is_not_told() -> None:
    """What Megatron can send beside kernels is hidden but for a bucket, and the range reaches to where it is not."""
    layout: dict[str, Any] = {"dp": 64, "runtime": "megatron", "zero": 1, "precision": MIXED}
    wide = cm.GPT(vocab=512, context=256, width=2048, layers=24, heads=16)
    time = cm.predict(wide, batch=8, **SMALL | layout).on("h100-sxm", network="200 Gbit/s")
    sums = [part for part in time.collectives if part.axis == "dp"]
    assert sum(part.hidden for part in sums) > 0.5 * sum(part.seconds for part in sums)
    plain = [part.seconds - part.exposed for part in sums]
    assert time.high >= time.seconds + 0.8 * sum(plain)
    assert time.seconds == pytest.approx(sum(phase.seconds for phase in time.phases))


def test_constants_between_devices_are_those_that_no_step_of_one_device_has() -> None:
    """They change nothing on one device, so that a range there leaves them out, and all together a step of several."""
    at = typical(cm.load_machine("h100-sxm"))
    changed = {name: 1.5 * getattr(at, name) for name in BETWEEN_DEVICES}
    one, many = (cm.predict(MODEL, dp=dp, **SMALL).on("h100-sxm") for dp in (1, 16))
    assert float(one.seconds_with(at.changed(**changed))) == one.seconds
    assert float(many.seconds_with(at.changed(**changed))) != many.seconds
    assert {effect.name for effect in many.interval.effects} & {*BETWEEN_DEVICES}
