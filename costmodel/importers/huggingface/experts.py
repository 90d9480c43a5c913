"""Mixtures of experts, and latent attention."""

from __future__ import annotations

from typing import Any

from costmodel.errors import SpecError, shown
from costmodel.importers.huggingface.family import Config, Family, architectures, sizes
from costmodel.importers.huggingface.fields import Meaning, activation_named, wrong
from costmodel.importers.huggingface.llama import (
    DECODER,
    ERNIE45,
    GRANITE,
    HUNYUAN,
    QWEN2,
    QWEN3_VL,
    WINDOWED,
    qwen_windows,
    smollm_turned,
)
from costmodel.importers.huggingface.rules import (
    cycle,
    head_size,
    heads_fill_width,
    pattern,
    rotary,
    rotary_whole,
    routed_layers,
    sets,
    windows,
)

BALANCE = "output_router_logits router_aux_loss_coef"
"""Fields of the balancing loss, which is not counted."""

MIXTRAL = Family(
    model_type="mixtral",
    source="Mixtral (Jiang et al. 2024): every block chooses two of eight experts",
    like=DECODER,
    ends=architectures("MixtralForCausalLM", "MixtralModel"),
    fields=sizes(32000, 4096, 14336, 32, 32, num_key_value_heads=8, max_position_embeddings=131072)
    | {"sliding_window": None, "num_experts_per_tok": 2, "num_local_experts": 8},
    aliases="num_experts",
    idle=BALANCE,
    fixed={"router_jitter_noise": (0,)},
)

PHIMOE = Family(
    model_type="phimoe",
    source="Phi 3.5-MoE (Abdin et al. 2024): layer norms, a head with a bias",
    like=DECODER,
    ends=architectures("PhimoeForCausalLM PhiMoEForCausalLM", "PhimoeModel"),
    fields=sizes(32064, 4096, 6400, 32, 32, num_key_value_heads=8, attention_bias=False, lm_head_bias=False)
    | {"max_position_embeddings": 131072, "sliding_window": None, "num_local_experts": 16},
    sets={"norm": "layernorm", "experts.per_token": 2},
    aliases="num_experts",
    idle=f"{BALANCE} input_jitter_noise router_jitter_noise",
    fixed={"hidden_dropout": (0,), "num_experts_per_tok": (2,)},
    note="Its router (SparseMixer) is counted as a softmax over the scores of the chosen experts.",
)


def ernie_experts(config: Config, made: dict[str, Any]) -> None:
    """Every n-th layer of a stretch has experts, beside shared ones as one."""
    start, end, step = (config[f"moe_layer_{name}"] for name in ("start_index", "end_index", "interval"))
    last = made["layers"] - 1 if end == -1 else end
    pattern(made, lambda n: (n + 1) % step == 0 and start <= n <= last)
    if "experts.count" in made:
        made["experts.shared_width"] = made["experts.width"] * (config["moe_num_shared_experts"] or 0) or None
        if made["mlp_bias"]:
            made["experts.bias"] = False


ERNIE45_MOE = Family(
    model_type="ernie4_5_moe",
    source="ERNIE 4.5 with experts (Baidu 2025): small experts beside shared ones, after a dense layer",
    like=ERNIE45,
    ends=architectures("Ernie4_5_MoeForCausalLM Ernie4_5_MoEForCausalLM", "Ernie4_5_MoeModel"),
    fields=sizes(103424, 2560, 12288, 28, 20, num_key_value_heads=4, moe_intermediate_size=1536, moe_k=6)
    | {"head_dim": None, "moe_num_experts": 64, "moe_num_shared_experts": 2, "moe_layer_start_index": 1}
    | {"moe_layer_end_index": -1, "moe_layer_interval": 1},
    means={"use_bias": "qkv_bias attention_bias mlp_bias head.bias"},
    sets={"experts.weights": "all", "experts.shares": True, "experts.choice_bias": True, "experts.choice_stored": True},
    rules={"experts": ernie_experts},
    aliases="num_experts num_experts_per_tok",
    idle=f"{BALANCE} moe_norm_min",
)


