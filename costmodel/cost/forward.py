"""How long each tensor of the forward pass stays in memory, as a replay of the tape finds it.

A tensor is free after its last use, unless backward needs it; what a part of the model is handed is in use until that
part is done.

A block that repeats is walked three times at most: its first round, one that stands for all those between, and its
last.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from costmodel.cost.liveness import ACTIVATIONS, CACHE, CASTS, Allocation, Lifetimes, MomentPhase, OpenParts
from costmodel.cost.runtimes import autograd_dtype, stood_for
from costmodel.cost.sharding import Gathered, ShardedWeights
from costmodel.errors import SpecError, shown
from costmodel.graph.call import Block, Call, Gradient
from costmodel.graph.kernel import Message
from costmodel.graph.replay import replay
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Origin, Shape, Storage, Tensor, dense_strides, is_contiguous
from costmodel.symbolic.sizes import branch_value, peek
from costmodel.training.dtypes import Dtype, size_bytes

MOST_ROUNDS = 10_000
"""More rounds of calls than these are not looked at, those that are alike being one: a bound on what a walk takes."""
_KEPT: dict[Origin, int] = {"computed": ACTIVATIONS, "cast": CASTS, "cache": CACHE}
"""Origins of memory that comes and goes, and its line where it is kept; all other is there throughout."""


GradientView = Tensor | Call | None
"""A tensor that is another one seen otherwise, a call that sees an operand otherwise, or neither."""


class OperandGradient(NamedTuple):
    """The gradient that a call gives an operand: whether it is the incoming one, through what view it comes, and how
    large its memory is [bytes], unless it is of the operand's size. cut: whether of all ranks' gradient this rank's
    share is copied, and added to another use's.

    follows: whether it lies in memory as the incoming one does. alike: whether it lies as what made the operand left
    that; if it follows, where the incoming one does.
    """

    operand: Tensor
    shared: bool
    view: GradientView
    size: int | None
    cut: bool
    follows: bool
    alike: bool


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


class LastStep(NamedTuple):
    """Of a backward of several steps, when all has been let go of that came in or was kept, but for the `persistent`.

    size: of what is there beside gradients [bytes]. persistent: the input's memory. whole: whether all of the input's
    gradient is made only then.
    """

    size: int
    persistent: Storage
    whole: bool


class CallMemory(NamedTuple):
    """What all rounds of a call have in common; sizes in bytes.

    part: the part of the model that the call is in. reads: the memory of its inputs. makes: the memory it takes for
    itself, its output first if that is new. saved: what it keeps, and on which line. held: see `AbstractLayer.held`.
    trained: if several weights get a gradient, these, those that it is given before its own. gradients: in the
    order in which they come. output: size. reshapes: whether products see the incoming gradient with fewer axes; None:
    kernels take it as it is. results: see `AbstractLayer.results_bytes`. saves: whether it keeps anything, be it
    weights. last_step: of a backward of several. passes: whether the gradient only passes through, to an input that is
    as large (same) or larger (a slice). keeps_axes: whether that slice has as many axes as its input. cached: whether
    autocast holds what it makes until forward and loss are done: copies of weights that ask for gradients
    (torch.autocast's ``cache_enabled``). replaces: bytes kept
    of earlier tokens that its output, kept too, takes the place of. writes: whether it writes into memory that is
    there. lends, collects, gradient_copy: see `AbstractLayer`. scattered: whether gradients are slices of the incoming
    one none of which lies in one piece.
    """

    part: str
    phase: MomentPhase
    reads: list[Storage]
    makes: list[tuple[Storage, int]]
    saved: list[tuple[Storage, int]]
    held: list[Storage]
    trained: list[Tensor]
    gradients: list[OperandGradient]
    output: int
    reshapes: bool | None
    results: int
    saves: bool
    forward_scratch: int
    backward_scratch: int
    last_step: LastStep | None
    passes: bool
    same: bool
    keeps_axes: bool
    cached: bool
    replaces: int
    writes: bool
    lends: bool
    collects: bool
    scattered: bool
    gradient_copy: int
    sent: tuple[Message, ...]
    returned: tuple[Message, ...]


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

    gathered: see `ShardedWeights`.
    order: what backward retraces. weights: every trained weight, with its rounds, in the order of first use. output:
    the result, which the user holds. persistent: what decoding keeps. held: what stays until backward is done. ends:
    gradients and memory of several results, where no loss joins them. ends_here: whether the model ends on this tape.
    """

    def __init__(self, tape: Tape, lifetimes: Lifetimes, *, loops: bool, gathered: Gathered | None = None) -> None:
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
        self._memory: dict[Call, CallMemory] = {}
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
                self._slots[y].ordered = _kept_order(y)

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


def _is_view(x: Tensor) -> bool:
    """Whether a tensor is another one seen otherwise, so that its gradient comes to that as a view."""
    if x.maker is None:
        return False
    y = x.maker.y
    passes = any(gradient.shared and gradient.operand.storage is y.storage for gradient in x.maker.gradients())
    return not x.has(y.shape) or x.strides != y.strides or passes


def _operand_gradient(call: Call, gradient: Gradient) -> OperandGradient:
    x, y = gradient.operand, call.y
    view = call if call.layer.views_gradient(call, x) else x if _is_view(x) else None
    elements = call.layer.gradient_elements(call, x)
    size = None if elements is x.size else size_bytes(elements, x.dtype)
    cut = call.layer.whole_gradients and size is not None and x.storage.graded is x.storage.elements
    shared = gradient.shared and x.dtype == y.dtype
    return OperandGradient(x, shared, view, size, cut, *_gradient_order(call, gradient))


def _gradient_order(call: Call, gradient: Gradient) -> tuple[bool, bool]:
    """`follows` and `alike` of an `OperandGradient`."""
    x, y, order = gradient.operand, call.y, call.layer.gradient_order(call, gradient.operand)
    if order == "operand":
        return False, _kept_order(x)
    if order == "incoming" and x.has(y.shape):
        return True, _axes_in_memory(x) == _axes_in_memory(y) and _kept_order(x)
    return gradient.shared, _axes_in_memory(x) is None and _kept_order(x)


def _axes_in_memory(x: Tensor) -> Shape | None:
    """The order of a tensor's axes in memory, by the strides that it would have without gaps; None: row by row.

    The stride of an axis of size 1 does not matter (``obeys_layout_contract``).
    """
    if is_contiguous(x.shape, x.strides) or (strides := dense_strides(x.shape, x.strides)) is None:
        return None
    return tuple(0 if size == 1 else stride for size, stride in zip(x.shape, strides, strict=True))


def _kept_order(x: Tensor) -> bool:
    """Whether a gradient that lies as `x` does lies as what the gradient comes to: copies in another order hand it on
    as it is.
    """
    while (maker := x.maker) is not None and len(maker.inputs) == 1:
        if maker.y.storage is not maker.x.storage:
            other = _axes_in_memory(maker.x) is not None and _axes_in_memory(maker.y) != _axes_in_memory(maker.x)
            return not (other and memory_of(maker).same)
        x = maker.x
    return True


def memory_of(call: Call) -> CallMemory:
    """What all rounds of `call` have in common."""
    y, layer, tape = call.y, call.layer, call.tape
    operands = call.operands()
    inputs = call.inputs if call.raw_inputs is call.inputs else (*call.raw_inputs, *call.inputs)
    known = [x.storage for x in (*operands, *call.buffers.values())]
    gradients = [_operand_gradient(call, gradient) for gradient in call.gradients()]
    trained = [gradient.operand for gradient in gradients if gradient.operand.storage.origin == "weight"]
    new = [s for s in dict.fromkeys((y.storage, *call.saved, *call.detached)) if s not in known]
    makes = [(s, s.bytes) for s in new if not s.elsewhere]
    workspace = layer.workspace(call)
    passes = len(operands) == 1 == len(call.inputs) and [gradient.shared for gradient in gradients] == [True]
    same = passes and branch_value(y.size) == branch_value(call.x.size)
    kept = y.storage.origin == "cache" and y.storage not in known
    return CallMemory(
        part=call.part,
        phase=call.phase,
        reads=list(dict.fromkeys([x.storage for x in inputs if x.storage.origin in _KEPT])),
        makes=makes,
        saved=[(s, _KEPT[s.origin]) for s in call.saved if s.origin in _KEPT],
        held=[x.storage for x in layer.held(call)],
        trained=[x for x in operands if x in trained] if len(trained) > 1 else [],
        gradients=gradients,
        output=y.bytes,
        reshapes=None if (axes := layer.gradient_axes(call)) is None else len(y.shape) > axes,
        results=layer.results_bytes(call),
        saves=len(call.saved) > 0,
        forward_scratch=size_bytes(workspace.forward, y.dtype) if workspace.forward else 0,
        backward_scratch=(size_bytes(workspace.backward, y.dtype) if workspace.backward else 0)
        + workspace.backward_bytes,
        last_step=None
        if workspace.later is None
        else LastStep(size_bytes(workspace.later, y.dtype), call.x.storage, workspace.whole),
        passes=passes and (same or y.storage is call.x.storage),
        same=same,
        keeps_axes=passes and len(y.shape) == len(call.x.shape),
        cached=y.storage.origin == "cast" and (y.requires_grad or not tape.training),
        replaces=sum([x.storage.bytes for x in call.inputs if x.storage.origin == "cache"]) if kept else 0,
        writes=layer.overwrites,
        collects=layer.collects,
        lends=layer.lends and _lends(gradients, call.inputs[-1]),
        scattered=layer.scattered(call),
        gradient_copy=size_bytes(layer.gradient_copy(call), y.dtype),
        sent=layer.sent(call),
        returned=layer.returned(call),
    )


def _lends(gradients: list[OperandGradient], last: Tensor) -> bool:
    """Whether what made the last input has a backward of its own, so that there is something to lend to."""
    maker = last.maker
    return len(gradients) > 0 and gradients[-1].operand is last and maker is not None and not memory_of(maker).same
