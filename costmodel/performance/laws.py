"""Seconds of one kernel on one machine: a bound from the datasheet, and what kernels typically attain.

A law is arithmetic on a kernel's numbers and on constants; each is a number or, element by element, a NumPy array of
floats: so one line of code serves a kernel, many kernels, a grid of sizes and the ends of all constants' ranges.
Seconds never fall when there is more work or less machine, and two batches never take more than twice as long as one:
tiles and waves are rounded up, the smallest of several such times is again one, and so is the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from costmodel.graph.kernel import Kernel, Product
from costmodel.hardware.machine import Machine
from costmodel.performance.constants import ATTENTION_SHARES, Constants, family, typical
from costmodel.training.dtypes import BITS, Dtype
from costmodel.training.layout import Layout, Runtime
from costmodel.training.stacks import STACKS, AttentionKernel, Stack

Tier = Literal["ceiling", "typical", "calibrated"]
"""ceiling: no kernel is faster, from the datasheet alone; typical: constants of the machine's family; calibrated: some
of them measured on the machine."""
Numbers = Any
"""A number, or an array of floats."""

MATRIX_TILES = ((256, 128), (128, 256), (128, 192), (192, 128), (128, 128), (128, 64), (64, 128), (64, 64), (16, 128))
VECTOR_TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (32, 32), (1, 128))
"""Rows and columns of the output that one processor computes at a time (CUTLASS, cuBLAS); a single row in products of a
matrix and a vector (gemv), which run on vector units everywhere."""
SEVERAL_ROWS = 16
"""Rows from which a product is one of matrix units, in whole tiles of them."""
SPLIT_DEPTH = 256
"""Elements of k below which no tile is cut along k."""
QUERIES_AT_ONCE = 128
"""Queries of one processor's share of fused attention, at most."""
EXPONENTIALS = 16
"""Exponentials that the special-function units of a processor make in a clock (CUDA C++ Programming Guide, arithmetic
instructions; AMD's compute units have as many)."""
OVERLAPPED: frozenset[AttentionKernel] = frozenset({"flash-3", "cudnn"})
"""Kernels of attention whose exponentials run beside other blocks' products (Shah et al. 2024)."""
LAST_BLOCKS: dict[bool, float] = {False: 0.5, True: 0.15}
"""What the longest block of queries adds at the end, where masks make blocks unequal: about half of it in whatever
order they start, less where the longest start first, as in the kernels that are `OVERLAPPED`. No publication says how
much: of 0 to 0.3 none is far from 38 measured kernels (4.3 to 4.5 % off), nor of 0.15 to 0.7 from 83 others (7.3 to
7.7 %)."""
TILE_GROWTH = 1 / 3
"""Exponent by which the smallest tile that keeps a processor busy grows with its products a clock: 0 if what feeds it
grew as much, 1 if that stayed the same. No publication says: of 0 to 1/2 none is far from 125 measured products (5.2 to
5.5 % off), with 1 those on Hopper are 18 % off."""
ATTENTION_STEP = 64
"""Queries and keys are rounded up to it in fused attention."""
HEAD_STEP = 32
"""Sizes of heads are rounded up to it in fused attention."""
VECTOR_LOAD_BITS = 128
"""Bits that matrix units' operands are loaded by, where rows start at multiples of them."""
COMPOSED_BYTES = {"": (9.0, 3.5), "backward": (34 / 3, 5.0), "backward weight": (2.0, 2.0)}
"""Bytes that RMSNorm moves composed of operators over those of one kernel, of operands of 16 bits and of fp32: a cast,
a square, its mean, two products and a cast, and their gradients (``rms_norm`` of PyTorch 2.4 to 2.8). PyTorch's pull
request 153666 measures forward 9 times as long."""
COMPOSED_LOSS_BYTES = {("fp32", False): 8.0, ("fp32", True): 1.0, ("", False): 38 / 6, ("", True): 14 / 6}
"""Bytes that Megatron's loss of split logits moves composed of operators over those of one kernel each way, of logits
in fp32 or 16 bits, by whether it is of the backward pass: a cast, a maximum, a difference, exponentials, a sum and a
quotient, all in fp32; a product, and a cast back (``VocabParallelCrossEntropy``)."""
COMPOSED_LAUNCHES = 7
"""Kernels that each of these is composed of, at least."""
FUSED_LOSS_BYTES = {("reduction", False): 1 / 2, ("gather", True): 0.0, ("reduction", True): 2 / 3}
"""Bytes that one kernel of cross-entropy moves over those of operators, by sort and whether it is of the backward pass:
logits are read, and neither a log-softmax is written nor zeros for its gradient; backward reads logits once more and
writes their gradient (Apex and FlashAttention, csrc/xentropy)."""
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
BELOW_BASE = 0.9
"""Of the base clock, which is for usual loads: products of 8 bits hold an H100 of 700 W at 1.48 of 1.59 GHz (0.71 of
their peak: Bekman, Machine Learning Engineering)."""
ADDED = "added up"
"""In names of products that add to what is in memory already, as to gradients of all micro-batches."""
OF_EXPERTS = "expert_linear"
"""In names of products of several experts at once."""
TURNED = "turned"
"""In names of casts to 8 bits that write a transposed copy too, since units of most machines take operands along k
alone; those of Blackwell for data centres take both as they are (Transformer Engine, ``non_tn_fp8_gemm_supported``)."""
MOST_KNOWN = 10_000
"""Kernels whose seconds a model keeps."""
ALONE = Layout()
"""Of one device."""
TINY = 1e-30
"""Instead of a denominator of 0 [s]."""


