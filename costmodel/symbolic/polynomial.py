"""Polynomials of whole numbers in a model's sizes: the closed forms that grids are evaluated from.

Plain data without sympy: they pickle, are made in microseconds, and every operation is exact. Beside letters they have
atoms for what is no polynomial: quotients, remainders, and the smaller or larger of several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from math import gcd
from threading import RLock
from typing import Any, Literal
from weakref import WeakValueDictionary

from costmodel.symbolic.sizes import OPERATIONS

Op = Literal["letter", "ceil", "quotient", "mod", "min", "max"]
Monomial = tuple[tuple["Atom", int], ...]
Range = tuple[int, int]
"""The least and the most that something can be."""
REMEMBERED = 2**16
"""How many sums and products are, as the same few come up again and again."""


class Atom:
    """A letter (`name`), or an operation on polynomials; atoms of equal keys are the same object.

    ceil: n/d rounded up. quotient: n/d where d divides n. mod: the remainder of n/d. min, max: of all arguments.
    """

    __slots__ = ("__weakref__", "args", "key", "op")

    op: Op
    args: tuple[Any, ...]
    key: str

    def __new__(cls, op: Op, args: tuple[Any, ...]) -> Atom:
        """The one atom of this key."""
        key = args[0] if op == "letter" else f"{op}({', '.join(a.key for a in args)})"
        atom = _ATOMS.get(key)
        if atom is None:
            with _LOCK:
                atom = _ATOMS.get(key)
                if atom is None:
                    atom = super().__new__(cls)
                    atom.op, atom.args, atom.key = op, args, key
                    _ATOMS[key] = atom
        return atom

    def __reduce__(self) -> Any:
        return Atom, (self.op, self.args)

    def letters(self) -> frozenset[str]:
        """Names of the letters within."""
        if self.op == "letter":
            return frozenset((self.args[0],))
        return frozenset().union(*(a.letters for a in self.args))

    def value(self, point: Mapping[str, int]) -> int:
        """Its value where the letters have those of `point`."""
        if self.op == "letter":
            return point[self.args[0]]
        values = [a.value(point) for a in self.args]
        return OPERATIONS[self.op](*values)

    def range(self, box: Mapping[str, Range]) -> Range:
        """Bounds of its value where each letter is within its range."""
        if self.op == "letter":
            return box[self.args[0]]
        ranges = [a.range(box) for a in self.args]
        if self.op in ("min", "max"):
            pick = min if self.op == "min" else max
            return pick(low for low, _ in ranges), pick(high for _, high in ranges)
        (low, high), (least, most) = ranges
        if most <= 0:
            raise ArithmeticError(f"{self.key} divides by {most} at most")
        least = max(least, 1)  # where it would divide by none it is not asked for
        if self.op == "mod":
            return 0, most - 1
        ends = [OPERATIONS[self.op](n, d) for n in (low, high) for d in (least, most)]
        return min(ends), max(ends)


_ATOMS: WeakValueDictionary[str, Atom] = WeakValueDictionary()
_LOCK = RLock()


class Polynomial:
    """A sum of monomials with whole coefficients; immutable, and equal ones are the same object.

    terms: in one order, whatever led to them, as sums in floating point and signs of conditions follow it.
    """

    terms: dict[Monomial, int]

    def __new__(cls, terms: dict[Monomial, int]) -> Polynomial:
        """The one polynomial of these terms."""
        key = frozenset(terms.items())
        known = _POLYNOMIALS.get(key)
        if known is None:
            if len(terms) > 1:
                terms = {monomial: terms[monomial] for monomial in sorted(terms, key=_order)}
            with _LOCK:
                known = _POLYNOMIALS.get(key)
                if known is None:
                    known = super().__new__(cls)
                    known.terms = terms
                    _POLYNOMIALS[key] = known
        return known

    @classmethod
    def letter(cls, name: str) -> Polynomial:
        """One letter."""
        return cls.atom("letter", name)

    @classmethod
    def atom(cls, op: Op, *args: Any) -> Polynomial:
        """One atom."""
        return cls({((Atom(op, args), 1),): 1})

    @classmethod
    def of(cls, value: Polynomial | int) -> Polynomial:
        """A polynomial as it is, a whole number as a constant."""
        return value if isinstance(value, Polynomial) else _constant(value)

    @cached_property
    def key(self) -> str:
        """A text that equal polynomials have in common."""
        texts = [
            f"{coefficient}" + "".join(f"*{atom.key}" + (f"^{n}" if n > 1 else "") for atom, n in monomial)
            for monomial, coefficient in self.terms.items()
        ]
        return " + ".join(sorted(texts)) or "0"

    @cached_property
    def letters(self) -> frozenset[str]:
        """Names of the letters within."""
        return frozenset().union(*(atom.letters() for monomial in self.terms for atom, _ in monomial))

    @property
    def constant(self) -> int | None:
        """Its value if it has no letters."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    def __repr__(self) -> str:
        return self.key

    def __reduce__(self) -> Any:
        return Polynomial, (self.terms,)

    def __add__(self, other: Polynomial | int) -> Polynomial:
        return _sum(self, other)

    def __neg__(self) -> Polynomial:
        return _product(self, -1)

    def __sub__(self, other: Polynomial | int) -> Polynomial:
        return _sum(self, -other)

    def __mul__(self, other: Polynomial | int) -> Polynomial:
        return _product(self, other)

    def over(self, divisor: Polynomial) -> Polynomial | None:
        """`self / divisor` if every term is a multiple of the divisor's only one."""
        if len(divisor.terms) != 1:
            return None
        ((below, c),) = divisor.terms.items()
        terms: dict[Monomial, int] = {}
        for monomial, coefficient in self.terms.items():
            rest = _without(monomial, below)
            if rest is None or coefficient % c:
                return None
            terms[rest] = coefficient // c
        return Polynomial(terms)

    def value(self, point: Mapping[str, int]) -> int:
        """Its value where the letters have those of `point`."""
        total = 0
        for monomial, coefficient in self.terms.items():
            for atom, n in monomial:
                value = point[atom.key] if atom.op == "letter" else atom.value(point)
                coefficient *= value if n == 1 else value**n
            total += coefficient
        return total

    def range(self, box: Mapping[str, Range]) -> Range:
        """Bounds of its value where each letter is within its range, term by term."""
        least = most = 0
        for monomial, coefficient in self.terms.items():
            low = high = coefficient
            for atom, n in monomial:
                a, b = atom.range(box)
                ends = [low * a**n, low * b**n, high * a**n, high * b**n]
                if a < 0 < b:
                    ends += [0]
                low, high = min(ends), max(ends)
            least, most = least + low, most + high
        return least, most

    def magnitude(self, box: Mapping[str, Range]) -> int:
        """A bound of every number that comes up when it is evaluated, whatever the order."""
        total = inner = 0
        for monomial, coefficient in self.terms.items():
            size = abs(coefficient)
            for atom, n in monomial:
                size *= max(1, *map(abs, atom.range(box))) ** n
                inner = max([inner, *(a.magnitude(box) for a in atom.args if isinstance(a, Polynomial))])
            total += size
        return max(total, inner)

    @cached_property
    def cleared(self) -> Polynomial:
        """Times what its quotients divide by, as far as that is one term: of the same sign, since letters are positive.

        Where it is asked for what they divide by divides.
        """
        for monomial in self.terms:
            for atom, _ in monomial:
                if atom.op == "quotient" and len(atom.args[1].terms) == 1:
                    return (self * atom.args[1]).cleared
        return self

    @cached_property
    def primitive(self) -> Polynomial:
        """Without the number and the letters that every term has: of the same sign, since letters are positive."""
        if not self.terms:
            return self
        common = dict(next(iter(self.terms)))
        for monomial in self.terms:
            powers = dict(monomial)
            common = {a: min(n, powers.get(a, 0)) for a, n in common.items() if a.op == "letter"}
        below = tuple((atom, n) for atom, n in common.items() if n)
        number = gcd(*self.terms.values())
        return Polynomial({_without(m, below) or (): c // number for m, c in self.terms.items()})


_POLYNOMIALS: WeakValueDictionary[frozenset[tuple[Monomial, int]], Polynomial] = WeakValueDictionary()


def _order(monomial: Monomial) -> list[tuple[str, int]]:
    return [(atom.key, n) for atom, n in monomial]


@lru_cache(REMEMBERED)
def _constant(value: int) -> Polynomial:
    return Polynomial({(): value} if value else {})


@lru_cache(REMEMBERED)
def _sum(a: Polynomial, b: Polynomial | int) -> Polynomial:
    more = b.terms if isinstance(b, Polynomial) else {(): b} if b else {}
    if not more or not a.terms:
        return a if not more else Polynomial.of(b)
    terms = dict(a.terms)
    for monomial, coefficient in more.items():
        total = terms.get(monomial, 0) + coefficient
        if total:
            terms[monomial] = total
        else:
            del terms[monomial]
    return Polynomial(terms)


@lru_cache(REMEMBERED)
def _product(a: Polynomial, b: Polynomial | int) -> Polynomial:
    if isinstance(b, int):
        return a if b == 1 else Polynomial({m: c * b for m, c in a.terms.items()} if b else {})
    total: Polynomial | None = None
    terms: dict[Monomial, int] = {}
    for one, m in a.terms.items():
        for other, n in b.terms.items():
            monomial = _joined(one, other)
            reduced = _cancelled(monomial, m * n) if _has_quotient(monomial) else None
            if reduced is not None:
                total = reduced if total is None else total + reduced
                continue
            terms[monomial] = terms.get(monomial, 0) + m * n
    rest = Polynomial({monomial: c for monomial, c in terms.items() if c})
    return rest if total is None else total + rest


@lru_cache(REMEMBERED)
def _joined(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    powers = dict(a)
    for atom, n in b:
        powers[atom] = powers.get(atom, 0) + n
    return tuple(sorted(powers.items(), key=_by_key))


def _by_key(power: tuple[Atom, int]) -> str:
    return power[0].key


@lru_cache(REMEMBERED)
def _has_quotient(monomial: Monomial) -> bool:
    return any(atom.op == "quotient" for atom, _ in monomial)


def _without(monomial: Monomial, below: Monomial) -> Monomial | None:
    """What is left when `below` is divided out; None if it does not divide."""
    if not below:
        return monomial
    powers = dict(monomial)
    for atom, n in below:
        left = powers.get(atom, 0) - n
        if left < 0:
            return None
        powers[atom] = left
    return tuple((atom, n) for atom, n in powers.items() if n)


def _cancelled(monomial: Monomial, coefficient: int) -> Polynomial | None:
    """A term with a quotient times its divisor, as one with what was divided; None if there is none such."""
    for atom, _ in monomial:
        if atom.op != "quotient" or len(atom.args[1].terms) != 1:
            continue
        n, d = atom.args
        ((below, c),) = d.terms.items()
        rest = None if coefficient % c else _without(monomial, _joined(below, ((atom, 1),)))
        if rest is not None:
            return Polynomial({rest: coefficient // c}) * n
    return None


def exact_quotient(n: Polynomial, d: Polynomial) -> Polynomial:
    """n/d where d divides n."""
    polynomial = n.over(d)
    return Polynomial.atom("quotient", n, d) if polynomial is None else polynomial


def ceil_quotient(n: Polynomial, d: Polynomial) -> Polynomial:
    """n/d rounded up. A chain of roundings is one: strides that halve H again and again do so once."""
    divisor, shift = d.constant, n.terms.get((), 0)
    rounded = arguments("ceil", n - shift) if divisor else ()
    if divisor and len(rounded) == 2 and (divisor > 1 or shift):
        inner, by = rounded
        return ceil_quotient(inner + by * shift, by * divisor)
    quotient = n.over(d)
    return Polynomial.atom("ceil", n, d) if quotient is None else quotient


def remainder(n: Polynomial, d: Polynomial) -> Polynomial:
    """n − d·⌊n/d⌋."""
    return Polynomial.atom("mod", n, d) if n.over(d) is None else Polynomial({})


def extreme(op: Literal["min", "max"], candidates: Iterable[Polynomial]) -> Polynomial:
    """The smallest or largest of polynomials, each once; one of extremes is joined with theirs."""
    distinct: dict[Polynomial, None] = {}
    for candidate in candidates:
        distinct.update(dict.fromkeys(arguments(op, candidate)))
    undominated: list[Polynomial] = []
    for one in distinct:
        if not any(_spares(op, other, one) for other in undominated):
            undominated = [other for other in undominated if not _spares(op, one, other)] + [one]
    return undominated[0] if len(undominated) == 1 else Polynomial.atom(op, *undominated)


def arguments(op: str, candidate: Polynomial) -> tuple[Polynomial, ...]:
    """What an extreme is taken over; of anything else itself."""
    if len(candidate.terms) == 1:
        ((monomial, coefficient),) = candidate.terms.items()
        if coefficient == 1 and len(monomial) == 1 and monomial[0][0].op == op and monomial[0][1] == 1:
            return monomial[0][0].args
    return (candidate,)


def _spares(op: str, a: Polynomial, b: Polynomial) -> bool:
    """Whether an extreme over `a` need not look at `b`."""
    return never_below(a, b) if op == "max" else never_below(b, a)


def never_below(a: Polynomial, b: Polynomial) -> bool:
    """Whether a ≥ b wherever all atoms are at least 0, as far as the signs of the difference's terms tell."""
    theirs = b.terms
    for monomial, coefficient in theirs.items():
        if coefficient > 0 and a.terms.get(monomial, 0) < coefficient:
            return False
    for monomial, coefficient in a.terms.items():  # noqa: SIM110  (a generator takes twice as long)
        if coefficient < theirs.get(monomial, 0):
            return False
    return True
