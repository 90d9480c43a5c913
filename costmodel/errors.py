"""What can be wrong with a question, said in one clear line each."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from itertools import accumulate


class CostModelError(ValueError):
    """Base of every error that is the asker's to mend: a bad model, setting, file or name.

    Example:
        >>> import costmodel as cm
        >>> try:
        ...     cm.predict("gpt2-smal")
        ... except cm.CostModelError as error:
        ...     print(error)
        unknown model 'gpt2-smal': did you mean 'gpt2-small' or 'gpt2-xl' or 't5-small'?

    """


class SpecError(CostModelError):
    """A model description that cannot be built: wrong field, type, value or nesting.

    path: where in the description the value to blame is, if that is known.
    """

    def __init__(self, message: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.path = path


class ShapeError(CostModelError):
    """Shapes that do not fit the layer they meet."""


class SettingError(CostModelError):
    """A wrong argument to a verb, such as ``batch=0`` or ``seq`` for a CNN."""


class UnknownNameError(CostModelError):
    """A name that is not known; the message lists the nearest ones that are."""


DISTRIBUTION = "nn-costmodel"
"""What pip knows the package by."""


def not_installed(needs: str, extra: str) -> CostModelError:
    """Error of what needs a package that is not installed, with the extra of this one that brings it."""
    return CostModelError(f"{needs}: pip install '{DISTRIBUTION}[{extra}]'")


MOST_LISTED = 300
"""Characters of known names that an error lists; the others are counted."""


def unknown(what: str, name: object, known: Iterable[str], short: Iterable[str] = ()) -> UnknownNameError:
    """Error for an unknown `name`, with the nearest known ones (all, as far as they fit a line, when none is near).

    short: those to list, where what is known are many names for the same.
    """
    from difflib import get_close_matches  # only errors need it

    names = sorted(known)
    near = get_close_matches(name, names, n=3, cutoff=0.5) if isinstance(name, str) else []
    if near:
        return UnknownNameError(f"unknown {what} {shown(name)}: did you mean {' or '.join(map(repr, near))}?")
    return UnknownNameError(f"unknown {what} {shown(name)}: known are {listed(sorted(short) or names)}")


def a(noun: str) -> str:
    """A noun with its article: ``a machine``, ``an optimizer``."""
    return f"a{'n' * (noun[:1].lower() in 'aeiou')} {noun}"


def listed(names: Sequence[str]) -> str:
    """Names in one line: the first of them, and how many more there are."""
    ends = list(accumulate(len(name) + 2 for name in names))
    fit = max(1, sum(end <= MOST_LISTED for end in ends))
    return ", ".join(names[:fit]) + (f" and {len(names) - fit:,} more" if len(names) > fit else "")


def shown(value: object) -> str:
    """A value as errors show it: in one short line, whatever it is."""
    return " ".join(_SHORT.repr(value).splitlines())


class _Short(reprlib.Repr):
    """Bounded in length and depth; a number of more digits than Python prints has a text too."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 128 else f"a number of more than {x.bit_length() * 3 // 10} digits"


_SHORT = _Short()
