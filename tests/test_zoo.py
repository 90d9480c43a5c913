"""The ready models are what the literature says they are."""

import re
from pathlib import Path

import pytest

import costmodel as cm
from costmodel.errors import UnknownNameError
from costmodel.files import build, describe
from costmodel.zoo import SPECS, load
from tests.command import error_of

PUBLISHED_PARAMS = {
    "bert-base-encoder": 109_482_240 - 2 * 768 - 768 * 769,  # BERT-base without segment embeddings and pooler
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "mlp-lenet-300-100": 266_610,
    "tinyllama-1.1b": 1_100_048_384,
}
NAMES = [entry.name for entry in cm.models()]


@pytest.mark.parametrize(("name", "params"), PUBLISHED_PARAMS.items())
def test_parameters_are_the_published_ones(name: str, params: int) -> None:
    assert cm.predict(name).params == params


@pytest.mark.parametrize("entry", cm.models(), ids=lambda entry: entry.name)
def test_every_ready_model_predicts_describes_itself_and_names_its_source(entry) -> None:
    assert entry.params > 0
    assert build(describe(entry.model), "test") == entry.model
    assert entry.model.name
    assert re.search(r"\b(19|20)\d\d\b", entry.notes), "no year of publication"
    for stated in re.findall(r"([\d,]+) parameters", entry.notes):
        assert f"{entry.params:,}" == stated


def test_models_lists_every_spec_once() -> None:
    assert sorted(NAMES) == NAMES
    assert set(NAMES) == {path.stem for path in SPECS.iterdir()}


@pytest.mark.parametrize("name", ["gpt2-small", "GPT2-Small", "gpt2_small", "GPT2 small", "gpt2small"])
def test_names_are_read_whatever_their_case_and_hyphens(name: str) -> None:
    assert cm.load(name) is cm.GPT2Small


def test_load_gives_a_model_back_as_it_is() -> None:
    assert cm.load(cm.GPT2Small) is cm.GPT2Small


def test_attributes_are_the_ready_models() -> None:
    ready = [cm.GPT2Small, cm.GPT2Medium, cm.GPT2Large, cm.GPT2XL]
    assert [model.name for model in ready] == ["gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl"]


@pytest.mark.parametrize(
    ("name", "near"), [("gpt2-smal", "'gpt2-small'"), ("resnet-51", "'resnet50'"), ("lama-2-7b", "'llama-2-7b'")]
)
def test_an_unknown_model_lists_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=near):
        cm.load(name)


def test_a_missing_file_lists_the_nearest_ready_models() -> None:
    with pytest.raises(cm.CostModelError, match=r"no such file: gpt2-smal\.yaml: .*'gpt2-small'"):
        cm.load("gpt2-smal.yaml")


@pytest.mark.parametrize("name", ["stem.txt", "noext"])
def test_a_file_without_a_directory_is_pointed_to(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("architecture: mlp\nsizes: [3, 2]\n")
    assert error_of(lambda: load(name)) == f"{name!r} is no ready model, but a file: use ./{name}"
    assert load(f"./{name}") == cm.MLP(sizes=[3, 2])
    Path("gpt2-small").write_text("a ready model's name is its own")
    assert load("gpt2-small") is cm.load("gpt2-small")


def test_a_directory_is_called_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets").mkdir()
    for name in (".", "nets"):
        assert error_of(lambda name=name: load(name)) == f"{name} is a directory: name a model file in it"
