"""Which fields of a transformer go together, and which values a size of it may have: others are refused in one line."""

from __future__ import annotations

import json
from math import ceil, floor
from typing import TYPE_CHECKING, Any

from costmodel.architectures.base import Allowed, BatchShape, fitting_divisors, nearest_divisor
from costmodel.architectures.mixers import MIXERS, StateSpace
from costmodel.architectures.parts import Experts
from costmodel.symbolic.sizes import LARGEST_SIZE, ceil_div

if TYPE_CHECKING:
    from costmodel.architectures.spec import TransformerSpec

OTHERWISE_MADE = {
    "fused_qkv": False,
    "kv_heads": None,
    "query_key_norm": None,
    "qkv_clip": None,
    "attention_gate": False,
}
"""What plain attention may have, and `latent` and `disentangled` have not: they make query, key and value otherwise."""


def check_together(model: TransformerSpec) -> None:
    """Raise ValueError unless the fields of a transformer go together."""
    if model.head_size is None and model.width % model.heads:
        raise ValueError(
            f"heads {model.heads} does not divide width {model.width}: use a divisor such as "
            f"{nearest_divisor(model.width, model.heads)}, or give head_size"
        )
    if model.heads % model.key_heads:
        raise ValueError(f"kv_heads {model.kv_heads} does not divide heads {model.heads}")
    if model.rotary is not None and model.positions != "rotary":
        raise ValueError(f"rotary needs positions 'rotary', not {model.positions!r}")
    if model.positions == "rotary" and (model.rotated % 2 or model.rotated > model.head_features):
        raise ValueError(f"rotary.size {model.rotated} must be even and at most the head size {model.head_features}")
    if model.query_key_norm == "heads" and model.norm != "layernorm":
        raise ValueError(f"query_key_norm 'heads' needs norm 'layernorm', not {model.norm!r}")
    if model.shared_blocks and len({variant.routed for variant in model.pattern}) > 1:
        raise ValueError("shared_blocks needs blocks that are alike: experts.pattern and dense_layers make two kinds")
    if model.shared_blocks and model.mlp_widths:
        raise ValueError("shared_blocks needs blocks that are alike: leave out mlp_widths")
    if not model.first_norm and (model.norm_placement != "pre" or model.parallel):
        raise ValueError("first_norm: false needs norm_placement 'pre', and parallel: false")
    if model.shared_blocks and not model.first_norm:
        raise ValueError("shared_blocks needs blocks that are alike: first_norm: true")
    if model.embedding_factored and model.embedding_width is None:
        raise ValueError("embedding_factored needs an embedding_width")
    if model.shared_norm and not model.parallel:
        raise ValueError("shared_norm needs parallel: true")
    if model.parallel and model.norm_placement != "pre":
        raise ValueError(f"parallel blocks have norm_placement 'pre', not {model.norm_placement!r}")
    summed = model.pooler is not None and not model.pooler.spare
    if not summed and model.pooler is not None and model.head is None and model.classes is None:
        raise ValueError("pooler.spare: true leaves nothing that is read: give a head or classes")
    if summed and model.head is not None and model.classes is None:
        raise ValueError("a pooler beside a head needs classes, or pooler.spare: true, as nothing reads it")
    if summed and model.classes is not None and model.classes.told_by != "first":
        raise ValueError(f"a pooler is over the first token: classes.told_by {model.classes.told_by!r} takes none")
    _check_latent(model)
    _check_disentangled(model)
    _check_sublayers(model)
    if model.span_convolution is not None:
        _check_needs(model, "span_convolution", causal=False, latent=None, **OTHERWISE_MADE)
        if model.span_convolution % 2 == 0:
            raise ValueError(f"span_convolution {model.span_convolution} must be odd, around each token")
    if model.inner_norm:
        _check_needs(model, "inner_norm", experts=None)
    if model.mlp_output_bias is not None:
        _check_needs(model, "mlp_output_bias", experts=None)
    _check_altup(model)
    _check_global_heads(model)
    if model.experts is not None and model.experts.beside:
        _check_needs(model, "experts.beside", norm_placement="both", parallel=False, altup=None)
        if model.experts.shared_width is not None:
            raise ValueError("experts.beside: the MLP is what all tokens share; leave out experts.shared_width")
    _check_shared_keys(model)
    if model.relative_buckets is not None and not model.by_distance:
        raise ValueError(f"relative_buckets needs positions 'relative' or 'learned', not {model.positions!r}")
    if not model.relative_shared and not model.by_distance:
        raise ValueError(
            f"relative_shared: false needs positions 'relative', not {model.positions!r}; or relative_buckets "
            "beside 'learned' ones"
        )
    if model.attention_gate and (model.fused_qkv or model.qkv_clip or model.query_key_norm == "width"):
        raise ValueError(
            "attention_gate: true needs fused_qkv: false, no qkv_clip, and no query_key_norm 'width': it is made "
            "beside the query of each head"
        )
    if not model.key_bias and (model.fused_qkv or not model.qkv_bias):
        raise ValueError("key_bias: false needs qkv_bias, and fused_qkv: false")
    if model.position_rows is not None and (model.positions != "learned" or model.position_rows < model.context):
        raise ValueError(f"position_rows {model.position_rows} needs learned positions, at least the context's")
    if model.position_table != "trained" and model.positions != "learned":
        raise ValueError(f"position_table {model.position_table!r} needs positions 'learned'")


