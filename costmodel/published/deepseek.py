"""Published configurations of DeepSeek V2 and V3: latent attention, shared and routed experts, first dense blocks."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from costmodel.architectures.base import Factor, Size
from costmodel.errors import SpecError
from costmodel.published.config import words
from costmodel.published.llama import Decoder


class DeepseekV2(Decoder):
    """DeepSeek V2 and V2-Lite (DeepSeek-AI 2024a)."""

    MODEL_TYPE: ClassVar = "deepseek_v2"
    HEADED: ClassVar = ("DeepseekV2ForCausalLM",)
    HEADLESS: ClassVar = ("DeepseekV2Model",)
    ALIASES: ClassVar = {"num_experts": "n_routed_experts"}
    IDLE: ClassVar = Decoder.IDLE | words(
        "aux_loss_alpha ep_size head_dim output_router_logits qk_head_dim router_aux_loss_coef seq_aux"
    )
    FIXED: ClassVar = {"moe_layer_freq": (1,), "norm_topk_prob": (False, None), "scoring_func": ("softmax",)}

    vocab_size: Size = 102400
    hidden_size: Size = 4096
    intermediate_size: Size = 11008
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    head_dim: ClassVar[None] = None  # type: ignore[assignment]
    attention_bias: bool = False
    mlp_bias: bool = False
    q_lora_rank: Size | None = 1536
    kv_lora_rank: Size = 512
    qk_nope_head_dim: Size = 128
    qk_rope_head_dim: Size = 64
    v_head_dim: Size = 128
    first_k_dense_replace: int = Field(default=0, ge=0)
    moe_intermediate_size: Size = 1407
    n_routed_experts: Size = 64
    n_shared_experts: int | None = Field(default=2, ge=0)
    num_experts_per_tok: Size | None = None
    n_group: Size | None = None
    topk_group: Size | None = None
    topk_method: str = "greedy"
    routed_scaling_factor: Factor = 1.0

    @property
    def head_size(self) -> int:
        """Features of a query or key, turned ones and others."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def rotated(self, head_size: int) -> int | None:
        """See `Rotating.rotated`; a share would be of the features that are turned, not of the whole head."""
        return super().rotated(self.qk_rope_head_dim)

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        if self.qk_rope_head_dim % 2:
            raise SpecError(
                f"{self.MODEL_TYPE}: qk_rope_head_dim {self.qk_rope_head_dim} is odd: features are turned in pairs",
                ("qk_rope_head_dim",),
            )
        self.check_whole(self.qk_rope_head_dim)
        if self.num_key_value_heads not in (None, self.num_attention_heads):
            raise SpecError(
                f"{self.MODEL_TYPE}: num_key_value_heads {self.num_key_value_heads} is not num_attention_heads "
                f"{self.num_attention_heads}: latent attention has a key and a value for each head",
                ("num_key_value_heads",),
            )
        latent = {
            "head_size": self.head_size,
            "rotary_size": self.qk_rope_head_dim,
            "latent_width": self.kv_lora_rank,
            "query_latent_width": self.q_lora_rank,
            "value_head_size": None if self.v_head_dim == self.head_size else self.v_head_dim,
            "qkv_bias": self.attention_bias,
            "attention_bias": self.attention_bias,
        }
        return super().fields() | latent | {"mlp_bias": self.mlp_bias} | self.experts()

    def experts(self) -> dict[str, Any]:
        """The fields of the experts, if any block has them."""
        if self.first_k_dense_replace >= self.num_hidden_layers:
            return {}
        if self.num_experts_per_tok is None:
            raise SpecError(
                f"{self.MODEL_TYPE}: num_experts_per_tok is missing: give how many experts a token chooses",
                ("num_experts_per_tok",),
            )
        shared = self.moe_intermediate_size * (self.n_shared_experts or 0)
        return {
            "experts": self.n_routed_experts,
            "experts_per_token": self.num_experts_per_tok,
            "expert_width": self.moe_intermediate_size,
            "expert_bias": False if self.mlp_bias else None,
            "dense_layers": self.first_k_dense_replace or None,
            "shared_width": shared or None,
            "expert_scale": self.routed_scaling_factor,
            **self.choice(),
        }

    def choice(self) -> dict[str, Any]:
        """How a token chooses experts."""
        methods = ("greedy", "group_limited_greedy")
        if self.topk_method not in methods:
            raise SpecError(
                f"{self.MODEL_TYPE}: topk_method {self.topk_method!r} is not {' or '.join(methods)}", ("topk_method",)
            )
        if self.topk_method == "greedy":
            return {"expert_weights": "all"}
        return {"expert_weights": "all", **self.groups()}

    def groups(self) -> dict[str, Any]:
        """The groups that a token chooses among first."""
        if self.n_group is None or self.topk_group is None:
            field = "n_group" if self.n_group is None else "topk_group"
            raise SpecError(f"{self.MODEL_TYPE}: {field} is missing: experts are chosen within groups", (field,))
        return {"expert_groups": self.n_group, "chosen_groups": self.topk_group}


class DeepseekV3(DeepseekV2):
    """DeepSeek V3 and R1 (DeepSeek-AI 2024b); modules that predict further tokens are not part of the model."""

    MODEL_TYPE: ClassVar = "deepseek_v3"
    HEADED: ClassVar = ("DeepseekV3ForCausalLM",)
    HEADLESS: ClassVar = ("DeepseekV3Model",)
    ALIASES: ClassVar = {"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"}
    IDLE: ClassVar = DeepseekV2.IDLE | words("num_nextn_predict_layers rope_interleave")
    FIXED: ClassVar = {
        "mlp_bias": (False,),
        "moe_layer_freq": (1,),
        "scoring_func": ("sigmoid",),
        "topk_method": ("noaux_tc",),
    }

    vocab_size: Size = 129280
    hidden_size: Size = 7168
    intermediate_size: Size = 18432
    moe_intermediate_size: Size = 2048
    num_hidden_layers: Size = 61
    num_attention_heads: Size = 128
    num_key_value_heads: Size | None = 128
    max_position_embeddings: Size = 4096
    mlp_bias: ClassVar[bool] = False  # type: ignore[assignment]
    topk_method: ClassVar[str] = "noaux_tc"  # type: ignore[assignment]
    n_shared_experts: int | None = Field(default=1, ge=0)
    n_routed_experts: Size = 256
    routed_scaling_factor: Factor = 2.5
    n_group: Size | None = 8
    topk_group: Size | None = 4
    num_experts_per_tok: Size | None = 8
    first_k_dense_replace: int = Field(default=3, ge=0)
    norm_topk_prob: bool = True

    def choice(self) -> dict[str, Any]:
        """See `DeepseekV2.choice`."""
        return {
            "expert_weights": "sigmoid",
            "expert_shares": self.norm_topk_prob,
            "choice_bias": True,
            **self.groups(),
        }
