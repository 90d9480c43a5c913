"""Of a sweep's cells, the front holds those that no other cell beats, and only those."""

from __future__ import annotations

import costmodel as cm
from tests.command import error_of

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


def test_bad_fronts() -> None:
    sweep = cm.sweep(SMALL, batch=[1, 2], quantities=["params", "memory.peak"])
    assert "'memory.peak'" in error_of(lambda: cm.pareto(sweep, "memory.peek", "params"))
    assert "two quantities" in error_of(lambda: cm.pareto(sweep, "params"))
