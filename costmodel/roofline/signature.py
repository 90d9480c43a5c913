"""What the time of one NumPy call depends on beside where its operands are: a loop, a matrix product or a gather."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from costmodel.roofline.memory import ITEM_BYTES, RESIDENT_BYTES, Ref, Shape
from costmodel.roofline.program import NumpyCall


@dataclass(frozen=True)
class Strand:
    """One array within a loop: elements from one step of the inner loop to the next, and whether one step leads
    through the whole array (else NumPy copies it piece by piece, or starts anew at each row).

    again: of an array that repeats, the bytes that are read again, and what the loop touches until then [bytes].
    """

    step: int
    flat: bool
    itemsize: int
    again: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class LoopSignature:
    """An elementwise call, or a reduction: `rows` inner loops of `inner` elements each.

    strands: the arrays read, then the one written. scalars: how many inputs are numbers. reduced: what the inner loop
    does in a reduction ("inner": adds up a row; "outer": adds a row to others; "" for none). iterated: whether
    NumPy makes an iterator of arrays though one step leads through each: they differ in shape, or a single number is
    written where it is read.
    """

    name: str
    dtype: str
    inner: int
    rows: int
    strands: tuple[Strand, ...]
    scalars: int = 0
    in_place: bool = False
    reduced: str = ""
    iterated: bool = False

    @property
    def elements(self) -> int:
        """Elements looped over."""
        return self.inner * self.rows

    @property
    def streams(self) -> bool:
        """Whether each inner loop is longer than what a core's caches hold, so that hardly any begins."""
        return self.inner * self.strands[0].itemsize > RESIDENT_BYTES


@dataclass(frozen=True)
class ProductSignature:
    """`batch` matrix products of (m, k) and (k, n); an operand is `transposed` if its columns are contiguous.

    plain: whether BLAS can read both operands as they lie.
    """

    batch: int
    m: int
    n: int
    k: int
    a_transposed: bool
    b_transposed: bool
    plain: bool
    dtype: str

    @property
    def flops(self) -> int:
        """A multiply-add being two."""
        return 2 * self.batch * self.m * self.n * self.k


ELEMENTWISE = ("random", "searchsorted")
"""Functions that take as long for each number, whichever they are."""


@dataclass(frozen=True)
class GatherSignature:
    """`rows` rows of `width` elements, moved by an index (take), or added there (at)."""

    name: str
    dtype: str
    rows: int
    width: int


Signature = LoopSignature | ProductSignature | GatherSignature


def _priced(dtype: str) -> str:
    """The type whose probes price this one: of the same size where there is one."""
    return {"float64": "float64", "int64": "float64"}.get(dtype, "float32")


def signature_of(op: NumpyCall) -> Signature:
    """The signature of a call; calls with equal ones take equally long on operands at equal distances."""
    if op.name == "matmul":
        return _product(op)
    if op.name in ("take", *ELEMENTWISE) or op.name.endswith(".at"):
        return _gather(op)
    return _loop(op)


def _loop(op: NumpyCall) -> LoopSignature:
    refs, axes = op.accesses, _coalesced(*op.loop)
    inner, steps = axes[-1]
    sizes = [ITEM_BYTES[ref.dtype] for ref in refs]
    strands = tuple(
        Strand(step, all(outer[i] == n * inner[i] for (_, outer), (n, inner) in pairwise(axes)), size, again)
        for i, (size, step, again) in enumerate(zip(sizes, steps, _again(axes, sizes), strict=True))
    )
    in_place = any(x.buffer is op.output.buffer for x in refs[:-1])
    ufunc = op.name != "copyto" and not op.name.endswith(".reduce")
    squared = op.name == "multiply" and len(refs) == 3 and len(op.operands) == 1 and not in_place
    return LoopSignature(
        name="square" if squared else op.name,  # it reads one array
        dtype=_priced(next((x.dtype for x in refs if x.dtype in ("float32", "float64")), op.output.dtype)),
        inner=inner,
        rows=prod(n for n, _ in axes[:-1]),
        strands=strands,
        scalars=len(op.inputs) + 1 - len(refs),
        in_place=in_place,
        reduced="" if not op.name.endswith(".reduce") else "outer" if steps[1] else "inner",
        iterated=ufunc and (len({ref.shape for ref in refs}) > 1 or (in_place and op.output.size == 1)),
    )


def _coalesced(shape: Shape, steps: list[Shape]) -> list[tuple[int, Shape]]:
    """Axes as NumPy's iterator walks them, (length, steps of each array): the smallest steps innermost, axes that
    continue each other joined."""
    axes = [(n, tuple(s[a] for s in steps)) for a, n in enumerate(shape) if n != 1]
    axes.sort(key=lambda axis: tuple(sorted((abs(s) for s in axis[1]), reverse=True)), reverse=True)
    joined: list[tuple[int, Shape]] = []
    for n, inner in axes:
        if joined and all(outer == n * s for outer, s in zip(joined[-1][1], inner, strict=True)):
            joined[-1] = (joined[-1][0] * n, inner)
        else:
            joined.append((n, inner))
    return joined or [(1, tuple(1 for _ in steps))]


def _again(axes: Sequence[tuple[int, Shape]], sizes: Sequence[int]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Of each array what is read again along the axes that it repeats on, and what comes between; see `Strand`."""

    def touched(array: int, within: Sequence[tuple[int, Shape]]) -> int:
        return sizes[array] * prod(n for n, steps in within if steps[array])

    for array in range(len(sizes)):
        again = []
        for at, (n, steps) in enumerate(axes):
            within = axes[at + 1 :]
            if not steps[array] and any(each[array] for _, each in within):
                times = prod(n for n, _ in axes[:at]) * (n - 1)
                again.append((times * touched(array, within), sum(touched(i, within) for i in range(len(sizes)))))
        yield tuple(again)


def _product(op: NumpyCall) -> ProductSignature:
    a, b = (x for x in op.inputs if isinstance(x, Ref))
    m, k = (1, a.size) if len(a.shape) == 1 else a.shape[-2:]
    n = 1 if len(b.shape) == 1 else b.shape[-1]
    layouts = [_layout(x) for x in (a, b)]
    return ProductSignature(
        batch=op.output.size // (m * n),
        m=m,
        n=n,
        k=k,
        a_transposed=layouts[0] == "columns",
        b_transposed=layouts[1] == "columns",
        plain="strided" not in layouts,
        dtype=op.output.dtype,
    )


def _layout(x: Ref) -> str:
    """Whether BLAS can read the matrices by rows or by columns; else NumPy copies or loops itself."""
    if len(x.shape) == 1:
        return "rows"
    (rows, columns), (down, across) = x.shape[-2:], x.steps[-2:]
    if (across == 1 or columns == 1) and (down >= columns or rows == 1):
        return "rows"
    return "columns" if (down == 1 or rows == 1) and (across >= rows or columns == 1) else "strided"


def _gather(op: NumpyCall) -> GatherSignature:
    dtype = _priced(op.operands[0].dtype if op.name == "searchsorted" else op.output.dtype)
    if op.name in ELEMENTWISE:
        return GatherSignature(op.name, dtype, op.output.size, 1)
    if op.name == "take":
        index = op.operands[1]
        return GatherSignature("take", dtype, index.size, max(op.output.size // max(index.size, 1), 1))
    return GatherSignature(op.name, dtype, op.terms, 1)
