"""Activation functions. Each is one elementwise kernel; they differ in arithmetic and in what backward needs.

Pointwise FLOPs are those of the plain formulas in the class docstrings, each of their subexpressions once; what depends
on constants alone (1/√2 in GELU) is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from costmodel.graph.call import Call, Gradient, LayerFlops, Weights, Workspace
from costmodel.graph.kernel import Kernel
from costmodel.graph.tensor import Shape, Storage, Tensor, dense_strides
from costmodel.layers.arithmetic import Elementwise
from costmodel.layers.base import Function, KeepsInputs, OneKernel, PerElement, Unary, Weightless, layer
from costmodel.layers.kernels import backward_each
from costmodel.layers.shape import Moving
from costmodel.symbolic.sizes import exact_div


class Activation(PerElement):
    """Abstract: a function that stands between the layers of a model."""


@layer
class Relu(Activation):
    """y = max(x, 0); dx = g·[y > 0]."""

    source = "max(x, 0) (torch.nn.ReLU; Nair & Hinton 2010); PyTorch's threshold_backward on the result"
    costs = Function(1, 2, "output")


@layer
class LeakyRelu(Activation):
    """y = x·(x > 0 ? 1 : slope); dx = g·(x > 0 ? 1 : slope)."""

    source = "max(x, 0) + slope·min(x, 0) (torch.nn.LeakyReLU; Maas et al. 2013)"
    costs = Function(3, 3, "input")

    slope: float = 0.01


@layer
class Elu(Activation):
    """y = x > 0 ? x : α(eˣ − 1); dx = g·(x > 0 ? 1 : αeˣ)."""

    source = "x or α(eˣ − 1) (torch.nn.ELU; Clevert et al. 2016, eq. 15)"
    costs = Function(5, 5, "input")

    alpha: float = 1.0


@layer
class Gelu(Activation):
    """y = x/2·(1 + erf(x/√2)); dx = g·(Φ(x) + x·φ(x)) with Φ = (1 + erf(x/√2))/2 and φ = c·exp(−x²/2)."""

    source = "x Φ(x) with erf (torch.nn.GELU; Hendrycks & Gimpel 2016, §2)"
    costs = Function(5, 11, "input")

    def gradient_copy(self, call: Call) -> int:
        """On a CPU."""
        return call.y.size if call.tape.device == "cpu" else 0


@layer
class GeluTanh(Activation):
    """y = x/2·(1 + tanh u), u = c·(x + a·x³); dx = g·((1 + t)/2 + x/2·(1 − t²)·c·(1 + 3a·x²)) with t = tanh u."""

    source = "x/2 (1 + tanh(√(2/π)(x + 0.044715 x³))) (torch.nn.GELU(approximate='tanh'); Hendrycks & Gimpel 2016, §2)"
    costs = Function(9, 18, "input")


@layer
class Silu(Activation):
    """y = x·s with s = 1/(1 + e⁻ˣ); dx = g·s·(1 + x·(1 − s))."""

    source = "x σ(x) (torch.nn.SiLU; Elfwing et al. 2018, eq. 4)"
    costs = Function(5, 9, "input")


@layer
class Sigmoid(Activation):
    """y = 1/(1 + e⁻ˣ); dx = g·y·(1 − y)."""

    source = "1/(1 + e⁻ˣ) (torch.nn.Sigmoid); derivative y(1 − y)"
    costs = Function(4, 3, "output")


@layer
class Tanh(Activation):
    """y = tanh x; dx = g·(1 − y²)."""

    source = "tanh x (torch.nn.Tanh); derivative 1 − y²"
    costs = Function(1, 3, "output")


@layer
class HardSwish(Activation):
    """y = x·min(max(x + 3, 0), 6)/6; dx = g·(x > −3 ? (x < 3 ? x/3 + 1/2 : 1) : 0)."""

    source = "x ReLU6(x + 3)/6 (torch.nn.Hardswish; Howard et al. 2019, §5.2)"
    costs = Function(5, 7, "input")


@layer
class HardSigmoid(Activation):
    """y = min(max(x + 3, 0), 6)/6; dx = g·1/6·[−3 < x < 3]."""

    source = "ReLU6(x + 3)/6 (torch.nn.Hardsigmoid; Howard et al. 2019, §5.2)"
    costs = Function(4, 4, "input")


@layer
class Relu6(Activation):
    """y = min(max(x, 0), 6); dx = g·[0 < x < 6]."""

    source = "min(max(x, 0), 6) (torch.nn.ReLU6; Howard et al. 2017); PyTorch's hardtanh_backward on the input"
    costs = Function(2, 3, "input")


@layer
class ParametricRelu(Unary):
    """y = x where positive, a·x elsewhere, with a trained slope for all or for each channel."""

    source = "max(0, x) + a·min(0, x) (torch.nn.PReLU; He et al. 2015, eq. 1)"
    in_lists = False

    slopes: tuple[int, ...]

    def weights(self, call: Call) -> Weights:
        return {"weight": self.slopes}

    def forward(self, call: Call) -> LayerFlops:
        """A comparison, a choice and a product per element."""
        return LayerFlops(0, 3 * call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """The same; for the slopes a product, a choice and an addition, and the comparison if x has not made it."""
        yield Gradient(call.x, LayerFlops(0, 3 * call.x.size))
        yield Gradient(call.weights["weight"], LayerFlops(0, (3 if call.x.requires_grad else 4) * call.x.size))

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """One kernel for the input's gradient, and one with a sum for the slopes'."""
        return backward_each(call)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.x
        yield call.weights["weight"]

    def workspace(self, call: Call) -> Workspace:
        """The terms of the slopes' gradient, before they are summed, and the input's though nothing needs it.

        Source: ``at::native::_prelu_kernel_backward``, which makes both.
        """
        return Workspace(0, (1 if call.x.requires_grad else 2) * call.x.size)


@layer
class Gated(KeepsInputs, Moving):
    """One half of an axis times the sigmoid of the other."""

    source = "a·σ(b) (torch.nn.GLU; Dauphin et al. 2017, eq. 1); keeps the input"

    shape: tuple[int, ...]

    def output(self, call: Call) -> Tensor:
        return call.tape.tensor(self.shape, strides=dense_strides(self.shape, call.x.strides))

    def forward(self, call: Call) -> LayerFlops:
        """A sigmoid and a product."""
        return LayerFlops(0, 5 * call.y.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """g·σ and g·a·σ·(1 − σ), from σ made again."""
        yield Gradient(call.x, LayerFlops(0, 9 * call.y.size))


SOFTPLUS = 3
"""log(1 + eᵃ) of a number."""


@layer
class Xielu(Unary):
    """y = (x > 0 ? α₊·x² : α₋·(e^min(x, ε) − 1 − x)) + β·x, α₊ = log(1 + eᵃ), α₋ = β + log(1 + eᵇ), a and b trained.

    Backward takes the derivative for x > 0 and for x ≤ 0: dx = g·((x > 0 ? 2α₊·x : α₋·(e^min(x, ε) − 1)) + β).
    """

    source = "xIELU (Huang & Schlag 2024, arXiv:2411.13010, eq. 3 and 4), one kernel each way"
    in_lists = False

    def weights(self, call: Call) -> Weights:
        return {"positive": (1,), "negative": (1,)}

    def forward(self, call: Call) -> LayerFlops:
        """Per element α₊·x·x 2, min 1, e and − 1 2, − x 1, ·α₋ 1, comparison, choice, β·x and the sum 4."""
        return LayerFlops(0, 11 * call.x.size + 2 * SOFTPLUS + 1)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """dx; da = σ(a)·Σ g·x² where x > 0, db = σ(b)·Σ g·(e^min(x, ε) − 1 − x) elsewhere."""
        size = call.x.size
        yield Gradient(call.x, LayerFlops(0, 9 * size + 2 * SOFTPLUS + 2))
        yield Gradient(call.weights["positive"], LayerFlops(0, 5 * size + 5))
        yield Gradient(call.weights["negative"], LayerFlops(0, 8 * size + 5))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.x
        yield from call.weights.values()


@layer
class RandomizedRelu(Elementwise):
    """y = x·r, with r random where x is not positive, else 1; in evaluation as a leaky ReLU. The second input is r.

    in_place: y has taken the memory of x, and is kept instead.
    """

    source = "torch.nn.RReLU (Xu et al. 2015, §2.4); dx = g·r; keeps x and r"
    in_lists = False

    training: bool = True
    in_place: bool = False

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.y if self.in_place else call.x
        yield call.inputs[1]

    def forward(self, call: Call) -> LayerFlops:
        """A comparison, a product and a choice per element."""
        return LayerFlops(0, 3 * call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(0, (1 if self.training else 3) * call.x.size))


@layer
class FakeQuantize(Unary):
    """y = (min(max(round(x/s) + z, low), high) − z)·s; dx is g where x was in range.

    Scale and zero point are numbers, or of each channel. observed: the range of x is looked at too.
    """

    source = "torch.fake_quantize_per_tensor_affine (Jacob et al. 2018, §3, eq. 12); keeps which numbers were in range"
    in_lists = False
    arity = None

    observed: bool = False

    def forward(self, call: Call) -> LayerFlops:
        """A product, a rounding, two sums, two comparisons, a product; two comparisons more for the range."""
        return LayerFlops(0, (9 if self.observed else 7) * call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A choice per element."""
        yield Gradient(call.x, LayerFlops(0, call.x.size))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.fresh("mask", *call.x.shape)

    def workspace(self, call: Call) -> Workspace:
        """On a CPU the mask as numbers, by which g is multiplied."""
        return Workspace(0, call.x.size if call.tape.device == "cpu" else 0)


