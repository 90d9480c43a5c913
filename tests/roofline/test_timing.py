"""The protocol: what samples say, and how they are taken."""

from __future__ import annotations

import gc
from dataclasses import replace
from itertools import count
from random import Random
from statistics import mean
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info

import costmodel as cm
from costmodel.roofline.clock import Clock, Elapsed, Gears, Sentinel
from costmodel.roofline.inplace import CallGroup, measure_in_place
from costmodel.roofline.program import ArenaLayout, Program, Thunk, lay_out
from costmodel.roofline.recorder import forward_program, network_of
from costmodel.roofline.timing import STEADY, Protocol, Timing, at_rest, measure, time_calls, together
from tests.roofline.made_up import HOSTS, MadeUpClock
from tests.roofline.synthetic import Clockwork, Neighbour


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clockwork:
    return Clockwork.put(monkeypatch.setattr)


@pytest.fixture
def neighbour() -> Neighbour:
    return Neighbour()


def taking(clock: Clockwork, nanoseconds: int):
    return lambda: clock.take(nanoseconds)


def test_each_call_is_timed_for_itself(clock: Clockwork) -> None:
    timings = time_calls([taking(clock, 1_000), taking(clock, 3_000_000)])
    assert [t.minimum for t in timings] == pytest.approx([1e-6, 3e-3])
    assert [t.median for t in timings] == pytest.approx([1e-6, 3e-3])
    assert [t.noise for t in timings] == ["", ""]


def test_a_sample_is_long_enough_and_an_item_not_too_long(clock: Clockwork) -> None:
    protocol = Protocol(rounds=20, least_rounds=3, enough=0, sample_seconds=1e-4, item_seconds=0.1)
    short, long, longest = time_calls([taking(clock, n) for n in (1_000, 5_000_000, 1_000_000_000)], protocol)
    assert (short.inner, short.count) == (100, 20)
    assert (long.inner, long.count) == (1, 11), "two passes of 5 ms a turn, until 100 ms are over"
    assert (longest.inner, longest.count) == (1, 3)


