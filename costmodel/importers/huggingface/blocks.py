"""Decoders whose blocks are built otherwise than LLaMA's: other norms, parallel branches, plain MLPs."""

from __future__ import annotations

from typing import Any

from costmodel.errors import shown
from costmodel.importers.huggingface.family import Config, Family, architectures, sizes
from costmodel.importers.huggingface.fields import Meaning, wrong
from costmodel.importers.huggingface.llama import (
    BIASES,
    DECODER,
    GLM,
    JOINED,
    LLAMA,
    SCALED,
    SCALED_BY_WIDTH,
    WINDOWED,
)
from costmodel.importers.huggingface.rules import (
    cycle,
    each,
    forget_experts,
    head_size,
    heads_fill_width,
    rotary,
    rotary_whole,
    sets,
    sliding,
    windows,
)

PHI = Family(
    model_type="phi",
    source="Phi 1 to 2 (Gunasekar et al. 2023; Javaheripi et al. 2023): parallel blocks, biases everywhere",
    like=DECODER,
    ends=architectures("PhiForCausalLM", "PhiModel"),
    fields=sizes(51200, 2048, 8192, 24, 32, resid_pdrop=0.0, embd_pdrop=0.0, hidden_act="gelu_new")
    | {"qk_layernorm": False, "partial_rotary_factor": 0.5},
    means={"qk_layernorm": {True: {"query_key_norm": "head"}, False: {}}},
    sets=BIASES | {"head.bias": True, "mlp": "plain", "norm": "layernorm", "parallel": True, "shared_norm": True},
    written=JOINED,
    rules={"rotary": rotary},
)
PHI3 = Family(
    model_type="phi3",
    source="Phi 3 and 4 (Abdin et al. 2024): LLaMA with one projection for query, key and value",
    like=DECODER,
    ends=architectures("Phi3ForCausalLM", "Phi3Model"),
    fields=sizes(32064, 3072, 8192, 32, 32, max_position_embeddings=4096, sliding_window=None)
    | {"resid_pdrop": 0.0, "embd_pdrop": 0.0},
    means={"embd_pdrop": ""},  # the package applies none, whatever it says
    sets={"fused_qkv": True},
    written=SCALED | JOINED,
    rules={"rotary": rotary},
)

STARCODER2 = Family(
    model_type="starcoder2",
    source="StarCoder 2 (Lozhkov et al. 2024): layer norms and a plain MLP with biases",
    like=DECODER,
    ends=architectures("Starcoder2ForCausalLM", "Starcoder2Model"),
    fields=sizes(49152, 3072, 12288, 30, 24, num_key_value_heads=2, hidden_act="gelu_pytorch_tanh")
    | {"max_position_embeddings": 4096, "sliding_window": None, "residual_dropout": 0.0, "embedding_dropout": 0.0}
    | {"use_bias": True, "tie_word_embeddings": True},
    sets={"mlp": "plain", "norm": "layernorm"},
)


ARCEE = Family(
    model_type="arcee",
    source="AFM (Arcee AI 2025): LLaMA with a plain MLP and max(x, 0)²",
    like=LLAMA,
    ends=architectures("ArceeForCausalLM", "ArceeModel"),
    fields=sizes(32000, 2560, 18432, 32, 32, hidden_act="relu2", max_position_embeddings=4096),
    sets={"mlp": "plain"},
)

NEMOTRON = Family(
    model_type="nemotron",
    source="Nemotron-4 and Minitron (Parmar et al. 2024): layer norms, a plain MLP with max(x, 0)², half of each head "
    "turned",
    like=LLAMA,
    ends=architectures("NemotronForCausalLM", "NemotronModel"),
    fields=sizes(256000, 6144, 24576, 32, 48, hidden_act="relu2", max_position_embeddings=4096)
    | {"partial_rotary_factor": 0.5},
    sets={"mlp": "plain", "norm": "layernorm"},
    aliases="rope_percent=partial_rotary_factor",
    note="Its norms add 1 to their weights, for which the package makes another vector.",
    rules={"rotary": rotary},
)
JAIS2 = Family(
    model_type="jais2",
    source="Jais 2 (Inception et al. 2025): layer norms, a plain MLP with max(x, 0)², biases",
    like=LLAMA,
    ends={"Jais2ForCausalLM": "tokens", "Jais2Model": ""},
    fields=sizes(150272, 3328, 26624, 32, 26, hidden_act="relu2", max_position_embeddings=8192)
    | {"attention_bias": True, "mlp_bias": True},
    sets={"mlp": "plain", "norm": "layernorm"},
)
PERSIMMON = Family(
    model_type="persimmon",
    source="Persimmon (Adept AI 2023): layer norms, biases, queries and keys normalised in each head",
    like=DECODER,
    ends=architectures("PersimmonForCausalLM", "PersimmonModel"),
    fields=sizes(262144, 4096, 16384, 36, 64, hidden_act="relu2", max_position_embeddings=16384)
    | {"qk_layernorm": True, "hidden_dropout": 0.0, "partial_rotary_factor": 0.5},
    means={
        "qk_layernorm": {True: {"query_key_norm": "head"}, False: {}},
        "hidden_dropout": "residual_dropout",
    },
    without="num_key_value_heads",
    sets=BIASES | {"mlp": "plain", "norm": "layernorm", "fused_qkv": True, "mixed_dropout": 0.0, "kv_heads": None},
    rules={"rotary": rotary, "whole": heads_fill_width},
)

