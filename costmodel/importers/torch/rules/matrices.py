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
    """Signs, to which autograd hands a gradient of zeros, and logarithms."""
    x = op.tensor("A")
    sign = op.layer(Computed(op.shape), x, name=f"{op.step.name}.sign")
    y = op.layer(OfMatrix("log_determinant", op.shape), x, sign)
    return [op.layer(FurtherResult(), y, sign, name=f"{op.step.name}.signs"), y]


VECTORS: dict[str, dict[tuple[int, ...], tuple[str, int]]] = {
    "_linalg_eigh": {(0,): ("eigenvalues", 1), (): ("eigenvectors", 1)},
    "_linalg_svd": {
        (1,): ("singular_values", 0),
        (0, 1): ("left_vectors", 0),
        (1, 2): ("right_vectors", 2),
        (): ("singular_vectors", 0),
    },
    "linalg_qr": {(0,): ("orthogonal_alone", 0), (): ("orthogonal", 0)},
}
"""Operators of several results: what they are if only some are read, or others too, and which result stands for all."""


@rule(*VECTORS)
def of_vectors(op: OpCall) -> list[Tensor]:
    """Vectors and values, whose backward pass is one; it takes less if few of them are read."""
    if op.value("full_matrices", False) or op.value("mode", "reduced") != "reduced":
        raise op.fail("of all vectors, also those that belong to no value, has no rule")
    if not op.value("compute_v", True) or not op.value("compute_uv", True):
        raise op.fail("of values without vectors has no rule")
    x = op.tensor("A")
    rows, columns = x.shape[-2:]
    if op.step.op == "linalg_qr" and rows < columns:
        raise op.fail("of more columns than rows has no rule")
    read = {n for n, output in enumerate(op.step.makes) if output.name in op.replay.read}
    ways = VECTORS[op.step.op]
    function, main = next((way for few, way in ways.items() if few and read <= set(few)), ways[()])
    results = {n: _result(op, n) for n in range(len(op.shapes)) if n != main}
    y = op.layer(OfMatrix(function, op.shapes[main]), x, *results.values())
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


@rule("cholesky_solve", "triangular_solve")
def solve_by_factor(op: OpCall) -> Tensor | list[Tensor]:
    """The solution by a factor; the older operator returns a copy of that too."""
    triangular = op.step.op == "triangular_solve"
    a, b = op.tensor("A" if triangular else "input2"), op.tensor("self")
    y = op.layer(LinearSolve(op.shape, triangular, by_cholesky=not triangular, columns_kept=True), a, b)
    return [y, op.layer(Computed(op.shapes[1]), name=f"{op.step.name}.copy")] if triangular else y
