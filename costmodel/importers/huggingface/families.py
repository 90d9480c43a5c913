"""Every family whose published configurations are read, by its `model_type`; and those that are known and not read."""

from __future__ import annotations

from typing import Any

from costmodel.architectures.base import Architecture
from costmodel.errors import SpecError, shown, unknown
from costmodel.importers.huggingface import (
    blocks,
    convolutional,
    deepseek,
    encoders,
    experts,
    gpt,
    hybrids,
    images,
    llama,
    rotary_encoders,
    translators,
)
from costmodel.importers.huggingface.family import Family
from costmodel.importers.huggingface.fields import wrong

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for subject in (
        gpt,
        llama,
        blocks,
        experts,
        deepseek,
        encoders,
        rotary_encoders,
        images,
        convolutional,
        translators,
        hybrids,
    )
    for family in vars(subject).values()
    if isinstance(family, Family) and family.model_type
}
"""The families."""


def _each(names: str, why: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), why)


NOT_MODELLED: dict[str, str] = {
    **_each("zamba zamba2", "its attention layers are shared between blocks, which no block here does"),
    **_each("recurrent_gemma rwkv", "its blocks are recurrences, of which no layer kind has the cost"),
    **_each("layoutlmv2 layoutlmv3", "it reads an image of the page beside its tokens, which no transformer here does"),
    **_each("longformer led longt5", "its attention goes over chunks of a sequence, which no block here does"),
    **_each(
        "mobilebert", "its blocks are narrower within than without, with several MLPs each, which no block here does"
    ),
    **_each("kimi_linear", "its linear attention decays each feature by itself, of which no layer kind has the cost"),
    **_each(
        "longcat_flash", "its experts go around the next attention, and some compute nothing, which no block here does"
    ),
    "t5gemma2": "its decoder attends to itself and to the encoder at once, which no encoder-decoder here does",
    "nllb-moe": "its encoder and decoder have experts in different blocks, which no encoder-decoder here has",
    "roformer": "its tables of sines are among its weights, which no position here has",
    "mllama": "its language model attends to what an encoder made of images, which no block here does",
}
"""Families that are known by name, and why their configurations are not read."""

TOWERS = {
    "aya_vision": ("AyaVision", "cohere2"),
    "cohere2_vision": ("Cohere2Vision", "cohere2"),
    "deepseek_vl": ("DeepseekVL", "llama"),
    "deepseek_vl_hybrid": ("DeepseekVLHybrid", "llama"),
    "exaone4_5": ("Exaone4_5_", "exaone4"),
    "fast_vlm": ("FastVlm", "qwen2"),
    "gemma3": ("Gemma3", "gemma3_text"),
    "gemma3n": ("Gemma3n", "gemma3n_text"),
    "gemma4": ("Gemma4", "gemma4_text"),
    "got_ocr2": ("GotOcr2", "qwen2"),
    "hyperclovax_vision_v2": ("HyperCLOVAXVisionV2", "hyperclovax"),
    "idefics2": ("Idefics2", "mistral"),
    "idefics3": ("Idefics3", "llama"),
    "internvl": ("InternVL", "qwen2"),
    "janus": ("Janus", "llama"),
    "kimi_k25": ("Kimi_K25", "deepseek_v3"),
    "lfm2_vl": ("Lfm2Vl", "lfm2"),
    "lighton_ocr": ("LightOnOcr", "qwen3"),
    "llama4": ("Llama4", "llama4_text"),
    "llava": ("Llava", "llama"),
    "llava_next": ("LlavaNext", "llama"),
    "llava_next_video": ("LlavaNextVideo", "llama"),
    "llava_onevision": ("LlavaOnevision", "qwen2"),
    "mistral3": ("Mistral3", "mistral"),
    "ovis2": ("Ovis2", "qwen2"),
    "paligemma": ("PaliGemma", "gemma"),
    "perception_lm": ("PerceptionLM", "llama"),
    "qwen2_5_vl": ("Qwen2_5_VL", "qwen2_5_vl_text"),
    "qwen2_vl": ("Qwen2VL", "qwen2_vl_text"),
    "qwen3_5": ("Qwen3_5", "qwen3_5_text"),
    "qwen3_5_moe": ("Qwen3_5Moe", "qwen3_5_moe_text"),
    "qwen3_vl": ("Qwen3VL", "qwen3_vl_text"),
    "qwen3_vl_moe": ("Qwen3VLMoe", "qwen3_vl_moe_text"),
    "smolvlm": ("SmolVLM", "llama"),
    "video_llama_3": ("VideoLlama3", "qwen2"),
    "video_llava": ("VideoLlava", "llama"),
    "vipllava": ("VipLlava", "llama"),
}
"""Models that join an encoder of images to a language model, whose fields are in `text_config`.

For each how its architectures begin, and the family of its language model where `text_config` does not say.
"""

OWN_HEADS = ("llama4",)
"""Those whose head is the language model's own: tied if `text_config` says so, whatever the whole says."""

ENCODERS = {
    "clip": ("CLIP", "clip_vision_model", "clip_text_model"),
    "siglip": ("Siglip", "siglip_vision_model", "siglip_text_model"),
}
"""Models of two encoders, of images and of text, whose outputs are compared: fields in `vision_config`, `text_config`.

For each how its architectures begin, and the families of the two.
"""


COMMON = ("bert", "gemma3", "gpt2", "gpt_oss", "llama", "mistral", "qwen3", "t5", "vit", "whisper")
"""Some that most people meet."""


