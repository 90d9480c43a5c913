"""Published configurations of decoders that go further from LLaMA: other norms, blocks, MLPs."""

from __future__ import annotations

from typing import Any, ClassVar

from costmodel.architectures.base import Factor, Probability, Size
from costmodel.errors import SpecError
from costmodel.published.llama import Decoder


class Phi(Decoder):
    """Phi 1 to 2 (Gunasekar et al. 2023; Javaheripi et al. 2023): parallel blocks, biases everywhere."""

    MODEL_TYPE: ClassVar = "phi"
    HEADED: ClassVar = ("PhiForCausalLM",)
    HEADLESS: ClassVar = ("PhiModel",)

    vocab_size: Size = 51200
    hidden_size: Size = 2048
    intermediate_size: Size = 8192
    num_hidden_layers: Size = 24
    num_attention_heads: Size = 32
    resid_pdrop: Probability = 0.0
    embd_pdrop: Probability = 0.0
    hidden_act: str = "gelu_new"
    qk_layernorm: bool = False
    partial_rotary_factor: Factor = 0.5

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        biases = dict.fromkeys(("qkv_bias", "attention_bias", "mlp_bias", "head_bias"), True)
        return (
            super().fields()
            | biases
            | {
                "mlp": "plain",
                "norm": "layernorm",
                "parallel": True,
                "shared_norm": True,
                "query_key_norm": "head" if self.qk_layernorm else None,
                "residual_dropout": self.resid_pdrop,
                "embedding_dropout": self.embd_pdrop,
            }
        )


class Phi3(Decoder):
    """Phi 3 and 4 (Abdin et al. 2024): LLaMA with one projection for query, key and value."""

    MODEL_TYPE: ClassVar = "phi3"
    HEADED: ClassVar = ("Phi3ForCausalLM",)
    HEADLESS: ClassVar = ("Phi3Model",)
    FIXED: ClassVar = {"attention_bias": (False,)}

    vocab_size: Size = 32064
    hidden_size: Size = 3072
    intermediate_size: Size = 8192
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    resid_pdrop: Probability = 0.0
    embd_pdrop: Probability = 0.0
    max_position_embeddings: Size = 4096
    sliding_window: Size | None = None

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`; the package applies no dropout to embeddings, whatever `embd_pdrop` says."""
        return super().fields() | {
            "fused_qkv": True,
            "window": self.sliding_window,
            "residual_dropout": self.resid_pdrop,
        }


class Starcoder2(Decoder):
    """StarCoder 2 (Lozhkov et al. 2024): layer norms and a plain MLP with biases."""

    MODEL_TYPE: ClassVar = "starcoder2"
    HEADED: ClassVar = ("Starcoder2ForCausalLM",)
    HEADLESS: ClassVar = ("Starcoder2Model",)
    FIXED: ClassVar = {"norm_type": ("layer_norm",), "mlp_type": ("default",), "layer_types": (None,)}

    vocab_size: Size = 49152
    hidden_size: Size = 3072
    intermediate_size: Size = 12288
    num_hidden_layers: Size = 30
    num_attention_heads: Size = 24
    num_key_value_heads: Size | None = 2
    hidden_act: str = "gelu_pytorch_tanh"
    max_position_embeddings: Size = 4096
    sliding_window: Size | None = None
    residual_dropout: Probability = 0.0
    embedding_dropout: Probability = 0.0
    use_bias: bool = True
    tie_word_embeddings: bool = True

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        biases = dict.fromkeys(("qkv_bias", "attention_bias", "mlp_bias"), self.use_bias)
        return (
            super().fields()
            | biases
            | {
                "window": self.sliding_window,
                "mlp": "plain",
                "norm": "layernorm",
                "residual_dropout": self.residual_dropout,
                "embedding_dropout": self.embedding_dropout,
            }
        )


class StableLm(Decoder):
    """StableLM 2 and 3B (Bellagente et al. 2024): layer norms, a quarter of each head turned."""

    MODEL_TYPE: ClassVar = "stablelm"
    HEADED: ClassVar = ("StableLmForCausalLM", "StableLMEpochForCausalLM")
    HEADLESS: ClassVar = ("StableLmModel",)
    vocab_size: Size = 50304
    intermediate_size: Size = 6912
    hidden_size: Size = 2560
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = 32
    max_position_embeddings: Size = 4096
    use_qkv_bias: bool = False
    use_parallel_residual: bool = False
    qk_layernorm: bool = False
    hidden_dropout: Probability = 0.0
    partial_rotary_factor: Factor = 0.25

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        if self.own_head_size is not None:
            raise SpecError(f"stablelm: head_dim {self.head_dim} is not hidden_size / heads", ("head_dim",))
        return super().fields() | {
            "qkv_bias": self.use_qkv_bias,
            "query_key_norm": "heads" if self.qk_layernorm else None,
            "norm": "layernorm",
            "parallel": self.use_parallel_residual,
            "shared_norm": self.use_parallel_residual,
            "residual_dropout": self.hidden_dropout,
        }


class Olmo(Decoder):
    """OLMo (Groeneveld et al. 2024): layer norms without trained scale or bias."""

    MODEL_TYPE: ClassVar = "olmo"
    HEADED: ClassVar = ("OlmoForCausalLM",)
    HEADLESS: ClassVar = ("OlmoModel",)

    vocab_size: Size = 50304
    hidden_size: Size = 4096
    intermediate_size: Size = 11008
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    attention_bias: bool = False
    clip_qkv: Factor | None = None

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        return super().fields() | {
            "qkv_bias": self.attention_bias,
            "attention_bias": self.attention_bias,
            "norm": "layernorm",
            "norm_affine": False,
            "qkv_clip": self.clip_qkv,
        }


class Olmo2(Decoder):
    """OLMo 2 (OLMo Team 2024): norms of outputs, queries and keys instead of inputs."""

    MODEL_TYPE: ClassVar = "olmo2"
    HEADED: ClassVar = ("Olmo2ForCausalLM",)
    HEADLESS: ClassVar = ("Olmo2Model",)

    vocab_size: Size = 50304
    hidden_size: Size = 4096
    intermediate_size: Size = 11008
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    attention_bias: bool = False

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        return super().fields() | {
            "qkv_bias": self.attention_bias,
            "attention_bias": self.attention_bias,
            "norm_placement": "output",
            "query_key_norm": "width",
        }


class Cohere(Decoder):
    """Command R (Cohere 2024): parallel blocks behind one layer norm without bias, scaled logits."""

    MODEL_TYPE: ClassVar = "cohere"
    HEADED: ClassVar = ("CohereForCausalLM",)
    HEADLESS: ClassVar = ("CohereModel",)
    vocab_size: Size = 256000
    hidden_size: Size = 8192
    intermediate_size: Size = 22528
    logit_scale: Factor = 0.0625
    use_qk_norm: bool = False
    num_hidden_layers: Size = 40
    num_attention_heads: Size = 64
    max_position_embeddings: Size = 8192
    attention_bias: bool = False
    tie_word_embeddings: bool = True

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        return super().fields() | {
            "qkv_bias": self.attention_bias,
            "attention_bias": self.attention_bias,
            "query_key_norm": "heads" if self.use_qk_norm else None,
            "norm": "layernorm",
            "norm_bias": False,
            "parallel": True,
            "shared_norm": True,
            "logit_scale": self.logit_scale,
        }
