"""Frozen, strict descriptions of models and machines, whose parts' fields have dotted names such as "experts.count"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import cache
from threading import RLock
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo
from pydantic.fields import FieldInfo

from costmodel.documents.arguments import natives, typed
from costmodel.errors import CostModelError, SpecError, listed, shown, unknown

Stored = TypeVar("Stored")
Given = TypeVar("Given", contravariant=True)
Item = TypeVar("Item")
Part = TypeVar("Part", bound="Description")

if TYPE_CHECKING:

    class Reads(Generic[Stored, Given]):
        """The type of a field that holds `Stored`, and takes `Given`, which a validator reads."""

        def __get__(self, instance: Any, owner: Any) -> Stored: ...
        def __set__(self, instance: Any, value: Given) -> None: ...

else:

    class Reads:
        """`Stored`: pydantic checks what a field holds, and only a type checker looks at what it takes."""

        def __class_getitem__(cls, types: tuple[Any, Any]) -> Any:
            return types[0]


Listed = Reads[tuple[Item, ...], tuple[Item, ...] | list[Item]]
"""A tuple, which a list may be given for."""
PartOf = Reads[Part | None, Part | Mapping[str, Any] | int | None]
"""A part or none; it may be given as a mapping of its fields, a bare value of its first, or whether it is there."""
ABSENT: Any = None
"""The default of a part that is not there. Pydantic's ``Field`` has the type of its default, which none of these is."""
ALL: Any = ()
"""The default of a list that says nothing."""


