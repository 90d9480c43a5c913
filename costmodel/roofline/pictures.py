"""Pictures of a check by matplotlib (extra `plot`), which is loaded only here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from costmodel.display.figures import DARK, LIGHT, Theme, canvas
from costmodel.display.units import show_rate, show_seconds, show_tick
from costmodel.errors import CostModelError
from costmodel.roofline.ceilings import Ceiling
from costmodel.roofline.classification import BOUNDS, Bound
from costmodel.roofline.dots import COLOURS, LEGEND, Dot, dots_of, drawn_dots, intensity_title, spread
from costmodel.roofline.findings import Check
from costmodel.roofline.labels import Box, around, placed
from costmodel.roofline.sheet import headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS: dict[Bound, str] = {"compute": "o", "memory": "s", "overhead": "^"}
MOST_LABELS = 14
MOST_BARS = 40


def picture(check: Check, kind: str, dark: bool = False) -> Figure:
    """The roofline, the scatter or the bars."""
    theme = DARK if dark else LIGHT
    draw = {"roofline": _roofline, "scatter": _scatter, "bars": _bars}[kind]
    return draw(check, theme)


def _area(share: float) -> float:
    """Of a marker [points²]."""
    return 22 + 900 * share


def _legend(
    axes: Axes, dots: list[Dot], theme: Theme, notes: list[tuple[str, dict[str, Any]]], where: Any, marker: str = ""
) -> None:
    from matplotlib.lines import Line2D

    present: list[Bound] = [bound for bound in BOUNDS if any(dot.bound == bound for dot in dots)]
    handles = [
        Line2D([], [], marker=marker or MARKERS[b], color=COLOURS[b], linestyle="", markersize=7, label=LEGEND[b])
        for b in present
    ]
    handles += [Line2D([], [], label=label, **style) for label, style in notes]
    axes.legend(handles=handles, loc=where, frameon=False, labelcolor=theme.ink, fontsize=8.5)


def _roofline(check: Check, theme: Theme) -> Figure:
    """Operations a second over operations a byte, both logarithmic."""
    dots, ceilings = drawn_dots(check), check.ceilings
    if not dots:
        raise CostModelError(f"{check.prediction.model.title} does no arithmetic: there is nothing to draw")
    figure, axes = canvas((11, 7), theme, f"Roofline, {headline(check)}")
    peak, memory = ceilings[0].rate, ceilings[-1].rate
    low, high = spread([dot.intensity for dot in dots] + [peak / memory])
    rates = [rate for dot in dots for rate in (dot.predicted_rate, dot.measured_rate)]
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=spread([*rates, peak], 0.08))
    axes.set_xlabel(intensity_title(check), color=theme.ink)
    axes.set_ylabel("operations a second [FLOP/s]", color=theme.ink)
    axes.yaxis.set_major_formatter(lambda value, _: show_tick(show_rate(value)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for dot in dots:
        colour, marker = COLOURS[dot.bound], MARKERS[dot.bound]
        ends = (dot.predicted_rate, dot.measured_rate)
        axes.plot([dot.intensity] * 2, ends, color=colour, linewidth=1.2, zorder=3)
        for rate, face in zip(ends, (theme.paper, colour), strict=True):
            axes.scatter(
                dot.intensity,
                rate,
                s=_area(dot.share),
                c=face,
                marker=marker,
                edgecolors=colour,
                linewidths=1.3,
                zorder=4,
                alpha=0.9,
            )
    notes: list[tuple[str, dict[str, Any]]] = [
        (name, {"marker": "o", "linestyle": "", "color": theme.ink, "markerfacecolor": face})
        for name, face in (("measured", theme.ink), ("predicted", theme.paper))
    ]
    notes.append(("area: share of the time", {"linestyle": ""}))
    _legend(axes, dots, theme, notes, "lower right")
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    taken = [*_covered(axes, dots), *_legend_box(axes)]
    for ceiling in ceilings:
        taken.append(_ceiling(axes, ceiling, check, theme, taken))
    _label(axes, dots, [(dot.intensity, dot.measured_rate) for dot in dots], taken, theme)
    return figure


def _covered(axes: Axes, dots: list[Dot]) -> list[Box]:
    """The places of predictions, and of the lines that join them to measurements."""
    found = []
    for dot in dots:
        (x, predicted), (_, measured) = axes.transData.transform(
            [(dot.intensity, dot.predicted_rate), (dot.intensity, dot.measured_rate)]
        )
        low, high = sorted((predicted, measured))
        found += [around(x, predicted, _radius(axes, dot)), Box(x - 2, low, x + 2, high)]
    return found


def _radius(axes: Axes, dot: Dot) -> float:
    """Of a marker [pixels]."""
    return _area(dot.share) ** 0.5 / 2 * axes.figure.dpi / 72


def _legend_box(axes: Axes) -> list[Box]:
    legend = axes.get_legend()
    return [_box(legend.get_window_extent())] if legend else []


ALONG = (0.02, 0.1, 0.18, 0.26, 0.34, 0.42, 0.5, 0.58, 0.66, 0.74, 0.82)
"""Where on its line a ceiling's name may start, as shares of the line that is seen."""


