"""Pictures of a sweep along one axis: the peak by category, or one quantity, with the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.display.figures import COLOURS, Budgets, Theme, canvas, label, scale_of, ticks_of, wide, written
from costmodel.display.units import shower
from costmodel.symbolic.evaluation import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (10, 5.2)
FEW = 3
"""As many values or fewer are drawn as bars, as texts are."""


def stacked(
    axis: str,
    peaks: Mapping[Any, tuple[Mapping[str, int], Any]],
    budgets: Budgets,
    title: str,
    theme: Theme,
    answer: Any = None,
) -> Figure:
    """Bytes at the peak by category for each value of an axis, stacked: areas along numbers, else bars.

    peaks: for each value the bytes, and where the peak is: between two places areas end and begin, as nothing there is
    a mix of both. answer: a value to mark.
    """
    figure, axes = canvas(SIZE, theme, title)
    alive, places = zip(*peaks.values(), strict=True)
    budgets, tallest = _budgets(budgets, max(sum(sizes.values()) for sizes in alive))
    unit, name = scale_of("memory.peak", tallest)
    lines = [line for line in COLOURS if any(sizes[line] for sizes in alive)]
    heights = np.array([[sizes[line] / unit for sizes in alive] for line in lines], float)
    values, colours = list(peaks), [COLOURS[line] for line in lines]
    if _numbers(values):
        drawn: Sequence[Any] = _stretches(axes, values, heights, places, colours)
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
    _frame(axes, axis, values, theme)
    budgets.draw(axes, unit, theme)
    if answer is None and _numbers(values):
        _largest(axes, values, heights.sum(0) * unit, budgets, unit, theme)
    if answer is not None:
        axes.axvline(answer, color=theme.ink, linewidth=1, linestyle=(0, (4, 3)))
        axes.plot([answer], [sum(peaks[answer][0].values()) / unit], "o", color=theme.ink)
    axes.set_ylim(0, 1.08 * tallest / unit)
    label(axes, "y", theme, name)
    return figure


NEAR = 0.32
"""Share of a picture's width that the name of a budget may take, at its left."""


def _largest(axes: Axes, values: list[Any], peaks: Array, budgets: Budgets, unit: float, theme: Theme) -> None:
    """Of each budget that some values are within and others past, the largest value of those that fit, marked."""
    for budget in budgets.amounts:
        past = np.flatnonzero(np.rint(peaks) > budget.bytes)
        if past.size and past[0]:
            value, height = values[past[0] - 1], peaks[past[0] - 1] / unit
            axes.plot([value], [height], "o", color=theme.ink, markersize=7)
            along = axes.transAxes.inverted().transform(axes.transData.transform((value, height)))[0]
            near = along < NEAR  # the name of the budget is there
            axes.annotate(f"{value:,} fits", (value, height), (-6, 22 if near else 6), textcoords="offset points",
                          ha="left" if near else "right", va="bottom", color=theme.ink, size=9,
                          bbox={"facecolor": theme.paper, "alpha": 0.8, "linewidth": 0, "pad": 1.5})  # fmt: skip


def _budgets(budgets: Budgets, tallest: float) -> tuple[Budgets, float]:
    """Those that are drawn with what is so tall, and how high the picture is."""
    budgets = budgets.up_to(tallest)
    return budgets, budgets.highest(tallest)


def _stretches(
    axes: Axes, values: list[Any], heights: Array, places: Sequence[Any], colours: list[str]
) -> Sequence[Any]:
    """Areas for each stretch of values with the peak at one place, which meet half-way; returns those of the first."""
    drawn: list[Any] = []
    edges = [0, *(n for n in range(1, len(values)) if places[n] != places[n - 1]), len(values)]
    middle = _middles(values)
    for start, end in pairwise(edges):
        xs, ys = list(values[start:end]), heights[:, start:end]
        if start:
            xs, ys = [middle[start - 1], *xs], np.hstack([ys[:, :1], ys])
        if end < len(values):
            xs, ys = [*xs, middle[end - 1]], np.hstack([ys, ys[:, -1:]])
        drawn.append(axes.stackplot(xs, ys, colors=colours, linewidth=0.6, edgecolor=axes.get_facecolor()))
    return drawn[0]


