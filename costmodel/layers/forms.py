"""Products that PyTorch counts no FLOPs of: bilinear forms, distances, grids of affine maps, products by groups."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from costmodel.graph.call import Call, Gradient, LayerFlops, Workspace
from costmodel.graph.kernel import Kernel, Product
from costmodel.graph.tensor import Shape, Storage, Tensor, is_contiguous, transposed
from costmodel.layers.base import Contraction, KeepsInputsAndOutput, Shaped, Weightless, layer
from costmodel.layers.kernels import (
    backward_pass,
    distinct_bytes,
    distinct_bytes_of,
    forward_pass,
    multiply,
    saved_bytes,
    stream,
)
from costmodel.layers.shape import Moving
from costmodel.symbolic.sizes import maximum, product
from costmodel.training.dtypes import size_bytes


@layer
class GroupedMatmul(Weightless, Contraction):
    """Each row of x times the matrix of its group: x: (rows, k), w: (groups, k, n), ends of groups, y: (rows, n).

    FlopCounterMode has no rule for it; it is counted as what it is, however rows are spread over groups.
    """

    source = "torch.nn.functional.grouped_mm; dx = g wᵀ, dw = xᵀ g, by groups"
    arity = 3
    gradient_names = "backward rows", "backward matrices"

    def check(self, call: Call) -> None:
        super().check(call)
        x, w, _ = call.inputs
        if len(x.shape) != 2 or len(w.shape) != 3 or x.shape[1] != w.shape[1]:
            raise call.fail("grouped_matmul takes rows and a matrix for each group")

    def factors(self, call: Call) -> tuple[Tensor, Tensor]:
        return call.x, call.inputs[1]

    def output(self, call: Call) -> Shape:
        return (call.x.shape[0], call.inputs[1].shape[2])

    def sizes(self, call: Call) -> Product:
        rows, k = call.x.shape
        return Product(1, rows, call.y.shape[1], k)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield from super().saved(call)
        yield call.inputs[2]


@layer
class Bilinear(Moving):
    """y_o = Σ a_i w_oij b_j. a: (..., I), b: (..., J), w: (O, I, J), y: (..., O)."""

    source = "torch.nn.functional.bilinear; dw = g a b, da = g w b, db = g w a"
    arity = 3

    def output(self, call: Call) -> Shape:
        return (*call.x.shape[:-1], call.inputs[2].shape[0])

    def _sizes(self, call: Call) -> tuple[int, int, int, int]:
        """Rows, and features of both sides and of the result."""
        a, b, w = call.inputs
        return a.rows, a.shape[-1], b.shape[-1], w.shape[0]

    def _product(self, call: Call) -> Product:
        """All products of two features, a_i b_j, by the form."""
        rows, i, j, o = self._sizes(call)
        return Product(1, rows, o, i * j)

    def _pairs(self, call: Call) -> int:
        """Products of two features."""
        rows, i, j, _ = self._sizes(call)
        return rows * i * j

    def forward(self, call: Call) -> LayerFlops:
        """All products of two features, then a product with the form."""
        return LayerFlops(self._product(call).flops, self._pairs(call), counted=0)

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """All products of two features, and a matrix product."""
        pairs = self._pairs(call)
        pair_bytes = size_bytes(pairs, call.x.dtype)
        yield stream(call, "pairs", "pointwise", pairs, distinct_bytes_of(call.inputs[:2]), pair_bytes)
        yield multiply(call, "", self._product(call), pair_bytes + distinct_bytes(call.inputs[2]), call.y.bytes)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """One product for both sides and one for each; one for the form."""
        rows, i, j, o = self._sizes(call)
        a, b, w = call.inputs
        pair_bytes, first = size_bytes(self._pairs(call), call.x.dtype), True
        for operand, *_ in call.gradients():
            if operand is w:
                yield multiply(call, "backward form", Product(1, o, i * j, rows), call.y.bytes + pair_bytes, w.bytes)
                continue
            if first:
                yield multiply(
                    call, "backward both", Product(1, rows, i * j, o), call.y.bytes + distinct_bytes(w), pair_bytes
                )
            first = False
            sizes, other = (Product(rows, i, 1, j), b) if operand is a else (Product(rows, j, 1, i), a)
            yield multiply(call, "backward side", sizes, pair_bytes + distinct_bytes(other), operand.bytes)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """g w for both sides, then a product with the other; g times the products of two features for the form."""
        a, b, w = call.inputs
        form = both = self._product(call).flops
        for x in (a, b):
            if x.requires_grad:
                yield Gradient(x, LayerFlops(both + 2 * self._pairs(call), 0, counted=0))
                both = 0
        yield Gradient(w, LayerFlops(form, 0, counted=0))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        for x in call.inputs:
            if any(other.requires_grad for other in call.inputs if other is not x):
                yield x


@layer
class Distances(KeepsInputsAndOutput, Moving):
    """Distances of all rows of a to all of b: a: (..., P, M), b: (..., R, M), y: (..., P, R).

    squares: Euclidean, else sums of absolute differences. by_product: from norms and one product, a² − 2·a·b + b².
    """

    source = "torch.cdist; da = Σ g·(a − b)/y, or Σ g·sign(a − b)"
    arity = 2

    squares: bool = True
    by_product: bool = False

    def output(self, call: Call) -> Shape:
        a, b = call.inputs
        return (*a.shape[:-1], b.shape[-2])

    def _terms(self, call: Call) -> int:
        """Differences."""
        return call.y.size * call.x.shape[-1]

    def forward(self, call: Call) -> LayerFlops:
        """A difference, its square or its size, and the sum, then the root; or norms, a product, and the root."""
        if self.by_product:
            squares = sum(2 * x.size for x in call.inputs)
            return LayerFlops(2 * self._terms(call), squares - sum(x.rows for x in call.inputs) + 5 * call.y.size, 0)
        return LayerFlops(0, 3 * self._terms(call) - (0 if self.squares else call.y.size))

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """One; by a product, that and what is done before and after."""
        if not self.by_product:
            yield from forward_pass(call, "reduction")
            return
        *outer, rows, features = call.x.shape
        sizes = Product(product(outer), rows, call.y.shape[-1], features)
        read, pointwise = distinct_bytes_of(call.inputs), self.forward(call).pointwise
        yield stream(call, "norms", "reduction", pointwise, read + call.y.bytes, call.y.bytes, 8)
        yield multiply(call, "", sizes, read, call.y.bytes)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """One; by a product, that for each side and what is done beside."""
        if not self.by_product:
            yield from backward_pass(call, "reduction", len(call.gradients()))
            return
        for operand, work, _ in call.gradients():
            *outer, rows, features = operand.shape
            others = next(x for x in call.inputs if x is not operand)
            sizes = Product(product(outer), rows, features, others.shape[-2])
            yield stream(
                call, "backward", "pointwise", work.pointwise, call.y.bytes + saved_bytes(call), operand.bytes, 4
            )
            yield multiply(call, "backward product", sizes, call.y.bytes + distinct_bytes(others), operand.bytes)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """g/y, or signs, for both; each side adds up its differences by them, or takes a product with the other."""
        both = call.y.size if self.squares else 0
        if not self.by_product:
            both += (2 if self.squares else 3) * self._terms(call)
        for x, negated in zip(call.inputs, (0, 1), strict=True):
            if not x.requires_grad:
                continue
            if self.by_product:
                alone = not all(other.requires_grad for other in call.inputs)  # PyTorch works out the other one too
                work = 2 * self._terms(call)
                yield Gradient(x, LayerFlops(work, both + call.y.size + 2 * x.size, 2 * work if alone else None))
            else:
                yield Gradient(x, LayerFlops(0, both + (1 + negated) * self._terms(call)))
            both = 0

    def workspace(self, call: Call) -> Workspace:
        """For b's gradient g and y are copied with rows and columns exchanged, unless that is a view.

        By a product PyTorch works out both gradients: g/y, and for each side the product, the sum of g/y, x times that,
        and the difference.
        """
        (a, b), y = call.inputs, call.y
        if self.by_product:
            sides = sum(3 * x.size + x.rows for x in (a, b))
            return Workspace(0, y.size + sides - sum(x.size for x in (a, b) if x.requires_grad))
        turned = transposed(y, len(y.shape) - 2, len(y.shape) - 1)
        copied = b.requires_grad and not is_contiguous(turned.shape, turned.strides)
        return Workspace(0, 2 * y.size if copied else 0)


@layer
class AffineGrid(Shaped, Moving):
    """Places of pixels under an affine map each: θ: (batch, n, n + 1), y: (batch, ..., n), one for each pixel."""

    source = "Jaderberg et al. 2015, eq. 1 (torch.nn.functional.affine_grid); a product with places of a plain grid"

    shape: tuple[int, ...]
    aligned: bool

    def workspace(self, call: Call) -> Workspace:
        """The plain grid in backward: batch, pixels, n + 1. Forward's goes before the operator returns.

        While it is made there are the numbers along one of its axes, unless `aligned` to corners in three versions.
        """
        grid = product(self.shape[:-1]) * call.x.shape[-1]
        line = (1 if self.aligned else 3) * reduce(maximum, self.shape[1:-1])
        return Workspace(0, grid + maximum(line, call.x.size) - call.x.size)

    def _product(self, call: Call) -> Product:
        """Of each map with the pixels of a plain grid."""
        maps, axes, _ = call.x.shape
        return Product(maps, product(self.shape[1:-1]), axes, axes + 1)

    def forward(self, call: Call) -> LayerFlops:
        """One product; FlopCounterMode sees that of backward alone."""
        return LayerFlops(self._product(call).flops, 0, counted=0)

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        yield multiply(call, "", self._product(call), distinct_bytes(call.x), call.y.bytes)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        maps, pixels, axes, rows = self._product(call)
        if call.gradients():
            yield multiply(call, "backward", Product(maps, rows, axes, pixels), call.y.bytes, call.x.bytes)

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(self._product(call).flops, 0))
