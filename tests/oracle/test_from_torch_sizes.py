"""Modules that do something else at other sizes cost there what they cost in PyTorch, or refuse these in one line."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import costmodel as cm
from costmodel.importers.files import build, describe
from tests.command import said_in_one_line
from tests.profiles import examples

from .imports import found, measured
from .measure import meta
from .settings import DRAWN

pytestmark = pytest.mark.oracle


class Sized(nn.Module):
    """Layers that take any length, and a function that calls them."""

    cache: Tensor

    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.a, self.b, self.qkv = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 24)
        self.conv, self.down = nn.Conv1d(8, 8, 3, padding=1), nn.Conv1d(8, 8, 3, stride=2, padding=1)
        self.even = nn.ModuleList(nn.Conv1d(8, 8, 4, padding="same") for _ in range(2))
        self.pair, self.norm = nn.Bilinear(8, 8, 4), nn.BatchNorm1d(8)
        self.table = nn.Parameter(torch.zeros(20, 8))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def windows(m: Sized, x: Tensor) -> Tensor:
    """Attention in windows of 8, of a sequence that is padded to whole ones."""
    batch, seq, width = x.shape
    pad = (8 - seq % 8) % 8
    parts = F.pad(x, (0, 0, 0, pad)).view(batch * ((seq + pad) // 8), 8, width)
    q, k, v = m.qkv(parts).chunk(3, -1)
    return m.b(F.scaled_dot_product_attention(q, k, v).reshape(batch, seq + pad, width)[:, :seq])


def padded(m: Sized, x: Tensor) -> Tensor:
    """Pads only where that is needed."""
    return m.a(F.pad(x, (0, 0, 0, 8 - x.shape[1] % 8)) if x.shape[1] % 8 else x)


def divided(m: Sized, x: Tensor) -> Tensor:
    """Takes lengths that 4 divides."""
    assert x.shape[1] % 4 == 0, "no multiple of 4"
    return m.a(x)


def halved(m: Sized, x: Tensor) -> Tensor:
    """As often as it takes to come to four steps."""
    x = x.transpose(1, 2)
    while x.shape[-1] > 4:
        x = m.down(x)
    return x


def rejoined(m: Sized, x: Tensor) -> Tensor:
    """Down and up again, as a U-Net; an odd length is padded at the end."""
    x = x.transpose(1, 2)
    y = F.interpolate(F.max_pool1d(m.conv(x), 2), scale_factor=2.0)
    if y.shape[-1] != x.shape[-1]:
        y = F.pad(y, (0, x.shape[-1] - y.shape[-1]))
    return m.conv(x + y)


def in_powers(m: Sized, x: Tensor) -> Tensor:
    """Padded to the next power of two."""
    length = 1
    while length < x.shape[1]:
        length *= 2
    return m.a(F.pad(x, (0, 0, 0, length - x.shape[1])))


def in_buckets(m: Sized, x: Tensor) -> Tensor:
    """Padded to one of a few lengths."""
    length = next((n for n in (4, 8, 16, 32) if x.shape[1] <= n), None)
    return x if length is None else m.a(F.pad(x, (0, 0, 0, length - x.shape[1])))


def remembered(m: Sized, x: Tensor) -> Tensor:
    """With a table that grows, as rotary ones do."""
    if not hasattr(m, "cache") or m.cache.shape[0] < x.shape[1]:
        m.cache = torch.zeros(x.shape[1], 8)
    return m.a(x * m.cache[: x.shape[1]])


def again(m: Sized, x: Tensor) -> Tensor:
    """Once for each four steps."""
    for _ in range(x.shape[1] // 4):
        x = m.a(x)
    return x


def nested(m: Sized, x: Tensor) -> Tensor:
    """Two decisions, one of which hangs on the other."""
    if x.shape[0] > 2:
        return m.a(x) if x.shape[1] % 2 else m.b(m.a(x))
    return m.a(x).relu()


def causal(m: Sized, x: Tensor) -> Tensor:
    """As models of `transformers` call attention."""
    q = m.a(x)[:, None]
    return F.scaled_dot_product_attention(q, q, q, is_causal=x.shape[1] > 1)


def biased(m: Sized, x: Tensor) -> Tensor:
    """Attention with a bias that is made for the length."""
    place = torch.arange(x.shape[1])
    y = m.a(x)
    return (y @ y.mT + (place[None] - place[:, None]).to(y.dtype)).softmax(-1) @ x


def masked(m: Sized, x: Tensor) -> Tensor:
    """Attention with a mask that is made for the length."""
    y = m.a(x)
    hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    return (y @ y.mT).masked_fill(hidden, float("-inf")).softmax(-1) @ x


def in_fours(m: Sized, x: Tensor) -> Tensor:
    """Whole groups of four steps, one of which is apart."""
    groups = x.shape[1] // 4
    y = x[:, : groups * 4].reshape(x.shape[0], groups, 32).view(x.shape[0], groups * 4, 8)
    return m.a(y) if groups == 1 else m.b(m.a(y))


FUNCTIONS: dict[str, Callable[[Any, Tensor], Any]] = {
    "every third batch": lambda m, x: m.a(x) if x.shape[0] % 3 else x.tanh(),
    "padded": padded,
    "padded always": lambda m, x: m.a(F.pad(x, (0, 0, 0, -x.shape[1] % 8))),
    "windows": windows,
    "two paths": lambda m, x: m.a(x) if x.size(1) > 16 else m.b(m.a(x)),
    "again": again,
    "rounded up": lambda m, x: m.a(x.repeat(1, 2, 1)[:, : -(-x.shape[1] // 4)]),
    "rounded by math": lambda m, x: m.a(x[:, : math.ceil(x.shape[1] / 3)]),
    "a share": lambda m, x: m.a(x[:, : int(x.shape[1] * 0.5)]),
    "a root": lambda m, x: m.a(x[:, : int(math.sqrt(x.shape[1]))]),
    "in fours": in_fours,
    "divided": divided,
    "least and most": lambda m, x: (
        m.a(x[:, : min(x.shape[1], 10)]).sum(1) + m.b(F.pad(x, (0, 0, 0, max(x.shape[1], 10) - x.shape[1]))).sum(1)
    ),
    "the first ten": lambda m, x: m.a(x[:, :10]),
    "the last ten": lambda m, x: m.a(x[:, -10:]),
    "three chunks": lambda m, x: torch.cat([m.a(part).mean(1) for part in x.chunk(3, 1)], -1),
    "by fives": lambda m, x: sum(m.a(part).sum(1) for part in x.split(5, 1)),
    "a table of places": lambda m, x: m.a(x + m.table[: x.shape[1]]),
    "a batch of one": lambda m, x: m.a(x) if x.shape[0] == 1 else m.b(m.a(x)),
    "squeezed": lambda m, x: m.a(x).squeeze(0) + m.b(x).squeeze(0),
    "a step alone": lambda m, x: m.a(x) if x.shape[1] > 1 else m.b(m.a(x)),
    "causal": causal,
    "a ratio": lambda m, x: m.a(x) if x.shape[1] / x.shape[0] > 2.5 else x.sigmoid(),
    "all elements": lambda m, x: m.a(x) if x.numel() > 300 else x.sigmoid(),
    "odd in all": lambda m, x: m.a(x) if (x.shape[0] * x.shape[1]) & 1 else m.b(m.a(x)),
    "halved": halved,
    "rejoined": rejoined,
    "even kernels": lambda m, x: m.even[1](m.even[0](x.transpose(1, 2))),
    "pairs": lambda m, x: m.pair(x, x.tanh()),
    "the shorter way": lambda m, x: m.a(x) @ m.b(x).mT if x.shape[1] < 10 else m.a(x).mT @ m.b(x),
    "a norm of the batch": lambda m, x: m.a(m.norm(x.mean(1))),
    "every other": lambda m, x: m.a(x[:, ::2]),
    "rolled": lambda m, x: m.a(torch.roll(x, -(x.shape[1] // 2), 1)),
    "masked": masked,
    "biased": biased,
    "unfolded": lambda m, x: m.a(x).unfold(1, 3, 2),
    "in powers": in_powers,
    "in buckets": in_buckets,
    "remembered": remembered,
    "halves": lambda m, x: m.a(x[:, : x.shape[1] // 2]) * m.b(x[:, x.shape[1] // 2 : x.shape[1] // 2 * 2]),
    "nested": nested,
}
EXAMPLE = (2, 12)
SIZES = tuple(product((1, 2, 3, 5), (1, 4, 7, 8, 9, 16, 17, 33)))


def assert_as_in_pytorch(function: Callable[[Any, Tensor], Any], model: Any, batch: int, seq: int) -> None:
    """It costs there what it does in PyTorch; where PyTorch raises an error it is refused in one line."""
    try:
        wanted = measured(Sized(function).to("meta"), meta(batch, seq, 8))
    except Exception:  # whatever the module's own code raises
        with pytest.raises(cm.CostModelError) as caught:
            found(model, batch=batch, seq=seq)
        said_in_one_line(caught.value)
    else:
        assert found(model, batch=batch, seq=seq) == wanted, (batch, seq)


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_module_costs_at_any_size_what_it_costs_in_pytorch(name: str) -> None:
    model = cm.from_torch(Sized(FUNCTIONS[name]).to("meta"), meta(*EXAMPLE, 8))
    for batch, seq in SIZES:
        assert_as_in_pytorch(FUNCTIONS[name], model, batch, seq)


@examples(min(4, DRAWN))
@given(st.sampled_from(sorted(FUNCTIONS)), st.sampled_from(SIZES), st.sampled_from([EXAMPLE, (3, 7), (1, 16)]))
def test_a_drawn_module_at_a_drawn_size(name: str, size: tuple[int, int], example: tuple[int, int]) -> None:
    try:
        model = cm.from_torch(Sized(FUNCTIONS[name]).to("meta"), meta(*example, 8))
    except cm.CostModelError as error:
        said_in_one_line(error)
    else:
        assert_as_in_pytorch(FUNCTIONS[name], model, *size)


@pytest.mark.parametrize("name", ["padded", "windows", "two paths", "a batch of one"])
def test_a_sweep_over_sizes_apart_is_many_predictions(name: str) -> None:
    model = cm.from_torch(Sized(FUNCTIONS[name]).to("meta"), meta(*EXAMPLE, 8))
    batches, lengths = (1, 2, 3), (1, 4, 8, 9, 12, 16, 17, 24)
    grid = cm.sweep(model, batch=batches, seq=lengths, quantities=["flops.total", "memory.activations"])
    for batch, seq in product(batches, lengths):
        cell, prediction = grid.sel(batch=batch, seq=seq), cm.predict(model, batch=batch, seq=seq)
        for quantity in ("flops.total", "memory.activations"):
            assert int(cell[quantity]) == prediction.value(quantity)


def test_a_size_that_is_solved_for_is_one_that_the_module_takes() -> None:
    model = cm.from_torch(Sized(divided).to("meta"), meta(2, 12, 8))
    answer = cm.solve(model, "flops.forward", 20_000, for_="seq", batch=1)
    assert answer.answer == 156  # 128 each, of which 156.25 would do
    assert answer.varied.note == "seq in steps of 4, which this module takes"


def test_a_file_holds_the_conditions() -> None:
    module = Sized(FUNCTIONS["every third batch"]).to("meta")
    model: Any = build(describe(cm.from_torch(module, meta(*EXAMPLE, 8))), "a file")
    assert cm.predict(model, batch=5).flops.forward == 2 * 5 * 12 * 8 * 8
    with pytest.raises(cm.CostModelError, match=r"batch=3 is not as 'Sized' was exported for, with batch % 3 != 0"):
        cm.predict(model, batch=3)


def test_sizes_that_are_tied_follow_each_other() -> None:
    model = cm.from_torch(Sized(lambda m, x: m.a(x) + x.transpose(0, 1)).to("meta"), meta(4, 4, 8))
    assert cm.predict(model, batch=6).flops.forward == cm.predict(model, batch=6, seq=6).flops.forward == 36 * 128
    with pytest.raises(cm.CostModelError, match="seq"):
        cm.predict(model, batch=6, seq=5)


def test_what_is_fixed_is_exported_anew() -> None:
    module = nn.GRU(8, 8, batch_first=True).to("meta")
    model = cm.from_torch(module, meta(2, 5, 8))
    assert "seq is fixed at 5" in model.notes
    assert found(model, batch=3, seq=7) == measured(module, meta(3, 7, 8))


def test_exports_for_other_sizes_are_bounded_work() -> None:
    model = cm.from_torch(Sized(again).to("meta"), meta(2, 12, 8))
    says = r"seq=1048576 is not as 'Sized' was exported for.*calls more than .* operators: does it end"
    with pytest.raises(cm.CostModelError, match=says) as caught:
        cm.predict(model, seq=2**20)
    said_in_one_line(caught.value)


def test_a_size_of_one_is_exported_when_it_is_first_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    exports: list[object] = []
    export = torch.export.export
    monkeypatch.setattr(
        torch.export, "export", lambda *args, **settings: exports.append(1) or export(*args, **settings)
    )
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to("meta")
    model = cm.from_torch(module, meta(2, 8))
    for batch, count in ((2, 1), (7, 1), (1, 2), (1, 2)):
        assert found(model, batch=batch) == measured(module, meta(batch, 8))
        assert len(exports) == count
    again: Any = build(describe(cm.from_torch(module, meta(2, 8))), "a file")
    assert found(again, batch=1) == measured(module, meta(1, 8))
