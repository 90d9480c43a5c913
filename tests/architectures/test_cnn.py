"""Convolutional networks: published counts, layers small enough to count by hand, shapes, nesting and bad input."""

from __future__ import annotations

from math import gcd
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel import CNN
from costmodel.architectures.composites import Repeat, Residual
from costmodel.cost.rows import Row
from costmodel.errors import SettingError
from costmodel.layers.activation import Relu
from costmodel.layers.arithmetic import ChannelDropout, StochasticDepth
from costmodel.layers.conv import Conv, ConvTranspose
from costmodel.layers.norm import Batchnorm
from costmodel.layers.pool import AdaptiveAvgPool, AdaptiveMaxPool, AvgPool, GlobalAvgPool, MaxPool, covered
from costmodel.layers.resize import ChannelShuffle, Pad, PixelShuffle, Upsample


@pytest.mark.parametrize(
    ("name", "giga_multiply_adds"),
    [("alexnet", 0.71), ("vgg16", 15.47), ("resnet18", 1.81), ("resnet50", 4.09), ("mobilenet_v2", 0.30)],
)
def test_multiply_adds_round_to_the_published_ones(name: str, giga_multiply_adds: float) -> None:
    """torchvision's model cards, ``GFLOPS``: multiply-adds of one image, to two places."""
    assert round(cm.predict(name).flops.forward / 2 / 1e9, 2) == giga_multiply_adds


def last_row(*blocks: Any, image: tuple[int, int, int] = (4, 6, 8), batch: int = 1) -> Row:
    return cm.predict(CNN(input=image, blocks=list(blocks)), batch=batch, loss=None).layers[-1]


def output_shape(*blocks: Any, image: tuple[int, int, int] = (4, 6, 8)) -> tuple[int, ...]:
    call = list(cm.predict(CNN(input=image, blocks=list(blocks)), batch=1, loss=None).tape.root.calls())[-1]
    return call.y.shape[1:]


STEM = Conv(4, kernel=1)
"""Puts a weight before the layer in question, so that its input needs a gradient."""


def test_a_convolution_counted_by_hand() -> None:
    # 2 images, 4 → 6 channels in 2 groups, 3 × 3 windows on 6 × 8: windows fit at 4 × 6 places.
    row = last_row(STEM, Conv(6, kernel=3, groups=2), batch=2)
    multiply_adds = 2 * (4 * 6) * 6 * (2 * 3 * 3)
    assert row.params == 6 * 2 * 9 + 6
    assert row.forward_flops == 2 * multiply_adds
    assert row.forward_pointwise_flops == 2 * 4 * 6 * 6
    assert row.activation_bytes == 4 * 2 * 4 * 6 * 8


def test_a_grouped_convolutions_weight_gradient_is_counted_as_pytorch_does_unless_told_otherwise() -> None:
    model = CNN(input=(4, 6, 8), blocks=[STEM, Conv(6, kernel=3, groups=2)])
    row = cm.predict(model, loss=None).layers[-1]
    assert row.backward_flops == (1 + 2) * row.forward_flops
    row = cm.predict(model, loss=None, flop_rule="arithmetic").layers[-1]
    assert row.backward_flops == 2 * row.forward_flops


def test_the_first_convolution_needs_no_gradient_of_the_images() -> None:
    row = last_row(Conv(6, kernel=3))
    assert row.backward_flops == row.forward_flops
    assert row.activation_bytes == 0


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Conv(5, kernel=3), (5, 4, 6)),
        (Conv(5, kernel=(1, 3), padding=(0, 1)), (5, 6, 8)),
        (Conv(5, kernel=3, stride=2, padding=1), (5, 3, 4)),
        (Conv(5, kernel=3, dilation=2), (5, 2, 4)),
        (ConvTranspose(5, kernel=2, stride=2), (5, 12, 16)),
        (ConvTranspose(5, kernel=3, stride=2, padding=1, output_padding=1), (5, 12, 16)),
        (MaxPool(3, stride=2), (4, 2, 3)),
        (MaxPool(3, stride=2, ceil_mode=True), (4, 3, 4)),
        (MaxPool(2, stride=3, padding=1, ceil_mode=True), (4, 3, 3)),
        (AvgPool(2), (4, 3, 4)),
        (AvgPool((3, 4)), (4, 2, 2)),
        (AdaptiveAvgPool(1), (4, 1, 1)),
        (AdaptiveMaxPool((2, 3)), (4, 2, 3)),
        (GlobalAvgPool(), (4,)),
        (GlobalAvgPool(keepdims=True), (4, 1, 1)),
        (Upsample(2), (4, 12, 16)),
        (PixelShuffle(2), (1, 12, 16)),
        (ChannelShuffle(2), (4, 6, 8)),
        (Pad((1, 2, 3, 4)), (4, 13, 11)),
    ],
    ids=str,
)
def test_output_shapes(layer: Any, shape: tuple[int, ...]) -> None:
    assert output_shape(layer) == shape


