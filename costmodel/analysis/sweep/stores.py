"""Sweeps written as they are worked out, to Zarr by chunks or Parquet by parts: readable when stopped, then resumed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import zarr
from pyarrow import parquet

from costmodel.analysis.sweep.axes import label_of
from costmodel.analysis.sweep.dataset import lazy_dataset
from costmodel.analysis.sweep.extents import check_file, spans_of
from costmodel.analysis.sweep.grid import Grid
from costmodel.analysis.sweep.saved import Damaged, check_expansion, check_regular, metadata_of
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


def stream(grid: Grid, path: str, *, resume: bool, progress: Callable[[int], None]) -> Written:
    """Write all cells to a file, which is there when this ends, or is stopped by an interrupt (KeyboardInterrupt).

    resume: go on with the file that an interrupt left. progress: told of each number of cells that is done.
    Raises CostModelError for a file that cannot be resumed, or cannot be written, and for a grid without end.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        raise CostModelError(f"cannot write {shown(path)}: it is there and is no file")
    check_file(grid, path)
    windows = list(grid.windows(None, ROWS, ROWS))
    schema = _part(grid, tuple(slice(0, 1) for _ in grid.axes)).schema.with_metadata({METADATA_KEY: question_of(grid)})
    parts = Parts(target, schema, resume=resume)
    try:
        with interruptible() as stopped:
            for number, window in enumerate(windows):
                rows = parts.rows(number)
                if rows is None:
                    rows = parts.add(number, _part(grid, window))
                progress(rows)
                if stopped.is_set():
                    break
            written = parts.join()
    except (OSError, pyarrow.ArrowException) as error:
        raise CostModelError(f"cannot write {shown(path)}: {getattr(error, 'strerror', None) or error}") from None
    if written.cells < grid.cells:
        raise KeyboardInterrupt(f"{path} holds {written.cells:,} of {grid.cells:,} cells; --resume goes on")
    return written


class Parts:
    """The parts of a sweep on their way to one file, each a file that stands alone: whatever ends the work, they stay.

    They lie in a folder beside the target, ``sweep.parquet.parts``. With `resume` those of an earlier run are gone on
    with, and the row groups of the file that an interrupt left are the first. Raises CostModelError for those of
    another sweep, and damaged ones.
    """

    def __init__(self, target: Path, schema: pyarrow.Schema, *, resume: bool) -> None:
        self.target, self.schema = target, schema
        self.folder = target.with_name(f"{target.name}.parts")
        self.rows_before = _row_groups_before(target, schema) if resume and target.exists() else []
        self.kept: dict[int, int] = {}
        for path in self._paths():
            if resume and path.suffix == ".parquet":
                groups = _row_groups_before(path, schema)
                self.kept[int(path.stem.removeprefix("part-"))] = sum(groups)
            else:
                path.unlink()

    def _paths(self) -> list[Path]:
        """Files in the folder; such as are no parts are left alone."""
        if self.folder.is_symlink() or not self.folder.is_dir():
            return []
        return sorted(
            path for path in self.folder.iterdir() if re.fullmatch(r"part-[0-9]{7}\.parquet(\.new)?", path.name)
        )

    def path(self, number: int) -> Path:
        """Where a part is."""
        return self.folder / f"part-{number:07}.parquet"

    def rows(self, number: int) -> int | None:
        """Rows of a part that is there."""
        return self.rows_before[number] if number < len(self.rows_before) else self.kept.get(number)

    def add(self, number: int, table: pyarrow.Table) -> int:
        """Write a part, whole or not at all; returns its rows."""
        self.folder.mkdir(exist_ok=True)
        path = self.path(number)
        new = path.with_name(f"{path.name}.new")
        try:
            parquet.write_table(table.cast(self.schema), new)
            os.replace(new, path)
        except BaseException:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            self._leave()
            raise
        self.kept[number] = table.num_rows
        return table.num_rows

    def join(self) -> Written:
        """Make one file of all parts up to the first that is not there, and remove them."""
        part = self.target.with_name(f"{self.target.name}.part")
        cells = missing = 0
        try:
            with suppress(FileNotFoundError):
                part.unlink()
            with open(part, "xb") as sink, parquet.ParquetWriter(sink, self.schema) as writer:
                for table in self._tables():
                    writer.write_table(table)
                    cells, missing = cells + table.num_rows, missing + _refused(table)
            os.replace(part, self.target)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        for path in self._paths():
            path.unlink()
        self._leave()
        return Written(cells, missing)

    def _tables(self) -> Iterator[pyarrow.Table]:
        if self.rows_before:
            with parquet.ParquetFile(self.target) as file:
                for number in range(len(self.rows_before)):
                    yield file.read_row_group(number).cast(self.schema)
        number = len(self.rows_before)
        while number in self.kept:
            with parquet.ParquetFile(self.path(number)) as file:
                yield file.read().cast(self.schema)
            number += 1

    def _leave(self) -> None:
        """Remove the folder if it is empty."""
        with suppress(OSError):
            self.folder.rmdir()


