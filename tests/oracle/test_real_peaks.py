"""Peaks of training steps against the CPU's allocator, whose events also have what an operator takes for itself.

What PyTorch's CPU kernels take where those of a GPU do not is left out: the copies that a convolution or a product
unfolds or reorders its operands into, and what is searched for a rank. Numbers of one element, which come and go by the
dozen, and the names that Python still has for what it no longer needs, are within half a percent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import costmodel as cm

from .test_timeline import stated
from .tracker import allocated

pytestmark = pytest.mark.oracle

Function = Callable[..., Tensor]


class After(nn.Module):
    """A function of what linear layers make of the first inputs, of further inputs, and of bare weights."""

    def __init__(self, function: Function, width: int, layers: int = 1, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.layers = nn.ModuleList(nn.Linear(8, width) for _ in range(layers))
        self.weights = nn.ParameterList(nn.Parameter(torch.rand(shape)) for shape in shapes)

    def forward(self, *inputs: Tensor) -> Tensor:
        n = len(self.layers)
        made = (layer(x) for layer, x in zip(self.layers, inputs[:n], strict=True))
        return self.function(*made, *inputs[n:], *self.weights)


def step_of(module: nn.Module, inputs: tuple[Tensor, ...]) -> Iterator[str]:
    """Forward and backward, each announced by its name."""
    yield "forward"
    y = module(*inputs)
    yield "backward"
    y.backward(torch.ones_like(y))


def assert_allocated(module: nn.Module, *inputs: Tensor, named: bool = False) -> None:
    """Each phase's peak on paper is within half a percent of what the allocator handed out.

    named: what a function has names for until it returns makes its forward pass the highest.
    """
    on_paper: Any = stated(cm.predict(cm.from_torch(module, inputs, dynamic={}), device="cpu", optimizer="sgd"))
    for _ in step_of(module, inputs):  # the first step also takes what stays
        pass
    module.zero_grad()
    seen = allocated(lambda: step_of(module, inputs), [*inputs, *module.parameters(), *module.buffers()])
    assert on_paper["backward"].alive == pytest.approx(seen["backward"], rel=0.005)
    assert on_paper["forward"].alive <= seen["forward"] * 1.005
    if not named:
        assert max(most.alive for most in on_paper.values()) == pytest.approx(max(seen.values()), rel=0.005)


LOSSES: dict[str, Callable[..., Function]] = {
    **{
        name: lambda reduction, name=name: lambda y, t: getattr(F, name)(y, t, reduction=reduction)
        for name in ("mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss", "binary_cross_entropy_with_logits")
    },
    "bce": lambda reduction: lambda y, t: F.binary_cross_entropy(y.sigmoid(), t, reduction=reduction),
    "kl_div": lambda reduction: lambda y, t: F.kl_div(y, t, reduction=reduction),
    "soft margin": lambda reduction: lambda y, t: F.soft_margin_loss(y, t, reduction=reduction),
    "weighed positives": lambda reduction: (
        lambda y, t: F.binary_cross_entropy_with_logits(y, t, pos_weight=torch.ones(y.shape[-1]), reduction=reduction)
    ),
    "a divergence to what is trained": lambda reduction: (
        lambda y, t: F.kl_div(t.log(), y.softmax(-1), reduction=reduction)
    ),
}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, reduction: str) -> None:
    assert_allocated(After(LOSSES[name](reduction), 400), torch.rand(64, 8), torch.rand(64, 400))


def pairs(y: Tensor) -> Tensor:
    """Complex numbers of neighbours."""
    return torch.view_as_complex(y.unflatten(-1, (-1, 2)))


def real(y: Tensor) -> Tensor:
    """Pairs of complex numbers' parts."""
    return torch.view_as_real(y) if y.is_complex() else y


