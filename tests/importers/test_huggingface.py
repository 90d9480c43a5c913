"""Published configurations are read as what their families are; what is wrong with one is said in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.architectures.transformer import Transformer
from costmodel.documents.files import MOST_BYTES
from costmodel.errors import CostModelError
from costmodel.importers.files import build
from costmodel.importers.huggingface.families import ENCODERS, FAMILIES, TOWERS
from tests.command import error_of, here, is_brief
from tests.importers.published import PARAMS

LLAMA_31_8B = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 128256,
}


def sized(model_type: str, **fields: Any) -> dict[str, Any]:
    return {"model_type": model_type, **fields}


def common(
    model_type: str, vocab: int, width: int, hidden: int, layers: int, heads: int, **fields: Any
) -> dict[str, Any]:
    """The five sizes by the names that most families give them."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return sized(model_type, **dict(zip(names, (vocab, width, hidden, layers, heads), strict=True)), **fields)


T5_11 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
"""What T5 1.1 has otherwise."""

NEW = common("new", 30528, 768, 3072, 12, 12, architectures=["NewModel"], position_embedding_type="rope")
NEW |= {"layer_norm_type": "layer_norm", "pack_qkv": True, "type_vocab_size": 0, "unpad_inputs": False}
NEW |= {"logn_attention_scale": False, "rope_scaling": {"factor": 2.0, "type": "ntk"}, "rope_theta": 500000}
"""GTE base, English, v1.5."""

