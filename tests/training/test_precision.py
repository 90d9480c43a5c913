"""Policies whose bytes can be counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

import costmodel as cm
from costmodel.architectures.mlp import MLP
from costmodel.errors import SettingError
from costmodel.graph.kernel import Kernel
from costmodel.training.precision import PRECISIONS, Precision

MODEL = MLP(sizes=(16, 32, 8), activation="relu", bias=False)
GPT = cm.GPT(vocab=512, context=128, width=64, layers=2, heads=4)


def test_8_bit_casts_carry_a_scale_each() -> None:
    memory = cm.predict(MODEL, batch=4, precision="fp8", loss=None).memory
    # The input's copy and the second layer's input as 8-bit floats, each with its scale, and relu's result in bf16.
    assert memory.activations == (4 * 16 + 4) + (4 * 32 + 4) + 2 * 4 * 32
    # Backward reads the second weight alone: nobody wants the input's gradient.
    assert memory.casts == 32 * 8 + 4
    assert memory.weights == 2 * (16 * 32 + 32 * 8)
    assert memory.masters == 4 * (16 * 32 + 32 * 8)


@pytest.mark.parametrize("batch", [1, 7])
def test_a_policy_without_scales_has_none(batch: int) -> None:
    scaled = cm.predict(MODEL, batch=batch, precision="fp8", loss=None).memory
    plain = Precision("plain-fp8", weight="bf16", autocast="fp8", master="fp32")
    bare = cm.predict(MODEL, batch=batch, precision=plain, loss=None).memory
    assert scaled.casts - bare.casts == 4
    # Unscaled products stay in the type that they were cast to, so that relu's result needs no other copy.
    assert scaled.activations - bare.activations == 2 * 4 + 2 * batch * 32


def test_what_is_raised_to_fp32_has_no_scale() -> None:
    p = cm.predict(MODEL, batch=4, precision="fp8")
    casts = [call.y.storage for call in p.tape.root.calls() if call.layer.kind == "cast"]
    assert [(s.dtype, s.scales) for s in casts].count(("fp32", 0)) == 1
    assert {s.scales for s in casts if s.dtype == "fp8"} == {1}
    assert PRECISIONS["fp8"].made_in("fp8") == "bf16"


@pytest.mark.parametrize("inputs", [1, 127, 128, 129, 130, 255, 256, 257])
def test_a_group_of_int4_weights_that_is_not_full_has_a_scale_too(inputs: int) -> None:
    """Counted one by one (Frantar et al. 2023, §4): the weights of an output go into groups of 128, each with a scale.

    Two weights are a byte, and a scale is fp16.
    """
    outputs = 3
    groups = [range(start, min(start + 128, inputs)) for start in range(0, inputs, 128)]
    p = cm.predict(cm.MLP(sizes=(inputs, outputs), bias=False), mode="inference", precision="int4")
    assert p.memory.weights == -(-outputs * inputs // 2) + 2 * outputs * len(groups)


def _linear_kernels(batch: int, **settings: Any) -> list[Kernel]:
    p = cm.predict(cm.MLP(sizes=(256, 128), bias=False), batch=batch, mode="inference", **settings)
    return [task.kernel for task in p.on("a100-sxm-80gb").work.tasks]


def test_weights_that_are_unpacked_apart_are_read_written_and_read_again() -> None:
    """bitsandbytes, matmul_4bit: of one row a kernel that unpacks as it reads, of more the weight is written first."""
    few = 256 * 128 // 2 + 4 * 128 * (256 // 64)  # two weights a byte, and an fp32 scale for 64
    (alone,) = _linear_kernels(1, precision="nf4")
    assert alone.stored == "int4"
    assert alone.read == few + 2 * 256
    unpack, product = _linear_kernels(3, precision="nf4")
    assert (unpack.read, unpack.written, unpack.launches) == (few, 2 * 256 * 128, 1)
    assert product.stored is None
    assert product.read == 2 * 256 * 128 + 2 * 3 * 256
    (together,) = _linear_kernels(3, precision="int4")
    assert together.stored == "int4"


def test_what_is_unpacked_apart_takes_memory_while_it_is_multiplied() -> None:
    model = cm.MLP(sizes=(256, 128), bias=False)
    one, more = (cm.predict(model, batch=b, mode="inference", precision="nf4").memory.temporaries for b in (1, 3))
    assert one == 2 * 128  # the output alone
    assert more == 2 * (256 * 128 + 3 * 128)


def test_adapters_train_on_weights_that_are_unpacked_forward_and_backward() -> None:
    p = cm.predict("llama-3.2-1b", seq=16, precision="nf4", lora={"rank": 4, "targets": ("query",)}, attention="flash")
    phases = [row.phase for row in p.on("a100-sxm-80gb").kernels if "unpack" in row.kernel]
    assert {"forward", "backward"} == set(phases)


def test_transformer_engine_casts_linear_layers_of_blocks_alone() -> None:
    """Under Megatron-Core attention, norms and the head stay in 16 bits, with tensor parallelism too."""
    p = cm.predict(GPT, batch=2, seq=128, precision="fp8", runtime="megatron", tp=2, sp=True, accumulate=2)
    products = {
        call.name: {x.dtype for x in call.inputs} for call in p.tape.root.calls() if call.layer.kind == "linear"
    }
    assert products.pop("head") == {"bf16"}
    assert set(map(frozenset, products.values())) == {frozenset({"fp8"})}
    others = [call for call in p.tape.root.calls() if call.layer.kind in ("fused_attention", "layernorm")]
    assert {x.dtype for call in others for x in call.inputs} == {"bf16"}


def test_casts_of_transformer_engine_read_twice_and_write_both_orders_and_weights_once_a_step() -> None:
    seconds = {}
    for accumulate in (1, 4):
        asked = cm.predict(GPT, batch=2, seq=128, precision="fp8", runtime="megatron", accumulate=accumulate)
        tasks = [task for task in asked.on("h100-sxm").work.tasks if task.layer.endswith("mlp.down.weight.cast")]
        seconds[accumulate] = sum(task.times for task in tasks)
        tokens = accumulate * 2 * 128 * GPT.layers
        casts = [task for task in asked.on("h100-sxm").work.tasks if task.layer.endswith("mlp.down.cast")]
        assert sum(task.times * task.kernel.read for task in casts) == 2 * 2 * tokens * 4 * GPT.width
        assert sum(task.times * task.kernel.written for task in casts) == 2 * tokens * 4 * GPT.width
    assert seconds[1] == seconds[4] == 2 * GPT.layers


@pytest.mark.parametrize(
    ("precision", "reads", "bits", "scales"),
    [("fp8", 2, 8, 1), ("fp8-blockwise", 1, 8, 8), ("mxfp8", 1, 8, 8), ("nvfp4", 2, 4, 17)],
)
def test_recipes_of_transformer_engine_differ_by_bits_scales_and_how_often_an_operand_is_read(
    precision: Any, reads: int, bits: int, scales: int
) -> None:
    """Of 1,024 elements: 8 scales in fp32, 32 or 64 of a byte; one of all beside them in 4 bits."""
    p = cm.predict(GPT, batch=2, seq=128, precision=precision, runtime="megatron", tp=2, sp=True)
    casts = [task.kernel for task in p.on("b200-sxm").work.tasks if task.layer.endswith("mlp.down.cast")]
    tokens = 2 * 128 * 2 * GPT.width
    assert sum(kernel.read for kernel in casts) == reads * 2 * tokens
    assert sum(kernel.written for kernel in casts) == 2 * tokens * bits // 8
    assert PRECISIONS[precision].scales("fp4" if bits == 4 else "fp8", 1024) == scales


def test_other_policies_with_casts_are_refused_under_megatron() -> None:
    for name in ("bf16-autocast", Precision("own", weight="bf16", autocast="fp8", master="fp32", scaled=True)):
        with pytest.raises(SettingError, match="trains 16-bit weights with fp32 masters"):
            cm.predict(GPT, batch=2, seq=128, precision=name, runtime="megatron")
    with pytest.raises(SettingError, match="linear_alone is of what scaled makes"):
        Precision("own", weight="bf16", autocast="fp8", linear_alone=True).check_agreement("precision")
