"""The model of host time holds on hosts unlike each other: calibrated there, it predicts what programs take there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import costmodel as cm
from costmodel.roofline.calibration import measure_others, measure_probes
from costmodel.roofline.clock import Sentinel
from costmodel.roofline.hosttime import predict_seconds
from costmodel.roofline.inplace import measure_in_place
from costmodel.roofline.memory import Buffer, Ref
from costmodel.roofline.probes import array
from costmodel.roofline.program import NumpyCall, Program, program_of
from costmodel.roofline.recorder import network_of
from tests.roofline.made_up import HOSTS, MadeUp, MadeUpClock

PROGRAMS: tuple[tuple[Any, dict[str, Any]], ...] = (
    ("gpt2-small", {"batch": 1, "seq": 64, "mode": "inference"}),
    ("vgg16", {"batch": 1, "image": (64, 64), "mode": "inference"}),
    ("resnet18", {"batch": 1, "mode": "inference"}),
    ("mlp-mnist", {"batch": 512, "mode": "inference"}),
    ("mlp-mnist", {"batch": 64, "mode": "train"}),
    (
        cm.Transformer(name="small transformer", vocab=5000, context=128, layers=4, width=256, heads=4),
        {"batch": 2, "seq": 128, "mode": "train"},
    ),
)


def gather() -> Program:
    """Rows of a table that is larger than most caches."""
    table, index, out = array(60_000, 250), array(20_000, dtype="int64"), array(20_000, 250)
    return program_of([NumpyCall("take", (table, index), out, {"axis": 0, "mode": "clip"})], [out], name="gather")


def unrolling() -> Program:
    """An image that a core's own caches hold, copied by short rows to more than most caches do."""
    image, out = Buffer(300 * 30, "float32", "input"), array(1000, 300, 28)
    return program_of([NumpyCall("copyto", (Ref((1000, 300, 28), image, (0, 30, 1)),), out)], [out], name="unrolling")


@pytest.mark.slow
@pytest.mark.parametrize("made_up", HOSTS, ids=lambda made_up: made_up.name)
def test_programs_take_what_is_predicted_on_a_host_that_was_calibrated(made_up: MadeUp) -> None:
    sentinel = Sentinel(MadeUpClock(made_up))
    told: list[float] = []
    calibration = measure_probes(threads=made_up.threads, sentinel=sentinel, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert calibration.unresolved < 0.01
    assert calibration.took_seconds < 20, "on a host at rest"
    last = made_up.levels[0]
    ours = last.capacity / (1 + made_up.brought / last.read) if len(made_up.levels) > 1 else made_up.host.caches[-1][1]
    assert calibration.host.caches[-1][1] == pytest.approx(ours, rel=0.25), "whatever the system states"
    networks = [network_of(cm.predict(model, **settings)).program for model, settings in PROGRAMS]
    for program in (*networks, gather(), *[unrolling()] * made_up.hiding):
        run = measure_in_place(program, passes=2, threads=made_up.threads, sentinel=sentinel)
        predicted = predict_seconds(program, calibration).seconds
        assert predicted == pytest.approx(run.seconds, rel=0.03), program.name
    if made_up.later is not None:
        model, settings = PROGRAMS[4]  # whose optimizer reads what was left alone since the last step
        program = network_of(cm.predict(model, **settings)).program
        sentinel = Sentinel(MadeUpClock(replace(made_up, brought=made_up.later)))
        brought = calibration.rates.others.traffic_at(*measure_others(program, sentinel, made_up.threads))
        run = measure_in_place(program, passes=2, threads=made_up.threads, sentinel=sentinel)
        now, then = (predict_seconds(program, calibration, traffic=each).seconds for each in (brought, None))
        assert now == pytest.approx(run.seconds, rel=0.03)
        assert then < run.seconds / 1.03


@pytest.mark.slow
def test_what_others_bring_is_told_from_what_they_brought_while_memory_was_measured() -> None:
    made_up = replace(HOSTS[0], brought=8.0)
    rates = measure_probes(sentinel=Sentinel(MadeUpClock(made_up))).rates
    others = rates.others
    assert others.traffic == pytest.approx(1e9 * made_up.brought, rel=0.15)
    assert others.lost == 0.0
    again = others.brought(others.traffic, others.traffic)
    alone = 16 << 20
    assert again(alone, alone * rates.taken(alone)) == pytest.approx(alone, rel=0.05), "as far as it seemed then"


@pytest.mark.slow
def test_what_others_bring_is_told_where_a_share_of_what_came_from_memory_is_lost() -> None:
    made_up = replace(HOSTS[0], brought=2.0, lost=0.4)
    others = measure_probes(sentinel=Sentinel(MadeUpClock(made_up))).rates.others
    assert others.traffic == pytest.approx(1e9 * made_up.brought, rel=0.25)
    assert others.lost == pytest.approx(made_up.lost, abs=0.1)