OF_ONE: dict[str, Function] = {
    **{
        f"{name} along {axis}": lambda y, name=name, axis=axis: getattr(torch, name)(y, axis)
        for name in ("amax", "prod", "nansum", "cumsum", "cumprod", "logcumsumexp", "logsumexp", "var")
        for axis in (0, 1)
    },
    **{f"{name} of all": lambda y, name=name: getattr(torch, name)(y) for name in ("max", "amin", "prod", "std")},
    **{f"norm {order}": lambda y, order=order: torch.linalg.vector_norm(y, order, 1) for order in (1, 2, 3, torch.inf)},
    "turned running sums": lambda y: y.flip(1).cumsum(1).flip(1).exp(),
    "the middle of all": lambda y: y.median(),
    "slices no longer than a norm": lambda y: y.renorm(2, 0, 1.0),
    "few levels": lambda y: torch.fake_quantize_per_tensor_affine(y, 0.1, 0, 0, 255),
    "sinc": torch.sinc,
    "numbers for none": torch.nan_to_num,
    "one part of four": lambda y: y.split(y.shape[1] // 4, 1)[2].exp(),
    "parts of unlike sizes": lambda y: y.split([20, y.shape[1] - 20], 1)[0] * 2,
    "a product with a mask": lambda y: y * (y.detach() > 0),
    "a count of truth values": lambda y: (y > 0).sum() * y.exp(),
    "log_ndtr": torch.special.log_ndtr,
    **{f"complex {name}": lambda y, name=name: real(getattr(pairs(y), name)()) for name in ("abs", "angle", "exp")},
    "complex reciprocal": lambda y: real(pairs(y).reciprocal()),
}


@pytest.mark.parametrize("name", OF_ONE)
@pytest.mark.parametrize(("rows", "width"), [(64, 400), (300, 90)])
def test_functions_of_a_tensor(name: str, rows: int, width: int) -> None:
    assert_allocated(After(OF_ONE[name], width), torch.rand(rows, 8))


OF_SEVERAL: dict[str, Function] = {
    "add": lambda a, b, _: torch.add(a, b, alpha=0.5),
    "sub": lambda a, b, _: torch.sub(a, b, alpha=0.5),
    "rsub": lambda a, b, _: torch.rsub(a, b, alpha=2),
    "addcmul": lambda a, b, c: torch.addcmul(a, b, c, value=0.5),
    "addcdiv": lambda a, b, c: torch.addcdiv(a, b, c),
    "addcmul, added last": lambda a, b, c: torch.addcmul(c, a, b),
    "masked_scatter": lambda a, b, _: b.masked_scatter(a.detach() > 0, a),
    "complex product": lambda a, b, _: real(pairs(a) * pairs(b)),
    "complex quotient": lambda a, b, _: real(pairs(a) / pairs(b)),
    "lengths and angles": lambda a, b, _: real(torch.polar(a, b)),
    "addcdiv, divided by the first": lambda a, b, c: torch.addcdiv(c, b, a, value=0.5),
}


@pytest.mark.parametrize("name", OF_SEVERAL)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("row", [False, True])
def test_functions_of_several(name: str, layers: int, row: bool) -> None:
    """Of one or two that are computed, and the last a constant or a trained row."""
    module = After(OF_SEVERAL[name], 400, layers, *[(400,)] * row)
    others = (torch.rand(64, 400) for _ in range(3 - layers - row))
    assert_allocated(module, *(torch.rand(64, 8) for _ in range(layers)), *others)


def _boxes(y: Tensor, t: Tensor) -> Tensor:
    """The generalised intersection over union of boxes, whose four columns are read several times each."""
    p = y.view(-1, 4)
    q = t.view(-1, 4)
    low, high = torch.max(p[:, :2], q[:, :2]), torch.min(p[:, 2:], q[:, 2:])
    side = (high - low).clamp(min=0)
    met = side[:, 0] * side[:, 1]
    joint = (p[:, 2] - p[:, 0]) * (p[:, 3] - p[:, 1]) + (q[:, 2] - q[:, 0]) * (q[:, 3] - q[:, 1]) - met
    hull = (torch.max(p[:, 2], q[:, 2]) - torch.min(p[:, 0], q[:, 0])) * (p[:, 3] - p[:, 1]).abs() + 1
    return (1 - met / joint + (hull - joint) / hull).mean()


SUMS: dict[str, Function] = {
    "a product of two functions": lambda y, _: y.sin() * y.exp(),
    "a residual": lambda y, _: (lambda h: (h + h.exp()).sin())(y.cos()),
    "read thrice": lambda y, _: torch.cat([y, y * 2, y.exp()], 1),
    "two halves": lambda y, _: y[:, :200] * y[:, 200:],
    "a view and what it is of": lambda y, _: (y.view(-1).exp()).view(y.shape) * y.sin(),
    "columns": lambda y, _: (lambda p: p[:, 0] * p[:, 1] + p[:, 2] * p[:, 3])(y.view(-1, 4)),
    "boxes": _boxes,
    "losses of columns": lambda y, t: (
        F.mse_loss(y[:, :100], t[:, :100]) + F.smooth_l1_loss(y[:, 100:300], t[:, 100:300]) + y[:, 300:].exp().mean()
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_gradients_that_come_together(name: str) -> None:
    """The second is added to the first in place, where nothing else holds that and it is no view."""
    assert_allocated(After(SUMS[name], 400), torch.rand(64, 8), torch.rand(64, 400), named=name == "boxes")


REORDERED: dict[str, tuple[Function, tuple[int, ...]]] = {
    "transposed, and copied": (lambda y: y.transpose(1, 2).contiguous(), ()),
    "transposed, and flattened": (lambda y: y.transpose(1, 2).reshape(4, -1), ()),
    "heads": (lambda y: y.view(4, 20, 6, 10).transpose(1, 2).softmax(-1), ()),
    "time first": (lambda y, w: F.linear(y.transpose(0, 1), w).softmax(-1), (70, 60)),
    "a weight beside what is transposed": (lambda y, w: y.transpose(1, 2) * w, (4, 60, 20)),
    "a weight beside what is expanded": (lambda y, w: y.transpose(1, 2).expand(3, 4, 60, 20) * w, (3, 4, 60, 20)),
}


@pytest.mark.parametrize("name", REORDERED)
def test_gradients_in_another_order(name: str) -> None:
    """A product that sees rows has a copy made of one; so has a weight, which keeps none in another order."""
    function, shape = REORDERED[name]
    assert_allocated(After(function, 60, 1, *[shape] * (shape != ())), torch.rand(4, 20, 8))


IMAGES: dict[str, Function] = {
    "unfold": lambda y: F.unfold(y, 3, padding=1) * 2,
    "unfold to as many": lambda y: F.unfold(y, 4, stride=4).exp(),
    "fold": lambda y: F.fold(F.unfold(y, 3, padding=1).exp(), (16, 16), 3, padding=1).sin(),
    "reflected": lambda y: F.pad(y, (2, 2, 1, 1), mode="reflect").exp(),
    "round": lambda y: F.pad(y, (3, 1, 0, 2), mode="circular").exp(),
    "round, handed out": lambda y: F.pad(y, (16, 2, 1, 16), mode="circular"),
    "round on one side": lambda y: F.pad(y, (0, 12, 0, 0), mode="circular") * 2,
    "round beside what is read": lambda y: F.pad(y, (2, 2, 16, 0), mode="circular").sum() + y.tanh().sum(),
}


@pytest.mark.parametrize("name", IMAGES)
def test_windows_of_an_image(name: str) -> None:
    """What windows are added up to is in memory that was taken for all of them."""
    module = After(lambda y: IMAGES[name](y.view(4, 8, 16, 16)), 2048)
    assert_allocated(module, torch.rand(4, 8))


SUMMED: dict[str, tuple[Function, tuple[int, ...]]] = {
    "a product": (lambda y, w: y.view(64, -1) @ w, (90, 200)),
    "a product of the result": (lambda y: y.view(64, -1) @ y.view(64, -1).t(), ()),
    "rows": (lambda y, w: F.linear(y.view(4, 16, -1), w), (120, 90)),
    "softmax": (lambda y: y.softmax(-1), ()),
    "logarithms": (lambda y: y.log_softmax(-1), ()),
    "gelu": (F.gelu, ()),
    "a table": (lambda y, w: F.embedding(torch.zeros(64, 3, dtype=torch.long), w) * y.mean(), (50, 90)),
    "groups": (lambda y: F.group_norm(y.view(2, 9, 320), 3), ()),
    "maxima": (lambda y: F.max_pool2d(y.view(64, 1, 9, 10), 2), ()),
    "means": (lambda y: F.avg_pool2d(y.view(64, 1, 9, 10), 2), ()),
    "reflected": (lambda y: F.pad(y.view(64, 1, 9, 10), (2, 2, 2, 2), mode="reflect"), ()),
    "enlarged": (lambda y: F.interpolate(y.view(64, 1, 9, 10), scale_factor=2, mode="bilinear"), ()),
    "windows": (lambda y: F.unfold(y.view(64, 1, 9, 10), 3), ()),
    "exponentials": (torch.exp, ()),
}


@pytest.mark.parametrize("name", SUMMED)
@pytest.mark.parametrize("axis", [None, -1])
def test_gradients_seen_at_several_places(name: str, axis: int | None) -> None:
    """Of a sum there is one number for all that it adds up; what goes by rows has a copy made of it."""
    function, shape = SUMMED[name]
    module = After(lambda y, *w: function(y, *w).sum(axis), 90, 1, *[shape] * (shape != ()))
    assert_allocated(module, torch.rand(64, 8))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("width", [10, 400])
def test_sums_of_a_linear_layer(width: int, bias: bool) -> None:
    module = nn.Sequential(nn.Linear(64, 90), nn.Linear(90, width, bias=bias), After(torch.sum, 1, 0))
    assert_allocated(module, torch.rand(64, 64))
