"""Frozen dataclasses whose methods are written once, and whose ``__init__`` is generated when one is first made.

Generating methods for each of the classes that are imported, of which a question makes a few, slows a cold start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, dataclass_transform

from costmodel.documents.arguments import called

C = TypeVar("C", bound=type)
F = TypeVar("F", bound="Frozen")


class _Signature:
    """That of the generated ``__init__``, for editors and ``help``."""

    def __get__(self, instance: object, owner: type[Frozen]) -> Any:
        from inspect import signature

        if instance is not None or not hasattr(owner, "__dataclass_fields__"):
            raise AttributeError("__signature__")
        own = signature(owner.__init__)
        return own.replace(parameters=[*own.parameters.values()][1:])


class Frozen:
    """Base for what `frozen` decorates: fields are set once, equal fields make equal objects."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    __signature__: ClassVar[Any] = _Signature()

    def __init__(self, *values: Any, **named: Any) -> None:
        """Generate the ``__init__`` of the class, and call that."""
        if not hasattr(type(self), "__dataclass_fields__"):
            raise TypeError(f"{type(self).__name__} is abstract")
        self.__init__(*values, **named)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__ or name not in self.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def _values(self) -> tuple[Any, ...]:
        """Fields alone: a cached property is in ``__dict__`` too."""
        return tuple(map(self.__dict__.get, self.__dataclass_fields__))

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *self._values()))

    def __repr__(self) -> str:
        """The call that makes it, without what is at its default."""
        given = {name: self.__dict__[name] for name in self.__dataclass_fields__ if name in self.__dict__}
        fields = (f"{name}={value!r}" for name, value in given.items() if not self._is_default(name, value))
        return f"{type(self).__name__}({', '.join(fields)})"

    def _is_default(self, name: str, value: Any) -> bool:
        default = self.__dataclass_fields__[name].default
        return type(value) is type(default) and value == default


def varied(own: F, **values: Any) -> F:
    """The same with other values as they are kept, which are not checked: for very many that are known to be right."""
    other = object.__new__(type(own))
    other.__dict__.update({name: own.__dict__[name] for name in own.__dataclass_fields__} | values)
    return other


class _Pending:
    """Fields of a class that is no dataclass yet: it is made one when they are asked for.

    The ``__init__`` is generated on a stand-in, and the fields are published after it: whoever sees them, in whichever
    thread, can make an object. Threads that ask at once each generate the same; a lock would be held over a fork.
    """

    def __init__(self, cls: type, kw_only: bool) -> None:
        self.cls = cls
        self.kw_only = kw_only

    def __get__(self, instance: object, owner: type) -> dict[str, Any]:
        cls = self.cls
        bases = [base for base in reversed(cls.__mro__[1:]) if hasattr(base, "__dataclass_fields__")]
        inherited = {field.name: field for base in bases for field in dataclasses.fields(base)}
        annotations = {name: field.type for name, field in inherited.items()} | cls.__annotations__
        defaults = {name: getattr(cls, name) for name in (*cls.__annotations__, "__post_init__") if hasattr(cls, name)}
        names = {"__annotations__": annotations, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        stand_in: Any = type(cls.__name__, (), {"__doc__": cls.__doc__ or "-", **names, **inherited, **defaults})
        # frozen: its ``__init__`` sets fields past `Frozen.__setattr__`, which Python would run for each.
        dataclasses.dataclass(eq=False, repr=False, match_args=False, kw_only=self.kw_only, frozen=True)(stand_in)
        stand_in.__init__.__doc__ = cls.__doc__  # whose example an error shows
        type.__setattr__(cls, "__init__", called(stand_in.__init__))
        type.__setattr__(cls, "__dataclass_fields__", stand_in.__dataclass_fields__)
        return stand_in.__dataclass_fields__


@dataclass_transform(frozen_default=True)
def frozen(*, kw_only: bool = False) -> Callable[[C], C]:
    """Make a subclass of `Frozen` a dataclass, of which only ``__init__`` is generated."""

    def mark(cls: C) -> C:
        type.__setattr__(cls, "__dataclass_fields__", _Pending(cls, kw_only))
        if cls.__init__ is not Frozen.__init__:  # that of a base, which has other fields
            cls.__init__ = Frozen.__init__
        return cls

    return mark
