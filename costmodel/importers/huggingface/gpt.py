"""The GPT line and its contemporaries, each with names of its own for the same sizes."""

from __future__ import annotations

from typing import Any

from costmodel.errors import SpecError, shown
from costmodel.importers.huggingface.family import Config, Family, architectures, sizes
from costmodel.importers.huggingface.fields import wrong
from costmodel.importers.huggingface.rules import ROTARY, cycle, each, head_size, heads_fill_width, rotary, turned

GPT2 = Family(
    model_type="gpt2",
    source="GPT-2 (Radford et al. 2019)",
    ends=architectures("GPT2LMHeadModel", "GPT2Model"),
    fields={"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None}
    | {"activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
    | {"scale_attn_weights": True, "tie_word_embeddings": True},
    means={"scale_attn_weights": {True: {}, False: {"score_scale": 1.0}}},
    aliases="hidden_size max_position_embeddings num_attention_heads num_hidden_layers",
    idle="n_ctx reorder_and_upcast_attn scale_attn_by_inverse_layer_idx summary_activation summary_first_dropout "
    "summary_proj_to_labels summary_last_dropout summary_type summary_use_proj",
    written={},
)

GPT_J = Family(
    model_type="gptj",
    source="GPT-J (Wang & Komatsuzaki 2021)",
    like=GPT2,
    ends=architectures("GPTJForCausalLM", "GPTJModel"),
    fields={"vocab_size": 50400, "n_positions": 2048, "n_embd": 4096, "n_layer": 28, "n_head": 16, "rotary_dim": 64}
    | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": False},
    without="scale_attn_weights",
    sets={"positions": "rotary", "fused_qkv": False, "qkv_bias": False, "attention_bias": False}
    | {"parallel": True, "shared_norm": True, "head.bias": True},
    aliases=GPT2.aliases,
)

CODEGEN = Family(
    model_type="codegen",
    source="CodeGen (Nijkamp et al. 2022): GPT-J with one projection for query, key and value",
    like=GPT_J,
    ends=architectures("CodeGenForCausalLM", "CodeGenModel"),
    sets={"fused_qkv": True},
    aliases=GPT2.aliases,
)

GPT_BIGCODE = Family(
    model_type="gpt_bigcode",
    source="SantaCoder and StarCoder (Ben Allal et al. 2023; Li et al. 2023): GPT-2 with one key and value head",
    like=GPT2,
    ends=architectures("GPTBigCodeForCausalLM GPTBigCodeLMHeadModel", "GPTBigCodeModel"),
    fields={"activation_function": "gelu_pytorch_tanh", "multi_query": True},
    means={"multi_query": {True: {"kv_heads": 1}, False: {}}},
    aliases=GPT2.aliases,
    idle="attention_softmax_in_fp32 num_key_value_heads scale_attention_softmax_in_fp32",
)


def neo_windows(config: Config, made: dict[str, Any]) -> None:
    """Which layers see the window: pairs of a cycle and its times, or a word for each layer."""
    layers, types = made["layers"], config["attention_types"]
    kinds: list[Any] = []
    for pair in types:
        match pair:
            case [list() as names, int() as times] if 0 <= len(names) * times <= layers <= len(each(layers, bool)):
                kinds += names * times
            case _:
                kinds.append(pair)
    if len(kinds) != layers or not all(kind in ("global", "local") for kind in kinds):
        raise wrong(
            "attention_types",
            f"{shown(types)} are not 'global' or 'local' for each of num_layers {layers}: give pairs "
            "such as [['global', 'local'], 12]",
        )
    if "local" in kinds:
        made |= {"window.size": config["window_size"], "window.pattern": cycle([k == "local" for k in kinds], layers)}


GPT_NEO = Family(
    model_type="gpt_neo",
    source="GPT-Neo (Black et al. 2021): every other block sees a window, and scores are not scaled",
    ends=architectures("GPTNeoForCausalLM", "GPTNeoModel"),
    fields={"vocab_size": 50257, "max_position_embeddings": 2048, "hidden_size": 2048, "num_layers": 24}
    | {"attention_types": [[["global", "local"], 12]], "num_heads": 16, "intermediate_size": None, "window_size": 256}
    | {"activation_function": "gelu_new", "resid_dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0}
    | {"classifier_dropout": 0.1, "tie_word_embeddings": True},
    means={"classifier_dropout": ""},
    sets={"fused_qkv": False, "qkv_bias": False, "score_scale": 1.0},
    rules={"windows": neo_windows},
    aliases="num_attention_heads num_hidden_layers",
    idle=f"{GPT2.idle} attention_layers",
)

GPT_NEOX = Family(
    model_type="gpt_neox",
    source="GPT-NeoX and Pythia (Black et al. 2022; Biderman et al. 2023)",
    ends=architectures("GPTNeoXForCausalLM", "GPTNeoXModel"),
    fields=ROTARY
    | sizes(50432, 6144, 24576, 44, 64, hidden_act="gelu", max_position_embeddings=2048, tie_word_embeddings=False)
    | {"attention_dropout": 0.0, "hidden_dropout": 0.0, "use_parallel_residual": True, "attention_bias": True}
    | {"partial_rotary_factor": 0.25, "classifier_dropout": 0.1, "head_dim": None},
    means={"classifier_dropout": "", "hidden_dropout": "residual_dropout embedding_dropout", "head_dim": ""},
    sets={"positions": "rotary"},
    rules={"whole": heads_fill_width, "rotary": rotary},
    aliases="rotary_pct",
    idle="rope_theta rotary_emb_base",
    written={"weights": "fp32", "joined": True},
)


def opt_ends(config: Config, made: dict[str, Any]) -> None:
    """The position table has two rows more than the context; the norm after the last block may be left out."""
    made["position_rows"] = made["context"] + 2
    made["final_norm"] = config["do_layer_norm_before"] and not config["_remove_final_layer_norm"]
    if made["embedding_width"] == made["width"]:
        made["embedding_width"] = None


OPT = Family(
    model_type="opt",
    source="OPT (Zhang et al. 2022)",
    ends=architectures("OPTForCausalLM", "OPTModel"),
    fields={"vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072}
    | {"num_attention_heads": 12, "max_position_embeddings": 2048, "word_embed_proj_dim": None, "dropout": 0.1}
    | {"attention_dropout": 0.0, "activation_function": "relu", "enable_bias": True, "tie_word_embeddings": True}
    | {"layer_norm_elementwise_affine": True, "do_layer_norm_before": True, "_remove_final_layer_norm": False},
    means={
        "dropout": "residual_dropout",
        "do_layer_norm_before": {True: {"norm_placement": "pre"}, False: {"norm_placement": "post"}},
    },
    sets={"fused_qkv": False},
    rules={"ends": opt_ends},
    fixed={"layerdrop": (0,)},
    written={"weights": "fp32", "positions": "tokens"},
)


def xglm_embeddings(config: Config, made: dict[str, Any]) -> None:
    """Embeddings may be times √width; the constants of positions have two rows more than the context."""
    made["embedding_scale"] = made["width"] ** 0.5 if config["scale_embedding"] else None
    made["position_rows"] = made["context"] + 2


XGLM = Family(
    model_type="xglm",
    source="XGLM (Lin et al. 2022): GPT in thirty languages, its positions sinusoids",
    ends={"XGLMForCausalLM": "tokens", "XGLMModel": ""},
    fields={"vocab_size": 256008, "max_position_embeddings": 2048, "d_model": 1024, "ffn_dim": 4096, "num_layers": 24}
    | {"attention_heads": 16, "activation_function": "gelu", "dropout": 0.1, "attention_dropout": 0.1}
    | {"activation_dropout": 0.0, "scale_embedding": True, "tie_word_embeddings": True},
    sets={"fused_qkv": False, "position_table": "constant"},
    rules={"embeddings": xglm_embeddings},
    aliases="num_attention_heads num_hidden_layers hidden_size",
    fixed={"layerdrop": (0,)},
)

BLOOM = Family(
    model_type="bloom",
    source="BLOOM (BigScience Workshop 2022)",
    ends=architectures("BloomForCausalLM", "BloomModel"),
    fields={"vocab_size": 250880, "hidden_size": 64, "n_layer": 2, "n_head": 8, "seq_length": 2048}
    | {"hidden_dropout": 0.0, "attention_dropout": 0.0, "tie_word_embeddings": True},
    sets={"positions": "alibi", "embedding_norm": True},
    aliases="n_embed num_attention_heads num_hidden_layers",
    idle="slow_but_exact",
    fixed={"apply_residual_connection_post_layernorm": (False,)},
    written={"weights": "fp32"},
)

MPT = Family(
    model_type="mpt",
    source="MPT (MosaicML 2023): ALiBi positions, no biases",
    ends=architectures("MptForCausalLM MPTForCausalLM", "MptModel"),
    nested="attn_config",
    fields={"vocab_size": 50368, "d_model": 2048, "n_heads": 16, "n_layers": 24, "max_seq_len": 2048}
    | {"attn_config.attn_pdrop": 0.0, "attn_config.clip_qkv": None, "attn_config.softmax_scale": None}
    | {"tie_word_embeddings": True},
    sets={"positions": "alibi", "qkv_bias": False, "attention_bias": False, "mlp_bias": False, "norm_bias": False}
    | {"activation": "gelu"},
    aliases="num_attention_heads hidden_size num_hidden_layers",
    idle="embedding_fraction init_device learned_pos_emb",
    fixed={"attn_config.alibi": (True,), "attn_config.attn_type": ("multihead_attention",)}
    | {"attn_config.prefix_lm": (False,), "attn_config.qk_ln": (False,), "emb_pdrop": (0,), "expansion_ratio": (4,)}
    | {"logit_scale": (None,), "no_bias": (True,), "norm_type": ("low_precision_layernorm", "layernorm")}
    | {"resid_pdrop": (0,)},
)


def falcon_blocks(config: Config, made: dict[str, Any]) -> None:
    """One or two norms before attention and MLP side by side; one key and value head, or few."""
    new, parallel = config["new_decoder_architecture"], config["parallel_attn"]
    norms = config["num_ln_in_parallel_attn"] or (2 if new else 1)
    if (new and not parallel) or (not new and norms == 2):
        raise SpecError(
            "new_decoder_architecture true takes parallel_attn true, and false takes num_ln_in_parallel_attn 1 or null"
        )
    made["shared_norm"] = parallel and norms == 1
    made["kv_heads"] = config["num_kv_heads"] if new else 1 if config["multi_query"] else None
    made["mlp_width"] = made["mlp_width"] or 4 * made["width"]
    if not config["alibi"]:
        made["rotary.size"] = turned(config, head_size(made))


FALCON = Family(
    model_type="falcon",
    source="Falcon (Almazrouei et al. 2023): attention and MLP side by side",
    ends=architectures("FalconForCausalLM RWForCausalLM", "FalconModel"),
    fields=ROTARY
    | {"vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71}
    | {"num_kv_heads": None, "num_ln_in_parallel_attn": None, "hidden_dropout": 0.0, "attention_dropout": 0.0}
    | {"alibi": False, "new_decoder_architecture": False, "multi_query": True, "parallel_attn": True, "bias": False}
    | {"max_position_embeddings": 2048, "ffn_hidden_size": None, "activation": "gelu", "tie_word_embeddings": True}
    | {"head_dim": None},
    means={
        "alibi": {True: {"positions": "alibi"}, False: {"positions": "rotary"}},
        "num_kv_heads": "",
        "head_dim": "",
    },
    rules={"whole": heads_fill_width, "blocks": falcon_blocks},
    aliases="n_embed n_head n_head_kv n_layer",
    idle="rope_theta",
)
