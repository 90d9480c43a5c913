"""Pictures of a memory timeline, by matplotlib (extra `plot`), which is loaded only here."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from costmodel.errors import CostModelError, shown
from costmodel.milestones import place
from costmodel.units import binary_unit, show_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from costmodel.memory import Step, Timeline

COLOURS = {
    "weights": "#0072b2",
    "masters": "#c3d9e8",
    "optimizer": "#7fc4ee",
    "buffers": "#666666",
    "inputs": "#cc79a7",
    "gradients": "#d55e00",
    "activations": "#5dc1a0",
    "temporaries": "#f0e442",
}
"""From the bottom up: after Okabe and Ito's palette for colour-blind readers, with neighbours of unlike brightness."""

INK, PAPER = "#222222", "#ffffff"
MOST_UNFOLDED = 200_000
"""Timelines of more steps are drawn with their rounds folded."""
MOST_DRAWN = 4_000
"""Of more steps than this, the highest of each few is drawn."""
NARROWEST = 0.045
"""Phases that take a smaller share of the width are labelled by their colour alone."""


class Drawn(NamedTuple):
    """What the picture shows: steps, how many of the timeline's each stands for, and what a step is."""

    steps: Sequence[Step]
    width: int
    meaning: str


def picture(timeline: Timeline) -> Figure:
    """A stacked area of what is alive over the steps, with the peak marked and its categories' sizes."""
    Figure = _figure_class()
    drawn = _drawn(timeline)
    figure = Figure(figsize=(11, 5.2), dpi=150, facecolor=PAPER, layout="constrained")
    axes = figure.add_subplot(facecolor=PAPER)
    unit, name = binary_unit(timeline.peak)
    _areas(axes, timeline, drawn, unit)
    _phases(axes, drawn)
    _peak(axes, timeline, drawn, unit)
    axes.set_xlim(0, len(drawn.steps) * drawn.width)
    axes.set_ylim(0, 1.06 * timeline.peak / unit)
    axes.set_xlabel(drawn.meaning, color=INK)
    axes.set_ylabel(f"memory alive [{name}]", color=INK)
    axes.tick_params(colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a picture in the format that the path's ending names, whole or not at all. Raises CostModelError."""
    target = Path(path)
    known = sorted(figure.canvas.get_supported_filetypes())
    ending = target.suffix[1:].lower()
    if ending not in known:
        raise CostModelError(f"cannot draw {shown(str(path))}: use a name that ends in .png, or in {', '.join(known)}")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=ending)
    part = target.with_name(f"{target.name}.part")
    try:
        part.write_bytes(drawn.getvalue())
        part.replace(target)
    except OSError as error:
        _discard(part)
        raise CostModelError(f"cannot write {shown(str(path))}: {error.strerror or error}") from None


def _discard(part: Path) -> None:
    try:
        part.unlink(missing_ok=True)
    except OSError:
        return


def _figure_class() -> Any:
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


def _spans(drawn: Drawn) -> Iterator[tuple[str, int, int]]:
    """Phases, as (name, start, end) in steps."""
    start = 0
    for phase, steps in groupby(drawn.steps, key=lambda step: step.phase):
        end = start + drawn.width * len(list(steps))
        yield phase, start, end
        start = end


def _phases(axes: Axes, drawn: Drawn) -> None:
    """A band for each phase above the areas, named where there is room; recomputing within backward is hatched."""


def _peak(axes: Axes, timeline: Timeline, drawn: Drawn, unit: int) -> None:
    totals = [int(step.alive.total) for step in drawn.steps]
    x = (totals.index(max(totals)) + 0.5) * drawn.width
    axes.axvline(x, color=INK, linestyle=(0, (4, 3)), linewidth=1)
    axes.axhline(timeline.peak / unit, color=INK, linestyle=(0, (4, 3)), linewidth=1)
