"""Programs: NumPy calls in order, one description that is run, laid out in memory and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import gcd
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from costmodel.roofline.memory import ITEM_BYTES, LINE, STAGGER, ArrayMemory, Buffer, Ref, Shape, aligned, fill, padded

if TYPE_CHECKING:
    import numpy


PassName = Literal["forward", "backward", "optimizer"]

ARITHMETIC = frozenset(
    {"add", "subtract", "multiply", "divide", "negative", "reciprocal", "square", "absolute", "copysign", "sign"}
    | {"maximum", "minimum", "greater", "greater_equal", "less", "less_equal", "equal", "not_equal"}
    | {"exp", "log", "tanh", "sqrt"}
)
"""Elementwise functions, of which each element counts as one operation."""

FREE = frozenset(["logical_and", "logical_or", "logical_not", "copyto", "take", "random", "searchsorted"])
"""Functions that count as no arithmetic: data movement, random numbers, logic, searches."""

DENSE = 22
"""FLOPs for each element that a product reads or writes, from which on it is dense arithmetic. On an Intel Xeon those
of 12 rows and of 40 rows and columns (23 and 27) slow what comes after them, of 8 and of 32 (16 and 21) they do not."""

Thunk = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, eq=False)
class NumpyCall:
    """One call: `name` of the NumPy function, its `inputs` (arrays and numbers), and the array that it writes.

    Its output is in place if it shares an input's memory. Names are NumPy's own, ``add.reduce`` and ``add.at`` for the
    methods; "random" is ``Generator.random``; "searchsorted" writes where each number belongs among sorted ones, by
    ``np.searchsorted``, which returns what is copied. layer and phase: whose work it is in a program of many layers.
    """

    name: str
    inputs: tuple[Ref | float, ...]
    output: Ref
    params: dict[str, Any] = field(default_factory=dict)
    layer: str = ""
    phase: PassName = "forward"

    @property
    def operands(self) -> list[Ref]:
        """The arrays that it reads, without duplicates."""
        distinct: list[Ref] = []
        for x in self.inputs:
            if isinstance(x, Ref) and not any(_same(x, y) for y in distinct):
                distinct.append(x)
        return distinct

    @property
    def accesses(self) -> list[Ref]:
        """Each array that it reads, as often as it is named, then the one that it writes."""
        return [*(x for x in self.inputs if isinstance(x, Ref)), self.output]

    @property
    def reduced_axes(self) -> tuple[int, ...]:
        """The axes that a reduction sums over."""
        rank, axis = len(self.operands[0].shape), self.params.get("axis")
        axes = range(rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        return tuple(sorted({a % rank for a in axes}))

    @property
    def loop(self) -> tuple[Shape, list[Shape]]:
        """Of an elementwise call or a reduction: the axes it loops over, and the strides of each of `accesses`."""
        if not self.name.endswith(".reduce"):
            return self.output.shape, [x.steps_over(self.output.shape) for x in self.accesses]
        x, gone, out = self.operands[0], self.reduced_axes, list(self.output.steps)
        if self.params.get("keepdims"):
            written = tuple(0 if axis in gone else step for axis, step in enumerate(out))
        else:
            written = tuple(0 if axis in gone else out.pop(0) for axis in range(len(x.shape)))
        return x.shape, [x.steps_over(x.shape), written]

    @property
    def reads_bytes(self) -> int:
        """What is read, each operand once [bytes]; of a table only the rows that are looked up or added to."""
        if self.name == "take":
            return self.operands[1].bytes + self.output.bytes
        again = self.writes_bytes if self.name.endswith(".at") else 0
        return sum(x.bytes for x in self.operands) + again

    @property
    def writes_bytes(self) -> int:
        """What is written [bytes]."""
        return self.terms * ITEM_BYTES[self.output.dtype] if self.name.endswith(".at") else self.output.bytes

    @property
    def traffic_bytes(self) -> int:
        """What is read and written [bytes]."""
        return self.reads_bytes + self.writes_bytes

    @property
    def returned_bytes(self) -> int:
        """The array that a search returns, which is copied to the output and freed [bytes]."""
        return ITEM_BYTES["int64"] * self.output.size if self.name == "searchsorted" else 0

    @property
    def terms(self) -> int:
        """Elements that ``.at`` adds up: of the values, or of the index if the value is one number."""
        return max(x.size for x in self.operands)

    @property
    def contractions(self) -> int:
        """FLOPs of products summed over an axis, a multiply-add being two."""
        return 2 * self.output.size * self.operands[0].shape[-1] if self.name == "matmul" else 0

    @property
    def dense(self) -> bool:
        """Whether it is arithmetic so dense that it slows the core's clock, see `costmodel.roofline.clock`."""
        return self.contractions >= DENSE * sum(x.size for x in (*self.operands, self.output)) > 0

    @property
    def pointwise(self) -> int:
        """All other floating-point operations, by the conventions of ``costmodel.layers.base``.

        Raises KeyError for a function without a rule.
        """
        function, _, method = self.name.partition(".")
        if method == "reduce":
            return self.operands[0].size - (0 if "initial" in self.params else self.output.size)
        if method == "at":
            return self.terms
        if function in ARITHMETIC:
            return 0 if self.output.dtype == "int64" else self.output.size
        if function == "copyto" and len(self.inputs) == 2:
            return self.output.size
        if function in FREE or function == "matmul":
            return 0
        raise KeyError(f"no rule for counting {self.name}")

    def bind(self, memory: ArrayMemory) -> Thunk:
        """(function, arguments, options) of the real call, on the arrays of `memory`.

        What is read and written in the same place is one object, as in ``np.exp(x, out=x)``: of two views of the same
        memory NumPy works out how they overlap, which takes an iterator.
        """
        out = memory.array(self.output)
        if self.name == "random":
            return memory.random.random, (), {"out": out, "dtype": self.output.dtype}
        refs = ((x, isinstance(x, Ref) and _same(x, self.output)) for x in self.inputs)
        arrays = tuple(out if same else memory.array(x) if isinstance(x, Ref) else x for x, same in refs)
        if self.name == "searchsorted":
            return _search, (out, *arrays), {}
        if self.name == "copyto":
            return _function("copyto"), (out, arrays[0]), {"where": arrays[1]} if len(arrays) > 1 else {}
        if self.name.endswith(".at"):
            index, values = arrays
            return _function(self.name), (out, (..., index) if self.params.get("axis") == -1 else index, values), {}
        return _function(self.name), arrays, {**self.params, "out": out}

    def run(self, memory: ArrayMemory) -> None:
        """Make the real call."""
        function, arguments, options = self.bind(memory)
        function(*arguments, **options)

    def __repr__(self) -> str:
        inputs = ", ".join(map(repr, self.inputs))
        return f"{self.output!r} = {self.name}({inputs})"


