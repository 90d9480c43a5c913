"""What is known of a recipe answers as a trace does, and is made when it pays."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.analysis.predict import Prediction
from costmodel.architectures.trace import check_applies, trace
from costmodel.cost import costs, recipes
from costmodel.cost.quantities import QUANTITIES
from costmodel.graph.call import LayerFlops
from costmodel.layers.activation import Relu
from costmodel.layers.arithmetic import Scale
from costmodel.training.settings import Settings
from tests.profiles import examples

IMAGES = ("lenet-5", "resnet18", "vit-ti-16")
TOKENS = ("gpt2-small", "bert-tiny", "pythia-14m", "mixtral-8x7b", "t5-small", "whisper-tiny")
OTHERS = ("mlp-mnist",)
SIZES = {
    "batch": st.integers(1, 64),
    "seq": st.integers(1, 1100),
    "target_seq": st.integers(1, 600),
    "past": st.integers(1, 1100),
    "accumulate": st.integers(1, 4),
    "loss_chunks": st.integers(1, 40),
    "page_size": st.integers(1, 64),
    "image": st.tuples(st.integers(20, 300), st.integers(20, 300)),
}
CHOICES = {
    "mode": st.sampled_from(["train", "train", "inference", "prefill", "decode"]),
    "optimizer": st.sampled_from(["adamw", "sgd", "adafactor", "muon"]),
    "precision": st.sampled_from(["fp32", "bf16", "bf16-autocast"]),
    "attention": st.sampled_from(["eager", "flash"]),
    "checkpoint": st.sampled_from(["none", "block", "sqrt", "selective"]),
    "cache": st.sampled_from(["dynamic", "paged"]),
    "update": st.sampled_from(["loop", "foreach"]),
    "allocator": st.sampled_from(["exact", "cuda"]),
    "loss": st.sampled_from(["default", "none"]),
    "freeze": st.sampled_from([(), ("embedding",)]),
}


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    recipes._RECIPES.clear()
    yield
    recipes._RECIPES.clear()


def mlp(width: int) -> cm.MLP:
    return cm.MLP(sizes=[20, width, width, 5])


@st.composite
def recipes_and_sizes(draw: st.DrawFn) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
    """A model, choices that may go together, and five times sizes, some of which no model takes."""
    name = draw(st.sampled_from([*IMAGES, *TOKENS, *OTHERS]))
    chosen = draw(st.lists(st.sampled_from(sorted(CHOICES)), max_size=4, unique=True))
    of = {"batch", "accumulate"} | ({"image"} if name in IMAGES else {"seq"} if name in TOKENS else set())
    others = draw(st.lists(st.sampled_from(sorted(SIZES)), max_size=1)) if draw(st.integers(0, 2)) == 0 else []
    choices = {setting: draw(CHOICES[setting]) for setting in chosen}
    if choices.get("mode", "train") != "train":
        of -= {"accumulate"}
    if choices.get("mode") == "decode":
        of = (of - {"seq"}) | {"past"}
    names = sorted(of | set(others))
    return name, choices, [{size: draw(SIZES[size]) for size in names} for _ in range(5)]


def outcome(answer: Any) -> Any:
    """Every quantity, or the type and the message of an error."""
    try:
        p = answer()
        return {quantity: (value := p.value(quantity), type(value)) for quantity in QUANTITIES}
    except cm.CostModelError as error:
        return type(error), str(error)


def traced(name: str, settings: dict[str, Any]) -> Prediction:
    """The answer of a trace with numbers."""
    return prediction_of(cm.load(name), **settings)


def prediction_of(model: Any, **settings: Any) -> Prediction:
    asked = Settings(**settings)
    check_applies(model, asked)
    return Prediction(model, asked, trace(model, asked))


@pytest.mark.slow
@given(recipes_and_sizes())
@examples(60)
def test_answers_are_alike_with_and_without_forms(question: tuple[str, dict[str, Any], list[dict[str, Any]]]) -> None:
    name, choices, points = question
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "PATIENCE", 0)
        for sizes in points:
            settings = choices | sizes
            expected = outcome(lambda settings=settings: traced(name, settings))
            first = outcome(lambda settings=settings: cm.predict(name, **settings))  # makes a form where there is none
            assert first == expected
            if isinstance(expected, dict):
                known = cm.predict(name, **settings)
                assert "tape" not in vars(known)
                assert outcome(lambda known=known: known) == expected


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What has been traced: of each trace the type of its batch, which a letter is not of."""
    seen: list[str] = []

    def counted(model: Any, settings: Any, **layout: Any) -> Any:
        seen.append("numbers" if type(settings.batch) is int else "letters")
        return trace(model, settings, **layout)

    monkeypatch.setattr(costs, "trace", counted)
    return seen


def test_a_third_peak_at_other_sizes_makes_a_form(traces: list[str]) -> None:
    peaks = [cm.predict("gpt2-small", batch=batch, seq=8 * batch).memory.peak for batch in range(2, 12)]
    assert traces == ["numbers"] * 3 + ["letters"]
    assert len(set(peaks)) == len(peaks)


