"""What mixes tokens where attention does not: fields of state spaces, of short convolutions, of gated delta rules."""

# No `from __future__ import annotations`: pydantic would have to read each annotation of a field from its text again.
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from costmodel.architectures.base import ActivationName, Pattern, Size, nearest_divisor
from costmodel.documents.description import ALL, Description
from costmodel.symbolic.sizes import ceil_div, exact_div

MIXERS = ("state_space", "gated_delta", "short_convolution")
"""Fields of what mixes tokens beside attention."""


class StateSpace(Description):
    """A selective state space: a state decays and is written to by each token (Gu & Dao 2023; Dao & Gu 2024)."""

    FIRST: ClassVar[str] = "width"
    OF_MAMBA2: ClassVar[tuple[str, ...]] = ("head_size", "groups", "chunk")

    width: Size = Field(description="features within, of which each has a state")
    state: Size = Field(default=128, description="features of a state")
    kind: Literal["mamba2", "mamba"] = Field(
        default="mamba2", description="mamba2: one decay a head, in chunks; mamba: one a number of the state, by token"
    )
    head_size: Size | None = Field(default=None, description="features of a head, in mamba2 alone (default: 64)")
    groups: Size | None = Field(
        default=None, description="groups of heads that are written and read alike, in mamba2 alone (default: 1)"
    )
    chunk: Size | None = Field(default=None, description="tokens of a chunk, in mamba2 alone (default: 256)")
    rank: Size | None = Field(
        default=None, description="features that time steps are made from, in mamba alone (default: width / 32)"
    )
    convolution: Size = Field(default=4, description="tokens that the convolution before the state space sees")
    convolution_bias: bool = Field(default=True, description="bias in that convolution")
    activation: ActivationName = Field(default="silu", description="activation after that convolution")
    bias: bool = Field(default=False, description="bias in the projection into the state space")
    output_bias: bool | None = Field(default=None, description="bias in the projection out of it (default: as into)")
    norm: Literal["after", "before", "inner", "weightless", "none"] | None = Field(
        default=None,
        description="norm after the gate or before it, in each group; inner: of time steps and of what writes and "
        "reads, in mamba alone; weightless: the same without weights (default: after; in mamba none)",
    )
    pattern: Pattern = Field(default=ALL, description="which blocks have a state space, over and over (default: all)")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kind == "mamba":
            for name in self.OF_MAMBA2:
                if getattr(self, name) is not None:
                    raise ValueError(f"state_space.{name} is of kind 'mamba2': leave it out, or change the kind")
            if self.norm in ("after", "before"):
                raise ValueError(
                    f"state_space.norm {self.norm!r} is of kind 'mamba2': use 'inner', 'weightless' or 'none'"
                )
            return self
        if self.rank is not None:
            raise ValueError("state_space.rank is of kind 'mamba': leave it out, or change the kind")
        if self.norm in ("inner", "weightless"):
            raise ValueError(f"state_space.norm {self.norm!r} is of kind 'mamba': use 'after', 'before' or 'none'")
        if self.width % self.head_features:
            raise ValueError(
                f"state_space.head_size {self.head_features} does not divide state_space.width {self.width}: "
                f"use a divisor such as {nearest_divisor(self.width, self.head_features)}"
            )
        if self.heads % self.grouped:
            raise ValueError(
                f"state_space.groups {self.grouped} does not divide the {self.heads} heads that "
                f"state_space.head_size {self.head_features} leaves"
            )
        return self

    @property
    def head_features(self) -> int:
        """Features of a head."""
        return 64 if self.head_size is None else self.head_size

    @property
    def heads(self) -> int:
        """Heads, each with a decay of its own."""
        return exact_div(self.width, self.head_features)

    @property
    def grouped(self) -> int:
        """Groups of heads."""
        return 1 if self.groups is None else self.groups

    @property
    def chunked(self) -> int:
        """Tokens of a chunk."""
        return 256 if self.chunk is None else self.chunk

    @property
    def ranked(self) -> int:
        """Features that time steps are made from."""
        return ceil_div(self.width, 32) if self.rank is None else self.rank

    @property
    def placed(self) -> Literal["after", "before", "inner", "weightless", "none"]:
        """Where the norm is."""
        usual = "after" if self.kind == "mamba2" else "none"
        return usual if self.norm is None else self.norm


class GatedDelta(Description):
    """Linear attention by the gated delta rule (Yang et al. 2024, Gated DeltaNet), as in Qwen3-Next."""

    FIRST: ClassVar[str] = "heads"

    heads: Size = Field(description="heads of values, each with a state")
    key_heads: Size | None = Field(default=None, description="heads of queries and keys (default: as many)")
    key_size: Size = Field(default=128, description="features of a query or key")
    value_size: Size = Field(default=128, description="features of a value")
    chunk: Size | None = Field(default=None, description="tokens of a chunk (default: 64)")
    convolution: Size = Field(default=4, description="tokens that the convolution before it sees")
    activation: ActivationName = Field(default="silu", description="activation after that convolution")
    pattern: Pattern = Field(default=ALL, description="which blocks have it, over and over (default: all)")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.heads % self.grouped:
            raise ValueError(f"gated_delta.key_heads {self.grouped} does not divide gated_delta.heads {self.heads}")
        return self

    @property
    def grouped(self) -> int:
        """Heads of queries and keys."""
        return self.heads if self.key_heads is None else self.key_heads

    @property
    def chunked(self) -> int:
        """Tokens of a chunk."""
        return 64 if self.chunk is None else self.chunk


class ShortConvolution(Description):
    """A gated convolution over the last few tokens (Liquid AI 2025, LFM2)."""

    FIRST: ClassVar[str] = "size"

    size: Size = Field(description="tokens that it sees")
    bias: bool = Field(default=False, description="bias in it and in the projections around it")
    pattern: Pattern = Field(default=ALL, description="which blocks have it, over and over (default: all)")
