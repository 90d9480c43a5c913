"""Random noise on whole channels or samples: a mask smaller than what it multiplies."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from costmodel.graph.tensor import Call, Shape, Storage, Tensor
from costmodel.layers.base import Gradient, LayerFlops, Unary, layer, takes
from costmodel.symbolic.sizes import product
from costmodel.training.fields import Probability


class Noise(Unary):
    """Abstract: y = x·m/(1 − p) with m random in {0, 1}, broadcast; the identity in inference or for p = 0."""

    p: Probability

    @abstractmethod
    def mask_shape(self, call: Call) -> Shape:
        """Shape of m."""

    def check(self, call: Call) -> None:
        takes(call, 1)
        if len(call.x.shape) < 2:
            raise call.fail(f"{self.kind} takes an input of at least two axes (batch, channels, ...)")

    def _acts(self, call: Call) -> bool:
        return call.run.training and self.p > 0

    def output(self, call: Call) -> Tensor:
        return call.like(call.x) if self._acts(call) else call.x.view(call.x.shape, call.x.strides)

    def forward(self, call: Call) -> LayerFlops:
        """A product per element; for each number of m a comparison and a division."""
        return LayerFlops(0, call.x.size + 2 * product(self.mask_shape(call)) if self._acts(call) else 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        acts = self._acts(call)
        yield Gradient(call.x, LayerFlops(0, call.x.size if acts else 0), shared=not acts)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        if self._acts(call):
            yield call.fresh("activation", *self.mask_shape(call))


@layer
class ChannelDropout(Noise):
    """Drops whole channels; m: (batch, C, 1, ...)."""

    source = "y = x·m/(1 − p), m per channel (torch.nn.Dropout2d; Tompson et al. 2015, §3.2)"

    p: Probability = 0.5

    def mask_shape(self, call: Call) -> Shape:
        """(batch, C)."""
        return call.x.shape[:2]


@layer
class StochasticDepth(Noise):
    """Drops a residual branch of whole samples; m: (batch, 1, ...)."""

    source = "y = x·m/(1 − p), m per sample (torchvision.ops.StochasticDepth, mode 'row'; Huang et al. 2016, eq. 2)"

    p: Probability = 0.5

    def mask_shape(self, call: Call) -> Shape:
        """(batch)."""
        return call.x.shape[:1]
