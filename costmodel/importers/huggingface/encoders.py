"""Encoders of text, with the heads that their architectures name: masked tokens, classes or a pooler."""

from __future__ import annotations

from typing import Any

from costmodel.errors import SpecError, shown
from costmodel.importers.huggingface.family import Config, Family, labels, sizes, tasks, tokens_of
from costmodel.importers.huggingface.fields import Meaning, wrong
from costmodel.importers.huggingface.rules import cycle, each, heads_fill_width, sliding

PAIRS = 2
"""Classes of a head that tells whether one sentence follows another (Devlin et al. 2019, §3.1)."""


def text_ends(config: Config, made: dict[str, Any]) -> None:
    """A head for masked tokens, classes or a pooler: what the architecture does not have is taken away.

    The package ties a bias of the head's own to its linear layer's where it ties their weights; else it keeps both.
    """
    if "tokens" in config.end:
        made.setdefault("head.transform", made["activation"])
    if made["tied"]:
        made.pop("head.spare_bias", None)
    if "pooler" not in config.end:
        made.pop("pooler")
    if "pairs" in config.end:
        made["classes"] = PAIRS
    elif "classes" in config.end:
        made["classes"] = labels(config)
    told_by = tokens_of(config)
    if told_by is not None:
        made["classes.told_by"] = told_by
    if told_by == "spans":  # by their start and their end
        made |= {"classes": PAIRS, "classes.dropout": config.values.get("qa_dropout", 0.0)}
    elif told_by == "each":
        dropouts = ("classifier_dropout", "classifier_dropout_prob")
        made["classes.dropout"] = next((config[name] for name in dropouts if name in config.values), None)
    if "classes" not in config.end:
        made.pop("classes.dropout", None)
    elif made.get("classes.dropout") is None:
        made["classes.dropout"] = made["residual_dropout"]


def encoder_ends(stem: str, **ends: str) -> dict[str, str]:
    """Those given, and classes of every token or of spans."""
    told = {name: end for name, end in tasks(stem).items() if not end.endswith("last")}
    return {f"{stem}{name}": end for name, end in ends.items()} | told


TEXT = Family(
    source="every token sees every other; norms come last; a head for masked tokens, classes or a pooler",
    fields={"id2label": None, "num_labels": None, "tie_word_embeddings": True},
    sets={"causal": False, "fused_qkv": False, "norm_placement": "post", "embedding_norm": True, "head.bias": True},
    rules={"ends": text_ends},
)

