"""Constants that were measured on a machine: a readable file, with what they are from; measured steps, a line each."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator

from costmodel.cost.costs import Costs
from costmodel.display.units import read_amount
from costmodel.documents.arguments import Positive, fits, typed
from costmodel.documents.description import ALL, Description, Listed
from costmodel.documents.document import parse
from costmodel.documents.files import is_path, read_fields, shown_path, text_of, write
from costmodel.errors import CostModelError, SettingError, shown, unknown
from costmodel.hardware.machine import Machine
from costmodel.performance.constants import TABLE, Constants, typical
from costmodel.performance.jobs import read_rate
from costmodel.training.setting import from_text
from costmodel.training.stacks import Stack


def _constants(value: Any) -> dict[str, float]:
    """Positive numbers by the names of constants; here, where errors can say which."""
    if not isinstance(value, Mapping):
        raise SettingError(f"constants: {shown(value)} is not a mapping: give one such as {{'product_share': 0.84}}")
    for name, number in value.items():
        if name not in TABLE:
            raise SettingError(f"constants.{name}: {unknown('constant', name, TABLE)}")
        if not fits(number, Positive):
            raise SettingError(f"constants.{name}: {shown(number)} is no positive number, as constants of kernels are")
    return {name: float(number) for name, number in value.items()}


def _collectives(value: Any) -> dict[str, float]:
    """Positive numbers by link and group size, such as "NVLink 4 on 8"."""
    if not isinstance(value, Mapping):
        raise SettingError(f"collectives: {shown(value)} is not a mapping: give one such as {{'NVLink 4 on 8': 1.1}}")
    for name, number in value.items():
        if not isinstance(name, str) or not GROUP.fullmatch(name):
            raise SettingError(f"collectives: {shown(name)} is no link and group size: use one such as 'NVLink 4 on 8'")
        if not fits(number, Positive):
            raise SettingError(f"collectives.{name}: {shown(number)} is no positive number")
    return {name: float(number) for name, number in value.items()}


SHARES = ("link_share", "host_share", "network_share", "switch_share", "collective_conditions")
"""Constants whose range measured collectives close."""
GROUP = re.compile(r".{1,1000} on [1-9][0-9]{0,8}")
"""A link and how many devices take part in a collective over it."""


class Calibration(Description):
    """Constants of one machine, in place of those of its family, and how much longer collectives take there."""

    machine: str = Field(min_length=1, description="the machine that was measured")
    constants: Annotated[dict[str, float], BeforeValidator(_constants)] = Field(description="measured, by name")
    collectives: Annotated[dict[str, float], BeforeValidator(_collectives)] = Field(
        default_factory=dict, description="time of bytes in collectives over what is typical, by link and group size"
    )
    date: str = Field(default="", description="when, such as 2026-11-22")
    software: str = Field(default="", description="what ran, such as PyTorch 2.13, CUDA 13.0, driver 580")
    measured: Listed[str] = Field(default=ALL, strict=False, description="what was measured, a line for each")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.constants and not self.collectives:
            raise ValueError("it names no constant: give one such as {'product_share': 0.84}")
        return self

    @property
    def known(self) -> tuple[str, ...]:
        """Constants without a range: those that were measured, and where collectives were, shares of bandwidth too."""
        return (*self.constants, *(SHARES if self.collectives else ()))

    def on(self, machine: Machine) -> Constants:
        """A value for each constant: measured, or typical of the machine's family."""
        return typical(machine).changed(**self.constants)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """The calibration that a YAML or JSON file describes. Raises SpecError, with the line."""
        return read_fields(path, "calibration", lambda data: cls(**data), "machine: h100-sxm")

    def dump(self) -> str:
        """The text of a YAML file that `load` reads back."""
        from costmodel.documents.document import dump

        return dump(self._fields())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that `load` reads back, in JSON if its name says so, whole or not at all.

        Raises CostModelError.
        """
        in_json = os.fsdecode(path).lower().endswith(".json")
        write(json.dumps(self._fields(), indent=2) + "\n" if in_json else self.dump(), path)

    def _fields(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_defaults=True)


def calibration_of(machine: Any) -> Calibration | None:
    """The calibration that is given in the place of a machine, as it is or as the path of its file; None: none is."""
    if isinstance(machine, Calibration):
        return machine
    if not is_path(machine):
        return None
    where = shown_path(machine)
    data = parse(text_of(machine, where, "machine"), where, "a machine, starting with its name").data
    return Calibration.load(machine) if isinstance(data, dict) and "constants" in data else None


class MeasuredStep(NamedTuple):
    """A step as it was measured. row: the text that says so. how: allow_tf32, channels_last, as in `Prediction.on`."""

    row: str
    prediction: Costs
    stack: Stack
    seconds: float
    how: dict[str, Any]


@typed
def measured_step(row: str) -> MeasuredStep:
    """A step from text such as "gpt2-small batch=32 seq=512 stack=compiled: 0.213 s", or "...: 1,210 samples/s".

    Settings are those of `predict`, and stack, allow_tf32 and channels_last of `Prediction.on`. Raises CostModelError.
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
        if name in settings or name in ("model", "input"):
            raise SettingError(f"measured {shown(row)}: {name} is given twice: leave one out")
        settings[name] = tuple(value.split(",")) if "," in value else from_text(value)
    try:
        stack = Stack.of(settings.pop("stack", "eager"))
    except CostModelError as error:
        raise SettingError(f"measured {shown(row)}: {error}") from None
    how = {name: _truth(name, settings.pop(name), row) for name in ("allow_tf32", "channels_last") if name in settings}
    try:
        prediction = Costs.of(words[0], **settings)
    except CostModelError as error:
        raise SettingError(f"measured {shown(row)}: {error}") from None
    return MeasuredStep(row, prediction, stack, _seconds(result.strip(), prediction, row), how)


def _truth(name: str, value: Any, row: str) -> bool:
    if not isinstance(value, bool):
        raise SettingError(f"measured {shown(row)}: {name}={value} is neither true nor false")
    return value


def _seconds(text: str, prediction: Costs, row: str) -> float:
    """Seconds of a step from a time, or from samples or tokens a second of all devices."""
    if "/" not in text:
        return read_amount(text, f"measured {shown(row)}: time", "s")
    rate = read_rate(text, f"measured {shown(row)}: rate", prediction.model.title, prediction.batch_shape)
    return prediction.samples / rate
