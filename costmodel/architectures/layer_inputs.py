"""A vector of each token for each block, which a gate adds to what the block makes (Gemma Team 2025, Gemma 3n)."""

from __future__ import annotations

import math

from costmodel.architectures.activations import activation
from costmodel.architectures.feedforward import normed
from costmodel.architectures.spec import TransformerSpec
from costmodel.graph.tensor import Tensor
from costmodel.layers.arithmetic import Add, Multiply, Scale
from costmodel.layers.embedding import Embedding
from costmodel.layers.linear import Linear
from costmodel.layers.shape import Slice
from costmodel.symbolic.sizes import peek


def vectors_for_blocks(model: TransformerSpec, rows: Tensor, x: Tensor, layers: int, width: int, vocab: int) -> Tensor:
    """(batch, T, layers·width): rows of a table beside what is made of x, (batch, T, width of the model)."""
    b, t, _ = x.shape
    wide = layers * width
    table = Embedding(vocab, wide)(rows, name="layer_embedding")
    table = Scale(math.sqrt(peek(width)))(table, name="scale_layers")
    layered = Linear(wide, bias=False)(x, name="to_layers")
    layered = Scale(1 / math.sqrt(peek(model.width)))(layered, name="scale_to_layers")
    layered = normed(model, layered.view((b, t, layers, width)), "layer_norm")
    layered = Add()(layered, table.view((b, t, layers, width)), name="add_layers")
    return Scale(1 / math.sqrt(2))(layered, name="for_layers").view((b, t, wide))


def gated_vector(model: TransformerSpec, x: Tensor, vectors: Tensor, width: int) -> Tensor:
    """What a block adds of the vectors, (batch, T, layers·width), by a gate of x: (batch, T, width of the model)."""
    gate = activation(model.activation)(Linear(width, bias=False)(x, name="gate"))
    own = Slice(width)(vectors, name="own")
    y = Linear(x.shape[-1], bias=False)(Multiply()(gate, own, name="gated"), name="project")
    return normed(model, y, "norm")
