"""What a published configuration is read as, against the published implementation on the meta device.

Compared are parameters and FLOPs. What autograd keeps is held against plainly written models instead: the packages
compose some operations from smaller ones, which keep more.
"""

from __future__ import annotations

import json
from inspect import signature
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from costmodel.analysis.predict import predict
from costmodel.architectures.cnn import CNN
from costmodel.architectures.encoder_decoder import EncoderDecoder
from costmodel.architectures.vision_transformer import VisionTransformer
from costmodel.importers.files import build
from costmodel.importers.huggingface.families import ENCODERS, FAMILIES
from costmodel.importers.huggingface.rules import heads_fill_width
from tests.importers.test_published_files import PUBLISHED as FILES
from tests.profiles import examples

from .measure import meta
from .settings import DRAWN, differential
from .vision import stub_operators

pytest.importorskip("transformers")
stub_operators()
import transformers  # noqa: E402
from transformers import CONFIG_MAPPING, masking_utils  # noqa: E402

pytestmark = pytest.mark.oracle


IN_PACKAGE = [family for family in FAMILIES if family in CONFIG_MAPPING]
"""Families with a class of their own: Kimi K2 has DeepSeek's."""
T5S = ("t5", "mt5", "umt5", "switch_transformers")
LOOPING = ("dbrx", "switch_transformers")
"""Families that go from expert to expert by what the data are, so that there must be some."""

BLIND = {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 1, "out_hidden_size": 8}
"""A small encoder of images, which nothing is given to."""


def counted(config: dict[str, Any], batch: int, seq: int) -> tuple[int, int, int]:
    """Parameters, forward FLOPs and all FLOPs of the published implementation.

    Without those of rotary angles: constants of the positions, which it makes by a matrix product.
    """
    family = config["model_type"]
    published = getattr(transformers, config.get("architectures", list(FAMILIES[family].ends))[0])
    made = CONFIG_MAPPING[family](**config)
    if "_vl_" in family:  # the package has these language models with a head only beside an encoder of images
        made = published.config_class(
            text_config=sectioned(made), vision_config=BLIND, tie_word_embeddings=tied(config)
        )
    experts = {} if family in LOOPING else {"experts_implementation": "batched_mm"}
    with torch.device("cpu" if family in LOOPING else "meta"):
        model = published._from_config(made, attn_implementation="eager", **experts).train()
    # Whether sequences are packed is read off the data of the positions, and whether all of a mask is one off its data,
    # of which there is none here.
    unwarned = patch.object(transformers.PreTrainedModel, "warn_if_padding_and_no_attention_mask", lambda *_: None)
    one_sequence = patch.object(masking_utils, "find_packed_sequence_indices", lambda positions: None)
    unmasked = patch.object(masking_utils, "_ignore_bidirectional_mask_sdpa", lambda *_, **__: True)
    with one_sequence, unwarned, unmasked, FlopCounterMode(display=False) as counter:
        given = inputs_of(config, batch, seq)
        given = {name: torch.zeros_like(x, device=model.device) if x is not False else x for name, x in given.items()}
        made = model(**given).values()
        forward = counter.get_total_flops()
        ends = [end for end in made if isinstance(end, torch.Tensor) and end.is_leaf is False]
        torch.autograd.backward(ends, [torch.empty_like(end) for end in ends])
    angles = sum(
        sum(flops.values()) for name, flops in counter.get_flop_counts().items() if name.endswith("rotary_emb")
    )
    params = sum(w.numel() for name, w in model.named_parameters() if ".visual." not in name)  # the towers
    return params, forward - angles, counter.get_total_flops() - angles


def tied(config: dict[str, Any]) -> bool:
    return config.get("tie_word_embeddings", FAMILIES[config["model_type"]].fields["tie_word_embeddings"])


