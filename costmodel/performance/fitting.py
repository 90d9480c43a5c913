"""Constants of one machine from measured steps: one number if one step was measured, more if there are more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from math import exp, log
from typing import TYPE_CHECKING, Any

from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table
from costmodel.display.units import show_change, show_seconds
from costmodel.errors import SettingError
from costmodel.hardware.catalogue import load_machine
from costmodel.hardware.machine import Machine
from costmodel.performance.calibration import Calibration, MeasuredStep, measured_step
from costmodel.performance.constants import UNITS, Constants, constant, typical
from costmodel.performance.time import Time, time_on

if TYPE_CHECKING:
    from costmodel.hardware.machine import Machine


FITTED = (
    "conditions",
    "bandwidth_share",
    "product_share",
    "vector_share",
    "convolution_share",
    "attention_share",
    "eager_seconds",
    "compiled_seconds",
)
"""Constants that measured steps can tell apart; those that do nothing to any of them are left alone."""
FEW = 3
"""From fewer rows than this a single number is taken: how much longer all kernels take."""


@dataclass(frozen=True, repr=False)
class Fit(Answer):
    """Constants that measured steps gave, and how well each step is predicted before and after."""

    calibration: Calibration
    steps: tuple[MeasuredStep, ...]
    before: tuple[float, ...]
    after: tuple[Time, ...]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the calibration to a file that `Prediction.on` takes. Raises CostModelError."""
        self.calibration.save(path)

    def to_dict(self) -> dict[str, Any]:
        """Plain data [s]."""
        return {
            "calibration": self.calibration.model_dump(mode="json"),
            "steps": [
                {"row": step.row, "measured": step.seconds, "before": before, "after": after.seconds}
                for step, before, after in zip(self.steps, self.before, self.after, strict=True)
            ],
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row for each step."""
        return self.to_dict()["steps"]

    @property
    def warnings(self) -> list[str]:
        """Steps that no run on the machine can have been, which the fit cannot meet."""
        said = []
        for step, after in zip(self.steps, self.after, strict=True):
            least = after.ceiling_seconds
            if step.seconds < least:
                policy = step.prediction.settings.policy.name
                said.append(
                    f"{step.row} is faster than the datasheet allows in {policy} ({show_seconds(least)}): it ran in "
                    "another type, or on another machine; if fp32 ran in tf32, say allow_tf32=true in the row"
                )
        return said

    def sheet(self) -> Sheet:
        """What was found, and what it does to each step."""
        machine = self.calibration.machine
        constants = [
            (name, f"{value:.3g}", f"{constant(name, load_machine(machine)).typical:.3g}")
            for name, value in self.calibration.constants.items()
        ]
        rows = [
            (step.row, show_seconds(step.seconds), _off(before, step), _off(after.seconds, step))
            for step, before, after in zip(self.steps, self.before, self.after, strict=True)
        ]
        tables = [
            Table((f"Constants of {machine}", "fitted", "typical"), constants),
            Table(("Measured step", "measured", "before", "after"), rows),
        ]
        return Sheet(
            [], tables, warnings=self.warnings, notes=[f"{name}: {UNITS[name]}" for name in self.calibration.constants]
        )


def _off(seconds: float, step: MeasuredStep) -> str:
    return f"{show_seconds(seconds)} ({show_change(seconds / step.seconds - 1)})"


def fit_machine(machine: str | Machine, measured: Iterable[str | MeasuredStep], *, software: str = "") -> Fit:
    """The constants of a machine that measured steps ask for; see `fitting`.

    Fewer than three steps give one number: how much longer kernels take than typical (`conditions`), or if the device
    waits for it, how long the host takes to start one. More give several constants, each drawn to its typical value as
    strongly as its range is narrow.

    Args:
        machine: a ready machine's name, or a `Machine`.
        measured: steps as `measured_step` reads them; one or more.
        software: what ran, for the file.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> found = cm.fit_machine("h100-sxm", ["gpt2-small batch=32 seq=512: 0.4 s"])
        >>> type(found).__name__
        'Fit'

    """
    device = load_machine(machine)
    texts = [measured] if isinstance(measured, str) else list(measured)
    steps = [measured_step(row) if isinstance(row, str) else row for row in texts]
    if not steps:
        raise SettingError("nothing was measured: give one step or more")
    times = [_time_of(step, device) for step in steps]
    names = _one(times) if len(steps) < FEW else _effective(times, device)
    wanted = [log(step.seconds) for step in steps]
    found = drawn(names, device, lambda c: [log(time.seconds_with(c)) for time in times], wanted)
    calibration = Calibration(
        machine=device.name,
        constants={name: getattr(found, name) for name in names},
        date=date.today().isoformat(),
        software=software,
        measured=[step.row for step in steps],
    )
    after = [_time_of(step, calibration) for step in steps]
    return Fit(calibration, tuple(steps), tuple(time.seconds for time in times), tuple(after))


def _time_of(step: MeasuredStep, machine: Machine | Calibration) -> Time:
    how: dict[str, Any] = {"allow_tf32": step.allow_tf32, "channels_last": step.channels_last}
    return time_on(step.prediction, machine, stack=step.stack, **how)


def _one(times: Sequence[Time]) -> tuple[str]:
    """The number that one step tells: how long kernels take, or how long the host takes to start them."""
    launches = {time.stack.launch for time in times if time.bound == "host"}
    waiting = [launch for launch in launches if isinstance(launch, str)]
    return (waiting[0],) if len(waiting) == 1 and all(t.bound == "host" for t in times) else ("conditions",)


def _effective(times: Sequence[Time], machine: Machine) -> tuple[str, ...]:
    """Constants that change a step by a thousandth or more within their range."""
    middle = typical(machine)
    found = []
    for name in FITTED:
        of = constant(name, machine)
        ends = [[t.seconds_with(middle.changed(**{name: end})) for end in (of.low, of.high)] for t in times]
        if any(max(pair) > 1.001 * min(pair) for pair in ends):
            found.append(name)
    return tuple(found)


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