@pytest.mark.parametrize(
    ("layer", "kept"),
    [
        (MaxPool(2), 4 * (4 * 6 * 8) + 8 * (4 * 3 * 4)),
        (AvgPool(2), 4 * (4 * 6 * 8)),
        (AdaptiveMaxPool(1), 4 * (4 * 6 * 8) + 8 * 4),
        (AdaptiveAvgPool(2), 4 * (4 * 6 * 8)),
        (AdaptiveAvgPool(1), 0),
        (GlobalAvgPool(), 0),
        (Upsample(2, mode="bilinear"), 0),
        (PixelShuffle(2), 0),
        (Pad(1), 0),
        (ChannelDropout(0.1), 4 * 4),
        (StochasticDepth(0.1), 4),
        (StochasticDepth(0.0), 0),
    ],
    ids=str,
)
def test_what_a_layer_keeps_for_backward(layer: Any, kept: int) -> None:
    assert last_row(STEM, layer).activation_bytes == kept


def test_pooling_counts_comparisons_and_additions() -> None:
    assert last_row(MaxPool(2)).forward_pointwise_flops == 3 * (4 * 3 * 4)
    assert last_row(AvgPool(2)).forward_pointwise_flops == 4 * (4 * 3 * 4)
    # Windows of 6 in 4: {0, 1}, {1, 2}, {3, 4}, {4, 5}; of 8 in 3: {0, 1, 2}, {2, …, 5}, {5, 6, 7}.
    assert last_row(AdaptiveAvgPool((4, 3))).forward_pointwise_flops == 4 * (2 + 2 + 2 + 2) * (3 + 4 + 3)


@given(st.integers(1, 500), st.integers(1, 500))
def test_adaptive_windows_cover_what_their_borders_say(size: int, windows: int) -> None:
    borders = ((i * size // windows, -(-(i + 1) * size // windows)) for i in range(windows))
    assert covered(size, windows) == sum(end - start for start, end in borders) == size + windows - gcd(size, windows)


def test_a_repeat_of_ten_thousand_is_traced_as_often_as_one_of_twelve() -> None:
    block = Residual([Conv(4, kernel=3, padding=1), Batchnorm(), Relu()])
    rows = {n: cm.predict(CNN(input=(4, 6, 8), blocks=[STEM, Repeat(n, (block,))])).layers for n in (12, 10_000)}
    assert len(rows[12]) == len(rows[10_000])
    assert sum(row.params for row in rows[10_000]) == 20 + 10_000 * (4 * 4 * 9 + 4 + 8)


def test_unrolled_is_the_same_as_repeated() -> None:
    body = [Conv(8, kernel=3, padding=1), Batchnorm(), Relu(), MaxPool(3, stride=1, padding=1)]
    repeated = cm.predict(CNN(input=(4, 6, 8), blocks=[Repeat(3, tuple(body))]), loss=None)
    unrolled = cm.predict(CNN(input=(4, 6, 8), blocks=body * 3), loss=None)
    for quantity in ("params", "flops.total", "pointwise_flops.total", "memory.activations"):
        assert repeated.value(quantity) == unrolled.value(quantity)


def test_an_image_size_in_the_question_replaces_the_models_own() -> None:
    assert cm.predict("resnet50", image=448).flops.forward > 3 * cm.predict("resnet50").flops.forward
    assert cm.predict("resnet50", image=(224, 224)).flops == cm.predict("resnet50").flops
    with pytest.raises(SettingError, match="seq=5 does not apply"):
        cm.predict("resnet50", seq=5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet_v3_small", "efficientnet_b0", "lenet-5", "resnet18", "unet"])
def test_a_formula_derived_at_a_small_image_holds_at_others(name: str) -> None:
    """Where an axis happens to be 1, it is not taken for one that broadcasts."""
    small, large = (cm.predict(name, batch=batch, image=image) for batch, image in ((1, 32), (3, 96)))
    for quantity in ("flops.forward", "flops.backward", "memory.activations"):
        formula = small.formula(quantity)
        values = {"B": 3, "H": 96, "W": 96}
        assert formula.subs({symbol: values[symbol.name] for symbol in formula.free_symbols}) == large.value(quantity)
