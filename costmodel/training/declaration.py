"""Optimizers and precisions of one's own, from their fields, checked as strictly as models are."""

from __future__ import annotations

from typing import Any

from costmodel.errors import CostModelError, SettingError, shown
from costmodel.training.fields import check_fields, check_names
from costmodel.training.optimizers import Optimizer, State
from costmodel.training.precision import Precision

MOST_STATES = 64
MOST_FLAT = 1024
"""Of an optimizer whose states are of all weights in a row."""


def declared(kind: type, value: Any, what: str) -> Any:
    """An optimizer or precision from a mapping of its fields; anything else as it is. Raises SettingError."""
    return built(kind, value, what) if isinstance(value, dict) else value


def built(kind: type, data: Any, what: str) -> Any:
    """An optimizer or precision from plain data that must be a mapping of its fields. Raises SettingError."""
    made = _made(kind, data, what)
    check_declared(what, made)
    return made


def check_declared(what: str, value: Any) -> None:
    """Raise SettingError unless what was declared, not named, has fields of the types that it says, and they agree."""
    if isinstance(value, str):
        return
    try:
        if isinstance(value, Optimizer):
            _check_counts(value, what)
        check_fields(value, what)
        for field in ("states", "vectors", "in_turn") if isinstance(value, Optimizer) else ():
            for number, state in enumerate(getattr(value, field) or ()):
                check_fields(state, f"{what}.{field}[{number}]")
    except CostModelError as error:
        raise SettingError(str(error)) from None
    if isinstance(value, Precision):
        value.check(what)


def _check_counts(optimizer: Optimizer, what: str) -> None:
    """Raise SettingError for more states, or tensors of an update, than any optimizer has: each is looked at."""
    most = MOST_FLAT if optimizer.flat is True else MOST_STATES
    for field in ("states", "vectors", "in_turn", "makes", "vectors_make", "together"):
        value = getattr(optimizer, field)
        count = sum(map(_how_many, value)) if isinstance(value, list | tuple) else value
        if isinstance(count, int) and count > most:
            raise SettingError(f"{what}.{field}: {shown(count)} are too many for a weight: use at most {most}")


def _how_many(state: Any) -> int:
    """Tensors that a state stands for; what is wrong with its field is said where fields are checked."""
    count = getattr(state, "count", 1)
    return count if isinstance(count, int) else 1


def _made(kind: type, data: Any, where: str) -> Any:
    """A precision, an optimizer or one of its states, from plain data."""
    if not isinstance(data, dict):
        raise SettingError(f"{where}: {shown(data)} is not a mapping of fields: start with a line such as 'name: mine'")
    try:
        check_names(kind, data, where)
    except CostModelError as error:
        raise SettingError(str(error)) from None
    lists = kind is Optimizer
    return kind(**{name: _states(value, f"{where}.{name}") if lists else value for name, value in data.items()})


def _states(value: Any, where: str) -> Any:
    """A list in an optimizer is one of states; anything else stands for itself."""
    if not isinstance(value, list | tuple) or len(value) > MOST_STATES:
        return value
    return tuple(_made(State, state, f"{where}[{n}]") for n, state in enumerate(value))
