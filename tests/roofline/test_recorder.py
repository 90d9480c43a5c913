"""Programs of whole models: refused where they cannot run, repeatable, and of the work that the cost model states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import costmodel as cm
from costmodel.roofline import memory
from costmodel.roofline.execution import execute
from costmodel.roofline.recorder import backward_program, forward_program, network_of

GPT = cm.GPT(vocab=50, context=16, layers=3, width=12, heads=3)
MLP = cm.MLP(sizes=[6, 8, 8, 8, 3], dropout=0.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"checkpoint": "block", "mode": "train"}, "checkpoint='block' is not run in NumPy: use checkpoint='none'"),
        ({"accumulate": 2, "mode": "train"}, "accumulate=2 is not run in NumPy: use accumulate=1"),
        ({"loss": "kl_divergence", "mode": "train"}, "loss='kl_divergence' is not run in NumPy: use one of 'cross_ent"),
        ({"attention": "flash"}, "attention='flash' is not run in NumPy: use attention='eager'"),
        ({"precision": "bf16"}, "precision 'bf16' is not run in NumPy: use 'fp32', or dtype='float64'"),
        ({"dtype": "float16"}, "unknown dtype 'float16': did you mean 'float64' or 'float32'?"),
        ({"weights": {"head": 1}}, "unknown array of Transformer 'head'"),
        ({"weights": {"positions.weight": np.ones((2, 3))}}, "positions.weight of Transformer is 16 × 12, not 2 × 3"),
        ({"inputs": {"tokens": np.full((1, 16), 50)}}, "tokens of Transformer holds 50: give indices from 0 to 49"),
        ({"inputs": {"tokens": np.full((1, 16), -1)}}, "tokens of Transformer holds -1: give indices from 0 to 49"),
        ({"inputs": {"tokens": np.ones((1, 16))}}, "tokens of Transformer holds float64: give whole numbers"),
        ({"inputs": {"tokens": [[1], [2, 3]]}}, "tokens of Transformer: .* is no array of 1 × 16"),
        ({"weights": {"positions.weight": "no"}}, "positions.weight of Transformer holds <U2: give numbers"),
        ({"seed": -1}, "seed=-1 is not a whole number from 0: use one such as seed=0"),
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
    monkeypatch.setattr(memory, "free_bytes", lambda: 1_000_000)
    with pytest.raises(cm.CostModelError, match=r"needs 7\.00 GiB to run and 976\.6 KiB is free: use a"):
        execute(cm.MLP(sizes=[10, 10], name="small"), batch=94_000_000)
    with pytest.raises(cm.CostModelError, match=r"GiB to run and 976\.6 KiB is free"):
        execute("llama-2-7b", batch=1)


def test_free_memory_is_told_in_bytes() -> None:
    free = memory.free_bytes()
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


@pytest.mark.parametrize(
    "name", ["gpt2-small", "bert-base-encoder", "tinyllama-1.1b", "resnet18", "convnext_tiny", "unet"]
)
def test_ready_models_have_programs_of_their_contractions(name: str) -> None:
    sizes = {"seq": 16} if cm.load(name).HAS_ATTENTION else {}
    prediction = cm.predict(name, batch=2, flop_rule="arithmetic", **sizes)
    assert network_of(prediction).program.contractions == prediction.flops.total


def gradients(**settings: Any) -> dict[str, np.ndarray]:
    return execute(GPT, batch=2, seq=9, mode="train", update=False, dtype="float64", **settings).gradients


def test_chunks_of_the_loss_change_no_gradient() -> None:
    whole, chunked = gradients(), gradients(loss_chunks=4)
    assert whole.keys() == chunked.keys()
    for name, gradient in whole.items():
        np.testing.assert_allclose(chunked[name], gradient, rtol=1e-9, atol=1e-12, err_msg=name)


def test_what_is_frozen_has_no_gradient_and_changes_no_other() -> None:
    whole, some = gradients(), gradients(freeze=("embedding", "mlp"))
    assert {name for name in whole if "mlp." in name or name == "embedding.weight"} == whole.keys() - some.keys()
    for name, gradient in some.items():
        np.testing.assert_allclose(gradient, whole[name], rtol=1e-9, atol=1e-12, err_msg=name)


def test_adapters_alone_are_trained() -> None:
    some = gradients(lora={"rank": 2, "targets": ["qkv"]})
    assert len(some) == 2 * GPT.layers
    assert all("lora" in name for name in some)


def test_without_a_loss_the_output_is_summed() -> None:
    found = gradients(loss=None)
    step = 1e-6
    ends = []
    for sign in (1, -1):
        moved = execute(GPT, batch=2, seq=9, dtype="float64")
        bias = moved.weights["final_norm.bias"] + sign * step * np.arange(12.0)
        ends.append(execute(GPT, batch=2, seq=9, dtype="float64", weights={"final_norm.bias": bias}).output.sum())
    slope = (ends[0] - ends[1]) / (2 * step)
    assert slope == pytest.approx(found["final_norm.bias"] @ np.arange(12.0), rel=1e-6)


def test_whole_programs_are_their_layers_one_after_another() -> None:
    prediction = cm.predict(GPT, batch=2, seq=7, mode="inference")
    program = network_of(prediction).program
    for total in ("contractions", "pointwise", "traffic_bytes"):
        each = [call.times * getattr(forward_program(call), total) for call in prediction.tape.root.calls()]
        assert getattr(program, total) == sum(each)


def test_backward_reads_what_forward_keeps() -> None:
    prediction = cm.predict(GPT, batch=2, seq=7)
    for call in prediction.tape.root.calls():
        forward, backward = forward_program(call), backward_program(call)
        assert len(backward.outputs) == len(call.gradients())
        assert {ref.shape for ref in forward.saved} <= {ref.shape for ref in backward.inputs}
    inference = cm.predict(GPT, batch=2, seq=7, mode="inference")
    with pytest.raises(cm.CostModelError, match="embedding has no gradients: predict with mode='train'"):
        backward_program(next(inference.tape.root.calls()))


PASSES = {"softmax": 4.0, "layernorm": 6.0, "gelu_tanh": 10.5, "add": 1.0}
"""How often NumPy moves what must be moved once, for long rows: a read and a write is 2 of each call's operands.

