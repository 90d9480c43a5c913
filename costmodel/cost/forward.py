"""The walk over a graph that finds how long each tensor of the forward pass stays in memory.

A tensor is free after its last use, unless backward needs it; what a part of the model is handed is in use until that
part is done.

A block that repeats is walked three times at most: its first round, one that stands for all those between, and its
last.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from costmodel.cost.liveness import ACTIVATIONS, CACHE, CASTS, Allocation, Lifetimes, Parts, Phase
from costmodel.errors import SpecError, shown
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Alias, Block, Call, Origin, Storage, Tensor
from costmodel.layers.arithmetic import Cast
from costmodel.layers.attention import Append, Insert
from costmodel.layers.shape import Joined
from costmodel.symbolic.sizes import branch_value, peek, product
from costmodel.training.dtypes import Dtype, size_bytes

MOST_VISITS = 10_000
"""More rounds of calls than these are not looked at, those that are alike being one: a bound on what a walk takes."""
_KEPT: dict[Origin, int] = {"computed": ACTIVATIONS, "cast": CASTS, "cache": CACHE}
"""Origins of memory that comes and goes, and its line where it is kept; all other is there throughout."""


class Slot:
    """Where the gradient of one tensor of `size` bytes comes together.

    parts: gradients of slices of it, each with its own size, as its memory may be that of a larger one, and of how many
    rounds it is.
    settled: whether it is of a weight that has a gradient by now, to which what comes together is then added.
    """

    __slots__ = ("gradient", "of_weight", "parts", "settled", "size")

    def __init__(self, size: int, *, of_weight: bool = False) -> None:
        self.size = size
        self.of_weight = of_weight
        self.settled = False
        self.gradient: Allocation | None = None
        self.parts: tuple[tuple[Allocation, int, int], ...] = ()


class Plan(NamedTuple):
    """What all rounds of a call have in common; sizes in bytes.

    part: the part of the model that the call is in. reads: the memory of its inputs. makes: the memory it takes for
    itself, its output first if that is new. saved: what it keeps, and on which line. trained: if several weights get a
    gradient, these, those that it is given before its own. gradients: the operands to give one to, in the order in
    which they come, and whether it is the incoming one. output: size. later: of a backward of several steps what it
    makes once all is let go of that came in or was kept, but for the input, and the input. passes: whether the gradient
    only passes through, to an input that is as large (same) or larger (a slice). cached: whether autocast holds what it
    makes until forward and loss are done: copies of weights that ask for gradients (torch.autocast's
    ``cache_enabled``). replaces: bytes kept of earlier tokens that this takes the place of. writes: whether it writes
    into a cache that is there. scattered: whether gradients are slices of the incoming one none of which lies in one
    piece.
    """

    part: str
    phase: Phase
    reads: list[Storage]
    makes: list[tuple[Storage, int]]
    saved: list[tuple[Storage, int]]
    trained: list[Tensor]
    gradients: list[tuple[Tensor, bool]]
    output: int
    forward_scratch: int
    backward_scratch: int
    later: tuple[int, Storage] | None
    passes: bool
    same: bool
    cached: bool
    replaces: int
    writes: bool
    scattered: bool


class Visit(NamedTuple):
    """One round of a call, as backward will need it."""

    name: str
    rounds: str
    plan: Plan
    slot: Slot
    targets: list[tuple[Slot, bool]]
    saved: list[Allocation]


class Again(NamedTuple):
    """One round of a stretch that is recomputed: what running it again needs.

    slot: where the gradient of its result comes together. places, slots, weights: those of what it reads from outside,
    as they were in this round.
    """

    block: Block
    rounds: str
    slot: Slot
    places: dict[Storage, Allocation]
    slots: dict[Tensor | Storage, Slot]
    weights: dict[Block, dict[Storage, Slot]]


class Round:
    """One walk through a block, which stands for `alike` of them; until it ends `end` is None."""

    __slots__ = ("alike", "end")

    def __init__(self, alike: int) -> None:
        self.alike = alike
        self.end: int | None = None


class Detached:
    """One visit of a call to which no gradient comes back: it and what it kept stay as long as what it led to."""

    __slots__ = ("before", "died", "held", "round")

    def __init__(self, before: list[Detached], held: list[Allocation], now: int, within: Round) -> None:
        self.before = before
        self.held = held
        self.died = now
        self.round = within


class Edge(NamedTuple):
    """A side of a stretch of visits that happens `more` times beside the one walked."""

    opens: bool
    more: int


class Forward:
    """Walks a tape; `loops` lets one round of a repeated block stand for all between its first and its last.

    visits: what backward retraces. weights: every trained weight, with its rounds, in the order of first use.
    output: the result, which the user holds. lasting: what decoding keeps. ends: gradients and memory of several
    results, where no loss joins them.
    """

    def __init__(self, tape: Tape, lifetimes: Lifetimes, *, loops: bool) -> None:
        self.lifetimes = lifetimes
        self.visits: list[Visit | Edge | Again] = []
        self.weights: list[tuple[Storage, str] | Edge] = []
        self.output = self._given = Allocation(0, 0, 0)
        self._gradients: Dtype = tape.precision.gradient_dtype
        self._folds = loops
        self._rounds = ""
        self._pass: Literal["forward", "once", "again"] = "forward"
        self._parts = Parts(lifetimes)
        self._places: dict[Storage, Allocation] = {}
        self._slots: dict[Tensor | Storage, Slot] = {}
        self._weights: dict[Block, dict[Storage, Slot]] = {tape.root: {}}
        self._plans: dict[Call, Plan] = {}
        self._cached: list[Allocation] = []
        self.lasting: list[Allocation] = []
        self._alike = 1
        self._round_here = Round(1)
        self._detached: list[Detached] = []
        self._casts: dict[Storage, Call] = {}
        self._ungraded: dict[Call, Detached] = {}
        if loops and (visits := _visits(tape.root)) > MOST_VISITS:
            raise SpecError(
                f"repeats nest so that {shown(visits)} rounds of layers differ, of which at most {MOST_VISITS:,} are "
                "looked at: nest fewer, or write what repeats as one block"
            )
        self._walk(tape.root)
        self._let_go()
        self._parts.leave_since(0)
        self._drop_cache()
        ends = (x.storage for x in tape.outputs)
        self.ends = [(self._slots[s], self._places[s]) for s in ends if s in self._slots and s in self._places]

    def _walk(self, block: Block) -> None:
        for entry in block.entries:
            if isinstance(entry, Call):
                if type(entry.layer) is Cast and entry.x.storage.origin == "weight":
                    self._casts[entry.y.storage] = entry
                    continue
                if self._casts:
                    self._cast(*(x.storage for x in entry.operands()))
                self._call(entry)
            elif isinstance(entry, Alias):
                self._slots[entry.y] = self._slot(entry.x)
            elif entry.recomputed:
                self._once(entry)
            else:
                self._repeat(entry)

    def _cast(self, *weights: Storage) -> None:
        """Autocast's copies of weights are made when they are first used, which for shared ones is in the first round.

        The graph has those before it, since they are of all rounds.
        """
        for weight in weights:
            if weight in self._casts:
                self._call(self._casts.pop(weight))

    def _once(self, block: Block) -> None:
        """Run a stretch without keeping anything but what it reads from outside."""
        self._cast(*self._casts)
        read: dict[Tensor | Storage, None] = {}
        for x in (x for call in block.calls() for x in call.inputs):
            read.update({x: None, x.storage: None, **({} if x.maker is None else {x.maker.y: None})})
        for nested in block.blocks():
            if nested.entry is not None and nested.entry.storage.parts is not None:
                read[nested.entry.storage.parts[0]] = None
        places = {key: self._places[key] for key in read if isinstance(key, Storage) and key in self._places}
        slots = {key: self._slots[key] for key in read if key in self._slots}
        for storage in block.saved:
            self._places[storage].line = ACTIVATIONS
        outer, self.visits, self._pass = self.visits, [], "once"
        self._walk(block)
        ran, self.visits, self._pass = self.visits, outer, "forward"
        if last := last_of(ran):
            outer.append(Again(block, self._rounds, last.slot, places, slots, dict(self._weights)))

    def again(self, allocation: Again) -> tuple[list[Visit | Edge | Again], Allocation]:
        """Run a stretch again, keeping what its backward needs; returns its visits and its result."""
        outer = self.visits, self._rounds, self._pass, self._weights, self.output
        self.visits, self._rounds, self._pass, self._weights = [], allocation.rounds, "again", dict(allocation.weights)
        self._places.update(allocation.places)
        self._slots.update(allocation.slots)
        start = len(self.lifetimes.moments)
        alike, self._alike = self._alike, 1
        self._walk(allocation.block)
        self._alike = alike
        self._parts.leave_since(start)
        self._drop_cache()
        visits, result = self.visits, self.output
        self.visits, self._rounds, self._pass, self._weights, self.output = outer
        if last := last_of(visits):
            last.slot.gradient, allocation.slot.gradient = allocation.slot.gradient, None
            last.slot.parts, allocation.slot.parts = allocation.slot.parts, ()
        return visits, result

    def _drop_cache(self) -> None:
        """Autocast ends: its copies of weights go, but for those that backward needs."""
        now = len(self.lifetimes.moments) - 1
        for allocation in self._cached:
            if allocation.line == CASTS:
                allocation.rounds = 1  # each goes in backward, in its own round
            else:
                allocation.died = now
        self._cached.clear()

    def _repeat(self, block: Block) -> None:
        entry, made = block.entry, block.exit
        if entry is None or made is None or entry.storage.parts is None:
            raise AssertionError(f"block {block.name} was never closed")
        self._parts.note(block)
        outer, count, before = self._rounds, branch_value(block.count), entry.storage.parts[0]
        walked = (1, *((2,) if count > 2 else ()), *((count,) if count > 1 else ()))
        for number in walked if self._folds else range(1, count + 1):
            self._hand_on(before, entry.storage)
            self._slots[entry] = self._slots[entry.storage]
            several = self._folds and number == 2 and count > 3
            shown = f"{number}–{count - 1}" if several else f"{number}" if count > 1 else ""
            self._rounds = f"{outer} {shown}".strip()
            self._round(block, block.count - 3 if several else 0)
            before = made.storage
        self._rounds = outer
        if made.storage is not entry.storage and made.storage.parts is not None:
            self._hand_on(made.storage, made.storage.parts[1])

    def _round(self, block: Block, more: int) -> None:
        self._weights[block] = {}
        start = len(self.lifetimes.moments)
        if more:
            self._edge(Edge(True, more))
        outer, self._alike = self._alike, self._alike * (1 + more)
        around, self._round_here = self._round_here, Round(self._alike)
        self._walk(block)
        self._alike = outer
        self._round_here.end, self._round_here = len(self.lifetimes.moments), around
        self._parts.leave_since(start)
        if more:
            self._edge(Edge(False, more))
            self.lifetimes.loop(start, more)

    def _edge(self, edge: Edge) -> None:
        self.visits.append(edge)
        if self._pass != "again":
            self.weights.append(edge)

    def _hand_on(self, old: Storage, new: Storage) -> None:
        self._places[new] = self._places.get(old, self._given)
        self._slots[new] = self._slots.get(old) or Slot(0)

    def _call(self, call: Call) -> None:
        plan = self._plans.get(call)
        if plan is None:
            plan = self._plans[call] = plan_of(call)
        if plan.makes or plan.forward_scratch or plan.writes:
            self._make(call, plan)
        y, places = call.y, self._places
        slot = self._slot(call.x) if plan.same else Slot(plan.output)
        if call.inputs:  # else it is a weight by itself, or numbers without a gradient
            self._slots[y] = slot
        if plan.makes and plan.makes[0][0] is y.storage:
            self._slots[y.storage] = slot
        if call.inputs or plan.makes:  # not a weight that nothing reads, which stands after the result
            self.output = places.get(y.storage, self._given)
        elif y.storage in call.tape.trained:
            self._slot(y)
        if self._detached or call.held or (y.requires_grad and not call.differentiated):
            self._follow(call)
        if call.differentiated and not plan.same:
            saved: list[Allocation] = []
            for storage, line in plan.saved if self._pass != "once" else ():
                allocation = places[storage]
                saved.append(allocation)
                allocation.line = line
            for weight in plan.trained:
                self._slot(weight)
            targets = [(self._slot(x), shared) for x, shared in plan.gradients]
            self.visits.append(Visit(call.name, self._rounds, plan, slot, targets, saved))

    def _follow(self, call: Call) -> None:
        """Note what a call does with results to which no gradient comes back, though autograd follows them."""
        now = len(self.lifetimes.moments) - 1
        makers = dict.fromkeys(x.maker for x in call.operands() if x.requires_grad and x.maker is not None)
        before = [self._ungraded[maker] for maker in makers if maker in self._ungraded]
        for one in before:
            one.died = now
        if call.y.requires_grad and not call.differentiated:
            held = [self._places[s] for s in call.held if s in self._places]
            self._ungraded[call] = made = Detached(before, held, now, self._round_here)
            self._detached.append(made)

    def _let_go(self) -> None:
        """Give back what was held only for gradients that never come."""
        for one in reversed(self._detached):
            for earlier in one.before:
                earlier.died = max(earlier.died, one.died)
            for allocation in one.held:
                allocation.died = max(allocation.died, one.died)
                if one.round.end is not None and allocation.died >= one.round.end:
                    allocation.rounds = one.round.alike

    def _make(self, call: Call, plan: Plan) -> None:
        lifetimes, parts, places = self.lifetimes, self._parts, self._places
        parts.enter(plan.part)
        now = lifetimes.moment("recompute" if self._pass == "again" else plan.phase, call.name, self._rounds)
        for storage in plan.reads:
            if (allocation := places.get(storage)) is not None:  # else it is there from the start
                allocation.died = now
                if allocation.born < parts.start:
                    parts.hand(allocation)
        for storage, size in plan.makes:
            places[storage] = made = lifetimes.take(size, now)
            if storage.origin == "cache":
                made.line = CACHE
                made.rounds = self._alike  # all stay to the end
                self.lasting.append(made)
            if plan.cached:
                made.rounds = self._alike
                self._cached.append(made)
        if plan.replaces:
            lifetimes.release(plan.replaces, now)
        if plan.forward_scratch:
            lifetimes.take(plan.forward_scratch, now)

    def _slot(self, x: Tensor) -> Slot:
        if (slot := self._slots.get(x)) is not None:
            return slot
        maker = x.maker
        made = None if maker is None or not maker.inputs else self._slots.get(maker.y)  # it may be a view of a slice
        if x.storage.origin == "weight" and made is None:
            here = self._weights[x.storage.block]
            if (slot := here.get(x.storage)) is None:
                slot = here[x.storage] = Slot(size_bytes(x.storage.elements, self._gradients), of_weight=True)
                if self._pass != "again":
                    self.weights.append((x.storage, self._rounds))
            return slot
        return made or self._slots.get(x.storage) or Slot(0)


def _visits(block: Block) -> int:
    """Calls that a walk of a block visits where rounds stand for others, those of a recomputed stretch twice."""
    count = 0
    for entry in block.entries:
        if isinstance(entry, Call):
            count += 1
        elif isinstance(entry, Alias):
            continue
        elif entry.recomputed:
            count += 2 * _visits(entry)
        else:
            count += min(peek(entry.count), 3) * _visits(entry)
    return count


def last_of(visits: list[Visit | Edge | Again]) -> Visit | Again | None:
    """The last call or stretch among visits."""
    return next((visit for visit in reversed(visits) if not isinstance(visit, Edge)), None)


def plan_of(call: Call) -> Plan:
    """What all rounds of `call` have in common."""
    y, layer, tape = call.y, call.layer, call.tape
    operands = call.operands()
    given = call.inputs if call.given is call.inputs else (*call.given, *call.inputs)
    known = [x.storage for x in (*operands, *call.buffers.values())]
    gradients = [(x, shared and x.dtype == y.dtype) for x, _, shared in call.gradients()]
    trained = [x for x, _ in gradients if x.storage.origin == "weight"]
    makes = [(s, s.bytes) for s in dict.fromkeys((y.storage, *call.saved, *call.held)) if s not in known]
    workspace = layer.workspace(call)
    passes = len(operands) == 1 == len(call.inputs) and [shared for _, shared in gradients] == [True]
    same = passes and branch_value(y.size) == branch_value(call.x.size)
    return Plan(
        call.part,
        call.phase,
        list(dict.fromkeys([x.storage for x in given if x.storage.origin in _KEPT])),
        makes,
        [(s, _KEPT[s.origin]) for s in call.saved if s.origin in _KEPT],
        [x for x in operands if x in trained] if len(trained) > 1 else [],
        gradients,
        y.bytes,
        size_bytes(workspace.forward, y.dtype) if workspace.forward else 0,
        (size_bytes(workspace.backward, y.dtype) if workspace.backward else 0) + workspace.backward_bytes,
        None if workspace.later is None else (size_bytes(workspace.later, y.dtype), call.x.storage),
        passes and (same or y.storage is call.x.storage),
        same,
        y.storage.origin == "cast" and (y.requires_grad or not tape.training),
        # Kinds are final: asking an abstract class about an instance takes ten times as long.
        sum(x.storage.bytes for x in call.inputs[:-1]) if type(layer) is Append and layer.lasting else 0,
        type(layer) is Insert,
        type(layer) is Joined and branch_value(product(layer.shape[: layer.axis])) > 1,
    )
