"""What a transformer is: its fields, the sizes that follow from them, and what must hold between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import lcm
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator

from costmodel.architectures.base import (
    ActivationName,
    Architecture,
    Factor,
    Probability,
    Size,
    as_tuple,
    nearest_divisor,
)
from costmodel.symbolic.sizes import exact_div, value_of

MOST_PATTERN = 1_000
Pattern = Annotated[tuple[bool, ...], BeforeValidator(as_tuple), Field(max_length=MOST_PATTERN)]


class Variant(NamedTuple):
    """What may differ from block to block: a window on its attention, positions that turn it, a choice of experts."""

    windowed: bool = True
    rotated: bool = True
    routed: bool = False


class TransformerSpec(Architecture):
    """Abstract: the description of a transformer, without its forward pass."""

    HAS_ATTENTION: ClassVar[bool] = True
    BATCH_SIZES: ClassVar[tuple[str, ...]] = ("seq",)
    LETTERS: ClassVar[dict[str, str]] = {
        "vocab": "V",
        "context": "n_ctx",
        "layers": "L",
        "width": "d",
        "heads": "h",
        "kv_heads": "h_kv",
        "head_size": "d_h",
        "mlp_width": "d_ff",
        "rotary_size": "d_rot",
        "window": "w",
        "position_rows": "n_pos",
        "relative_buckets": "n_b",
        "embedding_width": "d_e",
        "segments": "n_seg",
        "classes": "C",
        "experts": "E",
        "experts_per_token": "k",
        "expert_width": "d_x",
        "shared_width": "d_s",
        "latent_width": "d_c",
        "query_latent_width": "d_q",
        "value_head_size": "d_v",
        "dense_layers": "L_0",
    }

    vocab: Size = Field(description="vocabulary size")
    context: Size = Field(description="longest sequence")
    layers: Size = Field(description="number of blocks")
    width: Size = Field(description="model width")
    heads: Size = Field(description="query heads")
    kv_heads: Size | None = Field(default=None, description="key and value heads (default: as many as query heads)")
    head_size: Size | None = Field(default=None, description="features of a head (default: width / heads)")
    causal: bool = Field(default=True, description="decoder (each token sees those before it) or encoder")
    window: Size | None = Field(default=None, description="keys that a token sees, itself included (default: all)")
    window_pattern: Pattern = Field(
        default=(), description="which blocks have the window, over and over (default: all)"
    )
    positions: Literal["learned", "rotary", "alibi", "relative", "none"] = Field(
        default="learned", description="positions; relative: trained biases of the scores, by distance"
    )
    relative_buckets: Size | None = Field(default=None, description="distances that those tell apart (default: 32)")
    position_rows: Size | None = Field(default=None, description="rows of learned positions (default: the context)")
    rotary_size: Size | None = Field(default=None, description="rotated features of a head (default: all)")
    rotary_pattern: Pattern = Field(default=(), description="which blocks rotate, over and over (default: all)")
    latent_width: Size | None = Field(
        default=None, description="features that keys and values of all heads are made from (default: no such latent)"
    )
    query_latent_width: Size | None = Field(default=None, description="as above, of queries (default: no such latent)")
    value_head_size: Size | None = Field(default=None, description="features of a value (default: the head size)")
    fused_qkv: bool = Field(default=True, description="one projection makes query, key and value")
    qkv_bias: bool = Field(default=True, description="bias in the query, key and value projections")
    key_bias: bool = Field(default=True, description="bias in the key projection, where those projections have one")
    qkv_clip: Factor | None = Field(default=None, description="bound of query, key and value (default: none)")
    query_key_norm: Literal["head", "heads", "width"] | None = Field(
        default=None,
        description="norm of query and key: within each head, so with weights of its own, or over all (default: none)",
    )
    score_scale: Factor | None = Field(default=None, description="factor of the scores (default: 1/√head size)")
    score_cap: Factor | None = Field(default=None, description="c of the scores' soft cap c·tanh(x/c) (default: none)")
    sinks: bool = Field(default=False, description="a learned score for each head beside those of the keys")
    attention_bias: bool = Field(default=True, description="bias in attention's output projection")

    mlp: Literal["plain", "gated", "clamped"] = Field(
        default="plain",
        description="gated: act(x W_g) ⊙ x W_u; clamped: g·act(α g) ⊙ (x W_u + 1), both within a bound",
    )
    mlp_width: Size | None = Field(default=None, description="hidden features of the MLP (default: 4 × width)")
    mlp_bias: bool = Field(default=True, description="bias in the MLP's linear layers")
    mlp_dropout: Probability = Field(default=0.0, description="dropout of the MLP's hidden features")
    activation: ActivationName = Field(default="gelu_tanh", description="activation of the MLP")

    experts: Size | None = Field(default=None, description="MLPs among which a router chooses (default: one, for all)")
    experts_per_token: Size | None = Field(default=None, description="experts that each token chooses (default: 2)")
    expert_width: Size | None = Field(default=None, description="hidden features of an expert (default: the MLP's)")
    expert_pattern: Pattern = Field(default=(), description="which blocks have experts, over and over (default: all)")
    expert_bias: bool | None = Field(default=None, description="bias in experts (default: as in the MLP)")
    dense_layers: Size | None = Field(default=None, description="first blocks that have no experts (default: none)")
    expert_weights: Literal["chosen", "all", "sigmoid"] = Field(
        default="chosen",
        description="softmax over the scores of the chosen experts, or over all before choosing; or a sigmoid of each",
    )
    expert_shares: bool = Field(default=False, description="weights of the chosen experts are divided by their sum")
    expert_scale: Factor | None = Field(default=None, description="factor of experts' weights (default: none)")
    expert_groups: Size | None = Field(default=None, description="groups of experts, of which a token chooses some")
    chosen_groups: Size | None = Field(default=None, description="groups that each token chooses")
    choice_bias: bool = Field(default=False, description="a constant of each expert is added to scores for the choice")
    capacity_factor: Factor | None = Field(
        default=None, description="rows that each expert computes over its even share (default: as many as come)"
    )
    imbalance: Factor = Field(default=1.0, description="rows of the busiest experts over their even share")
    shared_width: Size | None = Field(default=None, description="hidden features of an expert for all (default: none)")
    shared_gate: bool = Field(default=False, description="a sigmoid of each token scales the shared expert")
    router_bias: bool = Field(default=False, description="bias in the router")

    norm: Literal["layernorm", "rmsnorm"] = Field(default="layernorm", description="normalisation")
    norm_affine: bool = Field(default=True, description="trained scale (and bias) in the model's norms")
    norm_bias: bool = Field(default=True, description="bias in layer norms")
    norm_placement: Literal["pre", "post", "output", "both"] = Field(
        default="pre",
        description="norm before each sublayer, after it is added, of its output before that, or before and of it",
    )
    parallel: bool = Field(default=False, description="attention and MLP read the same input and are added at once")
    shared_norm: bool = Field(default=False, description="one norm for both branches of a parallel block")
    embedding_norm: bool = Field(default=False, description="norm after the embeddings")
    final_norm: bool | None = Field(default=None, description="norm before the head (default: unless norms come last)")

    embedding_width: Size | None = Field(default=None, description="width of embeddings and head, if another")
    segments: Size | None = Field(default=None, description="kinds of segments that tokens are in (default: none)")
    embedding_scale: Factor | None = Field(default=None, description="factor of the token embeddings (default: none)")
    residual_scale: Factor | None = Field(default=None, description="factor of a sublayer's output (default: none)")
    embedding_dropout: Probability = Field(default=0.0, description="dropout after the embeddings")
    attention_dropout: Probability = Field(default=0.0, description="dropout of attention weights")
    residual_dropout: Probability = Field(default=0.0, description="dropout of each sublayer's output")
    mixed_dropout: Probability | None = Field(default=None, description="that of attention's output, if another")

    final_dropout: Probability = Field(default=0.0, description="dropout after the last block and norm")

    head: bool = Field(default=True, description="whether the model ends in logits over the vocabulary")
    tied: bool = Field(default=True, description="the head's weight is the token embedding")
    head_bias: bool = Field(default=False, description="bias in the head")
    head_transform: ActivationName | None = Field(
        default=None, description="activation of a linear layer with a norm before the head (default: no such layer)"
    )
    output_scale: Factor | None = Field(default=None, description="factor of what the head reads (default: none)")
    logit_scale: Factor | None = Field(default=None, description="factor of the logits (default: none)")
    logit_cap: Factor | None = Field(default=None, description="c of the logits' soft cap c·tanh(x/c) (default: none)")

    pooler: ActivationName | None = Field(
        default=None, description="activation of a linear layer over the first token (default: no such layer)"
    )
    classes: Size | None = Field(
        default=None, description="classes that the first token's features tell (default: none)"
    )
    pooler_dropout: Probability = Field(default=0.0, description="dropout before the pooler")
    class_dropout: Probability = Field(default=0.0, description="dropout before the classes")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.head_size is None and self.width % self.heads:
            raise ValueError(
                f"heads {self.heads} does not divide width {self.width}: use a divisor such as "
                f"{nearest_divisor(self.width, self.heads)}, or give head_size"
            )
        if self.heads % self.key_heads:
            raise ValueError(f"kv_heads {self.kv_heads} does not divide heads {self.heads}")
        if self.rotary_size is not None and self.positions != "rotary":
            raise ValueError(f"rotary_size {self.rotary_size} needs positions 'rotary', not {self.positions!r}")
        if self.positions == "rotary" and (self.rotated % 2 or self.rotated > self.head_features):
            raise ValueError(f"rotary_size {self.rotated} must be even and at most the head size {self.head_features}")
        if self.query_key_norm == "heads" and self.norm != "layernorm":
            raise ValueError(f"query_key_norm 'heads' needs norm 'layernorm', not {self.norm!r}")
        if self.shared_norm and not self.parallel:
            raise ValueError("shared_norm needs parallel: true")
        if self.parallel and self.norm_placement != "pre":
            raise ValueError(f"parallel blocks have norm_placement 'pre', not {self.norm_placement!r}")
        for field in ("head_bias", "head_transform", "output_scale", "logit_scale", "logit_cap"):
            if getattr(self, field) and not self.head:
                raise ValueError(f"{field} needs head: true")
        _check_pooler(self)
        _check_latent(self)
        _check_experts(self)
        if self.relative_buckets is not None and self.positions != "relative":
            raise ValueError(f"relative_buckets needs positions 'relative', not {self.positions!r}")
        if not self.key_bias and (self.fused_qkv or not self.qkv_bias):
            raise ValueError("key_bias: false needs qkv_bias, and fused_qkv: false")
        if self.window_pattern and self.window is None:
            raise ValueError("window_pattern needs a window")
        if self.rotary_pattern and self.positions != "rotary":
            raise ValueError(f"rotary_pattern needs positions 'rotary', not {self.positions!r}")
        if self.position_rows is not None and (self.positions != "learned" or self.position_rows < self.context):
            raise ValueError(f"position_rows {self.position_rows} needs learned positions, at least the context's")
        return self

    @property
    def head_features(self) -> int:
        """Features of one head, d_h."""
        return exact_div(self.width, self.heads) if self.head_size is None else self.head_size

    @property
    def key_heads(self) -> int:
        """Key and value heads, h_kv."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def rotated(self) -> int:
        """Features of a head that rotary positions turn."""
        return self.head_features if self.rotary_size is None else self.rotary_size

    @property
    def value_features(self) -> int:
        """Features of one value, d_v."""
        return self.head_features if self.value_head_size is None else self.value_head_size

    @property
    def score_factor(self) -> float:
        """What scores are multiplied by."""
        return 1 / math.sqrt(value_of(self.head_features)) if self.score_scale is None else self.score_scale

    @property
    def pattern(self) -> list[Variant]:
        """The variants of the first blocks, which those after them repeat; as many as there are blocks at most."""
        routed = (self.expert_pattern or (True,)) if self.experts is not None else (False,)
        patterns = (self.window_pattern or (True,), self.rotary_pattern or (True,), routed)
        return variants(patterns, self.layers, dense=self.dense_layers or 0)

    @property
    def hidden(self) -> int:
        """Hidden features of the MLP, d_ff."""
        return 4 * self.width if self.mlp_width is None else self.mlp_width

    @property
    def buckets(self) -> int:
        """Distances that relative positions tell apart."""
        return 32 if self.relative_buckets is None else self.relative_buckets

    @property
    def chosen(self) -> int:
        """Experts that each token chooses, k."""
        return 2 if self.experts_per_token is None else self.experts_per_token


