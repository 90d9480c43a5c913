"""A module as `from_torch` has it, and the same module measured at other sizes of the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import costmodel as cm

from .measure import Cost, Saved, stated

Inputs = tuple[Tensor, ...]


def by_groups(x: tuple[int, ...], w: tuple[int, ...], *_: Any, out_shape: Any = None, **__: Any) -> int:
    """FLOPs of products by groups, which FlopCounterMode has no rule for: of rows, or summed over rows."""
    return 2 * x[0] * x[1] * w[-1] if len(x) == 2 else 0


BY_GROUPS = {torch.ops.aten._grouped_mm: by_groups}


def without_data(make: Callable[[], nn.Module]) -> nn.Module:
    """A module made on the meta device, in training mode."""
    with torch.device("meta"):
        return make().train()


def found(model: Any, **settings: Any) -> Cost:
    """What the library says, by the rules of the meta device, whose kernels are the CPU's."""
    prediction = cm.predict(model, device="cpu", **settings)
    return stated(prediction, prediction)


def measured(module: nn.Module, *inputs: Tensor, device: str = "meta", **named: Any) -> Cost:
    """What PyTorch counts and keeps, with backward from everything that the module returns."""
    weights, buffers = list(module.parameters()), list(module.buffers())
    outside = [*weights, *buffers, *inputs, *(x for x in named.values() if isinstance(x, Tensor))]
    with torch.device(device), sdpa_kernel(SDPBackend.MATH), Saved(outside) as saved:
        leaves = torch.utils._pytree.tree_leaves(module(*inputs, **named))
        kept = saved.held
    with (
        torch.device(device),
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False, custom_mapping=BY_GROUPS) as counter,
    ):  # which holds on to graphs
        leaves = torch.utils._pytree.tree_leaves(module(*inputs, **named))
        forward = counter.get_total_flops()
        outputs = list({id(y): y for y in leaves if isinstance(y, Tensor) and y.requires_grad}.values())
        if outputs:
            torch.autograd.backward(outputs, [torch.empty_like(y) for y in outputs])
    return Cost(sum(w.numel() for w in weights), forward, counter.get_total_flops(), kept, kept)


def assert_equal(module: nn.Module, example: Inputs, larger: Inputs, settings: Mapping[str, Any]) -> Any:
    """The module imported at `example` costs at `settings` what it costs in PyTorch on `larger`."""
    model = cm.from_torch(module, example)
    assert found(model, **settings) == measured(module, *larger)
    return model
