"""Figures for people: light and dark colours, axes with units, names beside dots."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from costmodel.display.table import shortened
from costmodel.display.units import TIMES, UNITS, Budget, binary_unit, read_budget, show_bytes, show_count, show_flops
from costmodel.documents.files import check_writable, write
from costmodel.errors import CostModelError, not_installed, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COLOURS = {
    "weights": "#0072b2",
    "masters": "#c3d9e8",
    "optimizer": "#7fc4ee",
    "buffers": "#666666",
    "inputs": "#cc79a7",
    "gradients": "#d55e00",
    "activations": "#5dc1a0",
    "casts": "#9a6324",
    "cache": "#332288",
    "temporaries": "#f0e442",
}
"""From the bottom up: after Okabe and Ito's palette for colour-blind readers, with neighbours of unlike brightness."""


def figure_class() -> Any:
    """Matplotlib's Figure. Raises CostModelError where the extra `plot` is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise not_installed("a picture needs matplotlib", "plot") from None
    return Figure


def save(figure: Figure, path: str | os.PathLike[str] | None) -> Figure:
    """The figure, written to a path, if there is one, in the format of its ending, whole or not at all.

    Raises CostModelError.
    """
    if path is not None:
        ending = ending_of(path, figure)
        check_writable(path)
        content = io.BytesIO()
        figure.savefig(content, format=ending)
        write(content.getvalue(), path)
    return figure


def ending_of(path: str | os.PathLike[str], figure: Figure) -> str:
    """The format that a path's ending names. Raises CostModelError for one that is not drawn."""
    known = sorted(figure.canvas.get_supported_filetypes())
    ending = Path(path).suffix[1:].lower()
    if ending not in known:
        raise CostModelError(f"cannot draw {shown(str(path))}: use a name that ends in .png, or in {', '.join(known)}")
    return ending


class Theme(NamedTuple):
    """Colours of text and lines, of the ground, and of what stands back."""

    ink: str
    paper: str
    faint: str


LIGHT, DARK = Theme("#222222", "#ffffff", "#8a8a8a"), Theme("#e6e6e6", "#16181c", "#8f959e")


def empty(size: tuple[float, float], theme: Theme) -> Figure:
    """An empty picture of a size in inches. Raises CostModelError where the extra `plot` is missing."""
    return figure_class()(figsize=size, dpi=150, facecolor=theme.paper, layout="constrained")


CHARACTERS = 10.5
"""Of a title, for each inch of a picture's width."""


def titled(title: str, width: float) -> str:
    """A title as a picture so many inches wide has it: each of its lines over as many as it needs."""
    return literal("\n".join(part for line in title.split("\n") for part in wrap(line, int(CHARACTERS * width))))


def canvas(size: tuple[float, float], theme: Theme, title: str, above: float = 6) -> tuple[Figure, Axes]:
    """An empty picture with a title, so many points above one pair of axes. Raises CostModelError as `empty`."""
    figure = empty(size, theme)
    axes = figure.add_subplot(facecolor=theme.paper)
    axes.set_title(titled(title, size[0]), color=theme.ink, size=10.5, loc="left", pad=above)
    axes.tick_params(which="both", colors=theme.ink)
    for along in (axes.xaxis, axes.yaxis):
        along.set_major_formatter(lambda value, _: f"{value:,g}" if abs(value) < 1e6 else f"{value:,.0f}")
    for side in axes.spines:
        axes.spines[side].set_color(theme.faint)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def literal(text: str) -> str:
    """A text that Matplotlib draws as it is: a name with two dollar signs is no formula."""
    return text.replace("$", r"\$")


MOST_TICKS = 12
WIDE = 24
"""Values whose largest is more times their smallest are drawn on a logarithmic axis."""
NAMES = {
    "batch": "batch [samples]",
    "seq": "sequence length [tokens]",
    "target_seq": "target length [tokens]",
    "past": "tokens in the cache",
    "image": "image side [pixels]",
    "layers": "layers",
    "width": "width [features]",
    "on": "machine",
}


