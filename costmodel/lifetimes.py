"""When each stretch of memory in a training step is taken and given back: what the walks over a graph write down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from costmodel.tensor import Role

Phase = Literal["forward", "loss", "backward", "optimizer"]
Line = Literal["gradients", "activations", "temporaries"]
LINES: tuple[Line, ...] = ("gradients", "activations", "temporaries")
"""What comes and goes during a step; all else is there throughout."""

Level = tuple[int, int, int]
"""Bytes on each of `LINES`."""


class Stretch:
    """Bytes that are alive from one moment to another, both included; `died` moves on with every use."""

    __slots__ = ("born", "died", "line", "size")

    def __init__(self, size: int, line: Line, born: int) -> None:
        self.size = size
        self.line: Line = line
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

    def __init__(self, bytes_of: Callable[[Role], int]) -> None:
        self.bytes_of = bytes_of
        self.moments: list[Moment] = []
        self.stretches: list[Stretch] = []
        self.folds: list[Fold] = []

    def moment(self, phase: Phase, layer: str, rounds: str) -> int:
        """Time moves on."""
        self.moments.append(Moment(phase, layer, rounds))
        return len(self.moments) - 1

    def take(self, elements: int, role: Role, line: Line, now: int) -> Stretch:
        """Memory for so many elements, for this moment until its `died` says otherwise."""
        stretch = Stretch(elements * self.bytes_of(role), line, now)
        self.stretches.append(stretch)
        return stretch

    def levels(self) -> list[Level]:
        """Bytes alive at each moment.

        Rounds that are alike add the same to what stays alive, so over all of them each moment is at its highest in the
        first or in the last: the one that is higher stands here for all.
        """
        taken, freed = ([[0, 0, 0] for _ in self.moments] for _ in range(2))
        for stretch in self.stretches:
            line = LINES.index(stretch.line)
            taken[stretch.born][line] += stretch.size
            freed[stretch.died][line] += stretch.size
        result: list[Level] = []
        gradients = activations = temporaries = 0
        before: dict[int, Level] = {fold.start: (0, 0, 0) for fold in self.folds}
        closing: dict[int, list[Fold]] = {}
        for fold in self.folds:
            closing.setdefault(fold.end - 1, []).append(fold)
        for now, (more, less) in enumerate(zip(taken, freed, strict=True)):
            if now in before:
                before[now] = (gradients, activations, temporaries)
            gradients, activations, temporaries = gradients + more[0], activations + more[1], temporaries + more[2]
            result.append((gradients, activations, temporaries))
            gradients, activations, temporaries = gradients - less[0], activations - less[1], temporaries - less[2]
            for fold in closing.get(now, ()):
                a, b, c = before[fold.start]
                grown = (fold.more * (gradients - a), fold.more * (activations - b), fold.more * (temporaries - c))
                if sum(grown) > 0:
                    for inside in range(fold.start, fold.end):
                        a, b, c = result[inside]
                        result[inside] = (a + grown[0], b + grown[1], c + grown[2])
                gradients, activations, temporaries = (
                    gradients + grown[0],
                    activations + grown[1],
                    temporaries + grown[2],
                )
        return result
