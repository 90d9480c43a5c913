"""Blocks that nest: what convolutional networks are made of, and how they run on paper.

An item is a layer kind of one input, or one of the four composites here. Layers are named by kind, numbered within
their list where several share a name: ``bottleneck2.residual.conv1``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from costmodel.errors import ShapeError
from costmodel.graph.tensor import Tensor, show_shape
from costmodel.layers.arithmetic import Add, Divide, Multiply, Shift
from costmodel.layers.base import Layer
from costmodel.layers.shape import Concat


class Composite(ABC):
    """Abstract: a block made of items."""

    kind: ClassVar[str]
    """Name in files."""

    @property
    def label(self) -> str:
        """What its layers' names begin with."""
        return self.kind

    @abstractmethod
    def __call__(self, x: Tensor, *, name: str) -> Tensor:
        """Run on paper."""


BlockSpec = Layer | Composite
Blocks = tuple[BlockSpec, ...]

JOINS: dict[str, type[Layer]] = {"add": Add, "concat": Concat, "multiply": Multiply}


@dataclass(frozen=True)
class Sequence(Composite):
    """Items one after another; `name` is what their names begin with."""

    kind = "sequence"

    blocks: Blocks
    name: str = ""

    @property
    def label(self) -> str:
        """Its name, if it has one."""
        return self.name or self.kind

    def __call__(self, x: Tensor, *, name: str) -> Tensor:
        """Run on paper."""
        with x.tape.scope(name):
            return apply(self.blocks, x)


@dataclass(frozen=True)
class Repeat(Composite):
    """Items one after another, `times` times, each time with weights of their own; input channels may differ."""

    kind = "repeat"

    times: int
    blocks: Blocks

    @property
    def label(self) -> str:
        """That of the one thing repeated, if it is one."""
        return self.blocks[0].label if self._unwraps() else self.kind  # type: ignore[union-attr]

    def _unwraps(self) -> bool:
        return len(self.blocks) == 1 and isinstance(self.blocks[0], Sequence)

    def __call__(self, x: Tensor, *, name: str) -> Tensor:
        """Run on paper; what is alike is traced once."""
        inner = self.blocks[0].blocks if self._unwraps() else self.blocks  # type: ignore[union-attr]
        return x.tape.repeat(self.times, lambda x: apply(inner, x), x, name)


@dataclass(frozen=True)
class Residual(Composite):
    """body(x) + x, or body(x) + projection(x) (He et al. 2016, eq. 1 and 2); an activation after it is its own item."""

    kind = "residual"

    body: Blocks
    projection: Blocks | None = None

    def __call__(self, x: Tensor, *, name: str) -> Tensor:
        """Run on paper. Raises ShapeError if the two shapes differ."""
        with x.tape.scope(name):
            y = apply(self.body, x)
            if self.projection:
                with x.tape.scope("projection"):
                    x = apply(self.projection, x)
            try:
                return _join("add", [y, x])
            except ShapeError as error:
                right = (
                    "let body and projection make one shape" if self.projection else "give the residual a projection"
                )
                raise ShapeError(f"{error}: {right}") from None


@dataclass(frozen=True)
class Branches(Composite):
    """Paths from one input, joined; an empty path is the input itself.

    join: "concat" along channels, "add", or "multiply" (a path of one pixel then scales whole channels).
    """

    kind = "branches"

    paths: tuple[Blocks, ...]
    join: Literal["add", "concat", "multiply"]

    def __call__(self, x: Tensor, *, name: str) -> Tensor:
        """Run on paper. Raises ShapeError if the paths' shapes do not meet."""
        with x.tape.scope(name):
            ends = []
            for number, path in enumerate(self.paths, start=1):
                with x.tape.scope(f"path{number}"):
                    ends.append(apply(path, x))
            return _join(self.join, ends)


@dataclass(frozen=True)
class ResponseNorm(Composite):
    """γ·x·n + β + x, n being each channel's norm over the image over the mean of all channels'; channels come last.

    Global response normalisation (Woo et al. 2023, ConvNeXt V2, §3.2).
    """

    kind = "response_norm"

    def __call__(self, x: Tensor, *, name: str) -> Tensor:
        """Run on paper, (batch, H, W, C) → the same. Raises ShapeError for another number of axes."""
        from costmodel.layers.indexing import Parameter  # few networks need it
        from costmodel.layers.reduction import Reduce

        if len(x.shape) != 4:
            raise ShapeError(f"{name}: {show_shape(x.shape)} is not (batch, height, width, channels)")
        b, *_, c = x.shape
        with x.tape.scope(name):
            size = Reduce("linalg_vector_norm", (b, 1, 1, c))(x, name="response")
            mean = Shift(1e-6)(Reduce("mean", (b, 1, 1, 1))(size, name="mean_response"), name="positive")
            y = Multiply()(x, Divide()(size, mean, name="relative"), name="weigh")
            scale, bias = (x.tape.record(Parameter((1, 1, 1, c)), (), part, None) for part in ("scale", "bias"))
            y = Add()(Multiply()(scale, y, name="scaled"), bias, name="add_bias")
            return Add()(y, x, name="add")


COMPOSITES: dict[str, type[Composite]] = {cls.kind: cls for cls in (Sequence, Repeat, Residual, Branches, ResponseNorm)}


def apply(blocks: Blocks, x: Tensor) -> Tensor:
    """Run items one after another."""
    for name, block in zip(labels(blocks), blocks, strict=True):
        x = block(x, name=name)
    return x


def labels(blocks: Iterable[BlockSpec]) -> list[str]:
    """Names for the items of one list, numbered where several would be alike."""
    plain = [block.label if isinstance(block, Composite) else block.kind for block in blocks]
    several = {label for label, count in Counter(plain).items() if count > 1}
    seen: Counter[str] = Counter(plain)
    seen.clear()
    named = []
    for label in plain:
        seen[label] += 1
        named.append(f"{label}{seen[label]}" if label in several else label)
    return named


def _join(how: str, ends: list[Tensor]) -> Tensor:
    if how == "concat":
        return Concat()(*ends)
    first, *rest = ends
    for number, end in enumerate(rest, start=1):
        joined = JOINS[how]()(first, end, name=how if len(rest) == 1 else f"{how}{number}")
        if how == "add" and first.shape != end.shape:  # broadcasting is never meant here
            raise ShapeError(
                f"{joined.storage.name}: cannot add {show_shape(first.shape)} and {show_shape(end.shape)}; "
                "they must be equal"
            )
        first = joined
    return first
