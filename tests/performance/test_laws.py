"""The laws of kernels: what holds for every machine and every size, and what has been measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.errors import SpecError, UnknownNameError
from costmodel.graph.kernel import Kernel, Product, Sort
from costmodel.hardware.catalogue import load_machine
from costmodel.hardware.machine import Machine, Peaks
from costmodel.performance.calibration import Calibration
from costmodel.performance.constants import TABLE, Constants, constant, typical
from costmodel.performance.intervals import interval
from costmodel.performance.laws import ADDED, KernelModel, KernelTable, Tier
from costmodel.training.layout import Layout
from costmodel.training.stacks import STACKS, Stack
from tests.benchmarks.bench_kernels import attention_kernels, scores, without_source

ARCHITECTURES = (
    "",
    "pascal",
    "volta",
    "turing",
    "ampere",
    "ada",
    "hopper",
    "blackwell",
    "cdna2",
    "cdna3",
    "unheard of",
)
SORTS: tuple[Sort, ...] = ("product", "convolution", "attention", "pointwise", "reduction", "gather")


def machine(scale: float = 1.0, bandwidth: float = 2e12, **fields: object) -> Machine:
    """About an A100, with its peaks times `scale`."""
    peak = {"fp32": 19.5e12 * scale, "tf32": 156e12 * scale, "fp16": 312e12 * scale, "int8": 624e12 * scale}
    given = {"architecture": "ampere", "category": "gpu", "processors": 108, **fields}
    return Machine(name="one", peak=peak, bandwidth=bandwidth, memory=80 * 10**9, **given)  # type: ignore[arg-type]


def kernel(sort: Sort, batch: Any, m: Any, n: Any, k: Any, dtype: str = "fp16", launches: int = 1) -> Kernel:
    """A kernel with the work and the bytes of a product of these sizes, or of its output alone."""
    size = 4 if dtype == "fp32" else 2
    products = sort in ("product", "convolution", "attention")
    flops = launches * (2 * batch * m * n * k if products else 8 * batch * m * n)
    read = launches * size * batch * (m * k + k * n if products else m * n)
    sizes = Product(batch, m, n, k) if products else None  # type: ignore[arg-type]
    return Kernel("kernel", sort, flops, read, launches * size * batch * m * n, dtype, launches, sizes)  # type: ignore[arg-type]


def briefly(on: Machine) -> Constants:
    """Constants of a machine in tests of milliseconds."""
    return typical(on).changed(sustained_watts=1.0)


def seconds(kernel: Kernel, on: Machine, tier: Tier = "typical", constants: Constants | None = None, **how: Any) -> Any:
    """Time of a machine for all launches of a kernel [s]."""
    return KernelModel(on, constants, tier=tier, **how).kernel_time(kernel)


sizes = st.integers(0, 3000) | st.sampled_from([1, 2, 7, 8, 64, 128, 4096, 12288, 50257])
sorts = st.sampled_from(SORTS)
dtypes = st.sampled_from(["fp16", "bf16", "fp32"])
machines = st.builds(
    machine,
    st.floats(1e-3, 1e3),
    st.floats(1e9, 1e14),
    architecture=st.sampled_from(ARCHITECTURES),
    processors=st.none() | st.integers(1, 400),
    chip=st.sampled_from(["", "GA100", "GA102"]),
    tdp=st.none() | st.floats(10, 1500),
    levels=st.sampled_from([(), [{"name": "L2", "size": 40 * 10**6}]]),
)


@given(machines, sorts, sizes, sizes, sizes, sizes, dtypes)
def test_no_kernel_is_faster_than_the_datasheet(on, sort, batch, m, n, k, dtype) -> None:
    one = kernel(sort, batch, m, n, k, dtype)
    assert 0 <= seconds(one, on, "ceiling") <= seconds(one, on)


@given(
    st.floats(1e-2, 1e2), st.floats(1.0, 1e3), st.floats(1e10, 1e13), st.floats(1.0, 1e3), sorts, sizes, sizes, sizes,
    dtypes, st.none() | st.floats(20, 1000), st.sampled_from(ARCHITECTURES),
)  # fmt: skip
def test_more_peak_or_bandwidth_is_never_slower(peak, more, bandwidth, wider, sort, m, n, k, dtype, tdp, name) -> None:
    one = kernel(sort, 3, m, n, k, dtype)
    slow = machine(peak, bandwidth, tdp=tdp, architecture=name)
    fast = machine(peak * more, bandwidth * wider, tdp=tdp, architecture=name)
    assert seconds(one, fast) <= seconds(one, slow) * (1 + 1e-9)


@given(st.sampled_from(["fp32", "tf32", "fp16", "int8"]), st.floats(1.0, 1e3), sorts, sizes, sizes, sizes, dtypes,
       st.none() | st.floats(20, 1000), st.sampled_from(ARCHITECTURES))  # fmt: skip
def test_one_peak_that_is_higher_makes_nothing_slower(raised, more, sort, m, n, k, dtype, tdp, name) -> None:
    one = kernel(sort, 3, m, n, k, dtype)
    slow = machine(tdp=tdp, architecture=name)
    fast = slow.model_copy(update={"peak": Peaks(**{**slow.peak.rates, raised: more * slow.peak.rates[raised]})})
    assert seconds(one, fast) <= seconds(one, slow) * (1 + 1e-9)


@given(machines, sorts, sizes, sizes, sizes, sizes, dtypes, st.sampled_from(["batch", "m"]))
def test_two_batches_take_at_most_twice_one(on, sort, batch, m, n, k, dtype, doubled) -> None:
    one = kernel(sort, batch, m, n, k, dtype)
    two = kernel(sort, 2 * batch if doubled == "batch" else batch, 2 * m if doubled == "m" else m, n, k, dtype)
    assert seconds(two, on) <= 2 * seconds(one, on) * (1 + 1e-9)


@given(machines, sorts, sizes, sizes, sizes, sizes, st.integers(0, 500), dtypes, st.sampled_from(["batch", "m"]))
def test_more_work_is_never_faster(on, sort, batch, m, n, k, more, dtype, grown) -> None:
    one = kernel(sort, batch, m, n, k, dtype)
    two = kernel(sort, batch + more if grown == "batch" else batch, m + more if grown == "m" else m, n, k, dtype)
    assert seconds(one, on) <= seconds(two, on) * (1 + 1e-9)


@given(sorts, sizes, sizes, sizes, st.integers(1, 50))
def test_without_limits_only_launches_are_left(sort, m, n, k, launches) -> None:
    on = machine(1e12, 1e24)
    one = kernel(sort, 2, m, n, k, launches=launches)
    start = kernel(sort, 0, 0, 0, 0, launches=launches)
    assert seconds(one, on) == pytest.approx(seconds(start, on), rel=1e-3)
    assert seconds(start, on) >= launches * typical(on).kernel_seconds


@given(machines, sorts, st.lists(st.tuples(sizes, sizes, sizes, sizes), min_size=1, max_size=5), dtypes)
def test_arrays_are_the_same_as_numbers(on, sort, rows, dtype) -> None:
    grid = [np.array(column, dtype=float) for column in zip(*rows, strict=True)]
    together = seconds(kernel(sort, *grid, dtype=dtype), on)
    assert together == pytest.approx([seconds(kernel(sort, *row, dtype=dtype), on) for row in rows], rel=1e-12)


@pytest.mark.parametrize("sort", SORTS)
def test_launches_of_equal_kernels_add_up(sort: Sort) -> None:
    on = machine()
    assert seconds(kernel(sort, 4, 100, 70, 64, launches=3), on) == pytest.approx(
        3 * seconds(kernel(sort, 4, 100, 70, 64), on)
    )


# Measured by LLMCompass (Zhang et al., ISCA 2024) on an A100, in milliseconds.
@pytest.mark.parametrize(
    ("m", "n", "k", "milliseconds"),
    [
        (64, 12288, 12288, 0.19),
        (256, 12288, 12288, 0.3185),
        (1024, 12288, 12288, 1.199),
        (8192, 12288, 12288, 8.6216),
        (8192, 4096, 4096, 1.021),
        (8192, 32768, 32768, 61.1346),
    ],
)
def test_products_on_an_a100_are_within_a_tenth_of_measured(m: int, n: int, k: int, milliseconds: float) -> None:
    on = machine(bandwidth=2.039e12, tdp=400, base_clock=1.275e9, boost_clock=1.41e9)
    took = seconds(kernel("product", 1, m, n, k), on, constants=briefly(on))
    assert took == pytest.approx(milliseconds / 1e3, rel=0.1)


def test_a_wave_that_is_not_full_costs_as_one_that_is() -> None:
    on = machine()
    full, beyond = (seconds(kernel("product", 1, 128 * tiles, 128, 65536), on) for tiles in (216, 220))
    assert beyond > full * 1.02


def test_small_boards_sustain_less_than_their_boost_clock() -> None:
    small = Machine(name="small", peak={"fp16": 65e12, "fp32": 8.1e12}, bandwidth=320e9, memory=16 * 10**9, tdp=70,
                    architecture="turing", base_clock=585e6, boost_clock=1590e6)  # fmt: skip
    one = kernel("product", 1, 8, 8, 8)
    limited, free = (KernelModel(on, briefly(on)).units(one) for on in (small, machine(tdp=400)))
    assert 585 / 1590 <= limited.sustained / limited.peak < 0.65
    assert free.sustained / free.peak > 0.95


def test_a_board_that_is_let_draw_less_leaves_products_less_than_its_share() -> None:
    """A GB300 does 617 TFLOP/s on 500 W and 1,600 to 2,174 on 1,400 (facebookexperimental/triton pull request 2023):
    what follows no clock is as much as before."""
    whole = load_machine("gb300-nvl72")
    limited = whole.with_fields({"power_limit": "500 W"})
    one = kernel("product", 1, 8192, 8192, 8192, "bf16")
    rates = [one.flops / seconds(one, on) for on in (whole, limited)]
    assert rates[1] < 0.45 * rates[0]
    waiting, most = (KernelModel(on).waiting_watts for on in (whole, limited))
    assert waiting == most < 500
    assert KernelModel(limited).kernel_joules(one, seconds(one, limited)) <= 500 * seconds(one, limited) * (1 + 1e-12)


def test_rows_that_are_not_multiples_of_16_bytes_are_slower() -> None:
    on = machine()
    even = seconds(kernel("product", 1, 4096, 4096, 4096), on)
    assert (
        even < seconds(kernel("product", 1, 4096, 4092, 4096), on) < seconds(kernel("product", 1, 4096, 4095, 4096), on)
    )
    assert seconds(kernel("product", 1, 4095, 4096, 4096), on) <= even
    of_weight = kernel("product", 1, 4095, 4096, 4096)._replace(name="linear backward weight")
    assert seconds(of_weight, on) > 1.5 * even
    assert seconds(of_weight._replace(sizes=Product(1, 4096, 4096, 4095)), on) <= even


def test_a_compiler_pads_rows_where_that_is_faster() -> None:
    on, one = machine(), kernel("product", 1, 16384, 50257, 768)
    odd, even = (seconds(kernel("product", 1, 16384, n, 768), on) for n in (50257, 50304))
    assert even < seconds(one, on, stack=STACKS["compiled"]) < odd


def test_depthwise_convolutions_are_not_padded_to_tiles() -> None:
    depthwise = kernel("convolution", 512, 128 * 28 * 28, 1, 9)
    assert seconds(depthwise, machine()) < 5 * seconds(depthwise, machine(), "ceiling")


def test_single_precision_products_run_on_vector_units_unless_rounding_is_allowed() -> None:
    one = kernel("product", 1, 4096, 4096, 4096, "fp32")
    assert seconds(one, machine()) > 5 * seconds(one, machine(), allow_tf32=True)
    convolution = one._replace(sort="convolution")
    assert seconds(convolution, machine()) == seconds(convolution, machine(), allow_tf32=True)


@pytest.mark.parametrize(
    ("name", "stack", "runtime", "expected"),
    [
        ("a100-sxm-80gb", {}, "torch", "flash-2"),
        ("a100-sxm-80gb", {}, "megatron", "flash-2"),
        ("a100-sxm-80gb", {"attention": "flash-3"}, "torch", "flash-2"),
        ("h100-sxm", {}, "torch", "flash-2"),
        ("h100-sxm", {}, "megatron", "cudnn"),
        ("h100-sxm", {"attention": "cudnn"}, "torch", "cudnn"),
        ("h100-sxm", {"attention": "flash-3"}, "megatron", "flash-3"),
        ("h100-sxm", {"attention": "flash-1"}, "torch", "flash-1"),
        ("b200-sxm", {}, "torch", "cudnn"),
        ("b200-sxm", {"attention": "flash-3"}, "torch", "cudnn"),
        ("rtx-5090", {"attention": "cudnn"}, "torch", "flash-2"),
        ("rtx-4090", {}, "torch", "flash-2"),
        ("t4", {}, "torch", "efficient"),
        ("v100-sxm2-16gb", {"attention": "flash-2"}, "torch", "efficient"),
        ("mi300x", {"attention": "flash-3"}, "torch", "fused"),
        ("tpu-v4", {}, "torch", "fused"),
    ],
)
def test_attention_is_the_kernel_that_machine_and_stack_have(name, stack, runtime, expected) -> None:
    model = KernelModel(load_machine(name), stack=Stack("own", 0.0, **stack), layout=Layout(runtime=runtime))
    one = kernel("attention", 8, 1024, 1024, 64, "bf16")
    assert model.attention_of(one) == expected
    expected = "fused" if expected == "fused" else "efficient"  # FlashAttention takes 16 bits alone
    assert model.attention_of(one._replace(dtype="fp32")) == expected


def test_attention_without_hopper_s_instructions_gains_as_little_there_as_the_next_generation() -> None:
    row = {"batch": 4, "heads": 16, "tokens": 4096, "size": 128, "causal": False, "pass": "forward", "teraflops": 1}
    [one], _ = attention_kernels(row)
    gains = [
        seconds(one, load_machine("a100-sxm-80gb"), stack=stack) / seconds(one, load_machine("h100-sxm"), stack=stack)
        for stack in (Stack("old", 0.0, attention="flash-1"), Stack("new", 0.0, attention="flash-2"))
    ]
    assert gains[0] == pytest.approx(gains[1], rel=0.15)


def test_a_norm_composed_of_operators_takes_as_much_longer_as_measured() -> None:
    """PyTorch's pull request 153666: one kernel is around 9 times as fast. Compilers write one kernel of it anyway."""
    one, on = kernel("reduction", 1, 16384, 4096, 1, "bf16")._replace(name="rmsnorm"), load_machine("h100-sxm")
    composed = Stack("old", 0.0, norms="composed")
    assert seconds(one, on, stack=composed) / seconds(one, on) == pytest.approx(9, rel=0.15)
    assert seconds(one._replace(name="layernorm"), on, stack=composed) == seconds(one._replace(name="layernorm"), on)
    assert seconds(one, on, stack=Stack("compiled", 0.0, fuses=True, norms="composed")) == seconds(one, on)
    step = cm.predict("llama-3.1-8b", batch=1, seq=2048, precision="bf16")
    older = step.on(on, stack=Stack("eager", "eager_seconds", norms="composed"))
    assert older.seconds > 1.03 * step.on(on).seconds


