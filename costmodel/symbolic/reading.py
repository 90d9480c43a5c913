"""Polynomials as people read them, factored, and written as sympy writes them without loading it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from costmodel.symbolic.polynomial import REMEMBERED, Atom, Polynomial, arguments
from costmodel.symbolic.sizes import OPERATIONS

if TYPE_CHECKING:
    import sympy

Powers = tuple[tuple["Factor", int], ...]
"""Factors with their exponents, each factor once; a negative exponent is of a divisor."""
Terms = dict[Powers, Fraction | int]
"""The coefficient of each product."""
_CLASSES = {"letter": (2, 0, ""), "ceil": (4, 10_000, "CeilDiv"), "mod": (4, 10_000, "Mod")}
_CLASSES |= {"quotient": (4, 10_000, "Quotient"), "max": (5, 0, "Max"), "min": (5, 0, "Min")}
"""The order of sympy's classes, in which factors are written; sums are between letters and functions."""


class Factor(NamedTuple):
    """A letter (op "letter", `name`), a sum in brackets ("sum") or a function of sums.

    Functions are "ceil", "mod", "min" and "max", and "quotient" where exact quotients are no fractions.
    """

    op: str
    name: str = ""
    args: tuple[Sum, ...] = ()

    @property
    def order(self) -> Any:
        """What sympy sorts it by among others."""
        return _order(self)

    def text(self, values: Mapping[str, Any]) -> str:
        """As it is written, with `values` for letters."""
        if self.op == "letter":
            return str(values.get(self.name, self.name))
        if self.op == "sum":
            return f"({self.args[0].text(values)})"
        if self.op == "ceil":
            rounding, n, d = _rounding(*self.args)
            return f"{rounding}({'/'.join(x.text(values) if x.is_single else f'({x.text(values)})' for x in (n, d))})"
        return f"{self.op.title()}({', '.join(arg.text(values) for arg in self.args)})"

    def value(self, point: Mapping[str, int]) -> Any:
        """Its value where the letters have those of `point`."""
        if self.op == "letter":
            return point[self.name]
        values = [arg.value(point) for arg in self.args]
        return values[0] if self.op == "sum" else OPERATIONS[self.op](*values)

    def letters(self) -> set[str]:
        """Names of the letters within."""
        return {self.name} if self.op == "letter" else set().union(*(arg.letters() for arg in self.args))

    def sympy(self) -> Any:
        """The same as a sympy expression."""
        import sympy

        if self.op == "letter":
            return sympy.Symbol(self.name, integer=True, positive=True)
        args = [arg.sympy() for arg in self.args]
        if self.op == "sum":
            return args[0]
        if self.op in ("min", "max"):
            return (sympy.Min if self.op == "min" else sympy.Max)(*args, evaluate=False)
        from costmodel.symbolic.symbols import CeilDiv

        return (CeilDiv if self.op == "ceil" else sympy.Mod)(*args)


@lru_cache(REMEMBERED)
def _order(factor: Factor) -> Any:
    if factor.op == "sum":
        return factor.args[0].order[:2]
    name = (1, (factor.name,)) if factor.name else (len(factor.args), tuple(a.order for a in factor.args))
    return _CLASSES[factor.op], name


