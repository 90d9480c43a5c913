"""What holds of every tape: whoever replays it meets each tensor before a layer reads it."""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.graph.replay import replay
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Block, Call, Tensor


class Reader:
    """An interpreter to which tensors are known once an entry has made them."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.known: set[Tensor] = set()
        self.views = 0

    def call(self, call: Call) -> None:
        """All that it reads is known."""
        for x in (*call.given, *call.operands(), *call.stored.values(), *call.buffers.values()):
            assert self.knows(x), f"{call.name} reads {x!r}, which no entry has made"
        assert call.y.maker is call
        self.known.add(call.y)

    def bind(self, target: Tensor, source: Tensor) -> None:
        """What a tensor stands for is known."""
        assert self.knows(source), f"{target!r} is {source!r}, which no entry has made"
        self.views += target.storage is source.storage
        self.known.add(target)

    def rounds(self, block: Block) -> Iterator[int]:
        """Two at most. What repeats is handed on as its source, and what a stretch keeps comes from outside of it."""
        assert block.recomputed == (block.entry is None)
        yield from range(min(int(block.count), 2))

    def knows(self, x: Tensor) -> bool:
        """Whether a tensor was met, or is there from the start: an input, a buffer, a cache, or a weight."""
        tape, storage = self.tape, x.storage
        there = any(held.get(storage) is x for held in (tape.inputs, tape.buffers, tape.caches))
        weight = x.maker is None and x.strides is None and tape.weights.get(storage) == x.shape
        return x in self.known or there or weight


def check_tape(tape: Tape) -> Reader:
    """Every operand is an output of an entry before, or a tensor of the tape itself; and so is every result."""
    reader = Reader(tape)
    replay(tape.root, reader)
    assert all(reader.knows(x) for x in tape.outputs)
    return reader
