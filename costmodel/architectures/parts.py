"""Parts of a transformer's description: fields that only make sense together, such as those of experts or of a head."""

# No `from __future__ import annotations`: pydantic would have to read each annotation of a field from its text again.
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from costmodel.architectures.base import ActivationName, DropRate, Pattern, PositiveNumber, Size
from costmodel.documents.description import ALL, Description, Reads, part_of


class Window(Description):
    """Attention to the nearest keys only, in all blocks or in some."""

    FIRST: ClassVar[str] = "size"

    size: Size = Field(description="keys that a token sees, itself included")
    pattern: Pattern = Field(default=ALL, description="which blocks have the window, over and over (default: all)")
    global_head_size: Size | None = Field(
        default=None, description="features of a head in the blocks without it (default: those of the others)"
    )
    global_kv_heads: Size | None = Field(default=None, description="key and value heads in the blocks without it")
    global_shared_values: bool = Field(
        default=False, description="in the blocks without it values are keys, before norms and positions"
    )


class Rotary(Description):
    """Rotary positions of a part of a head's features, or in some blocks only (Su et al. 2021)."""

    FIRST: ClassVar[str] = "size"

    size: Size | None = Field(default=None, description="rotated features of a head (default: all)")
    pattern: Pattern = Field(default=ALL, description="which blocks rotate, over and over (default: all)")


class Latent(Description):
    """Multi-head latent attention: keys and values are made from one narrow vector a token (DeepSeek-AI 2024, V2)."""

    FIRST: ClassVar[str] = "width"

    width: Size = Field(description="features that keys and values of all heads are made from")
    query_width: Size | None = Field(default=None, description="as above, of queries (default: no such latent)")
    value_head_size: Size | None = Field(default=None, description="features of a value (default: the head size)")


class Indexer(Description):
    """A light attention that chooses the keys that a token attends to (DeepSeek-AI 2025, V3.2, §1)."""

    FIRST: ClassVar[str] = "chosen"

    chosen: Size = Field(description="keys that a token attends to, of those before it")
    heads: Size = Field(description="heads of the light attention, which share one key of a token")
    head_size: Size = Field(description="features of such a head, of which as many are turned as of the others")


