"""A head and its cross-entropy over chunks of rows, written plainly in PyTorch: gradients are made in forward."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ChunkedLoss(torch.autograd.Function):
    """Rows of features, their targets, and the head's weight and bias to the mean loss."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None, chunks: int, training: bool
    ) -> Tensor:
        needed = [training and ctx.needs_input_grad[place] for place in (0, 2, 3)]
        made = [
            torch.zeros(t.shape, dtype=t.dtype, device=t.device) if need and t is not None else None
            for t, need in zip((x, weight, bias), needed, strict=True)
        ]
        size = -(-len(x) // chunks)
        total = torch.zeros((), dtype=x.dtype, device=x.device)
        for start in range(0, len(x), size):
            rows = slice(start, start + size)
            logits = F.linear(x[rows], weight, bias)
            total += F.cross_entropy(logits, target[rows], reduction="sum") / len(x)
            if any(needed):
                ChunkedLoss.add(made, x[rows], rows, weight, ChunkedLoss.gradient(logits, target[rows], len(x)))
        ctx.save_for_backward(*made)
        return total

    @staticmethod
    def gradient(logits: Tensor, target: Tensor, rows: int) -> Tensor:
        return (torch.softmax(logits, -1) - F.one_hot(target, logits.shape[-1])) / rows

    @staticmethod
    def add(made: list[Tensor | None], x: Tensor, rows: slice, weight: Tensor, g: Tensor) -> None:
        dx, dweight, dbias = made
        if dx is not None:
            torch.mm(g, weight, out=dx[rows])
        if dweight is not None:
            torch.addmm(dweight, g.T, x, out=dweight)
        if dbias is not None:
            dbias += g.sum(0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        dx, dweight, dbias = (None if made is None else made * g for made in ctx.saved_tensors)
        return dx, None, dweight, dbias, None, None


class ChunkedHead(nn.Linear):
    """A head that ends in the loss; `forward` takes features and targets."""

    def __init__(self, width: int, features: int, bias: bool, chunks: int) -> None:
        super().__init__(width, features, bias)
        self.chunks = chunks

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        training = torch.is_grad_enabled()
        return ChunkedLoss.apply(rows, target.reshape(-1), self.weight, self.bias, self.chunks, training)
