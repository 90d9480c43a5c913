"""Which number moves a quantity most: elasticities, from derivatives of its formula."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from math import log
from typing import TYPE_CHECKING, Any, Unpack

import sympy

from costmodel.analysis.predict import Prediction, predict
from costmodel.analysis.search import size_names, size_of, varied_size
from costmodel.cost.explanation import definitions_of
from costmodel.cost.quantities import TIMED
from costmodel.cost.report import headline
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table
from costmodel.display.units import UNITS, shower
from costmodel.errors import CostModelError, SettingError, unknown
from costmodel.symbolic.guards import expression
from costmodel.symbolic.reading import readable
from costmodel.symbolic.symbols import CeilDiv
from costmodel.training.keywords import GivenSettings
from costmodel.training.signatures import takes_settings

if TYPE_CHECKING:
    from costmodel.architectures.base import Architecture


@dataclass(frozen=True)
class Sensitivity:
    """How a quantity q answers to one size x, here.

    slope: ∂q/∂x [the quantity's unit for one of x]. elasticity: ∂ ln q / ∂ ln x, by how many percent q grows if x grows
    by one.
    """

    symbol: str
    meaning: str
    size: int
    slope: Fraction
    elasticity: Fraction


@dataclass(frozen=True, repr=False)
class Sensitivities(Answer):
    """A quantity's sensitivities to each size that it depends on, the strongest first.

    formula: the differentiated one: of a maximum, the branch that is largest here; roundings are taken as exact.
    question: what is asked. quantity: its name. value: what it is here. ranked: the sizes, each a `Sensitivity`.

    Example:
        >>> import costmodel as cm
        >>> found = cm.sensitivity("gpt2-small", "params")
        >>> found["L"].size, round(float(found["L"].elasticity), 3)
        (12, 0.683)

    """

    question: str
    quantity: str
    value: Any
    formula: sympy.Expr
    ranked: tuple[Sensitivity, ...]

    def __getitem__(self, symbol: str) -> Sensitivity:
        """That of one size, by its letter. Raises UnknownNameError."""
        for one in self.ranked:
            if one.symbol == symbol:
                return one
        raise unknown(f"size that {self.quantity} depends on", symbol, [one.symbol for one in self.ranked])

    def to_dict(self) -> dict[str, Any]:
        """Plain data: slopes and elasticities as floats."""
        return {
            "question": self.question,
            "quantity": self.quantity,
            "value": self.value,
            "unit": UNITS[self.quantity.partition(".")[0]],
            "formula": str(self.formula),
            "ranked": [{**vars(s), "slope": float(s.slope), "elasticity": float(s.elasticity)} for s in self.ranked],
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row for each size."""
        return self.to_dict()["ranked"]

    def sheet(self) -> Sheet:
        """Sizes by elasticity."""
        show = shower(self.quantity)
        rows = [
            (
                s.symbol,
                s.meaning,
                f"{s.size:,}",
                f"{float(s.elasticity):+.3f}",
                _signed(show, s.slope if self.quantity in TIMED else round(s.slope)),
            )
            for s in self.ranked
        ]
        header = ("size", "what it is", "here", "elasticity", "slope, for one")
        head = f"{self.quantity} is {show(self.value)}; elasticity: % that it grows by if a size grows by 1 %"
        return Sheet([self.question, head], [Table(header, rows, words=frozenset({0, 1}))])


def _signed(show: Any, slope: Any) -> str:
    return f"{'-' if slope < 0 else '+'}{show(float(abs(slope)) if isinstance(slope, Fraction) else abs(slope))}"


@takes_settings()
def sensitivity(
    model: Architecture | str, quantity: str = "memory.peak", **settings: Unpack[GivenSettings]
) -> Sensitivities:
    """Which size moves a quantity most, around one question: elasticities from derivatives of the closed form.

    Args:
        model: as `predict` takes it.
        quantity: such as "memory.peak".
        **settings: all that `predict` takes.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> found = cm.sensitivity("gpt2-small", "memory.peak", batch=8, seq=512)
        >>> found.ranked[0].meaning, round(float(found.ranked[0].elasticity), 2)
        ('sequence length', 1.13)

    """
    prediction = predict(model, **settings)
    if isinstance(quantity, str) and quantity in TIMED:
        return _of_time(prediction, quantity)
    value = int(prediction.value(quantity))
    if not value:
        raise SettingError(f"{quantity} is 0 here: ask for one that is not, such as memory.peak")
    point: dict[Any, int] = {_symbol(d.symbol): d.value for d in definitions_of(prediction)}
    formula = _smooth(readable(expression(prediction.symbolic().number(quantity))).sympy(), point)
    ranked = []
    for definition in definitions_of(prediction):
        slope = _fraction(sympy.diff(formula, _symbol(definition.symbol)).subs(point))
        if slope:
            elasticity = slope * definition.value / value
            ranked.append(Sensitivity(definition.symbol, definition.meaning, definition.value, slope, elasticity))
    ranked.sort(key=lambda s: -abs(s.elasticity))
    return Sensitivities(
        headline(prediction), quantity, value, sympy.factor_terms(sympy.expand(formula)), tuple(ranked)
    )


NEAR = 4
"""A size is varied by about one in so many of it where there is no formula to differentiate: times rise in steps, of
tiles and waves of them, and what is sought is the slope beneath."""


def _of_time(prediction: Prediction, quantity: str) -> Sensitivities:
    """Sensitivities of what has no formula of its own, from the next value of each size that is about as large."""
    value = float(prediction.value(quantity))
    ranked = []
    for name in size_names(prediction.model):
        try:
            here = size_of(prediction, name)
            varied = varied_size(prediction, name)
            place = bisect_left(varied.values, here + max(1, here // NEAR))
            near = varied.values[place]
            other = float(varied.at(near).value(quantity))
        except (CostModelError, IndexError):
            continue
        slope = Fraction(other - value) / (near - here) if here else Fraction(0)
        if slope:
            elasticity = Fraction(log(other / value) / log(near / here))
            ranked.append(Sensitivity(name, f"to {near:,}", here, slope, elasticity))
    ranked.sort(key=lambda s: -abs(s.elasticity))
    return Sensitivities(headline(prediction), quantity, value, sympy.Symbol(quantity), tuple(ranked))


def _symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True, positive=True)


def _fraction(number: Any) -> Fraction:
    return Fraction(int(number.p), int(number.q))


def _smooth(formula: Any, point: dict[Any, int]) -> Any:
    """The formula with the branch that holds at `point` for each extreme, and quotients that grow without steps.

    Its value at `point` is the formula's.
    """
    if not formula.args:
        return formula
    if isinstance(formula, sympy.Max | sympy.Min):
        pick: Any = max if isinstance(formula, sympy.Max) else min
        return _smooth(pick(formula.args, key=lambda one: one.subs(point)), point)
    args = [_smooth(argument, point) for argument in formula.args]
    if not isinstance(formula, CeilDiv):
        return formula.func(*args)
    even = args[0] / args[1]
    return even + (formula - even).subs(point)
