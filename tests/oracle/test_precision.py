"""What is kept under autocast and in pure 16-bit: PyTorch's own on the CPU, and the GPU's acted out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st

from costmodel.analysis.predict import predict
from costmodel.architectures.mlp import MLP
from costmodel.architectures.transformer import Transformer

from . import models
from .autocasting import GpuAutocast
from .measure import Saved, meta
from .settings import differential
from .test_mlp import MLPS
from .test_transformer import transformers

pytestmark = pytest.mark.oracle

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
LOSS = st.sampled_from(["cross_entropy", "mean_squared_error", "binary_cross_entropy", "kl_divergence"])


LOSSES = {
    "cross_entropy": F.cross_entropy,
    "mean_squared_error": F.mse_loss,
    "binary_cross_entropy": F.binary_cross_entropy_with_logits,
    "kl_divergence": lambda y, target: F.kl_div(F.log_softmax(y, 1), target, reduction="mean"),
}


def kept(model: Any, x: Any, target: Any, loss: str, cast: torch.dtype | None = None) -> tuple[int, int]:
    """Bytes saved without and with the loss, of what the model makes or a cast of it; casts of weights among them."""
    of = LOSSES[loss]
    with Saved([*model.parameters(), *model.buffers(), x, target]) as saved:
        y = model(x)
        without = saved.bytes
        of(y if cast is None else y.to(cast), target)
    return without, saved.bytes


def stated(spec: Any, loss: str, **settings: Any) -> tuple[int, int]:
    without, with_loss = (predict(spec, loss=which, **settings).memory for which in (None, loss))
    return without.activations + without.casts, with_loss.activations + with_loss.casts


def targets(loss: str, rows: int, classes: int, device: str) -> Any:
    if loss == "cross_entropy":
        return torch.zeros(rows, dtype=torch.int64, device=device)
    return torch.zeros(rows, classes, device=device)


STORED_CHOICE = Transformer.of(
    {"vocab": 1, "context": 33, "layers": 1, "width": 2, "heads": 1, "experts": 2}
    | {"experts.per_token": 1, "experts.choice_bias": True, "experts.choice_stored": True}
)
"""Whose constants are weights in fp32, beside scores in another type."""


@differential
@given(transformers(), st.integers(1, 3), st.integers(1, 5), LOSS)
@example(STORED_CHOICE, 1, 1, "cross_entropy")
def test_cpu_autocast_of_transformers(spec: Transformer, batch: int, seq: int, loss: str) -> None:
    model = models.Transformer(spec, seq, "eager", "cpu")
    tokens = torch.zeros(batch, seq, dtype=torch.int64)
    target = targets(loss, batch * seq, models.features_of(spec), "cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = kept(model, tokens, target, loss)
    paper = stated(spec, loss, batch=batch, seq=seq, device="cpu", precision="bf16-autocast")
    assert paper == found


@differential
@given(MLPS, st.integers(2, 5), LOSS)
def test_cpu_autocast_of_mlps(spec: MLP, batch: int, loss: str) -> None:
    model = models.MLP(spec, "cpu")
    x = torch.zeros(batch, spec.sizes[0])
    target = targets(loss, batch, spec.sizes[-1], "cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = kept(model, x, target, loss)
    assert stated(spec, loss, batch=batch, device="cpu", precision="bf16-autocast") == found


def on_gpu(model: Any, x: Any, target: Any, loss: str, dtype: str) -> tuple[int, int]:
    with GpuAutocast(DTYPES[dtype]):
        return kept(model, x, target, loss)


@differential
@given(
    transformers(),
    st.integers(1, 3),
    st.integers(1, 5),
    LOSS,
    st.sampled_from(["bf16", "fp16"]),
    st.sampled_from(["eager", "flash"]),
)
def test_gpu_autocast_of_transformers(
    spec: Transformer, batch: int, seq: int, loss: str, dtype: str, attention: str
) -> None:
    with torch.device("meta"):
        model = models.Transformer(spec, seq, attention, "gpu")
    tokens = meta(batch, seq, dtype=torch.int64)
    target = targets(loss, batch * seq, models.features_of(spec), "meta")
    found = on_gpu(model, tokens, target, loss, dtype)
    settings: dict[str, Any] = {"batch": batch, "seq": seq, "attention": attention, "precision": f"{dtype}-autocast"}
    assert stated(spec, loss, **settings) == found


@differential
@given(MLPS, st.integers(2, 5), LOSS, st.sampled_from(["bf16", "fp16"]))
def test_gpu_autocast_of_mlps(spec: MLP, batch: int, loss: str, dtype: str) -> None:
    with torch.device("meta"):
        model = models.MLP(spec, "gpu")
    found = on_gpu(model, meta(batch, spec.sizes[0]), targets(loss, batch, spec.sizes[-1], "meta"), loss, dtype)
    assert stated(spec, loss, batch=batch, precision=f"{dtype}-autocast") == found


@differential
@given(transformers(), st.integers(1, 3), st.integers(1, 5))
def test_pure_bf16(spec: Transformer, batch: int, seq: int) -> None:
    with torch.device("meta"):
        model = models.Transformer(spec, seq, "eager", "gpu").to(torch.bfloat16)
    tokens = meta(batch, seq, dtype=torch.int64)
    target = targets("cross_entropy", batch * seq, models.features_of(spec), "meta")
    paper = stated(spec, "cross_entropy", batch=batch, seq=seq, precision="bf16")
    assert paper == kept(model, tokens, target, "cross_entropy")


@differential
@given(
    transformers(),
    st.integers(1, 3),
    st.integers(1, 5),
    st.sampled_from(["cross_entropy", "mean_squared_error", "binary_cross_entropy", "kl_divergence"]),
)
def test_a_loss_in_fp32_of_pure_bf16(spec: Transformer, batch: int, seq: int, loss: str) -> None:
    with torch.device("meta"):
        model = models.Transformer(spec, seq, "eager", "gpu").to(torch.bfloat16)
    tokens = meta(batch, seq, dtype=torch.int64)
    target = targets(loss, batch * seq, models.features_of(spec), "meta")
    paper = stated(spec, loss, batch=batch, seq=seq, precision="bf16", loss_precision="fp32")
    assert paper == kept(model, tokens, target, loss, cast=torch.float32)
