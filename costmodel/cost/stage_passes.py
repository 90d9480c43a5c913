"""The passes of a stage of a pipeline over one micro-batch, as memory: forward, and backward as the first to make
gradients, or later; and what a rank does once all are over.

Between passes a stage keeps what backward reads, and what it handed on, until its own backward pass. Buffers for what
comes from other ranks, activations and gradients, are there for all micro-batches, from before the step
(``PipelineStage._setup_forward_recv_info``, ``_create_grad_recv_info``). A stage whose neighbour is on the same rank is
handed that one's own tensors, which take the place of such buffers until those of the next step do
(``set_local_fwd_input``). The last stage keeps all losses, and unless `return_outputs` says otherwise what it made of
all micro-batches, which are joined in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple, Self

from costmodel.cost.backward import BackwardLiveness, update
from costmodel.cost.call_memory import CallMemory
from costmodel.cost.data_parallel import gradient_sums, send_gradients
from costmodel.cost.forward import CallRound, ForwardLiveness, LoopEdge, Order, StretchRound, UnitEdge
from costmodel.cost.liveness import (
    ACTIVATIONS,
    GRADIENTS,
    LINES,
    TEMPORARIES,
    Allocation,
    Course,
    Lifetimes,
    Moment,
    MomentLoop,
)
from costmodel.cost.runtimes import RankRuntime, rank_of
from costmodel.cost.sharding import Gathered, ShardedWeights
from costmodel.graph.call import Block, Call
from costmodel.graph.kernel import Message
from costmodel.graph.tape import Tape
from costmodel.training.schedule import Schedule
from costmodel.training.settings import Settings


class Passage(NamedTuple):
    """Some moments of a rank: what is taken and given back around each [bytes], which repeat, and what is sent."""

    moments: list[Moment]
    changes: Course
    loops: list[MomentLoop]
    messages: list[tuple[int, Message]]

    def with_change(self, place: int, size: int) -> Passage:
        """The same with more taken at one place of `changes`, among temporaries."""
        changes = [list(line) for line in self.changes]
        changes[TEMPORARIES][place] += size
        return self._replace(changes=tuple(map(tuple, changes)))

    @classmethod
    def between(cls, lifetimes: Lifetimes, changes: Course, start: int, end: int) -> Passage:
        """The moments from `start` up to `end`, counted from there."""
        loops = [
            loop._replace(start=loop.start - start, end=loop.end - start)
            for loop in lifetimes.loops
            if start <= loop.start and loop.end <= end
        ]
        messages = [(now - start, message) for now, message in lifetimes.messages if start <= now < end]
        return cls(lifetimes.moments[start:end], tuple(line[2 * start : 2 * end] for line in changes), loops, messages)

    def __repr__(self) -> str:
        return f"<Passage of {len(self.moments)} moments>"


class StagePasses:
    """The passes of one stage over one micro-batch: forward, and backward as the first to make gradients, or later.

    result: what it hands on [bytes]. loss: what is kept of that until all passes are done [bytes]. walk: the forward
    one, which knows the weights in the order of their use. named: what was made of a micro-batch, and the gradient that
    was sent last, if these have names until the next ones are there (``Schedule1F1B``: `output`, `bwd_sends`) [bytes].
    gathered: what of sharded weights is there before the first. memory: see `ForwardLiveness`.
    """

    def __init__(
        self,
        tape: Tape,
        settings: Settings,
        *,
        kept: bool,
        handed_over: bool,
        handed_back: bool,
        splits: bool,
        named: bool,
        gathered: Gathered = "none",
        memory: dict[Call, CallMemory] | None = None,
    ) -> None:
        self.tape = tape
        self._memory: dict[Call, CallMemory] = {} if memory is None else memory
        self.gathered: Gathered = gathered
        self.sharded = tape.layout.shards > 1
        self.runtime = rank_of(tape, settings)
        self.result = sum(y.storage.bytes for y in tape.result)
        self.loss = 0
        self._kept = kept
        self._handed_over = handed_over
        self._handed_back = handed_back
        self._splits = splits
        self.forward, self.first, self.walk = self._walked(accumulates=False)
        self._output = self.result if named and tape.layout.last and not kept else 0
        self._sent = sum(x.storage.bytes for x in tape.arrived if x.requires_grad) if named else 0
        self.named = self._output + self._sent
        self.first = self.first.with_change(-1, self.named) if self.named else self.first

    def on_copies(self, tape: Tape) -> Self:
        """The same of a tape that differs in nothing but how many copies of the model there are."""
        other = copy(self)
        other.tape = tape
        other.sums = [message._replace(devices=tape.layout.dp) for message in self.sums]
        return other

    @cached_property
    def later_forward(self) -> Passage:
        """Forward once there are gradients: what takes the place of an earlier result lets go of that."""
        if not self._output:
            return self.forward
        start = next(n for n, (phase, _, _) in enumerate(self.forward.moments) if phase == "loss")
        return self.forward.with_change(2 * start, -self._output)

    @cached_property
    def later(self) -> Passage:
        """Backward where there are gradients already."""
        if self.runtime is not None and self.runtime.drops:
            return self.first
        later = self._walked(accumulates=True)[1]
        return later.with_change(-1, self._output) if self._output else later

    @property
    def inputs(self) -> Passage:
        """Backward for the input alone; nothing of the first stage, which makes all gradients with those of weights."""
        return self._first_parts[0] if self._apart else Passage([], tuple(() for _ in LINES), [], [])

    @property
    def first_weights(self) -> Passage:
        """Backward for weights, as the first to make their gradients."""
        return self._first_parts[1] if self._apart else self.first

    @cached_property
    def later_weights(self) -> Passage:
        """The same where there are gradients already."""
        return self._split(accumulates=True)[1] if self._apart else self.later

    @property
    def _apart(self) -> bool:
        return self._splits and not self.tape.layout.first

    @cached_property
    def _first_parts(self) -> tuple[Passage, Passage]:
        return self._split(accumulates=False)

    @staticmethod
    def manner(settings: Settings, schedule: Schedule, stage: int) -> dict[str, Any]:
        """How a stage is run: what its passes are beside the tape, by the arguments' names."""
        own = schedule.rank_of(stage)
        handed_over = stage + 1 < schedule.stages and schedule.rank_of(stage + 1) == own
        runs_on = settings.layout.runtime != "torch"  # which drops what it has sent, and keeps no outputs
        return {
            "kept": settings.return_outputs and not runs_on,
            "handed_over": handed_over or runs_on,
            "handed_back": stage > 0 and schedule.rank_of(stage - 1) == own,
            "splits": schedule.splits,
            "named": schedule.name == "1f1b" and not runs_on,
        }

    @property
    def buffers(self) -> int:
        """What it has for each micro-batch throughout: what it is fed or receives, and the gradient of its result.

        Nothing in another runtime than PyTorch's, where that comes and goes with each [bytes].
        """
        if self.runtime is not None:
            return 0
        return sum(x.storage.bytes for x in self.tape.inputs.values()) + (0 if self.tape.layout.last else self.result)

    @property
    def joined(self) -> int:
        """What of its results is joined in the end, for each micro-batch [bytes]."""
        return self.result if self._kept and self.tape.layout.last else 0

    def _walked(self, *, accumulates: bool) -> tuple[Passage, Passage, ForwardLiveness]:
        tape, lifetimes = self.tape, Lifetimes()
        handed: list[Allocation] = []
        if self.runtime is not None:  # what comes in has memory of its own when it comes
            now = lifetimes.moment("forward", "received", "")
            handed += [lifetimes.take(x.storage.bytes, now, ACTIVATIONS) for x in tape.inputs.values()]
        forward = ForwardLiveness(tape, lifetimes, loops=not self._splits, gathered=self.gathered, memory=self._memory)
        if not lifetimes.moments:  # a stage of views alone
            lifetimes.moment("forward", "view", "")
        cut = len(lifetimes.moments)
        if forward.sharding is not None:
            forward.sharding.gathered = "all" if self.gathered == "all" or not tape.layout.reshard else "root"
        if self.runtime is not None and not tape.layout.last:
            now = lifetimes.moment("backward", "received", "")
            handed.append(lifetimes.take(self.result, now))
        accumulates = accumulates or (self.runtime is not None and self.runtime.drops)
        results = self._results(forward)
        backward = BackwardLiveness(forward, accumulates=accumulates)
        if len(lifetimes.moments) == cut:
            lifetimes.moment("backward", "view", "")
        self.sums = gradient_sums(tape, lifetimes, backward.arrivals)
        end = lifetimes.moment("backward", "end", "")
        for allocation in handed:
            allocation.died = end - 1
        for gradient in backward.returned:
            gradient.died = end - 1
        gradients = backward.gradients
        if forward.sharding is not None:
            gradients = [*gradients, *forward.sharding.gradients, *forward.sharding.lasting]
        self._end(forward, results, cut, end, gradients, end)
        changes = lifetimes.changes()
        passes = Passage.between(lifetimes, changes, 0, cut), Passage.between(lifetimes, changes, cut, end)
        return *passes, forward

    @cached_property
    def gathering(self) -> Passage:
        """All weights come before they are asked for, each unit's in a buffer."""
        return self._of_units(lambda weights, block, rounds, _: weights.gather_held(block, rounds))

    @cached_property
    def copying(self) -> Passage:
        """Weights are copied out of their buffers when the first pass asks for them."""
        return self._of_units(lambda weights, block, rounds, _: weights.copy_out_held(block, rounds))

    @cached_property
    def reducing(self) -> Passage:
        """Gradients of all micro-batches are summed over ranks, and gathered weights go."""
        return self._of_units(
            lambda weights, block, rounds, alike: weights.reduce_held(block, rounds, alike), "gradients"
        )

    def _of_units(self, visit: Callable[[ShardedWeights, Block, str, int], None], opening: str = "") -> Passage:
        """What each unit of sharded weights does by itself, the root first, after a moment of that name."""
        lifetimes = Lifetimes()
        weights = ShardedWeights(self.tape, lifetimes, "none")
        if opening:
            lifetimes.moment("backward", opening, "")
        starts: list[tuple[int, int]] = []
        alike = 1
        for edge in _with_recomputed(self.walk.order):
            if isinstance(edge, LoopEdge) and edge.opens:
                starts.append((len(lifetimes.moments), alike))
                alike *= 1 + edge.more
            elif isinstance(edge, LoopEdge):
                start, alike = starts.pop()
                lifetimes.loop(start, edge.more)
            elif isinstance(edge, UnitEdge) and edge.opens:
                visit(weights, edge.block, edge.rounds, alike)
        weights.end_reduction()
        end = lifetimes.moment("backward", "end", "")
        for allocation in (*weights.gradients, *weights.lasting):
            allocation.died = end
        return Passage.between(lifetimes, lifetimes.changes(), 0, end)

    def _results(self, forward: ForwardLiveness) -> list[Allocation]:
        """Memory of what forward has made; what is run again in backward is made in other."""
        return [place for y in self.tape.result if (place := forward.place_of(y)) is not None]

    def _end(
        self,
        forward: ForwardLiveness,
        results: list[Allocation],
        cut: int,
        end: int,
        gradients: list[Allocation],
        until: int,
    ) -> None:
        """Let results stay until the stage is done with them, and what lasts past the micro-batch until its end."""
        for result in results:
            result.died = max(result.died, cut - 1 if self._handed_over else until - 1)
        lasting = gradients
        if self.tape.layout.last:
            lasting = [*gradients, forward.output, *(results if self._kept else ())]
            self.loss = forward.output.size
        for allocation in lasting:
            allocation.died = end

    def _split(self, *, accumulates: bool) -> tuple[Passage, Passage]:
        """Backward in two: for the input, and for weights.

        The first keeps what the second reads: of each layer with weights what it kept and the gradient that came to it,
        and, as its graph is held from there, what all before it kept. The second goes over these layers in the order of
        the model. The input's gradient stays its tensor's until the next step.

        Source: ``torch/distributed/pipelining/_backward.py``: ``stage_backward_input``, ``stage_backward_weight``.
        """
        lifetimes = Lifetimes()
        forward = ForwardLiveness(self.tape, lifetimes, loops=False, memory=self._memory)
        cut = len(lifetimes.moments)
        results = self._results(forward)
        backward = BackwardLiveness(forward, accumulates=accumulates, inputs_only=True)
        middle = len(lifetimes.moments)
        weighted = {id(call): now for now, (call, _) in enumerate(reversed(backward.captured), start=middle)}
        end = middle + len(weighted)
        last = max((n for n, item in enumerate(forward.order) if id(item) in weighted), default=-1)
        # Logits that are gathered over tp are a view, whose graph is not cut off: with them stays what backward has
        # not let go of, which is what it goes through for inputs alone.
        viewed = self.joined > 0 and self.tape.layout.tp > 1
        for n, item in enumerate(forward.order):
            for allocation in item.saved if isinstance(item, CallRound) else ():
                unread = middle - 1 if n > last else end if viewed else end - 1
                allocation.died = max(allocation.died, weighted.get(id(item), unread))
        gradients: list[Allocation] = []
        for call, incoming in reversed(backward.captured):
            now = lifetimes.moment("backward", call.name, call.rounds)
            incoming.died = max(incoming.died, now)
            for slot, _ in call.targets:
                if slot.of_weight:
                    own = lifetimes.take(slot.size, now)
                    own.died = min(now + 1, end - 1)  # its name is free when the next layer has its own
                    if not accumulates:
                        own.line = GRADIENTS
                        gradients.append(own)
        lifetimes.moment("backward", "end", "")
        for gradient in backward.returned:
            gradient.died = max(gradient.died, middle - 1 if self._handed_back else end)
        # What the last stage has made is let go of with the loss's gradient, what others have with those of weights.
        self._end(forward, results, cut, end, gradients, middle if self.tape.layout.last else end)
        changes = lifetimes.changes()
        return Passage.between(lifetimes, changes, cut, middle), Passage.between(lifetimes, changes, middle, end)

    def __repr__(self) -> str:
        return f"<StagePasses of {self.tape}>"