def read_config(data: dict[str, Any]) -> Architecture:
    """The model that a published configuration describes.

    Raises SpecError; also for a `model_type` that is not known, with those that are.
    """
    name = data.get("model_type")
    if not isinstance(name, str):
        raise SpecError(f"model_type: {shown(name)} is not a name: give one such as 'llama'", ("model_type",))
    if name in NOT_MODELLED:
        raise wrong("model_type", f"{name!r} is known and not modelled: {NOT_MODELLED[name]}")
    if name in TOWERS:
        return _language_model(name, data)
    if name in ENCODERS:
        return _encoder(name, data)
    if name not in FAMILIES:
        known = [*FAMILIES, *TOWERS, *ENCODERS]
        near = str(unknown("model_type", name, known)).partition(": known are")[0]
        raise SpecError(
            f"{near}{'' if near.endswith('?') else '.'} {len(known)} families are read, such as {', '.join(COMMON)}: "
            "see the documentation of published configurations",
            ("model_type",),
        )
    if name == "xlm-roberta" and data.get("position_embedding_type") == "rotary":
        return rotary_encoders.OF_XLM_ROBERTA_FILES[0].read(data)
    return FAMILIES[name].read(data)


def _language_model(name: str, data: dict[str, Any]) -> Architecture:
    """The language model of a model of images and text. Older files have its fields among the others."""
    start, usual = TOWERS[name]
    text = data.get("text_config")
    if text is not None and not isinstance(text, dict):
        raise SpecError(f"{name}: text_config: {shown(text)} is not a mapping", ("text_config",))
    if not text and not {"hidden_size", "num_hidden_layers"} & data.keys():
        raise SpecError(f"{name}: text_config is missing: give the fields of its language model", ("text_config",))
    own = {"architectures", "audio_config", "model_type", "text_config", "vision_config"}
    inner = {field: value for field, value in data.items() if field not in own} if text is None else dict(text)
    kind = inner.get("model_type", usual)
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise SpecError(
            f"{name}: its language model is of model_type {shown(kind)}, which is not read",
            ("text_config", "model_type"),
        )
    family = FAMILIES[kind]
    headed = _headed(name, start, data)
    inner["architectures"] = [(family.headed if headed else family.headless)[0]]
    left = "encoder of images is" if data.get("audio_config") is None else "encoders of images and of sound are"
    said = f" It is the language model of a configuration of model_type {name}; the {left} left out."
    if name not in OWN_HEADS and "tie_word_embeddings" in data:
        inner["tie_word_embeddings"] = data["tie_word_embeddings"]
    elif name not in OWN_HEADS and headed:
        said += " Its head is tied as text_config has it; releases of the package differ where the whole says nothing."
    if "_name_or_path" in data:
        inner["_name_or_path"] = data["_name_or_path"]
    if name == "paligemma":  # whose prefix sees all of itself, whatever is said
        inner.pop("use_bidirectional_attention", None)
    try:
        return family.read(inner, said)
    except SpecError as error:
        path = error.path if text is None else ("text_config", *error.path)
        raise SpecError(f"{name}: {error}", path) from None


def _headed(name: str, start: str, data: dict[str, Any]) -> bool:
    """Whether a model of images and text has a head over the vocabulary: where no architecture is named, it has."""
    whole, bare = f"{start}ForConditionalGeneration", f"{start}Model"
    named = data.get("architectures") or [whole]
    if named not in ([whole], [bare]):
        raise SpecError(
            f"{name}: architectures: {shown(named)} is not {[whole]} or {[bare]}: name one of these", ("architectures",)
        )
    return named == [whole]


def _encoder(name: str, data: dict[str, Any]) -> Architecture:
    """One encoder of a model of two, which `architectures` names."""
    start, of_images, of_text = ENCODERS[name]
    whole, images, text = f"{start}Model", *(list(FAMILIES[kind].ends) for kind in (of_images, of_text))
    named = data.get("architectures") or [whole]
    if not isinstance(named, list) or len(named) != 1 or named[0] not in (whole, *images, *text):
        raise SpecError(
            f"{name}: architectures: {shown(named)} is not one of {[whole]}, {', '.join(images)} or {', '.join(text)}: "
            "name one of these",
            ("architectures",),
        )
    if named == [whole]:
        raise SpecError(
            f"{name}: {whole} is two encoders, which are read one at a time: set architectures to {[images[-1]]} or "
            f"{[text[-1]]}",
            ("architectures",),
        )
    kind, section, other = (of_text, "text_config", images) if named[0] in text else (of_images, "vision_config", text)
    inner: dict[str, Any] = {}
    for field in (section, f"{section}_dict"):  # older files repeat a section, and what they repeat holds
        given = data.get(field)
        if given is not None and not isinstance(given, dict):
            raise SpecError(f"{name}: {field}: {shown(given)} is not a mapping", (field,))
        inner |= given or {}
    if inner.get("model_type", kind) not in (kind, name):  # older files name the whole's
        raise SpecError(
            f"{name}: {section}: model_type {shown(inner['model_type'])} is not {kind!r}", (section, "model_type")
        )
    inner |= {"model_type": kind, "architectures": named}
    if "projection_dim" in data:  # which the whole goes by
        inner["projection_dim"] = data["projection_dim"]
    if "_name_or_path" in data:
        inner["_name_or_path"] = data["_name_or_path"]
    said = (
        f" It is one of two encoders of a configuration of model_type {name}; the other is read where architectures "
        f"names {other[-1]}."
    )
    try:
        return FAMILIES[kind].read(inner, said)
    except SpecError as error:
        raise SpecError(f"{name}: {error}", (section, *error.path)) from None
