"""How long a program of NumPy calls takes on this host, from its description and a calibration alone.

Six models, each adding to the one before: see `LEVELS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import hypot

from costmodel.documents.arguments import fits
from costmodel.errors import SettingError, shown
from costmodel.roofline.calibration import Calibration
from costmodel.roofline.clock import LASTS, LEFT
from costmodel.roofline.curves import LogTable, behind, joined
from costmodel.roofline.footprint import Code, manner_of, reuse_distances, reuses, touched_by
from costmodel.roofline.gemm import regime_of
from costmodel.roofline.memory import ITEM_BYTES, LINE
from costmodel.roofline.probes import BUFFERED, MASKED, MIXED, WIDENED
from costmodel.roofline.program import NumpyCall, Program, begun_lines_of, lines_of
from costmodel.roofline.rates import LONG, Rates
from costmodel.roofline.signature import (
    ELEMENTWISE,
    GatherSignature,
    LoopSignature,
    ProductSignature,
    Signature,
    signature_of,
)

UNROLLED = 64
"""Elements of which NumPy takes a maximum in one step, eight vectors of eight (``wstep`` in its
loops_minmax.dispatch.c.src); shorter rows take none, and wait for no memory, as seen on an AMD EPYC. Wider vectors
would make it 128."""
PRICED = 3
"""How often calls are priced by how long they take, since what they take depends on how long they leave alone."""
LEVELS = {
    1: "two ceilings, compulsory bytes",
    2: "NumPy's own passes",
    3: "bandwidth by reuse distance",
    4: "throughput of each function",
    5: "matrix products by shape",
    6: "overheads of calls and rows",
}
"""The first: the program's FLOPs at the peak rate, or its compulsory bytes at memory's bandwidth. The second: the same
of each call, with all that it reads and writes. The last: what a call costs, and what starting an inner loop costs."""

CAUSES = ("compute", "memory", "overhead", "rows")


@dataclass(frozen=True)
class TimeTerms:
    """Predicted time by cause [s]: `compute` on operands in cache, `memory` beyond that, `overhead` of calls.

    rows: starting inner loops. reach: reuse distance of what costs `memory` [bytes].
    """

    compute: float = 0.0
    memory: float = 0.0
    overhead: float = 0.0
    rows: float = 0.0
    reach: float = 0.0

    @property
    def seconds(self) -> float:
        """In all [s]."""
        return self.compute + self.memory + self.overhead + self.rows

    def __add__(self, other: TimeTerms) -> TimeTerms:
        far = max((self, other), key=lambda terms: terms.memory)
        return TimeTerms(*(getattr(self, name) + getattr(other, name) for name in CAUSES), reach=far.reach)

    def shared_by(self, number: int) -> TimeTerms:
        """Of one of so many equal runs."""
        return TimeTerms(*(getattr(self, name) / number for name in CAUSES), reach=self.reach)

    @property
    def dominant(self) -> str:
        """The largest term's name."""
        return max(CAUSES, key=lambda name: getattr(self, name))


@dataclass(frozen=True)
class HostTime:
    """A prediction [s]: in all, its terms, and each call's.

    error: relative, within which nine of ten of the calibration's own measurements are when they are left out.
    """

    terms: TimeTerms
    error: float
    level: int
    calls: tuple[tuple[NumpyCall, TimeTerms], ...] = field(repr=False, default=())

    @property
    def seconds(self) -> float:
        """In all [s]."""
        return self.terms.seconds

    @property
    def dominant(self) -> str:
        """The term that takes most."""
        return self.terms.dominant

    @property
    def interval(self) -> tuple[float, float]:
        """90 % prediction interval [s]."""
        return self.seconds / (1 + self.error), self.seconds * (1 + self.error)


