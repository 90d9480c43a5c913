"""Programs: NumPy calls in order, one description that is run, walked and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from costmodel.roofline.arena import aligned, bounds, fill
from costmodel.roofline.memory import Memory
from costmodel.roofline.operation import Op, Thunk
from costmodel.roofline.placement import Layout, Span, distinct_bytes, lay_out
from costmodel.roofline.reference import ITEM_BYTES, Buffer, Ref

if TYPE_CHECKING:
    import numpy


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

    @cached_property
    def layout(self) -> Layout:
        """Where each buffer is, when all of it shares one arena; laid out once."""
        return lay_out(self.standing, self.made, self.frees)

    @cached_property
    def touched(self) -> tuple[tuple[Span, ...], ...]:
        """For each call what it touches of the arena: each array that it reads, then the one that it writes."""
        return tuple(tuple(self._span(ref, op) for ref in op.accesses) for op in self.ops)

    @property
    def touched_bytes(self) -> int:
        """What one run touches; of a table only what is looked up."""
        return distinct_bytes(span for spans in self.touched for span in spans)

    def _span(self, ref: Ref, op: Op) -> Span:
        item = ITEM_BYTES[ref.dtype]
        start = self.layout.starts[ref.buffer] + ref.offset * item
        extent = item * (1 + sum((n - 1) * abs(step) for n, step in zip(ref.shape, ref.steps, strict=True)))
        touched = ref.bytes
        if op.name == "take" and ref is op.inputs[0]:
            touched = op.output.bytes
        elif op.name.endswith(".at") and ref is op.output:
            touched = item * op.terms
        return Span(start, start + extent, min(touched, extent))

    def bind(self, arena: numpy.ndarray | None = None) -> list[Thunk]:
        """The real calls, on arrays in `arena` or one of their own; what the program reads is filled in.

        Each is run as ``function(*arguments, **options)``.
        """
        arena = aligned(self.layout.arena_bytes) if arena is None else arena
        places = iter(self.layout.starts.items())

        def allocate(elements: int, dtype: str) -> Any:
            buffer, start = next(places)
            return arena[start : start + buffer.bytes].view(dtype)

        memory = Memory(allocate)
        below = bounds(self)
        for buffer in self.standing:
            memory.make(buffer)
            if buffer.value is None:
                fill(memory.arrays[buffer], below.get(buffer, 2), 0.0 if buffer.role == "weight" else 0.5)
        thunks = []
        for op, made, dropped in zip(self.ops, self.made, self.frees, strict=True):
            if made is not None:
                memory.make(made)
            thunks.append(op.bind(memory))
            memory.free(dropped)
        return thunks


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
