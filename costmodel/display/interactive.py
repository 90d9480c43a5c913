"""Rooflines to be hovered over, as pages of HTML that need nothing else; plotly (extra `plot`) is loaded only here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log10
from typing import TYPE_CHECKING, Any

from costmodel.display.figures import Box, around, free_places
from costmodel.display.rooflines import COLOURS, Ceiling, Chart, Dot
from costmodel.display.units import show_change, show_seconds
from costmodel.errors import not_installed

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

SYMBOLS = {
    "compute": "circle",
    "memory": "square",
    "matmul": "circle",
    "function": "diamond",
    "cache": "triangle-down",
    "DRAM": "square",
    "overhead": "triangle-up",
}
FAINT, CLEAR, GRID = "#8a8a8a", "rgba(0,0,0,0)", "rgba(138,138,138,0.2)"
WIDTH, HEIGHT = 1000, 640
MARGIN = {"l": 80, "r": 180, "t": 90, "b": 60}
INSIDE = Box(0, 0, WIDTH - MARGIN["l"] - MARGIN["r"], HEIGHT - MARGIN["t"] - MARGIN["b"])
"""Where curves are drawn [pixels]."""
MOST_LABELS = 10
LINE_HEIGHT = 15
"""Of a name [pixels]."""
MOST_BARS = 60

Ends = tuple[float, float]
Point = tuple[float, float]

STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #16181c; } }
body { margin: 2em; font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
figure { margin: 1.5em 0; overflow-x: auto; }
"""
THEME = """
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function paint() {
  const ink = dark.matches ? "#e6e6e6" : "#222222";
  document.querySelectorAll(".js-plotly-plot").forEach(plot => Plotly.relayout(plot, {"font.color": ink}));
}
dark.addEventListener("change", paint);
paint();
"""


def page(title: str, body: str, chart: Chart, kinds: Sequence[str]) -> str:
    """A whole page: `body`, which is HTML, then pictures of these kinds."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    figures = [
        figure_of(chart, kind).to_html(
            full_html=False,
            include_plotlyjs=not number,
            default_width="100%",
            config={"displaylogo": False, "responsive": True},
        )
        for number, kind in enumerate(kinds)
    ]
    drawn = "".join(f"<figure>{figure}</figure>" for figure in figures)
    script = f"<script>{THEME}</script>" if figures else ""
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}{drawn}{script}</body></html>\n'


def figure_of(chart: Chart, kind: str) -> Figure:
    """The "roofline", the "scatter" or the "bars"."""
    return {"roofline": _roofline, "scatter": _scatter, "bars": _bars}[kind](chart)


def require() -> Any:
    """Plotly's graph objects. Raises CostModelError where the extra `plot` is missing."""
    try:
        import plotly.graph_objects as objects
    except ImportError:
        raise not_installed("an interactive picture needs plotly", "plot") from None
    return objects


def _figure(title: str, height: int = HEIGHT) -> Any:
    figure = require().Figure()
    figure.update_layout(
        title={"text": title, "font": {"size": 14}, "x": 0.01},
        modebar={"bgcolor": CLEAR, "color": FAINT},
        autosize=True,
        height=height,
        margin=MARGIN,
        template="none",
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        font={"family": "system-ui, sans-serif", "color": FAINT},
        hoverlabel={"align": "left"},
        legend={"itemsizing": "constant", "x": 1.01, "y": 0.9, "xanchor": "left", "yanchor": "top"},
    )
    return figure


def _size(share: float) -> float:
    """Diameter of a marker [pixels]."""
    return (60 + 1800 * share) ** 0.5


def _by_bound(dots: Sequence[Dot]) -> dict[str, list[Dot]]:
    """A trace for each class, so that the legend can hide it."""
    groups = {bound: [dot for dot in dots if dot.bound == bound] for bound in COLOURS}
    return {bound: group for bound, group in groups.items() if group}


