"""What binds a layer, by resource: matmul (the multiply-add units), a function, a cache, DRAM, or overhead.

Predicted, measured, and by the textbook (compute or memory). Measured by ablation, never by comparing the model with
itself: one thing about the calls is changed to see what their time depends on.

- On smallest shapes a call has only its overhead left: if that is more than half of the time, overhead binds.
- A tile is a part of a call's arrays, in the same layout, that the caches of one core hold: if tiles, scaled up to the
  whole, are more than a third faster, memory beyond them binds, at the level from which the call, cut to what the level
  holds and run over and over, takes most nearly as long.
- Otherwise what most of the time on tiles is spent on: matrix products, or functions. If the operands of a function's
  tile, copied instead of computed, are more than a third faster, the function binds; else the cache that serves it.

The prediction applies the same thresholds to the model's own terms. Near a threshold it is too close to call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import log, prod
from typing import Literal

from costmodel.roofline.calibration import Calibration
from costmodel.roofline.clock import Sentinel
from costmodel.roofline.curves import lowest
from costmodel.roofline.gemm import regime_of
from costmodel.roofline.host import Host
from costmodel.roofline.hosttime import HostTime
from costmodel.roofline.memory import ITEM_BYTES, Buffer, Ref, Shape
from costmodel.roofline.program import NumpyCall, Program, program_of
from costmodel.roofline.rates import Rates
from costmodel.roofline.signature import ProductSignature, Signature, signature_of
from costmodel.roofline.timing import Protocol, measure

TILE_BYTES = 200 * 1024
"""What a tile may take up, all its arrays together [bytes]."""

Cut = Callable[[Ref], Shape]


def smallest(op: NumpyCall) -> NumpyCall:
    """The same call on arrays of the same layout, two elements along every axis that has more."""
    return _reshaped(op, lambda ref: tuple(min(n, 2) for n in ref.shape), compact=True)


def tile(op: NumpyCall, most: int = TILE_BYTES) -> tuple[NumpyCall, float]:
    """A part of a call that takes up at most so many bytes, where it can be cut, and how many such parts it has."""
    part = {"matmul": _product_tile, "take": _gather_tile}.get(op.name, _loop_tile)(op, most)
    return part, _work(op) / _work(part)


def alone(op: NumpyCall) -> Program:
    """A call as a program of its own."""
    return program_of([op], outputs=[op.output], name=op.name)


def _loop_tile(op: NumpyCall, most: int) -> NumpyCall:
    if op.name.endswith(".at") or op.name == "searchsorted" or not op.operands:
        return op
    whole = op.operands[0] if op.name.endswith(".reduce") else op.output
    lengths = list(whole.shape)
    for axis in range(len(lengths)):
        size = sum(_extent(ref, tuple(lengths)) for ref in (*op.operands, op.output))
        if size <= most:
            break
        lengths[axis] = max(int(lengths[axis] * most / size), 1)
    if not op.name.endswith(".reduce"):
        return _reshaped(op, lambda ref: _aligned(ref.shape, tuple(lengths)))
    axes, keepdims = op.reduced_axes, op.params.get("keepdims")
    left = tuple(1 if a in axes else n for a, n in enumerate(lengths) if keepdims or a not in axes)
    return _reshaped(op, lambda ref: tuple(lengths) if ref is whole else left)


def _aligned(shape: Shape, lengths: Shape) -> Shape:
    """Lengths of the last axes, as far as they are not broadcast."""
    return tuple(min(n, most) for n, most in zip(shape, lengths[len(lengths) - len(shape) :], strict=True))


def _extent(ref: Ref, lengths: Shape) -> int:
    shape = _aligned(ref.shape, lengths) if len(ref.shape) <= len(lengths) else ref.shape
    distinct = prod(n for n, step in zip(shape, ref.steps, strict=True) if step)
    return distinct * ITEM_BYTES[ref.dtype]


def _product_tile(op: NumpyCall, most: int) -> NumpyCall:
    """A larger one, where a smaller one would take another code path: BLAS does not pack what is small."""
    a, b = op.operands if len(op.operands) == 2 else op.operands * 2
    whole, item = signature_of(op), ITEM_BYTES[op.output.dtype]
    assert isinstance(whole, ProductSignature)
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    while item * (m * k + k * n + m * n) > most and max(m, k, n) > 1:
        less = m, k, n
        if m == max(less):
            less = -(-m // 2), k, n
        elif n >= k:
            less = m, k, -(-n // 2)
        else:
            less = m, -(-k // 2), n
        if regime_of(replace(whole, **dict(zip("mkn", less, strict=True)))) != regime_of(whole):
            break
        m, k, n = less

    def cut(ref: Ref) -> Shape:
        one = (1,) * (len(ref.shape) - 2)
        return (*one, *((m, n) if ref is op.output else (m, k) if ref is a else (k, n)))

    return _reshaped(op, cut)


def _gather_tile(op: NumpyCall, most: int) -> NumpyCall:
    table, index = op.operands
    if op.params.get("axis", 0) != 0:
        return op
    share = min(1.0, most / (2 * op.output.bytes + index.bytes))
    rows = max(int(index.shape[0] * share), 1)
    shapes = {
        id(table): (min(table.shape[0], max(rows * prod(index.shape[1:]), 1)), *table.shape[1:]),
        id(index): (rows, *index.shape[1:]),
        id(op.output): (rows, *op.output.shape[1:]),
    }
    return _reshaped(op, lambda ref: shapes[id(ref)])


def _work(op: NumpyCall) -> float:
    return float(op.contractions or op.traffic_bytes)


def _reshaped(op: NumpyCall, cut: Cut, compact: bool = False) -> NumpyCall:
    """The call on parts of its arrays, in memory just large enough, shared where it was shared."""
    buffers: dict[Buffer, Buffer] = {}
    refs = [x for x in (*op.inputs, op.output) if isinstance(x, Ref)]
    shapes = {id(ref): cut(ref) for ref in refs}
    layouts = {id(ref): _compact(ref, shapes[id(ref)]) if compact else ref.steps for ref in refs}
    for ref in refs:
        reach = 1 + sum((n - 1) * abs(s) for n, s in zip(shapes[id(ref)], layouts[id(ref)], strict=True))
        old = buffers.get(ref.buffer)
        if old is None or old.elements < reach:
            buffers[ref.buffer] = Buffer(reach, ref.dtype, "input", ref.buffer.name)

    def moved(ref: Ref) -> Ref:
        return Ref(shapes[id(ref)], buffers[ref.buffer], layouts[id(ref)])

    inputs = tuple(moved(x) if isinstance(x, Ref) else x for x in op.inputs)
    return NumpyCall(op.name, inputs, moved(op.output), op.params, op.layer, op.phase)


def _compact(ref: Ref, shape: Shape) -> Shape:
    """Strides in the order of the array's own, without gaps; a broadcast axis stays one."""
    order = sorted(range(len(shape)), key=lambda a: (ref.steps[a], -a))
    steps, so_far = [0] * len(shape), 1
    for axis in order:
        if ref.steps[axis]:
            steps[axis] = so_far
            so_far *= shape[axis]
    return tuple(steps)