class Units(NamedTuple):
    """What multiplies matrices of a type, and whether it is matrix units.

    peak: of the datasheet; attained: as frameworks accumulate; sustained: at the clock that the power limit leaves;
    rate: of large products [FLOP/s]. watts: dynamic power of products at the boost clock [W per TFLOP/s].
    """

    matrix: bool
    peak: float
    attained: float
    sustained: Numbers
    rate: Numbers
    watts: Numbers


_NEWER = ("ampere", "ada", "hopper", "blackwell")
_OLDER = ("kepler", "maxwell", "pascal", "volta", "turing")
"""NVIDIA's generations with and without the instructions that FlashAttention needs."""


def attention_kernel(machine: Machine, stack: Stack, runtime: Runtime = "torch") -> AttentionKernel:
    """Which kernel fused attention of 16 bits is: the stack's where the machine has it, else its framework's choice.

    PyTorch takes FlashAttention-2 from Ampere on, and cuDNN's on Hopper and Blackwell for data centres from 2.11 on
    (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp); the constants of Hopper are of earlier ones. Transformer
    Engine, which Megatron-Core runs, takes cuDNN's there (NVIDIA/NeMo, memory optimizations).
    """
    exact = next(family(machine))
    if (generation := machine.architecture.lower()) in _OLDER:
        return "efficient"
    if generation not in _NEWER:
        return "fused"
    warp_groups = exact in ("hopper", "blackwell")
    choice = stack.attention
    if choice is None or choice == "fused":
        return "cudnn" if exact == "blackwell" or (warp_groups and runtime == "megatron") else "flash-2"
    if choice in OVERLAPPED and not warp_groups:
        return "flash-2"
    return "cudnn" if choice == "flash-3" and exact == "blackwell" else choice


class Started(Protocol):
    """A task as the host starts it."""

    def starts(self, recorded: Sequence[str]) -> tuple[int, int, int]:
        """Launches by themselves, in loops and in graphs."""
        ...


