"""Of a sweep's cells, the front holds those that no other cell beats, and only those."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from tests.command import error_of
from tests.profiles import examples

SMALL = cm.Transformer(vocab=50, context=16, layers=4, width=24, heads=4, name="small")


def test_the_front_holds_what_no_cell_beats() -> None:
    ways = {"checkpoint": ["none", "block", 2, "selective"], "attention": ["eager", "flash"], "seq": [8, 16, 32]}
    sweep = cm.sweep(SMALL, batch=4, **ways)
    names = ["memory.peak", "flops.hardware", "pointwise_flops.hardware"]
    cells = [tuple(row) for row in sweep.to_dataframe()[names].dropna().to_numpy()]
    unbeaten = [c for c in cells if not any(o != c and all(x <= y for x, y in zip(o, c, strict=True)) for o in cells)]
    front = cm.pareto(sweep.sel(seq=[8, 16, 32]), *names)
    assert sorted(map(tuple, front[names].to_numpy())) == sorted(unbeaten)
    assert list(front["memory.peak"]) == sorted(front["memory.peak"])
    assert {"checkpoint", "attention", "seq"} <= set(front.columns)


def test_more_of_an_axis_can_be_better() -> None:
    sweep = cm.sweep(SMALL, batch=[1, 2, 4], optimizer=["sgd", "adamw"])
    front = cm.pareto(sweep, "memory.peak", most=("batch",))
    assert list(zip(front["batch"], front["optimizer"], strict=True)) == [(1, "sgd"), (2, "sgd"), (4, "sgd")]


@given(st.integers(2, 4), st.integers(1, 400), st.sampled_from([2, 9, 40]), st.integers(0, 2**32 - 1))
@examples(40)
def test_the_front_is_as_by_hand(quantities: int, cells: int, values: int, seed: int) -> None:
    large = 2**60 + np.random.default_rng(seed).integers(values, size=(cells, quantities))
    names = [f"q{n}" for n in range(quantities)]
    most = names[1:2]
    costs = large * [-1 if name in most else 1 for name in names]
    beaten = [((costs <= row).all(1) & (costs < row).any(1)).any() for row in costs]
    front = cm.pareto(pandas.DataFrame(large, columns=names), *names[:1], *names[2:], most=tuple(most))
    assert sorted(map(tuple, front[names].to_numpy())) == sorted(map(tuple, large[~np.array(beaten)]))


def test_a_sweep_without_answers_has_an_empty_front(tmp_path: Path) -> None:
    sweep = cm.sweep(SMALL, seq=[32, 64], quantities=["memory.peak", "flops.total"])
    front = cm.pareto(sweep, "memory.peak", "flops.total")
    assert (list(front.columns), len(front)) == (["seq", "memory.peak", "flops.total"], 0)
    picture = tmp_path / "front.png"
    assert "no cell" in error_of(lambda: cm.pareto(sweep, "memory.peak", "flops.total", plot=picture))
    assert not picture.exists()


def test_bad_fronts() -> None:
    sweep = cm.sweep(SMALL, batch=[1, 2], quantities=["params", "memory.peak"])
    assert "'memory.peak'" in error_of(lambda: cm.pareto(sweep, "memory.peek", "params"))
    assert "two quantities" in error_of(lambda: cm.pareto(sweep, "params"))