class Description(BaseModel):
    """Abstract: named fields. Frozen, strict, without unknown ones."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", hide_input_in_errors=False, defer_build=True)

    FIRST: ClassVar[str] = ""
    """Of a part: the field that a bare value stands for, as 8 does in ``experts: 8``."""
    READY: ClassVar[str] = ""
    """How a ready one is had, where there are any."""
    RENAMED: ClassVar[Mapping[str, str]] = {}
    """Names of fields by the names that they had once."""

    def __init__(self, /, *values: Any, **fields: Any) -> None:
        if values:
            fields_of = type(self).model_fields
            first = next((name for name, field in fields_of.items() if field.is_required()), "name")
            ready = f"; {self.READY}" if self.READY else ""
            raise SpecError(
                f"{type(self).__name__}({shown(values[0])}): fields are given by name, such as {first}=...{ready}"
            )
        for name in fields.keys() & self.RENAMED.keys():
            raise SpecError(f"{type(self).__name__}: {name} is now {self.RENAMED[name]}", (name,))
        try:
            with nullcontext() if type(self).__pydantic_complete__ else _COMPLETING:
                super().__init__(**natives(fields))
        except ValidationError as error:
            raise SpecError(explain_validation(type(self), error), _first(error)["loc"]) from None

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """Fields that are not at their default: the line can be typed."""
        for name, field in type(self).model_fields.items():
            value, default = getattr(self, name), field.get_default(call_default_factory=True)
            if type(value) is not type(default) or value != default:  # 0 is no 0.0
                yield name, value

    def __setattr__(self, name: str, value: Any) -> None:
        raise SpecError(f"{type(self).__name__}.{name} cannot be set: it is fixed once it is made; make another")

    def __delattr__(self, name: str) -> None:
        raise SpecError(f"{type(self).__name__}.{name} cannot be deleted: it is fixed once it is made")

    @classmethod
    def unchecked(cls, fields: Mapping[str, Any]) -> Self:
        """One from `stated` fields, which are known to be right: what checks others need not be made for it."""
        parts = cls.parts()
        values: dict[str, Any] = {
            name: parts[name].unchecked(value) if isinstance(value, dict) and name in parts else _tuples(value)
            for name, value in fields.items()
        }
        return cls.model_construct(**values)

    def stated(self) -> dict[str, Any]:
        """The fields that it was made with, as JSON has them."""
        return self.model_dump(mode="json", exclude_unset=True)

    @classmethod
    @typed
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """One from fields by name, those of parts by dotted names; a part whose fields say nothing is left out.

        What says nothing is None, or the field's default. Raises SpecError.
        """
        parts = cls.parts()
        stated = {name: value for name, value in fields.items() if value is not None or "." not in name}
        for name, inner in _by_part(_spelt(parts, stated)).items():
            if name in parts and fields.get(name) in (None, False):
                defaults = {field: info.default for field, info in parts[name].model_fields.items()}
                if all(field in defaults and value == defaults[field] for field, value in inner.items()):
                    stated = {other: value for other, value in stated.items() if not other.startswith(f"{name}.")}
        return cls(**_nested(cls, {}, stated))

    @classmethod
    @cache
    def parts(cls) -> dict[str, type[Description]]:
        """The fields that are parts, with what describes them."""
        kinds = {name: _part(field) for name, field in cls.model_fields.items()}
        return {name: kind for name, kind in kinds.items() if kind is not None}

    @classmethod
    @cache
    def field_names(cls) -> tuple[str, ...]:
        """The names of all fields, of each part before those of its fields."""
        parts = cls.parts()
        inner = {name: [f"{name}.{field}" for field in part.model_fields] for name, part in parts.items()}
        return tuple(each for name in cls.model_fields for each in (name, *inner.get(name, ())))

    @classmethod
    @typed
    def field_named(cls, name: str) -> FieldInfo:
        """What is declared of a field. Raises UnknownNameError."""
        if name not in cls.field_names():
            raise unknown(f"field of {cls.__name__}", name, cls.field_names())
        first, _, rest = name.partition(".")
        return cls.parts()[first].field_named(rest) if rest else cls.model_fields[first]

    @classmethod
    @typed
    def has_word(cls, name: str, word: str) -> bool:
        """Whether a field can be a word, among others. Raises UnknownNameError."""
        kinds = [cls.field_named(name).annotation]
        for kind in kinds:
            kinds.extend(get_args(kind))
        return word in kinds

    @classmethod
    @typed
    def spelt(cls, name: str) -> str:
        """The field that a name stands for: a part's first for the part's."""
        part = cls.parts().get(name)
        return f"{name}.{part.FIRST}" if part is not None and part.FIRST else name

    def value(self, name: str) -> Any:
        """The value of a field; None of a part that is absent. Raises UnknownNameError."""
        try:
            first, _, rest = name.partition(".")
            value = getattr(self, first)
        except (AttributeError, TypeError):
            raise unknown(f"field of {type(self).__name__}", name, self.field_names()) from None
        return value.value(rest) if rest and value is not None else value

    @typed
    def with_fields(self, fields: Mapping[str, Any]) -> Self:
        """The same with other values of some fields, checked; a bare value of a part is one of its first field.

        Raises SpecError.
        """
        own = {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}
        return type(self)(**_nested(type(self), own, fields))

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """The same with other values, unchecked, such as letters for sizes."""
        parts = self.parts()
        update = {name: value for name, value in _spelt(parts, values).items() if "." not in name}
        update |= {name: _read(parts[name], value, name) for name, value in update.items() if name in parts}
        for name, others in _by_part(_spelt(parts, values)).items():
            now = update.get(name, getattr(self, name))
            update[name] = parts[name].model_construct(**others) if now is None else now.with_values(others)
        return self.model_copy(update=update)

    def checked(self) -> Self:
        """The same after the checks that look at several fields, which letters have not met. Raises ValueError."""
        for name in self.parts():
            if (part := getattr(self, name)) is not None:
                part.checked()
        for validator in type(self).__pydantic_decorators__.model_validators.values():
            if validator.info.mode == "after":
                validator.func(self)
        return self


_COMPLETING = RLock()
"""Held while pydantic makes what checks the fields of a class, which it puts off until the first is made."""


def _tuples(value: Any) -> Any:
    """Plain data with tuples for lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def part_of(kind: type[Description]) -> BeforeValidator:
    """A validator that reads a part: a mapping of its fields, a bare value of its first, or whether it is there."""

    def read(value: Any, info: ValidationInfo) -> Any:
        return _read(kind, value, info.field_name)

    return BeforeValidator(read)


def _read(kind: type[Description], value: Any, name: str | None) -> Description | None:
    if value is None or isinstance(value, kind):
        return value
    if isinstance(value, Mapping) and all(isinstance(field, str) for field in value):
        return kind(**value)
    if kind.FIRST and not isinstance(value, Mapping | bool):
        return kind(**{kind.FIRST: value})
    if isinstance(value, bool) and not kind.FIRST:
        return kind() if value else None
    bare = f"a value of {kind.FIRST}" if kind.FIRST else "true, false"
    raise ValueError(f"{name}: {shown(value)} is not {bare} or a mapping of {listed(tuple(kind.model_fields))}")


def unknown_field(what: str, name: Any, kinds: Iterable[type[Description]], known: Iterable[str]) -> CostModelError:
    """Error for an unknown name; it says what a field that once had it is called now."""
    for kind in kinds:
        if name in kind.RENAMED:
            return SpecError(f"{name} is now {kind.RENAMED[name]}")
    return unknown(what, name, known)


def _part(field: FieldInfo) -> type[Description] | None:
    return None if get_origin(field.annotation) is tuple else _described(field)


def _described(field: FieldInfo) -> type[Description] | None:
    """The description that a field holds, alone or in a list."""
    kinds = (field.annotation, *get_args(field.annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Description)), None)


