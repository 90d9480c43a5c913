"""Reuse distances: what lies between two uses of an array."""

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.roofline.footprint import Code, Sharing, reuse_distances, reuses, touched_by
from costmodel.roofline.memory import RESIDENT_BYTES
from costmodel.roofline.placed import placed
from costmodel.roofline.program import Span, distinct_bytes


def span(start: int, size: int) -> Span:
    return Span(start, start + size, size)


def shared(traffic: float, size: float = 0.0) -> Sharing:
    """A cache of so many bytes into which others bring so much [bytes/s]; what came from beyond is twice as far."""
    return Sharing(lambda far, passed: far + traffic * passed, lambda far: 2 * far, RESIDENT_BYTES, size)


def distances_of(touched: Sequence[Sequence[Span]], between: int = 0) -> list[list[float]]:
    return reuse_distances(reuses(touched, between))


def test_a_call_repeated_alone_touches_all_it_has_between() -> None:
    a, b = span(0, 100), span(200, 60)
    assert distances_of([(a, b)]) == [[160, 160]]


def test_what_lies_between_two_uses_counts_once() -> None:
    a, b, c = span(0, 100), span(200, 60), span(300, 8)
    first, second, third = distances_of([(a, b), (b, c), (c, a)])
    assert second[0] == (160 + 68) / 2, "half of the call before, half of this one"
    assert third[1] == 68 + (100 + 100) / 2, "b and c lie between, which the calls at both ends touch too"
    assert first[0] == (108 + 160) / 2
    assert min(first + second + third) >= 60
    _, copied = distances_of([(a,), (span(1000, 100), a)])
    assert copied[0] == 200, "all that the two calls touch, of which a both"


def test_what_others_touch_lies_between_two_repetitions_only() -> None:
    a, b = span(0, 100), span(200, 60)
    warm, cold = distances_of([(a, b), (b, a)]), distances_of([(a, b), (b, a)], between=10**6)
    assert cold[0] == [distance + 10**6 for distance in warm[0]]
    assert cold[1] == warm[1]


def test_a_span_is_never_nearer_than_itself() -> None:
    large, small = span(0, 10_000), span(20_000, 4)
    distances = distances_of([(large, small), (small, small)])
    assert distances[0][0] >= 10_000


def test_parts_of_what_was_touched_were_touched() -> None:
    whole, part, other = span(0, 1000), Span(500, 600, 100), span(5000, 10)
    assert inf not in [d for call in distances_of([(whole, other), (part, other)]) for d in call]


def test_what_others_bring_meanwhile_counts_beyond_the_caches_of_a_core() -> None:
    """A megabyte that is left alone for the two milliseconds of the call between, and a kilobyte that is not."""
    large, small, other = span(0, 10**6), span(2 * 10**6, 1000), span(3 * 10**6, 1000)
    found = reuses([(large,), (small, other), (other, small)])
    seconds, traffic = [1e-4, 2e-3, 1e-4], 5e9
    near, aged = reuse_distances(found), reuse_distances(found, seconds, shared(traffic))
    assert near[0][0] > RESIDENT_BYTES
    assert aged[0][0] - near[0][0] == traffic * sum(seconds), "from the middle of one run of it to that of the next"
    assert aged[2] == near[2], "what the core's own caches hold is safe from others"


def test_what_came_from_beyond_a_cache_is_further_when_it_is_used_next() -> None:
    """The first of three uses in a row comes from afar; the next is of what was used once, the last of what was
    found."""
    each, others = span(0, 10**6), span(10**7, 10**8)
    found = reuses([(each,), (each,), (each,), (others,)])
    first, second, third, _ = (far[0] for far in reuse_distances(found, [1e-3] * 4, shared(1e9, 20e6)))
    assert first > 20e6
    assert (second, third) == (2 * (10**6 + 1e9 * 1e-3), 10**6 + 1e9 * 1e-3)
    small = [far[0] for far in reuse_distances(found, [1e-3] * 4, shared(1e9, 0.9e6))]
    assert small[1:3] == [third, third], "of what goes through more than it holds the curves say it"


def test_code_is_run_as_a_call_begins_and_operands_are_streamed_through() -> None:
    code, much, more = Span(-1, 0, 0), span(0, 10**6), span(10**6, 10**6)
    calls, seconds = [(code, more), (much,)], [1e-3, 3e-3]
    first, _ = reuse_distances(reuses(calls), seconds, shared(1e9))
    own = reuse_distances(reuses(calls))[0]
    assert own == [10**6, 2 * 10**6], "what a call streams through does not evict the code that it runs"
    assert first[0] - own[0] == 1e9 * 4e-3, "from the start of one call to that of the next"
    assert reuse_distances(reuses([(code, more)]))[0][0] == 0


def test_what_begins_any_call_is_evicted_by_a_product_and_in_use_among_others() -> None:
    """Right after a large product a call is slow to begin, however lately another was made before it."""
    program = placed()
    far = distances_of(touched_by(program))
    found = {op.layer: Code(*distances[-3:]) for op, distances in zip(program, far, strict=True)}
    first, stale = found["first add 3"], found["stale add 3"]
    assert first.any == first.manner == first.own > RESIDENT_BYTES
    assert stale.own > RESIDENT_BYTES
    assert stale.any == stale.manner == 0


PLACES = st.tuples(st.integers(0, 30), st.integers(1, 30)).map(lambda place: Span(place[0], sum(place), place[1]))
CALLS = st.lists(st.lists(PLACES, min_size=1, max_size=3), min_size=1, max_size=8)


def walked(touched: list[list[Span]], others: int) -> list[list[float]]:
    """Reuse distances by their definition: from each use back through all that was touched before, call by call."""
    calls = [*touched, *touched]
    found = []
    for number in range(len(touched), len(calls)):
        found.append([_back(span, calls, number, others) for span in calls[number]])
    return found


def _back(span: Span, calls: list[list[Span]], number: int, others: int) -> float:
    for last in range(number - 1, -1, -1):
        if any(each.start < span.end and span.start < each.end for each in calls[last]):
            between = others if last < len(calls) // 2 else 0
            met = {place for call in calls[last + 1 : number] for each in call for place in range(each.start, each.end)}
            halves = sum(distinct_bytes(calls[end]) * _unmet(calls[end], met) for end in (last, number)) / 2
            return max(between + halves + _counted(calls[:number], last), span.bytes)
    return inf


def _unmet(spans: list[Span], met: set[int]) -> float:
    """The share of what spans touch that is at none of these places."""
    alone = (each.bytes * (1 - len(met & {*range(each.start, each.end)}) / (each.end - each.start)) for each in spans)
    return sum(alone) / sum(each.bytes for each in spans)


def _counted(calls: list[list[Span]], last: int) -> int:
    """Bytes of spans whose last use is after call `last`, without those within a later one that was new then."""
    uses: dict[tuple[int, int], tuple[int, int]] = {}
    for time, spans in enumerate(calls):
        for span in spans:
            if (span.start, span.end) not in uses:
                within = [place for place in uses if span.start <= place[0] and place[1] <= span.end]
                for place in within:
                    del uses[place]
            uses[span.start, span.end] = time, span.bytes
    return sum(size for time, size in uses.values() if time > last)


@given(CALLS, st.integers(0, 100))
def test_distances_are_what_walking_back_from_each_use_finds(calls: list[list[Span]], others: int) -> None:
    for found, expected in zip(distances_of(calls, others), walked(calls, others), strict=True):
        assert found == pytest.approx(expected)
