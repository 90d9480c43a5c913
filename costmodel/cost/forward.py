"""How long each tensor of the forward pass stays in memory, as a replay of the tape finds it.

A tensor is free after its last use, unless backward needs it; what a part of the model is handed is in use until that
part is done.

A block that repeats is walked three times at most: its first round, one that stands for all those between, and its
last.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from costmodel.cost.call_memory import CallMemory, GradientView, OperandGradient, kept_order, memory_of
from costmodel.cost.liveness import ACTIVATIONS, CACHE, CASTS, Allocation, Lifetimes, OpenParts
from costmodel.cost.runtimes import autograd_dtype, stood_for
from costmodel.cost.sharding import Gathered, ShardedWeights
from costmodel.errors import SpecError, shown
from costmodel.graph.call import Block, Call
from costmodel.graph.replay import replay
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Storage, Tensor
from costmodel.symbolic.sizes import branch_value, peek
from costmodel.training.dtypes import Dtype, size_bytes

MOST_ROUNDS = 10_000
"""More rounds of calls than these are not looked at, those that are alike being one: a bound on what a walk takes."""


class GradientSlot:
    """Where the gradient of one tensor of `size` bytes comes together.

    parts: gradients of slices of it, each with its own size, as its memory may be that of a larger one, and of how many
    rounds it is. padded: whether slices that nothing reads get gradients of zeros, each of its size.
    lent: what is there until the gradient has been used.
    several: whether the gradients of several results come together, which are not summed.
    settled: whether it is of a weight that has a gradient by now, to which what comes together is then added.
    ordered: whether it lies in memory as the tensor does.
    view: through what the gradient came, if that is a view; only what comes through the same is added to it in place.
    """

    __slots__ = (
        *("gradient", "lent", "of_weight", "ordered", "padded", "parts", "settled", "several", "size", "view"),
        "weight",
    )

    def __init__(self, size: int, weight: Storage | None = None) -> None:
        self.size = size
        self.weight = weight
        self.of_weight = weight is not None
        self.settled = self.several = self.padded = False
        self.ordered = True
        self.gradient: Allocation | None = None
        self.view: GradientView = None
        self.parts: tuple[tuple[Allocation, int, int], ...] = ()
        self.lent: list[Allocation] = []


Order = list["CallRound | LoopEdge | StretchRound | UnitEdge"]
"""What backward retraces, from its end to its start."""


class CallRound(NamedTuple):
    """One round of a call, as backward will need it."""

    name: str
    rounds: str
    memory: CallMemory
    slot: GradientSlot
    targets: list[tuple[GradientSlot, OperandGradient]]
    saved: list[Allocation]


class StretchRound(NamedTuple):
    """One round of a stretch that is recomputed: what running it again needs.

    ran: its calls, which kept nothing. slot: where the gradient of its result comes together. exits: slots of several
    results. places, slots, weights: those of what it reads from outside, as they were in this round.
    """

    block: Block
    rounds: str
    ran: Order
    slot: GradientSlot
    exits: list[GradientSlot]
    places: dict[Storage, Allocation]
    slots: dict[Tensor | Storage, GradientSlot]
    weights: dict[Block, dict[Storage, GradientSlot]]


class LoopEdge(NamedTuple):
    """A side of a stretch of rounds that happens `more` times beside the one walked."""

    opens: bool
    more: int


class UnitEdge(NamedTuple):
    """Where forward enters or leaves a unit of sharded weights, in some rounds."""

    opens: bool
    block: Block
    rounds: str


class BlockRound:
    """One walk through a block, which stands for `alike` of them; until it ends `end` is None."""

    __slots__ = ("alike", "end")

    def __init__(self, alike: int) -> None:
        self.alike = alike
        self.end: int | None = None


class Detached:
    """One round of a call to which no gradient comes back: it and what it kept stay as long as what it led to."""

    __slots__ = ("before", "died", "saved", "within")

    def __init__(self, before: list[Detached], saved: list[Allocation], now: int, within: BlockRound) -> None:
        self.before = before
        self.saved = saved
        self.died = now
        self.within = within


class ForwardLiveness:
    """Replays a tape; `loops` lets one round of a repeated block stand for all between its first and its last.

    gathered: see `ShardedWeights`. memory: of calls that another walk of the tape has met, to which others are added.
    order: what backward retraces. weights: every trained weight, with its rounds, in the order of first use. output:
    the result, which the user holds. persistent: what decoding keeps. held: what stays until backward is done. ends:
    gradients and memory of several results, where no loss joins them. ends_here: whether the model ends on this tape.
    """

    def __init__(
        self,
        tape: Tape,
        lifetimes: Lifetimes,
        *,
        loops: bool,
        gathered: Gathered | None = None,
        memory: dict[Call, CallMemory] | None = None,
    ) -> None:
        self.lifetimes = lifetimes
        self.order: Order = []
        self.weights: list[tuple[Storage, str] | LoopEdge] = []
        self.output = self._elsewhere = Allocation(0, 0, 0)
        self._result: Tensor | None = None
        self.persistent: list[Allocation] = []
        self.held: list[Allocation] = []
        self._gradients: Dtype = autograd_dtype(tape)
        self._stood_for = stood_for(tape)
        self._folds = loops
        self._rounds = ""
        self._pass: Literal["forward", "once", "again"] = "forward"
        self._parts = OpenParts(lifetimes)
        self._places: dict[Storage, Allocation] = {}
        self._slots: dict[Tensor | Storage, GradientSlot] = {}
        self._weights: dict[Block, dict[Storage, GradientSlot]] = {tape.root: {}}
        self._received = [x.storage for x in tape.inputs.values() if x.requires_grad]
        for x in tape.inputs.values():
            if x.requires_grad:
                self._slots[x] = self._slots[x.storage] = GradientSlot(x.storage.bytes)
        self.ends_here = tape.layout.last
        self._memory: dict[Call, CallMemory] = {} if memory is None else memory
        self._cached: list[Allocation] = []
        self._taken: set[Allocation] = set()  # results that were kept, of what is run again: as if made there
        self._alike = 1
        self._round = BlockRound(1)
        self._detached: list[Detached] = []
        self._casts: dict[Storage, Call] = {}
        self._ungraded: dict[Call, Detached] = {}
        self.sharding = None if tape.layout.shards == 1 else ShardedWeights(tape, lifetimes, gathered)
        self._root, self._ended = tape.root, False
        if loops and (calls := _calls(tape.root)) > MOST_ROUNDS:
            raise SpecError(
                f"repeats nest so that {shown(calls)} rounds of layers differ, of which at most {MOST_ROUNDS:,} are "
                "looked at: nest fewer, or write what repeats as one block"
            )
        self._unit(True, tape.root)
        replay(tape.root, self)
        self._end_forward()
        self._let_go()
        self._parts.leave_since(0)
        self._drop_cache()
        ends = (x.storage for x in tape.outputs)
        self.ends = [(self._slots[s], self._places[s]) for s in ends if s in self._slots and s in self._places]
        for y in (self._result, *tape.outputs):
            if y is not None and y in self._slots:
                self._slots[y].ordered = kept_order(y)

    def place_of(self, x: Tensor) -> Allocation | None:
        """The memory of a tensor; None of one that is there throughout."""
        return self._places.get(x.storage)

    def slots_of_inputs(self) -> list[GradientSlot]:
        """Where gradients of what other stages made come together."""
        return [self._slots[storage] for storage in self._received]

    def _unit(self, opens: bool, block: Block) -> None:
        """Forward enters or leaves what may be a unit of sharded weights."""
        if self.sharding is None or block not in self.sharding.units:
            return
        if self._pass == "again":
            if opens:
                self.sharding.enter_again(block, self._rounds)
            else:
                self.sharding.end_forward()
        elif opens:
            self.sharding.enter(block, self._rounds, self._alike)
        elif block is not self._root:
            self.sharding.leave(block)
        self.order.append(UnitEdge(opens, block, self._rounds))

    def _end_forward(self) -> None:
        """The model is done; a loss may follow."""
        if self.sharding is not None and not self._ended:
            self.sharding.end_forward()
            self._unit(False, self._root)
            self._ended = True

    def call(self, call: Call) -> None:
        """One round of a call; a weight that autocast copies once is copied when it is first used."""
        if call.layer.converts and call.y.storage.origin == "cast":
            self._casts[call.y.storage] = call
            return
        if self._casts:
            self._cast(*(x.storage for x in call.operands()))
        if self._pass == "again" and not call.rerun:
            self._stop(call)
        else:
            self._call(call)

    def bind(self, target: Tensor, source: Tensor) -> None:
        """A view has its tensor's gradient; a round is handed on the memory of what it reads, and its gradient."""
        slot = self._slots.get(source)
        if target.storage is not source.storage:
            slot = slot or self._slots.get(source.storage) or GradientSlot(0)
            self._slots[target.storage] = slot
            self._places[target.storage] = self._places.get(source.storage, self._elsewhere)
        if slot is not None:
            self._slots[target] = slot

    def rounds(self, block: Block) -> Iterator[None]:
        """Those that are walked: of many that are alike the first, one for those between, and the last."""
        if block.unit:
            self._unit(True, block)
            yield
            self._unit(False, block)
            return
        if block.recomputed:
            yield from self._once(block)
            return
        self._parts.note(block)
        outer, count = self._rounds, branch_value(block.count)
        walked = (1, *((2,) if count > 2 else ()), *((count,) if count > 1 else ()))
        for number in walked if self._folds else range(1, count + 1):
            several = self._folds and number == 2 and count > 3
            name = f"{number}–{count - 1}" if several else f"{number}" if count > 1 else ""
            self._rounds = f"{outer} {name}".strip()
            yield from self._one(block, block.count - 3 if several else 0)
        self._rounds = outer

    def _cast(self, *weights: Storage) -> None:
        """Autocast's copies of weights are made when they are first used, which for shared ones is in the first round.

        The graph has those before it, since they are of all rounds.
        """
        for weight in weights:
            if weight in self._casts:
                self._call(self._casts.pop(weight))

    def _once(self, block: Block) -> Iterator[None]:
        """Run a stretch without keeping anything but what it reads from outside."""
        self._cast(*self._casts)
        read: dict[Tensor | Storage, None] = {}
        for x in (x for call in block.calls() for x in call.inputs):
            read.update({x: None, x.storage: None})
        for nested in block.blocks():
            if nested.source is not None:
                read.update({nested.source: None, nested.source.storage: None})
        read.update(dict.fromkeys(block.saved))
        places = {key: self._places[key] for key in read if isinstance(key, Storage) and key in self._places}
        slots = {key: self._slots[key] for key in read if key in self._slots}
        for storage in block.saved:
            self._places[storage].line = ACTIVATIONS
        outer, self.order, self._pass = self.order, [], "once"
        yield
        ran, self.order, self._pass = self.order, outer, "forward"
        for storage in (s for call in block.calls() for s in call.results):
            places[storage] = self._places[storage]
            places[storage].line = ACTIVATIONS
        if last := last_of(ran):
            exits = [self._slots[y] for y in block.results if y in self._slots]
            outer.append(StretchRound(block, self._rounds, ran, last.slot, exits, places, slots, dict(self._weights)))

    def again(self, stretch: StretchRound) -> tuple[Order, list[Allocation]]:
        """Run a stretch again, keeping what its backward needs; returns what was run, and its results."""
        outer = self.order, self._rounds, self._pass, self._weights, self.output
        self.order, self._rounds, self._pass, self._weights = [], stretch.rounds, "again", dict(stretch.weights)
        self._places.update(stretch.places)
        self._slots.update(stretch.slots)
        start = len(self.lifetimes.moments)
        alike, self._alike = self._alike, 1
        replay(stretch.block, self)
        self._alike = alike
        self._parts.leave_since(start)
        self._drop_cache()
        order, results = self.order, [self.output]
        results += [self._places[y.storage] for y in stretch.block.results if y.storage in self._places]
        self.order, self._rounds, self._pass, self._weights, self.output = outer
        return order, results

    def _stop(self, call: Call) -> None:
        """Running again has come to a call that it does not run: of the first such one there is what that keeps."""
        places, memory = self._places, self._memory[call]
        if not memory.saves:
            return
        now = len(self.lifetimes.moments) - 1
        saved: list[Allocation] = []
        for storage, line in memory.saved:
            if storage is not call.y.storage and any(storage is copy for copy, _ in memory.makes):
                places[storage] = self.lifetimes.take(storage.bytes, now)
            places[storage].line = line
            saved.append(places[storage])
        self.order.append(CallRound(call.name, self._rounds, memory, GradientSlot(0), [], saved))

    def _drop_cache(self) -> None:
        """Autocast ends: its copies of weights go, but for those that backward needs."""
        now = len(self.lifetimes.moments) - 1
        for allocation in self._cached:
            if allocation.line == CASTS:
                allocation.rounds = 1  # each goes in backward, in its own round
            else:
                allocation.died = now
        self._cached.clear()

    def _one(self, block: Block, more: int) -> Iterator[None]:
        """One round, which stands for `more` that are alike beside itself."""
        self._weights[block] = {}
        start = len(self.lifetimes.moments)
        if more:
            self._edge(LoopEdge(True, more))
        outer, self._alike = self._alike, self._alike * (1 + more)
        around, self._round = self._round, BlockRound(self._alike)
        yield
        self._alike = outer
        self._round.end, self._round = len(self.lifetimes.moments), around
        self._parts.leave_since(start)
        if more:
            self._edge(LoopEdge(False, more))
            self.lifetimes.loop(start, more)

    def _edge(self, edge: LoopEdge) -> None:
        self.order.append(edge)
        if self._pass != "again":
            self.weights.append(edge)

    def _call(self, call: Call) -> None:
        if call.phase == "loss":
            self._end_forward()
        memory = self._memory.get(call)
        if memory is None:
            memory = self._memory[call] = memory_of(call)
        has_results = self._pass == "again" and len(call.results) > 0
        if has_results:
            self._taken.update(self._places[storage] for storage in call.results)
        elif memory.makes or memory.forward_scratch or memory.writes or memory.sent:
            self._make(call, memory)
        y, places = call.y, self._places
        slot = self._slot(call.x) if memory.same else GradientSlot(memory.output)
        slot.several = slot.several or branch_value(memory.results) > 0
        if call.inputs:  # else it is a weight by itself, or numbers without a gradient
            self._slots[y] = slot
        if memory.makes and memory.makes[0][0] is y.storage:
            self._slots[y.storage] = slot
        if call.inputs or memory.makes:  # not a weight that nothing reads, which stands after the result
            self.output, self._result = places.get(y.storage, self._elsewhere), y
        elif y.storage in call.tape.trained:
            self._slot(y)
        if self._detached or call.detached or (y.requires_grad and not call.differentiated):
            self._follow(call)
        if call.differentiated and not memory.same:
            saved: list[Allocation] = []
            for storage, line in memory.saved if self._pass != "once" else ():
                allocation = places[storage.parts[0] if storage.elsewhere and storage.parts else storage]
                saved.append(allocation)
                allocation.line = line
            for storage in memory.held:
                if (allocation := places.get(storage)) is not None:
                    allocation.rounds = self._alike
                    self.held.append(allocation)
            for weight in memory.trained:
                self._slot(weight)
            targets = [(self._slot(gradient.operand), gradient) for gradient in memory.gradients]
            self.order.append(CallRound(call.name, self._rounds, memory, slot, targets, saved))

    def _follow(self, call: Call) -> None:
        """Note what a call does with results to which no gradient comes back, though autograd follows them."""
        now = len(self.lifetimes.moments) - 1
        makers = dict.fromkeys(x.maker for x in call.operands() if x.requires_grad and x.maker is not None)
        before = [self._ungraded[maker] for maker in makers if maker in self._ungraded]
        for earlier in before:
            earlier.died = now
        if call.y.requires_grad and not call.differentiated:
            saved = [self._places[s] for s in call.detached if s in self._places]
            self._ungraded[call] = detached = Detached(before, saved, now, self._round)
            self._detached.append(detached)

    def _let_go(self) -> None:
        """Give back what was held only for gradients that never come."""
        for call in reversed(self._detached):
            for earlier in call.before:
                earlier.died = max(earlier.died, call.died)
            for allocation in call.saved:
                allocation.died = max(allocation.died, call.died)
                if call.within.end is not None and allocation.died >= call.within.end:
                    allocation.rounds = call.within.alike

    def _make(self, call: Call, memory: CallMemory) -> None:
        lifetimes, parts, places = self.lifetimes, self._parts, self._places
        parts.enter(memory.part)
        now = lifetimes.moment("recompute" if self._pass == "again" else memory.phase, call.name, self._rounds)
        if memory.sent:
            lifetimes.send(memory.sent, now)
        for storage in memory.reads:
            if (allocation := places.get(storage)) is not None:  # else it is there from the start
                allocation.died = now
                if allocation.born < parts.start and allocation not in self._taken:
                    parts.hand(allocation)
        for storage, size in memory.makes:
            places[storage] = allocation = lifetimes.take(size, now)
            if storage.origin == "cache":
                allocation.line = CACHE
                allocation.rounds = self._alike  # all stay to the end
                self.persistent.append(allocation)
            if memory.cached:
                allocation.rounds = self._alike
                self._cached.append(allocation)
        if memory.replaces:
            lifetimes.release(memory.replaces, now)
        if memory.forward_scratch:
            lifetimes.take(memory.forward_scratch, now)

    def _slot(self, x: Tensor) -> GradientSlot:
        if (slot := self._slots.get(x)) is not None:
            return slot
        if x.storage.origin == "weight":
            here = self._weights[x.storage.block]
            if (slot := here.get(x.storage)) is None:
                elements = 0 if x.storage in self._stood_for else x.storage.graded
                slot = here[x.storage] = GradientSlot(size_bytes(elements, self._gradients), x.storage)
                if self._pass != "again":
                    self.weights.append((x.storage, self._rounds))
            return slot
        return self._slots.get(x.storage) or GradientSlot(0)


def _calls(block: Block) -> int:
    """Calls that a walk of a block meets where rounds stand for others, those of a recomputed stretch twice."""
    count = 0
    for entry in block.entries:
        if isinstance(entry, Call):
            count += 1
        elif isinstance(entry, Block):
            count += (2 if entry.recomputed else min(peek(entry.count), 3)) * _calls(entry)
    return count


def last_of(order: Order) -> CallRound | StretchRound | None:
    """The last call or stretch."""
    return next((item for item in reversed(order) if not isinstance(item, LoopEdge | UnitEdge)), None)