class Sum(NamedTuple):
    """A sum of products, each with its coefficient."""

    terms: frozenset[tuple[Powers, Fraction | int]]

    @classmethod
    def of(cls, terms: Terms) -> Sum:
        """One of products with these coefficients."""
        return cls(frozenset((powers, c) for powers, c in terms.items() if c))

    @property
    def is_single(self) -> bool:
        """Whether it is a number or a power of one factor."""
        return all(not powers or (c == 1 and len(powers) == 1) for powers, c in self.terms) and len(self.terms) <= 1

    @property
    def ordered(self) -> list[tuple[Powers, Fraction | int]]:
        """Terms by the powers of their factors, the highest of the first factor first, as sympy writes them."""
        if len(self.terms) == 1:
            return list(self.terms)
        factors = sorted({factor for powers, _ in self.terms for factor, _ in powers}, key=lambda factor: factor.order)
        terms = sorted(self.terms, key=lambda term: _exponents(dict(term[0]), factors))
        if len(terms) == 2 and not terms[1][0] and terms[0][1] < 0 < terms[1][1] and len(terms[0][0]) == 1:
            return terms[::-1]
        return terms

    @property
    def order(self) -> Any:
        """What sympy sorts it by among others."""
        return _order_of_sum(self)

    def text(self, values: Mapping[str, Any]) -> str:
        """As it is written, with `values` for letters."""
        text = "".join(f" {'-' if c < 0 else '+'} {_product(powers, c, values)}" for powers, c in self.ordered)
        return (f"-{text[3:]}" if text.startswith(" - ") else text[3:]) or "0"

    def value(self, point: Mapping[str, int]) -> Any:
        """Its value where the letters have those of `point`."""
        return sum(c * prod(Fraction(factor.value(point)) ** n for factor, n in powers) for powers, c in self.terms)

    def letters(self) -> set[str]:
        """Names of the letters within."""
        return set().union(*(factor.letters() for powers, _ in self.terms for factor, _ in powers))

    def sympy(self) -> sympy.Expr:
        """The same as a sympy expression in positive whole symbols."""
        import sympy

        products = ((c, sympy.Mul(*(factor.sympy() ** n for factor, n in powers))) for powers, c in self.terms)
        return sympy.Add(*(sympy.Rational(*Fraction(c).as_integer_ratio()) * each for c, each in products))


@lru_cache(REMEMBERED)
def _order_of_sum(of: Sum) -> Any:
    if len(of.terms) > 1:
        return (3, 1, "Add"), (len(of.terms), tuple(Sum(frozenset([term])).order for term in of.ordered)), 1, 1
    powers, c = next(iter(of.terms), ((), 0))
    if not powers:
        return (1, 0, "Number"), (0, ()), 1, c
    factors = tuple((*factor.order, n, 1) for factor, n in powers)
    return (*factors[0][:3], c) if len(factors) == 1 else ((3, 0, "Mul"), (len(factors), factors), 1, c)


def _exponents(powers: Mapping[Factor, int], factors: Sequence[Factor]) -> list[int]:
    """Of each factor its exponent in a product, negated: what has the highest comes first."""
    return [-powers.get(factor, 0) for factor in factors]


def readable(
    formula: Polynomial, counts: Sequence[str] = (), fronts: Sequence[str] = (), *, fractions: bool = True
) -> Sum:
    """A polynomial as a sum over the letters of `counts`, with those of `fronts` before what they multiply.

    A maximum is one of such sums. fractions: whether an exact quotient is distributed over the terms of what is
    divided, each a fraction then, or is a function, whose value is whole.
    """
    return _readable(formula, tuple(counts), tuple(fronts), fractions)


@lru_cache(REMEMBERED)
def _readable(formula: Polynomial, counts: tuple[str, ...], fronts: tuple[str, ...], fractions: bool) -> Sum:
    if len(candidates := arguments("max", formula)) > 1:
        return Sum.of(_function("max", [_readable(candidate, counts, fronts, fractions) for candidate in candidates]))
    parts: dict[Powers, Terms] = {}
    for powers, c in _expanded(formula, fractions).terms:
        counted = tuple(power for power in powers if power[0].name in counts)
        parts.setdefault(counted, {})[tuple(power for power in powers if power not in counted)] = c
    commons = {counted: _common(part, fronts) for counted, part in parts.items()}
    shared = _common(commons.values(), fronts)
    total: Terms = {}
    for counted, part in parts.items():
        outside = _times(counted, _times(commons[counted], _inverse(shared)))
        inside = {_times(powers, _inverse(commons[counted])): c for powers, c in part.items()}
        total |= _in_brackets(outside, inside)
    return Sum.of(_in_brackets(shared, total))


