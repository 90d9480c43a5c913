"""Rules of operators with derivatives of their own that are no common layers, such as forms, bags and grids."""

from __future__ import annotations

from typing import Literal

from costmodel.graph.tensor import Tensor, strides_of
from costmodel.importers.torch.op_call import OpCall, layer_rules, rule
from costmodel.importers.torch.program import TENSOR
from costmodel.importers.torch.rules.layers import dense_table, weights
from costmodel.layers.activation import RandomizedRelu
from costmodel.layers.arithmetic import CrossProduct
from costmodel.layers.embedding import EmbeddingBag
from costmodel.layers.forms import AffineGrid, Bilinear, Distances, GroupedMatmul
from costmodel.layers.function import PAIRED, Paired
from costmodel.layers.indexing import Computed, Gather, MaskedScatter
from costmodel.layers.loss import ClassMargin
from costmodel.layers.norm import Renorm, WeightNorm
from costmodel.layers.pool import AdaptiveMaxPool, Unpool, WindowMean
from costmodel.layers.reduction import LogCumsumExp, Reduce, Trace
from costmodel.layers.resize import GridSample, PadTo
from costmodel.layers.shape import Cat, Copy, PartSet
from costmodel.symbolic.sizes import peek, product


@rule(*PAIRED)
def paired(op: OpCall) -> Tensor:
    """A function of two tensors."""
    if not (op.is_tensor("self") and op.is_tensor("other")):
        raise op.fail("with a number has no rule")
    return op.layer(Paired(op.step.op), op.tensor("self"), op.tensor("other"))


layer_rules(
    {
        "logcumsumexp": (lambda op: LogCumsumExp(), "self"),
        "diag_embed": (lambda op: PadTo(op.shape), "self"),
        "trace": (lambda op: Trace(), "self"),
        "linalg_cross": (lambda op: CrossProduct(), "self other"),
        "max_unpool2d": (lambda op: Unpool(op.shape), "self indices"),
        "max_unpool3d": (lambda op: Unpool(op.shape), "self indices"),
        "multilabel_margin_loss": (lambda op: ClassMargin(op.shape, several=True), "self target"),
        "rrelu_with_noise": (
            lambda op: RandomizedRelu(op.value("training", False), op.step.changes == op.step.args["self"][TENSOR]),
            "self noise",
        ),
        "renorm": (lambda op: Renorm(op.axis(op.tensor("self"))), "self"),
        "masked_scatter": (lambda op: MaskedScatter(), "self source mask"),
        "take": (lambda op: Gather(op.shape, whole=True), "self index"),
    }
    | {f"{view}_scatter": (lambda op: PartSet(), "self src") for view in ("select", "slice", "diagonal", "as_strided")}
    | {
        "_weight_norm_interface": (lambda op: WeightNorm(), "v g"),
        "affine_grid_generator": (lambda op: AffineGrid(op.shape, op.value("align_corners")), "theta"),
        "_euclidean_dist": (lambda op: Distances(by_product=True), "x1 x2"),  # torch.cdist of more than 25 rows
    }
)


@rule("multi_margin_loss")
def class_margin(op: OpCall) -> Tensor:
    """Between a class and all others, perhaps squared, and weighed by the class."""
    kind = ClassMargin(op.shape, squared=op.value("p", 1) == 2)
    return op.layer(kind, op.tensor("self"), op.tensor("target"), *weights(op, "weight"))


@rule("block_diag")
def blocks(op: OpCall) -> Tensor:
    """Matrices one after another along both axes, with zeros beside them."""
    return op.layer(Cat(op.shape), *op.tensors("tensors"))


@rule("aminmax")
def extremes(op: OpCall) -> list[Tensor]:
    """The smallest and the largest."""
    x = op.tensor("self")
    return [op.layer(Reduce(f"a{name}", op.shape), x, name=f"{op.step.name}.{name}") for name in ("min", "max")]


@rule("embedding_renorm")
def table_normed(op: OpCall) -> Tensor:
    """Rows of a table that are read become no longer than a norm, out of autograd's sight."""
    table, places = op.tensor("self"), op.tensor("indices")
    work = 3 * peek(table.shape[1]) + 3  # squares, their sum, the product
    op.layer(Computed(places.shape, "statistic", work), table, places, name=op.step.name)
    return table


def _diagonal(op: OpCall, x: Tensor) -> Tensor:
    first, second = op.axis(x, "dim1", 0), op.axis(x, "dim2", 1)
    strides = strides_of(x)
    rest = [n for n in range(len(x.shape)) if n not in (first, second)]
    return op.part(x, op.shape, (*(strides[n] for n in rest), strides[first] + strides[second]))


@rule("diagonal")
def diagonal(op: OpCall) -> Tensor:
    """A view with a step along both axes at once."""
    return _diagonal(op, op.tensor("self"))


@rule("diagonal_copy")
def diagonal_copy(op: OpCall) -> Tensor:
    """A copy of it."""
    return op.layer(Copy(op.shape), _diagonal(op, op.tensor("self")))


