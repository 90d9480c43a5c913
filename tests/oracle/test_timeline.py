"""The peak of a training step, phase by phase, against what a memory tracker sees of the same step in PyTorch.

Where the paper differs it is by what is said here: a phase's peak otherwise agrees to the byte.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

import costmodel as cm
from costmodel.analysis.predict import Prediction
from costmodel.architectures.cnn import CNN
from costmodel.architectures.encoder_decoder import EncoderDecoder
from costmodel.architectures.mlp import MLP
from costmodel.architectures.transformer import Transformer
from costmodel.architectures.vision_transformer import VisionTransformer
from costmodel.cost.costs import Costs
from tests.oracle import models
from tests.oracle.drawn_networks import networks
from tests.oracle.measure import meta
from tests.oracle.networks import build
from tests.oracle.settings import differential
from tests.oracle.test_adaptation import DENSE
from tests.oracle.test_mlp import MLPS
from tests.oracle.test_transformer import disentangled, mixed
from tests.oracle.test_translator import Translator
from tests.oracle.test_vision_transformer import ViT
from tests.oracle.tracker import Most, Tracker, training_step
from tests.oracle.vision import vision_model

pytestmark = pytest.mark.oracle

LOSSES = {"cross_entropy": "cross_entropy", "mean_squared_error": "mse_loss"}
TOTAL_WEIGHT = 4
"""Cross-entropy keeps one fp32 number that goes before its backward's last kernel runs; on paper that is one step."""


def stated(p: Costs) -> dict[str, Most]:
    """The highest step of each phase, the first of equals; the loss belongs to forward."""
    most: dict[str, Most] = {}
    for phase, _, _, alive in p.timeline.steps:
        name = "forward" if phase == "loss" else phase
        found = Most(alive.total, alive.activations + alive.casts, alive.gradients)
        most[name] = max(most.get(name, found), found, key=lambda one: one[:2])
    return most


def differences(
    p: Prediction, module: nn.Module, x: Tensor, target: Tensor, loss: Any = F.cross_entropy
) -> dict[str, Most]:
    """Bytes by which each phase's peak on paper is above the tracker's, buffers that only the module has left out."""
    extra = sum(buffer.untyped_storage().nbytes() for buffer in module.buffers()) - p.memory.buffers
    found = training_step(module, x, target, loss).most
    return {
        phase: Most(most.alive - (seen.alive - extra), most.saved - seen.saved, most.gradients - seen.gradients)
        for phase, most, seen in ((phase, most, found[phase]) for phase, most in stated(p).items())
    }


def assert_phases_agree(found: dict[str, Most], unseen: int = 0, total_weight: int = TOTAL_WEIGHT) -> None:
    """Backward and optimizer agree to the byte, but for what the tracker cannot see.

    In forward Python has names for more than what is used again, such as a function's own variables until it returns,
    which the way a model is written decides. The paper knows only those that callers must have. Where the loss's total
    weight makes its step the highest on paper, the tracker's highest may be another, by less than that lower.
    """
    assert found["optimizer"] == Most(0, 0, 0)
    assert 0 <= found["backward"].alive <= max(unseen, total_weight)
    assert found["forward"].alive <= 0


def step_of(spec: Any, module: nn.Module, x: Tensor, target: Tensor, **settings: Any) -> Prediction:
    """The prediction, after its whole peak, and what is saved at it, were held against the tracker."""
    p = cm.predict(spec, batch=len(x), **settings)
    found = differences(p, module, x, target)
    assert_phases_agree(found)
    phase = p.timeline.peak_step.phase
    assert found[phase].saved in (0, TOTAL_WEIGHT)
    assert found[phase].gradients == 0
    most = {phase: most.alive for phase, most in stated(p).items()}
    assert most["forward"] - found["forward"].alive <= p.memory.peak == most[phase]
    return p


@pytest.mark.parametrize(("batch", "seq"), [(1, 128), (4, 256), (32, 512)])
@pytest.mark.parametrize("name", ["gpt2-small", "gpt2-medium"])
def test_gpt2(name: str, batch: int, seq: int) -> None:
    spec = cm.load(name)
    with torch.device("meta"):
        module = models.Transformer(spec, seq, "eager", "gpu")
    tokens, target = meta(batch, seq, dtype=torch.int64), meta(batch * seq, dtype=torch.int64)
    p = step_of(spec, module, tokens, target, seq=seq)
    where = {1: "embedding", 4: "loss", 32: "loss"}
    assert (p.timeline.peak_step.phase, p.timeline.peak_step.layer) == ("backward", where[batch])


