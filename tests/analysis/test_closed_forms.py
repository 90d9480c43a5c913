"""Closed forms on grids equal `predict` at every cell, and say no wherever it does."""

from __future__ import annotations

import pickle
from math import gcd, isqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.analysis.closed_forms import ClosedForms, Forms, Refusal, open_sizes
from costmodel.analysis.sweep import guarded
from costmodel.cost.quantities import QUANTITIES
from costmodel.symbolic.evaluation import SizeGrid
from costmodel.symbolic.guards import Condition, Decisions
from costmodel.symbolic.polynomial import Polynomial
from costmodel.symbolic.reading import readable
from tests.profiles import examples
from tests.strategies import questions

pytestmark = pytest.mark.usefixtures("traced")

values = st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True)


@st.composite
def open_questions(draw: st.DrawFn) -> tuple[Any, dict[str, Any], dict[str, list[int]]]:
    """A model, the settings of a question about it, and values for some of its sizes."""
    model, asked = draw(questions())
    known = [name for name in open_sizes(model) if not name.startswith("image.")]
    if not isinstance(model, cm.Transformer):
        known.remove("seq")
    names = draw(st.lists(st.sampled_from(known), min_size=1, max_size=4, unique=True))
    fixed = {name: value for name, value in asked.items() if name not in names}
    return model, fixed, {name: draw(values) for name in names}


def grid_of(axes: dict[str, list[int]]) -> SizeGrid:
    letters = {name: (axis, np.array(sizes, np.int64)) for axis, (name, sizes) in enumerate(axes.items())}
    return SizeGrid(tuple(map(len, axes.values())), letters)


def filled(forms: ClosedForms, grid: SizeGrid) -> tuple[dict[str, Any], Any]:
    out = {quantity: np.empty(grid.shape, np.int64) for quantity in forms.quantities}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guarded, "MOST_MASKED", 0)  # regimes of windows
        answers = guarded.FormulaAnswers(forms, grid)
    answers.fill(grid.whole, out)
    missing = guarded.refused(answers.regimes(grid.whole))
    return out, np.broadcast_to(False if missing is None else missing, grid.shape)


SLICED = cm.Transformer(
    vocab=1, context=16, layers=1, width=1, heads=1, head=False, experts={"count": 1, "per_token": 1}
)


@pytest.mark.slow
@given(open_questions())
@examples(60)
@example((cm.Transformer(vocab=1, context=1, layers=1, width=1, heads=1), {}, {"experts.per_token": [1, 2]}))
@example((SLICED, {"batch": 1}, {"experts.dense_layers": [1, 2], "layers": [1, 2]}))
def test_every_cell_of_a_grid_equals_predict(question: tuple[Any, dict[str, Any], dict[str, list[int]]]) -> None:
    model, fixed, axes = question
    forms = ClosedForms(model, fixed, axes)
    grid = grid_of(axes)
    found, missing = filled(forms, grid)
    for index in np.ndindex(grid.shape):
        point = grid.point(index)
        if missing[index]:
            with pytest.raises(cm.CostModelError):
                forms.predict(point)
        else:
            p = forms.predict(point)
            assert {q: found[q][index] for q in QUANTITIES} == {q: p.value(q) for q in QUANTITIES}


@pytest.mark.parametrize(
    "look",
    [
        lambda n: [0] * n,
        lambda n: [0, 0, 0][:n],
        lambda n: [0, 0, 0, 0][n],
        lambda n: list(range(n)),
        lambda n: {3: True}.get(n),
        lambda n: {n: True}.get(3),
        lambda n: isqrt(n),
        lambda n: gcd(n, 6),
        lambda n: bytes(n),
        lambda n: int(n),
        lambda n: float(n),
        lambda n: n**2,
        lambda n: 1 / n,
    ],
)
def test_whoever_looks_at_the_value_of_a_size_leaves_a_note(look: Any) -> None:
    decisions = Decisions()
    assert look(decisions.letter("n", 3)) == look(3)
    assert decisions.outcomes[Condition("value", Polynomial.letter("n"))] == 3


def test_a_question_in_letters_is_traced_once_for_each_regime() -> None:
    forms = ClosedForms(cm.GPT2Small, {}, ["batch", "seq"], ["params", "flops.total"])
    leaves = {id(forms.at({"batch": batch, "seq": seq})) for batch in range(2, 6) for seq in range(2, 12)}
    assert len(leaves) == 1
    assert isinstance(forms.at({"batch": 2, "seq": 1025}), Refusal)
    assert "1024" in forms.reason({"batch": 2, "seq": 1025})


def test_formulas_are_those_of_an_explanation() -> None:
    p = cm.predict(cm.GPT2Small, batch=3, seq=5)
    leaf = ClosedForms(cm.GPT2Small, {}, ["batch", "seq"]).at({"batch": 3, "seq": 5})
    assert isinstance(leaf, Forms)
    sizes = {"L": 12, "d": 768, "h": 12, "V": 50257, "n_ctx": 1024}
    for quantity in ("params", "flops.total", "memory.activations"):
        form, formula = readable(leaf.formulas[quantity]).sympy(), p.formula(quantity)
        put_in = {s: sizes[s.name] for s in formula.free_symbols if s.name in sizes}
        letters = {s: {"batch": 3, "seq": 7}[s.name] for s in form.free_symbols}
        batch_and_seq = {s: {"B": 3, "T": 7}[s.name] for s in formula.subs(put_in).free_symbols}
        assert form.subs(letters) == formula.subs(put_in).subs(batch_and_seq)


def test_closed_forms_travel_as_plain_data() -> None:
    forms = ClosedForms(cm.load("resnet18"), {}, ["batch", "image.height", "image.width"], ["memory.peak"])
    point = {"batch": 3, "image.height": 224, "image.width": 100}
    here = forms.at(point)
    there = pickle.loads(pickle.dumps(forms))
    assert isinstance(here, Forms)
    assert there.tree == forms.tree
    assert there.at(point).formulas["memory.peak"].value(point) == here.formulas["memory.peak"].value(point)


def test_unknown_names_list_the_nearest() -> None:
    with pytest.raises(cm.CostModelError, match="'batch'"):
        ClosedForms(cm.GPT2Small, {}, ["bacth"])
    with pytest.raises(cm.CostModelError, match=r"'memory\.peak'"):
        ClosedForms(cm.GPT2Small, {}, ["batch"], ["memory.peek"])


def test_layers_of_a_list_have_letters_even_where_their_sizes_meet() -> None:
    model = cm.MLP(sizes=(6, 5, 4, 3))
    names = list(model.size_fields())
    forms = ClosedForms(model, {"batch": 2}, names, ["params"])
    for sizes in ((6, 5, 4, 3), (6, 5, 5, 3), (7, 7, 7, 7), (2, 9, 1, 3)):
        leaf = forms.at(dict(zip(names, sizes, strict=True)))
        assert isinstance(leaf, Forms)
        found = leaf.formulas["params"].value(dict(zip(names, sizes, strict=True)))
        assert found == cm.predict(cm.MLP(sizes=sizes), batch=2).params
