"""Closed forms from the literature, typed as their papers have them, against the formulas the code derives."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import sympy

from costmodel.analysis.predict import Prediction, predict
from costmodel.architectures.mlp import MLP
from costmodel.architectures.transformer import Transformer

B, T, L, V, d, h, n_ctx = sympy.symbols("B T L V d h n_ctx", integer=True, positive=True)


def gpt(**changes: Any) -> Transformer:
    """The model of Narayanan et al. 2021 and Korthikanti et al. 2022: GPT-2's, with dropout."""
    fields: dict[str, Any] = {"vocab": 101, "context": 32, "layers": 3, "width": 24, "heads": 4}
    dropouts = {f"{place}_dropout": 0.1 for place in ("embedding", "attention", "residual")}
    return Transformer(**fields | dropouts | changes)


def same(p: Prediction, quantity: str, expected: Any) -> bool:
    return sympy.simplify(p.formula(quantity) - expected) == 0


@pytest.mark.slow
def test_parameters_of_a_gpt() -> None:
    """Narayanan et al. 2021, eq. 2, and the final norm's two vectors, which it leaves out."""
    expected = 12 * L * d**2 * (1 + sympy.Rational(13, 12) / d + (V + n_ctx) / (12 * L * d)) + 2 * d
    assert same(predict(gpt(), batch=4), "params", expected)


def test_flops_of_a_gpt() -> None:
    """Narayanan et al. 2021, appendix: 24BTd² + 4BT²d a layer and 2BTdV for the logits, backward twice that."""
    forward = L * (24 * B * T * d**2 + 4 * B * T**2 * d) + 2 * B * T * d * V
    p = predict(gpt(), batch=4)
    assert same(p, "flops.forward", forward)
    assert same(p, "flops.total", 3 * forward)


def test_fused_attention_costs_half_a_forward_more() -> None:
    """Dao et al. 2022: backward takes five products of the scores' size to the forward pass's two."""
    eager, flash = (predict(gpt(), batch=4, attention=a) for a in ("eager", "flash"))
    scores = 2 * B * T**2 * d * L
    assert same(flash, "flops.backward", eager.formula("flops.backward") + scores)
    assert flash.flops.forward == eager.flops.forward


def korthikanti(element: int) -> Any:
    """Korthikanti et al. 2022, §4.1, a layer, term by term for elements of so many bytes and masks of one.

    In 16 bit they add up to sbh(34 + 5as/h).
    """
    attention = element * (1 + 2 + 1) * T * B * d + element * T * B * d + T * B * d
    square = (2 * element + 1) * h * T**2 * B
    mlp = element * (1 + 4 + 4) * T * B * d + T * B * d
    norms = 2 * element * T * B * d
    return attention + square + mlp + norms


def test_activations_of_a_layer() -> None:
    """What the paper counts, and 16 bytes a token it leaves out: two norms' mean and deviation in fp32."""
    assert sympy.expand(korthikanti(2) - T * B * d * (34 + 5 * h * T / d)) == 0
    models = [predict(gpt(layers=layers), batch=4, seq=16) for layers in (3, 4)]
    numbers = {B: 4, T: 16, d: 24, h: 4}
    layer = models[1].memory.activations - models[0].memory.activations
    assert layer == korthikanti(4).subs(numbers) + 16 * 4 * 16
    coefficient = sympy.expand(models[0].formula("memory.activations")).coeff(L)
    assert sympy.expand(coefficient - korthikanti(4) - 16 * B * T) == 0


@pytest.mark.parametrize(
    ("checkpoint", "a_layer"),
    [
        ("none", 34 * T * B * d + 5 * h * T**2 * B + 16 * T * B),
        ("selective", 34 * T * B * d + 16 * T * B),
        ("block", 2 * T * B * d),
    ],
)
def test_activations_of_a_layer_in_16_bit_with_recomputation(checkpoint: str, a_layer: Any) -> None:
    """Korthikanti et al. 2022, table 2, without parallelism; and the norms' statistics that it leaves out."""
    models = [predict(gpt(layers=n), batch=4, precision="bf16", checkpoint=checkpoint) for n in (3, 4)]
    layer = models[1].memory.activations - models[0].memory.activations
    assert layer == a_layer.subs({B: 4, T: 32, d: 24, h: 4})
    formula = sympy.expand(models[0].formula("memory.activations"))
    assert sympy.expand(formula.coeff(L) - a_layer) == 0


def test_grouped_query_attention_shrinks_two_projections() -> None:
    """Ainslie et al. 2023: keys and values have h_kv heads; all else is as before."""
    full, grouped = (predict(gpt(kv_heads=n)) for n in (4, 1))
    assert full.params - grouped.params == 3 * (2 * 3 * 6 * (24 + 1))


@pytest.mark.parametrize("sizes", [[784, 512, 10], [7, 3, 3, 3, 2], [5, 1]])
def test_an_mlp_by_hand(sizes: list[int]) -> None:
    """Weights and biases, two FLOPs a weight and row forward; backward twice that, less the first input's gradient."""
    p = predict(MLP(sizes=sizes), batch=32, loss=None)
    edges = list(pairwise(sizes))
    assert p.params == sum(a * b + b for a, b in edges)
    assert p.flops.forward == 2 * 32 * sum(a * b for a, b in edges)
    assert p.flops.backward == 2 * p.flops.forward - 2 * 32 * sizes[0] * sizes[1]
    assert p.memory.activations == 4 * 32 * sum(sizes[1:-1])


@pytest.mark.parametrize(
    ("precision", "bytes_a_weight"),
    [("fp32", 16), ("bf16", 8), ("fp16-master", 16), ("bf16-master", 16), ("bf16-master-fp32-gradients", 18)],
)
def test_memory_of_adam(precision: str, bytes_a_weight: int) -> None:
    """Rajbhandari et al. 2020, §3.1: weight, gradient and two moments; mixed 2 + 2 + 12; Megatron 2 + 4 + 12."""
    m = predict(gpt(), precision=precision, optimizer="adam").memory
    assert m.weights + m.masters + m.gradients + m.optimizer == bytes_a_weight * predict(gpt()).params