@rule("rot90")
def rot90(op: OpCall) -> Tensor:
    """A copy; by a quarter with both axes exchanged."""
    x = op.tensor("self")
    y = op.layer(Copy(x.shape, ordered=True, moved=True), x)
    first, second = (axis % len(x.shape) for axis in op.value("dims"))
    return y.transpose(first, second) if op.value("k", 1) % 2 else y


@rule("adaptive_max_pool2d")
def adaptive_max_pool(op: OpCall) -> Tensor | list[Tensor]:
    """The largest of each window; where it was, if that is read."""
    if op.step.makes[1].name in op.replay.read:
        return max_pool(op)
    height, width = op.value("output_size")
    return op.layer(AdaptiveMaxPool((height, width)), op.tensor("self"))


@rule(
    *("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool3d"),
    *("fractional_max_pool2d", "fractional_max_pool3d"),
)
def max_pool(op: OpCall) -> list[Tensor]:
    """The largest of each window, and where it was."""
    x = op.tensor("self")
    kernel = op.value("kernel_size")
    among = product(kernel * (len(x.shape) - 2) if len(kernel) == 1 else kernel) if kernel else _mean_window(op, x)
    places = op.layer(Computed(op.shape, "index", max(among - 1, 0)), x, name=f"{op.step.name}.places")
    return [op.layer(Gather(op.shape, whole=True), x, places), places]


def _mean_window(op: OpCall, x: Tensor) -> int:
    """Numbers in a window that adapts, on average and at least."""
    return peek(_terms(op, x)) // peek(product(op.shape))


@rule("avg_pool3d", "_adaptive_avg_pool3d")
def mean_pool(op: OpCall) -> Tensor:
    """The mean of each window."""
    x = op.tensor("self")
    kernel = op.value("kernel_size")
    if kernel:
        window = product(kernel * 3 if len(kernel) == 1 else kernel)
        return op.layer(WindowMean(op.shape, window * product(op.shape)), x)
    return op.layer(WindowMean(op.shape, _terms(op, x)), x)


def _terms(op: OpCall, x: Tensor) -> int:
    """Numbers in all windows that adapt: from ⌊i n/m⌋ to ⌈(i + 1) n/m⌉ each (``at::native::start_index``)."""
    *outer, _, _, _ = op.shape
    terms = product(outer)
    for size, places in zip(x.shape[-3:], op.shape[-3:], strict=True):
        n, m = peek(size), peek(places)
        terms = terms * sum(-(-(i + 1) * n // m) - i * n // m for i in range(m))
    return terms


MODES: tuple[Literal["sum", "mean", "max"], ...] = ("sum", "mean", "max")
"""PyTorch's numbers of them."""


@rule("_embedding_bag")
def embedding_bag(op: OpCall) -> Tensor:
    """Sums, means or maxima of rows; what else it returns is its own."""
    table = dense_table(op)
    entries, features = table.shape
    kind = EmbeddingBag(entries, features, op.shape[0], MODES[op.value("mode", 0)])
    weights = [op.tensor("per_sample_weights")] if op.has("per_sample_weights") else []
    return op.layer(kind, op.tensor("indices"), op.tensor("offsets"), *weights, tied={"weight": table})


@rule("grid_sampler_2d", "grid_sampler_3d")
def grid_sample(op: OpCall) -> Tensor:
    """Between four or eight neighbours, or the nearest."""
    mode = op.value("interpolation_mode")
    if mode > 1:
        raise op.fail("with bicubic interpolation has no rule")
    return op.layer(GridSample(op.shape, mode == 1), op.tensor("input"), op.tensor("grid"))


@rule("_trilinear")
def trilinear(op: OpCall) -> Tensor:
    """As `bilinear` calls it: both sides and the form."""
    if op.value("sumdim") != [2, 3]:
        raise op.fail("that sums over other axes than a bilinear form does has no rule")
    return op.layer(Bilinear(), *(op.tensor(name) for name in ("i1", "i3", "i2")))


@rule("_cdist_forward")
def distances(op: OpCall) -> Tensor:
    """By differences."""
    p = op.constant("p")
    if p not in (1.0, 2.0):
        raise op.fail(f"with p = {p:g} has no rule")
    return op.layer(Distances(squares=p == 2.0), op.tensor("x1"), op.tensor("x2"))


@rule("_grouped_mm")
def grouped(op: OpCall) -> Tensor:
    """Rows by groups, times a matrix each."""
    x, w = op.tensor("self"), op.tensor("mat2")
    if not op.has("offs") or len(w.shape) != 3 or len(x.shape) != 2:
        raise op.fail("of other shapes than rows and a matrix for each group has no rule")
    ends = op.tensor("offs")
    if ends.storage not in op.replay.narrow:  # whole numbers of four bytes each, as a statistic has
        numbers = op.layer(Computed(ends.shape, "statistic"), ends, name=f"{op.step.name}.ends")
        op.replay.narrow[ends.storage] = numbers
    return op.layer(GroupedMatmul(), x, w, op.replay.narrow[ends.storage])


@rule("hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window")
def window(op: OpCall) -> Tensor:
    """Numbers; periodic ones are all but the last of one more."""
    if not op.value("periodic", True):
        return op.layer(Computed(op.shape), name=op.step.name)
    return op.part(op.layer(Computed((op.shape[0] + 1,)), name=f"{op.step.name}.whole"), op.shape, (1,))
