"""Rules of operators over images, and over sequences and volumes as images: convolutions, pools, other sizes."""

from __future__ import annotations

from costmodel.graph.tensor import Shape, Tensor
from costmodel.importers.torch.site import Site, rule, strides_of, tied
from costmodel.layers.activation import Gated
from costmodel.layers.conv import Conv, Convolve, ConvTranspose
from costmodel.layers.pool import AdaptiveAvgPool, AdaptiveMaxPool, AvgPool, MaxPool
from costmodel.layers.resize import Columns, Padded, Resized


@rule("conv2d")
def conv(site: Site) -> Tensor:
    """A convolution over images."""
    weights = tied(site)
    shape = weights["weight"].shape
    padding = site.value("padding", 0)
    stride, dilation = (pair_of(site.value(name, 1)) for name in ("stride", "dilation"))
    padding = _same(site, shape[2:], dilation) if padding == "same" else pair_of(0 if padding == "valid" else padding)
    kind = Conv(shape[0], (shape[2], shape[3]), stride, padding, dilation, site.value("groups", 1), site.has("bias"))
    return site.layer(kind, site.tensor("input"), tied=weights)


@rule("conv_transpose2d")
def conv_transpose(site: Site) -> Tensor:
    """A transposed convolution over images."""
    weights, groups = tied(site), site.value("groups", 1)
    shape = weights["weight"].shape
    names = ("stride", "padding", "output_padding", "dilation")
    stride, padding, beyond, dilation = (pair_of(site.value(name, 1)) for name in names)
    kernel = (shape[2], shape[3])
    kind = ConvTranspose(shape[1] * groups, kernel, stride, padding, beyond, dilation, groups, site.has("bias"))
    return site.layer(kind, site.tensor("input"), tied=weights)


def _same(site: Site, kernel: Shape, dilation: tuple[int, int]) -> tuple[int, int]:
    """Padding that leaves sizes as they are, as much on one side as on the other."""
    spans = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    if any(span % 2 for span in spans):
        raise site.fail("with unequal padding has no rule")
    return spans[0] // 2, spans[1] // 2


@rule("conv1d", "conv3d", "conv_transpose1d", "conv_transpose3d", "convolution")
def convolve(site: Site) -> Tensor:
    """A convolution over any number of axes."""
    weights, transposed = tied(site), "transpose" in site.step.op or site.value("transposed", False)
    if site.value("padding") == "same" and any(
        d * (k - 1) % 2 for d, k in zip(site.value("dilation"), weights["weight"].shape[2:], strict=False)
    ):
        raise site.fail("with unequal padding has no rule")
    shapes = {name: weight.shape for name, weight in weights.items()}
    kind = Convolve(site.shape, shapes["weight"], site.has("bias"), site.value("groups", 1), transposed)
    return site.layer(kind, site.tensor("input"), tied=weights)


@rule("pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d")
def pad(site: Site) -> Tensor:
    """A rim of one number, or of the image's own."""
    mode = "constant" if site.step.op == "constant_pad_nd" else site.value("mode", site.step.op.split("_")[0])
    kept = mode.startswith(("reflect", "replic"))
    return site.layer(Padded(site.shape, kept), site.tensor("self"))


@rule(
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact2d"),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
)
def resize(site: Site) -> Tensor:
    """Another size, each pixel from some of the others."""
    op = site.step.op
    among = {"nearest": 1, "trilinear": 8, "bilinear": 4, "linear": 2, "bicubic": 16}
    return site.layer(
        Resized(site.shape, next(n for name, n in among.items() if name in op)),
        site.tensor("input" if site.is_tensor("input") else "self"),
    )


@rule("im2col", "col2im")
def columns(site: Site) -> Tensor:
    """Windows as columns, or columns as windows."""
    return site.layer(Columns(site.shape, site.step.op == "col2im"), site.tensor("self"))


@rule("glu")
def glu(site: Site) -> Tensor:
    """One half times the sigmoid of the other."""
    return site.layer(Gated(site.shape), site.tensor("self"))


@rule("max_pool2d")
def max_pool(site: Site) -> Tensor:
    """The largest of each window."""
    if any(d != 1 for d in pair_of(site.value("dilation", 1))):
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
    return site.layer(kind(pair_of(site.value("output_size"))), site.tensor("self"))


def _window(site: Site) -> tuple[tuple[int, int], tuple[int, int] | None, tuple[int, int], bool]:
    stride = site.value("stride")
    kernel = pair_of(site.value("kernel_size"))
    return (
        kernel,
        pair_of(stride) if stride else None,
        pair_of(site.value("padding", 0)),
        site.value("ceil_mode", False),
    )


def pair_of(value: int | list[int]) -> tuple[int, int]:
    """(height, width)."""
    if isinstance(value, int):
        return value, value
    return (value[0], value[-1])


@rule("max_pool1d", "avg_pool1d", "adaptive_avg_pool1d")
def pool_sequence(site: Site) -> Tensor:
    """As over an image of height one."""
    x = site.tensor("self")
    strides = strides_of(x)
    x = x.view((*x.shape[:-1], 1, x.shape[-1]), (*strides[:-1], x.shape[-1] * strides[-1], strides[-1]))

    def across(value: int | list[int], least: int) -> tuple[int, int]:
        return least, value if isinstance(value, int) else value[0]

    if site.step.op == "adaptive_avg_pool1d":
        y = site.layer(AdaptiveAvgPool(across(site.value("output_size"), 1)), x)
    else:
        kernel, stride = across(site.value("kernel_size"), 1), site.value("stride")
        window = (kernel, across(stride, 1) if stride else None, across(site.value("padding", 0), 0))
        kind = MaxPool if site.step.op == "max_pool1d" else AvgPool
        y = site.layer(kind(*window, site.value("ceil_mode", False)), x)
    return y.view(site.shape, None)
