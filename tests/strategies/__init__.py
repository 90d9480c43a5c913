"""Architectures and questions drawn at random, small enough to think about."""

from typing import Any

from hypothesis import strategies as st

from costmodel.architectures.activations import NAMES
from costmodel.architectures.mlp import MLP
from costmodel.architectures.transformer import Transformer

sizes = st.integers(1, 9)
TABLES = ("trained", "stored", "constant")
probabilities = st.sampled_from([0.0, 0.1])


@st.composite
def mlps(draw: st.DrawFn) -> MLP:
    return MLP(
        sizes=draw(st.lists(sizes, min_size=2, max_size=6)),
        activation=draw(st.sampled_from(NAMES)),
        bias=draw(st.booleans()),
        norm=draw(st.sampled_from(["none", "batchnorm", "layernorm", "rmsnorm"])),
        dropout=draw(probabilities),
    )


@st.composite
def transformers(draw: st.DrawFn) -> Transformer:
    key_heads, group, pairs = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    heads, head_size = key_heads * group, 2 * pairs
    positions = draw(st.sampled_from(["learned", "rotary", "alibi", "none"]))
    parallel = draw(st.booleans())
    own_head_size = draw(st.booleans())
    head = draw(st.booleans())
    window = draw(st.none() | sizes)
    factors = st.sampled_from([None, 1.0, 0.5])
    pattern = st.lists(st.booleans(), max_size=3)
    norm = draw(st.sampled_from(["layernorm", "rmsnorm"]))
    fields: dict[str, Any] = {
        "vocab": draw(sizes),
        "context": 16,
        "layers": draw(st.integers(1, 5)),
        "width": draw(sizes) if own_head_size else heads * head_size,
        "heads": heads,
        "kv_heads": draw(st.sampled_from([None, key_heads])),
        "head_size": head_size if own_head_size else None,
        "causal": draw(st.booleans()),
        "window": window,
        "window.pattern": tuple(draw(pattern)) if window else (),
        "positions": positions,
        "position_rows": draw(st.sampled_from([None, 18])) if positions == "learned" else None,
        "position_table": draw(st.sampled_from(TABLES)) if positions == "learned" else "trained",
        "rotary.pattern": tuple(draw(pattern)) if positions == "rotary" else (),
        "query_key_norm": draw(st.sampled_from([None, "head", "width", *["heads"] * (norm == "layernorm")])),
        "embedding_width": draw(st.none() | sizes),
        "head.logit_scale": draw(factors) if head else None,
        "head.logit_cap": draw(factors) if head else None,
        "rotary.size": draw(st.sampled_from([None, 2])) if positions == "rotary" else None,
        "parallel": parallel,
        "shared_norm": parallel and draw(st.booleans()),
        "norm_placement": "pre" if parallel else draw(st.sampled_from(["pre", "post", "output", "both"])),
        "norm": norm,
        "mlp": draw(st.sampled_from(["plain", "gated", "clamped"])),
        "mlp_width": draw(st.none() | sizes),
        "activation": draw(st.sampled_from(NAMES)),
        "head": head,
        "tied": draw(st.booleans()),
        "head.bias": head and draw(st.booleans()),
        "head.spare_bias": head and draw(st.booleans()),
        "final_norm": draw(st.none() | st.booleans()),
    }
    if draw(st.booleans()):
        experts = draw(st.integers(1, 4))
        fields |= {
            "experts": experts,
            "experts.per_token": draw(st.integers(1, experts)),
            "experts.width": draw(st.none() | sizes),
            "experts.pattern": tuple(draw(pattern)),
            "experts.weights": draw(st.sampled_from(["chosen", "all"])),
            "experts.shared_width": draw(st.none() | sizes),
            "experts.router_bias": draw(st.booleans()),
            "experts.capacity_factor": draw(st.sampled_from([None, None, 0.5, 1.25])),
        }
        if draw(st.booleans()):
            fields |= {"experts.pattern": (), "experts.dense_layers": draw(st.integers(1, 6)), "experts.shares": True}
            fields |= {"experts.weights": "sigmoid", "experts.scale": draw(factors)}
            fields |= {"experts.choice_bias": experts > 1, "experts.groups": 1, "experts.chosen_groups": 1}
            fields["experts.choice_stored"] = experts > 1 and draw(st.booleans())
        fields["experts.shared_gate"] = fields["experts.shared_width"] is not None and draw(st.booleans())
    if draw(st.booleans()):
        classes = draw(st.none() | sizes)
        fields |= {"segments": draw(st.none() | sizes), "classes": classes}
        fields["head.transform"] = draw(st.none() | st.sampled_from(NAMES)) if head else None
        fields["pooler"] = draw(st.none() | st.sampled_from(NAMES)) if classes or not head else None
        fields["pooler.dropout"] = draw(probabilities) if fields["pooler"] else 0.0
        fields["classes.dropout"] = draw(probabilities) if classes else 0.0
    for factor in ("qkv_clip", "score_scale", "embedding_scale", "residual_scale"):
        fields[factor] = draw(factors)
    for flag in ("norm_affine", "fused_qkv", "qkv_bias", "attention_bias", "mlp_bias", "norm_bias", "embedding_norm"):
        fields[flag] = draw(st.booleans())
    if positions == "rotary" and pairs > 1 and draw(st.booleans()):
        none = dict.fromkeys(("kv_heads", "query_key_norm", "qkv_clip"))
        narrow = {"latent.width": draw(sizes), "latent.query_width": draw(st.none() | sizes)}
        fields |= {"rotary.size": 2, "fused_qkv": False, "key_bias": True, **none, **narrow}
    for dropout in ("embedding_dropout", "attention_dropout", "residual_dropout"):
        fields[dropout] = draw(probabilities)
    return Transformer.of(fields)


