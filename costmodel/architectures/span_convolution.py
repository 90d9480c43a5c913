"""Convolutions whose kernels are made of each span of tokens (Jiang et al. 2020, ConvBERT)."""

from __future__ import annotations

from costmodel.graph.tensor import Tensor
from costmodel.layers.arithmetic import Multiply
from costmodel.layers.attention import Softmax
from costmodel.layers.conv import Convolve
from costmodel.layers.linear import Linear, Matmul
from costmodel.layers.resize import Columns
from costmodel.layers.shape import Copy, TransposeLast


def span_convolved(x: Tensor, query: Tensor, heads: int, size: int) -> Tensor:
    """Of tokens (batch, T, width) and their queries (batch, T, heads·d): (batch, T, heads·d).

    A kernel of `size` tokens for each head is made of a query and the span around it (§3.2, eq. 4 to 6).
    """
    (b, t, width), wide = x.shape, query.shape[-1]
    with x.tape.scope("span"):
        turned = TransposeLast()(x, name="by_feature")
        key = Convolve((b, width, t), (width, 1, size), bias=False, groups=width)(turned, name="depthwise")
        key = TransposeLast()(Convolve((b, wide, t), (wide, width, 1))(key, name="pointwise"), name="span_key")
        kernels = Linear(heads * size)(Multiply()(key, query, name="span_query"), name="kernels")
        kernels = Softmax()(kernels.view((b * t * heads, size)), name="span_softmax")
        value = TransposeLast()(Linear(wide)(x, name="value"), name="value_by_feature")
        image = Copy((b, wide, t))(value, name="in_order").view((b, wide, t, 1))
        columns = TransposeLast()(Columns((b, wide * size, t))(image, name="windows"), name="windows_by_token")
        windows = Copy((b, t, wide * size))(columns, name="windows_in_order")
        each = windows.view((b * t * heads, wide // heads, size))
        return Matmul()(each, kernels.view((b * t * heads, size, 1)), name="convolved").view((b, t, wide))
