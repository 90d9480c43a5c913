"""Encoder-decoders: an encoder of text or sound, and a decoder that writes what it reads of that."""

from __future__ import annotations

from typing import Any

from costmodel.architectures.base import Architecture
from costmodel.architectures.encoder_decoder import EncoderDecoder
from costmodel.architectures.transformer import Transformer
from costmodel.errors import SpecError, shown
from costmodel.importers.huggingface.family import Config, Family, architectures, headless
from costmodel.importers.huggingface.fields import FIXED, Meaning, activation_named, wrong
from costmodel.importers.huggingface.llama import GEMMA2
from costmodel.importers.huggingface.rules import cycle, forget_experts

TIED_THERE = "Its head has weights of its own, as its file says; the package ties them in a model made anew."


def encoder_decoder(config: Config, made: dict[str, Any]) -> Architecture:
    """An encoder, and a decoder with a head or without; or the encoder alone."""
    if "tokens" in config.end and not made.get("tied", True):
        made["notes"] = f"{made['notes']} {TIED_THERE}"
    if "decoder" in config.end:
        made = headless(made)
    whole = EncoderDecoder.of(made)
    if {"tokens", "decoder"} & config.end:
        return whole
    return Transformer(**whole.encoder.model_dump() | {"notes": whole.notes, "tied": False})


def t5_blocks(config: Config, made: dict[str, Any]) -> None:
    """An activation, or one after "gated-"; what a tied head reads is scaled (Shazeer & Stern 2018, Mesh TF)."""
    gated, _, act = config["feed_forward_proj"].rpartition("-")
    if gated not in ("", "gated"):
        raise wrong(
            "feed_forward_proj", f"{shown(config['feed_forward_proj'])} is not an activation, or one after 'gated-'"
        )
    activation = activation_named("gelu_new" if gated and act == "gelu" else act)
    for field, value in {"is_gated_act": bool(gated), "dense_act_fn": activation}.items():
        if config[field] not in (None, value):
            raise wrong(
                field,
                f"{shown(config[field])} and feed_forward_proj {shown(config['feed_forward_proj'])} disagree: "
                f"leave {field} out",
            )
    told, decoder = config["scale_decoder_outputs"], config["num_decoder_layers"]
    made |= {
        "mlp": "gated" if gated else "plain",
        "activation": activation,
        "head.input_scale": made["width"] ** -0.5 if (made["tied"] if told is None else told) else None,
        "decoder_layers": None if decoder == made["layers"] else decoder,
    }


T5 = Family(
    model_type="t5",
    source="T5, T5 1.1 and Flan-T5 (Raffel et al. 2020; Chung et al. 2022)",
    builds=encoder_decoder,
    ends=architectures("T5ForConditionalGeneration T5WithLMHeadModel", "T5EncoderModel") | {"T5Model": "decoder"},
    fields={"vocab_size": 32128, "n_positions": 512, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6}
    | {"num_decoder_layers": None, "num_heads": 8, "relative_attention_num_buckets": 32, "dropout_rate": 0.1}
    | {"feed_forward_proj": "relu", "tie_word_embeddings": True, "scale_decoder_outputs": None}
    | {"is_gated_act": None, "dense_act_fn": None},
    means={"dropout_rate": "embedding_dropout attention_dropout residual_dropout mlp_dropout final_dropout"},
    rules={"blocks": t5_blocks},
    aliases="hidden_size num_attention_heads num_hidden_layers head_dim",
    idle="relative_attention_max_distance",
    fixed={"is_encoder_decoder": (True, False), "is_decoder": (False,)},
    written={"norm": "mixed"},
)

MT5 = Family(
    model_type="mt5",
    source="mT5 (Xue et al. 2021): T5 1.1 in a hundred languages",
    like=T5,
    ends=architectures("MT5ForConditionalGeneration", "MT5EncoderModel") | {"MT5Model": "decoder"},
    fields={"vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu"},
    aliases=T5.aliases,
)
UMT5 = Family(
    model_type="umt5",
    source="UMT5 (Chung et al. 2023): mT5 with biases by distance of each block's own",
    like=MT5,
    ends=architectures("UMT5ForConditionalGeneration", "UMT5EncoderModel") | {"UMT5Model": "decoder"},
    sets={"relative_shared": False},
    aliases=T5.aliases,
)


