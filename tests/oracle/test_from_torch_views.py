"""A write to a view is a write to its base: gradients go through it, and every other view sees it (``CopySlices``).

What is kept, the FLOPs, and what backward holds at its peak are PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, reject
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import costmodel as cm
from tests.profiles import examples

from .imports import found, measured, without_data
from .settings import DRAWN
from .test_timeline import stated
from .tracker import Tracker

pytestmark = pytest.mark.oracle

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda h: h[:],
    "select": lambda h: h[:, 2],
    "slice": lambda h: h[:, 1:3],
    "every second": lambda h: h[..., ::2],
    "slice of a slice": lambda h: h[:, 1:][..., :5],
    "flat": lambda h: h.view(-1, 8),
    "part of flat": lambda h: h.view(-1, 8)[:, 3:],
    "transposed": lambda h: h.transpose(1, 2),
    "slice of transposed": lambda h: h.transpose(1, 2)[:, 1:],
    "heads": lambda h: h.view(*h.shape[:2], 2, 4)[:, :, 1],
    "one more axis": lambda h: h.unsqueeze(1),
    "diagonal": lambda h: h.diagonal(dim1=1, dim2=2),
}
WRITES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "copy": lambda v, other: v.copy_(other),
    "add": lambda v, other: v.add_(other),
    "scale": lambda v, other: v.mul_(3),
    "tanh": lambda v, other: v.tanh_(),
    "fill": lambda v, other: v.fill_(1.0),
    "mask": lambda v, other: v.masked_fill_(other > 0, 0.0),
    "places": lambda v, other: v.__setitem__((slice(None), [0, 1]), other[:, [1, 0]]),
}
Write = tuple[str, str]


class Writing(nn.Module):
    """Writes to views of a result, or of a buffer; then reads the base, the views, and views taken before."""

    def __init__(self, writes: list[Write], further: list[str], readers: list[str], *, buffer: bool) -> None:
        super().__init__()
        self.base, self.other, self.last = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)
        self.writes, self.further, self.readers, self.buffer = writes, further, readers, buffer

    def forward(self, x: Tensor) -> list[Tensor]:
        h, other = self.base(x) * 2, self.other(x) * 2
        h = torch.zeros_like(h) if self.buffer else h
        views = [VIEWS[name](h) for name in self.further]
        for view, write in self.writes:
            views.append(VIEWS[view](h))
            WRITES[write](views[-1], VIEWS[view](other))
        reads = {"base": [h], "views": views, "view of base": [VIEWS["slice"](h)]}
        return [self.last(h), *(torch.sin(v) for reader in self.readers for v in reads[reader])]


@examples(DRAWN)
@example([("diagonal", "add"), ("all", "add"), ("all", "add")], [], ["views"], False)
@example([("slice of a slice", "tanh")], [], ["base", "views"], False)
@example([("slice of a slice", "places")], [], ["views", "base"], False)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(VIEWS)), st.sampled_from(sorted(WRITES))), min_size=1, max_size=3),
    st.lists(st.sampled_from(sorted(VIEWS)), max_size=2),
    st.lists(st.sampled_from(["base", "views", "view of base"]), unique=True),
    st.booleans(),
)
def test_a_write_to_a_view_reaches_its_base(
    writes: list[Write], further: list[str], readers: list[str], buffer: bool
) -> None:
    module = without_data(lambda: Writing(writes, further, readers, buffer=buffer))
    x = torch.zeros(2, 4, 6, device="meta")
    try:
        cost = measured(module, x)
    except RuntimeError as error:  # what backward needs has been written over
        if "modified by an inplace operation" not in str(error):
            raise
        reject()
    model = cm.from_torch(module, x)
    assert found(model, batch=2) == cost
    if all(y.requires_grad for y in module(x)):  # else the module's last layer may be one that needs no gradient
        assert held_on_paper(model, batch=2) == held(module, x)


def held_on_paper(model: Any, **settings: Any) -> int:
    """The peak of backward, as the library has it [bytes]."""
    return stated(cm.predict(model, device="cpu", optimizer="sgd", **settings))["backward"].alive


def held(module: nn.Module, *inputs: Tensor) -> int:
    """The same as a tracker has it."""
    module.zero_grad()
    with Tracker([*inputs, *module.parameters(), *module.buffers()]) as tracker:
        results = [y for y in tree_leaves(module(*inputs)) if y.requires_grad]
        gradients = [torch.empty_like(y) for y in results]
        tracker.phase = "backward"
        torch.autograd.backward(results, gradients)
    return tracker.most["backward"].alive


class Filled(nn.Module):
    """A recurrent layer that puts its state into a buffer at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.input, self.state, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.input(x)
        out, state = torch.zeros_like(h), h[:, 0]
        for t in range(x.shape[1]):
            state = torch.tanh(self.state(state) + h[:, t])
            out[:, t] = state
        return self.last(out)


