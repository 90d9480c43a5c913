"""What bounds a layer: thresholds, agreement, and the interventions that measure it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.layers.arithmetic import Scale
from costmodel.layers.linear import Linear
from costmodel.roofline.accuracy import Agreement
from costmodel.roofline.calibration import measure_probes
from costmodel.roofline.classification import (
    BOUNDS,
    TILE_BYTES,
    Spent,
    Verdict,
    alone,
    classify,
    copied,
    distances_of,
    predicted,
    smallest,
    textbook,
    tile,
    verdict,
)
from costmodel.roofline.clock import Sentinel
from costmodel.roofline.hosttime import HostTime, TimeTerms, predict_seconds
from costmodel.roofline.kernels import ArrayTape
from costmodel.roofline.memory import RESIDENT_BYTES
from costmodel.roofline.probes import probes
from costmodel.roofline.program import NumpyCall, program_of
from costmodel.roofline.signature import LoopSignature, ProductSignature, signature_of
from costmodel.roofline.validation import CASES, STREAMING, keep_apart, layers_of
from tests.roofline.made_up import HOSTS, MadeUp, MadeUpClock
from tests.roofline.synthetic import MACHINE, SETS, calibration


@pytest.mark.parametrize(
    ("overhead", "resident", "said"),
    [
        (0.9, 0.95, "overhead"),
        (0.55, 0.9, "overhead?"),
        (0.45, 0.9, "matmul?"),
        (0.1, 0.95, "matmul"),
        (0.1, 0.7, "matmul?"),
        (0.1, 0.6, "L3?"),
        (0.1, 0.3, "L3"),
    ],
)
def test_thresholds_decide_and_near_them_it_is_too_close_to_call(overhead: float, resident: float, said: str) -> None:
    assert str(verdict(1.0, Spent(overhead, resident, {("matmul", ""): 1.0}), "L3")) == said


def test_the_resource_that_takes_most_of_the_time_in_cache_binds() -> None:
    by = {("function", "exp"): 0.4, ("function", "tanh"): 0.2, ("cache", "L2"): 0.3, ("matmul", ""): 0.1}
    assert verdict(1.0, Spent(0.0, 1.0, by)) == Verdict("function", "exp")  # type: ignore[arg-type]
    even = {("function", "exp"): 0.5, ("cache", "L2"): 0.45}
    assert str(verdict(1.0, Spent(0.0, 1.0, even))) == "exp?"  # type: ignore[arg-type]
    assert verdict(1.0, Spent(0.0, 0.2, by), "memory") == Verdict("DRAM")  # type: ignore[arg-type]
    assert [Verdict(bound).coarse for bound in BOUNDS] == ["compute", "compute", "memory", "memory", "overhead"]


def timed(*terms: tuple[NumpyCall, TimeTerms]) -> HostTime:
    return HostTime(sum((each for _, each in terms), TimeTerms()), 0.1, 6, terms)


def test_a_prediction_s_terms_say_what_binds_it() -> None:
    t = ArrayTape()
    x = t.array((1000, 10), "input")
    t.exp(x)
    t.add(x, x)
    t.matmul(x, t.array((10, 1000), "weight"))
    exp, add, product = t.ops
    by = calibration(seconds={**calibration().seconds, **moving_fast()})
    assert predicted(timed((exp, TimeTerms(compute=1, memory=9, reach=1e9))), by) == Verdict("DRAM")
    assert predicted(timed((exp, TimeTerms(compute=1, memory=9, reach=1e5))), by) == Verdict("cache", "L2")
    assert predicted(timed((exp, TimeTerms(compute=1e-5))), by) == Verdict("function", "exp")
    assert predicted(timed((add, TimeTerms(compute=1e-6))), by) == Verdict("cache", "L2")
    assert predicted(timed((product, TimeTerms(compute=1e-5)), (exp, TimeTerms(compute=1e-6))), by) == Verdict("matmul")
    assert predicted(timed((exp, TimeTerms(compute=1, rows=1, overhead=8))), by) == Verdict("overhead")


def moving_fast() -> dict[str, float]:
    """Copies in cache at a tenth of a nanosecond an element."""
    name = f"rate copyto {RESIDENT_BYTES} float32"
    return {name: 1e-6 + 1e-10 * RESIDENT_BYTES / 8, f"curve copyto {RESIDENT_BYTES} float32": 1.0}


def test_what_is_copied_instead_of_computed_is_the_largest_operand_as_it_lies() -> None:
    t = ArrayTape()
    x = t.array((40, 30), "input").swapaxes(0, 1)
    t.add(x, t.array((30, 1), "weight"))
    found = copied(t.ops[0])
    assert (found.name, found.operands[0].shape, found.operands[0].steps) == ("copyto", (30, 40), x.steps)
    for function, arguments, options in alone(found).bind():
        function(*arguments, **options)


def test_the_textbook_compares_intensity_with_the_ridge() -> None:
    rates = calibration().rates
    ridge = rates.peak("float32") / rates.memory_bandwidth
    assert textbook(1.01 * ridge, 1, rates).bound == "compute"
    assert textbook(0.99 * ridge, 1, rates).bound == "memory"


def test_agreement_beyond_chance() -> None:
    pairs = [("matmul", "matmul")] * 20 + [("matmul", "DRAM")] * 5 + [("DRAM", "matmul")] * 10
    found = Agreement((*pairs, *[("DRAM", "DRAM")] * 15))  # type: ignore[arg-type]
    assert found.share == pytest.approx(0.7)
    assert found.kappa == pytest.approx(0.4), "Cohen 1960, as commonly worked: 0.7 observed, 0.5 by chance"
    assert found.confusion["matmul", "DRAM"] == 5
    assert found.recalls == {"matmul": pytest.approx(2 / 3), "DRAM": 0.75}
    assert sum(found.confusion.values()) == 50
    assert Agreement((("memory", "memory"),)).kappa == 1.0
    assert Agreement(()).share == 1.0


def calls() -> list[NumpyCall]:
    found: dict = {}
    cases = [("gpt2-small", {"seq": 256}), ("resnet18", {"image": 96}), ("mlp-mnist", {"batch": 700})]
    for program in layers_of(cases).values():
        for op in program:
            found.setdefault((op.name, len(op.inputs), op.output.shape), op)
    return list(found.values())


@pytest.mark.parametrize("op", calls(), ids=repr)
def test_smallest_shapes_and_tiles_are_the_same_call_and_run(op: NumpyCall) -> None:
    part, times = tile(op)
    for changed in (smallest(op), part):
        assert changed.name == op.name
        assert [type(x) for x in changed.inputs] == [type(x) for x in op.inputs]
        assert type(signature_of(changed)) is type(signature_of(op))
        with np.errstate(all="ignore"):
            for function, arguments, options in alone(changed).bind():
                function(*arguments, **options)
    assert max(smallest(op).output.shape, default=1) <= 2
    assert times >= 1
    touched = sum(ref.bytes for ref in (*part.operands, part.output))
    smaller, _ = tile(op, touched // 2)  # no product is cut to what BLAS computes otherwise
    assert touched <= 1.2 * TILE_BYTES or times == 1 or smaller.output.shape == part.output.shape


def test_a_tile_keeps_the_layout() -> None:
    t = ArrayTape()
    x = t.array((400, 1000), "input")
    t.add(x, t.array((400, 1), "weight"))
    found, times = tile(t.ops[0])
    signature = signature_of(found)
    assert isinstance(signature, LoopSignature)
    assert (signature.inner, [s.step for s in signature.strands]) == (1000, [1, 0, 1])
    assert times == pytest.approx(400 / signature.rows, rel=0.02)
    t.matmul(t.array((900, 800), "input"), t.array((700, 800), "weight").swapaxes(0, 1))
    found, times = tile(t.ops[1])
    signature = signature_of(found)
    assert isinstance(signature, ProductSignature)
    assert signature.b_transposed
    assert max(found.operands[1].steps) == 800
    assert times == pytest.approx(900 * 800 * 700 / (signature.m * signature.n * signature.k))


@pytest.mark.slow
def test_ten_layers_and_more_are_bound_by_dram_where_the_last_cache_is_of_32_mib() -> None:
    calibration = measure_probes(sentinel=Sentinel(MadeUpClock(HOSTS[0])))
    programs = layers_of(alone=STREAMING).values()
    bounds = [predicted(predict_seconds(program, calibration), calibration).bound for program in programs]
    assert bounds.count("DRAM") >= 10
    assert max(map(bounds.count, BOUNDS)) < 0.45 * len(bounds)


@pytest.mark.parametrize("made_up", HOSTS, ids=lambda made_up: made_up.name)
def test_the_level_that_binds_is_where_a_made_up_host_has_the_arrays(made_up: MadeUp) -> None:
    nearest, clock = made_up.levels[0], MadeUpClock(made_up)
    caches = (*made_up.host.caches[:-1], ("L3", int(nearest.capacity))) if len(made_up.levels) > 1 else ()
    machine = replace(made_up.host, caches=caches or made_up.host.caches)
    streams = [(Scale(0.5), (3, 400_000)), (Scale(0.5), (30, 900_000)), (Scale(0.5), (300, 600_000))]
    products = [(Linear(700), (1, 3000)), (Linear(5000), (1, 60_000))]
    programs = [*layers_of((), [*streams, *products]).values()]
    seconds = [float(1e-9 * sum(clock.nanoseconds(program))) for program in programs]
    measured = classify(programs, seconds, machine, Sentinel(clock))
    expected = ["DRAM" if program.touched_bytes > nearest.capacity or not caches else "cache" for program in programs]
    assert [each and each.bound for each in measured] == expected


def test_distances_lie_between_the_caches() -> None:
    near = distances_of(MACHINE)
    assert list(near) == ["L2", "memory"]
    assert near["L2"] < dict(MACHINE.caches)["L2"] < near["memory"]


@pytest.mark.slow
def test_no_layer_that_is_predicted_is_a_probe() -> None:
    layers = layers_of(alone=STREAMING)
    assert len(layers) > 100
    assert {name.split()[0] for name in layers} == {"alone", *(model for model, _ in CASES)}
    keep_apart(layers.values(), SETS)
    t = ArrayTape()
    probe = next(op for name, op in probes(SETS) if name.startswith("product "))
    t.ops.append(probe)
    with pytest.raises(AssertionError, match="is the probe 'product "):
        keep_apart([program_of(t.ops, [probe.output])], SETS)
