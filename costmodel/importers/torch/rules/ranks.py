"""Rules of what a plan of tensor parallelism puts around the layers that it names."""

from __future__ import annotations

from costmodel.graph.tensor import Tensor
from costmodel.importers.torch.op_call import RANK_RULES, OpCall, rule
from costmodel.importers.torch.rules.layers import dense_table
from costmodel.layers.collective import CopyToRanks, GatherFromRanks, ReduceFromRanks, TakeShare
from costmodel.layers.embedding import SplitEmbedding


@rule("copy_to_ranks", rules=RANK_RULES)
def copied(op: OpCall) -> Tensor:
    """What all ranks have, read by what is split."""
    return op.layer(CopyToRanks("tp", op.tape.layout.tp), op.tensor("self"))


@rule("reduce_from_ranks", rules=RANK_RULES)
def summed(op: OpCall) -> Tensor:
    """The sum over ranks of what each made with its share."""
    return op.layer(ReduceFromRanks("tp", op.tape.layout.tp), op.tensor("self"))


@rule("gather_from_ranks", rules=RANK_RULES)
def gathered(op: OpCall) -> Tensor:
    """The last axis of all ranks joined."""
    x = op.tensor("self")
    return op.layer(GatherFromRanks("tp", op.tape.layout.tp, len(x.shape) - 1, summed=False, whole=op.shape[-1]), x)


@rule("take_share", rules=RANK_RULES)
def taken(op: OpCall) -> Tensor:
    """A rank's share of the last axis of what all ranks have."""
    x = op.tensor("self")
    return op.layer(TakeShare("tp", op.tape.layout.tp, len(x.shape) - 1), x)


@rule("split_embedding", rules=RANK_RULES)
def looked_up(op: OpCall) -> Tensor:
    """Rows of a rank's share of a table, of which it makes the whole gradient unless a layer to come shares it."""
    table, entries = dense_table(op), op.value("entries")
    rows, features = table.shape
    if op.tape.layout.shards == 1:
        table.storage.graded = entries * features
    return op.layer(SplitEmbedding(rows, features, entries), op.tensor("indices"), tied={"weight": table})
