"""Sizes with formulas, and the decisions that are taken on them: a trace of them comes with where it holds.

A trace is right for all sizes at which every comparison comes out as it did. So each comparison of a letter is written
down as a condition on a polynomial; whatever else looks at its value is noted as "is exactly this". Who only wants the
formula that holds here, to explain a number, has nothing written down. Traces at several points make a tree of
decisions, whose leaves hold wherever the same decisions come out alike.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from costmodel.symbolic.polynomial import (
    Polynomial,
    Range,
    ceil_quotient,
    exact_quotient,
    extreme,
    never_below,
    remainder,
)
from costmodel.symbolic.sizes import OPERATIONS, SymInt, peek

Relation = Literal["zero", "positive", "value"]
Leaf = TypeVar("Leaf")
Name = TypeVar("Name")


class Condition(NamedTuple):
    """A question about sizes: whether a polynomial is zero, whether it is positive, or what its value is."""

    relation: Relation
    of: Polynomial

    def outcome(self, value: Any) -> Any:
        """How it comes out where its polynomial has this value, or these."""
        if self.relation == "value":
            return value
        return value == 0 if self.relation == "zero" else value > 0

    def settled(self, box: Mapping[str, Range]) -> int | None:
        """How it comes out wherever each letter is within its range, if bounds tell."""
        try:
            least, most = self.of.range(box)
        except ArithmeticError:  # it may divide by 0 somewhere, though not where it is asked
            return None
        if self.relation == "positive":
            return 1 if least > 0 else 0 if most <= 0 else None
        if self.relation == "zero":
            return 0 if least > 0 or most < 0 else 1 if least == most == 0 else None
        return least if least == most else None


class Decisions:
    """Conditions that a trace has met, in order, and how each came out.

    settled: of a condition, whether it is known to come out alike wherever the letters can be; such are left out.
    """

    def __init__(self, settled: Callable[[Condition], bool] | None = None) -> None:
        self.outcomes: dict[Condition, int] = {}
        self.settled = settled

    def letter(self, name: str, value: int) -> SymInt:
        """A size by name."""
        return _SymInt(value, Polynomial.letter(name), self)

    def note(self, relation: Relation, of: Polynomial, outcome: int) -> int:
        """Write a decision down unless it is the same at all sizes; returns its outcome."""
        if of.constant is not None:
            return outcome
        if relation != "value":
            of = of.cleared.primitive
            if of.constant is not None or _settled(relation, of):
                return outcome
            if relation == "zero" and next(reversed(of.terms.values())) < 0:
                of = -of
        condition = Condition(relation, of)
        if condition not in self.outcomes and not (self.settled and self.settled(condition)):
            self.outcomes[condition] = outcome
        return outcome


class _SymInt(SymInt if TYPE_CHECKING else object):
    """The only kind of `SymInt`. decisions: where what is decided on it is written down, if anywhere.

    It says that it is an int, and is none: the interpreter reads the value of an int without asking, as the bound of a
    slice, an index, the end of a range or a key. Any other object it asks for it, by ``__index__`` and ``__hash__``.
    """

    __slots__ = ("decisions", "expression", "value")

    value: int
    expression: Polynomial
    decisions: Decisions | None

    if TYPE_CHECKING:

        def __new__(cls, value: int, expression: Polynomial, decisions: Decisions | None) -> _SymInt:
            """An int `value` that is `expression`."""
            ...

    else:
        __class__ = property(lambda self: SymInt)
        guarded = property(lambda self: self.decisions is not None)

        def __init__(self, value, expression, decisions):
            self.value = value
            self.expression = expression
            self.decisions = decisions

    def __reduce__(self) -> Any:
        return _SymInt, (self.value, self.expression, self.decisions)

    def __str__(self) -> str:
        return str(self.value)

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)

    def _with(self, value: int, expression: Polynomial) -> _SymInt:
        return _SymInt(value, expression, self.decisions)

    def __neg__(self) -> _SymInt:
        return self._with(-self.value, -self.expression)

    def __pos__(self) -> _SymInt:
        return self

    def __floordiv__(self, other: int) -> _SymInt:
        return self._with(self.value // peek(other), _floor(self.expression, expression(other)))

    def __rfloordiv__(self, other: int) -> _SymInt:
        return self._with(peek(other) // self.value, _floor(expression(other), self.expression))

    def __mod__(self, other: int) -> _SymInt:
        return self.applied("mod", (self, other))

    def __rmod__(self, other: int) -> _SymInt:
        return self.applied("mod", (other, self))

    def __divmod__(self, other: int) -> tuple[_SymInt, _SymInt]:
        return self // other, self % other

    def __rdivmod__(self, other: int) -> tuple[int, int]:
        return other // self, other % self

    def __bool__(self) -> bool:
        zero = self.value == 0
        return not (zero if self.decisions is None else self.decisions.note("zero", self.expression, zero))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int):
            return NotImplemented
        equal = self.value == peek(other)
        if self.decisions is None:
            return equal
        return bool(self.decisions.note("zero", self.expression - expression(other), equal))

    def __ne__(self, other: object) -> bool:
        return NotImplemented if not isinstance(other, int) else not self == other

    def __gt__(self, other: Any) -> bool:
        if not isinstance(other, int):
            return self.pin() > other
        above = self.value > peek(other)
        if self.decisions is None:
            return above
        return bool(self.decisions.note("positive", self.expression - expression(other), above))

    def __lt__(self, other: Any) -> bool:
        if not isinstance(other, int):
            return self.pin() < other
        below = self.value < peek(other)
        if self.decisions is None:
            return below
        return bool(self.decisions.note("positive", expression(other) - self.expression, below))

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __le__(self, other: Any) -> bool:
        return not self > other

    def pin(self) -> int:
        """The value; notes that it is this."""
        return self.value if self.decisions is None else self.decisions.note("value", self.expression, self.value)

    def applied(self, op: str, sizes: Sequence[int]) -> _SymInt:
        """See `SymInt`."""
        if op == "max":  # most are below what is largest here
            sizes = [sizes[place] for place in self.undominated(sizes)]
        return self._with(OPERATIONS[op](*map(peek, sizes)), _FORMULAS[op](*map(expression, sizes)))

    def undominated(self, sizes: Sequence[int]) -> list[int]:
        """See `sizes.undominated`. Only what is larger here can be larger everywhere."""
        distinct: dict[Polynomial, int] = {}
        for place in sorted(range(len(sizes)), key=lambda place: -peek(sizes[place])):
            distinct.setdefault(expression(sizes[place]), place)
        largest: list[Polynomial] = []
        for candidate in distinct:
            for at, other in enumerate(largest):
                if never_below(other, candidate):
                    largest.insert(0, largest.pop(at))  # which most likely is above the next too
                    break
            else:
                largest.append(candidate)
        return sorted(distinct[candidate] for candidate in largest)


@dataclass
class Branch(Generic[Leaf]):
    """A decision, and what comes after each outcome, as far as there have been traces."""

    condition: Condition
    after: dict[int, Branch[Leaf] | Leaf] = field(default_factory=dict)


class Regimes(Generic[Leaf]):
    """What traces at points with a size for each letter have come to, as a tree of their decisions.

    box: the range of each letter, if points are within one; what is decided alike in all of it is no decision.
    Threads may share one. Pickles as plain data.
    """

    def __init__(self, box: Mapping[str, Range] | None = None) -> None:
        self.tree: Branch[Leaf] | Leaf | None = None
        self.box = box
        self._known: dict[Condition, bool] = {}
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"tree": self.tree, "box": self.box}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["box"])
        self.tree = state["tree"]

    def known(self, point: Mapping[str, int]) -> Leaf | None:
        """The leaf of the regime that a point is in; None if there has been no trace in it."""
        node = self.tree
        while isinstance(node, Branch):
            node = node.after.get(node.condition.outcome(node.condition.of.value(point)))
        return node

    def at(self, point: Mapping[str, int], trace: Callable[[Mapping[str, SymInt]], Leaf]) -> Leaf:
        """The leaf of the regime that a point is in, which a trace with letters of its sizes gives if none has yet."""
        leaf = self.known(point)
        if leaf is None:
            with self._lock:
                leaf = self.known(point)
                if leaf is None:
                    decisions = Decisions(None if self.box is None else self._settled)
                    leaf = trace({name: decisions.letter(name, size) for name, size in point.items()})
                    self._graft(decisions, leaf)
        return leaf

    def _settled(self, condition: Condition) -> bool:
        """Whether a condition comes out alike in the whole box."""
        if condition not in self._known:
            self._known[condition] = condition.settled(self.box or {}) is not None
        return self._known[condition]

    def _graft(self, decisions: Decisions, leaf: Leaf) -> None:
        """Add a path of decisions, and its end, to the tree."""
        node, put = self.tree, self._plant
        for condition, outcome in decisions.outcomes.items():
            if node is None:
                node = Branch(condition)
                put(node)
            if not isinstance(node, Branch) or node.condition != condition:
                raise AssertionError(f"two traces decide differently: {condition}")
            put = partial(node.after.__setitem__, outcome)
            node = node.after.get(outcome)
        put(leaf)

    def _plant(self, tree: Branch[Leaf] | Leaf) -> None:
        self.tree = tree


def _settled(relation: str, of: Polynomial) -> bool:
    """Whether a condition comes out alike wherever all letters are at least 1, as far as the signs of terms tell."""
    signs = {coefficient > 0 for monomial, coefficient in of.terms.items() if monomial}
    if len(signs) > 1 or any(atom.op != "letter" for monomial in of.terms for atom, _ in monomial):
        return False
    extreme_value = sum(of.terms.values())  # where all letters are 1
    if signs == {True}:
        return extreme_value > 0
    return extreme_value < 0 or (relation == "positive" and extreme_value == 0)


def _floor(n: Polynomial, d: Polynomial) -> Polynomial:
    quotient = None if d.constant == 1 else n.over(d)  # by 1: what is added to a rounding goes into it
    return ceil_quotient(n - d + 1, d) if quotient is None else quotient


_FORMULAS: dict[str, Callable[..., Polynomial]] = {
    "ceil": ceil_quotient,
    "quotient": exact_quotient,
    "mod": remainder,
    "min": lambda *candidates: extreme("min", candidates),
    "max": lambda *candidates: extreme("max", candidates),
}


def symint(name: str, value: int) -> SymInt:
    """A size by name, whose decisions are not written down: formulas made of it hold here."""
    return _SymInt(value, Polynomial.letter(name), None)


def expression(size: int) -> Polynomial:
    """The formula of a size; a plain int is its own."""
    return size.expression if type(size) is _SymInt else Polynomial.of(int(size))


def formulas_of(values: Mapping[Name, int], point: Mapping[str, int]) -> dict[Name, Polynomial]:
    """The formula of each value that was traced at a point; it gives that value there.

    Raises ArithmeticError if it does not.
    """
    formulas, known = dict[Name, Polynomial](), dict[Polynomial, int]()
    for name, value in values.items():
        formula = formulas[name] = expression(value)
        if type(value) is not _SymInt:
            continue
        number = known.get(formula)
        if number is None:
            number = known[formula] = formula.value(point)
        if number != value.value:
            raise ArithmeticError(f"a formula gives {number}, not {value.value}")
    return formulas


def _arithmetic(
    op: Callable[[Any, Any], Any], neutral: int, commutes: bool
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(self: _SymInt, other: Any) -> Any:
        if type(other) is _SymInt:
            return _SymInt(op(self.value, other.value), op(self.expression, other.expression), self.decisions)
        if type(other) is int:
            if other == neutral:
                return self
            return _SymInt(op(self.value, other), op(self.expression, other), self.decisions)
        if not isinstance(other, int):
            return NotImplemented
        return self._with(op(self.value, peek(other)), op(self.expression, expression(other)))

    def reflected(self: _SymInt, other: Any) -> Any:
        if type(other) is int and commutes:
            return forward(self, other)
        if not isinstance(other, int):
            return NotImplemented
        return self._with(op(peek(other), self.value), op(expression(other), self.expression))

    return forward, reflected


for _name, _op, _neutral in (("add", operator.add, 0), ("sub", operator.sub, 0), ("mul", operator.mul, 1)):
    _forward, _reflected = _arithmetic(_op, _neutral, _name == "add")  # a number times a quotient may cancel
    setattr(_SymInt, f"__{_name}__", _forward)
    setattr(_SymInt, f"__r{_name}__", _reflected)


def _fixing(op: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(self: _SymInt, *others: Any) -> Any:
        return op(self.pin(), *others)

    def reflected(self: _SymInt, other: Any) -> Any:
        return op(other, self.pin())

    return forward, reflected


for _name, _op in (
    *(("int", int), ("index", int), ("hash", hash), ("float", float), ("complex", complex), ("trunc", math.trunc)),
    *(("floor", math.floor), ("ceil", math.ceil), ("round", round), ("abs", abs), ("invert", operator.invert)),
):
    setattr(_SymInt, f"__{_name}__", _fixing(_op)[0])
for _name, _op in (
    *(("pow", pow), ("truediv", operator.truediv), ("lshift", operator.lshift), ("rshift", operator.rshift)),
    *(("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)),
):
    _forward, _reflected = _fixing(_op)
    setattr(_SymInt, f"__{_name}__", _forward)
    setattr(_SymInt, f"__r{_name}__", _reflected)
