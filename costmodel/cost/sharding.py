"""Weights that are split over ranks and gathered when they are needed: what a step holds and sends for it.

A unit is a block of the model, each round of it by itself, or all that is in none: the root. FSDP2 gathers a unit as
one flat message into a buffer and copies the weights out of it. In forward the buffer stays until the next unit's
weights have been copied out, and the weights go when the unit is done, unless they are not resharded; those of the root
stay to the end of backward. In backward the unit before is gathered while a unit runs; a unit's gradients are copied
into a buffer, which stays until the next unit has its own, and scattered; over copies of the model the sums of each
share are then all-reduced. A unit of whose inputs none asks for a gradient is done with at the end of backward, after
the root.

In a stage of a pipeline gradients stay whole, and weights gathered by backward stay so, until the last micro-batch has
gone backward: then each unit's are scattered, the root's first.

Source: ``torch/distributed/fsdp/_fully_shard``: ``FSDPParamGroup.unshard``, ``wait_for_unshard``, ``pre_backward``,
``post_backward``, ``foreach_all_gather``, ``foreach_reduce``, and ``FSDPState._root_post_backward_final_callback``;
``torch/distributed/pipelining/stage.py``: ``backward_maybe_with_nosync``, ``perform_reduce_grad``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from costmodel.cost.allocator import exactly
from costmodel.cost.liveness import GRADIENTS, TEMPORARIES, Allocation, Lifetimes, MomentPhase
from costmodel.errors import SettingError
from costmodel.graph.call import Block, Call
from costmodel.graph.kernel import MeshAxis, Message, Operation
from costmodel.graph.tape import ROOT, Tape
from costmodel.graph.tensor import Shape, Storage
from costmodel.symbolic.sizes import ceil_div, exact_div, product
from costmodel.training.dtypes import Dtype, size_bytes

Gathered = Literal["none", "flat", "root", "all"]
"""Which of a stage's weights are there whole between passes, "flat" being all of them in the buffers they came in."""


class WeightShare(NamedTuple):
    """What a rank has of a weight between steps: its shape, the type it is kept in, and its bytes.

    gradient: elements of its gradient. gradient_dtype: their type. master: type of the optimizer's own copy, if any.
    """

    shape: Shape
    bytes: int
    gradient: int
    gradient_dtype: Dtype
    master: Dtype | None

    @property
    def gradient_bytes(self) -> int:
        """Of its gradient [bytes]."""
        return size_bytes(self.gradient, self.gradient_dtype)


def share_of(tape: Tape, weight: Storage) -> WeightShare:
    """A rank's share of a weight: all of it, or of its rows an equal part, rounded up, as the first rank has it.

    Of experts of which there are fewer than ranks it is a part of each one's features, which are divided evenly.

    FSDP2 keeps shares, and their gradients, in the type of the optimizer's own copy, which they so are themselves
    (``MixedPrecisionPolicy.param_dtype`` is of gathered weights alone).
    """
    shape, precision = tape.weights[weight], tape.precision
    if tape.layout.shards == 1:
        return WeightShare(shape, weight.bytes, weight.graded, precision.gradient_dtype, precision.master)
    ranks = exact_div(tape.layout.shards, weight.peers)
    if across(tape, weight):
        shape = (shape[0], exact_div(shape[1], ranks), *shape[2:])
    else:
        shape = (ceil_div(shape[0], ranks), *shape[1:])
    dtype, elements = precision.master or precision.weight, product(shape)
    return WeightShare(shape, size_bytes(elements, dtype), elements, dtype, None)


def across(tape: Tape, weight: Storage) -> bool:
    """Whether ranks of fsdp split each expert of a weight: where they are more than experts, of those that ep splits.

    Source: ``shard_placement_fn`` of ``fully_shard``, as torchtitan's ``apply_fsdp`` gives it: Shard(1).
    """
    return weight.peers > 1 and tape.layout.shards > weight.peers * tape.weights[weight][0]


def flat_length(tape: Tape) -> int:
    """Elements of a rank's shares of all trained weights, as one."""
    return sum(product(share_of(tape, weight).shape) * weight.times for weight in tape.updated)


