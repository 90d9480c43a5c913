"""How far seconds of published collectives are off: ``python -m tests.benchmarks.bench_collectives``.

Of messages of 64 KiB and more, by machine, number of devices and operation: the mean error as predicted, the error
after one factor for each machine and number of devices (which `machines fit` takes from one line), and the share of
messages in their ranges. Rows that constants are from are marked; the others are practice alone.
"""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import costmodel as cm

ROWS = Path(__file__).with_name("measured_collectives.json")
LEAST = 65536
"""Bytes of a message that is scored, at least."""


class Scored(NamedTuple):
    """A measured message: its operation, predicted over measured seconds, and whether the range has it."""

    operation: str
    ratio: float
    within: bool


class Score(NamedTuple):
    """Of several messages: mean errors, and the share in range."""

    rows: int
    error: float
    after_factor: float
    within: float


def score(scored: list[Scored], factor: float) -> Score:
    """Of messages of one machine and number of devices, whose factor is the mean ratio of all its operations."""
    ratios = [one.ratio for one in scored]
    return Score(
        len(ratios),
        mean(abs(ratio - 1) for ratio in ratios),
        mean(abs(ratio / factor - 1) for ratio in ratios),
        mean(one.within for one in scored),
    )


def scores(on: str | None = None) -> dict[tuple[str, int], tuple[bool, dict[str, Score]]]:
    """By machine and devices: whether constants are from the rows, and the score of each operation and of all.

    on: of that machine alone.
    """
    groups: dict[tuple[str, int], list[Scored]] = {}
    marked: dict[tuple[str, int], bool] = {}
    for row in json.loads(ROWS.read_text(encoding="utf-8"))["rows"]:
        key = row["on"], row["devices"]
        if on not in (None, row["on"]):
            continue
        marked[key] = row["constants"]
        for size, microseconds in row["microseconds"].items():
            if int(size) >= LEAST:
                time = cm.collective_seconds(row["operation"], int(size), devices=row["devices"], on=row["on"])
                seconds = microseconds * 1e-6
                one = Scored(row["operation"], time.seconds / seconds, time.low <= seconds <= time.high)
                groups.setdefault(key, []).append(one)
    answers = {}
    for key, scored in groups.items():
        factor = exp(mean(log(one.ratio) for one in scored))
        by_operation = {name: [one for one in scored if one.operation == name] for name, _, _ in scored}
        answers[key] = marked[key], {name: score(of, factor) for name, of in (by_operation | {"all": scored}).items()}
    return answers


if __name__ == "__main__":
    print(f"{'on':22}{'devices':>8}  {'operation':16}{'rows':>5}{'error':>8}{'factor':>8}{'in range':>10}")
    for (on, devices), (constants, of_operations) in scores().items():
        for name, of in of_operations.items():
            line = f"{of.rows:5}{of.error:8.1%}{of.after_factor:8.1%}{of.within:10.0%}"
            print(f"{on + ('*' if constants else ''):22}{devices:8}  {name:16}{line}")
    print("* constants of its family are from these rows")