def sectioned(made: Any) -> dict[str, Any]:
    """A language model's fields, with sections of its rotary features for time, height and width."""
    size = getattr(made, "head_dim", None) or made.hidden_size // made.num_attention_heads
    sections = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [size // 2 - 2, 1, 1]}
    return made.to_dict() | {"rope_parameters": sections}


def inputs_of(config: dict[str, Any], batch: int, seq: int) -> dict[str, Any]:
    """What the published implementation is given: images of the model's size, or tokens."""
    model = build(config, "config")
    tokens = meta(batch, seq, dtype=torch.int64)
    if isinstance(model, VisionTransformer | CNN):
        return {"pixel_values": meta(batch, *model.input)}
    if not isinstance(model, EncoderDecoder):
        return {"input_ids": tokens} | ({} if config["model_type"] in T5S else {"use_cache": False})
    if model.sound is None:
        return {"input_ids": tokens, "decoder_input_ids": tokens[:, 1:], "use_cache": False}
    sound = meta(batch, model.sound.mel_bins, 2 * model.sound.places)
    return {"input_features": sound, "decoder_input_ids": tokens, "use_cache": False}


def on_paper(config: dict[str, Any], batch: int, seq: int) -> tuple[int, int, int]:
    model = build(config, "config")
    sizes = {} if isinstance(model, VisionTransformer | CNN) else {"seq": seq}
    if isinstance(model, EncoderDecoder) and model.sound is None:
        sizes["target_seq"] = seq - 1
    p = predict(model, batch=batch, **sizes)
    return p.params, p.flops.forward, p.flops.total


def sizes_of(config: dict[str, Any]) -> dict[str, Any]:
    model = build(config, "config")
    return model.model_dump(exclude={"name", "notes"})


@pytest.mark.parametrize("family", IN_PACKAGE)
def test_left_out_fields_are_those_of_the_published_class(family: str) -> None:
    needed = NEEDED.get(family, {})
    published = json.loads(json.dumps(CONFIG_MAPPING[family](**needed).to_dict(), default=str))
    assert sizes_of({"model_type": family, **needed}) == sizes_of(published)


@pytest.mark.parametrize("family", IN_PACKAGE)
def test_the_published_class_costs_the_same(family: str) -> None:
    config = {"model_type": family, **NEEDED.get(family, {})}
    assert on_paper(config, 2, 5) == counted(config, 2, 5)


AFTER_PADDING = (
    "roberta",
    "xlm-roberta",
    "camembert",
    "mpnet",
    "esm",
    "data2vec-text",
    "roberta-prelayernorm",
    "xlm-roberta-xl",
)
"""Families that count positions from after the padding token's number."""

OF_CLASSES = [
    (family, name)
    for family in IN_PACKAGE
    for name, end in FAMILIES[family].ends.items()
    if {"classes", "pairs"} & set(end.split()) and hasattr(transformers, name)
]
"""Families, and architectures that end in classes."""


@pytest.mark.parametrize(("family", "architecture"), OF_CLASSES, ids=[name for _, name in OF_CLASSES])
def test_architectures_that_end_in_classes_cost_the_same(family: str, architecture: str) -> None:
    @differential
    @given(small_configurations(family), st.integers(1, 2), st.integers(2, 5), st.integers(2, 4))
    def holds(config: dict[str, Any], batch: int, seq: int, classes: int) -> None:
        config |= {"architectures": [architecture], "num_labels": classes, "pad_token_id": 0}
        if "QuestionAnswering" in architecture:  # its start and its end
            config.pop("num_labels")
        if family in AFTER_PADDING:
            config["pad_token_id"] = 1
        assert on_paper(config, batch, seq) == counted(config, batch, seq)

    holds()


HEADLESS = [(family, name) for family in IN_PACKAGE for name, end in FAMILIES[family].ends.items() if end == "decoder"]
"""Encoder-decoders without a head."""


@pytest.mark.parametrize(("family", "architecture"), HEADLESS, ids=[name for _, name in HEADLESS])
def test_encoder_decoders_without_a_head_cost_the_same(family: str, architecture: str) -> None:
    @examples(max(1, DRAWN // 6))
    @given(small_configurations(family), st.integers(1, 2), st.integers(2, 5))
    def holds(config: dict[str, Any], batch: int, seq: int) -> None:
        config["architectures"] = [architecture]
        assert on_paper(config, batch, seq) == counted(config, batch, seq)

    holds()


@pytest.mark.parametrize("family", IN_PACKAGE)
def test_small_configurations_cost_the_same(family: str) -> None:
    @differential
    @given(small_configurations(family), st.integers(1, 2), st.integers(2, 5))
    def holds(config: dict[str, Any], batch: int, seq: int) -> None:
        assert on_paper(config, batch, seq) == counted(config, batch, seq)

    holds()


WHOLE = {"apertus", "llama4_text", "gpt_oss", "deepseek_v2", "deepseek_v3", "ministral3"}
WHOLE |= {"cwm", "falcon_h1", "granitemoehybrid", "lfm2"}
"""Families that turn whole heads, and refuse a share."""
WHOLE |= {"gte", "deepseek_v32", "minicpm3", "nomic_bert", "jina_embeddings_v3"}
WHOLE |= {"youtu", "glm4_moe_lite", "solar_open", "lfm2_moe", "gemma3n_text"}
HEADS_OF_A_SIZE = ("glm4_moe", "hunyuan_v1_dense", "hunyuan_v1_moe")
NEEDED = {
    "switch_transformers": {"d_model": 16, "d_kv": 4, "d_ff": 6, "num_heads": 4, "vocab_size": 20},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "dbrx": {"d_model": 32, "n_heads": 4, "n_layers": 2, "attn_config": {"rope_theta": 1e4, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"num_experts_per_tok": 6, "n_routed_experts": 64, "n_shared_experts": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "m2m_100": {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0},  # else layers are left out by chance
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 48},
    "llama4_text": {"num_experts_per_tok": 16},  # the package runs all experts, whatever this says
    **{name: {"head_dim": 128} for name in HEADS_OF_A_SIZE},
}
"""What the published class itself cannot do without."""

SIZES = {
    "layers": ("encoder_layers", "n_layer", "n_layers", "num_layers", "num_hidden_layers"),
    "heads": ("attention_heads", "encoder_attention_heads", "n_head", "n_heads", "num_heads", "num_attention_heads"),
    "width": ("n_embd", "d_model", "dim", "hidden_size"),
    "hidden": ("n_inner", "d_ff", "encoder_ffn_dim", "ffn_dim", "hidden_dim", "ffn_hidden_size", "intermediate_size"),
}
"""Names of the same sizes from family to family."""


@st.composite
def small_configurations(draw: st.DrawFn, family: str) -> dict[str, Any]:
    """A configuration of every declaration that the family has, small enough to think about."""
    fields = FAMILIES[family].fields
    heads, key_heads = draw(st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2), (6, 3)]))
    layers = draw(st.integers(1, 4))
    width = heads * draw(st.sampled_from([8, 16]))
    sizes = {"layers": layers, "heads": heads, "width": width, "hidden": draw(st.integers(1, 20))}
    config: dict[str, Any] = {"model_type": family, "pad_token_id": None}
    config |= {"vocab_size": draw(st.integers(3, 30))} if "vocab_size" in fields else {}
    config |= {name: sizes[size] for size, names in SIZES.items() for name in names if name in fields}
    needed = {
        "num_key_value_heads": st.just(key_heads),
        "num_kv_heads": st.just(key_heads),
        "rotary_dim": st.sampled_from([2, 4, 8]),
        "num_experts_per_tok": st.integers(1, 3),  # no more than there are experts
        "decoder_layers": st.integers(1, 3),
        "decoder_attention_heads": st.sampled_from([1, heads]),
        "decoder_ffn_dim": st.integers(1, 20),
        "num_mel_bins": st.integers(1, 5),
        "max_source_positions": st.integers(1, 9),
        "feed_forward_proj": st.sampled_from(["relu", "gelu_new", "gated-gelu", "gated-silu"]),
        "d_kv": st.sampled_from([3, 4]),
        "image_size": st.sampled_from([8, [8, 12], [9, 8]]),
        "patch_size": st.sampled_from([2, 4, [4, 4]]),
        "attention_types": st.lists(st.sampled_from(["global", "local"]), min_size=layers, max_size=layers).map(
            lambda kinds: [[kinds, 1]]
        ),
    }
    if family in T5S and draw(st.booleans()):
        kind = FAMILIES[family]
        config["architectures"] = [draw(st.sampled_from([kind.headed[0], kind.headless[0]]))]
    if "num_labels" in fields:
        config["architectures"] = [draw(st.sampled_from(list(FAMILIES[family].ends)))]
        classes = 2 if "QuestionAnswering" in config["architectures"][0] else draw(st.integers(2, 4))  # start and end
        config |= {"num_labels": classes, "pad_token_id": draw(st.integers(0, 2))}
    if family in T5S:  # which the package always ties
        needed["tie_word_embeddings"] = st.just(True)
    if "n_group" in fields:
        groups = draw(st.sampled_from([(1, 1), (2, 1), (3, 2)]))
        needed |= {
            "n_routed_experts": st.just(groups[0] * draw(st.integers(3, 4))),
            "n_group": st.just(groups[0]),
            "topk_group": st.just(groups[1]),
        }
    if "kv_lora_rank" in fields:
        needed["num_key_value_heads"] = st.just(heads)
    if family in HEADS_OF_A_SIZE:
        needed["head_dim"] = st.sampled_from([4, 8])
    if family == "hunyuan_v1_moe":
        needed |= {"num_experts": st.integers(3, 5), "moe_topk": st.integers(1, 3)}
    if family == "llama4_text":  # which runs every expert on every token
        experts = draw(st.integers(1, 3))
        needed |= {"num_experts_per_tok": st.just(experts), "num_local_experts": st.just(experts)}
    if family == "falcon":  # whose older blocks have one key head or as many as queries
        new = draw(st.booleans())
        needed |= {"new_decoder_architecture": st.just(new), "parallel_attn": st.just(True)}
        needed |= {} if new else {"num_kv_heads": st.just(heads)}
    kinds = st.sampled_from(["full_attention", "sliding_attention"])
    optional = {
        "num_decoder_layers": st.integers(1, 3),
        "head_dim": st.sampled_from([4, 8]),
        "partial_rotary_factor": st.sampled_from([0.5, 1.0]),
        "window_size": st.integers(1, 4),
        "sliding_window": st.integers(1, 4),
        "layer_types": st.lists(kinds, min_size=layers, max_size=layers),
        "num_experts": st.integers(3, 5),
        "num_local_experts": st.integers(3, 5),
        "moe_intermediate_size": st.integers(1, 9),
        "shared_expert_intermediate_size": st.integers(1, 9),
        "shared_intermediate_size": st.integers(0, 9),
        "decoder_sparse_step": st.integers(1, 3),
        "interleave_moe_layer_step": st.integers(1, 3),
        "moe_layers": st.lists(st.integers(0, 3), max_size=2, unique=True),
        "mlp_only_layers": st.lists(st.integers(0, 3), max_size=2),
        "max_window_layers": st.integers(0, layers),
        "no_rope_layers": st.lists(st.integers(0, 1), min_size=layers, max_size=layers),
        "word_embed_proj_dim": st.integers(1, 9),
        "q_lora_rank": st.none() | st.integers(1, 9),
        "kv_lora_rank": st.sampled_from([2, 4, 6]),  # turned features are read as complex numbers, two by two
        "qk_nope_head_dim": st.sampled_from([2, 4, 6]),
        "qk_rope_head_dim": st.sampled_from([2, 4]),
        "v_head_dim": st.integers(1, 9),
        "first_k_dense_replace": st.integers(0, layers),
        "n_shared_experts": st.integers(1, 2),
        "num_shared_experts": st.integers(1, 2),
        "num_dense_layers": st.integers(0, layers),
        "mlp_layer_types": st.lists(st.sampled_from(["dense", "sparse"]), min_size=layers, max_size=layers),
        "topk_method": st.sampled_from(["greedy", "group_limited_greedy"]),
        "clip_qkv": st.just(8.0),
        **{name: st.booleans() for name in fields if FAMILIES[family].kind(name) == "flag"},
    }
    if family in WHOLE:
        optional.pop("partial_rotary_factor")
    if family in ("qwen2_vl_text", "qwen2_5_vl_text", "olmoe"):  # whose class makes angles of another size, and fails
        optional.pop("head_dim", None)
    if family in ("clip_vision_model", "dinov2", "siglip_vision_model"):  # whose class takes squares alone
        needed |= {"image_size": st.sampled_from([8, 9]), "patch_size": st.sampled_from([2, 4])}
    if family in ("cohere2", "helium", "olmoe", "bitnet", "esm"):
        optional.pop("head_dim", None)
    if FAMILIES[family].rules.get("whole") is heads_fill_width:
        optional.pop("head_dim", None)
    if family == "internlm3":
        needed |= dict.fromkeys(("attention_bias", "mlp_bias"), st.just(draw(st.booleans())))
    if family == "helium":
        needed["head_dim"] = st.just(width // heads)
    if family == "dbrx":
        config["attn_config"] = {"kv_n_heads": key_heads, "rope_theta": 1e4, "clip_qkv": 8.0}
        config["ffn_config"] = {"ffn_hidden_size": draw(st.integers(1, 9)), "moe_num_experts": draw(st.integers(2, 4))}
    if family == "dots1":
        needed["n_shared_experts"] = st.integers(1, 2)
    if family in ("exaone_moe", "afmoe", "hy_v3", "lfm2_moe", "qwen3_5_moe_text", "flex_olmo"):
        needed["num_experts"] = st.sampled_from([4, 6])
    if family == "exaone_moe":
        needed |= {"n_group": st.sampled_from([1, 2]), "topk_group": st.just(1), "num_experts_per_tok": st.just(2)}
        needed["n_routed_experts"] = st.nothing()  # which it calls num_experts
    if family == "m2m_100":
        config |= {**NEEDED[family], "pad_token_id": 0}
    if family == "ministral":
        needed["head_dim"] = st.sampled_from([4, 8])
    if family == "codegen":  # whose projection is in four parts
        config |= {"n_head": 4, "n_embd": 32}
    if family == "phi":  # whose norms of heads have width / heads features, whatever a head has
        needed["qk_layernorm"] = st.just(normed := draw(st.booleans()))
        optional.pop("head_dim") if normed else None
    needed |= {name: values for name, values in inner(draw, family, layers, width).items() if name in fields}
    if family == "stablelm" or family in TYPES or draw(st.booleans()):
        optional.pop("layer_types"), optional.pop("head_dim", None)
    elif "layer_types" in fields:
        needed |= {"use_sliding_window": st.just(True), "sliding_window": st.integers(1, 4)}
    if "hidden_sizes" in fields:
        needed["depths"] = st.lists(st.integers(1, 3), min_size=layers, max_size=layers)
        needed["hidden_sizes"] = st.lists(st.sampled_from([4, 8, 12]), min_size=layers, max_size=layers)
        needed |= {
            "num_stages": st.just(layers),
            "image_size": st.just(96),
            "layer_scale_init_value": st.sampled_from([0.0, 1e-6]),
        }
        needed |= {"layer_type": st.sampled_from(["basic", "bottleneck"]), "embedding_size": st.sampled_from([4, 7])}
        needed["patch_size"] = st.sampled_from([2, 4])
    if family == "deepseek_v32":
        needed |= {
            "q_lora_rank": st.integers(1, 9),
            "index_topk": st.integers(1, 4),
            "index_n_heads": st.integers(1, 3),
        }
        needed["index_head_dim"] = st.sampled_from([64, 65])
    if family == "convbert":
        needed |= {"conv_kernel_size": st.sampled_from([1, 3, 5]), "head_ratio": st.sampled_from([1, 2, 4])}
        needed["embedding_size"] = st.sampled_from([5, width])
    if family == "esm":
        needed |= {"position_embedding_type": st.sampled_from(["rotary", "absolute"]), "pad_token_id": st.just(1)}
        config["mask_token_id"] = 0
    if family in ("deberta", "deberta-v2"):
        needed |= {name: st.sampled_from([-1, 3, 4]) for name in ("max_relative_positions", "position_buckets")}
        needed["share_att_key"] = st.just(shared := family == "deberta-v2" and draw(st.booleans()))
        needed["pos_att_type"] = st.sampled_from(["p2c|c2p", ["c2p", "p2c"]] if shared else ["c2p", "p2c|c2p", ["p2c"]])
        needed["type_vocab_size"] = st.integers(0, 2)
        needed["relative_attention"] = st.just(told := draw(st.booleans()))
        needed["norm_rel_ebd"] = st.sampled_from(["none", "layer_norm"] if told else ["none"])
    if family == "gemma3n_text":
        needed |= streamed(draw, layers)
    if family == "gemma4_text":
        needed |= global_heads(draw, layers, heads)
    if family == "switch_transformers":
        sparse = st.just(draw(st.sampled_from([n for n in range(1, layers + 1) if layers // n > 1 or n == layers])))
        needed |= dict.fromkeys(("num_sparse_encoder_layers", "num_sparse_decoder_layers"), sparse)
        needed |= {"num_decoder_layers": st.just(layers), "num_experts": st.integers(2, 4)}
    if family == "t5gemma":
        needed |= {"encoder": st.just(side := gemma_side(draw, layers, heads, key_heads, width))}
        needed["decoder"] = st.just(side | {"num_hidden_layers": layers, "intermediate_size": draw(st.integers(1, 9))})
    if family == "mpt" and draw(st.booleans()):
        config["attn_config"] = {"clip_qkv": 6.0}
    drawn = {name: values for name, values in optional.items() if name in fields and draw(st.booleans())} | needed
    return config | {name: draw(values) for name, values in drawn.items() if name in fields}


def streamed(draw: st.DrawFn, layers: int) -> dict[str, Any]:
    """Fields of streams, and of keys that the last layers share, each with one of its kind before them."""
    kinds = st.sampled_from(["full_attention", "sliding_attention"])
    own = draw(st.lists(kinds, min_size=draw(st.integers(1, layers)), max_size=layers))
    shared = [draw(st.sampled_from(own)) for _ in range(layers - len(own))]
    widths = st.lists(st.integers(1, 20), min_size=layers, max_size=layers)
    shares = st.lists(st.sampled_from([0.0, 0.5]), min_size=layers, max_size=layers)
    return {
        "layer_types": st.just(own + shared),
        "num_kv_shared_layers": st.just(len(shared)),
        "sliding_window": st.integers(1, 4),
        "intermediate_size": st.integers(1, 20) | widths,
        "activation_sparsity_pattern": shares | st.none(),
        "laurel_rank": st.integers(1, 9),
        "altup_num_inputs": st.integers(2, 5),
        "altup_active_idx": st.integers(0, 1),
        "altup_correct_scale": st.booleans(),
        **dict.fromkeys(("hidden_size_per_layer_input", "vocab_size_per_layer_input"), st.integers(1, 9)),
    }


def gemma_side(draw: st.DrawFn, layers: int, heads: int, key_heads: int, width: int) -> dict[str, Any]:
    """The encoder or the decoder of T5Gemma."""
    side = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "vocab_size": 20}
    side |= {"num_key_value_heads": key_heads, "head_dim": draw(st.sampled_from([4, 8])), "pad_token_id": 0}
    side |= {"intermediate_size": draw(st.integers(1, 9)), "sliding_window": draw(st.integers(1, 4))}
    return side | {"attention_bias": draw(st.booleans()), "layer_types": ["sliding_attention"] * layers}


def global_heads(draw: st.DrawFn, layers: int, heads: int) -> dict[str, Any]:
    """Fields of heads where all is seen, of experts beside the MLP, and of keys that the last layers share."""
    kinds = ["full_attention", "sliding_attention"]
    shared = draw(st.integers(0, layers - 1))
    types = draw(st.lists(st.sampled_from(kinds), min_size=layers, max_size=layers))
    types[-1] = "full_attention"
    if shared:  # with one of its kind before it
        types[0] = "full_attention"
        types[layers - shared :] = [draw(st.sampled_from(types[: layers - shared])) for _ in range(shared)]
        types[-1] = "full_attention"
    local, moe = "sliding_attention" in types, draw(st.booleans())
    return {
        "layer_types": st.just(types),
        "num_kv_shared_layers": st.just(shared),
        "sliding_window": st.integers(1, 4),
        "head_dim": st.sampled_from([4, 8]),
        "global_head_dim": st.sampled_from([4, 12]),
        "attention_k_eq_v": st.just(local and draw(st.booleans())),
        "num_global_key_value_heads": st.sampled_from([None, 1, heads]),
        "use_double_wide_mlp": st.just(not moe and draw(st.booleans())),
        "enable_moe_block": st.just(moe),
        "use_bidirectional_attention": st.sampled_from([None, "all", "vision"]),
        "num_experts": st.integers(2, 4),
        "top_k_experts": st.integers(1, 2),
        "moe_intermediate_size": st.integers(1, 9),
        "hidden_size_per_layer_input": st.integers(min(shared, 1), 5),
        "vocab_size_per_layer_input": st.integers(30, 35),
    }


TYPES = {
    "granitemoehybrid": ["linear_attention", "full_attention"],
    "lfm2": ["conv", "full_attention"],
    "lfm2_moe": ["conv", "full_attention"],
    "qwen3_next": ["linear_attention", "full_attention"],
    "qwen3_5_text": ["linear_attention", "full_attention"],
    "qwen3_5_moe_text": ["linear_attention", "full_attention"],
    "nemotron_h": ["linear_attention", "full_attention", "mlp", "moe"],
}
"""Families whose layers are of several kinds, and these."""


def inner(draw: st.DrawFn, family: str, layers: int, width: int) -> dict[str, Any]:
    """Fields of state spaces and of what is in turn with attention, which must agree with others."""
    heads = draw(st.sampled_from([1, 2, 4]))
    groups = st.sampled_from([n for n in (1, 2, 4) if heads % n == 0])
    periods = [draw(st.integers(1, 3)) for _ in range(2)]
    made: dict[str, Any] = {
        "mamba_n_heads": st.just(heads),
        "mamba_num_heads": st.just(heads),
        "mamba_d_head": st.just("auto"),
        "mamba_head_dim": st.integers(2, 4),
        "mamba_d_ssm": st.just(heads * 3),
        "time_step_rank": st.just("auto") | st.integers(1, 4),
        "mamba_dt_rank": st.just("auto") | st.integers(1, 4),
        "attn_layer_indices": st.none() | st.lists(st.integers(0, 3), max_size=2, unique=True),
        "full_attn_idxs": st.none() | st.lists(st.integers(0, 3), max_size=2, unique=True),
        "block_multiple_of": st.integers(1, 4),
        "block_ffn_dim_multiplier": st.sampled_from([1.0, 1.5]),
        "shared_intermediate_size": st.integers(1, 9),
        "moe_shared_expert_intermediate_size": st.integers(1, 9),
        "position_embedding_type": st.sampled_from([None, "rope"]),
        **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size"), st.integers(2, 5)),
        **dict.fromkeys(("conv_kernel", "mamba_d_conv", "conv_L_cache"), st.integers(1, 4)),
        **dict.fromkeys(("n_groups", "mamba_n_groups"), groups),
        **dict.fromkeys(("chunk_size", "mamba_chunk_size"), st.integers(2, 6)),
        "attn_layer_period": st.just(periods[0]),
        "attn_layer_offset": st.integers(0, periods[0] - 1),
        "expert_layer_period": st.just(periods[1]),
        "expert_layer_offset": st.integers(0, periods[1] - 1),
    }
    if family == "mamba2":
        made |= {"num_heads": st.just(heads), "head_dim": st.just(2 * width // heads)}
    if family in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):
        made |= {"linear_num_value_heads": st.just(2 * heads), "linear_num_key_heads": groups}
        made |= {name: st.integers(2, 4) for name in ("linear_key_head_dim", "linear_value_head_dim")}
        made |= {"linear_conv_kernel_dim": st.integers(1, 4), "shared_expert_intermediate_size": st.integers(1, 9)}
    if family == "lfm2":
        made |= {"intermediate_size": st.integers(2, 20)}
    if family in ("mamba", "falcon_mamba"):
        made |= {"intermediate_size": st.just(2 * width)}
    if family in TYPES:
        kinds = st.lists(st.sampled_from(TYPES[family]), min_size=layers, max_size=layers)
        made |= {"layers_block_type": kinds} if family == "nemotron_h" else {"layer_types": kinds}
    else:
        made.pop("shared_intermediate_size")
    return made


@pytest.mark.parametrize("name", list(ENCODERS))
def test_two_encoders_are_the_whole_but_for_how_they_are_compared(name: str) -> None:
    """Of the logits there is a scale, or a shift too; their product is of all pairs of a batch."""
    start = ENCODERS[name][0]
    last = "WithProjection" if start == "CLIP" else ""
    small = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2}
    config: dict[str, Any] = {"model_type": name} | ({"projection_dim": 12} if last else {})
    config |= {"text_config": {**small, "vocab_size": 30}, "vision_config": {**small, "image_size": 8, "patch_size": 2}}
    with torch.device("meta"):
        made = CONFIG_MAPPING[name](**config)
        whole = getattr(transformers, f"{start}Model")._from_config(made, attn_implementation="eager")
    with FlopCounterMode(display=False) as counter:
        made = whole(input_ids=meta(3, 5, dtype=torch.int64), pixel_values=meta(3, 3, 8, 8))
    towers = [build(config | {"architectures": [f"{start}{of}Model{last}"]}, "config") for of in ("Vision", "Text")]
    costs = [predict(model, batch=3, **seq) for model, seq in zip(towers, ({}, {"seq": 5}), strict=True)]
    scalars = sum(weight.numel() for weight in whole.parameters() if weight.dim() <= 1 and weight.numel() == 1)
    assert sum(p.params for p in costs) + scalars == sum(weight.numel() for weight in whole.parameters())
    pairs = 2 * 3 * 3 * made.text_embeds.shape[-1]
    assert sum(p.flops.forward for p in costs) + pairs == counter.get_total_flops()


LOST = {name for name in FILES if "t5" in name and not FILES[name].get("tie_word_embeddings", True)}
"""Files that the package saves otherwise: it ties what they do not."""
CUT_SHORT = {"phi-3.5-mini", "phi-4-mini"}
"""Files whose lists of rotary factors are cut short here, which the package refuses."""


@pytest.mark.parametrize("name", sorted(set(FILES) - LOST - CUT_SHORT))
def test_a_published_file_saved_again_is_the_same(name: str) -> None:
    config = FILES[name]
    again = CONFIG_MAPPING[config["model_type"]](**config).to_dict()
    assert sizes_of(json.loads(json.dumps(again, default=str))) == sizes_of(config)


def decoder(family: str, sizes: str, **fields: Any) -> dict[str, Any]:
    """A configuration by the names that most families give sizes, in the order here."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return {"model_type": family, **dict(zip(names, map(int, sizes.split()), strict=True)), **fields}


def opt(width: int, layers: int, heads: int) -> dict[str, Any]:
    sizes = {"hidden_size": width, "ffn_dim": 4 * width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {"model_type": "opt", **sizes}


def mpt(width: int, layers: int, heads: int) -> dict[str, Any]:
    return {"model_type": "mpt", "d_model": width, "n_layers": layers, "n_heads": heads, "vocab_size": 50432}


PUBLISHED: dict[str, dict[str, Any]] = {
    "opt-13b": opt(5120, 40, 40),
    "opt-30b": opt(7168, 48, 56),
    "opt-66b": opt(9216, 64, 72),
    "mpt-30b": mpt(7168, 48, 64),
    "gemma-3-270m": decoder("gemma3_text", "262144 640 2048 18 4", num_key_value_heads=1),
    "gemma-3-4b-text": decoder("gemma3_text", "262208 2560 10240 34 8", num_key_value_heads=4),
    "gemma-3-12b-text": decoder("gemma3_text", "262208 3840 15360 48 16", num_key_value_heads=8),
    "gemma-3-27b-text": decoder("gemma3_text", "262208 5376 21504 62 32", num_key_value_heads=16, head_dim=128),
    "mistral-large-123b": decoder("mistral", "32768 12288 28672 88 96", head_dim=128),
    "olmo-2-32b": decoder("olmo2", "100352 5120 27648 64 40", num_key_value_heads=8),
    "phi-4-mini": decoder("phi3", "200064 3072 8192 32 24", num_key_value_heads=8, tie_word_embeddings=True),
    "pythia-14m": decoder("gpt_neox", "50304 128 512 6 4"),
    "qwen2-57b-a14b": decoder("qwen2_moe", "151936 3584 18944 28 28", num_key_value_heads=4)
    | {"num_experts": 64, "moe_intermediate_size": 2560, "shared_expert_intermediate_size": 20480},
    "qwen3-30b-a3b": decoder("qwen3_moe", "151936 2048 6144 48 32", head_dim=128),
    "qwen3-235b-a22b": decoder("qwen3_moe", "151936 4096 12288 94 64", moe_intermediate_size=1536, head_dim=128),
    "gpt-oss-20b": {"model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32},
    "gpt-oss-120b": {"model_type": "gpt_oss"},
    "deepseek-v2": decoder("deepseek_v2", "102400 5120 12288 60 128", n_routed_experts=160, num_experts_per_tok=6)
    | {"first_k_dense_replace": 1, "moe_intermediate_size": 1536},
    "deepseek-v2-lite": decoder("deepseek_v2", "102400 2048 10944 27 16", q_lora_rank=None, num_experts_per_tok=6)
    | {"first_k_dense_replace": 1, "moe_intermediate_size": 1408},
    "deepseek-v3": {"model_type": "deepseek_v3"},
}
"""Sizes of ready models, as their published configurations give them."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_ready_model_has_the_parameters_of_the_published_implementation(name: str) -> None:
    config = CONFIG_MAPPING[PUBLISHED[name]["model_type"]](**PUBLISHED[name])
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert sum(weight.numel() for weight in model.parameters()) == predict(name, seq=1).params


SERVED = (
    "gpt2",
    "llama",
    "gemma3_text",
    "gemma3n_text",
    "qwen2_moe",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
    "gpt_oss",
)


RECURRENT = (
    "mamba",
    "mamba2",
    "falcon_mamba",
    "bamba",
    "granitemoehybrid",
    "nemotron_h",
    "falcon_h1",
    "jamba",
    "lfm2",
    "qwen3_next",
)
"""Families that keep states of fixed size, beside keys and values or without."""


def stepped(
    config: dict[str, Any], kernel: str, batch: int, past: int, tokens: int, *, last: bool = False
) -> tuple[int, int, int, int]:
    """FLOPs of the published implementation's prefill and of a step after it, and bytes that its cache then holds.

    The prefill of `past` tokens has logits of the last one; of the step all, or of its last token too.
    """
    family = config["model_type"]
    published = getattr(transformers, FAMILIES[family].headed[0])
    made = CONFIG_MAPPING[family](**config)
    with torch.device("meta"):
        model = published._from_config(made, attn_implementation=kernel, experts_implementation="batched_mm").eval()
        cache = transformers.DynamicCache(config=made)
    one_sequence = patch.object(masking_utils, "find_packed_sequence_indices", lambda positions: None)
    found: list[int] = []
    parameters = signature(model.forward).parameters
    taken = next(name for name in ("cache", "past_key_values", "cache_params") if name in parameters)  # by release
    for length, asked in ((past, {"logits_to_keep": 1}), (1, {}), (tokens, {"logits_to_keep": 1} if last else {})):
        given = {taken: cache, "use_cache": True, **asked}
        with torch.no_grad(), one_sequence, FlopCounterMode(display=False) as counter:
            model(meta(batch, length, dtype=torch.int64), **given)
        angles = (sum(n.values()) for name, n in counter.get_flop_counts().items() if name.endswith("rotary_emb"))
        held = [x.untyped_storage().nbytes() for layer in cache.layers for x in kept_by(layer)]
        found += [counter.get_total_flops() - sum(angles), sum(held)]
    return found[0], found[1], found[4], found[5]


def kept_by(layer: Any) -> list[torch.Tensor]:
    """What one layer keeps: keys and values, states, or both."""
    states = [getattr(layer, name, {}).values() for name in ("conv_states", "recurrent_states")]
    held = (getattr(layer, "keys", None), getattr(layer, "values", None), *(x for some in states for x in some))
    return [x for x in held if isinstance(x, torch.Tensor)]


@pytest.mark.parametrize("family", RECURRENT)
def test_a_step_after_a_prefill_costs_the_same_with_states(family: str) -> None:
    @examples(max(1, DRAWN // 5))
    @given(small_configurations(family), st.integers(1, 2), st.integers(1, 9), st.sampled_from([1, 3]))
    def holds(config: dict[str, Any], batch: int, past: int, tokens: int) -> None:
        assume(config.get("sliding_window") != 1)
        config["architectures"] = [FAMILIES[family].headed[0]]
        model = build(config, "config")
        # The package's hybrids ask their cache how long it is, which one without attention cannot tell.
        assume(family in ("mamba", "mamba2", "falcon_mamba") or any(variant.attends for variant in model.pattern))
        first = predict(model, batch=batch, mode="prefill", seq=past)
        then = predict(model, batch=batch, mode="prefill", past=past + 1, seq=tokens)
        found = (first.flops.forward, first.memory.cache, then.flops.forward, then.memory.cache)
        assert found == stepped(config, "eager", batch, past, tokens, last=True)
        step = predict(model, batch=batch, mode="decode", past=past + 1)
        assert tokens > 1 or (step.flops, step.memory.cache) == (then.flops, then.memory.cache)

    holds()


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("family", SERVED)
def test_a_step_after_a_prefill_costs_the_same(family: str, kernel: str) -> None:
    """Fused attention has the FLOPs of the products, and so has the kernel here, whichever it stands for."""
    if (family, kernel) == ("gpt_oss", "sdpa"):
        return  # it has none

    @examples(max(1, DRAWN // 5))
    @given(small_configurations(family), st.integers(1, 2), st.integers(1, 9), st.sampled_from([1, 3]))
    def holds(config: dict[str, Any], batch: int, past: int, tokens: int) -> None:
        assume(config.get("sliding_window") != 1)  # of which the package keeps all tokens: "the last 0" is everything
        model = build(config, "config")
        attention = "eager" if kernel == "eager" else "efficient"
        first = predict(model, batch=batch, mode="prefill", seq=past, attention=attention)
        drafts = {"speculative": tokens - 1} if tokens > 1 else {}
        then = predict(model, batch=batch, mode="decode", past=past + 1, attention=attention, **drafts)
        found = (first.flops.forward, first.memory.cache, then.flops.forward, then.memory.cache)
        assert found == stepped(config, kernel, batch, past, tokens)

    holds()