def variants(patterns: Sequence[Sequence[bool]], layers: int, dense: int) -> list[Variant]:
    """The variants of the first blocks, by the pattern of each field, which those after them repeat.

    Of all `layers` blocks, where the first `dense` ones have no experts.
    """
    length = lcm(*map(len, patterns))
    if length > 1 or dense:  # only then does it matter how many blocks there are
        length = int(layers) if dense else min(length, int(layers))
    made = [Variant(*(pattern[n % len(pattern)] for pattern in patterns)) for n in range(length)]
    return [variant._replace(routed=False) for variant in made[:dense]] + made[dense:]


NEED_EXPERTS = (
    *("experts_per_token", "expert_width", "expert_pattern", "expert_bias", "dense_layers", "expert_weights"),
    *("expert_shares", "expert_scale", "expert_groups", "chosen_groups", "choice_bias"),
    *("capacity_factor", "imbalance"),
    *("shared_width", "shared_gate", "router_bias"),
)
"""Fields that say something of experts alone."""


def _check_experts(model: TransformerSpec) -> None:
    """Raise ValueError if the fields of experts do not fit."""
    if model.experts is None:
        for field in NEED_EXPERTS:
            if getattr(model, field) != type(model).model_fields[field].default:
                raise ValueError(f"{field} needs experts")
        return
    if model.chosen > model.experts:
        raise ValueError(f"experts_per_token {model.chosen} is more than experts {model.experts}")
    if model.shared_gate and model.shared_width is None:
        raise ValueError("shared_gate needs shared_width")
    if (model.expert_groups is None) != (model.chosen_groups is None):
        raise ValueError("expert_groups and chosen_groups need each other")
    if not 1 <= model.imbalance <= model.experts / model.chosen:
        most = model.experts / model.chosen
        raise ValueError(
            f"imbalance {model.imbalance:g} is not possible: from 1, even, to {most:g}, where all tokens choose the "
            f"same {model.chosen} of {model.experts} experts"
        )
    if model.dense_layers is not None and model.expert_pattern:
        raise ValueError("dense_layers and expert_pattern say the same: keep one")
    if model.expert_groups is not None or model.choice_bias:
        _check_groups(model, model.experts, model.expert_groups or 1, model.chosen_groups or 1)


