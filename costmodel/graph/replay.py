"""The one walk over a tape for all that interpret it, and the one back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from costmodel.graph.call import Block, Call
from costmodel.graph.tensor import Tensor


class TapeRetracer(Protocol):
    """What the calls of a tape are handed to, in order or from the last to the first."""

    def call(self, call: Call) -> object:
        """A layer is called: its operands are inputs of the model, weights, buffers, caches, or were met before."""

    def rounds(self, block: Block) -> Iterable[object]:
        """The rounds of a block, or of a stretch that is recomputed, that are walked: one for each item.

        What a generator does before an item is done as that round begins, what it does after the item as it ends.
        """
        ...


class TapeInterpreter(TapeRetracer, Protocol):
    """What all entries of a tape are handed to, in order."""

    def bind(self, target: Tensor, source: Tensor) -> object:
        """A tensor stands for another: for one that it is a view of, or one that a round of a block hands on."""


def replay(block: Block, interpreter: TapeInterpreter) -> None:
    """Walk a block: each call, each view, and the rounds of each block within that the interpreter asks for.

    The first round is handed the block's source, each later one the exit of the round before; what reads the block's
    result reads the exit of the last.
    """
    for entry in block.entries:
        if isinstance(entry, Call):
            interpreter.call(entry)
        elif isinstance(entry, Block):
            source = entry.source
            for _ in interpreter.rounds(entry):
                if source is not None and entry.entry is not None:
                    interpreter.bind(entry.entry, source)
                replay(entry, interpreter)
                source = entry.exit
            if source is not None and entry.result is not None and entry.result is not source:
                interpreter.bind(entry.result, source)
        else:
            interpreter.bind(entry.y, entry.x)


def retrace(block: Block, interpreter: TapeRetracer) -> None:
    """Walk a block from its end to its start: each call, and the rounds of each block within."""
    for entry in reversed(block.entries):
        if isinstance(entry, Call):
            interpreter.call(entry)
        elif isinstance(entry, Block):
            for _ in interpreter.rounds(entry):
                retrace(entry, interpreter)
