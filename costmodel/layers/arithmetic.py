"""Elementwise arithmetic and choices between activations, and dropout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from costmodel.graph.kernel import Kernel
from costmodel.graph.tensor import Call, Role, Storage, Tensor, broadcast, dense_strides
from costmodel.layers.base import (
    NO_WORKSPACE,
    Gradient,
    Layer,
    LayerFlops,
    Unary,
    Weightless,
    Weights,
    Workspace,
    layer,
    takes,
)
from costmodel.layers.kernels import backward_each, forward_pass
from costmodel.symbolic.sizes import largest, maximum
from costmodel.training.dtypes import size_bytes
from costmodel.training.fields import Constant, Probability


class Elementwise(Weightless):
    """Abstract: two inputs of one shape, or of shapes that broadcast."""

    in_lists = False

    def check(self, call: Call) -> None:
        takes(call, 2)

    def output(self, call: Call) -> Tensor:
        """New memory of the joint shape, in the order of the input that has it."""
        a, b = call.inputs
        shape = broadcast(a.shape, b.shape, call.name)
        whole = next((x for x in (a, b) if x.has(shape)), None)
        return call.run.tensor(shape, strides=None if whole is None else dense_strides(shape, whole.strides))

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, call.y.size)

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        return forward_pass(call)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """One kernel for each operand, and a sum where it was broadcast."""
        return backward_each(call)


@layer
class Add(Elementwise):
    """y = a + b, as in residual connections."""

    source = "y = a + b (torch.add); da = db = g, summed over broadcast axes (He et al. 2016, eq. 1)"

    def backward(self, call: Call) -> Iterable[Gradient]:
        """The incoming gradient itself; a broadcast operand sums it."""
        for x in call.inputs:
            whole = x.has(call.y.shape)
            yield Gradient(x, LayerFlops(0, 0 if whole else call.y.size), shared=whole)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        return ()

    def workspace(self, call: Call) -> Workspace:
        return NO_WORKSPACE


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


def steps_or_sums(call: Call, steps: Sequence[int]) -> Workspace:
    """What backward has beside the gradients: the most that one of its steps has in all [bytes], or while it sums."""
    if not steps:
        return NO_WORKSPACE
    gradients = sum(x.bytes for x in call.inputs if x.requires_grad)
    summing = product_gradients(call.inputs, call.y)
    summing_bytes = size_bytes(summing.backward, call.y.dtype) + summing.backward_bytes
    return Workspace(0, 0, maximum(largest(steps) - gradients, summing_bytes))


@layer
class Multiply(Elementwise):
    """y = a·b, as in gating."""

    source = "y = a·b (torch.mul); da = g·b, db = g·a, summed over broadcast axes"

    def backward(self, call: Call) -> Iterable[Gradient]:
        """One product per element; a broadcast operand sums it."""
        for x in call.inputs:
            yield Gradient(x, LayerFlops(0, call.y.size if x.has(call.y.shape) else 2 * call.y.size))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        a, b = call.inputs
        if b.requires_grad:
            yield a
        if a.requires_grad:
            yield b

    def workspace(self, call: Call) -> Workspace:
        """That of the products of both."""
        return product_gradients(call.inputs, call.y)


@layer
class Scale(Unary):
    """y = c·x with a constant factor c, such as 1/√d_h."""

    source = "y = c·x (torch.mul by a number); dx = c·g"

    factor: Constant

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(0, call.x.size))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        return ()


@layer
class Shift(Unary):
    """y = x + c with a constant c."""

    source = "y = x + c (torch.add of a number); dx = g"

    constant: Constant

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """The incoming gradient itself."""
        yield Gradient(call.x, LayerFlops(0, 0), shared=True)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        return ()


@layer
class Clamp(Unary):
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

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.x

    def workspace(self, call: Call) -> Workspace:
        """Backward: a mask for each bound, and the zero that is put where x is not within (torch.where)."""
        return Workspace(0, 1, self._bounds() * call.x.size)


@layer
class LayerScale(Layer):
    """y = x·γ with a trained γ per channel, x: (batch, C, H, W), γ: (C, 1, 1)."""

    source = "y = diag(γ) x (Touvron et al. 2021, CaiT, eq. 4); dx = g·γ, dγ = Σ g·x"

    def check(self, call: Call) -> None:
        takes(call, 1)
        if len(call.x.shape) < 2:
            raise call.fail("layer_scale takes an input of at least two axes (batch, channels, ...)")

    def weights(self, call: Call) -> Weights:
        return {"weight": (call.x.shape[1], *(1 for _ in call.x.shape[2:]))}

    def buffers(self, call: Call) -> dict[str, tuple[tuple[int, ...], Role]]:
        return {}

    def output(self, call: Call) -> Tensor:
        return call.like(call.x)

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A product per element; γ's sums."""
        yield Gradient(call.x, LayerFlops(0, call.x.size))
        yield Gradient(call.weights["weight"], LayerFlops(0, 2 * call.x.size))

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        return forward_pass(call)

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