def test_what_caches_of_a_core_do_not_hold_is_run_without_a_pause_that_lets_them_write_back(clock: Clockwork) -> None:
    protocol = Protocol(rounds=4, enough=0, sample_seconds=4e-5)
    near, far = time_calls([taking(clock, 100_000)] * 2, protocol, far=[False, True])
    assert (near.inner, far.inner) == (1, STEADY // 100_000)


@pytest.mark.parametrize("reuse_bytes", [0, 65_536])
def test_programs_are_run_and_their_memory_is_laid_out_once(reuse_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layouts: list[ArenaLayout] = []

    def counting(*arguments: Any) -> ArenaLayout:
        layouts.append(lay_out(*arguments))
        return layouts[-1]

    monkeypatch.setattr("costmodel.roofline.program.lay_out", counting)
    model = cm.predict(cm.MLP(sizes=[7, 24, 5], activation="relu"), mode="inference")
    programs = [forward_program(call) for call in model.tape.root.calls()]
    once = Protocol(rounds=1, least_rounds=1, enough=1)
    timings = measure(programs, reuse_bytes=reuse_bytes, protocol=once)
    in_place = [measure_in_place(program, passes=1) for program in programs]
    assert len(layouts) == len(programs) == 3
    assert all(each.seconds > 0 for each in (*timings, *in_place))


def test_memory_is_touched_before_it_is_timed() -> None:
    """A first pass that pays for it once looked like one of a long item, which was never warm from then on."""
    resource = pytest.importorskip("resource")
    program = forward_program(next(cm.predict("mlp-mnist", batch=4000, mode="inference").tape.root.calls()))
    thunks = Clock().bind(program)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for function, arguments, options in thunks:
        function(*arguments, **options)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < program.layout.arena_bytes / 4096 / 4


def test_turns_are_interleaved(clock: Clockwork) -> None:
    order: list[str] = []

    def named(name: str):
        def call() -> None:
            order.append(name)
            clock.take(1_000_000)

        return call

    time_calls([named("a"), named("b")], Protocol(rounds=2, least_rounds=1, enough=0))
    turns = [name for name, before in zip(order, ["", *order], strict=False) if name != before]
    assert turns == ["a", "b"] * 3, "warmed up once, then two rounds"


def test_warming_up_ends_when_it_no_longer_helps(clock: Clockwork) -> None:
    calls = count()

    def settling() -> None:
        clock.take(max(1_000_000 >> next(calls), 1_000))

    assert time_calls([settling], Protocol(rounds=1, least_rounds=1, enough=0))[0].median == pytest.approx(1e-6)


def test_what_caches_keep_by_and_by_is_warm_once_several_passes_are_no_faster(clock: Clockwork) -> None:
    settling = (307, 262, 256, 208, 173, 166, 159, 152, 106)
    passes = count()

    def kept() -> None:
        nonlocal passes
        clock.take(1000 * settling[min(next(passes), len(settling) - 1)])

    def evicting() -> None:
        nonlocal passes
        passes = count()
        clock.take(4_000_000)

    timing, _ = time_calls([kept, evicting], Protocol(rounds=4, enough=2), far=(True, True))
    assert timing.seconds == pytest.approx(106e-6)
    assert timing.resolved


def test_what_counts_does_not_hang_on_how_many_samples_there_are(clock: Clockwork) -> None:
    """On a host that disturbs by degrees: the fastest of three thousand is far below the fastest of twelve."""
    random = Random(0)

    def disturbed() -> None:
        clock.take(100_000 * random.gauss(1.3, 0.05))

    few = [time_calls([disturbed], Protocol(rounds=4, enough=99), sentinel=Sentinel(clock))[0] for _ in range(200)]
    (many,) = time_calls([disturbed], Protocol(rounds=1000, enough=9999), sentinel=Sentinel(clock))
    assert mean(timing.seconds for timing in few) == pytest.approx(many.seconds, rel=0.03)
    assert mean(timing.minimum for timing in few) > 1.04 * many.minimum


def test_how_long_moments_of_rest_last_is_found_by_measuring(clock: Clockwork) -> None:
    """Where they last half a millisecond, what takes one is judged by a moment of rest at either end."""

    def at_rest() -> bool:
        return clock.passed % 3e6 < 5e5

    def take(nanoseconds: float) -> None:
        while nanoseconds > 0:
            slower = 1.0 if at_rest() else 1.5
            clock.passed += min(nanoseconds, 1000) * slower
            nanoseconds -= 1000

    clock.sentinel = lambda: take(5_000)
    sentinel = Sentinel(clock)
    short, long = time_calls([lambda: take(1e5), lambda: take(9e5)], Protocol(budget=2.0), sentinel=sentinel)
    assert sentinel.enough(1e5) is all
    assert sentinel.enough(1.2e6) is any, "which is what it takes, half of it disturbed"
    assert short.seconds == pytest.approx(1e-4, rel=0.03)
    assert long.undisturbed
    assert long.seconds < 1.3 * 9e-4


def test_the_first_calls_after_other_work_are_not_timed(clock: Clockwork) -> None:
    since = count()

    def call() -> None:
        clock.take(1000 if next(since) < 8 else 500)

    def work() -> None:
        nonlocal since
        since = count()
        clock.take(12_000)

    clock.sentinel = work
    (found,) = time_calls([call], Protocol(), sentinel=Sentinel(clock))
    assert found.seconds == pytest.approx(500e-9)
    assert found.inner == pytest.approx(1e-4 / 500e-9, rel=0.3), "nor do they say how many make a sample"


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


def test_a_percentile_needs_a_sample_beyond_it() -> None:
    assert [Timing((1.0,) * count).percentiles for count in (1, 19, 20, 99, 100)] == [
        [50], [50], [50, 95], [50, 95], [50, 95, 99],
    ]  # fmt: skip


def test_doubtful_samples_say_why() -> None:
    assert Timing((1.0, 1.01, 1.0, 1.02)).noise == ""
    assert "interval" in Timing((1.0, 2.0, 3.0, 4.0)).noise
    assert Timing((1.0,) * 9, wall_ratio=2.0).noise == "the core was shared (wall time is 2.0 × CPU time)"


def test_progress_is_told_and_reaches_the_end(clock: Clockwork) -> None:
    told: list[float] = []
    time_calls([taking(clock, 10)], Protocol(rounds=4), progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_a_turn_of_many_calls_is_shared_among_them() -> None:
    assert Timing((4.0, 8.0), inner=2).shared_by(4) == Timing((1.0, 2.0), inner=8)


def test_what_a_neighbour_disturbed_does_not_count(neighbour: Neighbour) -> None:
    """The core is one's own in a tenth of the moments; the fastest of few turns is the neighbour's time."""
    sentinel = neighbour.sentinel()
    for nanoseconds in (20_000, 400_000, 3_000_000):
        protocol = Protocol(item_seconds=3.0)
        (found,) = time_calls([neighbour.work(nanoseconds)], protocol, sentinel=sentinel)
        assert found.resolved
        assert len(found.undisturbed) >= 5
        assert found.seconds == pytest.approx(nanoseconds * 1e-9, rel=0.03)
        assert found.noise == ""


def test_two_measurements_agree_better_than_those_of_as_many_turns_as_they_come(neighbour: Neighbour) -> None:
    """Layers that take 10 µs to 10 ms, measured twice, against eight turns each without a sentinel."""
    layers = [neighbour.work(round(10_000 * 10 ** (i / 7))) for i in range(22)]
    sentinel = neighbour.sentinel()

    def differences(protocol: Protocol, pairs: int) -> list[float]:
        """The 50 % and 90 % quantile over so many pairs of measurements."""
        found = []
        for _ in range(pairs):
            first, second = (time_calls(layers, protocol, sentinel=sentinel) for _ in range(2))
            found += [abs(a.seconds / b.seconds - 1) for a, b in zip(first, second, strict=True)]
        return [sorted(found)[len(found) * percent // 100] for percent in (50, 90)]

    known = differences(Protocol(item_seconds=9.0), 1)
    as_it_comes = differences(Protocol(rounds=8, enough=0), 10)
    assert known[0] <= 0.015
    assert known[1] <= 0.06
    assert as_it_comes[1] > 0.2


def test_without_a_moment_s_rest_nothing_is_resolved_and_the_interval_says_so(neighbour: Neighbour) -> None:
    sentinel = neighbour.sentinel()
    neighbour.always = True
    (found,) = time_calls([neighbour.work(50_000)], Protocol(rounds=10), sentinel=sentinel)
    assert not found.resolved
    assert found.undisturbed == ()
    assert found.noise == f"unresolved: 0 of {found.count} samples are known to be undisturbed"
    assert found.interval[1] >= found.median


def test_a_sentinel_that_knows_what_is_usual_waits_for_the_end_of_moments_that_are_all_disturbed() -> None:
    """Its own best would be a disturbed one."""

    class LeavingNeighbour(Neighbour):
        """One that leaves after half a second."""

        def take(self, nanoseconds: float) -> None:
            if self.passed > 5e8:
                self.leave()
            super().take(nanoseconds)

    def measured(usual: Gears | None, slower: float = 1.0) -> Timing:
        neighbour = LeavingNeighbour()
        neighbour.always = True
        sentinel = Sentinel(neighbour, usual)
        return time_calls([neighbour.work(slower * 50_000)], Protocol(enough=3, rounds=3), sentinel=sentinel)[0]

    usual = Gears(12_100, 12_100)
    assert measured(usual).seconds == pytest.approx(50e-6, rel=0.03)
    assert measured(None).seconds > 80e-6
    assert measured(None).resolved


def test_a_core_that_is_clocked_otherwise_today_is_at_rest_all_the_same(neighbour: Neighbour) -> None:
    """What is usual is three times as fast: times count at that clock."""
    usual = neighbour.sentinel().usual
    slow = Gears(usual.light / 3, usual.dense / 3)
    (found,) = time_calls([neighbour.work(50_000)], Protocol(), sentinel=neighbour.sentinel(slow))
    assert found.resolved
    assert found.seconds == pytest.approx(50e-6 / 3, rel=0.03)


def test_a_best_that_is_seen_late_unsettles_what_was_settled(neighbour: Neighbour) -> None:
    """All readings of the first moments may be disturbed ones, and agree with each other."""
    neighbour.always = True
    sentinel = neighbour.sentinel()
    turns = count()

    def later() -> None:
        if next(turns) == 8:
            neighbour.leave()
        neighbour.take(50_000)

    settled, _ = time_calls([neighbour.work(50_000), neighbour.work(50_000)], sentinel=sentinel)
    assert settled.resolved, "nothing better was seen"
    assert settled.seconds > 80e-6
    found = time_calls([neighbour.work(50_000), later], sentinel=sentinel)
    assert [timing.seconds for timing in found] == pytest.approx([50e-6] * 2, rel=0.03)


def test_samples_on_which_the_clocks_disagree_are_not_believed(neighbour: Neighbour) -> None:
    """The CPU clock says nothing at all in every third reading: the fastest is no time of zero."""
    neighbour.lies = 3
    (found,) = time_calls([neighbour.work(200_000)], Protocol(), sentinel=neighbour.sentinel())
    assert min(found.samples) >= 0.99 * 200e-6


def test_what_is_always_interrupted_has_the_time_of_the_cpu_clock(neighbour: Neighbour) -> None:
    """Each pass of 8 ms waits 4 ms for another process."""

    def interrupted() -> None:
        neighbour.take(8_000_000)
        neighbour.sleep(4_000_000)

    (found,) = time_calls([interrupted], Protocol(rounds=80), sentinel=neighbour.sentinel())
    assert not found.resolved
    assert 8e-3 <= found.seconds <= 1.8 * 8e-3


def test_a_long_item_leaves_time_for_the_others(neighbour: Neighbour) -> None:
    """Within a budget, what takes 300 ms a turn does not keep what takes 0.1 ms from its samples."""
    calls = [neighbour.work(300_000_000), *(neighbour.work(100_000) for _ in range(10))]
    found = time_calls(calls, Protocol(budget=10.0, rounds=500, item_seconds=9.0), sentinel=neighbour.sentinel())
    assert found[0].count < 20
    assert all(timing.resolved for timing in found[1:])


@pytest.mark.parametrize("budget", [0.05, 0.5, 2.0])
def test_a_budget_is_exceeded_by_no_more_than_a_sample(neighbour: Neighbour, budget: float) -> None:
    """Beyond what it takes to warm up each item once, and to have one sample of it."""
    longest = 20_000_000
    calls = [neighbour.work(longest), *(neighbour.work(1_000_000) for _ in range(10))]
    sentinel = neighbour.sentinel()
    began = neighbour.passed
    found = time_calls(calls, Protocol(budget=budget, item_seconds=9.0), sentinel=sentinel)
    least = 2 * 1.8 * (longest + 10 * 1_000_000)
    assert neighbour.passed - began <= max(1e9 * budget, least) + 1.8 * longest + 1e6
    assert all(timing.count for timing in found)


@pytest.mark.parametrize(("longer_warm", "seconds"), [(1, 12e-3), (0, 24e-3)])
def test_what_is_long_is_warm_if_the_protocol_says_so(clock: Clockwork, longer_warm: int, seconds: float) -> None:
    """Two that evict each other take twice as long cold, which a first pass alone says they always do."""
    last = ""

    def long(name: str) -> None:
        nonlocal last
        clock.take(12_000_000 if last == name else 24_000_000)
        last = name

    both, protocol = [lambda: long("a"), lambda: long("b")], Protocol(longer_enough=3, longer_warm=longer_warm)
    found = time_calls(both, protocol, far=(True, True), sentinel=Sentinel(clock))
    assert [timing.seconds for timing in found] == pytest.approx([seconds] * 2)


def test_of_some_measurements_the_mean_counts_of_those_that_were_not_disturbed() -> None:
    assert 1.0 < together([1.0, 1.06]) == together([1.06, 1.0]) < 1.06
    assert together([1.5, 1.0]) == 1.0
    assert 1.0 < together([1.05, 1.5, 1.0, 1.2]) < 1.05


def test_what_is_beyond_the_caches_takes_three_times_as_many_samples(neighbour: Neighbour) -> None:
    """What disturbs memory has no two states, and no sentinel."""
    calls = [neighbour.work(50_000)] * 2
    near, far = time_calls(calls, Protocol(), far=[False, True], sentinel=neighbour.sentinel())
    assert near.resolved
    assert far.resolved
    assert 5 <= len(near.undisturbed) < 15 <= len(far.undisturbed)


def test_a_sentinel_s_first_work_after_a_long_sample_is_not_timed(clock: Clockwork) -> None:
    """What the sample evicted from the caches makes it slower, in an undisturbed moment too, and the next a little."""
    cold = iter([300, 130])

    def work() -> None:
        clock.take(next(cold, 100))

    sentinel = Sentinel(clock)
    sentinel.work = work
    sentinel.light.fastest = [100] * 8
    assert sentinel.rests(sentinel.read())


def test_a_core_that_is_faster_for_a_moment_now_and_then_still_rests(clock: Clockwork) -> None:
    """One reading of three thousand is a seventh faster, and the others no less at rest for it."""
    readings = count()

    def work() -> None:
        clock.take(85 if next(readings) % 9000 in (6000, 6001, 6002) else 100)

    clock.sentinel = work
    sentinel = Sentinel(clock)
    rests = [sentinel.rests(sentinel.read()) for _ in range(60_000)]
    assert all(rests)


def test_samples_count_at_the_clock_that_is_usual_for_the_core(clock: Clockwork) -> None:
    """Whose chip clocks it down by a sixth for every other second: two measurements agree, and both are at rest."""

    def changing(nanoseconds: float) -> None:
        clock.passed += nanoseconds * (1.16 if clock.passed // 1e9 % 2 else 1.0)

    clock.sentinel = lambda: changing(12_000)
    sentinel = Sentinel(clock)
    works = [lambda each=each: changing(each) for each in (30_000, 3_000_000)]
    for _ in range(4):
        clock.passed = (clock.passed // 1e9 + 1) * 1e9
        found = time_calls(works, Protocol(), sentinel=sentinel)
        assert all(timing.resolved for timing in found)
        assert [timing.seconds * sentinel.usual.light for timing in found] == pytest.approx([0.36, 36.0], rel=0.01)


def test_what_dense_arithmetic_leaves_of_the_clock_is_no_disturbance(clock: Clockwork) -> None:
    """A core that is a fifth slower for 5 ms after it: each item is timed as it is over and over, in whatever order."""
    slow_until = 0.0

    def light(nanoseconds: float) -> None:
        clock.take(nanoseconds * (1.2 if clock.passed < slow_until else 1.0))

    def dense(nanoseconds: float) -> None:
        nonlocal slow_until
        clock.take(1.2 * nanoseconds)
        slow_until = clock.passed + 5e6

    clock.sentinel = lambda: light(12_000)
    sentinel = Sentinel(clock)
    works = [lambda: dense(30_000), lambda: light(30_000), lambda: dense(3e6), lambda: light(3e6)]
    found = time_calls(works, Protocol(), dense=[True, False, True, False], sentinel=sentinel)
    assert all(timing.resolved for timing in found)
    assert [timing.seconds for timing in found] == pytest.approx([36e-6, 30e-6, 3.6e-3, 3e-3], rel=0.01)
    assert sentinel.usual.slower == pytest.approx(1.2, rel=0.01)


def test_a_program_takes_what_it_takes_at_the_clock_that_its_products_leave() -> None:
    made_up = MadeUpClock(replace(HOSTS[0], dense=1.2))
    program = network_of(cm.predict("mlp-lenet-300-100", batch=64, mode="inference")).program
    assert any(op.dense for op in program)
    sentinel = Sentinel(made_up)
    slowed = 1e-9 * sum(made_up.nanoseconds(program, slower=1.2))
    assert slowed > 1.1e-9 * sum(made_up.nanoseconds(program))
    for _ in range(2):  # before and after readings in that gear are many
        assert measure_in_place(program, passes=30, sentinel=sentinel).seconds == pytest.approx(slowed, rel=0.01)


def test_sentinels_are_at_rest_by_the_best_that_was_seen_several_times(clock: Clockwork) -> None:
    took = iter([100] * 1200 + [100, 100, 1] * 3 + [100, 100, 105, 100, 100, 130])

    def work() -> None:
        clock.take(next(took, 100))

    clock.sentinel = work
    sentinel = Sentinel(clock)
    for _ in range(3):
        sentinel.read()
    assert sentinel.light.best == 100, "three readings of 1 are not four"
    assert sentinel.rests(sentinel.read())
    assert not sentinel.rests(sentinel.read())


def test_of_equal_calls_that_were_never_seen_at_rest_the_fastest_counts() -> None:
    """What disturbs only adds; of those at rest their median counts, and a time far below the others of a call lies."""
    group = CallGroup(("up", "forward"), calls=[0, 1, 2])
    for number, times in enumerate(([15, 16], [10, 18], [17, 19, 1])):
        group.add(number, times, False)
    assert group.seconds() == pytest.approx(3 * 10e-9)
    for number, time in enumerate((12, 11, 13)):
        group.add(number, [time], True)
    assert group.seconds() == pytest.approx(3 * 12e-9)


def test_stretches_in_which_others_fill_the_cache_do_not_count() -> None:
    """What others do to the cache that cores share lasts for seconds, and no sentinel tells it."""
    group = CallGroup(("up", "forward"), agreeing=2, calls=[0])

    def stretch(*times: int) -> None:
        group.add(0, times, True)
        group.end_stretch()

    stretch(2000, 2010, 2020, 2030)
    assert group.time(0) == pytest.approx(2002.5)
    stretch(1000, 1010, 1020, 1030)
    assert group.time(0) == pytest.approx(1002.5)
    assert not group.settled, "the faster was seen once"
    stretch(1040, 1050, 1060, 1070)
    assert group.time(0) == pytest.approx((1002.5 + 1042.5) / 2)
    assert group.settled


def test_runs_at_different_times_count_as_stretches() -> None:
    first, second = (CallGroup(("up", "forward"), calls=[0]) for _ in range(2))
    for group, times in ((first, (2000, 2010)), (second, (1000, 1010, 1020, 1030))):
        group.add(0, times, True)
        group.end_stretch(1)
    both = first.joined(second)
    assert both.time(0) == second.time(0)
    assert second.settled
    assert not both.settled, "the two do not agree"


def test_times_in_place_that_seemed_undisturbed_are_forgotten_once_rest_is_seen() -> None:
    """A sentinel that begins where all is disturbed takes that for rest."""
    program = network_of(cm.predict(cm.MLP(sizes=[7, 24, 5]), mode="inference")).program

    class LeavingNeighbour(Neighbour):
        """One that leaves after a hundred passes."""

        made = 0

        def bind(self, program: Program, copies: int = 1) -> list[Thunk]:
            return [(self.take, (50_000,), {}) for _ in program]

        def make(self, thunk: Thunk) -> Elapsed:
            self.made += 1
            if self.made == 100 * len(program):
                self.leave()
            return self.run(lambda: thunk[0](*thunk[1]))

        def reading(self) -> int:
            return 0

    neighbour = LeavingNeighbour()
    neighbour.always = True
    run = measure_in_place(program, passes=120, sentinel=Sentinel(neighbour))
    assert run.seconds == pytest.approx(len(program) * 50e-6, rel=0.03)
    assert run.as_it_came > 1.6 * run.seconds


def test_a_core_that_others_use_after_all_dense_arithmetic_is_not_in_another_gear(clock: Clockwork) -> None:
    """All takes 1.6 times as long then, which no gear does."""
    others = 1.0
    clock.sentinel = lambda: clock.take(12_000 * others)
    sentinel = Sentinel(clock)
    others = 1.6
    for _ in range(50):
        sentinel.after_dense(1_000_000)
        assert not sentinel.rests(sentinel.read())
    assert sentinel.usual.slower == 1
    others = 1.15
    for _ in range(50):
        sentinel.after_dense(1_000_000)
        assert sentinel.rests(sentinel.read())
    assert sentinel.usual.slower == pytest.approx(1.15)
