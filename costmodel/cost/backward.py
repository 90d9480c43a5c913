"""The walk back over a graph, and the optimizer's over its weights, that find how long gradients stay in memory.

What a call kept is free once it has run backward, and so is the gradient of what it made. The gradient of a weight
stays; that of a weight used twice is a sum, as that of any tensor used twice. The second is added to the first in place
where nothing else holds that and it is no view; else for a moment there are both and the sum. To a gradient that a
weight already has, of an earlier micro-batch or recomputed stretch, the sum is added in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from costmodel.cost.call_memory import GradientView, LastStep
from costmodel.cost.forward import (
    CallRound,
    ForwardLiveness,
    GradientSlot,
    LoopEdge,
    Order,
    StretchRound,
    UnitEdge,
    last_of,
)
from costmodel.cost.liveness import GRADIENTS, TEMPORARIES, Allocation, Lifetimes
from costmodel.cost.sharding import flat_length, partial_sum, share_of
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Storage, Tensor
from costmodel.symbolic.sizes import branch_value, product
from costmodel.training.dtypes import Shape, size_bytes
from costmodel.training.settings import Settings


class BackwardLiveness:
    """Retraces the visits of a forward walk; what is recomputed is walked forward again first.

    accumulates: whether gradients of earlier micro-batches are there, to which those of this one are added in place.
    gradients: those of weights, which stay. returned: those of what other stages made. inputs_only: whether gradients
    of weights are left for later, for which what calls kept stays, and in `captured` the gradient that came to each.
    """

    def __init__(self, forward: ForwardLiveness, *, accumulates: bool, inputs_only: bool = False) -> None:
        self.forward = forward
        sharding = forward.sharding
        self._whole = sharding is None or (sharding.staged and not sharding.widens)
        self.accumulates = accumulates and self._whole
        if sharding is not None:
            sharding.accumulates = accumulates
        self.lifetimes = forward.lifetimes
        self.gradients: list[Allocation] = []
        self.arrivals: list[tuple[int, Storage]] = []
        self._uses: Counter[GradientSlot] = Counter()
        self._waiting: dict[GradientSlot, None] = {}
        self.captured: list[tuple[CallRound, Allocation]] = []
        self._undivided: dict[int, CallRound] = {}
        self._inputs_only = inputs_only
        self._starts = self._start(forward.order)
        self._execute([self._of_inputs(item) for item in forward.order] if inputs_only else forward.order)
        self.returned = [self._returned(slot) for slot in forward.slots_of_inputs()]
        for lasting in (*self._starts, *forward.held):
            lasting.died = len(self.lifetimes.moments) - 1

    def _returned(self, slot: GradientSlot) -> Allocation:
        """The gradient of what another stage made: as it came together, or a copy where something else holds that.

        Source: ``AccumulateGrad``, of the leaf that a stage's input is.
        """
        now = len(self.lifetimes.moments) - 1
        if slot.gradient is None or (slot.gradient.handles > 1 and not self._inputs_only):
            return self.lifetimes.take(slot.size, now)
        slot.gradient.died = now
        return slot.gradient

    def _of_inputs(self, item: CallRound | LoopEdge | StretchRound | UnitEdge) -> Any:
        """A call as it is where gradients of its weights are not asked for."""
        if not isinstance(item, CallRound):
            return item
        others = [(slot, gradient) for slot, gradient in item.targets if not slot.of_weight]
        call = item._replace(targets=others, saved=[])
        if len(others) < len(item.targets):
            self._undivided[id(call)] = item
        return call

    def _execute(self, order: Order) -> None:
        """Run backward once; a weight gets the sum of its gradients when the last of its uses in this pass is done.

        Source: ``torch/csrc/autograd``: the ``InputBuffer`` of a ``GraphTask``, then ``AccumulateGrad``.
        """
        outer = self._uses
        targets = [call.targets for call in _calls(order)]
        self._uses = Counter([slot for call in targets for slot, _ in call if slot.of_weight])
        waiting = {slot: slot.gradient for slot in self._uses}
        for slot in waiting:
            slot.gradient = None
        self._retrace(order)
        for slot, gradient in waiting.items():
            slot.gradient = gradient
        self._uses = outer

    def _retrace(self, order: Order) -> None:
        starts: list[int] = []
        for item in reversed(order):
            if isinstance(item, CallRound):
                self._call(item)
            elif isinstance(item, StretchRound):
                (self._again if item.block.recomputed == "whole" else self._resume)(item)
            elif isinstance(item, UnitEdge):
                self._unit(item)
            elif item.opens:
                self._loop(starts.pop(), item.more)
            else:
                starts.append(len(self.lifetimes.moments))

    def _unit(self, edge: UnitEdge) -> None:
        sharding = self.forward.sharding
        assert sharding is not None
        if edge.block.parent is None:
            sharding.end_backward() if edge.opens else sharding.start_backward()
        elif edge.opens:
            sharding.leave_backward(edge.block, edge.rounds)
        else:
            sharding.enter_backward(edge.block, edge.rounds)

    def _loop(self, start: int, more: int) -> None:
        """All since the moment `start` happens `more` times beside: slices' gradients made since are of all rounds."""
        self.lifetimes.loop(start, more)
        for whole in self._waiting:
            whole.parts = tuple(
                (part, size, rounds * (1 + more) if part.born >= start else rounds)
                for part, size, rounds in whole.parts
            )

    def _again(self, stretch: StretchRound) -> None:
        """Run a stretch again, then back by itself; until that is done what it reads, its result and the gradient of it
        are held.

        Source: ``torch.utils.checkpoint.CheckpointFunction.backward``, whose names they are.
        """
        for slot in stretch.exits:
            if slot.gradient is None and not slot.parts:
                slot.gradient = self.lifetimes.take(slot.size, len(self.lifetimes.moments))
                slot.gradient.handles = 1
        incoming = [before.slot.gradient for before in _calls(stretch.ran)]
        for held in incoming:
            if held is not None:
                held.handles += 1
        order, results = self.forward.again(stretch)
        for before, call in zip(_calls(stretch.ran), _calls(order), strict=True):
            call.slot.gradient, before.slot.gradient = before.slot.gradient, None
            call.slot.view = before.slot.view
            call.slot.parts, before.slot.parts = before.slot.parts, ()
        outside = {slot: slot.gradient for slot in stretch.slots.values() if slot.gradient and not slot.of_weight}
        for slot in outside:
            slot.gradient = None
        self._execute(order)
        now = len(self.lifetimes.moments) - 1
        for allocation in (*incoming, *results, *self._read(stretch)):
            if allocation is not None:
                allocation.died = max(allocation.died, now)
        for slot, first in outside.items():
            second, slot.gradient = slot.gradient, first
            if second is not None:
                self._sum(slot, first, second, next(item for item in order if isinstance(item, CallRound)))

    def _resume(self, stretch: StretchRound) -> None:
        """Go back over a stretch, and run it again as soon as something is needed that it did not keep.

        What it reads is held until that is done.

        Source: ``torch.utils.checkpoint._checkpoint_hook``, which is that of ``use_reentrant=False``.
        """
        calls: list[CallRound] | None = None
        ran = list(_calls(stretch.ran))
        for number in reversed(range(len(ran))):
            call = ran[number]
            if calls is None and call.memory.saves and (call.slot.gradient or call.slot.parts):
                calls = list(_calls(self.forward.again(stretch)[0]))
            saved = calls[number].saved if calls is not None and number < len(calls) else []
            self._call(call._replace(saved=saved))
        now = len(self.lifetimes.moments) - 1
        for allocation in self._read(stretch):
            allocation.died = max(allocation.died, now)

    @staticmethod
    def _read(stretch: StretchRound) -> list[Allocation]:
        """What a stretch reads from outside, and what it has kept in vain: nothing runs again as far."""
        block = stretch.block
        unread = [storage for call in block.calls() if not call.rerun for storage in call.results]
        kept = (*block.saved, *block.held, *unread)
        return [stretch.places[storage] for storage in kept if storage in stretch.places]

    def _start(self, order: Order) -> list[Allocation]:
        """The gradients that backward starts from: the caller holds them until the end."""
        last = last_of(order)
        if last is None:
            return []
        starts: list[Allocation] = []
        for slot in dict.fromkeys((last.slot, *(slot for slot, _ in self.forward.ends))):
            if not self.forward.ends_here:  # in a buffer for what comes from the stage after
                slot.gradient = Allocation(slot.size, TEMPORARIES, 0)
            slot.gradient = slot.gradient or self.lifetimes.take(slot.size, len(self.lifetimes.moments))
            slot.gradient.handles = 2
            starts.append(slot.gradient)
        return starts

    def _call(self, call: CallRound) -> None:
        slot, memory = call.slot, call.memory
        further: list[Allocation] = []
        if slot.several:
            further, slot.parts = [each for each, *_ in slot.parts], ()
        elif slot.parts:
            self._join(slot, call)
        incoming, slot.gradient = slot.gradient, None
        for allocation in slot.lent:
            allocation.died = len(self.lifetimes.moments)
            allocation.handles -= 1
        if incoming is None and further:
            incoming = further.pop()
        if incoming is None:
            for target, _ in call.targets:
                if target.of_weight:
                    self._settle(target, call)
            return
        if memory.passes:
            self._pass(call, incoming)
            return
        several = slot.several or not (memory.gradient_copy or memory.reshapes)
        smaller = not several and branch_value(incoming.size) < branch_value(slot.size)
        if memory.reshapes and not (slot.ordered or several or smaller):
            incoming = self._reordered(incoming, slot, call)
        if (whole := self._undivided.get(id(call))) is not None:
            self.captured.append((whole, incoming))
            incoming.handles += 1
        now = self._moment(call)
        if memory.returned:
            self.lifetimes.send(memory.returned, now)
        for allocation in (incoming, *further, *call.saved):
            allocation.died = now
        if slot.several:  # results that nothing reads have gradients of zeros
            self.lifetimes.take(memory.results - sum(one.size for one in (incoming, *further)), now)
        take = self.lifetimes.take
        scratch = [take(memory.backward_scratch, now)] if memory.backward_scratch else []
        if memory.gradient_copy and (smaller or not (slot.ordered or slot.several or memory.reshapes is not None)):
            take(memory.gradient_copy, now)
        incoming.handles -= 1
        if memory.collects:
            self._starts.append(incoming)
            incoming.handles += 1
        if memory.lends:
            call.targets[-1][0].lent = [incoming, *scratch]
            incoming.handles += 1
        gradients = [
            (target, incoming if own.shared else take(target.size if own.size is None else own.size, now))
            for target, own in call.targets
        ]
        for _, gradient in gradients:
            gradient.handles += 1
        for (target, gradient), (_, own) in zip(gradients, call.targets, strict=True):
            last_step = memory.last_step if target is gradients[-1][0] else None
            if last_step is not None and last_step.whole:
                self._finish(call, gradient, last_step)
            if target.gradient is None:
                target.gradient, target.view = gradient, own.view or (slot.view if own.shared else None)
                target.ordered = slot.ordered == own.alike if own.follows else own.alike
            else:
                self._add(target, target.gradient, gradient, call, own.view)
                if own.cut:
                    self.lifetimes.take(target.size, len(self.lifetimes.moments) - 1)
            if last_step is not None and not last_step.whole:
                self._finish(call, target.gradient, last_step)
            if target.of_weight:
                self._settle(target, call, gradients)

    def _reordered(self, incoming: Allocation, slot: GradientSlot, call: CallRound) -> Allocation:
        """A copy of a gradient, row by row, in its place."""
        now = self._moment(call)
        incoming.died = now
        incoming.handles -= 1
        slot.ordered = True
        copy = self.lifetimes.take(slot.size, now)
        copy.handles = 1
        return copy

    def _finish(self, call: CallRound, gradient: Allocation | None, last_step: LastStep) -> None:
        """The last moment of a backward of several steps: the input's gradient, or what there is of it, is there."""
        now = self._moment(call)
        if gradient is not None:
            gradient.died = now
        for (storage, _), allocation in zip(call.memory.saved, call.saved, strict=True):
            if storage is last_step.persistent:
                allocation.died = now
        self.lifetimes.take(last_step.size, now)

    def _settle(
        self, target: GradientSlot, call: CallRound, gradients: Sequence[tuple[GradientSlot, Allocation]] = ()
    ) -> None:
        """Once it is of all uses of a weight in this pass, what has come together becomes or joins its gradient.

        It becomes it as it is, unless it is smaller and seen several times, or the caller or another of the operands
        that get `gradients` has the same tensor: then a copy does. A slice of a larger gradient is a tensor of
        its own, which keeps all of that; one that is scattered or in another order does not lie as the weight does, and
        is copied (``AccumulateGrad``).
        """
        self._uses[target] = left = self._uses[target] - 1
        if left:
            return
        if target.parts:
            self._join(target, call)
        gradient, now = target.gradient, len(self.lifetimes.moments) - 1
        if gradient is None:
            return
        target.gradient = None
        if target.weight is not None and not target.settled:
            self.arrivals.append((now, target.weight))
        if self.accumulates or target.settled:
            gradient.died = max(gradient.died, now)
            return
        alike = [other for other, each in gradients if each is gradient]
        same = gradient.size is target.size
        if not same and branch_value(gradient.size) > branch_value(target.size):
            copied = call.memory.scattered and len(alike) > 0
        else:
            smaller = not same and branch_value(gradient.size) != branch_value(target.size)
            copied = smaller or gradient in self._starts or sum([not other.settled for other in alike]) > 1
        if not target.ordered and not copied:  # once the call has let go of what it kept
            now = gradient.died = self._moment(call)
        if copied or not target.ordered:
            gradient = self.lifetimes.take(target.size, now)
        gradient.line, gradient.settled, target.settled = GRADIENTS, now, True
        if self._whole:
            self.gradients.append(gradient)
        elif self.forward.sharding is not None and target.weight is not None:
            self.forward.sharding.settled(gradient, target.weight)

    def _moment(self, call: CallRound) -> int:
        return self.lifetimes.moment("backward", call.name, call.rounds)

    def _add(
        self, target: GradientSlot, first: Allocation, second: Allocation, call: CallRound, view: GradientView = None
    ) -> None:
        """Source: ``can_accumulate_inplace`` of ``torch/csrc/autograd/input_buffer.cpp``."""
        if target.several:
            target.parts = (*target.parts, (second, second.size, 1))
            return
        cut = branch_value(second.size) > branch_value(target.size) and any(own.cut for _, own in call.targets)
        weight = target.weight
        if cut or (weight is not None and weight.graded is not weight.elements):  # of a DTensor, a subclass
            self._sum(target, first, second, call)
            return
        whole = first.size is target.size or branch_value(first.size) == branch_value(target.size)
        owned = target.view is None or (target.view is view and isinstance(view, Tensor))
        if whole and owned and first.handles == 1:  # the second is there while the call's weights are summed before
            second.handles -= 1
            second.died = max(second.died, len(self.lifetimes.moments) - 1)
        else:
            self._sum(target, first, second, call)

    def _sum(self, target: GradientSlot, first: Allocation, second: Allocation, call: CallRound) -> None:
        """The sum is a tensor of its own."""
        now = self._moment(call)
        first.died = second.died = now
        first.handles -= 1
        second.handles -= 1
        target.gradient, target.view = self.lifetimes.take(target.size, now), None
        target.gradient.handles = 1

    def _pass(self, call: CallRound, incoming: Allocation) -> None:
        """A slice's gradient waits for those of the other slices, to be joined with them."""
        whole = call.targets[0][0]
        whole.padded, whole.ordered = call.memory.keeps_axes, call.targets[0][1].alike
        whole.parts = (*whole.parts, (incoming, call.slot.size, 1))
        self._waiting[whole] = None
        if sum(branch_value(size * rounds) for _, size, rounds in whole.parts) >= branch_value(whole.size):
            self._join(whole, call)
        if whole.of_weight:
            self._settle(whole, call)

    def _join(self, whole: GradientSlot, call: CallRound) -> None:
        """Of slices that nothing reads zeros are joined too; ``unbind`` sees a single one several times."""
        now = self._moment(call)
        rest = whole.size - sum(size * rounds for _, size, rounds in whole.parts)
        if whole.padded and branch_value(rest) > 0:
            self.lifetimes.take(rest, now)
        for part, _, rounds in whole.parts:
            part.died, part.rounds = now, rounds
        whole.parts = ()
        self._waiting.pop(whole, None)
        joined = self.lifetimes.take(whole.size, now)
        joined.handles = 1
        if whole.gradient is None:
            whole.gradient, whole.view = joined, None
        else:
            self._add(whole, whole.gradient, joined, call)


