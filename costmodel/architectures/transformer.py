"""GPT-style transformers: decoders and encoders."""

from __future__ import annotations

from costmodel.architectures.attention import AttentionSetting
from costmodel.architectures.base import BatchShape, default_tokens, refuse
from costmodel.architectures.blocks import body, stage_pattern
from costmodel.architectures.embedding_and_head import embedded, logits
from costmodel.architectures.moe import assumptions
from costmodel.architectures.pooler import pooled, summarised
from costmodel.architectures.ranks import embedding
from costmodel.architectures.spec import TransformerSpec
from costmodel.architectures.stages import own_parts
from costmodel.errors import SettingError
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Tensor
from costmodel.layers.linear import Linear
from costmodel.layers.shape import Slice
from costmodel.training.layout import Layout
from costmodel.training.settings import LossKind

COMPOSED = (
    "composed of operators, as transformers does where it has no kernels of its own, in the type of the rest; a fused "
    "kernel keeps less for backward"
)
"""What is taken for granted of a state space."""


class Transformer(TransformerSpec):
    """Token embedding, `layers` equal blocks of attention and MLP, and a head over the vocabulary.

    The defaults are those of GPT-2 (Vaswani et al. 2017; Radford et al. 2019).

    Example:
        >>> import costmodel as cm
        >>> small = cm.Transformer(vocab=1000, context=128, layers=4, width=256, heads=4)
        >>> cm.predict(small, batch=8).params
        3448320

    """

    @property
    def default_loss(self) -> LossKind | None:
        """Cross-entropy of tokens, classes or both; none for a model without a head or classes.

        Of one class alone binary cross-entropy.
        """
        if self.head is None and self.classes is not None and self.classes.count == 1:
            return "binary_cross_entropy"
        return None if self.head is None and self.classes is None else "cross_entropy"

    @property
    def DETACHES(self) -> bool:  # type: ignore[override]
        """See `Architecture.DETACHES`: a pooler that nothing reads is out of reach, and the choice of keys."""
        return self.indexer is not None or (self.pooler is not None and self.pooler.spare)

    def assumptions(self, shape: BatchShape) -> list[tuple[str, str]]:
        """Of the tokens' choice of experts, and of what state spaces are composed of."""
        conventions = [("state space", COMPOSED)] if self.state_space is not None else []
        if self.experts is None:
            return conventions
        return [("experts", assumptions(self.experts, shape.batch * (shape.seq or 1))), *conventions]

    def stage_kind(self, layout: Layout) -> object:
        """See `Architecture.stage_kind`: how many blocks it has, and of which variants these are."""
        own = own_parts(layout, self)
        return len(own), *stage_pattern(self, own)

    def batch_shape(self, batch: int, seq: int | None, image: tuple[int, int] | None) -> BatchShape:
        """A batch of sequences of `seq` tokens, or of the context's up to 2,048."""
        refuse("image", image, self, "batch and seq")
        seq = default_tokens(self.context) if seq is None else seq
        if self.positions == "learned" and seq > self.context:
            raise SettingError(
                f"seq {seq} is beyond the learned position table of {self.title}: use at most {self.context}"
            )
        return BatchShape(batch, seq)

    def with_past(self, shape: BatchShape, past: int | None, *, last: bool) -> BatchShape:
        """See `Architecture.with_past`; a decode step fills up what a sequence has by default."""
        if not self.causal or self.pooler is not None or self.classes is not None:
            return super().with_past(shape, past, last=last)
        drafts = 0 if last or shape.seq is None else shape.seq - 1
        if self.mixer is not None and drafts:
            raise SettingError(
                f"speculative={drafts} does not apply to {self.title}, whose {self.mixer_name} keeps a state that "
                "refused drafts cannot be taken out of again: leave it out"
            )
        if past is None and not last and shape.seq is not None:
            past = max(default_tokens(self.context) - shape.seq, 1)
        if past is not None and past + (shape.seq or 1) > self.context:
            room = self.context - (shape.seq or 1)
            raise SettingError(
                f"past {past} and {shape.seq} token{'s' * (shape.seq != 1)} are beyond the context {self.context} of "
                f"{self.title}: use at most {f'past={room}' if room > 0 else f'seq={max(self.context - past, 1)}'}"
            )
        return shape._replace(past=past or 0, last=last and self.head is not None)

    def forward(self, tape: Tape, shape: BatchShape, attention: AttentionSetting) -> Tensor | tuple[Tensor, ...]:
        """(batch, T) tokens → (batch·T, vocab) logits, (batch, classes), or both; (batch·T, width) without either."""
        assert shape.seq is not None
        self.check_tokens(tape.layout, shape.seq)
        if tape.layout.first:
            tokens = tape.input((shape.batch, shape.seq), "index", "tokens")
            x = embedding(self.vocab, self.embedding_width or self.width, tokens, whole=self.positions == "learned")
            table = tape.weights_of("embedding")["weight"]
            table.storage.copied = self.tied and not tape.layout.last
            x = embedded(self, x, tokens)
        else:
            tokens = table = None
            x = tape.received()
        x = body(self, tape, x, attention, tokens=tokens)
        if not tape.layout.last:
            return x
        if self.embedding_width is not None and not self.embedding_factored:
            x = Linear(self.embedding_width, bias=False)(x, name="project_out")
        if shape.last:
            x = Slice(1, shape.seq - 1, axis=1)(x, name="last_token")
        if self.pooler is not None and self.pooler.spare:
            pooled(self, self.pooler, x)
        y = x if self.head is None else logits(self, x, table)
        # The loss sees rows of tokens: a view, which costs nothing.
        rows = y.view((shape.batch * y.shape[1], y.shape[-1]))
        if (self.pooler is None or self.pooler.spare) and self.classes is None:
            return rows
        summary = summarised(self, x)
        if self.head is None:
            return summary
        return (rows, *summary) if isinstance(summary, tuple) else (rows, summary)
