"""MLPs and transformers written plainly in PyTorch, one call for each layer, from the fields of a description."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .networks import Dropout

Device = Literal["gpu", "cpu"]

ACTIVATIONS = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hard_swish": F.hardswish,
    "hard_sigmoid": F.hardsigmoid,
    "relu6": F.relu6,
}
"""Those that are one layer."""
COMPOSED = {
    "gelu_composed": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3)))),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu_squared": lambda x: torch.square(F.relu(x)),
}


class XieluFunction(torch.autograd.Function):
    """One kernel each way, which saves its input and the two trained numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        ctx.save_for_backward(x, positive, negative)
        return torch.empty_like(x, dtype=torch.promote_types(x.dtype, positive.dtype))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(saved) for saved in ctx.saved_tensors)


class Xielu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positive, self.negative = (nn.Parameter(torch.empty(1)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return XieluFunction.apply(x, self.positive, self.negative)


def activated(name: str) -> Callable[[Tensor], Tensor]:
    """The activation of a new place in a model."""
    return Xielu() if name == "xielu" else (ACTIVATIONS | COMPOSED)[name]


NAMES = sorted([*ACTIVATIONS, *COMPOSED, "xielu"])


@torch.library.custom_op("oracle::fused_rms_norm", mutates_args=())
def fused_rms_norm(x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """As aten::_fused_rms_norm, which only GPUs have, without data: the result and one inverse root a row, at once."""
    dtype = x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)
    return x.new_empty(x.shape, dtype=dtype), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


fused_rms_norm.register_fake(fused_rms_norm._init_fn)


class FusedRMS(torch.autograd.Function):
    """Saves input, weight and one inverse root a row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None) -> Tensor:
        y, inverse = fused_rms_norm(x, weight)
        ctx.save_for_backward(x, weight, inverse)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor | None]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), None if weight is None else torch.empty_like(weight)


class RMSNorm(nn.Module):
    def __init__(self, features: int, device: Device, affine: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features)) if affine else None
        self.features, self.device = features, device

    def forward(self, x: Tensor) -> Tensor:
        if self.device == "gpu":
            return FusedRMS.apply(x, self.weight)
        return F.rms_norm(x, (self.features,), self.weight)


class MLP(nn.Module):
    def __init__(self, spec: Any, device: Device) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        for n_in, n_out in zip(spec.sizes[:-2], spec.sizes[1:-1], strict=True):
            stages.append(nn.Linear(n_in, n_out, bias=spec.bias))
            if spec.norm == "batchnorm":
                stages.append(nn.BatchNorm1d(n_out, affine=spec.norm_affine))
            if spec.norm == "layernorm":
                stages.append(nn.LayerNorm(n_out, elementwise_affine=spec.norm_affine))
            if spec.norm == "rmsnorm":
                stages.append(RMSNorm(n_out, device, spec.norm_affine))
            stages.append(Activation(spec.activation))
            stages.append(Dropout(spec.dropout, device))
        self.hidden = nn.Sequential(*stages)
        self.output = nn.Linear(spec.sizes[-2], spec.sizes[-1], bias=spec.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.hidden(x))


class Activation(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = activated(name)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def norm(spec: Any, device: Device) -> nn.Module:
    return norm_over(spec, spec.width, device)


def norm_over(spec: Any, features: int, device: Device) -> nn.Module:
    if spec.norm == "layernorm":
        return nn.LayerNorm(features, elementwise_affine=spec.norm_affine, bias=spec.norm_bias)
    return RMSNorm(features, device, spec.norm_affine)


def inner_norm(spec: Any, features: int, device: Device) -> nn.Module:
    """Before the last linear layer of a sublayer, if there is one."""
    return norm_over(spec, features, device) if spec.inner_norm else nn.Identity()


class HeadNorms(nn.Module):
    """A layer norm for each place of the last axis but one."""

    def __init__(self, heads: int, features: int, affine: bool, bias: bool) -> None:
        super().__init__()
        norms = (nn.LayerNorm(features, elementwise_affine=affine, bias=bias) for _ in range(heads))
        self.norms = nn.ModuleList(norms)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([norm(part) for norm, part in zip(self.norms, x.unbind(-2), strict=True)], -2)


def capped(x: Tensor, cap: float | None) -> Tensor:
    return x if cap is None else torch.tanh(x / cap) * cap


def scaled(x: Tensor, factor: float | None) -> Tensor:
    return x if factor is None or factor == 1 else x * factor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first features of each head, as many as the tables have."""
    turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = turned.chunk(2, -1)
    turned = turned * cos + torch.cat([-second, first], -1) * sin
    return torch.cat([turned, rest], -1) if rest.shape[-1] else turned


class Sink(nn.Module):
    """A learned score of each head, after those of every row."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads))

    def forward(self, scores: Tensor) -> Tensor:
        b, h, t, _ = scores.shape
        return torch.cat([scores, self.weight.reshape(1, h, 1, 1).expand(b, h, t, 1)], -1)


class Latent(nn.Module):
    """Query, key and value of latent attention, in which the last features of a head are turned."""

    def __init__(self, spec: Any, size: int, value_size: int, device: Device) -> None:
        super().__init__()
        self.heads, self.rank, self.turned = spec.heads, spec.latent.width, spec.rotary.size
        self.plain, self.value_size, narrow = size - self.turned, value_size, spec.latent.query_width
        if narrow:
            self.query_down = nn.Linear(spec.width, narrow, bias=spec.qkv_bias)
            self.query_norm = norm_over(spec, narrow, device)
        self.query_up = nn.Linear(narrow or spec.width, spec.heads * size, bias=False)
        self.down = nn.Linear(spec.width, self.rank + self.turned, bias=spec.qkv_bias)
        self.norm = norm_over(spec, self.rank, device)
        self.up = nn.Linear(self.rank, spec.heads * (self.plain + value_size), bias=False)
        self.narrow = narrow
        self.chosen = Chosen(spec) if spec.indexer is not None else None
        self.of_all_heads = nn.Identity()
        self.mask: Tensor | None = None

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        b, t, _ = x.shape
        of_query = self.query_norm(self.query_down(x)) if self.narrow else x
        self.mask = None if self.chosen is None else self.chosen(x, of_query, angles)
        q = self.query_up(of_query)
        q = q.view(b, t, self.heads, -1).transpose(1, 2)
        latent, shared = self.down(x).split([self.rank, self.turned], -1)
        shared = self.of_all_heads(shared)
        wide = self.up(self.norm(latent)).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = wide.split([self.plain, self.value_size], -1)
        shared = shared.view(b, t, 1, -1).transpose(1, 2)
        if angles is not None:
            q = torch.cat([q[..., : self.plain], rotate(q[..., self.plain :], *angles)], -1)
            shared = rotate(shared, *angles)
        return q, torch.cat([k, shared.expand(-1, self.heads, -1, -1)], -1), v


class Chosen(nn.Module):
    """Which keys a token attends to not, by the largest scores of a light attention, without gradients."""

    def __init__(self, spec: Any) -> None:
        super().__init__()
        part = spec.indexer
        self.heads, self.size, self.most, self.turned = part.heads, part.head_size, part.chosen, spec.rotary.size
        self.query = nn.Linear(spec.latent.query_width, self.heads * self.size, bias=False)
        self.key, self.norm = nn.Linear(spec.width, self.size, bias=False), nn.LayerNorm(self.size)
        self.weights = nn.Linear(spec.width, self.heads, bias=False)

    @torch.no_grad()
    def forward(self, x: Tensor, of_query: Tensor, angles: tuple[Tensor, Tensor] | None) -> Tensor:
        b, t, _ = x.shape
        q = self.query(of_query).view(b, t, self.heads, self.size).transpose(1, 2)
        k = self.norm(self.key(x))[:, None]
        if angles is not None:
            q, k = rotate(q, *angles), rotate(k, *angles)
        scores = (q.transpose(1, 2) @ k.transpose(-2, -1)).relu()
        total = (self.weights(x)[:, :, None] @ scores)[:, :, 0]
        best = total.topk(min(self.most, t), -1)[1]
        return torch.ones(b, t, t, dtype=torch.bool, device=x.device).scatter(-1, best, False)[:, None]


class Span(nn.Module):
    """Convolutions whose kernels are made of each span of tokens."""

    def __init__(self, spec: Any, wide: int) -> None:
        super().__init__()
        self.heads, self.size, d = spec.heads, spec.span_convolution, spec.width
        self.depthwise = nn.Conv1d(d, d, self.size, padding=self.size // 2, groups=d, bias=False)
        self.pointwise = nn.Conv1d(d, wide, 1)
        self.kernels, self.value = nn.Linear(wide, self.heads * self.size), nn.Linear(d, wide)

    def forward(self, x: Tensor, query: Tensor) -> Tensor:
        b, t, wide = query.shape
        key = self.pointwise(self.depthwise(x.transpose(1, 2))).transpose(1, 2)
        kernels = torch.softmax(self.kernels(key * query).view(-1, self.size), -1)
        image = self.value(x).transpose(1, 2).contiguous().unsqueeze(-1)
        columns = F.unfold(image, (self.size, 1), padding=(self.size // 2, 0))
        windows = columns.transpose(1, 2).reshape(-1, wide // self.heads, self.size)
        return (windows @ kernels[..., None]).view(b, t, wide)


class Attention(nn.Module):
    """Multi-head attention, to itself or across to a memory; `kernel` is eager, or the fused one to call."""

    def __init__(self, spec: Any, seq: int, kernel: str, device: Device, number: int, *, crosses: bool = False) -> None:
        super().__init__()
        near = spec.window is not None and falls_on(spec.window.pattern, number)
        same = spec.window is not None and spec.window.global_shared_values and not near
        spec = spec if near or crosses else spec.of_all_keys
        self.spec, self.kernel = spec, kernel
        self.turns = not crosses and spec.positions == "rotary" and falls_on(spec.value("rotary.pattern"), number)
        windowed = spec.window is not None and falls_on(spec.window.pattern, number)
        self.masks = not crosses and (spec.causal or windowed)
        self.fuses = spec.fused_qkv and not crosses
        self.size = spec.head_size or spec.width // spec.heads
        self.value_size = spec.value("latent.value_head_size") or self.size
        self.kv_heads = spec.kv_heads or spec.heads
        self.rotated = spec.value("rotary.size") or self.size
        widths = [spec.heads * self.size, self.kv_heads * self.size, self.kv_heads * self.size]
        self.widths = widths
        if spec.latent is not None:
            self.latent = Latent(spec, self.size, self.value_size, device)
        elif self.fuses:
            self.qkv = nn.Linear(spec.width, sum(widths), bias=spec.qkv_bias)
        else:
            biases = [spec.qkv_bias, spec.qkv_bias and spec.key_bias, spec.qkv_bias]
            linears = (nn.Linear(spec.width, n, bias=bias) for n, bias in zip(widths, biases, strict=True))
            self.query, self.key, self.value = linears
            if same:
                del self.value
                self.value = None
        if spec.disentangled is not None and not spec.disentangled.shared:
            part = spec.disentangled
            self.distance_key = nn.Linear(spec.width, widths[0], bias=spec.key_bias) if part.to_position else None
            self.distance_query = nn.Linear(spec.width, widths[0]) if part.to_content else None
        if spec.attention_gate:
            self.query = nn.Linear(spec.width, 2 * widths[0], bias=spec.qkv_bias)
        self.span = Span(spec, widths[0]) if spec.span_convolution and not crosses else None
        both = 1 if self.span is None else 2
        self.output = nn.Linear(both * spec.heads * self.value_size, spec.width, bias=spec.attention_bias)
        if spec.query_key_norm:
            whole = spec.query_key_norm == "width"
            features = widths[:2] if whole else [self.size, self.size]
            self.norms = nn.ModuleList(norm_over(spec, n, device) for n in features)
        if spec.query_key_norm == "unit":
            self.norms = nn.ModuleList(
                RMSNorm(self.size, device, affine=False) if self.turns else nn.Identity() for _ in range(2)
            )
        self.value_norm = RMSNorm(self.size, device, affine=False) if spec.value_norm else nn.Identity()
        self.inner_norm = inner_norm(spec, both * spec.heads * self.value_size, device)
        self.queries: Tensor | None = None
        self.kind, self.lends, self.borrows = lending(spec, number) if not crosses else (None, False, False)
        self.lent: dict[Any, tuple[Tensor, Tensor]] = {}
        if spec.query_key_norm == "heads":
            heads = (spec.heads, self.kv_heads)
            self.norms = nn.ModuleList(HeadNorms(n, self.size, spec.norm_affine, False) for n in heads)
        if self.borrows:
            del self.key, self.value
            if spec.query_key_norm:
                self.norms = self.norms[:1]
        own = spec.by_distance and not spec.relative_shared and not crosses
        self.relative = Relative(spec, seq) if own else None
        self.sink = Sink(spec.heads) if spec.sinks else None
        self.dropout = Dropout(spec.attention_dropout, device)
        self.distances_dropout = Dropout(spec.residual_dropout, device)
        self.register_buffer("mask", torch.zeros(seq, seq, dtype=torch.bool))
        self.register_buffer("alibi", torch.zeros(spec.heads, 1, seq))
        self.register_buffer("cos", torch.zeros(seq, self.rotated))
        self.register_buffer("sin", torch.zeros(seq, self.rotated))

    def forward(self, x: Tensor, bias: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
        b, t, _ = x.shape
        if self.spec.latent is not None:
            q, k, v = self.latent(x, (self.cos, self.sin) if self.turns else None)
        else:
            q, k, v = self.heads_of(x, x if memory is None else memory)
        bias = bias if self.relative is None else self.relative()
        mixed = self.composed(q, k, v, bias) if self.kernel == "eager" else self.fused(q, k, v, bias)
        mixed = mixed.transpose(1, 2).reshape(b, t, -1)
        if self.spec.attention_gate:
            mixed = mixed * torch.sigmoid(self.gate)
            self.gate = None  # autograd holds what it needs
        if self.span is not None:
            spans, self.queries = self.span(x, self.queries), None
            mixed = torch.cat([mixed, spans], -1)
        return self.output(self.inner_norm(mixed))

    def heads_of(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b = len(x)
        if self.borrows:
            return self.query_of(x), *self.lent[self.kind]
        if self.fuses:
            parts = list(self.clip(self.qkv(x)).split(self.widths, -1))
        else:
            query, key = self.clip(self.query(x)), self.clip(self.key(source))  # backward comes to the key's first
            parts = [query, key, key if self.value is None else self.clip(self.value(source))]
        self.queries = parts[0] if self.span is not None else None
        if self.spec.attention_gate:
            parts[0], gate = parts[0].view(*x.shape[:2], self.spec.heads, -1).chunk(2, -1)
            self.gate = gate.reshape(*x.shape[:2], -1)
        if self.spec.query_key_norm == "width":
            parts[:2] = [norm(part) for norm, part in zip(self.norms, parts[:2], strict=True)]
        heads = (self.spec.heads, self.kv_heads, self.kv_heads)
        parts = [part.view(b, -1, n, self.size) for part, n in zip(parts, heads, strict=True)]
        if self.spec.query_key_norm in ("head", "heads", "unit"):
            parts[:2] = [norm(part) for norm, part in zip(self.norms, parts[:2], strict=True)]
        parts[2] = self.value_norm(parts[2])
        q, k, v = (part.transpose(1, 2) for part in parts)
        if self.turns:
            q, k = rotate(q, self.cos, self.sin), rotate(k, self.cos, self.sin)
        if self.lends:
            self.lent[self.kind] = k, v
        return q, k, v

    def query_of(self, x: Tensor) -> Tensor:
        """Where keys and values are those of another block."""
        q = self.clip(self.query(x))
        if self.spec.attention_gate:
            q, gate = q.view(*x.shape[:2], self.spec.heads, -1).chunk(2, -1)
            self.gate = gate.reshape(*x.shape[:2], -1)
        if self.spec.query_key_norm == "width":
            q = self.norms[0](q)
        q = q.view(*x.shape[:2], self.spec.heads, self.size)
        q = self.norms[0](q) if self.spec.query_key_norm in ("head", "heads", "unit") else q
        q = q.transpose(1, 2)
        return rotate(q, self.cos, self.sin) if self.turns else q

    def clip(self, x: Tensor) -> Tensor:
        bound = self.spec.qkv_clip
        return x if bound is None else x.clamp(-bound, bound)

    def repeat(self, x: Tensor) -> Tensor:
        if self.kv_heads == self.spec.heads:
            return x
        b, h, t, d = x.shape
        times = self.spec.heads // self.kv_heads
        return x[:, :, None].expand(b, h, times, t, d).reshape(b, h * times, t, d)

    def disentangled(self, q: Tensor, k: Tensor, distances: Any) -> Tensor:
        """What scores of distances add to those of tokens."""
        part, size = self.spec.disentangled, 2 * self.spec.disentangled.size
        table, of_pairs = self.distances_dropout(distances[0])[None], distances[1]
        if part.trimmed:
            reach = min(q.shape[2], part.size)
            table, size = table[:, part.size - reach : part.size + reach], 2 * reach
        keyed, queried = (self.key, self.query) if part.shared else (self.distance_key, self.distance_query)
        scale = 1 / math.sqrt(self.size) if self.spec.score_scale is None else self.spec.score_scale

        def given(x: Tensor, of: nn.Module) -> Tensor:
            made = of(table).view(1, size, self.spec.heads, -1).transpose(1, 2).repeat(len(x), 1, 1, 1)
            index = torch.clamp(of_pairs + size // 2, 0, size - 1).expand(*x.shape[:3], -1)
            return torch.gather(x @ made.transpose(-2, -1), -1, index)

        added = scaled(given(q, keyed), scale) if part.to_position else None
        if not part.to_content:
            return added  # type: ignore[return-value]
        own = scaled(given(k, queried).transpose(-2, -1), scale)
        return own if added is None else added + own

    def composed(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        content = k
        k, v = self.repeat(k), self.repeat(v)
        scores = q @ k.transpose(-2, -1)
        scale = self.spec.score_scale
        scores = scores / math.sqrt(self.size) if scale is None else scaled(scores, scale)
        scores = capped(scores, self.spec.score_cap)
        if self.spec.positions == "alibi":
            scores = scores + self.alibi
        if self.spec.disentangled is not None:
            scores = scores + self.disentangled(q, content, bias)
        elif bias is not None:
            scores = scores + bias
        if self.spec.indexer is not None:
            mask, self.latent.mask = self.latent.mask, None
            scores = scores.masked_fill(mask, float("-inf"))
        elif self.masks:
            scores = scores.masked_fill(self.mask, float("-inf"))
        if self.sink is None:
            return self.dropout(torch.softmax(scores, -1)) @ v
        return self.dropout(torch.softmax(self.sink(scores), -1)[..., :-1]) @ v

    def fused(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        p, causal = self.spec.attention_dropout if self.training else 0.0, self.masks
        if self.kernel == "flash":
            return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, p, causal)[0]
        if self.kernel == "efficient":
            bias = None if bias is None else bias.expand(len(q), *bias.shape)
            return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, p, causal)[0]
        if p == 0 and self.value_size == self.size:
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)[0]
        return F.scaled_dot_product_attention(q, self.repeat(k), self.repeat(v), None, p, causal)


def sublayers(spec: Any, number: int) -> tuple[bool, bool, bool]:
    """Whether a block attends, mixes tokens by something else, and has an MLP."""
    other = spec.mixer if hasattr(spec, "mixer") else None
    mixes = other is not None and falls_on(other.pattern, number)
    attends = falls_on(spec.attention_pattern, number) if spec.attention_pattern else not mixes
    return attends, mixes, falls_on(spec.mlp_pattern, number)


def lending(spec: Any, number: int) -> tuple[Any, bool, bool]:
    """What kind of keys a block has; whether a block after it has them too; whether they are those of one before it."""
    turned = spec.value("rotary.pattern") if spec.positions == "rotary" else ()
    windowed = () if spec.window is None else spec.window.pattern
    kinds = [(falls_on(windowed, n), falls_on(turned, n)) for n in range(spec.layers)]
    own = spec.layers - (spec.shared_kv_layers or 0)
    last = max((n for n in range(own) if kinds[n] == kinds[number]), default=-1)
    return kinds[number], number == last and kinds[number] in kinds[own:], number >= own


def hidden_at(spec: Any, number: int) -> int:
    """Hidden features of a block's MLP."""
    widths = spec.mlp_widths or [spec.mlp_width or 4 * spec.width]
    return widths[number % len(widths)]


def falls_on(pattern: tuple[bool, ...] | None, number: int) -> bool:
    """Whether a block is one of those of a pattern, which is all where there is none."""
    return not pattern or pattern[number % len(pattern)]


class Adapted(nn.Module):
    """y = W x + s·B (A x)."""

    def __init__(self, linear: nn.Linear, rank: int, dropout: nn.Module | None) -> None:
        super().__init__()
        self.linear, self.dropout = linear, dropout
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        inner = self.dropout(x) if self.dropout else x
        return y + self.up(self.down(inner)) * 2.0


class ExpertLinear(nn.Module):
    """A linear layer for each expert, rows being sorted by expert; how many each has changes no cost."""

    def __init__(self, experts: int, n_in: int, features: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, features, n_in))
        self.bias = nn.Parameter(torch.empty(experts, features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        parts = x.tensor_split(len(self.weight))
        of = [None] * len(parts) if self.bias is None else self.bias
        return torch.cat([F.linear(part, w, b) for part, w, b in zip(parts, self.weight, of, strict=True)])


class Choice(nn.Module):
    """The largest scores within the best groups, by scores to which a constant of each expert may be added."""

    def __init__(self, experts: Any) -> None:
        super().__init__()
        self.groups, self.saved, self.chosen = experts.groups or 1, experts.chosen_groups or 1, experts.per_token
        self.best = 2 if experts.choice_bias else 1
        bias = torch.zeros(experts.count) if experts.choice_bias else None
        if experts.choice_stored:
            self.bias = nn.Parameter(bias, requires_grad=False)
        else:
            self.register_buffer("bias", bias)

    def forward(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            judged = scores if self.bias is None else scores + self.bias
            apart = judged.unflatten(-1, (self.groups, -1))
            best = apart.topk(self.best, -1)[0].sum(-1).topk(self.saved, -1)[1]
            closed = torch.ones_like(apart[..., 0], dtype=torch.bool).scatter(-1, best, False)
            judged = apart.masked_fill(closed[..., None], float("-inf")).flatten(-2)
            chosen = judged.topk(self.chosen, -1)[1]
        return scores.gather(-1, chosen), chosen


class Experts(nn.Module):
    """A router, the experts that it chooses for each token, and one that all tokens share."""

    def __init__(self, spec: Any, hidden: int, device: Device) -> None:
        super().__init__()
        self.spec, self.experts = spec, spec.experts
        self.act = activated(spec.activation)
        experts = spec.experts
        n, d, f = experts.count, spec.width, experts.width or hidden
        bias = spec.mlp_bias if experts.bias is None else experts.bias
        self.router = nn.Linear(d, n, bias=experts.router_bias)
        grouped = experts.groups or experts.choice_bias
        self.choice = Choice(experts) if grouped else lambda scores: scores.topk(experts.per_token, -1)
        self.gate = ExpertLinear(n, d, f, bias) if spec.mlp != "plain" else None
        self.up, self.down = ExpertLinear(n, d, f, bias), ExpertLinear(n, f, d, bias)
        self.dropout = Dropout(experts.dropout, device)
        self.shared = FeedForward(spec, experts.shared_width, device) if experts.shared_width else None
        self.shared_gate = nn.Linear(d, 1, bias=False) if experts.shared_gate else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.applied(x, *self.routed(self.router(x)))
        if self.shared is None:
            return y
        shared = self.shared(x)
        return y + (shared if self.shared_gate is None else torch.sigmoid(self.shared_gate(x)) * shared)

    def applied(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """What the chosen experts make of each token, weighed."""
        b, t, d = x.shape
        k = self.experts.per_token
        tokens, places = self.sent(chosen.flatten(), b * t)
        out = self.down(self.dropout(hidden_of(self, x.view(-1, d)[tokens])))[places]
        return (out.view(-1, k, d) * weights.view(-1, k, 1)).sum(1).view(b, t, d)

    def sent(self, chosen: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """Which token each row of the experts is, and the row of each choice."""
        order = chosen.argsort()
        if self.experts.capacity_factor is None:
            return order // self.experts.per_token, order.argsort()
        return order.new_zeros(self.fitting(tokens)), torch.zeros_like(order)  # any indices cost the same

    def fitting(self, tokens: int) -> int:
        """Rows that all experts have room for."""
        share = self.experts.capacity_factor * self.experts.per_token * tokens / self.experts.count
        return math.ceil(share) * self.experts.count

    def routed(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of the chosen experts."""
        if self.experts.weights == "all":
            scores = torch.softmax(scores, -1)
        if self.experts.weights == "sigmoid":
            scores = torch.sigmoid(scores)
        weights, chosen = self.choice(scores)
        if self.experts.weights == "chosen":
            weights = torch.softmax(weights, -1)
        if self.experts.shares:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return scaled(weights, self.experts.scale), chosen


class Beside(nn.Module):
    """Experts beside an MLP, with norms and scales of their own."""

    def __init__(self, spec: Any, hidden: int, device: Device) -> None:
        super().__init__()
        self.mlp, self.experts = FeedForward(spec, hidden, device), Experts(spec, hidden, device)
        self.norms = nn.ModuleList(norm(spec, device) for _ in range(3))
        self.router_norm, self.scale = RMSNorm(spec.width, device, affine=False), LayerScale(spec.width)
        self.scales = nn.Parameter(torch.empty(spec.experts.count))

    def forward(self, x: Tensor, normed: Tensor) -> Tensor:
        own, before, after = self.norms
        y = own(self.mlp(normed))
        judged = self.scale(self.router_norm(x).view(-1, x.shape[-1])) * x.shape[-1] ** -0.5
        weights, chosen = self.experts.routed(self.experts.router(judged))
        return y + after(self.experts.applied(before(x), weights * self.scales[chosen], chosen))


class FeedForward(nn.Module):
    sparse = False

    def __init__(self, spec: Any, hidden: int, device: Device) -> None:
        super().__init__()
        self.spec, self.dropout = spec, Dropout(spec.mlp_dropout, device)
        self.act = activated(spec.activation)
        self.gate = nn.Linear(spec.width, hidden, bias=spec.mlp_bias) if spec.mlp != "plain" else None
        self.up = nn.Linear(spec.width, hidden, bias=spec.mlp_bias)
        self.down = nn.Linear(
            hidden, spec.width, spec.mlp_bias if spec.mlp_output_bias is None else spec.mlp_output_bias
        )
        self.inner_norm = inner_norm(spec, hidden, device)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.dropout(self.inner_norm(hidden_of(self, x))))


def hidden_of(mlp: Any, x: Tensor) -> Tensor:
    """The hidden features of an MLP or of experts."""
    act = mlp.act
    if mlp.spec.mlp == "plain":
        return act(mlp.up(x))
    if mlp.spec.mlp == "gated":
        if getattr(mlp, "sparse", False):
            return act(import_module(".streams", __package__).largest(mlp.gate(x))) * mlp.up(x)
        return act(mlp.gate(x)) * mlp.up(x)  # no name holds the gate while the rest is computed
    gate, up = mlp.gate(x).clamp(max=7.0), mlp.up(x).clamp(-7.0, 7.0)
    return (up + 1) * (gate * act(gate * 1.702))


class LayerScale(nn.Module):
    """A trained factor of each feature."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Block(nn.Module):
    """One block; of a decoder that attends to a memory too if it `crosses`, with norms first."""

    def __init__(self, spec: Any, seq: int, kernel: str, device: Device, number: int, *, crosses: bool = False) -> None:
        super().__init__()
        self.spec = spec
        hidden = hidden_at(spec, number)
        self.attends, self.mixes, self.feeds = sublayers(spec, number)
        self.attention = Attention(spec, seq, kernel, device, number) if self.attends else None
        self.other = import_module(".mixers", __package__).mixer(spec, device) if self.mixes else None
        first, second = self.attends or self.mixes, self.feeds
        self.factor = LayerScale(spec.width) if spec.layer_scale and first else nn.Identity()
        self.norm1 = norm(spec, device) if first and (number or spec.first_norm) else nn.Identity()
        self.crossing = Attention(spec, seq, kernel, device, number, crosses=True) if crosses else None
        self.crossing_norm = norm(spec, device) if crosses else None
        self.norm2 = norm(spec, device) if second and not spec.shared_norm else None
        both = spec.norm_placement == "both"
        after = (norm(spec, device) if there else nn.Identity() for there in (first, second))
        self.outputs = nn.ModuleList(after) if both else [self.norm1, self.norm2]
        self.crossing_output = norm(spec, device) if crosses and spec.norm_placement == "both" else None
        routed = spec.experts is not None and falls_on(spec.experts.pattern, number)
        routed = routed and number >= (spec.value("experts.dense_layers") or 0)
        self.beside = routed and spec.experts.beside and self.feeds
        kind = Beside if self.beside else Experts if routed else FeedForward
        self.mlp = kind(spec, hidden, device) if self.feeds else None
        self.token = Token(spec, device) if spec.layer_inputs is not None else None
        self.register_buffer("block_scale", torch.ones(1) if spec.block_scale else None)
        self.dropout = Dropout(spec.residual_dropout, device)
        self.mlp_factor = LayerScale(spec.width) if spec.layer_scale and second else nn.Identity()
        own = spec.residual_dropout if spec.mixed_dropout is None else spec.mixed_dropout
        self.mixed_dropout = Dropout(own, device)

    def forward(
        self, x: Tensor, bias: Tensor | None = None, memory: Tensor | None = None, own: Tensor | None = None
    ) -> Tensor:
        x = self.through(x, bias, memory)
        x = x if self.token is None or own is None else x + self.token(x, own)
        return x if self.block_scale is None else x * self.block_scale

    def through(self, x: Tensor, bias: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
        def drop(x: Tensor) -> Tensor:
            return self.mlp_factor(scaled(self.dropout(x), self.spec.residual_scale))

        def drop_mixed(x: Tensor) -> Tensor:
            return self.factor(scaled(self.mixed_dropout(x), self.spec.residual_scale))

        norm1, norm2 = self.norm1, self.norm2
        if self.spec.parallel:
            normed = None if norm2 else norm1(x)  # a name would hold what is not used again
            mixed = drop_mixed(self.mixed(norm1(x) if normed is None else normed, bias))
            fed = drop(self.mlp(norm2(x) if normed is None else normed))
            return x + mixed + fed
        if self.spec.norm_placement == "pre":
            x = x + drop_mixed(self.mixed(norm1(x), bias)) if self.attends or self.mixes else x
            if self.crossing is not None and self.crossing_norm is not None:
                x = x + drop(self.crossing(self.crossing_norm(x), memory=memory))
            return x + drop(self.mlp(norm2(x))) if self.feeds else x
        if self.spec.norm_placement in ("output", "both"):
            before = self.spec.norm_placement == "both"
            if self.attends or self.mixes:
                x = x + drop_mixed(self.outputs[0](self.mixed(norm1(x) if before else x, bias)))
            if self.crossing is not None and self.crossing_norm is not None and self.crossing_output is not None:
                x = x + drop(self.crossing_output(self.crossing(self.crossing_norm(x), memory=memory)))
            if self.beside:
                return x + drop(self.outputs[1](self.mlp(x, norm2(x))))
            return x + drop(self.outputs[1](self.mlp(norm2(x) if before else x))) if self.feeds else x
        x = norm1(x + drop_mixed(self.mixed(x, bias))) if self.attends or self.mixes else x
        if self.crossing is not None and self.crossing_norm is not None:
            x = self.crossing_norm(x + drop(self.crossing(x, memory=memory)))
        return norm2(x + drop(self.mlp(x))) if self.feeds else x

    def mixed(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.other is None:
            return self.attention(x, bias)
        return self.other(x) if self.attention is None else self.other(x) + self.attention(x, bias)


class Token(nn.Module):
    """What a block adds of its own vector of a token."""

    def __init__(self, spec: Any, device: Device) -> None:
        super().__init__()
        width = spec.layer_inputs.width
        self.gate, self.project = nn.Linear(spec.width, width, bias=False), nn.Linear(width, spec.width, bias=False)
        self.act, self.norm = activated(spec.activation), norm(spec, device)

    def forward(self, x: Tensor, own: Tensor) -> Tensor:
        return self.norm(self.project(self.act(self.gate(x)) * own))


class Vectors(nn.Module):
    """A vector of each token for each block."""

    def __init__(self, spec: Any, device: Device) -> None:
        super().__init__()
        self.layers, self.width = spec.layers, spec.layer_inputs.width
        self.table = nn.Embedding(spec.layer_inputs.vocab or spec.vocab, spec.layers * self.width)
        self.inward = nn.Linear(spec.width, spec.layers * self.width, bias=False)
        self.norm = norm_over(spec, self.width, device)

    def forward(self, x: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        apart = (*x.shape[:2], self.layers, self.width)
        table = (self.table(tokens) * math.sqrt(self.width)).view(apart)
        made = self.norm((self.inward(x) * x.shape[-1] ** -0.5).view(apart))
        return ((made + table) * 0.5**0.5).unbind(2)


class Relative(nn.Module):
    """A bias for each head and distance, (h, T, T)."""

    def __init__(self, spec: Any, seq: int) -> None:
        super().__init__()
        self.biases = nn.Embedding(spec.relative_buckets or 32, spec.heads)
        self.register_buffer("relative_buckets", torch.zeros(seq, seq, dtype=torch.int64))

    def forward(self) -> Tensor:
        return self.biases(self.relative_buckets).permute(2, 0, 1)


class Distances(nn.Module):
    """Embeddings of distances, normed, and which one each pair of tokens has."""

    def __init__(self, spec: Any, seq: int, device: Device) -> None:
        super().__init__()
        self.seq = seq
        self.table = nn.Parameter(torch.empty(2 * spec.disentangled.size, spec.width))
        self.norm = norm(spec, device) if spec.disentangled.norm else nn.Identity()

    def forward(self) -> Any:
        return self.norm(self.table), torch.zeros(1, 1, self.seq, self.seq, dtype=torch.int64, device="meta")


def features_of(spec: Any) -> int:
    """Of what is made of each token."""
    inner = spec.width if spec.embedding_factored else spec.embedding_width or spec.width
    return spec.vocab if spec.head else inner


def summary_of(spec: Any, batch: int, seq: int) -> list[tuple[int, int]]:
    """Rows and scores of each result beside the tokens'."""
    inner = spec.width if spec.embedding_factored else spec.embedding_width or spec.width
    if spec.classes is None:
        return [(batch, spec.value("pooler.width") or inner)]
    count, told_by = spec.classes.count, spec.classes.told_by
    if told_by == "spans":
        return [(batch, seq)] * count
    return [(batch * seq if told_by == "each" else batch, count)]


def share(one: nn.Module, other: nn.Module) -> None:
    """Give a module the weights of another."""
    for name, weight in list(one.named_parameters(remove_duplicate=False)):
        parent, _, own = name.rpartition(".")
        setattr(other.get_submodule(parent), own, weight)


class Body(nn.Module):
    """Blocks, and the norm and dropout after them."""

    def __init__(self, spec: Any, seq: int, kernel: str, device: Device, *, crosses: bool = False) -> None:
        super().__init__()
        self.relative = Relative(spec, seq) if spec.by_distance and spec.relative_shared else None
        self.distances = None if spec.disentangled is None else Distances(spec, seq, device)
        self.streams = None
        self.vectors = None if spec.layer_inputs is None else Vectors(spec, device)
        if spec.altup is None:
            made = [Block(spec, seq, kernel, device, n, crosses=crosses) for n in range(spec.layers)]
        else:
            module = import_module(".streams", __package__)
            self.streams = module.Streams(spec, device)
            made = [module.Block(spec, seq, kernel, device, n) for n in range(spec.layers)]
        self.lent: dict[Any, tuple[Tensor, Tensor]] = {}
        for block in made:
            if block.attention is not None:
                block.attention.lent = self.lent
        if spec.shared_blocks:
            for block in made[1:]:
                share(made[0], block)
        self.blocks = nn.ModuleList(made)
        last = spec.norm_placement != "post" if spec.final_norm is None else spec.final_norm
        self.final_norm = norm(spec, device) if last else None
        self.final_dropout = Dropout(spec.final_dropout, device)

    def through(self, x: Tensor, memory: Tensor | None = None, tokens: Tensor | None = None) -> Tensor:
        bias = None if self.relative is None else self.relative()
        bias = bias if self.distances is None else self.distances()
        if self.streams is not None:
            x = self.through_streams(x, tokens, bias)
        else:
            given = [None] * len(self.blocks) if self.vectors is None else self.vectors(x, tokens)
            for block, own in zip(self.blocks, given, strict=True):
                x = block(x, bias, memory, own)
        self.lent.clear()
        return self.final_dropout(x if self.final_norm is None else self.final_norm(x))

    def through_streams(self, x: Tensor, tokens: Tensor | None, bias: Any) -> Tensor:
        given = self.streams.of_layers(x, tokens)
        x = self.streams.spread(x)
        for block, own in zip(self.blocks, given, strict=True):
            x = block(x, own, bias)
        return self.streams.merged(x)


TABLES = ("trained", "stored", "constant")
"""What a table of positions may be."""


class Constants(nn.Module):
    """A table that is no weight."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(rows, width))

    def forward(self, places: Tensor) -> Tensor:
        return self.table[: len(places)]


def positions(spec: Any, rows: int, width: int) -> nn.Module:
    """A table of positions: trained, among the weights and not trained, or no weights."""
    if spec.position_table == "constant":
        return Constants(rows, width)
    return nn.Embedding(rows, width, _freeze=spec.position_table == "stored")


class Transformer(Body):
    def __init__(self, spec: Any, seq: int, kernel: str, device: Device) -> None:
        super().__init__(spec, seq, kernel, device)
        self.spec = spec
        outer = spec.embedding_width or spec.width
        self.tokens = nn.Embedding(spec.vocab, outer)
        rows = spec.position_rows or spec.context
        factored = spec.embedding_factored
        inner = outer if factored else spec.width
        self.positions = positions(spec, rows, inner) if spec.positions == "learned" else None
        self.inward = nn.Linear(outer, spec.width, bias=factored) if spec.embedding_width else None
        transformed = spec.head is not None and spec.head.transform is not None
        outward = spec.embedding_width and not (factored and (transformed or spec.head is None))
        self.outward = nn.Linear(spec.width, outer, bias=False) if outward else None
        self.segments = nn.Embedding(spec.segments, inner) if spec.segments else None
        self.boxes = Boxes(spec.boxes, inner) if spec.boxes else None
        self.spare = Unread(spec.spare_weights) if spec.spare_weights else nn.Identity()
        self.contact = Unread(spec.layers * spec.heads + 1) if spec.contact_head else nn.Identity()
        self.embedding_norm = norm_over(spec, inner, device) if spec.embedding_norm else None
        self.dropout = Dropout(spec.embedding_dropout, device)
        self.head = Head(spec, outer, self.tokens, device) if spec.head else None
        self.summary = Summary(spec, spec.width if factored else outer, device) if spec.pooler or spec.classes else None

    def forward(self, tokens: Tensor, *others: Tensor) -> Any:
        """others: the segments that they are in and their boxes, as far as there are."""
        return self.end(self.through(self.start(tokens, *others), tokens=tokens))

    def start(self, tokens: Tensor, *others: Tensor) -> Tensor:
        segments, boxes = others[:1], others[-1:]
        x = scaled(self.tokens(tokens), self.spec.embedding_scale)
        if self.spec.token_dropout:
            masked = tokens == 0
            left = 1 - masked.sum(-1).float() / tokens.shape[1]
            x = x.masked_fill(masked[..., None], 0.0) / left[:, None, None]
        x = self.contact(self.spare(x))
        if self.inward is not None and not self.spec.embedding_factored:
            x = self.inward(x)
        if self.segments is not None:
            x = x + self.segments(*segments)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        if self.boxes is not None:
            x = self.boxes(x, *boxes)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        x = self.dropout(x)
        return x if self.inward is None or not self.spec.embedding_factored else self.inward(x)

    def end(self, x: Tensor) -> Any:
        if self.outward is not None and not self.spec.embedding_factored:
            x = self.outward(x)
        spare = self.spec.pooler is not None and self.spec.pooler.spare
        if spare and self.summary is not None:
            self.summary.pooled(x)
        projected = x if self.outward is None or not self.spec.embedding_factored else self.outward(x)
        y = x if self.head is None else self.head(projected)
        rows = y.view(-1, y.shape[-1])
        if self.summary is None or (spare and self.spec.classes is None):
            return rows
        told = self.summary(x)
        if self.head is None:
            return told
        return (rows, *told) if isinstance(told, tuple) else (rows, told)


class Head(nn.Module):
    """Logits over the vocabulary, by the table of tokens if the two are tied."""

    def __init__(self, spec: Any, width: int, table: nn.Embedding, device: Device) -> None:
        super().__init__()
        self.head = spec.head
        self.linear = nn.Linear(width, spec.vocab, bias=spec.head.bias)
        if spec.tied:
            self.linear.weight = table.weight
        self.transform = Transform(spec, width, device) if spec.head.transform else None
        self.spare = Unread(spec.vocab) if spec.head.spare_bias else None

    def forward(self, x: Tensor) -> Tensor:
        x = scaled(x, self.head.input_scale)
        y = self.linear(x if self.transform is None else self.transform(x))
        y = y if self.spare is None else self.spare(y)
        return capped(scaled(y, self.head.logit_scale), self.head.logit_cap)


class Unread(nn.Module):
    """A parameter that forward leaves alone."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features))

    def forward(self, x: Tensor) -> Tensor:
        return x


class Boxes(nn.Module):
    """Embeddings of the edges, the height and the width of tokens' boxes."""

    def __init__(self, entries: int, width: int) -> None:
        super().__init__()
        self.x, self.y, self.height, self.width = (nn.Embedding(entries, width) for _ in range(4))

    def forward(self, x: Tensor, boxes: Tensor) -> Tensor:
        left, upper, right, lower = boxes.unbind(-1)
        x = x + self.x(left) + self.y(upper) + self.x(right) + self.y(lower)
        return x + self.height(lower - upper) + self.width(right - left)


class Prepended(nn.Module):
    """Trained tokens before the others."""

    def __init__(self, tokens: int, features: int) -> None:
        super().__init__()
        for n in range(tokens):
            self.register_parameter(f"token{n}", nn.Parameter(torch.empty(1, 1, features)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([*(token.expand(len(x), -1, -1) for token in self.parameters()), x], 1)


class Placed(nn.Module):
    """Trained positions, added."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, *shape))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


class Transform(nn.Module):
    """What a masked-language-model head does before it."""

    def __init__(self, spec: Any, width: int, device: Device) -> None:
        super().__init__()
        inner = spec.width if spec.embedding_factored else width
        self.linear, self.norm = nn.Linear(inner, width, spec.head.transform_bias), norm_over(spec, width, device)
        self.act = activated(spec.head.transform)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.act(self.linear(x)))


class Summary(nn.Module):
    """The first token, pooled and sorted into classes."""

    def __init__(self, spec: Any, width: int, device: Device) -> None:
        super().__init__()
        features = spec.value("pooler.width") or width
        self.act = activated(spec.pooler.activation) if spec.pooler else None
        self.pooler = nn.Linear(width, features, bias=spec.pooler.bias) if spec.pooler else None
        self.pooler_norm = norm_over(spec, features, device) if spec.pooler and spec.pooler.norm else None
        self.classes = nn.Linear(features, spec.classes.count, bias=spec.classes.bias) if spec.classes else None
        transform = spec.classes.transform if spec.classes else None
        self.inner = nn.Linear(features, features, bias=spec.classes.transform_bias) if transform else None
        self.inner_norm = norm_over(spec, features, device) if transform and spec.classes.transform_norm else None
        self.inner_act = activated(transform) if transform else None
        self.told_by = spec.classes.told_by if spec.classes else "first"
        self.form = spec.pooler
        self.before, self.between = (
            Dropout(spec.value(f"{part}.dropout") or 0.0, device) for part in ("pooler", "classes")
        )

    def forward(self, x: Tensor) -> Any:
        if self.classes is not None and self.told_by != "first":
            x = x if self.inner is None else self.inner_act(self.inner(x))
            x = x if self.inner_norm is None else self.inner_norm(x)
            scores = self.classes(self.between(x))
            if self.told_by == "spans":
                return scores.unbind(-1)
            if self.told_by == "mean":
                return scores.mean(1)
            return scores[:, -1] if self.told_by == "last" else scores.flatten(0, 1)
        x = x[:, 0] if self.form is None or self.form.spare else self.pooled(x)
        return x if self.classes is None else self.classes(self.between(x))

    def pooled(self, x: Tensor) -> Tensor:
        one = x[:, 0] if self.form.over == "first" else x.mean(1)
        y = self.act(self.pooler(self.before(one)))
        return y if self.pooler_norm is None else self.pooler_norm(y)