def _in_brackets(outside: Powers, inside: Terms) -> Terms:
    """A product with a sum, which stands in brackets if both have to be told apart."""
    if not outside or len(inside) == 1:
        return {_times(outside, powers): c for powers, c in inside.items()}
    return {_times(outside, ((Factor("sum", args=(Sum.of(inside),)), 1),)): 1}


def _expanded(formula: Polynomial, fractions: bool) -> Sum:
    """The same polynomial, term by term."""
    total: Terms = {}
    for monomial, coefficient in formula.terms.items():
        letters = [(_letter(atom.key), n) for atom, n in monomial if atom.op == "letter"]
        product: Terms = {_sorted(letters): coefficient}
        for atom, n in monomial:
            for _ in range(n if atom.op != "letter" else 0):
                product = _multiplied(product, _terms_of(atom, fractions))
        for powers, c in product.items():
            total[powers] = total.get(powers, 0) + c
    return Sum.of(total)


@lru_cache(REMEMBERED)
def _letter(name: str) -> Factor:
    return Factor("letter", name)


def _terms_of(atom: Atom, fractions: bool) -> Terms:
    args = [_expanded(argument, fractions) for argument in atom.args]
    if atom.op != "quotient" or not fractions:
        return _function(atom.op, args)
    n, d = args
    powers, c = next(iter(d.terms)) if len(d.terms) == 1 else (((Factor("sum", args=(d,)), 1),), 1)
    return _multiplied(dict(n.terms), {_inverse(powers): Fraction(1, c)})


def _function(op: str, args: Sequence[Sum]) -> Terms:
    """A function of sums as terms: of numbers alone a number."""
    distinct = sorted(set(args), key=lambda arg: arg.order) if op in ("min", "max") else args
    factor = Factor(op, args=tuple(distinct))
    if not factor.letters():
        return {(): factor.value({})}
    return {((factor, 1),): 1} if len(distinct) > 1 else dict(distinct[0].terms)


def _multiplied(a: Terms, b: Terms) -> Terms:
    total: Terms = {}
    for one, m in a.items():
        for other, n in b.items():
            powers = _times(one, other)
            total[powers] = total.get(powers, 0) + m * n
    return total


def _times(a: Powers, b: Powers) -> Powers:
    powers = dict(a)
    for factor, n in b:
        powers[factor] = powers.get(factor, 0) + n
    return _sorted((factor, n) for factor, n in powers.items() if n)


def _sorted(powers: Iterable[tuple[Factor, int]]) -> Powers:
    return tuple(sorted(powers, key=lambda power: (*power[0].order, power[1])))


def _inverse(powers: Powers) -> Powers:
    return tuple((factor, -n) for factor, n in powers)


def _common(terms: Iterable[Powers], letters: Sequence[str]) -> Powers:
    """The highest power of each letter that divides all products."""
    powers_of = [{factor: n for factor, n in powers if factor.name in letters} for powers in terms]
    common = ((factor, min(powers.get(factor, 0) for powers in powers_of)) for factor in set().union(*powers_of))
    return _sorted((factor, n) for factor, n in common if n)


def _rounding(n: Sum, d: Sum) -> tuple[str, Sum, Sum]:
    """A quotient that is rounded up: ceiling((n - d + 1)/d) reads better as floor(n/d)."""
    divisor, shift = dict(d.terms).get((), 0), dict(n.terms).get((), 0)
    if len(d.terms) == 1 and divisor and shift == 1 - divisor:
        return "floor", Sum(n.terms - {((), shift)}), d
    return "ceiling", n, d


def _product(powers: Powers, coefficient: Fraction | int, values: Mapping[str, Any]) -> str:
    """A product without its sign."""
    number = Fraction(abs(coefficient))
    above = [str(number.numerator)] if number.numerator != 1 else []
    below = [str(number.denominator)] if number.denominator != 1 else []
    for factor, n in _sorted(powers):
        (above if n > 0 else below).append(factor.text(values) + (f"**{abs(n)}" if abs(n) > 1 else ""))
    under = f"/({'*'.join(below)})" if len(below) > 1 else f"/{below[0]}" if below else ""
    return ("*".join(above) or "1") + under
