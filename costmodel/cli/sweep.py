"""``costmodel sweep | pareto``, and what they print and write."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.cli.commands import MODEL, RESERVE, Reply, argument, option, verb, write
from costmodel.cli.options import AXES, OVER, QUANTITIES, read_several
from costmodel.cost.quantities import ALL as KNOWN
from costmodel.display.table import Table, is_terminal, narrowed, printable
from costmodel.display.units import show_seconds, shower
from costmodel.errors import CostModelError, SettingError, not_installed, shown, unknown
from costmodel.training.settings import SETTING_NAMES

if TYPE_CHECKING:
    from costmodel.analysis.sweep.grid import Grid
    from costmodel.architectures.base import Architecture
    from costmodel.cost.costs import Costs

SHOWN = ("params", "flops.total", "memory.activations", "memory.peak")
"""What a table has unless quantities are named."""
MOST_PRINTED = 40
MOST_JSON = 100_000
"""Cells that are printed; more are for a file."""
RESUMED = (".parquet", ".zarr")
STORED = (*RESUMED, ".csv", ".json")
"""Endings of files that hold cells; any other is of a picture."""
NETWORKS = option(
    "--network",
    metavar="RATE,...",
    callback=read_several,
    help="With --on, of one adapter between nodes of a layout, such as '400 Gb/s'; each cluster with each of several.",
)


@verb(
    MODEL,
    QUANTITIES,
    option(
        "--out",
        metavar="FILE",
        multiple=True,
        help="Write all cells to FILE.parquet, .zarr, .csv or .json instead of a table, or draw them as FILE.png, .svg "
        "or .pdf; may be given again.",
    ),
    option("--resume", is_flag=True, help="Go on with a file that an interrupt left."),
    option("--memory", metavar="SIZE", multiple=True, help="In a picture, draw what fits; may be given again."),
    RESERVE,
    NETWORKS,
    OVER,
    *AXES,
    examples=(
        "sweep gpt2-small --batch 1:64:*2 --seq 512,1024 --optimizer sgd,adamw --out sweep.parquet",
        "sweep gpt2-small --over layers=6:24:6 --over width=768,1536 --quantities params,memory.peak",
        "sweep resnet50 --batch 8,16 --image 224,224x320 --json",
        "sweep gpt2-small --batch 1:64 --seq 128:1024:64 --out fits.png --memory 24GiB",
    ),
)
def sweep(
    model: str,
    quantities: list[str] | None,
    out: tuple[str, ...],
    resume: bool,
    memory: tuple[str, ...],
    reserve: str | None,
    network: Sequence[Any] | None,
    settings: dict[str, Any],
) -> Any:
    """A grid of questions: options take several values, as 1,2,4 or in ranges 1:64, 6:48:6, 1:64:*2, ends included.

    Names of parts to checkpoint together are joined as in --checkpoint none,mlp+attention.
    """
    settings |= {} if network is None else {"network": network}
    pictures = [path for path in out if Path(path).suffix.lower() not in STORED]
    stored = [path for path in out if path not in pictures]
    if (memory or reserve) and not pictures:
        raise click.UsageError("--memory and --reserve are drawn: give a picture too, such as --out fits.png")
    if len(stored) > 1:
        raise click.UsageError("--out names more than one file of cells: write one, and convert it")
    if resume and not (stored and Path(stored[0]).suffix in RESUMED):
        raise click.UsageError("--resume goes on with a file: give its --out FILE.parquet or FILE.zarr too")
    for path in pictures:
        _check_picture(path)
    for path in pictures:
        _draw(model, settings, quantities, path, memory, reserve)
    cells = CellTable(model, settings, quantities)
    if not stored:
        return cells
    if Path(stored[0]).suffix in RESUMED:
        return _written(model, settings, quantities, stored[0], resume)
    write(Reply(cells.to_dict(), ""), stored[0])
    return Reply({"path": stored[0], "cells": len(cells.to_dict())}, f"{stored[0]}: {len(cells.to_dict()):,} cells")


@verb(
    MODEL,
    argument("quantities", "Of which less is better: memory.peak, flops.hardware, ...", several="QUANTITY..."),
    option("--most", metavar="NAME", multiple=True, help="Of which more is better: batch, seq, ..."),
    option("--tolerance", metavar="SHARE", type=float, default=0.0, help="Smaller differences count as none (0.01)."),
    option("--out", metavar="FILE", help="Also draw it, as FILE.png, .svg or .pdf, or write it: .csv, .html, ..."),
    NETWORKS,
    OVER,
    *AXES,
    examples=(
        "pareto gpt2-small memory.peak flops.hardware --batch 8 --checkpoint none,selective,block,mlp+attention",
        "pareto resnet50 memory.peak --most batch --batch 1:64:*2 --optimizer sgd,adamw --json",
    ),
)
def pareto(
    model: str,
    quantities: tuple[str, ...],
    most: tuple[str, ...],
    tolerance: float,
    out: str | None,
    network: Sequence[Any] | None,
    settings: dict[str, Any],
) -> Reply:
    """The cells of a grid of questions that no other beats. MODEL may be a sweep that was saved, as sweep.parquet."""
    from costmodel.analysis.pareto import pareto as front_of
    from costmodel.analysis.sweep.plot import SweepQuestion
    from costmodel.analysis.sweep.sweeps import sweep as swept
    from costmodel.display.output import PICTURES, check_out

    if out is not None:
        check_out(out, drawn=True)
    saved = Path(model).suffix in (".parquet", ".zarr")
    settings |= {} if network is None else {"network": network}
    if saved and settings:
        raise SettingError(f"{next(iter(settings))} is for a model: {shown(model)} holds a sweep already")
    known = [name for name in (*quantities, *most) if name in KNOWN]
    for name in () if saved else (*quantities, *most):
        if name not in known and name not in settings:
            raise unknown("quantity or axis", name, [*KNOWN, *settings])
    grid: Any = model if saved else swept(model, quantities=list(dict.fromkeys(known)) or None, **settings)
    picture = out if out is not None and Path(out).suffix.lower() in PICTURES else None
    front = front_of(grid, *quantities, most=most, tolerance=tolerance, plot=picture)
    rows: list[dict[str, Any]] = [
        {str(name): int(v) if isinstance(v, float) and v.is_integer() else v for name, v in row.items()}
        for row in front.to_dict("records")
    ]
    title = "" if saved else SweepQuestion(grid).first_line
    answer = Reply(rows, f"{narrowed(title)}\n\n" * bool(title) + _table(rows, list(map(str, front.columns))))
    if out is not None and picture is None:
        write(answer, out)
    return answer


class CellTable:
    """The cells of a sweep for a person: all of them as data, the first as a table."""

    def __init__(self, model: str, settings: Mapping[str, Any], quantities: Sequence[str] | None) -> None:
        self.question = model, settings
        self.quantities = quantities

    def to_dict(self) -> list[dict[str, Any]]:
        """A mapping for each cell. Raises CostModelError, of which one is for too many cells."""
        from costmodel.analysis.sweep.sweeps import grid_of

        model, settings = self.question
        grid = grid_of(model, self.quantities, settings)
        if grid.cells > MOST_JSON:
            raise SettingError(f"{grid.cells:,} cells are too many to print: write them with --out sweep.parquet")
        return _rows(grid, grid.cells)

    def __str__(self) -> str:
        from costmodel.analysis.sweep.sweeps import grid_of, step_quantities

        model, settings = self.question
        grid = grid_of(model, self.quantities or SHOWN, settings)
        if not self.quantities and "on" in settings:
            grid = grid_of(grid.model, (*step_quantities(grid.model), *SHOWN), settings)
        rows = [_with_range(grid, row) for row in _rows(grid, MOST_PRINTED)]
        lines = [narrowed(_question(grid)), "", _table(rows, [name for name in rows[0] if name != "reason"])]
        if more := grid.cells - len(rows):
            lines.append(f"{more:,} more cells: write them all with --out sweep.parquet")
        reasons = Counter(row["reason"] for row in rows if row["reason"])
        lines += ["", *(f"no answer in {count}: {reason}" for reason, count in reasons.items())] if reasons else []
        return "\n".join(lines)


def _cell(grid: Grid, values: Mapping[str, Any]) -> tuple[Architecture, dict[str, Any]]:
    """The model and the settings of one question of a grid, by the value on each axis. Raises CostModelError."""
    from costmodel.analysis.closed_forms import varied

    fields = {**grid.changed, **{name: value for name, value in values.items() if name not in SETTING_NAMES}}
    settings = grid.settings | {name: value for name, value in values.items() if name in SETTING_NAMES}
    return varied(grid.model, fields) if fields else grid.model, settings


def _first(grid: Grid) -> Costs | None:
    """The answer of a grid's first or last cell, whichever has one."""
    from costmodel.cost.costs import Costs

    for place in (0, -1):
        with suppress(CostModelError):
            model, settings = _cell(grid, {axis.name: axis.values[place] for axis in grid.axes})
            return Costs.of(model, **settings)
    return None


