"""A curve through marked points, one of which stands out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from costmodel.display.figures import COLOURS, DARK, LIGHT, Theme, canvas, label, wide
from costmodel.display.labels import Box, around, placed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
    figure.draw_without_rendering()  # so that places are those of the layout
    _name(axes, sorted(marks, key=lambda mark: not mark.stands_out), meaning, theme)
    return figure


def _name(axes: Axes, marks: Sequence[Mark], meaning: str, theme: Theme) -> None:
    """Names beside the points, the first ones first, as far as there is room."""
    said = [f"{mark.name} ({meaning})" if mark.stands_out else mark.name for mark in marks]
    texts = [axes.text(0, 0, text, color=theme.ink, size=9, ha="left", va="bottom") for text in said]
    sizes = [(box.width, box.height) for box in (text.get_window_extent() for text in texts)]
    to_pixels = axes.transData.transform
    dots = [around(x, y, 8) for x, y in (to_pixels((mark.x, mark.y)) for mark in marks)]
    bounds = Box(axes.bbox.x0, axes.bbox.y0, axes.bbox.x1, axes.bbox.y1)
    ends = pairwise(sorted((mark.x, mark.y) for mark in marks))
    along = [(a + (c - a) * n / 24, b + (d - b) * n / 24) for (a, b), (c, d) in ends for n in range(25)]
    line = [around(x, y, 2) for x, y in map(to_pixels, along)]
    for text, box in zip(texts, placed(dots, sizes, line, bounds), strict=True):
        if box is None:
            text.remove()
        else:
            x, y = axes.transData.inverted().transform((box.left, box.bottom))
            text.set_position((float(x), float(y)))
