"""Inverses, determinants, factors and solutions of matrices, of which there may be batches.

FlopCounterMode counts none of their arithmetic, but the matrix products of their gradients; it is pointwise here. What
an algorithm takes by its sizes (elimination, Cholesky, substitution) is counted one by one, iterations as Golub & Van
Loan (2013) do. Working memory of the libraries that PyTorch calls is left out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from costmodel.graph.call import Call, Gradient, LayerFlops, Workspace
from costmodel.graph.kernel import Kernel, Product
from costmodel.graph.tensor import Shape, Storage, Tensor, contiguous_strides
from costmodel.layers.base import Shaped, layer
from costmodel.layers.kernels import backward_pass, forward_pass, multiply, saved_bytes
from costmodel.layers.shape import Moving
from costmodel.symbolic.sizes import branch_value, ceil_div, exact_div, maximum, minimum, product


def eliminated(n: int) -> int:
    """Operations of an LU factorisation: for every k < n so many quotients and k² products and differences."""
    return exact_div(n * (n - 1), 2) + exact_div(n * (n - 1) * (2 * n - 1), 3)


def solved(n: int, columns: int) -> int:
    """Those of two substitutions, the first by a factor with ones on its diagonal."""
    return columns * (2 * n * n - n)


def factored(n: int) -> int:
    """Those of Cholesky's factorisation: of n − j numbers of column j so many products, differences, and one more."""
    return n * n * n - exact_div(n * (n - 1) * (4 * n + 1), 6)


def _vectors(m: int, n: int) -> int:
    """Thin singular vectors and values (Golub & Van Loan 2013, Fig. 8.6.1)."""
    more, less = maximum(m, n), minimum(m, n)
    return 14 * more * less * less + 8 * less * less * less


def _reflected(m: int, n: int) -> int:
    """Q and R by Householder's reflections, twice 2 n² (m − n/3) (Golub & Van Loan 2013, §5.2)."""
    return ceil_div(4 * n * n * (3 * m - n), 3)


MatrixParts = Literal["matrix", "factors", "others", "result"]
"""What backward needs: the matrix, L and U with exchanges of rows, further results, the result."""


class MatrixFunction(NamedTuple):
    """Operations of a function of m × n matrices, and of its gradient with the products: rows, columns, terms.

    steps: matrices that the gradient's steps have beside it where most is there.
    """

    forward: Callable[[int, int], int]
    backward: Callable[[int, int], int]
    products: Callable[[int, int], list[tuple[int, int, int]]]
    keeps: tuple[MatrixParts, ...]
    steps: int


def _square(count: int) -> Callable[[int, int], list[tuple[int, int, int]]]:
    return lambda m, n: [(n, n, n)] * count


def _around(m: int, n: int) -> int:
    """Two skew parts, differences of squares, and by them the skew parts times values; what lies beside vectors."""
    less, more = minimum(m, n), maximum(m, n)
    return 7 * less * less + less + (0 if branch_value(m) == branch_value(n) else 3 * more * less)


def _around_one(m: int, n: int) -> int:
    """The same of m long vectors alone: one skew part."""
    less = minimum(m, n)
    return 4 * less * less + less + (3 * m * n if branch_value(m) > branch_value(n) else 0)


def _beside(m: int, n: int) -> list[tuple[int, int, int]]:
    """Skew parts of Uᵀ dU and Vᵀ dV, and both sides; of what is longer also what lies beside its vectors."""
    less, more = minimum(m, n), maximum(m, n)
    return [(less, less, less), *_beside_one(more, less)]


def _beside_one(m: int, n: int) -> list[tuple[int, int, int]]:
    """The same of m long vectors alone."""
    less = minimum(m, n)
    beside = [(m, n, n), (n, n, m)] if branch_value(m) > branch_value(n) else []
    return [(less, less, m), *beside, (m, less, less), (m, n, less)]


