"""Small networks that calibration runs whole, to learn what running in context costs; none is one that is predicted.

In a program a call finds less in the cache than when it is repeated alone: a matrix product evicts what came before,
and weights come from memory. The surrogates' layers are of other sizes than those of known models, and their weights
together are larger than caches.
"""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.architectures.cnn import CNN
from costmodel.architectures.mlp import MLP
from costmodel.architectures.transformer import Transformer
from costmodel.cost.prediction import Prediction, predict
from costmodel.roofline.network import network_of
from costmodel.roofline.program import Program

PREFIX = "context"


def _transformer(width: int, heads: int, layers: int) -> Transformer:
    return Transformer(vocab=2900, context=256, layers=layers, width=width, heads=heads)


def _convolutions(channels: int) -> CNN:
    def unit(to: int) -> list:
        return [{"conv": {"channels": to, "kernel": 3, "padding": 1, "bias": False}}, "batchnorm", "relu"]

    blocks = [*unit(channels), {"max_pool": {"kernel": 2}}, *unit(2 * channels), *unit(2 * channels)]
    tail = [{"max_pool": {"kernel": 2}}, *unit(4 * channels), {"adaptive_avg_pool": {"size": 1}}, "flatten"]
    return CNN(input=(3, 52, 52), blocks=[*blocks, *tail, {"linear": {"features": 37}}])


def _predictions() -> Iterator[tuple[str, Prediction]]:
    yield "transformer 600", predict(_transformer(600, 10, 3), batch=1, seq=88, mode="inference")
    yield "transformer 352", predict(_transformer(352, 11, 2), batch=2, seq=110, mode="inference")
    yield "convolutions 40", predict(_convolutions(40), batch=1, mode="inference")
    yield "convolutions 72", predict(_convolutions(72), batch=2, mode="inference")
    yield "mlp 900", predict(MLP(sizes=(900, 1900, 700, 11)), batch=48)
    yield "mlp 330", predict(MLP(sizes=(330, 420, 9)), batch=150, optimizer="sgd")


def surrogates() -> dict[str, Program]:
    """Each whole program, by the name that its time is stored under."""
    return {f"{PREFIX} {name}": network_of(prediction).program for name, prediction in _predictions()}
