"""Multi-head latent attention: keys and values made from one narrow vector a token (DeepSeek-AI 2024, V2, §2.1)."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.architectures.feedforward import normed
from costmodel.architectures.spec import Latent, TransformerSpec
from costmodel.graph.tensor import Tensor
from costmodel.layers.attention import Rotary
from costmodel.layers.linear import Linear
from costmodel.layers.shape import Join, RepeatHeads, Slice, SplitHeads


def projected(model: TransformerSpec, x: Tensor, angles: Sequence[Tensor]) -> list[Tensor]:
    """Query, key and value, each (batch, heads, T, d), turned by `angles`, if there are any.

    The last features of each are turned; those of all keys come from one vector for all heads (eq. 14 to 19).
    """
    assert model.latent is not None
    size = model.latent.width
    turned, value = model.rotated, model.value_features
    plain = model.head_features - turned
    query = _query(model, model.latent, x)
    narrow = Linear(size + turned, bias=model.qkv_bias)(x, name="key_value_down")
    latent = normed(model, Slice(size)(narrow, name="latent"), "latent_norm")
    shared = SplitHeads(1)(Slice(turned, size)(narrow, name="shared_key"), name="split_shared_key")
    if angles:
        query = Rotary(turned, plain)(query, *angles, name="rotate_query")
        shared = Rotary(turned)(shared, *angles, name="rotate_key")
    wide = Linear(model.heads * (plain + value), bias=False)(latent, name="key_value_up")
    wide = SplitHeads(model.heads)(wide, name="split_key_value")
    key = Join()(Slice(plain)(wide, name="key"), RepeatHeads(model.heads)(shared, name="repeat_key"), name="join_key")
    return [query, key, Slice(value, plain)(wide, name="value")]


def _query(model: TransformerSpec, latent: Latent, x: Tensor) -> Tensor:
    if latent.query_width is not None:
        x = Linear(latent.query_width, bias=model.qkv_bias)(x, name="query_down")
        x = normed(model, x, "query_latent_norm")
    name = "query" if latent.query_width is None else "query_up"
    return SplitHeads(model.heads)(
        Linear(model.heads * model.head_features, bias=False)(x, name=name), name="split_query"
    )