WORDS = {
    "params": "parameters",
    "trainable_params": "parameters that are trained",
    "active_params": "parameters that a token meets",
    "flops": "contraction FLOPs",
    "pointwise_flops": "pointwise FLOPs",
    "memory.peak": "peak memory",
    "memory": "memory",
    "traffic": "traffic",
    "kv_bytes_per_token": "cache of a token",
    "collectives.bytes": "tensors of collectives",
    "collectives.wire_bytes": "sent to other ranks",
    "seconds": "time of a step",
    "forward_seconds": "time of forward",
    "backward_seconds": "time of backward",
    "update_seconds": "time of the update",
    "samples_per_second": "rate",
    "tokens_per_second": "rate",
    "mfu": "model FLOPs utilisation",
    "hfu": "hardware FLOPs utilisation",
    "energy": "energy of a step",
    "money": "price of a step",
}
"""Of quantities, or of all whose names begin so."""


def in_words(quantity: str) -> str:
    """A quantity as an axis names it: "peak memory", "contraction FLOPs, forward"; other names as they are."""
    group, _, part = quantity.partition(".")
    words = WORDS.get(quantity) or WORDS.get(group, quantity)
    return f"{words}, {part}" if part and quantity not in WORDS and group in WORDS else words


def scale_of(quantity: str, most: float) -> tuple[float, str]:
    """The unit in which a quantity of this size is drawn, and what to write at its axis."""
    group, words = quantity.partition(".")[0], in_words(quantity)
    if UNITS.get(group) == "bytes":
        size, name = binary_unit(int(most))
        return size, f"{words} [{name}]"
    if group not in UNITS:
        return 1, NAMES.get(quantity, quantity.replace("_", " "))
    if UNITS[group] == "s" and 0 < most < 1:
        size, name = next((step for step in ((1e-3, "ms"), (1e-6, "µs")) if most >= step[0]), (1e-9, "ns"))
        return size, f"{words} [{name}]"
    if group in TIMES:
        return 1, f"{words} [{UNITS[group]}]"
    name = (show_flops if "flops" in group else show_count)(int(most)).partition(" ")[2]
    prefix = "" if name in ("", "FLOP") else name[0]
    unit = f"{prefix}FLOP" if "flops" in group else prefix
    return 1000 ** " kMGTPEZYRQ".index(prefix or " "), f"{words} [{unit}]" if unit else words


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
    getattr(axes, f"set_{along}label")(literal(text), color=theme.ink)


def written(value: Any, most: int = 18) -> str:
    """A label of an axis, each of its lines of at most so many characters."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "\n".join(literal(shortened(line, most)) for line in str(value).split("\n"))
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


COMMON = (16, 24, 40, 80)
"""GiB of devices that many have: budgets that are drawn where none is asked for."""


class Budgets(NamedTuple):
    """Budgets to draw. explicit: they were asked for; else they are common ones, drawn where they matter."""

    amounts: Sequence[Budget] = ()
    explicit: bool = False

    @classmethod
    def of(cls, memory: Any, reserve: int = 0) -> Budgets:
        """Amounts of memory, one or several, less a reserve [bytes]; the common ones for None. Raises SettingError."""
        texts = [f"{size} GiB" for size in COMMON] if memory is None else memory
        amounts = [read_budget(text) for text in (texts if isinstance(texts, list | tuple) else [texts])]
        less = f" less {show_bytes(reserve)}" if reserve else ""
        left = [Budget(amount.bytes - reserve, f"{show_bytes(amount.bytes)}{less}") for amount in amounts]
        return cls(left, memory is not None)

    def up_to(self, most: float) -> Budgets:
        """Those that are drawn where what they are held against is so high."""
        return self if self.explicit else Budgets([budget for budget in self.amounts if budget.bytes <= most])

    def highest(self, tallest: float) -> float:
        """The highest of them and of what is so tall."""
        return max([tallest, *(budget.bytes for budget in self.amounts)])

    def draw(self, axes: Axes, unit: float, theme: Theme) -> None:
        """A line across at each, named above its left end; common ones are thin."""
        box = {"facecolor": theme.paper, "alpha": 0.8, "linewidth": 0, "pad": 1.5}
        width, style, size = (1.4, "-", None) if self.explicit else (0.8, (0, (1, 2)), 8.5)
        for budget in self.amounts:
            height = budget.bytes / unit
            axes.axhline(height, color=theme.ink, linewidth=width, linestyle=style)
            text = f"budget {budget.reading}" if self.explicit else budget.reading
            axes.annotate(text, (0.01, height), (0, 3), xycoords=axes.get_yaxis_transform(), textcoords="offset points",
                          va="bottom", color=theme.ink, bbox=box, size=size)  # fmt: skip


class Box(NamedTuple):
    """A rectangle in pixels, y upward."""

    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: Box) -> bool:
        """Whether the two share any area."""
        return (
            self.left < other.right and other.left < self.right and self.bottom < other.top and other.bottom < self.top
        )

    def within(self, other: Box) -> bool:
        """Whether it lies wholly inside another."""
        return (
            other.left <= self.left
            and other.bottom <= self.bottom
            and self.right <= other.right
            and self.top <= other.top
        )

    def grown(self, by: float) -> Box:
        """Larger on all sides."""
        return Box(self.left - by, self.bottom - by, self.right + by, self.top + by)


DISTANCES = (6.0, 16.0, 30.0, 48.0, 70.0)
DIRECTIONS = ((1, 0), (0, 1), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))


def around(x: float, y: float, radius: float) -> Box:
    """A dot's box."""
    return Box(x - radius, y - radius, x + radius, y + radius)


