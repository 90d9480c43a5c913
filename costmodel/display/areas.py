"""Pictures of a memory timeline, by matplotlib (extra `plot`), which is loaded only here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from costmodel.cost.timeline import place
from costmodel.display.units import binary_unit, show_bytes
from costmodel.errors import CostModelError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from costmodel.cost.timeline import Step, Timeline

COLOURS = {
    "weights": "#0072b2",
    "masters": "#c3d9e8",
    "optimizer": "#7fc4ee",
    "buffers": "#666666",
    "inputs": "#cc79a7",
    "gradients": "#d55e00",
    "activations": "#5dc1a0",
    "casts": "#9a6324",
    "temporaries": "#f0e442",
}
"""From the bottom up: after Okabe and Ito's palette for colour-blind readers, with neighbours of unlike brightness."""

INK, PAPER = "#222222", "#ffffff"
MOST_UNFOLDED = 200_000
"""Timelines of more steps are drawn with their rounds folded."""
MOST_DRAWN = 4_000
"""Of more steps than this, the highest of each few is drawn."""
NARROWEST = 0.08
"""The name of a phase that takes a smaller share of the width, or is striped, stands above its stretch."""


class Drawn(NamedTuple):
    """What the picture shows: steps, how many of the timeline's each stands for, and what a step is."""

    steps: Sequence[Step]
    width: int
    meaning: str


def picture(timeline: Timeline) -> Figure:
    """A stacked area of what is alive over the steps, with the peak marked and its categories' sizes."""
    Figure = figure_class()
    drawn = _drawn(timeline)
    figure = Figure(figsize=(11, 5.2), dpi=150, facecolor=PAPER, layout="constrained")
    axes = figure.add_subplot(facecolor=PAPER)
    unit, name = binary_unit(timeline.peak)
    _areas(axes, timeline, drawn, unit)
    _phases(axes, drawn)
    _peak(axes, timeline, drawn, unit)
    axes.set_xlim(0, len(drawn.steps) * drawn.width)
    axes.set_ylim(0, 1.1 * timeline.peak / unit)
    axes.set_xlabel(drawn.meaning, color=INK)
    axes.set_ylabel(f"memory alive [{name}]", color=INK)
    axes.tick_params(colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def figure_class() -> Any:
    """Matplotlib's Figure. Raises CostModelError where the extra `plot` is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise CostModelError("a picture needs matplotlib: pip install 'costmodel[plot]'") from None
    return Figure


def _drawn(timeline: Timeline) -> Drawn:
    if timeline.happenings > MOST_UNFOLDED:
        return Drawn(timeline.steps, 1, "step (rounds that are alike drawn as one, at the one with most alive)")
    steps = list(timeline.unfolded())
    width = -(-len(steps) // MOST_DRAWN)
    if width == 1:
        return Drawn(steps, 1, "step (a layer's forward, backward or update)")
    several = [steps[start : start + width] for start in range(0, len(steps), width)]
    highest = [max(few, key=lambda step: step.alive.total) for few in several]
    return Drawn(highest, width, f"step (of every {width}, the one with most alive)")


def _areas(axes: Axes, timeline: Timeline, drawn: Drawn, unit: int) -> None:
    """Each step is as wide as any other; the legend is the stack at the peak, read from the top down."""
    steps = [*drawn.steps, drawn.steps[-1]]
    edges = [number * drawn.width for number in range(len(steps))]
    peak = timeline.peak_step.alive
    lines = [line for line in COLOURS if any(getattr(step.alive, line) for step in steps)]
    areas = axes.stackplot(
        edges,
        [[getattr(step.alive, line) / unit for step in steps] for line in lines],
        colors=[COLOURS[line] for line in lines],
        step="post",
        linewidth=0,
    )
    sizes = [f"{line}  {show_bytes(size) if (size := getattr(peak, line)) else '–'}" for line in lines]
    where = place(timeline.peak_step)
    legend = axes.legend(
        areas[::-1],
        sizes[::-1],
        title=f"Peak: {show_bytes(timeline.peak)}\n{timeline.peak_step.phase} of {_shortened(where)}",
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        borderaxespad=0,
        frameon=False,
        labelcolor=INK,
        alignment="left",
    )
    legend.get_title().set_color(INK)


def _shortened(where: str, most: int = 30) -> str:
    return where if len(where) <= most else f"…{where[1 - most :]}"


def _phases(axes: Axes, drawn: Drawn) -> None:
    """A strip above the areas: a stretch for each phase, named where it has room for its name, else above it."""
    whole = len(drawn.steps)
    start = 0
    for number, (phase, steps) in enumerate(groupby(_with_backward(drawn.steps), key=lambda named: named[0])):
        recomputes = [step.phase == "recompute" for _, step in steps]
        end = start + len(recomputes)
        _stretch(axes, start * drawn.width, end * drawn.width, _GREYS[number % 2])
        for again, stretch in _runs(recomputes, start):
            if again:
                _stretch(axes, stretch.start * drawn.width, stretch.stop * drawn.width, _GREYS[2])
        roomy = end - start >= NARROWEST * whole and not any(recomputes)
        name = f"{phase} (dark: recompute)" if any(recomputes) else phase
        middle, height = (start + end) / 2 * drawn.width, 1.0225 if roomy else 1.07
        axes.text(middle, height, name, color=INK, transform=_strip(axes), ha="center", va="center", size=9)
        if start:
            axes.axvline(start * drawn.width, color=INK, linewidth=0.6, alpha=0.25)
        start = end


_GREYS = ("#e8e8e8", "#d0d0d0", "#9a9a9a")
"""Of the strip of phases: by turns, and where backward recomputes."""


def _with_backward(steps: Sequence[Step]) -> Iterator[tuple[str, Step]]:
    """Each step under the phase that it is shown in: what is recomputed is a part of backward."""
    for step in steps:
        yield "backward" if step.phase == "recompute" else step.phase, step


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


def _peak(axes: Axes, timeline: Timeline, drawn: Drawn, unit: int) -> None:
    """A dashed line at its level, and a marker above the step: a line down through it could hide so narrow a step."""
    totals = [int(step.alive.total) for step in drawn.steps]
    height, at = timeline.peak / unit, totals.index(max(totals)) + 0.5
    axes.axhline(height, color=INK, linestyle=(0, (4, 3)), linewidth=1)
    axes.plot(at * drawn.width, 1.015 * height, marker="v", color=INK, clip_on=False)
    side, shift, align = (1, -4, "right") if at < 0.6 * len(totals) else (0, 4, "left")
    axes.annotate(
        f"peak {show_bytes(timeline.peak)}",
        (side, height),
        (shift, 3),
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
        ha=align,
        va="bottom",
        color=INK,
    )
