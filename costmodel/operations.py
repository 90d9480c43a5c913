"""Operations on polynomials whose results are polynomials only at times: division, and the extreme of several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from costmodel.polynomial import Polynomial


def exact_quotient(n: Polynomial, d: Polynomial) -> Polynomial:
    """n/d where d divides n."""
    found = n.over(d)
    return Polynomial.atom("quotient", n, d) if found is None else found


def ceil_quotient(n: Polynomial, d: Polynomial) -> Polynomial:
    """n/d rounded up."""
    found = n.over(d)
    return Polynomial.atom("ceil", n, d) if found is None else found


def remainder(n: Polynomial, d: Polynomial) -> Polynomial:
    """n − d·⌊n/d⌋."""
    return Polynomial.atom("mod", n, d) if n.over(d) is None else Polynomial({})


def extreme(op: Literal["min", "max"], candidates: Iterable[Polynomial]) -> Polynomial:
    """The smallest or largest of polynomials, each once; one of extremes is joined with theirs."""
    found: dict[Polynomial, None] = {}
    for candidate in candidates:
        found.update(dict.fromkeys(arguments(op, candidate)))
    kept: list[Polynomial] = []
    for one in found:
        if not any(_spares(op, other, one) for other in kept):
            kept = [other for other in kept if not _spares(op, one, other)] + [one]
    return kept[0] if len(kept) == 1 else Polynomial.atom(op, *kept)


def arguments(op: str, candidate: Polynomial) -> tuple[Polynomial, ...]:
    """What an extreme is taken over; of anything else itself."""
    if len(candidate.terms) == 1:
        ((monomial, coefficient),) = candidate.terms.items()
        if coefficient == 1 and len(monomial) == 1 and monomial[0][0].op == op and monomial[0][1] == 1:
            return monomial[0][0].args
    return (candidate,)


def _spares(op: str, a: Polynomial, b: Polynomial) -> bool:
    """Whether an extreme over `a` need not look at `b`."""
    return _never_below(a, b) if op == "max" else _never_below(b, a)


def _never_below(a: Polynomial, b: Polynomial) -> bool:
    """Whether a ≥ b wherever all atoms are at least 0, as far as the signs of the difference's terms tell."""
    if any(c > 0 and a.terms.get(m, 0) < c for m, c in b.terms.items()):
        return False
    return all(c >= b.terms.get(m, 0) for m, c in a.terms.items())