Bound = Literal["matmul", "function", "cache", "DRAM", "overhead", "compute", "memory"]
BOUNDS: tuple[Bound, ...] = ("matmul", "function", "cache", "DRAM", "overhead")
"""What the model and a measurement tell apart; the textbook says "compute" or "memory"."""
COARSE: dict[Bound, Bound] = {"matmul": "compute", "function": "compute", "cache": "memory", "DRAM": "memory"}
"""The textbook's class of a resource."""
DRAM = "memory"
"""The level beyond all caches, as a host names it."""

Resource = tuple[Bound, str]
"""What binds a call, and its name: which function, or which cache."""

OVERHEAD_SHARE = 1 / 2
"""Share of the time from which a layer is overhead-bound."""
RESIDENT_SHARE = 2 / 3
"""Share of the time that remains on cache-resident tiles, below which a layer is memory-bound."""
FUNCTION_SHARE = 0.2
"""Share of a layer's time from which a function has a ceiling in its picture, whatever binds the layer."""
BAND = 0.1
"""Half width of the band around a threshold that is too close to call."""

QUICK = Protocol(rounds=12, least_rounds=2, enough=2, item_seconds=0.02, sample_seconds=5e-5)

TILES_SHARE = 0.7
"""Of the budget, what small shapes and tiles may take before levels are told apart."""
FLEETING = Protocol(rounds=6, least_rounds=2, enough=2, sample_seconds=1e-5)
"""For parts of calls, two or more of which take turns, whose runs are long."""


@dataclass(frozen=True)
class Verdict:
    """What binds a layer. level: which cache, or which function. close: whether it is too close to call."""

    bound: Bound
    level: str = ""
    close: bool = False

    @property
    def name(self) -> str:
        """The resource: the function or the cache by its own name."""
        return self.level or self.bound

    @property
    def coarse(self) -> Bound:
        """The textbook's class."""
        return COARSE.get(self.bound, self.bound)

    def __str__(self) -> str:
        return f"{self.name}{'?' * self.close}"


