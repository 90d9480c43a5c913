"""Closed forms of a recipe, a model and all settings of a question but its sizes: once known, it is not traced again.

Forms are those of `QUANTITIES`, exact where the decisions of a trace come out alike, and elsewhere none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from threading import Lock
from typing import TYPE_CHECKING, Any

from costmodel.architectures.base import Architecture
from costmodel.cost.lru_cache import LruCache
from costmodel.training.layout import DEGREES
from costmodel.training.settings import SETTING_NAMES, Settings

if TYPE_CHECKING:
    from costmodel.symbolic.guards import Regimes
    from costmodel.symbolic.polynomial import Polynomial
    from costmodel.symbolic.sizes import SymInt

SIZES = ("batch", "seq", "target_seq", "accumulate", "loss_chunks", "past", "page_size", *DEGREES)
"""Settings that formulas can have a letter for, beside the sides of the image."""
SIDES = ("image.height", "image.width")
MOST_RECIPES = 64
"""Recipes that are known at once, and models that they are known of."""
MOST_FORMS = 16
"""Regimes of one recipe that forms are made for."""
PATIENCE = 2
"""Questions without a form that are traced before one is made; for each next form of a recipe so many more."""

SizeValues = Mapping[str, int]
Polynomials = Mapping[str, "Polynomial"]


class Recipe:
    """What is known of one model under one set of choices.

    A trace with letters takes as long as some ten with numbers. It is made in the place of the third trace at different
    sizes whose peak is asked for, and where its form does not hold after four more, then after six, ...: who asks once
    or twice, or the same again, or for no peak, waits for no form, and however many regimes there are, most questions
    that need a trace get one with numbers. A form that there is answers every question in its regime. Threads may
    share a recipe.
    """

    def __init__(self, model: Architecture) -> None:
        self.model = model  # alive as long as its id is a key
        self._regimes: Regimes[Polynomials] | None = None
        self._attempts = 0
        self._traced: set[tuple[int, ...]] = set()
        self._lock = Lock()

    def known(self, point: SizeValues) -> Polynomials | None:
        """The forms that hold at a point."""
        return None if self._regimes is None else self._regimes.known(point)

    def learn(
        self, point: SizeValues, values: Callable[[Mapping[str, SymInt]], Mapping[str, int]]
    ) -> Polynomials | None:
        """The forms that hold at a point without any, if it is time for them; `values` of letters are traced then.

        A model has none whose forward pass takes plain numbers alone, or decides by more than sizes.
        """
        with self._lock:
            if self._attempts == MOST_FORMS:
                return None
            self._traced.add(tuple(point.values()))
            if len(self._traced) <= PATIENCE * (self._attempts + 1):
                return None
            self._attempts += 1
            self._traced.clear()
            from costmodel.symbolic.guards import Regimes, formulas_of  # which a first question does without

            if self._regimes is None:
                self._regimes = Regimes()
        try:
            return self._regimes.at(point, lambda letters: formulas_of(values(letters), point))
        except Exception:  # whatever a model's own code raises: the trace with numbers answers
            return None


_RECIPES: LruCache[Recipe] = LruCache(MOST_RECIPES)
_FIRST_EQUALS: LruCache[Architecture] = LruCache(MOST_RECIPES)
"""The first model met of those that are equal, by each of them."""
_BY_IDENTITY: LruCache[tuple[Architecture, Architecture]] = LruCache(MOST_RECIPES)
"""The same by identity, which is told sooner than equality; each model beside it lives as long as its id is a key."""
_LOCK = Lock()
_CHOICES = attrgetter(*(name for name in SETTING_NAMES if name not in (*SIZES, "image", "on", "stack")))
_EXTENTS = attrgetter(*SIZES)
_DEFAULTS = dict(zip(SIZES, _EXTENTS(Settings()), strict=True))


def recipe_of(model: Architecture, settings: Settings) -> tuple[Recipe, SizeValues]:
    """The recipe of a question, and its sizes by letter: the batch, and all others that are not at their defaults.

    Equal models have one recipe. The machine and how kernels are started matter to no quantity that has a form.
    """
    sizes = zip(SIZES, _EXTENTS(settings), strict=True)
    point = {name: size for name, size in sizes if name == "batch" or size != _DEFAULTS[name]}
    if settings.image is not None:
        point.update(zip(SIDES, settings.image, strict=True))
    with _LOCK:
        _, first = _BY_IDENTITY.of(id(model), lambda: (model, _first_equal(model)))
        return _RECIPES.of((id(first), tuple(point), _CHOICES(settings)), partial(Recipe, first)), point


def _first_equal(model: Architecture) -> Architecture:
    """The first model met that is equal to another; that itself where it may cost otherwise, by code of one's own."""
    ours = model.DATA_ALONE and type(model).__module__.startswith("costmodel.")
    return _FIRST_EQUALS.of(model, lambda: model) if ours else model


def settings_at(point: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, from sizes by letter."""
    settings = {name: size for name, size in point.items() if name not in SIDES}
    if SIDES[0] in point:
        settings["image"] = tuple(point[side] for side in SIDES)
    return settings
