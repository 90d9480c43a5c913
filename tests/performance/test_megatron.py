"""Kernels of Megatron-Core with Transformer Engine, and what its host starts."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import costmodel as cm
from costmodel.graph.kernel import Kernel
from costmodel.performance.laws import ADDED, TURNED, KernelModel
from costmodel.performance.megatron import ROUTING_LAUNCHES
from costmodel.performance.work import Task

SIZES = {"layers": 2, "width": 256, "heads": 4, "kv_heads": 4, "mlp_width": 128, "vocab": 512, "context": 128}
MODEL = cm.load("mixtral-8x7b", over=SIZES)


@cache
def tasks(**settings: Any) -> list[Task]:
    how = {
        "runtime": "megatron",
        "precision": "bf16-master",
        "attention": "flash",
        "accumulate": 4,
        "ep": 2,
        **settings,
    }
    return cm.predict(MODEL, batch=2, seq=128, dp=2, **how).on("h100-sxm").work.tasks


def of(name: str, phase: str = "forward", **settings: Any) -> list[Task]:
    return [task for task in tasks(**settings) if task.layer.endswith(name) and task.phase == phase]


def test_turned_features_and_rows_with_their_weights_move_in_one_kernel() -> None:
    (rotary,) = of("rotate_query")
    assert rotary.kernel.launches == 1
    assert rotary.kernel.read == rotary.kernel.written == 2 * 2 * 128 * 256
    assert not of("dispatch_weights") + of("collect")


def test_what_experts_made_is_read_where_it_is_and_its_gradient_written_once() -> None:
    (total,), (back,) = of("total"), of("collect", "backward")
    rows = 2 * 2 * 128 * 256  # bytes of all tokens
    assert (total.kernel.read, total.kernel.written) == (2 * rows, rows)
    assert (back.kernel.read, back.kernel.written, back.kernel.launches) == (rows, 2 * rows, 1)


def test_products_add_to_gradients_of_all_micro_batches_and_other_gradients_are_added() -> None:
    (product,) = [task for task in of("output", "backward") if "backward weight" in task.kernel.name]
    tokens, weight = 2 * 128 * 256 * 2, 256 * 256 * 2
    assert product.kernel.read == 2 * tokens + weight
    assert product.kernel.written == weight
    sums = {task.layer.rpartition(".")[0].rpartition(".")[2]: task.times for task in of(".weight", "backward")}
    assert "output" not in sums
    assert "gate_up" not in sums
    assert sums["attention_norm"] == sums["router"] == 4 * 2


def test_a_router_takes_small_kernels_and_is_not_cast() -> None:
    (routing,) = [task for task in of("top_k") if task.kernel.name == "routing"]
    assert routing.kernel.launches == ROUTING_LAUNCHES
    names = {task.layer.rpartition(".")[0].rpartition(".")[2] for task in of(".cast", precision="fp8")}
    assert {"qkv", "gate_up", "down"} <= names
    assert "router" not in names


def test_products_of_experts_are_started_one_by_one_and_their_casts_in_a_loop() -> None:
    (product,) = [task for task in of("gate_up", precision="mxfp8") if task.kernel.sort == "product"]
    (cast,) = of("gate_up.cast", precision="mxfp8")
    assert (product.starts(), cast.starts()) == ((4, 0, 0), (1, 3, 0))
    assert product.starts(("experts",)) == (0, 0, 4)
    assert product.starts(("attention",)) == (4, 0, 0)


def test_recorded_layers_take_the_host_less() -> None:
    p = cm.predict(MODEL, batch=2, seq=128, runtime="megatron", precision="bf16-master", attention="flash")
    whole, part, parts = (
        p.on("h100-sxm", stack=cm.Stack("own", "eager_seconds", recorded=recorded)).seconds
        for recorded in ((), ("attention",), ("attention", "mlp"))
    )
    assert whole > part > parts


@pytest.mark.parametrize("precision", ["fp8", "mxfp8"])
def test_tokens_are_gathered_as_they_are_cast_and_gradients_scattered_in_16_bits(precision: Any) -> None:
    p = cm.predict(MODEL, batch=2, seq=128, runtime="megatron", precision=precision, tp=2, sp=True, etp=1, ep=2, dp=1)
    sent = {(row.operation, row.dtype) for row in p.collectives if row.axis == "tp" and "qkv" in row.layer}
    assert sent == {("all_gather", "fp8"), ("reduce_scatter", "bf16")}


def test_blackwell_for_data_centres_needs_no_transposed_copies_of_casts_with_one_scale() -> None:
    names = {
        p: {task.kernel.name for task in tasks(precision=p) if "cast" in task.kernel.name} for p in ("fp8", "mxfp8")
    }
    assert names == {"fp8": {f"cast {TURNED}"}, "mxfp8": {"cast"}}
    both = Kernel(f"cast {TURNED}", "pointwise", 2**30, 2**31, 2**31, "bf16")
    models = [KernelModel(cm.load_machine(name)) for name in ("b200-sxm", "h100-sxm", "rtx-5090")]
    shares = [model.kernel_time(both) / model.kernel_time(both._replace(name="cast")) for model in models]
    assert shares == pytest.approx([0.75, 1, 1])


def test_a_stack_that_records_no_layer_of_the_model_is_refused() -> None:
    p = cm.predict(MODEL, batch=2, seq=128)
    with pytest.raises(cm.CostModelError, match="unknown layer that is recorded 'attenton': did you mean 'attention'"):
        p.on("h100-sxm", stack=cm.Stack("own", "eager_seconds", recorded=("attenton",)))


EAGER: dict[str, Any] = {
    "batch": 2,
    "seq": 128,
    "runtime": "megatron",
    "precision": "fp16-master",
    "attention": "eager",
}
"""Of a model whose scores are stored."""


def eager(heads: int, **settings: Any) -> list[Task]:
    model = cm.GPT(vocab=512, context=128, width=64 * heads, layers=2, heads=heads, residual_dropout=0.1)
    return cm.predict(model, **{**EAGER, **settings}).on("dgx-a100").work.tasks


@pytest.mark.parametrize("how", [{"dp": 2}, {"tp": 2}, {"tp": 2, "dp": 2, "zero": 1, "runtime": "deepspeed"}])
def test_scores_are_scaled_by_their_product_and_masked_and_normalised_in_one_kernel(how: dict[str, Any]) -> None:
    own = eager(8, **how)
    scores = 2 * 8 // how.get("tp", 1) * 128 * 128 * 2
    moved = [(task.kernel.read, task.kernel.written) for task in own if task.layer.endswith("softmax")]
    assert moved == [(scores // 2, scores), (scores, scores)]
    assert not [task for task in own if task.layer.endswith((".scale", ".mask")) or task.kernel.name == "matmul copy"]


def test_heads_that_are_no_multiple_of_four_are_normalised_by_five_kernels_in_fp32() -> None:
    own = [task.kernel for task in eager(3, dp=2) if task.layer.endswith("softmax") and task.phase == "forward"]
    scores = 2 * 3 * 128 * 128
    assert [kernel.name for kernel in own] == ["cast", "scale", "mask", "softmax", "cast"]
    assert (own[0].read, own[0].written, own[3].read, own[4].written) == (
        2 * scores,
        4 * scores,
        4 * scores,
        2 * scores,
    )
    seen = eager(3, dp=2, batch=4)
    assert [task.kernel.name for task in seen if task.layer.endswith("softmax")] == ["softmax", "softmax backward"]


def test_dropout_and_the_residual_are_one_kernel_that_writes_the_mask_too() -> None:
    [added] = [task.kernel for task in eager(8, dp=2) if task.layer.endswith("add_mlp") and task.phase == "forward"]
    whole = 2 * 128 * 512
    assert (added.read, added.written) == (2 * 2 * whole, 2 * whole + whole)
    assert not [task for task in eager(8, dp=2) if task.layer.endswith("mlp_dropout") and task.phase == "forward"]


@pytest.mark.parametrize(
    ("precision", "runtime", "names"),
    [
        (
            "fp16-master",
            "megatron",
            ["gradients of masters", "unscale gradients", "norm of gradients", "clip gradients"],
        ),
        ("bf16-master-fp32-gradients", "megatron", ["norm of gradients", "clip gradients"]),
        ("bf16-master", "deepspeed", ["gradients of masters", "norm of gradients", "clip gradients"]),
        ("bf16-master", "torch", ["copy out"]),
    ],
)
def test_gradients_are_got_ready_for_an_update_of_masters(precision: Any, runtime: Any, names: list[str]) -> None:
    p = cm.predict("gpt2-small", batch=2, seq=128, dp=2, zero=1, runtime=runtime, precision=precision)
    update = {task.kernel.name: task.kernel for task in p.on("dgx-a100").work.tasks if task.phase == "update"}
    assert [name for name in update if name not in ("update", "update weights")] == names
    if runtime == "megatron":  # of the gradients of a rank's share of masters, in fp32 by now
        share = update["clip gradients"].read // 4
        assert update["update"].read == (4 + 4 + 8) * share
        assert update["norm of gradients"].read == update["clip gradients"].written == 4 * share


def test_a_loss_that_is_composed_moves_logits_in_fp32_many_times() -> None:
    p = cm.predict(
        "gpt2-small", batch=8, seq=1024, runtime="megatron", precision="bf16-master", attention="flash", tp=2
    )
    fused, told, composed = (
        p.on("dgx-a100", stack=cm.Stack("own", "graph_seconds", loss=loss)).kernel_model
        for loss in (None, "fused", "composed")
    )
    [forward, back] = [task.kernel for task in p.on("dgx-a100").work.tasks if task.layer == "loss"]
    assert fused.kernel_time(forward) == told.kernel_time(forward)
    assert composed.kernel_time(forward) / fused.kernel_time(forward) == pytest.approx(38 / 6, rel=0.02)
    assert composed.kernel_time(back) / fused.kernel_time(back) == pytest.approx(14 / 6, rel=0.02)


@pytest.mark.parametrize("how", [{}, {"pp": 2, "accumulate": 4}])
def test_gradients_are_summed_after_backward_where_a_stack_says_so(how: dict[str, Any]) -> None:
    p = cm.predict("gpt2-small", batch=1, seq=1024, dp=4, runtime="megatron", precision="bf16-master", **how)
    beside, after = (
        p.on("dgx-a100", stack=cm.Stack("own", "graph_seconds", sums_beside=told)) for told in (True, False)
    )
    waited = [sum(of.exposed for of in time.collectives if of.axis == "dp") for time in (beside, after)]
    assert waited[0] < waited[1]
    assert 0 < after.seconds - beside.seconds <= waited[1] - waited[0]  # on processors that it takes


def test_plain_linear_layers_add_gradients_by_themselves_and_wait_for_sums_over_ranks() -> None:
    p = cm.predict(
        "gpt2-small",
        batch=4,
        seq=1024,
        tp=4,
        accumulate=2,
        runtime="megatron",
        precision="bf16-master",
        attention="flash",
    )
    joined, plain = (
        p.on("dgx-a100", stack=cm.Stack("own", "graph_seconds", linears=linears)) for linears in ("joined", "plain")
    )
    [added] = {task.kernel for task in joined.work.tasks if "qkv" in task.layer and ADDED in task.kernel.name}
    once = added.written / joined.kernel_model.bandwidth
    more = plain.kernel_model.kernel_time(added) - joined.kernel_model.kernel_time(added)
    c = joined.constants
    assert more == pytest.approx((3 - c.added_share) * once + added.launches * c.kernel_seconds)
    exposed = [sum(of.exposed for of in time.collectives if of.phase == "backward") for time in (joined, plain)]
    assert exposed[0] < exposed[1]


@pytest.mark.parametrize("how", [{"fsdp": 4, "runtime": "torch"}, {"dp": 4, "runtime": "torch"}, {"tp": 4, "sp": True}])
def test_nothing_runs_beside_anything_where_the_host_waits_for_each_kernel(how: dict[str, Any]) -> None:
    p = cm.predict("gpt2-small", **{"batch": 4, "seq": 1024, "runtime": "megatron", "precision": "bf16-master", **how})
    free, blocked = (
        p.on("dgx-a100", stack=cm.Stack("own", "graph_seconds", blocking=blocking)) for blocking in (False, True)
    )
    assert sum(of.exposed for of in free.collectives) < sum(of.seconds for of in free.collectives)
    for of in blocked.collectives:
        assert of.exposed == pytest.approx(of.seconds, rel=1e-9)


def test_one_device_runs_what_each_of_two_copies_does() -> None:
    how: dict[str, Any] = {"seq": 64, "runtime": "megatron", "precision": "bf16-master-fp32-gradients"}
    one, two = (cm.predict("gpt2-small", dp=copies, **how).on("h100-sxm") for copies in (1, 2))
    assert [phase.launches for phase in one.phases] == [phase.launches for phase in two.phases]
    assert one.seconds < two.seconds
