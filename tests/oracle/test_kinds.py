"""Every layer kind, alone: what it makes, counts and keeps is what PyTorch makes, counts and keeps."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

from costmodel.graph.tape import Tape
from costmodel.graph.tensor import strides_of
from costmodel.layers import load_all
from costmodel.layers.activation import ParametricRelu, Xielu
from costmodel.layers.arithmetic import (
    Add,
    AddProduct,
    Choose,
    Clamp,
    Divide,
    Dropout,
    Extreme,
    Identity,
    LayerScale,
    Multiply,
    Power,
    Scale,
    Shift,
    Subtract,
    Unread,
)
from costmodel.layers.attention import Append, FusedAttention, Insert, Mask, Rotary, Sink, Softmax
from costmodel.layers.base import Layer
from costmodel.layers.embedding import (
    Embedding,
    FixedPositions,
    LearnedPositions,
    Prepend,
    StoredPositions,
    TrainedPositions,
)
from costmodel.layers.experts import ExpertLinear, GroupedTopK, Pick, Shares, TopK, Total
from costmodel.layers.linear import AbsorbKey, ExpandValue, Linear, Matmul
from costmodel.layers.loss import CrossEntropy, FusedLinearCrossEntropy, MeanSquaredError
from costmodel.layers.norm import Batchnorm, BatchnormUntracked, Groupnorm, Layernorm, Rmsnorm
from costmodel.layers.scan import DeltaScan, SelectiveScan, SolveTriangular
from costmodel.layers.shape import (
    Concat,
    Flatten,
    Join,
    MergeHeads,
    Permute,
    RepeatHeads,
    Reshape,
    Slice,
    SplitHeads,
    TransposeLast,
)
from costmodel.symbolic.sizes import product
from costmodel.training.settings import Device
from tests.layers.device_kernels import check_kernels
from tests.layers.test_kernels import OF_RANKS

from . import models, single
from .chunked_loss import ChunkedHead
from .settings import differential
from .single import Case, any_shape, sizes

pytestmark = pytest.mark.oracle

Rule = Callable[[st.DrawFn, Device], Case]
ROWS: dict[str, Rule] = {}


def row(rule: Rule) -> Rule:
    """Enter a rule as the oracle's row for the kind that its name says."""
    ROWS[rule.__name__.rstrip("_")] = rule
    return rule


def _activation(name: str) -> Rule:
    def rule(draw: st.DrawFn, device: Device) -> Case:
        return Case(load_all()[name](), (draw(single.given(draw(any_shape()))),), models.ACTIVATIONS[name])

    return rule


ROWS |= {name: _activation(name) for name in models.ACTIVATIONS}


@row
def linear(draw: st.DrawFn, device: Device) -> Case:
    x = draw(single.given(draw(any_shape())))
    features, bias = draw(st.integers(1, 4)), draw(st.booleans())
    return Case(Linear(features, bias), (x,), nn.Linear(x.shape[-1], features, bias))


@row
def matmul(draw: st.DrawFn, device: Device) -> Case:
    *batch, m, k, n = draw(any_shape(4, 5))
    of_one = draw(st.booleans())  # the rows of all batches, by one matrix
    a, b = draw(single.given((*batch, m, k))), draw(single.given((k, n) if of_one else (*batch, k, n)))
    return Case(Matmul(), (a, b), torch.matmul)


@row
def add(draw: st.DrawFn, device: Device) -> Case:
    return Case(Add(), draw(broadcasting()), torch.add)


@row
def multiply(draw: st.DrawFn, device: Device) -> Case:
    return Case(Multiply(), draw(broadcasting()), torch.mul)


@row
def subtract(draw: st.DrawFn, device: Device) -> Case:
    return Case(Subtract(), draw(broadcasting()), torch.sub)


@row
def divide(draw: st.DrawFn, device: Device) -> Case:
    return Case(Divide(), draw(broadcasting()), torch.div)


@row
def power(draw: st.DrawFn, device: Device) -> Case:
    return Case(Power(), draw(broadcasting()), torch.pow)


@row
def extreme(draw: st.DrawFn, device: Device) -> Case:
    return Case(Extreme(), draw(broadcasting()), draw(st.sampled_from([torch.maximum, torch.minimum])))


