"""Recurrences over a sequence that PyTorch composes of a step for each token."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.graph.kernel import Kernel, Product
from costmodel.graph.tensor import Call, Shape, Storage, Tensor
from costmodel.layers.base import Gradient, LayerFlops, Weightless, Workspace, layer, takes
from costmodel.layers.kernels import kept_bytes, made_beside, stream


@layer
class SelectiveScan(Weightless):
    """h' = a·h + u, y = h'·c for each token, from h = 0.

    a, u: (batch, channels, T, n), c: (batch, T, n), y: (batch, channels, T). The state h: (batch, channels, n).
    """

    source = (
        "Gu and Dao 2023, Mamba, eq. 2 (``mamba_selective_scan`` of transformers, token by token); "
        "dh = g cᵀ + a'·dh', da = dh·h, du = dh, dc = Σ g·h'"
    )
    in_lists = False

    def check(self, call: Call) -> None:
        """a and u alike, c beside."""
        takes(call, 3)
        a, u, c = call.inputs
        if len(a.shape) != 4 or not u.has(a.shape) or not c.has((a.shape[0], *a.shape[2:])):
            raise call.fail("selective_scan takes two of (batch, channels, T, n) and one of (batch, T, n)")

    def output(self, call: Call) -> Shape:
        """(batch, channels, T)."""
        return call.x.shape[:3]

    def _state(self, call: Call) -> int:
        """Numbers of the state."""
        b, channels, _, n = call.x.shape
        return b * channels * n

    def forward(self, call: Call) -> LayerFlops:
        """A product and a sum for each number of the state and token, and the product with c."""
        return LayerFlops(2 * call.x.size, 2 * call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """The state's, from the last token to the first, with the first gradient that needs it; each one's own."""
        a, u, c = call.inputs
        size = call.x.size
        through = LayerFlops(2 * size, 2 * (size - self._state(call)))
        yield Gradient(a, LayerFlops(through.contractions, through.pointwise + size))
        yield Gradient(u, LayerFlops(0, 0) if a.requires_grad else through)
        yield Gradient(c, LayerFlops(2 * size, 0))

    def _product(self, call: Call, what: str, read: int, written: int, *, outer: bool = False) -> Kernel:
        """A product for each token."""
        b, channels, t, n = call.x.shape
        sizes = Product(b, channels, n, 1) if outer else Product(b, channels, 1, n)
        name = f"{self.kind} {what}".strip()
        return Kernel(name, "product", t * sizes.flops, read, written, call.x.dtype, t, sizes)

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """For each token a product, a sum, and the product with c; then all results are put together."""
        a, _, c = call.inputs
        t, states = a.shape[2], a.bytes
        yield stream(call, "state", "pointwise", 2 * a.size, 4 * states, states + made_beside(call), 2 * t)
        yield self._product(call, "", states + c.bytes, call.y.bytes)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """For each token from the last a product for each side, and what goes on to the token before."""
        asked = call.gradients()
        a, _, c = call.inputs
        t, states = a.shape[2], a.bytes
        for operand, work, _ in asked:
            if operand is c:
                yield self._product(call, "backward reads", call.y.bytes + states, c.bytes)
                continue
            if work.contractions:
                yield self._product(call, "backward state", call.y.bytes + c.bytes, states, outer=True)
            launches = 3 * t if work.pointwise else t
            read = states + (kept_bytes(call) if work.pointwise else 0)
            yield stream(call, "backward", "pointwise", work.pointwise, read, operand.bytes, launches)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Decays for the state's gradient; the state before each token for theirs, after each for that of c; c."""
        a, u, c = call.inputs
        t, carried = call.x.shape[2], a.requires_grad or u.requires_grad
        if carried and t > 1:
            yield a
        if a.requires_grad or c.requires_grad:
            yield call.fresh("activation", t + (a.requires_grad and c.requires_grad), self._state(call))
        if carried:
            yield c

    def workspace(self, call: Call) -> Workspace:
        """Results until they are stacked and, unless it is kept, the state; backward: a token's part of a gradient."""
        state = 2 * self._state(call) if not call.y.requires_grad else 0
        return Workspace(call.y.size + state, 2 * call.x.size)
