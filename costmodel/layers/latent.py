"""Products by head with the matrix that makes keys and values of a latent, so that attention is over the latent itself.

The matrix W: (heads·(d_k + d_v), rank) has for each head d_k rows that make keys and d_v that make values.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from costmodel.graph.kernel import Kernel, Product
from costmodel.graph.tensor import Call, Gradient, LayerFlops, Storage, Tensor, Weights, Workspace, viewed_strides
from costmodel.layers.base import Trained, layer, takes_rank
from costmodel.layers.kernels import backward_products, copied, moved, multiply, scale_bytes
from costmodel.symbolic.sizes import exact_div


class OfHeads(Trained):
    """Abstract: x (batch, heads, T, n_in) times a matrix of each head: (batch, heads, T, n_out)."""

    in_lists = False

    @abstractmethod
    def out(self, call: Call) -> int:
        """Features of the result."""

    def check(self, call: Call) -> None:
        takes_rank(call, 4, "batch, heads, tokens, features")

    def output(self, call: Call) -> Tensor:
        """(batch, heads, T, n_out), with the heads outermost in memory, as one product for each head leaves them."""
        (b, h, t, _), n = call.x.shape, self.out(call)
        return call.run.tensor((b, h, t, n), strides=(t * n, b * t * n, n, 1))

    def forward(self, call: Call) -> LayerFlops:
        """One multiply-add for each row, input and output feature."""
        return LayerFlops(2 * call.x.size * self.out(call), 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Two products of the forward one's size."""
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
        yield multiply(call, "", Product(h, b * t, self.out(call), n), read, call.y.bytes)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        (b, h, t, n), out = call.x.shape, self.out(call)
        return backward_products(call, "product", Product(h, b * t, n, out), Product(h, n, out, b * t))

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
        """The latent's features."""
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
        """A value's features."""
        return self.value

    def rows(self, call: Call) -> int:
        """Those that make values."""
        return self.value

    def weights(self, call: Call) -> Weights:
        return {"weight": (call.x.shape[1] * (self.key + self.value), call.x.shape[3])}
