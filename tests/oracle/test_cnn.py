"""Convolutional networks against PyTorch and torchvision, equal to the last unit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import event, given
from hypothesis import strategies as st

import costmodel as cm
from costmodel import CNN
from costmodel.architectures.base import Architecture
from costmodel.documents.files import SPECS
from costmodel.errors import ShapeError
from tests.oracle.drawn_networks import networks, single_layers
from tests.oracle.measure import Cost, measure, meta, stated
from tests.oracle.networks import build
from tests.oracle.settings import DRAWN, differential
from tests.oracle.vision import vision_model
from tests.profiles import examples

pytestmark = pytest.mark.oracle

BATCH = 2
devices = st.sampled_from(["cpu", "gpu"])


def stated_cost(model: Architecture, device: str, **settings: Any) -> Cost:
    return stated(
        cm.predict(model, batch=BATCH, device=device, **settings),
        cm.predict(model, batch=BATCH, device=device, loss=None, **settings),
    )


def measured_cost(module: torch.nn.Module, shape: tuple[int, ...], output: torch.Tensor) -> Cost:
    targets = meta(BATCH, *output.shape[2:], dtype=torch.int64)
    return measure(module, meta(BATCH, *shape), loss=lambda y: F.cross_entropy(y, targets), given=(targets,))


def assert_equal_costs(blocks: list[Any], shape: tuple[int, int, int], device: str) -> None:
    module, output = build(blocks, meta(BATCH, *shape), device)
    assert stated_cost(CNN(input=shape, blocks=blocks), device) == measured_cost(module, shape, output)


@examples(3 * DRAWN)
@given(single_layers, st.sampled_from([4, 6, 12]), st.integers(1, 12), st.integers(1, 12), devices)
def test_a_layer_costs_what_pytorch_says_or_both_refuse(item: Any, channels: int, h: int, w: int, device: str) -> None:
    blocks = [{"conv": {"channels": channels, "kernel": 1}}, item]
    event(next(iter(item)))
    try:
        # With data: the meta device lets some mistakes pass. An empty output passes there too, and is one.
        _, output = build(blocks, torch.zeros(BATCH, 3, h, w), device)
        if not output.numel():
            raise ValueError("empty")
    except (RuntimeError, ValueError):
        event("refused")
        with pytest.raises(ShapeError):
            cm.predict(CNN(input=(3, h, w), blocks=blocks), batch=BATCH)
        return
    assert_equal_costs(blocks, (3, h, w), device)


@differential
@given(networks(), st.integers(8, 17), st.integers(8, 17), devices)
def test_a_nested_network_costs_what_pytorch_says(blocks: list[Any], h: int, w: int, device: str) -> None:
    assert_equal_costs(blocks, (4, h, w), device)


CHANNELS_LAST = [
    {"conv": {"channels": 8, "kernel": 3}},
    {"permute": {"axes": [0, 2, 3, 1]}},
    "layernorm",
    {"permute": {"axes": [0, 3, 1, 2]}},
]
WITH_AN_OTHER_ORDER: list[Any] = [
    "batchnorm",
    "response_norm",
    "layer_scale",
    "gelu",
    {"groupnorm": {"groups": 2}},
    {"conv": {"channels": 4, "kernel": 1}},
    {"max_pool": {"kernel": 2}},
    {"avg_pool": {"kernel": 2}},
    {"adaptive_avg_pool": {"size": 2}},
    {"adaptive_max_pool": {"size": 2}},
    {"upsample": {"scale": 2}},
    {"pixel_shuffle": {"factor": 2}},
    {"channel_shuffle": {"groups": 2}},
    {"pad": {"sides": 1}},
    {"pad": {"sides": 0}},
    {"channel_dropout": {"p": 0.2}},
    {"branches": {"join": "concat", "paths": [[], ["relu"]]}},
    {"branches": {"join": "concat", "paths": [[], [{"conv": {"channels": 8, "kernel": 1}}]]}},
    {"branches": {"join": "add", "paths": [[{"conv": {"channels": 8, "kernel": 1}}], []]}},
    {"branches": {"join": "multiply", "paths": [[{"adaptive_avg_pool": {"size": 1}}], []]}},
]


@pytest.mark.parametrize("item", WITH_AN_OTHER_ORDER, ids=str)
@pytest.mark.parametrize("first", [CHANNELS_LAST, [CHANNELS_LAST[0], {"permute": {"axes": [0, 1, 3, 2]}}]])
def test_the_order_in_memory_is_pytorchs(first: list[Any], item: Any) -> None:
    """Flattening is a view of an image in its usual order, and a copy, which is then kept, of any other."""
    assert_equal_costs([*first, item, "flatten", {"linear": {"features": 3}}], (3, 6, 7), "gpu")


# The zoo.

ZOO = [
    path.stem for path in sorted(Path(SPECS).glob("*.yaml")) if path.read_text("utf-8").startswith("architecture: cnn")
]
ELSEWHERE = {"lenet-5", "mobilenet_v1", "unet"}
"""Not in torchvision."""
VARIANTS: dict[str, dict[str, Any]] = {"googlenet": {"aux_logits": False, "init_weights": False}}


@pytest.mark.parametrize("name", sorted(set(ZOO) - ELSEWHERE))
def test_a_ready_model_costs_what_torchvisions_does(name: str) -> None:
    model = cm.load(name)
    assert isinstance(model, CNN)
    module = vision_model(name, **VARIANTS.get(name, {}))
    assert stated_cost(model, "cpu") == measured_cost(module, model.input, meta(BATCH, 1000))


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_the_other_ready_models_cost_what_pytorch_says(name: str) -> None:
    model = cm.load(name)
    assert isinstance(model, CNN)
    assert_equal_costs(model.model_dump()["blocks"], model.input, "gpu")
