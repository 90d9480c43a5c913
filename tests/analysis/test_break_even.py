"""Where one cost passes another, and what moves a cost most: held against figures by hand and finite differences."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.cost.quantities import QUANTITIES
from tests.command import error_of, here, refused
from tests.profiles import examples
from tests.strategies import questions, sizes


@pytest.mark.parametrize(
    ("part", "equal"),
    # A token's forward FLOPs: projections 8 d², scores and mix 4 T d, the MLP 16 d².
    [("attention", 2 * 768), ("attention.scores", 8 * 768)],
)
def test_attention_passes_the_mlp_where_it_does_by_hand(part: str, equal: int) -> None:
    found = cm.break_even("gpt2-small", part, "mlp", for_="seq")
    (crossing,) = found.crossings
    assert (int(found), crossing.equal, crossing.leads) == (equal + 1, equal, part)
    assert f"{part} passes mlp at seq {equal + 1:,}" in str(found)


@pytest.mark.slow
@given(st.integers(1, 8), st.integers(1, 12), st.sampled_from(["sgd", "adamw"]))
@examples(40)
def test_order_changes_there_and_nowhere_before(width: int, depth: int, optimizer: str) -> None:
    model = cm.MLP(sizes=(7, *(4 * width,) * depth, 3))
    found = cm.break_even(model, "memory.activations", "memory.weights", for_="batch", optimizer=optimizer)
    assume(found)

    def leads(batch: int) -> bool:
        memory = cm.predict(model, batch=batch, optimizer=optimizer).memory
        return memory.activations > memory.weights

    assert [leads(batch) for batch in range(1, int(found) + 1)] == [False] * (int(found) - 1) + [True]


def test_what_never_crosses_is_false_and_says_so() -> None:
    found = cm.break_even("gpt2-small", "attention:params", "mlp:params", for_="width")
    assert not found
    assert "stays below mlp:params" in str(found)
    assert "stays below" in error_of(lambda: int(found))


def test_bad_crossings() -> None:
    assert "'attention'" in error_of(lambda: cm.break_even("gpt2-small", "attntion", "mlp", for_="seq"))
    assert "one unit" in error_of(lambda: cm.break_even("gpt2-small", "params", "mlp", for_="seq"))
    assert "no sum" in error_of(lambda: cm.break_even("gpt2-small", "mlp:memory.peak", "memory.peak", for_="seq"))
    assert "leave it out" in error_of(lambda: cm.break_even("gpt2-small", "attention", "mlp", for_="seq", seq=3))


def rounded(model: Any, batch: int, seq: int) -> bool:
    """Whether the rows that each expert computes are rounded up."""
    experts = None if isinstance(model, cm.MLP) else model.experts
    if experts is None or experts.capacity_factor is None:
        return False
    return (Fraction(str(experts.capacity_factor)) * experts.per_token * batch * seq / experts.count).denominator > 1


HALF_A_ROW = cm.Transformer(
    vocab=1,
    context=1,
    layers=1,
    width=1,
    heads=1,
    experts={"count": 1, "per_token": 1, "capacity_factor": 0.5},
)


@pytest.mark.slow
@given(questions(), st.sampled_from(QUANTITIES))
@examples(30)
@example((HALF_A_ROW, {"batch": 1, "seq": 1}), "params")
@example((HALF_A_ROW, {"batch": 2, "seq": 1}), "params")
def test_flops_are_proportional_to_the_batch_and_every_quantity_has_sensitivities(question: Any, quantity: str) -> None:
    model, asked = question
    if cm.predict(model, **asked).value(quantity):
        ranked = cm.sensitivity(model, quantity, **asked).ranked
        assert [abs(s.elasticity) for s in ranked] == sorted((abs(s.elasticity) for s in ranked), reverse=True)
    elasticity = cm.sensitivity(model, "flops.forward", **asked)["B"].elasticity
    assert 0 < elasticity <= 1
    assert elasticity == 1 or rounded(model, asked["batch"], asked.get("seq", 1))


@pytest.mark.slow
@given(sizes, st.integers(2, 60), st.sampled_from(["flops.total", "memory.activations", "pointwise_flops.forward"]))
@examples(40)
def test_slopes_are_central_differences_of_what_is_quadratic(batch: int, seq: int, quantity: str) -> None:
    model = cm.Transformer(vocab=50, context=64, layers=2, width=24, heads=4)
    below, above = (cm.predict(model, batch=batch, seq=seq + step).value(quantity) for step in (-1, 1))
    found = cm.sensitivity(model, quantity, batch=batch, seq=seq)["T"]
    here = cm.predict(model, batch=batch, seq=seq).value(quantity)
    assert found.slope == Fraction(above - below, 2)
    assert found.elasticity == Fraction(above - below, 2) * seq / here


OF_STREAMS = ("layers", "altup.streams", "altup.layer_width", "altup.laurel_rank", "altup.layer_vocab")
"""Sizes of a model with streams whose slope, where there is one, is the difference of two models."""


@pytest.mark.parametrize(
    "fields", [{}, {"fused_qkv": False, "shared_kv_layers": 2}, {"altup.sparse_pattern": [True, False]}]
)
def test_slopes_are_of_all_that_depends_on_a_size_or_are_not_given(fields: dict[str, Any]) -> None:
    """Blocks and streams that are listed one by one leave no formula in their number."""
    streams = {"streams": 3, "laurel_rank": 3, "layer_width": 5, "layer_vocab": 7}
    model = cm.Transformer(
        vocab=50, context=64, layers=4, width=8, heads=2, norm_placement="both", altup=streams, mlp="gated"
    )
    model = model.with_fields(fields)
    slopes = {one.symbol: one.slope for one in cm.sensitivity(model, "params", seq=4).ranked}
    step = 2 if "altup.sparse_pattern" in fields else 1  # a pattern is of two blocks
    for name in OF_STREAMS:
        more = model.with_fields({name: model.value(name) + step})
        grown = cm.predict(more, seq=4).params - cm.predict(model, seq=4).params
        assert slopes.get(model.LETTERS.get(name, ""), Fraction(grown, step)) == Fraction(grown, step), name
    assert "d_a" in slopes


def test_a_quantity_of_zero_has_no_elasticity() -> None:
    assert "is 0 here" in error_of(lambda: cm.sensitivity("gpt2-small", "memory.counters", optimizer="sgd"))
    assert "did you mean 'B'" in error_of(lambda: cm.sensitivity("gpt2-small", "flops.total")["b"])


@pytest.mark.slow
def test_the_shell_asks_as_python_does(capsys) -> None:
    found = cm.break_even("gpt2-small", "attention", "mlp", for_="seq")
    asked = ("break-even", "gpt2-small", "attention", "mlp", "--for", "seq")
    assert here(capsys, *asked) == (0, f"{found}\n", "")
    assert json.loads(here(capsys, *asked, "--json").out) == found.to_dict()
    assert here(capsys, "break-even", "gpt2-small", "attention:params", "mlp:params", "--for", "width").code == 1
    refused(here(capsys, "break-even", "gpt2-small", "attention", "mpl"), "'mlp'")
    ranked = cm.sensitivity("gpt2-small", "memory.peak", seq=64)
    assert here(capsys, "sensitivity", "gpt2-small", "memory.peak", "--seq", "64") == (0, f"{ranked}\n", "")
    refused(here(capsys, "sensitivity", "gpt2-small", "memory.peek"), "'memory.peak'")
