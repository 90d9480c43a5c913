"""Kinds over images and their like, beyond those that have a class of their own in `costmodel.layers`."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.graph.tensor import Call, Shape, Storage, Tensor, dense_strides
from costmodel.importers.torch.movements import Moving
from costmodel.layers.base import NO_SCRATCH, Buffers, Gradient, Kind, Scratch, Weights, Work, takes, unlisted
from costmodel.layers.spatial import arranged
from costmodel.symbolic.sizes import product


@unlisted
class Convolve(Kind):
    """A convolution over any number of axes, or its transpose. `shape`: of the output; `weight`: of the weight."""

    source = "cross-correlation (torch.nn.Conv1d, Conv3d, ConvTranspose1d; Dumoulin & Visin 2016, rel. 14 and 15)"
    in_lists = False

    shape: tuple[int, ...]
    weight: tuple[int, ...]
    bias: bool = True
    groups: int = 1
    transposed: bool = False

    def check(self, call: Call) -> None:
        """Takes one input."""
        takes(call, 1)

    def weights(self, call: Call) -> Weights:
        """One per pair of channels and place in the window; a bias per channel."""
        return {"weight": self.weight} | ({"bias": (self.shape[1],)} if self.bias else {})

    def buffers(self, call: Call) -> Buffers:
        """None."""
        return {}

    def output(self, call: Call) -> Shape:
        """See the class."""
        return self.shape

    def _flops(self, call: Call) -> int:
        """Each output, or in the transpose each input, meets its window and the channels of its group."""
        return 2 * (call.x.size if self.transposed else call.y.size) * product(self.weight[1:])

    def forward(self, call: Call) -> Work:
        """See the class; the bias is an addition per element."""
        return Work(self._flops(call), call.y.size if self.bias else 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Two contractions of the forward one's size; the bias sums over positions."""
        flops = self._flops(call)
        yield Gradient(call.x, Work(flops, 0))
        yield Gradient(call.weights["weight"], Work(flops, 0, counted=self.groups * flops))
        if self.bias:
            yield Gradient(call.weights["bias"], Work(0, call.y.size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """Input and weight, whichever of the gradients is needed."""
        yield call.x
        yield call.weights["weight"]

    def scratch(self, call: Call) -> Scratch:
        """None, as for images."""
        return NO_SCRATCH


@unlisted
class Padded(Moving):
    """The same numbers with a rim, or as windows; `keeps`: backward needs the input."""

    source = "torch.nn.functional.pad, unfold, fold; dx sums what came from each number"

    shape: tuple[int, ...]
    keeps: bool = False

    def output(self, call: Call) -> Shape | Tensor:
        """New memory."""
        return arranged(call, self.shape) if len(self.shape) == 4 else self.shape

    def backward(self, call: Call) -> Iterable[Gradient]:
        """An addition per element where numbers are seen several times."""
        yield Gradient(call.x, Work(0, call.y.size if self.keeps or call.y.size > 2 * call.x.size else 0))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """The input, if the rim is of its own numbers."""
        if self.keeps:
            yield call.x


@unlisted
class Resized(Moving):
    """Another size, each pixel a mean of `among` neighbours."""

    source = "torch.nn.functional.interpolate; keeps nothing"

    shape: tuple[int, ...]
    among: int

    def output(self, call: Call) -> Shape | Tensor:
        """New memory; channels are last in it if they are so in the input."""
        return arranged(call, self.shape) if len(self.shape) == 4 else self.shape

    def forward(self, call: Call) -> Work:
        """A product for each neighbour, and the sum of them; nearest copies."""
        return Work(0, (2 * self.among - 1) * call.y.size if self.among > 1 else 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Each pixel's gradient is weighed and added to its neighbours."""
        yield Gradient(call.x, Work(0, (2 * self.among if self.among > 1 else 1) * call.y.size))


@unlisted
class Gated(Moving):
    """One half of an axis times the sigmoid of the other."""

    source = "a·σ(b) (torch.nn.GLU; Dauphin et al. 2017, eq. 1); keeps the input"

    shape: tuple[int, ...]

    def output(self, call: Call) -> Tensor:
        """Half of the input, in its order of memory."""
        return call.run.tensor(self.shape, strides=dense_strides(self.shape, call.x.strides))

    def forward(self, call: Call) -> Work:
        """A sigmoid and a product."""
        return Work(0, 5 * call.y.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """g·σ and g·a·σ·(1 − σ), from σ made again."""
        yield Gradient(call.x, Work(0, 9 * call.y.size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """The input."""
        yield call.x
