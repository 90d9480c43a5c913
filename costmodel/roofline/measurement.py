"""Measuring programs: the real calls of each, in memory of its own, timed by the protocol."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from costmodel.display.units import show_bytes
from costmodel.errors import CostModelError
from costmodel.roofline.arena import aligned
from costmodel.roofline.machine import require
from costmodel.roofline.operation import Thunk
from costmodel.roofline.placement import Placement, place
from costmodel.roofline.program import Program
from costmodel.roofline.timing import Protocol, Statistic, Timing, time_calls

Run = Callable[[], None]


def measure(
    programs: Sequence[Program],
    *,
    reuse_bytes: int = 0,
    protocol: Protocol | None = None,
    statistic: Statistic = "minimum",
    progress: Callable[[float], None] | None = None,
) -> list[Timing]:
    """Time programs, rounds interleaved over all of them.

    reuse_bytes: 0 for warm, each run right after the last one; otherwise cold: as many copies of the program's memory
    take turns as it takes for so many bytes to be touched between two uses of one. Raises CostModelError if the memory
    is not there.
    """
    require()
    placements = [place(program) for program in programs]
    copies = [copies_of(placement, reuse_bytes) for placement in placements]
    _check_room(placements, copies)
    calls = []
    for placement, number in zip(placements, copies, strict=True):
        arena = aligned(number * placement.arena_bytes)
        parts = [arena[i * placement.arena_bytes :][: placement.arena_bytes] for i in range(number)]
        calls.append(runner([thunk for part in parts for thunk in placement.bind(part)]))
    timings = time_calls(calls, protocol, statistic=statistic, progress=progress)
    return [timing.shared_by(number) for timing, number in zip(timings, copies, strict=True)]


def copies_of(placement: Placement, reuse_bytes: int) -> int:
    """How many copies of a program's memory take turns, so that so many bytes are touched between two uses of one."""
    return 1 + -(-reuse_bytes // max(placement.arena_bytes, 1))


def runner(thunks: list[Thunk]) -> Run:
    """One callable that makes real calls in order."""

    def run() -> None:
        for function, arguments, options in thunks:
            function(*arguments, **options)

    return run


def free_bytes() -> int | None:
    """Memory that is available [bytes], if the system says."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _check_room(placements: Sequence[Placement], copies: Sequence[int]) -> None:
    need = sum(placement.arena_bytes * number for placement, number in zip(placements, copies, strict=True))
    free = free_bytes()
    if free is not None and need > free:
        raise CostModelError(
            f"measuring needs {show_bytes(need)} of memory, {show_bytes(free)} are free: use a smaller batch"
        )
