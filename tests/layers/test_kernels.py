"""A plain kernel of every layer kind, run on an array that counts its own arithmetic, certifies its FLOP formulas."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.graph.call import Call
from costmodel.graph.tape import Tape
from costmodel.layers import load_all
from costmodel.layers.activation import GatedActivation
from costmodel.layers.base import LayerFlops
from costmodel.layers.collective import Collective, GatheredLinear
from costmodel.layers.embedding import SplitEmbedding, VocabParallelEmbedding
from costmodel.layers.factorisation import MATRICES
from costmodel.layers.function import FUNCTIONS, IN_PLACE
from costmodel.layers.loss import LOSSES, Loss, SplitCrossEntropy, VocabParallelCrossEntropy
from costmodel.layers.reduction import REDUCTIONS
from costmodel.layers.ring_attention import PartedAttention
from tests.kernels import KERNELS
from tests.kernels.counting import Array, Tally, accumulated, add_product, zeros
from tests.kernels.kernel import Case, Operand, Pass
from tests.profiles import examples

EXAMPLES = examples(12)
NUMBERS = ("activation", "complex")
STEP = 1e-6


def on_paper(case: Case, training: bool, input_needs_gradient: bool = True) -> Call:
    """The case as the library records it."""
    tape = Tape(training=training, device="gpu")
    inputs = [
        tape.tensor(
            x.shape,
            "activation" if x.role == "complex" else x.role,
            origin="input",
            requires_grad=training and x.role in NUMBERS and not x.constant and input_needs_gradient,
            dtype="complex-fp32" if x.role == "complex" else None,
        )
        for x in case.inputs
    ]
    tape.record(case.kind, inputs, None, None)
    call = tape.root.entries[-1]
    assert isinstance(call, Call)
    return call


def values_of(x: Operand, random: np.random.Generator) -> np.ndarray:
    """Numbers of pairwise different distances, none at a kink (0, ±3, 6), or indices, or a mask."""
    if x.role == "index":
        return random.integers(0, x.below, x.shape)
    if x.role == "mask":
        return random.random(x.shape) < 0.5
    count, (least, most) = int(np.prod(x.shape)), x.within
    numbers = (least + (random.permutation(count) + 0.37) * (most - least) / count).reshape(x.shape)
    return numbers + 1j * random.normal(size=x.shape) if x.role == "complex" else numbers


def on_arrays(case: Case, call: Call, seed: int, input_needs_gradient: bool = True) -> Pass:
    """The same case with numbers, not yet run."""
    random, tally = np.random.default_rng(seed), Tally()
    inputs = [Array(values_of(x, random), tally) for x in case.inputs]
    buffers = {name: Array(1 + random.random(b.shape), tally) for name, b in call.buffers.items()}
    weights = {
        # Constants as buffers are: those of choices must not meet the numbers of inputs halfway.
        name: Array(1 + random.random(w.shape) if call.layer.fixed else values_of(Operand(w.shape), random), tally)
        for name, w in call.weights.items()
    }
    return Pass(
        case.kind, inputs, weights, buffers, call.tape.training, tally, case.visible, input_needs_gradient, call
    )


def taken(tally: Tally) -> LayerFlops:
    """What was counted since last asked."""
    work = LayerFlops(tally.contractions, tally.pointwise)
    tally.contractions = tally.pointwise = 0
    return work


def certified(work: LayerFlops) -> LayerFlops:
    """Formulas as ints; what another counter reports is not arithmetic."""
    return LayerFlops(int(work.contractions), int(work.pointwise))


def operands_of(p: Pass | Call) -> list[Any]:
    """Inputs, then weights."""
    return [*p.inputs, *p.weights.values()]


OF_RANKS = (
    *(Collective, PartedAttention, SplitEmbedding, SplitCrossEntropy),
    *(GatheredLinear, VocabParallelEmbedding, VocabParallelCrossEntropy, GatedActivation),
)
"""Kinds that need what other ranks have, and Megatron's."""


def test_every_kind_has_a_kernel() -> None:
    """But the one that says that nothing is known of it, and those that need what other ranks have."""
    of_ranks = {name for name, kind in load_all().items() if issubclass(kind, OF_RANKS)}
    assert load_all().keys() - {kernel.name for kernel in KERNELS.values()} == {"unknown", *of_ranks}
    assert load_all()["unknown"].source == "no rule: a lower bound"


@pytest.mark.parametrize(
    ("name", "table"),
    [("pointwise", FUNCTIONS | IN_PLACE), ("reduce", REDUCTIONS), ("compared", LOSSES), ("of_matrix", MATRICES)],
)
def test_every_row_of_a_table_has_a_kernel(name: str, table: dict[str, Any]) -> None:
    assert {f"{name} {row}" for row in table} == {row for row in KERNELS if row.split()[0] == name}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KERNELS))
@EXAMPLES
@given(data=st.data(), training=st.booleans(), seed=st.integers(0, 99))
def test_forward_is_right_and_takes_the_stated_flops(name: str, data: st.DataObject, training: bool, seed: int) -> None:
    kernel = KERNELS[name]
    case = kernel.case(data.draw)
    call = on_paper(case, training)
    p = on_arrays(case, call, seed)
    p.y = kernel.forward(p)
    assert taken(p.tally) == certified(call.layer.forward(call))
    assert p.y.shape == tuple(map(int, call.y.shape))
    weights = {weight: array.values for weight, array in p.weights.items()}
    expected = kernel.reference(p, *(x.values for x in p.inputs), **weights)
    np.testing.assert_allclose(p.y.values, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KERNELS))
