"""Arithmetic on sizes: one line of code gives the number and, where a size is a `SymInt`, the formula too.

Every decision (does it divide, is it one) is taken on the number, so numbers and formulas can never take different
branches. Plain ints stay plain ints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

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

    def applied(self, op: str, sizes: Sequence[int]) -> SymInt:
        """What an operation of `OPERATIONS` makes of sizes, of which this is one."""
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


OPERATIONS: dict[str, Callable[..., int]] = {
    "ceil": lambda n, d: -(-n // d),
    "quotient": lambda n, d: n // d,
    "mod": lambda n, d: n % d,
    "min": lambda *sizes: min(sizes),
    "max": lambda *sizes: max(sizes),
}
"""What each operation beside sums and products works out. ceil: n/d rounded up. quotient: n/d where d divides n."""


def _apply(op: str, sizes: Sequence[int]) -> int:
    for size in sizes:
        if type(size) is not int and isinstance(size, SymInt):
            return size.applied(op, sizes)
    return OPERATIONS[op](*sizes)


def exact_div(size: int, divisor: int) -> int:
    """`size / divisor` where the caller knows that it divides.

    Raises ArithmeticError if it does not: a check is missing above.
    """
    if peek(size) % peek(divisor):
        raise ArithmeticError(f"{size} is not a multiple of {divisor}")
    return _apply("quotient", (size, divisor))


def ceil_div(size: int, divisor: int) -> int:
    """`size / divisor`, rounded up."""
    return _apply("ceil", (size, divisor))


def ceil_root(size: int) -> int:
    """The square root of a size, rounded up: a plain int, decided on."""
    if not (isinstance(size, SymInt) and size.guarded):
        return math.isqrt(int(size) - 1) + 1
    root = 1
    while root * root < size:
        root *= 2
    below = root // 2
    while root - below > 1:
        middle = (below + root) // 2
        if middle * middle < size:
            below = middle
        else:
            root = middle
    return root


def ceil_log2(size: int) -> int:
    """The logarithm of a size to the base of two, rounded up: a plain int, decided on."""
    if not (isinstance(size, SymInt) and size.guarded):
        return (int(size) - 1).bit_length()
    power = 0
    while size > 2**power:
        power += 1
    return power


def divisors(whole: int) -> list[int]:
    """Divisors of a number, in order."""
    small = [n for n in range(1, math.isqrt(whole) + 1) if whole % n == 0]
    return sorted({*small, *(whole // n for n in small)})


def minimum(a: int, b: int) -> int:
    """The smaller of two sizes."""
    return _apply("min", (a, b))


def maximum(a: int, b: int) -> int:
    """The larger of two sizes."""
    return _apply("max", (a, b))


def largest(sizes: Sequence[int]) -> int:
    """The largest of one or more sizes."""
    return _apply("max", sizes)


def undominated(sizes: Sequence[int]) -> list[int]:
    """Places of those that may be the largest of all somewhere, in order; of numbers the place of the first largest."""
    letter = next((size for size in sizes if isinstance(size, SymInt) and size.guarded), None)
    return [sizes.index(max(sizes))] if letter is None else letter.undominated(sizes)


def always_one(size: int) -> bool:
    """Whether a size is 1 whatever the letters are: no decision."""
    return type(size) is int and size == 1


def alike(some: Sequence[int], others: Sequence[int]) -> bool:
    """Whether sizes are the same whatever the letters are, as far as their formulas tell: no decision."""
    formulas = ([size.expression if isinstance(size, SymInt) else size for size in sizes] for sizes in (some, others))
    return next(formulas) == next(formulas)


def branch_value(size: int) -> int:
    """A size as decisions see it: without its formula, unless that is to hold everywhere."""
    return size if type(size) is int or (isinstance(size, SymInt) and size.guarded) else int(size)