@row
def choose(draw: st.DrawFn, device: Device) -> Case:
    shape = draw(any_shape())
    a, b = (draw(single.given(shape, contiguous=True)) for _ in range(2))
    return Case(Choose(), (draw(single.given(shape, "mask")), a, b), torch.where)


@row
def parametric_relu(draw: st.DrawFn, device: Device) -> Case:
    x = draw(single.given(draw(any_shape(2))))
    slopes = draw(st.sampled_from([1, x.shape[1]]))
    return Case(ParametricRelu((slopes,)), (x,), nn.PReLU(slopes))


@row
def xielu(draw: st.DrawFn, device: Device) -> Case:
    return Case(Xielu(), (draw(single.given(draw(any_shape()))),), models.Xielu())


@row
def selective_scan(draw: st.DrawFn, device: Device) -> Case:
    b, channels, t, n = draw(sizes(4))
    a, u = (draw(single.given((b, channels, t, n), contiguous=True)) for _ in range(2))
    c = draw(single.given((b, t, n), contiguous=True))

    def call(a: Tensor, u: Tensor, c: Tensor) -> Tensor:
        state, made = a.new_zeros(b, channels, n), []
        for i in range(t):
            state = a[:, :, i] * state + u[:, :, i]
            made.append((state @ c[:, i, :, None])[:, :, 0])
        return torch.stack(made, -1)

    return Case(SelectiveScan(), (a, u, c), call)


@row
def solve_triangular(draw: st.DrawFn, device: Device) -> Case:
    outer, n, columns = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    a, b = (draw(single.given((outer, n, size), contiguous=True)) for size in (n, columns))
    function = partial(torch.linalg.solve_triangular, upper=False, unitriangular=True)
    return Case(SolveTriangular(), (a, b), function)


@row
def delta_scan(draw: st.DrawFn, device: Device) -> Case:
    b, h, c, n, k, v = draw(sizes(6, 3))
    shapes = [(b, h, c, n, v), (b, h, c, n, k), (b, h, c, n, k), (b, h, c, n, n), (b, h, c, n, k), (b, h, c, 1, 1)]
    orders = [draw(st.sampled_from([(0, 1, 2, 3, 4), (0, 2, 3, 1, 4)])) for _ in range(4)]
    orders = [(0, 1, 2, 4, 3), *orders, (0, 1, 2, 3, 4)]
    needed = [draw(st.booleans()) for _ in shapes]
    inputs = [single.Given(*each) for each in zip(shapes, orders, ["activation"] * 6, needed, strict=True)]

    def call(u: Tensor, w: Tensor, q: Tensor, m: Tensor, key: Tensor, a: Tensor) -> Tensor:
        """The state after the last chunk keeps nothing: the package drops it."""
        y, state = torch.zeros_like(u), u.new_zeros(b, h, k, v)
        for i in range(c):
            new = u[:, :, i] - w[:, :, i] @ state
            y[:, :, i] = q[:, :, i] @ state + m[:, :, i] @ new
            with torch.set_grad_enabled(i < c - 1 and torch.is_grad_enabled()):
                state = state * a[:, :, i] + key[:, :, i].transpose(-1, -2) @ new
        return y

    return Case(DeltaScan(), tuple(inputs), call)


@row
def top_k(draw: st.DrawFn, device: Device) -> Case:
    x = draw(single.given(draw(any_shape())))
    chosen = draw(st.integers(1, x.shape[-1]))
    return Case(TopK(chosen), (x,), lambda x: x.topk(chosen, -1)[0])


@row
def grouped_top_k(draw: st.DrawFn, device: Device) -> Case:
    groups, biased = draw(st.integers(1, 3)), draw(st.booleans())
    each, kept = draw(st.integers(1 + biased, 3)), draw(st.integers(1, groups))
    chosen = draw(st.integers(1, kept * each))
    x = draw(single.given((*draw(sizes(2)), groups * each)))
    fields = {"groups": groups, "chosen_groups": kept, "per_token": chosen, "choice_bias": biased}
    stored = biased and draw(st.booleans())
    choice = models.Choice(SimpleNamespace(count=groups * each, choice_stored=stored, **fields))
    return Case(GroupedTopK(chosen, groups, kept, 1 + biased, biased, stored), (x,), First(choice))


