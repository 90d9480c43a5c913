"""A layout over devices is a size like any other: formulas have letters for its degrees, and sweeps vary them."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

import costmodel as cm
from costmodel.cost.quantities import QUANTITIES
from costmodel.training.layout import DEGREES

MODEL: Any = cm.Transformer(vocab=96, context=64, layers=3, width=48, heads=8, kv_heads=4, mlp_width=80, tied=False)
MODEL = MODEL.with_fields({"positions": "rotary"})
RUN: dict[str, Any] = {"batch": 2, "seq": 16}
LAYOUTS: list[dict[str, Any]] = [
    {"tp": 2},
    {"tp": 4, "sp": True, "loss_parallel": True},
    {"fsdp": 3},
    {"tp": 2, "fsdp": 4},
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_quantity_of_a_layout_has_a_formula_with_its_degrees(layout: dict[str, Any]) -> None:
    p = cm.predict(MODEL, **RUN, **layout)
    for quantity in QUANTITIES:
        assert p.explain(quantity).value == p.number(quantity)
    degrees = {name for name in layout if name in DEGREES}
    assert degrees <= {definition.symbol for definition in p.explain("memory.weights").letters}


@pytest.mark.parametrize(("seq", "kernel"), [(1, "flash"), (24, "eager")])
def test_a_sweep_over_layouts_says_what_predict_does(seq: int, kernel: Any) -> None:
    axes: dict[str, Any] = {"batch": [1, 3], "tp": [1, 2, 3, 4, 8], "fsdp": [5, 1, 2, 64]}
    quantities = ["params", "memory.peak", "memory.gradients"]
    swept = cm.sweep(MODEL, seq=seq, attention=kernel, quantities=quantities, **axes)
    for batch, tp, fsdp in product(*axes.values()):
        cell = swept.sel(batch=batch, tp=tp, fsdp=fsdp)
        if MODEL.kv_heads % tp:
            assert f"tp={tp}" in str(cell["reason"].values)
            continue
        p = cm.predict(MODEL, batch=batch, seq=seq, attention=kernel, tp=tp, fsdp=fsdp)
        assert [int(cell[name]) for name in quantities] == [p.number(name) for name in quantities]