def _middles(values: list[Any]) -> list[float]:
    """Half-way between each value and the next, on the axis as it is scaled."""
    log = wide(values)
    return [(a * b) ** 0.5 if log else (a + b) / 2 for a, b in pairwise(values)]


def several(
    axis: str,
    values: list[Any],
    heights_by_value: Mapping[Any, Array],
    quantity: str,
    by: str,
    budgets: Budgets,
    title: str,
    theme: Theme,
) -> Figure:
    """One quantity along an axis, a line for each value of another, `by`, named at its end and in the legend."""
    figure, axes = canvas(SIZE, theme, title)
    there = [heights[np.isfinite(heights)] for heights in heights_by_value.values()]
    budgets, most = _budgets(budgets, max([1.0, *(float(heights.max()) for heights in there if heights.size)]))
    unit, name = scale_of(quantity, most)
    names = _coincident(heights_by_value)
    for number, (value, heights) in enumerate(heights_by_value.items()):
        if value not in names:
            continue
        size, colour = 4 if len(values) <= 64 else 0, COLOURS[_TOLD[number]]
        axes.plot(values, heights / unit, color=colour, linestyle=STYLES[number], marker=MARKERS[number],
                  markersize=size, linewidth=1.8, label=names[value])  # fmt: skip
    if missing := sum(int((~np.isfinite(heights)).sum()) for heights in heights_by_value.values()):
        axes.text(0.99, 0.02, f"no answer in {missing:,} of {len(heights_by_value) * len(values):,}", ha="right",
                  color=theme.faint, transform=axes.transAxes)  # fmt: skip
    _frame(axes, axis, values, theme)
    budgets.draw(axes, unit, theme)
    axes.set_ylim(0, 1.08 * most / unit)
    label(axes, "y", theme, name)
    legend = axes.legend(title=scale_of(by, 1)[1], loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False,
                         labelcolor=theme.ink, handlelength=3, reverse=True)  # fmt: skip
    legend.get_title().set_color(theme.ink)
    return figure


def _coincident(heights_by_value: Mapping[Any, Array]) -> dict[Any, str]:
    """Names of lines, each with those of others that lie on it, which are drawn once."""
    first: dict[bytes, Any] = {}
    groups: dict[Any, list[str]] = {}
    for value, heights in heights_by_value.items():
        groups.setdefault(first.setdefault(heights.tobytes(), value), []).append(written(value))
    return {value: f"{', '.join(names)} (the same)" if names[1:] else names[0] for value, names in groups.items()}


MOST_LINES = 6
"""An axis of names with more values than this, or of numbers with more than two, is drawn as cells."""
STYLES: Sequence[Any] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = "os^Dvx"
_TOLD = ("weights", "gradients", "activations", "inputs", "optimizer", "casts")
"""Colours of lines that colour-blind readers tell apart; dashes and markers differ too, for grey."""


def line(
    axis: str, values: list[Any], heights: Array, quantity: str, budgets: Budgets, title: str, theme: Theme
) -> Figure:
    """One quantity along an axis."""
    figure, axes = canvas(SIZE, theme, title)
    there = np.isfinite(heights)
    budgets, most = _budgets(budgets, float(heights[there].max()) if there.any() else 1.0)
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
    _frame(axes, axis, values, theme)
    budgets.draw(axes, unit, theme)
    axes.set_ylim(0, 1.08 * most / unit)
    label(axes, "y", theme, name)
    return figure


def numbers(values: Sequence[Any]) -> bool:
    """Whether values are numbers, of which there may be some between."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _numbers(values: list[Any]) -> bool:
    return numbers(values) and len(values) > FEW and values == sorted(values)


def _frame(axes: Axes, axis: str, values: list[Any], theme: Theme) -> None:
    """The axis across."""
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
