"""Recurrences over a sequence that PyTorch composes of a step for each token or chunk, and a system solved for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from costmodel.graph.call import Call, Gradient, LayerFlops, Workspace
from costmodel.graph.kernel import Kernel, Product
from costmodel.graph.tensor import Shape, Storage, Tensor, contiguous_strides, strides_of, viewed_strides
from costmodel.layers.base import Weightless, layer
from costmodel.layers.kernels import distinct_bytes, distinct_bytes_of, extra_bytes, multiply, saved_bytes, stream
from costmodel.symbolic.sizes import exact_div, maximum, product
from costmodel.training.dtypes import size_bytes


@layer
class SelectiveScan(Weightless):
    """h' = a·h + u, y = h'·c for each token, from h = 0.

    a, u: (batch, channels, T, n), c: (batch, T, n), y: (batch, channels, T). The state h: (batch, channels, n).

    keeps: decoding wants the last state, which is put behind y, (batch, channels, T + n); a fourth input is then the
    first one. Nothing is differentiated there.
    """

    source = (
        "Gu and Dao 2023, Mamba, eq. 2 (``mamba_selective_scan`` of transformers, token by token); "
        "dh = g cᵀ + a'·dh', da = dh·h, du = dh, dc = Σ g·h'"
    )
    arity = 3, 4

    keeps: bool = False

    def check(self, call: Call) -> None:
        super().check(call)
        first = call.inputs[3:]
        a, u, c = call.inputs[:3]
        if first and not first[0].has((*a.shape[:2], a.shape[-1])):
            raise call.fail("selective_scan takes a first state (batch, channels, n)")
        check_states(call, first, keeps=self.keeps)
        if len(a.shape) != 4 or not u.has(a.shape) or not c.has((a.shape[0], *a.shape[2:])):
            raise call.fail("selective_scan takes two of (batch, channels, T, n) and one of (batch, T, n)")

    def output(self, call: Call) -> Shape:
        b, channels, t, n = call.x.shape
        return (b, channels, t + n if self.keeps else t)

    def _state(self, call: Call) -> int:
        """Numbers of the state."""
        b, channels, _, n = call.x.shape
        return b * channels * n

    def forward(self, call: Call) -> LayerFlops:
        """A product and a sum for each number of the state and token, and the product with c."""
        return LayerFlops(self._products(call), 2 * call.x.size)

    def _products(self, call: Call) -> int:
        """FLOPs of a product of each token's state: with c, or of a gradient."""
        return call.x.shape[2] * self._sizes(call).flops

    def _sizes(self, call: Call) -> Product:
        b, channels, _, n = call.x.shape
        return Product(b, channels, 1, n)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """The state's, from the last token to the first, with the first gradient that needs it; each one's own."""
        a, u, c = call.inputs[:3]
        size = call.x.size
        through = LayerFlops(self._products(call), 2 * (size - self._state(call)))
        yield Gradient(a, LayerFlops(through.contractions, through.pointwise + size))
        yield Gradient(u, LayerFlops(0, 0) if a.requires_grad else through)
        yield Gradient(c, LayerFlops(self._products(call), 0))

    def _product(self, call: Call, what: str, read: int, written: int, *, outer: bool = False) -> Kernel:
        """A product for each token."""
        batch, m, n, k = self._sizes(call)
        sizes = Product(batch, m, k, n) if outer else Product(batch, m, n, k)
        return multiply(call, what, sizes, read, written, launches=call.x.shape[2])

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """For each token a product, a sum, and the product with c; then all results are put together."""
        a, _, c, *first = call.inputs
        t, states = a.shape[2], a.bytes
        read = 4 * states + distinct_bytes_of(first)
        yield stream(call, "state", "pointwise", 2 * a.size, read, states + extra_bytes(call), 2 * t)
        yield self._product(call, "", states + c.bytes, call.y.bytes)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """For each token from the last a product for each side, and what goes on to the token before."""
        gradients = call.gradients()
        a, _, c = call.inputs[:3]
        t, states = a.shape[2], a.bytes
        for operand, work, _ in gradients:
            if operand is c:
                yield self._product(call, "backward reads", call.y.bytes + states, c.bytes)
                continue
            if work.contractions:
                yield self._product(call, "backward state", call.y.bytes + c.bytes, states, outer=True)
            launches = 3 * t if work.pointwise else t
            read = states + (saved_bytes(call) if work.pointwise else 0)
            yield stream(call, "backward", "pointwise", work.pointwise, read, operand.bytes, launches)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Decays for the state's gradient; the state before each token for theirs, after each for that of c; c."""
        a, u, c = call.inputs[:3]
        t, carried = call.x.shape[2], a.requires_grad or u.requires_grad
        if carried and t > 1:
            yield a
        if a.requires_grad or c.requires_grad:
            yield call.fresh("activation", t + (a.requires_grad and c.requires_grad), self._state(call))
        if carried:
            yield c

    def workspace(self, call: Call) -> Workspace:
        """Results until they are stacked and, unless it is kept, the state; backward: a token's part of a gradient.

        That part is among zeros, in a tensor as large as the gradient, which it is added to in place.
        """
        state = 2 * self._state(call) if not call.y.requires_grad else 0
        b, channels, t, _ = call.x.shape
        return Workspace(b * channels * t + state, call.x.size)