def test_models_made_anew_have_the_forms_of_their_equals_alone(traces: list[str]) -> None:
    peaks = {
        (width, batch): cm.predict(mlp(width), batch=batch).memory.peak for batch in range(2, 8) for width in (30, 40)
    }
    assert sorted(traces) == ["letters"] * 2 + ["numbers"] * 6  # of each width three, then a form
    assert len(set(peaks.values())) == len(peaks)
    assert all(peak == prediction_of(mlp(width), batch=batch).memory.peak for (width, batch), peak in peaks.items())


class Scaled(cm.MLP):
    """A class of one's own, whose code may be changed between two questions."""

    def forward(self, tape: Any, shape: Any, attention: Any) -> Any:
        return Scale(2.0)(super().forward(tape, shape, attention))


@pytest.mark.parametrize(
    ("model", "owner"),
    [
        (lambda: Scaled(sizes=[20, 30, 5]), Scale),
        (lambda: cm.CNN(input=(3, 8, 8), blocks=["relu", "flatten", {"linear": {"features": 5}}]), Relu),
    ],
)
def test_code_of_ones_own_is_run_for_each_model(model: Any, owner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def answers() -> list[tuple[int, int]]:
        predictions = [cm.predict(model(), batch=batch) for batch in range(2, 8)]
        return [(p.memory.peak, p.pointwise_flops.forward) for p in predictions]

    before = answers()
    monkeypatch.setattr(owner, "forward", lambda self, call: LayerFlops(0, 9 * call.x.size))
    assert all(flops > earlier for (_, flops), (_, earlier) in zip(answers(), before, strict=True))


def test_no_form_is_made_for_the_same_sizes_nor_without_a_peak(traces: list[str]) -> None:
    for batch in range(2, 12):
        assert cm.predict("gpt2-small", batch=batch, seq=64).params
        assert cm.predict("gpt2-small", batch=4, seq=64).memory.peak
        assert cm.predict("gpt2-small", batch=batch, seq=64).timeline.peak
    assert set(traces) == {"numbers"}


def test_forms_that_hold_nowhere_else_are_made_more_and_more_rarely() -> None:
    attempts: list[int] = []
    recipe = recipes.Recipe(cm.GPT2Small)
    for batch in range(2_000):
        recipe.learn({"batch": batch}, lambda letters: attempts.append(int(letters["batch"])) or {})
    assert len(attempts) == recipes.MOST_FORMS
    assert attempts[:3] == [2, 7, 14]


def test_what_is_known_has_layers_and_a_timeline_when_they_are_asked_for(traces: list[str]) -> None:
    for batch in range(2, 6):
        assert cm.predict("gpt2-small", batch=batch, seq=64).memory.peak
    traces.clear()
    known = cm.predict("gpt2-small", batch=32, seq=512)
    assert known.memory.peak == traced("gpt2-small", {"batch": 32, "seq": 512}).memory.peak
    assert traces == []
    assert known.layers == traced("gpt2-small", {"batch": 32, "seq": 512}).layers
    assert known.timeline.peak == known.memory.peak
    assert traces == ["numbers"]
    assert pickle.loads(pickle.dumps(known)).to_dict() == known.to_dict()


def test_a_machine_and_what_starts_kernels_share_a_recipe() -> None:
    recipe, _ = recipes.recipe_of(cm.GPT2Small, Settings(batch=2))
    assert recipe is recipes.recipe_of(cm.GPT2Small, Settings(batch=9, on="h100-sxm", stack="compiled"))[0]
    assert recipe is not recipes.recipe_of(cm.GPT2Small, Settings(batch=2, optimizer="sgd"))[0]


def test_recipes_asked_for_longest_ago_are_forgotten() -> None:
    first, _ = recipes.recipe_of(cm.GPT2Small, Settings())
    for number in range(recipes.MOST_RECIPES + 8):
        recipes.recipe_of(cm.GPT2Small.with_fields({"context": 2000 + number}), Settings())
    assert len(recipes._RECIPES) == len(recipes._FIRST_EQUALS) == len(recipes._BY_IDENTITY) == recipes.MOST_RECIPES
    assert recipes.recipe_of(cm.GPT2Small, Settings())[0] is not first


def test_threads_share_recipes() -> None:
    sizes = [(batch, seq) for batch in range(1, 9) for seq in (16, 64, 256, 1024)]

    def peak(size: tuple[int, int]) -> int:
        return cm.predict("gpt2-small", batch=size[0], seq=size[1]).memory.peak

    expected = [traced("gpt2-small", {"batch": batch, "seq": seq}).memory.peak for batch, seq in sizes]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(peak, sizes)) == expected


@pytest.mark.parametrize("error", [TypeError, RuntimeError, AssertionError])
def test_a_model_that_takes_numbers_alone_is_traced(traces: list[str], error: type[Exception]) -> None:
    class Picky(cm.MLP):
        def forward(self, tape: Any, shape: Any, attention: Any) -> Any:
            if type(shape.batch) is not int:
                raise error("numbers alone")
            return super().forward(tape, shape, attention)

    model = Picky(sizes=(4, 3))
    peaks = [cm.predict(model, batch=batch).memory.peak for batch in range(1, 9)]
    assert peaks == sorted(peaks)
    assert traces.count("letters") == 2
