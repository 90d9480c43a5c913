"""Arithmetic on sizes: one line of code gives the number and, where a size is a `Letter`, the formula too.

A `Letter` is an int that also carries a symbolic expression. Every decision (does it divide, is it one) is taken on
the int, so numbers and formulas can never take different branches. Plain ints stay plain ints: sympy is imported only
by whoever makes the first letter.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, ClassVar, Literal

LARGEST_SIZE = 2**40
"""Sizes above this are refused: no tensor of that extent exists, and a typing slip does."""


class Letter(int):
    """An int that remembers how it was computed, as a sympy expression in the model's letters.

    everywhere: whether its formula must hold at all sizes, and not just at those where it was derived.
    """

    value: int
    expression: Any
    everywhere: ClassVar[bool] = False

    def __new__(cls, value: int, expression: Any) -> Letter:
        """An int `value` that is `expression` in letters."""
        letter = super().__new__(cls, value)
        letter.value = value
        letter.expression = expression
        return letter

    def __getnewargs__(self) -> tuple[int, Any]:  # type: ignore[override]
        return self.value, self.expression

    def __floordiv__(self, other: int) -> Letter:
        return Letter(int(self) // int(other), _floor(self.expression, expression(other)))

    def __rfloordiv__(self, other: int) -> Letter:
        return Letter(int(other) // int(self), _floor(expression(other), self.expression))

    def __neg__(self) -> Letter:
        return Letter(-int(self), -self.expression)

    def exact_div(self, divisor: int, *, reflected: bool = False) -> Letter:
        """`self / divisor`, or the other way round if reflected; see the function."""
        import sympy

        n, d = (divisor, self) if reflected else (self, divisor)
        return Letter(exact_div(int(n), int(d)), sympy.sympify(expression(n)) / expression(d))

    def ceil_div(self, divisor: int, *, reflected: bool = False) -> Letter:
        """`self / divisor` rounded up, or the other way round if reflected."""
        n, d = (divisor, self) if reflected else (self, divisor)
        return Letter(-(-int(n) // int(d)), _ceiling(expression(n), expression(d)))

    def extreme(self, op: Literal["min", "max"], other: int) -> Letter:
        """The smaller or the larger of two."""
        import sympy

        if op == "min":
            return Letter(min(int(self), int(other)), sympy.Min(self.expression, expression(other)))
        larger = max(int(self), int(other))
        return Letter(larger, sympy.Max(self.expression, expression(other), evaluate=False))

    def largest(self, sizes: Sequence[int]) -> Letter:
        """The largest of several, of which this is one."""
        return reduce(maximum, sizes)  # type: ignore[return-value]

    def undominated(self, sizes: Sequence[int]) -> list[int]:
        """See the function; of letters whose formulas need not hold everywhere, all."""
        return list(range(len(sizes)))


def _arithmetic(op: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(self: Letter, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        return Letter(op(int(self), int(other)), op(self.expression, expression(other)))

    def reflected(self: Letter, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        return Letter(op(int(other), int(self)), op(expression(other), self.expression))

    return forward, reflected


for _name, _op in (("add", operator.add), ("sub", operator.sub), ("mul", operator.mul)):
    _forward, _reflected = _arithmetic(_op)
    setattr(Letter, f"__{_name}__", _forward)
    setattr(Letter, f"__r{_name}__", _reflected)


def expression(size: int) -> Any:
    """The symbolic form of a size; a plain int is its own."""
    return size.expression if isinstance(size, Letter) else int(size)


def value_of(size: int) -> int:
    """The value of a size, for checks, texts and constants that no cost depends on: nothing may be decided on it."""
    return size.value if isinstance(size, Letter) else size


def product(sizes: Iterable[int]) -> int:
    """Product of sizes, 1 for none."""
    return math.prod(sizes)


def exact_div(size: int, divisor: int) -> int:
    """`size / divisor` where the caller knows that it divides.

    Raises ArithmeticError if it does not: a check is missing above.
    """
    if isinstance(size, Letter):
        return size.exact_div(divisor)
    if isinstance(divisor, Letter):
        return divisor.exact_div(size, reflected=True)
    quotient, rest = divmod(size, divisor)
    if rest:
        raise ArithmeticError(f"{size} is not a multiple of {divisor}")
    return quotient


def ceil_div(size: int, divisor: int) -> int:
    """`size / divisor`, rounded up."""
    if isinstance(size, Letter):
        return size.ceil_div(divisor)
    if isinstance(divisor, Letter):
        return divisor.ceil_div(size, reflected=True)
    return -(-size // divisor)


def ceil_root(size: int) -> int:
    """The square root of a size, rounded up: a plain int, decided on."""
    if not (isinstance(size, Letter) and size.everywhere):
        return math.isqrt(int(size) - 1) + 1
    root = 1
    while root * root < size:
        root += 1
    return root


def minimum(a: int, b: int) -> int:
    """The smaller of two sizes."""
    if isinstance(a, Letter):
        return a.extreme("min", b)
    return b.extreme("min", a) if isinstance(b, Letter) else min(a, b)


def maximum(a: int, b: int) -> int:
    """The larger of two sizes."""
    if isinstance(a, Letter):
        return a.extreme("max", b)
    return b.extreme("max", a) if isinstance(b, Letter) else max(a, b)


def largest(sizes: Sequence[int]) -> int:
    """The largest of one or more sizes."""
    letter = next((size for size in sizes if isinstance(size, Letter)), None)
    return max(sizes) if letter is None else letter.largest(sizes)


def undominated(sizes: Sequence[int]) -> list[int]:
    """Places of those that may be the largest of all somewhere, in order; of numbers the place of the first largest."""
    letter = next((size for size in sizes if isinstance(size, Letter) and size.everywhere), None)
    return [sizes.index(max(sizes))] if letter is None else letter.undominated(sizes)


def decided(size: int) -> int:
    """A size as decisions see it: without its formula, unless that is to hold everywhere."""
    return size if type(size) is int or (isinstance(size, Letter) and size.everywhere) else int(size)


def _ceiling(a: Any, b: Any) -> Any:
    """Ceiling of a quotient, with nested roundings joined: a chain of strides halves H once, by their product."""
    import sympy

    from costmodel.symbolic.symbols import CeilDiv

    a, b = sympy.expand(a), sympy.sympify(b)
    shift, rounded = a.as_coeff_Add()
    if isinstance(rounded, CeilDiv) and b.is_Integer:
        inner, divisor = rounded.args
        a, b = sympy.expand(inner + shift * divisor), divisor * b
    return CeilDiv(a, b)


def _floor(a: Any, b: Any) -> Any:
    return _ceiling(a - b + 1, b)