@layer
class GatedActivation(OneKernel, Weightless):
    """y = f(x₁)·x₂ in one kernel, x: (..., 2n) being [x₁, x₂], y: (..., n), of which only x is kept.

    Backward works f(x₁) out again. function: the kind of activation that f is. A second input w, (..., 1), is a factor
    of each row, and is kept.
    """

    in_lists = False
    arity = (1, 2)
    source = "SwiGLU (Shazeer 2020, §2); megatron.core.fusions.fused_bias_swiglu, fused_bias_geglu"

    function: Literal["silu", "gelu_tanh"]

    def check(self, call: Call) -> None:
        """One input, or a factor for each of its rows besides."""
        super().check(call)
        x, *factors = call.inputs
        if any(w.shape != (*x.shape[:-1], 1) for w in factors):
            raise call.fail("it takes x (..., 2n), and w (..., 1) at most")

    @property
    def costs(self) -> Function:
        """Of f, an element."""
        return {"silu": Silu, "gelu_tanh": GeluTanh}[self.function].costs

    def output(self, call: Call) -> Shape:
        return (*call.x.shape[:-1], exact_div(call.x.shape[-1], 2))

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, (self.costs.forward + len(call.inputs)) * call.y.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """g·x₂ and its product with f'(x₁), then f(x₁) again and its product with g.

        With factors g times those before, and of these the sum over each row of g·f(x₁)·x₂.
        """
        x, *factors = call.inputs
        yield Gradient(x, LayerFlops(0, (self.costs.backward + self.costs.forward + 2 + len(factors)) * call.y.size))
        for w in factors:
            yield Gradient(w, LayerFlops(0, (self.costs.forward + 3) * call.y.size - call.y.rows))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield from call.inputs