def test_cross_entropy_of_one_kernel_each_way_passes_over_logits_half_as_often() -> None:
    """Apex and FlashAttention read logits twice and write a gradient; operators have a log-softmax and zeros too."""
    on, step = load_machine("h100-sxm"), cm.predict("gpt2-small", batch=16, seq=1024, precision="bf16")
    composed, fused = (
        [row.seconds for row in step.on(on, stack=Stack("own", 0.0, loss=loss)).kernels if row.layer == "loss"]
        for loss in ("composed", "fused")
    )
    assert sum(fused) / sum(composed) == pytest.approx(3 / 6, rel=0.05)
    assert all(f <= c for f, c in zip(fused, composed, strict=True))
    split = kernel("reduction", 1, 16384, 50257, 1, "bf16")._replace(name="split_cross_entropy")
    assert seconds(split, on, stack=Stack("own", 0.0, loss="fused", logged=2)) == seconds(split, on)
    model = KernelModel(on, stack=Stack("own", 0.0, loss="fused"))
    whole = kernel("reduction", 1, 16384, 50257, 1, "bf16")._replace(name="cross_entropy")
    table = KernelTable([split, whole]).times(model)  # one law apart from the other
    assert table == pytest.approx([model.kernel_time(split), model.kernel_time(whole)])
    assert model.ceiling_time(whole) == pytest.approx(0.5 * KernelModel(on).ceiling_time(whole))


