"""What a setting is: its type, what it is in words, and how a value of one is read, written and checked."""

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import Field
from functools import partial
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from costmodel.documents.arguments import MISFIT, fit, native
from costmodel.errors import SettingError, shown, unknown
from costmodel.training.declaration import Declaration
from costmodel.training.fields import Probability, whole_size
from costmodel.training.frozen import Frozen

Need = Literal["", "attention", "cache", "training", "modules"]
"""What a setting needs in order to matter: a model with attention; a mode that keeps keys and values, or one that
trains; modules of an imported model."""


class ValueForm(NamedTuple):
    """How values of a type are written: what stands for one in a shell, and what it is in words."""

    shell: str
    words: str


class Setting(NamedTuple):
    """What one setting is: all that the verbs, the command line, sweeps, titles and plain data know of it.

    text: what it is, in the words of every help. detail: what the table of settings says beyond that. example: a value
    that is not its default. takes: the type of what verbs take, where that is more than the type that is kept. read:
    what is kept of a value, by the setting's name, where that does not follow from the type; raises CostModelError.
    needs: see `Need`. served: whether `serve` takes it. executed: whether NumPy's roofline runs any value of it, its
    default alone, or nothing that it changes. titled: whether titles name it where it is not at its default; of others
    they speak in words of their own. name, hint, default: of the field that it is declared with.
    """

    text: str
    example: Any
    takes: Any = None
    read: Callable[[str, Any], Any] | None = None
    needs: Need = ""
    served: bool = False
    executed: Literal["any", "default", "nothing"] = "any"
    titled: bool = True
    detail: str = ""
    name: str = ""
    hint: Any = None
    default: Any = None

    def __str__(self) -> str:
        return f"{self.text.removesuffix('.')}{self.default_text}."

    @property
    def default_text(self) -> str:
        """What the text says of the default: nothing where it says so itself, or the verb does."""
        if self.default in (None, "default", (), ...):
            return ""
        value = ",".join(self.default) if isinstance(self.default, tuple) else self.default
        return f" (default {value})"

    @property
    def options(self) -> tuple[Any, ...]:
        """The types that are kept, one by one."""
        return get_args(self.hint) if get_origin(self.hint) in (Union, UnionType) else (self.hint,)

    @property
    def takes_tuple(self) -> bool:
        """Whether a tuple is one value; of a sweep a list is always several."""
        return any(get_origin(each) is tuple for each in self.options)

    @property
    def declaration(self) -> type[Declaration] | None:
        """The kind of declarations that a value may be."""
        return next((each for each in self.options if isinstance(each, type) and issubclass(each, Declaration)), None)

    @property
    def choices(self) -> tuple[str, ...]:
        """The names that a value may be."""
        return tuple(name for each in self.options if get_origin(each) is Literal for name in get_args(each))

    @property
    def reader(self) -> Callable[[str, Any], Any]:
        """What checks a value and gives what is kept of it: as the setting says, else by its type."""
        read = self.read or self._read_by_type
        if NoneType not in self.options:
            return read
        absent = (None, "none") if "none" in self.choices else (None,)
        return lambda name, value: (
            None if (value is None or isinstance(value, str)) and value in absent else read(name, value)
        )

    @property
    def _read_by_type(self) -> Callable[[str, Any], Any]:
        if self.declaration is not None:
            return partial(_declaration, self.declaration)
        if self.choices:
            return partial(_choice, self.choices)
        of_types: dict[type, Callable[[str, Any], Any]] = {int: whole_size, bool: _truth}
        return next(of_types[each] for each in self.options if each in of_types)  # a float says what it is with `read`

    @classmethod
    def of_field(cls, field: Field[Any]) -> "Setting":
        """The setting that a field is declared with, and what the field says of it."""
        hint, setting = get_args(field.type)
        return setting._replace(name=field.name, hint=hint, default=field.default, takes=setting.takes or hint)


def share(name: str, value: Any) -> float:
    """A share of a whole, from 0 to less than 1. Raises SettingError."""
    part = fit(value, Probability)
    if part is MISFIT:
        raise SettingError(f"{name}={shown(value)} is not a number in [0, 1): use one such as 0.1")
    return float(part)


def _truth(name: str, value: Any) -> bool:
    value = native(value)
    if not isinstance(value, bool):
        raise SettingError(f"{name}={shown(value)} is neither True nor False")
    return value


def image_size(name: str, value: Any) -> tuple[int, int]:
    """(height, width), of which one number is both. Raises SettingError."""
    sides = value if isinstance(value, tuple | list) else (value, value)
    if isinstance(value, str) or len(sides) != 2:
        raise SettingError(f"{name}={shown(value)} is not (height, width) or one size for both: use 224 or 224x320")
    height, width = sides
    return whole_size(name, height), whole_size(name, width)


def _check_choice(names: Iterable[str | None], name: str, value: Any) -> None:
    """Raise UnknownNameError for a name that is none of `names`."""
    if (isinstance(value, str) or value is None) and value in names:
        return
    raise unknown(name, value, [known for known in names if known not in (None, "default")])


def _choice(names: tuple[str, ...], name: str, value: Any) -> str:
    _check_choice(names, name, value)
    return value


def _declaration(kind: type[Declaration], name: str, value: Any) -> Any:
    """A name of a ready one, which is kept as it is; or a declaration, checked."""
    if isinstance(value, str):
        _check_choice(kind.READY.keys(), name, value)
        return value
    declaration = kind.named(value)
    declaration.check()
    return declaration


def part_names(what: str, value: Any) -> tuple[str, ...]:
    """Names of parts: one, or several. what: says in errors whose they are. Raises SettingError."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        raise SettingError(f"{what}={shown(value)} is not a list of names of parts")
    return tuple(names)


def from_text(text: str) -> Any:
    """A value as it is written in a shell: a number, a pair such as 224x320, true or false; else the text itself."""
    if re.fullmatch("-?[0-9]{1,1000}", text):
        return int(text)
    if re.fullmatch(r"-?[0-9]{1,30}\.[0-9]{1,30}", text):
        return float(text)
    if re.fullmatch("[0-9]{1,30}x[0-9]{1,30}", text):
        return tuple(map(int, text.split("x")))
    return {"true": True, "false": False}.get(text.lower(), text)


def plain(value: Any) -> Any:
    """The value of a setting as plain data. Raises AttributeError for what is none."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Frozen):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return os.fsdecode(value) if isinstance(value, os.PathLike) else value.to_dict()


def several_of(kind: Any) -> Any:
    """The type of one value, or of several."""
    return kind | Iterable[kind]
