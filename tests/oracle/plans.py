"""Modules of one's own, and how ``parallelize_module`` splits them by a plan of names, for `ranks`."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn.attention import SDPBackend, sdpa_kernel


class FeedForward(nn.Module):
    """Two layers, or three of which one gates."""

    def __init__(self, width: int, hidden: int, *, gated: bool = False, fused: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.gated, self.fused = gated, fused
        self.up = nn.Linear(width, 2 * hidden if fused else hidden, bias)
        self.gate = nn.Linear(width, hidden, bias) if gated and not fused else None
        self.down = nn.Linear(hidden, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            gate, up = self.up(x).chunk(2, dim=-1)
            return self.down(F.silu(gate) * up)
        y = self.up(x)
        return self.down(F.silu(self.gate(x)) * y if self.gate is not None else F.gelu(y))


class Attention(nn.Module):
    """Multi-head attention whose code counts no heads: as many as there are features for."""

    def __init__(
        self, width: int, heads: int, kv_heads: int, size: int, *, kind: str = "sdpa", bias: bool = False
    ) -> None:
        super().__init__()
        self.size, self.shared, self.kind = size, heads // kv_heads, kind
        self.q_proj = nn.Linear(width, heads * size, bias)
        self.k_proj = nn.Linear(width, kv_heads * size, bias)
        self.v_proj = nn.Linear(width, kv_heads * size, bias)
        self.o_proj = nn.Linear(heads * size, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (
            part(x).view(b, t, -1, self.size).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.shared > 1:
            k, v = (y.repeat_interleave(self.shared, dim=1) for y in (k, v))
        if self.kind == "sdpa":
            with sdpa_kernel(SDPBackend.MATH):
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        elif self.kind == "merged":  # batch and heads in one axis
            q, k, v = (y.reshape(-1, t, self.size) for y in (q, k, v))
            scores = torch.bmm(q, k.transpose(1, 2)) * self.size**-0.5
            y = torch.bmm(scores.softmax(-1), v).view(b, -1, t, self.size)
        else:
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) if self.kind == "einsum" else q @ k.transpose(-1, -2)
            y = (scores / self.size**0.5).softmax(-1) @ v
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class Fused(nn.Module):
    """Query, key and value made at once."""

    def __init__(self, width: int, heads: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.qkv = nn.Linear(width, 3 * heads * size)
        self.o_proj = nn.Linear(heads * size, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, -1, self.size).permute(2, 0, 3, 1, 4).unbind(0)
        with sdpa_kernel(SDPBackend.MATH):
            y = F.scaled_dot_product_attention(q, k, v)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class Rms(nn.Module):
    """As the package ``transformers`` writes it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Block(nn.Module):
    """Attention and feed-forward, each on a norm, or on one both."""

    def __init__(self, width: int, attention: nn.Module, mlp: nn.Module, *, parallel: bool, rms: bool) -> None:
        super().__init__()
        norm = partial(Rms, width) if rms else partial(nn.LayerNorm, width)
        self.norm1, self.norm2 = norm(), None if parallel else norm()
        self.attention, self.mlp = attention, mlp

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        if self.norm2 is None:
            return x + self.attention(y) + self.mlp(y)
        x = x + self.attention(y)
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """Blocks between a table and a head."""

    def __init__(self, vocab: int, width: int, blocks: list[nn.Module], *, tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def module_of(question: Mapping[str, Any]) -> tuple[nn.Module, Tensor]:
    """A module with what it is called on. Its sizes: those of the question's ``module``."""
    sizes = dict(question["module"])
    kind, batch, seq = sizes.pop("kind"), question["batch"], question["seq"]
    width = sizes.pop("width")
    if kind == "mlp":
        layers = [FeedForward(width, **sizes["mlp"]) for _ in range(sizes["layers"])]
        return nn.Sequential(*layers), torch.zeros(batch, width)
    of_heads = {name: sizes["attention"][name] for name in ("heads", "size")}

    def block() -> nn.Module:
        fused = sizes["attention"].get("kind") == "fused"
        attention = Fused(width, **of_heads) if fused else Attention(width, **sizes["attention"])
        return Block(width, attention, FeedForward(width, **sizes["mlp"]), parallel=sizes["parallel"], rms=sizes["rms"])

    blocks = [block() for _ in range(sizes["layers"])]
    if kind == "encoder":
        return nn.Sequential(*blocks), torch.zeros(batch, seq, width)
    decoder = Decoder(sizes["vocab"], width, blocks, tied=sizes["tied"])
    return decoder, torch.zeros(batch, seq, dtype=torch.int64)


STYLES: dict[str, Any] = {
    "colwise": ColwiseParallel,
    "packed_colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "colwise_gather_output": partial(ColwiseParallel, output_layouts=Replicate()),
    "colwise_rep": partial(ColwiseParallel, output_layouts=Replicate()),
    "rowwise_split_input": partial(RowwiseParallel, input_layouts=Replicate()),
    "rowwise_rep": partial(RowwiseParallel, input_layouts=Replicate()),
    "embedding_rowwise": partial(RowwiseParallel, input_layouts=Replicate()),
    "embedding_colwise": partial(ColwiseParallel, output_layouts=Replicate()),
}


def _sum_gradients(mesh: DeviceMesh, weight: Tensor) -> None:
    dist.all_reduce(weight.grad, group=mesh.get_group())


def split_by_plan(module: nn.Module, mesh: DeviceMesh, plan: Mapping[str, str]) -> None:
    """Shard a module as a plan says."""
    of_names: dict[str, ParallelStyle] = {}
    for path, part in module.named_modules():
        for style in [style for name, style in plan.items() if fnmatchcase(path, name)]:
            if style in STYLES:
                of_names[path] = STYLES[style]()
            else:
                for weight in part.parameters():
                    weight.register_post_accumulate_grad_hook(partial(_sum_gradients, mesh))
    tied = isinstance(module, Decoder) and module.head.weight is module.embed.weight
    parallelize_module(module, mesh, of_names)
    if tied:
        module.head.weight = module.embed.weight
