"""Affine maps, products of activations, and products by head with the matrices of latent attention."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from costmodel.graph.kernel import Kernel
from costmodel.graph.kernel import Product as Sizes
from costmodel.graph.tensor import (
    Call,
    Gradient,
    LayerFlops,
    Shape,
    Storage,
    Tensor,
    Weights,
    Workspace,
    show_shape,
    viewed_strides,
)
from costmodel.layers.base import NO_WORKSPACE, Unbuffered, Weightless, layer, takes, takes_rank
from costmodel.layers.kernels import (
    backward_products,
    copied,
    is_apart,
    is_matrix,
    moved,
    multiply,
    multiply_sides,
    read_of,
    scale_bytes,
    stream,
    unpacked,
)
from costmodel.symbolic.sizes import exact_div, maximum, product


@layer
class Linear(Unbuffered):
    """y = x Wᵀ + b over the last axis.

    x: (..., n_in), y: (..., features), W: (features, n_in), b: (features).
    """

    source = "y = x Wᵀ + b (torch.nn.Linear); dx = g W, dW = gᵀ x, db = Σ g (Goodfellow et al. 2016, §6.5.6)"

    features: int
    bias: bool = True

    def check(self, call: Call) -> None:
        takes(call, 1)
        if not call.x.shape:
            raise call.fail("linear takes an input of at least one axis")

    def weights(self, call: Call) -> Weights:
        weights = {"weight": (self.features, call.x.shape[-1])}
        return weights | {"bias": (self.features,)} if self.bias else weights

    def output(self, call: Call) -> Shape:
        return (*call.x.shape[:-1], self.features)

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(2 * call.x.size * self.features, call.y.size if self.bias else 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Two products of the forward one's size; the bias sums the rows.

        In the order in which autograd adds them to what is there already: with a bias the operation is ``addmm``, whose
        gradients come back in the order of its arguments, of which rows and weight are still views to be turned back.
        """
        same = LayerFlops(2 * call.x.size * self.features, 0)
        x, weight = Gradient(call.x, same), Gradient(call.weights["weight"], same)
        if self.bias:
            yield Gradient(call.weights["bias"], LayerFlops(0, call.y.size))
            yield from (weight, x)
        else:
            yield from (x, weight)

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """A product that adds the bias to its result, after a copy of rows that memory order does not hold.

        Before it comes a kernel that unpacks the weight, if the policy has one.
        """
        x, rows = call.x, call.x.rows
        if not is_matrix(x):
            yield copied(call, x)
        added = call.y.size if self.bias else 0
        read = read_of(call.operands()) + scale_bytes(call)
        made = multiply(call, "", Sizes(1, rows, self.features, x.shape[-1]), read, call.y.bytes, added)
        if is_apart(call, rows):
            yield (weight := unpacked(call))
            made = made._replace(read=read - weight.read + weight.written, stored=None)
        yield made

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        rows, inputs = call.x.rows, call.x.shape[-1]
        of_x, of_weight = Sizes(1, rows, inputs, self.features), Sizes(1, self.features, inputs, rows)
        return backward_products(call, "product", of_x, of_weight)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """The input, for the weight's gradient: a view as a matrix of rows if memory order allows it, else a copy."""
        if call.weights["weight"].requires_grad:
            yield call.x if is_matrix(call.x) else call.copy_of(call.x)
        if call.x.requires_grad:
            yield call.weights["weight"]

    def workspace(self, call: Call) -> Workspace:
        """The weight as it is multiplied, if a kernel of its own unpacks it."""
        if not is_apart(call, call.x.rows):
            return NO_WORKSPACE
        weight = call.weights["weight"]
        return Workspace(weight.size, weight.size if call.x.requires_grad else 0)


