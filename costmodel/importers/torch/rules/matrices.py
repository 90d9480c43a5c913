"""Rules of operators that factorise matrices, or solve with them."""

from __future__ import annotations

from costmodel.graph.tensor import Tensor
from costmodel.importers.torch.op_call import OpCall, rule
from costmodel.layers.custom import FurtherResult
from costmodel.layers.factorisation import LinearSolve, OfMatrix, by_columns
from costmodel.layers.indexing import Computed

FUNCTIONS = {
    "linalg_cholesky_ex": "cholesky",
    "linalg_inv_ex": "inverse",
    "linalg_matrix_exp": "exponential",
    "_linalg_det": "determinant",
}
"""Operators of which autograd follows the first result alone."""


@rule(*FUNCTIONS)
def of_matrix(op: OpCall) -> list[Tensor]:
    """A function of each matrix; what else the operator makes is its own, but for notes of what went wrong."""
    kind = OfMatrix(FUNCTIONS[op.step.op], op.shape)
    x = op.tensor("input" if op.is_tensor("input") else "self" if op.is_tensor("self") else "A")
    y = op.layer(kind, x)
    if not op.step.op.endswith("_ex"):
        return [y]
    return [y, op.layer(Computed(op.shapes[1], "index"), name=f"{op.step.name}.info")]


@rule("_linalg_slogdet")
def log_determinant(op: OpCall) -> list[Tensor]:
    """Signs, which no gradient goes to, and logarithms."""
    x = op.tensor("A")
    sign = op.layer(Computed(op.shape), x, name=f"{op.step.name}.sign")
    return [sign, op.layer(OfMatrix("log_determinant", op.shape), x, sign)]


VECTORS = {
    "_linalg_eigh": ("eigenvalues", "eigenvectors", 1),
    "_linalg_svd": ("singular_values", "singular_vectors", 0),
    "linalg_qr": ("orthogonal", "orthogonal", 0),
}
"""Operators of several results: what they are if values alone are read, and else, and which is that of vectors."""


@rule(*VECTORS)
def of_vectors(op: OpCall) -> list[Tensor]:
    """Vectors, whose backward pass is that of the others too; what only values are read of takes less."""
    if op.value("full_matrices", False) or op.value("mode", "reduced") != "reduced":
        raise op.fail("of all vectors, also those that belong to no value, has no rule")
    if not op.value("compute_v", True) or not op.value("compute_uv", True):
        raise op.fail("of values without vectors has no rule")
    x = op.tensor("A")
    values, vectors, main = VECTORS[op.step.op]
    rows, columns = x.shape[-2:]
    if op.step.op == "linalg_qr" and rows < columns:
        raise op.fail("of more columns than rows has no rule")
    read = [output.name in op.replay.read for output in op.step.makes]
    only_values = op.step.op != "linalg_qr" and not any(read[n] for n in range(len(read)) if n != 1 - main)
    results = {n: _result(op, n) for n in range(len(op.shapes)) if n != main}
    y = op.layer(OfMatrix(values if only_values else vectors, op.shapes[main]), x, *results.values())
    further = {n: op.layer(FurtherResult(), y, result, name=f"{op.step.name}.{n}") for n, result in results.items()}
    return [y if n == main else further[n] for n in range(len(op.shapes))]


def _result(op: OpCall, number: int) -> Tensor:
    """Another result, of which R is by columns too."""
    shape = op.shapes[number]
    y = op.layer(Computed(shape), op.tensor("A"), name=f"{op.step.name}.{number}")
    return y.view(shape, by_columns(shape)) if op.step.op == "linalg_qr" else y


@rule("_linalg_solve_ex", "linalg_solve_triangular")
def solve(op: OpCall) -> Tensor | list[Tensor]:
    """The solution; factors and notes are its own."""
    triangular = op.step.op == "linalg_solve_triangular"
    a, b = (op.tensor(name) for name in (("self", "B") if triangular else ("A", "B")))
    y = op.layer(LinearSolve(op.shape, triangular, bool(op.value("left", True))), a, b)
    return y if triangular else [y]
