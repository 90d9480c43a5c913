"""What one rank of a layout has of a transformer, at local sizes, and which models no layout is worked out for."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from costmodel.architectures.base import nearest_divisor
from costmodel.architectures.stages import check_stages
from costmodel.errors import SettingError
from costmodel.symbolic.sizes import ceil_div, exact_div, peek
from costmodel.training.layout import VOCAB_MULTIPLE, Layout
from costmodel.training.schedules import SCHEDULES

if TYPE_CHECKING:
    from costmodel.architectures.spec import TransformerSpec

Model = TypeVar("Model", bound="TransformerSpec")

SPLIT = {
    *("name", "notes", "composition", "vocab", "context", "layers", "width", "heads", "kv_heads", "head_size"),
    *("causal", "positions", "rotary", "fused_qkv", "qkv_bias", "attention_bias", "mlp", "mlp_width", "mlp_bias"),
    *("mlp_dropout", "activation", "norm", "norm_bias", "embedding_dropout", "attention_dropout", "residual_dropout"),
}
"""Fields of a model that may be at any value where its layers are split over ranks."""

PLANNED = {
    *("tied", "window", "relative_buckets", "relative_shared", "position_rows", "position_table", "key_bias"),
    *("qkv_clip", "query_key_norm", "value_norm", "score_scale", "score_cap", "sinks", "attention_gate"),
    *("mlp_widths", "mlp_output_bias", "block_scale", "norm_affine", "norm_placement", "parallel", "shared_norm"),
    *("first_norm", "embedding_norm", "final_norm", "token_dropout", "embedding_scale", "residual_scale"),
    *("layer_scale", "mixed_dropout", "final_dropout", "head", "spare_weights"),
}
"""Those that may be so where they are split by a plan of DTensor's."""
WITHOUT_SP = ("segments", "boxes", "embedding_width", "embedding_factored", "pooler", "classes", "experts", "latent")
"""Of those what every rank has whole, and all tokens of."""

MEGATRON = {
    *(*SPLIT, "tied", "window", "position_rows", "position_table", "query_key_norm", "score_scale", "score_cap"),
    *("mlp_output_bias", "norm_affine", "norm_placement", "first_norm", "embedding_norm", "final_norm"),
    *("embedding_scale", "residual_scale", "final_dropout", "head", "latent", "experts"),
}
"""Those that may be so where layers are Megatron's."""

WHOLE = ("altup", "layer_inputs", "shared_blocks", "shared_kv_layers", "disentangled", "indexer")
"""Fields of a model whose blocks cannot be cut into stages: a stage would read more than what the one before made."""
BY_TOKEN = {
    *(*SPLIT, "window", "position_rows", "position_table", "latent", "key_bias", "qkv_clip", "query_key_norm"),
    *("value_norm", "score_scale", "score_cap", "inner_norm", "attention_gate", "mlp_widths", "mlp_output_bias"),
    *("experts", "norm_affine", "norm_placement", "parallel", "shared_norm", "embedding_norm", "final_norm"),
    *("embedding_width", "embedding_factored", "embedding_scale", "residual_scale", "layer_scale", "mixed_dropout"),
    *("final_dropout", "head", "tied", "segments"),
}
"""Fields of a model that may be at any value where its sequences are split over ranks: of each token by itself."""


def local(model: Model, layout: Layout) -> Model:
    """The heads and hidden features that one rank of `layout.tp` has; of the vocabulary `ranks.of_rows` says."""
    _check_stages(model, layout)
    _check_context(model, layout)
    _check_experts(model, layout)
    degree = layout.tp
    if layout.megatron:
        return _split(_fused(model, degree), degree, layout)
    return _split(model, degree, layout)


@cache
def _defaults(kind: type[TransformerSpec]) -> dict[str, Any]:
    """What fields of a model are unless they are given."""
    return {name: field.get_default() for name, field in kind.model_fields.items()}


def _chosen(
    model: TransformerSpec, names: Iterable[str] | None = None, *, beside: Container[str] = ()
) -> Iterator[str]:
    """Of these fields of a model, or of all beside some, those that are not at their defaults."""
    plain = _defaults(type(model))
    for name in plain if names is None else names:
        if name not in beside and getattr(model, name) != plain[name]:
            yield name


