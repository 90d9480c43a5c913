"""Bytes alive through a real training step: a dispatch mode that follows every storage from birth to death."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Tracker(TorchDispatchMode):
    """`now` and `peak` bytes on one device; `peak_operation` is the one after which most was alive."""

    def __init__(self, given: Iterable[Tensor], device: str = "meta") -> None:
        super().__init__()
        self.device = device
        self.now = self.peak = 0
        self.peak_operation = "start"
        self.log: list[tuple[str, int]] = []
        self._known: dict[int, weakref.finalize] = {}
        for tensor in given:
            self._follow(tensor)

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if tensor.device.type != self.device or key in self._known:
            return
        size = storage.nbytes()
        self._known[key] = weakref.finalize(storage, self._forget, key, size)
        self.now += size

    def _forget(self, key: int, size: int) -> None:
        del self._known[key]
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_iter(result):
            if isinstance(leaf, Tensor):
                self._follow(leaf)
        self.log.append((str(func), self.now))
        if self.now > self.peak:
            self.peak, self.peak_operation = self.now, str(func)
        return result
