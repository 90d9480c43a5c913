"""Rules of operators that compute element by element, and of numbers that no gradient goes to."""

from __future__ import annotations

import math

from costmodel.graph.tensor import Tensor, broadcast, dense_strides
from costmodel.importers.torch.site import Site, rule
from costmodel.layers.activation import (
    Elu,
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
    AddQuotient,
    Choose,
    Clamp,
    Divide,
    Dropout,
    Extreme,
    Identity,
    Multiply,
    Power,
    Scale,
    Subtract,
)
from costmodel.layers.attention import Mask
from costmodel.layers.function import FUNCTIONS, Pointwise
from costmodel.layers.indexing import Made
from costmodel.layers.noise import ChannelDropout

ACTIVATIONS = {
    "relu": Relu,
    "relu6": Relu6,
    "silu": Silu,
    "sigmoid": Sigmoid,
    "tanh": Tanh,
    "hardswish": HardSwish,
    "hardsigmoid": HardSigmoid,
}


@rule(*ACTIVATIONS)
def activation(site: Site) -> Tensor:
    """A layer of its own."""
    return site.layer(ACTIVATIONS[site.step.op](), site.tensor("self"))


@rule("leaky_relu")
def leaky_relu(site: Site) -> Tensor:
    """With a slope for what is negative."""
    kind = _from_result(site) or LeakyRelu(site.constant("negative_slope", 0.01))
    return site.layer(kind, site.tensor("self"))


@rule("elu")
def elu(site: Site) -> Tensor:
    """With the limit that it falls to."""
    return site.layer(_from_result(site) or Elu(site.constant("alpha", 1.0)), site.tensor("self"))


@rule("gelu")
def gelu(site: Site) -> Tensor:
    """With erf, or approximated."""
    return site.layer(GeluTanh() if site.value("approximate") == "tanh" else Gelu(), site.tensor("self"))


@rule("clamp", "clamp_min", "clamp_max", "clip")
def clamp(site: Site) -> Tensor:
    """Within bounds, which are numbers; where they are not one number and its negative, as PyTorch's hardtanh."""
    if any(site.is_tensor(name) for name in ("min", "max")):
        raise site.fail("within bounds that are tensors has no rule")
    low, high = site.constant("min"), site.constant("max")
    return site.layer(Clamp(high) if low == -high else Pointwise("hardtanh"), site.tensor("self"))


FROM_RESULT = ("celu", "elu", "leaky_relu", "selu")
"""Activations whose backward works from the result where they are computed in place."""


def _from_result(site: Site) -> Pointwise | None:
    """The activation as it is in place, if this is one whose backward then works from the result."""
    in_place = site.step.changes is not None and site.step.op in FROM_RESULT
    return Pointwise(site.step.op, in_place=True) if in_place else None


@rule(*(name for name in FUNCTIONS if name not in ("add", "pow", "exponential", "elu", "leaky_relu", *ACTIVATIONS)))
def function(site: Site) -> Tensor:
    """A function of one tensor."""
    x, op = site.tensor("self"), site.step.op
    kind = _from_result(site) or Pointwise(op)
    if x.storage.role in ("index", "mask"):
        return made(site, x)
    y = site.layer(kind, x)
    return y.view(y.shape, None) if op in ("tril", "triu") else y


@rule("add")
def add(site: Site) -> Tensor:
    """A sum with a tensor, or with a number."""
    x = site.tensor("self")
    if not site.is_tensor("other"):
        return site.layer(Pointwise("add"), x) if site.role == "activation" else made(site, x)
    return _two(site, Add(), x, site.tensor("other"))


@rule("sub", "subtract", "rsub")
def sub(site: Site) -> Tensor:
    """A difference with a tensor, or with a number."""
    x = site.tensor("self")
    if not site.is_tensor("other"):
        function = "neg" if site.step.op == "rsub" else "add"
        return site.layer(Pointwise(function), x) if site.role == "activation" else made(site, x)
    other = site.tensor("other")
    return _two(site, Subtract(), *((other, x) if site.step.op == "rsub" else (x, other)))


@rule("mul", "multiply")
def mul(site: Site) -> Tensor:
    """A product with a tensor, or with a number."""
    x = site.tensor("self")
    if not site.is_tensor("other"):
        return site.layer(Scale(site.constant("other")), x) if site.role == "activation" else made(site, x)
    return _two(site, Multiply(), x, site.tensor("other"))


@rule("div", "divide", "true_divide")
def div(site: Site) -> Tensor:
    """A quotient by a tensor, or by a number."""
    x = site.tensor("self")
    if not site.is_tensor("other"):
        return site.layer(Scale(_inverse(site)), x) if site.role == "activation" else made(site, x)
    return _two(site, Divide(), x, site.tensor("other"))


def _inverse(site: Site) -> float:
    """One over the number that is divided by; NaN if the quotient is rounded, as no factor does that."""
    other = site.constant("other")
    if site.has("rounding_mode"):
        return math.nan
    return 1 / other if other else math.inf


@rule("addcmul")
def addcmul(site: Site) -> Tensor:
    """A sum with a product."""
    y = site.layer(Multiply(), site.tensor("tensor1"), site.tensor("tensor2"), name=f"{site.step.name}.term")
    return site.layer(Add(), site.tensor("self"), y)


@rule("addcdiv")
def addcdiv(site: Site) -> Tensor:
    """A sum with a quotient."""
    return site.layer(AddQuotient(), *(site.tensor(name) for name in ("self", "tensor1", "tensor2")))


