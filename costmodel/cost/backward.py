"""The walk back over a graph, and the optimizer's over its weights, that find how long gradients stay in memory.

What a call kept is free once it has run backward, and so is the gradient of what it made. The gradient of a weight
stays; that of a weight used twice is a sum, as that of any tensor used twice: for a moment there are both and the sum.
To a gradient that a weight already has, of an earlier micro-batch or recomputed stretch, the sum is added in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from costmodel.cost.forward import Again, Edge, Forward, Slot, Visit, last_of
from costmodel.cost.liveness import GRADIENTS, Allocation, Lifetimes
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Storage
from costmodel.symbolic.sizes import branch_value
from costmodel.training.dtypes import size_bytes
from costmodel.training.settings import Settings


class Backward:
    """Retraces the visits of a forward walk; what is recomputed is walked forward again first.

    accumulates: whether gradients of earlier micro-batches are there, to which those of this one are added in place.
    gradients: those of weights, which stay.
    """

    def __init__(self, forward: Forward, *, accumulates: bool) -> None:
        self.forward = forward
        self.accumulates = accumulates
        self.lifetimes = forward.lifetimes
        self.gradients: list[Allocation] = []
        self._uses: Counter[Slot] = Counter()
        self._waiting: dict[Slot, None] = {}
        self._starts = self._start(forward.visits)
        self._execute(forward.visits)
        for start in self._starts:
            start.died = len(self.lifetimes.moments) - 1

    def _execute(self, visits: list[Visit | Edge | Again]) -> None:
        """Run backward once; a weight gets the sum of its gradients when the last of its uses in this pass is done.

        Source: ``torch/csrc/autograd``: the ``InputBuffer`` of a ``GraphTask``, then ``AccumulateGrad``.
        """
        outer = self._uses
        retraced = [visit.targets for visit in visits if isinstance(visit, Visit)]
        self._uses = Counter([slot for targets in retraced for slot, _ in targets if slot.of_weight])
        waiting = {slot: slot.gradient for slot in self._uses}
        for slot in waiting:
            slot.gradient = None
        self._retrace(visits)
        for slot, gradient in waiting.items():
            slot.gradient = gradient
        self._uses = outer

    def _retrace(self, visits: list[Visit | Edge | Again]) -> None:
        starts: list[int] = []
        for visit in reversed(visits):
            if isinstance(visit, Visit):
                self._visit(visit)
            elif isinstance(visit, Again):
                self._again(visit)
            elif visit.opens:
                self._loop(starts.pop(), visit.more)
            else:
                starts.append(len(self.lifetimes.moments))

    def _loop(self, start: int, more: int) -> None:
        """All since the moment `start` happens `more` times beside: slices' gradients made since are of all rounds."""
        self.lifetimes.loop(start, more)
        for whole in self._waiting:
            whole.parts = tuple(
                (part, size, rounds * (1 + more) if part.born >= start else rounds)
                for part, size, rounds in whole.parts
            )

    def _again(self, allocation: Again) -> None:
        """Run a stretch again, then back by itself; until that is done what it reads, its result and the gradient of it
        are held.

        Source: ``torch.utils.checkpoint.CheckpointFunction.backward``, whose names they are.
        """
        incoming = allocation.slot.gradient
        visits, result = self.forward.again(allocation)
        outside = {slot: slot.gradient for slot in allocation.slots.values() if slot.gradient and not slot.of_weight}
        for slot in outside:
            slot.gradient = None
        self._execute(visits)
        now = len(self.lifetimes.moments) - 1
        for held in (incoming, result, *(allocation.places.get(kept) for kept in allocation.block.saved)):
            if held is not None:
                held.died = max(held.died, now)
        for slot, first in outside.items():
            second, slot.gradient = slot.gradient, first
            if second is not None:
                self._add(slot, first, second, next(visit for visit in visits if isinstance(visit, Visit)))

    def _start(self, visits: list[Visit | Edge | Again]) -> list[Allocation]:
        """The gradients that backward starts from: the caller holds them until the end."""
        last = last_of(visits)
        if last is None:
            return []
        starts: list[Allocation] = []
        for slot in dict.fromkeys((last.slot, *(slot for slot, _ in self.forward.ends))):
            slot.gradient = slot.gradient or self.lifetimes.take(slot.size, len(self.lifetimes.moments))
            starts.append(slot.gradient)
        return starts

    def _visit(self, visit: Visit) -> None:
        slot, plan = visit.slot, visit.plan
        if slot.parts:
            self._join(slot, visit)
        incoming, slot.gradient = slot.gradient, None
        if incoming is None:
            for target, _ in visit.targets:
                if target.of_weight:
                    self._settle(target, visit)
            return
        if plan.passes:
            self._pass(visit, incoming)
            return
        now = self._moment(visit)
        incoming.died = now
        for allocation in visit.saved:
            allocation.died = now
        if plan.backward_scratch:
            self.lifetimes.take(plan.backward_scratch, now)
        take = self.lifetimes.take
        made = [(target, incoming if shared else take(target.size, now)) for target, shared in visit.targets]
        for target, gradient in made:
            if target.gradient is None:
                target.gradient = gradient
            else:
                self._add(target, target.gradient, gradient, visit)
            if plan.later and target is made[-1][0]:
                self._finish(visit, target, *plan.later)
            if target.of_weight:
                self._settle(target, visit, made)

    def _finish(self, visit: Visit, target: Slot, size: int, lasting: Storage) -> None:
        """The last moment of a backward of several steps, the first of which gave `target` a part of its gradient."""
        now = self._moment(visit)
        if target.gradient is not None:
            target.gradient.died = now
        for (storage, _), allocation in zip(visit.plan.saved, visit.saved, strict=True):
            if storage is lasting:
                allocation.died = now
        self.lifetimes.take(size, now)

    def _settle(self, target: Slot, visit: Visit, given: Sequence[tuple[Slot, Allocation]] = ()) -> None:
        """Once it is of all uses of a weight in this pass, what has come together becomes or joins its gradient.

        It becomes it as it is, unless it is smaller and seen several times, or the caller or another of the operands
        that are `given` gradients has the same tensor: then a copy does. A slice of a larger gradient is a tensor of
        its own, which keeps all of that; one that is scattered does not lie as the weight does, and is copied.
        """
        self._uses[target] = left = self._uses[target] - 1
        if left:
            return
        if target.parts:
            self._join(target, visit)
        made, now = target.gradient, len(self.lifetimes.moments) - 1
        if made is None:
            return
        target.gradient = None
        if self.accumulates or target.settled:
            made.died = max(made.died, now)
            return
        alike = [other for other, gradient in given if gradient is made]
        same = made.size is target.size
        if not same and branch_value(made.size) > branch_value(target.size):
            copied = visit.plan.scattered and len(alike) > 0
        else:
            smaller = not same and branch_value(made.size) != branch_value(target.size)
            copied = smaller or made in self._starts or sum([not other.settled for other in alike]) > 1
        if copied:
            made = self.lifetimes.take(target.size, now)
        made.line, made.settled, target.settled = GRADIENTS, now, True
        self.gradients.append(made)

    def _moment(self, visit: Visit) -> int:
        return self.lifetimes.moment("backward", visit.name, visit.rounds)

    def _add(self, target: Slot, first: Allocation, second: Allocation, visit: Visit) -> None:
        now = self._moment(visit)
        first.died = second.died = now
        target.gradient = self.lifetimes.take(target.size, now)

    def _pass(self, visit: Visit, incoming: Allocation) -> None:
        """A slice's gradient waits for those of the other slices, to be joined with them."""
        whole = visit.targets[0][0]
        whole.parts = (*whole.parts, (incoming, visit.slot.size, 1))
        self._waiting[whole] = None
        if sum(branch_value(size * rounds) for _, size, rounds in whole.parts) >= branch_value(whole.size):
            self._join(whole, visit)
        if whole.of_weight:
            self._settle(whole, visit)

    def _join(self, whole: Slot, visit: Visit) -> None:
        now = self._moment(visit)
        for part, _, rounds in whole.parts:
            part.died, part.rounds = now, rounds
        whole.parts = ()
        self._waiting.pop(whole, None)
        joined = self.lifetimes.take(whole.size, now)
        if whole.gradient is None:
            whole.gradient = joined
        else:
            self._add(whole, whole.gradient, joined, visit)


