"""Pictures of a check: what they show as plain data, which one, in which form, to which file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from costmodel.architectures.base import Architecture
from costmodel.cost.prediction import Prediction
from costmodel.display import interactive
from costmodel.display.figures import check_writable, ending_of, figure_class, save, write
from costmodel.display.rooflines import Chart, Dot, picture
from costmodel.display.table import printable
from costmodel.display.units import show_bytes, show_change, show_count, show_rate, show_seconds
from costmodel.errors import CostModelError, unknown
from costmodel.roofline.checking import check as checked
from costmodel.roofline.findings import Check, Finding

Layer = Literal["roofline", "scatter", "bars"]
KINDS: tuple[Layer, ...] = get_args(Layer)
ALL = "all"
NAMED = 3
"""Layers that are named where there is no room for more."""


def plot(
    model: Check | Architecture | Prediction | str,
    path: str | os.PathLike[str] | None = None,
    *,
    kind: str = "roofline",
    dark: bool = False,
    **asked: Any,
) -> Any:
    """Draw a check, or check a model and draw that (extra `plot`).

    Args:
        model: a check, or what `check` takes.
        path: .png, .svg, .pdf, ...; .html is interactive and self-contained. Without it matplotlib's figure is given.
        kind: "roofline", "scatter" (predicted against measured), "bars" (time of each layer) or "all".
        dark: on black instead of white; a page takes its colours from the reader's system.
        **asked: as `check` takes them.

    Raises:
        CostModelError: an unknown kind, a file that cannot be written, or what `check` raises.

    """
    check_drawable(path, kind)
    found = drawn(model if isinstance(model, Check) else checked(model, **asked))
    if path is not None:
        files = draw(found, path, kind=kind, dark=dark)
        return None if _is_page(path) else Path(files[0])
    if kind == ALL:
        raise CostModelError(
            "all kinds of pictures need a path: give one that ends in .html, or in .png for a file each"
        )
    _check_arithmetic(found, [kind])
    return picture(found.chart, kind, dark)


class Drawn(NamedTuple):
    """What is drawn of a check, as plain data that is kept and drawn again. machine: it was measured on, in words."""

    chart: Chart
    machine: str


def drawn(check: Check) -> Drawn:
    """Of a check."""
    return Drawn(chart_of(check), str(check.calibration.machine))


def draw(found: Drawn, path: str | os.PathLike[str], *, kind: str = "roofline", dark: bool = False) -> list[str]:
    """Draw to a file; all kinds on one page, or in a file each, whose name ends in the kind. Returns their names."""
    kinds = [name for name in KINDS if name != "roofline" or found.chart.drawn] if kind == ALL else [kind]
    _check_arithmetic(found, kinds)
    if _is_page(path):
        head = f"<p><b>{escape(found.chart.title)}</b><br>{escape(found.machine)}</p>"
        write(interactive.page(found.chart.title, head, found.chart, kinds), path)
        return [str(path)]
    whole = Path(path)
    paths = [whole.with_name(f"{whole.stem}-{name}{whole.suffix}") for name in kinds] if kind == ALL else [whole]
    for name, each in zip(kinds, paths, strict=True):
        save(picture(found.chart, name, dark), each)
    return list(map(str, paths))


def _check_arithmetic(found: Drawn, kinds: Sequence[str]) -> None:
    if "roofline" in kinds and not found.chart.drawn:
        raise CostModelError(f"{found.chart.title} does no arithmetic: there is nothing to draw")


def check_drawable(path: str | os.PathLike[str] | None, kind: str) -> None:
    """Raise CostModelError for an unknown kind, a missing library or a path that cannot be written."""
    if kind not in (*KINDS, ALL):
        raise unknown("kind of picture", kind, (*KINDS, ALL))
    if path is not None and _is_page(path):
        interactive.require()
    else:
        figure = figure_class()()
        if path is not None:
            ending_of(path, figure)
    if path is not None:
        check_writable(path)


def _is_page(path: str | os.PathLike[str]) -> bool:
    return Path(path).suffix.lower() in (".html", ".htm")


def page(check: Check) -> str:
    """A page of HTML: tables, and the pictures that can be drawn if plotly is there."""
    chart = chart_of(check)
    kinds = [kind for kind in KINDS if kind != "roofline" or chart.drawn] if find_spec("plotly") is not None else []
    return interactive.page(check.question, check._repr_html_(), chart, kinds)


def chart_of(check: Check) -> Chart:
    """What the pictures show: a dot for each distinct program, from the one that takes longest."""
    groups: dict[int, list[Finding]] = {}
    for layer in check.layers:
        groups.setdefault(layer.program, []).append(layer)
    dots = sorted((_dot(check, layers) for layers in groups.values()), key=lambda dot: -dot.share)
    errors = check.errors
    said = f"median error {errors.median:.1%}, nine of ten within {errors.quantile(0.9):.1%}"
    said = said if errors.predicted else "no layer is resolved"
    return Chart(check.question, check.ceilings, tuple(dots), said, _left_out(check))


def _dot(check: Check, layers: list[Finding]) -> Dot:
    """Layers that run one program; the class is as measured, or as predicted where that was not asked for."""
    layer = layers[0]
    label = _name(layer) + (f" +{len(layers) - 1}" if len(layers) > 1 else "")
    share = sum(map(check.share, layers))
    return Dot(
        label=label,
        bound=(layer.measured_class or layer.predicted_class).bound,
        share=share,
        intensity=layer.intensity,
        predicted_rate=layer.arithmetic / layer.predicted_seconds,
        measured_rate=layer.flops_per_second,
        predicted_seconds=layer.predicted_seconds / layer.repeat,
        measured_seconds=layer.measured_seconds / layer.repeat,
        predicted_total=sum(each.predicted_seconds for each in layers),
        measured_total=sum(each.measured_seconds for each in layers),
        error=layer.error,
        details=(label, *_details(check, layer, sum(each.repeat for each in layers), share)),
    )


def _details(check: Check, layer: Finding, runs: int, share: float) -> list[str]:
    """Lines that are shown on hovering: measured, predicted, traffic, rates and classes of one run."""
    times, (low, high) = layer.repeat, layer.timing.interval
    lines = [
        f"{layer.kind}, {runs} runs, {share:.1%} of the time",
        f"measured {show_seconds(layer.measured_seconds / times)} ({show_seconds(low)} to {show_seconds(high)})",
        f"predicted {show_seconds(layer.predicted_seconds / times)} ({show_change(layer.error, 1)}), most of it"
        f" {layer.host.dominant}",
        f"{show_count(layer.arithmetic // times)}FLOP, {show_bytes(layer.compulsory_bytes // times)}"
        f" compulsory, {show_bytes(layer.numpy_bytes // times)} by NumPy",
    ]
    if layer.arithmetic:
        rate, of_peak = show_rate(layer.flops_per_second), layer.flops_per_second / check.peak
        lines.append(f"{layer.intensity:.2f} FLOP/B, {rate}FLOP/s, {of_peak:.1%} of peak")
    measured = layer.measured_class or "not asked"
    return [*lines, f"bound by: model {layer.predicted_class}, measured {measured}, textbook {layer.textbook_class}"]


def _left_out(check: Check) -> str:
    """Which layers have no place on a roofline, as they do no arithmetic, and how much of the time they take."""
    left = [layer for layer in check.layers if not layer.intensity]
    if not left:
        return ""
    more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
    share = sum(map(check.share, left))
    return f"not shown, as they only move: {', '.join(map(_name, left[:NAMED]))}{more} ({share:.1%} of the time)"


def _name(layer: Finding) -> str:
    return printable(layer.full_name)
