"""Disentangled attention: scores of tokens and of trained distances between them (He et al. 2021, DeBERTa, §3.1)."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.architectures.feedforward import dropped, normed, scaled
from costmodel.architectures.spec import TransformerSpec
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Tensor
from costmodel.layers.arithmetic import Add
from costmodel.layers.indexing import Computed, Gather, Parameter
from costmodel.layers.linear import Linear, Matmul
from costmodel.layers.shape import Copy, Slice, SplitHeads, TransposeLast
from costmodel.symbolic.sizes import minimum

Stored = Mapping[str, Mapping[str, Tensor]]
"""Weights and biases of the tokens' projections, by name."""


class RelativeDistances:
    """What all blocks share: embeddings of the distances, (2·size, width), and which one each pair of tokens has."""

    def __init__(self, model: TransformerSpec, tape: Tape, seq: int) -> None:
        assert model.disentangled is not None
        table = tape.record(Parameter((2 * model.disentangled.size, model.width)), (), "distances", None)
        self.table = normed(model, table, "distances_norm") if model.disentangled.norm else table
        self.of_pairs = tape.record(Computed((1, 1, seq, seq), "index"), (), "distances_of_pairs", None)


def biases(model: TransformerSpec, distances: RelativeDistances, query: Tensor, key: Tensor, stored: Stored) -> Tensor:
    """Of queries and keys (batch, heads, T, d) what is added to their scores, (batch, heads, T, T).

    A token's query meets the key of each distance, and is given that of the pair; a token's key likewise.
    """
    part = model.disentangled
    assert part is not None
    table = dropped(distances.table, model.residual_dropout, "distances_dropout")
    table = table.view((1, *table.shape))
    if part.trimmed:  # those within the sequence, each way
        reach = minimum(query.shape[2], part.size)
        table = Slice(2 * reach, part.size - reach, axis=1, alone=True)(table, name="distances_within")
    bias = None
    if part.to_position:
        bias = _of_pairs(model, distances, query, _projected(model, table, query, "key", stored), "to_position")
        bias = scaled(bias, model.score_factor, "scale_to_position")
    if part.to_content:
        own = _of_pairs(model, distances, key, _projected(model, table, key, "query", stored), "to_content")
        own = scaled(TransposeLast()(own), model.score_factor, "scale_to_content")
        bias = own if bias is None else Add()(bias, own, name="add_to_content")
    assert bias is not None
    return bias


def _projected(model: TransformerSpec, table: Tensor, like: Tensor, name: str, stored: Stored) -> Tensor:
    """Keys or queries of the distances, (batch, heads, 2·size, d), a copy for each sample."""
    part = model.disentangled
    assert part is not None
    b, h, _, d = like.shape
    bias = "bias" in stored[name] if part.shared else name == "query" or model.key_bias
    wide = Linear(h * d, bias=bias)(table, name=f"distance_{name}", tied=stored[name] if part.shared else None)
    heads = SplitHeads(h)(wide, name=f"split_distance_{name}")
    return Copy((b, h, table.shape[1], d))(heads, name=f"repeat_distance_{name}")


def _of_pairs(model: TransformerSpec, distances: RelativeDistances, x: Tensor, of: Tensor, name: str) -> Tensor:
    """Scores of (batch, heads, T, d) and all distances, and of those the one of each pair."""
    b, h, t, _ = x.shape
    scores = Matmul()(x, TransposeLast()(of), name=name)
    index = Computed((1, 1, t, t), "index", 2)(distances.of_pairs, name=f"{name}_index")
    return Gather((b, h, t, t), whole=True)(scores, index.view((b, h, t, t), (0, 0, t, 1)), name=f"{name}_of_pairs")
