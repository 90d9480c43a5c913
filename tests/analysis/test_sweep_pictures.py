"""Sweeps drawn: what is drawn is what the sweep says, in units, and what fits is told from what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.display.bars import memory_panel, params_panel, summed
from costmodel.display.figures import scale_of, ticks_of, wide
from costmodel.display.heatmaps import _edges, bar_ticks
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
    fitting = max(b for b in range(1, 41) if peaks[b - 1] <= 2**20 - 100_000)
    assert sorted(texts(axes)) == [f"{fitting} fits", "budget 1.00 MiB less 97.7 KiB"]
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
    assert axes.get_ylabel().startswith("contraction FLOPs, total [")
    totals = [cm.predict(SMALL, batch=batch).flops.total for batch in range(1, 9)]
    assert np.allclose(axes.lines[0].get_ydata() * scale_of("flops.total", totals[-1])[0], totals)
    many = cm.sweep(SMALL, batch=range(1, 3001), seq=range(1, 17), quantities=["params"], chunks="auto")
    assert axes_of(many.plot())[0].collections[0].get_array().size <= 500 * 16


def test_ticks_are_round_or_powers() -> None:
    assert ticks_of([1, 2, 4])[1] == ["1", "2", "4"]
    places, said = ticks_of(range(8, 1025, 8))
    assert said[:2] == ["200", "400"]
    assert places[0] == 24
    assert ticks_of(["a" * 30])[1] == ["…" + "a" * 17]
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
    from costmodel.display.scatter import picture

    grid = cm.sweep(SMALL, batch=[1, 2, 4, 64], checkpoint=["none", "block"], seq=[8, 32])
    front = cm.pareto(grid, "memory.peak", most="batch", plot=tmp_path / "front.png")
    assert (tmp_path / "front.png").read_bytes().startswith(PNG)
    found, held = _cells(grid, ["memory.peak", "batch"])
    frame: Any = found.dropna(subset=["memory.peak"])
    (axes,) = axes_of(picture(frame, front, held, ["memory.peak", "batch"], ("batch",)))
    every, best = axes.lines
    assert (len(every.get_xdata()), len(best.get_xdata())) == (len(frame), len(front))
    assert list(best.get_ydata()) == list(front["batch"])
    assert axes.get_ylabel() == "batch [samples] (more is better)"
    assert "batch 1, checkpoint none" in texts(axes)[0]


def test_long_names_of_a_front_are_listed_by_numbers_beside_their_points() -> None:
    import pandas

    from costmodel.display.scatter import MOST_LISTED, picture

    frame = pandas.DataFrame({"seconds": range(1, 41), "memory.peak": range(40, 0, -1)})
    names = [f"dp {n} tp 4 sp pp 4 interleaved-1f1b batch 1" for n in range(40)]
    (axes,) = axes_of(picture(frame, frame, (), ["seconds", "memory.peak"], (), texts=names))
    listed = [" ".join(text.get_text().split()) for text in axes.get_legend().get_texts()[2:]]
    assert [text.partition(": ")[0] for text in listed] == [str(n) for n in range(1, MOST_LISTED + 1)]
    assert [listed[0], listed[-1]] == [f"1: {names[0]}", f"{MOST_LISTED}: {names[-1]}"]
    assert set(texts(axes)) <= {str(n) for n in range(1, MOST_LISTED + 1)}
    assert len(texts(axes)) > MOST_LISTED / 2


def test_several_budgets_are_contours_that_are_named() -> None:
    grid = cm.sweep("gpt2-small", batch=range(1, 33), seq=range(64, 1025, 64), quantities=["memory.peak"])
    figure = grid.plot()
    axes, bar = axes_of(figure)
    assert texts(axes) == ["16.0 GiB", "24.0 GiB", "40.0 GiB"]
    assert [t.get_text() for t in axes.get_legend().get_texts()] == [f"fits {size} GiB" for size in (16.0, 24.0, 40.0)]
    assert not axes.images
    assert len(set(map(str, (c.get_linestyle() for c in axes.collections[2::2])))) == 3
    low, high = bar.get_ylim()
    assert sum(low <= tick <= high for tick in bar.get_yticks()) >= 4
    assert all(word in axes.get_title(loc="left") for word in ("gpt2-small", "fp32", "adamw"))


@given(st.floats(1e-3, 1e9), st.floats(1.0001, 1e6))
def test_a_bar_of_colours_has_four_ticks_or_more(low: float, ratio: float) -> None:
    ticks = bar_ticks(low, low * ratio)
    assert len(ticks) >= 4
    assert all(low * (1 - 1e-9) <= tick <= low * ratio * (1 + 1e-9) for tick in ticks)
    assert ticks == sorted(set(ticks))


@pytest.mark.parametrize("given", [("batch", "seq"), ("seq", "batch")])
@pytest.mark.parametrize("more", ["batch", "seq"])
def test_axes_do_not_swap_between_figures(given: tuple[str, str], more: str) -> None:
    sizes = {name: [3, 4, 5, 6, 7, 8][: 6 if name == more else 4] for name in given}
    axes, _ = axes_of(cm.sweep(SMALL, quantities=["memory.peak"], **sizes).plot())
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("batch [samples]", "sequence length [tokens]")


@pytest.mark.parametrize("asked", [{"optimizer": ["sgd", "adamw"]}, {"seq": [4, 8]}])
def test_an_axis_of_two_values_is_two_lines(asked: dict[str, Any]) -> None:
    grid = cm.sweep(SMALL, batch=range(1, 9), quantities=["memory.peak"], **asked)
    (axes,) = axes_of(grid.plot())
    (name, values) = next(iter(asked.items()))
    unit, _ = scale_of("memory.peak", np.nanmax(grid["memory.peak"].values))
    for drawn, value in zip(axes.lines, values, strict=True):
        peaks = [cm.predict(SMALL, batch=batch, **{name: value}).memory.peak for batch in range(1, 9)]
        assert np.allclose(np.array(drawn.get_ydata()) * unit, peaks)
    assert len({drawn.get_linestyle() for drawn in axes.lines}) == 2
    assert {t.get_text() for t in axes.get_legend().get_texts()} == set(map(str, values))


def test_between_two_places_of_the_peak_no_area_is_a_wedge() -> None:
    found = cm.max_seq("gpt2-small", memory="3 GiB", batch=1)
    (axes,) = axes_of(found.plot())
    along = found._along()
    values = list(along)
    turns = [n for n in range(1, len(values)) if along[values[n]].place != along[values[n - 1]].place]
    assert turns
    for turn in turns:
        assert values[turn] - values[turn - 1] == 1  # found exactly
        middle = values[turn] - 0.5
        touching = [c for c in axes.collections if middle in c.get_paths()[0].vertices[:, 0]]
        assert touching
    drawn = [c.get_paths()[0].vertices for c in axes.collections]
    assert not any(v[:, 0].min() < values[turn] - 0.5 < v[:, 0].max() for v in drawn for turn in turns)


def test_a_tolerance_leaves_out_what_is_hardly_better() -> None:
    grid = cm.sweep("gpt2-small", batch=[1, 2, 4, 8], seq=[256, 512], quantities=["memory.peak", "flops.total"])
    exact = cm.pareto(grid, "memory.peak", most="batch")
    rough = cm.pareto(grid, "memory.peak", most="batch", tolerance=0.05)
    peaks = dict(zip(exact["batch"], exact["memory.peak"], strict=True))
    assert 0 < len(rough) < len(exact)
    assert {*rough["batch"]} < {*exact["batch"]}
    for batch in {*exact["batch"]} - {*rough["batch"]}:
        assert any(other > 1.05 * batch and peaks[other] <= 1.05 * peaks[batch] for other in rough["batch"])
    assert cm.pareto(grid, "memory.peak", most="batch", tolerance=0).equals(exact)
    for wrong in (-0.1, 1, True, "1%"):
        assert "from 0 to less than 1" in error_of(
            lambda wrong=wrong: cm.pareto(grid, "memory.peak", "batch", tolerance=wrong)
        )


def test_the_front_s_picture_has_no_empty_half(tmp_path: Path) -> None:
    from costmodel.analysis.pareto import _cells
    from costmodel.display.scatter import picture

    grid = cm.sweep("gpt2-small", batch=[1, 2, 4, 8, 16, 32], optimizer=["sgd", "adamw"], checkpoint=["none", "block"])
    names = ["memory.peak", "flops.hardware"]
    frame, held = _cells(grid, names)
    figure = picture(frame, cm.pareto(grid, *names, most="batch"), held, names, ())
    (axes,) = axes_of(figure)
    figure.draw_without_rendering()
    x, y = axes.transData.transform(axes.lines[0].get_xydata()).T
    assert np.ptp(x) > 0.85 * axes.bbox.width
    assert np.ptp(y) > 0.8 * axes.bbox.height
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) > 3
    assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n])


class TestBars:
    def test_what_is_the_same_in_all_is_said_and_not_drawn(self) -> None:
        figure = cm.compare("gpt2-small", batch=2, seq=64, optimizer=["sgd", "adamw"]).plot()
        assert [axes.get_title("left") for axes in axes_of(figure)] == ["memory at the peak"]
        title = figure.get_suptitle()
        assert "parameters 124.4 M" in title
        assert all(word in title for word in ("gpt2-small", "batch 2", "seq 64", "fp32"))

    def test_a_colour_means_one_thing(self) -> None:
        from costmodel.display.bars import PASSES
        from costmodel.display.figures import COLOURS

        assert not {*PASSES.values()} & {*COLOURS.values()}
        assert len({*PASSES.values()} | {*COLOURS.values()}) == len(PASSES) + len(COLOURS)

    @given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**9)), min_size=13, max_size=60))
    def test_more_than_a_dozen_rows_are_other_and_nothing_is_lost(self, rows: list[tuple[int, int]]) -> None:
        panels = [params_panel([params for params, _ in rows]), memory_panel([{"weights": b} for _, b in rows], "kept")]
        names, found = summed([f"part{n}" for n in range(len(rows))], panels)
        assert len(names) == 12
        assert names[-1] == f"other ({len(rows) - 11})"
        for before, after in zip(panels, found, strict=True):
            assert sum(before.totals) == sum(after.totals)
            assert max(before.totals) in after.totals

    def test_a_prediction_s_picture_has_twelve_rows(self) -> None:
        p = cm.predict("resnet50", batch=2)
        figure = p.plot(depth=3, dark=True)
        assert len(p.by_part(3)) > 12
        assert [len(axes.get_yticks()) for axes in axes_of(figure)] == [12, 12, 12]
        assert "ResNet-50: one training step, batch 2, image 224×224, fp32, adamw" in figure.get_suptitle()


def test_a_front_is_named_beside_all_cells_with_plain_ticks() -> None:
    from costmodel.analysis.pareto import _cells
    from costmodel.display.scatter import picture

    grid = cm.sweep(
        "gpt2-small", batch=[1, 2, 4, 8, 16, 32], seq=[512, 1024], quantities=["memory.peak", "flops.total"]
    )
    front, (frame, held) = cm.pareto(grid, "memory.peak", "flops.total"), _cells(grid, ["memory.peak", "flops.total"])
    figure = picture(frame, front, held, ["memory.peak", "flops.total"], ())
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
    drawn = here(capsys, "sweep", *asked, "--out", saved, "--out", image, "--memory", "64MiB")
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
    refused(here(capsys, "sweep", *asked, "--memory", "1GiB"), "give a picture too")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    refused(here(capsys, "pareto", str(tmp_path / "bad.parquet"), "memory.peak", "params"), "cannot read the sweep")


def test_lines_that_coincide_are_drawn_once_and_named_together() -> None:
    grid = cm.sweep(SMALL, batch=range(1, 9), optimizer=["sgd", "adamw"], quantities=["flops.total"])
    (axes,) = axes_of(grid.plot(quantity="flops.total"))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["sgd, adamw (the same)"]
    apart = cm.sweep(SMALL, batch=range(1, 9), optimizer=["sgd", "adamw"], quantities=["memory.peak"])
    (axes,) = axes_of(apart.plot())
    assert {text.get_text() for text in axes.get_legend().get_texts()} == {"sgd", "adamw"}


def test_a_front_s_picture_says_what_all_of_it_has_in_common(tmp_path: Path, monkeypatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("costmodel.display.figures.save", lambda figure, _: drawn.append(figure))
    ways = cm.sweep(SMALL, batch=[1, 2, 4], optimizer=["sgd", "adamw"], quantities=["memory.peak"])
    cm.pareto(ways, "memory.peak", most="batch", plot=tmp_path / "front.png")
    assert ", all with optimizer sgd" in drawn[0].axes[0].get_title(loc="left")


def test_pictures_of_time_name_the_machine_and_how_kernels_are_started() -> None:
    timed = {"seq": 64, "quantities": ["seconds", "memory.peak"]}
    sizes = cm.sweep("gpt2-small", on="t4", batch=[1, 2, 4, 8], **timed).plot(quantity="seconds")
    assert " ".join(sizes.axes[0].get_title("left").split()).startswith("gpt2-small on t4: one training step")
    assert "stack eager" in " ".join(sizes.axes[0].get_title("left").split())
    both = cm.sweep("gpt2-small", on=["t4", "l4"], batch=[1, 2, 4, 8], **timed).plot(quantity="seconds")
    assert both.axes[0].get_legend().get_title().get_text() == "machine"
    assert "on t4" not in both.axes[0].get_title("left")


def test_the_largest_that_fits_is_not_written_on_the_name_of_its_budget() -> None:
    figure = cm.sweep("gpt2-small", batch=range(1, 65), quantities=["memory.peak"]).plot(memory=["24 GiB", "80 GiB"])
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == 4
    assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[n + 1 :])


def test_a_picture_of_layouts_names_what_differs_on_the_front() -> None:
    found = cm.layouts("mlp-mnist", devices=4, on="h100-sxm", global_batch=8, runtime="torch")
    title = " ".join(found.plot().axes[0].get_title("left").split())
    assert title.startswith(found.question)
    assert "layouts are on the Pareto front" in title
    assert not any(word in title for word in ("False", "tp 1", "cp 1"))


@pytest.mark.parametrize("dark", [False, True])
def test_no_title_is_wider_than_its_picture(dark: bool) -> None:
    p = cm.predict("gpt2-small", seq=64, precision="bf16-master-fp32-gradients", attention="flash", fsdp=4)
    time = p.on("h100-sxm", network="400 Gb/s")
    for figure in (time.plot(dark=dark), time.plot_events(dark=dark), p.timeline.plot(dark=dark), p.plot(dark=dark)):
        figure.draw_without_rendering()
        width = figure.bbox.width
        titles = [axes.title for axes in figure.axes] + [axes._left_title for axes in figure.axes]  # type: ignore[attr-defined]
        assert all(title.get_window_extent().x1 <= width for title in titles)
