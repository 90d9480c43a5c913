"""torchvision's models on the meta device, where its C++ operators are not needed: missing ones are stubbed."""

from __future__ import annotations

import re

import torch
from torch import nn

_STUBS: list[torch.library.Library] = []
"""Kept: a library that is collected takes its operators with it."""


def vision_model(name: str, **fields: object) -> nn.Module:
    """A torchvision classifier in training mode."""
    with torch.device("meta"):
        return getattr(stub_operators(), name)(**fields).train()


def stub_operators() -> object:
    """torchvision.models, once its missing operators are stubbed."""
    for _ in range(100):
        try:
            import torchvision
        except RuntimeError as error:
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if missing is None:
                raise
            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(f"{missing[1]}(Tensor x) -> Tensor")
            _STUBS.append(library)
        else:
            return torchvision.models
    raise RuntimeError("torchvision still misses operators")
