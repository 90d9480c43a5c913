"""Memory over the steps of a pass, as stacked areas (extra `plot`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from costmodel.display.figures import COLOURS, DARK, LIGHT, Budgets, Theme, canvas, label, literal
from costmodel.display.units import binary_unit, show_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


NARROWEST = 0.08
"""The name of a phase that takes a smaller share of the width, or is striped, stands above its stretch."""


class Steps(NamedTuple):
    """What is drawn: the phase of each step, bytes alive by category, how many steps each stands for, what one is."""

    phases: Sequence[str]
    alive: Sequence[Mapping[str, int]]
    width: int
    meaning: str


class Peak(NamedTuple):
    """Bytes alive by category at the highest step, and in words where that is and what is the largest there."""

    alive: Mapping[str, int]
    notes: Sequence[str]


def areas(steps: Steps, peak: Peak, budgets: Budgets, title: str, theme: Theme = LIGHT) -> Figure:
    """Bytes alive by category over the steps, stacked, and the peak; of common budgets those up to just above it."""
    most = sum(peak.alive.values())
    figure, axes = canvas((11, 5.4), theme, title, 36)
    budgets = budgets.up_to(ABOVE * most)
    tallest = int(budgets.highest(most))
    unit, name = binary_unit(tallest)
    _areas(axes, steps, peak, theme, unit)
    _phases(axes, steps, theme)
    _peak(axes, steps, most, unit, theme)
    budgets.draw(axes, unit, theme)
    axes.set_xlim(0, len(steps.phases) * steps.width)
    axes.set_ylim(0, 1.1 * tallest / unit)
    label(axes, "x", theme, steps.meaning)
    label(axes, "y", theme, f"memory alive [{name}]")
    return figure


ABOVE = 1.4
"""Common budgets up to so many times the peak are drawn."""


def _areas(axes: Axes, steps: Steps, peak: Peak, theme: Theme, unit: int) -> None:
    """Each step is as wide as any other; the legend is the stack at the peak, read from the top down."""
    alive = [*steps.alive, steps.alive[-1]]
    edges = [number * steps.width for number in range(len(alive))]
    lines = [line for line in COLOURS if any(sizes[line] for sizes in alive)]
    areas = axes.stackplot(
        edges,
        [[sizes[line] / unit for sizes in alive] for line in lines],
        colors=[COLOURS[line] for line in lines],
        step="post",
        linewidth=0,
    )
    sizes = [f"{line}  {show_bytes(peak.alive[line]) if peak.alive[line] else '–'}" for line in lines]
    legend = axes.legend(
        areas[::-1],
        sizes[::-1],
        title="\n".join(map(literal, peak.notes)),
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        borderaxespad=0,
        frameon=False,
        labelcolor=theme.ink,
        alignment="left",
    )
    legend.get_title().set_color(theme.ink)


def _phases(axes: Axes, steps: Steps, theme: Theme) -> None:
    """A strip above the areas: a stretch for each phase, named where it has room for its name, else above it.

    What is recomputed is a part of backward.
    """
    whole = len(steps.phases)
    start = 0
    phases = ["backward" if phase == "recompute" else phase for phase in steps.phases]
    for number, (phase, run) in enumerate(groupby(phases)):
        end = start + len(list(run))
        recomputes = [phase == "recompute" for phase in steps.phases[start:end]]
        _stretch(axes, start * steps.width, end * steps.width, _GREYS[theme is DARK][number % 2])
        for again, stretch in _runs(recomputes, start):
            if again:
                _stretch(axes, stretch.start * steps.width, stretch.stop * steps.width, _GREYS[theme is DARK][2])
        roomy = end - start >= NARROWEST * whole and not any(recomputes)
        name = f"{phase} (striped: recompute)" if any(recomputes) else phase
        middle, height = (start + end) / 2 * steps.width, 1.0225 if roomy else 1.07
        axes.text(middle, height, name, color=theme.ink, transform=_strip(axes), ha="center", va="center", size=9)
        if start:
            axes.axvline(start * steps.width, color=theme.ink, linewidth=0.6, alpha=0.25)
        start = end


_GREYS = (("#e8e8e8", "#d0d0d0", "#9a9a9a"), ("#2c2f36", "#40444d", "#6b7079"))
"""Of the strip of phases, on white and on black: by turns, and where backward recomputes."""


def _runs(marks: list[bool], start: int) -> Iterator[tuple[bool, range]]:
    for mark, run in groupby(marks):
        end = start + len(list(run))
        yield mark, range(start, end)
        start = end


def _stretch(axes: Axes, start: int, end: int, colour: str) -> None:
    axes.fill_between([start, end], 1.0, 1.045, color=colour, linewidth=0, transform=_strip(axes), clip_on=False)


def _strip(axes: Axes) -> Any:
    """Steps across, and the height of the axes up."""
    return axes.get_xaxis_transform()


def _peak(axes: Axes, steps: Steps, most: int, unit: int, theme: Theme) -> None:
    """A dashed line at its level, and a marker above the step: a line down through it could hide so narrow a step."""
    totals = [sum(sizes.values()) for sizes in steps.alive]
    height, at = most / unit, totals.index(max(totals)) + 0.5
    axes.axhline(height, color=theme.ink, linestyle=(0, (4, 3)), linewidth=1)
    axes.plot(at * steps.width, 1.015 * height, marker="v", color=theme.ink, clip_on=False)
    side, shift, align = (1, -4, "right") if at < 0.6 * len(totals) else (0, 4, "left")
    axes.annotate(
        f"peak {show_bytes(most)}",
        (side, height),
        (shift, 3),
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
        ha=align,
        va="bottom",
        color=theme.ink,
    )
