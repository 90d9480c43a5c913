"""Every kind that a list of blocks can hold answers on inputs of any rank, or says why not."""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import Any, Literal, get_args, get_origin

import pytest

import costmodel as cm
from costmodel import layers
from costmodel.layers import load_all
from costmodel.layers.base import Layer
from costmodel.training.fields import checked, field_types
from tests.command import said_in_one_line
from tests.layers.device_kernels import check_kernels

ITEMS = sorted(name for name, kind in load_all().items() if kind.in_lists)
INPUTS = ((1, 1, 1), (4, 6, 6))


def values_of(wanted: Any) -> list[Any]:
    """Small values of a field's type."""
    if get_origin(wanted) is Literal:
        return list(get_args(wanted))
    options = {int: [0, 1, 2, 5], bool: [False, True], float: [0.0, 0.5, 1, 2], str: ["x"]}
    if get_origin(wanted) is tuple:
        return [[], [0], [1, 0], [0, 1], [2, 1, 0], [0, 2, 3, 1], [1, 1, 1, 1]]
    return options.get(wanted) or [value for option in get_args(wanted) for value in values_of(option)] or [None]


def written(name: str) -> list[dict[str, Any]]:
    """The kind with its required fields at small values, the others at their defaults or one at a small value."""
    kind = load_all()[name]
    values = {field: values_of(wanted) for field, (wanted, _) in field_types(kind).items()}
    needed = [f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING]
    plain = [dict(zip(needed, chosen, strict=True)) for chosen in product(*(values[field] for field in needed))]
    return plain + [{**plain[-1], field: value} for field in values for value in values[field]]


def shaped(rank: int, image: tuple[int, ...]) -> list[Any]:
    """Items that bring an image to so many axes, the batch included."""
    size = image[0] * image[1] * image[2]
    shapes = {2: [size], 3: [image[0], image[1] * image[2]], 4: [*image]}
    return [{"reshape": {"shape": shapes.get(rank, [*image, *[1] * (rank - 4)])}}]


def test_a_kind_is_found_by_the_name_of_its_class() -> None:
    assert {kind.__name__: getattr(layers, kind.__name__) for kind in load_all().values()} == {
        kind.__name__: kind for kind in load_all().values()
    }
    with pytest.raises(AttributeError, match="has no layer kind 'Nothing'"):
        _ = layers.Nothing


@pytest.mark.parametrize("kind", load_all().values(), ids=load_all())
def test_a_default_is_a_value_that_can_be_given(kind: type[Layer]) -> None:
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            assert checked(kind, field.name, field.default, "it", kind.largest) == field.default


GROWING = ("flops.forward", "flops.backward", "pointwise_flops.total", "memory.activations", "memory.inputs")


@pytest.mark.slow
@pytest.mark.parametrize("name", ITEMS)
def test_a_kind_answers_or_is_refused(name: str) -> None:
    """Each sample that a batch has more costs the same, and what is kept is alive at once with the weights."""
    answered = 0
    for fields, rank, image in product(written(name), range(2, 7), INPUTS):
        try:
            model = cm.CNN(input=image, blocks=[*shaped(rank, image), {name: fields}, "relu"])
            one, two, three = (cm.predict(model, batch=n, loss=None) for n in (1, 2, 3))
            check_kernels(three.tape)
            for quantity in GROWING:
                assert three.value(quantity) - two.value(quantity) == two.value(quantity) - one.value(quantity) >= 0
            assert one.params == three.params
            memory = three.memory
            assert memory.peak >= memory.weights + memory.buffers + memory.inputs + memory.activations
            answered += 1
        except cm.CostModelError as error:
            said_in_one_line(error)
    assert answered
