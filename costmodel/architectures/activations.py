"""Activations by name: single layers, and such as are written as several operators, each with what it keeps."""

from __future__ import annotations

import math
from collections.abc import Callable

from costmodel.graph.tensor import Tensor
from costmodel.layers.activation import Activation, Relu, Sigmoid, Tanh, Xielu
from costmodel.layers.arithmetic import Add, Multiply, Scale, Shift
from costmodel.layers.base import KINDS
from costmodel.layers.function import Pointwise


def gelu_composed(x: Tensor) -> Tensor:
    """x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))), an operator for each operation (OpenAI 2019, GPT-2, ``gelu``)."""
    half = Scale(0.5)(x, name="half")
    cube = Scale(0.044715)(Pointwise("pow", exponent=3)(x, name="cube"), name="scale_cube")
    inner = Scale(math.sqrt(2 / math.pi))(Add()(x, cube, name="add_cube"), name="scale_inner")
    return Multiply()(half, Shift(1.0)(Tanh()(inner)), name="gelu")


def quick_gelu(x: Tensor) -> Tensor:
    """x·σ(1.702·x) (Hendrycks & Gimpel 2016, §2), as three operators (Radford et al. 2021, CLIP)."""
    return Multiply()(x, Sigmoid()(Scale(1.702)(x, name="scale")), name="quick_gelu")


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)² (So et al. 2021, Primer, §3), as two operators."""
    return Pointwise("square")(Relu()(x), name="square")


COMPOSED: dict[str, Callable[[Tensor], Tensor]] = {
    function.__name__: function for function in (gelu_composed, quick_gelu, relu_squared)
}
"""Activations that are several layers."""

LAYERS = sorted(name for name, kind in KINDS.items() if issubclass(kind, Activation))
"""Activations that are one layer without weights."""

NAMES = sorted([*LAYERS, *COMPOSED, Xielu.kind])
"""All activations."""


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The activation called `name`, with its defaults."""
    return COMPOSED[name] if name in COMPOSED else KINDS[name]()
