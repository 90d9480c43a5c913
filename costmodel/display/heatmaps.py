"""Pictures of a sweep over two axes: a quantity as colours, and the lines around what fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from costmodel.display.figures import Budgets, Theme, canvas, label, scale_of, ticks_of
from costmodel.display.units import shower
from costmodel.symbolic.evaluation import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_WRITTEN = 12
"""Cells along an axis up to which each cell's value is written into it."""
MANY = 60
"""Cells along an axis from which lines between them are thin."""
COLOURS = "YlGnBu"
"""Of values: one way in brightness, clear in every shade, and for colour-blind readers."""
FEWEST_TICKS = 4
"""On the bar of colours."""
DASHES = ("-", (0, (5, 1.5)), (0, (2, 1.5)), (0, (5, 1.5, 1, 1.5)))
"""Of the edges of several budgets, which are told apart in grey too."""


class Heat(NamedTuple):
    """What is drawn: values by (y, x), not a number where there is none; peaks [bytes] likewise, for budgets.

    budgets: what does not fit a single one that was asked for is veiled.
    """

    quantity: str
    names: tuple[str, str]
    labels: tuple[list[Any], list[Any]]
    values: Array
    peaks: Array | None = None
    budgets: Budgets = Budgets()

    @property
    def veiled(self) -> Array | None:
        """Which cells have an answer and do not fit the one budget that was asked for; None if none or several were."""
        if self.peaks is None or not self.budgets.explicit or len(self.budgets.amounts) != 1:
            return None
        return np.isfinite(self.values) & (self.peaks > self.budgets.amounts[0].bytes)


def heatmap(heat: Heat, title: str, theme: Theme) -> Figure:
    """Colours for values, hatches where there are none, and a line around what fits each budget."""
    figure, axes = canvas((9, 6), theme, title)
    unit, name = _unit(heat)
    mesh = _cells(axes, heat, unit, theme)
    if heat.values.size <= MOST_WRITTEN**2 and max(heat.values.shape) <= MOST_WRITTEN:
        _numbers(axes, heat, mesh, theme)
    notes = _budgets(axes, heat, theme)
    _ticks(axes, heat, theme)
    low, high = mesh.norm.vmin, mesh.norm.vmax
    bar = figure.colorbar(mesh, ax=axes, ticks=bar_ticks(low, high), format=lambda value, _: f"{value:,g}")
    bar.set_label(name, color=theme.ink)
    bar.ax.tick_params(which="both", colors=theme.ink)
    bar.ax.minorticks_off()
    bar.outline.set_edgecolor(theme.faint)  # pyright: ignore[reportCallIssue]
    if notes:
        axes.legend(handles=notes, loc="upper left", bbox_to_anchor=(0, -0.11), ncols=4, frameon=False,
                    labelcolor=theme.ink, fontsize=9, handlelength=3)  # fmt: skip
    return figure


def bar_ticks(low: float, high: float) -> list[float]:
    """Round numbers from low to high, at least `FEWEST_TICKS` of them; the ends alone if they are equal."""
    if low >= high:
        return [low]
    if 0 < 4 * low < high:
        powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
        for digits in ((1,), (1, 2, 5), (1, 2, 3, 5, 7)):
            ticks = [digit * 10.0**power for power in powers for digit in digits]
            within = [value for value in ticks if low <= value <= high]
            if len(within) >= FEWEST_TICKS:
                return within
    step = 10.0 ** np.floor(np.log10((high - low) / FEWEST_TICKS))
    for times in (5, 2.5, 2, 1, 0.5):
        first, last = np.ceil(low / (times * step)), np.floor(high / (times * step))
        if last - first + 1 >= FEWEST_TICKS:
            return [float(times * step * n) for n in range(int(first), int(last) + 1)]
    return [low, high]


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
        beyond = heat.veiled is not None and heat.veiled[row, column]
        paper = np.array([int(theme.paper[n : n + 2], 16) / 255 for n in (1, 3, 5)])
        shade = colours[row, column][:3] * (1 - VEIL * beyond) + paper * VEIL * beyond
        ink = "#000000" if shade @ (0.299, 0.587, 0.114) > 0.5 else "#ffffff"
        axes.text(column, row, show(int(value)), ha="center", va="center", color=ink, size=size)


VEIL = 0.55
"""How much of the ground's colour lies over what does not fit."""


def _budgets(axes: Axes, heat: Heat, theme: Theme) -> list[Any]:
    """A line around what fits each budget; what does not fit a single one veiled. Returns the legend's handles."""
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    there = np.isfinite(heat.values)
    notes: list[Any] = []
    taken: list[Any] = []
    if heat.peaks is not None:
        thin = max(heat.values.shape) > MANY
        budgets = heat.budgets.amounts
        for number, budget in enumerate(budgets):
            edges = _edges(there & (heat.peaks <= budget.bytes), there)
            if not edges:
                continue
            dashes = DASHES[number % len(DASHES)] if len(budgets) > 1 else "-"
            # A white line in a black one is seen on every colour; its black part is whole, or dashes would not be.
            for colour, width, style in (
                ("#000000", 2.4 if thin else 3.6, "-"),
                ("#ffffff", 1.0 if thin else 1.6, dashes),
            ):
                axes.add_collection(
                    LineCollection(edges, colors=colour, linewidths=width, linestyles=[style], zorder=3)
                )
            text = f"edge of what fits {budget.reading}" if len(budgets) == 1 else f"fits {budget.reading}"
            notes.append(Line2D([], [], color=theme.ink, linewidth=2, linestyle=dashes, label=text))
            if len(budgets) > 1:
                _named(axes, heat, edges, budget.reading, theme, taken)
    if heat.veiled is not None:
        veil = np.zeros((*heat.values.shape, 4))
        veil[..., :3] = [int(theme.paper[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        veil[..., 3] = VEIL * heat.veiled
        rows, columns = heat.values.shape
        axes.imshow(veil, extent=(-0.5, columns - 0.5, -0.5, rows - 0.5), origin="lower", aspect="auto", zorder=2)
        veiled = Patch(
            facecolor=theme.paper, edgecolor=theme.faint, label=f"veiled: beyond {heat.budgets.amounts[0].reading}"
        )
        notes += [veiled] * bool(heat.veiled.any())
    if not there.all():
        notes.append(Patch(facecolor=theme.paper, edgecolor=theme.faint, hatch="////", label="no answer"))
    return notes


def _named(axes: Axes, heat: Heat, edges: Sequence[tuple[Any, Any]], text: str, theme: Theme, taken: list[Any]) -> None:
    """The budget's name on its edge, where that crosses the diagonal: names of several lie side by side there."""
    rows, columns = heat.values.shape
    middles = [((a + c) / 2, (b + d) / 2) for (a, b), (c, d) in edges]
    x, y = min(middles, key=lambda point: abs(point[0] / columns - point[1] / rows))
    if any(abs(x - a) < 0.1 * columns and abs(y - b) < 0.05 * rows for a, b in taken):
        return
    taken.append((x, y))
    box = {"facecolor": theme.paper, "alpha": 0.85, "linewidth": 0, "pad": 1.5}
    axes.text(x, y, text, ha="center", va="center", size=8, color=theme.ink, bbox=box, zorder=5)


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
