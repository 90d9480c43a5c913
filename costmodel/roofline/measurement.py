"""Measuring programs: the real calls of each, in memory of its own, timed by the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from costmodel.roofline.arena import aligned
from costmodel.roofline.footprint import check_fits
from costmodel.roofline.machine import require
from costmodel.roofline.operation import Thunk
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
    check_fits(room(programs, reuse_bytes), "the measurement")
    calls, copies = [], [copies_of(program, reuse_bytes) for program in programs]
    for program, number in zip(programs, copies, strict=True):
        size = program.layout.arena_bytes
        arena = aligned(number * size)
        parts = [arena[i * size :][:size] for i in range(number)]
        calls.append(runner([thunk for part in parts for thunk in program.bind(part)]))
    timings = time_calls(calls, protocol, statistic=statistic, progress=progress)
    return [timing.shared_by(number) for timing, number in zip(timings, copies, strict=True)]


def copies_of(program: Program, reuse_bytes: int) -> int:
    """How many copies of a program's memory take turns, so that so many bytes are touched between two uses of one."""
    return 1 + -(-reuse_bytes // max(program.layout.arena_bytes, 1))


def room(programs: Iterable[Program], reuse_bytes: int = 0) -> int:
    """Memory that `measure` takes for programs [bytes]."""
    return sum(copies_of(program, reuse_bytes) * program.layout.arena_bytes for program in programs)


def runner(thunks: list[Thunk]) -> Run:
    """One callable that makes real calls in order."""

    def run() -> None:
        for function, arguments, options in thunks:
            function(*arguments, **options)

    return run
