"""Policies whose bytes can be counted by hand."""

from __future__ import annotations

import pytest

import costmodel as cm
from costmodel.architectures.mlp import MLP
from costmodel.training.precision import PRECISIONS, Precision

MODEL = MLP(sizes=(16, 32, 8), activation="relu", bias=False)


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
    casts = [call.y.storage for call in p.run.root.calls() if call.kind.kind == "cast"]
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