def check_states(call: Call, first: Sequence[Tensor], *, keeps: bool) -> None:
    """Raise ShapeError for a first state of a scan that keeps no last one, or where something asks for a gradient."""
    if first and not keeps:
        raise call.fail(f"{call.layer.kind} takes a first state in decoding alone")
    if keeps and call.tape.training and any(x.requires_grad for x in call.inputs):
        raise call.fail(f"{call.layer.kind} keeps its last state in decoding alone, where nothing is differentiated")


class _ChunkProducts(NamedTuple):
    """A product for each of so many chunks."""

    name: str
    chunks: int
    sizes: Product

    @property
    def flops(self) -> int:
        return self.chunks * self.sizes.flops


@layer
class DeltaScan(Weightless):
    """u' = u − w S, y = q S + m u', S' = a S + kᵀ u' for each chunk, from S = 0.

    u: (batch, heads, chunks, Q, d_v), w, q, k: (..., Q, d_k), m: (..., Q, Q), a: (..., 1, 1), y as u. The state S:
    (batch, heads, d_k, d_v). The last one is worked out for nothing, and the first one has no gradient.

    keeps: decoding wants the last state, which is put behind y, (batch, heads, chunks·Q + d_k, d_v); a seventh input is
    then the first one. Nothing is differentiated there.
    """

    source = (
        "Yang et al. 2024, Gated DeltaNet, §3.3 (``torch_chunk_gated_delta_rule`` of transformers, second phase); "
        "du' = mᵀ g + k dS', dS = a dS' + qᵀ g − wᵀ du', dq = g Sᵀ, dm = g u'ᵀ, dw = −du' Sᵀ, dk = u' dS'ᵀ, "
        "da = Σ dS'·S"
    )
    arity = 6, 7

    keeps: bool = False

    def check(self, call: Call) -> None:
        super().check(call)
        first = call.inputs[6:]
        u, w, q, m, k, a = call.inputs[:6]
        *outer, n, _ = u.shape
        same = len(u.shape) == 5 and m.has((*outer, n, n)) and a.has((*outer, 1, 1))
        if not same or not (w.shape[:-1] == u.shape[:-1] and q.has(w.shape) and k.has(w.shape)):
            raise call.fail("delta_scan takes (batch, heads, chunks, Q, d_v) and five that fit")
        if first and not first[0].has((*u.shape[:2], w.shape[-1], u.shape[-1])):
            raise call.fail("delta_scan takes a first state (batch, heads, d_k, d_v)")
        check_states(call, first, keeps=self.keeps)

    def output(self, call: Call) -> Tensor:
        """As u, columns first, as what solves a system leaves them; with the last state in rows."""
        *outer, n, v = call.x.shape
        if self.keeps:
            b, h, c = outer
            return call.tape.tensor((b, h, c * n + call.inputs[1].shape[-1], v))
        return call.tape.tensor(call.x.shape, strides=(*contiguous_strides((*outer, n * v))[:-1], 1, n))

    def _sizes(self, call: Call) -> tuple[int, int, int, int, int]:
        """Heads of all samples, chunks, tokens of a chunk, features of a key and of a value."""
        b, h, c, n, v = call.x.shape
        return b * h, c, n, call.inputs[1].shape[-1], v

    def _forward_products(self, call: Call) -> list[_ChunkProducts]:
        """Four for each chunk."""
        _, c, n, k, v = self._sizes(call)
        sizes = {"read": (n, v, k), "query": (n, v, k), "mix": (n, v, n), "write": (k, v, n)}
        return [self._chunks_of(call, what, c, *each) for what, each in sizes.items()]

    def _returning_products(self, call: Call) -> list[_ChunkProducts]:
        """Of the gradients of values and states, from the last chunk to the first; the last state has none."""
        _, c, n, k, v = self._sizes(call)
        values, writing = self._reached(call)
        sizes = {
            "values": (values, n, v, n),
            "write": (writing, n, v, k),
            "query": (c - 1, k, v, n),
            "read": (c - 1, k, v, n),
        }
        return [self._chunks_of(call, what, *each) for what, each in sizes.items()]

    def _own_products(self, call: Call) -> dict[Tensor, _ChunkProducts]:
        """Of the gradient of each operand alone."""
        _, c, n, k, v = self._sizes(call)
        _, w, q, m, key, _ = call.inputs[:6]
        sizes = {w: (c, n, k, v), q: (c, n, k, v), m: (c, n, n, v), key: (c - 1, k, n, v)}
        return {x: self._chunks_of(call, "own", *each) for x, each in sizes.items()}

    def _chunks_of(self, call: Call, what: str, chunks: int, m: int, n: int, k: int) -> _ChunkProducts:
        """A product of all heads for each of so many chunks."""
        return _ChunkProducts(what, chunks, Product(self._sizes(call)[0], m, n, k))

    def forward(self, call: Call) -> LayerFlops:
        """The products, two sums of values, a product and a sum of states."""
        h, c, n, k, v = self._sizes(call)
        return LayerFlops(sum(p.flops for p in self._forward_products(call)), 2 * h * c * v * (n + k))

    def _reached(self, call: Call) -> tuple[int, int]:
        """Chunks whose new values need a gradient, and those of them that write a state which is read.

        What k or a needs a gradient for begins with the state after the first chunk, whose own new values are of u and
        w alone.
        """
        c = self._sizes(call)[1]
        u, w, _, _, key, a = (x.requires_grad for x in call.inputs[:6])
        if u or w:
            return c, c - 1
        return (c - 1, maximum(c - 2, 0)) if key or a else (0, 0)

    def _returning_work(self, call: Call) -> int:
        """Pointwise FLOPs from the last chunk to the first."""
        h, c, n, k, v = self._sizes(call)
        _, writing = self._reached(call)
        states, between = c - 1, maximum(c - 2, 0)
        negated = c if call.inputs[1].requires_grad else states
        return h * (v * (n * (writing + negated) + k * (states + 2 * between)))

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Values' and states' with the first gradient that needs them; each one's own."""
        h, c, _, k, v = self._sizes(call)
        u, w, q, m, key, a = call.inputs[:6]
        own = {x: product.flops for x, product in self._own_products(call).items()}
        flops, pointwise = sum(p.flops for p in self._returning_products(call)), self._returning_work(call)
        for operand in (u, w, key, a):
            if operand.requires_grad:
                scaled = h * (c - 1) * 2 * k * v if operand is a else 0
                yield Gradient(operand, LayerFlops(own.get(operand, 0) + flops, scaled + pointwise))
                flops = pointwise = 0
        for operand in (q, m):
            yield Gradient(operand, LayerFlops(own[operand], 0))

    def _product(self, call: Call, product: _ChunkProducts, *, backward: bool = False) -> Kernel:
        """A product for each of so many chunks."""
        (what, chunks, sizes), dtype = product, call.x.dtype
        batch, m, n, k = sizes
        read, written = (size_bytes(chunks * batch * numbers, dtype) for numbers in (m * k + k * n, m * n))
        return multiply(call, f"backward {what}" if backward else what, sizes, read, written, launches=chunks)

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """For each chunk its products, and the sums and products of elements."""
        for chunks in self._forward_products(call):
            yield self._product(call, chunks)
        read, launches = distinct_bytes_of(call.inputs) + 2 * call.y.bytes, 4 * self._sizes(call)[1]
        written = call.y.bytes + extra_bytes(call)
        yield stream(call, "", "pointwise", self.forward(call).pointwise, read, written, launches)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """Back through the chunks, and a product for each gradient of its own."""
        u, w, _, _, key, a = call.inputs[:6]
        work = {g.operand: g.work for g in call.gradients()}
        returning = self._returning_products(call) if any(x in work for x in (u, w, key, a)) else []
        own = [chunks for x, chunks in self._own_products(call).items() if x in work]
        for each in (*returning, *own):
            if each.chunks > 0:
                yield self._product(call, each, backward=True)
        if work:
            flops, written = sum(w.pointwise for w in work.values()), sum(x.bytes for x in work)
            read, launches = call.y.bytes + saved_bytes(call), 6 * self._sizes(call)[1]
            yield stream(call, "backward", "pointwise", flops, read, written, launches)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Of each chunk that needs them the state before it, its new values, and what they are multiplied by."""
        u, w, q, m, key, a = call.inputs[:6]
        h, c, n, k, v = self._sizes(call)
        values, writing = self._reached(call)
        # The last state is read by nothing, so that its product and its decay keep nothing.
        states = c if w.requires_grad or q.requires_grad else c - 1 if a.requires_grad else 0
        new = c if m.requires_grad else c - 1 if key.requires_grad else 0
        for chunks, rows in ((states, k), (new, n)):
            if chunks > 0:
                yield call.fresh("activation", h, chunks, rows, v)
        read = c - 1 if any(x.requires_grad for x in (u, w, key, a)) else 0
        for x, chunks in ((m, values), (w, read), (q, read), (key, writing)):
            if chunks > 0:
                yield self._chunks(call, x, chunks)
        if read > 1:
            yield a

    def _chunks(self, call: Call, x: Tensor, used: int) -> Tensor | Storage:
        """What products hold of so many chunks of an operand: itself if (batch·heads, ...) is a view, else copies."""
        b, h, _, *matrix = x.shape
        strides = strides_of(x)
        viewable = viewed_strides((b, h, *matrix), (*strides[:2], *strides[3:]), (b * h, *matrix)) is not False
        return x if viewable else call.fresh("activation", used, b, h, *matrix)

    def workspace(self, call: Call) -> Workspace:
        """A chunk's products, and two states; backward: a chunk's part of a gradient."""
        h, _, n, k, v = self._sizes(call)
        return Workspace(h * (3 * n * v + 2 * k * v), 2 * call.x.size)


@layer
class SolveTriangular(Weightless):
    """x with a x = b, a: (..., Q, Q), with ones on the diagonal and what is given below it; b, x: (..., Q, n)."""

    source = (
        "torch.linalg.solve_triangular, unitriangular; db = solve(aᵀ, g), da = −db xᵀ, below the diagonal. "
        "FlopCounterMode counts the product alone, and of the whole square"
    )
    arity = 2

    def check(self, call: Call) -> None:
        super().check(call)
        a, b = (x.shape for x in call.inputs)
        if len(a) < 3 or a[-1] != a[-2] or a[:-1] != b[:-1]:
            raise call.fail("solve_triangular takes (..., Q, Q) and (..., Q, n)")

    def output(self, call: Call) -> Tensor:
        *outer, n, columns = call.inputs[1].shape
        strides = (*contiguous_strides((*outer, n * columns))[:-1], 1, n)
        return call.tape.tensor((*outer, n, columns), strides=strides)

    def forward(self, call: Call) -> LayerFlops:
        """From each row what the rows before it make: products with what is below the diagonal."""
        *outer, n, columns = call.y.shape
        matrices = product(outer)
        return LayerFlops(matrices * n * (n - 1) * columns, 0, 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """The same with the transpose, once for both; a product and its negation for the matrix."""
        a, b = call.inputs
        solved = self.forward(call)
        yield Gradient(b, solved)
        whole = 2 * call.y.size * a.shape[-1]
        extra = 0 if b.requires_grad else solved.contractions
        yield Gradient(a, LayerFlops(whole + extra, a.size, whole))

    def _solve(self, call: Call, what: str) -> Kernel:
        """A product of as many terms as there are numbers below the diagonal."""
        *outer, n, columns = call.y.shape
        sizes = Product(product(outer), 1, columns, exact_div(n * (n - 1), 2))
        return multiply(call, what, sizes, distinct_bytes(call.x) + call.y.bytes, call.y.bytes)

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        yield self._solve(call, "")

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """The same with the transpose; for the matrix a product, which is negated and cut to what is below."""
        a, b = call.inputs
        if a.requires_grad or b.requires_grad:
            yield self._solve(call, "backward")
        if a.requires_grad:
            *outer, n, columns = call.y.shape
            sizes = Product(product(outer), n, n, columns)
            yield multiply(call, "backward matrix", sizes, 2 * call.y.bytes, a.bytes)
            yield stream(call, "backward cut", "pointwise", a.size, a.bytes, a.bytes)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.x
        yield call.y

    def workspace(self, call: Call) -> Workspace:
        """Backward: the product before it is cut."""
        return Workspace(0, call.x.size if call.x.requires_grad else 0)
