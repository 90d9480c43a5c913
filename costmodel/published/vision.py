"""Published configurations of vision transformers."""

from __future__ import annotations

from typing import Any, ClassVar

from costmodel.architectures.base import Architecture, Probability, Size
from costmodel.architectures.vision_transformer import VisionTransformer
from costmodel.errors import SpecError, shown
from costmodel.published.config import activation_named
from costmodel.published.encoders import Classifying


class Vit(Classifying):
    """ViT (Dosovitskiy et al. 2021)."""

    MODEL_TYPE: ClassVar = "vit"
    HEADED: ClassVar = ("ViTForImageClassification",)
    HEADLESS: ClassVar = ("ViTModel",)
    IDLE: ClassVar = frozenset({"encoder_stride"})

    hidden_size: Size = 768
    num_hidden_layers: Size = 12
    num_attention_heads: Size = 12
    intermediate_size: Size = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: Probability = 0.0
    attention_probs_dropout_prob: Probability = 0.0
    image_size: Size | list[Size] = 224
    patch_size: Size | list[Size] = 16
    num_channels: Size = 3
    qkv_bias: bool = True
    pooler_output_size: Size | None = None
    pooler_act: str = "tanh"

    def _sides(self, name: str) -> tuple[int, int]:
        value = getattr(self, name)
        sides = value if isinstance(value, list) else [value, value]
        if len(sides) != 2:
            raise SpecError(f"{self.MODEL_TYPE}: {name} {shown(value)} is not one size or two", (name,))
        return sides[0], sides[1]

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        patch = self._sides("patch_size")
        if patch[0] != patch[1]:
            raise SpecError(f"{self.MODEL_TYPE}: patch_size {shown(list(patch))}: only squares are", ("patch_size",))
        return {
            "input": (self.num_channels, *self._sides("image_size")),
            "patch": patch[0],
            "layers": self.num_hidden_layers,
            "width": self.hidden_size,
            "heads": self.num_attention_heads,
            "fused_qkv": False,
            "qkv_bias": self.qkv_bias,
            "mlp_width": self.intermediate_size,
            "activation": activation_named(self.hidden_act),
            "embedding_dropout": self.hidden_dropout_prob,
            "attention_dropout": self.attention_probs_dropout_prob,
            "residual_dropout": self.hidden_dropout_prob,
            "classes": self.labels if self.headed else None,
            "pooler": None if self.headed else activation_named(self.pooler_act),
            "pooler_width": None if self.headed else self.pooler_output_size,
        }

    def model(self, fields: dict[str, Any]) -> Architecture:
        """See `Published.model`."""
        renamed = VisionTransformer.RENAMED
        return VisionTransformer.of({renamed.get(name, name): value for name, value in fields.items()})


class Deit(Vit):
    """DeiT (Touvron et al. 2021), distilled: a second token, which tells classes where a teacher's are wanted."""

    MODEL_TYPE: ClassVar = "deit"
    HEADED: ClassVar = ("DeiTForImageClassification", "DeiTForImageClassificationWithTeacher")
    HEADLESS: ClassVar = ("DeiTModel",)

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        return super().fields() | {"tokens": 2, "distilled": self.named == "DeiTForImageClassificationWithTeacher"}
