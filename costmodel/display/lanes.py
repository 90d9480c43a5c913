"""Lanes of a timeline: what each queue does from when to when (extra `plot`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from costmodel.display.bars import PASSES
from costmodel.display.figures import canvas, label, literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from costmodel.display.figures import Theme

MOST_LANES = 24
"""More lanes than this are left out."""
COLOURS = {"forward": PASSES["forward"], "backward": PASSES["backward"], "weights": "#d98a3d", "update": "#3b6ea5"}
"""Of phases; gradients of weights are their own where they are made apart from those of inputs."""
LETTERS = {"forward": "white", "update": "white"}
"""What is written on dark colours."""
FINEST = 2000
"""Spans shorter than such a share of all are drawn with their neighbours of the same phase."""
MOST_EDGED = 120
"""Spans of a lane that are drawn with edges."""
WRITTEN = 130
"""Characters that a lane has room for."""


class LaneSpan(NamedTuple):
    """From when to when [s], in which phase, and what is written on it where there is room."""

    start: float
    end: float
    phase: str
    text: str = ""


class Lane(NamedTuple):
    """A queue's name, and what is on it, in order."""

    name: str
    spans: Sequence[LaneSpan]


def lanes(title: str, rows: Sequence[Lane], left_out: str, theme: Theme, units: str = "") -> Figure:
    """One below the other, along the seconds; what is left out is said in the title.

    units: what times are in, if not seconds.
    """
    whole = max((span.end for row in rows for span in row.spans), default=1.0)
    heading = title + (f" ({left_out})" if left_out else "")
    figure, axes = canvas((9.0, 1.6 + 0.34 * len(rows)), theme, heading)
    scale, unit = (1.0, units or "s") if units or whole >= 1 else (1e-3, "ms")
    phases = [phase for phase in COLOURS if any(span.phase == phase for row in rows for span in row.spans)]
    for place, row in enumerate(rows):
        for phase, colour in ((phase, COLOURS[phase]) for phase in phases):
            spans = _joined([span for span in row.spans if span.phase == phase], whole / FINEST)
            bars = [(span.start / scale, (span.end - span.start) / scale) for span in spans]
            edge = theme.paper if len(row.spans) < MOST_EDGED else colour
            axes.broken_barh(bars, (place - 0.36, 0.72), facecolors=colour, edgecolors=edge, linewidth=0.3)
        for span in row.spans:
            if span.end - span.start >= whole * len(span.text) / WRITTEN:
                middle = (span.start + span.end) / 2 / scale
                axes.text(
                    middle,
                    place,
                    span.text,
                    ha="center",
                    va="center",
                    fontsize=6,
                    color=LETTERS.get(span.phase, "black"),
                )
    for phase in phases:
        axes.plot([], [], color=COLOURS[phase], linewidth=6, label=phase)
    axes.set_yticks(range(len(rows)), [literal(row.name) for row in rows], color=theme.ink)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, whole / scale)
    label(axes, "x", theme, f"time [{unit}]")
    figure.legend(loc="outside lower right", ncols=len(phases), frameon=False, labelcolor=theme.ink)
    return figure


def _joined(spans: Sequence[LaneSpan], finest: float) -> list[LaneSpan]:
    """Spans with what is nearer to each than can be seen."""
    joined: list[LaneSpan] = []
    for span in spans:
        short = joined and span.start - joined[-1].end < finest and span.end - joined[-1].start < 4 * finest
        if short:
            joined[-1] = joined[-1]._replace(end=max(span.end, joined[-1].end))
        else:
            joined.append(span)
    return joined
