"""Rates of this host, interpolated between a calibration's probes: calls, bandwidth, functions and rows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from itertools import accumulate
from math import log

from costmodel.roofline.cold import ColdCalls
from costmodel.roofline.curves import LogTable, behind, joined, parted, rising
from costmodel.roofline.gemm import SHORTEST
from costmodel.roofline.memory import ITEM_BYTES, RESIDENT_BYTES
from costmodel.roofline.others import Others, Placed
from costmodel.roofline.placed import placed
from costmodel.roofline.probes import (
    BUFFERED,
    CALL_AXES,
    EMPTY,
    FAR_WIDTHS,
    FEW_GATHERED,
    FIRST_BYTES,
    GATHERED,
    LINES_APART,
    LOADED_LENGTH,
    LOADING,
    MASKED,
    MASKED_SIDES,
    RATE_BYTES,
    READ_LENGTHS,
    REDUCED_LENGTHS,
    ROW_LENGTHS,
    VECTOR,
    WINDOW_BYTES,
    WINDOW_LENGTHS,
    WorkingSets,
    probes,
)
from costmodel.roofline.products import Products
from costmodel.roofline.program import NumpyCall, begun_lines_of, lines_of

POWERS = tuple(2 ** (step / 8) for step in range(40, -9, -1))
"""Exponents p of how compute and memory time overlap, (compute^p + memory^p)^(1/p), of which the one is chosen that
fits best: from 32, where the longer hides the other, to 1, where they add up, and 1/2, where both become slower."""

LEAST = 1e-10
"""No call takes less [s]."""

SLOW = 1.25
"""By how much longer a function takes at most than one that only loads and stores, if it waits for that alone."""

LONG = 3200
"""Length of rows at which the time per element no longer falls."""

WAITING = {"maximum inner": "reduced inner", "copy masked long": "copy masked"}
"""Manners whose rows wait for memory beyond what others do that compute while they load in the same way."""
READ = {"one": 1, "two": 2}
"""How many operands are read for one that is written."""
LEAST_STEP, LEAST_NEAR = 1.2, 0.02
"""How much more a byte from memory costs at least than one from the last cache, if that is a cache, and how much less
at most."""
LEAST_WRITTEN, MOST_WRITTEN = 1.0, 1.5
"""What is written costs no less than what is read, and no more than twice as much where two are read [of the mean]."""

LIKE = {"multiply": ("add",)}
"""In-place functions that stand in for those whose repetition underflows."""


class Rates:
    """Rates and costs from `seconds`, the time of each probe by its name [s], at working sets.

    slower: how many times as long anything takes to compute after dense arithmetic. threads: how many products may use.
    step: overhead of a program without calls [s], which each probe that is a program of one call has too.
    """

    def __init__(self, seconds: Mapping[str, float], sets: WorkingSets, slower: float = 1.0, threads: int = 1) -> None:
        self.sets, self.slower, self.threads = sets, slower, threads
        self.ops = {name: op for thorough in (True, False) for name, op in probes(sets, thorough) if name in seconds}
        self.step = seconds[EMPTY]
        self.seconds = {name: max(each - self.step * (name in self.ops), LEAST) for name, each in seconds.items()}
        self._axes = cache(self._axes_of)
        self.call = cache(self._call)
        self.rate = cache(self._rate)
        self._nearest = cache(self._nearest_of)
        self.rows = cache(self._rows)
        self.windows = cache(self._windows_of)
        self.power_of = cache(self._power_of)
        self.waits = cache(self._waits_of)
        self.reduced = cache(self._reduced)
        self.gathered = cache(self._gathered)
        self.masked = cache(self._masked)
        self._apart = cache(self._apart_of)

    # Calls

    def _call(self, name: str, dtype: str, scalars: int = 0, axes: int = 1) -> float:
        """Overhead of one call [s]. axes: of the arrays; what is contiguous takes as long for many as for one, but for
        copies."""
        s = self.seconds
        own, scalar = s.get(f"call {name} {dtype}", s[f"call add {dtype}"]), f"call {name} scalar {dtype}"
        own += self._axes(name)(axes)
        if not scalars or scalar in s:
            return s[scalar] if scalars else own
        return own + max(s[f"call multiply scalar {dtype}"] - s[f"call multiply {dtype}"], 0.0)

    def _axes_of(self, name: str) -> LogTable:
        """What a call takes longer than its own probe, whose arrays have one axis or two, by the number of axes [s]."""
        probed = {axes: self.seconds.get(f"call {name} axes {axes} float32") for axes in CALL_AXES}
        longer = {axes: each - self.seconds[f"call {name} float32"] for axes, each in probed.items() if each}
        fewest = 1 if min(CALL_AXES) in longer else min(CALL_AXES)
        return LogTable([fewest, *longer], rising([0.0, *(max(each, 0.0) for each in longer.values())]), mixing=True)

    # Memory

    @cached_property
    def _streams(self) -> dict[str, LogTable]:
        return self._streams_by(self.power)

    def _streams_by(self, power: Callable[[float], float]) -> dict[str, LogTable]:
        """Where compute and memory time overlap so much, by working set."""
        one = LogTable(self.sets.curve, rising([*self._beyond("negative", 8, power).values()]), mixing=True)
        streams = {"one": one}
        for access, probe, per_element in (
            ("two", "add", 12),
            ("in place", "multiply in place", 4),
            ("fill", "fill", 4),
        ):
            share = _share(self._beyond(probe, per_element, power), one)
            whole = rising([one(size) * share(size) for size in self.sets.curve])
            streams[access] = LogTable(self.sets.curve, whole, mixing=True)
        return streams

    def _beyond(self, name: str, per_element: int, power: Callable[[float], float]) -> dict[int, float]:
        """Time per byte beyond that in cache, by working set [s/B]."""
        call = self._call(name.split()[0], "float32", int("place" in name))
        rates = {}
        probed = {size: f"curve {name} {size} float32" for size in self.sets.curve}
        for size, probe in probed.items():
            if probe in self.seconds:  # some are measured at fewer sizes
                rates[size] = max(self.seconds[probe] - call, 1e-12) / self.ops[probe].output.size
        floor = min(rate for size, rate in rates.items() if size <= RESIDENT_BYTES)
        parts = ((size, parted(rate, floor, power(size)) / per_element) for size, rate in rates.items())
        return {size: each if size > RESIDENT_BYTES else 0.0 for size, each in parts}

    def copied(self, moved: int, distance: float) -> float:
        """How much of what any function costs beyond cache that reads one array and writes another a copy does that
        moves so many bytes, of an array at a reuse distance: large ones store past the caches, however far their arrays
        are; small ones differ only on the way from a core's own caches."""
        if moved > self.private:
            return self._copies(moved)
        return self._copies(distance) if distance <= self.private else 1.0

    @cached_property
    def _copies(self) -> LogTable:
        """The same of copies over and over, by the bytes that one moves."""
        return _share(self._beyond("copyto", 8, self.power), self._streams["one"])

    def far(self, distance: float, access: str = "two", *, written: bool = False) -> float:
        """Time per byte, beyond that in cache, of an operand at a reuse distance [s/B].

        access: among how many that are read and one that is written: "one", "two", or "in place", there and back; or
        "fill", one that is written alone.
        What is written costs what writing alone does, and what is read the rest.
        """
        whole = self._streams[access](distance)
        if access not in READ:  # in place, or nothing is read
            return whole
        read = READ[access]
        alone = min(max(self._streams["fill"](distance), LEAST_WRITTEN * whole), MOST_WRITTEN * whole)
        return alone if written else ((read + 1) * whole - alone) / read

    @cached_property
    def power(self) -> Callable[[float], float]:
        """How far functions that stream through contiguous arrays compute while they load, by reuse distance (exponents
        of `POWERS`): in a cache that others use as well as not at all in memory."""
        streams = {power: self._streams_by(lambda _, power=power: power) for power in POWERS}

        def misloaded(size: int, power: float) -> float:
            def moved(op: NumpyCall, size: int) -> float:
                return op.traffic_bytes * streams[power]["two" if len(op.operands) > 1 else "one"](size)

            return sum(self._misfit_of(name, size, moved, power) for name in LOADING)

        best = [min(POWERS, key=lambda power: misloaded(size, power)) for size in self.sets.far]
        return self._exponents(best)

    def _exponents(self, best: Sequence[float]) -> Callable[[float], float]:
        """Those at each of the far working sets, and between them."""
        inverse = self._along(self.sets.far, [1 / power for power in best])
        return lambda distance: 1 / inverse(distance)

    def _power_of(self, manner: str) -> Callable[[float], float]:
        """The same of loops of many rows, by reuse distance: each begins a stream, which memory minds most."""
        best = [
            min(POWERS, key=lambda power: self._misfit_of(manner, size, partial(self._moved, manner), power))
            for size in self.sets.far
        ]
        return self._exponents(best)

    def _moved(self, manner: str, op: NumpyCall, size: int) -> float:
        """Time to load what the probe of a manner moves at a working set [s]."""
        if op.output is op.operands[0]:
            return op.output.bytes * self.far(size, "in place")
        read = 0 if manner in ("copy part", "copy second") else op.operands[0].bytes
        return read * self.far(size, "one") + op.output.bytes * self.far(size, "one", written=True)

    def _misfit_of(self, manner: str, size: int, moved: Callable[[NumpyCall, int], float], power: float) -> float:
        """How far the probe of a manner at a working set beyond a core's own caches is predicted off, a logarithm."""
        far = f"loading {manner} {size} float32"
        return abs(log(self._loaded(manner, size, moved(self.ops[far], size), power) / self.seconds[far]))

    def _loaded(self, manner: str, size: int, moved: float, power: float) -> float:
        """What the probe of a manner takes at a working set if it computes as in a core's own caches while it loads."""
        near, far = (f"loading {manner} {each} float32" for each in (WINDOW_BYTES, size))
        name = {"copy": "copyto", "reduced": "add.reduce", "maximum": "maximum.reduce"}.get(
            manner.split()[0], "repeated"
        )
        call, op = self._call(manner if manner in LOADING else name, "float32"), self.ops[far]
        if manner in MASKED:
            each = self.masked("float32")(MASKED[manner]) / MASKED[manner]
        else:
            each = max(self.seconds[near] - call, 1e-12) / self.ops[near].operands[0].size
        compute = min(self.plain(manner), each) * op.operands[0].size
        return call + behind(compute, each * op.operands[0].size - compute, moved, power)

    def _waits_of(self, manner: str) -> Callable[[float], float]:
        """Time that each row waits for memory beyond that, by reuse distance [s]: what begins too late to be loaded
        ahead, as where the last row is done with late, or ends before it is."""
        extra, power = [], self.power_of(WAITING[manner])
        for size in self.sets.far:
            probe = f"loading {manner} {size} float32"
            op = self.ops[probe]
            longer = self.seconds[probe] - self._loaded(manner, size, self._moved(manner, op, size), power(size))
            extra.append(longer * MASKED.get(manner, LOADED_LENGTH) / op.operands[0].size)
        return self._along((WINDOW_BYTES, *self.sets.far), [*accumulate(extra, max, initial=0.0)])

    def plain(self, manner: str) -> float:
        """Time per element of the longest rows, of a manner [s]; of a function all that it takes."""
        if manner.startswith("copy masked"):
            return self.masked("float32")(LONG) / LONG
        if manner.startswith(("reduced", "maximum")):
            name = "add.reduce" if manner.startswith("reduced") else "maximum.reduce"
            return self.reduced(name, manner.split()[1], "float32", True)(LONG) / LONG
        if manner in LOADING:
            return float("inf")
        return self._rate("copyto" if manner.startswith("copy") else "add", "float32", False, manner == "row")

    @cached_property
    def _reads(self) -> tuple[LogTable, LogTable]:
        """Time per byte of a matrix that is read once, beyond that in cache, by reuse distance [s/B]: with rows of each
        of `READ_LENGTHS`."""

        def rate(probe: str) -> float:
            seconds = self.seconds[probe] - self._call("matmul", "float32")
            return max(seconds, 0.0) / self.ops[probe].operands[1].bytes

        near = [size for size in self.sets.curve if size <= RESIDENT_BYTES]
        floor = rate(f"curve matmul {near[-1]} float32")

        def beyond(kind: str, sizes: Sequence[int]) -> dict[int, float]:
            far = {size: max(rate(f"curve matmul {kind}{size} float32") - floor, 0.0) for size in sizes[len(near) :]}
            return dict.fromkeys(near, 0.0) | far

        def table(values: Sequence[float]) -> LogTable:
            return LogTable(self.sets.curve, rising(values), mixing=True)

        short = table([*beyond("", self.sets.curve).values()])
        share = _share(beyond("long ", self.sets.thinned), short)
        return short, table([short(size) * share(size) for size in self.sets.curve])

    def read(self, distance: float, length: int = READ_LENGTHS[0]) -> float:
        """Time per byte of a matrix that is read once, beyond that in cache, with rows of so many elements [s/B].

        What a row costs by itself adds to what its bytes do, and is told from the two lengths that were measured.
        """
        short, long = (table(distance) for table in self._reads)
        long = min(short, long)
        few, many = READ_LENGTHS
        return long + (short - long) * (1 / max(length, SHORTEST) - 1 / many) / (1 / few - 1 / many)

    def _windows_of(self, manner: str, length: int) -> Callable[[float], float]:
        """Time per byte of the lines that rows apart from each other touch, by reuse distance [s/B]; it adds to all
        else, since each row begins a stream of its own."""
        sizes, extra = self.sets.windows, []
        names = [f"windows {manner} {length} {size} float32" for size in sizes]
        ops, seconds = [self.ops[name] for name in names], [self.seconds[name] for name in names]
        in_place = "in place" in manner
        call = self._call("repeated" if in_place else "copyto", "float32", axes=2)
        plain = self._rate("maximum", "float32", False, True) if in_place else self.plain("copy")
        power = self.power_of("row" if in_place else f"copy {manner}")
        access = "in place" if in_place else "one"
        for size, op, whole in zip(sizes, ops, seconds, strict=True):
            near = (seconds[0] - call) / ops[0].output.size * op.output.size
            compute, written = min(plain * op.output.size, near), op.output.bytes * self.far(size, access, written=True)
            beyond, x = whole - call - behind(compute, near - compute, written, power(size)), op.operands[-1]
            extra.append(beyond / (x.bytes * lines_of(x) * begun_lines_of(x)))
        x = ops[0].operands[-1]  # lines between its rows are loaded too, and not used
        wider = (ops[0].output.bytes + x.buffer.bytes) / (ops[0].output.bytes + x.bytes * lines_of(x))
        return self._along(sizes, [*accumulate(extra, max, initial=0.0)][1:], wider)

    def _along(self, sizes: Sequence[int], values: Sequence[float], wider: float = 1.0) -> Callable[[float], float]:
        """Between working sets where something was measured, as far from one to the next as what streams takes there,
        which was measured at more: where half is found in a cache, half is as if all were.

        wider: how much more than a working set caches take in.
        """
        if len(sizes) == 1:
            return lambda distance: values[0]
        takes = [self.taken(wider * size) for size in sizes]

        def at(distance: float) -> float:
            number = min(max(bisect_left(sizes, distance), 1), len(sizes) - 1)
            (near, far), (low, high) = values[number - 1 : number + 1], takes[number - 1 : number + 1]
            if high <= low:
                return LogTable(sizes, values, mixing=True)(distance)
            return near + (far - near) * min(max((self.taken(wider * distance) - low) / (high - low), 0.0), 1.0)

        return at

    @cached_property
    def taken(self) -> LogTable:
        """Time per byte of what reads one array and writes another, by working set [s/B]."""
        call = self._call("negative", "float32")
        return LogTable(
            self.sets.curve,
            rising([(self.seconds[f"curve negative {size} float32"] - call) / size for size in self.sets.curve]),
            mixing=True,
        )

    @cached_property
    def lines(self) -> LogTable:
        """Time that an element takes longer if it is alone on its line, in a core's own caches [s]."""
        call, rate = self._call("negative", "float32"), self._rate("negative", "float32", False)
        ops = {size: self.ops[f"apart {size} float32"] for size in LINES_APART}
        each = [(self.seconds[f"apart {size} float32"] - call) / op.output.size - rate for size, op in ops.items()]
        return LogTable(LINES_APART, rising([max(more, 0.0) for more in each]), mixing=True)

    def windowed(self, distance: float, manner: str, length: float) -> float:
        """Time per byte of lines, beyond that in cache, of rows apart from each other, of so many elements [s/B].

        manner: "part" of longer rows, or every "second" element, or one of less than a line, copied or "second in
        place": there lines between rows are left out, which what is loaded ahead passes over if they are few.
        """
        lengths = WINDOW_LENGTHS[manner]
        return LogTable(lengths, [self.windows(manner, each)(distance) for each in lengths], mixing=True)(length)

    @cached_property
    def others(self) -> Others:
        """What others bring into the caches that cores share."""
        return Others(self, placed(self.sets.beyond))

    @cached_property
    def placed(self) -> dict[str, Placed]:
        """Calls that were measured in place, by name."""
        return self.others.placed()

    @cached_property
    def cold(self) -> ColdCalls:
        """What calls take longer for what was left alone."""
        return ColdCalls(self)

    @cached_property
    def products(self) -> Products:
        """The time of matrix products."""
        return Products(self)

    @cached_property
    def private(self) -> int:
        """What a core's own caches hold, found by measuring: the first working set from which a byte that is read costs
        at least half as much beyond cache as from one four times as large [bytes]."""
        beyond = [size for size in self.sets.curve if size > RESIDENT_BYTES]
        return next((size for size in beyond if self.read(size) >= self.read(4 * size) / 2 > 0), RESIDENT_BYTES)

    def shared_bytes(self, private: int) -> int:
        """What a program of its own finds in the cache that cores share, found by measuring: up to this working set a
        copy costs less than halfway from that cache to memory, as ratios go; 0 where there is no such cache [bytes].

        private: what a core's own caches hold [bytes].
        """
        copy = self._streams["one"]
        far = copy(self.sets.curve[-1])
        near = max(copy(2 * private), LEAST_NEAR * far)
        if far < LEAST_STEP * near:
            return 0
        return max((size for size in self.sets.curve if copy(size) ** 2 <= near * far), default=0)

    def bandwidth(self, distance: float) -> float:
        """Of streaming operands at a reuse distance [bytes/s]."""
        sizes = self.sets.thinned
        nearest = min(sizes, key=lambda size: abs(log(size) - log(min(max(distance, 1), sizes[-1]))))
        probe = f"curve add {nearest} float32"
        return 12 * self.ops[probe].output.size / self.seconds[probe]

    @cached_property
    def memory_bandwidth(self) -> float:
        """Of the largest working set that is measured so [bytes/s]."""
        return self.bandwidth(self.sets.thinned[-1])

    def peak(self, dtype: str) -> float:
        """Of the fastest matrix product [FLOP/s]."""
        names = [name for name in self.seconds if name.startswith("product ") and name.endswith(dtype)]
        return max(self.ops[name].contractions / self.seconds[name] for name in names)

    # Functions

    def _rate(self, name: str, dtype: str, scalar: bool, in_place: bool = False) -> float:
        """Time per element of operands in cache [s]: the less of what two working sets say, since the smaller is all
        but too large for a core's own caches, and from the larger what computes for longer hides all the way."""
        variants = [" scalar", ""] if scalar else [""]
        names = [f"{name}{variant}" for variant in variants] + ["add"]
        if in_place:
            names = [f"{like} in place" for like in (*names[:-1], *LIKE.get(name, ()))] + names
        variant = next(variant for variant in names if f"rate {variant} {RATE_BYTES[0]} {dtype}" in self.seconds)
        call, rates = self._call(name, dtype, int(scalar)), []
        for size in RATE_BYTES[:2]:
            probe = f"rate {variant} {size} {dtype}"
            if probe in self.seconds:
                again = probe.replace("rate", "curve", 1)  # the curve of memory may have measured the very same call
                whole = min(self.seconds[probe], self.seconds.get(again, self.seconds[probe]))
                rates.append(max(whole - call, 0.05 * whole) / self.ops[probe].output.size)
        return min(rates)

    def near(self, rate: float, access: str, distance: float, itemsize: int = 4) -> float:
        """Time per element of operands at a reuse distance, of which `rate` is that in a core's own caches [s].

        access: "copyto", or see `far`. The first cache hands elements out faster than the next, which matters as far as
        a function waits for them.
        """
        there, usual = (itemsize / 4 * self._nearest(access)(size) for size in (distance, RESIDENT_BYTES))
        power = self.power(RESIDENT_BYTES)
        return joined(parted(rate, SLOW * usual, power), there, power)

    def _nearest_of(self, access: str) -> LogTable:
        """Time per element of a function that does little else but load and store, by working set [s]."""
        name = {"one": "negative", "two": "add", "in place": "multiply in place"}.get(access, access)
        call = self._call(name.split()[0], "float32", int("place" in name))
        sizes = [size for size in self.sets.curve if size <= RESIDENT_BYTES]
        probes = [f"curve {name} {size} float32" for size in sizes]
        each = [max(self.seconds[probe] - call, 1e-12) / self.ops[probe].output.size for probe in probes]
        function, scalar = name.removesuffix(" in place"), access == "in place"
        return LogTable([*sizes, RESIDENT_BYTES], [*each, self._rate(function, "float32", scalar, scalar)])

    # Rows

    def row(self, pattern: str, dtype: str, length: int) -> float:
        """Time that each inner loop of a length costs [s]: for a copy or a repeated row or column all of it, for others
        what it adds."""
        return self.rows(pattern, dtype, length % VECTOR == 0)(length)

    def _rows(self, pattern: str, dtype: str, even: bool) -> LogTable:
        """By length; even: of multiples of `VECTOR`."""
        lengths, values = [], []
        whole = pattern.startswith(("copy", "row", "column"))
        for length in ROW_LENGTHS:
            name, apart = f"{pattern} {length} {dtype}", VECTOR <= length <= BUFFERED
            like = not apart or (length % VECTOR == 0) == even
            if name in self.seconds and (like or dtype != "float32"):
                size = self.ops[name].output.size
                plain = 0.0 if whole else self._rate("add", dtype, False, "in place" in pattern) * size
                call = self._call("copyto" if pattern.startswith("copy") else "repeated", dtype, axes=2)
                lengths.append(length)
                values.append(max(self.seconds[name] - call - plain, 0.0) / (size // length))
        return LogTable(lengths, values, growing=whole)

    def _reduced(self, name: str, direction: str, dtype: str, even: bool) -> LogTable:
        """Time per row of a reduction, by its length [s]; even: for lengths that are multiples of 16."""
        name = name if f"{name} {direction} {REDUCED_LENGTHS[0]} {dtype}" in self.seconds else "add.reduce"
        measured = [n for n in REDUCED_LENGTHS if f"{name} {direction} {n} {dtype}" in self.seconds]
        lengths = [n for n in measured if n < 8 or n > 2000 or (n % 16 == 0) == even]
        values = []
        for n in lengths:
            probe = f"{name} {direction} {n} {dtype}"
            rows = max(self.ops[probe].operands[0].size // n, 1)
            begun = n * self._rate("fill", dtype, False) if direction == "outer" else 0.0  # of zeros
            values.append(max(self.seconds[probe] - self._call(name, dtype) - begun, 0.0) / rows)
        return LogTable(lengths, values, growing=True)

    def _gathered(self, name: str, dtype: str) -> LogTable:
        """Time per row of a gather, by its width [s]."""
        name = name if f"{name} 4 1 {dtype}" in self.seconds else "add.at"

        def each(width: int, rows: int) -> float:
            few, many = (self.seconds[f"{name} {number} {width} {dtype}"] for number in (FEW_GATHERED, rows))
            return max(many - few, 1e-10) / (rows - FEW_GATHERED)

        return LogTable([*GATHERED], [each(width, rows) for width, rows in GATHERED.items()], growing=True)

    def gathered_near(self, name: str, dtype: str, width: int, distance: float) -> float:
        """Time per row of a gather without what it loads, with its arrays at a reuse distance [s]."""
        each = self.gathered(name, dtype)(width)
        return each if name != "take" else width * self.near(each / width, "copyto", distance, ITEM_BYTES[dtype])

    def gathered_far(self, width: int, read: float, written: float) -> float:
        """What a row of a gather takes longer than near, from one reuse distance to another [s]: it begins a stream of
        its own, far from the last."""
        few, many = FAR_WIDTHS
        narrow, wide = (self._apart(each)(read) * self._streams["one"](read) for each in FAR_WIDTHS)
        longer = (wide - narrow) / (many - few) * (width - few)
        stored = self.far(written, "one", written=True) - self.far(read, "one", written=True)
        return max(narrow + longer + ITEM_BYTES["float32"] * width * stored, 0.0)

    def _apart_of(self, width: int) -> LogTable:
        """The same of a row of one of `FAR_WIDTHS` that is written as far as it is read, by that reuse distance: for so
        many bytes it takes as long as for a byte of a stream."""

        def extra(size: int) -> float:
            probe = f"loading gather {width} {size} float32"
            each = (self.seconds[probe] - self.gathered_call("take", "float32")) / self.ops[probe].output.shape[0]
            return max(each - self.gathered_near("take", "float32", width, size), 0.0)

        return _share({size: extra(size) for size in self.sets.far}, self._streams["one"])

    def gathered_call(self, name: str, dtype: str) -> float:
        """Overhead of a gather [s]."""
        return self.seconds.get(f"{name} 4 1 {dtype}", self.seconds[f"add.at 4 1 {dtype}"])

    def _masked(self, dtype: str) -> LogTable:
        """Time per row of a causal mask, by how long it is, of a copy through it [s]."""
        call = self.masked_call(dtype)
        rows = {side: side * times for side, times in MASKED_SIDES.items() if times > 1}
        values = [(self.seconds[f"where {side} {dtype}"] - call) / number for side, number in rows.items()]
        return LogTable([*rows], values, growing=True)

    def masked_call(self, dtype: str) -> float:
        """Overhead of a copy through a mask [s]."""
        return self.seconds[f"where {min(MASKED_SIDES)} {dtype}"]

    @cached_property
    def doubt(self) -> float:
        """90 % quantile of the relative leave-one-out errors of row costs."""
        patterns = ("row", "column", "row in place", "column in place", "copy part")
        tables = [self.rows(pattern, "float32", even) for pattern in patterns for even in (True, False)]
        errors = [e for table in tables for e in table.left_out()]
        return sorted(errors)[int(0.9 * len(errors))]


def _share(beyond: Mapping[int, float], whole: LogTable) -> LogTable:
    """What costs so much beyond cache by working set, as a share of what changes with it in the same way, so that few
    of them tell it."""
    least = LEAST_NEAR * whole(max(beyond))
    shares = {size: each / whole(size) for size, each in beyond.items() if whole(size) > least}
    return LogTable([FIRST_BYTES, *shares], [1.0, *shares.values()], mixing=True)
