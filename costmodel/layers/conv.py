"""Convolutions over images, and over any number of axes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from costmodel.graph.call import Call, Gradient, GradientOrder, Weights
from costmodel.graph.kernel import Kernel, Product
from costmodel.graph.tensor import Shape, Storage, Tensor
from costmodel.layers.base import Shaped, WeightProduct, layer
from costmodel.layers.kernels import distinct_bytes_of, scale_bytes, stream
from costmodel.layers.spatial import Spatial, check_window, order_of_images, slide
from costmodel.symbolic.sizes import exact_div, product
from costmodel.training.fields import Pair, pair


class Convolving(WeightProduct):
    """Abstract: weights that meet every window; `groups` of channels that do not see each other.

    transposed: whether windows lie over the output, and not over the input. W: (own, other/groups, window...), whose
    own channels lie at the places where windows are: the output's, or in a transpose the input's. FlopCounterMode
    counts the weight's gradient as if the groups saw each other: `groups` times too many.
    """

    sort = "convolution"

    groups: int
    bias: bool
    transposed: bool

    def views_gradient(self, call: Call, x: Tensor) -> bool:
        return False

    def gradient_copy(self, call: Call) -> int:
        return call.y.size

    def gradient_order(self, call: Call, x: Tensor) -> GradientOrder:
        return order_of_images(x)

    def gradient_axes(self, call: Call) -> int | None:
        return None

    def sizes(self, call: Call) -> Product:
        """Each output, or in the transpose each input, meets its window and the channels of its group."""
        channels, *met = call.weights["weight"].shape
        samples, _, *axes = (call.x if self.transposed else call.y).shape
        return Product(1, product((samples, *axes)), channels, product(met))

    def products(self, call: Call) -> tuple[Product, Product, Product]:
        """A batch of its groups."""
        _, places, channels, _ = self.sizes(call)
        _, other, *window = call.weights["weight"].shape
        own, size, groups = exact_div(channels, self.groups), product(window), self.groups
        gathers, spreads = Product(groups, places, own, other * size), Product(groups, places, other, own * size)
        of_weight = Product(groups, own, other * size, places)
        return (spreads, gathers, of_weight) if self.transposed else (gathers, spreads, of_weight)

    def backward(self, call: Call) -> Iterable[Gradient]:
        weight = call.weights["weight"]
        for x, work, _ in super().backward(call):
            counted = self.groups * work.contractions if x is weight else None
            yield Gradient(x, work._replace(counted=counted))

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """The convolution, and the bias by a kernel of its own: cuDNN's has none, but PyTorch's depthwise one does."""
        sizes, bias = self.products(call)[0], call.weights.get("bias")
        depthwise = sizes.batch == call.x.shape[1] and len(call.x.shape) == 4
        separate = None if depthwise else bias
        read = distinct_bytes_of(x for x in call.operands() if x is not separate) + scale_bytes(call)
        flops = sizes.flops + (call.y.size if bias is not None and depthwise else 0)
        yield Kernel(self.kind, self.sort, flops, read, call.y.bytes, call.x.dtype, 1, sizes)
        if separate is not None:
            yield stream(call, "bias", "pointwise", call.y.size, call.y.bytes + separate.bytes, call.y.bytes)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Input and weight, whichever of the gradients is needed."""
        yield call.x
        yield call.weights["weight"]


class Convolution(Convolving, Spatial):
    """Abstract: a convolution over images."""

    channels: int
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @abstractmethod
    def weight_shape(self, call: Call) -> Shape:
        """Shape of the weight."""

    def check(self, call: Call) -> None:
        super().check(call)
        for channels, whose in ((call.x.shape[1], "input"), (self.channels, "output")):
            if channels % self.groups:
                raise call.fail(f"groups {self.groups} does not divide {channels} {whose} channels")

    def span(self) -> Shape:
        """Extent of a window, with the gaps of dilation: d(k − 1) + 1 (height, width)."""
        (kh, kw), (dh, dw) = pair(self.kernel), pair(self.dilation)
        return dh * (kh - 1) + 1, dw * (kw - 1) + 1

    def weights(self, call: Call) -> Weights:
        weights = {"weight": self.weight_shape(call)}
        return weights | {"bias": (self.channels,)} if self.bias else weights


@layer
class Conv(Convolution):
    """y[b, o] = Σ_i W[o, i] ⋆ x[b, i] + bias[o] over a window slid by `stride`.

    x: (batch, C_in, H, W), y: (batch, channels, H', W') with H' = floor((H + 2p − d(k − 1) − 1)/s) + 1,
    W: (channels, C_in/groups, k_h, k_w).
    """

    source = "cross-correlation (torch.nn.Conv2d; LeCun et al. 1998; Dumoulin & Visin 2016, rel. 15)"

    channels: int
    kernel: Pair
    stride: Pair = 1
    padding: Pair = 0
    dilation: Pair = 1
    groups: int = 1
    bias: bool = True
    transposed = False

    def check(self, call: Call) -> None:
        super().check(call)
        check_window(call, call.x.shape[2:], self.span(), pair(self.padding))

    def weight_shape(self, call: Call) -> Shape:
        return (self.channels, exact_div(call.x.shape[1], self.groups), *pair(self.kernel))

    def output(self, call: Call) -> Shape:
        b, _, *size = call.x.shape
        windows = zip(size, self.span(), pair(self.stride), pair(self.padding), strict=True)
        return (b, self.channels, *(slide(*axis) for axis in windows))


@layer
class ConvTranspose(Convolution):
    """The transpose of a convolution's map: each input spreads a window of W over the output.

    x: (batch, C_in, H, W), y: (batch, channels, H', W') with H' = s(H − 1) + d(k − 1) + 1 − 2p + p_out,
    W: (C_in, channels/groups, k_h, k_w).
    """

    source = "transposed convolution (torch.nn.ConvTranspose2d; Dumoulin & Visin 2016, rel. 14)"

    channels: int
    kernel: Pair
    stride: Pair = 1
    padding: Pair = 0
    output_padding: Pair = 0
    dilation: Pair = 1
    groups: int = 1
    bias: bool = True
    transposed = True

    def check(self, call: Call) -> None:
        super().check(call)
        for extra, stride, dilation in zip(
            pair(self.output_padding), pair(self.stride), pair(self.dilation), strict=True
        ):
            if extra >= max(stride, dilation):
                raise call.fail(f"output_padding {extra} must be less than stride {stride} or dilation {dilation}")
        if min(self.output(call)) < 1:
            raise call.fail(f"padding {self.padding} leaves nothing of the output: use less")

    def weight_shape(self, call: Call) -> Shape:
        return (call.x.shape[1], exact_div(self.channels, self.groups), *pair(self.kernel))

    def output(self, call: Call) -> Shape:
        b, _, *size = call.x.shape
        axes = zip(size, self.span(), pair(self.stride), pair(self.padding), pair(self.output_padding), strict=True)
        return (b, self.channels, *(s * n + (span - s - 2 * p + extra) for n, span, s, p, extra in axes))


@layer
class Convolve(Shaped, Convolving):
    """A convolution over any number of axes, or its transpose. `shape`: of the output; `weight`: of the weight."""

    source = "cross-correlation (torch.nn.Conv1d, Conv3d, ConvTranspose1d; Dumoulin & Visin 2016, rel. 14 and 15)"
    in_lists = False

    shape: tuple[int, ...]
    weight: tuple[int, ...]
    bias: bool = True
    groups: int = 1
    transposed: bool = False

    def weights(self, call: Call) -> Weights:
        return {"weight": self.weight} | ({"bias": (self.shape[1],)} if self.bias else {})
