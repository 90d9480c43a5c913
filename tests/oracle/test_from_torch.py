"""Live modules cost on paper what they cost in PyTorch: parameters, FLOPs, bytes kept for backward."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import costmodel as cm
from tests.profiles import examples

from .imports import assert_equal, found, measured, without_data
from .measure import meta, stated
from .settings import DRAWN
from .tracker import Tracker
from .vision import stub_operators, vision_model

pytestmark = pytest.mark.oracle

LAYERS: dict[str, Any] = {
    "relu": nn.ReLU,
    "relu in place": lambda: nn.ReLU(inplace=True),
    "gelu": nn.GELU,
    "gelu, tanh": lambda: nn.GELU("tanh"),
    "silu in place": lambda: nn.SiLU(inplace=True),
    "elu": nn.ELU,
    "softplus": nn.Softplus,
    "mish": nn.Mish,
    "hard tanh": nn.Hardtanh,
    "dropout": nn.Dropout,
    "dropout in place": lambda: nn.Dropout(0.1, inplace=True),
    "softmax": lambda: nn.Softmax(-1),
    "softmax over rows": lambda: nn.Softmax(0),
    "log-softmax": lambda: nn.LogSoftmax(-1),
    "frozen": lambda: nn.Linear(6, 6).requires_grad_(False),
    "batch norm": lambda: nn.BatchNorm1d(6),
    "layer norm": lambda: nn.LayerNorm(6),
    "rms norm": lambda: nn.RMSNorm(6),
    "group norm": lambda: nn.GroupNorm(2, 6),
    "identity": nn.Identity,
}


def mobilenet(module: Any) -> nn.Module:
    """Two blocks of MobileNetV3, one with squeeze and excitation."""
    rows = [(8, 3, 16, 8, True, "RE", 2, 1), (8, 5, 24, 16, False, "HS", 1, 1)]
    blocks = [module.InvertedResidualConfig(*row, 1.0) for row in rows]
    return module.MobileNetV3(blocks, 32, num_classes=5)


def tiny_vision(name: str) -> nn.Module:
    """A network of torchvision with few and narrow blocks."""
    models: Any = stub_operators()
    made = {
        "resnet": lambda: models.ResNet(models.resnet.Bottleneck, [1, 1, 1, 1], num_classes=5),
        "densenet": lambda: models.DenseNet(4, (2, 2), 8, num_classes=5),
        "convnext": lambda: models.ConvNeXt(
            [models.convnext.CNBlockConfig(8, 16, 2), models.convnext.CNBlockConfig(16, None, 1)], 0.2, num_classes=5
        ),
        "mobilenet": lambda: mobilenet(models.mobilenetv3),
        "vit": lambda: models.VisionTransformer(32, 8, 2, 2, 16, 24, dropout=0.1, num_classes=5),
    }
    return without_data(made[name])


def test_every_layer_after_a_linear_one() -> None:
    layers = [layer for make in LAYERS.values() for layer in (nn.Linear(6, 6), make())]
    module = nn.Sequential(nn.Linear(4, 6), *layers).to("meta").train()
    assert_equal(module, (meta(3, 4),), (meta(5, 4),), {"batch": 5})


@examples(min(3, DRAWN))
@given(st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=5), st.integers(2, 9), st.booleans())
def test_a_drawn_stack_of_layers(names: list[str], batch: int, bias: bool) -> None:
    layers = [LAYERS[name]() for name in names if not name.endswith("in place")]
    module = nn.Sequential(nn.Linear(4, 6, bias=bias), *layers, nn.Linear(6, 3)).to("meta").train()
    assert_equal(module, (meta(3, 4),), (meta(batch, 4),), {"batch": batch})


@pytest.mark.parametrize("name", ["resnet", "densenet", "convnext", "mobilenet"])
def test_a_network_of_torchvision_at_other_sizes(name: str) -> None:
    settings = {"batch": 3, "image": (96, 64)}
    model = assert_equal(tiny_vision(name), (meta(1, 3, 64, 64),), (meta(3, 3, 96, 64),), settings)
    assert model.notes == ""


def test_a_vision_transformer_takes_images_of_one_size() -> None:
    model = assert_equal(tiny_vision("vit"), (meta(1, 3, 32, 32),), (meta(5, 3, 32, 32),), {"batch": 5})
    assert "height is fixed at 32" in model.notes
    with pytest.raises(cm.CostModelError, match="image=64 is not what 'VisionTransformer' was exported for"):
        cm.predict(model, image=64)


def test_a_module_in_evaluation_mode_stays_in_it() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.ReLU()).to("meta").eval()
    prediction = cm.predict(cm.from_torch(module, meta(3, 4)), batch=5)
    assert stated(prediction, prediction) == measured(module, meta(5, 4))


def test_an_encoder_of_torch() -> None:
    def make() -> nn.Module:
        layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, norm_first=True)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    assert_equal(without_data(make), (meta(1, 6, 16),), (meta(3, 9, 16),), {"batch": 3, "seq": 9})


def test_a_known_network_costs_what_its_description_says() -> None:
    imported = cm.from_torch(vision_model("resnet18"), meta(1, 3, 224, 224))
    one, other = (cm.predict(model, batch=2, loss="cross_entropy") for model in (imported, "resnet18"))
    assert [one.value(q) for q in QUANTITIES] == [other.value(q) for q in QUANTITIES]
    assert one.formula("memory.activations") - other.formula("memory.activations") == 0


QUANTITIES = (
    *("params", "flops.forward", "flops.total", "memory.weights", "memory.buffers", "memory.activations"),
    *("memory.peak", "pointwise_flops.total"),
)


def test_weights_that_are_tied_frozen_or_unused_are_counted_as_they_are() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(11, 4), nn.Linear(4, 11, bias=False)
            self.head.weight = self.table.weight
            self.fixed = nn.Linear(4, 4).requires_grad_(False)
            self.idle, self.scale = nn.Linear(3, 3), nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.fixed(self.table(x)) * self.scale)

    module = without_data(Net)
    model = cm.from_torch(module, meta(2, 5, dtype=torch.int64))
    assert found(model, batch=3, seq=7) == measured(module, meta(3, 7, dtype=torch.int64))
    assert cm.predict(model).trainable_params == sum(w.numel() for w in module.parameters() if w.requires_grad)


def test_equal_blocks_are_found_and_cost_what_they_do_one_by_one() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
    module = nn.TransformerEncoder(layer, 5, enable_nested_tensor=False).to("meta")
    model = cm.from_torch(module, meta(2, 6, 16))
    one_by_one = model.model_copy(update={"items": model.program.steps})
    folded, unrolled = (cm.predict(m, batch=3, seq=9) for m in (model, one_by_one))
    assert [folded.value(q) for q in QUANTITIES] == [unrolled.value(q) for q in QUANTITIES]
    assert {row.repeat for row in folded.layers} == {1, 4}  # the first needs no gradient of its input
    assert cm.predict(model, batch=3, seq=9, checkpoint="block").flops.recomputed == folded.flops.forward


class Listed(nn.Module):
    """Parts in a list, which nobody calls: what one is handed is free once the next runs."""

    def __init__(self, equal: int) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(equal))
        self.parts.extend([nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), nn.Tanh()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for part in self.parts:
            x = part(x)
        return x


@pytest.mark.parametrize("equal", [1, 2, 4])
def test_a_list_of_parts_holds_nothing(equal: int) -> None:
    module, x = Listed(equal).to("meta"), meta(64, 4)
    with Tracker([x, *module.parameters()]) as tracker, torch.no_grad():
        module(x)
    model = cm.from_torch(module, x)
    read_again = type(model)(**json.loads(model.model_dump_json()))
    for same in (model, read_again):
        assert cm.predict(same, batch=64, mode="inference").memory.peak == tracker.most["forward"].alive
