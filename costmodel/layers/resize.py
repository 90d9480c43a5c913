"""Kinds that give an image another size, its channels another order, or read it at places that are computed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from costmodel.graph.call import Call, Gradient, LayerFlops, Workspace
from costmodel.graph.tensor import Shape, Storage, Tensor
from costmodel.layers.base import NO_WORKSPACE, KeepsInputs, Movement, Shaped, layer
from costmodel.layers.shape import Moving
from costmodel.layers.spatial import Spatial, arranged
from costmodel.symbolic.sizes import exact_div, largest, maximum, product
from costmodel.training.fields import Pair, pair

NEIGHBOURS = {"nearest": 1, "linear": 2, "bilinear": 4, "trilinear": 8, "bicubic": 16}
"""Numbers that one of another size is made of, by the way of interpolation."""


class Interpolation(Movement):
    """Abstract: numbers in another size, each made of some neighbours."""

    mode: Any

    def forward(self, call: Call) -> LayerFlops:
        """A product for each neighbour, and the sum of them; nearest copies."""
        neighbours = NEIGHBOURS[self.mode]
        return LayerFlops(0, (2 * neighbours - 1) * call.y.size if neighbours > 1 else 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Each pixel's gradient is added to its source, or weighed and added to its neighbours."""
        neighbours = NEIGHBOURS[self.mode]
        yield Gradient(call.x, LayerFlops(0, (2 * neighbours if neighbours > 1 else 1) * call.y.size))

    def gradient_copy(self, call: Call) -> int:
        return call.y.size


@layer
class Upsample(Spatial, Interpolation):
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


@layer
class Resize(Interpolation):
    """Another size, of any axes."""

    source = "torch.nn.functional.interpolate; keeps nothing"
    in_lists = False

    shape: tuple[int, ...]
    mode: Literal["nearest", "linear", "bilinear", "trilinear", "bicubic"]

    def output(self, call: Call) -> Shape | Tensor:
        return arranged(call, self.shape)


@layer
class PixelShuffle(Spatial, Movement):
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
class ChannelShuffle(Spatial, Movement):
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
class Pad(Spatial, Movement):
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
class PadTo(Movement):
    """A rim that fills up a `shape`: of a constant, of the input's own numbers, or of those of the other side.

    The last (circular) are put there strip by strip, of `widths` before and after, the last axis first.
    """

    source = "torch.nn.functional.pad; dx is a part of g, or sums what came from each number"
    in_lists = False

    shape: tuple[int, ...]
    mode: Literal["constant", "reflect", "replicate", "circular"] = "constant"
    widths: tuple[int, ...] = ()

    def output(self, call: Call) -> Shape | Tensor:
        return self.shape if self.mode == "circular" else arranged(call, self.shape)

    @property
    def _repeats(self) -> bool:
        """Whether numbers of the input are seen several times, by places that backward works out from it."""
        return self.mode in ("reflect", "replicate")

    def backward(self, call: Call) -> Iterable[Gradient]:
        """An addition per element where numbers are seen several times."""
        yield Gradient(call.x, LayerFlops(0, call.y.size if self._repeats else 0))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        if self._repeats:
            yield call.x

    def gradient_copy(self, call: Call) -> int:
        return call.y.size if self._repeats else 0

    def workspace(self, call: Call) -> Workspace:
        """Of a circular rim, whose strips go back one by one, the last first: a copy of g, the strip's own gradient and
        the zeros in its place; once g is free, the gradient in an image, which is added to that copy in place.

        The image itself goes last, with a copy of all beside its gradient.
        """
        if self.mode != "circular":
            return NO_WORKSPACE
        x, y, shape = call.x.size, call.y.size, self.shape
        sides = [(width, shape[-1 - side // 2]) for side, width in enumerate(self.widths) if width > 0]
        if not sides:
            return Workspace(0, y)
        *others, last = [exact_div(y, size) * width for width, size in sides]
        later = 2 * y + largest([x, last, *(2 * strip for strip in others)]) - x
        return Workspace(0, y + 2 * last - x, later=later, whole=True)


@layer
class Columns(Moving):
    """Windows of an image as columns, or columns `back` to windows of an image, added up where they overlap.

    An image is in memory that was taken for the columns, if those are more (``col2im``: ``empty_like`` of them, then
    ``resize_``).
    """

    source = "torch.nn.functional.unfold, fold; each is the other's gradient"

    shape: tuple[int, ...]
    back: bool = False

    def output(self, call: Call) -> Shape | Tensor:
        y = arranged(call, self.shape)
        if not self.back:
            return y
        memory = call.fresh("activation", maximum(product(self.shape), call.x.size))
        strides = y.strides if isinstance(y, Tensor) else None
        return Tensor(call.tape, self.shape, memory, requires_grad=False, strides=strides)

    def gradient_elements(self, call: Call, x: Tensor) -> int:
        return x.size if self.back else maximum(x.size, call.y.size)

    def gradient_copy(self, call: Call) -> int:
        return call.y.size

    def workspace(self, call: Call) -> Workspace:
        """Columns are made in memory as large as the image first, which is there until they have their own."""
        return Workspace(0, call.y.size) if self.back else Workspace(call.x.size, 0)

    def forward(self, call: Call) -> LayerFlops:
        """An addition for each number that goes back."""
        return LayerFlops(0, call.x.size if self.back else 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """An addition for each number whose gradient goes back."""
        yield Gradient(call.x, LayerFlops(0, 0 if self.back else call.y.size))


@layer
class GridSample(KeepsInputs, Shaped, Moving):
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
