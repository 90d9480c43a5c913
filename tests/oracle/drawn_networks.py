"""Blocks of convolutional networks as Hypothesis draws them: plain data, as model files hold it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from costmodel.architectures.activations import LAYERS

ACTIVATIONS = (*LAYERS, "identity")
small = st.integers(1, 5)
sides = st.one_of(small, st.lists(small, min_size=2, max_size=2))
rims = st.one_of(st.integers(0, 3), st.lists(st.integers(0, 3), min_size=2, max_size=2))


def layer(name: str, needed: dict[str, Any], **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    drawn = st.fixed_dictionaries(needed, optional=optional)
    return drawn.map(lambda f: {name: f})


groups = st.sampled_from([1, 2, 3, 4])
convolutions = st.one_of(
    layer(
        "conv",
        {"channels": st.sampled_from([4, 6, 12]), "kernel": sides},
        stride=sides,
        padding=rims,
        dilation=sides,
        groups=groups,
        bias=st.booleans(),
    ),
    layer(
        "conv_transpose",
        {"channels": st.sampled_from([4, 6, 12]), "kernel": sides},
        stride=sides,
        padding=rims,
        output_padding=rims,
        dilation=sides,
        groups=groups,
        bias=st.booleans(),
    ),
)
sliding = st.one_of(
    *(
        layer(name, {"kernel": sides}, stride=sides, padding=rims, ceil_mode=st.booleans())
        for name in ("max_pool", "avg_pool")
    )
)
resizing = st.one_of(
    layer("adaptive_avg_pool", {"size": sides}),
    layer("adaptive_max_pool", {"size": sides}),
    layer("global_avg_pool", {}, keepdims=st.booleans()),
    layer("upsample", {"scale": sides}, mode=st.sampled_from(["nearest", "bilinear"])),
    layer("pixel_shuffle", {"factor": st.integers(1, 3)}),
    layer("channel_shuffle", {"groups": groups}),
    layer("pad", {"sides": st.one_of(st.integers(0, 3), st.lists(st.integers(0, 3), min_size=4, max_size=4))}),
    layer("channel_dropout", {"p": st.sampled_from([0.0, 0.3])}),
    layer("stochastic_depth", {"p": st.sampled_from([0.0, 0.3])}),
    layer("groupnorm", {"groups": groups}, affine=st.booleans()),
    layer("batchnorm", {}, affine=st.booleans()),
)


single_layers = convolutions | sliding | resizing
"""Kinds with settings, drawn without regard to whether they fit."""

CHANNELS = (4, 8, 12)
channel_counts = st.sampled_from(CHANNELS)
probability = st.sampled_from([0.0, 0.2])
constants = st.floats(0.2, 2)


@st.composite
def keeping_layers(draw: st.DrawFn) -> Any:
    """An item that takes CHANNELS and keeps height and width."""
    kernel = draw(st.sampled_from([1, 3, 5]))
    dilation = draw(st.sampled_from([1, 2]))
    pool = {"kernel": kernel, "stride": 1, "padding": kernel // 2}
    conv = {
        "channels": draw(channel_counts),
        "kernel": kernel,
        "padding": dilation * (kernel // 2),
        "dilation": dilation,
        "groups": draw(st.sampled_from([1, 2, 4])),
        "bias": draw(st.booleans()),
    }
    norm = ["layernorm", {"linear": {"features": draw(channel_counts)}}]
    return draw(
        st.sampled_from(
            [
                {"conv": conv},
                {"conv": conv},
                "batchnorm",
                {"groupnorm": {"groups": 2}},
                "layer_scale",
                {"dropout": {"p": draw(probability)}},
                {"channel_dropout": {"p": draw(probability)}},
                {"stochastic_depth": {"p": draw(probability)}},
                {"scale": {"factor": draw(constants)}},
                {"shift": {"constant": draw(constants)}},
                {
                    "clamp": draw(
                        st.sampled_from([{"low": -2, "high": 2}, {"low": None, "high": 1}, {"low": 0.5, "high": None}])
                    )
                },
                {"leaky_relu": {"slope": draw(constants)}},
                {"elu": {"alpha": draw(constants)}},
                {"max_pool": pool},
                {"avg_pool": pool},
                {"sequence": [{"permute": {"axes": [0, 2, 3, 1]}}, *norm, {"permute": {"axes": [0, 3, 1, 2]}}]},
                *ACTIVATIONS,
            ]
        )
    )


def lists_of(items: st.SearchStrategy[Any], least: int = 1) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, min_size=least, max_size=3)


@st.composite
def composites(draw: st.DrawFn, items: st.SearchStrategy[Any]) -> Any:
    """A composite that takes any channels, keeps height and width, and makes CHANNELS."""
    last = {"conv": {"channels": draw(channel_counts), "kernel": 1}}
    body = draw(lists_of(items))
    match draw(st.sampled_from(["sequence", "repeat", "residual", "add", "concat", "multiply", "excite"])):
        case "sequence":
            return {"sequence": body}
        case "repeat":
            return {"repeat": {"times": draw(st.integers(1, 3)), "blocks": body}}
        case "residual":
            projection = draw(lists_of(items, least=0))
            return {"residual": {"body": [*body, last], "projection": [*projection, last]}}
        case "concat":
            paths = draw(st.lists(lists_of(items, least=0), min_size=2, max_size=3))
            return {"sequence": [{"branches": {"join": "concat", "paths": paths}}, last]}
        case "excite":
            gate = [last, {"adaptive_avg_pool": {"size": 1}}, last, "sigmoid"]
            return {"branches": {"join": "multiply", "paths": [gate, [*body, last]]}}
        case join:
            paths = draw(st.lists(lists_of(items, least=0), min_size=2, max_size=3))
            return {"branches": {"join": join, "paths": [[*path, last] for path in paths]}}


@st.composite
def unprojected(draw: st.DrawFn, items: st.SearchStrategy[Any]) -> Any:
    """A residual on the stream itself, repeated: what most networks are made of."""
    channels = draw(channel_counts)
    body = [*draw(lists_of(items)), {"conv": {"channels": channels, "kernel": 1}}]
    after = draw(st.sampled_from([["relu"], ["gelu"], []]))
    stage = {"repeat": {"times": draw(st.integers(1, 3)), "blocks": [{"residual": {"body": body}}, *after]}}
    return {"sequence": [{"conv": {"channels": channels, "kernel": 1}}, stage]}


blocks_at_one_size = st.recursive(keeping_layers(), lambda items: composites(items) | unprojected(items), max_leaves=5)
heads = st.sampled_from(
    [
        [{"adaptive_avg_pool": {"size": 1}}, "flatten", {"dropout": {"p": 0.5}}, {"linear": {"features": 10}}],
        ["global_avg_pool", {"linear": {"features": 10}}],
        [{"adaptive_max_pool": {"size": [2, 3]}}, "flatten", {"linear": {"features": 10, "bias": False}}],
        ["flatten", {"linear": {"features": 10}}],
        [{"conv": {"channels": 5, "kernel": 1}}],
        [{"conv_transpose": {"channels": 5, "kernel": 2, "stride": 2}}],
        [{"upsample": {"scale": 2, "mode": "bilinear"}}, {"conv": {"channels": 5, "kernel": 1}}],
    ]
)


@st.composite
def networks(draw: st.DrawFn) -> list[Any]:
    stages = []
    for _ in range(draw(st.integers(1, 2))):
        stages += draw(lists_of(blocks_at_one_size))
        step = [
            {"max_pool": {"kernel": 2, "ceil_mode": True}},
            {"conv": {"channels": 8, "kernel": 3, "stride": 2, "padding": 1}},
        ]
        stages += [draw(st.sampled_from(step))]
    stem = draw(st.sampled_from([[], [{"conv": {"channels": 8, "kernel": 3, "padding": 1}}]]))
    return [*stem, *stages, *draw(heads)]
