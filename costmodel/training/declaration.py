"""Declarations: optimizers, precisions, stacks and engines, each ready by a name or of one's own, checked strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeGuard, TypeVar, get_args, get_origin

from costmodel.documents.files import is_path, read_fields
from costmodel.errors import CostModelError, SettingError, UnknownNameError, a, shown, unknown
from costmodel.training.fields import check_fields, check_names, field_types
from costmodel.training.frozen import Frozen

LONGEST_NAME = 200
MOST_PARTS = 64
"""Declarations in a list of a declaration, such as the states of an optimizer."""

Kind = TypeVar("Kind", bound="Declaration")


class Declaration(Frozen):
    """Abstract: fields under a name. Taken wherever the name of a ready one is: itself, its fields, or a file of them.

    READY: the ready ones, by name. source: where its figures are from.
    """

    READY: ClassVar[Mapping[str, Any]]
    name: str
    source: str

    @classmethod
    def kind(cls) -> str:
        """What errors call it: the name of the class, in small letters."""
        return cls.__name__.lower()

    @classmethod
    def of(cls, value: Any) -> Self:
        """A ready one by its name, one as it is, or from its fields or a file of these. Raises CostModelError."""
        return cls.named(cls.from_file(value))

    @classmethod
    def named(cls, value: Any) -> Self:
        """A ready one by its name, one as it is, or from its fields. Raises UnknownNameError, SettingError."""
        if isinstance(value, cls):
            return value
        if isinstance(value, Mapping):
            return built(cls, value, cls.kind())
        if not isinstance(value, str):
            raise UnknownNameError(f"{cls.kind()}={shown(value)} is neither a name nor {a(cls.__name__)}")
        if value not in cls.READY:
            raise unknown(cls.kind(), value, cls.READY)
        return cls.READY[value]

    @classmethod
    def from_file(cls, value: Any) -> Any:
        """What a YAML or JSON file declares, if `value` is its path; else `value`. Raises SpecError, with the line."""
        if not is_path(value):
            return value
        return read_fields(value, cls.kind(), lambda data: built(cls, data, cls.kind()), "name: mine")

    def check(self) -> None:
        """Raise SettingError unless each field has the type that it is declared with, and the fields agree."""
        _check_parts(self, self.kind())
        if not self.name.isprintable() or not 0 < len(self.name) <= LONGEST_NAME:
            raise SettingError(f"{self.kind()}.name: {shown(self.name)} is not a name: use a word such as 'mine'")
        self.check_agreement(self.kind())

    def check_agreement(self, where: str) -> None:
        """Raise SettingError if fields of the right types do not go together."""


def ready(*declarations: Kind) -> dict[str, Kind]:
    """The ready declarations of a kind, by name."""
    by_name = {declaration.name: declaration for declaration in declarations}
    type(declarations[0]).READY = by_name
    return by_name


def built(kind: type, data: Any, where: str) -> Any:
    """A declaration, or a part of one, from plain data that must be a mapping of its fields. Raises SettingError."""
    if not isinstance(data, Mapping):
        raise SettingError(f"{where}: {shown(data)} is not a mapping of fields: start with a line such as 'name: mine'")
    try:
        check_names(kind, data, where)
    except CostModelError as error:
        raise SettingError(str(error)) from None
    types = field_types(kind)
    whole = kind(**{name: _field(types[name][0], value, f"{where}.{name}") for name, value in data.items()})
    if isinstance(whole, Declaration):
        whole.check()
    return whole


def _field(hint: Any, value: Any, where: str) -> Any:
    """The value of a field: mappings in it are built where its type is a declaration, or a list of parts."""
    for option in (hint, *get_args(hint)):
        item, *_ = get_args(option) if get_origin(option) is tuple else (None,)
        if _is_part(item) and isinstance(value, list | tuple):
            if len(value) > MOST_PARTS:
                raise SettingError(f"{where}: {len(value):,} are too many: use at most {MOST_PARTS}")
            return tuple(built(item, part, f"{where}[{n}]") for n, part in enumerate(value))
        if _is_part(option) and isinstance(value, Mapping):
            return built(option, value, where)
    return value


def _is_part(kind: Any) -> TypeGuard[type[Frozen]]:
    return isinstance(kind, type) and issubclass(kind, Frozen)


def _check_parts(part: Frozen, where: str) -> None:
    """Check the fields of a declaration, and of the parts in its lists. Raises SettingError."""
    try:
        check_fields(part, where)
    except CostModelError as error:
        raise SettingError(str(error)) from None
    for name in field_types(type(part)):
        value = getattr(part, name)
        for number, item in enumerate(value if isinstance(value, tuple) else ()):
            if isinstance(item, Frozen):
                _check_parts(item, f"{where}.{name}[{number}]")
