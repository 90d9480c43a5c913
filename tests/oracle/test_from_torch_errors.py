"""What `from_torch` refuses, and how it says so: in one line, with the cause and the place."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.compiler import is_compiling, is_exporting

import costmodel as cm
from tests.command import error_of

pytestmark = pytest.mark.oracle


class Calls(nn.Module):
    """A module whose forward pass is a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.function = function

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Any:
        return self.function(self.layer(x), scale)


def decides(x: Tensor, _: Any) -> Tensor:
    return x if x.sum() > 0 else -x


def aligned(x: Tensor) -> Tensor:
    """Of one sequence of two steps, whose target is one of two classes."""
    return nn.functional.ctc_loss(x[:, None].log_softmax(-1), torch.ones(1, 1, dtype=torch.long), (2,), (1,))


def packed(x: Tensor, _: Any) -> Tensor:
    """Of two sequences of one step."""
    return nn.utils.rnn.pack_padded_sequence(x[None], torch.tensor([1, 1])).data


X = torch.zeros(2, 2)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no module": (lambda: cm.from_torch("gpt2", X), "takes a torch.nn.Module, not 'gpt2'"),
    "inputs that do not fit": (lambda: cm.from_torch(nn.Linear(2, 2)), "missing a required argument: 'input'"),
    "another width": (lambda: cm.from_torch(nn.Linear(3, 2), X), "cannot run it on the example inputs"),
    "a decision on data": (
        lambda: cm.from_torch(Calls(decides), X),
        r"depends on the data at test_from_torch_errors.py:\d+ in decides",
    ),
    "a size that data decides": (
        lambda: cm.from_torch(Calls(lambda x, _: x[x > 0]), X),
        "index: a size depends on the data",
    ),
    "an error of the module's own": (
        lambda: cm.from_torch(Calls(lambda x, _: x + no_such_name), X),  # type: ignore[name-defined]  # noqa: F821
        r"at test_from_torch_errors.py:\d+ in .*name 'no_such_name' is not defined",
    ),
    "a gradient within forward": (
        lambda: cm.from_torch(Calls(lambda x, _: torch.autograd.grad(x.sum(), x)[0]), X),
        "autograd.grad or backward is called within forward, whose cost is not worked out: return what it is taken of",
    ),
    "backward within forward": (
        lambda: cm.from_torch(Calls(lambda x, _: x.sum().backward()), X),
        "autograd.grad or backward is called within forward",
    ),
    "nothing returned": (lambda: cm.from_torch(Calls(lambda x, _: 3), X), "returns no tensor"),
    "an operator without a rule": (
        lambda: cm.from_torch(Calls(lambda x, _: torch.special.airy_ai(x)), X),
        r"1 operator has no rule: special_airy_ai ×1, 50.0% of its tensors; unknown='lower_bound' leaves them out",
    ),
    "complex numbers, by an operator that has a rule for real ones": (
        lambda: cm.from_torch(Calls(lambda x, _: torch.fft.fft(x).tanh().abs()), X),
        r"1 operator has no rule: tanh ×1 \(tanh: tanh of complex numbers has no rule\)",
    ),
    "complex numbers that are written to where they are read as real ones": (
        lambda: cm.from_torch(Calls(lambda x, _: torch.view_as_complex(x * 1).mul_(2).abs()), X),
        r"1 operator has no rule: mul ×2 \(mul_2: mul writes to numbers that are read as complex ones and as real ones",
    ),
    "a complex weight": (
        lambda: cm.from_torch(nn.Linear(2, 2, dtype=torch.complex128), X.to(torch.complex128)),
        r"Linear: weight weight is of complex numbers \(complex128\)",
    ),
    "a weight of 8 bits": (
        lambda: cm.from_torch(nn.Linear(2, 2).to(torch.float8_e4m3fn), X),
        r"Linear: weight weight is of float8 numbers \(float8_e4m3fn\), for which there are no rules: import",
    ),
    "8 bits, once made": (
        lambda: cm.from_torch(Calls(lambda x, _: x.to(torch.float8_e5m2).to(torch.float32)), X),
        r"1 operator has no rule: to ×2 \(it makes float8 numbers\)",
    ),
    "a loss over all alignments": (
        lambda: cm.from_torch(Calls(lambda x, _: aligned(x)), X),
        r"Calls: _ctc_loss cannot be captured at test_from_torch_errors.py:\d+ in aligned .*depends on the data",
    ),
    "a packed sequence": (
        lambda: cm.from_torch(Calls(packed), X),
        r"Calls: packed sequences cannot be captured at test_from_torch_errors.py:\d+ in packed .* the padded batch",
    ),
    "a number's remainder, which has no derivative": (
        lambda: cm.from_torch(Calls(lambda x, _: torch.remainder(7.0, x)), X),
        "remainder of numbers that need gradients has no rule",
    ),
    "an unknown way": (lambda: cm.from_torch(nn.Linear(2, 2), X, unknown="zero"), "neither 'error' nor 'lower_bound'"),
    "an unknown input": (
        lambda: cm.from_torch(nn.Linear(2, 2), X, dynamic={"inputs": {0: "batch"}}),
        "unknown input 'inputs': did you mean 'input'",
    ),
    "an unknown size": (
        lambda: cm.from_torch(nn.Linear(2, 2), X, dynamic={"input": {0: "bath"}}),
        "unknown size in dynamic of input 'bath': did you mean 'batch'",
    ),
    "no axis": (
        lambda: cm.from_torch(nn.Linear(2, 2), X, dynamic={"input": {2: "batch"}}),
        "2 is no axis of a tensor of 2 axes",
    ),
    "no mapping": (lambda: cm.from_torch(nn.Linear(2, 2), X, dynamic=[0]), "is not a mapping of inputs"),
    "a size that no input has": (
        lambda: cm.predict(cm.from_torch(nn.Linear(2, 2), X), seq=4),
        "seq=4 does not apply to 'Linear': no input has such a size",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_imported_is_refused(name: str) -> None:
    attempt, says = REFUSED[name]
    assert re.search(says, error_of(attempt))


def test_a_lower_bound_says_that_it_is_one() -> None:
    model = cm.from_torch(Calls(lambda x, _: torch.special.airy_ai(x)), X, unknown="lower_bound")
    prediction = cm.predict(model, batch=5)
    assert model.unknown == ("special_airy_ai",)
    assert "lower bound: 1 operator has no rule: special_airy_ai ×1" in model.notes
    assert "lower bound: all numbers but params and weights: no rule for special_airy_ai" in str(prediction).replace(
        "\n  ", " "
    )
    assert prediction.params == sum(w.numel() for w in nn.Linear(2, 2).parameters())


def test_a_lower_bound_leaves_out_what_makes_complex_numbers() -> None:
    model = cm.from_torch(Calls(lambda x, _: (x * 1j).tanh().abs() * 2), X, unknown="lower_bound")
    assert model.unknown == ("tanh",)
    assert "no rule: tanh ×1 (tanh: tanh of complex numbers has no rule)" in model.notes
    assert cm.predict(model, batch=5).flops.forward == 2 * 5 * 2 * 2  # of the linear layer


def test_keyword_inputs_are_inputs() -> None:
    module = Calls(lambda x, scale: x * scale)
    model = cm.from_torch(module, X, {"scale": torch.zeros(2, 1)})
    assert cm.predict(model, batch=5).memory.inputs == 4 * (5 * 2 + 5)


def test_a_module_and_its_memory_are_left_alone() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before = {name: (id(tensor), tensor.clone()) for name, tensor in module.state_dict(keep_vars=True).items()}
    cm.from_torch(module, X)
    after = module.state_dict(keep_vars=True)
    assert all(id(after[name]) == number and torch.equal(after[name], data) for name, (number, data) in before.items())


def test_an_imported_model_is_written_and_read() -> None:
    model = cm.from_torch(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), torch.zeros(2, 3, 8, 8))
    prediction = cm.predict(model, batch=3, image=(9, 7))
    assert cm.Prediction.from_json(prediction.to_json()) == prediction


