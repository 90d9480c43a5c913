"""Every probe can be measured, and is stored under a name of its own."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.roofline.probes import GATHERED_ROWS, LARGEST_BYTES, Workbench, probes


@pytest.mark.slow
def test_every_probe_runs_on_the_bench() -> None:
    bench = Workbench(80 * 2**20, GATHERED_ROWS)
    small = [op for _, op in probes() if op.traffic_bytes < 400_000 and op.contractions < 1e6]
    assert len(small) > 200
    with np.errstate(all="ignore"):
        for op in small:
            function, arguments, options = bench.bind(op)
            function(*arguments, **options)


@pytest.mark.slow
def test_probes_have_names_of_their_own_and_fit_the_bench() -> None:
    bench = Workbench(LARGEST_BYTES, GATHERED_ROWS)
    for thorough in (False, True):
        named = list(probes(thorough))
        assert len(dict(named)) == len(named)
        assert all(bench.bind(op) for _, op in named)
