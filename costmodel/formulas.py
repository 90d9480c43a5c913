"""Formulas as people read them: sums over repeats, with the batch's sizes in front."""

from __future__ import annotations

from typing import Any

import sympy

from costmodel.graph import Block
from costmodel.sizes import expression

_EXTENTS = sympy.symbols("B T H W", integer=True, positive=True)
"""Sizes of a batch: formulas read best with them in front."""


def repeats_of(block: Block) -> list[sympy.Symbol]:
    """Letters that count repeats: formulas are sums over them."""
    found: dict[sympy.Symbol, None] = {}
    for entry in block.entries:
        if isinstance(entry, Block):
            found.update(dict.fromkeys(sympy.sympify(expression(entry.count)).free_symbols))
            found.update(dict.fromkeys(repeats_of(entry)))
    return list(found)


def readable(formula: Any, counts: list[sympy.Symbol]) -> sympy.Expr:
    """The same expression as a sum over repeats, with the batch's sizes in front of what they multiply."""
    formula = sympy.sympify(formula)
    if formula.is_number:
        return formula
    if isinstance(formula, sympy.Max):
        highest = _undominated([sympy.expand(candidate) for candidate in _candidates(formula)])
        return sympy.Max(*(readable(candidate, counts) for candidate in highest), evaluate=False)
    collected = sympy.collect(sympy.expand(formula), counts, evaluate=False)
    parts = [(power, *_common_extents(coefficient)) for power, coefficient in collected.items()]
    shared = {s: min(powers.get(s, 0) for _, powers, _ in parts) for s in _EXTENTS}
    terms = [power * _monomial(powers, shared) * rest for power, powers, rest in parts]
    return _monomial(shared, {}) * sympy.Add(*terms)


def _candidates(formula: Any) -> list[Any]:
    """What a maximum, possibly of maxima, is taken over."""
    if not isinstance(formula, sympy.Max):
        return [formula]
    return [candidate for argument in formula.args for candidate in _candidates(argument)]


def _undominated(candidates: list[Any]) -> list[Any]:
    """Those that no other exceeds at all sizes, as far as the signs of the difference's terms tell."""
    kept: list[Any] = []
    for one in dict.fromkeys(candidates):
        if not any(_never_below(other, one) for other in kept):
            kept = [other for other in kept if not _never_below(one, other)] + [one]
    return kept


def _never_below(a: Any, b: Any) -> bool:
    return all(term.is_nonnegative for term in sympy.Add.make_args(sympy.expand(a - b)))


def _common_extents(terms: sympy.Expr) -> tuple[dict[sympy.Symbol, int], sympy.Expr]:
    """The highest power of each batch size that divides every term, and what remains."""
    powers = [term.as_powers_dict() for term in sympy.Add.make_args(terms)]
    common = {s: min(int(p[s]) for p in powers) for s in _EXTENTS}
    divisor = _monomial(common, {})
    return common, sympy.Add(*(term / divisor for term in sympy.Add.make_args(terms)))


def _monomial(powers: dict[sympy.Symbol, int], less: dict[sympy.Symbol, int]) -> sympy.Expr:
    return sympy.Mul(*(s ** (power - less.get(s, 0)) for s, power in powers.items()))