def _details(dots: Sequence[Dot]) -> list[str]:
    return ["<br>".join(map(_plain, dot.details)) for dot in dots]


def _plain(text: str) -> str:
    """Names are no markup."""
    return escape(text, quote=False)


def _dots(figure: Any, dots: Sequence[Dot], x: str, y: str, hollow: bool = False) -> None:
    """Markers; x, y: the fields that place them."""
    for bound, group in _by_bound(dots).items():
        figure.add_trace(
            require().Scatter(
                x=[getattr(dot, x) for dot in group],
                y=[getattr(dot, y) for dot in group],
                mode="markers",
                name=f"{bound}-bound",
                legendgroup=bound,
                showlegend=not hollow,
                hovertext=_details(group),
                hoverinfo="text",
                marker={
                    "color": COLOURS[bound],
                    "symbol": SYMBOLS[bound] + ("-open" if hollow else ""),
                    "size": [_size(dot.share) for dot in group],
                    "line": {"width": 1.5, "color": COLOURS[bound]},
                    "opacity": 0.9,
                },
            )
        )


def _line(figure: Any, points: Sequence[Point], name: str = "", **style: Any) -> None:
    figure.add_trace(
        require().Scatter(
            x=[x for x, _ in points],
            y=[y for _, y in points],
            mode="lines",
            name=name,
            showlegend=False,
            hoverinfo="name" if name else "skip",
            line={"color": FAINT, "width": 1.3, **style},
        )
    )


def _roofline(chart: Chart) -> Any:
    dots, (across, up) = chart.drawn, chart.ranges
    figure = _figure("Roofline: filled measured, hollow predicted; area is the share of the time")
    _axes(figure, chart.intensity_title.replace("\n", "<br>"), "operations a second [FLOP/s]", across, up)
    taken = [_ceiling(figure, ceiling, chart) for ceiling in chart.ceilings]
    for dot in dots:
        ends = [(dot.intensity, dot.predicted_rate), (dot.intensity, dot.measured_rate)]
        _line(figure, ends, color=COLOURS[dot.bound])
        taken.append(around(*_pixels(ends[0], across, up), _size(dot.share) / 2))
    _dots(figure, dots, "intensity", "predicted_rate", hollow=True)
    _dots(figure, dots, "intensity", "measured_rate")
    _names(figure, dots, [(dot.intensity, dot.measured_rate) for dot in dots], across, up, taken)
    return figure


def _ceiling(figure: Any, ceiling: Ceiling, chart: Chart) -> Box:
    """A line as far as it bounds anything, and its name at its end, beside it or above the roof; returns the place."""
    (across, up), name = chart.ranges, str(ceiling)
    flat, ends = ceiling.kind == "compute", chart.span(ceiling)
    dash = "solid" if chart.solid(ceiling) else "dash"
    _line(figure, [(end, ceiling.at(end)) for end in ends], name, dash=dash)
    if flat:
        figure.add_annotation(
            x=1, xref="paper", y=log10(ceiling.rate), text=name, showarrow=False, xanchor="left", xshift=4,
            font={"size": 11, "color": FAINT},
        )  # fmt: skip
        return Box(INSIDE.right, 0, INSIDE.right, 0)
    nth = [each for each in chart.ceilings if each.kind == "memory"].index(ceiling)
    x, y = _pixels((ends[1], ceiling.at(ends[1])), across, up)
    figure.add_annotation(
        x=log10(ends[1]), y=log10(ceiling.at(ends[1])), text=name, showarrow=False, xanchor="left", yanchor="bottom",
        yshift=2 + LINE_HEIGHT * nth, font={"size": 11, "color": FAINT},
    )  # fmt: skip
    return Box(x, y + LINE_HEIGHT * nth, x + 6.4 * len(name), y + LINE_HEIGHT * (nth + 1))


