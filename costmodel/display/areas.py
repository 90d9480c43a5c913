"""Memory over the steps of a pass, as stacked areas (extra `plot`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from costmodel.display.figures import COLOURS, LIGHT, canvas, label
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


def areas(steps: Steps, peak: Mapping[str, int], phase: str, place: str) -> Figure:
    """Bytes alive by category over the steps, stacked, and the peak: its categories, its phase and its place."""
    most = sum(peak.values())
    figure, axes = canvas((11, 5.2), LIGHT, "")
    unit, name = binary_unit(most)
    _areas(axes, steps, peak, f"{phase} of {_shortened(place)}", unit)
    _phases(axes, steps)
    _peak(axes, steps, most, unit)
    axes.set_xlim(0, len(steps.phases) * steps.width)
    axes.set_ylim(0, 1.1 * most / unit)
    label(axes, "x", LIGHT, steps.meaning)
    label(axes, "y", LIGHT, f"memory alive [{name}]")
    return figure


def _areas(axes: Axes, steps: Steps, peak: Mapping[str, int], where: str, unit: int) -> None:
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
    sizes = [f"{line}  {show_bytes(peak[line]) if peak[line] else '–'}" for line in lines]
    legend = axes.legend(
        areas[::-1],
        sizes[::-1],
        title=f"Peak: {show_bytes(sum(peak.values()))}\n{where}",
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        borderaxespad=0,
        frameon=False,
        labelcolor=LIGHT.ink,
        alignment="left",
    )
    legend.get_title().set_color(LIGHT.ink)


def _shortened(place: str, most: int = 30) -> str:
    return place if len(place) <= most else f"…{place[1 - most :]}"


def _phases(axes: Axes, steps: Steps) -> None:
    """A strip above the areas: a stretch for each phase, named where it has room for its name, else above it.

    What is recomputed is a part of backward.
    """
    whole = len(steps.phases)
    start = 0
    shown = ["backward" if phase == "recompute" else phase for phase in steps.phases]
    for number, (phase, run) in enumerate(groupby(shown)):
        end = start + len(list(run))
        recomputes = [phase == "recompute" for phase in steps.phases[start:end]]
        _stretch(axes, start * steps.width, end * steps.width, _GREYS[number % 2])
        for again, stretch in _runs(recomputes, start):
            if again:
                _stretch(axes, stretch.start * steps.width, stretch.stop * steps.width, _GREYS[2])
        roomy = end - start >= NARROWEST * whole and not any(recomputes)
        name = f"{phase} (dark: recompute)" if any(recomputes) else phase
        middle, height = (start + end) / 2 * steps.width, 1.0225 if roomy else 1.07
        axes.text(middle, height, name, color=LIGHT.ink, transform=_strip(axes), ha="center", va="center", size=9)
        if start:
            axes.axvline(start * steps.width, color=LIGHT.ink, linewidth=0.6, alpha=0.25)
        start = end


_GREYS = ("#e8e8e8", "#d0d0d0", "#9a9a9a")
"""Of the strip of phases: by turns, and where backward recomputes."""


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


def _peak(axes: Axes, steps: Steps, most: int, unit: int) -> None:
    """A dashed line at its level, and a marker above the step: a line down through it could hide so narrow a step."""
    totals = [sum(sizes.values()) for sizes in steps.alive]
    height, at = most / unit, totals.index(max(totals)) + 0.5
    axes.axhline(height, color=LIGHT.ink, linestyle=(0, (4, 3)), linewidth=1)
    axes.plot(at * steps.width, 1.015 * height, marker="v", color=LIGHT.ink, clip_on=False)
    side, shift, align = (1, -4, "right") if at < 0.6 * len(totals) else (0, 4, "left")
    axes.annotate(
        f"peak {show_bytes(most)}",
        (side, height),
        (shift, 3),
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
        ha=align,
        va="bottom",
        color=LIGHT.ink,
    )
