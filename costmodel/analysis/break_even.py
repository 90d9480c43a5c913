"""Where one cost passes another as a number of the question grows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Unpack

from costmodel.analysis.predict import Prediction
from costmodel.analysis.search import Curve, VariedSize, last_true, open_question, varied_size
from costmodel.cost.quantities import QUANTITIES, ROW_COLUMNS, SUMMED
from costmodel.cost.question import question as first_line
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table
from costmodel.display.units import UNITS, shower
from costmodel.errors import SettingError, listed, shown, unknown
from costmodel.graph.recomputation import is_named, paths_to, unknown_part
from costmodel.training.keywords import GivenSettings
from costmodel.training.signatures import takes_settings

if TYPE_CHECKING:
    from costmodel.architectures.base import Architecture


DEFAULT = "flops.total"


def share(prediction: Prediction, cost: str) -> int:
    """A quantity such as "params", or of one part, such as "attention", "attention.scores" or "mlp:params".

    A part is named as `is_named` says; FLOPs in total are meant where no quantity is given. Raises UnknownNameError, or
    SettingError for a quantity that is no sum over layers.
    """
    if cost in QUANTITIES:
        return int(prediction.value(cost))
    part, _, quantity = cost.partition(":")
    quantity = quantity or DEFAULT
    if quantity not in SUMMED:
        if quantity in QUANTITIES:
            raise SettingError(f"{quantity} is no sum over layers: of a part ask for {listed(tuple(SUMMED))}")
        raise unknown("quantity", quantity, SUMMED)
    rows = [row for row in prediction.layers if any(is_named(path, part) for path in paths_to(row.name))]
    if not rows:
        paths = {path for row in prediction.layers for path in paths_to(row.name)}
        raise unknown_part("quantity or part", cost, paths, QUANTITIES)
    return sum(int(getattr(row, column)) for row in rows for column in ROW_COLUMNS[quantity])


@dataclass(frozen=True)
class Crossing:
    """From `at` on, the larger of the two is another than before; `equal` is the value at which they are equal, if any.

    a, b: both at `at`. leads: the name of the larger from there on.
    """

    at: int
    equal: int | None
    a: int
    b: int
    leads: str


@dataclass(frozen=True, repr=False)
class BreakEven(Answer):
    """Where a cost `a` passes a cost `b` or falls behind it, in order; true if it does anywhere.

    first: a and b at the size's first value; last: the last value looked at. a, b: names of the costs. varied: the
    size, with its values. crossings: where the order changes, each a `Crossing`.

    Example:
        >>> import costmodel as cm
        >>> found = cm.break_even("gpt2-small", "memory.activations", "memory.weights", for_="batch", seq=128)
        >>> found.answer, found.crossings[0].leads
        (4, 'memory.activations')

    """

    a: str
    b: str
    varied: VariedSize
    crossings: tuple[Crossing, ...]
    first: tuple[int, int]
    last: int

    def __bool__(self) -> bool:
        return bool(self.crossings)

    @property
    def answer(self) -> int | None:
        """Where the order first changes."""
        return self.crossings[0].at if self.crossings else None

    def __int__(self) -> int:
        if not self.crossings:
            raise SettingError(self.sheet().head[1])
        return self.crossings[0].at

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "a": self.a,
            "b": self.b,
            "for": self.varied.name,
            "answer": self.answer,
            "crossings": [vars(crossing) for crossing in self.crossings],
            "first": {"a": self.first[0], "b": self.first[1]},
            "last": self.last,
            "note": self.varied.note,
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row for each crossing."""
        return [vars(crossing) for crossing in self.crossings]

    def sheet(self) -> Sheet:
        """The question, what passes what and where, and both there."""
        of = self.varied.question
        name, first = self.varied.name, self.varied.values[0]
        lines = [self._line(crossing) for crossing in self.crossings]
        if not self.crossings:
            order = (
                "equal to" if self.first[0] == self.first[1] else "above" if self.first[0] > self.first[1] else "below"
            )
            lines = [f"{self.a} stays {order} {self.b} from {name} {first:,} to {self.last:,}"]
        show_a, show_b = shower(_quantity(self.a)), shower(_quantity(self.b))
        rows = [(f"{first:,}", show_a(self.first[0]), show_b(self.first[1]))]
        rows += [(f"{c.at:,}", show_a(c.a), show_b(c.b)) for c in self.crossings]
        notes = [f"note: {self.varied.note}"] if self.varied.note else []
        head = first_line(of.model, of.settings, (name,))
        return Sheet([head, *lines], [Table((name, self.a, self.b), rows, words=frozenset())], notes=notes)

    def _line(self, crossing: Crossing) -> str:
        name = self.varied.name
        equal = "" if crossing.equal is None else f" (equal at {crossing.equal:,})"
        if crossing.leads:
            other = self.b if crossing.leads == self.a else self.a
            return f"{crossing.leads} passes {other} at {name} {crossing.at:,}{equal}"
        return f"{self.a} is equal to {self.b} from {name} {crossing.at:,} on"