@pytest.mark.parametrize(("dtype", "cast"), [("fp32", 0), ("bf16", 1)])
def test_each_cross_entropy_for_the_log_is_one_more_in_fp32(dtype: str, cast: int) -> None:
    """``torch.nn.CrossEntropyLoss`` under autocast: logits of 16 bits are cast first. Backward has none."""
    on = load_machine("a100-sxm-80gb")
    loss, raised = (
        kernel("reduction", 1, 16384, 50257, 1, own)._replace(name="cross_entropy") for own in (dtype, "fp32")
    )
    more = [seconds(loss, on, stack=Stack("own", 0.0, logged=n)) - seconds(loss, on) for n in (1, 2)]
    copies = kernel("pointwise", 1, 16384, 50257, 1, "bf16")._replace(written=raised.written)
    assert more[0] == pytest.approx(seconds(raised, on) + cast * seconds(copies, on), rel=0.01)
    assert more[1] == pytest.approx(2 * more[0])
    for name in ("cross_entropy backward", "layernorm"):
        other = loss._replace(name=name)
        assert seconds(other, on, stack=Stack("own", 0.0, logged=2)) == seconds(other, on)


def test_a_host_that_waits_for_each_kernel_adds_what_it_takes_for_a_launch() -> None:
    """On one device, and in stages of a pipeline whose ranks wait for each other."""
    blocking = Stack("own", 1e-4, blocking=True)
    one = kernel("pointwise", 1, 4096, 4096, 1, "bf16")._replace(launches=3)
    on = load_machine("a100-sxm-80gb")
    assert seconds(one, on, stack=blocking) == pytest.approx(seconds(one, on, stack=Stack("own", 1e-4)) + 3e-4)
    for layout in ({}, {"pp": 2, "accumulate": 2, "runtime": "megatron"}):
        step = cm.predict("gpt2-small", batch=4, seq=512, **layout)
        waits, ahead = (step.on(on, stack=stack) for stack in (blocking, Stack("own", 1e-4)))
        assert waits.seconds > 1.2 * ahead.seconds
        assert waits.seconds >= sum(phase.host_seconds for phase in waits.phases)


