"""Affine maps, products of activations, and products by head with the matrices of latent attention."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from costmodel.graph.call import Call, Gradient, KeptResults, LayerFlops, Share, Weights, Workspace
from costmodel.graph.kernel import Kernel, Product
from costmodel.graph.tensor import Shape, Storage, Tensor, show_shape, viewed_strides
from costmodel.layers.base import NO_WORKSPACE, Contraction, Weightless, WeightProduct, layer
from costmodel.layers.kernels import (
    distinct_bytes,
    is_matrix,
    scale_bytes,
    stream,
    unpacking_kernel,
    unpacks_separately,
)
from costmodel.symbolic.sizes import exact_div, maximum, product
from costmodel.training.dtypes import REAL


@layer
class Linear(WeightProduct):
    """y = x Wᵀ + b over the last axis.

    x: (..., n_in), y: (..., features), W: (features, n_in), b: (features).
    """

    source = "y = x Wᵀ + b (torch.nn.Linear); dx = g W, dW = gᵀ x, db = Σ g (Goodfellow et al. 2016, §6.5.6)"
    input_axes = "..., features"
    adaptable = True

    features: int
    bias: bool = True

    def weights(self, call: Call) -> Weights:
        weights = {"weight": (self.features, call.x.shape[-1])}
        return weights | {"bias": (self.features,)} if self.bias else weights

    def output(self, call: Call) -> Shape:
        return (*call.x.shape[:-1], self.features)

    def sizes(self, call: Call) -> Product:
        return Product(1, call.x.rows, self.features, call.x.shape[-1])

    def products(self, call: Call) -> tuple[Product, Product, Product]:
        """As of other factors, but that the weight is n × k, and its gradient gᵀ x."""
        of_y, of_x, (_, k, n, m) = super().products(call)
        return of_y, of_x, Product(1, n, k, m)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Two products of the forward one's size; the bias sums the rows.

        In the order in which autograd adds them to what is there already: with a bias the operation is ``addmm``, whose
        gradients come back in the order of its arguments, of which rows and weight are still views to be turned back.
        """
        gradients = super().backward(call)
        return reversed([*gradients]) if self.bias else gradients

    @property
    def kept_results(self) -> KeptResults:
        """``aten.mm``; with a bias it is ``addmm``."""
        return "none" if self.bias else "every second"

    def views_gradient(self, call: Call, x: Tensor) -> bool:
        """Not of one matrix of rows."""
        return x is not call.x or len(x.shape) != 2

    def operand(self, call: Call, x: Tensor) -> Storage:
        """Rows as one matrix."""
        return x.storage if is_matrix(x) else call.copy_of(x)

    def gradient_copy(self, call: Call) -> int:
        """Each of the products makes a copy; the bias sums its gradient when those are gone."""
        bias = call.weights.get("bias")
        return call.y.size - (bias.size if bias is not None and bias.requires_grad else 0)

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """As of every product, but that a kernel unpacks the weight before it, if the policy has one."""
        *copies, product = super().forward_kernels(call)
        yield from copies
        if unpacks_separately(call, call.x.rows):
            yield (weight := unpacking_kernel(call))
            product = product._replace(read=product.read - weight.read + weight.written, stored=None)
        yield product

    def workspace(self, call: Call) -> Workspace:
        """The weight as it is multiplied, if a kernel of its own unpacks it."""
        if not unpacks_separately(call, call.x.rows):
            return NO_WORKSPACE
        weight = call.weights["weight"]
        return Workspace(weight.size, weight.size if call.x.requires_grad else 0)


