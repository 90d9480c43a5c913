"""Elementwise arithmetic and choices between activations, changes of data type, dropout and its like."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import ClassVar

from costmodel.graph.call import Call, Gradient, GradientOrder, LayerFlops, Weights, Workspace
from costmodel.graph.kernel import Kernel
from costmodel.graph.tensor import Shape, Storage, Tensor, broadcast, dense_strides, elementwise_strides
from costmodel.layers.base import (
    NO_WORKSPACE,
    Function,
    KeepsInputs,
    KeepsInputsAndOutput,
    KeepsNothing,
    Movement,
    OneKernel,
    PerElement,
    Unary,
    Weightless,
    layer,
)
from costmodel.layers.kernels import backward_each
from costmodel.symbolic.sizes import largest, maximum, product
from costmodel.training.dtypes import RealType, size_bytes
from costmodel.training.fields import Constant, Probability


class Elementwise(OneKernel, Weightless):
    """Abstract: inputs of one shape, or of shapes that broadcast, two of them unless a kind says otherwise.

    work: operations per element that each input's gradient takes; one that takes none is the incoming gradient itself.
    """

    arity = 2
    work: ClassVar[tuple[int, ...]]

    def output(self, call: Call) -> Tensor:
        """New memory of the joint shape, in the inputs' order."""
        shape = self.joint(call)
        return call.tape.tensor(shape, strides=elementwise_strides(shape, call.inputs))

    def joint(self, call: Call) -> Shape:
        """The shape that all inputs broadcast to."""
        *others, last = (x.shape for x in call.inputs)
        return reduce(lambda joint, shape: broadcast(shape, joint, call.name), reversed(others), last)

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, call.y.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        return elementwise_gradients(call, self.work)

    def gradient_order(self, call: Call, x: Tensor) -> GradientOrder:
        return "incoming"

    def views_gradient(self, call: Call, x: Tensor) -> bool:
        """A sum over axes that an operand lacks is made with those, and seen without (``at::sum_to``)."""
        return len(x.shape) < len(call.y.shape)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """One kernel for each operand, and a sum where it was broadcast."""
        return backward_each(call)


def elementwise_gradients(call: Call, work: Iterable[int]) -> Iterator[Gradient]:
    """A gradient for each input of so many operations per element, summed where the input was broadcast."""
    for x, each in zip(call.inputs, work, strict=True):
        whole = x.has(call.y.shape)
        yield Gradient(x, LayerFlops(0, (each + (not whole)) * call.y.size), shared=whole and not each)


@layer
class Add(KeepsNothing, Elementwise):
    """y = a + b, as in residual connections."""

    source = "y = a + b (torch.add); da = db = g, summed over broadcast axes (He et al. 2016, eq. 1)"
    work = 0, 0


def product_gradients(operands: Iterable[Tensor], y: Tensor) -> Workspace:
    """What backward of a product has beside the gradients of its operands.

    The products are all there, in the result's data type, before one operand after another is summed over its broadcast
    axes and cast to its own type (``torch/csrc/autograd/engine.cpp``, ``validate_outputs``).
    """
    needed = [x for x in operands if x.requires_grad]
    if all(x.dtype == y.dtype for x in needed):
        first = next((x for x in needed if not x.has(y.shape)), None)
        return Workspace(0, 0 if first is None else len(needed) * y.size + first.size - sum(x.size for x in needed))
    alive = most = len(needed) * y.bytes
    for x in needed:
        last = y.bytes
        if not x.has(y.shape):
            summed = size_bytes(x.size, y.dtype)
            most, alive, last = maximum(most, alive + summed), alive + summed - last, summed
        if x.dtype != y.dtype:
            most, alive = maximum(most, alive + x.bytes), alive + x.bytes - last
    return Workspace(0, 0, most - sum(x.bytes for x in needed))