class First(nn.Module):
    """The first of what a module returns."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.module(*inputs)[0]


@row
def shares(draw: st.DrawFn, device: Device) -> Case:
    x = draw(single.given(draw(any_shape())))
    return Case(Shares(), (x,), lambda x: x / (x.sum(-1, keepdim=True) + 1e-20))


@row
def pick(draw: st.DrawFn, device: Device) -> Case:
    x, times = draw(single.given(draw(any_shape(2, 2)))), draw(st.integers(1, 3))
    rows = draw(st.none() | st.integers(1, 9))
    if rows is not None:
        return Case(Pick(rows=rows), (x,), lambda x: x[torch.arange(rows, device=x.device) % len(x)])
    return Case(Pick(times), (x,), lambda x: x[torch.arange(len(x) * times, device=x.device) // times])


@row
def expert_linear(draw: st.DrawFn, device: Device) -> Case:
    x = draw(single.given(draw(any_shape(2, 2))))
    experts, features, bias = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.booleans())
    layer = models.ExpertLinear(experts, x.shape[1], features, bias)
    return Case(ExpertLinear(experts, 1, features, bias), (x,), layer)


@row
def total(draw: st.DrawFn, device: Device) -> Case:
    return Case(Total(), (draw(single.given(draw(any_shape(3, 3)))),), lambda x: x.sum(1))


@row
def scale(draw: st.DrawFn, device: Device) -> Case:
    return Case(Scale(0.5), (draw(single.given(draw(any_shape()))),), lambda x: x * 0.5)


@row
def clamp(draw: st.DrawFn, device: Device) -> Case:
    bounds = draw(st.sampled_from([(-2.0, 2.0), (0.0, 6.0), (None, 2.0), (0.0, None)]))
    return Case(Clamp(*bounds), (draw(single.given(draw(any_shape()))),), lambda x: x.clamp(*bounds))


@row
def shift(draw: st.DrawFn, device: Device) -> Case:
    return Case(Shift(1.0), (draw(single.given(draw(any_shape()))),), lambda x: x + 1)


@row
def layer_scale(draw: st.DrawFn, device: Device) -> Case:
    x = draw(single.given(draw(any_shape(2))))
    return Case(LayerScale(), (x,), Scaled(x.shape[1], *(1 for _ in x.shape[2:])))


class Scaled(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


@row
def prepend(draw: st.DrawFn, device: Device) -> Case:
    x = draw(single.given(draw(any_shape(3, 3))))
    tokens = draw(st.integers(1, 3))
    return Case(Prepend(tokens), (x,), models.Prepended(tokens, x.shape[2]))


@row
def trained_positions(draw: st.DrawFn, device: Device) -> Case:
    x = draw(single.given(draw(any_shape(3, 3))))
    return Case(TrainedPositions(), (x,), models.Placed(*x.shape[1:]))


@row
def fixed_positions(draw: st.DrawFn, device: Device) -> Case:
    x = draw(single.given(draw(any_shape(3, 3))))
    return Case(FixedPositions(), (x,), models.Placed(*x.shape[1:]).requires_grad_(False))


@row
def dropout(draw: st.DrawFn, device: Device) -> Case:
    p = draw(st.sampled_from([0.0, 0.1]))
    return Case(Dropout(p), (draw(single.given(draw(any_shape()))),), models.Dropout(p, device))


@row
def unread(draw: st.DrawFn, device: Device) -> Case:
    features = draw(st.integers(1, 9))
    return Case(Unread(features), (draw(single.given(draw(any_shape()))),), models.Unread(features))


@row
def identity(draw: st.DrawFn, device: Device) -> Case:
    return Case(Identity(), (draw(single.given(draw(any_shape()))),), nn.Identity())


@row
def softmax(draw: st.DrawFn, device: Device) -> Case:
    shape, other, logarithm = draw(any_shape(2)), draw(st.booleans()), draw(st.booleans())
    x, axis = draw(single.given(shape, contiguous=other)), 1 if other else None
    function = torch.log_softmax if logarithm else torch.softmax
    return Case(Softmax(axis, logarithm), (x,), lambda x: function(x, -1 if axis is None else axis))


@row
def mask(draw: st.DrawFn, device: Device) -> Case:
    x = draw(single.given(draw(any_shape(2))))
    hides = draw(single.given(x.shape[-2:], "mask"))
    return Case(Mask(), (x, hides), lambda x, hides: x.masked_fill(hides, float("-inf")))


@row
def sink(draw: st.DrawFn, device: Device) -> Case:
    x = draw(single.given(draw(sizes(4))))
    return Case(Sink(), (x,), models.Sink(x.shape[1]))


@row
def append(draw: st.DrawFn, device: Device) -> Case:
    *rest, features = draw(any_shape(2, 3))
    given = tuple(
        draw(single.given((*rest, draw(st.integers(1, 4)), features))) for _ in range(draw(st.integers(1, 2)))
    )
    return Case(Append(), given, lambda *parts: torch.cat(parts, -2))


@row
def insert(draw: st.DrawFn, device: Device) -> Case:
    *rest, features = draw(any_shape(2, 3))
    new, tokens, room = sorted(draw(sizes(3)))
    cache = draw(single.given((*rest, room, features), contiguous=True))._replace(requires_grad=False)
    x = draw(single.given((*rest, new, features)))._replace(requires_grad=False)

    def write(cache: Tensor, x: Tensor) -> Tensor:
        cache[..., room - new :, :].copy_(x)
        return cache[..., room - tokens :, :]

    return Case(Insert(tokens), (cache, x), write)


class OfHeads(nn.Module):
    """A matrix for each head, of which keys have the first rows and values the rest."""

    def __init__(self, heads: int, key: int, value: int, rank: int, absorbs: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads * (key + value), rank))
        self.key, self.absorbs = key, absorbs

    def forward(self, x: Tensor) -> Tensor:
        b, h, t, n = x.shape
        matrices = self.weight.view(h, -1, self.weight.shape[1])
        own = matrices[:, : self.key] if self.absorbs else matrices[:, self.key :].transpose(1, 2)
        return torch.bmm(x.transpose(0, 1).reshape(h, b * t, n), own).view(h, b, t, -1).transpose(0, 1)


@row
def absorb_key(draw: st.DrawFn, device: Device) -> Case:
    x, rank, value = draw(single.given(draw(sizes(4)))), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    return Case(AbsorbKey(rank, value), (x,), OfHeads(x.shape[1], x.shape[3], value, rank, absorbs=True))


@row
def expand_value(draw: st.DrawFn, device: Device) -> Case:
    x, key, value = draw(single.given(draw(sizes(4)))), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    return Case(ExpandValue(key, value), (x,), OfHeads(x.shape[1], key, value, x.shape[3], absorbs=False))


@row
def fused_attention(draw: st.DrawFn, device: Device) -> Case:
    b, repeat, heads, t, d = draw(sizes(5))
    kernel = draw(st.sampled_from(["flash", "efficient"])) if device == "gpu" else "cpu"
    repeat = 1 if kernel == "efficient" else repeat  # no backward for grouped heads
    p = 0.0 if device == "cpu" else draw(st.sampled_from([0.0, 0.1]))
    q, k = draw(single.given((b, heads * repeat, t, d))), draw(single.given((b, heads, t, d)))
    v = draw(single.given((b, heads, t, draw(st.integers(1, 4)) if kernel == "efficient" else d)))
    call = {
        "flash": lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, p)[0],
        "efficient": lambda q, k, v: torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, p)[0],
        "cpu": lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0],
    }
    return Case(FusedAttention(kernel, p), (q, k, v), call[kernel], call["flash"] if kernel == "cpu" else None)


@row
def rotary(draw: st.DrawFn, device: Device) -> Case:
    b, h, t, half = draw(sizes(4))
    size = 2 * draw(st.integers(1, half))
    x = draw(single.given((b, h, t, 2 * half)))
    x = x._replace(order=draw(st.sampled_from([(0, 1, 2, 3), (0, 2, 1, 3)])))  # as heads are split
    tables = [single.Given((t, size), (0, 1)) for _ in range(2)]
    return Case(Rotary(size), (x, *tables), lambda x, cos, sin: models.rotate(x, cos, sin))


@row
def embedding(draw: st.DrawFn, device: Device) -> Case:
    entries, features = draw(sizes(2))
    return Case(
        Embedding(entries, features), (draw(single.given(draw(any_shape()), "index")),), nn.Embedding(entries, features)
    )


@row
def learned_positions(draw: st.DrawFn, device: Device) -> Case:
    context, features = draw(sizes(2))
    tokens = draw(single.given((draw(st.integers(1, 4)), draw(st.integers(1, context))), "index"))
    return Case(LearnedPositions(context, features), (tokens,), Positions(context, features))


@row
def stored_positions(draw: st.DrawFn, device: Device) -> Case:
    context, features = draw(sizes(2))
    tokens = draw(single.given((draw(st.integers(1, 4)), draw(st.integers(1, context))), "index"))
    return Case(StoredPositions(context, features), (tokens,), Positions(context, features, _freeze=True))


class Positions(nn.Embedding):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(torch.arange(tokens.shape[1], device=tokens.device))


@row
def layernorm(draw: st.DrawFn, device: Device) -> Case:
    x, affine, bias = draw(single.given(draw(any_shape()))), draw(st.booleans()), draw(st.booleans())
    if len(x.shape) > 1 and draw(st.booleans()):
        heads, x = x.shape[-2], x._replace(order=tuple(range(len(x.shape))))
        return Case(Layernorm(True, bias, heads), (x,), models.HeadNorms(heads, x.shape[-1], True, bias))
    return Case(Layernorm(affine, bias), (x,), nn.LayerNorm(x.shape[-1], elementwise_affine=affine, bias=bias))


@row
def rmsnorm(draw: st.DrawFn, device: Device) -> Case:
    x, affine = draw(single.given(draw(any_shape(1, 3)))), draw(st.booleans())
    return Case(Rmsnorm(affine), (x,), models.RMSNorm(x.shape[-1], device, affine))


@row
def batchnorm(draw: st.DrawFn, device: Device) -> Case:
    x, affine = draw(single.given(draw(any_shape(2)), contiguous=True)), draw(st.booleans())
    if len(x.shape) == 4 and draw(st.booleans()):
        x = x._replace(order=LAST)  # of others the meta device has its result in an order of its own
    assume(product(x.shape) > x.shape[1])  # PyTorch refuses a deviation of one value
    norm = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(x.shape)]
    bias = draw(st.booleans())
    return Case(Batchnorm(affine, bias), (x,), norm(x.shape[1], affine=affine, bias=bias))


@row
def batchnorm_untracked(draw: st.DrawFn, device: Device) -> Case:
    case = batchnorm(draw, device)
    affine, bias, (x,) = case.kind.affine, case.kind.bias, case.inputs  # type: ignore[attr-defined]
    norm = type(case.call)(x.shape[1], affine=affine, bias=bias, track_running_stats=False)  # type: ignore[call-arg]
    return Case(BatchnormUntracked(affine, bias), (x,), norm)


@row
def groupnorm(draw: st.DrawFn, device: Device) -> Case:
    groups, each = draw(sizes(2))
    batch, *rest = draw(any_shape())
    assume(product((each, batch, *rest)) > 1)
    x, affine, bias = draw(single.given((batch, groups * each, *rest))), draw(st.booleans()), draw(st.booleans())
    norm = nn.GroupNorm(groups, groups * each, affine=affine, bias=bias)
    return Case(Groupnorm(groups, affine, bias), (x,), norm)


@row
def cross_entropy(draw: st.DrawFn, device: Device) -> Case:
    shape = draw(any_shape(2))
    target = draw(single.given((shape[0], *shape[2:]), "index"))
    share = draw(st.sampled_from([0.0, 0.1]))
    call = partial(F.cross_entropy, label_smoothing=share)
    return Case(CrossEntropy(share), (draw(single.given(shape)), target), call)


@row
def mean_squared_error(draw: st.DrawFn, device: Device) -> Case:
    shape = draw(any_shape())
    target = draw(single.given(shape))._replace(requires_grad=False)
    return Case(MeanSquaredError(), (draw(single.given(shape)), target), F.mse_loss)


@row
def fused_linear_cross_entropy(draw: st.DrawFn, device: Device) -> Case:
    x = draw(single.given(draw(any_shape())))
    features, bias = draw(st.integers(1, 4)), draw(st.booleans())
    chunks = draw(st.integers(1, product(x.shape[:-1])))
    target = draw(single.given(x.shape[:-1], "index"))
    head = ChunkedHead(x.shape[-1], features, bias, chunks)
    return Case(FusedLinearCrossEntropy(features, bias, chunks), (x, target), head)


@row
def join(draw: st.DrawFn, device: Device) -> Case:
    *rest, _ = draw(any_shape(1, 3))
    features = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    inputs = tuple(draw(single.given((*rest, n))) for n in features)
    return Case(Join(), inputs, lambda *x: torch.cat(x, -1))


@row
def concat(draw: st.DrawFn, device: Device) -> Case:
    b, _, *rest = draw(any_shape(2))
    channels = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    inputs = tuple(draw(single.given((b, c, *rest))) for c in channels)
    return Case(Concat(), inputs, lambda *x: torch.cat(x, 1))


@row
def reshape(draw: st.DrawFn, device: Device) -> Case:
    x = draw(single.given(draw(any_shape(2))))
    shape = tuple(draw(st.permutations(x.shape[1:])))
    shape = draw(st.sampled_from([shape, (1, *shape), (shape[0] * (shape[-1] if len(shape) > 1 else 1), *shape[1:-1])]))
    return Case(Reshape(shape), (x,), lambda x: x.reshape(x.shape[0], *shape))


@row
def flatten(draw: st.DrawFn, device: Device) -> Case:
    return Case(Flatten(), (draw(single.given(draw(any_shape(2)))),), nn.Flatten())


@row
def permute(draw: st.DrawFn, device: Device) -> Case:
    x = draw(single.given(draw(any_shape(2))))
    axes = tuple(draw(st.permutations(range(len(x.shape)))))
    return Case(Permute(axes), (x,), lambda x: x.permute(axes))


@row
def slice(draw: st.DrawFn, device: Device) -> Case:
    x = draw(single.given(draw(any_shape())))
    axis = draw(st.sampled_from([None, *range(1, len(x.shape))]))
    size = x.shape[-1 if axis is None else axis]
    length = draw(st.integers(1, size))
    start = draw(st.integers(0, size - length))
    return Case(Slice(length, start, axis), (x,), lambda x: x.narrow(-1 if axis is None else axis, start, length))


@row
def split_heads(draw: st.DrawFn, device: Device) -> Case:
    b, t, heads, d = draw(sizes(4))
    x = draw(single.given((b, t, heads * d)))
    return Case(SplitHeads(heads), (x,), lambda x: x.reshape(b, t, heads, d).transpose(1, 2))


@row
def merge_heads(draw: st.DrawFn, device: Device) -> Case:
    b, h, t, d = draw(sizes(4))
    return Case(MergeHeads(), (draw(single.given((b, h, t, d))),), lambda x: x.transpose(1, 2).reshape(b, t, h * d))


@row
def transpose_last(draw: st.DrawFn, device: Device) -> Case:
    return Case(TransposeLast(), (draw(single.given(draw(any_shape(2)))),), lambda x: x.transpose(-2, -1))


@row
def repeat_heads(draw: st.DrawFn, device: Device) -> Case:
    b, h, t, d = draw(sizes(4))
    times = draw(st.integers(1, 3))
    x = draw(single.given((b, h, t, d)))
    return Case(RepeatHeads(times), (x,), lambda x: x[:, :, None].expand(b, h, times, t, d).reshape(b, h * times, t, d))


@st.composite
def broadcasting(draw: st.DrawFn) -> tuple[single.Given, single.Given]:
    """Two inputs of one shape, or one that lacks axes or has them of size 1."""
    shape = draw(any_shape())
    other = tuple(draw(st.sampled_from([size, size, 1])) for size in shape)[draw(st.sampled_from([0, 0, 1])) :]
    alike = shape == other
    a, b = (draw(single.given(s, contiguous=not alike)) for s in (shape, other))
    return draw(st.sampled_from([(a, b), (b, a)]))


IMPORTED = {
    *("pointwise", "gated", "reduce", "cumulate", "compared", "nll_loss", "batchnorm_fixed", "parameter", "computed"),
    *(
        "as_strided",
        "overwrite",
        "copy",
        "cat",
        "gather",
        "scatter",
        "unknown",
        "scatter_add",
        "scatter_reduce",
        "add_quotient",
        "cumprod",
    ),
    *(
        "lstm",
        "gru",
        "elman",
        "paired",
        "bounded",
        "within",
        "lerp",
        "window_mean",
        "grid_sample",
        "weight_norm",
        "embedding_bag",
    ),
    *("grouped_matmul", "bilinear", "distances", "affine_grid", "log_cumsum_exp", "trace"),
    *("assembled", "complex_arithmetic", "complex_function", "fourier_transform"),
    *(
        "linear_solve",
        "of_matrix",
        "remainder",
        "masked_scatter",
        "fake_quantize",
        "replace",
        "written_part",
        "subtract_scaled",
        "custom_function",
        "gradient_leaf",
        "further_result",
        "add_product",
        "add_scaled",
    ),
    *("class_margin", "cross_product", "part_set", "randomized_relu", "renorm"),
}
"""Kinds that stand for operators whose constants, axes or places they do not hold: see test_from_torch_operators.py."""

SHAPE_ONLY = [name for name in ROWS if load_all()[name].__module__.endswith(".shape")]


def draw_case(data: st.DataObject, name: str, device: Device) -> Case:
    @st.composite
    def case(draw: st.DrawFn) -> Case:
        with torch.device("meta"):
            return ROWS[name](draw, device)

    return data.draw(case())


@pytest.mark.parametrize("device", ["gpu", "cpu"])
@pytest.mark.parametrize("name", ROWS)
@differential
@given(st.data())
def test_training(name: str, device: Device, data: st.DataObject) -> None:
    case = draw_case(data, name, device)
    assert single.on_paper(case, device, training=True) == single.in_pytorch(case, training=True)


@pytest.mark.parametrize("name", ROWS)
@differential
@given(st.data())
def test_inference(name: str, data: st.DataObject) -> None:
    case = draw_case(data, name, "gpu")
    assert single.on_paper(case, "gpu", training=False) == single.in_pytorch(case, training=False)


@pytest.mark.parametrize("name", ROWS)
@differential
@given(st.data(), st.booleans())
def test_kernels_do_the_work_of_the_layer(name: str, data: st.DataObject, training: bool) -> None:
    case, tape = draw_case(data, name, "gpu"), Tape(training=training, device="gpu")
    case.kind(*(one.on_paper(tape) for one in case.inputs))  # type: ignore[arg-type]
    check_kernels(tape)
    if name == "expert_linear":
        return  # whose rows in even shares are rounded up
    for call in tape.root.calls():
        for k in (*call.layer.forward_kernels(call), *(call.layer.backward_kernels(call) if training else ())):
            if k.sort == "product" and k.sizes is not None:
                outer, m, n, terms = k.sizes
                assert k.read + k.written >= k.launches * 4 * outer * (m * terms + terms * n + m * n), k


@pytest.mark.parametrize("name", SHAPE_ONLY)
@differential
@given(st.data())
def test_linear_on_another_shape(name: str, data: st.DataObject) -> None:
    case = draw_case(data, name, "gpu")
    features = case.call(*(x.in_pytorch() for x in case.inputs)).shape[-1]
    with torch.device("meta"):
        after = nn.Linear(features, 3)
    assert single.on_paper(case, "gpu", training=True, then=Linear(3)) == single.in_pytorch(
        case, training=True, then=after
    )


LAST, FIRST = (0, 2, 3, 1), (0, 1, 2, 3)


@st.composite
def seen_jointly(draw: st.DrawFn, count: int) -> list[Tensor]:
    """Tensors that broadcast, each with its axes in memory in any order, or seen several times along some."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    operands = []
    for _ in range(count):
        own = [draw(st.sampled_from((size, size, 1))) for size in shape[draw(st.integers(0, len(shape))) :]]
        order = draw(st.permutations(range(len(own))))
        x = torch.rand([own[axis] for axis in order]).permute([order.index(axis) for axis in range(len(own))])
        expanded = draw(st.booleans())
        operands.append(x.expand(shape) if expanded else x)
    return operands


