"""How long a program of NumPy calls takes on this host, from its description and a calibration alone.

Six models, each adding to the one before:

1. two ceilings: the program's FLOPs at the peak rate, or its compulsory bytes at memory's bandwidth
2. NumPy's own passes: the same for each call, with all that it reads and writes
3. reuse: bandwidth by the reuse distance of what a call touches
4. functions: the throughput of each elementwise function
5. products: matrix products by their shape
6. overheads: what a call costs, and what starting each inner loop costs
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import hypot

from costmodel.errors import SettingError, shown
from costmodel.roofline.calibration import Calibration
from costmodel.roofline.footprint import Code, manner_of, reuse_distances, reuses, touched_by
from costmodel.roofline.gemm import regime_of
from costmodel.roofline.memory import ITEM_BYTES, LINE
from costmodel.roofline.probes import MIXED, WIDENED
from costmodel.roofline.program import Op, Program, lines_of
from costmodel.roofline.rates import Rates, joined
from costmodel.roofline.signature import ELEMENTWISE, Gather, Loop, Product, Signature, signature_of

LEVELS = {
    1: "two ceilings, compulsory bytes",
    2: "NumPy's own passes",
    3: "bandwidth by reuse distance",
    4: "throughput of each function",
    5: "matrix products by shape",
    6: "overheads of calls and rows",
}

LONG = 3200
"""Length of rows at which a reduction's time per element no longer falls."""


CAUSES = ("compute", "memory", "overhead", "rows")


@dataclass(frozen=True)
class Terms:
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

    def __add__(self, other: Terms) -> Terms:
        memory = self.memory + other.memory
        far = max((self, other), key=lambda terms: terms.memory)
        return Terms(
            self.compute + other.compute, memory, self.overhead + other.overhead, self.rows + other.rows, far.reach
        )

    def shared_by(self, number: int) -> Terms:
        """Of one of so many equal runs."""
        return replace(self, **{name: getattr(self, name) / number for name in CAUSES})

    @property
    def dominant(self) -> str:
        """The largest term's name."""
        return max(CAUSES, key=lambda name: getattr(self, name))


@dataclass(frozen=True)
class HostTime:
    """A prediction [s]: in all, its terms, and each call's.

    error: relative, within which nine of ten of the calibration's own measurements are when they are left out.
    """

    terms: Terms
    error: float
    level: int
    calls: tuple[tuple[Op, Terms], ...] = field(repr=False, default=())

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


def host_time(
    program: Program,
    rates: Rates,
    *,
    level: int = 6,
    compulsory_bytes: int | None = None,
    between: int = 0,
) -> HostTime:
    """How long a program takes when it is run over and over.

    between: bytes that other work touches between two runs.
    compulsory_bytes: what level 1 moves, the program's inputs, weights and outputs once unless given.
    Raises SettingError for a level that there is not.
    """
    if level not in LEVELS:
        raise SettingError(f"level {shown(level)} is none of {', '.join(map(str, LEVELS))}")
    if level == 1:
        return HostTime(_ceilings(program, rates, compulsory_bytes), 1.0, level)
    found = reuses(touched_by(program), between)
    signed = [(op, signature_of(op)) for op in program]

    def priced(seconds: Sequence[float] = (), traffic: float = 0.0) -> tuple[tuple[Op, Terms], ...]:
        distances = reuse_distances(found, seconds, traffic)
        return tuple((op, _call(op, own, rates, level, far)) for (op, own), far in zip(signed, distances, strict=True))

    calls = priced()
    if level < 6:
        return _summed(calls, level, 1.0)
    calls = priced([terms.seconds for _, terms in calls], rates.traffic)  # how long each was left alone is known by now
    summed = _summed(calls, level, 1.0)
    return replace(summed, terms=summed.terms + Terms(overhead=rates.step), error=_error(calls, rates))


def _summed(calls: tuple[tuple[Op, Terms], ...], level: int, error: float) -> HostTime:
    return HostTime(sum((terms for _, terms in calls), Terms()), error, level, calls)


def _error(calls: tuple[tuple[Op, Terms], ...], rates: Rates) -> float:
    """Relative error of the sum: those of products add up, those of the rest too, the two independently."""
    products = rest = 0.0
    for op, terms in calls:
        signature = signature_of(op) if op.name == "matmul" else None
        if isinstance(signature, Product):
            products += terms.seconds * rates.fit(regime_of(signature), signature.dtype).doubt
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


