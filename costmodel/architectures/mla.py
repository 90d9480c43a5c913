"""Multi-head latent attention: keys and values made from one narrow vector a token (DeepSeek-AI 2024, V2, §2.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from costmodel.architectures.feedforward import normed
from costmodel.architectures.parts import Indexer, Latent
from costmodel.architectures.ranks import before_heads, columns, of_all_tokens, of_own_tokens
from costmodel.architectures.spec import TransformerSpec
from costmodel.graph.tensor import Tensor
from costmodel.layers.activation import Relu
from costmodel.layers.arithmetic import Scale
from costmodel.layers.attention import Rotary
from costmodel.layers.linear import AbsorbKey, Linear, Matmul
from costmodel.layers.norm import Layernorm
from costmodel.layers.shape import Join, Permute, RepeatHeads, Reshape, Slice, SplitHeads, TransposeLast
from costmodel.symbolic.sizes import peek

Kept = Callable[[Tensor, str], Tensor]
"""Of a tensor of new tokens and its name: it with what is kept of earlier tokens."""


def projected(model: TransformerSpec, x: Tensor, angles: Sequence[Tensor], kept: Kept) -> list[Tensor]:
    """Query, key and value, each (batch, heads, T, d), turned by `angles`, if there are any.

    The last features of each are turned; those of all keys come from one vector for all heads (eq. 14 to 19). Of a
    token the latent and those features are kept, and keys and values of all tokens kept are made anew.
    """
    assert model.latent is not None
    turned, value = model.rotated, model.value_features
    plain = model.head_features - turned
    query, latent, shared, of_query = _narrow(model, model.latent, x, angles)
    chosen = [] if model.indexer is None else [indexed(model, model.indexer, x, of_query, angles, kept)]
    latent, shared = kept(latent, "latent"), kept(shared, "rotated_key")
    wide = columns(latent, model.heads * (plain + value), "key_value_up", bias=False)
    wide = SplitHeads(model.heads)(wide, name="split_key_value")
    key = Join()(Slice(plain)(wide, name="key"), RepeatHeads(model.heads)(shared, name="repeat_key"), name="join_key")
    return [query, key, Slice(value, plain)(wide, name="value"), *chosen]


def absorbed(model: TransformerSpec, x: Tensor, angles: Sequence[Tensor], kept: Kept) -> list[Tensor]:
    """As `projected`, with the matrix that makes keys of the latent applied to queries instead; and that matrix.

    There is one key for all heads, (batch, 1, keys, rank + turned), of which the latent is the value. What attention
    mixes are latents, that the matrix makes values of.
    """
    assert model.latent is not None
    size, turned = model.latent.width, model.rotated
    plain = model.head_features - turned
    query, latent, shared, of_query = _narrow(model, model.latent, x, angles)
    chosen = [] if model.indexer is None else [indexed(model, model.indexer, x, of_query, angles, kept)]
    absorb = AbsorbKey(size, model.value_features)
    inner = absorb(Slice(plain)(query, name="plain_query"), name="key_value_up")
    matrix = x.tape.weights_of("key_value_up")["weight"]
    query = Join()(inner, Slice(turned, plain)(query, name="turned_query"), name="join_query")
    key = kept(Join()(SplitHeads(1)(latent, name="split_latent"), shared, name="join_key"), "latent")
    return [query, key, Slice(size)(key, name="value"), *chosen, matrix]


def indexed(
    model: TransformerSpec, indexer: Indexer, x: Tensor, of_query: Tensor, angles: Sequence[Tensor], kept: Kept
) -> Tensor:
    """Which keys a token attends to not, (batch, 1, T, keys): all but those of the largest scores.

    Scores are relu(q·k) of the light heads, weighed by what is made of each token; no gradient goes through the choice.
    """
    from costmodel.layers.indexing import Computed  # few models need it

    h, size = indexer.heads, indexer.head_size
    (b, t, _), (grad, x.tape.grad) = x.shape, (x.tape.grad, False)
    with x.tape.scope("indexer"):
        query = SplitHeads(h)(Linear(h * size, bias=False)(of_query, name="query"), name="split_query")
        key = SplitHeads(1)(Layernorm()(Linear(size, bias=False)(x, name="key"), name="key_norm"), name="split_key")
        if angles:
            query = Rotary(model.rotated)(query, *angles, name="rotate_query")
            key = Rotary(model.rotated)(key, *angles, name="rotate_key")
        key = kept(key, "index_key")
        rows = Reshape((1, t * h, size))(Permute((0, 2, 1, 3))(query, name="by_token"), name="join_heads")
        scores = Scale(1 / math.sqrt(peek(size)))(Matmul()(rows, TransposeLast()(key), name="scores"))
        weights = Scale(1 / math.sqrt(peek(h)))(Linear(h, bias=False)(x, name="weights"), name="scale_weights")
        keys = scores.shape[-1]
        total = Matmul()(weights.view((b, t, 1, h)), Relu()(scores).view((b, t, h, keys)), name="weigh")
        mask = Computed((b, 1, t, keys), "mask", 1)(total, name="not_chosen")
    x.tape.grad = grad
    return mask


def _narrow(
    model: TransformerSpec, latent: Latent, x: Tensor, angles: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, (batch, heads, T, d); the latent, (batch, T, rank); the turned features of all heads' keys.

    And what queries are made of, their latent or x.
    """
    size, turned = latent.width, model.rotated
    query, of_query = _query(model, latent, x)
    narrow = of_own_tokens(Linear(size + turned, bias=model.qkv_bias)(x, name="key_value_down"))
    normed_latent = before_heads(normed(model, Slice(size)(narrow, name="latent"), "latent_norm"), "latent")
    shared = of_all_tokens(Slice(turned, size)(narrow, name="shared_key"), "shared_key")
    shared = SplitHeads(1)(shared, name="split_shared_key")
    if angles:
        query = Rotary(turned, model.head_features - turned)(query, *angles, name="rotate_query")
        shared = Rotary(turned)(shared, *angles, name="rotate_key")
    return query, normed_latent, shared, of_query


def _query(model: TransformerSpec, latent: Latent, x: Tensor) -> tuple[Tensor, Tensor]:
    if latent.query_width is not None:
        x = of_own_tokens(Linear(latent.query_width, bias=model.qkv_bias)(x, name="query_down"))
        x = normed(model, x, "query_latent_norm")
    x = before_heads(x, "query_latent")
    name = "query" if latent.query_width is None else "query_up"
    wide = columns(x, model.heads * model.head_features, name, bias=False)
    return SplitHeads(model.heads)(wide, name="split_query"), x