class Block(nn.Module):
    """One of equal blocks, which writes to what it is handed, to what it makes, or to what all share."""

    def __init__(self, write: str) -> None:
        super().__init__()
        self.layer, self.write = nn.Linear(8, 8), write

    def forward(self, x: Tensor, shared: Tensor) -> Tensor:
        y = self.layer(x * 2) * 2
        if self.write == "handed":
            x[:, :2] = y[:, 2:]
            return x * 2
        if self.write == "made":
            y[:, :2] = torch.tanh(y[:, 2:] * 2)
        if self.write == "handed on":
            y.view(-1, 8)[:, :5].tanh_()
        if self.write == "shared":
            shared[:, 1] = y[:, 0]
        return y


class Blocks(nn.Module):
    """Equal blocks in a row."""

    def __init__(self, write: str) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(Block(write) for _ in range(4))

    def forward(self, x: Tensor) -> list[Tensor]:
        h = self.first(x) * 2
        shared = torch.zeros_like(h)
        for block in self.blocks:
            h = block(h, shared)
        return [self.last(h), self.last(shared)]


MODULES: dict[str, Callable[[], nn.Module]] = {
    "a buffer that is filled": Filled,
    **{f"blocks, written: {name}": lambda n=name: Blocks(n) for name in ("handed", "made", "handed on", "shared")},
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("batch", [2, 5])
def test_what_is_written_in_steps_has_its_gradient(name: str, batch: int) -> None:
    module = without_data(MODULES[name])
    model = cm.from_torch(module, torch.zeros(2, 4, 6, device="meta"))
    assert found(model, batch=batch) == measured(module, torch.zeros(batch, 4, 6, device="meta"))


Body = Callable[[Any, Tensor, Tensor], Tensor]


class Changed(nn.Module):
    """Something is done to a result, with another one."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)
        self.norm, self.state = nn.LayerNorm(4), nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("cache", torch.zeros(2, 16, 8))
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.body(self, self.a(x) * 2, self.b(x) * 2))


CHANGES: dict[str, Body] = {}


def change(function: Any) -> Any:
    """Enter what is done."""
    CHANGES[function.__name__.replace("_", " ").strip()] = function
    return function


@change
def places_of_a_mask(net: Any, h: Tensor, other: Tensor) -> Tensor:
    h[:, :2].masked_fill_(other[:, :2] > 0, -1.0)
    return h


@change
def indices_of_a_view(net: Any, h: Tensor, other: Tensor) -> Tensor:
    h.transpose(0, 1).index_put_((torch.tensor([0, 1], device=h.device),), other.transpose(0, 1)[:2] * 1)
    return h


@change
def sums_at_indices(net: Any, h: Tensor, other: Tensor) -> Tensor:
    h[:, :2].index_add_(1, torch.tensor([0, 1, 1, 0], device=h.device), other)
    return h


@change
def numbers_scattered(net: Any, h: Tensor, other: Tensor) -> Tensor:
    h.scatter_(1, other.argsort(1), other)
    return torch.zeros_like(h).scatter_add_(1, other.argsort(1), other) * h


@change
def halves_of_new_memory(net: Any, h: Tensor, other: Tensor) -> Tensor:
    out = torch.empty_like(h)
    out[..., :4].copy_(other[..., 4:])
    out[..., 4:].copy_(-h[..., :4])
    return out


@change
def rotary_in_place(net: Any, h: Tensor, other: Tensor) -> Tensor:
    c, h = other.detach().cos(), h.clone()
    a, b = h[..., ::2].clone(), h[..., 1::2].clone()
    h[..., ::2] = a * c[..., ::2] - b * c[..., 1::2]
    h[..., 1::2] = a * c[..., 1::2] + b * c[..., ::2]
    return h


@change
def one_column(net: Any, h: Tensor, other: Tensor) -> Tensor:
    h[..., 0] *= 2
    h[..., 1] += other[..., 2]
    h[..., 4:] *= other[..., :4]
    return h


@change
def all_of_it(net: Any, h: Tensor, other: Tensor) -> Tensor:
    return h.copy_(other)


@change
def zeros(net: Any, h: Tensor, other: Tensor) -> Tensor:
    h[:, 1:3].zero_()
    return h * other


@change
def without_gradients(net: Any, h: Tensor, other: Tensor) -> Tensor:
    with torch.no_grad():
        h[:, 0] = 0
    h.data[:, 1] = 1
    part = h.detach()
    part[:, 2] = 2
    return h * other


@change
def running_mean(net: Any, h: Tensor, other: Tensor) -> Tensor:
    net.mean.mul_(0.9).add_(h.detach().mean((0, 1)), alpha=0.1)
    return h - net.mean


@change
def keys_in_a_cache(net: Any, h: Tensor, other: Tensor) -> Tensor:
    cache = net.cache.clone()
    cache[:, : h.shape[1]] = h
    return (other @ cache.transpose(1, 2)).softmax(-1) @ cache


@change
def views_of_views(net: Any, h: Tensor, other: Tensor) -> Tensor:
    h.narrow(1, 1, 2).transpose(1, 2)[:, :4].mul_(3)
    h.view(-1, 8).t()[2:5].tanh_()
    return h


@change
def activations_in_place(net: Any, h: Tensor, other: Tensor) -> Tensor:
    F.silu(h.view(-1, 8), inplace=True)
    h[..., :3].clamp_(min=0)
    return nn.ReLU(inplace=True)(h.flatten(0, 1)).view_as(h)


@change
def one_after_another(net: Any, h: Tensor, other: Tensor) -> Tensor:
    h = h.clone()
    for t in range(1, h.shape[1]):
        h[:, t] = h[:, t] + 0.5 * h[:, t - 1]
    return h


@change
def a_buffer_in_a_loop(net: Any, h: Tensor, other: Tensor) -> Tensor:
    out = h.new_empty(h.shape)
    for t in range(h.shape[1]):
        out[:, t, :] = torch.tanh(net.state(h[:, t])) + other[:, t]
    return out


@change
def a_diagonal(net: Any, h: Tensor, other: Tensor) -> Tensor:
    scores = h @ h.transpose(1, 2)
    scores.diagonal(dim1=1, dim2=2).fill_(0)
    return scores @ other


@change
def places_broadcast(net: Any, h: Tensor, other: Tensor) -> Tensor:
    h[:, 1:].copy_(other[:, :1])
    h[:, :1] = net.mean
    return h


COMPOSED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "a product of rows": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(True), nn.Linear(8, 3)), (5, 6)),
    "a product of three axes": (lambda: nn.Sequential(nn.Linear(6, 8), nn.SiLU(True), nn.Linear(8, 3)), (2, 5, 6)),
    "a product of four": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(True), nn.Linear(8, 3)), (1, 2, 5, 6)),
    "without a bias": (lambda: nn.Sequential(nn.Linear(6, 8, False), nn.ReLU(True), nn.Linear(8, 3)), (2, 5, 6)),
    "an instance norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8), nn.LeakyReLU(0.2, True), nn.Conv2d(8, 2, 1)),
        (2, 3, 6, 6),
    ),
    "a batch norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(True), nn.Conv2d(8, 2, 1)),
        (2, 3, 6, 6),
    ),
    "a pool of a sequence": (
        lambda: nn.Sequential(nn.Conv1d(3, 8, 3), nn.MaxPool1d(2), nn.ReLU(True), nn.Conv1d(8, 2, 1)),
        (2, 3, 8),
    ),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_what_is_composed_may_make_a_view(name: str) -> None:
    make, shape = COMPOSED[name]
    module, x = without_data(make), torch.zeros(shape, device="meta")
    model = cm.from_torch(module, x, dynamic={})
    assert found(model) == measured(module, x)
    assert held_on_paper(model) == held(module, x)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_holds_what_it_does(name: str) -> None:
    module, x = without_data(lambda: Changed(CHANGES[name])), torch.zeros(2, 4, 6, device="meta")
    model = cm.from_torch(module, x, dynamic={})
    assert found(model) == measured(module, x)
    assert held_on_paper(model) == held(module, x)