def free_places(
    dots: Sequence[Box], sizes: Sequence[tuple[float, float]], taken: Iterable[Box], bounds: Box
) -> list[Box | None]:
    """A place for the name of each dot, nearest first; None where there is no room.

    sizes: (width, height) of the first names, in order of importance; dots may be more than names. taken: what else
    must not be covered.
    """
    occupied = [*dots, *taken]
    places: list[Box | None] = []
    for dot, size in zip(dots, sizes, strict=False):
        free = next(
            (
                box
                for box in _candidates(dot, *size)
                if box.within(bounds) and not any(box.grown(1.5).meets(other) for other in occupied)
            ),
            None,
        )
        places.append(free)
        if free is not None:
            occupied.append(free)
    return places


Place = tuple[float, float]


def write_beside(
    axes: Axes, names: Sequence[tuple[str, Place]], taken: Iterable[Place], *, radius: float, ink: str, size: float
) -> None:
    """Write names beside their places on the axes, the first ones first, as far as there is room.

    taken: other places to keep clear of, such as dots and points of a line. radius: of a dot [pixels].
    """
    figure: Any = axes.figure
    figure.draw_without_rendering()  # so that places are those of the layout

    def pixels(place: Place) -> Place:
        x, y = axes.transData.transform(place)
        return float(x), float(y)

    texts = [axes.text(0, 0, name, color=ink, size=size, ha="left", va="bottom") for name, _ in names]
    sizes = [(box.width, box.height) for box in (text.get_window_extent() for text in texts)]
    dots = [around(*pixels(place), radius) for _, place in names]
    others = [around(*pixels(place), radius / 2.5) for place in taken]
    bounds = Box(axes.bbox.x0, axes.bbox.y0, axes.bbox.x1, axes.bbox.y1)
    for text, box in zip(texts, free_places(dots, sizes, others, bounds), strict=True):
        if box is None:
            text.remove()
        else:
            x, y = axes.transData.inverted().transform((box.left, box.bottom))
            text.set_position((float(x), float(y)))


def between(places: Sequence[Place], steps: int) -> list[Place]:
    """Points of the line that joins places in their order, its ends among them."""
    return [
        (a + (c - a) * n / steps, b + (d - b) * n / steps)
        for (a, b), (c, d) in pairwise(places)
        for n in range(steps + 1)
    ]


def _candidates(dot: Box, width: float, height: float) -> Iterator[Box]:
    x, y = (dot.left + dot.right) / 2, (dot.bottom + dot.top) / 2
    radius = (dot.right - dot.left) / 2
    for distance in DISTANCES:
        for across, up in DIRECTIONS:
            reach = radius + distance * (0.7 if across and up else 1.0)
            left = x + across * reach - (width / 2 if not across else width if across < 0 else 0)
            bottom = y + up * reach - (height / 2 if not up else height if up < 0 else 0)
            yield Box(left, bottom, left + width, bottom + height)