def _ceiling(axes: Axes, ceiling: Ceiling, check: Check, theme: Theme, taken: list[Box]) -> Box:
    """A line as far as it bounds anything, named where there is room; returns the name's place."""
    low, high = axes.get_xlim()
    peak, fastest = check.ceilings[0].rate, max(c.rate for c in check.ceilings if c.kind == "memory")
    flat = ceiling.kind == "compute"
    start, end = (ceiling.rate / fastest, high) if flat else (low, peak / ceiling.rate)
    style: Any = "-" if ceiling in (check.ceilings[0], check.ceilings[-1]) else (0, (5, 3))
    axes.plot([start, end], list(map(ceiling.at, (start, end))), color=theme.faint, lw=1.3, linestyle=style, zorder=1)
    start = max(start, low) if flat else max(start, axes.get_ylim()[0] / ceiling.rate)
    text = axes.annotate(
        f"{ceiling.name}  {show_rate(ceiling.rate)}{'FLOP/s' if flat else 'B/s'}",
        (1, 1),
        (-4, 3) if flat else (6, 3),
        textcoords="offset points",
        ha="right" if flat else "left",
        va="bottom",
        rotation=0 if flat else 45,
        rotation_mode="anchor",
        transform_rotates_text=not flat,
        color=theme.faint,
        size=8.5,
        zorder=5,
    )
    boxes: list[Box] = []
    for share in ALONG:
        at = start * (end / start) ** (1 - share if flat else share)
        text.xy = (at, ceiling.at(at))
        boxes.append(_box(text.get_window_extent()))
        if not any(boxes[-1].meets(other) for other in taken):
            break
    return boxes[-1]