class KernelModel:
    """How long kernels take on a machine.

    constants: those of the machine's family unless given; of arrays, each of one shape, times are arrays of that shape.
    stack: what starts kernels. tier: see `Tier`. allow_tf32: whether fp32 operands may be rounded to tf32 on matrix
    units; None: as PyTorch does by itself, in convolutions only. channels_last: the layout of convolutions' operands,
    if the stack does not set it. launch_seconds: of the host to start one kernel; start_seconds: that,
    one more in a loop, and one that is recorded, see `Task.starts`. layout: whose runtime decides the kernel of fused
    attention, `attention`, and whose layers what the host takes to start a kernel.
    """

    def __init__(
        self,
        machine: Machine,
        constants: Constants | None = None,
        *,
        stack: Stack = STACKS["eager"],
        tier: Tier = "typical",
        allow_tf32: bool | None = None,
        channels_last: bool = False,
        layout: Layout = ALONE,
    ) -> None:
        self.machine = machine
        self.constants = c = constants or typical(machine)
        self.tier: Tier = tier
        self.allow_tf32 = allow_tf32
        self.channels_last = channels_last or stack.channels_last
        self.launch_seconds: Numbers = 0.0 if tier == "ceiling" else stack.launch_seconds(c, layout.megatron)
        less = (np.minimum(self.launch_seconds, seconds) for seconds in (c.eager_seconds, c.graph_seconds))
        self.start_seconds: tuple[Numbers, ...] = self.launch_seconds, *less
        self.processors = machine.processors or 1
        self.vector_peak = machine.vector_peak()
        self.bandwidth = machine.bandwidth * c.bandwidth_share
        known = max((level.bandwidth or 0.0 for level in machine.levels), default=0.0) * c.bandwidth_share
        likely = self.bandwidth * (c.cache_speedup if machine.levels else 1.0)
        self.cache = np.where(known > self.bandwidth, known, likely)[()]
        self._clocks = (machine.processors or 0) * (machine.boost_clock or 0.0)
        self._exponentials = EXPONENTIALS * self._clocks or self.vector_peak / EXPONENTIALS
        self._conditions = c.conditions * (c.compiled_conditions if stack.fuses else 1.0)
        self.stack = stack
        self.attention: AttentionKernel = attention_kernel(machine, stack, layout.runtime)
        self.known_seconds: dict[Kernel, Numbers] = {}
        self._units: dict[tuple[Dtype, bool], Units] = {}
        self._vector_tiles = self._depths(VECTOR_TILES, c.vector_tile_intensity)

    def kernel_time(self, kernel: Kernel) -> Numbers:
        """Time of the device for all launches of a kernel [s]."""
        if self.tier == "ceiling":
            return self.ceiling_time(kernel)
        if kernel.sort == "attention":
            attained = self._attention(kernel)
        elif kernel.sort in ("product", "convolution"):
            attained = self._product(kernel, self.units(kernel))
        else:
            attained = self._streaming(kernel)
        # Where the host waits for each kernel before it starts the next, the device has nothing to do meanwhile.
        started = kernel.launches * self.launch_seconds if self.stack.blocking else 0.0
        return np.maximum(self.ceiling_time(kernel), self._conditions * attained) + started

    def host_time(self, task: Started) -> Numbers:
        """Of the host to start a task's kernel once [s]."""
        starts = zip(task.starts(self.stack.recorded), self.start_seconds, strict=True)
        return sum(many * seconds for many, seconds in starts)

    def ceiling_time(self, kernel: Kernel) -> Numbers:
        """Datasheet arithmetic or bytes, whichever takes longer: a lower bound, with nothing for the launch [s]."""
        moved = (kernel.read + kernel.written) / self.machine.bandwidth
        return np.maximum(kernel.flops / self.peak(kernel), min(1.0, self._composition(kernel)[0]) * moved)

    def peak(self, kernel: Kernel) -> float:
        """What the units that a kernel runs on do at most, by the datasheet [FLOP/s]."""
        if kernel.sort in ("product", "convolution", "attention"):
            return self.units(kernel).peak
        return self.vector_peak

    def units_in_words(self, kernel: Kernel) -> str:
        """What the units that a kernel runs on do: products of a type, or arithmetic of vectors."""
        if kernel.sort not in ("product", "convolution", "attention"):
            return "vectors"
        dtype = self.machine.runs_in(kernel.dtype) or kernel.dtype
        rounded = dtype == "fp32" and self.peak(kernel) > self.machine.product_peak(dtype)
        return f"{'tf32' if rounded else dtype} products"

    def clock(self, watts: Numbers) -> Numbers:
        """Clock over the boost clock that the power limit leaves, never far below the base clock.

        watts: dynamic power at the boost clock. Power is static + dynamic · (clock / boost)^exponent, and may not
        exceed what the board is let draw. What is static is the board's, whatever that limit, and no base clock holds
        below its TDP. Figures that were measured are at the clock that the machine sustains.
        """
        c, machine = self.constants, self.machine
        if machine.measured:
            return 1.0
        share: Numbers = 1.0
        if machine.tdp:
            limit = machine.power_limit or c.power_limit * machine.tdp
            left = np.maximum(0.1 * machine.tdp, limit - c.static_power * machine.tdp - c.static_watts)
            share = np.minimum(c.headroom, (left / watts) ** (1 / c.power_exponent))
        if machine.base_clock and machine.boost_clock and machine.power_limit is None:
            share = np.maximum(share, min(1.0, BELOW_BASE * machine.base_clock / machine.boost_clock))
        return share

    @property
    def waiting_watts(self) -> Numbers:
        """Power of the board while its clocks are up and nothing runs [W]. None: its limit is not known."""
        machine, c = self.machine, self.constants
        if machine.tdp is None:
            return None
        return np.minimum(machine.power_limit or machine.tdp, c.static_power * machine.tdp + c.static_watts)

    def kernel_joules(self, kernel: Kernel, seconds: Numbers) -> Numbers:
        """Energy of a kernel that takes so long: of what follows no work, its arithmetic and its bytes [J].

        Power is the board's limit at most, which clocks are lowered for. Raises TypeError if it is not known.
        """
        c = self.constants
        units = self.units(kernel) if kernel.sizes is not None else None
        watts = c.vector_watts if units is None else units.watts
        # Of a lower clock each operation takes less: power falls as the clock to `power_exponent`.
        slowed = self.clock(watts * units.attained / 1e12) ** (c.power_exponent - 1) if units is not None else 1.0
        work = kernel.flops * watts * np.minimum(1.0, slowed) + (kernel.read + kernel.written) * c.byte_watts
        return np.minimum(self.machine.most_watts * seconds, self.waiting_watts * seconds + work / 1e12)

    def units(self, kernel: Kernel) -> Units:
        """What multiplies the operands of a kernel; narrow types without units run in the next that has them."""
        tf32 = kernel.sort == "convolution" if self.allow_tf32 is None else self.allow_tf32
        return self.units_of(kernel.dtype, tf32)

    def units_of(self, dtype: Dtype, tf32: bool = False) -> Units:
        """The same for operands of a type; tf32: whether fp32 may be rounded to it."""
        if (dtype, tf32) not in self._units:
            machine, c = self.machine, self.constants
            runs_in = machine.runs_in(dtype) or dtype
            named = ("fp32_tensor", "tf32") if tf32 else ("fp32_tensor",)
            matrix = any(name in machine.peak.rates for name in (named if runs_in == "fp32" else (runs_in,)))
            peak = attained = machine.product_peak(runs_in, tf32)
            if runs_in in ("fp16", "bf16") and not matrix:
                # Libraries accumulate in fp32, at whose rate vector units then work.
                attained = min(peak, self.vector_peak)
            # Products of twice the bits take twice the energy, those of fewer than 16 somewhat more than their share.
            watts = c.product_watts * c.sustained_watts * POWER_BITS[runs_in] / 16 if matrix else c.vector_watts
            if POWER_BITS[runs_in] < 16:
                watts = watts * c.narrow_watts
            sustained = attained * self.clock(watts * attained / 1e12)
            share = c.product_share if matrix else c.vector_share
            self._units[dtype, tf32] = Units(matrix, peak, attained, sustained, sustained * share, watts)
        return self._units[dtype, tf32]

    def _depths(self, tiles: tuple[tuple[int, int], ...], wanted: Numbers) -> list[tuple[int, int, Numbers]]:
        """Rows and columns of each tile, and the work of a processor on one element of k, slower for small tiles.

        An operand's element is used as often as the tile is wide; m·n/(m+n) is what each that is loaded serves.
        """
        shares = [np.minimum(1.0, (rows * columns / (rows + columns) / wanted) ** 0.5) for rows, columns in tiles]
        return [
            (rows, columns, 2 * rows * columns * self.processors / share)
            for (rows, columns), share in zip(tiles, shares, strict=True)
        ]

    def _product(self, kernel: Kernel, units: Units) -> Numbers:
        """Products, and convolutions as implicit ones: the best of several tiles, against the bytes moved.

        NVIDIA, Matrix Multiplication Background User's Guide; Convolutional Layers User's Guide.
        """
        c, sizes = self.constants, _sizes(kernel)
        rate, implicit = units.rate, kernel.sort == "convolution"
        if OF_EXPERTS in kernel.name:
            rate = rate * c.expert_share
        windows = _windows(kernel) if implicit else 0.0
        if implicit:
            addresses = 1 + windows * c.address_share * self._pace(units) / 1024
            rate = rate * (c.convolution_share / addresses if units.matrix else c.vector_convolution_share)
        tiles = self._vector_tiles
        if units.matrix:
            # Processors that do more products a clock are fed from larger tiles; operands of fewer bits take less.
            pace = self._pace(units) * POWER_BITS[self.machine.runs_in(kernel.dtype) or kernel.dtype] / 16 / 2048
            tiles = self._depths(MATRIX_TILES, c.tile_intensity * pace**TILE_GROWTH)
        compute = kernel.launches * self._tiled(sizes, tiles) / rate
        on_vectors: Numbers = 0.0
        if units.matrix and not implicit:
            vector = self.vector_peak * c.vector_share * self.clock(c.vector_watts * self.vector_peak / 1e12)
            on_vectors = kernel.launches * self._tiled(sizes, self._vector_tiles) / vector
            compute = np.minimum(compute, on_vectors)
        moved = kernel.read + kernel.written
        if units.matrix:
            compute = self._uneven(kernel, compute, moved / self.bandwidth)
            if self.stack.unaligned == "vectors":
                compute = np.maximum(compute, (sizes.batch > 1) * self._unaligned(kernel) * on_vectors)
        unpacked = {8: c.unpack8, 4: c.unpack4}.get(BITS[kernel.stored], 1.0) if kernel.stored else 1.0
        weights = moved * sizes.k * sizes.n / np.maximum(sizes.m * (sizes.k + sizes.n) + sizes.k * sizes.n, 1)
        several = np.minimum(np.maximum(sizes.m - 1, 0) / (SEVERAL_ROWS - 1), 1)
        streamed = moved / c.row_stream + weights * several * (1 / c.product_stream - 1 / c.row_stream)
        memory = streamed / (self.bandwidth * unpacked)
        if kernel.stored and self._clocks:
            packed = kernel.launches * sizes.batch * sizes.k * sizes.n
            memory = np.maximum(memory, packed / (c.unpacked_weights * self._clocks))
        long, short = np.maximum(compute, memory), np.minimum(compute, memory)
        # Both overlap perfectly where one is much the longer, and less where they take about as long.
        joined = long * (1 + (short / np.maximum(long, TINY)) ** c.overlap) ** (1 / c.overlap)
        if ADDED in kernel.name and self.stack.linears == "plain":  # a kernel of its own reads both and writes the sum
            joined = joined + kernel.launches * c.kernel_seconds + 3 * kernel.written / self.bandwidth
        elif ADDED in kernel.name:  # what a product adds to is read after the last step along k, in the way of the end
            joined = joined + c.added_share * kernel.written / self.bandwidth
        start = kernel.launches * c.kernel_seconds
        product = start + kernel.launches * c.product_seconds + joined
        if not implicit:
            return product
        sums_images = "weight" in kernel.name
        if units.matrix and not self.channels_last:
            # Operands are transposed before and the result after, by kernels of their own that read and write them;
            # what is a product as it stands is one of each image, but for the gradient that sums over images.
            transposes = 2 * start + 2 * moved / (self.bandwidth * c.transpose_stream)
            product = product + (1.0 if sums_images else windows) * transposes
        arithmetic = kernel.flops / (self.vector_peak * c.direct_share)
        direct = np.maximum(arithmetic, moved / (self.bandwidth * c.direct_stream))
        if sums_images:
            direct = direct / c.direct_weight
        return np.minimum(product, start + direct)

    def _unaligned(self, kernel: Kernel, bits: int = VECTOR_LOAD_BITS) -> Numbers:
        """Whether rows start elsewhere than at multiples of so many bits; those of a weight's gradient lie along it."""
        sizes, width = _sizes(kernel), bits // BITS[kernel.dtype]
        other = sizes.m if "weight" in kernel.name else sizes.k
        return (_rounded(sizes.n, width) > sizes.n) | (_rounded(other, width) > other)

    def _uneven(self, kernel: Kernel, compute: Numbers, streamed: Numbers) -> Numbers:
        """Longer where rows do not start at multiples of a load.

        streamed: what its bytes take. A compiler copies operands into rows that do, where that is faster (inductor's
        shape_padding); a convolution's library does so itself.
        """
        c = self.constants
        longer = compute * (1 + (c.misaligned - 1) * self._unaligned(kernel))
        if kernel.sort == "convolution":
            return longer
        if BITS[kernel.dtype] == 16:
            longer = np.maximum(longer, compute * (1 + (c.odd_rows - 1) * self._unaligned(kernel, 32)))
        padded = compute + 2 * (streamed + kernel.launches * c.kernel_seconds)
        return np.minimum(longer, padded) if self.stack.fuses else longer

    def _pace(self, units: Units) -> float:
        """FLOPs a clock of one processor; as of an A100 where the machine does not say."""
        return units.peak / self._clocks if self._clocks else 2048.0

    def _tiled(self, sizes: Product, tiles: list[tuple[int, int, Numbers]]) -> Numbers:
        """FLOPs of a product by the tile that takes the least, padding and idle processors among them.

        In whole waves of tiles over the processors, or with tiles cut along k so that all are busy, at some loss.
        """
        batch, m, n, k = sizes
        c, processors = self.constants, self.processors
        deepest = SPLIT_DEPTH / np.maximum(k, 1)
        down = {rows: batch * _ceiling(m, rows) for rows in (256, 192, 128, 64, 32, 16, 1)}
        across = {columns: _ceiling(n, columns) for columns in (256, 192, 128, 64, 32)}
        best: Numbers = None
        for rows, columns, depth in tiles:
            count = down[rows] * across[columns]
            spread = np.maximum(count / processors, np.minimum(count, deepest))
            waves = np.minimum(_ceiling(count, processors), spread / c.split_share) * depth
            best = waves if best is None else np.minimum(best, waves)
        return best * (k + c.tile_fill)

    def _attention(self, kernel: Kernel) -> Numbers:
        """Fused attention: blocks of queries over all processors, whose products and exponentials add up.

        Masks leave out blocks of keys; those on a mask's edge are worked on as a whole. Queries are read before the
        first product of a block and outputs written after the last, which other blocks hide in part.
        """
        c, units = self.constants, self.units_of(kernel.dtype)
        batch, queries, keys, size = _sizes(kernel)
        named, backward = self.attention_of(kernel), "backward" in kernel.name
        overlapped = named in OVERLAPPED
        slower = (c.overlapped_backward if overlapped else c.attention_backward) if backward else 1.0
        rate = getattr(c, ATTENTION_SHARES[named]) * slower * units.attained
        products = 10 if backward else 4  # of a query, a key and an element of a head
        seen = kernel.flops / np.maximum(kernel.launches * batch * queries * keys * (products * size + 6), 1)
        blocks = batch * _ceiling(queries, QUERIES_AT_ONCE)
        rows = np.minimum(_rounded(queries, ATTENTION_STEP), QUERIES_AT_ONCE)
        columns = _rounded(keys, ATTENTION_STEP)
        mean = np.minimum(columns, np.minimum(seen, 1.0) * columns + ATTENTION_STEP)
        longest = np.minimum(columns, 2 * mean)
        exponentials = c.overlapped_exponentials if overlapped else c.exponential_share
        elements = products * _rounded(size, HEAD_STEP)
        pair = elements / rate + exponentials / self._exponentials
        watts = (1.0 if overlapped else c.attention_watts) * units.watts * elements / np.maximum(pair, TINY)
        pair = pair / self.clock(watts / 1e12)
        filled = blocks / self.processors
        whole = np.maximum(
            longest,
            np.minimum(_ceiling(blocks, self.processors) * longest, filled * mean + LAST_BLOCKS[overlapped] * longest),
        )
        spread = np.maximum(filled, np.minimum(blocks, ATTENTION_STEP / np.maximum(columns, 1))) * mean
        compute = kernel.launches * np.minimum(whole, spread / c.split_share) * self.processors * rows * pair
        ends = (1 if backward else 2) * kernel.written / self.bandwidth
        memory = (kernel.read + kernel.written) / (self.bandwidth * c.attention_stream)
        start = kernel.launches * (c.kernel_seconds + c.product_seconds)
        return start + np.maximum(compute + c.attention_ends * ends, memory)

    def attention_of(self, kernel: Kernel) -> AttentionKernel:
        """Which kernel of fused attention a kernel is; PyTorch's flash attention takes 16 bits alone."""
        if self.attention == "fused" or (self.stack.attention is not None and BITS[kernel.dtype] <= 16):
            return self.attention
        return "efficient" if "efficient" in kernel.name or BITS[kernel.dtype] > 16 else self.attention

    def _streaming(self, kernel: Kernel) -> Numbers:
        """Pointwise, reducing and gathering kernels: bytes from memory, or from the last cache after a start.

        What fits the cache was just written by the kernel before and comes from there; what does not hides the start.
        """
        c, share = self.constants, 1.0
        if kernel.sort == "reduction":
            exponential = "softmax" in kernel.name or "cross_entropy" in kernel.name
            share = c.softmax_stream if exponential else c.reduction_stream
        elif kernel.sort == "gather":
            share = c.gather_stream
        bytes_over, launches_over = self._composition(kernel)
        moved = bytes_over * (kernel.read + kernel.written) / share
        start = launches_over * kernel.launches * c.kernel_seconds
        arithmetic = kernel.flops / (self.vector_peak * c.pointwise_rate)
        own = np.maximum(start + np.maximum(moved / self.cache, arithmetic), moved / self.bandwidth)
        return own + self._logged(kernel)

    def _logged(self, kernel: Kernel) -> Numbers:
        """Of cross-entropies for the log, which come after that of the loss: a cast to fp32, and a log-softmax."""
        if not self.stack.logged or not _is_cross_entropy(kernel) or _role(kernel) != ("reduction", False):
            return 0.0
        c, raised = self.constants, 32 / BITS[kernel.dtype]
        softmax = raised * (kernel.read + kernel.written) / c.softmax_stream
        cast = kernel.read + raised * kernel.written if raised > 1 else 0.0
        launches = 1 + (raised > 1)
        return self.stack.logged * (launches * kernel.launches * c.kernel_seconds + (cast + softmax) / self.bandwidth)

    def _composition(self, kernel: Kernel) -> tuple[float, int]:
        """Bytes and launches over those of a kernel: of operators that it is composed of on this stack, or without a
        copy that this machine does not need."""
        if self.stack.loss == "fused" and _is_cross_entropy(kernel):
            return FUSED_LOSS_BYTES.get(_role(kernel), 1.0), 1
        if self.stack.loss == "composed" and kernel.name.startswith("vocab_parallel_cross_entropy"):
            wide = "fp32" if kernel.dtype == "fp32" else ""
            return COMPOSED_LOSS_BYTES[wide, "backward" in kernel.name], COMPOSED_LAUNCHES
        if TURNED in kernel.name and next(family(self.machine)) == "blackwell":
            bits = BITS[kernel.dtype]
            return (bits + 8) / (bits + 2 * 8), 1
        if self.stack.norms == "fused" or self.stack.fuses or not kernel.name.startswith("rmsnorm"):
            return 1.0, 1
        narrow, wide = COMPOSED_BYTES[kernel.name.removeprefix("rmsnorm").strip()]
        return narrow if BITS[kernel.dtype] < 32 else wide, COMPOSED_LAUNCHES

    def __repr__(self) -> str:
        return f"<KernelModel of {self.machine.name}: {self.tier}>"


