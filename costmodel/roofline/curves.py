"""Curves between measured points, and times of computing and loading that overlap."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import exp, log


class LogTable:
    """Interpolation between points by their logarithms, of the logarithms of values; constant beyond the ends.

    growing: in proportion to the point beyond the last, as the time of a row is to its length. mixing: of the values
    themselves, of what is partly as at one point and partly as at the next.
    """

    def __init__(
        self, points: Sequence[float], values: Sequence[float], *, growing: bool = False, mixing: bool = False
    ) -> None:
        self.points = [log(max(p, 1e-30)) for p in points]
        self.values = [*values] if mixing else [log(max(v, 1e-30)) for v in values]
        self.growing, self.mixing = growing, mixing

    def __call__(self, point: float) -> float:
        """The value at a point."""
        value = self._between(log(max(point, 1e-30))) if point != float("inf") else self.values[-1]
        return value if self.mixing else exp(value)

    def _between(self, x: float) -> float:
        at = bisect_left(self.points, x)
        if at == 0:
            return self.values[0]
        if at == len(self.points):
            return self.values[-1] + (x - self.points[-1]) * self.growing
        low, high = self.points[at - 1], self.points[at]
        share = (x - low) / (high - low)
        return self.values[at - 1] * (1 - share) + self.values[at] * share

    def left_out(self) -> list[float]:
        """Leave-one-out: the relative error of each inner value when interpolated from its neighbours."""
        errors = []
        for at in range(1, len(self.points) - 1):
            share = (self.points[at] - self.points[at - 1]) / (self.points[at + 1] - self.points[at - 1])
            between = self.values[at - 1] * (1 - share) + self.values[at + 1] * share
            errors.append(abs(exp(between - self.values[at]) - 1))
        return errors


def lowest(values: Sequence[float]) -> list[float]:
    """The highest that never falls and is nowhere above: what disturbs a measurement only ever adds to it."""
    return [min(values[at:]) for at in range(len(values))]


def rising(values: Sequence[float]) -> list[float]:
    """The closest that never falls, by least squares: values that fall are pooled (Barlow et al. 1972)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        total, count = value, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            more, number = pools.pop()
            total, count = total + more, count + number
        pools.append((total, count))
    return [total / count for total, count in pools for _ in range(count)]


def joined(compute: float, memory: float, power: float) -> float:
    """Time of compute and memory that overlap in part, the more the greater the exponent [s]."""
    longest = max(compute, memory)
    return longest * ((compute / longest) ** power + (memory / longest) ** power) ** (1 / power) if longest else 0.0


def behind(compute: float, rows: float, memory: float, power: float) -> float:
    """Time of a loop of many rows [s]: starting one hides what memory takes longer than computing does."""
    return compute + max(rows, joined(compute, memory, power) - compute)


def parted(whole: float, compute: float, power: float) -> float:
    """The memory time with which `joined` gives `whole` [s]."""
    return whole * (1 - (compute / whole) ** power) ** (1 / power) if whole > compute else 0.0
