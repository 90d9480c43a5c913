"""What ``costmodel sweep`` prints and writes."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.analysis.sweep.extents import check_file
from costmodel.analysis.sweep.sweeps import space_of
from costmodel.cost.quantities import QUANTITIES
from costmodel.display.table import Table
from costmodel.display.units import show_bytes, show_count, show_flops
from costmodel.errors import CostModelError, SettingError, shown, unknown

if TYPE_CHECKING:
    from costmodel.analysis.sweep.grid import Space

SHOWN = ("params", "flops.total", "memory.activations", "memory.peak")
"""What a table has unless quantities are named."""
MOST_PRINTED = 40
MOST_JSON = 100_000
"""Cells that are printed; more are for a file."""


def printed(model: str, asked: Mapping[str, Any], quantities: Sequence[str] | None, as_json: bool) -> str:
    """All cells as JSON, or the first as a table. Raises CostModelError."""
    space = space_of(model, quantities or (None if as_json else SHOWN), asked)
    if as_json and space.cells > MOST_JSON:
        raise SettingError(f"{space.cells:,} cells are too many to print: write them with --out sweep.parquet")
    check_file(space)
    window = next(space.windows(None, space.cells if as_json else MOST_PRINTED, space.cells))
    rows = list(_rows(space, window))
    if as_json:
        return json.dumps(rows, indent=2)
    names = [name for name in rows[0] if name != "reason"]
    words = frozenset(n for n, name in enumerate(names) if isinstance(rows[0][name], str))
    lines = [Table(names, [[_text(name, row[name]) for name in names] for row in rows], words=words).text()]
    if more := space.cells - len(rows):
        lines.append(f"{more:,} more cells: write them all with --out sweep.parquet")
    reasons = Counter(row["reason"] for row in rows if row["reason"])
    lines += ["", *(f"no answer in {count}: {reason}" for reason, count in reasons.items())] if reasons else []
    return "\n".join(lines)


def drawn(
    model: str, asked: Mapping[str, Any], quantities: Sequence[str] | None, path: str, memory: str | None, reserve: str
) -> None:
    """Draw a sweep; see `Sweep.plot`. Raises CostModelError."""
    from costmodel.analysis.sweep.sweeps import sweep

    wanted = list(quantities or ("memory.peak",))
    first = wanted[0]
    if memory and "memory.peak" not in wanted:
        wanted.append("memory.peak")
    sweep(model, quantities=wanted, **asked).plot(path, quantity=first, memory=memory, reserve=reserve or 0)


def unbeaten(
    model: str,
    asked: Mapping[str, Any],
    quantities: Sequence[str],
    most: Sequence[str],
    plot: str | None,
    as_json: bool,
) -> str:
    """The cells of a sweep, or of a saved one, that no other beats, as JSON or as a table. Raises CostModelError."""
    from costmodel.analysis.pareto import pareto
    from costmodel.analysis.sweep.sweeps import sweep

    saved = Path(model).suffix in (".parquet", ".zarr")
    if saved and asked:
        raise SettingError(f"{next(iter(asked))} is for a model: {shown(model)} holds a sweep already")
    wanted = [name for name in (*quantities, *most) if name in QUANTITIES]
    for name in () if saved else (*quantities, *most):
        if name not in wanted and name not in asked:
            raise unknown("quantity or axis", name, [*QUANTITIES, *asked])
    grid = model if saved else sweep(model, quantities=list(dict.fromkeys(wanted)) or None, **asked)
    front = pareto(grid, *quantities, most=tuple(most), plot=plot)
    rows: list[dict[str, Any]] = [
        {str(name): int(v) if isinstance(v, float) and v.is_integer() else v for name, v in row.items()}
        for row in front.to_dict("records")
    ]
    if as_json:
        return json.dumps(rows, indent=2)
    names = list(map(str, front.columns))
    words = frozenset(n for n, name in enumerate(names) if front[name].dtype.kind not in "iuf")
    shown_rows = [[_text(name, row[name]) for name in names] for row in rows]
    return Table(names, shown_rows, words=words).text()


def written(
    model: str, asked: Mapping[str, Any], quantities: Sequence[str] | None, out: str, resume: bool
) -> dict[str, Any]:
    """Write all cells to a file; returns what it holds. Raises CostModelError, KeyboardInterrupt."""
    if Path(out).suffix not in (".parquet", ".zarr"):
        raise SettingError(f"--out {shown(out)} has no known ending: use a name that ends in .parquet or .zarr")
    space = space_of(model, quantities, asked)
    try:
        if Path(out).suffix == ".zarr":
            from costmodel.analysis.sweep.stores import store as write
        else:
            from costmodel.analysis.sweep.stores import stream as write
    except ImportError:
        raise CostModelError("writing a sweep needs pyarrow and xarray: pip install 'costmodel[sweep]'") from None
    try:
        with _progress(space.cells) as advance:
            cells, missing = write(space, out, resume=resume, progress=advance)
    except KeyboardInterrupt as stopped:
        print(f"stopped: {str(stopped) or 'nothing was written'}", file=sys.stderr)
        raise
    return {"path": out, "cells": cells, "missing": missing, "quantities": list(space.quantities)}


def summary(found: Mapping[str, Any]) -> str:
    """What `written` returns, in a line."""
    missing = found["missing"]
    why = f", {missing:,} of them without an answer (column reason says why)" if missing else ""
    return f"{found['path']}: {found['cells']:,} cells{why}, {len(found['quantities'])} quantities"


@contextmanager
def _progress(cells: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr if that is a terminal; yields what is told of cells that are done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("sweep"), BarColumn(), MofNCompleteColumn(), TextColumn("cells"), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("sweep", total=cells or None)
        yield lambda done: bar.update(task, advance=done)


def _rows(space: Space, window: Any) -> Iterator[dict[str, Any]]:
    """Cells in order: labels, values (None where there is none), and why not."""
    shape = tuple(part.stop - part.start for part in window)
    arrays, reasons = space.exact(window), np.broadcast_to(space.reasons(window), shape)
    for index in np.ndindex(*shape):
        labels = {
            axis.name: axis.labels[part.start + i] for axis, part, i in zip(space.axes, window, index, strict=True)
        }
        reason = reasons[index]
        values = {name: None if reason else array[index].item() for name, array in arrays.items()}
        yield {**labels, **values, "reason": reason}


def _text(name: str, value: Any) -> str:
    group = name.partition(".")[0]
    if value is None:
        return "-"
    if name in QUANTITIES:
        show = {"memory": show_bytes, "flops": show_flops, "pointwise_flops": show_flops}.get(group, show_count)
        return show(value)
    return str(value)
