"""Published configurations of LLaMA and of the families that vary it by a few declarations."""

from __future__ import annotations

from typing import Any, ClassVar

from costmodel.architectures.base import Factor, Probability, Size
from costmodel.errors import SpecError
from costmodel.published.config import activation_named, cycle_of
from costmodel.published.rope import Rotating


class Decoder(Rotating):
    """Abstract: the names of sizes that these families share; a gated MLP, RMS norms, no biases but where declared."""

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    hidden_act: str = "silu"
    max_position_embeddings: Size = 2048
    attention_dropout: Probability = 0.0
    tie_word_embeddings: bool = False

    @property
    def head_size(self) -> int:
        """Features of a head."""
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise SpecError(
                f"{self.MODEL_TYPE}: num_attention_heads {self.num_attention_heads} does not divide hidden_size "
                f"{self.hidden_size}: give head_dim, or a divisor",
                ("num_attention_heads",),
            )
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def own_head_size(self) -> int | None:
        """Features of a head, where they are not the width over the heads."""
        return None if self.head_size * self.num_attention_heads == self.hidden_size else self.head_size

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        same = self.num_key_value_heads in (None, self.num_attention_heads)
        return {
            "vocab": self.vocab_size,
            "context": self.max_position_embeddings,
            "layers": self.num_hidden_layers,
            "width": self.hidden_size,
            "heads": self.num_attention_heads,
            "kv_heads": None if same else self.num_key_value_heads,
            "head_size": self.own_head_size,
            "positions": "rotary",
            "rotary_size": self.rotated(self.head_size),
            "fused_qkv": False,
            "qkv_bias": False,
            "attention_bias": False,
            "mlp": "gated",
            "mlp_width": self.intermediate_size,
            "mlp_bias": False,
            "activation": activation_named(self.hidden_act),
            "norm": "rmsnorm",
            "attention_dropout": self.attention_dropout,
            "tied": self.tie_word_embeddings,
        }


class Windowed(Decoder):
    """Abstract: some layers see a window, by `layer_types`."""

    sliding_window: int | None = None
    layer_types: list[str] | None = None

    def types_left_out(self) -> list[bool]:
        """Which layers have the window where `layer_types` are left out."""
        return [False] * self.num_hidden_layers

    def window(self) -> dict[str, Any]:
        """The fields of the window."""
        windowed = self.types_left_out() if self.layer_types is None else self._windowed(self.layer_types)
        if not any(windowed):
            return {}
        if not self.sliding_window or self.sliding_window < 1:
            if self.layer_types is None:
                return {}
            raise SpecError(
                f"{self.MODEL_TYPE}: layer_types has sliding_attention, and there is no sliding_window: give its size",
                ("layer_types",),
            )
        return {"window": self.sliding_window, "window_pattern": cycle_of(windowed, self.num_hidden_layers)}

    def _windowed(self, types: list[str]) -> list[bool]:
        known = ("full_attention", "sliding_attention")
        for number, kind in enumerate(types):
            if kind not in known:
                raise SpecError(
                    f"{self.MODEL_TYPE}: layer_types[{number}] {kind!r} is not {' or '.join(known)}",
                    ("layer_types", number),
                )
        if len(types) < self.num_hidden_layers:
            raise SpecError(
                f"{self.MODEL_TYPE}: layer_types has {len(types)} entries for {self.num_hidden_layers} layers",
                ("layer_types",),
            )
        return [kind == "sliding_attention" for kind in types]


class Llama(Decoder):
    """LLaMA 1 to 3 (Touvron et al. 2023a, 2023b; Grattafiori et al. 2024)."""

    MODEL_TYPE: ClassVar = "llama"
    HEADED: ClassVar = ("LlamaForCausalLM", "LLaMAForCausalLM")
    HEADLESS: ClassVar = ("LlamaModel",)
    IDLE: ClassVar = Decoder.IDLE | {"max_sequence_length"}

    vocab_size: Size = 32000
    hidden_size: Size = 4096
    intermediate_size: Size = 11008
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    attention_bias: bool = False
    mlp_bias: bool = False

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        biases = {"qkv_bias": self.attention_bias, "attention_bias": self.attention_bias, "mlp_bias": self.mlp_bias}
        return super().fields() | biases


