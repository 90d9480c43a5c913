"""What decides a call's time is read off its description as NumPy and BLAS see it."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.roofline.memory import Buffer, Ref
from costmodel.roofline.program import NumpyCall
from costmodel.roofline.signature import GatherSignature, LoopSignature, ProductSignature, signature_of


def array(*shape: int, dtype: str = "float32", elements: int = 100_000) -> Ref:
    return Ref(shape, Buffer(elements, dtype, "input"))


def loop(op: NumpyCall) -> LoopSignature:
    found = signature_of(op)
    assert isinstance(found, LoopSignature)
    return found


def test_contiguous_arrays_are_one_loop() -> None:
    found = loop(NumpyCall("add", (array(2, 3, 5), array(2, 3, 5)), array(2, 3, 5)))
    assert (found.inner, found.rows, found.scalars) == (30, 1, 0)
    assert all(strand.flat and strand.step == 1 for strand in found.strands)


@pytest.mark.parametrize(
    ("second", "inner", "rows", "step"),
    [((7,), 7, 12, 1), ((12, 1), 7, 12, 0), ((1, 7), 7, 12, 1), ((1, 1), 84, 1, 0), ((12, 7), 84, 1, 1)],
)
def test_what_is_broadcast_breaks_the_loop_into_rows(second, inner: int, rows: int, step: int) -> None:
    found = loop(NumpyCall("multiply", (array(12, 7), array(*second)), array(12, 7)))
    assert (found.inner, found.rows, found.strands[1].step) == (inner, rows, step)
    assert found.strands[1].flat == (rows == 1)


def test_what_repeats_is_read_again_after_all_that_the_loop_touches_until_then() -> None:
    def again(*second: int) -> list[tuple[tuple[int, int], ...]]:
        found = loop(NumpyCall("add", (array(8, 50, 70), array(*second)), array(8, 50, 70)))
        return [strand.again for strand in found.strands]

    assert again(50, 70) == [(), ((7 * 14_000, 3 * 14_000),), ()], "a table for each of a batch"
    assert again(70) == [(), ((399 * 280, 3 * 280),), ()], "a row for all"
    assert again(50, 1) == [(), ((7 * 200, 2 * 14_000 + 200),), ()], "a column for each of a batch"
    assert again(8, 1, 1) == [(), (), ()], "a number for each"


def test_numpy_makes_an_iterator_where_arrays_differ_in_shape_or_one_number_is_read_and_written() -> None:
    one, number = array(1, 8), array(1, 1)
    assert not loop(NumpyCall("add", (one, one), array(1, 8))).iterated
    assert loop(NumpyCall("add", (one, array(8)), array(1, 8))).iterated, "though each is walked through in one step"
    assert loop(NumpyCall("sqrt", (number,), number)).iterated
    assert not loop(NumpyCall("sqrt", (number,), array(1, 1))).iterated
    assert not loop(NumpyCall("copyto", (array(8),), one)).iterated, "a copy is none of universal functions"


def test_axes_are_walked_in_the_order_of_memory() -> None:
    across = array(6, 4).transpose(1, 0)
    both = loop(NumpyCall("exp", (across,), Ref((4, 6), Buffer(24, "float32"), (1, 4))))
    assert (both.inner, both.rows) == (24, 1), "two arrays of one order are one loop"
    copied = loop(NumpyCall("copyto", (across,), array(4, 6)))
    assert copied.rows > 1


def test_rows_are_those_that_numpys_iterator_finds() -> None:
    x, y = np.zeros((8, 5, 6), np.float32), np.zeros((5, 1), np.float32)
    walked = np.nditer([x, y, x], flags=["external_loop"], order="K")
    found = loop(NumpyCall("add", (array(8, 5, 6), array(5, 1)), array(8, 5, 6)))
    assert (found.inner, found.rows) == (len(walked[0]), 40)


def test_numbers_and_memory_that_is_written_again_are_seen() -> None:
    x = array(9)
    found = loop(NumpyCall("multiply", (x, 2.0), x))
    assert (found.scalars, found.in_place) == (1, True)
    assert not loop(NumpyCall("multiply", (x, 2.0), array(9))).in_place


@pytest.mark.parametrize(
    ("axis", "way", "inner", "rows"),
    [
        ((1,), "inner", 7, 12),
        ((0,), "outer", 7, 12),
        ((0, 1), "inner", 84, 1),
        (None, "inner", 84, 1),
        (-1, "inner", 7, 12),
    ],
)
def test_reductions_add_up_rows_or_add_rows(axis, way: str, inner: int, rows: int) -> None:
    axes = (0, 1) if axis is None else axis if isinstance(axis, tuple) else (axis % 2,)
    out = array(*(n for a, n in enumerate((12, 7)) if a not in axes))
    found = loop(NumpyCall("add.reduce", (array(12, 7),), out, {"axis": axis}))
    assert (found.reduced, found.inner, found.rows) == (way, inner, rows)


def test_statistics_of_channels_are_rows_of_pixels() -> None:
    op = NumpyCall("add.reduce", (array(4, 3, 5, 5),), array(1, 3, 1, 1), {"axis": (0, 2, 3), "keepdims": True})
    assert (loop(op).inner, loop(op).rows, loop(op).reduced) == (25, 12, "inner")


def test_products_say_how_their_operands_lie() -> None:
    a, b = array(6, 8), array(5, 8).swapaxes(0, 1)
    found = signature_of(NumpyCall("matmul", (a, b), array(6, 5)))
    assert found == ProductSignature(1, 6, 5, 8, False, True, True, "float32")
    assert found.flops == 2 * 6 * 5 * 8
    heads = array(2, 10, 3, 4).transpose(0, 2, 1, 3)
    found = signature_of(NumpyCall("matmul", (heads, heads.swapaxes(-1, -2)), array(2, 3, 10, 10)))
    assert found == ProductSignature(6, 10, 10, 4, False, True, True, "float32")
    every_other = array(6, 16)[:, ::2]
    found = signature_of(NumpyCall("matmul", (every_other, array(8, 5)), array(6, 5)))
    assert isinstance(found, ProductSignature)
    assert not found.plain


def test_gathers_are_rows_of_a_width() -> None:
    take = NumpyCall("take", (array(50, 8), array(2, 3, dtype="int64")), array(2, 3, 8), {"axis": 0})
    assert signature_of(take) == GatherSignature("take", "float32", 6, 8)
    assert signature_of(NumpyCall("random", (), array(4, 5))) == GatherSignature("random", "float32", 20, 1)


def test_equal_calls_are_equal_wherever_their_memory_is() -> None:
    assert signature_of(NumpyCall("exp", (array(9),), array(9))) == signature_of(
        NumpyCall("exp", (array(9),), array(9))
    )
    assert signature_of(NumpyCall("exp", (array(9),), array(9))) != signature_of(
        NumpyCall("exp", (array(8),), array(8))
    )
