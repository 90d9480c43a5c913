"""Seconds of one kernel on one machine: a bound from the datasheet, and what kernels typically attain.

Every law works on numbers and, element by element, on NumPy arrays of floats. Seconds never fall when there is more
work or less machine, and two batches never take more than twice as long as one: tiles and waves are rounded up, the
smallest of several such times is again one, and so is the largest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from costmodel.graph.kernel import Kernel, Product
from costmodel.performance.constants import Constants, typical
from costmodel.training.dtypes import BITS

if TYPE_CHECKING:
    from costmodel.hardware.machine import Machine

Tier = Literal["ceiling", "typical", "calibrated"]
"""ceiling: no kernel is faster, from the datasheet alone; typical: constants of the machine's family; calibrated: some
of them measured on the machine."""
Numbers = Any
"""A number, or an array of floats."""

MATRIX_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (16, 128))
VECTOR_TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (32, 32))
"""Rows and columns of the output that one processor computes at a time (CUTLASS, cuBLAS)."""
SPLIT_DEPTH = 256
"""Elements of k below which no tile is cut along k."""
QUERIES_AT_ONCE = 128
"""Queries of one processor's share of fused attention, at most."""
ATTENTION_STEP = 64
"""Queries and keys are rounded up to it in fused attention."""
HEAD_STEP = 32
"""Sizes of heads are rounded up to it in fused attention."""


def larger(a: Numbers, b: Numbers) -> Numbers:
    """The larger of two numbers, or of each two elements."""
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a if a > b else b
    import numpy as np

    return np.maximum(a, b)


def smaller(a: Numbers, b: Numbers) -> Numbers:
    """The smaller of two numbers, or of each two elements."""
    return -larger(-a, -b)


def ceiling_seconds(kernel: Kernel, machine: Machine, *, allow_tf32: bool = True) -> Numbers:
    """Datasheet arithmetic or bytes, whichever takes longer: a lower bound, with nothing for the launch [s]."""
    peak = _peak(kernel, machine, allow_tf32)
    return larger(kernel.flops / peak, (kernel.read + kernel.written) / machine.bandwidth)


def seconds(
    kernel: Kernel,
    machine: Machine,
    tier: Tier = "typical",
    constants: Constants | None = None,
    *,
    allow_tf32: bool | None = None,
    channels_last: bool = False,
) -> Numbers:
    """Time of the device for all launches of a kernel [s]; that of the host is `host_seconds`.

    constants: of the typical tier unless given. allow_tf32: whether fp32 operands may be rounded to tf32 on matrix
    units; None: as PyTorch does by itself, in convolutions only. channels_last: the layout of convolutions' operands.
    """
    tf32 = kernel.sort == "convolution" if allow_tf32 is None else allow_tf32
    bound = ceiling_seconds(kernel, machine, allow_tf32=tf32)
    if tier == "ceiling":
        return bound
    c = constants or typical(machine)
    if kernel.sort == "attention":
        attained = _attention(kernel, machine, c)
    elif kernel.sort in ("product", "convolution"):
        attained = _product(kernel, machine, c, tf32, channels_last)
    else:
        attained = _streaming(kernel, machine, c)
    return larger(bound, c.conditions * attained)


def host_seconds(kernel: Kernel, stack: Literal["eager", "compiled", "cuda-graphs"], c: Constants) -> Numbers:
    """Time of the host to start all launches of a kernel [s]."""
    of = {"eager": c.eager_seconds, "compiled": c.compiled_seconds, "cuda-graphs": c.graph_seconds}
    return kernel.launches * of[stack]


