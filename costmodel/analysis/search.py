"""One size of a question varied: the values that it can take, predictions along these, and searches among them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from costmodel.analysis.predict import Prediction, predict
from costmodel.architectures.base import Allowed, Architecture
from costmodel.architectures.cnn import CNN
from costmodel.architectures.trace import check_applies
from costmodel.architectures.transformer import Transformer
from costmodel.documents.description import unknown_field
from costmodel.errors import CostModelError, SettingError, shown
from costmodel.symbolic.sizes import LARGEST_SIZE, divisors
from costmodel.training.layout import DEGREES

SETTING_SIZES = ("batch", "accumulate", "loss_chunks", *DEGREES)
MOST_RANKS = 4_096
"""Of one axis, among which a degree is sought."""
COARSEST = 128
"""Of a CNN's widths and images, steps up to this are tried for one that the model can take."""
MOST_SPREAD, MOST_REFINED = 64, 400
"""Predictions at most that a picture is made of, and with those to find where the peak goes to another place."""


@dataclass(frozen=True)
class VariedSize:
    """One size of a question: its values, which the model can take, in order; why there are no larger ones.

    note: which values are left out, if not every whole number is one; "" otherwise. stretched: whether the context
    grows with a sequence that is longer.
    """

    name: str
    question: Prediction
    values: Sequence[int]
    limit: str = ""
    note: str = ""
    stretched: bool = False

    @property
    def own(self) -> int:
        """The size that the question has of itself."""
        return size_of(self.question, self.name)

    def at(self, value: int) -> Prediction:
        """The same question with this size. Raises CostModelError where there is no such model or batch."""
        question = self.question
        if self.stretched and isinstance(question.model, Transformer) and value > question.model.context:
            model = question.model.with_fields({"context": value})
            question = Prediction(model, question.settings, question.tape)
        return with_size(question, self.name, value)


def size_names(model: Architecture) -> tuple[str, ...]:
    """The sizes of a question about `model` that can be varied."""
    return tuple(dict.fromkeys((*SETTING_SIZES, *model.open_sizes())))


def size_of(question: Prediction, name: str) -> int:
    """A size of a question by name; of an image its height."""
    shape = question.batch_shape
    if name in SETTING_SIZES:
        return int(getattr(question.settings, name))
    of_batch = {"past": shape.past, "seq": shape.seq, "target_seq": shape.target, "image": (shape.image or (0,))[0]}
    return int(of_batch[name] or 0) if name in of_batch else question.model.size(name)


def with_size(question: Prediction, name: str, value: int) -> Prediction:
    """The same question with another size; a sequence beyond learned positions is refused as `predict` does."""
    model, settings = question.model, question.settings
    if name in (*SETTING_SIZES, "seq", "target_seq", "image", "past"):
        return Prediction(model, replace(settings, **{name: value}))
    return Prediction(model.vary(name, value), settings)


def with_settings(question: Prediction, **settings: Any) -> Prediction | None:
    """The same question with other settings; None where there is none, as where the model has no such parts."""
    try:
        changed = replace(question.settings, **settings)
        check_applies(question.model, changed)
        return Prediction(question.model, changed)
    except CostModelError:
        return None


def open_question(model: Architecture | str, size: Any, settings: Mapping[str, Any]) -> Prediction:
    """The question of a verb that looks for a size, which no setting gives. Raises CostModelError."""
    if not isinstance(size, str):
        raise SettingError(f"for_={shown(size)} is not the name of a size: use one such as 'batch' or 'layers'")
    if size in settings:
        raise SettingError(f"{size}={shown(settings[size])} is what is to be found: leave it out")
    some_past: dict[str, Any] = {"past": 1} if size == "past" else {}  # a decode step has one, whatever is found
    return predict(model, **settings, **some_past)


def varied_size(question: Prediction, name: str, *, stretched: bool = False) -> VariedSize:
    """A size by name, with its values. Raises UnknownNameError, or SettingError if the question has no such size."""
    model = question.model
    name = model.spelt(name) if isinstance(name, str) else shown(name)
    if name not in size_names(model):
        raise unknown_field(f"size of {model.title} to turn", name, [type(model)], size_names(model))
    if name in ("accumulate", "loss_chunks") and not question.settings.training:
        raise SettingError(f"{name} is for training: there is none in mode {question.settings.mode!r}")
    if name == "past" and question.settings.past is None and question.settings.mode != "decode":
        raise SettingError("past is of a decode step or of a prefill that goes on: give it, as in past=1024")
    if name == "seq" and question.settings.mode == "decode":
        raise SettingError("seq is one token in mode 'decode': turn past, or use mode='prefill'")
    if stretched and name == "seq":
        note = ""
        if isinstance(model, Transformer) and model.positions == "learned":
            note = f"beyond the context {model.context:,} the position table grows with the sequence"
        return VariedSize(name, question, Allowed().values, note=note, stretched=True)
    if name in DEGREES:
        return VariedSize(name, question, *_degrees(question, name))
    if name == "batch" and question.settings.global_batch is not None:
        return VariedSize(name, question, *_batches(question))
    if isinstance(model, CNN) and name in ("width", "image"):
        return VariedSize(name, question, *_steps_of_cnn(question, name))
    return VariedSize(
        name, question, *(Allowed() if name in SETTING_SIZES else model.allowed(name, question.batch_shape))
    )


