"""Every operator that has a rule costs what PyTorch counts, keeps and holds: see `operators` for how each is called."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import costmodel as cm
from costmodel.importers.torch.rules import load_rules
from tests.graph.walking import check_tape
from tests.layers.device_kernels import check_kernels
from tests.profiles import examples

from .imports import found, measured
from .measure import Saved
from .operators import ALONE_COMPLEX, CASES, OF_COMPLEX, Called, Case
from .settings import DRAWN
from .single import Given
from .test_timeline import stated
from .tracker import Tracker

pytestmark = pytest.mark.oracle

COMPOSED = """
_linalg_svd addcdiv addcmul addr baddbmm binary_cross_entropy binary_cross_entropy_with_logits broadcast_to constant
copy cross_entropy_loss cumprod cumsum einsum expand gather gru gru_cell index index_put index_select kl_div l1_loss
linalg_qr lstm masked_fill max min prelu prod renorm repeat rnn_relu rnn_tanh select_scatter sum take take_along_dim
tile to type_as unfold where
"""
"""Operators whose gradient PyTorch composes of several operators, or adds up by them, where on paper it is one: what
these hold for a moment is not on paper, so that the peak of backward is not to the byte, but within `MOST_BEYOND`.
"""

MOST_BEYOND = 12
"""Tensors of the largest size there is: by so many at most a peak of `COMPOSED` is off (of ``cumprod`` by ten)."""


MADE_OF = {"square": "pow", "relu6": "hardtanh", "selu": "elu"}
"""Operators that PyTorch writes in place as another one, which is then captured."""


def test_every_operator_with_a_rule_has_a_case() -> None:
    assert set(CASES) | {step for steps in QUANTISED.values() for step in steps[1]} == set(load_rules())


@pytest.mark.parametrize("name", sorted(CASES | OF_COMPLEX))
@examples(min(4, DRAWN))
@given(st.data(), st.sampled_from(["flattened", "kept", "nothing"]))
def test_an_operator_costs_what_it_does(name: str, data: st.DataObject, then: str) -> None:
    module = Called((CASES | OF_COMPLEX)[name](data.draw), then)
    model = cm.from_torch(module, module.inputs, dynamic={})
    operator, _, of_complex = name.partition(" ")
    assert {operator, MADE_OF.get(operator)} & {step.op for step in model.program.steps}
    assert found(model) == measured(module, *module.inputs)
    check_kernels(tape := cm.predict(model).tape)
    check_tape(tape)
    if then == "kept" and len(module.weights) == 1:
        beyond = beyond_the_tracker(model, module, "cpu" if name in ONE_KERNEL_WITH_DATA else "meta")
        assert beyond["forward"] <= 0  # Python has names for more than what is used again
        largest = max(x.nbytes for x in (*module.inputs, *module.parameters()))
        composed = of_complex or name in ALONE_COMPLEX or name in COMPOSED.split()
        most = MOST_BEYOND * largest if composed else 0
        assert abs(beyond.get("backward", 0)) <= most


WITH_DATA: dict[str, tuple[Any, tuple[Given, ...]]] = {
    "fractional maximum": (
        lambda x: nn.functional.fractional_max_pool3d(x, 2, output_size=3, return_indices=True)[0],
        (Given((1, 2, 6, 6, 6), (0, 1, 2, 3, 4), requires_grad=True),),
    ),
    "margin of classes": (
        lambda x, y: nn.functional.multi_margin_loss(x, y % 4),
        (Given((3, 4), (0, 1), requires_grad=True), Given((3,), (0,), "index")),
    ),
    "squared margin, weighed by the class": (
        lambda x, y, w: nn.functional.multi_margin_loss(x, y % 4, p=2, weight=w),
        (Given((3, 4), (0, 1), requires_grad=True), Given((3,), (0,), "index"), Given((4,), (0,))),
    ),
    "margin of each row": (
        lambda x, y: nn.functional.multi_margin_loss(x, y % 4, reduction="none"),
        (Given((3, 4), (0, 1), requires_grad=True), Given((3,), (0,), "index")),
    ),
    "margin of several classes": (
        lambda x, y: nn.functional.multilabel_margin_loss(x, y % 4),
        (Given((3, 4), (0, 1), requires_grad=True), Given((3, 4), (0, 1), "index")),
    ),
    **{
        f"mean of {name}, kept": (
            lambda x, y, name=name: getattr(nn.functional, name)(x, y).square(),
            (Given((3, 4), (0, 1), requires_grad=True), Given((3, 4), (0, 1))),
        )
        for name in ("mse_loss", "smooth_l1_loss", "binary_cross_entropy")
    },
    "soft margin": (
        lambda x, y: nn.functional.soft_margin_loss(x, y, reduction="mean"),
        (Given((3, 4), (0, 1), requires_grad=True), Given((3, 4), (0, 1))),
    ),
}
"""Operators of which the meta device has no backward, or a forward of its own."""


@pytest.mark.parametrize("name", WITH_DATA)
def test_an_operator_costs_what_it_does_with_data(name: str) -> None:
    module = Called(Case(*WITH_DATA[name]), "nothing")
    model = cm.from_torch(module, module.inputs, dynamic={})
    inputs = [torch.zeros_like(x, device="cpu") for x in module.inputs]
    assert found(model) == measured(with_data(module), *inputs, device="cpu")


def with_data(module: nn.Module) -> nn.Module:
    """A module with zeros for weights, since some operators refuse what memory happens to hold."""
    return module.to_empty(device="cpu").apply(lambda part: [w.data.zero_() for w in part.parameters()])


class Quantised(nn.Module):
    """A linear layer whose result, and perhaps whose weight, goes through few levels, of all numbers or by channel."""

    def __init__(self, by_channel: bool) -> None:
        super().__init__()
        self.linear, self.by_channel = nn.Linear(4, 6), by_channel
        self.register_buffer("scale", torch.ones(6))
        self.register_buffer("zero", torch.zeros(6, dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if self.by_channel:
            return torch.fake_quantize_per_channel_affine(y, self.scale, self.zero, 1, -128, 127) * 2
        return torch.fake_quantize_per_tensor_affine(y, 0.1, 0, -128, 127) * torch.sigmoid(y)


class Observing(nn.Module):
    """A layer as it is trained to be quantised: its input's range is followed, and its weight's levels are fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        for name, value in (("on", torch.ones(1, dtype=torch.int64)), ("zero", torch.zeros(1, dtype=torch.int32))):
            self.register_buffer(name, value)
        for name in ("low", "high", "scale"):
            self.register_buffer(name, torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        y, state = self.linear(x), (self.on, self.on, self.low, self.high, self.scale, self.zero)
        return torch.fused_moving_avg_obs_fake_quant(y, *state, 0.01, 0, 127, -1) * 2


QUANTISED: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "by one scale": (lambda: Quantised(False), ("fake_quantize_per_tensor_affine",)),
    "by channel": (lambda: Quantised(True), ("fake_quantize_per_channel_affine",)),
    "observed": (Observing, ("fused_moving_avg_obs_fake_quant",)),
}
"""Modules that quantise, and the operators that they call, of which the meta device has no kernels."""


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_training_costs_what_it_does_with_data(name: str) -> None:
    make, operators = QUANTISED[name]
    module = make()
    model = cm.from_torch(module, torch.zeros(3, 4), dynamic={})
    assert set(operators) <= {step.op for step in model.program.steps}
    assert found(model) == measured(module, torch.zeros(3, 4), device="cpu")
    check_kernels(cm.predict(model).tape)
    with pytest.raises(NotImplementedError, match="Meta"):  # it is told to PyTorch for as long as it is asked
        torch.fake_quantize_per_tensor_affine(torch.zeros(3, device="meta"), 0.1, 0, -128, 127)


