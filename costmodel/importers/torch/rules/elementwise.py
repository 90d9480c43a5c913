"""Rules of operators that compute element by element, and of numbers that no gradient goes to."""

from __future__ import annotations

import math
from collections.abc import Callable

from costmodel.graph.tensor import Shape, Tensor, broadcast, dense_strides, elementwise_strides
from costmodel.importers.torch.op_call import OpCall, layer_rules, rule
from costmodel.layers.activation import (
    Elu,
    FakeQuantize,
    Gelu,
    GeluTanh,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    ParametricRelu,
    Relu,
    Relu6,
    Sigmoid,
    Silu,
    Tanh,
)
from costmodel.layers.arithmetic import (
    Add,
    AddProduct,
    AddQuotient,
    AddScaled,
    ChannelDropout,
    Choose,
    Clamp,
    Divide,
    Dropout,
    Elementwise,
    Extreme,
    Identity,
    Multiply,
    Power,
    Remainder,
    Scale,
    Shift,
    Subtract,
    SubtractScaled,
)
from costmodel.layers.attention import Mask
from costmodel.layers.base import Unary
from costmodel.layers.function import FUNCTIONS, IN_PLACE, Bounded, Lerp, Pointwise, Within
from costmodel.layers.indexing import Computed

ACTIVATIONS = {
    "relu": Relu,
    "relu6": Relu6,
    "silu": Silu,
    "sigmoid": Sigmoid,
    "tanh": Tanh,
    "hardswish": HardSwish,
    "hardsigmoid": HardSigmoid,
}


layer_rules(
    {name: (lambda op: ACTIVATIONS[op.step.op](), "self") for name in ACTIVATIONS}
    | {
        "leaky_relu": (lambda op: _from_result(op) or LeakyRelu(op.constant("negative_slope", 0.01)), "self"),
        "elu": (lambda op: _from_result(op) or Elu(op.constant("alpha", 1.0)), "self"),
        "gelu": (lambda op: GeluTanh() if op.value("approximate") == "tanh" else Gelu(), "self"),
        "addcmul": (lambda op: AddProduct(), "self tensor1 tensor2"),
        "addcdiv": (lambda op: AddQuotient(), "self tensor1 tensor2"),
    }
)


@rule("clamp", "clamp_min", "clamp_max", "clip")
def clamp(op: OpCall) -> Tensor:
    """Within bounds, numbers or tensors; one of them, or both."""
    bounds = [op.tensor(name) for name in ("min", "max") if op.is_tensor(name)]
    if len(bounds) == 1:
        return _two(op, Bounded(), op.tensor("self"), bounds[0])
    if bounds:
        return op.layer(Within(), op.tensor("self"), *bounds) if op.role == "activation" else computed(op, *bounds)
    if op.role != "activation":
        return computed(op, op.tensor("self"))
    low, high = (op.constant(name) if op.has(name) else None for name in ("min", "max"))
    return op.layer(Clamp(low, high), op.tensor("self"))


def _from_result(op: OpCall) -> Pointwise | None:
    """The activation as it is in place, if this is one whose backward then works from the result."""
    in_place = op.step.changes is not None and op.step.op in IN_PLACE
    return Pointwise(op.step.op, in_place=True) if in_place else None


@rule(*(name for name in FUNCTIONS if name not in ("pow", "exponential", "zero")))
def function(op: OpCall) -> Tensor:
    """A function of one tensor."""
    x, name = op.tensor("self"), op.step.op
    kind = _from_result(op) or Pointwise(name)
    if x.storage.role in ("index", "mask"):
        return computed(op, x)
    y = op.layer(kind, x)
    return y.view(y.shape) if name in ("tril", "triu") else y


ARITHMETIC: dict[str, tuple[Callable[[OpCall], Unary], Elementwise]] = {
    **dict.fromkeys(("sub", "subtract"), (lambda op: Shift(op.constant("other")), Subtract())),
    **dict.fromkeys(("mul", "multiply"), (lambda op: Scale(op.constant("other")), Multiply())),
    **dict.fromkeys(("div", "divide", "true_divide"), (lambda op: Scale(_inverse(op)), Divide())),
    "add": (lambda op: Shift(op.constant("other")), Add()),
    "rsub": (lambda op: Pointwise("neg"), Subtract()),
}
"""What an operation is with a number, and with a tensor."""


