"""Vision transformers: an encoder over the patches of an image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from costmodel.architectures.attention import Attention, AttentionContext, AttentionSetting
from costmodel.architectures.base import (
    ActivationName,
    Allowed,
    BatchShape,
    DropRate,
    ImageShape,
    Size,
    check_splits,
    refuse,
)
from costmodel.architectures.blocks import body
from costmodel.architectures.feedforward import dropped, feed_forward, normed
from costmodel.architectures.local import local
from costmodel.architectures.parts import MaybePooler
from costmodel.architectures.pooler import pooled, sorted_by
from costmodel.architectures.spec import ComposedModel
from costmodel.architectures.stages import StageParts
from costmodel.architectures.transformer import Transformer
from costmodel.documents.description import ABSENT
from costmodel.errors import SettingError, shown
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Tensor
from costmodel.layers.arithmetic import Add, Scale, Unread
from costmodel.layers.conv import Conv
from costmodel.layers.embedding import Prepend, TrainedPositions
from costmodel.layers.indexing import Parameter
from costmodel.layers.shape import Copy, Reshape, Slice, TransposeLast
from costmodel.training.layout import Layout
from costmodel.training.settings import LossKind

PICTURE: Any = (3, 224, 224)
"""The image that most of these networks were trained on (ImageNet)."""


class VisionTransformer(ComposedModel):
    """Patches of an image as tokens, trained tokens before them, an encoder, and classes told from the first token.

    The defaults are those of ViT-B/16 (Dosovitskiy et al. 2021, table 1).

    Example:
        >>> import costmodel as cm
        >>> cm.predict(cm.VisionTransformer(patch=14, layers=32, width=1280, heads=16)).params
        632045800

    """

    HAS_ATTENTION: ClassVar[bool] = True
    DATA_ALONE: ClassVar[bool] = True
    SPLIT_BY: ClassVar[tuple[str, ...]] = ("tp",)
    SPLITS_BACKWARD: ClassVar[bool] = True
    LETTERS: ClassVar[dict[str, str]] = {
        "patch": "P",
        "layers": "L",
        "width": "d",
        "heads": "h",
        "mlp_width": "d_ff",
        "classes": "C",
        "pooler.width": "d_p",
    }
    RENAMED: ClassVar[Mapping[str, str]] = {"pooler_width": "pooler.width"}

    input: ImageShape = Field(default=PICTURE, description="[channels, height, width] of an image")
    patch: Size = Field(default=16, description="height and width of a patch")
    layers: Size = Field(default=12, description="number of blocks")
    width: Size = Field(default=768, description="model width")
    heads: Size = Field(default=12, description="attention heads")
    fused_qkv: bool = Field(default=True, description="one projection makes query, key and value")
    qkv_bias: bool = Field(default=True, description="bias in the query, key and value projections")
    mlp_width: Size | None = Field(default=None, description="hidden features of the MLP (default: 4 × width)")
    mlp: Literal["plain", "gated"] = Field(default="plain", description="gated: act(x W_g) ⊙ x W_u")
    activation: ActivationName = Field(default="gelu", description="activation of the MLP")
    layer_scale: bool = Field(default=False, description="a trained factor of each feature of a sublayer's output")
    embedding_dropout: DropRate = Field(default=0.0, description="dropout after the embeddings")
    attention_dropout: DropRate = Field(default=0.0, description="dropout of attention weights")
    residual_dropout: DropRate = Field(default=0.0, description="dropout of each sublayer's output")
    patch_bias: bool = Field(default=True, description="bias in the patches' projection")
    embedding_norm: bool = Field(default=False, description="norm after the embeddings")
    last_norm: Literal["all", "first"] = Field(
        default="all", description="norm after the last block, of all tokens or of the first, which alone is handed on"
    )
    tokens: Annotated[int, Field(strict=True, ge=0, le=8)] = Field(
        default=1, description="trained tokens before the patches"
    )
    mask_token: bool = Field(default=False, description="a trained token among the weights, which nothing reads")
    classes: Size | None = Field(default=1000, description="classes (default: 1000; null: none)")
    class_bias: bool = Field(default=True, description="bias in the linear layer that scores classes")
    distilled: bool = Field(default=False, description="the second token tells classes too; logits are averaged")
    pooler: MaybePooler = Field(default=ABSENT, description="a linear layer over the first token (default: none)")
    attention_pool: bool = Field(
        default=False, description="a trained token attends to all others, goes through an MLP, and is handed on alone"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"heads {self.heads} does not divide width {self.width}")
        if self.patch > min(self.input[1:]):
            raise ValueError(f"patch {self.patch} is larger than the image {list(self.input[1:])}")
        if self.distilled and (self.tokens < 2 or self.classes is None):
            raise ValueError("distilled needs at least two tokens, and classes")
        if self.last_norm == "first" and self.distilled:
            raise ValueError("distilled models read two tokens: last_norm 'all'")
        if self.pooler is not None and self.pooler.spare:
            raise ValueError("pooler.spare: true: images have no head beside their pooler; leave it out")
        if self.pooler is not None and self.distilled:
            raise ValueError("distilled models have no pooler")
        if self.attention_pool and (self.distilled or self.last_norm == "first" or self.pooler is not None):
            raise ValueError("attention_pool hands on a token of its own: no pooler, distilled: false, last_norm 'all'")
        if not (self.tokens or self.attention_pool) and (self.classes, self.pooler, self.last_norm) != (
            None,
            None,
            "all",
        ):
            raise ValueError("tokens: 0 leaves no first token: give attention_pool: true, or no classes and no pooler")
        return self

    @property
    def encoder(self) -> Transformer:
        """The transformer whose blocks these are."""
        names = ("layers", "width", "heads", "fused_qkv", "qkv_bias", "mlp", "mlp_width", "activation", "layer_scale")
        same = {name: getattr(self, name) for name in (*names, "attention_dropout", "residual_dropout", "composition")}
        return Transformer.model_construct(
            name=self.name,
            vocab=1,
            context=1,
            causal=False,
            positions="none",
            head=None,
            tied=False,
            final_norm=self.last_norm == "all",
            **same,
        )

    @property
    def stage_parts(self) -> StageParts:
        """See `Architecture.stage_parts`: its blocks."""
        return self.encoder.stage_parts

    def stage_kind(self, layout: Layout) -> object:
        """See `Architecture.stage_kind`."""
        return self.encoder.stage_kind(layout)

    @property
    def default_loss(self) -> LossKind | None:
        """Cross-entropy of the classes, if there are any."""
        return None if self.classes is None else "cross_entropy"

    def size(self, name: str) -> int:
        """See `Architecture.size`."""
        value = self.value(name)
        return int(self.encoder.hidden if name == "mlp_width" and value is None else value or 0)

    def allowed(self, name: str, shape: BatchShape) -> Allowed:
        """See `Architecture.allowed`."""
        if name in ("width", "heads"):
            return self.encoder.allowed(name, shape)
        if name == "patch":
            return Allowed(range(1, min(self.input[1:]) + 1), "a patch is within the image")
        return Allowed()

    def batch_shape(self, batch: int, seq: int | None, image: tuple[int, int] | None) -> BatchShape:
        """A batch of images, of the size that the positions are trained for."""
        refuse("seq", seq, self, "batch")
        own = self.input[1:]
        if image is not None and image != own:
            raise SettingError(
                f"image {shown(tuple(map(int, image)))} is not the size that {self.title} has positions for, {own}: "
                f"leave it out, or give the model another input"
            )
        return BatchShape(batch, image=own if image is None else image)

    def forward(self, tape: Tape, shape: BatchShape, attention: AttentionSetting) -> Tensor:
        """(batch, C, H, W) images → (batch, classes); (batch, pooler's width) or (batch·T, width) without classes."""
        assert shape.image is not None
        encoder = local(self.encoder, tape.layout._replace(pp=1, vpp=1))
        if tape.layout.first:
            x = self._embedded(tape.input((shape.batch, self.input[0], *shape.image), name="images"))
        else:
            x = tape.received()
        x = body(encoder, tape, x, attention)
        if not tape.layout.last:
            return x
        if self.last_norm == "first":
            x = normed(encoder, Slice(1, axis=1)(x, name="first_token"), "final_norm")
        if self.attention_pool:
            x = self._attended(encoder, x, attention)
        elif self.pooler is not None:
            x = pooled(encoder, self.pooler, x)
        elif self.classes is None:
            return x.view((x.shape[0] * x.shape[1], x.shape[2]))
        if self.classes is None:
            return x.view((x.shape[0], x.shape[2]))
        y = sorted_by(x, self.classes, bias=self.class_bias)
        if self.distilled:
            other = sorted_by(x, self.classes, 1, "distillation", bias=self.class_bias)
            y = Scale(0.5)(Add()(y, other, name="add_logits"), name="halve_logits")
        return y.view((y.shape[0], y.shape[2]))

    def local(self, layout: Layout) -> Self:
        """This model, the blocks of whose encoder are split when they run; see `Architecture.local`."""
        if layout.tp != 1:
            check_splits(self, layout)
            if self.attention_pool:
                raise SettingError(f"tp={layout.tp} is not worked out for attention_pool of {self.title}: leave it out")
        super().local(layout)
        if layout.tp != 1 or layout.pp != 1:
            self.encoder.local(layout)
        return self

    def _attended(self, encoder: Transformer, x: Tensor, attention: AttentionSetting) -> Tensor:
        """(batch, T, width) → (batch, 1, width): a trained token attends to x (Zhai et al. 2022, §3.4)."""
        plain = encoder.with_values({"attention_dropout": 0.0})
        with x.tape.scope("pool"):
            token = x.tape.record(Parameter((1, 1, self.width)), (), "token", None)
            token = Copy((x.shape[0], 1, self.width))(token, name="repeat")
            y = Attention(plain, AttentionContext(plain, x.tape, token, attention), memory=x)(token)
            return Add()(y, feed_forward(plain, normed(plain, y, "norm")), name="add_mlp")

    def _embedded(self, images: Tensor) -> Tensor:
        x = Conv(self.width, kernel=self.patch, stride=self.patch, bias=self.patch_bias)(images, name="patches")
        _, d, rows, columns = x.shape
        x = TransposeLast()(Reshape((d, rows * columns))(x, name="flatten_patches"), name="patches_last")
        x = Prepend(self.tokens)(x, name="tokens") if self.tokens else x
        x = Unread(self.width)(x, name="mask_token") if self.mask_token else x
        x = TrainedPositions()(x, name="positions")
        x = normed(self.encoder, x, "embedding_norm") if self.embedding_norm else x
        return dropped(x, self.embedding_dropout, "embedding_dropout")