def predict_seconds(
    program: Program,
    calibration: Calibration,
    *,
    level: int = 6,
    compulsory_bytes: int | None = None,
    between: int = 0,
    traffic: float | None = None,
) -> HostTime:
    """How long a program takes on the calibrated machine when it is run over and over.

    Args:
        program: what is run; a layer's, or a whole network's.
        calibration: of the machine.
        level: which model, 1 to 6; see `costmodel.roofline.hosttime`.
        compulsory_bytes: what level 1 moves; the program's inputs, weights and outputs once, unless given.
        between: bytes that other work touches between two repetitions.
        traffic: what others bring into the caches that cores share [bytes/s]; what the calibration says unless given.

    Raises:
        SettingError: there is no such level.

    """
    check_level(level)
    rates, unknown = calibration.rates, hypot(1.0, calibration.doubt)
    if level == 1:
        moved = compulsory_bytes_of(program) if compulsory_bytes is None else compulsory_bytes
        dtype = next((op.output.dtype for op in program if op.output.dtype.startswith("float")), "float32")
        flops = program.contractions + program.pointwise
        return HostTime(_roof(flops / rates.peak(dtype), moved / rates.memory_bandwidth), unknown, level)
    uses = reuses(touched_by(program), between)
    signatures, touched = [(op, signature_of(op)) for op in program], program.touched_bytes + between

    def priced(seconds: Sequence[float] = (), traffic: float = 0.0) -> tuple[tuple[NumpyCall, TimeTerms], ...]:
        sharing = rates.others.sharing(traffic) if seconds else None
        distances = reuse_distances(uses, seconds, sharing)
        ago = sharing.brought(touched, sum(seconds)) if sharing and touched > sharing.private else touched
        missed = rates.cold.missed(ago)
        slower = _slowed(program, seconds, rates.slower) if seconds else [1.0] * len(uses)
        calls = zip(signatures, distances, slower, strict=True)
        return tuple((op, _call(op, own, rates, level, far, missed, each)) for (op, own), far, each in calls)

    calls = priced()
    if level < 6:
        return HostTime(_summed(calls), unknown, level, calls)
    others = rates.others.traffic if traffic is None else traffic
    for _ in range(PRICED):  # how long each was left alone is known by now, and is longer for what it had to load again
        calls = priced([terms.seconds for _, terms in calls], others)
    terms = _summed(calls) + TimeTerms(overhead=rates.step)
    return HostTime(terms, hypot(_error(calls, rates), calibration.doubt), level, calls)


def _slowed(program: Program, seconds: Sequence[float], slower: float) -> list[float]:
    """How many times as long each call computes as by itself, over and over: as much slower as the core's clock is
    after dense arithmetic, for what of it comes while that lasts. Dense arithmetic by itself is as slow already.

    seconds: that each call takes. slower: how much slower the clock is.
    """
    lasting = (LASTS * LEFT) ** 0.5 * 1e-9
    factors, left = [1.0] * len(seconds), 0.0
    for _ in range(2):  # what a pass ends with slows the next one's beginning
        for number, (op, spent) in enumerate(zip(program, seconds, strict=True)):
            factors[number] = 1.0 if op.dense else 1 + (slower - 1) * min(left / max(spent, 1e-12), 1.0)
            left = lasting if op.dense else max(left - spent, 0.0)
    return factors


def check_level(level: object) -> None:
    """Raise SettingError unless it is one of `LEVELS`."""
    if not fits(level, int, min(LEVELS), max(LEVELS)):
        raise SettingError(f"level {shown(level)} is none of {', '.join(map(str, LEVELS))}")


def part_of(host: HostTime, calls: Sequence[int], calibration: Calibration, repeat: int = 1) -> HostTime:
    """One of `repeat` equal runs of some calls of a program, where they are in it."""
    chosen = tuple(host.calls[number] for number in calls)
    error = hypot(_error(chosen, calibration.rates), calibration.doubt) if host.level == 6 else 1.0
    return HostTime(_summed(chosen).shared_by(repeat), error, host.level, chosen)


def _summed(calls: Sequence[tuple[NumpyCall, TimeTerms]]) -> TimeTerms:
    return sum((terms for _, terms in calls), TimeTerms())


def _error(calls: tuple[tuple[NumpyCall, TimeTerms], ...], rates: Rates) -> float:
    """Relative error of the sum: those of products add up, those of the rest too, the two independently."""
    products = rest = 0.0
    for op, terms in calls:
        signature = signature_of(op) if op.name == "matmul" else None
        if isinstance(signature, ProductSignature):
            products += terms.seconds * rates.products.fit(regime_of(signature), signature.dtype).of(signature).doubt
        else:
            rest += terms.seconds * rates.doubt
    whole = sum(terms.seconds for _, terms in calls)
    return (products**2 + rest**2) ** 0.5 / whole if whole else 0.0


