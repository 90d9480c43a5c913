"""Every family whose published configurations are read, by its `model_type`."""

from __future__ import annotations

from typing import Any

from costmodel.architectures.base import Architecture
from costmodel.errors import SpecError, shown, unknown
from costmodel.published.config import Published
from costmodel.published.contemporaries import Bloom, Falcon, Mpt, Opt
from costmodel.published.deepseek import DeepseekV2, DeepseekV3
from costmodel.published.encoders import Bert, DistilBert, Roberta
from costmodel.published.gemma import Gemma, Gemma2, Gemma3Text
from costmodel.published.gpt import Gpt2, GptJ, GptNeo, GptNeox
from costmodel.published.llama import Granite, Llama, Mistral, Qwen2, Qwen3, SmolLm3
from costmodel.published.mixtures import GptOss, Mixtral, Qwen2Moe, Qwen3Moe
from costmodel.published.relatives import Cohere, Olmo, Olmo2, Phi, Phi3, StableLm, Starcoder2
from costmodel.published.translators import T5, Whisper
from costmodel.published.vision import Deit, Vit

FAMILIES: dict[str, type[Published]] = {
    family.MODEL_TYPE: family
    for family in (
        *(Gpt2, GptNeo, GptNeox, GptJ, Opt, Bloom, Falcon, Mpt),
        *(Llama, Mistral, Qwen2, Qwen3, SmolLm3, Granite, Gemma, Gemma2, Gemma3Text),
        *(Phi, Phi3, Starcoder2, StableLm, Olmo, Olmo2, Cohere),
        *(Mixtral, Qwen2Moe, Qwen3Moe, GptOss, DeepseekV2, DeepseekV3),
        *(Bert, Roberta, DistilBert, Vit, Deit, T5, Whisper),
    )
}
"""The families."""


def _each(names: str, why: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), why)


NOT_MODELLED: dict[str, str] = {
    **_each(
        "bamba falcon_h1 falcon_mamba granitemoehybrid jamba mamba mamba2 nemotron_h zamba zamba2",
        "its blocks are state-space recurrences (Gu and Dao 2024), which the package composes of pieces of a sequence "
        "and kernels fuse otherwise; no layer kind has their cost",
    ),
    **_each("qwen3_next recurrent_gemma rwkv", "its blocks are recurrences, of which no layer kind has the cost"),
    **_each(
        "gemma3 llama4 llava mistral3 mllama paligemma qwen2_5_vl qwen2_vl qwen3_vl",
        "it joins an encoder of images to a language model; give the configuration of the language model alone "
        "(text_config) in a file of its own, if its model_type is known",
    ),
}
"""Families that are known by name, and why their configurations are not read."""


def read_config(data: dict[str, Any]) -> Architecture:
    """The model that a published configuration describes.

    Raises SpecError; UnknownNameError for a `model_type` that is not known, with those that are.
    """
    name = data.get("model_type")
    if not isinstance(name, str):
        raise SpecError(f"model_type: {shown(name)} is not a name: give one such as 'llama'", ("model_type",))
    if name in NOT_MODELLED:
        raise SpecError(f"model_type {name!r} is known and not modelled: {NOT_MODELLED[name]}", ("model_type",))
    if name not in FAMILIES:
        near = str(unknown("model_type", name, FAMILIES)).partition(": known are")[0]
        raise SpecError(
            f"{near}{'' if near.endswith('?') else '.'} Known are {', '.join(sorted(FAMILIES))}", ("model_type",)
        )
    return FAMILIES[name].read(data)
