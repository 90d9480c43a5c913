"""No field of an architecture or of a layer is without effect on what NumPy computes, but for those that say so."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import pytest

from costmodel import CNN, MLP, CostModelError, EncoderDecoder, Transformer, VisionTransformer, predict
from costmodel.architectures.base import Architecture
from costmodel.documents.description import Description
from costmodel.errors import SettingError, ShapeError, SpecError, UnknownNameError
from costmodel.layers import load_all
from costmodel.roofline.execution import Execution, execute
from costmodel.training.fields import field_types

WITHOUT_EFFECT = {
    "name": "a title",
    "notes": "a comment",
    "composition": "how the package transformers writes it, which NumPy refuses to run",
}

SMALL: dict[type[Architecture], dict[str, Any]] = {
    MLP: {"sizes": [4, 6, 3]},
    Transformer: {"vocab": 11, "context": 6, "layers": 2, "width": 8, "heads": 4},
    VisionTransformer: {"input": (2, 6, 6), "patch": 2, "layers": 2, "width": 8, "heads": 4, "classes": 5},
    EncoderDecoder: {"vocab": 11, "context": 6, "layers": 2, "width": 8, "heads": 4},
    CNN: {"input": (4, 6, 6), "blocks": [{"conv": {"channels": 5, "kernel": 3}}]},
}
EXPERTS = {"experts": 4, "experts.weights": "sigmoid"}
GROUPS = {**EXPERTS, "experts": 8, "experts.per_token": 3, "experts.groups": 4, "experts.chosen_groups": 2}
LATENT = {"latent": 3, "positions": "rotary", "rotary": 2, "head_size": 4, "fused_qkv": False}
ROTARY = {"positions": "rotary", "head_size": 6}
POOLER = {"classes": 3, "pooler": "relu"}
INNER = {"width": 8, "head_size": 2, "state": 3}
SOUND = {"mel_bins": 3, "places": 4}
TOKENS = {"classes": 3, "classes.told_by": "each"}
NEEDS: dict[tuple[type[Architecture], str], dict[str, Any]] = {
    (MLP, "norm_affine"): {"norm": "layernorm"},
    (Transformer, "window.pattern"): {"window": 2},
    **{
        (Transformer, f"window.global_{field}"): {"window": 2, "window.pattern": (True, False), "fused_qkv": False}
        for field in ("head_size", "kv_heads", "shared_values")
    },
    (Transformer, "experts.beside"): {"experts": 4, "norm_placement": "both"},
    (Transformer, "layer_inputs"): {},
    (Transformer, "relative_buckets"): {"positions": "relative"},
    (Transformer, "relative_shared"): {"positions": "relative"},
    (Transformer, "embedding_factored"): {"embedding_width": 5},
    (Transformer, "head.transform_bias"): {"head.transform": "tanh"},
    (Transformer, "classes"): {},
    (Transformer, "classes.transform"): TOKENS,
    (Transformer, "classes.transform_bias"): {**TOKENS, "classes.transform": "tanh"},
    (Transformer, "classes.transform_norm"): {**TOKENS, "classes.transform": "tanh"},
    (Transformer, "key_bias"): {"fused_qkv": False},
    (Transformer, "shared_norm"): {"parallel": True},
    (Transformer, "experts"): {},
    (Transformer, "experts.shared_gate"): {**EXPERTS, "experts.shared_width": 3},
    (Transformer, "experts.groups"): GROUPS,
    (Transformer, "experts.chosen_groups"): GROUPS,
    (Transformer, "experts.choice_bias"): {
        **EXPERTS,
        "experts.per_token": 1,
        "experts.groups": 2,
        "experts.chosen_groups": 1,
    },
    (Transformer, "experts.choice_stored"): {**EXPERTS, "experts.choice_bias": True},
    (Transformer, "pooler"): {"classes": 3},
    (Transformer, "disentangled.trimmed"): {
        "disentangled": 6,
        "causal": False,
        "fused_qkv": False,
        "disentangled.shared": False,
    },
    (VisionTransformer, "distilled"): {"tokens": 2},
    (VisionTransformer, "pooler"): {},
    (VisionTransformer, "last_norm"): {"classes": None},
    (Transformer, "attention_gate"): {"fused_qkv": False},
    (Transformer, "state_space"): {},
    (Transformer, "indexer"): LATENT | {"latent.query_width": 3},
    (Transformer, "altup"): {"norm_placement": "both", "mlp": "gated"},
    (Transformer, "shared_kv_layers"): {"fused_qkv": False, "layers": 4},
    (Transformer, "gated_delta"): {},
    (Transformer, "state_space.kind"): {"state_space": 64},
    (Transformer, "state_space.rank"): {"state_space": 4, "state_space.kind": "mamba"},
    (EncoderDecoder, "sound"): {"positions": "learned"},
    (EncoderDecoder, "experts"): {},
    **{
        (EncoderDecoder, f"window.{field}"): {"window": 2, "window.pattern": (True, False)}
        for field in ("global_head_size", "global_kv_heads", "global_shared_values")
    },
    (EncoderDecoder, "window.pattern"): {"window": 2},
    (EncoderDecoder, "context"): {"positions": "learned"},
    (EncoderDecoder, "position_rows"): {"positions": "learned"},
    (EncoderDecoder, "position_table"): {"positions": "learned"},
    (EncoderDecoder, "head.transform_bias"): {"head.transform": "tanh"},
    (EncoderDecoder, "key_bias"): {"qkv_bias": True},
}
"""What a field needs beside it."""
NEEDS |= {
    (EncoderDecoder, field): fields
    for (of, field), fields in NEEDS.items()
    if of is Transformer and field.startswith("experts.")
}
PARTS: dict[str, dict[str, Any]] = {
    "rotary": ROTARY,
    "latent": LATENT,
    "experts": EXPERTS,
    "pooler": POOLER,
    "classes": {"classes": 3},
    "sound": {"sound": SOUND, "positions": "learned"},
    "state_space": {"state_space": INNER},
    "gated_delta": {"gated_delta": {"heads": 4, "key_size": 2, "value_size": 3, "chunk": 3}},
    "disentangled": {"disentangled": 3, "causal": False, "fused_qkv": False},
    "short_convolution": {"short_convolution": 3},
    "layer_inputs": {"layer_inputs": 3},
    "span_convolution": {"causal": False, "fused_qkv": False},
    "indexer": LATENT | {"latent.query_width": 3, "indexer": {"chosen": 2, "heads": 2, "head_size": 4}},
    "altup": {"altup": {"streams": 2, "laurel_rank": 2, "layer_width": 3}, "norm_placement": "both", "mlp": "gated"},
    "shared_kv_layers": {"fused_qkv": False},
}
"""What the fields of a part need beside them, unless they need something else."""
OTHER = {
    (MLP, "sizes"): [4, 7, 3],
    (CNN, "blocks"): ["relu"],
    (CNN, "input"): (4, 7, 6),
    (Transformer, "vocab"): 12,
    (Transformer, "context"): 7,
    (Transformer, "position_rows"): 7,
    (Transformer, "position_table"): "constant",  # stored: the same numbers, which training alone tells apart
    (Transformer, "state_space"): INNER,
    (Transformer, "indexer"): {"chosen": 2, "heads": 2, "head_size": 4},
    (EncoderDecoder, "vocab"): 12,
    (EncoderDecoder, "context"): 7,
    (EncoderDecoder, "position_rows"): 7,
    (EncoderDecoder, "position_table"): "constant",
    (EncoderDecoder, "sound"): SOUND,
    (EncoderDecoder, "head"): {"logit_scale": 0.3},
}
"""Values that are not found by type."""
NEVER = {(VisionTransformer, "pooler.spare")}
"""Fields of a shared part that an architecture refuses whatever else it has."""
FIELDS = [(of, field) for of in SMALL for field in of.field_names() if field.partition(".")[0] not in WITHOUT_EFFECT]
FIELDS = [pair for pair in FIELDS if pair not in NEVER]
NOT_RUN = ("state_space", "gated_delta", "short_convolution", "attention_pool", "disentangled", "altup")
NOT_RUN += ("shared_kv_layers", "boxes", "token_dropout", "indexer", "layer_inputs", "block_scale", "span_convolution")
"""Parts that NumPy does not run: their fields have an effect on costs."""


def needed(of: type[Architecture], field: str) -> dict[str, Any]:
    """Fields of a small model in which `field` may be set."""
    return {**SMALL[of], **NEEDS.get((of, field), PARTS.get(field.partition(".")[0], {}))}


def others(wanted: Any) -> Iterator[Any]:
    """Some values of a field's type."""
    origin = get_origin(wanted)
    if origin is Literal:
        yield from get_args(wanted)
    elif origin in (Union, UnionType):
        for option in get_args(wanted):
            yield from others(option)
    elif hasattr(wanted, "__metadata__"):
        yield from others(get_args(wanted)[0])
    elif isinstance(wanted, type) and issubclass(wanted, Description):
        yield from others(wanted.model_fields[wanted.FIRST].annotation) if wanted.FIRST else (True, False)
    elif origin is tuple:
        yield from ((True, False), (1, 6, 6), (0, 2, 3, 1), (0, 2, 1), (4, 49), (49, 4), (2, 2))
    else:
        yield from {bool: (True, False), int: (2, 3, 1, 4), float: (0.3, 1.7), str: ("tanh",)}.get(wanted, ())


