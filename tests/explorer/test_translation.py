"""Functions that are written as JavaScript give what they give in Python, and what cannot be written is refused."""

import json
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib.resources import files
from itertools import chain, pairwise
from typing import Any, ClassVar, NamedTuple

import pytest
import quickjs

from costmodel.errors import SettingError
from costmodel.explorer.translation import Translation, literal
from costmodel.training.frozen import Frozen, frozen


class Place(NamedTuple):
    street: str
    number: int = 1

    @property
    def doubled(self) -> int:
        return 2 * self.number


class Tally:
    def __init__(self, start: float = 0.0) -> None:
        self.total = start
        self.by_name: dict[Any, list[float]] = {}

    def add(self, name: Any, amount: float, *, twice: bool = False) -> None:
        self.by_name.setdefault(name, []).append(amount)
        self.total += 2 * amount if twice else amount


def lists() -> Any:
    first, *others = [3, 1, 2]
    others += [7]
    table = {name: n for n, name in enumerate("abc")} | {"z": 9}
    del others[2:]
    return [first, others[-1], sorted(others), [b - a for a, b in pairwise([1, 4, 9])], list(table), table.get("q", 5)]


def keys() -> Any:
    tally = Tally(1.5)
    tally.add((Place("mill"), "x"), 2.0, twice=True)
    tally.add((Place("mill", 1), "x"), 3.0)
    return [len(tally.by_name), tally.total, [sum(each) for each in tally.by_name.values()]]


def empty_is_false() -> Any:
    nothing, no_names = [1][1:], {name: place for place, name in enumerate("")}
    return [nothing or 4, (1 if nothing else 2), not nothing, nothing and 3, no_names or None, bool([0])]


def generated() -> Any:
    def_ = [n for row in ([1, 2], [3]) for n in row if n != 2]
    return [*def_, next((n for n in def_ if n > 5), -1), -(-7 // 2), max(2, 5), min([4, 3]), Place("a", 4).doubled]


def replaced_fields() -> Any:
    place = Place("mill")._replace(number=8)
    street, number = place
    return [street, number, isinstance(place, Place), f"{street} {number}", "a.b.c".rpartition(".")[0]]


@frozen()
class Shape(Frozen):
    sides: ClassVar[int] = 0
    edge = straight = True
    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise SettingError("use 1 or more")

    @property
    def around(self) -> int:
        return self.sides * self.size


@frozen()
class Square(Shape):
    sides = 4


@frozen()
class Circle(Shape):
    edge = straight = False


def shapes() -> Any:
    square = Square(3)
    by_shape = {square: 1, Circle(3): 2, Square(3): 3}
    larger = type(square)(5)
    return [square.around, larger.around, square.edge, Circle(1).straight, *by_shape.values()]


def refused() -> Any:
    try:
        return [Square(size).size for size in (2, 0)]
    except SettingError:
        return None


@lru_cache(maxsize=4)
def doubled(number: int) -> list[int]:
    return [2 * number]


def kept() -> Any:
    doubled(4).append(9)
    return [doubled(4), doubled(5)]


def counted_down() -> Any:
    queue, turns = deque([3, 1, 2]), 0

    def halves(number: int) -> Iterator[int]:
        while number > 1:
            number //= 2
            yield number

    while queue:
        first = queue.popleft()
        turns += first
        if first == 2:
            break
    return [turns, *halves(9), *chain.from_iterable(map(halves, range(8, 0, -3)))]


def others() -> Any:
    table = [0] * 3
    table += [n for n in (7, 8)]  # noqa: C416
    longest = max(["ab", "cd", "e"], key=lambda text: len(text))
    objects = {id(each): each for each in (table, table)}
    names, n = {Tally(1.0): "a", Tally(1.0): "b"}, 2
    return [*table, *divmod(-7, 2), *sorted({2, n, 1}), longest, "abc".startswith("ab"), len(objects), len(names)]


FUNCTIONS = (
    lists,
    keys,
    empty_is_false,
    generated,
    replaced_fields,
    shapes,
    refused,
    doubled,
    kept,
    counted_down,
    others,
)
CLASSES: dict[type, tuple[str, ...]] = {
    Place: ("doubled",),
    Tally: ("__init__", "add"),
    Shape: ("__post_init__", "around"),
    Square: (),
    Circle: (),
}


@pytest.mark.parametrize("function", [each for each in FUNCTIONS if each is not doubled])
def test_a_function_gives_what_it_gives_in_python(function: Callable[[], Any]) -> None:
    doubled.cache_clear()
    text = Translation(FUNCTIONS, CLASSES, {}).text
    python = (files("costmodel.explorer") / "python.js").read_text("utf-8")
    given = quickjs.Context().eval(f"JSON.stringify((()=>{{{python}\n{text}\nreturn {function.__name__}()}})())")
    assert json.loads(given) == json.loads(json.dumps(function()))


def loops_with_an_end() -> None:
    while False:
        pass
    else:
        print()


def catches_two() -> None:
    try:
        print()
    except (ValueError, TypeError):
        return


def names_what_there_is_not() -> Any:
    return lists(other=1)  # type: ignore[call-arg]


def steps() -> Any:
    return [1, 2, 3][::2]


@pytest.mark.parametrize("function", [loops_with_an_end, catches_two, names_what_there_is_not, steps])
def test_what_there_is_no_javascript_for_is_refused(function: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match=function.__name__):
        _ = Translation([function], {}, {}).text


def test_a_constant_of_another_type_is_refused() -> None:
    assert literal({("a", 1): float("inf")}) == 'new Dict([[["a",1],Infinity]])'
    with pytest.raises(TypeError, match="no constant"):
        literal({1, 2})
