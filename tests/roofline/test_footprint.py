"""Bytes alive, walked on paper, are those that NumPy really holds at every call of a program."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import costmodel as cm
from costmodel.roofline.execution import filled
from costmodel.roofline.footprint import live_bytes
from costmodel.roofline.network import network_of

np.random.default_rng(0)  # its import makes an array that stays


@contextmanager
def tracing() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def held() -> int:
    """Bytes of NumPy's own memory."""
    traces = tracemalloc.take_snapshot().traces
    return sum(trace.size for trace in traces if trace.domain == np.lib.tracemalloc_domain)


MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "mlp": (cm.MLP(sizes=[7, 5, 5, 3], norm="layernorm", activation="gelu"), {"batch": 3}),
    "cnn": (cm.CNN(input=(3, 9, 8), blocks=[
        {"conv": {"channels": 6, "kernel": 3, "padding": 1}}, "batchnorm", "relu", {"max_pool": {"kernel": 2}},
        {"residual": {"body": [{"conv": {"channels": 6, "kernel": 3, "padding": 1, "groups": 2}}]}},
        {"avg_pool": {"kernel": 2}}, "flatten", {"linear": {"features": 5}},
    ]), {"batch": 2}),
    "gpt": (cm.GPT(vocab=50, context=9, layers=2, width=12, heads=3), {"batch": 2, "seq": 7}),
    "llama": (
        cm.GPT(vocab=50, context=9, layers=2, width=12, heads=3, kv_heads=1, positions="rotary", mlp="gated",
               activation="silu", norm="rmsnorm", tied=False),
        {"batch": 1, "seq": 8},
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["train", "inference"])
@pytest.mark.parametrize("name", MODELS)
def test_live_bytes_are_numpy_s_at_every_call(name: str, mode: str) -> None:
    model, sizes = MODELS[name]
    prediction = cm.predict(model, mode=mode, **sizes)
    network = network_of(prediction)
    expected = live_bytes(network.program)
    found: list[int] = []
    with tracing():
        memory = filled(network, prediction)
        network.program.run(memory, after=lambda _: found.append(held()))
    assert found == expected
