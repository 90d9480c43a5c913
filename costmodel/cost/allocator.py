"""What an allocator takes for a tensor, and PyTorch's CUDA caching allocator replayed.

Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp (``round_size``, ``get_allocation_size``, ``should_split``,
``free_block``), with its default settings.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import NamedTuple

from costmodel.symbolic.sizes import ceil_div
from costmodel.training.settings import Allocator

MEBIBYTE = 2**20
GRANULARITY = 512
"""Every block is a multiple of it [bytes]."""
LARGEST_SMALL = MEBIBYTE
"""Tensors up to this size share segments of `SMALL_SEGMENT`; larger ones never lie in those [bytes]."""
SMALL_SEGMENT = 2 * MEBIBYTE
SHARED_SEGMENT = 20 * MEBIBYTE
LEAST_OWN = 10 * MEBIBYTE
"""Tensors from this size on get a segment that is rounded up to `OWN_STEP`; smaller ones share a larger one [bytes]."""
OWN_STEP = 2 * MEBIBYTE

exactly: Callable[[int], int] = operator.pos
"""The size itself [bytes]; every allocation's is asked for, and an operator is the quickest to ask."""


def in_blocks(size: int) -> int:
    """The size of the block that holds so many bytes [bytes]."""
    return GRANULARITY * ceil_div(size, GRANULARITY) if size else size


ALLOTTED: dict[Allocator, Callable[[int], int]] = {"exact": exactly, "cuda": in_blocks}
"""What each allocator takes for a tensor."""


class MemoryBlock(NamedTuple):
    """A stretch of a segment: in the order in which free ones are tried, smallest first, then by address."""

    size: int
    address: int


class CachingAllocator:
    """Replays takes and returns. `reserved`: bytes of segments taken from the device, which are never given back."""

    def __init__(self) -> None:
        self.reserved = self._next = 0
        self._free: dict[bool, list[MemoryBlock]] = {True: [], False: []}
        self._starts: dict[int, MemoryBlock] = {}
        self._ends: dict[int, MemoryBlock] = {}

    def take(self, size: int) -> MemoryBlock:
        """A block for so many bytes: the smallest free one that is large enough, or one of a new segment."""
        wanted = in_blocks(size)
        small = wanted <= LARGEST_SMALL
        free = self._free[small]
        place = bisect_left(free, MemoryBlock(wanted, 0))
        block = self._out(free[place], small) if place < len(free) else self._segment(wanted)
        rest = block.size - wanted
        if rest >= GRANULARITY if small else rest > LARGEST_SMALL:
            self._in(MemoryBlock(rest, block.address + wanted), small)
            return MemoryBlock(wanted, block.address)
        return block

    def give_back(self, block: MemoryBlock, size: int) -> None:
        """Free a block that was taken for `size` bytes, joined with free neighbours in its segment."""
        small = in_blocks(size) <= LARGEST_SMALL
        if before := self._ends.get(block.address):
            block = MemoryBlock(before.size + block.size, self._out(before, small).address)
        if after := self._starts.get(block.address + block.size):
            block = MemoryBlock(block.size + self._out(after, small).size, block.address)
        self._in(block, small)

    def _segment(self, wanted: int) -> MemoryBlock:
        """New memory from the device; addresses leave a gap, so that segments never join."""
        size = SMALL_SEGMENT if wanted <= LARGEST_SMALL else SHARED_SEGMENT
        if wanted >= LEAST_OWN:
            size = OWN_STEP * ceil_div(wanted, OWN_STEP)
        self.reserved += size
        address, self._next = self._next, self._next + size + GRANULARITY
        return MemoryBlock(size, address)

    def _in(self, block: MemoryBlock, small: bool) -> None:
        insort(self._free[small], block)
        self._starts[block.address] = self._ends[block.address + block.size] = block

    def _out(self, block: MemoryBlock, small: bool) -> MemoryBlock:
        free = self._free[small]
        del free[bisect_left(free, block)], self._starts[block.address], self._ends[block.address + block.size]
        return block


def segment_bytes(persistent: Sequence[tuple[int, int]], lives: Sequence[tuple[int, int, int]]) -> int:
    """Bytes of segments for `persistent`, (size, how many), and then for `lives`: (size, first and last moment)."""
    allocator = CachingAllocator()
    for size, times in persistent:
        for _ in range(times if size else 0):
            allocator.take(size)
    ends: dict[int, list[tuple[MemoryBlock, int]]] = {}
    done = 0
    for size, born, died in sorted((life for life in lives if life[0]), key=lambda life: life[1]):
        for moment in range(done, born):
            for block, taken in ends.pop(moment, ()):
                allocator.give_back(block, taken)
        done = max(done, born)
        ends.setdefault(died, []).append((allocator.take(size), size))
    return allocator.reserved
