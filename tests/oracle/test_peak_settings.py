"""The peak of a step under autocast, checkpointing and other updates, against a memory tracker, as in test_timeline."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import costmodel as cm
from costmodel.analysis.predict import Prediction
from costmodel.architectures.cnn import CNN
from costmodel.architectures.mlp import MLP
from costmodel.architectures.transformer import Transformer
from tests.oracle import models
from tests.oracle.autocasting import GpuAutocast
from tests.oracle.measure import meta
from tests.oracle.settings import differential
from tests.oracle.test_adaptation import DENSE, PARTS, has
from tests.oracle.test_checkpoint import ByOperator, Grouped
from tests.oracle.test_mlp import MLPS
from tests.oracle.test_precision import DTYPES
from tests.oracle.test_timeline import assert_phases_agree, stated
from tests.oracle.tracker import Most, Tracker, training_step
from tests.oracle.vision import vision_model

pytestmark = pytest.mark.oracle


def differences(p: Prediction, module: Any, found: dict[str, Most]) -> dict[str, Most]:
    """As in test_timeline, from what the tracker found."""
    extra = sum(buffer.untyped_storage().nbytes() for buffer in module.buffers()) - p.memory.buffers
    return {
        phase: Most(most.alive - (seen.alive - extra), most.saved - seen.saved, most.gradients - seen.gradients)
        for phase, most, seen in ((phase, most, found[phase]) for phase, most in stated(p).items())
    }


def transformer(spec: Any, batch: int, seq: int, kernel: Any = "eager") -> tuple[Any, Any, Any]:
    with torch.device("meta"):
        module = models.Transformer(spec, seq, kernel, "gpu")
    return module, meta(batch, seq, dtype=torch.int64), meta(batch * seq, dtype=torch.int64)


PLAIN = {"qkv_bias": False, "attention_bias": False, "mlp_bias": False, "fused_qkv": False}
LLAMA = Transformer.of(
    {"vocab": 9, "context": 8, "layers": 3, "width": 12, "heads": 3, "mlp": "gated", "norm": "rmsnorm", **PLAIN}
)
"""Of products without a bias alone."""


class Phased(Grouped):
    """Tells the tracker what is run again."""

    def starts(self) -> None:
        self.enters("recompute")

    def ends(self) -> None:
        self.enters("backward")

    @staticmethod
    def enters(phase: str) -> None:
        """A phase of what tracks the step, if something does."""
        for mode in _get_current_dispatch_mode_stack():
            if isinstance(mode, Tracker):
                mode.phase = phase


@pytest.mark.parametrize(("batch", "seq"), [(1, 128), (4, 256), (32, 512)])
@pytest.mark.parametrize("kernel", ["eager", "flash"])
@pytest.mark.parametrize("name", ["gpt2-small", "gpt2-medium"])
def test_gpt2_under_autocast(name: str, kernel: Any, batch: int, seq: int) -> None:
    module, tokens, target = transformer(cm.load(name), batch, seq, kernel)
    found = training_step(module, tokens, target, F.cross_entropy, autocast=torch.bfloat16).most
    p = cm.predict(name, batch=batch, seq=seq, attention=kernel, precision="bf16-autocast")
    assert_phases_agree(differences(p, module, found))


@pytest.mark.parametrize("batch", [1, 16, 64])
@pytest.mark.parametrize("name", ["resnet50", "vgg16"])
def test_an_image_classifier_under_autocast(name: str, batch: int) -> None:
    spec = cm.load(name)
    assert isinstance(spec, CNN)
    module = vision_model(name)
    for parent in list(module.modules()):
        for part_name, part in parent.named_children():
            if isinstance(part, torch.nn.ReLU):
                part.inplace = False
            if isinstance(part, torch.nn.Dropout):
                setattr(parent, part_name, models.Dropout(part.p, "gpu"))
    x, target = meta(batch, *spec.input), meta(batch, dtype=torch.int64)
    found = training_step(module, x, target, F.cross_entropy, autocast=torch.bfloat16).most
    assert_phases_agree(differences(cm.predict(spec, batch=batch, precision="bf16-autocast"), module, found))


@differential
@given(MLPS, st.integers(2, 500), st.sampled_from(["bf16", "fp16"]))
@example(MLP(sizes=(4, 4, 4), activation="gelu_composed"), 9, "fp16")
def test_mlps_under_autocast(spec: MLP, batch: int, dtype: str) -> None:
    with torch.device("meta"):
        module = models.MLP(spec, "gpu")
    x, target = meta(batch, spec.sizes[0]), meta(batch, dtype=torch.int64)
    found = training_step(module, x, target, F.cross_entropy, autocast=DTYPES[dtype]).most
    assert_phases_agree(differences(cm.predict(spec, batch=batch, precision=f"{dtype}-autocast"), module, found))


SHARED = Transformer(vocab=3, context=8, layers=1, width=4, heads=1, activation="quick_gelu", shared_blocks=True)
"""Blocks whose weights are cast when the first of them runs, and which add to their gradients one after another."""

TURNED = Transformer.of(
    {
        "vocab": 17,
        "context": 33,
        "layers": 3,
        "width": 1,
        "heads": 3,
        "head_size": 6,
        "causal": False,
        "positions": "rotary",
        "fused_qkv": False,
        "qkv_bias": False,
        "qkv_clip": 1.0,
        "query_key_norm": "width",
        "mlp": "gated",
        "activation": "sigmoid",
        "norm_affine": False,
        "norm_bias": False,
        "window": 5,
        "parallel": True,
        "shared_norm": True,
        "shared_blocks": True,
        "layer_scale": True,
        "mixed_dropout": 0.0,
        "embedding_norm": True,
        "final_norm": True,
        "head.bias": False,
        "head.logit_cap": 1.5,
    }
)
"""Whose peak is where queries and keys are turned."""


@differential
@given(DENSE, st.integers(1, 3), st.integers(1, 5))
@example(SHARED, 1, 5)
def test_transformers_under_autocast(spec: Transformer, batch: int, seq: int) -> None:
    """Experts written as a loop have other casts than the one product for all of them on paper."""
    module, tokens, target = transformer(spec, batch, seq)
    found = training_step(module, tokens, target, F.cross_entropy, autocast=torch.bfloat16).most
    p = cm.predict(spec, batch=batch, seq=seq, loss="cross_entropy", precision="bf16-autocast")
    assert_phases_agree(differences(p, module, found))


@differential
@given(DENSE, st.integers(1, 3), st.integers(1, 5), st.sampled_from(sorted(PARTS)))
@example(SHARED.with_fields({"layers": 3, "positions": "alibi"}), 2, 5, "block")
@example(SHARED.with_fields({"layers": 3, "tied": True}), 1, 5, "mlp")
def test_frozen_parts_under_autocast(spec: Transformer, batch: int, seq: int, part: str) -> None:
    """Copies of weights that are not trained are made anew at each use."""
    assume(has(spec, part))
    module, tokens, target = transformer(spec, batch, seq)
    for frozen in PARTS[part](module):
        frozen.requires_grad_(False)
    assume(any(weight.requires_grad for weight in module.parameters()))
    found = training_step(module, tokens, target, F.cross_entropy, autocast=torch.bfloat16).most
    p = cm.predict(spec, batch=batch, seq=seq, loss="cross_entropy", precision="bf16-autocast", freeze=(part,))
    assert_phases_agree(differences(p, module, found))


@differential
@given(DENSE, st.integers(1, 3), st.integers(1, 5), st.integers(1, 3))
@example(SHARED.with_fields({"layers": 2}), 1, 2, 1)
@example(SHARED.with_fields({"layers": 5}), 1, 2, 2)
@example(TURNED, 1, 1, 3)
@example(Transformer(vocab=1, context=33, layers=1, width=4, heads=1, head_size=2, norm_placement="post"), 1, 1, 1)
def test_transformers_with_checkpoints(spec: Transformer, batch: int, seq: int, size: int) -> None:
    """What is run again has Python's names for more than the paper knows of, as forward has."""
    size = min(size, spec.layers)
    module, tokens, target = transformer(spec, batch, seq)
    grouped = Phased(module, size)
    found = training_step(grouped, tokens, target, F.cross_entropy).most
    p = cm.predict(spec, batch=batch, seq=seq, loss="cross_entropy", checkpoint=size)
    differing = differences(p, grouped, found)
    assert differing.pop("recompute").alive <= 0
    assert_phases_agree(differing)