def _pixels(point: Point, across: Ends, up: Ends) -> Point:
    """Where a point of two logarithmic axes is, from the lower left corner."""
    x, y = (log10(v / ends[0]) / log10(ends[1] / ends[0]) for v, ends in zip(point, (across, up), strict=True))
    return x * INSIDE.right, y * INSIDE.top


def _names(figure: Any, dots: Sequence[Dot], points: list[Point], across: Ends, up: Ends, taken: list[Box]) -> None:
    """Beside the first dots, none on another."""
    at = [_pixels(point, across, up) for point in points]
    boxes = [around(x, y, _size(dot.share) / 2) for (x, y), dot in zip(at, dots, strict=True)]
    sizes = [(6.4 * len(dot.label) + 6, 14.0) for dot in dots[:MOST_LABELS]]
    for dot, point, here, box in zip(dots, points, at, free_places(boxes, sizes, taken, INSIDE), strict=False):
        if box is None:
            continue
        figure.add_annotation(
            x=log10(point[0]), y=log10(point[1]), text=_plain(dot.label), font={"size": 11}, showarrow=False,
            xshift=(box.left + box.right) / 2 - here[0], yshift=(box.bottom + box.top) / 2 - here[1],
            xanchor="center", yanchor="middle",
        )  # fmt: skip


def _axes(figure: Any, across: str, up: str, x: Ends, y: Ends) -> None:
    style = {"type": "log", "gridcolor": GRID, "zeroline": False, "dtick": 1}
    figure.update_xaxes(title=across, **style)
    figure.update_yaxes(title=up, **style, exponentformat="SI", minexponent=0)
    figure.update_layout(xaxis_range=list(map(log10, x)), yaxis_range=list(map(log10, y)))


def _scatter(chart: Chart) -> Any:
    figure, ends = _figure(f"Predicted against measured: {chart.errors}"), chart.times
    _axes(figure, "measured time of one run", "predicted time of one run", ends, ends)
    figure.update_xaxes(exponentformat="SI", minexponent=0, ticksuffix="s")
    figure.update_yaxes(ticksuffix="s")
    _line(figure, [(end, 0.9 * end) for end in ends], width=0)
    _line(figure, [(end, 1.1 * end) for end in ends], width=0)
    figure.data[-1].update(fill="tonexty", fillcolor="rgba(138,138,138,0.25)")
    _line(figure, [(end, end) for end in ends], "as predicted")
    _dots(figure, chart.dots, "measured_seconds", "predicted_seconds")
    points = [(dot.measured_seconds, dot.predicted_seconds) for dot in chart.worst]
    _names(figure, chart.worst, points, ends, ends, [])
    return figure


def _bars(chart: Chart) -> Any:
    dots = chart.dots[:MOST_BARS]
    figure = _figure("Time of each layer, all its runs; outlined: predicted", 140 + 24 * len(dots))

    def bars(group: Sequence[Dot], total: str, hovered: list[str], **style: Any) -> None:
        x, y = [getattr(dot, total) for dot in group], [_plain(dot.label) for dot in group]
        figure.add_trace(require().Bar(x=x, y=y, orientation="h", hovertext=hovered, hoverinfo="text", **style))

    for bound, group in _by_bound(dots).items():
        bars(group, "measured_total", _details(group), name=f"{bound}-bound", marker_color=COLOURS[bound])
    predicted = [f"predicted {show_seconds(dot.predicted_seconds)} a run ({show_change(dot.error, 1)})" for dot in dots]
    outlined = {"color": CLEAR, "line": {"color": FAINT, "width": 1.5}}
    bars(dots, "predicted_total", predicted, name="predicted", marker=outlined)
    figure.update_layout(barmode="overlay", bargap=0.3)
    figure.update_yaxes(categoryorder="array", categoryarray=[_plain(d.label) for d in dots][::-1], automargin=True)
    style = {"exponentformat": "SI", "minexponent": 0, "gridcolor": GRID, "zeroline": False}
    figure.update_xaxes(title="time", ticksuffix="s", **style)
    return figure