def _ceilings(program: Program, rates: Rates, compulsory_bytes: int | None) -> Terms:
    if compulsory_bytes is None:
        compulsory_bytes = compulsory_bytes_of(program)
    flops = program.contractions + program.pointwise
    return _roof(flops / rates.peak(_dtype(program)), compulsory_bytes / rates.memory_bandwidth)


def _dtype(program: Program) -> str:
    return next((op.output.dtype for op in program if op.output.dtype.startswith("float")), "float32")


def _roof(compute: float, memory: float) -> Terms:
    return Terms(compute, max(memory - compute, 0.0), reach=float("inf"))


def _call(op: Op, signature: Signature, rates: Rates, level: int, distances: Sequence[float]) -> Terms:
    """Of one call; distances: of its operands, then of the code that it runs."""
    *operands, common, manner, own = distances
    if level < 4 or (level == 4 and isinstance(signature, Product)):
        compute = (op.contractions + op.pointwise) / rates.peak(signature.dtype)
        return _roof(compute, _moving(op, rates, level, operands))
    terms = _terms(signature, op, rates, operands)
    if level == 6:
        cold = rates.cold(manner_of(op), Code(common, manner, own))
        return replace(terms, overhead=terms.overhead + cold)
    return Terms(terms.compute, terms.memory, reach=terms.reach)


def _moving(op: Op, rates: Rates, level: int, operands: Sequence[float]) -> float:
    if level == 2:
        return op.traffic_bytes / rates.memory_bandwidth
    refs = op.accesses
    return sum(ref.bytes / rates.bandwidth(far) for ref, far in zip(refs, operands, strict=True))


def _terms(signature: Signature, op: Op, rates: Rates, operands: Sequence[float]) -> Terms:
    if isinstance(signature, Product):
        return _product(signature, op, rates, operands)
    if isinstance(signature, Gather):
        return _gather(signature, op, rates, operands)
    compute, rows, overhead = _loop(signature, rates)
    moved = _far(op, signature, rates, operands)
    beside = compute if signature.reduced else compute + rows
    return Terms(compute, joined(beside, moved) - beside, overhead, rows, reach=max(operands, default=0.0))


def _far(op: Op, loop: Loop, rates: Rates, operands: Sequence[float]) -> float:
    """Time to load each cache line once: a stride of two touches as many lines as one of one [s]."""
    used = list(zip(op.accesses, loop.strands, operands, strict=True))
    seen = {ref: (ref, strand, far) for ref, strand, far in (used[:-1] if loop.in_place else used)}
    way = "two" if len(seen) > 2 and not loop.in_place else "one"
    total = 0.0
    for ref, strand, far in seen.values():
        lines = ref.bytes * lines_of(ref)
        if 1 < strand.step < LINE // strand.itemsize and lines > ref.bytes:
            total += lines * rates.windowed(far)
            continue
        written = ref.buffer is op.output.buffer
        own = "in place" if loop.in_place and written else way
        total += lines * rates.far(far, own, written=written)
    if loop.reduced == "outer":  # one row after the other is added to the output
        again = op.operands[0].size // op.output.size - 1
        total += again * op.output.bytes * rates.far(2 * op.output.bytes, "in place")
    return total


def _product(p: Product, op: Op, rates: Rates, operands: Sequence[float]) -> Terms:
    seconds, memory = rates.product(p, operands, [ref.bytes for ref in op.accesses])
    call = rates.call("matmul", p.dtype)
    return Terms((seconds - memory) * p.batch, memory * p.batch, call, reach=max(operands))


def _gather(g: Gather, op: Op, rates: Rates, operands: Sequence[float]) -> Terms:
    if g.name in ELEMENTWISE:
        compute = g.rows * rates.rate(g.name, g.dtype, False)
        return Terms(compute, 0.0, rates.call(g.name, g.dtype))
    overhead = rates.gathered_call(g.name, g.dtype)
    compute = g.rows * rates.gathered(g.name, g.dtype)(g.width)
    way = rates.far(operands[0]) + rates.far(operands[-1], written=True)
    moved = g.rows * g.width * ITEM_BYTES[g.dtype] * way
    return Terms(compute, joined(compute, moved) - compute, overhead, reach=max(operands, default=0.0))


