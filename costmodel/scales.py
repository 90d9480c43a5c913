"""Axes of pictures over grids: units of quantities, ticks at the values of an axis, and a line at a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from costmodel.quantities import UNITS
from costmodel.themes import Theme
from costmodel.units import binary_unit, show_bytes, show_count, show_flops

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_TICKS = 12
WIDE = 24
"""Values whose largest is more times their smallest are drawn on a logarithmic axis."""
NAMES = {
    "batch": "batch [samples]",
    "seq": "sequence length [tokens]",
    "image": "image side [pixels]",
    "layers": "layers",
    "width": "width [features]",
}


def scale_of(quantity: str, most: float) -> tuple[float, str]:
    """The unit in which a quantity of this size is drawn, and what to write at its axis."""
    group = quantity.partition(".")[0]
    if group == "memory":
        size, name = binary_unit(int(most))
        return size, f"{quantity} [{name}]"
    if group not in UNITS:
        return 1, NAMES.get(quantity, quantity)
    name = (show_flops if "flops" in group else show_count)(int(most)).partition(" ")[2]
    prefix = "" if name in ("", "FLOP") else name[0]
    unit = f"{prefix}FLOP" if "flops" in group else prefix
    return 1000 ** " kMGTPEZYRQ".index(prefix or " "), f"{quantity} [{unit}]" if unit else quantity


def shower_of(quantity: str) -> Callable[[Any], str]:
    """How a quantity's values are written."""
    group = quantity.partition(".")[0]
    return show_bytes if group == "memory" else show_flops if "flops" in group else show_count


def wide(values: Sequence[float]) -> bool:
    """Whether numbers are better drawn on a logarithmic axis: doublings, or a wide range of any."""
    if len(values) < 3 or min(values) <= 0:
        return False
    ratios = [b / a for a, b in pairwise(values)]
    return min(ratios) >= 1.9 or (max(values) > WIDE * min(values) and min(ratios) > 1.2)


def ticks_of(labels: Sequence[Any]) -> tuple[list[float], list[str]]:
    """Places and texts of ticks, where the values stand side by side: at round numbers if they are evenly spaced."""
    from matplotlib.ticker import MaxNLocator

    if len(labels) > MOST_TICKS and _even(labels):
        first, step = labels[0], labels[1] - labels[0]
        marks = MaxNLocator(10, integer=True, steps=[1, 2, 5, 10]).tick_values(first, labels[-1])
        places = [(mark - first) / step for mark in marks if first <= mark <= labels[-1]]
        return places, [f"{mark:,g}" for mark in marks if first <= mark <= labels[-1]]
    step = -(-len(labels) // MOST_TICKS)
    return [float(n) for n in range(0, len(labels), step)], [written(value) for value in labels[::step]]


def _even(labels: Sequence[Any]) -> bool:
    return all(isinstance(n, int) for n in labels) and len({b - a for a, b in pairwise(labels)}) == 1


def label(axes: Axes, along: str, theme: Theme, text: str) -> None:
    """Name the x or y axis."""
    getattr(axes, f"set_{along}label")(text, color=theme.ink)


def written(value: Any) -> str:
    """A label of an axis, short."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        text = str(value)
        return text if len(text) <= 18 else f"{text[:17]}…"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def budget_line(axes: Axes, height: float, theme: Theme, text: str) -> None:
    """A line across at a height, named above its left end."""
    axes.axhline(height, color=theme.ink, linewidth=1.4)
    box = {"facecolor": theme.paper, "alpha": 0.8, "linewidth": 0, "pad": 1.5}
    axes.annotate(text, (0.01, height), (0, 3), xycoords=axes.get_yaxis_transform(), textcoords="offset points",
                  va="bottom", color=theme.ink, bbox=box)  # fmt: skip