@rule(*ARITHMETIC)
def arithmetic(op: OpCall) -> Tensor:
    """An operation with a number, or with a tensor, which comes first in `rsub`."""
    by_number, kind = ARITHMETIC[op.step.op]
    x = op.tensor("self")
    if not op.is_tensor("other"):
        return op.layer(by_number(op), x) if op.role == "activation" else computed(op, x)
    other, factor = op.tensor("other"), op.constant("alpha", 1.0)
    if factor != 1 and op.role == "activation":
        kind = AddScaled(factor) if op.step.op == "add" else SubtractScaled(factor)
    return _two(op, kind, *((other, x) if op.step.op == "rsub" else (x, other)))


def _inverse(op: OpCall) -> float:
    """One over the number that is divided by; NaN if the quotient is rounded, as no factor does that."""
    other = op.constant("other")
    if op.has("rounding_mode"):
        return math.nan
    return 1 / other if other else math.inf


@rule("lerp")
def lerp(op: OpCall) -> Tensor:
    """Between two tensors, by a number or a tensor."""
    by_tensor = op.is_tensor("weight")
    operands = [op.tensor(name) for name in ("self", "end", *(["weight"] if by_tensor else []))]
    return op.layer(Lerp(None if by_tensor else op.constant("weight")), *operands)


@rule("prelu")
def prelu(op: OpCall) -> Tensor:
    """With a trained slope."""
    weight = op.weight("weight")
    return op.layer(ParametricRelu(weight.shape), op.tensor("self"), tied={"weight": weight})


@rule("maximum", "minimum")
def extreme(op: OpCall) -> Tensor:
    """The larger or smaller of two."""
    return _two(op, Extreme(), op.tensor("self"), op.tensor("other"))


@rule("pow")
def power(op: OpCall) -> Tensor:
    """With a number as exponent, a tensor, or a number as base."""
    if not op.is_tensor("self"):
        return op.layer(Pointwise("exponential"), op.tensor("exponent"))
    x = op.tensor("self")
    if not op.is_tensor("exponent"):
        kind = Pointwise("pow", exponent=0 if op.constant("exponent") == 0 else None)
        return op.layer(kind, x) if op.role == "activation" else computed(op, x)
    return _two(op, Power(), x, op.tensor("exponent"))


@rule("where")
def where(op: OpCall) -> Tensor:
    """A choice; numbers stand for tensors of one element."""
    if not op.has("other") and not op.has("self"):
        raise op.fail("finds places, whose number depends on data")
    parts = [op.tensor(name) if op.is_tensor(name) else number(op, name) for name in ("self", "other")]
    return op.layer(Choose(), op.tensor("condition"), *parts)


@rule("masked_fill")
def masked_fill(op: OpCall) -> Tensor:
    """A number wherever the mask holds."""
    x, mask = op.tensor("self"), op.tensor("mask")
    if not x.requires_grad and x.storage.role != "activation":
        return computed(op, x, mask)
    if op.is_tensor("value"):
        return op.layer(Choose(), mask, op.tensor("value"), x)
    if broadcast(x.shape, mask.shape, op.step.name) != x.shape:
        return op.layer(Choose(), mask, number(op, "value"), x)
    return op.layer(Mask(), x, mask)


@rule("dropout", "feature_dropout", "alpha_dropout")
def dropout(op: OpCall) -> Tensor:
    """As the module was in training or not, while it is; each element, or whole channels.

    Alpha dropout is composed of a product with noise, which is numbers, and of a sum.
    """
    x = op.tensor("input" if op.has("input") else "self")
    p = op.value("p", 0.5)
    if not op.value("train", True) or p == 0:
        return op.layer(Identity(), x)
    name = op.step.name
    if p >= 1:
        return op.layer(Multiply(), x, op.layer(Computed(()), name=f"{name}.zero"))
    if op.step.op == "alpha_dropout":
        noise, shift = (op.layer(Computed(x.shape), name=f"{name}.{part}") for part in ("noise", "shift"))
        return op.layer(Add(), op.layer(Multiply(), x, noise, name=f"{name}.product"), shift)
    return op.layer(ChannelDropout(p) if op.step.op == "feature_dropout" else Dropout(p), x)


@rule("fake_quantize_per_tensor_affine", "fake_quantize_per_channel_affine", "fused_moving_avg_obs_fake_quant")
def fake_quantised(op: OpCall) -> Tensor:
    """To few levels and back, by a scale and a zero point that are numbers or tensors, and perhaps follow the range."""
    names = ("self", "scale", "zero_point", "running_min", "running_max")
    observed = op.step.op == "fused_moving_avg_obs_fake_quant"
    return op.layer(FakeQuantize(observed), *(op.tensor(name) for name in names if op.is_tensor(name)))


