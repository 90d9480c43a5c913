"""Models that were published: their parameter counts as printed, and whole models of the zoo as PyTorch sees them."""

from __future__ import annotations

import pytest
import torch

import costmodel as cm
from costmodel.architectures.mlp import MLP
from costmodel.architectures.transformer import Transformer
from tests.importers.published import PARAMS

from . import models, test_mlp
from .test_transformer import in_pytorch, on_paper

pytestmark = pytest.mark.oracle

PUBLISHED = ("gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl", "llama-2-7b", "tinyllama-1.1b", "llama-3-8b")
TRANSFORMERS = [entry.name for entry in cm.models() if isinstance(cm.load(entry.name), Transformer)]
MLPS = [entry.name for entry in cm.models() if isinstance(cm.load(entry.name), MLP)]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_count(name: str) -> None:
    model = cm.load(name)
    assert isinstance(model, Transformer)
    with torch.device("meta"):
        weights = models.Transformer(model, 1, "eager", "gpu").parameters()
    assert sum(weight.numel() for weight in weights) == PARAMS[name]
    assert cm.predict(model, batch=1, seq=1).params == PARAMS[name]


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_zoo_transformer(name: str) -> None:
    """A few of its blocks, with every kind that it has; that all of them cost as these do, unrolling holds."""
    model = cm.load(name)
    assert isinstance(model, Transformer)
    period = len(model.pattern)
    fewer = min(model.layers, period + max(1, model.layers % period))
    if model.experts is not None and model.experts.dense_layers is not None:
        fewer = model.experts.dense_layers + 2
    hold(model.model_copy(update={"layers": fewer}), batch=2, seq=128, kernel="eager")


@pytest.mark.parametrize("kernel", ["eager", "flash", "efficient"])
def test_gpt2_small_at_a_working_batch(kernel: str) -> None:
    hold(cm.GPT2Small, batch=32, seq=512, kernel=kernel)


def hold(model: Transformer, batch: int, seq: int, kernel: str) -> None:
    loss = model.default_loss or "mean_squared_error"
    paper = on_paper(model, loss, batch=batch, seq=seq, attention=kernel)
    assert paper == in_pytorch(model, batch, seq, "gpu", kernel, loss)


@pytest.mark.parametrize("name", MLPS)
@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_zoo_mlp(name: str, device: str) -> None:
    model = cm.load(name)
    assert isinstance(model, MLP)
    with_loss, without = (cm.predict(model, batch=64, device=device, loss=end) for end in ("cross_entropy", None))
    assert test_mlp.stated(with_loss, without) == test_mlp.in_pytorch(model, 64, device, "cross_entropy")