def steps_or_sums(call: Call, steps: Sequence[int], operands: Sequence[Tensor] | None = None) -> Workspace:
    """What backward has beside the gradients: the most that one of its steps has in all [bytes], or while it sums.

    operands: those of whose gradients these are the steps (default: all inputs).
    """
    if not steps:
        return NO_WORKSPACE
    operands = call.inputs if operands is None else operands
    gradients = sum(x.bytes for x in operands if x.requires_grad)
    summing = product_gradients(operands, call.y)
    summing_bytes = size_bytes(summing.backward, call.y.dtype) + summing.backward_bytes
    return Workspace(0, 0, maximum(largest(steps) - gradients, summing_bytes))


class Multiplying(Elementwise):
    """Abstract: a product of the last two inputs, each of which is kept for the gradient of the other."""

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        a, b = call.inputs[-2:]
        if b.requires_grad:
            yield a
        if a.requires_grad:
            yield b

    def workspace(self, call: Call) -> Workspace:
        """What sums gradients; a CPU casts a mask that it multiplies by, each time (``TensorIteratorBase::build``)."""
        masks = [x.size for x in call.inputs if x.dtype == "bool"] if call.tape.device == "cpu" else []
        casts = size_bytes(sum(masks), call.y.dtype)
        workspace = product_gradients(call.inputs, call.y)
        return workspace._replace(forward=sum(masks), backward_bytes=maximum(workspace.backward_bytes, casts))


@layer
class Multiply(Multiplying):
    """y = a·b, as in gating."""

    source = "y = a·b (torch.mul); da = g·b, db = g·a, summed over broadcast axes"
    work = 1, 1


@layer
class Remainder(Elementwise):
    """y = a − b·⌊a/b⌋, or with the quotient rounded towards 0."""

    source = "torch.remainder, fmod; da = g, db = −g·⌊a/b⌋, summed over broadcast axes"
    work = 0, 4

    def forward(self, call: Call) -> LayerFlops:
        """A quotient, a rounding, a product and a difference per element."""
        return LayerFlops(0, 4 * call.y.size)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        return call.inputs if call.inputs[1].requires_grad else ()

    def workspace(self, call: Call) -> Workspace:
        """The quotient, rounded, and −g, which b's gradient is made of, or summed from."""
        a, b = call.inputs
        steps = [3 * call.y.bytes] if b.requires_grad else []
        return steps_or_sums(call, steps, (b,) if a.has(call.y.shape) else (a, b))


@layer
class CrossProduct(Multiplying):
    """y = a × b of vectors of three."""

    source = "torch.linalg.cross; da = b × g, db = g × a, summed over broadcast axes"
    work = 3, 3

    def output(self, call: Call) -> Tensor:
        """In row-major order."""
        return call.tape.tensor(self.joint(call))

    def forward(self, call: Call) -> LayerFlops:
        """Two products and their difference per element."""
        return LayerFlops(0, 3 * call.y.size)


@layer
class Scale(PerElement):
    """y = c·x with a constant factor c, such as 1/√d_h."""

    source = "y = c·x (torch.mul by a number); dx = c·g"
    costs = Function(1, 1, "nothing")

    factor: Constant


@layer
class Shift(PerElement):
    """y = x + c with a constant c."""

    source = "y = x + c (torch.add of a number); dx = g"
    costs = Function(1, 0, "nothing", shared=True)

    constant: Constant


