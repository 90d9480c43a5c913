"""Gemma 3n: several residual streams, and keys and values that the last layers have from those before them."""

from __future__ import annotations

from typing import Any

from costmodel.errors import SpecError, shown
from costmodel.importers.huggingface.family import Config, Family, sizes
from costmodel.importers.huggingface.fields import Meaning
from costmodel.importers.huggingface.llama import WINDOWED, gemma_embedding
from costmodel.importers.huggingface.rules import cycle, each, rotary_whole, windows


def shared_keys(config: Config, made: dict[str, Any]) -> None:
    """The last layers have the keys and values of others, if any do."""
    made["shared_kv_layers"] = config["num_kv_shared_layers"] or None


def widths(config: Config, made: dict[str, Any]) -> None:
    """One width of all MLPs, or that of each."""
    given, layers = config["intermediate_size"], made["layers"]
    if not isinstance(given, list):
        made["mlp_width"] = given
        return
    if len(given) != layers:
        raise SpecError(f"intermediate_size has {len(given)} entries for {layers} layers", ("intermediate_size",))
    alike = len(set(given)) == 1
    made |= {"mlp_width": given[0]} if alike else {"mlp_widths": tuple(given)}


def streams(config: Config, made: dict[str, Any]) -> None:
    """Which layers' gates are sparse, whether weights are clipped; which stream is computed has no cost."""
    active, count = config["altup_active_idx"], config["altup_num_inputs"]
    if active >= count:
        raise SpecError(
            f"altup_active_idx {active} is not one of altup_num_inputs {count}: they are counted from 0",
            ("altup_active_idx",),
        )
    given, layers = config["activation_sparsity_pattern"], made["layers"]
    if given is None:
        sparse = each(layers, lambda n: layers > 10 > n)
    else:
        sparse = [_sparse(number, share) for number, share in enumerate(given)]
        if len(sparse) != layers:
            raise SpecError(
                f"activation_sparsity_pattern has {len(sparse)} entries for {layers} layers",
                ("activation_sparsity_pattern",),
            )
    made["altup.clipped"] = config["altup_coef_clip"] is not None
    made["altup.sparse_pattern"] = cycle(sparse, layers)


def _sparse(number: int, share: Any) -> bool:
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise SpecError(
            f"activation_sparsity_pattern[{number}] {shown(share)} is not a share: give one from 0, less than 1",
            ("activation_sparsity_pattern", number),
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
        "embedding": gemma_embedding,
        "widths": widths,
        "shared": shared_keys,
        "streams": streams,
    },
    idle="altup_lr_multiplier query_pre_attn_scalar rope_local_base_freq",
)
