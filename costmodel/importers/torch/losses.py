"""Losses that a module itself takes, beyond those that have a class of their own in `costmodel.layers`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from costmodel.graph.tensor import Call, Shape, Storage, Tensor
from costmodel.layers.base import NO_SCRATCH, Gradient, Scratch, Weightless, Work, takes, unlisted


class Comparison(NamedTuple):
    """Operations per element of a loss and of its gradient."""

    forward: int
    backward: int


LOSSES = {
    "binary_cross_entropy": Comparison(7, 5),
    "binary_cross_entropy_with_logits": Comparison(8, 6),
    "huber_loss": Comparison(5, 4),
    "kl_div": Comparison(4, 2),
    "mse_loss": Comparison(3, 2),
    "smooth_l1_loss": Comparison(5, 4),
}
"""Losses between two tensors, by name."""


class Loss(Weightless):
    """Abstract: a prediction and a target in, their loss out, of one number or for each element. `shape`: of it."""

    in_lists = False

    shape: tuple[int, ...]

    def check(self, call: Call) -> None:
        """Takes both."""
        takes(call, 2)

    def output(self, call: Call) -> Shape:
        """See the class."""
        return self.shape

    def scratch(self, call: Call) -> Scratch:
        """None."""
        return NO_SCRATCH


@unlisted
class Compared(Loss):
    """A loss between two tensors of one shape."""

    source = "torch.nn.functional's losses; both are kept"

    function: str
    shape: tuple[int, ...]

    def forward(self, call: Call) -> Work:
        """See `LOSSES`; a mean adds up."""
        return Work(0, LOSSES[self.function].forward * call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """See `LOSSES`."""
        for x in call.inputs:
            yield Gradient(x, Work(0, LOSSES[self.function].backward * call.x.size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """Prediction and target."""
        yield from call.inputs


@unlisted
class Picked(Loss):
    """The mean of −x[target], x: (batch, classes, ...) of logarithms."""

    source = "torch.nn.functional.nll_loss; keeps x, the target and the total weight"

    shape: tuple[int, ...]

    def forward(self, call: Call) -> Work:
        """An addition a row."""
        return Work(0, call.inputs[1].size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A product a row."""
        yield Gradient(call.x, Work(0, call.inputs[1].size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """See the source."""
        yield from call.inputs
        yield call.fresh("activation", 1)