def _sizes(kernel: Kernel) -> Product:
    if kernel.sizes is None:
        raise ValueError(f"{kernel.name}: a kernel of sort {kernel.sort} needs its sizes")
    return kernel.sizes


def _is_cross_entropy(kernel: Kernel) -> bool:
    """Whether a kernel is of the loss that logits and classes have; that of split logits is one kernel anyway."""
    return kernel.name.partition(" ")[0] == "cross_entropy"


def _role(kernel: Kernel) -> tuple[str, bool]:
    """Sort of a kernel, and whether it is of the backward pass."""
    return kernel.sort, "backward" in kernel.name


def _windows(kernel: Kernel) -> Numbers:
    """1 of a convolution whose windows are of several elements or skip some, 0 of one that is a product as it stands.

    Windows that overlap are read less often than the rows of a product are long; of those that skip, more is there.
    """
    batch, m, n, k = _sizes(kernel)
    apart = 8 / BITS[kernel.dtype] * (kernel.read + kernel.written)
    elements = kernel.launches * batch * (m * k + k * n + m * n)
    return 1.0 * ((apart > 1.001 * elements) | (elements > 1.001 * apart))


def _ceiling(size: Numbers, by: int) -> Numbers:
    """The quotient, rounded up; of floats exact below 2^53, where NumPy divides 20 times as fast as it floors."""
    return np.ceil(size / by)