BERT = Family(
    model_type="bert",
    source="BERT (Devlin et al. 2019)",
    like=TEXT,
    ends=encoder_ends(
        "Bert",
        ForMaskedLM="tokens",
        ForPreTraining="tokens pooler pairs",
        Model="pooler",
        ForSequenceClassification="pooler classes",
        ForNextSentencePrediction="pooler pairs",
    ),
    fields={"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
    | {"intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "type_vocab_size": 2}
    | {"attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512, "classifier_dropout": None},
    sets={"pooler": "tanh", "head.spare_bias": True},
    fixed={"is_decoder": (False,), "position_embedding_type": ("absolute",)},
    idle="embedding_size",
    written={"positions": "buffer"},
)


def pooler_dropped(config: Config, made: dict[str, Any]) -> None:
    """Dropout before the pooler as before the classes."""
    made["pooler.dropout"] = made.get("classes.dropout", 0.0) if "pooler" in config.end else None


def after_padding(config: Config, made: dict[str, Any]) -> None:
    """Positions are counted from after the padding token's number."""
    rows, first = made["context"], (config["pad_token_id"] or 0) + 1
    if not 1 <= first < rows:
        raise wrong("pad_token_id", f"{config['pad_token_id']} leaves no positions of {rows}")
    made |= {"context": rows - first, "position_rows": rows}
    pooler_dropped(config, made)


ROBERTA = Family(
    model_type="roberta",
    source="RoBERTa (Liu et al. 2019): BERT with GELU before the head, whatever the blocks have",
    like=BERT,
    ends=encoder_ends("Roberta", ForMaskedLM="tokens", Model="pooler", ForSequenceClassification="pooler classes"),
    fields={"vocab_size": 50265, "pad_token_id": 1},
    sets={"head.transform": "gelu"},
    rules={"positions": after_padding},
    written={"positions": "tokens"},
)

XLM_ROBERTA = Family(
    model_type="xlm-roberta",
    source="XLM-RoBERTa (Conneau et al. 2020): RoBERTa in a hundred languages",
    like=ROBERTA,
    ends={f"XLM{name}": end for name, end in ROBERTA.ends.items()},
    fields={"vocab_size": 30522},
)
CAMEMBERT = Family(
    model_type="camembert",
    source="CamemBERT (Martin et al. 2020): RoBERTa in French",
    like=ROBERTA,
    ends={name.replace("Roberta", "Camembert"): end for name, end in ROBERTA.ends.items()},
    fields={"vocab_size": 30522},
)

DATA2VEC_TEXT = Family(
    model_type="data2vec-text",
    source="data2vec of text (Baevski et al. 2022): RoBERTa by another name",
    like=ROBERTA,
    ends={name.replace("Roberta", "Data2VecText"): end for name, end in ROBERTA.ends.items()},
    fields={"vocab_size": 30522, "tie_word_embeddings": True},
)
ROBERTA_PRELAYERNORM = Family(
    model_type="roberta-prelayernorm",
    source="RoBERTa with norms first (Wettig et al. 2023)",
    like=ROBERTA,
    ends={name.replace("Roberta", "RobertaPreLayerNorm"): end for name, end in ROBERTA.ends.items()},
    sets={"norm_placement": "pre"},
)
XLM_ROBERTA_XL = Family(
    model_type="xlm-roberta-xl",
    source="XLM-RoBERTa XL (Goyal et al. 2021): norms first, and none of the embeddings",
    like=ROBERTA,
    ends={name.replace("Roberta", "XLMRobertaXL"): end for name, end in ROBERTA.ends.items()},
    fields=sizes(250880, 2560, 10240, 36, 32, max_position_embeddings=514, type_vocab_size=1),
    sets={"norm_placement": "pre", "embedding_norm": False},
)
MEGATRON_BERT = Family(
    model_type="megatron-bert",
    source="BERT of Megatron-LM (Shoeybi et al. 2019): norms first, and none of the embeddings",
    like=BERT,
    ends={name.replace("Bert", "MegatronBert", 1): end for name, end in BERT.ends.items()},
    fields=sizes(29056, 1024, 4096, 24, 16),
    without="classifier_dropout",
    sets={"norm_placement": "pre", "embedding_norm": False},
)


ERNIE = Family(
    model_type="ernie",
    source="ERNIE (Sun et al. 2019): BERT by another name",
    like=BERT,
    ends={name.replace("Bert", "Ernie", 1): end for name, end in BERT.ends.items()},
    fixed={"use_task_id": (False,)},  # else kinds of tasks are embedded too
    idle="task_type_vocab_size",
)


DISTILBERT = Family(
    model_type="distilbert",
    source="DistilBERT (Sanh et al. 2019): BERT without segments and pooler, half as deep",
    like=TEXT,
    ends=encoder_ends("DistilBert", ForMaskedLM="tokens", Model="", ForSequenceClassification="pooler classes"),
    fields={"vocab_size": 30522, "max_position_embeddings": 512, "n_layers": 6, "n_heads": 12, "dim": 768}
    | {"hidden_dim": 3072, "dropout": 0.1, "attention_dropout": 0.1, "activation": "gelu", "seq_classif_dropout": 0.2}
    | {"qa_dropout": 0.1},
    sets={"pooler": "relu", "mixed_dropout": 0.0},
    aliases="hidden_size num_attention_heads num_hidden_layers",
    fixed={"sinusoidal_pos_embds": (False,)},
    written={"positions": "buffer"},
)


def narrow_embeddings(config: Config, made: dict[str, Any]) -> None:
    """Embeddings as wide as the blocks are not projected; what finds replaced tokens scores each by one number."""
    if made["embedding_width"] == made["width"]:
        made |= {"embedding_width": None, "embedding_factored": False}
    if "replaced" in config.end:
        made |= {"classes": 1, "classes.told_by": "each", "classes.transform": made["activation"]}
        made["classes.dropout"] = 0.0


ELECTRA = Family(
    model_type="electra",
    source="ELECTRA (Clark et al. 2020): BERT with narrow embeddings, and a generator or a finder of replaced tokens",
    like=BERT,
    ends=encoder_ends(
        "Electra",
        ForMaskedLM="tokens",
        Model="",
        ForPreTraining="classes replaced",
        ForSequenceClassification="pooler classes",
    ),
    fields={"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024, "embedding_size": 128},
    sets={"embedding_factored": True, "pooler": "gelu", "head.transform": "gelu", "head.spare_bias": False},
    rules={"narrow": narrow_embeddings, "pooler": pooler_dropped},
    idle="summary_activation summary_first_dropout summary_last_dropout summary_proj_to_labels summary_type "
    "summary_use_proj",
)


def span_heads(config: Config, made: dict[str, Any]) -> None:
    """Of the heads named there are fewer, of half the features that would be theirs, and as many convolutions."""
    heads = max(made["heads"] // config["head_ratio"], 1)
    if made["width"] % heads or made["width"] // heads % 2:
        raise wrong("hidden_size", f"{made['width']} is not a multiple of {2 * heads}: two halves of {heads} heads")
    made |= {"heads": heads, "head_size": made["width"] // heads // 2, "span_convolution": config["conv_kernel_size"]}
    pooler_dropped(config, made)
    if "pooler" in config.end:
        made["pooler"] = made["activation"]
    if "tokens" in config.end:
        made["head.transform"] = "gelu"
    if made["embedding_width"] == made["width"]:
        made |= {"embedding_width": None, "embedding_factored": False}


CONVBERT = Family(
    model_type="convbert",
    source="ConvBERT (Jiang et al. 2020): BERT, half of whose heads are convolutions made for each span",
    like=BERT,
    ends={
        "ConvBertForMaskedLM": "tokens",
        "ConvBertModel": "",
        "ConvBertForSequenceClassification": "pooler classes",
        "ConvBertForTokenClassification": "classes each",
        "ConvBertForQuestionAnswering": "classes spans",
    },
    fields={"embedding_size": 768, "head_ratio": 2, "conv_kernel_size": 9},
    sets={"head.spare_bias": False, "embedding_factored": True},
    rules={"spans": span_heads},
    fixed={"num_groups": (1,), "is_decoder": (False,)},
    idle="summary_activation summary_first_dropout summary_last_dropout summary_proj_to_labels summary_type "
    "summary_use_proj",
)


def albert_blocks(config: Config, made: dict[str, Any]) -> None:
    """Dropout of attention's output alone; the factored embeddings are always projected."""
    made |= {"mixed_dropout": made["residual_dropout"], "residual_dropout": 0.0}


ALBERT = Family(
    model_type="albert",
    source="ALBERT (Lan et al. 2020): BERT with narrow embeddings and one block's weights for all",
    like=BERT,
    ends=encoder_ends(
        "Albert",
        ForMaskedLM="tokens",
        ForPreTraining="tokens pooler classes",
        Model="pooler",
        ForSequenceClassification="pooler classes",
    ),
    fields={"vocab_size": 30000, "hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384}
    | {"embedding_size": 128, "hidden_act": "gelu_new", "hidden_dropout_prob": 0.0}
    | {"attention_probs_dropout_prob": 0.0, "classifier_dropout_prob": 0.1},
    without="classifier_dropout",
    sets={"embedding_factored": True, "shared_blocks": True},
    rules={"dropout": albert_blocks},
    fixed={"inner_group_num": (1,), "num_hidden_groups": (1,)},
)

MPNET = Family(
    model_type="mpnet",
    source="MPNet (Song et al. 2020): RoBERTa with biases by distance beside its positions, and no segments",
    like=ROBERTA,
    ends={name.replace("Roberta", "MPNet"): end for name, end in ROBERTA.ends.items()},
    fields={"vocab_size": 30527, "relative_attention_num_buckets": 32},
    without="type_vocab_size classifier_dropout",
    rules={"positions": after_padding},
)


def spare_pooler(config: Config, made: dict[str, Any]) -> None:
    """The pooler is run whatever the architecture ends in."""
    made.setdefault("pooler", "tanh")
    if "pooler" not in config.end:
        made["pooler.spare"] = True


def short_sequences(config: Config, made: dict[str, Any]) -> None:
    """All of a sequence is seen as long as its blocks would not be sparse, which is as far as it is read here."""
    kind = config["attention_type"]
    if kind not in ("block_sparse", "original_full"):
        raise wrong("attention_type", f"{shown(kind)} is not 'block_sparse' or 'original_full'")
    if config["rescale_embeddings"]:
        made["embedding_scale"] = made["width"] ** 0.5
    made["qkv_bias"] = config["use_bias"]
    spare_pooler(config, made)
    whole = (5 + 2 * config["num_random_blocks"]) * config["block_size"]
    if kind == "block_sparse" and whole < made["context"]:
        made |= {"position_rows": made["context"], "context": whole}


BIG_BIRD = Family(
    model_type="big_bird",
    source="BigBird (Zaheer et al. 2020): BERT, whose attention is of blocks in long sequences",
    like=BERT,
    ends={
        "BigBirdForMaskedLM": "tokens",
        "BigBirdForPreTraining": "tokens pooler pairs",
        "BigBirdModel": "pooler",
        "BigBirdForTokenClassification": "classes each",
    },
    fields={"vocab_size": 50358, "hidden_act": "gelu_new", "max_position_embeddings": 4096, "use_bias": True}
    | {"attention_type": "block_sparse", "rescale_embeddings": False, "block_size": 64, "num_random_blocks": 3},
    means={"use_bias": ""},
    rules={"blocks": short_sequences},
    note="Its context is that of which all is seen: the sparse attention of longer sequences is not modelled.",
)


LAYOUTLM = Family(
    model_type="layoutlm",
    source="LayoutLM (Xu et al. 2020): BERT that knows where on a page each token stands",
    like=BERT,
    ends=encoder_ends("LayoutLM", ForMaskedLM="tokens", Model="pooler", ForSequenceClassification="pooler classes"),
    fields={"max_2d_position_embeddings": 1024},
    without="classifier_dropout",
    rules={"pooler": spare_pooler},
)


def disentangled(config: Config, made: dict[str, Any]) -> None:
    """Distances beside tokens, by the scores that are named; all are divided by the root of how many there are."""
    named = config["pos_att_type"] or []
    named = [part.strip() for part in named.lower().split("|")] if isinstance(named, str) else named
    if not isinstance(named, list) or not all(isinstance(part, str) for part in named):
        raise wrong("pos_att_type", f"{shown(config['pos_att_type'])} is not a text or a list of names")
    kinds = {"disentangled.to_position": "c2p" in named, "disentangled.to_content": "p2c" in named}
    if made["width"] % made["heads"]:
        raise wrong("num_attention_heads", f"{made['heads']} does not divide hidden_size {made['width']}")
    made["score_scale"] = (made["width"] // made["heads"] * (1 + sum(kinds.values()))) ** -0.5
    if config["embedding_size"] not in (None, made["width"]):
        raise wrong("embedding_size", f"{config['embedding_size']} is not hidden_size: only that is")
    made |= {"positions": "learned" if config["position_biased_input"] else "none", "embedding_width": None}
    made["segments"] = config["type_vocab_size"] or None
    shared, buckets = (config.values.get(name) for name in ("share_att_key", "position_buckets"))
    norms = [part.strip() for part in config.values.get("norm_rel_ebd", "none").lower().split("|")]
    if not config["relative_attention"] and "layer_norm" in norms:
        raise wrong("norm_rel_ebd", "is of distances, and relative_attention is false: there are none")
    if config["relative_attention"]:
        if not any(kinds.values()):
            raise SpecError("relative_attention is true, and pos_att_type names no scores: c2p, p2c", ("pos_att_type",))
        if shared and not all(kinds.values()):
            raise wrong(
                "pos_att_type",
                f"{shown(config['pos_att_type'])} beside share_att_key: the published class then projects "
                "distances that it does not use, which is not modelled: name both, 'c2p|p2c'",
            )
        reach = config["max_relative_positions"] if config["max_relative_positions"] > 0 else made["context"]
        size = buckets if (buckets or 0) > 0 else reach
        made |= {**kinds, "disentangled.size": size, "disentangled.shared": bool(shared)}
        made["disentangled.norm"] = "layer_norm" in norms
    made["tied"] = made["tied"] or not config["legacy"]
    if "pooler" in config.end:
        size = config["pooler_hidden_size"]
        if size not in (None, made["width"]):
            raise wrong("pooler_hidden_size", f"{size} is not hidden_size")
        made |= {"pooler": config["pooler_hidden_act"], "pooler.dropout": config["pooler_dropout"]}
        made["classes.dropout"] = made["residual_dropout"] if config["cls_dropout"] is None else config["cls_dropout"]


DEBERTA_V2 = Family(
    model_type="deberta-v2",
    source="DeBERTa V2 and V3 (He et al. 2021; 2023): BERT with scores of distances beside those of tokens",
    like=BERT,
    ends=encoder_ends("DebertaV2", ForMaskedLM="tokens", Model="", ForSequenceClassification="pooler classes"),
    fields=sizes(128100, 1536, 6144, 24, 24, type_vocab_size=0, embedding_size=None)
    | {"relative_attention": False, "max_relative_positions": -1, "position_buckets": -1, "norm_rel_ebd": "none"}
    | {"share_att_key": False, "pos_att_type": None, "position_biased_input": True, "legacy": True}
    | {"pooler_dropout": 0.0, "pooler_hidden_act": "gelu", "pooler_hidden_size": None, "cls_dropout": None},
    means={"type_vocab_size": Meaning("count", "segments")},
    without="classifier_dropout",
    rules={"disentangled": disentangled},
    fixed={"conv_kernel_size": (0,), "attention_head_size": (None,)},
    idle="conv_act conv_groups",
)


def trimmed(config: Config, made: dict[str, Any]) -> None:
    """Distances as in later releases, but those beyond the sequence are left out."""
    disentangled(config, made)
    if "disentangled.size" in made:
        made["disentangled.trimmed"] = True


DEBERTA = Family(
    model_type="deberta",
    source="DeBERTa (He et al. 2021): as V2, with distances of each layer's own, and no bias of keys",
    like=DEBERTA_V2,
    ends={name.replace("V2", ""): end for name, end in DEBERTA_V2.ends.items()},
    fields=sizes(50265, 768, 3072, 12, 12),
    without="share_att_key norm_rel_ebd position_buckets",
    sets={"key_bias": False},
    rules={"disentangled": trimmed},
    idle="padding_idx",
    fixed={"talking_head": (False,)},
)


def modern_ends(config: Config, made: dict[str, Any]) -> None:
    """What an architecture ends in goes through a linear layer, an activation and a norm."""
    made |= {"final_norm": True, "first_norm": False}
    made.pop("classes.dropout", None)
    inner = {"activation": config["classifier_activation"], "bias": config["classifier_bias"]}
    if "tokens" in config.end:
        made |= {"head.transform": inner["activation"], "head.transform_bias": inner["bias"]}
        return
    if "classes" not in config.end:
        return
    made |= {"classes": labels(config), "classes.dropout": config["classifier_dropout"]}
    if "pooler" in config.end:
        over = {"cls": "first", "mean": "mean"}
        if (pooling := config["classifier_pooling"]) not in over:
            raise wrong("classifier_pooling", f"{shown(pooling)} is not 'cls' or 'mean'")
        made |= {"pooler": inner["activation"], "pooler.bias": inner["bias"], "pooler.norm": True}
        made["pooler.over"] = over[pooling]
        return
    told_by = tokens_of(config)
    made |= {"classes.told_by": told_by, "classes.transform": inner["activation"]}
    made |= {"classes.transform_bias": inner["bias"], "classes.transform_norm": True}
    if told_by == "spans":
        made["classes"] = PAIRS


def modern_windows(config: Config, made: dict[str, Any]) -> None:
    """All layers but every third see a window: so many tokens before and after."""
    every = config["global_attn_every_n_layers"]
    types, layers = config["layer_types"], made["layers"]
    local = each(layers, lambda n: n % every != 0) if types is None else sliding(types, layers)
    if any(local):
        made |= {"window.size": config["local_attention"] // 2 + 1, "window.pattern": cycle(local, layers)}


MODERN_BERT = Family(
    model_type="modernbert",
    source="ModernBERT (Warner et al. 2024): an encoder with rotary positions, a gated MLP and windows",
    ends=encoder_ends("ModernBert", ForMaskedLM="tokens", Model="", ForSequenceClassification="pooler classes"),
    fields=sizes(50368, 768, 1152, 22, 12, hidden_activation="gelu", max_position_embeddings=8192, norm_bias=False)
    | {"attention_bias": False, "attention_dropout": 0.0, "embedding_dropout": 0.0, "mlp_bias": False}
    | {"mlp_dropout": 0.0, "decoder_bias": True, "local_attention": 128, "layer_types": None}
    | {"global_attn_every_n_layers": 3, "classifier_bias": False, "classifier_dropout": 0.0}
    | {"classifier_activation": "gelu", "classifier_pooling": "cls", "tie_word_embeddings": True}
    | {"id2label": None, "num_labels": None, "head_dim": None},
    means={"attention_dropout": "attention_dropout mixed_dropout", "head_dim": ""},
    sets={"causal": False, "positions": "rotary", "mlp": "gated", "embedding_norm": True},
    rules={"whole": heads_fill_width, "windows": modern_windows, "ends": modern_ends},
    idle="rope_theta deterministic_flash_attn global_rope_theta local_rope_theta initializer_cutoff_factor "
    "rope_parameters sparse_pred_ignore_index sparse_prediction",
    fixed={"rope_scaling": (None,)},
)
