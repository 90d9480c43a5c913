"""Memory is laid out as an allocator would, and how far back it was touched is counted by hand."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

import costmodel as cm
from costmodel.roofline.hosttime import reuse_distances
from costmodel.roofline.memory import LINE, aligned, fill
from costmodel.roofline.probes import GATHERED_ROWS, LARGEST_BYTES, Workbench, probes
from costmodel.roofline.program import Span, program_of
from costmodel.roofline.recorder import forward_program, network_of
from costmodel.roofline.tape import Tape


def span(start: int, size: int) -> Span:
    return Span(start, start + size, size)


def test_a_call_repeated_alone_touches_all_it_has_between() -> None:
    a, b = span(0, 100), span(200, 60)
    assert reuse_distances([(a, b)]) == [[160, 160]]


def test_what_lies_between_two_uses_counts_once() -> None:
    a, b, c = span(0, 100), span(200, 60), span(300, 8)
    first, second, third = reuse_distances([(a, b), (b, c), (c, a)])
    assert second[0] == (160 + 68) / 2, "half of the call before, half of this one"
    assert third[1] == 68 - 8 + 8 + (160 + 108) / 2 - 8 + 8, "b and c lie between"
    assert first[0] == (108 + 160) / 2
    assert min(first + second + third) >= 60


def test_what_others_touch_lies_between_two_repetitions_only() -> None:
    a, b = span(0, 100), span(200, 60)
    warm, cold = reuse_distances([(a, b), (b, a)]), reuse_distances([(a, b), (b, a)], between=10**6)
    assert cold[0] == [distance + 10**6 for distance in warm[0]]
    assert cold[1] == warm[1]


def test_a_span_is_never_nearer_than_itself() -> None:
    large, small = span(0, 10_000), span(20_000, 4)
    distances = reuse_distances([(large, small), (small, small)])
    assert distances[0][0] >= 10_000


def test_parts_of_what_was_touched_were_touched() -> None:
    whole, part, other = span(0, 1000), Span(500, 600, 100), span(5000, 10)
    assert inf not in [d for call in reuse_distances([(whole, other), (part, other)]) for d in call]


def test_freed_memory_is_used_again() -> None:
    t = Tape()
    x = t.array((1000,), "input")
    for _ in range(20):
        x = t.exp(x)
    program = program_of(t.ops, [x])
    assert program.layout.arena_bytes < 5 * 4000 + 20 * LINE * 8
    alive: list[tuple[int, int]] = []
    for op, dropped in zip(program, program.frees, strict=True):
        start = program.layout.starts[op.output.buffer]
        assert all(start >= end or start + 4000 <= begin for begin, end in alive), "nothing alive is overwritten"
        alive.append((start, start + 4000))
        alive = [span for span in alive if span[0] not in {program.layout.starts[b] for b in dropped}]


@pytest.mark.parametrize("model", ["mlp-lenet-300-100", "resnet18"])
def test_a_program_in_an_arena_computes_what_it_computes_elsewhere(model: str) -> None:
    settings = {"image": 32} if model == "resnet18" else {}
    program = network_of(cm.predict(model, mode="inference", batch=2, **settings)).program
    arena = aligned(program.layout.arena_bytes)
    results = []
    for _ in range(2):
        with np.errstate(all="ignore"):
            for function, arguments, options in program.bind(arena):
                function(*arguments, **options)
        out = program.outputs[0]
        start = program.layout.starts[out.buffer]
        results.append(arena[start : start + out.bytes].view(out.dtype).copy())
    assert np.array_equal(*results, equal_nan=True)


def test_memory_begins_at_lines_and_holds_numbers_that_stay_normal() -> None:
    program = forward_program(next(iter(cm.predict("mlp-mnist", mode="inference").run.root.calls())))
    assert all(start % LINE == 0 for start in program.layout.starts.values())
    assert aligned(100).ctypes.data % LINE == 0
    array = np.empty(10_000, np.float32)
    fill(array)
    assert 0.25 <= array.min() < array.max() <= 0.75
    index = np.empty(500, np.int64)
    fill(index, 7)
    assert set(index) == set(range(7))


def test_looked_up_tables_are_touched_only_where_they_are_looked_up() -> None:
    t = Tape()
    y = t.take(t.array((5000, 8), "weight"), t.array((3,), "input", dtype="int64"))
    (spans,) = program_of(t.ops, [y]).touched
    assert [s.bytes for s in spans] == [3 * 8 * 4, 3 * 8, 3 * 8 * 4]
    assert len(spans) == len(t.ops[0].accesses)


def test_every_probe_runs_on_the_bench() -> None:
    bench = Workbench(80 * 2**20, GATHERED_ROWS)
    small = [p for p in probes() if p.op.traffic_bytes < 400_000 and p.op.contractions < 1e6]
    assert len(small) > 200
    with np.errstate(all="ignore"):
        for probe in small:
            function, arguments, options = bench.bind(probe.op)
            function(*arguments, **options)


def test_probes_have_names_of_their_own_and_fit_the_bench() -> None:
    bench = Workbench(LARGEST_BYTES, GATHERED_ROWS)
    for thorough in (False, True):
        found = list(probes(thorough))
        assert len({probe.name for probe in found}) == len(found)
        assert all(bench.bind(probe.op) for probe in found)