def _with_recomputed(order: Order) -> Iterator[CallRound | LoopEdge | UnitEdge]:
    """What a forward walk visits, with what is in stretches that are recomputed."""
    for item in order:
        if isinstance(item, StretchRound):
            yield from _with_recomputed(item.ran)
        else:
            yield item


def step_ending(stages: Sequence[tuple[StagePasses, RankRuntime | None]], settings: Settings) -> Passage:
    """What a rank does after all passes: outputs are joined, gradients summed over ranks, then weights updated."""
    lifetimes = Lifetimes()
    for stage, _ in stages:
        if stage.joined:
            lifetimes.take(stage.joined * settings.micro_batches, lifetimes.moment("backward", "joined outputs", ""))
    for stage, runtime in stages:
        if runtime is None:
            send_gradients(lifetimes, stage.sums)
        else:
            runtime.end_backward(lifetimes)
    own = [stage for stage, runtime in stages if runtime is None]
    if own:  # one optimizer has the weights of all stages
        update(
            [weight for stage in own for weight in stage.walk.weights],
            [stage.tape for stage in own],
            settings,
            lifetimes,
        )
    for _, runtime in stages:
        if runtime is not None:
            runtime.update(lifetimes)
    if not lifetimes.moments:  # stages without weights
        lifetimes.moment("optimizer", "every weight", "")
    return Passage.between(lifetimes, lifetimes.changes(), 0, len(lifetimes.moments))
