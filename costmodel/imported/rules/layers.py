"""Rules of operators that are layers: products with weights, convolutions, norms, tables, pools, losses."""

from __future__ import annotations

from costmodel.imported.products import Product
from costmodel.imported.reductions import REDUCTIONS, BatchnormFixed, Cumulate, Reduce, SoftmaxAlong
from costmodel.imported.rules.elementwise import extreme, made
from costmodel.imported.rules.shapes import expanded
from costmodel.imported.site import Site, rule, strides_of
from costmodel.layers.adaptive_pool import AdaptiveAvgPool, AdaptiveMaxPool
from costmodel.layers.arithmetic import Add
from costmodel.layers.attention import Softmax
from costmodel.layers.conv import Conv, ConvTranspose
from costmodel.layers.embedding import Embedding
from costmodel.layers.linear import Linear, Matmul
from costmodel.layers.loss import CrossEntropy, MeanSquaredError
from costmodel.layers.norm import Batchnorm, Groupnorm, Layernorm, Rmsnorm
from costmodel.layers.pool import AvgPool, MaxPool
from costmodel.sizes import product
from costmodel.tensor import Tensor


def tied(site: Site) -> dict[str, Tensor]:
    """Weight and bias, as far as there are."""
    return {name: site.weight(name) for name in ("weight", "bias") if site.has(name)}


@rule("linear")
def linear(site: Site) -> Tensor:
    """A linear layer."""
    weights = tied(site)
    return site.layer(Linear(weights["weight"].shape[0], site.has("bias")), site.tensor("input"), tied=weights)


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
    if len(b.shape) == 1:
        b = b.view((b.shape[0], 1), (strides_of(b)[0], 1))
    if len(a.shape) == 1:
        a = a.view((1, a.shape[0]), None)
    if len(b.shape) == 2:
        y = site.layer(Product(), a, b)
    else:
        batch = site.shape[: max(len(a.shape), len(b.shape)) - 2]
        a, b = (expanded(site, x, (*batch, *x.shape[-2:])) for x in (a, b))
        y = site.layer(Matmul(), a, b)
    return y.view(site.shape, None)


@rule("conv2d")
def conv(site: Site) -> Tensor:
    """A convolution over images."""
    weights = tied(site)
    shape = weights["weight"].shape
    padding = site.value("padding", 0)
    if len(site.tensor("input").shape) != 4 or isinstance(padding, str):
        raise site.fail("of one image without a batch, or with padding by name, has no rule")
    stride, padding, dilation = (_pair(site.value(name, 1)) for name in ("stride", "padding", "dilation"))
    kind = Conv(shape[0], (shape[2], shape[3]), stride, padding, dilation, site.value("groups", 1), site.has("bias"))
    return site.layer(kind, site.tensor("input"), tied=weights)


@rule("conv_transpose2d")
def conv_transpose(site: Site) -> Tensor:
    """A transposed convolution over images."""
    weights, groups = tied(site), site.value("groups", 1)
    shape = weights["weight"].shape
    names = ("stride", "padding", "output_padding", "dilation")
    stride, padding, beyond, dilation = (_pair(site.value(name, 1)) for name in names)
    kernel = (shape[2], shape[3])
    kind = ConvTranspose(shape[1] * groups, kernel, stride, padding, beyond, dilation, groups, site.has("bias"))
    return site.layer(kind, site.tensor("input"), tied=weights)


@rule("batch_norm")
def batch_norm(site: Site) -> Tensor:
    """By the batch's statistics, or by running ones."""
    if not site.has("running_mean"):
        raise site.fail("without running statistics has no rule")
    for name in ("running_mean", "running_var"):
        site.replay.taken(site.step.args[name]["tensor"])
    weights = tied(site)
    fixed = site.run.training and not site.value("training", True)
    kind = BatchnormFixed(bool(weights)) if fixed else Batchnorm(bool(weights))
    return site.layer(kind, site.tensor("input"), tied=weights)


