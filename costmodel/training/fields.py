"""Fields of layer kinds and blocks, checked strictly: a size is a whole number, not True, 1.0 or "1"."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, get_type_hints

from costmodel.documents.arguments import MISFIT, Bounds, fit, misfit, native
from costmodel.errors import SettingError, SpecError, shown, unknown
from costmodel.symbolic.sizes import LARGEST_SIZE

Probability = Annotated[float, Bounds("a number from 0 to less than 1", 0, below=1)]
Count = Annotated[int, Bounds(f"a whole number from 0 to {LARGEST_SIZE:,}", 0)]
Constant = Annotated[float, Bounds("a number", infinite=True)]
Pair = int | tuple[int, int]
"""One number for both axes, or (height, width)."""


def pair(value: Pair) -> tuple[int, int]:
    """(height, width)."""
    return value if isinstance(value, tuple) else (value, value)


def whole_size(name: str, value: Any) -> int:
    """A size as it is. Raises SettingError for what is none."""
    value = native(value)
    if isinstance(value, bool) or not isinstance(value, int):
        of = name.split()[-1]
        if isinstance(value, str) and (ends := re.fullmatch(r"\s*(\d+)\s*(?:\.\.+|-|:|to)\s*(\d+)\s*", value)):
            first, last = ends.groups()
            ways = f"sweep takes {of}=range({first}, {int(last) + 1}), in a shell --{of} {first}:{last}"
            raise SettingError(f"{name}={shown(value)} is a range, not a whole number: {ways}")
        if isinstance(value, str) and (short := re.fullmatch(r"\s*(\d{1,9})\s*[kK]\s*", value)):
            sizes = f"{int(short[1]) * 1024} or {int(short[1]) * 1000}"
            raise SettingError(f"{name}={shown(value)} is not a whole number: write it out, as {sizes}")
        if isinstance(value, list | tuple | range) or (isinstance(value, str) and re.fullmatch(r"\d+(,\d+)+", value)):
            raise SettingError(f"{name}={shown(value)} is no whole number: sweep and compare take several, others one")
        raise SettingError(f"{name}={shown(value)} is not a whole number: use an int such as {of}=32")
    if not 1 <= value <= LARGEST_SIZE:
        raise SettingError(f"{name}={shown(value)} is not between 1 and {LARGEST_SIZE:,}")
    return value


@cache
def field_types(cls: type) -> dict[str, tuple[Any, int]]:
    """Type of each field of a dataclass, and the least whole number that it takes: 0 if that is its default, else 1."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: (hints[f.name], 0 if f.default == 0 else 1) for f in dataclasses.fields(cls)}


def check_names(cls: type, values: Mapping[Any, Any], where: str) -> None:
    """Raise UnknownNameError or SpecError if `values` has a field that `cls` has not, or lacks one that it needs."""
    known = field_types(cls)
    for name in values:
        if name not in known:
            raise unknown(f"field of {where}", name, known) if known else SpecError(f"{where} takes no fields")
    for field in dataclasses.fields(cls):
        if field.name not in values and field.default is dataclasses.MISSING:
            raise SpecError(f"{where}: field {field.name} is missing")


def checked(cls: type, name: str, value: Any, where: str, most: int = LARGEST_SIZE) -> Any:
    """`value` for field `name` of `cls`, lists made tuples; whole numbers up to `most`.

    Raises SpecError or UnknownNameError.
    """
    wanted, least = field_types(cls)[name]
    fitted = fit(value, wanted, least, most)
    if fitted is MISFIT:
        raise misfit(f"{where}.{name}", value, wanted, least, most)
    return fitted


def check_fields(kind: Any, where: str, most: int = LARGEST_SIZE) -> None:
    """Check every field of a dataclass in place, as `checked` does."""
    for name in field_types(type(kind)):
        value = getattr(kind, name)
        fitted = checked(type(kind), name, value, where, most)
        if fitted is not value:
            object.__setattr__(kind, name, fitted)


def plainly_right(field: dataclasses.Field[Any], value: Any) -> bool:
    """Whether a value fits at first sight: looking up types takes longer than all else in making a layer."""
    if value is field.default or isinstance(value, bool):
        return value is field.default or field.type == "bool"
    if type(value) is float:
        kind = field.type.removesuffix(" | None")
        return math.isfinite(value) and (kind in ("float", "Constant") or (kind == "Probability" and 0 <= value < 1))
    return field.type == "int" and isinstance(value, int) and 1 <= value <= LARGEST_SIZE
