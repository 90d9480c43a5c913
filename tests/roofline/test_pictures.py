"""Pictures of a check show what it found, in every form, with names that cover nothing."""

import math
import re
from dataclasses import replace
from html import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.display.figures import Box, around, free_places
from costmodel.display.rooflines import MOST_BARS, MOST_LABELS, picture
from costmodel.errors import CostModelError
from costmodel.roofline.checking import check, plot
from costmodel.roofline.findings import Check
from tests.command import error_of
from tests.roofline.synthetic import Clockwork, calibration

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clockwork")]

KINDS = ("roofline", "scatter", "bars")


@pytest.fixture(scope="module")
def found(clockwork: Clockwork) -> Check:
    gpt = cm.Transformer(vocab=31, context=8, layers=2, width=16, heads=2)
    return check(gpt, seq=5, rounds=1, classes=False, reuse="warm", calibration=calibration())


def test_a_dot_is_a_program_and_shares_are_of_all(found: Check) -> None:
    dots = found.chart.dots
    assert len(dots) == len({layer.program for layer in found.layers})
    assert math.fsum(dot.share for dot in dots) == pytest.approx(1)
    assert [dot.share for dot in dots] == sorted((dot.share for dot in dots), reverse=True)
    assert {dot.label for dot in dots} - {dot.label for dot in found.chart.drawn} >= {"embedding"}
    assert any(dot.label == "block.attention_norm +2" for dot in dots)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dark", [False, True])
def test_no_name_covers_another(found: Check, kind: str, dark: bool) -> None:
    figure = plot(found, None, kind=kind, dark=dark)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    labels = {dot.label for dot in found.chart.dots}
    named = [text for text in axes.texts if text.get_text() in labels or text.get_text().isdecimal()]
    texts = named if kind != "bars" else axes.get_yticklabels()
    boxes = [Box(e.x0, e.y0, e.x1, e.y1) for e in (text.get_window_extent() for text in texts)]
    assert len(boxes) >= 5
    assert not [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.meets(b)]


def test_the_roofline_has_every_ceiling(found: Check) -> None:
    shown = " ".join(text.get_text() for text in plot(found, None).axes[0].texts)
    for ceiling in found.ceilings:
        assert f"{ceiling.name}  " in shown


def test_the_roofline_names_what_has_no_place_on_it(found: Check) -> None:
    drawn = {dot.label for dot in found.chart.drawn}
    hidden = [dot.label.partition(" +")[0] for dot in found.chart.dots if dot.label not in drawn]
    told = plot(found, None).axes[0].get_xlabel()
    assert hidden
    assert all(name in told for name in hidden)


@pytest.mark.parametrize("kind", KINDS)
def test_each_form_is_written_whole(found: Check, tmp_path, kind: str) -> None:
    found.plot(tmp_path / "a.png", kind=kind, dark=True)
    plot(found, tmp_path / "a.html", kind=kind)
    assert (tmp_path / "a.png").read_bytes()[1:4] == b"PNG"
    page = (tmp_path / "a.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "src=" not in page.split("<body>")[0]
    assert "<script" not in page
    assert 'href="http' not in page
    assert "prefers-color-scheme: dark" in page
    assert len(page) < 1_000_000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "a.png"]


@pytest.mark.parametrize("kind", KINDS)
def test_pointing_at_a_dot_tells_of_it(found: Check, tmp_path, kind: str) -> None:
    plot(found, tmp_path / "a.html", kind=kind)
    told = re.findall(r"<g><title>(.*?)</title>", (tmp_path / "a.html").read_text(), re.DOTALL)
    dots = {"roofline": found.chart.drawn, "scatter": found.chart.dots, "bars": found.chart.dots[:MOST_BARS]}[kind]
    assert {escape("\n".join(dot.details)) for dot in dots} <= set(told)


