"""Vision transformers drawn at random cost what they cost in PyTorch; ready ones are as large as in torchvision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from costmodel.analysis.predict import predict
from costmodel.architectures.parts import Pooler
from costmodel.architectures.vision_transformer import VisionTransformer

from . import models
from .measure import Cost, measure, meta, stated
from .settings import differential
from .vision import stub_operators

pytestmark = pytest.mark.oracle


class ViT(nn.Module):
    """Written plainly from the description."""

    def __init__(self, spec: VisionTransformer, kernel: str, device: Any) -> None:
        super().__init__()
        self.spec, d, inner = spec, spec.width, spec.encoder
        channels, height, width = spec.input
        self.patches = nn.Conv2d(channels, d, spec.patch, spec.patch, bias=spec.patch_bias)
        self.embedding_norm = nn.LayerNorm(d) if spec.embedding_norm else nn.Identity()
        count = (height // spec.patch) * (width // spec.patch) + spec.tokens
        self.tokens = models.Prepended(spec.tokens, d) if spec.tokens else nn.Identity()
        self.positions = models.Placed(count, d)
        self.mask_token = models.Unread(d) if spec.mask_token else nn.Identity()
        self.dropout = models.Dropout(spec.embedding_dropout, device)
        self.blocks = nn.ModuleList(models.Block(inner, count, kernel, device, n) for n in range(spec.layers))
        self.norm = nn.LayerNorm(d)
        features = spec.value("pooler.width") or d
        self.act = models.activated(spec.pooler.activation) if spec.pooler else None
        self.pooler = nn.Linear(d, features, bias=spec.pooler.bias) if spec.pooler else None
        self.pooler_norm = nn.LayerNorm(features) if spec.value("pooler.norm") else nn.Identity()
        self.pooler_dropout = models.Dropout(spec.value("pooler.dropout") or 0.0, device)
        self.classes = nn.Linear(features if spec.pooler else d, spec.classes or 1, bias=spec.class_bias)
        self.classes = self.classes if spec.classes else None
        self.pool = Pool(inner, device) if spec.attention_pool else None
        self.other = nn.Linear(d, spec.classes, bias=spec.class_bias) if spec.classes and spec.distilled else None

    def forward(self, images: Tensor) -> Tensor:
        x = self.start(images)
        for block in self.blocks:
            x = block(x)
        return self.end(x)

    def start(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        return self.dropout(self.embedding_norm(self.positions(self.mask_token(self.tokens(x)))))

    def end(self, x: Tensor) -> Tensor:
        x = self.norm(x if self.spec.last_norm == "all" else x[:, :1])
        if self.pool is not None:
            y = self.pool(x)[:, 0]
            return y if self.classes is None else self.classes(y)
        if self.pooler is None and self.classes is None:
            return x.view(-1, x.shape[-1])
        y = x[:, 0]
        if self.pooler is not None and self.act is not None:
            y = self.pooler_norm(self.act(self.pooler(self.pooler_dropout(y))))
        y = y if self.classes is None else self.classes(y)
        return y if self.other is None else (y + self.other(x[:, 1])) / 2


class Pool(nn.Module):
    """A trained token that attends to all others, and an MLP."""

    def __init__(self, spec: Any, device: Any) -> None:
        super().__init__()
        spec = spec.with_values({"attention_dropout": 0.0})
        self.token = nn.Parameter(torch.empty(1, 1, spec.width))
        self.attention = models.Attention(spec, 1, "eager", device, 0, crosses=True)
        self.norm = nn.LayerNorm(spec.width)
        self.mlp = models.FeedForward(spec, spec.mlp_width or 4 * spec.width, device)

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention(self.token.repeat(len(x), 1, 1), None, x)
        return y + self.mlp(self.norm(y))


@st.composite
def pooled_by_attention(draw: st.DrawFn) -> VisionTransformer:
    spec = draw(vision_transformers())
    fields = {"distilled": False, "pooler": None, "last_norm": "all", "attention_pool": True}
    return spec.with_fields(fields | {"tokens": draw(st.integers(0, 2))})


@st.composite
def vision_transformers(draw: st.DrawFn) -> VisionTransformer:
    heads, patch, tokens = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    classes = draw(st.none() | st.integers(2, 5))
    distilled = tokens == 2 and classes is not None and draw(st.booleans())
    chance = st.sampled_from([0.0, 0.1])
    widths, names = st.none() | st.integers(1, 9), st.sampled_from(["tanh", "gelu"])
    poolers = st.builds(Pooler, activation=names, width=widths, dropout=chance, bias=st.booleans(), norm=st.booleans())
    pooler = None if distilled else draw(st.none() | poolers)
    return VisionTransformer(
        input=(draw(st.integers(1, 3)), draw(st.integers(3, 7)), draw(st.integers(3, 7))),
        patch=patch,
        layers=draw(st.integers(1, 3)),
        width=heads * draw(st.integers(1, 4)),
        heads=heads,
        fused_qkv=draw(st.booleans()),
        qkv_bias=draw(st.booleans()),
        mlp=draw(st.sampled_from(["plain", "gated"])),
        layer_scale=draw(st.booleans()),
        mask_token=draw(st.booleans()),
        patch_bias=draw(st.booleans()),
        embedding_norm=draw(st.booleans()),
        last_norm=draw(st.just("all") if distilled else st.sampled_from(["all", "first"])),
        class_bias=draw(st.booleans()),
        mlp_width=draw(st.none() | st.integers(1, 9)),
        activation=draw(st.sampled_from(["gelu", "relu"])),
        tokens=tokens,
        classes=classes,
        distilled=distilled,
        pooler=pooler,
        embedding_dropout=draw(chance),
        attention_dropout=draw(chance),
        residual_dropout=draw(chance),
    )


def in_pytorch(spec: VisionTransformer, batch: int, kernel: str = "eager", device: str = "gpu") -> Cost:
    with torch.device("meta"):
        model = ViT(spec, kernel, device)
    target = meta(batch, dtype=torch.int64)
    loss = None if spec.classes is None else lambda y: F.cross_entropy(y, target)
    return measure(model, meta(batch, *spec.input), loss=loss, given=(target,))


def on_paper(spec: VisionTransformer, **settings: Any) -> Cost:
    return stated(predict(spec, **settings), predict(spec, loss=None, **settings))


@differential
@given(pooled_by_attention(), st.integers(1, 3), st.sampled_from(["gpu", "cpu"]))
def test_pooling_by_attention(spec: VisionTransformer, batch: int, device: Any) -> None:
    assert on_paper(spec, batch=batch, device=device) == in_pytorch(spec, batch, device=device)


@differential
@given(vision_transformers(), st.integers(1, 3), st.sampled_from(["gpu", "cpu"]))
def test_eager_attention(spec: VisionTransformer, batch: int, device: Any) -> None:
    assert on_paper(spec, batch=batch, device=device) == in_pytorch(spec, batch, device=device)


@differential
@given(vision_transformers(), st.integers(1, 3), st.sampled_from(["flash", "efficient"]))
def test_fused_attention(spec: VisionTransformer, batch: int, kernel: str) -> None:
    assert on_paper(spec, batch=batch, attention=kernel) == in_pytorch(spec, batch, kernel)


TORCHVISION = ["vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14"]


@pytest.mark.parametrize("name", TORCHVISION)
def test_ready_models_have_the_parameters_of_torchvision(name: str) -> None:
    stub_operators()
    models_of = pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        published = getattr(models_of, name)()
    assert predict(name, mode="inference").params == sum(weight.numel() for weight in published.parameters())
