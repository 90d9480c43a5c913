"""Activation checkpointing: which stretches of a model are run again in backward instead of kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from costmodel.errors import SettingError, unknown
from costmodel.graph.tensor import Block, Call, Storage
from costmodel.symbolic.sizes import ceil_root, decided
from costmodel.training.settings import Settings

SELECTIVE = "core"
"""What mixers call the part that "selective" recomputes."""


@dataclass
class Recomputation:
    """What to recompute: every so many equal blocks ("sqrt": as many as there are groups), and parts by name.

    A part is named by its path (``block.mlp``) or the end of it (``mlp``), without trailing numbers. depth: the most
    equal blocks in a row that were met.
    """

    every: int | str | None = None
    names: frozenset[str] = frozenset()
    seen: set[str] = field(default_factory=set)
    depth: int = 0
    open: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """A fresh plan of what `settings` say is recomputed."""
        if not settings.training or settings.checkpoint == "none":
            return cls()
        if settings.checkpoint in ("block", "sqrt"):
            return cls(1 if settings.checkpoint == "block" else "sqrt")
        if isinstance(settings.checkpoint, int):
            return cls(settings.checkpoint)
        names = (SELECTIVE,) if settings.checkpoint == "selective" else settings.checkpoint
        return cls(names=frozenset((names,) if isinstance(names, str) else names))

    def __bool__(self) -> bool:
        return self.every is not None or bool(self.names)

    def group(self, depth: int) -> int:
        """Blocks to a group, of `depth` equal ones. Raises SettingError if there are fewer."""
        self.depth = max(self.depth, decided(depth))
        size = ceil_root(depth) if self.every == "sqrt" else int(self.every or 1)
        if size > depth:
            raise SettingError(
                f"checkpoint={size} is larger than the depth of {int(depth)} blocks: use at most {int(depth)}"
            )
        return size

    def picks(self, path: list[str]) -> bool:
        """Whether the part at this path is one that was named."""
        if not self.names:
            return False
        ends = ends_of(path)
        self.seen |= ends
        return not self.names.isdisjoint(ends)

    @contextmanager
    def stretch(self, block: Block) -> Iterator[None]:
        """What is called within, on `block`, is recomputed; a stretch within a stretch is part of it."""
        if self.open:
            yield
            return
        self.open = True
        start = len(block.entries)
        try:
            yield
        finally:
            self.open = False
        if block.entries[start:]:
            block.entries[start:] = [_recomputed(block, block.entries[start:])]

    def check(self) -> None:
        """Raise an error if what was asked for is nowhere in the model."""
        if self.every is not None and not self.depth:
            raise SettingError(
                "checkpoint by blocks needs a model of equal blocks: name the parts to recompute instead"
            )
        for name in self.names:
            if name == SELECTIVE and name not in self.seen:
                raise SettingError(
                    'checkpoint="selective" recomputes attention from its scores to mixed values, and scans, of which'
                    " this model has none: name the parts to recompute instead"
                )
            if name not in self.seen:
                raise unknown("part to checkpoint", name, self.seen)


def ends_of(path: list[str]) -> set[str]:
    """Names that a part at this path goes by: the path, and each end of it, without numbers behind names.

    The last name counts with its number too. Rounds of equal parts have that of the first and, behind a dot, of the
    round they begin with: ``hidden1.2``.
    """
    stems = [name.rstrip("0123456789.") or name for name in path]
    ends = {".".join((*stems[start:-1], name)) for start in range(len(stems)) for name in (stems[-1], *path[-1:])}
    return ends | {".".join(path)}


def _recomputed(outer: Block, entries: list[Call | Block]) -> Block:
    """A block of these entries that keeps only what they read from outside."""
    block = Block(outer.name, 1, outer)
    block.entries, block.recomputed = entries, True
    calls = list(block.calls())
    fresh = [call.y.storage for call in calls if all(x.storage is not call.y.storage for x in call.inputs)]
    made = {leaf for storage in fresh for leaf in storage.leaves()}
    made |= {entry.storage for nested in block.blocks() if (entry := nested.entry) is not None}
    read: dict[Storage, None] = {}
    for call in calls:
        for x in call.inputs:
            read.update(dict.fromkeys(leaf for leaf in (x.storage, *x.storage.leaves()) if leaf.parts is None))
    if any(call.differentiated for call in calls):
        block.saved = tuple(s for s in read if s not in made and s.origin == "computed")
    for call in calls:
        call.recomputed = True
    return block