def switch_blocks(config: Config, made: dict[str, Any]) -> None:
    """Every so many blocks have experts, of which each token takes one; what a tied head reads is scaled."""
    layers, decoder = made["layers"], config["num_decoder_layers"] or made["layers"]
    steps = [
        own // config[field] if config[field] else own
        for own, field in ((layers, "num_sparse_encoder_layers"), (decoder, "num_sparse_decoder_layers"))
    ]
    if 0 in steps:
        raise wrong("num_sparse_encoder_layers", "or num_sparse_decoder_layers is more than there are layers")
    patterns = [[step == 1 or n % step == 1 for n in range(step)] for step in steps]
    reached = [
        any(pattern[n % len(pattern)] for n in range(own))
        for pattern, own in zip(patterns, (layers, decoder), strict=True)
    ]
    if True in reached and (patterns[0] != patterns[1] or False in reached):
        raise wrong(
            "num_sparse_decoder_layers",
            "gives the decoder experts in other blocks than the encoder, which is not modelled",
        )
    made |= {"decoder_layers": None if decoder == layers else decoder, "mlp": "plain"}
    made["head.input_scale"] = made["width"] ** -0.5 if made["tied"] else None
    if True in reached:
        made |= {"experts.pattern": cycle(patterns[0] * layers, layers), "experts.dropout": config["dropout_rate"]}
    else:
        forget_experts(made)


SWITCH_TRANSFORMERS = Family(
    model_type="switch_transformers",
    source="Switch Transformers (Fedus et al. 2022): T5 with experts, of which each token takes one",
    builds=encoder_decoder,
    ends=architectures("SwitchTransformersForConditionalGeneration", "SwitchTransformersEncoderModel")
    | {"SwitchTransformersModel": "decoder"},
    fields={"vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_decoder_layers": 12}
    | {"num_heads": 12, "relative_attention_num_buckets": 32, "dropout_rate": 0.1, "dense_act_fn": "relu"}
    | {"tie_word_embeddings": True, "num_experts": 8, "num_sparse_encoder_layers": 3}
    | {"num_sparse_decoder_layers": 3, "router_bias": False},
    means={
        "dropout_rate": "embedding_dropout attention_dropout residual_dropout mlp_dropout final_dropout",
        "dense_act_fn": "activation",
    },
    sets={"experts.per_token": 1, "experts.weights": "all"},
    rules={"blocks": switch_blocks},
    aliases="hidden_size num_attention_heads num_hidden_layers",
    idle="relative_attention_max_distance expert_capacity router_jitter_noise router_dtype add_router_probs "
    "router_ignore_padding_tokens router_z_loss_coef router_aux_loss_coef encoder_sparse_step decoder_sparse_step",
    fixed={"is_encoder_decoder": (True,), "is_decoder": (False,)},
    note="No token is beyond its expert's capacity, and no noise is added to what the router reads.",
)

SIDES = (
    Family(
        model_type="t5_gemma_module",
        like=GEMMA2,
        ends={"T5GemmaModule": ""},
        fields={"tie_word_embeddings": True},
        idle="cross_attention_hidden_size classifier_dropout_rate dropout_rate num_hidden_layers",
        fixed={"cross_attention_hidden_size": FIXED["cross_attention_hidden_size"]},
    ),
)
"""How the encoder and the decoder of T5Gemma are described, each in a mapping: as Gemma 2."""


def two_sides(config: Config, made: dict[str, Any]) -> None:
    """Encoder and decoder, which differ in how many layers, heads and hidden features they have alone."""
    encoder, decoder = (_side(config, name) for name in ("encoder", "decoder"))
    same = ("vocab", "width", "head_features", "key_heads", "window", "score_scale", "score_cap", "activation")
    for name in (*same, "qkv_bias", "attention_bias", "context"):
        if getattr(encoder, name) != getattr(decoder, name):
            raise SpecError(f"encoder and decoder differ in {name}, which is not modelled", ("decoder",))
    made |= {
        name: getattr(encoder, name) for name in (*same, "qkv_bias", "attention_bias", "context", "layers", "heads")
    }
    made |= {"head_size": made.pop("head_features"), "kv_heads": made.pop("key_heads"), "mlp_width": encoder.hidden}
    for name, own in {"layers": decoder.layers, "heads": decoder.heads, "mlp_width": decoder.hidden}.items():
        made[f"decoder_{name}"] = None if own == made[name] else own
    made |= {
        "embedding_scale": encoder.embedding_scale,
        "head.logit_cap": config["decoder"].get("final_logit_softcapping", 30.0),
    }


def _side(config: Config, name: str) -> Transformer:
    fields = dict(config[name] or {})
    fields.pop("cross_attention_hidden_size", None)
    fields.pop("is_decoder", None)
    side = SIDES[0].read(fields)
    assert isinstance(side, Transformer)
    return side


