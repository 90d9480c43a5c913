"""The ceilings of a roofline, as measured: the fastest arithmetic by type, and the bandwidth of every level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from costmodel.roofline.calibration import Calibration
from costmodel.roofline.probes import CURVE_BYTES


@dataclass(frozen=True)
class Ceiling:
    """A bound on operations a second: `rate` flat [FLOP/s], or `rate` [bytes/s] times intensity."""

    name: str
    kind: Literal["compute", "memory"]
    rate: float

    def at(self, intensity: float) -> float:
        """The bound at an intensity [FLOP/B] in operations a second [FLOP/s]."""
        return self.rate if self.kind == "compute" else self.rate * intensity


def ceilings_of(calibration: Calibration) -> tuple[Ceiling, ...]:
    """Arithmetic by type, then bandwidth from the nearest level to memory; of a level that no probe fits into none."""
    rates = calibration.rates
    found = [Ceiling(dtype, "compute", rates.peak(dtype)) for dtype in ("float32", "float64")]
    smaller = 0
    for level, capacity in calibration.machine.caches:
        within = [size for size in CURVE_BYTES if smaller < size <= 0.8 * capacity]
        if within:
            found.append(Ceiling(level, "memory", max(_streamed(calibration, size) for size in within)))
        smaller = capacity
    return (*found, Ceiling("memory", "memory", rates.memory_bandwidth))


def _streamed(calibration: Calibration, size: int) -> float:
    """What an addition streams out of a working set [bytes/s], without what its call costs."""
    rates = calibration.rates
    took = calibration.seconds[f"curve add {size} float32"]
    spent = max(took - rates.call("add", "float32"), 0.05 * took)
    return rates.bandwidth(size) * took / spent
