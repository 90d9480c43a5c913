"""What is before a transformer's first block and after its last: embeddings and logits."""

from __future__ import annotations

from costmodel.architectures.activations import activation
from costmodel.architectures.feedforward import capped, dropped, normed, scaled
from costmodel.architectures.spec import TransformerSpec
from costmodel.graph.tensor import Tensor
from costmodel.layers.arithmetic import Add, Unread
from costmodel.layers.embedding import Embedding, LearnedPositions, StoredPositions
from costmodel.layers.linear import Linear


def embedded(model: TransformerSpec, x: Tensor, tokens: Tensor) -> Tensor:
    """Embeddings of tokens, (batch, T, d_e), with positions and segments, as the first block reads them."""
    x = scaled(x, model.embedding_scale, "embedding_scale")
    width = x.shape[-1]
    if model.embedding_width is not None and not model.embedding_factored:
        width = model.width
        x = Linear(width, bias=False)(x, name="project_in")
    if model.segments is not None:
        kinds = tokens.tape.input(tokens.shape, "index", "segments")
        x = Add()(x, Embedding(model.segments, width)(kinds, name="segments"), name="add_segments")
    if model.positions == "learned":
        x = Add()(x, positions(model, tokens, width), name="add_positions")
    if model.embedding_norm:
        x = normed(model, x, "embedding_norm")
    x = dropped(x, model.embedding_dropout, "embedding_dropout")
    return Linear(model.width)(x, name="project_in") if model.embedding_factored else x


def positions(model: TransformerSpec, tokens: Tensor, width: int) -> Tensor:
    """(T, width): a vector for each position, the same for every sequence."""
    rows = model.context if model.position_rows is None else model.position_rows
    if model.position_table == "constant":
        return tokens.tape.buffer((rows, width), "activation", tokens.tape.within("positions")).view(
            (tokens.shape[1], width), None
        )
    kind = LearnedPositions if model.position_table == "trained" else StoredPositions
    return kind(rows, width)(tokens, name="positions")


def logits(model: TransformerSpec, x: Tensor, table: Tensor) -> Tensor:
    """(batch, T, width) → (batch, T, vocab), with the embedding's table if the two are tied."""
    assert model.head is not None
    head = model.head
    x = scaled(x, head.input_scale, "output_scale")
    if head.transform is not None:
        with x.tape.scope("head_transform"):
            features = x.shape[-1] if model.embedding_width is None else model.embedding_width
            x = normed(model, activation(head.transform)(Linear(features, bias=head.transform_bias)(x)), "norm")
    elif model.embedding_factored and model.embedding_width is not None:
        x = Linear(model.embedding_width, bias=False)(x, name="project_out")
    x = Linear(model.vocab, bias=head.bias)(x, name="head", tied={"weight": table} if model.tied else None)
    if head.spare_bias:
        x = Unread(model.vocab)(x, name="spare_bias")
    return capped(scaled(x, head.logit_scale, "logit_scale"), head.logit_cap, "logit_cap")