def ran(model: Architecture, **given: Any) -> Execution:
    """In training, where dropout acts, though without a loss."""
    sizes = {"seq": 4} if "seq" in model.BATCH_SIZES else {}
    return execute(model, batch=2, mode="train", loss=None, update=False, **sizes, **given)


def differ(first: Execution, model: Architecture) -> bool:
    """Whether `model` has other weights, reads other inputs, or makes other numbers of the same ones."""
    try:
        second = ran(model, weights=first.weights, inputs=first.inputs)
    except (ShapeError, UnknownNameError):
        return True
    except SettingError as error:
        return "is not run in NumPy" in str(error)
    if first.weights.keys() != second.weights.keys() or len(first.outputs) != len(second.outputs):
        return True
    return any(
        x.shape != y.shape or not np.allclose(x, y, rtol=1e-4, atol=1e-5)
        for x, y in zip(first.outputs, second.outputs, strict=True)
    )


def costs(model: Architecture) -> tuple[int, ...]:
    sizes = {"seq": 4} if "seq" in model.BATCH_SIZES else {}
    p = predict(model, batch=2, loss=None, attention_pairs="visible" if model.HAS_ATTENTION else "full", **sizes)
    return p.params, p.flops.total, p.pointwise_flops.total, p.memory.activations


@pytest.mark.slow
@pytest.mark.parametrize(("of", "field"), [(of, name) for of, name in FIELDS if name.partition(".")[0] in NOT_RUN])
def test_every_field_of_a_part_that_is_not_run_has_an_effect_on_costs(of: type[Architecture], field: str) -> None:
    fields, wanted = needed(of, field), of.field_named(field).annotation
    first = costs(of.of(fields))
    for value in [OTHER[of, field]] if (of, field) in OTHER else others(wanted):
        try:
            model = of.of({**fields, field: value})
        except SpecError:
            continue
        if costs(model) != first:
            with pytest.raises(CostModelError, match=r"is not run in NumPy, and \w*Transformer has one"):
                ran(model)
            return
    raise AssertionError(f"{field} changes nothing")


