"""LLaMA and the decoders whose blocks are built as its are, with other sizes, biases, windows and factors."""

from __future__ import annotations

from typing import Any

from costmodel.errors import shown
from costmodel.importers.huggingface.family import Config, Family, architectures, sizes
from costmodel.importers.huggingface.fields import Meaning, wrong
from costmodel.importers.huggingface.rules import (
    ROTARY,
    ROTARY_IDLE,
    cycle,
    each,
    enough,
    head_size,
    heads,
    heads_fill_width,
    rotary,
    rotary_unread,
    rotary_whole,
    sets,
    sliding,
    windows,
)

BIASES = {"qkv_bias": True, "attention_bias": True, "mlp_bias": True}

SCALED = {"norm": "scaled", "weights": "fp32"}
"""How the package writes LLaMA and most after it: norms of operators, and a softmax in fp32."""
SHIFTED = SCALED | {"norm": "shifted", "scale_buffer": True}
"""How it writes Gemma."""
JOINED = {"weights": "fp32", "joined": True}
"""How it writes those of which a part of each head may turn."""

DECODER = Family(
    source="a gated MLP, RMS norms, no biases but where declared",
    fields=ROTARY
    | {"num_key_value_heads": None, "head_dim": None, "hidden_act": "silu", "max_position_embeddings": 2048}
    | {"attention_dropout": 0.0, "tie_word_embeddings": False},
    sets={"positions": "rotary", "fused_qkv": False, "mlp": "gated", "norm": "rmsnorm"} | dict.fromkeys(BIASES, False),
    rules={"heads": heads, "rotary": rotary_unread},
    idle=ROTARY_IDLE,
)
WINDOWED = Family(
    source="some layers see a window",
    like=DECODER,
    fields={"sliding_window": None, "layer_types": None},
    means={"sliding_window": Meaning("integer?")},
    rules={"windows": windows(lambda config, n: False)},
)

LLAMA = Family(
    model_type="llama",
    source="LLaMA 1 to 3 (Touvron et al. 2023a, 2023b; Grattafiori et al. 2024)",
    like=DECODER,
    ends=architectures("LlamaForCausalLM LLaMAForCausalLM", "LlamaModel"),
    fields=sizes(32000, 4096, 11008, 32, 32, attention_bias=False, mlp_bias=False),
    written=SCALED,
)


def granite_logits(config: Config, made: dict[str, Any]) -> None:
    """Logits are divided."""
    made["head.logit_scale"] = 1 / config["logits_scaling"]


def _one_bias(config: Config, made: dict[str, Any]) -> None:
    """Biases of all projections, or none: the published class takes no others."""
    if config["attention_bias"] != config["mlp_bias"]:
        raise wrong(
            "qkv_bias",
            f"{shown(config['attention_bias'])} beside bias {shown(config['mlp_bias'])}: the published class "
            "takes the same for both",
        )


INTERNLM3 = Family(
    model_type="internlm3",
    source="InternLM 3 (Cai et al. 2024): LLaMA by another name",
    like=LLAMA,
    ends=LLAMA.ends,
    fields=sizes(128512, 4096, 10240, 48, 32, num_key_value_heads=2, head_dim=128, max_position_embeddings=32768),
    aliases="qkv_bias=attention_bias bias=mlp_bias",
    rules={"biases": _one_bias},
)
IQUESTCODER = Family(
    model_type="iquestcoder",
    source="IQuest-Coder (IQuest 2025): LLaMA by another name",
    like=LLAMA,
    ends=LLAMA.ends,
    fields=sizes(76800, 5120, 27648, 80, 40, num_key_value_heads=8, head_dim=128, max_position_embeddings=131072),
)
HELIUM = Family(
    model_type="helium",
    source="Helium (Kyutai 2025): LLaMA without a bias after attention",
    like=LLAMA,
    ends=architectures("HeliumForCausalLM", "HeliumModel"),
    fields=sizes(48000, 2560, 7040, 24, 20, num_key_value_heads=20, head_dim=128, max_position_embeddings=4096),
    means={"attention_bias": "qkv_bias"},
    rules={"whole": heads_fill_width},
)


GRANITE = Family(
    model_type="granite",
    source="Granite 3 (Granite Team, IBM 2024): LLaMA with four constant factors",
    like=LLAMA,
    ends=architectures("GraniteForCausalLM", "GraniteModel"),
    fields=dict.fromkeys(("embedding_multiplier", "residual_multiplier", "attention_multiplier"), 1.0)
    | {"logits_scaling": 1.0},
    rules={"logits": granite_logits},
)


