"""Memory of ranks against what others have measured, with nothing made from their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import costmodel as cm

PUBLISHED = yaml.safe_load((Path(__file__).parent / "published_ranks.yaml").read_text(encoding="utf-8"))
FEWER = {"layers": "layers", "dense_layers": "experts.dense_layers"}
"""Keys of a row that are fields of its model."""
ROWS = [(source, row) for source in PUBLISHED for row in source["rows"]]


@pytest.mark.parametrize(("source", "row"), ROWS, ids=[" ".join(map(str, row.values())) for _, row in ROWS])
def test_peak_of_a_rank_is_what_was_measured(source: dict[str, Any], row: dict[str, Any]) -> None:
    fewer = {FEWER[name]: value for name, value in row.items() if name in FEWER}
    own = {name: value for name, value in row.items() if name not in ("model", "measured", *FEWER)}
    model: Any = cm.load(row["model"])
    model = model.with_values(fewer)
    peak = cm.predict(model, **source["settings"], **own).memory.peak / 2**30
    assert abs(peak / row["measured"] - 1) <= source["error"]


@pytest.mark.parametrize(("ranks", "measured"), [(8, 82.4), (128, 67.0)])
def test_segments_of_torchtitan(ranks: int, measured: float) -> None:
    """What PyTorch's allocator had reserved of Llama 3.1 8B in eager mode, two sequences of 8,192 on each H100.

    Source: torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3, rows "FSDP" ("Selective activation
    checkpointing", which its file of settings says is "op"; ``max_reserved_gib`` of its metrics); logits in fp32.
    """
    how: dict[str, Any] = {"attention": "flash", "precision": "bf16-master-fp32-gradients", "loss_precision": "fp32"}
    p = cm.predict(
        "llama-3.1-8b", batch=2, seq=8192, fsdp=ranks, checkpoint="operators", update="fused", allocator="cuda", **how
    )
    assert abs(p.reserved / 2**30 / measured - 1) <= 0.02


def test_what_cuda_and_nccl_take_is_a_line_of_its_own() -> None:
    """A group of ranks more is at least two channels of ``NCCL_BUFFSIZE``; no peak has it."""
    layouts: list[dict[str, Any]] = [{}, {"tp": 2}, {"tp": 2, "fsdp": 2}]
    alone, one, two = (cm.predict("gpt2-small", batch=1, seq=64, **layout) for layout in layouts)
    assert [p.driver.groups for p in (alone, one, two)] == [0, 1, 2]
    assert two.driver.low - one.driver.low == one.driver.low - alone.driver.low == 2 * 4 * 2**20
    assert all(p.driver.low < p.driver.high for p in (alone, one, two))
    assert str(two.driver) in " ".join(str(two).split())
    assert two.memory.peak == two.rank.timeline.peak


def test_llama_3_405b_on_16384_devices() -> None:
    """Dubey et al. 2024, table 4: tp 8, pp 16 and dp 128, then 131,072 tokens over cp 16 and dp 8.

    Megatron's bytes of states a weight of a rank are 6 + 12/128, whether ranks have samples or parts of them.
    """
    how: dict[str, Any] = {"tp": 8, "sp": True, "pp": 16, "batch": 1, "attention": "flash", "zero": 1, "accumulate": 16}
    how |= {"runtime": "megatron", "precision": "bf16-master-fp32-gradients"}
    short = cm.predict("llama-3.1-405b", dp=128, seq=8192, **how)
    long = cm.predict("llama-3.1-405b", dp=8, cp=16, cp_kind="all-gather", seq=131072, **how)
    assert (short.settings.layout.devices, long.settings.layout.devices) == (16384, 16384)
    for p in (short, long):
        m = p.memory
        states = m.weights + m.masters + m.gradients + m.optimizer
        assert states == pytest.approx((6 + 12 / 128) * p.rank.params, rel=1e-3)