PUBLISHED: list[tuple[dict[str, Any], int]] = [
    (LLAMA_31_8B, PARAMS["llama-3.1-8b"]),
    (sized("gpt2"), PARAMS["gpt2-small"]),
    (sized("gpt_neo"), PARAMS["gpt-neo-1.3b"]),
    (sized("gptj"), PARAMS["gpt-j-6b"]),
    (common("gpt_neox", 50304, 512, 2048, 6, 8, rotary_pct=0.25), PARAMS["pythia-70m"]),
    (common("gpt_neox", 50432, 6144, 24576, 44, 64), PARAMS["gpt-neox-20b"]),
    (sized("opt"), PARAMS["opt-125m"]),
    (
        sized(
            "opt",
            hidden_size=1024,
            ffn_dim=4096,
            num_hidden_layers=24,
            num_attention_heads=16,
            word_embed_proj_dim=512,
            do_layer_norm_before=False,
        ),
        PARAMS["opt-350m"],
    ),
    (sized("bloom", n_embed=1024, n_layer=24, num_attention_heads=16, n_inner=None), PARAMS["bloom-560m"]),
    (sized("falcon"), PARAMS["falcon-7b"]),
    (sized("mpt", d_model=4096, n_heads=32, n_layers=32, vocab_size=50432), PARAMS["mpt-7b"]),
    (
        common("mistral", 32000, 4096, 14336, 32, 32, num_key_value_heads=8, sliding_window=4096),
        PARAMS["mistral-7b-v0.1"],
    ),
    (common("qwen2", 152064, 3584, 18944, 28, 28, num_key_value_heads=4), PARAMS["qwen2-7b"]),
    (common("qwen3", 151936, 4096, 12288, 36, 32, num_key_value_heads=8), PARAMS["qwen3-8b"]),
    (
        sized("gemma", hidden_size=2048, intermediate_size=16384, num_hidden_layers=18, num_attention_heads=8)
        | {"num_key_value_heads": 1},
        PARAMS["gemma-2b"],
    ),
    (sized("gemma2"), PARAMS["gemma-2-2b"]),
    (common("gemma2", 256000, 3584, 14336, 42, 16, num_key_value_heads=8), PARAMS["gemma-2-9b"]),
    (common("gemma3_text", 262144, 1152, 6912, 26, 4, num_key_value_heads=1, sliding_window=512), PARAMS["gemma-3-1b"]),
    (common("phi", 51200, 2560, 10240, 32, 32, partial_rotary_factor=0.4), PARAMS["phi-2"]),
    (sized("phi3"), PARAMS["phi-3-mini"]),
    (sized("starcoder2"), PARAMS["starcoder2-3b"]),
    (common("stablelm", 100352, 2048, 5632, 24, 32, use_qkv_bias=True), PARAMS["stablelm-2-1.6b"]),
    (sized("smollm3"), PARAMS["smollm3-3b"]),
    (sized("gpt_oss", num_hidden_layers=24, num_local_experts=32), PARAMS["gpt-oss-20b"]),
    (sized("gpt_oss"), PARAMS["gpt-oss-120b"]),
    (sized("deepseek_v3"), PARAMS["deepseek-v3"]),
    (common("cohere", 256000, 8192, 22528, 40, 64), PARAMS["command-r-35b"]),
    (sized("bert", architectures=["BertForPreTraining"]), PARAMS["bert-base"]),
    (common("bert", 30522, 1024, 4096, 24, 16, architectures=["BertModel"]), 335_141_888),
    (sized("roberta", max_position_embeddings=514, type_vocab_size=1), PARAMS["roberta-base"]),
    (sized("bert", tie_word_embeddings=False), 132_985_716),
    (sized("roberta", tie_word_embeddings=False), 163_350_450),
    (sized("distilbert"), PARAMS["distilbert-base"]),
    (sized("t5"), PARAMS["t5-small"]),
    (sized("t5", d_model=768, d_ff=2048, num_heads=12, num_layers=12) | T5_11, PARAMS["t5-v1.1-base"]),
    (sized("t5", architectures=["T5EncoderModel"]), 35_330_816),
    (sized("whisper"), PARAMS["whisper-tiny"]),
    (sized("vit", num_labels=1000), PARAMS["vit-b-16"]),
    (sized("vit", num_labels=1000, patch_size=32, image_size=384), 88_297_192),
    (
        sized("deit", architectures=["DeiTForImageClassificationWithTeacher"], num_labels=1000),
        PARAMS["deit-base-distilled"],
    ),
    (sized("resnet", architectures=["ResNetForImageClassification"], num_labels=1000), PARAMS["resnet50"]),
    (
        sized("resnet", hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic", num_labels=1000)
        | {"downsample_in_first_stage": False, "embedding_size": 64, "num_channels": 3, "hidden_act": "relu"},
        PARAMS["resnet18"],
    ),
    (
        sized("switch_transformers", d_ff=3072, num_sparse_encoder_layers=6, num_sparse_decoder_layers=6)
        | {"router_type": "tokens_masked", "feed_forward_proj": "relu", "expert_capacity": 64},
        619_339_008,
    ),
    (sized("convnextv2", num_labels=1000, drop_path_rate=0.0), 28_635_496),
    (sized("convnext", num_labels=1000, drop_path_rate=0.0, layer_scale_init_value=1e-6), PARAMS["convnext_tiny"]),
    (
        sized("nomic_bert", architectures=["NomicBertModel"], activation_function="swiglu", n_embd=768, n_inner=3072)
        | {"n_head": 12, "n_layer": 12, "n_positions": 8192, "prenorm": False, "qkv_proj_bias": False, "causal": False}
        | {"mlp_fc1_bias": False, "mlp_fc2_bias": False, "rotary_emb_fraction": 1.0, "rotary_emb_base": 1000}
        | {"parallel_block": False, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_rms_norm": False},
        136_731_648,
    ),
    (NEW, 136_776_192),
    (
        common("xlm-roberta", 250002, 1024, 4096, 24, 16, max_position_embeddings=8194, type_vocab_size=1)
        | {"architectures": ["XLMRobertaModel"], "position_embedding_type": "rotary", "rotary_emb_base": 20000.0}
        | {"lora_adaptations": [f"task{n}" for n in range(5)], "lora_rank": 4, "lora_alpha": 1, "lora_dropout_p": 0.0}
        | {"load_trained_adapters": True, "lora_main_params_trainable": False, "matryoshka_dimensions": [32, 64]}
        | {
            "truncate_dim": None,
            "use_flash_attn": True,
            "use_reentrant": False,
            "task_instructions": {},
            "auto_map": {},
        },
        572_310_396,
    ),
    (NEW | {"vocab_size": 250048, "type_vocab_size": 1, "rope_scaling": {"factor": 8.0, "type": "ntk"}}, 305_368_320),
]
"""Configurations as published, and the parameters that their model cards or weight files have."""


@pytest.mark.parametrize(("config", "params"), PUBLISHED, ids=[config["model_type"] for config, _ in PUBLISHED])
def test_published_configurations_have_the_published_parameters(config: dict[str, Any], params: int) -> None:
    assert cm.predict(build(config, "config")).params == params


AS_PUBLISHED: dict[str, dict[str, Any]] = {
    "facebook/opt-125m": sized("opt", activation_dropout=0.0, layerdrop=0.0, _remove_final_layer_norm=False),
    "openai/gpt-oss-20b": sized("gpt_oss", experts_per_token=4, num_experts_per_tok=4, swiglu_limit=7.0),
    "Qwen/Qwen3-Coder-480B-A35B": common("qwen3_moe", 151936, 6144, 8192, 62, 96, num_key_value_heads=8)
    | {"num_experts": 160, "moe_intermediate_size": 2560, "shared_expert_intermediate_size": 0, "use_qk_norm": True}
    | {"qkv_bias": False, "max_window_layers": 62, "head_dim": 128, "norm_topk_prob": True},
    "CohereForAI/c4ai-command-r-plus": common("cohere", 256000, 12288, 33792, 64, 96, num_key_value_heads=8)
    | {"use_qk_norm": True, "model_max_length": 131072, "pretraining_tp": 1},
    "databricks/dolly-v2-3b": common("gpt_neox", 50280, 2560, 10240, 32, 32)
    | {"custom_pipelines": {"text-generation": {"impl": "instruct_pipeline.InstructionTextGenerationPipeline"}}},
    "EleutherAI/gpt-neox-20b": common("gpt_neox", 50432, 6144, 24576, 44, 64)
    | {"attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0, "rotary_emb_base": 10000, "rotary_pct": 0.25},
    "HuggingFaceTB/SmolLM2-135M": common("llama", 49152, 576, 1536, 30, 9, num_key_value_heads=3)
    | {"is_llama_config": True, "rope_interleaved": False, "tie_word_embeddings": True}
    | {"transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}}},
    "unsloth/Llama-3.2-1B": LLAMA_31_8B | {"unsloth_fixed": True, "unsloth_version": "2024.9", "pad_token_id": 128004},
    "openai-community/gpt2-medium": sized("gpt2", n_special=0, predict_special_tokens=True, n_ctx=1024),
    "distilbert/distilgpt2": sized("gpt2", n_layer=6, _num_labels=1, summary_type="cls_index"),
    "google-bert/bert-base-chinese": sized("bert", directionality="bidi", pooler_fc_size=768, vocab_size=21128)
    | {"pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3, "pooler_size_per_head": 128}
    | {"pooler_type": "first_token_transform"},
    "google/gemma-3-1b-it, saved again": sized("gemma3_text", sliding_window_pattern=6, _sliding_window_pattern=6)
    | {"use_bidirectional_attention": False, "rope_parameters": {"full_attention": {"rope_type": "default"}}},
}
"""Configurations with fields that no family has, or two names of one field, as they are published."""


@pytest.mark.parametrize("name", AS_PUBLISHED)
def test_fields_that_say_nothing_are_noted(name: str) -> None:
    assert build(AS_PUBLISHED[name], name).notes.startswith("Read from a published configuration of model_type ")


def test_fields_that_the_published_class_does_not_read_change_nothing_and_are_named() -> None:
    """But one that looks like one left out is refused, and so is any where the class comes with the files."""
    others = {"language": "en", "use_parallel_embedding": True, "num_nextn_predict_layers": 1, "hidden_sizes": 3}
    model = build(sized("llama", hidden_size=64, num_attention_heads=4, **others), "config")
    assert "Not read by the published class: hidden_sizes, language, num_nextn_predict_layers, use" in model.notes
    assert (
        cm.predict(model).params == cm.predict(build(sized("llama", hidden_size=64, num_attention_heads=4), "c")).params
    )
    assert "did you mean 'hidden_size'?" in error_of(lambda: build(sized("llama", **others), "config"))
    assert "field 'language' is not understood" in error_of(lambda: build(sized("kimi_k2", language="en"), "config"))
    assert "1,001 fields: at most 1,000" in error_of(
        lambda: build(sized("llama", **{f"field_{n}": n for n in range(1000)}), "config")
    )


def test_numbers_that_nothing_reads_are_taken() -> None:
    """Experts that a token chooses where there are none; an encoder alone, as it is saved by itself."""
    none = sized("granitemoehybrid", num_local_experts=0, num_experts_per_tok=0, layer_types=["attention"] * 32)
    assert build(none, "config").experts is None
    alone = {"architectures": ["T5EncoderModel"], "is_encoder_decoder": False}
    assert cm.predict(build(sized("t5", **alone), "config")).params == 35330816


def test_what_the_package_writes_keeps_more_and_has_the_same_parameters_and_flops() -> None:
    model = build(sized("gpt2", n_layer=2, n_embd=64, n_head=4), "config")
    plain, own = (cm.predict(model, seq=32, implementation=by) for by in ("plain", "transformers"))
    assert (plain.params, plain.flops) == (own.params, own.flops)
    assert own.memory.activations > plain.memory.activations
    said = error_of(lambda: cm.predict("gpt2-small", implementation="transformers"))
    assert "how transformers writes gpt2-small is not known: give a published config.json" in said


def test_an_encoder_decoder_may_have_no_head() -> None:
    """BART's whole model, which has no loss of its own; Lewis et al. 2020 have it beside a head of the same weights."""
    whole, bare = (
        build(sized("bart", architectures=[name]), "c") for name in ("BartForConditionalGeneration", "BartModel")
    )
    assert (whole.default_loss, bare.default_loss) == ("cross_entropy", None)
    assert cm.predict(bare, seq=8).params == cm.predict(whole, seq=8).params == 406291456


def test_what_a_setting_says_instead_is_left_to_it() -> None:
    assert (
        "Left to the setting checkpoint: gradient_checkpointing."
        in build(sized("bert", gradient_checkpointing=True), "config").notes
    )


def test_a_note_says_why_a_field_has_no_cost() -> None:
    said = {"n_embd": 768, "hidden_size": 768, "use_bias": None, "sparse": [], "n_ctx": 1024, "torch_dtype": "float32"}
    assert build(sized("gpt2", **said), "config").notes == (
        "Read from a published configuration of model_type gpt2. Without effect on the cost: n_ctx. Not read by the "
        "published class: sparse, use_bias. Given by two names: hidden_size. Left to the setting precision: "
        "torch_dtype."
    )


@pytest.mark.parametrize("silent", [None, False, 0, 0.0, "", [], {}], ids=repr)
def test_a_silent_value_of_a_field_misspelt_is_refused(silent: Any) -> None:
    message = error_of(lambda: build(sized("llama", tie_word_embedding=silent), "config"))
    assert "did you mean 'tie_word_embeddings'?" in message


GEMMA_3_4B = sized("gemma3_text", hidden_size=2560, intermediate_size=10240, num_hidden_layers=34, sliding_window=1024)
QWEN_25_VL_3B = common("qwen2_5_vl", 151936, 2048, 11008, 36, 16, num_key_value_heads=2, tie_word_embeddings=True)

ALTERNATING = [*["sliding_attention"] * 4, "full_attention"]
GEMMA_3N = common("gemma3n_text", 262400, 2048, 8192, 30, 8, num_key_value_heads=2, head_dim=256) | {
    "intermediate_size": [8192] * 30,
    "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 20,
    "altup_active_idx": 0,
    "altup_coef_clip": 120.0,
    "altup_correct_scale": True,
    "altup_lr_multiplier": 1.0,
    "altup_num_inputs": 4,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "final_logit_softcapping": 30.0,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 256,
    "initializer_range": 0.02,
    "laurel_rank": 64,
    "layer_types": ALTERNATING * 6,
    "max_position_embeddings": 32768,
    "num_kv_shared_layers": 10,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": 512,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size_per_layer_input": 262144,
}
GEMMA_3N_E4B = GEMMA_3N | {
    "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 25,
    "intermediate_size": [16384] * 35,
    "layer_types": ALTERNATING * 7,
    "num_hidden_layers": 35,
    "num_kv_shared_layers": 15,
}
HEARING = {
    "architectures": ["Gemma3nForConditionalGeneration"],
    "vision_config": {},
    "audio_soft_tokens_per_image": 188,
}

TOWERED: list[tuple[dict[str, Any], int]] = [
    (sized("gemma3", text_config=GEMMA_3_4B, vision_config={"model_type": "siglip"}), 3_880_263_168),
    (QWEN_25_VL_3B | {"vision_config": {"depth": 32}, "image_token_id": 151655}, 3_085_938_688),
    (sized("gemma3n", text_config=GEMMA_3N, **HEARING), 4_435_182_688),
    (sized("gemma3n", text_config=GEMMA_3N_E4B, **HEARING), 6_835_235_568),
    (sized("llava", text_config=sized("llama", vocab_size=32064), vision_config={}), 6_738_939_904),
]
"""Models of images and text as published, and the parameters of their language models."""


@pytest.mark.parametrize(("config", "params"), TOWERED, ids=[config["model_type"] for config, _ in TOWERED])
def test_a_language_model_is_cut_out_of_one_with_images(config: dict[str, Any], params: int) -> None:
    model = build(config, "config")
    assert cm.predict(model, seq=1).params == params
    _, _, more = model.notes.partition(" It is the language model of a configuration of model_type ")
    assert more.startswith(f"{config['model_type']}; the encoder of images is left out.")
    assert more.endswith("where the whole says nothing.") == ("tie_word_embeddings" not in config)


def test_encoders_of_images_and_of_sound_are_left_out() -> None:
    model = build(sized("gemma3n", text_config=GEMMA_3N, audio_config={}, **HEARING), "config")
    assert "of model_type gemma3n; the encoders of images and of sound are left out." in model.notes


TWO_ENCODERS: list[tuple[dict[str, Any], list[int]]] = [
    (
        sized("clip", text_config={"model_type": "clip_text_model", "dropout": 0.0}, text_config_dict=None)
        | {"vision_config": {"model_type": "clip_vision_model"}, "projection_dim": 512, "logit_scale_init_value": 2.66},
        [87_849_216, 63_428_096],
    ),
    (
        sized("clip", projection_dim=768, text_config={"hidden_size": 768, "num_attention_heads": 12})
        | {"text_config_dict": {"intermediate_size": 3072, "projection_dim": 512}}
        | {"vision_config": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "patch_size": 14}}
        | {"vision_config_dict": {"intermediate_size": 4096}},
        [303_966_208, 123_650_304],
    ),
    (
        sized("siglip", text_config={"model_type": "siglip_text_model", "vocab_size": 32000}, vision_config={}),
        [92_884_224, 110_271_744],
    ),
]
"""Models of two encoders as published, and the parameters of each: 151,277,313, 427,616,513 and 203,155,970 together,
with one or two scalars of the logits."""


@pytest.mark.parametrize(("config", "params"), TWO_ENCODERS)
def test_one_encoder_is_cut_out_of_two(config: dict[str, Any], params: list[int]) -> None:
    start = ENCODERS[config["model_type"]][0]
    last = "WithProjection" if start == "CLIP" else ""
    for tower, size in zip(("Vision", "Text"), params, strict=True):
        named = {"architectures": [f"{start}{tower}Model{last}"]}
        assert cm.predict(build(config | named, "config")).params == size
    model = build(config | {"architectures": [f"{start}VisionModel{last}"]}, "config")
    assert model.notes.endswith(f"the other is read where architectures names {start}TextModel{last}.")
    for whole in ({}, {"architectures": [f"{start}Model"]}):
        message = error_of(lambda whole=whole: build(config | whole, "config"))
        assert f"{start}Model is two encoders, which are read one at a time: set architectures to " in message
        assert f"['{start}VisionModel{last}'] or ['{start}TextModel{last}']" in message


CARDS: list[tuple[dict[str, Any], str]] = [
    (common("olmoe", 50304, 2048, 1024, 16, 16, num_experts=64, num_experts_per_tok=8, clip_qkv=None), "6.92"),
    (common("glm4", 151552, 4096, 13696, 40, 32, num_key_value_heads=2, head_dim=128, attention_bias=True), "9.40"),
    (
        common("kimi_k2", 163840, 7168, 18432, 61, 64, num_key_value_heads=64, n_routed_experts=384, n_group=1)
        | {"topk_group": 1, "first_k_dense_replace": 1, "architectures": ["DeepseekV3ForCausalLM"], "seq_aux": True}
        | {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "num_nextn_predict_layers": 0, "auto_map": {}},
        "1026",
    ),
    (
        common("cohere2", 256000, 4096, 14336, 32, 32, num_key_value_heads=8, layer_switch=4, rotary_pct=1.0)
        | {"order_of_interleaved_layers": "local_attn_first", "use_embedding_sharing": True, "head_dim": 128}
        | {"use_gated_activation": True, "use_parallel_block": True, "use_parallel_embedding": False},
        "8.03",
    ),
    (
        sized("minimax_m2", rotary_dim=64, use_qk_norm=True, qk_norm_type="per_layer", shared_intermediate_size=0)
        | {"attn_type_list": [1] * 62, "num_mtp_modules": 3, "scoring_func": "sigmoid", "use_routing_bias": True},
        "229",
    ),
    (
        common("exaone4", 102400, 5120, 27392, 64, 40, num_key_value_heads=8, sliding_window_pattern="LLLG")
        | {"layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 16},
        "32.0",
    ),
    (
        common("exaone4", 102400, 2048, 4096, 30, 32, num_key_value_heads=8, sliding_window_pattern=None)
        | {"sliding_window": None, "layer_types": ["full_attention"] * 30, "tie_word_embeddings": True},
        "1.28",
    ),
    (common("seed_oss", 155136, 5120, 27648, 64, 80, num_key_value_heads=8, head_dim=128), "36.2"),
    (
        common(
            "hunyuan_v1_moe", 128167, 4096, 3072, 32, 32, num_key_value_heads=8, num_experts=64, dense_list=[4096, 0]
        )
        | {"moe_topk": [8] * 32, "num_shared_expert": [1] * 32, "moe_intermediate_size": [3072] * 32, "use_cla": False}
        | {"tie_word_embeddings": True, "rope_scaling": {"alpha": 1000.0, "type": "dynamic"}, "use_mla": False},
        "80.4",
    ),
    (common("olmo3", 100278, 4096, 11008, 32, 32, rope_scaling={"rope_type": "yarn", "factor": 8.0}), "7.30"),
    (common("ernie4_5", 103424, 1024, 3072, 18, 16, num_key_value_heads=2, compression_ratio=1.0), "0.361"),
    (
        common("granitemoe", 49155, 1536, 512, 32, 24, num_key_value_heads=8, num_local_experts=40)
        | {"num_experts_per_tok": 8, "tie_word_embeddings": True, "logits_scaling": 6.0},
        "3.30",
    ),
    (
        common("xlm-roberta", 250002, 768, 3072, 12, 12, max_position_embeddings=514, type_vocab_size=1)
        | {"architectures": ["XLMRobertaForMaskedLM"], "output_past": True},
        "0.278",
    ),
    (
        sized(
            "mistral3", text_config=common("mistral", 131072, 5120, 32768, 40, 32, num_key_value_heads=8, head_dim=128)
        )
        | {"vision_config": {}, "spatial_merge_size": 2, "architectures": ["Mistral3ForConditionalGeneration"]},
        "23.6",
    ),
    (
        sized("falcon_mamba", vocab_size=65024, hidden_size=4096, num_hidden_layers=64, state_size=16, expand=16)
        | {"intermediate_size": 8192, "time_step_rank": 256, "tie_word_embeddings": False, "mixer_rms_eps": 1e-6}
        | {"use_mambapy": False, "use_bias": False, "use_conv_bias": True, "architectures": ["FalconMambaForCausalLM"]},
        "7.27",
    ),
    (
        common("deberta-v2", 128100, 768, 3072, 12, 12, attention_probs_dropout_prob=0.1, hidden_act="gelu")
        | {"hidden_dropout_prob": 0.1, "max_position_embeddings": 512, "relative_attention": True, "type_vocab_size": 0}
        | {"position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": "p2c|c2p"}
        | {"max_relative_positions": -1, "position_biased_input": False, "layer_norm_eps": 1e-7},
        "0.185",
    ),
    (
        sized("qwen3_vl", text_config=common("qwen3_vl_text", 151936, 2560, 9728, 36, 32, num_key_value_heads=8))
        | {"tie_word_embeddings": True, "vision_config": {"deepstack_visual_indexes": [5, 11, 17]}},
        "4.02",
    ),
    (
        common("esm", 33, 1280, 5120, 33, 20, token_dropout=True, position_embedding_type="rotary", mask_token_id=32)
        | {"architectures": ["EsmForMaskedLM"], "emb_layer_norm_before": False, "pad_token_id": 1, "vocab_list": None}
        | {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0, "is_folding_model": False},
        "0.65",
    ),
    (
        common("eurobert", 128256, 768, 3072, 12, 12, attention_bias=False, clf_pooling="late", mlp_bias=False)
        | {"head_dim": 64, "mask_token": "<|mask|>", "pad_token": "<|end_of_text|>", "rope_theta": 250000},
        "0.310",
    ),
    (
        common("minicpm3", 73448, 2560, 6400, 62, 40, num_key_value_heads=40, qk_nope_head_dim=64, scale_emb=12)
        | {"qk_rope_head_dim": 32, "q_lora_rank": 768, "kv_lora_rank": 256, "scale_depth": 1.4, "dim_model_base": 256},
        "4.07",
    ),
    (
        common("bitnet", 128256, 2560, 6912, 30, 20, num_key_value_heads=5, hidden_act="relu2")
        | {
            "tie_word_embeddings": True,
            "quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear"},
        },
        "2.41",
    ),
    (
        common("deberta", 50265, 768, 3072, 12, 12, relative_attention=True, pos_att_type="c2p|p2c", padding_idx=0)
        | {"max_relative_positions": -1, "position_biased_input": False, "type_vocab_size": 0},
        "0.139",
    ),
    (common("layoutlm", 30522, 768, 3072, 12, 12, max_2d_position_embeddings=1024), "0.113"),
]
"""Configurations as published, and the billions of parameters that their model cards say."""


@pytest.mark.parametrize(("config", "billions"), CARDS, ids=[config["model_type"] for config, _ in CARDS])
def test_published_configurations_have_the_parameters_of_their_cards(config: dict[str, Any], billions: str) -> None:
    decimals = len(billions.partition(".")[2])
    assert f"{cm.predict(build(config, 'config'), seq=1).params / 1e9:.{decimals}f}" == billions


@pytest.mark.parametrize("imbalance", [0.5, 5.0])
def test_an_imbalance_that_cannot_be_is_refused(imbalance: float) -> None:
    with pytest.raises(CostModelError, match="is not possible: from 1, even, to 4, where all tokens choose"):
        Transformer.of(SIZED | {"experts": 8, "experts.imbalance": imbalance})


def test_the_documentation_lists_every_family() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "published-configurations.md"
    listed = page.read_text(encoding="utf-8")
    assert [name for name in (*FAMILIES, *TOWERS, *ENCODERS) if f"`{name}`" not in listed] == []


SIZED = {"vocab": 5, "context": 8, "layers": 1, "width": 8, "heads": 2}


def write(folder: Path, config: Any) -> Path:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return path


def test_a_configuration_is_read_from_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, LLAMA_31_8B)
    model = cm.load(path)
    assert isinstance(model, Transformer)
    assert model.context == 131072
    assert model.notes == (
        "Read from a published configuration of model_type llama. Without effect on the cost: bos_token_id, "
        "eos_token_id, initializer_range, pretraining_tp, rms_norm_eps, rope_theta, transformers_version, use_cache. "
        "Left to the setting precision: torch_dtype."
    )
    shown = here(capsys, "predict", str(path), "--batch", "1", "--seq", "4096", "--attention", "flash", "--json")
    assert json.loads(shown.out)["params"] == PARAMS["llama-3.1-8b"]


def test_a_configuration_shows_itself_as_a_model_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = cm.load(write(tmp_path, sized("gemma3_text")))
    (tmp_path / "model.yaml").write_text(here(capsys, "show", str(tmp_path / "config.json")).out)
    assert cm.load(tmp_path / "model.yaml") == model


NEEDED = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"num_experts_per_tok": 6, "n_routed_experts": 64},
    "glm4_moe": {"head_dim": 128},
    "esm": {"vocab_size": 33},
    "lfm2_moe": {"layer_types": ["conv"] * 32},
}
"""What a family's published class leaves to be given."""


@pytest.mark.parametrize("family", [name for name, kind in FAMILIES.items() if kind.headed and kind.headless])
def test_architectures_say_whether_there_is_a_head(family: str) -> None:
    kind = FAMILIES[family]
    with_head, without = (
        build(sized(family, architectures=[names[0]], **NEEDED.get(family, {})), "config")
        for names in (kind.headed, kind.headless)
    )
    assert (with_head.default_loss, without.default_loss) == ("cross_entropy", None)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (sized("lama"), "unknown model_type 'lama': did you mean 'llama'"),
        (sized("visual_bert_x"), "families are read, such as bert, gemma3, gpt2,"),
        (sized("quux"), "unknown model_type 'quux'. "),
        (sized(3), "model_type: 3 is not a name"),
        (sized("llama", hidden_sizes=3), "'hidden_sizes' is not understood (did you mean 'hidden_size'?)"),
        (sized("gpt2", architectures=["LlamaForCausalLM"]), "'LlamaForCausalLM' is not one of model_type 'gpt2'"),
        (sized("gpt2", architectures="GPT2Model"), "architectures: "),
        (
            sized(
                "gemma4_text", num_hidden_layers=6, per_layer_config={"05": {"head_dim": 512}, "3": {"head_dim": 64}}
            ),
            "gemma4_text: per_layer_config is understood where it gives one head_dim and num_key_value_heads to the",
        ),
        (
            sized("layoutlmv3"),
            "'layoutlmv3' is known and not modelled: it reads an image of the page beside its tokens",
        ),
        (sized("gpt2", n_head="12"), "gpt2: n_head: input should be a valid integer, not '12'"),
        (sized("gpt2", n_head=True), "gpt2: n_head: "),
        (sized("gpt2", n_head=7), "heads 7 does not divide width 768"),
        (sized("gpt2", n_embd=-1), "gpt2: n_embd: "),
        (sized("gpt2", n_embd=2**50), "gpt2: n_embd: "),
        (sized("gpt2", n_embd=768, hidden_size=512), "hidden_size and n_embd are the same field, and are 512 and 768"),
        (sized("gpt2", activation_function="mish2"), "unknown activation 'mish2'"),
        (sized("gpt2", add_cross_attention=True), "add_cross_attention=True changes the cost"),
        (sized("deepseek_v2"), "num_experts_per_tok is missing"),
        (sized("deepseek_v2", num_experts_per_tok=6, topk_method="group_limited_greedy"), "n_group is missing"),
        (sized("deepseek_v2", num_experts_per_tok=6, topk_method="random"), "topk_method 'random' is not greedy or"),
        (sized("deepseek_v3", num_key_value_heads=8), "num_key_value_heads 8 is not num_attention_heads 128"),
        (sized("deepseek_v3", n_group=7), "experts.groups 7 does not divide experts.count 256"),
        (sized("deepseek_v3", moe_layer_freq=2), "moe_layer_freq=2 changes the cost"),
        (sized("deepseek_v3", qk_rope_head_dim=3), "qk_rope_head_dim 3 is odd"),
        (sized("deepseek_v3", first_k_dense_replace=-1), "first_k_dense_replace: input should be greater than or"),
        (sized("zamba2"), "'zamba2' is known and not modelled: its attention layers are shared between blocks"),
        (
            sized("mamba2", num_heads=64),
            "mamba2: head_dim 64 times num_heads 64 is not expand 2 times hidden_size",
        ),
        (sized("bamba", mamba_d_head=32), "mamba_d_head 32 times mamba_n_heads 128 is not the 8192 features"),
        (sized("nemotron_h", hybrid_override_pattern="M*?"), "hybrid_override_pattern: '?' is not one of M, E, *, -"),
        (sized("nemotron_h", layers_block_type=["rwkv"]), "layers_block_type[0] 'rwkv' is not one of linear_attention"),
        (sized("lfm2", layer_types=["conv"]), "layer_types has 1 entries for 32 layers"),
        (sized("lfm2", block_ffn_dim_multiplier=1e308), "block_ffn_dim_multiplier 1e+308 makes an MLP of more than"),
        (sized("mamba2", head_dim=None), "mamba2: head_dim: input should be a valid integer, not None"),
        (sized("nemotron_h", layers_block_type=[]), "nemotron_h: layers_block_type names no layer"),
        (sized("olmoe", head_dim=64), "olmoe: head_dim 64 is not hidden_size / heads"),
        (sized("internlm3", qkv_bias=True), "qkv_bias True beside bias False: the published class takes the same"),
        (sized("t5", is_gated_act=True), "is_gated_act True and feed_forward_proj 'relu' disagree: leave is_gated_act"),
        (sized("umt5", dense_act_fn="relu"), "dense_act_fn 'relu' and feed_forward_proj 'gated-gelu' disagree"),
        (sized("mistral3"), "mistral3: text_config is missing: give the fields of its language model"),
        (sized("marian", decoder_vocab_size=9), "decoder_vocab_size 9 is not vocab_size 58101: only that is"),
        (sized("exaone_moe", mlp_layer_types=["odd"]), "exaone_moe: mlp_layer_types[0] 'odd' is not dense or sparse"),
        (sized("exaone_moe", mlp_layer_types=["dense"]), "exaone_moe: mlp_layer_types has 1 entries for 32 layers"),
        (sized("dbrx", ffn_config={"ffn_act_fn": {}}), "dbrx: ffn_config.ffn_act_fn {} has no name"),
        (sized("dbrx", ffn_config={"moe_normalize_expert_weights": 2.0}), "moe_normalize_expert_weights 2.0 is not 1"),
        (sized("dbrx", ffn_config=3), "dbrx: ffn_config: 3 is not a mapping"),
        (sized("ernie", use_task_id=True), "ernie: use_task_id=True changes the cost"),
        (sized("roformer"), "'roformer' is known and not modelled: its tables of sines are among its weights"),
        (sized("gemma3n_text", altup_num_inputs=1), "altup.streams 1 has none beside the first: use at least 2"),
        (sized("gemma3n_text", altup_active_idx=4), "altup_active_idx 4 is not one of altup_num_inputs 4"),
        (sized("gemma3n_text", num_kv_shared_layers=35), "shared_kv_layers 35 leaves none of 35 blocks that has keys"),
        (sized("gemma3n_text", num_kv_shared_layers=31), "no block of the kind of block 4, whose keys and values that"),
        (sized("gemma3n_text", intermediate_size=[8, 9]), "intermediate_size has 2 entries for 35 layers"),
        (sized("gemma3n_text", activation_sparsity_pattern=[0.5]), "activation_sparsity_pattern has 1 entries for 35"),
        (sized("gemma3n_text", activation_sparsity_pattern=["x"]), "activation_sparsity_pattern[0] 'x' is not a share"),
        (sized("jamba", attn_layer_offset=8), "attn_layer_offset 8 is not below attn_layer_period 8"),
        (sized("mllama"), "'mllama' is known and not modelled: its language model attends to what an encoder made"),
        (sized("gemma3", text_config={"hidden_size": "x"}), "gemma3: gemma3_text: hidden_size: input should be a"),
        (sized("clip", vision_config=3, architectures=["CLIPVisionModel"]), "clip: vision_config: 3 is not a mapping"),
        (
            sized("clip", vision_config={"hidden_size": "x"}, architectures=["CLIPVisionModel"]),
            "clip: clip_vision_model: hidden_size: input should be a",
        ),
        (sized("qwen2", num_hidden_layers=2, layer_types=["full_attention"] * 3), "layer_types has 3 entries for 2"),
        (sized("llama", num_key_value_heads=48), "kv_heads 48 does not divide heads 32"),
        (
            sized("qwen2_vl_text", rope_scaling={"type": "mrope", "mrope_section": [16, 24, 25]}),
            "mrope_section [16, 24, 25]: twice their sum is not the 128 features that turn",
        ),
        (
            sized("bert", architectures=["BertForSequenceClassification"], num_labels=3, id2label={"0": "a", "1": "b"}),
            "num_labels 3 is not the 2 of id2label: keep one",
        ),
        (
            sized("clip", text_config={"model_type": "bert"}, architectures=["CLIPTextModel"]),
            "model_type 'bert' is not",
        ),
        (sized("siglip", architectures=["Siglip"]), "siglip: architectures: ['Siglip'] is not one of ['SiglipModel'],"),
        (sized("deberta-v2", conv_kernel_size=3), "deberta-v2: conv_kernel_size=3 changes the cost"),
        (sized("deberta-v2", relative_attention=True), "relative_attention is true, and pos_att_type names no scores"),
        (
            sized("deberta-v2", relative_attention=True, share_att_key=True, pos_att_type="c2p"),
            "pos_att_type 'c2p' beside share_att_key: the published class",
        ),
        (sized("deberta-v2", pos_att_type=3), "pos_att_type 3 is not a text or a list of names"),
        (sized("deberta-v2", norm_rel_ebd="layer_norm"), "norm_rel_ebd is of distances, and relative_attention is"),
        (sized("deberta-v2", embedding_size=128), "embedding_size 128 is not hidden_size"),
        (sized("gemma3", text_config=3), "gemma3: text_config: 3 is not a mapping"),
        (sized("llava", text_config={"model_type": "rwkv"}), "llava: its language model is of model_type 'rwkv'"),
        (sized("llava", text_config={"model_type": []}), "llava: its language model is of model_type []"),
        (
            sized("llava", text_config=sized("llama", hidden_size=8), architectures=3),
            "llava: architectures: 3 is not ['LlavaForConditionalGeneration'] or",
        ),
        (sized("gemma3_text", num_hidden_layers=10**9), "layers of several kinds are at most 10,000"),
        (sized("qwen3_moe", num_hidden_layers=10**9), "layers of several kinds are at most 10,000"),
        (sized("lfm2", num_hidden_layers=10**9), "layers of several kinds are at most 10,000"),
        (sized("mpt", attn_config=3), "mpt: attn_config: 3 is not a mapping"),
        (sized("mpt", attn_config={"attn_pdrop": 2}), "mpt: attn_config.attn_pdrop: input should be less than 1"),
        ({"hidden_size": 8}, "a published configuration has a model_type"),
        (sized("llama", num_attention_heads=31), "num_attention_heads 31 does not divide hidden_size 4096"),
        (sized("gpt_oss", partial_rotary_factor=0.5), "turns 32 of 64 features, and the family turns all"),
        (sized("opt", layerdrop=0.1), "layerdrop=0.1 changes the cost"),
        (sized("llama", rope_scaling={"type": "spiral"}), "unknown rope_type 'spiral'"),
        (sized("llama", partial_rotary_factor=1.5), "partial_rotary_factor 1.5 is not a share"),
        (
            sized("llama", partial_rotary_factor=0.5, rope_scaling={"type": "linear", "factor": 2.0}),
            "turns 64 of 128 features, and the family turns all",
        ),
        (sized("gpt_neo", attention_types=[[["global"], 10**9]]), "gpt_neo: attention_types "),
        (sized("gemma2", layer_types=["full_attention"]), "layer_types has 1 entries for 26 layers"),
        (sized("gemma2", layer_types=["chunked"] * 26), "layer_types[0] 'chunked' is not"),
        (sized("qwen2", layer_types=["sliding_attention"] * 32), "use_sliding_window is false"),
        (sized("mpt", attn_config={"alibi": False}), "attn_config"),
        (sized("falcon", new_decoder_architecture=True, parallel_attn=False), "falcon: "),
    ],
    ids=str,
)
def test_what_is_wrong_is_said(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    message = error_of(lambda: cm.load(write(tmp_path, config)))
    assert said.lower() in message.lower()
    assert "config.json, line 1" in message
    assert "\n" not in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[" * 10_000 + "]" * 10_000,
        '{"model_type": "gpt2", "n_embd": ' + "[" * 10_000 + "]" * 10_000 + "}",
        '{"model_type": "gpt2", "n_embd": ' + "9" * 5_000 + "}",
        '{"model_type": "gpt2"}' + " " * MOST_BYTES,
        "not json at all",
        "",
        '{"model_type": "gpt2",}',
        "{'model_type': 'gpt2'}",
        '// a comment\n{"model_type": "gpt2"}',
        "model_type: gpt2",
    ],
    ids=[
        "open",
        "deep",
        "deep within",
        "long number",
        "padding",
        "text",
        "empty",
        "comma",
        "quotes",
        "comment",
        "yaml",
    ],
)
def test_what_is_no_configuration_is_refused(text: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    assert str(path) in error_of(lambda: cm.load(path))


def test_a_folder_is_called_one(tmp_path: Path) -> None:
    assert "is a directory" in error_of(lambda: cm.load(tmp_path))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
def test_any_value_is_read_or_refused(data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(sorted(FAMILIES)))
    field = data.draw(st.sampled_from(sorted(FAMILIES[family].fields)))
    try:
        build(sized(family) | {field: data.draw(JSON)}, "config")
    except CostModelError as error:
        message = str(error)
    else:
        message = "read"
    assert is_brief(message)


def test_a_share_that_a_class_does_not_read_turns_all_the_same() -> None:
    for family, size in (("llama", None), ("gemma2", None), ("qwen3_moe", None), ("glm", 64), ("phi3", 48)):
        model: Any = build(sized(family, partial_rotary_factor=0.5), "config")
        assert model.value("rotary.size") == size, family
