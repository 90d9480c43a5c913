"""Polynomials printed as JavaScript on whole numbers of any size (BigInt), factored for reading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import gcd

from costmodel.symbolic.polynomial import Atom, Monomial, Polynomial

_WORDS = """
    await break case catch class const continue debugger default delete do else enum export extends false finally for
    function if implements import in instanceof interface let new null package private protected public return static
    super switch this throw true try typeof var void while with yield arguments eval
    ceil floor mod min max
"""
RESERVED = frozenset(_WORDS.split())
"""Words that no letter can have as its name: JavaScript's own, and the functions that formulas call."""
FUNCTIONS = {"ceil": "ceil", "quotient": "floor", "mod": "mod", "min": "min", "max": "max"}
"""The function that works out each operation."""


def identifiers(symbols: Iterable[str]) -> list[str]:
    """A name in JavaScript for each symbol, all different."""
    taken: list[str] = []
    for symbol in symbols:
        name = "".join(c if c.isascii() and c.isalnum() else "_" for c in symbol)
        name = name if name[:1].isalpha() else f"n_{name}"
        while name in taken or name in RESERVED or (name[0] == "q" and name[1:].isdigit()):
            name += "_"
        taken.append(name)
    return taken


class Formulas:
    """Formulas of one model, each printed once and known by its number.

    names: what each letter is called. outer: letters by whose powers a sum is collected, the outermost first.
    Quotients and remainders have names of their own (q1, q2, ...), and are worked out before what they are in.
    """

    def __init__(self, names: Mapping[str, str], outer: Sequence[str] = ()) -> None:
        self.names = dict(names)
        self.outer = tuple(outer)
        self.texts: list[str] = []
        self.quotients: dict[str, str] = {}
        self._order = {letter: place for place, letter in enumerate(self.names)}
        self._numbers: dict[str, int] = {}
        self._known: dict[Polynomial, int] = {}

    def number(self, formula: Polynomial) -> int:
        """The number of a formula, which is printed if it is new."""
        found = self._known.get(formula)
        if found is None:
            text = self.text(formula)
            found = self._numbers.setdefault(text, len(self.texts))
            if found == len(self.texts):
                self.texts.append(text)
            self._known[formula] = found
        return found

    def text(self, formula: Polynomial) -> str:
        """A formula as an expression."""
        return self._sum(formula.terms, self.outer, ())

    def script(self) -> str:
        """A function that makes one that sets the letters, and the formulas: ``{set, f}``."""
        letters = ",".join(self.names.values())
        quotients = "".join(f"{name}={text};" for text, name in self.quotients.items())
        named = f"let {','.join(self.quotients.values())};" if self.quotients else ""
        formulas = ",\n".join(f"()=>{text}" for text in self.texts)
        return f"()=>{{let {letters};{named}return{{set(v){{[{letters}]=v;{quotients}}},f:[\n{formulas}\n]}}}}"

    def _sum(self, terms: Mapping[Monomial, int], outer: Sequence[str], front: Monomial) -> str:
        """What `front` times the sum of these terms is: what all have in common stands before the rest."""
        if not terms:
            return "0n"
        common = _common(terms)
        number = gcd(*terms.values()) * (-1 if all(c < 0 for c in terms.values()) else 1)
        rest = {_without(monomial, common): c // number for monomial, c in terms.items()}
        factors = (*front, *common)
        if len(rest) == 1:
            return self._product(number, factors)
        text = self._collected(rest, outer)
        return f"{self._product(number, factors)}*({text})" if factors or number != 1 else text

    def _collected(self, terms: Mapping[Monomial, int], outer: Sequence[str]) -> str:
        """Terms that have nothing in common, by the powers of the first of the letters that is in some of them."""
        for place, letter in enumerate(outer):
            groups: dict[Monomial, dict[Monomial, int]] = {}
            for monomial, coefficient in terms.items():
                power = tuple(each for each in monomial if each[0].key == letter)
                groups.setdefault(power, {})[_without(monomial, power)] = coefficient
            if len(groups) > 1:
                ordered = sorted(groups.items(), key=lambda group: -sum(n for _, n in group[0]))
                return _added(self._sum(rest, outer[place + 1 :], power) for power, rest in ordered)
        ordered = sorted(terms.items(), key=lambda term: (term[1] < 0, -sum(n for _, n in term[0])))
        return _added(self._product(coefficient, monomial) for monomial, coefficient in ordered)

    def _product(self, number: int, monomial: Monomial) -> str:
        ordered = sorted(monomial, key=lambda power: self._order.get(power[0].key, len(self._order)))
        powers = [self._atom(atom) + (f"**{n}n" if n > 1 else "") for atom, n in ordered]
        return "*".join([f"{number}n", *powers] if number != 1 or not powers else powers)

    def _atom(self, atom: Atom) -> str:
        if atom.op == "letter":
            return self.names[atom.args[0]]
        text = f"{FUNCTIONS[atom.op]}({','.join(map(self.text, atom.args))})"
        if atom.op in ("min", "max"):
            return text
        return self.quotients.setdefault(text, f"q{len(self.quotients) + 1}")


def _common(terms: Iterable[Monomial]) -> Monomial:
    """What divides every one of these."""
    first, *others = (dict(monomial) for monomial in terms)
    powers = {atom: min([n, *(other.get(atom, 0) for other in others)]) for atom, n in first.items()}
    return tuple((atom, n) for atom, n in powers.items() if n)


def _without(monomial: Monomial, factor: Monomial) -> Monomial:
    less = dict(factor)
    return tuple((atom, left) for atom, n in monomial if (left := n - less.get(atom, 0)))


def _added(parts: Iterable[str]) -> str:
    """A sum of expressions, of which the first is best not negative."""
    first, *others = sorted(parts, key=lambda part: part.startswith("-"))
    return first + "".join(f"-{part[1:].removeprefix('1n*')}" if part[0] == "-" else f"+{part}" for part in others)
