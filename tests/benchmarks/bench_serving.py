"""How far published throughputs of serving on several devices are off: ``python -m tests.benchmarks.bench_serving``.

Requests are given at once; as many as fit run together, and as many as are left after these. By source and machine: the
mean error as predicted, and after one scalar for all rows.
"""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import costmodel as cm
from costmodel.training.engines import ENGINES

ENGINE = replace(ENGINES["tensorrt-llm"], utilisation=0.95, sequences=4096)
"""As the tables' commands have it."""
ROWS = Path(__file__).with_name("measured_serving.json")


class Score(NamedTuple):
    """Of several rows: mean errors, and the scalar."""

    rows: int
    error: float
    after_scalar: float
    scalar: float


def ratios(table: dict[str, Any]) -> list[float]:
    """Predicted over measured tokens a second, of each row of a table."""
    return [predicted(table, *row[:3]) / row[3] for row in table["rows"]]


def predicted(table: dict[str, Any], prompt: int, answer: int, requests: int) -> float:
    """Output tokens a second of all requests."""
    served = cm.serve(
        table["model"],
        on=table["machine"],
        input=prompt,
        output=answer,
        engine=ENGINE,
        **table["settings"],
    )
    together = max(1, min(table.get("together", served.largest), requests))
    waves, rest = divmod(requests, together)
    seconds = waves * served.at(together).latency + (served.at(rest).latency if rest else 0.0)
    return requests * answer / seconds


def score(values: list[float]) -> Score:
    """Of predicted over measured values."""
    scalar = exp(mean(map(log, values)))
    return Score(len(values), mean(abs(v - 1) for v in values), mean(abs(v / scalar - 1) for v in values), scalar)


def scores() -> dict[tuple[str, ...], Score]:
    """By source and machine."""
    values: dict[tuple[str, ...], list[float]] = {}
    for table in json.loads(ROWS.read_text(encoding="utf-8"))["tables"]:
        values.setdefault((table["source"], table["machine"]), []).extend(ratios(table))
    return {of: score(own) for of, own in values.items()}


if __name__ == "__main__":
    print(f"{'source':52}{'machine':16}{'rows':>5}{'error':>8}{'scalar':>8}{'after':>8}")
    for (source, machine), of in scores().items():
        print(f"{source[:51]:52}{machine:16}{of.rows:5}{of.error:8.1%}{of.scalar:8.2f}{of.after_scalar:8.1%}")
