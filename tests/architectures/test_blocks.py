"""Lists of blocks: templates, data and Python alike, and bad input refused with its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel import CNN
from costmodel.architectures.blocks import period_of
from costmodel.architectures.composites import Branches, Repeat, Residual, Sequence
from costmodel.errors import CostModelError, ShapeError, SpecError
from costmodel.importers.files import build, describe
from costmodel.layers.activation import LeakyRelu, Relu
from costmodel.layers.arithmetic import ChannelDropout, Dropout, StochasticDepth
from costmodel.layers.conv import Conv, ConvTranspose
from costmodel.layers.linear import Linear
from costmodel.layers.norm import Groupnorm, Layernorm
from costmodel.layers.pool import AdaptiveAvgPool, AvgPool, GlobalAvgPool, MaxPool
from costmodel.layers.resize import ChannelShuffle, PixelShuffle, Upsample
from costmodel.layers.shape import Flatten, RepeatHeads
from tests.command import error_of


def test_templates_are_what_they_stand_for() -> None:
    written = CNN(
        input=[3, 8, 8],
        define={
            "unit": {
                "takes": ["channels", "act"],
                "blocks": [{"conv": {"channels": "$channels", "kernel": 3}}, "$act"],
            },
            "pair": {"takes": ["act"], "blocks": [{"unit": {"channels": 4, "act": "$act"}}, "relu"]},
        },
        blocks=[{"pair": {"act": "silu"}}, {"unit": {"channels": 5, "act": {"leaky_relu": {"slope": 0.2}}}}],
    )
    rows = cm.predict(written, loss=None).layers
    assert [row.name for row in rows] == [
        "pair.unit.conv",
        "pair.unit.silu",
        "pair.relu",
        "unit.conv",
        "unit.leaky_relu",
    ]


def test_python_and_data_say_the_same() -> None:
    from_python = CNN(
        input=(3, 8, 8),
        blocks=[
            Sequence((Conv(8, kernel=(3, 1), bias=False), Relu()), name="stem"),
            Repeat(2, (Residual([Conv(8, kernel=1)], projection=[Conv(8, kernel=1)]),)),
            Branches([[], [AvgPool(3, stride=1, padding=1)]], join="concat"),
            GlobalAvgPool(),
            Linear(10),
        ],
    )
    pool = {"avg_pool": {"kernel": 3, "stride": 1, "padding": 1}}
    point = {"conv": {"channels": 8, "kernel": 1}}
    stem = [{"conv": {"channels": 8, "kernel": [3, 1], "bias": False}}, "relu"]
    from_data = CNN(
        input=[3, 8, 8],
        blocks=[
            {"sequence": {"blocks": stem, "name": "stem"}},
            {"repeat": {"times": 2, "blocks": [{"residual": {"body": [point], "projection": [point]}}]}},
            {"branches": {"join": "concat", "paths": [[], [pool]]}},
            "global_avg_pool",
            {"linear": {"features": 10}},
        ],
    )
    assert from_python == from_data
    assert build(describe(from_python), "round trip") == from_python


def conv(**fields: Any) -> list[Any]:
    return [{"conv": {"channels": 4, "kernel": 1, **fields}}]


TEMPLATE = {"unit": {"takes": ["channels"], "blocks": conv(channels="$channels")}}
TOO_MANY = {
    "a": {"blocks": ["relu"] * 100},
    **{after: {"blocks": [before] * 100} for before, after in ("ab", "bc", "cd")},
}


def nested(levels: int) -> Any:
    block: Any = "relu"
    for _ in range(levels):
        block = {"sequence": [block]}
    return block


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        ([], "blocks: the list is empty"),
        ("relu", "blocks: 'relu' is not a list"),
        (["rellu"], "'rellu': did you mean 'relu'"),
        ([{"conv": {}}], "blocks[0].conv: field channels is missing"),
        ([{"conv": {"channels": 3, "kernal": 3}}], "did you mean 'kernel'"),
        ([{"relu": {"slope": 3}}], "relu takes no fields"),
        (["relu", {"relu": {}, "conv": {}}], "blocks[1]: "),
        ([{"relu": None}], "blocks[0].relu: "),
        ([3], "blocks[0]: 3 is not an item"),
        (["scale"], "blocks[0].scale: field factor is missing"),
        ([{"shift": {}}], "blocks[0].shift: field constant is missing"),
        (["add"], "add takes several inputs"),
        (["cross_entropy"], "cross_entropy takes several inputs"),
        ([{"cast": {"dtype": "fp16"}}], "cast takes several inputs or indices, or is put in by a setting"),
        ([{"rotary": {"size": 2}}], "rotary takes several inputs"),
        (["flatten", {"repeat_heads": {"times": 0}}], "blocks[1].repeat_heads.times: 0 is not"),
        ([{"dropout": {"p": 1.0}}], "blocks[0].dropout.p: 1.0 is not a number from 0 to less than 1"),
        (conv(kernel=0), "blocks[0].conv.kernel: 0 is not"),
        (conv(kernel=[3, 0]), "blocks[0].conv.kernel: [3, 0] is not"),
        (conv(kernel=[3, 3, 3]), "blocks[0].conv.kernel: [3, 3, 3] is not"),
        (conv(padding=-1), "blocks[0].conv.padding: -1 is not"),
        (conv(channels=True), "blocks[0].conv.channels: True is not"),
        (conv(channels=4.0), "blocks[0].conv.channels: 4.0 is not"),
        (conv(channels="4"), "blocks[0].conv.channels: '4' is not"),
        (conv(channels=10**30), "blocks[0].conv.channels: "),
        (conv(bias=1), "blocks[0].conv.bias: 1 is not true or false"),
        ([{"upsample": {"scale": 2, "mode": "cubic"}}], "blocks[0].upsample.mode"),
        ([{"repeat": {"times": 0, "blocks": ["relu"]}}], "blocks[0].repeat.times: 0 is not"),
        ([{"repeat": {"times": 2, "blocks": []}}], "blocks[0].repeat.blocks: the list is empty"),
        ([{"residual": {"body": ["relu", *conv(kernel=0)]}}], "blocks[0].residual.body[1].conv.kernel: 0"),
        ([{"branches": {"join": "sum", "paths": [[], []]}}], "blocks[0].branches.join"),
        ([{"branches": {"join": "add", "paths": [[]]}}], "at least two paths"),
        ([{"sequence": conv(kernel=0)}], "blocks[0].sequence[0].conv.kernel: 0"),
        ([{"unit": {}}], "blocks[0].unit: field channels is missing"),
        ([{"unit": {"chanels": 3}}], "did you mean 'channels'"),
        ([{"unit": {"channels": "x"}}], "blocks[0].unit.blocks[0].conv.channels: 'x' is not"),
        ([nested(1000)], "nested more than"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_blocks_are_refused_with_place_and_value(blocks: Any, says: str) -> None:
    assert says in error_of(lambda: CNN(input=[3, 8, 8], define=TEMPLATE, blocks=blocks))


@pytest.mark.parametrize(
    ("define", "says"),
    [
        ([], "define: [] is not a mapping"),
        ({"conv": {"blocks": ["relu"]}}, "there is a layer kind of that name"),
        ({"a b": {"blocks": ["relu"]}}, "is not a name"),
        ({"unit": {"blocks": ["relu"], "taks": []}}, "define.unit: "),
        ({"unit": {"takes": "x", "blocks": ["relu"]}}, "define.unit.takes: 'x' is not a list of names"),
        ({"unit": {"takes": [], "blocks": ["$x"]}}, "'$x'"),
        ({"unit": {"blocks": ["unit"]}}, "'unit'"),
        ({"unit": {"blocks": ["later"]}, "later": {"blocks": ["relu"]}}, "'later'"),
        ({"unit": {"blocks": ["relu"]}, "spare": {"blocks": ["rellu"]}}, "define.spare.blocks[0].rellu: 'rellu'"),
        ({"unit": {"blocks": ["relu"]}, "spare": {"blocks": [{"sequence": ["rellu"]}]}}, "blocks[0].sequence[0].rellu"),
        (
            {"spare": {"takes": ["x"], "blocks": [{"branches": {"join": "$x", "paths": [["$x"], ["rellu"]]}}]}},
            "define.spare.blocks[0].branches.paths[1][0].rellu",
        ),
        ({"spare": {"takes": ["x"], "blocks": [{"conv": {"chanels": "$x"}}]}}, "did you mean 'channels'"),
        ({**TOO_MANY, "unit": {"blocks": ["d"]}}, "has more than 20,000 values"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_templates_are_refused(define: Any, says: str) -> None:
    with pytest.raises(CostModelError) as error:
        CNN(input=[3, 8, 8], define=define, blocks=["unit"])
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        ([Conv(4, kernel=9)], "conv: a window of height 9 is larger than the padded input of height 6"),
        ([Conv(6, kernel=1, groups=3)], "groups 3 does not divide 4 input channels"),
        ([Conv(6, kernel=1, groups=4)], "groups 4 does not divide 6 output channels"),
        ([MaxPool(2, padding=2)], "padding 2 is more than half of kernel 2"),
        ([AvgPool((1, 9))], "a window of width 9"),
        ([ConvTranspose(4, kernel=1, output_padding=1)], "output_padding 1 must be less than stride 1"),
        ([ConvTranspose(4, kernel=1, padding=3)], "padding 3 leaves nothing"),
        ([PixelShuffle(3)], "4 channels are not a multiple of factor² = 9"),
        ([ChannelShuffle(3)], "groups 3 does not divide 4 channels"),
        ([GlobalAvgPool(), MaxPool(2)], "max_pool takes an input of 4 axes"),
        ([Flatten(), RepeatHeads(2)], "repeat_heads takes an input of 4 axes (batch, heads, tokens, head size), not 2"),
        ([Residual([Conv(5, kernel=1)])], "residual.add"),
        ([Residual([Conv(1, kernel=1)])], "residual.add"),
        ([Residual([Conv(4, kernel=3)])], "residual.add"),
        ([Branches([[], [MaxPool(2)]], join="concat")], "branches.concat"),
        ([Repeat(5, (MaxPool(2),))], "repeat.3.max_pool: a window"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_shapes_that_do_not_fit_are_refused_where_they_meet(blocks: list[Any], says: str) -> None:
    with pytest.raises(ShapeError) as error:
        cm.predict(CNN(input=(4, 6, 8), blocks=blocks))
    assert says in str(error.value)


@pytest.mark.parametrize("size", [0, -1, True, 2.0, "2", None, 2**40 + 1, (1, 0), (1, 2, 3)])
@pytest.mark.parametrize(
    "make",
    [
        lambda n: Conv(1, kernel=n),
        MaxPool,
        AdaptiveAvgPool,
        Upsample,
        lambda n: CNN(input=(3, 8, 8), blocks=[Linear(n)]),
    ],
    ids=["conv", "max_pool", "adaptive_avg_pool", "upsample", "linear"],
)
def test_sizes_from_python_are_checked_like_those_from_files(make: Callable[[Any], object], size: Any) -> None:
    with pytest.raises(CostModelError):
        make(size)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Linear(0), "linear.features: 0 is not a whole number from 1"),
        (lambda: Linear(True), "linear.features: True is not"),
        (lambda: Linear(2.0), "linear.features: 2.0 is not"),  # type: ignore[arg-type]
        (lambda: Linear(3, bias=1), "linear.bias: 1 is not true or false"),  # type: ignore[arg-type]
        (lambda: Groupnorm(0), "groupnorm.groups: 0 is not"),
        (lambda: Layernorm(affine=None), "layernorm.affine: None is not"),  # type: ignore[arg-type]
        (lambda: Dropout(2), "dropout.p: 2 is not a number from 0 to less than 1"),
        (lambda: StochasticDepth(1.0), "stochastic_depth.p: 1.0 is not"),
        (lambda: ChannelDropout(-0.1), "channel_dropout.p: -0.1 is not"),
        (lambda: ChannelDropout(True), "channel_dropout.p: True is not"),
        (lambda: Dropout(float("nan")), "dropout.p: nan is not"),
        (lambda: LeakyRelu(float("inf")), "leaky_relu.slope: inf is not a finite number"),
        (lambda: RepeatHeads(0), "repeat_heads.times: 0 is not"),
        (lambda: Linear(2**80 + 1), "linear.features: 1208925819614629174706177 is not"),
    ],
)
def test_a_layer_of_wrong_values_cannot_be_made(make: Callable[[], object], says: str) -> None:
    with pytest.raises(SpecError) as error:
        make()
    assert str(error.value).startswith(says)


def test_a_layer_takes_letters_for_sizes() -> None:
    prediction = cm.predict(cm.MLP(sizes=[3, 4, 2], dropout=0.5))
    assert {str(symbol) for symbol in prediction.formula("params").free_symbols} == {"n_0", "n_1", "n_2"}


class Counted:
    """A block that counts how often it is compared."""

    compared = 0

    def __init__(self, kind: int) -> None:
        self.kind = kind

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return isinstance(other, Counted) and self.kind == other.kind

    __hash__ = None  # type: ignore[assignment]


@given(st.lists(st.integers(0, 1), min_size=1, max_size=5), st.integers(1, 24))
def test_the_period_of_blocks_is_the_shortest(pattern: list[int], length: int) -> None:
    blocks: list[Any] = [pattern[n % len(pattern)] for n in range(length)]
    shortest = next(n for n in range(1, length + 1) if all(b == blocks[i % n] for i, b in enumerate(blocks)))
    assert period_of(blocks) == shortest


def test_the_period_of_many_blocks_is_sought_in_as_many_comparisons() -> None:
    blocks: list[Any] = [Counted(n == 9_998) for n in range(9_999)]
    Counted.compared = 0
    assert period_of(blocks) == 9_999
    assert Counted.compared < 4 * len(blocks)
