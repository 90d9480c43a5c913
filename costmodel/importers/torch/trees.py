"""Sizes as plain data: a number, the name of a size of the batch, or an operation on such trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add, mul
from typing import Any

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
