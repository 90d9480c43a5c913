"""What one forward pass on paper recorded: calls of layers in order, with blocks that repeat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from costmodel.errors import ShapeError
from costmodel.sizes import product
from costmodel.tensor import (
    Role,
    Storage,
    Tensor,
    contiguous_strides,
    dense_strides,
    show_shape,
    viewed_strides,
)

if TYPE_CHECKING:
    from costmodel.layers.base import Gradient, Kind
    from costmodel.run import Run

Device = Literal["gpu", "cpu"]


class Block:
    """A stretch of the graph that happens `count` times for each time that its parent does.

    recomputed: nothing in it is kept but what it reads from outside, `kept`; backward runs it forward again.
    """

    __slots__ = ("count", "entries", "entry", "exit", "kept", "name", "parent", "recomputed")

    def __init__(self, name: str, count: int, parent: Block | None) -> None:
        self.name = name
        self.count = count
        self.parent = parent
        self.entries: list[Call | Block] = []
        self.entry: Tensor | None = None
        self.exit: Tensor | None = None
        self.recomputed = False
        self.kept: tuple[Storage, ...] = ()

    @property
    def times(self) -> int:
        """How often this stretch happens in all."""
        return self.count if self.parent is None else self.count * self.parent.times

    def calls(self) -> Iterator[Call]:
        """Every call within, in order, each repeated block once."""
        for entry in self.entries:
            if isinstance(entry, Block):
                yield from entry.calls()
            else:
                yield entry

    def blocks(self) -> Iterator[Block]:
        """Every block within, at any depth."""
        for entry in self.entries:
            if isinstance(entry, Block):
                yield entry
                yield from entry.blocks()


class Call:
    """One layer applied to its inputs: what it reads, makes and keeps.

    Kinds are asked about a call and answer from its tensors: `x` is the first input, `y` the output. `weights` are what
    it computes with: those `stored`, or casts of them, as `inputs` are what was `given` or casts of it. `kept` is what
    it keeps for backward, until then or, if it is `recomputed`, only once it has been run again.
    """

    __slots__ = (
        "_gradients",
        "block",
        "buffers",
        "given",
        "inputs",
        "kept",
        "kind",
        "name",
        "recomputed",
        "run",
        "stored",
        "weights",
        "y",
    )

    def __init__(self, run: Run, kind: Kind, inputs: tuple[Tensor, ...], name: str) -> None:
        self.run = run
        self.kind = kind
        self.inputs = self.given = inputs
        self.name = name
        self.block = run.block
        self.weights: dict[str, Tensor] = {}
        self.stored = self.weights
        self.buffers: dict[str, Tensor] = {}
        self.kept: tuple[Storage, ...] = ()
        self.recomputed = False
        self.y: Tensor
        self._gradients: tuple[Gradient, ...] | None = None

    @property
    def x(self) -> Tensor:
        """The first input."""
        return self.inputs[0]

    @property
    def times(self) -> int:
        """How often this call happens."""
        return self.block.times

    def operands(self) -> Iterator[Tensor]:
        """Inputs and weights: everything a gradient may be asked for."""
        yield from self.inputs
        yield from self.weights.values()

    def gradients(self) -> tuple[Gradient, ...]:
        """The backward work for each operand that needs a gradient; the kind is asked once, after the trace."""
        if self._gradients is None:
            self._gradients = tuple([g for g in self.kind.backward(self) if g.operand.requires_grad])
        return self._gradients

    def like(self, x: Tensor, role: Role = "activation") -> Tensor:
        """A new tensor of the shape and memory order of `x`, as an elementwise operation makes it."""
        return self.run.tensor(x.shape, role, strides=dense_strides(x.shape, x.strides))

    def fresh(self, role: Role, *shape: int) -> Storage:
        """Memory that this call makes beside its output, such as a statistic, a mask or a contiguous copy."""
        return self.run.storage(product(shape), role, "computed", self.name)

    def as_batch(self, x: Tensor) -> Storage:
        """What a batched product holds of an operand: itself if (batch, rows, columns) is a view, else a copy."""
        *batch, rows, columns = x.shape
        viewable = viewed_strides(x.shape, x.strides, (product(batch), rows, columns)) is not False
        return x.storage if viewable else self.copy_of(x)

    def copy_of(self, x: Tensor) -> Storage:
        """Memory for a contiguous copy of `x`."""
        return self.run.storage(x.size, x.storage.role, "computed", self.name, x.dtype)

    def fail(self, message: str) -> ShapeError:
        """Error that names this layer and the shapes it met."""
        shapes = " and ".join(show_shape(x.shape) for x in self.inputs)
        return ShapeError(f"{self.name}: {message} (input {shapes})")


def transposed(x: Tensor, first: int, second: int) -> Tensor:
    """View with two axes exchanged."""
    strides = list(contiguous_strides(x.shape) if x.strides is None else x.strides)
    shape = list(x.shape)
    shape[first], shape[second] = shape[second], shape[first]
    strides[first], strides[second] = strides[second], strides[first]
    return x.view(tuple(shape), tuple(strides))