APERTUS = Family(
    model_type="apertus",
    source="Apertus (Swiss AI 2025): a plain MLP with xIELU, queries and keys normalised in each head",
    like=DECODER,
    ends=architectures("ApertusForCausalLM", "ApertusModel"),
    fields=sizes(131072, 4096, 14336, 32, 32, hidden_act="xielu", max_position_embeddings=65536)
    | {"attention_bias": False},
    sets={"mlp": "plain", "query_key_norm": "head"},
    rules={"rotary": rotary_whole},
)


STABLELM = Family(
    model_type="stablelm",
    source="StableLM 2 and 3B (Bellagente et al. 2024): layer norms, a quarter of each head turned",
    like=DECODER,
    ends=architectures("StableLmForCausalLM StableLMEpochForCausalLM", "StableLmModel"),
    fields=sizes(50304, 2560, 6912, 32, 32, num_key_value_heads=32, max_position_embeddings=4096)
    | {"use_qkv_bias": False, "use_parallel_residual": False, "qk_layernorm": False, "hidden_dropout": 0.0}
    | {"partial_rotary_factor": 0.25},
    means={"qk_layernorm": {True: {"query_key_norm": "heads"}, False: {}}},
    sets={"norm": "layernorm"},
    rules={
        "rotary": rotary,
        "whole": heads_fill_width,
        "parallel": sets("shared_norm", lambda config, made: made["parallel"]),
    },
)

OLMO = Family(
    model_type="olmo",
    source="OLMo (Groeneveld et al. 2024): layer norms without trained scale or bias",
    like=DECODER,
    ends=architectures("OlmoForCausalLM", "OlmoModel"),
    fields=sizes(50304, 4096, 11008, 32, 32, attention_bias=False, clip_qkv=None),
    sets={"norm": "layernorm", "norm_affine": False},
)
OLMO2 = Family(
    model_type="olmo2",
    source="OLMo 2 (OLMo Team 2024): norms of outputs, queries and keys instead of inputs",
    like=DECODER,
    ends=architectures("Olmo2ForCausalLM", "Olmo2Model"),
    fields=sizes(50304, 4096, 11008, 32, 32, attention_bias=False),
    sets={"norm_placement": "output", "query_key_norm": "width"},
)

COHERE = Family(
    model_type="cohere",
    source="Command R (Cohere 2024): parallel blocks behind one layer norm without bias, scaled logits",
    like=DECODER,
    ends=architectures("CohereForCausalLM", "CohereModel"),
    fields=sizes(256000, 8192, 22528, 40, 64, logit_scale=0.0625, use_qk_norm=False, max_position_embeddings=8192)
    | {"attention_bias": False, "tie_word_embeddings": True},
    means={"use_qk_norm": {True: {"query_key_norm": "heads"}, False: {}}},
    sets={"norm": "layernorm", "norm_bias": False, "parallel": True, "shared_norm": True},
)


def turned_in_windows(config: Config, made: dict[str, Any]) -> None:
    """Only layers that see a window have rotary positions."""
    made["rotary.pattern"] = made["window.pattern"] if "window.size" in made else (False,)


COHERE2 = Family(
    model_type="cohere2",
    source="Command A and R7B (Cohere 2025): three of four layers see a window, and only those have positions",
    like=COHERE,
    ends=architectures("Cohere2ForCausalLM", "Cohere2Model"),
    fields={"sliding_window": 4096, "layer_types": None, "sliding_window_pattern": 4},
    means={"sliding_window": Meaning("integer?")},
    without="use_qk_norm",
    rules={
        "whole": heads_fill_width,
        "windows": windows(lambda config, n: (n + 1) % config["sliding_window_pattern"] != 0),
        "positions": turned_in_windows,
    },
    aliases="_sliding_window_pattern",
)

OLMO3 = Family(
    model_type="olmo3",
    source="OLMo 3 (OLMo Team 2025): three of four layers see a window",
    like=OLMO2,
    ends=architectures("Olmo3ForCausalLM", "Olmo3Model"),
    fields={"sliding_window": 4096, "layer_types": None},
    means={"sliding_window": Meaning("integer?")},
    rules={"windows": windows(lambda config, n: (n + 1) % 4 != 0)},
)

