"""Encoder-decoders: an encoder reads a source, tokens or sound; a decoder that attends to it writes the target."""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from costmodel.architectures.attention import AttentionSetting
from costmodel.architectures.base import (
    ActivationName,
    Allowed,
    BatchShape,
    DropRate,
    PositiveNumber,
    Size,
    check_runtime,
    default_tokens,
    fitting_divisors,
    refuse,
)
from costmodel.architectures.blocks import body
from costmodel.architectures.embedding_and_head import embedded, logits
from costmodel.architectures.feedforward import dropped
from costmodel.architectures.local import local
from costmodel.architectures.parts import PLAIN, Experts, Head, Window
from costmodel.architectures.ranks import embedding
from costmodel.architectures.spec import HEAD, ComposedModel
from costmodel.architectures.transformer import Transformer
from costmodel.documents.description import ABSENT, Description, PartOf, part_of
from costmodel.errors import SettingError
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Tensor
from costmodel.layers.activation import Gelu
from costmodel.layers.conv import Conv
from costmodel.layers.embedding import FixedPositions
from costmodel.layers.shape import Reshape, TransposeLast
from costmodel.symbolic.sizes import LARGEST_SIZE
from costmodel.training.layout import Layout
from costmodel.training.settings import LossKind

SHARED = (
    *("vocab", "width", "head_size", "relative_buckets", "relative_shared", "qkv_bias", "key_bias", "score_scale"),
    *(
        "attention_bias",
        "mlp",
        "mlp_bias",
        "activation",
        "norm",
        "embedding_dropout",
        "attention_dropout",
        "residual_dropout",
    ),
    *("mlp_dropout", "final_dropout", "norm_placement", "embedding_norm", "embedding_scale"),
    *("kv_heads", "window", "score_cap", "experts"),
    "composition",
)
"""Fields of both the encoder's and the decoder's blocks."""


class Sound(Description):
    """A source of sound: a spectrogram."""

    mel_bins: Size = Field(description="features of a frame")
    places: Size = Field(description="places of the source, of two frames each")