def test_a_board_that_may_draw_less_is_in_the_range_of_its_products() -> None:
    """cuBLAS of 8,192 squared on a B200 of 750 W: 1,088 TFLOP/s (facebookexperimental/triton, pull request 854)."""
    on = load_machine("b200-sxm")
    one, watts = kernel("product", 1, 8192, 8192, 8192, "bf16"), constant("product_watts", on)

    def teraflops(share: float, watts: float) -> float:
        constants = typical(on).changed(power_limit=share, product_watts=watts)
        return one.flops / seconds(one, on, constants=constants) / 1e12

    assert teraflops(0.75, watts.high) < 1088 < teraflops(0.75, watts.typical) < 0.9 * teraflops(1.0, watts.typical)
    measured = interval(lambda constants: seconds(one, on, constants=constants), on)
    assert measured.low < one.flops / 1088e12 < measured.high
    assert constant("power_limit", on).low == 0.75
    assert constant("power_limit", load_machine("a100-sxm-80gb")).low == 1.0


def test_kernels_of_attention_take_as_long_as_measured() -> None:
    """Rows of fifteen publications on seven machines, forward and backward, causal or not, of 512 to 32,768 tokens."""
    by_kernel = {
        names: [scored.ratio for scored in rows]
        for names, rows in scores(lambda what, row: (what, row["machine"], row.get("kernel"))).items()
        if names[0] == "attention"
    }
    every = [abs(ratio - 1) for ratios in by_kernel.values() for ratio in ratios]
    assert len(every) > 100
    assert sum(every) / len(every) < 0.08
    assert all(abs(sum(ratios) / len(ratios) - 1) < 0.15 for ratios in by_kernel.values())


