"""Made-up hosts: caches, bandwidths, latencies and rates that are known, and a clock that goes by them alone.

Where a call finds its operands follows from the addresses of all that was touched since, by a least-recently-used stack
of pages that knows nothing of the predictor's reuse distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import log
from typing import Any

import numpy as np

from costmodel.roofline.host import Host
from costmodel.roofline.memory import ITEM_BYTES, LINE, Ref
from costmodel.roofline.program import NumpyCall, Program, Thunk
from costmodel.roofline.signature import GatherSignature, ProductSignature, signature_of
from tests.roofline.synthetic import Clockwork

PAGE = 1024
PARALLEL, PARALLEL_VECTOR = 1e6, 9216
"""Multiply-adds up to which one thread computes a product, and one with a vector (OpenBLAS, interface/gemv.c)."""
SECOND = 1e9
LASTING = 4e6
"""How long the core's clock stays slower after dense arithmetic [ns]."""
ROUNDS = 4
"""How often what is left alone for long is timed anew, since it is left alone for longer then."""
EDGE = 1.15
"""Of what is touched again after as much as a cache holds half is still there, after so many times as much nothing."""


@dataclass(frozen=True)
class Level:
    """Memory that holds what was touched last, at most so many bytes of it; bandwidths [GB/s]; latency [ns]."""

    name: str
    capacity: float
    read: float
    written: float
    latency: float


@dataclass(frozen=True)
class MadeUp:
    """A host. levels: beyond the caches of its core, the last of them memory; private: what those hold [bytes].

    gflops: of products in cache. hidden: the share of a product's way to memory that its arithmetic hides. overlap: how
    computing and loading overlap in loops, from 1, not at all, on. call: overhead [ns]; row: of starting an inner loop
    [ns]; hiding: whether that hides loading altogether. brought: by others into what they share [GB/s]; later: the same
    at another moment; lost: the share that is evicted of what came from memory when it was last used, where as much
    came since as the shared cache holds, and less where less did.
    threads: that BLAS may use; by two of them all but small products compute `faster` and load
    `wider`, so many times. stated: the caches that the system names, from the first on [KiB]. clocks: by how much
    longer than at its fastest all takes, one after the other, each for a second. dense: by how much longer all computes
    that is or follows dense arithmetic.
    """

    name: str
    private: float
    levels: tuple[Level, ...]
    gflops: float = 100.0
    hidden: float = 0.4
    overlap: float = 6.0
    call: float = 500.0
    row: float = 12.0
    hiding: bool = False
    brought: float = 0.0
    later: float | None = None
    lost: float = 0.0
    elements: dict[str, float] = field(default_factory=dict)
    threads: int = 1
    faster: float = 1.9
    wider: float = 1.4
    stated: tuple[int, ...] = ()
    clocks: tuple[float, ...] = (1.0,)
    dense: float = 1.0

    @property
    def host(self) -> Host:
        caches = tuple((f"L{number}", 1024 * size) for number, size in enumerate(self.stated, 1))
        return Host(self.name, 2, caches, "2.0", "openblas", "0.3", self.name, self.threads)

    def cost(self, distance: float, kind: str) -> float:
        """Of a byte that was last touched so many bytes ago [ns]."""
        total, left, capacity = 0.0, 1.0, self.private
        for level in self.levels:
            beyond = _share(distance, capacity)
            within = 1 - _share(distance, level.capacity)
            total += min(left, beyond) * within / getattr(level, kind)
            left, capacity = min(left, beyond) * (1 - within), level.capacity
        return total

    def code(self, distance: float) -> float:
        """Of code that was last run so many bytes ago [ns]."""
        return 8 * self.begun(distance)

    def begun(self, distance: float) -> float:
        """Of the first byte of a row that was last touched so many bytes ago [ns]."""
        nearer = (self.private, *(level.capacity for level in self.levels))
        reached = [level for level, capacity in zip(self.levels, nearer, strict=False) if distance > capacity]
        return reached[-1].latency if reached else 0.0


def _counted(kinds: Any) -> tuple[Any, Any]:
    """The distinct columns, and how often each is there."""
    columns, counts = np.unique(kinds, axis=1, return_counts=True)
    return columns.T, counts


