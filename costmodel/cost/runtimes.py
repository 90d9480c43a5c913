"""What Megatron-Core holds and sends of weights, gradients and optimizer states, where PyTorch alone does otherwise.

Gradients are added up in one buffer of all, the main gradients, which is there throughout; what autograd makes of a
weight's gradient, in the weight's type, is dropped as soon as it is added. The distributed optimizer (`zero=1`) has the
weights in a buffer too, and of each bucket of these an equal part's masters and states on each of dp's ranks.

Source: ``megatron/core/distributed/param_and_grad_buffer.py``, ``megatron/core/optimizer/distrib_optimizer.py``,
``megatron/core/distributed/finalize_model_grads.py``; Narayanan et al. 2021.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby

from costmodel.cost.liveness import Lifetimes
from costmodel.graph.kernel import Message
from costmodel.graph.tape import Tape
from costmodel.symbolic.sizes import branch_value, ceil_div
from costmodel.training.dtypes import Dtype, size_bytes
from costmodel.training.settings import Settings

LEAST_BUCKET, BUCKET_A_RANK = 40_000_000, 1_000_000
"""Elements of a bucket: at least so many, and so many for each of dp's ranks (``DistributedDataParallel.__init__``)."""
BUCKET_MULTIPLE, START_MULTIPLE = 128, 64
"""The distributed optimizer's buckets are multiples of the first and of dp; its weights start at those of the second
[elements]."""


def accumulates(tape: Tape) -> bool:
    """Whether gradients are added up in memory that is there throughout."""
    return tape.layout.runtime == "megatron"


def autograd_dtype(tape: Tape) -> Dtype:
    """Data type of the gradient that autograd makes of a weight."""
    return tape.precision.weight if accumulates(tape) else tape.precision.gradient_dtype


def _unrolled(tape: Tape) -> Iterator[int]:
    """Elements of every weight, from the last one back to the first, every round of a block by itself."""
    runs = [(block, list(weights)) for block, weights in groupby(tape.updated, key=lambda s: s.block)]
    for block, weights in reversed(runs):
        for _ in range(branch_value(block.times)):
            yield from (weight.elements for weight in reversed(weights))


def buckets(tape: Tape) -> list[int]:
    """Elements of each bucket of weights and of gradients, in the order in which backward fills them."""
    layout = tape.layout
    distributed, most = layout.zero > 0, max(LEAST_BUCKET, BUCKET_A_RANK * branch_value(layout.dp))
    multiple = math.lcm(branch_value(layout.dp), BUCKET_MULTIPLE)
    sizes: list[int] = []
    size = 0
    for elements in _unrolled(tape):
        start = ceil_div(size, START_MULTIPLE) * START_MULTIPLE if distributed else size
        size = start + elements
        if branch_value(size) >= most:
            sizes.append(size)
            size = 0
    sizes += [size] if branch_value(size) else []
    return [ceil_div(size, multiple) * multiple for size in sizes] if distributed else sizes


def shared_tensors(tape: Tape, settings: Settings) -> Iterator[tuple[str, int, int]]:
    """Line, bytes and number of the distributed optimizer's buffer of weights, and of a rank's part of the rest."""
    policy, whole = settings.policy, sum(buckets(tape))
    yield "weights", size_bytes(whole, policy.weight), 1
    share = ceil_div(whole, tape.layout.dp)
    if policy.master:
        yield "masters", size_bytes(share, policy.master), 1
    for size in settings.states.state_sizes((share,), size_bytes(1, policy.state_dtype)):
        yield "optimizer", size, 1
    if scalars := settings.states.scalar_bytes((share,)):
        yield "counters", scalars, 1


def gradient_buffer_bytes(tape: Tape) -> int:
    """The main gradients [bytes]."""
    return size_bytes(sum(buckets(tape)), tape.precision.gradient_dtype)


def end_backward(tape: Tape, lifetimes: Lifetimes) -> None:
    """Gradients are summed over the ranks: bucket by bucket over dp's, and those of norms at once over tp's.

    Buckets are sent in the order in which they are full; that some are while backward goes on is not told here.
    """
    layout, dtype = tape.layout, tape.precision.gradient_dtype
    if layout.dp > 1:
        operation = "reduce_scatter" if layout.zero else "all_reduce"
        now = lifetimes.moment("backward", "gradients", "")
        lifetimes.send([Message(operation, "dp", layout.dp, size, dtype) for size in buckets(tape)], now)
    partial = sum([weight.elements * weight.times for weight in tape.updated if weight.partial])
    if branch_value(partial):
        now = lifetimes.moment("backward", "gradients of norms", "")
        lifetimes.take(size_bytes(partial, dtype), now)  # flat
        lifetimes.send([Message("all_reduce", "tp", layout.tp, partial, dtype)], now)


def update(tape: Tape, settings: Settings, lifetimes: Lifetimes) -> None:
    """One kernel updates all weights; main gradients of 16 bits are cast before, and weights are gathered after it."""
    layout, policy = tape.layout, settings.policy
    now = lifetimes.moment("optimizer", "every weight", "")
    sizes = buckets(tape)
    if policy.master and policy.gradient_dtype != policy.master:
        lifetimes.take(size_bytes(ceil_div(sum(sizes), layout.dp if layout.zero else 1), policy.master), now)
    if layout.zero:
        now = lifetimes.moment("optimizer", "weights", "")
        lifetimes.send([Message("all_gather", "dp", layout.dp, size, policy.weight) for size in sizes], now)
