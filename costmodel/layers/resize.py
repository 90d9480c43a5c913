"""Kinds that give an image another size, its channels another order, or read it at places that are computed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from costmodel.graph.tensor import Call, Gradient, LayerFlops, Shape, Storage, Tensor, Workspace
from costmodel.layers.base import NO_WORKSPACE, Movement, Shaped, layer
from costmodel.layers.shape import Moving
from costmodel.layers.spatial import Spatial, arranged
from costmodel.symbolic.sizes import exact_div
from costmodel.training.fields import Pair, pair


class Moves(Spatial, Movement):
    """Abstract: moves the same numbers into new memory, without arithmetic."""

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(0, 0))


@layer
class Upsample(Spatial, Movement):
    """An image `scale` times as large. x: (batch, C, H, W), y: (batch, C, scale·H, scale·W).

    Nearest copies; bilinear mixes four neighbours, four products and three additions a pixel.
    """

    source = "nearest or bilinear interpolation (torch.nn.Upsample); keeps nothing"

    scale: Pair
    mode: Literal["nearest", "bilinear"] = "nearest"

    def output(self, call: Call) -> Shape | Tensor:
        b, c, h, w = call.x.shape
        up, across = pair(self.scale)
        return arranged(call, (b, c, up * h, across * w))

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, 7 * call.y.size if self.mode == "bilinear" else 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Each pixel's gradient is added to its source, or weighed and added to its four."""
        yield Gradient(call.x, LayerFlops(0, (8 if self.mode == "bilinear" else 1) * call.y.size))


@layer
class PixelShuffle(Moves):
    """Channels become pixels: (batch, C·r², H, W) → (batch, C, r·H, r·W) with r = `factor`."""

    source = "sub-pixel rearrangement (torch.nn.PixelShuffle; Shi et al. 2016, eq. 4)"

    factor: int

    def check(self, call: Call) -> None:
        super().check(call)
        if call.x.shape[1] % self.factor**2:
            raise call.fail(f"{call.x.shape[1]} channels are not a multiple of factor² = {self.factor**2}")

    def output(self, call: Call) -> Shape:
        b, c, h, w = call.x.shape
        return (b, exact_div(c, self.factor**2), self.factor * h, self.factor * w)


@layer
class ChannelShuffle(Moves):
    """Channels dealt out over `groups` in turn: (batch, g·n, H, W) seen as (g, n), transposed."""

    source = "channel shuffle (torch.nn.ChannelShuffle; Zhang et al. 2018, ShuffleNet, fig. 1)"

    groups: int

    def check(self, call: Call) -> None:
        super().check(call)
        if call.x.shape[1] % self.groups:
            raise call.fail(f"groups {self.groups} does not divide {call.x.shape[1]} channels")

    def output(self, call: Call) -> Shape:
        return call.x.shape


@layer
class Pad(Moves):
    """A rim of zeros: `sides` is one width for all, or (left, right, top, bottom)."""

    source = "zero padding (torch.nn.ZeroPad2d)"

    sides: int | tuple[int, int, int, int] = 0

    def output(self, call: Call) -> Shape | Tensor:
        """(batch, C, top + H + bottom, left + W + right); without a rim a copy in the input's order."""
        if self.sides in (0, (0, 0, 0, 0)):
            return call.like(call.x)
        b, c, h, w = call.x.shape
        left, right, top, bottom = self.sides if isinstance(self.sides, tuple) else (self.sides,) * 4
        return arranged(call, (b, c, h + (top + bottom), w + (left + right)))


