"""Sweeps written as they are worked out, to Zarr by chunks or Parquet by parts: readable when stopped, then resumed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import zarr
from pyarrow import parquet

from costmodel.analysis.sweep.axes import label_of
from costmodel.analysis.sweep.dataset import lazy_dataset
from costmodel.analysis.sweep.extents import check_file, spans_of
from costmodel.analysis.sweep.grid import Space
from costmodel.analysis.sweep.tables import table_of
from costmodel.errors import CostModelError, SettingError, shown
from costmodel.importers.files import describe
from costmodel.symbolic.evaluation import Window

ROWS = 2**18
"""Cells of a part, which is a row group."""
METADATA_KEY = b"costmodel"


class Written(NamedTuple):
    """How many cells a file holds, and how many of them have no answer."""

    cells: int
    missing: int


def stream(space: Space, path: str, *, resume: bool, progress: Callable[[int], None]) -> Written:
    """Write all cells to a file, which is there when this ends, or is stopped by an interrupt (KeyboardInterrupt).

    resume: go on with the file that an interrupt left. progress: told of each number of cells that is done.
    Raises CostModelError for a file that cannot be resumed, or cannot be written, and for a grid without end.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        raise CostModelError(f"cannot write {shown(path)}: it is there and is no file")
    check_file(space, path)
    windows = list(space.windows(None, ROWS, ROWS))
    schema = _part(space, tuple(slice(0, 1) for _ in space.axes)).schema.with_metadata(
        {METADATA_KEY: question_of(space)}
    )
    part = target.with_name(f"{target.name}.part")
    cells = missing = 0
    try:
        with _written_to(part, schema) as writer, interruptible() as stopped:
            earlier = _parts_before(target, schema) if resume and target.exists() else iter(())
            for number, _ in enumerate(windows):
                table = next(earlier, None)
                table = _part(space, windows[number]) if table is None else table
                writer.write_table(table.cast(schema))
                cells, missing = cells + table.num_rows, missing + _refused(table)
                progress(table.num_rows)
                if stopped.is_set():
                    break
        os.replace(part, target)
    except BaseException as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise CostModelError(f"cannot write {shown(path)}: {error.strerror or error}") from None
        raise
    if cells < space.cells:
        raise KeyboardInterrupt(f"{path} holds {cells:,} of {space.cells:,} cells; --resume goes on")
    return Written(cells, missing)


def _refused(table: pyarrow.Table) -> int:
    """Rows without an answer."""
    return int((table["reason"].to_numpy() != "").sum())


@contextmanager
def _written_to(part: Path, schema: pyarrow.Schema) -> Iterator[Any]:
    with open(part, "wb") as sink, parquet.ParquetWriter(sink, schema) as writer:
        yield writer


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Within, an interrupt sets the event, so that a part is written whole or not at all."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = signal.signal(signal.SIGINT, lambda *_: stopped.set())
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


def _part(space: Space, window: Any) -> pyarrow.Table:
    """The rows of a window; whole numbers wherever they fit, and null where there is no answer."""
    shape = tuple(part.stop - part.start for part in window)
    reasons = np.broadcast_to(space.reasons(window), shape)
    labels = {axis.name: np.asarray(axis.labels[part]) for axis, part in zip(space.axes, window, strict=True)}
    return table_of(labels, {**space.exact(window), "reason": reasons}, missing=reasons != "")


def question_of(space: Space) -> bytes:
    """What tells this sweep from all others, in short."""
    asked = {
        "model": describe(space.model),
        "settings": {name: label_of(value) for name, value in (space.settings | space.changed).items()},
        "axes": {axis.name: hashlib.sha256(repr(list(axis.labels)).encode()).hexdigest() for axis in space.axes},
        "quantities": space.quantities,
        "rows": ROWS,
    }
    return json.dumps(asked, default=label_of, sort_keys=True).encode()


