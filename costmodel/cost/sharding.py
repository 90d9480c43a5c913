"""Weights that are split over ranks and gathered when they are needed: what a step holds and sends for it.

A unit is a block of the model, each round of it by itself, or all that is in none: the root. FSDP2 gathers a unit as
one flat message into a buffer and copies the weights out of it. In forward the buffer stays until the next unit's
weights have been copied out, and the weights go when the unit is done; those of the root stay to the end of backward.
In backward the unit before is gathered while a unit runs; a unit's gradients are copied into a buffer, which stays
until the next unit has its own, and scattered.

Source: ``torch/distributed/fsdp/_fully_shard``: ``FSDPParamGroup.unshard``, ``wait_for_unshard``, ``pre_backward``,
``post_backward``, and ``foreach_reduce``.
"""

from __future__ import annotations

from typing import NamedTuple

from costmodel.cost.liveness import GRADIENTS, Allocation, Lifetimes
from costmodel.graph.kernel import Message
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Block, Shape, Storage
from costmodel.symbolic.sizes import ceil_div, product
from costmodel.training.dtypes import Dtype, size_bytes

ROOT = "root"
"""What the unit of all weights that are in no block is called."""


class WeightUnit(NamedTuple):
    """One message of weights: what it is called, and elements of a rank's shares with what fills them up."""

    name: str
    share: int
    devices: int

    @property
    def whole(self) -> int:
        """Elements of all ranks' shares."""
        return self.share * self.devices


def share_of(shape: Shape, devices: int) -> Shape:
    """A rank's share of a weight: of its rows an equal part, rounded up, as the first rank has it."""
    return (ceil_div(shape[0], devices), *shape[1:])


def local_shape(tape: Tape, shape: Shape) -> Shape:
    """What a rank has of a weight between steps."""
    return shape if tape.layout.shards == 1 else share_of(shape, tape.layout.shards)


def partial_sum(tape: Tape, weight: Storage) -> Message:
    """What makes a gradient of a rank's own tokens that of all."""
    return Message("all_reduce", "tp", tape.layout.tp, weight.elements, tape.precision.gradient_dtype)


def units_of(tape: Tape, devices: int) -> dict[Block, WeightUnit]:
    """The units of a model, by the block that each is: the root last."""
    blocks = [entry for entry in tape.root.entries if isinstance(entry, Block)]
    shares: dict[Block, int] = dict.fromkeys([*blocks, tape.root], 0)
    for storage, shape in tape.weights.items():
        block, times = storage.block, 1
        while block.parent is not None and block.parent is not tape.root:
            times = times * block.count
            block = block.parent
        shares[block] += times * product(share_of(shape, devices))
    names = {block: block.name or ROOT for block in shares}
    return {block: WeightUnit(names[block], share, devices) for block, share in shares.items() if share}


