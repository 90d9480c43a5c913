"""Encoder-decoders drawn at random cost what they cost in PyTorch, over tokens and over sound."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from costmodel.analysis.predict import predict
from costmodel.architectures.encoder_decoder import EncoderDecoder, Sound
from costmodel.architectures.parts import Experts, Head, Window
from costmodel.errors import CostModelError

from . import models
from .measure import Cost, measure, meta, stated
from .settings import differential
from .test_transformer import FACTOR

pytestmark = pytest.mark.oracle


class Translator(nn.Module):
    """Written plainly from the description."""

    def __init__(self, spec: EncoderDecoder, source: int, target: int, kernel: str, device: Any) -> None:
        super().__init__()
        self.spec, d = spec, spec.width
        self.tokens = nn.Embedding(spec.vocab, d)
        self.targets = self.tokens if spec.shared_embedding else nn.Embedding(spec.vocab, d)
        heard = spec.sound is not None
        self.ear = Ear(spec.sound.mel_bins, d, spec.sound.places) if heard else None
        learned, rows = spec.positions == "learned", spec.position_rows or spec.context
        self.source_norm, self.target_norm = (
            models.norm_over(spec.decoder, d, device) if spec.embedding_norm else None for _ in range(2)
        )
        self.source_positions = models.positions(spec, rows, d) if learned and not heard else None
        self.target_positions = models.positions(spec, rows, d) if learned else None
        self.dropout = models.Dropout(spec.embedding_dropout, device)
        self.encoder = models.Body(spec.encoder, source, kernel, device)
        self.decoder = models.Body(spec.decoder, target, kernel, device, crosses=True)
        self.head = models.Head(spec.decoder, d, self.targets, device)

    def embedded(self, tokens: Tensor, table: nn.Module, positions: nn.Module | None, norm: nn.Module | None) -> Tensor:
        x = models.scaled(table(tokens), self.spec.embedding_scale)
        if positions is not None:
            x = x + positions(torch.arange(tokens.shape[1], device=tokens.device))
        return x if norm is None else norm(x)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        if self.ear is None:
            x = self.embedded(source, self.tokens, self.source_positions, self.source_norm)
        else:
            x = self.ear(source)
        memory = self.encoder.through(self.dropout(x))
        y = self.embedded(target, self.targets, self.target_positions, self.target_norm)
        y = self.decoder.through(self.dropout(y), memory)
        return self.head(y).view(-1, self.spec.vocab)


class Ear(nn.Module):
    """Two convolutions over time, and fixed positions."""

    def __init__(self, mels: Any, d: int, places: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(mels, d, 3, padding=1), nn.Conv1d(d, d, 3, stride=2, padding=1)
        self.positions = nn.Parameter(torch.empty(places, d), requires_grad=False)

    def forward(self, sound: Tensor) -> Tensor:
        return F.gelu(self.second(F.gelu(self.first(sound)))).permute(0, 2, 1) + self.positions


HEADS = st.fixed_dictionaries(
    {
        **dict.fromkeys(("input_scale", "logit_scale", "logit_cap"), FACTOR),
        **{name: st.booleans() for name in ("bias", "spare_bias", "transform_bias")},
        "transform": st.sampled_from([None, *models.NAMES]),
    }
)


@st.composite
def translators(draw: st.DrawFn) -> EncoderDecoder:
    heads = draw(st.sampled_from([(1, None), (2, None), (2, 1), (1, 3)]))
    heard, biased = draw(st.booleans()), draw(st.booleans())
    positions = draw(st.just("learned") if heard else st.sampled_from(["relative", "learned", "rotary"]))
    head_size = 2 if positions == "rotary" else draw(st.sampled_from([None, 2, 3]))
    experts = draw(st.none() | st.integers(1, 3))
    chance = st.sampled_from([0.0, 0.1])
    fields: dict[str, Any] = {name: draw(st.booleans()) for name in ("attention_bias", "mlp_bias", "tied")}
    places = ("embedding", "attention", "residual", "mlp", "final")
    fields |= {f"{place}_dropout": draw(chance) for place in places}
    return EncoderDecoder(
        **fields,
        vocab=draw(st.integers(1, 20)),
        context=draw(st.integers(33, 35)),
        sound=Sound(mel_bins=draw(st.integers(1, 5)), places=draw(st.integers(1, 7))) if heard else None,
        layers=draw(st.integers(1, 3)),
        decoder_layers=draw(st.none() | st.integers(1, 3)),
        width=6 * draw(st.integers(1, 3)),
        heads=heads[0],
        decoder_heads=heads[1],
        head_size=head_size,
        norm_placement=draw(st.sampled_from(["pre", "post", "both"])),
        kv_heads=draw(st.sampled_from([None, 1])),
        window=draw(st.none() | st.builds(lambda size: Window(size=size, pattern=(True, False)), st.integers(1, 4))),
        score_cap=draw(FACTOR),
        shared_embedding=heard or draw(st.booleans()),
        experts=None if experts is None else Experts(count=experts, per_token=1, dropout=draw(chance), weights="all"),
        embedding_norm=not heard and draw(st.booleans()),
        embedding_scale=None if heard else draw(FACTOR),
        position_rows=draw(st.none() | st.just(37)) if positions == "learned" else None,
        position_table=draw(st.sampled_from(models.TABLES)) if positions == "learned" else "trained",
        positions=positions,  # pyright: ignore[reportArgumentType]
        relative_buckets=draw(st.none() | st.integers(2, 9)) if positions == "relative" else None,
        relative_shared=positions != "relative" or draw(st.booleans()),
        qkv_bias=biased,
        key_bias=not biased or draw(st.booleans()),
        score_scale=draw(FACTOR),
        mlp=draw(st.sampled_from(["plain", "gated"])),
        mlp_width=draw(st.none() | st.integers(1, 9)),
        decoder_mlp_width=draw(st.none() | st.integers(1, 9)),
        activation=draw(st.sampled_from(["gelu", "relu"])),
        norm=draw(st.sampled_from(["layernorm", "rmsnorm"])),
        head=Head(**draw(HEADS)),
    )


def in_pytorch(spec: EncoderDecoder, batch: int, seq: int, target: int, kernel: str, device: str) -> Cost:
    with torch.device("meta"):
        heard = spec.value("sound.places") or seq
        model = Translator(spec, heard, target, kernel, device)
    sound = meta(batch, spec.value("sound.mel_bins") or 0, 2 * heard)
    source = meta(batch, seq, dtype=torch.int64) if spec.sound is None else sound
    labels = meta(batch * target, dtype=torch.int64)
    tokens = meta(batch, target, dtype=torch.int64)
    return measure(model, source, tokens, loss=lambda y: F.cross_entropy(y, labels), given=(labels,))


def on_paper(spec: EncoderDecoder, **settings: Any) -> Cost:
    return stated(predict(spec, **settings), predict(spec, loss=None, **settings))


SEQ = st.integers(1, 5) | st.sampled_from([32, 33])


@differential
@given(translators(), st.integers(1, 3), SEQ, SEQ, st.sampled_from(["gpu", "cpu"]))
def test_eager_attention(spec: EncoderDecoder, batch: int, seq: int, target: int, device: Any) -> None:
    paper = on_paper(spec, batch=batch, seq=seq, target_seq=target, device=device)
    assert paper == in_pytorch(spec, batch, seq, target, "eager", device)


@differential
@given(translators(), st.integers(1, 3), SEQ, SEQ, st.sampled_from(["flash", "efficient"]))
def test_fused_attention(spec: EncoderDecoder, batch: int, seq: int, target: int, kernel: str) -> None:
    spec = spec.model_copy(update={"score_cap": None, "kv_heads": None})  # which no fused kernel has, both ways
    if spec.positions == "relative" and kernel == "flash":
        with pytest.raises(CostModelError, match="takes no biases of the scores"):
            predict(spec, batch=batch, seq=seq, attention=kernel)
        return
    paper = on_paper(spec, batch=batch, seq=seq, target_seq=target, attention=kernel)
    assert paper == in_pytorch(spec, batch, seq, target, kernel, "gpu")