@dataclass(frozen=True)
class Spent:
    """Where time goes [s]: overhead of calls; `resident`, all of it with operands in the caches of a core.

    by: how much of the latter beside overhead is of each resource (bound, its name).
    """

    overhead: float
    resident: float
    by: Mapping[Resource, float]


def verdict(seconds: float, spent: Spent, level: str = "") -> Verdict:
    """By the thresholds. seconds: in all; level: of memory, if that binds."""
    overhead, resident = spent.overhead / seconds, spent.resident / seconds
    close = abs(overhead - OVERHEAD_SHARE) < BAND
    close = close or (overhead < OVERHEAD_SHARE and abs(resident - RESIDENT_SHARE) < BAND)
    if overhead > OVERHEAD_SHARE:
        return Verdict("overhead", close=close)
    if resident < RESIDENT_SHARE:
        return Verdict("DRAM", close=close) if level in ("", DRAM) else Verdict("cache", level, close)
    kinds = _summed(((bound, ""), each) for (bound, _), each in spent.by.items())
    if not kinds:
        return Verdict("overhead", close=True)
    bound, _ = max(kinds, key=lambda kind: kinds[kind])
    ordered = sorted(kinds.values(), reverse=True)
    close = close or (len(ordered) > 1 and ordered[0] - ordered[1] < 2 * BAND * sum(ordered))
    by_name = {name: each for (kind, name), each in spent.by.items() if kind == bound}
    return Verdict(bound, max(by_name, key=lambda name: by_name[name]), close)


def predicted(host: HostTime, calibration: Calibration) -> Verdict:
    """From a prediction's terms, call by call."""
    terms, machine = host.terms, calibration.host
    by = _by_resource(host, calibration)
    spent = Spent(terms.overhead, terms.seconds - terms.memory, by if host.calls else {("matmul", ""): terms.compute})
    return verdict(terms.seconds, spent, machine.level_of(terms.reach))


def functions_in(host: HostTime, calibration: Calibration) -> list[str]:
    """Functions that bind calls of which a layer spends at least `FUNCTION_SHARE` of its predicted time on."""
    by = _by_resource(host, calibration)
    return [name for (bound, name), each in by.items() if bound == "function" and each > FUNCTION_SHARE * host.seconds]


def _by_resource(host: HostTime, calibration: Calibration) -> dict[Resource, float]:
    """How much of the time on operands in the caches of a core is predicted to go to each resource [s]."""
    moving = calibration.rates.rate("copyto", "float32", False) / (2 * ITEM_BYTES["float32"])
    seconds_of = ((op, own.compute + own.rows) for op, own in host.calls)
    return _summed(
        (_resource(op, seconds, op.traffic_bytes * moving, calibration.machine), seconds) for op, seconds in seconds_of
    )


def _summed(pairs: Iterable[tuple[Resource, float]]) -> dict[Resource, float]:
    totals: dict[Resource, float] = {}
    for resource, seconds in pairs:
        totals[resource] = totals.get(resource, 0.0) + seconds
    return totals


def _resource(op: NumpyCall, computing: float, moving: float, machine: Host) -> Resource:
    """What binds a call with operands in the caches of a core, if it takes so long, and moving them so long [s]."""
    if op.name == "matmul":
        return "matmul", ""
    if op.name not in MOVES and moving < RESIDENT_SHARE * computing:
        return "function", op.name
    return "cache", machine.level_of(min(op.traffic_bytes, TILE_BYTES))


MOVES = ("copyto", "take")
"""Functions that do nothing but move."""


def textbook(flops: float, moved_bytes: float, rates: Rates) -> Verdict:
    """By the textbook: intensity (FLOPs per byte) against the ridge, the peak rate over memory's bandwidth."""
    above = flops * rates.memory_bandwidth >= moved_bytes * rates.peak("float32")
    return Verdict("compute" if above else "memory")