def test_other_types_of_weights_are_noted() -> None:
    model = cm.from_torch(nn.Linear(2, 2).to(torch.bfloat16), X.to(torch.bfloat16))
    assert "weights are bfloat16" in model.notes
    assert cm.predict(model, precision="bf16").memory.weights == 2 * 6


class Endless(nn.Module):
    """Takes for ever while its height is open, as the guards of some networks seem to."""

    def forward(self, x: Tensor) -> Tensor:
        while not isinstance(x.shape[2], int):
            pass
        return x * x.shape[2]


def test_what_takes_too_long_is_left_fixed_with_a_note() -> None:
    model = cm.from_torch(Endless(), torch.zeros(2, 3, 4, 5), time_limit=0.5)
    assert "height is fixed at 4: leaving it open takes more than 0.5 s" in model.notes
    assert model.open == {"batch"}


@pytest.mark.parametrize(
    "asked",
    [is_exporting, lambda: torch.compiler.is_exporting(), is_compiling, torch._dynamo.external_utils.is_compiling],
)
def test_a_module_that_asks_is_not_exported(asked: Callable[[], bool]) -> None:
    model = cm.from_torch(Calls(lambda x, _: x if asked() else x @ x.mT), X)
    assert [step.op for step in model.program.steps if step.op == "matmul"] == ["matmul"]
    assert not asked()


@pytest.mark.parametrize("fails", [False, True])
def test_a_model_of_transformers_is_told_that_it_is_exported_if_it_must(
    monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    asking: Any = ModuleType("transformers.models.asking")
    asking.__dict__.update(is_exporting=is_exporting, fails=fails)
    exec("def runs(x):\n    return x.tanh() if is_exporting() else x[x > 0] if fails else x.exp()", vars(asking))
    monkeypatch.setitem(sys.modules, asking.__name__, asking)
    model = cm.from_torch(Calls(lambda x, _: asking.runs(x)), X)
    assert ("is told that it is exported" in model.notes) == fails
    assert [step.op for step in model.program.steps][-1] == ("tanh" if fails else "exp")
