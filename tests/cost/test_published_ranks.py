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
