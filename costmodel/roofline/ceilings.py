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
    """Arithmetic by type, then bandwidth from the nearest level to memory, without levels no faster than the next."""
    rates = calibration.rates
    levels = [Ceiling("memory", "memory", rates.memory_bandwidth)]
    capacities = [0, *(capacity for _, capacity in calibration.machine.caches)]
    for (level, capacity), smaller in reversed([*zip(calibration.machine.caches, capacities, strict=False)]):
        within = [size for size in CURVE_BYTES if smaller < size <= 0.8 * capacity]
        fastest = max((_streamed(calibration, size) for size in within), default=0.0)
        if fastest >= 0.999 * levels[0].rate:
            levels.insert(0, Ceiling(level, "memory", fastest))
    return (*(Ceiling(dtype, "compute", rates.peak(dtype)) for dtype in ("float32", "float64")), *levels)


def _streamed(calibration: Calibration, size: int) -> float:
    """What an addition streams out of a working set [bytes/s], without what its call costs."""
    rates = calibration.rates
    took = calibration.seconds[f"curve add {size} float32"]
    spent = max(took - rates.call("add", "float32"), 0.05 * took)
    return rates.bandwidth(size) * took / spent
