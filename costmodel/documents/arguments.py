"""Values held to the types that arguments and fields are declared with, in one place and strictly.

NumPy's scalars are the numbers of Python that they equal. Nothing else is made of a value: True is no number, 3.0 no
whole number, "3" neither; infinity and nan are none unless the declaration says so.
"""

from __future__ import annotations

import builtins
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, wraps
from inspect import Parameter, signature
from itertools import islice
from math import inf
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from costmodel.errors import LONGEST_ERROR, CostModelError, SettingError, SpecError, a, shown, unknown

LARGEST_FLOAT = sys.float_info.max
"""Beyond this a whole number has no float."""

Typed = TypeVar("Typed", bound=Callable[..., Any])


class Bounds(NamedTuple):
    """Which numbers are taken, in an annotation beside their type. text: what they are, as errors say it.

    least, most: the ends, taken too; below: an end that is not. infinite: whether infinity and nan are numbers too.
    """

    text: str
    least: float = -inf
    most: float = inf
    below: float = inf
    infinite: bool = False


Positive = Annotated[float, Bounds("a number above 0", 5e-324)]
Reserve = str | Annotated[int, Bounds("a number of bytes", 0)] | None
"""Memory that is left free: an amount, none, or what is left by default."""
MOST_CHECKED = 10_000
"""Items of a list whose types are looked at: those of a range do not end."""
MOST_WHOLE = 10**30
"""Whole numbers beyond this count nothing."""
MISFIT = object()
"""What `fit` gives for a value that does not fit its type."""


def native(value: Any) -> Any:
    """The Python number or truth value that a NumPy scalar equals; anything else as it is."""
    if type(value).__module__ != "numpy" or not hasattr(value, "item") or hasattr(value, "__len__"):
        return value
    return value.item()


def natives(value: Any, depth: int = 6) -> Any:
    """Plain data with `native` values, down to a depth; what has more items than any description is as it was."""
    if type(value) in (list, tuple, dict) and len(value) > MOST_CHECKED:
        return value
    if type(value) is dict and depth:
        return {key: natives(item, depth - 1) for key, item in value.items()}
    if type(value) in (list, tuple) and depth:
        return type(value)(natives(item, depth - 1) for item in value)
    return native(value)


def fit(value: Any, wanted: Any, least: int = 1, most: float = inf) -> Any:
    """A value for a type, lists made tuples where tuples are wanted; MISFIT if it is of another.

    least, most: of whole numbers, where the type does not say.
    """
    origin = get_origin(wanted)
    if origin is Annotated:
        return _fit_range(value, wanted, least, most)
    if origin in (Union, UnionType):
        options = get_args(wanted)
        if isinstance(value, str) and any(get_origin(option) is os.PathLike for option in options):
            return value  # where a path is taken, so is its text
        fitted = (fit(value, option, least, most) for option in options)
        return next((option for option in fitted if option is not MISFIT), MISFIT)
    if origin is tuple:
        return _fit_tuple(value, get_args(wanted), least, most)
    if origin is Literal:
        return value if isinstance(value, str) and value in get_args(wanted) else MISFIT
    value = native(value) if wanted in (int, float, bool) else value
    return value if _is(value, origin or wanted, get_args(wanted), least, most) else MISFIT


def fits(value: Any, wanted: Any, least: int = 1, most: float = inf) -> bool:
    """Whether a value is of a type, as `fit` takes it."""
    return fit(value, wanted, least, most) is not MISFIT


def _is(value: Any, kind: Any, items: tuple[Any, ...], least: int, most: float) -> bool:
    """Whether a value is of a kind that has no alternatives; items: types of what it holds."""
    if kind is Any or isinstance(kind, TypeVar):
        return True
    if kind is None:
        return value is None
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_FLOAT
    if isinstance(kind, _Unimported):
        return any(base.__name__ == kind.__name__ for base in type(value).__mro__)
    if not isinstance(value, kind) or (isinstance(value, str | bytes) and kind not in (str, object)):
        return False
    if not items or not isinstance(value, Collection):
        return True
    return all(fits(item, items[0], least, most) for item in islice(value, MOST_CHECKED))


def _fit_range(value: Any, wanted: Any, least: int, most: float) -> Any:
    kind, *marks = get_args(wanted)
    mark = next((each for each in marks if isinstance(each, Bounds)), None)
    if mark is None:
        return fit(value, kind, least, most)
    number = native(value)
    if mark.infinite and isinstance(number, float):
        return number
    number = fit(number, kind, -sys.maxsize, most)
    return number if number is not MISFIT and mark.least <= number <= mark.most and number < mark.below else MISFIT


