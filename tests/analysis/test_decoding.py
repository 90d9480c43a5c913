"""Verbs asked about a decode step."""

from __future__ import annotations

from typing import Any

import pytest

import costmodel as cm

STEP: dict[str, Any] = {"mode": "decode", "past": 1000, "precision": "bf16"}


def test_attention_passes_the_mlp_where_the_cache_is_long() -> None:
    """Llama 3.1 8B: 4·d·(P + 1) for scores and mixing against 6·d·d_ff, and its projections against nothing else."""
    asked = {name: value for name, value in STEP.items() if name != "past"}
    found = cm.break_even("llama-3.1-8b", "attention", "mlp", for_="past", **asked)
    width, hidden, keys = 4096, 14336, 1024
    projections = 2 * width * (2 * width + 2 * keys)
    assert int(found) == (6 * width * hidden - projections) // (4 * width)


def test_settings_are_recommended_for_a_step() -> None:
    ways = cm.recommend("llama-3.2-1b", memory="24 GiB", **{k: v for k, v in STEP.items() if k != "precision"})
    best = ways.to_dict()
    assert "bf16" in str(ways)
    assert best


def test_the_largest_batch_of_a_step_fits() -> None:
    most = int(cm.max_batch("llama-3.2-1b", memory="24 GiB", **STEP))
    assert cm.predict("llama-3.2-1b", batch=most, **STEP).memory.peak <= 24 * 2**30
    assert cm.predict("llama-3.2-1b", batch=most + 1, **STEP).memory.peak > 24 * 2**30


def test_bytes_of_traffic_are_written_as_bytes() -> None:
    assert "GiB" in str(cm.compare("llama-3.2-1b", "gemma-3-1b", quantities=["traffic.weights"], **STEP))


def test_what_takes_no_step_says_so() -> None:
    with pytest.raises(cm.CostModelError, match="is not run in NumPy: use mode='inference'"):
        cm.roofline.check("gpt2-small", mode="decode", past=10)
    with pytest.raises(cm.CostModelError, match="seq is one token in mode 'decode'"):
        cm.max_seq("llama-3.2-1b", memory="24 GiB", **STEP)
    with pytest.raises(cm.CostModelError, match="use mode='decode' or 'prefill'"):
        cm.solve("llama-3.2-1b", "memory.peak", "24 GiB", for_="past")
