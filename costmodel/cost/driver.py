"""What CUDA and NCCL take of a device beside the memory of tensors."""

from __future__ import annotations

from typing import NamedTuple, Self

from costmodel.display.units import show_bytes

CONTEXT = (256 * 2**20, 1573 * 2**20)
"""What CUDA's context takes of a device with the kernels that are loaded [bytes]: the least is unconfirmed, of kernels
loaded as they are first run (CUDA 12.2 and later); the most with all of them (bigscience, tr11-176B-ml,
chronicles-prequel.md, of an A100)."""
BUFFER, LL_BUFFER, LL128_BUFFER = 4 * 2**20, 8 * 512 * 8 * 16, 120 * 640 * 8 * 8
"""NCCL's buffers of one connection by its protocols [bytes]: ``NCCL_BUFFSIZE``, ``NCCL_LL_BUFF_SIZE`` and
``NCCL_LL128_BUFF_SIZE`` (its documentation of environment variables, src/include/device.h)."""
CHANNELS = (2, 32)
"""Channels of one group of ranks, the least and the most."""


class DriverMemory(NamedTuple):
    """What CUDA and NCCL take of a device beside all tensors, the least and the most [bytes], for so many groups.

    No peak has this memory in it. A group of ranks has one connection of the first protocol a channel at least, and of
    all three with two neighbours, around a ring and up a tree, at most.
    """

    low: int
    high: int
    groups: int

    @classmethod
    def of(cls, groups: int) -> Self:
        """With so many groups of ranks that talk."""
        low, high = CHANNELS[0] * BUFFER, CHANNELS[1] * 2 * (BUFFER + LL_BUFFER + LL128_BUFFER)
        return cls(CONTEXT[0] + groups * low, CONTEXT[1] + groups * high, groups)

    def __str__(self) -> str:
        return (
            f"{show_bytes(self.low)} to {show_bytes(self.high)} of CUDA's context and NCCL's buffers (groups of "
            f"ranks: {self.groups}), in no peak: leave room for them (reserve)"
        )