def compulsory_bytes_of(program: Program) -> int:
    """Compulsory traffic [bytes]: inputs, weights and outputs once; of a table only the rows that are looked up."""
    ends = {ref.buffer: ref.bytes for ref in (*program.inputs, *program.weights, *program.outputs)}
    for op in program:
        if op.name == "take" and op.operands[0].buffer in ends:
            ends[op.operands[0].buffer] = min(ends[op.operands[0].buffer], op.output.bytes)
    return sum(ends.values())


def _roof(compute: float, memory: float) -> TimeTerms:
    return TimeTerms(compute, max(memory - compute, 0.0), reach=float("inf"))


def _call(
    op: NumpyCall,
    signature: Signature,
    rates: Rates,
    level: int,
    distances: Sequence[float],
    missed: float,
    slower: float,
) -> TimeTerms:
    """Of one call; distances: of its operands, then of the code that it runs; missed: how far what is used once in a
    pass comes from memory, see `ColdCalls`. slower: see `_slowed`."""
    operands, code = distances[:-3], Code(*distances[-3:])
    if level < 4 or (level == 4 and isinstance(signature, ProductSignature)):
        moved = op.traffic_bytes / rates.memory_bandwidth
        if level > 2:
            moved = sum(ref.bytes / rates.bandwidth(far) for ref, far in zip(op.accesses, operands, strict=True))
        return _roof((op.contractions + op.pointwise) / rates.peak(signature.dtype), moved)
    terms = _terms(signature, op, rates, operands, slower)
    if level == 6:
        return replace(terms, overhead=terms.overhead + rates.cold.longer(manner_of(op), code, missed))
    return TimeTerms(terms.compute, terms.memory, reach=terms.reach)


def _terms(signature: Signature, op: NumpyCall, rates: Rates, operands: Sequence[float], slower: float) -> TimeTerms:
    if isinstance(signature, GatherSignature):
        return _gather(signature, rates, operands, slower)
    if isinstance(signature, ProductSignature):
        seconds, memory = rates.products.time(signature, operands, [ref.bytes for ref in op.accesses])
        batch, call = signature.batch, slower * rates.call("matmul", signature.dtype)
        return TimeTerms(slower * (seconds - memory) * batch, memory * batch, call, reach=max(operands))
    reach, axes = _reach(op, rates, operands), max(len(ref.shape) for ref in op.accesses)
    compute, rows, overhead = (slower * each for each in _loop(signature, rates, reach, axes))
    if signature.name != "copyto" and any(each.step * each.itemsize >= LINE for each in signature.strands):
        compute += slower * signature.elements * rates.lines(reach)
    moved, apart = _far(op, signature, rates, operands, slower)
    beside = compute
    if _is_mixed(signature):  # bools are cast first, piece by piece, before the function loads the rest
        beside = min(beside, slower * signature.elements * rates.rate(signature.name, signature.dtype, False))
    memory = behind(beside, rows, moved, _power(signature, rates, reach)) - beside - rows
    memory += apart + _waits(signature, rates, operands[0] if signature.reduced else reach)
    return TimeTerms(compute, memory, overhead, rows, reach=reach)


def _reach(op: NumpyCall, rates: Rates, operands: Sequence[float]) -> float:
    """Reuse distance of the operand that takes longest to load [bytes]; a mask for many heads is small, however far."""
    loaded = ((ref.bytes * rates.far(far, "in place"), far) for ref, far in zip(op.accesses, operands, strict=True))
    return max(loaded, default=(0.0, 0.0))[1]


def _power(loop: LoopSignature, rates: Rates, reach: float) -> float:
    """How far a loop computes while it loads from so far, by the array that is not walked through in one step."""
    ragged = [strand.step for strand in loop.strands if not strand.flat or strand.step != 1]
    if _is_masked(loop):
        return rates.power_of("copy masked")(reach)
    if loop.reduced and not loop.streams:
        return rates.power_of(f"reduced {loop.reduced}")(reach)
    if loop.reduced or not ragged or (loop.inner > BUFFERED and loop.name != "copyto" and max(ragged) < 2):
        return rates.power(reach)  # each of the longest rows is a stream of its own
    if loop.name == "copyto":
        return rates.power_of("copy second" if any(step not in (0, 1) for step in ragged) else "copy part")(reach)
    return rates.power_of("column" if 0 in ragged else "row")(reach)