@pytest.mark.parametrize("batch", [1, 16, 64])
@pytest.mark.parametrize("name", ["resnet50", "vgg16", "mobilenet_v2", "efficientnet_b0", "googlenet"])
def test_an_image_classifier(name: str, batch: int) -> None:
    spec = cm.load(name)
    assert isinstance(spec, CNN)
    fields: Any = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    module = vision_model(name, **fields)
    for part in module.modules():
        if isinstance(part, nn.ReLU | nn.ReLU6 | nn.SiLU | nn.Dropout):
            part.inplace = False
    step_of(spec, module, meta(batch, *spec.input), meta(batch, dtype=torch.int64), device="cpu")


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("name", ["lenet-5", "unet", "densenet121"])
def test_a_network_written_plainly(name: str, batch: int) -> None:
    """Those that torchvision lacks, or writes with activations in place that no switch turns off."""
    spec = cm.load(name)
    assert isinstance(spec, CNN)
    x = meta(batch, *spec.input)
    module, output = build(spec.model_dump()["blocks"], x, "gpu")
    step_of(spec, module, x, meta(batch, *output.shape[2:], dtype=torch.int64))


@pytest.mark.parametrize("batch", [2, 16])
@pytest.mark.parametrize("name", ["vit-b-16", "deit-tiny-distilled"])
def test_a_vision_transformer(name: str, batch: int) -> None:
    """Of one image PyTorch keeps the tokens' gradients as slices of all gradients there, and so those too."""
    spec = cm.load(name)
    assert isinstance(spec, VisionTransformer)
    with torch.device("meta"):
        module = ViT(spec, "eager", "gpu")
    step_of(spec, module, meta(batch, *spec.input), meta(batch, dtype=torch.int64))


class Given(nn.Module):
    """An encoder-decoder with its target given."""

    def __init__(self, inner: nn.Module, tokens: Tensor) -> None:
        super().__init__()
        self.inner, self.tokens = inner, tokens

    def forward(self, source: Tensor) -> Tensor:
        return self.inner(source, self.tokens)


@pytest.mark.parametrize(("seq", "target"), [(64, 16), (16, 64)])
@pytest.mark.parametrize("name", ["t5-small", "whisper-tiny"])
def test_an_encoder_decoder(name: str, seq: int, target: int) -> None:
    """Where the encoder's output goes to every block of the decoder, and biases to every block of either."""
    spec = cm.load(name)
    assert isinstance(spec, EncoderDecoder)
    with torch.device("meta"):
        module = Translator(spec, spec.value("sound.places") or seq, target, "eager", "gpu")
    tokens, labels = meta(2, target, dtype=torch.int64), meta(2 * target, dtype=torch.int64)
    places, heard = spec.value("sound.places"), spec.value("sound.mel_bins")
    source = meta(2, seq, dtype=torch.int64) if places is None or heard is None else meta(2, heard, 2 * places)
    p = cm.predict(spec, batch=2, target_seq=target, **({} if heard else {"seq": seq}))
    assert_phases_agree(differences(p, Given(module, tokens), source, labels))


@pytest.mark.parametrize("batch", [1, 64, 65536])
@pytest.mark.parametrize("name", ["mlp-mnist", "mlp-lenet-300-100"])
def test_an_mlp(name: str, batch: int) -> None:
    spec = cm.load(name)
    assert isinstance(spec, MLP)
    with torch.device("meta"):
        module = models.MLP(spec, "gpu")
    step_of(spec, module, meta(batch, spec.sizes[0]), meta(batch, dtype=torch.int64))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("batch", [1, 64])
def test_rms_norm_on_a_cpu_is_several_steps(batch: int, affine: bool) -> None:
    spec = MLP(sizes=(30, 50, 50, 10), norm="rmsnorm", norm_affine=affine)
    with torch.device("meta"):
        module = models.MLP(spec, "cpu")
    step_of(spec, module, meta(batch, 30), meta(batch, dtype=torch.int64), device="cpu")


@pytest.mark.parametrize("name", ["llama-2-7b", "gemma-2-2b", "olmo2-7b"])
def test_a_decoder_with_rms_norm_on_a_cpu(name: str) -> None:
    """Before or after what they are of, where a gradient is of the sum beside it too; tables are the device's."""
    spec = cm.load(name)
    assert isinstance(spec, Transformer)
    spec = spec.model_copy(update={"layers": 2, "vocab": 50})
    with torch.device("meta"):
        module = models.Transformer(spec, 64, "eager", "cpu")
    tokens, target = meta(4, 64, dtype=torch.int64), meta(4 * 64, dtype=torch.int64)
    step_of(spec, module, tokens, target, seq=64, device="cpu", attention="eager")


