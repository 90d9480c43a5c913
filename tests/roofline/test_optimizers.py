"""Optimizer steps in NumPy: those of torch.optim where it has them, laws of the papers elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.roofline.execution import execute
from costmodel.roofline.kernels import ArrayTape
from costmodel.roofline.kernels.optimizers import STARTS, STEPS, Update, codebook, states_of
from costmodel.roofline.memory import ArrayMemory
from costmodel.roofline.program import program_of
from costmodel.training.optimizers import OPTIMIZERS
from tests.oracle.settings import IN_TORCH, differential

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
SEED = st.integers(0, 99)


def stepped(
    name: str, weight: np.ndarray, gradients: list[np.ndarray], start: float | None = None, first: int = 1
) -> dict[str, np.ndarray]:
    """The weight after a step for each gradient, from the `first` on, and its states; these may begin as `start`."""
    memory = ArrayMemory()
    held: dict[str, np.ndarray] = {"weight": weight}
    for number, gradient in enumerate(gradients, start=first):
        tape = ArrayTape("float64")
        w, g = tape.array(weight.shape, "weight"), tape.array(weight.shape, "input")
        states = states_of(tape, OPTIMIZERS[name], w)
        for state, ref in states.items():
            kept = dict[str, Any](dtype=ref.dtype)
            begun = STARTS.get(state, 0.0) if start is None else start
            memory.hold(ref, held.get(state, np.full(ref.shape, begun, **kept)))
        memory.hold(w, held["weight"])
        memory.hold(g, gradient)
        STEPS[name](tape, Update(w, g, states, number))
        program_of(tape.ops, [], (), name, [w, g, *states.values()]).run(memory)
        held = {"weight": memory.array(w), **{state: memory.array(ref) for state, ref in states.items()}}
    return held


def drawn(seed: int, shape: tuple[int, ...]) -> tuple[np.ndarray, list[np.ndarray]]:
    random = np.random.default_rng(seed)
    return random.normal(size=shape), [random.normal(size=shape) for _ in range(7)]


def step_in_torch(optimizer: Any, parameter: Any, gradients: list[np.ndarray]) -> None:
    """A step for each gradient, the optimizer's own scalars in double precision."""
    import torch

    torch.set_default_dtype(torch.float64)
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
    torch.set_default_dtype(torch.float32)


