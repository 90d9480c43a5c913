"""Frozen dataclasses whose methods are written once: generating them anew for each class slows a cold start."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, dataclass_transform

C = TypeVar("C", bound=type)


class Frozen:
    """Base for what `frozen` decorates: fields are set once, equal fields make equal objects."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

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
        shown = (f"{name}={self.__dict__[name]!r}" for name in self.__dataclass_fields__ if name in self.__dict__)
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass_transform(frozen_default=True)
def frozen(*, kw_only: bool = False) -> Callable[[C], C]:
    """Make a subclass of `Frozen` a dataclass, of which only ``__init__`` is generated."""
    return dataclasses.dataclass(eq=False, repr=False, match_args=False, kw_only=kw_only)
