"""A weight as a direction and a length (weight normalisation)."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.graph.tensor import Call, Storage, Tensor
from costmodel.layers.base import Gradient, LayerFlops, Workspace, layer, takes
from costmodel.layers.shape import Moving


@layer
class WeightNorm(Moving):
    """y = v·(g/|v|), a length g for each row of v, or of its last axis."""

    source = "Salimans and Kingma 2016, eq. 2 and 3 (torch.nn.utils.weight_norm)"

    def check(self, call: Call) -> None:
        takes(call, 2)

    def output(self, call: Call) -> Tensor:
        return call.run.tensor(call.x.shape)

    def forward(self, call: Call) -> LayerFlops:
        """The norms, a quotient for each, and a product per element."""
        return LayerFlops(0, 3 * call.x.size + call.inputs[1].size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Σ dy·v for both; dv = (g/|v|)·(dy − v·Σ/|v|²), dg = Σ/|v|."""
        v, lengths = call.inputs
        both = 2 * v.size
        for x, work in ((v, 3 * v.size + 3 * lengths.size), (lengths, lengths.size)):
            if x.requires_grad:
                yield Gradient(x, LayerFlops(0, both + work))
                both = 0

    def workspace(self, call: Call) -> Workspace:
        """PyTorch makes both gradients, needed or not."""
        return Workspace(0, sum(x.size for x in call.inputs if not x.requires_grad))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield from call.inputs
        yield call.fresh("activation", *call.inputs[1].shape)
