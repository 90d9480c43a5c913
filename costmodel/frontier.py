"""The cells of a sweep that no other cell beats in every quantity asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.errors import CostModelError, SettingError, shown, unknown
from costmodel.quantities import QUANTITIES

if TYPE_CHECKING:
    from os import PathLike

    import pandas


def pareto(
    sweep: Any, *quantities: str, most: str | tuple[str, ...] = (), plot: str | PathLike[str] | None = None
) -> pandas.DataFrame:
    """The cells that no other is as good as in all quantities and better than in one, sorted by the first quantity.

    Args:
        sweep: what `cm.sweep` gave, its `.to_dataframe()`, or the path of a Parquet file or Zarr store of it; cells
            without an answer are left out.
        *quantities: variables of the sweep, such as "memory.peak", "flops.total": less is better.
        most: variables or axes, such as "batch", of which more is better.
        plot: where to draw all cells and the front over the first two of them, such as "front.png" (extra `plot`).

    Returns:
        A row for each cell: its place on each axis and these quantities. Cells that are alike are all kept.

    Raises:
        CostModelError: fewer than two quantities, one that the sweep does not have, or a file that cannot be used.

    """
    most = (most,) if isinstance(most, str) else tuple(most)
    found, axes = _cells(sweep)
    frame: Any = found
    names = [*quantities, *most]
    for name in names:
        if name not in frame:
            raise unknown("quantity of this sweep", name, [str(n) for n in frame if n != "reason"])
    if len(set(names)) < 2:
        raise SettingError("pareto takes two quantities or more: give it such as 'memory.peak', 'flops.total'")
    for name in names:
        if frame[name].dtype.kind not in "iuf":
            raise SettingError(f"{name} has names, of which none is more than another: use a quantity or a size")
    frame = frame[[*axes, *(name for name in dict.fromkeys(names) if name not in axes)]].dropna(subset=names)
    frame = frame.sort_values(names, ascending=[name not in most for name in names], kind="stable")
    costs = frame[names].to_numpy(float) * [-1 if name in most else 1 for name in names]
    front: pandas.DataFrame = frame[_unbeaten(costs)].reset_index(drop=True)
    if plot is not None:
        from costmodel.drawings import save
        from costmodel.fronts import picture

        save(picture(frame, front, axes, names, most), plot)
    return front


def _cells(sweep: Any) -> tuple[pandas.DataFrame, list[str]]:
    """A row for each cell, and which of the columns are axes. Raises CostModelError."""
    if isinstance(sweep, str | Path):
        sweep = _read(Path(sweep))
    if hasattr(sweep, "to_dataframe"):
        sweep = sweep.to_dataframe()
    if not hasattr(sweep, "reset_index"):
        raise SettingError(f"{shown(sweep)} is no sweep: give what cm.sweep gave, or where it was saved")
    frame = sweep.reset_index() if any(sweep.index.names) else sweep
    return frame, [str(name) for name in frame if name not in QUANTITIES and name != "reason"]


def _read(path: Path) -> Any:
    """A saved sweep."""
    try:
        if path.suffix == ".zarr":
            import xarray

            return xarray.open_zarr(path, consolidated=False)
        from pyarrow import parquet

        return parquet.read_table(path).to_pandas()
    except ImportError:
        raise CostModelError("reading a sweep needs pyarrow and xarray: pip install 'costmodel[sweep]'") from None
    except (OSError, ValueError) as error:
        why = str(error).partition("\n")[0] if path.exists() else "there is no such file"
        raise CostModelError(f"cannot read the sweep {shown(str(path))}: {why}") from None


def _unbeaten(costs: Any) -> list[bool]:
    """Of rows in lexical order: only an earlier one can beat a row, and one on the front does if any does."""
    import numpy as np

    front: Any = np.empty((0, costs.shape[1]))
    kept = []
    for row in costs:
        beaten = bool(((front <= row).all(axis=1) & (front < row).any(axis=1)).any())
        kept.append(not beaten)
        if not beaten:
            front = np.vstack([front, row])
    return kept