@layer
class Padded(Moving):
    """The same numbers with a rim, of one constant or of the input's own numbers; `keeps`: those, and the input.

    circular: the rim is of the other side's numbers, put there one side after another.
    """

    source = "torch.nn.functional.pad; dx is a part of g, or sums what came from each number"

    shape: tuple[int, ...]
    keeps: bool = False
    circular: bool = False

    def output(self, call: Call) -> Shape | Tensor:
        return arranged(call, self.shape) if len(self.shape) == 4 and not self.circular else self.shape

    def workspace(self, call: Call) -> Workspace:
        """A circular rim's gradient is added to a copy of g without it, as one of the whole size: three with the sum.

        By then g is free, if nobody else holds it.
        """
        return Workspace(0, 2 * call.y.size - call.x.size) if self.circular else NO_WORKSPACE

    def backward(self, call: Call) -> Iterable[Gradient]:
        """An addition per element where numbers are seen several times."""
        yield Gradient(call.x, LayerFlops(0, call.y.size if self.keeps else 0))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """The input, if the rim is of its own numbers."""
        if self.keeps:
            yield call.x


class Rearranged(Shaped, Moving):
    """Abstract: an image of another shape has its channels last in memory if the input has them so."""

    def output(self, call: Call) -> Shape | Tensor:
        return arranged(call, self.shape) if len(self.shape) == 4 else self.shape


@layer
class Columns(Rearranged):
    """Windows of an image as columns, or columns `back` to windows of an image, added up where they overlap."""

    source = "torch.nn.functional.unfold, fold; each is the other's gradient"

    shape: tuple[int, ...]
    back: bool = False

    def forward(self, call: Call) -> LayerFlops:
        """An addition for each number that goes back."""
        return LayerFlops(0, call.x.size if self.back else 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """An addition for each number whose gradient goes back."""
        yield Gradient(call.x, LayerFlops(0, 0 if self.back else call.y.size))


@layer
class Resized(Rearranged):
    """Another size, each pixel a mean of `among` neighbours."""

    source = "torch.nn.functional.interpolate; keeps nothing"

    shape: tuple[int, ...]
    among: int

    def forward(self, call: Call) -> LayerFlops:
        """A product for each neighbour, and the sum of them; nearest copies."""
        return LayerFlops(0, (2 * self.among - 1) * call.y.size if self.among > 1 else 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Each pixel's gradient is weighed and added to its neighbours."""
        yield Gradient(call.x, LayerFlops(0, (2 * self.among if self.among > 1 else 1) * call.y.size))


@layer
class GridSample(Shaped, Moving):
    """An image read between its pixels. x: (batch, C, H, W), places: (batch, H', W', 2), y: (batch, C, H', W').

    Each pixel is the mean of its four neighbours by nearness (bilinear), or the nearest (`nearest`); volumes have a
    third axis and eight neighbours.
    """

    source = "Jaderberg et al. 2015, eq. 5 (torch.nn.functional.grid_sample); keeps x and the places"
    arity = 2

    shape: tuple[int, ...]
    nearest: bool = False

    @property
    def _axes(self) -> int:
        return len(self.shape) - 2

    def _places(self, call: Call) -> int:
        """Places per channel."""
        return call.inputs[1].rows

    def _weights(self) -> int:
        """Products that make the weights of all neighbours of a place, one axis after another."""
        return sum(2**axis for axis in range(2, self._axes + 1))

    def forward(self, call: Call) -> LayerFlops:
        """Per axis of a place: scale, shift, floor, and the distance from both sides; a product for each neighbour."""
        if self.nearest:
            return LayerFlops(0, 3 * self._axes * self._places(call))
        near = 2**self._axes
        return LayerFlops(0, (5 * self._axes + self._weights()) * self._places(call) + (2 * near - 1) * call.y.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A product and an addition for each neighbour, to the image and to the places.

        g·x of each neighbour is added up over channels; a place then weighs it along all other axes, and scales it.
        Places that choose the nearest get zeros.
        """
        near = 2**self._axes
        yield Gradient(call.x, LayerFlops(0, (1 if self.nearest else 2 * near) * call.y.size))
        of_place = self._axes * (self._axes * near + 1)
        work = 0 if self.nearest else 2 * near * call.y.size + of_place * self._places(call)
        yield Gradient(call.inputs[1], LayerFlops(0, work))

    def workspace(self, call: Call) -> Workspace:
        """PyTorch makes the gradient of the places, needed or not."""
        places = call.inputs[1]
        return Workspace(0, 0 if places.requires_grad else places.size)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield from call.inputs