GLM4 = Family(
    model_type="glm4",
    source="GLM-4-0414 (GLM Team 2025): GLM-4 with four norms",
    like=GLM,
    ends=architectures("Glm4ForCausalLM", "Glm4Model"),
    sets={"norm_placement": "both"},
)


def exaone_windows(config: Config, made: dict[str, Any]) -> None:
    """All layers but every n-th see a window and have positions; all have positions where there is no window."""
    every = config["sliding_window_pattern"]
    if config["sliding_window"] is None:
        return
    if config["layer_types"] is None and (not isinstance(every, int) or every < 1):
        raise wrong("sliding_window_pattern", f"{shown(every)}: give layer_types")
    windows(lambda config, n: (n + 1) % every != 0)(config, made)
    turned_in_windows(config, made)


EXAONE4 = Family(
    model_type="exaone4",
    source="EXAONE 4.0 (LG AI Research 2025): norms of outputs, queries and keys; positions where there is a window",
    like=WINDOWED,
    ends=architectures("Exaone4ForCausalLM", "Exaone4Model"),
    fields=sizes(102400, 4096, 16384, 32, 32, num_key_value_heads=32, sliding_window=4096, sliding_window_pattern=4),
    means={"sliding_window_pattern": Meaning("anything")},
    sets={"norm_placement": "output", "query_key_norm": "head"},
    rules={"windows": exaone_windows},
)


def widths(config: Config, made: dict[str, Any]) -> None:
    """One width of all MLPs, or that of each."""
    given, layers = config["intermediate_size"], made["layers"]
    if not isinstance(given, list):
        made["mlp_width"] = given
        return
    if len(given) != layers:
        raise wrong("intermediate_size", f"has {len(given)} entries for {layers} layers")
    alike = len(set(given)) == 1
    made |= {"mlp_width": given[0]} if alike else {"mlp_widths": tuple(given)}


def streams(config: Config, made: dict[str, Any]) -> None:
    """Which layers' gates are sparse, whether weights are clipped; which stream is computed has no cost."""
    active, count = config["altup_active_idx"], config["altup_num_inputs"]
    if active >= count:
        raise wrong("altup_active_idx", f"{active} is not one of altup_num_inputs {count}: they are counted from 0")
    given, layers = config["activation_sparsity_pattern"], made["layers"]
    if given is None:
        sparse = each(layers, lambda n: layers > 10 > n)
    else:
        sparse = [_sparse(number, share) for number, share in enumerate(given)]
        if len(sparse) != layers:
            raise wrong("activation_sparsity_pattern", f"has {len(sparse)} entries for {layers} layers")
    made["altup.clipped"] = config["altup_coef_clip"] is not None
    made["altup.sparse_pattern"] = cycle(sparse, layers)


def _sparse(number: int, share: Any) -> bool:
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise wrong(
            "activation_sparsity_pattern", f"{shown(share)} is not a share: give one from 0, less than 1", number
        )
    return share > 0


