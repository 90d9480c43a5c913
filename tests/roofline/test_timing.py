"""The protocol: what samples say, and how they are taken."""

from __future__ import annotations

import gc
from itertools import count

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from costmodel.roofline import timing
from costmodel.roofline.timing import Protocol, Timing, at_rest, time_calls


class Clock:
    """A clock that moves only when told."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing.time, "thread_time_ns", clock)
    monkeypatch.setattr(timing.time, "perf_counter_ns", clock)
    return clock


def taking(clock: Clock, nanoseconds: int):
    def call() -> None:
        clock.now += nanoseconds

    return call


def test_each_call_is_timed_for_itself(clock: Clock) -> None:
    timings = time_calls([taking(clock, 1_000), taking(clock, 3_000_000)])
    assert [t.minimum for t in timings] == pytest.approx([1e-6, 3e-3])
    assert [t.median for t in timings] == pytest.approx([1e-6, 3e-3])
    assert [t.noise for t in timings] == ["", ""]


def test_a_sample_is_long_enough_and_an_item_not_too_long(clock: Clock) -> None:
    protocol = Protocol(rounds=8, burst=3, least_rounds=3, sample_seconds=1e-4, item_seconds=0.1)
    short, long, longest = time_calls([taking(clock, n) for n in (1_000, 5_000_000, 1_000_000_000)], protocol)
    assert (short.inner, short.count) == (100, 24)
    assert (long.inner, long.count) == (1, 3 * (100 // 25))
    assert (longest.inner, longest.count) == (1, 9)


def test_rounds_are_interleaved(clock: Clock) -> None:
    order: list[str] = []

    def named(name: str):
        def call() -> None:
            order.append(name)
            clock.now += 1_000_000

        return call

    time_calls([named("a"), named("b")], Protocol(rounds=2, least_rounds=1))
    turns = [name for name, before in zip(order, ["", *order], strict=False) if name != before]
    assert turns == ["a", "b"] * 3, "warmed up once, then two rounds"


def test_warming_up_ends_when_it_no_longer_helps(clock: Clock) -> None:
    calls = count()

    def settling() -> None:
        clock.now += max(1_000_000 >> next(calls), 1_000)

    assert time_calls([settling], Protocol(rounds=1, least_rounds=1))[0].median == pytest.approx(1e-6)


def test_nothing_collects_garbage_and_blas_has_one_thread_meanwhile() -> None:
    np.dot(np.ones(2), np.ones(2))
    with at_rest():
        assert not gc.isenabled()
        assert {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"} <= {1}
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), at_rest():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_statistics_are_those_of_the_samples() -> None:
    samples = tuple(float(n) for n in range(1, 102))
    found = Timing(samples)
    assert (found.minimum, found.median, found.mean, found.count) == (1.0, 51.0, 51.0, 101)
    assert (found.percentile(95), found.percentile(99)) == (96.0, 100.0)
    assert found.seconds == 1.0
    low, high = Timing(samples, statistic="median").interval
    assert 40 < low < 51 < high < 62
    assert set(found.to_dict()) >= {"minimum", "p50", "p95", "p99", "mean", "interval", "count", "noise", "wall_ratio"}


def test_doubtful_samples_say_why() -> None:
    assert Timing((1.0, 1.01, 1.0, 1.02)).noise == ""
    assert "interval" in Timing((1.0, 2.0, 3.0, 4.0)).noise
    assert Timing((1.0,) * 9, wall_ratio=2.0).noise == "the core was shared (wall time is 2.0 × CPU time)"


def test_several_threads_are_timed_by_the_wall() -> None:
    assert Protocol(threads=2).clock is timing.time.perf_counter_ns
    assert Protocol().clock is timing.time.thread_time_ns


def test_progress_is_told_and_reaches_the_end(clock: Clock) -> None:
    told: list[float] = []
    time_calls([taking(clock, 10)], Protocol(rounds=4), progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_a_turn_of_many_calls_is_shared_among_them() -> None:
    assert Timing((4.0, 8.0), inner=2).shared_by(4) == Timing((1.0, 2.0), inner=8)
