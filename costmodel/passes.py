"""The walks over a graph, forward and back, that find out how long each tensor and gradient stays in memory.

A block that repeats is walked three times at most: its first round, one that stands for all those between, and its
last. What a tensor's last use leaves free is free at once; what backward needs stays until the call that kept it has
run backward; a gradient stays until what made its tensor has run backward.
"""

from __future__ import annotations

from typing import NamedTuple

from costmodel.graph import Block, Call, Run
from costmodel.layers.loss import Loss
from costmodel.lifetimes import Fold, Lifetimes, Stretch
from costmodel.tensor import Role, Storage, Tensor


class Slot:
    """Where the gradient of one tensor comes together; `parts` are gradients of slices of it."""

    __slots__ = ("elements", "gradient", "parts", "role")

    def __init__(self, elements: int, role: Role) -> None:
        self.elements = elements
        self.role: Role = role
        self.gradient: Stretch | None = None
        self.parts: list[Stretch] = []


class Plan(NamedTuple):
    """What all rounds of a call have in common.

    makes: the memory it takes for itself. gradients: operands to give one to, and whether it is the incoming one.
    view: whether the gradient passes through it unchanged.
    """

    makes: tuple[Storage, ...]
    gradients: tuple[tuple[Tensor, bool], ...]
    forward_scratch: int
    backward_scratch: int
    view: bool


class Visit(NamedTuple):
    """One round of a call, as backward will need it."""

    call: Call
    plan: Plan
    rounds: str
    slot: Slot
    targets: tuple[tuple[Slot, bool], ...]
    kept: tuple[Stretch, ...]


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
        self.output = self._given = Stretch(0, "temporaries", 0)
        self._rounds = ""
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
        outer, count, before = self._rounds, int(block.count), entry.storage.parts[0]
        for number in sorted({1, min(2, count), count}):
            self._hand_on(before, entry.storage)
            self._slots[entry] = self._slots[entry.storage]
            self._weights[block] = {}
            several = number == 2 and count > 3
            shown = f"{number}–{count - 1}" if several else f"{number}"
            self._rounds = f"{outer} {shown}" if outer else shown
            if several:
                self._fold(block)
            else:
                self._walk(block)
            before = made.storage
        self._rounds = outer
        if made.storage is not entry.storage and made.storage.parts is not None:
            self._hand_on(made.storage, made.storage.parts[1])

    def _fold(self, block: Block) -> None:
        start, more = len(self.lifetimes.moments), block.count - 3
        self._edge(Edge(True, more))
        self._walk(block)
        self._edge(Edge(False, more))
        self.lifetimes.folds.append(Fold(start, len(self.lifetimes.moments), more))

    def _edge(self, edge: Edge) -> None:
        self.visits.append(edge)
        self.weights.append(edge)

    def _hand_on(self, old: Storage, new: Storage) -> None:
        self._places[new] = self._places.get(old, self._given)
        self._slots[new] = self._slots.get(old) or Slot(0, "activation")

    def _call(self, call: Call) -> None:
        plan = self._plans.get(call)
        if plan is None:
            plan = self._plans[call] = plan_of(call)
        read = [self._places.get(x.storage, self._given) for x in call.inputs]
        if plan.makes or plan.forward_scratch:
            self._make(call, plan, read)
        same = plan.view and int(call.y.size) == int(call.x.size)
        slot = self._slot(call.x) if same else Slot(call.y.size, call.y.storage.role)
        self._slots[call.y] = slot
        if call.y.storage in plan.makes:
            self._slots[call.y.storage] = slot
        self.output = self._places.get(call.y.storage, self._given)
        if call.y.requires_grad and not same:
            kept = tuple(self._places[k] for k in call.kept if k in self._places)
            for stretch in kept:
                stretch.line = "activations"
            targets = tuple((self._slot(x), shared) for x, shared in plan.gradients)
            self.visits.append(Visit(call, plan, self._rounds, slot, targets, kept))

    def _make(self, call: Call, plan: Plan, read: list[Stretch]) -> None:
        lifetimes = self.lifetimes
        now = lifetimes.moment("loss" if isinstance(call.kind, Loss) else "forward", call.name, self._rounds)
        for stretch in read:
            stretch.died = now
        for storage in plan.makes:
            self._places[storage] = lifetimes.take(storage.elements, storage.role, "temporaries", now)
        if plan.forward_scratch:
            lifetimes.take(plan.forward_scratch, "activation", "temporaries", now)

    def _slot(self, x: Tensor) -> Slot:
        if x.storage.origin == "weight":
            here = self._weights[x.storage.block]
            if x.storage not in here:
                here[x.storage] = Slot(x.size, "weight")
                self.weights.append((x.storage, self._rounds))
            return here[x.storage]
        slot = self._slots.get(x) or self._slots.get(x.storage)
        return Slot(x.size, x.storage.role) if slot is None else slot


