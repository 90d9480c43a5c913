"""Fields of layer kinds and blocks, checked strictly: a size is a whole number, not True, 1.0 or "1"."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from costmodel.errors import CostModelError, SettingError, SpecError, a, shown, unknown
from costmodel.symbolic.sizes import LARGEST_SIZE

LARGEST_FLOAT = sys.float_info.max
"""Beyond this a whole number has no float."""
Probability = Annotated[float, "at least 0 and less than 1"]
Count = Annotated[int, "from 0"]
Constant = Annotated[float, "infinite too"]
Pair = int | tuple[int, int]
"""One number for both axes, or (height, width)."""


def pair(value: Pair) -> tuple[int, int]:
    """(height, width)."""
    return value if isinstance(value, tuple) else (value, value)


def whole_size(name: str, value: Any) -> int:
    """A size as it is. Raises SettingError for what is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingError(f"{name}={shown(value)} is not a whole number: use an int such as {name.split()[-1]}=32")
    if not 1 <= value <= LARGEST_SIZE:
        raise SettingError(f"{name}={shown(value)} is not between 1 and {LARGEST_SIZE:,}")
    return value


@cache
def field_types(cls: type) -> dict[str, tuple[Any, int]]:
    """Type of each field of a dataclass, and the least whole number that it takes: 0 if that is its default, else 1."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: (hints[f.name], 0 if f.default == 0 else 1) for f in dataclasses.fields(cls)}


def check_names(cls: type, given: Mapping[Any, Any], where: str) -> None:
    """Raise UnknownNameError or SpecError if `given` has a field that `cls` has not, or lacks one that it needs."""
    known = field_types(cls)
    for name in given:
        if name not in known:
            raise unknown(f"field of {where}", name, known) if known else SpecError(f"{where} takes no fields")
    for field in dataclasses.fields(cls):
        if field.name not in given and field.default is dataclasses.MISSING:
            raise SpecError(f"{where}: field {field.name} is missing")


def checked(cls: type, name: str, value: Any, where: str, most: int = LARGEST_SIZE) -> Any:
    """`value` for field `name` of `cls`, lists made tuples; whole numbers up to `most`.

    Raises SpecError or UnknownNameError.
    """
    wanted, least = field_types(cls)[name]
    fitted = _fit(value, wanted, least, most)
    if fitted is _MISFIT:
        raise _misfit(f"{where}.{name}", value, wanted, least)
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


_MISFIT = object()


def _fit(value: Any, wanted: Any, least: int, most: int) -> Any:
    if wanted is Probability:
        share = _fit(value, float, least, most)
        return share if share is not _MISFIT and 0 <= share < 1 else _MISFIT
    if wanted is Count:
        return _fit(value, int, 0, most)
    if wanted is Constant and isinstance(value, float):
        return value
    origin = get_origin(wanted)
    if origin in (Union, UnionType):
        fitted = (_fit(value, option, least, most) for option in get_args(wanted))
        return next((option for option in fitted if option is not _MISFIT), _MISFIT)
    if origin is tuple:
        return _fit_tuple(value, get_args(wanted), least, most)
    if origin is Literal:
        fits = isinstance(value, str) and value in get_args(wanted)
    elif wanted is int:
        fits = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    elif wanted in (float, Constant):
        fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_FLOAT
    else:
        fits = isinstance(value, NoneType if wanted is None else wanted)
    return value if fits else _MISFIT


def _fit_tuple(value: Any, items: tuple[Any, ...], least: int, most: int) -> Any:
    if not isinstance(value, list | tuple):
        return _MISFIT
    if items[-1] is Ellipsis:  # axes and shapes: 0 is an axis
        items, least = (items[0],) * len(value), 0
    if len(items) != len(value) or any(_fit(v, t, least, most) is _MISFIT for v, t in zip(value, items, strict=True)):
        return _MISFIT
    return tuple(value)


def _misfit(where: str, value: Any, wanted: Any, least: int) -> CostModelError:
    options = get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)
    names = [name for option in options if get_origin(option) is Literal for name in get_args(option)]
    if names and isinstance(value, str):
        return unknown(f"value of {where}", value, names)
    return SpecError(f"{where}: {show(value)} is not {_describe(wanted, least)}")


def _describe(wanted: Any, least: int) -> str:
    if get_origin(wanted) in (Union, UnionType):
        return " or ".join(_describe(option, least) for option in get_args(wanted) if option is not NoneType)
    if get_origin(wanted) is tuple:
        items = get_args(wanted)
        several = "whole numbers" if items[0] is int else f"{items[0].__name__}s"
        return f"a list of {several}" if items[-1] is Ellipsis else f"a list of {len(items)}"
    if get_origin(wanted) is Literal:
        return " or ".join(get_args(wanted))
    names = {
        Count: f"a whole number from 0 to {LARGEST_SIZE:,}",
        int: f"a whole number from {least} to {LARGEST_SIZE:,}",
        float: "a finite number",
        Constant: "a number",
        Probability: "a number from 0 to less than 1",
        bool: "true or false",
        str: "a text",
    }
    return names.get(wanted) or a(wanted.__name__)


def show(value: Any) -> str:
    """A value as it reads in an error, cut to a line."""
    if isinstance(value, dict):
        return f"a mapping of {len(value)}"
    if isinstance(value, list | tuple):
        flat = len(value) <= 4 and not any(isinstance(v, dict | list | tuple) for v in value)
        return f"[{', '.join(map(show, value))}]" if flat else f"a list of {len(value)}"
    return shown(value)
