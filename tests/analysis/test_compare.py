"""Side by side: values are what `predict` says, ratios lead from the first, and sizes come as near as stated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from matplotlib.colors import to_hex

import costmodel as cm
from costmodel.cost.quantities import QUANTITIES
from costmodel.display.figures import DARK
from costmodel.display.units import show_seconds
from tests.command import error_of, here, refused
from tests.profiles import examples
from tests.strategies import questions


@pytest.mark.slow
@given(questions(), questions())
@examples(30)
def test_ratios_and_differences_lead_from_the_first_to_the_others(one: tuple, other: tuple) -> None:
    first, second = (cm.predict(model, **asked) for model, asked in (one, other))
    found = cm.compare(first, second)
    label = found.labels[1]
    assert len(set(found.labels)) == 2
    for quantity in QUANTITIES:
        assert found.value(label, quantity) == second.value(quantity)
        assert first.value(quantity) + found.difference(label, quantity) == second.value(quantity)
        ratio = found.ratio(label, quantity)
        if ratio is None:
            assert first.value(quantity) == 0
        else:
            assert ratio * first.value(quantity) == pytest.approx(second.value(quantity))


def test_models_of_different_kinds_take_the_settings_they_have() -> None:
    found = cm.compare("gpt2-small", "resnet18", "mlp-mnist", batch=2, seq=64, image=(64, 64), attention="flash")
    gpt, resnet, mlp = found.predictions
    assert gpt.memory == cm.predict("gpt2-small", batch=2, seq=64, attention="flash").memory
    assert resnet.memory == cm.predict("resnet18", batch=2, image=(64, 64)).memory
    assert mlp.memory == cm.predict("mlp-mnist", batch=2).memory
    assert found.labels == ("gpt2-small", "ResNet-18", "mlp-mnist")


def test_lists_of_settings_are_columns_and_their_labels_say_which() -> None:
    found = cm.compare("gpt2-small", optimizer=["sgd", "adamw"], checkpoint=["none", "block"], seq=64)
    assert found.labels == (
        "sgd checkpoint none", "sgd checkpoint block", "adamw checkpoint none", "adamw checkpoint block",
    )  # fmt: skip
    assert found.difference("adamw checkpoint none", "memory.optimizer") == 2 * 4 * found.predictions[0].params
    frame = found.to_dataframe().set_index(["label", "quantity"])
    assert frame.loc[("adamw checkpoint block", "memory.peak"), "value"] == found.predictions[3].memory.peak
    assert "adamw checkpoint block" in found._repr_html_()


def test_at_equal_parameters_no_neighbour_is_nearer() -> None:
    found = cm.compare("gpt2-small", "mlp-mnist", "resnet18", at_equal="params")
    target = cm.predict("gpt2-small").params
    for label in found.labels[1:]:
        match = found.matches[label]
        assert match.value == found.value(label, "params")
        off = abs(match.value - target)
        assert off <= min(abs(match.varied.at(match.size + step).params - target) for step in (-1, 1))
        assert match.off == pytest.approx((match.value - target) / target)
        assert f"width {match.size:,}" in str(found)


def test_a_perceptron_is_matched_as_by_hand() -> None:
    # One hidden layer of n: 10 n + n weights and biases in, 5 n + 5 out: 16 n + 5.
    found = cm.match(cm.MLP(sizes=(10, 4, 5)), "params", 1000)
    assert (found.size, found.value) == (62, 16 * 62 + 5)


def test_what_takes_as_long_is_the_nearest_of_its_neighbours() -> None:
    match = cm.match("gpt2-small", "seconds", "200 ms", by="layers", on="h100-sxm", batch=8, seq=64)
    around = [abs(match.varied.at(match.size + step).value("seconds") - 0.2) for step in (-1, 1)]
    assert abs(match.value - 0.2) <= min(around)
    assert match.value == match.prediction.time.seconds


@pytest.mark.slow
def test_the_picture_is_saved_whole_or_not_at_all(tmp_path: Path) -> None:
    found = cm.compare("gpt2-small", "mlp-mnist")
    found.plot(tmp_path / "bars.png")
    dark = found.plot(dark=True)
    assert {to_hex(ground.get_facecolor()) for ground in (dark, *dark.axes)} == {DARK.paper}
    assert {to_hex(text.get_color()) for axes in dark.axes for text in axes.texts} == {DARK.ink}
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")
    error_of(lambda: found.plot(tmp_path / "bars.doc"))
    assert [path.name for path in tmp_path.iterdir()] == ["bars.png"]


def test_bad_comparisons() -> None:
    assert "2 to 64" in error_of(lambda: cm.compare("gpt2-small"))
    assert "2 to 64" in error_of(lambda: cm.compare("mlp-mnist", batch=list(range(1, 70))))
    assert "'batch'" in error_of(lambda: cm.compare("gpt2-small", "gpt2-medium", bach=3))
    assert "'params'" in error_of(lambda: cm.compare("gpt2-small", "gpt2-medium", at_equal="parms"))
    assert "empty" in error_of(lambda: cm.compare("gpt2-small", optimizer=[]))
    assert "own settings" in error_of(lambda: cm.compare(cm.predict("gpt2-small"), batch=3))
    assert "'gpt2-small'" in error_of(lambda: cm.compare("gpt2-smal", "gpt2-medium"))
    found = cm.compare("gpt2-small", "mlp-mnist")
    assert "label" in error_of(lambda: found.value("resnet", "params"))


def test_the_shell_compares_as_python_does(capsys) -> None:
    found = cm.compare("gpt2-small", optimizer=["sgd", "adamw"], seq=[64])
    asked = ("compare", "gpt2-small", "--optimizer", "sgd,adamw", "--seq", "64")
    assert here(capsys, *asked) == (0, f"{found}\n", "")
    assert json.loads(here(capsys, *asked, "--json").out) == found.to_dict()
    refused(here(capsys, "compare", "gpt2-small"), "2 to 64")


def test_fields_of_a_model_stand_for_columns_too(capsys) -> None:
    found = cm.compare("gpt2-small", layers=[6, 12], width=[768, 1536], seq=64)
    assert found.labels[:2] == ("layers 6 width 768", "layers 6 width 1536")
    wide = cm.Transformer(**{**dict(cm.GPT2Small), "layers": 12, "width": 1536})
    assert found.predictions[3].memory == cm.predict(wide, seq=64).memory
    other = cm.compare("gpt2-small", "mlp-mnist", layers=6)
    assert other.predictions[1].params == cm.predict("mlp-mnist").params
    turned = cm.compare("mlp-mnist", "resnet18", width=[32, 64], quantities=["params", "memory.cache"])
    assert [p.params for p in turned.predictions[1::2]] == [
        cm.predict(cm.load(name).vary("width", 64)).params for name in ("mlp-mnist", "resnet18")
    ]
    assert list(turned.to_dict()["entries"][0]["quantities"]) == ["params", "memory.cache"]
    assert set(turned.to_dataframe()["quantity"]) == {"params", "memory.cache"}
    assert "memory.cache" in str(turned)
    assert "flops" not in str(turned)
    assert "did you mean 'params'" in error_of(lambda: cm.compare("gpt2-small", batch=[1, 2], quantities="parms"))
    assert "attention" not in error_of(lambda: cm.compare("mlp-mnist", zzz=[1]))
    assert "did you mean 'layers'" in error_of(lambda: cm.compare("gpt2-small", layerz=[1, 2]))
    assert "heads 12 does not divide" in error_of(lambda: cm.compare("gpt2-small", width=[768, 769]))
    widths = ("compare", "mlp-mnist", "resnet18", "--over", "width=32,64", "--quantities", "params,memory.cache")
    assert here(capsys, *widths) == (0, f"{turned}\n", "")
    outcome = here(capsys, "compare", "gpt2-small", "--over", "layers=6,12", "--over", "width=768,1536", "--seq", "64")
    assert outcome == (0, f"{found}\n", "")


def test_a_picture_s_title_is_true_of_all_and_what_differs_stands_at_each() -> None:
    figure = cm.compare("gpt2-small", "bert-base", "resnet50").plot()
    assert figure.get_suptitle() == "gpt2-small, bert-base, ResNet-50: one training step, batch 1, fp32, adamw"
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["gpt2-small\nseq 1024", "bert-base\nseq 512", "ResNet-50\nimage 224×224"]
    alike = cm.compare("gpt2-small", "gpt2-medium", seq=[8, 16]).plot()
    assert "seq" not in alike.get_suptitle()
    assert not any("\n" in label.get_text() for label in alike.axes[0].get_yticklabels())


def test_what_is_the_same_in_all_is_said_once_and_seconds_stand_first() -> None:
    found = cm.compare("gpt2-small", on=["t4", "h100-sxm"], seq=128)
    table, *_ = found.tables()
    assert [row[0] for row in table.rows] == ["seconds", "range of seconds"]
    for p, text in zip(found.predictions, table.rows[1][1:], strict=True):
        assert text == f"{show_seconds(p.time.low)} to {show_seconds(p.time.high)}"
    assert "the same in all: params 124.4 M, flops.total" in str(found)
    assert "more quantities" in str(found)
    named = cm.compare("gpt2-small", on=["t4", "h100-sxm"], seq=128, quantities=["params", "seconds"])
    assert [row[0] for row in named.tables()[0].rows] == ["params", "seconds", "range of seconds"]
    figure = found.plot()
    assert [axes.get_title("left") for axes in figure.axes] == ["time of a step"]
    assert "stack eager" in figure.get_suptitle()
    assert "memory at the peak" in " ".join(figure.get_suptitle().split())


def test_one_alone_is_told_how_to_name_another() -> None:
    assert "not 1: name another, or several values" in error_of(lambda: cm.compare("gpt2-small"))
