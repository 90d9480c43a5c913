"""Every rule against PyTorch: operators side by side in one module, each on a tensor of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations  # noqa: F401

import costmodel as cm
from tests.graph.walking import check_tape
from tests.layers.device_kernels import check_kernels

from .imports import found, measured
from .measure import meta

pytestmark = pytest.mark.oracle

Operator = Callable[..., Any]


def ranged(x: Tensor, n: int) -> Tensor:
    return torch.arange(n, device=x.device)


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (3, 4)).transpose(1, 2)


def first_row_set(x: Tensor) -> Tensor:
    y = x * 1
    y[:, 0] = 0
    return y


def without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
    return x * y


def weight(*shape: int) -> nn.Module:
    return nn.ParameterList([nn.Parameter(torch.zeros(*shape))])


SEQUENCES: dict[str, Operator | tuple[Operator, Callable[[], nn.Module]]] = {
    "abs": torch.abs,
    "add, in place": lambda x: (x * 2).add_(x),
    "addcdiv": lambda x: torch.addcdiv(x, x, x * 2),
    "addcmul": lambda x: torch.addcmul(x, x, x),
    "amax": lambda x: x.amax(-1),
    "attention, causal": lambda x: F.scaled_dot_product_attention(heads(x), heads(x) * 2, heads(x) * 3, is_causal=True),
    "attention, three axes": lambda x: F.scaled_dot_product_attention(x, x * 2, x * 3),
    "attention, masked": lambda x: F.scaled_dot_product_attention(x, x * 2, x * 3, x[:, :, :5] > 0),
    "attention, with weights": (
        lambda x, m: m(x, x, x)[0],
        lambda: nn.MultiheadAttention(12, 3, 0.1, batch_first=True),
    ),
    "attention, of others": (
        lambda x, m: m(x, x * 2, x * 3, need_weights=False)[0],
        lambda: nn.MultiheadAttention(12, 3, batch_first=True),
    ),
    "batch norm": (lambda x, m: m(x.transpose(1, 2)), lambda: nn.BatchNorm1d(12)),
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "chunk": lambda x: torch.mul(*x.chunk(2, -1)),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp from below": lambda x: x.clamp(min=0),
    "cos and sin": lambda x: x.cos() * x.sin(),
    "cumsum": lambda x: x.cumsum(1),
    "detach": lambda x: x * x.detach(),
    "divide": lambda x: x / (x * 2),
    "divide one": lambda x: 1 / x,
    "einsum of batches": lambda x: torch.einsum("bik,bjk->bij", x, x * 2),
    "einsum to heads": (lambda x, m: torch.einsum("btk,khd->bthd", x, m[0]), lambda: weight(12, 2, 5)),
    "einsum without sum": lambda x: torch.einsum("bi,bj->bij", x[:, 0], x[:, 1]),
    "erf": torch.erf,
    "exp": torch.exp,
    "expand": lambda x: x.unsqueeze(1).expand(-1, 2, -1, -1) + 1,
    "flip": lambda x: x.flip(1) * x,
    "gather": lambda x: x.gather(-1, x.topk(3)[1]),
    "glu": F.glu,
    "hard shrink": F.hardshrink,
    "index": lambda x: x[:, ranged(x, 3)],
    "index_put": lambda x: (x * 1).index_put((ranged(x, 2),), torch.zeros(5, 12, device=x.device)),
    "index_select": lambda x: x.index_select(1, ranged(x, 3)),
    "layer norm over two": (lambda x, m: m(x), lambda: nn.LayerNorm((5, 12))),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
    "log": lambda x: x.log(),
    "log-sigmoid": F.logsigmoid,
    "logsumexp": lambda x: x.logsumexp(-1),
    "masked fill": lambda x: x.masked_fill(torch.ones(5, 12, dtype=torch.bool, device=x.device).tril(), 0.0),
    "matmul, broadcast": (lambda x, m: x @ m[0], lambda: weight(1, 12, 7)),
    "matmul, from the left": (lambda x, m: m[0] @ x, lambda: weight(7, 5)),
    "matmul, with a matrix": (lambda x, m: x @ m[0], lambda: weight(12, 7)),
    "matmul, with a turned matrix": (lambda x, m: x @ m[0].T, lambda: weight(7, 12)),
    "matmul, with a vector": (lambda x, m: x @ m[0], lambda: weight(12)),
    "max along": lambda x: x.max(-1)[0],
    "max of all": lambda x: x.max(),
    "mean": lambda x: x - x.mean(-1, keepdim=True),
    "meshgrid": lambda x: x + torch.meshgrid(ranged(x, 5), ranged(x, 12), indexing="ij")[0],
    "minimum": lambda x: torch.minimum(x, x * 2),
    "no gradient": without_gradient,
    "norm": lambda x: x.norm(dim=-1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "one minus": lambda x: 1 - x,
    "power": lambda x: x**3,
    "power of two": lambda x: 2**x,
    "prod": lambda x: x.prod(-1),
    "quantile": lambda x: x.quantile(torch.tensor([0.25, 0.5], device=x.device), 1),
    "repeat": lambda x: x.repeat(1, 2, 1) * 2,
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1) * 2,
    "roll": lambda x: x.roll(2, 1) * x,
    "rsqrt": torch.rsqrt,
    "scatter": lambda x: torch.zeros_like(x).scatter(-1, x.topk(2)[1], 1.0) * x,
    "selu": F.selu,
    "set a row": first_row_set,
    "scatter_reduce": lambda x: x.scatter_reduce(-1, x.topk(3)[1], x[..., :3] * 2, "prod"),
    "softmax along": lambda x: x.softmax(1),
    "soft sign": F.softsign,
    "sort": lambda x: x.sort()[0],
    "sqrt": torch.sqrt,
    "stack": lambda x: torch.stack([x, x * 2], 1),
    "std": lambda x: x.std(-1, keepdim=True),
    "tan": torch.tan,
    "topk": lambda x: x.topk(3)[0],
    "tril": lambda x: x.tril() * x,
    "unbind": lambda x: sum(x.unbind(1)),
    "unfold": lambda x: x.unfold(1, 2, 1) * 2,
    "var": lambda x: x.var(-1),
    "var_mean": lambda x: torch.var_mean(x, -1)[0],
    "where": lambda x: torch.where(x > 0, x, x * 2),
    "where, a number": lambda x: torch.where(x > 0, x, 0.0),
}

IMAGES = {
    "adaptive maximum": lambda x: F.adaptive_max_pool2d(x, 2),
    "average": lambda x: F.avg_pool2d(x, 2),
    "batch norm without running statistics": (lambda x, m: m(x), lambda: nn.BatchNorm2d(8, track_running_stats=False)),
    "channels last": (lambda x, m: m(x.to(memory_format=torch.channels_last)), lambda: nn.Conv2d(8, 4, 3)),
    "columns": lambda x: F.unfold(x, 3),
    "conv, same": (lambda x, m: m(x), lambda: nn.Conv2d(8, 4, 3, padding="same")),
    "conv, transposed": (lambda x, m: m(x), lambda: nn.ConvTranspose2d(8, 4, 3, stride=2)),
    "conv over volumes": (lambda x, m: m(x.unsqueeze(2)), lambda: nn.Conv3d(8, 4, (1, 3, 3))),
    "dropout of channels": F.dropout2d,
    "group norm": (lambda x, m: m(x), lambda: nn.GroupNorm(2, 8)),
    "instance norm": (lambda x, m: m(x), lambda: nn.InstanceNorm2d(8, affine=True)),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "pad by reflection": lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"),
    "pixel shuffle": lambda x: F.pixel_shuffle(x, 2) * 2,
    "prelu": (lambda x, m: m(x), lambda: nn.PReLU(8)),
    "resize": lambda x: F.interpolate(x, size=(13, 9), mode="bilinear"),
    "resize, nearest": lambda x: F.interpolate(x, scale_factor=2),
    "tokens": (lambda x, m: m(x.flatten(2).transpose(1, 2)), lambda: nn.Linear(8, 4)),
    "conv of a sequence": (lambda x, m: m(x.flatten(2)), lambda: nn.Conv1d(8, 4, 3, padding="same", groups=2)),
    "conv of a sequence, transposed": (lambda x, m: m(x.flatten(2)), lambda: nn.ConvTranspose1d(8, 4, 3, stride=2)),
    "maximum of a sequence": lambda x: F.max_pool1d(x.flatten(2), 2),
    "average of a sequence": lambda x: F.avg_pool1d(x.flatten(2), 2),
    "mean of a sequence": lambda x: F.adaptive_avg_pool1d(x.flatten(2), 1),
}


def targets(x: Tensor) -> Tensor:
    return torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)


def in_the_order_of_the_state(x: Tensor, cell: nn.Module) -> Tensor:
    """Both what a cell makes and that flattened are kept: one memory, or a copy."""
    y = cell(x, (x * 2).t().contiguous().t())
    return y.square().sum() + y.flatten().square().sum()


ROWS = {
    "binary cross-entropy": lambda x: F.binary_cross_entropy_with_logits(x, torch.zeros_like(x)),
    "cross-entropy": lambda x: F.cross_entropy(x, targets(x)),
    "gru cell": (in_the_order_of_the_state, lambda: nn.GRUCell(12, 12, bias=False)),
    "huber": lambda x: F.huber_loss(x, x * 2),
    "l1": lambda x: F.l1_loss(x, x * 2),
    "mean squared error": lambda x: F.mse_loss(x, x * 2),
    "mean squared error, summed": lambda x: F.mse_loss(x, x * 2, reduction="sum"),
    "mm": (lambda x, m: x @ m[0], lambda: weight(12, 3)),
    "mv": (lambda x, m: x @ m[0], lambda: weight(12)),
    "negative log-likelihood": lambda x: F.nll_loss(F.log_softmax(x, -1), targets(x)),
    "outer": lambda x: torch.outer(x[0], x[1]),
}


class SideBySide(nn.Module):
    """Operators on tensors of their own, made from what one layer makes."""

    def __init__(self, first: nn.Module, operators: dict[str, Any]) -> None:
        super().__init__()
        self.first = first
        pairs = [entry if isinstance(entry, tuple) else (entry, None) for entry in operators.values()]
        self.functions = [function for function, _ in pairs]
        self.parts = nn.ModuleList(nn.Identity() if make is None else make() for _, make in pairs)

    def forward(self, x: Tensor) -> list[Tensor]:
        base, made = self.first(x), []
        for number, (function, part) in enumerate(zip(self.functions, self.parts, strict=True)):
            given = (base + number,) if isinstance(part, nn.Identity) else (base + number, part)
            made.append(function(*given))
        return made


@pytest.mark.parametrize(
    ("first", "operators", "shape"),
    [
        (lambda: nn.Linear(4, 12), SEQUENCES, (3, 5, 4)),
        (lambda: nn.Conv2d(3, 8, 3, padding=1), IMAGES, (3, 3, 8, 8)),
        (lambda: nn.Linear(4, 12), ROWS, (3, 4)),
    ],
    ids=["sequences", "images", "rows"],
)
def test_operators_cost_what_they_do(
    first: Callable[[], nn.Module], operators: dict[str, Any], shape: tuple[int, ...]
) -> None:
    module = SideBySide(first(), operators).to("meta").train()
    model = cm.from_torch(module, meta(*shape), dynamic={"x": {0: "batch"}})
    assert found(model, batch=4) == measured(module, meta(4, *shape[1:]))
    check_kernels(tape := cm.predict(model, batch=4).tape)
    check_tape(tape)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_what_is_transposed_is_in_order(training: bool) -> None:
    """So that what is transposed back is copied by each layer that reads it."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
            self.last = nn.ModuleList(nn.Linear(8, 4) for _ in range(2))

        def forward(self, x: Tensor) -> list[Tensor]:
            h = self.norm(self.first(x).transpose(1, 2)).transpose(1, 2)
            return [layer(h) for layer in self.last]

    module = Normed().train(training)
    model = cm.from_torch(module, torch.zeros(2, 5, 6), dynamic={})
    assert found(model) == measured(module, torch.zeros(2, 5, 6), device="cpu")


NORMS = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}


@pytest.mark.parametrize("axes", NORMS)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_instance_norm_with_running_statistics(axes: int, affine: bool, training: bool, momentum: float | None) -> None:
    """They are repeated for each sample, and kept so."""
    norm: nn.Module = NORMS[axes](8, affine=affine, track_running_stats=True, momentum=momentum)
    module = nn.Sequential(nn.Conv2d(3, 8, 3) if axes == 2 else nn.Unflatten(1, (8, -1)), norm).train(training)
    shapes = {1: (5, 48), 2: (5, 3, 6, 6), 3: (5, 64, 2, 2)}
    model = cm.from_torch(module, torch.zeros(shapes[axes]), dynamic={"input": {0: "batch"}})
    x = torch.zeros(3, *shapes[axes][1:])
    assert found(model, batch=3) == measured(module, x, device="cpu")
    assert cm.predict(model, batch=3).memory.buffers == sum(buffer.nbytes for buffer in module.buffers())
