"""Rules of operators that are layers: products, tables, attention, norms, losses, reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from costmodel.errors import SettingError
from costmodel.graph.tensor import Shape, Tensor, dense_strides, is_contiguous, strides_of
from costmodel.importers.torch.op_call import OpCall, rule, tied
from costmodel.importers.torch.rules.elementwise import computed, extreme
from costmodel.importers.torch.rules.shapes import expanded
from costmodel.layers.arithmetic import Add, Dropout, Multiply, Scale, Subtract
from costmodel.layers.attention import FusedAttention, Softmax, visible_pairs
from costmodel.layers.complex import ComplexArithmetic
from costmodel.layers.embedding import Embedding
from costmodel.layers.function import Pointwise
from costmodel.layers.indexing import Computed, Gather
from costmodel.layers.linear import Linear, Matmul
from costmodel.layers.loss import LOSSES, Compared, CrossEntropy, MeanSquaredError, NllLoss
from costmodel.layers.norm import Batchnorm, BatchnormFixed, BatchnormUntracked, Groupnorm, Layernorm, Rmsnorm
from costmodel.layers.reduction import REDUCTIONS, Cumprod, Cumulate, Reduce
from costmodel.layers.resize import PadTo
from costmodel.layers.shape import Copy
from costmodel.layers.spatial import channels_last
from costmodel.symbolic.sizes import ceil_div, exact_div, peek, product
from costmodel.training.dtypes import REAL


@rule("addmm", "mm", "matmul", "bmm", "mv", "dot", "vdot", "baddbmm")
def matmul(op: OpCall) -> Tensor:
    """A product: of a matrix with rows, or of batches of matrices."""
    added = op.step.op in ("addmm", "baddbmm")
    known = {"mat1", "mat2", "batch1", "batch2", "self", "vec", "tensor", "other"}
    first, second = [name for name in op.step.args if name in known and not (name == "self" and added)]
    a, b = op.tensor(first), op.tensor(second)
    if op.step.op == "addmm":
        scaled, added_scaled = (op.constant(name, 1.0) != 1 for name in ("alpha", "beta"))
        return op.layer(Matmul(scaled=scaled, added_scaled=added_scaled), a, b, op.tensor("self"))
    if op.step.op == "baddbmm":
        y = op.layer(Add(), op.tensor("self"), op.layer(Matmul(), a, b, name=f"{op.step.name}.product"))
        return y.view(y.shape)
    return multiplied(op, a, b)


@rule("addr")
def added_outer(op: OpCall) -> Tensor:
    """A sum with each element of a vector times each of another."""
    if op.constant("alpha", 1.0) != 1 or op.constant("beta", 1.0) != 1:
        raise op.fail("with factors has no rule")
    a, b = op.tensor("vec1"), op.tensor("vec2")
    return op.layer(Add(), op.tensor("self"), op.layer(Multiply(), a.unsqueeze(1), b, name=f"{op.step.name}.product"))


@rule("addmv")
def added_rows(op: OpCall) -> Tensor:
    """A sum with a matrix times a vector."""
    if op.constant("alpha", 1.0) != 1 or op.constant("beta", 1.0) != 1:
        raise op.fail("with factors has no rule")
    product = op.layer(
        Matmul(vector=True), op.tensor("mat"), op.tensor("vec").unsqueeze(1), name=f"{op.step.name}.product"
    )
    return op.layer(Add(), op.tensor("self"), product.view(op.shape))


@rule("inner")
def inner(op: OpCall) -> Tensor:
    """Products along the last axes, as one of two matrices; of vectors ``torch.dot``."""
    a, b = op.tensor("self"), op.tensor("other")
    if len(a.shape) == len(b.shape) == 1:
        return multiplied(op, a, b)
    b = b.permute((len(b.shape) - 1, *range(len(b.shape) - 1)))
    b = op.reshaped(b, (b.shape[0], product(b.shape[1:])))
    a = a if len(a.shape) > 1 else a.view((1, *a.shape), (0, *strides_of(a)))
    alone = product(op.shape) == 1  # a dot product, which FlopCounterMode does not count
    return op.layer(Matmul(vector=alone), a, b).view(op.shape)


def multiplied(op: OpCall, a: Tensor, b: Tensor) -> Tensor:
    """``torch.matmul``: vectors are matrices of one row or column, batches broadcast."""
    vector = len(b.shape) == 1
    if len(b.shape) > max(len(a.shape), 2) and _folds(a, b):
        turned = b.transpose(len(b.shape) - 2, len(b.shape) - 1)
        if len(a.shape) == 1:
            return op.layer(Matmul(vector=True), turned, a.unsqueeze(1)).view(op.shape)
        y = op.layer(Matmul(), turned, a.transpose(0, 1), name=f"{op.step.name}.product")
        return op.layer(Copy(op.shape), y.transpose(len(y.shape) - 2, len(y.shape) - 1))
    folds = len(b.shape) <= 2 and (len(a.shape) <= 2 or _folds(a, b))
    if len(a.shape) == 1:
        a = a.unsqueeze(0)
    b = b.unsqueeze(1) if vector else b
    if folds:
        return op.layer(Matmul(vector=vector), a, b).view(op.shape)
    batch = op.shape[: max(len(a.shape), len(b.shape)) - 2]
    a, b = (expanded(op, x, (*batch, *x.shape[-2:])) for x in (a, b))
    return op.layer(Matmul(), a, b).view(op.shape)


def _folds(a: Tensor, b: Tensor) -> bool:
    """Whether a batch of matrices is multiplied by one matrix or vector as rows (``at::native::should_fold``)."""
    large, small = (a, b) if len(a.shape) >= len(b.shape) else (b.transpose(len(b.shape) - 2, len(b.shape) - 1), a)
    if len(large.shape) < 3 or len(small.shape) > 2:
        return False
    if small.requires_grad or len(a.shape) == 2:
        return small.requires_grad
    shape, strides = large.shape, strides_of(large)
    return all(strides[n] == strides[n + 1] * shape[n + 1] for n in range(len(shape) - 2))


@rule("outer", "ger")
def outer(op: OpCall) -> Tensor:
    """Each element of a vector times each of another."""
    a, b = op.tensor("self"), op.tensor("vec2")
    return op.layer(Multiply(), a.unsqueeze(1), b)


@rule("einsum")
def einsum(op: OpCall) -> Tensor:
    """Operands are multiplied in pairs, each as one batched product of matrices (``at::einsum``)."""
    left, arrow, result = op.value("equation").replace(" ", "").partition("->")
    if "." in left:
        raise op.fail("with ellipses has no rule")
    names, operands = left.split(","), op.tensors("tensors")
    if any(len(set(letters)) != len(letters) for letters in names):
        raise op.fail("of diagonals has no rule")
    every = sorted(set(left) - {","})
    result = result if arrow else "".join(n for n in every if left.count(n) == 1)
    order = result + "".join(n for n in every if n not in result)
    terms = [_Term("", x).ordered(letters, order) for letters, x in zip(names, operands, strict=True)]
    sums = _Sums(op, order, {n: sum(n in term.spread for term in terms) for n in every if n not in result})
    path = iter(op.value("path") or [0, 1] * len(terms))
    while len(terms) > 1:
        i, j = sorted((next(path), next(path)))
        b, a = terms.pop(j), terms.pop(i)
        pair = sums.pair(a, b)
        terms.insert(len(terms) if op.has("path") else 0, pair)
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
        wanted = "".join(n for n in order if n in letters)
        return _Term(wanted, x if wanted == letters else x.permute([letters.index(n) for n in wanted]))


class _Sums:
    """Pairs of terms, with the letters to sum over and in how many terms each is left."""

    def __init__(self, op: OpCall, order: str, left: dict[str, int]) -> None:
        self.op = op
        self.order = order
        self.left = left

    def summed(self, term: _Term, letters: Sequence[str]) -> _Term:
        """Without some axes, over which it is summed where they are more than one."""
        rest = "".join(n for n in term.letters if n not in letters)
        shape = tuple(term.sizes[n] for n in rest)
        if not set(letters) & set(term.spread):
            return _Term(rest, self.op.reshaped(term.tensor, shape))
        return _Term(rest, self.op.layer(Reduce("sum", shape), term.tensor, name=f"{self.op.step.name}.sum"))

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
        return _Term(letters, self.op.layer(ComplexArithmetic("mul") if x.dtype in REAL else Multiply(), x, y))

    def _seen(self, term: _Term, letters: str) -> tuple[Shape, Shape]:
        """Shape and strides with an axis of one for each letter that it lacks."""
        strides = dict(zip(term.letters, strides_of(term.tensor), strict=True))
        return tuple(term.sizes.get(n, 1) for n in letters), tuple(strides.get(n, 1) for n in letters)

    def _product(self, a: _Term, b: _Term, both: str) -> _Term:
        """``at::sumproduct_pair``: one batched product of (batch, rows, summed) and (batch, summed, columns)."""
        sizes = {**b.sizes, **a.sizes, **{n: b.sizes[n] for n in b.spread}}
        saved = "".join(n for n in self.order if n in sizes and n not in both)
        batch = "".join(n for n in saved if n in a.spread and n in b.spread)
        rows = "".join(n for n in saved if n in a.spread and n not in batch)
        columns = "".join(n for n in saved if n not in batch + rows)
        others = [self.order.index(n) for n in self.order if n not in batch + rows + both]
        if rows and columns and max(others) < min(self.order.index(n) for n in rows):
            a, b, rows, columns = b, a, columns, rows  # so that the result comes in order

        def shape(*groups: str) -> Shape:
            return tuple(product(sizes[n] for n in group) for group in groups)

        def matrices(term: _Term, *groups: str) -> Tensor:
            wanted = "".join(groups)
            flat = term.tensor.view(*self._seen(term, wanted))
            return self.op.reshaped(flat, shape(*groups))

        x = matrices(self._only(a, batch + rows + both), batch, rows, both)
        y = matrices(self._only(b, batch + both + columns), batch, both, columns)
        matrix = self.op.layer(Matmul(), x, y).view(shape(*(batch + rows + columns)))
        return _Term(batch + rows + columns, matrix).ordered(None, self.order)

    def _only(self, term: _Term, letters: str) -> _Term:
        """Without axes of one that are not among letters."""
        return self.summed(term, [n for n in term.letters if n not in letters])


@rule("linear")
def linear(op: OpCall) -> Tensor:
    """A linear layer."""
    weights = tied(op)
    return op.layer(Linear(weights["weight"].shape[0], op.has("bias")), op.tensor("input"), tied=weights)


@rule("embedding")
def embedding(op: OpCall) -> Tensor:
    """Rows of a table."""
    table = dense_table(op)
    return op.layer(Embedding(*table.shape), op.tensor("indices"), tied={"weight": table})


def dense_table(op: OpCall) -> Tensor:
    """A table of embeddings, whose gradient is as large as it is."""
    table = op.weight("weight")
    if op.value("sparse", False) and table.requires_grad:
        raise op.fail("with sparse gradients has no rule: leave sparse=True out")
    return table


@rule("softmax", "log_softmax", "special_softmax", "_softmax", "_log_softmax")
def softmax(op: OpCall) -> Tensor:
    """Along any axis."""
    x = op.tensor("self")
    axis = op.axis(x)
    logarithm = op.step.op.removeprefix("_") == "log_softmax"
    return op.layer(Softmax(None if axis == len(x.shape) - 1 else axis, logarithm), x)


@rule("cumsum", "cumprod")
def cumulate(op: OpCall) -> Tensor:
    """Running sums, or products."""
    x = op.tensor("self")
    kind = Cumulate() if op.step.op == "cumsum" else Cumprod()
    return op.layer(kind, x) if op.role == "activation" else computed(op, x)


@rule(*REDUCTIONS)
def reduce(op: OpCall) -> Tensor | list[Tensor]:
    """Over some axes, or all; largest and smallest along one come with their places."""
    x = op.tensor("self")
    if op.is_tensor("other"):
        return extreme(op)
    function = op.step.op
    if len(op.step.makes) == 2:
        shape = op.shapes[1]
        places = op.layer(Computed(shape, "index", 1), x, name=f"{op.step.name}.places")
        return [op.layer(Gather(op.shape), x, places), places]
    if op.role != "activation":
        counts = function == "sum" and x.storage.role == "mask"  # whole numbers are summed (make_reduction)
        return computed(op, op.layer(Computed(x.shape, "index"), x, name=f"{op.step.name}.counts") if counts else x)
    orders = {"norm": "p", "linalg_vector_norm": "ord"}
    kind = Reduce(function, op.shape, op.constant(orders[function], 2.0) if function in orders else 2.0)
    return op.layer(kind, x)


@rule("scaled_dot_product_attention")
def attention(op: OpCall) -> Tensor:
    """As the question's setting `attention` says; fused where all heads are of one size and there are four axes."""
    query, key, value = (op.tensor(name) for name in ("query", "key", "value"))
    with op.tape.part("core"):
        if len(query.shape) != 4 or key.shape != value.shape or not _fuses(op):
            return _composed(op, query, key, value)
        return _fused(op, query, key, value)


