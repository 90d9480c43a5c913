"""Rules of operators that are products of tensors, whatever these are."""

from __future__ import annotations

from costmodel.graph.tensor import Shape, Tensor
from costmodel.importers.torch.rules.shapes import expanded
from costmodel.importers.torch.site import Site, rule, strides_of
from costmodel.layers.arithmetic import Add, Multiply
from costmodel.layers.linear import Matmul, Product
from costmodel.symbolic.sizes import product


@rule("addmm", "mm", "matmul", "bmm", "mv", "dot", "baddbmm", "inner")
def matmul(site: Site) -> Tensor:
    """A product: of a matrix with rows, or of batches of matrices."""
    added = site.step.op in ("addmm", "baddbmm")
    known = {"mat1", "mat2", "batch1", "batch2", "self", "vec", "tensor", "other"}
    first, second = [name for name in site.step.args if name in known and not (name == "self" and added)]
    a, b = site.tensor(first), site.tensor(second)
    if site.step.op == "addmm":
        return site.layer(Product(), a, b, site.tensor("self"))
    if site.step.op == "baddbmm":
        return site.layer(Add(), site.tensor("self"), site.layer(Matmul(), a, b, name=f"{site.step.name}.product"))
    return multiplied(site, a, b)


def multiplied(site: Site, a: Tensor, b: Tensor) -> Tensor:
    """``torch.matmul``: vectors are matrices of one row or column, batches broadcast."""
    vector = len(a.shape) == 1 or len(b.shape) == 1
    if len(b.shape) == 1:
        b = b.view((b.shape[0], 1), (strides_of(b)[0], 1))
    if len(a.shape) == 1:
        a = a.view((1, a.shape[0]), None)
    if len(b.shape) == 2:
        y = site.layer(Product(vector), a, b)
    else:
        batch = site.shape[: max(len(a.shape), len(b.shape)) - 2]
        a, b = (expanded(site, x, (*batch, *x.shape[-2:])) for x in (a, b))
        y = site.layer(Matmul(), a, b)
    return y.view(site.shape, None)


@rule("outer", "ger")
def outer(site: Site) -> Tensor:
    """Each element of a vector times each of another."""
    a, b = site.tensor("self"), site.tensor("vec2")
    return site.layer(Multiply(), a.view((a.shape[0], 1), (*strides_of(a), 1)), b)


@rule("einsum")
def einsum(site: Site) -> Tensor:
    """Operands are multiplied from left to right, each pair as one batched product of matrices."""
    equation = site.value("equation").replace(" ", "")
    left, arrow, result = equation.partition("->")
    if "." in equation or not arrow:
        raise site.fail("with ellipses, or without a result, has no rule")
    names, operands = left.split(","), site.tensors("tensors")
    if any(len(set(letters)) != len(letters) for letters in names):
        raise site.fail("of diagonals has no rule")
    held, x = names[0], operands[0]
    for number, (letters, y) in enumerate(zip(names[1:], operands[1:], strict=True), start=1):
        wanted = set(result).union(*names[number + 1 :])
        held, x = _pair(site, (held, x), (letters, y), wanted)
    if set(held) != set(result):
        raise site.fail("that sums an axis of one operand alone has no rule")
    return ordered(x, held, result)


def _pair(site: Site, a: tuple[str, Tensor], b: tuple[str, Tensor], wanted: set[str]) -> tuple[str, Tensor]:
    """The product of two operands, its axes those that are wanted (``at::sumproduct_pair``)."""
    (first, x), (second, y) = a, b
    both = [n for n in first if n in second]
    batch, summed = "".join(n for n in both if n in wanted), "".join(n for n in both if n not in wanted)
    rows, columns = ("".join(n for n in one if n not in both) for one in (first, second))
    if not set(rows + columns) <= wanted:
        raise site.fail("that sums an axis of one operand alone has no rule")
    sizes = dict(zip(first + second, (*x.shape, *y.shape), strict=True))

    def shape(*groups: str) -> Shape:
        return tuple(product(sizes[n] for n in group) for group in groups)

    if not summed:
        spread = [ordered(z, letters, batch + own) for z, letters, own in ((x, first, rows), (y, second, columns))]
        x = site.reshaped(spread[0], (*spread[0].shape, *(1 for _ in columns)))
        y = site.reshaped(spread[1], (*shape(*batch), *(1 for _ in rows), *shape(*columns)))
        return batch + rows + columns, site.layer(Multiply(), x, y)
    x = site.reshaped(ordered(x, first, batch + rows + summed), shape(batch, rows, summed))
    y = site.reshaped(ordered(y, second, batch + summed + columns), shape(batch, summed, columns))
    made = site.layer(Matmul(), x, y)
    return batch + rows + columns, made.view(shape(*(batch + rows + columns)), None)


def ordered(x: Tensor, letters: str, wanted: str) -> Tensor:
    """`x` with its axes, named by letters, in another order."""
    if letters == wanted:
        return x
    axes, strides = [letters.index(name) for name in wanted], strides_of(x)
    return x.view(tuple(x.shape[a] for a in axes), tuple(strides[a] for a in axes))