class ShardedWeights:
    """Gathers and scatters of one step, as forward enters and leaves units and as backward does."""

    def __init__(self, tape: Tape, lifetimes: Lifetimes, devices: int) -> None:
        self.units = units_of(tape, devices)
        self.lifetimes = lifetimes
        self.gradients: list[Allocation] = []
        self._root = tape.root
        self._dtype: Dtype = tape.precision.weight
        self._gradient_dtype: Dtype = tape.precision.gradient_dtype
        self._visits: list[Block] = []
        self._buffer: Allocation | None = None
        self._gathered: dict[Block, Allocation] = {}
        self._prefetched: dict[Block, Allocation] = {}
        self._own: dict[Block, list[Allocation]] = {}
        self._scattering: Allocation | None = None
        self._partial: dict[Block, list[Message]] = {}
        # In a module's own order, which has sublayers before the norms around them.
        for storage in sorted(tape.updated, key=lambda storage: -storage.name.count(".")):
            if storage.partial:
                block = self._unit_of(storage.block)
                times = int(storage.times // block.times)
                self._partial.setdefault(block, []).extend([partial_sum(tape, storage)] * times)

    def enter(self, block: Block, rounds: str) -> None:
        """Forward comes to a unit."""
        if (unit := self.units.get(block)) is None:
            return
        now = self._gather(unit, "forward", rounds)
        before, self._buffer = self._buffer, self._take_buffer(unit, now)
        now = self.lifetimes.moment("forward", f"{unit.name}.copy_out", rounds)
        if before is not None:
            before.died = now
        self._gathered[block] = self._take_weights(unit, now)
        if block is not self._root:
            self._visits.append(block)

    def leave(self, block: Block) -> None:
        """Forward is done with a unit, whose weights go."""
        self._end(self._gathered, block)

    def end_forward(self) -> None:
        """The last buffer goes."""
        if self._buffer is not None:
            self._buffer.died = len(self.lifetimes.moments) - 1
            self._buffer = None

    def start_backward(self) -> None:
        """Backward comes to the root, whose weights are there; the last unit is gathered."""
        self._prefetch("")

    def enter_backward(self, block: Block, rounds: str) -> None:
        """Backward comes to a unit: its weights are copied out of their buffer, and the unit before it is gathered."""
        if (unit := self.units.get(block)) is None:
            return
        now = self.lifetimes.moment("backward", f"{unit.name}.copy_out", rounds)
        self._prefetched.pop(block).died = now
        self._gathered[block] = self._take_weights(unit, now)
        self._visits.pop()
        self._prefetch(rounds)

    def settled(self, gradient: Allocation, block: Block) -> None:
        """A weight of this block has its gradient."""
        self._own.setdefault(self._unit_of(block), []).append(gradient)

    def _unit_of(self, block: Block) -> Block:
        while block.parent is not None and block.parent is not self._root:
            block = block.parent
        return block

    def leave_backward(self, block: Block, rounds: str) -> None:
        """Backward is done with a unit: its weights go, its gradients are copied into a buffer, and scattered."""
        if (unit := self.units.get(block)) is None:
            return
        gradients = self._own.pop(block, [])
        self._end(self._gathered, block)
        now = self.lifetimes.moment("backward", f"{unit.name}.reduce_scatter", rounds)
        self.lifetimes.send(self._partial.get(block, ()), now)
        if self._scattering is not None:
            self._scattering.died = now - 1
        self._scattering = self.lifetimes.take(size_bytes(unit.whole, self._gradient_dtype), now)
        for gradient in gradients:
            gradient.died = now
        now = self.lifetimes.moment("backward", f"{unit.name}.gradients", rounds)
        self.lifetimes.send([self._message("reduce_scatter", unit, self._gradient_dtype)], now)
        self._scattering.died = now
        share = self.lifetimes.take(size_bytes(unit.share, self._gradient_dtype), now, GRADIENTS)
        self.gradients.append(share)

    def end_backward(self) -> None:
        """The root's gradients are scattered, and the last buffer goes."""
        self.leave_backward(self._root, "")

    def _prefetch(self, rounds: str) -> None:
        if not self._visits:
            return
        block = self._visits[-1]
        unit = self.units[block]
        now = self._gather(unit, "backward", rounds)
        self._prefetched[block] = self._take_buffer(unit, now)

    def _gather(self, unit: WeightUnit, phase: str, rounds: str) -> int:
        now = self.lifetimes.moment(phase, f"{unit.name}.all_gather", rounds)  # type: ignore[arg-type]
        self.lifetimes.send([self._message("all_gather", unit, self._dtype)], now)
        return now

    def _message(self, operation: str, unit: WeightUnit, dtype: Dtype) -> Message:
        return Message(operation, "fsdp", unit.devices, unit.whole, dtype)  # type: ignore[arg-type]

    def _take_buffer(self, unit: WeightUnit, now: int) -> Allocation:
        return self.lifetimes.take(size_bytes(unit.whole, self._dtype), now)

    def _take_weights(self, unit: WeightUnit, now: int) -> Allocation:
        return self.lifetimes.take(size_bytes(unit.whole, self._dtype), now)

    def _end(self, allocations: dict[Block, Allocation], block: Block) -> None:
        if (allocation := allocations.pop(block, None)) is not None:
            allocation.died = len(self.lifetimes.moments) - 1
