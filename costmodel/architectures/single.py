"""One layer by itself, as a model: what a question about a layer is asked of."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import ConfigDict, Field

from costmodel.architectures.base import Architecture, BatchShape, refuse
from costmodel.errors import SettingError, shown
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Tensor
from costmodel.layers.base import Layer
from costmodel.symbolic.sizes import LARGEST_SIZE


class Single(Architecture):
    """A layer applied to an input that needs a gradient, as one within a network does."""

    model_config: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True)

    layer: Layer = Field(description="the layer")
    sample: tuple[int, ...] = Field(description="shape of one sample of its input")

    @property
    def default_loss(self) -> None:
        """None: backward starts from the output."""
        return

    def batch_shape(self, batch: int, seq: int | None, image: tuple[int, int] | None) -> BatchShape:
        """A batch of samples."""
        refuse("seq", seq, self, "only batch")
        refuse("image", image, self, "only batch")
        return BatchShape(batch)

    def forward(self, tape: Tape, shape: BatchShape, attention: Any) -> Tensor:
        """(batch, ...) → the layer's output."""
        x = tape.input((shape.batch, *self.sample))
        x.requires_grad = tape.training
        return self.layer(x)


def alone(layer: Layer, shape: Any, batch: Any) -> tuple[Single, int]:
    """A layer as a model, and the batch that its input has. shape: of the input, its first axis the batch.

    Raises SettingError for what is no shape, a batch beside it, and a layer that takes other than one input of numbers.
    """
    example = f"cm.predict({type(layer).__name__}(...), input=(32, 512, 768))"
    if shape is None:
        raise SettingError(f"a layer by itself needs the shape of its input: use {example}")
    sizes: list[int] = [*shape] if isinstance(shape, tuple | list) else []
    if not sizes or not all(type(n) is int and 1 <= n <= LARGEST_SIZE for n in sizes) or len(sizes) > 8:
        raise SettingError(f"input={shown(shape)} is not a shape, of which the first axis is the batch: use {example}")
    if batch is not None:
        raise SettingError(
            f"batch={shown(batch)} beside input={shown(shape)}, whose first axis is the batch: leave it out"
        )
    first, *rest = sizes
    return Single(layer=layer, sample=tuple(rest), name=layer.kind), first