MATRICES = {
    "cholesky": MatrixFunction(
        lambda m, n: factored(n), lambda m, n: 2 * n * n * n + 2 * n * n + n, _square(1), ("result",), 3
    ),
    "determinant": MatrixFunction(
        lambda m, n: eliminated(n) + n - 1,
        lambda m, n: solved(n, n) + 1,
        _square(0),
        ("matrix", "factors", "result"),
        2,
    ),
    "eigenvalues": MatrixFunction(lambda m, n: 9 * n * n * n, lambda m, n: n * n, _square(1), ("result", "others"), 1),
    "eigenvectors": MatrixFunction(
        lambda m, n: 9 * n * n * n, lambda m, n: 2 * n * n, _square(3), ("result", "others"), 3
    ),
    "exponential": MatrixFunction(lambda m, n: 10 * n * n * n, lambda m, n: 80 * n * n * n, _square(0), ("matrix",), 8),
    "inverse": MatrixFunction(
        lambda m, n: eliminated(n) + solved(n, n), lambda m, n: n * n, _square(2), ("result",), 2
    ),
    "log_determinant": MatrixFunction(
        lambda m, n: eliminated(n) + 3 * n - 1,
        lambda m, n: solved(n, n),
        _square(0),
        ("matrix", "factors", "others"),
        1,
    ),
    "left_vectors": MatrixFunction(_vectors, _around_one, _beside_one, ("result", "others"), 3),
    "orthogonal": MatrixFunction(
        _reflected,
        lambda m, n: m * n * n + m * n + 2 * n * n + n,
        lambda m, n: [(n, n, n), (n, n, m), (m, n, n)],
        ("result", "others"),
        3,
    ),
    "orthogonal_alone": MatrixFunction(
        _reflected,
        lambda m, n: m * n * n + m * n + 2 * n * n + n,
        lambda m, n: [(n, n, m), (m, n, n)],
        ("result", "others"),
        3,
    ),
    "right_vectors": MatrixFunction(
        _vectors,
        lambda m, n: _around_one(n, m),
        lambda m, n: _beside_one(n, m),
        ("result", "others"),
        3,
    ),
    "singular_values": MatrixFunction(
        _vectors,
        lambda m, n: minimum(m, n) * minimum(m, n),
        lambda m, n: [(m, n, minimum(m, n))],
        ("result", "others"),
        1,
    ),
    "singular_vectors": MatrixFunction(_vectors, _around, _beside, ("result", "others"), 3),
}
"""Functions of a matrix by name.

A determinant is the product of the diagonal of an LU factorisation; its gradient is a solution of n columns. Vectors
and values of a symmetric matrix take 9 n³ (Golub & Van Loan 2013, §8.3). An exponential is a polynomial of degree 18
by five products (Bader et al. 2019), and its gradient that of a matrix of twice the size: how often it is squared
depends on data. Of results that are made together, the gradients of those that are not read are left out.
"""


def by_columns(shape: Shape) -> Shape:
    """Strides of matrices column by column, as LAPACK has them."""
    if len(shape) < 2:
        return contiguous_strides(shape)
    *outer, m, n = shape
    *steps, column, row = contiguous_strides((*outer, n, m))
    return (*steps, row, column)


class OfMatrices(Shaped, Moving):
    """Abstract: one kernel for the function, and one for each product of a gradient."""

    @abstractmethod
    def products(self, call: Call) -> Iterable[Product]:
        """Those of all gradients."""

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        return forward_pass(call, "reduction")

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        if call.gradients():
            yield from backward_pass(call, "reduction")
            for sizes in self.products(call):
                yield multiply(call, "backward product", sizes, call.y.bytes + saved_bytes(call), call.x.bytes)


def lu_factors(call: Call, x: Tensor) -> Iterator[Storage]:
    """L and U in one matrix, and which rows were exchanged."""
    yield call.fresh("activation", *x.shape)
    yield call.tape.storage(product(x.shape[:-1]), "index", "computed", call.name, "int32")


