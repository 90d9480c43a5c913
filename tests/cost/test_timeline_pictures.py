"""The timeline drawn and told: what is drawn is every round of it, and a file is written whole or not at all."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from costmodel.analysis.predict import Prediction, predict
from costmodel.architectures.mlp import MLP
from costmodel.architectures.trace import new_tape, trace
from costmodel.architectures.transformer import Transformer
from costmodel.cost.timeline import Timeline, TimelineStep, milestones
from costmodel.display.units import binary_unit, show_bytes
from costmodel.training.settings import Settings
from tests.command import error_of, here, refused
from tests.cost.test_folding import Unrolled
from tests.strategies import questions

SMALL = Transformer(vocab=50, context=8, layers=6, width=16, heads=2)
PNG = b"\x89PNG\r\n"


def timeline(model: Any = SMALL, **settings: Any) -> Timeline:
    return predict(model, **{"batch": 2, **settings}).timeline


def highest(steps: Iterable[TimelineStep]) -> dict[tuple[str, ...], int]:
    """The most alive at any step of each layer, by phase and rounds."""
    totals: dict[tuple[str, ...], int] = {}
    for *key, alive in steps:
        totals[tuple(map(str, key))] = max(totals.get(tuple(map(str, key)), 0), alive.total)
    return totals


@pytest.mark.slow
@given(questions())
def test_unfolding_takes_every_round_to_the_same_heights(question: tuple[Any, dict[str, Any]]) -> None:
    model, chosen = question
    found = predict(model, **chosen).timeline
    steps = list(found.unrolled())
    assert len(steps) == found.happenings
    assert highest(steps) == highest(found.steps)


@pytest.mark.parametrize("mode", ["train", "inference"])
def test_unfolding_equals_unrolling_step_by_step(mode: str) -> None:
    model = MLP(sizes=(7, 5, 5, 5, 5, 5, 5, 3))
    setting = Settings(batch=3, mode=mode)
    other = new_tape(setting, kind=Unrolled)
    other.bare = ("hidden",)
    unrolled = Prediction(model, setting, trace(model, setting, other)).timeline
    found = Prediction(model, setting).timeline
    assert found.loops
    assert [step.alive for step in found.unrolled()] == [step.alive for step in unrolled.steps]


@pytest.mark.parametrize("settings", [{}, {"checkpoint": "block"}, {"mode": "inference"}, {"loss": None}])
def test_the_table_says_where_the_peak_is_and_how_much(settings: dict[str, Any]) -> None:
    found = timeline(**settings)
    (name, now), *others = [row for row in milestones(found) if row[0].startswith("peak")]
    assert not others
    assert found.steps[now] == found.peak_step
    line = next(line for line in str(found).splitlines() if line.startswith(name))
    assert line.split("  ")[-1].strip() == show_bytes(found.peak)
    assert f"({found.peak:,} bytes)" in str(found).splitlines()[1]


def test_the_table_s_steps_are_in_order_and_start_with_the_first() -> None:
    rows = milestones(timeline(checkpoint="block"))
    assert [now for _, now in rows] == sorted({now for _, now in rows})
    assert rows[0][1] == 0
    assert {"end of forward", "most in recompute", "end of backward", "most in optimizer"} <= {name for name, _ in rows}


@pytest.mark.slow
@given(questions())
def test_the_largest_at_the_peak_is_no_more_than_its_category(question: tuple[Any, dict[str, Any]]) -> None:
    model, chosen = question
    found = predict(model, **chosen).timeline
    assert found.largest is not None
    alive = found.peak_step.alive
    categories = ("gradients", "temporaries") if found.largest.line == "gradients" else (found.largest.line,)
    assert found.largest.bytes <= sum(getattr(alive, line) for line in categories)


@pytest.mark.parametrize(
    ("settings", "size", "said"),
    [
        ({"batch": 8, "seq": 512}, 8 * 512 * 50257 * 4, "from loss"),
        ({"batch": 1, "seq": 8, "mode": "inference"}, 50257 * 768 * 4, "there throughout"),
    ],
)
def test_the_largest_at_the_peak_is_named(settings: dict[str, Any], size: int, said: str) -> None:
    largest = predict("gpt2-small", **settings).timeline.largest
    assert largest is not None
    assert (largest.bytes, largest.name) == (size, said)


def test_a_row_s_total_is_what_is_alive() -> None:
    found = timeline()
    assert max(row["total"] for row in found.rows()) == found.peak
    assert list(found.to_dataframe()["total"]) == [step.alive.total for step in found.steps]


def test_the_command_prints_the_table_or_every_step(capsys) -> None:
    found = predict("mlp-mnist", batch=7).timeline
    assert here(capsys, "timeline", "mlp-mnist", "--batch", "7").out == f"{found}\n"
    assert json.loads(here(capsys, "timeline", "mlp-mnist", "--batch", "7", "--json").out) == found.to_dict()


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "costmodel[plot]" in error_of(timeline().plot)


class TestDrawn:
    @pytest.fixture(autouse=True)
    def _matplotlib(self) -> None:
        pytest.importorskip("matplotlib")

    def test_areas_are_the_categories_at_every_step(self) -> None:
        found = timeline(checkpoint="block")
        (axes,) = found.plot().axes
        legend = axes.get_legend()
        assert legend is not None
        lines = [text.get_text().split("  ")[0] for text in reversed(legend.get_texts())]
        tops = [area.get_paths()[0].vertices[:, 1].max() for area in axes.collections[: len(lines)]]
        unit, _ = binary_unit(found.peak)
        steps = list(found.unrolled())
        stacked = [max(sum(getattr(s.alive, line) for line in lines[: n + 1]) for s in steps) for n in range(len(tops))]
        assert [top * unit for top in tops] == pytest.approx(stacked)

    def test_the_legend_is_the_stack_at_the_peak(self) -> None:
        found = timeline()
        legend = found.plot().axes[0].get_legend()
        assert legend is not None
        assert show_bytes(found.peak) in legend.get_title().get_text()
        for text in legend.get_texts():
            line, size = text.get_text().split("  ")
            alive = getattr(found.peak_step.alive, line)
            assert size == (show_bytes(alive) if alive else "–")

    @pytest.mark.parametrize("settings", [{}, {"checkpoint": "block"}, {"mode": "inference"}])
    def test_no_two_texts_overlap(self, settings: dict[str, Any]) -> None:
        figure = timeline(**settings).plot()
        figure.draw_without_rendering()
        (axes,) = figure.axes
        legend = axes.get_legend()
        assert legend is not None
        boxes = [text.get_window_extent() for text in [*axes.texts, *legend.get_texts(), legend.get_title()]]
        assert not [(a, b) for n, a in enumerate(boxes) for b in boxes[:n] if a.overlaps(b)]
        assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)

    @pytest.mark.parametrize("layers", [400, 10**9])
    def test_any_depth_is_drawn(self, layers: int) -> None:
        found = timeline(SMALL.model_copy(update={"layers": layers}))
        (axes,) = found.plot().axes
        assert "most alive" in axes.get_xlabel()
        areas = axes.collections[0].get_paths()[0].vertices
        assert len(areas) < 50_000

    def test_a_picture_is_light_unless_asked_otherwise(self) -> None:
        asked, light, dark = (timeline().plot(**how).get_facecolor() for how in ({}, {"dark": False}, {"dark": True}))
        assert asked == light != dark

    def test_the_picture_says_its_question_and_what_is_largest(self) -> None:
        figure = predict("gpt2-small", batch=8, seq=512, precision="bf16").timeline.plot(dark=True)
        (axes,) = figure.axes
        assert axes.get_title(loc="left") == "gpt2-small: one training step, batch 8, seq 512, bf16, adamw"
        assert "largest: " in axes.get_legend().get_title().get_text()

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"attention": "flash"}, "attention flash"),
            ({"checkpoint": ("attention", "mlp")}, "checkpoint attention+mlp"),
        ],
    )
    def test_a_title_names_what_is_not_at_its_default(self, settings: dict[str, Any], said: str) -> None:
        (axes,) = timeline(**settings).plot().axes
        assert said in axes.get_title(loc="left").split(", ")

    def test_parts_are_drawn_to_the_second_level_unless_asked_otherwise(self) -> None:
        p = predict(SMALL, batch=2)
        drawn = [
            [label.get_text() for axes in p.plot(**how).axes for label in axes.get_yticklabels()]
            for how in ({}, {"depth": 2}, {"depth": 1})
        ]
        assert drawn[0] == drawn[1] != drawn[2]

    @pytest.mark.parametrize(
        ("memory", "said"),
        [
            (None, ["8.57 GiB"]),
            ("24 GiB", ["budget 24.0 GiB"]),
            (["10 GiB", "40 GiB"], ["budget 10.0 GiB", "budget 40.0 GiB"]),
        ],
    )
    def test_budgets_are_lines(self, memory: Any, said: list[str]) -> None:
        (axes,) = predict("gpt2-small", batch=8, seq=512).timeline.plot(memory=memory).axes
        texts = " ".join(text.get_text() for text in axes.texts)
        assert all(one in texts for one in said)
        assert ("budget" in texts) is (memory is not None)
        (axes,) = predict("gpt2-small", batch=16, seq=512).timeline.plot().axes  # a peak of 15.7 GiB
        assert "16.0 GiB" in [text.get_text() for text in axes.texts]

    def test_the_command_writes_the_picture(self, capsys, tmp_path: Path) -> None:
        path = tmp_path / "memory.png"
        outcome = here(capsys, "timeline", "mlp-mnist", "--out", str(path))
        assert (outcome.code, outcome.out) == (0, f"{predict('mlp-mnist').timeline}\n")
        assert path.read_bytes().startswith(PNG)
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize(("name", "said"), [("no/such/place.png", "cannot write"), ("memory.xyz", ".png")])
    def test_a_path_that_cannot_be_written_is_one_error(self, capsys, tmp_path: Path, name: str, said: str) -> None:
        refused(here(capsys, "timeline", "mlp-mnist", "--out", str(tmp_path / name)), name, said)
        assert list(tmp_path.iterdir()) == []

    def test_what_is_in_the_way_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "memory.png"
        path.mkdir()
        assert "cannot write" in error_of(lambda: timeline().plot(path))
        assert list(tmp_path.iterdir()) == [path]