def _calls(order: Order) -> Iterator[CallRound]:
    """Those that belong to one run of backward: a stretch that is gone back over by itself has one of its own."""
    for item in order:
        if isinstance(item, CallRound):
            yield item
        elif isinstance(item, StretchRound) and item.block.recomputed == "needed":
            yield from _calls(item.ran)


def update(
    weights: list[tuple[Storage, str] | LoopEdge], tapes: Sequence[Tape], settings: Settings, lifetimes: Lifetimes
) -> None:
    """The optimizer's step. tapes: of all stages that a rank has of the model."""
    if settings.states.flat:
        _update_flat(sum(map(flat_length, tapes)), settings, lifetimes)
    elif settings.update == "loop":
        _update_each(weights, tapes, settings, lifetimes)
    else:
        _update_all(weights, tapes, settings, lifetimes)


def _own_shape(tapes: Sequence[Tape], weight: Storage) -> Shape:
    """What a rank has of a weight of one of its stages."""
    return next(share_of(tape, weight).shape for tape in tapes if weight in tape.weights)


def _in_turn(weights: list[tuple[Storage, str] | LoopEdge], lifetimes: Lifetimes) -> Iterator[tuple[Storage, int]]:
    """One weight after another, each with its moment."""
    starts: list[int] = []
    for weight in weights:
        if not isinstance(weight, LoopEdge):
            storage, rounds = weight
            yield storage, lifetimes.moment("optimizer", storage.name, rounds)
        elif weight.opens:
            starts.append(len(lifetimes.moments))
        else:
            lifetimes.loop(starts.pop(), weight.more)


