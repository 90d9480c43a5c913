"""Rules of operators over images, and over sequences and volumes as images: convolutions, pools, other sizes."""

from __future__ import annotations

from typing import Any

from costmodel.graph.tensor import Shape, Tensor
from costmodel.importers.torch.op_call import OpCall, layer_rules, rule, tied
from costmodel.layers.activation import Gated
from costmodel.layers.conv import Conv, Convolve, ConvTranspose
from costmodel.layers.indexing import Computed, Gather
from costmodel.layers.pool import AdaptiveAvgPool, AvgPool, MaxPool
from costmodel.layers.resize import NEIGHBOURS, Columns, PadTo, Resize


@rule("conv2d")
def conv(op: OpCall) -> Tensor:
    """A convolution over images."""
    weights = tied(op)
    shape = weights["weight"].shape
    padding = op.value("padding", 0)
    stride, dilation = (pair_of(op.value(name, 1)) for name in ("stride", "dilation"))
    padding = _same(op, shape[2:], dilation) if padding == "same" else pair_of(0 if padding == "valid" else padding)
    kind = Conv(shape[0], (shape[2], shape[3]), stride, padding, dilation, op.value("groups", 1), op.has("bias"))
    return op.layer(kind, op.tensor("input"), tied=weights)


@rule("conv_transpose2d")
def conv_transpose(op: OpCall) -> Tensor:
    """A transposed convolution over images."""
    weights, groups = tied(op), op.value("groups", 1)
    shape = weights["weight"].shape
    names = ("stride", "padding", "output_padding", "dilation")
    stride, padding, beyond, dilation = (pair_of(op.value(name, 1)) for name in names)
    kernel = (shape[2], shape[3])
    kind = ConvTranspose(shape[1] * groups, kernel, stride, padding, beyond, dilation, groups, op.has("bias"))
    return op.layer(kind, op.tensor("input"), tied=weights)


def _same(op: OpCall, kernel: Shape, dilation: tuple[int, int]) -> tuple[int, int]:
    """Padding that leaves sizes as they are, as much on one side as on the other."""
    spans = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    if any(span % 2 for span in spans):
        raise op.fail("with unequal padding has no rule")
    return spans[0] // 2, spans[1] // 2


@rule("conv1d", "conv3d", "conv_transpose1d", "conv_transpose3d", "convolution")
def convolve(op: OpCall) -> Tensor:
    """A convolution over any number of axes."""
    weights, transposed = tied(op), "transpose" in op.step.op or op.value("transposed", False)
    if op.value("padding") == "same" and any(
        d * (k - 1) % 2 for d, k in zip(op.value("dilation"), weights["weight"].shape[2:], strict=False)
    ):
        raise op.fail("with unequal padding has no rule")
    shapes = {name: weight.shape for name, weight in weights.items()}
    kind = Convolve(op.shape, shapes["weight"], op.has("bias"), op.value("groups", 1), transposed)
    return op.layer(kind, op.tensor("input"), tied=weights)


MODES = {
    "reflection_pad1d": "reflect",
    "reflection_pad2d": "reflect",
    "replication_pad1d": "replicate",
    "replication_pad2d": "replicate",
}
"""Of operators for one mode of padding."""


@rule("pad", "constant_pad_nd", *MODES)
def pad(op: OpCall) -> Tensor:
    """A rim of one number, or of the image's own."""
    mode = op.value("mode", MODES.get(op.step.op, "constant"))
    widths = tuple(op.value("pad")) if mode == "circular" else ()
    return op.layer(PadTo(op.shape, mode, widths), op.tensor("self"))


@rule(
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *(f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
)
def resize(op: OpCall) -> Tensor:
    """Another size, each pixel from some of the others."""
    mode: Any = next(mode for mode in sorted(NEIGHBOURS, key=len, reverse=True) if mode in op.step.op)
    return op.layer(Resize(op.shape, mode), op.tensor("input" if op.is_tensor("input") else "self"))


layer_rules(
    {
        "im2col": (lambda op: Columns(op.shape), "self"),
        "col2im": (lambda op: Columns(op.shape, back=True), "self"),
        "glu": (lambda op: Gated(op.shape), "self"),
        "avg_pool2d": (lambda op: AvgPool(*_window(op)), "self"),
        "adaptive_avg_pool2d": (lambda op: AdaptiveAvgPool(pair_of(op.value("output_size"))), "self"),
    }
)


@rule("max_pool2d")
def max_pool(op: OpCall) -> Tensor:
    """The largest of each window."""
    if any(d != 1 for d in pair_of(op.value("dilation", 1))):
        raise op.fail("with dilation has no rule")
    return op.layer(MaxPool(*_window(op)), op.tensor("self"))


def _window(op: OpCall) -> tuple[tuple[int, int], tuple[int, int] | None, tuple[int, int], bool]:
    stride = op.value("stride")
    kernel = pair_of(op.value("kernel_size"))
    step, padding = pair_of(stride) if stride else None, pair_of(op.value("padding", 0))
    return kernel, step, padding, op.value("ceil_mode", False)


def pair_of(value: int | list[int]) -> tuple[int, int]:
    """(height, width)."""
    if isinstance(value, int):
        return value, value
    return (value[0], value[-1])


@rule("max_pool1d", "avg_pool1d", "adaptive_avg_pool1d")
def pool_sequence(op: OpCall) -> Tensor:
    """As over an image of height one."""
    x = op.tensor("self")
    if op.value("dilation", [1]) != [1]:
        places = op.layer(Computed(op.shape, "index", op.value("kernel_size")[0] - 1), x, name=f"{op.step.name}.places")
        return op.layer(Gather(op.shape, whole=True), x, places)
    x = x.unsqueeze(-2)

    def across(value: int | list[int], least: int) -> tuple[int, int]:
        return least, value if isinstance(value, int) else value[0]

    if op.step.op == "adaptive_avg_pool1d":
        y = op.layer(AdaptiveAvgPool(across(op.value("output_size"), 1)), x)
    else:
        kernel, stride = across(op.value("kernel_size"), 1), op.value("stride")
        window = (kernel, across(stride, 1) if stride else None, across(op.value("padding", 0), 0))
        kind = MaxPool if op.step.op == "max_pool1d" else AvgPool
        y = op.layer(kind(*window, op.value("ceil_mode", False)), x)
    return y.view(op.shape)