def sustained(machine: Machine, c: Constants, *, matrix: bool) -> float:
    """Clock over the boost clock that the power limit leaves when all units multiply, never below the base clock.

    Power is static + dynamic · (clock / boost)^exponent; it may not exceed the board's.
    """
    peak = _matrix_peak(machine) if matrix else machine.vector_peak()
    watts = (c.product_watts if matrix else c.vector_watts) * peak / 1e12
    share = 1.0
    if machine.tdp:
        left = max(0.1 * machine.tdp, (1 - c.static_power) * machine.tdp - c.static_watts)
        share = min(c.headroom, (left / watts) ** (1 / c.power_exponent))
    if machine.base_clock and machine.boost_clock:
        share = max(share, min(1.0, machine.base_clock / machine.boost_clock))
    return share


def _matrix_peak(machine: Machine) -> float:
    """Peak of 16-bit products, by which power is counted: narrower types take as many watts for more products."""
    given = machine.peak.given
    return max(given.get("fp16") or 0.0, given.get("bf16") or 0.0) or machine.vector_peak()


def _peak(kernel: Kernel, machine: Machine, allow_tf32: bool) -> float:
    """Datasheet peak of a kernel's arithmetic [FLOP/s]; narrow types without units run in the next that has them."""
    if kernel.sort in ("product", "convolution", "attention"):
        dtype = kernel.dtype
        return machine.product_peak(machine.runs_in(dtype) or dtype, allow_tf32)
    return machine.vector_peak()


def _on_matrix_units(kernel: Kernel, machine: Machine, allow_tf32: bool) -> bool:
    """Whether products of a kernel's type have units of their own, apart from vector units."""
    peaks = machine.peak.given
    if machine.runs_in(kernel.dtype) != "fp32":
        return machine.runs_in(kernel.dtype) in peaks
    return "fp32_tensor" in peaks or (allow_tf32 and "tf32" in peaks)


def _rate(kernel: Kernel, machine: Machine, c: Constants, allow_tf32: bool, matrix: bool) -> float:
    """Arithmetic of large products of a kernel's type, sustained [FLOP/s]."""
    share = c.product_share if matrix else c.vector_share
    return _peak(kernel, machine, allow_tf32) * share * sustained(machine, c, matrix=matrix)


def _product(kernel: Kernel, machine: Machine, c: Constants, allow_tf32: bool, channels_last: bool) -> Numbers:
    """Products, and convolutions as implicit ones: the best of several tiles, against the bytes moved.

    NVIDIA, Matrix Multiplication Background User's Guide; Convolutional Layers User's Guide.
    """
    if kernel.sizes is None:
        raise ValueError(f"{kernel.name}: a {kernel.sort} needs its sizes")
    matrix = _on_matrix_units(kernel, machine, allow_tf32)
    rate = _rate(kernel, machine, c, allow_tf32, matrix)
    if kernel.sort == "convolution":
        rate *= c.convolution_share * (1.0 if channels_last or BITS[kernel.dtype] > 16 else c.channels_first)
    compute = kernel.launches * _tiled(kernel.sizes, rate, machine, c, matrix)
    if matrix:
        compute = compute * _alignment(kernel, c)
    bytes_moved = kernel.read + kernel.written
    memory = bytes_moved / (machine.bandwidth * c.bandwidth_share * c.product_stream)
    start = kernel.launches * (c.kernel_seconds + c.product_seconds)
    fused = start + _joined(compute, memory, c.overlap)
    if kernel.sort == "product":
        return fused
    direct = kernel.flops / (machine.vector_peak() * c.direct_share)
    stream = bytes_moved / (machine.bandwidth * c.bandwidth_share * c.direct_stream)
    return smaller(fused, kernel.launches * c.kernel_seconds + larger(direct, stream))