def _same(a: Ref, b: Ref) -> bool:
    return a.buffer is b.buffer and (a.shape, a.steps, a.offset) == (b.shape, b.steps, b.offset)


def _search(out: Any, ends: Any, values: Any) -> None:
    """Write how many of the sorted `ends` are less than each value."""
    out[...] = _function("searchsorted")(ends, values)


@cache
def _function(name: str) -> Callable[..., Any]:
    import numpy

    return attrgetter(name)(numpy)


class Span(NamedTuple):
    """A range of an arena from `start` to `end` [bytes], of which `bytes` are touched."""

    start: int
    end: int
    bytes: int


class ArenaLayout(NamedTuple):
    """Where each buffer begins in an arena, in the order in which memory is taken, and how large the arena is."""

    starts: dict[Buffer, int]
    arena_bytes: int


def lay_out(
    persistent: Iterable[Buffer], allocations: Iterable[Buffer | None], frees: Iterable[Iterable[Buffer]]
) -> ArenaLayout:
    """First fit: buffers allocated before the program, then each call's, in the most recently freed hole that fits.

    allocations, frees: the buffer that each call allocates, and those freed after it. A hole may be up to twice as
    large.
    """
    starts: dict[Buffer, int] = {}
    holes: list[tuple[int, int]] = []
    end = 0

    def put(buffer: Buffer) -> None:
        nonlocal end
        need = padded(buffer.bytes)
        for hole in reversed(holes):
            if need <= hole[1] <= 2 * need:
                holes.remove(hole)
                starts[buffer] = hole[0]
                return
        starts[buffer] = end
        end += need + STAGGER

    for buffer in persistent:
        put(buffer)
    for buffer, dropped in zip(allocations, frees, strict=True):
        if buffer is not None:
            put(buffer)
        holes.extend((starts[freed], padded(freed.bytes)) for freed in dropped)
    return ArenaLayout(starts, padded(end))