class Granite(Llama):
    """Granite 3 (Granite Team, IBM 2024): LLaMA with four constant factors."""

    MODEL_TYPE: ClassVar = "granite"
    HEADED: ClassVar = ("GraniteForCausalLM",)
    HEADLESS: ClassVar = ("GraniteModel",)

    embedding_multiplier: Factor = 1.0
    logits_scaling: Factor = 1.0
    residual_multiplier: Factor = 1.0
    attention_multiplier: Factor = 1.0

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        return super().fields() | {
            "embedding_scale": self.embedding_multiplier,
            "residual_scale": self.residual_multiplier,
            "score_scale": self.attention_multiplier,
            "logit_scale": 1 / self.logits_scaling,
        }


class Mistral(Decoder):
    """Mistral 7B and those after it (Jiang et al. 2023)."""

    MODEL_TYPE: ClassVar = "mistral"
    HEADED: ClassVar = ("MistralForCausalLM",)
    HEADLESS: ClassVar = ("MistralModel",)

    vocab_size: Size = 32000
    hidden_size: Size = 4096
    intermediate_size: Size = 14336
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = 8
    max_position_embeddings: Size = 131072
    sliding_window: Size | None = 4096

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        return super().fields() | {"window": self.sliding_window}


class Qwen2(Windowed):
    """Qwen 2 and 2.5 (Yang et al. 2024a, 2024b): biases in query, key and value alone."""

    MODEL_TYPE: ClassVar = "qwen2"
    HEADED: ClassVar = ("Qwen2ForCausalLM",)
    HEADLESS: ClassVar = ("Qwen2Model",)
    IDLE: ClassVar = Windowed.IDLE | {"use_mrope"}

    vocab_size: Size = 151936
    hidden_size: Size = 4096
    intermediate_size: Size = 22016
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = 32
    max_position_embeddings: Size = 32768
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28

    def types_left_out(self) -> list[bool]:
        """The layers after the first `max_window_layers`."""
        return [number >= self.max_window_layers for number in range(self.num_hidden_layers)]

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        if not self.use_sliding_window and self.layer_types and any(self._windowed(self.layer_types)):
            raise SpecError(
                f"{self.MODEL_TYPE}: layer_types has sliding_attention, and use_sliding_window is false",
                ("layer_types",),
            )
        window = self.window() if self.use_sliding_window else {}
        return super().fields() | {"qkv_bias": True} | window


class Qwen3(Qwen2):
    """Qwen 3 (Yang et al. 2025): queries and keys normalised in each head, which has a size of its own."""

    MODEL_TYPE: ClassVar = "qwen3"
    HEADED: ClassVar = ("Qwen3ForCausalLM",)
    HEADLESS: ClassVar = ("Qwen3Model",)

    head_dim: Size | None = 128
    attention_bias: bool = False

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        biases = {"qkv_bias": self.attention_bias, "attention_bias": self.attention_bias}
        return super().fields() | biases | {"query_key_norm": "head"}


class SmolLm3(Windowed):
    """SmolLM3 (Bakouch et al. 2025): every fourth layer has no positions."""

    MODEL_TYPE: ClassVar = "smollm3"
    HEADED: ClassVar = ("SmolLM3ForCausalLM",)
    HEADLESS: ClassVar = ("SmolLM3Model",)
    IDLE: ClassVar = Windowed.IDLE | {"max_window_layers"}

    vocab_size: Size = 128256
    hidden_size: Size = 2048
    intermediate_size: Size = 11008
    num_hidden_layers: Size = 36
    num_attention_heads: Size = 16
    num_key_value_heads: Size | None = 4
    max_position_embeddings: Size = 32768
    use_sliding_window: bool = False
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: Size = 4
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = True

    @property
    def turned(self) -> list[bool]:
        """Which layers have rotary positions."""
        if self.no_rope_layers is None:
            return [(number + 1) % self.no_rope_layer_interval != 0 for number in range(self.num_hidden_layers)]
        if len(self.no_rope_layers) < self.num_hidden_layers:
            raise SpecError(
                f"smollm3: no_rope_layers has {len(self.no_rope_layers)} entries for {self.num_hidden_layers} layers",
                ("no_rope_layers",),
            )
        return [bool(turned) for turned in self.no_rope_layers]

    def types_left_out(self) -> list[bool]:
        """The layers without positions."""
        return [self.use_sliding_window and not turned for turned in self.turned]

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        biases = {"qkv_bias": self.attention_bias, "attention_bias": self.attention_bias, "mlp_bias": self.mlp_bias}
        turned = {"rotary_pattern": cycle_of(self.turned, self.num_hidden_layers)}
        return super().fields() | biases | turned | self.window()
