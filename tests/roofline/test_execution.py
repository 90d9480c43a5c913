"""A whole model run in NumPy gives what PyTorch gives: output, loss, every weight's gradient, and the weights after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import costmodel as cm
from costmodel import CNN, MLP, EncoderDecoder, Transformer, VisionTransformer
from costmodel.architectures.base import Architecture
from costmodel.roofline.execution import Execution, execute
from tests.oracle.drawn_networks import networks
from tests.oracle.settings import differential
from tests.profiles import examples
from tests.roofline.test_fields import WITHOUT_EFFECT

torch = pytest.importorskip("torch")
F = torch.nn.functional
models = pytest.importorskip("tests.oracle.models")
torch_networks = pytest.importorskip("tests.oracle.networks")
numbers = pytest.importorskip("tests.oracle.numbers")
drawn = pytest.importorskip("tests.oracle.test_transformer")
translations = pytest.importorskip("tests.oracle.test_translator")
vision = pytest.importorskip("tests.oracle.test_vision_transformer")
pytestmark = pytest.mark.oracle

LOSSES = {"cross_entropy": F.cross_entropy, "mean_squared_error": F.mse_loss}


@pytest.fixture(autouse=True, scope="module")
def hard_sigmoid_in_double_precision() -> Iterator[None]:
    """PyTorch's own derivative of it has 1/6 in single precision, whatever the type."""

    def hard_sigmoid(x: Any) -> Any:
        return F.relu6(x + 3) / 6

    with (
        patch.dict(models.ACTIVATIONS, hard_sigmoid=hard_sigmoid),
        patch.dict(torch_networks.ACTIVATIONS, hard_sigmoid=lambda: torch_networks.Apply(hard_sigmoid)),
    ):
        yield


def assert_close(found: np.ndarray, expected: Any, what: str) -> None:
    expected = expected.detach().numpy().reshape(found.shape)
    scale = np.abs(expected).max(initial=1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10 * scale, err_msg=what)


def load(parameters: dict[str, Any], run: Execution) -> None:
    """Give PyTorch's module the weights that were drawn."""
    assert parameters.keys() == run.weights.keys()
    with torch.no_grad():
        for name, parameter in parameters.items():
            weight = torch.from_numpy(run.weights[name])
            assert weight.squeeze().shape == parameter.squeeze().shape, name
            parameter.copy_(weight.reshape(parameter.shape))


def inputs_of(run: Execution) -> list[Any]:
    """As PyTorch's modules take them: sound without an axis of height."""
    given = {name: torch.from_numpy(array) for name, array in run.inputs.items() if not name.startswith("targets")}
    return [array.squeeze(2) if name == "sound" else array for name, array in given.items()]


