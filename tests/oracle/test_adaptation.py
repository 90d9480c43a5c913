"""Frozen weights and low-rank adapters: what is kept and computed then, against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from costmodel.analysis.predict import predict
from costmodel.architectures.transformer import Transformer
from costmodel.layers.adaptation import Lora

from . import models
from .measure import Cost, measure, meta, stated
from .settings import differential
from .test_transformer import transformers

pytestmark = pytest.mark.oracle

PARTS = {
    "embedding": lambda model: [model.tokens],
    "positions": lambda model: [model.positions] if model.positions else [],
    "block": lambda model: [model.blocks],
    "mlp": lambda model: [b.mlp for b in model.blocks],
    "attention": lambda model: [b.attention for b in model.blocks],
    "up": lambda model: [b.mlp.up for b in model.blocks],
}
DENSE = transformers().filter(lambda spec: spec.experts is None)
"""Without experts, whose parts have other names."""


def cost(spec: Transformer, model: nn.Module, batch: int, seq: int) -> Cost:
    target = meta(batch * seq, dtype=torch.int64)
    found = measure(
        model, meta(batch, seq, dtype=torch.int64), loss=lambda y: F.cross_entropy(y, target), given=(target,)
    )
    return found._replace(params=sum(w.numel() for w in model.parameters()))


def on_paper(spec: Transformer, batch: int, seq: int, **settings: Any) -> tuple[Cost, int]:
    with_loss, without = (
        predict(spec, batch=batch, seq=seq, loss=loss, **settings) for loss in ("cross_entropy", None)
    )
    return stated(with_loss, without), with_loss.trainable_params


def has(spec: Transformer, part: str) -> bool:
    """Whether a model has weights that are trained in one of `PARTS`."""
    return part != "positions" or (spec.positions == "learned" and spec.position_table == "trained")


@differential
@given(
    DENSE,
    st.integers(1, 3),
    st.integers(1, 5),
    st.sets(st.sampled_from(sorted(PARTS)), min_size=1, max_size=3),
)
def test_frozen_parts(spec: Transformer, batch: int, seq: int, parts: set[str]) -> None:
    assume(all(has(spec, part) for part in parts))
    with torch.device("meta"):
        model = models.Transformer(spec, seq, "eager", "gpu")
    for part in parts:
        for module in PARTS[part](model):
            module.requires_grad_(False)
    assume(any(w.requires_grad for w in model.parameters()))
    paper, trainable = on_paper(spec, batch, seq, freeze=tuple(parts))
    assert paper == cost(spec, model, batch, seq)
    assert trainable == sum(w.numel() for w in model.parameters() if w.requires_grad)


@differential
@given(
    DENSE,
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sets(st.sampled_from(["up", "down", "attention.output"]), min_size=1),
    st.sampled_from([0.0, 0.1]),
)
def test_adapters(spec: Transformer, batch: int, seq: int, rank: int, targets: set[str], dropout: float) -> None:
    with torch.device("meta"):
        model = models.Transformer(spec, seq, "eager", "gpu").requires_grad_(False)
        for block in model.blocks:
            for target in targets:
                owner, name = (block.attention, "output") if "." in target else (block.mlp, target)
                noise = models.Dropout(dropout, "gpu") if dropout else None
                setattr(owner, name, models.Adapted(getattr(owner, name), rank, noise))
        for block in model.blocks[1:] if spec.shared_blocks else ():
            models.share(model.blocks[0], block)
    paper, trainable = on_paper(spec, batch, seq, lora=Lora(rank, tuple(targets), dropout))
    assert paper == cost(spec, model, batch, seq)
    assert trainable == sum(w.numel() for w in model.parameters() if w.requires_grad)
