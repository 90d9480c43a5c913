"""Rooflines of plain data: rates over intensity, predicted against measured times, and bars of time (extra `plot`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log10
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from costmodel.display.figures import DARK, LIGHT, Box, Theme, around, canvas, free_places, literal
from costmodel.display.units import show_change, show_rate, show_seconds, show_share, show_tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "compute": "#3b8fd1",
    "memory": "#e0702a",
    "matmul": "#3b8fd1",
    "function": "#b065b8",
    "cache": "#d9a400",
    "DRAM": "#e0702a",
    "overhead": "#2aa876",
}
"""By what bounds a dot; colour-blind readers tell them apart, on white as on black. Markers differ too, for grey.

The textbook's classes are compute and memory; by resource it is matmul and function, cache and DRAM."""
MARKERS = {"compute": "o", "memory": "s", "matmul": "o", "function": "D", "cache": "v", "DRAM": "s", "overhead": "^"}
MOST_LABELS = 10
"""Dots that are named, those that take longest; of more dots by numbers, with a key."""
LEAST = 0.001
"""Share of the time from which a dot widens the axes of a roofline."""
MOST_BARS = 12
"""More bars than this are added up as "other"."""


@dataclass(frozen=True)
class Ceiling:
    """A bound on operations a second: `rate` flat [FLOP/s], or `rate` [bytes/s] times intensity."""

    name: str
    kind: Literal["compute", "memory"]
    rate: float

    def at(self, intensity: float) -> float:
        """The bound at an intensity [FLOP/B] in operations a second [FLOP/s]."""
        return self.rate if self.kind == "compute" else self.rate * intensity

    def __str__(self) -> str:
        return f"{self.name}  {show_rate(self.rate)}{'FLOP/s' if self.kind == 'compute' else 'B/s'}"


class Dot(NamedTuple):
    """One marker, or one bar. bound: a key of `COLOURS`. details: lines that are shown on hovering, the label first.

    intensity: operations a byte [FLOP/B], 0 for what has no place on a roofline; rates [FLOP/s]. seconds: of one run;
    totals: of all runs [s]; share: of the time of all dots. error: predicted over measured time, less one. ranges:
    within which the time of one run is predicted, and was measured [s]; empty if neither is known.
    """

    label: str
    bound: str
    share: float
    intensity: float
    predicted_rate: float
    measured_rate: float
    predicted_seconds: float
    measured_seconds: float
    predicted_total: float
    measured_total: float
    error: float
    details: tuple[str, ...]
    ranges: tuple[tuple[float, float], ...] = ()

    @property
    def rates(self) -> tuple[float, float]:
        """Predicted and measured [FLOP/s]."""
        return self.predicted_rate, self.measured_rate