GEMMA3N = Family(
    model_type="gemma3n_text",
    source="Gemma 3n, its text model (Gemma Team 2025): four residual streams, a vector of each token for each layer",
    like=WINDOWED,
    ends={"Gemma3nForCausalLM": "tokens", "Gemma3nTextModel": ""},
    fields=sizes(262400, 2048, 16384, 35, 8, num_key_value_heads=2, head_dim=256, max_position_embeddings=32768)
    | {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False, "tie_word_embeddings": True}
    | {"sliding_window": 512, "final_logit_softcapping": 30.0, "num_kv_shared_layers": 15, "laurel_rank": 64}
    | {"vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256, "altup_num_inputs": 4}
    | {"altup_active_idx": 0, "altup_correct_scale": True, "activation_sparsity_pattern": None}
    | {"altup_coef_clip": 120.0},
    without="hidden_act",
    means={"intermediate_size": Meaning("sides")},
    sets={"norm_placement": "both", "query_key_norm": "head", "value_norm": True, "score_scale": 1.0},
    rules={
        "rotary": rotary_whole,
        "windows": windows(lambda config, n: (n + 1) % 5 != 0),
        "embedding": SCALED_BY_WIDTH,
        "widths": widths,
        "shared": sets("shared_kv_layers", lambda config, made: config["num_kv_shared_layers"] or None),
        "streams": streams,
    },
    idle="rope_local_base_freq",
)


def global_heads(config: Config, layers: list[int]) -> dict[str, Any]:
    """Size and number of the heads of those layers, by fields of their own or by what is said of each of them."""
    told = config["per_layer_config"]
    if told is None:
        number = config["num_global_key_value_heads"] if config["attention_k_eq_v"] else None
        return {"head_size": config["global_head_dim"], "kv_heads": number}
    entries = list(told.values())
    names = {"head_dim", "num_key_value_heads"}
    alike = all(isinstance(one, dict) and one == entries[0] and one.keys() <= names for one in entries)
    numbers = sorted(int(key) for key in map(str, told) if key.isdecimal() and len(key) < 6)
    if not alike or numbers != layers:
        raise wrong(
            "per_layer_config",
            "is understood where it gives one head_dim and num_key_value_heads to the layers that see all",
        )
    own = {name: (entries[0] if entries else {}).get(name) for name in names}
    for name, value in own.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise wrong("per_layer_config", f"{name} {shown(value)} is not a number of 1 or more")
    return {"head_size": own["head_dim"] or config["head_dim"], "kv_heads": own["num_key_value_heads"]}


def gemma4_blocks(config: Config, made: dict[str, Any]) -> None:
    """Blocks without a window, the last among them, have heads of their own; experts may be beside each MLP."""
    types, layers, size = config["layer_types"], made["layers"], config["sliding_window"]
    local = each(layers, lambda n: (n + 1) % 6 != 0) if types is None else sliding(types, layers)[:layers]
    local[-1] = False
    bidirectional = config["use_bidirectional_attention"]
    if bidirectional not in (None, "vision", "all"):
        raise wrong("use_bidirectional_attention", f"{shown(bidirectional)} is not 'all', 'vision' or null")
    if bidirectional == "all":
        made["causal"], size = False, size // 2 + 1
    same = config["attention_k_eq_v"]
    own = global_heads(config, [number for number, near in enumerate(local) if not near])
    own["kv_heads"] = own["kv_heads"] or made["kv_heads"] or made["heads"]
    if True not in local:
        made |= {name: value for name, value in own.items() if not same}
    if True not in local and same:
        raise wrong("attention_k_eq_v", "is true, and no layer has sliding_attention: values are modelled apart then")
    if True in local:
        made |= {"window.size": size, "window.pattern": cycle(local, layers), "window.global_shared_values": same}
        usual = {"head_size": head_size(made), "kv_heads": made["kv_heads"] or made["heads"]}
        made |= {f"window.global_{name}": value for name, value in own.items() if value != usual[name]}
    shared = config["num_kv_shared_layers"] or None
    made["shared_kv_layers"] = shared
    if shared and config["use_double_wide_mlp"] and shared < layers:
        hidden = made.pop("mlp_width")
        made["mlp_widths"] = (hidden,) * (layers - shared) + (2 * hidden,) * shared
    if not made["layer_inputs.width"]:
        del made["layer_inputs.width"], made["layer_inputs.vocab"]
    if config["enable_moe_block"]:
        for field in ("num_experts", "top_k_experts", "moe_intermediate_size"):
            if config[field] is None:
                raise wrong(field, "is missing, and enable_moe_block is true")
        made |= {"experts.beside": True, "experts.weights": "all", "experts.shares": True}
    else:
        forget_experts(made)


GEMMA4 = Family(
    model_type="gemma4_text",
    source="Gemma 4, its text model (Gemma Team 2026): larger heads where all is seen, a vector for each layer",
    like=WINDOWED,
    ends={"Gemma4ForCausalLM": "tokens", "Gemma4TextModel": ""},
    fields=sizes(262144, 2304, 9216, 30, 8, num_key_value_heads=4, head_dim=256, max_position_embeddings=131072)
    | {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False, "tie_word_embeddings": True}
    | {"sliding_window": 512, "final_logit_softcapping": None, "use_bidirectional_attention": None}
    | {"vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256, "attention_k_eq_v": False}
    | {"num_kv_shared_layers": 0, "enable_moe_block": False, "use_double_wide_mlp": False, "num_experts": None}
    | {"top_k_experts": None, "moe_intermediate_size": None, "global_head_dim": 512}
    | {"num_global_key_value_heads": None, "per_layer_config": None},
    without="hidden_act rope_scaling rope_parameters partial_rotary_factor",
    means={
        "sliding_window": Meaning("size"),
        "use_bidirectional_attention": Meaning("text?"),
        "hidden_size_per_layer_input": Meaning("count?", "layer_inputs.width"),
        "vocab_size_per_layer_input": "layer_inputs.vocab",
    },
    sets={"norm_placement": "both", "query_key_norm": "head", "value_norm": True, "score_scale": 1.0}
    | {"block_scale": True},
    rules={"rotary": None, "windows": gemma4_blocks, "embedding": SCALED_BY_WIDTH},
    idle="rope_parameters rope_scaling is_causal output_proj_dims",
)
