"""Every family whose published configurations are read, by its `model_type`; and those that are known and not read."""

from __future__ import annotations

from typing import Any

from costmodel.architectures.base import Architecture
from costmodel.errors import SpecError, shown, unknown
from costmodel.importers.huggingface import encoders, experts, gpt, llama
from costmodel.importers.huggingface.family import Family

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for subject in (gpt, llama, experts, encoders)
    for family in vars(subject).values()
    if isinstance(family, Family) and family.model_type
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

    Raises SpecError; also for a `model_type` that is not known, with those that are.
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
