"""Atoms of polynomials, and the conditions that are written down of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from costmodel.symbolic.guards import Decisions
from costmodel.symbolic.polynomial import Atom

THREADS = 4


@pytest.fixture
def _hasty() -> Iterator[None]:
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_hasty")
def test_threads_have_one_atom_of_a_key() -> None:
    barrier = Barrier(THREADS)

    def atoms(trial: int) -> list[Atom]:
        barrier.wait()
        return [Atom("letter", (f"letter_{trial}_{number}",)) for number in range(500)]

    with ThreadPoolExecutor(THREADS) as threads:
        for trial in range(30):
            first, *others = threads.map(atoms, [trial] * THREADS)
            assert all(atom is same for other in others for atom, same in zip(other, first, strict=True))


def test_a_decision_that_comes_out_alike_everywhere_is_not_written_down() -> None:
    decisions = Decisions()
    size = decisions.letter("size", 4)
    assert size > 0
    assert 3 * size != 0
    assert size * size != -size
    assert not decisions.outcomes
    assert size != 5
    assert [str(condition.of) for condition in decisions.outcomes] == ["-5 + 1*size"]