def _fit_tuple(value: Any, items: tuple[Any, ...], least: int, most: float) -> Any:
    if not isinstance(value, list | tuple):
        return MISFIT
    if items[-1] is Ellipsis:  # axes and shapes: 0 is an axis
        items, least = (items[0],) * len(value), 0
    fitted = tuple(fit(v, t, least, most) for v, t in zip(value, items, strict=False))
    return MISFIT if len(items) != len(value) or any(v is MISFIT for v in fitted) else fitted


def misfit(
    where: str, value: Any, wanted: Any, least: int = 1, most: float = inf, between: str = ": "
) -> CostModelError:
    """The error for a value that does not fit the type of a field or argument, which `where` names.

    between: of the name and the value.
    """
    options = get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)
    names = [name for option in options if get_origin(option) is Literal for name in get_args(option)]
    if names and isinstance(value, str):
        return unknown(where if between == "=" else f"value of {where}", value, names)
    for option in options:
        kind, items = get_origin(option), get_args(option)
        if not (isinstance(value, Collection) and isinstance(kind, type) and kind is not tuple and items):
            continue
        if isinstance(value, str | bytes) or not isinstance(value, kind):
            continue
        for place, item in enumerate(islice(value, MOST_CHECKED)):
            if not fits(item, items[0], least, most):
                if isinstance(value, Mapping):
                    return SpecError(f"{where}: its key {shown(item)} is not {_described(items[0], least, most)}")
                return misfit(f"{where}[{place}]", item, items[0], least, most, between)
    return SpecError(f"{where}{between}{show(value)} is not {_described(wanted, least, most)}")


def _described(wanted: Any, least: int, most: float) -> str:
    origin = get_origin(wanted)
    if origin is Annotated:
        kind, *marks = get_args(wanted)
        texts = [mark.text for mark in marks if isinstance(mark, Bounds)]
        return texts[0] if texts else _described(kind, least, most)
    if origin in (Union, UnionType):
        options = [option for option in get_args(wanted) if option not in (None, NoneType)]
        return " or ".join(dict.fromkeys(_described(option, least, most) for option in options))
    if origin is tuple:
        items = get_args(wanted)
        several = "whole numbers" if items[0] is int else f"{getattr(items[0], '__name__', 'value')}s"
        return f"a list of {several}" if items[-1] is Ellipsis else f"a list of {len(items)}"
    if origin is Literal:
        return " or ".join(get_args(wanted))
    bound = f" from {least} to {most:,}" if most < inf else f" from {least}"
    names = {int: f"a whole number{bound}", float: "a finite number", bool: "true or false", str: "a text"}
    kind = origin or wanted
    return names.get(kind) or _NAMES.get(kind.__name__) or a(kind.__name__)


_NAMES = {
    "PathLike": "a path",
    "Callable": "a function",
    "Iterable": "a list",
    "Sequence": "a list",
    "Mapping": "a mapping",
    "dict": "a mapping",
}
"""What errors call types that people know by another name."""


def show(value: Any) -> str:
    """A value as it reads in an error, cut to a line."""
    if isinstance(value, dict):
        return f"a mapping of {len(value)}"
    if isinstance(value, list | tuple):
        flat = len(value) <= 4 and not any(isinstance(v, dict | list | tuple) for v in value)
        return f"[{', '.join(map(show, value))}]" if flat else f"a list of {len(value)}"
    return shown(value)


class _Unimported:
    """A class that is named in an annotation and imported for type checkers alone: what has its name is one."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __or__(self, other: Any) -> Any:
        return Union[self, other]  # noqa: UP007  (which takes what is no class)

    __ror__ = __or__

    def __getitem__(self, _: Any) -> _Unimported:
        return self

    def __getattr__(self, name: str) -> _Unimported:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unimported(name)

    def __call__(self) -> None:
        """Union takes only what can be called."""


class _Names(dict[str, Any]):
    """The names of a module, for its annotations."""

    def __missing__(self, name: str) -> Any:
        known = os.PathLike if name == "PathLike" else getattr(builtins, name, None)  # what is a path has no such base
        return known or _Unimported(name)


@cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The type of each argument of a function."""
    return get_type_hints(function, {}, _Names(vars(sys.modules[function.__module__])), include_extras=True)


def typed(function: Typed) -> Typed:
    """Hold the arguments that a function declares to their types, when it is called; of a class, those of its making.

    A whole number is at least 1, or 0 where that is its default, unless its `Bounds` says otherwise. What it takes as
    keywords beside (settings, fields) is left to the function. Raises SettingError.
    """
    if isinstance(function, type):
        own: Any = function
        own.__init__ = _checking(own.__init__)
        return own
    return _checking(function)


