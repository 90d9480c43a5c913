"""What comes and goes in one step, walked in order: forward and loss, and in training backward and the optimizer."""

from __future__ import annotations

from typing import Literal, NamedTuple

from costmodel.cost.allocator import segment_bytes
from costmodel.cost.backward import BackwardLiveness, update
from costmodel.cost.data_parallel import (
    gradient_sums,
    in_turn,
    send_buffers,
    send_gradients,
    send_weights,
)
from costmodel.cost.forward import ForwardLiveness
from costmodel.cost.liveness import Allocation, Lifetimes, Stream
from costmodel.cost.persistent import ON_HOST, persistent_tensors
from costmodel.cost.runtimes import RankRuntime, rank_of
from costmodel.cost.sharding import share_of
from costmodel.graph.kernel import Message
from costmodel.graph.tape import Tape
from costmodel.training.settings import Settings


def lives_of(tape: Tape, settings: Settings, lifetimes: Lifetimes, *, loops: bool) -> Lifetimes:
    """What comes and goes in one step.

    Gradients start out as None (``zero_grad(set_to_none=True)``); the result, a loss or in inference the prediction, is
    held to the end, and what the loss alone reads is not.
    """
    end_of(tape, settings, passes_of(tape, settings, lifetimes, loops=loops), lifetimes)
    return lifetimes


class StepPasses(NamedTuple):
    """Forward and backward, walked. gradients: of weights, which stay. runtime: whose rank it is, of some."""

    forward: ForwardLiveness
    gradients: list[Allocation]
    runtime: RankRuntime | None


def passes_of(tape: Tape, settings: Settings, lifetimes: Lifetimes, *, loops: bool) -> StepPasses:
    """Walk forward and backward. loops: whether rounds that are alike are walked once."""
    runtime = rank_of(tape, settings)
    if runtime is not None:
        runtime.start_forward(lifetimes)
    send_buffers(tape, lifetimes)
    if _staged(tape) and not tape.layout.first:
        lifetimes.send(handed(tape, "receive"), lifetimes.moment("forward", "received", ""))
    forward = ForwardLiveness(tape, lifetimes, loops=loops)
    if not lifetimes.moments:  # nothing but views of the input, which is there all along
        lifetimes.moment("forward", "input", "")
    gradients: list[Allocation] = []
    if tape.training:
        gradients = [] if runtime is None else runtime.start_backward(lifetimes)
        accumulates = settings.micro_batches > 1 or (runtime is not None and runtime.drops) or tape.layout.bucket_view
        backward = BackwardLiveness(forward, accumulates=accumulates)
        gradients += backward.gradients
        send_gradients(lifetimes, gradient_sums(tape, lifetimes, backward.arrivals))
        gradients += forward.sharding.gradients if forward.sharding else []
    return StepPasses(forward, gradients, runtime)


def end_of(tape: Tape, settings: Settings, passes: StepPasses, lifetimes: Lifetimes) -> None:
    """The optimizer's step after the passes, or what is handed to the next stage; what stays does to the last."""
    forward, gradients, runtime = passes
    if tape.training and runtime is None:
        update(in_turn(tape, forward.weights), [tape], settings, lifetimes)
        send_weights(tape, lifetimes)
    elif tape.training and runtime is not None:
        runtime.end_backward(lifetimes)
        runtime.update(lifetimes)
    if _staged(tape) and not tape.layout.last:
        lifetimes.send(handed(tape, "send"), lifetimes.moment("forward", "sent", ""))
    last = len(lifetimes.moments) - 1
    for allocation in (forward.output, *forward.persistent, *(place for _, place in forward.ends), *gradients):
        allocation.died = last


def _staged(tape: Tape) -> bool:
    return tape.layout.stage is not None and not tape.training


def handed(tape: Tape, operation: Literal["send", "receive"]) -> list[Message]:
    """What a stage hands to the next, or is handed by the one before."""
    tensors = tape.result if operation == "send" else tape.arrived
    return [Message(operation, "pp", tape.layout.pp, y.size, y.dtype) for y in tensors]


def reserved_bytes(tape: Tape, settings: Settings) -> int:
    """Bytes of segments that PyTorch's CUDA caching allocator takes for what stays and for one step, replayed.

    Every round of a repeated block is replayed by itself.
    """
    lifetimes = lives_of(tape, settings, Lifetimes(), loops=False)
    lives: dict[Stream, list[tuple[int, int, int]]] = {
        "layers": [(size, -1, died) for size, died in lifetimes.released]
    }
    for allocation in lifetimes.allocations:
        lives.setdefault(allocation.stream, []).append((allocation.size, allocation.born, allocation.died))
    elsewhere = (*ON_HOST, "cache") if lifetimes.released else ON_HOST
    persistent = [(size, times) for line, size, times in persistent_tensors([tape], settings) if line not in elsewhere]
    gradients: list[tuple[int, int]] = []
    if (runtime := rank_of(tape, settings)) is not None:
        persistent.append((runtime.lasting_bytes, 1))
    elif settings.micro_batches > 1 or tape.layout.bucket_view:
        gradients = [(share_of(tape, s).gradient_bytes, s.times) for s in tape.updated]
    lasting: dict[Stream, list[tuple[int, int]]] = {"layers": persistent}
    lasting.setdefault("reduce" if tape.layout.shards > 1 else "layers", []).extend(gradients)
    streams: set[Stream] = {*lives, *lasting}
    return sum(segment_bytes(lasting.get(stream, []), lives.get(stream, [])) for stream in streams)
