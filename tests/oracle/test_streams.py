"""What autograd keeps of Gemma 3n's own model in `transformers`, but for its composed norms, is what is said here."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from costmodel.analysis.predict import predict
from costmodel.importers.files import build

from . import models
from .measure import Cost, measure, meta, stated
from .settings import differential
from .test_published_configs import small_configurations, transformers
from .vision import stub_operators

stub_operators()
from transformers import CONFIG_MAPPING, masking_utils  # noqa: E402
from transformers.models.gemma3n import modeling_gemma3n  # noqa: E402

pytestmark = pytest.mark.oracle


class Rows(nn.Module):
    """A model of the package that makes logits of rows of tokens, or what the head would read."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor) -> Tensor:
        y, *_ = self.inner(input_ids=tokens, use_cache=False).values()
        return y.view(-1, y.shape[-1])


def fused(norm: Any, x: Tensor) -> Tensor:
    return models.FusedRMS.apply(x, norm.weight if norm.with_scale else None)


def published(config: dict[str, Any], batch: int, seq: int) -> Cost:
    """What the package's model takes and keeps, with norms of one kernel each."""
    clip = config.pop("altup_coef_clip", 120.0)
    made = CONFIG_MAPPING["gemma3n_text"](**config)
    made.__dict__["altup_coef_clip"] = clip  # only earlier versions take null here, but the model still does
    kind = transformers.Gemma3nForCausalLM
    with torch.device("meta"):
        model = kind._from_config(made, attn_implementation="eager").train()
    with (
        patch.object(modeling_gemma3n.Gemma3nRMSNorm, "forward", fused),
        patch.object(masking_utils, "find_packed_sequence_indices", lambda positions: None),
        patch.object(transformers.PreTrainedModel, "warn_if_padding_and_no_attention_mask", lambda *_: None),
    ):
        return measure(Rows(model), meta(batch, seq, dtype=torch.int64), loss=torch.sum)


@differential
@given(small_configurations("gemma3n_text"), st.integers(1, 3), st.integers(1, 7), st.booleans())
def test_the_published_model_keeps_the_same(config: dict[str, Any], batch: int, seq: int, clipped: bool) -> None:
    """It makes tables of angles in every pass, which are buffers here, and for each sparse gate a number of its own."""
    config = config if clipped else config | {"altup_coef_clip": None}
    model: Any = build(config, "config")
    paper = predict(model, batch=batch, seq=seq, loss=None)
    every = [model.pattern[n % len(model.pattern)] for n in range(model.layers)]
    tables = 2 * 4 * seq * model.rotated * len({variant.windowed for variant in every})
    numbers = 4 * sum(variant.sparse for variant in every)
    found, own = published(dict(config), batch, seq), tables + numbers
    assert stated(paper, paper) == found._replace(saved=found.saved - own, saved_with_loss=found.saved - own)
