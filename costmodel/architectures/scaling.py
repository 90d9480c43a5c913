"""Families of models: one model made wider or deeper, all else as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from costmodel.architectures.base import Architecture
from costmodel.architectures.cnn import CNN
from costmodel.architectures.composites import Block, Blocks, Branches, Repeat, Residual, Sequence
from costmodel.architectures.mlp import MLP
from costmodel.errors import SettingError, shown
from costmodel.layers.conv import Conv, ConvTranspose
from costmodel.layers.linear import Linear
from costmodel.symbolic.sizes import LARGEST_SIZE

Sized = Conv | ConvTranspose | Linear


def width_of(model: Architecture) -> int:
    """A transformer's width; of an MLP or CNN the first hidden layer's features or channels.

    Raises SettingError for a model without hidden layers.
    """
    if isinstance(model, MLP):
        return _hidden(model, "width")[0]
    if isinstance(model, CNN):
        sized = _sized(model.blocks)
        if len(sized) < 2:
            raise SettingError(f"{model.title} has no width to turn: its one layer makes the output")
        return _size(sized[0])
    return getattr(model, "width")  # noqa: B009


def widened(model: Architecture, width: int) -> Architecture:
    """The model of another width: hidden layers keep their proportions, rounded; input and output stay.

    Raises CostModelError where no such model exists: heads must divide a transformer's width.
    """
    if isinstance(model, MLP):
        first, *hidden, last = model.sizes
        base = width_of(model)
        return model.with_fields({"sizes": (first, *(scaled(size, width, base) for size in hidden), last)})
    if isinstance(model, CNN):
        blocks = _widened(model.blocks, width, width_of(model), _sized(model.blocks)[-1])
        return model.with_fields({"blocks": blocks})
    return model.with_fields({"width": width})


def depth_of(model: Architecture) -> int:
    """Blocks of a transformer; hidden layers of an MLP. Raises SettingError for a CNN, whose blocks are all its own."""
    if isinstance(model, MLP):
        return len(_hidden(model, "layers"))
    if isinstance(model, CNN):
        raise SettingError(f"{model.title} has no number of layers to turn: a CNN's blocks are listed one by one")
    return getattr(model, "layers")  # noqa: B009


def deepened(model: Architecture, layers: int) -> Architecture:
    """The model with another number of blocks, or of equal hidden layers. Raises SettingError if they are unlike."""
    if isinstance(model, MLP):
        first, *hidden, last = model.sizes
        depth_of(model)
        if len(set(hidden)) > 1:
            raise SettingError(f"{model.title} has no number of layers to turn: its hidden layers differ in size")
        return model.with_fields({"sizes": (first, *hidden[:1] * layers, last)})
    depth_of(model)
    return model.with_fields({"layers": layers})


def turnable(model: Architecture) -> tuple[str, ...]:
    """Of width and layers those that are no field of a model, but can be turned."""
    return ("layers", "width") if isinstance(model, MLP) else ("width",) if isinstance(model, CNN) else ()


def resized(model: Architecture, name: str, size: Any) -> Architecture:
    """The model with another size of those that are `turnable`. Raises CostModelError where there is none."""
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= LARGEST_SIZE:
        raise SettingError(f"{name}={shown(size)} is not a whole number between 1 and {LARGEST_SIZE:,}")
    return (widened if name == "width" else deepened)(model, size)


def scaled(size: int, width: int, base: int, multiple: int = 1) -> int:
    """`size · width / base`, rounded to the nearest multiple that is not zero."""
    return max(1, (2 * size * width + base * multiple) // (2 * base * multiple)) * multiple


def _hidden(model: MLP, knob: str) -> tuple[int, ...]:
    if not model.sizes[1:-1]:
        raise SettingError(f"{model.title} has no {knob} to turn: it has no hidden layers")
    return model.sizes[1:-1]


def _size(layer: Sized) -> int:
    return layer.features if isinstance(layer, Linear) else layer.channels


def _sized(blocks: Blocks) -> list[Sized]:
    """Layers that set a width, in the order that they are listed; the last makes the output."""
    found: list[Sized] = []
    for block in blocks:
        if isinstance(block, Sized):
            found.append(block)
        for inner in _inner(block):
            found += _sized(inner)
    return found


def _inner(block: Block) -> tuple[Blocks, ...]:
    if isinstance(block, Branches):
        return block.paths
    if isinstance(block, Residual):
        return (block.body, block.projection or ())
    return (block.blocks,) if isinstance(block, Sequence | Repeat) else ()


def _widened(blocks: Blocks, width: int, base: int, last: Sized) -> Blocks:
    def again(inner: Blocks) -> Blocks:
        return _widened(inner, width, base, last)

    def wide(block: Block) -> Block:
        if isinstance(block, Sized):
            return block if block is last else _wide(block, width, base)
        if isinstance(block, Branches):
            return replace(block, paths=tuple(map(again, block.paths)))
        if isinstance(block, Residual):
            return replace(block, body=again(block.body), projection=block.projection and again(block.projection))
        return replace(block, blocks=again(block.blocks)) if isinstance(block, Sequence | Repeat) else block

    return tuple(map(wide, blocks))


def _wide(layer: Sized, width: int, base: int) -> Sized:
    """A depthwise convolution stays one; other groups stay as many as they are."""
    if isinstance(layer, Linear):
        return replace(layer, features=scaled(layer.features, width, base))
    if layer.groups == layer.channels:
        channels = scaled(layer.channels, width, base)
        return replace(layer, channels=channels, groups=channels)
    return replace(layer, channels=scaled(layer.channels, width, base, layer.groups))