def _check_latent(model: TransformerSpec) -> None:
    if model.indexer is not None and (model.latent is None or model.latent.query_width is None):
        raise ValueError("indexer needs latent.query_width: its queries are made of the latent of queries")
    if model.indexer is not None and (not model.causal or model.indexer.head_size < model.rotated):
        raise ValueError(f"indexer needs causal: true, and indexer.head_size at least rotary.size {model.rotated}")
    if model.latent is None:
        return
    if model.positions != "rotary" or model.rotary is None or model.rotated >= model.head_features:
        raise ValueError(
            "latent needs positions: rotary, and a rotary.size smaller than the head size "
            f"{model.head_features}: keys are turned in features that all heads share"
        )
    _check_needs(model, "latent", value_norm=False, **OTHERWISE_MADE)


def _check_disentangled(model: TransformerSpec) -> None:
    if model.disentangled is None:
        return
    _check_needs(model, "disentangled", causal=False, latent=None, **OTHERWISE_MADE)


def _check_sublayers(model: TransformerSpec) -> None:
    if model.mlp_widths and (model.mlp_width is not None or model.experts is not None):
        other = "experts" if model.mlp_width is None else "mlp_width"
        raise ValueError(f"mlp_widths says how wide each block's MLP is: leave out {other}")
    others = [name for name in MIXERS if getattr(model, name) is not None]
    if len(others) > 1:
        raise ValueError(f"{others[0]} and {others[1]} are both given: keep one")
    if not (model.mixer or model.attention_pattern or model.mlp_pattern):
        return
    for field, value in (("parallel", False), ("first_norm", True)):
        if getattr(model, field) != value:
            raise ValueError(
                f"{field}: {str(not value).lower()} needs attention and an MLP in each block, and nothing else: "
                f"leave out {', '.join(MIXERS)}, attention_pattern and mlp_pattern"
            )
    if model.mixer and not model.causal:
        raise ValueError(f"{model.mixer_name} goes from token to token: causal: false has none")
    pattern = model.pattern
    if model.shared_blocks and len(set(pattern)) > 1:
        raise ValueError("shared_blocks needs blocks that are alike")
    for number, variant in enumerate(pattern):
        if not (variant.attends or variant.mixes or variant.feeds):
            raise ValueError(f"block {number} has no attention, nothing else that mixes tokens, and no MLP")


