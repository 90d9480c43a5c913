"""The schedules of pipelines: orders of passes, each with the memory and the bubble that follow from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise

from costmodel.training.frozen import frozen
from costmodel.training.schedule import Action, ActionKind, Run, Schedule


def _forward(stage: int, microbatch: int = 0) -> Action:
    return Action(stage, "F", microbatch)


def _backward(stage: int, microbatch: int = 0) -> Action:
    return Action(stage, "B", microbatch)


class _Single(Schedule):
    """Abstract: one stage a rank."""

    usual_stages = only_stages = 1

    def gathered_ahead(self, rank: int) -> list[int]:
        """None: each pass gathers what it reads."""
        return []

    @property
    def idle(self) -> int:
        return 3 * (self.ranks - 1)

    def programs(self) -> list[list[Action]]:
        """A stage's own loop: each pass receives what it reads and sends what it made."""
        return [[*self._program(rank)] for rank in range(self.ranks)]

    def _program(self, rank: int) -> Iterator[Action]:
        for action in self.actions(rank):
            forward = action.kind == "F"
            if self.needs(action):
                yield action._replace(kind="RECV_F" if forward else "RECV_B")
            yield action
            if self.feeds(action):
                yield action._replace(kind="SEND_F" if forward else "SEND_B")
        yield Action(rank, "REDUCE_GRAD")


@frozen()
class GPipe(_Single):
    """All micro-batches forward, then all backward. All are in flight; a rank idles (P - 1)(F + B)."""

    name = "gpipe"
    source = (
        "Huang et al. 2019, GPipe, §2.3; torch.distributed.pipelining.ScheduleGPipe, whose backward is in order too"
    )

    def runs(self, rank: int) -> Iterator[Run]:
        yield Run((_forward(rank),), self.microbatches)
        yield Run((_backward(rank),), self.microbatches)

    def in_flight(self, rank: int) -> int:
        return self.microbatches


class _OneForwardOneBackward(_Single):
    """Abstract: as many forward as there are stages ahead, then a backward after each. A rank idles (P - 1)(F + B).

    In flight are min(m, P - i) on rank i.
    """

    name = "1f1b"

    def runs(self, rank: int) -> Iterator[Run]:
        ahead = min(self.ranks - 1 - rank, self.microbatches)
        steady = self.microbatches - ahead
        yield Run((_forward(rank),), ahead)
        yield Run((_forward(rank, ahead), _backward(rank)), steady)
        yield Run((_backward(rank, steady),), ahead)

    def in_flight(self, rank: int) -> int:
        return min(self.microbatches, self.ranks - rank)


@frozen()
class OneForwardOneBackward(_OneForwardOneBackward):
    """That of PyTorch, which takes no fewer micro-batches than stages."""

    source = "Narayanan et al. 2021, PipeDream-2BW, §3.2; torch.distributed.pipelining.Schedule1F1B"

    @property
    def nearest(self) -> tuple[int]:
        return (max(self.microbatches, self.ranks),)


@frozen()
class ShortOneForwardOneBackward(_OneForwardOneBackward):
    """That of Megatron-Core and DeepSpeed, whose ranks have no steady state with fewer micro-batches than stages."""

    source = (
        "Megatron-Core, schedules.py: forward_backward_pipelining_without_interleaving; "
        "DeepSpeed, runtime/pipe/schedule.py: TrainSchedule"
    )


@frozen()
class LoopedBFS(Schedule):
    """All micro-batches through the first stage of a rank, then its next; backward the other way round.

    All m·V are in flight; with m at least P, a rank idles (P - 1)(F + B) of one stage.
    """

    name = "looped-bfs"
    source = "Lamy-Poirier 2022, Breadth-First Pipeline Parallelism, §4; torch.distributed.pipelining.ScheduleLoopedBFS"

    def runs(self, rank: int) -> Iterator[Run]:
        own = self.stages_of(rank)
        for stage in own:
            yield Run((_forward(stage),), self.microbatches)
        for stage in reversed(own):
            yield Run((_backward(stage, self.microbatches - 1),), self.microbatches, -1)

    def in_flight(self, rank: int) -> int:
        return self.microbatches * self.stages_per_rank

    @property
    def idle(self) -> int:
        return 3 * (self.ranks - 1 + (self.stages_per_rank - 1) * max(0, self.ranks - self.microbatches))