def update(weights: list[tuple[Storage, str] | Edge], tape: Tape, settings: Settings, lifetimes: Lifetimes) -> None:
    """The optimizer's step."""
    if settings.states.flat:
        _update_flat(tape, settings, lifetimes)
    elif settings.update == "loop":
        _update_each(weights, tape, settings, lifetimes)
    else:
        _update_all(weights, settings, lifetimes)


def _in_turn(weights: list[tuple[Storage, str] | Edge], lifetimes: Lifetimes) -> Iterator[tuple[Storage, int]]:
    """One weight after another, each with its moment."""
    starts: list[int] = []
    for weight in weights:
        if not isinstance(weight, Edge):
            storage, rounds = weight
            yield storage, lifetimes.moment("optimizer", storage.name, rounds)
        elif weight.opens:
            starts.append(len(lifetimes.moments))
        else:
            lifetimes.loop(starts.pop(), weight.more)


def _update_each(
    weights: list[tuple[Storage, str] | Edge], tape: Tape, settings: Settings, lifetimes: Lifetimes
) -> None:
    """One weight after another, with the tensors of a weight's size that each update makes.

    AdamW makes two: √v, then √v/√(1 − β₂ᵗ) + ε, which stays until the next weight has its own.
    """
    optimizer, dtype = settings.states, settings.policy.state_dtype
    lasting: Allocation | None = None
    for storage, now in _in_turn(weights, lifetimes):
        if lasting is not None:
            lasting.died = now
        size, makes = size_bytes(storage.elements, dtype), optimizer.makes_of(tape.trained[storage])
        made = [lifetimes.take(size, now) for _ in range(makes)]
        lasting = made[-1] if made and optimizer.lasts else None