def _with_range(grid: Grid, row: dict[str, Any]) -> dict[str, Any]:
    """A cell's row with the range of its seconds, if it has these, beside them."""
    if "seconds" not in row:
        return row
    text = None
    if row["seconds"] is not None:
        from costmodel.analysis.predict import predict

        values = {axis.name: axis.values[axis.labels.index(row[axis.name])] for axis in grid.axes}
        model, settings = _cell(grid, values)
        time = predict(model, **settings).time
        text = f"{show_seconds(time.low)} to {show_seconds(time.high)}"
    return {
        column: value
        for name, cell in row.items()
        for column, value in ({name: cell, "range": text} if name == "seconds" else {name: cell}).items()
    }


def _question(grid: Grid) -> str:
    """The question of a grid without what varies in it, as far as its first or its last cell has an answer."""
    from costmodel.cost.question import question, timed_question

    if (first := _first(grid)) is None:
        return printable(grid.model.title)
    words = question if first.settings.on is None else timed_question
    return words(first.model, first.settings, [axis.name for axis in grid.axes if len(axis.values) > 1])


def _check_picture(path: str) -> None:
    """Raise SettingError or CostModelError for a name that is neither of cells nor of a picture."""
    from costmodel.display.figures import figure_class
    from costmodel.documents.files import check_writable

    if Path(path).suffix[1:].lower() not in figure_class()().canvas.get_supported_filetypes():
        raise SettingError(
            f"--out {shown(path)} has no known ending: use a name that ends in .parquet, .zarr, .csv or .json (cells), "
            "or .png, .svg or .pdf (a picture)"
        )
    check_writable(path)


