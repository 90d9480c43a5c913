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
