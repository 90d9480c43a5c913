"""Transformers that keep keys and values, written plainly in PyTorch: a prefill, or a step after tokens that are kept.

Tensors have names for as long as something is yet to read them, and no longer.
"""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from . import mixers, models, states
from .measure import meta, storage_of


class DynamicCache:
    """One layer's keys and values, or latents and turned keys, each (..., tokens, features).

    As DynamicLayer and DynamicSlidingWindowLayer of transformers.
    """

    def __init__(self, window: int | None) -> None:
        self.window = window
        self.kept: list[Tensor] = []

    def fill(self, past: int, *shapes: tuple[int, ...]) -> None:
        """What there is after `past` tokens that came one by one; shapes with 0 tokens."""
        held = past if self.window is None else min(past, self.window)
        for *rest, _, features in shapes:
            whole = meta(*rest, held, features)
            self.kept.append(whole if self.window is None else whole[..., max(0, held - self.window + 1) :, :])

    def update(self, place: int, new: Tensor) -> Tensor:
        """Everything that the new tokens attend to."""
        if place == len(self.kept):
            self.kept.append(torch.cat([new], -2))
        else:
            self.kept[place] = torch.cat([self.kept[place], new], -2)
        whole = self.kept[place]
        if self.window is not None:
            self.kept[place] = whole[..., max(0, whole.shape[-2] - self.window + 1) :, :]
        return whole


