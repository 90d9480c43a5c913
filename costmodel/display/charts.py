"""Pictures of comparisons and of questions turned around, by matplotlib (extra `plot`), which is loaded only here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from costmodel.display.areas import COLOURS, INK, PAPER, figure_class
from costmodel.display.units import binary_unit, show_bytes, show_count, show_flops
from costmodel.errors import CostModelError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from costmodel.analysis.compare import Comparison
    from costmodel.analysis.solve import Solution
    from costmodel.cost.prediction import Prediction
    from costmodel.display.figures import Theme

POINTS = 64
"""Predictions that a picture along one axis is made of, at most."""
PASSES = {"forward": "#0072b2", "backward": "#7fc4ee", "recomputed": "#d55e00"}
LONGEST = 34


def bars(comparison: Comparison, theme: Theme) -> Figure:
    """Parameters, FLOPs by pass and memory at the peak by category, a bar for each that is compared."""
    names, found = comparison.labels, comparison.predictions
    figure = figure_class()(figsize=(12, 1.9 + 0.42 * len(names)), dpi=150, facecolor=theme.paper, layout="constrained")
    params, flops, memory = figure.subplots(1, 3, sharey=True, subplot_kw={"facecolor": theme.paper})
    _row(params, [{"": p.params} for p in found], {"": "#666666"}, show_count, "parameters", theme)
    passes = [{part: getattr(p.flops, part) for part in PASSES} for p in found]
    _row(flops, passes, PASSES, show_flops, "contraction FLOPs a step", theme)
    alive = [{k: int(v) for k, v in p.timeline.peak_step.alive._asdict().items()} for p in found]
    _row(memory, alive, COLOURS, show_bytes, "memory at the peak", theme)
    params.set_yticks(range(len(names)), [_shortened(name) for name in names], color=theme.ink)
    params.set_ylim(len(names) - 0.5, -0.5)
    return figure


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _row(
    axes: Axes, bars: Sequence[dict[str, int]], colours: dict[str, str], show: Any, title: str, theme: Theme
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


def stack(solution: Solution) -> Figure:
    """Memory at the peak by category along the knob, with the budget's line and the answer.

    Raises CostModelError for an answer about anything but the peak.
    """
    if solution.quantity != "memory.peak":
        raise CostModelError(f"only memory.peak is drawn along {solution.knob.name}, not {solution.quantity}")
    values, found = _along(solution)
    tallest = max(max(p.memory.peak for p in found), solution.target.bytes)
    unit, name = binary_unit(tallest)
    figure = figure_class()(figsize=(10, 5.2), dpi=150, facecolor=PAPER, layout="constrained")
    axes = figure.add_subplot(facecolor=PAPER)
    lines = _areas(axes, values, found, unit)
    room = (solution.target.bytes - solution.reserve) / unit
    axes.axhline(room, color=INK, linewidth=1.4)
    less = f", less {show_bytes(solution.reserve)}" if solution.reserve else ""
    _note(axes, 0.01, room, f"budget {show_bytes(solution.target.bytes)}{less}")
    if solution.answer is not None:
        axes.axvline(solution.answer, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.plot([solution.answer], [solution.value / unit], "o", color=INK)
    knob = solution.knob.name
    said = f"{knob} {solution.answer:,} fits" if solution.answer else f"no {knob} fits"
    axes.set_title(f"{solution.prediction.model.title}: {said}", color=INK, size=11, loc="left")
    axes.legend(*lines, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, labelcolor=INK)
    axes.set_xlim(values[0], values[-1])
    axes.locator_params("x", integer=True)
    axes.set_ylim(0, 1.06 * tallest / unit)
    axes.set_xlabel(AXES.get(solution.knob.name, solution.knob.name), color=INK)
    axes.set_ylabel(f"memory at the peak [{name}]", color=INK)
    axes.tick_params(colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


AXES = {
    "batch": "batch [samples]",
    "seq": "sequence length [tokens]",
    "target_seq": "target length [tokens]",
    "image": "image side [pixels]",
    "layers": "layers",
    "width": "width [features]",
}


def _note(axes: Axes, x: float, y: float, text: str) -> None:
    along, box = axes.get_yaxis_transform(), {"facecolor": PAPER, "alpha": 0.8, "linewidth": 0, "pad": 1.5}
    axes.annotate(text, (x, y), (0, 3), xycoords=along, textcoords="offset points",
                  va="bottom", color=INK, bbox=box)  # fmt: skip


def _along(solution: Solution) -> tuple[list[int], list[Prediction]]:
    """Values of the knob from its first to a quarter past the answer, evenly spread, and the predictions there."""
    knob = solution.knob
    end = knob.values.index(solution.past or solution.answer or knob.values[0])
    most = min(max(end + 1, 5 * end // 4 + 1, 4), len(knob.values) - 1)
    steps = min(most, POINTS - 1)
    places = sorted({most * step // steps for step in range(steps + 1)} | {max(0, end - 1), end})
    values, found = [], []
    for value in (knob.values[place] for place in places):
        try:
            prediction = knob.at(value)
            _ = prediction.memory.peak
        except CostModelError:
            continue
        values.append(value)
        found.append(prediction)
    return values, found


def _areas(axes: Axes, values: list[int], found: list[Prediction], unit: int) -> tuple[list[Any], list[str]]:
    """The legend's handles and names, from the top down."""
    alive = [p.timeline.peak_step.alive for p in found]
    lines = [line for line in COLOURS if any(getattr(a, line) for a in alive)]
    heights = [[getattr(a, line) / unit for a in alive] for line in lines]
    areas = axes.stackplot(values, heights, colors=[COLOURS[line] for line in lines], linewidth=0)
    return areas[::-1], lines[::-1]
