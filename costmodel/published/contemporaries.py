"""Published configurations of OPT, BLOOM, MPT and Falcon."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from costmodel.architectures.base import Factor, Probability, Size
from costmodel.errors import SpecError
from costmodel.published.config import Published, activation_named, words
from costmodel.published.rope import Rotating


class Opt(Published):
    """OPT (Zhang et al. 2022); its position table has two rows more than the context."""

    MODEL_TYPE: ClassVar = "opt"
    HEADED: ClassVar = ("OPTForCausalLM",)
    HEADLESS: ClassVar = ("OPTModel",)
    FIXED: ClassVar = {"layerdrop": (0, 0.0)}

    vocab_size: Size = 50272
    hidden_size: Size = 768
    num_hidden_layers: Size = 12
    ffn_dim: Size = 3072
    max_position_embeddings: Size = 2048
    do_layer_norm_before: bool = True
    remove_final_layer_norm: bool = Field(default=False, alias="_remove_final_layer_norm")
    word_embed_proj_dim: Size | None = None
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.0
    num_attention_heads: Size = 12
    activation_function: str = "relu"
    enable_bias: bool = True
    layer_norm_elementwise_affine: bool = True
    tie_word_embeddings: bool = True

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        outer = self.word_embed_proj_dim
        return {
            "vocab": self.vocab_size,
            "context": self.max_position_embeddings,
            "position_rows": self.max_position_embeddings + 2,
            "layers": self.num_hidden_layers,
            "width": self.hidden_size,
            "heads": self.num_attention_heads,
            "fused_qkv": False,
            "qkv_bias": self.enable_bias,
            "attention_bias": self.enable_bias,
            "mlp_width": self.ffn_dim,
            "mlp_bias": self.enable_bias,
            "activation": activation_named(self.activation_function),
            "norm_affine": self.layer_norm_elementwise_affine,
            "norm_placement": "pre" if self.do_layer_norm_before else "post",
            "final_norm": self.do_layer_norm_before and not self.remove_final_layer_norm,
            "embedding_width": None if outer == self.hidden_size else outer,
            "residual_dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "tied": self.tie_word_embeddings,
        }


class Bloom(Published):
    """BLOOM (BigScience Workshop 2022)."""

    MODEL_TYPE: ClassVar = "bloom"
    HEADED: ClassVar = ("BloomForCausalLM",)
    HEADLESS: ClassVar = ("BloomModel",)
    ALIASES: ClassVar = {"n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
    IDLE: ClassVar = words(
        "attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion offset_alibi skip_bias_add "
        "skip_bias_add_qkv slow_but_exact use_pp"
    )
    FIXED: ClassVar = {"apply_residual_connection_post_layernorm": (False,), "n_inner": (None,)}

    vocab_size: Size = 250880
    hidden_size: Size = 64
    n_layer: Size = 2
    n_head: Size = 8
    seq_length: Size = 2048
    hidden_dropout: Probability = 0.0
    attention_dropout: Probability = 0.0
    tie_word_embeddings: bool = True

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        return {
            "vocab": self.vocab_size,
            "context": self.seq_length,
            "layers": self.n_layer,
            "width": self.hidden_size,
            "heads": self.n_head,
            "positions": "alibi",
            "embedding_norm": True,
            "residual_dropout": self.hidden_dropout,
            "attention_dropout": self.attention_dropout,
            "tied": self.tie_word_embeddings,
        }


class MptAttention(BaseModel):
    """The mapping `attn_config` of MPT; what would change the cost is held to the one value that is published."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    attn_pdrop: Probability = 0.0
    clip_qkv: Factor | None = None
    softmax_scale: Factor | None = None
    attn_type: str = Field(default="multihead_attention", pattern="^multihead_attention$")
    alibi: bool = True
    qk_ln: bool = False
    prefix_lm: bool = False


