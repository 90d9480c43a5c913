"""A drawn call of every operator that the importer has a rule for: what it is called on, and how.

An operand is a tensor that something before has made, in any order of memory, with or without a gradient. Whole numbers
and truth values are made too, so that whoever keeps them is seen to. What stands in a module as a weight is a weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from costmodel.graph.tensor import Role
from costmodel.importers.torch.op_call import COMPLEX_RULES, RULES
from costmodel.importers.torch.rules import load_rules
from costmodel.importers.torch.rules.complex import ALIKE, NEW_NUMBERS
from costmodel.importers.torch.rules.elementwise import ACTIVATIONS, LOGIC, RANGES
from costmodel.layers.function import FUNCTIONS, IN_PLACE
from costmodel.layers.reduction import REDUCTIONS

from .measure import meta
from .single import DTYPES, Given

aten: Any = torch.ops.aten
load_rules()
Draw = Any  # st.DrawFn, which `st.DataObject.draw` is not by its type
Operator = Callable[..., Any]


class Case(NamedTuple):
    """A call of operands in their order."""

    call: Callable[..., Any]
    operands: tuple[Given, ...]


Rule = Callable[[Draw, Operator], Case]
CASES: dict[str, Callable[[Draw], Case]] = {}
"""How to draw a case, by the name of the operator."""


def case(*operators: str) -> Callable[[Rule], Rule]:
    """Enter a rule as that of operators, which it is handed."""

    def entered(rule: Rule) -> Rule:
        for name in operators:
            assert name not in CASES, f"two cases for {name}"
            CASES[name] = lambda draw, name=name: rule(draw, getattr(aten, name) if hasattr(aten, name) else unknown)
        return rule

    return entered


def unknown(*_: Any) -> Any:
    """Stands for what is a step of a program and no operator."""
    raise NotImplementedError


class Called(nn.Module):
    """A module that calls a case on operands made from its inputs, and then does something with the results."""

    def __init__(self, case: Case, then: str) -> None:
        super().__init__()
        self.case, self.then = case, then
        self.scales = nn.ParameterList(
            nn.Parameter(torch.empty(one.shape if one.role == "weight" else (), device="meta"), one.requires_grad)
            for one in case.operands
        )
        results = leaves(case.call(*(sample(one) for one in case.operands)))
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty((1, 2) if kind_of(y) == "index" else y.shape, device="meta")) for y in results
        )

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Example inputs: one for each operand that is no weight, contiguous with its axes in memory's order."""
        return tuple(
            meta(*(one.shape[axis] for axis in one.order), dtype=DTYPES[one.role])
            for one in self.case.operands
            if one.role != "weight"
        )

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        given = iter(inputs)
        operands = [
            scale if one.role == "weight" else made(one, next(given), scale)
            for one, scale in zip(self.case.operands, self.scales, strict=True)
        ]
        results = leaves(self.case.call(*operands))
        return [z for y, weight in zip(results, self.weights, strict=True) for z in self.used(y, weight)]

    def used(self, y: Tensor, weight: Tensor) -> list[Tensor]:
        """A result as it is, or what keeps it; flattened too, which is a copy or not."""
        if self.then == "nothing":
            return [y]
        if kind_of(y) == "mask":
            return [weight.masked_fill(y, 0.0)]
        if kind_of(y) == "index":
            return [torch.embedding(weight, y)]
        flat = [y.flatten() * weight.flatten()] if self.then == "flattened" else []
        return [y * weight, *flat]


def sample(operand: Given) -> Tensor:
    """A tensor like an operand."""
    dtype = DTYPES.get(operand.role, torch.float32)
    return torch.empty_strided(operand.shape, operand.strides(), dtype=dtype, device="meta")


def made(operand: Given, x: Tensor, scale: Tensor) -> Tensor:
    """An operand from an input."""
    x = x * scale if operand.role == "activation" else x.logical_not() if operand.role == "mask" else x + 1
    return x.permute([operand.order.index(axis) for axis in range(len(operand.order))])


def leaves(results: Any) -> list[Tensor]:
    """The tensors in what an operator returns."""
    return [y for y in tree_leaves(results) if isinstance(y, Tensor)]


def kind_of(y: Tensor) -> Role:
    """What a tensor holds, as far as follows from its type."""
    return "activation" if y.is_floating_point() else "mask" if y.dtype == torch.bool else "index"


SIZE = st.sampled_from((3, 2, 4, 1))


