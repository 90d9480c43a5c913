"""From a graph to rows: what each layer costs, every weight and kept tensor charged once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from costmodel.graph import Call, Run
from costmodel.layers.base import Work
from costmodel.layers.embedding import Table
from costmodel.tensor import Role, Storage, Tensor

BytesOf = Callable[[Role], int]


@dataclass(frozen=True)
class Row:
    """One layer, all its repeats together, so that rows add up to totals.

    forward_bytes is compulsory traffic [bytes]: every input, weight and output moved once. intensity is contraction
    FLOPs a byte of it.
    """

    name: str
    kind: str
    repeat: int
    params: int
    forward_flops: int
    backward_flops: int
    forward_pointwise_flops: int
    backward_pointwise_flops: int
    activation_bytes: int
    forward_bytes: int

    @property
    def intensity(self) -> float:
        """Forward contraction FLOPs a byte of compulsory forward traffic; 0 where nothing moves."""
        return float(self.forward_flops) / float(self.forward_bytes) if self.forward_bytes else 0.0


def rows_of(run: Run, bytes_of: BytesOf, flop_rule: str) -> list[Row]:
    """A row for each recorded call, in order."""
    charged: set[Storage] = set()
    return [_row(call, charged, bytes_of, flop_rule) for call in run.root.calls()]


def _row(call: Call, charged: set[Storage], bytes_of: BytesOf, flop_rule: str) -> Row:
    times = call.times
    forward = call.kind.forward(call)
    needed = [gradient.work for gradient in call.kind.backward(call) if gradient.operand.requires_grad]
    if not call.y.requires_grad:
        needed = []
    return Row(
        name=call.name,
        kind=call.kind.kind,
        repeat=times,
        params=sum(s.elements * s.times for s in newly(charged, (w.storage for w in call.weights.values()))),
        forward_flops=times * _contractions(forward, flop_rule),
        backward_flops=times * sum(_contractions(work, flop_rule) for work in needed),
        forward_pointwise_flops=times * forward.pointwise,
        backward_pointwise_flops=times * sum(work.pointwise for work in needed),
        activation_bytes=sum(
            s.elements * s.times * bytes_of(s.role)
            for s in newly(charged, (leaf for kept in call.kept for leaf in kept.leaves()))
            if s.origin == "computed"
        ),
        forward_bytes=times * traffic(call, bytes_of),
    )


def newly(charged: set[Storage], storages: Iterable[Storage]) -> list[Storage]:
    """Those not yet charged, which then are."""
    fresh = [s for s in dict.fromkeys(storages) if s not in charged]
    charged.update(fresh)
    return fresh


def _contractions(work: Work, flop_rule: str) -> int:
    return work.contractions if work.counted is None or flop_rule == "arithmetic" else work.counted


def traffic(call: Call, bytes_of: BytesOf) -> int:
    """Compulsory bytes of one forward call: none for a view; a table gives only the rows looked up."""
    operands: dict[Storage, Tensor] = {x.storage: x for x in [*call.inputs, *call.weights.values()]}
    if call.y.storage in operands:
        return 0
    moved = call.y.size * bytes_of(call.y.storage.role)
    for x in operands.values():
        looked_up = isinstance(call.kind, Table) and x.storage.origin == "weight"
        moved = moved + (call.y.size if looked_up else x.size) * bytes_of(x.storage.role)
    return moved
