"""From a graph to rows: what each layer costs, every weight and kept tensor charged once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from costmodel.graph.call import Block, Call
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Origin, Storage, Tensor
from costmodel.layers.base import LayerFlops
from costmodel.layers.kernels import distinct_bytes
from costmodel.training.dtypes import size_bytes

CHECKPOINT = "checkpoint"
"""What the row of a recomputed stretch is called, which has what the stretch reads from outside."""
CHECKPOINTING = "the input of each recomputed stretch (torch.utils.checkpoint; Chen et al. 2016, §4)"


class Row(NamedTuple):
    """One layer, all its repeats together, so that rows add up to totals.

    forward_bytes is compulsory traffic [bytes]: every input, weight and output moved once. weight_bytes are those of it
    that are weights, kv_read_bytes and kv_written_bytes those that decoding keeps. cast_bytes are those of weights kept
    in another precision. name, kind: the layer's, by its place in the model, and of its kind. repeat: how often it is
    there. params: its weights. forward_flops, backward_flops: contractions [FLOPs]; forward_pointwise_flops,
    backward_pointwise_flops: all other arithmetic. activation_bytes: what it keeps for backward. recomputed_flops,
    recomputed_pointwise_flops: of its forward pass when backward runs it again.

    Example:
        >>> import costmodel as cm
        >>> row = cm.predict("gpt2-small", batch=1, seq=512).layers[5]
        >>> row.name, row.repeat, row.params
        ('block.attention.qkv', 12, 21261312)

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
    cast_bytes: int = 0
    recomputed_flops: int = 0
    recomputed_pointwise_flops: int = 0
    weight_bytes: int = 0
    kv_read_bytes: int = 0
    kv_written_bytes: int = 0

    @property
    def intensity(self) -> float:
        """Forward contraction FLOPs a byte of compulsory forward traffic; 0 where nothing moves."""
        return float(self.forward_flops) / float(self.forward_bytes) if self.forward_bytes else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**self._asdict(), "intensity": self.intensity}

    def __repr__(self) -> str:
        """The call that makes it, without what is at its default."""
        fields = (f"{name}={n!r}" for name, n in self._asdict().items() if n != self._field_defaults.get(name))
        return f"{type(self).__name__}({', '.join(fields)})"

    def _repr_html_(self) -> str:
        from costmodel.display.table import Table
        from costmodel.display.units import show_bytes, show_count, show_flops

        def cell(name: str, value: Any) -> str:
            show = show_bytes if name.endswith("_bytes") else show_flops if name.endswith("_flops") else show_count
            return value if isinstance(value, str) else f"{value:.1f}" if name == "intensity" else show(value)

        rows = [(name, cell(name, value)) for name, value in self.to_dict().items() if value]
        return Table(("layer", ""), rows).html()


TRAFFIC = ["forward_bytes", "weight_bytes", "kv_read_bytes", "kv_written_bytes"]
WORK = [column for column in Row._fields if column.endswith("_flops")] + TRAFFIC
"""Columns that grow with the number of micro-batches; what is kept is that of one."""


def rows_of(tape: Tape, flop_rule: str, micro_batches: int = 1) -> list[Row]:
    """A row for each recorded call, in order."""
    rows = list(_rows(tape.root, set(), flop_rule))
    if micro_batches == 1:
        return rows
    return [row._replace(**{column: micro_batches * getattr(row, column) for column in WORK}) for row in rows]


def _rows(block: Block, charged: set[Storage], flop_rule: str) -> Iterator[Row]:
    for entry in block.entries:
        if isinstance(entry, Call):
            yield _row(entry, charged, flop_rule)
        elif isinstance(entry, Block):
            if entry.recomputed:
                saved = newly_kept(entry.saved, charged, "computed")
                name = next(entry.calls()).name.rpartition(".")[0]
                yield Row(f"{name}.{CHECKPOINT}".lstrip("."), CHECKPOINT, entry.times, 0, 0, 0, 0, 0, saved, 0)
            yield from _rows(entry, charged, flop_rule)


