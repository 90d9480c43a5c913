"""Names that people type lead to the ready model that has exactly those sizes, or name it."""

import pytest

import costmodel as cm
from costmodel.importers.zoo import OTHER_NAMES, load
from tests.command import error_of
from tests.importers.published import PARAMS


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("gpt2", "gpt2-small"),
        ("openai-community/gpt2-medium", "gpt2-medium"),
        ("google-bert/bert-base-uncased", "bert-base"),
        ("vit_b_16", "vit-b-16"),
        ("google/vit-base-patch16-224", "vit-b-16"),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("meta-llama/Llama-2-13b-chat-hf", "llama-2-13b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("microsoft/phi-1_5", "phi-1.5"),
        ("stabilityai/stablelm-2-1_6b", "stablelm-2-1.6b"),
        ("google/t5-v1_1-base", "t5-v1.1-base"),
        ("timm/resnet50.a1_in1k", "resnet50"),
        ("openai/whisper-tiny", "whisper-tiny"),
    ],
)
def test_what_hubs_and_libraries_call_a_model(typed: str, name: str) -> None:
    assert cm.predict(typed, mode="inference").params == PARAMS[name]


def test_every_other_name_names_a_ready_model() -> None:
    ready = {entry.name for entry in cm.models()}
    assert set(OTHER_NAMES.values()) <= ready
    assert not ready & set(OTHER_NAMES)


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("bert-base-cased", "bert-base"),  # another vocabulary
        ("google/gemma-3-4b-it", "gemma-3-4b-text"),  # has a tower of images too
        ("microsoft/Phi-3-mini-128k-instruct", "phi-3-mini"),
    ],
)
def test_what_is_another_model_is_no_ready_one_but_names_it(typed: str, nearest: str) -> None:
    assert repr(nearest) in error_of(lambda: load(typed))


def test_a_directory_comes_before_a_hub(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load("mine/resnet18").name == "ResNet-18"
    (tmp_path / "mine").mkdir()
    assert "no such file" in error_of(lambda: load("mine/resnet18"))