def distances_of(machine: Host) -> dict[str, int]:
    """Working set that stands for each level [bytes]: half of the first cache, a quarter of others, and for memory four
    times the last, of which a cache that keeps some of what comes again has a quarter at most."""
    sizes = [size for name, size in machine.caches if name != "L1"] or [2**20, 2**25]
    names = [name for name, _ in machine.caches if name != "L1"] or ["cache", "last cache"]
    shares = [size // (2 if number == 0 else 4) for number, size in enumerate(sizes)]
    return {**dict(zip(names, shares, strict=True)), "memory": 4 * sizes[-1]}


def classify(
    programs: Sequence[Program],
    seconds: Sequence[float],
    machine: Host,
    sentinel: Sentinel | None = None,
    *,
    budget: float = float("inf"),
) -> list[Verdict | None]:
    """What bounds each program, which takes so long [s], by ablation of its calls.

    None where memory binds and the budget [s] ended before its level was measured.
    """
    sentinel = sentinel or Sentinel()
    ends = sentinel.clock.now() + 1e9 * budget
    effects = _effects([op for program in programs for op in program], machine, sentinel, TILES_SHARE * budget)
    levels: dict[Signature, str] = {}
    verdicts: list[Verdict | None] = []
    for program, measured in zip(programs, seconds, strict=True):
        calls = [effects[signature_of(op)] for op in program]
        by = _summed((place, part) for call in calls for place, part in call.by.items())
        whole = Spent(sum(call.overhead for call in calls), sum(call.resident for call in calls), by)
        level = ""
        if whole.overhead <= OVERHEAD_SHARE * measured and whole.resident < RESIDENT_SHARE * measured:
            largest = max(program, key=lambda op: op.traffic_bytes)
            key = signature_of(largest)
            if key not in levels:
                if sentinel.clock.now() >= ends:
                    verdicts.append(None)
                    continue
                levels[key] = _level(largest, effects[key], measured / whole.resident, machine, sentinel)
            level = levels[key]
        verdicts.append(verdict(measured, whole, level))
    return verdicts


def _effects(ops: Sequence[NumpyCall], machine: Host, sentinel: Sentinel, budget: float) -> dict[Signature, Spent]:
    """Of each distinct call: its time on smallest shapes, on tiles, and on tiles that are copied instead."""
    distinct = {signature_of(op): op for op in ops}
    tiles = {key: tile(op) for key, op in distinct.items()}
    copies = {key: copied(part) for key, (part, _) in tiles.items() if part.name not in ("matmul", *MOVES)}
    changed = *map(smallest, distinct.values()), *(part for part, _ in tiles.values()), *copies.values()
    timings = iter(
        measure(
            [*map(alone, changed)], protocol=replace(QUICK, budget=budget, threads=machine.threads), sentinel=sentinel
        )
    )
    least, parts = list(islice(timings, len(distinct))), list(islice(timings, len(distinct)))
    effects = {}
    moved = {key: (timing.seconds, copy) for (key, copy), timing in zip(copies.items(), timings, strict=True)}
    for (key, op), small, part in zip(distinct.items(), least, parts, strict=True):
        times = tiles[key][1]
        own = max(part.seconds - small.seconds, 0.0)
        copy_seconds, copy = moved.get(key, (0.0, op))
        moving = max(copy_seconds - small.seconds, 0.0) * tiles[key][0].traffic_bytes / copy.traffic_bytes
        place = _resource(op, own, moving, machine)
        effects[key] = Spent(small.seconds, small.seconds + own * times, {place: own * times})
    return effects


def copied(op: NumpyCall) -> NumpyCall:
    """A copy of the largest operand of a call, in its layout, in place of what the call computes."""
    if not op.operands:
        return NumpyCall("copyto", (0.5,), op.output)
    x = max(op.operands, key=lambda ref: ref.bytes)
    return NumpyCall("copyto", (x,), Ref(x.shape, Buffer(prod(x.shape), x.dtype)))


def _level(op: NumpyCall, effect: Spent, slower: float, machine: Host, sentinel: Sentinel) -> str:
    """The level from which a call, cut to what the level holds and run over and over, is slower than on tiles in cache
    most nearly as much as the program is; what each part costs as a call is left out."""

    def seconds(size: int) -> float:
        part, times = tile(op, size // 2)
        fleeting = replace(FLEETING, threads=machine.threads)
        (timing,) = measure([alone(part)], reuse_bytes=size // 2, protocol=fleeting, sentinel=sentinel)
        return effect.overhead + max(timing.seconds - effect.overhead, 0.0) * times

    sizes = distances_of(machine)
    times = lowest([seconds(size) for size in sizes.values()])  # what begins anew at each of many parts is slower
    by_level = dict(zip(sizes, times, strict=True))
    return min(by_level, key=lambda level: abs(log(by_level[level] / effect.resident / slower)))
