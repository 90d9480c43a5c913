"""What mixes tokens beside attention, in a prefill and in steps after it: states of fixed size are kept and moved on.

Around the functions of `transformers`; tensors have names for as long as something is yet to read them, and no longer.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.mamba.modeling_mamba import mamba_selective_state_update
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan, mamba2_selective_state_update
from transformers.models.qwen3_next.modeling_qwen3_next import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from . import mixers
from .measure import meta


class State:
    """One state, None until a first pass has left it."""

    def __init__(self) -> None:
        self.kept: Tensor | None = None

    def leave(self, new: Tensor) -> None:
        """The state from here on."""
        if self.kept is None:
            self.kept = new.clone(memory_format=torch.contiguous_format)
        else:
            self.kept.copy_(new)


class Causal(mixers.Causal):
    """With the inputs of the last tokens."""

    def __init__(self, channels: int, size: int, bias: bool) -> None:
        super().__init__(channels, size, bias)
        self.channels, self.size, self.state = channels, size, State()

    def forward(self, x: Tensor) -> Tensor:
        t, earlier = x.shape[-1], self.state.kept
        if earlier is not None:
            x = torch.cat([earlier, x], -1)
        elif t < self.size:
            x = F.pad(x, (self.size - t, 0))
        self.state.leave(x[..., -self.size :])
        if earlier is not None and t == 1:
            return F.conv1d(x, self.conv.weight, self.conv.bias, groups=self.channels)[..., -1:]
        return self.conv(x)[..., : x.shape[-1]][..., -t:]


class Mixing:
    """What the kinds have in common: two states, one of them of a convolution."""

    conv: Causal
    state: State

    def fill(self, batch: int) -> None:
        """What earlier tokens have left."""
        self.conv.state.kept = meta(batch, self.conv.channels, self.conv.size)
        if hasattr(self, "state"):
            self.state.kept = meta(batch, *self.sizes)  # type: ignore[attr-defined]

    def states(self) -> list[State]:
        """All of them."""
        return [self.conv.state, *([self.state] if hasattr(self, "state") else [])]


class Mamba2(Mixing, mixers.Mamba2):
    def __init__(self, spec: Any, device: Any) -> None:
        super().__init__(spec, device)
        self.state, self.sizes = State(), (self.heads, self.head_size, self.own.state)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        gate, mixed, step = self.inward(x).split([self.own.width, self.mixed, self.heads], -1)
        mixed = self.act(self.conv(mixed.transpose(1, 2))).transpose(1, 2)
        width = self.groups * self.own.state
        y = self.scanned(*mixed.split([self.own.width, width, width], -1), step).reshape(b, t, -1)
        y = self.normed(y) if self.own.placed == "before" else y
        y = y * F.silu(gate)
        return self.outward(self.normed(y) if self.own.placed == "after" else y)

    def scanned(self, values: Tensor, writes: Tensor, reads: Tensor, step: Tensor) -> Tensor:
        b, t, _ = values.shape
        rate, own = -torch.exp(self.decay), self.own
        if self.state.kept is not None and t == 1:
            shown = (self.heads, self.head_size)
            return mamba2_selective_state_update(
                self.state.kept,
                values.view(b, *shown),
                step.transpose(1, 2).expand(-1, -1, self.head_size),
                rate[:, None, None].expand(*shown, own.state),
                *(part.view(b, self.groups, own.state) for part in (writes, reads)),
                self.skip[:, None].expand(shown),
                dt_bias=self.step[:, None].expand(shown),
                dt_softplus=True,
            )
        y, last = mamba2_chunk_scan(
            values.view(b, t, self.heads, self.head_size),
            step,
            rate,
            *(part.view(b, t, self.groups, own.state) for part in (writes, reads)),
            chunk_size=own.chunked,
            D=self.skip,
            dt_bias=self.step,
            dt_softplus=True,
            initial_states=self.state.kept,
            return_final_states=True,
        )
        self.state.leave(last)
        return y


class Mamba(Mixing, mixers.Mamba):
    def __init__(self, spec: Any, device: Any) -> None:
        super().__init__(spec, device)
        self.state, self.sizes = State(), (self.own.width, self.own.state)

    def scanned(self, y: Tensor, step: Tensor, writes: Tensor, reads: Tensor, gate: Tensor, **asked: Any) -> Any:
        if self.state.kept is not None and y.shape[-1] == 1:
            rate = -torch.exp(self.decay)
            parts = (y[..., 0], step[..., 0], rate, writes[:, 0], reads[:, 0], self.skip)
            return mamba_selective_state_update(
                self.state.kept, *parts, dt_bias=self.step_bias, dt_softplus=True, z=gate[..., 0]
            ).unsqueeze(-1)
        y, last = super().scanned(y, step, writes, reads, gate, return_last_state=True)
        self.state.leave(last)
        return y


class GatedDelta(Mixing, mixers.GatedDelta):
    def __init__(self, spec: Any, device: Any) -> None:
        super().__init__(spec, device)
        self.state, self.sizes = State(), (self.own.heads, self.own.key_size, self.own.value_size)

    def rule(self, *parts: Tensor, **rates: Tensor) -> tuple[Tensor, Tensor | None]:
        one = self.state.kept is not None and parts[0].shape[1] == 1
        asked: dict[str, Any] = {} if one else {"chunk_size": self.own.chunked}
        y, last = (torch_recurrent_gated_delta_rule if one else torch_chunk_gated_delta_rule)(
            *parts,
            **rates,
            **asked,
            initial_state=self.state.kept,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        assert last is not None
        self.state.leave(last)
        return y, None


class ShortConvolution(Mixing, mixers.ShortConvolution):
    pass


KINDS = ("Causal", "Mamba2", "Mamba", "GatedDelta", "ShortConvolution")
"""What stands for those of `mixers` by the same names."""