class Within(nn.Module):
    """A part whose caller still holds what it handed over when the part no longer needs it."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(60, 8), nn.Linear(8, 60)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


@pytest.mark.parametrize("part", [Within, lambda: nn.Sequential(nn.Linear(60, 8), nn.Linear(8, 60))])
def test_a_caller_holds_what_it_handed_over(part: Any) -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(4, 60), part(), nn.Linear(60, 3))
    x = meta(50, 4)
    with torch.no_grad(), Tracker([x, *module.parameters()]) as tracker:
        module(x)
    p = cm.predict(cm.from_torch(module, x, dynamic={}), mode="inference")
    assert p.memory.peak == tracker.most["forward"].alive


@differential
@given(MLPS, st.integers(2, 500), st.sampled_from(["cross_entropy", "mean_squared_error"]))
def test_mlps(spec: MLP, batch: int, loss: str) -> None:
    with torch.device("meta"):
        module = models.MLP(spec, "gpu")
    x, last = meta(batch, spec.sizes[0]), spec.sizes[-1]
    target = meta(batch, dtype=torch.int64) if loss == "cross_entropy" else meta(batch, last)
    found = differences(cm.predict(spec, batch=batch, loss=loss), module, x, target, getattr(F, LOSSES[loss]))
    assert_phases_agree(found, total_weight=TOTAL_WEIGHT if loss == "cross_entropy" else 0)


@differential
@given(DENSE, st.integers(1, 3), st.integers(1, 5), st.sampled_from(["eager", "flash"]))
def test_transformers(spec: Transformer, batch: int, seq: int, kernel: Any) -> None:
    """The fused kernel's backward has a sum for each row to itself, inside one operation.

    Experts written as a loop have gradients one after another; on paper one product has them all.
    """
    with torch.device("meta"):
        module = models.Transformer(spec, seq, kernel, "gpu")
    tokens, target = meta(batch, seq, dtype=torch.int64), meta(batch * seq, dtype=torch.int64)
    p = cm.predict(spec, batch=batch, seq=seq, attention=kernel, loss="cross_entropy")
    rows = 4 * batch * seq * spec.heads if kernel == "flash" else 0
    assert_phases_agree(differences(p, module, tokens, target), unseen=rows)


@differential
@given(mixed(), st.integers(1, 3), st.integers(1, 9))
def test_mixers(spec: Transformer, batch: int, seq: int) -> None:
    """Scans of what mixes tokens beside attention are composed of operators, whose backward gives parts back early.

    On paper a first state has a gradient beside those of all. A mixer's own weights are updated before those of its
    layers, so that of another the last temporary is there beside those of the largest.
    """
    assume(spec.mixer is not None and spec.experts is None and spec.gated_delta is None)
    with torch.device("meta"):
        module = models.Transformer(spec, seq, "eager", "gpu")
    tokens, target = meta(batch, seq, dtype=torch.int64), meta(batch * seq, dtype=torch.int64)
    found = differences(cm.predict(spec, batch=batch, seq=seq, loss="cross_entropy"), module, tokens, target)
    unseen, own = 0, spec.state_space
    if own is not None:
        unseen = 4 * batch * own.width * own.state
        assert abs(found["optimizer"].alive) <= 4 * max(weight.numel() for weight in module.parameters())
        found["optimizer"] = Most(0, 0, 0)
    assert_phases_agree(found, unseen=unseen)


@pytest.mark.parametrize("seq", [1, 2, 7])
def test_what_is_cut_off_a_convolution_gets_a_gradient_among_zeros(seq: int) -> None:
    """Where an MLP or a head with larger gradients does not hide it."""
    short = {"short_convolution.size": 4, "short_convolution.pattern": (), "mlp_pattern": (False,), "head": None}
    spec = Transformer.of({"vocab": 1, "context": 9, "layers": 1, "width": 6, "heads": 1, **short})
    with torch.device("meta"):
        module = models.Transformer(spec, seq, "eager", "gpu")
    tokens, target = meta(2, seq, dtype=torch.int64), meta(2 * seq, dtype=torch.int64)
    p = cm.predict(spec, batch=2, seq=seq, loss="cross_entropy")
    assert_phases_agree(differences(p, module, tokens, target))


@differential
@given(disentangled(), st.integers(1, 3), st.integers(1, 5))
def test_disentangled_attention(spec: Transformer, batch: int, seq: int) -> None:
    assume(all(part is None for part in (spec.experts, spec.pooler, spec.classes, spec.segments)))
    with torch.device("meta"):
        module = models.Transformer(spec, seq, "eager", "gpu")
    tokens, target = meta(batch, seq, dtype=torch.int64), meta(batch * seq, dtype=torch.int64)
    p = cm.predict(spec, batch=batch, seq=seq, loss="cross_entropy")
    assert_phases_agree(differences(p, module, tokens, target))


@differential
@given(networks(), st.integers(8, 17), st.integers(8, 17))
def test_image_networks(blocks: list[Any], h: int, w: int) -> None:
    batch = 64
    module, output = build(blocks, meta(batch, 4, h, w), "gpu")
    p = cm.predict(CNN(input=(4, h, w), blocks=blocks), batch=batch)
    target = meta(batch, *output.shape[2:], dtype=torch.int64)
    assert_phases_agree(differences(p, module, meta(batch, 4, h, w), target))
