"""The timeline of a repeated block walked a few times is that of every round walked by itself."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from costmodel.analysis.predict import Prediction, predict
from costmodel.architectures.cnn import CNN
from costmodel.architectures.trace import new_tape, trace
from costmodel.architectures.transformer import Transformer
from costmodel.cost.timeline import Alive, Timeline
from costmodel.errors import SettingError
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Tensor
from costmodel.training.settings import Settings
from tests.profiles import examples
from tests.strategies import questions


class Unrolled(Tape):
    """Records every round of a repeated block by itself; rounds of `bare` layers are no parts of the model."""

    bare: tuple[str, ...] = ()

    def repeat(self, times: int, body: Any, x: Tensor, name: str, **how: Any) -> Tensor:
        for number in range(int(times)):
            listed = how.get("listed", False)
            with nullcontext() if name.startswith(self.bare) else self.scope(f"{name}{number}", listed=listed):
                x = body(x)
        return x


def highest(timeline: Timeline) -> dict[str, Alive]:
    """The most on each line in each phase, and the last step of each."""
    steps: dict[str, list[Alive]] = {}
    for phase, _, _, alive in timeline.steps:
        steps.setdefault(phase, []).append(alive)
    tops = {phase: Alive(*map(max, zip(*levels, strict=True))) for phase, levels in steps.items()}
    return tops | {f"end of {phase}": levels[-1] for phase, levels in steps.items()}


def timelines(model: Any, chosen: Settings, bare: tuple[str, ...] = ()) -> tuple[Timeline, Timeline]:
    """Folded, and unrolled."""
    unrolled = new_tape(chosen, kind=Unrolled)
    unrolled.bare = bare
    return Prediction(model, chosen).timeline, Prediction(model, chosen, trace(model, chosen, unrolled)).timeline


def of_products(blocks: list[Any]) -> CNN:
    """Products one after the other, in equal blocks."""
    return CNN(
        input=(1, 2, 2), blocks=["flatten", {"linear": {"features": 8}}, {"repeat": {"times": 3, "blocks": blocks}}]
    )


def test_every_second_result_is_kept_of_products_that_repeat_within_a_block() -> None:
    product: dict[str, Any] = {"linear": {"features": 8, "bias": False}}
    for times in (1, 2, 3):
        pair = [product, "relu", product, "relu"]
        nested = predict(of_products([{"repeat": {"times": times, "blocks": pair}}]), checkpoint="operators", loss=None)
        flat = predict(of_products(pair * times), checkpoint="operators", loss=None)
        assert nested.memory.activations == flat.memory.activations
    with pytest.raises(SettingError, match="an odd number of products that repeat within a block"):
        _ = predict(of_products([{"repeat": {"times": 2, "blocks": [product]}}]), checkpoint="operators").memory


deep = st.integers(1, 9)


TURNED_AT_TIMES = Transformer(
    vocab=1,
    context=16,
    layers=1,
    width=2,
    heads=1,
    positions="rotary",
    rotary={"pattern": (False, False, True)},
    head=False,
)
STREAMS = Transformer(
    vocab=1,
    context=16,
    layers=1,
    width=12,
    heads=2,
    fused_qkv=False,
    norm_placement="both",
    altup={"streams": 4, "laurel_rank": 3, "layer_width": 6},
)
"""Each block reads a slice of what was made before all: gradients of slices wait for those of every round."""

BORROWING = Transformer(vocab=1, context=16, layers=2, width=2, heads=1, fused_qkv=False, shared_kv_layers=1)


@pytest.mark.slow
@given(questions(), deep)
@examples(150)
@example((TURNED_AT_TIMES, {"mode": "inference", "attention": "flash", "seq": 1}), 3)
@example((STREAMS, {"batch": 3, "seq": 8, "mode": "train", "loss": None, "optimizer": "adafactor"}), 4)
@example((STREAMS, {"batch": 1, "seq": 2, "mode": "train", "optimizer": "adafactor"}), 9)
@example((BORROWING, {"batch": 1, "seq": 1, "mode": "inference"}), 1)
def test_folding_equals_unrolling(question: tuple[Any, dict[str, Any]], depth: int) -> None:
    model, chosen = question
    if isinstance(model, Transformer):
        # blocks that borrow keys come after one that has its own
        model = model.with_fields({"layers": depth + (model.shared_kv_layers or 0)})
    else:
        first, *hidden, last = model.sizes
        model = model.model_copy(update={"sizes": (first, *(n for n in hidden for _ in range(depth)), last)})
    plain: dict[str, Any] = {**chosen, "checkpoint": "none"}
    folded, unrolled = timelines(model, Settings(**plain), bare=("hidden",))
    assert folded.peak == unrolled.peak
    assert highest(folded) == highest(unrolled)


CONV = {"conv": {"channels": 4, "kernel": 3, "padding": 1}}
ITEMS: list[Any] = [
    CONV,
    "batchnorm",
    "relu",
    "gelu",
    {"residual": {"body": [CONV, "relu"]}},
    {"branches": {"join": "add", "paths": [[CONV], ["silu"], []]}},
    {"dropout": {"p": 0.1}},
]


def repeated(items: Any) -> Any:
    inner = st.lists(items, min_size=1, max_size=3)
    return st.builds(lambda times, blocks: {"repeat": {"times": times, "blocks": blocks}}, st.integers(1, 6), inner)


@pytest.mark.slow
@given(
    st.lists(st.recursive(st.sampled_from(ITEMS), repeated, max_leaves=5), min_size=1, max_size=4),
    st.sampled_from(["train", "inference"]),
)
def test_folding_equals_unrolling_where_repeats_nest(blocks: list[Any], mode: Any) -> None:
    model = CNN(input=(3, 5, 5), blocks=[CONV, *blocks, "flatten", {"linear": {"features": 3}}])
    folded, other = map(highest, timelines(model, Settings(batch=2, mode=mode)))
    for phase, alive in folded.items():
        # Unrolled rounds are parts of the model, and what they are handed stays for a while; what is kept is the same.
        if phase.endswith("forward"):
            assert alive.activations == other[phase].activations
        else:
            assert alive == other[phase]


def test_ten_thousand_repeats_take_no_more_steps() -> None:
    def steps(layers: int) -> int:
        return len(predict(Transformer(vocab=11, context=8, layers=layers, width=8, heads=2)).timeline.steps)

    assert steps(10_000) == steps(12)
