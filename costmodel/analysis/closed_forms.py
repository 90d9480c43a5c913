"""Closed forms of a model's quantities in sizes left open, each with exactly where it holds.

A question with letters for some of its sizes is traced at one point, and what was decided on the way is written down.
Wherever the same decisions come out alike, the trace would be the same: there its formulas hold. Elsewhere the
question is traced once more. So a tree of decisions grows whose leaves are formulas, or refusals.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from costmodel.analysis.predict import Prediction, predict
from costmodel.architectures.base import Architecture
from costmodel.architectures.trace import check_applies, trace
from costmodel.cost.quantities import ALL, QUANTITIES, TIMED
from costmodel.cost.recipes import SIDES, SIZES, settings_at
from costmodel.errors import CostModelError, unknown
from costmodel.importers.files import settings_of
from costmodel.symbolic.guards import Branch, Regimes, formulas_of
from costmodel.symbolic.polynomial import Polynomial, Range
from costmodel.symbolic.sizes import SymInt, peek
from costmodel.training.layout import OF_DEVICES, Layout

if TYPE_CHECKING:
    from costmodel.performance.accounting import SymbolicTime


@dataclass(frozen=True)
class Forms:
    """Formulas of one regime, by quantity; of quantities of time what they are worked out from."""

    formulas: Mapping[Hashable, Polynomial]
    time: SymbolicTime | None = None


@dataclass(frozen=True)
class Refusal:
    """A regime in which the question has no answer; `predict` says why at each of its points, as here at one."""

    message: str
    point: Mapping[str, int]


Leaf = Forms | Refusal


class ClosedForms:
    """Formulas of `quantities` of a model in `letters`: settings of `SIZES` and `SIDES`, and size fields of the model.

    settings: those of the question that are not open. changed: other values of fields of the model than its own, which
    need not fit it where sizes of its own are open. box: the range of each letter, if there is one; formulas need not
    hold beyond it. Pickles as plain data. Raises UnknownNameError.
    """

    def __init__(
        self,
        model: Architecture,
        settings: Mapping[str, Any],
        letters: Iterable[str],
        quantities: Iterable[str] = QUANTITIES,
        changed: Mapping[str, Any] | None = None,
        box: Mapping[str, Range] | None = None,
    ) -> None:
        self.model = model
        self.changed = dict(changed or {})
        self.settings = dict(settings)
        self.letters = tuple(letters)
        self.quantities = tuple(quantities)
        for quantity in self.quantities:
            if quantity not in ALL:
                raise unknown("quantity", quantity, ALL)
        self.timed = any(quantity in TIMED for quantity in self.quantities)
        for letter in self.letters:
            if letter not in (known := open_sizes(model)):
                raise unknown("size", letter, known)
        self.regimes = Regimes[Leaf](box)

    @property
    def laid_out(self) -> bool:
        """Whether it is about a layout of several devices, or may be."""
        return any(name in self.letters or self.settings.get(name) not in (None, 1) for name in OF_DEVICES)

    @property
    def tree(self) -> Branch[Leaf] | Leaf | None:
        """The regimes that there have been traces in."""
        return self.regimes.tree

    def at(self, point: Mapping[str, int]) -> Leaf:
        """The regime of a point, which gives each letter its size."""
        return self.regimes.at(point, self._trace)

    def known(self, point: Mapping[str, int]) -> Leaf | None:
        """The regime of a point, if there has been a trace in it."""
        return self.regimes.known(point)

    def predict(self, point: Mapping[str, int]) -> Prediction:
        """What `costmodel.predict` answers at a point. Raises CostModelError."""
        fields, settings = _sorted(point)
        return predict(varied(self.model, self.changed | fields), **self.settings | settings)

    def reason(self, point: Mapping[str, int]) -> str:
        """Why there is no answer at a point; "" if there is one."""
        try:
            prediction = self.predict(point)
            self._forms(prediction, point)
            for quantity in self.quantities if self.timed else ():
                prediction.value(quantity)
        except CostModelError as error:
            return str(error)
        return ""

    def _forms(self, prediction: Prediction, point: Mapping[str, int]) -> Forms:
        """The formulas of what was traced at a point; times are worked out from others."""
        values: dict[Hashable, int] = {
            quantity: prediction.value(quantity) for quantity in self.quantities if quantity not in TIMED
        }
        return Forms(formulas_of(values, point))

    def _trace(self, letters: Mapping[str, SymInt]) -> Leaf:
        point = {name: peek(letter) for name, letter in letters.items()}
        sizes, _ = _sorted(point)
        _, extents = _sorted(letters)
        try:
            model = self._symbolic(sizes, {name: letters[name] for name in sizes})
            settings = settings_of(self.settings | extents)
            check_applies(model, settings)
            prediction = Prediction(model, settings, trace(model, settings, layout=Layout()))
            forms = self._forms(prediction, point)
            return replace(forms, time=self._timed(prediction)) if self.timed else forms
        except CostModelError:
            if reason := self.reason(point):
                return Refusal(reason, point)
            raise

    def _timed(self, prediction: Prediction) -> SymbolicTime:
        """What times are worked out from. Raises SettingError for one that there is not."""
        for quantity in self.quantities:
            if quantity in ("tokens_per_second", "energy", "money"):
                prediction.value(quantity)  # where there is none it says why
        return prediction.time.symbolic()

    def _symbolic(self, sizes: dict[str, int], letters: Mapping[str, SymInt]) -> Architecture:
        """The model with letters for fields of these sizes, once it is checked as a model and in letters."""
        try:
            sized = varied(self.model, self.changed | sizes)
        except CostModelError:
            with suppress(ValueError, AttributeError):  # what it decides is noted; a part may lack what it needs
                self.model.with_values(self.changed).with_sizes(letters).checked()
                _ = [letter.pin() for letter in letters.values()]  # no letter has met what is wrong
            raise
        return sized.with_sizes(letters).checked() if letters else sized


def open_sizes(model: Architecture) -> tuple[str, ...]:
    """Sizes of a question about `model` that formulas can have letters for."""
    fields = [name for name in model.LETTERS if name in model.field_names()]
    return (*SIZES, *SIDES, *fields, *_spread(model))


def _spread(model: Architecture) -> list[str]:
    """Sizes that are no field of their own but entries of one, such as those of hidden layers."""
    return [] if model.LETTERS else list(model.size_fields())


def varied(model: Architecture, fields: Mapping[str, Any]) -> Architecture:
    """The model with other values of some fields, checked as if it had been made with them, or of another width.

    Raises CostModelError.
    """
    entries = {name: fields[name] for name in _spread(model) if name in fields}
    own = {name: value for name, value in fields.items() if name not in model.DERIVED and name not in entries}
    if entries:
        model = model.with_sizes(entries).with_fields({})
    if own:
        model = model.with_fields(own)
    for name in model.DERIVED:
        model = model.vary(name, fields[name]) if name in fields else model
    return model


def _sorted(sizes: Mapping[str, int]) -> tuple[dict[str, int], dict[str, Any]]:
    """Fields of the model, and settings."""
    extents = {name: size for name, size in sizes.items() if name in (*SIZES, *SIDES)}
    return {name: size for name, size in sizes.items() if name not in extents}, settings_at(extents)