def _check_altup(model: TransformerSpec) -> None:
    if model.altup is None:
        return
    _check_needs(
        model,
        "altup",
        norm_placement="both",
        parallel=False,
        shared_blocks=False,
        layer_scale=False,
        residual_scale=None,
        residual_dropout=0.0,
        mixed_dropout=None,
        experts=None,
        **dict.fromkeys(MIXERS),
        attention_pattern=(),
        mlp_pattern=(),
    )
    if model.mlp != "gated" and any(variant.sparse for variant in model.pattern):
        raise ValueError(f"altup.sparse_pattern is of a gate: it needs mlp 'gated', not {model.mlp!r}")


def _check_global_heads(model: TransformerSpec) -> None:
    if (window := model.window) is None:
        return
    named = ("global_head_size", "global_kv_heads", "global_shared_values")
    own = next((name for name in named if getattr(window, name)), None)
    if own is None:
        return
    _check_needs(model, f"window.{own}", fused_qkv=False, latent=None, disentangled=None, attention_gate=False)
    if model.heads % model.of_all_keys.key_heads:
        raise ValueError(f"window.global_kv_heads {window.global_kv_heads} does not divide heads {model.heads}")
    if model.positions == "rotary" and (
        model.of_all_keys.rotated % 2 or model.of_all_keys.rotated > model.of_all_keys.head_features
    ):
        raise ValueError(f"window.global_head_size {window.global_head_size} must be even, for rotary positions")


def _check_shared_keys(model: TransformerSpec) -> None:
    if (shared := model.shared_kv_layers) is None:
        return
    if shared >= model.layers:
        raise ValueError(f"shared_kv_layers {shared} leaves none of {model.layers} blocks that has keys of its own")
    _check_needs(
        model,
        "shared_kv_layers",
        fused_qkv=False,
        latent=None,
        disentangled=None,
        shared_blocks=False,
        **dict.fromkeys(MIXERS),
        attention_pattern=(),
    )
    pattern = model.pattern
    lent = {variant.keys for variant in pattern if variant.lends}
    for number, variant in enumerate(pattern):
        if variant.borrows and variant.keys not in lent:
            raise ValueError(
                f"shared_kv_layers {shared}: before the last {shared} there is no block of the kind of block "
                f"{number}, whose keys and values that could have"
            )


def _check_needs(model: TransformerSpec, name: str, **needs: Any) -> None:
    """Raise ValueError unless the fields have the values that the field of this name needs beside it."""
    for field, value in needs.items():
        if getattr(model, field) != value:
            text = json.dumps(value).replace('"', "'")  # as in a model file
            raise ValueError(f"{name} needs {field}: {text}")


def allowed(model: TransformerSpec, name: str, shape: BatchShape) -> Allowed:
    """See `Architecture.allowed`: what is divided has divisors, and what has a place in another is no larger."""
    if name == "past":
        most = model.context - (shape.seq or 1)
        return Allowed(range(1, most + 1), f"the context has {model.context:,} tokens")
    if name == "seq" and model.positions == "learned":
        return Allowed(range(1, model.context + 1), f"the learned position table has {model.context:,} entries")
    if name == "context":
        most = LARGEST_SIZE if model.position_rows is None else model.position_rows
        limit = "" if model.position_rows is None else f"the position table has {most:,} rows"
        return Allowed(range(int(shape.seq or 1), most + 1), limit)
    if name == "position_rows":
        return Allowed(range(model.context, LARGEST_SIZE + 1))
    if name in ("width", "heads", "kv_heads"):
        return _allowed_split(model, name)
    if name in ("head_size", "rotary.size"):
        return _allowed_of_a_head(model, name)
    if name.startswith("state_space.") and model.state_space is not None:
        return _allowed_of_a_state_space(model, model.state_space, name)
    if name in ("gated_delta.heads", "gated_delta.key_heads") and model.gated_delta is not None:
        keys = model.gated_delta.grouped if model.gated_delta.key_heads else 1
        if name == "gated_delta.heads":
            return Allowed(_multiples(keys), note=f"gated_delta.heads in steps of {keys}" if keys > 1 else "")
        limit = f"key heads divide the {model.gated_delta.heads} heads"
        return Allowed(fitting_divisors(model, name, model.gated_delta.heads), limit, "key heads divide the heads")
    return _allowed_of_experts(model, name) if name.startswith("experts.") else Allowed()