@pytest.mark.oracle
@pytest.mark.parametrize("name", sorted(IN_TORCH.keys() - {"muon"}))
@differential
@given(SHAPES, SEED)
def test_steps_equal_those_of_torch(name: str, shape: tuple[int, ...], seed: int) -> None:
    """Enough of them for RAdam to rectify the last."""
    torch = pytest.importorskip("torch")
    weight, gradients = drawn(seed, shape)
    parameter = torch.nn.Parameter(torch.from_numpy(weight.copy()))
    real, options = IN_TORCH[name]
    optimizer = getattr(torch.optim, real)([parameter], **options)
    step_in_torch(optimizer, parameter, gradients)
    found = stepped(name, weight, gradients)["weight"]
    np.testing.assert_allclose(found, parameter.detach().numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.oracle
@given(SEED, st.integers(1_000_001, 1_000_005))
def test_asgd_begins_its_mean_after_a_million_steps(seed: int, first: int) -> None:
    torch = pytest.importorskip("torch")
    weight, gradients = drawn(seed, (3,))
    parameter = torch.nn.Parameter(torch.from_numpy(weight.copy()))
    optimizer, done = torch.optim.ASGD([parameter]), first - 1
    state = {
        "step": done,
        "eta": 1e-2 / (1 + 1e-4 * 1e-2 * done) ** 0.75,
        "mu": 1 / max(1, done - 1e6),
        "ax": np.zeros(3),
    }
    optimizer.state[parameter] = {name: torch.tensor(value, dtype=torch.float64) for name, value in state.items()}
    step_in_torch(optimizer, parameter, gradients)
    found = stepped("asgd", weight, gradients, first=first)
    np.testing.assert_allclose(found["weight"], parameter.detach().numpy(), rtol=1e-9)
    np.testing.assert_allclose(found["ax"], optimizer.state[parameter]["ax"].numpy(), rtol=1e-9)


def test_every_optimizer_has_a_step_or_is_refused_by_name() -> None:
    assert OPTIMIZERS.keys() - STEPS.keys() == {"lbfgs"}
    with pytest.raises(cm.CostModelError, match="optimizer 'lbfgs' has no NumPy kernel: use one of sgd, momentum"):
        execute(cm.MLP(sizes=[2, 2]), mode="train", optimizer="lbfgs")


EIGHT = OPTIMIZERS["adam-8bit"]
LARGE = st.sampled_from([(4096,), (64, 64), (17, 241), (3, 37, 41), (5000,)])
"""Of 4,096 elements and more, with and without a block that is not full."""


@given(SHAPES | LARGE)
def test_states_of_a_byte_take_what_the_cost_model_counts(shape: tuple[int, ...]) -> None:
    t = ArrayTape("float32")
    states = states_of(t, EIGHT, t.array(shape, "weight"))
    assert sum(ref.buffer.bytes for ref in states.values()) == sum(EIGHT.state_sizes(shape, 4))


@given(SHAPES, SEED)
def test_small_weights_have_adam_s_step_in_full_precision(shape: tuple[int, ...], seed: int) -> None:
    weight, gradients = drawn(seed, shape)
    found, plain = stepped("adam-8bit", weight, gradients), stepped("adam", weight, gradients)
    np.testing.assert_array_equal(found["weight"], plain["weight"])


def decoded(codes: np.ndarray, scales: np.ndarray, signed: bool) -> np.ndarray:
    """Each code's number times its block's scale, one after another."""
    book, flat = codebook(signed), codes.reshape(-1)
    return np.array([book[code] * scales[at // 256] for at, code in enumerate(flat)]).reshape(codes.shape)


@pytest.mark.slow
@given(LARGE, SEED)
def test_moments_are_kept_as_the_nearest_codes_of_their_blocks(shape: tuple[int, ...], seed: int) -> None:
    """After a step from nothing: a tenth of the gradient, and a thousandth of its square."""
    weight, [gradient, *_] = drawn(seed, shape)
    gradient.reshape(-1)[256:512] = 0
    found, plain = stepped("adam-8bit", weight, [gradient]), stepped("adam", weight, [gradient])
    np.testing.assert_allclose(found["weight"], plain["weight"], rtol=1e-12)
    for name, signed, moment in (("exp_avg", True, gradient / 10), ("exp_avg_sq", False, gradient**2 / 1000)):
        kept = decoded(found[name], found[f"{name}_scale"], signed)
        flat, book = moment.reshape(-1), np.array(codebook(signed))
        for start in range(0, flat.size, 256):
            block = flat[start : start + 256]
            nearest = np.abs(np.abs(block).max() * book - block[:, None]).min(1)
            np.testing.assert_allclose(np.abs(kept.reshape(-1)[start : start + 256] - block), nearest, atol=1e-12)


@pytest.mark.slow
@given(LARGE, SEED)
def test_steps_on_states_of_a_byte_go_nearly_where_adam_s_go(shape: tuple[int, ...], seed: int) -> None:
    """Rounded by up to 1.2 % of the largest in a block for the mean, but never so far as to turn back on the whole."""
    weight, gradients = drawn(seed, shape)
    moved, plain = (stepped(name, weight, gradients)["weight"] - weight for name in ("adam-8bit", "adam"))
    assert np.linalg.norm(moved - plain) < 0.1 * np.linalg.norm(plain)
    assert np.any(moved != plain)


def test_a_codebook_has_the_numbers_of_dynamic_quantisation() -> None:
    for signed, count in ((True, 127), (False, 254)):
        book = codebook(signed)
        assert len(set(book)) == 256
        assert book == sorted(book)
        assert (book[0], book[-1]) == (pytest.approx(-0.992_968_75) if signed else 0.0, 1.0)
        positive = [number for number in book if 0 < number < 1]
        assert len(positive) == count
        spacing = np.diff([number for number in positive if number > 0.1])
        np.testing.assert_allclose(spacing, 0.9 / (64 if signed else 128))
        np.testing.assert_allclose(min(positive), 1e-6 * (0.55 if signed else 0.325))


@given(SHAPES, SEED)
def test_lion_moves_every_weight_equally_far(shape: tuple[int, ...], seed: int) -> None:
    """Beside the decay; Chen et al. 2023, alg. 2."""
    weight, [gradient, *_] = drawn(seed, shape)
    moved = stepped("lion", weight, [gradient])["weight"] - weight * (1 - 1e-4 * 1e-2)
    np.testing.assert_allclose(moved, -1e-4 * np.sign(gradient), rtol=1e-9)


@given(SHAPES, SEED)
def test_lamb_moves_as_far_as_a_share_of_the_weight_s_length(shape: tuple[int, ...], seed: int) -> None:
    weight, gradients = drawn(seed, shape)
    before, after = (stepped("lamb", weight, gradients[:n])["weight"] for n in (2, 3))
    assert np.linalg.norm(after - before) == pytest.approx(1e-3 * np.linalg.norm(before))
    assert np.any(stepped("lamb", 0 * weight, gradients[:1])["weight"])  # a weight of 0 can leave it


@given(st.integers(2, 6), st.integers(2, 6), SEED)
def test_muon_moves_along_all_directions_alike(rows: int, columns: int, seed: int) -> None:
    """Newton-Schulz brings the singular values near 1: to 0.7 … 1.2 (Jordan et al. 2024) if none begins too small."""
    weight, _ = drawn(seed, (rows, columns))
    left, _, right = np.linalg.svd(np.random.default_rng(seed).normal(size=(rows, columns)), full_matrices=False)
    gradient = left * np.linspace(1, 2, min(rows, columns)) @ right
    moved = stepped("muon", weight, [gradient])["weight"] - weight * (1 - 1e-3 * 0.1)
    lengths = np.linalg.svd(moved, compute_uv=False) / (1e-3 * max(1, rows / columns) ** 0.5)
    assert lengths.min() > 0.65
    assert lengths.max() < 1.25


@given(SHAPES, SEED)
def test_shampoo_gathers_a_gram_matrix_an_axis_and_turns_by_its_roots(shape: tuple[int, ...], seed: int) -> None:
    weight, [gradient, *_] = drawn(seed, shape)
    found = stepped("shampoo", weight, [gradient], start=0.0)
    grams = [np.tensordot(gradient, gradient, (rest, rest)) for rest in map(list, rests(len(shape)))]
    np.testing.assert_allclose(found["preconditioners"], np.concatenate([g.reshape(-1) for g in grams]), atol=1e-12)
    np.testing.assert_allclose(found["weight"], weight)  # no root, no way to go
    ones = stepped("shampoo", weight, [gradient], start=1.0)["weight"]
    np.testing.assert_allclose(ones, weight - 0.1 * gradient.sum(), atol=1e-12)


def rests(axes: int) -> list[list[int]]:
    return [[other for other in range(axes) if other != axis] for axis in range(axes)]
