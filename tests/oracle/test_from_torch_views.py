"""A write to a view is a write to its base: gradients go through it, and every other view sees it (``CopySlices``)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, reject
from hypothesis import strategies as st
from torch import Tensor, nn

import costmodel as cm
from tests.profiles import examples

from .imports import found, measured, without_data
from .settings import DRAWN

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