class EncoderDecoder(ComposedModel):
    """An encoder's blocks, and a decoder's, each with attention to what the encoder made; one table of tokens.

    The defaults are those of T5 small (Raffel et al. 2020, §2.1). With `sound` the source is sound, which two
    convolutions read, as in Whisper (Radford et al. 2022, §2.2).

    Example:
        >>> import costmodel as cm
        >>> t5 = cm.EncoderDecoder(layers=6, width=512, heads=8)
        >>> cm.predict(t5, batch=2, seq=512, target_seq=64).params
        60506624

    """

    HAS_ATTENTION: ClassVar[bool] = True
    DATA_ALONE: ClassVar[bool] = True
    SPLIT_BY: ClassVar[tuple[str, ...]] = ("tp",)
    BATCH_SIZES: ClassVar[tuple[str, ...]] = ("seq", "target_seq")
    LETTERS: ClassVar[dict[str, str]] = {
        "vocab": "V",
        "context": "n_ctx",
        "sound.places": "n_src",
        "sound.mel_bins": "n_mel",
        "layers": "L",
        "decoder_layers": "L_dec",
        "width": "d",
        "heads": "h",
        "decoder_heads": "h_dec",
        "head_size": "d_h",
        "mlp_width": "d_ff",
        "decoder_mlp_width": "d_dec",
        "relative_buckets": "n_b",
        "position_rows": "n_pos",
        **{name: Transformer.LETTERS[name] for name in ("kv_heads", "window.size", "experts.count")},
        **{
            f"experts.{name}": Transformer.LETTERS[f"experts.{name}"] for name in ("per_token", "width", "shared_width")
        },
    }
    RENAMED: ClassVar[Mapping[str, str]] = {"mel_bins": "sound.mel_bins", "source_context": "sound.places", **HEAD}

    vocab: Size = Field(default=32128, description="vocabulary size")
    context: Size = Field(default=512, description="longest target, and source if it is tokens")
    sound: Annotated[PartOf[Sound], part_of(Sound)] = Field(
        default=ABSENT, description="the sound that is the source (default: tokens instead)"
    )
    layers: Size = Field(default=6, description="blocks of the encoder")
    decoder_layers: Size | None = Field(default=None, description="blocks of the decoder (default: the encoder's)")
    width: Size = Field(default=512, description="model width")
    heads: Size = Field(default=8, description="attention heads")
    decoder_heads: Size | None = Field(default=None, description="heads of the decoder (default: the encoder's)")
    kv_heads: Size | None = Field(default=None, description="key and value heads (default: as many as query heads)")
    head_size: Size | None = Field(default=None, description="features of a head (default: width / heads)")
    window: Annotated[PartOf[Window], part_of(Window)] = Field(
        default=ABSENT, description="the nearest keys of its own side, which alone a token sees (default: it sees all)"
    )
    positions: Literal["relative", "learned", "rotary"] = Field(
        default="relative", description="biases by distance, vectors (of sound: fixed ones), or turned queries and keys"
    )
    relative_buckets: Size | None = Field(default=None, description="distances told apart (default: 32)")
    relative_shared: bool = Field(default=True, description="one table of those for all blocks, or each has its own")
    qkv_bias: bool = Field(default=False, description="bias in the query, key and value projections")
    key_bias: bool = Field(default=True, description="bias in the key projection, where those projections have one")
    score_scale: PositiveNumber | None = Field(default=1.0, description="factor of the scores (null: 1/√head size)")
    score_cap: PositiveNumber | None = Field(
        default=None, description="c of the scores' soft cap c·tanh(x/c) (default: none)"
    )
    attention_bias: bool = Field(default=False, description="bias in attention's output projection")
    experts: Annotated[PartOf[Experts], part_of(Experts)] = Field(
        default=ABSENT, description="MLPs among which a router chooses, on each side (default: one, for all)"
    )
    mlp: Literal["plain", "gated"] = Field(default="plain", description="gated: act(x W_g) ⊙ x W_u")
    mlp_width: Size | None = Field(default=None, description="hidden features of the MLP (default: 4 × width)")
    decoder_mlp_width: Size | None = Field(default=None, description="the same in the decoder (default: the encoder's)")
    mlp_bias: bool = Field(default=False, description="bias in the MLP's linear layers")
    activation: ActivationName = Field(default="relu", description="activation of the MLP")
    norm: Literal["layernorm", "rmsnorm"] = Field(default="rmsnorm", description="normalisation")
    norm_placement: Literal["pre", "post", "both"] = Field(
        default="pre", description="norm before each sublayer, after it is added, or before and of its output"
    )
    embedding_norm: bool = Field(default=False, description="norm after the embeddings of each side")
    embedding_scale: PositiveNumber | None = Field(
        default=None, description="factor of the token embeddings (default: none)"
    )
    position_rows: Size | None = Field(
        default=None, description="rows of each side's learned positions (default: the context)"
    )
    position_table: Literal["trained", "stored", "constant"] = Field(
        default="trained", description="learned positions: trained; stored among the weights, and not; or no weights"
    )
    embedding_dropout: DropRate = Field(default=0.0, description="dropout after the embeddings")
    attention_dropout: DropRate = Field(default=0.0, description="dropout of attention weights")
    residual_dropout: DropRate = Field(default=0.0, description="dropout of each sublayer's output")
    mlp_dropout: DropRate = Field(default=0.0, description="dropout of the MLP's hidden features")
    final_dropout: DropRate = Field(default=0.0, description="dropout after the last block and norm of each side")
    shared_embedding: bool = Field(default=True, description="source and target have one table of tokens")
    tied: bool = Field(default=True, description="the head's weight is the target's token embedding")
    head: Annotated[PartOf[Head], part_of(Head)] = Field(
        default=PLAIN, description="what makes logits over the vocabulary, false for none (default: a linear layer)"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for field in ("heads", "decoder_heads"):
            if self.head_size is None and self.width % (getattr(self, field) or self.heads):
                raise ValueError(f"{field} {getattr(self, field)} does not divide width {self.width}")
        if self.sound is not None and self.positions == "relative":
            raise ValueError("a source of sound needs positions 'learned'")
        if self.relative_buckets is not None and self.positions != "relative":
            raise ValueError(f"relative_buckets needs positions 'relative', not {self.positions!r}")
        if not self.relative_shared and self.positions != "relative":
            raise ValueError(f"relative_shared: false needs positions 'relative', not {self.positions!r}")
        if self.position_rows is not None and (self.positions != "learned" or self.position_rows < self.context):
            raise ValueError(f"position_rows {self.position_rows} needs learned positions, at least the context's")
        if self.position_table != "trained" and self.positions != "learned":
            raise ValueError(f"position_table {self.position_table!r} needs positions 'learned'")
        if self.sound is not None and (self.embedding_norm or self.embedding_scale is not None):
            raise ValueError("a source of sound has no embeddings to scale or to normalise")
        if self.kv_heads is not None or self.window is not None or self.experts is not None:
            for side in (self.encoder, self.decoder):
                Transformer(**side.model_dump(exclude={"name", "notes"}))
        elif self.positions == "rotary" and self.encoder.head_features % 2:
            raise ValueError(f"positions 'rotary' need heads of an even size, not {self.encoder.head_features}")
        if self.sound is not None and self.positions == "rotary":
            raise ValueError("a source of sound needs positions 'learned'")
        if self.sound is not None and not self.shared_embedding:
            raise ValueError("shared_embedding: false needs a source of tokens")
        if not self.key_bias and not self.qkv_bias:
            raise ValueError("key_bias: false needs qkv_bias")
        return self

    @property
    def encoder(self) -> Transformer:
        """The transformer whose blocks are the encoder's."""
        positions = "none" if self.sound is not None else self.positions
        return self._side(
            layers=self.layers,
            heads=self.heads,
            mlp_width=self.mlp_width,
            positions=positions,
            position_rows=self.position_rows if positions == "learned" else None,
            position_table=self.position_table if positions == "learned" else "trained",
            causal=False,
            head=None,
        )

    @property
    def decoder(self) -> Transformer:
        """The transformer whose blocks, with attention to the encoder's output between, are the decoder's."""
        return self._side(
            layers=self.layers if self.decoder_layers is None else self.decoder_layers,
            heads=self.heads if self.decoder_heads is None else self.decoder_heads,
            mlp_width=self.mlp_width if self.decoder_mlp_width is None else self.decoder_mlp_width,
            positions=self.positions,
            position_rows=self.position_rows,
            position_table=self.position_table,
            tied=self.tied,
            head=self.head,
        )

    def _side(self, **fields: Any) -> Transformer:
        shared = {name: getattr(self, name) for name in SHARED}
        return Transformer.model_construct(name=self.name, context=self.context, fused_qkv=False, **shared, **fields)

    @property
    def default_loss(self) -> LossKind | None:
        """Next-token cross-entropy of the target; none without a head."""
        return None if self.head is None else "cross_entropy"

    def assumptions(self, shape: BatchShape) -> list[tuple[str, str]]:
        """Of the tokens' choice of experts."""
        return self.encoder.assumptions(shape)

    def size(self, name: str) -> int:
        """See `Architecture.size`: what the decoder does not have apart is the encoder's."""
        own = name.removeprefix("decoder_")
        if own == name or (value := self.value(name)) is None:
            sized = self.encoder if own in Transformer.LETTERS else self
            return sized.size(own) if sized is not self else int(self.value(own) or 0)
        return int(value)

    def allowed(self, name: str, shape: BatchShape) -> Allowed:
        """See `Architecture.allowed`: heads divide the width, and positions have a table or none."""
        split = self.head_size is None
        if name in ("seq", "target_seq"):
            return self.decoder.allowed("seq", shape)
        if name in ("context", "position_rows"):
            return self.decoder.allowed(name, shape)
        if name == "width" and split:
            step = lcm(self.encoder.heads, self.decoder.heads)
            values = range(step, LARGEST_SIZE + 1, step)
            return Allowed(values, note=f"width in steps of {step}, so that heads divide it")
        if name in ("kv_heads", "head_size", "window.size") or name.startswith("experts."):
            return self.encoder.allowed(name, shape)
        if name in ("heads", "decoder_heads") and split:
            limit = f"heads divide the width {self.width:,}"
            return Allowed(fitting_divisors(self, name, self.width), limit)
        return Allowed()

    def batch_shape(self, batch: int, seq: int | None, image: tuple[int, int] | None) -> BatchShape:
        """A batch of sources of `seq` tokens and of targets as long; where sound is the source, of targets."""
        refuse("image", image, self, "batch, seq and target_seq")
        seq = default_tokens(self.context) if seq is None else seq
        self._check(seq)
        return BatchShape(batch, seq, target=seq)

    def with_target(self, shape: BatchShape, target_seq: int | None) -> BatchShape:
        """See `Architecture.with_target`."""
        if target_seq is None:
            return shape
        self._check(target_seq)
        return shape._replace(target=target_seq, seq=target_seq if self.sound is not None else shape.seq)

    def _check(self, length: int) -> None:
        if self.positions == "learned" and length > self.context:
            raise SettingError(
                f"seq {length} is beyond the learned position table of {self.title}: use at most {self.context}"
            )

    def local(self, layout: Layout) -> Self:
        """This model, both of whose sides are split when they run; see `Architecture.local`."""
        if layout.sp:
            raise SettingError(f"sp=True is not worked out for encoder-decoders, of {self.title}: leave it out")
        check_runtime(self, layout)
        super().local(layout)
        return self

    def forward(self, tape: Tape, shape: BatchShape, attention: AttentionSetting) -> Tensor:
        """(batch, T) source tokens, or sound, and (batch, T_t) target tokens → (batch·T_t, vocab) logits."""
        assert shape.seq is not None
        assert shape.target is not None
        encoder, decoder = (local(side, tape.layout) for side in (self.encoder, self.decoder))
        tokens = tape.input((shape.batch, shape.target), "index", "tokens")
        table: Tensor | None = None
        with tape.scope("encoder"):
            if self.sound is None:
                source = tape.input((shape.batch, shape.seq), "index", "source")
                x = embedding(self.vocab, self.width, source)
                table = tape.weights_of("embedding")["weight"]
                x = embedded(encoder, x, source)
            else:
                x = dropped(self._heard(tape, shape.batch), self.embedding_dropout, "embedding_dropout")
            memory = body(encoder, tape, x, attention)
        with tape.scope("decoder"):
            tied = None if table is None or not self.shared_embedding else {"weight": table}
            x = embedding(self.vocab, self.width, tokens, tied=tied)
            table = tape.weights_of("embedding")["weight"]
            x = body(decoder, tape, embedded(decoder, x, tokens), attention, memory)
        y = x if self.head is None else logits(decoder, x, table)
        return y.view((shape.batch * shape.target, y.shape[-1]))

    def _heard(self, tape: Tape, batch: int) -> Tensor:
        """(batch, T, width): two convolutions over time, the second of which halves it; the height of 1 is no axis."""
        assert self.sound is not None
        x = tape.input((batch, self.sound.mel_bins, 1, 2 * self.sound.places), name="sound")
        x = Gelu()(Conv(self.width, kernel=(1, 3), padding=(0, 1))(x, name="conv1"), name="gelu1")
        x = Gelu()(Conv(self.width, kernel=(1, 3), stride=(1, 2), padding=(0, 1))(x, name="conv2"), name="gelu2")
        x = TransposeLast()(Reshape((self.width, x.shape[3]))(x, name="places"), name="places_last")
        return FixedPositions()(x, name="positions")
