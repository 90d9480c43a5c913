"""An option for each setting of a question, with one value or, for the verbs that ask over a grid, with several.

Several are ``512,1024``, ``1:64``, ``1..64``, ``6:48:6``, ``1:64:*2``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from types import NoneType
from typing import Any, Literal, get_origin

import click

from costmodel.cli.commands import SettingOption, option
from costmodel.errors import CostModelError, SettingError, shown
from costmodel.training.setting import Setting, from_text
from costmodel.training.settings import FORMS, SETTINGS, checked

_EXAMPLES = {
    "HxW": "224 or 224x320",
    "RANK:NAMES": "8:qkv,mlp.up",
    "NAME=STYLE": "*.up=colwise,*.down=rowwise",
}
"""Texts of settings that are read in a form of their own."""
_NUMBERS = {"N": (int,), "X": (int, float), "HxW": (int, tuple), "true|false": (bool,)}
"""What is read from the text of values that are no names."""
MOST_METAVAR = 50
"""Characters that choices take beside an option's name; longer ones stand in its help."""


def _forms(setting: Setting) -> tuple[str, ...]:
    """What stands for the values of a setting: each name, N, NAMES, ...; FILE for what has fields."""
    names = [name for name in setting.choices if name != "default"]
    types = [hint for hint in setting.options if get_origin(hint) is not Literal and hint is not NoneType]
    forms = [*names, *(FORMS[hint].shell if hint in FORMS else "FILE" for hint in types)]
    return tuple(form for form in forms if form != "NAME" or "NAMES" not in forms)  # a list of names may be of one


def _reader(name: str, forms: tuple[str, ...]) -> Callable[[str], Any]:
    """What reads one value: names, a rank and names, styles by name, a number or a choice, else the text."""

    types = {kind for form in forms for kind in _NUMBERS.get(form, ())}

    def value(text: str) -> Any:
        if forms == ("NAME=STYLE",):
            styles = tuple(tuple(each.strip().split("=")) for each in text.split(","))
            if text != "auto" and any(len(style) != 2 for style in styles):
                raise click.BadParameter(f"{shown(text)} is not auto or styles by name: use text such as *.up=colwise")
            return text if text == "auto" else styles
        if forms == ("RANK:NAMES",):
            rank, colon, targets = text.partition(":")
            if not colon:
                raise click.BadParameter(f"{shown(text)} is not a rank and parts: use text such as 8:qkv,mlp.up")
            return {"rank": from_text(rank), "targets": tuple(targets.split(","))}
        if forms == ("NAMES",) or ("NAMES" in forms and "," in text):
            return tuple(text.split(","))
        number = from_text(text)
        amount = number if type(number) in types else text
        try:
            _ = checked(name, amount) if types else None
        except CostModelError as error:
            raise click.BadParameter(str(error)) from None
        return amount

    return value


def read_several(_: click.Context, parameter: click.Parameter, text: str | None) -> Sequence[Any] | None:
    """The values of an option that takes several; None where it is not given."""
    return None if text is None else read_values(str(parameter.name), text)


def _options() -> Iterator[tuple[SettingOption, SettingOption]]:
    """For each setting the option that takes one value, and the one that takes several."""
    for setting in SETTINGS.values():
        forms, text = _forms(setting), str(setting)
        if forms[0] in _EXAMPLES or forms == ("NAMES",):
            example = _EXAMPLES.get(forms[0]) or ",".join(setting.example)
            text = f"{text.removesuffix('.')}, such as {example}."
        name, metavar = [f"--{setting.name.replace('_', '-')}"], "|".join(forms)
        if len(metavar) > MOST_METAVAR:
            names = tuple(form for form in forms if form != "FILE")
            metavar = "|".join(("NAME", *forms[len(names) :]))
            text = f"{text} Names: {', '.join(names)}."
        alone: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if forms == ("true|false",) else {}
        one = SettingOption(name, type=_reader(setting.name, forms), metavar=metavar, help=text, **alone)
        of_names = forms in (("NAMES",), ("RANK:NAMES",), ("NAME=STYLE",))  # one value of these has commas
        several: dict[str, Any] = {"multiple": True, "callback": _axis, "metavar": "VALUES", **alone}
        yield one, one if of_names else SettingOption(name, help=text, **several)