def _nested(cls: type[Description], base: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """`base` fields with others put in, those of parts into the parts' own fields."""
    parts = cls.parts()
    spelt = _spelt(parts, fields)
    inner = {name: value for name, value in spelt.items() if "." in name and name.partition(".")[0] in parts}
    merged = {**base, **{name: value for name, value in spelt.items() if name not in inner}}
    for name, others in _by_part(inner).items():
        merged[name] = _within(cls, name, merged.get(name, cls.model_fields[name].default), others)
    return merged


def _spelt(parts: Mapping[str, type[Description]], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields with a bare value of a part as one of its first field."""
    bare = {n for n, v in fields.items() if n in parts and not (v is None or isinstance(v, Description | Mapping))}
    return {f"{n}.{parts[n].FIRST}" if n in bare and parts[n].FIRST else n: value for n, value in fields.items()}


def _by_part(fields: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Those fields that have dotted names, by part and name within."""
    inner: dict[str, dict[str, Any]] = {}
    for name, value in fields.items():
        part, dot, rest = name.partition(".")
        if dot:
            inner.setdefault(part, {})[rest] = value
    return inner


def _within(cls: type[Description], name: str, now: Any, others: dict[str, Any]) -> Any:
    """Fields of a part, with others put in."""
    if now is None or now is False:
        others = {field: value for field, value in others.items() if value is not None}
        if others and cls.model_fields[name].default is not None:
            raise SpecError(f"{cls.__name__}: {name}.{next(iter(others))} needs {name}: true", (name,))
        return others or None
    if isinstance(now, Description):
        now = {field: getattr(now, field) for field in type(now).model_fields if field in now.model_fields_set}
    return {**(now if isinstance(now, Mapping) else {}), **others}


def explain_validation(model: type[BaseModel], error: ValidationError) -> str:
    """The first thing wrong with a description, in one line: what, where, which value, what would be right."""
    first = _first(error)
    owner, rest = _owner(model, first["loc"])
    where = ".".join(map(str, first["loc"])) or model.__name__
    if first["type"] == "extra_forbidden":
        part = where.removesuffix(f".{rest[0]}") if owner is not model else ""
        return f"{model.__name__}: {part and f'{part}: '}{unknown('field', rest[0], owner.model_fields)}"
    if first["type"] in _MISSHAPEN or (first["type"] == "missing" and len(rest) > 1):
        return f"{model.__name__}: {_misshapen(owner, rest[0], where, first)}"
    if first["type"] == "missing":
        return f"{model.__name__}: field {where} is missing"
    if first["type"] == "value_error":
        message = str(first["ctx"]["error"]) if "ctx" in first else first["msg"]
        return f"{model.__name__}: {message}"
    return f"{model.__name__}: {where}: {first['msg'][0].lower()}{first['msg'][1:]}, not {shown(first['input'])}"


def _first(error: ValidationError) -> Any:
    """The first thing wrong; of a part that was made on the way, what is wrong within it.

    A field that is not known comes before one that is missing, which it may be meant for.
    """
    first, *others = error.errors()
    if first["type"] == "missing":
        beside = (e for e in others if e["type"] == "extra_forbidden" and e["loc"][:-1] == first["loc"][:-1])
        first = next(beside, first)
    within = getattr(first.get("ctx", {}).get("error"), "__context__", None)
    if not isinstance(within, ValidationError):
        return first
    inner = _first(within)
    return {**inner, "loc": (*first["loc"], *inner["loc"])}


def _owner(model: type[BaseModel], place: tuple[int | str, ...]) -> tuple[type[BaseModel], tuple[int | str, ...]]:
    """The description that a place is in, a part, one of a list or the whole, and the place within that."""
    field = model.model_fields.get(str(place[0])) if len(place) > 1 else None
    part = None if field is None else _described(field)
    within = place[1:]
    if part is not None and isinstance(next(iter(within), None), int):  # one of a list
        within = within[1:]
    return (model, place) if part is None or not within else _owner(part, within)


_MISSHAPEN = frozenset({"tuple_type", "too_short", "too_long"})


def _misshapen(owner: type[BaseModel], name: Any, where: str, error: Any) -> str:
    """A field that is no list, or one of a wrong length."""
    field = where[: where.index(name) + len(name)]
    value = list(item) if isinstance(item := error["input"], tuple) else item
    meant = owner.model_fields[name].description
    if error["type"] == "tuple_type":
        return f"{field}: {shown(value)} is not a list: give {meant}"
    limit = error.get("ctx", {})
    bounds = {"min_length": "at least", "max_length": "at most"}
    bound = "".join(f", {words} {limit[key]:,}" for key, words in bounds.items() if key in limit and name != "input")
    return f"{field}: {shown(value)} has {len(value):,} item{'s' * (len(value) != 1)}: give {meant}{bound}"
