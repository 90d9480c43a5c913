"""What a transformer is: its fields, and the sizes that follow from them."""

# No `from __future__ import annotations`: pydantic would have to read each annotation of a field from its text again.
import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from costmodel.architectures.base import (
    MOST_PATTERN,
    SPLITTING,
    ActivationName,
    Allowed,
    Architecture,
    BatchShape,
    DropRate,
    Pattern,
    PositiveNumber,
    Size,
    as_tuple,
)
from costmodel.architectures.legality import allowed, check_together
from costmodel.architectures.local import local
from costmodel.architectures.mixers import MIXERS, GatedDelta, ShortConvolution, StateSpace
from costmodel.architectures.parts import (
    PLAIN,
    AltUp,
    Classes,
    Composition,
    Disentangled,
    Experts,
    Head,
    Indexer,
    Latent,
    LayerInputs,
    MaybePooler,
    Rotary,
    Window,
)
from costmodel.architectures.stages import StageParts
from costmodel.architectures.variants import Variant, check_varied, lending, variants
from costmodel.documents.description import ABSENT, ALL, Listed, PartOf, part_of
from costmodel.errors import SettingError
from costmodel.symbolic.sizes import exact_div, peek
from costmodel.training.layout import Layout

HEAD = {
    "head_bias": "head.bias",
    "head_transform": "head.transform",
    "output_scale": "head.input_scale",
    "logit_scale": "head.logit_scale",
    "logit_cap": "head.logit_cap",
}
RENAMED = {
    "window_pattern": "window.pattern",
    "rotary_size": "rotary.size",
    "rotary_pattern": "rotary.pattern",
    "latent_width": "latent.width",
    "query_latent_width": "latent.query_width",
    "value_head_size": "latent.value_head_size",
    "experts_per_token": "experts.per_token",
    **{f"expert_{name}": f"experts.{name}" for name in ("width", "pattern", "bias", "weights", "shares", "scale")},
    "expert_groups": "experts.groups",
    **{name: f"experts.{name}" for name in ("dense_layers", "chosen_groups", "choice_bias", "capacity_factor")},
    **{name: f"experts.{name}" for name in ("imbalance", "shared_width", "shared_gate", "router_bias")},
    "pooler_dropout": "pooler.dropout",
    "class_dropout": "classes.dropout",
    **HEAD,
}
"""Names of a transformer's fields by the names that they had when all were flat."""


class ComposedModel(Architecture):
    """Abstract: a model that may be written as the package `transformers` writes it."""

    composition: Annotated[PartOf[Composition], part_of(Composition)] = Field(
        default=ABSENT, description="how the package transformers writes this model (default: not known)"
    )

    @property
    def written(self) -> Composition | None:
        """How the package writes this model, if that is what it is to be."""
        return self.composition if self.composition is not None and self.composition.used else None

    def implemented(self, by: str) -> Self:
        """See `Architecture.implemented`."""
        if by == "plain" or self.composition is None:
            return super().implemented(by)
        return self.model_copy(update={"composition": self.composition.model_copy(update={"used": True})})


