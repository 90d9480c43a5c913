"""What stays in memory throughout a step of training or inference: weights, states, buffers, inputs, gradients."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple

from costmodel.cost.data_parallel import bucket_bytes, copied, updated
from costmodel.cost.runtimes import RankRuntime, rank_of
from costmodel.cost.sharding import flat_length, gathered_throughout, share_of
from costmodel.graph.tape import Tape
from costmodel.training.dtypes import size_bytes
from costmodel.training.settings import Settings

PERSISTENT = ("weights", "masters", "optimizer", "counters", "buffers", "inputs", "cache", "host")
"""Lines of what stays. PyTorch keeps the optimizer's counters on the host, as what is offloaded; cache is that of
earlier tokens."""
ON_HOST = ("counters", "host")
"""Of these what the device does not have."""


class PersistentTensor(NamedTuple):
    """Tensors of one size that stay, on a line of `PERSISTENT`: bytes of one, and how many there are."""

    line: str
    size: int
    times: int


def persistent_tensors(tapes: Iterable[Tape], settings: Settings) -> Iterator[PersistentTensor]:
    """Every tensor of a rank that stays, of its stages."""
    shared: dict[Hashable, int] = {}
    for tape in tapes:
        shared |= runtime_buffers(tape, settings)
        yield from _own_tensors(tape, settings)
    for size in shared.values():
        yield PersistentTensor("buffers", size, 1)


def runtime_buffers(tape: Tape, settings: Settings) -> dict[Hashable, int]:
    """See `RankRuntime.buffers`; none of PyTorch's own runtime."""
    runtime = rank_of(tape, settings)
    return {} if runtime is None else runtime.buffers()


def _own_tensors(tape: Tape, settings: Settings) -> Iterator[PersistentTensor]:
    """Of these a stage's own."""
    policy, optimizer = settings.policy, settings.states
    runtime = rank_of(tape, settings)
    if (own := None if runtime is None else runtime.tensors()) is not None:
        yield from (PersistentTensor(*each) for each in own)
        yield from _other_tensors(tape, runtime)
        return
    state_bytes = size_bytes(1, policy.state_dtype)
    for s in tape.weights:
        share = share_of(tape, s)
        yield PersistentTensor("weights", share.bytes, s.times)
        if s.dtype == policy.quantised:
            yield PersistentTensor("weights", policy.scale_bytes(share.shape), s.times)
    yield from (PersistentTensor("weights", *each) for each in gathered_throughout(tape))
    own = list(updated(tape))
    for s, times in own:
        if master := share_of(tape, s).master:
            yield PersistentTensor("masters", size_bytes(s.elements, master), times)
    copies = optimizer.copies_gradient and tape.layout.shards == 1
    shapes = [((s.graded,) if copies and s.graded is not s.elements else share_of(tape, s).shape, n) for s, n in own]
    for shape, times in [((flat_length(tape),), 1)] if optimizer.flat and shapes else shapes:
        for size in optimizer.state_sizes(shape, state_bytes):
            yield PersistentTensor("optimizer", size, times)
        if scalars := optimizer.scalar_bytes(shape):
            yield PersistentTensor("counters", scalars, times)
    yield from _other_tensors(tape, runtime)


def _other_tensors(tape: Tape, runtime: RankRuntime | None) -> Iterator[PersistentTensor]:
    """Of these those that are no weights, nor of any."""
    for s in tape.buffers:
        if runtime is None or not runtime.shares(s):
            yield PersistentTensor("buffers", s.bytes, s.times)
    if copied(tape) and not tape.layout.bucket_view:
        yield PersistentTensor("buffers", bucket_bytes(tape), 1)
    for s in tape.inputs:
        yield PersistentTensor("inputs", s.bytes, s.times)
    for s in tape.caches:
        yield PersistentTensor("cache", s.bytes, s.times)


def persistent_bytes(tapes: Iterable[Tape], settings: Settings, allotted: Callable[[int], int]) -> dict[str, int]:
    """What stays of a rank's stages on each line [bytes], with what the allocator takes for each tensor."""
    lines: dict[str, int] = dict.fromkeys(PERSISTENT, 0)
    for line, size, times in persistent_tensors(tapes, settings):
        lines[line] += allotted(size) * times
    return lines


def gradient_bytes(tape: Tape, settings: Settings, allotted: Callable[[int], int]) -> int:
    """Gradients of all trained weights [bytes]."""
    if (runtime := rank_of(tape, settings)) is not None:
        return allotted(runtime.gradient_bytes)
    return sum(allotted(share_of(tape, s).gradient_bytes) * s.times for s in tape.updated)


def earlier_gradients(tape: Tape, settings: Settings, allotted: Callable[[int], int]) -> int:
    """Gradients that are there before the micro-batch [bytes]."""
    if (runtime := rank_of(tape, settings)) is not None:
        return allotted(runtime.lasting_bytes)
    lasting = settings.micro_batches > 1 or tape.layout.bucket_view
    return gradient_bytes(tape, settings, allotted) if lasting else 0
