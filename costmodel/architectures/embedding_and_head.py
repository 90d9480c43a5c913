"""What is before a transformer's first block and after its last: embeddings and logits."""

from __future__ import annotations

from costmodel.architectures.activations import activation
from costmodel.architectures.feedforward import capped, dropped, normed, scaled
from costmodel.architectures.ranks import columns, gathered_logits, of_rows, own_tokens, prepared
from costmodel.architectures.spec import TransformerSpec
from costmodel.graph.tensor import Tensor
from costmodel.layers.arithmetic import Add, Divide, Unread
from costmodel.layers.attention import Mask
from costmodel.layers.embedding import Embedding, LearnedPositions, StoredPositions
from costmodel.layers.indexing import Computed
from costmodel.layers.linear import Linear


def embedded(model: TransformerSpec, x: Tensor, tokens: Tensor) -> Tensor:
    """Embeddings of tokens, (batch, T, d_e), with positions and segments, as the first block reads them."""
    if model.written is not None and model.written.scale_buffer:
        tokens.tape.buffer((), "statistic", "embedding.scale", "fp32")
    x = scaled(x, model.embedding_scale, "embedding_scale")
    if model.token_dropout:
        x = without_masked(x)
    if model.spare_weights is not None:
        x = Unread(model.spare_weights)(x, name="spare_weights")
    if model.contact_head:
        x = Unread(model.layers * model.heads + 1)(x, name="contact_head")
    width = x.shape[-1]
    if model.embedding_width is not None and not model.embedding_factored:
        width = model.width
        x = Linear(width, bias=False)(x, name="project_in")
    if model.segments is not None:
        kinds = _segments(model, tokens)
        x = Add()(x, Embedding(model.segments, width)(kinds, name="segments"), name="add_segments")
    if model.positions == "learned":
        x = Add()(x, positions(model, tokens, width), name="add_positions")
    if model.boxes is not None:
        x = placed(x, model.boxes)
    if model.positions == "learned":
        x = own_tokens(x)
    if model.embedding_norm:
        x = normed(model, x, "embedding_norm")
    x = dropped(x, model.embedding_dropout, "embedding_dropout")
    return Linear(model.width)(x, name="project_in") if model.embedding_factored else x


def without_masked(x: Tensor) -> Tensor:
    """Zeros for masked tokens' embeddings, and all divided by the share that is left (Rives et al. 2021; ESM)."""
    from costmodel.layers.indexing import Computed  # few models need it

    b, t, _ = x.shape
    masked = x.tape.record(Computed((b, t, 1), "mask", 1), (), "masked_tokens", None)
    left = x.tape.record(Computed((b, 1, 1), "activation", t), (), "share_left", None)
    return Divide()(Mask()(x, masked), left, name="rescale_tokens")


EDGES = ("x", "y", "x", "y")
"""The tables that a box's left, upper, right and lower edge are looked up in; its height and width have their own."""


def placed(x: Tensor, entries: int) -> Tensor:
    """`x` and embeddings of the four edges, the height and the width of each token's box (Xu et al. 2020, LayoutLM)."""
    from costmodel.layers.indexing import Computed  # few models need it

    b, t, d = x.shape
    boxes = x.tape.input((b, t, len(EDGES)), "index", "boxes")
    edge = boxes.view((b, t), (len(EDGES) * t, len(EDGES)))
    tables: dict[str, Tensor] = {}
    for axis, place in zip(EDGES, ("left", "upper", "right", "lower"), strict=True):
        tied = {"weight": tables[axis]} if axis in tables else None
        x = Add()(x, Embedding(entries, d)(edge, name=place, tied=tied), name=f"add_{place}")
        tables[axis] = tables.get(axis) or x.tape.weights_of(place)["weight"]
    for extent in ("height", "width"):
        size = Computed((b, t), "index", 1)(edge, name=f"box_{extent}")
        x = Add()(x, Embedding(entries, d)(size, name=extent), name=f"add_{extent}")
    return x


def _segments(model: TransformerSpec, tokens: Tensor) -> Tensor:
    """(batch, T): which segment each token is in, as an input; or the first, as the package has it in a buffer."""
    tape, written = tokens.tape, model.written
    if written is None or written.positions == "range":
        return tape.input(tokens.shape, "index", "segments")
    rows = model.context if model.position_rows is None else model.position_rows
    kinds = tape.buffer((1, rows), "index", "segments")
    batch, seq = tokens.shape
    shape = (batch if written.positions == "tokens" else 1, seq)
    return Computed(shape, "index")(kinds, name="segments_of_positions").as_strided(tokens.shape, (0, 1))


def positions(model: TransformerSpec, tokens: Tensor, width: int) -> Tensor:
    """(T, width): a vector for each position, the same for every sequence, or (batch, T, width) by its tokens."""
    rows = model.context if model.position_rows is None else model.position_rows
    written = model.written
    if written is not None and written.positions != "range":
        of_tokens = Computed(tokens.shape, "index", 1)
        if written.positions == "tokens" and model.segments is None:
            return Embedding(rows, width)(of_tokens(tokens, name="position_numbers"), name="positions")
        stored = tokens.tape.buffer((1, rows), "index", "positions").as_strided((1, tokens.shape[1]), (rows, 1))
        numbers = of_tokens(tokens, name="position_numbers") if written.positions == "tokens" else stored
        return Embedding(rows, width)(numbers, name="positions")
    if model.position_table == "constant":
        return tokens.tape.buffer((rows, width), "activation", tokens.tape.within("positions")).view(
            (tokens.shape[1], width), None
        )
    kind = LearnedPositions if model.position_table == "trained" else StoredPositions
    return kind(rows, width)(tokens, name="positions")


def logits(model: TransformerSpec, x: Tensor, table: Tensor | None) -> Tensor:
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
    tied = {"weight": table} if model.tied and table is not None else None
    own = columns(prepared(x, "head"), of_rows(model.vocab, x.tape), "head", bias=head.bias, tied=tied)
    if model.tied and table is None:
        x.tape.weights_of("head")["weight"].storage.copied = True
    x = gathered_logits(own, model.vocab)
    if head.spare_bias:
        x = Unread(model.vocab)(x, name="spare_bias")
    return capped(scaled(x, head.logit_scale, "logit_scale"), head.logit_cap, "logit_cap")
