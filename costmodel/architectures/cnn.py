"""Convolutional networks: lists of blocks over images, read from plain data and written back as such."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import Field, field_serializer, model_validator

from costmodel.architectures.base import (
    Architecture,
    BatchShape,
    ImageShape,
    refuse,
    scaled_size,
)
from costmodel.architectures.composites import (
    COMPOSITES,
    Blocks,
    BlockSpec,
    Branches,
    Composite,
    Repeat,
    Residual,
    Sequence,
    labels,
)
from costmodel.architectures.stages import StageParts, own_parts
from costmodel.documents.arguments import show
from costmodel.errors import SettingError, SpecError, unknown
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Tensor
from costmodel.layers import load_all
from costmodel.layers.base import Layer
from costmodel.layers.conv import Conv, ConvTranspose
from costmodel.layers.linear import Linear
from costmodel.training.fields import check_names, checked, whole_size

MOST_VALUES = 20_000
"""A description with more items and template values is refused: no network needs them, and a runaway file does."""
MOST_TEMPLATES = 200
DEEPEST = 50
"""Nesting beyond this is refused."""


class CNN(Architecture):
    """A network over images, as a list of blocks: layer kinds, and those of `costmodel.architectures.composites`.

    From Python an item is a layer (``Conv(64, kernel=7)``) or a composite (``Residual([...])``). From data it is a
    kind's name (``relu``), or a mapping from one name to its fields (``conv: {channels: 64, kernel: 7}``). A template
    of the section ``define`` is used like a kind; its body stands in the item's place, with ``$name`` replaced by the
    value of field `name`. Nothing else is computed.

    Example:
        >>> import costmodel as cm
        >>> from costmodel.layers import AdaptiveAvgPool, Conv, Flatten, Linear, Relu
        >>> blocks = [Conv(8, kernel=3, padding=1), Relu(), AdaptiveAvgPool(1), Flatten(), Linear(10)]
        >>> cm.predict(cm.CNN(input=[3, 32, 32], blocks=blocks), batch=4).params
        314

    """

    BATCH_SIZES: ClassVar[tuple[str, ...]] = ("image",)
    DERIVED: ClassVar[tuple[str, ...]] = ("width",)

    input: ImageShape = Field(description="[channels, height, width] of an image")
    blocks: Any = Field(description="items, one after another")

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or "blocks" not in data:
            return data
        fields = {name: value for name, value in data.items() if name != "define"}
        return {**fields, "blocks": read_blocks(data["blocks"], data.get("define"))}

    @classmethod
    def unchecked(cls, fields: Mapping[str, Any]) -> Self:
        """See `Description.unchecked`: layers are made of what lists them."""
        return cls(**fields)

    @field_serializer("blocks")
    def _write(self, blocks: Blocks) -> list[Any]:
        return write_blocks(blocks)

    def size(self, name: str) -> int:
        """See `Architecture.size`: the channels or features of the first layer."""
        sized = _sized(self.blocks)
        if len(sized) < 2:
            raise SettingError(f"{self.title} has no {name} to turn: its one layer makes the output")
        return _size(sized[0])

    def vary(self, name: str, value: Any) -> Self:
        """See `Architecture.vary`: layers keep their proportions, rounded; input and output stay."""
        if name not in self.DERIVED:
            return self.with_fields({name: value})
        size, base = whole_size(name, value), self.size(name)
        return self.with_fields({"blocks": _widened(self.blocks, size, base, _sized(self.blocks)[-1])})

    def batch_shape(self, batch: int, seq: int | None, image: tuple[int, int] | None) -> BatchShape:
        """A batch of images, of the model's own size unless `image` says another."""
        refuse("seq", seq, self, "batch and image")
        return BatchShape(batch, image=self.input[1:] if image is None else image)

    def forward(self, tape: Tape, shape: BatchShape, attention: Any) -> Tensor:
        """(batch, C, H, W) → what the last block makes, such as (batch, classes)."""
        assert shape.image is not None
        first = tape.layout.first
        x = tape.input((shape.batch, self.input[0], *shape.image), name="images") if first else tape.received()
        own = own_parts(tape.layout, self)
        for name, block in _cut(self.blocks, own.start, own.stop):
            x = block(x, name=name)
        return x

    @property
    def stage_parts(self) -> StageParts:
        """See `Architecture.stage_parts`: its items, each time of one that repeats, and those of a list that has such.

        So a ResNet's are its stem's layers, each bottleneck, and what is after them.
        """
        return StageParts(_runs(self.blocks))


