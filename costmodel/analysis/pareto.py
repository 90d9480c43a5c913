"""The cells of a sweep that no other cell beats in every quantity asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.cost.quantities import ALL, TIMED
from costmodel.documents.arguments import typed
from costmodel.errors import CostModelError, SettingError, not_installed, shown, unknown
from costmodel.training.fields import Probability

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    import pandas

    from costmodel.symbolic.evaluation import Array

BLOCK = 128
"""Rows that are compared with others at once."""


@typed
def pareto(
    sweep: Any,
    *quantities: str,
    most: str | tuple[str, ...] = (),
    tolerance: Probability = 0.0,
    plot: str | PathLike[str] | None = None,
    dark: bool = False,
) -> pandas.DataFrame:
    """The cells that no other is as good as in all quantities and better than in one, sorted by the first quantity.

    Args:
        sweep: what `cm.sweep` gave, its `.to_dataframe()`, or the path of a Parquet file or Zarr store of it; cells
            without an answer are left out.
        *quantities: variables of the sweep, such as "memory.peak", "flops.total": less is better.
        most: variables or axes, such as "batch", of which more is better.
        tolerance: differences of at most this share, such as 0.01, count as none: a cell of the front is left out if
            another of it is no worse than that in every quantity, and better by more than that in one. Of cells that
            are left out one after another, in the order of the front, none leaves out another.
        plot: where to draw all cells and the front over the first two of them, such as "front.png" (extra `plot`).
        dark: whether to draw on black instead of white.

    Returns:
        A row for each cell: its place on each axis and these quantities. Cells that are alike are all in it.

    Raises:
        CostModelError: fewer than two quantities, one that the sweep does not have, a tolerance that is no share from
            0 up to 1, or a file that cannot be used.

    Example:
        >>> import costmodel as cm
        >>> grid = cm.sweep("mlp-mnist", batch=[1, 64], optimizer=["sgd", "adamw"], quantities=["memory.peak"])
        >>> cm.pareto(grid, "memory.peak", most="batch")[["batch", "optimizer"]].values.tolist()
        [[1, 'sgd'], [64, 'sgd']]

    """
    most = (most,) if isinstance(most, str) else tuple(most)
    names = [*quantities, *most]
    for name in names:
        if not isinstance(name, str):
            raise unknown("quantity", shown(name), ALL)
    if len(set(names)) < 2:
        raise SettingError("pareto takes two quantities or more: give it such as 'memory.peak', 'flops.total'")
    frame: Any
    frame, axes = _read(Path(sweep), names) if isinstance(sweep, str | Path) else _cells(sweep, names)
    for name in names:
        if frame[name].dtype.kind not in "iuf":
            raise SettingError(f"{name} has names, of which none is more than another: use a quantity or a size")
    frame = frame[[*axes, *(name for name in dict.fromkeys(names) if name not in axes)]].dropna(subset=names)
    frame = frame.sort_values(names, ascending=[name not in most for name in names], kind="stable")
    front: pandas.DataFrame = frame[_unbeaten(_ranks(frame, names, most))].reset_index(drop=True)
    if tolerance:
        front = front[_distinct(front, names, most, tolerance)].reset_index(drop=True)
    if plot is not None:
        if front.empty:
            raise SettingError(f"no cell of the sweep has an answer: there is nothing to draw to {shown(str(plot))}")
        from costmodel.display.figures import DARK, LIGHT, save
        from costmodel.display.scatter import picture

        save(picture(frame, front, axes, names, most, _title(sweep, names), DARK if dark else LIGHT), plot)
    return front


def _title(sweep: Any, names: Sequence[str]) -> str:
    """The model and how it is run, without what varies; where a table or file is given, what it is."""
    if not hasattr(sweep, "attrs") or not hasattr(sweep, "dims"):
        return f"{Path(sweep).name}" if isinstance(sweep, str | Path) else ""
    from costmodel.analysis.sweep.plot import SweepQuestion

    of = SweepQuestion(sweep)
    return of.timed_title if any(name in TIMED for name in names) else of.title


def _distinct(front: pandas.DataFrame, names: Sequence[str], most: Sequence[str], tolerance: float) -> Array:
    """Of the cells of a front, which are left where differences of at most a share count as none."""
    import numpy as np

    columns = [front[name].to_numpy(float) for name in names]
    better = [-column if name in most else column for name, column in zip(names, columns, strict=True)]
    distinct = np.ones(len(front), bool)
    for row in range(len(front)):
        slack = [tolerance * abs(column[row]) for column in columns]
        no_worse = np.logical_and.reduce([c <= c[row] + s for c, s in zip(better, slack, strict=True)])
        ahead = np.logical_or.reduce([c < c[row] - s for c, s in zip(better, slack, strict=True)])
        distinct[row] = not (no_worse & ahead & distinct).any()
    return distinct


def _check_known(names: Sequence[str], columns: Sequence[str]) -> None:
    """Raise UnknownNameError for a name that no column has."""
    for name in names:
        if not isinstance(name, str) or name not in columns or name == "reason":
            raise unknown("quantity of this sweep", name, [n for n in columns if n != "reason"])


def _cells(sweep: Any, names: Sequence[str]) -> tuple[pandas.DataFrame, list[str]]:
    """A row for each cell, and which of the columns are axes. Raises CostModelError."""
    if hasattr(sweep, "to_dataframe"):
        sweep = sweep.to_dataframe()
    if not hasattr(sweep, "reset_index"):
        raise SettingError(f"{shown(sweep)} is no sweep: give what cm.sweep gave, or where it was saved")
    frame = sweep.reset_index() if any(sweep.index.names) else sweep
    _check_known(names, [str(name) for name in frame])
    return frame, [str(name) for name in frame if name not in ALL and name != "reason"]


def _read(path: Path, names: Sequence[str]) -> tuple[pandas.DataFrame, list[str]]:
    """The same of a saved sweep, without cells that lack a value of these names. Raises CostModelError."""
    try:
        from costmodel.analysis.sweep.saved import Damaged, open_saved
    except ImportError:
        raise not_installed("reading a sweep needs pyarrow and pandas", "sweep") from None
    try:
        saved = open_saved(path)
        _check_known(names, saved.columns)
        return saved.cells(list(dict.fromkeys((*saved.axes, *names)))), saved.axes
    except Damaged as error:
        raise CostModelError(
            f"cannot read the sweep {shown(str(path))}: {error}: give a Parquet file or Zarr store as sweeps write them"
        ) from None


def _ranks(frame: pandas.DataFrame, names: Sequence[str], most: Sequence[str]) -> Array:
    """Where each value stands among those of its column, the best first: as numbers compare, and exactly."""
    import numpy as np

    ranks = [np.unique(frame[name].to_numpy(), return_inverse=True)[1] for name in names]
    return np.array([-rank if name in most else rank for name, rank in zip(names, ranks, strict=True)])


def _unbeaten(columns: Array) -> Array:
    """Of rows in lexical order, whether each is on the front; rows that are alike all are, or none is."""
    import numpy as np

    new = np.append(True, (columns[:, 1:] != columns[:, :-1]).any(axis=0))[: columns.shape[1]]
    others = columns[1:, new]
    unbeaten = np.zeros(others.shape[1], bool)
    unbeaten[_front(others, np.arange(unbeaten.size))] = True
    return unbeaten[np.cumsum(new) - 1]


def _front(others: Array, rows: Array) -> Array:
    """The front of different rows in lexical order, where only an earlier one can beat a row, in the other columns."""
    import numpy as np

    if len(others) == 1:
        lowest = np.minimum.accumulate(others[0, rows])
        return rows[np.append(True, lowest[1:] < lowest[:-1])[: rows.size]]
    if rows.size <= BLOCK:
        return rows[~np.triu(_below(others, rows, rows), 1).any(axis=0)]
    first, second = (_front(others, half) for half in np.array_split(rows, 2))
    for start in range(0, first.size, BLOCK):
        second = second[~_below(others, first[start : start + BLOCK], second).any(axis=0)]
    return np.append(first, second)


def _below(others: Array, a: Array, b: Array) -> Array:
    """Whether each of rows a is in no column above each of rows b."""
    import numpy as np

    return np.logical_and.reduce([column[a, None] <= column[b] for column in others])
