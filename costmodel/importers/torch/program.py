"""What one forward pass of a module calls, as plain data: operators in order, with the tensors they read and make.

A size is a number, the name of a size of the batch, or an operation on such trees; a condition compares sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import add, and_, eq, le, lt, mul, ne, not_, or_, truediv
from typing import Any, NamedTuple

from costmodel.errors import shown
from costmodel.symbolic.sizes import SymInt, ceil_div, exact_div, maximum, minimum

EXTENTS = ("batch", "seq", "height", "width")
"""Sizes that a question gives: two of them are the image's."""

Tree = Any
"""An int, a name in `EXTENTS`, or [operation, tree, ...]."""


def _divided(divide: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A division whose divisor, if it has letters, is decided on: elsewhere on a grid it may be 0."""
    return lambda n, d: divide(n, d.pin() if isinstance(d, SymInt) and d.guarded else d)


_SIZES: dict[str, Callable[..., Any]] = {
    "+": lambda *terms: reduce(add, terms),
    "*": lambda *factors: reduce(mul, factors),
    "//": _divided(lambda n, d: ceil_div(n - d + 1, d)),
    "ceil": _divided(ceil_div),
    "/": _divided(exact_div),
    "%": _divided(lambda n, d: n - d * ceil_div(n - d + 1, d)),
    "min": lambda *sizes: reduce(minimum, sizes),
    "max": lambda *sizes: reduce(maximum, sizes),
    "&": and_,
    "|": or_,
}
_ROUNDED: dict[str, Callable[..., Any]] = {
    "round": round,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceiling": math.ceil,
}
_NUMBERS: dict[str, Callable[..., Any]] = {"float": float, "ratio": truediv, "power": lambda x, n: float(x) ** float(n)}
_COMPARISONS: dict[str, Callable[..., Any]] = {"==": eq, "!=": ne, "<": lt, "<=": le}
_CONNECTIVES: dict[str, Callable[..., Any]] = {
    "and": lambda *all_of: all(all_of),
    "or": lambda *any_of: any(any_of),
    "not": not_,
}
_OPERATIONS = _SIZES | _ROUNDED | _NUMBERS | _COMPARISONS | _CONNECTIVES


def evaluate(tree: Tree, sizes: Mapping[str, int]) -> Any:
    """The size that a tree stands for, or whether a condition holds; with letters for `sizes`, a letter."""
    if isinstance(tree, int | float):
        return tree
    if isinstance(tree, str):
        return sizes[tree]
    return _OPERATIONS[tree[0]](*(evaluate(branch, sizes) for branch in tree[1:]))


def kind_of(tree: Any) -> type:
    """What plain data stands for: int for a size, float for another number, bool for a condition.

    Raises TypeError if it is none of these.
    """
    if isinstance(tree, str) and tree in EXTENTS:
        return int
    if type(tree) in (int, float):
        return type(tree)
    if not isinstance(tree, list | tuple) or len(tree) < 2 or not isinstance(tree[0], str):
        raise TypeError(f"{shown(tree)} is no size")
    op, kinds = tree[0], set(map(kind_of, tree[1:]))
    if op in _CONNECTIVES and kinds == {bool}:
        return bool
    if bool in kinds or op not in _OPERATIONS or op in _CONNECTIVES:
        raise TypeError(f"{shown(tree)} is no size")
    if op in _COMPARISONS:
        return bool
    if op in _NUMBERS or (op in ("+", "*", "min", "max") and float in kinds):
        return float
    if op in _SIZES and float in kinds:
        raise TypeError(f"{shown(tree)} is no size")
    return int


def text_of(tree: Tree) -> str:
    """A tree as people write it, such as "seq % 8 == 0"."""
    if not isinstance(tree, list | tuple):
        return str(tree)
    op, *branches = tree
    apart = op not in _COMPARISONS
    texts = [
        f"({text_of(b)})" if apart and isinstance(b, list | tuple) and b[0] in _INFIX else text_of(b) for b in branches
    ]
    if op in _INFIX and len(texts) > 1:
        return f" {_INFIX[op]} ".join(texts)
    return f"{op}({', '.join(texts)})"


_INFIX = {name: name for name in ("+", "*", "//", "/", "%", "&", "|", *_COMPARISONS, "and", "or")} | {
    "ratio": "/",
    "power": "**",
}


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

    lists: paths of modules that hold others and are never called, such as a ModuleList. conditions: on sizes, beside
    limits of each, at which all of this is so.
    """

    weights: dict[str, Weight]
    buffers: dict[str, Placeholder]
    inputs: dict[str, Placeholder]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    lists: frozenset[tuple[str, ...]] = frozenset()
    conditions: tuple[Tree, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, which `program_of` reads."""
        steps = [{**step._asdict(), "makes": [output._asdict() for output in step.makes]} for step in self.steps]
        named = {part: {name: item._asdict() for name, item in getattr(self, part).items()} for part in _NAMED}
        lists = [list(path) for path in sorted(self.lists)]
        plain = {**named, "steps": steps, "outputs": list(self.outputs), "lists": lists}
        return plain | ({"conditions": list(self.conditions)} if self.conditions else {})

    def at(self, sizes: Mapping[str, int]) -> CapturedProgram:
        """The same at these sizes alone: numbers for trees, and no conditions."""

        def plain(value: Any) -> Any:
            if isinstance(value, dict):
                return evaluate(value[SIZE], sizes) if SIZE in value else value
            return [plain(item) for item in value] if isinstance(value, list | tuple) else value

        def shaped(item: Any) -> Any:
            return item._replace(shape=shape_of(item.shape, sizes))

        return self._replace(
            buffers={name: shaped(buffer) for name, buffer in self.buffers.items()},
            inputs={name: shaped(each) for name, each in self.inputs.items()},
            steps=tuple(
                step._replace(
                    args={name: plain(value) for name, value in step.args.items()},
                    makes=tuple(map(shaped, step.makes)),
                )
                for step in self.steps
            ),
            conditions=(),
        )


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
        conditions = tuple(data.get("conditions", ()))
        if any(kind_of(condition) is not bool for condition in conditions):
            raise TypeError(f"conditions {shown(conditions)} are not all comparisons of sizes")
        return CapturedProgram(
            **named, steps=tuple(steps), outputs=tuple(data["outputs"]), lists=lists, conditions=conditions
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is no program as from_torch makes them: {error}") from None


def _made(steps: list[Any]) -> Iterator[StepOutput]:
    return (output for step in steps for output in step.makes)


def _check_shape(shape: Any) -> None:
    """Raise TypeError unless a shape is a list of sizes, each a whole number or a tree of them."""
    if not isinstance(shape, tuple) or any(kind_of(size) is not int for size in shape):
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