@rule("layer_norm")
def layer_norm(site: Site) -> Tensor:
    """Over the last axes, which are seen as one."""
    x, weights = site.tensor("input"), tied(site)
    axes = len(site.value("normalized_shape"))
    size = product(x.shape[len(x.shape) - axes :])
    if axes > 1:
        x = site.reshaped(x, (*x.shape[: len(x.shape) - axes], size))
        weights = {name: weight.view((size,), None) for name, weight in weights.items()}
    y = site.layer(Layernorm("weight" in weights, "bias" in weights), x, tied=weights)
    return y.view(site.shape, None)


@rule("rms_norm")
def rms_norm(site: Site) -> Tensor:
    """Over the last axis."""
    if len(site.value("normalized_shape")) > 1:
        raise site.fail("over several axes has no rule")
    weights = tied(site)
    return site.layer(Rmsnorm("weight" in weights), site.tensor("input"), tied=weights)


@rule("group_norm")
def group_norm(site: Site) -> Tensor:
    """Over groups of channels."""
    weights = tied(site)
    return site.layer(Groupnorm(site.value("num_groups"), bool(weights)), site.tensor("input"), tied=weights)


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
    """Running sums."""
    x = site.tensor("self")
    return site.layer(Cumulate(), x) if site.role == "activation" else made(site, x)


@rule(*REDUCTIONS)
def reduce(site: Site) -> Tensor | list[Tensor]:
    """Over some axes, or all; largest and smallest along one come with their places."""
    x = site.tensor("self")
    if site.is_tensor("other"):
        return extreme(site)
    op = f"a{site.step.op}" if site.step.op in ("max", "min") and not site.has("dim") else site.step.op
    y = made(site, x) if site.role != "activation" else site.layer(Reduce(op, site.shape), x)
    if len(site.step.makes) == 1:
        return y
    places = site.run.tensor(site.replay.shape(site.step.makes[1].shape), "index")
    return [y, places]


@rule("max_pool2d")
def max_pool(site: Site) -> Tensor:
    """The largest of each window."""
    if any(d != 1 for d in _pair(site.value("dilation", 1))):
        raise site.fail("with dilation has no rule")
    return site.layer(MaxPool(*_window(site)), site.tensor("self"))


@rule("avg_pool2d")
def avg_pool(site: Site) -> Tensor:
    """The mean of each window."""
    return site.layer(AvgPool(*_window(site)), site.tensor("self"))


@rule("adaptive_avg_pool2d", "adaptive_max_pool2d")
def adaptive_pool(site: Site) -> Tensor | list[Tensor]:
    """To a size that is given."""
    kind = AdaptiveAvgPool if site.step.op == "adaptive_avg_pool2d" else AdaptiveMaxPool
    return site.layer(kind(_pair(site.value("output_size"))), site.tensor("self"))


def _window(site: Site) -> tuple[tuple[int, int], tuple[int, int] | None, tuple[int, int], bool]:
    stride = site.value("stride")
    kernel = _pair(site.value("kernel_size"))
    return kernel, _pair(stride) if stride else None, _pair(site.value("padding", 0)), site.value("ceil_mode", False)


def _pair(value: int | list[int]) -> tuple[int, int]:
    """(height, width)."""
    if isinstance(value, int):
        return value, value
    return (value[0], value[-1])


@rule("cross_entropy_loss")
def cross_entropy(site: Site) -> Tensor:
    """The mean over rows, of class indices."""
    x = site.tensor("self")
    if site.has("weight") or site.value("label_smoothing", 0.0) or site.value("reduction", 1) != 1 or len(x.shape) < 2:
        raise site.fail("with weights, smoothing, or another reduction than the mean has no rule")
    return site.layer(CrossEntropy(), x, site.tensor("target"))


@rule("mse_loss")
def mse_loss(site: Site) -> Tensor:
    """The mean over elements."""
    if site.value("reduction", 1) != 1:
        raise site.fail("with another reduction than the mean has no rule")
    return site.layer(MeanSquaredError(), site.tensor("self"), site.tensor("target"))