def ends_of(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def assert_same(spec: Any, module: Any, loss: str | None, seed: int, **settings: Any) -> None:
    """A step of momentum, and inference, in NumPy are what they are in PyTorch, dropping the same numbers."""
    settings |= {"dtype": "float64", "seed": seed}
    learning = {**settings, "mode": "train", "loss": loss, "optimizer": "momentum"}
    run, after = execute(spec, update=False, **learning), execute(spec, **learning)
    module.double().eval()
    used = numbers.in_order_of_use(module, *inputs_of(run))
    parameters = dict(zip(run.weights, used, strict=True))
    assert len(used) == len(list(module.parameters()))
    assert_same_step(run, after, module.train(), parameters, loss, seed)
    assert_same_inference(execute(spec, mode="inference", **settings), module.eval(), parameters)


def assert_same_step(
    run: Execution, after: Execution, module: Any, parameters: dict[str, Any], loss: str | None, seed: int
) -> None:
    """Outputs, loss, gradients, and the weights after."""
    load(parameters, run)
    with numbers.chances(seed):
        outputs = ends_of(module(*inputs_of(run)))
    for found, output in zip(run.outputs, outputs, strict=True):
        assert_close(found, output, "output")
    targets = [torch.from_numpy(array) for name, array in run.inputs.items() if name.startswith("targets")]
    if loss is None:
        total = sum(output.sum() for output in outputs)
        assert run.loss is None
    else:
        total = sum(LOSSES[loss](output, target) for output, target in zip(outputs, targets, strict=True))
        assert run.loss == pytest.approx(total.item(), rel=1e-9)
    total.backward()
    trained = {name: parameter for name, parameter in parameters.items() if parameter.grad is not None}
    assert run.gradients.keys() == trained.keys()
    for name, parameter in trained.items():
        assert_close(run.gradients[name], parameter.grad, name)
    torch.optim.SGD(trained.values(), lr=1e-3, momentum=0.9).step()
    assert after.gradients == {}
    for name, parameter in parameters.items():
        assert_close(after.weights[name], parameter, name)


def assert_same_inference(run: Execution, module: Any, parameters: dict[str, Any]) -> None:
    """Outputs, by the running statistics that norms begin with."""
    load(parameters, run)
    for part in module.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            part.reset_running_stats()
    for found, output in zip(run.outputs, ends_of(module(*inputs_of(run))), strict=True):
        assert_close(found, output, "output")


SEED = st.integers(0, 1000)
LOSS = st.sampled_from([*sorted(LOSSES), None])


MLPS = st.builds(
    MLP,
    sizes=st.lists(st.sampled_from([1, 2, 3, 5, 5, 5]), min_size=2, max_size=6),
    activation=st.sampled_from(models.NAMES),
    bias=st.booleans(),
    norm=st.sampled_from(["none", "batchnorm", "layernorm", "rmsnorm"]),
    norm_affine=st.booleans(),
    dropout=st.sampled_from([0.0, 0.3]),
)


@pytest.mark.slow
@differential
@given(MLPS, st.integers(2, 4), LOSS, SEED)
def test_mlps(spec: MLP, batch: int, loss: str | None, seed: int) -> None:
    with numbers.with_numbers():
        assert_same(spec, models.MLP(spec, "cpu"), loss, seed, batch=batch)


@differential
@given(networks(), st.integers(8, 13), st.integers(8, 13), SEED)
def test_convolutional_networks(blocks: list[Any], h: int, w: int, seed: int) -> None:
    module, _ = torch_networks.build(blocks, torch.zeros(2, 4, h, w), "cpu")
    assert_same(CNN(input=(4, h, w), blocks=blocks), module, "cross_entropy", seed, batch=2)


@st.composite
def transformers(draw: st.DrawFn) -> Transformer:
    """Those whose costs are compared, with what eager attention alone has."""
    spec = draw(drawn.latents() | drawn.transformers(summed_up=True))
    fields = draw(drawn.EAGER) if spec.latent is None else {}
    if spec.pooler is not None:
        fields["pooler.over"] = "first"  # means over tokens are refused by name
    if spec.value("classes.told_by") == "mean":
        fields["classes.told_by"] = "last"
    if "positions" in fields:
        fields |= {"position_rows": None, "position_table": "trained", "rotary": None}
    if fields.get("positions") == "relative":
        fields |= {"relative_buckets": draw(st.none() | st.integers(4, 9))}
    if spec.experts is not None:
        most = spec.experts.count / spec.experts.per_token
        fields["experts.imbalance"] = draw(st.just(1.0) | st.floats(1, most))
        assume(spec.width > 1)  # else all experts may have one score, and which is chosen is left to chance
    return spec.with_fields(fields)


APART = Transformer(
    vocab=1, context=4, layers=4, width=2, heads=1, causal=False, window={"size": 1, "pattern": (True, False, False)}
)
"""Its first and its last block are alike, and are recorded under one name."""
GATED = Transformer(
    vocab=9,
    context=4,
    layers=2,
    width=6,
    heads=3,
    kv_heads=1,
    fused_qkv=False,
    query_key_norm="head",
    attention_gate=True,
)
"""The gate is a second part of what the query is one of."""


@differential
@example(APART, 1, 1, None, 0)
@example(GATED, 3, 2, "cross_entropy", 0)
@given(transformers(), st.integers(1, 9), st.integers(1, 2), LOSS, SEED)
def test_transformers(spec: Transformer, seq: int, batch: int, loss: str | None, seed: int) -> None:
    with numbers.with_numbers():
        module = models.Transformer(spec, seq, "eager", "cpu")
        numbers.fill_tables(module)
        assert_same(spec, module, loss, seed, batch=batch, seq=seq)


@differential
@given(vision.vision_transformers(), st.integers(1, 2), LOSS, SEED)
def test_vision_transformers(spec: VisionTransformer, batch: int, loss: str | None, seed: int) -> None:
    with numbers.with_numbers():
        assert_same(spec, vision.ViT(spec, "eager", "cpu"), loss, seed, batch=batch)


@differential
@given(translations.translators(), st.integers(1, 6), st.integers(1, 6), st.integers(1, 2), LOSS, SEED)
def test_encoder_decoders(spec: EncoderDecoder, seq: int, target: int, batch: int, loss: str | None, seed: int) -> None:
    assume(spec.relative_buckets is None or spec.relative_buckets >= 4)
    with numbers.with_numbers():
        module = translations.Translator(spec, spec.value("sound.places") or seq, target, "eager", "cpu")
        numbers.fill_tables(module)
        assert_same(spec, module, loss, seed, batch=batch, seq=seq, target_seq=target)


DRAWN = {
    MLP: [MLPS],
    Transformer: [
        transformers(),
        drawn.mixed(),
        drawn.disentangled(),
        drawn.streaming(),
        drawn.choosing(),
        drawn.gemmas(),
        drawn.embedded(),
    ],
    VisionTransformer: [vision.vision_transformers(), vision.pooled_by_attention()],
    EncoderDecoder: [translations.translators()],
}
"""What is run in NumPy, and what is refused, whose costs are compared."""


OF_FAMILIES = {EncoderDecoder: ("experts.", "window.global_")}
"""Fields that are drawn with the small configurations of the families that have them alone."""


@pytest.mark.slow
@pytest.mark.parametrize("of", DRAWN)
def test_every_field_is_drawn(of: type[Architecture]) -> None:
    values: dict[str, set[str]] = {
        name: set() for name in of.field_names() if name.partition(".")[0] not in WITHOUT_EFFECT
    }

    for strategy in DRAWN[of]:

        @examples(120)
        @given(strategy)
        def note(spec: Architecture) -> None:
            for name, seen in values.items():
                seen.add(repr(spec.value(name)))

        note()
    constant = [name for name, seen in values.items() if len(seen) < 2]
    assert [name for name in constant if not name.startswith(OF_FAMILIES.get(of, ()))] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "densenet121"])
def test_ready_models_in_inference(name: str) -> None:
    model = cm.load(name)
    assert isinstance(model, CNN)
    run = execute(model, image=(40, 48), dtype="float64")
    module, _ = torch_networks.build(model.model_dump()["blocks"], torch.zeros(2, 3, 40, 48), "cpu")
    used = numbers.in_order_of_use(module.double().eval(), *inputs_of(run))
    assert_same_inference(run, module, dict(zip(run.weights, used, strict=True)))


def test_imported_modules_are_refused() -> None:
    """Their layers hold no ε of norms, nor which axes of a view are exchanged."""
    model = cm.from_torch(torch.nn.Linear(4, 3), torch.zeros(2, 4))
    with pytest.raises(cm.CostModelError, match=r"Linear comes from a PyTorch module, .*: run the module itself"):
        execute(model, batch=2)
