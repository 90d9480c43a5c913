"""Where one cost passes another as a number of the question grows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from costmodel.analysis.vary import VariedSize, check_open, knob_of, last_true
from costmodel.cost.prediction import Prediction, predict
from costmodel.cost.quantities import QUANTITIES, ROW_COLUMNS, SUMMED
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table
from costmodel.display.units import UNITS, shower
from costmodel.errors import CostModelError, SettingError, shown, unknown
from costmodel.graph.recomputation import is_named, paths_to, unknown_part
from costmodel.training.keywords import GivenSettings
from costmodel.training.settings import takes_settings

if TYPE_CHECKING:
    from costmodel.architectures.base import Architecture


DEFAULT = "flops.total"


def share(prediction: Prediction, what: str) -> int:
    """A quantity such as "params", or of one part, such as "attention", "attention.scores" or "mlp:params".

    A part is named as `is_named` says; FLOPs in total are meant where no quantity is given. Raises UnknownNameError, or
    SettingError for a quantity that is no sum over layers.
    """
    if what in QUANTITIES:
        return int(prediction.value(what))
    part, _, quantity = what.partition(":")
    quantity = quantity or DEFAULT
    if quantity not in SUMMED:
        if quantity in QUANTITIES:
            raise SettingError(f"{quantity} is no sum over layers: of a part ask for one of {', '.join(SUMMED)}")
        raise unknown("quantity", quantity, SUMMED)
    rows = [row for row in prediction.layers if any(is_named(path, part) for path in paths_to(row.name))]
    if not rows:
        paths = {path for row in prediction.layers for path in paths_to(row.name)}
        raise unknown_part("quantity or part", what, paths, QUANTITIES)
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

    first: a and b at the knob's first value; last: the last value looked at. a, b: names of the costs. varied: what is
    turned, with its values. crossings: where the order changes, each a `Crossing`.

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
            raise SettingError(str(self).partition("\n")[0])
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
        """What passes what and where, and both there."""
        name, first = self.varied.name, self.varied.values[0]
        lines = [self._said(crossing) for crossing in self.crossings]
        if not self.crossings:
            order = (
                "equal to" if self.first[0] == self.first[1] else "above" if self.first[0] > self.first[1] else "below"
            )
            lines = [f"{self.a} stays {order} {self.b} from {name} {first:,} to {self.last:,}"]
        show_a, show_b = shower(_quantity(self.a)), shower(_quantity(self.b))
        rows = [(f"{first:,}", show_a(self.first[0]), show_b(self.first[1]))]
        rows += [(f"{c.at:,}", show_a(c.a), show_b(c.b)) for c in self.crossings]
        notes = [f"note: {self.varied.note}"] if self.varied.note else []
        return Sheet(lines, [Table((name, self.a, self.b), rows, words=frozenset())], notes=notes)

    def _said(self, crossing: Crossing) -> str:
        name = self.varied.name
        equal = "" if crossing.equal is None else f" (equal at {crossing.equal:,})"
        if crossing.leads:
            other = self.b if crossing.leads == self.a else self.a
            return f"{crossing.leads} passes {other} at {name} {crossing.at:,}{equal}"
        return f"{self.a} is equal to {self.b} from {name} {crossing.at:,} on"


@takes_settings()
def break_even(model: Architecture | str, a: str, b: str, *, for_: str, **settings: Unpack[GivenSettings]) -> BreakEven:
    """At which value of `for_` cost `a` passes cost `b`, or falls behind it; false if neither happens.

    Looked for between the doublings of the knob's first value: two crossings between one and the next are not seen.
    A sequence may be longer than a learned position table: the table then has as many entries as it.

    Args:
        model: as `predict` takes it.
        a: a quantity such as "memory.activations", or one of a part of the model: "attention" (its FLOPs in total),
            "attention.scores:flops.forward", "mlp:params".
        b: likewise.
        for_: what to turn: batch, seq, image, or a size of the model such as layers or width.
        **settings: all that `predict` takes but `for_`.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> found = cm.break_even("gpt2-small", "attention.scores", "mlp", for_="seq")
        >>> bool(found), found.answer
        (True, 6145)

    """
    check_open(for_, settings)
    if for_ == "past":  # a decode step has one, whatever is found
        settings["past"] = 1
    return cross(predict(model, **settings), a, b, for_)


def cross(asked: Prediction, a: str, b: str, for_: str) -> BreakEven:
    """`break_even` for the question of a prediction, whose own value of `for_` does not matter."""
    for what in (a, b):
        if not isinstance(what, str):
            raise SettingError(f"{shown(what)} is not a cost: use a name such as 'memory.activations' or 'mlp'")
        share(asked, what)
    if _unit(a) != _unit(b):
        raise SettingError(f"{a} and {b} are not in one unit: {_unit(a)} and {_unit(b)}")
    return _Course(knob_of(asked, for_, stretched=True), a, b).result()


def _quantity(what: str) -> str:
    return what if what in QUANTITIES else what.partition(":")[2] or DEFAULT


def _unit(what: str) -> str:
    group = _quantity(what).partition(".")[0]
    return UNITS.get(group, "FLOP")


class _Course:
    """The two costs along a knob."""

    def __init__(self, varied: VariedSize, a: str, b: str) -> None:
        self.varied, self.a, self.b = varied, a, b
        self.made: dict[int, tuple[int, int]] = {}

    def costs(self, position: int) -> tuple[int, int]:
        if position not in self.made:
            at = self.varied.at(self.varied.values[position])
            self.made[position] = share(at, self.a), share(at, self.b)
        return self.made[position]

    def order(self, position: int) -> int:
        """1 if a leads, −1 if b does, 0 if they are equal."""
        a, b = self.costs(position)
        return (a > b) - (a < b)

    def result(self) -> BreakEven:
        last, turns = 0, [(0, self.order(0))]
        for position in self._doublings():
            while self.order(position) != turns[-1][1]:
                now = self._next(last, position, turns[-1][1])
                turns.append((now, self.order(now)))
                last = now
            last = position
        return BreakEven(self.a, self.b, self.varied, self._crossings(turns), self.costs(0), self.varied.values[last])

    def _crossings(self, turns: list[tuple[int, int]]) -> tuple[Crossing, ...]:
        """Turns of the order, one that leads to equality and one that leads on from it being one crossing."""
        found, lead = [], turns[0][1]
        for (position, order), before in zip(turns[1:], turns, strict=False):
            last = position == turns[-1][0]
            if order == lead or (order == 0 and not last):
                continue
            equal = self.varied.values[before[0]] if before[1] == 0 and before[0] else None
            leads = {1: self.a, -1: self.b, 0: ""}[order]
            found.append(Crossing(self.varied.values[position], equal, *self.costs(position), leads))
            lead = order
        return tuple(found)

    def _doublings(self) -> Iterator[int]:
        """Positions ever further on, as far as there are models that large."""
        position, count = 1, len(self.varied.values)
        while position < count:
            try:
                self.costs(position)
            except CostModelError:
                return
            yield position
            position = 2 * position if 2 * position < count or position == count - 1 else count - 1

    def _next(self, start: int, end: int, order: int) -> int:
        """The first position past `start` where the order is not `order`, which it is not at `end`."""
        return start + 1 + last_true(lambda n: self.order(start + n) == order, end - start + 1)
