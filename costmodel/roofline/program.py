"""Programs: NumPy calls in order, one description that is run, walked and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from costmodel.roofline.memory import Memory
from costmodel.roofline.operation import Op, Thunk
from costmodel.roofline.reference import Buffer, Ref


@dataclass(frozen=True, eq=False)
class Program:
    """Calls in order. Temporaries come into being with the call that first writes them, and go after their last use.

    inputs, weights: what is there before. outputs, kept: what stays, the latter for a backward pass.
    """

    ops: tuple[Op, ...]
    inputs: tuple[Ref, ...] = ()
    weights: tuple[Ref, ...] = ()
    outputs: tuple[Ref, ...] = ()
    kept: tuple[Ref, ...] = ()
    name: str = ""

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)

    def __len__(self) -> int:
        return len(self.ops)

    @property
    def contractions(self) -> int:
        """FLOPs of contractions."""
        return sum(op.contractions for op in self.ops)

    @property
    def pointwise(self) -> int:
        """All other floating-point operations."""
        return sum(op.pointwise for op in self.ops)

    @property
    def traffic_bytes(self) -> int:
        """NumPy's own passes over memory: what every call reads and writes [bytes]."""
        return sum(op.traffic_bytes for op in self.ops)

    @cached_property
    def standing(self) -> tuple[Buffer, ...]:
        """Memory that must be there before it runs: inputs, weights, constants, and what an earlier part left."""
        made = {op.output.buffer for op, new in zip(self.ops, self.made, strict=True) if new}
        refs = (*self.inputs, *self.weights, *(x for op in self.ops for x in (*op.operands, op.output)))
        return tuple(dict.fromkeys(ref.buffer for ref in refs if ref.buffer not in made))

    @cached_property
    def made(self) -> tuple[Buffer | None, ...]:
        """The temporary that each call makes, if its output is new memory."""
        known = {ref.buffer for ref in (*self.inputs, *self.weights)}
        found: list[Buffer | None] = []
        for op in self.ops:
            known.update(ref.buffer for ref in op.operands)
            new = op.output.buffer.role == "temporary" and op.output.buffer not in known
            known.add(op.output.buffer)
            found.append(op.output.buffer if new else None)
        return tuple(found)

    @cached_property
    def frees(self) -> tuple[tuple[Buffer, ...], ...]:
        """The temporaries that are dropped after each call."""
        stays = {ref.buffer for ref in (*self.outputs, *self.kept)} | set(self.standing)
        last: dict[Buffer, int] = {}
        for number, op in enumerate(self.ops):
            for ref in (*op.operands, op.output):
                if ref.buffer not in stays:
                    last[ref.buffer] = number
        dropped: list[list[Buffer]] = [[] for _ in self.ops]
        for buffer, number in last.items():
            dropped[number].append(buffer)
        return tuple(map(tuple, dropped))

    def stand(self, memory: Memory) -> None:
        """Allocate what must be there before it runs and is not, such as constants."""
        for buffer in self.standing:
            memory.make(buffer)

    def run(self, memory: Memory, after: Callable[[int], None] | None = None) -> None:
        """Run every call; `memory` holds inputs and weights. `after` is told the number of each call that is done."""
        self.stand(memory)
        for number, (op, made, dropped) in enumerate(zip(self.ops, self.made, self.frees, strict=True)):
            if made is not None:
                memory.make(made)
            op.run(memory)
            memory.free(dropped)
            if after is not None:
                after(number)

    def bind(self, memory: Memory) -> list[Thunk]:
        """Allocate everything at once and return the real calls, to be repeated as ``f(*args, **options)``."""
        for op in self.ops:
            for ref in (*op.operands, op.output):
                memory.make(ref.buffer)
        return [op.bind(memory) for op in self.ops]


def program_of(
    ops: Sequence[Op], outputs: Iterable[Ref], kept: Iterable[Ref] = (), name: str = "", inputs: Iterable[Ref] = ()
) -> Program:
    """A program of `ops`; what it reads before it writes it is an input, or a weight by its role."""
    given = list(inputs)
    known = {ref.buffer for ref in given}
    for op in ops:
        for ref in op.operands if op.output.buffer.role == "temporary" else (*op.operands, op.output):
            if ref.buffer not in known:
                known.add(ref.buffer)
                given.append(ref)
        known.add(op.output.buffer)
    weights = tuple(ref for ref in given if ref.buffer.role in ("weight", "state"))
    others = tuple(ref for ref in given if ref.buffer.role not in ("weight", "state", "constant"))
    return Program(tuple(ops), others, weights, tuple(outputs), tuple(kept), name)
