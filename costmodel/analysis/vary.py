"""Searches over ordered numbers, for what is true up to one of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, NamedTuple

from costmodel.analysis.closed_forms import ClosedForms, Forms, open_sizes
from costmodel.architectures.base import Allowed, Architecture
from costmodel.architectures.cnn import CNN
from costmodel.architectures.transformer import Transformer
from costmodel.cost.prediction import Prediction
from costmodel.cost.quantities import BETTER, TIMED, plain
from costmodel.documents.description import unknown_field
from costmodel.errors import CostModelError, SettingError, shown
from costmodel.symbolic.sizes import LARGEST_SIZE
from costmodel.training.settings import Settings

MOST_REFINED = 400
"""Predictions that are made at most for a picture, to find where the peak goes to another place."""


def peaks_along(values: Sequence[Any], places: Sequence[int], at: Callable[[Any], Prediction]) -> dict[Any, Peaked]:
    """What is alive at the peak, at `places` among values, and on both sides of where the peak goes to another step.

    Values that the model cannot take are left out.
    """
    found: dict[int, Peaked] = {}

    def look(place: int) -> Any:
        if place not in found:
            step = at(values[place]).timeline.peak_step
            found[place] = Peaked(step.alive._asdict(), (step.phase, step.layer))
        return found[place].place

    def between(low: int, high: int) -> None:
        if high - low < 2 or len(found) > MOST_REFINED or look(low) == look(high):
            return
        middle = (low + high) // 2
        with suppress(CostModelError):
            look(middle)
            between(low, middle)
            between(middle, high)

    for place in places:
        with suppress(CostModelError):
            look(place)
    for low, high in pairwise(sorted(found)):
        between(low, high)
    return {values[place]: found[place] for place in sorted(found)}


class Peaked(NamedTuple):
    """Bytes at the peak by category, and where the peak is."""

    alive: Mapping[str, int]
    place: Any


def check_open(for_: Any, settings: Mapping[str, Any]) -> None:
    """Raise SettingError for what is no name of a size to find, or is given."""
    if not isinstance(for_, str):
        raise SettingError(f"for_={shown(for_)} is not the name of a size: use one such as 'batch' or 'layers'")
    if for_ in settings:
        raise SettingError(f"{for_}={shown(settings[for_])} is what is to be found: leave it out")


def last_true(holds: Callable[[int], bool], count: int, guess: int = 0) -> int:
    """The last of `count` positions at which `holds` is true, if it is true at 0 and false from some position on.

    It is asked twice if the guess is right, and at about 2·log₂ of the distance if it is not. Whatever `holds` is
    like, it is true at the answer (if that is not 0) and false right behind it (if that is not the end).
    """
    low, high, step = 0, count, 1
    if 0 < guess < count and not holds(guess):
        high = guess
        while high - step > 0 and not holds(high - step):
            high, step = high - step, 2 * step
        low = max(0, high - step)
    else:
        low = guess if 0 < guess < count else 0
        while low + step < high and holds(low + step):
            low, step = low + step, 2 * step
        high = min(high, low + step)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def line_guess(value: Callable[[int], int], sizes: Sequence[int], target: int, start: int = 1, rounds: int = 4) -> int:
    """About the last of the positions at which a value that grows in proportion to its size is within a target.

    Straight lines are drawn from position 0 to the last guess, `start` at first, until they lead to the same, or for
    so many rounds.
    """
    last = len(sizes) - 1
    place = min(max(start, 1), last)
    for _ in range(rounds):
        rise = value(place) - value(0)
        if rise <= 0:
            return place
        size = sizes[0] + (target - value(0)) * (sizes[place] - sizes[0]) // rise
        found = min(max(bisect_right(sizes, size) - 1, 1), last)
        if found == place:
            return place
        place = found
    return place


OF_RUNS = ("batch", "accumulate", "loss_chunks")
COARSEST = 128
"""Of a CNN's widths and images, steps up to this are tried for one that the model can take."""


@dataclass(frozen=True)
class VariedSize:
    """One number of a question: its values, which the model can take, in order; why there are no larger ones.

    note: which values are left out, if not every whole number is one; "" otherwise. stretched: whether the context
    grows with a sequence that is longer.
    """

    name: str
    asked: Prediction
    values: Sequence[int]
    limit: str = ""
    note: str = ""
    stretched: bool = False

    def at(self, value: int) -> Prediction:
        """The same question with this number. Raises CostModelError where there is no such model or batch."""
        asked = self.asked
        if self.stretched and isinstance(asked.model, Transformer) and value > asked.model.context:
            asked = Prediction(asked.model.with_fields({"context": value}), asked.settings, asked.tape)
        return turned(asked, self.name, value)


def knob_names(model: Architecture) -> tuple[str, ...]:
    """What can be turned of a question about `model`."""
    return tuple(dict.fromkeys((*OF_RUNS, *model.open_sizes())))


