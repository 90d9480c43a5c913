"""Sweeps on a real cluster: two worker processes, one of which is killed half way."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas
import pytest
import xarray
from dask.distributed import Client, LocalCluster

import costmodel as cm

SMALL = cm.Transformer(vocab=50, context=16, layers=3, width=24, heads=4)
GRID: dict[str, Any] = {"batch": range(1, 17), "seq": [1, 2, 8, 16, 32], "heads": [1, 3, 4, 5]}
NAMES = ["params", "flops.total", "memory.peak"]


@pytest.fixture(scope="module")
def client() -> Any:
    quiet = {"distributed.admin.log-format": "", "logging.distributed": "critical"}
    with (
        dask.config.set(quiet),
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


def kill_at_the_second_part(directory: str) -> None:
    """Run in a worker: once it gives a second file its name, its process is killed, as if its machine were gone."""
    uses = itertools.count(1)

    def used(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.rename" and directory in str(arguments[1]) and next(uses) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(used)


@pytest.mark.slow
def test_a_client_gives_the_same(client: Any) -> None:
    assert cm.sweep(SMALL, **GRID, client=client).identical(cm.sweep(SMALL, **GRID))


@pytest.mark.slow
def test_nothing_is_lost_with_a_worker(client: Any, tmp_path: Path) -> None:
    whole = cm.sweep(SMALL, **GRID, quantities=NAMES)
    lazy = cm.sweep(SMALL, **GRID, quantities=NAMES, chunks={"batch": 1, "heads": 1}, client=client)
    path = tmp_path / "sweep.parquet"
    before = client.run(os.getpid)
    client.run(kill_at_the_second_part, str(path), workers=[min(before)])
    lazy.to_parquet(path)
    client.wait_for_workers(len(before))
    assert set(before.values()) - set(client.run(os.getpid).values()), "none was killed"
    frame = pandas.read_parquet(path).set_index(list(GRID)).sort_index()
    expected = whole.to_dataframe().sort_index()
    pandas.testing.assert_frame_equal(frame[NAMES], expected[NAMES])
    assert list(frame.reason.fillna("")) == list(expected.reason)
    assert len(list(path.glob("*"))) == 16 * 4


@pytest.mark.slow
def test_workers_write_zarr(client: Any, tmp_path: Path) -> None:
    lazy = cm.sweep(SMALL, **GRID, quantities=NAMES, chunks={"batch": 4}, client=client)
    lazy.to_zarr(tmp_path / "sweep.zarr", consolidated=False)
    found = xarray.open_zarr(tmp_path / "sweep.zarr", consolidated=False)
    np.testing.assert_array_equal(found["memory.peak"], cm.sweep(SMALL, **GRID, quantities=NAMES)["memory.peak"])
