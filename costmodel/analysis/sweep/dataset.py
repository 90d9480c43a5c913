"""What a sweep gives: an xarray dataset, whole or lazy, which is also written to Parquet (extra `sweep`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dask.array
import numpy as np
import xarray

from costmodel.analysis.sweep.axes import Axis, label_of
from costmodel.analysis.sweep.extents import spans_of
from costmodel.analysis.sweep.grid import Grid
from costmodel.display.units import UNITS
from costmodel.documents.arguments import typed
from costmodel.errors import CostModelError, shown
from costmodel.importers.files import describe
from costmodel.symbolic.evaluation import GridWindow
from costmodel.training.setting import plain

if TYPE_CHECKING:
    from os import PathLike

    from matplotlib.figure import Figure


class Sweep(xarray.Dataset):
    """A variable for each quantity, with its unit in `attrs`, over one dimension for each axis; and `reason`."""

    __slots__ = ()

    def __repr__(self) -> str:
        """The question, and then what xarray shows."""
        return "\n".join([*self._first_lines(), super().__repr__()])

    def _repr_html_(self) -> str:
        from html import escape

        return "".join([*(f"<p><b>{escape(line)}</b></p>" for line in self._first_lines()), super()._repr_html_()])

    def _first_lines(self) -> list[str]:
        """The question, if this is still the answer to one: what was worked out from a sweep is not."""
        from costmodel.analysis.sweep.plot import SweepQuestion

        whole = "question" in self.attrs and all(dim in self.coords and self.sizes[dim] for dim in self.dims)
        return [SweepQuestion(self).first_line] if whole else []

    @typed
    def to_parquet(self, path: str | PathLike[str]) -> None:
        """Write a table of one row for each cell: a file, or if lazy a directory of a file for each chunk.

        Raises CostModelError if it cannot be written.
        """
        from costmodel.analysis.sweep.tables import write_parquet

        write_parquet(self, path)

    def to_zarr(self, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As `xarray.Dataset.to_zarr`, but that every chunk is written: one that is gone later is missing, not zero.

        Raises CostModelError if it cannot be written.
        """
        kwargs.setdefault("write_empty_chunks", True)
        own = {"encoding", "region", "append_dim"} & kwargs.keys() or kwargs.get("zarr_format") == 2
        if not own and kwargs.get("mode") in (None, "w", "w-"):
            kwargs["encoding"] = {str(name): {"fill_value": _absent(self[name].dtype)} for name in self.data_vars}
        try:
            return super().to_zarr(*args, **kwargs)
        except (OSError, TypeError, ValueError, AttributeError) as error:
            reason = getattr(error, "strerror", None) or shown(str(error))
            raise CostModelError(f"cannot write {shown(args[0] if args else '')}: {reason}") from None

    @typed
    def plot(  # pyright: ignore[reportIncompatibleVariableOverride]
        self,
        path: str | PathLike[str] | None = None,
        *,
        quantity: str | None = None,
        memory: str | int | Sequence[str | int] | None = None,
        reserve: str | int = 0,
        dark: bool = False,
    ) -> Figure:
        """Draw a quantity over one or two axes, also to `path` (extra `plot`).

        Over two axes its values are colours, or lines where one has a few names or two numbers; along one axis
        memory.peak is stacked by category, others are a line.

        Args:
            path: where to, such as "sweep.png".
            quantity: default memory.peak if the sweep has it, else the first.
            memory: budgets such as "24 GiB", or several: the edge of what fits each is drawn; what does not fit a
                single one is veiled. None: of 16, 24, 40 and 80 GiB those that are within memory.peak.
            reserve: memory to leave for what is not modelled.
            dark: on black instead of white.

        Raises:
            CostModelError: more than two axes of several values, an unknown quantity, or `path` cannot be written.

        """
        from costmodel.analysis.sweep.plot import picture
        from costmodel.display.figures import save

        return save(picture(self, quantity, memory, reserve, dark), path)


