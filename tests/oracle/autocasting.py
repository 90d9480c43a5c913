"""Autocast as GPUs have it, acted out on the meta device: PyTorch's own is there only where the device is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from . import models

LOWERED = {"linear", "matmul", "conv2d", "conv_transpose2d", "_scaled_dot_product_flash_attention"}
"""Of the functions that models here call, those that autocast to a lower precision (torch.amp's table for CUDA)."""

RAISED = {"softmax", "layer_norm", "group_norm", "cross_entropy", "mse_loss", "rms_norm", "pow", "square"}
RAISED |= {"log_softmax", "kl_div", "binary_cross_entropy_with_logits"}
"""Those that autocast to fp32."""


class GpuAutocast(TorchFunctionMode):
    """Casts the arguments of each call as torch.autocast("cuda") would; weights once, all else each time.

    The fused RMS norm, which PyTorch does not know by name, is run in fp32.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.casts: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        name = {"__matmul__": "matmul", "_softmax": "softmax"}.get(name, name)
        target = self.dtype if name in LOWERED else torch.float32 if name in RAISED else None
        if target is None:
            return func(*args, **(kwargs or {}))
        args = [self.cast(a, target) for a in args]
        kwargs = {key: self.cast(a, target) for key, a in (kwargs or {}).items()}
        return func(*args, **kwargs)

    def __enter__(self) -> GpuAutocast:
        self._fused = patch.object(models.FusedRMS, "apply", self.wrap(models.FusedRMS.apply))
        self._fused.start()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._fused.stop()
        self.casts.clear()

    def cast(self, x: Any, dtype: torch.dtype) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.dtype == dtype:
            return x
        if not x.is_leaf or not x.requires_grad:
            return x.to(dtype)
        return self.casts.setdefault(id(x), x.to(dtype))

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function, run in fp32."""
        return lambda *args: function(*(self.cast(a, torch.float32) for a in args))
