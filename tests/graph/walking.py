"""What holds of every tape: whoever replays it meets each tensor before a layer reads it."""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.graph.call import Block, Call
from costmodel.graph.replay import replay
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Storage, Tensor
from costmodel.layers.arithmetic import Cast


class Reader:
    """An interpreter to which tensors are known once an entry has made them."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.known: set[Tensor] = set()
        self.views = 0

    def call(self, call: Call) -> None:
        """All that it reads is known."""
        for x in (*call.raw_inputs, *call.operands(), *call.stored.values(), *call.buffers.values()):
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
        assert bool(block.recomputed) == (block.entry is None)
        yield from range(min(int(block.count), 2))

    def knows(self, x: Tensor) -> bool:
        """Whether a tensor was met, or is there from the start: an input, a buffer, a cache, or a weight."""
        tape, storage = self.tape, x.storage
        there = any(held.get(storage) is x for held in (tape.inputs, tape.buffers, tape.caches))
        weight = x.maker is None and x.strides is None and tape.weights.get(storage) == x.shape
        return x in self.known or there or weight


class Copying:
    """An interpreter that records a tape again, every round by itself, on a tape of its own."""

    def __init__(self, tape: Tape) -> None:
        self.tape = Tape(training=tape.training, device=tape.device, precision=tape.precision, cast=Cast)
        self.copies: dict[Tensor, Tensor] = {}
        self.there: dict[tuple[Storage, tuple[int, ...]], Tensor] = {}
        self.numbers: dict[Block, int] = {}
        self.read = {x for call in tape.root.calls() for x in call.raw_inputs}

    def call(self, call: Call) -> None:
        """The same layer on copies of what it reads; casts that nothing asked for come by themselves."""
        if call.layer.converts and call.y not in self.read:
            return
        inputs = tuple(self.copy(x) for x in call.raw_inputs)
        stored = {name: self.copy(weight) for name, weight in call.stored.items()}
        self.tape.phase = call.phase
        self.copies[call.y] = self.tape.record(call.layer, inputs, call.name, stored)

    def bind(self, target: Tensor, source: Tensor) -> None:
        """A view of the copy, or the copy itself as a round hands it on."""
        x = self.copy(source)
        self.copies[target] = x.view(target.shape, target.strides) if target.storage is source.storage else x

    def rounds(self, block: Block) -> Iterator[int]:
        """Every round."""
        for number in range(int(block.count)):
            self.numbers[block] = number
            yield number
        del self.numbers[block]

    def copy(self, x: Tensor) -> Tensor:
        """The copy of a tensor; what is there from the start has one for each round of its block."""
        if x in self.copies:
            return self.copies[x]
        around, block = [], x.storage.block
        while block.parent is not None:
            around.append(self.numbers[block])
            block = block.parent
        key = (x.storage, tuple(around))
        if key not in self.there:
            self.there[key] = self.made(x, "".join(f"[{number}]" for number in reversed(around)))
        return self.there[key]

    def made(self, x: Tensor, rounds: str) -> Tensor:
        """An input, a weight, a buffer or a cache like another."""
        storage, name = x.storage, f"{x.storage.name}{rounds}"
        if storage.origin == "weight":
            return self.tape.weight(x.shape, name, storage.dtype, frozen=not x.requires_grad)
        if storage.origin == "cache":
            return self.tape.cache(x.shape, storage.dtype, name, storage.scales)
        make = self.tape.input if storage.origin == "input" else self.tape.buffer
        return make(x.shape, storage.role, name, storage.dtype)


def check_tape(tape: Tape) -> Reader:
    """Every operand is an output of an entry before, or a tensor of the tape itself; and so is every result."""
    reader = Reader(tape)
    replay(tape.root, reader)
    assert all(reader.knows(x) for x in tape.outputs)
    return reader