class PhasedByOperator(Phased, ByOperator):
    """The same of blocks of which some results are kept."""


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"layers": 1, "kv_heads": 1},
        {"mlp": "plain", "activation": "elu"},
        {"positions": "alibi", "mlp": "plain", "mlp_bias": True, "norm": "layernorm", "norm_placement": "post"},
        {"qkv_clip": 1.2, "positions": "rotary"},
        {"parallel": True},
        {"fused_qkv": True, "attention_bias": True},
    ],
    ids=str,
)
@pytest.mark.parametrize(("batch", "seq"), [(1, 3), (2, 5)])
def test_transformers_that_keep_results_of_operators(fields: dict[str, Any], batch: int, seq: int) -> None:
    """torchtitan's "selective op": to the byte, but for names within what is run again, as above."""
    spec = LLAMA.with_fields(fields)
    module, tokens, target = transformer(spec, batch, seq)
    grouped = PhasedByOperator(module)
    found = training_step(grouped, tokens, target, F.cross_entropy).most
    p = cm.predict(spec, batch=batch, seq=seq, loss="cross_entropy", checkpoint="operators")
    differing = differences(p, grouped, found)
    assert differing.pop("recompute").alive <= 0
    assert {phase: most.alive for phase, most in differing.items()} == dict.fromkeys(differing, 0)


@pytest.mark.parametrize("name", ["gpt2-small", "tinyllama-1.1b"])
def test_inference_under_autocast_holds_every_copy_of_a_weight(name: str) -> None:
    spec = cm.load(name)
    assert isinstance(spec, Transformer)
    module, tokens, _ = transformer(spec, 2, 64)
    with Tracker([tokens, *module.parameters(), *module.buffers()]) as tracker, torch.no_grad():
        with GpuAutocast(torch.bfloat16):
            result = module(tokens)
        del result
    p = cm.predict(spec, batch=2, seq=64, mode="inference", precision="bf16-autocast")
    assert differences(p, module, tracker.most)["forward"].alive == 0
