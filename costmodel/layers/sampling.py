"""Means over windows of any number of axes, and images read at places that are computed."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.graph.tensor import Call, Shape, Storage, Tensor
from costmodel.layers.base import Gradient, LayerFlops, Workspace, layer, takes
from costmodel.layers.shape import Moving


@layer
class WindowMean(Moving):
    """The mean of each window; `terms`: numbers in all windows together, those of a rim too."""

    source = "torch.nn.AvgPool3d, AdaptiveAvgPool3d; keeps x"

    shape: tuple[int, ...]
    terms: int

    def output(self, call: Call) -> Shape:
        return self.shape

    def forward(self, call: Call) -> LayerFlops:
        """Additions and divisions."""
        return LayerFlops(0, self.terms)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A division for each window, then an addition at each of its places."""
        yield Gradient(call.x, LayerFlops(0, call.y.size + self.terms))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.x


@layer
class GridSample(Moving):
    """An image read between its pixels. x: (batch, C, H, W), places: (batch, H', W', 2), y: (batch, C, H', W').

    Each pixel is the mean of its four neighbours by nearness (bilinear), or the nearest (`nearest`); volumes have a
    third axis and eight neighbours.
    """

    source = "Jaderberg et al. 2015, eq. 5 (torch.nn.functional.grid_sample); keeps x and the places"

    shape: tuple[int, ...]
    nearest: bool = False

    def check(self, call: Call) -> None:
        takes(call, 2)

    def output(self, call: Call) -> Shape:
        return self.shape

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
