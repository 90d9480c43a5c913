"""How a model is laid out over devices: the degree of each axis, and whose conventions a rank follows."""

from __future__ import annotations

from typing import Literal, NamedTuple

Runtime = Literal["torch", "megatron"]


class Layout(NamedTuple):
    """The axes of a mesh of devices, and what is done along each.

    tp: ranks that split each layer's weights. sp: whether activations between those layers are split by tokens over the
    same ranks. split_loss: whether logits stay split by vocabulary and the loss is taken of them so. fsdp: ranks that
    weights, gradients and optimizer states are split over, each with samples of its own. dp: groups of these that each
    have all weights. runtime: whose collectives, buffers and copies they are.
    """

    tp: int = 1
    sp: bool = False
    split_loss: bool = False
    fsdp: int = 1
    dp: int = 1
    runtime: Runtime = "torch"

    @property
    def devices(self) -> int:
        """Ranks in all."""
        return self.tp * self.fsdp * self.dp
