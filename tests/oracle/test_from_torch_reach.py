"""A gradient is worked out only where the results need it: target networks, straight-through estimators, and the like.

What PyTorch keeps is what autograd's graph still holds when forward is done: a graph that nothing returned depends on
has gone by then.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import costmodel as cm

from .imports import found, measured
from .measure import meta
from .test_timeline import stated as alive
from .tracker import Tracker

pytestmark = pytest.mark.oracle


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with rectifiers between."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Target(nn.Module):
    """A target network whose result is detached."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = mlp(8, 16, 4), mlp(8, 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.online(x) - self.target(x).detach()


class DeepQ(nn.Module):
    """Deep Q-learning (Mnih et al. 2015): the loss on actions taken, with the target network under no_grad."""

    def __init__(self, *, guarded: bool) -> None:
        super().__init__()
        self.online, self.target, self.guarded = mlp(8, 32, 32, 4), mlp(8, 32, 32, 4), guarded

    def forward(self, state: Tensor, action: Tensor, reward: Tensor, after: Tensor, done: Tensor) -> Tensor:
        taken = self.online(state).gather(1, action).squeeze(1)
        if self.guarded:
            with torch.no_grad():
                best = self.target(after).max(1)[0]
        else:
            best = self.target(after).max(1)[0].detach()
        return F.smooth_l1_loss(taken, reward + 0.99 * best * (1 - done))


class DoubleQ(nn.Module):
    """Double Q-learning: the online network chooses, by an argmax, what the target network values."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = mlp(8, 32, 4), mlp(8, 32, 4)

    def forward(self, state: Tensor, after: Tensor) -> Tensor:
        choice = self.online(after).argmax(1, keepdim=True)
        value = self.target(after).gather(1, choice).detach()
        return F.mse_loss(self.online(state).max(1, keepdim=True)[0], value)


class Byol(nn.Module):
    """Bootstrap your own latent (Grill et al. 2020): two views, each predicted from the other."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
        self.target = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
        self.predictor = mlp(8, 16, 8)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return (self.half(a, b) + self.half(b, a)).mean()

    def half(self, a: Tensor, b: Tensor) -> Tensor:
        predicted = F.normalize(self.predictor(self.online(a)), dim=-1)
        wanted = F.normalize(self.target(b).detach(), dim=-1)
        return 2 - 2 * (predicted * wanted).sum(-1)


class Quantised(nn.Module):
    """A vector-quantised autoencoder (van den Oord et al. 2017), the gradient straight through."""

    def __init__(self, codes: int = 12) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(10, 16, 6), mlp(6, 16, 10)
        self.table = nn.Embedding(codes, 6)

    def forward(self, x: Tensor) -> Tensor:
        z = self.encoder(x)
        distance = z.pow(2).sum(1, keepdim=True) - 2 * z @ self.table.weight.t() + self.table.weight.pow(2).sum(1)
        q = self.table(distance.argmin(1))
        codebook, commitment = F.mse_loss(q, z.detach()), F.mse_loss(z, q.detach())
        y = self.decoder(z + (q - z).detach())
        return F.mse_loss(y, x) + codebook + 0.25 * commitment


class Variational(nn.Module):
    """A variational autoencoder (Kingma and Welling 2014), its losses in one or its parts."""

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self.encoder, self.decoder, self.whole = mlp(10, 16, 8), mlp(4, 16, 10), whole

    def forward(self, x: Tensor) -> Any:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(log_variance)
        y = self.decoder(z)
        if not self.whole:
            return y, mean, log_variance
        kl = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        return F.binary_cross_entropy_with_logits(y, x, reduction="sum") + kl


class GraphConvolution(nn.Module):
    """Graph convolutions (Kipf and Welling 2017) over a dense adjacency that is normalised on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        adjacency = adjacency + torch.eye(adjacency.shape[-1], device=x.device)
        root = adjacency.sum(-1).pow(-0.5)
        adjacency = root.unsqueeze(-1) * adjacency * root.unsqueeze(-2)
        return adjacency @ self.second(F.relu(adjacency @ self.first(x)))


class StraightThrough(nn.Module):
    """A rounding that the gradient goes around."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.last(y + (self.other(y).round() - y).detach())


