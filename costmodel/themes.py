"""Colours of pictures, light and dark, and an empty picture in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from costmodel.pictures import figure_class

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Theme(NamedTuple):
    """Colours of text and lines, of the ground, and of what stands back."""

    ink: str
    paper: str
    faint: str


LIGHT, DARK = Theme("#222222", "#ffffff", "#8a8a8a"), Theme("#e6e6e6", "#16181c", "#8f959e")


def canvas(size: tuple[float, float], theme: Theme, title: str) -> tuple[Figure, Axes]:
    """An empty picture of a size in inches. Raises CostModelError where the extra `plot` is missing."""
    figure = figure_class()(figsize=size, dpi=150, facecolor=theme.paper, layout="constrained")
    axes = figure.add_subplot(facecolor=theme.paper)
    axes.set_title(title.replace("$", r"\$"), color=theme.ink, size=10.5, loc="left")
    axes.tick_params(which="both", colors=theme.ink)
    for side in axes.spines:
        axes.spines[side].set_color(theme.faint)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
