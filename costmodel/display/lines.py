"""Pictures of a sweep along one axis: the peak by category, or one quantity, with the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.display.figures import COLOURS, Theme, budget_line, canvas, label, scale_of, ticks_of, wide
from costmodel.display.units import Budget, shower
from costmodel.symbolic.evaluation import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (10, 5.2)
FEW = 3
"""As many values or fewer are drawn as bars, as texts are."""


def stacked(
    axis: str,
    found: Mapping[Any, Mapping[str, int]],
    room: Budget | None,
    title: str,
    theme: Theme,
    answer: Any = None,
) -> Figure:
    """Bytes at the peak by category for each value of an axis, stacked: areas along numbers, else bars.

    room: a budget to draw. answer: a value to mark.
    """
    figure, axes = canvas(SIZE, theme, title)
    alive = list(found.values())
    tallest = max([sum(sizes.values()) for sizes in alive] + ([room.bytes] if room else []))
    unit, name = scale_of("memory.peak", tallest)
    lines = [line for line in COLOURS if any(sizes[line] for sizes in alive)]
    heights = np.array([[sizes[line] / unit for sizes in alive] for line in lines], float)
    values, colours = list(found), [COLOURS[line] for line in lines]
    if _numbers(values):
        drawn: Sequence[Any] = axes.stackplot(values, heights, colors=colours, linewidth=0)
        axes.plot(values, heights.sum(0), color=theme.ink, linewidth=0.8, marker="." if len(values) <= 24 else "")
    else:
        floors = np.vstack([np.zeros(len(values)), heights.cumsum(0)[:-1]])
        drawn = [
            axes.bar(range(len(values)), height, 0.7, bottom=floor, color=colour)
            for height, floor, colour in zip(heights, floors, colours, strict=True)
        ]
        for place, total in enumerate(heights.sum(0)):
            text = shower("memory.peak")(round(float(total) * unit))
            axes.text(place, total, text, ha="center", va="bottom", color=theme.ink, size=9)
    axes.legend(drawn[::-1], lines[::-1], loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False,
                labelcolor=theme.ink)  # fmt: skip
    _frame(axes, axis, values, room, unit, theme)
    if answer is not None:
        axes.axvline(answer, color=theme.ink, linewidth=1, linestyle=(0, (4, 3)))
        axes.plot([answer], [sum(found[answer].values()) / unit], "o", color=theme.ink)
    axes.set_ylim(0, 1.08 * tallest / unit)
    label(axes, "y", theme, name)
    return figure


def line(
    axis: str, values: list[Any], heights: Array, quantity: str, room: Budget | None, title: str, theme: Theme
) -> Figure:
    """One quantity along an axis."""
    figure, axes = canvas(SIZE, theme, title)
    there = np.isfinite(heights)
    held = room if quantity == "memory.peak" else None
    most = max([float(heights[there].max()) if there.any() else 1.0] + ([float(held.bytes)] if held else []))
    unit, name = scale_of(quantity, most)
    if _numbers(values):
        axes.plot(
            values, heights / unit, color=COLOURS["weights"], marker="o" if len(values) <= 64 else "", markersize=4
        )
    else:
        axes.bar(range(len(values)), np.where(there, heights, 0) / unit, 0.7, color=COLOURS["weights"])
    if not there.all():
        axes.text(0.99, 0.02, f"no answer in {int((~there).sum()):,} of {len(values):,}", ha="right", color=theme.faint,
                  transform=axes.transAxes)  # fmt: skip
    _frame(axes, axis, values, held, unit, theme)
    axes.set_ylim(0, 1.08 * most / unit)
    label(axes, "y", theme, name)
    return figure


def _numbers(values: list[Any]) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return numbers and len(values) > FEW and values == sorted(values)


def _frame(axes: Axes, axis: str, values: list[Any], room: Budget | None, unit: float, theme: Theme) -> None:
    """The axis across, and the budget."""
    if not _numbers(values):
        axes.set_xticks(*ticks_of(values))
        spare = max(0.5, 2 - len(values) / 2)
        axes.set_xlim(-spare, len(values) - 1 + spare)
    else:
        axes.set_xlim(values[0], values[-1])
        if wide(values):
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
            axes.minorticks_off()
        else:
            axes.locator_params("x", integer=all(isinstance(value, int) for value in values))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    label(axes, "x", theme, scale_of(axis, 1)[1])
    if room:
        budget_line(axes, room.bytes / unit, theme, f"budget {room.reading}")
