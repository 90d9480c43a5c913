"""The cheapest recomputation that fits: what is tried, what is chosen, and what is said when nothing fits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.analysis.checkpoint import PARTS, Candidate
from costmodel.architectures.mlp import MLP
from costmodel.architectures.transformer import Transformer
from tests.command import here, refused
from tests.profiles import examples

SPEC = Transformer(vocab=50, context=32, layers=9, width=16, heads=2)
QUESTION: dict[str, Any] = {"batch": 16, "optimizer": "sgd"}
ALL = cm.cheapest_checkpoint(SPEC, 1, **QUESTION).candidates
PEAKS = sorted(candidate.peak for candidate in ALL)


def test_every_way_that_a_transformer_has_is_tried() -> None:
    tried = {candidate.checkpoint for candidate in ALL}
    assert tried == {"none", "selective", ("mlp",), ("attention",), ("attention", "mlp"), "block", 2, "sqrt"}


@pytest.mark.parametrize(
    ("spec", "tried"),
    [
        (MLP(sizes=(8, 4, 2)), {"none", "block"}),
        (SPEC.model_copy(update={"layers": 2}), {"none", "selective", *PARTS[1:], "block", "sqrt"}),
        (SPEC.model_copy(update={"layers": 1}), {"none", "selective", *PARTS[1:], "block"}),
        (cm.load("resnet50"), {"none", "block", 2, "sqrt"}),
    ],
    ids=["MLP", "two blocks", "one block", "ResNet"],
)
def test_ways_that_a_model_does_not_have_are_left_out(spec: Any, tried: set[Any]) -> None:
    assert {candidate.checkpoint for candidate in cm.cheapest_checkpoint(spec, "1 GiB").candidates} == tried


@pytest.mark.parametrize("candidate", ALL, ids=str)
def test_a_candidate_is_what_predict_says(candidate: Candidate) -> None:
    p = cm.predict(SPEC, checkpoint=candidate.checkpoint, **QUESTION)
    assert (p.memory.peak, p.flops.recomputed) == (candidate.peak, candidate.recomputed_flops)


@pytest.mark.slow
@given(st.integers(PEAKS[0], PEAKS[-1] + 9) | st.sampled_from(PEAKS), st.integers(0, 1000))
@examples(40)
def test_the_chosen_fits_and_all_that_is_cheaper_does_not(budget: int, reserve: int) -> None:
    choice = cm.cheapest_checkpoint(SPEC, budget + reserve, reserve=reserve, **QUESTION)
    chosen = choice.chosen
    assert choice
    assert chosen is not None
    assert cm.predict(SPEC, checkpoint=chosen.checkpoint, **QUESTION).fits(budget + reserve, reserve=reserve)
    for other in choice.candidates:
        if (other.recomputed_flops, other.peak) < (chosen.recomputed_flops, chosen.peak):
            assert other.peak > budget


@pytest.mark.slow
@given(st.integers(1, PEAKS[0] - 1))
@examples(40)
def test_if_none_fits_it_says_by_how_much_the_smallest_misses(budget: int) -> None:
    choice = cm.cheapest_checkpoint(SPEC, budget, **QUESTION)
    assert not choice
    assert choice.chosen is None
    assert choice.to_dict()["margin"] == budget - PEAKS[0]
    assert "none fits" in str(choice)


def test_what_has_nothing_to_choose_is_refused() -> None:
    with pytest.raises(cm.CostModelError, match="checkpoint='block' is what is to be chosen"):
        cm.cheapest_checkpoint(SPEC, "1 GiB", checkpoint="block")
    with pytest.raises(cm.CostModelError, match="mode='inference' recomputes nothing"):
        cm.cheapest_checkpoint(SPEC, "1 GiB", mode="inference")
    with pytest.raises(cm.CostModelError, match="'24 XB' is not an amount of memory"):
        cm.cheapest_checkpoint(SPEC, "24 XB")


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("fits", "gpt2-small", "24GiB", "--batch", "32", "--seq", "512", "--choose")
    said = here(capsys, *asked)
    assert said.code == 0
    assert "checkpoint selective is the cheapest that fits" in said.out
    assert json.loads(here(capsys, *asked, "--json").out)["checkpoint"] == "selective"
    tight = here(capsys, "fits", "gpt2-small", "1GiB", "--choose")
    assert tight.code == 1
    assert "too much" in tight.out
    refused(here(capsys, *asked, "--checkpoint", "block"), "checkpoint='block' is what is to be chosen")
