"""Published configurations of the GPT line and its contemporaries, each with names of its own for the same sizes."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from costmodel.architectures.base import Factor, Probability, Size
from costmodel.errors import SpecError, shown
from costmodel.published.config import Published, activation_named, cycle_of, words
from costmodel.published.rope import Rotating


class Gpt2(Published):
    """GPT-2 (Radford et al. 2019)."""

    MODEL_TYPE: ClassVar = "gpt2"
    HEADED: ClassVar = ("GPT2LMHeadModel",)
    HEADLESS: ClassVar = ("GPT2Model",)
    ALIASES: ClassVar = {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }
    IDLE: ClassVar = words(
        "n_ctx reorder_and_upcast_attn scale_attn_by_inverse_layer_idx summary_activation "
        "summary_first_dropout summary_proj_to_labels summary_type summary_use_proj"
    )

    vocab_size: Size = 50257
    n_positions: Size = 1024
    n_embd: Size = 768
    n_layer: Size = 12
    n_head: Size = 12
    n_inner: Size | None = None
    activation_function: str = "gelu_new"
    resid_pdrop: Probability = 0.1
    embd_pdrop: Probability = 0.1
    attn_pdrop: Probability = 0.1
    scale_attn_weights: bool = True
    tie_word_embeddings: bool = True

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        return {
            "vocab": self.vocab_size,
            "context": self.n_positions,
            "layers": self.n_layer,
            "width": self.n_embd,
            "heads": self.n_head,
            "mlp_width": self.n_inner,
            "activation": activation_named(self.activation_function),
            "score_scale": None if self.scale_attn_weights else 1.0,
            "residual_dropout": self.resid_pdrop,
            "embedding_dropout": self.embd_pdrop,
            "attention_dropout": self.attn_pdrop,
            "tied": self.tie_word_embeddings,
        }


class GptJ(Published):
    """GPT-J (Wang & Komatsuzaki 2021)."""

    MODEL_TYPE: ClassVar = "gptj"
    HEADED: ClassVar = ("GPTJForCausalLM",)
    HEADLESS: ClassVar = ("GPTJModel",)
    ALIASES: ClassVar = Gpt2.ALIASES
    IDLE: ClassVar = Gpt2.IDLE | {"rotary"}
    FIXED: ClassVar = {"scale_attn_weights": (True,)}

    vocab_size: Size = 50400
    n_positions: Size = 2048
    n_embd: Size = 4096
    n_layer: Size = 28
    n_head: Size = 16
    rotary_dim: Size = 64
    n_inner: Size | None = None
    activation_function: str = "gelu_new"
    resid_pdrop: Probability = 0.0
    embd_pdrop: Probability = 0.0
    attn_pdrop: Probability = 0.0
    tie_word_embeddings: bool = False

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        return {
            "vocab": self.vocab_size,
            "context": self.n_positions,
            "layers": self.n_layer,
            "width": self.n_embd,
            "heads": self.n_head,
            "positions": "rotary",
            "rotary_size": self.rotary_dim,
            "fused_qkv": False,
            "qkv_bias": False,
            "attention_bias": False,
            "parallel": True,
            "shared_norm": True,
            "mlp_width": self.n_inner,
            "activation": activation_named(self.activation_function),
            "residual_dropout": self.resid_pdrop,
            "embedding_dropout": self.embd_pdrop,
            "attention_dropout": self.attn_pdrop,
            "tied": self.tie_word_embeddings,
            "head_bias": True,
        }


class GptNeo(Published):
    """GPT-Neo (Black et al. 2021): every other block sees a window, and scores are not scaled."""

    MODEL_TYPE: ClassVar = "gpt_neo"
    HEADED: ClassVar = ("GPTNeoForCausalLM",)
    HEADLESS: ClassVar = ("GPTNeoModel",)
    ALIASES: ClassVar = {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}
    IDLE: ClassVar = Gpt2.IDLE | {"attention_layers"}

    vocab_size: Size = 50257
    max_position_embeddings: Size = 2048
    hidden_size: Size = 2048
    num_layers: Size = 24
    attention_types: list[Any] = Field(
        default=[[["global", "local"], 12]], description="pairs of a cycle and its times"
    )
    num_heads: Size = 16
    intermediate_size: Size | None = None
    window_size: Size = 256
    activation_function: str = "gelu_new"
    resid_dropout: Probability = 0.0
    embed_dropout: Probability = 0.0
    attention_dropout: Probability = 0.0
    tie_word_embeddings: bool = True

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        local = self._local()
        return {
            "vocab": self.vocab_size,
            "context": self.max_position_embeddings,
            "layers": self.num_layers,
            "width": self.hidden_size,
            "heads": self.num_heads,
            "window": self.window_size if any(local) else None,
            "window_pattern": cycle_of(local, self.num_layers) if any(local) else (),
            "fused_qkv": False,
            "qkv_bias": False,
            "score_scale": 1.0,
            "mlp_width": self.intermediate_size,
            "activation": activation_named(self.activation_function),
            "residual_dropout": self.resid_dropout,
            "embedding_dropout": self.embed_dropout,
            "attention_dropout": self.attention_dropout,
            "tied": self.tie_word_embeddings,
        }

    def _local(self) -> list[bool]:
        """Which layers see the window."""
        kinds: list[Any] = []
        for pair in self.attention_types:
            match pair:
                case [list() as cycle, int() as times] if 0 <= len(cycle) * times <= self.num_layers:
                    kinds += cycle * times
                case _:
                    kinds.append(pair)
        if len(kinds) != self.num_layers or not all(kind in ("global", "local") for kind in kinds):
            raise SpecError(
                f"gpt_neo: attention_types {shown(self.attention_types)} are not 'global' or 'local' for each of "
                f"num_layers {self.num_layers}: give pairs such as [['global', 'local'], 12]",
                ("attention_types",),
            )
        return [kind == "local" for kind in kinds]


class GptNeox(Rotating):
    """GPT-NeoX and Pythia (Black et al. 2022; Biderman et al. 2023)."""

    MODEL_TYPE: ClassVar = "gpt_neox"
    HEADED: ClassVar = ("GPTNeoXForCausalLM",)
    HEADLESS: ClassVar = ("GPTNeoXModel",)
    ALIASES: ClassVar = {"rotary_pct": "partial_rotary_factor"}
    IDLE: ClassVar = Rotating.IDLE | {"rotary_emb_base"}

    vocab_size: Size = 50432
    hidden_size: Size = 6144
    num_hidden_layers: Size = 44
    num_attention_heads: Size = 64
    intermediate_size: Size = 24576
    hidden_act: str = "gelu"
    attention_dropout: Probability = 0.0
    hidden_dropout: Probability = 0.0
    max_position_embeddings: Size = 2048
    tie_word_embeddings: bool = False
    use_parallel_residual: bool = True
    attention_bias: bool = True
    partial_rotary_factor: Factor = 0.25

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        return {
            "vocab": self.vocab_size,
            "context": self.max_position_embeddings,
            "layers": self.num_hidden_layers,
            "width": self.hidden_size,
            "heads": self.num_attention_heads,
            "positions": "rotary",
            "rotary_size": self.rotated(self.hidden_size // self.num_attention_heads),
            "qkv_bias": self.attention_bias,
            "attention_bias": self.attention_bias,
            "parallel": self.use_parallel_residual,
            "mlp_width": self.intermediate_size,
            "activation": activation_named(self.hidden_act),
            "attention_dropout": self.attention_dropout,
            "residual_dropout": self.hidden_dropout,
            "embedding_dropout": self.hidden_dropout,
            "tied": self.tie_word_embeddings,
        }
