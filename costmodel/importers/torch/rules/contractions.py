"""Rules of operators that are products of tensors, whatever these are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from costmodel.graph.tensor import Shape, Tensor, transposed
from costmodel.importers.torch.rules.shapes import expanded
from costmodel.importers.torch.site import Site, rule, strides_of
from costmodel.layers.arithmetic import Add, Multiply
from costmodel.layers.linear import Matmul, Product
from costmodel.layers.reduction import Reduce
from costmodel.layers.shape import Copied
from costmodel.symbolic.sizes import product


@rule("addmm", "mm", "matmul", "bmm", "mv", "dot", "baddbmm")
def matmul(site: Site) -> Tensor:
    """A product: of a matrix with rows, or of batches of matrices."""
    added = site.step.op in ("addmm", "baddbmm")
    known = {"mat1", "mat2", "batch1", "batch2", "self", "vec", "tensor", "other"}
    first, second = [name for name in site.step.args if name in known and not (name == "self" and added)]
    a, b = site.tensor(first), site.tensor(second)
    if site.step.op == "addmm":
        return site.layer(Product(), a, b, site.tensor("self"))
    if site.step.op == "baddbmm":
        y = site.layer(Add(), site.tensor("self"), site.layer(Matmul(), a, b, name=f"{site.step.name}.product"))
        return y.view(y.shape, None)
    return multiplied(site, a, b)


@rule("inner")
def inner(site: Site) -> Tensor:
    """Products along the last axes, as one of two matrices; of vectors ``torch.dot``."""
    a, b = site.tensor("self"), site.tensor("other")
    if len(a.shape) == len(b.shape) == 1:
        return multiplied(site, a, b)
    axes, strides = (len(b.shape) - 1, *range(len(b.shape) - 1)), strides_of(b)
    b = b.view(tuple(b.shape[n] for n in axes), tuple(strides[n] for n in axes))
    b = site.reshaped(b, (b.shape[0], product(b.shape[1:])))
    a = a if len(a.shape) > 1 else a.view((1, *a.shape), (0, *strides_of(a)))
    alone = product(site.shape) == 1  # a dot product, which FlopCounterMode does not count
    return site.layer(Product(alone), a, b).view(site.shape, None)


def multiplied(site: Site, a: Tensor, b: Tensor) -> Tensor:
    """``torch.matmul``: vectors are matrices of one row or column, batches broadcast."""
    vector = len(b.shape) == 1
    if len(b.shape) > max(len(a.shape), 2) and _folds(a, b):
        turned = transposed(b, len(b.shape) - 2, len(b.shape) - 1)
        if len(a.shape) == 1:
            return site.layer(Product(vector=True), turned, _column(a)).view(site.shape, None)
        y = site.layer(Product(), turned, transposed(a, 0, 1), name=f"{site.step.name}.product")
        return site.layer(Copied(site.shape), transposed(y, len(y.shape) - 2, len(y.shape) - 1))
    folds = len(b.shape) <= 2 and (len(a.shape) <= 2 or _folds(a, b))
    if len(a.shape) == 1:
        a = a.view((1, a.shape[0]), (a.shape[0] * strides_of(a)[0], strides_of(a)[0]))
    b = _column(b) if vector else b
    if folds:
        return site.layer(Product(vector), a, b).view(site.shape, None)
    batch = site.shape[: max(len(a.shape), len(b.shape)) - 2]
    a, b = (expanded(site, x, (*batch, *x.shape[-2:])) for x in (a, b))
    return site.layer(Matmul(), a, b).view(site.shape, None)


def _column(x: Tensor) -> Tensor:
    return x.view((x.shape[0], 1), (strides_of(x)[0], 1))


def _folds(a: Tensor, b: Tensor) -> bool:
    """Whether a batch of matrices is multiplied by one matrix or vector as rows (``at::native::should_fold``)."""
    large, small = (a, b) if len(a.shape) >= len(b.shape) else (transposed(b, len(b.shape) - 2, len(b.shape) - 1), a)
    if len(large.shape) < 3 or len(small.shape) > 2:
        return False
    if small.requires_grad or len(a.shape) == 2:
        return small.requires_grad
    shape, strides = large.shape, strides_of(large)
    return all(strides[n] == strides[n + 1] * shape[n + 1] for n in range(len(shape) - 2))


@rule("outer", "ger")
def outer(site: Site) -> Tensor:
    """Each element of a vector times each of another."""
    a, b = site.tensor("self"), site.tensor("vec2")
    return site.layer(Multiply(), a.view((a.shape[0], 1), (*strides_of(a), 1)), b)


@rule("einsum")
def einsum(site: Site) -> Tensor:
    """Operands are multiplied in pairs, each as one batched product of matrices (``at::einsum``)."""
    left, arrow, result = site.value("equation").replace(" ", "").partition("->")
    if "." in left:
        raise site.fail("with ellipses has no rule")
    names, operands = left.split(","), site.tensors("tensors")
    if any(len(set(letters)) != len(letters) for letters in names):
        raise site.fail("of diagonals has no rule")
    every = sorted(set(left) - {","})
    result = result if arrow else "".join(n for n in every if left.count(n) == 1)
    order = result + "".join(n for n in every if n not in result)
    terms = [_Term("", x).ordered(letters, order) for letters, x in zip(names, operands, strict=True)]
    sums = _Sums(site, order, {n: sum(n in term.spread for term in terms) for n in every if n not in result})
    path = iter(site.value("path") or [0, 1] * len(terms))
    while len(terms) > 1:
        i, j = sorted((next(path), next(path)))
        b, a = terms.pop(j), terms.pop(i)
        made = sums.pair(a, b)
        terms.insert(len(terms) if site.has("path") else 0, made)
    return sums.summed(terms[0], [n for n in terms[0].letters if n not in result]).ordered(None, result).tensor


class _Term(NamedTuple):
    """A tensor whose axes are called by letters."""

    letters: str
    tensor: Tensor

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.letters, self.tensor.shape, strict=True))

    @property
    def spread(self) -> list[str]:
        """Letters of axes of more than one."""
        return [n for n, size in self.sizes.items() if size != 1]

    def ordered(self, letters: str | None, order: str) -> _Term:
        """With its axes, called by `letters`, in an order that may name others too."""
        letters, x = self.letters if letters is None else letters, self.tensor
        wanted, strides = "".join(n for n in order if n in letters), strides_of(x)
        if wanted == letters:
            return _Term(letters, x)
        axes = [letters.index(n) for n in wanted]
        return _Term(wanted, x.view(tuple(x.shape[a] for a in axes), tuple(strides[a] for a in axes)))


class _Sums:
    """Pairs of terms, with the letters to sum over and in how many terms each is left."""

    def __init__(self, site: Site, order: str, left: dict[str, int]) -> None:
        self.site = site
        self.order = order
        self.left = left

    def summed(self, term: _Term, letters: Sequence[str]) -> _Term:
        """Without some axes, over which it is summed where they are more than one."""
        rest = "".join(n for n in term.letters if n not in letters)
        shape = tuple(term.sizes[n] for n in rest)
        if not set(letters) & set(term.spread):
            return _Term(rest, self.site.reshaped(term.tensor, shape))
        return _Term(rest, self.site.layer(Reduce("sum", shape), term.tensor, name=f"{self.site.step.name}.sum"))

    def pair(self, a: _Term, b: _Term) -> _Term:
        """The product of two, summed over what no other term has."""
        both: list[str] = []
        for n in self.left:
            shared = n in a.spread and n in b.spread
            self.left[n] -= shared
            if self.left[n] == 1 and shared:
                both.append(n)
            elif self.left[n] == 1 and n in a.spread:
                a = self.summed(a, [n])
            elif self.left[n] == 1 and n in b.spread:
                b = self.summed(b, [n])
        return self._product(a, b, "".join(both)) if both else self._multiplied(a, b)

    def _multiplied(self, a: _Term, b: _Term) -> _Term:
        letters = "".join(n for n in self.order if n in a.letters + b.letters)
        x, y = (term.tensor.view(*self._seen(term, letters)) for term in (a, b))
        return _Term(letters, self.site.layer(Multiply(), x, y))

    def _seen(self, term: _Term, letters: str) -> tuple[Shape, Shape]:
        """Shape and strides with an axis of one for each letter that it lacks."""
        strides = dict(zip(term.letters, strides_of(term.tensor), strict=True))
        return tuple(term.sizes.get(n, 1) for n in letters), tuple(strides.get(n, 1) for n in letters)

    def _product(self, a: _Term, b: _Term, both: str) -> _Term:
        """``at::sumproduct_pair``: one batched product of (batch, rows, summed) and (batch, summed, columns)."""
        sizes = {**b.sizes, **a.sizes, **{n: b.sizes[n] for n in b.spread}}
        kept = "".join(n for n in self.order if n in sizes and n not in both)
        batch = "".join(n for n in kept if n in a.spread and n in b.spread)
        rows = "".join(n for n in kept if n in a.spread and n not in batch)
        columns = "".join(n for n in kept if n not in batch + rows)
        others = [self.order.index(n) for n in self.order if n not in batch + rows + both]
        if rows and columns and max(others) < min(self.order.index(n) for n in rows):
            a, b, rows, columns = b, a, columns, rows  # so that the result comes in order

        def shape(*groups: str) -> Shape:
            return tuple(product(sizes[n] for n in group) for group in groups)

        def matrices(term: _Term, *groups: str) -> Tensor:
            wanted = "".join(groups)
            flat = term.tensor.view(*self._seen(term, wanted))
            return self.site.reshaped(flat, shape(*groups))

        x = matrices(self._only(a, batch + rows + both), batch, rows, both)
        y = matrices(self._only(b, batch + both + columns), batch, both, columns)
        made = self.site.layer(Matmul(), x, y).view(shape(*(batch + rows + columns)), None)
        return _Term(batch + rows + columns, made).ordered(None, self.order)

    def _only(self, term: _Term, letters: str) -> _Term:
        """Without axes of one that are not among letters."""
        return self.summed(term, [n for n in term.letters if n not in letters])
