"""Change of data type, as autocast makes it."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.graph.tensor import Call, Storage, Tensor, dense_strides
from costmodel.layers.base import Gradient, LayerFlops, Unary, layer
from costmodel.training.dtypes import Dtype


@layer
class Cast(Unary):
    """y = x in another data type."""

    source = "torch.Tensor.to under torch.autocast (Micikevicius et al. 2018, §3.1); dx is g in the type of x"
    in_lists = False

    dtype: Dtype

    def output(self, call: Call) -> Tensor:
        """New memory in the input's order; the copy of a weight is no activation."""
        x = call.x
        origin = "cast" if x.storage.origin == "weight" else "computed"
        strides = dense_strides(x.shape, x.strides)
        return call.run.tensor(x.shape, x.storage.role, origin=origin, strides=strides, dtype=self.dtype)

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(0, 0))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        return ()