def _two(op: OpCall, kind: Elementwise, a: Tensor, b: Tensor) -> Tensor:
    """An operation on two tensors; on whole numbers and truth values one that no gradient goes to."""
    return op.layer(kind, a, b) if op.role == "activation" else computed(op, a, b)


def number(op: OpCall, name: str) -> Tensor:
    """A number as a tensor of one element."""
    return op.layer(Computed((), op.role), name=f"{op.step.name}.{name}")


def computed(op: OpCall, *inputs: Tensor) -> Tensor:
    """Numbers that no gradient goes to, in the order of memory of what they are worked out from."""
    y = op.layer(Computed(op.shape, op.role, 1), *inputs)
    operands = [x for x in inputs if _broadcasts(x.shape, y.shape)]
    return y.view(y.shape, elementwise_strides(y.shape, operands))


def _broadcasts(shape: Shape, whole: Shape) -> bool:
    return len(shape) <= len(whole) and all(
        size in (1, each) for size, each in zip(reversed(shape), reversed(whole), strict=False)
    )


RANGES = (
    *("arange", "full", "ones", "zeros", "empty", "eye", "linspace", "scalar_tensor", "constant", "rand", "randn"),
    *("fft_fftfreq", "fft_rfftfreq", "tril_indices", "triu_indices", "randperm", "logspace"),
    *("full_like", "ones_like", "zeros_like", "empty_like", "rand_like", "randn_like", "randint"),
    *("new_ones", "new_zeros", "new_full", "new_empty", "one_hot", "bernoulli", "uniform", "normal", "fill", "zero"),
    *("exponential", "cauchy", "geometric", "log_normal", "poisson"),
)
"""What makes numbers of nothing but sizes, or at random."""

LOGIC = (
    *("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "isneginf", "logical_and", "logical_or"),
    *("logical_not", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor", "__and__", "__or__"),
    *("__xor__", "all", "any", "argmax", "argmin", "argsort", "floor_divide", "remainder", "fmod"),
    *("diff", "searchsorted", "bucketize", "__lshift__", "__rshift__", "bitwise_left_shift"),
    *("isin", "count_nonzero", "histc", "multinomial", "signbit"),
)
"""Comparisons, logic and arithmetic on whole numbers."""

TAKEN_OVER = frozenset(
    {
        *("bernoulli", "cauchy", "exponential", "fill", "geometric", "log_normal", "normal", "poisson", "uniform"),
        "zero",
    }
)
"""What puts other numbers in the place of a tensor's: autograd hands on a gradient of zeros."""


@rule(*RANGES)
def range_(op: OpCall) -> Tensor:
    """New numbers, without arithmetic; those like a tensor in its order of memory."""
    if not op.is_tensor("self"):
        return op.layer(Computed(op.shape, op.role))
    x = op.tensor("self")
    if x.requires_grad and op.step.op in TAKEN_OVER:
        y = op.layer(Pointwise("zero"), x)
        return y.view(y.shape) if op.step.op == "bernoulli" else y
    y = op.layer(Computed(op.shape, op.role), x)
    alike = not op.step.op.startswith(("new_", "bernoulli")) and x.has(op.shape)
    return y.view(y.shape, dense_strides(x.shape, x.strides)) if alike else y


@rule(*LOGIC)
def logic(op: OpCall) -> Tensor:
    """An operation per element."""
    inputs = [op.tensor(name) for name in ("self", "other", "input") if op.is_tensor(name)]
    by_number = op.step.op in ("fmod", "remainder") and op.is_tensor("self") and not op.is_tensor("other")
    if by_number and op.role == "activation":
        return op.layer(Shift(op.constant("other")), *inputs)  # it takes away what no gradient goes to
    if op.step.op in ("fmod", "remainder") and op.role == "activation" and len(inputs) == 2:
        return op.layer(Remainder(), *inputs)
    if any(x.requires_grad for x in inputs) and op.role == "activation" and op.step.op != "histc":
        raise op.fail("of numbers that need gradients has no rule")
    y = computed(op, *inputs)
    if op.step.op == "diff" and not (op.has("prepend") or op.has("append")):  # of two slices, in their order
        return y.view(y.shape, dense_strides(y.shape, inputs[0].strides))
    return y