@dataclass(frozen=True)
class Chart:
    """What all three pictures show. ceilings: the highest first, memory's bandwidth last. dots: the longest first.

    measured: whether dots have been measured, and not only predicted.
    errors: how far predictions are off, in words. left_out: which dots have no place on the roofline; may be empty.
    """

    title: str
    ceilings: tuple[Ceiling, ...]
    dots: tuple[Dot, ...]
    errors: str
    left_out: str = ""
    measured: bool = True

    @property
    def drawn(self) -> list[Dot]:
        """Dots with a place on the roofline; one that takes next to no time has none if axes had to be wider for it."""
        dots = [dot for dot in self.dots if dot.intensity]
        wide = [dot for dot in dots if dot.share >= LEAST] or dots
        low, high = _padded([dot.intensity for dot in wide]) if wide else (0, 0)
        slow, fast = _padded([rate for dot in wide for rate in dot.rates]) if wide else (0, 0)
        return [dot for dot in dots if low <= dot.intensity <= high and all(slow <= rate <= fast for rate in dot.rates)]

    @property
    def intensity_title(self) -> str:
        """Of the roofline's axis across, with what is not on it."""
        outside = [dot for dot in self.dots if dot.intensity and dot not in self.drawn]
        brief = (
            f"{len(outside)} far off, {show_share(sum(dot.share for dot in outside), 1.0)} of the time, not shown"
            if outside
            else ""
        )
        title = "operations a byte of inputs, weights and outputs [FLOP/B]"
        return "\n".join(filter(None, (title, self.left_out, brief)))

    @property
    def ranges(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Ends of the roofline's axes: intensity [FLOP/B], rate [FLOP/s]."""
        peak, memory = self.ceilings[0].rate, self.ceilings[-1].rate
        rates = [rate for dot in self.drawn for rate in dot.rates]
        rates += [ceiling.rate for ceiling in self.ceilings if ceiling.kind == "compute"]
        return _padded([*(dot.intensity for dot in self.drawn), peak / memory]), _padded([*rates, peak], 0.08)

    @property
    def times(self) -> tuple[float, float]:
        """Ends of both axes of the scatter [s]."""
        return _padded([s for dot in self.dots for s in (dot.predicted_seconds, dot.measured_seconds)])

    @property
    def worst(self) -> list[Dot]:
        """Dots by the size of their error, the largest first."""
        return sorted(self.dots, key=lambda dot: -abs(dot.error))

    def span(self, ceiling: Ceiling) -> tuple[float, float]:
        """Intensities between which a ceiling bounds anything [FLOP/B]."""
        low, high = self.ranges[0]
        if ceiling.kind == "compute":
            return ceiling.rate / max(c.rate for c in self.ceilings if c.kind == "memory"), high
        return low, self.ceilings[0].rate / ceiling.rate

    def solid(self, ceiling: Ceiling) -> bool:
        """Whether it is one of the two that make the roofline; others are dashed."""
        return ceiling in (self.ceilings[0], self.ceilings[-1])


def _padded(values: Sequence[float], room: float = 0.12) -> tuple[float, float]:
    """Ends of a logarithmic axis that has all values, with room at both ends."""
    low, high = log10(min(values)), log10(max(values))
    extra = room * (high - low) + 0.1
    return 10 ** (low - extra), 10 ** (high + extra)


def picture(chart: Chart, kind: str, dark: bool = False) -> Figure:
    """The "roofline", the "scatter" or the "bars"."""
    return {"roofline": _roofline, "scatter": _scatter, "bars": _bars}[kind](chart, DARK if dark else LIGHT)


def _area(share: float) -> float:
    """Of a marker [points²]."""
    return 22 + 900 * share


def _legend(
    axes: Axes, dots: Iterable[Dot], theme: Theme, notes: list[tuple[str, dict[str, Any]]], where: Any, marker: str = ""
) -> None:
    from matplotlib.lines import Line2D

    present = {dot.bound for dot in dots}
    handles = [
        Line2D([], [], marker=marker or MARKERS[b], color=c, linestyle="", markersize=7, label=f"{b}-bound")
        for b, c in COLOURS.items()
        if b in present
    ]
    handles += [Line2D([], [], label=label, **style) for label, style in notes]
    ground = {"facecolor": theme.paper, "edgecolor": "none", "framealpha": 1}
    axes.legend(handles=handles, loc=where, labelcolor=theme.ink, fontsize=8.5, **ground)


def gid(dot: Dot) -> str:
    """What its markers are called in a picture in SVG."""
    return f"dot {dot.label}"


def _marked(axes: Axes, dot: Dot, x: float, y: float, face: str, edge: str, width: float) -> None:
    axes.scatter(
        x, y, s=_area(dot.share), c=face, marker=MARKERS[dot.bound], edgecolors=edge, linewidths=width,
        alpha=0.9, zorder=4, gid=gid(dot),
    )  # fmt: skip


def _roofline(chart: Chart, theme: Theme) -> Figure:
    """Operations a second over operations a byte, both logarithmic."""
    dots, (across, up) = chart.drawn, chart.ranges
    figure, axes = canvas((11, 7), theme, f"Roofline, {chart.title}")
    axes.set(xscale="log", yscale="log", xlim=across, ylim=up)
    axes.set_xlabel(literal(chart.intensity_title), color=theme.ink)
    axes.set_ylabel("operations a second [FLOP/s]", color=theme.ink)
    axes.yaxis.set_major_formatter(lambda value, _: show_tick(show_rate(value)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for dot in dots:
        colour, ends = COLOURS[dot.bound], dot.rates
        axes.plot([dot.intensity] * 2, ends, color=colour, linewidth=1.2, zorder=3)
        for rate, face in zip(ends, (theme.paper, colour), strict=True) if chart.measured else ((ends[0], colour),):
            _marked(axes, dot, dot.intensity, rate, face, colour, 1.3)
    notes: list[tuple[str, dict[str, Any]]] = [
        (name, {"marker": "o", "linestyle": "", "color": theme.ink, "markerfacecolor": face})
        for name, face in ((("measured", theme.ink), ("predicted", theme.paper)) if chart.measured else ())
    ]
    notes.append(("area: share of the time", {"linestyle": ""}))
    _legend(axes, dots, theme, notes, "lower right")
    _key(axes, dots, theme)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    taken = [*_covered(axes, dots), *_legend_box(axes)]
    flat = [_flat(axes, ceiling, chart) for ceiling in chart.ceilings if ceiling.kind == "compute"]
    for ceiling in chart.ceilings:
        taken.append(_ceiling(axes, ceiling, chart, theme, taken))
    taken += flat
    _label(axes, dots, [(dot.intensity, dot.measured_rate) for dot in dots], taken, theme)
    return figure


def _covered(axes: Axes, dots: list[Dot]) -> list[Box]:
    """The places of dots, and of the lines that join predictions to measurements."""
    boxes = []
    for dot in dots:
        (x, predicted), (_, measured) = axes.transData.transform(
            [(dot.intensity, dot.predicted_rate), (dot.intensity, dot.measured_rate)]
        )
        low, high = sorted((predicted, measured))
        boxes += [around(x, y, _radius(axes, dot)) for y in (predicted, measured)]
        boxes.append(Box(x - 2, low, x + 2, high))
    return boxes


def _flat(axes: Axes, ceiling: Ceiling, chart: Chart) -> Box:
    """The place of a flat ceiling's line."""
    (start, y), (end, _) = axes.transData.transform([(x, ceiling.rate) for x in chart.span(ceiling)])
    return Box(start, y - 2, end, y + 2)


def _radius(axes: Axes, dot: Dot) -> float:
    """Of a marker [pixels]."""
    return _area(dot.share) ** 0.5 / 2 * axes.figure.dpi / 72


def _legend_box(axes: Axes) -> list[Box]:
    legend = axes.get_legend()
    return [_box(legend.get_window_extent())] if legend else []


ALONG = (0.1, 0.16, 0.22, 0.28, 0.34, 0.42, 0.5, 0.58, 0.66, 0.74, 0.82, 0.9)
"""Where on its line a ceiling's name may stand, as shares of the line that is seen, from its end."""


def _ceiling(axes: Axes, ceiling: Ceiling, chart: Chart, theme: Theme, taken: list[Box]) -> Box:
    """A line as far as it bounds anything, named near its end, in a gap of it; returns the name's place."""
    flat, (start, end) = ceiling.kind == "compute", chart.span(ceiling)
    style: Any = "-" if chart.solid(ceiling) else (0, (5, 3))
    axes.plot([start, end], list(map(ceiling.at, (start, end))), color=theme.faint, lw=1.3, linestyle=style, zorder=1)
    start = max(start, axes.get_xlim()[0]) if flat else max(start, axes.get_ylim()[0] / ceiling.rate)
    text = axes.annotate(
        literal(str(ceiling)),
        (1, 1),
        ha="center",
        va="center",
        bbox={"facecolor": theme.paper, "linewidth": 0, "pad": 1.5},
        color=theme.faint,
        size=8.5,
        zorder=5,
    )
    boxes: list[Box] = []
    bounds = _box(axes.get_window_extent())
    for share in ALONG:
        at = start * (end / start) ** (1 - share if flat else share)
        text.xy = (at, ceiling.at(at))
        text.set_position(text.xy)
        boxes.append(_box(text.get_window_extent()))
        if boxes[-1].within(bounds) and not any(boxes[-1].grown(8).meets(other) for other in taken):
            break
    return boxes[-1]


def _names(dots: Sequence[Dot]) -> list[str]:
    """Of the first dots: their labels, or where there are many their numbers in the key."""
    return [literal(dot.label) if len(dots) <= MOST_LABELS else str(n) for n, dot in enumerate(dots[:MOST_LABELS], 1)]


def _key(axes: Axes, dots: Sequence[Dot], theme: Theme, first: str = "the longest") -> None:
    """What the numbers of many dots stand for, at the right."""
    if len(dots) > MOST_LABELS:
        lines = [f"{n}  {dot.label}  {show_share(dot.share, 1.0)}" for n, dot in enumerate(dots[:MOST_LABELS], 1)]
        text = "\n".join([f"{first}, share of the time", *lines, f"and {len(dots) - MOST_LABELS} more"])
        axes.text(1.02, 1, literal(text), transform=axes.transAxes, va="top", size=8, color=theme.ink, linespacing=1.6)


def _label(axes: Axes, dots: Sequence[Dot], points: list[tuple[float, float]], taken: list[Box], theme: Theme) -> None:
    """Names or numbers beside the first dots, none on another; a thin line to those that stand far off."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=2.5, foreground=theme.paper)]
    at = axes.transData.transform(points)
    boxes = [around(x, y, _radius(axes, dot)) for (x, y), dot in zip(at, dots, strict=True)]
    texts = [axes.text(0, 0, name, size=8, color=theme.ink, zorder=6, path_effects=halo) for name in _names(dots)]
    sizes = [(box.width, box.height) for box in (text.get_window_extent() for text in texts)]
    bounds = _box(axes.get_window_extent())
    for text, point, box, dot in zip(texts, at, free_places(boxes, sizes, taken, bounds), boxes, strict=False):
        if box is None:
            text.remove()
            continue
        x, y = axes.transData.inverted().transform((box.left, box.bottom))  # pixels of other formats are others
        text.set_position((float(x), float(y)))
        text.set_verticalalignment("bottom")
        near = (min(max(point[0], box.left), box.right), min(max(point[1], box.bottom), box.top))
        if not dot.grown(16).meets(box):
            ends = axes.transData.inverted().transform([point, near])
            axes.plot(ends[:, 0], ends[:, 1], color=theme.faint, linewidth=0.6, zorder=2)


def _box(extent: Any) -> Box:
    return Box(extent.x0, extent.y0, extent.x1, extent.y1)


def _scatter(chart: Chart, theme: Theme) -> Figure:
    """Predicted over measured time, both logarithmic, with a band of ten per cent; the names are of the worst."""
    figure, axes = canvas((8, 7.6), theme, f"{chart.title}\n{chart.errors}")
    ends = list(chart.times)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    axes.set_xlabel("measured time of one run", color=theme.ink)
    axes.set_ylabel("predicted time of one run", color=theme.ink)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: show_tick(show_seconds(value)))
    axes.fill_between(
        ends, [0.9 * x for x in ends], [1.1 * x for x in ends], color=theme.faint, alpha=0.25, linewidth=0
    )
    axes.plot(ends, ends, color=theme.faint, linewidth=1)
    for dot in chart.dots:
        at = dot.measured_seconds, dot.predicted_seconds
        if dot.ranges:
            up, across = (
                [[max(t - low, 0)], [max(high - t, 0)]] for t, (low, high) in zip(at[::-1], dot.ranges, strict=True)
            )
            axes.errorbar(*at, yerr=up, xerr=across, fmt="none", ecolor=COLOURS[dot.bound], elinewidth=0.9, zorder=3)
        _marked(axes, dot, *at, COLOURS[dot.bound], theme.paper, 0.6)
    bars = [
        ("bars: 90 % interval of the prediction, 95 % of the measurement", {"color": theme.faint, "linewidth": 0.9})
    ]
    notes: list[tuple[str, dict[str, Any]]] = [
        ("within 10 %", {"color": theme.faint, "linewidth": 7, "alpha": 0.4}),
        *(bars if any(dot.ranges for dot in chart.dots) else ()),
        ("area: share of the time", {"linestyle": ""}),
    ]
    _legend(axes, chart.dots, theme, notes, "upper left")
    _key(axes, chart.worst, theme, "the furthest off")
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    points = [(dot.measured_seconds, dot.predicted_seconds) for dot in chart.worst]
    _label(axes, chart.worst, points, _legend_box(axes), theme)
    return figure


def _bars(chart: Chart, theme: Theme) -> Figure:
    """Time of each dot with all its runs: measured filled, predicted as an outline; the first dozen, and "other"."""
    dots, others = chart.dots[:MOST_BARS], chart.dots[MOST_BARS:]
    rows = [
        (dot.label, COLOURS[dot.bound], dot.measured_total, dot.predicted_total, dot.share, gid(dot)) for dot in dots
    ]
    if others:
        measured, predicted, share = (
            sum(getattr(dot, name) for dot in others) for name in ("measured_total", "predicted_total", "share")
        )
        rows.append((f"other ({len(others)})", theme.faint, measured, predicted, share, "other"))
    title = f"{chart.title}\nall runs of each layer; outlined: predicted"
    figure, axes = canvas((11, 1.6 + 0.27 * len(rows)), theme, title)
    for row, (_, colour, measured, predicted, share, name) in enumerate(rows):
        axes.barh(row, measured, 0.72, color=colour, zorder=2, gid=name)
        axes.barh(row, predicted, 0.72, facecolor="none", edgecolor=theme.ink, linewidth=1, zorder=3)
        text = f"{show_share(share, 1.0)}  ({show_change(predicted / measured - 1)})"
        axes.annotate(text, (max(measured, predicted), row), (5, 0), textcoords="offset points", va="center",
                      color=theme.ink, size=8)  # fmt: skip
    axes.set_yticks(range(len(rows)), [literal(label) for label, *_ in rows], size=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.08 * axes.get_xlim()[1])
    axes.xaxis.set_major_formatter(lambda value, _: show_tick(show_seconds(value)) if value else "0")
    axes.set_xlabel("time; at the bars: share of the whole, and how far the prediction is off", color=theme.ink)
    _legend(axes, chart.dots, theme, [], "center right", "s")
    return figure
