"""Published configurations of encoder-decoders: T5 and Whisper."""

from __future__ import annotations

from typing import Any, ClassVar

from costmodel.architectures.base import Architecture, Probability, Size
from costmodel.architectures.encoder_decoder import EncoderDecoder
from costmodel.architectures.transformer import Transformer
from costmodel.errors import SpecError, shown
from costmodel.published.config import Published, activation_named, words


class Translator(Published):
    """Abstract: an encoder, and a decoder with a head; or the encoder alone."""

    def model(self, fields: dict[str, Any]) -> Architecture:
        """See `Published.model`."""
        whole = EncoderDecoder.of({EncoderDecoder.RENAMED.get(name, name): value for name, value in fields.items()})
        if self.headed:
            return whole
        return Transformer(**whole.encoder.model_dump() | {"notes": whole.notes, "tied": False})


class T5(Translator):
    """T5, T5 1.1 and Flan-T5 (Raffel et al. 2020; Chung et al. 2022)."""

    MODEL_TYPE: ClassVar = "t5"
    HEADED: ClassVar = ("T5ForConditionalGeneration", "T5WithLMHeadModel")
    HEADLESS: ClassVar = ("T5EncoderModel",)
    ALIASES: ClassVar = {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    }
    IDLE: ClassVar = words(
        "relative_attention_max_distance initializer_factor output_past n_positions dense_act_fn is_gated_act"
    )
    FIXED: ClassVar = {"is_encoder_decoder": (True,), "is_decoder": (False,)}

    vocab_size: Size = 32128
    n_positions: Size = 512
    d_model: Size = 512
    d_kv: Size = 64
    d_ff: Size = 2048
    num_layers: Size = 6
    num_decoder_layers: Size | None = None
    num_heads: Size = 8
    relative_attention_num_buckets: Size = 32
    dropout_rate: Probability = 0.1
    feed_forward_proj: str = "relu"
    tie_word_embeddings: bool = True
    scale_decoder_outputs: bool | None = None

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`; what the head reads is scaled where it is tied (Shazeer & Stern 2018, Mesh TF)."""
        gated, _, act = self.feed_forward_proj.rpartition("-")
        if gated not in ("", "gated"):
            raise SpecError(
                f"t5: feed_forward_proj {shown(self.feed_forward_proj)} is not an activation, or one after 'gated-'",
                ("feed_forward_proj",),
            )
        scaled = self.tie_word_embeddings if self.scale_decoder_outputs is None else self.scale_decoder_outputs
        return {
            "vocab": self.vocab_size,
            "context": self.n_positions,
            "layers": self.num_layers,
            "decoder_layers": None if self.num_decoder_layers == self.num_layers else self.num_decoder_layers,
            "width": self.d_model,
            "heads": self.num_heads,
            "head_size": self.d_kv,
            "relative_buckets": self.relative_attention_num_buckets,
            "mlp": "gated" if gated else "plain",
            "mlp_width": self.d_ff,
            "activation": activation_named("gelu_new" if gated and act == "gelu" else act),
            "tied": self.tie_word_embeddings,
            "output_scale": self.d_model**-0.5 if scaled else None,
            **{f"{place}_dropout": self.dropout_rate for place in PLACES},
        }


PLACES = ("embedding", "attention", "residual", "mlp", "final")


class Whisper(Translator):
    """Whisper (Radford et al. 2022): sound in, text out."""

    MODEL_TYPE: ClassVar = "whisper"
    HEADED: ClassVar = ("WhisperForConditionalGeneration",)
    HEADLESS: ClassVar = ()
    ALIASES: ClassVar = {"hidden_size": "d_model", "num_attention_heads": "encoder_attention_heads"}
    IDLE: ClassVar = words(
        "num_hidden_layers num_key_value_heads classifier_proj_size mask_time_prob mask_time_length "
        "mask_time_min_masks mask_feature_prob mask_feature_length mask_feature_min_masks median_filter_width "
        "use_weighted_layer_sum alignment_heads forced_decoder_ids lang_to_id task_to_id "
        "no_timestamps_token_id is_multilingual"
    )
    FIXED: ClassVar = {
        "is_encoder_decoder": (True,),
        "is_decoder": (False,),
        "encoder_layerdrop": (0.0, 0),
        "decoder_layerdrop": (0.0, 0),
        "scale_embedding": (False,),
        "apply_spec_augment": (False,),
    }

    vocab_size: Size = 51865
    num_mel_bins: Size = 80
    encoder_layers: Size = 4
    encoder_attention_heads: Size = 6
    decoder_layers: Size = 4
    decoder_attention_heads: Size = 6
    decoder_ffn_dim: Size = 1536
    encoder_ffn_dim: Size = 1536
    activation_function: str = "gelu"
    d_model: Size = 384
    dropout: Probability = 0.0
    attention_dropout: Probability = 0.0
    activation_dropout: Probability = 0.0
    max_source_positions: Size = 1500
    max_target_positions: Size = 448
    tie_word_embeddings: bool = True

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`; keys have no bias."""
        own = {
            "decoder_layers": (self.decoder_layers, self.encoder_layers),
            "decoder_heads": (self.decoder_attention_heads, self.encoder_attention_heads),
            "decoder_mlp_width": (self.decoder_ffn_dim, self.encoder_ffn_dim),
        }
        biases = ("qkv_bias", "attention_bias", "mlp_bias")
        return {
            "vocab": self.vocab_size,
            "context": self.max_target_positions,
            "mel_bins": self.num_mel_bins,
            "source_context": self.max_source_positions,
            "layers": self.encoder_layers,
            "width": self.d_model,
            "heads": self.encoder_attention_heads,
            "mlp_width": self.encoder_ffn_dim,
            **{name: None if value == same else value for name, (value, same) in own.items()},
            "positions": "learned",
            **dict.fromkeys(biases, True),
            "key_bias": False,
            "score_scale": None,
            "activation": activation_named(self.activation_function),
            "norm": "layernorm",
            "embedding_dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "residual_dropout": self.dropout,
            "mlp_dropout": self.activation_dropout,
            "tied": self.tie_word_embeddings,
        }
