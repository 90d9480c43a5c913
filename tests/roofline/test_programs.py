"""Programs of whole models: refused where they cannot run, repeatable, and of the work that the cost model states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import costmodel as cm
from costmodel.roofline import footprint
from costmodel.roofline.execution import execute
from costmodel.roofline.layer import backward_program, forward_program
from costmodel.roofline.network import network_of

GPT = cm.GPT(vocab=50, context=16, layers=3, width=12, heads=3)
MLP = cm.MLP(sizes=[6, 8, 8, 8, 3], dropout=0.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"checkpoint": "block", "mode": "train"}, "checkpoint='block' is not run in NumPy: use checkpoint='none'"),
        ({"accumulate": 2, "mode": "train"}, "accumulate=2 is not run in NumPy: use accumulate=1"),
        ({"attention": "flash"}, "attention='flash' is not run in NumPy: use attention='eager'"),
        ({"precision": "bf16"}, "precision 'bf16' is not run in NumPy: use 'fp32', or dtype='float64'"),
        ({"dtype": "float16"}, "unknown dtype 'float16': did you mean 'float64' or 'float32'?"),
        ({"weights": {"head": 1}}, "unknown array of Transformer 'head'"),
        ({"weights": {"positions.weight": np.ones((2, 3))}}, "positions.weight of Transformer is 16 × 12, not 2 × 3"),
    ],
)
def test_what_numpy_does_not_run_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(cm.CostModelError, match=message):
        execute(GPT, **settings)


def test_a_prediction_is_run_with_its_own_settings() -> None:
    prediction = cm.predict(GPT, mode="inference", batch=2, seq=5)
    assert execute(prediction).output.shape == (10, 50)
    with pytest.raises(cm.CostModelError, match="a prediction has its settings: leave out batch"):
        execute(prediction, batch=3)


def test_a_model_of_too_many_layers_is_refused() -> None:
    with pytest.raises(cm.CostModelError, match="has 10,000,001 layers, more than the 20,000 that are run"):
        execute(cm.MLP(sizes=[1] * 10, activation="relu").model_copy(update={"sizes": (1,) * 5_000_002}))


def test_a_model_too_large_is_refused_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "free_bytes", lambda: 1_000_000)
    with pytest.raises(cm.CostModelError, match=r"needs 7\.00 GiB to run and 976\.6 KiB is free: use a"):
        execute(cm.MLP(sizes=[10, 10], name="small"), batch=94_000_000)
    with pytest.raises(cm.CostModelError, match=r"GiB to run and 976\.6 KiB is free"):
        execute("llama-2-7b", batch=1)


def test_free_memory_is_told_in_bytes() -> None:
    free = footprint.free_bytes()
    assert free is None or free > 2**20


@pytest.mark.parametrize("model", [GPT, MLP])
def test_a_seed_makes_a_run_repeatable(model: Any) -> None:
    first, again, other = (execute(model, batch=3, mode="train", seed=seed) for seed in (1, 1, 2))
    assert first.loss == again.loss != other.loss
    assert all(np.array_equal(first.weights[name], again.weights[name]) for name in first.weights)


def test_a_step_of_training_lowers_the_loss() -> None:
    first = execute(GPT, batch=4, mode="train", optimizer="sgd", dtype="float64")
    before = execute(GPT, batch=4, mode="train", optimizer="sgd", dtype="float64", update=False)
    assert first.gradients == {}
    again = execute(GPT, batch=4, mode="train", dtype="float64", weights=first.weights, inputs=first.inputs)
    assert first.loss == before.loss
    assert again.loss is not None
    assert first.loss is not None
    assert again.loss < first.loss


@pytest.mark.parametrize("mode", ["train", "inference"])
def test_a_program_has_the_contractions_of_its_prediction(mode: str) -> None:
    for model, sizes in ((GPT, {"batch": 2, "seq": 7}), (MLP, {"batch": 4})):
        prediction = cm.predict(model, mode=mode, **sizes)
        program = network_of(prediction).program
        assert program.contractions == prediction.flops.total


def test_whole_programs_are_their_layers_one_after_another() -> None:
    prediction = cm.predict(GPT, batch=2, seq=7, mode="inference")
    program = network_of(prediction).program
    for total in ("contractions", "pointwise", "traffic_bytes"):
        each = [call.times * getattr(forward_program(call), total) for call in prediction.run.root.calls()]
        assert getattr(program, total) == sum(each)


def test_backward_reads_what_forward_keeps() -> None:
    prediction = cm.predict(GPT, batch=2, seq=7)
    for call in prediction.run.root.calls():
        forward, backward = forward_program(call), backward_program(call)
        assert len(backward.outputs) == len(call.gradients())
        assert {ref.shape for ref in forward.kept} <= {ref.shape for ref in backward.inputs}
    inference = cm.predict(GPT, batch=2, seq=7, mode="inference")
    with pytest.raises(cm.CostModelError, match="embedding has no gradients: predict with mode='train'"):
        backward_program(next(inference.run.root.calls()))


PASSES = {"softmax": 4.0, "layernorm": 6.0, "gelu_tanh": 10.5, "relu": 1.0, "add": 1.0}
"""How often NumPy moves what must be moved once, for many rows: read and write of each call over one read and write."""


@pytest.mark.parametrize("kind", PASSES)
def test_numpy_moves_more_than_it_must(kind: str) -> None:
    from costmodel.cost import traffic

    model = cm.CNN(input=(64, 32, 256), blocks=["layernorm", "relu", "gelu_tanh", {"residual": {"body": ["relu"]}}])
    calls = [*cm.predict(model, mode="inference", loss=None).run.root.calls()]
    calls += cm.predict(cm.GPT(vocab=9, context=512, layers=1, width=64, heads=8), batch=4).run.root.calls()
    call = next(call for call in calls if call.kind.kind == kind)
    assert forward_program(call).traffic_bytes / traffic(call) == pytest.approx(PASSES[kind], rel=0.02)
