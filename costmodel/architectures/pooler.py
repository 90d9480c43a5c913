"""What a whole sequence is summed up in: the features of its first tokens, pooled and sorted into classes."""

from __future__ import annotations

from costmodel.architectures.activations import activation
from costmodel.architectures.feedforward import dropped
from costmodel.architectures.spec import Pooler, TransformerSpec
from costmodel.graph.tensor import Tensor
from costmodel.layers.linear import Linear
from costmodel.layers.shape import Slice


def summarised(model: TransformerSpec, x: Tensor) -> Tensor:
    """(batch, T, width) → (batch, classes), or (batch, features) from the pooler alone."""
    if model.pooler is not None:
        x = pooled(model.pooler, x)
    if model.classes is not None:
        x = sorted_by(x, model.classes.count, dropout=model.classes.dropout)
    return x.view((x.shape[0], x.shape[-1]), None)


def pooled(pooler: Pooler, x: Tensor) -> Tensor:
    """(batch, T, width) → (batch, 1, features): a linear layer over the first token, and its activation."""
    first = Slice(1, axis=1)(x, name="first_token")
    with x.run.scope("pooler"):
        features = x.shape[-1] if pooler.width is None else pooler.width
        return activation(pooler.activation)(Linear(features)(dropped(first, pooler.dropout, "dropout")))


def sorted_by(x: Tensor, classes: int, token: int = 0, name: str = "classes", *, dropout: float = 0.0) -> Tensor:
    """(batch, T, width) → (batch, 1, classes), told from one token."""
    one = x if x.shape[1] == 1 else Slice(1, token, axis=1)(x, name=f"{name}_token")
    return Linear(classes)(dropped(one, dropout, f"{name}_dropout"), name=name)