def test_short_causal_attention_is_slower_than_long_by_more_than_its_padding() -> None:
    """FlashAttention-3 on H100 attains 292 TFLOP/s with 512 tokens and 616 with 16,384 (Shah et al. 2024, figure 5)."""
    on, stack = load_machine("h100-sxm"), Stack("own", 0.0, attention="flash-3")

    def rate(tokens: int) -> float:
        batch, size = 16 * (16384 // tokens), 128
        work = 2 * batch * tokens * tokens * size
        moved = 2 * batch * tokens * size
        one = Kernel("one", "attention", work, 3 * moved, moved, "bf16", 1, Product(batch, tokens, tokens, size))
        return work / seconds(one, on, stack=stack) / 1e12

    assert rate(512) == pytest.approx(292, rel=0.1)
    assert rate(16384) == pytest.approx(616, rel=0.1)


def test_graphs_take_the_host_less_time_than_compiled_code_and_that_less_than_eager() -> None:
    stacks = [STACKS[name] for name in ("cuda-graphs", "compiled", "eager")]
    times = [KernelModel(machine(), stack=stack).launch_seconds for stack in stacks]
    assert times == sorted(times)
    assert times[-1] == typical(machine()).eager_seconds


def test_the_host_starts_megatron_s_layers_as_slowly_under_deepspeed() -> None:
    layouts = [Layout(tp=tp, runtime=runtime) for runtime, tp in (("megatron", 1), ("deepspeed", 2), ("deepspeed", 1))]
    megatron, split, whole = (KernelModel(machine(), layout=layout).launch_seconds for layout in layouts)
    assert megatron == split == typical(machine()).megatron_seconds
    assert whole == typical(machine()).eager_seconds


@pytest.mark.parametrize("name", TABLE)
def test_every_constant_has_a_range_and_a_source(name: str) -> None:
    assert "" in TABLE[name]
    for of in TABLE[name].values():
        assert 0 <= of.low <= of.typical <= of.high
        assert of.source.title
        assert of.evidence


@given(machines, sorts, sizes, sizes, sizes)
def test_an_interval_holds_its_middle_and_each_effect(on, sort, m, n, k) -> None:
    one = kernel(sort, 2, m, n, k)
    least = seconds(one, on, "ceiling")
    found = interval(lambda c: seconds(one, on, "calibrated", c), on, least=least)
    assert least <= found.low <= found.typical <= found.high
    for effect in found.effects:
        assert found.low * (1 - 1e-9) <= effect.low <= effect.high <= found.high * (1 + 1e-9)


def test_one_constant_moves_all_kernels_together() -> None:
    """Ten equal products are as uncertain as one: their errors do not average out."""
    one = kernel("product", 1, 8192, 8192, 8192)
    a = interval(lambda c: seconds(one, machine(), "calibrated", c), machine())
    ten = interval(lambda c: 10 * seconds(one, machine(), "calibrated", c), machine())
    assert ten.high / ten.typical == pytest.approx(a.high / a.typical)
    assert {effect.name for effect in a.effects[:2]} == {"conditions", "product_share"}


def test_what_is_measured_narrows_an_interval() -> None:
    one = kernel("product", 1, 8192, 8192, 8192)
    on = machine()
    wide = interval(lambda c: seconds(one, on, "calibrated", c), on)
    measured = Calibration(machine="one", constants={"product_share": 0.9, "conditions": 1.0}).on(on)
    narrow = interval(
        lambda c: seconds(one, on, "calibrated", c), on, known=["product_share", "conditions"], at=measured
    )
    assert narrow.high / narrow.low < wide.high / wide.low


def test_an_anchored_time_is_known_better_than_a_free_one() -> None:
    """The ratio of two times, of which one is measured: constants that move both alike cancel."""
    on, one, other = machine(), kernel("product", 1, 8192, 8192, 8192), kernel("product", 1, 8192, 8192, 4096)
    free = interval(lambda c: seconds(other, on, "calibrated", c), on)
    anchored = interval(lambda c: seconds(other, on, "calibrated", c) / seconds(one, on, "calibrated", c), on)
    assert anchored.high / anchored.low < (free.high / free.low) ** 0.3


def test_a_calibration_is_read_back(tmp_path: Path) -> None:
    found = Calibration(machine="one", constants={"product_share": 0.9}, measured=["4096 x 4096: 0.5 ms"])
    path = tmp_path / "one.yaml"
    path.write_text(found.dump(), encoding="utf-8")
    assert Calibration.load(path) == found
    assert found.on(machine()).product_share == 0.9
    assert found.on(machine()).vector_share == typical(machine()).vector_share


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("machine: one\nconstants: {product_shar: 0.9}", "line 2.*did you mean 'product_share'"),
        ("machine: one\nconstants:\n  product_share: -1", "line 3.*constants.product_share: -1 is no positive number"),
        ("machine: one\nconstants: {product_share: fast}", "'fast' is no positive number"),
        ("machine: one\nconstants: 3", "is not a mapping"),
        ("constants: {product_share: 0.9}", "field machine is missing"),
        ("- one", "is not a mapping of fields: start with a line such as 'machine: h100-sxm'"),
    ],
)
def test_a_calibration_that_is_wrong_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError, match=message) as refused:
        Calibration.load(path)
    assert "\n" not in str(refused.value)