def gathered_throughout(tape: Tape) -> Iterator[tuple[int, int]]:
    """Weights that no pass drops, which are gathered once: bytes of one, and how many there are.

    Where no backward pass follows these are the root's, and all of units that are not resharded after forward.

    Source: ``FSDPState._lazy_init``, ``FSDPParamGroup.post_forward``.
    """
    for block, unit in units_of(tape).items() if tape.layout.shards > 1 else ():
        if stays_gathered(tape, block):
            for _, times, elements in unit.weights:
                yield size_bytes(elements * unit.devices, tape.precision.weight), times * block.times


def stays_gathered(tape: Tape, unit: Block) -> bool:
    """Whether no pass drops a unit's weights."""
    return not tape.training and (unit.parent is None or not tape.layout.reshard)


def partial_sum(tape: Tape, weight: Storage) -> Message:
    """What makes a gradient of a rank's own tokens that of all.

    In FSDP2 this sum is of gathered weights' type, unless gradients of a stage's micro-batches add up in another.
    """
    precision, layout = tape.precision, tape.layout
    dtype = precision.gradient_dtype if layout.shards == 1 or layout.stage is not None else precision.weight
    return Message("all_reduce", "tp", tape.layout.tp, weight.elements, dtype)


class WeightUnit(NamedTuple):
    """One message of weights: what it is called, and of each weight in it how many there are and a share's elements.

    graded: those whose gradients are scattered. differentiated: whether backward comes to it. late: whether no gradient
    comes to what it reads. across: whether it is split along the second axis of weights, which whole rows are copied to
    and from.
    """

    name: str
    devices: int
    weights: list[tuple[Storage, int, int]]
    graded: list[tuple[Storage, int, int]]
    differentiated: bool
    late: bool
    across: bool

    @property
    def in_order(self) -> list[tuple[Storage, int, int]]:
        """`graded` in a module's own order, which has sublayers before the norms around them."""
        return sorted(self.graded, key=lambda row: -row[0].name.count("."))

    def share(self, *, graded: bool = False) -> int:
        """Elements of a rank's shares, with what fills them up."""
        return sum(times * elements for _, times, elements in (self.graded if graded else self.weights))


def units_of(tape: Tape) -> dict[Block, WeightUnit]:
    """The units of a model that have weights, by the block that each is: the root last. Raises SettingError."""
    _check_stretches(tape.root)
    members: dict[Block, dict[Storage, None]] = {block: {} for block in tape.root.blocks() if block.unit}
    members[tape.root] = {}
    owners: dict[Storage, Block] = {}
    for unit, call in _calls_by_unit(tape.root, tape.root):
        for x in call.operands():
            for weight in x.storage, *(w.storage for w in call.stored.values()):
                if weight in tape.weights and owners.setdefault(weight, unit) is not unit:
                    raise SettingError(
                        f"weight {weight.name} is in two units of fsdp={tape.layout.fsdp}, as PyTorch refuses: use "
                        "wrap='root'"
                    )
    for weight in tape.weights:
        members[owners.get(weight, tape.root)][weight] = None
    return {block: _unit(tape, block, list(weights)) for block, weights in members.items() if weights}


def _check_stretches(block: Block) -> None:
    """Raise SettingError where what is recomputed is around a unit that is in no other."""
    for entry in block.entries:
        if isinstance(entry, Block) and not entry.unit:
            if entry.recomputed and any(nested.unit for nested in entry.blocks()):
                raise SettingError("checkpoint of several blocks is not worked out with fsdp: use 'block'")
            _check_stretches(entry)


def _calls_by_unit(block: Block, unit: Block) -> Iterator[tuple[Block, Call]]:
    for entry in block.entries:
        if isinstance(entry, Call):
            yield unit, entry
        elif isinstance(entry, Block):
            yield from _calls_by_unit(entry, entry if entry.unit else unit)


def _unit(tape: Tape, block: Block, storages: list[Storage]) -> WeightUnit:
    rows = [(s, _rounds_within(s, block), share_of(tape, s).gradient) for s in storages]
    calls = list(block.calls())
    fresh = {call.y.storage for call in calls if all(x.storage is not call.y.storage for x in call.inputs)}
    read = [x for call in calls for x in call.inputs if x.storage.origin not in ("weight", "buffer")]
    return WeightUnit(
        block.name or ROOT,
        exact_div(tape.layout.shards, storages[0].peers),
        rows,
        [row for row in rows if row[0] in tape.updated],
        any(call.differentiated for call in calls),
        not any(x.requires_grad and x.storage not in fresh for x in read),
        across(tape, storages[0]),
    )


