"""The cells of a sweep that no other cell beats in every quantity asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from costmodel.errors import SettingError, unknown

if TYPE_CHECKING:
    import pandas


def pareto(sweep: Any, *quantities: str, most: tuple[str, ...] = ()) -> pandas.DataFrame:
    """The cells that no other is as good as in all quantities and better than in one, sorted by the first quantity.

    Args:
        sweep: what `cm.sweep` gave; cells without an answer are left out.
        *quantities: variables of the sweep, such as "memory.peak", "flops.total": less is better.
        most: variables or axes, such as "batch", of which more is better.

    Returns:
        A row for each cell: its place on each axis and these quantities. Cells that are alike are all kept.

    Raises:
        CostModelError: fewer than two quantities, or one that the sweep does not have.

    """
    names = [*quantities, *most]
    known = [str(name) for name in (*sweep.dims, *sweep.data_vars) if name != "reason"]
    for name in names:
        if name not in known:
            raise unknown("quantity of this sweep", name, known)
    if len(set(names)) < 2:
        raise SettingError("pareto takes two quantities or more: give it such as 'memory.peak', 'flops.total'")
    held = [name for name in names if name in sweep.data_vars]
    frame = sweep[held or list(quantities)].to_dataframe().reset_index().dropna(subset=held)
    frame = frame.sort_values(names, ascending=[name not in most for name in names], kind="stable")
    costs = frame[names].to_numpy(float) * [-1 if name in most else 1 for name in names]
    return frame[_unbeaten(costs)].reset_index(drop=True)


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