def _cut(blocks: Blocks, start: int, stop: int) -> Iterator[tuple[str, BlockSpec]]:
    """Items by name that have the parts from one number up to another; of an item with others too, what has these."""
    number = 0
    for name, block in zip(labels(blocks), blocks, strict=True):
        parts = sum(times for _, times in _runs([block]))
        first, last = max(start - number, 0), min(stop - number, parts)
        number += parts
        if last - first == parts:
            yield name, block
        elif first < last and isinstance(block, Repeat):
            yield f"{name}.{first}", replace(block, times=last - first)
        elif first < last and isinstance(block, Sequence):
            yield name, replace(block, blocks=tuple(inner for _, inner in _cut(block.blocks, first, last)))


def _runs(blocks: Iterable[BlockSpec]) -> Iterator[tuple[str, int]]:
    """Parts that stages are made of: see `StageParts.runs`."""
    items = tuple(blocks)
    for name, block in zip(labels(items), items, strict=True):
        if isinstance(block, Repeat):
            yield name, block.times
        elif isinstance(block, Sequence) and any(isinstance(inner, Repeat) for inner in block.blocks):
            yield from ((f"{name}.{inner}", times) for inner, times in _runs(block.blocks))
        else:
            yield name, 1


def read_blocks(data: Any, define: Any = None) -> Blocks:
    """Blocks from plain data, from blocks, or from a mixture.

    Raises CostModelError with the place and the value, such as ``blocks[3].residual.body[1].conv.kernel: 0 is not …``.
    """
    reader = _ItemReader()
    return reader.items(data, "blocks", read_templates({} if define is None else define), 0)


