"""Copies of a model on several ranks, as DistributedDataParallel has them: gradients are summed in buckets.

Buckets are memory of their own throughout, one more copy of all gradients, unless gradients are views of them. They are
filled in the order in which gradients came in the first step, the first up to 1 MiB and all others up to 25 MiB: the
gradient that takes it there closes each. That a bucket is sent while backward goes on is not told: they are listed in
the order in which they fill, at its end. Buffers are those of the first rank, which sends them before each forward.

Source: ``torch/csrc/distributed/c10d/reducer.cpp``: ``rebuild_buckets``, ``compute_bucket_assignment_by_size``;
``torch/nn/parallel/distributed.py``: ``_sync_buffers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from costmodel.cost.liveness import Lifetimes, unrolled
from costmodel.errors import SettingError
from costmodel.graph.kernel import Message
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Storage
from costmodel.symbolic.sizes import branch_value
from costmodel.training.dtypes import Dtype, size_bytes

FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20
"""Bytes that close a bucket: the first, and all others (``dist._DEFAULT_FIRST_BUCKET_BYTES``, ``bucket_cap_mb``)."""


def copied(tape: Tape) -> bool:
    """Whether other ranks have copies of all of a rank's weights, which DistributedDataParallel keeps alike."""
    return tape.layout.runtime == "torch" and tape.layout.dp > 1 and tape.layout.shards == 1 and tape.training


def bucket_bytes(tape: Tape) -> int:
    """All buckets together [bytes]."""
    return sum(size_bytes(weight.graded, tape.precision.gradient_dtype) * weight.times for weight in tape.updated)


def send_buffers(tape: Tape, lifetimes: Lifetimes) -> None:
    """Before forward: all buffers of one type in a row."""
    totals: dict[Dtype, int] = {}
    for storage in tape.buffers if copied(tape) else ():
        totals[storage.dtype] = totals.get(storage.dtype, 0) + storage.elements * storage.times
    if totals:
        now = lifetimes.moment("forward", "buffers", "")
        for dtype, elements in totals.items():
            lifetimes.take(size_bytes(elements, dtype), now)
        lifetimes.send([Message("broadcast", "dp", tape.layout.dp, n, dtype) for dtype, n in totals.items()], now)


def gradient_sums(tape: Tape, lifetimes: Lifetimes, arrivals: Iterable[tuple[int, Storage]]) -> list[Message]:
    """What sums gradients over copies, bucket by bucket; nothing where there are none.

    arrivals: weights that have their gradient after a moment, in order. Raises SettingError if a weight has none, for
    which other ranks would wait.
    """
    if not copied(tape):
        return []
    if len(tape.updated) < len(tape.trained):
        raise SettingError(
            f"dp={tape.layout.dp} waits for gradients of all weights, and some have none: freeze these, or use fsdp"
        )
    dtype = tape.precision.gradient_dtype
    buckets = _buckets(_in_order(lifetimes, arrivals), dtype)
    lifetimes.ready = [moments for moments, _ in buckets]
    return [Message("all_reduce", "dp", tape.layout.dp, size, dtype) for _, size in buckets]


def send_gradients(lifetimes: Lifetimes, sums: list[Message]) -> None:
    """After backward."""
    if sums:
        lifetimes.send(sums, lifetimes.moment("backward", "gradients", ""))


def _in_order(lifetimes: Lifetimes, arrivals: Iterable[tuple[int, Storage]]) -> Iterator[tuple[int, int]]:
    """Of each gradient, every round by itself, how many moments there are until it is there, and its elements."""
    settled: dict[int, list[int]] = {}
    for now, weight in arrivals:
        settled.setdefault(now, []).append(weight.graded)
    for moments, now in enumerate(unrolled(len(lifetimes.moments), lifetimes.loops), start=1):
        for elements in settled.get(now, ()):
            yield moments, elements


def _buckets(gradients: Iterable[tuple[int, int]], dtype: Dtype) -> list[tuple[int, int]]:
    """Of each bucket the moments until it is full, and its elements."""
    buckets, size, most, moments = list[tuple[int, int]](), 0, FIRST_BUCKET, 0
    for moments, elements in gradients:
        size = size + elements
        if branch_value(size_bytes(size, dtype)) >= most:
            buckets.append((moments, size))
            size, most = 0, BUCKET
    return [*buckets, (moments, size)] if branch_value(size) else buckets