def _absent(dtype: np.dtype[Any]) -> Any:
    """What stands in a Zarr store where a chunk is missing: a value that no cell of a sweep has."""
    return {"i": -1, "f": float("nan")}.get(dtype.kind, "missing from the store")


TEXT = np.dtype("O", metadata={"element_type": str})
"""Texts of any length, as xarray marks them so that they are written without a look at all of them."""


def dataset(grid: Grid, arrays: Mapping[str, Any]) -> Sweep:
    """The result of arrays that are there already."""
    reasons = np.broadcast_to(grid.reasons(grid.whole), grid.shape)
    return _dataset(grid, {**arrays, "reason": reasons})


def lazy_dataset(grid: Grid, chunks: Any) -> Sweep:
    """The result as Dask arrays, worked out when they are computed. Raises SettingError."""
    spans = spans_of(grid, chunks)
    arrays: dict[str, Any] = {}
    for dtype in (np.int64, np.float64):
        names = [quantity for quantity in grid.quantities if grid.dtypes[quantity] is dtype]
        if names:
            stack = dask.array.map_blocks(
                _values,
                chunks=((len(names),), *spans),
                dtype=dtype,
                meta=np.empty((0,) * (1 + len(spans)), dtype),
                grid=grid,
                names=tuple(names),
            )
            arrays.update({name: stack[number] for number, name in enumerate(names)})
    arrays["reason"] = dask.array.map_blocks(
        _reasons, chunks=spans, dtype=TEXT, meta=np.empty((0,) * len(spans), TEXT), grid=grid
    )
    return _dataset(grid, {name: arrays[name] for name in (*grid.quantities, "reason")})


def _values(grid: Grid, names: tuple[str, ...], block_info: Any = None) -> Any:
    """One chunk's values of several quantities, one after another."""
    window = _window(block_info)[1:]
    out = np.empty((len(names), *(part.stop - part.start for part in window)), grid.dtypes[names[0]])
    grid.fill_all(window, {name: out[number, ...] for number, name in enumerate(names)})
    return out


def _reasons(grid: Grid, block_info: Any = None) -> Any:
    window = _window(block_info)
    return np.broadcast_to(grid.reasons(window), tuple(part.stop - part.start for part in window))


def _window(block_info: Any) -> GridWindow:
    return tuple(slice(start, stop) for start, stop in block_info[None]["array-location"])


def _dataset(grid: Grid, arrays: Mapping[str, Any]) -> Sweep:
    dims = [axis.name for axis in grid.axes]
    attrs = {quantity: {"units": UNITS[quantity.partition(".")[0]]} for quantity in grid.quantities}
    attrs["reason"] = {"description": "why there is no answer; empty where there is one"}
    fixed = {name: label_of(value) for name, value in (grid.settings | grid.changed).items()}
    return Sweep(
        {name: (dims, array, attrs[name]) for name, array in arrays.items()},
        coords={axis.name: (axis.name, _labels(axis), _description(grid, axis.name)) for axis in grid.axes},
        attrs={"model": grid.model.title, "settings": json.dumps(fixed), "question": _question(grid)},
    )


def _question(grid: Grid) -> str:
    """What `predict` takes for each cell, as JSON: the model, what holds for all, and what labels stand for."""
    values = {
        axis.name: dict(zip(map(str, axis.labels), axis.values, strict=True))
        for axis in grid.axes
        if isinstance(axis.labels[0], str)
    }
    question = {
        "model": describe(grid.model),
        "settings": grid.settings,
        "changed": grid.changed,
        "values": values,
    }
    try:
        return json.dumps(question, default=plain)
    except (AttributeError, TypeError, ValueError, RecursionError):  # of values that are refused in every cell
        return ""


def _labels(axis: Axis) -> Any:
    return np.asarray(axis.labels, TEXT if isinstance(axis.labels[0], str) else None)


def _description(grid: Grid, name: str) -> dict[str, str]:
    field = grid.model.field_named(name) if name in grid.model.field_names() else None
    return {"description": (field.description or name) if field else f"setting {name}"}