def plan_of(call: Call) -> Plan:
    """What all rounds of `call` have in common."""
    known = {x.storage for x in call.operands()} | {x.storage for x in call.buffers.values()}
    gradients = tuple((g.operand, g.shared) for g in call.kind.backward(call) if g.operand.requires_grad)
    scratch = call.kind.scratch(call)
    return Plan(
        makes=tuple(s for s in dict.fromkeys((call.y.storage, *call.kept)) if s not in known),
        gradients=gradients,
        forward_scratch=scratch.forward,
        backward_scratch=scratch.backward,
        view=len(call.inputs) == 1 and not call.weights and all(shared for _, shared in gradients),
    )


class Backward:
    """Retraces the visits of a forward walk."""

    def __init__(self, visits: list[Visit | Edge], lifetimes: Lifetimes) -> None:
        self.lifetimes = lifetimes
        start = self._start(visits)
        starts: list[int] = []
        for visit in reversed(visits):
            if isinstance(visit, Visit):
                self._call(visit)
            elif visit.opens:
                lifetimes.folds.append(Fold(starts.pop(), len(lifetimes.moments), visit.more))
            else:
                starts.append(len(lifetimes.moments))
        if start is not None:
            start.died = len(lifetimes.moments) - 1

    def _start(self, visits: list[Visit | Edge]) -> Stretch | None:
        """The gradient that backward starts from: the caller holds it until the end."""
        last = next((visit for visit in reversed(visits) if isinstance(visit, Visit)), None)
        if last is None:
            return None
        now = len(self.lifetimes.moments)
        last.slot.gradient = self.lifetimes.take(last.slot.elements, last.slot.role, "temporaries", now)
        return last.slot.gradient

    def _call(self, visit: Visit) -> None:
        _, plan, _, slot, targets, kept = visit
        if slot.parts:
            self._join(slot, visit)
        incoming, slot.gradient = slot.gradient, None
        if incoming is None:
            return
        if plan.view:
            self._see(visit, incoming)
            return
        now = self._moment(visit)
        for stretch in (incoming, *kept):
            stretch.died = now
        if plan.backward_scratch:
            self.lifetimes.take(plan.backward_scratch, "activation", "temporaries", now)
        made = [(target, incoming if shared else self._gradient(target, now)) for target, shared in targets]
        for target, gradient in made:
            self._receive(target, gradient, visit)

    def _moment(self, visit: Visit) -> int:
        return self.lifetimes.moment("backward", visit.call.name, visit.rounds)

    def _gradient(self, target: Slot, now: int) -> Stretch:
        stays = target.role == "weight" and target.gradient is None
        return self.lifetimes.take(target.elements, target.role, "gradients" if stays else "temporaries", now)

    def _receive(self, slot: Slot, gradient: Stretch, visit: Visit) -> None:
        """A second gradient is added to the first: for a moment there are both and their sum."""
        if slot.gradient is None:
            slot.gradient = gradient
            return
        now = self._moment(visit)
        slot.gradient.died = gradient.died = now
        total = self.lifetimes.take(slot.elements, slot.role, "temporaries", now)
        if slot.role != "weight":
            slot.gradient = total

    def _see(self, visit: Visit, incoming: Stretch) -> None:
        """A slice's gradient waits for those of the other slices, to be joined with them."""
        whole = visit.targets[0][0]
        whole.parts.append(incoming)
        if sum(int(part.size) for part in whole.parts) >= int(whole.elements) * self.lifetimes.bytes_of(whole.role):
            self._join(whole, visit)

    def _join(self, slot: Slot, visit: Visit) -> None:
        now = self._moment(visit)
        for part in slot.parts:
            part.died = now
        slot.parts.clear()
        self._receive(slot, self._gradient(slot, now), visit)
