"""The walk over a graph that finds how long each tensor of the forward pass stays in memory.

A tensor is free after its last use, unless backward needs it; what a part of the model is handed is in use until that
part is done.

A block that repeats is walked three times at most: its first round, one that stands for all those between, and its
last.
"""

from __future__ import annotations

from typing import NamedTuple

from costmodel.dtypes import size_bytes
from costmodel.graph import Block, Call, Run
from costmodel.layers.loss import Loss
from costmodel.lifetimes import ACTIVATIONS, Fold, Lifetimes, Stretch
from costmodel.parts import Parts
from costmodel.tensor import Storage, Tensor


class Slot:
    """Where the gradient of one tensor of `size` bytes comes together; `parts` are gradients of slices of it."""

    __slots__ = ("gradient", "of_weight", "parts", "size")

    def __init__(self, size: int, *, of_weight: bool = False) -> None:
        self.size = size
        self.of_weight = of_weight
        self.gradient: Stretch | None = None
        self.parts: list[Stretch] = []


class Plan(NamedTuple):
    """What all rounds of a call have in common; sizes in bytes.

    makes: the memory it takes for itself. gradients: the operands to give one to, and whether it is the incoming one.
    passes: whether the gradient only passes through, to an input that is as large (same) or larger (a slice).
    """

    makes: tuple[tuple[Storage, int], ...]
    gradients: tuple[tuple[Tensor, bool], ...]
    output: int
    forward_scratch: int
    backward_scratch: int
    passes: bool
    same: bool


class Visit(NamedTuple):
    """One round of a call, as backward will need it."""

    name: str
    rounds: str
    plan: Plan
    slot: Slot
    targets: list[tuple[Slot, bool]]
    kept: list[Stretch]


class Edge(NamedTuple):
    """A side of a stretch of visits that happens `more` times beside the one walked."""

    opens: bool
    more: int


class Forward:
    """Walks a run.

    visits: what backward retraces. weights: every trained weight, with its rounds, in the order of first use.
    output: the result, which the user holds.
    """

    def __init__(self, run: Run, lifetimes: Lifetimes) -> None:
        self.lifetimes = lifetimes
        self.visits: list[Visit | Edge] = []
        self.weights: list[tuple[Storage, str] | Edge] = []
        self.output = self._given = Stretch(0, 0, 0)
        self._rounds = ""
        self._parts = Parts(lifetimes)
        self._places: dict[Storage, Stretch] = {}
        self._slots: dict[Tensor | Storage, Slot] = {}
        self._weights: dict[Block, dict[Storage, Slot]] = {run.root: {}}
        self._plans: dict[Call, Plan] = {}
        self._walk(run.root)

    def _walk(self, block: Block) -> None:
        for entry in block.entries:
            if isinstance(entry, Block):
                self._repeat(entry)
            else:
                self._call(entry)

    def _repeat(self, block: Block) -> None:
        entry, made = block.entry, block.exit
        if entry is None or made is None or entry.storage.parts is None:
            raise AssertionError(f"block {block.name} was never closed")
        self._parts.note(block)
        outer, count, before = self._rounds, int(block.count), entry.storage.parts[0]
        for number in sorted({1, min(2, count), count}):
            self._hand_on(before, entry.storage)
            self._slots[entry] = self._slots[entry.storage]
            several = number == 2 and count > 3
            shown = f"{number}–{count - 1}" if several else f"{number}"
            self._rounds = f"{outer} {shown}" if outer else shown
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
        self._walk(block)
        self._parts.leave_round(start)
        if more:
            self._edge(Edge(False, more))
            self.lifetimes.folds.append(Fold(start, len(self.lifetimes.moments), more))

    def _edge(self, edge: Edge) -> None:
        self.visits.append(edge)
        self.weights.append(edge)

    def _hand_on(self, old: Storage, new: Storage) -> None:
        self._places[new] = self._places.get(old, self._given)
        self._slots[new] = self._slots.get(old) or Slot(0)

    def _call(self, call: Call) -> None:
        plan = self._plans.get(call)
        if plan is None:
            plan = self._plans[call] = plan_of(call)
        places = self._places
        if plan.makes or plan.forward_scratch:
            self._make(call, plan)
        y = call.y
        slot = self._slot(call.x) if plan.same else Slot(plan.output)
        self._slots[y] = slot
        self.output = places.get(y.storage, self._given)
        if plan.makes and y.storage is plan.makes[0][0]:
            self._slots[y.storage] = slot
        if y.requires_grad and not plan.same:
            kept = [(k, places[k]) for k in call.kept if k in places]
            for storage, stretch in kept:
                if storage.origin == "computed":
                    stretch.line = ACTIVATIONS
            targets = [(self._slot(x), shared) for x, shared in plan.gradients]
            self.visits.append(Visit(call.name, self._rounds, plan, slot, targets, [stretch for _, stretch in kept]))

    def _make(self, call: Call, plan: Plan) -> None:
        self._parts.enter(call.name.rpartition(".")[0])
        lifetimes = self.lifetimes
        now = lifetimes.moment("loss" if isinstance(call.kind, Loss) else "forward", call.name, self._rounds)
        for x in call.inputs:
            stretch = self._places.get(x.storage)
            if stretch is not None:
                stretch.died = now
                self._parts.hand(stretch)
        for storage, size in plan.makes:
            self._places[storage] = lifetimes.take(size, now)
        if plan.forward_scratch:
            lifetimes.take(plan.forward_scratch, now)

    def _slot(self, x: Tensor) -> Slot:
        if x.storage.origin == "weight":
            here = self._weights[x.storage.block]
            if x.storage not in here:
                here[x.storage] = Slot(x.bytes, of_weight=True)
                self.weights.append((x.storage, self._rounds))
            return here[x.storage]
        return self._slots.get(x) or self._slots.get(x.storage) or Slot(0)


def plan_of(call: Call) -> Plan:
    """What all rounds of `call` have in common."""
    known = {x.storage for x in call.operands()} | {x.storage for x in call.buffers.values()}
    gradients = tuple((g.operand, g.shared) for g in call.kind.backward(call) if g.operand.requires_grad)
    made = [s for s in dict.fromkeys((call.y.storage, *call.kept)) if s not in known]
    scratch = call.kind.scratch(call)
    passes = len(call.inputs) == 1 and not call.weights and all(shared for _, shared in gradients)
    return Plan(
        makes=tuple((storage, storage.bytes) for storage in made),
        gradients=gradients,
        output=call.y.bytes,
        forward_scratch=size_bytes(scratch.forward, call.y.dtype),
        backward_scratch=size_bytes(scratch.backward, call.y.dtype),
        passes=passes,
        same=passes and int(call.y.size) == int(call.x.size),
    )