def _checking(function: Any) -> Any:
    """A function that calls another with arguments of the right types."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    rest = code.co_varnames[len(names) + len(keywords)] if code.co_flags & 0x04 else ""  # CO_VARARGS
    known: Collection[str] = frozenset((*names, *keywords))
    zero = _defaults_of_zero(function)

    def held(name: str, value: Any) -> Any:
        wanted = _hints(function).get(name, Any)
        least = 0 if name in zero else 1
        fitted = fit(value, wanted, least, MOST_WHOLE)
        if fitted is MISFIT:
            raise SettingError(str(misfit(name, value, wanted, least, between="=")))
        return fitted

    @wraps(function)
    def checking(*values: Any, **named: Any) -> Any:
        ordered = [held(name, value) for name, value in zip(names, values, strict=False)]
        others = values[len(names) :]
        others = [held(rest, value) for value in others] if rest else others
        keywords = {name: held(name, value) if name in known else value for name, value in named.items()}
        try:
            return function(*ordered, *others, **keywords)
        except TypeError:
            check_call(checking, values, named)
            raise

    return checking


def called(function: Typed) -> Typed:
    """Hold a call to the arguments that there are, in one line where Python's own error would not say what is right.

    Their types are left to the function, other than by `typed`. Raises SettingError, UnknownNameError.
    """

    @wraps(function)
    def calling(*values: Any, **named: Any) -> Any:
        try:
            return function(*values, **named)
        except TypeError:
            check_call(calling, values, named)
            raise

    return calling  # type: ignore[return-value]


def check_call(wrapper: Any, values: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise SettingError for arguments too many, too few or given twice, UnknownNameError for one that there is not."""
    function = wrapper.__wrapped__
    takes = signature(function)
    try:
        takes.bind(*values, **named)
    except TypeError:
        pass
    else:
        return  # an error of something else
    parameters = [each for each in takes.parameters.values() if each.name != "self"]
    values = values[len(takes.parameters) - len(parameters) :]
    title = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    placed = [each.name for each in parameters if each.kind is Parameter.POSITIONAL_OR_KEYWORD]
    others = [each.name for each in parameters if each.kind is Parameter.KEYWORD_ONLY]
    needed = [each.name for each in parameters if each.default is Parameter.empty and each.name in (*placed, *others)]
    missing = [name for name in needed if name not in (*placed[: len(values)], *named)]
    sample = _example(wrapper, title)
    if len(values) > len(placed):
        more = values[len(placed)]
        keywords = {name: kind for name, kind in _keywords(wrapper).items() if name not in named}
        numbers = keywords if isinstance(native(more), int | float) else {}
        likely = missing[:1] or [name for name, kind in numbers.items() if fits(more, kind)]
        by_name = f"give it by its name{f', such as {likely[0]}={shown(more)}' if likely else ''}"
        alone = f"{_and(placed)} alone" if placed else "nothing"
        text = f"{title} takes {alone} without a name, not {shown(more)}: {by_name if keywords else 'leave it out'}"
        raise SettingError(_with(text, sample))
    for name in placed[: len(values)]:
        if name in named:
            raise SettingError(
                f"{title} is given {name} twice, as {shown(values[placed.index(name)])} too: leave one out"
            )
    settings = any(each.kind is Parameter.VAR_KEYWORD for each in parameters)  # which the function reads itself
    for name in () if settings else named:
        if name not in (*placed, *others):
            raise unknown(f"argument of {title}", name, [*placed, *others])
    if missing:
        raise SettingError(
            _with(f"{title} needs {_and(missing)}", sample or f": give {'them' if len(missing) > 1 else 'it'}")
        )


def _and(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " * (len(names) > 1) + names[-1]


def _keywords(wrapper: Any) -> dict[str, Any]:
    """The types of all that a function takes by name alone, settings among them."""
    hints = _hints(wrapper.__wrapped__)
    whole = signature(wrapper).parameters.values()
    return {each.name: hints.get(each.name, each.annotation) for each in whole if each.kind is Parameter.KEYWORD_ONLY}


def _example(wrapper: Any, title: str) -> str:
    """The call in the example of a function's documentation, where that is of one line; else ""."""
    call = re.search(rf">>>.*?\b((?:cm|roofline)\.(?:\w+\.)*{title}\([^()\n]*\))", wrapper.__doc__ or "")
    return f", as in {call[1]}" if call else ""


def _with(text: str, sample: str) -> str:
    """An error and a sample of what is right, where both fit a line."""
    return text + sample if len(text + sample) < LONGEST_ERROR else text


def _defaults_of_zero(function: Any) -> frozenset[str]:
    """Arguments whose default is 0, which is taken then."""
    code, ends = function.__code__, function.__defaults__ or ()
    positional = code.co_varnames[: code.co_argcount]
    defaults = dict(zip(reversed(positional), reversed(ends), strict=False)) | (function.__kwdefaults__ or {})
    return frozenset(name for name, value in defaults.items() if type(value) is int and value == 0)
