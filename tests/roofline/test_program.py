"""A program's memory is laid out as an allocator would, and computes in an arena what it computes elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

import costmodel as cm
from costmodel.roofline.kernels import ArrayTape
from costmodel.roofline.memory import LINE, Buffer, Ref, aligned, fill
from costmodel.roofline.program import begun_lines_of, program_of
from costmodel.roofline.recorder import forward_program, network_of


def test_freed_memory_is_used_again() -> None:
    t = ArrayTape()
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
    program = forward_program(next(iter(cm.predict("mlp-mnist", mode="inference").tape.root.calls())))
    assert all(start % LINE == 0 for start in program.layout.starts.values())
    assert aligned(100).ctypes.data % LINE == 0
    array = np.empty(10_000, np.float32)
    fill(array)
    assert 0.25 <= array.min() < array.max() <= 0.75
    index = np.empty(500, np.int64)
    fill(index, 7)
    assert set(index) == set(range(7))


def test_looked_up_tables_are_touched_only_where_they_are_looked_up() -> None:
    t = ArrayTape()
    y = t.take(t.array((5000, 8), "weight"), t.array((3,), "input", dtype="int64"))
    (spans,) = program_of(t.ops, [y]).touched
    assert [s.bytes for s in spans] == [3 * 8 * 4, 3 * 8, 3 * 8 * 4]
    assert len(spans) == len(t.ops[0].accesses)


def test_a_stride_touches_whole_lines() -> None:
    t = ArrayTape()
    x = t.array((4, 3, 40, 40), "input")
    windows = x.windows((2, 2), (2, 2), (1, 1), (20, 20))[:, :, 0, 1]
    t.exp(windows)
    t.exp(x[:, :, :, ::30])
    program = program_of(t.ops, [op.output for op in t.ops])
    assert [s.bytes for s in program.touched[0]] == [2 * windows.bytes, windows.bytes]
    assert program.touched[1][0].bytes == LINE // 4 * (4 * 3 * 40 * 2 * 4), "a line an element"


def test_rows_that_begin_within_a_line_touch_one_more() -> None:
    def begun(pitch: int, step: int, n: int = 56) -> float:
        return begun_lines_of(Ref((100, n), Buffer(100 * pitch, "float32", "input"), (pitch, step)))

    assert begun(224, 2) == pytest.approx(448 / 444), "seven whole lines"
    assert begun(226, 2) == pytest.approx((448 + 56) / 444), "rows begin at any eight bytes: most touch an eighth"
    assert begun(58, 1) == pytest.approx(58 / 56), "what is left between rows is on their lines"
    assert begun(56, 1) == 1.0
