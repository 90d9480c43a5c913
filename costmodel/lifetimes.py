"""When each stretch of memory in a training step is taken and given back: what the walks over a graph write down."""

from __future__ import annotations

from typing import Literal, NamedTuple

Phase = Literal["forward", "loss", "backward", "optimizer"]

GRADIENTS, ACTIVATIONS, TEMPORARIES = range(3)
"""The lines on which memory comes and goes during a step; on all others it is there throughout."""

Level = tuple[int, int, int]
"""Bytes on each of these lines."""


class Stretch:
    """Bytes that are alive from one moment to another, both included; `died` moves on with every use."""

    __slots__ = ("born", "died", "line", "size")

    def __init__(self, size: int, line: int, born: int) -> None:
        self.size = size
        self.line = line
        self.born = self.died = born


class Moment(NamedTuple):
    """What runs, and in which rounds of the blocks around it."""

    phase: Phase
    layer: str
    rounds: str


class Fold(NamedTuple):
    """The moments from `start` up to `end` happen `more` times beside the one written down."""

    start: int
    end: int
    more: int


class Lifetimes:
    """The moments of one step, and what is alive at each."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self.stretches: list[Stretch] = []
        self.folds: list[Fold] = []

    def moment(self, phase: Phase, layer: str, rounds: str) -> int:
        """Time moves on."""
        self.moments.append(Moment(phase, layer, rounds))
        return len(self.moments) - 1

    def take(self, size: int, now: int, line: int = TEMPORARIES) -> Stretch:
        """So many bytes, for this moment until `died` says otherwise."""
        stretch = Stretch(size, line, now)
        self.stretches.append(stretch)
        return stretch

    def levels(self) -> list[Level]:
        """Bytes alive at each moment.

        Rounds that are alike add the same to what stays alive, so over all of them each moment is at its highest in the
        first or in the last: the one that is higher stands here for all.
        """
        changes = self._changes()
        before: dict[int, Level] = {fold.start: (0, 0, 0) for fold in self.folds}
        closing: dict[int, list[Fold]] = {}
        for fold in self.folds:
            closing.setdefault(fold.end - 1, []).append(fold)
        result: list[Level] = []
        level: Level = (0, 0, 0)
        for now, (taken, freed) in enumerate(changes):
            if now in before:
                before[now] = level
            level = _plus(level, taken)
            result.append(level)
            level = _minus(level, freed)
            for fold in closing.get(now, ()):
                grown = _times(fold.more, _minus(level, before[fold.start]))
                if sum(grown) > 0:
                    result[fold.start : fold.end] = [_plus(inside, grown) for inside in result[fold.start : fold.end]]
                level = _plus(level, grown)
        return result

    def _changes(self) -> list[tuple[list[int], list[int]]]:
        """Bytes taken before and given back after each moment, by line."""
        changes = [([0, 0, 0], [0, 0, 0]) for _ in self.moments]
        for stretch in self.stretches:
            changes[stretch.born][0][stretch.line] += stretch.size
            changes[stretch.died][1][stretch.line] += stretch.size
        return changes


def _plus(a: Level, b: Level | list[int]) -> Level:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def _minus(a: Level, b: Level | list[int]) -> Level:
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


def _times(more: int, a: Level) -> Level:
    return more * a[0], more * a[1], more * a[2]
