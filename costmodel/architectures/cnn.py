"""Convolutional networks: lists of blocks over images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, field_serializer, model_validator

from costmodel.architectures.base import Architecture, Extent, Size, as_tuple, refuse
from costmodel.architectures.blocklist import read_blocks, write_blocks
from costmodel.architectures.blocks import Blocks, apply
from costmodel.graph.run import Run
from costmodel.graph.tensor import Tensor


class CNN(Architecture):
    """A network over images, as a list of blocks: layer kinds, and the composites of `costmodel.architectures.blocks`.

    From Python an item is a layer (``Conv(64, kernel=7)``) or a composite (``Residual([...])``); from data see
    `costmodel.architectures.blocklist`, whose templates (``define``) are filled in on the way.
    """

    EXTENT: ClassVar[tuple[str, ...]] = ("image",)

    input: Annotated[tuple[Size, Size, Size], BeforeValidator(as_tuple)] = Field(
        description="[channels, height, width] of an image"
    )
    blocks: Any = Field(description="items, one after another")

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or "blocks" not in data:
            return data
        fields = {name: value for name, value in data.items() if name != "define"}
        return {**fields, "blocks": read_blocks(data["blocks"], data.get("define"))}

    @field_serializer("blocks")
    def _write(self, blocks: Blocks) -> list[Any]:
        return write_blocks(blocks)

    def extent(self, batch: int, seq: int | None, image: tuple[int, int] | None) -> Extent:
        """A batch of images, of the model's own size unless `image` says another."""
        refuse("seq", seq, self, "batch and image")
        return Extent(batch, image=self.input[1:] if image is None else image)

    def forward(self, run: Run, extent: Extent, attention: Any) -> Tensor:
        """(batch, C, H, W) → what the last block makes, such as (batch, classes)."""
        assert extent.image is not None
        return apply(self.blocks, run.input((extent.batch, self.input[0], *extent.image), name="images"))
