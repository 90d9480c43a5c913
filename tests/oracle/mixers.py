"""What mixes tokens beside attention, written plainly in PyTorch around the scans of `transformers`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from . import models
from .vision import stub_operators

stub_operators()
pytest.importorskip("transformers")
from transformers.models.mamba.modeling_mamba import mamba_selective_scan  # noqa: E402
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan  # noqa: E402
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule  # noqa: E402


class Causal(nn.Module):
    """Each channel by itself over the last tokens, (batch, channels, T)."""

    def __init__(self, channels: int, size: int, bias: bool) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, size, padding=size - 1, groups=channels, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)[..., : x.shape[-1]]


class Mamba2(nn.Module):
    def __init__(self, spec: Any, device: models.Device) -> None:
        super().__init__()
        own = self.own = spec.state_space
        self.heads, self.groups, self.head_size = own.heads, own.grouped, own.head_features
        self.mixed = own.width + 2 * self.groups * own.state
        self.inward = nn.Linear(spec.width, own.width + self.mixed + self.heads, bias=own.bias)
        self.conv, self.act = (
            Causal(self.mixed, own.convolution, own.convolution_bias),
            models.activated(own.activation),
        )
        self.decay, self.step, self.skip = (nn.Parameter(torch.empty(self.heads)) for _ in range(3))
        self.norm = models.RMSNorm(own.width // self.groups, device, affine=False)
        self.scale = nn.Parameter(torch.empty(own.width)) if own.placed != "none" else None
        self.outward = nn.Linear(own.width, spec.width, own.bias if own.output_bias is None else own.output_bias)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        rate = -torch.exp(self.decay)
        gate, mixed, step = self.inward(x).split([self.own.width, self.mixed, self.heads], -1)
        mixed = self.act(self.conv(mixed.transpose(1, 2))).transpose(1, 2)
        width = self.groups * self.own.state
        values, writes, reads = mixed.split([self.own.width, width, width], -1)
        y = mamba2_chunk_scan(
            values.view(b, t, self.heads, self.head_size),
            step,
            rate,
            *(part.view(b, t, self.groups, self.own.state) for part in (writes, reads)),
            chunk_size=self.own.chunked,
            D=self.skip,
            dt_bias=self.step,
            dt_softplus=True,
        ).reshape(b, t, -1)
        y = self.normed(y) if self.own.placed == "before" else y
        y = y * F.silu(gate)
        return self.outward(self.normed(y) if self.own.placed == "after" else y)

    def normed(self, y: Tensor) -> Tensor:
        return self.norm(y.view(*y.shape[:2], self.groups, -1)).view(y.shape) * self.scale


class Mamba(nn.Module):
    def __init__(self, spec: Any, device: models.Device) -> None:
        super().__init__()
        own = self.own = spec.state_space
        self.parts = [own.ranked, own.state, own.state]
        self.inward = nn.Linear(spec.width, 2 * own.width, bias=own.bias)
        self.conv = Causal(own.width, own.convolution, own.convolution_bias)
        self.act = models.activated(own.activation)
        self.selection = nn.Linear(own.width, sum(self.parts), bias=False)
        normed, affine = own.placed in ("inner", "weightless"), own.placed == "inner"
        norms = (models.RMSNorm(n, device, affine=affine) if normed else nn.Identity() for n in self.parts)
        self.norms = nn.ModuleList(norms)
        self.step = nn.Parameter(torch.empty(own.width, own.ranked))
        self.decay = nn.Parameter(torch.empty(own.width, own.state))
        self.step_bias, self.skip = (nn.Parameter(torch.empty(own.width)) for _ in range(2))
        self.outward = nn.Linear(own.width, spec.width, own.bias if own.output_bias is None else own.output_bias)

    def forward(self, x: Tensor) -> Tensor:
        y, gate = self.inward(x).transpose(1, 2).chunk(2, 1)
        y = self.act(self.conv(y))
        made = self.selection(y.transpose(1, 2)).split(self.parts, -1)
        step, writes, reads = (norm(part) for norm, part in zip(self.norms, made, strict=True))
        return self.outward(self.scanned(y, self.step @ step.transpose(1, 2), writes, reads, gate).transpose(1, 2))

    def scanned(self, y: Tensor, step: Tensor, writes: Tensor, reads: Tensor, gate: Tensor, **asked: Any) -> Any:
        return mamba_selective_scan(
            y,
            step,
            -torch.exp(self.decay),
            writes.transpose(1, 2),
            reads.transpose(1, 2),
            D=self.skip,
            z=gate,
            delta_bias=self.step_bias,
            delta_softplus=True,
            **asked,
        )


class GatedDelta(nn.Module):
    def __init__(self, spec: Any, device: models.Device) -> None:
        super().__init__()
        own = self.own = spec.gated_delta
        self.keys, self.each = own.grouped, own.heads // own.grouped
        self.inward = nn.Linear(spec.width, 2 * self.keys * own.key_size + 2 * own.heads * own.value_size, bias=False)
        self.rates = nn.Linear(spec.width, 2 * own.heads, bias=False)
        self.parts = [own.key_size, own.key_size, self.each * own.value_size, self.each * own.value_size]
        self.mixed = [self.keys * own.key_size, self.keys * own.key_size, own.heads * own.value_size]
        self.conv, self.act = Causal(sum(self.mixed), own.convolution, False), models.activated(own.activation)
        self.decay, self.step = (nn.Parameter(torch.empty(own.heads)) for _ in range(2))
        self.norm = models.RMSNorm(own.value_size, device)
        self.outward = nn.Linear(own.heads * own.value_size, spec.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        own = self.own
        query, key, value, gate = self.inward(x).view(b, t, self.keys, -1).split(self.parts, -1)
        learning, decay = self.rates(x).view(b, t, self.keys, -1).chunk(2, -1)
        value, gate = (part.reshape(b, t, own.heads, -1) for part in (value, gate))
        learning, decay = (part.reshape(b, t, own.heads) for part in (learning, decay))
        mixed = torch.cat([part.reshape(b, t, -1) for part in (query, key, value)], -1)
        mixed = self.act(self.conv(mixed.transpose(1, 2))).transpose(1, 2)
        query, key, value = mixed.split(self.mixed, -1)
        query, key = (part.reshape(b, t, self.keys, -1) for part in (query, key))
        rates = {"beta": learning.sigmoid(), "g": -self.decay.exp() * F.softplus(decay + self.step)}
        y, _ = self.rule(query, key, value.reshape(b, t, own.heads, -1), **rates)
        y = self.norm(y.reshape(-1, own.value_size)) * F.silu(gate.reshape(-1, own.value_size))
        return self.outward(y.reshape(b, t, -1))

    def rule(self, *parts: Tensor, **rates: Tensor) -> tuple[Tensor, Tensor | None]:
        return torch_chunk_gated_delta_rule(*parts, **rates, chunk_size=self.own.chunked, use_qk_l2norm_in_kernel=True)


class ShortConvolution(nn.Module):
    def __init__(self, spec: Any) -> None:
        super().__init__()
        own = spec.short_convolution
        self.inward = nn.Linear(spec.width, 3 * spec.width, bias=own.bias)
        self.conv = Causal(spec.width, own.size, own.bias)
        self.outward = nn.Linear(spec.width, spec.width, bias=own.bias)

    def forward(self, x: Tensor) -> Tensor:
        before, after, y = self.inward(x).transpose(1, 2).chunk(3, 1)
        return self.outward((after * self.conv(before * y)).transpose(1, 2).contiguous())


def mixer(spec: Any, device: models.Device) -> nn.Module:
    """What mixes tokens beside attention in this model."""
    if spec.state_space is None:
        return ShortConvolution(spec) if spec.gated_delta is None else GatedDelta(spec, device)
    return (Mamba2 if spec.state_space.kind == "mamba2" else Mamba)(spec, device)


@st.composite
def state_spaces(draw: st.DrawFn) -> dict[str, Any]:
    groups, each, size = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(2, 4))
    fields = {
        "width": groups * each * size,
        "head_size": size,
        "groups": groups,
        "state": draw(st.integers(2, 5)),
        "chunk": draw(st.integers(2, 6)),
        "convolution": draw(st.integers(1, 4)),
        "convolution_bias": draw(st.booleans()),
        "activation": draw(st.sampled_from(models.NAMES)),
        "bias": draw(st.booleans()),
        "output_bias": draw(st.none() | st.booleans()),
        "norm": draw(st.sampled_from([None, "after", "before", "none"])),
    }
    if draw(st.booleans()):
        fields |= {"kind": "mamba", "rank": draw(st.none() | st.integers(1, 4))}
        fields |= dict.fromkeys(("head_size", "groups", "chunk"))
        fields["norm"] = draw(st.sampled_from([None, "inner", "weightless", "none"]))
    return {f"state_space.{name}": value for name, value in fields.items()}


SHORT = st.fixed_dictionaries({"short_convolution.size": st.integers(1, 4), "short_convolution.bias": st.booleans()})


@st.composite
def gated_deltas(draw: st.DrawFn) -> dict[str, Any]:
    keys = draw(st.integers(1, 3))
    fields = {
        "heads": keys * draw(st.integers(1, 2)),
        "key_heads": keys,
        "key_size": draw(st.integers(2, 4)),
        "value_size": draw(st.integers(2, 4)),
        "chunk": draw(st.integers(2, 6)),
        "convolution": draw(st.integers(1, 4)),
        "activation": draw(st.sampled_from(models.NAMES)),
    }
    return {f"gated_delta.{name}": value for name, value in fields.items()}
