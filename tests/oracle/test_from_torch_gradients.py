"""The peak of backward where gradients go through parts of tensors, sums, copies and slopes: to the byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import costmodel as cm

from .imports import found, measured
from .measure import meta
from .test_timeline import stated
from .tracker import Tracker

pytestmark = pytest.mark.oracle


class Weighted(nn.Module):
    """Attention whose weights are asked for: query, key and value are selected from one product."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.attention(x, x, x)


class Crossed(nn.Module):
    """Attention to another sequence: its weights and bias are split in two."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.attention(x, memory, memory, need_weights=False)[0]


class Latents(nn.Module):
    """Latent queries, with keys and values that are chunks of one product, seen with another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.latents, self.norm = nn.Parameter(torch.ones(4, 16)), nn.LayerNorm(8)
        self.query, self.pair, self.out = nn.Linear(16, 16), nn.Linear(8, 32), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        z = self.latents.unsqueeze(0).expand(x.shape[0], -1, -1)
        k, v = self.pair(self.norm(x)).chunk(2, -1)
        q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in (self.query(z), k, v))
        return z + self.out(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Scan(nn.Module):
    """A state that each step of a sequence changes: places are selected, and products summed."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rate = nn.Linear(6, 16), nn.Parameter(torch.ones(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        state, made = x.new_zeros(x.shape[0], 8, 4), []
        u, b, c = self.enter(x).split([8, 4, 4], -1)
        for t in range(x.shape[1]):
            state = state * torch.exp(-self.rate) + u[:, t, :, None] * b[:, t, None]
            made.append((state * c[:, t, None]).sum(-1))
        return torch.stack(made, 1)


class Summed(nn.Module):
    """A weight that is summed, and a sum that meets another gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Parameter(torch.ones(40, 6)), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.layer(x))
        return y.sum(0) + self.table.sum(0) + (y * y).sum(0)


class Turned(nn.Module):
    """Numbers that change places."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return torch.cat([y.flip(1), y.roll(1, 1)], 1)


class Sloped(nn.Module):
    """Trained slopes, of an image that is made larger."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.slope = nn.Conv2d(3, 16, 3, padding=1), nn.PReLU(16)

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(self.slope(self.wide(x)), 2)


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "weighted": (Weighted, (meta(5, 6, 16),)),
    "crossed": (Crossed, (meta(6, 2, 16), meta(9, 2, 16))),
    "latents": (Latents, (meta(2, 9, 8),)),
    "scan": (Scan, (meta(2, 5, 6),)),
    "summed": (Summed, (meta(9, 6),)),
    "turned": (Turned, (meta(9, 8),)),
    "sloped": (Sloped, (meta(2, 3, 8, 8),)),
}


@pytest.mark.parametrize("name", MODULES)
def test_the_peak_of_backward(name: str) -> None:
    make, inputs = MODULES[name]
    module = make().to("meta").train()
    model = cm.from_torch(module, inputs, dynamic={})
    assert found(model) == measured(module, *inputs)
    module.zero_grad(set_to_none=True)
    with Tracker([*inputs, *module.parameters()]) as tracker:
        results = [y for y in tree_leaves(module(*inputs)) if y.requires_grad]
        gradients = [torch.empty_like(y) for y in results]
        tracker.phase = "backward"
        torch.autograd.backward(results, gradients)
    on_paper = stated(cm.predict(model, device="cpu", optimizer="sgd"))
    assert on_paper["backward"].alive == tracker.most["backward"].alive