ELEMENTWISE = (
    *((Add(), torch.add, 2), (Multiply(), torch.mul, 2), (Extreme(), torch.maximum, 2)),
    *((AddProduct(), torch.addcmul, 3), (Choose(), torch.where, 3)),
)


@pytest.mark.parametrize(("kind", "call", "count"), ELEMENTWISE, ids=[kind.kind for kind, *_ in ELEMENTWISE])
@differential
@given(st.data())
def test_elementwise_results_lie_as_all_operands_do(
    kind: Layer, call: Callable[..., Tensor], count: int, data: st.DataObject
) -> None:
    operands = data.draw(seen_jointly(count))
    if call is torch.where:
        operands[0] = operands[0] > 0.5
    tape = Tape(training=False, device="cpu")
    y = kind(*(tape.tensor(tuple(x.shape), strides=x.stride()) for x in operands))
    assert single.told(y.shape, strides_of(y)) == single.told(y.shape, call(*operands).stride())


@pytest.mark.parametrize("orders", [(LAST,), (LAST, LAST), (LAST, FIRST), (FIRST, LAST)])
def test_tokens_that_all_have_channels_last_are_appended_so(orders: tuple[tuple[int, ...], ...]) -> None:
    inputs = tuple(single.Given((3, 4, n, 2), order) for n, order in zip((2, 5), orders, strict=False))
    case = Case(Append(), inputs, lambda *parts: torch.cat(parts, -2))
    assert single.on_paper(case, "gpu", training=True) == single.in_pytorch(case, training=True)


