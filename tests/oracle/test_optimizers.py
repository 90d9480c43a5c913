"""Optimizer states against those that torch.optim really holds after a step."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import costmodel as cm
from costmodel.training.optimizers import HISTORY, OPTIMIZERS, Optimizer

from .settings import IN_TORCH
from .tracker import Tracker, training_step

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle

FLAT = {"lbfgs"}
"""Held by tests of its own: its states are lists, and of all weights in a row."""
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
    st.sampled_from(sorted(IN_TORCH)),
    st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple),
    st.sampled_from(["float32", "bfloat16"]),
)
def test_states_equal_those_of_torch(name: str, shape: tuple[int, ...], dtype: str) -> None:
    optimizer, torch_dtype = OPTIMIZERS[name], getattr(torch, dtype)
    states = held(*IN_TORCH[name], shape, torch_dtype)
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
    assert set(IN_TORCH) | FLAT | NOT_IN_TORCH == set(OPTIMIZERS)
    assert {name for name, optimizer in OPTIMIZERS.items() if optimizer.flat} == FLAT
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
    assert sum(eight.state_sizes((17, 241), 4)) == 2 * (4097 + 4 * 17)  # the last block is of one number


ASKING = {"adafactor", "asgd", "lbfgs"}
"""Those whose step asks a tensor for its value, which one without data has not."""
SMALL = 4096
"""Bytes of numbers, rows and columns that a step makes, which are fewer than a weight's [bytes]."""


def ready(name: str, shapes: Sequence[tuple[int, ...]], **options: Any) -> tuple[Any, list[Any]]:
    """An optimizer of torch after a first step, and its weights, which have gradients."""
    real, own = IN_TORCH[name]
    device = "cpu" if name in ASKING else "meta"
    if real == "Muon" and any(len(shape) != 2 for shape in shapes):
        real = "AdamW"
    elif real == "Muon":
        options = {}
    parameters = [torch.nn.Parameter(torch.ones(shape, device=device)) for shape in shapes]
    optimizer = getattr(torch.optim, real)(parameters, lr=0.1, **own, **options)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer, parameters


def made_in_a_step(optimizer: Any, parameters: list[Any]) -> int:
    """Bytes alive at most in a step, beside what was there before."""
    device = parameters[0].device.type
    states = [t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t)]
    there = [*parameters, *(parameter.grad for parameter in parameters), *states]
    with Tracker(there, device) as tracker:
        optimizer.step()
    most = max((most.alive for most in tracker.most.values()), default=0)
    return max(0, most - sum(tensor.nbytes for tensor in there if tensor.device.type == device))


@pytest.mark.parametrize("name", sorted(IN_TORCH))
@pytest.mark.parametrize("weights", [1, 2])
@pytest.mark.parametrize("shape", [(256, 256), (65536,)])
def test_an_update_makes_what_it_does_in_torch(name: str, weights: int, shape: tuple[int, ...]) -> None:
    """In weights of one shape, of which one that lasts stays until the next has its own."""
    optimizer, size = OPTIMIZERS[name], 4 * 65536
    made, rest = divmod(made_in_a_step(*ready(name, [shape] * weights, foreach=False)), size)
    makes = optimizer.makes_of(shape)
    lasts = optimizer.lasts or (name == "muon" and len(shape) == 1)  # AdamW's, of a weight that is no matrix
    assert (made, rest < SMALL if name in ASKING else rest == 0) == (
        makes + (lasts and weights > 1 and makes > 0),
        True,
    )


@pytest.mark.parametrize("name", sorted(IN_TORCH))
@pytest.mark.parametrize("shapes", [((64, 100), (100,), (3, 7, 5)), ((9, 7), (200, 64)), ((80, 80),)])
def test_an_update_of_all_weights_makes_what_it_does_in_torch(name: str, shapes: Any) -> None:
    """With ``foreach``, in bytes; those that torch has no such update of are known to have none."""
    optimizer = OPTIMIZERS[name]
    if "foreach" not in inspect.signature(getattr(torch.optim, IN_TORCH[name][0])).parameters:
        assert optimizer.together is None
        return
    assert optimizer.together is not None
    made = made_in_a_step(*ready(name, shapes, foreach=True))
    sizes = [4 * prod(shape) for shape in shapes]
    in_turn = max(sum(state.size_bytes(shape, 4) for state in optimizer.in_turn) for shape in shapes)
    beyond = made - optimizer.together * sum(sizes) - in_turn
    assert beyond == 0 or (name in ASKING and 0 < beyond < 16)  # of numbers


@pytest.mark.parametrize("name", ["rprop", "adadelta", "adamw"])
def test_a_step_of_all_weights_at_once_peaks_as_in_torch(name: str) -> None:
    """The whole of the optimizer's phase, to the byte; the largest of three weights is not the first nor the last."""
    sizes = (6, 50, 90, 3)
    linear = [torch.nn.Linear(n, m, bias=False, device="meta") for n, m in pairwise(sizes)]
    module = torch.nn.Sequential(linear[0], torch.nn.ReLU(), linear[1], torch.nn.ReLU(), linear[2])
    x, target = torch.empty(2, 6, device="meta"), torch.empty(2, 3, device="meta")
    update = partial(getattr(torch.optim, IN_TORCH[name][0]), foreach=True)
    seen = training_step(module, x, target, torch.nn.functional.mse_loss, update=update).most["optimizer"]
    model = cm.MLP(sizes=sizes, bias=False, activation="relu")
    p = cm.predict(model, batch=2, optimizer=name, update="foreach", loss="mean_squared_error")
    assert max(step.alive.total for step in p.timeline.steps if step.phase == "optimizer") == seen.alive