def _refused(table: pyarrow.Table) -> int:
    """Rows without an answer."""
    return int((table["reason"].to_numpy() != "").sum())


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


def _part(grid: Grid, window: Any) -> pyarrow.Table:
    """The rows of a window; whole numbers wherever they fit, and null where there is no answer."""
    shape = tuple(part.stop - part.start for part in window)
    reasons = np.broadcast_to(grid.reasons(window), shape)
    labels = {axis.name: np.asarray(axis.labels[part]) for axis, part in zip(grid.axes, window, strict=True)}
    return table_of(labels, {**grid.exact(window), "reason": reasons}, missing=reasons != "")


def question_of(grid: Grid) -> bytes:
    """What tells this sweep from all others, in short."""
    asked = {
        "model": describe(grid.model),
        "settings": {name: label_of(value) for name, value in (grid.settings | grid.changed).items()},
        "axes": {axis.name: hashlib.sha256(repr(list(axis.labels)).encode()).hexdigest() for axis in grid.axes},
        "quantities": grid.quantities,
        "rows": ROWS,
    }
    return json.dumps(asked, default=label_of, sort_keys=True).encode()


def _row_groups_before(target: Path, schema: pyarrow.Schema) -> list[int]:
    """Rows of each part that a file holds, every one of which can be read."""
    try:
        size = check_regular(target)
        with parquet.ParquetFile(target) as file:
            found = (file.schema_arrow.metadata or {}).get(METADATA_KEY)
            if found != (schema.metadata or {})[METADATA_KEY] or not file.schema_arrow.equals(schema):
                raise CostModelError(
                    f"{shown(str(target))} holds another sweep: ask for the same model, settings, axes and quantities, "
                    "leave out --resume to write over it, or give another --out"
                )
            groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
            if any(rows > ROWS for rows in groups):
                raise Damaged("its parts are larger than any are written")
            check_expansion(sum(groups) // 64, size)  # a sweep of one value over and over is written in few bytes
            for number in range(file.num_row_groups):
                file.read_row_group(number)
            return groups
    except (pyarrow.ArrowException, OSError, ValueError, Damaged) as error:
        if isinstance(error, CostModelError):
            raise
        why = str(error).partition("\n")[0]
        raise CostModelError(
            f"cannot resume from {shown(str(target))}, which is no whole Parquet file ({why}): remove it, or leave out "
            "--resume to write over it"
        ) from None


KEY = "costmodel"
"""The attribute that says what a store holds: the question, how many chunks are done, and cells without an answer."""


def store(grid: Grid, path: str, *, resume: bool, progress: Callable[[int], None]) -> Written:
    """Write all cells to a Zarr store, or as many as there are until an interrupt (KeyboardInterrupt).

    resume: go on with the store that an interrupt left. progress: told of each number of cells that is done.
    Raises CostModelError for what is there and cannot be gone on with, or cannot be written.
    """
    target = Path(path)
    if target.exists() and not any((target / name).exists() for name in ("zarr.json", ".zgroup")):
        raise SettingError(f"{shown(path)} is there and is no Zarr store: give another --out")
    if not target.parent.is_dir():
        raise CostModelError(f"cannot write {shown(path)}: there is no folder {shown(str(target.parent))}")
    check_file(grid, path)
    try:
        return _stored(grid, target, resume and target.exists(), progress)
    except OSError as error:
        raise CostModelError(f"cannot write {shown(path)}: {error.strerror or error}") from None


def _stored(grid: Grid, target: Path, resume: bool, progress: Callable[[int], None]) -> Written:
    lazy = lazy_dataset(grid, "auto")
    windows = list(_windows(spans_of(grid, "auto")))
    asked = question_of(grid).decode()
    with interruptible() as stopped:
        done, missing = _chunks_before(target, asked, len(windows)) if resume else (0, 0)
        if resume:
            _aside(target)
            _check_layout(target, lazy)
        else:
            _lay_out(target, lazy, asked)
        group = zarr.open_group(target, mode="r+")
        progress(sum(map(_cells, windows[:done])))
        for number, window in enumerate(windows[done:], done):
            if stopped.is_set():
                break
            cut = lazy.isel({axis.name: part for axis, part in zip(grid.axes, window, strict=True)})
            part = cut.drop_vars(list(cut.coords)).compute()
            missing += int((part.reason != "").sum())
            region = dict(zip(part.sizes, window, strict=True))
            part.to_zarr(target, region=region, consolidated=False, write_empty_chunks=True)
            done = number + 1
            group.attrs[KEY] = {"question": asked, "done": done, "missing": missing}
            progress(_cells(window))
    cells = sum(map(_cells, windows[:done]))
    if cells < grid.cells:
        raise KeyboardInterrupt(f"{target} holds {cells:,} of {grid.cells:,} cells; --resume goes on")
    return Written(cells, missing)


def _aside(target: Path) -> Path:
    """The folder beside a store that its layout is made in, ``sweep.zarr.part``; removes that of a killed run."""
    try:
        part = target.resolve().with_name(f"{target.name}.part")
    except RuntimeError:  # an OSError from Python 3.13 on
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(target)) from None
    if part.is_dir() and not part.is_symlink():
        shutil.rmtree(part)
    return part