@pytest.mark.slow
@pytest.mark.parametrize(("of", "field"), FIELDS, ids=lambda value: getattr(value, "__name__", value))
def test_every_field_of_an_architecture_has_an_effect(of: type[Architecture], field: str) -> None:
    """Every choice by name has one; of sizes and factors some value does, as others may say what the default says."""
    if field.partition(".")[0] in NOT_RUN:
        return
    fields, wanted = needed(of, field), of.field_named(field).annotation
    small = of.of(fields)
    first, effects = ran(small), []
    for value in [OTHER[of, field]] if (of, field) in OTHER else others(wanted):
        try:
            model = of.of({**fields, field: value})
        except SpecError:
            continue
        if model.value(field) != small.value(field):
            effects.append(differ(first, model))
        if effects and effects[-1] and get_origin(wanted) is not Literal:
            return
    assert effects
    assert all(effects)


ITEMS = [(name, f.name) for name, kind in load_all().items() if kind.in_lists for f in dataclasses.fields(kind)]
ITEMS.remove(("slice", "alone"))  # it says what else takes slices, which has no effect on the numbers
IMAGE = (4, 7, 7)
AHEAD = ([], [{"permute": {"axes": [0, 2, 3, 1]}}], [{"reshape": {"shape": [4, 49]}}])
"""What turns an image into the shapes that layers take."""


BESIDE = {
    ("conv_transpose", "output_padding"): {"stride": 3},
    ("layernorm", "heads"): {"bias": False},
    ("pad", "mode"): {"sides": 1},
    ("upsample", "mode"): {"scale": 2},
}


@pytest.mark.parametrize(("name", "field"), ITEMS)
def test_every_field_of_a_layer_has_an_effect(name: str, field: str) -> None:
    kind = load_all()[name]
    types = {f: wanted for f, (wanted, _) in field_types(kind).items()}
    needs = {f.name: next(others(types[f.name])) for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING}
    left_out = [] if field in needs else [needs]
    for ahead in AHEAD:
        first = None
        for fields in (*left_out, *({**needs, field: value} for value in others(types[field]))):
            fields |= BESIDE.get((name, field), {})
            try:
                model = CNN(input=IMAGE, blocks=[*ahead, {name: fields}])
                if first is not None and differ(first, model):
                    return
                first = first or ran(model)
            except CostModelError as error:  # a value that does not fit, or that is refused by name
                if f"kind {name} has no NumPy kernel of" in str(error):
                    return
    raise AssertionError(f"{name}.{field} changes nothing")
