"""Losses: means over the batch, and what they keep."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from costmodel.graph.call import Call, Gradient, LayerFlops, Weights, Workspace
from costmodel.graph.kernel import Kernel, MeshAxis, Message, Product
from costmodel.graph.tensor import Shape, Storage, Tensor, show_shape
from costmodel.layers.base import KeepsInputs, Layer, OneKernel, Shaped, Unbuffered, Weightless, layer
from costmodel.layers.kernels import backward_pass, distinct_bytes, is_matrix, stream
from costmodel.symbolic.sizes import ceil_div
from costmodel.training.dtypes import Dtype, size_bytes
from costmodel.training.fields import Probability


class Loss(Layer):
    """Abstract: prediction and target in, one number out. Its own gradient is the constant 1."""

    in_lists = False

    def output(self, call: Call) -> Shape | Tensor:
        return ()


def number_in_whole(call: Call) -> Tensor:
    """One number in memory that was taken for one of each element: ``resize_`` to fewer gives nothing back."""
    return Tensor(call.tape, (), call.fresh("activation", *call.x.shape), requires_grad=False)


@layer
class CrossEntropy(Loss, Weightless):
    """−mean(log softmax(x)[target]); x: (batch, classes, ...) and target: (batch, ...) of class indices.

    Per row of n classes: maximum n − 1, subtraction n, exp n, sum n − 1, log 1, subtraction n, and 1
    for the mean of the rows, whose divisor carries the sign: 5n.

    smoothing ε: (1 − ε) of that, and ε times the same mean over all classes (Szegedy et al. 2016, §7), which takes a
    sum of all numbers, its divisor and two factors more.
    """

    source = "−mean(log softmax(x)[target]) (torch.nn.CrossEntropyLoss; Goodfellow et al. 2016, §6.2.2.3)"
    arity = 2

    smoothing: Probability = 0.0

    def check(self, call: Call) -> None:
        super().check(call)
        b, _, *rest = call.x.shape
        if call.inputs[1].shape != (b, *rest):
            raise call.fail(f"targets must be {show_shape((b, *rest))}")

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, 5 * call.x.size + (call.x.size + 3 if self.smoothing else 0))

    def backward(self, call: Call) -> Iterable[Gradient]:
        """dx = (softmax(x) − [target])/rows, from the log-softmax: exp, product and subtraction per element.

        Smoothed, what is subtracted is another constant.
        """
        yield Gradient(call.x, LayerFlops(0, 3 * call.x.size))

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        x, target = call.x, call.inputs[1]
        rows = size_bytes(target.size, x.dtype)
        yield stream(call, "", "reduction", 5 * x.size - target.size, distinct_bytes(x), x.bytes)
        yield stream(call, "pick", "gather", target.size, rows + target.bytes, 2 * call.y.bytes)
        if self.smoothing:
            yield stream(call, "smooth", "reduction", x.size + 3, x.bytes + target.bytes, 2 * rows, 11)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """Zeros but at the targets, then the gradient of the log-softmax."""
        x, target = call.x, call.inputs[1]
        for _, work, _ in call.gradients():
            yield stream(call, "backward pick", "gather", 0, target.bytes, x.bytes, 2)
            if self.smoothing:
                yield stream(call, "backward smooth", "pointwise", 0, 2 * x.bytes, x.bytes, 6)
            yield stream(call, "backward", "reduction", work.pointwise, 2 * x.bytes, x.bytes)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """The log-softmax, the targets and the total weight; smoothed also which targets are ignored, and how many not.

        ``at::cross_entropy_loss_label_smoothing``: a mask, and a whole number.
        """
        yield call.fresh("logits", *call.x.shape)
        yield call.inputs[1]
        yield call.fresh("logits", 1)
        if self.smoothing:
            yield call.fresh("mask", *call.inputs[1].shape)
            yield call.fresh("index", 1)

    def workspace(self, call: Call) -> Workspace:
        """Backward holds the gradient of the log-softmax beside that of the logits; smoothed, both parts of it."""
        return Workspace(0, (2 if self.smoothing else 1) * call.x.size)


@layer
class SplitCrossEntropy(Loss, OneKernel, Weightless):
    """−mean(log softmax(x)[target]) of logits split by classes; x: (rows, n) of `devices` · n classes, target: (rows).

    The largest logit, the sum of exponentials and the logarithm of each row's class are reduced over the ranks.
    """

    source = "torch.distributed.tensor.parallel.loss_parallel; Shoeybi et al. 2019, §3"
    arity = 2

    axis: MeshAxis
    devices: int

    def forward(self, call: Call) -> LayerFlops:
        """As of a rank's own classes; what the reduction adds is the network's."""
        return LayerFlops(0, 5 * call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(0, 3 * call.x.size))

    def sent(self, call: Call) -> tuple[Message, ...]:
        """Softmax is computed in fp32, of which what is picked is 16-bit again (``elementwise_dtypes``)."""
        dtypes: tuple[Dtype, ...] = ("fp32", "fp32", call.x.dtype)
        return tuple(Message("all_reduce", self.axis, self.devices, call.inputs[1].size, each) for each in dtypes)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """The log-softmax, the targets and the total weight."""
        yield call.fresh("logits", *call.x.shape)
        yield call.inputs[1]
        yield call.fresh("logits", 1)

    def workspace(self, call: Call) -> Workspace:
        """Forward has shifted logits, and three numbers of each row; backward the −1 at targets and the sum with exp.

        Of 16-bit logits forward has them in fp32, shifted, and the result before it is 16-bit again.

        For each row backward also has two indices, their order, a mask and two numbers.
        """
        rows = call.inputs[1].size
        times = size_bytes(1, "fp32") // size_bytes(1, call.x.dtype)
        forward = times * ((1 if times == 1 else 3) * call.x.size + 3 * rows) - 2
        return Workspace(forward, 2 * call.x.size + 2 * rows, 25 * rows)


@layer
class VocabParallelCrossEntropy(Loss, OneKernel, Weightless):
    """−mean(log softmax(x)[target]) in fp32 of logits split by classes; x: (rows, n), a rank's own, target: (rows).

    The largest logit, that of each row's class and the sum of exponentials are reduced over the ranks in fp32. Kept is
    the softmax, in the place of the logits' fp32 copy, or of the logits that are fp32; backward makes their gradient
    in its place.
    """

    source = "megatron.core.tensor_parallel.cross_entropy (Shoeybi et al. 2019, §3; Korthikanti et al. 2022, §4.3)"
    arity = 2

    axis: MeshAxis
    devices: int

    def forward(self, call: Call) -> LayerFlops:
        """Maximum, subtraction, exp, sum and quotient of each class."""
        return LayerFlops(0, 5 * call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """The softmax less one at the target, times the incoming gradient."""
        yield Gradient(call.x, LayerFlops(0, call.x.size + call.inputs[1].size))

    def sent(self, call: Call) -> tuple[Message, ...]:
        message = Message("all_reduce", self.axis, self.devices, call.inputs[1].size, "fp32")
        return (message,) * 3 if self.devices > 1 else ()

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """The softmax, and for each row its class as the rank counts it and whether another rank has it."""
        yield call.x if call.x.dtype == "fp32" else call.fresh("statistic", *call.x.shape)
        yield call.fresh("index", *call.inputs[1].shape)
        yield call.fresh("mask", *call.inputs[1].shape)


@layer
class MeanSquaredError(KeepsInputs, Loss, OneKernel, Weightless):
    """mean((x − target)²); x and target of one shape."""

    source = "mean((x − target)²) (torch.nn.MSELoss; ``mse_loss_out``); dx = 2 (x − target)/n"
    arity = 2

    def check(self, call: Call) -> None:
        super().check(call)
        if call.x.shape != call.inputs[1].shape:
            raise call.fail(f"targets must be {show_shape(call.x.shape)}")

    def output(self, call: Call) -> Tensor:
        return number_in_whole(call)

    def workspace(self, call: Call) -> Workspace:
        """The squares, beside the result's memory, which has room for them."""
        return Workspace(call.x.size, 0)

    def forward(self, call: Call) -> LayerFlops:
        """Difference, square, mean."""
        return LayerFlops(0, 3 * call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Difference and the factor 2/n."""
        yield Gradient(call.x, LayerFlops(0, 2 * call.x.size))

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        x = call.x
        yield stream(call, "", "pointwise", 2 * x.size, distinct_bytes(x) + distinct_bytes(call.inputs[1]), x.bytes)
        yield stream(call, "mean", "reduction", x.size, x.bytes, call.y.bytes)


@layer
class FusedLinearCrossEntropy(Loss, Unbuffered):
    """The cross-entropy of x Wᵀ + b, over so many `chunks` of rows, one after another.

    x: (..., n_in), targets: (...), W: (features, n_in), b: (features). Logits exist for one chunk at a time: while they
    do, the gradients of x, W and b are computed, for a loss whose own is 1. Backward only scales those.
    """

    source = "Hsu et al. 2024, §3.2 (FusedLinearCrossEntropy): dx, dW and db are computed in the forward pass"
    arity = 2

    features: int
    bias: bool = False
    chunks: int = 1

    def check(self, call: Call) -> None:
        super().check(call)
        if not call.x.shape or call.inputs[1].shape != call.x.shape[:-1]:
            raise call.fail(f"targets must be {show_shape(call.x.shape[:-1])}, one for each row of features")
        if call.x.rows < self.chunks:
            raise call.fail(f"{call.x.rows} rows cannot make {self.chunks} chunks")

    def weights(self, call: Call) -> Weights:
        weights = {"weight": (self.features, call.x.shape[-1])}
        return weights | {"bias": (self.features,)} if self.bias else weights

    def forward(self, call: Call) -> LayerFlops:
        """Up to three products, and as in `CrossEntropy` five operations a logit and three for its gradient.

        A bias is added to every logit, and its gradient adds them up.
        """
        logits = call.x.rows * self.features
        product = 2 * logits * call.x.shape[-1]
        products = 1 + call.x.requires_grad + call.weights["weight"].requires_grad
        trained = self.bias and call.weights["bias"].requires_grad
        pointwise = 5 + 3 * call.y.requires_grad + self.bias + trained
        return LayerFlops(product * products, pointwise * logits)

    def backward(self, call: Call) -> Iterable[Gradient]:
        for operand in (call.x, *call.weights.values()):
            yield Gradient(operand, LayerFlops(0, operand.size))

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """For each chunk the logits, their loss and gradient in place, and a product for each gradient."""
        logits, inputs = ceil_div(call.x.rows, self.chunks), call.x.shape[-1]
        weight = call.weights["weight"]
        x, w, y = (size_bytes(n, call.x.dtype) for n in (logits * inputs, weight.size, logits * self.features))
        products = [("", Product(1, logits, self.features, inputs), x + w, y)]
        if call.x.requires_grad:
            products.append(("input", Product(1, logits, inputs, self.features), y + w, x))
        if weight.requires_grad:
            products.append(("weight", Product(1, self.features, inputs, logits), x + y + w, w))
        n = self.chunks
        for what, sizes, read, written in products:
            name = f"{self.kind} {what}".strip()
            yield Kernel(name, "product", n * sizes.flops, n * read, n * written, call.x.dtype, n, sizes)
        yield stream(call, "loss", "reduction", self.forward(call).pointwise, 2 * n * y, n * y, n)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        return backward_pass(call, "pointwise", launches=len(call.gradients()))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        for operand in (call.x, *call.weights.values()):
            if operand.requires_grad:
                yield call.fresh("activation", *operand.shape)

    def workspace(self, call: Call) -> Workspace:
        """One chunk's logits and, in training, their gradient; a copy of x where memory order allows no view of rows.

        Products are added to the weight's gradient in place.
        """
        logits = ceil_div(call.x.rows, self.chunks) * self.features
        return Workspace(logits * (1 + call.y.requires_grad) + (0 if is_matrix(call.x) else call.x.size), 0)


class LossOperations(NamedTuple):
    """Operations per element of a loss, of the gradient of what is compared, and of that of its target.

    The gradients' include the product with the incoming one. steps: tensors of x's size that forward has beside that of
    the elements' losses. number: where a mean or sum is: in memory of its own, in memory made for all elements beside
    theirs, or in theirs.
    """

    forward: int
    backward: int
    target: int
    steps: int
    number: Literal["own", "whole", "elements"]


LOSSES = {
    "binary_cross_entropy": LossOperations(7, 5, 5, 0, "elements"),
    "binary_cross_entropy_with_logits": LossOperations(7, 6, 2, 1, "own"),
    "huber_loss": LossOperations(8, 4, 4, 0, "own"),
    "kl_div": LossOperations(3, 2, 4, 2, "own"),
    "mse_loss": LossOperations(2, 3, 3, 0, "whole"),
    "smooth_l1_loss": LossOperations(7, 5, 5, 0, "whole"),
    "soft_margin_loss": LossOperations(5, 8, 8, 0, "elements"),
}
"""Losses between two tensors, by name (``aten/src/ATen/native/Loss.cpp``, ``cuda/Loss.cu``).

Their definitions: (t − 1)·log(1 − x) − t·log x; (1 − t)·x + log(1 + e⁻ˣ); |d| ≤ δ ? d²/2 : δ·(|d| − δ/2);
t·(log t − x); d²; |d| < β ? d²/(2β) : |d| − β/2, with d = x − t; log(1 + e⁻ᵗˣ).
"""


class InnerLoss(OneKernel, Weightless):
    """Abstract: a loss that a module takes within itself, so that its gradient is not the constant 1."""

    arity = 2, 4


@layer
class Compared(InnerLoss):
    """A loss between two tensors of one shape: of each element, or the mean or sum of those.

    weighs_positives: whether the last of further inputs is what logits' positives weigh.
    """

    source = "torch.nn.functional's losses; both are kept"

    function: str
    reduction: Literal["none", "mean", "sum"]
    weighs_positives: bool = False

    @property
    def cast_as(self) -> str:
        """By function."""
        return f"{self.kind}.{self.function}"

    def output(self, call: Call) -> Shape | Tensor:
        if self.reduction == "none":
            return call.x.shape
        return () if LOSSES[self.function].number == "own" else number_in_whole(call)

    def forward(self, call: Call) -> LayerFlops:
        """See `LOSSES`; a sum is an addition less than there are elements, a mean has a quotient more."""
        each = LOSSES[self.function].forward * call.x.size
        return LayerFlops(0, each + {"none": 0, "mean": call.x.size, "sum": call.x.size - 1}[self.reduction])

    def backward(self, call: Call) -> Iterable[Gradient]:
        """See `LOSSES`; of a mean the incoming gradient is divided first."""
        share = int(self.reduction == "mean")
        x, target = call.inputs[:2]
        yield Gradient(x, LayerFlops(0, LOSSES[self.function].backward * x.size + share))
        again = 0 if x.requires_grad else share
        yield Gradient(target, LayerFlops(0, LOSSES[self.function].target * x.size + again))

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        elements = LOSSES[self.function].forward * call.x.size
        yield stream(call, "", "pointwise", elements, sum(distinct_bytes(x) for x in call.inputs), call.x.bytes)
        if self.reduction != "none":
            rest = self.forward(call).pointwise - elements
            yield stream(call, self.reduction, "reduction", rest, call.x.bytes, call.y.bytes)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        return backward_pass(call, launches=max(1, len(call.gradients())))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Prediction, target and weights; of a divergence the prediction only for the target's gradient."""
        x, *others = call.inputs
        if self.function != "kl_div" or others[0].requires_grad:
            yield x
        yield from others

    def workspace(self, call: Call) -> Workspace:
        """See `LOSSES`: forward's steps, and the elements' losses unless those are the result or in its memory; of
        weights of positives they less 1.

        Backward of a divergence has −g for x; for the target also g of each element if that is of a mean, the terms of
        t·log t, and three masks. It is composed, so that its number comes after the steps, and g goes once it is
        divided. Of logits it has −x for the target; weights of positives, already multiplied by the target, and σ(x)
        for x, or log σ of both signs for the target, which on a CPU keeps a tensor for itself. Of a soft margin it has
        −t and −t·x beside their exponential.
        """
        x, target, *_ = call.inputs
        operations, steps, mask_bytes = LOSSES[self.function], 0, 0
        apart = self.reduction != "none" and operations.number != "elements"
        if self.function == "kl_div":
            steps = 4 + (self.reduction == "mean") - x.requires_grad - 1 if target.requires_grad else 1
            mask_bytes = 3 * x.size * target.requires_grad
            number, incoming = (call.y.size * other for other in (self.reduction != "none", self.reduction == "mean"))
            return Workspace((2 + apart) * x.size - number, steps * x.size - incoming, mask_bytes)
        if self.weighs_positives:
            steps = 2 + (target.requires_grad and call.tape.device == "cpu")
        elif self.function == "binary_cross_entropy_with_logits":
            steps = int(target.requires_grad)
        elif self.function == "soft_margin_loss":
            steps = 2
        weights = call.inputs[-1].size if self.weighs_positives else 0
        return Workspace((operations.steps + apart) * x.size + weights, steps * x.size, mask_bytes)


@layer
class NllLoss(Shaped, InnerLoss):
    """−x[target], x: (batch, classes, ...) of logarithms: of each row, or the mean or sum. `shape`: of the result."""

    source = "torch.nn.functional.nll_loss; keeps x, the target, weights of classes and the total weight"
    sorts, launches = ("gather", "gather"), (1, 2)

    shape: tuple[int, ...]

    def forward(self, call: Call) -> LayerFlops:
        """A negation a row, or an addition and at the end a quotient or a negation."""
        return LayerFlops(0, call.inputs[1].size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A product a row."""
        yield Gradient(call.x, LayerFlops(0, call.inputs[1].size))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield from call.inputs
        yield call.fresh("activation", 1)


@layer
class ClassMargin(Shaped, InnerLoss):
    """Σ max(0, 1 − x[target] + x_i)/classes over the other classes i, of each row, or the mean of rows, or their sum.

    A third input weighs rows by their class. shape: of the result. several: a row may have several classes; it is
    counted as if it had one. squared: the sum is of squares.
    """

    source = "torch.nn.functional.multi_margin_loss, multilabel_margin_loss; keeps x and the target"
    sorts = "reduction", "pointwise"
    arity = 2, 3

    shape: tuple[int, ...]
    several: bool = False
    squared: bool = False

    def _weighing(self, call: Call) -> int:
        """Products by the weights of rows."""
        return call.x.rows if len(call.inputs) > 2 else 0

    def forward(self, call: Call) -> LayerFlops:
        """A difference, a sum with the margin, the larger of it and 0, their sum and a quotient; a mean over rows."""
        rows = call.x.rows
        return LayerFlops(
            0, (4 + self.squared) * (call.x.size - rows) + (0 if self.shape else rows) + self._weighing(call)
        )

    def backward(self, call: Call) -> Iterable[Gradient]:
        """The same, compared; a choice of g over classes, and for the target's own the sum of these.

        Of squares g over classes is doubled, and multiplied by the difference.
        """
        rows = call.x.rows
        work = (5 + self.squared) * (call.x.size - rows) + (1 + self.squared) * rows
        yield Gradient(call.x, LayerFlops(0, work + (0 if self.shape else 1) + self._weighing(call)))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Of several classes also which they are."""
        yield from call.inputs
        if self.several:
            yield call.fresh("activation", *call.x.shape)