@layer
class Matmul(Weightless, Contraction):
    """y = a b (+ c): a: (..., m, k), b: (..., k, n), y: (..., m, n), of batches whose leading axes agree.

    Or b: (k, n) is one matrix, for a: (..., k) of any rows, and c broadcasts. `visible`: the share (some, all) of each
    product's terms that is counted, where attention's masked half is not wanted. vector: b is one, whose products
    FlopCounterMode does not count. scaled: the product is multiplied by a number, added_scaled: so is c, in the same
    kernel.
    """

    source = "y = a b (torch.matmul); da = g bᵀ, db = aᵀ g (Goodfellow et al. 2016, §6.5.6)"
    arity = 2, 3

    visible: tuple[int, int] | None = None
    vector: bool = False
    scaled: bool = False
    added_scaled: bool = False

    def check(self, call: Call) -> None:
        super().check(call)
        a, b = (x.shape for x in self.factors(call))
        if len(b) == 2:
            if not a or a[-1] != b[0]:
                raise call.fail(f"cannot multiply {show_shape(a)} by {show_shape(b)}")
        elif len(a) < 3 or len(a) != len(b) or a[:-2] != b[:-2] or a[-1] != b[-2]:
            raise call.fail(f"cannot multiply {show_shape(a)} by {show_shape(b)}; it takes (..., m, k) by (..., k, n)")

    def factors(self, call: Call) -> tuple[Tensor, Tensor]:
        return call.x, call.inputs[1]

    def output(self, call: Call) -> Shape:
        a, b = (x.shape for x in self.factors(call))
        return (*a[:-1], b[-1])

    def sizes(self, call: Call) -> Product:
        """Complex factors as one real product, (Re a, Im a) times ((Re b, Im b), (−Im b, Re b)): 8 FLOPs a term."""
        (*batch, m, k), n = self._rows(call), call.y.shape[-1]
        parts = 2 if call.x.dtype in REAL else 1
        return Product(product(batch), m, parts * n, parts * k)

    def _rows(self, call: Call) -> Shape:
        """The shape of a as it is multiplied: as one matrix by one matrix."""
        a = call.x
        return a.shape if len(call.inputs[1].shape) > 2 else (a.rows, a.shape[-1])

    def forward(self, call: Call) -> LayerFlops:
        flops = self.sizes(call).flops
        if self.visible is not None:
            some, every = self.visible
            flops = exact_div(flops, every) * some
        return LayerFlops(flops, call.y.size if len(call.inputs) > 2 else 0, self._counted(call, flops))

    def _counted(self, call: Call, flops: int) -> int | None:
        """FlopCounterMode takes a complex term for a real one, and does not count vectors."""
        if self.vector:
            return 0
        return exact_div(flops, 4) if call.x.dtype in REAL else None

    def backward(self, call: Call) -> Iterable[Gradient]:
        """And what was added: scaled, and summed where it was broadcast."""
        yield from super().backward(call)
        for c in call.inputs[2:]:
            whole = c.has(call.y.shape)
            work = (self.added_scaled + (not whole)) * call.y.size
            yield Gradient(c, LayerFlops(0, work), shared=whole and not self.added_scaled)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        yield from super().backward_kernels(call)
        for c in call.inputs[2:]:
            whole = c.has(call.y.shape)
            if c.requires_grad and (self.added_scaled or not whole):
                work = (self.added_scaled + (not whole)) * call.y.size
                what, sort = ("scaling", "pointwise") if whole else ("sum", "reduction")
                yield stream(call, f"backward {what}", sort, work, call.y.bytes, c.bytes)

    def views_gradient(self, call: Call, x: Tensor) -> bool:
        """Not of one matrix by another."""
        return any(len(factor.shape) != 2 for factor in self.factors(call)) or len(x.shape) != 2

    def operand(self, call: Call, x: Tensor) -> Storage:
        """A batch of matrices, or the rows of a as one."""
        if len(x.shape) > 2 and len(call.inputs[1].shape) > 2:
            return call.as_batch(x)
        return x.storage if x is call.inputs[1] or is_matrix(x) else call.copy_of(x)

    def gradient_axes(self, call: Call) -> int | None:
        return min(3, len(call.inputs[1].shape))

    def gradient_copy(self, call: Call) -> int:
        """As a matrix of rows; matrices of a batch are copied one by one."""
        return 0 if len(call.inputs[1].shape) > 2 else call.y.size

    def workspace(self, call: Call) -> Workspace:
        """Copies of factors of batches, unless they are kept.

        A scaled gradient of a or b, made in this order, is there beside what it is scaled from; then c's is summed.
        Sources: ``mm_mat1_backward``, ``mm_mat2_backward``, ``maybe_multiply``; ``validate_outputs`` sums.
        """
        if len(call.inputs[1].shape) > 2:
            copies = 0 if call.y.requires_grad else _copied_size(self, call)
            return Workspace(copies, 0)
        alive = most = gradients = 0
        for x in self.factors(call):
            if x.requires_grad:
                most = maximum(most, alive + (2 if self.scaled else 1) * x.size)
                alive = gradients = alive + x.size
        for c in call.inputs[2:]:
            if c.requires_grad:
                whole = c.has(call.y.shape)
                gradients = gradients + (0 if whole and not self.added_scaled else c.size)
                alive = alive + (call.y.size if self.added_scaled else 0) + (0 if whole else c.size)
        return Workspace(0, maximum(most, alive) - gradients)


class OfHeads(WeightProduct):
    """Abstract: x (batch, heads, T, n_in) times a matrix of each head: (batch, heads, T, n_out).

    The matrix is of those that make keys and values of a latent, so that attention is over the latent itself. All of
    them: (heads·(d_k + d_v), rank) has for each head d_k rows that make keys and d_v that make values.
    """

    in_lists = False
    input_axes = "batch, heads, tokens, features"

    @abstractmethod
    def out(self, call: Call) -> int:
        """Features of the result."""

    def output(self, call: Call) -> Tensor:
        """(batch, heads, T, n_out), with the heads outermost in memory, as one product for each head leaves them."""
        (b, h, t, _), n = call.x.shape, self.out(call)
        return call.tape.tensor((b, h, t, n), strides=(t * n, b * t * n, n, 1))

    def sizes(self, call: Call) -> Product:
        """A product for each head."""
        b, h, t, n = call.x.shape
        return Product(h, b * t, self.out(call), n)

    @abstractmethod
    def rows(self, call: Call) -> int:
        """Rows of the matrix that it takes of each head."""

    def reads(self, call: Call, weight: Tensor) -> Share:
        """Its rows of each head's matrix."""
        return Share(self.rows(call), exact_div(weight.shape[0], call.x.shape[1]))

    def read_bytes(self, call: Call) -> int:
        """The input, and its rows of each head's matrix."""
        weight, heads = call.weights["weight"], call.x.shape[1]
        return distinct_bytes(call.x) + exact_div(
            (distinct_bytes(weight) + scale_bytes(call)) * heads * self.rows(call), weight.shape[0]
        )

    def workspace(self, call: Call) -> Workspace:
        """A copy of the input, unless it is kept."""
        return Workspace(0 if call.y.requires_grad else _copied_size(self, call), 0)

    def operand(self, call: Call, x: Tensor) -> Storage:
        """The input with heads outermost."""
        if x is not call.x:
            return x.storage
        b, h, t, n = x.shape
        strides = (t * n * h, t * n, n, 1) if x.strides is None else x.strides
        outermost = (strides[1], strides[0], *strides[2:])
        viewable = viewed_strides((h, b, t, n), outermost, (h, b * t, n)) is not False
        return x.storage if viewable else call.copy_of(x)


def _copied_size(layer: Contraction, call: Call) -> int:
    """Elements of the factors that a product copies before it reads them."""
    return sum(x.size for x in layer.factors(call) if layer.operand(call, x) is not x.storage)


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
