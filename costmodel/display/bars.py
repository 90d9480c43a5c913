"""Bars side by side: parameters, FLOPs and memory of several models, settings or parts (extra `plot`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from costmodel.display.figures import COLOURS, empty, titled, written
from costmodel.display.units import show_bytes, show_count, show_flops, show_seconds, show_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from costmodel.display.figures import Theme

PASSES = {"forward": "#6b6b2a", "backward": "#a8a860", "recomputed": "#d6d6a8"}
"""Of FLOPs; none is the colour of a category of memory, so that each colour means one thing."""
SECONDS = "#3b6ea5"
HATCHED = "recomputed"
"""What is hatched, so that it is told from its neighbours in grey too."""
LONGEST = 34
MOST_ROWS = 12
"""More rows than this are added up as "other"."""


class Panel(NamedTuple):
    """Bars of one quantity: for each row its parts, by name; colours of the names; how totals are written.

    ranges: low and high of each total, where it is none that is certain.
    """

    title: str
    rows: Sequence[Mapping[str, float]]
    colours: Mapping[str, str]
    show: Callable[[Any], str]
    ranges: Sequence[tuple[float, float]] = ()

    @property
    def totals(self) -> list[Any]:
        """Of each row."""
        return [sum(row.values()) for row in self.rows]


def params_panel(rows: Sequence[int]) -> Panel:
    """Parameters, in the colour of weights."""
    return Panel("parameters", [{"weights": count} for count in rows], {"weights": COLOURS["weights"]}, show_count)


def flops_panel(rows: Sequence[Mapping[str, int]], what: str) -> Panel:
    """Contraction FLOPs by pass."""
    return Panel(f"contraction FLOPs {what}", rows, PASSES, show_flops)


def memory_panel(rows: Sequence[Mapping[str, int]], what: str) -> Panel:
    """Bytes by category."""
    return Panel(what, rows, COLOURS, show_bytes)


def seconds_panel(rows: Sequence[float], ranges: Sequence[tuple[float, float]], what: str) -> Panel:
    """Seconds, with their ranges."""
    return Panel(what, [{"seconds": seconds} for seconds in rows], {"seconds": SECONDS}, show_seconds, ranges)


def bars(names: Sequence[str], panels: Sequence[Panel], title: str, theme: Theme, *, ratios: bool) -> Figure:
    """For each name a bar in each panel.

    A panel in which all bars are alike is left out, and said in the title. ratios: whether to write how many times the
    first bar each is; else its share of all, and rows after the first dozen are one.
    """
    telling = [panel for panel in panels if len({tuple(sorted(row.items())) for row in panel.rows}) > 1] or panels[-1:]
    alike = [f"{panel.title} {panel.show(panel.totals[0])}" for panel in panels if panel not in telling]
    if not ratios and len(names) > MOST_ROWS:
        names, telling = summed(names, telling)
    width = 4.2 + 3.6 * len(telling)
    heading = titled(title + (f"\nthe same in all: {', '.join(alike)}" if alike else ""), width)
    figure = empty((width, 1.9 + 0.2 * (heading.count("\n") + 1) + 0.42 * len(names)), theme)
    figure.suptitle(heading, color=theme.ink, size=10.5, x=0.01, ha="left")
    all_axes = figure.subplots(1, len(telling), sharey=True, subplot_kw={"facecolor": theme.paper}, squeeze=False)[0]
    for axes, panel in zip(all_axes, telling, strict=True):
        _row(axes, panel, theme, ratios)
    all_axes[0].set_yticks(range(len(names)), [written(name, LONGEST) for name in names], color=theme.ink)
    all_axes[0].set_ylim(len(names) - 0.5, -0.5)
    return figure


def summed(names: Sequence[str], panels: Sequence[Panel]) -> tuple[list[str], list[Panel]]:
    """The rows that are largest in any panel, in order, and all others as one."""

    def largest(row: int) -> float:
        return max(panel.totals[row] / (max(panel.totals) or 1) for panel in panels)

    first = sorted(sorted(range(len(names)), key=largest, reverse=True)[: MOST_ROWS - 1])
    rest = [row for row in range(len(names)) if row not in first]
    shorter = []
    for panel in panels:
        other = {name: sum(panel.rows[row].get(name, 0) for row in rest) for name in panel.colours}
        shorter.append(panel._replace(rows=[*(panel.rows[row] for row in first), other]))
    return [*(names[row] for row in first), f"other ({len(rest)})"], shorter


def _row(axes: Axes, panel: Panel, theme: Theme, ratios: bool) -> None:
    """Stacked horizontal bars with their totals, as shares of the largest; the axis has no numbers of its own."""
    totals = panel.totals
    most = max(*totals, *(high for _, high in panel.ranges), 0) or 1
    for number, parts in enumerate(panel.rows):
        start = 0.0
        for name, colour in panel.colours.items():
            if width := parts.get(name, 0) / most:
                hatch = "////" if name == HATCHED else ""
                axes.barh(number, width, left=start, height=0.68, color=colour, hatch=hatch, edgecolor=theme.paper,
                          linewidth=0.4)  # fmt: skip
                start += width
        if panel.ranges:
            low, high = panel.ranges[number]
            axes.plot([low / most, high / most], [number, number], color=theme.ink, linewidth=1.2, marker="|")
            start = max(start, high / most)
        note = _beside(totals, number) if ratios else _share(totals[number], sum(totals))
        text = f"{panel.show(totals[number])}{note}" if totals[number] or ratios else "–"
        axes.text(start + 0.02, number, text, va="center", color=theme.ink, size=8.5)
    used = [name for name in panel.colours if any(parts.get(name) for parts in panel.rows)]
    if len(used) > 1:
        handles = [
            axes.barh(0, 0, color=panel.colours[name], hatch="////" if name == HATCHED else "", edgecolor=theme.paper)
            for name in used
        ]
        axes.legend(handles, used, loc="upper center", bbox_to_anchor=(0.5, -0.04), ncols=4, frameon=False,
                    labelcolor=theme.ink, fontsize=7.5, handlelength=1, columnspacing=1)  # fmt: skip
    axes.set_title(panel.title, color=theme.ink, size=10, loc="left")
    axes.set_xlim(0, 1.55)
    axes.set_xticks([])
    axes.tick_params(colors=theme.ink, length=0)
    axes.spines["left"].set_color(theme.faint)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _beside(totals: Sequence[int], number: int) -> str:
    return f"  ×{totals[number] / totals[0]:.3g}" if number and totals[0] not in (0, totals[number]) else ""


def _share(part: int, whole: int) -> str:
    return f"  {show_share(part, whole)}" if part else ""
