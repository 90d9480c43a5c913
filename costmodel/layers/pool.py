"""Pooling: windows that slide, and windows that adapt to a size of the output, of images and of more axes."""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt

from costmodel.graph.call import Call, Gradient, LayerFlops
from costmodel.graph.kernel import Kernel
from costmodel.graph.tensor import Shape, Storage, Tensor
from costmodel.layers.base import KeepsInputs, KeepsNothing, OneKernel, Shaped, Weightless, layer
from costmodel.layers.kernels import backward_pass, extra_bytes
from costmodel.layers.shape import Moving
from costmodel.layers.spatial import Spatial, arranged, check_window, slide, slide_beyond
from costmodel.symbolic.sizes import divisors, minimum
from costmodel.training.fields import Pair, pair


class Pool(KeepsInputs, Spatial, OneKernel, Weightless):
    """Abstract: one number per window and channel."""

    sorts = "reduction", "pointwise"

    def gradient_copy(self, call: Call) -> int:
        return call.y.size

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """One kernel that reads the incoming gradient alone."""
        return backward_pass(call, "pointwise", kept=0)


class Maxima(Pool):
    """Abstract: the largest of each window, to whose place its gradient goes."""

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(0, call.y.size))

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """One kernel that reads the incoming gradient and the places of the maxima."""
        return backward_pass(call, "pointwise", kept=extra_bytes(call))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.x
        yield call.fresh("index", *call.y.shape)


class Sliding(Pool):
    """Abstract: windows of a fixed size.

    stride: the kernel unless given. ceil_mode: also windows that stick out at the end, as long as they begin inside.
    """

    kernel: Pair
    stride: Pair | None
    padding: Pair
    ceil_mode: bool

    def check(self, call: Call) -> None:
        super().check(call)
        for k, p in zip(pair(self.kernel), pair(self.padding), strict=True):
            if 2 * p > k:
                raise call.fail(f"padding {p} is more than half of kernel {k}: use at most {k // 2}")
        beyond = tuple(s - 1 for s in self.strides) if self.ceil_mode else (0, 0)
        check_window(call, call.x.shape[2:], pair(self.kernel), pair(self.padding), beyond)

    @property
    def overlaps(self) -> bool:
        return True

    @property
    def strides(self) -> Shape:
        """(height, width)."""
        return pair(self.kernel if self.stride is None else self.stride)

    def output(self, call: Call) -> Shape | Tensor:
        count = slide_beyond if self.ceil_mode else slide
        axes = zip(call.x.shape[2:], pair(self.kernel), self.strides, pair(self.padding), strict=True)
        return arranged(call, (*call.x.shape[:2], *(count(*axis) for axis in axes)))

    @property
    def window(self) -> int:
        """Elements of a window."""
        kh, kw = pair(self.kernel)
        return kh * kw


@layer
class MaxPool(Maxima, Sliding):
    """The largest of each window. x: (batch, C, H, W), y: (batch, C, H', W'). k_h·k_w − 1 comparisons each."""

    source = "max over windows (torch.nn.MaxPool2d; Boureau et al. 2010); keeps x and int64 places of the maxima"

    kernel: Pair
    stride: Pair | None = None
    padding: Pair = 0
    ceil_mode: bool = False

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, (self.window - 1) * call.y.size)


@layer
class AvgPool(Sliding):
    """The mean of each window. x: (batch, C, H, W), y: (batch, C, H', W'). k_h·k_w operations each."""

    source = "mean over windows (torch.nn.AvgPool2d; LeCun et al. 1998, §II.B); keeps x"

    kernel: Pair
    stride: Pair | None = None
    padding: Pair = 0
    ceil_mode: bool = False

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, self.window * call.y.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A division, then an addition at each place of the window."""
        yield Gradient(call.x, LayerFlops(0, (self.window + 1) * call.y.size))


@layer
class GlobalAvgPool(KeepsNothing, Pool):
    """The mean of each channel. x: (batch, C, H, W), y: (batch, C), or (batch, C, 1, 1) with `keepdims`."""

    source = "mean over height and width (torch.mean; Lin et al. 2014, §3.2)"

    keepdims: bool = False

    def output(self, call: Call) -> Shape:
        return (*call.x.shape[:2], 1, 1) if self.keepdims else call.x.shape[:2]

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A division; the result is seen at every place."""
        yield Gradient(call.x, LayerFlops(0, call.y.size))


