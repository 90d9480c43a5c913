"""DeepSeek, and mixtures of experts that are built as its are: latent attention, experts after dense blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from costmodel.importers.huggingface.blocks import exaone_windows
from costmodel.importers.huggingface.family import Config, Family, architectures, sizes
from costmodel.importers.huggingface.fields import Meaning, wrong
from costmodel.importers.huggingface.llama import DECODER, WINDOWED
from costmodel.importers.huggingface.rules import (
    check_whole,
    enough,
    forget_experts,
    pattern,
    rotary,
    rotary_whole,
    windows,
)


def latent(config: Config, made: dict[str, Any]) -> None:
    """Keys and values from one narrow vector a token; some features of a key are turned, and shared by all heads."""
    turned, heads = config["qk_rope_head_dim"], made["heads"]
    if turned % 2:
        raise wrong("qk_rope_head_dim", f"{turned} is odd: features are turned in pairs")
    check_whole(config, turned)
    if made["kv_heads"] not in (None, heads):
        raise wrong(
            "num_key_value_heads",
            f"{made['kv_heads']} is not num_attention_heads {heads}: latent attention has a key "
            "and a value for each head",
        )
    size = config["qk_nope_head_dim"] + turned
    value = config["v_head_dim"] or made["width"] // heads
    own = None if value == size else value
    made |= {"kv_heads": None, "head_size": size, "rotary.size": turned, "latent.value_head_size": own}


def deepseek_experts(config: Config, made: dict[str, Any]) -> None:
    """Experts after the first dense blocks, beside shared ones; a token may choose groups of them first."""
    dense = config["first_k_dense_replace"]
    if dense >= made["layers"]:
        forget_experts(made)
        return
    if made["experts.per_token"] is None:
        raise wrong("num_experts_per_tok", "is missing: give how many experts a token chooses")
    method, methods = config.values.get("topk_method"), ("greedy", "group_limited_greedy")
    if method is not None and method not in methods:
        raise wrong("topk_method", f"{method!r} is not {' or '.join(methods)}")
    shared = made["experts.width"] * (config["n_shared_experts"] or 0)
    made |= {"experts.dense_layers": dense or None, "experts.shared_width": shared or None}
    if made["mlp_bias"]:
        made["experts.bias"] = False
    if method != "greedy":
        for field, ours in {"n_group": "experts.groups", "topk_group": "experts.chosen_groups"}.items():
            if config[field] is None:
                raise wrong(field, "is missing: experts are chosen within groups")
            made[ours] = config[field]


DEEPSEEK_V2 = Family(
    model_type="deepseek_v2",
    source="DeepSeek V2 and V2-Lite (DeepSeek-AI 2024a): latent attention, shared and routed experts",
    like=DECODER,
    ends=architectures("DeepseekV2ForCausalLM", "DeepseekV2Model"),
    fields=sizes(102400, 4096, 11008, 32, 32, attention_bias=False, mlp_bias=False, q_lora_rank=1536, kv_lora_rank=512)
    | {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 0}
    | {"moe_intermediate_size": 1407, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": None}
    | {"n_group": None, "topk_group": None, "topk_method": "greedy", "routed_scaling_factor": 1.0},
    without="head_dim",
    sets={"experts.weights": "all"},
    rules={"heads": None, "rotary": latent, "experts": deepseek_experts},
    aliases="num_experts",
    idle="output_router_logits head_dim",
    fixed={"moe_layer_freq": (1,), "norm_topk_prob": (False, None)},
)


def mini_scales(config: Config, made: dict[str, Any]) -> None:
    """Sublayers by how many layers there are, and what the head reads by the width (Hu et al. 2024, MiniCPM, §3)."""
    latent(config, made)
    if config["scale_depth"] is not None:
        made["residual_scale"] = config["scale_depth"] / made["layers"] ** 0.5
    if config["dim_model_base"] is not None:
        made["head.input_scale"] = config["dim_model_base"] / made["width"]


MINICPM3 = Family(
    model_type="minicpm3",
    source="MiniCPM 3 (Hu et al. 2024): LLaMA with latent attention and constant factors",
    like=DECODER,
    ends=architectures("MiniCPM3ForCausalLM", "MiniCPM3Model"),
    fields=sizes(73448, 2560, 6400, 62, 40, num_key_value_heads=40, max_position_embeddings=32768)
    | {"q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": None}
    | {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True}
    | {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256},
    without="head_dim",
    rules={"heads": None, "rotary": mini_scales},
    idle="head_dim qk_head_dim",
)
DEEPSEEK_V3 = Family(
    model_type="deepseek_v3",
    source="DeepSeek V3 and R1 (DeepSeek-AI 2024b); modules that predict further tokens are not part of the model",
    like=DEEPSEEK_V2,
    ends=architectures("DeepseekV3ForCausalLM", "DeepseekV3Model"),
    fields=sizes(129280, 7168, 18432, 61, 128, num_key_value_heads=128, max_position_embeddings=4096)
    | {"moe_intermediate_size": 2048, "n_shared_experts": 1, "n_routed_experts": 256, "routed_scaling_factor": 2.5}
    | {"n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "norm_topk_prob": True},
    without="mlp_bias topk_method",
    sets={"experts.weights": "sigmoid", "experts.choice_bias": True},
    aliases="num_local_experts num_mtp_layers=num_nextn_predict_layers",
    idle="rope_interleave",
)


def indexed(config: Config, made: dict[str, Any]) -> None:
    """Keys are chosen; which layers have experts may be said layer by layer, as the first ones have none."""
    latent(config, made)
    types, layers = config["mlp_layer_types"], made["layers"]
    first = config["first_k_dense_replace"]
    if types is not None:
        enough("mlp_layer_types", types, layers)
        for number, kind in enumerate(types):
            if kind not in ("dense", "sparse"):
                raise wrong("mlp_layer_types", f"{kind!r} is not dense or sparse", number)
        first = types[:layers].count("dense")
    deepseek_experts(replace(config, values=config.values | {"first_k_dense_replace": first}), made)
    if types is not None and "sparse" in types[:first] and "experts.count" in made:
        made["experts.dense_layers"] = None
        pattern(made, lambda n: types[n] == "sparse")


DEEPSEEK_V32 = Family(
    model_type="deepseek_v32",
    source="DeepSeek V3.2 (DeepSeek-AI 2025): DeepSeek V3, of which each token attends to keys that are chosen for it",
    like=DEEPSEEK_V3,
    ends={"DeepseekV32ForCausalLM": "tokens", "DeepseekV32Model": ""},
    fields={"max_position_embeddings": 163840, "mlp_layer_types": None}
    | {"index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64},
    means={"q_lora_rank": Meaning("size", "latent.query_width")},
    rules={"rotary": None, "experts": indexed},
    aliases=f"{DEEPSEEK_V3.aliases} num_experts",
    idle="layer_types mlp_bias",
)
KIMI_K2 = Family(
    model_type="kimi_k2",
    source="Kimi K2 (Kimi Team 2025): DeepSeek V3 by another name",
    like=DEEPSEEK_V3,
    ends=DEEPSEEK_V3.ends,
    aliases=DEEPSEEK_V3.aliases,
    idle="aux_loss_alpha ep_size num_nextn_predict_layers seq_aux",
    fixed={"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)},
    remote=True,
)

GLM4_MOE = Family(
    model_type="glm4_moe",
    source="GLM-4.5 (GLM Team 2025): experts as in DeepSeek V3, beside LLaMA's attention",
    like=DECODER,
    ends=architectures("Glm4MoeForCausalLM", "Glm4MoeModel"),
    fields=sizes(151552, 4096, 10944, 46, 96, num_key_value_heads=8, attention_bias=False, use_qk_norm=False)
    | {"partial_rotary_factor": 0.5, "max_position_embeddings": 131072, "moe_intermediate_size": 1408}
    | {"num_experts_per_tok": 8, "n_shared_experts": 1, "n_routed_experts": 128, "routed_scaling_factor": 1.0}
    | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": True},
    means={
        "attention_bias": "qkv_bias",
        "use_qk_norm": {True: {"query_key_norm": "head"}, False: {}},
    },
    sets={"experts.weights": "sigmoid", "experts.choice_bias": True},
    rules={"rotary": rotary, "experts": deepseek_experts},
    aliases=DEEPSEEK_V3.aliases,
    idle="output_router_logits",
)

DOTS1 = Family(
    model_type="dots1",
    source="dots.llm1 (rednote-hilab 2025): DeepSeek V3's experts beside Qwen 3's attention",
    like=WINDOWED,
    ends=architectures("Dots1ForCausalLM", "Dots1Model"),
    fields=sizes(152064, 4608, 10944, 62, 32, num_key_value_heads=32, attention_bias=False)
    | {"sliding_window": 4096, "max_window_layers": 62, "moe_intermediate_size": 1408, "n_routed_experts": None}
    | {"n_shared_experts": None, "num_experts_per_tok": None, "first_k_dense_replace": 0, "norm_topk_prob": False}
    | {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0},
    sets={"query_key_norm": "head", "experts.weights": "sigmoid", "experts.choice_bias": True},
    rules={
        "windows": windows(lambda config, n: n >= config["max_window_layers"]),
        "experts": deepseek_experts,
    },
    aliases="num_local_experts",
    idle="output_router_logits",
    fixed={"moe_layer_freq": (1,)},
)


def all_sparse(config: Config, made: dict[str, Any]) -> None:
    """Experts in every layer, beside shared ones."""
    made["experts.shared_width"] = made["experts.width"] * (config["n_shared_experts"] or 0) or None
    made |= {"experts.groups": config["n_group"], "experts.chosen_groups": config["topk_group"]}


SOLAR_OPEN = Family(
    model_type="solar_open",
    source="Solar Open (Upstage 2025): GLM-4.5's experts in every layer, beside LLaMA's attention",
    like=DECODER,
    ends={"SolarOpenForCausalLM": "tokens", "SolarOpenModel": ""},
    fields=sizes(196608, 4096, 10240, 48, 64, num_key_value_heads=8, head_dim=128, max_position_embeddings=131072)
    | {"attention_bias": False, "moe_intermediate_size": 1280, "num_experts_per_tok": 8, "n_shared_experts": 1}
    | {"n_routed_experts": 128, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": True},
    means={"attention_bias": "qkv_bias"},
    sets={"experts.weights": "sigmoid", "experts.choice_bias": True},
    rules={"rotary": rotary_whole, "experts": all_sparse},
    without="intermediate_size",
    aliases="num_local_experts",
    idle="output_router_logits intermediate_size",
    fixed={"first_k_dense_replace": (0,)},
)


def sparse_layers(config: Config, made: dict[str, Any]) -> None:
    """Experts in the layers that are said to be sparse, or in all after the first dense ones, beside shared ones."""
    types, layers = config["mlp_layer_types"], made["layers"]
    dense = config.values.get("first_k_dense_replace", 1)
    if types is not None:
        for number, kind in enumerate(types):
            if kind not in ("dense", "sparse"):
                raise wrong("mlp_layer_types", f"{kind!r} is not dense or sparse", number)
        enough("mlp_layer_types", types, layers)
    pattern(made, lambda n: n >= dense if types is None else types[n] == "sparse")
    if "experts.count" not in made:
        return
    shared = next(config[name] for name in ("n_shared_experts", "num_shared_experts") if name in config.values)
    made["experts.shared_width"] = made["experts.width"] * (shared or 0) or None
    made |= {"experts.groups": config.values.get("n_group"), "experts.chosen_groups": config.values.get("topk_group")}
    if made["mlp_bias"]:
        made["experts.bias"] = False


EXAONE_MOE = Family(
    model_type="exaone_moe",
    source="K-EXAONE (LG AI Research 2025): EXAONE 4.0's attention, DeepSeek V3's experts",
    like=WINDOWED,
    ends={"ExaoneMoeForCausalLM": "tokens", "ExaoneMoeModel": ""},
    fields=sizes(102400, 4096, 16384, 32, 32, num_key_value_heads=32, sliding_window=4096, sliding_window_pattern=4)
    | {"mlp_layer_types": None, "first_k_dense_replace": 1, "moe_intermediate_size": 1024, "num_experts": 64}
    | {"num_experts_per_tok": 8, "num_shared_experts": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5}
    | {"n_group": 1, "topk_group": 1},
    means={"sliding_window_pattern": Meaning("anything")},
    sets={"query_key_norm": "head", "experts.weights": "sigmoid", "experts.choice_bias": True},
    rules={"windows": exaone_windows, "experts": sparse_layers},
    idle="output_router_logits",
)

GLM4_MOE_LITE = Family(
    model_type="glm4_moe_lite",
    source="GLM-4.7-Flash (Z.ai 2026): DeepSeek V3 with other sizes",
    like=DEEPSEEK_V3,
    ends={"Glm4MoeLiteForCausalLM": "tokens", "Glm4MoeLiteModel": ""},
    fields=sizes(154880, 2048, 10240, 47, 20, num_key_value_heads=20, max_position_embeddings=202752)
    | {"moe_intermediate_size": 1536, "n_routed_experts": 64, "n_shared_experts": 1, "routed_scaling_factor": 1.8}
    | {"q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256, "n_group": 1, "topk_group": 1}
    | {"num_experts_per_tok": 4, "mlp_layer_types": None},
    without="first_k_dense_replace",
    rules={"experts": sparse_layers},
    aliases="num_local_experts head_dim=qk_rope_head_dim",
)
YOUTU = Family(
    model_type="youtu",
    source="Youtu-LLM (Tencent 2025): DeepSeek V3's attention, and an MLP in every layer",
    like=DECODER,
    ends={"YoutuForCausalLM": "tokens", "YoutuModel": ""},
    fields=sizes(128256, 2048, 6144, 32, 16, num_key_value_heads=16, max_position_embeddings=131072)
    | {"attention_bias": False, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128}
    | {"qk_rope_head_dim": 64, "v_head_dim": 128, "tie_word_embeddings": True},
    without="head_dim",
    rules={"heads": None, "rotary": latent},
    idle="embedding_initializer_range head_dim rope_interleave",
)


def afmoe_layers(config: Config, made: dict[str, Any]) -> None:
    """Layers that see a window have positions; experts after the first dense layers; embeddings may be scaled."""
    windows(lambda config, n: (n + 1) % config["global_attn_every_n_layers"] != 0)(config, made)
    made["rotary.pattern"] = made["window.pattern"] if "window.size" in made else (False,)
    made["embedding_scale"] = made["width"] ** 0.5 if config["mup_enabled"] else None
    dense = config["num_dense_layers"]
    pattern(made, lambda n: n >= dense)
    if "experts.count" in made:
        made["experts.shared_width"] = made["experts.width"] * config["num_shared_experts"] or None


AFMOE = Family(
    model_type="afmoe",
    source="Trinity (Arcee AI 2025): gated attention, norms before and of sublayers, experts weighed by sigmoids",
    like=WINDOWED,
    ends={"AfmoeForCausalLM": "tokens", "AfmoeModel": ""},
    fields=sizes(200192, 2048, 6144, 32, 16, head_dim=128, max_position_embeddings=16384, sliding_window=1024)
    | {"moe_intermediate_size": 1408, "num_dense_layers": 1, "num_experts": 64}
    | {"num_experts_per_tok": 6, "num_shared_experts": 2, "route_scale": 1.0, "mup_enabled": False}
    | {"global_attn_every_n_layers": 4},
    sets={"norm_placement": "both", "query_key_norm": "head", "attention_gate": True, "experts.weights": "sigmoid"}
    | {"experts.shares": True, "experts.choice_bias": True, "experts.choice_stored": True},
    means={"num_shared_experts": Meaning("size")},
    rules={"windows": afmoe_layers},
    idle="output_router_logits",
    fixed={"attention_bias": (False,)},
)
HY_V3 = Family(
    model_type="hy_v3",
    source="Hy3 (Tencent 2026): queries and keys normalised in each head, experts weighed by sigmoids",
    like=DECODER,
    ends={"HYV3ForCausalLM": "tokens", "HYV3Model": ""},
    fields=sizes(120832, 4096, 13312, 80, 64, num_key_value_heads=8, head_dim=128, max_position_embeddings=131072)
    | {"attention_bias": False, "mlp_bias": False, "num_experts": 192, "num_experts_per_tok": 8}
    | {"num_shared_experts": 1, "moe_intermediate_size": 1536, "router_scaling_factor": 2.826, "mlp_layer_types": None},
    means={"num_shared_experts": Meaning("size")},
    sets={"query_key_norm": "head", "experts.weights": "sigmoid", "experts.shares": True}
    | {"experts.choice_bias": True},
    rules={"experts": sparse_layers},
    aliases="num_local_experts",
    idle="output_router_logits enable_moe_fp32_combine",
)
