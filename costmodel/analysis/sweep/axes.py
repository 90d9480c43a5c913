"""Axes of a sweep: what was asked to vary, read and checked, with a label for each value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any

from costmodel.analysis.closed_forms import open_sizes, varied
from costmodel.architectures.base import Architecture
from costmodel.architectures.trace import applicable
from costmodel.cost.recipes import SIDES, SIZES
from costmodel.documents.arguments import native
from costmodel.documents.description import Description, unknown_field
from costmodel.errors import CostModelError, SettingError, UnknownNameError, shown
from costmodel.importers.files import settings_of
from costmodel.training.fields import whole_size
from costmodel.training.setting import image_size
from costmodel.training.settings import SETTING_NAMES, SETTINGS

MOST_VALUES = 10_000_000
"""An axis with more values is refused."""
MOST_LISTED = 1_000_000
"""One whose values are told one by one, as by an iterator, has to end before this."""
LONGEST_LABEL = 1_000
RANGE = re.compile("[0-9]+(:|[.][.])[0-9]")
"""How the text of a range begins."""
MOST_NAMED = 10_000
"""One whose values are no letters of a formula: each is a question of its own."""


@dataclass(frozen=True)
class Axis:
    """One axis. labels: its values as the result names them. numeric: whether formulas have letters for it.

    letters: for a numeric axis the sizes that it gives to each of its letters, of which the image has two.
    """

    name: str
    values: Sequence[Any]
    labels: Sequence[Any]
    letters: Mapping[str, Sequence[int]]

    @property
    def numeric(self) -> bool:
        """Whether it is evaluated by formula; else each value is a question of its own."""
        return bool(self.letters)


def own_fields(model: Architecture) -> list[str]:
    """Fields of a model that can be given other values."""
    return [name for name in model.field_names() if name not in ("name", "notes")]


def varied_names(model: Architecture) -> list[str]:
    """Fields, and sizes that can be varied of a model that has no field for them."""
    return [*own_fields(model), *model.DERIVED]


def read_axes(model: Architecture, question: Mapping[str, Any]) -> tuple[list[Axis], dict[str, Any], dict[str, Any]]:
    """What varies, the settings that do not, and the fields of the model that are others than its own.

    A field that has no word "none" is without a value there. Raises SettingError or UnknownNameError for an axis that
    cannot be.
    """
    of_spec, fields = own_fields(model), varied_names(model)
    axes: list[Axis] = []
    settings: dict[str, Any] = {}
    changed: dict[str, Any] = {}
    for name, value in question.items():
        if name not in SETTING_NAMES and name not in fields:
            raise unknown_field("axis", name, [type(model)], [*applicable(model), *fields])
        if isinstance(value, str) and RANGE.match(value):
            value = range_of(name, value)
        if not varies(name, value):
            (settings if name in SETTING_NAMES else changed)[name] = value
            continue
        values = listed(name, value)
        if name in of_spec and "none" in values and not model.has_word(name, "none"):
            values = [None if one == "none" else one for one in values]
        axes.append(_axis(model, name, values))
    for axis in axes:
        _check_names(axis, settings)
    if len(own := [axis for axis in axes if axis.name in of_spec]) == 1:
        _check_place(model, changed, own[0])
    return axes, settings, changed


def _check_place(model: Architecture, changed: Mapping[str, Any], axis: Axis) -> None:
    """Raise SettingError for a field that the model leaves out, if another that it has leaves no place for any value.

    That is where what is wrong does not depend on the value. What does is told cell by cell.
    """
    if model.value(axis.name) is not None:
        return
    first, last = axis.values[0], axis.values[-1]
    if first == last and isinstance(first, int):
        last = first + 1
    errors: set[str] = set()
    for value in (first, last):
        try:
            varied(model, {**changed, axis.name: value})
        except CostModelError as error:
            errors.add(str(error))
        else:
            return
    if len(errors) == 1 and first != last:
        raise SettingError(f"axis {axis.name}: {errors.pop()}")


def varies(name: str, value: Any) -> bool:
    """Whether what is given for a setting or a field is its values along an axis, not one value."""
    if isinstance(value, str | bytes | Mapping | Description) or not isinstance(value, Iterable):
        return False
    if getattr(value, "ndim", 1) == 0:
        return False
    return not (name in SETTINGS and SETTINGS[name].takes_tuple and isinstance(value, tuple))


def listed(name: str, value: Iterable[Any]) -> Sequence[Any]:
    """The values of an axis. Raises SettingError if there are none, or too many."""
    if isinstance(value, range):
        check_count(name, -((value.start - value.stop) // value.step))  # `len` fails beyond 2^63
        return value
    if isinstance(value, Sized):
        check_count(name, len(value))
        tolist = getattr(value, "tolist", None)
        return [native(each) for each in islice(tolist() if tolist is not None else value, len(value))]
    values = [native(each) for each in islice(value, MOST_LISTED + 1)]
    if len(values) > MOST_LISTED:
        raise SettingError(f"axis {name} does not end before {MOST_LISTED:,} values: give it as a list or range")
    check_count(name, len(values))
    return values


def check_count(name: str, count: int, most: int = MOST_VALUES) -> None:
    """Raise SettingError if an axis has no values, or too many of them."""
    if count < 1:
        raise SettingError(f"axis {name} is empty: give it at least one value")
    if count > most:
        number = f"{count:,}" if count < 10**30 else "far too many"
        raise SettingError(f"axis {name} has {number} values: use at most {most:,}, such as every tenth")


def range_of(name: str, text: str) -> Sequence[int]:
    """Whole numbers from a text, ends included: "1:64" or "1..64", by a step "6:48:6", by a factor "1:64:*2".

    Raises SettingError.
    """
    first, last, *steps = text.replace("..", ":", 1).split(":")
    step = steps[0] if steps else "1"
    factor = step.startswith("*")
    if not re.fullmatch("[*]?[0-9]{1,30}", step) or len(steps) > 1 or not re.fullmatch("[0-9]{2,60}", first + last):
        raise SettingError(
            f"axis {name}: {shown(text)} is no range: use first:last, first:last:step or first:last:*factor"
        )
    start, end, by = int(first), int(last), int(step.removeprefix("*"))
    if end < start:
        raise SettingError(f"axis {name}: the range {shown(text)} is empty: {end} is below {start}")
    if by < 1 + factor or (factor and start < 1):
        raise SettingError(f"axis {name}: the range {shown(text)} never ends: use a larger step")
    if not factor:
        check_count(name, (end - start) // by + 1)  # before it is asked for its length, which may be too large for one
        return range(start, end + 1, by)
    values = [start]
    while values[-1] * by <= end:
        values.append(values[-1] * by)
    return values


def _axis(model: Architecture, name: str, values: Sequence[Any]) -> Axis:
    if name == "image":
        return _of_images(values)
    if name in model.DERIVED:
        for value in values:
            whole_size(f"axis {name}", value)
        _check_distinct(name, values)
        return Axis(name, list(values), list(values), {})
    letter = model.spelt(name)
    sized = letter in SIZES or letter in open_sizes(model)
    if sized and (name in SIZES or all(isinstance(v, int) and not isinstance(v, bool) for v in values)):
        for value in (values[0], values[-1]) if isinstance(values, range) else values:
            whole_size(f"axis {name}", value)
        if not isinstance(values, range):
            _check_distinct(name, values)
        return Axis(name, values, values, {letter: values})
    check_count(name, len(values), MOST_NAMED)
    labels = _labels(values)
    _check_distinct(name, labels)
    return Axis(name, values, labels, {})


def _of_images(values: Sequence[Any]) -> Axis:
    pairs = [image_size("axis image", value) for value in values]
    square = all(height == width for height, width in pairs)
    labels = [height if square else f"{height}x{width}" for height, width in pairs]
    _check_distinct("image", labels)
    return Axis("image", pairs, labels, dict(zip(SIDES, zip(*pairs, strict=True), strict=True)))


def _check_distinct(name: str, labels: Sequence[Any]) -> None:
    seen: set[Any] = set()
    for label in labels:
        if label in seen:
            raise SettingError(f"axis {name} has {shown(label)} twice: give each value once")
        seen.add(label)


def _labels(values: Sequence[Any]) -> list[Any]:
    """Numbers and truth values where all are of one kind, else texts."""
    for kind in (bool, int, float):
        if all(type(value) is kind for value in values):
            return list(values)
    return [label_of(value) for value in values]


def label_of(value: Any) -> str:
    """A value as the command line takes it."""
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return ",".join(shown(part) if isinstance(part, list | tuple) else label_of(part) for part in value)
    if isinstance(value, str):
        return value if value.isprintable() else shown(value)
    try:
        text = str(getattr(value, "name", "") or value)
    except Exception:  # of an object whose text cannot be made: errors show it as they can
        return shown(value)
    return text if len(text) <= LONGEST_LABEL else shown(value)


def _check_names(axis: Axis, settings: Mapping[str, Any]) -> None:
    """Raise UnknownNameError for a value that no question could have."""
    if axis.numeric or axis.name not in SETTING_NAMES:
        return
    for value in axis.values:
        try:
            settings_of({**settings, axis.name: value})
        except UnknownNameError:
            raise
        except ValueError:
            continue  # wrong together with others: those cells are missing