class Attention(models.Attention):
    """Attention with a cache; `absorbed`: over latents."""

    def __init__(self, spec: Any, seq: int, kernel: str, device: Any, number: int, past: int, absorbed: bool) -> None:
        super().__init__(spec, seq, kernel, device, number)
        windowed = spec.window is not None and models.falls_on(spec.window.pattern, number)
        self.window = spec.window.size if windowed else None
        self.absorbed = absorbed and spec.latent is not None
        earlier = past if self.window is None or not past else min(past, self.window - 1)
        self.register_buffer("mask", None if seq == 1 else torch.zeros(seq, earlier + seq, dtype=torch.bool))
        self.register_buffer("alibi", torch.zeros(spec.heads, 1, earlier + seq))
        self.cache = DynamicCache(self.window)

    def fill(self, batch: int, past: int) -> None:
        """The cache after so many tokens."""
        spec = self.spec
        if self.borrows:
            return
        if self.absorbed:
            self.cache.fill(past, (batch, 1, 0, spec.latent.width + self.rotated))
        elif spec.latent is not None:
            self.cache.fill(past, (batch, 0, spec.latent.width), (batch, 1, 0, self.rotated))
        else:
            self.cache.fill(past, *[(batch, self.kv_heads, 0, self.size)] * 2)

    def forward(self, x: Tensor, bias: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
        b, t, _ = x.shape
        held = list(self.made_of(x))
        y = self.attended(held, bias if self.relative is None else self.relative())
        if self.absorbed:
            y = self.latent.values(y)
        y = y.transpose(1, 2).reshape(b, t, -1)
        if self.spec.attention_gate:
            self.gate = torch.sigmoid(self.gate)
            y = y * self.gate
            self.gate = None
        return self.output(y)

    def made_of(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of the tokens, and all keys and values that there are then."""
        angles = (self.cos, self.sin) if self.turns else None
        if self.spec.latent is not None:
            return self.latent.cached(x, angles, self.cache, self.absorbed)
        if self.borrows:
            return self.query_of(x), *self.lent[self.kind]
        q, k, v = self.apart(x)
        if self.spec.attention_gate:
            q, gate = q.view(*x.shape[:2], self.spec.heads, -1).chunk(2, -1)
            self.gate = gate.reshape(*x.shape[:2], -1)
            del gate
        if self.spec.query_key_norm == "width":
            q = self.norms[0](q)
            k = self.norms[1](k)
        q, k, v = (part.view(len(x), x.shape[1], -1, self.size) for part in (q, k, v))
        if self.spec.query_key_norm in ("head", "heads", "unit"):
            q = self.norms[0](q)
            k = self.norms[1](k)
        v = self.value_norm(v)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if angles is not None:
            q = models.rotate(q, *angles)
            k = models.rotate(k, *angles)
        k = self.cache.update(0, k)
        v = self.cache.update(1, v)
        if self.lends:
            self.lent[self.kind] = k, v
        return q, k, v

    def apart(self, x: Tensor) -> Any:
        """Queries, keys and values of the tokens, each in bounds."""
        if self.fuses:
            return self.clip(self.qkv(x)).split(self.widths, -1)
        q, k, v = self.query(x), self.key(x), self.value(x)
        q = self.clip(q)
        k = self.clip(k)
        return q, k, self.clip(v)

    def attended(self, held: list[Tensor], bias: Tensor | None) -> Tensor:
        """Values mixed; of queries, keys and values, which are let go of on the way."""
        if self.kernel != "eager":
            q, k, v = held
            held.clear()
            if self.kernel == "efficient":  # with no gradients no statistic of the rows is made
                return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, bias, False, 0.0, self.masks)[0]
            return self.fused(q, k, v, bias)
        b, h, t, _ = held[0].shape
        if self.absorbed:
            held[0] = held[0].reshape(b, 1, h * t, -1)
        else:
            held[1] = self.repeat(held[1])
            held[2] = self.repeat(held[2])
        y = held.pop(0) @ held.pop(0).transpose(-2, -1)
        y = y.view(b, h, t, -1)
        scale = self.spec.score_scale
        y = y / math.sqrt(self.size) if scale is None else models.scaled(y, scale)
        if self.spec.score_cap is not None:
            y = y / self.spec.score_cap
            y = torch.tanh(y)
            y = y * self.spec.score_cap
        if self.spec.positions == "alibi":
            y = y + self.alibi
        if bias is not None:
            y = y + bias[..., -y.shape[-1] :]
        if self.mask is not None:
            y = y.masked_fill(self.mask, float("-inf"))
        if self.sink is not None:
            y = self.sink(y)
        y = torch.softmax(y, -1)
        if self.sink is not None:
            y = y[..., :-1]
        if not self.absorbed:
            return y @ held.pop()
        y = y.reshape(b, 1, h * t, -1) @ held.pop()
        return y.view(b, h, t, -1)


class Latent(models.Latent):
    """Latent attention that keeps latents and turned keys."""

    def cached(self, x: Tensor, angles: Any, cache: DynamicCache, absorbed: bool) -> tuple[Tensor, Tensor, Tensor]:
        b, t, _ = x.shape
        q = self.query_up(self.query_norm(self.query_down(x)) if self.narrow else x)
        q = q.view(b, t, self.heads, -1).transpose(1, 2)
        latent, shared = self.down(x).split([self.rank, self.turned], -1)
        latent = self.norm(latent)
        shared = shared.view(b, t, 1, -1).transpose(1, 2)
        if angles is not None:
            q = torch.cat([q[..., : self.plain], models.rotate(q[..., self.plain :], *angles)], -1)
            shared = models.rotate(shared, *angles)
        if absorbed:
            inner = self.by_head(q[..., : self.plain], self.matrices()[:, : self.plain])
            q = torch.cat([inner, q[..., self.plain :]], -1)
            latent = torch.cat([latent.view(b, t, 1, -1).transpose(1, 2), shared], -1)
            del inner, shared
            k = cache.update(0, latent)
            return q, k, k[..., : self.rank]
        latent = cache.update(0, latent)
        shared = cache.update(1, shared)
        wide = self.up(latent).view(b, latent.shape[1], self.heads, -1).transpose(1, 2)
        del latent
        k, v = wide.split([self.plain, self.value_size], -1)
        return q, torch.cat([k, shared.expand(-1, self.heads, -1, -1)], -1), v

    def matrices(self) -> Tensor:
        """(heads, plain + value, rank)."""
        return self.up.weight.view(self.heads, -1, self.rank)

    def by_head(self, x: Tensor, matrices: Tensor) -> Tensor:
        """(b, h, t, m) by (h, m, n)."""
        b, h, t, _ = x.shape
        return torch.bmm(x.permute(1, 0, 2, 3).reshape(h, b * t, -1), matrices).view(h, b, t, -1).transpose(0, 1)

    def values(self, x: Tensor) -> Tensor:
        """Of mixed latents, (b, h, t, rank)."""
        return self.by_head(x, self.matrices()[:, self.plain :].transpose(1, 2))


class Relative(models.Relative):
    """As wide as there are keys."""

    def __init__(self, spec: Any, seq: int, keys: int) -> None:
        super().__init__(spec, seq)
        self.register_buffer("relative_buckets", torch.zeros(seq, keys, dtype=torch.int64))


class Transformer(models.Transformer):
    """Without a name for what the first block reads. `last`: logits of the last token alone."""

    last = False

    def forward(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        x = models.scaled(self.tokens(tokens), self.spec.embedding_scale)
        factored = self.spec.embedding_factored
        if self.inward is not None and not factored:
            x = self.inward(x)
        if self.segments is not None:
            x = x + self.segments(segments)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        if self.inward is not None and factored:
            x = self.inward(x)
        bias = None if self.relative is None else self.relative()
        if self.streams is not None:
            x = self.through_streams(x, tokens, bias)
        else:
            for block in self.blocks:
                x = block(x) if bias is None else block(x, bias)
        self.lent.clear()
        del bias
        if self.final_norm is not None:
            x = self.final_norm(x)
        if self.outward is not None and not factored:
            x = self.outward(x)
        if self.head is None:
            return x.view(-1, x.shape[-1])
        x = x[:, -1:] if self.last else x
        if self.outward is not None and factored:
            x = self.outward(x)
        return self.head(x).flatten(0, 1)


def transformer(
    spec: Any, batch: int, seq: int, past: int = 0, kernel: str = "eager", *, absorbed: bool = False, last: bool = False
) -> Transformer:
    """On the meta device, with what `past` tokens have left in the caches; run it once."""

    def attention(spec: Any, seq: int, kernel: str, device: Any, number: int, **_: Any) -> Attention:
        return Attention(spec, seq, kernel, device, number, past, absorbed)

    with (
        torch.device("meta"),
        patch.object(models, "Attention", attention),
        patch.object(models, "Latent", Latent),
        patch.multiple(mixers, **{name: getattr(states, name) for name in states.KINDS}),
        patch.object(models, "Relative", lambda spec, seq: Relative(spec, seq, past + seq)),
    ):
        model = Transformer(spec, seq, kernel, "gpu").eval()
    model.last = last
    for block in model.blocks:
        if past and block.attention is not None:
            block.attention.fill(batch, past)
        if past and block.other is not None:
            block.other.fill(batch)
    return model


def caches(model: Transformer) -> list[Tensor]:
    """All that is kept now."""
    attending = [block.attention for block in model.blocks if block.attention is not None]
    mixing = [block.other for block in model.blocks if block.other is not None]
    held = [kept for attention in attending for kept in attention.cache.kept]
    return held + [state.kept for other in mixing for state in other.states() if state.kept is not None]


class Traffic(TorchDispatchMode):
    """Bytes of weights and of caches that operations read, and of caches that they write; views move nothing.

    What is seen several times by a stride of 0 is read once; of a table the rows that are looked up.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model
        self._weights = {storage_of(weight) for weight in model.parameters()}
        self._moved: list[tuple[bool, Tensor, int]] = []
        self._before = caches(model)
        self.weights = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
        if func is torch.ops.aten.copy_.default:
            given, made = given[1:], given[0]
        elif any(returned.alias_info for returned in func._schema.returns) or func in VIEWS:
            return made
        if not all(x.numel() for x in given):  # experts that no row was sent to read nothing
            given = [x for x in given if storage_of(x) not in self._weights]
        widest = {storage_of(x): x for x in sorted(given, key=seen)}  # a value may be a part of its key
        for x in widest.values():
            if storage_of(x) not in self._weights:
                self._moved.append((False, x, seen(x)))
            elif func is torch.ops.aten.embedding.default:
                self.weights += made.nbytes
            else:
                self.weights += seen(x)
        self._moved += [(True, y, y.nbytes) for y in (made,) if isinstance(y, Tensor)]
        return made

    def kept(self, *, written: bool) -> int:
        """Bytes of caches, those before and those after."""
        known = {storage_of(x) for x in (*self._before, *caches(self.model))}
        return sum(size for writes, x, size in self._moved if writes == written and storage_of(x) in known)


VIEWS = {torch.ops.aten._unsafe_view.default}


def seen(x: Tensor) -> int:
    """Bytes of the elements that a tensor shows."""
    sizes = (n for n, stride in zip(x.shape, x.stride(), strict=True) if stride)
    return math.prod(sizes) * x.element_size()