def _degrees(question: Prediction, name: str) -> Allowed:
    """Ranks along an axis that the model can be split over. Raises SettingError if there are none."""

    def exists(ranks: int) -> bool:
        with suppress(CostModelError):
            settings = replace(question.settings, **{name: ranks})
            question.model.local(settings.layout)
            return True
        return False

    values = [ranks for ranks in range(1, MOST_RANKS + 1) if exists(ranks)]
    if not values:
        raise SettingError(f"{question.model.title} is split over no {name} of these settings: leave some out")
    return Allowed(
        values, f"no more than {MOST_RANKS:,} ranks are tried", f"{name} of those that the model divides into"
    )


def _batches(question: Prediction) -> Allowed:
    """Micro-batches that divide what `global_batch` leaves to each rank."""
    settings = question.settings
    samples = settings.batch * settings.micro_batches
    return Allowed(
        divisors(samples),
        f"there are {samples:,} samples to each rank",
        "batch in divisors of the samples that global_batch leaves to each rank",
    )


def _steps_of_cnn(question: Prediction, name: str) -> Allowed:
    """Values in the finest step that the network can take, down to the smallest that it can."""

    def exists(value: int) -> bool:
        try:
            with_size(question, name, value)
        except CostModelError:
            return False
        return True

    base, step = size_of(question, name), 1
    while step < COARSEST and not exists(base + step):
        step *= 2
    below = last_true(lambda n: exists(base - n * step), -(-base // step))
    note = "" if step == 1 else f"{name} in steps of {step}, which this network takes"
    return Allowed(range(base - below * step, LARGEST_SIZE + 1, step), note=note)


class Curve:
    """A measure of predictions along values in order, each worked out once, at positions of these values.

    predict: the prediction at a value, or CostModelError. measure: what is compared, of a prediction.
    """

    def __init__(
        self, values: Sequence[Any], predict: Callable[[Any], Prediction], measure: Callable[[Prediction], Any]
    ) -> None:
        self.values, self._predict, self._measure = values, predict, measure
        self._predictions: dict[int, Prediction | CostModelError] = {}
        self.measured: dict[int, Any] = {}

    def at(self, position: int) -> Prediction:
        """The prediction there. Raises CostModelError where the model cannot take the value."""
        if position not in self._predictions:
            try:
                self._predictions[position] = self._predict(self.values[position])
            except CostModelError as error:
                self._predictions[position] = error
        outcome = self._predictions[position]
        if isinstance(outcome, CostModelError):
            raise outcome
        return outcome

    def exists(self, position: int) -> bool:
        """Whether the model can take the value there."""
        with suppress(CostModelError):
            self.at(position)
            return True
        return False

    def value(self, position: int) -> Any:
        """The measure there. Raises CostModelError."""
        if position not in self.measured:
            self.measured[position] = self._measure(self.at(position))
        return self.measured[position]

    def within(self, position: int, limit: Any) -> bool:
        """Whether there is a measure there, and it is at most `limit`."""
        return self.exists(position) and self.value(position) <= limit

    def guess(self, target: Any, start: int = 1, rounds: int = 8) -> int:
        """About the last position at which a measure that rises with the value is within a target."""
        return line_guess(lambda n: self.value(n) if self.exists(n) else 0, self.values, target, start, rounds)


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


def line_guess(value: Callable[[int], int], sizes: Sequence[int], target: int, start: int = 1, rounds: int = 8) -> int:
    """About the last of the positions at which a value that rises with its size is within a target: by secants.

    Lines are drawn through the last two guesses, at first position 0 and `start`, until they lead to the same, or for
    so many rounds.
    """
    last = len(sizes) - 1
    before, guess = 0, min(max(start, 1), last)
    for _ in range(rounds):
        rise, run = value(guess) - value(before), sizes[guess] - sizes[before]
        if rise * run <= 0:
            return guess
        size = sizes[before] + (target - value(before)) * run // rise
        before, guess = guess, min(max(bisect_right(sizes, size) - 1, 1), last)
        if guess == before:
            return guess
    return guess


class PeakMemory(NamedTuple):
    """Bytes at the peak by category, and where the peak is: phase and layer."""

    alive: Mapping[str, int]
    place: tuple[str, str]


def peaks_along(
    values: Sequence[Any], at: Callable[[Any], Prediction], also: Iterable[int] = ()
) -> dict[Any, PeakMemory]:
    """The `PeakMemory` at evenly spread values, at positions `also`, and where the peak goes to another step, by value.

    Values that the model cannot take are left out.
    """
    last = len(values) - 1
    positions = sorted({last * n // (MOST_SPREAD - 1) for n in range(MOST_SPREAD)} | set(also))

    def peak_memory(prediction: Prediction) -> PeakMemory:
        step = prediction.timeline.peak_step
        return PeakMemory(step.alive._asdict(), (step.phase, step.layer))

    curve = Curve(values, at, peak_memory)

    def refine(low: int, high: int) -> None:
        if high - low < 2 or len(curve.measured) > MOST_REFINED or curve.value(low).place == curve.value(high).place:
            return
        middle = (low + high) // 2
        if curve.exists(middle):
            curve.value(middle)
            refine(low, middle)
            refine(middle, high)

    for position in filter(curve.exists, positions):
        curve.value(position)
    for low, high in pairwise(sorted(curve.measured)):
        refine(low, high)
    return {values[position]: curve.measured[position] for position in sorted(curve.measured)}
