"""Where gradients go through parts of tensors, sums, copies and slopes, backward holds what a memory tracker sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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

Function = Callable[..., Tensor]

PARTS: dict[str, Function] = {
    "one slice": lambda y: y[:, :4] * 1,
    "two that meet": lambda y: y[:, :4] * y[:, 4:],
    "two that overlap": lambda y: y[:, :6] * y[:, 2:],
    "two that overlap, added": lambda y: y[:, :6] + y[:, 2:],
    "three that overlap": lambda y: y[:, :6] * y[:, 2:] * y[:, 1:7],
    "neighbours": lambda y: y[:, 1:] - y[:, :-1],
    "overlapping functions": lambda y: y[:, :6].exp() + y[:, 2:].exp(),
    "overlapping sums": lambda y: y[:, :6].sum() + y[:, 2:].sum(),
    "overlapping and joined": lambda y: torch.cat([y[:, :6], y[:, 2:]], 1),
    "every second": lambda y: y[:, ::2] * y[:, 1::2],
    "narrow": lambda y: y.narrow(1, 1, 5).exp(),
    "a row": lambda y: y[0] * 1,
    "rows": lambda y: y[0] * y[2] + y[1],
    "unbind": lambda y: torch.stack(y.unbind(0), 1).exp(),
    "split": lambda y: torch.mul(*y.split(4, 1)),
    "tensor_split": lambda y: torch.mul(*y.tensor_split(2, 1)),
    "diagonal": lambda y: y.diagonal().exp(),
    "windows that overlap": lambda y: y.unfold(1, 4, 2).exp(),
    "windows": lambda y: y.unfold(1, 4, 4).exp(),
}


class Of(nn.Module):
    """A function of an input and of bare weights of these shapes."""

    def __init__(self, function: Function, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(shape, device="meta")) for shape in shapes)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.weights)


def assert_held(module: nn.Module, *inputs: Tensor) -> None:
    """Backward's peak on paper is the tracker's."""
    model = cm.from_torch(module, inputs, dynamic={})
    assert found(model) == measured(module, *inputs)
    on_paper: Any = stated(cm.predict(model, device="cpu", optimizer="sgd"))
    module.zero_grad()
    with Tracker([*inputs, *module.parameters()]) as tracker:
        results = [y for y in tree_leaves(module(*inputs)) if y.requires_grad]
        gradients = [torch.empty_like(y) for y in results]
        tracker.phase = "backward"
        torch.autograd.backward(results, gradients)
    assert on_paper["forward"].alive <= tracker.most["forward"].alive
    assert on_paper["backward"].alive == tracker.most["backward"].alive


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("of", ["a product", "a weight"])
def test_parts_of_a_tensor(name: str, of: str) -> None:
    if of == "a weight" and name == "one slice":
        module = Of(lambda x, w: x[:, :4] * w[:, :4], (4, 8))
    elif of == "a weight":
        module = Of(lambda x, w: PARTS[name](w), (4, 8))
    else:
        module = Of(lambda x, w: PARTS[name](x * w), (4, 8))
    assert_held(module, meta(4, 8))


JOINS: dict[str, tuple[Function, tuple[int, ...], list[tuple[int, ...]]]] = {
    "a weight in front": (lambda x, w: torch.cat([w, x], 1) * 1, (4, 8), [(4, 8)]),
    "a weight beside a product": (lambda x, w, v: torch.cat([w, x * v], 1), (4, 8), [(4, 8), (4, 8)]),
    "a weight behind a product": (lambda x, w, v: torch.cat([x * v, w], 1) * 2, (4, 8), [(4, 8), (4, 8)]),
    "weights in rows": (lambda x, w, v: torch.cat([v, w]) * x, (8, 8), [(4, 8), (4, 8)]),
    "weights in columns": (lambda x, w, v: torch.cat([v, w], 1) * x, (4, 16), [(4, 8), (4, 8)]),
    "weights in rows, at the end": (lambda x, w, v: torch.cat([v, w, x]), (4, 8), [(4, 8), (2, 8)]),
    "weights in columns, at the end": (lambda x, w, v: torch.cat([v, w, x], -1), (4, 8), [(4, 8), (4, 2)]),
    "stacked": (lambda x, w, v: torch.stack([v, w]) * x, (2, 4, 8), [(4, 8), (4, 8)]),
    "stacked behind": (lambda x, w, v: torch.stack([v, w], -1) * x, (4, 8, 2), [(4, 8), (4, 8)]),
    "hstack": (lambda x, w, v: torch.hstack([v, w]) * x, (4, 16), [(4, 8), (4, 8)]),
    "hstack of vectors": (lambda x, w, v: torch.hstack([v, w]) * x, (12,), [(4,), (8,)]),
    "vstack": (lambda x, w, v: torch.vstack([v, w]) * x, (8, 8), [(4, 8), (4, 8)]),
    "twice": (lambda x, w: torch.cat([w, w], 1) * x, (4, 16), [(4, 8)]),
    "twice in rows": (lambda x, w: torch.cat([w, w]) * x, (8, 8), [(4, 8)]),
    "a class token": (lambda x, w, v: torch.cat([w.expand(4, 1, 8), x * v], 1), (4, 3, 8), [(1, 1, 8), (8,)]),
    "a token, read": (lambda x, w, v: torch.cat([w.expand(4, 1, 8), x * v], 1).exp(), (4, 3, 8), [(1, 1, 8), (8,)]),
    "a slice of a weight": (lambda x, w: x * w[:, :4], (4, 4), [(4, 8)]),
    "a function of a slice": (lambda x, w: x * w[:, :4].exp(), (4, 4), [(4, 8)]),
    "a bare weight": (lambda x, w: x + w, (4, 8), [(4, 8)]),
}


COMPOSED: dict[str, tuple[Function, tuple[int, ...], list[tuple[int, ...]]]] = {
    "sort": (lambda x, w: (x * w).sort(1)[0], (4, 8), [(4, 8)]),
    "topk": (lambda x, w: (x * w).topk(3, 1)[0], (4, 8), [(4, 8)]),
    "kthvalue": (lambda x, w: (x * w).kthvalue(3, 0)[0], (4, 8), [(4, 8)]),
    "the largest": (lambda x, w: (x * w).max(1)[0], (4, 8), [(4, 8)]),
    "gather": (lambda x, w: (x * w).gather(1, x.argsort(1)[:, :3]), (4, 8), [(4, 8)]),
    "a power of 0": (lambda x, w: (x * w) ** 0, (4, 8), [(4, 8)]),
    "a power of 0.0": (lambda x, w: (x * w) ** 0.0 * 1, (4, 8), [(4, 8)]),
    "a power of 1": (lambda x, w: (x * w) ** 1, (4, 8), [(4, 8)]),
    "a power of two tensors": (lambda x, w, v: (x * w) ** (x * v), (4, 8), [(4, 8), (4, 8)]),
    "a power of a tensor": (lambda x, w: (x * w) ** x, (4, 8), [(4, 8)]),
    "a power by a tensor": (lambda x, w: x ** (x * w), (4, 8), [(4, 8)]),
    "a power by a row": (lambda x, w, v: (x * w) ** v, (4, 8), [(4, 8), (8,)]),
    "a power of a column": (lambda x, w, v: v ** (x * w), (4, 8), [(4, 8), (4, 1)]),
    "a power of a row by a column": (lambda x, w, v: w**v, (4, 8), [(8,), (4, 1)]),
    "a power by a number": (lambda x, w, v: (x * w) ** v, (4, 8), [(4, 8), ()]),
    "a power by whole numbers": (lambda x, w: (x * w) ** x.argsort(1), (4, 8), [(4, 8)]),
    **{
        f"a norm of order {order}": (lambda x, w, order=order: torch.norm(x * w, order, 1), (4, 8), [(4, 8)])
        for order in (0, 1, 2, 3, 0.5, 1.5, -1, float("inf"), -float("inf"))
    },
    "a norm": (lambda x, w: torch.norm(x * w), (4, 8), [(4, 8)]),
    "the largest magnitude": (lambda x, w: torch.linalg.vector_norm(x * w, float("inf")), (4, 8), [(4, 8)]),
    "a norm, kept": (lambda x, w: torch.linalg.vector_norm(x * w, dim=0, keepdim=True) * 1, (4, 8), [(4, 8)]),
    **{
        f"a grid, {how}": (
            lambda x, w, v, how=how: x * torch.mul(*torch.meshgrid(w, v, indexing=how)),
            (5, 8) if how == "ij" else (8, 5),
            [(5,), (8,)],
        )
        for how in ("ij", "xy")
    },
    "a grid of three": (
        lambda x, w, v, u: sum(torch.meshgrid(w * 1, v, u, indexing="xy"), x),
        (3, 5, 2),
        [(5,), (3,), (2,)],
    ),
    "cummax": (lambda x, w: (x * w).cummax(1)[0], (4, 8), [(4, 8)]),
}


@pytest.mark.parametrize("how", ["sum", "mean", "prod", "amax", "amin"])
@pytest.mark.parametrize("included", [True, False])
@pytest.mark.parametrize(("needed", "width"), [("both", 3), ("first", 1), ("second", 40), ("both", 1)])
def test_numbers_combined_at_places(how: str, included: bool, needed: str, width: int) -> None:
    """Both gradients are made, whichever is needed: of a few numbers, or of more than there are places."""

    def combined(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        into = w * 1 if needed != "second" else x[:4, :8] * 1
        numbers = v * 1 if needed != "first" else x[:4, :width] * 1
        rest = w.sum() if needed == "second" else v.sum() if needed == "first" else 0
        places = x[:4, :width].argsort(1)
        return into.scatter_reduce(1, places, numbers, how, include_self=included) + rest

    assert_held(Of(combined, (4, 8), (4, width)), meta(64, 64))


@pytest.mark.parametrize("name", COMPOSED)
def test_gradients_of_several_operators(name: str) -> None:
    """What PyTorch's gradient makes on its way is there for as long as PyTorch has it."""
    function, given, shapes = COMPOSED[name]
    assert_held(Of(function, *shapes), meta(*given))


