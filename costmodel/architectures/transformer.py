"""GPT-style transformers: decoders and encoders."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from costmodel.architectures.activations import ActivationName, activation
from costmodel.architectures.attention import AttentionSetting, Mixer
from costmodel.architectures.base import Architecture, Extent, LossName, Probability, Size, refuse
from costmodel.errors import SettingError
from costmodel.layers.arithmetic import Add, Dropout, Multiply
from costmodel.layers.embedding import Embedding, LearnedPositions
from costmodel.layers.linear import Linear
from costmodel.layers.norm import Layernorm, Rmsnorm
from costmodel.run import Run
from costmodel.sizes import exact_div
from costmodel.tensor import Tensor


class Transformer(Architecture):
    """Token embedding, `layers` equal blocks of attention and MLP, and a head over the vocabulary.

    The defaults are those of GPT-2 (Vaswani et al. 2017; Radford et al. 2019).
    """

    HAS_ATTENTION: ClassVar[bool] = True
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
    positions: Literal["learned", "rotary", "alibi", "none"] = Field(default="learned", description="positions")
    rotary_size: Size | None = Field(default=None, description="rotated features of a head (default: all)")
    fused_qkv: bool = Field(default=True, description="one projection makes query, key and value")
    qkv_bias: bool = Field(default=True, description="bias in the query, key and value projections")
    attention_bias: bool = Field(default=True, description="bias in attention's output projection")

    mlp: Literal["plain", "gated"] = Field(default="plain", description="gated: act(x W_g) ⊙ x W_u")
    mlp_width: Size | None = Field(default=None, description="hidden features of the MLP (default: 4 × width)")
    mlp_bias: bool = Field(default=True, description="bias in the MLP's linear layers")
    activation: ActivationName = Field(default="gelu_tanh", description="activation of the MLP")

    norm: Literal["layernorm", "rmsnorm"] = Field(default="layernorm", description="normalisation")
    norm_bias: bool = Field(default=True, description="bias in layer norms")
    norm_placement: Literal["pre", "post"] = Field(default="pre", description="norm before or after each sublayer")
    parallel: bool = Field(default=False, description="attention and MLP read the same input and are added at once")
    shared_norm: bool = Field(default=False, description="one norm for both branches of a parallel block")
    embedding_norm: bool = Field(default=False, description="norm after the embeddings")
    final_norm: bool | None = Field(default=None, description="norm before the head (default: if norms come first)")

    embedding_dropout: Probability = Field(default=0.0, description="dropout after the embeddings")
    attention_dropout: Probability = Field(default=0.0, description="dropout of attention weights")
    residual_dropout: Probability = Field(default=0.0, description="dropout of each sublayer's output")

    head: bool = Field(default=True, description="whether the model ends in logits over the vocabulary")
    tied: bool = Field(default=True, description="the head's weight is the token embedding")
    head_bias: bool = Field(default=False, description="bias in the head")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.head_size is None and self.width % self.heads:
            raise ValueError(
                f"heads {self.heads} does not divide width {self.width}: use a divisor such as "
                f"{_nearest_divisor(self.width, self.heads)}, or give head_size"
            )
        if self.heads % self.key_heads:
            raise ValueError(f"kv_heads {self.kv_heads} does not divide heads {self.heads}")
        if self.rotary_size is not None and self.positions != "rotary":
            raise ValueError(f"rotary_size {self.rotary_size} needs positions 'rotary', not {self.positions!r}")
        if self.positions == "rotary" and (self.rotated % 2 or self.rotated > self.head_features):
            raise ValueError(f"rotary_size {self.rotated} must be even and at most the head size {self.head_features}")
        if self.shared_norm and not self.parallel:
            raise ValueError("shared_norm needs parallel: true")
        if self.parallel and self.norm_placement == "post":
            raise ValueError("parallel blocks have their norm first: use norm_placement 'pre'")
        if self.head_bias and not self.head:
            raise ValueError("head_bias needs head: true")
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
    def default_loss(self) -> LossName | None:
        """Next-token cross-entropy; none for a model without a head."""
        return "cross_entropy" if self.head else None

    def extent(self, batch: int, seq: int | None, image: tuple[int, int] | None) -> Extent:
        """A batch of sequences, the whole context unless `seq` says less."""
        refuse("image", image, self, "batch and seq")
        seq = self.context if seq is None else seq
        if self.positions == "learned" and seq > self.context:
            raise SettingError(
                f"seq {seq} is beyond the learned position table of {self.title}: use at most {self.context}"
            )
        return Extent(batch, seq)

    def forward(self, run: Run, extent: Extent, attention: AttentionSetting) -> Tensor:
        """(batch, T) tokens → (batch·T, vocab) logits, or (batch·T, width) without a head."""
        assert extent.seq is not None
        tokens = run.input((extent.batch, extent.seq), "index", "tokens")
        embedding = Embedding(self.vocab, self.width)
        x = embedding(tokens, name="embedding")
        table = run.block.entries[-1].weights["weight"]  # type: ignore[union-attr]
        if self.positions == "learned":
            x = Add()(x, LearnedPositions(self.context, self.width)(tokens, name="positions"), name="add_positions")
        if self.embedding_norm:
            x = self._norm(x, "embedding_norm")
        x = _drop(x, self.embedding_dropout, "embedding_dropout")
        mixer = Mixer(self, run, extent.seq, attention)
        x = run.repeat(self.layers, lambda x: self._block(x, mixer), x, "block")
        if self.norm_placement == "pre" if self.final_norm is None else self.final_norm:
            x = self._norm(x, "final_norm")
        if self.head:
            tied = {"weight": table} if self.tied else None
            x = Linear(self.vocab, bias=self.head_bias)(x, name="head", tied=tied)
        # The loss sees rows of tokens: a view, which costs nothing.
        return x.view((extent.batch * extent.seq, x.shape[-1]), None)

    def _block(self, x: Tensor, mixer: Mixer) -> Tensor:
        if self.parallel:
            normed = self._norm(x, "norm")
            mixed = self._dropped(mixer(normed), "attention")
            fed = self._dropped(self._mlp(normed if self.shared_norm else self._norm(x, "mlp_norm")), "mlp")
            return Add()(Add()(x, mixed, name="add_attention"), fed, name="add_mlp")
        for name, sublayer in (("attention", mixer), ("mlp", self._mlp)):
            inner = self._norm(x, f"{name}_norm") if self.norm_placement == "pre" else x
            x = Add()(x, self._dropped(sublayer(inner), name), name=f"add_{name}")
            if self.norm_placement == "post":
                x = self._norm(x, f"{name}_norm")
        return x

    def _mlp(self, x: Tensor) -> Tensor:
        hidden = 4 * self.width if self.mlp_width is None else self.mlp_width
        act = activation(self.activation)
        with x.run.scope("mlp"):
            if self.mlp == "gated":
                gate = act(Linear(hidden, bias=self.mlp_bias)(x, name="gate"))
                inner = Multiply()(gate, Linear(hidden, bias=self.mlp_bias)(x, name="up"))
            else:
                inner = act(Linear(hidden, bias=self.mlp_bias)(x, name="up"))
            return Linear(self.width, bias=self.mlp_bias)(inner, name="down")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return (Layernorm(bias=self.norm_bias) if self.norm == "layernorm" else Rmsnorm())(x, name=name)

    def _dropped(self, x: Tensor, sublayer: str) -> Tensor:
        return _drop(x, self.residual_dropout, f"{sublayer}_dropout")


def _drop(x: Tensor, p: float, name: str) -> Tensor:
    return Dropout(p)(x, name=name) if p else x


def _nearest_divisor(width: int, heads: int) -> int:
    divisors = {
        n
        for small in range(1, min(int(width**0.5) + 1, 100_000))
        if width % small == 0
        for n in (small, width // small)
    }
    return min(divisors, key=lambda n: (abs(n - heads), n))