def _parts_before(target: Path, schema: pyarrow.Schema) -> Iterator[pyarrow.Table]:
    """The parts that a file holds."""
    try:
        with parquet.ParquetFile(target) as file:
            found = (file.schema_arrow.metadata or {}).get(METADATA_KEY)
            if found != (schema.metadata or {})[METADATA_KEY] or not file.schema_arrow.equals(schema):
                raise CostModelError(
                    f"{shown(str(target))} holds another sweep: ask for the same model, settings, axes and quantities, "
                    "leave out --resume to write over it, or give another --out"
                )
            for number in range(file.num_row_groups):
                yield file.read_row_group(number)
    except (pyarrow.ArrowException, OSError) as error:
        why = str(error).partition("\n")[0]
        raise CostModelError(
            f"cannot resume from {shown(str(target))}, which is no whole Parquet file ({why}): remove it, or leave out "
            "--resume to write over it"
        ) from None


KEY = "costmodel"
"""The attribute that says what a store holds: the question, how many chunks are done, and cells without an answer."""


def store(space: Space, path: str, *, resume: bool, progress: Callable[[int], None]) -> Written:
    """Write all cells to a Zarr store, or as many as there are until an interrupt (KeyboardInterrupt).

    resume: go on with the store that an interrupt left. progress: told of each number of cells that is done.
    Raises CostModelError for what is there and cannot be gone on with, or cannot be written.
    """
    target = Path(path)
    if target.exists() and not any((target / name).exists() for name in ("zarr.json", ".zgroup")):
        raise SettingError(f"{shown(path)} is there and is no Zarr store: give another --out")
    if not target.parent.is_dir():
        raise CostModelError(f"cannot write {shown(path)}: there is no folder {shown(str(target.parent))}")
    check_file(space, path)
    try:
        return _stored(space, target, resume and target.exists(), progress)
    except OSError as error:
        raise CostModelError(f"cannot write {shown(path)}: {error.strerror or error}") from None


def _stored(space: Space, target: Path, resume: bool, progress: Callable[[int], None]) -> Written:
    lazy = lazy_dataset(space, "auto")
    windows = list(_windows(spans_of(space, "auto")))
    asked = question_of(space).decode()
    with interruptible() as stopped:
        done, missing = _chunks_before(target, asked, len(windows)) if resume else (0, 0)
        if not resume:
            lazy.to_zarr(target, mode="w", consolidated=False, compute=False)
        group = zarr.open_group(target, mode="r+")
        group.attrs[KEY] = {"question": asked, "done": done, "missing": missing}
        progress(sum(map(_cells, windows[:done])))
        for number, window in enumerate(windows[done:], done):
            if stopped.is_set():
                break
            cut = lazy.isel({axis.name: part for axis, part in zip(space.axes, window, strict=True)})
            part = cut.drop_vars(list(cut.coords)).compute()
            missing += int((part.reason != "").sum())
            part.to_zarr(target, region=dict(zip(part.sizes, window, strict=True)), consolidated=False)
            done = number + 1
            group.attrs[KEY] = {"question": asked, "done": done, "missing": missing}
            progress(_cells(window))
    cells = sum(map(_cells, windows[:done]))
    if cells < space.cells:
        raise KeyboardInterrupt(f"{target} holds {cells:,} of {space.cells:,} cells; --resume goes on")
    return Written(cells, missing)


def _chunks_before(target: Path, asked: str, most: int) -> tuple[int, int]:
    """Chunks that a store holds, and cells in them without an answer. Raises CostModelError."""
    try:
        found: Any = zarr.open_group(target, mode="r").attrs.asdict().get(KEY)
        held, done, missing = found["question"], int(found["done"]), int(found["missing"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        why = str(error).partition("\n")[0]
        raise CostModelError(
            f"cannot resume from {shown(str(target))}, which holds no part of a sweep ({why}): remove it, or leave out "
            "--resume to write over it"
        ) from None
    if held != asked or not 0 <= done <= most:
        raise CostModelError(
            f"{shown(str(target))} holds another sweep: ask for the same model, settings, axes and quantities, leave "
            "out --resume to write over it, or give another --out"
        )
    return done, missing


def _windows(spans: tuple[tuple[int, ...], ...]) -> Iterator[Window]:
    """Of all chunks, in order."""
    ends = [np.cumsum(sizes).tolist() for sizes in spans]
    for corner in product(*(zip(sizes, end, strict=True) for sizes, end in zip(spans, ends, strict=True))):
        yield tuple(slice(end - size, end) for size, end in corner)


def _cells(window: Window) -> int:
    count = 1
    for part in window:
        count *= part.stop - part.start
    return count
