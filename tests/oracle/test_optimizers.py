"""Optimizer states against those that torch.optim really holds after a step."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.training.optimizers import OPTIMIZERS, Optimizer

from .tracker import Tracker

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle

REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "nesterov": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "adagrad": ("Adagrad", {}),
    "rmsprop": ("RMSprop", {}),
    "rmsprop-momentum": ("RMSprop", {"momentum": 0.9}),
    "rmsprop-centered": ("RMSprop", {"momentum": 0.9, "centered": True}),
    "adam": ("Adam", {}),
    "adamw": ("AdamW", {}),
    "amsgrad": ("AdamW", {"amsgrad": True}),
    "nadam": ("NAdam", {}),
    "adamax": ("Adamax", {}),
    "radam": ("RAdam", {}),
    "adadelta": ("Adadelta", {}),
    "rprop": ("Rprop", {}),
    "asgd": ("ASGD", {}),
    "rmsprop-centered-plain": ("RMSprop", {"centered": True}),
    "adafactor": ("Adafactor", {}),
    "muon": ("Muon", {}),
}
NOT_IN_TORCH = {"lion", "adam-8bit", "lamb", "shampoo"}


def held(real: str, options: dict[str, Any], shape: tuple[int, ...], dtype: Any) -> dict[str, tuple[int, Any]]:
    """Bytes and shape of each state after one step."""
    if real == "Muon" and len(shape) != 2:
        real = "AdamW"
    weight = torch.nn.Parameter(torch.zeros(shape, dtype=dtype))
    weight.grad = torch.ones_like(weight)
    optimizer = getattr(torch.optim, real)([weight], lr=0.1, **options)
    optimizer.step()
    state = optimizer.state[weight]
    return {name: (t.nbytes, t.shape) for name, t in state.items() if torch.is_tensor(t)}


@given(
    st.sampled_from(sorted(REAL)),
    st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple),
    st.sampled_from(["float32", "bfloat16"]),
)
def test_states_equal_those_of_torch(name: str, shape: tuple[int, ...], dtype: str) -> None:
    optimizer, torch_dtype = OPTIMIZERS[name], getattr(torch, dtype)
    states = held(*REAL[name], shape, torch_dtype)
    scalars = {n: b for n, (b, s) in states.items() if s == ()}
    assert {s.name for s in optimizer.states_of(shape)} == set(states)
    for state in optimizer.states_of(shape):
        assert state.size_bytes(shape, torch_dtype.itemsize) == states[state.name][0]
    assert optimizer.scalar_bytes(shape) == sum(scalars.values())
    tensors = [bytes for name, (bytes, _) in states.items() if name not in scalars]
    assert sorted(optimizer.state_sizes(shape, torch_dtype.itemsize)) == sorted(tensors)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (2, 3, 4), (4, 3, 2), (3, 2, 5, 4), (1, 6), (6, 1), (7,)])
def test_adafactor_keeps_rows_and_columns_as_torch_does(shape: tuple[int, ...]) -> None:
    """Of axes that are nowhere alike, so that no state can stand for another."""
    held_by_torch = {name: size for name, (size, _) in held("Adafactor", {}, shape, torch.float32).items()}
    states = OPTIMIZERS["adafactor"].states_of(shape)
    assert {state.name: state.size_bytes(shape, 4) for state in states} == held_by_torch


def test_every_optimizer_is_held_against_torch_or_named() -> None:
    assert set(REAL) | NOT_IN_TORCH == set(OPTIMIZERS)
    in_torch = {name.lower() for name in vars(torch.optim) if inspect.isclass(getattr(torch.optim, name))}
    assert {"adamw", "adafactor"} <= in_torch
    assert not {name.replace("-", "") for name in NOT_IN_TORCH} & in_torch


def test_shampoo_keeps_two_squares_an_axis() -> None:
    """Gupta et al. 2018: a preconditioner of n × n for an axis of n."""
    assert sum(OPTIMIZERS["shampoo"].state_sizes((3, 5), 4)) == 2 * 4 * (9 + 25)


def test_eight_bit_adam_scales_blocks() -> None:
    """Dettmers et al. 2022: two bytes a weight and two scales a block; small tensors stay in fp32."""
    eight: Optimizer = OPTIMIZERS["adam-8bit"]
    assert sum(eight.state_sizes((64, 64), 4)) == 2 * (4096 + 4 * 16)
    assert sum(eight.state_sizes((64, 63), 4)) == 2 * 4 * 64 * 63


ASKING = {"adafactor", "asgd"}
"""Those whose step asks a tensor for its value, which one without data has not."""


@pytest.mark.parametrize("name", sorted(set(REAL) - ASKING))
@pytest.mark.parametrize("weights", [1, 2])
def test_an_update_makes_what_it_does_in_torch(name: str, weights: int) -> None:
    """In weights of the last shape: what is alive at most in a step, beside what was there before."""
    optimizer, (real, options), shape = OPTIMIZERS[name], REAL[name], (256, 256)
    parameters = [torch.nn.Parameter(torch.empty(shape, device="meta")) for _ in range(weights)]
    one_by_one = {} if real == "Muon" else {"foreach": False}
    real_optimizer = getattr(torch.optim, real)(parameters, lr=0.1, **options, **one_by_one)
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    real_optimizer.step()
    states = [t for state in real_optimizer.state.values() for t in state.values() if torch.is_tensor(t)]
    there = [*parameters, *(parameter.grad for parameter in parameters), *states]
    with Tracker(there) as tracker:
        real_optimizer.step()
    most = tracker.most["forward"].alive // parameters[0].nbytes
    before = (2 + sum(s.extent == "weight" for s in optimizer.states)) * weights
    assert most - before == optimizer.makes + (optimizer.lasts and weights > 1 and optimizer.makes > 0)


@pytest.mark.parametrize("name", sorted(set(REAL) - ASKING - {"rprop"}))  # whose makes masks and more, one by one
def test_an_update_of_all_weights_makes_what_it_does_in_torch(name: str) -> None:
    """With ``foreach``, in bytes of all weights; those that torch has no such update of are known to have none."""
    real, options = REAL[name]
    parameters = [torch.nn.Parameter(torch.empty(shape, device="meta")) for shape in ((64, 100), (100,), (3, 7, 5))]
    if "foreach" not in inspect.signature(getattr(torch.optim, real)).parameters:
        assert OPTIMIZERS[name].together is None
        return
    optimizer = getattr(torch.optim, real)(parameters, lr=0.1, **options, foreach=True)
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    states = [t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t)]
    there = [*parameters, *(parameter.grad for parameter in parameters), *states]
    before = sum(tensor.nbytes for tensor in there if tensor.device.type == "meta")
    with Tracker(there) as tracker:
        optimizer.step()
    made = tracker.most["forward"].alive - before
    assert made == (OPTIMIZERS[name].together or 0) * sum(parameter.nbytes for parameter in parameters)


def test_a_fused_update_is_one_that_torch_has() -> None:
    has = {
        name for name, (real, _) in REAL.items() if "fused" in inspect.signature(getattr(torch.optim, real)).parameters
    }
    assert {name for name, optimizer in OPTIMIZERS.items() if optimizer.fused} == has