@layer
class Dropout(Unary):
    """y = x·m/(1 − p) with m random in {0, 1}; the identity in inference or for p = 0."""

    source = "y = x·m/(1 − p) (torch.nn.Dropout; Srivastava et al. 2014, §4); keeps m as bool on GPU, as numbers on CPU"

    p: Probability = 0.5

    def _acts(self, call: Call) -> bool:
        return call.run.training and self.p > 0

    def output(self, call: Call) -> Tensor:
        return call.like(call.x) if self._acts(call) else call.x.view(call.x.shape, call.x.strides)

    def forward(self, call: Call) -> LayerFlops:
        """Per element: compare a random number, mask, scale."""
        return LayerFlops(0, 3 * call.x.size if self._acts(call) else 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Per element: mask, scale."""
        acts = self._acts(call)
        yield Gradient(call.x, LayerFlops(0, 2 * call.x.size if acts else 0), shared=not acts)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        if self._acts(call):
            yield call.fresh("mask" if call.run.device == "gpu" else "activation", *call.x.shape)


class Passed(Unary):
    """Abstract: y = x."""

    def output(self, call: Call) -> Tensor:
        return call.x.view(call.x.shape, call.x.strides)

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(0, 0), shared=True)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        return ()


@layer
class Identity(Passed):
    """y = x."""

    source = "y = x (torch.nn.Identity)"


@layer
class Unread(Passed):
    """y = x, beside a vector of `features` weights that nothing reads: no gradient comes to it."""

    source = "a torch.nn.Parameter that forward leaves alone: autograd gives it no gradient, optimizers no state"
    fixed = True

    features: int

    def weights(self, call: Call) -> Weights:
        return {"weight": (self.features,)}


@layer
class Divide(Elementwise):
    """y = a/b."""

    source = "torch.div; da = g/b, db = −g·a/b²"

    def backward(self, call: Call) -> Iterable[Gradient]:
        """g/b, and −(g/b)·(a/b), which has the first for nothing if a needs it; a broadcast operand sums."""
        a, b = call.inputs
        for x, work in ((a, 1), (b, 3 if a.requires_grad else 4)):
            yield Gradient(x, LayerFlops(0, (work + (not x.has(call.y.shape))) * call.y.size))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """The divisor, and for its own gradient the dividend."""
        yield call.inputs[1]
        if call.inputs[1].requires_grad:
            yield call.inputs[0]

    def workspace(self, call: Call) -> Workspace:
        """For b's gradient a/b, that over b, and −g, before a's is made; a product that a broadcast a sums."""
        a, b = call.inputs
        made = 4 * call.y.size if b.requires_grad else call.y.size + (0 if a.has(call.y.shape) else a.size)
        return Workspace(0, made - sum(x.size for x in call.inputs if x.requires_grad))


@layer
class AddQuotient(Weightless):
    """y = c + a/b."""

    source = "torch.addcdiv; dc = g, da = g/b, db = −g·a/b²"
    in_lists = False

    def check(self, call: Call) -> None:
        takes(call, 3)

    def output(self, call: Call) -> Tensor:
        """New memory of the joint shape, in the order of the first input that has it."""
        c, a, b = (x.shape for x in call.inputs)
        shape = broadcast(c, broadcast(a, b, call.name), call.name)
        whole = next((x for x in call.inputs if x.has(shape)), None)
        return call.run.tensor(shape, strides=None if whole is None else dense_strides(shape, whole.strides))

    def forward(self, call: Call) -> LayerFlops:
        """A quotient and a sum per element."""
        return LayerFlops(0, 2 * call.y.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Nothing; g/b; and −(g/b)·(a/b), which has the first for nothing if a needs it; a broadcast operand sums."""
        for x, work in zip(call.inputs, (0, 1, 3 if call.inputs[1].requires_grad else 4), strict=True):
            whole = x.has(call.y.shape)
            yield Gradient(x, LayerFlops(0, (work + (not whole)) * call.y.size), shared=whole and not work)

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        return forward_pass(call)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """One kernel for each operand, and a sum where it was broadcast."""
        return backward_each(call)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """The divisor, and for its own gradient the dividend."""
        _, a, b = call.inputs
        yield b
        if b.requires_grad:
            yield a

    def workspace(self, call: Call) -> Workspace:
        return NO_WORKSPACE


@layer
class Power(Elementwise):
    """y = a^b."""

    source = "torch.pow; da = g·b·a^(b − 1), db = g·y·log a"

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A power and two products per element, two products; b − 1 and log a are of the operand's own size."""
        for x, other, work in zip(call.inputs, reversed(call.inputs), (3, 2), strict=True):
            yield Gradient(x, LayerFlops(0, (work + (not x.has(call.y.shape))) * call.y.size + other.size))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Both, and the result, for the exponent's gradient or not."""
        yield from call.inputs
        yield call.y

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


@layer
class Extreme(Elementwise):
    """y = max(a, b), or min."""

    source = "torch.maximum, torch.minimum; the gradient goes to the larger, or smaller"

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A comparison and a choice per element; a broadcast operand sums."""
        for x in call.inputs:
            yield Gradient(x, LayerFlops(0, (2 + (not x.has(call.y.shape))) * call.y.size))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield from call.inputs

    def workspace(self, call: Call) -> Workspace:
        """g/2, for where both are equal, and two masks: where they are, and where the other one is beyond."""
        needed = [x for x in call.inputs if x.requires_grad]
        return Workspace(0, (len(needed) + 1) * call.y.size - sum(x.size for x in needed), 2 * call.y.size)


@layer
class Subtract(Elementwise):
    """y = a − b."""

    source = "torch.sub; da = g, db = −g, summed over broadcast axes"

    def backward(self, call: Call) -> Iterable[Gradient]:
        """The incoming gradient, and a negation; a broadcast operand sums."""
        for x, work in zip(call.inputs, (0, 1), strict=True):
            whole = x.has(call.y.shape)
            yield Gradient(x, LayerFlops(0, (work + (not whole)) * call.y.size), shared=whole and not work)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        return ()

    def workspace(self, call: Call) -> Workspace:
        """−g, if a broadcast b sums it."""
        b = call.inputs[1]
        return Workspace(0, call.y.size if b.requires_grad and not b.has(call.y.shape) else 0)


@layer
class Choose(Weightless):
    """y = a where the condition holds, b elsewhere; all three broadcast."""

    source = "torch.where; the gradient goes where the number came from"
    in_lists = False

    def check(self, call: Call) -> None:
        takes(call, 3)

    def output(self, call: Call) -> Tensor:
        condition, a, b = (x.shape for x in call.inputs)
        role = "activation" if call.inputs[1].storage.role == "weight" else call.inputs[1].storage.role
        return call.run.tensor(broadcast(condition, broadcast(a, b, call.name), call.name), role)

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, call.y.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A choice per element; a broadcast operand sums."""
        for x in call.inputs[1:]:
            yield Gradient(x, LayerFlops(0, (1 + (not x.has(call.y.shape))) * call.y.size))

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        return forward_pass(call)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """One kernel for each operand, and a sum where it was broadcast."""
        return backward_each(call)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.inputs[0]

    def workspace(self, call: Call) -> Workspace:
        return NO_WORKSPACE
