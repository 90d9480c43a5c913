"""Encoders of images, and of the text that two of them are trained beside."""

from __future__ import annotations

from typing import Any

from costmodel.architectures.base import Architecture
from costmodel.architectures.vision_transformer import VisionTransformer
from costmodel.errors import shown
from costmodel.importers.huggingface.family import Config, Family, labels, sizes
from costmodel.importers.huggingface.fields import Meaning, wrong
from costmodel.importers.huggingface.rules import heads_fill_width, sets


def vision(config: Config, made: dict[str, Any]) -> Architecture:
    """The vision transformer with these fields."""
    return VisionTransformer.of(made)


def image_size(config: Config, made: dict[str, Any]) -> None:
    """Images and patches of one size or two."""
    both = {}
    for field in ("image_size", "patch_size"):
        value = config[field]
        both[field] = tuple(value) if isinstance(value, list) else (value, value)
        if len(both[field]) != 2:
            raise wrong(field, f"{shown(value)} is not one size or two")
    patch = both["patch_size"]
    if patch[0] != patch[1]:
        raise wrong("patch_size", f"{shown(list(patch))}: only squares are")
    made |= {"input": (config["num_channels"], *both["image_size"]), "patch": patch[0]}


def image_ends(config: Config, made: dict[str, Any]) -> None:
    """Classes, or a pooler."""
    image_size(config, made)
    if "classes" in config.end:
        made |= {"classes": labels(config), "distilled": "teacher" in config.end}
    else:
        made |= {"classes": None, "pooler": config["pooler_act"], "pooler.width": config["pooler_output_size"]}


def clip_ends(config: Config, made: dict[str, Any]) -> None:
    """The features of the first token, or a projection of them."""
    image_size(config, made)
    made["classes"] = config["projection_dim"] if "projection" in config.end else None


def clip_text_ends(config: Config, made: dict[str, Any]) -> None:
    """The features of all tokens, or a projection of those of the last; as much as of the first."""
    if "projection" in config.end:
        made |= {"classes": config["projection_dim"], "classes.bias": False}


VIT = Family(
    model_type="vit",
    source="ViT (Dosovitskiy et al. 2021)",
    builds=vision,
    ends={"ViTForImageClassification": "classes", "ViTModel": ""},
    fields={"id2label": None, "num_labels": None, "hidden_size": 768, "num_hidden_layers": 12}
    | {"num_attention_heads": 12, "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.0}
    | {"attention_probs_dropout_prob": 0.0, "image_size": 224, "patch_size": 16, "num_channels": 3}
    | {"qkv_bias": True, "pooler_output_size": None, "pooler_act": "tanh", "head_dim": None},
    means={"head_dim": ""},
    sets={"fused_qkv": False},
    rules={"whole": heads_fill_width, "ends": image_ends},
    idle="encoder_stride tie_word_embeddings",
    written={"weights": "fp32"},
)


def dino_blocks(config: Config, made: dict[str, Any]) -> None:
    """Two thirds of the MLP's features, rounded up to a multiple of 8, where it is gated."""
    image_size(config, made)
    hidden = made["width"] * config["mlp_ratio"]
    made |= {"classes": None, "mlp_width": hidden}
    if config["use_swiglu_ffn"]:
        made |= {"mlp": "gated", "activation": "silu", "mlp_width": (hidden * 2 // 3 + 7) // 8 * 8}


DINOV2 = Family(
    model_type="dinov2",
    source="DINOv2 (Oquab et al. 2023): a vision transformer with a trained factor of each feature",
    like=VIT,
    ends={"Dinov2Model": ""},
    fields={"patch_size": 14, "mlp_ratio": 4, "use_swiglu_ffn": False, "use_mask_token": True},
    without="intermediate_size pooler_output_size pooler_act id2label num_labels",
    means={"use_mask_token": Meaning("flag", "mask_token")},
    sets={"layer_scale": True},
    rules={"ends": dino_blocks},
    idle="_out_features _out_indices apply_layernorm layerscale_value out_features out_indices reshape_hidden_states",
    fixed={"drop_path_rate": (0,)},
)

CLIP_VISION = Family(
    model_type="clip_vision_model",
    source="the encoder of images of CLIP (Radford et al. 2021): no bias in patches, a norm before the blocks",
    like=VIT,
    ends={"CLIPVisionModel": "", "CLIPVisionModelWithProjection": "projection"},
    fields={"patch_size": 32, "hidden_act": "quick_gelu", "attention_dropout": 0.0, "projection_dim": 512},
    without="hidden_dropout_prob attention_probs_dropout_prob qkv_bias pooler_output_size pooler_act id2label "
    "num_labels",
    sets={"patch_bias": False, "embedding_norm": True, "last_norm": "first", "class_bias": False},
    rules={"ends": clip_ends},
    idle="initializer_factor",
)
CLIP_TEXT = Family(
    model_type="clip_text_model",
    source="the encoder of text of CLIP (Radford et al. 2021): GPT-2's blocks, of which the last token is handed on",
    ends={"CLIPTextModel": "", "CLIPTextModelWithProjection": "projection"},
    fields=sizes(49408, 512, 2048, 12, 8, max_position_embeddings=77, hidden_act="quick_gelu", projection_dim=512)
    | {"attention_dropout": 0.0},
    sets={"fused_qkv": False, "tied": False},
    rules={"ends": clip_text_ends},
    idle="initializer_factor tie_word_embeddings",
)


def siglip_ends(config: Config, made: dict[str, Any]) -> None:
    """The features of all patches, or of a token that attends to them."""
    image_size(config, made)
    made |= {"classes": None, "attention_pool": config["vision_use_head"]}


SIGLIP_VISION = Family(
    model_type="siglip_vision_model",
    source="the encoder of images of SigLIP (Zhai et al. 2023): patches alone, pooled by attention",
    like=VIT,
    ends={"SiglipVisionModel": ""},
    fields={"hidden_act": "gelu_pytorch_tanh", "attention_dropout": 0.0, "vision_use_head": True},
    without="hidden_dropout_prob attention_probs_dropout_prob qkv_bias pooler_output_size pooler_act id2label "
    "num_labels",
    sets={"tokens": 0},
    rules={"ends": siglip_ends},
)


SIGLIP_TEXT = Family(
    model_type="siglip_text_model",
    source="the encoder of text of SigLIP (Zhai et al. 2023), of which the last token is projected",
    ends={"SiglipTextModel": ""},
    fields=sizes(32000, 768, 3072, 12, 12, max_position_embeddings=64, hidden_act="gelu_pytorch_tanh")
    | {"attention_dropout": 0.0, "projection_size": None},
    sets={"fused_qkv": False, "tied": False, "causal": False},
    rules={"ends": sets("classes", lambda config, made: config["projection_size"] or made["width"])},
    idle="tie_word_embeddings",
)

DEIT = Family(
    model_type="deit",
    source="DeiT (Touvron et al. 2021), distilled: a second token, which tells classes where a teacher's are wanted",
    like=VIT,
    ends={
        "DeiTForImageClassification": "classes",
        "DeiTForImageClassificationWithTeacher": "classes teacher",
        "DeiTModel": "",
    },
    sets={"tokens": 2},
)
