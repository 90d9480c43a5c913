"""Where the layers of a model are split over ranks: local sizes, and the collectives around each part.

A layer that is split by its outputs (columns of its weight, as papers have it) is followed by one that is split by its
inputs (rows), whose results are sums over ranks (Shoeybi et al. 2019, §3). At a degree of one nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Tensor
from costmodel.layers.collective import (
    CopyToRanks,
    ExchangeRows,
    GatherCounts,
    GatheredLinear,
    GatherFromRanks,
    HeadsToTokens,
    ReduceFromRanks,
    ScatterToRanks,
    TakeShare,
    TokensToHeads,
)
from costmodel.layers.embedding import Embedding, SplitEmbedding, VocabParallelEmbedding
from costmodel.layers.experts import Pick
from costmodel.layers.linear import Linear
from costmodel.symbolic.sizes import ceil_div, exact_div
from costmodel.training.layout import Layout


def all_tokens(x: Tensor) -> int:
    """Tokens of the sequence of which x has all, or this rank's."""
    layout = x.tape.layout
    return x.shape[1] * layout.tp if layout.sp else x.shape[1]


def attended_tokens(x: Tensor) -> int:
    """Tokens of the sequence that attention of this rank has at once."""
    layout = x.tape.layout
    return all_tokens(x) * layout.cp if layout.cp_kind == "ulysses" else all_tokens(x)


def to_heads(x: Tensor, name: str) -> Tensor:
    """(batch, h, T, d): of some tokens all heads, which become all tokens of some heads where attention is split so."""
    layout = x.tape.layout
    return TokensToHeads("cp", layout.cp)(x, name=f"{name}.to_heads") if _by_heads(layout) else x


def to_tokens(x: Tensor, name: str) -> Tensor:
    """(batch, h, T, d): as `to_heads`, and back."""
    layout = x.tape.layout
    return HeadsToTokens("cp", layout.cp)(x, name=f"{name}.to_tokens") if _by_heads(layout) else x


def _by_heads(layout: Layout) -> bool:
    return layout.cp > 1 and layout.cp_kind == "ulysses"


def arrived(rows: Tensor, experts: int, several: int | None) -> Tensor:
    """Of rows for all experts those for this rank's, from all ranks, by expert: as many, or so many.

    experts: whose numbers of rows ranks tell each other first; 0: all have as many.
    """
    layout = rows.tape.layout
    if layout.ep == 1:
        return rows
    return Pick()(ExchangeRows("ep", layout.ep, experts, several)(rows, name="send"), name="sort")


def arrived_with_weights(rows: Tensor, weights: Tensor, experts: int, several: int | None) -> list[Tensor]:
    """As `arrived`, of rows and of what each is multiplied by, (rows, 1), as Megatron does.

    Ranks that split experts gather what each of them has for these; rows of one expert are in a row already.
    """
    layout, count = rows.tape.layout, experts
    ranks = layout.ep * layout.expert_tp
    if count and ranks != 1:
        rows = GatherCounts("ep", ranks, count)(rows, name="count")
    both = [(rows, "rows"), (weights, "weights")]
    if layout.ep != 1:
        exchange = ExchangeRows("ep", layout.ep, rows=several)
        both = [(exchange(x, name=f"send_{name}"), name) for x, name in both]
    if layout.expert_tp != 1:
        gather = GatherFromRanks("tp", layout.expert_tp, 1)
        both = [(_as_rows(gather(_as_tokens(x), name=f"gather_{name}")), name) for x, name in both]
    several_here = ranks != 1 and count != layout.ep
    return [Pick()(x, name=f"sort_{name}") if several_here else x for x, name in both]


def returned(rows: Tensor, several: int | None) -> Tensor:
    """What experts made of rows, back where these came from, of which there are as many, or so many."""
    layout = rows.tape.layout
    if layout.megatron:
        return _returned(rows, several)
    if layout.ep == 1:
        return rows
    return ExchangeRows("ep", layout.ep, rows=several)(Pick()(rows, name="unsort"), name="return")


def _returned(rows: Tensor, several: int | None) -> Tensor:
    layout = rows.tape.layout
    if layout.ep * layout.expert_tp != 1:
        rows = Pick()(rows, name="unsort")
    if layout.expert_tp != 1:
        rows = _as_rows(ScatterToRanks("tp", layout.expert_tp, 1)(_as_tokens(rows), name="scatter"))
    return rows if layout.ep == 1 else ExchangeRows("ep", layout.ep, rows=several)(rows, name="return")


def _as_tokens(rows: Tensor) -> Tensor:
    """(n, d) as the tokens of one sequence, (1, n, d)."""
    return rows.view((1, *rows.shape))


def _as_rows(x: Tensor) -> Tensor:
    return x.view(x.shape[1:])


def prepared(x: Tensor, name: str) -> Tensor:
    """What a part of the model reads whose first layers are split by their outputs: all tokens.

    DTensor's plan without `sp` has each of these layers take care of its own input, and so has Megatron's with it,
    where there is one such layer.
    """
    layout = x.tape.layout
    if layout.tp == 1 or layout.megatron == layout.sp:
        return x
    if layout.sp:
        return GatherFromRanks("tp", layout.tp, 1)(x, name=f"{name}.gather")
    return CopyToRanks("tp", layout.tp)(x, name=f"{name}.copy")


