"""The host that is measured: its CPU, caches, NumPy, BLAS and threads, and when it is at rest.

Calibrations are stored by the former. A sentinel is a fixed piece of work whose time tells whether a moment is
undisturbed. A virtual core is often one half of a physical one: while a neighbour computes on the other half, the same
work takes 1.3 to 1.8 times as long, for 10 to 60 ms, and the CPU time of a thread says nothing of it. A sentinel
computes within the first cache and takes as long as at its best, or clearly longer: a sample is undisturbed if the
sentinel just before and just after is at its best. There is none for memory, which has no two states: what streams from
it takes anything from 1 to 3.4 times its best (a ring of 96 MiB: 10 % of readings below 1.5, half below 2.5), and
hardly a sample of a millisecond would be left if it were asked too.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import time
from bisect import insort
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from costmodel.display.units import show_bytes
from costmodel.errors import not_installed

CPUINFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Host:
    """All that measurements on a host depend on.

    caches: (level, bytes) of the data caches that one core sees, smallest first; empty if the system does not say.
    threads: how many BLAS may use. What the system does not say is ``"unknown"``, and never guessed.
    """

    cpu: str
    cores: int
    caches: tuple[tuple[str, int], ...]
    numpy: str
    blas: str
    blas_version: str
    blas_kernels: str
    threads: int = 1

    @property
    def key(self) -> str:
        """Hash of all fields, twelve hexadecimal digits."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of the fields that the system does not report."""
        missing = [name for name in ("cpu", "blas", "blas_version", "blas_kernels") if getattr(self, name) == UNKNOWN]
        return (*missing, *(() if self.caches else ("caches",)))

    def level_of(self, size: float) -> str:
        """The nearest memory that holds `size` bytes: a cache's name, or "memory"."""
        return next((name for name, capacity in self.caches if size <= capacity), "memory")

    def changes_from(self, other: Host) -> list[str]:
        """What differs from another machine, each as ``name: theirs, here ours``."""
        ours, theirs = asdict(self), asdict(other)
        return [f"{name}: {theirs[name]}, here {ours[name]}" for name in ours if ours[name] != theirs[name]]

    def __str__(self) -> str:
        caches = ", ".join(f"{name} {show_bytes(size)}" for name, size in self.caches) or "caches unknown"
        threads = f"{self.threads} thread{'s' * (self.threads > 1)} of {self.cores} cores"
        blas = f"{self.blas} {self.blas_version} ({self.blas_kernels})"
        return f"{self.cpu}, {caches}; {threads}; NumPy {self.numpy}, {blas}"


def require() -> None:
    """Raise CostModelError unless the extra `roofline` is there."""
    for name in ("numpy", "platformdirs", "scipy", "threadpoolctl"):
        if find_spec(name) is None:
            raise not_installed(f"the roofline needs {name}", "roofline")


def this_machine(threads: int = 1) -> Host:
    """The host that this process runs on. Raises CostModelError unless the extra `roofline` is there."""
    require()
    import numpy as np

    blas = _blas()
    return Host(
        cpu=_cpu(),
        cores=_cores(),
        caches=_caches(),
        numpy=np.__version__,
        blas=str(blas.get("internal_api") or UNKNOWN),
        blas_version=str(blas.get("version") or UNKNOWN),
        blas_kernels=str(blas.get("architecture") or UNKNOWN),
        threads=threads,
    )


def _cpu() -> str:
    try:
        line = re.search(r"^model name\s*:\s*(.+)$", CPUINFO.read_text(), re.MULTILINE)
    except OSError:
        line = None
    return line.group(1).strip() if line else platform.processor() or UNKNOWN


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _caches() -> tuple[tuple[str, int], ...]:
    sizes: dict[int, int] = {}
    for index in sorted(CACHES.glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            factor = {"K": 1024, "M": 1024**2}[size[-1]]
            if kind != "Instruction":
                sizes[int(level)] = int(size[:-1]) * factor
        except (OSError, KeyError, ValueError, IndexError):
            continue
    return tuple((f"L{level}", size) for level, size in sorted(sizes.items()))


def _blas() -> dict[str, Any]:
    """What threadpoolctl says of the BLAS that NumPy loaded."""
    from threadpoolctl import threadpool_info

    libraries: list[dict[str, Any]] = [library for library in threadpool_info() if library.get("user_api") == "blas"]
    ours = (library for library in libraries if "numpy" in str(library.get("filepath")))
    return next(ours, libraries[0] if libraries else {})


SEEN, RARE = 4, 1000
"""A sentinel's best has been reached so many times, and by one of so many readings: a core that is now and then clocked
faster for a moment gives readings that no rest repeats."""
LIMIT = 1.1
"""At rest a sentinel takes 1.00 to 1.03 times its best, disturbed 1.6 to 2."""
FIRST = 400
"""Readings before the first sample, so that a best is known."""
PATIENCE, LEAST_PATIENCE = 20_000_000, 500_000
"""How long to wait for an undisturbed moment before a sample is taken all the same; half as long after each time that
there was none, but no less than the second [ns]."""

EXPONENTIALS, PASSES = 2048, 4

Work = Callable[[], Any]


class Sentinel:
    """The piece of work, or another. One serves a whole run, since a part of it may hold no undisturbed moment."""

    def __init__(self, work: Work | None = None) -> None:
        self.work = work or _exponentials()
        self.count = 0
        self.fastest: list[int] = []
        self.patience = PATIENCE
        for _ in range(FIRST):
            self.read()

    @property
    def best(self) -> int:
        """What has been reached `SEEN` times, and by one reading of `RARE` [ns]."""
        return self.fastest[min(max(SEEN, self.count // RARE), len(self.fastest)) - 1]

    def read(self) -> int:
        """Do the work twice: how long the second time took [ns]; the first brings it back after what evicted it."""
        self.work()
        start = time.perf_counter_ns()
        self.work()
        reading = time.perf_counter_ns() - start
        self.count += 1
        insort(self.fastest, reading)
        del self.fastest[2 * max(SEEN, self.count // RARE) :]
        return reading

    def rests(self, reading: int) -> bool:
        """Whether a reading is of an undisturbed moment, by the best that is known now."""
        return reading <= LIMIT * self.best

    def wait(self) -> bool:
        """Wait until the core is undisturbed, but no longer than patience lasts: whether it is."""
        end = time.perf_counter_ns() + self.patience
        while not self.rests(self.read()):
            if time.perf_counter_ns() >= end:
                self.patience = max(self.patience // 2, LEAST_PATIENCE)
                return False
        self.patience = PATIENCE
        return True


def _exponentials() -> Work:
    """Passes of exp over 8 KiB, to as many: half of the first cache stays as it was."""
    import numpy as np

    x, out = np.full(EXPONENTIALS, 0.5, np.float32), np.empty(EXPONENTIALS, np.float32)

    def work() -> None:
        for _ in range(PASSES):
            np.exp(x, out=out)

    return work
