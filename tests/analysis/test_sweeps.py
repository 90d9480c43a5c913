"""Sweeps: labelled, complete, equal to `predict` at every cell, and the same wherever they are worked out."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import xarray
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.analysis.search import with_size
from costmodel.cost.quantities import QUANTITIES
from costmodel.display.units import show_seconds
from costmodel.importers.files import build
from tests.command import error_of, here
from tests.oracle.drawn_networks import networks
from tests.profiles import examples
from tests.strategies import questions

pytestmark = pytest.mark.usefixtures("traced")

SMALL = cm.Transformer(vocab=50, context=16, layers=3, width=24, heads=4, name="small")
GRID: dict[str, Any] = {"batch": range(1, 9), "seq": [1, 2, 8, 16, 32], "heads": [1, 3, 4, 5]}


def cell_of(ds: xarray.Dataset, **where: Any) -> dict[str, Any]:
    return {str(name): variable.item() for name, variable in ds.sel(where).data_vars.items()}


@st.composite
def sweeps(draw: st.DrawFn) -> tuple[Any, dict[str, Any], dict[str, list[Any]]]:
    """A model, settings that stay, and axes, of which some are numbers and some are names."""
    model, asked = draw(questions())
    few = st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True)
    choices: dict[str, Any] = {
        "batch": few,
        "optimizer": st.just(["sgd", "adamw"]),
        "precision": st.just(["fp32", "bf16-autocast"]),
        "mode": st.just(["train", "inference"]),
        "accumulate": few,
    }
    if isinstance(model, cm.Transformer):
        choices |= {"seq": few, "layers": few, "width": few, "heads": few, "tied": st.just([True, False])}
        choices |= {"attention": st.just(["eager", "flash"]), "checkpoint": st.just(["none", "block", 2, ("mlp",)])}
    names = draw(st.lists(st.sampled_from(sorted(choices)), min_size=1, max_size=3, unique=True))
    return model, {k: v for k, v in asked.items() if k not in names}, {name: draw(choices[name]) for name in names}


def answer_of(model: Any, fixed: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """What `predict` says, as a cell has it."""
    fields = {name: value for name, value in asked.items() if name in model.field_names()}
    settings = {name: value for name, value in asked.items() if name not in fields}
    try:
        p = cm.predict(model.with_fields(fields), **fixed, **settings)
        return {quantity: p.value(quantity) for quantity in QUANTITIES} | {"reason": ""}
    except cm.CostModelError as error:
        return dict.fromkeys(QUANTITIES, None) | {"reason": str(error)}


@st.composite
def network_sweeps(draw: st.DrawFn) -> tuple[Any, dict[str, Any], dict[str, list[Any]]]:
    """The same of a convolutional network, over batches, images and settings."""
    sides = st.integers(3, 17)
    shape = (3, draw(sides), draw(sides))
    model = build({"architecture": "cnn", "input": list(shape), "blocks": draw(networks())}, "drawn")
    few = st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True)
    choices: dict[str, Any] = {
        "batch": few,
        "image": st.lists(
            sides | st.tuples(sides, sides),
            min_size=1,
            max_size=3,
            unique_by=lambda n: n if isinstance(n, tuple) else (n, n),
        ),
        "accumulate": few,
        "optimizer": st.just(["sgd", "adamw"]),
        "precision": st.just(["fp32", "bf16-autocast"]),
        "mode": st.just(["train", "inference"]),
    }
    names = draw(st.lists(st.sampled_from(sorted(choices)), min_size=1, max_size=2, unique=True))
    return model, {}, {name: draw(choices[name]) for name in names}


@pytest.mark.slow
@given(sweeps() | network_sweeps())
@examples(40)
def test_every_cell_equals_predict(question: tuple[Any, dict[str, Any], dict[str, list[Any]]]) -> None:
    model, fixed, axes = question
    ds = cm.sweep(model, **fixed, **axes)
    assert dict(ds.sizes) == {name: len(values) for name, values in axes.items()}
    for index in np.ndindex(*ds.sizes.values()):
        asked = {name: values[i] for (name, values), i in zip(axes.items(), index, strict=True)}
        found = {str(name): variable.values[index] for name, variable in ds.data_vars.items()}
        missing = [name for name, value in found.items() if name != "reason" and np.isnan(value)]
        assert found | dict.fromkeys(missing, None) == answer_of(model, fixed, asked)


def test_a_result_is_labelled_and_has_units() -> None:
    ds = cm.sweep(SMALL, **GRID, precision=["fp32", "bf16"], quantities=["params", "flops.total", "memory.peak"])
    assert isinstance(ds, xarray.Dataset)
    assert dict(ds.sizes) == {"batch": 8, "seq": 5, "heads": 4, "precision": 2}
    assert {str(name): v.attrs["units"] for name, v in ds.data_vars.items() if name != "reason"} == {
        "params": "parameters",
        "flops.total": "FLOP",
        "memory.peak": "bytes",
    }
    assert ds.attrs["model"] == "small"
    cell = cell_of(ds, batch=3, seq=8, heads=4, precision="bf16")
    p = cm.predict(SMALL, batch=3, seq=8, precision="bf16")
    assert cell == {"params": p.params, "flops.total": p.flops.total, "memory.peak": p.memory.peak, "reason": ""}


@pytest.mark.parametrize(
    "way", [{}, {"chunks": "auto"}, {"executor": ThreadPoolExecutor(1)}], ids=["at once", "lazily", "elsewhere"]
)
def test_a_sweep_without_axes_is_one_prediction(way: dict[str, Any], tmp_path: Path) -> None:
    ds = cm.sweep(SMALL, batch=4, seq=8, **way).compute()
    assert cell_of(ds) == answer_of(SMALL, {"batch": 4, "seq": 8}, {})
    ds.to_parquet(tmp_path / "one.parquet")
    (row,) = pandas.read_parquet(tmp_path / "one.parquet").to_dict("records")
    assert {name: row[name] for name in QUANTITIES} == {name: ds[name].item() for name in QUANTITIES}
    refused = cell_of(cm.sweep(SMALL, seq=17, quantities=["params", "memory.peak"], **way).compute())
    assert np.isnan([refused["params"], refused["memory.peak"]]).all()
    assert refused["reason"] == error_of(lambda: cm.predict(SMALL, seq=17))


def test_cells_without_an_answer_are_missing_and_say_why() -> None:
    ds = cm.sweep(SMALL, **GRID, quantities="memory.peak")
    beyond = cell_of(ds, batch=2, seq=32, heads=4)
    assert np.isnan(beyond["memory.peak"])
    assert beyond["reason"] == error_of(lambda: cm.predict(SMALL, batch=2, seq=32))
    assert "heads 5 does not divide width 24" in cell_of(ds, batch=2, seq=8, heads=5)["reason"]


@pytest.mark.parametrize("values", [[8, 16], [8], range(1, 100)])
def test_an_axis_that_another_field_leaves_no_place_for_is_refused(values: Any) -> None:
    each = cm.Transformer(vocab=50, context=16, layers=2, width=24, heads=4, mlp_widths=(24, 30))
    message = error_of(lambda: cm.sweep(each, batch=[1, 2], seq=8, mlp_width=values))
    assert "axis mlp_width" in message
    assert "leave out mlp_width" in message
    told = cm.sweep(SMALL, batch=[1, 2], seq=8, kv_heads=[3])
    assert (told.reason == "Transformer: kv_heads 3 does not divide heads 4").all()


def test_every_reason_is_that_of_its_cell() -> None:
    ds = cm.sweep(SMALL, batch=range(1, 5), seq=range(17, 40), quantities="params")
    for seq in ds.seq.values.tolist():
        assert cell_of(ds, batch=3, seq=seq)["reason"] == error_of(lambda seq=seq: cm.predict(SMALL, batch=3, seq=seq))


def test_of_very_many_cells_without_an_answer_some_say_what_others_said() -> None:
    ds = cm.sweep(SMALL, batch=[1, 2], seq=range(17, 4000), quantities="params")
    first, last = cell_of(ds, batch=1, seq=17)["reason"], cell_of(ds, batch=2, seq=3999)["reason"]
    assert first == error_of(lambda: cm.predict(SMALL, seq=17))
    assert last == f"as at batch=1, seq=17: {first}"
    assert (ds.reason != "").all()


def test_parts_are_not_mixed_with_others(tmp_path: Any) -> None:
    lazy = cm.sweep(SMALL, batch=[1, 2], chunks=1, quantities="params")
    lazy.to_parquet(tmp_path / "sweep.parquet")
    assert "it is there already" in error_of(lambda: lazy.to_parquet(tmp_path / "sweep.parquet"))
    assert "No such file" in error_of(lambda: lazy.compute().to_parquet(tmp_path / "missing" / "sweep.parquet"))


def test_values_are_whole_numbers_where_all_are_there() -> None:
    ds = cm.sweep(SMALL, batch=range(1, 99), seq=[4, 8], quantities=["memory.peak", "flops.total"])
    assert all(ds[name].dtype == np.int64 for name in ("memory.peak", "flops.total"))
    assert not ds.reason.any()


def test_numbers_beyond_int64_do_not_wrap() -> None:
    huge = [1, 2**20, 2**40]
    ds = cm.sweep("mlp-mnist", batch=huge, accumulate=[1, 2**20], quantities=["flops.total", "memory.activations"])
    for batch in huge:
        p = cm.predict("mlp-mnist", batch=batch, accumulate=2**20)
        found = cell_of(ds, batch=batch, accumulate=2**20)
        assert found["flops.total"] == pytest.approx(p.flops.total, rel=1e-12)
        assert found["memory.activations"] == p.memory.activations
    assert ds["flops.total"].dtype == np.float64


def test_images_and_lists_are_axes() -> None:
    ds = cm.sweep("resnet18", image=[64, (64, 96)], batch=[1, 2], quantities="memory.peak")
    assert list(ds.image.values) == ["64x64", "64x96"]
    assert (
        cell_of(ds, image="64x96", batch=2)["memory.peak"]
        == cm.predict("resnet18", image=(64, 96), batch=2).memory.peak
    )
    sizes = cm.sweep("mlp-mnist", sizes=[[784, 10], [784, 100, 10]], quantities="params")
    assert list(sizes.params.values) == [cm.predict(cm.MLP(sizes=s)).params for s in ([784, 10], [784, 100, 10])]


def test_width_and_layers_of_what_has_no_field_for_them_are_axes() -> None:
    for model, name, sizes in (
        ("mlp-mnist", "width", [5, 20]),
        ("mlp-mnist", "layers", range(1, 4)),
        ("resnet18", "width", [32]),
    ):
        asked = cm.predict(model, batch=2)
        grid: dict[str, Any] = {"batch": [1, 2], name: sizes}
        ds = cm.sweep(model, **grid, quantities=["params", "memory.peak"])
        for size in sizes:
            p = with_size(asked, name, size)
            assert cell_of(ds, batch=2, **{name: size}) == {
                "params": p.params,
                "memory.peak": p.memory.peak,
                "reason": "",
            }
    assert "between 1" in error_of(lambda: cm.sweep("mlp-mnist", width=[0, 1]))
    assert "between 1" in error_of(lambda: cm.sweep("mlp-mnist", width=0, batch=[1, 2], quantities="params"))
    said = error_of(lambda: cm.sweep("mlp-mnist", zzz=[1]))
    assert [name for name in ("seq", "image", "attention") if name in said] == []


def test_none_is_a_word_where_a_field_has_it_and_nothing_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    plain, scaled = (cm.predict(cm.load("mlp-mnist").with_fields({"norm": norm})) for norm in ("none", "layernorm"))
    rows = json.loads(here(capsys, "sweep", "mlp-mnist", "--over", "norm=none,layernorm", "--json").out)
    assert [row["params"] for row in rows] == [plain.params, scaled.params]
    whole = here(capsys, "sweep", "gpt2-small", "--over", "window=none,1024", "--json")
    assert [row["params"] for row in json.loads(whole.out)] == [cm.predict("gpt2-small").params] * 2


def test_a_label_is_text_that_can_be_stored() -> None:
    found = cm.sweep("mlp-mnist", checkpoint=["none", "\udcff"], quantities=["params"])
    assert list(found.checkpoint.values) == ["none", r"'\udcff'"]


def test_numpy_arrays_are_axes() -> None:
    ds = cm.sweep(SMALL, batch=np.arange(1, 4), seq=np.array([4]), quantities="memory.peak")
    assert ds["memory.peak"].shape == (3, 1)


@pytest.mark.parametrize("text", ["1:3", "1..3"])
def test_a_range_may_be_text(text: str) -> None:
    assert cm.sweep("mlp-mnist", batch=text, quantities=["params"])["batch"].to_numpy().tolist() == [1, 2, 3]
    assert "is empty: 2 is below 9" in error_of(lambda: cm.sweep("mlp-mnist", batch="9..2"))


@pytest.mark.parametrize(("model", "rate"), [("gpt2-small", "tokens_per_second"), ("mlp-mnist", "samples_per_second")])
def test_a_table_on_a_machine_has_seconds_with_their_range(capsys: pytest.CaptureFixture[str], model, rate) -> None:
    _, out, _ = here(capsys, "sweep", model, "--batch", "1..2", "--on", "t4", "--wide")
    _, header, *cells = (line.split() for line in out.splitlines() if line)
    assert header[2:5] == ["seconds", "range", rate]
    for batch, cell in zip((1, 2), cells, strict=True):
        time = cm.predict(model, batch=batch, on="t4").time
        assert show_seconds(time.seconds) in " ".join(cell)
        assert f"{show_seconds(time.low)} to {show_seconds(time.high)}" in " ".join(cell)


def test_a_frame_has_a_row_for_each_cell() -> None:
    ds = cm.sweep(SMALL, **GRID, quantities=["params", "memory.peak"])
    frame = ds.to_dataframe().reset_index()
    assert len(frame) == 8 * 5 * 4
    row = frame[(frame.batch == 3) & (frame.seq == 8) & (frame.heads == 1)].iloc[0]
    assert row["memory.peak"] == cell_of(ds, batch=3, seq=8, heads=1)["memory.peak"]


@pytest.mark.slow
@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_any_executor_gives_the_same(pool: type[Any]) -> None:
    with pool(2) as executor:
        assert cm.sweep(SMALL, **GRID, executor=executor).identical(cm.sweep(SMALL, **GRID))


@pytest.mark.slow
@pytest.mark.parametrize("chunks", ["auto", 3, {"batch": 3}, (8, 2, 4)])
def test_chunks_are_lazy_and_the_same(chunks: Any) -> None:
    lazy = cm.sweep(SMALL, **GRID, chunks=chunks)
    assert lazy.chunks
    assert lazy.compute().identical(cm.sweep(SMALL, **GRID))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("chunks", [None, {"batch": 3}])
def test_parquet_and_zarr_hold_what_the_result_holds(tmp_path: Any, chunks: Any) -> None:
    whole, ds = cm.sweep(SMALL, **GRID), cm.sweep(SMALL, **GRID, chunks=chunks)
    ds.to_parquet(tmp_path / "sweep.parquet")
    frame = pandas.read_parquet(tmp_path / "sweep.parquet").set_index(list(GRID)).sort_index()
    expected = whole.to_dataframe().sort_index()
    pandas.testing.assert_frame_equal(frame[list(QUANTITIES)], expected[list(QUANTITIES)])
    assert list(frame.reason) == list(expected.reason)
    ds.to_zarr(tmp_path / "sweep.zarr")
    again = xarray.open_zarr(tmp_path / "sweep.zarr").load()
    for quantity in QUANTITIES:
        np.testing.assert_array_equal(again[quantity].values, whole[quantity].values)
        assert again[quantity].attrs["units"] == whole[quantity].attrs["units"]
    assert (again.reason.values == whole.reason.values).all()


def test_a_space_travels_with_its_formulas() -> None:
    from costmodel.analysis.sweep.sweeps import grid_of

    grid = grid_of(SMALL, ["memory.peak"], {"batch": range(1, 50), "seq": [4, 8]})
    here, there = (one.cells_in(one.whole).values["memory.peak"] for one in (grid, pickle.loads(pickle.dumps(grid))))
    assert (here == there).all()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"bacth": [1, 2]}, "'batch'"),
        ({"batch": [1], "quantities": ["memory.peek"]}, "'memory.peak'"),
        ({"batch": []}, "axis batch is empty"),
        ({"batch": [0, 1]}, "axis batch=0 is not between 1"),
        ({"batch": [1, "2"]}, "'2' is not a whole number"),
        ({"batch": [True]}, "True is not a whole number"),
        ({"batch": [1, 2, 1]}, "has 1 twice"),
        ({"optimizer": ["sgd", "adamx"]}, "'adam'"),
        ({"batch": range(1, 10**16)}, "10,000,000"),
        ({"batch": range(1, 10**5), "seq": range(1, 10**5), "layers": range(1, 10**5)}, "chunks"),
        ({"batch": [1, 2], "chunks": {"bacth": 1}}, "'batch'"),
        ({"batch": [1, 2], "chunks": "much"}, "chunks='much'"),
        ({"batch": [1, 2], "quantities": []}, "one or more"),
        ({"image": [(1, 2, 3)]}, "(height, width)"),
        ({"width": "wide", "batch": [1]}, "width"),
    ],
)
def test_what_is_wrong_with_a_sweep_is_said_in_one_line(asked: dict[str, Any], said: str) -> None:
    assert said in error_of(lambda: cm.sweep(cm.GPT2Small, **asked))


def test_a_grid_that_does_not_fit_says_how_large_it_is() -> None:
    line = error_of(lambda: cm.sweep(SMALL, **{name: range(1, 10**5 + 1) for name in ("batch", "layers", "vocab")}))
    assert "1,000,000,000,000,000 points" in line
    assert "PiB" in line
    assert "use fewer values, or several sweeps (chunks='auto' would make" in line


@pytest.mark.slow
def test_a_grid_that_does_not_fit_is_lazy_as_advised() -> None:
    large: dict[str, Any] = {name: range(1, 10**5 + 1) for name in ("batch", "vocab")}
    assert "give chunks='auto' to have it lazily" in error_of(lambda: cm.sweep(SMALL, **large))
    assert cm.sweep(SMALL, **large, chunks="auto").params.shape == (10**5, 10**5)
    assert "a chunk of 10,000,000,000 points" in error_of(lambda: cm.sweep(SMALL, **large, chunks=-1))
    assert "use larger chunks, fewer values" in error_of(lambda: cm.sweep(SMALL, **large, chunks=50))
    assert cm.sweep(SMALL, **large, chunks="64 MiB").chunks


def test_the_result_says_what_was_asked() -> None:
    ds = cm.sweep(SMALL, batch=[1], optimizer="sgd", checkpoint=("mlp",), quantities="params")
    assert json.loads(ds.attrs["settings"]) == {"optimizer": "sgd", "checkpoint": "mlp"}