@layer
class OfMatrix(OfMatrices):
    """A function of each matrix of a batch, x: (..., m, n). Further inputs are its further results."""

    source = (
        "torch.linalg; what backward needs is from torch's table of derivatives, products as its formulas have them"
    )
    in_lists = False

    function: str
    shape: tuple[int, ...]

    def output(self, call: Call) -> Tensor:
        matrices = len(self.shape) == len(call.x.shape) and self.function != "exponential"
        return call.tape.tensor(self.shape, strides=by_columns(self.shape) if matrices else None)

    def _sizes(self, call: Call) -> tuple[int, int, int]:
        *outer, m, n = call.x.shape
        return product(outer), m, n

    def products(self, call: Call) -> Iterable[Product]:
        batch, m, n = self._sizes(call)
        return [Product(batch, *sizes) for sizes in MATRICES[self.function].products(m, n)]

    def forward(self, call: Call) -> LayerFlops:
        batch, m, n = self._sizes(call)
        return LayerFlops(0, batch * MATRICES[self.function].forward(m, n))

    def backward(self, call: Call) -> Iterable[Gradient]:
        batch, m, n = self._sizes(call)
        products = sum(sizes.flops for sizes in self.products(call))
        yield Gradient(call.x, LayerFlops(products, batch * MATRICES[self.function].backward(m, n)))

    def workspace(self, call: Call) -> Workspace:
        """See `MATRICES`; of a determinant also the diagonal, where that is 0, and a number to put there."""
        batch, _, n = self._sizes(call)
        steps = MATRICES[self.function].steps * call.x.size
        if self.function == "determinant":
            return Workspace(0, steps + batch * (n + 1), batch * n)
        return Workspace(0, steps)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        keeps = MATRICES[self.function].keeps
        if "matrix" in keeps:
            yield call.x
        if "factors" in keeps:
            yield from lu_factors(call, call.x)
        if "others" in keeps:
            yield from call.inputs[1:]
        if "result" in keeps:
            yield call.y


@layer
class LinearSolve(OfMatrices):
    """X of A X = B, or of X A = B, A: (..., n, n), which may be triangular; B: (..., n, columns), or a vector each.

    by_cholesky: the first input is Cholesky's factor of A. columns_kept: B is kept too.
    """

    source = "torch.linalg.solve, solve_triangular, cholesky_solve; dB solves with Aᵀ, dA = −dB Xᵀ, dL = (dA + dAᵀ) L"
    in_lists = False
    arity = 2

    shape: tuple[int, ...]
    triangular: bool = False
    left: bool = True
    by_cholesky: bool = False
    columns_kept: bool = False

    def output(self, call: Call) -> Tensor:
        strides = by_columns(self.shape) if self.left or self.triangular else None
        return call.tape.tensor(self.shape, strides=strides)

    def _sizes(self, call: Call) -> tuple[int, int, int]:
        """Matrices, their size, and columns to solve for."""
        *outer, _, n = call.x.shape
        batch = product(self.shape) if len(self.shape) == len(outer) + 1 else product(self.shape[:-2]) * n
        columns = exact_div(product(self.shape), batch)
        return exact_div(batch, n), n, columns

    def _substitutions(self, call: Call) -> int:
        batch, n, columns = self._sizes(call)
        if self.by_cholesky:
            return batch * 2 * columns * n * n
        return batch * (columns * n * n if self.triangular else solved(n, columns))

    def products(self, call: Call) -> Iterable[Product]:
        batch, n, columns = self._sizes(call)
        sizes = [Product(batch, n, n, columns), *([Product(batch, n, n, n)] if self.by_cholesky else [])]
        return sizes if call.x.requires_grad else []

    def forward(self, call: Call) -> LayerFlops:
        """A factorisation of each A, unless it is triangular, and substitutions."""
        _, n, _ = self._sizes(call)
        factorisations = 0 if self.triangular or self.by_cholesky else product(call.x.shape[:-2]) * eliminated(n)
        return LayerFlops(0, factorisations + self._substitutions(call))

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Substitutions for B, which A's gradient needs too; then a product that is negated, and broadcast ones sum."""
        substitutions = self._substitutions(call)
        a, b = call.inputs
        batch, n, _ = self._sizes(call)
        whole, products = batch * n * n, sum(sizes.flops for sizes in self.products(call))
        work = (1 + self.by_cholesky) * whole + (0 if b.requires_grad else substitutions)
        yield Gradient(a, LayerFlops(products, work + (0 if a.size == whole else whole)))
        yield Gradient(b, LayerFlops(0, substitutions + (0 if b.size == call.y.size else call.y.size)))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.x
        if self.columns_kept:
            yield call.inputs[1]
        if not (self.triangular or self.by_cholesky):
            yield from lu_factors(call, call.x)
        yield call.y

    def workspace(self, call: Call) -> Workspace:
        """A's gradient before it is negated, and B's if that is made for A's alone."""
        a, b = call.inputs
        steps = (2 if self.by_cholesky else 1) * a.size + (0 if b.requires_grad else b.size)
        return Workspace(0, steps if a.requires_grad else 0)