@takes_settings()
def break_even(model: Architecture | str, a: str, b: str, *, for_: str, **settings: Unpack[GivenSettings]) -> BreakEven:
    """At which value of `for_` cost `a` passes cost `b`, or falls behind it; false if neither happens.

    Looked for between the doublings of the size's first value: two crossings between one and the next are not seen.
    A sequence may be longer than a learned position table: the table then has as many entries as it.

    Args:
        model: as `predict` takes it.
        a: a quantity such as "memory.activations", or one of a part of the model: "attention" (its FLOPs in total),
            "attention.scores:flops.forward", "mlp:params".
        b: likewise.
        for_: the size to vary: batch, seq, image, or a size of the model such as layers or width.
        **settings: all that `predict` takes but `for_`.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> found = cm.break_even("gpt2-small", "attention.scores", "mlp", for_="seq")
        >>> bool(found), found.answer
        (True, 6145)

    """
    question = open_question(model, for_, settings)
    for cost in (a, b):
        if not isinstance(cost, str):
            raise SettingError(f"{shown(cost)} is not a cost: use a name such as 'memory.activations' or 'mlp'")
        share(question, cost)
    if _unit(a) != _unit(b):
        raise SettingError(f"{a} and {b} are not in one unit: {_unit(a)} and {_unit(b)}")
    varied = varied_size(question, for_, stretched=True)
    costs = Curve(varied.values, varied.at, lambda p: (share(p, a), share(p, b)))
    orders, last = _orders(costs)
    crossings = []
    leader = orders[0][1]
    for (before, order_before), (position, order) in pairwise(orders):
        is_last = position == orders[-1][0]
        if order == leader or (order == 0 and not is_last):  # to equality and on from it is one crossing
            continue
        equal = varied.values[before] if order_before == 0 and before else None
        leads = {1: a, -1: b, 0: ""}[order]
        cost_a, cost_b = costs.value(position)
        crossings.append(Crossing(varied.values[position], equal, cost_a, cost_b, leads))
        leader = order
    return BreakEven(a, b, varied, tuple(crossings), costs.value(0), varied.values[last])


def _quantity(cost: str) -> str:
    return cost if cost in QUANTITIES else cost.partition(":")[2] or DEFAULT


def _unit(cost: str) -> str:
    group = _quantity(cost).partition(".")[0]
    return UNITS.get(group, "FLOP")


def _orders(costs: Curve) -> tuple[list[tuple[int, int]], int]:
    """Positions from which on two costs are in another order, with the order; and the last position that was looked at.

    An order is 1 if the first cost is the larger, −1 if the second is, 0 if they are equal.
    """

    def order(position: int) -> int:
        a, b = costs.value(position)
        return (a > b) - (a < b)

    orders, last = [(0, order(0))], 0
    for position in _doublings(costs):
        while order(position) != orders[-1][1]:
            same = orders[-1][1]
            last += 1 + last_true(lambda n: order(last + n) == same, position - last + 1)  # noqa: B023
            orders.append((last, order(last)))
        last = position
    return orders, last


def _doublings(costs: Curve) -> Iterator[int]:
    """Positions ever further on, as far as there are models that large."""
    position, count = 1, len(costs.values)
    while position < count and costs.exists(position):
        costs.value(position)
        yield position
        position = 2 * position if 2 * position < count or position == count - 1 else count - 1