def _rounds_within(weight: Storage, unit: Block) -> int:
    """How many of a weight there are in one round of a unit. Raises SettingError where rounds share it."""
    times, block, outer = 1, weight.block, unit.parent or unit
    while block is not outer:
        if block.parent is None:
            raise SettingError(f"rounds share weight {weight.name}, which is not worked out with fsdp: use dp")
        times, block = times * block.count, block.parent
    return times


class UnitVisit:
    """A round of a unit, which stands for `alike`: its gathered weights while they are there, and their buffer."""

    __slots__ = ("alike", "block", "buffer", "weights")

    def __init__(self, block: Block, alike: int, weights: list[Allocation]) -> None:
        self.block = block
        self.alike = alike
        self.weights = weights
        self.buffer: Allocation | None = None

    def drop(self, now: int) -> None:
        """The weights go after this moment."""
        for allocation in self.weights:
            allocation.died = now
        self.weights = []


class ShardedWeights:
    """Gathers and scatters of one step, as forward enters and leaves units and as backward does.

    accumulates: whether gradients of earlier micro-batches are there, to which those of this one are added. gathered:
    of a stage of a pipeline, what is there whole when the next pass begins; None: this is all of a step.
    """

    def __init__(self, tape: Tape, lifetimes: Lifetimes, gathered: Gathered | None = None) -> None:
        self.units = units_of(tape)
        self.gathered = gathered
        self.staged = gathered is not None
        self.lifetimes = lifetimes
        self.gradients: list[Allocation] = []
        self.accumulates = False
        self._tape, self._root, self._layout = tape, tape.root, tape.layout
        precision = tape.precision
        self._dtype: Dtype = precision.weight
        self._reduced: Dtype = precision.gradient_dtype
        self._kept: Dtype = precision.master or precision.weight
        self._keeps = tape.training and not tape.layout.reshard
        self._visits: list[UnitVisit] = []
        self._every: list[UnitVisit] = []
        self._running: dict[Block, UnitVisit] = {}
        self._buffer: Allocation | None = None
        self._own: dict[Block, list[tuple[Storage, Allocation]]] = {}
        self._late: list[tuple[Block, str]] = []
        self._scattering: Allocation | None = None
        self._summed: list[Allocation] = []
        self._unit_of = {weight: block for block, unit in self.units.items() for weight, *_ in unit.weights}
        self._partial: dict[Block, list[Message]] = {}
        for block, unit in self.units.items():
            for weight, times, _ in unit.in_order:
                if weight.partial:
                    self._partial.setdefault(block, []).extend([partial_sum(tape, weight)] * int(times))

    @property
    def _now(self) -> int:
        return len(self.lifetimes.moments) - 1

    @property
    def widens(self) -> bool:
        """Whether gradients that stay whole do so in another type than they are made in."""
        return self.staged and self._reduced != self._dtype

    @property
    def lasting(self) -> list[Allocation]:
        """Gathered weights that have not been dropped."""
        return [allocation for visit in self._every for allocation in visit.weights]

    def enter(self, block: Block, rounds: str, alike: int) -> None:
        """Forward comes to a unit."""
        if (unit := self.units.get(block)) is None or stays_gathered(self._tape, block):
            return
        if self.gathered == "all" or (self.gathered == "root" and block is self._root):
            self._visit(UnitVisit(block, alike, [self.lifetimes.held(self._whole_bytes(unit))]))
            return
        before, self._buffer = self._buffer, self._gather(unit, "forward", rounds)
        now = self.lifetimes.moment("forward", f"{unit.name}.copy_out", rounds)
        if before is not None:
            before.died = now
        self._visit(UnitVisit(block, alike, self._copied_out(unit, now)))

    def _visit(self, visit: UnitVisit) -> None:
        self._running[visit.block] = visit
        self._every.append(visit)

    def _whole_bytes(self, unit: WeightUnit) -> int:
        return size_bytes(unit.share() * unit.devices, self._dtype)

    def leave(self, block: Block) -> None:
        """Forward is done with a unit, whose weights go."""
        if (visit := self._running.get(block)) is None:
            return
        self._visits.append(visit)
        if not self._keeps:
            visit.drop(self._now)

    def end_forward(self) -> None:
        """The outermost forward that runs is done, of all or of what runs again: the last buffer goes."""
        if self._buffer is not None:
            self._buffer.died = self._now
            self._buffer = None

    def start_backward(self) -> None:
        """Backward comes to the root, whose weights are there; the last unit is gathered."""
        if self._root in self.units:
            self._prefetch("")

    def enter_backward(self, block: Block, rounds: str) -> None:
        """Backward comes to a unit: its weights are copied out of their buffer, and the unit before it is gathered."""
        unit = self.units.get(block)
        if unit is None or not unit.differentiated:
            return
        while (visit := self._visits.pop()).block is not block:
            pass
        self._running[block] = visit
        self._open_again(unit, visit, "backward", rounds)
        self._prefetch(rounds)

    def enter_again(self, block: Block, rounds: str) -> None:
        """A unit's forward runs again, within one around it: its weights are copied out, and stay for its backward."""
        self._buffer = self._open_again(self.units[block], self._visits[-1], "recompute", rounds)

    def _open_again(self, unit: WeightUnit, visit: UnitVisit, phase: MomentPhase, rounds: str) -> Allocation | None:
        """Returns the buffer that weights are copied out of, unless they are there."""
        if visit.weights or self.gathered == "all":
            return None
        buffer = visit.buffer or self._gather(unit, phase, rounds)
        now = self.lifetimes.moment(phase, f"{unit.name}.copy_out", rounds)
        if buffer is not None:
            buffer.died = now
        visit.weights, visit.buffer = self._copied_out(unit, now), None
        return buffer

    def settled(self, gradient: Allocation, weight: Storage) -> None:
        """A weight has its gradient."""
        self._own.setdefault(self._unit_of[weight], []).append((weight, gradient))

    def leave_backward(self, block: Block, rounds: str) -> None:
        """Backward is done with a unit, unless that is told only by the end."""
        unit = self.units.get(block)
        if unit is None or not unit.differentiated:
            return
        if self.staged:
            self._widen(block, unit, rounds)
        elif unit.late:
            self._late.append((block, rounds))
        else:
            self._reduce(block, unit, rounds)

    def end_backward(self) -> None:
        """The root's gradients are scattered, then those of units that are done by now, and the last buffers go."""
        if (unit := self.units.get(self._root)) is not None and self.staged:
            self._widen(self._root, unit, "")
        elif unit is not None:
            self._reduce(self._root, unit, "")
        for block, rounds in reversed(self._late):
            self._reduce(block, self.units[block], rounds)
        for visit in self._visits:  # that backward did not come to
            for allocation in visit.weights:
                allocation.rounds = visit.alike
            visit.drop(self._now)
        for last in (*(visit.buffer for visit in self._visits), *self._summed):
            if last is not None:
                last.died = self._now

    def _widen(self, block: Block, unit: WeightUnit, rounds: str) -> None:
        """Gradients are added to those of earlier micro-batches, or are the first, in the type they are summed in."""
        if not self.widens:
            return
        made = dict(self._own.pop(block, []))
        for weight, *_ in unit.in_order:
            if (gradient := made.get(weight)) is not None:
                gradient.died = now = self.lifetimes.moment("backward", f"{weight.name}.accumulated", rounds)
                if not self.accumulates:
                    self.gradients.append(self.lifetimes.take(size_bytes(weight.graded, self._reduced), now, GRADIENTS))

    def gather_held(self, block: Block, rounds: str) -> None:
        """All of a unit's weights come in their buffer, which stays."""
        buffer = self._gather(self.units[block], "forward", rounds)
        self._visit(UnitVisit(block, 1, [] if buffer is None else [buffer]))

    def copy_out_held(self, block: Block, rounds: str) -> None:
        """A unit's weights are copied out of the buffer that they came in, which goes."""
        unit = self.units[block]
        now = self.lifetimes.moment("forward", f"{unit.name}.copy_out", rounds)
        if unit.devices > 1:
            self.lifetimes.held(self._whole_bytes(unit)).died = now
        self._visit(UnitVisit(block, 1, self._copied_out(unit, now)))

    def reduce_held(self, block: Block, rounds: str, alike: int) -> None:
        """A unit's weights go, and the gradients of all micro-batches are scattered."""
        unit, held = self.units[block], self.lifetimes.held
        self._running[block] = UnitVisit(block, alike, [held(self._whole_bytes(unit))])
        self._own[block] = own = []
        for weight, times, _ in unit.graded:
            gradient = held(size_bytes(weight.graded * times, self._reduced), GRADIENTS)
            if weight.graded is not weight.elements:  # of a table of all ranks of tp, whose share is cut out
                gradient.died = self.lifetimes.moment("backward", f"{weight.name}.share", rounds)
                gradient = self.lifetimes.take(size_bytes(weight.elements * times, self._reduced), gradient.died)
            own.append((weight, gradient))
        self._reduce(block, unit, rounds)

    def end_reduction(self) -> None:
        """What the last of them has left goes."""
        for last in (self._scattering, *self._summed):
            if last is not None:
                last.died = max(last.died, self._now)

    def _reduce(self, block: Block, unit: WeightUnit, rounds: str) -> None:
        """A unit's weights go, its gradients are copied into a buffer, and scattered."""
        gradients = self._own.pop(block, [])
        self._running[block].drop(self._now)
        if self._scattering is not None:
            self._scattering.died = self._now
            self._scattering = None
        if not unit.graded:
            return
        take, layout = self.lifetimes.take, self._layout
        now = self.lifetimes.moment("backward", f"{unit.name}.reduce_scatter", rounds)
        self.lifetimes.send(self._partial.get(block, ()), now)
        share = unit.share(graded=True)
        self._scattering = take(size_bytes(share * unit.devices, self._reduced), now)
        latest: Storage | None = unit.graded[-1][0]
        for weight, gradient in gradients:  # a loop over ranks' shares has the last one to the end of `foreach_reduce`
            last = unit.devices != 1 and weight is latest
            latest = None if last else latest  # of several rounds that which backward came to first
            gradient.died = now + last
            gradient.rounds = self._rounds_since(gradient.born)
            if last and unit.across:  # whose copy, by ranks, takes the place of all others too
                take(gradient.size, now)
        now = self.lifetimes.moment("backward", f"{unit.name}.gradients", rounds)
        self._send("reduce_scatter", "fsdp", unit.devices, share * unit.devices, self._reduced, now)
        if layout.dp > 1:
            self._send("all_reduce", "dp", layout.dp, share, self._reduced, now)
        self._scattering.died = now
        if self._reduced != self._kept:
            summed = take(size_bytes(share, self._reduced), now, stream="reduce")
            if layout.dp > 1:
                summed.rounds = self._running[block].alike
                self._summed.append(summed)
        own = take(size_bytes(share, self._kept), now, GRADIENTS, "reduce")
        if not self.accumulates:
            self.gradients.append(own)
            return
        own.line = TEMPORARIES
        if layout.dp > 1 and self._reduced == self._kept:
            own.rounds = self._running[block].alike
            self._summed.append(own)

    def _rounds_since(self, moment: int) -> int:
        """How many alike rounds a moment stands for that are over by now."""
        times = 1
        for start, end, more in self.lifetimes.loops:
            times = times * (1 + more) if start <= moment < end else times
        return times

    def _prefetch(self, rounds: str) -> None:
        if self._visits and not (visit := self._visits[-1]).weights and self.gathered != "all":
            visit.buffer = self._gather(self.units[visit.block], "backward", rounds)

    def _gather(self, unit: WeightUnit, phase: MomentPhase, rounds: str) -> Allocation | None:
        """The flat buffer of all ranks' shares; those of this rank are cast before, if they are of another type.

        A rank that has a unit to itself copies it at once.
        """
        if unit.devices == 1:
            return None
        now = self.lifetimes.moment(phase, f"{unit.name}.all_gather", rounds)
        whole = unit.share() * unit.devices
        self._send("all_gather", "fsdp", unit.devices, whole, self._dtype, now)
        if self._dtype != self._kept:
            self.lifetimes.take(size_bytes(unit.share(), self._dtype), now, stream="gather")
        return self.lifetimes.take(size_bytes(whole, self._dtype), now, stream="gather")

    def _send(self, operation: Operation, axis: MeshAxis, devices: int, elements: int, dtype: Dtype, now: int) -> None:
        if devices == 1:
            return
        self.lifetimes.send([Message(operation, axis, devices, elements, dtype)], now)

    def _copied_out(self, unit: WeightUnit, now: int) -> list[Allocation]:
        """Weights one by one, as the allocator has them."""
        sizes = [(size_bytes(n * unit.devices, self._dtype), times) for _, times, n in unit.weights]
        if unit.across and unit.devices != 1:
            for size, times in sizes:
                self.lifetimes.take(self.lifetimes.allotted(size) * times, now)
        if self.lifetimes.allotted is exactly:
            return [self.lifetimes.take(sum(size * times for size, times in sizes), now)]
        return [self.lifetimes.take(self.lifetimes.allotted(size) * times, now) for size, times in sizes]
