"""What pictures of a check show: a dot for each distinct program, with what it stands for."""

from __future__ import annotations

from dataclasses import dataclass
from math import log10

from costmodel.display.table import printable
from costmodel.display.units import show_bytes, show_count, show_rate, show_seconds
from costmodel.roofline.classification import BOUNDS, Bound
from costmodel.roofline.findings import Check, Finding

COLOURS: dict[Bound, str] = {"compute": "#3b8fd1", "memory": "#e0702a", "overhead": "#2aa876"}
"""Told apart by colour-blind readers, and read on white as on black; markers differ too, for print in grey."""
NAMED = 3
"""Layers that are named where there is no room for more."""
LEGEND = {bound: f"{bound}-bound" for bound in BOUNDS}


@dataclass(frozen=True)
class Dot:
    """Layers that run the same program. seconds and arithmetic are of one run; share: of the whole time, all of them.

    bound: as measured, or as predicted if that was not.
    """

    label: str
    layers: tuple[Finding, ...]
    share: float
    bound: Bound

    @property
    def first(self) -> Finding:
        """The one that stands for all."""
        return self.layers[0]

    @property
    def intensity(self) -> float:
        """Operations a compulsory byte [FLOP/B]."""
        return self.first.intensity

    @property
    def predicted_rate(self) -> float:
        """[FLOP/s]."""
        return self.first.arithmetic / self.first.predicted_seconds

    @property
    def measured_rate(self) -> float:
        """[FLOP/s]."""
        return self.first.flops_per_second

    @property
    def predicted_seconds(self) -> float:
        """Of one run [s]."""
        return self.first.predicted_seconds / self.first.repeat

    @property
    def measured_seconds(self) -> float:
        """Of one run [s]."""
        return self.first.measured_seconds / self.first.repeat


def dots_of(check: Check) -> list[Dot]:
    """From the one that takes longest."""
    groups: dict[int, list[Finding]] = {}
    for layer in check.layers:
        groups.setdefault(layer.program, []).append(layer)
    found = [
        Dot(_label(layers), tuple(layers), sum(map(check.share, layers)), _bound(layers[0]))
        for layers in groups.values()
    ]
    return sorted(found, key=lambda dot: -dot.share)


def drawn_dots(check: Check) -> list[Dot]:
    """Those that a roofline can show: moving alone has no rate of arithmetic."""
    return [dot for dot in dots_of(check) if dot.first.arithmetic and dot.first.compulsory_bytes]


def intensity_title(check: Check) -> str:
    """Of the axis, with how much of the time is of layers that have no place on it."""
    title = "operations a byte of inputs, weights and outputs [FLOP/B]"
    drawn = {id(layer) for dot in drawn_dots(check) for layer in dot.layers}
    left = [layer for layer in check.layers if id(layer) not in drawn]
    if not left:
        return title
    share = sum(map(check.share, left))
    more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
    names = ", ".join(map(name_of, left[:NAMED]))
    return f"{title}\nnot shown, as they only move: {names}{more} ({share:.1%} of the time)"


def name_of(layer: Finding) -> str:
    """With its pass, if that is not forward."""
    return printable(layer.name) + ("" if layer.phase == "forward" else f" ({layer.phase})")


def _label(layers: list[Finding]) -> str:
    more = len(layers) - 1
    return name_of(layers[0]) + (f" +{more}" if more else "")


def _bound(layer: Finding) -> Bound:
    return (layer.measured_class or layer.predicted_class).bound


def spread(values: list[float], room: float = 0.12) -> tuple[float, float]:
    """Ends of a logarithmic axis that has all values, with room at both ends."""
    low, high = log10(min(values)), log10(max(values))
    extra = room * (high - low) + 0.1
    return 10 ** (low - extra), 10 ** (high + extra)


def described(dot: Dot, check: Check) -> list[str]:
    """All that there is to say of a dot, a line each."""
    layer = dot.first
    low, high = (end / layer.repeat for end in layer.measured_interval)
    lines = [
        dot.label,
        f"{layer.kind}, {sum(each.repeat for each in dot.layers)} runs, {dot.share:.1%} of the time",
        f"measured {show_seconds(dot.measured_seconds)} ({show_seconds(low)} to {show_seconds(high)})",
        f"predicted {show_seconds(dot.predicted_seconds)} ({layer.error:+.1%}), most of it {layer.host.dominant}",
        f"{show_count(layer.arithmetic // layer.repeat)}FLOP, {show_bytes(layer.compulsory_bytes // layer.repeat)}"
        f" compulsory, {show_bytes(layer.numpy_bytes // layer.repeat)} by NumPy",
    ]
    if layer.arithmetic:
        of_peak = layer.flops_per_second / check.peak
        lines.append(f"{layer.intensity:.2f} FLOP/B, {show_rate(dot.measured_rate)}FLOP/s, {of_peak:.1%} of peak")
    measured = layer.measured_class
    lines.append(
        f"bound by: model {layer.predicted_class}, measured {measured or 'not asked'}, textbook {layer.textbook_class}"
    )
    return lines
