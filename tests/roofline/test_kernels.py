"""Kernels that do other arithmetic than the plain definition compute the same, and say where they differ.

All others are held against their kinds' formulas in ``tests/test_kernels.py``.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import costmodel as cm
from costmodel import architectures
from costmodel.architectures.mixers import MIXERS
from costmodel.graph.call import Call
from costmodel.graph.tape import Tape
from costmodel.layers import load_all as load_kinds
from costmodel.layers.attention import FusedAttention
from costmodel.layers.function import Pointwise
from costmodel.layers.loss import Loss
from costmodel.roofline.kernels import load_all
from costmodel.roofline.kernels.attention import keys_of
from costmodel.roofline.memory import ArrayMemory
from costmodel.roofline.recorder import layer_programs
from tests.kernels import KERNELS
from tests.kernels.counting import Array
from tests.kernels.kernel import Kernel, Pass
from tests.kernels.visibility import Visible
from tests.layers.test_kernels import OF_RANKS, certified, on_arrays, on_paper, operands_of, stated, taken
from tests.profiles import examples

EXAMPLES = examples(12)
PROGRAMS = load_all()
ROWS = {"pointwise": "pointwise pow"}
"""Of kinds that a table tells apart, the function whose kernel is beside."""
EXTRA = sorted(ROWS.get(name, name) for name, kernel in PROGRAMS.items() if kernel.extra)
SEED = st.integers(0, 99)

REFUSED = (*MIXERS, "disentangled", "altup", "composition", "span_convolution")
"""Modules of what mixes tokens in another way, holds several streams or is written otherwise, which is refused by name.
"""
OF_REFUSED = {"compared", "parameter", "copy", "computed", "cat"}
"""Kinds of losses, of pooling by attention, of tokens that are chosen or in boxes, and of spans beside attention, which
are refused by name."""


def test_no_architecture_has_a_kind_without_a_program() -> None:
    """Only models imported from PyTorch and ranks of several have other kinds, and those are not run in NumPy."""
    assert PROGRAMS.keys() <= load_kinds().keys()
    without = {
        kind: name for name, kind in load_kinds().items() if name not in PROGRAMS and not issubclass(kind, OF_RANKS)
    }
    assert [name for kind, name in without.items() if kind.in_lists] == []
    modules = [
        import_module(f"{architectures.__name__}.{m.name}")
        for m in iter_modules(architectures.__path__)
        if m.name not in REFUSED
    ]
    assert len(modules) > 10
    made = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    assert {name for kind, name in without.items() if kind in made} == OF_REFUSED


@pytest.mark.parametrize(
    ("kind", "named"), [(Pointwise("exp"), "of exp"), (Pointwise("pow", exponent=4), "of pow with exponent 4")]
)
def test_a_function_without_a_program_is_refused_by_name(kind: Pointwise, named: str) -> None:
    tape = Tape(training=False, device="gpu")
    kind(tape.tensor((2, 3)))
    [call] = tape.root.calls()
    with pytest.raises(cm.CostModelError, match=f"no NumPy kernel {named}: there is one of square and of pow"):
        layer_programs(call)


def drawn(data: st.DataObject, name: str, training: bool, needed: bool, seed: int) -> tuple[Kernel, Call, Pass]:
    kernel = KERNELS[name]
    case = kernel.case(data.draw)
    pairs = getattr(case.kind, "pairs", None)
    if pairs is not None:  # which keys are seen is read off their number, which several masks may have
        assume(np.array_equal(Visible(keys_of(case.inputs[0].shape[2], pairs), "columns").mask(), case.visible.mask()))
    trained = on_paper(case, training).weights and not case.kind.fixed
    call = on_paper(case, training, needed or not trained)
    return kernel, call, on_arrays(case, call, seed, call.x.requires_grad)


def random_differs(call: Any) -> bool:
    """Whether random numbers are drawn in another order than by the plain kernel."""
    return call.layer.kind == "fused_attention" and call.tape.training and call.layer.dropout > 0


@pytest.mark.parametrize("name", EXTRA)
@EXAMPLES
@given(data=st.data(), training=st.booleans(), seed=SEED)
def test_forward(name: str, data: st.DataObject, training: bool, seed: int) -> None:
    kernel, call, p = drawn(data, name, training, True, seed)
    made = Kernel.forward(kernel, p)
    spent, stated_work = taken(p.tally), certified(call.layer.forward(call))
    expected = kernel.forward(p).values
    assert made.shape == expected.shape == tuple(map(int, call.y.shape))
    if name == "matmul" and p.visible:  # what is hidden is computed too, and masked later
        expected = p.inputs[0].values @ p.inputs[1].values
    elif "forward" in PROGRAMS[kernel.name].extra:
        assert spent.contractions == stated_work.contractions
    else:
        assert spent == stated_work
    if not random_differs(call):
        np.testing.assert_allclose(made.values, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", EXTRA)
@EXAMPLES
@given(data=st.data(), needed=st.booleans(), seed=SEED)
def test_backward(name: str, data: st.DataObject, needed: bool, seed: int) -> None:
    kernel, call, p = drawn(data, name, True, needed, seed)
    if name == "matmul" and p.visible:
        call.layer.__dict__["visible"] = p.visible = None
    p.y = Kernel.forward(kernel, p)
    g = np.ones(()) if isinstance(call.layer, Loss) else np.random.default_rng(seed).normal(size=p.y.shape)
    taken(p.tally)
    found, spent = {}, []
    for operand, gradient in Kernel.backward(kernel, p, Array(g, p.tally)):
        place = next(i for i, x in enumerate(operands_of(p)) if x is operand)
        assert gradient.shape == operand.shape
        found[place] = gradient.values
        spent.append((place, taken(p.tally)))
    wanted = list(stated(call))
    if "backward" in PROGRAMS[kernel.name].extra:
        spent, wanted = ([(place, work.contractions) for place, work in pairs] for pairs in (spent, wanted))
    assert spent == wanted
    if not random_differs(call):
        assert_same(kernel, p, g, found)


def assert_same(kernel: Kernel, p: Pass, g: np.ndarray, found: dict[int, np.ndarray]) -> None:
    p.y = kernel.forward(p)
    expected = {id(operand): gradient.values for operand, gradient in kernel.backward(p, Array(g, p.tally))}
    operands = operands_of(p)
    assert {id(operands[place]) for place in found} == expected.keys()
    for place, gradient in found.items():
        np.testing.assert_allclose(gradient, expected[id(operands[place])], rtol=1e-9, atol=1e-9)


@given(st.integers(1, 3), st.integers(1, 70), st.booleans(), SEED)
@examples(10)
def test_fused_attention_with_dropout_is_differentiated_rightly(times: int, t: int, causal: bool, seed: int) -> None:
    """Along a random direction, Σ g·y grows as central differences say, the same numbers being dropped each time."""
    tape, shape = Tape(training=True, device="gpu"), (2, 2 * times, t, 3)
    q, k, v = (tape.tensor(s, requires_grad=True) for s in (shape, (2, 2, t, 3), (2, 2, t, 3)))
    FusedAttention(dropout=0.5, pairs=t * (t + 1) // 2 if causal else None)(q, k, v)
    [call] = tape.root.calls()
    forward, backward = layer_programs(call, "float64")
    assert backward is not None
    random = np.random.default_rng(seed)
    inputs, directions = ([random.normal(size=ref.shape) for ref in forward.inputs] for _ in range(2))
    g = random.normal(size=shape)

    def grown(step: float) -> tuple[ArrayMemory, float]:
        memory = ArrayMemory(seed=seed)
        for ref, x, direction in zip(forward.inputs, inputs, directions, strict=True):
            memory.hold(ref, x + step * direction)
        forward.run(memory)
        return memory, float((g * memory.array(forward.outputs[0])).sum())

    memory, _ = grown(0.0)
    memory.hold(backward.inputs[0], g)
    backward.run(memory)
    slope = sum((memory.array(ref) * d).sum() for ref, d in zip(backward.outputs, directions, strict=True))
    assert slope == pytest.approx((grown(1e-6)[1] - grown(-1e-6)[1]) / 2e-6, rel=1e-5, abs=1e-5)


WIDE = cm.CNN(
    input=(4, 9, 8),
    blocks=[
        {"conv": {"channels": 6, "kernel": 3, "padding": 1}},
        "gelu",
        "hard_swish",
        {"conv_transpose": {"channels": 4, "kernel": 3, "stride": 2}},
        {"max_pool": {"kernel": 2}},
        {"adaptive_max_pool": {"size": 3}},
        "flatten",
        {"linear": {"features": 5}},
    ],
)
GPT = cm.GPT(vocab=20, context=8, layers=1, width=8, heads=2)
EXPERTS = cm.GPT(vocab=20, context=8, layers=1, width=8, heads=2, experts=4)
GROUPED = EXPERTS.with_fields({"experts.groups": 2, "experts.chosen_groups": 1, "experts.choice_bias": True})
ASKED: list[tuple[Any, dict[str, Any]]] = [
    (WIDE, {"batch": 2}),
    (GPT, {"batch": 2, "attention_pairs": "visible"}),
    (GPT, {"batch": 2, "attention": "flash", "loss_chunks": 2}),
    (GPT.with_fields({"activation": "gelu_composed"}), {"batch": 2}),
    (EXPERTS, {"batch": 2}),
    (GROUPED, {"batch": 2}),
]


def test_what_numpy_does_beside_the_formulas_is_named_and_nothing_else() -> None:
    differing, seen = set(), set()
    for model, asked in ASKED:
        for call in cm.predict(model, **asked).tape.root.calls():
            name, works = call.layer.kind, [gradient.work for gradient in call.gradients()]
            stated = {"forward": [call.layer.forward(call)], "backward": works}
            seen.add(name)
            for part, program in zip(("forward", "backward"), layer_programs(call), strict=True):
                assert program is not None
                wanted = sum(w.contractions for w in stated[part]), sum(w.pointwise for w in stated[part])
                if (program.contractions, program.pointwise) != wanted:
                    differing.add((name, part))
    named = {(name, part) for name, kernel in PROGRAMS.items() for part in kernel.extra}
    assert {name for name, _ in named} <= seen
    assert differing == named
