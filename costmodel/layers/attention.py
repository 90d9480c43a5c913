"""The parts of attention: softmax, masks, fused kernels, positions, and the cache of keys and values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from costmodel.graph.call import Call, Gradient, GradientOrder, KeptResults, LayerFlops, Weights, Workspace
from costmodel.graph.kernel import Kernel, Product
from costmodel.graph.tensor import Shape, Storage, Tensor, broadcast, show_shape, strides_of
from costmodel.layers.base import KeepsNothing, OneKernel, Unary, Unbuffered, Weightless, layer
from costmodel.layers.kernels import (
    distinct_bytes,
    distinct_bytes_of,
    extra_bytes,
    forward_pass,
    new_gradients,
    saved_bytes,
    stream,
)
from costmodel.layers.shape import Joining
from costmodel.layers.spatial import channels_last, last_strides
from costmodel.symbolic.sizes import alike, ceil_div, exact_div, maximum, minimum
from costmodel.training.dtypes import RealType, size_bytes
from costmodel.training.fields import Constant, Count

FusedKernel = Literal["flash", "efficient", "cpu"]
PACKED = 64
"""Queries of heads that share keys, up to which fused attention has them in one tile (FlashAttention-2: queries and
groups swapped for a single query; FlashAttention-3: pack_gqa)."""


@layer
class Softmax(Unary):
    """y = exp(x − max x)/Σ exp(x − max x) over the last axis or another, in new memory, or its logarithm.

    Per row of n: maximum n − 1, subtraction n, exp n, sum n − 1, division or another subtraction n.
    """

    source = "exp(x − max)/Σ exp(x − max) (torch.softmax; Vaswani et al. 2017, eq. 1); dx = y·(g − Σ g·y)"
    sorts = "reduction", "reduction"
    raises_half = True

    axis: Count | None = None
    logarithm: bool = False

    def check(self, call: Call) -> None:
        super().check(call)
        if self.axis is not None and self.axis >= len(call.x.shape):
            raise call.fail(f"axis {self.axis} is not one of the {len(call.x.shape)} axes")

    def output(self, call: Call) -> Tensor:
        return call.tape.tensor(call.x.shape)

    def _rows(self, call: Call) -> int:
        """How many rows there are along the axis."""
        return call.x.rows if self.axis is None else exact_div(call.x.size, call.x.shape[self.axis])

    def forward(self, call: Call) -> LayerFlops:
        """5n − 2 a row, and the logarithm of its sum."""
        return LayerFlops(0, 5 * call.x.size - (1 if self.logarithm else 2) * self._rows(call))

    def backward(self, call: Call) -> Iterable[Gradient]:
        """y·(g − Σ g·y), or g − e^y·Σ g: 4n − 1 a row."""
        yield Gradient(call.x, LayerFlops(0, 4 * call.x.size - self._rows(call)))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.y

    def gradient_copy(self, call: Call) -> int:
        return call.y.size

    def gradient_order(self, call: Call, x: Tensor) -> GradientOrder:
        return "rows"


@layer
class Mask(OneKernel, Weightless):
    """y = x where the bool mask allows it, −∞ elsewhere; the mask broadcasts."""

    source = "torch.Tensor.masked_fill (Vaswani et al. 2017, §3.2.3); dx = g, or 0 where masked"
    arity = 2

    def check(self, call: Call) -> None:
        super().check(call)
        if broadcast(call.x.shape, call.inputs[1].shape, call.name) != call.x.shape:
            raise call.fail("the mask is larger than what it masks")

    def output(self, call: Call) -> Shape:
        return call.x.shape

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, call.y.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(0, call.y.size))

    def gradient_order(self, call: Call, x: Tensor) -> GradientOrder:
        return "incoming"

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """The mask, which is a buffer where it is made once."""
        yield call.inputs[1]


@layer
class Sink(KeepsNothing, OneKernel, Unbuffered):
    """A learned score of each head after those of every row, x: (batch, h, T, n), y: (batch, h, T, n + 1), w: (h)."""

    source = (
        "torch.cat of the scores and a weight of each head (OpenAI 2025, gpt-oss, §2.2; Xiao et al. 2024); dw = Σ g"
    )
    in_lists = False
    input_axes = "batch, heads, tokens, scores"

    def weights(self, call: Call) -> Weights:
        return {"weight": (call.x.shape[1],)}

    def output(self, call: Call) -> Shape:
        return (*call.x.shape[:-1], call.x.shape[-1] + 1)

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """The scores' is a part of the incoming one; a weight's sums those of its rows."""
        yield Gradient(call.x, LayerFlops(0, 0), shared=True)
        yield Gradient(call.weights["weight"], LayerFlops(0, call.x.rows))

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        for x, work, _ in new_gradients(call):
            yield stream(call, "backward", "reduction", work.pointwise, size_bytes(call.x.rows, x.dtype), x.bytes)


@layer
class FusedAttention(Weightless):
    """softmax(scale·q kᵀ) v in one kernel that never stores the scores; scale: 1/√d_h unless given.

    q: (batch, h, T, d_h); k, v: (batch, h_kv, T, d_h) with h_kv dividing h, held unrepeated; the efficient kernel
    takes values of another size, d_v. A fourth input is a bias of the scores that broadcasts to (batch, h, T, T), whose
    gradient is made for every sample. Backward computes the scores again: five products to the forward pass's two.
    `pairs`: query-key pairs counted for each head, the whole square unless given; `seen`: those that masks leave, which
    it works on, those counted unless given.
    """

    source = (
        "FlashAttention (Dao et al. 2022, alg. 1 and 4; backward 5 products to 2); keeps what "
        "aten::_scaled_dot_product_{flash,efficient}_attention return: output, log-sum-exp, random state"
    )

    in_lists = False

    arity = 3, 4

    kernel: FusedKernel = "flash"
    dropout: float = 0.0
    pairs: int | None = None
    scale: Constant | None = None
    seen: int | None = None

    @property
    def kept_results(self) -> KeptResults:
        """All of a GPU's kernels; that of a CPU is another operator."""
        return "none" if self.kernel == "cpu" else "all"

    def check(self, call: Call) -> None:
        """Query, key and value agree."""
        super().check(call)
        q, k, v = (x.shape for x in call.inputs[:3])
        scores = (*q[:3], k[2])
        if len(call.inputs) == 4 and broadcast(call.inputs[3].shape, scores, call.name) != scores:
            raise call.fail(f"biases of the scores are {show_shape(scores)}, or broadcast to that")
        alike = k[:3] == v[:3] if self.kernel == "efficient" else k == v
        if len(q) != 4 or not alike or (q[0], q[3]) != (k[0], k[3]) or q[1] % k[1]:
            raise call.fail("it takes q (batch, h, T, d_h) and k, v (batch, h_kv, T, d_h) with h_kv dividing h")

    def output(self, call: Call) -> Tensor:
        """(batch, h, T, d_h): in the query's memory order, or always (batch, T, h, d_h) from the efficient kernel."""
        if self.kernel != "efficient":
            return call.like(call.x)
        b, h, t, d = (*call.x.shape[:3], call.inputs[2].shape[3])
        return call.tape.tensor((b, h, t, d), strides=(h * t * d, d, h * d, 1))

    def _scores(self, call: Call) -> int:
        b, h, t, _ = call.x.shape
        return b * h * (t * call.inputs[1].shape[2] if self.pairs is None else self.pairs)

    def forward(self, call: Call) -> LayerFlops:
        """Two products; scale and softmax of each score and, in training, its dropout and a row's max + log Σ.

        Rescaling between tiles depends on their size and is not counted.
        """
        scores = self._scores(call)
        products = 2 * scores * (call.x.shape[3] + call.inputs[2].shape[3])
        biased = scores * (len(call.inputs) == 4)
        if not call.tape.training:
            return LayerFlops(products, biased + 6 * scores - 2 * call.x.rows)
        return LayerFlops(products, biased + (9 if self.dropout else 6) * scores)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Five products: the scores again, then dv, dweights, dq, dk; one kernel, charged to the first in need of it.

        A score is scaled, made a weight p = exp(s − log Σ), and takes its gradient p·(dp − D)·scale: six. D = Σ g·y
        once a row. Dropout draws its mask again (a comparison and a product), for p and for dp.
        """
        scores = self._scores(call)
        biased = 2 * scores * (len(call.inputs) == 4)
        pointwise = biased + (10 if self.dropout else 6) * scores + 2 * call.y.size - call.y.rows
        work = LayerFlops(2 * scores * (3 * call.x.shape[3] + 2 * call.inputs[2].shape[3]), pointwise)
        for x in sorted(call.inputs, key=lambda x: not x.requires_grad):
            yield Gradient(x, work)
            work = LayerFlops(0, 0)

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """One kernel for both products and the softmax."""
        yield self._kernel(
            call, "", self._done().forward(call), distinct_bytes_of(call.inputs), call.y.bytes + extra_bytes(call)
        )

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """D = Σ g·y of every row, then one kernel, which adds up dq in fp32, and dq in its own type."""
        gradients = call.gradients()
        if not gradients:
            return
        y, work = call.y, next(iter(self._done().backward(call))).work
        rows = 2 * y.size - y.rows
        sums = size_bytes(call.x.size, "fp32")
        yield stream(call, "backward rows", "reduction", rows, 2 * y.bytes, size_bytes(y.rows, "fp32") + sums)
        work = work._replace(pointwise=work.pointwise - rows)
        yield self._kernel(call, "backward", work, y.bytes + saved_bytes(call), sum(g.operand.bytes for g in gradients))
        yield stream(call, "backward query", "pointwise", 0, sums, call.x.bytes)

    def _done(self) -> FusedAttention:
        """The same with the pairs that it works on, whichever are counted."""
        return self if self.seen is None else replace(self, pairs=self.seen)

    def _kernel(self, call: Call, what: str, work: LayerFlops, read: int, written: int) -> Kernel:
        (b, h, t, d), (_, groups, keys, _) = call.x.shape, call.inputs[1].shape
        efficient = "efficient" if self.kernel == "efficient" else ""
        name, flops = " ".join(filter(None, (self.kind, efficient, what))), work.contractions + work.pointwise
        sizes = Product(b * h, t, keys, d)
        together = exact_div(h, groups)
        packed = Product(b * groups, t * together, keys, d)
        # A few queries, or fewer than heads that share keys: those of such heads are rows of a tile.
        if not alike(sizes, packed) and maximum(PACKED + 1 - t * together, together - t) > 0:
            sizes = packed
        return Kernel(name, "attention", flops, read, written, call.x.dtype, 1, sizes)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Query, key, value, output, the fp32 log-sum-exp of each row, and the random state.

        The efficient kernel pads rows to a multiple of 32. Random state is a seed and an offset of 8 bytes each; flash
        returns a pair of them and a spare scalar; the CPU kernel has none.
        """
        b, h, t, _ = call.x.shape
        yield from call.inputs
        yield call.y
        yield call.fresh("statistic", b, h, 32 * ceil_div(t, 32) if self.kernel == "efficient" else t)
        if self.kernel != "cpu":
            yield call.fresh("random", 3 if self.kernel == "flash" else 2)

    def workspace(self, call: Call) -> Workspace:
        """Backward holds one sum per row (Dao et al. 2022, alg. 4, line 4), and a bias's gradient for each sample."""
        biased = len(call.inputs) == 4 and call.inputs[3].requires_grad
        return Workspace(0, call.x.rows + (self._scores(call) if biased else 0))


