"""Sweeps written to Zarr as they are worked out, chunk by chunk: readable when stopped, and then gone on with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from costmodel.errors import CostModelError, SettingError, shown
from costmodel.extents import check_file, spans_of
from costmodel.plans import Window
from costmodel.results import lazy_dataset
from costmodel.space import Space
from costmodel.streams import Written, interruptible, question_of

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
        done, missing = _earlier(target, asked, len(windows)) if resume else (0, 0)
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


def _earlier(target: Path, asked: str, most: int) -> tuple[int, int]:
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