def _update_all(weights: list[tuple[Storage, str] | Edge], settings: Settings, lifetimes: Lifetimes) -> None:
    """All weights at once: a foreach update makes its tensors for all of them, a fused one none.

    What it makes for one weight after another comes and goes while those are there.
    """
    optimizer, dtype = settings.states, settings.policy.state_dtype
    foreach = settings.update == "foreach"
    now = lifetimes.moment("optimizer", "every weight", "")
    times = [1]
    made: list[Allocation] = []
    for weight in weights:
        if isinstance(weight, Edge) and weight.opens:
            times.append(times[-1] * (1 + weight.more))
        elif isinstance(weight, Edge):
            times.pop()
        else:
            size = lifetimes.allotted(size_bytes(weight[0].elements, dtype))
            made += [lifetimes.take(size * times[-1], now) for _ in range((optimizer.together or 0) * foreach)]
    if foreach and optimizer.in_turn:
        for storage, later in _in_turn(weights, lifetimes):
            for each in optimizer.in_turn:
                lifetimes.take(each.size_bytes((storage.elements,), size_bytes(1, dtype)), later)
        for allocation in made:
            allocation.died = len(lifetimes.moments) - 1


def _update_flat(tape: Tape, settings: Settings, lifetimes: Lifetimes) -> None:
    """All weights as one: each tensor that the update makes is as long as all of them."""
    now = lifetimes.moment("optimizer", "every weight", "")
    size = size_bytes(sum(storage.elements * storage.times for storage in tape.updated), settings.policy.state_dtype)
    for _ in range(settings.states.makes):
        lifetimes.take(size, now)
