"""Constants of one machine from measured steps: one number if one step was measured, more if there are more."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from math import exp, log
from typing import Any, NamedTuple

from costmodel.cost.prediction import Prediction, predict
from costmodel.display.answer import Answer
from costmodel.display.sheet import Sheet
from costmodel.display.table import Table
from costmodel.display.units import NUMBER, read_amount, show_seconds
from costmodel.errors import CostModelError, SettingError, shown
from costmodel.hardware.catalogue import load_machine
from costmodel.hardware.machine import Machine
from costmodel.performance.calibration import Calibration
from costmodel.performance.constants import UNITS, Constants, constant, typical
from costmodel.performance.stacks import Stack, stack_named
from costmodel.performance.time import Time, time_on

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
NOISE = 0.03
"""Of a measured step, relative: what rows are allowed to differ by before a constant leaves its range for them."""
ROUNDS = 8
MOST_ANCHORS = 6
"""Measured steps that a range is relative to, at most."""


class MeasuredStep(NamedTuple):
    """A step as it was measured. row: the text that says so."""

    row: str
    prediction: Prediction
    stack: Stack
    seconds: float


def measured_step(row: str) -> MeasuredStep:
    """A step from text such as "gpt2-small batch=32 seq=512 stack=compiled: 0.213 s", or "...: 1,210 samples/s".

    Settings are those of `predict`. Raises CostModelError.
    """
    question, colon, result = row.rpartition(":")
    words = question.split()
    if not colon or not words:
        raise SettingError(f"{shown(row)} is no measured step: use text such as 'gpt2-small batch=32 seq=512: 0.213 s'")
    settings: dict[str, Any] = {}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals:
            raise SettingError(f"measured {shown(row)}: {shown(word)} is no setting: use one such as batch=32")
        settings[name] = _value(value)
    stack = stack_named(str(settings.pop("stack", "eager")))
    try:
        prediction = predict(words[0], **settings)
    except CostModelError as error:
        raise SettingError(f"measured {shown(row)}: {error}") from None
    return MeasuredStep(row, prediction, stack, _seconds(result, prediction, row))


def _value(text: str) -> Any:
    if text.isdecimal():
        return int(text)
    if found := re.fullmatch(r"(\d+)x(\d+)", text):
        return int(found[1]), int(found[2])
    return tuple(text.split(",")) if "," in text else text


def _seconds(text: str, prediction: Prediction, row: str) -> float:
    """Seconds of a step from a time, or from samples or tokens a second."""
    rate = re.fullmatch(rf"({NUMBER})(samples|images|tokens)/s", text.replace(",", "").replace(" ", ""))
    if rate is None:
        return read_amount(text.strip(), f"measured {shown(row)}: time", "s")
    samples = prediction.batch_shape.batch * prediction.settings.accumulate
    if rate[2] == "tokens":
        samples *= prediction.batch_shape.seq or 1
    if not float(rate[1]):
        raise SettingError(f"measured {shown(row)}: {shown(text)} is no rate above 0")
    return samples / float(rate[1])


@dataclass(frozen=True, repr=False)
class Fit(Answer):
    """Constants that measured steps gave, and how well each step is predicted before and after."""

    calibration: Calibration
    steps: tuple[MeasuredStep, ...]
    before: tuple[float, ...]
    after: tuple[Time, ...]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the calibration to a file that `Prediction.on` takes. Raises CostModelError."""
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(self.calibration.dump())
        except OSError as error:
            raise CostModelError(f"cannot write {shown(str(path))}: {error.strerror or error}") from None

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
        return Sheet([], tables, notes=[f"{name}: {UNITS[name]}" for name in self.calibration.constants])


def _off(seconds: float, step: MeasuredStep) -> str:
    return f"{show_seconds(seconds)} ({seconds / step.seconds - 1:+.0%})"


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

    """
    device = load_machine(machine)
    texts = [measured] if isinstance(measured, str) else list(measured)
    steps = [measured_step(row) if isinstance(row, str) else row for row in texts]
    if not steps:
        raise SettingError("nothing was measured: give one step or more")
    times = [time_on(step.prediction, device, stack=step.stack) for step in steps]
    names = _one(times) if len(steps) < FEW else _effective(times, device)
    found = _fitted(steps, times, device, names)
    calibration = Calibration(
        machine=device.name,
        constants={name: getattr(found, name) for name in names},
        date=date.today().isoformat(),
        software=software,
        measured=[step.row for step in steps],
    )
    after = [calibrated_time(step.prediction, calibration, step.stack) for step in steps]
    return Fit(calibration, tuple(steps), tuple(time.seconds for time in times), tuple(after))


def calibrated_time(
    prediction: Prediction,
    calibration: Calibration,
    stack: Stack,
    *,
    allow_tf32: bool | None = None,
    channels_last: bool = False,
) -> Time:
    """A time with the constants of a calibration, whose range is what differs from the steps that were measured."""
    machine = load_machine(calibration.machine)
    constants, known = calibration.on(machine), tuple(calibration.constants)
    anchors = []
    for row in calibration.measured[:MOST_ANCHORS]:
        if _is_step(row):
            step = measured_step(row)
            anchors.append((Time(step.prediction, machine, step.stack, "calibrated", constants), step.seconds))
    return Time(
        prediction, machine, stack, "calibrated", constants, known, anchors, allow_tf32=allow_tf32,
        channels_last=channels_last,
    )  # fmt: skip


def _is_step(row: str) -> bool:
    """Whether a line of a calibration is a step, and not a kernel."""
    try:
        measured_step(row)
    except CostModelError:
        return False
    return True


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


def _fitted(steps: Sequence[MeasuredStep], times: Sequence[Time], machine: Machine, names: Sequence[str]) -> Constants:
    """Gauss–Newton steps on logarithms: the squares of what rows are off, and of how far constants leave their middle.

    A single number is free, and has only the rows to follow.
    """
    import numpy as np

    wanted = np.log([step.seconds for step in steps])
    middle = typical(machine)
    center = np.log([getattr(middle, name) for name in names])
    widths = np.array([_half_width(name, machine) for name in names])
    logs = center.copy()
    prior = np.diag(1 / widths) if len(names) > 1 else np.zeros((1, 1))

    def predicted(at: Any) -> Any:
        constants = middle.changed(**{name: exp(value) for name, value in zip(names, at, strict=True)})
        return np.log([time.seconds_with(constants) for time in times])

    for _ in range(ROUNDS):
        here = predicted(logs)
        slopes = np.empty((len(steps), len(names)))
        for number in range(len(names)):
            ahead = logs.copy()
            ahead[number] += 1e-3
            slopes[:, number] = (predicted(ahead) - here) / 1e-3
        matrix = np.vstack([slopes / NOISE, prior])
        right = np.concatenate([(wanted - here) / NOISE, prior @ (center - logs)])
        step = np.linalg.lstsq(matrix, right, rcond=None)[0]
        logs = np.clip(logs + np.clip(step, -0.7, 0.7), center - 3, center + 3)
    return middle.changed(**{name: exp(value) for name, value in zip(names, logs, strict=True)})


def _half_width(name: str, machine: Machine) -> float:
    """Half of a constant's range, as a logarithm."""
    of = constant(name, machine)
    return max(0.02, log(of.high / of.low) / 2)