def post_norms(config: Config, made: dict[str, Any]) -> None:
    """Norms of what sublayers make, too, if it says so."""
    granite_logits(config, made)
    made["norm_placement"] = "both" if config["use_post_norm"] else "pre"
    if made["score_scale"] == head_size(made) ** -0.5:  # as files say that were saved again
        made["score_scale"] = None


HYPERCLOVAX = Family(
    model_type="hyperclovax",
    source="HyperCLOVA X (NAVER Cloud 2025): Granite with norms of what sublayers make",
    like=GRANITE,
    ends=architectures("HyperCLOVAXForCausalLM", "HyperCLOVAXModel"),
    fields={"use_post_norm": True, "attention_multiplier": None},
    rules={"logits": post_norms},
)
GRANITE_SWA = Family(
    model_type="granite_swa",
    source="Granite with windows (IBM 2026): attention sinks; three of four layers see a window",
    like=GRANITE,
    ends={"GraniteSWAForCausalLM": "tokens", "GraniteSWAModel": ""},
    fields=sizes(100352, 2560, 8192, 24, 20, num_key_value_heads=4, max_position_embeddings=8192)
    | {"sliding_window": 128, "layer_types": None, "tie_word_embeddings": True},
    means={"sliding_window": Meaning("integer?")},
    sets={"sinks": True},
    rules={"windows": windows(lambda config, n: n % 4 != 0)},
    idle="layer_rope_theta",
)

MISTRAL = Family(
    model_type="mistral",
    source="Mistral 7B and those after it (Jiang et al. 2023)",
    like=DECODER,
    ends=architectures("MistralForCausalLM", "MistralModel"),
    fields=sizes(32000, 4096, 14336, 32, 32, num_key_value_heads=8, max_position_embeddings=131072)
    | {"sliding_window": 4096},
    written=SCALED,
)
MINISTRAL3 = Family(
    model_type="ministral3",
    source="Ministral 3 (Mistral AI 2025)",
    like=MISTRAL,
    ends=architectures("Ministral3ForCausalLM", "Ministral3Model"),
    fields=sizes(131072, 4096, 14336, 34, 32, head_dim=128, max_position_embeddings=262144, sliding_window=None),
    rules={"rotary": rotary_whole},
    note="The factor of queries at late positions is left out.",
)
MINISTRAL = Family(
    model_type="ministral",
    source="Ministral 8B (Mistral AI 2024): all layers see a window, or those that are named",
    like=WINDOWED,
    ends=architectures("MinistralForCausalLM", "MinistralModel"),
    fields=sizes(32000, 4096, 14336, 32, 32, num_key_value_heads=8, max_position_embeddings=131072)
    | {"sliding_window": 4096},
    rules={"windows": windows(lambda config, n: True)},
)
CWM = Family(
    model_type="cwm",
    source="Code World Model (Meta FAIR 2025): three of four layers see a window",
    like=WINDOWED,
    ends={"CwmForCausalLM": "tokens", "CwmModel": ""},
    fields=sizes(128256, 6144, 21504, 64, 48, num_key_value_heads=8, head_dim=128, max_position_embeddings=131072)
    | {"sliding_window": 8192, "mlp_bias": False},
    rules={"rotary": rotary_whole, "windows": windows(lambda config, n: n % 4 != 0)},
)

HUNYUAN = Family(
    model_type="hunyuan_v1_dense",
    source="Hunyuan (Tencent 2025): queries and keys normalised in each head",
    like=DECODER,
    ends=architectures("HunYuanDenseV1ForCausalLM", "HunYuanDenseV1Model"),
    fields=sizes(290943, 4096, 11008, 32, 32, attention_bias=False),
    sets={"query_key_norm": "head"},
    idle="eod_token_id",
)

SEED_OSS = Family(
    model_type="seed_oss",
    source="Seed-OSS (ByteDance 2025): biases in query, key and value",
    like=DECODER,
    ends=architectures("SeedOssForCausalLM", "SeedOssModel"),
    fields=sizes(155136, 4096, 27648, 64, 80, num_key_value_heads=8, head_dim=128, max_position_embeddings=524288)
    | {"attention_bias": True, "attention_out_bias": False, "mlp_bias": False}
    | {"attention_dropout": 0.1, "residual_dropout": 0.1},
    means={"attention_bias": "qkv_bias"},
)