def _axis(_: click.Context, setting: click.Parameter, texts: tuple[str, ...]) -> Sequence[Any] | None:
    name = str(setting.name)
    if len(texts) > 1:
        raise click.UsageError(f"axis {name} is given twice: put all its values in one, as in {','.join(texts)}")
    return read_values(name, texts[0]) if texts else None


def _fields(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, Sequence[Any]]:
    """The values of fields of the model, from texts ``FIELD=VALUES``. Raises SettingError."""
    axes: dict[str, Sequence[Any]] = {}
    for text in texts:
        field, equals, values = text.partition("=")
        if not equals or not field:
            raise SettingError(f"--over {shown(text)} names no field and values: use text such as layers=6:48:6")
        field = field.strip()
        if field in axes:
            raise SettingError(f"axis {field} is given twice: put all its values in one, as in {field}=1,2,4")
        axes[field] = read_values(field, values)
    return axes


def _changes(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any] | None:
    """Values of fields of the model, from texts ``FIELD=VALUE``, of a list with commas. Raises SettingError."""
    fields: dict[str, Any] = {}
    for text in texts:
        field, equals, value = (part.strip() for part in text.partition("="))
        if not (equals and field and value):
            raise SettingError(f"--over {shown(text)} names no field and value: use text such as layers=24")
        if field in fields:
            raise SettingError(f"--over {field} is given twice: leave one out")
        pieces = [None if piece == "none" else from_text(piece.strip()) for piece in value.split(",")]
        fields[field] = pieces if len(pieces) > 1 else pieces[0]
    return fields or None


def read_values(name: str, text: str) -> Sequence[Any]:
    """Values that commas separate: whole numbers, ranges of them that include their ends, truth values, or names.

    Raises SettingError.
    """
    if not text.strip():
        raise SettingError(f"axis {name} is empty: give it values such as 1,2,4 or 1:64:*2")
    pieces = [_piece(name, piece.strip()) for piece in text.split(",")]
    if len(pieces) == 1:
        return pieces[0]
    from costmodel.analysis.sweep.axes import MOST_LISTED, check_count

    check_count(name, sum(map(len, pieces)), MOST_LISTED)
    return [value for piece in pieces for value in piece]


def _piece(name: str, text: str) -> Sequence[Any]:
    if re.match("[0-9]+(:|[.][.])[0-9]", text):
        from costmodel.analysis.sweep.axes import range_of

        return range_of(name, text)
    if not text:
        raise SettingError(f"axis {name} has an empty value: take out a comma")
    return [tuple(text.split("+")) if "+" in text else from_text(text)]


def _quantities(_: click.Context, __: click.Parameter, text: str | None) -> list[str] | None:
    """Names that commas separate; None if the option is not given. Raises SettingError."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not any(names):
        raise SettingError("--quantities names nothing: give names such as params,memory.peak, or leave it out")
    if not all(names):
        raise SettingError(f"--quantities {shown(text)} has an empty name: take out a comma")
    return names


CHANGED = SettingOption(
    ["--over"],
    metavar="FIELD=VALUE",
    multiple=True,
    callback=_changes,
    help="Another value for a field of the model, such as layers=24 or experts.count=16.",
)
SINGLE, AXES = zip(*_options(), strict=True)
"""An option for each setting of `predict`: with one value, and with several."""
OPTIONS = (*SINGLE, CHANGED)
OVER = option(
    "--over", metavar="FIELD=VALUES", multiple=True, callback=_fields, help="Vary a field of the model: layers=6:48:6."
)
QUANTITIES = option(
    "--quantities",
    metavar="NAMES",
    callback=_quantities,
    help="Such as memory.peak,flops.total (default: all; in a table a few).",
)
