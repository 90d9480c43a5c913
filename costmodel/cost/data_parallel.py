"""Copies of a model on several ranks, as DistributedDataParallel has them: gradients are summed in buckets.

Buckets are memory of their own throughout, one more copy of all gradients, unless gradients are views of them. They are
filled in the order in which gradients came in the first step, the first up to 1 MiB and all others up to 25 MiB: the
gradient that takes it there closes each. That a bucket is sent while backward goes on is not told: they are listed in
the order in which they fill, at its end. Buffers are those of the first rank, which sends them before each forward.

With ``ZeroRedundancyOptimizer`` (`zero=1`) gradients are summed as before, not scattered, and whole tensors are dealt
out: the largest first, each to the rank that has least so far, which has its states, updates it and sends it to all.

Source: ``torch/csrc/distributed/c10d/reducer.cpp``: ``rebuild_buckets``, ``compute_bucket_assignment_by_size``;
``torch/nn/parallel/distributed.py``: ``_sync_buffers``; ``torch/distributed/optim/zero_redundancy_optimizer.py``:
``_partition_parameters``, ``_sync_params``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

from costmodel.cost.forward import LoopEdge
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


def dealt_out(tape: Tape) -> list[list[Storage]]:
    """Trained weights, each round's by itself, that each rank updates; of ranks that have none there is no list."""
    weights = [weight for weight in tape.updated for _ in range(branch_value(weight.times))]
    weights.sort(key=lambda weight: branch_value(weight.elements), reverse=True)
    dealt: list[list[Storage]] = [[] for _ in range(min(tape.layout.dp, len(weights)))]
    least = [(0, rank) for rank in range(len(dealt))]
    heapify(least)
    for weight in weights:
        elements, rank = heappop(least)
        dealt[rank].append(weight)
        heappush(least, (elements + branch_value(weight.elements), rank))
    return dealt


def dealt(tape: Tape) -> bool:
    """Whether ranks update whole tensors in turn, see `dealt_out`."""
    return copied(tape) and tape.layout.zero == 1


def _most(tape: Tape) -> list[Storage]:
    """Those of the rank that has most."""
    return max(dealt_out(tape), key=lambda own: sum(branch_value(weight.elements) for weight in own), default=[])


def updated(tape: Tape) -> Iterable[tuple[Storage, int]]:
    """Weights that a rank updates, of ranks that differ the one with most, and how many there are of each."""
    return Counter(_most(tape)).items() if dealt(tape) else ((weight, weight.times) for weight in tape.updated)


def in_turn(tape: Tape, weights: list[tuple[Storage, str] | LoopEdge]) -> list[tuple[Storage, str] | LoopEdge]:
    """Weights in the order in which a rank updates them; those of one size in a row stand as one, and as its rounds."""
    if not dealt(tape):
        return weights
    order: list[tuple[Storage, str] | LoopEdge] = []
    for weight, times in updated(tape):
        order.append((weight, ""))
        if times > 1:
            order += [LoopEdge(True, times - 2), (weight, ""), LoopEdge(False, times - 2)]
    return order


def send_weights(tape: Tape, lifetimes: Lifetimes) -> None:
    """After the update: each weight, from the rank that has it."""
    if dealt(tape):
        now = lifetimes.moment("optimizer", "weights", "")
        sent = [weight for own in dealt_out(tape) for weight in own]
        lifetimes.send([Message("broadcast", "dp", tape.layout.dp, w.elements, w.dtype) for w in sent], now)


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