def test_a_measured_machine_reaches_its_figures() -> None:
    host = Machine(name="host", peak={"fp32": 1e12}, bandwidth=1e10, memory=10**10, category="cpu", measured=True,
                   call_overhead=1e-6, tdp=10)  # fmt: skip
    product = kernel("product", 1, 4096, 4096, 4096, "fp32")
    assert seconds(product, host) == pytest.approx(product.flops / 1e12, rel=0.05)
    assert seconds(kernel("pointwise", 1, 0, 0, 0), host) == pytest.approx(1e-6)
    assert KernelModel(host).launch_seconds == 0


def test_constants_that_there_are_not_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="constant"):
        constant("speed", machine())


def test_products_take_as_long_as_measured() -> None:
    """Square ones on fifteen machines in four types, tall ones on A100 and MI210, flat ones on H100, those of models.

    Left out are those that SimuMax measured on B200: some as fast as elsewhere, those of the largest work a third
    slower, as where power is limited to less than the board's, of which it says nothing.
    """
    by_machine: dict[str, list[float]] = {}
    for (what, name, source), rows in scores(lambda what, row: (what, row["machine"], row["source"])).items():
        if what == "products" and (name != "b200-sxm" or "SimuMax" not in source):
            by_machine.setdefault(name, []).extend(scored.ratio - 1 for scored in rows)
    every = [error for errors in by_machine.values() for error in errors]
    assert len(every) > 120
    assert sum(map(abs, every)) / len(every) < 0.06
    assert {name for name, errors in by_machine.items() if abs(sum(errors) / len(errors)) > 0.1} == set()