def knob_of(asked: Prediction, name: str, *, stretched: bool = False) -> VariedSize:
    """A knob by name. Raises UnknownNameError, or SettingError if this model has nothing there to turn."""
    model = asked.model
    name = model.spelt(name) if isinstance(name, str) else shown(name)
    if name not in knob_names(model):
        raise unknown_field(f"size of {model.title} to turn", name, [type(model)], knob_names(model))
    if name in ("accumulate", "loss_chunks") and not asked.settings.training:
        raise SettingError(f"{name} is for training: there is none in mode {asked.settings.mode!r}")
    if name == "past" and asked.settings.past is None:
        raise SettingError("past is of a decode step or of a prefill that goes on: give it, as in past=1024")
    if name == "seq" and asked.settings.mode == "decode":
        raise SettingError("seq is one token in mode 'decode': turn past, or use mode='prefill'")
    if stretched and name == "seq":
        return VariedSize(name, asked, Allowed().values, note=_stretched(asked.model), stretched=True)
    if isinstance(model, CNN) and name in ("width", "image"):
        return VariedSize(name, asked, *_found(asked, name))
    return VariedSize(name, asked, *(Allowed() if name in OF_RUNS else model.allowed(name, asked.batch_shape)))


def _stretched(model: Architecture) -> str:
    if not isinstance(model, Transformer) or model.positions != "learned":
        return ""
    return f"beyond the context {model.context:,} the position table grows with the sequence"


def current(asked: Prediction, name: str) -> int:
    """The number that a question has now; of an image its height."""
    if name in OF_RUNS:
        return int(getattr(asked.settings, name))
    if name == "past":
        return int(asked.batch_shape.past or 0)
    if name in ("seq", "target_seq"):
        return int((asked.batch_shape.seq if name == "seq" else asked.batch_shape.target) or 0)
    if name == "image":
        return int((asked.batch_shape.image or (0,))[0])
    return asked.model.size(name)


def turned(asked: Prediction, name: str, value: int) -> Prediction:
    """The same question with another number; a sequence beyond learned positions is refused as `predict` does."""
    model, settings = asked.model, asked.settings
    if name in (*OF_RUNS, "seq", "target_seq", "image", "past"):
        return Prediction(model, replace(settings, **{name: value}))
    return Prediction(model.vary(name, value), settings)


def exists(made: Callable[[], Any]) -> bool:
    """Whether there is such a model or batch."""
    try:
        made()
    except CostModelError:
        return False
    return True


def _found(asked: Prediction, name: str) -> Allowed:
    """Of a CNN: values in the finest step that it can take, down to the smallest that it can."""
    base, step = current(asked, name), 1
    while step < COARSEST and not exists(lambda step=step: turned(asked, name, base + step)):
        step *= 2
    below = last_true(lambda n: exists(lambda: turned(asked, name, base - n * step)), -(-base // step))
    note = "" if step == 1 else f"{name} in steps of {step}, which this network takes"
    return Allowed(range(base - below * step, LARGEST_SIZE + 1, step), note=note)


TRACED = 4
"""Where no formula is known, one in so many positions is traced for one, and all others are predicted."""


class Curve:
    """Values of one quantity at the positions of a knob, each worked out once; of rates, of which more is better, < 0.

    What the model cannot take has no value but a reason.
    """

    def __init__(self, varied: VariedSize, quantity: str) -> None:
        self.varied, self.quantity = varied, quantity
        self._sign = -1 if quantity in BETTER else 1
        self._made: dict[int, Prediction | CostModelError] = {}
        self._forms: ClosedForms | None = None
        self._unknown = 0

    def at(self, position: int) -> Prediction | CostModelError:
        """What `predict` answers there."""
        if position not in self._made:
            try:
                self._made[position] = self.varied.at(self.varied.values[position])
            except CostModelError as error:
                self._made[position] = error
        return self._made[position]

    def predicted(self, position: int) -> Any:
        """The value there as `predict` has it; None if there is no such model or batch."""
        found = self.at(position)
        return None if isinstance(found, CostModelError) else self._sign * plain(found.value(self.quantity))

    def value(self, position: int) -> Any:
        """The value there, by formula if one is known to hold there."""
        if self._forms is not None and position not in self._made:
            point = {self.varied.name: self.varied.values[position]}
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
        model, name = self.varied.asked.model, self.varied.name
        place = line_guess(lambda n: self.predicted(n) or 0, self.varied.values, target, rounds=1)
        if self.quantity in TIMED or self.varied.stretched or name not in open_sizes(model):
            return place
        settings = {f.name: getattr(self.varied.asked.settings, f.name) for f in fields(Settings) if f.name != name}
        forms = ClosedForms(model, settings, (name,), (self.quantity,))
        try:
            forms.at({name: self.varied.values[place]})
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
