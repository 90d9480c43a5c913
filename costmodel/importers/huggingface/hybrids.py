"""State spaces and short convolutions, alone or in turn with attention."""

from __future__ import annotations

from typing import Any

from costmodel.errors import SpecError, shown
from costmodel.importers.huggingface.experts import BALANCE, GRANITE_MOE_SHARED, QWEN2_MOE
from costmodel.importers.huggingface.family import Config, Family, architectures, sizes
from costmodel.importers.huggingface.fields import Meaning, wrong
from costmodel.importers.huggingface.llama import DECODER
from costmodel.importers.huggingface.rules import (
    MOST_LAYERS,
    cycle,
    each,
    enough,
    forget_experts,
    pattern,
    rotary,
    rotary_whole,
    routed_layers,
)
from costmodel.symbolic.sizes import LARGEST_SIZE

IN_FP32 = "Its state space is computed in the type of the rest, where the package does so in fp32."

LAYER_TYPES = {
    "attention": "full_attention",
    "hybrid": "full_attention",
    "mamba": "linear_attention",
    "conv": "conv",
}
"""Kinds of layers by their older names."""


def mixed_by_types(config: Config, made: dict[str, Any], part: str, kind: str) -> None:
    """Those layers mix tokens by a part that `layer_types` says are of a kind; the others attend. Raises SpecError."""
    known = (kind, "full_attention")
    types = [LAYER_TYPES.get(named, named) for named in config["layer_types"]]
    for number, named in enumerate(types):
        if named not in known:
            raise wrong("layer_types", f"{shown(named)} is not one of {', '.join(known)}", number)
    enough("layer_types", types, made["layers"])
    mixed(made, part, [named == kind for named in types[: made["layers"]]])


def mixed(made: dict[str, Any], part: str, recurrent: list[bool]) -> None:
    """Those layers mix tokens by a part, the others by attention; where all attend, there is no such part."""
    if any(recurrent):
        made[f"{part}.pattern"] = cycle(recurrent, made["layers"])
        return
    for field in [name for name in made if name.startswith(f"{part}.")]:
        del made[field]