def _fused(model: Model, degree: int) -> Model:
    """As Megatron-Core has it: query, key and value made at once, the vocabulary filled up."""
    for name in _chosen(model, beside=MEGATRON):
        raise SettingError(f"runtime='megatron' is not worked out for {name} of {model.title}: leave it out")
    if model.positions == "relative":
        raise SettingError(f"runtime='megatron' is not worked out for positions 'relative' of {model.title}")
    rows = VOCAB_MULTIPLE * degree
    joint = {} if model.latent is not None else {"fused_qkv": True}
    return model.with_values({**joint, "vocab": ceil_div(model.vocab, rows) * rows})


def _split(model: Model, degree: int, layout: Layout) -> Model:
    if degree == 1 and layout.expert_tp == 1:
        return model
    for name in () if layout.megatron else _chosen(model, beside={*SPLIT, *PLANNED, *WITHOUT_SP}):
        raise SettingError(f"tp={degree} is not worked out for {name} of {model.title}: leave it out")
    for name in _chosen(model, WITHOUT_SP) if layout.sp and not layout.megatron else ():
        raise SettingError(f"sp=True is not worked out for {name} of {model.title}: leave it out")
    if layout.sp and model.head is not None and model.head.transform is not None:
        raise SettingError(f"sp=True is not worked out for head.transform of {model.title}: leave it out")
    capped = model.experts is not None and model.experts.capacity_factor is not None
    if capped and layout.ep == 1 and not layout.megatron:
        raise SettingError(f"tp={degree} is not worked out for experts.capacity_factor of {model.title}: give ep")
    if model.experts is not None and (model.mlp_bias if model.experts.bias is None else model.experts.bias):
        raise SettingError(f"tp={degree} is not worked out for biases of experts, of {model.title}: leave it out")
    if model.query_key_norm in ("width", "heads"):
        raise SettingError(
            f"tp={degree} is not worked out for query_key_norm {model.query_key_norm!r} of {model.title}, whose "
            "weights differ by head: leave it out"
        )
    if model.gathered_keys(layout) is not None:
        return _of_gathered_keys(model, degree, layout.expert_tp)
    return model.with_values({**_shares(model, degree, layout.expert_tp), "head_size": model.head_features})


def _of_gathered_keys(model: Model, degree: int, of_experts: int) -> Model:
    """With fewer key heads than ranks: rows of the joint projection are split evenly, and what they make gathered.

    Of that a rank has its query heads and their one key head.
    """
    rows = (model.heads + 2 * model.key_heads) * model.head_features
    if degree % model.key_heads or rows % degree:
        raise SettingError(
            f"tp={degree} is no multiple of kv_heads {model.key_heads} of {model.title}, or does not divide the "
            f"{rows} rows of query, key and value: use tp={model.key_heads}"
        )
    spread = model.with_values({"kv_heads": degree, "head_size": model.head_features})
    return spread.with_values(_shares(spread, degree, of_experts))


def _shares(model: TransformerSpec, degree: int, of_experts: int) -> dict[str, Any]:
    """The sizes that so many ranks split, as one of them has them, and of experts so many.

    Raises SettingError where they do not divide.
    """
    hidden = {"mlp_widths": model.mlp_widths} if model.mlp_widths else {"mlp_width": model.hidden}
    grouped = {"kv_heads": model.key_heads} if model.latent is None else {}
    sizes: dict[str, Any] = {"heads": model.heads, **grouped, **hidden}
    if model.experts is not None and (model.experts.width is not None or of_experts != degree):
        sizes["experts.width"] = model.hidden if model.experts.width is None else model.experts.width
    if model.value("experts.shared_width") is not None:
        sizes["experts.shared_width"] = model.value("experts.shared_width")
    if model.window is not None and model.window.global_kv_heads is not None:
        sizes["window.global_kv_heads"] = model.window.global_kv_heads
    ranks = {name: of_experts if name == "experts.width" else degree for name in sizes}
    listed = {name: size if isinstance(size, tuple) else (size,) for name, size in sizes.items()}
    for name, values in listed.items():
        if value := next((value for value in values if value % ranks[name]), None):
            apart = name == "experts.width" and of_experts != degree
            common = math.gcd(*(peek(v) for n, values in listed.items() for v in values if ranks[n] == ranks[name]))
            legal, setting = nearest_divisor(common, ranks[name]), "etp" if apart else "tp"
            raise SettingError(
                f"{setting}={ranks[name]} does not divide {name} {value} of {model.title}: use {setting}={legal}"
            )
    return {
        name: tuple(exact_div(value, ranks[name]) for value in size)
        if isinstance(size, tuple)
        else exact_div(size, ranks[name])
        for name, size in sizes.items()
    }