ERNIE45 = Family(
    model_type="ernie4_5",
    source="ERNIE 4.5 (Baidu 2025)",
    like=DECODER,
    ends=architectures("Ernie4_5ForCausalLM", "Ernie4_5Model"),
    fields=sizes(103424, 1024, 3072, 18, 16, num_key_value_heads=2, head_dim=128, max_position_embeddings=131072)
    | {"use_bias": False, "tie_word_embeddings": True},
    without="attention_dropout",
)

GLM = Family(
    model_type="glm",
    source="GLM-4 9B (GLM Team 2024): half of each head turned, biases in query, key and value",
    like=DECODER,
    ends=architectures("GlmForCausalLM", "GlmModel"),
    fields=sizes(151552, 4096, 13696, 40, 32, num_key_value_heads=2, head_dim=128, max_position_embeddings=131072)
    | {"attention_bias": True, "partial_rotary_factor": 0.5},
    means={"attention_bias": "qkv_bias"},
    rules={"rotary": rotary},
)


def qwen_windows(config: Config, made: dict[str, Any]) -> None:
    """The layers after the first `max_window_layers` see a window, if any do."""
    if config["use_sliding_window"]:
        windows(lambda config, n: n >= config["max_window_layers"])(config, made)
    elif config["layer_types"] and any(sliding(config["layer_types"], made["layers"])):
        raise wrong("layer_types", "has sliding_attention, and use_sliding_window is false")


QWEN2 = Family(
    model_type="qwen2",
    source="Qwen 2 and 2.5 (Yang et al. 2024a, 2024b): biases in query, key and value alone",
    like=WINDOWED,
    ends=architectures("Qwen2ForCausalLM", "Qwen2Model"),
    fields=sizes(151936, 4096, 22016, 32, 32, num_key_value_heads=32, max_position_embeddings=32768)
    | {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28},
    sets={"qkv_bias": True},
    rules={"windows": qwen_windows},
    written=SCALED,
)
QWEN3 = Family(
    model_type="qwen3",
    source="Qwen 3 (Yang et al. 2025): queries and keys normalised in each head, which has a size of its own",
    like=QWEN2,
    ends=architectures("Qwen3ForCausalLM", "Qwen3Model"),
    fields={"head_dim": 128, "attention_bias": False},
    sets={"query_key_norm": "head"},
    written=SCALED,
)

QWEN2_VL = Family(
    model_type="qwen2_vl_text",
    source="the language model of Qwen 2-VL (Wang et al. 2024)",
    like=QWEN2,
    ends={"Qwen2VLForConditionalGeneration": "tokens", "Qwen2VLTextModel": ""},
    fields=sizes(152064, 8192, 29568, 80, 64, num_key_value_heads=8, sliding_window=None, max_window_layers=80),
)
QWEN25_VL = Family(
    model_type="qwen2_5_vl_text",
    source="the language model of Qwen 2.5-VL (Bai et al. 2025)",
    like=QWEN2_VL,
    ends={"Qwen2_5_VLForConditionalGeneration": "tokens", "Qwen2_5_VLTextModel": ""},
)
QWEN3_VL = Family(
    model_type="qwen3_vl_text",
    source="the language model of Qwen 3-VL (Qwen Team 2025)",
    like=DECODER,
    ends={"Qwen3VLForConditionalGeneration": "tokens", "Qwen3VLTextModel": ""},
    fields=sizes(151936, 4096, 22016, 32, 32, num_key_value_heads=32, head_dim=128, max_position_embeddings=128000)
    | {"attention_bias": False},
    sets={"query_key_norm": "head"},
)


def smollm_turned(config: Config, layers: int) -> list[bool]:
    """Which layers have rotary positions."""
    told, interval = config["no_rope_layers"], config["no_rope_layer_interval"]
    if not told:
        return each(layers, lambda n: (n + 1) % interval != 0)
    enough("no_rope_layers", told, layers)
    return [bool(turned) for turned in told]


def smollm_layers(config: Config, made: dict[str, Any]) -> None:
    """Every fourth layer has no positions, and a window, if any layer has one."""
    turned = smollm_turned(config, made["layers"])
    windows(lambda config, n: config["use_sliding_window"] and not turned[n])(config, made)
    made["rotary.pattern"] = cycle(turned, made["layers"])


