"""Decoders whose blocks are built otherwise than LLaMA's: other norms, parallel branches, plain MLPs."""

from __future__ import annotations

from typing import Any

from costmodel.errors import SpecError
from costmodel.importers.huggingface.family import Config, Family, architectures, sizes
from costmodel.importers.huggingface.llama import BIASES, DECODER

PHI = Family(
    model_type="phi",
    source="Phi 1 to 2 (Gunasekar et al. 2023; Javaheripi et al. 2023): parallel blocks, biases everywhere",
    like=DECODER,
    ends=architectures("PhiForCausalLM", "PhiModel"),
    fields=sizes(51200, 2048, 8192, 24, 32, resid_pdrop=0.0, embd_pdrop=0.0, hidden_act="gelu_new")
    | {"qk_layernorm": False, "partial_rotary_factor": 0.5},
    means={"qk_layernorm": {True: {"query_key_norm": "head"}, False: {}}},
    sets=BIASES | {"head_bias": True, "mlp": "plain", "norm": "layernorm", "parallel": True, "shared_norm": True},
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
    fixed={"attention_bias": (False,)},
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
    fixed={"norm_type": ("layer_norm",), "mlp_type": ("default",), "layer_types": (None,)},
)


def heads_fill_width(config: Config, made: dict[str, Any]) -> None:
    """Raise SpecError for a head size that is not width / heads."""
    if made["head_size"] is not None:
        raise SpecError(f"head_dim {config['head_dim']} is not hidden_size / heads", ("head_dim",))
    made["shared_norm"] = made["parallel"]


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
    rules={"whole": heads_fill_width},
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
