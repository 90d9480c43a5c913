"""A step whose head runs with the loss over chunks of rows, against a memory tracker on the same step in PyTorch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import costmodel as cm
from costmodel.architectures.mlp import MLP

from . import models
from .chunked_loss import ChunkedHead
from .measure import meta
from .settings import differential
from .test_mlp import MLPS
from .test_timeline import stated
from .tracker import training_step

pytestmark = pytest.mark.oracle


class Headless(nn.Module):
    """An MLP that ends in features; its head runs with the loss."""

    def __init__(self, spec: MLP, chunks: int) -> None:
        super().__init__()
        self.hidden = models.MLP(spec, "gpu").hidden
        self.head = ChunkedHead(spec.sizes[-2], spec.sizes[-1], spec.bias, chunks)
        self.running = False

    def forward(self, x: Tensor) -> Tensor:
        features = self.hidden(x)
        if not self.running:  # the tracker's first look, which finds the weights in the order of their use
            self.running = True
            self.head(features, meta(len(x), dtype=torch.int64))
        return features


@differential
@given(MLPS, st.integers(2, 500), st.integers(2, 9))
def test_backward_and_optimizer_agree_to_the_byte(spec: MLP, batch: int, chunks: int) -> None:
    chunks = min(chunks, batch)
    with torch.device("meta"):
        module = Headless(spec, chunks)
    p = cm.predict(spec, batch=batch, loss_chunks=chunks)
    x, target = meta(batch, spec.sizes[0]), meta(batch, dtype=torch.int64)
    found = training_step(module, x, target, module.head).most
    extra = sum(buffer.untyped_storage().nbytes() for buffer in module.buffers()) - p.memory.buffers
    for phase in ("backward", "optimizer"):
        most = stated(p)[phase]
        seen = found[phase]
        assert (phase, most) == (phase, seen._replace(alive=seen.alive - extra))
