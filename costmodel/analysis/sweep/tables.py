"""Sweeps as tables, a row for each cell, in Parquet (extra `sweep`)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
from dask.array.core import slices_from_chunks
from dask.base import compute
from dask.delayed import delayed
from pyarrow import parquet

from costmodel.analysis.sweep.grid import windows_of
from costmodel.documents.files import replacing
from costmodel.errors import CostModelError, shown

if TYPE_CHECKING:
    import xarray

ROWS = 2**20
"""Rows of a group, which are in memory at once."""


def write_parquet(sweep: xarray.Dataset, path: str | os.PathLike[str]) -> None:
    """See `Sweep.to_parquet`."""
    target = Path(path)
    try:
        if sweep.chunks:
            _write_parts(sweep, target)
        else:
            _write_whole(sweep, target)
    except CostModelError:
        raise
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise CostModelError(f"cannot write {shown(str(path))}: {getattr(error, 'strerror', None) or error}") from None


def write_tables(target: Path, schema: pyarrow.Schema, tables: Iterable[pyarrow.Table]) -> None:
    """Write a file with a row group for each table, whole or not at all. Raises OSError, pyarrow.ArrowException."""
    with replacing(target) as file, parquet.ParquetWriter(file, schema) as writer:
        for table in tables:
            writer.write_table(table)


def _write_whole(sweep: xarray.Dataset, target: Path) -> None:
    if target.exists() and not target.is_file():
        raise CostModelError(f"cannot write {shown(str(target))}: it is there and is no file")
    cuts = (
        sweep.isel(dict(zip(sweep.sizes, window, strict=True)))
        for window in windows_of(tuple(slice(0, size) for size in sweep.sizes.values()), ROWS, ROWS)
    )
    tables = (
        table_of(
            {str(name): cut[name].values for name in cut.sizes},
            {str(name): variable.values for name, variable in cut.data_vars.items()},
        )
        for cut in cuts
    )
    first = next(tables)
    write_tables(target, first.schema, chain([first], tables))


def _write_parts(sweep: xarray.Dataset, target: Path) -> None:
    """A file for each chunk, written by whoever works it out, each whole or not at all."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CostModelError(f"cannot write {shown(str(target))}: it is there already; remove it, or give another path")
    target.mkdir(parents=True, exist_ok=True)
    names = [str(name) for name in sweep.data_vars]
    blocks = {name: sweep[name].data.to_delayed() for name in names}
    windows = slices_from_chunks(tuple(sweep.chunksizes[dim] for dim in sweep.sizes))
    write = delayed(write_part)
    tasks: list[Any] = []
    for number, (index, window) in enumerate(zip(np.ndindex(blocks[names[0]].shape), windows, strict=True)):
        labels = {str(dim): sweep[dim].values[part] for dim, part in zip(sweep.sizes, window, strict=True)}
        arrays = {name: blocks[name][index] for name in names}
        tasks.append(write(labels, arrays, str(target / f"part-{number:07}.parquet")))
    compute(*tasks)
    for part in target.glob("*.part"):  # of a worker that was killed as it wrote: readers would take it for a chunk
        part.unlink(missing_ok=True)


def write_part(labels: Mapping[str, Any], arrays: Mapping[str, Any], path: str) -> int:
    """One chunk as a file, whole or not at all; returns its rows."""
    table = table_of(labels, arrays)
    with replacing(path) as file:
        parquet.write_table(table, file)
    return table.num_rows


def table_of(labels: Mapping[str, Any], arrays: Mapping[str, Any], missing: Any = None) -> pyarrow.Table:
    """Rows of all cells of a window: a column for each axis and quantity, and `reason`, "" where there is an answer.

    missing: where quantities have no value though their arrays hold one.
    """
    shape = tuple(len(values) for values in labels.values())
    columns: dict[str, pyarrow.Array] = {}
    for (name, values), place in zip(labels.items(), np.indices(shape, sparse=True), strict=True):
        index = np.broadcast_to(place, shape).reshape(-1)
        columns[name] = pyarrow.array(np.asarray(values)).take(pyarrow.array(index))
    for name, array in arrays.items():
        flat = np.broadcast_to(array, shape).reshape(-1)
        if name == "reason":
            columns[name] = pyarrow.array(flat, pyarrow.string())
        else:
            mask = None if missing is None else np.broadcast_to(missing, shape).reshape(-1)
            columns[name] = pyarrow.array(flat, mask=mask, from_pandas=True)
    return pyarrow.table(columns)