def qwen_moe_windows(config: Config, made: dict[str, Any]) -> None:
    """Every second layer of the first `max_window_layers` sees a window, if any does."""
    if config["use_sliding_window"]:
        windows(lambda config, n: n % 2 == 0 and n < config["max_window_layers"])(config, made)
    else:
        qwen_windows(config, made)


def all_windowed(config: Config, made: dict[str, Any]) -> None:
    """All layers see a window, or none."""
    if config["use_sliding_window"] and config["sliding_window"]:
        made["window.size"] = config["sliding_window"]


QWEN2_MOE = Family(
    model_type="qwen2_moe",
    source="Qwen 2 with experts (Yang et al. 2024): some blocks, small experts, and a gated one for all tokens",
    like=QWEN2,
    ends=architectures("Qwen2MoeForCausalLM", "Qwen2MoeModel"),
    fields=sizes(151936, 2048, 5632, 24, 16, num_key_value_heads=16, decoder_sparse_step=1, mlp_only_layers=None)
    | {"moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4}
    | {"num_experts": 60, "norm_topk_prob": False, "qkv_bias": True},
    means={"norm_topk_prob": {True: {"experts.weights": "chosen"}, False: {"experts.weights": "all"}}},
    sets={"experts.shared_gate": True},
    rules={"experts": routed_layers, "windows": qwen_moe_windows},
    idle=BALANCE,
)
QWEN3_MOE = Family(
    model_type="qwen3_moe",
    source="Qwen 3 with experts (Yang et al. 2025): queries and keys normalised in each head, no expert for all",
    like=QWEN2_MOE,
    ends=architectures("Qwen3MoeForCausalLM", "Qwen3MoeModel"),
    fields=sizes(151936, 2048, 6144, 24, 32, num_key_value_heads=4, moe_intermediate_size=768, num_experts_per_tok=8)
    | {"num_experts": 128, "attention_bias": False},
    without="qkv_bias shared_expert_intermediate_size layer_types max_window_layers",
    sets={"query_key_norm": "head", "experts.shared_gate": False},
    rules={"windows": all_windowed},
    aliases="num_local_experts",
)

QWEN3_VL_MOE = Family(
    model_type="qwen3_vl_moe_text",
    source="the language model of Qwen 3-VL with experts (Qwen Team 2025)",
    like=QWEN3_VL,
    ends={"Qwen3VLMoeForConditionalGeneration": "tokens", "Qwen3VLMoeTextModel": ""},
    fields=sizes(151936, 2048, 5632, 24, 16, num_key_value_heads=16, decoder_sparse_step=1, mlp_only_layers=None)
    | {"moe_intermediate_size": 1408, "num_experts_per_tok": 4, "num_local_experts": 60, "head_dim": None}
    | {"tie_word_embeddings": True},
    rules={"experts": routed_layers},
    aliases="num_experts",
    idle=BALANCE,
)

OLMOE = Family(
    model_type="olmoe",
    source="OLMoE (Muennighoff et al. 2024): small experts; norms of queries and keys",
    like=DECODER,
    ends=architectures("OlmoeForCausalLM", "OlmoeModel"),
    fields=sizes(50304, 2048, 2048, 16, 16, attention_bias=False, clip_qkv=None, max_position_embeddings=4096)
    | {"num_experts_per_tok": 8, "num_experts": 64, "norm_topk_prob": False},
    means={"norm_topk_prob": QWEN2_MOE.means["norm_topk_prob"]},
    sets={"query_key_norm": "width"},
    rules={"whole": heads_fill_width},
    aliases="num_local_experts",
    idle=BALANCE,
)

FLEX_OLMO = Family(
    model_type="flex_olmo",
    source="FlexOlmo (Shi et al. 2025): OLMoE's experts in OLMo 2's blocks",
    like=OLMOE,
    ends={"FlexOlmoForCausalLM": "tokens", "FlexOlmoModel": ""},
    fields=sizes(100352, 4096, 11008, 32, 32, num_experts_per_tok=5, num_experts=7),
    without="clip_qkv",
    sets={"norm_placement": "output"},
    aliases="num_local_experts",
)


def dbrx_experts(config: Config, made: dict[str, Any]) -> None:
    """The activation by its name; weights of experts are divided by their sum, or not."""
    act = config["ffn_config.ffn_act_fn"]
    name = "silu" if act is None else act.get("name")
    if not isinstance(name, str):
        raise SpecError(f"ffn_config.ffn_act_fn {shown(act)} has no name", ("ffn_config", "ffn_act_fn"))
    made["activation"] = activation_named(name)
    power = config["ffn_config.moe_normalize_expert_weights"]
    if power not in (None, 1):
        raise wrong("ffn_config.moe_normalize_expert_weights", f"{shown(power)} is not 1 or null")
    made["experts.shares"] = power is not None


DBRX = Family(
    model_type="dbrx",
    source="DBRX (Databricks 2024): layer norms without bias, many smaller experts",
    like=DECODER,
    ends={"DbrxForCausalLM": "tokens", "DbrxModel": ""},
    fields={"d_model": 2048, "n_heads": 16, "n_layers": 24, "max_seq_len": 2048, "vocab_size": 32000}
    | {"resid_pdrop": 0.0, "emb_pdrop": 0.0, "attn_config.attn_pdrop": 0.0, "attn_config.clip_qkv": None}
    | {"attn_config.kv_n_heads": 1, "ffn_config.ffn_act_fn": None, "ffn_config.ffn_hidden_size": 3584}
    | {"ffn_config.moe_num_experts": 4, "ffn_config.moe_top_k": 1, "ffn_config.moe_normalize_expert_weights": 1.0},
    without="num_key_value_heads hidden_act max_position_embeddings attention_dropout tie_word_embeddings",
    means={"attn_config.attn_pdrop": "attention_dropout", "emb_pdrop": ""},  # which the package does not apply
    sets={"norm": "layernorm", "norm_bias": False, "fused_qkv": True, "tied": False, "experts.weights": "all"},
    rules={"whole": heads_fill_width, "experts": dbrx_experts},
    nested="attn_config ffn_config",
    aliases="hidden_size num_attention_heads num_hidden_layers max_position_embeddings",
    idle="output_router_logits attn_config.rope_theta attn_config.attn_type ffn_config.ffn_type "
    "ffn_config.hidden_size ffn_config.moe_loss_weight ffn_config.uniform_expert_assignment num_key_value_heads",
    fixed={"ffn_config.moe_jitter_eps": (None, 0), "tie_word_embeddings": (False,)},
)


GRANITE_MOE = Family(
    model_type="granitemoe",
    source="Granite 3 with experts (Granite Team, IBM 2024)",
    like=GRANITE,
    ends=architectures("GraniteMoeForCausalLM", "GraniteMoeModel"),
    fields={"num_local_experts": 8, "num_experts_per_tok": 2},
    idle=BALANCE,
    without="mlp_bias",
)


GRANITE_MOE_SHARED = Family(
    model_type="granitemoeshared",
    source="Granite 4 without its recurrent layers (IBM 2025): an expert for all tokens",
    like=GRANITE_MOE,
    ends=architectures("GraniteMoeSharedForCausalLM", "GraniteMoeSharedModel"),
    fields={"shared_intermediate_size": 0},
    rules={"shared": sets("experts.shared_width", lambda config, made: made["experts.shared_width"] or None)},
)


def hunyuan_experts(config: Config, made: dict[str, Any]) -> None:
    """One shared expert, as wide as the others."""
    if config["num_shared_expert"] not in (None, 1):
        raise wrong("num_shared_expert", f"{config['num_shared_expert']} changes the cost: only 1 is understood")
    made["experts.shared_width"] = made["mlp_width"]


HUNYUAN_MOE = Family(
    model_type="hunyuan_v1_moe",
    source="Hunyuan-A13B (Tencent 2025): an expert for all tokens beside those that each chooses",
    like=HUNYUAN,
    ends=architectures("HunYuanMoEV1ForCausalLM", "HunYuanMoEV1Model"),
    fields={"num_experts": 1, "moe_topk": 1, "num_shared_expert": None},
    rules={"experts": hunyuan_experts},
    aliases="num_experts_per_tok num_local_experts",
    idle="output_router_logits",
)


def minimax_rotary(config: Config, made: dict[str, Any]) -> None:
    """Features that are turned, by number in older files."""
    rotary(config, made)
    if made["rotary.size"] is None and config["rotary_dim"] not in (None, head_size(made)):
        made["rotary.size"] = config["rotary_dim"]


MINIMAX_M2 = Family(
    model_type="minimax_m2",
    source="MiniMax-M2 (MiniMax 2025): norms of queries and keys, experts weighed by sigmoids",
    like=DECODER,
    ends=architectures("MiniMaxM2ForCausalLM", "MiniMaxM2Model"),
    fields=sizes(200064, 3072, 1536, 62, 48, num_key_value_heads=8, head_dim=128, max_position_embeddings=196608)
    | {"num_experts_per_tok": 8, "num_local_experts": 256, "rotary_dim": None},
    means={"rotary_dim": ""},
    sets={"query_key_norm": "width", "experts.weights": "sigmoid", "experts.shares": True, "experts.choice_bias": True},
    rules={"rotary": minimax_rotary},
    aliases="num_experts",
    idle=BALANCE,
    fixed={"router_jitter_noise": (0,)},
)

GPT_OSS = Family(
    model_type="gpt_oss",
    source="gpt-oss (OpenAI 2025): attention sinks, biases, experts that bound what they do, gated by x·σ(α x)",
    like=WINDOWED,
    ends=architectures("GptOssForCausalLM", "GptOssModel"),
    fields=sizes(201088, 2880, 2880, 36, 64, num_key_value_heads=8, head_dim=64, max_position_embeddings=131072)
    | {"sliding_window": 128, "attention_bias": True, "num_local_experts": 128, "num_experts_per_tok": 4},
    means={"hidden_act": ""},
    sets={"sinks": True, "mlp": "clamped", "mlp_bias": True, "activation": "sigmoid", "experts.router_bias": True},
    rules={"rotary": rotary_whole, "windows": windows(lambda config, n: n % 2 == 0)},
    aliases="num_experts experts_per_token",
    idle=f"{BALANCE} swiglu_alpha swiglu_limit",
)


def llama4_layers(config: Config, made: dict[str, Any]) -> None:
    """Every n-th layer has experts, and one for all tokens as wide; every fourth has no positions."""
    named, step = config["moe_layers"], config["interleave_moe_layer_step"]
    width = config["intermediate_size"]
    made |= {"experts.width": width, "experts.shared_width": width}
    pattern(made, lambda n: (n + 1) % step == 0 if named is None else n in named)
    made["rotary.pattern"] = cycle(smollm_turned(config, made["layers"]), made["layers"])


LLAMA4 = Family(
    model_type="llama4_text",
    source="the language model of Llama 4 (Meta AI 2025): one expert a token and one for all, chunks, unit queries",
    like=DECODER,
    ends=architectures("Llama4ForCausalLM", "Llama4TextModel"),
    fields=sizes(202048, 5120, 8192, 48, 40, num_key_value_heads=8, head_dim=128, max_position_embeddings=131072)
    | {"intermediate_size_mlp": 16384, "num_experts_per_tok": 1, "num_local_experts": 16, "moe_layers": None}
    | {"interleave_moe_layer_step": 1, "use_qk_norm": True, "no_rope_layers": None, "no_rope_layer_interval": 4}
    | {"attention_bias": False},
    means={"use_qk_norm": {True: {"query_key_norm": "unit"}, False: {}}, "intermediate_size": Meaning("size")},
    sets={"experts.weights": "sigmoid"},
    rules={"rotary": rotary_whole, "layers": llama4_layers},
    aliases="num_experts",
    idle=f"{BALANCE} attention_chunk_size attn_scale attn_temperature_tuning floor_scale layer_types",
    fixed={"router_jitter_noise": (0,)},
    note="Layers with positions see chunks of the sequence: scores are counted of all tokens. Experts' inputs are "
    "scaled by their weights, which here their outputs are; the package runs every expert on every token, here those "
    "chosen.",
)
