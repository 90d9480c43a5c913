"""The modules of `models` with the numbers that a cost does not depend on, as NumPy's run has them.

Tables of positions and masks, the ε of norms, experts in turn, and the random numbers of dropout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import models, networks

EPSILON = 1e-5


class Chance:
    """Random numbers in the order in which dropouts ask for them, from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def saved(self, p: float, *shape: int) -> Tensor:
        """What of a shape is not dropped."""
        return torch.from_numpy(self.random.random(shape) >= p)


@contextmanager
def chances(seed: int) -> Iterator[None]:
    """Every dropout within draws from `seed`."""
    chance = Chance(seed)

    def thinned(axes: int | None) -> Any:
        def forward(self: Any, x: Tensor) -> Tensor:
            if not self.training or self.p == 0:
                return x
            shape = x.shape if axes is None else (*x.shape[:axes], *(1 for _ in x.shape[axes:]))
            return x * chance.saved(self.p, *shape) / (1 - self.p)

        return forward

    with ExitStack() as stack:
        for kind in (models.Dropout, networks.Dropout):
            stack.enter_context(patch.object(kind, "forward", thinned(None)))
        stack.enter_context(patch.object(nn.Dropout2d, "forward", thinned(2)))
        stack.enter_context(patch.object(networks.StochasticDepth, "forward", thinned(1)))
        yield


class HeadNorms(nn.Module):
    """`models.HeadNorms` with one weight for all heads."""

    def __init__(self, heads: int, features: int, affine: bool, bias: bool) -> None:
        super().__init__()
        assert not bias
        self.weight = nn.Parameter(torch.ones(heads, features)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.layer_norm(x, x.shape[-1:], eps=EPSILON)
        return y if self.weight is None else y * self.weight


class ExpertLinear(models.ExpertLinear):
    """Rows in turn, to the experts that have any."""

    busy: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        parts = x.tensor_split(self.busy or len(self.weight))
        of = [None] * len(self.weight) if self.bias is None else self.bias
        return torch.cat([F.linear(part, w, b) for part, w, b in zip(parts, self.weight, of, strict=False)])


def in_turn(self: Any, chosen: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Rows in the order of tokens, whichever experts were chosen; those beyond the experts' room start anew."""
    choices = torch.arange(len(chosen))
    if self.experts.capacity_factor is None:
        return choices // self.experts.per_token, choices
    room = self.fitting(tokens)
    return torch.arange(room) % tokens, choices % room


def rms_norm(self: Any, x: Tensor) -> Tensor:
    """With the usual ε."""
    return F.rms_norm(x, (self.features,), self.weight, EPSILON)


def xielu(self: Any, x: Tensor) -> Tensor:
    """Huang & Schlag 2024, eq. 3 and 4, as ``XIELUActivation`` in transformers has it."""
    positive, negative, beta = F.softplus(self.positive), 0.5 + F.softplus(self.negative), 0.5
    below = torch.expm1(x.clamp(max=-1e-6)) - x
    return torch.where(x > 0, positive * x * x, negative * below) + beta * x


@contextmanager
def with_numbers() -> Iterator[None]:
    """Modules that are made and run within have the numbers that NumPy's run has."""
    with (
        patch.object(models.RMSNorm, "forward", rms_norm),
        patch.object(models.Xielu, "forward", xielu),
        patch.object(models, "HeadNorms", HeadNorms),
        patch.object(models, "ExpertLinear", ExpertLinear),
        patch.object(models.Experts, "sent", in_turn),
    ):
        yield


def fill_tables(module: nn.Module) -> None:
    """Masks, slopes, angles and buckets of all attention within."""
    for part in module.modules():
        if isinstance(part, models.Body):
            for number, block in enumerate(part.blocks):
                _fill(block.attention, number)
            for relative in (part.relative, *(block.attention.relative for block in part.blocks)):
                if relative is not None:
                    table, count = relative.relative_buckets, relative.biases.num_embeddings
                    table.copy_(buckets(*table.shape, count, part.blocks[0].spec.causal))
        if isinstance(part, models.Experts) and part.experts.imbalance != 1 and part.experts.capacity_factor is None:
            for linear in (part.gate, part.up, part.down):
                if linear is not None:
                    linear.busy = math.ceil(part.experts.count / part.experts.imbalance)


def _fill(attention: Any, number: int) -> None:
    spec, seq = attention.spec, len(attention.mask)
    behind = torch.arange(seq)[:, None] - torch.arange(seq)
    hidden = (behind < 0) & torch.tensor(spec.causal)
    if spec.window is not None and models.falls_on(spec.window.pattern, number):
        hidden |= behind.abs() >= spec.window.size
    attention.double()
    attention.mask = hidden
    attention.alibi = slopes(spec.heads) * torch.arange(seq, dtype=torch.float64)
    pairs = 10_000 ** -(torch.arange(attention.rotated // 2, dtype=torch.float64) * 2 / attention.rotated)
    angles = torch.arange(seq)[:, None] * torch.cat([pairs, pairs])
    attention.cos, attention.sin = angles.cos(), angles.sin()


def slopes(heads: int) -> Tensor:
    """Press et al. 2022, as their code has it."""

    def of_power(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(np.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    nearest = 2 ** int(np.floor(np.log2(heads)))
    found = of_power(nearest) + of_power(2 * nearest)[0::2][: heads - nearest]
    return torch.tensor(found, dtype=torch.float64)[:, None, None]


def buckets(queries: int, keys: int, count: int, causal: bool) -> Tensor:
    """Raffel et al. 2020, as ``_relative_position_bucket`` in transformers has it, for 4 buckets and more."""
    ahead = torch.arange(keys) - torch.arange(queries)[:, None]
    first = torch.zeros_like(ahead)
    if not causal:
        count //= 2
        first = (ahead > 0) * count
    distance = (-ahead).clamp(min=0) if causal else ahead.abs()
    exact = count // 2
    far = exact + (torch.log(distance.clamp(min=1) / exact) / math.log(128 / exact) * (count - exact)).long()
    return first + torch.where(distance < exact, distance, far.clamp(max=count - 1))


def in_order_of_use(module: nn.Module, *inputs: Any) -> list[nn.Parameter]:
    """Every parameter once, in the order in which modules that hold any are through with their first input."""
    found: dict[int, nn.Parameter] = {}

    def noted(part: nn.Module, *_: Any) -> None:
        found.update({id(p): p for p in part.parameters(recurse=False) if id(p) not in found})

    hooks = [part.register_forward_hook(noted) for part in module.modules()]
    with torch.no_grad():
        module(*inputs)
    for hook in hooks:
        hook.remove()
    return list(found.values())
