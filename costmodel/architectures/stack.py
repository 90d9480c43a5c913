"""A stack of blocks that need not be alike: each stretch of equal ones is traced once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from math import lcm
from typing import NamedTuple

from costmodel.graph.run import Run
from costmodel.graph.tensor import Tensor
from costmodel.symbolic.sizes import exact_div


class Variant(NamedTuple):
    """What may differ from block to block: a window on its attention, positions that turn it, a choice of experts."""

    windowed: bool = True
    rotated: bool = True
    routed: bool = False


WORDS = {"windowed": ("global", "local"), "rotated": ("unrotated", "rotated"), "routed": ("dense", "routed")}
"""What a block is called, by the value of the field in which blocks differ."""


def variants(patterns: Sequence[Sequence[bool]], layers: int, dense: int) -> list[Variant]:
    """The variants of the first blocks, by the pattern of each field, which those after them repeat.

    Of all `layers` blocks, where the first `dense` ones have no experts.
    """
    length = lcm(*map(len, patterns))
    if length > 1 or dense:  # only then does it matter how many blocks there are
        length = int(layers) if dense else min(length, int(layers))
    made = [Variant(*(pattern[n % len(pattern)] for pattern in patterns)) for n in range(length)]
    return [variant._replace(routed=False) for variant in made[:dense]] + made[dense:]


Group = tuple[Variant, ...]
Body = Callable[[Variant, Tensor], Tensor]


class Stack:
    """`layers` blocks whose variants follow a pattern that starts anew at its end."""

    def __init__(self, pattern: Sequence[Variant], layers: int, body: Body) -> None:
        self.pattern = tuple(pattern)
        self.layers = layers
        self.body = body

    def __call__(self, run: Run, x: Tensor) -> Tensor:
        """Apply all blocks to `x`; what is recomputed in groups of blocks is so whatever their variants."""
        if len(set(self.pattern)) == 1:
            return run.repeat(self.layers, lambda x: self.body(self.pattern[0], x), x, "block")
        plan = run.recomputation
        size = plan.group(self.layers) if plan.every is not None and not plan.open else 1
        variants = [self.pattern[n % len(self.pattern)] for n in range(int(self.layers))]
        groups = [tuple(variants[start : start + size]) for start in range(0, len(variants), size)]
        period = next(n for n in range(1, len(groups) + 1) if all(g == groups[i % n] for i, g in enumerate(groups)))
        times, rest = divmod(len(groups), period)
        if times > 1:
            even = not rest and size * len(groups) == self.layers
            rounds = exact_div(self.layers, period * size) if even else times
            x = run.repeat(rounds, lambda x: self._groups(run, groups[:period], x), x, "block", grouped=False)
            groups = groups[times * period :]
        with run.scope("block"):
            return self._groups(run, groups, x)

    def _groups(self, run: Run, groups: Sequence[Group], x: Tensor) -> Tensor:
        for group, alike in groupby(groups):
            name = self._name(group[0]) if len(set(group)) == 1 else "group"
            x = _applied(run, lambda x, group=group: self._group(run, group, x), x, len(list(alike)), name)
        return x

    def _group(self, run: Run, group: Group, x: Tensor) -> Tensor:
        if run.recomputation.every is None:
            return self._blocks(run, group, x)
        return run.again(lambda x: self._blocks(run, group, x), x)

    def _blocks(self, run: Run, group: Group, x: Tensor) -> Tensor:
        if len(group) == 1:
            return self.body(group[0], x)
        for variant, alike in groupby(group):
            x = _applied(run, partial(self.body, variant), x, len(list(alike)), self._name(variant))
        return x

    def _name(self, variant: Variant) -> str:
        """The fields in which blocks differ, as one word."""
        differing = [field for field in Variant._fields if len({getattr(v, field) for v in self.pattern}) > 1]
        return "_".join(WORDS[field][getattr(variant, field)] for field in differing)


def _applied(run: Run, body: Callable[[Tensor], Tensor], x: Tensor, times: int, name: str) -> Tensor:
    if times > 1:
        return run.repeat(times, body, x, name, grouped=False)
    with run.scope(name):
        return body(x)