def test_many_dots_have_numbers_and_a_key(found: Check) -> None:
    few = replace(found.chart, dots=tuple(found.chart.drawn[:3]))
    assert few.dots[0].label in {text.get_text() for text in picture(few, "roofline").axes[0].texts}
    axes = picture(found.chart, "roofline").axes[0]
    texts = [text.get_text() for text in axes.texts]
    assert len(found.chart.drawn) > MOST_LABELS
    assert {"1", "2"} <= set(texts)
    assert all(
        text.get_transform() in (axes.transData, axes.transAxes) for text in axes.texts if text.get_text() == "1"
    )
    assert any(f"1  {found.chart.drawn[0].label}  " in text for text in texts)


def test_a_dot_of_next_to_no_time_widens_no_axis(found: Check) -> None:
    chart = found.chart
    far = chart.drawn[0]._replace(label="far", share=1e-6, intensity=1e-9, measured_rate=1.0, predicted_rate=1.0)
    with_far = replace(chart, dots=(*chart.dots, far))
    assert with_far.ranges == chart.ranges
    assert "1 far off, <0.1% of the time, not shown" in with_far.intensity_title
    weighty = replace(chart, dots=(*chart.dots, far._replace(share=0.5)))
    assert weighty.ranges[0][0] < 1e-9


def test_a_scatter_has_bars_of_both_intervals(found: Check) -> None:
    figure = picture(found.chart, "scatter")
    assert len(figure.axes[0].containers) == len(found.chart.dots)
    assert all(len(dot.ranges) == 2 for dot in found.chart.dots)


@pytest.mark.parametrize(
    ("path", "kind", "said"),
    [
        ("a.png", "pie", "unknown kind of picture 'pie'"),
        ("a.doc", "bars", "a name that ends in .png"),
        ("none/a.html", "bars", "cannot write"),
        (".", "bars", "cannot draw"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_measuring(tmp_path, monkeypatch, path: str, kind: str, said) -> None:
    monkeypatch.setattr("costmodel.roofline.checking.check", lambda *_, **__: pytest.fail("measured"))
    assert said in error_of(lambda: plot("mlp-mnist", tmp_path / path, kind=kind))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_library_is_one_line(found: Check, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(CostModelError, match=r"costmodel\[plot\]"):
        plot(found, tmp_path / "a.html")


def test_a_model_without_arithmetic_has_no_roofline() -> None:
    idle = check(
        cm.CNN(input=(4, 4, 4), blocks=[{"channel_shuffle": {"groups": 2}}]),
        rounds=1, classes=False, calibration=calibration(),
    )  # fmt: skip
    assert "no arithmetic" in error_of(lambda: plot(idle, None))
    assert plot(idle, None, kind="bars") is not None


BOX = Box(0, 0, 300, 200)
spots = st.lists(st.tuples(st.floats(0, 300), st.floats(0, 200), st.floats(1, 20)), min_size=1, max_size=12)


@given(spots, st.floats(5, 90), st.floats(5, 20))
def test_placed_names_cover_no_dot_no_name_and_no_edge(spots: list, width: float, height: float) -> None:
    dots = [around(*spot) for spot in spots]
    boxes = [box for box in free_places(dots, [(width, height)] * len(dots), [], BOX) if box is not None]
    assert all(box.within(BOX) for box in boxes)
    assert not [1 for box in boxes for dot in dots if box.meets(dot)]
    assert not [1 for i, box in enumerate(boxes) for other in boxes[:i] if box.meets(other)]


def test_a_lone_dot_has_its_name_to_the_right() -> None:
    (box,) = free_places([around(100, 100, 4)], [(50, 10)], [], BOX)
    assert box is not None
    assert 104 <= box.left <= 112
    assert box.bottom == 95


@pytest.mark.parametrize("kind", KINDS)
def test_names_that_start_as_formulas_are_drawn_as_they_are(found: Check, kind: str) -> None:
    chart = found.chart
    name = r"$\frac{1}{$"
    named = replace(
        chart,
        title=name,
        ceilings=tuple(replace(ceiling, name=name) for ceiling in chart.ceilings),
        dots=tuple(dot._replace(label=name) for dot in chart.dots),
    )
    figure = picture(named, kind)
    figure.canvas.draw()
