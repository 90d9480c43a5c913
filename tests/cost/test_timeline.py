"""Laws of the memory timeline, and steps small enough to count by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from costmodel.analysis.predict import Prediction, predict
from costmodel.architectures.mlp import MLP
from costmodel.architectures.transformer import Transformer
from costmodel.cost.timeline import Alive
from costmodel.symbolic.sizes import SymInt
from tests.strategies import mlps, questions, transformers

Question = tuple[Any, dict[str, Any]]


def asked(question: Question) -> Prediction:
    model, chosen = question
    return predict(model, **chosen)


@pytest.mark.slow
@given(questions())
def test_the_peak_is_the_highest_step(question: Question) -> None:
    p = asked(question)
    highest = p.timeline.peak_step
    assert highest in p.timeline.steps
    assert p.memory.peak == highest.alive.total >= max(step.alive.total for step in p.timeline.steps)
    assert p.memory.temporaries == max(step.alive.temporaries for step in p.timeline.steps)


@pytest.mark.slow
@given(questions())
def test_what_stays_is_there_at_every_step(question: Question) -> None:
    p = asked(question)
    for _, _, _, alive in p.timeline.steps:
        for line in ("weights", "optimizer", "buffers", "inputs"):
            assert getattr(alive, line) == getattr(p.memory, line)
        assert min(alive) >= 0


@given(questions())
def test_activations_are_kept_until_backward_and_gradients_until_the_end(question: Question) -> None:
    p = asked(question)
    before = [step.alive for step in p.timeline.steps if step.phase in ("forward", "loss")][-1]
    earlier = p.memory.gradients if p.settings.accumulate > 1 else 0
    assert (before.activations, before.gradients) == (p.memory.activations, earlier)
    if p.settings.training:
        for _, _, _, alive in (step for step in p.timeline.steps if step.phase == "optimizer"):
            assert (alive.activations, alive.gradients) == (0, p.memory.gradients)


TWO_OUTPUTS = Transformer(vocab=5, context=8, layers=1, width=4, heads=2, classes=3)


@pytest.mark.slow
@given(questions())
@example((TWO_OUTPUTS, {"batch": 2}))
@example((TWO_OUTPUTS, {"batch": 2, "precision": "bf16-autocast"}))
def test_phases_follow_one_another(question: Question) -> None:
    p = asked(question)
    # Recomputation is a part of backward.
    phases = [step.phase.replace("recompute", "backward") for step in p.timeline.steps]
    order = ["forward", "loss", "backward", "optimizer"]
    assert phases == sorted(phases, key=order.index)
    assert (phases[-1] == "optimizer") == p.settings.training


@pytest.mark.slow
@given(mlps() | transformers())
def test_inference_keeps_nothing_for_later(model: Any) -> None:
    p = predict(model, batch=3, mode="inference")
    assert {step.phase for step in p.timeline.steps} == {"forward"}
    assert all(step.alive.activations == step.alive.gradients == 0 for step in p.timeline.steps)


@pytest.mark.slow
@given(transformers(), st.integers(2, 9), st.integers(1, 16))
def test_every_step_grows_evenly_with_the_batch(model: Transformer, batch: int, seq: int) -> None:
    model = model.with_fields({"layers": 3, "experts.capacity_factor": None})  # which is rounded up
    one, two, three = (predict(model, batch=n * batch, seq=seq).timeline.steps for n in (1, 2, 3))
    for a, b, c in zip(one, two, three, strict=True):
        assert a[:3] == b[:3] == c[:3]
        assert [z - y for y, z in zip(b.alive, c.alive, strict=True)] == [
            y - x for x, y in zip(a.alive, b.alive, strict=True)
        ]


@pytest.mark.parametrize("batch", [1, 20])
def test_one_large_layer_by_hand(batch: int) -> None:
    """The optimizer's step: weight, gradient, two states, two temporaries; input, target, and the loss's memory."""
    p = predict(MLP(sizes=(1000, 1000), bias=False), batch=batch, loss="mean_squared_error")
    megabyte = 10**6
    peak = Alive(
        weights=4 * megabyte,
        masters=0,
        gradients=4 * megabyte,
        optimizer=8 * megabyte,
        buffers=0,
        inputs=2 * 4000 * batch,
        activations=0,
        casts=0,
        temporaries=8 * megabyte + 4000 * batch,
    )
    assert p.timeline.peak_step.alive == peak
    assert p.timeline.peak_step.phase == "optimizer"


def test_a_chain_by_hand() -> None:
    """Two ReLU layers of 100 on 1,000 rows, 400 kB a tensor.

    Forward: a linear layer's output is gone once its ReLU, which keeps its own, has run. Backward: the gradient of a
    layer's output and that of its input, and nothing else, is alive beside what is kept; a weight's gradient is a
    temporary until it is done.
    """
    p = predict(MLP(sizes=(100, 100, 100, 100), bias=False), batch=1000, loss=None)
    tensor, weight = 400_000, 40_000
    found = [
        (s.phase, s.layer.split(".")[-1], s.alive.activations, s.alive.temporaries, s.alive.gradients)
        for s in p.timeline.steps
    ]
    assert found[:8] == [
        ("forward", "linear", 0, tensor, 0),
        ("forward", "relu", tensor, tensor, 0),
        ("forward", "linear", tensor, tensor, 0),
        ("forward", "relu", 2 * tensor, tensor, 0),
        ("forward", "output", 2 * tensor, tensor, 0),
        # From here on the caller holds the prediction and the gradient that backward starts from.
        ("backward", "output", 2 * tensor, 3 * tensor + weight, 0),
        ("backward", "relu", 2 * tensor, 4 * tensor, weight),
        ("backward", "linear", tensor, 4 * tensor + weight, weight),
    ]


def test_a_weight_used_twice_is_summed_beside_both_its_gradients() -> None:
    p = predict(Transformer(vocab=10_000, context=4, layers=1, width=8, heads=1), batch=1, seq=1)
    table = 4 * 10_000 * 8
    step = p.timeline.peak_step
    assert (step.phase, step.layer) == ("backward", "embedding")
    assert step.alive.gradients == p.memory.gradients - table
    assert 3 * table <= step.alive.temporaries < 3.01 * table


@pytest.mark.parametrize("frozen", [{"freeze": ("mlp",)}, {"lora": {"rank": 2, "targets": ("qkv",)}}])
def test_copies_of_frozen_weights_are_not_updated(frozen: Any) -> None:
    updates = [
        [(step.layer, step.rounds) for step in p.timeline.steps if step.phase == "optimizer"]
        for p in (predict("gpt2-small", seq=8, precision=name, **frozen) for name in ("fp32", "bf16-autocast"))
    ]
    assert updates[0] == updates[1] != []


def test_rounds_that_are_alike_are_one_step() -> None:
    p = predict(Transformer(vocab=11, context=8, layers=12, width=8, heads=2))
    rounds = {step.rounds for step in p.timeline.steps if step.layer == "block.mlp.down"}
    assert rounds == {"1", "2–11", "12"}


@given(questions())
def test_the_timeline_is_plain_data(question: Question) -> None:
    timeline = asked(question).timeline
    data = json.loads(json.dumps(timeline.to_dict()))
    assert data["steps"][data["peak_step"]]["alive"] == timeline.peak_step.alive._asdict()
    assert sum(data["steps"][data["peak_step"]]["alive"].values()) == data["peak"]


def test_letters_take_the_same_steps() -> None:
    p = predict(Transformer(vocab=11, context=8, layers=5, width=8, heads=2), batch=3)
    symbolic = p.symbolic()
    assert isinstance(symbolic.timeline.peak, SymInt)
    assert symbolic.timeline.steps == p.timeline.steps
