"""Pictures of a check by plotly (extra `plot`), to be hovered over; plotly is loaded only here."""

from __future__ import annotations

from math import atan2, degrees, log10
from typing import TYPE_CHECKING, Any

from costmodel.display.units import show_rate, show_seconds
from costmodel.errors import CostModelError
from costmodel.roofline.ceilings import Ceiling
from costmodel.roofline.classification import BOUNDS, Bound
from costmodel.roofline.dots import COLOURS, LEGEND, Dot, described, dots_of, drawn_dots, intensity_title, spread
from costmodel.roofline.findings import Check
from costmodel.roofline.labels import Box, around, placed

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

SYMBOLS: dict[Bound, str] = {"compute": "circle", "memory": "square", "overhead": "triangle-up"}
FAINT = "#8a8a8a"
WIDTH, HEIGHT = 1000, 640
MARGIN = {"l": 80, "r": 30, "t": 40, "b": 60}
MOST_LABELS = 10
MOST_BARS = 60


def figure_of(check: Check, kind: str) -> Figure:
    """The roofline, the scatter or the bars."""
    return {"roofline": _roofline, "scatter": _scatter, "bars": _bars}[kind](check)


def require() -> Any:
    """Plotly's graph objects. Raises CostModelError where the extra `plot` is missing."""
    try:
        import plotly.graph_objects as objects
    except ImportError:
        raise CostModelError("an interactive picture needs plotly: pip install 'costmodel[plot]'") from None
    return objects


def _figure(title: str, height: int = HEIGHT) -> Any:
    figure = require().Figure()
    figure.update_layout(
        title={"text": title, "font": {"size": 14}, "x": 0.01},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": FAINT},
        width=WIDTH,
        height=height,
        margin=MARGIN,
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "color": FAINT},
        hoverlabel={"align": "left"},
        legend={"itemsizing": "constant", "x": 0.99, "y": 0.02, "xanchor": "right", "yanchor": "bottom"},
    )
    return figure


def _size(share: float) -> float:
    """Diameter of a marker [pixels]."""
    return (60 + 1800 * share) ** 0.5


def _dots(figure: Any, dots: list[Dot], check: Check, points: list[tuple[float, float]], hollow: bool) -> None:
    """A trace for each class, so that the legend can hide it."""
    objects = require()
    for bound in BOUNDS:
        chosen = [(dot, point) for dot, point in zip(dots, points, strict=True) if dot.bound == bound]
        if not chosen:
            continue
        symbol = SYMBOLS[bound] + ("-open" if hollow else "")
        figure.add_trace(
            objects.Scatter(
                x=[x for _, (x, _) in chosen],
                y=[y for _, (_, y) in chosen],
                mode="markers",
                name=LEGEND[bound],
                legendgroup=bound,
                showlegend=not hollow,
                hovertext=["<br>".join(map(_plain, described(dot, check))) for dot, _ in chosen],
                hoverinfo="text",
                marker={
                    "color": COLOURS[bound],
                    "symbol": symbol,
                    "size": [_size(dot.share) for dot, _ in chosen],
                    "line": {"width": 1.5, "color": COLOURS[bound]},
                    "opacity": 0.9,
                },
            )
        )