class _ItemReader:
    """Reads items, and counts them so that a small file cannot stand for an enormous network."""

    def __init__(self) -> None:
        self.kinds: Mapping[str, type[Layer]] = load_all()
        self.count = 0

    def tick(self, where: str, depth: int) -> None:
        self.count += 1
        if self.count > MOST_VALUES:
            raise SpecError(f"{where[:200]}: the description has more than {MOST_VALUES:,} values, templates filled in")
        if depth > DEEPEST:
            raise SpecError(f"{where[:200]}...: the description is nested more than {DEEPEST} deep")

    def items(self, data: Any, where: str, templates: Mapping[str, Template], depth: int) -> Blocks:
        if not isinstance(data, list | tuple):
            raise SpecError(f"{where}: {show(data)} is not a list of items")
        if not data:
            raise SpecError(f"{where}: the list is empty; it needs at least one item")
        return tuple(self.item(item, f"{where}[{n}]", templates, depth) for n, item in enumerate(data))

    def item(self, item: Any, where: str, templates: Mapping[str, Template], depth: int) -> BlockSpec:
        self.tick(where, depth)
        if isinstance(item, Layer | Composite):
            name, values = item.kind, {f.name: getattr(item, f.name) for f in dataclasses.fields(item)}  # type: ignore[arg-type]
        elif isinstance(item, str):
            name, values = item, {}
        elif isinstance(item, Mapping) and len(item) == 1:
            [(name, values)] = item.items()
        else:
            raise SpecError(f"{where}: {show(item)} is not an item: a name, or a mapping from one name to its fields")
        where = f"{where}.{name}" if isinstance(name, str) else where
        if name == "sequence" and isinstance(values, list):
            return Sequence(self.items(values, where, templates, depth + 1))
        if not isinstance(values, Mapping):
            raise SpecError(f"{where}: {show(values)} is not a mapping of fields")
        if isinstance(name, str) and name in templates:
            return self.fill(name, values, where, templates, depth)
        if isinstance(name, str) and name in COMPOSITES:
            return self.composite(COMPOSITES[name], values, where, templates, depth)
        return self.layer(name, values, where, templates)

    def layer(self, name: Any, values: Mapping[Any, Any], where: str, templates: Mapping[str, Template]) -> Layer:
        if not isinstance(name, str) or name not in self.kinds:
            raise unknown(f"layer at {where}:", name, item_names(templates))
        kind = self.kinds[name]
        if not kind.in_lists:
            raise SpecError(
                f"{where}: {name} takes several inputs or indices, or is put in by a setting or an import; "
                "join paths with branches or residual"
            )
        check_names(kind, values, where)
        return kind(**{field: checked(kind, field, value, where) for field, value in values.items()})

    def composite(
        self, cls: type[Composite], values: Mapping[Any, Any], where: str, templates: Mapping[str, Template], depth: int
    ) -> Composite:
        check_names(cls, values, where)
        fields: dict[str, Any] = {}
        for field, value in values.items():
            if field in ("blocks", "body") or (field == "projection" and value is not None):
                fields[field] = self.items(value, f"{where}.{field}", templates, depth + 1)
            elif field == "paths":
                fields[field] = self.paths(value, f"{where}.paths", templates, depth + 1)
            else:
                fields[field] = checked(cls, field, value, where)
        return cls(**fields)

    def paths(self, data: Any, where: str, templates: Mapping[str, Template], depth: int) -> tuple[Blocks, ...]:
        if not isinstance(data, list | tuple) or len(data) < 2:
            raise SpecError(f"{where}: {show(data)} is not a list of at least two paths, each a list of items")
        paths: list[Blocks] = []
        for n, path in enumerate(data):
            self.tick(where, depth)
            empty = isinstance(path, list | tuple) and not path
            paths.append(() if empty else self.items(path, f"{where}[{n}]", templates, depth))
        return tuple(paths)

    def fill(
        self, name: str, values: Mapping[Any, Any], where: str, templates: Mapping[str, Template], depth: int
    ) -> Sequence:
        template = templates[name]
        for field in values:
            if field not in template.takes:
                raise unknown(f"field of {where}", field, template.takes)
        if missing := [field for field in template.takes if field not in values]:
            raise SpecError(f"{where}: field {missing[0]} is missing")
        body = self.replaced(template.blocks, values, f"{where}.blocks", 0)
        return Sequence(self.items(body, f"{where}.blocks", template.earlier, depth + 1), name)

    def replaced(self, data: Any, values: Mapping[str, Any], where: str, depth: int) -> Any:
        self.tick(where, depth)
        if isinstance(data, Mapping):
            return {key: self.replaced(value, values, where, depth + 1) for key, value in data.items()}
        if isinstance(data, list):
            return [self.replaced(value, values, where, depth + 1) for value in data]
        if isinstance(data, str) and data.startswith("$"):
            if data[1:] not in values:
                raise unknown(f"template field in {where}", data, [f"${name}" for name in values])
            return values[data[1:]]
        return data


def write_blocks(blocks: Blocks) -> list[Any]:
    """Plain data that `read_blocks` reads back as equal blocks; fields at their defaults are left out."""
    return [_write(block) for block in blocks]


def _write(block: BlockSpec) -> Any:
    if isinstance(block, Sequence) and not block.name:
        return {"sequence": write_blocks(block.blocks)}
    fields = {
        f.name: _plain(getattr(block, f.name))
        for f in dataclasses.fields(block)  # type: ignore[arg-type]
        if getattr(block, f.name) != f.default
    }
    return {block.kind: fields} if fields else block.kind


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_write(item) if isinstance(item, Layer | Composite) else _plain(item) for item in value]
    return value


class Template(NamedTuple):
    """A definition: names of its fields, the items that they go into, and the definitions before it."""

    takes: tuple[str, ...]
    blocks: list[Any]
    earlier: Mapping[str, Template]


