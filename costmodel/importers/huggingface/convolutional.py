"""Convolutional networks over images."""

from __future__ import annotations

from typing import Any

from costmodel.architectures.base import Architecture
from costmodel.architectures.cnn import CNN
from costmodel.errors import shown
from costmodel.importers.huggingface.family import Config, Family, labels
from costmodel.importers.huggingface.fields import Meaning, wrong
from costmodel.importers.huggingface.images import image_size

BlockData = list[Any]
"""Blocks as data."""

REDUCTION = 4
"""Channels of a bottleneck over those within it (He et al. 2016, table 1)."""


def convolutional(config: Config, made: dict[str, Any]) -> Architecture:
    """The network of these blocks, which ends in classes."""
    blocks = [*made["blocks"], {"linear": {"features": labels(config)}}]
    return CNN.of({name: made[name] for name in ("name", "notes", "input")} | {"blocks": blocks})


def stages(config: Config) -> list[tuple[int, int]]:
    """(Channels, blocks) of each stage."""
    channels, depths = config["hidden_sizes"], config["depths"]
    for field, values in {"hidden_sizes": channels, "depths": depths}.items():
        if not values or min(values) < 1:
            raise wrong(field, f"{shown(values)}: give a number of 1 or more for each stage")
    if len(channels) != len(depths):
        raise wrong("depths", f"has {len(depths)} entries for {len(channels)} hidden_sizes")
    return list(zip(channels, depths, strict=True))


def normed_conv(channels: int, kernel: int, stride: int = 1) -> BlockData:
    """A convolution without a bias that keeps the image's size but for its stride, and a batch norm."""
    return [
        {"conv": {"channels": channels, "kernel": kernel, "stride": stride, "padding": kernel // 2, "bias": False}},
        "batchnorm",
    ]


def residual_blocks(config: Config, made: dict[str, Any]) -> None:
    """A stem of stride 4, stages whose first blocks halve the image, and the mean of each channel."""
    kind, act = config["layer_type"], made["activation"]
    if kind not in ("basic", "bottleneck"):
        raise wrong("layer_type", f"{shown(kind)} is not 'basic' or 'bottleneck'")
    before = config["embedding_size"]
    blocks = [*normed_conv(before, 7, 2), act, {"max_pool": {"kernel": 3, "stride": 2, "padding": 1}}]
    for number, (channels, depth) in enumerate(stages(config)):
        stride = 2 if number or config["downsample_in_first_stage"] else 1
        for times, by, entering in ((1, stride, before), (depth - 1, 1, channels)):
            if not times:
                continue
            if kind == "basic":
                body = [*normed_conv(channels, 3, by), "relu", *normed_conv(channels, 3)]
            else:
                if channels < REDUCTION:
                    raise wrong("hidden_sizes", f"{channels}: a bottleneck has at least {REDUCTION} channels", number)
                first, second = (by, 1) if config["downsample_in_bottleneck"] else (1, by)
                inner = channels // REDUCTION
                body = [*normed_conv(inner, 1, first), "relu", *normed_conv(inner, 3, second), "relu"]
                body += normed_conv(channels, 1)
            residual: dict[str, Any] = {"body": body}
            if by != 1 or entering != channels:
                residual["projection"] = normed_conv(channels, 1, by)
            items: BlockData = [{"residual": residual}, act]
            blocks += items if times == 1 else [{"repeat": {"times": times, "blocks": items}}]
        before = channels
    size = config["image_size"]
    made |= {"input": (config["num_channels"], size, size)}
    made["blocks"] = [*blocks, {"adaptive_avg_pool": {"size": 1}}, "flatten"]


RESNET = Family(
    model_type="resnet",
    source="ResNet v1.5 (He et al. 2016), with the stride in the 3 × 3 convolution unless it says otherwise",
    builds=convolutional,
    ends={"ResNetForImageClassification": "classes"},
    fields={"num_channels": 3, "embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048], "depths": [3, 4, 6, 3]}
    | {"layer_type": "bottleneck", "hidden_act": "relu", "downsample_in_first_stage": False}
    | {"downsample_in_bottleneck": False, "image_size": 224, "id2label": None, "num_labels": None},
    means={"embedding_size": Meaning("size"), "image_size": Meaning("size")},
    rules={"blocks": residual_blocks},
    idle="_out_features _out_indices out_features out_indices stage_names tie_word_embeddings",
    note="Its file says no size of images: they are of 224 × 224 unless the question says another.",
)


def channels_last(items: BlockData) -> BlockData:
    """BlockData that see channels as the last axis."""
    return [{"permute": {"axes": [0, 2, 3, 1]}}, *items, {"permute": {"axes": [0, 3, 1, 2]}}]


def convnext_blocks(config: Config, made: dict[str, Any]) -> None:
    """Patches, stages of blocks with depthwise convolutions, and the mean of each channel, normed."""
    image_size(config, made)
    every = stages(config)
    if config["num_stages"] != len(every):
        raise wrong("num_stages", f"{config['num_stages']} is not the {len(every)} of hidden_sizes")
    scale = ["layer_scale"] * (config.values.get("layer_scale_init_value", 0) > 0)
    response = ["response_norm"] * ("layer_scale_init_value" not in config.values)
    blocks: BlockData = []
    for number, (channels, depth) in enumerate(every):
        if number == 0:
            patch = made["patch"]
            blocks += [
                {"conv": {"channels": channels, "kernel": patch, "stride": patch}},
                *channels_last(["layernorm"]),
            ]
        else:
            blocks += [*channels_last(["layernorm"]), {"conv": {"channels": channels, "kernel": 2, "stride": 2}}]
        mlp = [
            {"linear": {"features": 4 * channels}},
            made["activation"],
            *response,
            {"linear": {"features": channels}},
        ]
        depthwise = {"conv": {"channels": channels, "kernel": 7, "padding": 3, "groups": channels}}
        block = {"residual": {"body": [depthwise, *channels_last(["layernorm", *mlp]), *scale]}}
        blocks += [{"repeat": {"times": depth, "blocks": [block]}}]
    made["blocks"] = [*blocks, {"adaptive_avg_pool": {"size": 1}}, "flatten", "layernorm"]


CONVNEXT = Family(
    model_type="convnext",
    source="ConvNeXt (Liu et al. 2022)",
    builds=convolutional,
    ends={"ConvNextForImageClassification": "classes"},
    fields={"num_channels": 3, "patch_size": 4, "num_stages": 4, "hidden_sizes": [96, 192, 384, 768]}
    | {"depths": [3, 3, 9, 3], "hidden_act": "gelu", "layer_scale_init_value": 1e-6, "image_size": 224}
    | {"id2label": None, "num_labels": None},
    rules={"blocks": convnext_blocks},
    aliases="num_hidden_layers=num_stages",
    idle=RESNET.idle,
    fixed={"drop_path_rate": (0,)},
)

CONVNEXT_V2 = Family(
    model_type="convnextv2",
    source="ConvNeXt V2 (Woo et al. 2023): channels normed by their response, and no factors of their own",
    like=CONVNEXT,
    ends={"ConvNextV2ForImageClassification": "classes"},
    without="layer_scale_init_value",
    aliases=CONVNEXT.aliases,
)
