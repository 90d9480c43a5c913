"""What kinds over images share: inputs (batch, channels, height, width), and windows that slide over them."""

from __future__ import annotations

from costmodel.graph.call import Call, GradientOrder, Workspace
from costmodel.graph.tensor import Shape, Tensor
from costmodel.layers.base import NO_WORKSPACE, Layer
from costmodel.symbolic.sizes import LARGEST_SIZE, branch_value, ceil_div, minimum


class Spatial(Layer):
    """Abstract: one input x: (batch, C, H, W)."""

    input_axes = "batch, channels, height, width"
    largest = LARGEST_SIZE

    def workspace(self, call: Call) -> Workspace:
        return NO_WORKSPACE

    def gradient_order(self, call: Call, x: Tensor) -> GradientOrder:
        return order_of_images(x)


def check_window(call: Call, size: Shape, kernel: Shape, padding: Shape, beyond: Shape = (0, 0)) -> None:
    """Raise ShapeError if a window is larger than the padded input, by more than it may stick out `beyond` its end.

    Everything is (height, width).
    """
    for axis, n, k, p, b in zip(("height", "width"), size, kernel, padding, beyond, strict=True):
        if k > n + 2 * p + b:
            raise call.fail(
                f"a window of {axis} {k} is larger than the padded input of {axis} {n + 2 * p}: "
                "use a larger image, a smaller kernel or more padding"
            )


def slide(size: int, kernel: int, stride: int, padding: int) -> int:
    """Windows that lie within the padded axis: ``floor((n + 2p − k)/s) + 1`` (Dumoulin & Visin 2016, rel. 6)."""
    return ceil_div(size + 2 * padding - (kernel - 1), stride)


def slide_beyond(size: int, kernel: int, stride: int, padding: int) -> int:
    """Windows if the last may stick out (``ceil_mode``), as long as it starts before the right padding."""
    windows = ceil_div(size + 2 * padding - kernel + stride, stride)
    if stride + padding <= kernel:  # then no window can start there
        return windows
    return minimum(windows, ceil_div(size + padding, stride))


def arranged(call: Call, shape: Shape) -> Shape | Tensor:
    """An output of `shape` with channels last in memory if the input has them so, else contiguous."""
    if len(shape) != 4 or not channels_last(call.x):
        return shape
    return call.tape.tensor(shape, strides=last_strides(shape))


def order_of_images(x: Tensor) -> GradientOrder:
    """Of a gradient that kernels over images make: channels last if the operand has them so, else row by row."""
    return "operand" if channels_last(x) else "rows"


def last_strides(shape: Shape) -> Shape:
    """Strides of (batch, channels, height, width) with channels last in memory."""
    _, c, h, w = shape
    return (h * w * c, 1, w * c, c)


def channels_last(x: Tensor) -> bool:
    """Whether memory runs over channels first, by PyTorch's rule (``is_channels_last_strides_2d``)."""
    if x.strides is None or len(x.shape) != 4:
        return False
    least = 0
    for axis in (1, 3, 2, 0):
        stride = branch_value(x.strides[axis])
        if stride < least or (axis == 0 and least == branch_value(x.strides[1])):
            return False
        least = stride * branch_value(x.shape[axis])
    return True
