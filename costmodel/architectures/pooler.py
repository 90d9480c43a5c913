"""What a whole sequence is summed up in: the features of its first tokens, pooled and sorted into classes."""

from __future__ import annotations

from costmodel.architectures.activations import activation
from costmodel.architectures.feedforward import dropped, normed
from costmodel.architectures.parts import Classes, Pooler
from costmodel.architectures.spec import TransformerSpec
from costmodel.graph.tensor import Shape, Tensor
from costmodel.layers.linear import Linear
from costmodel.layers.shape import Slice
from costmodel.symbolic.sizes import peek


def summarised(model: TransformerSpec, x: Tensor) -> Tensor | tuple[Tensor, ...]:
    """(batch, T, width) → (batch, classes), or (batch, features) from the pooler alone.

    Of every token's classes (batch·T, classes), and of spans (batch, T) for each class.
    """
    if model.classes is not None and model.classes.told_by != "first":
        return _scored(model, model.classes, x)
    if model.pooler is not None and not model.pooler.spare:
        x = pooled(model, model.pooler, x)
    if model.classes is not None:
        x = sorted_by(x, model.classes.count, dropout=model.classes.dropout, bias=model.classes.bias)
    return x.view((x.shape[0], x.shape[-1]))


def _scored(model: TransformerSpec, classes: Classes, x: Tensor) -> Tensor | tuple[Tensor, ...]:
    """Scores of all tokens, and those that count."""
    (b, t, _), c = x.shape, classes.count
    if classes.transform is not None:
        with x.tape.scope("classes_transform"):
            x = activation(classes.transform)(Linear(x.shape[-1], bias=classes.transform_bias)(x))
            x = normed(model, x, "norm") if classes.transform_norm else x
    scores = Linear(c, bias=classes.bias)(dropped(x, classes.dropout, "classes_dropout"), name="classes")
    if classes.told_by == "each":
        return scores.view((b * t, c))
    if classes.told_by == "last":
        return Slice(1, t - 1, axis=1)(scores, name="last_token").view((b, c), (t * c, 1))
    if classes.told_by == "mean":
        return _mean(scores, (b, c), "mean_scores")
    parts = (Slice(1, n)(scores, name=f"places{n + 1}") for n in range(peek(c)))
    return tuple(part.view((b, t), (t * c, c)) for part in parts)


def pooled(model: TransformerSpec, pooler: Pooler, x: Tensor) -> Tensor:
    """(batch, T, width) → (batch, 1, features): a linear layer over the first token, its activation, and a norm."""
    b, _, d = x.shape
    whole = pooler.over == "mean"
    one = _mean(x, (b, 1, d), "mean_token") if whole else Slice(1, axis=1)(x, name="first_token")
    with x.tape.scope("pooler"):
        features = d if pooler.width is None else pooler.width
        x = Linear(features, bias=pooler.bias)(dropped(one, pooler.dropout, "dropout"))
        x = activation(pooler.activation)(x)
    return normed(model, x, "pooler_norm") if pooler.norm else x


def _mean(x: Tensor, shape: Shape, name: str) -> Tensor:
    """The mean over the tokens of (batch, T, features)."""
    from costmodel.layers.reduction import Reduce  # few models need it

    return Reduce("mean", shape)(x, name=name)


def sorted_by(
    x: Tensor, classes: int, token: int = 0, name: str = "classes", *, dropout: float = 0.0, bias: bool = True
) -> Tensor:
    """(batch, T, width) → (batch, 1, classes), told from one token."""
    one = x if x.shape[1] == 1 else Slice(1, token, axis=1)(x, name=f"{name}_token")
    return Linear(classes, bias=bias)(dropped(one, dropout, f"{name}_dropout"), name=name)