@pytest.mark.parametrize("name", JOINS)
def test_weights_that_are_joined(name: str) -> None:
    """A weight takes a slice of what came in as its gradient where that lies in one piece, else a copy."""
    function, given, shapes = JOINS[name]
    assert_held(Of(function, *shapes), meta(*given))


RMS: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "a product": (lambda x, v, w: F.rms_norm(x * v, (8,), w) * 1, [(8,), (8,)]),
    "no weight": (lambda x, v: F.rms_norm(x * v, (8,)) * 1, [(8,)]),
    "an input": (lambda x, w: F.rms_norm(x * 1, (8,), w) * 1, [(8,)]),
}


@pytest.mark.parametrize("name", RMS)
@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_rms_norm_is_composed_in_single_precision(name: str, precision: Any, dtype: torch.dtype) -> None:
    function, shapes = RMS[name]
    module, x = Of(function, *shapes), meta(16, 8)
    model = cm.from_torch(module, x, dynamic={})
    module, x = module.to(dtype), x.to(dtype)
    with Tracker([x, *module.parameters()]) as tracker:
        y = module(x)
        tracker.phase = "backward"
        y.backward(torch.empty_like(y))
    on_paper = stated(cm.predict(model, device="cpu", optimizer="sgd", precision=precision))
    assert {phase: most.alive - on_paper[phase].alive for phase, most in tracker.most.items()} == {
        "forward": 0,
        "backward": 0,
    }
    with torch.no_grad(), Tracker([x, *module.parameters()]) as tracker:
        module(x)
    inferred = cm.predict(model, device="cpu", mode="inference", precision=precision)
    assert inferred.memory.peak == tracker.most["forward"].alive


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
def test_parts_of_modules(name: str) -> None:
    make, inputs = MODULES[name]
    assert_held(make().to("meta").train(), *inputs)
