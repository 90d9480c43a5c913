"""How far seconds of published training steps are off: ``python -m tests.benchmarks.bench_steps``.

By source: the mean error as predicted, after one scalar for all rows, how many measured steps are in the range, and the
error of the trivial answer, the mean MFU of the source's other rows. Without the family: the error as it would be for
chips whose families are unknown, with the constants that hold for all. What a publication does not say is in `unknown`.

With --fitted, what three measured steps of a source and machine make of its others: one scalar, and the constants that
``machines fit`` takes from them, a mean over threes that are spread over the rows.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import costmodel as cm
from costmodel.performance.constants import TABLE, Constants, typical
from costmodel.performance.fitting import calibrated, fitted_names
from costmodel.performance.time import Time

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


def time_of(row: dict[str, Any]) -> Time:
    """Of the step that a row describes."""
    model = row["model"] if isinstance(row["model"], str) else cm.GPT(**row["model"])
    machine: Any = cm.Cluster(**row["machine"]) if isinstance(row["machine"], dict) else row["machine"]
    if "hardware" in row:
        machine = cm.Machine(**cm.load_machine(machine).model_dump() | row["hardware"])
    p = cm.predict(model, **row["settings"])
    network = row.get("network") if p.settings.layout.devices > 1 else None
    stack: Any = row.get("stack", "eager")
    if isinstance(stack, dict):
        stack = cm.Stack(**row["stack"])
    return p.on(machine, network=network, stack=stack)


@cache
def _predicted(question: str) -> tuple[float, float, float, float, float]:
    """Seconds of a row, those without constants of its family, MFU, and both ends of the range."""
    time = time_of(json.loads(question))
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


THREES = 4
"""Of a source and machine, at most."""


class Fitted(NamedTuple):
    """Of rows of a source on one machine: mean errors of those beside three, as predicted, by one scalar from the
    three, and with constants that are fitted to them."""

    rows: int
    before: float
    scalar: float
    constants: float


def fitted(rows: list[dict[str, Any]]) -> Fitted:
    """Of six rows and more."""
    times, third = [time_of(row) for row in rows], len(rows) // 3
    measured = [row["seconds"] for row in rows]
    means: list[tuple[float, float, float]] = []
    for start in sorted({third * n // THREES for n in range(THREES)}):
        three = range(start, start + 2 * third + 1, third)
        chosen = [(times[n], measured[n]) for n in three]
        others = [(times[n], measured[n]) for n in range(len(rows)) if n not in three]
        scalar = exp(mean(log(seconds / time.seconds) for time, seconds in chosen))
        constants = _constants_of(chosen)
        means.append((
            mean(abs(time.seconds / seconds - 1) for time, seconds in others),
            mean(abs(scalar * time.seconds / seconds - 1) for time, seconds in others),
            mean(abs(float(time.seconds_with(constants)) / seconds - 1) for time, seconds in others),
        ))  # fmt: skip
    return Fitted(len(rows), *(mean(of[n] for of in means) for n in range(3)))


def _constants_of(steps: list[tuple[Time, float]]) -> Constants:
    """What ``machines fit`` takes from measured steps."""
    machine = steps[0][0].machine

    def predicted(constants: Constants) -> list[Any]:
        return [time.seconds_with(constants) for time, _ in steps]

    names = fitted_names(machine, predicted)
    lines = [("a step", seconds) for _, seconds in steps]
    return calibrated(machine, names, predicted, lines, "", machine.name).on(machine)


def fits() -> dict[tuple[str, str], Fitted]:
    """By source and machine."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in json.loads(ROWS.read_text(encoding="utf-8"))["rows"]:
        machine = row["machine"]["name"] if isinstance(row["machine"], dict) else row["machine"]
        groups.setdefault((row["source"], machine), []).append(row)
    return {names: fitted(rows) for names, rows in groups.items() if len(rows) > 5}


def main() -> None:
    """Print what is asked for."""
    if "--fitted" in sys.argv:
        print(f"{'source':64}{'machine':16}{'rows':>5}{'before':>8}{'scalar':>8}{'constants':>11}")
        for (source, machine), of in fits().items():
            line = f"{of.rows:5}{of.before:8.1%}{of.scalar:8.1%}{of.constants:11.1%}"
            print(f"{source[:63]:64}{machine:16}{line}")
        return
    print(f"{'source':64}{'rows':>5}{'error':>8}{'no family':>11}{'scalar':>8}{'one MFU':>9}{'in range':>10}")
    for source, of in scores().items():
        line = f"{of.rows:5}{of.error:8.1%}{of.left_out:11.1%}{of.after_scalar:8.1%}{of.trivial:9.1%}{of.within:10.0%}"
        print(f"{source[:63]:64}{line}")


if __name__ == "__main__":
    main()
