"""What may differ from block to block, and which blocks differ."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from typing import Any, NamedTuple

from costmodel.errors import SpecError, shown


class Variant(NamedTuple):
    """What may differ from block to block: a window, positions that turn it, a choice of experts, a norm first.

    And what there is of sublayers: attention, what else mixes tokens, an MLP, of which a gate may be sparse. hidden:
    features of the MLP's hidden layer where each block has its own, else 0. lends: its keys and values are those of
    blocks after it, which borrow them.
    """

    windowed: bool = True
    rotated: bool = True
    routed: bool = False
    attends: bool = True
    mixes: bool = False
    feeds: bool = True
    sparse: bool = False
    hidden: int = 0
    normed: bool = True
    lends: bool = False
    borrows: bool = False

    @property
    def keys(self) -> tuple[bool, bool]:
        """The kind of its keys and values: another block's can be in their place only if they are of the same kind."""
        return self.windowed, self.rotated

    @property
    def plain(self) -> Variant:
        """The same without what is of sublayers that it does not have."""
        seen = self if self.attends else self._replace(windowed=True, rotated=True)
        return seen if self.feeds else seen._replace(routed=False, sparse=False, hidden=0)


MOST_VARIED = 10_000
"""More blocks than these are not looked at one by one."""


def variants(patterns: Sequence[Sequence[Any]], layers: int, dense: int) -> list[Variant]:
    """The variants of the first blocks, by the pattern of each field, which those after them repeat.

    Of all `layers` blocks, where the first `dense` ones have no experts. Raises SpecError for too many.
    """
    length = lcm(*map(len, patterns))
    if length > 1 or dense:  # only then does it matter how many blocks there are
        check_varied(layers)
        length = int(layers) if dense else min(length, int(layers))
    turns = min(lcm(*map(len, patterns)), length)
    rounds = [Variant(*(pattern[n % len(pattern)] for pattern in patterns)) for n in range(turns)]
    routed = [variant.plain for variant in rounds]
    unrouted = [variant._replace(routed=False).plain for variant in rounds] if dense else routed
    every = range(length)
    return [unrouted[n % turns] for n in every[:dense]] + [routed[n % turns] for n in every[dense:]]


def check_varied(layers: int) -> None:
    """Raise SpecError for too many blocks to look at one by one."""
    if int(layers) > MOST_VARIED:
        raise SpecError(f"layers {shown(int(layers))}: blocks of several kinds are at most {MOST_VARIED:,}")


def lending(every: Sequence[Variant], shared: int) -> list[Variant]:
    """All blocks, of which the last `shared` borrow keys and values of the last of their kind before them."""
    own = len(every) - shared
    lenders = {variant.keys: number for number, variant in enumerate(every[:own])}
    borrowed = {variant.keys for variant in every[own:]}
    lends = {number for keys, number in lenders.items() if keys in borrowed}
    return [variant._replace(lends=number in lends, borrows=number >= own) for number, variant in enumerate(every)]