T5GEMMA = Family(
    model_type="t5gemma",
    source="T5Gemma (Zhang et al. 2025): an encoder and a decoder built as Gemma 2",
    builds=encoder_decoder,
    ends={"T5GemmaForConditionalGeneration": "tokens"},
    fields={"encoder": {}, "decoder": {}, "dropout_rate": 0.0, "attention_dropout": 0.0, "tie_word_embeddings": True},
    means={
        "encoder": Meaning("mapping"),
        "decoder": Meaning("mapping"),
        "dropout_rate": "embedding_dropout residual_dropout mlp_dropout final_dropout",
    },
    sets={
        "positions": "rotary",
        "norm_placement": "both",
        "norm": "rmsnorm",
        "mlp": "gated",
        "shared_embedding": False,
    },
    rules={"sides": two_sides},
    idle="classifier_dropout_rate head_dim vocab_size initializer_range",
    fixed={"is_encoder_decoder": (True,)},
)


def whisper_decoder(config: Config, made: dict[str, Any]) -> None:
    """Sizes of the decoder, where they are not the encoder's."""
    own = {"layers": "decoder_layers", "heads": "decoder_attention_heads", "mlp_width": "decoder_ffn_dim"}
    for ours, field in own.items():
        made[f"decoder_{ours}"] = None if config[field] == made[ours] else config[field]


def bart_positions(config: Config, made: dict[str, Any]) -> None:
    """The tables have two rows more than the context; embeddings may be times √width."""
    same_positions(config, made)
    made["position_rows"] = made["context"] + 2


def same_positions(config: Config, made: dict[str, Any]) -> None:
    """The tables have as many rows as the context."""
    whisper_decoder(config, made)
    made["embedding_scale"] = made["width"] ** 0.5 if config["scale_embedding"] else None


BART = Family(
    model_type="bart",
    source="BART (Lewis et al. 2020): encoder and decoder with learned positions; norms come last",
    builds=encoder_decoder,
    ends={"BartForConditionalGeneration": "tokens", "BartModel": "decoder"},
    fields={"vocab_size": 50265, "max_position_embeddings": 1024, "encoder_layers": 12, "encoder_ffn_dim": 4096}
    | {"encoder_attention_heads": 16, "decoder_layers": 12, "decoder_ffn_dim": 4096, "decoder_attention_heads": 16}
    | {"activation_function": "gelu", "d_model": 1024, "dropout": 0.1, "attention_dropout": 0.0}
    | {"activation_dropout": 0.0, "scale_embedding": False},
    sets={"positions": "learned", "qkv_bias": True, "attention_bias": True, "mlp_bias": True, "score_scale": None}
    | {"norm": "layernorm", "norm_placement": "post", "embedding_norm": True},
    rules={"decoder": bart_positions},
    aliases="hidden_size num_attention_heads",
    idle="num_hidden_layers num_key_value_heads",
    fixed={"is_encoder_decoder": (True,), "is_decoder": (False,), "encoder_layerdrop": (0,)}
    | {"decoder_layerdrop": (0,), "tie_word_embeddings": (True,)},
)
PLBART = Family(
    model_type="plbart",
    source="PLBART (Ahmad et al. 2021): BART for code, its embeddings times √width",
    like=BART,
    ends={"PLBartForConditionalGeneration": "tokens", "PLBartModel": "decoder"},
    fields={"vocab_size": 50005, "encoder_layers": 6, "encoder_ffn_dim": 3072, "encoder_attention_heads": 12}
    | {"decoder_layers": 6, "decoder_ffn_dim": 3072, "decoder_attention_heads": 12, "d_model": 768}
    | {"scale_embedding": True, "attention_dropout": 0.1},
    aliases=BART.aliases,
)
MBART = Family(
    model_type="mbart",
    source="mBART (Liu et al. 2020; Tang et al. 2020): BART with norms first",
    like=BART,
    ends={"MBartForConditionalGeneration": "tokens", "MBartModel": "decoder"},
    sets={"norm_placement": "pre"},
    aliases=BART.aliases,
)
BLENDERBOT = Family(
    model_type="blenderbot",
    source="BlenderBot (Roller et al. 2021): norms first, and none of the embeddings",
    like=MBART,
    ends={"BlenderbotForConditionalGeneration": "tokens", "BlenderbotModel": "decoder"},
    fields={"vocab_size": 8008, "max_position_embeddings": 128, "encoder_layers": 2, "encoder_ffn_dim": 10240}
    | {"encoder_attention_heads": 32, "decoder_layers": 24, "decoder_ffn_dim": 10240, "decoder_attention_heads": 32}
    | {"d_model": 2560},
    sets={"embedding_norm": False},
    rules={"decoder": same_positions},
    aliases=BART.aliases,
)
BLENDERBOT_SMALL = Family(
    model_type="blenderbot-small",
    source="BlenderBot small (Roller et al. 2021): BART with tables of as many rows as the context",
    like=BART,
    ends={"BlenderbotSmallForConditionalGeneration": "tokens", "BlenderbotSmallModel": "decoder"},
    fields={"max_position_embeddings": 512, "encoder_layers": 8, "encoder_ffn_dim": 2048, "decoder_layers": 8}
    | {"decoder_ffn_dim": 2048, "d_model": 512},
    rules={"decoder": same_positions},
    aliases=BART.aliases,
)
PEGASUS = Family(
    model_type="pegasus",
    source="PEGASUS (Zhang et al. 2020): norms first; positions are sinusoids among the weights",
    like=BLENDERBOT,
    ends={"PegasusForConditionalGeneration": "tokens", "PegasusModel": "decoder"},
    fields={"vocab_size": 50265, "max_position_embeddings": 1024, "encoder_layers": 12, "encoder_ffn_dim": 4096}
    | {"encoder_attention_heads": 16, "decoder_layers": 12, "decoder_ffn_dim": 4096, "decoder_attention_heads": 16}
    | {"d_model": 1024},
    sets={"position_table": "stored"},
    aliases=BART.aliases,
)


