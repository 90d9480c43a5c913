"""Arithmetic on sizes: one line of code gives the number and, where a size is a `Letter`, the formula too.

A `Letter` is an int that also carries a symbolic expression. Every decision (does it divide, is it one) is taken on
the int, so numbers and formulas can never take different branches. Plain ints stay plain ints: sympy is imported only
by whoever makes the first letter.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

LARGEST_SIZE = 2**40
"""Sizes above this are refused: no tensor of that extent exists, and a typing slip does."""


class Letter(int):
    """An int that remembers how it was computed, as a sympy expression in the model's letters."""

    expression: Any

    def __new__(cls, value: int, expression: Any) -> Letter:
        """An int `value` that is `expression` in letters."""
        letter = super().__new__(cls, value)
        letter.expression = expression
        return letter

    def __floordiv__(self, other: int) -> Letter:
        return Letter(int(self) // int(other), _floor(self.expression, expression(other)))

    def __rfloordiv__(self, other: int) -> Letter:
        return Letter(int(other) // int(self), _floor(expression(other), self.expression))

    def __neg__(self) -> Letter:
        return Letter(-int(self), -self.expression)


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


def product(sizes: Iterable[int]) -> int:
    """Product of sizes, 1 for none."""
    return math.prod(sizes)


def exact_div(size: int, divisor: int) -> int:
    """`size / divisor` where the caller knows that it divides.

    Raises ArithmeticError if it does not: a check is missing above.
    """
    quotient, rest = divmod(int(size), int(divisor))
    if rest:
        raise ArithmeticError(f"{size} is not a multiple of {divisor}")
    if isinstance(size, Letter) or isinstance(divisor, Letter):
        import sympy

        return Letter(quotient, sympy.sympify(expression(size)) / expression(divisor))
    return quotient


def ceil_div(size: int, divisor: int) -> int:
    """`size / divisor`, rounded up."""
    value = -(-int(size) // int(divisor))
    if isinstance(size, Letter) or isinstance(divisor, Letter):
        return Letter(value, _ceiling(expression(size), expression(divisor)))
    return value


def minimum(a: int, b: int) -> int:
    """The smaller of two sizes."""
    if isinstance(a, Letter) or isinstance(b, Letter):
        import sympy

        return Letter(min(int(a), int(b)), sympy.Min(expression(a), expression(b)))
    return min(a, b)


def maximum(a: int, b: int) -> int:
    """The larger of two sizes."""
    if isinstance(a, Letter) or isinstance(b, Letter):
        import sympy

        return Letter(max(int(a), int(b)), sympy.Max(expression(a), expression(b), evaluate=False))
    return max(a, b)


def _ceiling(a: Any, b: Any) -> Any:
    """Ceiling of a quotient, with nested roundings joined: a chain of strides halves H once, by their product."""
    import sympy

    from costmodel.symbols import CeilDiv

    a, b = sympy.expand(a), sympy.sympify(b)
    shift, rounded = a.as_coeff_Add()
    if isinstance(rounded, CeilDiv) and b.is_Integer:
        inner, divisor = rounded.args
        a, b = sympy.expand(inner + shift * divisor), divisor * b
    return CeilDiv(a, b)


def _floor(a: Any, b: Any) -> Any:
    return _ceiling(a - b + 1, b)
