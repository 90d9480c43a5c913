"""Kinds that reduce over axes, or run along one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from costmodel.graph.call import Call, Gradient, LayerFlops, Workspace
from costmodel.graph.tensor import Shape, Storage, Tensor
from costmodel.layers.base import (
    NO_WORKSPACE,
    Function,
    Movement,
    OneKernel,
    PerElement,
    Shaped,
    Weightless,
    layer,
)
from costmodel.symbolic.sizes import largest, maximum, minimum
from costmodel.training.dtypes import size_bytes
from costmodel.training.fields import Constant

Keeps = Literal["input", "output"]


class Reduction(NamedTuple):
    """Operations of each pass, per element of the input and per result, and what backward needs."""

    forward: tuple[int, int]
    backward: tuple[int, int]
    keeps: tuple[Keeps, ...]


REDUCTIONS = {
    "amax": Reduction((1, -1), (2, 0), ("input", "output")),
    "amin": Reduction((1, -1), (2, 0), ("input", "output")),
    "linalg_vector_norm": Reduction((2, 0), (1, 1), ("input", "output")),
    "logsumexp": Reduction((4, 0), (3, 0), ("input", "output")),
    "max": Reduction((1, -1), (2, 0), ("input", "output")),
    "mean": Reduction((1, 0), (0, 1), ()),
    "min": Reduction((1, -1), (2, 0), ("input", "output")),
    "nansum": Reduction((3, -1), (2, 0), ("input",)),
    "norm": Reduction((2, 0), (1, 1), ("input", "output")),
    "prod": Reduction((1, -1), (1, 1), ("input", "output")),
    "std": Reduction((4, 1), (3, 2), ("input", "output")),
    "sum": Reduction((1, -1), (0, 0), ()),
    "var": Reduction((4, 0), (3, 1), ("input",)),
}
"""Reductions by name. A norm is √Σ x²: dx = x·(g/y); of a product dx = g·y/x, of a variance 2/(n − 1)·g·(x − μ).