class Adaptive(Pool):
    """Abstract: as many windows as asked for; window i of m over n runs from floor(i·n/m) to ceil((i + 1)·n/m)."""

    size: Pair

    def output(self, call: Call) -> Shape | Tensor:
        return arranged(call, (*call.x.shape[:2], *pair(self.size)))

    def members(self, call: Call) -> int:
        """Elements of all windows together; those at a border that cuts an element count in both."""
        b, c, h, w = call.x.shape
        m, n = pair(self.size)
        return b * c * covered(h, m) * covered(w, n)

    @property
    def whole(self) -> bool:
        """Whether one window covers the image."""
        return pair(self.size) == (1, 1)

    @property
    def overlaps(self) -> bool:
        return not self.whole


@layer
class AdaptiveAvgPool(Adaptive):
    """The mean of each of `size` windows, whatever the image. x: (batch, C, H, W), y: (batch, C, *size)."""

    source = "mean over adaptive windows (torch.nn.AdaptiveAvgPool2d; He et al. 2015, SPP); to 1 × 1 it is torch.mean"

    size: Pair

    def forward(self, call: Call) -> LayerFlops:
        """An operation per member of a window: the additions and a division."""
        return LayerFlops(0, self.members(call))

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A division a window, and an addition per member unless there is but one window."""
        yield Gradient(call.x, LayerFlops(0, call.y.size + (0 if self.whole else self.members(call))))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """The input; a mean over everything keeps nothing."""
        if not self.whole:
            yield call.x


@layer
class AdaptiveMaxPool(Maxima, Adaptive):
    """The largest of each of `size` windows, whatever the image. x: (batch, C, H, W), y: (batch, C, *size)."""

    source = "max over adaptive windows (torch.nn.AdaptiveMaxPool2d; He et al. 2015, SPP); keeps x and int64 places"

    size: Pair

    def forward(self, call: Call) -> LayerFlops:
        """One comparison less than members of each window."""
        return LayerFlops(0, self.members(call) - call.y.size)


@layer
class WindowMean(KeepsInputs, Shaped, Moving):
    """The mean of each window; `terms`: numbers in all windows together, those of a rim too."""

    source = "torch.nn.AvgPool3d, AdaptiveAvgPool3d; keeps x"

    shape: tuple[int, ...]
    terms: int

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, self.terms)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A division for each window, then an addition at each of its places."""
        yield Gradient(call.x, LayerFlops(0, call.y.size + self.terms))


def covered(size: int, windows: int) -> int:
    """Elements in all adaptive windows over an axis together: n + m − gcd(n, m).

    By Gauss, gcd(n, m) is the sum of φ(d) over their common divisors d, so that m − gcd(n, m) is the sum of φ(d) over
    the divisors d of m that do not divide n.
    """
    total = size
    for divisor in divisors(windows)[1:]:
        rest = size - divisor * (size // divisor)
        total = total + _totient(divisor) * minimum(1, rest)
    return total


def _totient(n: int) -> int:
    """Euler's φ: how many of 1 … n share no divisor with n."""
    result, rest = n, n
    for prime in range(2, isqrt(n) + 1):
        if prime * prime > rest:
            break
        if rest % prime == 0:
            result -= result // prime
            while rest % prime == 0:
                rest //= prime
    return result - result // rest if rest > 1 else result


@layer
class Unpool(Shaped, Moving):
    """Numbers at the places that pooling took them from, zeros elsewhere; the second input is those places."""

    source = "torch.nn.MaxUnpool2d, MaxUnpool3d (Zeiler & Fergus 2014, §2.1); dx is g at the places"
    in_lists = False
    arity = 2
    sorts, launches = ("gather", "gather"), (2, 1)

    shape: tuple[int, ...]

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.inputs[1]
