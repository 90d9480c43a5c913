"""Charts of a few numbers (extra `plot`): bars side by side, curves, a sweep along one axis, a Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from costmodel.display.figures import (
    COLOURS,
    DARK,
    LIGHT,
    WIDE,
    Theme,
    budget_line,
    canvas,
    empty,
    label,
    literal,
    scale_of,
    ticks_of,
    wide,
    written,
)
from costmodel.display.units import UNITS, Budget, show_bytes, show_count, show_flops, shower
from costmodel.symbolic.evaluation import Array

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PASSES = {"forward": "#0072b2", "backward": "#7fc4ee", "recomputed": "#d55e00"}
LONGEST = 34


def bars(
    names: Sequence[str],
    params: Sequence[int],
    flops: Sequence[Mapping[str, int]],
    memory: Sequence[Mapping[str, int]],
    theme: Theme,
) -> Figure:
    """Parameters, FLOPs by pass and bytes at the peak by category: for each name a bar in each of three panels."""
    figure = empty((12, 1.9 + 0.42 * len(names)), theme)
    left, middle, right = figure.subplots(1, 3, sharey=True, subplot_kw={"facecolor": theme.paper})
    _row(left, [{"": count} for count in params], {"": "#666666"}, show_count, "parameters", theme)
    _row(middle, flops, PASSES, show_flops, "contraction FLOPs a step", theme)
    _row(right, memory, COLOURS, show_bytes, "memory at the peak", theme)
    left.set_yticks(range(len(names)), [_shortened(name) for name in names], color=theme.ink)
    left.set_ylim(len(names) - 0.5, -0.5)
    return figure


def _shortened(name: str) -> str:
    return literal(name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…")


def _row(
    axes: Axes, bars: Sequence[Mapping[str, int]], colours: dict[str, str], show: Any, title: str, theme: Theme
) -> None:
    """Stacked horizontal bars with their totals, as shares of the largest; the axis has no numbers of its own."""
    most = max(sum(parts.values()) for parts in bars) or 1
    for number, parts in enumerate(bars):
        start, total = 0.0, sum(parts.values())
        for name, colour in colours.items():
            if width := parts[name] / most:
                axes.barh(number, width, left=start, height=0.68, color=colour)
                start += width
        ratio = "" if not number or not sum(bars[0].values()) else f"  ×{total / sum(bars[0].values()):.3g}"
        axes.text(start + 0.02, number, f"{show(total)}{ratio}", va="center", color=theme.ink, size=8.5)
    used = [name for name in colours if name and any(parts[name] for parts in bars)]
    handles = [axes.barh(0, 0, color=colours[name]) for name in used]
    if handles:
        axes.legend(handles, used, loc="upper center", bbox_to_anchor=(0.5, -0.04), ncols=4, frameon=False,
                    labelcolor=theme.ink, fontsize=7.5, handlelength=1, columnspacing=1)  # fmt: skip
    axes.set_title(title, color=theme.ink, size=10, loc="left")
    axes.set_xlim(0, 1.55)
    axes.set_xticks([])
    axes.tick_params(colors=theme.ink, length=0)
    axes.spines["left"].set_color(theme.faint)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


class Mark(NamedTuple):
    """A point, with its name. stands_out: whether it is the one to look at."""

    x: float
    y: float
    name: str
    stands_out: bool = False


def curve(marks: Sequence[Mark], x: str, y: str, title: str, meaning: str, *, dark: bool = False) -> Figure:
    """Points joined in order; `meaning`: of the one that stands out. Raises CostModelError without matplotlib."""
    theme = DARK if dark else LIGHT
    figure, axes = canvas((9, 5.4), theme, title)
    xs, ys = [mark.x for mark in marks], [mark.y for mark in marks]
    axes.plot(xs, ys, color=COLOURS["optimizer" if dark else "weights"], marker="o", markersize=4)
    for along, values in (("x", xs), ("y", ys)):
        if wide(sorted(values)):
            getattr(axes, f"set_{along}scale")("log")
            getattr(axes, f"{along}axis").set_major_formatter(lambda value, _: f"{value:,.4g}")
            getattr(axes, f"{along}axis").set_minor_formatter(lambda value, _: "")
    if axes.get_yscale() == "linear":
        axes.set_ylim(0, 1.1 * max(ys))
    for mark in marks:
        if mark.stands_out:
            axes.plot([mark.x], [mark.y], "o", color=COLOURS["gradients"], markersize=9)
        text = f"{mark.name} ({meaning})" if mark.stands_out else mark.name
        axes.annotate(text, (mark.x, mark.y), (5, -11), textcoords="offset points", color=theme.ink, size=9)
    label(axes, "x", theme, x)
    label(axes, "y", theme, y)
    return figure


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


MOST_DOTS = 20_000
LETTER, LINE = 9, 22
"""About what a letter of a label is wide, and a line of it high, in pixels."""


def pareto_front(
    frame: pandas.DataFrame, front: pandas.DataFrame, held: Sequence[str], names: Sequence[str], most: Sequence[str]
) -> Figure:
    """All cells, in grey, and the front over the first two of the quantities, each with its place on the axes.

    held: columns that are axes of the sweep. most: quantities of which more is better.
    """
    across, up = list(dict.fromkeys(names))[:2]
    figure, axes = canvas((10, 6), LIGHT, f"{len(front):,} of {len(frame):,} cells that no other beats")
    dots = frame.sample(MOST_DOTS, random_state=0) if len(frame) > MOST_DOTS else frame
    units = {name: scale_of(name, max(frame[name].tolist(), default=1)) for name in (across, up)}
    for cells, style in ((dots, BEATEN), (front, FRONT)):
        x, y = (cells[name].to_numpy(float) / units[name][0] for name in (across, up))
        line = "-" if style is FRONT and len(set(names)) == 2 else ""
        turned = "steps-post" if (across in most) == (up in most) else "default"
        axes.plot(x, y, linestyle=line, drawstyle=turned, **style)
    for along, name in (("x", across), ("y", up)):
        _scale(axes, along, name, frame[name].tolist())
        label(axes, along, LIGHT, units[name][1] + (" (more is better)" if name in most else ""))
    places = [front[name].to_numpy(float) / units[name][0] for name in (across, up)]
    varied = [name for name in held if len(set((frame if len(front) == 1 else front)[name].tolist())) > 1]
    figure.draw_without_rendering()  # so that places are those of the layout
    _name(axes, front, varied, list(zip(*places, strict=True)), (across in most, up in most))
    axes.legend(frameon=False, labelcolor=LIGHT.ink)
    return figure


BEATEN = {"marker": ".", "color": LIGHT.faint, "markersize": 7, "alpha": 0.5, "label": "beaten", "markeredgewidth": 0}
FRONT = {"marker": "o", "color": "#d55e00", "markersize": 5, "linewidth": 1.2, "label": "not beaten"}


def _scale(axes: Axes, along: str, name: str, values: Sequence[float]) -> None:
    """Logarithmic where values are far apart, in powers of two for sizes."""
    axis = getattr(axes, f"{along}axis")
    if len(values) and 0 < WIDE * min(values) < max(values):
        from matplotlib.ticker import LogLocator, NullLocator

        base = 10 if name.partition(".")[0] in UNITS else 2
        getattr(axes, f"set_{along}scale")("log", base=base)
        axis.set_major_locator(LogLocator(base, (1, 2, 5) if base == 10 else (1,)))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:,g}")


def _name(
    axes: Axes,
    front: pandas.DataFrame,
    varied: Sequence[str],
    places: Sequence[tuple[float, float]],
    most: tuple[bool, bool],
) -> None:
    """Say where on the axes cells of the front are, as far as there is room: on the side that only better cells have.

    most: whether more is better, across and up.
    """
    aside, above = (1 if more else -1 for more in most)
    texts = [", ".join(f"{name} {written(cell[name])}" for name in varied) for _, cell in front.iterrows()]
    _spare(axes, LETTER * max(map(len, texts), default=0), aside)
    taken: list[tuple[float, float, float]] = []
    for text, place in zip(texts, places, strict=True):
        start, height = axes.transData.transform(place)
        left, right = sorted((start, start + aside * LETTER * len(text)))
        if all(right < start or left > end or abs(height - at) > LINE for start, end, at in taken):
            taken.append((left, right, height))
            axes.annotate(text, place, (5 * aside, 5 * above), textcoords="offset points", color=LIGHT.ink, size=7.5,
                          ha="left" if aside > 0 else "right", va="bottom" if above > 0 else "top")  # fmt: skip


def _spare(axes: Axes, room: float, aside: int) -> None:
    """Make room of so many pixels at the left or right end."""
    axes.margins(y=0.1)
    room = min(room, axes.bbox.width / 2)
    more = aside * room / (1 - room / axes.bbox.width)
    edge = axes.bbox.x1 if aside > 0 else axes.bbox.x0
    end, _ = axes.transData.inverted().transform((edge + more, 0))
    axes.set_xlim(**{"right" if aside > 0 else "left": end})
