"""Where names stand beside dots so that none covers another, a dot or the edge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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


def placed(
    dots: Sequence[Box], sizes: Sequence[tuple[float, float]], taken: Iterable[Box], bounds: Box
) -> list[Box | None]:
    """A place for the name of each dot, nearest first; None where there is no room.

    sizes: (width, height) of the first names, in order of importance; dots may be more than names. taken: what else
    must not be covered.
    """
    occupied = [*dots, *taken]
    found: list[Box | None] = []
    for dot, size in zip(dots, sizes, strict=False):
        free = next(
            (
                box
                for box in _candidates(dot, *size)
                if box.within(bounds) and not any(box.grown(1.5).meets(other) for other in occupied)
            ),
            None,
        )
        found.append(free)
        if free is not None:
            occupied.append(free)
    return found


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
    for text, box in zip(texts, placed(dots, sizes, others, bounds), strict=True):
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
