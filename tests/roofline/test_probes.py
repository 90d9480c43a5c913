"""Every probe can be measured, and is stored under a name of its own; working sets follow from what is measured."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from costmodel.roofline.clock import Clock
from costmodel.roofline.probes import FIRST_BYTES, GATHERED_ROWS, WorkingSets, probes, working_sets
from costmodel.roofline.program import NumpyCall
from tests.roofline.synthetic import SETS


@pytest.mark.slow
def test_every_probe_runs_on_the_bench() -> None:
    small = [op for _, op in probes(SETS) if op.traffic_bytes < 400_000 and op.contractions < 1e6]
    assert len(small) > 200
    with np.errstate(all="ignore"):
        for function, arguments, options in Clock().bind_each(small, GATHERED_ROWS):
            function(*arguments, **options)


def test_calls_that_share_memory_keep_their_own_constants() -> None:
    masked = [op for name, op in probes(SETS) if name.startswith("where ")]
    thunks = Clock().bind_each(masked, GATHERED_ROWS)
    masks = [mask for _, _, options in thunks for mask in options["where"]]  # one of each square
    assert len({mask.shape for mask in masks}) > 3
    assert all(np.array_equal(mask, np.tri(len(mask), dtype=bool)) for mask in masks)


@pytest.mark.slow
def test_probes_have_names_of_their_own() -> None:
    for thorough in (False, True):
        named = list(probes(SETS, thorough))
        assert len(dict(named)) == len(named)


MIB = 1 << 20


def copying(*levels: tuple[float, float], beyond: float):
    """Seconds of a copy where each level is of so many bytes, and of so many bytes a second."""

    def seconds(op: NumpyCall) -> float:
        size = op.traffic_bytes
        rate = next((rate for capacity, rate in levels if size <= capacity), beyond)
        return 1e-6 + size / rate

    return seconds


@pytest.mark.parametrize("cache", [3 * MIB, 30 * MIB, 260 * MIB, 900 * MIB])
def test_the_curve_ends_where_a_doubling_changes_nothing_whatever_the_cache(cache: int) -> None:
    sets = working_sets(copying((MIB, 1e11), (cache, 5e10), beyond=1e10), least=700 * MIB, most=1 << 34)
    assert cache <= sets.beyond <= 1.2 * cache, "the largest cache is found"
    assert max(700 * MIB, 2 * cache) <= sets.curve[-1] <= 8 * max(700 * MIB, cache)
    assert sum(cache / 2 < size < 2 * cache for size in sets.curve) >= 4, "more of them where more changes"


def test_memory_that_only_takes_in_more_slowly_is_beyond_all_caches() -> None:
    """As where others use the cache too, so that most of it hands out hardly faster than memory."""
    cache = 30 * MIB
    handed = copying((MIB, 1e11), (cache / 3, 3e10), (cache, 2.4e10), beyond=2e10)
    taken = copying((cache, 2e10), beyond=8e9)
    sets = working_sets(lambda op: (taken if op.name == "copyto" else handed)(op), least=700 * MIB, most=1 << 34)
    assert cache < sets.beyond < 8 * cache
    assert sets.far[-1] == sets.beyond


def test_no_working_set_is_larger_than_what_is_free() -> None:
    sets = working_sets(copying((MIB, 1e11), (1 << 40, 5e10), beyond=1e10), least=64 * MIB, most=64 * MIB)
    assert 32 * MIB < sets.curve[-1] <= 64 * MIB


@pytest.mark.parametrize(
    "curve",
    [(), (FIRST_BYTES,), (1, 2), (FIRST_BYTES, 1 << 50), (FIRST_BYTES, FIRST_BYTES + 1, 1 << 25), (1 << 25, 1 << 20)],
)
def test_working_sets_rise_from_the_first_cache_to_memory(curve: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="working sets are no rising sizes"):
        WorkingSets(curve, curve[-1] if curve else 0)
    assert all(a < b for a, b in pairwise(SETS.far))