def _allowed_of_a_state_space(model: TransformerSpec, inner: StateSpace, name: str) -> Allowed:
    if inner.kind == "mamba" or name not in ("state_space.width", "state_space.head_size", "state_space.groups"):
        return Allowed()
    if name == "state_space.width":
        step = inner.head_features * inner.grouped
        return Allowed(_multiples(step), note=f"state_space.width in steps of {step}, by heads and their groups")
    if name == "state_space.head_size":
        limit = f"heads, in {inner.grouped} groups, divide the {inner.width:,} features of the state space"
        return Allowed(fitting_divisors(model, name, inner.width), limit, "heads divide the state space")
    limit = f"groups divide the {inner.heads:,} heads of the state space"
    return Allowed(fitting_divisors(model, name, inner.heads), limit, "groups divide heads")


def _allowed_split(model: TransformerSpec, name: str) -> Allowed:
    whole_turned = model.positions == "rotary" and model.value("rotary.size") is None
    if name == "width" and model.head_size is None:
        step = model.heads * (2 if whole_turned else 1)
        return Allowed(
            _multiples(step, model.heads * _least_head(model)),
            note=(f"width in steps of {step}, so that {model.heads} heads divide it"),
        )
    if name == "heads" and model.head_size is None:
        limit = f"heads divide the width {model.width:,}"
        return Allowed(fitting_divisors(model, name, model.width), limit, "heads divide the width")
    if name == "heads":
        step = model.key_heads if model.kv_heads else 1
        return Allowed(_multiples(step), note=f"heads in steps of {step}" if step > 1 else "")
    if name == "kv_heads":
        limit = f"kv_heads divide the {model.heads} heads"
        return Allowed(fitting_divisors(model, name, model.heads), limit, "kv_heads divide the heads")
    return Allowed()


def _allowed_of_a_head(model: TransformerSpec, name: str) -> Allowed:
    if name == "rotary.size":
        most = model.head_features - (model.latent is not None)
        return Allowed(range(2, most + 1, 2), f"a head has {model.head_features} features", "rotary.size is even")
    if model.positions == "rotary" and model.value("rotary.size") is None:
        return Allowed(_multiples(2), note="head_size is even, for rotary positions")
    return Allowed(_multiples(1, _least_head(model)))


def _least_head(model: TransformerSpec) -> int:
    """The fewest features of a head that hold those that rotary positions turn."""
    return 1 if model.value("rotary.size") is None else model.rotated + (model.latent is not None)


def _allowed_of_experts(model: TransformerSpec, name: str) -> Allowed:
    from fractions import Fraction

    experts = Experts(count=2) if model.experts is None else model.experts
    k, groups, saved = experts.per_token, experts.groups or 1, experts.chosen_groups or 1
    busiest = Fraction(str(experts.imbalance))
    if name == "experts.count":
        each = max(ceil(Fraction(k, saved)), 2 if experts.choice_bias else 1)
        note = f"experts.count in steps of {groups}, which its groups divide" if groups > 1 else ""
        return Allowed(_multiples(groups, max(groups * each, ceil(busiest * k))), note=note)
    if name == "experts.per_token" and model.experts is not None:
        most = min(saved * (experts.count // groups), floor(experts.count / busiest))
        return Allowed(range(1, most + 1), f"a token chooses at most {most:,} of {experts.count:,} experts")
    return Allowed()


def _multiples(step: int, least: int = 1) -> range:
    """Multiples of a step, from a least value on."""
    return range(ceil_div(least, step) * step, LARGEST_SIZE + 1, step)