def _plain(text: str) -> str:
    """Names are no markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _line(figure: Any, points: list[tuple[float, float]], name: str = "", **style: Any) -> None:
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


def _roofline(check: Check) -> Any:
    dots, ceilings = drawn_dots(check), check.ceilings
    if not dots:
        raise CostModelError(f"{check.prediction.model.title} does no arithmetic: there is nothing to draw")
    figure = _figure("Roofline: filled measured, hollow predicted; area is the share of the time")
    peak = ceilings[0].rate
    across = spread([dot.intensity for dot in dots] + [peak / ceilings[-1].rate])
    rates = [rate for dot in dots for rate in (dot.predicted_rate, dot.measured_rate)]
    up = spread([*rates, peak], 0.08)
    _axes(figure, intensity_title(check).replace("\n", "<br>"), "operations a second [FLOP/s]")
    figure.update_layout(xaxis_range=list(map(log10, across)), yaxis_range=list(map(log10, up)))
    named = [_ceiling(figure, ceiling, check, across, up) for ceiling in ceilings]
    for dot in dots:
        ends = [(dot.intensity, dot.predicted_rate), (dot.intensity, dot.measured_rate)]
        _line(figure, ends, color=COLOURS[dot.bound])
    measured = [(dot.intensity, dot.measured_rate) for dot in dots]
    predicted = [(dot.intensity, dot.predicted_rate) for dot in dots]
    _dots(figure, dots, check, predicted, hollow=True)
    _dots(figure, dots, check, measured, hollow=False)
    places = [_pixels(point, across, up) for point in predicted]
    taken = [*named, *(around(x, y, _size(dot.share) / 2) for (x, y), dot in zip(places, dots, strict=True))]
    _names(figure, dots, measured, across, up, taken)
    return figure


def _ceiling(figure: Any, ceiling: Ceiling, check: Check, across: tuple[float, float], up: tuple[float, float]) -> Box:
    peak, fastest = check.ceilings[0].rate, max(c.rate for c in check.ceilings if c.kind == "memory")
    flat = ceiling.kind == "compute"
    ends = (ceiling.rate / fastest, across[1]) if flat else (across[0], peak / ceiling.rate)
    dash = "solid" if ceiling in (check.ceilings[0], check.ceilings[-1]) else "dash"
    name = f"{ceiling.name}  {show_rate(ceiling.rate)}{'FLOP/s' if flat else 'B/s'}"
    _line(figure, [(end, ceiling.at(end)) for end in ends], name, dash=dash)
    start = max(ends[0], across[0]) if flat else max(across[0], up[0] / ceiling.rate)
    (x, y), (x1, y1) = (_pixels((end, ceiling.at(end)), across, up) for end in (start, ends[1]))
    figure.add_annotation(
        x=log10(start),
        y=log10(ceiling.at(start)),
        text=name,
        showarrow=False,
        font={"size": 11, "color": FAINT},
        textangle=-degrees(atan2(y1 - y, x1 - x)),
        xanchor="left",
        yanchor="bottom",
        xshift=4 if flat else -2,
        yshift=0 if flat else 10,
    )
    return Box(x, y, x + (6.4 * len(name) if flat else 100), y + (18 if flat else 100))


def _pixels(point: tuple[float, float], across: tuple[float, float], up: tuple[float, float]) -> tuple[float, float]:
    """Where a point of two logarithmic axes is, from the lower left corner."""
    width, height = WIDTH - MARGIN["l"] - MARGIN["r"], HEIGHT - MARGIN["t"] - MARGIN["b"]
    x, y = (log10(v / ends[0]) / log10(ends[1] / ends[0]) for v, ends in zip(point, (across, up), strict=True))
    return x * width, y * height


def _names(
    figure: Any,
    dots: list[Dot],
    points: list[tuple[float, float]],
    across: tuple[float, float],
    up: tuple[float, float],
    taken: list[Box],
) -> None:
    """Beside the first dots, none on another."""
    at = [_pixels(point, across, up) for point in points]
    boxes = [around(x, y, _size(dot.share) / 2) for (x, y), dot in zip(at, dots, strict=True)]
    sizes = [(6.4 * len(dot.label) + 6, 14.0) for dot in dots[:MOST_LABELS]]
    bounds = Box(0, 0, WIDTH - MARGIN["l"] - MARGIN["r"], HEIGHT - MARGIN["t"] - MARGIN["b"])
    for dot, point, here, box in zip(dots, points, at, placed(boxes, sizes, taken, bounds), strict=False):
        if box is None:
            continue
        figure.add_annotation(
            x=log10(point[0]), y=log10(point[1]), text=_plain(dot.label), font={"size": 11}, showarrow=False,
            xshift=(box.left + box.right) / 2 - here[0], yshift=(box.bottom + box.top) / 2 - here[1],
            xanchor="center", yanchor="middle",
        )  # fmt: skip


def _axes(figure: Any, across: str, up: str) -> None:
    style = {"type": "log", "gridcolor": "rgba(138,138,138,0.2)", "zeroline": False, "dtick": 1}
    figure.update_xaxes(title=across, **style)
    figure.update_yaxes(title=up, **style, exponentformat="SI", minexponent=0)


def _scatter(check: Check) -> Any:
    dots, errors = dots_of(check), check.errors
    title = (
        f"Predicted against measured: median error {errors.median:.1%}, nine of ten within {errors.quantile(0.9):.1%}"
    )
    figure = _figure(title)
    ends = spread([s for dot in dots for s in (dot.predicted_seconds, dot.measured_seconds)])
    _axes(figure, "measured time of one run", "predicted time of one run")
    figure.update_layout(xaxis_range=list(map(log10, ends)), yaxis_range=list(map(log10, ends)))
    figure.update_xaxes(exponentformat="SI", minexponent=0, ticksuffix="s")
    figure.update_yaxes(ticksuffix="s")
    _line(figure, [(end, 0.9 * end) for end in ends], width=0)
    _line(figure, [(end, 1.1 * end) for end in ends], width=0)
    figure.data[-1].update(fill="tonexty", fillcolor="rgba(138,138,138,0.25)")
    _line(figure, [(end, end) for end in ends], "as predicted")
    points = [(dot.measured_seconds, dot.predicted_seconds) for dot in dots]
    _dots(figure, dots, check, points, hollow=False)
    worst = sorted(dots, key=lambda dot: -abs(dot.first.error))
    _names(figure, worst, [(dot.measured_seconds, dot.predicted_seconds) for dot in worst], ends, ends, [])
    return figure


def _bars(check: Check) -> Any:
    objects, dots = require(), dots_of(check)[:MOST_BARS]
    figure = _figure("Time of each layer, all its runs; outlined: predicted", 140 + 24 * len(dots))
    for bound in BOUNDS:
        chosen = [dot for dot in dots if dot.bound == bound]
        if chosen:
            figure.add_trace(
                objects.Bar(
                    x=[sum(layer.measured_seconds for layer in dot.layers) for dot in chosen],
                    y=[_plain(dot.label) for dot in chosen],
                    orientation="h",
                    name=LEGEND[bound],
                    marker_color=COLOURS[bound],
                    hovertext=["<br>".join(map(_plain, described(dot, check))) for dot in chosen],
                    hoverinfo="text",
                )
            )
    figure.add_trace(
        objects.Bar(
            x=[sum(layer.predicted_seconds for layer in dot.layers) for dot in dots],
            y=[_plain(dot.label) for dot in dots],
            orientation="h",
            name="predicted",
            marker={"color": "rgba(0,0,0,0)", "line": {"color": FAINT, "width": 1.5}},
            hovertext=[f"predicted {show_seconds(d.predicted_seconds)} a run ({d.first.error:+.1%})" for d in dots],
            hoverinfo="text",
        )
    )
    figure.update_layout(barmode="overlay", bargap=0.3)
    figure.update_yaxes(categoryorder="array", categoryarray=[_plain(d.label) for d in dots][::-1], automargin=True)
    figure.update_xaxes(
        title="time",
        ticksuffix="s",
        exponentformat="SI",
        minexponent=0,
        gridcolor="rgba(138,138,138,0.2)",
        zeroline=False,
    )
    return figure
