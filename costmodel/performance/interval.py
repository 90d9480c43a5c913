"""How far a time may be off: each constant of the laws at both ends of its range, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from math import exp, log, sqrt
from typing import TYPE_CHECKING, NamedTuple

from costmodel.performance.constants import Constant, Constants, constant, typical

if TYPE_CHECKING:
    from costmodel.hardware.machine import Machine


class Effect(NamedTuple):
    """What one constant does: seconds at the end of its range that is faster, and at the slower one."""

    name: str
    constant: Constant
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
    effects: tuple[Effect, ...]


def interval(
    time: Callable[[Constants], float],
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

    least: a bound that no constant can break, such as the datasheet's. known: constants without a range, since they
    were measured. at: the constants in the middle, typical ones unless given.
    """
    middle = at or typical(machine)
    seconds = time(middle)
    if not seconds > 0:
        return Interval(seconds, seconds, seconds, ())
    effects = []
    for name in {field.name for field in fields(Constants)} - set(known):
        of = constant(name, machine)
        ends = [time(middle.changed(**{name: value})) for value in (of.low, of.high)]
        if ends != [seconds, seconds]:
            effects.append(Effect(name, of, min(*ends, seconds), max(*ends, seconds)))
    faster = sqrt(sum(log(seconds / effect.low) ** 2 for effect in effects))
    slower = sqrt(sum(log(effect.high / seconds) ** 2 for effect in effects))
    widest = tuple(sorted(effects, key=lambda effect: (-effect.width, effect.name)))
    return Interval(max(least, seconds * exp(-faster)), seconds, seconds * exp(slower), widest)
