"""Published configurations of mixtures of experts: Mixtral, and those of Qwen."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from costmodel.architectures.base import Size
from costmodel.published.config import cycle_of, words
from costmodel.published.llama import Decoder, Qwen2, Windowed

TRAINING = words("output_router_logits router_aux_loss_coef")
"""Fields of the balancing loss, which is not counted."""


class Mixtral(Decoder):
    """Mixtral (Jiang et al. 2024): every block chooses two of eight experts."""

    MODEL_TYPE: ClassVar = "mixtral"
    HEADED: ClassVar = ("MixtralForCausalLM",)
    HEADLESS: ClassVar = ("MixtralModel",)
    ALIASES: ClassVar = {"num_experts": "num_local_experts"}
    IDLE: ClassVar = Decoder.IDLE | TRAINING
    FIXED: ClassVar = {"router_jitter_noise": (0, 0.0)}

    vocab_size: Size = 32000
    hidden_size: Size = 4096
    intermediate_size: Size = 14336
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = 8
    max_position_embeddings: Size = 131072
    sliding_window: Size | None = None
    num_experts_per_tok: Size = 2
    num_local_experts: Size = 8

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        return super().fields() | {
            "window": self.sliding_window,
            "experts": self.num_local_experts,
            "experts_per_token": self.num_experts_per_tok,
        }


class Qwen2Moe(Qwen2):
    """Qwen 2 with experts (Yang et al. 2024): some blocks, small experts, and a gated one for all tokens."""

    MODEL_TYPE: ClassVar = "qwen2_moe"
    HEADED: ClassVar = ("Qwen2MoeForCausalLM",)
    HEADLESS: ClassVar = ("Qwen2MoeModel",)
    IDLE: ClassVar = Qwen2.IDLE | TRAINING

    hidden_size: Size = 2048
    intermediate_size: Size = 5632
    num_hidden_layers: Size = 24
    num_attention_heads: Size = 16
    num_key_value_heads: Size | None = 16
    decoder_sparse_step: Size = 1
    moe_intermediate_size: Size = 1408
    shared_expert_intermediate_size: Size = 5632
    num_experts_per_tok: Size = 4
    num_experts: Size = 60
    norm_topk_prob: bool = False
    mlp_only_layers: list[int] | None = None
    qkv_bias: bool = True

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        shared = {"shared_width": self.shared_expert_intermediate_size, "shared_gate": True}
        routing = self.routing(self.num_experts)
        return super().fields() | {"qkv_bias": self.qkv_bias} | routing | (shared if routing else {})

    def routing(self, experts: int) -> dict[str, Any]:
        """The experts' fields, if any block has experts."""
        layers = range(self.num_hidden_layers)
        dense = self.mlp_only_layers or []
        routed = [n not in dense and (n + 1) % self.decoder_sparse_step == 0 for n in layers]
        if not any(routed):
            return {}
        return {
            "experts": experts,
            "experts_per_token": self.num_experts_per_tok,
            "expert_width": self.moe_intermediate_size,
            "expert_pattern": cycle_of(routed, self.num_hidden_layers),
            "expert_weights": "chosen" if self.norm_topk_prob else "all",
        }


class Qwen3Moe(Qwen2Moe):
    """Qwen 3 with experts (Yang et al. 2025): queries and keys normalised in each head, no expert for all."""

    MODEL_TYPE: ClassVar = "qwen3_moe"
    HEADED: ClassVar = ("Qwen3MoeForCausalLM",)
    HEADLESS: ClassVar = ("Qwen3MoeModel",)
    ALIASES: ClassVar = {"num_local_experts": "num_experts"}

    intermediate_size: Size = 6144
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = 4
    moe_intermediate_size: Size = 768
    num_experts_per_tok: Size = 8
    num_experts: Size = 128
    attention_bias: bool = False
    qkv_bias: bool = Field(default=False, exclude=True)

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        alone = {"shared_width": None, "shared_gate": False}
        biases = {"qkv_bias": self.attention_bias, "attention_bias": self.attention_bias}
        return super().fields() | alone | biases | {"query_key_norm": "head"}


class GptOss(Windowed):
    """gpt-oss (OpenAI 2025): attention sinks, every other block with a window, biases, experts that bound what they do.

    Its experts are gated by x·σ(α x) whatever `hidden_act` says.
    """

    MODEL_TYPE: ClassVar = "gpt_oss"
    HEADED: ClassVar = ("GptOssForCausalLM",)
    HEADLESS: ClassVar = ("GptOssModel",)
    ALIASES: ClassVar = {"num_experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"}
    IDLE: ClassVar = Windowed.IDLE | TRAINING | words("initial_context_length swiglu_alpha swiglu_limit")

    vocab_size: Size = 201088
    hidden_size: Size = 2880
    intermediate_size: Size = 2880
    num_hidden_layers: Size = 36
    num_attention_heads: Size = 64
    num_key_value_heads: Size | None = 8
    head_dim: Size | None = 64
    max_position_embeddings: Size = 131072
    sliding_window: int | None = 128
    attention_bias: bool = True
    num_local_experts: Size = 128
    num_experts_per_tok: Size = 4

    def types_left_out(self) -> list[bool]:
        """Every other layer, from the first."""
        return [number % 2 == 0 for number in range(self.num_hidden_layers)]

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        self.check_whole(self.head_size)
        return (
            super().fields()
            | self.window()
            | {
                "qkv_bias": self.attention_bias,
                "attention_bias": self.attention_bias,
                "sinks": True,
                "mlp": "clamped",
                "mlp_bias": True,
                "activation": "sigmoid",
                "experts": self.num_local_experts,
                "experts_per_token": self.num_experts_per_tok,
                "router_bias": True,
            }
        )