def _draw(
    model: str,
    settings: Any,
    quantities: Sequence[str] | None,
    path: str,
    memory: Sequence[str],
    reserve: str | None,
) -> None:
    """Draw a sweep; see `Sweep.plot`. Raises CostModelError."""
    from costmodel.analysis.sweep.sweeps import sweep as swept

    names = list(quantities or (("seconds",) if "on" in settings and not memory else ("memory.peak",)))
    first = names[0]
    if memory and "memory.peak" not in names:
        names.append("memory.peak")
    grid = swept(model, quantities=names, **settings)
    grid.plot(path, quantity=first, memory=list(memory) or None, reserve=reserve or 0)


def _written(
    model: str, settings: Mapping[str, Any], quantities: Sequence[str] | None, out: str, resume: bool
) -> Reply:
    """Write all cells to a file; says what it holds. Raises CostModelError, KeyboardInterrupt."""
    from costmodel.analysis.sweep.sweeps import grid_of

    grid = grid_of(model, quantities, settings)
    try:
        if Path(out).suffix == ".zarr":
            from costmodel.analysis.sweep.stores import store as write
        else:
            from costmodel.analysis.sweep.stores import stream as write
    except ImportError:
        raise not_installed("writing a sweep needs pyarrow and xarray", "sweep") from None
    try:
        with click.progressbar(
            length=grid.cells, label="sweep", show_pos=True, file=sys.stderr, hidden=not is_terminal(sys.stderr)
        ) as bar:
            cells, missing = write(grid, out, resume=resume, progress=bar.update)
    except KeyboardInterrupt as stopped:
        print(f"stopped: {str(stopped) or 'nothing was written'}", file=sys.stderr)
        raise
    data = {"path": out, "cells": cells, "missing": missing, "quantities": list(grid.quantities)}
    why = f", {missing:,} of them without an answer (column reason says why)" if missing else ""
    return Reply(data, f"{out}: {cells:,} cells{why}, {len(grid.quantities)} quantities")


def _rows(grid: Grid, most: int) -> list[dict[str, Any]]:
    """The first cells in order: labels, values (None where there is none), and why not. Raises CostModelError."""
    import numpy as np

    from costmodel.analysis.sweep.extents import check_file

    check_file(grid)
    window = next(grid.windows(None, most, grid.cells))
    shape = tuple(part.stop - part.start for part in window)
    arrays, reasons = grid.exact(window), np.broadcast_to(grid.reasons(window), shape)
    rows = []
    for index in np.ndindex(*shape):
        labels = {
            axis.name: axis.labels[part.start + i] for axis, part, i in zip(grid.axes, window, index, strict=True)
        }
        reason = reasons[index]
        values = {name: None if reason else array[index].item() for name, array in arrays.items()}
        rows.append({**labels, **values, "reason": reason})
    return rows


def _table(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    told = (any(isinstance(row[name], str | bool) for row in rows) and name != "range" for name in names)
    words = frozenset(n for n, is_text in enumerate(told) if is_text)  # a range is a figure
    cells = [[_text(name, row[name]) for name in names] for row in rows]
    axes = sum(1 for _ in takewhile(lambda name: name not in KNOWN, names))
    return Table(names, cells, words=words, key=max(axes, 1)).text()


def _text(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in KNOWN:
        return shower(name)(value)
    return str(value)