@layer
class Clamp(KeepsInputs, Unary):
    """y = min(max(x, low), high), without a bound that is None; dx = g where x is within."""

    source = "torch.clamp; PyTorch keeps the input to see what was within"

    low: Constant | None = -1.0
    high: Constant | None = 1.0

    def check(self, call: Call) -> None:
        super().check(call)
        if self.low is None and self.high is None:
            raise call.fail("neither low nor high is given: give one or both")

    def _bounds(self) -> int:
        return (self.low is not None) + (self.high is not None)

    def forward(self, call: Call) -> LayerFlops:
        """A comparison with each bound per element."""
        return LayerFlops(0, self._bounds() * call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """The same comparisons and a choice per element."""
        yield Gradient(call.x, LayerFlops(0, (self._bounds() + 1) * call.x.size))

    def workspace(self, call: Call) -> Workspace:
        """Backward: a mask for each bound, and the zero that is put where x is not within (torch.where)."""
        return Workspace(0, 1, self._bounds() * call.x.size)


@layer
class LayerScale(Unary):
    """y = x·γ with a trained γ per channel, x: (batch, C, H, W), γ: (C, 1, 1)."""

    source = "y = diag(γ) x (Touvron et al. 2021, CaiT, eq. 4); dx = g·γ, dγ = Σ g·x"
    input_axes = "batch, channels, ..."

    def weights(self, call: Call) -> Weights:
        return {"weight": (call.x.shape[1], *(1 for _ in call.x.shape[2:]))}

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A product per element; γ's sums."""
        yield Gradient(call.x, LayerFlops(0, call.x.size))
        yield Gradient(call.weights["weight"], LayerFlops(0, 2 * call.x.size))

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """A product for each gradient, and the sum that makes γ's."""
        return backward_each(call)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        if call.weights["weight"].requires_grad:
            yield call.x
        yield call.weights["weight"]

    def workspace(self, call: Call) -> Workspace:
        """The products that γ's gradient sums, and x's beside them."""
        return product_gradients(call.operands(), call.y)


class RandomMask(Unary):
    """Abstract: y = x·m/(1 − p) with m random in {0, 1}; the identity in inference or for p = 0."""

    p: Probability

    def acts(self, call: Call) -> bool:
        """Whether anything is left to chance."""
        return call.tape.training and self.p > 0

    def output(self, call: Call) -> Tensor:
        return call.like(call.x) if self.acts(call) else call.x.as_strided(call.x.shape, call.x.strides)


@layer
class Dropout(RandomMask):
    """y = x·m/(1 − p) with m random in {0, 1}; the identity in inference or for p = 0."""

    source = "y = x·m/(1 − p) (torch.nn.Dropout; Srivastava et al. 2014, §4); keeps m as bool on GPU, as numbers on CPU"

    p: Probability = 0.5

    def forward(self, call: Call) -> LayerFlops:
        """Per element: compare a random number, mask, scale."""
        return LayerFlops(0, 3 * call.x.size if self.acts(call) else 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Per element: mask, scale."""
        acts = self.acts(call)
        yield Gradient(call.x, LayerFlops(0, 2 * call.x.size if acts else 0), shared=not acts)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        if self.acts(call):
            yield call.fresh("mask" if call.tape.device == "gpu" else "activation", *call.x.shape)


class BroadcastMask(RandomMask):
    """Abstract: m is smaller than x, and broadcast."""

    input_axes = "batch, channels, ..."

    @abstractmethod
    def mask_shape(self, call: Call) -> Shape:
        """Shape of m."""

    def forward(self, call: Call) -> LayerFlops:
        """A product per element; for each number of m a comparison and a division."""
        return LayerFlops(0, call.x.size + 2 * product(self.mask_shape(call)) if self.acts(call) else 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        acts = self.acts(call)
        yield Gradient(call.x, LayerFlops(0, call.x.size if acts else 0), shared=not acts)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        if self.acts(call):
            yield call.fresh("activation", *self.mask_shape(call))


@layer
class ChannelDropout(BroadcastMask):
    """Drops whole channels; m: (batch, C, 1, ...)."""

    source = "y = x·m/(1 − p), m per channel (torch.nn.Dropout2d; Tompson et al. 2015, §3.2)"

    p: Probability = 0.5

    def mask_shape(self, call: Call) -> Shape:
        return call.x.shape[:2]


@layer
class StochasticDepth(BroadcastMask):
    """Drops a residual branch of whole samples; m: (batch, 1, ...)."""

    source = "y = x·m/(1 − p), m per sample (torchvision.ops.StochasticDepth, mode 'row'; Huang et al. 2016, eq. 2)"

    p: Probability = 0.5

    def mask_shape(self, call: Call) -> Shape:
        return call.x.shape[:1]


class IdentityLike(Movement, Unary):
    """Abstract: y = x."""

    shared = True

    def output(self, call: Call) -> Tensor:
        return call.x.as_strided(call.x.shape, call.x.strides)


@layer
class Identity(IdentityLike):
    """y = x."""

    source = "y = x (torch.nn.Identity)"


@layer
class Unread(IdentityLike):
    """y = x, beside a vector of `features` weights that nothing reads: no gradient comes to it."""

    source = "a torch.nn.Parameter that forward leaves alone: autograd gives it no gradient, optimizers no state"
    fixed = True

    features: int

    def weights(self, call: Call) -> Weights:
        return {"weight": (self.features,)}


@layer
class Cast(Movement, Unary):
    """y = x in another data type."""

    source = "torch.Tensor.to under torch.autocast (Micikevicius et al. 2018, §3.1); dx is g in the type of x"
    converts = True
    in_lists = False

    dtype: RealType

    def output(self, call: Call) -> Tensor:
        """New memory in the input's order; the copy of a weight is no activation."""
        x = call.x
        origin = "cast" if x.storage.origin == "weight" else "computed"
        strides = dense_strides(x.shape, x.strides)
        return call.tape.tensor(x.shape, x.storage.role, origin=origin, strides=strides, dtype=self.dtype)


@layer
class Divide(Elementwise):
    """y = a/b."""

    source = "torch.div; da = g/b, db = −g·a/b²"

    def backward(self, call: Call) -> Iterable[Gradient]:
        """g/b, and −(g/b)·(a/b), which has the first for nothing if a needs it; a broadcast operand sums."""
        return elementwise_gradients(call, (1, 3 if call.x.requires_grad else 4))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.inputs[1]
        if call.inputs[1].requires_grad:
            yield call.inputs[0]

    def workspace(self, call: Call) -> Workspace:
        """For b's gradient a/b, that over b, and −g, before a's is made; a product that a broadcast a sums."""
        a, b = call.inputs
        elements = 4 * call.y.size if b.requires_grad else call.y.size + (0 if a.has(call.y.shape) else a.size)
        return Workspace(0, elements - sum(x.size for x in call.inputs if x.requires_grad))


class AddTerm(Elementwise):
    """Abstract: y = c + a term of a and b."""

    arity = 3

    def forward(self, call: Call) -> LayerFlops:
        """The term and a sum per element."""
        return LayerFlops(0, 2 * call.y.size)


@layer
class AddProduct(Multiplying, AddTerm):
    """y = c + a·b."""

    source = "torch.addcmul; dc = g, da = g·b, db = g·a"
    work = 0, 1, 1

    def workspace(self, call: Call) -> Workspace:
        """The other factor times the operator's own, beside a gradient, and that of a beside b's."""
        _, a, b = call.inputs
        others = [other.bytes for x, other in ((a, b), (b, a)) if x.requires_grad]
        return steps_or_sums(call, [n * call.y.bytes + other for n, other in enumerate(others, 1)], (a, b))


@layer
class AddQuotient(AddTerm):
    """y = c + a/b."""

    source = "torch.addcdiv; dc = g, da = g/b, db = −g·a/b²"

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Nothing; g/b; and −(g/b)·(a/b), which has the first for nothing if a needs it; a broadcast operand sums."""
        return elementwise_gradients(call, (0, 1, 3 if call.inputs[1].requires_grad else 4))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        _, a, b = call.inputs
        yield b
        if b.requires_grad:
            yield a

    def workspace(self, call: Call) -> Workspace:
        """1/b beside a's gradient; beside b's that of a, the operator's number times a, b², their quotient, and −g."""
        _, a, b = call.inputs
        n, quotient = call.y.bytes, size_bytes(product(broadcast(a.shape, b.shape, call.name)), call.y.dtype)
        steps = [n + b.bytes] if a.requires_grad else []
        if b.requires_grad:
            steps.append(len(steps) * n + a.bytes + b.bytes + quotient + 2 * n)
        return steps_or_sums(call, steps, (a, b))


@layer
class Power(KeepsInputsAndOutput, Elementwise):
    """y = a^b."""

    source = "torch.pow; da = g·b·a^(b − 1), db = g·y·log a"

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A power and two products per element, two products; b − 1 and log a are of the operand's own size."""
        for x, other, work in zip(call.inputs, reversed(call.inputs), (3, 2), strict=True):
            yield Gradient(x, LayerFlops(0, (work + (not x.has(call.y.shape))) * call.y.size + other.size))

    def workspace(self, call: Call) -> Workspace:
        """All that is on the way to a gradient stays until that is there; the exponent's is made first.

        For it a mask of where a is 0 and b not negative, log a, y·log a, a zero, and the choice of the two. For a's
        b − 1, a^(b − 1), b·a^(b − 1), that times g, a zero, and a mask of where b is 0 (``pow_backward_exponent``,
        ``pow_backward_self``).
        """
        a, b = call.inputs
        n, zero = call.y.bytes, size_bytes(1, call.y.dtype)
        steps = []
        if b.requires_grad:
            steps.append(call.y.size + a.bytes + 3 * n + zero)
        if a.requires_grad:
            steps.append((n if b.requires_grad else 0) + b.bytes + b.size + 4 * n + zero)
        return steps_or_sums(call, steps)


class Choosing(KeepsInputs, Elementwise):
    """Abstract: each number is one of the inputs', to which the gradient goes: a comparison, and a choice."""

    work = 2, 2


@layer
class Extreme(Choosing):
    """y = max(a, b), or min."""

    source = "torch.maximum, torch.minimum; the gradient goes to the larger, or smaller"

    def workspace(self, call: Call) -> Workspace:
        """g/2, for where both are equal, and two masks: where they are, and where the other one is beyond."""
        needed = [x for x in call.inputs if x.requires_grad]
        return Workspace(0, (len(needed) + 1) * call.y.size - sum(x.size for x in needed), 2 * call.y.size)


@layer
class Subtract(KeepsNothing, Elementwise):
    """y = a − b."""

    source = "torch.sub; da = g, db = −g, summed over broadcast axes"
    work = 0, 1

    def workspace(self, call: Call) -> Workspace:
        """−g, if a broadcast b sums it."""
        b = call.inputs[1]
        return Workspace(0, call.y.size if b.requires_grad and not b.has(call.y.shape) else 0)


class ScaledSum(KeepsNothing, Elementwise):
    """Abstract: y = a ± c·b with a constant factor c, in one kernel."""

    work = 0, 1
    factor: Constant

    def forward(self, call: Call) -> LayerFlops:
        """A product for each element of b, and a sum."""
        return LayerFlops(0, call.inputs[1].size + call.y.size)


@layer
class AddScaled(ScaledSum):
    """y = a + c·b with a constant factor c."""

    source = "torch.add with alpha; da = g, db = c·g, summed over broadcast axes"

    factor: Constant

    def workspace(self, call: Call) -> Workspace:
        """c·g, if a broadcast b sums it."""
        return product_gradients(call.inputs[1:], call.y)


@layer
class SubtractScaled(ScaledSum):
    """y = a − c·b with a constant factor c."""

    source = "torch.sub with alpha; da = g, db = −c·g, summed over broadcast axes"

    factor: Constant

    def workspace(self, call: Call) -> Workspace:
        """−g beside c times that."""
        b = call.inputs[1]
        return steps_or_sums(call, [2 * call.y.bytes] if b.requires_grad else [], (b,))


@layer
class Choose(Elementwise):
    """y = a where the condition holds, b elsewhere; all three broadcast."""

    source = "torch.where; the gradient goes where the number came from"
    arity = 3

    def output(self, call: Call) -> Tensor:
        y, role = super().output(call), call.inputs[1].storage.role
        return call.tape.tensor(y.shape, "activation" if role == "weight" else role, strides=y.strides)

    def backward(self, call: Call) -> Iterable[Gradient]:
        for x in call.inputs[1:]:
            yield Gradient(x, LayerFlops(0, (1 + (not x.has(call.y.shape))) * call.y.size))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.inputs[0]
