"""Losses: means over the batch, and what they keep."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.graph import Call
from costmodel.layers.base import Gradient, Scratch, Weightless, Work, layer, takes
from costmodel.tensor import Shape, Storage, Tensor, show_shape


class Loss(Weightless):
    """Abstract: prediction and target in, one number out. Its own gradient is the constant 1."""

    def output(self, call: Call) -> Shape:
        """A scalar."""
        return ()


@layer
class CrossEntropy(Loss):
    """−mean(log softmax(x)[target]); x: (batch, classes, ...) and target: (batch, ...) of class indices.

    Per row of n classes: maximum n − 1, subtraction n, exp n, sum n − 1, log 1, subtraction n, and 1
    for the mean of the rows, whose divisor carries the sign: 5n.
    """

    source = "−mean(log softmax(x)[target]) (torch.nn.CrossEntropyLoss; Goodfellow et al. 2016, §6.2.2.3)"

    def check(self, call: Call) -> None:
        """A target for every row."""
        takes(call, 2)
        b, _, *rest = call.x.shape
        if call.inputs[1].shape != (b, *rest):
            raise call.fail(f"targets must be {show_shape((b, *rest))}")

    def forward(self, call: Call) -> Work:
        """See the class."""
        return Work(0, 5 * call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """dx = (softmax(x) − [target])/rows, from the log-softmax: exp, product and subtraction per element."""
        yield Gradient(call.x, Work(0, 3 * call.x.size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """The log-softmax, the targets and the total weight."""
        yield call.fresh("logits", *call.x.shape)
        yield call.inputs[1]
        yield call.fresh("logits", 1)

    def scratch(self, call: Call) -> Scratch:
        """Backward holds the gradient of the log-softmax beside that of the logits."""
        return Scratch(0, call.x.size)


@layer
class MeanSquaredError(Loss):
    """mean((x − target)²); x and target of one shape."""

    source = "mean((x − target)²) (torch.nn.MSELoss); dx = 2 (x − target)/n"

    def check(self, call: Call) -> None:
        """Shapes agree."""
        takes(call, 2)
        if call.x.shape != call.inputs[1].shape:
            raise call.fail(f"targets must be {show_shape(call.x.shape)}")

    def forward(self, call: Call) -> Work:
        """Difference, square, mean."""
        return Work(0, 3 * call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Difference and the factor 2/n."""
        yield Gradient(call.x, Work(0, 2 * call.x.size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """Prediction and target."""
        yield from call.inputs

    def scratch(self, call: Call) -> Scratch:
        """None."""
        return Scratch(0, 0)