@layer
class Matmul(Weightless):
    """Batched matrix product of two activations, as in attention's scores and mixing.

    a: (..., m, k), b: (..., k, n), y: (..., m, n); the leading axes agree. `visible`: the share (some, all) of each
    product's terms that is counted, where attention's masked half is not wanted.
    """

    source = "y = a b (torch.matmul); da = g bᵀ, db = aᵀ g (Goodfellow et al. 2016, §6.5.6)"

    in_lists = False

    visible: tuple[int, int] | None = None

    def check(self, call: Call) -> None:
        takes(call, 2)
        a, b = (x.shape for x in call.inputs)
        if len(a) < 3 or len(a) != len(b) or a[:-2] != b[:-2] or a[-1] != b[-2]:
            raise call.fail(f"cannot multiply {show_shape(a)} by {show_shape(b)}; it takes (..., m, k) by (..., k, n)")

    def output(self, call: Call) -> Shape:
        a, b = (x.shape for x in call.inputs)
        return (*a[:-1], b[-1])

    def forward(self, call: Call) -> LayerFlops:
        flops = 2 * product(call.y.shape) * call.x.shape[-1]
        if self.visible is not None:
            some, every = self.visible
            flops = exact_div(flops, every) * some
        return LayerFlops(flops, 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        for operand in call.inputs:
            yield Gradient(operand, self.forward(call))

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """A product, after a copy of each operand that is no batch of matrices in memory."""
        for x in call.inputs:
            if call.as_batch(x) is not x.storage:
                yield copied(call, x)
        batch, m, n, k = self._sizes(call)
        yield multiply(call, "", Sizes(batch, m, n, k), read_of(call.inputs), call.y.bytes)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """A product for each gradient, m × n by n × k and k × m by m × n."""
        batch, m, n, k = self._sizes(call)
        a, b = call.inputs
        return multiply_sides(call, a, b, Sizes(batch, m, k, n), Sizes(batch, k, n, m))

    def _sizes(self, call: Call) -> Sizes:
        *batch, m, k = call.x.shape
        return Sizes(product(batch), m, call.y.shape[-1], k)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Each operand for the other's gradient, as the matrix product held it: a view if it could, else a copy."""
        a, b = call.inputs
        if b.requires_grad:
            yield call.as_batch(a)
        if a.requires_grad:
            yield call.as_batch(b)

    def workspace(self, call: Call) -> Workspace:
        """Copies of operands, unless they are kept."""
        if call.y.requires_grad:
            return NO_WORKSPACE
        return Workspace(sum(x.size for x in call.inputs if call.as_batch(x) is not x.storage), 0)


@layer
class Product(Weightless):
    """y = a b (+ c), a: (..., m, k), b: (k, n), c broadcasts: the rows of a as one matrix.

    vector: b is one, whose products FlopCounterMode does not count. scaled: the product is multiplied by a number,
    added_scaled: so is c, in the same kernel.
    """

    source = "torch.mm, torch.addmm, torch.matmul with a matrix; da = g bᵀ, db = aᵀ g"
    in_lists = False

    vector: bool = False
    scaled: bool = False
    added_scaled: bool = False

    def check(self, call: Call) -> None:
        a, b = (x.shape for x in call.inputs[:2])
        if len(b) != 2 or not a or a[-1] != b[0]:
            raise call.fail(f"cannot multiply {show_shape(a)} by {show_shape(b)}")

    def output(self, call: Call) -> Shape:
        return (*call.x.shape[:-1], call.inputs[1].shape[1])

    def forward(self, call: Call) -> LayerFlops:
        added = call.y.size if len(call.inputs) > 2 else 0
        return self._work(call)._replace(pointwise=added)

    def _work(self, call: Call) -> LayerFlops:
        return LayerFlops(2 * call.x.size * call.inputs[1].shape[1], 0, 0 if self.vector else None)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Two products of the forward one's size; what was added is scaled, and summed where it was broadcast."""
        same = self._work(call)
        yield Gradient(call.x, same)
        yield Gradient(call.inputs[1], same)
        for c in call.inputs[2:]:
            whole = c.has(call.y.shape)
            work = (self.added_scaled + (not whole)) * call.y.size
            yield Gradient(c, LayerFlops(0, work), shared=whole and not self.added_scaled)

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """A product that adds c to its result, after a copy of rows that memory order does not hold."""
        a, b = call.inputs[:2]
        if not is_matrix(a):
            yield copied(call, a)
        added = call.y.size if len(call.inputs) > 2 else 0
        sizes = Sizes(1, a.rows, b.shape[1], a.shape[-1])
        yield multiply(call, "", sizes, read_of(call.inputs), call.y.bytes, added)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        a, b = call.inputs[:2]
        rows, (k, n) = a.rows, b.shape
        yield from multiply_sides(call, a, b, Sizes(1, rows, k, n), Sizes(1, k, n, rows))
        for c in call.inputs[2:]:
            whole = c.has(call.y.shape)
            if c.requires_grad and (self.added_scaled or not whole):
                work = (self.added_scaled + (not whole)) * call.y.size
                what, sort = ("scaling", "pointwise") if whole else ("sum", "reduction")
                yield stream(call, f"backward {what}", sort, work, call.y.bytes, c.bytes)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Each operand for the other's gradient; rows as one matrix: a view if memory order allows it, else a copy."""
        a, b = call.inputs[:2]
        if b.requires_grad:
            yield a if is_matrix(a) else call.copy_of(a)
        if a.requires_grad:
            yield b

    def workspace(self, call: Call) -> Workspace:
        """A scaled gradient of a or b, made in this order, is there beside what it is scaled from; then c's is summed.

        Sources: ``mm_mat1_backward``, ``mm_mat2_backward``, ``maybe_multiply``; ``validate_outputs`` sums.
        """
        alive = most = gradients = 0
        for x in call.inputs[:2]:
            if x.requires_grad:
                most = maximum(most, alive + (2 if self.scaled else 1) * x.size)
                alive = gradients = alive + x.size
        for c in call.inputs[2:]:
            if c.requires_grad:
                whole = c.has(call.y.shape)
                gradients = gradients + (0 if whole and not self.added_scaled else c.size)
                alive = alive + (call.y.size if self.added_scaled else 0) + (0 if whole else c.size)
        return Workspace(0, maximum(most, alive) - gradients)


class OfHeads(Unbuffered):
    """Abstract: x (batch, heads, T, n_in) times a matrix of each head: (batch, heads, T, n_out).

    The matrix is of those that make keys and values of a latent, so that attention is over the latent itself. All of
    them: (heads·(d_k + d_v), rank) has for each head d_k rows that make keys and d_v that make values.
    """

    in_lists = False

    @abstractmethod
    def out(self, call: Call) -> int:
        """Features of the result."""

    def check(self, call: Call) -> None:
        takes_rank(call, 4, "batch, heads, tokens, features")

    def output(self, call: Call) -> Tensor:
        """(batch, heads, T, n_out), with the heads outermost in memory, as one product for each head leaves them."""
        (b, h, t, _), n = call.x.shape, self.out(call)
        return call.tape.tensor((b, h, t, n), strides=(t * n, b * t * n, n, 1))

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(2 * call.x.size * self.out(call), 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, self.forward(call))
        yield Gradient(call.weights["weight"], self.forward(call))

    @abstractmethod
    def rows(self, call: Call) -> int:
        """Rows of the matrix that it takes of each head."""

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """A product for each head with its rows of the matrix, after a copy of an input whose memory is not by head."""
        if self._by_head(call) is not call.x.storage:
            yield copied(call, call.x)
        weight, (b, h, t, n) = call.weights["weight"], call.x.shape
        read = moved(call.x) + exact_div((moved(weight) + scale_bytes(call)) * h * self.rows(call), weight.shape[0])
        yield multiply(call, "", Sizes(h, b * t, self.out(call), n), read, call.y.bytes)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        (b, h, t, n), out = call.x.shape, self.out(call)
        return backward_products(call, "product", Sizes(h, b * t, n, out), Sizes(h, n, out, b * t))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """The input, with heads outermost: a view if memory order allows it, else a copy."""
        if call.weights["weight"].requires_grad:
            yield self._by_head(call)
        if call.x.requires_grad:
            yield call.weights["weight"]

    def workspace(self, call: Call) -> Workspace:
        """That copy, unless it is kept."""
        copied = self._by_head(call) is not call.x.storage
        return Workspace(call.x.size if copied and not call.y.requires_grad else 0, 0)

    def _by_head(self, call: Call) -> Storage:
        b, h, t, n = call.x.shape
        strides = (t * n * h, t * n, n, 1) if call.x.strides is None else call.x.strides
        outermost = (strides[1], strides[0], *strides[2:])
        viewable = viewed_strides((h, b, t, n), outermost, (h, b * t, n)) is not False
        return call.x.storage if viewable else call.copy_of(call.x)


@layer
class AbsorbKey(OfHeads):
    """y = x W_K: queries of keys that are made from a latent become queries of the latent, n_in = d_k, n_out = rank."""

    source = "qᵀ (W_K c) = (W_Kᵀ q)ᵀ c (DeepSeek-AI 2024, V2, §2.1.2); dx = g W_Kᵀ, dW_K = xᵀ g"

    rank: int
    value: int

    def out(self, call: Call) -> int:
        return self.rank

    def rows(self, call: Call) -> int:
        """Those that make keys."""
        return call.x.shape[3]

    def weights(self, call: Call) -> Weights:
        return {"weight": (call.x.shape[1] * (call.x.shape[3] + self.value), self.rank)}


@layer
class ExpandValue(OfHeads):
    """y = x W_Vᵀ: latents that attention has mixed become values, n_in = rank, n_out = d_v."""

    source = "Σ a (W_V c) = W_V (Σ a c) (DeepSeek-AI 2024, V2, §2.1.2); dx = g W_V, dW_V = gᵀ x"

    key: int
    value: int

    def out(self, call: Call) -> int:
        return self.value

    def rows(self, call: Call) -> int:
        """Those that make values."""
        return self.value

    def weights(self, call: Call) -> Weights:
        return {"weight": (call.x.shape[1] * (self.key + self.value), call.x.shape[3])}
