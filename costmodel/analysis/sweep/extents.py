"""How large a sweep may be: in memory, in chunks, in a file."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.display.units import show_bytes
from costmodel.errors import SettingError, shown, unknown

if TYPE_CHECKING:
    from costmodel.analysis.sweep.grid import Grid

CHUNK_BYTES = "16MiB"
"""Of one quantity, where chunks are "auto"."""
MOST_CHUNKS = 100_000
MOST_WRITTEN = 25_000_000_000
"""Cells of one file: an hour's work."""

Spans = tuple[tuple[int, ...], ...]


def check_memory(grid: Grid) -> None:
    """Raise SettingError if the whole result would not fit this machine's memory."""
    if beyond := _beyond(grid, grid.cells):
        raise SettingError(f"a grid of {grid.cells:,} points {beyond}: {_way_out(grid)}")


def check_file(grid: Grid, path: str = "sweep.parquet") -> None:
    """Raise SettingError if there are too many cells for one file."""
    if grid.cells <= MOST_WRITTEN:
        return
    folder = next(parent for parent in Path(path).absolute().parents if parent.is_dir())
    size = show_bytes(8 * grid.cells * len(grid.quantities))
    raise SettingError(
        f"a grid of {grid.cells:,} points takes some {size} for {len(grid.quantities)} quantities, of which a file "
        f"holds at most {MOST_WRITTEN:,} points, and the disk has {show_bytes(shutil.disk_usage(folder).free)} free: "
        "use fewer values, or several sweeps"
    )


def spans_of(grid: Grid, chunks: Any) -> Spans:
    """Sizes of chunks along each axis. Raises SettingError."""
    spans = _spans(grid, chunks)
    largest, number = math.prod(map(max, spans)), math.prod(map(len, spans))
    subject = f"chunks={shown(chunks)} makes"
    if beyond := _beyond(grid, largest):
        raise SettingError(f"{subject} a chunk of {largest:,} points, which {beyond}: {_way_out(grid)}")
    if number > MOST_CHUNKS:
        larger = "" if _beyond(grid, grid.cells // MOST_CHUNKS) else "larger chunks, "
        raise SettingError(
            f"{subject} {number:,} chunks of {grid.cells:,} points, and at most {MOST_CHUNKS:,} can be: use {larger}"
            "fewer values, or several sweeps"
        )
    return spans


def _beyond(grid: Grid, cells: int) -> str:
    """How so many cells would not fit this machine's memory; "" if they do."""
    needed = 8 * len(grid.quantities) * cells
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**34
    if needed <= there // 2:
        return ""
    return f"takes {show_bytes(needed)} for {len(grid.quantities)} quantities, and this machine has {show_bytes(there)}"


def _way_out(grid: Grid) -> str:
    """What to do about a grid that is too large as it was asked for."""
    number = math.prod(map(len, _spans(grid, "auto")))
    if number <= MOST_CHUNKS:
        return "give chunks='auto' to have it lazily, or fewer values"
    return (
        f"use fewer values, or several sweeps (chunks='auto' would make {number:,} chunks, of which at most "
        f"{MOST_CHUNKS:,} can be)"
    )


def _spans(grid: Grid, chunks: Any) -> Spans:
    from dask.array.core import normalize_chunks
    from numpy import dtype

    spans_by_axis = chunks
    if isinstance(chunks, Mapping):
        names = [axis.name for axis in grid.axes]
        for name in chunks:
            if name not in names:
                raise unknown("axis of chunks", name, names)
        spans_by_axis = {number: chunks.get(name, "auto") for number, name in enumerate(names)}
    sized = any(isinstance(each, str) and each != "auto" for each in _each(chunks))
    try:
        spans = normalize_chunks(spans_by_axis, grid.shape, limit=None if sized else CHUNK_BYTES, dtype=dtype("int64"))
        if not isinstance(chunks, bool) and all(size >= 1 for sizes in spans for size in sizes):
            return spans
    except (ValueError, TypeError, NotImplementedError, ArithmeticError):
        pass
    raise SettingError(
        f"chunks={shown(chunks)} does not fit a grid of {grid.shape}: give a number of points, -1 for all, 'auto', a "
        "size such as '64 MiB', or one of these for each axis"
    )


def _each(chunks: Any) -> Iterable[Any]:
    return chunks.values() if isinstance(chunks, Mapping) else chunks if isinstance(chunks, list | tuple) else (chunks,)