@EXAMPLES
@given(data=st.data(), needed=st.booleans(), seed=st.integers(0, 99))
def test_backward_is_right_and_takes_the_stated_flops(name: str, data: st.DataObject, needed: bool, seed: int) -> None:
    kernel = KERNELS[name]
    case = kernel.case(data.draw)
    needed = needed or case.kind.fixed or not on_paper(case, True).weights
    call = on_paper(case, True, needed)
    p = on_arrays(case, call, seed, needed)
    p.y = kernel.forward(p)
    taken(p.tally)
    g = np.ones(()) if isinstance(case.kind, Loss) else direction_like(p.y.values, np.random.default_rng(seed))
    gradients: dict[int, np.ndarray] = {}
    spent: list[tuple[int, LayerFlops]] = []
    for operand, gradient in kernel.backward(p, Array(g, p.tally)):
        place = next(i for i, x in enumerate(operands_of(p)) if x is operand)
        assert gradient.shape == operand.shape
        gradients[place] = gradient.values
        spent.append((place, taken(p.tally)))
    by_place = itemgetter(0)
    assert sorted(spent, key=by_place) == sorted(stated(call), key=by_place)
    assert_is_gradient(kernel, p, g, gradients, seed)


def stated(call: Call) -> Iterator[tuple[int, LayerFlops]]:
    """The kind's formulas for the gradients that are needed, by place among the operands."""
    for gradient in call.layer.backward(call):
        if gradient.operand.requires_grad:
            yield next(i for i, x in enumerate(operands_of(call)) if x is gradient.operand), certified(gradient.work)


def assert_is_gradient(kernel: Any, p: Pass, g: np.ndarray, gradients: dict[int, np.ndarray], seed: int) -> None:
    """Along a random direction of each operand, Σ g·y grows as central differences say."""
    random = np.random.default_rng(seed + 1)
    for place, gradient in gradients.items():
        operand = operands_of(p)[place]
        direction, middle = direction_like(operand.values, random), operand.values
        ends = []
        for step in (STEP, -STEP):
            operand.values = middle + step * direction
            ends.append(kernel.forward(p).values)
        operand.values = middle
        with np.errstate(invalid="ignore"):
            grown = np.where(ends[0] == ends[1], 0, ends[0] - ends[1]) / (2 * STEP)
        scale = 1 + np.abs(gradient * direction).sum() + np.abs(g * grown).sum()
        assert abs(along(g, grown) - along(gradient, direction)) < 1e-6 * scale


def direction_like(x: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Random numbers, complex where x is."""
    numbers = random.normal(size=x.shape)
    return numbers + 1j * random.normal(size=x.shape) if np.iscomplexobj(x) else numbers


def along(g: np.ndarray, x: np.ndarray) -> float:
    """Σ g·x of real numbers, and of the parts of complex ones (``torch.autograd``'s convention)."""
    return float((np.conj(g) * x).real.sum())


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((3, 2), (4, 1)), ((3, 2), (4, 0)), ((2, 3, 2), (0, 4, 1)), ((3, 2, 2), (4, 2, 1)), ((3, 2, 2), (4, 1, 1))],
)
@pytest.mark.parametrize("piece", [False, True])
def test_what_is_seen_several_times_is_summed(shape: tuple[int, ...], strides: tuple[int, ...], piece: bool) -> None:
    """Of three rows of four, no more numbers than those are seen: some twice, or each once, as one piece of several."""
    tape = Tape(training=True, device="gpu")
    x = tape.tensor((3, 4), "activation", requires_grad=True)
    load_all()["as_strided"](shape=shape, strides=strides, piece=piece)(x)
    (call,) = tape.root.calls()
    ((_, work, shared),) = call.gradients()
    seen = np.lib.stride_tricks.as_strided(np.arange(12), shape, [8 * step for step in strides])
    several = len(np.unique(seen)) < seen.size
    assert (bool(work.pointwise), shared) == (several, piece and not several)


@given(seed=st.integers(0, 99))
def test_batchnorm_follows_the_mean_and_unbiased_variance_of_its_batches(seed: int) -> None:
    kernel = KERNELS["batchnorm"]
    case = Case(kernel.layer(), [Operand((3, 2, 2))])
    p = on_arrays(case, on_paper(case, True), seed)
    distance = {}
    for name, batch in (("running_mean", p.x.values.mean((0, 2))), ("running_var", p.x.values.var((0, 2), ddof=1))):
        distance[name] = (batch, batch - p.buffers[name].values)
    kernel.forward(p)
    for name, (batch, before) in distance.items():
        np.testing.assert_allclose(batch - p.buffers[name].values, 0.9 * before)


def test_the_array_counts_products_sums_and_elements() -> None:
    tally = Tally()
    a, b = Array(np.ones((5, 2, 3)), tally), Array(np.ones((5, 3, 4)), tally)
    add_product(zeros((5, 2, 4), tally), a, b)
    assert taken(tally) == LayerFlops(2 * 5 * 2 * 3 * 4, 0)
    a.sum((0, 2))
    assert taken(tally) == LayerFlops(0, 2 * 14)
    a.mean((0, 2))
    assert taken(tally) == LayerFlops(0, 2 * 15)
    accumulated(a, (3,))
    assert taken(tally) == LayerFlops(0, 30)
    np.where(-a > 1.0, a, np.exp(a)).reshape(-1)[3:]
    assert taken(tally) == LayerFlops(0, 4 * 30)


def test_the_array_refuses_what_it_cannot_count() -> None:
    x = Array(np.ones(3), Tally())
    with pytest.raises(TypeError, match="no rule for counting cbrt"):
        np.cbrt(x)
    with pytest.raises(TypeError, match="no rule for counting cumsum"):
        np.cumsum(x)
    with pytest.raises(TypeError, match=r"no rule for counting divide\.reduce"):
        np.divide.reduce(x)
