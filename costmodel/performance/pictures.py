"""The picture of a time: kernels on the machine's roofline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodel.display.rooflines import Ceiling, Chart, Dot, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from costmodel.performance.time import KernelTime, Time


def roofline(t: Time, dark: bool = False) -> Figure:
    """Every kernel that computes: its rate over its intensity, as large as its share of the device's time."""
    return picture(chart_of(t), "roofline", dark)


def chart_of(t: Time) -> Chart:
    """What is drawn: kernels of one layer and name together."""
    ceilings = [Ceiling("products", "compute", t.peak)]
    if (vector := t.machine.vector_peak()) < t.peak:
        ceilings.append(Ceiling("vectors", "compute", vector))
    ceilings.append(Ceiling("memory", "memory", t.machine.bandwidth))
    drawn = [kernel for kernel in t.kernels if kernel.intensity and kernel.seconds]
    dots = sorted(map(_dot, drawn), key=lambda dot: -dot.share)
    still = sum(kernel.share for kernel in t.kernels if not kernel.intensity)
    left_out = f"kernels that only move take {still:.0%} of the time" if still else ""
    title = f"{t.prediction.model.title} on {t.machine.name}"
    return Chart(title, tuple(ceilings), tuple(dots), "", left_out, measured=False)


def _dot(kernel: KernelTime) -> Dot:
    rate = kernel.flops / kernel.seconds
    label = f"{kernel.layer}, {kernel.kernel}"
    seconds = kernel.seconds
    return Dot(
        label, kernel.bound, kernel.share, kernel.intensity, rate, rate, seconds, seconds, seconds, seconds, 0.0,
        (label,),
    )  # fmt: skip
