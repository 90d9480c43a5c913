"""Predicted times are what hand-made constants add up to, and behave as physics says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np
import pytest

import costmodel as cm
from costmodel.errors import SettingError
from costmodel.roofline.calibration import Calibration
from costmodel.roofline.curves import LogTable, behind, joined, parted
from costmodel.roofline.gemm import (
    MOST_FAR,
    Measured,
    ProductFit,
    begun_by_threads,
    exposing,
    fit,
    multiply_adds,
    regime_of,
)
from costmodel.roofline.hosttime import LEVELS, predict_seconds
from costmodel.roofline.kernels import ArrayTape
from costmodel.roofline.memory import RESIDENT_BYTES, ArrayMemory, Ref
from costmodel.roofline.others import REPEATED, TOLD, _middle
from costmodel.roofline.placed import (
    AGED,
    AGED_NAME,
    AGES,
    FEW_PRODUCTS,
    KEPT_AGES,
    KEPT_NAME,
    LARGE_PRODUCTS,
    RECURRING,
    STALE,
    in_place,
)
from costmodel.roofline.probes import (
    LINES_APART,
    RATE_BYTES,
    WINDOW_BYTES,
    WINDOW_LENGTHS,
    _masking,
    array,
    elementwise,
    probes,
)
from costmodel.roofline.program import NumpyCall, Program, program_of
from costmodel.roofline.recorder import forward_program, network_of
from costmodel.roofline.signature import ProductSignature, signature_of
from tests.roofline.synthetic import ALONE, CALL, ELEMENT, FLOP, SETS, STEP, calibration


def layer(model: str, name: str, **settings) -> Program:
    calls = cm.predict(model, mode="inference", **settings).tape.root.calls()
    return forward_program(next(call for call in calls if call.name == name))


@pytest.fixture(scope="module")
def abacus() -> Calibration:
    return calibration()


def test_a_linear_layer_is_a_product_and_a_sum(abacus: Calibration) -> None:
    found = predict_seconds(layer("mlp-lenet-300-100", "hidden1.linear", batch=64), abacus)
    product = CALL + 2 * 64 * 784 * 300 * FLOP
    bias = CALL + 64 * 300 * ELEMENT
    assert found.seconds == pytest.approx(STEP + product + bias, rel=0.02)
    assert found.terms.overhead == pytest.approx(STEP + 2 * CALL, rel=0.01)
    assert found.dominant == "compute"
    assert [op.name for op, _ in found.calls] == ["matmul", "add"]


def test_softmax_is_two_reductions_and_three_passes(abacus: Calibration) -> None:
    found = predict_seconds(layer("gpt2-small", "block.attention.softmax", batch=1, seq=100), abacus)
    elements = 12 * 100 * 100
    assert found.seconds == pytest.approx(STEP + 5 * (CALL + elements * ELEMENT), rel=0.02)


def test_two_ceilings_are_flops_or_bytes(abacus: Calibration) -> None:
    program = layer("mlp-lenet-300-100", "hidden1.linear", batch=64)
    rates = abacus.rates
    flops = 2 * 64 * 784 * 300 + 64 * 300
    moved = 4 * (64 * 784 + 784 * 300 + 300 + 64 * 300)
    assert rates.memory_bandwidth == pytest.approx(12 / ELEMENT, rel=0.01), "three arrays of four bytes an element"
    expected = max(flops / rates.peak("float32"), moved / rates.memory_bandwidth)
    assert predict_seconds(program, abacus, level=1).seconds == pytest.approx(expected)
    slower = predict_seconds(program, abacus, level=1, compulsory_bytes=10**9)
    assert slower.seconds == pytest.approx(10**9 / rates.memory_bandwidth)


def test_numpys_own_passes_are_more_than_the_compulsory_bytes(abacus: Calibration) -> None:
    program = layer("gpt2-small", "block.mlp.gelu_tanh", batch=1, seq=64)
    own = predict_seconds(program, abacus, level=2).seconds
    assert own == pytest.approx(program.traffic_bytes / abacus.rates.memory_bandwidth)
    assert own > 4 * predict_seconds(program, abacus, level=1).seconds


def slow_memory(beyond: int = RESIDENT_BYTES) -> Calibration:
    """Ten times as long for each element beyond the cache."""
    seconds = dict(calibration().seconds)
    for size in SETS.curve:
        if size > beyond:
            for name in ("add", "negative", "copyto", "fill", "multiply in place", "matmul"):
                probe = f"curve {name} {size} float32"
                if probe in seconds:
                    seconds[probe] = ALONE + 10 * (seconds[probe] - ALONE)
    return calibration(seconds=seconds)


def test_memory_costs_only_what_does_not_fit_the_cache() -> None:
    small, large = (layer("mlp-mnist", "hidden1.relu", batch=batch) for batch in (8, 8000))
    assert predict_seconds(small, slow_memory()).terms.memory == pytest.approx(0, abs=1e-12)
    found = predict_seconds(large, slow_memory())
    assert found.dominant == "memory"
    assert found.terms.reach == sum(ref.bytes for ref in (large.inputs[0], large.outputs[0]))


def test_the_first_cache_hands_out_faster_what_is_computed_sooner() -> None:
    """Sums and copies wait for it, what computes for longer does not; `ELEMENT` is what the next cache takes."""
    seconds = dict(calibration().seconds)
    for name in ("add", "negative", "copyto"):
        for size in SETS.curve[:2]:
            probe = f"curve {name} {size} float32"
            seconds[probe] = ALONE + (seconds[probe] - ALONE) / 4
    for size in RATE_BYTES[:2]:
        probe = f"rate tanh {size} float32"
        seconds[probe] = ALONE + 10 * (seconds[probe] - ALONE)

    def elements(name: str, size: int) -> float:
        program = program_of([op := elementwise(name, size, "float32")], [op.output])
        return predict_seconds(program, calibration(seconds=seconds)).terms.compute / op.output.size

    for name in ("add", "copyto"):
        assert elements(name, 20_000) == pytest.approx(ELEMENT / 4, rel=0.03)
        assert elements(name, 300_000) == pytest.approx(ELEMENT, rel=0.02)
    assert elements("tanh", 20_000) == pytest.approx(10 * ELEMENT, rel=0.02)


def test_products_that_blas_is_not_asked_for_have_laws_of_their_own() -> None:
    """Of one query and one key: dot products of features, and what loops without adding anything up."""
    looped, dotted = 2000 * FLOP, 200 * FLOP
    seconds = dict(calibration().seconds)
    for name, op in probes(SETS):
        product = signature_of(op) if op.name == "matmul" else None
        if isinstance(product, ProductSignature) and min(product.m * product.n, product.k) == 1:
            seconds[name] = ALONE + product.flops * (looped if product.k == 1 else dotted)
    by = calibration(seconds=seconds)
    for name, flop in (("scores", dotted), ("mix", looped)):
        program = layer("gpt2-small", f"block.attention.{name}", batch=5, seq=1)
        assert predict_seconds(program, by).seconds == pytest.approx(STEP + CALL + 2 * 5 * 12 * 64 * flop, rel=0.02)
    alike = layer("gpt2-small", "block.attention.mix", batch=5, seq=2)
    expected = predict_seconds(alike, calibration()).seconds
    assert predict_seconds(alike, by).seconds == pytest.approx(expected, rel=1e-6)


def test_few_rows_of_a_product_take_a_pass_of_four_and_passes_of_two_and_one() -> None:
    """As kernels do that take four at once: three rows take longer than four."""

    def passes(p: ProductSignature) -> float:
        return p.m // 4 * 60e-12 + (p.m % 4).bit_count() * 100e-12

    seconds = dict(calibration().seconds)
    for name, op in probes(SETS):
        product = signature_of(op) if op.name == "matmul" else None
        if isinstance(product, ProductSignature) and regime_of(product) == "narrow":
            seconds[name] = ALONE + product.batch * product.n * product.k * (80e-12 + passes(product))
    rates = calibration(seconds=seconds).rates

    def each(rows: int) -> float:
        p = ProductSignature(1, rows, 900, 700, False, False, True, "float32")
        return rates.products.time(p, [0.0] * 3, [0, 0, 0])[0] / (p.n * p.k)

    for rows in (2, 3, 4, 5, 7, 9, 11, 13):
        expected = 80e-12 + passes(ProductSignature(1, rows, 900, 700, False, False, True, "float32"))
        assert each(rows) == pytest.approx(expected, rel=0.05), rows
    assert each(3) > each(4)


def test_a_sum_over_rows_begins_with_zeros() -> None:
    """So that of few rows it takes longer for each than of many, of which probes are."""
    seconds = dict(calibration().seconds)
    for name, op in probes(SETS):
        if name.startswith("add.reduce outer"):
            seconds[name] = ALONE + (op.output.size + op.operands[0].size) * ELEMENT
    for rows in (2, 40):
        op = NumpyCall("add.reduce", (array(rows, 5000),), array(5000), {"axis": 0})
        found = predict_seconds(program_of([op], [op.output]), calibration(seconds=seconds))
        assert found.seconds == pytest.approx(STEP + CALL + (1 + rows) * 5000 * ELEMENT, rel=0.01)


@pytest.mark.slow
def test_slower_memory_never_makes_it_faster(abacus: Calibration) -> None:
    for name in ("block.attention.softmax", "block.attention_norm", "block.mlp.up", "block.attention.mix"):
        program = layer("gpt2-small", name, batch=2, seq=128)
        assert predict_seconds(program, slow_memory()).seconds >= 0.999 * predict_seconds(program, abacus).seconds


@pytest.mark.parametrize("level", LEVELS)
def test_more_of_it_never_takes_less(abacus: Calibration, level: int) -> None:
    times = [
        predict_seconds(layer("gpt2-small", "block.mlp.gelu_tanh", batch=batch, seq=64), abacus, level=level).seconds
        for batch in (1, 2, 5)
    ]
    assert times == sorted(times)


@pytest.mark.parametrize("level", [0, 7, "6", None])
def test_a_level_that_there_is_not_is_refused(abacus: Calibration, level: object) -> None:
    with pytest.raises(SettingError, match="is none of 1, 2, 3, 4, 5, 6"):
        predict_seconds(layer("mlp-mnist", "output"), abacus, level=level)  # type: ignore[arg-type]


def test_the_interval_holds_the_prediction_and_widens_with_doubt(abacus: Calibration) -> None:
    program = layer("gpt2-small", "block.mlp.up", batch=1, seq=64)
    low, high = predict_seconds(program, abacus).interval
    assert low <= predict_seconds(program, abacus).seconds <= high
    doubtful = {
        name: value * (1.5 if number % 2 else 1.0) if name.startswith("product") else value
        for number, (name, value) in enumerate(abacus.seconds.items())
    }
    wide = predict_seconds(program, calibration(seconds=doubtful))
    assert wide.error > predict_seconds(program, abacus).error


def test_tables_interpolate_in_logarithms_and_stay_at_their_ends() -> None:
    table = LogTable((1, 100), (2, 200))
    assert table(10) == pytest.approx(20)
    assert [table(point) for point in (0.1, 1, 100, 1e6, inf)] == pytest.approx([2, 2, 200, 200, 200])
    assert LogTable((1, 10, 100), (2, 20, 200)).left_out() == pytest.approx([0.0], abs=1e-12)
    mixed = LogTable((1, 100), (0.0, 200), mixing=True)
    assert [mixed(point) for point in (0.1, 10, 1e9, float("inf"))] == pytest.approx([0, 100, 200, 200])


def test_overlapping_times_are_more_than_either_and_less_than_both() -> None:
    assert max(3.0, 4.0) < joined(3.0, 4.0, 6.0) < 7.0
    assert joined(3.0, 4.0, 1.0) == 7.0 < joined(3.0, 4.0, 0.5)
    assert parted(joined(3.0, 4.0, 2.0), 3.0, 2.0) == pytest.approx(4.0)
    assert parted(3.0, 4.0, 6.0) == 0.0
    assert math.isclose(joined(3.0, 0.0, 6.0), 3.0)


def test_a_function_not_called_for_long_costs_what_its_probe_says() -> None:
    """Its code was evicted by what was touched since its last call, whichever arrays that were."""
    slow = {f"stale {name} {number}": CALL + 5e-6 for number in range(1, len(LARGE_PRODUCTS)) for name in STALE}
    slow |= {f"{RECURRING}{name}": took for name, took in slow.items() if int(name[-1]) < len(FEW_PRODUCTS)}
    by = calibration(seconds=calibration().seconds | slow)

    def sqrt_overhead(elements: int) -> float:
        t = ArrayTape()
        x, few = t.array((elements,), "input"), t.array((4,), "input")
        t.sqrt(few)
        t.exp(x, out=x)
        found = predict_seconds(program_of(t.ops, [x, t.ops[0].output]), by)
        return next(terms.overhead for op, terms in found.calls if op.name == "sqrt")

    assert sqrt_overhead(4_000_000) == pytest.approx(CALL + 5e-6, rel=0.02)
    assert sqrt_overhead(100) == pytest.approx(CALL, rel=0.02)
    assert sqrt_overhead(30_000) <= sqrt_overhead(300_000) <= sqrt_overhead(3_000_000)


def test_a_first_reduction_after_long_costs_more_than_the_next() -> None:
    """Its manner takes code of its own, which the next one finds near, whichever function that is."""
    last = len(LARGE_PRODUCTS) - 1
    by = calibration(seconds=calibration().seconds | {f"stale add.reduce {last}": CALL + 20e-6})
    t = ArrayTape()
    x, few = t.array((SETS.beyond,), "input"), t.array((4, 4), "input")
    t.exp(x, out=x)
    t.sum(few, -1)
    t.reduce("maximum", few, -1)
    found = predict_seconds(program_of(t.ops, [x, *(op.output for op in t.ops[1:])]), by)
    first, second = (terms.overhead for op, terms in found.calls if op.name.endswith(".reduce"))
    assert first == pytest.approx(CALL + 20e-6, rel=0.02)
    assert second == pytest.approx(CALL, rel=0.02)


def test_calls_of_what_no_cache_holds_find_their_arguments_in_memory_however_near_their_code_is() -> None:
    """What a call passes to the function, it alone uses, once in a pass; code is run again by the next call."""
    gathers = {f"loading gather 200 {SETS.far[-1]} float32": 5.0}
    left = [name for name in calibration().seconds if name.startswith(("fresh ", "stale "))]
    fresh = dict.fromkeys(left, CALL + 3e-6)
    by = calibration(seconds=calibration().seconds | gathers | fresh)

    def overheads(elements: int) -> list[float]:
        t = ArrayTape()
        x, few = t.array((elements,), "input"), [t.array((4,), "input") for _ in range(3)]
        t.exp(x, out=x)
        for each in few:
            t.sqrt(each, out=each)
        return [terms.overhead for _, terms in predict_seconds(program_of(t.ops, [x, *few]), by).calls[1:]]

    assert overheads(2 * SETS.beyond // 4) == pytest.approx([CALL + 3e-6] * 3, rel=0.02), "once, not with the code too"
    assert overheads(1000) == pytest.approx([CALL] * 3, rel=0.02)


def test_code_that_a_program_leaves_in_the_shared_cache_is_run_anew_sooner_than_where_no_cache_holds_the_program() -> (
    None
):
    gathers = {f"loading gather 200 {SETS.far[-1]} float32": 5.0}
    stale = {name: CALL + 9e-6 for name in calibration().seconds if name.startswith("stale ")}
    found = {name: CALL + 1e-6 for name in calibration().seconds if name.startswith(f"{RECURRING}stale ")}
    by = calibration(seconds=calibration().seconds | gathers | stale | found)

    def overhead(elements: int) -> float:
        t = ArrayTape()
        x, few = t.array((elements,), "input"), t.array((4,), "input")
        t.exp(x, out=x)
        t.sqrt(few, out=few)
        return predict_seconds(program_of(t.ops, [x, few]), by).calls[1][1].overhead

    assert overhead(RESIDENT_BYTES) == pytest.approx(CALL + 1e-6, rel=0.02)
    assert overhead(2 * SETS.beyond) == pytest.approx(CALL + 9e-6, rel=0.02)


def test_copies_and_iterators_of_more_axes_take_longer_to_begin() -> None:
    """Not so what is contiguous and needs no iterator, however many axes it has."""
    longer = {"copyto axes 2": 1e-7, "copyto axes 4": 3e-7, "fill axes 4": 4e-7, "add.reduce axes 4": 5e-7}
    longer |= {"repeated axes 4": 6e-7}
    seconds = calibration().seconds
    slow = {f"call {name} float32": seconds[f"call {name} float32"] + more for name, more in longer.items()}
    by = calibration(seconds=seconds | slow)

    def overhead(name: str, *shapes: tuple[int, ...], **params: object) -> float:
        *read, written = (array(*shape) for shape in shapes)
        op = NumpyCall(name, tuple(read) or (0.5,), written, params)
        return predict_seconds(program_of([op], [op.output]), by).calls[0][1].overhead - CALL

    many, one = (2, 3, 2, 2), (2, 3, 2, 1)
    assert overhead("copyto", (24,), (24,)) == pytest.approx(0.0, abs=3e-8)
    assert overhead("copyto", (2, 12), (2, 12)) == pytest.approx(1e-7, abs=3e-8)
    assert 1e-7 < overhead("copyto", (2, 3, 4), (2, 3, 4)) < overhead("copyto", many, many) * 0.9
    assert overhead("copyto", many, many) == pytest.approx(3e-7, abs=3e-8)
    assert overhead("copyto", many) == pytest.approx(4e-7, abs=3e-8)
    assert overhead("add.reduce", many, one, axis=-1, keepdims=True) == pytest.approx(5e-7, abs=3e-8)
    assert overhead("add.reduce", (6, 4), (6,), axis=-1) == pytest.approx(0.0, abs=3e-8)
    assert overhead("add", many, one, many) == pytest.approx(6e-7, abs=3e-8)
    assert overhead("add", many, many, many) == pytest.approx(0.0, abs=3e-8)
    assert overhead("add", (1, 1, 1, 24), (1, 24), (1, 1, 1, 24)) == pytest.approx(0.0, abs=3e-8), "joined to one axis"


def test_a_number_is_converted_for_every_other_element_too() -> None:
    slow = {"call divide scalar float32": 4e-7, "call multiply scalar float32": 4e-7}
    by = calibration(seconds={name: took + slow.get(name, 0.0) for name, took in calibration().seconds.items()})
    apart = array(50, strides=(36,), elements=1800)

    def overhead(*inputs: Ref | float) -> float:
        op = NumpyCall("divide", inputs, apart)
        return predict_seconds(program_of([op], [op.output]), by).calls[0][1].overhead

    assert overhead(apart, 2.0) - overhead(apart, array(50)) == pytest.approx(4e-7, rel=0.02)


def test_what_is_written_where_it_is_read_is_one_object_to_numpy() -> None:
    """Of two views of the same memory it works out how they overlap, for which it makes an iterator."""
    x = array(3, 8)
    rows = x.buffer, (8, 1), 0
    for read, same in ((x, True), (Ref((3, 8), *rows), True), (Ref((3, 8), x.buffer, (8, 1), 24), False)):
        op = NumpyCall("exp", (read,), Ref((3, 8), x.buffer))
        memory = ArrayMemory(lambda elements, dtype: np.ones(2 * elements, dtype))
        memory.make(x.buffer)
        _, (own,), options = op.bind(memory)
        assert (own is options["out"]) == same


def test_a_small_operand_that_is_far_makes_no_call_one_of_memory() -> None:
    """A row is added to a megabyte that was just written, and was last used eighty megabytes ago."""
    t = ArrayTape()
    much, near, row = t.array((20_000_000,), "input"), t.array((500, 500), "input"), t.array((500,), "input")
    t.exp(much, out=much)
    t.exp(near, out=near)
    t.add(near, row, out=near)
    found = predict_seconds(program_of(t.ops, [much, near]), slow_memory())
    added = next(terms for op, terms in found.calls if op.name == "add")
    assert added.reach <= 2 * near.bytes


def beside(elements: int) -> Program:
    """A sum of two arrays before and after products of few bytes that take ten milliseconds."""
    t = ArrayTape()
    x, y, out = (t.array((elements,), "input") for _ in range(3))
    a, b, c = (t.array((150, 150), "input") for _ in range(3))
    t.add(x, y, out=out)
    for _ in range(150):
        t.matmul(a, b, out=c)
    t.add(x, y, out=out)
    return program_of(t.ops, [out, c])


def test_what_is_left_alone_for_long_comes_from_memory_where_others_use_the_cache() -> None:
    """The sums touch as much between two uses as before, but ten milliseconds pass."""
    seconds = slow_memory(beyond=20_000_000).seconds
    kinds = {AGED_NAME: AGES, KEPT_NAME: KEPT_AGES}
    left_alone = [f"{kind}{way} {n}" for kind, ages in kinds.items() for way in AGED for n in ages]
    aged = {name: CALL + 9 * (seconds[name] - CALL) for name in left_alone}
    alone, shared = calibration(seconds=seconds), calibration(seconds=seconds | aged)
    assert alone.rates.others.traffic == 0.0
    assert shared.rates.others.traffic > 1e9

    def sums(by: Calibration, elements: int) -> float:
        return sum(terms.memory for op, terms in predict_seconds(beside(elements), by).calls if op.name == "add")

    assert sums(shared, 200_000) > 1.2 * sums(alone, 200_000)
    assert sums(shared, 1000) == sums(alone, 1000), "the core's own caches hold it"


def test_rows_longer_than_any_probe_take_as_much_longer() -> None:
    from costmodel.roofline.probes import REDUCED_LENGTHS, ROW_LENGTHS

    rates = calibration().rates
    for table, length in (
        (rates.rows("column", "float32", True), ROW_LENGTHS[-1]),
        (rates.reduced("add.reduce", "outer", "float32", True), REDUCED_LENGTHS[-1]),
    ):
        assert table(5 * length) == pytest.approx(5 * table(length))


@pytest.mark.slow
def test_windows_beyond_the_caches_cost_what_their_probe_says() -> None:
    seconds = calibration().seconds
    ways = [(manner, length) for manner in ("second", "second in place") for length in WINDOW_LENGTHS[manner]]
    names = [f"windows {manner} {length} {SETS.far[-1]} float32" for manner, length in ways]
    by = calibration(seconds=seconds | {name: 5 * seconds[name] for name in names})
    pool = layer("resnet18", "max_pool", batch=64)
    plain = layer("resnet18", "relu", batch=64)
    assert predict_seconds(pool, by).seconds > 1.5 * predict_seconds(pool, calibration()).seconds
    assert predict_seconds(plain, by).seconds == pytest.approx(predict_seconds(plain, calibration()).seconds)


def test_weights_from_memory_cost_what_products_in_place_say() -> None:
    """Weights that were last touched a pass ago, or that no cache holds, take 0.1 ns a byte beside the arithmetic."""
    slow = dict(slow_memory().seconds)
    products = {name: op for name, op in probes(SETS) if name.startswith("product ")}
    far = {name: op.operands[1].bytes for name, op in products.items() if op.operands[1].bytes > 2 * RESIDENT_BYTES}
    far |= {
        op.layer: op.operands[1].bytes for program in in_place(SETS.beyond) for op in program if op.name == "matmul"
    }
    known = {name: slow[name] + 1e-10 * size for name, size in far.items()}
    program = network_of(cm.predict(cm.MLP(sizes=[2000, 2500, 2500, 2500, 2500]), batch=64, mode="inference")).program
    hidden, exposed = (predict_seconds(program, calibration(seconds=seconds)) for seconds in (slow, slow | known))
    weights = sum(ref.bytes for ref in program.weights)
    assert exposed.seconds - hidden.seconds == pytest.approx(1e-10 * weights, rel=0.25)


def test_a_small_copy_from_afar_takes_what_any_function_does_however_fast_large_ones_are() -> None:
    """Large copies store past the caches, and cost half of what others do there; it is the call's size that decides."""
    slow = slow_memory()
    seconds = dict(slow.seconds)
    for size in SETS.thinned[-2:]:
        probe = f"curve copyto {size} float32"
        seconds[probe] = ALONE + (seconds[probe] - ALONE) / 2
    halved = calibration(seconds=seconds)

    def copied(size: int, known: Calibration) -> float:
        program = program_of([elementwise("copyto", size, "float32")], [])
        return predict_seconds(program, known, between=SETS.curve[-1]).seconds

    small, large = RESIDENT_BYTES, SETS.curve[-1]
    assert copied(small, halved) == pytest.approx(copied(small, slow), rel=1e-3)
    assert copied(large, halved) == pytest.approx(copied(large, slow) / 2, rel=0.01)
    near = next(size for size in SETS.curve if size > RESIDENT_BYTES)
    nothing = calibration(seconds=slow.seconds | {f"curve copyto {near} float32": ALONE + near // 8 * ELEMENT})
    assert copied(small, nothing) == pytest.approx(copied(small, slow), rel=1e-3), "but from a core's own caches"


def test_a_matrix_takes_what_its_bytes_and_its_rows_do() -> None:
    """Beyond a core's caches a byte takes 0.05 ns and the start of each row 30 ns, at two lengths that are measured."""
    seconds = dict(calibration().seconds)
    for name, op in probes(SETS):
        if name.startswith("curve matmul ") and int(name.split()[-2]) > RESIDENT_BYTES:
            matrix = op.operands[1]
            seconds[name] += 5e-11 * matrix.bytes + 30e-9 * matrix.shape[1]
    rates = calibration(seconds=seconds).rates
    for length in (500, 1008, 3000, 40_000):
        assert rates.read(SETS.curve[-1], length) == pytest.approx(5e-11 + 30e-9 / (4 * length), rel=0.01)
    assert rates.read(SETS.curve[0], 3000) < 1e-20


@pytest.mark.parametrize("manner", ["column", "reduced inner", "reduced outer"])
def test_loops_of_rows_overlap_by_how_far_their_operands_are(manner: str) -> None:
    """Those that hide most of their way from a cache, and nothing of that from memory, are found to."""
    seconds, rates, ops = dict(slow_memory().seconds), slow_memory().rates, dict(probes(SETS))
    near = f"loading {manner} {WINDOW_BYTES} float32"
    for size, power in zip(SETS.far, powers := [2.0] * (len(SETS.far) - 1) + [1.0], strict=True):
        op = ops[f"loading {manner} {size} float32"]
        beside = (seconds[near] - ALONE) / ops[near].operands[0].size * op.operands[0].size
        compute = min(rates.plain(manner) * op.operands[0].size, beside)
        loaded = op.operands[0].bytes * rates.far(size, "one")
        loaded += op.output.bytes * rates.far(size, "one", written=True)
        seconds[f"loading {manner} {size} float32"] = ALONE + behind(compute, beside - compute, loaded, power)
    found = calibration(seconds=seconds).rates.power_of(manner)
    assert [found(size) for size in SETS.far] == pytest.approx(powers)


def test_what_all_products_of_a_batch_share_comes_from_memory_once() -> None:
    """As weights of a convolution that unrolls images one by one."""
    rates, far = slow_memory(SETS.curve[-2]).rates, [float(SETS.curve[-1])] * 3
    rates.products.fit = lambda regime, dtype: ProductFit(
        {"": {"a far": 1.0}}, np.zeros(1), ((1.0, 0.0), *[(0.0, 0.0)] * 2)
    )
    p = ProductSignature(32, 512, 49, 2304, a_transposed=False, b_transposed=False, plain=True, dtype="float32")
    a, b, c = (4 * each for each in (p.m * p.k, p.k * p.n, p.m * p.n))
    _, apart = rates.products.time(p, far, [32 * a, 32 * b, 32 * c])
    _, shared = rates.products.time(p, far, [a, 32 * b, 32 * c])
    assert 0 < shared < apart / 4


def test_a_table_that_a_batch_repeats_is_read_again_from_where_it_was_left() -> None:
    known, table = slow_memory(), 1 << 20
    x, out = (array(4, table // 4) for _ in range(2))

    def memory(second: Ref) -> float:
        return predict_seconds(program_of([NumpyCall("add", (x, second), out)], [out]), known).terms.memory

    again = 3 * table * known.rates.far(3 * table, "two")
    assert again > 0
    assert memory(array(table // 4)) - memory(array(1)) > 0.9 * again
    assert memory(array(4, 1)) == pytest.approx(memory(array(1)), rel=0.01), "numbers are near"


def longer(
    probe: str, times: float, sizes: Sequence[int] = SETS.far[-1:], by: Calibration | None = None
) -> Calibration:
    """Where some probes take longer."""
    seconds = dict((by or calibration()).seconds)
    for size in sizes:
        seconds[f"{probe} {size} float32"] *= times
    return calibration(seconds=seconds)


def test_rows_of_maxima_wait_for_memory_as_their_probe_says() -> None:
    known = longer("loading maximum inner", 5)

    def slower(name: str, inner: int) -> float:
        x, out = array(SETS.curve[-1] // (4 * inner), inner), array(SETS.curve[-1] // (4 * inner))
        program = program_of([NumpyCall(name, (x,), out, {"axis": -1})], [out])
        return predict_seconds(program, known).seconds / predict_seconds(program, calibration()).seconds

    assert slower("maximum.reduce", 440) == pytest.approx(5, rel=0.05)
    assert 1.5 < slower("maximum.reduce", 3000) < 2, "each row waits as long"
    assert slower("maximum.reduce", 32) == slower("add.reduce", 440) == pytest.approx(1)


def test_rows_of_maxima_that_are_near_wait_for_nothing_however_far_their_results_are() -> None:
    t = ArrayTape()
    much, x, few = t.array((SETS.curve[-1] // 4,), "input"), t.array((100, 100), "input"), t.array((100, 1), "input")
    t.exp(much, out=much)
    t.exp(x, out=x)
    program = program_of([*t.ops, NumpyCall("maximum.reduce", (x,), few, {"axis": -1})], [much, few])
    for times in (5, 50):
        waiting = longer("loading maximum inner", times, by=slow_memory(SETS.far[-2]))
        assert predict_seconds(program, waiting).calls[-1][1].seconds == pytest.approx(
            CALL + x.size * ELEMENT, rel=0.02
        )


def test_long_masks_wait_for_memory_where_short_ones_do_not() -> None:
    known = longer("loading copy masked long", 3)

    def slower(side: int) -> float:
        op = _masking(side, SETS.curve[-1] // (8 * side**2))
        program = program_of([op], [op.output])
        return predict_seconds(program, known).seconds / predict_seconds(program, calibration()).seconds

    assert slower(100) == pytest.approx(1, rel=0.01)
    assert slower(360) == pytest.approx(3, rel=0.05)


def test_an_element_that_is_alone_on_its_line_costs_what_the_line_does() -> None:
    known = longer("apart", 4, LINES_APART)
    pool, whole = layer("vgg16", "adaptive_avg_pool", batch=1), layer("vgg16", "linear3", batch=1)
    assert predict_seconds(pool, known).seconds > 1.2 * predict_seconds(pool, calibration()).seconds
    assert predict_seconds(whole, known).seconds == pytest.approx(predict_seconds(whole, calibration()).seconds)


def test_between_working_sets_costs_change_as_what_streams_does() -> None:
    """A probe at few sizes says nothing of where a cache ends; the curve of memory does."""
    known = slow_memory(SETS.curve[-4])
    near, far = SETS.curve[-6], SETS.curve[-1]
    at = known.rates._along((near, far), (1.0, 3.0))
    assert [at(size) for size in (near, SETS.curve[-4])] == pytest.approx([1.0, 1.0], abs=0.01)
    assert [at(size) for size in SETS.curve[-3:]] == pytest.approx([3.0] * 3, abs=0.01)
    wider = known.rates._along((near, far), (1.0, 3.0), 2.0)
    assert wider(SETS.curve[-4]) == pytest.approx(3.0, abs=0.01), "caches take in twice as much"


def measured(
    products: Sequence[ProductSignature], far: Sequence[Sequence[float]], seconds: Sequence[float]
) -> list[Measured]:
    """Single products whose calls take no time."""
    return [Measured(*each, 0.0) for each in zip(products, far, seconds, strict=True)]


def test_products_say_what_an_operand_from_afar_costs_and_what_none_shows_is_bounded() -> None:
    shapes = [(m, 64 * n, 64 * k) for m in (2, 3, 5, 8) for n, k in ((8, 9), (11, 7), (14, 13), (20, 17))]
    products = [ProductSignature(1, *shape, False, True, True, "float32") for shape in shapes]
    plain = [2e-11 * p.m * p.n * p.k + 5e-11 * p.n * p.k for p in products]
    ways = [(0.0, 1e-11 * p.n * p.k * (number % 2), 0.0) for number, p in enumerate(products)]
    fitted = fit(measured(products, ways, [a + 3 * b[1] for a, b in zip(plain, ways, strict=True)]))
    assert fitted.weights["b"]["b far"] == pytest.approx(3, rel=0.1)
    hardly = [(0.0, 1e-3 * way, 0.0) for _, way, _ in ways]
    fitted = fit(measured(products, hardly, [a + 9 * b[1] for a, b in zip(plain, hardly, strict=True)]))
    assert fitted.weights["b"]["b far"] <= MOST_FAR
    hardly = [(0.0, 1e-3 * way, 0.0) for _, way, _ in [(0.0, 1e-11 * p.n * p.k, 0.0) for p in products]]
    seconds = [a + 5000 * b[1] for a, b in zip(plain, hardly, strict=True)]
    fitted = fit(measured(products, hardly, seconds))
    assert [fitted.seconds(p, far)[0] for p, far in zip(products, hardly, strict=True)] == pytest.approx(seconds), (
        "what it may not be, others are"
    )


def test_products_of_few_columns_take_a_pass_for_each_power_of_two_in_them() -> None:
    """As long for four columns as for eight, since it is the other operand that takes it, and less for one or two;
    beyond whole tiles too, and more where rows begin at one place in a cache."""

    def product(m: int, n: int, k: int) -> ProductSignature:
        return ProductSignature(1, m, n, k, True, False, True, "float32")

    def seconds(p: ProductSignature) -> float:
        tiles = 1e-11 * p.m * (p.n // 16 * 16) * p.k
        passes = 0.6 * (p.n % 16).bit_count() + 0.5 * (p.n % 16 & 12).bit_count()
        return tiles + (1.2 + passes + 0.5 * (p.m % 1024 == 0)) * 1e-10 * p.m * p.k

    probed = [product(m, n, k) for m, k in ((1500, 300), (700, 900), (2048, 400)) for n in (3, 5, 6, 9, 12)]
    probed += [product(m, n, 200) for m in (4, 8, 12) for n in (1600, 2032)]
    fitted = fit(measured(probed, [(0.0,) * 3] * len(probed), [*map(seconds, probed)]))
    for p in (product(4096, 4, 500), product(1300, 8, 500), product(1300, 13, 700)):
        assert fitted.seconds(p, (0.0,) * 3)[0] == pytest.approx(seconds(p), rel=0.03), p


@pytest.mark.parametrize("begun", [3e6, 4e7])
def test_from_which_product_on_threads_share_the_work_is_found_by_measuring(begun: float) -> None:
    """Libraries begin them at sizes of their own; a fit of both would be off by what threads save."""
    random = np.random.default_rng(0)
    shapes = [[int(n) for n in np.exp(random.uniform(np.log(17), np.log(1500), 3))] for _ in range(120)]
    products = [ProductSignature(1, *shape, False, False, True, "float32") for shape in shapes]
    seconds = [
        1e-11 * multiply_adds(p) / (2 if multiply_adds(p) >= begun else 1) + 5e-6 * (multiply_adds(p) >= begun)
        for p in products
    ]
    packed = [each for each in measured(products, [(0.0,) * 3] * 120, seconds) if regime_of(each.product) == "packed"]
    least = begun_by_threads(packed)
    assert least == min(size for each in packed if (size := multiply_adds(each.product)) >= begun)
    assert begun_by_threads(packed[:8]) is None, "too few to tell"


def test_products_that_threads_share_are_fitted_apart() -> None:
    alone, threaded = ProductFit({"": {"one": 1.0}}, np.zeros(1)), ProductFit({"": {"one": 2.0}}, np.zeros(1))
    fitted = replace(alone, threaded=(1e6, threaded))
    small, large = (ProductSignature(1, n, n, n, False, False, True, "float32") for n in (99, 100))
    assert fitted.of(small) is fitted
    assert fitted.of(large) is threaded
    assert alone.of(large) is alone


def test_what_is_exposed_of_an_operand_is_a_share_and_what_its_rows_begin_with() -> None:
    products = [
        ProductSignature(1, 40, n, k, False, True, True, "float32") for n in (500, 900) for k in (300, 700, 3000)
    ]
    more = [(0.0, 1e-11 * p.n * p.k, 0.0) for p in products]
    extra = [(0.7 + 600 / p.k) * far[1] for p, far in zip(products, more, strict=True)]
    extra[0] *= 9  # what one product has longer for another reason moves nothing
    found = exposing(ProductFit({}, np.zeros(1)), products, more, extra).shares
    assert found[1] == pytest.approx((0.7, 600))
    assert found[0] == found[2] == (1.0, 0.0), "of what no product shows all is exposed"


def test_products_in_place_say_nothing_of_another_type() -> None:
    seconds = slow_memory().seconds
    placed_ones = {name: 3 * took for name, took in seconds.items() if name.startswith("cold product")}
    products = calibration(seconds=seconds | placed_ones).rates.products
    assert products.fit("packed", "float32").shares != ProductFit({}, np.zeros(1)).shares
    assert products.fit("packed", "float64").shares == ProductFit({}, np.zeros(1)).shares


def test_products_in_place_show_what_a_result_from_memory_costs() -> None:
    """Of gradients of weights from few rows, which are most that is touched."""
    known = slow_memory().rates
    for name, (op, distances) in known.placed.items():
        if name.startswith("cold ") and name.endswith(" result"):
            *read, written = known.products.operand_times(signature_of(op), distances[:3])
            assert written > 10 * sum(read) > 0, name
            assert distances[2] > SETS.beyond, "it was left alone for a pass"


def test_others_bring_nothing_only_where_that_fits_about_as_well() -> None:
    probes, least = 20, 1.0
    hardly, as_well = least + 0.9 * REPEATED * probes, least + 0.5 * TOLD * probes
    assert _middle({0.0: hardly, 1e9: least, 1.1e9: least}, probes) == pytest.approx(1.05e9, rel=0.01)
    assert _middle({0.0: as_well, 1e9: least, 1.1e9: least}, probes) == 0.0


def test_small_arrays_may_cost_more_than_larger_ones_that_caches_hold_too() -> None:
    """Where what loads ahead has hardly begun before they end."""
    seconds = dict(calibration().seconds)
    size = SETS.curve[2]
    seconds[f"curve add {size} float32"] = ALONE + 2 * (seconds[f"curve add {size} float32"] - ALONE)

    def elements(bytes_: int) -> float:
        program = program_of([op := elementwise("add", bytes_, "float32")], [op.output])
        return predict_seconds(program, calibration(seconds=seconds)).terms.compute / op.output.size

    assert elements(size) == pytest.approx(2 * ELEMENT, rel=0.02)
    assert elements(RESIDENT_BYTES) == pytest.approx(ELEMENT, rel=0.02)
