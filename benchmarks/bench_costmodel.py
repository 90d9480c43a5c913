"""How long the main things take: ``pytest benchmarks/bench_costmodel.py`` (extra `benchmark`).

Compare ratios, and minima: machines differ, and others use them too.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import count
from time import perf_counter
from typing import Any

import pytest

import costmodel as cm
from costmodel.cost.quantities import QUANTITIES

BATCHES = count(2)


def cold(*arguments: str) -> Any:
    """A fresh interpreter; bytecode is written before, and not counted."""
    return lambda: subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    "arguments",
    [
        ("-c", "pass"),
        ("-c", "import costmodel"),
        ("-c", "import sympy"),
        ("-m", "costmodel", "predict", "gpt2-small"),
        ("-m", "costmodel", "predict", "resnet50"),
    ],
    ids=" ".join,
)
def test_cold_start(benchmark: Any, arguments: tuple[str, ...]) -> None:
    benchmark.pedantic(cold(*arguments), rounds=11, warmup_rounds=2)
    for yardstick in ("pass", "import sympy"):
        ratio = benchmark.stats.stats.min / fastest(cold("-c", yardstick), rounds=5)
        benchmark.extra_info[f"times as long as {yardstick}"] = round(ratio, 2)


def fastest(run: Any, rounds: int) -> float:
    """The shortest of some runs [s]."""
    times = []
    for _ in range(rounds):
        start = perf_counter()
        run()
        times.append(perf_counter() - start)
    return min(times)


@pytest.mark.parametrize("name", ["gpt2-small", "resnet50", "resnet152"])
@pytest.mark.parametrize("read", ["traced", "params and flops", "memory"])
def test_a_second_prediction(benchmark: Any, name: str, read: str) -> None:
    model = cm.load(name)

    def run() -> None:
        p = cm.predict(model, batch=next(BATCHES))
        if read == "params and flops":
            assert p.params
            assert p.flops.total
        if read == "memory":
            assert p.memory.peak

    benchmark(run)


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
