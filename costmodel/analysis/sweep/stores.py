"""Sweeps written chunk by chunk, to a Zarr store or by parts to Parquet: readable when stopped, then resumed."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import zarr
from dask.array.core import slices_from_chunks
from pyarrow import parquet

from costmodel.analysis.sweep.axes import label_of
from costmodel.analysis.sweep.dataset import lazy_dataset
from costmodel.analysis.sweep.extents import check_file, spans_of
from costmodel.analysis.sweep.grid import Grid
from costmodel.analysis.sweep.saved import Damaged, check_expansion, check_regular, metadata_of
from costmodel.analysis.sweep.tables import table_of, write_tables
from costmodel.documents.arguments import fits
from costmodel.documents.files import alone, replacing
from costmodel.errors import CostModelError, SettingError, shown
from costmodel.importers.files import describe
from costmodel.symbolic.evaluation import GridWindow

ROWS = 2**18
"""Cells of a part, which is a row group."""
KEY = "costmodel"
"""The metadata that say what a file holds: the question; of a store also how many chunks are done, and cells in them
without an answer."""


class Written(NamedTuple):
    """How many cells a file holds, and how many of them have no answer."""

    cells: int
    missing: int


def stream(grid: Grid, path: str, *, resume: bool, progress: Callable[[int], None]) -> Written:
    """Write all cells to a Parquet file, or as many as there are until an interrupt (KeyboardInterrupt).

    resume: go on with the file that an interrupt left, and the parts that a kill left. progress: told of each number of
    cells that is done. Raises CostModelError for a file that cannot be resumed, or cannot be written, and for a grid
    without end.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        raise CostModelError(f"cannot write {shown(path)}: it is there and is no file")
    check_file(grid, path)
    return _write(grid, path, lambda: PartFiles(grid, target, resume=resume), progress)


def store(grid: Grid, path: str, *, resume: bool, progress: Callable[[int], None]) -> Written:
    """As `stream`, to a Zarr store."""
    target = Path(path)
    if target.exists() and not any((target / name).exists() for name in ("zarr.json", ".zgroup")):
        raise SettingError(f"{shown(path)} is there and is no Zarr store: give another --out")
    if not target.parent.is_dir():
        raise CostModelError(f"cannot write {shown(path)}: there is no folder {shown(str(target.parent))}")
    check_file(grid, path)
    return _write(grid, path, lambda: StoreChunks(grid, target, resume=resume and target.exists()), progress)


def _write(grid: Grid, path: str, start: Callable[[], Chunks], progress: Callable[[int], None]) -> Written:
    """Add all chunks that are not there, until an interrupt."""
    try:
        with interruptible() as stopped, alone(path):
            chunks = start()
            if before := sum(_cells(w) for number, w in enumerate(chunks.windows) if number in chunks.finished):
                progress(before)
            for number, window in enumerate(chunks.windows):
                if stopped.is_set():
                    break
                if number not in chunks.finished:
                    chunks.add(number)
                    progress(_cells(window))
            written = chunks.close()
    except (OSError, pyarrow.ArrowException) as error:
        raise CostModelError(f"cannot write {shown(path)}: {getattr(error, 'strerror', None) or error}") from None
    if written.cells < grid.cells:
        raise KeyboardInterrupt(f"{path} holds {written.cells:,} of {grid.cells:,} cells; --resume goes on")
    return written


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Within, an interrupt sets the event, so that a chunk is written whole or not at all."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = signal.signal(signal.SIGINT, lambda *_: stopped.set())
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


class Chunks(ABC):
    """Abstract: the chunks of a sweep on their way to `target`, each whole or not at all; they outlast any end of work.

    windows: of all chunks, in order. finished: numbers of those that are there.
    """

    windows: Sequence[GridWindow]

    def __init__(self, grid: Grid, target: Path) -> None:
        self.grid, self.target = grid, target
        self.finished: set[int] = set()
        self.question = _question(grid)

    @abstractmethod
    def add(self, number: int) -> None:
        """Work out a chunk and write it. Raises OSError, pyarrow.ArrowException."""

    @abstractmethod
    def close(self) -> Written:
        """Make the target hold all chunks up to the first that is not there."""

    def other_sweep(self) -> CostModelError:
        """The error where the target holds chunks of another question."""
        return CostModelError(
            f"{shown(str(self.target))} holds another sweep: ask for the same model, settings, axes and quantities, "
            "leave out --resume to write over it, or give another --out"
        )

    @contextmanager
    def going_on(self, path: Path, wrong: str) -> Iterator[None]:
        """Within, a file is read that may hold anything. Raises CostModelError for what is `wrong` with it."""
        try:
            yield
        except CostModelError:
            raise
        except (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError, Damaged) as error:
            why = str(error).partition("\n")[0]
            raise CostModelError(
                f"cannot resume from {shown(str(path))}, which {wrong} ({why}): remove it, or leave out --resume to "
                "write over it"
            ) from None


