"""Constants that were measured on a machine: a readable file, with what they are from."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from costmodel.documents.description import ALL, Description, Listed
from costmodel.documents.files import culprit, shown_path, text_of
from costmodel.errors import CostModelError, SettingError, SpecError, shown, unknown
from costmodel.hardware.machine import Machine
from costmodel.performance.constants import TABLE, Constants, typical


def _constants(value: Any) -> dict[str, float]:
    """Positive numbers by the names of constants; here, where errors can say which."""
    if not isinstance(value, Mapping) or not value:
        raise SettingError(f"constants: {shown(value)} is not a mapping: give one such as {{'product_share': 0.84}}")
    for name, number in value.items():
        if name not in TABLE:
            raise SettingError(f"constants.{name}: {unknown('constant', name, TABLE)}")
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < math.inf:
            raise SettingError(f"constants.{name}: {shown(number)} is no positive number, as constants of kernels are")
    return {name: float(number) for name, number in value.items()}


class Calibration(Description):
    """Constants of one machine, in place of those of its family."""

    machine: str = Field(min_length=1, description="the machine that was measured")
    constants: Annotated[dict[str, float], BeforeValidator(_constants)] = Field(description="measured, by name")
    date: str = Field(default="", description="when, such as 2026-11-22")
    software: str = Field(default="", description="what ran, such as PyTorch 2.13, CUDA 13.0, driver 580")
    measured: Listed[str] = Field(default=ALL, strict=False, description="what was measured, a line for each")

    def on(self, machine: Machine) -> Constants:
        """A value for each constant: measured, or typical of the machine's family."""
        return typical(machine).changed(**self.constants)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """The calibration that a YAML or JSON file describes. Raises SpecError, with the line."""
        from costmodel.documents.document import parse

        where = shown_path(path)
        document = parse(text_of(path, where, "calibration"), where, "a calibration, starting with its machine")
        if not isinstance(document.data, dict):
            raise SpecError(f"{where}: a calibration has named fields: start with a line such as 'machine: h100-sxm'")
        try:
            return cls(**document.data)
        except SpecError as error:
            raise SpecError(f"{document.place(culprit(error, document))}: {error}") from None

    def dump(self) -> str:
        """The text of a file that `load` reads back."""
        from costmodel.documents.document import dump

        return dump(self.model_dump(mode="json", exclude_defaults=True))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write that text to a file. Raises CostModelError."""
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(self.dump())
        except OSError as error:
            raise CostModelError(f"cannot write {shown(str(path))}: {error.strerror or error}") from None