def one_vocabulary(config: Config, made: dict[str, Any]) -> None:
    """Source and target have one vocabulary, and one table."""
    same_positions(config, made)
    if config["decoder_vocab_size"] not in (None, made["vocab"]):
        raise wrong(
            "decoder_vocab_size", f"{config['decoder_vocab_size']} is not vocab_size {made['vocab']}: only that is"
        )


MARIAN = Family(
    model_type="marian",
    source="Marian (Junczys-Dowmunt et al. 2018), OPUS-MT: norms come last; positions are sinusoids among the weights",
    like=PEGASUS,
    ends={"MarianMTModel": "tokens", "MarianModel": "decoder"},
    fields={"vocab_size": 58101, "decoder_vocab_size": None},
    sets={"norm_placement": "post"},
    rules={"decoder": one_vocabulary},
    aliases=BART.aliases,
    fixed={"share_encoder_decoder_embeddings": (True,)},
)


M2M_100 = Family(
    model_type="m2m_100",
    source="M2M-100 and NLLB (Fan et al. 2021; NLLB Team 2022): norms first; positions are sinusoids",
    like=MBART,
    ends={"M2M100ForConditionalGeneration": "tokens", "M2M100Model": "decoder"},
    fields={"vocab_size": 128112, "activation_function": "relu", "attention_dropout": 0.1, "scale_embedding": True},
    sets={"embedding_norm": False, "position_table": "constant"},
    aliases=BART.aliases,
    fixed={"encoder_layerdrop": (0, 0.05), "decoder_layerdrop": (0, 0.05)},
    note="Training may leave layers out by chance (layerdrop): here none is left out.",
)

WHISPER = Family(
    model_type="whisper",
    source="Whisper (Radford et al. 2022): sound in, text out; keys have no bias",
    builds=encoder_decoder,
    ends={"WhisperForConditionalGeneration": "tokens", "WhisperModel": "decoder"},
    fields={"vocab_size": 51865, "num_mel_bins": 80, "encoder_layers": 4, "encoder_attention_heads": 6}
    | {"decoder_layers": 4, "decoder_attention_heads": 6, "decoder_ffn_dim": 1536, "encoder_ffn_dim": 1536}
    | {"activation_function": "gelu", "d_model": 384, "dropout": 0.0, "attention_dropout": 0.0}
    | {"activation_dropout": 0.0, "max_source_positions": 1500, "max_target_positions": 448}
    | {"tie_word_embeddings": True},
    sets={"positions": "learned", "qkv_bias": True, "attention_bias": True, "mlp_bias": True, "key_bias": False}
    | {"score_scale": None, "norm": "layernorm"},
    rules={"decoder": whisper_decoder},
    aliases="hidden_size num_attention_heads",
    idle="num_hidden_layers num_key_value_heads classifier_proj_size mask_time_prob mask_time_length "
    "mask_time_min_masks mask_feature_prob mask_feature_length mask_feature_min_masks median_filter_width "
    "use_weighted_layer_sum",
    fixed={"is_encoder_decoder": (True,), "is_decoder": (False,), "encoder_layerdrop": (0,)}
    | {"decoder_layerdrop": (0,), "scale_embedding": (False,), "apply_spec_augment": (False,)},
)
