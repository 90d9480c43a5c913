"""A curve through marked points, one of which stands out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from costmodel.display.figures import COLOURS, DARK, LIGHT, canvas, label, wide
from costmodel.display.labels import between, write_beside

if TYPE_CHECKING:
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
    named = sorted(marks, key=lambda mark: not mark.stands_out)
    names = [(f"{mark.name} ({meaning})" if mark.stands_out else mark.name, (mark.x, mark.y)) for mark in named]
    line = between(sorted((mark.x, mark.y) for mark in marks), 24)
    write_beside(axes, names, line, radius=8, ink=theme.ink, size=9)
    return figure
