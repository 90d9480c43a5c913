"""Names that people type lead to the ready model that has exactly those sizes, or name it."""

import pytest

import costmodel as cm
from costmodel.importers.zoo import OTHER_NAMES, load
from tests.command import error_of


@pytest.mark.parametrize(
    ("typed", "params"),  # as the hub's model card or the weights' file says
    [
        ("gpt2", 124_439_808),
        ("openai-community/gpt2-medium", 354_823_168),
        ("google-bert/bert-base-uncased", 110_106_428),
        ("vit_b_16", 86_567_656),
        ("google/vit-base-patch16-224", 86_567_656),
        ("meta-llama/Llama-3.1-8B", 8_030_261_248),
        ("meta-llama/Meta-Llama-3-8B-Instruct", 8_030_261_248),
        ("meta-llama/Llama-2-13b-chat-hf", 13_015_864_320),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46_702_792_704),
        ("microsoft/phi-1_5", 1_418_270_720),
        ("stabilityai/stablelm-2-1_6b", 1_644_515_328),
        ("google/t5-v1_1-base", 247_577_856),
        ("timm/resnet50.a1_in1k", 25_557_032),
        ("openai/whisper-tiny", 37_760_640),
    ],
)
def test_what_hubs_and_libraries_call_a_model(typed: str, params: int) -> None:
    assert cm.predict(typed, mode="inference").params == params


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