def test_products_in_batches_of_unaligned_rows_ran_on_vector_units() -> None:
    """As PyTorch's issue 83272 measured 384 products on A100 with CUDA 11.6, at 12.2 TFLOP/s."""
    new, old = (Stack(units, 0.0, unaligned=units) for units in ("matrices", "vectors"))
    on = load_machine("a100-sxm-80gb")
    one = kernel("product", 384, 1024, 140, 1024, "bf16")
    assert one.flops / seconds(one, on, stack=old) / 1e12 == pytest.approx(12.2, rel=0.15)
    assert seconds(one, on, stack=new) < 0.2 * seconds(one, on, stack=old)
    for same in (kernel("product", 1, 1024, 140, 1024, "bf16"), kernel("product", 384, 1024, 128, 1024, "bf16")):
        assert seconds(same, on, stack=old) == seconds(same, on, stack=new)


def test_products_of_experts_take_as_long_as_measured() -> None:
    """Of two models of eight: on A100 libraries have slower kernels for these than for one product."""
    by_machine = {name: rows for (what, name), rows in scores(lambda what, row: (what, row["machine"])).items()
                  if what == "experts"}  # fmt: skip
    for rows in by_machine.values():
        assert sum(abs(row.ratio - 1) for row in rows) / len(rows) < 0.12
        assert all(row.within for row in rows)
    assert [*by_machine] == ["a100-sxm-80gb", "h100-sxm"]


def test_products_on_end_are_slower_than_in_tests_of_milliseconds_where_power_is_short() -> None:
    """Of TensorRT-LLM's on a board: those of 10 to 90 ms, in fp8 too, are as far off as those of less than 1 ms."""
    by_length = scores(lambda what, row: (row["machine"], row.get("sustained", False)))
    long = {name: rows for (name, sustained), rows in by_length.items() if sustained}
    assert len(long) == 9
    assert all(abs(sum(row.ratio for row in rows) / len(rows) - 1) < 0.13 for rows in long.values())
    assert sum(row.within for rows in long.values() for row in rows) > 0.9 * sum(map(len, long.values()))
    one = kernel("product", 1, 8192, 16384, 16384, "bf16")
    slower = {}
    for name in ("v100-sxm2-16gb", "a100-sxm-80gb", "h100-sxm", "b200-sxm", "rtx-pro-6000-server", "h20"):
        on = load_machine(name)
        slower[name] = seconds(one, on) / seconds(one, on, constants=briefly(on))
    assert slower["b200-sxm"] > slower["h100-sxm"] > slower["a100-sxm-80gb"] > 1.03
    assert {name for name, times in slower.items() if times == 1} == {"v100-sxm2-16gb", "rtx-pro-6000-server", "h20"}


