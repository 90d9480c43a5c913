"""PyTorch's CUDA caching allocator, by the rules of its source, and what it makes of a step."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.analysis.predict import predict
from costmodel.architectures.mlp import MLP
from costmodel.cost.allocator import MEBIBYTE, CachingAllocator, MemoryBlock, in_blocks, segment_bytes
from costmodel.errors import SettingError
from tests.strategies import questions


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (1, 2 * MEBIBYTE),
        (MEBIBYTE, 2 * MEBIBYTE),
        (MEBIBYTE + 1, 20 * MEBIBYTE),
        (10 * MEBIBYTE - 512, 20 * MEBIBYTE),
        (10 * MEBIBYTE - 1, 10 * MEBIBYTE),
        (10 * MEBIBYTE, 10 * MEBIBYTE),
        (11 * MEBIBYTE, 12 * MEBIBYTE),
        (12 * MEBIBYTE + 1, 14 * MEBIBYTE),
    ],
)
def test_a_segment_is_as_large_as_its_first_tensor_asks(size: int, segment: int) -> None:
    allocator = CachingAllocator()
    allocator.take(size)
    assert allocator.reserved == segment


def test_small_tensors_share_a_segment_and_large_ones_never_join_them() -> None:
    allocator = CachingAllocator()
    for _ in range(4):
        allocator.take(MEBIBYTE // 2)
    assert allocator.reserved == 2 * MEBIBYTE
    allocator.take(512)
    assert allocator.reserved == 4 * MEBIBYTE
    allocator.take(MEBIBYTE + 1)  # 2 MiB are free, but of the small pool
    assert allocator.reserved == 24 * MEBIBYTE


def test_what_is_given_back_joins_its_neighbours_and_is_used_again() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.take(5 * MEBIBYTE) for _ in range(4)]
    assert allocator.reserved == 20 * MEBIBYTE
    for block in (blocks[1], blocks[3], blocks[2]):
        allocator.give_back(block, 5 * MEBIBYTE)
    allocator.take(15 * MEBIBYTE)
    assert allocator.reserved == 20 * MEBIBYTE


def test_a_rest_of_up_to_a_mebibyte_stays_with_a_large_tensor() -> None:
    allocator = CachingAllocator()
    allocator.give_back(allocator.take(12 * MEBIBYTE), 12 * MEBIBYTE)
    allocator.take(11 * MEBIBYTE)
    allocator.take(512 * 1024 * 2 + 512)  # more than the rest
    assert allocator.reserved == 32 * MEBIBYTE


def test_a_replay_gives_back_what_is_no_longer_alive() -> None:
    """By hand: tensors that each fill a segment of their own, alive from a first to a last moment."""
    large = 12 * MEBIBYTE
    assert segment_bytes([], [(large, 0, 1), (large, 2, 3)]) == large
    assert segment_bytes([], [(large, 0, 2), (large, 2, 3)]) == 2 * large
    assert segment_bytes([], [(large, 2, 3), (large, 0, 1), (large, 4, 4)]) == large
    assert segment_bytes([(large, 2), (0, 5)], [(large, 0, 0), (0, 0, 0), (large, 1, 1)]) == 3 * large


def test_a_block_is_split_from_the_smallest_rest_that_its_pool_can_use() -> None:
    """``should_split``: a rest of at least 512 B of a small block, and of more than 1 MiB of a large one."""
    large = CachingAllocator()
    large.give_back(large.take(12 * MEBIBYTE), 12 * MEBIBYTE)
    whole = large.take(11 * MEBIBYTE)
    assert whole.size == 12 * MEBIBYTE
    large.give_back(whole, 11 * MEBIBYTE)
    assert large.take(11 * MEBIBYTE - 512).size == 11 * MEBIBYTE - 512
    assert large.take(MEBIBYTE + 512).size == MEBIBYTE + 512
    assert large.reserved == 12 * MEBIBYTE
    small = CachingAllocator()
    sizes = [MEBIBYTE, MEBIBYTE - 512, 512]
    assert [small.take(size).size for size in sizes] == sizes
    assert small.reserved == 2 * MEBIBYTE
    small.give_back(MemoryBlock(MEBIBYTE, 0), MEBIBYTE)  # to the pool that it is of, for the next small tensor
    assert small.take(MEBIBYTE) == MemoryBlock(MEBIBYTE, 0)
    assert small.reserved == 2 * MEBIBYTE


@given(st.lists(st.tuples(st.integers(1, 30 * MEBIBYTE), st.booleans()), max_size=40))
def test_blocks_never_overlap_and_all_return(actions: list[tuple[int, bool]]) -> None:
    allocator, held = CachingAllocator(), []
    for size, frees in actions:
        if frees and held:
            allocator.give_back(*held.pop(size % len(held)))
        else:
            held.append((allocator.take(size), size))
    spans = sorted((block.address, block.address + block.size) for block, _ in held)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert sum(end - start for start, end in spans) <= allocator.reserved
    for block, size in held:
        allocator.give_back(block, size)
    free = [block for pool in allocator._free.values() for block in pool]
    assert sum(block.size for block in free) == allocator.reserved


@pytest.mark.slow
@given(questions())
def test_blocks_take_a_little_more_than_tensors_and_segments_more_than_blocks(question: Any) -> None:
    model, chosen = question
    exact, blocks = (predict(model, **chosen, allocator=allocator) for allocator in ("exact", "cuda"))
    assert blocks.memory.peak % 512 == 0
    assert exact.memory.peak <= blocks.memory.peak <= blocks.reserved
    same = {line: getattr(exact.memory, line) for line in ("weights", "gradients", "optimizer", "activations")}
    assert same == {line: getattr(blocks.memory, line) for line in same}


def test_every_tensor_is_rounded_by_itself() -> None:
    """In the update of one weight: it, its gradient, two states, input, target and loss, and two temporaries."""
    p = predict(MLP(sizes=(1, 1), bias=False), batch=1, loss="mean_squared_error", allocator="cuda")
    assert p.timeline.steps[-1].alive.total == 9 * 512
    assert in_blocks(0) == 0


def test_an_update_of_all_weights_holds_a_copy_of_all() -> None:
    model = MLP(sizes=(1000, 1000, 1000), bias=False)
    loop, together, fused = (predict(model, update=update) for update in ("loop", "foreach", "fused"))
    weights = 4 * 2 * 10**6
    assert together.timeline.steps[-1].alive.temporaries - fused.timeline.steps[-1].alive.temporaries == weights
    assert fused.memory.peak <= min(loop.memory.peak, together.memory.peak)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"update": "foreach", "optimizer": "muon"}, "optimizer 'muon' has no foreach update: use update='loop'"),
        ({"update": "fused", "optimizer": "nadam"}, "use update='loop' or 'foreach'"),
        ({"update": "together"}, "unknown update 'together'"),
        ({"allocator": "jemalloc"}, "unknown allocator 'jemalloc'"),
    ],
)
def test_what_is_not_there_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError if "unknown" not in said else ValueError, match=said):
        predict("mlp-mnist", **settings)


def test_a_step_too_long_to_replay_is_refused() -> None:
    deep = predict("gpt2-small").model.model_copy(update={"layers": 100_000})
    with pytest.raises(SettingError, match="too long to replay"):
        _ = predict(deep, batch=1, seq=8).reserved