def _share(distance: float, capacity: float) -> float:
    """How much of what was last touched so many bytes ago is no longer there."""
    if capacity == float("inf"):
        return 0.0
    if distance == float("inf"):
        return 1.0
    return min(max(0.5 + log(distance / capacity) / log(EDGE) / 2, 0.0), 1.0)


ELEMENT = {"exp": 0.45, "tanh": 0.9, "log": 0.6, "divide": 0.12, "sqrt": 0.2, "reciprocal": 0.12, "random": 2.0}
ELEMENT |= {"add.reduce": 0.07, "maximum.reduce": 0.06, "searchsorted": 10.0, "multiply": 0.07, "copyto": 0.05}
"""Nanoseconds an element, and 0.08 of others."""
CAST = 0.4
"""Nanoseconds a bool that is cast."""


class MadeUpClock(Clockwork):
    """The clock of a made-up host."""

    def __init__(self, made_up: MadeUp) -> None:
        super().__init__(host=made_up.host)
        self.made_up = made_up
        self.slow_until = 0.0

    def take(self, nanoseconds: float) -> None:
        clocks = self.made_up.clocks
        self.slower = clocks[int(self.passed / SECOND) % len(clocks)]
        super().take(nanoseconds)

    def sentinel(self) -> None:
        self.call(12_000, 12_000 * self.made_up.dense, False)

    def call(self, light: float, slowed: float, dense: bool) -> None:
        """Work that takes so long, or so long while the clock is slow [ns], and whether it is dense arithmetic."""
        share = 1.0 if dense else min(max(self.slow_until - self.passed, 0.0) / slowed, 1.0)
        self.take(share * slowed + (1 - share) * light)
        if dense:
            self.slow_until = self.passed + LASTING

    def bind(self, program: Program, copies: int = 1) -> list[Thunk]:
        both = (self.nanoseconds(program, copies, slower) for slower in (1.0, self.made_up.dense))
        calls = zip(*both, (op.dense for op in [*program] * copies), strict=True)
        return [(self.call, each, {}) for each in calls]

    def bind_each(self, calls: Sequence[NumpyCall], rows: int) -> list[Thunk]:
        slower = self.made_up.dense
        return [(self.call, (self._alone(op, 1.0), self._alone(op, slower), op.dense), {}) for op in calls]

    def _alone(self, op: NumpyCall, slower: float) -> float:
        """Of one call that is made over and over."""
        refs = {(id(ref.buffer), ref.offset, ref.shape, ref.steps): ref for ref in op.accesses}
        footprint = sum(_touched(op, ref) for ref in refs.values())
        distance, took = footprint, 0.0
        for _ in range(ROUNDS):
            took = self._nanoseconds(op, [[(distance, 1.0)] for _ in op.accesses], 0.0, slower)
            if footprint > self.made_up.private:
                distance = footprint + self.made_up.brought * took
        return took

    def nanoseconds(self, program: Program, copies: int = 1, slower: float = 1.0) -> list[float]:
        """What each call takes when the program is run over and over, and computes so many times as slowly."""
        runs = self._runs(program, copies, slower)
        times = runs([0.0] * len(program))
        for _ in range(ROUNDS if self.made_up.brought else 0):
            times = runs(times)
        return times

    def _runs(self, program: Program, copies: int, slower: float) -> Any:
        size = program.layout.arena_bytes // PAGE + 2
        spans = [
            [self._pages(program, ref, op, copy * size) for ref in op.accesses]
            for copy in range(copies)
            for op in program
        ]
        own = [{(first, end): touched for first, end, touched in each} for each in spans]
        names = [op.name for op in program] * copies

        def run(passing: list[float]) -> list[float]:
            starts = np.concatenate([[0.0], np.cumsum(passing * copies * 2)]) * self.made_up.brought
            middles = (starts[:-1] + starts[1:]) / 2
            last = np.full(size * copies, -1, np.int64)
            bytes_of, once = np.zeros(size * copies), np.zeros(size * copies, bool)
            since = np.zeros(2 * len(spans) + 1)  # bytes that were last touched by each call
            ran: dict[str, int] = {}
            times: list[float] = []

            @cache
            def streamed(call: int, stamp: int, now: int) -> float:
                """What a call touches of what nothing did after `stamp`."""
                old = (touched * (last[a:b] <= stamp).mean() for (a, b), touched in own[call].items())
                return sum(old)

            for number in range(2 * len(spans)):
                at = number % len(spans)
                places = []
                for first, end, touched in spans[at]:
                    found = []
                    kinds = np.stack([last[first:end], once[first:end]])
                    for (stamp, new), count in zip(*_counted(kinds), strict=True):
                        if stamp < 0:
                            found.append((float("inf"), count / (end - first)))
                            once[first:end][kinds[0] < 0] = True
                            continue
                        between = since[stamp + 1 : number].sum()
                        halves = (streamed(at, stamp, number) + streamed(stamp % len(spans), stamp, number)) / 2
                        distance = max(between + halves, touched)
                        if distance > self.made_up.private:
                            distance += middles[number] - middles[stamp]
                        lost = self.made_up.lost * self._on_the_way(distance) if new else 0.0
                        share = count / (end - first)
                        found += [(distance, (1 - lost) * share), (float("inf"), lost * share)]
                        once[first:end][(kinds == [[stamp], [new]]).all(0)] = distance > self.made_up.levels[0].capacity
                    places.append(found)
                code = since[ran.get(names[at], -1) + 1 : number].sum() if names[at] in ran else float("inf")
                ran[names[at]] = number
                for first, end, touched in spans[at]:
                    seen = last[first:end] >= 0
                    np.subtract.at(since, last[first:end][seen], bytes_of[first:end][seen])
                    last[first:end], bytes_of[first:end] = number, touched / (end - first)
                    since[number] += touched
                if number >= len(spans):
                    times.append(self._nanoseconds(program.ops[at % len(program)], places, code, slower))
            return times

        return run

    def _on_the_way(self, distance: float) -> float:
        """From a core's own caches to what fills the shared one, as ratios go."""
        private = self.made_up.private
        return min(max(log(distance / private) / log(self.made_up.levels[0].capacity / private), 0.0), 1.0)

    def _pages(self, program: Program, ref: Ref, op: NumpyCall, base: int) -> tuple[int, int, float]:
        """The pages of an array, from the first to the last, and the bytes that are touched in them."""
        item = ITEM_BYTES[ref.dtype]
        start = program.layout.starts[ref.buffer] + ref.offset * item
        reach = item * (1 + sum((n - 1) * abs(step) for n, step in zip(ref.shape, ref.steps, strict=True)))
        touched = min(_lines(ref), reach)
        if op.name == "take" and ref is op.inputs[0]:
            touched = min(touched, op.output.bytes)
        return base + start // PAGE, base + (start + reach - 1) // PAGE + 1, touched

    def _nanoseconds(self, op: NumpyCall, places: list[list[tuple[float, float]]], code: float, slower: float) -> float:
        """Of a call that finds shares of each array at distances, and computes so many times as slowly."""
        host, signature = self.made_up, signature_of(op)
        overhead = slower * host.call + host.code(code)
        moved = self._moved(op, places)
        if isinstance(signature, ProductSignature):
            m, n, k = signature.m, signature.n, signature.k
            twice = 2 if signature.dtype == "float64" else 1
            one = 2 * m * n * k / host.gflops + 0.02 * (m * k + k * n) + 0.05 * m * n + 100
            if min(m, n) == 1:
                one = 2.2 * m * n * k / host.gflops + 50
            exposed = 1.0 if min(m, n) < 16 else 1 - host.hidden
            if host.threads > 1 and m * n * k > (PARALLEL if min(m, n) > 1 else PARALLEL_VECTOR):
                one, moved = one / host.faster, moved / host.wider
            return overhead + slower * twice * signature.batch * one + exposed * moved
        if isinstance(signature, GatherSignature):
            rate = ELEMENT.get(signature.name, 0.3)
            begun = (
                sum(share * host.begun(distance) for distance, share in places[0]) if signature.name == "take" else 0.0
            )
            return overhead + signature.rows * (slower * (5.0 + rate * signature.width) + begun) + moved
        rate = host.elements.get(signature.name, ELEMENT.get(signature.name, 0.08))
        rate *= 2 if signature.dtype == "float64" else 1
        ragged = not all(strand.flat and strand.step == 1 for strand in signature.strands)
        rows = signature.rows if ragged or signature.reduced else 0
        compute, starting = slower * signature.elements * rate, slower * rows * host.row
        if not host.hiding:
            compute, starting = compute + starting, 0.0
        if signature.reduced == "outer":  # zeros to which rows are added, there and back
            compute += slower * signature.inner * ELEMENT["copyto"]
            moved += rows * op.output.bytes * host.cost(2 * op.output.bytes, "written")
        if op.name != "copyto" and op.output.dtype != "bool" and any(ref.dtype == "bool" for ref in op.accesses):
            overhead += slower * signature.elements * CAST  # piece by piece, before the rest
        both = (compute**host.overlap + moved**host.overlap) ** (1 / host.overlap)
        return overhead + max(both, compute + starting)

    def _moved(self, op: NumpyCall, places: list[list[tuple[float, float]]]) -> float:
        """Loading each array once from where it is, and storing what is written [ns]."""
        seen: dict[Any, float] = {}
        for ref, found in zip(op.accesses, places, strict=True):
            written = ref is op.output or ref.buffer is op.output.buffer
            size = _touched(op, ref)
            kind = "written" if written else "read"
            seen[ref.buffer, ref.offset, ref.shape] = sum(
                size * share * self.made_up.cost(d, kind) for d, share in found
            )
        return sum(seen.values())


