"""A whole model run in NumPy gives what PyTorch gives: output, loss, every weight's gradient, and the weights after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel import CNN, MLP, Transformer
from costmodel.roofline.execution import Execution, execute
from tests.oracle.settings import differential

torch = pytest.importorskip("torch")
F = torch.nn.functional
models = pytest.importorskip("tests.oracle.models")
torch_networks = pytest.importorskip("tests.oracle.networks")
networks = pytest.importorskip("tests.oracle.drawn_networks").networks
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
    expected = expected.detach().numpy()
    scale = np.abs(expected).max(initial=1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10 * scale, err_msg=what)


def load(parameters: dict[str, Any], run: Execution) -> None:
    """Give PyTorch's module the weights that were drawn."""
    assert [tuple(p.shape) for p in parameters.values()] == [run.weights[name].shape for name in parameters]
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(run.weights[name]))


def assert_same(run: Execution, module: Any, parameters: dict[str, Any], loss: str) -> None:
    """`run` without an update, so that its weights are those it began with; then a step of momentum from there."""
    module.double().train()
    load(parameters, run)
    [x] = [array for name, array in run.inputs.items() if name != "targets"]
    output = module(torch.from_numpy(x))
    assert_close(run.output, output, "output")
    found = LOSSES[loss](output, torch.from_numpy(run.inputs["targets"]))
    assert run.loss == pytest.approx(found.item(), rel=1e-9)
    found.backward()
    assert run.gradients.keys() == parameters.keys()
    for name, parameter in parameters.items():
        assert_close(run.gradients[name], parameter.grad, name)


def assert_same_step(after: Execution, module: Any, parameters: dict[str, Any]) -> None:
    """The weights after a step of momentum, from the gradients that `module` has."""
    torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9).step()
    assert after.gradients == {}
    for name, parameter in parameters.items():
        assert_close(after.weights[name], parameter, name)


def in_order(module: Any, run: Execution) -> dict[str, Any]:
    return dict(zip(run.weights, module.parameters(), strict=True))


def steps(spec: Any, **settings: Any) -> tuple[Execution, Execution]:
    """A step of momentum, without its update and with it."""
    settings |= {"mode": "train", "optimizer": "momentum", "dtype": "float64"}
    return execute(spec, update=False, **settings), execute(spec, **settings)


MLPS = st.builds(
    MLP,
    sizes=st.lists(st.sampled_from([1, 2, 3, 5, 5, 5]), min_size=2, max_size=6),
    activation=st.sampled_from(sorted(models.ACTIVATIONS)),
    bias=st.booleans(),
    norm=st.sampled_from(["none", "batchnorm", "layernorm"]),
)
SEED = st.integers(0, 1000)


@differential
@given(MLPS, st.integers(2, 4), st.sampled_from(sorted(LOSSES)), SEED)
def test_mlps(spec: MLP, batch: int, loss: str, seed: int) -> None:
    run, after = steps(spec, batch=batch, loss=loss, seed=seed)
    module = models.MLP(spec, "cpu")
    assert_same(run, module, in_order(module, run), loss)
    assert_same_step(after, module, in_order(module, run))


def without_chance(items: Any) -> Any:
    """No probability but 0: PyTorch draws other numbers."""
    if isinstance(items, dict):
        return {name: 0.0 if name == "p" else without_chance(value) for name, value in items.items()}
    return [without_chance(item) for item in items] if isinstance(items, list) else items


@differential
@given(networks(), st.integers(8, 13), st.integers(8, 13), SEED)
def test_convolutional_networks(blocks: list[Any], h: int, w: int, seed: int) -> None:
    blocks, shape = without_chance(blocks), (4, h, w)
    run, after = steps(CNN(input=shape, blocks=blocks), batch=2, seed=seed)
    module, _ = torch_networks.build(blocks, torch.zeros(2, *shape), "cpu")
    assert_same(run, module, in_order(module, run), "cross_entropy")
    assert_same_step(after, module, in_order(module, run))