def _tiled(sizes: Product, rate: float, machine: Machine, c: Constants, matrix: bool) -> Numbers:
    """Seconds of a product by the tile that takes the least: in whole waves, or with tiles cut along k to fill all."""
    batch, m, n, k = sizes
    processors = machine.processors or 1
    wanted = c.tile_intensity if matrix else c.vector_tile_intensity
    best: Numbers = None
    for rows, columns in MATRIX_TILES if matrix else VECTOR_TILES:
        share = min(1.0, (rows * columns / (rows + columns) / wanted) ** 0.5)
        tiles = batch * -(-m // rows) * -(-n // columns)
        depth = 2 * rows * columns * processors / (rate * share)
        whole = -(-tiles // processors) * depth * (k + c.tile_fill)
        spread = larger(tiles / processors, smaller(tiles, SPLIT_DEPTH / larger(k, 1)))
        split = spread * depth * (k + c.tile_fill) / c.split_share
        time = smaller(whole, split)
        best = time if best is None else smaller(best, time)
    return best


def _alignment(kernel: Kernel, c: Constants) -> Numbers:
    """How much longer rows take that do not start at multiples of 16 bytes, which matrix units load at a time."""
    assert kernel.sizes is not None
    width = 128 // BITS[kernel.dtype]
    apart = larger(kernel.sizes.n % width, kernel.sizes.k % width)
    return 1 + (c.misaligned - 1) * (apart != 0)


def _joined(compute: Numbers, memory: Numbers, overlap: float) -> Numbers:
    """Both together: the longer one where they overlap perfectly, more where they take about as long."""
    long, short = larger(compute, memory), smaller(compute, memory)
    return long * (1 + (short / larger(long, 1e-30)) ** overlap) ** (1 / overlap)


def _attention(kernel: Kernel, machine: Machine, c: Constants) -> Numbers:
    """Fused attention: blocks of queries and keys over all processors, exponentials beside products.

    Dao 2023; Shah et al. 2024.
    """
    if kernel.sizes is None:
        raise ValueError(f"{kernel.name}: attention needs its sizes")
    batch, queries, keys, size = kernel.sizes
    matrix = _on_matrix_units(kernel, machine, False)
    share = c.attention_share * (c.attention_backward if "backward" in kernel.name else 1.0)
    rate = _peak(kernel, machine, False) * sustained(machine, c, matrix=matrix) * share
    processors = machine.processors or 1
    # Of one query, key and element of a head: less than 4 where a mask leaves out blocks, 10 backward.
    each = kernel.flops / larger(batch * queries * keys * size, 1)
    blocks = batch * -(-queries // QUERIES_AT_ONCE)
    rows = smaller(_rounded(queries, ATTENTION_STEP), QUERIES_AT_ONCE)
    columns = _rounded(keys, ATTENTION_STEP)
    spread = larger(blocks / processors, smaller(blocks, ATTENTION_STEP / larger(columns, 1)))
    waves = smaller(-(-blocks // processors), spread / c.split_share)
    compute = waves * processors * rows * columns * (_rounded(size, HEAD_STEP) + c.softmax_depth) * each / rate
    memory = (kernel.read + kernel.written) / (machine.bandwidth * c.bandwidth_share * c.attention_stream)
    return kernel.launches * (c.kernel_seconds + c.product_seconds) + larger(compute, memory)


def _rounded(size: Numbers, multiple: int) -> Numbers:
    """A size rounded up to a multiple."""
    return -(-size // multiple) * multiple


def _streaming(kernel: Kernel, machine: Machine, c: Constants) -> Numbers:
    """Pointwise, reducing and gathering kernels: bytes from memory, or from the last cache after a start.

    What fits the cache was just written by the kernel before and comes from there; what does not hides the start.
    """
    shares = {
        "pointwise": 1.0,
        "reduction": c.softmax_stream if "softmax" in kernel.name else c.reduction_stream,
        "gather": c.gather_stream,
    }
    moved = kernel.read + kernel.written
    share = c.bandwidth_share * shares[kernel.sort]
    bandwidth = machine.bandwidth * share
    cache = max((level.bandwidth or 0.0 for level in machine.levels), default=0.0) * share
    if not cache > bandwidth:
        cache = bandwidth * (c.cache_speedup if machine.levels else 1.0)
    start = kernel.launches * c.kernel_seconds
    arithmetic = kernel.flops / (machine.vector_peak() * c.pointwise_rate)
    return larger(larger(start + moved / cache, moved / bandwidth), start + arithmetic)