def _waits(loop: LoopSignature, rates: Rates, reach: float) -> float:
    """How long rows wait for memory beyond that [s]."""
    if _is_masked(loop):
        side = max(loop.inner**0.5, 1.0)
        growing = LogTable([*MASKED.values()], [0.0, rates.waits("copy masked long")(reach)], mixing=True)
        return loop.elements / side * growing(side)
    waiting = loop.reduced == "inner" and loop.name != "add.reduce" and not loop.streams and loop.inner >= UNROLLED
    return loop.rows * rates.waits("maximum inner")(reach) if waiting else 0.0


def _far(
    op: NumpyCall, loop: LoopSignature, rates: Rates, operands: Sequence[float], slower: float
) -> tuple[float, float]:
    """Time to load each cache line once: what overlaps with computing, and of what is read in rows apart [s].

    A stride of two touches as many lines as one of one; what repeats is read again, from where the loop left it. A
    core's own caches are as much slower as its clock is.
    """
    accesses = list(zip(op.accesses, loop.strands, operands, strict=True))
    distinct = {ref: (ref, strand, far) for ref, strand, far in (accesses[:-1] if loop.in_place else accesses)}
    access = "two" if len(distinct) > 2 and not loop.in_place else "one" if op.operands else "fill"
    plain = (
        loop.name == "copyto" and len(op.operands) == 1 and all(each.flat and each.step == 1 for each in loop.strands)
    )
    total = apart = 0.0
    for ref, strand, far in distinct.values():
        lines = ref.bytes * lines_of(ref)
        written = ref.buffer is op.output.buffer
        if 1 < strand.step < LINE // strand.itemsize and lines > ref.bytes:
            manner = "second in place" if loop.in_place else "second"
            apart += lines * begun_lines_of(ref) * rates.windowed(far, manner, loop.inner)
        elif loop.name == "copyto" and strand.step == 1 and not (strand.flat or written or _is_masked(loop)):
            apart += lines * begun_lines_of(ref) * rates.windowed(far, "part", loop.inner)
        else:
            each = rates.far(far, "in place" if loop.in_place and written else access, written=written)
            each *= rates.copied(op.traffic_bytes, far) if plain else 1.0
            total += lines * each * (slower if far <= rates.private else 1.0)
        total += sum(again * rates.far(between, access) for again, between in strand.again if not loop.reduced)
    if loop.reduced == "outer":  # to what it begins with one row after the other is added, there and back
        total += _begun(loop, rates)[0] * op.output.bytes * rates.far(2 * op.output.bytes, "in place")
    return total, apart


def _gather(g: GatherSignature, rates: Rates, operands: Sequence[float], slower: float) -> TimeTerms:
    if g.name in ELEMENTWISE:
        compute = g.rows * rates.rate(g.name, g.dtype, False)
        return TimeTerms(slower * compute, 0.0, slower * rates.call(g.name, g.dtype))
    overhead, reach = slower * rates.gathered_call(g.name, g.dtype), max(operands, default=0.0)
    compute = slower * g.rows * rates.gathered_near(g.name, g.dtype, g.width, reach)
    if g.name == "take":
        memory = g.rows * rates.gathered_far(g.width, operands[0], operands[-1])
    else:
        size = g.rows * g.width * ITEM_BYTES[g.dtype]
        written, power = size * rates.far(operands[-1], "one", written=True), rates.power_of("copy part")(operands[-1])
        memory = joined(compute, written, power) - compute + size * rates.windowed(operands[0], "part", g.width)
    return TimeTerms(compute, memory, overhead, reach=reach)


