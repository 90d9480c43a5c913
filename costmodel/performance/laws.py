"""Seconds of one kernel on one machine: a bound from the datasheet, and what kernels typically attain.

Every law works on numbers and, element by element, on NumPy arrays of floats. Seconds never fall when there is more
work or less machine, and two batches never take more than twice as long as one: tiles and waves are rounded up, the
smallest of several such times is again one, and so is the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from costmodel.graph.kernel import Kernel, Product
from costmodel.hardware.machine import Machine
from costmodel.performance.constants import Constants, typical
from costmodel.training.dtypes import BITS, Dtype

if TYPE_CHECKING:
    from costmodel.hardware.machine import Machine


Tier = Literal["ceiling", "typical", "calibrated"]
"""ceiling: no kernel is faster, from the datasheet alone; typical: constants of the machine's family; calibrated: some
of them measured on the machine."""
Stack = Literal["eager", "compiled", "cuda-graphs"]
"""Who starts kernels: a framework one by one, generated code, or a recorded graph."""
Numbers = Any
"""A number, or an array of floats."""
Extreme = Callable[[Numbers, Numbers], Numbers]

MATRIX_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (16, 128))
VECTOR_TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (32, 32), (1, 128))
"""Rows and columns of the output that one processor computes at a time (CUTLASS, cuBLAS); a single row in products of a
matrix and a vector (gemv), which run on vector units everywhere."""
SPLIT_DEPTH = 256
"""Elements of k below which no tile is cut along k."""
QUERIES_AT_ONCE = 128
"""Queries of one processor's share of fused attention, at most."""
ATTENTION_STEP = 64
"""Queries and keys are rounded up to it in fused attention."""
HEAD_STEP = 32
"""Sizes of heads are rounded up to it in fused attention."""
VECTOR_LOAD_BITS = 128
"""Bits that matrix units' operands are loaded by, where rows start at multiples of them."""
POWER_BITS = {
    "fp64": 64,
    "fp32": 32,
    "tf32": 32,
    "fp16": 16,
    "bf16": 16,
    "fp8": 8,
    "int8": 8,
    "fp6": 8,
    "fp4": 4,
    "int4": 4,
}
"""Bits that power goes by: units for half of them do twice the products on the same power."""
TINY = 1e-30
"""Instead of a denominator of 0 [s]."""


def seconds(
    kernel: Kernel,
    machine: Machine,
    tier: Tier = "typical",
    constants: Constants | None = None,
    *,
    allow_tf32: bool | None = None,
    channels_last: bool = False,
) -> Numbers:
    """Time of a machine for all launches of a kernel [s]; see `Device`, which is quicker for many kernels."""
    device = Device(machine, constants)
    if tier == "ceiling":
        return device.ceiling(kernel, allow_tf32=allow_tf32)
    return device.seconds(kernel, allow_tf32=allow_tf32, channels_last=channels_last)


class Units(NamedTuple):
    """What multiplies matrices of a type, and whether it is matrix units.

    peak: of the datasheet; sustained: at the clock that the power limit leaves; rate: of large products [FLOP/s].
    """

    matrix: bool
    peak: float
    sustained: float
    rate: float