def read_templates(define: Any) -> dict[str, Template]:
    """The section `define`. Raises SpecError or UnknownNameError."""
    templates: dict[str, Template] = {}
    if not isinstance(define, Mapping):
        raise SpecError(f"define: {show(define)} is not a mapping from names to templates")
    if len(define) > MOST_TEMPLATES:
        raise SpecError(f"define: {len(define):,} templates are too many: use at most {MOST_TEMPLATES}")
    for name, body in define.items():
        where = f"define.{name}"
        if not isinstance(name, str) or not name.isidentifier():
            raise SpecError(f"define: {show(name)} is not a name: use letters, digits and underscores")
        if name in item_names(()):
            raise SpecError(f"{where}: there is a layer kind of that name; choose another")
        if not isinstance(body, Mapping) or not {"blocks"} <= {*body} <= {"takes", "blocks"}:
            raise SpecError(
                f"{where}: a template is a mapping with takes (a list of names) and blocks, not {show(body)}"
            )
        takes = body.get("takes", [])
        if not isinstance(takes, list) or not all(isinstance(t, str) and t.isidentifier() for t in takes):
            raise SpecError(f"{where}.takes: {show(takes)} is not a list of names")
        _check_items(body["blocks"], f"{where}.blocks", templates, 0)
        templates[name] = Template(tuple(takes), body["blocks"], dict(templates))
    return templates


def item_names(templates: Collection[str]) -> set[str]:
    """Everything that an item can be called."""
    return {name for name, kind in load_all().items() if kind.in_lists} | {*COMPOSITES, *templates}


def _check_items(items: Any, where: str, templates: Mapping[str, Template], depth: int) -> None:
    """Raise an error for an item of a name that is not known; what else is wrong shows when the template is used."""
    if depth > DEEPEST:
        raise SpecError(f"{where[:200]}...: the description is nested more than {DEEPEST} deep")
    for n, item in enumerate(items if isinstance(items, list | tuple) else ()):
        name, values = next(iter(item.items())) if isinstance(item, Mapping) and len(item) == 1 else (item, {})
        if not isinstance(name, str) or name.startswith("$"):
            continue
        place = f"{where}[{n}].{name}"
        if name not in (known := item_names(templates)):
            raise unknown(f"layer at {place}:", name, known)
        if name not in COMPOSITES:
            if name not in templates and isinstance(values, Mapping):
                check_names(load_all()[name], values, place)
            continue
        for field, inner in _lists_in(values):
            _check_items(inner, f"{place}{field}", templates, depth + 1)


def _lists_in(values: Any) -> Iterator[tuple[str, Any]]:
    """Lists of items within a composite, each with its place there."""
    if not isinstance(values, Mapping):
        yield "", values
        return
    for field in ("blocks", "body", "projection"):
        if field in values:
            yield f".{field}", values[field]
    paths = values.get("paths")
    for n, path in enumerate(paths if isinstance(paths, list | tuple) else ()):
        yield f".paths[{n}]", path


Sized = Conv | ConvTranspose | Linear


def _size(layer: Sized) -> int:
    return layer.features if isinstance(layer, Linear) else layer.channels


def _sized(blocks: Blocks) -> list[Sized]:
    """Layers that set a width, in the order that they are listed; the last makes the output."""
    layers: list[Sized] = []
    for block in blocks:
        if isinstance(block, Sized):
            layers.append(block)
        for inner in _inner(block):
            layers += _sized(inner)
    return layers


def _inner(block: BlockSpec) -> tuple[Blocks, ...]:
    if isinstance(block, Branches):
        return block.paths
    if isinstance(block, Residual):
        return (block.body, block.projection or ())
    return (block.blocks,) if isinstance(block, Sequence | Repeat) else ()


def _widened(blocks: Blocks, width: int, base: int, last: Sized) -> Blocks:
    def again(inner: Blocks) -> Blocks:
        return _widened(inner, width, base, last)

    def wide(block: BlockSpec) -> BlockSpec:
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
        return replace(layer, features=scaled_size(layer.features, width, base))
    if layer.groups == layer.channels:
        channels = scaled_size(layer.channels, width, base)
        return replace(layer, channels=channels, groups=channels)
    return replace(layer, channels=scaled_size(layer.channels, width, base, layer.groups))
