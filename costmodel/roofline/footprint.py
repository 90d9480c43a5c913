"""Memory of a program without running it: the bytes of NumPy arrays that are alive at every call."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from costmodel.display.units import show_bytes
from costmodel.errors import CostModelError
from costmodel.roofline.buffering import buffer_bytes
from costmodel.roofline.program import Program

CGROUP = Path("/sys/fs/cgroup")
"""Where Linux tells a container's limit."""


def standing_bytes(program: Program) -> int:
    """Arrays that are there before it runs: inputs, weights, states and constants [bytes]."""
    return sum(buffer.bytes for buffer in program.standing)


def live_bytes(program: Program) -> list[int]:
    """Arrays alive after each call, what it makes and drops included [bytes]."""
    return list(accumulate(_changes(program), initial=standing_bytes(program)))[1:]


def _changes(program: Program) -> Iterator[int]:
    for made, dropped in zip(program.made, program.frees, strict=True):
        yield (0 if made is None else made.bytes) - sum(buffer.bytes for buffer in dropped)


def peak_bytes(program: Program) -> int:
    """The most that is alive during a call, its iterator's buffers included [bytes]."""
    before = [standing_bytes(program), *live_bytes(program)]
    during = (
        live + (0 if made is None else made.bytes) + buffer_bytes(op)
        for live, made, op in zip(before, program.made, program.ops, strict=False)
    )
    return max(during, default=before[0])


def free_bytes() -> int | None:
    """Memory that this process can still have [bytes], by the system's account and a container's limit, if told."""
    told = [*_available(), *_left_of_limit()]
    return min(told) if told else None


def _available() -> Iterator[int]:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        yield from (1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except OSError:
        if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
            yield os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _left_of_limit() -> Iterator[int]:
    """What a control group's limit leaves; file pages that nobody uses are given up when memory is asked for."""
    try:
        limit, used, stat = (
            (CGROUP / f"memory.{name}").read_text(encoding="ascii").strip() for name in ("max", "current", "stat")
        )
    except OSError:
        return
    if limit.isdigit() and used.isdigit():
        idle = sum(int(line.split()[1]) for line in stat.splitlines() if line.startswith("inactive_file "))
        yield max(0, int(limit) - int(used) + idle)


def check_fits(needed: int, what: str) -> None:
    """Raise CostModelError if `needed` bytes are more than is free, before anything is allocated."""
    free = free_bytes()
    if free is not None and needed > free:
        raise CostModelError(
            f"{what} needs {show_bytes(needed)} to run and {show_bytes(free)} is free: use a smaller batch or model"
        )