def sizes(axes: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of so many axes."""
    return st.tuples(*(SIZE for _ in range(axes)))


def any_shape(least: int = 1, most: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of `least` to `most` axes."""
    return st.integers(least, most).flatmap(sizes)


@st.composite
def given(draw: Draw, shape: tuple[int, ...], role: Role = "activation", *, contiguous: bool = False) -> Given:
    """An operand of this shape, in any memory order, that mostly needs a gradient."""
    axes = tuple(range(len(shape)))
    order = axes if contiguous or role != "activation" else tuple(draw(st.permutations(axes)))
    return Given(shape, order, role, role == "activation" and draw(st.sampled_from((True, True, False))))


def one(draw: Draw, least: int = 1, most: int = 4, **fixed: Any) -> Given:
    """An operand of any shape."""
    return draw(given(draw(any_shape(least, most)), **fixed))


def some(draw: Draw, *shapes: tuple[int, ...], roles: tuple[Role, ...] = ()) -> tuple[Given, ...]:
    """Operands of these shapes."""
    roles = (*roles, *("activation" for _ in shapes[len(roles) :]))
    return tuple(draw(given(shape, role)) for shape, role in zip(shapes, roles, strict=True))


def weight(draw: Draw, *shape: int) -> Given:
    """A weight, trained or frozen."""
    return Given(shape, tuple(range(len(shape))), "weight", draw(st.booleans()))


def weighing(draw: Draw, *shape: int) -> Given:
    """A weight, or a tensor that was computed in the place of one."""
    return weight(draw, *shape) if draw(st.integers(0, 3)) else draw(given(shape))


def pick(draw: Draw, *values: Any) -> Any:
    return draw(st.sampled_from(values))


def axis_of(draw: Draw, shape: tuple[int, ...]) -> int:
    return draw(st.integers(-len(shape), len(shape) - 1))


def dense(*shape: int, role: Role = "activation", requires_grad: bool = False) -> Given:
    return Given(shape, tuple(range(len(shape))), role, requires_grad)


# Element by element


@case(
    *(
        name
        for name in {**ACTIVATIONS, **FUNCTIONS, **IN_PLACE}
        if name not in ("tril", "triu", "add", "pow", "exponential", "polygamma", "threshold", "zero")
    )
)
def function(draw: Draw, op: Operator) -> Case:
    name = f"{op.__name__}_"
    without = ("acosh_", "asinh_", "atanh_")  # no derivative in place
    if hasattr(aten, name) and name not in without and draw(st.booleans()):
        return Case(lambda x: getattr(aten, name)(x * 1), (one(draw),))
    return Case(op, (one(draw),))


@case("tril", "triu")
def triangle(draw: Draw, op: Operator) -> Case:
    return Case(op, (one(draw, 2),))


@case("threshold")
def threshold(draw: Draw, op: Operator) -> Case:
    return Case(lambda x: op(x, 0.5, 0.0), (one(draw),))


@case("gelu")
def gelu(draw: Draw, op: Operator) -> Case:
    approximate = pick(draw, "none", "tanh")
    return Case(lambda x: op(x, approximate=approximate), (one(draw),))


@case("clamp", "clip")
def clamp(draw: Draw, op: Operator) -> Case:
    bounds = pick(draw, (-1, 1), (0, 1), (None, 1), (0, None), "tensors")
    if bounds == "tensors":
        return Case(op, broadcasting(draw, 3))
    if draw(st.booleans()):
        return Case(lambda x, n: x / op(n, *bounds), some(draw, (3, 2), (2,), roles=("activation", "index")))
    return Case(lambda x: op(x, *bounds), (one(draw),))


@case("argsort", "isfinite")
def without_gradient(draw: Draw, op: Operator) -> Case:
    """Composed of what autograd follows for a moment: PyTorch saves, and lets go as nothing depends on it."""
    return Case(op, (one(draw)._replace(requires_grad=False),))


@case("clamp_min", "clamp_max")
def clamped(draw: Draw, op: Operator) -> Case:
    if draw(st.booleans()):
        return Case(op, broadcasting(draw, 2))
    return Case(lambda x: op(x, 0), (one(draw),))


def broadcasting(draw: Draw, operands: int, roles: tuple[Role, ...] = ()) -> tuple[Given, ...]:
    """Operands whose shapes meet: some axes of each are 1, or left out."""
    shape = draw(any_shape(1, 3))
    shapes = []
    for _ in range(operands):
        cut = draw(st.integers(0, len(shape)))
        shapes.append(shape if draw(st.booleans()) else tuple(1 if draw(st.booleans()) else n for n in shape[cut:]))
    return some(draw, *shapes, roles=roles)


@case("add", "sub", "subtract", "rsub", "mul", "multiply", "div", "divide", "true_divide")
def arithmetic(draw: Draw, op: Operator) -> Case:
    if draw(st.integers(0, 3)) == 0:
        return Case(lambda x: op(x, 2), (one(draw),))
    return Case(op, broadcasting(draw, 2, ("activation", *pick(draw, ("activation",), ("activation",), ("index",)))))


@case("maximum", "minimum")
def extreme(draw: Draw, op: Operator) -> Case:
    return Case(op, broadcasting(draw, 2))


@case("pow")
def power(draw: Draw, op: Operator) -> Case:
    how = pick(draw, "number", "tensor", "base")
    if how == "tensor":
        return Case(op, broadcasting(draw, 2))
    exponent = pick(draw, 0, 1, 2, 3, 0.5) if how == "number" else pick(draw, 2, 3, 0.5)
    return Case((lambda x: op(x, exponent)) if how == "number" else (lambda x: op(exponent, x)), (one(draw),))


@case("addcmul", "addcdiv")
def added_product(draw: Draw, op: Operator) -> Case:
    value = pick(draw, 1, 2)
    return Case(lambda *x: op(*x, value=value), broadcasting(draw, 3))


@case("lerp")
def lerp(draw: Draw, op: Operator) -> Case:
    if draw(st.booleans()):
        return Case(op, broadcasting(draw, 3))
    return Case(lambda a, b: op(a, b, 0.3), broadcasting(draw, 2))


@case("prelu")
def prelu(draw: Draw, op: Operator) -> Case:
    x = one(draw, 2)
    return Case(op, (x, weighing(draw, pick(draw, 1, x.shape[1]))))


@case("where")
def where(draw: Draw, op: Operator) -> Case:
    how = pick(draw, "both", "self", "other", "numbers")
    operands = broadcasting(draw, 3, ("mask",))
    if how == "both":
        return Case(op, operands)
    if how == "numbers":
        return Case(lambda c: op(c, 1.0, 0.0), operands[:1])
    return Case((lambda c, x: op(c, x, 0.0)) if how == "self" else (lambda c, x: op(c, 0.0, x)), operands[:2])


@case("masked_fill")
def masked_fill(draw: Draw, op: Operator) -> Case:
    operands = broadcasting(draw, 2, ("activation", "mask"))
    if draw(st.booleans()):
        return Case(lambda x, mask: op(x, mask, 0.0), operands)
    return Case(op, (*operands, *some(draw, ())))


@case("dropout", "feature_dropout", "alpha_dropout")
def dropout(draw: Draw, op: Operator) -> Case:
    p, train = pick(draw, 0.0, 0.1, 1.0), draw(st.booleans())
    return Case(lambda x: op(x, p, train), (one(draw, 3),))


ALONE: dict[str, Callable[[Operator], Any]] = {
    "fft_fftfreq": lambda op: op(5, device="meta"),
    "fft_rfftfreq": lambda op: op(5, device="meta"),
    "arange": lambda op: op(5, device="meta"),
    "full": lambda op: op([3, 2], 1.0, device="meta"),
    "eye": lambda op: op(3, device="meta"),
    "tril_indices": lambda op: op(3, 4, device="meta"),
    "triu_indices": lambda op: op(3, 4, device="meta"),
    "randperm": lambda op: op(5, device="meta"),
    "logspace": lambda op: op(0, 1, 5, device="meta"),
    "linspace": lambda op: op(0, 1, 5, device="meta"),
    "scalar_tensor": lambda op: op(2.0, device="meta"),
    "randint": lambda op: op(5, [3, 2], device="meta"),
}
LIKE: dict[str, Callable[..., Any]] = {
    "full_like": lambda op, x: op(x, 2.0),
    "new_full": lambda op, x: op(x, [3, 2], 2.0),
    "uniform": lambda op, x: op(x),
    "normal": lambda op, x: aten.normal_(x * 1),
    "cauchy": lambda op, x: aten.cauchy_(x * 1),
    "geometric": lambda op, x: aten.geometric_(x * 1, 0.5),
    "log_normal": lambda op, x: aten.log_normal_(x * 1),
    "fill": lambda op, x: op(x, 2.0),
}


@case(*(name for name in RANGES if name not in ("constant", "one_hot")))
def range_(draw: Draw, op: Operator) -> Case:
    name = op.__name__
    if name in ALONE:
        return Case(lambda x: [x, ALONE[name](op)], (one(draw),))
    if name in ("ones", "zeros", "empty", "rand", "randn"):
        return Case(lambda x: [x, op([3, 2], device="meta")], (one(draw),))
    if name.startswith("new_") and name != "new_full":
        return Case(lambda x: op(x, [3, 2]), (one(draw),))
    return Case(lambda x: LIKE.get(name, lambda op, x: op(x))(op, x), (one(draw),))


CONSTANT = meta(3)


@case("hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window")
def window(draw: Draw, op: Operator) -> Case:
    periodic = op.__name__ != "kaiser_window" and draw(st.booleans())  # on the meta device in memory of its own
    return Case(lambda x: [x, op(5, periodic, device="meta")], (one(draw),))


@case("constant")
def constant(draw: Draw, op: Operator) -> Case:
    return Case(lambda x: x * CONSTANT, some(draw, (2, 3)))


@case("one_hot")
def one_hot(draw: Draw, op: Operator) -> Case:
    return Case(lambda i: op(i, 5), (one(draw, role="index"),))


BINARY = ("eq", "ne", "lt", "le", "gt", "ge", "floor_divide", "remainder", "fmod", "isin")


@case(*(name for name in LOGIC if name not in ("searchsorted", "bucketize", "argsort", "isfinite")))
def logic(draw: Draw, op: Operator) -> Case:
    name = op.__name__
    if name in ("floor_divide", "remainder", "fmod", "diff"):
        x = draw(given(draw(sizes(2)), pick(draw, "index", "activation")))
        if name in ("floor_divide", "diff"):
            x = x._replace(requires_grad=False)
        if name in ("remainder", "fmod") and draw(st.booleans()):
            return Case(op, broadcasting(draw, 2))
        return Case(op if name == "diff" else lambda x: op(x, 2), (x,))
    if name == "multinomial":
        return Case(lambda x: op(x, 2), (draw(given((3, 4)))._replace(requires_grad=False),))
    if name == "histc":
        return Case(op, (one(draw)._replace(requires_grad=False),))
    if name in ("eq", "ne", "lt", "le", "gt", "ge"):
        return Case((lambda x, y: op(x, y)) if draw(st.booleans()) else (lambda x, _: op(x, 1)), broadcasting(draw, 2))
    if name.startswith("logical") and name != "logical_not":
        return Case(op, broadcasting(draw, 2, ("mask", "mask")))
    if name == "logical_not" or name == "bitwise_not":
        return Case(op, broadcasting(draw, 1, ("mask",)))
    if name.startswith(("bitwise", "__")):
        role: Role = "index" if "shift" in name else pick(draw, "mask", "index")
        return Case(op, broadcasting(draw, 2, (role, role)))
    if name == "isin":
        return Case(lambda x: op(x, x), (one(draw, role="index"),))
    return Case(op, (one(draw),))


@case("searchsorted")
def searchsorted(draw: Draw, op: Operator) -> Case:
    return Case(op, some(draw, (5,), draw(any_shape())))


@case("bucketize")
def bucketize(draw: Draw, op: Operator) -> Case:
    return Case(op, some(draw, draw(any_shape()), (5,)))


# Shapes


@case("view", "_unsafe_view")
def view(draw: Draw, op: Operator) -> Case:
    x = draw(given(draw(sizes(3)), contiguous=True))
    return Case(lambda x: op(x, [x.shape[0] * x.shape[1], x.shape[2]]), (x,))


@case("reshape")
def reshape(draw: Draw, op: Operator) -> Case:
    return Case(lambda x: op(x, [-1, x.shape[2]]), (one(draw, 3, 3),))


@case("view_as", "reshape_as")
def reshaped_as(draw: Draw, op: Operator) -> Case:
    a, b, c = draw(sizes(3))
    x = draw(given((a, b, c), contiguous=op.__name__ == "view_as"))
    return Case(op, (x, *some(draw, (a * b, c))))


@case("flatten")
def flatten(draw: Draw, op: Operator) -> Case:
    start = pick(draw, 0, 1)
    return Case(lambda x: op(x, start), (one(draw, 2),))


@case("unflatten")
def unflatten(draw: Draw, op: Operator) -> Case:
    a, b, c = draw(sizes(3))
    return Case(lambda x: op(x, 1, [b, c]), some(draw, (a, b * c)))


@case("permute")
def permute(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    order = draw(st.permutations(range(len(x.shape))))
    return Case(lambda x: op(x, order), (x,))


@case("transpose", "swapaxes", "swapdims")
def transpose(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    first, second = axis_of(draw, x.shape), axis_of(draw, x.shape)
    return Case(lambda x: op(x, first, second), (x,))


@case("t", "numpy_T", "matrix_H")
def turn(draw: Draw, op: Operator) -> Case:
    return Case(op, (one(draw, 2, 2),))


@case("mT", "adjoint")
def turn_last(draw: Draw, op: Operator) -> Case:
    return Case(op, (one(draw, 2),))


@case("movedim")
def movedim(draw: Draw, op: Operator) -> Case:
    x = one(draw, 2)
    several = st.permutations(range(len(x.shape))).map(lambda order: order[:2])
    source, target = draw(several), draw(several)
    return Case(lambda x: op(x, source, target), (x,))


@case("unsqueeze")
def unsqueeze(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    axis = draw(st.integers(-len(x.shape) - 1, len(x.shape)))
    return Case(lambda x: op(x, axis), (x,))


@case("squeeze")
def squeeze(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    args = pick(draw, (), (0,), (list(range(len(x.shape))),))
    return Case(lambda x: op(x, *args), (x,))


@case("alias", "detach", "lift_fresh_copy", "positive")
def alias(draw: Draw, op: Operator) -> Case:
    return Case(op, (one(draw),))


@case("expand", "broadcast_to")
def expand(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    shape = [pick(draw, 1, 3), *(pick(draw, 1, 3) if n == 1 else n for n in x.shape)]
    return Case(lambda x: op(x, shape), (x,))


@case("expand_as")
def expand_as(draw: Draw, op: Operator) -> Case:
    shape = draw(any_shape())
    return Case(op, some(draw, tuple(1 if draw(st.booleans()) else n for n in shape), shape))


@case("slice")
def slice_(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    axis, start, stop, step = axis_of(draw, x.shape), pick(draw, 0, 1, -1), pick(draw, None, 3, -1), pick(draw, 1, 2)
    return Case(lambda x: op(x, axis, start, stop, step), (x,))


@case("narrow")
def narrow(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    axis = axis_of(draw, x.shape)
    start = draw(st.integers(0, x.shape[axis] - 1))
    return Case(lambda x: op(x, axis, start, x.shape[axis] - start), (x,))


@case("select")
def select(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    axis = axis_of(draw, x.shape)
    return Case(lambda x: op(x, axis, 0), (x,))


@case("split", "unsafe_split", "chunk", "unsafe_chunk", "tensor_split")
def split(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    axis, size = axis_of(draw, x.shape), pick(draw, 1, 2)
    return Case(lambda x: op(x, size, axis), (x,))


@case("split_with_sizes")
def split_with_sizes(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    axis = axis_of(draw, x.shape)
    return Case(lambda x: op(x, [1, x.shape[axis] - 1], axis), (x,))


@case("unbind")
def unbind(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    axis = axis_of(draw, x.shape)
    return Case(lambda x: op(x, axis), (x,))


@case("hsplit")
def hsplit(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    return Case(lambda x: op(x, x.shape[min(1, len(x.shape) - 1)]), (x,))


@case("contiguous")
def contiguous(draw: Draw, op: Operator) -> Case:
    if draw(st.booleans()):
        return Case(lambda x: op(x, memory_format=torch.channels_last), (one(draw, 4),))
    return Case(op, (one(draw),))


@case("clone")
def clone(draw: Draw, op: Operator) -> Case:
    if draw(st.booleans()):
        return Case(lambda x: op(x, memory_format=torch.contiguous_format), (one(draw),))
    return Case(op, (one(draw),))


@case("flip")
def flip(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    axis = axis_of(draw, x.shape)
    return Case(lambda x: op(x, [axis]), (x,))


@case("roll")
def roll(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    axes = pick(draw, [], [axis_of(draw, x.shape)])
    return Case(lambda x: op(x, [1], axes), (x,))


@case("repeat", "tile")
def repeat(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    times = [draw(st.integers(1, 3)) for _ in range(len(x.shape) + draw(st.integers(0, 1)))]
    return Case(lambda x: op(x, times), (x,))


@case("repeat_interleave")
def repeat_interleave(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    axis = pick(draw, None, axis_of(draw, x.shape))
    return Case(lambda x: op(x, 2, axis), (x,))


@case("to", "_to_copy")
def convert(draw: Draw, op: Operator) -> Case:
    dtype = pick(draw, torch.int64, torch.int32, torch.bool, torch.float32)
    role: Role = pick(draw, "activation", "index", "mask")
    if op.__name__ == "_to_copy":
        return Case(lambda x: op(x, dtype=dtype), (one(draw, role=role),))
    return Case(lambda x: x.to(dtype), (one(draw, role=role),))


@case("type_as")
def type_as(draw: Draw, op: Operator) -> Case:
    return Case(op, some(draw, draw(any_shape()), draw(any_shape()), roles=(pick(draw, "activation", "index"),)))


@case("cat", "concat", "concatenate")
def cat(draw: Draw, op: Operator) -> Case:
    shape = draw(any_shape())
    axis = axis_of(draw, shape)
    at = axis % len(shape)
    others = [
        tuple(draw(st.integers(1, 3)) if n == at else m for n, m in enumerate(shape))
        for _ in range(draw(st.integers(0, 2)))
    ]
    return Case(lambda *x: op(x, axis), some(draw, shape, *others))


@case("stack")
def stack(draw: Draw, op: Operator) -> Case:
    shape = draw(any_shape(1, 3))
    axis = draw(st.integers(-len(shape) - 1, len(shape)))
    return Case(lambda *x: op(x, axis), some(draw, *[shape] * draw(st.integers(1, 3))))


@case("hstack", "vstack")
def stacked(draw: Draw, op: Operator) -> Case:
    return Case(lambda *x: op(x), some(draw, *[draw(any_shape())] * draw(st.integers(1, 3))))


@case("pixel_shuffle")
def pixel_shuffle(draw: Draw, op: Operator) -> Case:
    b, c, h, w = draw(sizes(4))
    return Case(lambda x: op(x, 2), (draw(given((b, 4 * c, h, w), contiguous=True)),))


@case("pixel_unshuffle")
def pixel_unshuffle(draw: Draw, op: Operator) -> Case:
    b, c, h, w = draw(sizes(4))
    return Case(lambda x: op(x, 2), (draw(given((b, c, 2 * h, 2 * w), contiguous=True)),))


@case("channel_shuffle")
def channel_shuffle(draw: Draw, op: Operator) -> Case:
    b, c, h, w = draw(sizes(4))
    return Case(lambda x: op(x, 2), (draw(given((b, 2 * c, h, w), contiguous=True)),))


@case("unfold")
def unfold(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    axis = axis_of(draw, x.shape)
    size = draw(st.integers(1, x.shape[axis]))
    step = draw(st.integers(1, 2))
    return Case(lambda x: op(x, axis, size, step), (x,))


# By index


@case("index")
def index(draw: Draw, op: Operator) -> Case:
    x = one(draw, 2, contiguous=True)  # what an index does to another order of memory is not said
    where = draw(given(draw(any_shape(1, 2)), "index"))
    if draw(st.booleans()):
        return Case(lambda x, i: op(x, [None, i]), (x, where))
    return Case(lambda x, i: op(x, [i, i]), (x, where))


@case("index_select")
def index_select(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    axis = axis_of(draw, x.shape)
    return Case(lambda x, i: op(x, axis, i), (x, *some(draw, (3,), roles=("index",))))


@case("gather", "take_along_dim")
def gather(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    axis = axis_of(draw, x.shape)
    operands = (x, *some(draw, x.shape, roles=("index",)))
    return Case((lambda x, i: op(x, axis, i)) if op.__name__ == "gather" else (lambda x, i: op(x, i, axis)), operands)


@case("index_put")
def index_put(draw: Draw, op: Operator) -> Case:
    x = one(draw, 2)
    accumulate = draw(st.booleans())
    values = pick(draw, (), x.shape[1:], (3, *x.shape[1:]))
    return Case(
        lambda x, v, i: op(x, [i], v, accumulate), (x, *some(draw, values, (3,), roles=("activation", "index")))
    )


@case("index_add", "index_copy")
def index_add(draw: Draw, op: Operator) -> Case:
    x = one(draw, 2)
    source = (3, *x.shape[1:])
    return Case(lambda x, v, i: op(x, 0, i, v), (x, *some(draw, source, (3,), roles=("activation", "index"))))


@case("index_fill")
def index_fill(draw: Draw, op: Operator) -> Case:
    x, where = one(draw), some(draw, (3,), roles=("index",))
    if draw(st.booleans()):
        return Case(lambda x, i: op(x, 0, i, 2.0), (x, *where))
    return Case(lambda x, i, v: op(x, 0, i, v), (x, *where, dense()))


@case("scatter")
def scatter(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    where = some(draw, x.shape, roles=("index",))
    if draw(st.booleans()):
        return Case(lambda x, i: op(x, 0, i, 2.0), (x, *where))
    return Case(lambda x, i, v: op(x, 0, i, v), (x, *where, *some(draw, x.shape)))


@case("scatter_add")
def scatter_add(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    return Case(lambda x, i, v: op(x, 0, i, v), (x, *some(draw, x.shape, x.shape, roles=("index",))))


@case("scatter_reduce")
def scatter_reduce(draw: Draw, op: Operator) -> Case:
    x, how = one(draw), pick(draw, "sum", "prod", "mean", "amax", "amin")
    included = draw(st.booleans())
    operands = (x, *some(draw, x.shape, x.shape, roles=("index",)))
    return Case(lambda x, i, v: op(x, 0, i, v, how, include_self=included), operands)


@case("copy")
def copy(draw: Draw, op: Operator) -> Case:
    shape = draw(any_shape())
    operands = some(draw, shape, tuple(1 if draw(st.booleans()) else n for n in shape))
    return Case(lambda x, y: (x * 1).copy_(y), operands)


@case("topk", "kthvalue")
def topk(draw: Draw, op: Operator) -> Case:
    return Case(lambda x: op(x, 1), (one(draw),))


@case("sort", "median", "nanmedian", "mode", "cummax", "cummin")
def ranked(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    axis = axis_of(draw, x.shape)
    if "median" in op.__name__ and draw(st.booleans()):
        return Case(op, (x,))
    return Case(lambda x: op(x, axis), (x,))


@case("broadcast_tensors")
def broadcast_tensors(draw: Draw, op: Operator) -> Case:
    return Case(lambda *x: op(x), broadcasting(draw, 2))


@case("meshgrid")
def meshgrid(draw: Draw, op: Operator) -> Case:
    indexing = pick(draw, "ij", "xy")
    shapes = [draw(sizes(1)) for _ in range(draw(st.integers(2, 3)))]
    return Case(lambda *x: op(x, indexing=indexing), some(draw, *shapes))


@case("atleast_1d", "atleast_2d")
def atleast(draw: Draw, op: Operator) -> Case:
    if draw(st.booleans()):
        return Case(op, (one(draw, 1, 3),))
    return Case(lambda *x: op(x), some(draw, draw(sizes(1)), draw(sizes(2))))


# Reductions


@case("cumsum", "cumprod")
def cumulate(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    axis = axis_of(draw, x.shape)
    return Case(lambda x: op(x, axis), (x,))


@case("amax", "amin", "mean", "sum", "std", "var", "logsumexp", "nansum")
def reduce(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    axes = list(draw(st.sets(st.integers(0, len(x.shape) - 1), min_size=1)))
    keep = draw(st.booleans())
    if op.__name__ in ("std", "var"):
        correction = pick(draw, 0, 1)
        return Case(lambda x: op(x, axes, correction=correction, keepdim=keep), (x,))
    if op.__name__ in ("mean", "sum") and draw(st.booleans()):
        return Case(op, (x,))
    return Case(lambda x: op(x, axes, keep), (x,))


@case("prod")
def prod(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    axis = pick(draw, None, axis_of(draw, x.shape))
    return Case(op if axis is None else (lambda x: op(x, axis)), (x,))


ORDERS = (0, 1, 2, 3, 0.5, 1.5, math.inf, -math.inf, -1)
"""Of norms."""


@case("linalg_vector_norm")
def vector_norm(draw: Draw, op: Operator) -> Case:
    order, axes = pick(draw, *ORDERS), pick(draw, None, [0])
    return Case(lambda x: op(x, order, axes), (one(draw),))


@case("norm")
def norm(draw: Draw, op: Operator) -> Case:
    order = pick(draw, *ORDERS)
    return Case((lambda x: op(x, order)) if draw(st.booleans()) else (lambda x: op(x, order, [0])), (one(draw),))


@case("max", "min")
def largest(draw: Draw, op: Operator) -> Case:
    how = pick(draw, "all", "along", "of two")
    if how == "of two":
        return Case(op, broadcasting(draw, 2))
    return Case(op if how == "all" else (lambda x: op(x, 0)), (one(draw),))


@case("var_mean", "std_mean")
def moments(draw: Draw, op: Operator) -> Case:
    return Case(lambda x: op(x, [0]), (one(draw),))


@case("softmax", "log_softmax", "special_softmax", "_softmax", "_log_softmax")
def softmax(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    axis = axis_of(draw, x.shape)
    if op.__name__.startswith("_"):
        return Case(lambda x: op(x, axis, False), (x,))
    if op.__name__ == "special_softmax":
        return Case(lambda x: torch.special.softmax(x, axis), (x,))
    return Case(lambda x: getattr(x, op.__name__)(axis), (x,))


# Products


@case("mm")
def mm(draw: Draw, op: Operator) -> Case:
    m, k, n = draw(sizes(3))
    return Case(op, some(draw, (m, k), (k, n)))


@case("addmm")
def addmm(draw: Draw, op: Operator) -> Case:
    m, k, n = draw(sizes(3))
    beta, alpha = pick(draw, 1, 2), pick(draw, 1, 2)
    return Case(lambda *x: op(*x, beta=beta, alpha=alpha), some(draw, pick(draw, (n,), (m, n)), (m, k), (k, n)))


@case("bmm")
def bmm(draw: Draw, op: Operator) -> Case:
    b, m, k, n = draw(sizes(4))
    return Case(op, some(draw, (b, m, k), (b, k, n)))


@case("baddbmm")
def baddbmm(draw: Draw, op: Operator) -> Case:
    b, m, k, n = draw(sizes(4))
    beta, alpha = pick(draw, 1, 2), pick(draw, 1, 2)
    added = pick(draw, (n,), (m, n), (b, m, n))
    return Case(lambda *x: op(*x, beta=beta, alpha=alpha), some(draw, added, (b, m, k), (b, k, n)))


@case("mv")
def mv(draw: Draw, op: Operator) -> Case:
    m, k = draw(sizes(2))
    return Case(op, some(draw, (m, k), (k,)))


@case("dot", "vdot")
def dot(draw: Draw, op: Operator) -> Case:
    (k,) = draw(sizes(1))
    return Case(op, some(draw, (k,), (k,)))


@case("inner")
def inner(draw: Draw, op: Operator) -> Case:
    m, k, n = draw(sizes(3))
    first, second = pick(draw, ((k,), (k,)), ((m, k), (n, k)), ((m, k), (k,)))
    return Case(op, some(draw, first, second))


@case("matmul")
def matmul(draw: Draw, op: Operator) -> Case:
    a, b, m, k, n = draw(sizes(5))
    first = pick(draw, (k,), (m, k), (b, m, k), (a, b, m, k), (a, 1, m, k))
    second = pick(draw, (k,), (k, n), (b, k, n), (1, k, n), (a, b, k, n))
    return Case(op, some(draw, first, second))


@case("outer", "ger")
def outer(draw: Draw, op: Operator) -> Case:
    return Case(op, some(draw, draw(sizes(1)), draw(sizes(1))))


@case("einsum")
def einsum(draw: Draw, op: Operator) -> Case:
    equation = pick(
        draw,
        "bik,bjk->bij",
        "btk,khd->bthd",
        "bi,bj->bij",
        "bhqd,bkhd->bhqk",
        "bihj,bhijk->bhk",
        "bthc,bshc->bhts",
        "ab,bc,cd->ad",
        "bcih,bich->b",
        "bzc,bcz->bz",
        "ij,jk",
        "abz,cdz->cdab",
        "ab->ba",
        "abc->b",
        "zc,bd->b",
    )
    left = equation.split("->")[0].split(",")
    size = dict(zip(sorted(set("".join(left))), draw(sizes(len(set("".join(left))))), strict=True))
    return Case(lambda *x: op(equation, x), some(draw, *(tuple(size[n] for n in names) for names in left)))


@case("linear")
def linear(draw: Draw, op: Operator) -> Case:
    shape, n = draw(any_shape()), pick(draw, 1, 3)
    bias = (weighing(draw, n),) if draw(st.booleans()) else ()
    return Case(op, (draw(given(shape)), weighing(draw, n, shape[-1]), *bias))


@case("embedding")
def embedding(draw: Draw, op: Operator) -> Case:
    return Case(op, (weighing(draw, *draw(sizes(2))), one(draw, role="index")))


@case("scaled_dot_product_attention")
def attention(draw: Draw, op: Operator) -> Case:
    b, h, q, k, d = draw(sizes(5))
    shapes = [(b, h, q, d), (b, h, k, d), (b, h, k, d)]
    masked = pick(draw, "no", "causal", "numbers", "truth")
    p = pick(draw, 0.0, 0.1)
    if masked in ("no", "causal"):
        return Case(lambda *x: op(*x, None, p, masked == "causal"), some(draw, *shapes))
    mask = pick(draw, (q, k), (b, 1, q, k), (b, h, q, k))
    return Case(
        lambda q, k, v, m: op(q, k, v, m, p),
        (*some(draw, *shapes), *some(draw, mask, roles=("mask" if masked == "truth" else "activation",))),
    )


# Images


def convolution_of(draw: Draw, axes: int, transposed: bool) -> tuple[tuple[Given, ...], dict[str, Any]]:
    groups, b, i, o = pick(draw, 1, 1, 2), pick(draw, 1, 2), pick(draw, 1, 2), pick(draw, 1, 2)
    kernel = [pick(draw, 1, 3) for _ in range(axes)]
    channels = (groups * i, o) if transposed else (groups * o, i)
    bias = (weighing(draw, groups * o),) if draw(st.booleans()) else ()
    strided = {"stride": [pick(draw, 1, 2)] * axes, "padding": [pick(draw, 0, 1)] * axes, "dilation": [1] * axes}
    image = draw(given((b, groups * i, *(pick(draw, 4, 5) for _ in range(axes))), contiguous=True))
    return (image, weighing(draw, *channels, *kernel), *bias), {**strided, "groups": groups}


@case("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv(draw: Draw, op: Operator) -> Case:
    axes, transposed = int(op.__name__[-2]), "transpose" in op.__name__
    operands, how = convolution_of(draw, axes, transposed)
    if draw(st.booleans()) and not transposed:
        how |= {"stride": [1] * axes, "padding": "same"}
    return Case(lambda x, w, b=None: getattr(torch, op.__name__)(x, w, b, **how), operands)


@case("convolution")
def convolution(draw: Draw, op: Operator) -> Case:
    transposed = draw(st.booleans())
    operands, how = convolution_of(draw, pick(draw, 1, 2, 3), transposed)
    rest = how["stride"], how["padding"], how["dilation"], transposed, [0] * len(how["stride"]), how["groups"]
    return Case(lambda x, w, b=None: op(x, w, b, *rest), operands)


def image(draw: Draw, axes: int = 2, sides: tuple[int, ...] = (4, 6)) -> Given:
    """Channels last in memory, or not."""
    shape = (pick(draw, 1, 2), pick(draw, 1, 3), *(pick(draw, *sides) for _ in range(axes)))
    last = axes == 2 and draw(st.booleans())
    return Given(shape, (0, 2, 3, 1) if last else tuple(range(len(shape))), "activation", draw(st.booleans()))


@case("pad")
def pad(draw: Draw, op: Operator) -> Case:
    mode = pick(draw, "constant", "reflect", "replicate", "circular")
    x = image(draw)
    if mode in ("reflect", "replicate"):
        x = x._replace(order=(0, 1, 2, 3))  # the meta device forgets that channels are last
    return Case(lambda x: op(x, [1, 2, 0, 1], mode), (x,))


@case("constant_pad_nd")
def constant_pad(draw: Draw, op: Operator) -> Case:
    return Case(lambda x: op(x, [1, 2, 0, -1]), (image(draw),))


@case("reflection_pad1d", "replication_pad1d", "reflection_pad2d", "replication_pad2d")
def rim(draw: Draw, op: Operator) -> Case:
    axes = int(op.__name__[-2])
    x = image(draw, axes)._replace(order=tuple(range(2 + axes)))  # the meta device forgets that channels are last
    return Case(lambda x: op(x, [1, 2] * axes), (x,))


@case(
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *(f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)),
)
def nearest(draw: Draw, op: Operator) -> Case:
    axes = int(op.__name__[-2])
    size = [pick(draw, 3, 7) for _ in range(axes)]
    return Case(lambda x: op(x, size), (image(draw, axes),))


@case(
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
)
def resized(draw: Draw, op: Operator) -> Case:
    axes = int(op.__name__.removesuffix("_aa")[-2])
    size, aligned = [pick(draw, 3, 7) for _ in range(axes)], draw(st.booleans())
    return Case(lambda x: op(x, size, aligned), (image(draw, axes),))


@case("im2col")
def im2col(draw: Draw, op: Operator) -> Case:
    return Case(lambda x: op(x, [2, 3], [1, 1], [0, 1], [2, 1]), (image(draw),))


@case("col2im")
def col2im(draw: Draw, op: Operator) -> Case:
    b, c = draw(sizes(2))
    return Case(lambda x: op(x, [4, 6], [2, 2], [1, 1], [0, 0], [2, 2]), some(draw, (b, 4 * c, 6)))


@case("glu")
def glu(draw: Draw, op: Operator) -> Case:
    shape = draw(any_shape())
    axis = axis_of(draw, shape)
    at = axis % len(shape)
    return Case(lambda x: op(x, axis), some(draw, tuple(2 * n if k == at else n for k, n in enumerate(shape))))


@case("max_pool2d", "avg_pool2d", "max_pool1d", "avg_pool1d")
def pool(draw: Draw, op: Operator) -> Case:
    axes = int(op.__name__[-2])
    how = [pick(draw, 2, 3)] * axes, [pick(draw, 1, 2)] * axes, [pick(draw, 0, 1)] * axes
    ceil = draw(st.booleans())
    return Case(lambda x: getattr(torch.nn.functional, op.__name__)(x, *how, ceil_mode=ceil), (image(draw, axes),))


@case("adaptive_avg_pool2d", "adaptive_max_pool2d", "adaptive_avg_pool1d")
def adaptive(draw: Draw, op: Operator) -> Case:
    axes = int(op.__name__[-2])
    size = [pick(draw, 1, 2)] * axes
    return Case(lambda x: leaves(op(x, size))[0], (image(draw, axes),))


# Norms


def affine(draw: Draw, *shape: int) -> tuple[Given, ...]:
    return (weighing(draw, *shape), weighing(draw, *shape)) if draw(st.booleans()) else ()


@case("layer_norm")
def layer_norm(draw: Draw, op: Operator) -> Case:
    x = one(draw, 2)
    shape = x.shape[pick(draw, -1, -2) :]
    parts = affine(draw, *shape)[: pick(draw, 1, 2)]
    return Case(lambda x, w=None, b=None: op(x, list(shape), w, b), (x, *parts))


@case("rms_norm")
def rms_norm(draw: Draw, op: Operator) -> Case:
    axes = pick(draw, 1, 2)
    x = one(draw, 2, contiguous=axes > 1)
    shape = x.shape[-axes:]
    return Case(lambda x, w=None: op(x, list(shape), w), (x, *affine(draw, *shape)[:1]))


@case("group_norm")
def group_norm(draw: Draw, op: Operator) -> Case:
    b, c, *rest = draw(any_shape(3))
    return Case(lambda x, w=None, z=None: op(x, 2, w, z), (draw(given((b, 2 * c, *rest))), *affine(draw, 2 * c)))


@case("instance_norm")
def instance_norm(draw: Draw, op: Operator) -> Case:
    x = one(draw, 3)
    tracked = draw(st.booleans())

    def normalised(x: Tensor, w: Any = None, b: Any = None) -> Tensor:
        running = [x.new_zeros(x.shape[1]) for _ in range(2)] if tracked else [None, None]
        return torch.instance_norm(x, w, b, *running, True, 0.1, 1e-5, False)

    return Case(normalised, (x, *affine(draw, x.shape[1])))


@case("batch_norm")
def batch_norm(draw: Draw, op: Operator) -> Case:
    x = one(draw, 2, contiguous=True)  # of others the meta device has its result in an order of its own
    return Case(
        lambda x, w=None, b=None: torch.batch_norm(x, w, b, None, None, True, 0.1, 1e-5, False),
        (x, *affine(draw, x.shape[1])),
    )


# Losses


@case(
    "mse_loss",
    "l1_loss",
    "huber_loss",
    "smooth_l1_loss",
    "kl_div",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)
def compared(draw: Draw, op: Operator) -> Case:
    """Of each element where the meta device makes a mean of its own: others have it in memory for all elements."""
    in_whole = op.__name__ in ("mse_loss", "smooth_l1_loss", "binary_cross_entropy")
    shape, reduction = draw(any_shape()), 0 if in_whole else pick(draw, 0, 1, 2)
    if op.__name__.startswith("binary"):
        weights = pick(draw, 0, 1)
        given_two = (draw(given(shape, contiguous=True)) for _ in range(2))  # which order counts, devices differ
        operands = (*given_two, *[dense(*shape)] * weights)
        if op.__name__ == "binary_cross_entropy":
            return Case(lambda x, y, w=None: op(x, y, w, reduction), operands)
        return Case(lambda x, y, w=None: op(x, y, w, None, reduction), operands)
    return Case(lambda x, y: op(x, y, reduction), some(draw, shape, shape))


@case("cross_entropy_loss")
def cross_entropy(draw: Draw, op: Operator) -> Case:
    shape = draw(any_shape(2, 4))
    reduction = pick(draw, 0, 1, 2)
    operands = some(draw, shape, (shape[0], *shape[2:]), roles=("activation", "index"))
    if draw(st.booleans()):
        return Case(lambda x, y: op(x, y, None, reduction), operands)
    return Case(lambda x, y, w: op(x, y, w, reduction), (*operands, dense(shape[1])))


@case("nll_loss_forward", "nll_loss2d_forward")
def nll_loss_forward(draw: Draw, op: Operator) -> Case:
    shape, reduction = draw(sizes(4 if "2d" in op.__name__ else 2)), pick(draw, 0, 1, 2)
    operands = some(draw, shape, (shape[0], *shape[2:]), roles=("activation", "index"))
    return Case(lambda x, y: op(x, y, None, reduction, -100)[0], operands)


@case("nll_loss", "nll_loss_nd", "nll_loss2d")
def nll_loss(draw: Draw, op: Operator) -> Case:
    axes = {"nll_loss": 2, "nll_loss2d": 4}.get(op.__name__) or pick(draw, 2, 3, 4)
    shape, reduction = draw(sizes(axes)), pick(draw, 0, 1, 2)
    return Case(
        lambda x, y: op(x, y, None, reduction), some(draw, shape, (shape[0], *shape[2:]), roles=("activation", "index"))
    )


# Recurrent


@case("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(draw: Draw, op: Operator) -> Case:
    name = op.__name__
    steps, batch, features, hidden = draw(sizes(4))
    layers, both, bias, first = draw(st.integers(1, 2)), draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    gates, states = {"lstm": (4, 2), "gru": (3, 1)}.get(name, (1, 1))
    projected = draw(st.integers(0, hidden - 1)) if name == "lstm" else 0
    handed, directions = projected or hidden, 2 if both else 1
    weights: list[Given] = []
    for number in range(layers):
        width = features if number == 0 else handed * directions
        for _ in range(directions):
            weights += [weight(draw, gates * hidden, width), weight(draw, gates * hidden, handed)]
            weights += [weight(draw, gates * hidden) for _ in range(2 * bias)]
            weights += [weight(draw, projected, hidden)] if projected else []
    x = draw(given((batch, steps, features) if first else (steps, batch, features)))
    before = some(draw, *((layers * directions, batch, width) for width in (handed, hidden)[:states]))
    p, train = pick(draw, 0.0, 0.1), draw(st.booleans())

    def call(x: Tensor, *rest: Tensor) -> Any:
        h = list(rest[:states]) if states == 2 else rest[0]
        return op(x, h, list(rest[states:]), bias, layers, p, train, both, first)[0]

    return Case(call, (x, *before, *weights))


@case("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def recurrent_cell(draw: Draw, op: Operator) -> Case:
    batch, features, hidden = draw(sizes(3))
    gates, states = {"lstm_cell": (4, 2), "gru_cell": (3, 1)}.get(op.__name__, (1, 1))
    weights = [weight(draw, gates * hidden, width) for width in (features, hidden)]
    weights += [weight(draw, gates * hidden) for _ in range(2 * draw(st.booleans()))]

    def call(x: Tensor, *rest: Tensor) -> Any:
        return op(x, list(rest[:states]) if states == 2 else rest[0], *rest[states:])

    return Case(call, (*some(draw, (batch, features), *((batch, hidden) for _ in range(states))), *weights))


# Functions of two tensors, forms, windows, places


@case("atan2", "fmax", "fmin", "hypot", "logaddexp", "logaddexp2", "xlogy")
def paired(draw: Draw, op: Operator) -> Case:
    operands = broadcasting(draw, 2)
    if op.__name__.startswith("logaddexp"):  # the meta device looks at the first one's order of memory alone
        operands = tuple(x._replace(order=tuple(range(len(x.shape)))) for x in operands)
    return Case(op, operands)


@case("logcumsumexp")
def logcumsumexp(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    axis = axis_of(draw, x.shape)
    return Case(lambda x: op(x, axis), (x,))


@case("diagonal", "diagonal_copy")
def diagonal(draw: Draw, op: Operator) -> Case:
    offset = pick(draw, 0, 0, 1) if op.__name__ == "diagonal_copy" else 0
    return Case(lambda x: op(x, offset, -2, -1), (draw(given((2, 3, 4)[3 - draw(st.integers(2, 3)) :])),))


@case("diag_embed")
def diag_embed(draw: Draw, op: Operator) -> Case:
    return Case(op, (one(draw, 1, 3),))


@case("trace")
def trace(draw: Draw, op: Operator) -> Case:
    return Case(op, (one(draw, 2, 2),))


@case("rot90")
def rot90(draw: Draw, op: Operator) -> Case:
    return Case(lambda x: op(x, 1, [0, 1]), (one(draw, 2),))


def volume(draw: Draw, axes: int = 3) -> Given:
    """An image or a volume with room for windows."""
    outer = (draw(st.integers(1, 2)), draw(st.integers(1, 3)))
    return draw(given((*outer, *(draw(st.integers(4, 6)) for _ in range(axes))), contiguous=True))


@case("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool_with_indices(draw: Draw, op: Operator) -> Case:
    axes = 2 if "2d" in op.__name__ else 3
    kernel, dilation = pick(draw, 2, 3), pick(draw, 1, 1, 2) if axes == 2 else 1
    kernel = 2 if dilation == 2 else kernel
    return Case(lambda x: op(x, [kernel] * axes, [2] * axes, [0] * axes, [dilation] * axes)[0], (volume(draw, axes),))


@case("adaptive_max_pool3d")
def adaptive_max_pool3d(draw: Draw, op: Operator) -> Case:
    to = [pick(draw, 1, 2, 3) for _ in range(3)]
    return Case(lambda x: op(x, to)[0], (volume(draw),))


@case("avg_pool3d", "_adaptive_avg_pool3d")
def mean_pool3d(draw: Draw, op: Operator) -> Case:
    sizes_to = [pick(draw, 2, 3) for _ in range(3)]
    return Case(lambda x: op(x, sizes_to), (volume(draw),))


@case("_weight_norm_interface")
def weight_norm(draw: Draw, op: Operator) -> Case:
    rows, *rest = draw(any_shape(2, 4))
    return Case(
        lambda v, g: op(v, g, 0)[0],
        (weight(draw, rows, *rest), Given((rows, *(1 for _ in rest)), (0, *range(1, 1 + len(rest))), "weight", True)),
    )


@case("_embedding_bag")
def embedding_bag(draw: Draw, op: Operator) -> Case:
    features, bags, rows = draw(sizes(3))
    mode = pick(draw, 0, 1, 2)
    operands = [weight(draw, 5, features)._replace(requires_grad=True)]
    operands += [dense(bags * rows, role="index"), dense(bags, role="index")]
    if mode == 0 and draw(st.booleans()):
        operands.append(dense(bags * rows, requires_grad=draw(st.booleans())))

    def call(table: Tensor, indices: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Tensor:
        return op(table, indices, offsets, False, mode, False, weights)[0]

    return Case(call, tuple(operands))


@case("grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(draw: Draw, op: Operator) -> Case:
    axes, mode = (2, pick(draw, 0, 1)) if "2d" in op.__name__ else (3, 0)
    n, c, *to = draw(sizes(2 + axes))
    x = draw(given((n, c, *(3 for _ in range(axes))), contiguous=True))
    return Case(lambda x, places: op(x, places, mode, 0, False), (x, draw(given((n, *to, axes), contiguous=True))))


@case("affine_grid_generator")
def affine_grid(draw: Draw, op: Operator) -> Case:
    axes = pick(draw, 2, 3)
    n, c, *to = (draw(st.integers(2, 4)) for _ in range(2 + axes))
    return Case(lambda x: op(x, [n, c, *to], False), (draw(given((n, axes, axes + 1), contiguous=True)),))


@case("_trilinear")
def trilinear(draw: Draw, op: Operator) -> Case:
    n, i, j, o = draw(sizes(4))
    operands = (*some(draw, (n, i), (n, j)), weighing(draw, o, i, j))
    return Case(lambda a, b, w: op(a, w, b, [1, 3], [0], [1, 2], [2, 3]), operands)


@case("_cdist_forward")
def cdist(draw: Draw, op: Operator) -> Case:
    n, p, r, m = draw(sizes(4))
    power = pick(draw, 1.0, 2.0)
    operands = tuple(draw(given((n, rows, m), contiguous=True)) for rows in (p, r))
    return Case(lambda a, b: op(a, b, power, None), operands)


@case("_euclidean_dist")
def euclidean(draw: Draw, op: Operator) -> Case:
    n, p, r, m = draw(sizes(4))
    return Case(op, tuple(draw(given((n, rows, m), contiguous=True)) for rows in (p, r)))


@case("_grouped_mm")
def grouped_mm(draw: Draw, op: Operator) -> Case:
    """Without gradients, as the meta device takes bfloat16 alone: with them see the mixtures of experts."""
    rows, groups = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    x, w = dense(rows, 16), Given((groups, 16, 32), (0, 1, 2), "weight", False)

    def call(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
        return op(x.bfloat16(), w.bfloat16(), ends.to(torch.int32)).float()

    return Case(call, (x, w, dense(groups, role="index")))


assert set(REDUCTIONS) <= set(CASES)


class Tripled(torch.autograd.Function):
    """3 x, from what is saved for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 3

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * 3 + x * 0


@case("function_start", "function_backward", "function")
def own_function(draw: Draw, op: Operator) -> Case:
    return Case(lambda x: Tripled.apply(x), (one(draw)._replace(requires_grad=True),))


@case("leaf")
def leaf(draw: Draw, op: Operator) -> Case:
    return Case(lambda x: x.detach().requires_grad_().exp(), (one(draw),))


@case("checkpoint", "checkpoint_end")
def stretch(draw: Draw, op: Operator) -> Case:
    reentrant = draw(st.booleans())
    return Case(
        lambda x: checkpoint(lambda x: x.sin().exp(), x, use_reentrant=reentrant),
        (one(draw)._replace(requires_grad=True),),
    )


# Scattered parts, places, margins


@case("polygamma")
def polygamma(draw: Draw, op: Operator) -> Case:
    return Case(lambda x: op(1, x), (one(draw),))


@case("select_scatter")
def select_scatter(draw: Draw, op: Operator) -> Case:
    x = one(draw, 2)
    return Case(lambda x, part: op(x, part, -1, 0), (x, *some(draw, x.shape[:-1])))


@case("slice_scatter")
def slice_scatter(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    part = (-(-x.shape[0] // 2), *x.shape[1:])
    return Case(lambda x, part: op(x, part, 0, 0, x.shape[0], 2), (x, *some(draw, part)))


@case("diagonal_scatter")
def diagonal_scatter(draw: Draw, op: Operator) -> Case:
    x = one(draw, 2, 3)
    return Case(lambda x, part: op(x, part, 0, 0, 1), (x, *some(draw, (*x.shape[2:], min(x.shape[:2])))))


@case("as_strided")
def as_strided(draw: Draw, op: Operator) -> Case:
    size, steps = pick(draw, ((3, 4), (4, 1)), ((2, 2), (4, 2)), ((3, 3), (4, 0)), ((2, 4), (2, 1)))
    return Case(lambda x: op(x, size, steps), (draw(given((3, 4), contiguous=True)),))


@case("as_strided_scatter")
def as_strided_scatter(draw: Draw, op: Operator) -> Case:
    return Case(
        lambda x, part: op(x, part, (2, 2), (4, 2)), (draw(given((3, 4), contiguous=True)), *some(draw, (2, 2)))
    )


@case("linalg_cross")
def linalg_cross(draw: Draw, op: Operator) -> Case:
    (rows,) = draw(sizes(1))
    return Case(op, some(draw, (rows, 3), pick(draw, (rows, 3), (1, 3))))


@case("take")
def take(draw: Draw, op: Operator) -> Case:
    return Case(op, (one(draw), *some(draw, draw(any_shape(1, 2)), roles=("index",))))


@case("renorm")
def renorm(draw: Draw, op: Operator) -> Case:
    x = one(draw, 2)
    return Case(lambda x: op(x, 2, 1, 1.0), (x,))


@case("aminmax")
def aminmax(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    axis = pick(draw, None, axis_of(draw, x.shape))
    return Case(lambda x: op(x, dim=axis), (x,))


@case("addr")
def addr(draw: Draw, op: Operator) -> Case:
    m, n = draw(sizes(2))
    return Case(op, some(draw, pick(draw, (m, n), (n,)), (m,), (n,)))


@case("addmv")
def addmv(draw: Draw, op: Operator) -> Case:
    m, n = draw(sizes(2))
    return Case(op, some(draw, (m,), (m, n), (n,)))


@case("block_diag")
def block_diag(draw: Draw, op: Operator) -> Case:
    return Case(lambda *x: op(x), some(draw, draw(sizes(2)), draw(sizes(2))))


@case("max_unpool2d", "max_unpool3d")
def unpool(draw: Draw, op: Operator) -> Case:
    axes = int(op.__name__[-2])
    shape = (2, 1, *draw(sizes(axes)))
    to = [2 * n for n in shape[2:]]
    rest = () if axes == 2 else ([2] * 3, [0] * 3)
    x = draw(given(shape, contiguous=True))
    return Case(lambda x, places: op(x, places, to, *rest), (x, *some(draw, shape, roles=("index",))))


@case("fractional_max_pool2d", "fractional_max_pool3d")
def fractional(draw: Draw, op: Operator) -> Case:
    axes = int(op.__name__[-2])
    x = volume(draw, axes)
    x = x if axes == 2 else x._replace(requires_grad=False)  # the meta device has no backward

    def call(x: Tensor) -> Tensor:
        return op(x, [2] * axes, [2] * axes, torch.empty(*x.shape[:2], axes, device=x.device))[0]

    return Case(call, (x,))


@case("multi_margin_loss", "multilabel_margin_loss")
def multi_margin(draw: Draw, op: Operator) -> Case:
    """Without gradients, as the meta device has no backward."""
    shape, reduction = draw(sizes(2)), pick(draw, 0, 1, 2)
    operands = (dense(*shape), dense(*shape[: 2 if "label" in op.__name__ else 1], role="index"))
    return Case(lambda x, y: op(x, y, reduction=reduction), operands)


@case("soft_margin_loss")
def soft_margin(draw: Draw, op: Operator) -> Case:
    """Of each element: the meta device makes a mean of its own, where others have it in what the elements were in."""
    shape = draw(any_shape())
    return Case(lambda x, y: op(x, y, 0), (draw(given(shape)), dense(*shape)))


@case("rrelu_with_noise")
def rrelu(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    training = draw(st.booleans())
    return Case(lambda x: nn.functional.rrelu(x, training=training), (x,))


@case("embedding_renorm")
def embedding_renorm(draw: Draw, op: Operator) -> Case:
    table = weight(draw, *draw(sizes(2)))
    return Case(lambda i, w: nn.functional.embedding(i, w, max_norm=1.0), (one(draw, role="index"), table))


@case("masked_scatter")
def masked_scatter(draw: Draw, op: Operator) -> Case:
    x = one(draw)
    mask = pick(draw, x.shape, tuple(1 if n == len(x.shape) - 1 else size for n, size in enumerate(x.shape)))
    return Case(
        lambda x, numbers, mask: op(x, mask, numbers), (x, *some(draw, x.shape), *some(draw, mask, roles=("mask",)))
    )


# Matrices


@case("linalg_inv_ex", "linalg_cholesky_ex", "_linalg_det", "_linalg_slogdet", "linalg_matrix_exp")
def of_matrix(draw: Draw, op: Operator) -> Case:
    n, outer = draw(sizes(1))[0], draw(any_shape(0, 2))
    results = 2 if op.__name__ == "_linalg_slogdet" else 1
    return Case(lambda x: leaves(op(x))[:results], (draw(given((*outer, n, n))),))


@case("_linalg_eigh", "_linalg_svd", "linalg_qr")
def vectors(draw: Draw, op: Operator) -> Case:
    m, n = sorted(draw(sizes(2)), reverse=True)
    shape = (2, n, n) if op.__name__ == "_linalg_eigh" else (2, m, n)
    if op.__name__ == "_linalg_svd" and draw(st.booleans()):
        shape = (2, n, m)
    few = pick(draw, *{"_linalg_svd": ((1,), (0,), (1, 2)), "_linalg_eigh": ((0,), (1,))}.get(op.__name__, ((0,),)))
    if draw(st.booleans()):
        return Case(op, (draw(given(shape)),))
    return Case(lambda x: [leaves(op(x))[n] for n in few], (draw(given(shape)),))


@case("cholesky_solve", "triangular_solve")
def solve_by_factor(draw: Draw, op: Operator) -> Case:
    n, columns = draw(sizes(2))
    return Case(lambda b, a: leaves(op(b, a))[0], some(draw, (2, n, columns), (2, n, n)))


@case("_linalg_solve_ex", "linalg_solve_triangular")
def linear_solve(draw: Draw, op: Operator) -> Case:
    n, columns = draw(sizes(2))
    left = draw(st.booleans())
    a, b = some(draw, (2, n, n), (2, n, columns) if left else (2, columns, n))
    if op.__name__ == "linalg_solve_triangular":
        return Case(lambda a, b: op(a, b, upper=False, left=left), (a, b))
    return Case(lambda a, b: op(a, b, left=left)[0], (a, b))


# Complex numbers


def pairs(operand: Given) -> Given:
    """An operand of complex numbers: those of a pair are next to each other in memory."""
    axes = len(operand.shape)
    return operand._replace(shape=(*operand.shape, 2), order=(*operand.order, axes), role="activation")


def as_reals(results: Any) -> list[Tensor]:
    """Results, of which complex ones are read as pairs."""
    return [torch.view_as_real(y.resolve_conj()) if y.is_complex() else y for y in leaves(results)]


def of_complex(case: Case, chosen: tuple[bool, ...]) -> Case:
    """The same call of complex numbers, for those operands that are chosen."""
    operands = tuple(pairs(one) if pick else one for one, pick in zip(case.operands, chosen, strict=True))

    def call(*given: Tensor) -> list[Tensor]:
        given = tuple(torch.view_as_complex(x) if pick else x for x, pick in zip(given, chosen, strict=True))
        return as_reals(case.call(*given))

    return Case(call, operands)


def some_complex(draw: Draw, case: Case, *, mixed: bool = False) -> Case:
    """With all numbers complex, or, if they may be `mixed`, some of them."""
    numbers = [one.role in ("activation", "weight") for one in case.operands]
    some = [number and (not mixed or draw(st.booleans())) for number in numbers]
    return of_complex(case, tuple(some if any(some) else numbers))


@case("view_as_complex", "view_as_real", "_neg_view", "_conj", "_conj_physical", "conj_physical", "angle")
def seen_as_complex(draw: Draw, op: Operator) -> Case:
    functions = {"_conj": torch.conj, "_neg_view": lambda z: z.conj().imag}
    plain = (lambda z: z) if op.__name__.startswith("view") else op
    return some_complex(draw, Case(functions.get(op.__name__, plain), (one(draw),)))


@case("complex", "polar")
def assembled(draw: Draw, op: Operator) -> Case:
    return Case(lambda a, b: as_reals(op(a, b)), broadcasting(draw, 2))


@case("_fft_r2c", "_fft_c2c", "_fft_c2r")
def transform(draw: Draw, op: Operator) -> Case:
    x = one(draw, 2)
    axes = draw(st.permutations(range(len(x.shape))))[: draw(st.integers(1, len(x.shape)))]
    scaling = pick(draw, 0, 1, 2)
    if op.__name__ == "_fft_r2c":
        onesided = draw(st.booleans())
        return Case(lambda x: as_reals(op(x, axes, scaling, onesided)), (x,))
    last = True if op.__name__ == "_fft_c2c" else 2 * (x.shape[axes[-1]] - 1) or 1
    return some_complex(draw, Case(lambda z: op(z, axes, scaling, last), (x,)))


MIXED = ("add", "sub", "subtract", "rsub", "mul", "multiply", "div", "divide", "true_divide")
"""Operators that take complex numbers with real ones."""
COMPLEX_CONSTANT = torch.empty(3, dtype=torch.complex64, device="meta")


def made_complex(draw: Draw, name: str) -> Case:
    """New complex numbers, times those of an operand."""
    op = getattr(aten, name, unknown)
    how: dict[str, Callable[[Tensor], Tensor]] = {
        "constant": lambda z: COMPLEX_CONSTANT,
        "full": lambda z: op([3], 1j, dtype=z.dtype, device="meta"),
        "full_like": lambda z: op(z, 1j),
        "new_full": lambda z: op(z, [3], 1j),
    }
    plain: dict[str, Callable[[Tensor], Tensor]] = {
        "_like": lambda z: op(z),
        "new_": lambda z: op(z, [3]),
        "": lambda z: op([3], dtype=z.dtype, device="meta"),
    }
    make = how.get(name) or next(make for part, make in plain.items() if part in name)
    return some_complex(draw, Case(lambda z: z * make(z), (draw(given((2, 3))),)))


def arithmetic_of_complex(draw: Draw, name: str) -> Case:
    """With numbers, real and complex, or of tensors."""
    op = getattr(aten, name)
    number = pick(draw, 2.0, 2j, None, None)
    if number is None:
        return some_complex(draw, Case(op, broadcasting(draw, 2)), mixed=True)
    if number == 2j and name == "mul" and draw(st.booleans()):
        return Case(lambda x: as_reals(op(x, number)), (one(draw),))
    return some_complex(draw, Case(lambda z: op(z, number), (one(draw),)))


def complex_case(draw: Draw, name: str) -> Case:
    """A drawn case of an operator with complex numbers."""
    if name in NEW_NUMBERS:
        return made_complex(draw, name)
    if name in MIXED:
        return arithmetic_of_complex(draw, name)
    if name in ("to", "_to_copy"):
        convert = getattr(aten, name)
        return Case(lambda x: as_reals(convert(x, dtype=torch.complex64)), (one(draw),))
    if name == "type_as":
        return Case(lambda x, z: as_reals(x.type_as(torch.view_as_complex(z))), some(draw, (3,), (2,)))
    if name == "where":
        return of_complex(Case(aten.where, broadcasting(draw, 3, ("mask",))), (False, True, True))
    if name in ("abs", "exp", "neg", "reciprocal"):
        return some_complex(draw, Case(getattr(aten, name), (one(draw),)))
    return some_complex(draw, CASES[name](draw))


ALONE_COMPLEX = {name for name in COMPLEX_RULES if RULES[name] is COMPLEX_RULES[name]} - set(ALIKE)
"""Operators that there are for complex numbers alone."""
OF_COMPLEX: dict[str, Callable[[Draw], Case]] = {
    f"{name} of complex numbers": lambda draw, name=name: complex_case(draw, name)
    for name in sorted(COMPLEX_RULES.keys() - ALONE_COMPLEX)
}
"""Cases of complex numbers, of operators that have others too."""
