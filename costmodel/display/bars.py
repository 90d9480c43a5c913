"""Bars side by side: parameters, FLOPs and memory of several models or settings (extra `plot`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from costmodel.display.figures import COLOURS, empty, literal
from costmodel.display.units import show_bytes, show_count, show_flops

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from costmodel.display.figures import Theme

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
