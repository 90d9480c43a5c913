"""Where gradients are parts of others, or put together of parts, backward holds what a memory tracker sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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


def assert_held(module: nn.Module, x: Tensor) -> None:
    """Backward's peak on paper is the tracker's."""
    model = cm.from_torch(module, x, dynamic={})
    assert found(model) == measured(module, x)
    on_paper: Any = stated(cm.predict(model, device="cpu", optimizer="sgd"))
    module.zero_grad()
    with Tracker([x, *module.parameters()]) as tracker:
        y = module(x)
        gradient = torch.empty_like(y)
        tracker.phase = "backward"
        y.backward(gradient)
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


@pytest.mark.parametrize("name", JOINS)
def test_weights_that_are_joined(name: str) -> None:
    """A weight takes a slice of what came in as its gradient where that lies in one piece, else a copy."""
    function, given, shapes = JOINS[name]
    assert_held(Of(function, *shapes), meta(*given))
