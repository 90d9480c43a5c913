"""How fast sweeps are: against writing as many numbers to memory, and against asking one by one.

``pytest tests/benchmarks/bench_sweeps.py``; each benchmark's extra_info has million configurations a second.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, product
from typing import Any

import numpy as np
import pytest

import costmodel as cm
from costmodel.analysis.sweep.sweeps import filled, grid_of

QUANTITIES = (
    "params",
    "flops.forward",
    "flops.backward",
    "flops.total",
    "pointwise_flops.total",
    "memory.weights",
    "memory.inputs",
    "memory.activations",
    "memory.temporaries",
    "memory.peak",
)
GRIDS: dict[str, dict[str, Any]] = {
    "batch, seq": {"batch": range(1, 4097), "seq": range(1, 1025)},
    "batch, seq from 64": {"batch": range(1, 1025), "seq": range(64, 1025)},
    "five sizes": {
        "layers": [6, 12, 24, 48],
        "width": [768, 1024, 1536],
        "heads": [4, 8, 16],
        "batch": range(1, 129),
        "seq": range(1, 1025),
    },
}
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def rate(benchmark: Any, cells: int) -> None:
    benchmark.extra_info["million configurations a second"] = float(f"{cells / benchmark.stats.stats.min / 1e6:.3g}")


@pytest.mark.parametrize("axes", GRIDS.values(), ids=GRIDS)
def test_a_grid_of_ten_quantities(benchmark: Any, axes: dict[str, Any]) -> None:
    grid = grid_of("gpt2-small", QUANTITIES, axes)
    _ = grid.dtypes  # formulas are derived once
    benchmark.pedantic(filled, args=(grid,), rounds=5, warmup_rounds=1)
    rate(benchmark, grid.cells)


@pytest.mark.parametrize("axes", GRIDS.values(), ids=GRIDS)
def test_writing_as_many_numbers(benchmark: Any, axes: dict[str, Any]) -> None:
    """The limit: the same arrays, written once by all cores."""
    cells = math.prod(map(len, axes.values()))

    def write() -> None:
        arrays = np.empty((len(QUANTITIES) * CORES, cells // CORES), np.int64)
        with ThreadPoolExecutor(CORES) as threads:
            list(threads.map(lambda array: array.fill(1), arrays))

    benchmark.pedantic(write, rounds=5, warmup_rounds=1)
    rate(benchmark, cells)


@pytest.mark.parametrize("axes", GRIDS.values(), ids=GRIDS)
def test_deriving_the_formulas(benchmark: Any, axes: dict[str, Any]) -> None:
    benchmark.pedantic(lambda: grid_of("gpt2-small", QUANTITIES, axes).dtypes, rounds=3, warmup_rounds=1)


def test_asking_one_by_one(benchmark: Any) -> None:
    """A loop over `predict`, for comparison."""
    cells = list(islice(product(range(1, 4097), range(1, 1025)), 5_000, 5_050))

    def ask() -> None:
        for batch, seq in cells:
            p = cm.predict(cm.GPT2Small, batch=batch, seq=seq)
            _ = [p.value(quantity) for quantity in QUANTITIES]

    benchmark.pedantic(ask, rounds=3, warmup_rounds=1)
    rate(benchmark, len(cells))