def _update_each(
    weights: list[tuple[Storage, str] | LoopEdge], tapes: Sequence[Tape], settings: Settings, lifetimes: Lifetimes
) -> None:
    """One weight after another, with the tensors of a weight's size that each update makes.

    AdamW makes two: √v, then √v/√(1 − β₂ᵗ) + ε, which stays until the next weight has its own.
    """
    optimizer, dtype = settings.states, settings.policy.state_dtype
    previous: Allocation | None = None
    for storage, now in _in_turn(weights, lifetimes):
        if previous is not None:
            previous.died = now
        shape = _own_shape(tapes, storage)
        size, makes = size_bytes(product(shape), dtype), optimizer.makes_of(shape)
        reads = optimizer.reads if tapes[0].layout.shards == 1 else None
        most, summed = makes, storage.partial and reads is not None
        if reads is not None and (summed or storage.graded is not storage.elements):
            most = max(makes, min(reads, 2))  # each read makes a rank's own, two in one kernel of Adam
        if reads is not None and summed:
            lifetimes.send([partial_sum(tapes[0], storage)] * reads, now)
        tensors = [lifetimes.take(size, now) for _ in range(most)]
        previous = tensors[-1] if makes and optimizer.lasts else None


def _update_all(
    weights: list[tuple[Storage, str] | LoopEdge], tapes: Sequence[Tape], settings: Settings, lifetimes: Lifetimes
) -> None:
    """All weights at once: a foreach update makes its tensors for all of them, a fused one none.

    What it makes for one weight after another comes and goes while those are there.
    """
    optimizer, dtype = settings.states, settings.policy.state_dtype
    foreach = settings.update == "foreach"
    now = lifetimes.moment("optimizer", "every weight", "")
    times = [1]
    tensors: list[Allocation] = []
    for weight in weights:
        if isinstance(weight, LoopEdge) and weight.opens:
            times.append(times[-1] * (1 + weight.more))
        elif isinstance(weight, LoopEdge):
            times.pop()
        else:
            size = lifetimes.allotted(size_bytes(product(_own_shape(tapes, weight[0])), dtype))
            tensors += [lifetimes.take(size * times[-1], now) for _ in range((optimizer.together or 0) * foreach)]
    if foreach and optimizer.in_turn:
        for storage, later in _in_turn(weights, lifetimes):
            for each in optimizer.in_turn:
                elements = product(_own_shape(tapes, storage))
                lifetimes.take(each.size_bytes((elements,), size_bytes(1, dtype)), later)
        for allocation in tensors:
            allocation.died = len(lifetimes.moments) - 1


def _update_flat(elements: int, settings: Settings, lifetimes: Lifetimes) -> None:
    """All weights as one: each tensor that the update makes is as long as all of them."""
    now = lifetimes.moment("optimizer", "every weight", "")
    size = size_bytes(elements, settings.policy.state_dtype)
    for _ in range(settings.states.makes):
        lifetimes.take(size, now)
