"""The host that is measured: its CPU, caches, NumPy, BLAS and threads, by which calibrations are stored."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
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