def distinct_bytes(spans: Iterable[Span]) -> int:
    """Bytes that spans touch, equal spans counted once."""
    return sum({(span.start, span.end): span.bytes for span in spans}.values())


@dataclass(frozen=True, eq=False)
class Program:
    """Calls in order. A temporary is allocated by the call that first writes it and freed after its last use.

    inputs, weights: allocated before. outputs, saved: never freed, the latter being read by a backward pass.
    """

    ops: tuple[NumpyCall, ...]
    inputs: tuple[Ref, ...] = ()
    weights: tuple[Ref, ...] = ()
    outputs: tuple[Ref, ...] = ()
    saved: tuple[Ref, ...] = ()
    name: str = ""

    def __iter__(self) -> Iterator[NumpyCall]:
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
    def persistent(self) -> tuple[Buffer, ...]:
        """Buffers allocated before it runs: inputs, weights, constants, and what an earlier program left."""
        temporaries = {*self.allocations}
        refs = (*self.inputs, *self.weights, *(x for op in self.ops for x in (*op.operands, op.output)))
        return tuple(dict.fromkeys(ref.buffer for ref in refs if ref.buffer not in temporaries))

    @cached_property
    def allocations(self) -> tuple[Buffer | None, ...]:
        """The temporary that each call allocates; None where it writes to existing memory."""
        known = {ref.buffer for ref in (*self.inputs, *self.weights)}
        allocations: list[Buffer | None] = []
        for op in self.ops:
            known.update(ref.buffer for ref in op.operands)
            new = op.output.buffer.role == "temporary" and op.output.buffer not in known
            known.add(op.output.buffer)
            allocations.append(op.output.buffer if new else None)
        return tuple(allocations)

    @cached_property
    def frees(self) -> tuple[tuple[Buffer, ...], ...]:
        """The temporaries whose last use each call is."""
        stays = {ref.buffer for ref in (*self.outputs, *self.saved)} | set(self.persistent)
        last: dict[Buffer, int] = {}
        for number, op in enumerate(self.ops):
            for ref in (*op.operands, op.output):
                if ref.buffer not in stays:
                    last[ref.buffer] = number
        dropped: list[list[Buffer]] = [[] for _ in self.ops]
        for buffer, number in last.items():
            dropped[number].append(buffer)
        return tuple(map(tuple, dropped))

    def run(self, memory: ArrayMemory, after: Callable[[int], None] | None = None) -> None:
        """Run every call; `memory` holds inputs and weights. `after` is told the number of each call that is done."""
        for buffer in self.persistent:
            memory.make(buffer)
        for number, (op, new, dropped) in enumerate(zip(self.ops, self.allocations, self.frees, strict=True)):
            if new is not None:
                memory.make(new)
            op.run(memory)
            memory.free(dropped)
            if after is not None:
                after(number)

    @cached_property
    def layout(self) -> ArenaLayout:
        """Where each buffer is, when all of it shares one arena; laid out once."""
        return lay_out(self.persistent, self.allocations, self.frees)

    @cached_property
    def touched(self) -> tuple[tuple[Span, ...], ...]:
        """For each call what it touches of the arena: each array that it reads, then the one that it writes."""
        return tuple(tuple(self._span(ref, op) for ref in op.accesses) for op in self.ops)

    @property
    def touched_bytes(self) -> int:
        """Footprint of one run [bytes]; of a table only the rows that are looked up."""
        return distinct_bytes(span for spans in self.touched for span in spans)

    def _span(self, ref: Ref, op: NumpyCall) -> Span:
        item = ITEM_BYTES[ref.dtype]
        start = self.layout.starts[ref.buffer] + ref.offset * item
        extent = item * (1 + sum((n - 1) * abs(step) for n, step in zip(ref.shape, ref.steps, strict=True)))
        touched = ref.bytes * lines_of(ref)
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

        memory = ArrayMemory(allocate)
        below = bounds(self)
        for buffer in self.persistent:
            memory.make(buffer)
            if buffer.value is None:
                fill(memory.arrays[buffer], below.get(buffer, 2), 0.0 if buffer.role == "weight" else 0.5)
        thunks = []
        for op, new, dropped in zip(self.ops, self.allocations, self.frees, strict=True):
            if new is not None:
                memory.make(new)
            thunks.append(op.bind(memory))
            memory.free(dropped)
        return thunks