class _Interleaved(Schedule):
    """Abstract: micro-batches in rounds, each round through all stages of a rank before the next.

    A round has as many micro-batches as there are ranks, and a share of what is left over; the last may have fewer.
    """

    @property
    def rounds(self) -> int:
        """Rounds of a step."""
        return max(1, self.microbatches // (self.group or self.ranks))

    @property
    def round(self) -> int:
        """Micro-batches of a round."""
        return self.group or self.microbatches // self.rounds

    @property
    def period(self) -> int:
        return 2 * self.round

    def with_microbatches(self, count: int) -> Schedule:
        return type(self)(self.ranks, self.stages_per_rank, count, self.round)

    @property
    def nearest(self) -> tuple[int, ...]:
        below, left = self.round * self.rounds, self.microbatches % self.rounds
        return (below, min(below + self.rounds, (self.rounds + 1) * self.ranks)) if left else (below,)

    @property
    def passes(self) -> int:
        """Forward passes of a rank, over all of its stages."""
        return self.microbatches * self.stages_per_rank

    def pass_at(self, rank: int, n: int, kind: ActionKind) -> Action:
        """The n-th forward, or backward, pass of a rank."""
        before = n // (self.round * self.stages_per_rank) * self.round  # micro-batches of other rounds
        size = min(self.round, self.microbatches - before)
        local, place = divmod(n - before * self.stages_per_rank, size)
        own = local if kind == "F" else self.stages_per_rank - 1 - local
        return Action(own * self.ranks + rank, kind, before + place)

    def periodic(
        self, start: int, end: int, actions: Callable[[int], Iterable[Action]], ahead: int = 0
    ) -> Iterator[Run]:
        """What is done at each of the turns from start to end, of which those are alike that are whole rounds apart.

        ahead: of the turn the pass that comes first, which the last round may have in another order.
        """
        period = self.round * self.stages_per_rank
        whole = self.passes // period * period - ahead
        times = max(0, min(end, whole) - start) // period
        if times:
            yield Run(tuple(chain.from_iterable(map(actions, range(start, start + period)))), times, self.round)
        if start + times * period < end:
            yield Run(tuple(chain.from_iterable(map(actions, range(start + times * period, end)))))


@frozen()
class Interleaved1F1B(_Interleaved):
    """One forward, one backward, over several stages a rank, so that the bubble is that of one stage.

    In flight on rank i are min(m·V, (V - 1)r + 2(P - 1 - i) + 1), with r micro-batches a round; with r at least P, a
    rank idles (P - 1)(F + B) of one stage.
    """

    name = "interleaved-1f1b"
    source = "Narayanan et al. 2021, Megatron-LM, §2.2.2; torch.distributed.pipelining.ScheduleInterleaved1F1B"

    def _ahead(self, rank: int) -> int:
        return min(self.passes, (self.stages_per_rank - 1) * self.round + 2 * (self.ranks - 1 - rank))

    def runs(self, rank: int) -> Iterator[Run]:
        ahead = self._ahead(rank)
        steady = self.passes - ahead
        yield from self.periodic(0, ahead, lambda n: [self.pass_at(rank, n, "F")])
        yield from self.periodic(
            0, steady, lambda n: [self.pass_at(rank, ahead + n, "F"), self.pass_at(rank, n, "B")], ahead
        )
        yield from self.periodic(steady, self.passes, lambda n: [self.pass_at(rank, n, "B")])

    def in_flight(self, rank: int) -> int:
        return min(self.passes, self._ahead(rank) + 1)

    @property
    def idle(self) -> int:
        return 3 * (self.ranks - 1 + (self.stages_per_rank - 1) * max(0, self.ranks - self.round))


@frozen()
class MegatronInterleaved1F1B(Interleaved1F1B):
    """That of Megatron-Core, whose rounds, the last too, have at least as many micro-batches as there are ranks.

    They have as few as go, which ``--microbatch-group-size-per-virtual-pipeline-stage`` says where that is more.
    """

    source = "Megatron-Core, schedules.py: forward_backward_pipelining_with_interleaving, get_schedule_table"

    @property
    def round(self) -> int:
        most = self.microbatches
        return self.group or next(size for size in range(self.ranks, most + 1) if not 0 < most % size < self.ranks)

    @property
    def nearest(self) -> tuple[int]:
        return (max(self.microbatches, self.ranks),)


@frozen()
class InterleavedZeroBubble(_Interleaved):
    """Interleaved, with gradients of weights made later than those of inputs, where the rank would wait.

    In flight are min(m·V, (V - 1)r + P), on every rank: rank i is as many weight passes behind as it is far from the
    first. Fewer forward passes go ahead than in 1F1B.
    """

    name = "interleaved-zero-bubble"
    splits = True
    source = "Qi et al. 2023, Zero Bubble, §2 (ZB-H1); torch.distributed.pipelining.ScheduleInterleavedZeroBubble"

    def runs(self, rank: int) -> Iterator[Run]:
        ahead = min(self.passes, (self.stages_per_rank - 1) * self.round + self.ranks - 1 - rank)
        steady = self.passes - ahead

        def actions(n: int) -> Iterator[Action]:
            if n < steady:
                yield self.pass_at(rank, ahead + n, "F")
            if n < self.passes:
                yield self.pass_at(rank, n, "I")
            if n >= rank:
                yield self.pass_at(rank, n - rank, "W")

        yield from self.periodic(0, ahead, lambda n: [self.pass_at(rank, n, "F")])
        marks = sorted({0, min(rank, steady), steady, min(max(rank, steady), self.passes), self.passes})
        for start, end in pairwise(marks):
            yield from self.periodic(start, end, actions)
        yield from self.periodic(max(self.passes, rank), self.passes + rank, actions)

    def in_flight(self, rank: int) -> int:
        return min(self.passes, (self.stages_per_rank - 1) * self.round + self.ranks)

    @property
    def idle(self) -> int:
        if self.round >= self.ranks:
            return self.ranks - 1
        ends = [own[-1].end for own in self.timetable(lambda action: 1)]
        return int(max(ends)) - 3 * self.passes


class _VShaped(Schedule):
    """Abstract: two stages a rank, of which that nearer the end is that nearer the loss."""

    splits = v_shaped = True
    only_stages = 2


@frozen()
class ZBVZeroBubble(_VShaped):
    """Two stages a rank in a V, with gradients of weights apart, so that with three equal passes no rank waits.

    In flight are min(2P, 2m, m + 1 + i) on rank i.
    """

    name = "zbv-zero-bubble"
    source = "Qi et al. 2023, Zero Bubble, §6; torch.distributed.pipelining.ScheduleZBVZeroBubble"

    def runs(self, rank: int) -> Iterator[Run]:
        whole = max(2 * self.ranks - 1, self.microbatches)
        if whole == self.microbatches:
            yield from self._runs(rank, whole)
            return
        unrolled = chain.from_iterable(run.repetition(n) for run in self._runs(rank, whole) for n in range(run.times))
        yield Run(tuple(action for action in unrolled if action.microbatch < self.microbatches))

    def _runs(self, rank: int, whole: int) -> Iterator[Run]:
        """The order for so many micro-batches, which fill the pipeline."""
        first, last = self.stages_of(rank)
        behind = self.ranks - rank  # of the second stage, before it is this rank's turn
        steady = whole - (2 * self.ranks - 1) + rank
        done = whole - self.ranks  # backward passes of the first stage, when all forward passes are

        def backward(stage: int, microbatch: int) -> tuple[Action, Action]:
            return Action(stage, "I", microbatch), Action(stage, "W", microbatch)

        yield Run((_forward(first),), 2 * behind - 1)
        yield Run((_forward(last), _forward(first, 2 * behind - 1)), rank)
        yield Run((_forward(last, rank), *backward(last, 0)), behind)
        both = (*backward(first, 0), _forward(last, self.ranks), *backward(last, behind))
        yield Run((_forward(first, whole - steady), *both), steady)
        yield Run(tuple(Run(both).repetition(steady)), behind - 1)
        yield Run((Action(first, "I", done), Action(last, "I", whole - rank)), rank)
        yield Run((Action(first, "I", done + rank), Action(first, "W", done)), behind)
        yield Run((Action(last, "W", whole - rank),), rank)
        yield Run((Action(first, "W", whole - rank),), rank)

    def in_flight(self, rank: int) -> int:
        return min(2 * self.ranks, 2 * self.microbatches, self.microbatches + 1 + rank)

    @property
    def idle(self) -> int:
        return max(self.ranks - 1, 4 * self.ranks - 2 * self.microbatches - 2)


@frozen()
class DualPipeV(_VShaped):
    """Two stages a rank in a V, where a forward pass of one runs beside a backward pass of the other.

    In flight are 2P + 1 on every rank.
    """

    name = "dualpipev"
    source = "DeepSeek-AI 2024, DeepSeek-V3, §3.2.1, without its copies; torch.distributed.pipelining.ScheduleDualPipeV"

    @property
    def nearest(self) -> tuple[int]:
        return (max(self.microbatches, self.stages),)

    def runs(self, rank: int) -> Iterator[Run]:
        first, last = self.stages_of(rank)
        behind = self.ranks - rank - 1
        steady = self.microbatches - 2 * self.ranks + rank + 1
        yield Run((_forward(first),), 2 * behind)
        yield Run((_forward(first, 2 * behind), _forward(last)), rank + 1)
        yield Run((Action(last, "I", 0), Action(last, "W", 0), _forward(last, rank + 1)), behind)

        ahead = 2 * self.ranks - rank - 1
        turn = (_forward(first, ahead), _backward(last, behind), _forward(last, self.ranks), _backward(first))
        overlapped = tuple(action._replace(overlapped=action.kind == "F") for action in turn)
        apart = behind == 0  # the last rank's first turn
        yield Run((*turn[:2], *overlapped[2:]), apart)
        yield Run(tuple(Run(overlapped).repetition(apart)), steady - apart)
        yield Run(
            (
                _backward(last, behind + steady),
                Action(last, "F", self.ranks + steady, overlapped=True),
                _backward(first, steady),
            ),
            behind,
        )
        yield Run(tuple(self._drain(rank)))

    def _drain(self, rank: int) -> Iterator[Action]:
        """What is left after the last forward pass: the second half of it makes gradients of weights last."""
        first, last = self.stages_of(rank)
        behind, left = self.ranks - rank - 1, rank + 1
        waiting: deque[Action] = deque()
        for n in range(2 * left):
            stage, start = (first, self.microbatches - self.ranks) if n % 2 else (last, self.microbatches - left)
            microbatch = start + n // 2
            if n < left:
                yield _backward(stage, microbatch)
                continue
            yield Action(stage, "I", microbatch)
            waiting.append(Action(stage, "W", microbatch))
        for microbatch in range(self.microbatches - behind, self.microbatches):
            yield waiting.popleft()
            yield Action(first, "I", microbatch)
            waiting.append(Action(first, "W", microbatch))
        yield from waiting

    def in_flight(self, rank: int) -> int:
        return 2 * self.ranks + 1

    @property
    def idle(self) -> int:
        return self.ranks - 1


_KINDS: tuple[type[Schedule], ...] = (
    GPipe,
    OneForwardOneBackward,
    Interleaved1F1B,
    LoopedBFS,
    InterleavedZeroBubble,
    ZBVZeroBubble,
    DualPipeV,
)
SCHEDULES: dict[str, type[Schedule]] = {kind.name: kind for kind in _KINDS}
"""The schedules, by name."""
ELSEWHERE = SCHEDULES | {kind.name: kind for kind in (ShortOneForwardOneBackward, MegatronInterleaved1F1B)}
"""The same as other runtimes than PyTorch have those that they have."""
UNSPLIT = [name for name, kind in SCHEDULES.items() if not kind.splits]
"""Those that make gradients of weights together with those of inputs."""