def _question(grid: Grid) -> str:
    """What tells this sweep from all others, in short."""
    question = {
        "model": describe(grid.model),
        "settings": {name: label_of(value) for name, value in (grid.settings | grid.changed).items()},
        "axes": {axis.name: hashlib.sha256(repr(list(axis.labels)).encode()).hexdigest() for axis in grid.axes},
        "quantities": grid.quantities,
        "rows": ROWS,
    }
    return json.dumps(question, default=label_of, sort_keys=True)


def _cells(window: GridWindow) -> int:
    return math.prod(part.stop - part.start for part in window)


class PartFiles(Chunks):
    """Chunks as Parquet files that each stand alone, in a folder beside the target, ``sweep.parquet.parts``.

    With `resume` those of an earlier run are gone on with, and the row groups of the file that an interrupt left are
    the first. Raises CostModelError for those of another sweep, and damaged ones.
    """

    def __init__(self, grid: Grid, target: Path, *, resume: bool) -> None:
        super().__init__(grid, target)
        self.windows = list(grid.windows(None, ROWS, ROWS))
        schema = self._table(tuple(slice(0, 1) for _ in grid.axes)).schema
        self.schema = schema.with_metadata({KEY.encode(): self.question.encode()})
        self.folder = target.with_name(f"{target.name}.parts")
        self.groups = self._row_groups(target) if resume and target.exists() else 0
        self.finished.update(range(self.groups))
        for path in self._paths():
            if resume and path.suffix == ".parquet":
                self._row_groups(path)
                self.finished.add(int(path.stem.removeprefix("part-")))
            else:
                path.unlink()

    def add(self, number: int) -> None:
        """See the class."""
        self.folder.mkdir(exist_ok=True)
        try:
            with replacing(self._path(number)) as file:
                parquet.write_table(self._table(self.windows[number]).cast(self.schema), file)
        except BaseException:
            self._leave()
            raise
        self.finished.add(number)

    def close(self) -> Written:
        """Make one file of the parts, and remove them."""
        cells = missing = 0

        def counted() -> Iterator[pyarrow.Table]:
            nonlocal cells, missing
            for table in self._tables():
                yield table
                cells, missing = cells + table.num_rows, missing + int((table["reason"].to_numpy() != "").sum())

        write_tables(self.target, self.schema, counted())
        for path in self._paths():
            path.unlink()
        self._leave()
        return Written(cells, missing)

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number:07}.parquet"

    def _paths(self) -> list[Path]:
        """Files in the folder; such as are no parts are left alone."""
        if self.folder.is_symlink() or not self.folder.is_dir():
            return []
        return sorted(
            path for path in self.folder.iterdir() if re.fullmatch(r"part-[0-9]{7}\.parquet(\..*part)?", path.name)
        )

    def _leave(self) -> None:
        """Remove the folder if it is empty."""
        with suppress(OSError):
            self.folder.rmdir()

    def _table(self, window: GridWindow) -> pyarrow.Table:
        """The rows of a window; whole numbers wherever they fit, and null where there is no answer."""
        shape = tuple(part.stop - part.start for part in window)
        reasons = np.broadcast_to(self.grid.reasons(window), shape)
        axes = zip(self.grid.axes, window, strict=True)
        labels = {axis.name: np.asarray(axis.labels[part]) for axis, part in axes}
        return table_of(labels, {**self.grid.exact(window), "reason": reasons}, missing=reasons != "")

    def _tables(self) -> Iterator[pyarrow.Table]:
        """The row groups of the file that there was, then parts up to the first that is not there."""
        if self.groups:
            with parquet.ParquetFile(self.target) as file:
                for number in range(self.groups):
                    yield file.read_row_group(number).cast(self.schema)
        number = self.groups
        while number in self.finished:
            with parquet.ParquetFile(self._path(number)) as file:
                yield file.read().cast(self.schema)
            number += 1

    def _row_groups(self, path: Path) -> int:
        """The number of parts that a file holds, every one of which can be read. Raises CostModelError."""
        with self.going_on(path, "is no whole Parquet file"):
            size = check_regular(path)
            with parquet.ParquetFile(path) as file:
                question = (file.schema_arrow.metadata or {}).get(KEY.encode())
                if question != self.question.encode() or not file.schema_arrow.equals(self.schema):
                    raise self.other_sweep()
                groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
                if any(rows > ROWS for rows in groups):
                    raise Damaged("its parts are larger than any are written")
                check_expansion(sum(groups) // 64, size)  # a sweep of one value over and over is written in few bytes
                for number in range(len(groups)):
                    file.read_row_group(number)
                return len(groups)
        raise AssertionError("errors are not suppressed")


class StoreChunks(Chunks):
    """Chunks of a Zarr store, which says how many of them are done. Raises CostModelError for one of another sweep."""

    def __init__(self, grid: Grid, target: Path, *, resume: bool) -> None:
        super().__init__(grid, target)
        self.lazy = lazy_dataset(grid, "auto")
        self.windows = slices_from_chunks(spans_of(grid, "auto"))
        self.missing = 0
        if resume:
            self._go_on()
        else:
            self._lay_out()
        self.group = zarr.open_group(target, mode="r+")

    def add(self, number: int) -> None:
        """See the class."""
        region = dict(zip((axis.name for axis in self.grid.axes), self.windows[number], strict=True))
        cut = self.lazy.isel(region)
        part = cut.drop_vars(list(cut.coords)).compute()
        part.to_zarr(self.target, region=region, consolidated=False, write_empty_chunks=True)
        self.missing += int((part.reason != "").sum())
        self.finished.add(number)
        self.group.attrs[KEY] = self._state

    def close(self) -> Written:
        """All chunks that are done are there already."""
        return Written(sum(_cells(self.windows[number]) for number in self.finished), self.missing)

    @property
    def _state(self) -> dict[str, Any]:
        return {"question": self.question, "done": len(self.finished), "missing": self.missing}

    def _aside(self) -> Path:
        """The folder beside a store that its layout is made in, ``sweep.zarr.part``; removes that of a killed run."""
        try:
            part = self.target.resolve().with_name(f"{self.target.name}.part")
        except RuntimeError:  # an OSError from Python 3.13 on
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(self.target)) from None
        if part.is_dir() and not part.is_symlink():
            shutil.rmtree(part)
        return part

    def _lay_out(self) -> None:
        """Put a store without chunks in place of what is there, whole or not at all: a killed run can be gone on with.

        It is made in a folder beside it.
        """
        part = self._aside()
        part.mkdir()
        try:
            new = part / "new"
            self.lazy.to_zarr(new, mode="w", consolidated=False, compute=False)
            zarr.open_group(new, mode="r+").attrs[KEY] = self._state
            if self.target.exists():
                self.target.resolve().rename(part / "old")
            new.rename(self.target.resolve())
        finally:
            shutil.rmtree(part)

    def _go_on(self) -> None:
        """Take over a store's chunks, once its arrays are those that this sweep lays out: only then are they opened.

        What a killed run left half written is removed. Raises CostModelError.
        """
        wrong = "holds no part of a sweep"
        with self.going_on(self.target, wrong):
            state: Any = metadata_of(self.target)["attributes"][KEY]
            question, done, self.missing = (state[name] for name in ("question", "done", "missing"))
            if not fits(done, int, 0) or not fits(self.missing, int, 0, self.grid.cells):
                raise Damaged(f"{shown(done)} chunks are done, and {shown(self.missing)} cells without an answer")
        if question != self.question or not 0 <= done <= len(self.windows):
            raise self.other_sweep()
        self.finished.update(range(done))
        self._aside()
        with TemporaryDirectory() as fresh:
            self.lazy.to_zarr(fresh, mode="w", consolidated=False, compute=False)
            with self.going_on(self.target, wrong):
                for name in map(str, self.lazy.variables):
                    if metadata_of(self.target / name) != metadata_of(Path(fresh, name)):
                        raise Damaged(f"{name} is laid out in another way")
                for path in self.target.rglob("*.partial"):
                    path.unlink()
