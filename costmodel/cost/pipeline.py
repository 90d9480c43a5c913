"""What a rank of a pipeline has in memory over a step: its stages' passes, put together in the order of a schedule.

One micro-batch's forward and backward pass of a stage are worked out once, and backward again where gradients are there
already. All that a step does is these, one after the other; passes that repeat are a loop.

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
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from costmodel.architectures.trace import trace
from costmodel.cost.backward import BackwardLiveness, update
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
from costmodel.cost.rank_course import RankCourse, RankProgress, alike_times, pass_name
from costmodel.cost.runtimes import RankRuntime, rank_of
from costmodel.cost.sharding import Gathered, ShardedWeights
from costmodel.graph.call import Block
from costmodel.graph.kernel import Message, Operation
from costmodel.graph.tape import Tape
from costmodel.training.schedules import Action, ActionKind, Run, Schedule
from costmodel.training.settings import Settings

if TYPE_CHECKING:
    from costmodel.architectures.base import Architecture


class Posted(NamedTuple):
    """The messages that a rank posts before and after what it computes at a time, each with the stage that it is of."""

    before: tuple[tuple[ActionKind, int], ...]
    after: tuple[tuple[ActionKind, int], ...]


class Turn(NamedTuple):
    """An action of a rank, with what is posted around it, and what of its stage is there by then.

    gathered: see `cost.sharding.Gathered`. begun: whether the stage has gone backward before. ended: whether it does so
    for the last time, and sums its gradients over ranks after that.
    """

    kind: ActionKind
    stage: int
    posted: Posted
    gathered: Gathered
    begun: bool
    ended: bool


MOST_POSTED = 20_000
"""Of pipelines with more passes, messages are where what they carry is made and read, not where PyTorch posts them."""


def _posted(program: Sequence[Action]) -> Iterator[Posted]:
    """What is posted around each action that computes: what is received last before one is of that."""
    before: list[Action] = []
    between: list[Action] = []
    computed = False
    for action in program:
        if action.kind not in ("F", "B", "I", "W"):
            between += [action] if action.microbatch >= 0 else []
            continue
        sent = max((n for n, each in enumerate(between, start=1) if each.kind.startswith("SEND")), default=0)
        if computed:
            yield Posted(_labels(before), _labels(between[:sent]))
        before, between, computed = between[sent:] if computed else between, [], True
    yield Posted(_labels(before), _labels(between))


def _labels(messages: Sequence[Action]) -> tuple[tuple[ActionKind, int], ...]:
    return tuple((each.kind, each.stage) for each in messages)


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
    gathered: what of sharded weights is there before the first.
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
    ) -> None:
        self.tape = tape
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
        forward = ForwardLiveness(tape, lifetimes, loops=not self._splits, gathered=self.gathered)
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
        forward = ForwardLiveness(self.tape, lifetimes, loops=False)
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


class PipelineRank:
    """One rank of a pipeline. ending: what it does after all passes."""

    def __init__(self, pipeline: Pipeline, rank: int) -> None:
        self.schedule = pipeline.schedule
        self.settings = pipeline.settings
        self.rank = rank
        self.stages = {stage: pipeline.passes(stage) for stage in self.schedule.stages_of(rank)}
        self._pipeline = pipeline

    @cached_property
    def ending(self) -> Passage:
        """Outputs are joined, gradients summed over ranks, and weights updated."""
        return step_ending([(each, each.runtime) for each in self.stages.values()], self.settings)

    @cached_property
    def step(self) -> RankStep:
        """What it does in a step, pass by pass: seconds follow from less."""
        return RankStep(self, self._pipeline)

    @property
    def tapes(self) -> tuple[Tape, ...]:
        """What is recorded of its stages."""
        return tuple(stage.tape for stage in self.stages.values())

    @property
    def in_flight(self) -> int:
        """See `Schedule.in_flight`."""
        return self.schedule.in_flight(self.rank)

    @property
    def buffers(self) -> int:
        """What it has for all micro-batches: see `StagePasses.buffers` [bytes]."""
        return self.schedule.microbatches * sum(stage.buffers for stage in self.stages.values())

    @property
    def lifetimes(self) -> Lifetimes:
        """What it does in a step, whose changes are those of passes."""
        return self.step.lifetimes

    @property
    def changes(self) -> Course:
        """See `Lifetimes.changes`."""
        return tuple(map(tuple, self.step.changes))

    def usual(self, stage: int, kind: ActionKind) -> StagePasses:
        """The passes of a stage as most of its actions of a kind find its weights."""
        return self._pipeline.passes(stage, self._progress.usual(stage, kind))

    @cached_property
    def _progress(self) -> RankProgress:
        return RankCourse.of(self.schedule, self.rank, self.settings.layout).progress

    def __repr__(self) -> str:
        return f"<PipelineRank {self.rank}: stages {[*self.stages]}>"


class RankStep:
    """The passes of a rank over a step, one after the other. changes: of all of them, by line."""

    def __init__(self, own: PipelineRank, pipeline: Pipeline) -> None:
        self.schedule, self.rank, self.stages = own.schedule, own.rank, own.stages
        self.lifetimes = Lifetimes()
        self.changes: list[list[int]] = [[] for _ in LINES]
        self._pipeline = pipeline
        self._progress = RankProgress(self.schedule, own.rank, own.settings.layout)
        self._losses = sum(stage.loss for stage in self.stages.values()) * self.schedule.microbatches
        for stage in self._progress.ahead:
            self._add(self.stages[stage].gathering)
        posted = iter(pipeline.posted[own.rank]) if pipeline.posted else None
        for run in self.schedule.runs(own.rank):
            self._add_run(run, posted)
        self._end(own.ending)

    def _add_run(self, run: Run, posted: Iterator[Posted] | None) -> None:
        """Times that are alike as a loop: those that find the same there, and post the same messages.

        What they find is the same from the third on, but for the last.
        """
        groups: list[tuple[list[Turn], int]] = []
        for times in alike_times(run.times, run.times) if posted else alike_times(run.times):
            turns = [self._turn(action, next(posted) if posted else None, times) for action in run.actions]
            if groups and groups[-1][0] == turns:
                groups[-1] = turns, groups[-1][1] + times
            else:
                groups.append((turns, times))
        for turns, times in groups:
            start = len(self.lifetimes.moments)
            for turn in turns:
                self._add_turn(turn)
            if times > 1:
                self.lifetimes.loop(start, times - 1)

    def _turn(self, action: Action, posted: Posted | None, times: int) -> Turn:
        """An action as it finds its stage, which so many times then leave behind."""
        posted = self._nominal(action) if posted is None else posted
        return Turn(action.kind, action.stage, posted, *self._progress.advance(action, times))

    def _add_turn(self, turn: Turn) -> None:
        stage = self.stages[turn.stage]
        if turn.gathered == "flat":
            self._add(stage.copying)
        passes = self._pipeline.passes(turn.stage, "all" if turn.gathered == "flat" else turn.gathered)
        posted = turn.posted
        messages = [*self._messages(posted.before)], [*self._messages(posted.after)]
        begun = {turn.stage} if turn.begun else set[int]()
        self._add(getattr(passes, pass_name(Action(turn.stage, turn.kind), begun)), messages)
        if turn.ended:
            start = 2 * len(self.lifetimes.moments)
            self._add(stage.reducing)
            if self.schedule.only_stages == 1:  # its own loop clears losses before, but the last has a name (`loss`)
                self.changes[TEMPORARIES][start] -= self._losses - stage.loss
                self._losses = stage.loss

    def _nominal(self, action: Action) -> Posted:
        """What a pass receives right before it, and sends right after it."""
        before, after = self.schedule.needs(action), self.schedule.feeds(action)
        forward = action.kind == "F"
        return Posted(
            (("RECV_F" if forward else "RECV_B", action.stage),) if self._elsewhere(before) else (),
            (("SEND_F" if forward else "SEND_B", action.stage),) if self._elsewhere(after) else (),
        )

    def _messages(self, posted: tuple[tuple[ActionKind, int], ...]) -> Iterator[Message]:
        """What stages hand to neighbours or are handed: each tensor; a gradient is as large as what it is of."""
        for kind, stage in posted:
            tape = self.stages[stage].tape
            operation: Operation = "send" if kind.startswith("SEND") else "receive"
            for x in tape.arrived if kind in ("RECV_F", "SEND_B") else tape.result:
                if x.requires_grad or kind.endswith("F"):
                    yield Message(operation, "pp", self.schedule.ranks, x.size, x.dtype)

    def _elsewhere(self, other: Action | None) -> bool:
        return other is not None and self.schedule.rank_of(other.stage) != self.rank

    def _add(self, passage: Passage, messages: tuple[list[Message], list[Message]] = ([], [])) -> None:
        lifetimes, start = self.lifetimes, len(self.lifetimes.moments)
        lifetimes.moments += passage.moments
        for line, more in zip(self.changes, passage.changes, strict=True):
            line.extend(more)
        lifetimes.loops += [loop._replace(start=loop.start + start, end=loop.end + start) for loop in passage.loops]
        lifetimes.send(messages[0], start)
        lifetimes.messages += [(now + start, message) for now, message in passage.messages]
        lifetimes.send(messages[1], len(lifetimes.moments) - 1)

    def _end(self, ending: Passage) -> None:
        """Outputs are joined, then weights updated."""
        start = 2 * len(self.lifetimes.moments)
        self._add(ending)
        named = sum(stage.named for stage in self.stages.values())
        self.changes[TEMPORARIES][start] -= named + self._losses

    def __repr__(self) -> str:
        return f"<RankStep of rank {self.rank}: {len(self.lifetimes.moments)} moments>"


class Pipeline:
    """The stages of a model under some settings, each kind of which is traced and walked once."""

    def __init__(self, model: Architecture, settings: Settings) -> None:
        self.model = model
        self.settings = settings
        self.schedule = settings.layout.pipeline(settings.micro_batches)
        self._traced: list[tuple[object, Tape]] = []
        self._passes: dict[tuple[object, ...], StagePasses] = {}

    @cached_property
    def tapes(self) -> list[Tape]:
        """What is recorded of each stage; stages that are alike share it."""
        tapes: list[Tape] = []
        for stage in range(self.schedule.stages):
            layout = self.settings.layout._replace(stage=stage)
            arrival = tapes[-1].handed_on if tapes else ()
            kind = (self.model.stage_kind(layout), layout.first, layout.last, arrival)
            alike = next((tape for other, tape in self._traced if other == kind), None)  # a hash would fix letters
            if alike is None:
                alike = trace(self.model, self.settings, layout=layout, arrival=arrival)
                self._traced.append((kind, alike))
            tapes.append(alike)
        return tapes

    def passes(self, stage: int, gathered: Gathered = "none") -> StagePasses:
        """Those of a stage, of whose weights so much is gathered before."""
        manner = StagePasses.manner(self.settings, self.schedule, stage)
        key = self.tapes[stage], *manner.values(), gathered
        if key not in self._passes:
            self._passes[key] = StagePasses(self.tapes[stage], self.settings, **manner, gathered=gathered)
        return self._passes[key]

    @cached_property
    def posted(self) -> list[list[Posted]]:
        """What each rank posts around what it computes; nothing of very many passes."""
        schedule = self.schedule
        if 2 * schedule.stages * schedule.microbatches > MOST_POSTED:
            return []
        return [[*_posted(program)] for program in schedule.programs()]

    @cached_property
    def ranks(self) -> list[PipelineRank]:
        """All of them, in order."""
        return [PipelineRank(self, rank) for rank in range(self.schedule.ranks)]

    def __repr__(self) -> str:
        return f"<Pipeline of {self.model.title}: {self.schedule.stages} stages>"
