"""Published configurations of Gemma 1 to 3."""

from __future__ import annotations

from typing import Any, ClassVar

from costmodel.architectures.base import Factor, Size
from costmodel.published.config import activation_named
from costmodel.published.llama import Windowed


class Gemma(Windowed):
    """Gemma (Gemma Team 2024a): embeddings times √width, a gated MLP with GELU."""

    MODEL_TYPE: ClassVar = "gemma"
    HEADED: ClassVar = ("GemmaForCausalLM",)
    HEADLESS: ClassVar = ("GemmaModel",)
    FIXED: ClassVar = {"use_bidirectional_attention": (None, False)}

    vocab_size: Size = 256000
    hidden_size: Size = 3072
    intermediate_size: Size = 24576
    num_hidden_layers: Size = 28
    num_attention_heads: Size = 16
    num_key_value_heads: Size | None = 16
    head_dim: Size | None = 256
    hidden_act: str = "gelu_pytorch_tanh"
    hidden_activation: str | None = None
    max_position_embeddings: Size = 8192
    attention_bias: bool = False
    tie_word_embeddings: bool = True

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`; "gelu" is an older name of the approximation by tanh."""
        named = self.hidden_activation or self.hidden_act
        return super().fields() | {
            "activation": "gelu_tanh" if named == "gelu" else activation_named(named),
            "qkv_bias": self.attention_bias,
            "attention_bias": self.attention_bias,
            "embedding_scale": self.hidden_size**0.5,
        }


class Gemma2(Gemma):
    """Gemma 2 (Gemma Team 2024b): four norms, soft caps, every other layer sees a window."""

    MODEL_TYPE: ClassVar = "gemma2"
    HEADED: ClassVar = ("Gemma2ForCausalLM",)
    HEADLESS: ClassVar = ("Gemma2Model",)
    IDLE: ClassVar = Gemma.IDLE | {"cache_implementation", "sliding_window_size"}

    hidden_size: Size = 2304
    intermediate_size: Size = 9216
    num_hidden_layers: Size = 26
    num_attention_heads: Size = 8
    num_key_value_heads: Size | None = 4
    query_pre_attn_scalar: Factor = 256
    sliding_window: int | None = 4096
    final_logit_softcapping: Factor | None = 30.0
    attn_logit_softcapping: Factor | None = 50.0

    def types_left_out(self) -> list[bool]:
        """Every other layer, the first among them."""
        return [number % 2 == 0 for number in range(self.num_hidden_layers)]

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        return super().fields() | {
            "activation": activation_named(self.hidden_activation or self.hidden_act),
            "norm_placement": "both",
            "score_scale": self.query_pre_attn_scalar**-0.5,
            "score_cap": self.attn_logit_softcapping,
            "logit_cap": self.final_logit_softcapping,
            **self.window(),
        }


class Gemma3Text(Gemma2):
    """Gemma 3, its text model (Gemma Team 2025): query and key norms, five of six layers see a window."""

    MODEL_TYPE: ClassVar = "gemma3_text"
    HEADED: ClassVar = ("Gemma3ForCausalLM",)
    HEADLESS: ClassVar = ("Gemma3TextModel",)
    ALIASES: ClassVar = {"_sliding_window_pattern": "sliding_window_pattern"}
    IDLE: ClassVar = Gemma2.IDLE | {"rope_local_base_freq"}

    vocab_size: Size = 262208
    max_position_embeddings: Size = 131072
    final_logit_softcapping: Factor | None = None
    attn_logit_softcapping: Factor | None = None
    sliding_window_pattern: Size = 6

    def types_left_out(self) -> list[bool]:
        """All layers but every sixth."""
        return [(number + 1) % self.sliding_window_pattern != 0 for number in range(self.num_hidden_layers)]

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        return super().fields() | {"query_key_norm": "head"}
