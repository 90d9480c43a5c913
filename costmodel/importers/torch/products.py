"""Matrix products of any two tensors, weights or not."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.graph.tensor import Call, Shape, Storage, Tensor, show_shape, viewed_strides
from costmodel.layers.base import NO_SCRATCH, Gradient, Scratch, Weightless, Work, unlisted


@unlisted
class Product(Weightless):
    """y = a b (+ c), a: (..., m, k), b: (k, n), c broadcasts: the rows of a as one matrix.

    vector: b is one, whose products FlopCounterMode does not count.
    """

    source = "torch.mm, torch.addmm, torch.matmul with a matrix; da = g bᵀ, db = aᵀ g"
    in_lists = False

    vector: bool = False

    def check(self, call: Call) -> None:
        """Inner sizes agree."""
        a, b = (x.shape for x in call.inputs[:2])
        if len(b) != 2 or not a or a[-1] != b[0]:
            raise call.fail(f"cannot multiply {show_shape(a)} by {show_shape(b)}")

    def output(self, call: Call) -> Shape:
        """(..., m, n)."""
        return (*call.x.shape[:-1], call.inputs[1].shape[1])

    def forward(self, call: Call) -> Work:
        """One multiply-add for each of m, k and n."""
        added = call.y.size if len(call.inputs) > 2 else 0
        return self._work(call)._replace(pointwise=added)

    def _work(self, call: Call) -> Work:
        return Work(2 * call.x.size * call.inputs[1].shape[1], 0, 0 if self.vector else None)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Two products of the forward one's size; what was added sums over what it was broadcast along."""
        same = self._work(call)
        yield Gradient(call.x, same)
        yield Gradient(call.inputs[1], same)
        for c in call.inputs[2:]:
            whole = c.has(call.y.shape)
            yield Gradient(c, Work(0, 0 if whole else call.y.size), shared=whole)

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """Each operand for the other's gradient; rows as one matrix: a view if memory order allows it, else a copy."""
        a, b = call.inputs[:2]
        if b.requires_grad:
            viewable = viewed_strides(a.shape, a.strides, (a.rows, a.shape[-1])) is not False
            yield a if viewable else call.copy_of(a)
        if a.requires_grad:
            yield b

    def scratch(self, call: Call) -> Scratch:
        """None."""
        return NO_SCRATCH