@rule("lerp")
def lerp(site: Site) -> Tensor:
    """Between two tensors."""
    a, b = site.tensor("self"), site.tensor("end")
    if site.is_tensor("weight"):
        raise site.fail("by a tensor has no rule")
    name, share = site.step.name, site.constant("weight")
    start = site.layer(Scale(1 - share), a, name=f"{name}.start")
    return site.layer(Add(), start, site.layer(Scale(share), b, name=f"{name}.end"))


@rule("prelu")
def prelu(site: Site) -> Tensor:
    """With a trained slope."""
    weight = site.weight("weight")
    return site.layer(ParametricRelu(weight.shape), site.tensor("self"), tied={"weight": weight})


@rule("maximum", "minimum")
def extreme(site: Site) -> Tensor:
    """The larger or smaller of two."""
    return _two(site, Extreme(), site.tensor("self"), site.tensor("other"))


@rule("pow")
def power(site: Site) -> Tensor:
    """With a number as exponent, a tensor, or a number as base."""
    if not site.is_tensor("self"):
        return site.layer(Pointwise("exponential"), site.tensor("exponent"))
    x = site.tensor("self")
    if not site.is_tensor("exponent"):
        return site.layer(Pointwise("pow"), x) if site.role == "activation" else made(site, x)
    return _two(site, Power(), x, site.tensor("exponent"))


@rule("where")
def where(site: Site) -> Tensor:
    """A choice; numbers stand for tensors of one element."""
    if not site.has("other") and not site.has("self"):
        raise site.fail("finds places, whose number depends on data")
    parts = [site.tensor(name) if site.is_tensor(name) else number(site, name) for name in ("self", "other")]
    return site.layer(Choose(), site.tensor("condition"), *parts)


@rule("masked_fill")
def masked_fill(site: Site) -> Tensor:
    """A number wherever the mask holds."""
    x, mask = site.tensor("self"), site.tensor("mask")
    if not x.requires_grad and x.storage.role != "activation":
        return made(site, x, mask)
    if site.is_tensor("value"):
        return site.layer(Choose(), mask, site.tensor("value"), x)
    if broadcast(x.shape, mask.shape, site.step.name) != x.shape:
        return site.layer(Choose(), mask, number(site, "value"), x)
    return site.layer(Mask(), x, mask)


@rule("dropout", "feature_dropout", "alpha_dropout")
def dropout(site: Site) -> Tensor:
    """As the module was in training or not, while it is; each element, or whole channels.

    Alpha dropout is composed of a product with noise, which is numbers, and of a sum.
    """
    x = site.tensor("input" if site.has("input") else "self")
    p = site.value("p", 0.5)
    if not site.value("train", True) or p == 0:
        return site.layer(Identity(), x)
    name = site.step.name
    if p >= 1:
        return site.layer(Multiply(), x, site.layer(Made(()), name=f"{name}.zero"))
    if site.step.op == "alpha_dropout":
        noise, shift = (site.layer(Made(x.shape), name=f"{name}.{part}") for part in ("noise", "shift"))
        return site.layer(Add(), site.layer(Multiply(), x, noise, name=f"{name}.product"), shift)
    return site.layer(ChannelDropout(p) if site.step.op == "feature_dropout" else Dropout(p), x)


def _two(site: Site, kind: Add | Subtract | Multiply | Divide | Extreme | Power, a: Tensor, b: Tensor) -> Tensor:
    """An operation on two tensors; on whole numbers and truth values one that no gradient goes to."""
    return site.layer(kind, a, b) if site.role == "activation" else made(site, a, b)


def number(site: Site, name: str) -> Tensor:
    """A number as a tensor of one element."""
    return site.layer(Made((), site.role), name=f"{site.step.name}.{name}")


def made(site: Site, *inputs: Tensor) -> Tensor:
    """Numbers that no gradient goes to, in the order of memory of what they are worked out from."""
    y = site.layer(Made(site.shape, site.role, 1), *inputs)
    whole = next((x for x in inputs if x.has(y.shape)), y)
    return y.view(y.shape, dense_strides(whole.shape, whole.strides))


RANGES = (
    *("arange", "full", "ones", "zeros", "empty", "eye", "linspace", "scalar_tensor", "constant", "rand", "randn"),
    *("full_like", "ones_like", "zeros_like", "empty_like", "rand_like", "randn_like", "randint"),
    *("new_ones", "new_zeros", "new_full", "new_empty", "one_hot", "bernoulli", "uniform", "normal", "fill", "zero"),
)
"""What makes numbers of nothing but sizes, or at random."""

LOGIC = (
    *("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "isneginf", "logical_and", "logical_or"),
    *("logical_not", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor", "__and__", "__or__"),
    *("__xor__", "all", "any", "argmax", "argmin", "argsort", "floor_divide", "remainder", "fmod"),
    *("diff", "searchsorted", "bucketize", "__lshift__", "__rshift__", "bitwise_left_shift"),
    *("isin", "count_nonzero"),
)
"""Comparisons, logic and arithmetic on whole numbers."""


@rule(*RANGES)
def range_(site: Site) -> Tensor:
    """New numbers, without arithmetic; those like a tensor in its order of memory."""
    if not site.is_tensor("self"):
        return site.layer(Made(site.shape, site.role))
    x = site.tensor("self")
    y = site.layer(Made(site.shape, site.role), x)
    alike = not site.step.op.startswith(("new_", "bernoulli")) and x.has(site.shape)
    return y.view(y.shape, dense_strides(x.shape, x.strides)) if alike else y


@rule(*LOGIC)
def logic(site: Site) -> Tensor:
    """An operation per element."""
    inputs = [site.tensor(name) for name in ("self", "other", "input") if site.is_tensor(name)]
    if any(x.requires_grad for x in inputs) and site.role == "activation":
        raise site.fail("of numbers that need gradients has no rule")
    return made(site, *inputs)