def test_products_that_add_to_what_is_there_are_slower_the_fewer_rows_they_have() -> None:
    """SimuMax's A100 of 300 W: 0.75 of the peak with 33,024 rows, 0.71 with 4,096, 0.52 for experts of 616 rows."""
    by_kind = scores(lambda what, row: (row["machine"], "adds" in row))
    errors = [scored.ratio - 1 for scored in by_kind["a100-pcie-80gb", True]]
    assert len(errors) > 15
    assert sum(map(abs, errors)) / len(errors) < 0.05
    on, more = load_machine("a100-pcie-80gb"), []
    for k in (616, 4096, 33024):
        one = kernel("product", 1, 4096, 4096, k, "bf16")
        added = one._replace(name=f"{one.name} {ADDED}", read=one.read + 4 * 4096**2, written=4 * 4096**2)
        more.append(seconds(added, on) / seconds(one, on))
    assert more == sorted(more, reverse=True)
    assert more[0] > 1.2
    assert more[-1] < 1.01


def test_a_publication_is_left_out_with_all_that_was_read_from_it() -> None:
    """A constant that another publication gives stays, one of this alone is that of chips whose family is unknown."""
    on = load_machine("rtx-4090")
    usual, left = typical(on), without_source(on, "zzc0721/torch-performance-test-data")
    assert left.product_share == TABLE["product_share"][""].typical != usual.product_share
    assert left.bandwidth_share == usual.bandwidth_share
    assert left.misaligned == usual.misaligned


def test_processors_that_do_fewer_products_a_clock_are_fed_from_smaller_tiles() -> None:
    """An H20 is an H100 with a quarter of the products a clock and processor: small tiles cost it less."""
    slower = {}
    for name in ("h100-sxm", "h20"):
        on = load_machine(name)
        small, large = (kernel("product", 16 if n == 64 else 1, n, n * 64, 8192, "bf16") for n in (64, 1024))
        slower[name] = seconds(small, on) / small.flops / (seconds(large, on) / large.flops)
    assert slower["h20"] < slower["h100-sxm"]


def test_narrow_products_lose_power_and_not_rate() -> None:
    """fp8 is less than twice bf16 where the board throttles (H100 0.71 against 0.80 of peak), and twice where not."""
    gains = {}
    for name in ("h100-sxm", "h20"):
        on = load_machine(name)
        wide, narrow = (KernelModel(on, briefly(on)).units_of(dtype).rate for dtype in ("bf16", "fp8"))
        gains[name] = narrow / wide
    assert gains["h100-sxm"] == pytest.approx(2 * 0.71 / 0.8, rel=0.03)
    assert gains["h20"] == pytest.approx(2, rel=0.01)


def test_one_row_is_read_faster_than_many_where_kernels_of_matrices_stream_badly() -> None:
    one, many = (kernel("product", 1, m, 12288, 12288) for m in (1, 32))
    ratio = {
        name: seconds(many, load_machine(name)) / seconds(one, load_machine(name))
        for name in ("mi210", "v100s-pcie-32gb")
    }
    assert ratio["mi210"] > 1.4
    assert ratio["v100s-pcie-32gb"] < 1.1


def test_packed_weights_are_unpacked_no_faster_than_processors_can() -> None:
    packed = kernel("product", 1, 1, 12288, 12288)._replace(stored="int4", read=12288 * 12288 // 2)
    slow, fast = (typical(load_machine("h100-sxm")).changed(unpacked_weights=n) for n in (4.0, 40.0))
    at = [seconds(packed, load_machine("h100-sxm"), constants=c) for c in (slow, fast)]
    assert at[0] > 1.5 * at[1]
    assert at[0] == pytest.approx(12288**2 / (4 * 132 * 1.98e9), rel=0.1)