@layer
class Rotary(Weightless):
    """Rotary positions: each pair of the `size` features from `start` turns by an angle of its token.

    x: (batch, h, T, d_h); cos and sin: buffers (T, size). Per rotated element two products and a sum.
    """

    source = "R x = x·cos + rotate(x)·sin (Su et al. 2021, RoFormer, eq. 34); dx is the inverse rotation"
    arity = 3

    size: int
    start: int = 0

    def check(self, call: Call) -> None:
        super().check(call)
        if self.size % 2 or self.start + self.size > call.x.shape[-1]:
            raise call.fail(
                f"rotary size {self.size} must be even and, from {self.start}, within the head size {call.x.shape[-1]}"
            )

    def output(self, call: Call) -> Tensor:
        """New memory: in the input's order, or contiguous where rotated and untouched features are joined again."""
        return call.like(call.x) if self.size == call.x.shape[-1] else call.tape.tensor(call.x.shape)

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, 3 * call.x.rows * self.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(0, 3 * call.x.rows * self.size))

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """x·cos, the turned half and its sign, ·sin, the sum; with untouched features a join."""
        yield self._kernel(call, "", self.forward(call))

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        for g in call.gradients():
            yield self._kernel(call, "backward", g.work)

    def _kernel(self, call: Call, what: str, work: LayerFlops) -> Kernel:
        x = call.x
        part, whole = size_bytes(x.rows * self.size, x.dtype), self.size == x.shape[-1]
        join = 0 if whole else x.bytes
        return stream(call, what, "pointwise", work.pointwise, 6 * part + join, 5 * part + join, 5 if whole else 6)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield from call.inputs[1:]

    def workspace(self, call: Call) -> Workspace:
        """Forward: x·cos and rotate(x)·sin before they are added. Backward, operator by operator, h being half of what
        turns: g·sin (2h), its negated half (h) and g·cos (2h), after which g is gone, of which 2h are dx.

        Where features are left as they are g stays for them: both halves of g·sin are put together beside it (2h), and
        later there are a gradient of all features for each part and the sum of the two. If x is of another data type
        than the tables, it is highest where g·cos is there in both.
        """
        x, y = call.x, call.y
        half = x.rows * (self.size // 2)
        if x.dtype != y.dtype:
            return Workspace(4 * half, 2 * half, size_bytes(3 * half, x.dtype))
        if self.size == x.shape[-1]:
            return Workspace(4 * half, 3 * half)
        return Workspace(4 * half, maximum(7 * half, 2 * x.size) - x.size)


def visible_pairs(t: int, *, causal: bool, window: int | None, past: int = 0) -> int:
    """Query-key pairs that a mask leaves: all, the causal half, or a window of keys behind each query.

    past: tokens before the t that are queries, which are keys alone.
    """
    if type(past) is not int or past:
        every = visible_pairs(past + t, causal=causal, window=window)
        return every - visible_pairs(past, causal=causal, window=window)
    if window is not None:
        keys = minimum(window, t)
        behind = exact_div(keys * (2 * t - keys + 1), 2)
        return behind if causal else 2 * behind - t
    return exact_div(t * (t + 1), 2) if causal else t * t


class Caching(Joining):
    """Abstract: what decoding keeps of tokens, so that further ones attend to them: appended to, or written in place.

    Tensors (..., tokens, features) that are put one after another along the tokens; no arithmetic.
    """

    def check(self, call: Call) -> None:
        shapes = [x.shape for x in call.inputs]
        if not 1 <= len(shapes) <= 2 or any(
            len(s) < 2 or (*s[:-2], s[-1]) != (*shapes[0][:-2], shapes[0][-1]) for s in shapes
        ):
            raise call.fail(
                f"{self.kind} takes what is kept and (..., tokens, features) of the same sizes but the tokens"
            )

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        return ()


@layer
class Append(Caching):
    """What is kept of earlier tokens and new ones, in new memory: (..., P, d), (..., T, d) → (..., P + T, d).

    The new ones alone may be given: (..., T, d), in a copy. dtype: that the cache is kept in, the input's unless given;
    it comes with `scales` in fp32. lasting: whether the memory stays after the pass.
    """

    source = "torch.cat along the tokens, which makes a new tensor every time (DynamicCache of transformers)"

    dtype: RealType | None = None
    scales: int = 0
    lasting: bool = False

    def output(self, call: Call) -> Tensor:
        """New memory, contiguous unless all inputs have the axis before the tokens' last in memory (``torch.cat``)."""
        *rest, _, features = call.x.shape
        shape: Shape = (*rest, sum(x.shape[-2] for x in call.inputs), features)
        new = call.inputs[-1]
        strides = last_strides(shape) if all(channels_last(x) for x in call.inputs) else None
        origin = "cache" if self.lasting else "computed"
        cache = call.tape.tensor(shape, strides=strides, origin=origin, dtype=self.dtype or new.dtype)
        cache.storage.scales = self.scales
        return cache

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        return forward_pass(call)


@layer
class Insert(Caching):
    """New tokens are written into memory that is there: cache (..., n, d), x (..., T, d) → `tokens` of the cache."""

    source = "torch.Tensor.index_copy_ (StaticCache of transformers); blocks of tokens (Kwon et al. 2023, §4.1)"
    overwrites = True

    tokens: int

    def output(self, call: Call) -> Tensor:
        *rest, _, features = call.x.shape
        return call.x.as_strided((*rest, self.tokens, features), strides_of(call.x))

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        x = call.inputs[1]
        yield stream(call, "", "pointwise", 0, distinct_bytes(x), size_bytes(x.size, call.y.dtype))