def _loop(loop: Loop, rates: Rates) -> tuple[float, float, float]:
    """Compute on operands in cache, starting rows, overhead of the call [s]."""
    if loop.reduced:
        return _reduction(loop, rates)
    name, (*read, written) = loop.name, (strand.itemsize for strand in loop.strands)
    if name == "copyto" and read == [1] and written > 1 and not loop.scalars:
        name = WIDENED
    elif name == "copyto" and read[-1:] == [1]:
        return _masked(loop, rates)
    if name == "copyto" and loop.scalars:
        name = "fill"
    if written > 1 and 1 in read and name != WIDENED:
        name = MIXED
    scalars = loop.scalars if name != "fill" else 0
    ragged = [number for number, strand in enumerate(loop.strands) if not strand.flat or strand.step != 1]
    rate = rates.rate(name, loop.dtype, bool(scalars), loop.in_place)
    if not ragged:
        return loop.elements * rate, 0.0, rates.call(name, loop.dtype, scalars)
    if name == "copyto":
        whole = loop.rows * max(rates.row(_copying(loop, number), loop.dtype)(loop.inner) for number in ragged)
        compute = min(loop.elements * rate, whole)
        return compute, whole - compute, rates.call(name, loop.dtype, scalars)
    step = loop.strands[ragged[0]].step
    if len(ragged) == 1 and len(loop.strands) == 3 and ragged[0] != 2 and step < 2:
        return _repeated(loop, step, rates, rate)
    extra = sum(rates.row(_pattern(loop, number), loop.dtype)(loop.inner) for number in ragged)
    return loop.elements * rate, loop.rows * extra, rates.call("repeated", loop.dtype)


def _reduction(loop: Loop, rates: Rates) -> tuple[float, float, float]:
    table = rates.reduced(loop.name, loop.reduced, loop.dtype, loop.inner % 16 == 0)
    whole = loop.rows * table(loop.inner)
    compute = min(loop.elements * (table(LONG) / LONG), whole)
    return compute, whole - compute, rates.call(loop.name, loop.dtype)


def _repeated(loop: Loop, step: int, rates: Rates, rate: float) -> tuple[float, float, float]:
    """A broadcast row or column: an addition's measured time, and by how much the function is slower than adding."""
    pattern = ("row" if step else "column") + (" in place" if loop.in_place else "")
    slower = max(rate - rates.rate("add", loop.dtype, False, loop.in_place), 0.0)
    whole = loop.rows * rates.row(pattern, loop.dtype)(loop.inner) + loop.elements * slower
    compute = min(loop.elements * rate, whole)
    return compute, whole - compute, rates.call("repeated", loop.dtype)


def _masked(loop: Loop, rates: Rates) -> tuple[float, float, float]:
    """A copy through a causal mask, whose rows are a run of ones and a run of zeros."""
    overhead, per_row, per_element = rates.masking(loop.dtype)
    side = loop.inner**0.5 if loop.inner > 1 else 1.0
    return loop.elements * per_element, loop.rows * max(side, 1.0) * per_row, overhead


def _copying(loop: Loop, number: int) -> str:
    strand = loop.strands[number]
    if strand.step not in (0, 1):
        return "copy second" if strand.step < 8 else "copy across"
    return "copy into part" if number == len(loop.strands) - 1 else "copy part"


def _pattern(loop: Loop, number: int) -> str:
    strand = loop.strands[number]
    if number == len(loop.strands) - 1:
        return "part written"
    if strand.step in (0, 1):
        return "row" if strand.step else "column"
    return "second in place" if loop.in_place else "second"


def predict_seconds(
    program: Program,
    calibration: Calibration,
    *,
    level: int = 6,
    compulsory_bytes: int | None = None,
    between: int = 0,
) -> HostTime:
    """How long a program takes on the calibrated machine when it is run over and over.

    Args:
        program: what is run; a layer's, or a whole network's.
        calibration: of the machine.
        level: which model, 1 to 6; see `costmodel.roofline.hosttime`.
        compulsory_bytes: what level 1 moves; the program's inputs, weights and outputs once, unless given.
        between: bytes that other work touches between two repetitions.

    Raises:
        SettingError: there is no such level.

    """
    host = host_time(
        program,
        calibration.rates,
        level=level,
        compulsory_bytes=compulsory_bytes,
        between=between,
    )
    return replace(host, error=hypot(host.error, calibration.doubt))


def part_of(host: HostTime, calls: Sequence[int], calibration: Calibration, repeat: int = 1) -> HostTime:
    """One of `repeat` equal runs of some calls of a program, where they are in it."""
    chosen = tuple(host.calls[number] for number in calls)
    terms = _summed(chosen, host.level, 1.0).terms.shared_by(repeat)
    error = hypot(_error(chosen, calibration.rates), calibration.doubt) if host.level == 6 else 1.0
    return HostTime(terms, error, host.level, chosen)