def test_adafactor_updates_all_at_once_only_where_it_is_asked_to() -> None:
    """PyTorch prefers ``foreach`` on a GPU by itself, but for this one, whose documentation says why."""
    told = {
        name
        for name, (real, _) in IN_TORCH.items()
        if "contrary to other optimizers" in getattr(torch.optim, real).__doc__
    }
    assert {name for name, optimizer in OPTIMIZERS.items() if not optimizer.by_itself} == told == {"adafactor"}


class Passes(TorchDispatchMode):
    """Counts the kernels that go over tensors of so many elements, and such tensors that they read and write."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.elements = elements
        self.found = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {id(x): x for x in tree_leaves((args, kwargs)) if torch.is_tensor(x) and x.numel() == self.elements}
        made = [x for x in tree_leaves(result) if torch.is_tensor(x) and x.numel() == self.elements]
        changes = func._schema.is_mutable
        if not changes and any(
            x._is_view() or x.untyped_storage()._cdata == y.untyped_storage()._cdata
            for x in made
            for y in given.values()
        ):
            return result  # a view
        if given or made:
            overwritten = func._schema.name == "aten::copy_"
            self.found += Counter(kernels=1, read=len(given) - overwritten, written=len(made))
        return result


DECLARED = sorted(name for name in IN_TORCH if OPTIMIZERS[name].passes is not None)


@pytest.mark.parametrize("name", DECLARED)
def test_an_update_goes_over_a_weight_as_often_as_in_torch(name: str) -> None:
    optimizer, _ = ready(name, [(64, 100)], foreach=False)
    with Passes(6400) as passes:
        optimizer.step()
    assert OPTIMIZERS[name].passes_of((64, 100)) == tuple(passes.found[what] for what in ("kernels", "read", "written"))


def held_flat(state: dict[str, Any]) -> dict[str, list[int]]:
    """Bytes of the tensors of each entry of a state, those in lists too."""
    entries = {name: value if isinstance(value, list) else [value] for name, value in state.items()}
    tensors = {name: [each.nbytes for each in values if torch.is_tensor(each)] for name, values in entries.items()}
    return {name: sizes for name, sizes in tensors.items() if sizes}


@pytest.mark.parametrize("shapes", [((8, 16), (40,)), ((7,),)])
def test_lbfgs_keeps_and_makes_what_it_does_in_torch(shapes: tuple[tuple[int, ...], ...]) -> None:
    """Once its history is full: a step of one forward and backward pass, on a bowl."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    scales = [torch.rand(shape) + 0.5 for shape in shapes]
    real = torch.optim.LBFGS(parameters, lr=0.01, max_iter=1)
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)

    def closure() -> Any:
        for parameter, scale in zip(parameters, scales, strict=True):
            parameter.grad = parameter.detach() * scale
        return torch.zeros(())

    for _ in range(HISTORY + 2):
        real.step(closure)
    optimizer, whole = OPTIMIZERS["lbfgs"], (sum(map(prod, shapes)),)
    expected = held_flat(real.state[parameters[0]])
    assert {s.name: [s.size_bytes(whole, 4)] * s.count for s in optimizer.states} == expected
    assert optimizer.scalar_bytes(whole) == sum(sum(sizes) for sizes in expected.values() if sizes[0] == 4)
    if len(shapes) == 1:  # so that the step over all weights is one over a tensor of as many
        with Passes(*whole) as own:
            closure()
        with Passes(*whole) as passes:
            real.step(closure)
        found = passes.found - own.found
        assert optimizer.passes == tuple(found[what] for what in ("kernels", "read", "written"))
    p = cm.predict(cm.MLP(sizes=[8, 16, 2]), optimizer="lbfgs")
    assert p.memory.optimizer == p.params * sum(len(sizes) for sizes in expected.values() if sizes[0] > 4) * 4
    assert p.memory.counters == optimizer.scalar_bytes(whole)


def test_lbfgs_makes_three_more_of_all_weights_as_in_torch() -> None:
    """The gradients in a row, and two directions, of which one becomes the state; what it adds to its history it takes
    from it.
    """
    parameter = torch.nn.Parameter(torch.randn(1 << 16))
    scale, gradient = torch.rand(1 << 16) + 0.5, torch.empty(1 << 16)
    parameter.grad = gradient
    real = torch.optim.LBFGS([parameter], lr=0.01, max_iter=1, history_size=3)

    def closure() -> Any:
        torch.mul(parameter.detach(), scale, out=gradient)
        return torch.zeros(())

    for _ in range(5):
        real.step(closure)
    held = [
        t for v in real.state[parameter].values() for t in (v if isinstance(v, list) else [v]) if torch.is_tensor(t)
    ]
    before = sum(t.nbytes for t in (parameter, gradient, *held))
    tracker = Tracker([parameter, gradient, scale, *held], "cpu")
    del held  # the oldest of them goes
    with tracker:
        real.step(closure)
    made, rest = divmod(tracker.most["forward"].alive - before - scale.nbytes, parameter.nbytes)
    assert (made, rest < SMALL) == (OPTIMIZERS["lbfgs"].makes, True)
    model = cm.MLP(sizes=[8, 16, 2])
    steps = [cm.predict(model, optimizer=name).timeline.steps for name in ("lbfgs", "sgd")]
    lbfgs, sgd = (max(s.alive.total - s.alive.optimizer for s in own if s.phase == "optimizer") for own in steps)
    assert lbfgs - sgd == made * 4 * cm.predict(model).params


def test_a_fused_update_is_one_that_torch_has() -> None:
    has = {
        name
        for name, (real, _) in IN_TORCH.items()
        if "fused" in inspect.signature(getattr(torch.optim, real)).parameters
    }
    assert {name for name, optimizer in OPTIMIZERS.items() if optimizer.fused} == has