def _rounded(size: Numbers, multiple: int) -> Numbers:
    """A size rounded up to a multiple."""
    return _ceiling(size, multiple) * multiple


_WORDS = (
    "backward",
    "weight",
    "vocab_parallel",
    "softmax",
    "cross_entropy",
    "efficient",
    "rmsnorm",
    ADDED,
    TURNED,
    OF_EXPERTS,
)
"""Words in names of kernels that laws tell apart."""


def law_of(kernel: Kernel) -> tuple[Any, ...]:
    """What decides the law of a kernel beside its numbers: kernels that agree in it can be worked out together."""
    words = (word in kernel.name for word in _WORDS)
    return (kernel.sort, kernel.dtype, kernel.stored, _is_cross_entropy(kernel), *words)


def with_numbers(kernel: Kernel, number: Callable[[Any], Any]) -> Kernel:
    """A kernel of the same law; number: gives what takes the place of each of its numbers."""
    flops, read, written, launches = map(number, (kernel.flops, kernel.read, kernel.written, kernel.launches))
    sizes = None if kernel.sizes is None else Product(*map(number, kernel.sizes))
    return kernel._replace(flops=flops, read=read, written=written, launches=launches, sizes=sizes)


class KernelTable:
    """Many kernels [K], those of one law in columns of numbers [k, 1], so that a model takes all of them at once.

    numbers: of each kernel flops, read, written, and sizes in place of its own, of several steps [K, 7, steps].
    """

    def __init__(self, kernels: Sequence[Kernel], numbers: Numbers = None) -> None:
        self.kernels = kernels
        alike: dict[tuple[Any, ...], list[int]] = {}
        for number, kernel in enumerate(kernels):
            alike.setdefault(law_of(kernel), []).append(number)
        self._laws = [
            (np.array(places), _columns([kernels[n] for n in places], None if numbers is None else numbers[places]))
            for places in alike.values()
        ]

    def seconds(self, model: KernelModel) -> Numbers:
        """Of each kernel, with all its launches [K, 1], in as many columns as steps or the model's constants have."""
        laws = [(places, model.kernel_time(kernel)) for places, kernel in self._laws]
        times = np.empty((len(self.kernels), max((seconds.shape[1] for _, seconds in laws), default=1)))
        for places, seconds in laws:
            times[places] = seconds
        return times

    def times(self, model: KernelModel) -> list[Numbers]:
        """Seconds of each kernel, with all its launches; arrays if the model's constants are arrays."""
        times = self.seconds(model)
        return times.ravel().tolist() if times.shape[1] == 1 else list(times)


class SharedKernels:
    """Kernels of which several tables have many in common, as stages of a pipeline do: a model takes each once."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self.kernels = kernels

    def times(self, model: KernelModel) -> list[Numbers]:
        """As those of a `KernelTable`."""
        known = model.known_seconds
        if len(known) > MOST_KNOWN:
            known.clear()
        if others := [kernel for kernel in dict.fromkeys(self.kernels) if kernel not in known]:
            known.update(zip(others, KernelTable(others).times(model), strict=True))
        return [known[kernel] for kernel in self.kernels]


def _columns(kernels: Sequence[Kernel], numbers: Numbers) -> Kernel:
    """Kernels of one law as one whose numbers are columns, see `KernelTable`."""
    rows = [(k.flops, k.read, k.written, k.launches, *(k.sizes or ())) for k in kernels]
    columns = [*np.array(rows, float).T[..., None]]
    if numbers is not None:
        flops, read, written, *sizes = np.moveaxis(np.asarray(numbers, float), 1, 0)
        columns = [flops, read, written, columns[3], *sizes]
    each = iter(columns)
    return with_numbers(kernels[0], lambda _: next(each))
