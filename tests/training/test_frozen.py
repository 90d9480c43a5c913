"""Layer kinds behave as frozen dataclasses do."""

from copy import deepcopy
from dataclasses import FrozenInstanceError, replace
from pickle import dumps, loads
from threading import Thread
from typing import Any

import pytest

from costmodel.layers.linear import Linear, Matmul
from costmodel.training.frozen import Frozen, frozen


@frozen()
class Point(Frozen):
    """One field, that those derived from it have too."""

    x: int = 1


def test_kinds_with_equal_fields_are_equal() -> None:
    assert Linear(3) == Linear(features=3, bias=True)
    assert hash(Linear(3)) == hash(Linear(3, bias=True))
    assert len({Linear(3), Linear(3), Linear(4), Linear(3, bias=False), Matmul()}) == 4
    assert Linear(3) != 3


def test_fields_cannot_be_set_added_or_deleted() -> None:
    kind = Linear(3)
    for name in ("features", "bias", "kind", "width"):
        with pytest.raises(FrozenInstanceError, match=name):
            setattr(kind, name, 4)
        with pytest.raises(FrozenInstanceError, match=name):
            delattr(kind, name)
    assert kind == Linear(3)


def test_kinds_are_shown_as_they_are_written() -> None:
    assert repr(Linear(3)) == "Linear(features=3)"
    assert repr(Matmul()) == "Matmul()"


def test_kinds_can_be_copied() -> None:
    kind = Linear(3, bias=False)
    assert deepcopy(kind) == loads(dumps(kind)) == replace(Linear(3), bias=False) == kind


@pytest.mark.parametrize("base", [Frozen, Point])
def test_another_thread_makes_an_object_of_a_class_whose_fields_are_being_generated(base: type) -> None:
    Point()
    others: list[Any] = []

    class Ask:
        """Asks another thread for an object when the class is first looked at."""

        def __get__(self, instance: object, owner: type) -> Any:
            if instance is None and not others:
                others.append(None)
                thread = Thread(target=lambda: others.append(Pixel(y=3)), daemon=True)
                thread.start()
                thread.join(20)
            return lambda: None

    @frozen()
    class Pixel(base):  # type: ignore[misc, valid-type]
        y: int = 2
        __post_init__ = Ask()

    first = Pixel(y=3)
    assert vars(first)["y"] == 3
    assert others[1:] == [first]
