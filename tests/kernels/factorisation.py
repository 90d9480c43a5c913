"""Kernels of factorisations: elimination, Cholesky and substitution number by number, iterations as they are counted.

Matrices are shifted by a multiple of the identity, so that they can be solved, and made symmetric where they must be.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from scipy import linalg

from tests.kernels.counting import Array, Tally, zeros
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes

SHIFT = 40.0
TALL = ("left_vectors", "orthogonal", "orthogonal_alone", "right_vectors", "singular_values", "singular_vectors")
SYMMETRIC = ("cholesky", "eigenvalues", "eigenvectors")


def turned(x: Any) -> Any:
    return np.swapaxes(x, -1, -2)


def lu(x: Array) -> Array:
    """L, without its ones, and U in one matrix, without exchanges of rows."""
    a = Array(x.values.copy(), x.tally)
    for k in range(a.shape[-1] - 1):
        column = a[..., k + 1 :, k] / np.expand_dims(a[..., k, k], -1)
        a[..., k + 1 :, k] = column
        products = np.expand_dims(column, -1) * np.expand_dims(a[..., k, k + 1 :], -2)
        a[..., k + 1 :, k + 1 :] = a[..., k + 1 :, k + 1 :] - products
    return a


def substituted(t: Array, b: Array, *, lower: bool, unit: bool = False) -> Array:
    """X of T X = B with a triangular T, row by row."""
    n = t.shape[-1]
    rows = range(n) if lower else range(n - 1, -1, -1)
    x = zeros(b.shape, b.tally)
    for i in rows:
        known = slice(0, i) if lower else slice(i + 1, n)
        row = b[..., i, :]
        if known.stop > known.start:
            row = row - (np.expand_dims(t[..., i, known], -1) * x[..., known, :]).sum(-2, keepdims=False)
        x[..., i, :] = row if unit else row / np.expand_dims(t[..., i, i], -1)
    return x


def solved(factors: Array, b: Array) -> Array:
    return substituted(factors, substituted(factors, b, lower=True, unit=True), lower=False)


def untold(x: Array) -> Array:
    """The same numbers, whose arithmetic is not counted, as it is of the forward pass."""
    return Array(x.values, Tally())


def diagonal(x: Array, n: int) -> Array:
    """Diagonal matrices of one number each, or of rows."""
    values = x.values if x.shape[-1:] == (n,) and x.values.ndim == 2 else np.repeat(x.values[..., None], n, -1)
    return Array(values[..., None] * np.eye(n), x.tally)


class OfMatrix(Kernel):
    table = (
        *("cholesky", "determinant", "eigenvalues", "eigenvectors", "exponential", "inverse", "log_determinant"),
        *("left_vectors", "orthogonal", "orthogonal_alone", "right_vectors", "singular_values", "singular_vectors"),
    )

    def case(self, draw: Draw) -> Case:
        batch, n = draw(sizes), draw(sizes)
        m = n + (draw(st.integers(0, 2)) if self.row in TALL else 0)
        shape = {
            **dict.fromkeys(("determinant", "log_determinant"), (batch,)),
            **dict.fromkeys(("eigenvalues", "singular_values"), (batch, n)),
            "right_vectors": (batch, n, n),
        }.get(self.row, (batch, m, n))
        others = {
            "left_vectors": [(batch, n), (batch, n, n)],
            "right_vectors": [(batch, m, n), (batch, n)],
            "orthogonal_alone": [(batch, n, n)],
            "log_determinant": [(batch,)],
            "eigenvectors": [(batch, n)],
            "singular_vectors": [(batch, n), (batch, n, n)],
            "orthogonal": [(batch, n, n)],
        }.get(self.row, [])
        within = (-1, 1) if self.row == "exponential" else (-8, 8)
        return Case(
            self.layer(function=self.row, shape=shape),
            [Operand((batch, m, n), within=within), *(Operand(other, constant=True) for other in others)],
        )

    def matrix(self, x: np.ndarray) -> np.ndarray:
        if self.row in (*TALL, "exponential"):
            return x
        x = (x + turned(x)) / 2 if self.row in SYMMETRIC else x
        return x + SHIFT * np.eye(x.shape[-1])

    def forward(self, p: Pass) -> Array:
        a = Array(self.matrix(p.x.values), p.tally)
        p.saved["a"] = a
        return getattr(self, self.row)(a)

    def inverse(self, a: Array) -> Array:
        return solved(lu(a), Array(np.broadcast_to(np.eye(a.shape[-1]), a.shape), a.tally))

    def determinant(self, a: Array) -> Array:
        return np.multiply.reduce(self._diagonal_of(lu(a)), axis=-1)

    def log_determinant(self, a: Array) -> Array:
        return np.log(np.absolute(self._diagonal_of(lu(a)))).sum(-1, keepdims=False)

    def _diagonal_of(self, a: Array) -> Array:
        return Array(np.diagonal(a.values, axis1=-2, axis2=-1), a.tally)

    def cholesky(self, a: Array) -> Array:
        y = zeros(a.shape, a.tally)
        for j in range(a.shape[-1]):
            column = a[..., j:, j]
            if j:
                column = column - (y[..., j:, :j] * np.expand_dims(y[..., j, :j], -2)).sum(-1, keepdims=False)
            root = np.sqrt(column[..., :1])
            y[..., j, j] = root[..., 0]
            y[..., j + 1 :, j] = column[..., 1:] / root
        return y

    def eigenvalues(self, a: Array) -> Array:
        return self._iterated(a, np.linalg.eigh(a.values)[0], 9 * a.shape[-1] ** 3)

    def eigenvectors(self, a: Array) -> Array:
        return self._iterated(a, np.linalg.eigh(a.values)[1], 9 * a.shape[-1] ** 3)

    def singular_values(self, a: Array) -> Array:
        return self._iterated(a, np.linalg.svd(a.values, full_matrices=False)[1], self._thin(a))

    def singular_vectors(self, a: Array) -> Array:
        return self._iterated(a, np.linalg.svd(a.values, full_matrices=False)[0], self._thin(a))

    left_vectors = singular_vectors

    def right_vectors(self, a: Array) -> Array:
        return self._iterated(a, np.linalg.svd(a.values, full_matrices=False)[2], self._thin(a))

    def _thin(self, a: Array) -> int:
        _, m, n = a.shape
        return 14 * m * n**2 + 8 * n**3

    def orthogonal(self, a: Array) -> Array:
        _, m, n = a.shape
        return self._iterated(a, np.linalg.qr(a.values)[0], -(-(12 * m * n**2 - 4 * n**3) // 3))

    orthogonal_alone = orthogonal

    def exponential(self, a: Array) -> Array:
        return self._iterated(a, linalg.expm(a.values), 5 * 2 * a.shape[-1] ** 3)

    def _iterated(self, a: Array, values: np.ndarray, operations: int) -> Array:
        """What is not counted here has the operations that the field says of it."""
        a.tally.pointwise += a.shape[0] * operations
        return Array(values, a.tally)

    def backward(self, p: Pass, g: Array) -> Gradients:
        gradient = getattr(self, f"of_{self.row}")(p.saved["a"], p.y, g)
        symmetric = self.row in ("eigenvalues", "eigenvectors")
        yield p.x, Array((gradient.values + turned(gradient.values)) / 2, p.tally) if symmetric else gradient

    def of_inverse(self, a: Array, y: Array, g: Array) -> Array:
        return -(turned(y) @ (g @ turned(y)))

    def of_determinant(self, a: Array, y: Array, g: Array) -> Array:
        return self._transposed_solution(a, g * y)

    def of_log_determinant(self, a: Array, y: Array, g: Array) -> Array:
        return self._transposed_solution(a, g)

    def _transposed_solution(self, a: Array, share: Array) -> Array:
        return solved(Array(lu(untold(turned(a))).values, a.tally), diagonal(share, a.shape[-1]))

    def of_cholesky(self, a: Array, y: Array, g: Array) -> Array:
        g = Array(np.tril(g.values), g.tally)
        inner = turned(y) @ g
        lower = Array(np.tril(inner.values, -1), g.tally)
        n = a.shape[-1]
        lower[..., np.arange(n), np.arange(n)] = inner[..., np.arange(n), np.arange(n)] * 0.5
        left = substituted(turned(y), lower, lower=False)
        both = turned(substituted(turned(y), turned(left), lower=False))
        return (both + turned(both)) * 0.5

    def of_eigenvalues(self, a: Array, y: Array, g: Array) -> Array:
        vectors = Array(np.linalg.eigh(a.values)[1], a.tally)
        return (vectors * np.expand_dims(g, -2)) @ turned(vectors)

    def of_eigenvectors(self, a: Array, y: Array, g: Array) -> Array:
        values = Array(np.linalg.eigh(a.values)[0], a.tally)
        apart = np.expand_dims(values, -2) - np.expand_dims(values, -1)
        n = a.shape[-1]
        inner = turned(y) @ g
        inner[..., np.arange(n), np.arange(n)] = 0
        apart[..., np.arange(n), np.arange(n)] = 1
        return y @ ((inner / apart) @ turned(y))

    def of_singular_values(self, a: Array, y: Array, g: Array) -> Array:
        u, _, v = (Array(x, a.tally) for x in np.linalg.svd(a.values, full_matrices=False))
        return u @ (np.expand_dims(g, -1) * v)

    def of_singular_vectors(self, a: Array, y: Array, g: Array) -> Array:
        """That of the others comes to nothing here, and takes as much."""
        _, s, v = (Array(x, a.tally) for x in np.linalg.svd(a.values, full_matrices=False))
        other = v @ turned(zeros(v.shape, a.tally))
        return self._of_left(y, s, v, g, other - turned(other))

    def of_left_vectors(self, a: Array, y: Array, g: Array) -> Array:
        _, s, v = (Array(x, a.tally) for x in np.linalg.svd(a.values, full_matrices=False))
        return self._of_left(y, s, v, g)

    def of_right_vectors(self, a: Array, y: Array, g: Array) -> Array:
        u, s, _ = (Array(x, a.tally) for x in np.linalg.svd(a.values, full_matrices=False))
        return turned(self._of_left(turned(y), s, turned(u), turned(g)))

    def _of_left(self, u: Array, s: Array, v: Array, g: Array, other: Array | None = None) -> Array:
        n, along, squares = s.shape[-1], turned(u) @ g, s * s
        skew = (along - turned(along)) * np.expand_dims(s, -2)
        apart = np.expand_dims(squares, -2) - np.expand_dims(squares, -1)
        apart[..., np.arange(n), np.arange(n)] = 1
        inner = (skew if other is None else skew + np.expand_dims(s, -1) * other) / apart
        if u.shape[-2] == n:
            return (u @ inner) @ v
        beside = (g - u @ (turned(u) @ g)) / np.expand_dims(s, -2)
        return (u @ inner + beside) @ v

    def of_orthogonal(self, a: Array, y: Array, g: Array) -> Array:
        r = Array(np.linalg.qr(a.values)[1], a.tally)
        return self._of_q(y, g, zeros(r.shape, a.tally) @ turned(r) - turned(y) @ g, r)

    def of_orthogonal_alone(self, a: Array, y: Array, g: Array) -> Array:
        r = Array(np.linalg.qr(a.values)[1], a.tally)
        return self._of_q(y, g, -(turned(y) @ g), r)

    def _of_q(self, y: Array, g: Array, inner: Array, r: Array) -> Array:
        upper, places = Array(np.triu(inner.values), g.tally), np.arange(r.shape[-1])
        both = upper + turned(upper)
        both[..., places, places] = both[..., places, places] * 0.5
        return turned(substituted(r, turned(g + y @ both), lower=False))

    def of_exponential(self, a: Array, y: Array, g: Array) -> Array:
        pairs = zip(turned(a.values), g.values, strict=True)
        values = np.stack([linalg.expm_frechet(one, other, compute_expm=False) for one, other in pairs])
        return self._iterated(a, values, 5 * 2 * (2 * a.shape[-1]) ** 3)

    def reference(self, p: Pass, x: np.ndarray, *others: np.ndarray) -> np.ndarray:
        a = self.matrix(x)
        plain: dict[str, Any] = {
            "cholesky": np.linalg.cholesky,
            "determinant": np.linalg.det,
            "eigenvalues": np.linalg.eigvalsh,
            "eigenvectors": lambda a: np.stack([linalg.eigh(one, driver="ev")[1] for one in a]),
            "exponential": lambda a: np.stack([sum_of_powers(one) for one in a]),
            "inverse": np.linalg.inv,
            "log_determinant": lambda a: np.linalg.slogdet(a)[1],
            "orthogonal": lambda a: np.stack([linalg.qr(one, mode="economic")[0] for one in a]),
            "singular_values": lambda a: np.sqrt(np.linalg.eigvalsh(turned(a) @ a)[..., ::-1].clip(0)),
            **dict.fromkeys(("left_vectors", "singular_vectors"), lambda a: singular_vectors(a, 0)),
            "right_vectors": lambda a: singular_vectors(a, 2),
        }
        plain["orthogonal_alone"] = plain["orthogonal"]
        y = plain[self.row](a)
        if self.row.endswith("vectors"):  # which way a vector points is not said
            y = y * np.sign((y * p.y.values).sum(-1 if self.row == "right_vectors" else -2, keepdims=True))
        return y


def singular_vectors(a: np.ndarray, which: int) -> np.ndarray:
    return np.stack([linalg.svd(one, full_matrices=False, lapack_driver="gesvd")[which] for one in a])


def sum_of_powers(x: np.ndarray) -> np.ndarray:
    y = term = np.eye(len(x))
    for k in range(1, 60):
        term = term @ x / k
        y = y + term
    return y


class LinearSolve(Kernel):
    def case(self, draw: Draw) -> Case:
        batch, n, columns = draw(sizes), draw(sizes), draw(sizes)
        how, constant = draw(st.sampled_from(["", "triangular", "by_cholesky"])), draw(st.sampled_from([None, 0, 1]))
        shape = (batch, n, columns)
        layer = self.layer(shape=shape, **({how: True} if how else {}))
        return Case(layer, [Operand((batch, n, n), constant=constant == 0), Operand(shape, constant=constant == 1)])

    def matrix(self, p: Pass, x: np.ndarray) -> np.ndarray:
        lower = p.kind.triangular or p.kind.by_cholesky
        return (np.tril(x) if lower else x) + SHIFT * np.eye(x.shape[-1])

    def forward(self, p: Pass) -> Array:
        a, b = Array(self.matrix(p, p.x.values), p.tally), p.inputs[1]
        p.saved["a"] = a
        if p.kind.by_cholesky:
            return substituted(turned(a), substituted(a, b, lower=True), lower=False)
        return substituted(a, b, lower=True) if p.kind.triangular else solved(lu(a), b)

    def backward(self, p: Pass, g: Array) -> Gradients:
        if p.kind.by_cholesky:
            yield from self._by_cholesky(p, p.saved["a"], g)
            return
        a = turned(p.saved["a"])
        factors = a if p.kind.triangular else Array(lu(untold(a)).values, p.tally)
        db = substituted(factors, g, lower=False) if p.kind.triangular else solved(factors, g)
        if p.needs(p.inputs[1]):
            yield p.inputs[1], db
        if p.needs(p.x):
            da = -(db @ turned(p.y))
            yield p.x, Array(np.tril(da.values), p.tally) if p.kind.triangular else da

    def reference(self, p: Pass, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a = self.matrix(p, a)
        return np.linalg.solve(a @ turned(a) if p.kind.by_cholesky else a, b)

    def _by_cholesky(self, p: Pass, factor: Array, g: Array) -> Gradients:
        db = substituted(turned(factor), substituted(factor, g, lower=True), lower=False)
        if p.needs(p.inputs[1]):
            yield p.inputs[1], db
        if p.needs(p.x):
            inner = db @ turned(p.y)
            yield p.x, Array(np.tril((-((inner + turned(inner)) @ factor)).values), p.tally)