def _check_stages(model: TransformerSpec, layout: Layout) -> None:
    """Raise SettingError if blocks cannot be cut into stages."""
    if layout.stages == 1:
        return
    check_stages(layout, model)
    for name in _chosen(model, WHOLE):
        raise SettingError(f"pp={layout.pp} is not worked out for {name} of {model.title}: leave it out")
    ends_in_bias = (model.head is not None and model.head.bias) or (
        model.classes is not None and model.classes.told_by != "first"
    )
    if ends_in_bias and SCHEDULES[layout.schedule].splits:  # a view, which is not detached and so holds its graph
        raise SettingError(
            f"schedule={layout.schedule!r} is not worked out for a head with a bias, or classes of every token, of "
            f"{model.title}: use '1f1b'"
        )
    if model.layer_scale and SCHEDULES[layout.schedule].splits:
        raise SettingError(
            f"schedule={layout.schedule!r} is not worked out for layer_scale of {model.title}: use '1f1b'"
        )
    if model.by_distance:
        raise SettingError(f"pp={layout.pp} is not worked out for biases by distance, of {model.title}: leave it out")


def _check_experts(model: TransformerSpec, layout: Layout) -> None:
    """Raise SettingError if experts cannot be split over ranks so."""
    if model.experts is not None and layout.megatron and layout.tp > 1:
        if layout.runtime == "deepspeed":
            raise SettingError(f"tp={layout.tp} of runtime='deepspeed' is not worked out for experts of {model.title}")
        if not layout.sp:
            raise SettingError(f"tp={layout.tp} of runtime='megatron' takes experts with sp alone: give sp=True")
    if layout.ep == 1 and layout.etp is None:
        return
    if model.experts is None:
        name = "etp" if layout.ep == 1 else "ep"
        raise SettingError(
            f"{name}={getattr(layout, name)} splits experts, of which {model.title} has none: leave it out"
        )
    experts = model.experts
    if experts.count % layout.ep:
        raise SettingError(
            f"ep={layout.ep} does not divide the {experts.count} experts of {model.title}: use ep="
            f"{max(n for n in range(1, peek(layout.ep)) if peek(experts.count) % n == 0)}"
        )
    if layout.shards <= experts.count or layout.megatron or layout.ep == 1:
        return
    ranks, hidden = layout.shards // layout.ep, model.hidden if experts.width is None else experts.width
    hidden //= layout.tp
    if hidden % ranks or model.width % ranks:
        near = nearest_divisor(math.gcd(peek(hidden), peek(model.width)), ranks) * peek(layout.ep)
        raise SettingError(
            f"{ranks} ranks (fsdp·cp/ep), with a part of each expert, do not divide width {model.width} or their width "
            f"{hidden} of {model.title}: use fsdp={near // math.gcd(near, peek(layout.cp))}"
        )


def _check_context(model: TransformerSpec, layout: Layout) -> None:
    """Raise SettingError if no rank of a sequence is worked out for this model."""
    cp, ring = layout.cp, layout.cp_kind != "ulysses"
    if cp == 1:
        return
    for name in _chosen(model, beside=BY_TOKEN):
        raise SettingError(f"cp={cp} is not worked out for {name} of {model.title}: leave it out")
    if model.positions not in ("rotary", "learned", "none"):
        raise SettingError(f"cp={cp} is not worked out for positions {model.positions!r}: leave it out")
    if model.latent is not None and not layout.megatron:
        raise SettingError(f"cp={cp} is not worked out for latent attention, of {model.title}: leave it out")
    if ring and model.window is not None:
        raise SettingError(f"cp_kind={layout.cp_kind!r} has no window, as {model.title} has: use cp_kind='ulysses'")
    if ring and layout.cp_balanced and not model.causal and not layout.megatron:
        raise SettingError(f"cp_balanced=True is for masks of a decoder, not for {model.title}: use cp_balanced=False")
    for name, heads in (("heads", model.heads), ("kv_heads", model.key_heads)):
        if heads % layout.heads:
            near = math.gcd(int(heads) // int(layout.tp), int(cp)) if heads % layout.tp == 0 else 1
            raise SettingError(
                f"cp={cp} on top of tp={layout.tp} does not divide {name} {heads} of {model.title}: use "
                f"cp={near}, or cp_kind='ring'"
            )
