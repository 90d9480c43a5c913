"""Published configurations of encoders: BERT and those that follow it, with the heads that their architectures name."""

from __future__ import annotations

from typing import Any, ClassVar

from costmodel.architectures.base import Probability, Size
from costmodel.errors import SpecError
from costmodel.published.config import Published, activation_named


class Classifying(Published):
    """Abstract: models that may tell classes, as many as are named."""

    id2label: dict[Any, Any] | None = None
    num_labels: Size | None = None

    @property
    def named(self) -> str:
        """The architecture, the first with a head if none is named."""
        return self.architectures[0] if self.architectures else self.HEADED[0]

    @property
    def labels(self) -> int:
        """Classes of a classifier: as many as are named, two if none are."""
        return len(self.id2label) if self.id2label else self.num_labels or 2


class Encoder(Classifying):
    """Abstract: every token sees every other; norms come last; a masked-language-model head, classes or a pooler."""

    CLASSIFIERS: ClassVar[tuple[str, ...]]
    """Names in `architectures` of the model that sorts whole sequences into classes."""

    tie_word_embeddings: bool = True

    def common(self, activation: str) -> dict[str, Any]:
        """The transformer's fields that all encoders share."""
        return {
            "causal": False,
            "fused_qkv": False,
            "activation": activation_named(activation),
            "norm_placement": "post",
            "embedding_norm": True,
            "tied": self.tie_word_embeddings,
            "head_bias": True,
            "classes": self.labels if self.named in self.CLASSIFIERS else None,
        }


class Bert(Encoder):
    """BERT (Devlin et al. 2019)."""

    MODEL_TYPE: ClassVar = "bert"
    HEADED: ClassVar = ("BertForMaskedLM", "BertForPreTraining")
    HEADLESS: ClassVar = ("BertModel", "BertForSequenceClassification", "BertForNextSentencePrediction")
    CLASSIFIERS: ClassVar = ("BertForSequenceClassification",)
    FIXED: ClassVar = {"is_decoder": (False,), "position_embedding_type": ("absolute",)}

    vocab_size: Size = 30522
    hidden_size: Size = 768
    num_hidden_layers: Size = 12
    num_attention_heads: Size = 12
    intermediate_size: Size = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: Probability = 0.1
    attention_probs_dropout_prob: Probability = 0.1
    max_position_embeddings: Size = 512
    type_vocab_size: Size = 2
    classifier_dropout: Probability | None = None

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`; a next-sentence head tells two classes (§3.1)."""
        pairs = self.named in ("BertForPreTraining", "BertForNextSentencePrediction")
        made = self.sizes() | {
            "position_rows": None,
            "head_transform": activation_named(self.hidden_act) if self.headed else None,
            "pooler": None if self.named == "BertForMaskedLM" else "tanh",
        }
        return made | ({"classes": 2} if pairs else self.dropped())

    def dropped(self) -> dict[str, Any]:
        """Dropout before a classifier, as the blocks' unless it says otherwise."""
        own = self.hidden_dropout_prob if self.classifier_dropout is None else self.classifier_dropout
        return {"class_dropout": own} if self.named in self.CLASSIFIERS else {}

    def sizes(self) -> dict[str, Any]:
        """The fields that all models by these names share."""
        return self.common(self.hidden_act) | {
            "vocab": self.vocab_size,
            "context": self.max_position_embeddings,
            "layers": self.num_hidden_layers,
            "width": self.hidden_size,
            "heads": self.num_attention_heads,
            "mlp_width": self.intermediate_size,
            "segments": self.type_vocab_size,
            "embedding_dropout": self.hidden_dropout_prob,
            "residual_dropout": self.hidden_dropout_prob,
            "attention_dropout": self.attention_probs_dropout_prob,
        }


class Roberta(Bert):
    """RoBERTa (Liu et al. 2019): BERT whose positions are counted from after the padding token's number."""

    MODEL_TYPE: ClassVar = "roberta"
    HEADED: ClassVar = ("RobertaForMaskedLM",)
    HEADLESS: ClassVar = ("RobertaModel", "RobertaForSequenceClassification")
    CLASSIFIERS: ClassVar = ("RobertaForSequenceClassification",)

    vocab_size: Size = 50265
    pad_token_id: int | None = 1

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`; the head's activation is GELU whatever the blocks' is."""
        rows, first = self.max_position_embeddings, (self.pad_token_id or 0) + 1
        if not 1 <= first < rows:
            raise SpecError(
                f"roberta: pad_token_id {self.pad_token_id} leaves no positions of {rows}", ("pad_token_id",)
            )
        classifier = self.named in self.CLASSIFIERS
        return (
            self.sizes()
            | {
                "context": rows - first,
                "position_rows": rows,
                "head_transform": "gelu" if self.headed else None,
                "pooler": None if self.headed else "tanh",
            }
            | self.dropped()
            | ({"pooler_dropout": self.dropped()["class_dropout"]} if classifier else {})
        )


class DistilBert(Encoder):
    """DistilBERT (Sanh et al. 2019): BERT without segments and pooler, half as deep."""

    MODEL_TYPE: ClassVar = "distilbert"
    HEADED: ClassVar = ("DistilBertForMaskedLM",)
    HEADLESS: ClassVar = ("DistilBertModel", "DistilBertForSequenceClassification")
    CLASSIFIERS: ClassVar = ("DistilBertForSequenceClassification",)
    ALIASES: ClassVar = {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}
    IDLE: ClassVar = frozenset({"qa_dropout", "tie_weights_", "output_past"})
    FIXED: ClassVar = {"sinusoidal_pos_embds": (False,)}

    vocab_size: Size = 30522
    max_position_embeddings: Size = 512
    n_layers: Size = 6
    n_heads: Size = 12
    dim: Size = 768
    hidden_dim: Size = 3072
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.1
    activation: str = "gelu"
    seq_classif_dropout: Probability = 0.2

    def fields(self) -> dict[str, Any]:
        """See `Published.fields`."""
        classifier = self.named in self.CLASSIFIERS
        return self.common(self.activation) | {
            "vocab": self.vocab_size,
            "context": self.max_position_embeddings,
            "layers": self.n_layers,
            "width": self.dim,
            "heads": self.n_heads,
            "mlp_width": self.hidden_dim,
            "embedding_dropout": self.dropout,
            "residual_dropout": self.dropout,
            "mixed_dropout": 0.0,
            "attention_dropout": self.attention_dropout,
            "head_transform": activation_named(self.activation) if self.headed else None,
            "pooler": "relu" if classifier else None,
            "class_dropout": self.seq_classif_dropout if classifier else 0.0,
        }