class TransformerSpec(ComposedModel):
    """Abstract: the description of a transformer, without its forward pass."""

    HAS_ATTENTION: ClassVar[bool] = True
    DATA_ALONE: ClassVar[bool] = True
    SPLITS_BACKWARD: ClassVar[bool] = True
    SPLIT_BY: ClassVar[tuple[str, ...]] = SPLITTING
    BATCH_SIZES: ClassVar[tuple[str, ...]] = ("seq", "past")
    LETTERS: ClassVar[dict[str, str]] = {
        "vocab": "V",
        "context": "n_ctx",
        "layers": "L",
        "width": "d",
        "heads": "h",
        "kv_heads": "h_kv",
        "head_size": "d_h",
        "mlp_width": "d_ff",
        "rotary.size": "d_rot",
        "window.size": "w",
        "position_rows": "n_pos",
        "relative_buckets": "n_b",
        "disentangled.size": "n_d",
        "embedding_width": "d_e",
        "segments": "n_seg",
        "classes.count": "C",
        "experts.count": "E",
        "experts.per_token": "k",
        "experts.width": "d_x",
        "experts.shared_width": "d_s",
        "latent.width": "d_c",
        "latent.query_width": "d_q",
        "latent.value_head_size": "d_v",
        "experts.dense_layers": "L_0",
        "pooler.width": "d_p",
        "state_space.width": "d_i",
        "state_space.state": "n_s",
        "state_space.head_size": "d_m",
        "state_space.groups": "g",
        "state_space.chunk": "Q",
        "state_space.rank": "r",
        "state_space.convolution": "k_c",
        "short_convolution.size": "k_s",
        "gated_delta.heads": "h_v",
        "gated_delta.key_heads": "h_k",
        "gated_delta.key_size": "d_k",
        "gated_delta.value_size": "d_l",
        "gated_delta.chunk": "Q_l",
        "gated_delta.convolution": "k_l",
        "shared_kv_layers": "L_s",
        "altup.streams": "n_a",
        "altup.laurel_rank": "r_a",
        "altup.layer_width": "d_a",
        "altup.layer_vocab": "V_a",
        "window.global_head_size": "d_g",
        "window.global_kv_heads": "h_g",
        "layer_inputs.width": "d_p",
        "layer_inputs.vocab": "V_p",
        "indexer.chosen": "k_i",
        "indexer.heads": "h_i",
        "indexer.head_size": "d_i",
        "boxes": "n_box",
        "span_convolution": "k_v",
        "spare_weights": "n_w",
    }
    RENAMED: ClassVar[Mapping[str, str]] = RENAMED

    vocab: Size = Field(description="vocabulary size")
    context: Size = Field(description="longest sequence")
    layers: Size = Field(description="number of blocks")
    width: Size = Field(description="model width")
    heads: Size = Field(description="query heads")
    kv_heads: Size | None = Field(default=None, description="key and value heads (default: as many as query heads)")
    head_size: Size | None = Field(default=None, description="features of a head (default: width / heads)")
    causal: bool = Field(default=True, description="decoder (each token sees those before it) or encoder")
    window: Annotated[PartOf[Window], part_of(Window)] = Field(
        default=ABSENT, description="the nearest keys, which alone a token sees (default: it sees all)"
    )
    positions: Literal["learned", "rotary", "alibi", "relative", "none"] = Field(
        default="learned", description="positions; relative: trained biases of the scores, by distance"
    )
    relative_buckets: Size | None = Field(
        default=None, description="distances that those tell apart (default: 32); beside learned positions: biases too"
    )
    relative_shared: bool = Field(default=True, description="one table of those for all blocks, or each has its own")
    disentangled: Annotated[PartOf[Disentangled], part_of(Disentangled)] = Field(
        default=ABSENT, description="trained distances that scores are made of too (default: none)"
    )
    position_rows: Size | None = Field(default=None, description="rows of learned positions (default: the context)")
    position_table: Literal["trained", "stored", "constant"] = Field(
        default="trained", description="learned positions: trained; stored among the weights, and not; or no weights"
    )
    rotary: Annotated[PartOf[Rotary], part_of(Rotary)] = Field(
        default=ABSENT, description="what rotary positions turn (default: all features of a head, in all blocks)"
    )
    latent: Annotated[PartOf[Latent], part_of(Latent)] = Field(
        default=ABSENT, description="the narrow vector that keys and values are made from (default: none)"
    )
    indexer: Annotated[PartOf[Indexer], part_of(Indexer)] = Field(
        default=ABSENT, description="what chooses the keys that latent attention is to (default: all are seen)"
    )
    fused_qkv: bool = Field(default=True, description="one projection makes query, key and value")
    qkv_bias: bool = Field(default=True, description="bias in the query, key and value projections")
    key_bias: bool = Field(default=True, description="bias in the key projection, where those projections have one")
    qkv_clip: PositiveNumber | None = Field(default=None, description="bound of query, key and value (default: none)")
    query_key_norm: Literal["head", "heads", "width", "unit"] | None = Field(
        default=None,
        description="norm of query and key: within each head, so with weights of its own, or over all; unit: within "
        "each head, without weights, where they are rotated (default: none)",
    )
    value_norm: bool = Field(default=False, description="RMS norm of values within each head, without weights")
    shared_kv_layers: Size | None = Field(
        default=None,
        description="last blocks, which make no keys and values: each has those of the last block before them that is "
        "windowed, and rotated, as it is (default: none)",
    )
    score_scale: PositiveNumber | None = Field(default=None, description="factor of the scores (default: 1/√head size)")
    score_cap: PositiveNumber | None = Field(
        default=None, description="c of the scores' soft cap c·tanh(x/c) (default: none)"
    )
    sinks: bool = Field(default=False, description="a learned score for each head beside those of the keys")
    attention_bias: bool = Field(default=True, description="bias in attention's output projection")
    span_convolution: Size | None = Field(
        default=None,
        description="tokens, an odd number, of convolutions made for each span, beside as many heads (default: none)",
    )
    inner_norm: bool = Field(
        default=False, description="norm of what attention mixes and of the MLP's hidden features, before their outputs"
    )
    attention_gate: bool = Field(
        default=False, description="a sigmoid of each feature, made beside the query, scales what attention mixes"
    )

    attention_pattern: Pattern = Field(
        default=ALL, description="which blocks have attention, over and over (default: those that mix by nothing else)"
    )
    state_space: Annotated[PartOf[StateSpace], part_of(StateSpace)] = Field(
        default=ABSENT, description="a selective state space in place of attention, or beside it (default: none)"
    )
    gated_delta: Annotated[PartOf[GatedDelta], part_of(GatedDelta)] = Field(
        default=ABSENT, description="linear attention by the gated delta rule, likewise (default: none)"
    )
    short_convolution: Annotated[PartOf[ShortConvolution], part_of(ShortConvolution)] = Field(
        default=ABSENT, description="a gated convolution in place of attention, or beside it (default: none)"
    )

    mlp: Literal["plain", "gated", "clamped"] = Field(
        default="plain",
        description="gated: act(x W_g) ⊙ x W_u; clamped: g·act(α g) ⊙ (x W_u + 1), both within a bound",
    )
    mlp_width: Size | None = Field(default=None, description="hidden features of the MLP (default: 4 × width)")
    mlp_widths: Annotated[Listed[Size], BeforeValidator(as_tuple), Field(max_length=MOST_PATTERN)] = Field(
        default=ALL,
        description="hidden features of each block's MLP, over and over, in place of mlp_width (default: none)",
    )
    mlp_bias: bool = Field(default=True, description="bias in the MLP's linear layers")
    mlp_output_bias: bool | None = Field(default=None, description="bias in the last of those, if another")
    mlp_dropout: DropRate = Field(default=0.0, description="dropout of the MLP's hidden features")
    activation: ActivationName = Field(default="gelu_tanh", description="activation of the MLP")
    mlp_pattern: Pattern = Field(
        default=ALL, description="which blocks have an MLP or experts, over and over (default: all)"
    )

    experts: Annotated[PartOf[Experts], part_of(Experts)] = Field(
        default=ABSENT, description="MLPs among which a router chooses (default: one, for all)"
    )

    altup: Annotated[PartOf[AltUp], part_of(AltUp)] = Field(
        default=ABSENT, description="several residual streams (default: one)"
    )

    layer_inputs: Annotated[PartOf[LayerInputs], part_of(LayerInputs)] = Field(
        default=ABSENT, description="a vector of each token for each block (default: none)"
    )
    block_scale: bool = Field(default=False, description="a stored factor, not trained, of what each block makes")

    norm: Literal["layernorm", "rmsnorm"] = Field(default="layernorm", description="normalisation")
    norm_affine: bool = Field(default=True, description="trained scale (and bias) in the model's norms")
    norm_bias: bool = Field(default=True, description="bias in layer norms")
    norm_placement: Literal["pre", "post", "output", "both"] = Field(
        default="pre",
        description="norm before each sublayer, after it is added, of its output before that, or before and of it",
    )
    parallel: bool = Field(default=False, description="attention and MLP read the same input and are added at once")
    shared_norm: bool = Field(default=False, description="one norm for both branches of a parallel block")
    first_norm: bool = Field(
        default=True, description="norm before the first block's attention, where norms come first"
    )
    shared_blocks: bool = Field(default=False, description="all blocks have the same weights")
    embedding_norm: bool = Field(default=False, description="norm after the embeddings")
    final_norm: bool | None = Field(default=None, description="norm before the head (default: unless norms come last)")

    embedding_width: Size | None = Field(default=None, description="width of embeddings and head, if another")
    embedding_factored: bool = Field(
        default=False,
        description="positions, segments, norm and dropout are of the embeddings' width too, before one projection",
    )
    segments: Size | None = Field(default=None, description="kinds of segments that tokens are in (default: none)")
    boxes: Size | None = Field(
        default=None, description="coordinates that a token's box on its page is embedded by (default: no boxes)"
    )
    token_dropout: bool = Field(
        default=False, description="embeddings of masked tokens are zero, and those of a sequence scaled for it"
    )
    embedding_scale: PositiveNumber | None = Field(
        default=None, description="factor of the token embeddings (default: none)"
    )
    residual_scale: PositiveNumber | None = Field(
        default=None, description="factor of a sublayer's output (default: none)"
    )
    layer_scale: bool = Field(default=False, description="a trained factor of each feature of a sublayer's output")
    embedding_dropout: DropRate = Field(default=0.0, description="dropout after the embeddings")
    attention_dropout: DropRate = Field(default=0.0, description="dropout of attention weights")
    residual_dropout: DropRate = Field(default=0.0, description="dropout of each sublayer's output")
    mixed_dropout: DropRate | None = Field(default=None, description="that of attention's output, if another")

    final_dropout: DropRate = Field(default=0.0, description="dropout after the last block and norm")

    head: Annotated[PartOf[Head], part_of(Head)] = Field(
        default=PLAIN, description="what makes logits over the vocabulary, false for none (default: a linear layer)"
    )
    tied: bool = Field(default=True, description="the head's weight is the token embedding")

    spare_weights: Size | None = Field(
        default=None, description="further weights, which this pass does not read (default: none)"
    )
    contact_head: bool = Field(
        default=False,
        description="a score of the attention weights of all heads among the weights, which this pass does not read",
    )
    pooler: MaybePooler = Field(
        default=ABSENT, description="a linear layer over one vector of a sequence (default: none)"
    )
    classes: Annotated[PartOf[Classes], part_of(Classes)] = Field(
        default=ABSENT, description="classes that tokens' features tell (default: none)"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_together(self)
        return self

    @property
    def of_all_keys(self) -> Self:
        """The model as blocks without a window have its heads."""
        window = self.window
        if window is None or (window.global_head_size is None and window.global_kv_heads is None):
            return self
        own = {"head_size": window.global_head_size, "kv_heads": window.global_kv_heads}
        return self.model_copy(update={name: value for name, value in own.items() if value is not None})

    @property
    def mlp_activation(self) -> str:
        """The MLP's activation as it is written."""
        return (self.written and self.written.activation) or self.activation

    @property
    def mixer(self) -> StateSpace | GatedDelta | ShortConvolution | None:
        """What mixes tokens beside attention, or in its place."""
        return next((part for name in MIXERS if (part := getattr(self, name)) is not None), None)

    @property
    def mixer_name(self) -> str:
        """The field of that."""
        return next((name for name in MIXERS if getattr(self, name) is not None), "")

    def size(self, name: str) -> int:
        """See `Architecture.size`."""
        derived = {"kv_heads": self.key_heads, "head_size": self.head_features, "mlp_width": self.hidden}
        derived |= {"rotary.size": self.rotated, "window.size": self.context, "relative_buckets": self.buckets}
        derived |= {"window.global_head_size": self.head_features, "window.global_kv_heads": self.key_heads}
        if (inner := self.state_space) is not None and inner.kind == "mamba2":
            derived |= {"state_space.head_size": inner.head_features, "state_space.groups": inner.grouped}
            derived |= {"state_space.chunk": inner.chunked}
        elif inner is not None:
            derived |= {"state_space.rank": inner.ranked}
        if (delta := self.gated_delta) is not None:
            derived |= {"gated_delta.key_heads": delta.grouped, "gated_delta.chunk": delta.chunked}
        value = self.value(name)
        return int((derived.get(name) if value is None else value) or 0)

    def allowed(self, name: str, shape: BatchShape) -> Allowed:
        """See `Architecture.allowed`: what is divided has divisors, and what has a place in another is no larger."""
        return allowed(self, name, shape)

    @property
    def head_features(self) -> int:
        """Features of one head, d_h."""
        return exact_div(self.width, self.heads) if self.head_size is None else self.head_size

    @property
    def key_heads(self) -> int:
        """Key and value heads, h_kv."""
        return self.heads if self.kv_heads is None else self.kv_heads

    def gathered_keys(self, layout: Layout) -> int | None:
        """See `Architecture.gathered_keys`."""
        fewer = layout.megatron and self.latent is None and self.window is None and self.key_heads < layout.tp
        return self.key_heads if fewer else None

    @property
    def rotated(self) -> int:
        """Features of a head that rotary positions turn."""
        own = None if self.rotary is None else self.rotary.size
        return self.head_features if own is None else own

    @property
    def value_features(self) -> int:
        """Features of one value, d_v."""
        own = None if self.latent is None else self.latent.value_head_size
        return self.head_features if own is None else own

    def check_tokens(self, layout: Layout, seq: int) -> None:
        """Raise SettingError unless the ranks that split a sequence have equal parts of it."""
        if layout.sp and seq % layout.tp:
            raise SettingError(
                f"sp=True: tp={layout.tp} does not divide seq {seq}: use seq={seq - seq % layout.tp or layout.tp}"
            )

    def local(self, layout: Layout) -> Self:
        """The heads and hidden features that one rank of `layout.tp` has; of the vocabulary `ranks.of_rows` says."""
        return local(self, layout)

    @property
    def score_factor(self) -> float:
        """What scores are multiplied by."""
        return 1 / math.sqrt(peek(self.head_features)) if self.score_scale is None else self.score_scale

    @property
    def stage_parts(self) -> StageParts:
        """See `Architecture.stage_parts`: its blocks, the first with the embeddings, the last with what is after it."""
        return StageParts([("block", int(self.layers))])  # of other counts other blocks are a stage

    @property
    def pattern(self) -> list[Variant]:
        """The variants of the first blocks, which those after them repeat; as many as there are blocks at most."""
        window, rotary, experts = self.window, self.rotary, self.experts
        windowed = (window and window.pattern) or (True,)
        rotated = (rotary and rotary.pattern) or (True,)
        routed = (False,) if experts is None else experts.pattern or (True,)
        dense = 0 if experts is None else experts.dense_layers or 0
        mixes = (False,) if self.mixer is None else self.mixer.pattern or (True,)
        attends = self.attention_pattern or tuple(not mixed for mixed in mixes)
        feeds = self.mlp_pattern or (True,)
        sparse = (False,) if self.altup is None else self.altup.sparse_pattern or (True,)
        patterns = (windowed, rotated, routed, attends, mixes, feeds, sparse, self.mlp_widths or (0,))
        period = variants(patterns, self.layers, dense)
        if self.first_norm and self.shared_kv_layers is None:
            return period
        check_varied(self.layers)
        every = [period[n % len(period)] for n in range(int(self.layers))]
        if not self.first_norm:
            every[0] = every[0]._replace(normed=False)
        return every if self.shared_kv_layers is None else lending(every, int(self.shared_kv_layers))

    @property
    def by_distance(self) -> bool:
        """Whether scores have trained biases by distance."""
        return self.positions == "relative" or (self.positions == "learned" and self.relative_buckets is not None)

    @property
    def hidden(self) -> int:
        """Hidden features of the MLP, d_ff."""
        return 4 * self.width if self.mlp_width is None else self.mlp_width

    @property
    def buckets(self) -> int:
        """Distances that relative positions tell apart."""
        return 32 if self.relative_buckets is None else self.relative_buckets