def _fuses(op: OpCall) -> bool:
    """Whether a kernel was asked for that can do it: the CPU's has no dropout, nor masks of three axes or trained."""
    kernel = op.replay.attention.kernel
    if kernel == "eager" or not op.has("attn_mask"):
        return kernel != "eager" and not (op.tape.device == "cpu" and _dropout(op))
    mask = op.tensor("attn_mask")
    if op.tape.device == "cpu":
        return len(mask.shape) in (2, 4) and not mask.requires_grad and not _dropout(op)
    if kernel == "flash":
        where = ".".join((*op.step.path, op.step.name))
        raise SettingError(f"attention='flash' takes no mask, as {where} has: use 'efficient' or 'eager'")
    return True


def _dropout(op: OpCall) -> float:
    return op.value("dropout_p", 0.0) if op.tape.training else 0.0


def _fused(op: OpCall, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    kernel = op.replay.attention.kernel
    assert kernel != "eager"
    scale = op.constant("scale") if op.has("scale") else None
    causal = op.has("is_causal") and op.value("is_causal", False) and query.shape[2] == key.shape[2]
    seen = visible_pairs(query.shape[2], causal=True, window=None) if causal else None
    kind = FusedAttention("cpu" if op.tape.device == "cpu" else kernel, _dropout(op), scale=scale, seen=seen)
    mask = _mask(op, query, key) if op.has("attn_mask") else None
    if mask is None:
        return op.layer(kind, query, key, value)
    return op.layer(kind, query, key, value, mask if op.tape.device == "cpu" else _aligned(op, mask))


def _aligned(op: OpCall, mask: Tensor) -> Tensor:
    """A mask as the efficient kernel takes it: rows of memory are multiples of eight long (``at::pad_bias``)."""
    *rest, keys = mask.shape
    padded = (*rest, 8 * ceil_div(keys, 8))
    if mask.has(padded):
        return mask
    whole = op.layer(PadTo(padded), mask, name=f"{op.step.name}.mask_padded")
    return op.part(whole, mask.shape, strides_of(whole))


def _composed(op: OpCall, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """As ``aten::_scaled_dot_product_attention_math``: both sides are scaled by a root, the mask is added."""
    mask = _mask(op, query, key)
    if key.shape[-3:-2] != query.shape[-3:-2] and op.value("enable_gqa", False):
        key, value = (_repeated(op, x, query.shape[-3]) for x in (key, value))
    name = op.step.name
    scale = op.constant("scale", 1 / math.sqrt(peek(query.shape[-1])))
    root = math.sqrt(abs(scale))
    query = op.layer(Scale(math.copysign(root, scale)), query, name=f"{name}.scale_query")
    key = op.layer(Scale(root), key.transpose(len(key.shape) - 2, len(key.shape) - 1), name=f"{name}.scale_key")
    batch = op.shape[:-2]
    query, key, value = (expanded(op, x, (*batch, *x.shape[-2:])) for x in (query, key, value))
    scores = op.layer(Matmul(), query, key, name=f"{name}.scores")
    if mask is not None:
        scores = op.layer(Add(), scores, mask, name=f"{name}.mask")
    weights = op.layer(Softmax(), scores, name=f"{name}.softmax")
    if p := _dropout(op):
        weights = op.layer(Dropout(p), weights, name=f"{name}.dropout")
    return op.layer(Matmul(), weights, value, name=f"{name}.mix")


def _mask(op: OpCall, query: Tensor, key: Tensor) -> Tensor | None:
    """What is added to the scores: a mask of truth values becomes one of numbers."""
    name = f"{op.step.name}.mask_numbers"
    if op.value("is_causal", False):
        return op.layer(Computed((query.shape[-2], key.shape[-2])), name=name)
    if not op.has("attn_mask"):
        return None
    mask = op.tensor("attn_mask")
    return op.layer(Computed(mask.shape), mask, name=name) if mask.storage.role == "mask" else mask


def _repeated(op: OpCall, x: Tensor, heads: int) -> Tensor:
    shape = (*x.shape[:-3], exact_div(heads, x.shape[-3]) * x.shape[-3], *x.shape[-2:])
    return op.layer(Copy(shape), x, name=f"{op.step.name}.repeat")


@rule("batch_norm")
def batch_norm(op: OpCall) -> Tensor:
    """By the batch's statistics, or by running ones."""
    weights = _scale(op)
    affine = bool(weights), "bias" in weights
    if not op.has("running_mean"):
        return _shifted(op, op.layer(BatchnormUntracked(*affine), op.tensor("input"), tied=weights), axis=1)
    again = [op.replay.taken(op.step.args[name]["tensor"]) for name in ("running_mean", "running_var")]
    fixed = op.tape.training and not op.value("training", True)
    kind = BatchnormFixed(*affine) if fixed else Batchnorm(*affine)
    y = op.layer(kind, op.tensor("input"), tied=weights)
    if any(again) and y.maker is not None:
        for buffer in y.maker.buffers.values():  # those that its first call has
            del op.tape.buffers[buffer.storage]
    return _shifted(op, y, axis=1)


def _scale(op: OpCall) -> dict[str, Tensor]:
    """The weight and bias that a norm holds: none without a weight."""
    return tied(op) if op.has("weight") else {}


def _shifted(op: OpCall, y: Tensor, axis: int | None = None) -> Tensor:
    """The result of a norm, to which a bias that comes without a weight is added, along one axis or the last ones."""
    if op.has("weight") or not op.has("bias"):
        return y
    bias = op.tensor("bias")
    if axis is not None:
        bias = bias.view((*bias.shape, *(1 for _ in y.shape[axis + 1 :])))
    return op.layer(Add(), y, bias, name=f"{op.step.name}.shift")


@rule("layer_norm")
def layer_norm(op: OpCall) -> Tensor:
    """Over the last axes, which are seen as one."""
    x, weights = _rows(op)
    y = op.layer(Layernorm("weight" in weights, "bias" in weights), x, tied=weights).view(op.shape)
    return _shifted(op, y)


def _rows(op: OpCall) -> tuple[Tensor, dict[str, Tensor]]:
    """The input with the axes that are normalised as its last, and weights of one axis."""
    x, weights = op.tensor("input"), _scale(op)
    axes = len(op.value("normalized_shape"))
    if axes == 1:
        return x, weights
    size = product(x.shape[len(x.shape) - axes :])
    x = op.reshaped(x, (*x.shape[: len(x.shape) - axes], size))
    return x, {name: weight.view((size,)) for name, weight in weights.items()}


@rule("rms_norm")
def rms_norm(op: OpCall) -> Tensor:
    """Over the last axes, which are seen as one."""
    x, weights = _rows(op)
    composed = op.tape.device == "cpu" and x.has(op.shape)
    y = op.layer(Rmsnorm("weight" in weights), x, tied=weights)
    return y.view(op.shape, dense_strides(x.shape, x.strides) if composed else None)


@rule("group_norm")
def group_norm(op: OpCall) -> Tensor:
    """Over groups of channels."""
    weights = _scale(op)
    kind = Groupnorm(op.value("num_groups"), bool(weights), "bias" in weights)
    return _shifted(op, op.layer(kind, _in_order(op, op.tensor("input")), tied=weights), axis=1)


def _in_order(op: OpCall, x: Tensor) -> Tensor:
    """`x` as group norm reads it: itself if memory runs in order, or on a CPU with its channels last, else a copy."""
    if is_contiguous(x.shape, x.strides) or (op.tape.device == "cpu" and channels_last(x)):
        return x
    return op.layer(Copy(x.shape), x, name=f"{op.step.name}.input")


@rule("instance_norm")
def instance_norm(op: OpCall) -> Tensor:
    """Batch norm of a batch of one, whose channels are those of all samples; weights are repeated for each.

    Running statistics are repeated too, which is kept, and followed by their means over the samples.
    """
    x = op.tensor("input")
    b, c, *rest = x.shape
    x = op.reshaped(x, (1, b * c, *rest))
    name = op.step.name
    weights = {
        part: op.layer(Copy((b * c,)), op.tensor(part), name=f"{name}.{part}_of_each")
        for part in ("weight", "bias")
        if op.has("weight") and op.has(part)
    }
    tracked = op.has("running_mean")
    fixed = tracked and not (op.tape.training and op.value("use_input_stats", True))
    kind = (BatchnormFixed if fixed else BatchnormUntracked)(bool(weights), "bias" in weights)
    y = op.layer(kind, x, tied=weights)
    if (call := y.maker) is not None and tracked:
        for buffer in call.buffers.values():  # its own are those of one sample
            del op.tape.buffers[buffer.storage]
        if call.differentiated:
            call.saved = (*call.saved, *(call.fresh("statistic", b * c) for _ in range(2)))
    for part in ("running_mean", "running_var") if tracked and not fixed else ():
        op.layer(Computed((c,), "statistic", b + 6), op.tensor(part), name=f"{name}.{part}")
    return _shifted(op, y.view((b, c, *rest)), axis=1)


REDUCED = ("none", "mean", "sum")
"""PyTorch's numbers of reductions."""


@rule("cross_entropy_loss")
def cross_entropy(op: OpCall) -> Tensor:
    """The mean over rows, of class indices; with weights of classes, or for each row, as its two parts."""
    x, target = op.tensor("self"), op.tensor("target")
    if len(x.shape) < 2 or target.storage.role != "index":
        raise op.fail("of one row, or with probabilities as targets, has no rule")
    if op.value("label_smoothing", 0.0):
        raise op.fail("with label smoothing has no rule")
    if not op.has("weight") and op.value("reduction", 1) == 1:
        return op.layer(CrossEntropy(), x, target)
    logarithms = op.layer(Softmax(1, logarithm=True), x, name=f"{op.step.name}.log_softmax")
    return op.layer(NllLoss(op.shape), logarithms, target, *weights(op, "weight"))


@rule("l1_loss")
def l1_loss(op: OpCall) -> Tensor:
    """The mean of absolute differences, as its parts."""
    name = op.step.name
    y = op.layer(Subtract(), op.tensor("self"), op.tensor("target"), name=f"{name}.difference")
    y = op.layer(Pointwise("abs"), y, name=f"{name}.abs")
    reduction = REDUCED[op.value("reduction", 1)]
    return y if reduction == "none" else op.layer(Reduce(reduction, ()), y)


@rule("mse_loss")
def mse_loss(op: OpCall) -> Tensor | list[Tensor]:
    """The mean over elements."""
    if op.value("reduction", 1) != 1 or op.tensor("target").requires_grad:
        return compared(op)
    return op.layer(MeanSquaredError(), op.tensor("self"), op.tensor("target"))


@rule(*(name for name in LOSSES if name != "mse_loss"))
def compared(op: OpCall) -> Tensor:
    """A loss between two tensors of one shape."""
    if op.value("log_target", False):
        raise op.fail("of a target of logarithms has no rule")
    kind = Compared(op.step.op, REDUCED[op.value("reduction", 1)], op.has("pos_weight"))
    x, target = op.tensor("self"), op.tensor("target")
    y = op.layer(kind, x, target, *weights(op, "weight", "pos_weight"))
    like = target if op.step.op == "kl_div" else x
    return y.view(y.shape, dense_strides(like.shape, like.strides)) if like.has(y.shape) else y


def weights(op: OpCall, *names: str) -> list[Tensor]:
    """Those of these tensors that are given."""
    return [op.tensor(name) for name in names if op.has(name)]


@rule("nll_loss_nd", "nll_loss", "nll_loss2d", "nll_loss_forward", "nll_loss2d_forward")
def nll_loss(op: OpCall) -> Tensor:
    """The logarithm at the class of each row."""
    return op.layer(NllLoss(op.shape), op.tensor("self"), op.tensor("target"), *weights(op, "weight"))
