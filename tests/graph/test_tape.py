"""Tapes of ready models and of drawn ones, as a replay meets them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

import costmodel as cm
from costmodel.architectures.trace import trace
from costmodel.cost.costs import Costs
from costmodel.cost.quantities import SUMMED
from costmodel.cost.rows import rows_of
from costmodel.graph.call import Block
from costmodel.graph.replay import replay
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Alias
from costmodel.layers.activation import Relu
from costmodel.training.settings import Settings
from tests.graph.walking import Copying, check_tape
from tests.profiles import examples
from tests.strategies import questions

SETTINGS: dict[str, dict[str, Any]] = {
    "train": {},
    "autocast": {"precision": "bf16-autocast"},
    "recomputed": {"checkpoint": "block"},
    "inference": {"mode": "inference"},
}
SERVED: dict[str, dict[str, Any]] = {
    "prefill": {"mode": "prefill", "seq": 6},
    "decode": {"mode": "decode", "past": 5},
    "static": {"mode": "decode", "past": 5, "cache": "static"},
}


def answered(model: Any, asked: dict[str, Any]) -> cm.Prediction | None:
    """A prediction, if the model takes such settings."""
    try:
        return cm.predict(model, **asked)
    except cm.CostModelError:
        return None


@pytest.mark.parametrize("asked", [*SETTINGS, *SERVED])
def test_a_replay_meets_every_tensor_of_every_ready_model(asked: str) -> None:
    settings = (SETTINGS | SERVED)[asked]
    walked = [check_tape(p.tape) for entry in cm.models() if (p := answered(entry.name, settings)) is not None]
    assert len(walked) > 50
    assert sum(reader.views for reader in walked) > len(walked)


@given(questions())
@examples(60)
def test_a_replay_meets_every_tensor_of_a_drawn_model(question: tuple[Any, dict[str, Any]]) -> None:
    model, asked = question
    check_tape(cm.predict(model, **asked).tape)


@given(questions())
@examples(60)
def test_a_tape_that_is_recorded_again_costs_the_same(question: tuple[Any, dict[str, Any]]) -> None:
    """All that a tape costs follows from its entries, as a replay hands them over: every round by itself, anew."""
    model, asked = question
    settings = Settings(**asked | {"checkpoint": "none"})
    costs = Costs(model, settings)
    copying = Copying(costs.tape)
    replay(costs.tape.root, copying)
    again = Costs(model, settings, copying.tape)
    assert {name: again.number(name) for name in SUMMED} == {name: costs.number(name) for name in SUMMED}
    assert again.memory.weights == costs.memory.weights
    assert sum(row.forward_bytes for row in again.layers) == sum(row.forward_bytes for row in costs.layers)


def test_a_view_is_on_the_tape_and_on_no_report() -> None:
    tape = Tape(training=True, device="gpu")
    x = tape.tensor((4, 6), requires_grad=True)
    y = Relu()(x.view((2, 12)).transpose(0, 1), name="relu")
    views = [entry for entry in tape.root.entries if isinstance(entry, Alias)]
    assert [view.y.shape for view in views] == [(2, 12), (12, 2)]
    assert views[0].x is x
    assert views[1].x is views[0].y
    assert views[1].y is y.maker.x  # type: ignore[union-attr]
    assert [row.name for row in rows_of(tape, "pytorch")] == ["relu"]


def test_a_block_holds_what_its_rounds_hand_on() -> None:
    tape = trace(cm.load("gpt2-small"), Settings(batch=1, seq=8))
    [block] = [entry for entry in tape.root.entries if isinstance(entry, Block)]
    assert block.count == 12
    assert block.source in [call.y for call in tape.root.calls()]
    assert block.exit in [call.y for call in block.calls()]
    assert block.result in [x for call in tape.root.calls() for x in call.inputs]