class Mpt(Published):
    """MPT (MosaicML 2023): ALiBi positions, no biases."""

    MODEL_TYPE: ClassVar = "mpt"
    HEADED: ClassVar = ("MptForCausalLM", "MPTForCausalLM")
    HEADLESS: ClassVar = ("MptModel",)
    ALIASES: ClassVar = {"num_attention_heads": "n_heads", "hidden_size": "d_model", "num_hidden_layers": "n_layers"}
    IDLE: ClassVar = words(
        "embedding_fraction init_config init_device learned_pos_emb tokenizer_name use_pad_tok_in_ffn verbose"
    )
    FIXED: ClassVar = {
        "emb_pdrop": (0, 0.0),
        "expansion_ratio": (4,),
        "logit_scale": (None,),
        "no_bias": (True,),
        "norm_type": ("low_precision_layernorm", "layernorm"),
        "resid_pdrop": (0, 0.0),
    }

    vocab_size: Size = 50368
    d_model: Size = 2048
    n_heads: Size = 16
    n_layers: Size = 24
    max_seq_len: Size = 2048
    attn_config: MptAttention = Field(default=MptAttention(), description="a mapping of attention settings")
    tie_word_embeddings: bool = True

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        attention = self.attn_config
        if not attention.alibi or attention.qk_ln or attention.prefix_lm:
            raise SpecError(
                "mpt: attn_config: only alibi true, qk_ln false and prefix_lm false are understood", ("attn_config",)
            )
        return {
            "vocab": self.vocab_size,
            "context": self.max_seq_len,
            "layers": self.n_layers,
            "width": self.d_model,
            "heads": self.n_heads,
            "positions": "alibi",
            "qkv_bias": False,
            "qkv_clip": attention.clip_qkv,
            "score_scale": attention.softmax_scale,
            "attention_bias": False,
            "mlp_bias": False,
            "activation": "gelu",
            "norm_bias": False,
            "attention_dropout": attention.attn_pdrop,
            "residual_dropout": attention.attn_pdrop,
            "tied": self.tie_word_embeddings,
        }


class Falcon(Rotating):
    """Falcon (Almazrouei et al. 2023): one key and value head, or few; attention and MLP side by side."""

    MODEL_TYPE: ClassVar = "falcon"
    HEADED: ClassVar = ("FalconForCausalLM", "RWForCausalLM")
    HEADLESS: ClassVar = ("FalconModel",)
    ALIASES: ClassVar = {
        "n_embed": "hidden_size",
        "n_head": "num_attention_heads",
        "n_head_kv": "num_kv_heads",
        "n_layer": "num_hidden_layers",
    }
    FIXED: ClassVar = {"apply_residual_connection_post_layernorm": (False,)}

    vocab_size: Size = 65024
    hidden_size: Size = 4544
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 71
    num_kv_heads: Size | None = None
    num_ln_in_parallel_attn: int | None = Field(default=None, ge=1, le=2)
    hidden_dropout: Probability = 0.0
    attention_dropout: Probability = 0.0
    alibi: bool = False
    new_decoder_architecture: bool = False
    multi_query: bool = True
    parallel_attn: bool = True
    bias: bool = False
    max_position_embeddings: Size = 2048
    ffn_hidden_size: Size | None = None
    activation: str = "gelu"
    tie_word_embeddings: bool = True

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        new = self.new_decoder_architecture
        norms = self.num_ln_in_parallel_attn or (2 if new else 1)
        if (new and not self.parallel_attn) or (not new and norms == 2):
            raise SpecError(
                "falcon: new_decoder_architecture true takes parallel_attn true, and false takes "
                "num_ln_in_parallel_attn 1 or null"
            )
        kv_heads = self.num_kv_heads if new else 1 if self.multi_query else None
        return {
            "vocab": self.vocab_size,
            "context": self.max_position_embeddings,
            "layers": self.num_hidden_layers,
            "width": self.hidden_size,
            "heads": self.num_attention_heads,
            "kv_heads": kv_heads,
            "positions": "alibi" if self.alibi else "rotary",
            "rotary_size": None if self.alibi else self.rotated(self.hidden_size // self.num_attention_heads),
            "qkv_bias": self.bias,
            "attention_bias": self.bias,
            "parallel": self.parallel_attn,
            "shared_norm": self.parallel_attn and norms == 1,
            "mlp_width": self.ffn_hidden_size or 4 * self.hidden_size,
            "mlp_bias": self.bias,
            "activation": activation_named(self.activation),
            "residual_dropout": self.hidden_dropout,
            "attention_dropout": self.attention_dropout,
            "tied": self.tie_word_embeddings,
        }