class Disentangled(Description):
    """Trained distances between tokens, of which keys and queries are made as of tokens (He et al. 2021, DeBERTa)."""

    FIRST: ClassVar[str] = "size"

    size: Size = Field(description="distances that are told apart, each way")
    shared: bool = Field(default=True, description="made into keys and queries by the tokens' projections")
    to_position: bool = Field(default=True, description="scores of a token's query and a distance's key")
    to_content: bool = Field(default=True, description="scores of a token's key and a distance's query")
    norm: bool = Field(default=True, description="norm of the distances' embeddings")
    trimmed: bool = Field(
        default=False, description="only distances within the sequence are made into keys and queries"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not (self.to_position or self.to_content):
            raise ValueError(
                "disentangled.to_position and disentangled.to_content are both false: leave disentangled out"
            )
        return self


class Experts(Description):
    """MLPs among which a router chooses some for each token (Shazeer et al. 2017)."""

    FIRST: ClassVar[str] = "count"

    count: Size = Field(description="experts")
    per_token: Size = Field(default=2, description="experts that each token chooses")
    width: Size | None = Field(default=None, description="hidden features of an expert (default: the MLP's)")
    pattern: Pattern = Field(default=ALL, description="which blocks have experts, over and over (default: all)")
    bias: bool | None = Field(default=None, description="bias in experts (default: as in the MLP)")
    dense_layers: Size | None = Field(default=None, description="first blocks that have no experts (default: none)")
    weights: Literal["chosen", "all", "sigmoid"] = Field(
        default="chosen",
        description="softmax over the scores of the chosen experts, or over all before choosing; or a sigmoid of each",
    )
    shares: bool = Field(default=False, description="weights of the chosen experts are divided by their sum")
    scale: PositiveNumber | None = Field(default=None, description="factor of experts' weights (default: none)")
    groups: Size | None = Field(default=None, description="groups of experts, of which a token chooses some")
    chosen_groups: Size | None = Field(default=None, description="groups that each token chooses")
    choice_bias: bool = Field(default=False, description="a constant of each expert is added to scores for the choice")
    choice_stored: bool = Field(
        default=False, description="those constants are among the weights, and never trained, not buffers"
    )
    capacity_factor: PositiveNumber | None = Field(
        default=None, description="rows that each expert computes over its even share (default: as many as come)"
    )
    imbalance: PositiveNumber = Field(default=1.0, description="rows of the busiest experts over their even share")
    shared_width: Size | None = Field(default=None, description="hidden features of an expert for all (default: none)")
    shared_gate: bool = Field(default=False, description="a sigmoid of each token scales the shared expert")
    router_bias: bool = Field(default=False, description="bias in the router")
    dropout: DropRate = Field(default=0.0, description="dropout of experts' hidden features")
    beside: bool = Field(
        default=False,
        description="beside the MLP, not in its place: each with norms of its own, the router and each expert with a "
        "trained scale",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.per_token > self.count:
            raise ValueError(f"experts.per_token {self.per_token} is more than experts.count {self.count}")
        if self.shared_gate and self.shared_width is None:
            raise ValueError("experts.shared_gate needs experts.shared_width")
        if self.choice_stored and not self.choice_bias:
            raise ValueError("experts.choice_stored needs experts.choice_bias")
        if (self.groups is None) != (self.chosen_groups is None):
            raise ValueError("experts.groups and experts.chosen_groups need each other")
        if self.imbalance != 1 and not 1 <= self.imbalance <= self.count / self.per_token:  # even rows always fit
            raise ValueError(
                f"experts.imbalance {self.imbalance:g} is not possible: from 1, even, to "
                f"{self.count / self.per_token:g}, where all tokens choose the same {self.per_token} of {self.count} "
                "experts"
            )
        if self.dense_layers is not None and self.pattern:
            raise ValueError("experts.dense_layers and experts.pattern say the same: keep one")
        if self.groups is not None or self.choice_bias:
            self._check_groups(self.groups or 1, self.chosen_groups or 1)
        return self

    def _check_groups(self, groups: int, saved: int) -> None:
        if self.count % groups:
            raise ValueError(f"experts.groups {groups} does not divide experts.count {self.count}")
        if saved > groups:
            raise ValueError(f"experts.chosen_groups {saved} is more than experts.groups {groups}")
        each = self.count // groups
        if self.per_token > saved * each:
            raise ValueError(f"experts.per_token {self.per_token} is more than the {saved * each} of the chosen groups")
        if self.choice_bias and each < 2:
            raise ValueError(
                f"experts.choice_bias judges a group by its best two experts, and experts.groups {groups} leave {each}"
            )


NONE: Any = (False,)
"""The default of a pattern that no block follows."""


class AltUp(Description):
    """Several residual streams: a block computes one and predicts the others (Baykal et al. 2023), as in Gemma 3n.

    With it come a low-rank sum beside attention (Menghani et al. 2024, LAuReL), and a vector of each token for each
    block, which is added to all streams but the first.
    """

    FIRST: ClassVar[str] = "streams"

    streams: Size = Field(default=4, description="residual streams, 2 or more")
    laurel_rank: Size = Field(default=64, description="features of the low-rank sum beside attention")
    layer_width: Size = Field(default=256, description="features of a token's vector for a block")
    layer_vocab: Size | None = Field(default=None, description="rows of the table of those (default: the vocabulary)")
    output_scale: bool = Field(
        default=True, description="a trained scale of the stream that gates that vector (false: a weight nothing reads)"
    )
    clipped: bool = Field(default=True, description="weights of the correction are held within bounds in training")
    sparse_pattern: Pattern = Field(
        default=NONE,
        description="which blocks keep only the largest of their MLP's gate, over and over (default: none)",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.streams < 2:
            raise ValueError(f"altup.streams {self.streams} has none beside the first: use at least 2")
        return self


class LayerInputs(Description):
    """A vector of each token for each block, added to what that makes by a gate (Gemma Team 2025, Gemma 3n)."""

    FIRST: ClassVar[str] = "width"

    width: Size = Field(description="features of a token's vector for a block")
    vocab: Size | None = Field(default=None, description="rows of the table of those (default: the vocabulary)")


class Head(Description):
    """What makes logits over the vocabulary of the last block's output."""

    bias: bool = Field(default=False, description="bias in the head")
    spare_bias: bool = Field(default=False, description="a second bias among the weights, which nothing reads")
    transform: ActivationName | None = Field(
        default=None, description="activation of a linear layer with a norm before the head (default: no such layer)"
    )
    transform_bias: bool = Field(default=True, description="bias in that linear layer")
    input_scale: PositiveNumber | None = Field(
        default=None, description="factor of what the head reads (default: none)"
    )
    logit_scale: PositiveNumber | None = Field(default=None, description="factor of the logits (default: none)")
    logit_cap: PositiveNumber | None = Field(
        default=None, description="c of the logits' soft cap c·tanh(x/c) (default: none)"
    )


PLAIN: Any = Head()
"""The head that is a linear layer and nothing else."""


class Composition(Description):
    """How the package `transformers` writes a family's model: of which operators, where one kernel would do.

    It is what `implementation="transformers"` asks for. Rotary angles are then made of positions in every pass and
    turned by products and sums, and a mask is a table of numbers that is added to the scores.
    """

    norm: Literal["kernel", "scaled", "mixed", "shifted"] = Field(
        default="kernel",
        description="RMS norm: one kernel; operators in fp32, or the root alone, scaled after; or scaled in fp32 by "
        "the weight plus 1",
    )
    activation: ActivationName | None = Field(default=None, description="activation of the MLP, if written otherwise")
    positions: Literal["range", "buffer", "tokens"] = Field(
        default="range",
        description="numbers of learned positions: a range, a buffer with one of the segments, or worked out of tokens",
    )
    own_angles: bool = Field(default=False, description="blocks with a window have rotary angles of their own")
    joined: bool = Field(default=False, description="features that turn are joined to those that do not, if any")
    scale_buffer: bool = Field(default=False, description="the factor of the embeddings is a buffer")
    weights: Literal["own", "fp32"] = Field(default="own", description="type of the softmax of the scores")
    used: bool = Field(default=False, description="the model is as the package writes it")


class Pooler(Description):
    """A linear layer over the first token, and its activation (Devlin et al. 2019, §3); or over all tokens' mean."""

    FIRST: ClassVar[str] = "activation"

    activation: ActivationName = Field(description="activation of the pooler")
    over: Literal["first", "mean"] = Field(default="first", description="the first token, or the mean of all")
    width: Size | None = Field(default=None, description="features of the pooler (default: the model's width)")
    dropout: DropRate = Field(default=0.0, description="dropout before the pooler")
    bias: bool = Field(default=True, description="bias in the pooler")
    norm: bool = Field(default=False, description="norm of what the pooler makes")
    spare: bool = Field(default=False, description="made beside the rest in the forward pass, and nothing reads it")


MaybePooler = Annotated[Reads[Pooler | None, Pooler | Mapping[str, Any] | str | None], part_of(Pooler)]


class Classes(Description):
    """Classes that tokens' features tell."""

    FIRST: ClassVar[str] = "count"

    count: Size = Field(description="classes")
    dropout: DropRate = Field(default=0.0, description="dropout before the classes")
    transform: ActivationName | None = Field(
        default=None, description="activation of a linear layer before the classes of every token (default: none)"
    )
    transform_bias: bool = Field(default=True, description="bias in that linear layer")
    transform_norm: bool = Field(default=False, description="norm after that activation")
    bias: bool = Field(default=True, description="bias in the linear layer that scores classes")
    told_by: Literal["first", "last", "mean", "each", "spans"] = Field(
        default="first",
        description="first token; last: every token is scored, and the last one's scores count; mean: those of all; "
        "each: a class of every token; spans: scores of every token for each class, which a token is chosen for",
    )
