"""Encoders of text with rotary positions: those that most embeddings of text are made with, and of proteins."""

from __future__ import annotations

from typing import Any

from costmodel.errors import shown
from costmodel.importers.huggingface.encoders import (
    BERT,
    MODERN_BERT,
    XLM_ROBERTA,
    after_padding,
    encoder_ends,
    modern_ends,
    pooler_dropped,
)
from costmodel.importers.huggingface.family import Config, Family, labels, sizes
from costmodel.importers.huggingface.fields import Meaning, wrong
from costmodel.importers.huggingface.llama import BIASES, LLAMA
from costmodel.importers.huggingface.rules import ROTARY, ROTARY_IDLE, heads_fill_width, rotary_whole, windows


def decoder_windows(config: Config, made: dict[str, Any]) -> None:
    """All layers but every third see a window of half of `local_attention`: the tokens before, as in the encoder."""
    windows(lambda config, n: n % config["global_attn_every_n_layers"] != 0)(config, made)
    if "window.pattern" in made:
        made["window.size"] = config["local_attention"] // 2


def decoder_ends(config: Config, made: dict[str, Any]) -> None:
    """As of the encoder; what scores classes has a bias if the layer before it has."""
    modern_ends(config, made)
    if "classes" in config.end:
        made["classes.bias"] = config["classifier_bias"]


MODERN_BERT_DECODER = Family(
    model_type="modernbert-decoder",
    source="the decoders of Ettin (Weller et al. 2025): ModernBERT that sees what is before",
    like=MODERN_BERT,
    ends={
        "ModernBertDecoderForCausalLM": "tokens",
        "ModernBertDecoderModel": "",
        "ModernBertDecoderForSequenceClassification": "classes last",
    },
    fields={"sliding_window": 1},
    without="classifier_pooling",
    sets={"causal": True, "fused_qkv": False},
    rules={"windows": decoder_windows, "ends": decoder_ends},
    idle="cls_token_id",
)


def late_classes(config: Config, made: dict[str, Any]) -> None:
    """Classes of every token, or of a sequence: of all tokens before their mean, of the first, or of their mean."""
    made["head.bias"] = made["mlp_bias"]
    if "classes" not in config.end:
        return
    made["classes"] = labels(config)
    if "each" in config.end:
        made["classes.told_by"] = "each"
        return
    pooling = config["classifier_pooling"]
    if pooling == "late":
        made |= {"classes.told_by": "mean", "classes.transform": "gelu"}
    elif pooling in ("bos", "mean"):
        made |= {"pooler": "gelu", "pooler.over": "mean" if pooling == "mean" else "first"}
    else:
        raise wrong("classifier_pooling", f"{shown(pooling)} is not 'late', 'bos' or 'mean'")


EUROBERT = Family(
    model_type="eurobert",
    source="EuroBERT (Boizard et al. 2025): LLaMA's blocks, every token of which sees every other",
    like=LLAMA,
    ends={
        "EuroBertForMaskedLM": "tokens",
        "EuroBertModel": "",
        "EuroBertForSequenceClassification": "classes",
        "EuroBertForTokenClassification": "classes each",
    },
    fields=sizes(128256, 768, 3072, 12, 12, max_position_embeddings=8192, classifier_pooling="late"),
    sets={"causal": False},
    rules={"ends": late_classes},
    aliases="clf_pooling=classifier_pooling",
    idle="bos_token eos_token mask_token pad_token",
)


def whole_heads(config: Config, made: dict[str, Any]) -> None:
    """All features of a head are turned; its size is left out where it is width / heads."""
    if made["head_size"] is not None and made["head_size"] * made["heads"] == made["width"]:
        made["head_size"] = None
    rotary_whole(config, made)


TURNED = ROTARY | {"head_dim": None}
"""Fields of rotary positions that turn whole heads."""

