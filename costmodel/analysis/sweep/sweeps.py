"""Sweeps: a question with several values for some of its settings and sizes, answered for all of them at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack

from costmodel.analysis.sweep.extents import check_memory
from costmodel.architectures.base import Architecture
from costmodel.cost.quantities import ALL, QUANTITIES
from costmodel.errors import SettingError, not_installed, shown, unknown
from costmodel.hardware.cluster import load_cluster
from costmodel.hardware.machine import show_link_speed
from costmodel.training.settings import LAYOUT_NAMES
from costmodel.training.signatures import takes_settings

if TYPE_CHECKING:
    from costmodel.analysis.sweep.dataset import Sweep
    from costmodel.analysis.sweep.grid import Grid
    from costmodel.hardware.cluster import Cluster, LinkLike
    from costmodel.training.keywords import SettingsAndFields

_WORKERS = {"client": "dask.distributed client", "executor": "concurrent.futures executor"}
JOB_CELLS = 2**20
"""Cells to a task of an executor."""


@takes_settings(several=True, and_fields=True)
def sweep(
    model: Architecture | str,
    *,
    quantities: Iterable[str] | str | None = None,
    network: LinkLike | Iterable[LinkLike] = None,
    chunks: Any = None,
    client: Any = None,
    executor: Executor | None = None,
    **settings: Unpack[SettingsAndFields],
) -> Sweep:
    """What a model costs over a grid of questions, as an `xarray.Dataset` with a variable for each quantity.

    Every cell equals `predict` there. Where that refuses, values are missing (NaN) and the variable `reason` says why.
    Quantities are int64 where every cell has a value below 2^63, else float64: exact up to 2^53, rounded above.

    Args:
        model: as `predict` takes it.
        quantities: names such as "memory.peak" (default: all; of a step's seconds and rates two, where `on` is given).
        network: with `on`, of one adapter between nodes, such as "400 Gb/s", in place of the cluster's; of several each
            cluster is a value of `on` with each, which its label names.
        chunks: cells of a chunk, for each axis or for all, as Dask takes them ("auto" too): arrays are lazy then, and
            are worked out chunk by chunk when they are computed or written.
        client: a `dask.distributed` client whose workers do the work. Without chunks the result is brought here; with
            chunks it stays lazy, and Dask uses the client when it is computed or written.
        executor: any `concurrent.futures.Executor` that does the work.
        **settings: all that `predict` takes, and fields of the model: a list, range or array is an axis, and so
            is the text of a range, such as "1:64"; anything else holds for all cells. Sizes are evaluated by formula,
            all other values each by formulas of their own.

    Raises:
        CostModelError: what is wrong with the question as a whole, in one line.

    Example:
        >>> import costmodel as cm
        >>> grid = cm.sweep("gpt2-small", batch=[1, 2, 4], seq=[512, 1024], quantities=["memory.peak"])
        >>> dict(grid.sizes)
        {'batch': 3, 'seq': 2}
        >>> int(grid["memory.peak"].sel(batch=4, seq=512))  # bytes
        5347920908

    """
    try:
        from costmodel.analysis.sweep.dataset import dataset, lazy_dataset
    except ImportError:
        raise not_installed("a sweep needs xarray and dask", "sweep") from None
    for name, worker, method in (("client", client, "as_current"), ("executor", executor, "submit")):
        if worker is not None and (isinstance(worker, type) or not hasattr(worker, method)):
            raise SettingError(f"{name}={shown(worker)} is no {_WORKERS[name]}: make one, or leave it out")
    grid = grid_of(model, quantities, {**settings, "network": network})
    if chunks is not None:
        return lazy_dataset(grid, chunks)
    check_memory(grid)
    if client is not None:
        with client.as_current():
            return lazy_dataset(grid, "auto").compute()
    return dataset(grid, filled(grid, executor))


def grid_of(model: Architecture | str, quantities: Iterable[str] | str | None, question: Mapping[str, Any]) -> Grid:
    """The questions of a sweep. Raises CostModelError."""
    from costmodel.analysis.closed_forms import varied
    from costmodel.analysis.sweep.axes import read_axes
    from costmodel.analysis.sweep.grid import Grid

    if (over := question.get("over")) is not None or not isinstance(model, Architecture):
        from costmodel.importers.zoo import load

        model = load(model, over=over)
    question = joined({name: value for name, value in question.items() if name != "over"})
    if not isinstance(quantities, Iterable | None) or getattr(quantities, "ndim", 1) == 0:
        raise SettingError(f"quantities={shown(quantities)} is no list of names: use one such as ['memory.peak']")
    every = (*QUANTITIES, *(step_quantities(model) if question.get("on") is not None else ()))
    listed = (quantities,) if isinstance(quantities, str) else every if quantities is None else quantities
    names = tuple(islice(listed, len(ALL) + 1))  # of more, one is not known or there twice
    for quantity in names:
        if not isinstance(quantity, str) or quantity not in ALL:
            raise unknown("quantity", quantity, ALL)
    if len(set(names)) != len(names) or not names:
        raise SettingError(f"quantities={shown(names)}: name one or more, each once")
    axes, settings, changed = read_axes(model, question)
    if changed and all(axis.name not in model.field_names() for axis in axes):
        model, changed = varied(model, changed), {}
    return Grid(model, axes, settings, changed, names)


def step_quantities(model: Architecture) -> tuple[str, str]:
    """What is asked first of a step on a machine: its seconds, and the model's rate, of tokens or of samples."""
    return "seconds", "tokens_per_second" if "seq" in model.BATCH_SIZES else "samples_per_second"


def joined(question: Mapping[str, Any]) -> dict[str, Any]:
    """A question whose machines are clusters, joined by the network that it names, each by each of several.

    Raises CostModelError where there is nothing to join.
    """
    from costmodel.analysis.sweep.axes import listed, varies

    settings = {name: value for name, value in question.items() if name != "network"}
    if (network := question.get("network")) is None:
        return settings
    on = settings.get("on")
    networks = listed("network", network) if varies("on", network) else [network]
    if on is None:
        raise SettingError(f"network={shown(networks[0])} joins nodes of a cluster: give on='h100-sxm', say, too")
    if not settings.keys() & set(LAYOUT_NAMES):
        raise SettingError(f"network={shown(networks[0])} is between devices, of which there is one: leave it out")
    machines = listed("on", on) if varies("on", on) else [on]
    clusters = [_named(load_cluster(machine, speed)) for machine in machines for speed in networks]
    return {**settings, "on": clusters if varies("on", on) or varies("on", network) else clusters[0]}


def _named(cluster: Cluster) -> Cluster:
    """One that is told by its name from others of the same nodes on other networks."""
    speed = "" if cluster.network is None else f", {show_link_speed(cluster.network.bandwidth)}"
    return cluster.model_copy(update={"name": f"{cluster.name}{speed}"})


def filled(grid: Grid, executor: Executor | None = None) -> dict[str, Any]:
    """Arrays of all values, by quantity, worked out by an executor or by threads here."""
    import numpy as np

    out = {quantity: np.empty(grid.shape, grid.dtypes[quantity]) for quantity in grid.quantities}
    if executor is not None:
        windows = list(grid.windows(None, JOB_CELLS, JOB_CELLS))
        jobs = [executor.submit(values_of, grid, window) for window in windows]
        for job, window in zip(jobs, windows, strict=True):
            for quantity, values in job.result().items():
                out[quantity][window] = values
        return out
    windows = list(grid.windows())

    def fill(window: Any) -> None:
        grid.fill(window, {quantity: array[(*window, ...)] for quantity, array in out.items()})

    if len(windows) == 1:
        fill(windows[0])
        return out
    with ThreadPoolExecutor(_cores()) as threads:
        for _ in threads.map(fill, windows):
            pass
    return out


def values_of(grid: Grid, window: Any) -> dict[str, Any]:
    """Values within a window, worked out tile by tile."""
    return grid.cells_in(window).values


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
