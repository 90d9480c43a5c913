"""The picture of a Pareto front: every cell of a sweep, and those that no other beats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from costmodel.display.figures import LIGHT, WIDE, canvas, label, scale_of, written
from costmodel.display.units import UNITS

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_DOTS = 20_000
LETTER, LINE = 9, 22
"""About what a letter of a label is wide, and a line of it high, in pixels."""


def picture(
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
