"""How long a move on the explorer's page takes: ``pytest tests/benchmarks/bench_explorer.py`` (extra `benchmark`).

What is drawn within some 30 ms follows the hand that moves a slider.
"""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

from tests.explorer.test_browser import Opened, browser, gpt2  # noqa: F401  (fixtures)


def test_a_move_is_drawn(benchmark: Any, browser: Any, gpt2: Path) -> None:  # noqa: F811
    opened = Opened(browser, gpt2)
    batches = cycle(range(1, 41))

    def move() -> None:
        opened.page.evaluate(
            "(batch) => { state.values.batch = batch; update(); document.body.offsetHeight }", next(batches)
        )

    benchmark.pedantic(move, rounds=40, iterations=1)