@st.composite
def transformers(draw: st.DrawFn) -> Transformer:
    heads = draw(st.integers(1, 4))
    size = draw(st.integers(1, 3)) * 2
    parallel = draw(st.booleans())
    return Transformer(
        vocab=draw(st.integers(2, 20)),
        context=12,
        layers=draw(st.integers(1, 3)),
        width=heads * size,
        heads=heads,
        kv_heads=draw(st.sampled_from([None, *(n for n in range(1, heads + 1) if heads % n == 0)])),
        window=draw(st.none() | st.integers(1, 6)),
        positions=draw(st.sampled_from(["learned", "rotary", "alibi", "none"])),
        mlp=draw(st.sampled_from(["plain", "gated"])),
        activation=draw(st.sampled_from(["gelu", "gelu_tanh", "silu"])),
        norm=draw(st.sampled_from(["layernorm", "rmsnorm"])),
        norm_placement="pre" if parallel else draw(st.sampled_from(["pre", "post"])),
        parallel=parallel,
        shared_norm=parallel and draw(st.booleans()),
        **{name: draw(st.booleans()) for name in ("causal", "fused_qkv", "tied", "embedding_norm", "mlp_bias")},
    )


def named(module: Any, spec: Transformer) -> Iterator[tuple[str, Any]]:
    """PyTorch's parameters by the names that they have on paper, in the order that layers run in."""
    places = {"embedding": module.tokens, "positions": module.positions, "embedding_norm": module.embedding_norm}
    for number, block in enumerate(module.blocks):
        suffix = f"[{number}]" if spec.layers > 1 else ""
        first = "norm" if spec.parallel else "attention_norm"
        attention, inner = block.attention, ("qkv",) if spec.fused_qkv else ("query", "key", "value")
        parts = {first: block.norm1, "mlp_norm": block.norm2, "attention.output": attention.output}
        parts |= {f"attention.{name}": getattr(attention, name) for name in inner}
        parts |= {f"mlp.{name}": getattr(block.mlp, name) for name in ("gate", "up", "down")}
        places |= {f"block.{name}{suffix}": part for name, part in parts.items()}
    places |= {"final_norm": module.final_norm, "head": None if spec.tied else module.head}
    for place, part in places.items():
        name, _, suffix = place.partition("[")
        for weight, parameter in part.named_parameters() if part is not None else ():
            yield f"{name}.{weight}" + (f"[{suffix}" if suffix else ""), parameter


def with_tables(module: Any, spec: Transformer, seq: int) -> Any:
    """The mask, slopes and angles that the model of costs alone leaves empty; norms with the usual ε."""
    behind = torch.arange(seq)[:, None] - torch.arange(seq)
    hidden = (behind < 0) & torch.tensor(spec.causal)
    if spec.window is not None:
        hidden |= behind.abs() >= spec.window.size
    for part in module.modules():
        if isinstance(part, models.RMSNorm):
            part.forward = torch.nn.RMSNorm(part.features, eps=1e-5).double().forward
            part.forward.__self__.weight = part.weight
        if isinstance(part, models.Attention):
            part.double()
            part.mask = hidden
            part.alibi = slopes(spec.heads) * torch.arange(seq, dtype=torch.float64)
            pairs = 10_000 ** -(torch.arange(part.rotated // 2, dtype=torch.float64) * 2 / part.rotated)
            angles = torch.arange(seq)[:, None] * torch.cat([pairs, pairs])
            part.cos, part.sin = angles.cos(), angles.sin()
    return module


def slopes(heads: int) -> Any:
    """Press et al. 2022, as their code has it."""

    def of_power(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(np.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    nearest = 2 ** int(np.floor(np.log2(heads)))
    found = of_power(nearest) + of_power(2 * nearest)[0::2][: heads - nearest]
    return torch.tensor(found, dtype=torch.float64)[:, None, None]


@differential
@given(transformers(), st.integers(1, 9), st.integers(1, 2), SEED)
def test_transformers(spec: Transformer, seq: int, batch: int, seed: int) -> None:
    run, after = steps(spec, batch=batch, seq=seq, seed=seed)
    module = with_tables(models.Transformer(spec, seq, "eager", "cpu"), spec, seq)
    parameters = dict(named(module, spec))
    assert parameters.keys() == run.weights.keys()
    assert_same(run, module, parameters, "cross_entropy")
    assert_same_step(after, module, parameters)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "densenet121"])
def test_ready_models_in_inference(name: str) -> None:
    model = cm.load(name)
    assert isinstance(model, CNN)
    run = execute(model, image=(40, 48), dtype="float64")
    module, _ = torch_networks.build(without_chance(model.model_dump()["blocks"]), torch.zeros(2, 3, 40, 48), "cpu")
    module.double().eval()
    for norm in module.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            norm.reset_running_stats()  # building it ran it
    load(in_order(module, run), run)
    assert_close(run.output, module(torch.from_numpy(run.inputs["images"])), "output")