class Shaped(nn.Module):
    """Numbers like what a layer makes, of which only the shape is read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) + torch.zeros_like(self.second(x))


class Branches(nn.Module):
    """A branch whose result nobody takes, and one that keeps much for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.idle, self.head = nn.Linear(8, 8), mlp(8, 64, 64, 8), nn.Linear(8, 4)
        self.blocks = nn.ModuleList(mlp(8, 32, 8) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        z = y
        for block in self.blocks:
            z = block(z)
        guide = z.detach().mean()
        self.idle(y)
        return self.head(y) * guide


class Critic(nn.Module):
    """Actor and critic with one body; the advantage is a number to the actor."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.policy, self.value = mlp(6, 32, 32), nn.Linear(32, 3), nn.Linear(32, 1)

    def forward(self, state: Tensor, action: Tensor, returns: Tensor) -> Tensor:
        features = self.body(state)
        value = self.value(features).squeeze(-1)
        logs = F.log_softmax(self.policy(features), -1)
        advantage = returns - value.detach()
        entropy = -(logs.exp() * logs).sum(-1).mean()
        actor = -(logs.gather(1, action).squeeze(1) * advantage).mean()
        return actor + 0.5 * F.mse_loss(value, returns) - 0.01 * entropy


class Placed(nn.Module):
    """A trained number for each place is added to what a layer made, whose gradient is the same memory."""

    def __init__(self, times: int, *, last: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4) if last else nn.Identity()
        self.times, self.places = times, nn.Parameter(torch.empty(5, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        for _ in range(self.times):
            y = torch.relu(y + self.places)
        return self.last(y)


class SizeGrid(nn.Module):
    """Positions as sums of two trained ones."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.columns = nn.Parameter(torch.empty(5, 8)), nn.Parameter(torch.empty(5, 8))
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x * (self.rows + self.columns))


def whole(*shape: int) -> Tensor:
    return meta(*shape, dtype=torch.int64)


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "target": (Target, (meta(3, 8),)),
    "DQN": (lambda: DeepQ(guarded=False), (meta(5, 8), whole(5, 1), meta(5), meta(5, 8), meta(5))),
    "DQN, no_grad": (lambda: DeepQ(guarded=True), (meta(5, 8), whole(5, 1), meta(5), meta(5, 8), meta(5))),
    "double DQN": (DoubleQ, (meta(5, 8), meta(5, 8))),
    "BYOL": (Byol, (meta(5, 8), meta(5, 8))),
    "VQ-VAE": (Quantised, (meta(7, 10),)),
    "VAE, parts": (lambda: Variational(whole=False), (meta(7, 10),)),
    "VAE, loss": (lambda: Variational(whole=True), (meta(7, 10),)),
    "GCN": (GraphConvolution, (meta(9, 6), meta(9, 9))),
    "straight through": (StraightThrough, (meta(5, 8),)),
    "shape": (Shaped, (meta(5, 8),)),
    "branches": (Branches, (meta(5, 8),)),
    "places": (lambda: Placed(1, last=True), (meta(5, 8),)),
    "places, at the end": (lambda: Placed(1, last=False), (meta(5, 8),)),
    "places, twice": (lambda: Placed(2, last=True), (meta(5, 8),)),
    "places of two": (SizeGrid, (meta(5, 8),)),
    "actor and critic": (Critic, (meta(5, 6), whole(5, 1), meta(5))),
}


COMPOSED = ("BYOL",)
"""Whose peak is in the gradient of a norm, which PyTorch composes of several kernels and is one on paper."""


@pytest.mark.parametrize("name", MODULES)
def test_only_what_the_results_need_has_a_gradient(name: str) -> None:
    make, inputs = MODULES[name]
    module = make().to("meta").train()
    model = cm.from_torch(module, inputs, dynamic={})
    assert found(model) == measured(module, *inputs)
    on_paper = alive(cm.predict(model, device="cpu", optimizer="sgd"))
    module.zero_grad(set_to_none=True)
    with Tracker([*inputs, *module.parameters(), *module.buffers()]) as tracker:
        results = [y for y in torch.utils._pytree.tree_leaves(module(*inputs)) if y.requires_grad]
        gradients = [torch.empty_like(y) for y in results]
        tracker.phase = "backward"
        torch.autograd.backward(results, gradients)
    assert on_paper["forward"].alive <= tracker.most["forward"].alive  # Python has names for more than what is used
    assert name in COMPOSED or on_paper["backward"].alive == tracker.most["backward"].alive


def test_weights_without_a_gradient_have_no_state() -> None:
    model = cm.from_torch(Target().to("meta"), meta(3, 8))
    prediction = cm.predict(model, optimizer="adam")
    assert prediction.trainable_params == 2 * (8 * 16 + 16 + 16 * 4 + 4)
    assert prediction.memory.gradients == 4 * (8 * 16 + 16 + 16 * 4 + 4)
    assert prediction.memory.optimizer == 2 * prediction.memory.gradients
    assert prediction.memory.counters == 4 * 4


def test_a_norm_called_twice_has_one_set_of_statistics() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.norm(x))

    module = Twice()
    model = cm.from_torch(module, meta(3, 6))
    assert cm.predict(model, batch=2).memory.buffers == sum(b.nbytes for b in module.buffers())


def test_what_goes_around_equal_blocks_is_itself() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.blocks = nn.Linear(4, 4), nn.ModuleList(nn.Tanh() for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            first = y = self.stem(x)
            for block in self.blocks:
                y = block(y).detach() * 1
            return self.stem(first) * y

    module = Around().to("meta")
    model = cm.from_torch(module, meta(3, 4), dynamic={})
    assert found(model) == measured(module, meta(3, 4))