def test_every_kind_has_a_row() -> None:
    """Kinds of networks on images have theirs in test_cnn.py, casts in test_precision.py, operators by import.

    Those of several ranks are held as whole ranks in test_ranks.py.
    """
    images = {"conv", "pool", "resize", "spatial"}
    kinds = {name: kind for name, kind in load_all().items() if not issubclass(kind, OF_RANKS)}
    here = {name for name, kind in kinds.items() if kind.__module__.rpartition(".")[2] not in images}
    assert here - IMPORTED - {"cast", "channel_dropout", "stochastic_depth"} == set(ROWS)


def test_what_only_an_import_makes_is_in_no_list_of_blocks() -> None:
    """Constants, axes and places would be missing there."""
    assert [name for name in sorted(IMPORTED) if load_all()[name].in_lists] == []


@pytest.mark.parametrize(
    ("ours", "theirs", "fields"),
    [
        ("avg_pool", nn.AvgPool2d, {"stride": "stride", "padding": "padding", "ceil_mode": "ceil_mode"}),
        ("batchnorm", nn.BatchNorm2d, {"affine": "affine"}),
        ("channel_dropout", nn.Dropout2d, {"p": "p"}),
        ("conv", nn.Conv2d, {name: name for name in ("stride", "padding", "dilation", "groups", "bias")}),
        (
            "conv_transpose",
            nn.ConvTranspose2d,
            {name: name for name in ("stride", "padding", "output_padding", "dilation", "groups", "bias")},
        ),
        ("cross_entropy", nn.CrossEntropyLoss, {"smoothing": "label_smoothing"}),
        ("dropout", nn.Dropout, {"p": "p"}),
        ("elman", nn.RNNCell, {"bias": "bias", "function": "nonlinearity"}),
        ("elu", nn.ELU, {"alpha": "alpha"}),
        ("embedding_bag", nn.EmbeddingBag, {"mode": "mode"}),
        ("groupnorm", nn.GroupNorm, {"affine": "affine"}),
        ("gru", nn.GRUCell, {"bias": "bias"}),
        ("layernorm", nn.LayerNorm, {"affine": "elementwise_affine", "bias": "bias"}),
        ("leaky_relu", nn.LeakyReLU, {"slope": "negative_slope"}),
        ("linear", nn.Linear, {"bias": "bias"}),
        ("lstm", nn.RNNBase, {"bias": "bias", "projected": "proj_size"}),
        ("max_pool", nn.MaxPool2d, {"stride": "stride", "padding": "padding", "ceil_mode": "ceil_mode"}),
        ("rmsnorm", nn.RMSNorm, {"affine": "elementwise_affine"}),
        ("upsample", nn.Upsample, {"mode": "mode"}),
    ],
)
def test_defaults_are_those_of_torch(ours: str, theirs: type[nn.Module], fields: dict[str, str]) -> None:
    """Some values decide no cost, but what the roofline's kernels compute."""
    parameters = {name: one for c in reversed(theirs.__mro__) for name, one in inspect.signature(c).parameters.items()}
    said = {field: load_all()[ours].__dataclass_fields__[field].default for field in fields}
    assert said == {field: parameters[argument].default for field, argument in fields.items()}