@st.composite
def mixers(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of what mixes tokens beside attention, and of which blocks have what."""
    groups, each, size = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 4))
    mamba2 = {"head_size": size, "groups": groups, "chunk": draw(st.integers(1, 9))}
    mamba = {"kind": "mamba", "rank": draw(st.none() | sizes)}
    inner = {"width": groups * each * size, "state": draw(sizes), "convolution": draw(st.integers(1, 4))}
    inner |= draw(st.sampled_from([mamba2, mamba]))
    short = {"size": draw(st.integers(1, 4)), "bias": draw(st.booleans())}
    delta = {"heads": groups * each, "key_heads": groups, "key_size": size, "chunk": draw(st.integers(1, 9))}
    delta |= {"value_size": draw(st.integers(1, 4)), "convolution": draw(st.integers(1, 4))}
    parts = [("state_space", inner), ("gated_delta", delta), ("short_convolution", short)]
    name, fields = draw(st.sampled_from(parts))
    pattern = tuple(draw(st.lists(st.booleans(), max_size=3)))
    fields |= {"pattern": pattern}
    plain = {
        "causal": True,
        "parallel": False,
        "shared_norm": False,
        "mlp_pattern": draw(st.sampled_from([(), (False,)])),
    }
    if True not in (pattern or (True,)):
        plain["mlp_pattern"] = ()
    return plain | {f"{name}.{field}": value for field, value in fields.items()}


@st.composite
def streams(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of several residual streams, of widths of MLPs, and of keys and values that blocks have of others."""
    alone = {"shared_blocks": False, "latent": None, "experts": None}
    fields: dict[str, Any] = alone | {"value_norm": draw(st.booleans()), "fused_qkv": False}
    if draw(st.booleans()):
        fields |= {"mlp_width": None, "mlp_widths": tuple(draw(st.lists(sizes, max_size=3)))}
    if draw(st.booleans()):
        names = ("laurel_rank", "layer_width")
        fields |= {"altup.streams": draw(st.integers(2, 4)), **{f"altup.{name}": draw(sizes) for name in names}}
        fields |= {f"altup.{name}": draw(st.booleans()) for name in ("output_scale", "clipped")}
        fields |= {"altup.layer_vocab": draw(st.none() | sizes)}
        fields |= {"altup.sparse_pattern": tuple(draw(st.lists(st.booleans(), max_size=3)))}
        fields |= {"norm_placement": "both", "parallel": False, "shared_norm": False, "mlp": "gated"}
        fields |= {"residual_scale": None, "residual_dropout": 0.0}
    return fields


def streaming(model: Transformer, fields: dict[str, Any], shared: int) -> Transformer:
    """The model with those fields, its last blocks with keys and values of others where it has so many."""
    alike = model.model_copy(update={"window": None, "rotary": None})  # blocks of one kind have keys of one another
    return alike.with_fields(fields | {"shared_kv_layers": shared if 0 < shared < model.layers else None})


@st.composite
def questions(draw: st.DrawFn) -> tuple[MLP | Transformer, dict[str, Any]]:
    """A model, and settings that fit it."""
    model = draw(mlps() | transformers())
    kind = draw(st.sampled_from(["plain", "mixed", "streaming"])) if isinstance(model, Transformer) else ""
    mixed = kind == "mixed"
    if mixed:
        model = model.with_fields(draw(mixers()))
    if kind == "streaming":
        model = streaming(model, draw(streams()), draw(st.integers(0, 3)))
    settings: dict[str, Any] = {
        "batch": draw(sizes),
        "mode": draw(st.sampled_from(["train", "inference"])),
        "device": draw(st.sampled_from(["gpu", "cpu"])),
        "flop_rule": draw(st.sampled_from(["pytorch", "arithmetic"])),
    }
    if isinstance(model, Transformer):
        settings["seq"] = draw(st.integers(1, model.context))
        settings["attention"] = draw(st.sampled_from(["eager", "flash", "efficient"]))
        if settings["attention"] == "eager":
            model = model.model_copy(update={"sinks": draw(st.booleans())})
        if settings["attention"] != "flash" and model.latent is not None:
            model = model.with_fields({"latent.value_head_size": draw(st.none() | sizes)})
        settings["attention_pairs"] = draw(st.sampled_from(["full", "visible"]))
        checkpoints = ["none", "block", "sqrt", "selective", 1, model.layers, ("mlp",)]
        if settings["mode"] == "train":
            if model.shared_kv_layers is not None:
                checkpoints = ["none", "selective"]
            settings["checkpoint"] = draw(st.sampled_from(checkpoints[:3] if mixed else checkpoints))
    settings["precision"] = draw(st.sampled_from(["fp32", "bf16", "bf16-autocast", "fp16-master"]))
    if settings["mode"] == "train":
        settings["accumulate"] = draw(st.sampled_from([1, 1, 3]))
        settings["loss"] = draw(st.sampled_from(["default", "mean_squared_error", None]))
        settings["optimizer"] = draw(st.sampled_from(["adamw", "sgd", "adafactor", "muon"]))
    return model, settings