NOMIC_BERT = Family(
    model_type="nomic_bert",
    source="Nomic Embed (Nussbaum et al. 2024): BERT with rotary positions, a gated MLP and no biases",
    like=BERT,
    ends={
        "NomicBertForMaskedLM": "tokens",
        "NomicBertModel": "",
        "NomicBertForSequenceClassification": "pooler classes",
        "NomicBertForTokenClassification": "classes each",
    },
    fields=TURNED
    | {"vocab_size": 30528, "hidden_act": "silu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    | {"max_position_embeddings": 2048},
    sets={"positions": "rotary", "mlp": "gated"} | dict.fromkeys(BIASES, False),
    rules={"rotary": whole_heads},
    aliases="n_embd n_head n_layer n_inner n_positions attn_pdrop embd_pdrop=hidden_dropout_prob "
    "resid_pdrop=hidden_dropout_prob",
    idle=f"{ROTARY_IDLE} dense_seq_output fused_bias_fc fused_dropout_add_ln max_trained_positions "
    "pad_vocab_size_multiple parallel_block_tied_norm reorder_and_upcast_attn rotary_emb_interleaved "
    "rotary_scaling_factor scale_attn_by_inverse_layer_idx scale_attn_weights summary_activation "
    "summary_first_dropout summary_proj_to_labels summary_type summary_use_proj use_flash_attn use_xentropy",
    fixed={"activation_function": ("swiglu",), "causal": (False,), "parallel_block": (False,), "prenorm": (False,)}
    | dict.fromkeys(("mlp_fc1_bias", "mlp_fc2_bias", "qkv_proj_bias", "use_rms_norm"), (False, None))
    | {"rotary_emb_fraction": (1,), "rotary_emb_scale_base": (None,), "num_experts": (0, None)},
)


def gated_blocks(config: Config, made: dict[str, Any]) -> None:
    """There may be no kinds of segments; what the MLP multiplies is dropped as its output is."""
    made |= {"segments": config["type_vocab_size"] or None, "mlp_dropout": made["residual_dropout"]}


GTE = Family(
    model_type="gte",
    source="GTE v1.5 and multilingual (Zhang et al. 2024, mGTE): BERT with rotary positions and a gated MLP",
    like=BERT,
    ends={
        "GteForMaskedLM": "tokens",
        "GteModel": "",
        "GteForSequenceClassification": "pooler classes",
        "GteForTokenClassification": "classes each",
    },
    fields=TURNED
    | {"vocab_size": 250048, "attention_probs_dropout_prob": 0.0, "type_vocab_size": 1}
    | {"max_position_embeddings": 8192},
    means={"type_vocab_size": Meaning("count", "segments")},
    sets={"positions": "rotary", "mlp": "gated", "mlp_bias": False, "mlp_output_bias": True, "head.transform": "gelu"}
    | {"head.spare_bias": False},
    rules={"rotary": whole_heads, "segments": gated_blocks},
    idle=f"{ROTARY_IDLE} position_embedding_type",
)


def own_activation(config: Config, made: dict[str, Any]) -> None:
    """The head has the blocks' activation."""
    gated_blocks(config, made)
    if "tokens" in config.end:
        made["head.transform"] = made["activation"]


NEW = Family(
    model_type="new",
    source="GTE by the class that comes with its files",
    like=GTE,
    ends=encoder_ends("New", ForMaskedLM="tokens", Model="", ForSequenceClassification="pooler classes"),
    fields={"vocab_size": 30528, "max_position_embeddings": 2048, "pack_qkv": True},
    rules={"segments": own_activation},
    idle="unpad_inputs use_memory_efficient_attention logn_attention_clip1",
    fixed={"position_embedding_type": ("rope",), "layer_norm_type": ("layer_norm",), "logn_attention_scale": (False,)},
    remote=True,
)

JINA_EMBEDDINGS_V3 = Family(
    model_type="jina_embeddings_v3",
    source="Jina Embeddings v3 (Sturua et al. 2024): XLM-RoBERTa with rotary positions",
    like=XLM_ROBERTA,
    ends={name.replace("XLMRoberta", "JinaEmbeddingsV3"): end for name, end in XLM_ROBERTA.ends.items()},
    fields=TURNED | sizes(250002, 1024, 4096, 24, 16, max_position_embeddings=8194, type_vocab_size=1),
    sets={"positions": "rotary"},
    rules={"rotary": whole_heads, "positions": pooler_dropped},
    idle=ROTARY_IDLE,
)


def unapplied_adapters(config: Config, made: dict[str, Any]) -> None:
    """Low-rank weights beside each table and linear layer, one pair for each task, of which a pass has none or one."""
    pooler_dropped(config, made)
    names = config["lora_adaptations"] or []
    d, hidden, layers = made["width"], made["mlp_width"], made["layers"]
    within = layers * (4 * d + 2 * d + 2 * (d + hidden))  # query, key and value at once; output; two of the MLP
    tables = made["vocab"] + d + (made["segments"] + d)
    sides = within + tables + (2 * d if "pooler" in config.end else 0)
    if names:
        made["spare_weights"] = len(names) * config["lora_rank"] * sides


OF_XLM_ROBERTA_FILES = (
    Family(
        model_type="xlm-roberta",
        source="Jina Embeddings v3 by the class that comes with its files: adapters of tasks among its weights",
        like=JINA_EMBEDDINGS_V3,
        ends={"XLMRobertaModel": "pooler"},
        fields={"vocab_size": 30522, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12}
        | {"num_attention_heads": 12, "max_position_embeddings": 512, "type_vocab_size": 2}
        | {"lora_adaptations": None, "lora_rank": 4},
        without="head_dim",
        rules={"positions": unapplied_adapters, "rotary": rotary_whole},
        idle="load_trained_adapters lora_alpha lora_dropout_p lora_main_params_trainable matryoshka_dimensions "
        "task_instructions truncate_dim use_flash_attn use_reentrant emb_pooler rotary_emb_scale_base",
        fixed={"position_embedding_type": ("rotary",)},
        note="Its weights are those of all tasks' adapters too, none of which is applied.",
        remote=True,
    ),
)
"""What files of that `model_type` are that turn queries and keys, which the package's own class does not."""


def protein_positions(config: Config, made: dict[str, Any]) -> None:
    """Rotary positions, or trained ones from after the padding token's number on."""
    kind = config["position_embedding_type"]
    if kind == "rotary":
        made["positions"] = "rotary"
    elif kind == "absolute":
        after_padding(config, made)
    else:
        raise wrong("position_embedding_type", f"{shown(kind)} is not 'rotary' or 'absolute'")
    if made["vocab"] is None:
        raise wrong("vocab_size", "is missing: give how many tokens there are")
    made |= {"embedding_dropout": 0.0, "final_norm": True, "embedding_norm": bool(made["embedding_norm"])}
    pooler_dropped(config, made)


ESM = Family(
    model_type="esm",
    source="ESM-1b and ESM-2 (Rives et al. 2021; Lin et al. 2023): BERT for proteins, norms first",
    like=BERT,
    ends={
        "EsmForMaskedLM": "tokens",
        "EsmModel": "pooler",
        "EsmForSequenceClassification": "pooler classes",
        "EsmForTokenClassification": "classes each",
    },
    fields={"vocab_size": None, "max_position_embeddings": 1026, "position_embedding_type": "absolute"}
    | {"emb_layer_norm_before": None, "token_dropout": False, "pad_token_id": None, "head_dim": None},
    means={"head_dim": ""},
    without="type_vocab_size classifier_dropout hidden_act",
    sets={"norm_placement": "pre", "contact_head": True, "activation": "gelu", "head.spare_bias": False},
    rules={"whole": heads_fill_width, "positions": protein_positions},
    idle=f"{ROTARY_IDLE} mask_token_id use_esm_attn_map vocab_list",
    fixed={"is_folding_model": (False,), "esmfold_config": (None,)},
)
