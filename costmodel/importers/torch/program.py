"""What one forward pass of a module calls, as plain data: operators in order, with the tensors they read and make.

A size is a number, the name of a size of the batch, or an operation on such trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import add, mul
from typing import Any, NamedTuple

from costmodel.errors import shown
from costmodel.symbolic.sizes import ceil_div, exact_div, maximum, minimum

EXTENTS = ("batch", "seq", "height", "width")
"""Sizes that a question gives: two of them are the image's."""

Tree = Any
"""An int, a name in `EXTENTS`, or [operation, tree, ...]."""

_OPERATIONS = {
    "+": lambda *terms: reduce(add, terms),
    "*": lambda *factors: reduce(mul, factors),
    "//": lambda n, d: ceil_div(n - d + 1, d),
    "ceil": ceil_div,
    "/": exact_div,
    "%": lambda n, d: n - d * ceil_div(n - d + 1, d),
    "min": lambda *sizes: reduce(minimum, sizes),
    "max": lambda *sizes: reduce(maximum, sizes),
}


def evaluate(tree: Tree, sizes: Mapping[str, int]) -> int:
    """The size that a tree stands for; with letters for `sizes`, a letter."""
    if isinstance(tree, int | float):
        return tree  # type: ignore[return-value]
    if isinstance(tree, str):
        return sizes[tree]
    return _OPERATIONS[tree[0]](*(evaluate(branch, sizes) for branch in tree[1:]))


def is_size(tree: Any) -> bool:
    """Whether plain data is a size: a whole number, the name of one, or an operation on such."""
    if isinstance(tree, list | tuple):
        return len(tree) > 1 and isinstance(tree[0], str) and tree[0] in _OPERATIONS and all(map(is_size, tree[1:]))
    return tree in EXTENTS if isinstance(tree, str) else isinstance(tree, int) and not isinstance(tree, bool)


def shape_of(trees: Sequence[Tree], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A shape, each axis evaluated."""
    return tuple(evaluate(tree, sizes) for tree in trees)


def extents_in(tree: Tree) -> set[str]:
    """Names of the sizes in a tree."""
    if isinstance(tree, str):
        return {tree}
    return set().union(*map(extents_in, tree[1:])) if isinstance(tree, list | tuple) else set()


TENSOR, SIZE = "tensor", "size"
"""Keys of arguments that are no plain values: {"tensor": name}, {"size": tree}."""


class Weight(NamedTuple):
    """A parameter of the module: where it is, and whether it is trained."""

    path: str
    shape: tuple[int, ...]
    trained: bool


class Placeholder(NamedTuple):
    """A buffer of the module, or an input; its sizes may depend on the batch."""

    path: str
    shape: tuple[Tree, ...]
    dtype: str


class StepOutput(NamedTuple):
    """A tensor that a step makes."""

    name: str
    shape: tuple[Tree, ...]
    dtype: str


class Step(NamedTuple):
    """One operator as it was called, every argument by the name that its schema gives it.

    op: its name without namespace and overload. path: the module that called it. name: what its layer is called there.
    changes: the tensor that it changes in place. grad: whether gradients were recorded.
    """

    op: str
    path: tuple[str, ...]
    name: str
    args: dict[str, Any]
    makes: tuple[StepOutput, ...]
    changes: str | None = None
    grad: bool = True


class CapturedProgram(NamedTuple):
    """A forward pass. Tensors go by name, those of weights, buffers and inputs too; outputs are those of `outputs`.

    lists: paths of modules that hold others and are never called, such as a ModuleList.
    """

    weights: dict[str, Weight]
    buffers: dict[str, Placeholder]
    inputs: dict[str, Placeholder]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    lists: frozenset[tuple[str, ...]] = frozenset()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, which `program_of` reads."""
        steps = [{**step._asdict(), "makes": [output._asdict() for output in step.makes]} for step in self.steps]
        named = {part: {name: item._asdict() for name, item in getattr(self, part).items()} for part in _NAMED}
        lists = [list(path) for path in sorted(self.lists)]
        return {**named, "steps": steps, "outputs": list(self.outputs), "lists": lists}


_NAMED: dict[str, type[Weight] | type[Placeholder]] = {"weights": Weight, "buffers": Placeholder, "inputs": Placeholder}


def program_of(data: Any) -> CapturedProgram:
    """The program that plain data describes. Raises ValueError, whose text says what is not understood."""
    if isinstance(data, CapturedProgram):
        return data
    try:
        named = {part: {name: _read(kind, item) for name, item in data[part].items()} for part, kind in _NAMED.items()}
        steps = [
            _read(Step, {**step, "makes": tuple(_read(StepOutput, output) for output in step["makes"])})
            for step in data["steps"]
        ]
        lists = frozenset(map(tuple, data.get("lists", ())))
        for item in (*(item for items in named.values() for item in items.values()), *_made(steps)):
            _check_shape(item.shape)
        return CapturedProgram(**named, steps=tuple(steps), outputs=tuple(data["outputs"]), lists=lists)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is no program as from_torch makes them: {error}") from None


def _made(steps: list[Any]) -> Iterator[StepOutput]:
    return (output for step in steps for output in step.makes)


def _check_shape(shape: Any) -> None:
    """Raise TypeError unless a shape is a list of sizes, each a whole number or a tree of them."""
    if not isinstance(shape, tuple) or not all(map(is_size, shape)):
        raise TypeError(f"shape {shown(shape)} is not a list of sizes")


def _read(kind: Any, data: Mapping[str, Any]) -> Any:
    return kind(
        **{name: tuple(v) if name in ("shape", "path") and isinstance(v, list) else v for name, v in data.items()}
    )


def tensors_in(value: Any) -> list[str]:
    """Names of the tensors in an argument, in order."""
    if isinstance(value, dict):
        return [value[TENSOR]] if TENSOR in value else []
    if isinstance(value, list | tuple):
        return [name for item in value for name in tensors_in(item)]
    return []
