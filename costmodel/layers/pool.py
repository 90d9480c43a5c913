"""Pooling over windows of an image."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.graph.tensor import Call, Shape, Storage, Tensor
from costmodel.layers.base import Gradient, Weightless, Work, layer
from costmodel.layers.spatial import Spatial, arranged, check_window, slide, slide_beyond
from costmodel.training.fields import Pair, pair


class Pool(Spatial, Weightless):
    """Abstract: one number per window and channel."""

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """The input."""
        yield call.x


class Sliding(Pool):
    """Abstract: windows of a fixed size.

    stride: the kernel unless given. ceil_mode: also windows that stick out at the end, as long as they begin inside.
    """

    kernel: Pair
    stride: Pair | None
    padding: Pair
    ceil_mode: bool

    def check(self, call: Call) -> None:
        """Windows fit, and no window lies in the padding alone."""
        super().check(call)
        for k, p in zip(pair(self.kernel), pair(self.padding), strict=True):
            if 2 * p > k:
                raise call.fail(f"padding {p} is more than half of kernel {k}: use at most {k // 2}")
        beyond = tuple(s - 1 for s in self.strides) if self.ceil_mode else (0, 0)
        check_window(call, call.x.shape[2:], pair(self.kernel), pair(self.padding), beyond)

    @property
    def strides(self) -> Shape:
        """(height, width)."""
        return pair(self.kernel if self.stride is None else self.stride)

    def output(self, call: Call) -> Shape | Tensor:
        """(batch, C, H', W')."""
        count = slide_beyond if self.ceil_mode else slide
        axes = zip(call.x.shape[2:], pair(self.kernel), self.strides, pair(self.padding), strict=True)
        return arranged(call, (*call.x.shape[:2], *(count(*axis) for axis in axes)))

    @property
    def window(self) -> int:
        """Elements of a window."""
        kh, kw = pair(self.kernel)
        return kh * kw


@layer
class MaxPool(Sliding):
    """The largest of each window. x: (batch, C, H, W), y: (batch, C, H', W'). k_h·k_w − 1 comparisons each."""

    source = "max over windows (torch.nn.MaxPool2d; Boureau et al. 2010); keeps x and int64 places of the maxima"

    kernel: Pair
    stride: Pair | None = None
    padding: Pair = 0
    ceil_mode: bool = False

    def forward(self, call: Call) -> Work:
        """Comparisons."""
        return Work(0, (self.window - 1) * call.y.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Each gradient is added at its maximum's place."""
        yield Gradient(call.x, Work(0, call.y.size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """The input, and where each maximum lies."""
        yield call.x
        yield call.fresh("index", *call.y.shape)


@layer
class AvgPool(Sliding):
    """The mean of each window. x: (batch, C, H, W), y: (batch, C, H', W'). k_h·k_w operations each."""

    source = "mean over windows (torch.nn.AvgPool2d; LeCun et al. 1998, §II.B); keeps x"

    kernel: Pair
    stride: Pair | None = None
    padding: Pair = 0
    ceil_mode: bool = False

    def forward(self, call: Call) -> Work:
        """Additions and a division."""
        return Work(0, self.window * call.y.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A division, then an addition at each place of the window."""
        yield Gradient(call.x, Work(0, (self.window + 1) * call.y.size))


@layer
class GlobalAvgPool(Pool):
    """The mean of each channel. x: (batch, C, H, W), y: (batch, C), or (batch, C, 1, 1) with `keepdims`."""

    source = "mean over height and width (torch.mean; Lin et al. 2014, §3.2)"

    keepdims: bool = False

    def output(self, call: Call) -> Shape:
        """(batch, C) or (batch, C, 1, 1)."""
        return (*call.x.shape[:2], 1, 1) if self.keepdims else call.x.shape[:2]

    def forward(self, call: Call) -> Work:
        """Additions and a division."""
        return Work(0, call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A division; the result is seen at every place."""
        yield Gradient(call.x, Work(0, call.y.size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """Nothing."""
        return ()
