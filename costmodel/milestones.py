"""The memory timeline as text: the steps that matter, and what is alive at each."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

from costmodel.report import WIDTH, printable
from costmodel.table import Table
from costmodel.units import show_bytes, show_exact

if TYPE_CHECKING:
    from costmodel.memory import Step, Timeline

FOLDED = "Rounds that are alike stand as one step, at the one of them that has most alive."


def milestones(timeline: Timeline) -> list[tuple[str, int]]:
    """The steps that matter, in order, each with a name."""
    steps = timeline.steps
    phases: dict[str, list[int]] = {}
    for now, step in enumerate(steps):
        phases.setdefault(step.phase, []).append(now)

    def highest(of: list[int]) -> int:
        return max(of, key=lambda now: int(steps[now].alive.total))

    named = {highest(of): f"most in {phase}" for phase, of in phases.items()}
    named |= {of[-1]: f"end of {phase}" for phase, of in phases.items() if phase in ("forward", "backward")}
    named[0] = "start"
    named[steps.index(timeline.peak_step)] = f"peak, in {timeline.peak_step.phase}"
    return [(name, now) for now, name in sorted(named.items())]


def text(timeline: Timeline) -> str:
    """A table of what is alive at the steps that matter, without a final newline."""
    found = [(name, timeline.steps[now]) for name, now in milestones(timeline)]
    lines = [line for line in type(timeline.standing)._fields if any(getattr(s.alive, line) for _, s in found)]
    rows = [_row(name, step, lines) for name, step in found]
    table = Table(("Step", "layer", *lines, "total"), rows, words=frozenset({0, 1}))
    peak = timeline.peak_step
    said = f"Peak: {show_bytes(timeline.peak)} ({show_exact(timeline.peak)} bytes), in {peak.phase} of {place(peak)}"
    return "\n\n".join([said, table.text(), *([fill(FOLDED, WIDTH)] if timeline.folds else [])])


def place(step: Step) -> str:
    """Its layer, and the rounds of the repeated blocks around it."""
    return printable(f"{step.layer} (round {step.rounds})" if step.rounds else step.layer)


def _row(name: str, step: Step, lines: list[str]) -> list[str]:
    sizes = [getattr(step.alive, line) for line in lines]
    shown = [show_bytes(size) if size else "-" for size in sizes]
    return [name, place(step), *shown, show_bytes(step.alive.total)]
