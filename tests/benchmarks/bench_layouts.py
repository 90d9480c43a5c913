"""How many candidates the search for layouts goes through: ``pytest tests/benchmarks/bench_layouts.py``.

Each benchmark's extra_info has candidates a second, and how many of them were legal.
"""

from __future__ import annotations

from typing import Any

import pytest

import costmodel as cm

QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "8B on 16": ("llama-3.1-8b", {"devices": 16, "seq": 4096, "global_batch": 128}),
    "70B on 256 by Megatron": (
        "llama-3.1-70b",
        {"devices": 256, "seq": 8192, "global_batch": 1024, "runtime": "megatron", "cp": 1},
    ),
}


@pytest.mark.parametrize(("model", "run"), QUESTIONS.values(), ids=QUESTIONS)
def test_the_search_for_layouts(benchmark: Any, model: str, run: dict[str, Any]) -> None:
    found = benchmark.pedantic(cm.layouts, args=(model,), kwargs={"on": "h100-sxm", **run}, rounds=1)
    benchmark.extra_info["candidates a second"] = round(found.candidates / benchmark.stats.stats.min)
    benchmark.extra_info["legal"] = found.candidates - sum(reason.candidates for reason in found.refused)
