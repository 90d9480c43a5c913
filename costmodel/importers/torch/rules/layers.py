"""Rules of operators that are layers: products, tables, attention, norms, losses, reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from costmodel.errors import SettingError
from costmodel.graph.tensor import Shape, Tensor, dense_strides, transposed
from costmodel.importers.torch.rules.elementwise import extreme, made
from costmodel.importers.torch.rules.shapes import expanded
from costmodel.importers.torch.site import Site, rule, strides_of, tied
from costmodel.layers.arithmetic import Add, Dropout, Multiply, Scale, Subtract
from costmodel.layers.attention import FusedAttention, Softmax, SoftmaxAlong
from costmodel.layers.embedding import Embedding
from costmodel.layers.function import Pointwise
from costmodel.layers.indexing import Chosen, Made
from costmodel.layers.linear import Linear, Matmul, Product
from costmodel.layers.loss import LOSSES, Compared, CrossEntropy, MeanSquaredError, Picked
from costmodel.layers.norm import Batchnorm, BatchnormFixed, BatchnormUntracked, Groupnorm, Layernorm, Rmsnorm
from costmodel.layers.reduction import REDUCTIONS, Cumprod, Cumulate, Reduce
from costmodel.layers.resize import Padded
from costmodel.layers.shape import Copied
from costmodel.symbolic.sizes import ceil_div, exact_div, product, value_of


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


@rule("linear")
def linear(site: Site) -> Tensor:
    """A linear layer."""
    weights = tied(site)
    return site.layer(Linear(weights["weight"].shape[0], site.has("bias")), site.tensor("input"), tied=weights)


@rule("embedding")
def embedding(site: Site) -> Tensor:
    """Rows of a table."""
    table = site.weight("weight")
    return site.layer(Embedding(*table.shape), site.tensor("indices"), tied={"weight": table})


@rule("softmax", "log_softmax", "special_softmax")
def softmax(site: Site) -> Tensor:
    """Along any axis."""
    x = site.tensor("self")
    axis = site.axis(x)
    if site.step.op == "softmax" and axis == len(x.shape) - 1:
        return site.layer(Softmax(), x)
    return site.layer(SoftmaxAlong(x.shape[axis], site.step.op == "log_softmax"), x)


@rule("cumsum", "cumprod")
def cumulate(site: Site) -> Tensor:
    """Running sums, or products."""
    x = site.tensor("self")
    kind = Cumulate() if site.step.op == "cumsum" else Cumprod()
    return site.layer(kind, x) if site.role == "activation" else made(site, x)


@rule(*REDUCTIONS, "max", "min")
def reduce(site: Site) -> Tensor | list[Tensor]:
    """Over some axes, or all; largest and smallest along one come with their places."""
    x = site.tensor("self")
    if site.is_tensor("other"):
        return extreme(site)
    op = f"a{site.step.op}" if site.step.op in ("max", "min") and not site.has("dim") else site.step.op
    if len(site.step.makes) == 2:
        shape = site.replay.shape(site.step.makes[1].shape)
        places = site.layer(Made(shape, "index", 1), x, name=f"{site.step.name}.places")
        return [site.layer(Chosen(site.shape), x, places), places]
    return made(site, x) if site.role != "activation" else site.layer(Reduce(op, site.shape), x)


@rule("scaled_dot_product_attention")
def attention(site: Site) -> Tensor:
    """As the question's setting `attention` says; fused where all heads are of one size and there are four axes."""
    query, key, value = (site.tensor(name) for name in ("query", "key", "value"))
    with site.run.part("core"):
        if len(query.shape) != 4 or key.shape != value.shape or not _fuses(site):
            return _composed(site, query, key, value)
        return _fused(site, query, key, value)


def _fuses(site: Site) -> bool:
    """Whether a kernel was asked for that can do it: the CPU's has no dropout, nor masks of three axes or trained."""
    kernel = site.replay.attention.kernel
    if kernel == "eager" or not site.has("attn_mask"):
        return kernel != "eager" and not (site.run.device == "cpu" and _dropout(site))
    mask = site.tensor("attn_mask")
    if site.run.device == "cpu":
        return len(mask.shape) in (2, 4) and not mask.requires_grad and not _dropout(site)
    if kernel == "flash":
        where = ".".join((*site.step.path, site.step.name))
        raise SettingError(f"attention='flash' takes no mask, as {where} has: use 'efficient' or 'eager'")
    return True