def _check_groups(model: TransformerSpec, experts: int, groups: int, kept: int) -> None:
    if experts % groups:
        raise ValueError(f"expert_groups {groups} does not divide experts {experts}")
    if kept > groups:
        raise ValueError(f"chosen_groups {kept} is more than expert_groups {groups}")
    each = experts // groups
    if model.chosen > kept * each:
        raise ValueError(f"experts_per_token {model.chosen} is more than the {kept * each} of the chosen groups")
    if model.choice_bias and each < 2:
        raise ValueError(f"choice_bias judges a group by its best two experts, and expert_groups {groups} leave {each}")


def _check_latent(model: TransformerSpec) -> None:
    """Raise ValueError if the fields of latent attention do not fit."""
    if model.latent_width is None:
        for field in ("query_latent_width", "value_head_size"):
            if getattr(model, field) is not None:
                raise ValueError(f"{field} needs latent_width")
        return
    if model.positions != "rotary" or model.rotary_size is None or model.rotary_size >= model.head_features:
        raise ValueError(
            "latent_width needs positions: rotary, and a rotary_size smaller than the head size "
            f"{int(model.head_features)}: keys are turned in features that all heads share"
        )
    for field, value in (("fused_qkv", False), ("kv_heads", None), ("query_key_norm", None), ("qkv_clip", None)):
        if getattr(model, field) != value:
            raise ValueError(f"latent_width needs {field}: {'false' if value is False else 'null'}")


def _check_pooler(model: TransformerSpec) -> None:
    """Raise ValueError for a pooler or dropout that nothing reads."""
    if model.pooler_dropout and model.pooler is None:
        raise ValueError("pooler_dropout needs a pooler")
    if model.class_dropout and model.classes is None:
        raise ValueError("class_dropout needs classes")
    if model.pooler is not None and model.head and model.classes is None:
        raise ValueError("a pooler beside a head needs classes, or nothing reads it")