def _row(call: Call, charged: set[Storage], flop_rule: str) -> Row:
    times = call.times
    bytes_of = moved_by(call)
    forward = call.layer.forward(call)
    forward_flops = _contractions(forward, flop_rule)
    backward_flops = backward_pointwise_flops = 0
    if call.differentiated:
        for _, work, _ in call.gradients():
            backward_flops += _contractions(work, flop_rule)
            backward_pointwise_flops += work.pointwise
    return Row(
        call.name,
        call.layer.kind,
        times,
        sum(s.elements * s.times for s in _newly(charged, call.stored.values())) if call.stored else 0,
        times * forward_flops,
        times * backward_flops,
        times * forward.pointwise,
        times * backward_pointwise_flops,
        newly_kept(call.results if call.recomputed else call.saved, charged, "computed"),
        times * bytes_of.total,
        newly_kept(call.saved, charged, "cast") if call.weights is not call.stored and not call.recomputed else 0,
        times * forward_flops if call.computed_again else 0,
        times * forward.pointwise if call.computed_again else 0,
        times * bytes_of.weights,
        times * bytes_of.kv_read,
        times * bytes_of.kv_written,
    )


def _newly(charged: set[Storage], weights: Iterable[Tensor]) -> Iterator[Storage]:
    for weight in weights:
        if weight.storage not in charged and weight.storage.origin == "weight":
            charged.add(weight.storage)
            yield weight.storage


def newly_kept(storages: Iterable[Storage], charged: set[Storage], origin: Origin) -> int:
    """Bytes of those of an origin that nothing before has kept."""
    saved = 0
    for storage in storages:
        for leaf in (storage,) if storage.parts is None else storage.leaves():
            if leaf.origin == origin and leaf not in charged:
                charged.add(leaf)
                saved += leaf.bytes * leaf.times
    return saved


def kept_of(tape: Tape) -> Iterator[tuple[str, int, int]]:
    """Of each call, or recomputed stretch: its name, or that of its first call; its times; and in all these what none
    before keeps for backward [bytes]."""
    charged: set[Storage] = set()
    for block in tape.root.blocks():
        if block.recomputed:
            name = next((call.name for call in block.calls()), "")
            yield name, int(block.times), newly_kept(block.saved, charged, "computed")
    for call in tape.root.calls():
        own = call.results if call.recomputed else call.saved
        yield call.name, int(call.times), newly_kept(own, charged, "computed")


def miscount(tape: Tape) -> int:
    """Contractions that PyTorch counts beyond those of arithmetic, forward and backward [FLOPs]."""
    flops = 0
    for call in tape.root.calls():
        gradients = [g.work for g in call.gradients()] if call.differentiated else []
        works = (call.layer.forward(call), *gradients)
        flops += call.times * sum([w.counted - w.contractions for w in works if w.counted is not None])
    return flops


def idle_params(tape: Tape) -> int:
    """Weights that one token does not meet: those of the experts that it does not choose."""
    idle: dict[Storage, int] = {}
    for call in tape.root.calls():
        if (share := call.layer.idle) is not None:
            for weight in call.stored.values():
                idle[weight.storage] = share.of(weight.size) * weight.storage.times
    return sum(idle.values())


def _contractions(work: LayerFlops, flop_rule: str) -> int:
    return work.contractions if work.counted is None or flop_rule == "arithmetic" else work.counted


def _read(call: Call, x: Tensor) -> int:
    """Bytes that a call reads of one operand; of weights in few bits their scales too."""
    if x.storage.role != "weight" and not any(x is weight for weight in call.weights.values()):
        return distinct_bytes(x)
    share, precision = call.layer.reads(call, x), call.tape.precision
    size = size_bytes(x.size if share is None else share.of(x.size), x.dtype)
    if x.dtype != precision.quantised:
        return size
    scales = precision.scale_bytes(x.shape)
    return size + (scales if share is None else share.of(scales))


class Moved(NamedTuple):
    """Compulsory bytes of one forward call, and those of them that are weights read, or kept by decoding."""

    total: int
    weights: int = 0
    kv_read: int = 0
    kv_written: int = 0


def moved_by(call: Call) -> Moved:
    """Nothing for a view; rows are spread over as many experts as they can be; of a cache, what is seen of it."""
    y = call.y
    if call.layer.overwrites:
        x = call.inputs[1]
        written = size_bytes(x.size, y.dtype)
        return Moved(x.bytes + written, kv_written=written)
    operands: dict[Storage, Tensor] = {}
    for x in call.operands():
        operands.setdefault(x.storage, x)
    if y.storage in operands:
        return Moved(0)
    written, read, weights, cached = y.bytes, 0, 0, 0
    for storage, x in operands.items():
        size = _read(call, x)
        read += size
        if storage.origin == "weight":
            weights += size
        if storage.origin == "cache":
            cached += size
    return Moved(read + written, weights, cached, written if y.storage.origin == "cache" else 0)


def traffic(call: Call) -> int:
    """Compulsory bytes of one forward call."""
    return moved_by(call).total
