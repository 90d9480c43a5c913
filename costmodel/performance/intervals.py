"""The interval of a time that is worked out from constants, and what each of their ranges adds to its width."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import exp, log, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from costmodel.performance.constants import ConstantRange, Constants, constants_of, typical

if TYPE_CHECKING:
    from costmodel.hardware.machine import Machine


class Effect(NamedTuple):
    """What one constant does: seconds at the end of its range that is faster, and at the slower one."""

    name: str
    constant: ConstantRange
    low: float
    high: float

    @property
    def width(self) -> float:
        """Slower over faster, as a logarithm: additive where effects multiply."""
        return log(self.high / self.low) if self.low > 0 else 0.0


class Interval(NamedTuple):
    """Seconds: a range that about four of five measured runs fall into, and what makes it wide, the most first."""

    low: float
    typical: float
    high: float
    effects: tuple[Effect, ...] = ()

    @property
    def widest(self) -> tuple[Effect, ...]:
        """The three that make it widest."""
        return self.effects[:3]

    def __repr__(self) -> str:
        """What can be typed, without what makes it wide."""
        return f"Interval(low={self.low!r}, typical={self.typical!r}, high={self.high!r})"


def uncertain_constants(machine: Machine, known: Iterable[str]) -> dict[str, ConstantRange]:
    """The constants of a machine that have a range, all but those that are known."""
    without = frozenset(known)
    return {name: of for name, of in constants_of(machine).items() if name not in without}


def interval(
    time: Callable[[Constants], Any],
    machine: Machine,
    *,
    least: float = 0.0,
    known: Iterable[str] = (),
    at: Constants | None = None,
) -> Interval:
    """The interval of a time that is worked out from constants, such as the sum over all kernels of a step.

    One constant moves every kernel that it is in, so their errors do not average out; different constants are taken as
    independent, and the logarithms of their effects add up in squares. Of a time over another, measured one, constants
    that move both alike cancel.

    time: takes constants that are arrays too, and is asked once for both ends of all ranges. least: a bound that no
    constant can break, such as the datasheet's. known: constants without a range, since they were measured. at: the
    constants in the middle, typical ones unless given.
    """
    middle = at or typical(machine)
    seconds = float(time(middle))
    if not seconds > 0:
        return Interval(seconds, seconds, seconds, ())
    uncertain = uncertain_constants(machine, known)
    *ends, same = np.broadcast_to(time(middle.with_ends(uncertain)), 2 * len(uncertain) + 1).tolist()
    effects = [
        Effect(name, of, min(*pair, seconds), max(*pair, seconds))
        for (name, of), pair in zip(uncertain.items(), zip(ends[::2], ends[1::2], strict=True), strict=True)
        if pair != (same, same)
    ]
    faster = sqrt(sum(log(seconds / effect.low) ** 2 for effect in effects))
    slower = sqrt(sum(log(effect.high / seconds) ** 2 for effect in effects))
    widest = tuple(sorted(effects, key=lambda effect: (-effect.width, effect.name)))
    return Interval(max(least, seconds * exp(-faster)), seconds, seconds * exp(slower), widest)
