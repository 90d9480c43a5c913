"""Formulas as a reader sees them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import sympy
import yaml

import costmodel as cm
from costmodel.analysis.predict import predict
from costmodel.architectures.mlp import MLP
from costmodel.architectures.transformer import Transformer
from costmodel.cost.quantities import QUANTITIES, TIMED
from costmodel.errors import UnknownNameError

MODEL = Transformer(vocab=50257, context=1024, layers=12, width=768, heads=12)


def test_formulas_read_as_sums_over_blocks() -> None:
    p = predict(MODEL, batch=32, seq=512)
    assert str(p.formula("params")) == "L*(12*d**2 + 13*d) + V*d + d*n_ctx + 2*d"
    assert str(p.formula("flops.forward")) == "B*T*(L*(4*T*d + 24*d**2) + 2*V*d)"


def test_an_explanation_puts_the_numbers_in() -> None:
    explained = predict(MODEL, batch=32, seq=512).explain("params")
    assert explained.numbers == "12*(12*768**2 + 13*768) + 50257*768 + 768*1024 + 2*768"
    assert eval(explained.numbers) == explained.value == 124_439_808
    text = str(explained)
    assert "124,439,808 parameters" in text
    assert "L     =     12  number of blocks" in text
    assert "torch.nn.Linear" in text
    assert "softmax" not in text


@pytest.mark.parametrize("quantity", TIMED)
def test_what_is_of_a_machine_has_no_formula_and_says_so(quantity: str) -> None:
    p = predict(MODEL, seq=8)
    for ask in (p.explain, p.formula):
        with pytest.raises(cm.CostModelError, match=f"{quantity} is of a step on a machine, without a formula"):
            ask(quantity)


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_every_quantity_explains_itself(quantity: str) -> None:
    explained = predict(MODEL, batch=2, seq=8).explain(quantity)
    assert explained.sources
    assert explained.unit in ("parameters", "FLOP", "bytes")
    assert json.loads(json.dumps(explained.to_dict()))["value"] == explained.value
    # Max is the one function that Python does not know under sympy's name.
    assert eval(explained.numbers, {"Max": max}) == explained.value


def test_every_total_of_a_prediction_can_be_asked_for() -> None:
    p = predict(Transformer(vocab=9, context=4, layers=2, width=8, heads=2, experts={"count": 4, "per_token": 2}))
    data = {name: value for name, value in p.to_dict().items() if name not in ("model", "settings", "layers")}
    parts = {name: value if isinstance(value, dict) else {"": value} for name, value in data.items()}
    totals = {f"{name}.{part}".rstrip("."): n for name, each in parts.items() for part, n in each.items()}
    assert {quantity: p.value(quantity) for quantity in QUANTITIES} == totals
    assert "k" in {d.symbol for d in p.explain("active_params").letters}
    assert cm.solve(p.model, "active_params", p.active_params, for_="layers").answer == 2


def test_what_grows_with_the_batch_says_what_it_takes_for_granted() -> None:
    """Experts are taken for evenly loaded, which decides nothing about weights."""
    p = predict("mixtral-8x7b", batch=2, seq=8)
    said = {quantity: len(p.explain(quantity).assumptions) for quantity in ("params", "memory.weights")}
    assert set(said.values()) == {0}
    for quantity in ("flops.forward", "pointwise_flops.total", "memory.activations"):
        assert "experts" in " ".join(p.explain(quantity).assumptions)


def test_an_image_is_as_high_and_as_wide_as_asked() -> None:
    explained = predict("resnet18", batch=2, image=(64, 96)).explain("flops.forward")
    assert {d.symbol: d.value for d in explained.letters} == {"B": 2, "H": 64, "W": 96}


def test_a_target_has_a_length_of_its_own() -> None:
    explained = predict("t5-small", batch=2, seq=8, target_seq=4).explain("flops.forward")
    assert {"T": 8, "T_t": 4}.items() <= {d.symbol: d.value for d in explained.letters}.items()


def test_a_formula_of_small_sizes_says_so() -> None:
    """Heads of one token are split by a view, of several by a copy."""
    notes = {seq: predict(MODEL, batch=1, seq=seq).explain("traffic.forward").note for seq in (1, 2)}
    assert "as small as here" in notes[1]
    assert notes[2] == ""


@pytest.mark.parametrize("quantity", ["params", "memory.peak"])
def test_lines_broken_to_fit_the_page_are_the_formula(quantity: str) -> None:
    explained = predict(MODEL, batch=2, seq=8).explain(quantity)
    text, formula = ("".join(str(one).split()) for one in (explained, explained.formula))
    assert f"{quantity}={formula}" in text
    assert f"={explained.numbers}=".replace(" ", "") in text


def test_each_alternative_of_a_long_maximum_begins_a_line() -> None:
    explained = predict(MODEL, batch=2, seq=8).explain("memory.peak")
    begun = [line.strip() for line in str(explained).splitlines()]
    for alternative in map(str, explained.formula.args):
        assert any(line.startswith(alternative[:20]) for line in begun)


def test_a_maximum_that_fits_a_line_stays_on_it() -> None:
    explained = predict(MLP(sizes=[2, 2]), batch=2).explain("memory.temporaries")
    assert str(explained.formula).startswith("Max(")
    assert str(explained).splitlines()[2] == f"memory.temporaries = {explained.formula}"


def test_notebooks_get_latex() -> None:
    explained = predict(MODEL, batch=2, seq=8).explain("memory.activations")
    assert explained._repr_latex_().startswith(r"$\displaystyle")
    assert sympy.latex(explained.formula) in explained._repr_markdown_()


def test_an_unknown_quantity_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"'memory\.activation': did you mean 'memory\.activations'"):
        predict(MLP(sizes=[2, 2])).explain("memory.activation")


def test_the_public_names_are_there() -> None:
    for name in cm.__all__:
        assert getattr(cm, name) is not None


@pytest.mark.parametrize("quantity", ["params", "flops.total", "memory.activations", "memory.peak", "traffic.forward"])
def test_an_equation_for_a_paper_has_the_numbers_and_what_to_cite(quantity: str) -> None:
    explanation = cm.predict("gpt2-small", batch=3).explain(quantity)
    lines = explanation.latex().splitlines()
    assert (lines[0], lines[5]) == (r"\begin{align*}", r"\end{align*}")
    numbers = lines[3].removeprefix("  &= ").removesuffix(r"\\").replace(r"\cdot", "*")
    numbers = re.sub(r"\^\{(\d+)\}", r"**\1", numbers).replace(r"\operatorname{max}", "max")
    assert eval(numbers) == explanation.value
    assert lines[4].replace("{,}", "").startswith(f"  &= {explanation.value}")
    cited = explanation.bibtex()
    assert cited.count("@misc{") == len(explanation.sources)
    citation = yaml.safe_load((Path(cm.__file__).parent.parent / "CITATION.cff").read_text())
    assert citation["version"] == cm.__version__
    assert f"title = {{{citation['title']}}}," in cited
    assert f"version = {{{citation['version']}}}," in cited


def test_what_is_cited_is_no_command_of_latex() -> None:
    evil = cm.MLP(sizes=[4, 2], name=r"\input{secret} $x_1$ 100%")
    cited = cm.predict(evil).explain("params").bibtex()
    assert r"\input" not in cited
    assert r"\textbackslash{}input\{secret\} \$x\_1\$ 100\%" in cited


def test_what_is_nothing_in_a_mode_is_told_which_mode_has_it() -> None:
    kept = cm.predict("gpt2-small").explain("kv_bytes_per_token")
    assert (kept.value, "ask with mode prefill or decode" in kept.note) == (0, True)
    assert cm.predict("gpt2-small", mode="decode").explain("kv_bytes_per_token").note == ""
    assert "ask with mode train" in cm.predict("gpt2-small", mode="inference").explain("memory.gradients").note
    assert str(kept).count("= 0") == 1
