"""Copies without data: a module and its inputs on PyTorch's meta device, for which no number is read."""

from __future__ import annotations

import copy
from typing import Any


def module_on_meta(torch: Any, module: Any) -> Any:
    """A copy of a module whose tensors have no data; ties between them stay."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        bare = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = torch.nn.Parameter(bare, requires_grad=parameter.requires_grad)

    class WithoutData(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.Tensor.__deepcopy__:
                tensor = args[0]
                bare = torch.empty_like(tensor.detach(), device="meta").requires_grad_(tensor.requires_grad)
                return args[1].setdefault(id(tensor), bare)
            return function(*args, **(kwargs or {}))

    with WithoutData():
        return copy.deepcopy(module, memo)


def tensor_on_meta(torch: Any, tensor: Any, shape: tuple[int, ...]) -> Any:
    """A tensor of the same type and another shape, without data."""
    return torch.empty(shape, dtype=tensor.dtype, device="meta")
