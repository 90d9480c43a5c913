"""How long the main things take: ``pytest tests/benchmarks/bench_costmodel.py`` (extra `benchmark`).

Compare ratios, and minima: machines differ, and others use them too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import count
from time import perf_counter
from typing import Any

import pytest

import costmodel as cm
from costmodel.cost.quantities import QUANTITIES

BATCHES = count(2)


YARDSTICKS = ("pass", "import pydantic", "import sympy")


def cold(*arguments: str) -> Callable[[], Any]:
    """A fresh interpreter; bytecode is written in its first run, whatever the environment says of that."""
    written = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    return lambda: subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=written)


@pytest.mark.parametrize(
    "arguments",
    [
        ("-c", "import costmodel"),
        ("-m", "costmodel", "--help"),
        ("-m", "costmodel", "predict", "gpt2-small", "--batch", "32", "--seq", "512"),
        ("-m", "costmodel", "predict", "resnet50"),
        ("-m", "costmodel", "explain", "gpt2-small", "memory.peak", "--batch", "32", "--seq", "512"),
    ],
    ids=" ".join,
)
def test_cold_start(benchmark: Any, arguments: tuple[str, ...]) -> None:
    runs = [cold(*arguments), *(cold("-c", yardstick) for yardstick in YARDSTICKS)]
    own, *others = fastest(runs, rounds=15)
    for yardstick, seconds in zip(YARDSTICKS, others, strict=True):
        benchmark.extra_info[f"times as long as {yardstick}"] = round(own / seconds, 2)
    benchmark.pedantic(runs[0], rounds=3)


def fastest(runs: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """The shortest time of each [s], taken in turns, so that whoever else uses the machine slows all alike."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, taken in zip(runs, times, strict=True):
            start = perf_counter()
            run()
            taken.append(perf_counter() - start)
    return [min(taken) for taken in times]


@pytest.mark.parametrize("name", ["gpt2-small", "resnet50", "resnet152"])
@pytest.mark.parametrize("read", ["layers", "params and flops", "memory"])
def test_a_second_prediction(benchmark: Any, name: str, read: str) -> None:
    """At sizes that are new each time; layers are traced, the rest is known once a few peaks have been asked for.

    A sum of 10,000 squares, Python alone, is what its time is a multiple of.
    """
    model = cm.load(name)

    def run() -> None:
        p = cm.predict(model, batch=next(BATCHES))
        if read == "layers":
            assert p.layers
        if read == "params and flops":
            assert p.params
            assert p.flops.total
        if read == "memory":
            assert p.memory.peak

    own, squares = fastest([run, lambda: sum(n * n for n in range(10_000))], rounds=300)
    benchmark.extra_info["times as long as 10,000 squares"] = round(own / squares, 2)
    benchmark(run)


@pytest.mark.parametrize("name", ["gpt2-small", "resnet50"])
def test_rows_with_intervals(benchmark: Any, name: str) -> None:
    """Predictions that no two share sizes, each timed on a machine, with the range of its seconds."""
    model, machine = cm.load(name), cm.load_machine("h100-sxm")

    def row() -> None:
        time = cm.predict(model, batch=next(BATCHES)).on(machine)
        assert time.low < time.seconds < time.high

    benchmark.pedantic(row, rounds=30, warmup_rounds=1)
    benchmark.extra_info["rows a minute"] = round(60 / benchmark.stats.stats.min)


@pytest.mark.parametrize("layers", [12, 10_000])
def test_repeats_are_free(benchmark: Any, layers: int) -> None:
    model = cm.Transformer(vocab=50257, context=1024, layers=layers, width=768, heads=12)
    benchmark(lambda: cm.predict(model, batch=next(BATCHES)).memory.peak)


def test_closed_forms(benchmark: Any) -> None:
    model = cm.GPT2Small
    cm.predict(model).formula("params")

    def run() -> None:
        p = cm.predict(model, batch=next(BATCHES))
        for quantity in QUANTITIES:
            p.formula(quantity)

    benchmark.pedantic(run, rounds=5)