def _lay_out(target: Path, lazy: Any, asked: str) -> None:
    """Put a store without chunks in place of what is there, whole or not at all: a killed run can be gone on with.

    It is made in a folder beside it.
    """
    part = _aside(target)
    part.mkdir()
    try:
        new = part / "new"
        lazy.to_zarr(new, mode="w", consolidated=False, compute=False)
        zarr.open_group(new, mode="r+").attrs[KEY] = {"question": asked, "done": 0, "missing": 0}
        if target.exists():
            target.resolve().rename(part / "old")
        new.rename(target.resolve())
    finally:
        shutil.rmtree(part)


def _check_layout(target: Path, lazy: Any) -> None:
    """Raise CostModelError unless the arrays of a store are as this sweep lays them out: only then are they opened.

    What a killed run left half written is removed.
    """
    with TemporaryDirectory() as fresh:
        lazy.to_zarr(fresh, mode="w", consolidated=False, compute=False)
        try:
            metadata_of(target)
            for name in map(str, lazy.variables):
                if metadata_of(target / name) != metadata_of(Path(fresh, name)):
                    raise Damaged(f"{name} is laid out in another way")
            for path in target.rglob("*.partial"):
                path.unlink()
        except (Damaged, OSError) as error:
            raise _no_sweep(target, error) from None


def _no_sweep(target: Path, error: Exception) -> CostModelError:
    why = str(error).partition("\n")[0]
    return CostModelError(
        f"cannot resume from {shown(str(target))}, which holds no part of a sweep ({why}): remove it, or leave out "
        "--resume to write over it"
    )


def _chunks_before(target: Path, asked: str, most: int) -> tuple[int, int]:
    """Chunks that a store holds, and cells in them without an answer. Raises CostModelError."""
    try:
        found: Any = metadata_of(target)["attributes"][KEY]
        held, done, missing = found["question"], int(found["done"]), int(found["missing"])
    except (ValueError, KeyError, TypeError, OSError, Damaged) as error:
        raise _no_sweep(target, error) from None
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