def _touched(op: NumpyCall, ref: Ref) -> float:
    """Bytes that a call touches of an array."""
    size = min(_lines(ref), ref.buffer.bytes)
    return min(size, op.output.bytes) if op.name == "take" and ref is op.inputs[0] else size


def _lines(ref: Ref) -> float:
    """Bytes of the cache lines that an array touches."""
    steps = [abs(step) for n, step in zip(ref.shape, ref.steps, strict=True) if n > 1 and step]
    return ref.bytes * min(max(min(steps, default=1), 1), LINE // ITEM_BYTES[ref.dtype])


MIB = 1 << 20
ENDLESS = float("inf")
_MIDDLING = MadeUp(
    "middling",
    private=700 * 1024,
    levels=(Level("L3", 30 * MIB, 40, 25, 40), Level("memory", ENDLESS, 14, 9, 110)),
    stated=(32, 1024, 32 * 1024),
)
HOSTS = (
    _MIDDLING,
    replace(_MIDDLING, name="two threads", threads=2),
    MadeUp(
        "much cache",
        private=2 * MIB,
        levels=(Level("L3", 180 * MIB, 30, 18, 70), Level("memory", ENDLESS, 10, 6, 150)),
        gflops=130,
        hidden=0.0,
        brought=3.0,
        dense=1.3,
        stated=(48, 2048, 260 * 1024),
    ),
    MadeUp(
        "more cache",
        private=1200 * 1024,
        levels=(Level("L3", 400 * MIB, 50, 30, 50), Level("memory", ENDLESS, 15, 11, 120)),
        gflops=60,
        overlap=12.0,
        clocks=(1.08, 1.0, 1.15, 1.04, 1.11),
        stated=(32, 1024, 512 * 1024),
    ),
    MadeUp(
        "slow memory",
        private=800 * 1024,
        levels=(Level("L3", 20 * MIB, 45, 30, 40), Level("memory", ENDLESS, 3.5, 2.5, 200)),
        gflops=80,
        hidden=0.2,
        brought=1.0,
        later=5.0,
        stated=(32, 1024, 24 * 1024),
    ),
    MadeUp(
        "no last cache",
        private=1000 * 1024,
        levels=(Level("memory", ENDLESS, 12, 8, 100),),
        gflops=40,
        call=900.0,
        row=25.0,
        hiding=True,
        stated=(64, 1024),
    ),
)
