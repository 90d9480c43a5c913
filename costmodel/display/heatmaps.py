"""Pictures of a sweep over two axes: a quantity as colours, and the line around what fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from costmodel.display.figures import Theme, canvas, label, scale_of, ticks_of
from costmodel.display.units import shower
from costmodel.symbolic.evaluation import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_WRITTEN = 12
"""Cells along an axis up to which each cell's value is written into it."""
MANY = 60
"""Cells along an axis from which lines between them are thin."""
COLOURS = "cividis"
"""Of values: even in brightness, and for colour-blind readers."""


class Heat(NamedTuple):
    """What is drawn: values by (y, x), not a number where there is none; and which cells fit (None: not asked)."""

    quantity: str
    names: tuple[str, str]
    labels: tuple[list[Any], list[Any]]
    values: Array
    fits: Array | None
    budget: str


def heatmap(heat: Heat, title: str, theme: Theme) -> Figure:
    """Colours for values, hatches where there are none, and what does not fit behind a veil and a line."""
    figure, axes = canvas((9, 6), theme, title)
    unit, name = _unit(heat)
    mesh = _cells(axes, heat, unit, theme)
    if heat.values.size <= MOST_WRITTEN**2 and max(heat.values.shape) <= MOST_WRITTEN:
        _numbers(axes, heat, mesh, theme)
    notes = _veil(axes, heat, theme)
    _ticks(axes, heat, theme)
    bar = figure.colorbar(mesh, ax=axes, format=lambda value, _: f"{value:g}")
    bar.set_label(name, color=theme.ink)
    bar.ax.tick_params(which="both", colors=theme.ink)
    bar.ax.minorticks_off()
    bar.outline.set_edgecolor(theme.faint)  # pyright: ignore[reportCallIssue]
    if notes:
        axes.legend(handles=notes, loc="upper left", bbox_to_anchor=(0, -0.11), ncols=3, frameon=False,
                    labelcolor=theme.ink, fontsize=9)  # fmt: skip
    return figure


def _unit(heat: Heat) -> tuple[float, str]:
    """See `scale_of`."""
    return scale_of(heat.quantity, float(np.nanmax(heat.values)) if np.isfinite(heat.values).any() else 1.0)


def _cells(axes: Axes, heat: Heat, unit: float, theme: Theme) -> Any:
    from matplotlib.colors import LogNorm, Normalize

    scaled = np.ma.masked_invalid(heat.values / unit)
    low, high = (float(scaled.min()), float(scaled.max())) if scaled.count() else (0.0, 1.0)
    norm = LogNorm(low, high) if 0 < 20 * low < high else Normalize(low if low < high else 0, high or 1)
    axes.set_facecolor(theme.paper)
    axes.patch.set_hatch("////")
    axes.patch.set_edgecolor(theme.faint)
    rows, columns = heat.values.shape
    return axes.pcolormesh(np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5, scaled, cmap=COLOURS, norm=norm)


def _numbers(axes: Axes, heat: Heat, mesh: Any, theme: Theme) -> None:
    show = shower(heat.quantity)
    colours = mesh.cmap(mesh.norm(np.ma.masked_invalid(heat.values / _unit(heat)[0])))
    size = 9 if max(heat.values.shape) <= 8 else 6.5
    for (row, column), value in np.ndenumerate(heat.values):
        if not np.isfinite(value):
            continue
        beyond = heat.fits is not None and not heat.fits[row, column]
        paper = np.array([int(theme.paper[n : n + 2], 16) / 255 for n in (1, 3, 5)])
        shade = colours[row, column][:3] * (1 - VEIL * beyond) + paper * VEIL * beyond
        ink = "#000000" if shade @ (0.299, 0.587, 0.114) > 0.5 else "#ffffff"
        axes.text(column, row, show(int(value)), ha="center", va="center", color=ink, size=size)


VEIL = 0.55
"""How much of the ground's colour lies over what does not fit."""


def _veil(axes: Axes, heat: Heat, theme: Theme) -> list[Any]:
    """What does not fit, veiled, with a line around what fits; returns the legend's handles."""
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    there = np.isfinite(heat.values)
    notes: list[Any] = []
    if heat.fits is not None:
        veil = np.zeros((*heat.values.shape, 4))
        veil[..., :3] = [int(theme.paper[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        beyond = there & ~heat.fits
        veil[..., 3] = VEIL * beyond
        rows, columns = heat.values.shape
        axes.imshow(veil, extent=(-0.5, columns - 0.5, -0.5, rows - 0.5), origin="lower", aspect="auto", zorder=2)
        edges = _edges(there & heat.fits, there)
        thin = max(heat.values.shape) > MANY
        for colour, width in (("#000000", 2.4 if thin else 3.6), ("#ffffff", 1.0 if thin else 1.6)):
            axes.add_collection(LineCollection(edges, colors=colour, linewidths=width, zorder=3, capstyle="round"))
        notes += [Line2D([], [], color=theme.ink, linewidth=2.4, label=f"edge of what fits {heat.budget}")] * bool(
            edges
        )
        veiled = Patch(facecolor=theme.paper, edgecolor=theme.faint, label=f"veiled: beyond {heat.budget}")
        notes += [veiled] * bool(beyond.any())
    if not there.all():
        notes.append(Patch(facecolor=theme.paper, edgecolor=theme.faint, hatch="////", label="no answer"))
    return notes


def _edges(fits: Array, there: Array) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Sides between cells of which one fits and the other, which has an answer, does not."""
    across = np.argwhere((fits[:, 1:] != fits[:, :-1]) & there[:, 1:] & there[:, :-1]).tolist()
    upward = np.argwhere((fits[1:] != fits[:-1]) & there[1:] & there[:-1]).tolist()
    return [
        *(((x + 0.5, y - 0.5), (x + 0.5, y + 0.5)) for y, x in across),
        *(((x - 0.5, y + 0.5), (x + 0.5, y + 0.5)) for y, x in upward),
    ]


def _ticks(axes: Axes, heat: Heat, theme: Theme) -> None:
    for along, name, labels in zip("yx", heat.names, heat.labels, strict=True):
        getattr(axes, f"set_{along}ticks")(*ticks_of(labels))
        label(axes, along, theme, scale_of(name, 1)[1])
    axes.set_xlim(-0.5, heat.values.shape[1] - 0.5)
    axes.set_ylim(-0.5, heat.values.shape[0] - 0.5)