def _dropout(site: Site) -> float:
    return site.value("dropout_p", 0.0) if site.run.training else 0.0


def _fused(site: Site, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    kernel = site.replay.attention.kernel
    assert kernel != "eager"
    scale = site.constant("scale") if site.has("scale") else None
    kind = FusedAttention("cpu" if site.run.device == "cpu" else kernel, _dropout(site), scale=scale)
    mask = _mask(site, query, key) if site.has("attn_mask") else None
    if mask is None:
        return site.layer(kind, query, key, value)
    return site.layer(kind, query, key, value, mask if site.run.device == "cpu" else _aligned(site, mask))


def _aligned(site: Site, mask: Tensor) -> Tensor:
    """A mask as the efficient kernel takes it: rows of memory are multiples of eight long (``at::pad_bias``)."""
    *rest, keys = mask.shape
    padded = (*rest, 8 * ceil_div(keys, 8))
    if mask.has(padded):
        return mask
    whole = site.layer(Padded(padded), mask, name=f"{site.step.name}.mask_padded")
    return site.part(whole, mask.shape, strides_of(whole))


def _composed(site: Site, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """As ``aten::_scaled_dot_product_attention_math``: both sides are scaled by a root, the mask is added."""
    mask = _mask(site, query, key)
    if key.shape[-3:-2] != query.shape[-3:-2] and site.value("enable_gqa", False):
        key, value = (_repeated(site, x, query.shape[-3]) for x in (key, value))
    name = site.step.name
    scale = site.constant("scale", 1 / math.sqrt(value_of(query.shape[-1])))
    root = math.sqrt(abs(scale))
    query = site.layer(Scale(math.copysign(root, scale)), query, name=f"{name}.scale_query")
    key = site.layer(Scale(root), transposed(key, len(key.shape) - 2, len(key.shape) - 1), name=f"{name}.scale_key")
    batch = site.shape[:-2]
    query, key, value = (expanded(site, x, (*batch, *x.shape[-2:])) for x in (query, key, value))
    scores = site.layer(Matmul(), query, key, name=f"{name}.scores")
    if mask is not None:
        scores = site.layer(Add(), scores, mask, name=f"{name}.mask")
    weights = site.layer(Softmax(), scores, name=f"{name}.softmax")
    if p := _dropout(site):
        weights = site.layer(Dropout(p), weights, name=f"{name}.dropout")
    return site.layer(Matmul(), weights, value, name=f"{name}.mix")


def _mask(site: Site, query: Tensor, key: Tensor) -> Tensor | None:
    """What is added to the scores: a mask of truth values becomes one of numbers."""
    name = f"{site.step.name}.mask_numbers"
    if site.value("is_causal", False):
        return site.layer(Made((query.shape[-2], key.shape[-2])), name=name)
    if not site.has("attn_mask"):
        return None
    mask = site.tensor("attn_mask")
    return site.layer(Made(mask.shape), mask, name=name) if mask.storage.role == "mask" else mask


def _repeated(site: Site, x: Tensor, heads: int) -> Tensor:
    shape = (*x.shape[:-3], exact_div(heads, x.shape[-3]) * x.shape[-3], *x.shape[-2:])
    return site.layer(Copied(shape), x, name=f"{site.step.name}.repeat")


@rule("batch_norm")
def batch_norm(site: Site) -> Tensor:
    """By the batch's statistics, or by running ones."""
    if not site.has("running_mean"):
        return site.layer(BatchnormUntracked(site.has("weight")), site.tensor("input"), tied=tied(site))
    for name in ("running_mean", "running_var"):
        site.replay.taken(site.step.args[name]["tensor"])
    weights = tied(site)
    fixed = site.run.training and not site.value("training", True)
    kind = BatchnormFixed(bool(weights)) if fixed else Batchnorm(bool(weights))
    return site.layer(kind, site.tensor("input"), tied=weights)


@rule("layer_norm")
def layer_norm(site: Site) -> Tensor:
    """Over the last axes, which are seen as one."""
    x, weights = _rows(site)
    return site.layer(Layernorm("weight" in weights, "bias" in weights), x, tied=weights).view(site.shape, None)


def _rows(site: Site) -> tuple[Tensor, dict[str, Tensor]]:
    """The input with the axes that are normalised as its last, and weights of one axis."""
    x, weights = site.tensor("input"), tied(site)
    axes = len(site.value("normalized_shape"))
    if axes == 1:
        return x, weights
    size = product(x.shape[len(x.shape) - axes :])
    x = site.reshaped(x, (*x.shape[: len(x.shape) - axes], size))
    return x, {name: weight.view((size,), None) for name, weight in weights.items()}


@rule("rms_norm")
def rms_norm(site: Site) -> Tensor:
    """Over the last axes, which are seen as one."""
    x, weights = _rows(site)
    composed = site.run.device == "cpu" and x.has(site.shape)
    y = site.layer(Rmsnorm("weight" in weights), x, tied=weights)
    return y.view(site.shape, dense_strides(x.shape, x.strides) if composed else None)


@rule("group_norm")
def group_norm(site: Site) -> Tensor:
    """Over groups of channels."""
    weights = tied(site)
    return site.layer(Groupnorm(site.value("num_groups"), bool(weights)), site.tensor("input"), tied=weights)


@rule("instance_norm")
def instance_norm(site: Site) -> Tensor:
    """Batch norm of a batch of one, whose channels are those of all samples; weights are repeated for each."""
    if site.has("running_mean"):
        raise site.fail("with running statistics has no rule")
    x = site.tensor("input")
    b, c, *rest = x.shape
    x = site.reshaped(x, (1, b * c, *rest))
    name = site.step.name
    weights = {
        part: site.layer(Copied((b * c,)), site.tensor(part), name=f"{name}.{part}_of_each")
        for part in ("weight", "bias")
        if site.has(part)
    }
    y = site.layer(BatchnormUntracked(bool(weights)), x, tied=weights)
    return y.view((b, c, *rest), None)


REDUCED = ("none", "mean", "sum")
"""PyTorch's numbers of reductions."""


@rule("cross_entropy_loss")
def cross_entropy(site: Site) -> Tensor:
    """The mean over rows, of class indices; with weights of classes, or for each row, as its two parts."""
    x, target = site.tensor("self"), site.tensor("target")
    if len(x.shape) < 2 or target.storage.role != "index":
        raise site.fail("of one row, or with probabilities as targets, has no rule")
    if site.value("label_smoothing", 0.0):
        raise site.fail("with label smoothing has no rule")
    if not site.has("weight") and site.value("reduction", 1) == 1:
        return site.layer(CrossEntropy(), x, target)
    logarithms = site.layer(SoftmaxAlong(x.shape[1], logarithm=True), x, name=f"{site.step.name}.log_softmax")
    return site.layer(Picked(site.shape), logarithms, target, *weights(site, "weight"))


@rule("l1_loss")
def l1_loss(site: Site) -> Tensor:
    """The mean of absolute differences, as its parts."""
    name = site.step.name
    y = site.layer(Subtract(), site.tensor("self"), site.tensor("target"), name=f"{name}.difference")
    y = site.layer(Pointwise("abs"), y, name=f"{name}.abs")
    reduction = REDUCED[site.value("reduction", 1)]
    return y if reduction == "none" else site.layer(Reduce(reduction, ()), y)


@rule("mse_loss")
def mse_loss(site: Site) -> Tensor | list[Tensor]:
    """The mean over elements."""
    if site.value("reduction", 1) != 1 or site.tensor("target").requires_grad:
        return compared(site)
    return site.layer(MeanSquaredError(), site.tensor("self"), site.tensor("target"))


@rule(*(name for name in LOSSES if name != "mse_loss"))
def compared(site: Site) -> Tensor:
    """A loss between two tensors of one shape."""
    if site.value("log_target", False):
        raise site.fail("of a target of logarithms has no rule")
    kind = Compared(site.step.op, REDUCED[site.value("reduction", 1)])
    x, target = site.tensor("self"), site.tensor("target")
    y = site.layer(kind, x, target, *weights(site, "weight", "pos_weight"))
    like = target if site.step.op == "kl_div" else x
    return y.view(y.shape, dense_strides(like.shape, like.strides)) if like.has(y.shape) else y


def weights(site: Site, *names: str) -> list[Tensor]:
    """Those of these tensors that are given."""
    return [site.tensor(name) for name in names if site.has(name)]


@rule("nll_loss_nd", "nll_loss", "nll_loss2d")
def nll_loss(site: Site) -> Tensor:
    """The logarithm at the class of each row."""
    return site.layer(Picked(site.shape), site.tensor("self"), site.tensor("target"), *weights(site, "weight"))
