"""Pooling to a size that is given, whatever the size of the image."""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt

from costmodel.graph.tensor import Call, Shape, Storage, Tensor
from costmodel.layers.base import Gradient, Work, layer
from costmodel.layers.pool import Pool
from costmodel.layers.spatial import arranged
from costmodel.symbolic.sizes import minimum
from costmodel.training.fields import Pair, pair


class Adaptive(Pool):
    """Abstract: as many windows as asked for; window i of m over n runs from floor(i·n/m) to ceil((i + 1)·n/m)."""

    size: Pair

    def output(self, call: Call) -> Shape | Tensor:
        """(batch, C, *size)."""
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


@layer
class AdaptiveAvgPool(Adaptive):
    """The mean of each of `size` windows, whatever the image. x: (batch, C, H, W), y: (batch, C, *size)."""

    source = "mean over adaptive windows (torch.nn.AdaptiveAvgPool2d; He et al. 2015, SPP); to 1 × 1 it is torch.mean"

    size: Pair

    def forward(self, call: Call) -> Work:
        """An operation per member of a window: the additions and a division."""
        return Work(0, self.members(call))

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A division a window, and an addition per member unless there is but one window."""
        yield Gradient(call.x, Work(0, call.y.size + (0 if self.whole else self.members(call))))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """The input; a mean over everything keeps nothing."""
        if not self.whole:
            yield call.x


@layer
class AdaptiveMaxPool(Adaptive):
    """The largest of each of `size` windows, whatever the image. x: (batch, C, H, W), y: (batch, C, *size)."""

    source = "max over adaptive windows (torch.nn.AdaptiveMaxPool2d; He et al. 2015, SPP); keeps x and int64 places"

    size: Pair

    def forward(self, call: Call) -> Work:
        """One comparison less than members of each window."""
        return Work(0, self.members(call) - call.y.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Each gradient is added at its maximum's place."""
        yield Gradient(call.x, Work(0, call.y.size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """The input, and where each maximum lies."""
        yield call.x
        yield call.fresh("index", *call.y.shape)


def covered(size: int, windows: int) -> int:
    """Elements in all adaptive windows over an axis together: n + m − gcd(n, m).

    By Gauss, gcd(n, m) is the sum of φ(d) over their common divisors d, so that m − gcd(n, m) is the sum of φ(d) over
    the divisors d of m that do not divide n.
    """
    total = size
    for divisor in _divisors(windows):
        rest = size - divisor * (size // divisor)
        total = total + _totient(divisor) * minimum(1, rest)
    return total


def _divisors(n: int) -> list[int]:
    """All but 1, in order."""
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)} - {1})


def _totient(n: int) -> int:
    """Euler's φ: how many of 1 … n share no divisor with n."""
    result, rest = n, n
    for prime in range(2, isqrt(n) + 1):
        if rest % prime == 0:
            result -= result // prime
            while rest % prime == 0:
                rest //= prime
    return result - result // rest if rest > 1 else result