BITNET = Family(
    model_type="bitnet",
    source="BitNet b1.58 2B4T (Ma et al. 2025): LLaMA with norms within attention and the MLP",
    like=LLAMA,
    ends={"BitNetForCausalLM": "tokens", "BitNetModel": ""},
    fields=sizes(128256, 2560, 6912, 30, 20, num_key_value_heads=5, hidden_act="relu2", max_position_embeddings=2048),
    without="mlp_bias",
    sets={"inner_norm": True},
    rules={"whole": heads_fill_width},
)
SMOLLM3 = Family(
    model_type="smollm3",
    source="SmolLM3 (Bakouch et al. 2025)",
    like=WINDOWED,
    ends=architectures("SmolLM3ForCausalLM", "SmolLM3Model"),
    fields=sizes(128256, 2048, 11008, 36, 16, num_key_value_heads=4, max_position_embeddings=32768)
    | {"use_sliding_window": False, "no_rope_layers": None, "no_rope_layer_interval": 4, "attention_bias": False}
    | {"mlp_bias": False, "tie_word_embeddings": True},
    rules={"windows": smollm_layers},
)


SCALED_BY_WIDTH = sets("embedding_scale", lambda config, made: made["width"] ** 0.5)
"""Embeddings times √width."""


def gemma_activation(config: Config, made: dict[str, Any]) -> None:
    """`hidden_activation`, or the older `hidden_act`."""
    made["activation"] = config["hidden_activation"] or config["hidden_act"]


def gemma1_activation(config: Config, made: dict[str, Any]) -> None:
    """The same, where "gelu" is an older name of the approximation by tanh."""
    gemma_activation(config, made)
    if made["activation"] == "gelu":
        made["activation"] = "gelu_tanh"


def bidirectional_windows(config: Config, made: dict[str, Any]) -> None:
    """A window is half before a token and half after it, where each token sees those after it too."""
    windows(lambda config, n: (n + 1) % config["sliding_window_pattern"] != 0)(config, made)
    if config["use_bidirectional_attention"] and "window.size" in made:
        made["window.size"] = made["window.size"] // 2 + 1


GEMMA = Family(
    model_type="gemma",
    source="Gemma (Gemma Team 2024a): embeddings times √width, a gated MLP with GELU",
    like=WINDOWED,
    ends=architectures("GemmaForCausalLM", "GemmaModel"),
    fields=sizes(256000, 3072, 24576, 28, 16, num_key_value_heads=16, head_dim=256, max_position_embeddings=8192)
    | {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": None, "attention_bias": False}
    | {"tie_word_embeddings": True, "use_bidirectional_attention": None},
    rules={
        "windows": None,
        "activation": gemma1_activation,
        "embedding": SCALED_BY_WIDTH,
        "bidirectional": sets("causal", lambda config, made: not config["use_bidirectional_attention"]),
    },
    written=SHIFTED,
)
GEMMA2 = Family(
    model_type="gemma2",
    source="Gemma 2 (Gemma Team 2024b): four norms, soft caps, every other layer sees a window",
    like=GEMMA,
    ends=architectures("Gemma2ForCausalLM", "Gemma2Model"),
    fields=sizes(256000, 2304, 9216, 26, 8, num_key_value_heads=4, query_pre_attn_scalar=256, sliding_window=4096)
    | {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    means={"attn_logit_softcapping": Meaning("factor?", "score_cap")},
    sets={"norm_placement": "both"},
    rules={
        "activation": gemma_activation,
        "scale": sets("score_scale", lambda config, made: config["query_pre_attn_scalar"] ** -0.5),
        "windows": windows(lambda config, n: n % 2 == 0),
    },
    written=SHIFTED,
)
VAULTGEMMA = Family(
    model_type="vaultgemma",
    source="VaultGemma (Sinha et al. 2025): Gemma 2 with norms before sublayers alone",
    like=GEMMA2,
    ends={"VaultGemmaForCausalLM": "tokens", "VaultGemmaModel": ""},
    sets={"norm_placement": "pre"},
)
GEMMA3 = Family(
    model_type="gemma3_text",
    source="Gemma 3, its text model (Gemma Team 2025): query and key norms, five of six layers see a window",
    like=GEMMA2,
    ends=architectures("Gemma3ForCausalLM", "Gemma3TextModel"),
    fields={"vocab_size": 262208, "max_position_embeddings": 131072, "final_logit_softcapping": None}
    | {"attn_logit_softcapping": None, "sliding_window_pattern": 6},
    sets={"query_key_norm": "head"},
    rules={"windows": bidirectional_windows},
    aliases="_sliding_window_pattern",
    idle="rope_local_base_freq",
    written=SHIFTED | {"own_angles": True},
)