def _label(axes: Axes, dots: list[Dot], points: list[tuple[float, float]], taken: list[Box], theme: Theme) -> None:
    """Names beside the first dots, none on another; a thin line to those that stand far off."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=2.5, foreground=theme.paper)]
    at = axes.transData.transform(points)
    boxes = [around(x, y, _radius(axes, dot)) for (x, y), dot in zip(at, dots, strict=True)]
    texts = [
        axes.text(0, 0, dot.label, size=8, color=theme.ink, zorder=6, path_effects=halo) for dot in dots[:MOST_LABELS]
    ]
    sizes = [(box.width, box.height) for box in (text.get_window_extent() for text in texts)]
    bounds = _box(axes.get_window_extent())
    for text, point, box, dot in zip(texts, at, placed(boxes, sizes, taken, bounds), boxes, strict=False):
        if box is None:
            text.remove()
            continue
        text.set_transform(None)
        text.set_position((box.left, box.bottom))
        text.set_verticalalignment("bottom")
        near = (min(max(point[0], box.left), box.right), min(max(point[1], box.bottom), box.top))
        if not dot.grown(16).meets(box):
            ends = axes.transData.inverted().transform([point, near])
            axes.plot(ends[:, 0], ends[:, 1], color=theme.faint, linewidth=0.6, zorder=2)


def _box(extent: Any) -> Box:
    return Box(extent.x0, extent.y0, extent.x1, extent.y1)


def _scatter(check: Check, theme: Theme) -> Figure:
    """Predicted over measured time, both logarithmic, with a band of ten per cent; the names are of the worst."""
    dots = dots_of(check)
    errors = check.errors
    said = f"median error {errors.median:.1%}, nine of ten within {errors.quantile(0.9):.1%}"
    figure, axes = canvas((8, 7.6), theme, f"{headline(check)}\n{said}")
    low, high = spread([s for dot in dots for s in (dot.predicted_seconds, dot.measured_seconds)])
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
    axes.set_xlabel("measured time of one run", color=theme.ink)
    axes.set_ylabel("predicted time of one run", color=theme.ink)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: show_tick(show_seconds(value)))
    ends = [low, high]
    axes.fill_between(
        ends, [0.9 * x for x in ends], [1.1 * x for x in ends], color=theme.faint, alpha=0.25, linewidth=0
    )
    axes.plot(ends, ends, color=theme.faint, linewidth=1)
    for dot in dots:
        colour = COLOURS[dot.bound]
        axes.scatter(
            dot.measured_seconds,
            dot.predicted_seconds,
            s=_area(dot.share),
            c=colour,
            marker=MARKERS[dot.bound],
            edgecolors=theme.paper,
            linewidths=0.6,
            alpha=0.9,
            zorder=4,
        )
    notes: list[tuple[str, dict[str, Any]]] = [
        ("within 10 %", {"color": theme.faint, "linewidth": 7, "alpha": 0.4}),
        ("area: share of the time", {"linestyle": ""}),
    ]
    _legend(axes, dots, theme, notes, "upper left")
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    worst = sorted(dots, key=lambda dot: -abs(dot.first.error))
    points = [(dot.measured_seconds, dot.predicted_seconds) for dot in worst]
    _label(axes, worst, points, _legend_box(axes), theme)
    return figure


def _bars(check: Check, theme: Theme) -> Figure:
    """Time of each layer with all its repeats: measured filled, predicted as an outline."""
    dots = dots_of(check)
    shown, others = dots[:MOST_BARS], dots[MOST_BARS:]
    title = f"{headline(check)}\nall runs of each layer; outlined: predicted"
    figure, axes = canvas((11, 1.6 + 0.27 * len(shown)), theme, title)
    for row, dot in enumerate(shown):
        measured = sum(layer.measured_seconds for layer in dot.layers)
        predicted = sum(layer.predicted_seconds for layer in dot.layers)
        colour = COLOURS[dot.bound]
        axes.barh(row, measured, 0.72, color=colour, zorder=2)
        axes.barh(row, predicted, 0.72, facecolor="none", edgecolor=theme.ink, linewidth=1, zorder=3)
        axes.annotate(
            f"{dot.share:.1%}  ({dot.first.error:+.0%})", (max(measured, predicted), row), (5, 0),
            textcoords="offset points", va="center", color=theme.ink, size=8,
        )  # fmt: skip
    axes.set_yticks(range(len(shown)), [dot.label for dot in shown], size=8)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, 1.08 * axes.get_xlim()[1])
    axes.xaxis.set_major_formatter(lambda value, _: show_tick(show_seconds(value)) if value else "0")
    axes.set_xlabel("time; at the bars: share of the whole, and how far the prediction is off", color=theme.ink)
    if others:
        rest = sum(dot.share for dot in others)
        axes.text(0.99, 0.02, f"{len(others)} others take {rest:.1%}", transform=axes.transAxes, ha="right",
                  color=theme.ink, size=8.5)  # fmt: skip
    _legend(axes, dots, theme, [], "center right", "s")
    return figure