ONE_KERNEL_WITH_DATA = ("mish",)
"""Operators whose gradient is composed on the meta device alone: elsewhere it is a kernel, so those are run."""


def beyond_the_tracker(model: Any, module: Called, device: str = "meta") -> dict[str, int]:
    """Bytes by which each phase's peak on paper is above what a tracker sees of the same."""
    on_paper = stated(cm.predict(model, device="cpu", optimizer="sgd"))
    module.zero_grad()
    inputs = [x if device == "meta" else torch.zeros_like(x, device=device) for x in module.inputs]
    module = module if device == "meta" else with_data(module)
    with Tracker([*inputs, *module.parameters()], device) as tracker:
        (y,) = module(*inputs)
        gradient = torch.empty_like(y)
        tracker.phase = "backward"
        y.backward(gradient)
    return {phase: on_paper[phase].alive - most.alive for phase, most in tracker.most.items()}


BOUNDS = {
    "both": lambda x: x.clamp(-1, 1),
    "lopsided": lambda x: x.clamp(0, 1),
    "lower": lambda x: x.clamp(min=0),
    "upper": lambda x: x.clamp(max=1),
    "clamp_min": lambda x: x.clamp_min(0),
    "in place": lambda x: (x * 1).clamp_(max=1),
    "hardtanh": nn.functional.hardtanh,
    "relu6": nn.functional.relu6,
}


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)])
@pytest.mark.parametrize("name", [*BOUNDS, "rim"])
def test_backward_holds_what_its_steps_do(name: str, order: tuple[int, ...]) -> None:
    function = BOUNDS.get(name, lambda x: nn.functional.pad(x, (1, 2, 0, 1), "circular"))
    module = Called(Case(function, (Given((2, 3, 4, 6), order, "activation", True),)), "kept")
    model = cm.from_torch(module, module.inputs, dynamic={})
    assert beyond_the_tracker(model, module)["backward"] == 0


