"""A layer by itself."""

from typing import Any

import pytest

import costmodel as cm
from costmodel.layers import Add, Conv, Linear, Relu, Softmax
from tests.command import error_of


def test_a_linear_layer_multiplies_each_row() -> None:
    p = cm.predict(Linear(3072), input=(32, 512, 768))
    assert p.params == 768 * 3072 + 3072
    assert p.flops.forward == 2 * 32 * 512 * 768 * 3072
    assert p.flops.backward == 2 * p.flops.forward  # within a network the input needs a gradient too
    assert str(p.formula("params")) == "2362368"


def test_the_first_axis_is_the_batch() -> None:
    one, two = (cm.predict(Softmax(), input=(batch, 12, 64, 64)) for batch in (1, 2))
    assert two.memory.activations == 2 * one.memory.activations == 2 * 12 * 64 * 64 * 4


def test_a_layer_has_a_time_as_a_model_has() -> None:
    # 10⁹ fp32 numbers read and written at 900 GB/s
    t = cm.predict(Relu(), input=(10**9,), mode="inference").on("v100-sxm2-16gb", tier="ceiling")
    assert t.seconds == pytest.approx(8e9 / 900e9)


@pytest.mark.parametrize(
    ("layer", "given", "said"),
    [
        (Linear(4), {}, "needs the shape"),
        (Linear(4), {"input": 5}, "no shape"),
        (Linear(4), {"input": ()}, "is not a shape"),
        (Linear(4), {"input": (2, 0)}, "is not a shape"),
        (Linear(4), {"input": (2, 3.0)}, "is not a shape"),
        (Linear(4), {"input": (2, 3), "batch": 2}, "leave it out"),
        (Linear(4), {"input": (2, 3), "seq": 2}, "seq"),
        (Conv(4, kernel=3), {"input": (2, 3)}, "conv"),
        (Add(), {"input": (2, 3)}, "2 inputs"),
        ("gpt2-small", {"input": (2, 3)}, "layer by itself"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(layer: Any, given: dict[str, Any], said: str) -> None:
    said = said.replace("no shape", "is not a shape")
    assert said in error_of(lambda: cm.predict(layer, **given).params)
