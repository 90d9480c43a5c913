"""The head and its loss over chunks of rows: the same arithmetic, without the logits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.analysis.predict import Prediction
from costmodel.architectures.mlp import MLP
from costmodel.architectures.parts import Head
from costmodel.architectures.transformer import Transformer
from tests.command import here

TRANSFORMERS = st.builds(
    Transformer,
    vocab=st.integers(2, 4000),
    context=st.just(8),
    layers=st.integers(1, 3),
    width=st.just(8),
    heads=st.just(2),
    tied=st.booleans(),
    head=st.builds(Head, bias=st.booleans()),
)
PRECISION = st.sampled_from(["fp32", "bf16", "bf16-autocast", "fp8"])


def two(spec: Any, chunks: int, **settings: Any) -> tuple[Prediction, Prediction]:
    return cm.predict(spec, **settings), cm.predict(spec, loss_chunks=chunks, **settings)


@pytest.mark.slow
@given(TRANSFORMERS, st.integers(1, 4), st.integers(2, 8), PRECISION)
def test_it_is_the_same_work_at_another_time(spec: Transformer, batch: int, chunks: int, precision: str) -> None:
    whole, chunked = two(spec, chunks, batch=batch, precision=precision)
    assert chunked.params == whole.params
    assert chunked.flops.total == whole.flops.total
    moved = chunked.flops.forward - whole.flops.forward
    assert moved == 2 * (2 * batch * spec.context * spec.width * spec.vocab)
    assert chunked.memory.gradients == whole.memory.gradients
    assert chunked.memory.inputs == whole.memory.inputs


@pytest.mark.slow
@given(TRANSFORMERS, st.integers(1, 4), PRECISION)
def test_more_chunks_never_take_more(spec: Transformer, batch: int, precision: str) -> None:
    each = [cm.predict(spec, batch=batch, loss_chunks=n, precision=precision).memory for n in (2, 3, 4, 8)]
    assert len({memory.activations for memory in each}) == 1
    peaks = [memory.peak for memory in each]
    assert peaks == sorted(peaks, reverse=True)


@given(st.integers(2, 8), st.integers(16, 64))
def test_what_is_kept_of_the_head_does_not_grow_with_rows_times_classes(chunks: int, batch: int) -> None:
    few, many = MLP(sizes=(4, 8, 10)), MLP(sizes=(4, 8, 5000))
    small, large = (cm.predict(spec, batch=batch, loss_chunks=chunks).memory.activations for spec in (few, many))
    assert large - small == (5000 - 10) * (8 + 1) * 4  # the gradients of weight and bias


def test_the_head_s_weight_is_listed_where_it_is_used() -> None:
    p = cm.predict(Transformer(vocab=50, context=8, layers=1, width=8, heads=2, tied=False), loss_chunks=2)
    assert p.layers[-1].kind == "fused_linear_cross_entropy"
    assert p.layers[-1].params == 50 * 8
    assert "head" not in [row.name for row in p.layers]
    assert cm.Prediction.from_json(p.to_json()) == p


def test_a_large_vocabulary_no_longer_binds() -> None:
    whole, chunked = two("gpt2-small", 64, batch=8, seq=1024, checkpoint="block", attention="flash")
    logits = 8 * 1024 * 50257 * 4
    assert whole.memory.peak > 3 * logits
    assert chunked.memory.peak < whole.memory.peak - 2 * logits


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mode": "inference"}, "loss_chunks=4 is for training that ends in a loss"),
        ({"loss": None}, "loss_chunks=4 is for training that ends in a loss"),
        ({"loss": "mean_squared_error"}, "loss_chunks=4 is for loss 'cross_entropy'"),
        ({"model": "resnet50"}, "loss_chunks=4 is more than the 1 rows of logits: use at most 1"),
        ({"lora": {"rank": 2, "targets": ["head"]}}, "needs a model that ends in one linear layer"),
        ({"loss_chunks": 0}, "loss_chunks=0 is not between 1 and"),
        ({"loss_chunks": "8"}, "loss_chunks='8' is not a whole number"),
    ],
)
def test_what_it_cannot_do_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(cm.CostModelError, match=says):
        cm.predict(**{"model": "gpt2-small", "loss_chunks": 4, "seq": None, **settings})


def test_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    found = here(capsys, "predict", "gpt2-small", "--loss-chunks", "8", "--json")
    assert '"fused_linear_cross_entropy"' in found.out
