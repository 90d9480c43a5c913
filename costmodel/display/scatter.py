"""Points with their names beside them: a sweep's cells and Pareto front, and a curve through marked points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple

from costmodel.display.figures import (
    COLOURS,
    DARK,
    LIGHT,
    WIDE,
    Theme,
    between,
    canvas,
    in_words,
    label,
    scale_of,
    wide,
    write_beside,
    written,
)
from costmodel.display.units import UNITS

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_DOTS = 20_000
MOST_NAMED = 40
MOST_LETTERS, MOST_LISTED, LINE = 400, 15, 44
"""Of names of more letters than fit beside their points so many at most are listed, in lines of so many, by number."""
MOST_AVOIDED = 500
"""Dots that names keep clear of."""


def picture(
    frame: pandas.DataFrame,
    front: pandas.DataFrame,
    columns: Sequence[str],
    names: Sequence[str],
    most: Sequence[str],
    title: str = "",
    theme: Theme = LIGHT,
    words: Mapping[str, str] | None = None,
    texts: Sequence[str] = (),
    common: str = "",
) -> Figure:
    """All cells, in grey, and the front over the first two of the quantities, each with its place on the axes.

    columns: those that are axes of the sweep. most: quantities of which more is better. words: names of quantities in
    words. texts: names of the cells of the front, and common: what these have in common, where columns do not say it.
    """
    across, up = list(dict.fromkeys(names))[:2]
    cells = (words or {}).get("cells", "cells")
    caption = f"{len(front):,} of {len(frame):,} {cells} are on the Pareto front"
    alike = [name for name in columns if len(front) > 1 and len(set(front[name].tolist())) == 1 < len(set(frame[name]))]
    common = common or ", ".join(f"{name} {written(front[name].tolist()[0])}" for name in alike)
    caption += f", all with {common}" if common else ""
    figure, axes = canvas((10, 6), theme, f"{title}\n{caption}" if title else caption)
    dots = frame.sample(MOST_DOTS, random_state=0) if len(frame) > MOST_DOTS else frame
    units = {name: scale_of(name, max(frame[name].tolist(), default=1)) for name in (across, up)}
    dominated = {"marker": ".", "color": theme.faint, "markersize": 7, "alpha": 0.5, "label": "dominated"}
    for cells, style in ((dots, {**dominated, "markeredgewidth": 0}), (front, FRONT)):
        x, y = (cells[name].to_numpy(float) / units[name][0] for name in (across, up))
        line = "-" if style is FRONT and len(set(names)) == 2 else ""
        turned = "steps-post" if (across in most) == (up in most) else "default"
        axes.plot(x, y, linestyle=line, drawstyle=turned, **style)
    for along, name in (("x", across), ("y", up)):
        _scale(axes, along, name, frame[name].tolist())
        unit = units[name][1].replace(in_words(name), (words or {}).get(name, in_words(name)))
        label(axes, along, theme, unit + (" (more is better)" if name in most else ""))
    axes.margins(x=0.06, y=0.08)
    places = [front[name].to_numpy(float) / units[name][0] for name in (across, up)]
    varied = [name for name in columns if len(set((frame if len(front) == 1 else front)[name].tolist())) > 1]
    every = list(zip(*(dots[name].to_numpy(float) / units[name][0] for name in (across, up)), strict=True))
    joined = list(zip(*places, strict=True))
    path = (
        joined if turned == "default" else [p for (a, b), (c, d) in pairwise(joined) for p in ((a, b), (c, b), (c, d))]
    )
    on_line = between(path, 60) if len(set(names)) == 2 else []
    texts = texts or [", ".join(f"{name} {written(cell[name])}" for name in varied) for _, cell in front.iterrows()]
    labels = [(text, place) for text, place in zip(texts, joined, strict=True) if text]
    listed = sum(len(text) for text, _ in labels) > MOST_LETTERS
    if len(labels) > (most_named := MOST_LISTED if listed else MOST_NAMED):  # evenly along the front, with its ends
        labels = [labels[(len(labels) - 1) * n // (most_named - 1)] for n in range(most_named)]
    if listed:
        for number, (text, _) in enumerate(labels, 1):
            axes.plot([], [], " ", label=fill(f"{number}: {text}", LINE, subsequent_indent="     "))
        labels = [(str(number), place) for number, (_, place) in enumerate(labels, 1)]
    legend = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "fontsize": 7.5 if listed else None}
    axes.legend(frameon=False, labelcolor=theme.ink, **legend)
    write_beside(axes, labels, [*on_line, *every[:MOST_AVOIDED]], radius=7, ink=theme.ink, size=7.5)
    return figure


FRONT = {"marker": "o", "color": "#d55e00", "markersize": 5, "linewidth": 1.2, "label": "Pareto front"}


def _scale(axes: Axes, along: str, name: str, values: Sequence[float]) -> None:
    """Logarithmic where values are far apart, in powers of two for sizes."""
    axis = getattr(axes, f"{along}axis")
    if len(values) and 0 < WIDE * min(values) < max(values):
        from matplotlib.ticker import LogLocator, NullLocator

        base = 10 if name.partition(".")[0] in UNITS else 2
        getattr(axes, f"set_{along}scale")("log", base=base)
        axis.set_major_locator(LogLocator(base, (1, 2, 5) if base == 10 else (1,)))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:,g}")


class Mark(NamedTuple):
    """A point, with its name. stands_out: whether it is the one to look at."""

    x: float
    y: float
    name: str
    stands_out: bool = False


def curve(marks: Sequence[Mark], x: str, y: str, title: str, meaning: str, *, dark: bool = False) -> Figure:
    """Points joined in order; `meaning`: of the one that stands out. Raises CostModelError without matplotlib."""
    theme = DARK if dark else LIGHT
    figure, axes = canvas((9, 5.4), theme, title)
    xs, ys = [mark.x for mark in marks], [mark.y for mark in marks]
    axes.plot(xs, ys, color=COLOURS["optimizer" if dark else "weights"], marker="o", markersize=4)
    for along, values in (("x", xs), ("y", ys)):
        if wide(sorted(values)):
            getattr(axes, f"set_{along}scale")("log")
            getattr(axes, f"{along}axis").set_major_formatter(lambda value, _: f"{value:,.4g}")
            getattr(axes, f"{along}axis").set_minor_formatter(lambda value, _: "")
    if axes.get_yscale() == "linear":
        axes.set_ylim(0, 1.1 * max(ys))
    for mark in marks:
        if mark.stands_out:
            axes.plot([mark.x], [mark.y], "o", color=COLOURS["gradients"], markersize=9)
    label(axes, "x", theme, x)
    label(axes, "y", theme, y)
    named = sorted(marks, key=lambda mark: not mark.stands_out)
    names = [(f"{mark.name} ({meaning})" if mark.stands_out else mark.name, (mark.x, mark.y)) for mark in named]
    line = between(sorted((mark.x, mark.y) for mark in marks), 24)
    write_beside(axes, names, line, radius=8, ink=theme.ink, size=9)
    return figure
