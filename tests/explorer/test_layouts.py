"""Seconds of layouts on the page are those of `predict` on the cluster, played by the same lines."""

from collections import Counter
from typing import Any

import pytest

import costmodel as cm
from costmodel.explorer.controls import controls_of
from tests.command import error_of
from tests.explorer.engine import Engine, drawn, predicted
from tests.profiles import how_many

pytestmark = [pytest.mark.usefixtures("traced"), pytest.mark.slow]

MODEL = cm.Transformer(vocab=96, context=64, layers=3, width=64, heads=8, positions="rotary", tied=False)
MACHINES = ("h100-sxm", "a100-sxm-80gb", "l40s", "rtx-4090")
STAGES: dict[str, Any] = {"pp": [1, 3], "accumulate": [3, 6]}
"""With which a page has no sizes of the model, which take longer to explore."""
LAID_OUT: dict[str, dict[str, Any]] = {
    "shares": {"tp": [1, 2, 8], "fsdp": [1, 4], **STAGES},
    "parts of sequences": {"cp": [1, 2], "fsdp": [2, 4]},
    "copies": {"dp": [1, 2, 16], "precision": "fp32", "optimizer": ["adamw", "sgd"], **STAGES},
    "megatron": {"runtime": "megatron", "tp": [1, 2, 4], "dp": [1, 2], **STAGES},
    "deepspeed": {"runtime": "deepspeed", "zero": 1, "dp": 4, "tp": [1, 2], **STAGES},
    "inference": {"mode": "prefill", "tp": [1, 2, 4], "stack": "cuda-graphs"},
}
PIPELINES: dict[str, dict[str, Any]] = {
    "orders": {
        "pp": 2,
        "schedule": ["gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "interleaved-zero-bubble"],
        "accumulate": [2, 6, 200],
        "fsdp": [1, 2],
    },
    "orders in a V": {"pp": 2, "schedule": ["zbv-zero-bubble", "dualpipev"], "accumulate": [4, 5, 64], "tp": [1, 2]},
    "unequal stages": {
        "pp": 4,
        "pp_split": (1, 1, 2, 1),
        "accumulate": [4, 9, 300],
        "dp": [1, 2],
        "optimizer": ["sgd"],
    },
    "megatron": {"runtime": "megatron", "pp": [1, 5], "accumulate": [2, 5, 10], "dp": [1, 2], "tp": [1, 2]},
    "megatron in rounds": {
        "runtime": "megatron",
        "pp": 2,
        "schedule": ["1f1b", "interleaved-1f1b"],
        "accumulate": [1, 2, 3, 7, 8],
        "checkpoint": "none",
        "attention": "eager",
        "optimizer": ["sgd"],
    },
    "an inference": {"mode": "prefill", "pp": [1, 2, 5], "tp": [1, 2]},
}


def compare(asked: dict[str, Any], count: int, model: cm.Transformer = MODEL) -> Counter[str]:
    """Hold a page to `predict` at settings drawn at random, each on one machine; how often there was which outcome."""
    engine = Engine(cm.explore(model, seq=[16, 32, 64], on=list(MACHINES), **asked).html)
    data = engine.data["models"][0]
    fixed = {name: int(label) if label.isdecimal() else label for name, label in data["fixed"].items()}
    stack = asked.get("stack", "eager")
    outcomes: Counter[str] = Counter()
    for place, (sizes, choices) in enumerate(drawn(data, count, seed=5)):
        if "why" in engine.at(sizes, choices):
            continue
        p = predicted(model, data, sizes, choices, **fixed)
        machine = place % len(MACHINES)
        ranged = place % 5 == 0
        found = engine.on(machine, sizes, choices, ranged=ranged)
        if "why" in found:
            assert found["why"] == error_of(lambda: p.on(MACHINES[machine]))  # noqa: B023
            outcomes["no network"] += 1
            continue
        time = p.on(MACHINES[machine], stack=stack)
        expected = {
            "seconds": time.seconds,
            "least": p.on(MACHINES[machine], stack=stack, tier="ceiling").seconds,
            "mfu": time.mfu,
            "samplesPerSecond": time.samples_per_second,
            "exposed": time.exposed,
            "bubble": time.bubble,
            **({"low": time.low, "high": time.high} if ranged else {}),
        }
        own = {name: found[name] for name in expected}
        least = 1e-12 * time.seconds  # of a difference, such as a bubble that there is none of
        assert own == pytest.approx(expected, rel=1e-9, abs=least), (sizes, choices)
        for phase, own in zip(found["phases"], time.phases, strict=True):
            assert phase["seconds"] == pytest.approx(own.seconds, rel=1e-9)
            assert phase["device"] == pytest.approx(own.device_seconds, rel=1e-9)
            assert phase["host"] == pytest.approx(own.host_seconds, rel=1e-9)
        outcomes["one device" if time.devices == 1 else "several"] += 1
        outcomes["waited for"] += time.exposed > 0
        outcomes["stages"] += p.settings.layout.pp > 1
        outcomes[p.settings.layout.schedule] += time.bubble > 0
    return outcomes


@pytest.mark.parametrize("name", LAID_OUT)
def test_seconds_of_a_layout_are_those_of_predict(name: str) -> None:
    outcomes = compare(LAID_OUT[name], how_many(60))
    assert outcomes["several"] >= 5
    assert outcomes["waited for"] >= 5


@pytest.mark.parametrize("name", PIPELINES)
def test_seconds_of_a_pipeline_are_those_of_predict(name: str) -> None:
    asked = PIPELINES[name]
    model = cm.Transformer(vocab=960, context=64, layers=5, width=64, heads=8, positions="rotary", tied=False)
    outcomes = compare(asked, how_many(40), model)
    assert outcomes["stages"] >= 5
    assert asked.get("mode") or min(outcomes[each] for each in asked.get("schedule", ["1f1b"])) >= 2


def test_a_page_sends_tokens_beside_another_micro_batch_as_predict_does() -> None:
    model = cm.Transformer(
        vocab=96, context=64, layers=3, width=64, heads=8, tied=False, experts={"count": 8, "per_token": 2, "width": 32}
    )
    beside = cm.Stack("own", 1e-6, experts_beside=True)
    asked: dict[str, Any] = {"runtime": "megatron", "ep": [2, 4], "dp": 4, "stack": beside, **STAGES}
    assert compare(asked, how_many(60), model)["waited for"] >= 5


def test_a_pipeline_of_one_degree_has_sliders_of_its_samples() -> None:
    on_page = cm.explore(
        MODEL, pp=3, accumulate=[3, 6], optimizer=["sgd"], precision="bf16", checkpoint="none", on=None
    )
    assert [*on_page.models[0].sizes] == ["batch", "seq", "accumulate"]


def test_several_runtimes_have_no_seconds() -> None:
    asked: dict[str, Any] = {"seq": [16], "dp": 2, "runtime": ["torch", "deepspeed"], "precision": "bf16", **STAGES}
    assert Engine(cm.explore(MODEL, **asked).html).data["machines"] == []
    with pytest.raises(cm.CostModelError, match="runtime"):
        cm.explore(MODEL, **asked, on="h100-sxm")


def test_samples_are_those_of_all_micro_batches() -> None:
    engine = Engine(cm.explore(MODEL, seq=[16], accumulate=[2, 4], on="h100-sxm", checkpoint="none").html)
    data = engine.data["models"][0]
    for sizes, choices in drawn(data, 12):
        if "why" not in engine.at(sizes, choices):
            time = predicted(MODEL, data, sizes, choices).on("h100-sxm")
            rate = engine.on(0, sizes, choices, ranged=False)["samplesPerSecond"]
            assert rate == pytest.approx(time.samples_per_second, rel=1e-9)


def test_degrees_that_need_others_are_offered_where_these_begin_as_one() -> None:
    """Experts are dealt out over ranks that weights are split over, of which a page begins with one."""
    routed = MODEL.with_fields({"experts": {"count": 4, "per_token": 2}})
    offered = controls_of(routed, {"seq": [16, 32], "ep": [1, 2, 4], "fsdp": [1, 2, 4]})
    assert {size.name: size.stops for size in offered.sizes}["ep"] == (1, 2, 4)


def test_degrees_of_which_one_alone_can_be_are_refused() -> None:
    with pytest.raises(cm.CostModelError, match=r"tp=5 does not divide heads 8"):
        controls_of(MODEL, {"seq": [16, 32], "tp": [1, 5]})
