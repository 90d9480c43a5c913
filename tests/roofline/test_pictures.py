"""Pictures of a check show what it found, in every form, with names that cover nothing."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.display.figures import Box, around, free_places
from costmodel.display.interactive import figure_of
from costmodel.display.rooflines import picture
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
    texts = [text for text in axes.texts if text.get_text() in labels] if kind != "bars" else axes.get_yticklabels()
    boxes = [Box(e.x0, e.y0, e.x1, e.y1) for e in (text.get_window_extent() for text in texts)]
    assert len(boxes) >= 5
    assert not [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.meets(b)]


def test_the_roofline_has_every_ceiling(found: Check) -> None:
    shown = " ".join(text.get_text() for text in plot(found, None).axes[0].texts)
    hovered = " ".join(annotation.text for annotation in figure_of(found.chart, "roofline").layout.annotations)
    for ceiling in found.ceilings:
        assert f"{ceiling.name}  " in shown
        assert f"{ceiling.name}  " in hovered


def test_the_roofline_names_what_has_no_place_on_it(found: Check) -> None:
    drawn = {dot.label for dot in found.chart.drawn}
    hidden = [dot.label.partition(" +")[0] for dot in found.chart.dots if dot.label not in drawn]
    told = plot(found, None).axes[0].get_xlabel()
    assert hidden
    assert all(name in told for name in hidden)
    assert told.replace("\n", "<br>") == figure_of(found.chart, "roofline").layout.xaxis.title.text


@pytest.mark.parametrize("kind", KINDS)
def test_each_form_is_written_whole(found: Check, tmp_path, kind: str) -> None:
    found.plot(tmp_path / "a.png", kind=kind, dark=True)
    plot(found, tmp_path / "a.html", kind=kind)
    assert (tmp_path / "a.png").read_bytes()[1:4] == b"PNG"
    page = (tmp_path / "a.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "src=" not in page.split("<body>")[0]
    assert '<script src="http' not in page
    assert "prefers-color-scheme: dark" in page
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "a.png"]


def test_hovering_tells_of_every_dot(found: Check) -> None:
    for kind in KINDS:
        told = {text.split("<br>")[0] for trace in figure_of(found.chart, kind).data for text in trace.hovertext or ()}
        dots = found.chart.drawn if kind == "roofline" else found.chart.dots
        assert {dot.label for dot in dots} <= told


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
    monkeypatch.setitem(__import__("sys").modules, "plotly.graph_objects", None)
    with pytest.raises(CostModelError, match=r"costmodel\[plot\]"):
        plot(found, tmp_path / "a.html")


def test_a_model_without_arithmetic_has_no_roofline() -> None:
    idle = check(
        cm.CNN(input=(4, 4, 4), blocks=[{"channel_shuffle": {"groups": 2}}]),
        rounds=1, classes=False, calibration=calibration(),
    )  # fmt: skip
    assert "no arithmetic" in error_of(lambda: plot(idle, None))
    assert "js-plotly" not in error_of(lambda: plot(idle, None, kind="roofline"))
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