Softmax 8 (maximum 1, subtraction 2, exp 2, sum 1, division 2) over 2; layer norm 12; tanh-GELU 21, of which x·x is one
read.
"""


@pytest.mark.parametrize("kind", PASSES)
def test_numpy_moves_more_than_it_must(kind: str) -> None:
    found = cm.roofline.passes("gpt2-small", batch=2, seq=512)
    [row] = [row for row in found.kinds if row.kind == kind]
    assert row.ratio == pytest.approx(PASSES[kind], rel=0.01)


def test_layers_and_kinds_add_up_to_the_prediction() -> None:
    prediction = cm.predict("gpt2-small", batch=2, seq=64, mode="inference")
    found = cm.roofline.passes(prediction)
    assert [row.compulsory_bytes for row in found] == [row.forward_bytes for row in prediction.layers]
    assert sum(row.numpy_bytes for row in found.kinds) == network_of(prediction).program.traffic_bytes
    assert {row["kind"] for row in found.to_dict()["layers"]} == {row.kind for row in found.kinds}
    assert str(found).splitlines()[0].split() == ["gpt2-small", "layers", "calls", "compulsory", "NumPy", "ratio"]


def test_blocks_without_the_window_see_all_before_them() -> None:
    """Behind a window of one, only the first token has nothing else to see."""
    fields = {"vocab": 9, "context": 8, "layers": 2, "width": 8, "heads": 2, "positions": "none", "window": 1}
    near, far = (cm.Transformer.of({**fields, "window.pattern": pattern}) for pattern in ((), (True, False)))
    first = execute(near, seq=4)
    weights = dict(zip(execute(far, seq=4).weights, first.weights.values(), strict=True))
    second = execute(far, seq=4, weights=weights, inputs=first.inputs)
    np.testing.assert_allclose(second.output[0], first.output[0], rtol=1e-5)
    assert (abs(second.output[1:] - first.output[1:]).max(-1) > 1e-3).all()


def test_all_outputs_are_given_in_both_modes() -> None:
    model = GPT.with_fields({"classes": 4})
    for mode, loss in (("inference", "default"), ("train", "default"), ("train", None)):
        run = execute(model, batch=2, seq=5, mode=mode, loss=loss, update=False)
        assert [output.shape for output in run.outputs] == [(10, 50), (2, 4)]
        assert run.output is run.outputs[0]
        assert mode == "inference" or {"positions.weight", "classes.weight"} <= run.gradients.keys()
