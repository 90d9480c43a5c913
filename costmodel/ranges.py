"""Values of an axis as the command line takes them: ``512,1024``, ``1:64``, ``6:48:6``, ``1:64:*2``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from costmodel.errors import SettingError, shown


def read_values(name: str, text: str) -> Sequence[Any]:
    """Values that commas separate: whole numbers, ranges of them that include their ends, truth values, or names.

    Raises SettingError.
    """
    if not text.strip():
        raise SettingError(f"axis {name} is empty: give it values such as 1,2,4 or 1:64:*2")
    pieces = [_piece(name, piece.strip()) for piece in text.split(",")]
    if len(pieces) == 1:
        return pieces[0]
    return [value for piece in pieces for value in piece]


def read_names(option: str, text: str | None) -> list[str] | None:
    """Names that commas separate; None if the option is not given. Raises SettingError."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not any(names):
        raise SettingError(f"{option} names nothing: give names such as params,memory.peak, or leave it out")
    if not all(names):
        raise SettingError(f"{option} {shown(text)} has an empty name: take out a comma")
    return names


def _piece(name: str, text: str) -> Sequence[Any]:
    if re.fullmatch("-?[0-9]{1,30}", text):
        return [int(text)]
    if re.fullmatch("[0-9]{1,30}x[0-9]{1,30}", text):
        return [tuple(int(side) for side in text.split("x"))]
    if re.fullmatch("[0-9]+:[0-9]+(:.*)?", text):
        return _range(name, text)
    if not text:
        raise SettingError(f"axis {name} has an empty value: take out a comma")
    return [tuple(text.split("+")) if "+" in text else text]


def _range(name: str, text: str) -> Sequence[int]:
    first, last, *steps = text.split(":")
    step = steps[0] if steps else "1"
    factor = step.startswith("*")
    if not re.fullmatch("[*]?[0-9]{1,30}", step) or len(steps) > 1 or len(first + last) > 60:
        raise SettingError(
            f"axis {name}: {shown(text)} is no range: use first:last, first:last:step or first:last:*factor"
        )
    start, end, by = int(first), int(last), int(step.removeprefix("*"))
    if end < start:
        raise SettingError(f"axis {name}: the range {shown(text)} is empty: {end} is below {start}")
    if by < 1 + factor or (factor and start < 1):
        raise SettingError(f"axis {name}: the range {shown(text)} never ends: use a larger step")
    if not factor:
        return range(start, end + 1, by)
    values = [start]
    while values[-1] * by <= end:
        values.append(values[-1] * by)
    return values


def read_asked(settings: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Axes from the texts of settings, and of ``FIELD=VALUES``; what is no text stays. Raises SettingError."""
    asked = {name: read_values(name, value) if isinstance(value, str) else value for name, value in settings.items()}
    for text in fields:
        field, equals, values = text.partition("=")
        if not equals or not field:
            raise SettingError(f"--over {shown(text)} names no field and values: use text such as layers=6:48:6")
        field = field.strip()
        if field in asked:
            raise SettingError(f"axis {field} is given twice: put all its values in one, as in {field}=1,2,4")
        found = read_values(field, values)
        asked[field] = found if isinstance(found, range) else [_WORDS.get(str(v).lower(), v) for v in found]
    return asked


_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None}
