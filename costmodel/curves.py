"""A quantity along a knob: by closed form within the regimes that have been traced, else by prediction."""

from __future__ import annotations

from dataclasses import fields

from costmodel.closedforms import ClosedForms, Forms, open_sizes
from costmodel.errors import CostModelError
from costmodel.knobs import Knob
from costmodel.prediction import Prediction
from costmodel.search import line_guess
from costmodel.training import Settings

TRACED = 4
"""Where no formula is known, one in so many positions is traced for one, and all others are predicted."""


class Curve:
    """Values of one quantity at the positions of a knob, each worked out once.

    What the model cannot take has no value but a reason.
    """

    def __init__(self, knob: Knob, quantity: str) -> None:
        self.knob, self.quantity = knob, quantity
        self._made: dict[int, Prediction | CostModelError] = {}
        self._forms: ClosedForms | None = None
        self._unknown = 0

    def at(self, position: int) -> Prediction | CostModelError:
        """What `predict` answers there."""
        if position not in self._made:
            try:
                self._made[position] = self.knob.at(self.knob.values[position])
            except CostModelError as error:
                self._made[position] = error
        return self._made[position]

    def predicted(self, position: int) -> int | None:
        """The value there as `predict` has it; None if there is no such model or batch."""
        found = self.at(position)
        return None if isinstance(found, CostModelError) else int(found.value(self.quantity))

    def value(self, position: int) -> int | None:
        """The value there, by formula if one is known to hold there."""
        if self._forms is not None and position not in self._made:
            point = {self.knob.name: self.knob.values[position]}
            leaf = self._forms.known(point)
            if leaf is None:
                self._unknown += 1
                leaf = self._forms.at(point) if self._unknown % TRACED == 0 else None
            if leaf is not None:
                return leaf.formulas[self.quantity].value(point) if isinstance(leaf, Forms) else None
        return self.predicted(position)

    def trace(self, target: int) -> int:
        """Derive the formula about where a straight line from the first values meets a target; returns that position.

        Nothing is derived where the knob is no letter of formulas, as the width of a CNN is none.
        """
        model, name = self.knob.asked.model, self.knob.name
        place = line_guess(lambda n: self.predicted(n) or 0, self.knob.values, target, rounds=1)
        if self.knob.stretched or name not in open_sizes(model):
            return place
        settings = {f.name: getattr(self.knob.asked.settings, f.name) for f in fields(Settings) if f.name != name}
        forms = ClosedForms(model, settings, (name,), (self.quantity,))
        try:
            forms.at({name: self.knob.values[place]})
        except CostModelError:
            return place
        self._forms = forms
        return place

    def check(self, position: int) -> bool:
        """Whether the formula gives what is predicted there; it is given up where it does not."""
        if self.value(position) == self.predicted(position):
            return True
        self._forms = None
        return False
