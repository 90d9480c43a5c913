"""How far seconds of published training steps are off: ``python -m tests.benchmarks.bench_steps``.

By source: the mean error as predicted, after one scalar for all rows, how many measured steps are in the range, and the
error of the trivial answer, the mean MFU of the source's other rows. Without the family: the error as it would be for
chips whose families are unknown, with the constants that hold for all. What a publication does not say is in `unknown`.
"""

from __future__ import annotations

import json
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import costmodel as cm
from costmodel.performance.constants import TABLE, typical

ROWS = Path(__file__).with_name("measured_steps.json")


class Scored(NamedTuple):
    """A measured step: predicted over measured seconds, also without constants of its family, the measured MFU, and
    whether the range has it."""

    ratio: float
    left_out: float
    mfu: float
    within: bool


class Score(NamedTuple):
    """Of the rows of a source: mean errors, and the share of steps in their ranges."""

    rows: int
    error: float
    left_out: float
    after_scalar: float
    trivial: float
    within: float


def scored(row: dict[str, Any]) -> Scored:
    """One row; rows that differ in what was measured alone are predicted once."""
    asked = {
        name: row[name] for name in ("model", "settings", "machine", "hardware", "network", "stack") if name in row
    }
    seconds, left_out, mfu, low, high = _predicted(json.dumps(asked))
    ratio = seconds / row["seconds"]
    return Scored(ratio, left_out / row["seconds"], mfu * ratio, low <= row["seconds"] <= high)


@cache
def _predicted(question: str) -> tuple[float, float, float, float, float]:
    """Seconds of a row, those without constants of its family, MFU, and both ends of the range."""
    row: dict[str, Any] = json.loads(question)
    model = row["model"] if isinstance(row["model"], str) else cm.GPT(**row["model"])
    machine = cm.Cluster(**row["machine"]) if isinstance(row["machine"], dict) else row["machine"]
    if "hardware" in row:
        machine = cm.Machine(**cm.load_machine(machine).model_dump() | row["hardware"])
    p = cm.predict(model, **row["settings"])
    network = row.get("network") if p.settings.layout.devices > 1 else None
    stack: Any = row.get("stack", "eager")
    if isinstance(stack, dict):
        stack = cm.Stack(**row["stack"])
    time = p.on(machine, network=network, stack=stack)
    general = {name: rows[""].typical for name, rows in TABLE.items() if "" in rows}
    left_out = float(time.seconds_with(typical(time.machine).changed(**general)))
    return time.seconds, left_out, time.mfu, time.low, time.high


def score(steps: list[Scored]) -> Score:
    """Of several rows."""
    scalar = exp(mean(log(step.ratio) for step in steps))
    total = sum(step.mfu for step in steps)
    trivial = [step.mfu / ((total - step.mfu) / max(1, len(steps) - 1)) - 1 for step in steps] if steps[1:] else [0.0]
    return Score(
        len(steps),
        mean(abs(step.ratio - 1) for step in steps),
        mean(abs(step.left_out - 1) for step in steps),
        mean(abs(step.ratio / scalar - 1) for step in steps),
        mean(map(abs, trivial)),
        mean(step.within for step in steps),
    )


def scores() -> dict[str, Score]:
    """By source."""
    rows: dict[str, list[Scored]] = {}
    for row in json.loads(ROWS.read_text(encoding="utf-8"))["rows"]:
        rows.setdefault(row["source"], []).append(scored(row))
    return {source: score(steps) for source, steps in rows.items()}


if __name__ == "__main__":
    print(f"{'source':64}{'rows':>5}{'error':>8}{'no family':>11}{'scalar':>8}{'one MFU':>9}{'in range':>10}")
    for source, of in scores().items():
        line = f"{of.rows:5}{of.error:8.1%}{of.left_out:11.1%}{of.after_scalar:8.1%}{of.trivial:9.1%}{of.within:10.0%}"
        print(f"{source[:63]:64}{line}")
