"""Bytes alive, walked on paper, are those that NumPy really holds after the calls of a program."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.roofline import memory
from costmodel.roofline.execution import filled
from costmodel.roofline.footprint import live_bytes, peak_bytes, persistent_bytes
from costmodel.roofline.kernels import load_all
from costmodel.roofline.kernels.activations import POINTWISE
from costmodel.roofline.memory import ArrayMemory
from costmodel.roofline.program import Program
from costmodel.roofline.recorder import layer_programs, network_of
from tests.kernels import KERNELS
from tests.layers.test_kernels import on_paper
from tests.profiles import examples

np.random.default_rng(0)  # its import makes an array that stays


EVERY = 7
"""Every so manieth call of a network its memory is asked for, which takes far longer than the call."""


@contextmanager
def tracing() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def held() -> int:
    """Bytes of NumPy's own memory."""
    traces = tracemalloc.take_snapshot().traces
    return sum(trace.size for trace in traces if trace.domain == np.lib.tracemalloc_domain)


MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "mlp": (cm.MLP(sizes=[7, 5, 5, 3], norm="layernorm", activation="gelu"), {"batch": 3}),
    "cnn": (cm.CNN(input=(3, 9, 8), blocks=[
        {"conv": {"channels": 6, "kernel": 3, "padding": 1}}, "batchnorm", "relu", {"max_pool": {"kernel": 2}},
        {"residual": {"body": [{"conv": {"channels": 6, "kernel": 3, "padding": 1, "groups": 2}}]}},
        {"avg_pool": {"kernel": 2}}, "flatten", {"linear": {"features": 5}},
    ]), {"batch": 2}),
    "gpt": (cm.GPT(vocab=50, context=9, layers=2, width=12, heads=3), {"batch": 2, "seq": 7}),
    "llama": (
        cm.GPT(vocab=50, context=9, layers=2, width=12, heads=3, kv_heads=1, positions="rotary", mlp="gated",
               activation="silu", norm="rmsnorm", tied=False),
        {"batch": 1, "seq": 8},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["train", "inference"])
@pytest.mark.parametrize("name", MODELS)
def test_live_bytes_are_numpy_s_at_every_few_calls(name: str, mode: str) -> None:
    model, sizes = MODELS[name]
    prediction = cm.predict(model, mode=mode, **sizes)
    network = network_of(prediction)
    expected = live_bytes(network.program)
    measured: dict[int, int] = {}

    def measure(number: int) -> None:
        if number % EVERY == 0:
            measured[number] = held()

    with tracing():
        network.program.run(filled(network, prediction), after=measure)
    assert len(measured) > 2
    assert measured == {number: expected[number] for number in measured}


def has_program(name: str) -> bool:
    """Whether a kind, or the row of its table, has one."""
    kind, _, row = name.partition(" ")
    return kind in load_all() and row != "shape" and (kind != "pointwise" or row in POINTWISE)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(filter(has_program, KERNELS)))
@examples(3)
@given(data=st.data())
def test_live_bytes_of_every_kernel_are_numpy_s(name: str, data: st.DataObject) -> None:
    call = on_paper(KERNELS[name].case(data.draw), training=True)
    (forward, backward), found = layer_programs(call), []
    expected = live_bytes(forward) + (live_bytes(backward) if backward else [])
    memory = ArrayMemory()
    assert memory.random  # has 16 bytes of its own
    with tracing(), np.errstate(all="ignore"):  # of zeros, and of whatever memory held, quotients are no numbers
        for ref in (*forward.inputs, *forward.weights):
            memory.hold(ref, 0)
        forward.run(memory, after=lambda _: found.append(held()))
        if backward:
            memory.free(memory.arrays.keys() - set(backward.persistent))
            backward.run(memory, after=lambda _: found.append(held()))
    assert found == expected


ITERATOR_BYTES = 2048 + 3 * 8192 * 8
"""What a call may take beside its arrays [bytes]: Python's objects, and buffers of 8,192 elements of three operands."""

SIZES: dict[str, dict[str, Any]] = {
    "mlp": {"batch": 300},
    "cnn": {"batch": 90},
    "gpt": {"batch": 60, "seq": 9},
    "llama": {"batch": 60, "seq": 8},
}
"""Batches whose arrays are larger than such buffers."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_peak_is_what_is_alive_and_at_most_buffers_of_one_call(name: str) -> None:
    peaked(cm.predict(MODELS[name][0], **SIZES[name], optimizer="adafactor"))


def test_the_peak_of_a_step_on_states_of_a_byte_has_the_search_for_codes() -> None:
    program = peaked(cm.predict(cm.MLP(sizes=[900, 1000, 50]), batch=3, optimizer="adam-8bit"))
    searches = [op for op in program if op.name == "searchsorted"]
    assert max(op.returned_bytes for op in searches) > 10 * ITERATOR_BYTES


def peaked(prediction: cm.Prediction) -> Program:
    """A step's program, of which no call allocated more than is said beside its output."""
    network = network_of(prediction)
    program = network.program
    program.run(filled(network, prediction))  # once before: what NumPy looks up, it keeps
    memory = filled(network, prediction)
    for buffer in program.persistent:
        memory.make(buffer)
    peaks, alive = [], [persistent_bytes(program), *live_bytes(program)]
    for op, made, dropped, before in zip(program.ops, program.allocations, program.frees, alive, strict=False):
        if made is not None:
            memory.make(made)
        function, arguments, options = op.bind(memory)
        with tracing():
            function(*arguments, **options)
            _, peak = tracemalloc.get_traced_memory()
        memory.free(dropped)
        assert 0 <= peak - op.returned_bytes <= ITERATOR_BYTES, op
        peaks.append(before + (0 if made is None else made.bytes) + peak)
    assert 0 <= max(peaks) - peak_bytes(program) <= ITERATOR_BYTES
    return program


def test_a_container_s_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"max": "5000\n", "current": "4500\n", "stat": "anon 4000\ninactive_file 300\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text, encoding="ascii")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert memory.free_bytes() == 800
    (tmp_path / "memory.max").write_text("max\n", encoding="ascii")
    free = memory.free_bytes()
    assert free is None or free > 2**20


def test_measuring_and_checking_ask_for_the_same_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a container's limit leaves bounds `measure` as it bounds `execute`."""
    for name, text in {"max": "5000\n", "current": "4500\n", "stat": "inactive_file 300\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text, encoding="ascii")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    program = network_of(cm.predict(cm.MLP(sizes=[7, 5]), mode="inference", batch=300)).program
    with pytest.raises(cm.CostModelError, match=r"needs .* to run and 800 B is free"):
        cm.roofline.measure([program])