`amax` and `amin` are over axes, `max` and `min` over a whole tensor: PyTorch differentiates them apart.
"""


def counting_bytes(mask: int) -> int:
    """What a sum of so many truth values makes of them first: whole numbers (``make_reduction``) [bytes]."""
    return size_bytes(mask, "int64")


def combined_steps(function: str, call: Call) -> Workspace:
    """What backward of extremes and products makes on the way, the gradient itself apart.

    Of extremes over axes a mask of where they are, how many, which are counted as whole numbers, and g divided by that;
    a CPU casts the mask before it is multiplied (``scale_grad_by_count``). Of those of a whole tensor masks (one, or on
    a GPU those of what is no number too) while they are counted (``evenly_distribute_backward``). Of products over axes
    where x is 0, how often, and y/x or g·y (``prod_backward``, of numbers that are not 0).
    """
    x, y, cpu = call.x.size, call.y.size, call.tape.device == "cpu"
    counts, gradient = size_bytes(y, "int64"), call.x.bytes
    if function in ("max", "min"):
        counted = x + gradient if cpu else 3 * x
        steps = [counted + counting_bytes(x), gradient + (x if cpu else 3 * x)]
    elif function == "prod" and not call.y.shape:
        steps = [2 * gradient]
    elif function == "prod":
        steps = [x + counts + counting_bytes(x), x + counts + 2 * gradient]
    else:
        scaled = gradient * (2 if cpu else 1) + call.y.bytes
        steps = [x + counts + counting_bytes(x), x + counts + scaled]
    return Workspace(0, 0, largest(steps) - gradient)


def norm_steps(order: float, x: Tensor, y: Tensor) -> Workspace:
    """What backward of a norm of this order makes on the way (``norm_backward``).

    Of the absolute sum the signs; of the Euclidean norm x/y, and a mask of where y is 0. Of the largest |x| it, a mask
    of where it is y, how many those are, and while that is counted whole numbers, or g divided by it, that at those
    places, and the signs. Else |x| to a power, the signs, and their product, for which then is a power of y; above 2 x
    is in the signs' place. Of the number of those that are not 0 there is no gradient.
    """
    n, rows, mask_bytes = x.size, y.size, x.size
    if order == 0:
        return NO_WORKSPACE
    if abs(order) == math.inf:
        rest = maximum(3 * x.bytes + y.bytes, counting_bytes(n))
        return Workspace(0, 0, rest + mask_bytes + size_bytes(rows, "int64"))
    if order == 1:
        return Workspace(0, n)
    if order == 2:
        return Workspace(0, n, rows)
    if order > 2:
        return Workspace(0, n + rows)
    if order > 1:
        return Workspace(0, 2 * n)
    return Workspace(0, 2 * n, maximum(mask_bytes, size_bytes(rows, y.dtype)))


@layer
class Reduce(Shaped, OneKernel, Weightless):
    """One number for all that lie along some axes; `shape`: of the result; `order`: of a norm."""

    source = "torch's reductions; what backward needs is from its table of derivatives"
    in_lists = False
    sorts = "reduction", "pointwise"

    function: str
    shape: tuple[int, ...]
    order: Constant = 2.0

    @property
    def counts(self) -> bool:
        """Whether it is a norm of order 0, how many numbers are not 0, which has no gradient (``norm_backward``)."""
        return self.function in ("norm", "linalg_vector_norm") and self.order == 0

    def forward(self, call: Call) -> LayerFlops:
        """See `REDUCTIONS`; sums and means of complex numbers are of both their parts."""
        element, result = REDUCTIONS[self.function].forward
        return LayerFlops(0, element * call.x.reals + result * call.y.reals)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """See `REDUCTIONS`; the gradient of a sum is the incoming one, seen at every place; a count has none."""
        element, result = REDUCTIONS[self.function].backward
        if self.counts:
            return
        yield Gradient(
            call.x, LayerFlops(0, element * call.x.reals + result * call.y.reals), shared=self.function == "sum"
        )

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        for keeps in REDUCTIONS[self.function].keeps:
            yield call.x if keeps == "input" else call.y

    def workspace(self, call: Call) -> Workspace:
        """What backward makes on the way.

        x − y and eˣ⁻ʸ; x − μ, μ and the factor before it, of a deviation also g divided by it. Of a sum of what is a
        number masks of what is none and what is one, of which a CPU casts the second. Of norms see `norm_steps`, of
        extremes and products `combined_steps`.
        """
        if self.function in ("norm", "linalg_vector_norm"):
            return norm_steps(self.order, call.x, call.y)
        if self.function in ("amax", "amin", "max", "min", "prod"):
            return combined_steps(self.function, call)
        x, y = call.x.size, call.y.size
        if self.function == "nansum":
            return Workspace(0, x if call.tape.device == "cpu" else 0, 2 * x)
        return Workspace(0, {"logsumexp": 2 * x, "var": x + 2 * y, "std": x + 3 * y}.get(self.function, 0))


@layer
class Trace(Movement):
    """The sum of a matrix's diagonal."""

    source = "torch.trace; dx is g on the diagonal of zeros"
    in_lists = False
    input_axes = "rows, columns"
    sorts, launches = ("reduction", "pointwise"), (1, 3)

    def output(self, call: Call) -> Shape:
        return ()

    def _terms(self, call: Call) -> int:
        return minimum(*call.x.shape)

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, self._terms(call) - 1)

    def workspace(self, call: Call) -> Workspace:
        """Backward fills a copy of zeros, at places in whole numbers."""
        return Workspace(0, call.x.size, size_bytes(self._terms(call), "int64"))


class Running(PerElement):
    """Abstract: along an axis, each result from those before it, into new memory; backward runs from the other end."""

    in_lists = False
    sorts = "reduction", "reduction"

    def output(self, call: Call) -> Tensor:
        return call.tape.tensor(call.x.shape)


@layer
class Cumulate(Running):
    """Running sums along an axis, from zero."""

    source = "torch.cumsum; dx is the running sum from the other end"
    costs = Function(1, 1, "nothing", 2)  # g turned round, and its running sum, which is turned round in its turn


@layer
class Cumprod(Running):
    """Running products along an axis, from one."""

    source = "torch.cumprod; dx is the running sum of g·y from the other end, divided by x, where no x is 0"
    costs = Function(1, 3, "both", 3)  # a product, an addition and a quotient back

    def workspace(self, call: Call) -> Workspace:
        """g·y, that turned round, its running sum and that turned round; and where x is 0 (``cumprod_backward``)."""
        return super().workspace(call)._replace(backward_bytes=call.x.size)


@layer
class LogCumsumExp(Running):
    """Logarithms of running sums of eˣ along an axis."""

    source = "torch.logcumsumexp; dx = eˣ times the running sum of g·e⁻ʸ from the other end"
    costs = Function(3, 6, "both")  # exp, +, log; a negation, two exp, two products and an addition back
    sorts = "pointwise", "pointwise"

    def workspace(self, call: Call) -> Workspace:
        """Backward makes logarithms of what is positive of the gradient and of what is negative, and −∞ to fill both.

        While the second of the two sums runs from the other end there are also the first, and of the second the
        difference from y, turned round, its sum, and that turned back (``logcumsumexp_backward``).
        """
        return Workspace(0, 7 * call.x.size + 1)
