"""All questions of a sweep: a grid of them, whose answers are worked out window by window."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from threading import Lock
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from costmodel.analysis.closed_forms import ClosedForms
from costmodel.analysis.sweep.axes import Axis
from costmodel.analysis.sweep.guarded import GridAnswers, answers_of
from costmodel.architectures.base import Architecture
from costmodel.errors import CostModelError
from costmodel.symbolic.evaluation import Array, GridWindow, SizeGrid
from costmodel.training.settings import SETTING_NAMES

TILE = 2**10
TILE_CELLS = 2**19
ENOUGH = 2**13
"""Cells evaluated at once, a tile: so many along an axis, and in all, that arithmetic takes longer than its preparation
and a quantity's values, 4 MiB, stay in a shared cache. If there are enough, outer axes do not vary within a tile:
formulas are simpler then."""


class Cells(NamedTuple):
    """Values of each quantity within a window, and why there is none ("" where there is), which broadcasts to it."""

    values: dict[str, Array]
    reasons: Array


def windows_of(whole: GridWindow, cells: int, longest: int) -> Iterator[GridWindow]:
    """Windows of at most so many cells, and so many along an axis, that together are the whole one, in order."""
    spans: list[int] = []
    for part in reversed(whole):
        full = math.prod(spans) >= ENOUGH and longest == TILE
        spans.append(1 if full else max(1, min(part.stop - part.start, longest, cells)))
        cells //= spans[-1]
    spans.reverse()
    starts = (range(part.start, part.stop, span) for part, span in zip(whole, spans, strict=True))
    for corner in product(*starts):
        yield tuple(slice(at, min(at + span, part.stop)) for at, span, part in zip(corner, spans, whole, strict=True))


class Grid:
    """The questions of a sweep. Pickles, so that windows can be worked out elsewhere.

    axes: in the order of the grid's. settings, changed: settings and fields of the model that do not vary.
    """

    def __init__(
        self,
        model: Architecture,
        axes: Sequence[Axis],
        settings: Mapping[str, Any],
        changed: Mapping[str, Any],
        quantities: Sequence[str],
    ) -> None:
        self.model = model
        self.changed = dict(changed)
        self.axes = tuple(axes)
        self.settings = dict(settings)
        self.quantities = tuple(quantities)
        self.shape = tuple(len(axis.values) for axis in self.axes)
        self._answers: dict[tuple[int, ...], GridAnswers | CostModelError] = {}
        self._lock = Lock()
        self._token = uuid4().hex
        self._pickled: bytes | None = None

    def __reduce__(self) -> Any:
        _ = self.dtypes  # found once, with the answers of every choice, and not again wherever this goes
        if self._pickled is None:
            self._pickled = pickle.dumps({k: v for k, v in self.__dict__.items() if k not in ("_lock", "_pickled")})
        return _restored, (self._token, self._pickled)

    @property
    def cells(self) -> int:
        """How many questions there are."""
        return math.prod(self.shape)

    @property
    def whole(self) -> GridWindow:
        """All of it."""
        return tuple(slice(0, size) for size in self.shape)

    def windows(
        self, within: GridWindow | None = None, cells: int = TILE_CELLS, longest: int = TILE
    ) -> Iterator[GridWindow]:
        """Windows of at most so many cells that together are one, or all of it, in order."""
        return windows_of(self.whole if within is None else within, cells, longest)

    def fill(self, window: GridWindow, out: Mapping[str, Array]) -> None:
        """Put the values within a window into arrays of its shape, of type float64 or int64 (0 where there is none)."""
        for choice, place in self._choices(window):
            within = {quantity: array[place] for quantity, array in out.items()}
            answers = self._answers_of(choice)
            if isinstance(answers, CostModelError):
                for array in within.values():
                    array[...] = np.nan if array.dtype == np.float64 else 0
            else:
                answers.fill(self._numeric(window), within)

    def reasons(self, window: GridWindow) -> Array:
        """Why cells of a window have no answer; "" where they have; broadcasts to it."""
        parts: list[tuple[tuple[Any, ...], Array]] = []
        sizes = [1 if axis.numeric else part.stop - part.start for axis, part in zip(self.axes, window, strict=True)]
        for choice, place in self._choices(window):
            answers = self._answers_of(choice)
            refused = isinstance(answers, CostModelError)
            texts = np.array(str(answers), object) if refused else answers.reasons(self._numeric(window))
            if texts is not None:
                parts.append((place, texts))
                sizes = [max(a, b) for a, b in zip(sizes, self._spread(texts), strict=True)]
        result = np.full(sizes, "", object)
        for place, texts in parts:
            result[place] = texts
        return result

    def cells_in(self, window: GridWindow) -> Cells:
        """The answers within a window."""
        shape = tuple(part.stop - part.start for part in window)
        values = {quantity: np.empty(shape, self.dtypes[quantity]) for quantity in self.quantities}
        self.fill_all(window, values)
        return Cells(values, self.reasons(window))

    def exact(self, window: GridWindow) -> dict[str, Array]:
        """Values within a window, as int64 wherever that holds all there are: anything where there is no answer."""
        shape = tuple(part.stop - part.start for part in window)
        arrays = {q: np.zeros(shape, np.int64 if fits else np.float64) for q, fits in self.integral.items()}
        self.fill_all(window, arrays)
        return arrays

    def fill_all(self, window: GridWindow, out: Mapping[str, Array]) -> None:
        """As `fill`, tile by tile, of a window of any size, and of no axes at all, where only `...` gives a view."""
        for tile in self.windows(window):
            place = tuple(slice(t.start - w.start, t.stop - w.start) for t, w in zip(tile, window, strict=True))
            self.fill(tile, {quantity: array[(*place, ...)] for quantity, array in out.items()})

    @cached_property
    def dtypes(self) -> dict[str, type]:
        """The type of each quantity: int64 where every cell has a value within it, else float64."""
        complete, integral = self._known
        return {q: np.int64 if complete and integral[q] else np.float64 for q in self.quantities}

    @cached_property
    def integral(self) -> dict[str, bool]:
        """Whether all values that there are of a quantity are within int64."""
        return self._known[1]

    @cached_property
    def _known(self) -> tuple[bool, dict[str, bool]]:
        """Whether every cell has an answer, and `integral`."""
        complete, integral = True, dict.fromkeys(self.quantities, True)
        for choice, _ in self._choices(self.whole):
            answers = self._answers_of(choice)
            if isinstance(answers, CostModelError):
                complete = False
                continue
            complete = complete and answers.complete
            integral = {q: fits and answers.integral(q) for q, fits in integral.items()}
        return complete, integral

    def _choices(self, window: GridWindow) -> Iterator[tuple[tuple[int, ...], tuple[Any, ...]]]:
        """Numbers of the values of axes that are not numeric, and where in the window they stand."""
        spans = [
            (slice(None),) if axis.numeric else range(part.start, part.stop)
            for axis, part in zip(self.axes, window, strict=True)
        ]
        for choice in product(*spans):
            place = [at if isinstance(at, slice) else at - part.start for at, part in zip(choice, window, strict=True)]
            yield tuple(at for at in choice if not isinstance(at, slice)), (*place, ...)

    def _numeric(self, window: GridWindow) -> GridWindow:
        return tuple(part for axis, part in zip(self.axes, window, strict=True) if axis.numeric)

    def _spread(self, texts: Array) -> list[int]:
        """Sizes of an array over numeric axes, on all axes."""
        sizes = iter(texts.shape)
        return [next(sizes, 1) if axis.numeric else 1 for axis in self.axes]

    def _answers_of(self, choice: tuple[int, ...]) -> GridAnswers | CostModelError:
        with self._lock:
            answers = self._answers.get(choice)
            if answers is None:
                try:
                    answers = self._answers[choice] = self._new_answers(choice)
                except CostModelError as error:
                    answers = self._answers[choice] = error
            return answers

    def _new_answers(self, choice: tuple[int, ...]) -> GridAnswers:
        choices = [axis for axis in self.axes if not axis.numeric]
        values = {axis.name: axis.values[number] for axis, number in zip(choices, choice, strict=True)}
        settings = {name: value for name, value in values.items() if name in SETTING_NAMES}
        fields = {name: value for name, value in values.items() if name not in SETTING_NAMES}
        numeric = [axis for axis in self.axes if axis.numeric]
        letters = {
            letter: (number, np.array(sizes, np.int64))
            for number, axis in enumerate(numeric)
            for letter, sizes in axis.letters.items()
        }
        forms = ClosedForms(self.model, self.settings | settings, letters, self.quantities, self.changed | fields)
        return answers_of(forms, SizeGrid(tuple(len(axis.values) for axis in numeric), letters))


_RESTORED: dict[str, Grid] = {}


def _restored(token: str, pickled: bytes) -> Grid:
    """A grid from its pickle, once for all windows that one process works out."""
    if token not in _RESTORED:
        grid = Grid.__new__(Grid)
        grid.__dict__.update(pickle.loads(pickled), _lock=Lock(), _pickled=pickled)
        while len(_RESTORED) > 3:
            _RESTORED.pop(next(iter(_RESTORED)))
        _RESTORED[token] = grid
    return _RESTORED[token]