class Device:
    """A machine with a value for each constant. constants: those of its family unless given."""

    def __init__(self, machine: Machine, constants: Constants | None = None) -> None:
        self.machine = machine
        self.constants = c = constants or typical(machine)
        self.processors = machine.processors or 1
        self.vector_peak = machine.vector_peak()
        self.bandwidth = machine.bandwidth * c.bandwidth_share
        self.cache = max((level.bandwidth or 0.0 for level in machine.levels), default=0.0) * c.bandwidth_share
        if not self.cache > self.bandwidth:
            self.cache = self.bandwidth * (c.cache_speedup if machine.levels else 1.0)
        self._units: dict[tuple[Dtype, bool], Units] = {}
        self._tiles = {True: self._depths(MATRIX_TILES, c.tile_intensity)}
        self._tiles[False] = self._depths(VECTOR_TILES, c.vector_tile_intensity)

    def ceiling(self, kernel: Kernel, *, allow_tf32: bool | None = None) -> Numbers:
        """Datasheet arithmetic or bytes, whichever takes longer: a lower bound, with nothing for the launch [s]."""
        _, most = _extremes(kernel)
        moved = (kernel.read + kernel.written) / self.machine.bandwidth
        return most(kernel.flops / self._peak(kernel, allow_tf32), moved)

    def seconds(self, kernel: Kernel, *, allow_tf32: bool | None = None, channels_last: bool = False) -> Numbers:
        """Time for all launches of a kernel [s]; the host's is `host_seconds`.

        allow_tf32: whether fp32 operands may be rounded to tf32 on matrix units; None: as PyTorch does by itself, in
        convolutions only. channels_last: the layout of convolutions' operands.
        """
        least, most = _extremes(kernel)
        if kernel.sort == "attention":
            attained = self._attention(kernel, least, most)
        elif kernel.sort in ("product", "convolution"):
            attained = self._product(kernel, self.units(kernel, allow_tf32), channels_last, least, most)
        else:
            attained = self._streaming(kernel, most)
        return most(self.ceiling(kernel, allow_tf32=allow_tf32), self.constants.conditions * attained)

    def host_seconds(self, kernel: Kernel, stack: Stack = "eager") -> Numbers:
        """Time of the host to start all launches of a kernel [s]."""
        c = self.constants
        each = {"eager": c.eager_seconds, "compiled": c.compiled_seconds, "cuda-graphs": c.graph_seconds}
        return kernel.launches * each[stack]

    def clock(self, watts: float) -> float:
        """Clock over the boost clock that the power limit leaves, never below the base clock.

        watts: dynamic power at the boost clock. Power is static + dynamic · (clock / boost)^exponent, and may not
        exceed the board's. Figures that were measured are at the clock that the machine sustains.
        """
        c, machine = self.constants, self.machine
        if machine.measured:
            return 1.0
        share = 1.0
        if machine.tdp:
            left = max(0.1 * machine.tdp, (1 - c.static_power) * machine.tdp - c.static_watts)
            share = min(c.headroom, (left / watts) ** (1 / c.power_exponent))
        if machine.base_clock and machine.boost_clock:
            share = max(share, min(1.0, machine.base_clock / machine.boost_clock))
        return share

    def units(self, kernel: Kernel, allow_tf32: bool | None = None) -> Units:
        """What multiplies the operands of a kernel; narrow types without units run in the next that has them."""
        tf32 = kernel.sort == "convolution" if allow_tf32 is None else allow_tf32
        key = (kernel.dtype, tf32)
        if key not in self._units:
            machine, c = self.machine, self.constants
            runs_in = machine.runs_in(kernel.dtype) or kernel.dtype
            named = ("fp32_tensor", "tf32") if tf32 else ("fp32_tensor",)
            matrix = any(name in machine.peak.given for name in (named if runs_in == "fp32" else (runs_in,)))
            peak = attained = machine.product_peak(runs_in, tf32)
            if runs_in in ("fp16", "bf16") and not matrix:
                # Libraries accumulate in fp32, at whose rate vector units then work.
                attained = min(peak, self.vector_peak)
            # Products of twice the bits take twice the energy.
            watts = c.product_watts * POWER_BITS[runs_in] / 16 if matrix else c.vector_watts
            sustained = attained * self.clock(watts * attained / 1e12)
            share = c.product_share if matrix else c.vector_share
            if POWER_BITS[runs_in] < 16:
                share *= c.narrow_share
            self._units[key] = Units(matrix, peak, sustained, sustained * share)
        return self._units[key]

    def _peak(self, kernel: Kernel, allow_tf32: bool | None) -> float:
        if kernel.sort in ("product", "convolution", "attention"):
            return self.units(kernel, allow_tf32).peak
        return self.vector_peak

    def _depths(self, tiles: tuple[tuple[int, int], ...], wanted: float) -> list[tuple[int, int, float]]:
        """Rows and columns of each tile, and the work of a processor on one element of k, slower for small tiles.

        An operand's element is used as often as the tile is wide; m·n/(m+n) is what each that is loaded serves.
        """
        shares = [min(1.0, (rows * columns / (rows + columns) / wanted) ** 0.5) for rows, columns in tiles]
        return [
            (rows, columns, 2 * rows * columns * self.processors / share)
            for (rows, columns), share in zip(tiles, shares, strict=True)
        ]

    def _product(self, kernel: Kernel, units: Units, channels_last: bool, least: Extreme, most: Extreme) -> Numbers:
        """Products, and convolutions as implicit ones: the best of several tiles, against the bytes moved.

        NVIDIA, Matrix Multiplication Background User's Guide; Convolutional Layers User's Guide.
        """
        c, sizes = self.constants, _sizes(kernel)
        rate = units.rate
        if kernel.sort == "convolution":
            share = c.convolution_share if units.matrix else c.vector_convolution_share
            rate *= share * (c.channels_first if units.matrix and not channels_last else 1.0)
        compute = kernel.launches * self._tiled(sizes, units.matrix, least, most) / rate
        if units.matrix and kernel.sort == "product":
            vector = self.vector_peak * c.vector_share * self.clock(c.vector_watts * self.vector_peak / 1e12)
            compute = least(compute, kernel.launches * self._tiled(sizes, False, least, most) / vector)
        if units.matrix:
            width = VECTOR_LOAD_BITS // BITS[kernel.dtype]
            uneven = (_rounded(sizes.n, width) > sizes.n) | (_rounded(sizes.k, width) > sizes.k)
            compute = compute * (1 + (c.misaligned - 1) * uneven)
        moved = kernel.read + kernel.written
        unpacked = {8: c.unpack8, 4: c.unpack4}.get(BITS[kernel.stored], 1.0) if kernel.stored else 1.0
        memory = moved / (self.bandwidth * c.product_stream * unpacked)
        long, short = most(compute, memory), least(compute, memory)
        # Both overlap perfectly where one is much the longer, and less where they take about as long.
        joined = long * (1 + (short / most(long, TINY)) ** c.overlap) ** (1 / c.overlap)
        start = kernel.launches * c.kernel_seconds
        implicit = start + kernel.launches * c.product_seconds + joined
        if kernel.sort == "product":
            return implicit
        direct = most(kernel.flops / (self.vector_peak * c.direct_share), moved / (self.bandwidth * c.direct_stream))
        if "weight" in kernel.name:
            direct = direct / c.direct_weight
        return least(implicit, start + direct)

    def _tiled(self, sizes: Product, matrix: bool, least: Extreme, most: Extreme) -> Numbers:
        """FLOPs of a product by the tile that takes the least, padding and idle processors among them.

        In whole waves of tiles over the processors, or with tiles cut along k so that all are busy, at some loss.
        """
        batch, m, n, k = sizes
        c, processors = self.constants, self.processors
        deepest = SPLIT_DEPTH / most(k, 1)
        down = {rows: batch * _ceiling(m, rows) for rows in (256, 128, 64, 32, 16, 1)}
        across = {columns: _ceiling(n, columns) for columns in (256, 128, 64, 32)}
        best: Numbers = None
        for rows, columns, depth in self._tiles[matrix]:
            tiles = down[rows] * across[columns]
            spread = most(tiles / processors, least(tiles, deepest))
            waves = least(_ceiling(tiles, processors), spread / c.split_share) * depth
            best = waves if best is None else least(best, waves)
        return best * (k + c.tile_fill)

    def _attention(self, kernel: Kernel, least: Extreme, most: Extreme) -> Numbers:
        """Fused attention: blocks of queries over all processors, exponentials beside products (Dao 2023)."""
        c, units = self.constants, self.units(kernel, False)
        batch, queries, keys, size = _sizes(kernel)
        share = c.attention_share * (c.attention_backward if "backward" in kernel.name else 1.0)
        rate = units.sustained * share
        # Of one query, key and element of a head: 4 forward, 10 backward, less where a mask leaves out blocks.
        each = kernel.flops / most(batch * queries * keys * size, 1)
        blocks = batch * _ceiling(queries, QUERIES_AT_ONCE)
        rows = least(_rounded(queries, ATTENTION_STEP), QUERIES_AT_ONCE)
        columns = _rounded(keys, ATTENTION_STEP)
        spread = most(blocks / self.processors, least(blocks, ATTENTION_STEP / most(columns, 1)))
        waves = least(_ceiling(blocks, self.processors), spread / c.split_share)
        depth = self.processors * rows * columns * (_rounded(size, HEAD_STEP) + c.softmax_depth)
        memory = (kernel.read + kernel.written) / (self.bandwidth * c.attention_stream)
        return kernel.launches * (c.kernel_seconds + c.product_seconds) + most(waves * depth * each / rate, memory)

    def _streaming(self, kernel: Kernel, most: Extreme) -> Numbers:
        """Pointwise, reducing and gathering kernels: bytes from memory, or from the last cache after a start.

        What fits the cache was just written by the kernel before and comes from there; what does not hides the start.
        """
        c, share = self.constants, 1.0
        if kernel.sort == "reduction":
            exponential = "softmax" in kernel.name or "cross_entropy" in kernel.name
            share = c.softmax_stream if exponential else c.reduction_stream
        elif kernel.sort == "gather":
            share = c.gather_stream
        moved = (kernel.read + kernel.written) / share
        start = kernel.launches * c.kernel_seconds
        arithmetic = kernel.flops / (self.vector_peak * c.pointwise_rate)
        return most(start + most(moved / self.cache, arithmetic), moved / self.bandwidth)