def lines_of(ref: Ref) -> int:
    """How many times its own bytes the cache lines have that an array touches, of which a stride leaves parts out."""
    steps = [abs(step) for n, step in zip(ref.shape, ref.steps, strict=True) if n > 1 and step]
    return min(max(min(steps, default=1), 1), LINE // ITEM_BYTES[ref.dtype])


def begun_lines_of(ref: Ref) -> float:
    """How many times as many lines the rows of an array touch as if each began with one: most begin within a line."""
    extent, pitch = 1, 0
    for step, n in sorted((abs(step), n) for n, step in zip(ref.shape, ref.steps, strict=True) if n > 1 and step):
        if step > max(extent, LINE // ITEM_BYTES[ref.dtype]):  # what is nearer is on the same lines, or the next
            pitch = step
            break
        extent += (n - 1) * step
    item = ITEM_BYTES[ref.dtype]
    begins = gcd(item * pitch, LINE)  # rows begin at all multiples of it
    touched = -(-item * extent // begins) * begins - begins + LINE
    return max((min(touched, item * pitch) if pitch else touched) / (item * extent), 1.0)


def program_of(
    ops: Sequence[NumpyCall],
    outputs: Iterable[Ref],
    saved: Iterable[Ref] = (),
    name: str = "",
    inputs: Iterable[Ref] = (),
) -> Program:
    """A program of `ops`; what it reads before it writes it is an input, or a weight by its role."""
    operands = list(inputs)
    known = {ref.buffer for ref in operands}
    for op in ops:
        for ref in op.operands if op.output.buffer.role == "temporary" else (*op.operands, op.output):
            if ref.buffer not in known:
                known.add(ref.buffer)
                operands.append(ref)
        known.add(op.output.buffer)
    weights = tuple(ref for ref in operands if ref.buffer.role in ("weight", "state"))
    others = tuple(ref for ref in operands if ref.buffer.role not in ("weight", "state", "constant"))
    return Program(tuple(ops), others, weights, tuple(outputs), tuple(saved), name)


def bounds(ops: Iterable[NumpyCall]) -> dict[Buffer, int]:
    """By buffer of indices: how many rows the smallest table has that it indexes."""
    rows_of: dict[Buffer, int] = {}
    for op in ops:
        refs = op.accesses[:-1]
        for ref in refs:
            if ref.dtype == "int64":
                table = refs[0] if op.name == "take" else op.output
                rows = table.shape[op.params.get("axis", 0)] if table.dtype != "int64" else 2
                rows_of[ref.buffer] = min(rows_of.get(ref.buffer, rows), rows)
    return rows_of
