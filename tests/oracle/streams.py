"""Several residual streams (AltUp), and what comes with them, written plainly in PyTorch."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from . import models


class Streams(nn.Module):
    """Before the first block and after the last."""

    def __init__(self, spec: Any, device: models.Device) -> None:
        super().__init__()
        part, d = spec.altup, spec.width
        self.layers, self.vocab = spec.layers, part.layer_vocab or spec.vocab
        wide = spec.layers * part.layer_width
        self.table, self.inward = nn.Embedding(self.vocab, wide), nn.Linear(d, wide, bias=False)
        self.norm = models.norm_over(spec, part.layer_width, device)
        others = range(part.streams - 1)
        self.spreading, self.joining = (nn.ModuleList(nn.Linear(d, d, bias=False) for _ in others) for _ in range(2))

    def of_layers(self, x: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        """What each token adds in each block."""
        inside = torch.logical_and(tokens >= 0, tokens < self.vocab)
        table = self.table(torch.where(inside, tokens, 0)) * math.sqrt(self.norm_width)
        made = self.inward(x) * x.shape[-1] ** -0.5
        apart = (*x.shape[:2], self.layers, self.norm_width)
        return ((self.norm(made.view(apart)) + table.view(apart)) * 0.5**0.5).unbind(2)

    @property
    def norm_width(self) -> int:
        return self.table.weight.shape[1] // self.layers

    def spread(self, x: Tensor) -> Tensor:
        size = torch.mean(x**2, -1, keepdim=True) ** 0.5
        return torch.stack([x, *(as_large(linear(x), size) for linear in self.spreading)])

    def merged(self, x: Tensor) -> Tensor:
        first, *others = x.unbind(0)
        size = torch.mean(first**2, -1, keepdim=True) ** 0.5
        made = (as_large(linear(y), size) for linear, y in zip(self.joining, others, strict=True))
        return torch.stack([first, *made]).mean(0)


def as_large(x: Tensor, size: Tensor) -> Tensor:
    own = torch.sqrt(torch.mean(x**2, -1, keepdim=True).clamp(min=1e-5))
    return x * size / own


class Bounded(nn.Module):
    """A linear layer whose weight is held within bounds in training, if it is clipped."""

    def __init__(self, features: int, clipped: bool) -> None:
        super().__init__()
        self.clipped = clipped
        self.weight = nn.Parameter(torch.empty(features, features))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.clamp(-120, 120) if self.training and self.clipped else self.weight)


class Block(nn.Module):
    def __init__(self, spec: Any, seq: int, kernel: str, device: models.Device, number: int) -> None:
        super().__init__()
        part, d, n = spec.altup, spec.width, spec.altup.streams
        self.spec = spec
        self.router_norm, self.router = models.norm(spec, device), nn.Linear(d, n, bias=False)
        self.predicting, self.correcting = nn.Linear(n, n * n, bias=False), Bounded(n, part.clipped)
        self.attention_norm = models.norm(spec, device)
        self.laurel = nn.ModuleList([nn.Linear(d, part.laurel_rank, bias=False)])
        self.laurel += [nn.Linear(part.laurel_rank, d, bias=False), models.norm(spec, device)]
        self.attention = models.Attention(spec, seq, kernel, device, number)
        self.output_norm, self.mlp_norm = models.norm(spec, device), models.norm(spec, device)
        self.mlp = models.FeedForward(spec, models.hidden_at(spec, number), device)
        self.mlp.sparse = models.falls_on(part.sparse_pattern, number)
        self.mlp_output_norm = models.norm(spec, device)
        self.scale = models.LayerScale(d) if part.output_scale else models.Unread(d)
        self.gate, self.project = nn.Linear(d, part.layer_width, bias=False), nn.Linear(part.layer_width, d, bias=False)
        self.act, self.token_norm = models.activated(spec.activation), models.norm(spec, device)
        self.other = None

    def forward(self, x: Tensor, own: Tensor, bias: Any = None) -> Tensor:
        x = self.predicted(x)
        first = x[0]
        inner = self.attention_norm(first)
        down, up, norm = self.laurel
        laurel = inner + norm(up(down(inner)))
        mixed = (first + self.output_norm(self.attention(inner, bias)) + laurel) / math.sqrt(2)
        made = mixed + self.mlp_output_norm(self.mlp(self.mlp_norm(mixed)))
        return self.with_token(self.corrected(x, made), own)

    def modalities(self, x: Tensor) -> Tensor:
        return torch.tanh(self.router(self.router_norm(x) * (1 / x.shape[-1])))

    def predicted(self, x: Tensor) -> Tensor:
        n, b, t, _ = x.shape
        of = self.predicting(self.modalities(x[0])).view(b, t, n, n).permute(0, 1, 3, 2)
        return ((x.permute(1, 2, 3, 0) @ of).permute(3, 0, 1, 2) + x).contiguous()

    def corrected(self, x: Tensor, made: Tensor) -> Tensor:
        said = self.modalities(made)
        missed = (made - x[0]).repeat(len(x), 1, 1, 1)
        of = self.correcting(said) + 1
        return missed * of.permute(2, 0, 1).unsqueeze(-1) + x

    def with_token(self, x: Tensor, own: Tensor) -> Tensor:
        head, rest = x.split([1, len(x) - 1])
        gate = self.scale(head.squeeze(0).clone())
        y = self.token_norm(self.project(self.act(self.gate(gate)) * own))
        return torch.cat([head, rest + y])


def largest(x: Tensor) -> Tensor:
    """What is above the mean and so many deviations."""
    cutoff = x.mean(-1, keepdim=True) + x.std(-1, keepdim=True, unbiased=False) * 1.6
    return F.relu(x - cutoff)


STREAMS = st.fixed_dictionaries(
    {
        "altup.streams": st.integers(2, 4),
        "altup.laurel_rank": st.integers(1, 4),
        "altup.layer_width": st.integers(1, 4),
        "altup.layer_vocab": st.none() | st.integers(1, 9),
        "altup.output_scale": st.booleans(),
        "altup.clipped": st.booleans(),
        "altup.sparse_pattern": st.lists(st.booleans(), max_size=4).map(tuple),
    }
)
"""Fields of the streams."""
PLAIN: dict[str, Any] = {
    "norm_placement": "both",
    "parallel": False,
    "shared_norm": False,
    "first_norm": True,
    "layer_scale": False,
    "residual_scale": None,
    "residual_dropout": 0.0,
    "mixed_dropout": None,
    "mlp": "gated",
    "experts": None,
}
"""What blocks with streams need."""
