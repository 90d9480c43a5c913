"""Layers of an imported module hold the constants that its operators are called with."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import costmodel as cm
from costmodel.layers.activation import Elu, LeakyRelu
from costmodel.layers.arithmetic import Clamp, Scale
from costmodel.layers.attention import FusedAttention
from costmodel.layers.base import Layer
from costmodel.layers.function import Lerp

pytestmark = pytest.mark.oracle


def attention(scale: float | None) -> Any:
    return lambda x: F.scaled_dot_product_attention(x, x, x, scale=scale)


ROOT = math.sqrt(0.7)
CASES: list[tuple[Any, list[Layer]]] = [
    (lambda x: x * 0.3, [Scale(0.3)]),
    (lambda x: x * 3, [Scale(3.0)]),
    (lambda x: x / 4, [Scale(0.25)]),
    (lambda x: x / math.inf, [Scale(0.0)]),
    (lambda x: x * math.inf, [Scale(math.inf)]),
    (lambda x: x / 0, [Scale(math.inf)]),
    (lambda x: F.leaky_relu(x, 0.2), [LeakyRelu(0.2)]),
    (lambda x: F.elu(x, 0.7), [Elu(0.7)]),
    (lambda x: x.clamp(-2, 2), [Clamp(-2.0, 2.0)]),
    (lambda x: x.clamp(0.1, 2), [Clamp(0.1, 2.0)]),
    (lambda x: x.clamp(min=0), [Clamp(0.0, None)]),
    (lambda x: x.clamp(max=1), [Clamp(None, 1.0)]),
    (lambda x: x.clamp_min(-math.inf), [Clamp(-math.inf, None)]),
    (lambda x: x.clamp_max_(3), [Clamp(None, 3.0)]),
    (lambda x: F.dropout(x, 1.0), []),
    (lambda x: torch.lerp(x, x, 0.25), [Lerp(0.25)]),
    (attention(None), [Scale(3**-0.25), Scale(3**-0.25)]),
    (attention(0.7), [Scale(ROOT), Scale(ROOT)]),
    (attention(-0.7), [Scale(-ROOT), Scale(ROOT)]),
]


class Calling(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def kinds(function: Any, *wanted: type[Layer], **settings: Any) -> list[Layer]:
    model = cm.from_torch(Calling(function).train(), torch.zeros(2, 4, 5, 3))
    calls = cm.predict(model, batch=2, **settings).tape.root.calls()
    return [call.layer for call in calls if isinstance(call.layer, wanted)]


@pytest.mark.parametrize(("function", "held"), CASES)
def test_constants_are_held(function: Any, held: list[Layer]) -> None:
    found = kinds(function, *{type(kind) for kind in held})
    assert [type(kind) for kind in found] == [type(kind) for kind in held]
    for kind, expected in zip(found, held, strict=True):
        assert vars(kind) == pytest.approx(vars(expected))


def test_fused_attention_has_its_scale() -> None:
    assert kinds(attention(0.7), FusedAttention, attention="flash") == [FusedAttention(scale=0.7)]
