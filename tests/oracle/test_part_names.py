"""A module's path picks that module, as ``get_submodule`` does, whichever of its equals are traced with it."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import costmodel as cm
from tests.command import error_of

pytestmark = pytest.mark.oracle


class Block(nn.Module):
    """x + γ·down(relu(up(x)))."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, hidden), nn.Linear(hidden, 4)
        self.gamma = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gamma * self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    """Blocks in a list, between two linear layers or none."""

    def __init__(self, hidden: list[int], ends: bool) -> None:
        super().__init__()
        self.first, self.last = (nn.Linear(4, 4) if ends else nn.Identity() for _ in range(2))
        self.layers = nn.ModuleList(map(Block, hidden))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


NETS = {
    "equal": lambda: Net([3, 3, 3, 3], ends=True),
    "first of all": lambda: Net([3, 3, 3], ends=False),
    "in stretches": lambda: Net([3, 5, 5, 3, 3], ends=True),
    "numbered alone": lambda: nn.Sequential(*map(Block, [3, 3, 3, 5])),
}
X = torch.zeros(2, 4)


@cache
def imported(net: str) -> tuple[Any, Any]:
    """A network, and what is imported of it."""
    model = NETS[net]()
    return model, cm.from_torch(model, X)


@pytest.mark.parametrize("net", NETS)
def test_what_is_frozen_by_its_path_is_what_requires_no_gradient(net: str) -> None:
    model, found = imported(net)
    sizes = {path: sum(w.numel() for w in module.parameters()) for path, module in model.named_modules() if path}
    sizes |= {path: w.numel() for path, w in model.named_parameters() if path.endswith("gamma")}
    total = cm.predict(found).params
    for path, size in sizes.items():
        if size:
            assert cm.predict(found, freeze=[path]).trainable_params == total - size


@pytest.mark.parametrize(("net", "path"), [("equal", "layers.2"), ("in stretches", "layers.1.up")])
def test_what_is_frozen_costs_what_it_does_in_a_model_that_was_frozen(net: str, path: str) -> None:
    model, found = imported(net)
    frozen = copy.deepcopy(model)
    frozen.get_submodule(path).requires_grad_(False)
    ours, own = cm.predict(found, batch=2, freeze=[path]), cm.predict(cm.from_torch(frozen, X), batch=2)
    assert (ours.flops, ours.pointwise_flops) == (own.flops, own.pointwise_flops)
    assert ours.memory.activations == own.memory.activations


@pytest.mark.parametrize("net", NETS)
def test_adapters_and_recomputing_pick_a_module_by_its_path(net: str) -> None:
    model, found = imported(net)
    blocks = {path: module for path, module in model.named_modules() if isinstance(module, Block)}
    for path, block in blocks.items():
        wide = block.up.out_features
        assert cm.predict(found, lora={"rank": 2, "targets": [f"{path}.up"]}).trainable_params == 2 * (4 + wide)
        assert cm.predict(found, batch=2, checkpoint=[path]).flops.recomputed == 2 * (2 * 2 * 4 * wide)


@pytest.mark.parametrize("net", NETS)
def test_every_row_of_an_imported_model_can_be_named_as_it_is_shown(net: str) -> None:
    _, found = imported(net)
    whole = cm.predict(found)
    for row in whole.layers:
        if row.params:
            assert cm.predict(found, freeze=[row.name]).trainable_params <= whole.params - row.params


def test_one_of_the_blocks_that_are_recomputed_alike_is_refused() -> None:
    _, found = imported("equal")
    message = error_of(lambda: cm.predict(found, checkpoint="block", freeze=["layers.1"]))
    assert message.startswith("'layers.1' is one of equal blocks")