def _sizes(kernel: Kernel) -> Product:
    if kernel.sizes is None:
        raise ValueError(f"{kernel.name}: a kernel of sort {kernel.sort} needs its sizes")
    return kernel.sizes


def _extremes(kernel: Kernel) -> tuple[Extreme, Extreme]:
    """Minimum and maximum of two numbers, or of each two elements if the kernel has arrays."""
    values = (kernel.flops, kernel.read, kernel.written, kernel.launches, *(kernel.sizes or ()))
    if all(isinstance(value, (int, float)) for value in values):
        return min, max
    import numpy as np

    return np.minimum, np.maximum


def _ceiling(size: Numbers, by: int) -> Numbers:
    """The quotient, rounded up; of floats exact below 2^53, where NumPy divides 20 times as fast as it floors."""
    if isinstance(size, int):
        return -(-size // by)
    import numpy as np

    return np.ceil(size / by)


def _rounded(size: Numbers, multiple: int) -> Numbers:
    """A size rounded up to a multiple."""
    return _ceiling(size, multiple) * multiple


Array = np.ndarray[Any, Any]


class Clock:
    """The device's time for each of these kernels on a machine.

    allow_tf32, channels_last: see `laws.seconds`.
    """

    def __init__(
        self, kernels: Sequence[Kernel], machine: Machine, allow_tf32: bool | None, channels_last: bool
    ) -> None:
        self.machine = machine
        self.allow_tf32 = allow_tf32
        self.channels_last = channels_last
        self.count = len(kernels)
        alike: dict[tuple[Any, ...], list[int]] = {}
        for number, kernel in enumerate(kernels):
            alike.setdefault(law_of(kernel), []).append(number)
        self._groups = [(np.array(places), _stacked([kernels[n] for n in places])) for places in alike.values()]

    def seconds(self, tier: Tier, constants: Constants | None) -> Array:
        """Of each kernel, with all its launches [s]."""
        device, found = Device(self.machine, constants), np.empty(self.count)
        for places, kernel in self._groups:
            if tier == "ceiling":
                found[places] = device.ceiling(kernel, allow_tf32=self.allow_tf32)
            else:
                found[places] = device.seconds(kernel, allow_tf32=self.allow_tf32, channels_last=self.channels_last)
        return found

    def peaks(self) -> Array:
        """Peak of the units that each kernel's products run on [FLOP/s]; 0 of kernels that multiply nothing."""
        device, found = Device(self.machine), np.zeros(self.count)
        for places, kernel in self._groups:
            if kernel.sizes is not None:
                found[places] = device.units(kernel, self.allow_tf32).peak
        return found


_WORDS = ("backward", "weight", "softmax", "cross_entropy")
"""Words in names of kernels that laws tell apart."""


def law_of(kernel: Kernel) -> tuple[Any, ...]:
    """What decides the law of a kernel beside its numbers: kernels that agree in it can be worked out together."""
    return (kernel.sort, kernel.dtype, kernel.stored, *(word in kernel.name for word in _WORDS))


def _stacked(kernels: list[Kernel]) -> Kernel:
    """One kernel of arrays, with an element for each."""
    flops, read, written, launches = (
        np.array([float(getattr(kernel, name)) for kernel in kernels])
        for name in ("flops", "read", "written", "launches")
    )
    sizes = None
    if kernels[0].sizes is not None:
        columns = zip(*(kernel.sizes for kernel in kernels if kernel.sizes is not None), strict=True)
        sizes = Product(*(np.array(column, float) for column in columns))  # type: ignore[arg-type]
    return kernels[0]._replace(flops=flops, read=read, written=written, launches=launches, sizes=sizes)  # type: ignore[arg-type]