def columns(
    x: Tensor, features: int, name: str, *, bias: bool = True, tied: Mapping[str, Tensor] | None = None
) -> Tensor:
    """A linear layer split by its outputs, of which `features` are this rank's."""
    layout = x.tape.layout
    if layout.megatron and layout.sp:
        return GatheredLinear("tp", layout.tp, features, bias)(x, name=name, tied=tied)
    if layout.tp != 1 and not (layout.megatron or layout.sp):
        x = CopyToRanks("tp", layout.tp)(x, name=f"{name}.copy")
    return Linear(features, bias=bias)(x, name=name, tied=tied)


def rows(x: Tensor, features: int, name: str, *, bias: bool = True) -> Tensor:
    """A linear layer split by its inputs, x being this rank's: the sum over all ranks."""
    y = Linear(features, bias=bias)(x, name=name)
    layout = x.tape.layout
    if layout.megatron and layout.sp and bias and y.maker is not None:  # added to what is a rank's own tokens
        y.maker.stored["bias"].storage.partial = True
    return y if layout.tp == 1 else _joined(y, name)


def copied(x: Tensor, name: str) -> Tensor:
    """What every rank has, read by what is split: the gradients of all ranks are summed."""
    return x if x.tape.layout.tp == 1 else CopyToRanks("tp", x.tape.layout.tp)(x, name=f"{name}.copy")


def before_heads(x: Tensor, name: str) -> Tensor:
    """What weights that every rank has made of all tokens, read by layers that are split by heads, as Megatron has it.

    With `sp` these layers gather it; DTensor's plan has each copy its own input.
    """
    layout = x.tape.layout
    return copied(x, name) if layout.megatron and not layout.sp else x


def of_all_tokens(x: Tensor, name: str) -> Tensor:
    """What each rank's heads read whole of every token, of which it has its own, if they are split."""
    layout = x.tape.layout
    return GatherFromRanks("tp", layout.tp, 1)(x, name=f"{name}.gather") if layout.sp else copied(x, name)


def summed(x: Tensor, name: str) -> Tensor:
    """The sum over ranks of what each made with its share."""
    return x if x.tape.layout.tp == 1 else ReduceFromRanks("tp", x.tape.layout.tp)(x, name=f"{name}.reduce")


def of_own_tokens(y: Tensor) -> Tensor:
    """What a layer made whose weights all ranks have: each sees its own tokens, if they are split."""
    return _summed_later(y) if y.tape.layout.sp else y


def of_own_heads(y: Tensor) -> Tensor:
    """What a layer made of a rank's heads whose weights all ranks have."""
    return y if y.tape.layout.tp == 1 else _summed_later(y)


def _summed_later(y: Tensor) -> Tensor:
    """A rank's gradients of what made y are its share of a sum over ranks."""
    if y.maker is not None:
        for weight in y.maker.stored.values():
            weight.storage.partial = True
    return y


def of_rows(entries: int, tape: Tape) -> int:
    """How many of the rows of a table the rank has that has most: the last one may have fewer, or none."""
    degree = tape.layout.tp
    return exact_div(entries, degree) if entries % degree == 0 else ceil_div(entries, degree)


def embedding(
    entries: int, features: int, tokens: Tensor, *, whole: bool = False, tied: Mapping[str, Tensor] | None = None
) -> Tensor:
    """A table of tokens, split by its rows; whole: of all tokens in any case, until `own_tokens`."""
    layout = tokens.tape.layout
    if layout.tp == 1:
        return Embedding(entries, features)(tokens, name="embedding", tied=tied)
    own = of_rows(entries, tokens.tape)
    kind = VocabParallelEmbedding(own, features) if layout.megatron else SplitEmbedding(own, features, entries)
    y = kind(tokens, name="embedding", tied=tied)
    return ReduceFromRanks("tp", layout.tp)(y, name="embedding.reduce") if whole else _joined(y, "embedding")


def own_tokens(x: Tensor) -> Tensor:
    """Of what all ranks have, a rank's own tokens, if they are split."""
    layout = x.tape.layout
    return TakeShare("tp", layout.tp, 1)(x, name="own_tokens") if layout.sp else x


def gathered_logits(x: Tensor, vocab: int) -> Tensor:
    """Logits of the whole vocabulary on every rank, unless the loss is taken of a rank's own."""
    layout = x.tape.layout
    if layout.tp == 1 or layout.split_loss or layout.megatron:
        return x
    return GatherFromRanks("tp", layout.tp, len(x.shape) - 1, summed=False, whole=vocab)(x, name="logits.gather")


def _joined(x: Tensor, name: str) -> Tensor:
    layout = x.tape.layout
    if layout.sp:
        return ScatterToRanks("tp", layout.tp, 1)(x, name=f"{name}.scatter")
    return ReduceFromRanks("tp", layout.tp)(x, name=f"{name}.reduce")