CLAMPS: dict[str, Any] = {
    "both": torch.clamp,
    "lower": lambda x, a: x.clamp(min=a),
    "upper": lambda x, a: x.clamp(max=a),
    "clamp_min": torch.clamp_min,
}


@pytest.mark.parametrize("name", CLAMPS)
@pytest.mark.parametrize("shapes", [((4, 6), (4, 6), (4, 6)), ((4, 6), (6,), (4, 1)), ((4, 1), (4, 6), (6,))])
def test_backward_of_bounds_that_are_tensors_holds_their_masks(name: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Of whichever operands need gradients."""
    count = 3 if name == "both" else 2
    for needed in itertools.product([True, False], repeat=count):
        if any(needed):
            given = [
                Given(shape, tuple(range(len(shape))), requires_grad=one)
                for shape, one in zip(shapes, needed, strict=False)
            ]
            module = Called(Case(CLAMPS[name], tuple(given)), "kept")
            model = cm.from_torch(module, module.inputs, dynamic={})
            assert found(model) == measured(module, *module.inputs)
            assert beyond_the_tracker(model, module)["backward"] == 0, needed


class Masked(nn.Module):
    """Attention in one call under a mask."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (x * self.scale for x in (q, k, v))
        mask = mask.logical_not() if mask.dtype == torch.bool else mask + 1
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, self.p)


def masked(keys: int, mask: tuple[int, ...], dtype: torch.dtype, p: float, device: str = "meta") -> Any:
    """A module and its inputs: two samples of three heads of eight features, five queries."""
    with torch.device(device):
        shapes = ((2, 3, 5, 8), (2, 3, keys, 8), (2, 3, keys, 8))
        return Masked(p), (*(torch.ones(shape) for shape in shapes), torch.ones(mask, dtype=dtype))


@pytest.mark.parametrize("keys", [7, 8])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@pytest.mark.parametrize("axes", [(), (3,), (2, 3), (2, 1)])
@pytest.mark.parametrize("p", [0.0, 0.1])
def test_fused_attention_on_a_cpu_keeps_its_mask(
    axes: tuple[int, ...], dtype: torch.dtype, keys: int, p: float
) -> None:
    mask = (*axes, 5, keys)
    model = cm.from_torch(*masked(keys, mask, dtype, p), dynamic={})
    module, inputs = masked(keys, mask, dtype, p, "cpu")
    with Saved([*module.parameters(), *inputs]) as saved:
        module(*inputs)
    assert cm.predict(model, device="cpu", attention="flash").memory.activations == saved.bytes


@pytest.mark.parametrize("keys", [7, 8])
def test_the_efficient_kernel_keeps_its_mask_in_rows_of_eights_and_flash_takes_none(keys: int) -> None:
    model = cm.from_torch(*masked(keys, (5, keys), torch.bool, 0.0), dynamic={})
    plain = cm.from_torch(Unmasked(0.0).to("meta"), masked(keys, (5, keys), torch.bool, 0.0)[1], dynamic={})
    kept = [cm.predict(one, attention="efficient").memory.activations for one in (model, plain)]
    assert kept[0] - kept[1] == 5 * 8 * 4
    with pytest.raises(cm.CostModelError, match="attention='flash' takes no mask"):
        cm.predict(model, attention="flash")


class Unmasked(Masked):
    """The same without a mask."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (x * self.scale for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)
