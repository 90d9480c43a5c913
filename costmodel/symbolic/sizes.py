"""Arithmetic on sizes: one line of code gives the number and, where a size is a `SymInt`, the formula too.

Every decision (does it divide, is it one) is taken on the number, so numbers and formulas can never take different
branches. Plain ints stay plain ints.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

LARGEST_SIZE = 2**40
"""Sizes above this are refused: no tensor of that extent exists, and a typing slip does."""


class SymInt(int):
    """A size that remembers how it was computed, as a `Polynomial` in the model's letters; `guards.symint` makes them.

    guarded: whether its formula must hold wherever the same decisions come out alike, and not just here.
    """

    value: int
    expression: Any
    guarded: bool

    def pin(self) -> int:
        """The value; noted as what it is, where decisions are."""
        raise NotImplementedError

    def exact_div(self, divisor: int, *, reflected: bool = False) -> SymInt:
        """`self / divisor`, or the other way round if reflected; see the function."""
        raise NotImplementedError

    def ceil_div(self, divisor: int, *, reflected: bool = False) -> SymInt:
        """`self / divisor` rounded up, or the other way round if reflected."""
        raise NotImplementedError

    def extreme(self, op: Literal["min", "max"], other: int) -> SymInt:
        """The smaller or the larger of two."""
        raise NotImplementedError

    def largest(self, sizes: Sequence[int]) -> SymInt:
        """The largest of several, of which this is one."""
        raise NotImplementedError

    def undominated(self, sizes: Sequence[int]) -> list[int]:
        """See the function."""
        raise NotImplementedError


def peek(size: int) -> int:
    """The value of a size, for checks, texts and constants that no cost depends on: nothing may be decided on it."""
    return size.value if isinstance(size, SymInt) else size


def product(sizes: Iterable[int]) -> int:
    """Product of sizes, 1 for none."""
    return math.prod(sizes)


def exact_div(size: int, divisor: int) -> int:
    """`size / divisor` where the caller knows that it divides.

    Raises ArithmeticError if it does not: a check is missing above.
    """
    if isinstance(size, SymInt):
        return size.exact_div(divisor)
    if isinstance(divisor, SymInt):
        return divisor.exact_div(size, reflected=True)
    quotient, rest = divmod(size, divisor)
    if rest:
        raise ArithmeticError(f"{size} is not a multiple of {divisor}")
    return quotient


def ceil_div(size: int, divisor: int) -> int:
    """`size / divisor`, rounded up."""
    if isinstance(size, SymInt):
        return size.ceil_div(divisor)
    if isinstance(divisor, SymInt):
        return divisor.ceil_div(size, reflected=True)
    return -(-size // divisor)


def ceil_root(size: int) -> int:
    """The square root of a size, rounded up: a plain int, decided on."""
    if not (isinstance(size, SymInt) and size.guarded):
        return math.isqrt(int(size) - 1) + 1
    root = 1
    while root * root < size:
        root += 1
    return root


def minimum(a: int, b: int) -> int:
    """The smaller of two sizes."""
    if isinstance(a, SymInt):
        return a.extreme("min", b)
    return b.extreme("min", a) if isinstance(b, SymInt) else min(a, b)


def maximum(a: int, b: int) -> int:
    """The larger of two sizes."""
    if isinstance(a, SymInt):
        return a.extreme("max", b)
    return b.extreme("max", a) if isinstance(b, SymInt) else max(a, b)


def largest(sizes: Sequence[int]) -> int:
    """The largest of one or more sizes."""
    letter = next((size for size in sizes if isinstance(size, SymInt)), None)
    return max(sizes) if letter is None else letter.largest(sizes)


def undominated(sizes: Sequence[int]) -> list[int]:
    """Places of those that may be the largest of all somewhere, in order; of numbers the place of the first largest."""
    letter = next((size for size in sizes if isinstance(size, SymInt) and size.guarded), None)
    return [sizes.index(max(sizes))] if letter is None else letter.undominated(sizes)


def branch_value(size: int) -> int:
    """A size as decisions see it: without its formula, unless that is to hold everywhere."""
    return size if type(size) is int or (isinstance(size, SymInt) and size.guarded) else int(size)
