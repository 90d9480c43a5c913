"""Multilayer perceptrons drawn at random cost what the same model costs in PyTorch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from costmodel.analysis.predict import predict
from costmodel.architectures.mlp import MLP
from costmodel.errors import SettingError
from costmodel.training.settings import Device

from . import models
from .measure import Cost, measure, meta, stated
from .settings import differential

pytestmark = pytest.mark.oracle

MLPS = st.builds(
    MLP,
    # Runs of equal sizes are repeated blocks.
    sizes=st.lists(st.sampled_from([1, 2, 3, 5, 5, 5]), min_size=2, max_size=7),
    activation=st.sampled_from(models.NAMES),
    bias=st.booleans(),
    norm=st.sampled_from(["none", "batchnorm", "layernorm", "rmsnorm"]),
    norm_affine=st.booleans(),
    dropout=st.sampled_from([0.0, 0.2]),
)
DEVICE = st.sampled_from(["gpu", "cpu"])


def in_pytorch(spec: MLP, batch: int, device: Device, loss: str, *, training: bool = True) -> Cost:
    with torch.device("meta"):
        model = models.MLP(spec, device).train(training)
    x = meta(batch, spec.sizes[0])
    target = meta(batch, dtype=torch.int64) if loss == "cross_entropy" else meta(batch, spec.sizes[-1])
    of = F.cross_entropy if loss == "cross_entropy" else F.mse_loss
    with torch.set_grad_enabled(training):
        return measure(model, x, loss=lambda y: of(y, target), given=(target,))


@differential
@given(MLPS, st.integers(2, 4), DEVICE, st.sampled_from(["cross_entropy", "mean_squared_error"]))
def test_training(spec: MLP, batch: int, device: Device, loss: str) -> None:
    with_loss, without = (predict(spec, batch=batch, device=device, loss=end) for end in (loss, None))
    assert stated(with_loss, without) == in_pytorch(spec, batch, device, loss)


@differential
@given(MLPS, st.integers(2, 4), DEVICE, st.sampled_from([0.1, 0.5]))
def test_label_smoothing(spec: MLP, batch: int, device: Device, share: float) -> None:
    smoothed = predict(spec, batch=batch, device=device, loss="cross_entropy", label_smoothing=share)
    target = meta(batch, dtype=torch.int64)
    with torch.device("meta"):
        model = models.MLP(spec, device)
    of = partial(F.cross_entropy, target=target, label_smoothing=share)
    found = measure(model, meta(batch, spec.sizes[0]), loss=of, given=(target,))
    assert stated(smoothed, predict(spec, batch=batch, device=device, loss=None)) == found


@pytest.mark.parametrize(
    ("given_settings", "said"),
    [
        ({"label_smoothing": 1}, r"label_smoothing=1 is not a number in \[0, 1\)"),
        ({"label_smoothing": True}, r"label_smoothing=True is not a number in \[0, 1\)"),
        ({"label_smoothing": 0.1, "loss": "mean_squared_error"}, "label_smoothing=0.1 is for loss 'cross_entropy'"),
        ({"label_smoothing": 0.1, "loss_chunks": 2}, "label_smoothing=0.1 is not in the loss that runs in loss_chunks"),
        ({"label_smoothing": 0.1, "mode": "inference"}, "label_smoothing=0.1 does not apply to mode 'inference'"),
    ],
)
def test_label_smoothing_that_does_not_fit_is_refused(given_settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        predict(MLP(sizes=[3, 4, 2]), batch=2, **given_settings)


@differential
@given(MLPS, st.integers(1, 4), DEVICE)
def test_inference(spec: MLP, batch: int, device: Device) -> None:
    paper = predict(spec, batch=batch, device=device, mode="inference")
    assert stated(paper, paper) == in_pytorch(spec, batch, device, "mean_squared_error", training=False)


@differential
@given(MLPS, st.integers(1, 4))
def test_buffers(spec: MLP, batch: int) -> None:
    with torch.device("meta"):
        model = models.MLP(spec, "gpu")
    assert predict(spec, batch=batch).memory.buffers == sum(buffer.nbytes for buffer in model.buffers())
