"""Constants that explain measurements, each drawn to its typical value as strongly as its range is narrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log
from typing import TYPE_CHECKING, Any

from costmodel.performance.constants import Constants, constant, typical

if TYPE_CHECKING:
    from costmodel.hardware.machine import Machine

NOISE = 0.03
"""Of a measurement, relative: what it is allowed to be off by before a constant leaves its range for it."""
ROUNDS = 8
LONGEST = 0.7
FARTHEST = 3.0
"""Logarithms: of one step at most, and of the distance from the typical value."""


def drawn(
    names: Sequence[str],
    machine: Machine,
    predicted: Callable[[Constants], Sequence[float]],
    wanted: Sequence[float],
) -> Constants:
    """The constants of a machine, those of `names` changed so that what is predicted comes near what is wanted.

    predicted, wanted: logarithms of seconds. Gauss-Newton steps on logarithms of constants lessen the squares of what
    measurements are off, over `NOISE`, and of how far constants leave their middle, over half their range. A single
    constant has only the measurements to follow.
    """
    import numpy as np

    middle = typical(machine)
    center = np.log([getattr(middle, name) for name in names])
    widths = np.array([_half_width(name, machine) for name in names])
    prior = np.diag(1 / widths) if len(names) > 1 else np.zeros((1, 1))
    goal = np.asarray(wanted)

    def constants_at(at: Any) -> Constants:
        return middle.changed(**{name: exp(value) for name, value in zip(names, at, strict=True)})

    def values(at: Any) -> Any:
        return np.asarray(predicted(constants_at(at)))

    logs = center.copy()
    for _ in range(ROUNDS):
        here = values(logs)
        slopes = np.empty((len(goal), len(names)))
        for number in range(len(names)):
            ahead = logs.copy()
            ahead[number] += 1e-3
            slopes[:, number] = (values(ahead) - here) / 1e-3
        matrix = np.vstack([slopes / NOISE, prior])
        right = np.concatenate([(goal - here) / NOISE, prior @ (center - logs)])
        step = np.linalg.lstsq(matrix, right, rcond=None)[0]
        logs = np.clip(logs + np.clip(step, -LONGEST, LONGEST), center - FARTHEST, center + FARTHEST)
    return constants_at(logs)


def _half_width(name: str, machine: Machine) -> float:
    """Half of a constant's range, as a logarithm."""
    of = constant(name, machine)
    return max(0.02, log(of.high / of.low) / 2)