def inner_heads(config: Config, made: dict[str, Any]) -> None:
    """Features within and heads of a Mamba 2, which must agree."""
    own = config.values.get("mamba_d_ssm")
    width = config["mamba_expand"] * made["width"] if own is None else own
    heads, size = config["mamba_n_heads"], config["mamba_d_head"]
    if width % heads or size not in ("auto", width // heads):
        raise wrong(
            "mamba_d_head", f"{shown(size)} times mamba_n_heads {heads} is not the {width} features of the state space"
        )
    made |= {"state_space.width": width, "state_space.head_size": width // heads}


def projected(config: Config, made: dict[str, Any]) -> None:
    """Features within and heads of a Mamba 2 alone."""
    width, heads, size = config["expand"] * made["width"], config["num_heads"], made["state_space.head_size"]
    if heads * size != width:
        raise wrong(
            "head_dim",
            f"{size} times num_heads {heads} is not expand {config['expand']} times hidden_size {made['width']}",
        )
    made["state_space.width"] = width


ALONE = {"heads": 1, "positions": "none", "norm": "rmsnorm", "mlp_pattern": (False,)}
"""A decoder without attention and MLPs."""

MAMBA2 = Family(
    model_type="mamba2",
    source="Mamba 2 (Dao & Gu 2024) and Codestral Mamba (Mistral AI 2024)",
    ends={"Mamba2ForCausalLM": "tokens", "Mamba2Model": ""},
    fields={"vocab_size": 32768, "hidden_size": 4096, "num_hidden_layers": 64, "num_heads": 128, "head_dim": 64}
    | {"state_size": 128, "expand": 2, "conv_kernel": 4, "n_groups": 8, "use_bias": False, "use_conv_bias": True}
    | {"hidden_act": "silu", "chunk_size": 256, "tie_word_embeddings": False},
    means={"num_heads": Meaning("size"), "head_dim": Meaning("size", "state_space.head_size")}
    | {"use_bias": "state_space.bias", "hidden_act": "state_space.activation"},
    sets=ALONE | {"context": 2048},
    rules={"heads": projected},
    idle="rescale_prenorm_residual residual_in_fp32 time_step_floor time_step_limit time_step_max time_step_min "
    "time_step_rank",
    note=f"{IN_FP32} Its configuration names no context: sequences are of 2,048 tokens unless the question says.",
)


def selected(config: Config, made: dict[str, Any]) -> None:
    """Features within a Mamba, and those that its time steps are made of."""
    rank = config["time_step_rank"]
    made |= {
        "state_space.width": config["intermediate_size"] or config["expand"] * made["width"],
        "state_space.rank": -(-made["width"] // 16) if rank == "auto" else rank,
    }


MAMBA = Family(
    model_type="mamba",
    source="Mamba (Gu & Dao 2023)",
    ends={"MambaForCausalLM": "tokens", "MambaModel": ""},
    fields={"vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 32, "state_size": 16, "expand": 2}
    | {"conv_kernel": 4, "use_bias": False, "use_conv_bias": True, "hidden_act": "silu", "time_step_rank": "auto"}
    | {"intermediate_size": None, "tie_word_embeddings": True},
    means={
        "use_bias": "state_space.bias",
        "hidden_act": "state_space.activation",
        "intermediate_size": Meaning("size"),
    },
    sets=ALONE | {"context": 2048, "state_space.kind": "mamba"},
    rules={"inner": selected},
    idle="rescale_prenorm_residual residual_in_fp32 time_step_floor time_step_init_scheme time_step_max "
    "time_step_min time_step_scale use_associative_scan",
    fixed={"use_mambapy": (False,)},
    note=f"{IN_FP32} Its configuration names no context: sequences are of 2,048 tokens unless the question says.",
)

FALCON_MAMBA = Family(
    model_type="falcon_mamba",
    source="Falcon Mamba (Zuo et al. 2024): Mamba with norms of time steps and of what writes and reads",
    like=MAMBA,
    ends={"FalconMambaForCausalLM": "tokens", "FalconMambaModel": ""},
    sets={"state_space.norm": "weightless"},
    idle="mixer_rms_eps",
    fixed={"use_falcon_mambapy": (False,)},
    note=MAMBA.note,
)

INNER = {"mamba_n_heads": 128, "mamba_d_head": "auto", "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4}
INNER |= {"mamba_expand": 2, "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_proj_bias": False}


def bamba_layers(config: Config, made: dict[str, Any]) -> None:
    """Those layers that are named attend."""
    attending = set(config["attn_layer_indices"] or ())
    mixed(made, "state_space", each(made["layers"], lambda n: n not in attending))


BAMBA = Family(
    model_type="bamba",
    source="Bamba (IBM et al. 2024): Mamba 2 with attention in a few layers, half of each head turned",
    like=DECODER,
    ends=architectures("BambaForCausalLM", "BambaModel"),
    fields=sizes(128000, 4096, 14336, 32, 32, num_key_value_heads=8, max_position_embeddings=262144, **INNER)
    | {"attn_layer_indices": None, "partial_rotary_factor": 0.5, "attention_bias": False, "mlp_bias": False},
    means={"hidden_act": "activation state_space.activation"},
    rules={"rotary": rotary, "inner": inner_heads, "layers": bamba_layers},
    idle="time_step_limit num_logits_to_keep z_loss_coefficient layer_types layers_block_type",
    note=IN_FP32,
)


def granite_layers(config: Config, made: dict[str, Any]) -> None:
    """Layers that attend by `layer_types`; without experts the shared one is the MLP."""
    if config["layer_types"] is not None:
        mixed_by_types(config, made, "state_space", "linear_attention")
    if config["position_embedding_type"] != "rope":
        made |= {"positions": "none"}
        made.pop("rotary.size", None)
    if not made["experts.count"]:
        made["mlp_width"] = config["shared_intermediate_size"]
        forget_experts(made)


GRANITE_HYBRID = Family(
    model_type="granitemoehybrid",
    source="Granite 4 (IBM 2025): Mamba 2 with attention in a few layers, an expert for all tokens",
    like=GRANITE_MOE_SHARED,
    ends=architectures("GraniteMoeHybridForCausalLM", "GraniteMoeHybridModel"),
    fields=INNER | {"shared_intermediate_size": 1024, "layer_types": None, "position_embedding_type": None},
    means={"hidden_act": "activation state_space.activation", "num_local_experts": Meaning("count", "experts.count")},
    rules={"rotary": rotary_whole, "inner": inner_heads, "layers": granite_layers},
    idle="time_step_limit layers_block_type",
    aliases="layers_block_type=layer_types",
    note=IN_FP32,
)

BLOCKS = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
"""Kinds of Nemotron-H's blocks, by the letter of each."""


def nemotron_blocks(config: Config, made: dict[str, Any]) -> None:
    """Each block is one of a state space, attention, an MLP or experts."""
    types, letters = config["layers_block_type"], config["hybrid_override_pattern"]
    if types is None and letters is not None:
        odd = next((letter for letter in letters if letter not in BLOCKS), None)
        if odd is not None or not letters:
            raise SpecError(
                f"hybrid_override_pattern: {shown(odd or letters)} is not one of {', '.join(BLOCKS)}",
                ("hybrid_override_pattern",),
            )
        types = [BLOCKS[letter] for letter in letters]
    if types == []:
        raise wrong("layers_block_type", "names no layer: give the kind of each")
    types = [LAYER_TYPES.get(kind, kind) for kind in types or BLOCKS.values()]
    for number, kind in enumerate(types):
        if kind not in BLOCKS.values():
            raise wrong("layers_block_type", f"{shown(kind)} is not one of {', '.join(BLOCKS.values())}", number)
    if len(types) > MOST_LAYERS:
        raise SpecError(f"layers of several kinds are at most {MOST_LAYERS:,}, not {len(types):,}")
    made["layers"] = len(types)
    made["state_space.width"] = config["mamba_num_heads"] * config["mamba_head_dim"]
    made["experts.shared_width"] = config["moe_shared_expert_intermediate_size"]
    mixed(made, "state_space", [kind == "linear_attention" for kind in types])
    made["attention_pattern"] = cycle([kind == "full_attention" for kind in types], len(types))
    made["mlp_pattern"] = cycle([kind in ("mlp", "moe") for kind in types], len(types))
    pattern(made, lambda n: types[n] == "moe")


NEMOTRON_H = Family(
    model_type="nemotron_h",
    source="Nemotron-H and Nemotron 3 (NVIDIA 2025): blocks of one sublayer each, Mamba 2, attention, MLP or experts",
    like=DECODER,
    ends=architectures("NemotronHForCausalLM", "NemotronHModel"),
    fields=sizes(131072, 4096, 21504, 1, 32, num_key_value_heads=8, head_dim=128, max_position_embeddings=4096)
    | {"layers_block_type": None, "hybrid_override_pattern": None, "mlp_hidden_act": "relu2", "mlp_bias": False}
    | {"ssm_state_size": 128, "mamba_num_heads": 128, "mamba_head_dim": 64, "mamba_hidden_act": "silu"}
    | {"n_groups": 8, "conv_kernel": 4, "use_conv_bias": True, "chunk_size": 128, "use_bias": False}
    | {"n_routed_experts": 8, "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688}
    | {"num_experts_per_tok": 2, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": True},
    means={"mamba_head_dim": Meaning("size", "state_space.head_size"), "use_bias": "state_space.bias"}
    | {"mlp_hidden_act": Meaning("activation", "activation")}
    | {"mamba_hidden_act": Meaning("activation", "state_space.activation")}
    | {"n_group": Meaning("size", "experts.groups"), "topk_group": Meaning("size", "experts.chosen_groups")}
    | {"tie_word_embeddings": ""},  # which the package never ties, whatever it says
    without="hidden_act rope_parameters rope_scaling partial_rotary_factor",
    sets={"positions": "none", "mlp": "plain", "experts.weights": "sigmoid", "experts.choice_bias": True}
    | {"experts.bias": False, "tied": False},
    rules={"rotary": None, "blocks": nemotron_blocks},
    aliases="layer_types=layers_block_type num_local_experts mamba_n_groups mamba_d_conv mamba_conv_bias "
    "mamba_chunk_size",
    idle="mamba_dt_init_floor mamba_dt_limit mamba_dt_max mamba_dt_min rescale_prenorm_residual residual_in_fp32 "
    "time_step_floor time_step_limit time_step_max time_step_min use_mamba_kernels num_logits_to_keep "
    "mamba_ssm_cache_dtype output_router_logits expand mamba_expand mamba_proj_bias moe_shared_expert_overlap "
    "mtp_hybrid_override_pattern mtp_layers_block_type n_shared_experts partial_rotary_factor sliding_window",
    fixed={"attention_bias": (False,), "hidden_dropout": (0,), "moe_latent_size": (None,)}
    | {"num_nextn_predict_layers": (0,)},
    note=IN_FP32,
)


def falcon_h1_inner(config: Config, made: dict[str, Any]) -> None:
    """A state space beside attention in every block, with a norm before or after its gate, or none."""
    inner_heads(config, made)
    first = config["mamba_norm_before_gate"]
    made["state_space.norm"] = ("before" if first else "after") if config["mamba_rms_norm"] else "none"


FALCON_H1 = Family(
    model_type="falcon_h1",
    source="Falcon-H1 (TII 2025): attention and Mamba 2 beside each other in every block",
    like=DECODER,
    ends=architectures("FalconH1ForCausalLM", "FalconH1Model"),
    fields=sizes(128000, 4096, 14336, 32, 32, num_key_value_heads=8, max_position_embeddings=8192, **INNER)
    | {"mamba_d_ssm": 1024, "mamba_norm_before_gate": True, "mamba_rms_norm": False, "projectors_bias": False}
    | {"attention_bias": False, "mlp_bias": False, "lm_head_multiplier": 1.0, "embedding_multiplier": 1.0},
    means={"hidden_act": "activation state_space.activation"},
    sets={"attention_pattern": (True,)},
    rules={"rotary": rotary_whole, "inner": falcon_h1_inner},
    idle="time_step_limit num_logits_to_keep attention_in_multiplier attention_out_multiplier key_multiplier "
    "layer_types mlp_multipliers ssm_in_multiplier ssm_multipliers ssm_out_multiplier",
    note=f"{IN_FP32} Its constant factors within blocks are left out: those of embeddings and logits are counted.",
)


def jamba_layers(config: Config, made: dict[str, Any]) -> None:
    """One layer in a period attends; one in another has experts, as wide as the MLP."""
    period, offset = config["attn_layer_period"], config["attn_layer_offset"]
    routed, first = config["expert_layer_period"], config["expert_layer_offset"]
    for name, value, of in (("attn", offset, period), ("expert", first, routed)):
        if value >= of:
            raise wrong(f"{name}_layer_offset", f"{value} is not below {name}_layer_period {of}")
    rank = config["mamba_dt_rank"]
    made["state_space.width"] = config["mamba_expand"] * made["width"]
    made["state_space.rank"] = -(-made["width"] // 16) if rank == "auto" else rank
    mixed(made, "state_space", each(made["layers"], lambda n: n % period != offset))
    pattern(made, lambda n: n % routed == first and made["experts.count"] > 1)


JAMBA = Family(
    model_type="jamba",
    source="Jamba (Lieber et al. 2024): Mamba with attention in every eighth layer and experts in every other",
    like=DECODER,
    ends=architectures("JambaForCausalLM", "JambaModel"),
    fields=sizes(65536, 4096, 14336, 32, 32, num_key_value_heads=8, max_position_embeddings=262144)
    | {"num_experts_per_tok": 2, "num_experts": 16, "expert_layer_period": 2, "expert_layer_offset": 1}
    | {"attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}
    | {"mamba_dt_rank": "auto", "mamba_conv_bias": True, "mamba_proj_bias": False},
    means={"hidden_act": "activation state_space.activation"},
    without="rope_parameters rope_scaling partial_rotary_factor",
    sets={"positions": "none", "experts.weights": "all", "state_space.kind": "mamba"} | {"state_space.norm": "inner"},
    rules={"rotary": None, "layers": jamba_layers},
    aliases="num_local_experts",
    idle=f"use_associative_scan use_mamba_kernels {BALANCE} layer_types layers_block_type sliding_window",
    fixed={"use_mambapy": (False,)},
    note=IN_FP32,
)


def lfm2_sizes(config: Config, made: dict[str, Any]) -> None:
    """Layers that attend; features of the MLP, which are two thirds of those named, rounded up."""
    layers, attending = made["layers"], config["full_attn_idxs"]
    if config["layer_types"] is not None:
        mixed_by_types(config, made, "short_convolution", "conv")
    else:
        attends = None if attending is None else set(attending)
        mixed(made, "short_convolution", each(layers, lambda n: attends is not None and n not in attends))
    if config["block_auto_adjust_ff_dim"]:
        hidden = int(2 * made["mlp_width"] / 3)
        if (factor := config["block_ffn_dim_multiplier"]) is not None:
            multiple = config["block_multiple_of"]
            if factor * hidden > LARGEST_SIZE:
                raise wrong(
                    "block_ffn_dim_multiplier", f"{factor:g} makes an MLP of more than {LARGEST_SIZE:,} features"
                )
            hidden = -(-int(factor * hidden) // multiple) * multiple
        made["mlp_width"] = hidden


CONVOLVED = Meaning("size", "short_convolution.size")

LFM2 = Family(
    model_type="lfm2",
    source="LFM2 (Liquid AI 2025): gated convolutions of three tokens, attention in some layers",
    like=DECODER,
    ends=architectures("Lfm2ForCausalLM", "Lfm2Model"),
    fields=sizes(65536, 2560, 12288, 32, 32, num_key_value_heads=8, max_position_embeddings=128000)
    | {"conv_bias": False, "conv_L_cache": 3, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0}
    | {"block_auto_adjust_ff_dim": True, "full_attn_idxs": None, "layer_types": None, "tie_word_embeddings": True},
    means={"conv_bias": Meaning("flag", "short_convolution.bias"), "conv_L_cache": CONVOLVED},
    without="attention_dropout hidden_act",
    sets={"activation": "silu", "query_key_norm": "head"},
    rules={"rotary": rotary_whole, "layers": lfm2_sizes},
    aliases="tie_embedding=tie_word_embeddings block_ff_dim=intermediate_size",
    idle="attention_dropout",
)


def lfm2_experts(config: Config, made: dict[str, Any]) -> None:
    """Layers that attend; experts after the first dense ones, whose choice a constant of each may sway."""
    mixed_by_types(config, made, "short_convolution", "conv")
    dense = config["num_dense_layers"]
    made["experts.choice_bias"] = config["use_expert_bias"]
    pattern(made, lambda n: n >= dense)


LFM2_MOE = Family(
    model_type="lfm2_moe",
    source="LFM2 with experts (Liquid AI 2025): experts after two dense layers, weighed by sigmoids",
    like=LFM2,
    ends={"Lfm2MoeForCausalLM": "tokens", "Lfm2MoeModel": ""},
    fields=sizes(65536, 2048, 7168, 32, 32, num_key_value_heads=8, moe_intermediate_size=1792, num_dense_layers=2)
    | {"num_experts_per_tok": 4, "num_experts": 32, "use_expert_bias": True, "routed_scaling_factor": 1.0}
    | {"norm_topk_prob": True, "layer_types": []},
    without="block_multiple_of block_ffn_dim_multiplier block_auto_adjust_ff_dim full_attn_idxs",
    sets={"experts.weights": "sigmoid"},
    rules={"layers": lfm2_experts},
    aliases="tie_embedding=tie_word_embeddings",
    idle="output_router_logits",
)


def gated_layers(config: Config, made: dict[str, Any]) -> None:
    """All layers but every n-th by the gated delta rule, if nothing else is said."""
    every = config["full_attention_interval"]
    if config["layer_types"] is None:
        mixed(made, "gated_delta", each(made["layers"], lambda n: (n + 1) % every != 0))
    else:
        mixed_by_types(config, made, "gated_delta", "linear_attention")


def qwen3_next_layers(config: Config, made: dict[str, Any]) -> None:
    """All layers but every n-th by the gated delta rule; experts as in Qwen 3."""
    gated_layers(config, made)
    if made["experts.count"]:
        routed_layers(config, made)
    else:
        forget_experts(made)


def qwen3_5_layers(config: Config, made: dict[str, Any]) -> None:
    """Experts in all layers, or in none."""
    gated_layers(config, made)
    if "experts.count" not in made:
        forget_experts(made)


QWEN3_NEXT = Family(
    model_type="qwen3_next",
    source="Qwen3-Next (Qwen Team 2025): gated delta rules, gated attention in every fourth layer, many small experts",
    like=QWEN2_MOE,
    ends=architectures("Qwen3NextForCausalLM", "Qwen3NextModel"),
    fields=sizes(151936, 2048, 5632, 48, 16, num_key_value_heads=2, head_dim=256, max_position_embeddings=32768)
    | {"partial_rotary_factor": 0.25, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128}
    | {"linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "num_experts": 512}
    | {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts_per_tok": 10}
    | {"norm_topk_prob": True, "attention_bias": False, "layer_types": None, "full_attention_interval": 4},
    means={"hidden_act": "activation gated_delta.activation", "num_experts": Meaning("count", "experts.count")},
    without="qkv_bias sliding_window use_sliding_window max_window_layers",
    sets={"query_key_norm": "head", "attention_gate": True, "qkv_bias": False},
    rules={"rotary": rotary, "windows": None, "experts": qwen3_next_layers},
    note="Its norms add 1 to their weights, for which the package makes another vector.",
)
QWEN3_5 = Family(
    model_type="qwen3_5_text",
    source="the language model of Qwen 3.5 (Qwen Team 2026): Qwen3-Next with an MLP in place of experts",
    like=QWEN3_NEXT,
    ends={"Qwen3_5ForCausalLM": "tokens", "Qwen3_5ForConditionalGeneration": "tokens", "Qwen3_5TextModel": ""}
    | {"Qwen3_5TextForSequenceClassification": "classes last"},
    fields=sizes(248320, 4096, 12288, 32, 16, num_key_value_heads=4, max_position_embeddings=32768),
    without="num_experts moe_intermediate_size shared_expert_intermediate_size num_experts_per_tok norm_topk_prob "
    "decoder_sparse_step mlp_only_layers",
    rules={"experts": qwen3_5_layers},
)
QWEN3_5_MOE = Family(
    model_type="qwen3_5_moe_text",
    source="the language model of Qwen 3.5 with experts (Qwen Team 2026): Qwen3-Next with experts in every layer",
    like=QWEN3_NEXT,
    ends={"Qwen3_5MoeForCausalLM": "tokens", "Qwen3_5MoeForConditionalGeneration": "tokens", "Qwen3_5MoeTextModel": ""},
    fields=sizes(248320, 2048, 5632, 40, 16, num_key_value_heads=2, max_position_embeddings=32768)
    | {"num_experts_per_tok": 8, "num_experts": 256},
    means={"num_experts": "experts.count"},
    without="norm_topk_prob decoder_sparse_step mlp_only_layers intermediate_size",
    rules={"experts": qwen3_5_layers},
    idle="intermediate_size",
)
