"""Sweeps drawn: what is drawn is what the sweep says, in units, and what fits is told from what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import costmodel as cm
from costmodel.display.figures import scale_of, ticks_of, wide
from costmodel.display.heatmaps import _edges
from tests.command import error_of, here, refused

SMALL = cm.Transformer(vocab=50, context=16, layers=4, width=24, heads=4, name="small")
PNG = b"\x89PNG\r\n"


def axes_of(figure: Any) -> list[Any]:
    return figure.axes


def texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_over_two_axes_every_cell_is_a_colour_and_what_fits_is_bounded(tmp_path: Path) -> None:
    grid = cm.sweep(SMALL, batch=[1, 2, 4, 8], seq=[4, 8, 16, 32], quantities=["memory.peak"])
    peaks = grid["memory.peak"].transpose("seq", "batch").values
    room = int(np.nanmedian(peaks))
    axes, bar = axes_of(grid.plot(tmp_path / "grid.png", memory=room))
    assert (tmp_path / "grid.png").read_bytes().startswith(PNG)
    unit, name = scale_of("memory.peak", np.nanmax(peaks))
    drawn = axes.collections[0].get_array()
    assert np.array_equal(drawn.mask, np.isnan(peaks))
    assert np.allclose(drawn.filled(0) * unit, np.nan_to_num(peaks))
    veil = axes.images[0].get_array()[..., 3] > 0
    assert np.array_equal(veil, peaks > room)
    assert (axes.get_xlabel(), axes.get_ylabel(), bar.get_ylabel()) == (
        "batch [samples]",
        "sequence length [tokens]",
        name,
    )
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "2", "4", "8"]
    assert len(texts(axes)) == np.isfinite(peaks).sum()
    assert "no answer" in [text.get_text() for text in axes.get_legend().get_texts()]


@pytest.mark.parametrize(
    ("seq", "memory", "said"),
    [
        ([4, 8], "1 GiB", []),
        ([4, 8], "1 kB", ["veiled: beyond 1000 B"]),
        ([17, 18], "1 GiB", ["no answer"]),
    ],
)
def test_the_legend_names_only_what_is_drawn(seq: list[int], memory: str, said: list[str]) -> None:
    axes, _ = axes_of(cm.sweep(SMALL, batch=[1, 2], seq=seq, quantities=["memory.peak"]).plot(memory=memory))
    legend = axes.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == said if legend else not said


def test_the_edge_runs_between_what_fits_and_what_does_not() -> None:
    fits = np.array([[True, True, False], [True, False, False]])
    there = np.array([[True, True, True], [True, True, False]])
    assert _edges(fits, there) == [
        ((1.5, -0.5), (1.5, 0.5)),
        ((0.5, 0.5), (0.5, 1.5)),
        ((0.5, 0.5), (1.5, 0.5)),
    ]
    assert _edges(there, there) == []


def test_along_one_axis_the_peak_is_stacked_by_category() -> None:
    grid = cm.sweep(SMALL, batch=range(1, 41), optimizer=["sgd", "adamw"], checkpoint=[("mlp",), "block"], seq=8)
    (axes,) = axes_of(grid.sel(optimizer="adamw", checkpoint="mlp").plot(memory="1 MiB", reserve="100 kB"))
    total = axes.lines[0]
    peaks = [cm.predict(SMALL, batch=b, seq=8, checkpoint=("mlp",)).memory.peak for b in total.get_xdata().tolist()]
    unit, name = scale_of("memory.peak", max(*peaks, 2**20))
    assert np.allclose(np.array(total.get_ydata()) * unit, peaks)
    assert axes.get_ylabel() == name
    assert axes.lines[1].get_ydata()[0] * unit == pytest.approx(2**20 - 100_000)
    assert texts(axes) == ["budget 1.00 MiB less 97.7 KiB"]
    assert {"weights", "optimizer", "activations"} <= {t.get_text() for t in axes.get_legend().get_texts()}
    assert "checkpoint mlp" in axes.get_title(loc="left")


@pytest.mark.parametrize(
    "asked",
    [
        {"optimizer": ["sgd", "adamw", "lion"]},
        {"batch": [3]},
        {"seq": [8, 32]},
        {"layers": range(1, 9)},
        {"image": [32, (32, 48)], "model": "resnet18"},
        {"optimizer": ["sgd", {"name": "own", "states": [{"name": "one"}], "source": "s"}]},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_whatever_varies_can_be_drawn(asked: dict[str, Any]) -> None:
    model = asked.get("model", SMALL)
    grid = cm.sweep(model, quantities=["memory.peak"], **{k: v for k, v in asked.items() if k != "model"})
    (axes,) = axes_of(grid.plot(memory="1 GiB", dark=True))
    heights: Any = sum(bar.get_height() for bar in axes.patches) if axes.patches else axes.lines[0].get_ydata().sum()
    peaks = np.nansum(grid["memory.peak"].values)
    unit, _ = scale_of("memory.peak", max(2**30, np.nanmax(grid["memory.peak"].values)))
    assert heights * unit == pytest.approx(peaks)


def test_other_quantities_are_lines_and_lazy_or_saved_sweeps_draw_too(tmp_path: Path) -> None:
    lazy = cm.sweep(SMALL, batch=range(1, 9), quantities=["flops.total", "memory.peak"], chunks=4)
    (axes,) = axes_of(lazy.plot(quantity="flops.total"))
    assert axes.get_ylabel().startswith("flops.total [")
    totals = [cm.predict(SMALL, batch=batch).flops.total for batch in range(1, 9)]
    assert np.allclose(axes.lines[0].get_ydata() * scale_of("flops.total", totals[-1])[0], totals)
    many = cm.sweep(SMALL, batch=range(1, 3001), seq=range(1, 17), quantities=["params"], chunks="auto")
    assert axes_of(many.plot())[0].collections[0].get_array().size <= 500 * 16


def test_ticks_are_round_or_powers() -> None:
    assert ticks_of([1, 2, 4])[1] == ["1", "2", "4"]
    places, said = ticks_of(range(8, 1025, 8))
    assert said[:2] == ["200", "400"]
    assert places[0] == 24
    assert ticks_of(["a" * 30])[1] == ["a" * 17 + "…"]
    assert (wide([1, 2, 4, 8]), wide([1, 2, 3, 4]), wide([5])) == (True, False, False)


def test_bad_pictures_are_one_clear_line(tmp_path: Path) -> None:
    grid = cm.sweep(SMALL, batch=[1, 2], seq=[4, 8], optimizer=["sgd", "adamw"], quantities=["params"])
    assert "this sweep has 3 (batch, seq, optimizer)" in error_of(lambda: grid.plot())
    assert "sel(optimizer='sgd')" in error_of(lambda: grid.plot())
    sizes = cm.sweep(SMALL, batch=[1, 2], layers=[1, 2], seq=[4, 8], quantities=["params"])
    assert "sel(seq=4)" in error_of(lambda: sizes.plot())
    assert "this sweep has none" in error_of(lambda: cm.sweep(SMALL, batch=4, quantities="params").plot())
    flat = grid.sel(optimizer="sgd")
    assert "unknown quantity of this sweep 'memory.peek'" in error_of(lambda: flat.plot(quantity="memory.peek"))
    assert "memory.peak, which this sweep does not have" in error_of(lambda: flat.plot(memory="1 GiB"))
    assert "give memory too" in error_of(lambda: flat.plot(reserve="1 GiB"))
    assert "use a name that ends in .png" in error_of(lambda: flat.plot(tmp_path / "grid.xyz"))
    assert list(tmp_path.iterdir()) == []


def test_the_front_is_drawn_among_all_cells(tmp_path: Path) -> None:
    from costmodel.analysis.pareto import _cells
    from costmodel.display.charts import pareto_front

    grid = cm.sweep(SMALL, batch=[1, 2, 4, 64], checkpoint=["none", "block"], seq=[8, 32])
    front = cm.pareto(grid, "memory.peak", most="batch", plot=tmp_path / "front.png")
    assert (tmp_path / "front.png").read_bytes().startswith(PNG)
    found, held = _cells(grid, ["memory.peak", "batch"])
    frame: Any = found.dropna(subset=["memory.peak"])
    (axes,) = axes_of(pareto_front(frame, front, held, ["memory.peak", "batch"], ("batch",)))
    every, best = axes.lines
    assert (len(every.get_xdata()), len(best.get_xdata())) == (len(frame), len(front))
    assert list(best.get_ydata()) == list(front["batch"])
    assert axes.get_ylabel() == "batch [samples] (more is better)"
    assert "batch 1, checkpoint none" in texts(axes)[0]


def test_a_front_is_named_beside_all_cells_with_plain_ticks() -> None:
    from costmodel.analysis.pareto import _cells
    from costmodel.display.charts import pareto_front

    grid = cm.sweep(
        "gpt2-small", batch=[1, 2, 4, 8, 16, 32], seq=[512, 1024], quantities=["memory.peak", "flops.total"]
    )
    front, (frame, held) = cm.pareto(grid, "memory.peak", "flops.total"), _cells(grid, ["memory.peak", "flops.total"])
    figure = pareto_front(frame, front, held, ["memory.peak", "flops.total"], ())
    (axes,) = axes_of(figure)
    figure.draw_without_rendering()
    assert texts(axes) == ["batch 1, seq 512"]
    assert axes.get_xscale() == "log"
    ticks = [tick.get_text() for which in ("major", "minor") for tick in axes.get_xticklabels(which=which)]
    assert {"2", "5", "10"} <= set(ticks)
    assert all(tick.replace(",", "").replace(".", "").isdigit() for tick in ticks)
    box = axes.texts[0].get_window_extent()
    assert axes.bbox.x0 <= box.x0
    assert not any(box.contains(*place) for place in axes.transData.transform(axes.lines[0].get_xydata()))


def test_commands_draw_and_compare_fronts(capsys, tmp_path: Path) -> None:
    asked = ("mlp-mnist", "--batch", "1:64:*2", "--optimizer", "sgd,adamw")
    saved, image = str(tmp_path / "sweep.parquet"), str(tmp_path / "sweep.png")
    drawn = here(capsys, "sweep", *asked, "--out", saved, "--plot", image, "--memory", "64MiB")
    assert drawn.code == 0
    assert Path(image).read_bytes().startswith(PNG)
    front = cm.pareto(
        cm.sweep("mlp-mnist", batch=[2**n for n in range(7)], optimizer=["sgd", "adamw"]), "memory.peak", most="batch"
    )
    fresh = here(capsys, "pareto", *asked[:1], "memory.peak", *asked[1:], "--most", "batch", "--json")
    again = here(capsys, "pareto", saved, "memory.peak", "--most", "batch", "--json")
    assert json.loads(fresh.out) == json.loads(again.out) == front.to_dict("records")
    assert "sgd" in here(capsys, "pareto", saved, "memory.peak", "--most", "batch").out
    refused(here(capsys, "pareto", saved, "memory.peak", "flops.total", "--batch", "3"), "holds a sweep already")
    refused(here(capsys, "pareto", str(tmp_path / "no.parquet"), "memory.peak", "params"), "No such file")
    refused(
        here(capsys, "pareto", "mlp-mnist", "memory.peek", "params", "--batch", "1,2"), "did you mean 'memory.peak'"
    )
    refused(here(capsys, "pareto", "mlp-mnist", "memory.peak", "optimizer", "--optimizer", "sgd,adamw"), "names")
    refused(here(capsys, "sweep", *asked, "--memory", "1GiB"), "give --plot FILE too")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    refused(here(capsys, "pareto", str(tmp_path / "bad.parquet"), "memory.peak", "params"), "cannot read the sweep")
