"""Polynomials, as they are factored for reading, written as JavaScript on whole numbers of any size (BigInt)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from costmodel.symbolic.polynomial import Polynomial
from costmodel.symbolic.reading import Factor, Powers, Sum, readable

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
    """Formulas of one model, each written once and known by its number.

    names: what each letter is called; some may share one. counts: letters that count repeats, over which formulas are
    sums. fronts: those that stand before what they multiply. Quotients and remainders have names of their own (q1, q2,
    ...), and are worked out before what they are in.
    """

    def __init__(self, names: Mapping[str, str], counts: Sequence[str] = (), fronts: Sequence[str] = ()) -> None:
        self.names = dict(names)
        self.counts, self.fronts = counts, fronts
        self.texts: list[str] = []
        self.quotients: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._known: dict[Polynomial, int] = {}
        self._sums: dict[Sum, str] = {}

    def number(self, formula: Polynomial) -> int:
        """The number of a formula, which is written if it is new."""
        number = self._known.get(formula)
        if number is None:
            text = self.text(formula)
            number = self._known[formula] = self._numbers.setdefault(text, len(self.texts))
            if number == len(self.texts):
                self.texts.append(text)
        return number

    def text(self, formula: Polynomial) -> str:
        """A formula as an expression."""
        return self._sum(readable(formula, self.counts, self.fronts, fractions=False))

    def script(self) -> str:
        """A function that makes what sets the letters, what the quotients are, and the formulas: ``{set, q, f}``."""
        letters = ",".join(dict.fromkeys(self.names.values()))
        quotients = "".join(f"{name}={text};" for text, name in self.quotients.items())
        named = f"let {','.join(self.quotients.values())};" if self.quotients else ""
        formulas = ",\n".join(f"()=>{text}" for text in self.texts)
        values = f"q:()=>({{{','.join(self.quotients.values())}}})"
        return f"()=>{{let {letters};{named}return{{set(v){{[{letters}]=v;{quotients}}},{values},f:[\n{formulas}\n]}}}}"

    def _sum(self, of: Sum) -> str:
        """A sum, with what is added before what is subtracted: JavaScript takes no power right behind a bare minus."""
        text = self._sums.get(of)
        if text is None:
            first, *others = sorted(of.ordered or [((), 0)], key=lambda term: term[1] < 0)
            signed = (f"{'-' if number < 0 else '+'}{self._product(powers, abs(number))}" for powers, number in others)
            text = self._sums[of] = self._product(*first) + "".join(signed)
        return text

    def _product(self, powers: Powers, number: Fraction | int) -> str:
        factors = [self._factor(factor) + (f"**{n}n" if n > 1 else "") for factor, n in powers]
        return "*".join([f"{number}n", *factors] if number != 1 or not factors else factors)

    def _factor(self, factor: Factor) -> str:
        if factor.op == "letter":
            return self.names[factor.name]
        args = ",".join(map(self._sum, factor.args))
        text = f"{FUNCTIONS.get(factor.op, '')}({args})"
        if factor.op in ("sum", "min", "max"):
            return text
        return self.quotients.setdefault(text, f"q{len(self.quotients) + 1}")
