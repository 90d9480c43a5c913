"""Laws of whole steps: any ready machine, stack, precision and mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.hardware.catalogue import load_machine
from costmodel.hardware.machine import Machine, Peaks
from costmodel.performance.constants import TABLE, constant
from costmodel.performance.laws import KernelTable
from costmodel.performance.time import Time
from tests.profiles import examples

STEPS: list[tuple[str, dict[str, Any]]] = [
    ("resnet18", {}),
    ("mobilenet_v2", {}),
    ("convnext_tiny", {}),
    ("vit-b-16", {}),
    ("gpt2-small", {"seq": 64}),
    ("bert-base", {"seq": 7}),
    ("llama-3.2-1b", {"seq": 128, "attention": "flash"}),
    ("mixtral-8x7b", {"seq": 16}),
]
PRECISIONS_TRAINED = ("fp32", "bf16-autocast", "fp16-autocast", "bf16", "fp16-master", "fp8")
PRECISIONS_RUN = (*PRECISIONS_TRAINED, "int8", "int4", "q8_0", "fp8-w8a8")
"""Not nf4: of one row its library unpacks weights as it reads them, and of two it writes them first, so that two
samples may take more than twice as long as one."""
EVERY_MACHINE = tuple(machine.name for machine in cm.machines())


@st.composite
def questions(draw: Any) -> tuple[str, dict[str, Any], str, dict[str, Any]]:
    """A model, settings of a step or a pass of it, any ready machine, and how it runs there."""
    name, sizes = draw(st.sampled_from(STEPS))
    training = draw(st.booleans())
    own: dict[str, Any] = {
        "mode": "train" if training else "inference",
        "batch": draw(st.sampled_from([1, 2, 3, 8, 32])),
    }
    own["precision"] = draw(st.sampled_from(PRECISIONS_TRAINED if training else PRECISIONS_RUN))
    if "seq" in sizes and name != "bert-base" and draw(st.booleans()):
        own["mode"] = draw(st.sampled_from(["prefill", "decode"]))
        own["past"] = draw(st.sampled_from([1, 100, 400]))
        sizes = {key: value for key, value in sizes.items() if key != "seq" or own["mode"] == "prefill"}
    elif training:
        own["optimizer"] = draw(st.sampled_from(["sgd", "adamw", "adam-8bit", "muon", "adafactor"]))
        ways = ["loop", "foreach", "fused"] if own["optimizer"] in ("sgd", "adamw") else ["loop"]
        own["update"] = draw(st.sampled_from(ways))
        own["checkpoint"] = draw(st.sampled_from(["none", "block"])) if "seq" in sizes else "none"
    how = {
        "stack": draw(st.sampled_from(["eager", "compiled", "cuda-graphs"])),
        "allow_tf32": draw(st.sampled_from([None, True, False])),
        "channels_last": draw(st.booleans()),
    }
    return name, sizes | own, draw(st.sampled_from(EVERY_MACHINE)), how


def machine_with(machine: Machine, peaks: dict[str, float], bandwidth: float = 1.0) -> Machine:
    """The machine with some peaks, and its bandwidth, times so much."""
    peak = {name: peaks.get(name, 1.0) * value for name, value in machine.peak.rates.items()}
    return machine.model_copy(update={"peak": Peaks(**peak), "bandwidth": bandwidth * machine.bandwidth})


def timed(question: Any, machine: Machine | None = None, **changes: Any) -> Time:
    name, settings, on, how = question
    own = {key: changes.pop(key) for key in ("batch",) if key in changes}
    return cm.predict(name, **{**settings, **own}).on(machine or load_machine(on), **{**how, **changes})


@pytest.mark.slow
@examples(60)
@given(questions())
def test_a_step_is_no_faster_than_its_ceiling_and_uses_no_more_than_the_peak(question: Any) -> None:
    t, ceiling = timed(question), timed(question, tier="ceiling")
    assert 0 < ceiling.seconds <= t.low <= t.seconds <= t.high
    for of in (t, ceiling):
        assert 0 < of.mfu <= of.hfu <= 1
    device = sum(phase.device_seconds for phase in t.phases)
    assert sum(row.seconds for row in t.layers) == pytest.approx(device, rel=1e-9)
    assert sum(row.seconds for row in t.kernels) == pytest.approx(device, rel=1e-9)
    assert t.seconds == pytest.approx(t.forward_seconds + t.backward_seconds + t.update_seconds, rel=1e-9)


@pytest.mark.slow
@examples(60)
@given(questions(), st.floats(1.0, 1e3), st.data())
def test_more_bandwidth_or_peak_is_never_slower(question: Any, more: float, data: st.DataObject) -> None:
    machine, before = load_machine(question[2]), timed(question).seconds
    peaks = dict.fromkeys(machine.peak.rates, more)
    one = {data.draw(st.sampled_from(sorted(peaks)), label="one peak"): more}
    for better in (machine_with(machine, {}, more), machine_with(machine, peaks), machine_with(machine, one)):
        assert timed(question, better).seconds <= before * (1 + 1e-9)


@pytest.mark.slow
@examples(60)
@given(questions())
def test_two_batches_take_longer_than_one_and_at_most_twice_as_long(question: Any) -> None:
    one, two = timed(question).seconds, timed(question, batch=2 * question[1]["batch"]).seconds
    assert one * (1 - 1e-9) <= two <= 2 * one * (1 + 1e-9)


@examples(40)
@given(questions())
def test_neither_fusion_nor_graphs_are_slower_than_eager(question: Any) -> None:
    eager, compiled, graphs = (timed(question, stack=stack) for stack in ("eager", "compiled", "cuda-graphs"))
    assert compiled.seconds <= eager.seconds * (1 + 1e-9)
    assert graphs.seconds <= eager.seconds * (1 + 1e-9)
    assert all(after.launches <= before.launches for before, after in zip(eager.phases, compiled.phases, strict=True))
    assert sum(kernel.bytes for kernel in compiled.kernels) <= sum(kernel.bytes for kernel in eager.kernels)
    assert all(fusion.launches >= 0 and fusion.bytes >= 0 for fusion in compiled.fusions)


@examples(40)
@given(questions())
def test_a_machine_without_limits_takes_its_launches(question: Any) -> None:
    machine = load_machine(question[2])
    limitless = machine_with(machine, dict.fromkeys(machine.peak.rates, 1e18), 1e18).model_copy(
        update={"levels": (), "boost_clock": None}
    )
    t = timed(question, limitless)
    c, host = t.constants, t.stack.launch_seconds(t.constants)
    starts = [phase.launches * host for phase in t.phases]
    # A product starts its pipeline too, and all of it takes as much longer as conditions make it.
    device = [phase.launches * c.conditions * (c.kernel_seconds + c.product_seconds) for phase in t.phases]
    assert sum(starts) <= t.seconds * (1 + 1e-9)
    assert t.seconds <= sum(map(max, starts, device)) * (1 + 1e-3)


@examples(40)
@given(questions().filter(lambda question: load_machine(question[2]).tdp is not None))
def test_power_is_between_that_of_waiting_and_the_limit(question: Any) -> None:
    t = timed(question)
    assert t.kernel_model.waiting_watts <= t.energy(pue=1).watts <= t.machine.tdp * (1 + 1e-12)


@examples(20)
@given(questions())
def test_all_ends_of_constants_in_one_pass_are_as_each_by_itself(question: Any) -> None:
    t = timed(question)
    middle = t.constants
    ranges = {name: constant(name, t.machine) for name in TABLE}
    together = np.broadcast_to(t.seconds_with(middle.with_ends(ranges)), 2 * len(TABLE) + 1)
    apart = [t.seconds_with(middle.changed(**{name: end})) for name, of in ranges.items() for end in (of.low, of.high)]
    assert together.tolist() == pytest.approx([*apart, t.seconds], rel=1e-12)


@pytest.mark.parametrize(("name", "sizes"), STEPS[:5])
def test_an_interval_works_out_kernels_twice_whatever_the_number_of_constants(
    name: str, sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle and at all ends; and once more for the ceiling."""
    passes = []
    times = KernelTable.times
    monkeypatch.setattr(KernelTable, "times", lambda table, model: passes.append(model.tier) or times(table, model))
    t = cm.predict(name, batch=2, **sizes).on("h100-sxm")
    assert t.low < t.high
    assert sorted(passes) == ["ceiling", "typical", "typical"]