def _loop(loop: LoopSignature, rates: Rates, reach: float, axes: int) -> tuple[float, float, float]:
    """Compute on operands in cache, at a reuse distance of `reach`, starting rows, overhead of the call [s].

    axes: most that an array has.
    """
    if loop.reduced:
        table = rates.reduced(loop.name, loop.reduced, loop.dtype, loop.inner % 16 == 0)
        rows, begun = _begun(loop, rates) if loop.reduced == "outer" else (loop.rows, 0.0)
        whole = rows * table(loop.inner)
        compute = min(rows * loop.inner * (table(LONG) / LONG), whole)
        return compute + begun, whole - compute, rates.call(loop.name, loop.dtype, 0, axes)
    name, (*read, written) = loop.name, (strand.itemsize for strand in loop.strands)
    if name == "copyto" and read == [1] and written > 1 and not loop.scalars:
        name = WIDENED
    elif _is_masked(loop):
        return _masked(loop, rates)
    if name == "copyto" and loop.scalars:
        name = "fill"
    if _is_mixed(loop):
        name = MIXED
    scalars = loop.scalars if name != "fill" else 0
    ragged = [number for number, strand in enumerate(loop.strands) if not strand.flat or strand.step != 1]
    rate = rates.rate(name, loop.dtype, bool(scalars), loop.in_place)
    if not ragged:
        overhead = rates.call(name, loop.dtype, scalars, axes)
        if loop.iterated:
            overhead = max(overhead, rates.call("repeated", loop.dtype, scalars))  # its axes are joined to one
        if name != "fill":
            access = name if name == "copyto" else "in place" if loop.in_place else "two" if len(read) > 1 else "one"
            rate = rates.near(rate, access, reach, max(*read, written))
        return loop.elements * rate, 0.0, overhead
    if name == "copyto":
        whole = loop.rows * max(rates.row(_copying(loop, number), loop.dtype, loop.inner) for number in ragged)
        compute = min(loop.elements * rate, whole)
        return compute, whole - compute, rates.call(name, loop.dtype, scalars, axes)
    step = loop.strands[ragged[0]].step
    if len(ragged) == 1 and len(loop.strands) == 3 and ragged[0] != 2 and step < 2:
        return *_repeated(loop, step, rates, rate), rates.call("repeated", loop.dtype, scalars, axes)
    extra = sum(rates.row(_pattern(loop, number), loop.dtype, loop.inner) for number in ragged)
    return loop.elements * rate, loop.rows * extra, rates.call("repeated", loop.dtype, scalars, axes)


def _begun(loop: LoopSignature, rates: Rates) -> tuple[int, float]:
    """Of a reduction of rows how many are added to what it begins with, and the time that takes: a sum with zeros,
    others with their first row (NumPy, ``PyUFunc_Reduce``: where there is an initial value)."""
    if loop.name == "add.reduce":
        return loop.rows, loop.inner * rates.rate("fill", loop.dtype, False)
    return loop.rows - 1, loop.inner * rates.rate("copyto", loop.dtype, False)


def _repeated(loop: LoopSignature, step: int, rates: Rates, rate: float) -> tuple[float, float]:
    """A broadcast row or column: an addition's measured time, and by how much the function is slower than adding."""
    pattern = ("row" if step else "column") + (" in place" if loop.in_place else "")
    slower = max(rate - rates.rate("add", loop.dtype, False, loop.in_place), 0.0)
    whole = loop.rows * rates.row(pattern, loop.dtype, loop.inner) + loop.elements * slower
    compute = min(loop.elements * rate, whole)
    return compute, whole - compute


def _is_masked(loop: LoopSignature) -> bool:
    """Whether it copies where a mask of bools is true."""
    *read, _ = (strand.itemsize for strand in loop.strands)
    return (
        loop.name == "copyto"
        and read[-1:] == [1]
        and (len(read) > 1 or loop.scalars > 0 or loop.strands[-1].itemsize == 1)
    )


def _is_mixed(loop: LoopSignature) -> bool:
    """Whether NumPy casts bools for it."""
    *read, written = (strand.itemsize for strand in loop.strands)
    return loop.name != "copyto" and written > 1 and 1 in read


def _masked(loop: LoopSignature, rates: Rates) -> tuple[float, float, float]:
    """A copy through a causal mask, whose rows are a run of ones and a run of zeros."""
    table, side = rates.masked(loop.dtype), max(loop.inner**0.5, 1.0)
    whole = loop.elements / side * table(side)
    compute = min(loop.elements * (table(LONG) / LONG), whole)
    return compute, whole - compute, rates.masked_call(loop.dtype)


def _copying(loop: LoopSignature, number: int) -> str:
    strand = loop.strands[number]
    if strand.step not in (0, 1):
        return "copy second" if strand.step < 8 else "copy across"
    return "copy into part" if number == len(loop.strands) - 1 else "copy part"


def _pattern(loop: LoopSignature, number: int) -> str:
    strand = loop.strands[number]
    if number == len(loop.strands) - 1:
        return "part written"
    if strand.step in (0, 1):
        return "row" if strand.step else "column"
    return "second in place" if loop.in_place else "second"
